package sqlgate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
)

// controlled counts the operations of session control that the log has a request
// and a decision of.
func (w *wireWorld) controlled() map[string]int {
	w.t.Helper()
	received, decided := map[string]int{}, map[string]int{}
	for _, e := range w.events() {
		switch e.Type {
		case event.TypeRequestReceived:
			received[e.Context.Operation]++
		case event.TypeDecisionRecorded:
			decided[e.Context.Operation]++
		}
	}
	require.Equal(w.t, received, decided)
	return decided
}

func (w *wireWorld) count(kind event.Type) (n int) {
	w.t.Helper()
	for _, e := range w.events() {
		if e.Type == kind {
			n++
		}
	}
	return n
}

// ones is a list of constants, whose normalized text is longer than itself.
func ones(n int) string { return strings.Repeat("1,", n-1) + "1" }

func fullText(o *Options) { o.SQLText = SQLTextFull }

// Evidence that waits for the next append may never be more than an append takes:
// whatever was answered is in the log, and the connection goes on.
func TestWhatWasAnsweredIsInTheLogHoweverLargeItsEvidenceIs(t *testing.T) {
	const length = 250_000
	for name, c := range map[string]struct {
		set  func(*Options)
		n    int
		sql  func(i int) string
		want map[string]int
	}{
		"long texts kept in full": {fullText, 40, func(int) string { return "SET application_name = '" + strings.Repeat("x", length) + "'" }, map[string]int{"SET": 40, "INSERT": 1}},
		"normalized texts longer than the texts": {nil, 47, func(i int) string {
			if i%16 == 15 {
				return "DEALLOCATE ALL"
			}
			return "PREPARE p" + strings.Repeat("i", i%16) + " AS SELECT " + ones(30_000)
		}, map[string]int{"PREPARE": 45, "DEALLOCATE": 2, "INSERT": 1}},
		"texts that are not kept": {func(o *Options) { o.SQLText = SQLTextNone }, 5, func(int) string { return "SET application_name = '" + strings.Repeat("x", length) + "'" }, map[string]int{"SET": 5, "INSERT": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWireWorld(t, c.set)
			client := w.wire()
			for i := range c.n {
				client.query(c.sql(i))
				bytes := 0
				for _, a := range client.ahead {
					bytes += a.Request.SQLBytes + len(a.Request.SQLText)
				}
				require.LessOrEqual(t, bytes, 1<<17, "what an idle connection keeps is small")
			}
			client.query("INSERT INTO t VALUES (1, 'a')")
			require.Equal(t, c.want, w.controlled())
		})
	}
}

func TestManySmallStatementsWaitForOneAppend(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	before := w.log.Head().Seq
	for range 10 {
		c.query("SET application_name = 'x'")
	}
	require.Equal(t, before, w.log.Head().Seq, "they cost no append of their own")
	require.True(t, c.Unwritten())
	c.WriteEvidence(t.Context())
	require.False(t, c.Unwritten())
	require.Equal(t, 10, w.controlled()["SET"])
}

// What no record of the log can take is refused with evidence, and what waited for
// its append stays.
func TestWhatIsTooLargeForTheLogIsRefusedAndStandsInNobodysWay(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	long := strings.Repeat("x", 524_200) // an approval shows the EXECUTE and what it runs
	require.NoError(t, c.Parse(t.Context(), "d", "DELETE FROM t WHERE v = $1 AND v <> '"+long+"'", []uint32{25}))
	c.query("SET application_name = 'kept'")
	_, err := c.Query(t.Context(), "EXECUTE d('"+long+"')", &rowsSink{})
	require.Equal(t, fault.OversizedRequest, fault.CodeOf(err))
	require.True(t, c.Unwritten())
	c.query("INSERT INTO t VALUES (1, 'a')")
	require.Equal(t, map[string]int{"SET": 1, "INSERT": 1}, w.controlled())
	require.Equal(t, 1, w.count(event.TypeQueryRejected))
}

// What is answered between a write and its COMMIT does not keep the result out of
// the log.
func TestTheResultOfACommittedWriteDependsOnNothingBesideIt(t *testing.T) {
	w := newWireWorld(t, fullText)
	c := w.wire()
	require.NoError(t, c.Parse(t.Context(), "big", "SET application_name = '"+strings.Repeat("x", 262_000)+"'", nil))
	c.ran("INSERT INTO t VALUES (1, 'a')")
	for range 40 {
		require.NoError(t, c.Bind("", "big", nil, nil, nil))
		_, err := c.Execute(t.Context(), "", 0, false, &rowsSink{})
		require.NoError(t, err)
	}
	c.sync()
	require.Equal(t, []string{"INSERT dispatched", "INSERT success"}, w.trail())
	require.Equal(t, 40, w.controlled()["SET"])
}

// Nothing is committed while evidence waits: where that can't be written the
// write is undone, and the log says so.
func TestAWriteIsNotCommittedBeforeTheEvidenceAroundItIsInTheLog(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.ran("INSERT INTO t VALUES (1, 'a')")
	c.ran("SET application_name = 'x'")
	written := map[string]int{}
	w.stops.Store("block.before_commit", func() { written = w.controlled() })
	c.sync()
	require.Equal(t, 1, written["SET"])
	w.stops.Delete("block.before_commit")
	c.ran("INSERT INTO t VALUES (2, 'b')")
	c.ran("SET application_name = 'y'")
	w.stops.Store("decision.before_append", func() { w.full.Store(true) })
	require.Equal(t, string(fault.AuditUnavailable), state(c.Sync(t.Context())))
	require.Equal(t, "1", w.value("SELECT string_agg(id::text, ',') FROM t"))
}

// A block does not stay open because the word that ends it can't be written.
func TestARollbackWhoseEvidenceCannotBeWrittenEndsTheTransaction(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (1, 'a')")
	w.full.Store(true)
	require.Equal(t, string(fault.AuditUnavailable), state(fault.Of(c.refused("ROLLBACK /* "+strings.Repeat("x", wireAheadBytes)+" */"))))
	require.Zero(t, w.Database.Stats().InUse)
	require.Zero(t, w.WireBlocks())
	require.Equal(t, WireFailed, c.Status())
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
}

// Where the log takes nothing, nothing is answered that would leave evidence later.
func TestNothingIsAnsweredWhereTheLogTakesNothing(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("SET application_name = 'before'")
	w.full.Store(true)
	require.Equal(t, string(fault.AuditUnavailable), state(c.refused("INSERT INTO t VALUES (1, 'a')")))
	for _, sql := range []string{"SET application_name = 'after'", "PREPARE p AS SELECT 1", "BEGIN", "RESET ALL"} {
		require.Equal(t, string(fault.AuditUnavailable), state(c.refused(sql)), sql)
	}
	require.Equal(t, "before", c.Wire.show("application_name"))
	require.Empty(t, c.statements)
	require.Equal(t, WireIdle, c.Status())
}

// An error behind COMMIT is told as an outcome that is not known, and never as a
// refusal.
func TestAResultThatIsNotWrittenIsToldAsUnknown(t *testing.T) {
	for step, run := range map[string]func(c *wireClient) error{
		"block.before_append": func(c *wireClient) error {
			c.ran("INSERT INTO t VALUES (1, 'a')")
			return c.Sync(c.t.Context())
		},
		"result.before_append": func(c *wireClient) error { return c.refused("INSERT INTO t VALUES (1, 'a')") },
	} {
		t.Run(step, func(t *testing.T) {
			w := newWireWorld(t, nil)
			w.stops.Store(step, func() { w.full.Store(true) })
			f, ok := fault.As(run(w.wire()))
			require.True(t, ok)
			require.Equal(t, StateUnknown, f.Beside["execution_state"])
			require.Contains(t, f.Message, "could not be written")
			require.NotContains(t, f.Message, "nothing is executed")
			require.Equal(t, "1", w.value("SELECT count(*) FROM t"))
		})
	}
}

// The most writes of a block, with claims as long as a greeting may be, end in one
// append in each way that a block ends in.
func TestTheResultsOfTheLargestBlockFitIntoOneAppend(t *testing.T) {
	claim := strings.Repeat("x", 2500) // four in each event: what a greeting of 10,000 bytes holds
	l := WireLogin{Claims: Claims{Actor: claim, App: claim, Tenant: claim, Role: "r", Host: "127.0.0.1", Env: claim}, ConnectionID: "wir_test"}
	for end, want := range map[string]string{"COMMIT": "success", "ROLLBACK": "failure rolled_back"} {
		w := newWireWorld(t, nil)
		wire, err := w.OpenWire(l)
		require.NoError(t, err)
		c := &wireClient{Wire: wire, w: w, t: t}
		c.query("BEGIN")
		for range wireWrites {
			c.query("INSERT INTO t SELECT 1 WHERE false")
		}
		before := w.log.Head().Seq
		c.query(end)
		count := 0
		for _, line := range w.trail() {
			if line == "INSERT "+want {
				count++
			}
		}
		require.Equal(t, wireWrites, count)
		require.Less(t, w.log.Head().Seq-before, uint64(eventlog.MaxGroupEvents))
		c.Close(t.Context())
	}
}
