package projections

import "hash/maphash"

// An overlay is what a batch changes of the keys that projectors read, move or
// take back. It lies over the store until the batch is written, so that each
// key is written once, as it stands at the end of the batch.
type overlay map[string]change

// A change is the last one of a key.
type change struct {
	value []byte // nil = deleted
	born  bool   // there was no such key before the batch
}

// keep gives a key a value that later events of the batch may change; it takes
// the slice.
func (t *tx) keep(key, value []byte) {
	if value == nil {
		value = []byte{}
	}
	t.size += len(key) + len(value)
	t.change(key, value)
}

// delete takes a key back.
func (t *tx) delete(key []byte) {
	t.size += len(key)
	t.change(key, nil)
}

func (t *tx) change(key, value []byte) {
	c, ok := t.changes[string(key)]
	if !ok && t.known != nil {
		c.born = t.known.add(key)
	}
	c.value = value
	t.changes[string(key)] = c
}

// unheard reports whether the store is sure not to have the key.
func (t *tx) unheard(key []byte) bool {
	return t.known != nil && !t.known.mayHave(key)
}

// written gives what this batch, or a load that is not in the store yet, made of
// a key.
func (t *tx) written(key []byte) (c change, ok bool) {
	if c, ok = t.changes[string(key)]; !ok && t.load != nil {
		c.value, ok = t.load.find(key)
	}
	return c, ok
}

// write puts the changes into the batch, in any order: Pebble sorts, and keys
// do not repeat. A key that came and went within the batch is none.
func (o overlay) write(t *tx) {
	for key, c := range o {
		if c.value != nil || !c.born {
			t.move([]byte(key), c.value)
		}
	}
}

// A register holds the keys that a space filled from its first event on may
// have, in little room: most questions for a key are for one that is not there,
// and are answered without a look into the store. It forgets none; it may take
// one for another.
//
// It is a Bloom filter (Bloom 1970) cut into blocks of one cache line (Putze,
// Sanders and Singler 2007).
type register struct {
	seed   maphash.Seed
	blocks [][8]uint64
}

const (
	// registerBytes bound the memory. Ten million executions make one answer in
	// twenty a needless look.
	registerBytes = 16 << 20
	pageBlocks    = 4096 / 64
	// momentLen is how much of an execution's key tells its time to 16 ms: the
	// id's prefix, and eleven of the twelve digits of a UUIDv7 (RFC 9562, 5.7)
	// with the dash between them.
	momentLen = len(keyExecution) + len("exe_") + 8 + 1 + 3
)

func newRegister() *register {
	return &register{seed: maphash.MakeSeed(), blocks: make([][8]uint64, registerBytes/64)}
}

// place is a key's block, and its bits in it: four times nine bits of the hash.
// Executions of one moment, which most events are of, share a page: memory that
// the processor has at hand.
func (r *register) place(key []byte) (block *[8]uint64, bits uint64) {
	h := maphash.Bytes(r.seed, key)
	n := h
	if len(key) > momentLen && string(key[:len(keyExecution)]) == keyExecution {
		n = maphash.Bytes(r.seed, key[:momentLen])*pageBlocks + h%pageBlocks
	}
	return &r.blocks[n%uint64(len(r.blocks))], h >> 28
}

// add takes a key, and tells whether it is sure to be new.
func (r *register) add(key []byte) (fresh bool) {
	block, bits := r.place(key)
	for range 4 {
		word, bit := &block[bits>>6&7], uint64(1)<<(bits&63)
		fresh = fresh || *word&bit == 0
		*word |= bit
		bits >>= 9
	}
	return fresh
}

func (r *register) mayHave(key []byte) bool {
	block, bits := r.place(key)
	for range 4 {
		if block[bits>>6&7]&(1<<(bits&63)) == 0 {
			return false
		}
		bits >>= 9
	}
	return true
}
