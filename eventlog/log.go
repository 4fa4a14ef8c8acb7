package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"writegate/eventlog/frame"
)

// A Log is one open event log. All methods may be called from any goroutine.
type Log struct {
	o      Options
	w      string // the active segment's path, symbolic links resolved
	header frame.Header
	opened time.Time

	// Set by Open before any goroutine runs, then never changed.
	lock     frame.LockFile
	writable bool // false when Open found that nothing may be appended
	skimmed  bool // Open has looked at the ends of sealed segments alone

	keepsInodes bool // the volume gives a file one number as long as it is there

	// Set by Open, then by a rotation alone.
	file     frame.File // the flusher's and nobody else's for writing
	zeroFile frame.File // the preallocation helper's, nil without preallocation; under lengthening
	promised uint64     // the largest durable_off in the file, for Fsync off; the flusher's

	lengthening sync.Mutex   // held by whoever writes zeros ahead, and by a rotation
	looking     sync.Mutex   // held by whoever looks whether the files are in their places, and as they were
	seen        mark         // where the log ended at the last look; under looking
	turn        int          // how many sealed segments were looked at; under looking, or structure
	reread      atomic.Bool  // a sealed segment may have been changed, and all of the log is to be read
	structure   sync.RWMutex // held by a rotation, and shared by a verification that opens the files
	rotateAfter time.Time    // no rotation is tried before; the flusher's

	mu   sync.Mutex
	work sync.Cond // over mu: the flusher waits for frames, space or the end
	// Under mu.
	filling   *batch
	inflight  *batch        // from take until its waiters are woken
	room      chan struct{} // closed when the filling batch is taken; nil when nobody waits
	durable   Head
	allocated int64 // the file is written with zeros, or more, up to here
	full      bool  // no space beyond allocated
	stalled   bool  // the running sync takes longer than SlowSync
	closing   bool
	poison    error
	unserved  error   // why commands are refused though the disk works: corruption and its like
	sound     *uint64 // the last event before the damage that a verification found; nil: none did
	followers followers
	segments  []*segment // in order; the last one is active
	active    *segment
	vouches   func(seq uint64, eventHash [32]byte) bool // nil: nobody does
	born      time.Time                                 // when the active segment got its first event; zero while it has none

	syncSince atomic.Int64 // moment since opened at which the running sync began, or 0
	head      *headFile
	fatal     chan error

	spaceWanted  chan struct{} // capacity 1: wakes the preallocation helper
	saveIndexNow chan struct{} // capacity 1: wakes the writer of the index file

	flushed chan struct{}  // closed when the flusher has ended
	stop    chan struct{}  // closed when the helpers have to end
	helpers sync.WaitGroup // preallocation, watchdog, head sync, index, background verification
	jsonl   sync.WaitGroup // the JSONL projection ends with its follower

	reading  sync.RWMutex // held shared while a read handle is in use
	released bool         // under reading: the handles are closed
	indexing sync.Mutex   // one sealed segment is indexed at a time

	verifying verifying

	closeOnce sync.Once
	closeErr  error
}

// Head is the durable end of the log.
type Head struct {
	Seq     uint64    // 0 in an empty log
	Hash    [32]byte  // of that event; the header's hash in an empty log
	Segment uint32    // segment number
	Offset  int64     // where the next frame begins
	Time    time.Time // when the batch was committed, or when the log was opened
}

// Health says whether the log takes new commands, and if not, at which step it fails.
type Health struct {
	OK      bool
	Step    string // serving, poisoned, fence, sync or storage; "" when OK
	Message string
}

// LogID is the random id that the header of every segment carries.
func (l *Log) LogID() [16]byte { return l.header.LogID }

// Header is the header of segment 0, where the chain begins.
func (l *Log) Header() frame.Header { return l.header }

// Head gives the durable end: what is below it is in the log for good.
func (l *Log) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.durable
}

// Reaches tells whether somebody who has the events before seq can have them from this
// log; where it does not, last is the last of those that anybody can have been told of.
// That is not the head: who waits for no sync is told before. A log that is up for
// reading alone has perhaps lost sight of its end, and reaches any seq.
func (l *Log) Reaches(seq uint64) (last uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last = max(l.durable.Seq, l.filling.last)
	return last, l.unserved != nil || seq <= last+1
}

// Serving gives nil when the log takes commands, or why it is up for reading
// alone: ErrCorrupt, ErrTornTail or ErrUnreadable.
func (l *Log) Serving() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unserved
}

// soundIn is the last event that nothing is known against: what is read of a log is, and
// what is kept outside of it.
func soundIn(r *frame.Report) *uint64 {
	last := min(r.VerifiedTo, agreed(r))
	return &last
}

// Damaged tells whether a verification found damage, and the last event that nothing was
// wrong with. Without damage that is the head.
func (l *Log) Damaged() (verifiedTo uint64, damaged bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sound == nil {
		return l.durable.Seq, false
	}
	return min(*l.sound, l.durable.Seq), true
}

// Fatal delivers one error when the log is poisoned: the process has to end
// with ExitPoisoned.
func (l *Log) Fatal() <-chan error { return l.fatal }

// Health gives the worst thing that is wrong now.
func (l *Log) Health() Health {
	if l.syncSince.Load() == 0 { // else the disk may hang, and with it this look
		l.lookForFiles()
	}
	fenced := l.fenced()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.poison != nil:
		return Health{Step: "poisoned", Message: l.poison.Error()}
	case l.unserved != nil:
		return Health{Step: "serving", Message: l.unserved.Error()}
	case fenced != nil:
		return Health{Step: "fence", Message: fenced.Error()}
	case l.stalled:
		return Health{Step: "sync", Message: fmt.Sprintf("a write or sync has been running for more than %v", l.o.SlowSync)}
	case l.full:
		return Health{Step: "storage", Message: "storage_full: no space left to lengthen the log"}
	}
	return Health{OK: true}
}

// corrupt makes the log refuse commands after a verification found corruption.
func (l *Log) corrupt(r frame.Report) {
	l.mu.Lock()
	known := l.unserved != nil
	if !known {
		l.unserved = fmt.Errorf("%w: %s", ErrCorrupt, describe(r))
	}
	l.mu.Unlock()
	if known {
		return
	}
	l.o.Logger.Error("verification found corruption; the log is up for reading alone", "detail", describe(r))
	if l.o.OnCorruption != nil {
		l.o.OnCorruption(r)
	}
}

// Close lets what was appended become durable, leaves the clean mark and gives
// the locks back. When ctx ends first the clean mark is missing, and the next
// open judges the file as after a crash. Close is called once for each Open; a
// second call gives the first one's answer.
func (l *Log) Close(ctx context.Context) error {
	l.closeOnce.Do(func() { l.closeErr = l.close(ctx) })
	return l.closeErr
}

func (l *Log) close(ctx context.Context) error {
	l.mu.Lock()
	l.closing = true
	l.openRoom()
	l.work.Broadcast()
	l.mu.Unlock()
	select {
	case <-l.flushed:
	case <-ctx.Done():
		// The flusher hangs in a sync. Its descriptors stay open: the process is ending.
		return fmt.Errorf("closing the log: %w", ctx.Err())
	}
	l.mu.Lock()
	l.followers.end()
	poison := l.poison
	l.mu.Unlock()
	close(l.stop)
	l.helpers.Wait()
	l.jsonl.Wait()
	var errs []error
	if l.writable && poison == nil {
		errs = append(errs, l.leaveClean())
	}
	return errors.Join(append(errs, l.release(), poison)...)
}

// leaveClean sets the clean mark: nothing follows the head, and all of it is synced.
func (l *Log) leaveClean() error {
	if l.o.Fsync == FsyncOff {
		if err := l.file.Datasync(); err != nil {
			return err
		}
	}
	l.o.Step("close.before_clean")
	return l.head.writeSynced(l.Head(), true)
}

// release closes what Open opened. The lock goes last.
func (l *Log) release() error {
	l.reading.Lock()
	defer l.reading.Unlock()
	var errs []error
	l.released = true
	for _, s := range l.segments {
		if s.file != nil {
			errs = append(errs, s.file.Close())
		}
	}
	if l.head != nil {
		errs = append(errs, l.head.file.Close())
	}
	for _, f := range []frame.File{l.zeroFile, l.file} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	return errors.Join(errs...)
}
