package eventlog

import (
	"fmt"
	"runtime"
	"time"

	"writegate/eventlog/frame"
)

// flush is the flusher: the only code that writes frames. It runs until the log
// is closed and drained, or poisoned.
//
// It is free to change its OS thread: a goroutine that is bound to one costs two
// more switches between threads with every batch.
func (l *Log) flush() {
	if l.o.OneThread {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	defer close(l.flushed)
	spare := new(batch)
	for {
		if l.rotationDue() {
			if err := l.rotate(); err != nil {
				l.fail(err)
				return
			}
		}
		b := l.take(spare)
		if b == nil {
			return
		}
		if err := frame.SealBatch(b.buf, l.durableOff(b)); err != nil {
			l.fail(fmt.Errorf("sealing a batch at offset %d: %w", b.start, err))
			return
		}
		unsigned, err := l.unsigned(b)
		if err != nil {
			l.fail(fmt.Errorf("receipts of the batch at offset %d: %w", b.start, err))
			return
		}
		l.o.Step("append.before_write")
		err = l.watched(func() error { _, err := l.file.Pwrite(b.buf, b.start); return err })
		if err != nil {
			l.fail(fmt.Errorf("write of a batch at offset %d: %w", b.start, err))
			return
		}
		l.o.Step("append.after_write")
		if b.written {
			l.wakeWritten(b)
		}
		b.signature = signBeside(unsigned, l.o.Now)
		if err := l.sync(); err != nil {
			l.fail(fmt.Errorf("sync of the batch at offset %d: %w", b.start, err))
			return
		}
		l.o.Step("append.after_sync")

		// COMMIT POINT, the only one: from here on the batch is what happened.
		head, ok := l.commit(b)
		if !ok {
			return
		}
		if l.o.Fsync != FsyncOff { // else the anchor could outlive what it speaks of
			l.head.write(head, false)
		}
		l.o.Step("append.before_wake")
		l.publish(b)
		spare = b
	}
}

// durableOff is what the batch may say about the bytes before it. Only one
// batch is in flight, so all of them are synced. Without fsync nothing may be
// promised, and the promise stays where it was.
func (l *Log) durableOff(b *batch) uint64 {
	if l.o.Fsync == FsyncOff {
		return l.promised
	}
	return uint64(b.start)
}

// sync is Datasync under the eyes of the watchdog.
func (l *Log) sync() error {
	if l.o.Fsync == FsyncOff {
		return nil
	}
	return l.watched(l.file.Datasync)
}

// watched makes a call that the watchdog sees when it does not return. Once it
// has, commands are taken again: not every such call has a commit behind it.
func (l *Log) watched(call func() error) error {
	l.syncSince.Store(int64(time.Since(l.opened)) + 1) // 0 means that no sync runs
	err := call()
	l.syncSince.Store(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalled = false
	return err
}

// take swaps the filling batch, together with its waiters, for the spare one as
// soon as one frame waits. It gives nil when the flusher has to end.
func (l *Log) take(spare *batch) *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	waits := false // for the helper that makes space
	stopWaiting := func() {
		if waits {
			waits, l.stalled = false, false
			l.syncSince.Store(0)
		}
	}
	defer stopWaiting()
	for {
		fenced := l.fenced()
		switch {
		case l.poison != nil:
			return nil
		case l.filling.frames > 0 && fenced != nil: // it may be long since the groups were taken: the process was stopped, or the disk was slow
			l.giveUpFilling(fmt.Errorf("%w: %w", ErrNotWritten, fenced))
			continue
		case l.filling.frames > 0 && l.hasSpace():
			b := l.filling
			spare.reset(b.end(), b.last, b.hash)
			l.filling, l.inflight = spare, b
			l.openRoom()
			return b
		case l.filling.frames > 0 && l.full:
			l.giveUpFilling(errGivenUp)
			continue
		case l.filling.frames == 0 && l.closing:
			return nil
		}
		switch {
		case l.filling.frames == 0: // what waited was given up
			stopWaiting()
		case !waits:
			waits = true
			l.syncSince.Store(int64(time.Since(l.opened)) + 1)
		}
		l.work.Wait()
	}
}

// openRoom lets those in who wait for the filling batch. l.mu is held.
func (l *Log) openRoom() {
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
}

// wakeWritten answers the groups that do not wait for the sync.
func (l *Log) wakeWritten(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := b.waiters[:0]
	for _, w := range b.waiters {
		if w.ack == Written {
			w.done <- nil
		} else {
			kept = append(kept, w)
		}
	}
	clear(b.waiters[len(kept):])
	b.waiters = kept
}

// commit moves the durable head to the end of the batch, unless the watchdog
// has given the batch up while its sync was running.
func (l *Log) commit(b *batch) (Head, bool) {
	now := l.o.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.poison != nil {
		return Head{}, false
	}
	l.durable = Head{Seq: b.last, Hash: b.hash, Segment: l.active.number, Offset: b.end(), Time: now}
	if l.born.IsZero() {
		l.born = now
	}
	return l.durable, true
}

// publish hands the committed batch to its followers, then wakes its waiters in
// the order of their sequence numbers.
func (l *Log) publish(b *batch) {
	l.mu.Lock()
	if l.poison != nil { // another sync of the file failed meanwhile and woke them
		l.mu.Unlock()
		return
	}
	l.followers.send(b)
	woken, signature := b.waiters, b.signature
	l.inflight = nil
	l.mu.Unlock()
	for _, w := range woken {
		w.signature = signature
		w.done <- nil
	}
}

// fail poisons the log: sticky, first cause wins. Groups whose batch was handed
// to the disk have an unknown outcome, those in the filling batch were not
// written. Nothing is retried, cut or synced again, and the head stays as it is.
func (l *Log) fail(cause error) {
	l.mu.Lock()
	if l.poison != nil {
		l.mu.Unlock()
		return
	}
	l.poison = cause
	var unknown []*waiter
	if l.inflight != nil {
		unknown = l.inflight.waiters
		l.inflight = nil
	}
	unwritten := l.filling.waiters
	l.filling.waiters = nil
	l.openRoom()
	l.work.Broadcast()
	l.mu.Unlock()

	l.o.Logger.Error("the log is poisoned and takes nothing more; the process has to end", "error", cause)
	l.fatal <- cause
	wake(unknown, fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause))
	wake(unwritten, fmt.Errorf("%w: %w", ErrNotWritten, cause))
}

func wake(ws []*waiter, err error) {
	for _, w := range ws {
		w.done <- err
	}
}
