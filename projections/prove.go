package projections

import (
	"context"
	"errors"
	"fmt"

	"writegate/eventlog/event"
)

// ErrUnproven says that a store is not what the log's own digest of it says.
var ErrUnproven = errors.New("projections are not what the log says of them")

// Prove holds the store, before Connect, against the digest that the last event of
// a clean run carries. ok is false where there is nothing to hold it against: no
// clean end, projectors of another version, or a store that is at another event.
//
// Error: ErrUnproven, or that of a read. The store can be put aside then.
func (s *Store) Prove(ctx context.Context, last *event.Envelope) (ok bool, err error) {
	rec, some, err := RecordedIn(last)
	if err != nil || !some || last.Type != event.TypeShutdown || rec.Projectors != ProjectorVersion {
		return false, err
	}
	v := s.View()
	defer func() { err = errors.Join(err, v.Close()) }()
	// The event that carries the digest changes no record, unless it completes a
	// block of the index.
	if v.applied.Seq != last.Seq || v.applied.Hash != last.Hash || rec.AsOf != last.Seq-1 || last.Seq%blockEvents == 0 {
		return false, nil
	}
	digest, err := v.digestAs(ctx, rec.AsOf)
	if err == nil && digest != rec.Digest {
		err = fmt.Errorf("%w: event %d has another digest of them", ErrUnproven, last.Seq)
	}
	return err == nil, s.damaged(err)
}

// PutAside closes the store, renames its folder as Open does with one that cannot
// be read, and begins an empty one, which Connect rebuilds.
func (s *Store) PutAside(reason string) (*Store, error) {
	if err := s.Close(); err != nil && !errors.Is(err, ErrDamaged) {
		return nil, err
	}
	return begunAnew(s.o, reason)
}
