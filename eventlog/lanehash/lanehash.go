// Package lanehash is SHA-256 (FIPS 180-4) of many messages, several side by side.
//
// A verifier has the hashes of millions of events to compute, and none of them
// waits for another: each message holds the hash of the event before as it was
// stored. One message alone leaves most of a processor idle, because each of its
// rounds needs the one before. So each message has a lane: sixteen go side by side
// where the processor has AVX-512, two where it has the SHA extensions
// (BenchmarkLanes says what that saves). Everywhere else crypto/sha256 does the work.
//
// What is evidence is still decided by the standard library: a package that uses
// this one to compare hashes asks crypto/sha256 again before it accuses, and the
// first use in a process computes known hashes both ways and does without the lanes
// for good where they differ.
package lanehash

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
// messages. One goroutine owns it, and may use it again after Flush.
type Hasher struct {
	done   func(id int, sum *[Size]byte)
	lanes  []lane          // none where each message is hashed alone
	now    [sixteen][]byte // by lane, whole blocks to be taken; none where the lane is free
	free   []int           // those without a message
	states states
	sum    [Size]byte // the one that was given last
}

// New gives a Hasher that hands every hash to done, with the id of its message.
// done must not call the Hasher.
func New(done func(id int, sum *[Size]byte)) *Hasher { return newHasher(usable(), done) }

func newHasher(width int, done func(id int, sum *[Size]byte)) *Hasher {
	h := &Hasher{done: done}
	if width == alone {
		return h
	}
	h.lanes = make([]lane, width)
	for i := range h.lanes {
		h.free = append(h.free, i)
	}
	return h
}

// How many messages may go side by side.
const (
	alone   = 1
	two     = 2
	sixteen = 16
)

// usable is how many this processor hashes side by side, rightly.
var usable = sync.OnceValue(func() int {
	for _, width := range []int{sixteen, two} {
		if supported(width) && agrees(width) {
			return width
		}
	}
	return alone
})

// Add hashes prefix and rest, one behind the other. rest may not change before
// the hash is given; prefix may.
func (h *Hasher) Add(id int, prefix, rest []byte) {
	if len(h.lanes) == 0 || len(prefix) >= BlockSize { // the first block takes no longer prefix
		d := sha256.New()
		d.Write(prefix) // a hash never returns an error
		d.Write(rest)
		d.Sum(h.sum[:0])
		h.done(id, &h.sum)
		return
	}
	last := len(h.free) - 1
	n := h.free[last]
	h.free = h.free[:last]
	h.now[n] = h.lanes[n].begin(id, prefix, rest)
	h.states.begin(n, len(h.lanes))
	for len(h.free) == 0 {
		h.step()
	}
}

// Flush gives the hashes that are still due.
func (h *Hasher) Flush() {
	for len(h.free) < len(h.lanes) {
		h.step()
	}
}

// step takes all messages as far as the shortest piece of them goes. A lane
// without one goes through the blocks of another.
func (h *Hasher) step() {
	now := h.now[:len(h.lanes)]
	var blocks [sixteen]*byte
	n, least := 0, 0
	for i, piece := range now {
		if len(piece) == 0 {
			continue
		}
		if blocks[i] = &piece[0]; n == 0 || len(piece) < n {
			n, least = len(piece), i
		}
	}
	for _, i := range h.free {
		blocks[i] = blocks[least]
	}
	h.states.take(&blocks, len(now), n/BlockSize)
	for i := range now {
		if len(now[i]) == 0 {
			continue
		}
		if now[i] = now[i][n:]; len(now[i]) > 0 {
			continue
		}
		if l := &h.lanes[i]; !l.next(&now[i]) {
			h.states.sum(i, len(now), h.sum[:])
			h.free = append(h.free, i)
			h.done(l.id, &h.sum)
		}
	}
}

// A lane is one message on its way. A short one is copied, so that all of them are
// taken in one go. The blocks of a long one come from three places, so that the
// middle of it need not be copied.
type lane struct {
	id    int
	later [2][]byte
	head  [BlockSize]byte
	tail  [copyMost]byte
}

const (
	// copyMost is the room for a message that is copied, with its padding: most
	// events are shorter.
	copyMost = 16 * BlockSize
	// paddingLeast is a byte and the length.
	paddingLeast = 1 + 8
)

// begin cuts a message into blocks: the first one, those in place, and the last ones
// with the padding. It gives the piece to begin with.
func (l *lane) begin(id int, prefix, rest []byte) []byte {
	l.id = id
	total := len(prefix) + len(rest)
	if total < copyMost-paddingLeast {
		n := copy(l.tail[:], prefix)
		n += copy(l.tail[n:], rest)
		return l.pad(n, total)
	}
	n := copy(l.head[:], prefix)
	rest = rest[copy(l.head[n:], rest):]
	middle := len(rest) &^ (BlockSize - 1)
	n = copy(l.tail[:], rest[middle:])
	l.later = [2][]byte{rest[:middle], l.pad(n, total)}
	return l.head[:]
}

// pad completes the tail, which holds the last n bytes of total.
func (l *lane) pad(n, total int) []byte {
	end := (n + paddingLeast + BlockSize - 1) &^ (BlockSize - 1)
	clear(l.tail[n:end])
	l.tail[n] = 0x80
	binary.BigEndian.PutUint64(l.tail[end-8:], uint64(total)*8)
	return l.tail[:end]
}

// next goes on to the next piece of the message; false: that was all of it.
func (l *lane) next(now *[]byte) bool {
	for i, piece := range l.later {
		if len(piece) > 0 {
			*now, l.later[i] = piece, nil
			return true
		}
	}
	return false
}

// agrees computes hashes of messages of all shapes in both ways.
func agrees(width int) bool {
	text := make([]byte, 2*copyMost)
	for i := range text {
		text[i] = byte(i*i + 7*i)
	}
	tried, right := 0, 0
	h := newHasher(width, func(id int, sum *[Size]byte) {
		if *sum == sha256.Sum256(text[:id]) {
			right++
		}
	})
	for n := 0; n < len(text); n += 1 + n/copyMost*37 { // each length that is copied, and some that are not
		tried++
		h.Add(n, text[:n/37], text[n/37:n])
	}
	h.Flush()
	return right == tried && tagsAgree(width, text)
}
