package projections

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Rebuild folds the whole log again, into a second key space, and then puts
// that one in the place of the first in one write. Views opened before go on
// seeing the old one. A store that the log does not vouch for is not touched:
// see Connect's errors.
func (s *Store) Rebuild(ctx context.Context, src Source) error {
	s.rebuilding.Lock()
	defer s.rebuilding.Unlock()
	s.mu.RLock()
	known, fresh := s.space.applied, newSpace(nextSpace(s.space.id))
	s.mu.RUnlock()
	if known.Seq > 0 && known.LogID != src.LogID() {
		return ErrOtherLog
	}
	if err := s.drop(fresh.id); err != nil {
		return err
	}
	if err := s.replay(ctx, fresh, src); err != nil { // most of it, while events go on being applied
		return s.damaged(err)
	}
	s.applying.Lock()
	defer s.applying.Unlock()
	if err := s.replay(ctx, fresh, src); err != nil { // what came meanwhile
		return s.damaged(err)
	}
	if err := s.vouched(fresh); err != nil {
		return err
	}
	return s.replace(fresh)
}

// vouched refuses to replace a space by one that is behind it: what it knew
// more would be gone.
func (s *Store) vouched(fresh *space) error {
	old := s.space.applied
	if fresh.applied.Seq < old.Seq {
		return fmt.Errorf("%w: they hold event %d, the log ends at %d", ErrAhead, old.Seq, fresh.applied.Seq)
	}
	if fresh.applied.Seq == old.Seq && fresh.applied.Hash != old.Hash {
		return ErrDiverged
	}
	return nil
}

// replace switches to fresh and removes the old space.
func (s *Store) replace(fresh *space) error {
	b := s.db.NewBatch()
	err := errors.Join(b.Set(spaceKey, []byte{fresh.id}, nil), b.DeleteRange([]byte{s.space.id}, []byte{s.space.id + 1}, nil))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := b.Commit(pebble.NoSync); err != nil {
		return err
	}
	s.space, s.connected = fresh, true
	s.seq.Store(fresh.applied.Seq)
	s.waiters.wake(fresh.applied.Seq)
	return nil
}

// drop empties a key space that nobody uses.
func (s *Store) drop(id byte) error {
	return s.db.DeleteRange([]byte{id}, []byte{id + 1}, pebble.NoSync)
}

// Rebuilt says what a rebuild has left: what the projections hold, and where an
// older store is that could not be used (Aside); "" where there was none.
type Rebuilt struct {
	Applied
	Aside string
}

// RebuildOffline rebuilds the projections of a log that no gate has open, as
// `gate log rebuild` does.
func RebuildOffline(ctx context.Context, o Options, src Source) (Rebuilt, error) {
	o.Context = ctx
	s, err := Open(o)
	if err != nil {
		return Rebuilt{}, err
	}
	err = s.Rebuild(ctx, src)
	aside, _ := s.Aside()
	return Rebuilt{s.Applied(), aside.Path}, errors.Join(err, s.Close())
}
