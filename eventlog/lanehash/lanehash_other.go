//go:build !amd64

package lanehash

// twoBlocks and sixteenBlocks are never called: supported says so.
func twoBlocks(a, b *[8]uint32, p, q *byte, n int) {
	panic("lanehash: no instructions for two messages")
}

func sixteenBlocks(states *[8][16]uint32, messages *[16]*byte, n int) {
	panic("lanehash: no instructions for sixteen messages")
}

func supported(int) bool { return false }
