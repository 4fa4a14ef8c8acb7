package eventlog

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"

	"writegate/eventlog/event"
	"writegate/eventlog/frame/frametest"
)

const testJSONL = "/log/audit.log"

func jsonlOptions(mem *frametest.Mem) Options {
	o := memOptions(mem)
	o.JSONLPath = testJSONL
	return o
}

// lines is the JSONL file that a log should have, from an event on.
func lines(t *testing.T, l *Log, from uint64) string {
	t.Helper()
	var b []byte
	for e, err := range l.From(context.Background(), from) {
		require.NoError(t, err)
		b = append(event.AppendJSON(b, &e), '\n')
	}
	return string(b)
}

// jsonlLog makes a closed log of some events with its JSONL file.
func jsonlLog(t *testing.T) (*frametest.Mem, string) {
	t.Helper()
	mem := newMem(t)
	l, _ := mustOpen(t, jsonlOptions(mem))
	mustAppend(t, l, numbered("a", 3)...)
	mustAppend(t, l, "line\nbreak", `quote " and \`)
	want := lines(t, l, 1)
	mustClose(t, l)
	return mem, want
}

func readJSONL(t *testing.T, mem *frametest.Mem) string {
	t.Helper()
	b, err := mem.ReadFile(testJSONL)
	require.NoError(t, err)
	return string(b)
}

func TestTheJSONLFileHasEveryEventWhenTheLogIsClosed(t *testing.T) {
	mem, want := jsonlLog(t)
	require.Equal(t, want, readJSONL(t, mem))
	for line := range strings.Lines(want) {
		_, err := event.ParseJSON([]byte(strings.TrimSuffix(line, "\n")))
		require.NoError(t, err)
	}
}

// TestTheJSONLFileIsTakenUpWhereItAgrees: whatever happened to the file, after
// the next run it is the log again, and a file that lied is kept aside.
func TestTheJSONLFileIsTakenUpWhereItAgrees(t *testing.T) {
	_, want := jsonlLog(t)
	_ = want
	for name, c := range map[string]struct {
		spoil func(whole string) string
		aside bool
	}{
		"missing":            {nil, false},
		"empty":              {func(string) string { return "" }, false},
		"whole":              {func(s string) string { return s }, false},
		"torn line":          {func(s string) string { return s[:len(s)-20] }, false},
		"first line torn":    {func(s string) string { return s[:20] }, false},
		"last lines removed": {func(s string) string { return strings.Join(strings.SplitAfter(s, "\n")[:2], "") }, false},
		"edited":             {func(s string) string { return strings.Replace(s, "quote", "qu0te", 1) }, true},
		"CRLF":               {func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }, true},
		"not JSON":           {func(s string) string { return s + "hello\n" }, true},
		"beyond the log":     {func(s string) string { return s + strings.Replace(lastOf(s), `"seq":5`, `"seq":6`, 1) }, true},
		"NULs":               {func(s string) string { return s + strings.Repeat("\x00", 100) + "\n" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			mem, whole := jsonlLog(t)
			if c.spoil == nil {
				require.NoError(t, mem.Remove(testJSONL))
			} else {
				require.NoError(t, mem.WriteFile(testJSONL, []byte(c.spoil(whole))))
			}
			l, _ := mustOpen(t, jsonlOptions(mem))
			mustAppend(t, l, "later")
			want := lines(t, l, 1)
			mustClose(t, l)
			require.Equal(t, want, readJSONL(t, mem))
			all, err := mem.List("/log")
			require.NoError(t, err)
			require.Equal(t, c.aside, strings.Contains(strings.Join(all, " "), "audit.log.disagrees-"))
		})
	}
}

func lastOf(s string) string {
	all := strings.SplitAfter(s, "\n")
	return all[len(all)-2]
}

func TestAJSONLFileMovedAwayIsBegunAnewAtTheNextEvent(t *testing.T) {
	mem := newMem(t)
	l, _ := mustOpen(t, jsonlOptions(mem))
	mustAppend(t, l, "a")
	require.Eventually(t, func() bool {
		b, err := mem.ReadFile(testJSONL)
		return err == nil && len(b) > 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, mem.Rename(testJSONL, testJSONL+".1"))
	var err error
	require.Eventually(t, func() bool {
		mustAppend(t, l, "b")
		_, err = mem.ReadFile(testJSONL)
		return !errors.Is(err, fs.ErrNotExist)
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, err)
	want := lines(t, l, 1)
	mustClose(t, l)
	old, err := mem.ReadFile(testJSONL + ".1")
	require.NoError(t, err)
	require.Equal(t, want, string(old)+readJSONL(t, mem), "between them they have every event once")
}

func TestAJSONLFileThatCannotBeWrittenStopsNothing(t *testing.T) {
	mem := newMem(t)
	o := jsonlOptions(mem)
	o.FS = frametest.Inject(mem, func(op frametest.Op) error {
		if op.Name == testJSONL {
			return errors.New("no such luck")
		}
		return nil
	})
	l, _ := mustOpen(t, o)
	mustAppend(t, l, "a")
	require.True(t, l.Health().OK)
	mustClose(t, l)
	l, _ = mustOpen(t, jsonlOptions(mem))
	want := lines(t, l, 1)
	mustClose(t, l)
	require.Equal(t, want, readJSONL(t, mem))
}

// Whoever moves the file away because its disk is full has in the next one what
// could not be written any more.
func TestAJSONLFileMovedAwayFromAFullDiskIsBegunAnewAtItsTornLine(t *testing.T) {
	mem := newMem(t)
	o := jsonlOptions(mem)
	full := true
	o.FS = frametest.Inject(mem, func(op frametest.Op) error {
		if full && op.Name == testJSONL && op.Kind == frametest.Pwrite {
			return frametest.Short{N: op.Len / 2, Err: errors.New("no space left on device")}
		}
		return nil
	})
	o.JSONLPath = ""
	l, _ := mustOpen(t, o)
	mustAppend(t, l, "a", "b", "c", "d", "e")
	want := lines(t, l, 1)
	l.o.JSONLPath = testJSONL
	w := &jsonlWriter{l: l, next: 1}
	require.ErrorContains(t, w.run(t.Context()), "no space left")
	w.close()
	require.NoError(t, mem.Rename(testJSONL, testJSONL+".1"))
	full = false
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.run(ctx) }()
	require.Eventually(t, func() bool {
		b, err := mem.ReadFile(testJSONL)
		return err == nil && bytes.HasSuffix(b, []byte(lastOf(want)))
	}, time.Minute, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	old, err := mem.ReadFile(testJSONL + ".1")
	require.NoError(t, err)
	whole := old[:bytes.LastIndexByte(old, '\n')+1]
	require.NotEmpty(t, whole)
	require.Less(t, len(whole), len(old))
	require.Equal(t, want, string(whole)+readJSONL(t, mem))
	mustClose(t, l)
}

func TestTheLastLineIsFoundHoweverLongItIs(t *testing.T) {
	for _, n := range []int{0, 1, 70 << 10, 300 << 10, 5 << 20} {
		mem := newMem(t)
		long := bytes.Repeat([]byte("y"), n)
		require.NoError(t, mem.WriteFile("/log/f", append(append([]byte("first\n"), long...), "\ntorn"...)))
		f, err := mem.Open("/log/f", 0)
		require.NoError(t, err)
		line, end, err := lastLine(f)
		require.NoError(t, err)
		require.True(t, bytes.Equal(long, line))
		require.EqualValues(t, 6+n+1, end)
	}
}

// The place of the JSONL file or of the index may hold an event log by mistake, this
// one or another gate's: it is neither moved nor written over.
func TestNoLogIsPutAsideForWhatIsDerived(t *testing.T) {
	mem := newMem(t)
	o := memOptions(mem)
	l, _ := mustOpen(t, o)
	mustAppend(t, l, "a")
	mustClose(t, l)
	log, err := mem.ReadFile(o.Path)
	require.NoError(t, err)
	for _, at := range []string{o.Path, "/log/other.wal"} {
		require.NoError(t, mem.WriteFile(at, log))
		for _, name := range []func(*Options){func(o *Options) { o.JSONLPath = at }, func(o *Options) { o.IndexPath = at }} {
			named := o
			name(&named)
			_, _, err := Open(context.Background(), named)
			require.ErrorIs(t, err, ErrInvalidOptions)
		}
	}
	o.JSONLPath, o.IndexPath = testJSONL, "/log/index.json"
	l, _ = mustOpen(t, o)
	for _, at := range []string{o.JSONLPath, o.IndexPath} { // while the log is open
		require.NoError(t, mem.WriteFile(at, log))
	}
	w := &jsonlWriter{l: l, next: 1}
	require.ErrorContains(t, w.resume(), "is an event log")
	l.saveIndex()
	mustClose(t, l)
	for _, at := range []string{o.JSONLPath, o.IndexPath} {
		b, err := mem.ReadFile(at)
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(b, log[:frame.HeaderSize]), at)
	}
}
