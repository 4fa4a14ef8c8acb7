package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Two services whose environment was copied and half changed do not share what
// one of them writes.
func TestASecondGateDoesNotTakeThePlacesOfARunningOne(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	for setting, theirs := range map[string]string{"GATE_AUDIT_LOG_PATH": g.file("audit.log"), "GATE_POLICY_DIR": g.file("policies")} {
		second := gateDir{path: t.TempDir(), database: g.database, signing: g.signing}
		require.NoError(t, os.CopyFS(second.file("policies"), os.DirFS(g.file("policies"))))
		code, _, errs := runCLI(t, second.environ(setting+"="+theirs), "", "serve")
		require.Equal(t, exitLocked, code, errs)
		require.Contains(t, errs, setting)
	}
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 2")).status)
	aside, err := filepath.Glob(g.file("audit.log.*-*"))
	require.NoError(t, err)
	require.Empty(t, aside)
	g.end(t)
	again := startGate(t, g.gateDir)
	require.Equal(t, http.StatusOK, again.query(t, ask("SELECT 3")).status, "a gate that ended holds nothing")
}

// TestWhatAnotherLogHasIsNotPutAwayWithALog, by one wrong word in the settings: neither
// while a gate runs there nor behind its end.
func TestWhatAnotherLogHasIsNotPutAwayWithALog(t *testing.T) {
	t.Parallel()
	theirs, own := startShop(t), startShop(t)
	require.Equal(t, http.StatusOK, theirs.query(t, ask("SELECT 1")).status)
	require.Equal(t, http.StatusOK, own.query(t, ask("SELECT 1")).status)
	own.end(t)
	newLog := func(expected int, settings ...string) {
		t.Helper()
		for _, args := range [][]string{{"log", "new"}, {"log", "new", "--accept-loss", "one wrong word"}} {
			cmd := exec.Command("gate", args...) // a process of its own: locks are between processes
			cmd.Env = own.environ(settings...)
			out, err := cmd.CombinedOutput()
			require.Equal(t, expected, cmd.ProcessState.ExitCode(), "%v: %s", err, out)
			require.Contains(t, string(out), "nothing was changed")
		}
		require.NoDirExists(t, own.file("audit.wal.retired"))
		for _, name := range []string{"approvals.db", "audit.log"} {
			_, err := os.Stat(theirs.file(name))
			require.NoError(t, err)
			_, err = os.Stat(own.file(name))
			require.NoError(t, err)
		}
	}
	store, copied := "GATE_APPROVAL_DB_PATH="+theirs.file("approvals.db"), "GATE_AUDIT_LOG_PATH="+theirs.file("audit.log")
	newLog(exitLocked, store)
	newLog(exitLocked, copied)
	require.Equal(t, http.StatusOK, theirs.query(t, ask("SELECT 2")).status)
	theirs.end(t)
	newLog(exitPartial, store)
	for _, g := range []*testGate{theirs, own} {
		again := startGate(t, g.gateDir)
		require.Equal(t, http.StatusOK, again.query(t, ask("SELECT 3")).status)
	}
}

func TestASecondDemonstrationSaysThatAnotherRuns(t *testing.T) {
	dir := t.TempDir()
	held, err := holdFolder(dir)
	require.NoError(t, err)
	code, _, errs := runCLI(t, nil, "", "demo", "--dir", dir)
	require.Equal(t, exitLocked, code, errs)
	require.NotContains(t, errs, "--help")
	require.NoError(t, held.Close())

	require.NoError(t, os.Mkdir(filepath.Join(dir, "operator-token"), 0o700)) // something else that fails
	code, _, errs = runCLI(t, nil, "", "demo", "--dir", dir)
	require.Equal(t, exitFailed, code, errs)
	require.NotContains(t, errs, "--help", "the command line was right")
}
