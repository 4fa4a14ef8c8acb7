package main

import (
	"context"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

// A readSigner signs bundles of a log that is read from outside, beside a gate
// that may be running: it has no stored tree, so it reads the log once more and
// keeps the few hashes that it needs. Its checkpoint is not stored, and no event
// names it; it is of events that were held against every stored one before.
type readSigner struct {
	key    *checkpoint.PrivateKey
	signer *checkpoint.Signer
	tree   *checkpoint.Sparse
}

// newReadSigner reads the log up to size events, for proofs of those in seqs.
func newReadSigner(ctx context.Context, key *checkpoint.PrivateKey, set *frame.Set, origin string, size uint64, seqs ...uint64) (*readSigner, error) {
	signer, err := signerOf(origin, key)
	if err != nil {
		return nil, exitWith(exitConfigured, err)
	}
	s := &readSigner{key, signer, checkpoint.NewSparse()}
	err = s.tree.Plan(func(r checkpoint.Reader) error {
		if _, err := checkpoint.RootAt(r, size); err != nil {
			return err
		}
		for _, seq := range seqs {
			if _, err := checkpoint.ProveInclusion(r, size, seq); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for f, err := range set.Frames(ctx, size) {
		if err != nil {
			return nil, err
		}
		if err := s.tree.Add(f.Seq, f.Hash); err != nil {
			return nil, err
		}
	}
	return s, nil
}

var _ evidence.Signer = (*readSigner)(nil)

// Public implements evidence.Signer.
func (s *readSigner) Public() checkpoint.PublicKey { return s.key.Public() }

// Sign implements evidence.Signer.
func (s *readSigner) Sign(message []byte) []byte { return s.key.Sign(message) }

// Checkpoint implements evidence.Signer.
func (s *readSigner) Checkpoint(context.Context, uint64) ([]byte, error) {
	n, err := s.signer.Sign(s.tree, s.tree.Size(), nil)
	if err != nil {
		return nil, err
	}
	return n.Raw, nil
}

// Prove implements evidence.Signer.
func (s *readSigner) Prove(_ context.Context, size, seq uint64) (checkpoint.Proof, error) {
	return checkpoint.ProveInclusion(s.tree, size, seq)
}
