package eventlog

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

const testIndex = "/log/audit_index_v1.json"

func TestTheIndexFileNamesEveryThousandTwentyFourthEvent(t *testing.T) {
	mem := newMem(t)
	o := memOptions(mem)
	o.IndexPath = testIndex
	l, _ := mustOpen(t, o)
	for range 3 {
		mustAppend(t, l, numbered("n", 1000)...)
	}
	id := l.LogID()
	mustClose(t, l)
	for range 2 { // a second run writes the same points from what it read
		b, err := mem.ReadFile(testIndex)
		require.NoError(t, err)
		var file indexFile
		require.NoError(t, json.Unmarshal(b, &file))
		require.Equal(t, "gate.audit_index.v1", file.Format)
		require.Equal(t, hex.EncodeToString(id[:]), file.LogID)
		require.Equal(t, []indexedSegment{{File: "audit.wal", FirstSeq: 1, LastSeq: 3000}}, file.Segments)
		require.Len(t, file.Points, 3)
		f, err := mem.Open(testLog, frame.ReadOnly)
		require.NoError(t, err)
		for i, p := range file.Points {
			at, _, err := frame.ReadFrameAt(f, p[2], 1<<40)
			require.NoError(t, err)
			require.EqualValues(t, 1+1024*i, at.Seq)
			require.EqualValues(t, p[0], at.Seq)
		}
		require.NoError(t, mem.Remove(testIndex))
		l, _ = mustOpen(t, o)
		mustClose(t, l)
	}
}

func TestAnIndexFileIsNeverBelieved(t *testing.T) {
	mem := newMem(t)
	o := memOptions(mem)
	o.IndexPath = testIndex
	l, _ := mustOpen(t, o)
	for range 3 {
		mustAppend(t, l, numbered("n", 1000)...)
	}
	id := l.LogID()
	mustClose(t, l)
	lie, err := json.Marshal(indexFile{Format: indexFormat, LogID: hex.EncodeToString(id[:]), Points: [][3]int64{{1, 0, 9000}, {1025, 0, 4096}}})
	require.NoError(t, err)
	for _, b := range [][]byte{lie, nil, []byte("{"), make([]byte, 1000)} {
		require.NoError(t, mem.WriteFile(testIndex, b))
		l, _ := mustOpen(t, o)
		for _, seq := range []uint64{1, 2, 1024, 1025, 1026, 2999, 3000} {
			e, err := l.At(context.Background(), seq)
			require.NoError(t, err)
			require.Equal(t, seq, e.Seq)
		}
		mustClose(t, l)
	}
}

// dense makes a log with small events between large ones, all in a sealed segment but
// the last, and counts what is read of its files.
func dense(t *testing.T) (o Options, read *atomic.Int64, small []uint64) {
	t.Helper()
	read = new(atomic.Int64)
	o = memOptions(readBytes(newMem(t), read))
	o.SegmentBytes = denseLarge * 12
	l, _ := mustOpen(t, o)
	for i := 0; l.Head().Segment == 0; i++ {
		g := group(numbered("s", i%5)...) // from none to four in a row
		g.Drafts = append(g.Drafts, draft("large", denseLarge))
		c, err := l.Append(context.Background(), g)
		require.NoError(t, err)
		for seq := c.First; seq < c.Last; seq++ {
			small = append(small, seq)
		}
	}
	mustAppend(t, l, "behind")
	mustClose(t, l)
	return o, read, small
}

const denseLarge = 700 << 10

// readBytes counts what is read of all files.
func readBytes(under frame.FS, n *atomic.Int64) frame.FS {
	return frametest.Inject(under, func(op frametest.Op) error {
		if op.Kind == frametest.Pread {
			n.Add(int64(op.Len))
		}
		return nil
	})
}

// TestASmallEventIsReadWithoutTheLargeOnesBesideIt: the index has points by bytes.
func TestASmallEventIsReadWithoutTheLargeOnesBesideIt(t *testing.T) {
	look := func(t *testing.T, l *Log, read *atomic.Int64, seqs []uint64) {
		t.Helper()
		for _, seq := range seqs {
			read.Store(0)
			e, told, err := l.AtCost(context.Background(), seq)
			require.NoError(t, err)
			require.Equal(t, seq, e.Seq)
			require.Less(t, read.Load(), int64(64<<10), "event %d", seq)
			require.Less(t, told, int64(64<<10))
			require.Positive(t, told)
		}
	}
	t.Run("as it was written, sealed meanwhile and not", func(t *testing.T) {
		var read atomic.Int64
		o := memOptions(readBytes(newMem(t), &read))
		o.SegmentBytes = denseLarge * 3
		l, _ := mustOpen(t, o)
		for range 8 {
			c, err := l.Append(context.Background(), Group{Drafts: []event.Draft{draft("large", denseLarge), draft("small", 20), draft("large", denseLarge), draft("small", 20)}})
			require.NoError(t, err)
			look(t, l, &read, []uint64{c.First + 1, c.Last})
		}
		require.Greater(t, l.Head().Segment, uint32(1))
		for seq := uint64(2); seq <= l.Head().Seq; seq += 2 {
			look(t, l, &read, []uint64{seq})
		}
	})
	t.Run("of an active segment that was opened again", func(t *testing.T) {
		var read atomic.Int64
		mem := newMem(t)
		o := memOptions(mem)
		l, _ := mustOpen(t, o)
		for range 8 {
			_, err := l.Append(context.Background(), Group{Drafts: []event.Draft{draft("large", denseLarge), draft("small", 20)}})
			require.NoError(t, err)
		}
		mustClose(t, l)
		o.FS = readBytes(mem, &read)
		look(t, rested(t, o), &read, []uint64{2, 4, 6, 8, 10, 12, 14, 16})
	})
	t.Run("of a sealed segment that was walked", func(t *testing.T) {
		o, read, small := dense(t)
		l := rested(t, o)
		_, told, err := l.AtCost(context.Background(), small[0])
		require.NoError(t, err)
		require.Greater(t, told, int64(denseLarge*12), "the walk is told")
		look(t, l, read, small)
	})
	t.Run("after a rebuild", func(t *testing.T) {
		o, read, small := dense(t)
		l := rested(t, o)
		_, err := l.RebuildIndex(context.Background(), testIndex, nil)
		require.NoError(t, err)
		look(t, l, read, small)
	})
}

// TestTheIndexFileHasPointsByBytes, so that one look into a segment of an earlier run
// does not walk it; after many looks the walk is the lesser work.
func TestTheIndexFileHasPointsByBytes(t *testing.T) {
	o, read, small := dense(t)
	o.IndexPath = testIndex
	l := rested(t, o)
	_, err := l.At(context.Background(), small[0]) // it is walked, and the file written
	require.NoError(t, err)
	tree, growing := new(checkpoint.Memory), new(checkpoint.Tree)
	for e, err := range l.From(context.Background(), 1) {
		require.NoError(t, err)
		require.NoError(t, growing.Append(tree, e.Hash))
	}
	size := l.segments[0].size
	mustClose(t, l)

	l = rested(t, o)
	l.VouchWith(vouch(tree))
	total := int64(0)
	for i := range 100 {
		seq := small[i%len(small)]
		read.Store(0)
		e, told, err := l.AtCost(context.Background(), seq)
		require.NoError(t, err)
		require.Equal(t, seq, e.Seq)
		if total <= size {
			require.Less(t, told, int64(3<<20), "look %d", i)
		}
		total += told
	}
	require.Greater(t, total, size)
	require.Less(t, total, 3*size)
}

// TestALookIntoTheLogEndsWithItsRequest, also while it walks a segment.
func TestALookIntoTheLogEndsWithItsRequest(t *testing.T) {
	o, read, small := dense(t)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var asked atomic.Bool
	o.FS = frametest.Inject(o.FS, func(op frametest.Op) error {
		if asked.Load() && read.Load() > 2<<20 {
			leave()
		}
		return nil
	})
	l := rested(t, o)
	read.Store(0)
	asked.Store(true)
	_, err := l.At(ctx, small[len(small)/2])
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrCorrupt)
	require.Less(t, read.Load(), int64(5<<20))
	read.Store(0)
	_, err = l.At(ctx, l.Head().Seq)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, read.Load())
}

// A setting may name a file that somebody needs.
func TestAFileInThePlaceOfTheIndexIsKept(t *testing.T) {
	mem := newMem(t)
	o := memOptions(mem)
	o.IndexPath = testIndex
	require.NoError(t, mem.WriteFile(testIndex, []byte("precious\n")))
	l, _ := mustOpen(t, o)
	mustAppend(t, l, numbered("n", 10)...)
	mustClose(t, l)
	names, err := mem.List(filepath.Dir(testIndex))
	require.NoError(t, err)
	i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, filepath.Base(testIndex)+".disagrees-") })
	require.GreaterOrEqual(t, i, 0, names)
	kept, err := mem.ReadFile(filepath.Join(filepath.Dir(testIndex), names[i]))
	require.NoError(t, err)
	require.Equal(t, "precious\n", string(kept))
}
