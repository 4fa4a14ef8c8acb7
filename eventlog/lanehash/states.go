package lanehash

import "encoding/binary"

// States are those of all lanes, each as its instructions take it.
type states struct {
	pair [two][8]uint32
	wide [8][sixteen]uint32 // by word, a to h, and lane
}

// initial is the first state (FIPS 180-4, 5.3.3), in the order in which the
// instructions for two messages take it; order is where in it a to h are.
var initial = [8]uint32{
	0x9b05688c, 0x510e527f, 0xbb67ae85, 0x6a09e667, // f, e, b, a
	0x5be0cd19, 0x1f83d9ab, 0xa54ff53a, 0x3c6ef372, // h, g, d, c
}

var order = [8]int{3, 2, 7, 6, 1, 0, 5, 4}

// begin begins a message in a lane, of so many.
func (s *states) begin(lane, width int) {
	if width == two {
		s.pair[lane] = initial
		return
	}
	for word, at := range order {
		s.wide[word][lane] = initial[at]
	}
}

// take goes through n blocks of each lane.
func (s *states) take(blocks *[sixteen]*byte, width, n int) {
	if width == two {
		twoBlocks(&s.pair[0], &s.pair[1], blocks[0], blocks[1], n)
	} else {
		sixteenBlocks(&s.wide, blocks, n)
	}
}

// sum writes the hash that a lane ended in.
func (s *states) sum(lane, width int, to []byte) {
	_ = to[Size-1]
	if width == two {
		for word, at := range order {
			binary.BigEndian.PutUint32(to[4*word:], s.pair[lane][at])
		}
		return
	}
	for word := range s.wide {
		binary.BigEndian.PutUint32(to[4*word:], s.wide[word][lane])
	}
}
