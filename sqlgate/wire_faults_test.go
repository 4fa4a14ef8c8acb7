package sqlgate

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/faultproxy"
	"writegate/fixtures/postgres"
	"writegate/projections"
)

// A faultCase is a conversation with a gate whose way to the database breaks.
type faultCase struct {
	*wireClient
	name string // in the rows that it writes
	want string // the rows that are there where nothing goes wrong
	told error  // what the client was told of its end
}

func (c *faultCase) row(n int) string { return fmt.Sprintf("%s-%d", c.name, n) }

func (c *faultCase) insert(n int) string { return "INSERT INTO hits VALUES ('" + c.row(n) + "')" }

// say sends Query messages until one fails.
func (c *faultCase) say(texts ...string) {
	for _, sql := range texts {
		if _, c.told = c.Query(c.t.Context(), sql, &rowsSink{}); c.told != nil {
			return
		}
	}
}

// batch sends statements between two Syncs.
func (c *faultCase) batch(texts ...string) {
	for _, sql := range texts {
		if _, _, c.told = c.execute(false, sql); c.told != nil {
			break
		}
	}
	if err := c.Sync(c.t.Context()); c.told == nil {
		c.told = err
	}
}

// Conversations whose rows 1 and 2 stand or fall together, and whose row 3 is
// never there.
var faultConversations = map[string]func(*faultCase){
	"a block": func(c *faultCase) {
		c.say("BEGIN", c.insert(1), "SAVEPOINT s", c.insert(3), "SELECT count(*) FROM hits", "ROLLBACK TO s", "RELEASE s", c.insert(2), "COMMIT")
	},
	"a batch": func(c *faultCase) { c.batch(c.insert(1), "SELECT count(*) FROM hits", c.insert(2)) },
	"one statement": func(c *faultCase) {
		c.say("INSERT INTO hits VALUES ('" + c.row(1) + "'), ('" + c.row(2) + "')")
	},
	"a block that is undone": func(c *faultCase) {
		c.want = ""
		c.say("BEGIN", c.insert(3), "ROLLBACK")
	},
}

// TestWhateverMessageToTheDatabaseIsLostTheLogAgreesWithTheTable breaks the
// connection at each message of a conversation, in each way. A few of them stand
// for all, unless OUTCOMES_ALL is set.
func TestWhateverMessageToTheDatabaseIsLostTheLogAgreesWithTheTable(t *testing.T) {
	stride := 23
	if os.Getenv("OUTCOMES_ALL") != "" {
		stride = 1
	}
	url := postgres.ForTest(t)
	postgres.ExecuteURL(t, url, "CREATE TABLE hits (v text NOT NULL)")
	proxy := faultproxy.Start(t, url)
	w := newWireWorldAt(t, url, proxy.URL(), nil)
	cases, last := 0, 0
	for what, converse := range faultConversations {
		run := func(f faultproxy.Fault) {
			cases++
			c := &faultCase{wireClient: w.wire(), name: fmt.Sprintf("case%d", cases), want: "12"}
			c.warm()
			proxy.Arm(f)
			converse(c)
			proxy.Arm(faultproxy.Fault{})
			c.Close(context.Background())
			c.agree(fmt.Sprintf("%s, %s", what, f))
		}
		run(faultproxy.Fault{})
		proxy.Arm(faultproxy.Fault{})
		probe := &faultCase{wireClient: w.wire(), name: "probe-" + what}
		probe.warm()
		proxy.Arm(faultproxy.Fault{})
		converse(probe)
		counts := map[faultproxy.Direction]int{faultproxy.ToServer: proxy.Count(faultproxy.ToServer), faultproxy.ToClient: proxy.Count(faultproxy.ToClient)}
		for direction, n := range counts {
			require.NotZero(t, n)
			for at := 1; at <= n; at++ {
				for _, action := range faultproxy.Cuts {
					if last++; last%stride == 0 {
						run(faultproxy.Fault{Direction: direction, N: at, Action: action})
					}
				}
			}
		}
	}
	t.Logf("%d cases", cases)
}

// warm opens the connections of a case, so that it counts its own messages.
func (c *faultCase) warm() {
	c.t.Helper()
	for range 10 { // the first may meet what the last case left
		if _, err := c.Query(c.t.Context(), "SELECT 1", &rowsSink{}); err != nil {
			continue
		}
		if _, err := c.Query(c.t.Context(), "INSERT INTO hits SELECT 'x' WHERE false", &rowsSink{}); err == nil {
			return
		}
	}
	c.t.Fatal("the gate does not come back")
}

// agree holds log, table and what the client was told against each other.
func (c *faultCase) agree(what string) {
	c.t.Helper()
	w := c.w
	require.Eventually(c.t, func() bool { return w.Database.Stats().InUse == 0 }, time.Minute, time.Millisecond, what) // the gate may still end what it left at the server
	require.Zero(c.t, w.WireBlocks(), what)
	for _, x := range c.executions() {
		require.NotEqual(c.t, projections.ExecutionDispatched, x.State, "%s: an execution without a result", what)
		for x.State == projections.ExecutionUnknown {
			var err error
			x, err = w.CheckOutcome(context.Background(), x.ID, "")
			if fault.CodeOf(err) != fault.DBConnectionFailed && fault.CodeOf(err) != fault.DBUnavailable { // the check may meet what broke
				require.NoError(c.t, err, what)
			}
			require.NotEqual(c.t, "not_knowable", x.Outcome, what)
		}
		for n := 1; n <= 3; n++ {
			if x.SQLDigest != sha256.Sum256([]byte(c.insert(n))) {
				continue
			}
			present := w.value("SELECT count(*) FROM hits WHERE v = '"+c.row(n)+"'") == "1"
			require.Equal(c.t, present, x.State == projections.ExecutionSuccess, "%s: row %d and the state %s", what, n, x.State)
		}
	}
	there := w.value("SELECT string_agg(right(v, 1), '' ORDER BY v) FROM hits WHERE v LIKE '" + c.name + "-%'")
	require.Contains(c.t, []string{"", "12"}, there, what)
	switch f, _ := fault.As(c.told); {
	case c.told == nil:
		require.Equal(c.t, c.want, there, what)
	case f != nil && f.Beside["execution_state"] == StateUnknown:
	default:
		require.Empty(c.t, there, "%s: the client was told %v", what, c.told)
	}
}

// executions are those of the connection's statements, by their texts.
func (c *faultCase) executions() (list []projections.Execution) {
	c.t.Helper()
	view := c.w.store.View()
	defer view.Close()
	all, _, err := view.Executions(projections.ExecutionFilter{}, projections.Page{Limit: 1000})
	require.NoError(c.t, err)
	return all[:min(len(all), 12)] // newest first
}
