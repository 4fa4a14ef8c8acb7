package main

import (
	"bufio"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// An operator's second signal ends the gate at once, whatever it waits for, and the
// log is as whole as after any other end.
func TestASecondSignalEndsTheGate(t *testing.T) {
	t.Run("its line is read", func(t *testing.T) { endsOfASecondSignal(t, true) })
	t.Run("nobody reads its line", func(t *testing.T) { endsOfASecondSignal(t, false) })
}

func endsOfASecondSignal(t *testing.T, read bool) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, "CREATE TABLE held (id int)")
	release := postgres.HoldURL(t, d.database, "LOCK TABLE held")
	t.Cleanup(release)
	cmd := &exec.Cmd{Path: os.Args[0], Args: []string{"gate", "serve"}, Env: d.environ()}
	output := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = output, output
	listens := regexp.MustCompile(`the gate is listening.*"address":"([^"]+)"`)
	if !read {
		lines, stderr, err := os.Pipe()
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = lines.Close(), stderr.Close() })
		cmd.Stderr = stderr
		go func() {
			for scan := bufio.NewScanner(lines); !listens.MatchString(output.String()) && scan.Scan(); {
				_, _ = output.Write(append(scan.Bytes(), '\n'))
			}
			_, _ = stderr.Write(make([]byte, 1<<20)) // more than a pipe holds, so that nothing else finds room
		}()
	}
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })

	require.Eventually(t, func() bool { return listens.MatchString(output.String()) }, startPatience, pollEvery, "%s", output)
	address := listens.FindStringSubmatch(output.String())[1]
	go func() { // nobody answers it
		if response, err := http.Post("http://"+address+"/query", "application/json", strings.NewReader(`{"sql":"SELECT id FROM held","actor":"ana","app":"shop","env":"prod","tenant":"acme","role":"clerk","host":"desk-1"}`)); err == nil {
			_ = response.Body.Close()
		}
	}()
	require.Eventually(t, func() bool {
		return d.value(t, "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE datname = current_database() AND NOT granted") == "1"
	}, startPatience, pollEvery, "%s", output)

	patience, again := time.After(startPatience), time.NewTicker(pollEvery)
	defer again.Stop()
	for {
		select {
		case err := <-ended:
			var exit *exec.ExitError
			require.True(t, errors.As(err, &exit), "it ended cleanly, so it waited:\n%s", output)
			require.Equal(t, 128+int(syscall.SIGTERM), exit.ExitCode(), "%s", output)
			if read {
				require.Contains(t, output.String(), "a second signal")
			}
			d.judgeDead(t)
			release()
			startGate(t, d)
			return
		case <-patience:
			t.Fatalf("it does not end:\n%s", output)
		case <-again.C:
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended meanwhile
		}
	}
}
