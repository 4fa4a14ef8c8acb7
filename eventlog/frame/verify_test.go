package frame_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/frame"
)

func TestWholeLogIsOk(t *testing.T) {
	s := threeBatches(t)
	r := verify(t, set(s.bytes), s.anchor(frame.L2, 2))
	require.Equal(t, frame.OK, r.Status, explain(r))
	assert.Equal(t, uint64(1), r.FirstSeq)
	assert.Equal(t, uint64(6), r.LastSeq)
	assert.Equal(t, uint64(6), r.EventCount)
	assert.Equal(t, uint64(6), r.VerifiedTo)
	assert.Equal(t, frame.L2, r.AnchorLevel)
	assert.Equal(t, int64(len(s.bytes)), r.Head.EndOffset)
	assert.Equal(t, frame.End{Seq: 6, Hash: s.last[2], Offset: s.ends[2], BatchOff: s.starts[2], DurableOff: uint64(s.starts[2])}, r.End)
	for _, c := range r.Checks {
		assert.Equal(t, frame.Pass, c.Status, c.Name)
	}
}

// Fault list 16: every bit of a three-batch log, one at a time. What a later
// batch vouches for is corruption; the last batch, for which nothing vouches
// without an anchor, is at best an unfinished write.
func TestEveryFlippedBitIsReported(t *testing.T) {
	s := threeBatches(t)
	for bit := range len(s.bytes) * 8 {
		damaged := set(flip(s.bytes, bit))
		r := verify(t, damaged)
		want := frame.Corruption
		if int64(bit/8) >= s.starts[2] {
			want = frame.Partial
		}
		if r.Status != want {
			t.Fatalf("bit %d of byte %d: want %s, got %s", bit%8, bit/8, want, explain(r))
		}
		if r = verify(t, damaged, s.anchor(frame.L1, 2)); r.Status != frame.Corruption {
			t.Fatalf("bit %d of byte %d, anchored: %s", bit%8, bit/8, explain(r))
		}
	}
}

// Fault list 18: cut at every byte.
func TestEveryCutIsReportedWhereItCanBe(t *testing.T) {
	s := threeBatches(t)
	anchored := s.anchor(frame.L3, 2)
	for n := range len(s.bytes) {
		r := verify(t, set(s.bytes[:n]))
		want := frame.Partial
		switch {
		case n == 0:
		case n < frame.HeaderSize:
			want = frame.Corruption
		case n == frame.HeaderSize || contains(s.ends, int64(n)):
			want = frame.OK
		}
		if r.Status != want {
			t.Fatalf("cut at %d: want %s, got %s", n, want, explain(r))
		}
		if r = verify(t, set(s.bytes[:n]), anchored); r.Status != frame.Corruption {
			t.Fatalf("cut at %d, anchored: %s", n, explain(r))
		}
	}
}

func contains(offs []int64, off int64) bool {
	for _, o := range offs {
		if o == off {
			return true
		}
	}
	return false
}

func TestVerifyIsTheSameWithAnyNumberOfWorkers(t *testing.T) {
	s := newSample(t, "gate.example")
	for i := range 300 {
		s.batch(t, 100+i, 20000, 3)
	}
	damaged := flip(s.bytes, int(s.starts[150]+200)*8)
	var first frame.Report
	for _, workers := range []int{1, 2, 7} {
		r, err := frame.Verify(context.Background(), set(damaged), frame.Options{Workers: workers})
		require.NoError(t, err)
		r.StartedAt, r.DurationMS = "", 0
		if workers == 1 {
			first = r
			require.Equal(t, []frame.Kind{frame.DurablePromise}, kinds(r), explain(r))
			assert.Contains(t, r.Faults[0].Detail, "one flipped bit")
			continue
		}
		assert.Equal(t, first.Faults, r.Faults)
		assert.Equal(t, first.Head, r.Head)
		assert.Equal(t, first.EventCount, r.EventCount)
	}
}
