package frame

import "writegate/eventlog/lanehash"

// A Checker checks the hashes of frames that were read one after the other, side
// by side. One goroutine owns it.
type Checker struct {
	hasher *lanehash.Hasher
	frames []Placed
	bad    int // the first one that is not intact, or len(frames)
}

// NewChecker makes a Checker.
func NewChecker() *Checker {
	c := new(Checker)
	c.hasher = lanehash.New(func(at int, sum *[hashLen]byte) {
		// The standard library is asked before a frame is called wrong.
		if f := &c.frames[at]; *sum != f.Hash && !f.Intact() {
			c.bad = min(c.bad, at)
		}
	})
	return c
}

// Intact gives how many of the frames, from the first one on, are intact (see
// Frame.Intact). All are when it is their number.
func (c *Checker) Intact(frames []Placed) int {
	c.frames, c.bad = frames, len(frames)
	var prefix [hashPrefix]byte
	for i := range frames {
		f := &frames[i]
		putHashPrefix(prefix[:], f.Seq, f.PreviousHash[:], len(f.Record))
		c.hasher.Add(i, prefix[:], f.Record)
	}
	c.hasher.Flush()
	c.frames = nil
	return c.bad
}
