package eventlog

import (
	"context"
	"errors"
	"fmt"

	"writegate/eventlog/frame"
)

// Append makes the events of one command durable and gives their place in the
// chain. It returns when the outcome is known; ctx counts only until the group
// has its place.
//
// Errors: ErrNotWritten, ErrStorageFull, ErrTooLarge, ErrClosed and ErrCorrupt
// mean that nothing of the group is in the log; ErrOutcomeUnknown means that
// only the next start will tell.
func (l *Log) Append(ctx context.Context, g Group) (Committed, error) {
	rec := recordPool.Get().(*records)
	defer rec.release()
	if err := rec.encode(g.Drafts); err != nil {
		return Committed{}, err
	}
	l.o.Step("append.encoded")
	for {
		c, w, err := l.enqueue(ctx, &g, rec)
		if err != nil {
			return Committed{}, err
		}
		err = <-w.done
		c.signature, w.signature = w.signature, nil
		waiters.Put(w)
		if g.Reserve && errors.Is(err, errGivenUp) {
			continue // it only shared a batch with commands, and may fit by itself
		}
		if err != nil {
			return Committed{}, err
		}
		return c, nil
	}
}

// enqueue gives the group its place in the filling batch, waiting while that
// one is at its cap.
func (l *Log) enqueue(ctx context.Context, g *Group, rec *records) (Committed, *waiter, error) {
	hashes := make([][32]byte, len(rec.ends))
	w := waiters.Get().(*waiter)
	w.ack = g.Ack
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if err := l.refusal(g, rec.bytes); err != nil {
			waiters.Put(w)
			return Committed{}, nil, err
		}
		if l.filling.takes(len(rec.ends), rec.bytes) {
			break
		}
		if err := l.waitForRoom(ctx); err != nil {
			waiters.Put(w)
			return Committed{}, nil, err
		}
	}
	return l.sequence(g, rec, hashes, w), w, nil
}

// Refuses says why the log takes no command now, with an error of Append; nil where
// it takes them.
func (l *Log) Refuses() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refusal(&Group{}, 0)
}

// refusal says why a group can't be taken now, or nil. l.mu is held.
func (l *Log) refusal(g *Group, bytes int) error {
	fenced := l.fenced()
	switch {
	case l.poison != nil:
		return fmt.Errorf("%w: %w", ErrNotWritten, l.poison)
	case l.closing:
		return ErrClosed
	case l.unserved != nil && (!l.writable || !g.Reserve):
		return l.unserved
	case fenced != nil: // the reserve too: what another copy is writing meanwhile knows nothing of it
		return fmt.Errorf("%w: %w", ErrNotWritten, fenced)
	case l.stalled && !g.Reserve:
		return fmt.Errorf("%w: a write or sync has been running for more than %v", ErrNotWritten, l.o.SlowSync)
	case l.full && !g.Reserve:
		return ErrStorageFull
	case l.full && l.filling.end()+int64(bytes) > l.allocated:
		return fmt.Errorf("%w: the reserve is used up as well", ErrStorageFull)
	}
	return nil
}

// fenced is Options.Fence, where there is one.
func (l *Log) fenced() error {
	if l.o.Fence == nil {
		return nil
	}
	return l.o.Fence()
}

// waitForRoom gives l.mu up until the flusher takes the filling batch.
func (l *Log) waitForRoom(ctx context.Context) error {
	if l.room == nil {
		l.room = make(chan struct{})
	}
	room := l.room
	l.mu.Unlock()
	defer l.mu.Lock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNotWritten, ctx.Err())
	}
}

// sequence chains the group's records and copies their frames into the filling
// batch. l.mu is held: sequence numbers and hashes are given out here alone.
func (l *Log) sequence(g *Group, rec *records, hashes [][32]byte, w *waiter) Committed {
	b := l.filling
	p := placed{drafts: g.Drafts, first: b.last + 1, previous: b.hash, hashes: hashes}
	start := 0
	for i, end := range rec.ends {
		f := frame.Frame{Seq: b.last + 1, PreviousHash: b.hash, Record: rec.buf[start:end]}
		if i < len(rec.ends)-1 {
			f.Flags = frame.FlagMore
		}
		f.Hash = frame.EventHash(f.Seq, f.PreviousHash, f.Record)
		l.active.index.note(f.Seq, b.end())
		b.buf = frame.Append(b.buf, &f)
		b.last, b.hash, hashes[i], start = f.Seq, f.Hash, f.Hash, end
	}
	wasEmpty := b.frames == 0
	b.frames += len(rec.ends)
	b.written, b.command = b.written || g.Ack == Written, b.command || !g.Reserve
	b.waiters, b.groups = append(b.waiters, w), append(b.groups, p)
	if wasEmpty {
		l.work.Signal()
	}
	return Committed{First: p.first, Last: b.last, Hashes: hashes}
}
