package main

import (
	"net/http"
	"os"
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
