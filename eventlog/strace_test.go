//go:build faults

package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// These tests let strace(1) answer system calls in the kernel's place, so they
// see what no file system of ours stands for: the calls themselves. They need
// strace and the right to trace, which `make faults` sees to.

// under runs a child in which strace does to system calls what inject says
// (strace -e inject=...), to those on the files of the log alone, or on those given. It tells the
// ledger what the child says, and gives the exit code, all lines and whether
// anything was injected.
func (k *ledger) under(t *testing.T, task, path, inject string, only ...string) (code int, lines []string, injected int) {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	dir := filepath.Dir(path)
	args := []string{"-f", "-qq", "-o", trace, "-e", "inject=" + inject, "-e", "trace=" + strings.SplitN(inject, ":", 2)[0]}
	if only == nil {
		only = []string{dir, path, path + ".tmp", path + frame.LockSuffix, path + frame.HeadSuffix, path + frame.NextSuffix, path + frame.SegmentsSuffix, path + frame.QuarantineSuffix}
	}
	for _, on := range only {
		args = append(args, "-P", on)
	}
	c := child(task, path, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for one that hangs
	defer cancel()
	cmd := exec.CommandContext(ctx, "strace", append(args, c.Args...)...)
	cmd.Env = c.Env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	for line := range strings.Lines(out.String()) {
		k.told(t, line)
		lines = append(lines, strings.TrimSpace(line))
	}
	traced, err := os.ReadFile(trace)
	require.NoError(t, err)
	require.NotContains(t, errs.String(), "panic:", "%s", errs.String())
	return cmd.ProcessState.ExitCode(), lines, bytes.Count(traced, []byte("(INJECTED)"))
}

// holds: what is on disk accuses nobody, and has all that was acknowledged.
func (k *ledger) holds(t *testing.T, path string) {
	t.Helper()
	if files, err := filepath.Glob(path + "*"); err == nil && len(files) == 0 {
		require.Empty(t, k.acked)
		return
	}
	r, err := Verify(context.Background(), Options{Path: path})
	require.NoError(t, err)
	require.NotEqual(t, frame.Corruption, r.Status, "%+v", r.Faults)
	k.reopen(t, Options{Path: path})
}

func counted(lines []string, verb string) (n int) {
	for _, l := range lines {
		if strings.HasPrefix(l, verb+" ") {
			n++
		}
	}
	return n
}

// TestStraceAShortWriteOrAnErrorOfOnePoisons: rows 9 and 10.
func TestStraceAShortWriteOrAnErrorOfOnePoisons(t *testing.T) {
	for _, inject := range []string{"retval=50", "retval=0", "error=EIO", "error=ENOSPC", "error=EDQUOT"} {
		t.Run(inject, func(t *testing.T) {
			path, known := filepath.Join(t.TempDir(), "audit.wal"), newLedger()
			code, lines, injected := known.under(t, "stand", path, "pwrite64:"+inject+":when=9", path)
			require.Equal(t, 1, injected)
			require.Equal(t, ExitPoisoned, code, "%v", lines)
			require.Equal(t, 1, counted(lines, "refused"), "nothing is acknowledged behind the hole")
			known.holds(t, path)
		})
	}
}

// TestStraceAnInterruptedWriteIsRepeated: the other half of row 10.
func TestStraceAnInterruptedWriteIsRepeated(t *testing.T) {
	path, known := filepath.Join(t.TempDir(), "audit.wal"), newLedger()
	code, lines, injected := known.under(t, "live", path, "pwrite64:error=EINTR:when=3..60+3")
	require.Positive(t, injected)
	require.Zero(t, code, "%v", lines)
	require.Equal(t, 8, counted(lines, "ack"))
	known.holds(t, path)
}

// TestStraceAFailedSyncEndsTheProcess: row 11. The next sync would succeed; nothing
// is acknowledged after it, and the restart makes the end of the log sure.
func TestStraceAFailedSyncEndsTheProcess(t *testing.T) {
	for nth := 3; nth < 8; nth++ {
		path, known := filepath.Join(t.TempDir(), "audit.wal"), newLedger()
		code, lines, injected := known.under(t, "stand", path, fmt.Sprintf("fdatasync:error=EIO:when=%d", nth), path)
		require.Equal(t, 1, injected)
		require.Equal(t, ExitPoisoned, code, "%v", lines)
		require.Equal(t, 1, counted(lines, "refused"), "%v", lines)
		require.Len(t, known.sizes, len(known.acked)+1, "the group that was written is not acknowledged")
		known.holds(t, path)
	}
}

// TestStraceASyncThatHangs: row 13. Health fails after 5 s, the process ends at
// 20 s, and the group is never acknowledged.
func TestStraceASyncThatHangs(t *testing.T) {
	path, known := filepath.Join(t.TempDir(), "audit.wal"), newLedger()
	code, lines, _ := known.under(t, "stand", path, "fdatasync:delay_enter=30000000:when=6", path)
	require.Equal(t, ExitPoisoned, code, "%v", lines)
	sick, fatal := -1, -1
	for _, l := range lines {
		var at int
		if n, _ := fmt.Sscanf(l, "health=sync - %d", &at); n == 1 {
			sick = at
		}
		if n, _ := fmt.Sscanf(l, "fatal - %d", &at); n == 1 {
			fatal = at
		}
	}
	require.GreaterOrEqual(t, sick, 5000, "%v", lines)
	require.Less(t, sick, 12000)
	require.GreaterOrEqual(t, fatal, 20000, "%v", lines)
	require.Less(t, fatal, 28000, "it does not wait for the disk")
	t.Logf("health failed after %d ms, the process ended after %d ms", sick, fatal)
	known.holds(t, path)
}

// TestStraceASyncOfAFolderThatFails: row 14, at create, at a rotation and at each
// other place where a folder is synced.
func TestStraceASyncOfAFolderThatFails(t *testing.T) {
	failed := 0
	for nth := 1; ; nth++ {
		path, known := filepath.Join(t.TempDir(), "audit.wal"), newLedger()
		_, _, injected := known.under(t, "live", path, fmt.Sprintf("fsync:error=EIO:when=%d", nth))
		if injected == 0 {
			break
		}
		failed++
		known.holds(t, path)
	}
	require.Greater(t, failed, 4)
	t.Logf("%d syncs of files and folders failed, each once", failed)
}

// lifeCalls are the system calls by which a log lives (row 39), those of the
// Go runtime on its own files left out by the paths.
var lifeCalls = []string{
	"openat", "pwrite64", "pread64", "fdatasync", "fsync", "ftruncate", "renameat", "mkdirat", "getdents64",
	"fcntl", "flock", "fstat", "newfstatat", "statfs", "readlinkat", "close",
}

// TestStraceEachCallFailsOnce: row 39. A thread has its own count in strace, so a
// number may fail one call of each of several threads, which is more than asked.
func TestStraceEachCallFailsOnce(t *testing.T) {
	total := 0
	for _, call := range lifeCalls {
		ran := 0
		for nth := 1; ; nth++ {
			path, known := filepath.Join(t.TempDir(), "audit.wal"), newLedger()
			_, _, injected := known.under(t, "live", path, fmt.Sprintf("%s:error=EIO:when=%d", call, nth))
			if injected == 0 {
				break
			}
			ran += injected
			known.holds(t, path)
		}
		t.Logf("%-12s failed %d times", call, ran)
		total += ran
	}
	require.Greater(t, total, 150)
	t.Logf("%d system calls failed", total)
}
