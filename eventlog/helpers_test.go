package eventlog

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

const testLog = "/log/audit.wal"

var testTime = time.Date(2025, 1, 2, 3, 4, 5, 678_901_234, time.UTC)

// testKey signs the logs of the tests.
var testKey = func() *checkpoint.PrivateKey {
	key, err := checkpoint.NewPrivateKey()
	if err != nil {
		panic(err)
	}
	return key
}()

// memOptions opens a log in memory that signs, small enough that preallocation
// happens many times in a test.
func memOptions(fs frame.FS) Options {
	return Options{
		Path: testLog, FS: fs, PreallocateBytes: 16 << 10, Origin: "test",
		SigningKey: testKey, Now: func() time.Time { return testTime },
	}
}

func newMem(t testing.TB) *frametest.Mem {
	t.Helper()
	m := frametest.NewMem()
	require.NoError(t, m.MkdirAll("/log"))
	require.NoError(t, m.SyncDir("/"))
	return m
}

// draft makes an event whose record is a little longer than size.
func draft(name string, size int) event.Draft {
	return event.Draft{
		ID: event.NewID(testTime), Type: event.TypeHealthFail, TypeVersion: 1, Time: testTime,
		Context: event.Context{Actor: "system"},
		Payload: (&event.HealthFail{Step: name, Message: strings.Repeat("x", size)}).Fields(),
	}
}

// stepOf is the name that draft gave the event.
func stepOf(t testing.TB, e event.Envelope) string {
	t.Helper()
	var p event.HealthFail
	require.NoError(t, e.Parse(&p))
	return p.Step
}

func group(names ...string) Group {
	var g Group
	for _, n := range names {
		g.Drafts = append(g.Drafts, draft(n, 20))
	}
	return g
}

func mustOpen(t testing.TB, o Options) (*Log, Recovery) {
	t.Helper()
	l, rec, err := Open(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close(context.Background()) })
	return l, rec
}

func mustAppend(t testing.TB, l *Log, names ...string) Committed {
	t.Helper()
	c, err := l.Append(context.Background(), group(names...))
	require.NoError(t, err)
	return c
}

func mustClose(t testing.TB, l *Log) {
	t.Helper()
	require.NoError(t, l.Close(context.Background()))
}

// names reads the whole log.
func names(t testing.TB, l *Log) []string {
	t.Helper()
	var out []string
	for e, err := range l.From(context.Background(), 1) {
		require.NoError(t, err)
		require.Equal(t, uint64(len(out)+1), e.Seq)
		out = append(out, stepOf(t, e))
	}
	return out
}

func mustVerify(t testing.TB, o Options, want frame.Status) frame.Report {
	t.Helper()
	r, err := Verify(context.Background(), o)
	require.NoError(t, err)
	require.Equal(t, want, r.Status, "%+v", r.Faults)
	return r
}

func numbered(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return out
}
