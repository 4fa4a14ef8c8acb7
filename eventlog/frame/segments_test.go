package frame_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

// chainOf is a log of four segments: three sealed, one active.
func chainOf(t testing.TB) []*sample {
	segs := []*sample{threeBatches(t)}
	for no := uint32(1); no <= 3; no++ {
		before := segs[no-1]
		h := before.header
		last := before.frames[len(before.frames)-1]
		h.Segment, h.FirstSeq, h.PrevHash = no, last.Seq+1, last.Hash
		segs = append(segs, newSegment(t, h).batch(t, 30, 30).batch(t, 60))
	}
	return segs
}

func (s *sample) lastSeq() uint64 { return s.frames[len(s.frames)-1].Seq }

func sealed(s *sample, b []byte) frame.Segment {
	first := s.header.FirstSeq
	return frame.Segment{
		Name: frame.SegmentName(s.header.Segment, first, s.lastSeq()), File: image(b), Size: int64(len(b)),
		Number: s.header.Segment, First: first, Last: s.lastSeq(),
	}
}

func wholeSet(segs []*sample) frame.Set {
	last := segs[len(segs)-1]
	s := set(last.bytes)
	s.Whole = true
	s.Head = &frame.Head{LogID: last.header.LogID, Seq: last.lastSeq(), EventHash: last.last[len(last.last)-1], Segment: last.header.Segment, EndOff: uint64(len(last.bytes))}
	for _, seg := range segs[:len(segs)-1] {
		s.Sealed = append(s.Sealed, sealed(seg, seg.bytes))
	}
	return s
}

func TestChainRunsAcrossSegments(t *testing.T) {
	segs := chainOf(t)
	r := verify(t, wholeSet(segs))
	require.Equal(t, frame.OK, r.Status, explain(r))
	assert.Equal(t, []uint64{1, 15, 15}, []uint64{r.FirstSeq, r.LastSeq, r.EventCount})
	assert.Equal(t, uint32(3), r.Head.Segment)
	assert.Equal(t, frame.L1, r.AnchorLevel)

	// Where the file could not be cut to its length, zeros stay.
	s := wholeSet(segs)
	s.Sealed[1] = sealed(segs[1], append(clone(segs[1].bytes), make([]byte, 5000)...))
	assert.Equal(t, frame.OK, verify(t, s).Status)
}

func TestEveryFlippedBitOfASealedSegmentIsCorruption(t *testing.T) {
	segs := chainOf(t)
	for bit := range len(segs[1].bytes) * 8 {
		if bit/8 >= 200 && bit/8 < 4000 && bit%8 > 0 {
			continue // the zeros of the header are covered for segment 0, bit by bit
		}
		s := wholeSet(segs)
		s.Sealed[1] = sealed(segs[1], flip(segs[1].bytes, bit))
		if r := verify(t, s); r.Status != frame.Corruption {
			t.Fatalf("bit %d of byte %d: %s", bit%8, bit/8, explain(r))
		}
	}
}

func TestEveryCutOfASealedSegmentIsCorruption(t *testing.T) {
	segs := chainOf(t)
	for n := range len(segs[1].bytes) {
		s := wholeSet(segs)
		s.Sealed[1] = sealed(segs[1], segs[1].bytes[:n])
		if r := verify(t, s); r.Status != frame.Corruption {
			t.Fatalf("cut at %d: %s", n, explain(r))
		}
	}
}

// Fault list 25 for the later segments.
func TestHeaderByteOfALaterSegmentIsForced(t *testing.T) {
	segs := chainOf(t)
	for no := 1; no <= 3; no++ {
		for at := range 4056 {
			if at >= 200 && at%50 != 0 {
				continue // all zeros, and refused alike
			}
			b := clone(segs[no].bytes)
			b[at] ^= 0x01
			fixHeader(b)
			s := wholeSet(segs)
			if no == 3 {
				s.Active.File = image(b)
			} else {
				s.Sealed[no] = sealed(segs[no], b)
			}
			r := verify(t, s)
			require.Equal(t, frame.Corruption, r.Status, "segment %d byte %d: %s", no, at, explain(r))
			require.Equal(t, frame.BadHeader, r.Faults[0].Kind, "segment %d byte %d: %s", no, at, explain(r))
		}
	}
}

// Fault list 26.
func TestSegmentsMissingRenamedOrTwice(t *testing.T) {
	segs := chainOf(t)
	for name, edit := range map[string]func(s *frame.Set){
		"first missing":  func(s *frame.Set) { s.Sealed = s.Sealed[1:] },
		"middle missing": func(s *frame.Set) { s.Sealed = slices.Delete(s.Sealed, 1, 2) },
		"last missing":   func(s *frame.Set) { s.Sealed = s.Sealed[:2] },
		"all missing":    func(s *frame.Set) { s.Sealed = nil },
		"renamed number": func(s *frame.Set) { s.Sealed[2].Number = 7 },
		"renamed first":  func(s *frame.Set) { s.Sealed[1].First-- },
		"renamed last":   func(s *frame.Set) { s.Sealed[1].Last++ },
		"twice":          func(s *frame.Set) { s.Sealed = slices.Insert(s.Sealed, 1, s.Sealed[1]) },
		"active twice":   func(s *frame.Set) { s.Active = s.Sealed[2]; s.Head = nil },
		"vanished":       func(s *frame.Set) { s.Sealed[1].File = nil; s.Sealed[1].Err = errNotExist },
		"exchanged":      func(s *frame.Set) { s.Sealed[1].File, s.Sealed[2].File = s.Sealed[2].File, s.Sealed[1].File },
		"short by a batch": func(s *frame.Set) {
			b := segs[1].bytes[:segs[1].ends[0]]
			s.Sealed[1] = sealed(segs[1], b)
		},
		"garbage at its end": func(s *frame.Set) {
			s.Sealed[1] = sealed(segs[1], append(clone(segs[1].bytes), "garbage"...))
		},
	} {
		s := wholeSet(segs)
		edit(&s)
		r := verify(t, s)
		require.Equal(t, frame.Corruption, r.Status, "%s: %s", name, explain(r))
		assert.Equal(t, frame.SealedSegment, r.Faults[0].Kind, "%s: %s", name, explain(r))
		for _, k := range kinds(r)[1:] {
			assert.Equal(t, frame.SealedSegment, k, "%s: %s", name, explain(r))
		}
		if name == "first missing" || name == "all missing" {
			assert.Zero(t, r.VerifiedTo, "%s: of what comes before it nobody knows", name)
		}
	}
}

func TestSealedSegmentThatEndsInsideABatch(t *testing.T) {
	segs, longer := chainOf(t), chainOf(t)[1]
	rest := longer.encode(t, 70, 70)
	s := wholeSet(segs)
	s.Sealed[1] = sealed(segs[1], append(clone(segs[1].bytes), rest[:len(rest)/2]...))
	r := verify(t, s)
	assert.Equal(t, []frame.Kind{frame.SealedSegment}, kinds(r), explain(r))
	assert.Equal(t, frame.Corruption, r.Status)
}

func TestActiveSegmentMissing(t *testing.T) {
	segs := chainOf(t)
	s := wholeSet(segs)
	s.Active = frame.Segment{Name: "audit.wal"}
	r := verify(t, s)
	assert.Equal(t, []frame.Kind{frame.MissingLog, frame.AnchorBeyondEnd}, kinds(r), explain(r))
	assert.Equal(t, frame.Corruption, r.Status)

	// A rotation that lost power after it moved the segment: the head knows
	// nothing beyond it.
	last := segs[2]
	s.Head = &frame.Head{LogID: last.header.LogID, Seq: last.lastSeq(), EventHash: last.last[1], Segment: 2, EndOff: uint64(len(last.bytes))}
	r = verify(t, s)
	assert.Equal(t, []frame.Kind{frame.MissingLog}, kinds(r), explain(r))
	assert.Equal(t, frame.Partial, r.Status, "a crash can do that")
	assert.Equal(t, uint64(12), r.End.Seq)
}

func TestLoneLaterSegmentIsRangeLimited(t *testing.T) {
	segs := chainOf(t)
	r := verify(t, set(segs[2].bytes))
	assert.Equal(t, frame.Partial, r.Status)
	assert.Equal(t, []frame.Kind{frame.RangeLimited}, kinds(r), explain(r))
	assert.Equal(t, []uint64{10, 12, 3}, []uint64{r.FirstSeq, r.LastSeq, r.EventCount})
	assert.Equal(t, frame.NotRun, r.Check(frame.CheckStart).Status)
}

func TestSegmentOfAnotherLogIsRefused(t *testing.T) {
	segs := chainOf(t)
	h := segs[1].header
	h.LogID[0] ^= 1
	s := wholeSet(segs)
	s.Sealed[1] = sealed(segs[1], newSegment(t, h).batch(t, 30, 30).batch(t, 60).bytes)
	r := verify(t, s)
	assert.Equal(t, []frame.Kind{frame.BadHeader}, kinds(r), explain(r))
}

func TestSegmentNames(t *testing.T) {
	name := frame.SegmentName(7, 12, 345)
	assert.Equal(t, "000007-00000000000000000012-00000000000000000345.wal", name)
	no, first, last, ok := frame.ParseSegmentName(name)
	assert.True(t, ok)
	assert.Equal(t, []uint64{7, 12, 345}, []uint64{uint64(no), first, last})
	_, _, _, ok = frame.ParseSegmentName(frame.SegmentName(frame.MaxSealed, 1, math.MaxUint64))
	assert.True(t, ok)
	for _, bad := range []string{"", "7-12-345.wal", frame.SegmentName(frame.MaxSealed+1, 12, 345), "000000-99999999999999999999-00000000000000000105.wal", name + "x", "x" + name, "+00007-00000000000000000012-00000000000000000345.wal", name[:len(name)-4]} {
		_, _, _, ok := frame.ParseSegmentName(bad)
		assert.False(t, ok, bad)
	}
}
