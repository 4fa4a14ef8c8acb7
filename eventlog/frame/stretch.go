package frame

import (
	"bytes"
	"encoding/binary"
)

// A stretch is what a worker finds out about the frames of a piece beside their
// sums and hashes: that each follows from the one before, and where the last
// one leaves the chain. It is relative to the first frame, of which only the
// judge can say whether it follows from the piece before.
type stretch struct {
	broken bool // some frame does not follow: the judge looks at each
	some   bool // the first frame was seen

	order
	head Frame  // of the last frame, without its hashes and record
	hash []byte // its event_hash, in place
	end  int64  // where it ends

	pending uint64 // frames after the first one, of the batch not completed
	counted uint64 // the same of completed batches
	began   bool   // a batch began after the first frame

	// Of the last batch completed: whether it began after the first frame and
	// where, and the head, event_hash and end of its last frame.
	whole    bool
	begin    int64
	last     Frame
	lastHash []byte
	lastEnd  int64
}

// add takes the next frame, of which the bytes and the hash are right.
func (s *stretch) add(b []byte, off int64) {
	n := int(binary.LittleEndian.Uint32(b[offRecLen:]))
	before := s.head.Seq
	s.head.decodeHead(b)
	if s.some {
		follows := s.head.Seq == before+1 && s.head.Seq > 0 && bytes.Equal(b[HeadSize:recordAt], s.hash)
		if !follows || s.rule(&s.head, off) != "" {
			s.broken = true
			return
		}
		s.began = s.began || !s.open
		s.pending++
	}
	s.follow(&s.head, off)
	s.hash, s.end = b[recordAt+n:recordAt+n+hashLen], off+int64(len(b))
	if s.head.BatchLeft == 0 {
		s.close()
	}
	s.some = true
}

// close ends the batch at the last frame.
func (s *stretch) close() {
	s.open = false
	if !s.some { // the judge has closed that batch
		return
	}
	s.counted, s.pending = s.counted+s.pending, 0
	s.whole, s.begin, s.last, s.lastHash, s.lastEnd = s.began, s.start, s.head, s.hash, s.end
}

// jump goes from the first frame of a stretch, which the chain has taken, to
// its last one. It is true where that completes a batch.
//
// The batch of the first frame may have begun before the stretch. What a later
// frame of it must obey, its durable_off, is the first one's, so nothing was
// left unjudged by not knowing where.
func (c *chain) jump(s *stretch) (committed bool) {
	c.seq, c.hash = s.head.Seq, [32]byte(s.hash)
	if s.counted > 0 {
		c.closeAt(s)
	}
	if s.pending > 0 {
		c.pending = run{n: c.pending.n + s.pending, seq: c.seq, hash: c.hash, end: s.end}
	}
	start := c.start
	if c.order = s.order; !s.began {
		c.start = start
	}
	return s.counted > 0
}

// closeAt completes the last batch that the stretch completes.
func (c *chain) closeAt(s *stretch) {
	hash, start := [32]byte(s.lastHash), c.start
	if s.whole {
		start = s.begin
	}
	c.counted = run{n: c.counted.n + c.pending.n + s.counted, seq: s.last.Seq, hash: hash, end: s.lastEnd}
	c.pending = run{}
	c.end = End{Segment: c.segment, Seq: s.last.Seq, Hash: hash, Offset: s.lastEnd, BatchOff: start, DurableOff: s.last.DurableOff, Epoch: s.last.Epoch}
}
