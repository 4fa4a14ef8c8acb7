package frame

import (
	"context"
	"iter"
)

// Frames reads the frames of all segments in order, up to the event numbered
// last and none where there is none up to it. It checks sums alone: last is what
// a Verify of the same set vouched for (Report.VerifiedTo), so that nothing that
// is damaged or was never acknowledged is met. A record is valid until the next
// step of the loop.
func (s *Set) Frames(ctx context.Context, last uint64) iter.Seq2[Placed, error] {
	return func(yield func(Placed, error) bool) {
		for _, seg := range s.readable() {
			if seg.header.FirstSeq > last {
				return
			}
			for f, err := range Scan(ctx, seg.File, HeaderSize, seg.limit) {
				if !yield(f, err) || err != nil || f.Seq >= last {
					return
				}
			}
		}
	}
}

// readable gives the segments whose header can be read.
func (s *Set) readable() []part {
	parts := make([]part, 0, len(s.Sealed)+1)
	for _, sealed := range s.Sealed {
		parts = append(parts, part{Segment: sealed, limit: sealed.Size})
	}
	parts = append(parts, part{Segment: s.Active, limit: s.limit()})
	kept := parts[:0]
	for _, p := range parts {
		if p.File == nil {
			continue
		}
		if h, err := readHeader(&p); err == nil {
			p.header = h
			kept = append(kept, p)
		}
	}
	return kept
}

// Genesis reads the header of segment 0. ErrHeader says that it is not there or
// is no header.
func (s *Set) Genesis() (Header, error) {
	for _, p := range s.readable() {
		if p.header.Segment == 0 {
			return p.header, nil
		}
	}
	return Header{}, headerErr("segment 0 is not there or its header can't be read")
}
