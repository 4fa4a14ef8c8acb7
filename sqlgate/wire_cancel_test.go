package sqlgate

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/sqlgate/pgexec"
)

// fill takes all connections of both pools, until the test gives them back.
func (w *wireWorld) fill() (free func()) {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	var back []func()
	for range 4 {
		reading, err := w.Database.BeginRead(ctx, &pgexec.Statement{}, pgexec.Limits{})
		require.NoError(w.t, err)
		tx, err := w.Database.Begin(ctx, pgexec.BeginOptions{})
		require.NoError(w.t, err)
		back = append(back, reading.Release, tx.Rollback)
	}
	return func() {
		for _, f := range back {
			f()
		}
	}
}

// What waits for a connection ends with a cancel: nothing is sent, and nothing is
// recorded as sent.
func TestACancelEndsAWaitForAConnection(t *testing.T) {
	for _, row := range []struct {
		name  string
		first []string // statements before
		run   func(c *wireClient) error
		trail []string
	}{
		{"a read", nil, func(c *wireClient) error { return c.fails("SELECT v FROM t") }, []string{"SELECT failure cancelled"}},
		{"a write", nil, func(c *wireClient) error { return c.fails("INSERT INTO t VALUES (1, 'a')") }, []string{"INSERT failure cancelled"}},
		{"one that runs alone", nil, func(c *wireClient) error { return c.fails("VACUUM t") }, []string{"VACUUM failure cancelled"}},
		{"a write in a block", []string{"BEGIN"}, func(c *wireClient) error { return c.fails("INSERT INTO t VALUES (1, 'a')") }, []string{"INSERT failure cancelled"}},
		{"a read in a block", []string{"BEGIN"}, func(c *wireClient) error { return c.fails("SELECT v FROM t") }, []string{"SELECT failure cancelled"}},
		{"a savepoint", []string{"BEGIN"}, func(c *wireClient) error { return c.fails("SAVEPOINT s") }, nil},
		{"a time zone", nil, func(c *wireClient) error { return c.fails("SET TimeZone = 'Asia/Tokyo'") }, nil},
		{"a write between two Syncs", nil, func(c *wireClient) error {
			_, _, err := c.execute(false, "INSERT INTO t VALUES (1, 'a')")
			return err
		}, []string{"INSERT failure cancelled"}},
		{"a description", nil, func(c *wireClient) error {
			require.NoError(c.t, c.Parse(c.t.Context(), "", "SELECT v FROM t", nil))
			_, _, err := c.DescribeStatement(c.t.Context(), "")
			return err
		}, nil},
		{"a type of a message", nil, func(c *wireClient) error {
			return c.Parse(c.t.Context(), "", "SELECT $1", []uint32{70_000})
		}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWireWorld(t, nil)
			c := w.wire()
			for _, sql := range row.first {
				c.query(sql)
			}
			free := w.fill()
			before := w.Database.Stats().Waits
			ended := make(chan error, 1)
			go func() { ended <- row.run(c) }()
			for w.Database.Stats().Waits == before {
				runtime.Gosched()
			}
			became := c.Cancel(t.Context())
			require.True(t, became.Unsent, "%+v", became)
			require.Equal(t, "57014", state(<-ended))
			free()
			c.sync()
			if len(row.first) > 0 {
				require.Equal(t, WireFailed, c.Status())
				c.query("ROLLBACK")
			}
			require.Equal(t, row.trail, w.trail())
			require.Equal(t, WireCancel{Cause: CancelNothingRuns}, c.Cancel(t.Context()))
			require.Equal(t, "UTC", c.show(settingTimeZone))
			require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
			tag, _ := c.query("INSERT INTO t VALUES (2, 'next')")
			require.Equal(t, "INSERT 0 1", tag, "what comes next is not cancelled")
			for _, e := range w.events() {
				require.NotEqual(t, event.TypeDBUnavailable, e.Type, "nobody is alerted to an outage")
			}
		})
	}
}

// fails is a Query message; its error, where it has one.
func (c *wireClient) fails(sql string) error {
	_, err := c.Query(c.t.Context(), sql, &rowsSink{})
	return err
}

// cancelAt has the client cancel, once, as the gate comes to a step.
func (c *wireClient) cancelAt(step string) (became *WireCancel) {
	became = new(WireCancel)
	c.w.stops.Store(step, func() {
		c.w.stops.Delete(step)
		*became = c.Cancel(context.Background())
	})
	return became
}

var cancelledStatements = []struct {
	sql   string
	block bool
}{
	{"SELECT v FROM t", false}, {"INSERT INTO t VALUES (1, 'a')", false}, {"VACUUM t", false},
	{"SELECT v FROM t", true}, {"INSERT INTO t VALUES (1, 'a')", true},
}

// A cancel that comes as the decision is about to be appended, or between that and
// the statement's sending, is kept for the statement.
func TestACancelBeforeAStatementIsSentIsKeptForIt(t *testing.T) {
	for step, dispatched := range map[string]bool{"decision.before_append": false, "decision.appended": true} {
		for _, row := range cancelledStatements {
			w := newWireWorld(t, nil)
			c := w.wire()
			var want []string
			if row.block {
				c.query("BEGIN")
				c.query("INSERT INTO t VALUES (7, 'before')")
				c.query("SAVEPOINT s")
				want = []string{"INSERT dispatched"}
			}
			became := c.cancelAt(step)
			require.Equal(t, "57014", state(c.fails(row.sql)), "%s at %s", row.sql, step)
			require.True(t, became.Unsent, "%+v", became)
			require.Regexp(t, "^exe_", became.ExecutionID)
			operation, _, _ := cutWord(row.sql)
			if dispatched {
				want = append(want, operation+" dispatched")
			}
			want = append(want, operation+" failure cancelled")
			if row.block {
				require.Equal(t, WireFailed, c.Status())
				c.query("ROLLBACK TO s")
				c.query("COMMIT")
				want = append(want, "INSERT success")
			}
			require.Equal(t, want, w.trail(), "%s at %s", row.sql, step)
			require.Equal(t, "0", w.value("SELECT count(*) FROM t WHERE id = 1"))
			if row.block {
				require.Equal(t, "1", w.value("SELECT count(*) FROM t WHERE id = 7"), "the block went on")
			}
			require.Zero(t, w.Database.Stats().InUse)
			c.query("SELECT v FROM t")
		}
	}
}

func cutWord(sql string) (word, rest string, found bool) {
	for i := range len(sql) {
		if sql[i] == ' ' {
			return sql[:i], sql[i+1:], true
		}
	}
	return sql, "", false
}

// A cancel that comes while a COMMIT waits for the log rolls back what it was to
// commit, as at a server; the transaction is over.
func TestACancelBeforeACommitIsSentRollsBack(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (1, 'a')")
	became := c.cancelAt("decision.before_append")
	require.Equal(t, "57014", state(c.fails("COMMIT")))
	require.True(t, became.Unsent, "%+v", became)
	require.Equal(t, WireIdle, c.Status())
	require.Equal(t, []string{"INSERT dispatched", "INSERT failure rolled_back"}, w.trail())
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))

	c.ran("INSERT INTO t VALUES (2, 'b')")
	c.ran("SET application_name = 'x'") // whose evidence Sync writes first
	c.cancelAt("decision.before_append")
	require.Equal(t, "57014", state(c.Sync(t.Context())))
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
	require.Equal(t, "", c.show("application_name"))
}
