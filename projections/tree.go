package projections

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"writegate/eventlog/checkpoint"
)

// The hashes of the log's tree (RFC 6962) lie beside the projections, because
// they have to be there with their events and nowhere else is that so cheap.
// They are stored as the audit index is: hashes of the block in the making in
// memory, and one value for each complete block, with all hashes that its
// events brought about, in the order of their indexes. So a batch of few events
// writes none, and what is written depends on the events alone.

// tileKey is where the hashes of a block lie.
func tileKey(no uint32) []byte { return binary.BigEndian.AppendUint32([]byte(keyTree), no) }

// A growth is the right end of a tree. Whoever applies events has tree; tail is
// only ever appended to, so it may be shared with views.
type growth struct {
	tree *checkpoint.Tree
	tail []checkpoint.Hash // stored since the last complete block
}

// openGrowth continues the tree after size events, which end with a block.
func openGrowth(r pebble.Reader, space byte, size uint64) (growth, error) {
	tree, err := checkpoint.OpenTree(size, &treeReader{get: r, space: space, size: size})
	return growth{tree: tree}, err
}

// WriteHashes implements checkpoint.Writer.
func (g *growth) WriteHashes(_ int64, hashes []checkpoint.Hash) error {
	if g.tail == nil {
		g.tail = make([]checkpoint.Hash, 0, 2*blockEvents+len(hashes))
	}
	g.tail = append(g.tail, hashes...)
	return nil
}

// add grows the tree by events, whose hashes come to the tail.
func (g *growth) add(leaves ...[32]byte) error { return g.tree.Append(g, leaves...) }

// grow takes the hash of an event; the tree is told once a batch, or once a block.
func (t *tx) grow(seq uint64, hash [32]byte) {
	if t.leaves = append(t.leaves, hash); seq%blockEvents == 0 {
		t.growTree()
		t.writeTile(blockOf(seq))
	}
}

// growTree stores what the events since the last call bring about. The tree
// grows although the batch is not committed yet: where that fails, so does the store.
func (t *tx) growTree() {
	if t.err != nil {
		return
	}
	if err := t.growth.add(t.leaves...); err != nil {
		t.fail(err)
	}
	t.leaves = t.leaves[:0]
}

func (t *tx) writeTile(no uint32) {
	s := t.space.scratch
	s.value = s.value[:0]
	for i := range t.growth.tail {
		s.value = append(s.value, t.growth.tail[i][:]...)
	}
	t.set(tileKey(no), s.value)
	if t.growth.tail = t.growth.tail[:0]; !t.hidden() {
		t.growth.tail = nil
	}
}

// A treeReader reads the hashes of a tree of size events.
type treeReader struct {
	get   pebble.Reader
	space byte
	size  uint64
	tail  []checkpoint.Hash
}

// ReadHashes implements checkpoint.Reader. The hashes of a proof lie in few
// blocks, and many of them in the same one.
func (r *treeReader) ReadHashes(indexes []int64) ([]checkpoint.Hash, error) {
	hashes := make([]checkpoint.Hash, len(indexes))
	tiles := make(map[uint32][]byte)
	complete := uint64(blockEvents * (r.size / blockEvents))
	for i, index := range indexes {
		seq := checkpoint.StoredWith(index)
		switch {
		case seq == 0 || seq > r.size:
			return nil, fmt.Errorf("hash %d is not of a tree of %d events", index, r.size)
		case seq > complete:
			at := index - checkpoint.StoredHashes(complete)
			if at >= int64(len(r.tail)) {
				return nil, fmt.Errorf("hash %d of the tree of %d events: %w", index, r.size, errRecord)
			}
			hashes[i] = r.tail[at]
		default:
			tile, err := r.tile(tiles, blockOf(seq))
			if err != nil {
				return nil, err
			}
			copy(hashes[i][:], tile[32*(index-checkpoint.StoredHashes(firstOf(blockOf(seq))-1)):])
		}
	}
	return hashes, nil
}

// tile reads the hashes of a complete block, once.
func (r *treeReader) tile(known map[uint32][]byte, no uint32) ([]byte, error) {
	if tile, ok := known[no]; ok {
		return tile, nil
	}
	value, closer, err := r.get.Get(physical(r.space, tileKey(no)))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, fmt.Errorf("the tree's block %d is missing: %w", no, errRecord)
	}
	if err != nil {
		return nil, err
	}
	tile := append([]byte(nil), value...)
	first := firstOf(no) - 1
	if want := 32 * (checkpoint.StoredHashes(first+blockEvents) - checkpoint.StoredHashes(first)); int64(len(tile)) != want {
		err = fmt.Errorf("the tree's block %d has %d bytes, not %d: %w", no, len(tile), want, errRecord)
	}
	if err = errors.Join(err, closer.Close()); err != nil {
		return nil, err
	}
	known[no] = tile
	return tile, nil
}

// A LogTree is the log's tree as of a view. Many goroutines may read it, as long
// as the view is open.
type LogTree struct{ view *View }

// Tree gives the tree over the events up to Applied.
func (v *View) Tree() LogTree { return LogTree{v} }

// Size is the number of events in the tree.
func (t LogTree) Size() uint64 { return t.view.applied.Seq }

// ReadHashes implements checkpoint.Reader.
func (t LogTree) ReadHashes(indexes []int64) ([]checkpoint.Hash, error) {
	v := t.view
	switch {
	case v.err != nil:
		return nil, v.err
	case !v.indexed:
		return nil, ErrNotConnected
	}
	hashes, err := (&treeReader{get: v.snap, space: v.space, size: v.applied.Seq, tail: v.tail}).ReadHashes(indexes)
	if err != nil {
		return nil, v.store.damaged(err)
	}
	return hashes, nil
}

// Vouches tells whether the projections hold an event with this hash in this
// place of the log. What they do not hold, or cannot read, they do not vouch for.
func (s *Store) Vouches(seq uint64, eventHash [32]byte) bool {
	v := s.present() // without waiting: a rebuild asks while nothing is folded
	defer v.Close()
	if seq == 0 || seq > v.applied.Seq {
		return false
	}
	ok, err := checkpoint.HasLeaf(v.Tree(), seq, eventHash)
	return ok && err == nil
}
