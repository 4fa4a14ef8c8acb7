package checkpoint

import (
	"math/bits"
	"slices"

	"writegate/eventlog/lanehash"
)

// RFC 6962, part 2.1: what stands in front of a leaf and of a node.
const (
	leafTag = 0
	nodeTag = 1
)

// manyLeaves is from how many leaves on a tree grows by whole levels: hashes of one
// level do not wait for each other, so they are computed side by side.
const manyLeaves = 16

// A growing is the hashes that some leaves complete, level by level; kept for its
// memory. Where the first node of a level is a right child, the left one stands
// before it, so pairs of children begin with the level.
type growing [][]Hash

// pushAll is push for many leaves at once.
func (g *growing) pushAll(s *stack, stored []Hash, eventHashes [][32]byte) []Hash {
	before, after := s.size, s.size+uint64(len(eventHashes))
	g.grow(s, eventHashes)
	at := func(level int, node uint64) Hash { return (*g)[level][node-before>>level&^1] }
	for size := before + 1; size <= after; size++ {
		for level := range 1 + bits.TrailingZeros64(size) {
			stored = append(stored, at(level, size>>level-1))
		}
	}
	s.size, s.roots = after, s.roots[:0]
	for level := range slices.Backward(*g) {
		if after>>level&1 == 1 {
			s.roots = append(s.roots, at(level, after>>level-1))
		}
	}
	return stored
}

// grow computes all levels.
func (g *growing) grow(s *stack, eventHashes [][32]byte) {
	depth := bits.Len64(s.size + uint64(len(eventHashes)))
	*g = slices.Grow((*g)[:0], depth)[:depth]
	for level := range *g {
		hashes := (*g)[level][:0]
		if s.size>>level&1 == 1 {
			hashes = append(hashes, s.roots[bits.OnesCount64(s.size>>level)-1])
		}
		n := int((s.size+uint64(len(eventHashes)))>>level - s.size>>level)
		from := len(hashes)
		hashes = slices.Grow(hashes, n)[:from+n]
		if level == 0 {
			lanehash.Tagged(hashes[from:], leafTag, eventHashes, 1)
		} else {
			lanehash.Tagged(hashes[from:], nodeTag, (*g)[level-1], 2)
		}
		(*g)[level] = hashes
	}
}
