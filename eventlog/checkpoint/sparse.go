package checkpoint

import (
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// Sparse reads the events of a log once, in order, and keeps those hashes of its
// tree that were asked for: roots and proofs where no tree is stored, in memory
// that does not grow with the log. Ask first, with Plan, then Add, then use it
// as a Reader.
type Sparse struct {
	right  stack
	next   int64 // index of the next hash that push stores
	wanted map[int64]bool
	kept   map[int64]Hash
	unused []Hash
}

// NewSparse makes a Sparse that keeps nothing yet.
func NewSparse() *Sparse {
	return &Sparse{wanted: map[int64]bool{}, kept: map[int64]Hash{}}
}

// Plan runs what will be done with the tree, to see which hashes it reads; it
// gets hashes of nothing. use must read the same whatever the hashes are, as
// RootAt, ProveInclusion and ProveConsistency do.
func (s *Sparse) Plan(use func(Reader) error) error {
	return use(tlog.HashReaderFunc(func(indexes []int64) ([]Hash, error) {
		for _, i := range indexes {
			s.wanted[i] = true
		}
		return make([]Hash, len(indexes)), nil
	}))
}

// Add takes the next event. seq has to be the one after the last, from 1.
func (s *Sparse) Add(seq uint64, eventHash [32]byte) error {
	if seq != s.right.size+1 {
		return fmt.Errorf("%w: event %d after %d", ErrTree, seq, s.right.size)
	}
	s.unused = s.right.push(s.unused[:0], leaf(eventHash))
	for _, h := range s.unused {
		if s.wanted[s.next] {
			s.kept[s.next] = h
		}
		s.next++
	}
	return nil
}

// Size is the number of events read.
func (s *Sparse) Size() uint64 { return s.right.size }

// ReadHashes implements Reader for what was planned and was read.
func (s *Sparse) ReadHashes(indexes []int64) ([]Hash, error) {
	hashes := make([]Hash, len(indexes))
	for i, index := range indexes {
		h, ok := s.kept[index]
		if !ok {
			return nil, fmt.Errorf("%w: hash %d was not planned, or not read", ErrTree, index)
		}
		hashes[i] = h
	}
	return hashes, nil
}
