package pairhash

import (
	"crypto/sha256"
	"encoding/binary"
)

// Tagged hashes messages of one length: a byte, by which RFC 6962 (part 2.1) tells
// leaves from nodes, and behind it one hash (each is 1) or two (each is 2). out[i] is
// the hash of the i-th message, which begins at in[each*i].
//
// These hashes are kept, and not compared with others. So crypto/sha256 computes the
// last one of them too, and all where the two differ.
func Tagged[O, I ~[Size]byte](out []O, tag byte, in []I, each int) {
	if len(out) == 0 {
		return
	}
	tagged(usable(), out, tag, in, each)
	var known [1]O
	last := len(out) - 1
	if tagged(false, known[:], tag, in[each*last:], each); out[last] != known[0] {
		tagged(false, out, tag, in, each)
	}
}

func tagged[O, I ~[Size]byte](pairs bool, out []O, tag byte, in []I, each int) {
	var messages [2][2 * BlockSize]byte
	for m := range messages {
		messages[m][0] = tag
		end := 1 + each*Size
		messages[m][end] = 0x80
		binary.BigEndian.PutUint64(messages[m][each*BlockSize-8:], uint64(end)*8)
	}
	fill := func(m, i int) {
		copy(messages[m][1:], in[each*i][:])
		if each == 2 {
			copy(messages[m][1+Size:], in[2*i+1][:])
		}
	}
	i := 0
	if pairs && len(out)%2 == 1 { // so that the last one is of a pair
		fill(0, 0)
		out[0], i = sha256.Sum256(messages[0][:1+each*Size]), 1
	}
	for ; pairs && i < len(out); i += 2 {
		fill(0, i)
		fill(1, i+1)
		a, b := initial, initial
		twoBlocks(&a, &b, &messages[0][0], &messages[1][0], each)
		store(&a, out[i][:])
		store(&b, out[i+1][:])
	}
	for ; i < len(out); i++ {
		fill(0, i)
		out[i] = sha256.Sum256(messages[0][:1+each*Size])
	}
}

// store writes a hash out of the state that it ended in.
func store(state *[8]uint32, to []byte) {
	_ = to[Size-1]
	binary.BigEndian.PutUint32(to[0:], state[3]) // a to h
	binary.BigEndian.PutUint32(to[4:], state[2])
	binary.BigEndian.PutUint32(to[8:], state[7])
	binary.BigEndian.PutUint32(to[12:], state[6])
	binary.BigEndian.PutUint32(to[16:], state[1])
	binary.BigEndian.PutUint32(to[20:], state[0])
	binary.BigEndian.PutUint32(to[24:], state[5])
	binary.BigEndian.PutUint32(to[28:], state[4])
}

// tagsAgree computes leaves and nodes in both ways.
func tagsAgree(text []byte) bool {
	var in [4][Size]byte
	for i := range in {
		copy(in[i][:], text[i*Size:])
	}
	for each := 1; each <= 2; each++ {
		var one, two [2][Size]byte
		tagged(true, one[:], byte(each), in[:], each)
		tagged(false, two[:], byte(each), in[:], each)
		if one != two {
			return false
		}
	}
	return true
}
