package eventlog

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// followedOutside is After with the events sent to a channel, and the error at the end.
func followedOutside(t *testing.T, ctx context.Context, path string, report *frame.Report) (<-chan uint64, <-chan error) {
	t.Helper()
	seqs, ended := make(chan uint64, 10_000), make(chan error, 1)
	go func() {
		defer close(seqs)
		for e, err := range After(ctx, frame.OS{}, path, report, time.Millisecond) {
			if err != nil {
				ended <- err
				return
			}
			seqs <- e.Seq
		}
		ended <- nil
	}()
	return seqs, ended
}

// TestALogIsFollowedFromOutsideThroughRotationsAndRestarts: every event once, in
// order, also those of a gate that starts later.
func TestALogIsFollowedFromOutsideThroughRotationsAndRestarts(t *testing.T) {
	o := Options{Path: t.TempDir() + "/audit.wal", SegmentBytes: 8 << 10, PreallocateBytes: 8 << 10}
	l, _ := mustOpen(t, o)
	mustAppend(t, l, "before", "it")
	report, err := Verify(context.Background(), o)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	seqs, ended := followedOutside(t, ctx, o.Path, &report)
	for run := range 3 {
		for i := range 40 {
			mustAppend(t, l, fmt.Sprint(run, i), "two")
		}
		mustClose(t, l)
		l, _ = mustOpen(t, o)
	}
	last := l.Head().Seq
	require.Greater(t, l.Head().Segment, uint32(3))
	for next := report.LastSeq + 1; next <= last; next++ {
		select {
		case seq := <-seqs:
			require.Equal(t, next, seq)
		case err := <-ended:
			t.Fatalf("it ended before event %d: %v", next, err)
		case <-time.After(time.Minute):
			t.Fatalf("event %d did not come", next)
		}
	}
	stop()
	require.NoError(t, <-ended)
	mustClose(t, l)
}

func TestAFollowerFromOutsideEndsWhereTheLogIsDamagedOrAnother(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, o Options){
		"damaged": func(t *testing.T, o Options) {
			b, err := os.ReadFile(o.Path)
			require.NoError(t, err)
			r := mustVerify(t, o, frame.OK)
			b[r.Head.EndOffset-10] ^= 1 // the last event's hash
			require.NoError(t, os.WriteFile(o.Path, b, 0o600))
		},
		"cut": func(t *testing.T, o Options) {
			r := mustVerify(t, o, frame.OK)
			require.NoError(t, os.Truncate(o.Path, r.Head.EndOffset-100))
		},
		"another log": func(t *testing.T, o Options) {
			require.NoError(t, os.Remove(o.Path))
			require.NoError(t, os.Remove(o.Path+frame.HeadSuffix))
			l, _ := mustOpen(t, o)
			mustAppend(t, l, "x")
			mustClose(t, l)
		},
		"no head": func(t *testing.T, o Options) { require.NoError(t, os.Remove(o.Path+frame.HeadSuffix)) },
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Path: t.TempDir() + "/audit.wal"}
			l, _ := mustOpen(t, o)
			mustAppend(t, l, "a")
			report := mustVerify(t, o, frame.OK)
			mustAppend(t, l, "b")
			mustAppend(t, l, "c")
			mustClose(t, l)
			spoil(t, o)
			_, ended := followedOutside(t, context.Background(), o.Path, &report)
			require.Error(t, <-ended)
		})
	}
}
