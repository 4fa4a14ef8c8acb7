package eventlog

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// At gives one durable event. Errors: ErrNotFound, ErrCorrupt, ErrClosed.
func (l *Log) At(seq uint64) (event.Envelope, error) {
	head := l.Head()
	if seq == 0 || seq > head.Seq {
		return event.Envelope{}, fmt.Errorf("%w: %d, the log has 1 to %d", ErrNotFound, seq, head.Seq)
	}
	for f, err := range l.frames(context.Background(), seq, head, true) {
		if err != nil {
			return event.Envelope{}, err
		}
		return envelope(&f.Frame)
	}
	return event.Envelope{}, fmt.Errorf("%w: event %d is not where it belongs", ErrCorrupt, seq)
}

// From gives the durable events from seq on, in order, up to the head at the
// moment of the call. Each is checked against its hash and its predecessor;
// ErrCorrupt ends the iteration, as does the end of ctx.
func (l *Log) From(ctx context.Context, seq uint64) iter.Seq2[event.Envelope, error] {
	return func(yield func(event.Envelope, error) bool) {
		for f, err := range l.frames(ctx, max(seq, 1), l.Head(), false) {
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
		return event.Envelope{}, fmt.Errorf("event %d: %w", f.Seq, err)
	}
	return event.Envelope{Seq: f.Seq, PreviousHash: f.PreviousHash, Hash: f.Hash, Draft: d}, nil
}

// frames gives the frames from seq to the head, checked; seq is 1 or more. With
// single only the frame of seq is wanted, and no more is read than the index
// says it takes.
func (l *Log) frames(ctx context.Context, seq uint64, head Head, single bool) iter.Seq2[frame.Placed, error] {
	return func(yield func(frame.Placed, error) bool) {
		if seq > head.Seq {
			return
		}
		from, to := l.locate(seq, head)
		if !single {
			to = head.Offset
		}
		next := seq
		var previous [32]byte
		for p, err := range frame.Scan(ctx, sharedFile{l: l}, from, to) {
			switch {
			case err != nil:
				yield(frame.Placed{}, readError(err))
				return
			case p.Seq < next && next == seq:
				continue
			case p.Seq != next || !p.Intact() || next > seq && p.PreviousHash != previous:
				yield(frame.Placed{}, fmt.Errorf("%w: event %d at offset %d does not continue the chain", ErrCorrupt, next, p.Off))
				return
			}
			if !yield(p, nil) {
				return
			}
			next, previous = next+1, p.Hash
		}
		if next <= head.Seq && !single {
			yield(frame.Placed{}, fmt.Errorf("%w: the file ends before event %d", ErrCorrupt, next))
		}
	}
}

// locate gives offsets between which the frame of seq lies.
func (l *Log) locate(seq uint64, head Head) (from, to int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index.span(seq, head.Offset)
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

// sharedFile reads through the log's read handle and outlives it safely.
type sharedFile struct {
	frame.File // nil: only Pread is ever called
	l          *Log
}

// Pread implements frame.File.
func (s sharedFile) Pread(b []byte, off int64) (int, error) {
	s.l.reading.RLock()
	defer s.l.reading.RUnlock()
	if s.l.readFile == nil {
		return 0, ErrClosed
	}
	return s.l.readFile.Pread(b, off)
}
