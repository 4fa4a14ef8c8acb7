package projections

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"golang.org/x/sync/errgroup"
)

// A load is what many batches of a replay bring, on its way to the store. A small
// one becomes a Pebble batch like those of a live store. A large one becomes
// sorted tables that Pebble takes as they are, all of them or none: most keys
// grow with time, so most tables lie behind those of the load before, go straight
// to the lowest level and are never compacted. That costs half of the same keys'
// way through memtables.
type load struct {
	arena  [][]byte // memory of keys and values; pieces do not move
	used   int      // pieces of the arena that are full
	ranges map[string]*keyRange
	recent [2]*keyRange // the last two that were written: most keys come in turns
	size   int          // bytes of keys and values
	count  uint32
	hidden bool // no view shows the space

	// What projectors may ask for again, as they left it.
	moved  map[uint64]int32 // by hash of the key, its place in latest
	latest []latest
	before *load // on its way to the store, or nil
}

// A latest is how a load leaves a key.
type latest struct {
	item
	next int32 // the next one with the same hash, or -1
}

// A keyRange is the keys with one beginning.
type keyRange struct {
	prefix string
	load   *load
	items  []item
	drops  map[string][]byte // ranges of keys that go, by their first key; the end is not one of them
	size   int
}

// An item is a key of a load, with its space, and its value behind it. It tells
// where in the arena they are: a load has tens of thousands of items, which the
// collector of garbage would have to walk if they were pointers.
type item struct {
	piece, at     uint32
	keyLen, value uint32 // lengths; the value of a deleted key is deletedValue
	order         uint32 // the later one of a key counts
}

const deletedValue = 1<<32 - 1

const (
	arenaPiece = 256 << 10
	// tableLeast is how large a range has to be for a table of its own. Smaller
	// neighbours share one: a table that overlaps those of the load before costs a
	// compaction, however small it is.
	tableLeast = 256 << 10
	// tableWriters make the tables of a load side by side: each ends with a sync.
	tableWriters = 4
)

func newLoad(hidden bool) *load {
	return &load{ranges: make(map[string]*keyRange), moved: make(map[uint64]int32), hidden: hidden}
}

// reset forgets what was loaded and keeps the memory.
func (l *load) reset() {
	for _, r := range l.ranges {
		r.items, r.size, r.drops = r.items[:0], 0, nil
	}
	for i := range l.arena {
		l.arena[i] = l.arena[i][:0]
	}
	clear(l.moved)
	l.used, l.size, l.count, l.latest, l.before = 0, 0, 0, l.latest[:0], nil
}

// room gives n bytes, and the item that begins there.
func (l *load) room(n int) (item, []byte) {
	for l.used < len(l.arena) && cap(l.arena[l.used])-len(l.arena[l.used]) < n {
		l.used++
	}
	if l.used == len(l.arena) {
		l.arena = append(l.arena, make([]byte, 0, max(n, arenaPiece)))
	}
	piece := l.arena[l.used]
	at := len(piece)
	l.arena[l.used] = piece[:at+n]
	return item{piece: uint32(l.used), at: uint32(at)}, l.arena[l.used][at:]
}

// key is the key of an item, with its space.
func (l *load) key(it *item) []byte {
	end := it.at + it.keyLen
	return l.arena[it.piece][it.at:end:end]
}

// left is the value with which an item leaves its key; nil = deleted.
func (l *load) left(it *item) []byte {
	if it.value == deletedValue {
		return nil
	}
	at := it.at + it.keyLen
	return l.arena[it.piece][at : at+it.value : at+it.value]
}

// add writes a key that nobody asks for before it is in the store.
func (l *load) add(space byte, key, value []byte) { l.put(space, key, value, false) }

// move writes a key that may be asked for; nil deletes it.
func (l *load) move(space byte, key, value []byte) {
	it := l.put(space, key, value, value == nil)
	sum := maphash.Bytes(loadSeed, key)
	first, ok := l.moved[sum]
	if !ok {
		first = -1
	}
	for at := first; at >= 0; at = l.latest[at].next {
		if known := &l.latest[at]; bytes.Equal(l.key(&known.item)[1:], key) {
			known.item = it
			return
		}
	}
	l.moved[sum] = int32(len(l.latest))
	l.latest = append(l.latest, latest{item: it, next: first})
}

var loadSeed = maphash.MakeSeed()

// find gives what this load or the one before made of a key; nil = deleted.
func (l *load) find(key []byte) (value []byte, ok bool) {
	sum := maphash.Bytes(loadSeed, key)
	for ; l != nil; l = l.before {
		at, ok := l.moved[sum]
		if !ok {
			continue
		}
		for ; at >= 0; at = l.latest[at].next {
			if known := &l.latest[at]; bytes.Equal(l.key(&known.item)[1:], key) {
				return l.left(&known.item), true
			}
		}
	}
	return nil, false
}

func (l *load) put(space byte, key, value []byte, deleted bool) item {
	it, b := l.room(1 + len(key) + len(value))
	b[0] = space
	copy(b[1:], key)
	copy(b[1+len(key):], value)
	if it.keyLen, it.value, it.order = uint32(1+len(key)), uint32(len(value)), l.count; deleted {
		it.value = deletedValue
	}
	l.count++
	r := l.rangeOf(b[:1+rangeLen(key)])
	r.items = append(r.items, it)
	r.size += len(b)
	l.size += len(b)
	return it
}

func (l *load) rangeOf(prefix []byte) *keyRange {
	for _, r := range l.recent {
		if r != nil && r.prefix == string(prefix) {
			return r
		}
	}
	r := l.ranges[string(prefix)]
	if r == nil {
		r = &keyRange{prefix: string(prefix), load: l}
		l.ranges[r.prefix] = r
	}
	l.recent = [2]*keyRange{r, l.recent[0]}
	return r
}

// drop takes back all keys of one keyRange from begin on and before end, those of
// this load and of all before it. Nothing is written there afterwards.
func (l *load) drop(space byte, begin, end []byte) {
	first := physical(space, begin)
	r := l.rangeOf(first[:1+rangeLen(begin)])
	if r.drops == nil {
		r.drops = map[string][]byte{}
	}
	if last := physical(space, end); bytes.Compare(last, r.drops[string(first)]) > 0 {
		r.drops[string(first)] = last
	}
	r.size += len(begin) + len(end)
	l.size += len(begin) + len(end)
}

// dropped reports whether a key lies in a range that goes.
func (r *keyRange) dropped(key []byte) bool {
	for first, end := range r.drops {
		if string(key) >= first && bytes.Compare(key, end) < 0 {
			return true
		}
	}
	return false
}

// eachDrop hands the ranges that go to take, in the order of their keys.
func (r *keyRange) eachDrop(take func(begin, end []byte) error) error {
	for _, first := range slices.Sorted(maps.Keys(r.drops)) {
		if err := take([]byte(first), r.drops[first]); err != nil {
			return err
		}
	}
	return nil
}

// rangeLen is how much of a key names its range: one of the index is a field's,
// and one of the executions' list a state's, since in those keys grow with time.
func rangeLen(key []byte) int {
	switch {
	case bytes.HasPrefix(key, []byte(keyPosting)):
		return len(keyPosting) + 1
	case bytes.HasPrefix(key, []byte(keyExecutionList)):
		return max(bytes.LastIndexByte(key[:len(key)-8], '/')+1, len(keyExecutionList))
	}
	return min(bytes.IndexByte(key, '/')+1, len(key))
}

// inOrder gives the ranges in the order of their keys.
func (l *load) inOrder() []*keyRange {
	ranges := slices.DeleteFunc(slices.Collect(maps.Values(l.ranges)), func(r *keyRange) bool { return len(r.items)+len(r.drops) == 0 })
	slices.SortFunc(ranges, func(a, b *keyRange) int { return cmp.Compare(a.prefix, b.prefix) })
	return ranges
}

// sort leaves the last item of each key, in the order of the keys. Most ranges
// are filled in order.
func (r *keyRange) sort() {
	if len(r.drops) > 0 {
		r.items = slices.DeleteFunc(r.items, func(it item) bool { return r.dropped(r.load.key(&it)) })
	}
	if r.ascends() {
		return
	}
	slices.SortFunc(r.items, func(a, b item) int {
		if c := bytes.Compare(r.load.key(&a), r.load.key(&b)); c != 0 {
			return c
		}
		return cmp.Compare(b.order, a.order)
	})
	r.items = slices.CompactFunc(r.items, func(a, b item) bool { return bytes.Equal(r.load.key(&a), r.load.key(&b)) })
}

// ascends reports whether each key is behind the one before.
func (r *keyRange) ascends() bool {
	for i := 1; i < len(r.items); i++ {
		if bytes.Compare(r.load.key(&r.items[i-1]), r.load.key(&r.items[i])) >= 0 {
			return false
		}
	}
	return true
}

// item gives a key and its value; nil = deleted.
func (r *keyRange) item(i int) (key, value []byte) {
	it := &r.items[i]
	return r.load.key(it), r.load.left(it)
}

// batch is the load as a batch of Pebble.
func (l *load) batch(b *pebble.Batch) error {
	for _, r := range l.inOrder() {
		r.sort()
		if err := r.eachDrop(func(begin, end []byte) error { return b.DeleteRange(begin, end, nil) }); err != nil {
			return err
		}
		for i := range r.items {
			var err error
			if key, value := r.item(i); value == nil {
				err = b.Delete(key, nil)
			} else {
				err = b.Set(key, value, nil)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// loading is the folder in the store's where tables are made. What a crash left
// there is of no use.
func (s *Store) loading() string { return s.o.FS.PathJoin(s.o.Dir, "loading") }

// ingest gives Pebble a load of a space as tables. When it returns they are on the disk,
// all of them, and with them how far they lead.
func (s *Store) ingest(space byte, l *load) error {
	if err := s.o.FS.MkdirAll(s.loading(), dirPerm); err != nil {
		return err
	}
	tables := tablesOf(l.inOrder())
	names := make([]string, len(tables))
	var writers errgroup.Group
	writers.SetLimit(tableWriters)
	for i, ranges := range tables {
		names[i] = s.o.FS.PathJoin(s.loading(), fmt.Sprintf("%d-%d.sst", space, i))
		writers.Go(func() error { return s.writeTable(names[i], ranges) })
	}
	if err := writers.Wait(); err != nil {
		return err
	}
	return s.db.Ingest(context.Background(), names)
}

// tablesOf puts neighbours among the ranges into one table where they are small.
func tablesOf(ranges []*keyRange) (tables [][]*keyRange) {
	small := false
	for _, r := range ranges {
		if r.size < tableLeast && small {
			last := &tables[len(tables)-1]
			*last = append(*last, r)
			continue
		}
		tables, small = append(tables, []*keyRange{r}), r.size < tableLeast
	}
	return tables
}

func (s *Store) writeTable(name string, ranges []*keyRange) error {
	f, err := s.o.FS.Create(name, "projections")
	if err != nil {
		return err
	}
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), s.tables)
	for _, r := range ranges {
		r.sort()
		if err := r.eachDrop(w.DeleteRange); err != nil {
			return errors.Join(err, w.Close())
		}
		for i := range r.items {
			if key, value := r.item(i); value == nil {
				err = w.Delete(key)
			} else {
				err = w.Set(key, value)
			}
			if err != nil {
				return errors.Join(err, w.Close())
			}
		}
	}
	return w.Close() // also syncs
}
