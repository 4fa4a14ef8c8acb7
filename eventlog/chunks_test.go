package eventlog

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

// onlyRoom has one chunk, which is filled again and again.
func onlyRoom() func() *Chunk {
	c := new(Chunk)
	return func() *Chunk { return c }
}

// given is what a reader got of a log: its events as text, and how it ended.
type given struct {
	events []string
	err    string
}

// text is all of an event. Its own texts are not copied: they are kept, as a
// reader may keep them.
func text(e *event.Envelope) string { return string(event.AppendJSON(nil, e)) + fmt.Sprint(e.Hash) }

func fromOf(ctx context.Context, l *Log, seq uint64) (g given) {
	for e, err := range l.From(ctx, seq) {
		if err != nil {
			g.err = err.Error()
			break
		}
		g.events = append(g.events, text(&e))
	}
	return g
}

func chunksOf(t testing.TB, ctx context.Context, l *Log, seq uint64) (g given) {
	t.Helper()
	var contexts, copies []event.Context
	for c, err := range l.Chunks(ctx, seq, onlyRoom()) {
		require.Empty(t, g.err, "nothing follows an error")
		if err != nil {
			require.Nil(t, c)
			g.err = err.Error()
			continue
		}
		require.NotEmpty(t, c.Events)
		require.LessOrEqual(t, len(c.Events), chunkEvents)
		for i := range c.Events {
			e := &c.Events[i]
			g.events = append(g.events, text(e))
			contexts, copies = append(contexts, e.Context), append(copies, copyOf(e.Context))
		}
	}
	require.Equal(t, copies, contexts, "texts outlast their chunk")
	return g
}

// copyOf shares no memory with c.
func copyOf(c event.Context) event.Context {
	for v, i := reflect.ValueOf(&c).Elem(), 0; i < v.NumField(); i++ {
		v.Field(i).SetString(strings.Clone(v.Field(i).String()))
	}
	return c
}

func TestChunksGiveWhatFromGivesFromAnyEventOn(t *testing.T) {
	mem := newMem(t)
	o := memOptions(mem)
	o.SegmentBytes = 100 << 10
	l, _ := mustOpen(t, o)
	for i := 0; l.Head().Segment < 3; i++ {
		mustAppend(t, l, numbered(fmt.Sprint(i, "/"), 1+i%90)...)
		settled(l)
	}
	for _, size := range []int{chunkBytes / 3, chunkBytes / 2, 3 * chunkBytes, 20} {
		_, err := l.Append(context.Background(), Group{Drafts: []event.Draft{draft("large", size), draft("small", 0)}})
		require.NoError(t, err)
	}
	last := l.Head().Seq
	require.Greater(t, last, uint64(5*chunkEvents))
	for _, seq := range []uint64{0, 1, 2, chunkEvents, chunkEvents + 1, chunkEvents + 2, last / 2, last - 1, last, last + 1} {
		want := fromOf(t.Context(), l, seq)
		require.Empty(t, want.err)
		require.Len(t, want.events, int(last+1-max(seq, 1)))
		require.Equal(t, want, chunksOf(t, t.Context(), l, seq), "from %d", seq)
	}
}

// rewrite changes a frame in the file and gives it right sums, as only somebody
// who means to can.
func rewrite(t *testing.T, mem *frametest.Mem, seq uint64, how func(*frame.Frame)) {
	t.Helper()
	f, err := mem.Open(testLog, frame.ReadWrite)
	require.NoError(t, err)
	off := startOf(t, mem, seq)
	old, size, err := frame.ReadFrameAt(f, off, off+frame.MaxFrame)
	require.NoError(t, err)
	old.Record = slices.Clone(old.Record)
	how(&old)
	b := frame.Append(nil, &old)
	require.Len(t, b, size)
	_, err = f.Pwrite(b, off)
	require.NoError(t, err)
}

// damages change an event in every way that the sums of its frame do not show.
var damages = map[string]func(*frame.Frame){
	"another record": func(f *frame.Frame) { f.Record[len(f.Record)-1] ^= 1 },
	"another hash":   func(f *frame.Frame) { f.Hash[7] ^= 1 },
	"another record and hash": func(f *frame.Frame) {
		f.Record[len(f.Record)-1] ^= 1
		f.Hash = frame.EventHash(f.Seq, f.PreviousHash, f.Record)
	},
	"no record of an event": func(f *frame.Frame) { f.Record[0] = 0xc0; f.Hash = frame.EventHash(f.Seq, f.PreviousHash, f.Record) },
	"no record, wrong hash": func(f *frame.Frame) { f.Record[0] = 0xc0 },
	"another predecessor": func(f *frame.Frame) {
		f.PreviousHash[0] ^= 1
		f.Hash = frame.EventHash(f.Seq, f.PreviousHash, f.Record)
	},
	"another number": func(f *frame.Frame) { f.Seq++; f.Hash = frame.EventHash(f.Seq, f.PreviousHash, f.Record) },
}

func TestChunksEndAtDamageWithTheEventsBeforeItAndTheErrorOfFrom(t *testing.T) {
	const last = 2*chunkEvents + 40
	mem := newMem(t)
	l, _ := mustOpen(t, memOptions(mem))
	mustAppend(t, l, numbered("n", last)...)
	whole := mem.Crash(100, 1)
	mustClose(t, l)
	for name, how := range damages {
		for _, at := range []uint64{1, 2, chunkEvents, chunkEvents + 1, last} {
			for _, more := range []uint64{0, 1, 5} {
				mem := whole.Crash(100, 1)
				l, _ := mustOpen(t, memOptions(mem))
				head := l.Head().Seq
				if rewrite(t, mem, at, how); more > 0 && at+more <= last {
					rewrite(t, mem, at+more, damages["no record of an event"])
				}
				for _, seq := range []uint64{1, at, at + 1} {
					want := fromOf(t.Context(), l, seq)
					require.Equal(t, want, chunksOf(t, t.Context(), l, seq), "%s at %d and %d, from %d", name, at, at+more, seq)
					if seq == 1 && (at < head || name != "another record and hash") {
						require.NotEmpty(t, want.err)
					}
				}
				l.Close(context.Background())
			}
		}
	}
}

func TestChunksEndWhereBytesAreNoFrame(t *testing.T) {
	mem := newMem(t)
	l, _ := mustOpen(t, memOptions(mem))
	mustAppend(t, l, numbered("n", chunkEvents+9)...)
	for _, at := range []uint64{chunkEvents + 5, 40, 1} {
		change(t, mem, startOf(t, mem, at)+60, 4)
		got := chunksOf(t, t.Context(), l, 1)
		require.Len(t, got.events, int(at-1))
		require.Equal(t, fromOf(t.Context(), l, 1), got)
		require.Contains(t, got.err, ErrCorrupt.Error())
	}
}

func TestDamageIsToldWithItsSegment(t *testing.T) {
	mem, _ := segmented(t)
	l, _ := mustOpen(t, rotating(mem))
	require.Positive(t, l.active.first)
	rewrite(t, mem, l.active.first+1, damages["another hash"])
	got := chunksOf(t, t.Context(), l, 1)
	require.Equal(t, fromOf(t.Context(), l, 1), got)
	require.Contains(t, got.err, "of segment 3 ")
}

func TestChunksEndWithTheirReaderAndWithItsContext(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	mustAppend(t, l, numbered("n", 3*chunkEvents)...)
	for range l.Chunks(t.Context(), 1, onlyRoom()) {
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	next, stop := iter.Pull2(l.Chunks(ctx, 1, onlyRoom()))
	defer stop()
	c, err, ok := next()
	require.True(t, ok)
	require.NoError(t, err)
	require.Len(t, c.Events, chunkEvents)
	cancel()
	for err == nil && ok { // what was read already may come first
		_, err, ok = next()
	}
	require.ErrorIs(t, err, context.Canceled)
	_, _, ok = next()
	require.False(t, ok)
}

func TestAChunkIsUsedAgainAndGivesBackWhatLargeRecordsTook(t *testing.T) {
	l, _ := mustOpen(t, memOptions(newMem(t)))
	_, err := l.Append(context.Background(), Group{Drafts: []event.Draft{draft("large", 3*chunkKept/2)}})
	require.NoError(t, err)
	for range 10 {
		mustAppend(t, l, numbered("n", chunkEvents)...)
	}
	chunk, n := new(Chunk), 0
	for c, err := range l.Chunks(t.Context(), 1, func() *Chunk { return chunk }) {
		require.NoError(t, err)
		require.Same(t, chunk, c)
		if n++; n > 1 {
			require.LessOrEqual(t, cap(c.records), chunkKept)
		}
	}
	require.Greater(t, n, 9)
}
