package event

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrRecord says that bytes are not the canonical record of any event. In a
// log whose hashes hold it means that another program wrote them.
var ErrRecord = errors.New("not a canonical record")

// Decode reads a record and refuses everything that Encode would not have
// written: what it accepts is encoded again and compared byte for byte. An
// unknown type is no error here. The draft's texts share one copy of the record.
func Decode(record []byte) (Draft, error) {
	r := reader{rest: string(record)}
	d := r.draft()
	if r.err == nil && r.rest != "" {
		r.fail("%d bytes after the end", len(r.rest))
	}
	if r.err != nil {
		return Draft{}, fmt.Errorf("%w: %w", ErrRecord, r.err)
	}
	if err := sameRecord(record, &d); err != nil {
		return Draft{}, err
	}
	return d, nil
}

// sameRecord holds the rule that a fact has one record alone: a longer form of
// a length, unsorted keys or an id spelled out as text end here.
func sameRecord(record []byte, d *Draft) error {
	w := writers.Get().(*writer)
	defer w.release()
	w.buf = w.scratch[:0]
	w.draft(d)
	w.keepScratch()
	if w.err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, w.err)
	}
	if string(w.buf) != string(record) {
		return fmt.Errorf("%w: not in its canonical form", ErrRecord)
	}
	return nil
}

// A reader takes MessagePack values off the front of rest. After the first
// error it gives zero values, and its callers need not look until the end.
type reader struct {
	rest string
	err  error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
		r.rest = ""
	}
}

func (r *reader) draft() (d Draft) {
	if n := r.length(r.head(), arrays); n != recordItems {
		r.fail("an array of %d items, not %d", n, recordItems)
	}
	if v := r.int(); v != RecordVersion {
		r.fail("record version %d is not known", v)
	}
	d.ID = r.id()
	d.Type = Type(r.text())
	version := r.int()
	if version < 1 || version > math.MaxUint16 {
		r.fail("type version %d is out of range", version)
	}
	d.TypeVersion = uint16(version)
	d.Time = time.Unix(0, r.int()).UTC()
	r.context(&d.Context)
	d.Payload = r.fields(r.length(r.head(), maps), 2)
	return d
}

func (r *reader) context(c *Context) {
	for n := r.length(r.head(), maps); n > 0 && r.err == nil; n-- {
		key := r.int()
		if key < 1 || key > contextFields {
			r.fail("context key %d is not known", key)
			return
		}
		field := c.at(int(key))
		head := r.head()
		if prefix := contextPrefixes[key]; prefix != "" && bins.has(head) {
			*field = prefixed(prefix, r.idBody(head))
		} else {
			*field = r.take(r.length(head, strs))
		}
		if *field == "" {
			r.fail("context key %d is empty", key)
		}
	}
}

func (r *reader) id() ID { return r.idBody(r.head()) }

func (r *reader) idBody(head byte) (id ID) {
	if n := r.length(head, bins); n != len(id) {
		r.fail("an id of %d bytes", n)
	}
	copy(id[:], r.take(len(id)))
	return id
}

func (r *reader) text() string { return r.take(r.length(r.head(), strs)) }

func (r *reader) int() int64 { return r.intBody(r.head()) }

// take cuts n bytes off the front.
func (r *reader) take(n int) string {
	if n > len(r.rest) {
		r.fail("%d bytes wanted, %d left", n, len(r.rest))
		return ""
	}
	s := r.rest[:n]
	r.rest = r.rest[n:]
	return s
}

func (r *reader) head() byte {
	if s := r.take(1); s != "" {
		return s[0]
	}
	return headNever
}

// headNever is the one byte that MessagePack leaves unused.
const headNever = 0xc1

// A family is a kind of value with a length: its short form, where there is
// one, and its long forms with a length of 1, 2 or 4 bytes (0 = none).
type family struct {
	name                string
	short, shortMask    byte
	long1, long2, long4 byte
}

var (
	strs   = family{"string", 0xa0, 0xe0, 0xd9, 0xda, 0xdb}
	bins   = family{"bytes", headNever, 0xff, 0xc4, 0xc5, 0xc6}
	arrays = family{"array", 0x90, 0xf0, 0, 0xdc, 0xdd}
	maps   = family{"map", 0x80, 0xf0, 0, 0xde, 0xdf}
)

func (f *family) has(head byte) bool {
	return head != headNever && head != 0 && (head&f.shortMask == f.short || head == f.long1 || head == f.long2 || head == f.long4)
}

// length reads the length of a value whose first byte is head. It is never
// more than the bytes that are left, so nothing can be asked for that is not there.
func (r *reader) length(head byte, f family) int {
	if r.err != nil {
		return 0
	}
	if !f.has(head) {
		r.fail("byte %#02x where %s was expected", head, f.name)
		return 0
	}
	n := uint64(head &^ f.shortMask)
	switch head {
	case f.long1:
		n = r.uint(1)
	case f.long2:
		n = r.uint(2)
	case f.long4:
		n = r.uint(4)
	}
	if n > uint64(len(r.rest)) {
		r.fail("%s of length %d, %d bytes left", f.name, n, len(r.rest))
		return 0
	}
	return int(n)
}

// uint reads size bytes, most significant first.
func (r *reader) uint(size int) uint64 {
	var b [8]byte
	copy(b[8-size:], r.take(size))
	return binary.BigEndian.Uint64(b[:])
}

func isInt(head byte) bool {
	return head < 0x80 || head >= 0xe0 || head >= 0xcc && head <= 0xd3
}

func (r *reader) intBody(head byte) int64 {
	switch {
	case r.err != nil:
		return 0
	case head < 0x80 || head >= 0xe0:
		return int64(int8(head))
	case head >= 0xcc && head <= 0xcf:
		n := r.uint(1 << (head - 0xcc))
		if n > math.MaxInt64 {
			r.fail("integer %d is out of range", n)
		}
		return int64(n)
	case head >= 0xd0 && head <= 0xd3:
		size := 1 << (head - 0xd0)
		shift := 64 - 8*size
		return int64(r.uint(size)<<shift) >> shift
	}
	r.fail("byte %#02x where an integer was expected", head)
	return 0
}

// roomAhead bounds what is allocated on the word of a length alone: nested
// lists could each claim all bytes that are left.
const roomAhead = 64

func (r *reader) fields(n, depth int) Payload {
	if !r.deep(depth) {
		return nil
	}
	p := make(Payload, 0, min(n, roomAhead))
	for ; n > 0 && r.err == nil; n-- {
		key := r.text()
		p = append(p, Field{Key: key, Value: r.value(depth)})
	}
	return p
}

func (r *reader) items(n, depth int) Payload {
	if !r.deep(depth) {
		return nil
	}
	p := make(Payload, 0, min(n, roomAhead))
	for ; n > 0 && r.err == nil; n-- {
		p = append(p, Field{Value: r.value(depth)})
	}
	return p
}

func (r *reader) deep(depth int) bool {
	if depth > maxDepth {
		r.fail("nested deeper than %d", maxDepth)
	}
	return r.err == nil
}

// value reads an item of a list or map at the given depth.
func (r *reader) value(depth int) Value {
	head := r.head()
	switch {
	case head == 0xc2 || head == 0xc3:
		return Bool(head == 0xc3)
	case isInt(head):
		return Int(r.intBody(head))
	case strs.has(head):
		return String(r.take(r.length(head, strs)))
	case bins.has(head):
		return Value{kind: KindBytes, text: r.take(r.length(head, bins))}
	case arrays.has(head):
		return Value{kind: KindList, kids: r.items(r.length(head, arrays), depth+1)}
	case maps.has(head):
		return Value{kind: KindMap, kids: r.fields(r.length(head, maps), depth+1)}
	}
	r.fail("byte %#02x has no place in a record", head)
	return Value{}
}
