package eventlog

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"writegate/eventlog/frame"
)

// rotateRetry is the pause after a next segment could not be made: the log goes
// on in the old one, which is only longer than was asked for.
const rotateRetry = 10 * time.Second

// sealRetry is the pause after the active segment could not be moved. An operator has
// to see to that, and each try writes and syncs a preallocation between two batches.
const sealRetry = 10 * time.Minute

// errNotSealed says that the active segment could not be moved, and is where it was.
var errNotSealed = errors.New("the active segment can't be moved to the sealed ones, whose folder has to be on the log's own volume and writable")

// rotationDue tells whether the active segment is to be sealed before the next
// batch: it is over its size or age, and not empty. A full volume waits, because
// the space that is left in the old segment is the reserve.
func (l *Log) rotationDue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.poison != nil || l.unserved != nil || l.closing || l.full || l.durable.Seq < l.active.first {
		return false
	}
	large := l.o.SegmentBytes > 0 && l.durable.Offset >= l.o.SegmentBytes
	old := l.o.SegmentAge > 0 && l.durable.Time.Sub(l.born) >= l.o.SegmentAge
	return (large || old) && !time.Now().Before(l.rotateAfter)
}

// rotate seals the active segment and begins the next one (design/eventlog.md
// part 11). The flusher calls it between two batches, so nothing is in flight.
// Whoever else uses the files just now is not waited for: the rotation comes
// after a later batch.
//
// An error means that nobody can know what the next start will find, and poisons.
func (l *Log) rotate() error {
	if !l.lengthening.TryLock() {
		return nil
	}
	defer l.lengthening.Unlock()
	l.structure.Lock()
	defer l.structure.Unlock()
	if err := l.lock.Lock(expired, frame.StructureByte, frame.Exclusive); err != nil {
		if !errors.Is(err, frame.ErrLocked) { // else a verifier is opening the files
			l.postponeRotation(rotateRetry, err)
		}
		return nil
	}
	if l.lost() != "" { // what has the name would be sealed; keepPlace says so
		l.rotateAfter = time.Now().Add(rotateRetry)
		return l.lock.Unlock(frame.StructureByte)
	}
	n, err := l.makeNext()
	if err != nil {
		l.postponeRotation(rotateRetry, err)
		return l.lock.Unlock(frame.StructureByte)
	}
	err = l.handOver(n)
	if errors.Is(err, errNotSealed) {
		_ = l.o.FS.Remove(l.w + frame.NextSuffix) // the next try and an open do so too
		l.postponeRotation(sealRetry, err)
		err = nil
	}
	return errors.Join(err, l.lock.Unlock(frame.StructureByte))
}

func (l *Log) postponeRotation(pause time.Duration, cause error) {
	l.rotateAfter = time.Now().Add(pause)
	l.o.Logger.Error("the next segment can't be begun; the log goes on in the old one", "error", cause, "tried_again_after", pause.String())
}

// next is a segment that waits under W.next for its name.
type next struct {
	header           frame.Header
	file, zero, read frame.File // for the flusher, the preallocation helper and readers
	allocated        int64
	parent, sealed   frame.Dir // opened before the renames: see frame.FS
}

func (n *next) close() error {
	var errs []error
	for _, f := range []frame.File{n.file, n.zero, n.read} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	for _, d := range []frame.Dir{n.parent, n.sealed} {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}

// makeNext writes the next segment under its temporary name, with its first
// preallocation, synced and locked. On an error there is nothing left of it, and
// the active segment is as it was.
func (l *Log) makeNext() (_ *next, err error) {
	if l.active.number > frame.MaxSealed {
		return nil, fmt.Errorf("segment %d can't be sealed: names of segments go up to %d", l.active.number, frame.MaxSealed)
	}
	n := &next{header: headerAfter(l.header, l.Head())}
	temp := l.w + frame.NextSuffix
	if err := l.noOtherLog(temp); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
			_ = l.o.FS.Remove(temp) // it may not be there; an open removes it too
		}
	}()
	l.o.Step("rotate.before_next")
	if n.parent, n.sealed, err = l.openFolders(); err != nil {
		return nil, err
	}
	if n.file, err = writeHeader(l.o.FS, temp, n.header); err != nil {
		return nil, err
	}
	if n.allocated, err = writeZeros(n.file, frame.HeaderSize, frame.HeaderSize+l.o.PreallocateBytes); err != nil {
		return nil, err
	}
	if err = l.watched(n.file.Sync); err != nil {
		return nil, err
	}
	if err = n.file.Flock(); err != nil {
		return nil, err
	}
	if n.read, err = l.o.FS.Open(temp, frame.ReadOnly); err != nil {
		return nil, err
	}
	if l.o.PreallocateBytes > 0 {
		n.zero, err = l.o.FS.Open(temp, frame.ReadWrite)
	}
	l.o.Step("rotate.after_next")
	return n, err
}

// headerAfter is the header of the segment that follows a head.
func headerAfter(h frame.Header, head Head) frame.Header {
	h.Segment, h.FirstSeq, h.PrevHash = head.Segment+1, head.Seq+1, head.Hash
	return h
}

// writeHeader begins a segment's file. It is not synced.
func writeHeader(fsys frame.FS, name string, h frame.Header) (frame.File, error) {
	b, err := h.Encode()
	if err != nil {
		return nil, err
	}
	f, err := fsys.Create(name)
	if err != nil {
		return nil, err
	}
	if _, err := f.Pwrite(b, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// openFolders gives the folder of W and the one of sealed segments, which is
// made where it is missing.
func (l *Log) openFolders() (parentDir, sealed frame.Dir, err error) {
	if err := l.o.FS.MkdirAll(l.w + frame.SegmentsSuffix); err != nil {
		return nil, nil, err
	}
	if parentDir, err = l.o.FS.OpenDir(parent(l.w)); err != nil {
		return nil, nil, err
	}
	if err = l.watched(parentDir.Sync); err == nil {
		sealed, err = l.o.FS.OpenDir(l.w + frame.SegmentsSuffix)
	}
	if err != nil {
		return nil, nil, errors.Join(err, parentDir.Close())
	}
	return parentDir, sealed, nil
}

// handOver puts the next segment in the place of the active one. One straight
// sequence: each step may be the last one before a crash, and finishRotation
// knows the state after each. The folder of sealed segments is synced between
// the two renames, so that no order in which a disk takes them loses a name.
//
// The first rename comes before the cut: where the folder does not take it, the log
// goes on in the old segment, which still has its preallocation and so the reserve of
// a full volume. After errNotSealed nothing was changed.
func (l *Log) handOver(n *next) error {
	old, head := l.active, l.Head()
	sealed := filepath.Join(l.w+frame.SegmentsSuffix, frame.SegmentName(old.number, old.first, head.Seq))
	l.o.Step("rotate.before_seal")
	if err := l.o.FS.Rename(l.w, sealed); err != nil {
		if named, nerr := l.file.Named(l.w); nerr == nil && named && (CannotMove(err) || noSpace(err)) {
			err = fmt.Errorf("%w: %w", errNotSealed, err)
		}
		return errors.Join(fmt.Errorf("sealing a segment: %w", err), n.close())
	}
	l.o.Step("rotate.after_seal")
	if err := l.file.Cut(head.Offset); err != nil {
		l.o.Logger.Warn("the sealed segment keeps zeros at its end", "error", err)
	}
	l.o.Step("rotate.after_cut")
	if err := l.watched(l.file.Sync); err != nil {
		return errors.Join(fmt.Errorf("sync of the segment that is sealed: %w", err), n.close())
	}
	if err := l.watched(n.sealed.Sync); err != nil {
		return errors.Join(fmt.Errorf("sync of the sealed segment's name: %w", err), n.close())
	}
	l.o.Step("rotate.before_begin")
	if err := l.o.FS.Rename(l.w+frame.NextSuffix, l.w); err != nil {
		return errors.Join(fmt.Errorf("beginning a segment: %w", err), n.close())
	}
	l.o.Step("rotate.after_begin")
	if err := l.watched(n.parent.Sync); err != nil {
		return errors.Join(fmt.Errorf("sync of the new segment's name: %w", err), n.close())
	}
	l.o.Step("rotate.after_sync")
	oldFiles := next{file: l.file, zero: l.zeroFile, parent: n.parent, sealed: n.sealed}
	l.swap(n, sealed, head)
	l.remember(old)
	if err := oldFiles.close(); err != nil {
		l.o.Logger.Warn("closing the sealed segment", "error", err)
	}
	if l.o.Fsync != FsyncOff {
		l.head.write(l.Head(), false)
	}
	l.o.Step("rotate.after_head")
	l.o.Logger.Info("a segment was sealed", "file", sealed, "last_seq", head.Seq)
	return nil
}

// swap makes the new segment the active one for appenders and readers. What has
// gathered in the filling batch meanwhile gets its place behind the new header.
func (l *Log) swap(n *next, sealed string, head Head) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.active
	l.active = &segment{number: n.header.Segment, first: n.header.FirstSeq, path: l.w, file: n.read, indexed: true}
	l.active.index = old.index.split(head.Seq, frame.HeaderSize-head.Offset)
	old.path, old.last, old.size = sealed, head.Seq, head.Offset
	l.segments = append(l.segments, l.active)
	l.filling.start = frame.HeaderSize
	l.durable.Segment, l.durable.Offset = n.header.Segment, frame.HeaderSize
	l.file, l.zeroFile = n.file, n.zero
	l.allocated, l.promised, l.born = n.allocated, frame.HeaderSize, time.Time{}
	select {
	case l.saveIndexNow <- struct{}{}:
	default:
	}
}

// finishRotation completes a rotation that the last run did not live to finish:
// the segment is sealed and no active one is there. It does nothing in any other
// state, and leaves what it cannot vouch for to the judge.
func (l *Log) finishRotation(ctx context.Context, rec *Recovery) error {
	set, err := frame.DiscoverHeld(l.o.FS, l.w)
	if err != nil {
		return err
	}
	unfinished, err := l.cutShort(ctx, &set)
	if err = errors.Join(err, set.Close()); err != nil || !unfinished {
		return err
	}
	unlock, err := l.lockStructure(ctx)
	if err != nil {
		return err
	}
	return errors.Join(l.beginAfterSealed(ctx, rec), unlock())
}

// cutShort tells whether the active segment is missing behind sealed ones. On a
// disk that does not take a rename as one step, a power cut can leave both names;
// where both files hold the same bytes, the old name goes.
func (l *Log) cutShort(ctx context.Context, set *frame.Set) (bool, error) {
	if len(set.Sealed) == 0 || set.Active.Err != nil || set.Err != nil {
		return false, nil
	}
	last := set.Sealed[len(set.Sealed)-1]
	if set.Active.Size == 0 {
		return true, nil
	}
	if last.Err != nil || !sameBytes(ctx, last, set.Active) {
		return false, ctx.Err()
	}
	if err := l.o.FS.SyncDir(l.w + frame.SegmentsSuffix); err != nil {
		return false, err
	}
	return true, l.o.FS.Remove(l.w)
}

// sameBytes tells whether two files agree as far as the first one goes, headers
// included, and the second has only zeros behind that.
func sameBytes(ctx context.Context, a, b frame.Segment) bool {
	if a.Size > b.Size || a.Size < frame.HeaderSize {
		return false
	}
	one, two := make([]byte, copyChunk), make([]byte, copyChunk)
	for off := int64(0); off < b.Size; off += copyChunk {
		n, m := min(copyChunk, max(a.Size-off, 0)), min(copyChunk, b.Size-off)
		clear(one)
		if ctx.Err() != nil {
			return false
		}
		if got, err := a.File.Pread(one[:n], off); int64(got) < n && err != nil {
			return false
		}
		if got, err := b.File.Pread(two[:m], off); int64(got) < m && err != nil {
			return false
		}
		if string(one[:m]) != string(two[:m]) {
			return false
		}
	}
	return true
}

// beginAfterSealed makes the active segment that follows the sealed ones, where
// nothing else is wrong with the log and no anchor knows of more events.
func (l *Log) beginAfterSealed(ctx context.Context, rec *Recovery) error {
	r, err := l.verifyNow(ctx)
	if err != nil {
		return err
	}
	if r.Status != frame.Partial || r.FaultsTotal != 1 || r.Faults[0].Kind != frame.MissingLog {
		return nil // the judge names it
	}
	if err := l.o.FS.SyncDir(l.w + frame.SegmentsSuffix); err != nil {
		return err
	}
	b, err := headerAfter(r.Header, headOf(r, l.o.Now())).Encode()
	if err != nil {
		return err
	}
	l.o.Step("recover.before_begin")
	if err := replaceFile(l.o.FS, l.w, b, true); err != nil {
		return err
	}
	l.o.Step("recover.after_begin")
	rec.warn("the last run ended while it sealed segment %d; the rotation was finished", r.End.Segment)
	return nil
}

// lockStructure takes the structure lock, waiting for verifiers that are opening
// files, and gives the function that returns it.
func (l *Log) lockStructure(ctx context.Context) (unlock func() error, err error) {
	wait, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	if err := lockError(l.lock.Lock(wait, frame.StructureByte, frame.Exclusive), l.w+frame.LockSuffix); err != nil {
		return nil, err
	}
	return func() error { return l.lock.Unlock(frame.StructureByte) }, nil
}
