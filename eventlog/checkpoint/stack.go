package checkpoint

import (
	"crypto/sha256"
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

// MaxSize is the largest tree that is read or made. No log comes near it; above
// 1<<62 the arithmetic of tlog would never end, and a size may be an attacker's.
const MaxSize = 1 << 60

// leaf is the hash of an event as a leaf of a tree: tlog.RecordHash without its
// allocation, because a verifier makes one for every event of a log.
func leaf(eventHash [32]byte) tlog.Hash {
	var b [1 + 32]byte // RFC 6962, part 2.1: a zero byte in front
	copy(b[1:], eventHash[:])
	return sha256.Sum256(b[:])
}

// A stack is the right edge of a growing tree: the roots of its complete
// subtrees, the largest first. There is one for each bit that is set in size,
// so a tree of any size is held in 32 bytes a level.
type stack struct {
	size  uint64
	roots []tlog.Hash
}

// push adds a leaf. It appends to stored the hashes that the leaf completes, in
// the order of tlog.StoredHashIndex: the leaf and each subtree it closes.
func (s *stack) push(stored []tlog.Hash, leaf tlog.Hash) []tlog.Hash {
	h := leaf
	stored = append(stored, h)
	for range bits.TrailingZeros64(s.size + 1) {
		last := len(s.roots) - 1
		h = tlog.NodeHash(s.roots[last], h)
		s.roots = s.roots[:last]
		stored = append(stored, h)
	}
	s.roots = append(s.roots, h)
	s.size++
	return stored
}

// root folds the subtrees from the smallest up (RFC 6962, part 2.1).
func (s *stack) root() [32]byte {
	if s.size == 0 {
		return emptyRoot
	}
	h := s.roots[len(s.roots)-1]
	for i := len(s.roots) - 2; i >= 0; i-- {
		h = tlog.NodeHash(s.roots[i], h)
	}
	return h
}

// emptyRoot is the root of a tree without leaves: the hash of nothing.
var emptyRoot = sha256.Sum256(nil)

// edge gives the stored indexes of the subtrees at the right edge of a tree.
func edge(size uint64) []int64 {
	var indexes []int64
	var before uint64
	for rest := size; rest > 0; {
		level := bits.Len64(rest) - 1
		indexes = append(indexes, tlog.StoredHashIndex(level, int64(before>>level)))
		before += 1 << level
		rest -= 1 << level
	}
	return indexes
}
