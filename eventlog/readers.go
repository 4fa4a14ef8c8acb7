package eventlog

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// At gives one durable event. Errors: ErrNotFound, ErrCorrupt, ErrClosed, that of ctx.
func (l *Log) At(ctx context.Context, seq uint64) (event.Envelope, error) {
	e, _, err := l.AtCost(ctx, seq)
	return e, err
}

// AtCost is At, and says how many bytes of the log were looked through: more than
// the event has, because the index is sparse. Who reads many events bounds the sum.
func (l *Log) AtCost(ctx context.Context, seq uint64) (e event.Envelope, read int64, err error) {
	head := l.Head()
	if seq == 0 || seq > head.Seq {
		return e, 0, fmt.Errorf("%w: %d, the log has 1 to %d", ErrNotFound, seq, head.Seq)
	}
	e, read, ok := l.hinted(ctx, seq, head)
	if ok {
		return e, read, nil
	}
	err = fmt.Errorf("%w: event %d is not where it belongs", ErrCorrupt, seq)
	r := &reading{seq: seq, next: seq, single: true, yield: func(p frame.Placed, failed error) bool {
		if err = failed; err == nil {
			e, err = envelope(&p.Frame)
		}
		return false
	}}
	l.read(ctx, r, head)
	return e, read + r.read, err
}

// From gives the durable events from seq on, in order, up to the head at the
// moment of the call. Each is checked against its hash and its predecessor;
// ErrCorrupt ends the iteration, as does the end of ctx.
func (l *Log) From(ctx context.Context, seq uint64) iter.Seq2[event.Envelope, error] {
	return func(yield func(event.Envelope, error) bool) {
		for f, err := range l.frames(ctx, max(seq, 1), l.Head()) {
			if err != nil {
				yield(event.Envelope{}, err)
				return
			}
			e, err := envelope(&f.Frame)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func envelope(f *frame.Frame) (event.Envelope, error) {
	d, err := event.Decode(f.Record)
	if err != nil {
		return event.Envelope{}, undecoded(f.Seq, err)
	}
	return event.Envelope{Seq: f.Seq, PreviousHash: f.PreviousHash, Hash: f.Hash, Draft: d}, nil
}

func undecoded(seq uint64, err error) error { return fmt.Errorf("event %d: %w", seq, err) }

// frames gives the frames from seq to the head, checked; seq is 1 or more.
func (l *Log) frames(ctx context.Context, seq uint64, head Head) iter.Seq2[frame.Placed, error] {
	return func(yield func(frame.Placed, error) bool) {
		l.read(ctx, &reading{seq: seq, next: seq, yield: yield}, head)
	}
}

// reading is one pass over frames.
type reading struct {
	seq      uint64 // where it began
	next     uint64
	previous [32]byte
	single   bool  // only the frame of seq is wanted, and no more is read than the index says it takes
	read     int64 // of a single one, the bytes that were looked through
	yield    func(frame.Placed, error) bool
}

// read makes a pass up to a head.
func (l *Log) read(ctx context.Context, r *reading, head Head) {
	if r.seq > head.Seq {
		return
	}
	for _, at := range l.stretches(r.seq, head) {
		if !l.readStretch(ctx, at, r) {
			return
		}
	}
	if r.next <= head.Seq && !r.single {
		r.fail(fmt.Errorf("%w: the log ends before event %d", ErrCorrupt, r.next))
	}
}

// readStretch gives the frames of one segment. It gives false when the pass is over.
func (l *Log) readStretch(ctx context.Context, at stretch, r *reading) bool {
	file, err := l.reader(at.s)
	if err != nil {
		return r.fail(err)
	}
	from, to, read, err := l.span(ctx, at, r.next)
	if err != nil {
		return r.fail(readError(err))
	}
	if !r.single {
		to = at.end
	}
	for p, err := range frame.Scan(ctx, file, from, to) {
		switch {
		case err != nil:
			return r.fail(readError(err))
		case p.Seq < r.next && r.next == r.seq:
			continue
		case p.Seq != r.next || !p.Intact() || r.next > r.seq && p.PreviousHash != r.previous:
			return r.fail(fmt.Errorf("%w: event %d at offset %d of segment %d does not continue the chain", ErrCorrupt, r.next, p.Off, at.s.number))
		}
		r.read = read + p.Off + p.Size - from
		if !r.yield(p, nil) {
			return false
		}
		r.next, r.previous = r.next+1, p.Hash
	}
	return !r.single
}

func (r *reading) fail(err error) bool {
	r.yield(frame.Placed{}, err)
	return false
}

// readError keeps a closed log and an ended ctx apart from bytes that are wrong.
func readError(err error) error {
	var scan *frame.ScanError
	var op *frame.OpError
	if errors.As(err, &scan) && !errors.Is(err, ErrClosed) && !errors.As(err, &op) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}
