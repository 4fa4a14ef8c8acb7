package commands

import (
	"context"
	"sync"
	"time"

	"writegate/commands/fault"
	"writegate/projections"
)

// keyState is what deciding needs to know of an idempotency key that a
// dispatched statement holds.
type keyState struct {
	requestDigest [32]byte
}

// decideKey refuses a key that is taken: by another request, or by this one
// while it has no answer yet.
func decideKey(k *keyState, requestDigest [32]byte) error {
	if k == nil {
		return nil
	}
	if k.requestDigest != requestDigest {
		return fault.New(fault.IdempotencyConflict, "The idempotency key was used for another request. Use a new key.")
	}
	return fault.New(fault.IdempotencyInProgress, "The first request under this idempotency key is still running. Send it again later for its answer.")
}

func findKey(view *projections.View, scope [32]byte, now time.Time) (projections.IdempotencyRecord, *keyState, error) {
	r, found, err := view.Idempotency(scope, now)
	if err != nil || !found {
		return r, nil, err
	}
	return r, &keyState{requestDigest: r.RequestDigest}, nil
}

// keyLeases are the keys of requests that are running in this process. A key
// becomes durable with the dispatch; before that its lease is all that keeps
// two equal requests apart.
type keyLeases struct {
	mu   sync.Mutex
	held map[[32]byte][32]byte // scope -> request digest; guarded by mu
}

func newKeyLeases() *keyLeases { return &keyLeases{held: make(map[[32]byte][32]byte)} }

// take reserves a scope, or tells who has it.
func (l *keyLeases) take(scope, requestDigest [32]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if holder, taken := l.held[scope]; taken {
		return decideKey(&keyState{requestDigest: holder}, requestDigest)
	}
	l.held[scope] = requestDigest
	return nil
}

func (l *keyLeases) release(scope [32]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, scope)
}

// A KeyLease reserves an idempotency key for one running request.
type KeyLease struct {
	once   sync.Once
	leases *keyLeases
	scope  [32]byte
}

// Release gives the key free, at the end of the request: after its result is
// recorded, or when it ended without a dispatch. Releasing twice is harmless.
func (l *KeyLease) Release() {
	if l != nil {
		l.once.Do(func() { l.leases.release(l.scope) })
	}
}

// BeginKey is the first thing a keyed request does. Exactly one of three things
// comes back: a lease, so that the request may go on and is alone under its key
// until Release; the record of the first answer, to be given again; or an
// error: idempotency_conflict, or idempotency_in_progress.
//
// scope is the digest over actor, app, tenant and key; requestDigest is that of
// the statement and its context (spec/decisions.md part 3).
func (c *Commands) BeginKey(ctx context.Context, scope, requestDigest [32]byte, now time.Time) (*KeyLease, *projections.IdempotencyRecord, error) {
	// Answered keys are replayed without a lease: replays must not get into each
	// other's way.
	record, err := c.toldAnswer(ctx, scope, requestDigest, now)
	if err != nil || record != nil {
		return nil, record, err
	}
	taken := c.keys.take(scope, requestDigest)
	// Only now the view that counts: whoever held the lease before released it
	// after its events were applied, so what it did shows here.
	record, err = c.toldAnswer(ctx, scope, requestDigest, now)
	if taken != nil {
		if err == nil && record == nil {
			err = taken
		}
		return nil, record, err
	}
	lease := &KeyLease{leases: c.keys, scope: scope}
	if err != nil || record != nil {
		lease.Release()
		return nil, record, err
	}
	return lease, nil, nil
}

// toldAnswer is keptAnswer that knows what a client was told ahead of the sync: the
// result of the latency profile shows in no view until then, so a request that seems to
// run still is looked at again when what is written shows.
func (c *Commands) toldAnswer(ctx context.Context, scope, requestDigest [32]byte, now time.Time) (*projections.IdempotencyRecord, error) {
	written := c.written.Load() // ahead of the look: what is told later is not waited for
	record, err := c.keptAnswer(ctx, scope, requestDigest, now)
	if fault.CodeOf(err) != fault.IdempotencyInProgress || written == 0 {
		return record, err
	}
	wait, cancel := context.WithTimeout(ctx, c.turnWait)
	defer cancel()
	if c.store.WaitApplied(wait, written) != nil {
		return nil, err // the disk takes its time: its first answer is not there to be given
	}
	return c.keptAnswer(ctx, scope, requestDigest, now)
}

func (c *Commands) keptAnswer(ctx context.Context, scope, requestDigest [32]byte, now time.Time) (*projections.IdempotencyRecord, error) {
	var record projections.IdempotencyRecord
	var state *keyState
	err := c.look(ctx, func(view *projections.View) (err error) {
		record, state, err = findKey(view, scope, now)
		return err
	})
	if err != nil || state == nil {
		return nil, err
	}
	if state.requestDigest == requestDigest && record.Answered {
		return &record, nil
	}
	return nil, decideKey(state, requestDigest)
}
