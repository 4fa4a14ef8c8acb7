//go:build !amd64

package pairhash

// twoBlocks is never called: supported says so.
func twoBlocks(a, b *[8]uint32, p, q *byte, n int) { panic("pairhash: no instructions for pairs") }

func supported() bool { return false }
