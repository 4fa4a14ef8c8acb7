package evidence

import (
	"errors"
	"fmt"

	"writegate/eventlog/checkpoint"
)

// openNote reads the checkpoint of a bundle. One of the keys has to have signed
// it under the log's origin; witnesses are left unjudged.
func openNote(origin, text string, keys []checkpoint.PublicKey) (checkpoint.Checkpoint, error) {
	n, err := checkpoint.Open([]byte(text), checkpoint.Keys{Log: keys})
	switch {
	case err != nil:
		return checkpoint.Checkpoint{}, err
	case n.Origin != origin:
		return checkpoint.Checkpoint{}, fmt.Errorf("it is of the log %q, not of %q", n.Origin, origin)
	case !n.Trusted:
		return checkpoint.Checkpoint{}, errors.New("signed by none of the known keys")
	}
	return n.Checkpoint, nil
}

// checkProofs holds that the proofs are those of the first and the last event
// and lead to the root. The chain binds what lies between.
func (h *head) checkProofs(c checkpoint.Checkpoint) error {
	if c.Size < h.end {
		return fmt.Errorf("the checkpoint is of %d events, the bundle ends with event %d", c.Size, h.end)
	}
	hashes := [][32]byte{h.first, h.last}
	for i, seq := range h.ends() {
		if err := h.proofs[i].check(c, seq, hashes[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *inclusion) check(c checkpoint.Checkpoint, seq uint64, hash [32]byte) error {
	switch {
	case p.seq != seq:
		return fmt.Errorf("a proof of event %d stands where that of event %d belongs", p.seq, seq)
	case p.size != c.Size:
		return fmt.Errorf("the proof of event %d is of a tree of %d events, the checkpoint of one of %d", seq, p.size, c.Size)
	}
	return checkpoint.CheckInclusion(p.hashes, c.Size, c.Root, seq, hash)
}
