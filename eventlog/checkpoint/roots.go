package checkpoint

import (
	"fmt"
	"slices"
)

// Roots reads the events of a log once, in order, and gives the roots at the
// sizes that were asked for: how a verifier holds a log against checkpoints
// without storing a tree.
type Roots struct {
	right  stack
	sizes  []uint64 // ascending, no size twice
	found  map[uint64][32]byte
	unused []Hash // what push stores; a verifier has no use for it
}

// NewRoots asks for the roots at sizes, in any order.
func NewRoots(sizes ...uint64) *Roots {
	asked := slices.Clone(sizes)
	slices.Sort(asked)
	r := &Roots{sizes: slices.Compact(asked), found: make(map[uint64][32]byte, len(asked))}
	r.note()
	return r
}

// Add takes the next event. seq has to be the one after the last, from 1: a
// root over a gap would be the root of another log.
func (r *Roots) Add(seq uint64, eventHash [32]byte) error {
	if seq != r.right.size+1 {
		return fmt.Errorf("%w: event %d after %d", ErrTree, seq, r.right.size)
	}
	r.unused = r.right.push(r.unused[:0], leaf(eventHash))
	r.note()
	return nil
}

// note keeps the root where this size was asked for.
func (r *Roots) note() {
	if len(r.sizes) == 0 || r.sizes[0] != r.right.size {
		return
	}
	r.found[r.right.size] = r.right.root()
	r.sizes = r.sizes[1:]
}

// Size is the number of events read.
func (r *Roots) Size() uint64 { return r.right.size }

// Root is the root over all events read.
func (r *Roots) Root() [32]byte { return r.right.root() }

// At gives the root at a size that was asked for; ok is false when the events
// ended before it, or nobody asked.
func (r *Roots) At(size uint64) (root [32]byte, ok bool) {
	root, ok = r.found[size]
	return root, ok
}
