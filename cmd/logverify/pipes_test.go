package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hangs bounds what a test waits for: a bound for something that hangs.
const hangs = 30 * time.Second

// TestMain makes the test binary the program itself where a test asks for it.
func TestMain(m *testing.M) {
	if os.Getenv("LOGVERIFY_IS_RUN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// program is the program as a process of its own.
func program(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), "LOGVERIFY_IS_RUN=yes")
	return cmd
}

// A pipe that nobody writes to is not waited for, whichever argument names it.
func TestAPipeIsNotWaitedFor(t *testing.T) {
	l := leave(t, 3)
	pipe := l.path("pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, args := range [][]string{
		{"wal", pipe}, {"jsonl", pipe}, {"bundle", pipe}, {"receipt", pipe}, {"checkpoint", pipe}, {"bundle", l.path("bundle.json"), "--key", pipe},
		{"jsonl", l.path("audit.log"), "--wal", pipe}, {"wal", l.path("audit.wal"), "--receipts", pipe}, {"wal", l.path("audit.wal"), "--checkpoint", pipe},
	} {
		var out, failed bytes.Buffer
		ended := make(chan int, 1)
		go func() { ended <- run(t.Context(), args, &out, &failed) }()
		select {
		case code := <-ended:
			require.NotZero(t, code, "%q: %s", args, &out)
			require.NotEmpty(t, out.String()+failed.String(), "%q", args)
		case <-time.After(hangs):
			t.Fatalf("%q waits for the other end of the pipe", args)
		}
	}
}

// What a shell puts in the place of a command's output is a pipe with a writer.
func TestTheOutputOfACommandIsRead(t *testing.T) {
	l := leave(t, 3)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	bundle, err := os.ReadFile(l.path("bundle.json"))
	require.NoError(t, err)
	go func() {
		_, _ = write.Write(bundle)
		_ = write.Close()
	}()
	cmd := program(t.Context(), "bundle", "/dev/fd/3", "--key", l.key)
	cmd.ExtraFiles = []*os.File{read}
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
}

// Who sends a second signal does not wait for what the first one did not end.
func TestASecondSignalEndsTheProgram(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()
	cmd := program(ctx, "bundle", "-")
	stdin, err := cmd.StdinPipe() // never closed, never written to
	require.NoError(t, err)
	defer stdin.Close()
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			require.NoError(t, ctx.Err(), "it ended by a signal, not by the test's patience")
			return
		case <-tick.C:
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
}
