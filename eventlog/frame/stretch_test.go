package frame

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

// drawnRun is a run of frames of one segment that follow each other, but for
// what a later change of some field of one of them breaks.
func drawnRun(t *rapid.T) (data []byte, offs []int64) {
	seq, hash, off := uint64(1), sha256.Sum256(nil), int64(HeaderSize)
	durable, epoch := uint64(HeaderSize), uint32(0)
	for range rapid.IntRange(1, 6).Draw(t, "batches") {
		if rapid.Bool().Draw(t, "synced") {
			durable = uint64(off)
		}
		epoch += uint32(rapid.IntRange(0, 1).Draw(t, "epoch"))
		for left := rapid.IntRange(0, 4).Draw(t, "left"); left >= 0; left-- {
			record := []byte{byte(seq)}
			f := Frame{Seq: seq, DurableOff: durable, BatchLeft: uint16(left), Epoch: epoch, PreviousHash: hash, Hash: EventHash(seq, hash, record), Record: record}
			at := len(data)
			data = Append(data, &f)
			offs = append(offs, off)
			off += int64(len(data) - at)
			seq, hash = seq+1, f.Hash
		}
	}
	return data, offs
}

// drawnChange changes one field of one frame, without its sums: those are
// judged before.
func drawnChange(t *rapid.T, frame []byte) {
	n := int(binary.LittleEndian.Uint32(frame[offRecLen:]))
	at := rapid.SampledFrom([]int{offSeq, offDurable, offLeft, offFlagByte, offEpoch, HeadSize, recordAt + n}).Draw(t, "field")
	frame[at] += byte(rapid.IntRange(1, 255).Draw(t, "by"))
	frame[offFlagByte] &= FlagMore
}

// judgeEach takes frame by frame, as the judge does where it may not jump.
func judgeEach(c *chain, data []byte, off int64) (faults int) {
	for at := 0; at < len(data); {
		size := sizeAt(data, at)
		f := decode(data[at : at+size])
		if kind, _ := c.step(&f, off+int64(at)); kind != "" {
			faults++
		}
		c.count(&f, off+int64(at), off+int64(at+size), true)
		at += size
	}
	return faults
}

func TestAJumpEndsWhereEachFrameWouldLead(t *testing.T) {
	jumps, stays := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		data, offs := drawnRun(t)
		begin := func(i int) int { return int(offs[i] - offs[0]) }
		first := rapid.IntRange(0, len(offs)-1).Draw(t, "first")
		if rapid.Bool().Draw(t, "changed") {
			drawnChange(t, data[begin(rapid.IntRange(0, len(offs)-1).Draw(t, "which")):])
		}
		before := chain{segment: 3}
		before.enter(&Header{Segment: 3, FirstSeq: 1, PrevHash: sha256.Sum256(nil)}, [32]byte{})
		judgeEach(&before, data[:begin(first)], offs[0])

		piece := piece{off: offs[first], data: data[begin(first):]}
		for at := 0; at < len(piece.data) && !piece.run.broken; {
			size := sizeAt(piece.data, at)
			piece.run.add(piece.data[at:at+size], piece.off+int64(at))
			at += size
		}
		one := sizeAt(piece.data, 0)
		if judgeEach(&before, piece.data[:one], piece.off) > 0 {
			return // the judge then looks at each
		}
		each := before
		faults := judgeEach(&each, piece.data[one:], piece.off+int64(one))
		if (faults > 0) != piece.run.broken {
			t.Fatalf("%d faults, and the worker says broken: %v", faults, piece.run.broken)
		}
		if piece.run.broken {
			stays++
			return
		}
		jumps++
		ended := each.end != before.end
		if committed := before.jump(&piece.run); committed != ended {
			t.Fatalf("the jump says that a batch ended: %v; frame by frame: %v", committed, ended)
		}
		if before != each {
			t.Fatalf("jumped to %+v\nframe by frame %+v", before, each)
		}
	})
	if jumps < 20 || stays < 5 {
		t.Fatalf("%d jumps and %d refusals mean little", jumps, stays)
	}
}
