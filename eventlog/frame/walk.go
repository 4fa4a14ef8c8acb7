package frame

import (
	"context"
	"fmt"
)

// walk reads the frames of one segment. It gives true when the walk is over: a
// range is complete, or the tail begins.
func (v *verifier) walk(ctx context.Context, p *part) (stop bool, err error) {
	from := int64(HeaderSize)
	if v.o.From > 1 && v.rep.EventCount == 0 && v.chain.counted.n == 0 {
		if from, err = v.seek(ctx, p); err != nil {
			return false, err
		}
		v.chain.known = v.chain.known || from == HeaderSize && p.err == nil
		v.done += from - HeaderSize
		v.chain.end.Offset, v.chain.end.BatchOff = from, from
	}
	s := &segmentWalk{v: v, p: p, pos: from, ahead: newLookAhead(p.File, p.limit)}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	pl := startPipeline(inner, p.File, from, p.limit, v.o.Workers)
	for pc := range pl.ordered {
		<-pc.done
		if s.ended == nil {
			err = s.take(ctx, pc)
			if err != nil || s.ended != nil {
				cancel()
			}
		}
		if s.ended == nil && err == nil {
			v.progress(pc)
			pl.release(pc)
		}
	}
	if err == nil && s.ended == nil {
		err = pl.err
	}
	if err != nil {
		return false, err
	}
	return s.finish(ctx)
}

func (v *verifier) progress(pc *piece) {
	v.done += int64(len(pc.data))
	if pc.gap != nil {
		v.done += pc.gap.next - pc.gap.off
	}
	if v.o.Progress != nil {
		v.o.Progress(min(v.done, v.total), v.total)
	}
}

// seek finds the frame From by the heads alone: where it is not there to be found, the
// last frame before it, so that what stands in its place is judged.
func (v *verifier) seek(ctx context.Context, p *part) (int64, error) {
	w := &frameWindow{f: p.File, limit: p.limit}
	sync := newResync(p.File, p.limit)
	off := int64(HeaderSize)
	if h := v.o.Hint; h.Segment == p.header.Segment && h.Offset > off && h.Offset < p.limit && h.Offset%Align == 0 {
		if f, _, err := w.frame(h.Offset); err == nil && f.Intact() && f.Seq <= v.o.From {
			off = h.Offset
		}
	}
	before := off
	for off < p.limit {
		f, size, err := w.frame(off)
		switch {
		case whole(err) && f.Seq == v.o.From:
			return off, nil
		case whole(err) && f.Seq > v.o.From:
			return before, nil
		case whole(err):
			before = off
			off += int64(size)
			continue
		}
		if zero, zerr := zeroUpTo(ctx, p.File, off, p.limit); zero && zerr == nil {
			return off, nil
		}
		if off, err = sync.find(ctx, off+Align); err != nil {
			return 0, err
		}
	}
	return before, nil
}

// ending says why a walk stopped before the end of the segment.
type ending int

const (
	rangeDone ending = iota // the event asked for last was reached
	tailBegan               // bytes that nobody vouched for
	moving                  // the file is being written while it is read
)

// segmentWalk is the judge of one segment.
type segmentWalk struct {
	v     *verifier
	p     *part
	pos   int64 // end of what was taken
	ahead *lookAhead
	ended *ending
	// unread: some of the tail could not be read, and the report says so.
	unread bool
}

// take judges one piece.
func (s *segmentWalk) take(ctx context.Context, pc *piece) error {
	if pc.gap != nil {
		return s.gap(ctx, *pc.gap, CheckHash, "")
	}
	bad, faults := pc.bad, s.v.rep.FaultsTotal
	for at := 0; at < len(pc.data) && s.ended == nil; {
		size := sizeAt(pc.data, at)
		m := mark{}
		if len(bad) > 0 && bad[0].at == at {
			m, bad = bad[0], bad[1:]
		}
		if err := s.one(ctx, pc.data[at:at+size], pc.off+int64(at), m); err != nil {
			return err
		}
		first := at == 0
		if at += size; first && s.v.rep.FaultsTotal == faults && s.jump(pc) {
			return nil
		}
	}
	return nil
}

// jump takes the worker's word for the frames after the first one, which was
// right: false where the judge has to look at each.
func (s *segmentWalk) jump(pc *piece) bool {
	v := s.v
	if s.ended != nil || len(pc.bad) > 0 || pc.run.broken || v.o.From > 1 || v.o.To > 0 || v.book.awaits(pc.run.head.Seq) {
		return false
	}
	if v.chain.jump(&pc.run) {
		v.book.keep()
		s.committed(v.chain.end.Seq)
	}
	s.pos = pc.off + int64(len(pc.data))
	return true
}

// one judges one frame of which the head is right; m is what else was found.
func (s *segmentWalk) one(ctx context.Context, b []byte, off int64, m mark) error {
	size := int64(len(b))
	if m.err != nil && m.err != ErrRule {
		check, detail := s.explain(b, m.err)
		return s.gap(ctx, gap{off: off, next: off + size, err: m.err, body: true}, check, detail)
	}
	f := decode(b)
	s.frame(&f, off, size, m)
	s.pos = off + size
	return nil
}

// frame judges one frame whose bytes are right.
func (s *segmentWalk) frame(f *Frame, off, size int64, m mark) {
	v, c := s.v, &s.v.chain
	if !c.open {
		v.book.drop()
	}
	kind, detail := c.step(f, off)
	if m.err != nil {
		kind, detail = BadFrameRule, "the frame's kind or flags are not known"
	}
	if m.forged {
		s.fault(BadEventHash, f.Seq, off, size, fmt.Sprintf("the event_hash of event %d is not the hash of its record", f.Seq))
	}
	if kind != "" {
		s.fault(kind, f.Seq, off, size, detail)
	}
	v.book.see(f.Seq, f.Hash, c.segment, off)
	counts := f.Seq >= v.o.From && (v.o.To == 0 || f.Seq <= v.o.To)
	if c.count(f, off, off+size, counts) {
		v.book.keep()
		s.committed(f.Seq)
	}
}

var checkOf = map[Kind]CheckName{
	BadChainStart: CheckStart, BadEventHash: CheckHash, BadLinkage: CheckLink, BadSequence: CheckSequence, BadFrameRule: CheckSequence,
}

func (s *segmentWalk) fault(kind Kind, seq uint64, off, size int64, detail string) {
	s.v.fault(s.p, Fault{Check: checkOf[kind], Kind: kind, Offset: off, Length: size, Seq: seq, Detail: detail})
}

// committed moves the report to the end of a complete batch, which seq is.
func (s *segmentWalk) committed(seq uint64) {
	v, last := s.v, s.v.chain.counted
	if last.n > 0 {
		if v.rep.EventCount == 0 && v.o.From > 1 {
			v.rep.FirstSeq = v.o.From
		}
		v.rep.EventCount, v.rep.LastSeq = last.n, last.seq
		v.rep.Head.Seq, v.rep.Head.Segment, v.rep.Head.EndOffset = last.seq, v.chain.segment, last.end
		if v.rep.corrupt == 0 && v.skimmed == 0 {
			v.rep.VerifiedTo = last.seq
		}
		if v.rep.FaultsTotal == v.known && !v.hole && v.skimmed == 0 {
			v.rep.RightTo = last.seq
		}
	}
	if v.o.To > 0 && seq >= v.o.To {
		s.end(rangeDone)
	}
}

func (s *segmentWalk) end(why ending) { s.ended = &why }

// gap judges bytes that are no frame: damage where they were vouched for, the
// beginning of the tail where not.
func (s *segmentWalk) gap(ctx context.Context, g gap, check CheckName, detail string) error {
	vouched := s.p.sealed
	if !vouched {
		var err error
		if vouched, err = s.ahead.vouches(ctx, g); err != nil {
			return err
		}
	}
	if !vouched && !(g.io && s.v.book.knowsBeyond(s.v.chain.end.Seq)) {
		if g.io {
			s.unreadable(g)
		}
		s.end(tailBegan)
		return nil
	}
	if !s.p.sealed && !g.io && s.changed(g) {
		s.v.fault(s.p, Fault{Check: CheckLock, Kind: NoReadLock, Offset: g.off, Detail: "the segment is being written while it is read: a writer began after the files were opened"})
		s.v.blind = true
		s.end(moving)
		return nil
	}
	f := Fault{Check: check, Kind: DurablePromise, Offset: g.off, Length: g.next - g.off, Seq: s.expected(), Detail: g.err.Error()}
	switch {
	case g.io:
		f.Kind = CommittedUnreadable
	case s.p.sealed:
		f.Kind = SealedSegment
	default:
		f.Detail += fmt.Sprintf("; a later batch says that everything below offset %d had been synced", s.ahead.bound)
	}
	if detail == "" && s.listed() {
		detail = explainHead(s.p.File, g)
	}
	if detail != "" {
		f.Detail += "; " + detail
	}
	s.v.fault(s.p, f)
	s.v.chain.breakOff()
	s.pos = g.next
	return nil
}

// listed reports whether the next fault will be listed: only then is it worth
// the search for an explanation.
func (s *segmentWalk) listed() bool { return s.v.rep.FaultsTotal < MaxFaults }

// explain gives the check that a damaged body fails and, where one flipped bit
// explains it, says so.
func (s *segmentWalk) explain(b []byte, err error) (CheckName, string) {
	if err == ErrPadding {
		return CheckPadding, "bytes after the event_hash are not zero"
	}
	if !s.listed() {
		return CheckHash, ""
	}
	return CheckHash, explainBody(b)
}

// unreadable notes bytes of the tail that the medium does not give.
func (s *segmentWalk) unreadable(g gap) {
	s.unread = true
	s.v.fault(s.p, Fault{Check: CheckTrailing, Kind: Unreadable, Offset: g.off, Length: g.next - g.off, Detail: g.err.Error()})
}

// changed reports whether there is a frame now where none was a moment ago.
func (s *segmentWalk) changed(g gap) bool {
	_, _, err := ReadFrameAt(s.p.File, g.off, s.p.limit)
	return whole(err)
}

// expected is the seq that should come next, 0 where nothing tells.
func (s *segmentWalk) expected() uint64 {
	if !s.v.chain.known {
		return 0
	}
	return s.v.chain.seq + 1
}

// finish judges what lies after the last complete batch.
func (s *segmentWalk) finish(ctx context.Context) (stop bool, err error) {
	v, end := s.v, s.v.chain.end
	if s.ended != nil && *s.ended != tailBegan {
		return true, nil
	}
	v.rep.Ran(CheckTrailing)
	if s.p.sealed {
		s.finishSealed(end)
		return false, nil
	}
	tail, err := ScanTail(ctx, s.p.File, end.Segment, end.Offset, s.p.limit)
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err != nil && !s.unread:
		s.unreadable(gap{off: end.Offset, next: s.p.limit, err: err})
	}
	v.rep.Tail = tail.report()
	if tail.Length == 0 {
		return true, nil
	}
	f := Fault{Check: CheckTrailing, Kind: TornTail, Offset: tail.Offset, Length: tail.Length, Seq: end.Seq + 1,
		Detail: fmt.Sprintf("%d bytes after the last complete batch, with %d readable frames: an unfinished write, never acknowledged", tail.Length, tail.ReadableFrames)}
	if s.ended == nil {
		f.Kind = IncompleteBatch
		f.Detail = fmt.Sprintf("the last batch is not complete: %d of its frames are there, its end is missing", tail.ReadableFrames)
	}
	v.fault(s.p, f)
	return true, nil
}

// finishSealed: a sealed segment ends with its last batch, and its name says
// with which event.
func (s *segmentWalk) finishSealed(end End) {
	c := &s.v.chain
	if c.open {
		s.v.fault(s.p, Fault{Check: CheckCount, Kind: SealedSegment, Offset: end.Offset, Length: s.pos - end.Offset, Detail: s.p.Name + ": the last batch is not complete"})
		c.known = false
	}
	if s.p.Last != end.Seq {
		s.v.fault(s.p, Fault{Check: CheckCount, Kind: SealedSegment, Offset: end.Offset, Seq: end.Seq, Detail: fmt.Sprintf("%s ends with event %d, its name says %d", s.p.Name, end.Seq, s.p.Last)})
		c.known = false
	}
	if !c.known && c.seq < s.p.Last {
		c.seq = s.p.Last
	}
}
