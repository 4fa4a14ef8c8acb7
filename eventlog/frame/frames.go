package frame

import (
	"context"
	"iter"
	"math"
)

// Frames reads the frames of all segments in order, up to the event numbered
// last and none where there is none up to it. It checks sums alone: last is what
// a Verify of the same set vouched for (Report.VerifiedTo), so that nothing that
// is damaged or was never acknowledged is met. An error ends its segment: who goes on
// gets the frames of the next one. A record is valid until the next step of the loop.
func (s *Set) Frames(ctx context.Context, last uint64) iter.Seq2[Placed, error] {
	return func(yield func(Placed, error) bool) {
		for i, seg := range s.readable() {
			if i == 0 && seg.header.FirstSeq > last {
				return
			}
			for f, err := range Scan(ctx, seg.File, HeaderSize, seg.limit) {
				if err == nil && f.Seq > last || !yield(f, err) || err == nil && f.Seq >= last {
					return
				}
			}
		}
	}
}

// Hashes gives the number and the hash of each event up to last, as far as nothing is wrong from
// the beginning on, be it in an event, a header, or what lies between: Report.RightTo. It is for
// who holds a log against what is known elsewhere; what lies behind the last complete batch is no
// event, though its frames can be read.
func (s *Set) Hashes(ctx context.Context, last uint64) iter.Seq2[uint64, [32]byte] {
	return func(yield func(uint64, [32]byte) bool) {
		if last == 0 {
			return
		}
		o := Options{To: last}
		if last == math.MaxUint64 {
			o.To = 0
		}
		r, err := verify(ctx, *s, o)
		if err != nil {
			return
		}
		for f, err := range s.Frames(ctx, r.RightTo) {
			if err != nil || !yield(f.Seq, f.Hash) {
				return
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
