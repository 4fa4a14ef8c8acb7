package projections

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// digestTag keeps the digest apart from every other hash of the service.
const digestTag = "gate.projection.v1\x00"

// Digest hashes all projections as of one event (design/eventlog.md part 11):
// two stores that folded the same events have the same digest. It reads the
// whole store, from a snapshot.
func (s *Store) Digest(ctx context.Context) (seq uint64, digest [32]byte, err error) {
	v := s.View()
	defer func() { err = errors.Join(err, v.Close()) }()
	digest, err = v.Digest(ctx)
	return v.applied.Seq, digest, err
}

// Digest is the digest of what the view shows.
func (v *View) Digest(ctx context.Context) (digest [32]byte, err error) {
	return v.digestAs(ctx, v.applied.Seq)
}

// digestAs is the digest of what the view shows, said to be as of event seq.
func (v *View) digestAs(ctx context.Context, seq uint64) (digest [32]byte, err error) {
	it, err := v.iter(nil, []byte{0xff})
	if err != nil {
		return digest, err
	}
	h := sha256.New()
	head := binary.BigEndian.AppendUint64([]byte(digestTag), seq)
	h.Write(binary.BigEndian.AppendUint32(head, ProjectorVersion))
	var sized []byte
	n := 0
	for ok := it.First(); ok && err == nil; {
		key := it.Key()[1:]
		if prefix := undigested(key); prefix != nil {
			ok = it.SeekGE(physical(v.space, after(prefix)))
			continue
		}
		sized = append(binary.BigEndian.AppendUint32(sized[:0], uint32(len(key))), key...)
		sized = binary.BigEndian.AppendUint32(sized, uint32(len(it.Value())))
		h.Write(sized)
		h.Write(it.Value())
		if n++; n%4096 == 0 {
			err = ctx.Err()
		}
		ok = it.Next()
	}
	if err = v.closeIter(it, err); err != nil {
		return digest, err
	}
	return [32]byte(h.Sum(nil)), nil
}

// undigested gives the prefix of a key that is no projection, nil for others.
func undigested(key []byte) []byte {
	for _, prefix := range [][]byte{[]byte(keyMeta), []byte(keyTree)} {
		if bytes.HasPrefix(key, prefix) {
			return prefix
		}
	}
	return nil
}
