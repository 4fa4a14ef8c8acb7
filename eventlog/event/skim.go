package event

import "unicode/utf8"

// skimmed takes the payload as its bytes, after a look at all of them. What is not
// right is read again, for the error.
func (r *reader) skimmed() string {
	if r.err != nil {
		return ""
	}
	from := r.at
	if end := skimPayload(r.record, from); end != skimFailed {
		r.at = end
	} else {
		r.payload()
	}
	return r.record[from:r.at]
}

// skimFailed is what the skims below give for bytes that a reader would refuse.
// They give where the value ends for all others, and hold nothing: this is the path
// of every event of a replay, and the readers' way of telling what is wrong has its
// price. A test holds the two against each other.
const skimFailed = -1

// skimPayload skims a payload that begins at s[at].
func skimPayload(s string, at int) int {
	if at >= len(s) || headKinds[s[at]] != KindMap {
		return skimFailed
	}
	return skimValue(s, at, payloadDepth-1)
}

// skimValue skims an item of a list or map at the given depth.
func skimValue(s string, at, depth int) int {
	if at >= len(s) {
		return skimFailed
	}
	head := s[at]
	at++
	switch {
	case head < 0x80 || head >= 0xe0 || head == headTrue || head == headFalse:
		return at
	case head < 0x90:
		return skimFields(s, at, int(head&^maps.shortMask), depth+1)
	case head < 0xa0:
		return skimItems(s, at, int(head&^arrays.shortMask), depth+1)
	case head < 0xc0:
		return skimText(s, at, int(head&^strMask))
	case head == bins.long1:
		return skimBlob(s, at)
	case isInt(head):
		return skimInt(s, at, head)
	}
	return skimLong(s, at, head, depth)
}

func skimBlob(s string, at int) int {
	if at >= len(s) || int(s[at]) >= len(s)-at {
		return skimFailed
	}
	return at + 1 + int(s[at])
}

// skimInt is for the forms of more than one byte.
func skimInt(s string, at int, head byte) int {
	size := 1 << (head & 3)
	if size > len(s)-at {
		return skimFailed
	}
	n := skimUint(s[at : at+size])
	if head&^3 == 0xcc {
		if n < leastUnsigned[head&3] || int64(n) < 0 {
			return skimFailed
		}
		return at + size
	}
	if shift := 64 - 8*size; int64(n<<shift)>>shift > mostNegative[head&3] {
		return skimFailed
	}
	return at + size
}

func skimUint(s string) (n uint64) {
	for i := range len(s) {
		n = n<<8 | uint64(s[i])
	}
	return n
}

// skimLong is for texts, byte strings, lists and maps with a long length.
func skimLong(s string, at int, head byte, depth int) int {
	kind := headKinds[head]
	if kind == 0 {
		return skimFailed
	}
	r := reader{record: s, at: at}
	n := r.length(head, kindFamilies[kind])
	if r.err != nil {
		return skimFailed
	}
	switch kind {
	case KindString:
		return skimText(s, r.at, n)
	case KindBytes:
		return r.at + n
	case KindList:
		return skimItems(s, r.at, n, depth+1)
	}
	return skimFields(s, r.at, n, depth+1)
}

var kindFamilies = [...]*family{KindString: &strs, KindBytes: &bins, KindList: &arrays, KindMap: &maps}

func skimText(s string, at, n int) int {
	if n > len(s)-at || firstEight(s, at, n)&notASCII != 0 || n > 8 && !isASCII(s[at:at+n]) {
		return skimOther(s, at, n)
	}
	return at + n
}

// skimOther is for texts that are not ASCII.
func skimOther(s string, at, n int) int {
	if n > len(s)-at || !utf8.ValidString(s[at:at+n]) {
		return skimFailed
	}
	return at + n
}

func skimItems(s string, at, n, depth int) int {
	if depth > maxDepth {
		return skimFailed
	}
	for ; n > 0 && at >= 0; n-- {
		at = skimValue(s, at, depth)
	}
	return at
}

func skimFields(s string, at, n, depth int) int {
	if depth > maxDepth {
		return skimFailed
	}
	last, lastFirst := "", uint64(0)
	for i := range n {
		if at >= len(s) {
			return skimFailed
		}
		from, size := at+1, int(s[at]&^strMask)
		if s[at]&strMask != strShort || size > len(s)-from {
			if from, size = skimKey(s, at); from == skimFailed {
				return skimFailed
			}
		}
		key, first := s[from:from+size], firstEight(s, from, size)
		if first <= lastFirst && i > 0 && (first < lastFirst || key <= last) {
			return skimFailed
		}
		if (first&notASCII != 0 || size > 8 && !isASCII(key)) && !utf8.ValidString(key) {
			return skimFailed
		}
		last, lastFirst, at = key, first, from+size
		if at < len(s) && s[at] < 0x80 { // a small number, as many are
			at++
		} else if at = skimValue(s, at, depth); at == skimFailed {
			return skimFailed
		}
	}
	return at
}

// skimKey gives where a key's text begins and its size, which is there; it is for
// keys with a long length.
func skimKey(s string, at int) (from, size int) {
	r := reader{record: s, at: at + 1}
	size = r.length(s[at], &strs)
	if r.err != nil {
		return skimFailed, 0
	}
	return r.at, size
}

// notASCII are the bits of eight bytes that ASCII leaves unset.
const notASCII = 0x8080808080808080

// firstEight are the first eight of the n bytes at s[at:], the first one the
// highest, with zeros where there are fewer. Where they differ, they tell which of
// two texts is the lesser.
func firstEight(s string, at, n int) (first uint64) {
	if len(s)-at < 8 {
		for i := range min(n, 8) {
			first |= uint64(s[at+i]) << (56 - 8*i)
		}
		return first
	}
	if first = eight(s[at : at+8]); n < 8 {
		first &= ^uint64(0) << (64 - 8*n)
	}
	return first
}

func eight(s string) uint64 {
	_ = s[7]
	return uint64(s[7]) | uint64(s[6])<<8 | uint64(s[5])<<16 | uint64(s[4])<<24 | uint64(s[3])<<32 | uint64(s[2])<<40 | uint64(s[1])<<48 | uint64(s[0])<<56
}

// isASCII is for texts of eight bytes and more.
func isASCII(s string) bool {
	all := eight(s[len(s)-8:])
	for ; len(s) > 8; s = s[8:] {
		all |= eight(s)
	}
	return all&notASCII == 0
}
