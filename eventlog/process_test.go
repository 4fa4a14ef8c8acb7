package eventlog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// The child processes of these tests are this test binary with a task in its
// environment.
const (
	taskEnv = "EVENTLOG_TEST_TASK"
	pathEnv = "EVENTLOG_TEST_PATH"
	stepEnv = "EVENTLOG_TEST_STEP"
	// groupsEnv is how many groups each of the eight appenders of a child writes;
	// tests set it, and `make faults` asks for more than they do.
	groupsEnv = "EVENTLOG_TEST_GROUPS"
)

func TestMain(m *testing.M) {
	switch os.Getenv(taskEnv) {
	case "open":
		childOpen()
	case "append":
		childAppend()
	case "live":
		childLive()
	case "stand":
		childStand()
	default:
		os.Exit(m.Run())
	}
}

// childOpen opens the log and ends with the exit code that the service would have.
func childOpen() {
	l, _, err := Open(context.Background(), Options{Path: os.Getenv(pathEnv)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(ExitCode(err))
	}
	if err := l.Close(context.Background()); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// childAppend appends from eight goroutines, prints each group before and after
// it, and kills itself at the n-th passing of a step.
func childAppend() {
	name, nth, _ := strings.Cut(os.Getenv(stepEnv), "#")
	n, err := strconv.ParseInt(nth, 10, 64)
	if err != nil {
		os.Exit(2)
	}
	var passed atomic.Int64
	die := func(step string) {
		if step == name && passed.Add(1) == n {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way; go no further
		}
	}
	l, rec, err := Open(context.Background(), Options{Path: os.Getenv(pathEnv), PreallocateBytes: 64 << 10, SegmentBytes: 48 << 10, Step: die})
	if err != nil || l.Serving() != nil {
		fmt.Fprintln(os.Stderr, err, rec.Report.Faults)
		os.Exit(3)
	}
	if len(rec.Tails) > 0 {
		d := draft("", 1)
		d.Type, d.Payload = event.TypeLogTailRecovered, (&event.LogTailRecovered{Tails: rec.Tails}).Fields()
		if _, err := l.Append(context.Background(), Group{Drafts: []event.Draft{d}}); err != nil {
			os.Exit(4)
		}
	}
	groups := 40
	if n, err := strconv.Atoi(os.Getenv(groupsEnv)); err == nil {
		groups = n
	}
	var wg sync.WaitGroup
	for a := range 8 {
		wg.Go(func() {
			for i := range groups {
				name, size := fmt.Sprintf("%d.%d.%d", os.Getpid(), a, i), 1+(a+i)%4
				os.Stdout.WriteString(fmt.Sprintf("try %s %d\n", name, size))
				g := Group{}
				for j := range size {
					g.Drafts = append(g.Drafts, draft(fmt.Sprintf("%s/%d", name, j), 100))
				}
				c, err := l.Append(context.Background(), g)
				if err != nil {
					os.Exit(5)
				}
				os.Stdout.WriteString(fmt.Sprintf("ack %s %d\n", name, c.First))
			}
		})
	}
	wg.Wait()
	if l.Close(context.Background()) != nil {
		os.Exit(6)
	}
	os.Exit(0)
}

// childLive goes through one life of a log, and ends as the service would.
func childLive() {
	err := aLife(Options{Path: os.Getenv(pathEnv), PreallocateBytes: 64 << 10, OneThread: true}, func(format string, args ...any) {
		os.Stdout.WriteString(fmt.Sprintf(format, args...))
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(ExitCode(err))
}

// childStand appends until the log is poisoned, or a few hundred groups are in it,
// tells each change of its health, and ends as the service would.
func childStand() {
	l, _, err := Open(context.Background(), Options{Path: os.Getenv(pathEnv), OneThread: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(ExitCode(err))
	}
	begun, refused := time.Now(), make(chan struct{})
	go func() {
		for i := range 300 {
			group := fmt.Sprintf("%d-%d", os.Getpid(), i)
			os.Stdout.WriteString(fmt.Sprintf("try %s 1\n", group))
			c, err := l.Append(context.Background(), Group{Drafts: []event.Draft{draft(group+"/0", 100)}})
			if err != nil {
				os.Stdout.WriteString("refused - 0\n")
				close(refused)
				return
			}
			os.Stdout.WriteString(fmt.Sprintf("ack %s %d\n", group, c.First))
		}
		os.Exit(ExitCode(l.Close(context.Background())))
	}()
	step := "" // fine
	for {
		select {
		case err := <-l.Fatal():
			os.Stdout.WriteString(fmt.Sprintf("fatal - %d\n", time.Since(begun).Milliseconds()))
			<-refused
			os.Exit(ExitCode(err))
		case <-time.After(50 * time.Millisecond):
			if h := l.Health(); h.Step != step {
				step = h.Step
				os.Stdout.WriteString(fmt.Sprintf("health=%s - %d\n", step, time.Since(begun).Milliseconds()))
			}
		}
	}
}

func child(task, path, step string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), taskEnv+"="+task, pathEnv+"="+path, stepEnv+"="+step)
	return cmd
}

// runToDeath runs an appending child and adds what it printed to the ledger.
func (k *ledger) runToDeath(t *testing.T, path, step string) {
	t.Helper()
	cmd := child("append", path, step)
	var errText strings.Builder
	cmd.Stderr = &errText
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for sc := bufio.NewScanner(out); sc.Scan(); {
		var verb, name string
		var n int
		_, err := fmt.Sscan(sc.Text(), &verb, &name, &n)
		require.NoError(t, err)
		if verb == "try" {
			k.sizes[name] = n
			continue
		}
		for i := range k.sizes[name] {
			k.acked[fmt.Sprintf("%s/%d", name, i)] = uint64(n + i)
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		return
	}
	require.NoError(t, err, "%s: %s", step, errText.String()) // it ended before the step came so often
}

// killSteps are where a process may die; the number says at which passing.
var killSteps = []string{
	"open.before_create#1", "open.after_create#1", "open.after_unclean#1",
	"append.encoded#9", "append.before_write#1", "append.before_write#7", "append.after_write#5",
	"append.after_sync#6", "append.before_wake#8", "append.before_preallocate#2",
	"recover.before_rewrite_sync#1", "recover.after_rewrite#1", "close.before_clean#1",
	"rotate.before_next#1", "rotate.after_next#1", "rotate.after_cut#1", "rotate.before_seal#2",
	"rotate.after_seal#1", "recover.before_begin#1", "recover.after_begin#1", "rotate.before_begin#1",
	"rotate.after_begin#2", "rotate.after_sync#1", "rotate.after_head#1",
}

// TestAProcessKilledAtAnyStepLosesNothingItAcknowledged kills processes in one
// log one after the other. EVENTLOG_TEST_KILLS asks for more of them.
func TestAProcessKilledAtAnyStepLosesNothingItAcknowledged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.wal")
	known := newLedger()
	steps := append([]string(nil), killSteps...)
	if more, err := strconv.Atoi(os.Getenv("EVENTLOG_TEST_KILLS")); err == nil {
		for range more {
			name, _, _ := strings.Cut(killSteps[rand.IntN(len(killSteps))], "#")
			steps = append(steps, fmt.Sprintf("%s#%d", name, 1+rand.IntN(60)))
		}
	}
	for _, step := range steps {
		known.runToDeath(t, path, step)
		sealed, err := filepath.Glob(path + frame.SegmentsSuffix + "/*")
		require.NoError(t, err)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) && len(sealed) == 0 {
			require.Empty(t, known.acked)
			continue
		}
		r, err := Verify(context.Background(), Options{Path: path})
		require.NoError(t, err)
		require.NotEqual(t, frame.Corruption, r.Status, "%s: %+v", step, r.Faults)
		checkOnDisk(t, known, path, r.VerifiedTo)
	}
	known.reopen(t, Options{Path: path})
	require.NotEmpty(t, known.acked)
}

// checkOnDisk reads the file as it lies, up to the event numbered last, without
// opening the log. Behind last there may be a part of a record: a kill ends a write
// at any page, whatever step asked for it.
func checkOnDisk(t *testing.T, known *ledger, path string, last uint64) {
	t.Helper()
	set, err := frame.Discover(context.Background(), frame.OS{}, path)
	require.NoError(t, err)
	defer set.Close()
	found := map[string]uint64{}
	for p, err := range set.Frames(context.Background(), last) {
		require.NoError(t, err)
		e, err := envelope(&p.Frame)
		require.NoError(t, err)
		if e.Type == event.TypeHealthFail {
			found[stepOf(t, e)] = e.Seq
		}
	}
	for name, seq := range known.acked {
		require.Equal(t, seq, found[name], name)
	}
}

func TestASecondWriterIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.wal")
	l, _ := mustOpen(t, Options{Path: path})
	mustAppend(t, l, "a")

	link, hard := filepath.Join(dir, "symbolic"), filepath.Join(t.TempDir(), "hard")
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, os.Link(path, hard))
	closeAnother := func() { // closing some descriptor of the lock file gives nothing away
		f, err := os.Open(path + frame.LockSuffix)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	for _, p := range []string{path, link, hard} {
		closeAnother()
		err := child("open", p, "").Run()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, p)
		require.Equal(t, ExitLocked, exit.ExitCode(), p)
		_, _, err = Open(context.Background(), Options{Path: p})
		require.ErrorIs(t, err, ErrLocked, "not even in the same process")
	}
	mustAppend(t, l, "b")
	r := mustVerify(t, Options{Path: path}, frame.OK)
	require.EqualValues(t, 2, r.LastSeq, "a reader beside the writer sees its durable head")
	mustClose(t, l)
	require.NoError(t, child("open", link, "").Run())
	mustVerify(t, Options{Path: path}, frame.OK)
}

func TestAChildProcessDoesNotInheritTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.wal")
	l, _ := mustOpen(t, Options{Path: path})
	sleeper := exec.Command("sleep", "60")
	require.NoError(t, sleeper.Start())
	defer func() {
		require.NoError(t, sleeper.Process.Kill())
		sleeper.Wait()
	}()
	mustClose(t, l)
	require.NoError(t, child("open", path, "").Run(), "the log was closed, whoever else still runs")
}
