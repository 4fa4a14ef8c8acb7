package projections

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
)

// ProjectorVersion changes with anything that makes the same events give other
// bytes: a projector, a record's walk, a key. A store of another version is
// put aside and rebuilt.
const ProjectorVersion = 8

// A space is one complete set of projections inside the store. Apply alone
// changes it, under Store.applying; what views read of it is published under
// Store.mu.
type space struct {
	id       byte
	applied  Applied
	counters Counters
	block    block // the last index block, not yet complete
	growth   growth
	lineage  []Applied // the logs before this one, the oldest first; only ever appended to
	past     bool      // one of them is being folded
}

func newSpace(id byte) *space { return &space{id: id, growth: growth{tree: new(checkpoint.Tree)}} }

// A tx folds the events of one batch. What it writes, it can read again; after
// the first error it goes on without effect, and commit gives the error.
type tx struct {
	db       *pebble.DB
	batch    *pebble.Batch
	space    *space
	changes  overlay
	size     int             // bytes that changes will take, or more
	expiries map[string]bool // keys of keyExpiry and keySentDue: set here, or deleted here
	known    *register       // nil = not known
	before   *tx             // the one that may not be in the store yet, or nil

	applied  Applied
	counters Counters
	block    block
	growth   growth
	leaves   [][32]byte // hashes of events that the tree does not have yet
	changed  bool       // counters
	err      error
}

func begin(db *pebble.DB, sp *space) *tx {
	return &tx{db: db, batch: db.NewBatch(), space: sp, changes: make(overlay), expiries: make(map[string]bool),
		applied: sp.applied, counters: sp.counters, block: sp.block, growth: sp.growth}
}

// next begins the batch after t, which may be on its way to the store.
func (t *tx) next() *tx {
	t.before = nil
	return &tx{db: t.db, batch: t.db.NewBatch(), space: t.space, changes: make(overlay, len(t.changes)), expiries: make(map[string]bool),
		known: t.known, before: t, applied: t.applied, counters: t.counters, block: t.block, growth: t.growth}
}

func (t *tx) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// physical puts the key space in front of a key.
func physical(space byte, key []byte) []byte {
	return append(append(make([]byte, 0, 1+len(key)), space), key...)
}

// get reads a record, also one that this batch wrote. It gives false when
// there is none.
func (t *tx) get(key []byte, r record) bool {
	if t.err != nil {
		return false
	}
	c, ok := t.written(key)
	switch {
	case ok && c.kept != nil:
		r.(keepable).become(c.kept)
		return true
	case ok:
		return c.value != nil && t.decode(key, c.value, r)
	case t.unheard(key):
		return false
	}
	b, closer, err := t.db.Get(physical(t.space.id, key))
	if errors.Is(err, pebble.ErrNotFound) {
		return false
	}
	if err != nil {
		t.fail(err)
		return false
	}
	found := t.decode(key, b, r)
	if err := closer.Close(); err != nil {
		t.fail(err)
	}
	return found && t.err == nil
}

func (t *tx) decode(key, b []byte, r record) bool {
	if err := unmarshal(b, r); err != nil {
		t.fail(fmt.Errorf("%q: %w", key, err))
		return false
	}
	return true
}

// put gives a key a record, which the caller leaves as it is from now on.
func (t *tx) put(key []byte, r record) {
	k, ok := r.(keepable)
	if !ok {
		t.keep(key, marshal(make([]byte, 0, 512), r))
		return
	}
	t.size += len(key) + k.room()
	t.change(key, nil, k)
}

// set writes a key that stays as it is for the rest of the batch.
func (t *tx) set(key, value []byte) {
	op := t.place(key, len(value))
	copy(op.Value, value)
	t.finish(op)
}

// place makes room for a value of size bytes; finish follows when they are there.
func (t *tx) place(key []byte, size int) *pebble.DeferredBatchOp {
	op := t.batch.SetDeferred(1+len(key), size)
	op.Key[0] = t.space.id
	copy(op.Key[1:], key)
	return op
}

func (t *tx) unset(key []byte) {
	op := t.batch.DeleteDeferred(1 + len(key))
	op.Key[0] = t.space.id
	copy(op.Key[1:], key)
	t.finish(op)
}

func (t *tx) finish(op *pebble.DeferredBatchOp) {
	if err := op.Finish(); err != nil {
		t.fail(err)
	}
}

// count changes the counters, which are written once a batch.
func (t *tx) count(change func(*Counters)) {
	change(&t.counters)
	t.changed = true
}

// fold applies one event. The chain is checked once more: a fold over the
// wrong events would be wrong for ever.
func (t *tx) fold(e *event.Envelope) error {
	if e.Seq != t.applied.Seq+1 || e.Seq > 1 && e.PreviousHash != t.applied.Hash {
		return fmt.Errorf("%w: event %d does not follow event %d", ErrDiverged, e.Seq, t.applied.Seq)
	}
	p, ok := projectors[e.Type]
	if !ok || p.version != e.TypeVersion {
		return fmt.Errorf("event %d: %w: %s version %d", e.Seq, event.ErrUnknownType, e.Type, e.TypeVersion)
	}
	if p.apply != nil {
		if err := p.apply(t, t.placed(e)); err != nil {
			return fmt.Errorf("event %d, %s: %w", e.Seq, e.Type, err)
		}
	}
	if !t.space.past {
		t.index(e)
		t.grow(e.Seq, e.Hash)
	}
	t.applied.Seq, t.applied.Hash = e.Seq, e.Hash
	return t.err
}

// placed is e as records name it: by its position.
func (t *tx) placed(e *event.Envelope) *event.Envelope {
	if len(t.space.lineage) == 0 {
		return e
	}
	moved := *e
	moved.Seq = position(len(t.space.lineage), e.Seq)
	return &moved
}

// seal ends the folding: the tree grows up to the last event. Another batch may
// begin then.
func (t *tx) seal() error {
	if t.space.past {
		return t.err
	}
	if t.growTree(); t.err == nil && t.growth.tree.Size() != t.applied.Seq {
		t.fail(fmt.Errorf("the tree has %d events at event %d: %w", t.growth.tree.Size(), t.applied.Seq, errRecord))
	}
	return t.err
}

// write adds the changes to the batch, and what stands in it once: the counters
// and how far it leads. Of an earlier log it adds the counters alone.
func (t *tx) write() error {
	t.changes.write(t)
	if t.changed {
		t.set([]byte(keyCounters), marshal(nil, &t.counters))
	}
	if t.space.past {
		return t.err
	}
	t.set([]byte(keyApplied), encodeApplied(t.applied))
	return t.err
}

const appliedLen = 16 + 8 + 32 + 4

// encodeApplied writes meta/applied: log_id, seq, event_hash, projector_version.
func encodeApplied(a Applied) []byte {
	b := append(make([]byte, 0, appliedLen), a.LogID[:]...)
	b = binary.BigEndian.AppendUint64(b, a.Seq)
	b = append(b, a.Hash[:]...)
	return binary.BigEndian.AppendUint32(b, ProjectorVersion)
}

// decodeApplied also gives the projector version, which the caller judges.
func decodeApplied(b []byte) (a Applied, version uint32, err error) {
	if len(b) != appliedLen {
		return a, 0, fmt.Errorf("projections: %s has %d bytes: %w", keyApplied, len(b), errRecord)
	}
	copy(a.LogID[:], b)
	a.Seq = binary.BigEndian.Uint64(b[16:])
	copy(a.Hash[:], b[24:])
	return a, binary.BigEndian.Uint32(b[56:]), nil
}
