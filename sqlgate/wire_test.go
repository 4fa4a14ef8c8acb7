package sqlgate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAQueryRunsAndLeavesTheEvidenceOfPOSTQuery(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	tag, rows := c.query("INSERT INTO t VALUES (1, 'a'), (2, NULL) RETURNING id")
	require.Equal(t, "INSERT 0 2", tag)
	require.Equal(t, []string{"1", "2"}, rows)
	tag, rows = c.query("SELECT id, v FROM t ORDER BY id")
	require.Equal(t, "SELECT 2", tag)
	require.Equal(t, []string{"1|a", "2|NULL"}, rows)
	require.Equal(t, []string{"INSERT dispatched", "INSERT success", "SELECT dispatched", "SELECT success"}, w.trail())
	require.Equal(t, WireIdle, c.Status())
	require.Equal(t, "2", w.value("SELECT count(*) FROM t"))
}

func TestABlockCommitsItsWritesTogether(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	tag, _ := c.query("BEGIN")
	require.Equal(t, "BEGIN", tag)
	require.Equal(t, WireInBlock, c.Status())
	c.query("INSERT INTO t VALUES (1, 'a')")
	c.query("INSERT INTO t VALUES (2, 'b')")
	_, rows := c.query("SELECT count(*) FROM t")
	require.Equal(t, []string{"2"}, rows)
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
	tag, _ = c.query("COMMIT")
	require.Equal(t, "COMMIT", tag)
	require.Equal(t, WireIdle, c.Status())
	require.Equal(t, "2", w.value("SELECT count(*) FROM t"))
	require.Equal(t, []string{"INSERT dispatched", "INSERT dispatched", "SELECT dispatched", "SELECT success", "INSERT success", "INSERT success"}, w.trail())
}

// A parser takes its time before the journey begins: it counts all the same.
func TestWhatAStatementOfTheWireTookIsMeasuredInItsPhases(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("SELECT id, v FROM t WHERE id = ANY (ARRAY[1, 2, 3, 4, 5, 6, 7, 8]) ORDER BY id")
	latency := w.Gate.Stats().Latency
	for _, phase := range []string{"classify", "database", "total"} {
		require.EqualValues(t, 1, latency[phase].Count, phase)
		require.Positive(t, latency[phase].Seconds, phase)
	}
	require.Greater(t, latency["total"].Seconds, latency["classify"].Seconds)
}
