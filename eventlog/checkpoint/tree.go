package checkpoint

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// ErrTree says that stored hashes are not there, or contradict each other.
var ErrTree = errors.New("tree hashes")

// A Hash and a Reader are tlog's; whoever stores hashes needs no other name.
type (
	// Hash is a node of the tree.
	Hash = tlog.Hash
	// Reader reads stored hashes by their index, see tlog.StoredHashIndex.
	Reader = tlog.HashReader
)

// A Writer stores hashes: hashes[i] under index first+i. The projections put
// them into the same Pebble batch as what they fold from the events. The slice is
// used again after the call.
type Writer interface {
	WriteHashes(first int64, hashes []Hash) error
}

// A Tree is fed the hashes of a log's events and stores what proofs need,
// about two hashes an event. It never reads what it stored: its right edge is
// kept in memory, so that a batch needs no look-ups. Only one goroutine may append.
type Tree struct {
	right  stack
	stored []Hash // of the last call, for its memory
}

// OpenTree continues a tree of size events whose hashes were stored before.
// Size 0 needs no reader.
func OpenTree(size uint64, r Reader) (*Tree, error) {
	if err := checkSize(size); err != nil {
		return nil, err
	}
	if size == 0 {
		return &Tree{}, nil
	}
	roots, err := read(r, edge(size))
	if err != nil {
		return nil, err
	}
	return &Tree{right: stack{size, roots}}, nil
}

// Size is the number of events in the tree.
func (t *Tree) Size() uint64 { return t.right.size }

// Root is the root over all events in the tree.
func (t *Tree) Root() [32]byte { return t.right.root() }

// Append adds events in order and stores their hashes in one call to w. Where
// that fails the tree is as it was.
func (t *Tree) Append(w Writer, eventHashes ...[32]byte) error {
	if err := checkSize(t.right.size + uint64(len(eventHashes))); err != nil {
		return err
	}
	if len(eventHashes) == 0 {
		return nil
	}
	next := stack{t.right.size, slices.Clone(t.right.roots)}
	t.stored = slices.Grow(t.stored[:0], 2*len(eventHashes)+len(next.roots))
	for _, h := range eventHashes {
		t.stored = next.push(t.stored, leaf(h))
	}
	if err := w.WriteHashes(tlog.StoredHashIndex(0, int64(t.right.size)), t.stored); err != nil {
		return fmt.Errorf("%w: %w", ErrTree, err)
	}
	t.right = next
	return nil
}

// Memory keeps the hashes of a tree in memory, by tlog.StoredHashIndex.
type Memory struct{ hashes []Hash }

// WriteHashes implements Writer. Hashes come in order and only once.
func (m *Memory) WriteHashes(first int64, hashes []Hash) error {
	if first != int64(len(m.hashes)) {
		return fmt.Errorf("hash %d does not follow %d hashes", first, len(m.hashes))
	}
	m.hashes = append(m.hashes, hashes...)
	return nil
}

// ReadHashes implements Reader.
func (m *Memory) ReadHashes(indexes []int64) ([]Hash, error) {
	hashes := make([]Hash, len(indexes))
	for i, index := range indexes {
		if index < 0 || index >= int64(len(m.hashes)) {
			return nil, fmt.Errorf("%w: hash %d of %d is not stored", ErrTree, index, len(m.hashes))
		}
		hashes[i] = m.hashes[index]
	}
	return hashes, nil
}

func checkSize(size uint64) error {
	if size > MaxSize {
		return fmt.Errorf("%w: a tree of %d events", ErrMalformed, size)
	}
	return nil
}

// read asks for hashes and holds a reader to its word: tlog would go on with
// whatever it was given.
func read(r Reader, indexes []int64) ([]Hash, error) {
	hashes, err := r.ReadHashes(indexes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTree, err)
	}
	if len(hashes) != len(indexes) {
		return nil, fmt.Errorf("%w: %d hashes for %d indexes", ErrTree, len(hashes), len(indexes))
	}
	return hashes, nil
}

// RootAt is the root over the first size events of a tree whose hashes r reads.
func RootAt(r Reader, size uint64) ([32]byte, error) {
	t, err := OpenTree(size, r)
	if err != nil {
		return [32]byte{}, err
	}
	return t.Root(), nil
}

// A Proof is the hashes between what is known and a root.
type Proof [][32]byte

// ProveInclusion proves that event seq is in the tree of the first size events.
func ProveInclusion(r Reader, size, seq uint64) (Proof, error) {
	if err := checkSize(size); err != nil {
		return nil, err
	}
	if seq < 1 || seq > size {
		return nil, fmt.Errorf("%w: event %d is not in a tree of %d", ErrTree, seq, size)
	}
	p, err := tlog.ProveRecord(int64(size), int64(seq-1), r)
	return proofOf(p, err)
}

// CheckInclusion checks that event seq with eventHash is in the tree of size
// events with root. An error wraps ErrProof.
func CheckInclusion(p Proof, size uint64, root [32]byte, seq uint64, eventHash [32]byte) error {
	if size > MaxSize || seq < 1 || seq > size {
		return fmt.Errorf("%w: event %d in a tree of %d", ErrProof, seq, size)
	}
	if err := tlog.CheckRecord(hashesOf(p), int64(size), root, int64(seq-1), leaf(eventHash)); err != nil {
		return fmt.Errorf("%w: event %d in the tree of %d", ErrProof, seq, size)
	}
	return nil
}

// ProveConsistency proves that the tree of size events continues the tree of
// its first old events. Nothing has to be proven for old 0.
func ProveConsistency(r Reader, old, size uint64) (Proof, error) {
	if err := checkSize(size); err != nil {
		return nil, err
	}
	if old > size {
		return nil, fmt.Errorf("%w: a tree of %d can't continue one of %d", ErrTree, size, old)
	}
	if old == 0 {
		return Proof{}, nil
	}
	p, err := tlog.ProveTree(int64(size), int64(old), r)
	return proofOf(p, err)
}

// CheckConsistency checks that a tree of size events with root continues the
// tree of old events with oldRoot. An error wraps ErrProof.
func CheckConsistency(p Proof, size uint64, root [32]byte, old uint64, oldRoot [32]byte) error {
	switch {
	case size > MaxSize || old > size:
		return fmt.Errorf("%w: a tree of %d after one of %d", ErrProof, size, old)
	case old == 0:
		if len(p) > 0 || oldRoot != emptyRoot || size == 0 && root != emptyRoot {
			return fmt.Errorf("%w: the empty tree has one root and needs no proof", ErrProof)
		}
		return nil
	}
	if err := tlog.CheckTree(hashesOf(p), int64(size), root, int64(old), oldRoot); err != nil {
		return fmt.Errorf("%w: the tree of %d does not continue that of %d", ErrProof, size, old)
	}
	return nil
}

func proofOf(hashes []Hash, err error) (Proof, error) {
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTree, err)
	}
	p := make(Proof, len(hashes))
	for i := range hashes {
		p[i] = hashes[i]
	}
	return p, nil
}

func hashesOf(p Proof) []Hash {
	hashes := make([]Hash, len(p))
	for i := range p {
		hashes[i] = p[i]
	}
	return hashes
}

// StoredHashes is how many hashes a tree of size events has stored, and so the
// index of the next one.
func StoredHashes(size uint64) int64 { return tlog.StoredHashIndex(0, int64(size)) }

// HasLeaf tells whether the tree that r reads has an event with this hash in
// this place; seq is from 1 to the tree's size.
func HasLeaf(r Reader, seq uint64, eventHash [32]byte) (bool, error) {
	hashes, err := read(r, []int64{StoredHashes(seq - 1)})
	return err == nil && hashes[0] == leaf(eventHash), err
}

// StoredWith gives the event with which the hash under index was stored: no
// smaller tree has it. A negative index is event 0.
func StoredWith(index int64) uint64 {
	if index < 0 {
		return 0
	}
	level, n := tlog.SplitStoredHashIndex(index)
	return uint64(n+1) << level
}
