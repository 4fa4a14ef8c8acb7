package evidence

import (
	"bytes"
)

// Again parses a bundle and writes down what was understood. ok is false where
// the form is not that of a bundle, or a readable event is not its record's.
func Again(b []byte) (again []byte, ok bool) {
	r := newReader(bytes.NewReader(b), nil)
	h := r.parseHead()
	again = h.append(nil)
	for n := uint64(0); !r.is("]") && r.err == nil; n++ {
		f, text := r.item(n, nil)
		if r.err != nil {
			return nil, false
		}
		rendered, err := readable(nil, &f)
		if err != nil || !bytes.Equal(rendered, text) {
			return nil, false
		}
		if n > 0 {
			again = append(again, ',')
		}
		again = appendItem(again, &f, rendered)
	}
	r.want(closePayload)
	r.end()
	return append(again, closePayload...), r.err == nil
}
