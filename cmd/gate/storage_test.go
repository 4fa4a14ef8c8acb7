package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
	"writegate/sqlgate/policyfolder"
)

// smallVolume is a volume of 2 MiB for the test alone, where the system lets
// us mount one. ok says whether it did.
func smallVolume(t *testing.T) (dir string, ok bool) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Logf("no volume can be mounted here (%v): the errors of a full one are injected", err)
		return dir, false
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir, true
}

// TestAFullVolumeStopsStatementsUntilThereIsRoom lets a real volume run full, or
// where none can be mounted the errors of one: what is refused did not run,
// reads of evidence go on, and with room again the gate goes on by itself.
func TestAFullVolumeStopsStatementsUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	volume, real := smallVolume(t)
	if !real {
		require.Equal(t, "audit_unavailable", onAFullVolume(t).text(t, "error_code"))
		return
	}
	d := newErrorDir(t)
	ballast := filepath.Join(volume, "ballast")
	require.NoError(t, os.WriteFile(ballast, make([]byte, 1<<20), 0o600))
	g := startGate(t, d, "GATE_AUDIT_WAL_PATH="+filepath.Join(volume, "audit.wal"), "GATE_AUDIT_PREALLOCATE_BYTES=65536")
	sql := "INSERT INTO customers SELECT 1000 + count(*), 'x', 'x' FROM customers"
	written := 1
	var refused reply
	require.Eventually(t, func() bool {
		if refused = g.query(t, ask(sql)); refused.status == http.StatusOK {
			written++
		}
		return refused.status != http.StatusOK
	}, startPatience, time.Millisecond)
	requireFault(t, refused, http.StatusServiceUnavailable, "audit_unavailable")
	require.Equal(t, strconv.Itoa(written), g.value(t, "SELECT count(*) FROM customers"), "what was refused did not run")
	require.Equal(t, "non-ok", g.health(t).Status)
	require.Equal(t, http.StatusOK, g.get(t, "/audit").status)
	require.NoError(t, os.Remove(ballast))
	require.Eventually(t, func() bool { return g.query(t, ask(sql)).status == http.StatusOK }, startPatience, pollEvery)
	require.Equal(t, "ok", g.health(t).Status)
	g.stop()
	g.stop = nil
	require.Zero(t, <-g.ended, "%s", g.output)
}

// An operator who changes the policy in an emergency is told what keeps the folder
// from being written, and the old version decides until it is.
func TestAPolicyFolderThatCannotBeWrittenIsTold(t *testing.T) {
	t.Parallel()
	volume, real := smallVolume(t)
	policies, obstacle := filepath.Join(volume, "policies"), filepath.Join(volume, "ballast")
	require.NoError(t, policyfolder.Create(policies, policyfolder.DefaultManifest, []byte(notesPolicy)))
	g := startGate(t, newNotes(t), "GATE_POLICY_DIR="+policies)
	g.activate(t, notesVersion("1.1.0"))
	cause := "no space left on device"
	if real {
		require.ErrorIs(t, os.WriteFile(obstacle, make([]byte, 4<<20), 0o600), syscall.ENOSPC)
	} else { // an unfinished file that cannot be removed
		obstacle, cause = filepath.Join(policies, ".tmp-x"), "directory not empty"
		require.NoError(t, os.MkdirAll(filepath.Join(obstacle, "y"), 0o700))
	}
	created := g.operate(t, "/policy/candidates", map[string]any{"document": notesVersion("1.2.0")})
	require.Equal(t, http.StatusCreated, created.status, "%s", created.body)
	require.Contains(t, string(created.body), cause)
	activation := map[string]any{"expected_hash": created.text(t, "hash")}
	for path, body := range map[string]map[string]any{"/policy/activate": activation, "/policy/rollback": {}} {
		refused := g.operate(t, path, body)
		requireFault(t, refused, http.StatusConflict, "policy_activation_failed")
		require.Contains(t, refused.text(t, "message"), "Free space on its volume")
		details := refused.json(t)["details"].(map[string]any)
		require.Equal(t, "manifest_mismatch", details["reason"])
		require.Contains(t, details["findings"].([]any)[0].(map[string]any)["message"], cause)
		require.NotContains(t, string(refused.body), volume)
	}
	require.Equal(t, "notes@1.1.0", g.get(t, "/policy/status").text(t, "policy_version"))
	require.NoError(t, os.RemoveAll(obstacle))
	done := g.operate(t, "/policy/activate", activation)
	require.Equal(t, http.StatusOK, done.status, "%s", done.body)
}

// TestALogThatCannotBeSyncedEndsTheGate: after a failed sync nobody knows what is
// on disk, so nothing is executed any more, the process ends with the code that
// says so, and the next start judges what is there.
func TestALogThatCannotBeSyncedEndsTheGate(t *testing.T) {
	t.Parallel()
	d := newErrorDir(t)
	var broken atomic.Bool
	fs := frametest.Inject(frame.OS{}, func(op frametest.Op) error {
		if broken.Load() && op.Kind == frametest.Datasync && strings.HasSuffix(op.Name, "audit.wal") {
			return syscall.EIO
		}
		return nil
	})
	g := startGateWith(t, d, func(a *app) { a.logFS = fs })
	require.Equal(t, http.StatusOK, g.query(t, ask("UPDATE orders SET status = 'before' WHERE id = 1")).status)
	broken.Store(true)
	r := g.query(t, ask("UPDATE orders SET status = 'after' WHERE id = 1"))
	details := requireFault(t, r, http.StatusServiceUnavailable, "audit_unavailable")
	require.Equal(t, "unknown", details["outcome"], "of the evidence; nothing was executed")
	require.Equal(t, "before", d.value(t, "SELECT status FROM orders WHERE id = 1"))
	select {
	case code := <-g.ended:
		require.Equal(t, exitFatal, code)
	case <-time.After(startPatience):
		t.Fatalf("the gate goes on with a log that it cannot trust:\n%s", g.output)
	}
	g.stop()
	g.stop = nil
	g = startGate(t, d)
	require.Equal(t, "before", d.value(t, "SELECT status FROM orders WHERE id = 1"))
	require.Equal(t, http.StatusOK, g.query(t, ask("UPDATE orders SET status = 'again' WHERE id = 1")).status)
}

// A start that comes to nothing is no wrong command line, which a supervisor would not
// repeat.
func TestAStartThatFailsIsNoWrongCommandLine(t *testing.T) {
	t.Parallel()
	d := newErrorDir(t)
	startGate(t, d).end(t)
	broken := frametest.Inject(frame.OS{}, func(op frametest.Op) error {
		if op.Kind == frametest.Datasync && strings.HasSuffix(op.Name, "audit.wal") {
			return syscall.EIO
		}
		return nil
	})
	var out lockedBuffer
	a := &app{streams: streams{strings.NewReader(""), &out, &out}, environ: d.environ(), logFS: broken, courtesy: startPatience / 2}
	require.Equal(t, exitFatal, a.run(t.Context(), []string{"serve"}), out.String())
	require.Contains(t, out.String(), "The event log failed")
	require.NotContains(t, out.String(), "gate --help")
}
