package projections

import (
	"container/heap"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// sweepMost bounds the work that one event causes. It is more than one, so that
// keys are removed faster than they come.
const sweepMost = 4

// Expiries are what a batch or a load did to the keys of one prefix that order
// by time (keyExpiry, keySentDue), which the store does not show yet. Looking
// for the earliest of many must not cost a walk over all of them.
type expiries struct {
	changed map[string]bool // set, or deleted
	set     stringHeap      // those that were set; some of them deleted again
	before  *expiries       // of the load before, which may not be in the store yet; or nil
	// swept says that no key up to this one is left, neither here nor in the store.
	swept string
	// rest is the first key that the store had when it was last looked through, or
	// the end of the prefix: up to there only this load and the one before have any.
	rest string
}

func newExpiries() *expiries { return &expiries{changed: make(map[string]bool)} }

// next are those of the load after.
func (x *expiries) next() *expiries {
	after := newExpiries()
	after.before, after.swept = x, x.swept
	x.before = nil
	return after
}

func (x *expiries) add(key string) {
	x.changed[key] = true
	heap.Push(&x.set, key)
	if key <= x.swept { // the clock ran back
		x.swept = ""
	}
}

func (x *expiries) drop(key string) { x.changed[key] = false }

// has tells whether the key was changed, in this load or the one before.
func (x *expiries) has(key string) bool {
	if x == nil {
		return false
	}
	_, ok := x.changed[key]
	return ok || x.before.has(key)
}

// least gives the first keys below limit that are set here or in the load before
// and were not deleted since.
func (x *expiries) least(limit string) []string {
	keys := x.leastOwn(limit, nil)
	if x.before != nil {
		keys = append(keys, x.before.leastOwn(limit, x.changed)...)
	}
	return keys
}

// leastOwn leaves out what was changed later.
func (x *expiries) leastOwn(limit string, later map[string]bool) (keys []string) {
	for len(x.set) > 0 && x.set[0] < limit && len(keys) < sweepMost {
		key := heap.Pop(&x.set).(string)
		if _, known := later[key]; x.changed[key] && !known && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		heap.Push(&x.set, key)
	}
	return keys
}

// expired lists the first expiry keys of a prefix below limit as they stand with
// this batch's own changes, so that the borders of batches make no difference. The
// caller drops them all.
func (t *tx) expired(prefix string, limit []byte) ([]string, error) {
	x := t.expiriesOf(prefix)
	keys := x.least(string(limit))
	if string(limit) > x.rest {
		stored, err := t.storedExpiries(x, prefix, string(limit))
		if err != nil {
			return nil, err
		}
		keys = append(keys, stored...)
	}
	slices.Sort(keys)
	if keys = keys[:min(len(keys), sweepMost)]; len(keys) > 0 {
		x.swept = keys[len(keys)-1]
	}
	return keys, nil
}

// storedExpiries are the first ones below limit that the store has and nobody has
// changed since.
func (t *tx) storedExpiries(x *expiries, prefix, limit string) (keys []string, err error) {
	lower, end := physical(t.space.id, []byte(max(prefix, x.swept))), after([]byte(prefix))
	it, err := t.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: physical(t.space.id, end)})
	if err != nil {
		return nil, err
	}
	ok := it.First()
	if x.rest = string(end); ok {
		x.rest = string(it.Key()[1:])
	}
	for ; ok && string(it.Key()[1:]) < limit && len(keys) < sweepMost; ok = it.Next() {
		if key := string(it.Key()[1:]); !x.has(key) {
			keys = append(keys, key)
		}
	}
	return keys, errors.Join(it.Error(), it.Close())
}

func (t *tx) expiriesOf(prefix string) *expiries {
	if t.expiries[prefix] == nil {
		t.expiries[prefix] = newExpiries()
	}
	return t.expiries[prefix]
}

// setExpiry sets a key of a prefix to a value that is not nil.
func (t *tx) setExpiry(prefix string, key, value []byte) {
	t.keep(key, value)
	t.expiriesOf(prefix).add(string(key))
}

func (t *tx) dropExpiry(prefix string, key []byte) {
	t.delete(key)
	t.expiriesOf(prefix).drop(string(key))
}

// A stringHeap is a container/heap of texts, the least one first.
type stringHeap []string

func (h stringHeap) Len() int           { return len(h) }
func (h stringHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h stringHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *stringHeap) Push(x any) { *h = append(*h, x.(string)) }

// Pop implements heap.Interface.
func (h *stringHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
