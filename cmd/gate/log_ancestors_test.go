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

// Behind a restore each start that folds the log needs the restored one, so whatever
// verifies or copies says what is wrong with it.
func TestALogBeforeTheLogThatIsDamagedIsToldOf(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	g := startGate(t, d, patience...)
	require.Equal(t, http.StatusOK, g.query(t, insertOpen("before")).status)
	first := filepath.Join(t.TempDir(), "first")
	code, _, errs := d.command(t, "log", "backup", first)
	require.Zero(t, code, errs)
	g.end(t)
	d.destroy(t)
	d.kept = newReceiptBook()
	code, _, errs = d.command(t, "log", "restore", first)
	require.Zero(t, code, errs)
	g = startGate(t, d, patience...)
	require.Equal(t, http.StatusOK, g.query(t, insertOpen("behind")).status)
	folder := d.restored(t)
	warned := func(b []byte) []any {
		t.Helper()
		var report map[string]any
		require.NoError(t, json.Unmarshal(b, &report))
		require.Equal(t, "ok", report["status"])
		told := []any{}
		for _, w := range report["warnings"].([]any) {
			if strings.Contains(w.(string), folder) {
				told = append(told, w)
			}
		}
		return told
	}
	verify := func() []byte {
		code, out, errs := d.command(t, "log", "verify", "--json")
		require.Zero(t, code, errs)
		return []byte(out)
	}
	whole := filepath.Join(t.TempDir(), "whole")
	code, _, errs = d.command(t, "log", "backup", whole)
	require.Zero(t, code, errs)
	require.Empty(t, warned(verify()))
	require.Empty(t, warned(g.get(t, "/evidence/verify").body))

	path := filepath.Join(folder, "audit.wal")
	content := mustRead(t, path)
	spoilt := append([]byte(nil), content...)
	spoilt[frame.HeaderSize+120] ^= 1
	require.NoError(t, os.WriteFile(path, spoilt, 0o600))
	require.Len(t, warned(verify()), 1)
	require.Len(t, warned(g.get(t, "/evidence/verify").body), 1)
	code, _, errs = d.command(t, "log", "backup", filepath.Join(t.TempDir(), "refused"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, filepath.Base(folder))
	g.accused = true
	g.end(t)

	code, _, errs = d.command(t, "log", "new", "--accept-loss", "it helps nothing")
	require.Equal(t, exitPartial, code)
	require.Contains(t, errs, "put its folder back first")
	g = startGate(t, d, patience...)
	require.Contains(t, g.output.String(), "a start that has to fold the log does")
	g.accused = true
	g.end(t)

	// What the log was restored from has it.
	require.NoError(t, os.RemoveAll(folder))
	require.NoError(t, os.CopyFS(folder, os.DirFS(filepath.Join(first, "log"))))
	require.NoError(t, os.RemoveAll(d.file("approvals.db")))
	g = startGate(t, d, patience...)
	require.Empty(t, warned(g.get(t, "/evidence/verify").body))
	g.end(t)
	// Where no copy is left, a new beginning leads on, with the policies that are there.
	require.NoError(t, os.RemoveAll(folder))
	require.NoError(t, os.RemoveAll(d.file("approvals.db")))
	code, _, errs = d.command(t, "serve")
	require.Equal(t, exitConfigured, code)
	require.Contains(t, errs, folder)
	all, err := filepath.Glob(d.file("audit.*"))
	require.NoError(t, err)
	away := t.TempDir()
	for _, path := range append(all, d.file("approvals.db")) {
		require.NoError(t, os.Rename(path, filepath.Join(away, filepath.Base(path))))
	}
	d.kept = newReceiptBook()
	g = startGate(t, d, patience...)
	require.Equal(t, http.StatusOK, g.query(t, insertOpen("anew")).status)
	g.end(t)
	code, out, errs := d.command(t, "log", "verify", filepath.Join(away, "audit.wal"))
	require.Zero(t, code, "%s%s", out, errs)
}
