package event

import "math/bits"

// A knownContext is that of the record before. The events of one statement begin
// their contexts with the same fields, mostly all of them, in the same bytes.
type knownContext struct {
	record  string // its fields, as they were written
	n       int
	keys    [contextFields]int // their numbers, in order
	ends    [contextFields]int // where each of them ends in record
	context Context
}

// again takes as many of the n fields that come next as the context before began
// with, byte for byte, since those were judged. It gives how many, and the number
// of the last one.
func (k *knownContext) again(r *reader, n int, c *Context) (taken int, last int64) {
	common := commonPrefix(r.record[r.at:], k.record)
	for taken < min(n, k.n) && k.ends[taken] <= common {
		taken++
	}
	if taken == 0 {
		return 0, 0
	}
	*c = k.context
	for _, key := range k.keys[taken:k.n] {
		*c.at(key) = ""
	}
	r.at += k.ends[taken-1]
	return taken, int64(k.keys[taken-1])
}

// note tells of a field that was read: its number, and where it ends.
func (k *knownContext) note(i, key, end int) {
	k.keys[i], k.ends[i] = key, end
}

// keep makes a context of n fields the known one, of which so many were taken
// again. Where it could not be read, none is known.
func (k *knownContext) keep(record string, n, taken int, c *Context, err error) {
	switch {
	case err != nil:
		k.record, k.n = "", 0
	case taken < n || n < k.n:
		k.record, k.n, k.context = record, n, *c
	}
}

// commonPrefix is how many bytes two texts begin with alike.
func commonPrefix(a, b string) int {
	n, i := min(len(a), len(b)), 0
	for ; i+8 <= n; i += 8 {
		if differ := eight(a[i:i+8]) ^ eight(b[i:i+8]); differ != 0 {
			return i + bits.LeadingZeros64(differ)/8
		}
	}
	for ; i < n && a[i] == b[i]; i++ {
	}
	return i
}
