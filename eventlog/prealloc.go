package eventlog

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"writegate/eventlog/frame"
)

// zeroChunk bounds one write of zeros: the file's inode is locked while it
// lasts, and the flusher waits for the same lock.
const zeroChunk = 256 << 10

// zeroStride is how much is written between two syncs: the flusher's sync has to
// write whatever zeros are dirty at that moment, so there must never be many.
const zeroStride = 1 << 20

// fullRetry is the pause between two tries to lengthen a file on a full volume.
const fullRetry = time.Second

// errGivenUp is what the groups of a batch get that was taken back whole.
var errGivenUp = fmt.Errorf("%w: the batch does not fit into what is allocated", ErrStorageFull)

// hasSpace tells whether the filling batch fits into what is allocated, and
// asks the helper for more when less than half of a preallocation is left.
//
// A batch with commands leaves a quarter untouched and waits for the helper
// there: whether the volume is full is known only when the helper says so, and
// until then commands must not use up the reserve. l.mu is held.
func (l *Log) hasSpace() bool {
	if l.o.PreallocateBytes == 0 {
		return true
	}
	left := l.allocated - l.filling.end()
	if l.full {
		return left >= 0 && !l.filling.command
	}
	if left < l.o.PreallocateBytes/2 {
		l.askForSpace()
	}
	if l.filling.command {
		left -= l.o.PreallocateBytes / 4
	}
	return left >= 0
}

// askForSpace wakes the helper; a request that waits already is enough.
func (l *Log) askForSpace() {
	select {
	case l.spaceWanted <- struct{}{}:
	default:
	}
}

// giveUpFilling refuses the groups of the filling batch. They were sequenced but
// not one byte was handed to the file, so the chain goes back to the durable head.
// Where it is for lack of space (errGivenUp) Append brings those marked Reserve
// again. l.mu is held and nothing is in flight.
func (l *Log) giveUpFilling(why error) {
	b := l.filling
	refused := append([]*waiter(nil), b.waiters...)
	b.reset(b.start, l.durable.Seq, l.durable.Hash)
	l.active.index.cut(l.durable.Seq)
	l.openRoom()
	wake(refused, why)
}

// preallocate writes zeros ahead of the flusher and syncs them, so that a
// commit changes neither the length nor the extents of the file and its sync
// has no metadata to write.
//
// It uses a descriptor of its own: the kernel reports an error of write-back
// once to each open file description, and a helper on the flusher's would
// swallow the error that the flusher has to see.
func (l *Log) preallocate() {
	retry := time.NewTimer(fullRetry)
	defer retry.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-l.spaceWanted:
		case <-retry.C:
		}
		if !l.lengthen() {
			return
		}
		retry.Reset(fullRetry)
	}
}

// lengthen adds zeros until at least half a preallocation lies ahead. It gives
// false when the log has been poisoned.
func (l *Log) lengthen() bool {
	l.lengthening.Lock()
	defer l.lengthening.Unlock()
	l.mu.Lock()
	from, need := l.allocated, l.filling.end()+l.o.PreallocateBytes
	enough := l.poison != nil || !l.full && l.allocated-l.filling.end() >= l.o.PreallocateBytes/2
	l.mu.Unlock()
	if enough {
		return true
	}
	for from < need {
		l.o.Step("append.before_preallocate")
		reached, err := writeZeros(l.zeroFile, from, min(from+zeroStride, need))
		if serr := l.zeroFile.Datasync(); serr != nil {
			l.fail(fmt.Errorf("sync of preallocated space: %w", serr))
			return false
		}
		if err != nil && !noSpace(err) {
			l.fail(fmt.Errorf("preallocation: %w", err))
			return false
		}
		l.lengthened(reached, err != nil)
		if err != nil {
			return true
		}
		from = reached
	}
	l.lengthened(max(from, need), false)
	return true
}

// lengthened publishes what is allocated, and whether the volume has no more.
func (l *Log) lengthened(to int64, full bool) {
	l.mu.Lock()
	changed := l.full != full
	l.allocated, l.full = max(l.allocated, to), full
	l.work.Signal()
	l.mu.Unlock()
	if !changed {
		return
	}
	if full {
		l.o.Logger.Error("storage_full: no space left to lengthen the log; new commands are refused", "allocated", to)
	} else {
		l.o.Logger.Warn("the log has space again")
	}
}

// noSpace tells a full volume from a broken one. The last write that still
// finds some space is cut short, and only the one after it is told why.
func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, io.ErrShortWrite)
}

// writeZeros fills [from, to) and gives the offset up to which whole chunks
// were written.
func writeZeros(file frame.File, from, to int64) (int64, error) {
	zeros := make([]byte, min(zeroChunk, max(to-from, 0)))
	for from < to {
		n := min(int64(len(zeros)), to-from)
		if _, err := file.Pwrite(zeros[:n], from); err != nil {
			return from, err
		}
		from += n
	}
	return from, nil
}
