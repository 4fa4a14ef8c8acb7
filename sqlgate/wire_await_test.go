package sqlgate

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/eventlog/event"
)

// An awaited world tells of each statement that begins to wait for an approval.
type awaitedWorld struct {
	*wireWorld
	begun chan struct{}
}

func newAwaitedWorld(t *testing.T) *awaitedWorld {
	t.Helper()
	w := &awaitedWorld{begun: make(chan struct{}, 1)}
	w.wireWorld = newWireWorld(t, func(o *Options) {
		o.Wire.TakeWait = func(string) (func(), bool) {
			w.begun <- struct{}{}
			return func() {}, true
		}
	})
	postgresExecute(w.wireWorld, "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
	return w
}

// pending is the approval that was asked for last.
func (w *awaitedWorld) pending() (id string) {
	w.t.Helper()
	for _, e := range w.events() {
		if e.Type == event.TypeApprovalCreated {
			id = e.Context.ApprovalID
		}
	}
	require.NotEmpty(w.t, id)
	return id
}

func (w *awaitedWorld) resolve(id, decision string) {
	w.t.Helper()
	_, err := w.Commands.ResolveApproval(context.Background(), commands.ResolveApproval{ID: id, Decision: decision, By: "test"})
	require.NoError(w.t, err)
}

// asked sends a statement that waits; its end comes on the channel.
func (w *awaitedWorld) asked(send func() error) <-chan error {
	w.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- send() }()
	<-w.begun
	return ended
}

func TestHowLongAnApprovalIsWaitedForIsASetting(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	show := func(c *wireClient, want string) {
		t.Helper()
		_, rows := c.query("SHOW gate.approval_wait_ms")
		require.Equal(t, []string{want}, rows)
	}
	show(c, "0")
	for _, good := range []string{"60000", "0", "1500"} {
		c.query("SET gate.approval_wait_ms = " + good)
		show(c, good)
	}
	for _, wrong := range []string{"60001", "-1", "'x'", "''", "1.5", "'30s'", "'1e3'"} {
		require.Equal(t, "22023", state(c.refused("SET gate.approval_wait_ms = "+wrong)), wrong)
		show(c, "1500")
	}
	c.query("BEGIN")
	c.query("SET LOCAL gate.approval_wait_ms = 7")
	show(c, "7")
	c.query("COMMIT")
	show(c, "1500")
	c.query("RESET gate.approval_wait_ms")
	show(c, "0")
	c = w.wire([2]string{"gate.approval_wait_ms", "20"})
	c.query("SET gate.approval_wait_ms = 30")
	c.query("RESET ALL")
	show(c, "20")
	_, err := w.OpenWire(WireLogin{Claims: c.login.Claims, Settings: [][2]string{{"gate.approval_wait_ms", "60001"}}})
	require.Equal(t, "22023", state(err))
}

// A statement that needs an approval runs once somebody approves it, in both protocols,
// alone and as the first of a block.
func TestAStatementWaitsForItsApproval(t *testing.T) {
	w := newAwaitedWorld(t)
	c := w.wire([2]string{"gate.approval_wait_ms", "60000"})
	for i, send := range []func() error{
		func() error { _, err := c.Query(t.Context(), "DELETE FROM t WHERE id = 1", &rowsSink{}); return err },
		func() error {
			_, _, err := c.execute(true, "DELETE FROM t WHERE id = $1", "2")
			if err == nil {
				err = c.Sync(t.Context())
			}
			return err
		},
		func() error {
			c.query("BEGIN")
			_, err := c.Query(t.Context(), "DELETE FROM t WHERE id = 3 RETURNING v", &rowsSink{})
			if err == nil {
				_, err = c.Query(t.Context(), "COMMIT", &rowsSink{})
			}
			return err
		},
	} {
		ended := w.asked(send)
		before := w.log.Head().Seq
		require.Zero(t, w.WireBlocks(), "nothing is open at the database meanwhile")
		id := w.pending()
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, before, w.log.Head().Seq, "the wait leaves nothing in the log")
		w.resolve(id, "approve")
		require.NoError(t, <-ended)
		require.Positive(t, c.Waited())
		require.Zero(t, c.Waited())
		require.Equal(t, string(rune('2'-i)), w.value("SELECT count(*) FROM t"))
	}
	require.Equal(t, []string{"DELETE dispatched", "DELETE success", "DELETE dispatched", "DELETE success", "DELETE dispatched", "DELETE success"}, w.trail())
}

// Whatever else ends the wait, nothing runs, and the client is told what it is.
func TestTheWaitForAnApprovalEnds(t *testing.T) {
	t.Parallel()
	w := newAwaitedWorld(t)
	stopping, stop := context.WithCancel(context.Background())
	c := w.wireFor(WireLogin{Client: "192.0.2.1", Settings: [][2]string{{"gate.approval_wait_ms", "60000"}}, Stopping: stopping})
	ctx, hangUp := context.WithCancel(t.Context())
	ask := func() error { _, err := c.Query(ctx, "DELETE FROM t", &rowsSink{}); return err }

	ended := w.asked(ask)
	w.resolve(w.pending(), "reject")
	require.Equal(t, "approval_rejected", state(<-ended))

	ended = w.asked(ask)
	require.Equal(t, WireCancel{Unsent: true}, c.Cancel(t.Context()))
	err := <-ended
	require.Equal(t, "57014", state(err))
	require.Contains(t, err.Error(), "cancelled")

	ended = w.asked(ask)
	w.activate(strings.NewReplacer("1.0.0", "1.1.0", "[TRUNCATE]", "[TRUNCATE, DELETE]").Replace(wirePolicy))
	w.resolve(w.pending(), "approve")
	require.Equal(t, "BLOCK", state(<-ended), "the policy of the moment decides")
	w.activate(strings.Replace(wirePolicy, "1.0.0", "1.2.0", 1))

	ended = w.asked(ask)
	hangUp()
	require.Equal(t, "REQUIRE_APPROVAL", state(<-ended))
	ctx = t.Context()

	c.query("SET gate.approval_wait_ms = 1")
	err = <-w.asked(ask)
	require.Equal(t, "REQUIRE_APPROVAL", state(err))
	late := err.(*WireRefusal).Answer.ApprovalID
	require.Equal(t, w.pending(), late)

	c.query("SET gate.approval_wait_ms = 60000")
	c.query("SET gate.approval_id = '" + late + "'")
	ended = w.asked(ask) // for the one that it names
	require.Equal(t, late, w.pending())
	w.resolve(late, "approve")
	require.NoError(t, <-ended)
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
	_, rows := c.query("SHOW gate.approval_id")
	require.Equal(t, []string{""}, rows, "it served")

	ended = w.asked(ask)
	stop()
	require.Equal(t, "REQUIRE_APPROVAL", state(<-ended))
	require.Equal(t, []string{"DELETE dispatched", "DELETE success"}, w.trail())
}

// Nobody waits for a person while others may wait for what is open at the database, nor
// beyond the room that there is.
func TestNobodyIsWaitedForWithADatabaseConnection(t *testing.T) {
	t.Parallel()
	room := true
	w := newWireWorld(t, func(o *Options) {
		o.Wire.TakeWait = func(string) (func(), bool) { return func() {}, room }
	})
	c := w.wire([2]string{"gate.approval_wait_ms", "60000"})
	notWaited := func(err error, why string) {
		t.Helper()
		require.Equal(t, "REQUIRE_APPROVAL", state(err))
		require.Contains(t, err.(*WireRefusal).Hint, why)
		require.Zero(t, c.Waited())
		require.Zero(t, w.WireBlocks(), "its locks are gone")
	}
	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (1)")
	notWaited(c.refused("DELETE FROM t"), "may hold locks")
	require.Equal(t, WireFailed, c.Status())
	c.query("ROLLBACK")

	require.Equal(t, "INSERT 0 1", c.ran("INSERT INTO t VALUES (1)"))
	_, _, err := c.execute(true, "DELETE FROM t")
	notWaited(err, "may hold locks")
	c.sync()
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))

	room = false
	notWaited(c.refused("DELETE FROM t"), "as many approvals")
}
