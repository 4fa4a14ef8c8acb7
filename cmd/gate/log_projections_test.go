package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// put copies files of another folder over those of this one.
func (d gateDir) put(t testing.TB, from gateDir, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, os.WriteFile(d.file(name), mustRead(t, from.file(name)), 0o600))
	}
}

// TestALogIsHeldAgainstItsProjections: they are all that knows of it by default, and
// each start asks them. So does whatever else judges the log, or makes another of it.
func TestALogIsHeldAgainstItsProjections(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	g := startGate(t, d, patience...)
	held := insertHeld("once")
	approved := g.approved(t, held)
	g.end(t)
	earlier := d.copyTo(t, t.TempDir())
	first := lastOf(t, d)
	g = startGate(t, d, patience...)
	require.Equal(t, http.StatusOK, g.query(t, held.with("approval_id", approved)).status)
	code, out, errs := d.command(t, "log", "verify")
	require.Zero(t, code, "those that a gate has open are left out: %s%s", out, errs)
	g.end(t)
	last := lastOf(t, d)
	require.NoError(t, os.RemoveAll(d.file("audit.wal.checkpoints"))) // those know it as well
	linked := filepath.Join(t.TempDir(), "linked")
	require.NoError(t, os.Symlink(d.file("audit.wal"), linked))
	for _, args := range [][]string{{}, {linked}} {
		code, out, errs = d.command(t, append([]string{"log", "verify"}, args...)...)
		require.Zero(t, code, "%s%s", out, errs)
		require.Contains(t, out, "L2", "%v", args)
	}

	judged := func(d gateDir, kind string, carried uint64) {
		t.Helper()
		for _, args := range [][]string{
			{"log", "verify"}, {"log", "verify", linked}, {"log", "backup", filepath.Join(t.TempDir(), "bk")}, {"log", "dump"}, {"log", "tail"}, {"log", "digest"},
			{"log", "rebuild"}, {"verify", "--decisions"}, {"evidence", "export", filepath.Join(t.TempDir(), "bundle.json")}, {"policy", "rebuild"},
		} {
			code, out, errs := d.command(t, args...)
			require.Equal(t, exitFailed, code, "%s, %v: %s%s", kind, args, out, errs)
		}
		code, out, errs := d.command(t, "log", "new", "--json")
		require.Zero(t, code, errs)
		var r retiredResult
		require.NoError(t, json.Unmarshal([]byte(out), &r), out)
		require.Equal(t, []any{kind, carried, last}, []any{string(r.Faults[0].Kind), r.LastSeq, r.KnownSeq})
	}
	whole := d.copyTo(t, t.TempDir())
	d.put(t, earlier, "audit.wal", "audit.wal.head")
	judged(d, "anchor_beyond_end", first)
	d.put(t, whole, "audit.wal", "audit.wal.head")
	forge(t, d.file("audit.wal"), false)
	judged(d, "history_rewritten", 0)
	d.put(t, whole, "audit.wal.head")
	require.NoError(t, os.RemoveAll(d.file("approvals.db")))
	judged(d, "history_rewritten", 0) // the head file
}

// TestAnOldLogIsHeldAgainstItsProjections: one that was put back by hand is not all that
// there was, and does not go on.
func TestAnOldLogIsHeldAgainstItsProjections(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	g := startGate(t, d, patience...)
	held := insertHeld("once")
	approved := g.approved(t, held)
	g.end(t)
	earlier := d.copyTo(t, t.TempDir())
	g = startGate(t, d, patience...)
	require.Equal(t, http.StatusOK, g.query(t, held.with("approval_id", approved)).status)
	g.end(t)
	copied := filepath.Join(t.TempDir(), "bk")
	code, out, errs := earlier.command(t, "log", "backup", copied)
	require.Zero(t, code, "%s%s", out, errs)
	d.put(t, earlier, "audit.wal", "audit.wal.head")
	require.NoError(t, os.RemoveAll(d.file("audit.wal.checkpoints"))) // those know it as well

	home := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(home, "log"), 0o700))
	apart := []string{"GATE_AUDIT_WAL_PATH=" + filepath.Join(home, "log/audit.wal"), "GATE_APPROVAL_DB_PATH=" + filepath.Join(home, "stores/approvals.db")}
	moved := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(moved, "log"), 0o700))
	for _, name := range []string{"audit.wal", "audit.wal.head"} {
		require.NoError(t, os.WriteFile(filepath.Join(moved, "log", name), mustRead(t, d.file(name)), 0o600))
	}
	require.NoError(t, os.CopyFS(filepath.Join(moved, "stores/approvals.db"), os.DirFS(d.file("approvals.db"))))
	for _, c := range []struct {
		old      string
		settings []string
	}{{d.file("audit.wal"), nil}, {filepath.Join(moved, "log/audit.wal"), apart}} {
		to := gateDir{path: t.TempDir(), database: d.database}
		code, output := runGate(t, to.environ(c.settings...), "log", "restore", copied, "--old-log", c.old)
		require.Equal(t, exitFailed, code, output)
		require.Contains(t, output, "(projections) knows event")
		require.NoFileExists(t, to.file("audit.wal"))
	}

	gone := "nothing tells whether they know of more"
	require.NoError(t, os.RemoveAll(d.file("approvals.db")))
	for old, told := range map[gateDir]bool{d: true, earlier: false} {
		to := gateDir{path: t.TempDir(), database: d.database}
		code, out, errs = to.command(t, "log", "restore", copied, "--old-log", old.file("audit.wal"))
		require.Zero(t, code, "%s%s", out, errs)
		require.Equal(t, told, strings.Contains(errs, gone), errs)
	}
}

// TestProjectionsOfAnotherLogSayNothingOfThisOne: a warning tells of them.
func TestProjectionsOfAnotherLogSayNothingOfThisOne(t *testing.T) {
	t.Parallel()
	d, other := newNotes(t), newNotes(t)
	startGate(t, d, patience...).end(t)
	startGate(t, other, patience...).end(t)
	require.NoError(t, os.RemoveAll(d.file("approvals.db")))
	require.NoError(t, os.CopyFS(d.file("approvals.db"), os.DirFS(other.file("approvals.db"))))
	code, out, errs := d.command(t, "log", "verify")
	require.Zero(t, code, "%s%s", out, errs)
	require.Contains(t, out, "the projections are of log")
}

// lastOf is the last event of the log in a folder.
func lastOf(t testing.TB, d gateDir) uint64 {
	t.Helper()
	head, err := frame.ReadHead(frame.OS{}, d.file("audit.wal.head"))
	require.NoError(t, err)
	return head.Seq
}
