package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"writegate/http/httpd"
)

// pageOf is how many bytes the pipes of these tests hold.
const pageOf = 4096

// unreadPipe is a pipe that takes nothing more.
func unreadPipe(t testing.TB) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = read.Close(), write.Close() })
	_, err = unix.FcntlInt(write.Fd(), unix.F_SETPIPE_SZ, pageOf)
	require.NoError(t, err)
	_, err = write.Write(make([]byte, pageOf))
	require.NoError(t, err)
	return read, write
}

// Refused requests, a failing statement, the segments of the log and the end each
// have their lines, and none of them waits until somebody reads these.
func TestAStandardErrorThatNobodyReadsHoldsUpNothing(t *testing.T) {
	t.Parallel()
	d := newErrorDir(t)
	_, write := unreadPipe(t)
	g := startGateWith(t, d, func(a *app) { a.err = write }, inSegments)
	g.client = &http.Client{Timeout: startPatience}
	for range 20 {
		require.Equal(t, http.StatusBadRequest, g.do(t, http.MethodPost, "/query", []byte("{")).status)
	}
	r := g.query(t, ask("INSERT INTO customers VALUES (1, 'x', 'x')"))
	requireFault(t, r, http.StatusUnprocessableEntity, "db_query_failed")
	require.Eventually(t, func() bool {
		r := g.query(t, ask("INSERT INTO customers SELECT 1000 + count(*), 'x', 'x' FROM customers"))
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		return d.sealed(t) >= 2
	}, startPatience, time.Millisecond)
	require.Equal(t, "ok", g.health(t).Status)
	g.end(t)
}

// What ends a service is told with its exit code, whether nobody reads or the reader has
// ended.
func TestAServiceEndsWithItsCodeAlthoughNobodyReads(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"serve", "control-plane"} {
		for _, ended := range []bool{false, true} {
			read, write := unreadPipe(t)
			cmd := &exec.Cmd{Path: os.Args[0], Args: []string{"gate", command}, Env: []string{"GATE_MODE=none", "CONTROL_PLANE_MODE=none"}, Stderr: write}
			if ended {
				require.NoError(t, read.Close())
			}
			require.NoError(t, cmd.Start())
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			select {
			case err := <-done:
				var exit *exec.ExitError
				require.True(t, errors.As(err, &exit), "%v", err)
				require.Equal(t, exitConfigured, exit.ExitCode(), "%s %t: %v", command, ended, err)
			case <-time.After(startPatience):
				_ = cmd.Process.Kill()
				t.Fatalf("gate %s waits until somebody reads its lines", command)
			}
		}
	}
}

// Lines keep their order, those that find no place are counted by the next one, and
// a flush waits for what is on its way.
func TestLinesThatFindNoPlaceAreCounted(t *testing.T) {
	t.Parallel()
	read, write := unreadPipe(t)
	a := &app{streams: streams{err: write}}
	a.queueLines()
	logger := slog.New(httpd.BoundLines(slog.NewJSONHandler(a.err, nil)))
	const many = 2 * linesWaiting
	for i := range many {
		logger.Info(strconv.Itoa(i)) // a message of its own each, or they would be bounded
	}
	a.flushLines() // nobody reads
	var lines []string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for scan := bufio.NewScanner(read); scan.Scan(); {
			lines = append(lines, strings.Trim(scan.Text(), "\x00"))
		}
	}()
	a.flushLines()
	logger.Info(strconv.Itoa(many))
	a.flushLines()
	require.NoError(t, write.Close())
	<-ended
	next, left := 0, 0
	for _, line := range lines {
		var entry struct {
			Message string `json:"msg"`
			Left    int    `json:"not_written_before"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &entry))
		next, left = next+entry.Left, left+entry.Left
		require.Equal(t, strconv.Itoa(next), entry.Message)
		next++
	}
	require.Equal(t, many+1, next)
	require.Positive(t, left)
}

// fullFile takes so many bytes, and no more until it has room again.
type fullFile struct {
	bytes.Buffer
	room int
}

func (f *fullFile) Write(b []byte) (int, error) {
	n := min(len(b), f.room)
	f.room -= n
	f.Buffer.Write(b[:n])
	if n < len(b) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

func TestLinesThatCouldNotBeWrittenAreTold(t *testing.T) {
	t.Parallel()
	out := &fullFile{room: 6}
	q := newLineQueue(out)
	for _, line := range []string{"one\n", "two\n", "three\n"} {
		_, err := q.Write([]byte(line))
		require.NoError(t, err)
	}
	q.flush()
	out.room = 1 << 10
	_, err := q.Write([]byte("four\n"))
	require.NoError(t, err)
	q.flush()
	_, err = q.Write([]byte("five\n"))
	require.NoError(t, err)
	q.flush()
	require.Equal(t, "one\ntw\n{\"level\":\"ERROR\",\"msg\":\"lines before this one could not be written\",\"lines\":2}\nfour\nfive\n", out.String())
}

// openTerminal makes a terminal, of whose screen the other end is read.
func openTerminal(t *testing.T) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = screen.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = terminal.Close() })
	return screen, terminal
}

// On a terminal a service's lines are for people, elsewhere they are JSON, and
// GATE_LOG_FORMAT overrides both.
func TestLinesAreForPeopleOnATerminal(t *testing.T) {
	t.Parallel()
	_, terminal := openTerminal(t)
	for _, c := range []struct {
		err     io.Writer
		setting string
		want    string
	}{{terminal, "auto", "text"}, {terminal, "json", "json"}, {new(bytes.Buffer), "auto", "json"}, {new(bytes.Buffer), "text", "text"}} {
		a := &app{streams: streams{err: c.err}}
		a.queueLines()
		require.Equal(t, c.want, a.logFormat(c.setting))
	}

	out := new(bytes.Buffer)
	logger := slog.New((&app{streams: streams{err: out}}).lineHandler("text")).With("source", "gate")
	logger.Warn("the database is out of reach", "cause", "a\x1b[2Jb", "tries", 3)
	require.Regexp(t, `^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d WARN  the database is out of reach  source=gate cause="a\\x1b\[2Jb" tries=3\n$`, out.String())
	out.Reset()
	logger.Info("a\x1b[2Jb")
	require.Contains(t, out.String(), `INFO  "a\x1b[2Jb"  source=gate`)
	for _, handler := range []slog.Handler{(&app{streams: streams{err: out}}).lineHandler("text"), (&app{streams: streams{err: out}}).lineHandler("json")} {
		out.Reset()
		slog.New(handler).Info("the control plane is listening", "source", "control-plane", "address", "127.0.0.1:3000", "mode", "real")
		require.Equal(t, "127.0.0.1:3000", planeListens.FindStringSubmatch(out.String())[1], "what the demonstration reads")
	}
	g := startGate(t, newGateDir(t, nil), "GATE_LOG_FORMAT=text")
	require.Regexp(t, `(?m)^\S+ \S+ INFO  the gate is listening  source=gate address=127`, g.output.String())
}
