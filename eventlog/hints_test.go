package eventlog

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

// indexedLog makes a closed log whose first segment is sealed and has several
// points, and the tree over its events.
func indexedLog(t *testing.T) (mem *frametest.Mem, o Options, tree *checkpoint.Memory) {
	t.Helper()
	mem, tree = newMem(t), new(checkpoint.Memory)
	o = memOptions(mem)
	o.IndexPath, o.SegmentBytes = testIndex, 2<<20
	l, _ := mustOpen(t, o)
	for l.Head().Segment == 0 {
		mustAppend(t, l, numbered("n", 1000)...)
	}
	mustAppend(t, l, "last")
	growing := new(checkpoint.Tree)
	for e, err := range l.From(context.Background(), 1) {
		require.NoError(t, err)
		require.NoError(t, growing.Append(tree, e.Hash))
	}
	mustClose(t, l)
	return mem, o, tree
}

// vouch is what the projections answer.
func vouch(tree *checkpoint.Memory) func(uint64, [32]byte) bool {
	return func(seq uint64, hash [32]byte) bool {
		ok, err := checkpoint.HasLeaf(tree, seq, hash)
		return err == nil && ok
	}
}

// sealedBytes counts what is read of sealed segments.
func sealedBytes(under frame.FS, n *atomic.Int64) frame.FS {
	return frametest.Inject(under, func(op frametest.Op) error {
		if op.Kind == frametest.Pread && strings.HasPrefix(op.Name, testLog+frame.SegmentsSuffix) {
			n.Add(int64(op.Len))
		}
		return nil
	})
}

// rested opens a log and waits until the verification behind a start is over.
func rested(t *testing.T, o Options) *Log {
	t.Helper()
	l, _ := mustOpen(t, o)
	r, err := l.Verify(context.Background())
	require.NoError(t, err)
	require.Equal(t, frame.OK, r.Status)
	return l
}

// TestTheIndexFileSparesTheScanOfASealedSegment, if somebody vouches for what is
// found there; without that the whole segment is read.
func TestTheIndexFileSparesTheScanOfASealedSegment(t *testing.T) {
	mem, o, tree := indexedLog(t)
	size := int64(len(contentOf(t, mem, testLog+frame.SegmentsSuffix+"/"+sealedNames(t, mem)[0])))
	for name, c := range map[string]struct {
		vouches func(uint64, [32]byte) bool
		points  bool
		spared  bool
	}{
		"vouched for":      {vouch(tree), true, true},
		"nobody vouches":   {nil, true, false},
		"another tree":     {func(uint64, [32]byte) bool { return false }, true, false},
		"no point is near": {vouch(tree), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			var read atomic.Int64
			o := o
			o.FS = sealedBytes(mem, &read)
			kept := contentOf(t, mem, testIndex)
			if !c.points {
				require.NoError(t, mem.Remove(testIndex))
			}
			l := rested(t, o)
			l.VouchWith(c.vouches)
			read.Store(0)
			e, err := l.At(context.Background(), 3000)
			require.NoError(t, err)
			require.EqualValues(t, 3000, e.Seq)
			require.Equal(t, c.spared, read.Load() < size, "%d of %d bytes", read.Load(), size)
			mustClose(t, l)
			require.NoError(t, mem.WriteFile(testIndex, []byte(kept)))
		})
	}
}

// TestTheIndexFileKeepsItsPointsOverRestarts in which nobody reads the segments.
func TestTheIndexFileKeepsItsPointsOverRestarts(t *testing.T) {
	mem, o, _ := indexedLog(t)
	want := contentOf(t, mem, testIndex)
	require.Contains(t, want, "[2049,0,")
	for range 2 {
		mustClose(t, rested(t, o))
		require.Equal(t, want, contentOf(t, mem, testIndex))
	}
}

// TestNoIndexFileEverChangesAnAnswer: whatever its points are, each event that is
// asked for is given as the log has it.
func TestNoIndexFileEverChangesAnAnswer(t *testing.T) {
	mem, o, tree := indexedLog(t)
	good := contentOf(t, mem, testIndex)
	var honest indexFile
	require.NoError(t, json.Unmarshal([]byte(good), &honest))
	last := int64(honest.Segments[1].LastSeq)
	rapid.Check(t, func(r *rapid.T) {
		lie := honest
		lie.Points = nil
		for _, p := range honest.Points { // some are right, some are another's, some are anything
			switch rapid.IntRange(0, 3).Draw(r, "kind") {
			case 0:
			case 1:
				p[2] = rapid.SampledFrom(honest.Points).Draw(r, "other")[2]
			case 2:
				p[0] = rapid.Int64Range(-1, last+2).Draw(r, "seq")
			case 3:
				p[2] = rapid.Int64().Draw(r, "offset")
			}
			lie.Points = append(lie.Points, p)
		}
		b, err := lie.bytes()
		require.NoError(t, err)
		require.NoError(t, mem.WriteFile(testIndex, b))
		l, _ := mustOpen(t, o)
		l.VouchWith(vouch(tree))
		seq := rapid.Int64Range(1, last).Draw(r, "asked")
		e, err := l.At(context.Background(), uint64(seq))
		require.NoError(t, err)
		require.True(t, vouch(tree)(uint64(seq), e.Hash))
		mustClose(t, l)
	})
	for name, b := range map[string]string{
		"no JSON": "{", "empty": "", "another log": strings.Replace(good, honest.LogID, strings.Repeat("0", 32), 1), "another format": strings.Replace(good, "v1", "v2", 1),
	} {
		require.NoError(t, mem.WriteFile(testIndex, []byte(b)))
		l, _ := mustOpen(t, o)
		l.VouchWith(vouch(tree))
		require.Empty(t, l.segments[0].hints.points, name)
		e, err := l.At(context.Background(), 2050)
		require.NoError(t, err)
		require.EqualValues(t, 2050, e.Seq)
		mustClose(t, l)
	}
}

// forge makes a frame whose sums are right and that tells another story of an
// event, under the hash that belongs to it or under the event's own.
func forge(t *testing.T, like event.Envelope, ownHash bool) []byte {
	t.Helper()
	d := draft("forged", 20)
	record, err := event.Encode(nil, &d)
	require.NoError(t, err)
	f := frame.Frame{Seq: like.Seq, PreviousHash: like.PreviousHash, Record: record, Hash: frame.EventHash(like.Seq, like.PreviousHash, record)}
	if ownHash {
		f.Hash = like.Hash
	}
	b := frame.Append(nil, &f)
	frame.SealBatch(b, frame.HeaderSize)
	return b
}

// TestAFrameInsideARecordIsNotTakenForAnEvent: a client got bytes of its own
// making into the log, and the index file points there.
func TestAFrameInsideARecordIsNotTakenForAnEvent(t *testing.T) {
	for name, ownHash := range map[string]bool{"right in itself": false, "under the event's hash": true} {
		t.Run(name, func(t *testing.T) { frameInsideARecord(t, ownHash) })
	}
}

func frameInsideARecord(t *testing.T, ownHash bool) {
	mem := newMem(t)
	o := memOptions(mem)
	o.SegmentBytes = 256 << 10
	l, _ := mustOpen(t, o)
	mustAppend(t, l, numbered("n", 100)...)
	victim, err := l.At(context.Background(), 50)
	require.NoError(t, err)
	forged := forge(t, victim, ownHash)
	for pad := range frame.Align { // one of them lies where a frame can begin
		p := &event.PolicyCandidateCreated{PolicyVersion: "x@1.0.0", By: "eve", Document: append(make([]byte, pad), forged...)}
		_, err := l.Append(context.Background(), Group{Drafts: []event.Draft{event.New(testTime, event.Context{Actor: "eve"}, p)}})
		require.NoError(t, err)
	}
	for l.Head().Segment == 0 {
		mustAppend(t, l, numbered("n", 500)...)
	}
	tree, growing := new(checkpoint.Memory), new(checkpoint.Tree)
	for e, err := range l.From(context.Background(), 1) {
		require.NoError(t, err)
		require.NoError(t, growing.Append(tree, e.Hash))
	}
	id := l.LogID()
	mustClose(t, l)

	sealed := contentOf(t, mem, testLog+frame.SegmentsSuffix+"/"+sealedNames(t, mem)[0])
	at := strings.Index(sealed, string(forged))
	for at%frame.Align != 0 {
		at += 1 + strings.Index(sealed[at+1:], string(forged))
	}
	lie := indexFile{Format: indexFormat, LogID: hex.EncodeToString(id[:]), Points: [][3]int64{{50, 0, int64(at)}}}
	b, err := lie.bytes()
	require.NoError(t, err)
	require.NoError(t, mem.WriteFile(testIndex, b))
	o.IndexPath = testIndex
	l, _ = mustOpen(t, o)
	var asked [][32]byte
	l.VouchWith(func(seq uint64, hash [32]byte) bool {
		asked = append(asked, hash)
		return vouch(tree)(seq, hash)
	})
	e, err := l.At(context.Background(), 50)
	require.NoError(t, err)
	require.Equal(t, victim, e)
	require.NotContains(t, asked, victim.Hash, "the forged frame was looked at, and nothing else")
	require.Equal(t, ownHash, len(asked) == 0, "one that is not right in itself is not asked about")
}
