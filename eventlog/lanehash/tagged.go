package lanehash

import (
	"crypto/sha256"
	"encoding/binary"
)

// Tagged hashes messages of one length: a byte, by which RFC 6962 (part 2.1) tells
// leaves from nodes, and behind it one hash (each is 1) or two (each is 2). out[i] is
// the hash of the i-th message, which begins at in[each*i].
//
// These hashes are kept, and not compared with others. So crypto/sha256 computes the
// last one of those that went side by side too, and all where the two differ.
func Tagged[O, I ~[Size]byte](out []O, tag byte, in []I, each int) {
	sideBySide := tagged(usable(), out, tag, in, each)
	if sideBySide == 0 {
		return
	}
	var known [1]O
	last := sideBySide - 1
	if tagged(alone, known[:], tag, in[each*last:], each); out[last] != known[0] {
		tagged(alone, out, tag, in, each)
	}
}

// tagged gives how many of the messages, from the first one on, went side by side.
func tagged[O, I ~[Size]byte](width int, out []O, tag byte, in []I, each int) (sideBySide int) {
	var messages [sixteen][2 * BlockSize]byte
	var blocks [sixteen]*byte
	for m := range width {
		messages[m][0] = tag
		end := 1 + each*Size
		messages[m][end] = 0x80
		binary.BigEndian.PutUint64(messages[m][each*BlockSize-8:], uint64(end)*8)
		blocks[m] = &messages[m][0]
	}
	fill := func(m, i int) {
		copy(messages[m][1:], in[each*i][:])
		if each == 2 {
			copy(messages[m][1+Size:], in[2*i+1][:])
		}
	}
	i := 0
	for ; width > alone && i+width <= len(out); i += width {
		var s states
		for m := range width {
			fill(m, i+m)
			s.begin(m, width)
		}
		s.take(&blocks, width, each)
		for m := range width {
			s.sum(m, width, out[i+m][:])
		}
	}
	sideBySide = i
	for ; i < len(out); i++ {
		fill(0, i)
		out[i] = sha256.Sum256(messages[0][:1+each*Size])
	}
	return sideBySide
}

// tagsAgree computes leaves and nodes in both ways.
func tagsAgree(width int, text []byte) bool {
	var in [2 * sixteen][Size]byte
	for i := range in {
		copy(in[i][:], text[i*Size:])
	}
	for each := 1; each <= 2; each++ {
		var one, other [sixteen][Size]byte
		tagged(width, one[:], byte(each), in[:], each)
		tagged(alone, other[:], byte(each), in[:], each)
		if one != other {
			return false
		}
	}
	return true
}
