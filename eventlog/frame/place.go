package frame

import "fmt"

// place judges whether a segment stands where its number and first event say,
// and sets wantN to the number it counts as. False: it is a double and is not
// walked.
func (v *verifier) place(p *part) bool {
	h := &p.header
	if v.wantN == 0 && h.Segment > 0 && !p.sealed && !v.set.Whole {
		v.fault(p, Fault{Check: CheckCount, Kind: RangeLimited, Seq: h.FirstSeq, Detail: fmt.Sprintf("%s is segment %d on its own: what came before was not looked at", p.Name, h.Segment)})
		v.wantN = h.Segment
		return true
	}
	if p.sealed {
		return v.placeSealed(p)
	}
	return v.placeActive(p)
}

// follows reports whether a segment's header continues the chain. Where the
// chain is not known, only the number speaks.
func (v *verifier) follows(h *Header) bool {
	c := &v.chain
	if !c.known {
		return h.Segment == v.wantN
	}
	return h.Segment == v.wantN && h.FirstSeq == c.seq+1 && h.PrevHash == c.hash
}

// placeActive: the active segment has no number in its name.
func (v *verifier) placeActive(p *part) bool {
	h, c := &p.header, &v.chain
	continues := c.known && h.FirstSeq == c.seq+1 && h.PrevHash == c.hash
	switch {
	case v.follows(h):
	case h.Segment == v.wantN:
		v.misplaced(p, BadHeader, "first_seq or prev_segment_last_hash do not continue the segment before")
	case continues:
		v.misplaced(p, BadHeader, fmt.Sprintf("the header says segment %d where %d belongs", h.Segment, v.wantN))
	case h.Segment < v.wantN:
		v.misplaced(p, SealedSegment, fmt.Sprintf("segment %d is there twice", h.Segment))
		return false
	default:
		v.missing(p, h.Segment)
	}
	return true
}

// placeSealed has two witnesses, the name and the header. One that agrees with
// the chain shows that the other was changed.
func (v *verifier) placeSealed(p *part) bool {
	h, c := &p.header, &v.chain
	if p.Number > v.wantN && h.Segment > v.wantN {
		v.missing(p, p.Number)
	}
	named := p.Number == v.wantN && (!c.known || p.First == c.seq+1)
	right := v.follows(h)
	sameNo, sameFirst := h.Segment == p.Number, h.FirstSeq == p.First
	switch {
	case right && sameNo && sameFirst:
	case right:
		v.misplaced(p, SealedSegment, fmt.Sprintf("it holds segment %d from event %d: it was renamed", h.Segment, h.FirstSeq))
	case p.Number < v.wantN:
		v.misplaced(p, SealedSegment, fmt.Sprintf("segment %d is there twice", p.Number))
		return false
	case named && (sameNo || sameFirst):
		v.misplaced(p, BadHeader, fmt.Sprintf("the header (segment %d from event %d) does not continue the segment before", h.Segment, h.FirstSeq))
	default:
		v.misplaced(p, SealedSegment, fmt.Sprintf("it holds segment %d from event %d: another segment stands in its place", h.Segment, h.FirstSeq))
		c.known = false
	}
	return true
}

func (v *verifier) misplaced(p *part, kind Kind, why string) {
	f := Fault{Check: CheckCount, Kind: kind, Detail: p.Name + ": " + why}
	if kind == BadHeader {
		f.Check, f.Length = CheckHeader, HeaderSize
	}
	v.fault(p, f)
}

// missing notes the segments that are not there before this one, and goes on
// with it as it comes. Where the folder could not be read nobody knows whether
// they are missing, and the report says that already.
func (v *verifier) missing(p *part, number uint32) {
	if v.set.Err == nil {
		v.misplaced(p, SealedSegment, fmt.Sprintf("segment %d is missing before it", v.wantN))
	}
	v.chain.known = false
	v.wantN = number
}
