package frame

import "fmt"

// skim takes a sealed segment by its header, its length and its last frame, where
// Options.SkimSealed asks for no more and no anchor speaks of an event inside it.
// It gives false where all of it has to be read: as soon as anything is not as a
// writer leaves it, the walk finds out what.
func (v *verifier) skim(p *part) bool {
	h := &p.header
	if !v.o.SkimSealed || !p.sealed || p.err != nil || v.o.From > 1 || v.o.To > 0 || v.rep.corrupt > 0 {
		return false
	}
	if p.Last < h.FirstSeq || v.book.speaksWithin(h.FirstSeq, p.Last-1) {
		return false
	}
	f, off, ok := lastFrame(p.File, p.limit)
	if !ok || f.Seq != p.Last || f.BatchLeft != 0 || f.Flags&FlagMore != 0 || !f.Intact() || !plausible(&f, off) {
		return false
	}
	c := &v.chain
	c.seq, c.hash, c.known, c.started = f.Seq, f.Hash, true, true
	c.epoch, c.durable, c.open = f.Epoch, f.DurableOff, false
	c.counted = run{n: c.counted.n + f.Seq - h.FirstSeq + 1, seq: f.Seq, hash: f.Hash, end: p.limit}
	c.end = End{Segment: h.Segment, Seq: f.Seq, Hash: f.Hash, Offset: p.limit, BatchOff: off, DurableOff: f.DurableOff, Epoch: f.Epoch}
	v.book.know(f.Seq, f.Hash, h.Segment, off)
	v.rep.EventCount, v.rep.LastSeq = c.counted.n, f.Seq
	v.rep.Head.Seq, v.rep.Head.Segment, v.rep.Head.EndOffset = f.Seq, h.Segment, p.limit
	v.done += max(p.limit-HeaderSize, 0)
	v.skimmed++
	return true
}

// lastFrame finds the frame that ends exactly where the segment does.
func lastFrame(f File, limit int64) (last Frame, off int64, ok bool) {
	for _, ask := range []int64{16 * pageSize, MaxFrame} {
		from := max(limit-ask, HeaderSize)
		if from >= limit || limit%Align != 0 {
			return Frame{}, 0, false
		}
		b := make([]byte, limit-from)
		if n, _ := f.Pread(b, from); n < len(b) {
			return Frame{}, 0, false
		}
		for at := len(b) - Align; at >= 0; at -= Align {
			if string(b[at:at+len(frameMagic)]) != frameMagic {
				continue
			}
			if fr, size, err := ParseFrame(b[at:]); err == nil && size == len(b)-at {
				return fr, from + int64(at), true
			}
		}
	}
	return Frame{}, 0, false
}

// warnSkimmed says what was not read.
func (v *verifier) warnSkimmed() {
	if v.skimmed > 0 {
		v.rep.Warn(fmt.Sprintf("%d sealed segments were judged by their header, length and last event alone", v.skimmed))
	}
}

// speaksWithin reports whether an anchor names one of these events.
func (b *anchorBook) speaksWithin(first, last uint64) bool {
	for _, a := range b.anchors {
		if a.Seq >= first && a.Seq <= last {
			return true
		}
	}
	return false
}
