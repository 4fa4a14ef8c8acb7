package classify

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// takeChild borrows the only child until the returned function is called.
func takeChild(t testing.TB, c *Classifier) (*child, func()) {
	t.Helper()
	place, err := c.children.free.take(t.Context(), "", time.Minute)
	require.NoError(t, err)
	if place.child == nil {
		require.NoError(t, c.children.start(place))
	}
	return place.child, func() { c.children.free.give(place) }
}

const longSelect = "SELECT 1 WHERE 1 IN (" // with a list behind it: work for the child

func longText(n int) string { return longSelect + strings.Repeat("1,", n) + "1)" }

func TestAChildThatFailsInARequestIsReplacedAndTheTextRefused(t *testing.T) {
	for name := range failures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClassifier(t, Config{WorkerCommand: roleCommand("worker", name)})
			if byCPUAlone(c); name == "sleeping" {
				c.children.wall = 2 * time.Second
			}
			limit, text := limitParserDied, longText(100_000) // longer than a pipe holds
			_, err := c.Classify(t.Context(), text)
			if strings.HasPrefix(name, "spinning") {
				limit = limitParserCPU
				got := fault.Of(err).Details["got"].(int)
				require.GreaterOrEqual(t, got, 1000)
				require.Equal(t, 1000, fault.Of(err).Details["max"])
			}
			requireFault(t, err, fault.ParserUnsupportedSyntax, limit)

			takeBack, giveBack := takeChild(t, c) // the next one is there
			require.False(t, takeBack.ended())
			giveBack()
			stats := c.Stats()
			require.EqualValues(t, 1, stats.Child, "the text went to one child only")
			require.EqualValues(t, 1, stats.Restarts)
			require.Equal(t, strings.HasPrefix(name, "spinning") || name == "sleeping", stats.Killed == 1)
		})
	}
}

func TestWithoutAChildLongTextsAreInternalAndShortOnesGoOn(t *testing.T) {
	for name, command := range map[string][]string{
		"no such program": {filepath.Join(t.TempDir(), "none")},
		"ends at once":    roleCommand("vanish"),
		"speaks another":  roleCommand("garbage"),
	} {
		c := newClassifier(t, Config{WorkerCommand: command})
		for range 2 {
			_, err := c.Classify(t.Context(), longText(10_000))
			requireFault(t, err, fault.Internal, "")
		}
		_, err := c.Classify(t.Context(), "SELECT 1")
		require.NoError(t, err, name)
		require.Equal(t, ParserStats{InProcess: 1}, c.Stats(), name)
	}
}

func TestARealChildKilledInARequestIsReplaced(t *testing.T) {
	c := byCPUAlone(newClassifier(t, Config{}))
	before, giveBack := takeChild(t, c)
	pid := before.process.Pid
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP)) // so that the request is in it for sure
	giveBack()

	var group sync.WaitGroup
	group.Go(func() {
		_, err := c.Classify(t.Context(), longText(10_000))
		requireFault(t, err, fault.ParserUnsupportedSyntax, limitParserDied)
		require.ErrorContains(t, err, "signal: killed")
	})
	require.Eventually(t, func() bool { return c.Stats().Child == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	group.Wait()

	got, err := c.Classify(t.Context(), longText(10_000))
	require.NoError(t, err)
	require.True(t, got.SafeRead)
	require.Equal(t, ParserStats{Child: 2, Restarts: 1}, c.Stats())
}

func TestAnIdleChildThatWasKilledCostsNoRequest(t *testing.T) {
	c := byCPUAlone(newClassifier(t, Config{}))
	old, giveBack := takeChild(t, c)
	require.NoError(t, old.process.Kill())
	<-old.gone
	giveBack()
	_, err := c.Classify(t.Context(), longText(10_000))
	require.NoError(t, err)
	require.Equal(t, ParserStats{Child: 1, Restarts: 1}, c.Stats())
}

func TestAfterCloseTheChildrenAreGone(t *testing.T) {
	c, err := New(Config{Children: 3})
	require.NoError(t, err)
	one, giveBack := takeChild(t, c)
	giveBack()
	c.Close()
	c.Close()
	require.True(t, one.ended())
	require.ErrorIs(t, syscall.Kill(one.process.Pid, 0), syscall.ESRCH)
	_, err = c.Classify(t.Context(), longText(10_000))
	requireFault(t, err, fault.Internal, "")
}

func TestTheChildIsConfined(t *testing.T) {
	t.Setenv("GATE_OPERATOR_TOKEN", "not for the child")
	left, right, err := os.Pipe() // a descriptor that would be inherited
	require.NoError(t, err)
	defer left.Close()
	defer right.Close()
	_, _, errno := syscall.Syscall(syscall.SYS_FCNTL, right.Fd(), syscall.F_SETFD, 0)
	require.Zero(t, errno)

	c := newClassifier(t, Config{})
	one, giveBack := takeChild(t, c)
	defer giveBack()
	proc := fmt.Sprintf("/proc/%d/", one.process.Pid)

	limits := readFile(t, proc+"limits")
	require.Regexp(t, `Max stack size +67108864 `, limits)
	require.Regexp(t, `Max core file size +0 +0 `, limits)
	if !raceDetector {
		require.Regexp(t, `Max address space +2147483648 +2147483648 `, limits)
	}
	require.Regexp(t, `NoNewPrivs:\t1`, readFile(t, proc+"status"))
	require.Equal(t, strings.ReplaceAll(strings.Join(childEnvironment, "\x00")+"\x00", ":", "\x00"), readFile(t, proc+"environ"), "nothing is inherited; glibc cuts its own where it reads it")
	require.Equal(t, "gate-parser\x00parse-worker\x00confined\x00", readFile(t, proc+"cmdline"))

	open, err := os.ReadDir(proc + "fd")
	require.NoError(t, err)
	for _, d := range open {
		target, err := os.Readlink(proc + "fd/" + d.Name())
		require.NoError(t, err)
		if d.Name() > "2" || len(d.Name()) > 1 {
			require.Regexp(t, `^(anon_inode:|/sys/fs/cgroup/)`, target, "only what the Go runtime opens for itself")
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(b)
}

// A stopped child cannot see that its input has ended: only the death signal
// reaches it.
func TestTheChildDiesWithItsGate(t *testing.T) {
	command := roleCommand("gate")
	gate := exec.Command(command[0], command[1:]...)
	in, err := gate.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	out, err := gate.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, gate.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	var pid int
	_, err = fmt.Sscan(line, &pid)
	require.NoError(t, err)

	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	require.NoError(t, gate.Process.Kill())
	require.Error(t, gate.Wait())
	require.Eventually(t, func() bool { return !isRunning(pid) }, 10*time.Second, 5*time.Millisecond)
}

// isRunning tells whether a process exists and is not only waiting to be reaped.
func isRunning(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// The Go runtime and the stacks take most of the child's address space; a parse
// must find enough left.
func TestTheChildHasAddressSpaceLeftForParses(t *testing.T) {
	c := newClassifier(t, Config{})
	one, giveBack := takeChild(t, c)
	defer giveBack()
	_, size, found := strings.Cut(readFile(t, fmt.Sprintf("/proc/%d/status", one.process.Pid)), "VmPeak:")
	require.True(t, found)
	var kilobytes int
	_, err := fmt.Sscan(size, &kilobytes)
	require.NoError(t, err)
	if !raceDetector {
		require.Less(t, kilobytes, (childMemory-300<<20)>>10)
	}
}

func TestLargeOrdinaryStatementsAreClassified(t *testing.T) {
	if raceDetector {
		t.Log("the race detector's bookkeeping takes more CPU time than a child may; the smaller texts of other tests stand for these")
		return
	}
	c := byCPUAlone(newClassifier(t, Config{}))
	insert := "INSERT INTO app.t (id, name, at) VALUES (1, 'a name', now())"
	for len(insert) < 256<<10-40 {
		insert += ", (12345, 'another name', '2024-01-01')"
	}
	got, err := c.Classify(t.Context(), insert)
	require.NoError(t, err)
	require.Equal(t, "INSERT", got.QueryType)
	require.Equal(t, []string{"app.t"}, got.TablesWritten)

	got, err = c.Classify(t.Context(), longText(100_000))
	require.NoError(t, err)
	require.True(t, got.SafeRead)
	require.EqualValues(t, 2, c.Stats().Child)
}
