package frame_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/frame"
)

const sector = 512

// powerCut gives a file as a power cut may leave it while b was being written
// at off and not yet synced: each 512-byte sector of the write is new, as it
// was, zero or garbage, and the file may not have been lengthened. Bytes that
// the write does not cover are unharmed.
func powerCut(t *rapid.T, before []byte, off int, b []byte) []byte {
	size := max(len(before), off+len(b))
	after := make([]byte, size)
	copy(after, before)
	for at := off; at < off+len(b); {
		end := min((at/sector+1)*sector, off+len(b))
		switch rapid.IntRange(0, 3).Draw(t, "sector") {
		case 0:
			copy(after[at:end], b[at-off:])
		case 1: // as it was
		case 2:
			clear(after[at:end])
		case 3:
			copy(after[at:end], rapid.SliceOfN(rapid.Byte(), end-at, end-at).Draw(t, "garbage"))
		}
		at = end
	}
	if rapid.Bool().Draw(t, "not lengthened") {
		return after[:max(len(before), rapid.IntRange(off, size).Draw(t, "length"))]
	}
	return after
}

func drawSizes(t *rapid.T) []int {
	return rapid.SliceOfN(rapid.IntRange(1, 1500), 1, 8).Draw(t, "sizes")
}

// Fault list 2 to 5: an honest crash is never called corruption, and takes
// nothing that was synced.
func TestPowerCutIsNeverCalledCorruption(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSample(t, "gate.example")
		for range rapid.IntRange(1, 3).Draw(rt, "batches") {
			s.batch(t, drawSizes(rt)...)
		}
		synced := len(s.ends) - 1
		end := s.ends[synced]
		before := append(clone(s.bytes), make([]byte, rapid.SampledFrom([]int{0, 100, 5000}).Draw(rt, "preallocated"))...)
		written := s.encode(t, drawSizes(rt)...)
		after := powerCut(rt, before, int(end), written)

		r := verify(t, set(after), s.anchor(frame.L1, synced))
		if r.Status == frame.Corruption {
			rt.Fatalf("an honest crash: %s", explain(r))
		}
		whole := len(after) >= int(end)+len(written) && string(after[end:int(end)+len(written)]) == string(written)
		switch {
		case whole && r.End.Offset != end+int64(len(written)):
			rt.Fatalf("the batch is whole, and ends at %d: %s", r.End.Offset, explain(r))
		case !whole && (r.End.Offset != end || r.End.Hash != s.last[synced]):
			rt.Fatalf("the batch is not whole, and the log ends at %d: %s", r.End.Offset, explain(r))
		case r.Status == frame.OK && r.Tail.Length != 0:
			rt.Fatalf("ok with a tail: %s", explain(r))
		case r.Status == frame.Partial && (r.Tail.Offset != end || r.Tail.Length == 0):
			rt.Fatalf("partial without a tail: %+v", r.Tail)
		}
	})
}

// Without syncs no batch vouches for anything, and any of them may be lost.
func TestPowerCutWithSyncOffIsNeverCalledCorruption(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSample(t, "gate.example")
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			start := len(s.bytes)
			s.batch(t, drawSizes(rt)...)
			require.NoError(t, frame.SealBatch(s.bytes[start:], frame.HeaderSize))
		}
		after := powerCut(rt, s.bytes[:frame.HeaderSize], frame.HeaderSize, s.bytes[frame.HeaderSize:])
		if r := verify(t, set(after)); r.Status == frame.Corruption {
			rt.Fatalf("an honest crash: %s", explain(r))
		}
	})
}

// A batch that was synced is another matter: later batches vouch for it.
func TestLostSectorOfASyncedBatchIsCorruption(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSample(t, "gate.example")
		for range rapid.IntRange(2, 5).Draw(rt, "batches") {
			s.batch(t, drawSizes(rt)...)
		}
		promised := int(s.starts[len(s.starts)-1])
		at := rapid.IntRange(frame.HeaderSize, promised-1).Draw(rt, "at")
		b := clone(s.bytes)
		end := min((at/sector+1)*sector, promised)
		clear(b[at:end])
		if string(b) == string(s.bytes) {
			return // the sector held zeros alone
		}
		if r := verify(t, set(b)); r.Status != frame.Corruption {
			rt.Fatalf("sector at %d: %s", at, explain(r))
		}
	})
}

// What a client writes may look like a frame. When the frame around it is lost
// in a crash, the text is found where a frame could be.
func TestTextThatLooksLikeAFrameNeitherAccusesNorHides(t *testing.T) {
	s := newSample(t, "gate.example").batch(t, 100)
	fake := frame.Append(nil, &frame.Frame{Seq: 9, Record: []byte("'; DROP TABLE audit; --")})
	require.NoError(t, frame.SealBatch(fake, uint64(s.ends[0])+8))

	prev := s.frames[0]
	record := append(make([]byte, 32), fake...)
	f := frame.Frame{Seq: 2, PreviousHash: prev.Hash, Record: record, Hash: frame.EventHash(2, prev.Hash, record)}
	batch := frame.Append(nil, &f)
	require.NoError(t, frame.SealBatch(batch, uint64(s.ends[0])))
	whole := append(clone(s.bytes), batch...)
	require.Equal(t, frame.OK, verify(t, set(whole)).Status)

	clear(whole[s.ends[0] : s.ends[0]+40])
	r := verify(t, set(whole))
	assert.Equal(t, []frame.Kind{frame.TornTail}, kinds(r), "a lost head: %s", explain(r))

	// The same text in front of a batch that vouches must not hide it.
	next := record
	g := frame.Frame{Seq: 3, PreviousHash: f.Hash, Record: next, Hash: frame.EventHash(3, f.Hash, next)}
	more := frame.Append(nil, &g)
	require.NoError(t, frame.SealBatch(more, uint64(len(whole))))
	r = verify(t, set(append(whole, more...)))
	assert.Equal(t, []frame.Kind{frame.DurablePromise}, kinds(r), explain(r))
}
