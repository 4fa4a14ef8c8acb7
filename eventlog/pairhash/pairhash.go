// Package pairhash is SHA-256 (FIPS 180-4) of many messages, two at a time.
//
// A verifier has the hashes of millions of events to compute, and none of them
// waits for another: each message holds the hash of the event before as it was
// stored. One message alone leaves part of a processor idle, because each of its
// rounds needs the one before. So where the processor has the SHA extensions,
// the rounds of two messages go side by side (BenchmarkPair says what that
// saves). Everywhere else crypto/sha256 does the work.
//
// What is evidence is still decided by the standard library: a package that uses
// this one to compare hashes asks crypto/sha256 again before it accuses, and the
// first use in a process computes known hashes both ways and falls back for good
// where they differ.
package pairhash

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
)

// Size is the length of a hash, BlockSize that of a block.
const (
	Size      = sha256.Size
	BlockSize = sha256.BlockSize
)

// A Hasher takes messages and gives their hashes, not always in the order of the
// messages. One goroutine owns it.
type Hasher struct {
	done  func(id int, sum *[Size]byte)
	lanes [2]lane
	pairs bool
	sum   [Size]byte // the one that was given last
}

// New gives a Hasher that hands every hash to done, with the id of its message.
// done must not call the Hasher.
func New(done func(id int, sum *[Size]byte)) *Hasher {
	return &Hasher{done: done, pairs: usable()}
}

// usable reports whether this processor hashes in pairs, rightly.
var usable = sync.OnceValue(func() bool { return supported() && agrees() })

// Add hashes prefix and rest, one behind the other. rest may not change before
// the hash is given; prefix may.
func (h *Hasher) Add(id int, prefix, rest []byte) {
	if !h.pairs || len(prefix) >= BlockSize { // the first block takes no longer prefix
		d := sha256.New()
		d.Write(prefix) // a hash never returns an error
		d.Write(rest)
		d.Sum(h.sum[:0])
		h.done(id, &h.sum)
		return
	}
	free := &h.lanes[0]
	if free.busy {
		free = &h.lanes[1]
	}
	free.begin(id, prefix, rest)
	for h.lanes[0].busy && h.lanes[1].busy {
		h.step()
	}
}

// Flush gives the hashes that are still due.
func (h *Hasher) Flush() {
	for i := range h.lanes {
		for l := &h.lanes[i]; l.busy; {
			var idle [8]uint32 // the other message is the same once more
			n := len(l.now) / BlockSize
			twoBlocks(&l.state, &idle, &l.now[0], &l.now[0], n)
			h.advance(l, n)
		}
	}
}

// step takes both messages as far as the shorter piece of them goes.
func (h *Hasher) step() {
	a, b := &h.lanes[0], &h.lanes[1]
	n := min(len(a.now), len(b.now)) / BlockSize
	twoBlocks(&a.state, &b.state, &a.now[0], &b.now[0], n)
	h.advance(a, n)
	h.advance(b, n)
}

func (h *Hasher) advance(l *lane, blocks int) {
	if l.now = l.now[blocks*BlockSize:]; len(l.now) > 0 || l.next() {
		return
	}
	l.busy = false
	store(&l.state, h.sum[:])
	h.done(l.id, &h.sum)
}

// A lane is one message on its way. A short one is copied, so that both messages
// are taken in one go. The blocks of a long one come from three places, so that the
// middle of it need not be copied.
type lane struct {
	id    int
	busy  bool
	state [8]uint32
	now   []byte // whole blocks to be taken
	later [2][]byte
	head  [BlockSize]byte
	tail  [shortest]byte
}

// shortest is the length of what a message that is not copied may end with, and the
// most of one that is: longer than most events.
const shortest = 16 * BlockSize

// The state stands in the order in which the instructions take it.
var initial = [8]uint32{
	0x9b05688c, 0x510e527f, 0xbb67ae85, 0x6a09e667, // f, e, b, a
	0x5be0cd19, 0x1f83d9ab, 0xa54ff53a, 0x3c6ef372, // h, g, d, c
}

// begin cuts a message into blocks: the first one, those in place, and the last
// one or two with the padding.
func (l *lane) begin(id int, prefix, rest []byte) {
	l.id, l.busy, l.state = id, true, initial
	total := len(prefix) + len(rest)
	if total < shortest-paddingLeast {
		n := copy(l.tail[:], prefix)
		n += copy(l.tail[n:], rest)
		l.now, l.later = l.pad(n, total), [2][]byte{}
		return
	}
	n := copy(l.head[:], prefix)
	rest = rest[copy(l.head[n:], rest):]
	middle := len(rest) &^ (BlockSize - 1)
	n = copy(l.tail[:], rest[middle:])
	l.now, l.later = l.head[:], [2][]byte{rest[:middle], l.pad(n, total)}
}

// paddingLeast is a byte and the length.
const paddingLeast = 1 + 8

// pad completes the tail, which holds the last n bytes of total.
func (l *lane) pad(n, total int) []byte {
	end := (n + paddingLeast + BlockSize - 1) &^ (BlockSize - 1)
	clear(l.tail[n:end])
	l.tail[n] = 0x80
	binary.BigEndian.PutUint64(l.tail[end-8:], uint64(total)*8)
	return l.tail[:end]
}

// next goes on to the next piece of the message; false: there is none.
func (l *lane) next() bool {
	for i, piece := range l.later {
		if len(piece) > 0 {
			l.now, l.later[i] = piece, nil
			return true
		}
	}
	return false
}

// agrees computes hashes of messages of all shapes in both ways.
func agrees() bool {
	text := make([]byte, 4*BlockSize)
	for i := range text {
		text[i] = byte(i*i + 7*i)
	}
	right := 0
	h := Hasher{pairs: true, done: func(id int, sum *[Size]byte) {
		if *sum == sha256.Sum256(text[:id]) {
			right++
		}
	}}
	for n := range text {
		h.Add(n, text[:n/5], text[n/5:n])
	}
	h.Flush()
	return right == len(text) && tagsAgree(text)
}
