package projections

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"writegate/eventlog"
	"writegate/eventlog/event"
)

// A Source is a log to fold: *eventlog.Log.
type Source interface {
	LogID() [16]byte
	// From gives the durable events from seq on, up to the head.
	From(ctx context.Context, seq uint64) iter.Seq2[event.Envelope, error]
	// Ancestors gives the logs that this one follows, the oldest first.
	Ancestors(ctx context.Context) ([]eventlog.Ancestor, error)
	// Head is the last durable event.
	Head() eventlog.Head
}

// A Follower is a log that goes on: *eventlog.Log.
type Follower interface {
	Source
	// Follow gives the durable events from seq on in batches, and on.
	Follow(ctx context.Context, seq uint64) iter.Seq2[eventlog.Batch, error]
}

// Limits say how a replay cuts its work.
type limits struct {
	events int // of a batch: what they change is written once, as it stands at its end
	load   int // bytes from which on a load goes to the store
	tables int // bytes from which on it becomes tables
}

// batchBytes ends a batch of large records early.
const batchBytes = 1 << 20

var replayLimits = limits{events: 1024, load: 8 << 20, tables: 256 << 10}

// Connect binds the store to its log and replays what it has not seen.
//
// Errors: ErrOtherLog, ErrAhead and ErrDiverged accuse the log; ErrDamaged the
// store; event.ErrUnknownType says that a later program wrote the log. The gate
// serves after none of them.
func (s *Store) Connect(ctx context.Context, src Source) error {
	s.applying.Lock()
	defer s.applying.Unlock()
	if err := s.replay(ctx, s.space, src); err != nil {
		return s.damaged(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connected = true
	s.follows.Store(&following{context.WithoutCancel(ctx), src})
	return nil
}

// replay compares a space with the log and folds the rest of the log into it.
func (s *Store) replay(ctx context.Context, sp *space, src Source) error {
	known := sp.applied
	if known.Seq > 0 && known.LogID != src.LogID() {
		return fmt.Errorf("%w: %x, the log is %x", ErrOtherLog, known.LogID, src.LogID())
	}
	from := uint64(1)
	if known.Seq > 0 {
		from = firstOf(blockOf(known.Seq))
	}
	if known.Seq == 0 {
		if err := s.inherit(ctx, sp, src); err != nil {
			return err
		}
	}
	known.LogID = src.LogID()
	grown, err := openGrowth(s.db, sp.id, from-1)
	if err != nil {
		return err
	}
	r := &replay{store: s, space: sp, known: known, last: from - 1, block: block{no: blockOf(from)}, growth: grown}
	return r.run(ctx, "replay the log", chunksOf(src, from))
}

// A replay is one pass over the log.
type replay struct {
	store  *Store
	space  *space
	known  Applied // what the space held before
	block  block   // the block in the making as of known
	growth growth
	ready  bool // the space has known, block and growth
	last   uint64
	tx     *tx
	n      int                    // events in tx
	loaded bool                   // the load holds something
	loads  [2]*load               // one for tx, the other for the one on its way
	flying chan error             // result of the load on its way to the store, or nil
	taken  func(seq uint64) error // told each event that was folded; may be nil
}

// run reads, folds and writes side by side: the log is read ahead, and a load is
// on its way to the store while the next one is folded.
func (r *replay) run(ctx context.Context, what string, log chunks) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	ahead, used := readAhead(ctx, log)
	defer func() {
		cancel()
		for range ahead { // until the reader has gone
		}
		err = errors.Join(err, r.land())
	}()
	for next := range ahead {
		if next.err != nil {
			return fmt.Errorf("%s: %w", what, next.err)
		}
		for i := range next.chunk.Events {
			if err := r.take(&next.chunk.Events[i]); err != nil {
				return err
			}
		}
		select {
		case used <- next.chunk: // of what was folded, texts alone are kept
		default:
		}
	}
	if err := ctx.Err(); err != nil { // the reader may have gone without a word
		return fmt.Errorf("%s: %w", what, err)
	}
	return r.end()
}

func (r *replay) take(e *event.Envelope) error {
	if r.last = e.Seq; e.Seq <= r.known.Seq {
		return r.recall(e)
	}
	if r.tx == nil {
		r.begin()
	}
	if err := r.tx.safeFold(e); err != nil {
		return err
	}
	if r.n++; r.n >= r.store.limits.events || r.tx.size >= batchBytes {
		if err := r.step(); err != nil {
			return err
		}
	}
	if r.taken == nil {
		return nil
	}
	return r.taken(e.Seq)
}

// begin makes the first batch. A space that holds nothing, neither of this log
// nor of one before it, knows its keys.
func (r *replay) begin() {
	r.prepare()
	hidden := !r.store.shows(r.space)
	r.loads = [2]*load{newLoad(hidden), newLoad(hidden)}
	r.tx = beginLoad(r.store.db, r.space, r.loads[0])
	if r.known.Seq == 0 && len(r.space.lineage) == 0 {
		r.tx.known = newRegister()
	}
}

// shows reports whether views show the index and the tree of a space.
func (s *Store) shows(sp *space) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.connected && s.space == sp
}

// recall takes an event that is applied already into the block and the piece of
// the tree in the making.
func (r *replay) recall(e *event.Envelope) error {
	if e.Seq == r.known.Seq && e.Hash != r.known.Hash {
		return fmt.Errorf("%w: event %d is %x, the log has %x", ErrDiverged, e.Seq, r.known.Hash, e.Hash)
	}
	if err := r.growth.add(e.Hash); err != nil {
		return err
	}
	if r.block.add(e); len(r.block.entries) == blockEvents {
		r.block, r.growth.tail = block{no: r.block.no + 1}, nil // written when it was completed
	}
	return nil
}

// prepare gives the space what was recalled, once all of it was.
func (r *replay) prepare() {
	if r.ready {
		return
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.space.applied, r.space.block, r.space.growth, r.ready = r.known, r.block, r.growth, true
}

// step ends the batch, and the load where it is large enough.
func (r *replay) step() error {
	if err := errors.Join(r.tx.seal(), r.tx.write()); err != nil {
		return err
	}
	r.n, r.loaded = 0, true
	if r.loads[0].size >= r.store.limits.load {
		return r.commit()
	}
	r.tx = r.tx.next(r.loads[0])
	return nil
}

// commit sends the load on its way and begins the next one.
func (r *replay) commit() error {
	if err := r.land(); err != nil {
		return err
	}
	t, landed, past := r.tx, make(chan error, 1), r.space.past
	r.loads[0], r.loads[1] = r.loads[1], r.loads[0]
	r.loads[0].reset() // the one that has landed
	r.loads[0].before, r.loads[1].before = r.loads[1], nil
	r.tx, r.loaded, r.flying = t.next(r.loads[0]), false, landed
	go func() {
		err := r.store.writeLoad(t)
		if err == nil && !past {
			r.store.o.Progress(t.applied.Seq)
		}
		landed <- err
	}()
	return nil
}

// land waits for the load on its way.
func (r *replay) land() error {
	if r.flying == nil {
		return nil
	}
	err := <-r.flying
	r.flying = nil
	return err
}

// settle writes all that was folded.
func (r *replay) settle() error {
	if r.n > 0 {
		if err := r.step(); err != nil {
			return err
		}
	}
	if r.loaded {
		if err := r.commit(); err != nil {
			return err
		}
	}
	return r.land()
}

func (r *replay) end() error {
	if r.last < r.known.Seq {
		return fmt.Errorf("%w: they hold event %d, the log ends at %d", ErrAhead, r.known.Seq, r.last)
	}
	r.prepare()
	return r.settle()
}

// following is what views wait for: that Run has folded the log up to its head.
type following struct {
	ctx context.Context // until Run ends
	log Source
}

// Run folds every new event until ctx ends or the log is closed, and flushes
// now and then. It is called once, after Connect. An error of a fold ends it
// and is told by Fatal; so does Close, which is not.
func (s *Store) Run(ctx context.Context, log Follower) error {
	ctx, cancel := context.WithCancel(ctx)
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		s.flushNowAndThen(ctx)
	}()
	s.follows.Store(&following{ctx, log})
	defer func() {
		s.follows.Store(nil)
		cancel() // views that wait go on with what there is
		<-flushed
	}()
	for b, err := range log.Follow(ctx, s.seq.Load()+1) {
		if ctx.Err() == nil && err == nil {
			err = s.apply(b.Events)
		}
		if ctx.Err() != nil || errors.Is(err, ErrClosed) {
			return errors.Join(ctx.Err(), err)
		}
		if err != nil {
			err = s.damaged(err)
			s.fail(err)
			return err
		}
	}
	return nil
}

func (s *Store) flushNowAndThen(ctx context.Context) {
	tick := time.NewTicker(s.o.FlushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := s.Flush(ctx); err != nil && ctx.Err() == nil {
				s.o.Logger.Error("projections can't be flushed; a crash would cost more replay", "error", err)
			}
		}
	}
}

// apply folds one commit batch of the log as one batch of the store.
func (s *Store) apply(events []event.Envelope) error {
	s.applying.Lock()
	defer s.applying.Unlock()
	select {
	case <-s.stopped:
		return s.stopReason()
	default:
	}
	t := begin(s.db, s.space)
	for i := range events {
		if events[i].Seq <= t.applied.Seq {
			continue // a rebuild has taken it from the log
		}
		if err := t.safeFold(&events[i]); err != nil {
			return err
		}
	}
	return s.commit(t)
}

// safeFold turns the panic of a projector into an error: a fault of the
// program ends it in order, with the event's number.
func (t *tx) safeFold(e *event.Envelope) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("event %d, %s: projector panicked: %v\n%s", e.Seq, e.Type, p, debug.Stack())
		}
	}()
	return t.fold(e)
}

// commit ends a batch and writes it; write lets views and waiters see it in the
// same step.
func (s *Store) commit(t *tx) error {
	if err := t.seal(); err != nil {
		return err
	}
	return s.write(t)
}

func (s *Store) write(t *tx) error {
	if err := t.write(); err != nil {
		return err
	}
	return s.publish(t)
}

// writeLoad writes a load whose last batch is t. Nobody looks at a space while it
// is replayed, so views need not see the tables in the step that tells of them.
func (s *Store) writeLoad(t *tx) error {
	t.batch = s.db.NewBatch()
	if t.load.size < s.limits.tables {
		if err := t.load.batch(t.batch); err != nil {
			return err
		}
	} else if err := s.ingest(t.space.id, t.load); err != nil {
		return err
	}
	return s.publish(t)
}

// publish commits a batch and lets views start from it.
func (s *Store) publish(t *tx) error {
	if err := s.waitForRoom(t.batch.Len()); err != nil {
		return err
	}
	s.mu.Lock()
	if err := t.batch.Commit(pebble.NoSync); err != nil {
		s.mu.Unlock()
		return err
	}
	t.space.applied, t.space.counters, t.space.block, t.space.growth, t.space.newest = t.applied, t.counters, t.block, t.growth, t.newest
	current := t.space == s.space && !t.space.past
	s.mu.Unlock()
	if current {
		s.seq.Store(t.applied.Seq)
		s.waiters.wake(t.applied.Seq)
	}
	return t.batch.Close() // its memory serves the next one
}
