package projections

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

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
	known, fresh := s.space.applied, &space{id: nextSpace(s.space.id)}
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

// RebuildOffline rebuilds the projections of a log that no gate has open, as
// `gate log rebuild` does, and gives what they hold then.
func RebuildOffline(ctx context.Context, o Options, src Source) (Applied, error) {
	s, err := Open(o)
	if err != nil {
		return Applied{}, err
	}
	err = s.Rebuild(ctx, src)
	return s.Applied(), errors.Join(err, s.Close())
}

// digestTag keeps the digest apart from every other hash of the service.
const digestTag = "gate.projection.v1\x00"

// treePrefix is kept free for the hashes of the log's tree, which is no projection.
const treePrefix = "tree/"

// Digest hashes all projections as of one event (design/eventlog.md part 11):
// two stores that folded the same events have the same digest. It reads the
// whole store, from a snapshot.
func (s *Store) Digest(ctx context.Context) (seq uint64, digest [32]byte, err error) {
	v := s.View()
	defer func() { err = errors.Join(err, v.Close()) }()
	it, err := v.iter(nil, []byte{0xff})
	if err != nil {
		return 0, digest, err
	}
	h := sha256.New()
	head := binary.BigEndian.AppendUint64([]byte(digestTag), v.applied.Seq)
	h.Write(binary.BigEndian.AppendUint32(head, ProjectorVersion))
	var sized []byte
	n := 0
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		if key := it.Key()[1:]; !strings.HasPrefix(string(key), keyMeta) && !strings.HasPrefix(string(key), treePrefix) {
			sized = append(binary.BigEndian.AppendUint32(sized[:0], uint32(len(key))), key...)
			sized = binary.BigEndian.AppendUint32(sized, uint32(len(it.Value())))
			h.Write(sized)
			h.Write(it.Value())
		}
		if n++; n%4096 == 0 {
			err = ctx.Err()
		}
	}
	if err = v.closeIter(it, err); err != nil {
		return 0, digest, err
	}
	return v.applied.Seq, [32]byte(h.Sum(nil)), nil
}
