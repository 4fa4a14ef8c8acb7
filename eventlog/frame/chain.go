package frame

import "fmt"

// chain is the state of the walk along a log: what the next frame must name,
// and what it must obey. One goroutine owns it.
type chain struct {
	segment uint32
	seq     uint64   // of the frame before
	hash    [32]byte // its event_hash
	known   bool     // seq and hash bind the next frame; false after a gap
	started bool     // some frame came before, so that event 1 is not the first

	order
	pending run // frames of the batch that count
	counted run // frames of complete batches that count
	end     End
}

// order is what the head of the next frame must obey beside its number.
type order struct {
	epoch   uint32
	open    bool // inside a batch
	left    uint16
	start   int64  // where the batch begins
	durable uint64 // its durable_off, or the last one's
}

// run is a stretch of events that count for the report.
type run struct {
	n    uint64
	seq  uint64
	hash [32]byte
	end  int64
}

// enter begins a segment. A known chain goes on; otherwise the header's word is
// taken for what came before.
func (c *chain) enter(h *Header, start [32]byte) {
	if !c.known {
		c.seq, c.hash, c.known = h.FirstSeq-1, h.PrevHash, true
		if h.Segment == 0 {
			c.hash = start
		}
	}
	c.segment = h.Segment
	c.open, c.durable, c.start, c.pending = false, 0, 0, run{}
	c.end = End{Segment: h.Segment, Seq: c.seq, Hash: c.hash, Offset: HeaderSize, BatchOff: HeaderSize, Epoch: c.epoch}
}

// breakOff is what a gap does: nothing binds the next frame but order.
func (c *chain) breakOff() {
	c.known, c.open = false, false
}

// step takes the next frame, of which the bytes are right, and gives what is
// wrong with its place. It then goes on from this frame, whatever it found, so
// that one mistake is one fault.
func (c *chain) step(f *Frame, off int64) (Kind, string) {
	kind, detail := c.place(f)
	if rule := c.rule(f, off); rule != "" && kind == "" {
		kind, detail = BadFrameRule, rule
	}
	if !c.open {
		c.pending.n = 0
	}
	c.seq, c.hash, c.known, c.started = f.Seq, f.Hash, true, true
	c.follow(f, off)
	return kind, detail
}

// follow goes on from a frame; count or the stretch closes its batch.
func (o *order) follow(f *Frame, off int64) {
	if !o.open {
		o.start = off
	}
	o.epoch, o.durable, o.left, o.open = f.Epoch, f.DurableOff, f.BatchLeft, true
}

// place judges sequence and link.
func (c *chain) place(f *Frame) (Kind, string) {
	switch {
	case !c.known && c.started && f.Seq <= c.seq:
		return BadSequence, fmt.Sprintf("event %d follows event %d", f.Seq, c.seq)
	case !c.known:
		return "", ""
	case f.Seq != c.seq+1 || f.Seq == 0:
		return BadSequence, fmt.Sprintf("event %d stands where event %d belongs", f.Seq, c.seq+1)
	case f.PreviousHash == c.hash:
		return "", ""
	case f.Seq == 1:
		return BadChainStart, "event 1 does not link to the header_hash of segment 0"
	}
	return BadLinkage, fmt.Sprintf("event %d does not link to the event_hash of event %d", f.Seq, c.seq)
}

// rule judges what a batch must obey, in words; "" when all is well.
func (o *order) rule(f *Frame, off int64) string {
	start := off
	if o.open {
		start = o.start
	}
	switch {
	case f.Flags&FlagMore != 0 && f.BatchLeft == 0:
		return "the last frame of a batch says that its command goes on"
	case f.Epoch < o.epoch:
		return fmt.Sprintf("epoch falls from %d to %d", o.epoch, f.Epoch)
	case f.DurableOff < HeaderSize || f.DurableOff > uint64(start):
		return fmt.Sprintf("durable_off %d of a batch that begins at %d", f.DurableOff, start)
	case f.DurableOff < o.durable:
		return fmt.Sprintf("durable_off falls from %d to %d", o.durable, f.DurableOff)
	case o.open && f.DurableOff != o.durable:
		return fmt.Sprintf("durable_off changes within a batch, from %d to %d", o.durable, f.DurableOff)
	case o.open && f.BatchLeft != o.left-1:
		return fmt.Sprintf("batch_left is %d after %d", f.BatchLeft, o.left)
	}
	return ""
}

// count notes the frame of the last step as an event of the report, or only as
// part of its batch, and closes the batch when it was the last one.
func (c *chain) count(f *Frame, off, end int64, counts bool) (committed bool) {
	if counts {
		c.pending = run{n: c.pending.n + 1, seq: f.Seq, hash: f.Hash, end: end}
	}
	if f.BatchLeft > 0 {
		return false
	}
	if c.pending.n > 0 {
		n := c.counted.n + c.pending.n
		c.counted, c.counted.n = c.pending, n
	}
	c.end = End{Segment: c.segment, Seq: f.Seq, Hash: f.Hash, Offset: end, BatchOff: c.start, DurableOff: f.DurableOff, Epoch: c.epoch}
	c.open, c.pending = false, run{}
	return true
}
