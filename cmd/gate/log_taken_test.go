package main

import (
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// TestAGateWhoseLogIsTakenFromUnderItRunsNothing: what it wrote on would stand behind a
// hole, or in a log that another command has moved away.
func TestAGateWhoseLogIsTakenFromUnderItRunsNothing(t *testing.T) {
	t.Parallel()
	update := ask("UPDATE orders SET status = 'slipped' WHERE id = 1")
	for name, c := range map[string]struct {
		take  func(path string) error
		whole bool // nothing of the log is lost
	}{
		"emptied":               {take: func(path string) error { return os.Truncate(path, 0) }},
		"its lock file removed": {take: func(path string) error { return os.Remove(path + frame.LockSuffix) }, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newErrorDir(t)
			g := startGate(t, d)
			require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
			require.NoError(t, c.take(d.file("audit.wal")))
			require.Eventually(t, func() bool { return g.health(t).Status == "non-ok" }, startPatience, pollEvery)
			requireFault(t, g.query(t, update), http.StatusServiceUnavailable, "audit_corruption_detected")
			require.NotEqual(t, "slipped", g.value(t, "SELECT status FROM orders WHERE id = 1"))
			code, _, errs := d.command(t, "log", "new", "--accept-loss", "it was damaged")
			require.Equal(t, exitLocked, code, errs)
			g.endDamaged(t)

			g = startGate(t, d)
			if c.whole {
				require.Equal(t, http.StatusOK, g.query(t, update).status)
				g.end(t)
				return
			}
			requireFault(t, g.query(t, update), http.StatusServiceUnavailable, "audit_corruption_detected")
			g.endDamaged(t)
		})
	}
}

// What is copied of a log that was removed, as the message says, is the whole of it: the
// stop behind that writes nothing more.
func TestACopyOfARemovedLogIsWhole(t *testing.T) {
	t.Parallel()
	d := newErrorDir(t)
	g := startGate(t, d)
	update := ask("UPDATE orders SET status = 'slipped' WHERE id = 1")
	require.Equal(t, http.StatusOK, g.query(t, update).status)
	require.NoError(t, os.Link(d.file("audit.wal"), d.file("open"))) // the open file, as /proc shows it
	require.NoError(t, os.Remove(d.file("audit.wal")))
	require.Eventually(t, func() bool {
		return g.health(t).Status == "non-ok" && len(g.get(t, "/audit?event_type=audit_corruption_detected").json(t)["items"].([]any)) == 1
	}, startPatience, pollEvery)
	copied := mustRead(t, d.file("open"))
	g.endDamaged(t)
	require.NoError(t, os.Remove(d.file("open")))

	require.NoError(t, os.WriteFile(d.file("audit.wal"), copied, 0o600))
	g = startGate(t, d)
	require.Equal(t, http.StatusOK, g.query(t, update).status)
	g.end(t)
}
