package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A demonstration's secrets are read as other files are.
func TestNoSecretOfADemonstrationIsAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "operator-token")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	secret, err := keptSecret(path, func() string { return "made" })
	require.NoError(t, err)
	require.Equal(t, "made", secret, "an empty file is none")
	require.NoError(t, os.Remove(path))
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err = keptSecret(path, func() string { return "made" })
	require.ErrorContains(t, err, "regular file")
}

// A named pipe in the place of a file is refused: a command that opens it waits
// for its other end, and no signal ends that.
func TestNoCommandWaitsForAPipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, users, backup := filepath.Join(dir, "pipe"), filepath.Join(dir, "users"), filepath.Join(dir, "backup")
	require.NoError(t, os.Mkdir(backup, 0o700))
	for _, name := range []string{pipe, users, filepath.Join(backup, "backup.json")} {
		require.NoError(t, syscall.Mkfifo(name, 0o600))
	}
	environ := []string{"GATE_AUDIT_WAL_PATH=" + filepath.Join(dir, "audit.wal"), "GATE_OPERATOR_TOKEN=" + operatorTestToken, "GATE_PROJECT_KEY=wgp_EXAMPLE0000000000000000000000049LC8r"}
	for _, args := range [][]string{
		{"evidence", "verify", pipe}, {"evidence", "verify", pipe, "--key", pipe}, {"policy", "validate", pipe}, {"policy", "dry-run", pipe, "--sql", "SELECT 1"},
		{"agents", "policies", "create", pipe}, {"log", "verify", "--receipts", pipe}, {"log", "restore", backup},
	} {
		said := make(chan string, 1)
		go func() {
			code, out, errs := runCLI(t, environ, "", args...)
			if code == 0 {
				errs = "ended with 0"
			}
			said <- out + errs
		}()
		select {
		case text := <-said:
			require.Contains(t, text, "regular file", "%q", args)
		case <-time.After(startPatience):
			t.Fatalf("%q waits for the other end of the pipe", args)
		}
	}
}

// So is the folder of policies.
func TestAPipeInThePlaceOfThePolicyFolderIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	d := newErrorDir(t)
	startGate(t, d).end(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, args := range [][]string{{"policy", "test"}, {"policy", "manifest"}, {"policy", "rebuild"}} {
		said := make(chan string, 1)
		go func() {
			code, out, errs := runCLI(t, d.environ("GATE_POLICY_DIR="+pipe), "", args...)
			if code == 0 {
				errs = "ended with 0"
			}
			said <- out + errs
		}()
		select {
		case text := <-said:
			require.NotContains(t, text, "ended with 0", "%q", args)
			require.Contains(t, text, "not a directory", "%q", args)
		case <-time.After(startPatience):
			t.Fatalf("%q waits for the other end of the pipe", args)
		}
	}
	g := startGate(t, d, "GATE_POLICY_DIR="+pipe) // which refuses every statement
	require.Equal(t, "non-ok", g.get(t, "/health").text(t, "status"))
	g.end(t)
}

// The store of the projections is a folder. What else has its name is refused, and left.
func TestAPipeInThePlaceOfTheProjectionsIsRefused(t *testing.T) {
	t.Parallel()
	d := newErrorDir(t)
	startGate(t, d).end(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, args := range [][]string{{"serve"}, {"log", "rebuild"}} {
		code, said := 0, make(chan string, 1)
		go func() {
			var errs string
			code, _, errs = runCLI(t, d.environ("GATE_APPROVAL_DB_PATH="+pipe), "", args...)
			said <- errs
		}()
		select {
		case text := <-said:
			require.Contains(t, text, pipe+" is no folder")
		case <-time.After(startPatience):
			t.Fatalf("%q waits for the other end of the pipe", args)
		}
		if args[0] == "serve" {
			require.Equal(t, exitConfigured, code)
		}
		require.NotZero(t, code)
	}
	startGate(t, d).end(t)
}
