package frame_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

func numbers(t *testing.T, s *frame.Set, last uint64) (seqs []uint64) {
	t.Helper()
	for f, err := range s.Frames(context.Background(), last) {
		require.NoError(t, err)
		require.True(t, f.Intact())
		seqs = append(seqs, f.Seq)
	}
	return seqs
}

func TestFramesRunAcrossSegmentsUpToTheLastAskedFor(t *testing.T) {
	s := wholeSet(chainOf(t))
	all := numbers(t, &s, 15)
	require.Len(t, all, 15)
	for i, seq := range all {
		require.Equal(t, uint64(i+1), seq)
	}
	for last := range uint64(15) {
		require.Equal(t, append([]uint64(nil), all[:last]...), numbers(t, &s, last))
	}
	require.Equal(t, all, numbers(t, &s, 99), "there are no more")
}

// flipped is the whole set with one bit of a segment changed.
func flipped(segs []*sample, no, bit int) frame.Set {
	s := wholeSet(segs)
	damaged := image(flip(segs[no].bytes, bit))
	if no == len(segs)-1 {
		s.Active.File = damaged
	} else {
		s.Sealed[no].File = damaged
	}
	return s
}

// What a verification vouches for can be read, wherever the log is damaged.
func TestFramesUpToTheVerifiedEventMeetNoDamage(t *testing.T) {
	segs := chainOf(t)
	for no, seg := range segs {
		for bit := 0; bit < len(seg.bytes)*8; bit += 509 {
			s := flipped(segs, no, bit)
			r := verify(t, s)
			require.Len(t, numbers(t, &s, r.VerifiedTo), int(r.VerifiedTo), "segment %d, bit %d: %s", no, bit, explain(r))
		}
	}
}

func TestFramesOfALogThatIsNotThereAreNone(t *testing.T) {
	s := frame.Set{}
	require.Empty(t, numbers(t, &s, 5))
}

func TestFramesEndWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s := wholeSet(chainOf(t))
	for _, err := range s.Frames(ctx, 15) {
		require.ErrorIs(t, err, context.Canceled)
	}
}

// Hashes go as far as nothing is wrong, and no further than the last batch that is complete.
func TestHashesEndWhereTheLogDoes(t *testing.T) {
	count := func(s *frame.Set) (n uint64) {
		for seq := range s.Hashes(t.Context(), 99) {
			require.Equal(t, n+1, seq)
			n = seq
		}
		return n
	}
	segs := chainOf(t)
	whole := wholeSet(segs)
	require.EqualValues(t, 15, count(&whole))
	for last := range uint64(15) {
		n := uint64(0)
		for n = range whole.Hashes(t.Context(), last) {
		}
		require.Equal(t, last, n)
	}
	for no, seg := range segs {
		for bit := frame.HeaderSize * 8; bit < len(seg.bytes)*8; bit += 509 {
			s := flipped(segs, no, bit)
			r := verify(t, s)
			require.LessOrEqual(t, count(&s), r.LastSeq, "segment %d, bit %d: %s", no, bit, explain(r))
		}
	}
	active := segs[len(segs)-1]
	for end := frame.HeaderSize; end <= len(active.bytes); end += 8 { // cut anywhere: batches of several frames too
		s := wholeSet(segs)
		s.Active.File, s.Head = image(active.bytes[:end]), nil
		r := verify(t, s)
		require.Equal(t, r.LastSeq, count(&s), "cut at %d: %s", end, explain(r))
	}
}
