package sqlgate

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// errTakenOut is what the listener says of a user that is in its file no more.
var errTakenOut = &WireError{SQLState: "28P01", Message: "not valid any more", Fatal: true}

// taken are the statements of clients whose login ends while they wait, with the step
// at which it does.
var taken = []struct {
	name, step string
	first      []string // Query messages before
	run        func(c *wireClient) error
	rejected   string   // operation of the evidence of the refusal; "" = there is none
	trail      []string // of executions
}{
	{"a read", "decision.before_append", nil, says("SELECT v FROM t"), "SELECT", nil},
	{"a write", "decision.before_append", nil, says("INSERT INTO t VALUES (1, 'a')"), "INSERT", nil},
	{"one that runs alone", "decision.before_append", nil, says("VACUUM t"), "VACUUM", nil},
	{"one that is blocked", "decision.before_append", nil, says("TRUNCATE t"), "TRUNCATE", nil},
	{"one that needs an approval", "decision.before_append", nil, says("DELETE FROM t"), "DELETE", nil},
	{"a plan for who approves", "describe.before_append", nil, says("DELETE FROM t"), "DELETE", nil},
	{"a transaction of its own kind", "block.begun", []string{"SET default_transaction_isolation = 'serializable'"}, says("INSERT INTO t VALUES (1, 'a')"), "INSERT", nil},
	{"a read in a block", "decision.before_append", []string{"BEGIN", "INSERT INTO t VALUES (0, 'a')"}, says("SELECT v FROM t"), "SELECT",
		[]string{"INSERT dispatched", "INSERT failure rolled_back"}},
	{"a write in a block", "decision.before_append", []string{"BEGIN", "INSERT INTO t VALUES (0, 'a')"}, says("INSERT INTO t VALUES (1, 'a')"), "INSERT",
		[]string{"INSERT dispatched", "INSERT failure rolled_back"}},
	{"the first write of a block", "block.begun", []string{"BEGIN"}, says("INSERT INTO t VALUES (1, 'a')"), "INSERT", nil},
	{"a COMMIT", "decision.before_append", []string{"BEGIN", "INSERT INTO t VALUES (1, 'a')"}, says("COMMIT"), "",
		[]string{"INSERT dispatched", "INSERT failure rolled_back"}},
	{"a write between two Syncs", "decision.before_append", nil, func(c *wireClient) error {
		_, _, err := c.execute(false, "INSERT INTO t VALUES (1, 'a')")
		return err
	}, "INSERT", nil},
	{"the second write between two Syncs", "block.dispatched", nil, func(c *wireClient) error {
		c.ran("INSERT INTO t VALUES (0, 'a')")
		_, _, err := c.execute(false, "INSERT INTO t VALUES (1, 'a')")
		return err
	}, "INSERT", []string{"INSERT dispatched", "INSERT failure rolled_back"}},
	{"a Sync", "block.written", nil, func(c *wireClient) error {
		c.ran("INSERT INTO t VALUES (1, 'a')")
		return c.Sync(c.t.Context())
	}, "", []string{"INSERT dispatched", "INSERT failure rolled_back"}},
	{"a description", "describe.before_append", nil, describes, "SELECT", nil},
	{"a description in a block", "describe.before_append", []string{"BEGIN", "INSERT INTO t VALUES (0, 'a')"}, describes, "SELECT",
		[]string{"INSERT dispatched", "INSERT failure rolled_back"}},
	{"a description whose evidence is there", "describe.appended", nil, func(c *wireClient) error {
		if err := describes(c); err != nil {
			return err
		}
		_, _, err := c.DescribeStatement(c.t.Context(), "")
		return err
	}, "SELECT", nil},
	{"a time zone", "decision.before_append", nil, says("SET TimeZone = 'Asia/Tokyo'"), "", nil},
}

func says(sql string) func(*wireClient) error {
	return func(c *wireClient) error { return c.fails(sql) }
}

func describes(c *wireClient) error {
	if err := c.Parse(c.t.Context(), "", "SELECT v FROM t", nil); err != nil {
		return err
	}
	_, _, err := c.DescribeStatement(c.t.Context(), "")
	return err
}

// A statement waits, and meanwhile whoever sent it could not log in any more: nothing of
// it reaches the server, nothing is decided in its name, and what is open is undone.
func TestNothingRunsForAUserWhoIsTakenOutMeanwhile(t *testing.T) {
	for _, row := range taken {
		t.Run(row.name, func(t *testing.T) {
			w := newWireWorld(t, func(o *Options) { o.PlanEstimates = true })
			var gone *WireError
			c := w.wireFor(WireLogin{User: "ann", Stands: func() *WireError { return gone }})
			for _, sql := range row.first {
				c.query(sql)
			}
			before := -1
			w.stops.Store(row.step, func() {
				if gone == nil {
					gone, before = errTakenOut, len(w.events())
				}
			})
			err := row.run(c)
			require.Equal(t, "28P01", state(err), "%v", err)
			require.True(t, err.(*WireError).Fatal)
			require.Zero(t, w.WireBlocks(), "its locks are gone")
			require.Equal(t, row.trail, w.trail())
			rejected := ""
			for _, e := range w.events()[before:] {
				switch e.Type {
				case event.TypeDecisionRecorded:
					require.Contains(t, []string{"COMMIT", "SET"}, e.Context.Operation, "was noted before")
				case event.TypeQueryRejected:
					rejected = e.Context.Operation
					require.Equal(t, "sqlstate_28P01", e.Context.ReasonCode)
				}
				require.NotEqual(t, event.TypeApprovalCreated, e.Type)
			}
			require.Equal(t, row.rejected, rejected)
			c.Close(context.WithoutCancel(t.Context()))
			require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
			require.Equal(t, row.trail, w.trail())
			require.Equal(t, "UTC", c.Wire.show(settingTimeZone))
		})
	}
}

// An approval of who is taken out while the statement waits for it is not used up.
func TestAnApprovalIsNotUsedForAUserWhoIsTakenOutMeanwhile(t *testing.T) {
	w := newWireWorld(t, nil)
	postgresExecute(w, "INSERT INTO t VALUES (1, 'a')")
	var gone *WireError
	login := WireLogin{User: "ann", Stands: func() *WireError { return gone }}
	c := w.wireFor(login)
	err := c.refused("DELETE FROM t")
	require.Equal(t, "REQUIRE_APPROVAL", state(err))
	id := err.(*WireRefusal).Answer.ApprovalID
	w.approve(id)
	with := "/* gate.approval_id=" + id + " */ DELETE FROM t"
	w.stops.Store("decision.before_append", func() { gone = errTakenOut })
	require.Equal(t, "28P01", state(c.refused(with)))
	require.Equal(t, "1", w.value("SELECT count(*) FROM t"))
	w.stops.Delete("decision.before_append")
	gone = nil
	tag, _ := w.wireFor(login).query(with)
	require.Equal(t, "DELETE 1", tag)
}

// What a connection answers by itself is decided for who is there as well.
func TestNoOrderIsTakenFromAUserWhoIsTakenOutMeanwhile(t *testing.T) {
	for _, sql := range []string{"BEGIN", "SET application_name = 'x'", "SHOW TimeZone", "PREPARE p AS SELECT 1", "DISCARD ALL"} {
		w := newWireWorld(t, nil)
		c := w.wireFor(WireLogin{User: "ann", Stands: func() *WireError { return errTakenOut }})
		require.Equal(t, "28P01", state(c.refused(sql)), sql)
		require.Equal(t, WireIdle, c.Status(), sql)
		list := w.events()
		last := list[len(list)-1]
		require.Equal(t, event.TypeQueryRejected, last.Type, sql)
		require.True(t, strings.HasPrefix(sql, last.Context.Operation), sql)
		require.False(t, c.Unwritten(), sql)
	}
}

// The connection ends, and what is open with it, where the log takes nothing either.
func TestAUserWhoIsTakenOutEndsWithoutEvidenceToo(t *testing.T) {
	for _, sql := range []string{"ROLLBACK", "INSERT INTO t VALUES (2, 'a')"} {
		w := newWireWorld(t, nil)
		var gone *WireError
		c := w.wireFor(WireLogin{User: "ann", Stands: func() *WireError { return gone }})
		c.query("BEGIN")
		c.query("INSERT INTO t VALUES (1, 'a')")
		gone = errTakenOut
		w.full.Store(true)
		err := c.fails(sql)
		require.Error(t, err, sql)
		require.Zero(t, w.WireBlocks(), sql)
		require.Equal(t, "0", w.value("SELECT count(*) FROM t"), sql)
	}
}
