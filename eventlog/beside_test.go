package eventlog

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// TestAVerifierBesideAWriterThatSealsSegmentsIsNeverMisled: another process
// writes at its full rate and seals a segment every few dozen groups, while this
// one verifies from outside, again and again. Each verdict is ok up to a durable
// head that never falls.
func TestAVerifierBesideAWriterThatSealsSegmentsIsNeverMisled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.wal")
	l, _ := mustOpen(t, Options{Path: path})
	mustAppend(t, l, "first")
	mustClose(t, l)
	writer := child("append", path, "none#1")
	if os.Getenv(groupsEnv) == "" {
		writer.Env = append(writer.Env, groupsEnv+"=300")
	}
	out, err := writer.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, writer.Start())
	// It speaks once it holds the log: before, a verdict is not of a live one. What
	// it says fills the pipe and stops it half way, so it lives until it was seen
	// to grow.
	_, err = out.Read(make([]byte, 1))
	require.NoError(t, err)
	ended := make(chan error, 1)
	goOn := sync.OnceFunc(func() {
		go func() {
			_, err := io.Copy(io.Discard, out)
			ended <- err
		}()
	})
	last, verdicts, live := uint64(0), 0, 0
	for running := true; running; verdicts++ {
		select {
		case err := <-ended:
			require.NoError(t, err)
			require.NoError(t, writer.Wait())
			running = false
		default:
		}
		set, err := frame.Discover(context.Background(), frame.OS{}, path)
		require.NoError(t, err)
		r, err := frame.Verify(context.Background(), set, frame.Options{})
		require.NoError(t, err)
		require.NoError(t, set.Close())
		require.Equal(t, frame.OK, r.Status, "verdict %d: %+v", verdicts, r.Faults)
		require.GreaterOrEqual(t, r.LastSeq, last)
		if r.LastSeq > last && set.Live {
			live++
			goOn()
		}
		last = r.LastSeq
	}
	sealed, err := filepath.Glob(path + frame.SegmentsSuffix + "/*")
	require.NoError(t, err)
	require.Greater(t, len(sealed), 3)
	require.Positive(t, live, "the log was seen to grow")
	t.Logf("%d verdicts, %d of them of a log that had grown; %d events in %d sealed segments", verdicts, live, last, len(sealed))
}

// TestFilesThatVanishUnderAVerifierCrashNothing: a file that is cut while it is
// read is no longer whole and is said to be; one that is removed can be read to
// its end by whoever has it open, and is missed the next time.
func TestFilesThatVanishUnderAVerifierCrashNothing(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(t *testing.T, path string)
		now  []frame.Status // of the verification that is under way
	}{
		"cut to half": {func(t *testing.T, path string) {
			st, err := os.Stat(path)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(path, st.Size()/2))
		}, []frame.Status{frame.Partial, frame.Corruption}},
		"cut to nothing": {func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) }, []frame.Status{frame.Partial, frame.Corruption}},
		"removed":        {func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) }, []frame.Status{frame.OK}},
	} {
		for _, where := range []string{"active", "sealed"} {
			t.Run(name+", "+where, func(t *testing.T) {
				path := largeLog(t)
				victim := path
				if where == "sealed" {
					sealed, err := filepath.Glob(path + frame.SegmentsSuffix + "/*")
					require.NoError(t, err)
					victim = sealed[len(sealed)-1]
				}
				set, err := frame.Discover(context.Background(), frame.OS{}, path)
				require.NoError(t, err)
				harmed := false
				r, err := frame.Verify(context.Background(), set, frame.Options{Workers: 1, Progress: func(int64, int64) {
					if !harmed {
						harmed = true
						c.harm(t, victim)
					}
				}})
				require.NoError(t, err)
				require.NoError(t, set.Close())
				require.True(t, harmed)
				require.Contains(t, c.now, r.Status, "%+v", r.Faults)
				again, err := Verify(context.Background(), Options{Path: path})
				require.NoError(t, err)
				require.Equal(t, frame.Corruption, again.Status, "the head knows more, and so does the chain")
			})
		}
	}
}

// largeLog is long enough that no verification has read it all when it tells its
// first progress: three sealed segments and an active one, of some MiB each.
func largeLog(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.wal")
	l, _ := mustOpen(t, Options{Path: path, SegmentBytes: 12 << 20})
	for l.Head().Segment < 2 || l.Head().Offset < 10<<20 {
		g := Group{}
		for range 8 {
			g.Drafts = append(g.Drafts, draft("n", 120<<10))
		}
		_, err := l.Append(context.Background(), g)
		require.NoError(t, err)
	}
	mustClose(t, l)
	return path
}
