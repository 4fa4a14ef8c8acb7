package projections

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Errors of the store. The first three accuse the log, not the store: it is
// kept as it is, and the gate does not serve.
var (
	ErrAhead        = errors.New("projections are ahead of the log: the log has lost events")
	ErrDiverged     = errors.New("projections hold another event than the log: one of them was rewritten")
	ErrOtherLog     = errors.New("projections belong to another log")
	ErrDamaged      = errors.New("projections are damaged; the next start rebuilds them from the log")
	ErrClosed       = errors.New("projections are closed")
	ErrNotConnected = errors.New("projections are not connected to their log yet")
	ErrFilter       = errors.New("filter value is not known")
	ErrCursor       = errors.New("cursor does not belong to this list, filter and order")
)

// Options of a store.
type Options struct {
	Dir        string        // made if it is not there
	FS         vfs.FS        // nil = the operating system's
	Logger     *slog.Logger  // nil = nothing is logged
	FlushEvery time.Duration // 0 = 10 s; how much replay a crash may cost
	// Context ends an opening that waits for the volume. nil = none does.
	Context context.Context
	// Progress is told, while events are replayed, up to which one. It may be nil.
	Progress func(seq uint64)
}

func (o *Options) complete() {
	if o.FS == nil {
		o.FS = privateFS{vfs.Default}
	}
	if o.Context == nil {
		o.Context = context.Background()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FlushEvery == 0 {
		o.FlushEvery = 10 * time.Second
	}
	if o.Progress == nil {
		o.Progress = func(uint64) {}
	}
}

// A Store is the projections of one log. Run alone folds new events in; any
// number of goroutines look at it.
type Store struct {
	o       Options
	db      *pebble.DB
	aside   *Aside
	seq     atomic.Uint64 // applied.Seq of the current space, for waiters
	waiters waiters
	follows atomic.Pointer[following] // nil while nothing new is folded

	limits limits                // of a replay
	tables sstable.WriterOptions // of its loads

	room room

	applying sync.Mutex // held by whoever folds events into the current space or replaces it

	mu        sync.RWMutex // guards what views start from
	space     *space
	connected bool
	closed    error // why no view can be opened any more

	views   sync.WaitGroup // that are open
	closing atomic.Bool    // open views end

	using      sync.RWMutex // held for reading by work on db that takes its time, for writing by Close
	rebuilding sync.Mutex

	failed  atomic.Pointer[error] // the first failure
	stopped chan struct{}         // closed when nothing will be applied any more
	stop    func()                // closes stopped, once
	fatal   chan error
	gaveUp  chan error  // Pebble, for ever
	parked  atomic.Bool // Pebble has given up and may hold its locks for ever
}

// An Aside tells what became of a store that could not be used.
type Aside struct {
	Path   string // where it is now; nothing reads it again
	Reason string
}

// Aside tells whether Open put an older store aside and began an empty one,
// which Connect then rebuilds. It belongs into the startup event's warnings.
func (s *Store) Aside() (Aside, bool) {
	if s.aside == nil {
		return Aside{}, false
	}
	return *s.aside, true
}

// Applied is how far the projections have got.
func (s *Store) Applied() Applied {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.space.applied
}

// Fatal gives the one error after which the process has to end (exit code 70):
// nothing is applied any more. The log is right, and the next start replays it.
func (s *Store) Fatal() <-chan error { return s.fatal }

// fail ends applying and tells it to Fatal and to all who wait.
func (s *Store) fail(err error) {
	if !s.failed.CompareAndSwap(nil, &err) {
		return
	}
	s.o.Logger.Error("projections have failed", "error", err)
	s.fatal <- err
	s.stop()
}

// stopReason is why nothing is applied any more, once stopped is closed.
func (s *Store) stopReason() error {
	if err := s.failed.Load(); err != nil {
		return fmt.Errorf("projections have failed: %w", *err)
	}
	return ErrClosed
}

// WaitApplied returns when the event seq is in every new view. It gives the
// error of ctx, of a store that has failed or was closed, or ErrFull.
func (s *Store) WaitApplied(ctx context.Context, seq uint64) error {
	if s.seq.Load() >= seq {
		return nil
	}
	w := s.waiters.add(seq)
	if s.seq.Load() >= seq { // applied between the two looks: nobody would wake w
		s.waiters.wake(s.seq.Load())
	}
	full := s.room.full.Load()
	select {
	case <-w.done:
		s.waiters.free(w)
		return nil
	case <-ctx.Done():
		s.waiters.remove(w)
		return ctx.Err()
	case <-s.stopped:
		s.waiters.remove(w)
		return s.stopReason()
	case <-full.closed:
		s.waiters.remove(w)
		return full.err
	}
}

// Flush makes what is applied survive a crash, so that less has to be replayed. It ends
// with ctx: Pebble tries for as long as its volume takes nothing more.
func (s *Store) Flush(ctx context.Context) error {
	s.using.RLock()
	defer s.using.RUnlock()
	if err := s.closedBy(); err != nil {
		return err
	}
	written, err := s.db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-written:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) closedBy() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.closed
}

// ErrUnwritten says that the volume of the store took nothing more until it was given up.
var ErrUnwritten = errors.New("projections could not be written to their volume; nothing is lost, the next start folds them from the log")

var errViewsOpen = errors.New("projections: requests still read when the store was to be closed")

// viewsEnd is how long Close waits for open views, whose next read fails.
const viewsEnd = 10 * time.Second

// writingEnd is how long Close waits for the volume.
var writingEnd = 10 * time.Second

// inTime does the last work on the store. What does not end is for the end of the process.
func inTime(work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-time.After(writingEnd):
		return ErrUnwritten
	}
}

// Close flushes and ends the store. Run has to have returned. Open views are told
// to end; where one does not, Close gives an error, and the rest is for the end of
// the process. After a failure it gives that error and does not flush. The error is
// ErrUnwritten where the volume takes nothing more.
func (s *Store) Close() error {
	s.stop()
	if s.parked.Load() {
		return s.stopReason() // Pebble's locks are held: the rest is for the end of the process
	}
	s.using.Lock()
	defer s.using.Unlock()
	s.applying.Lock()
	defer s.applying.Unlock()
	s.mu.Lock()
	before := s.closed
	s.closed = ErrClosed
	s.mu.Unlock()
	if before != nil {
		return nil
	}
	s.closing.Store(true)
	ended := make(chan struct{})
	go func() { s.views.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(viewsEnd):
		return errors.Join(errViewsOpen, inTime(s.db.Flush))
	}
	if failed := s.failed.Load(); failed != nil {
		return errors.Join(*failed, inTime(s.db.Close))
	}
	return inTime(func() error { return errors.Join(s.db.Flush(), s.db.Close()) })
}

// damaged judges an error of a read: if the store itself is unreadable, it is spoiled.
func (s *Store) damaged(err error) error {
	if !pebble.IsCorruptionError(err) && !errors.Is(err, errRecord) {
		return err
	}
	return s.spoiled(err)
}

// spoiled leaves the mark that makes the next start rebuild the store, and
// fails this one.
func (s *Store) spoiled(err error) error {
	err = fmt.Errorf("%w: %w", ErrDamaged, err)
	if e := markDamaged(&s.o, "found unreadable in use: "+err.Error()); e != nil {
		s.o.Logger.Error("the mark for the next start can't be written", "error", e)
	}
	s.fail(err)
	return err
}
