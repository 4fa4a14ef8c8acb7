package projections

import (
	"bytes"
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
const ProjectorVersion = 24

// A space is one complete set of projections inside the store. Apply alone
// changes it, under Store.applying; what views read of it is published under
// Store.mu.
type space struct {
	id       byte
	applied  Applied
	counters Counters
	block    block // the last index block, not yet complete
	growth   growth
	scratch  *scratch
	newest   string    // greatest id of an execution
	lineage  []Applied // the logs before this one, the oldest first; only ever appended to
	past     bool      // one of them is being folded
}

func newSpace(id byte) *space {
	return &space{id: id, growth: growth{tree: new(checkpoint.Tree)}, scratch: new(scratch)}
}

// A tx folds the events of one batch. What it writes, it can read again; after
// the first error it goes on without effect, and commit gives the error.
type tx struct {
	db         *pebble.DB
	batch      *pebble.Batch // where load is nil
	load       *load         // of a replay
	space      *space
	changes    overlay
	size       int                       // bytes that changes will take, or more
	executions map[string]*openExecution // by id; changes has none of them
	opened     []*openExecution          // the same, in the order of their first events here
	newest     string                    // greatest id of an execution so far
	expiries   map[string]*expiries      // by prefix
	known      *register                 // nil = not known
	packed     []byte                    // memory of the last record that was put

	applied  Applied
	counters Counters
	block    block
	growth   growth
	leaves   [][32]byte // hashes of events that the tree does not have yet
	changed  bool       // counters
	err      error
}

func begin(db *pebble.DB, sp *space) *tx {
	t := beginLoad(db, sp, nil)
	t.batch = db.NewBatch()
	return t
}

func beginLoad(db *pebble.DB, sp *space, l *load) *tx {
	return &tx{db: db, load: l, space: sp, changes: make(overlay), executions: make(map[string]*openExecution), expiries: make(map[string]*expiries),
		applied: sp.applied, counters: sp.counters, block: sp.block, growth: sp.growth, newest: sp.newest}
}

// next goes on in the same load, or in the one after it.
func (t *tx) next(l *load) *tx {
	clear(t.changes)
	n := &tx{db: t.db, load: l, space: t.space, changes: t.changes, executions: t.executions, opened: t.opened, expiries: t.expiries,
		known: t.known, applied: t.applied, counters: t.counters, block: t.block, growth: t.growth, newest: t.newest}
	if l != t.load {
		n.expiries = make(map[string]*expiries)
		for prefix, x := range t.expiries {
			n.expiries[prefix] = x.next()
		}
	}
	return n
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

// put gives a key a record.
func (t *tx) put(key []byte, r record) {
	t.packed = marshal(t.packed[:0], r)
	t.keep(key, bytes.Clone(t.packed)) // in room of its own size: most records are short
}

// set writes a key that stays as it is for the rest of the batch.
func (t *tx) set(key, value []byte) {
	if t.load != nil {
		t.load.add(t.space.id, key, value)
		return
	}
	op := t.batch.SetDeferred(1+len(key), len(value))
	op.Key[0] = t.space.id
	copy(op.Key[1:], key)
	copy(op.Value, value)
	t.finish(op)
}

// move writes a change; nil deletes the key.
func (t *tx) move(key, value []byte) {
	switch {
	case t.load != nil:
		t.load.move(t.space.id, key, value)
	case value != nil:
		t.set(key, value)
	default:
		t.unset(key)
	}
}

// drop takes back a key that nobody asks for.
func (t *tx) drop(key []byte) {
	if t.load != nil {
		t.load.put(t.space.id, key, nil, true)
		return
	}
	t.unset(key)
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
	t.writeExecutions()
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
