package event

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"
)

// ErrRecord says that bytes are not the canonical record of any event. In a
// log whose hashes hold it means that another program wrote them.
var ErrRecord = errors.New("not a canonical record")

// Decode reads a record and refuses everything that Encode would not have
// written, because a fact has one record alone: a longer form of a length or a
// number, unsorted keys, text that is not UTF-8, an id spelled out as text. An
// unknown type is no error here. The draft's texts share one copy of the record.
func Decode(record []byte) (Draft, error) {
	r := reader{record: string(record)}
	var d Draft
	r.draft(&d)
	d.Payload = r.payload()
	if err := r.end(); err != nil {
		return Draft{}, err
	}
	return d, nil
}

// A reader takes MessagePack values off the front of what is left of a record.
// After the first error nothing is left, it gives zero values, and its callers
// need not look until the end.
type reader struct {
	record string
	at     int      // what is left begins here
	memory *Decoder // whose memory it may take; nil = it takes memory of its own
	err    error
}

func (r *reader) left() int { return len(r.record) - r.at }

// end is for all that was read: nothing may be left.
func (r *reader) end() error {
	if n := r.left(); n > 0 {
		r.fail("%d bytes after the end", n)
	}
	if r.err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, r.err)
	}
	return nil
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
		r.at = len(r.record)
	}
}

// draft fills d, which is zero, but for the payload, which follows.
func (r *reader) draft(d *Draft) {
	if n := r.length(r.head(), &arrays); n != recordItems {
		r.fail("an array of %d items, not %d", n, recordItems)
	}
	if v := r.int(); v != RecordVersion {
		r.fail("record version %d is not known", v)
	}
	d.ID = r.id()
	if d.Type = Type(r.text()); d.Type == "" {
		r.fail("the type is empty")
	}
	version := r.int()
	if version < 1 || version > math.MaxUint16 {
		r.fail("type version %d is out of range", version)
	}
	d.TypeVersion = uint16(version)
	d.Time = time.Unix(0, r.int()).UTC()
	r.context(&d.Context)
}

func (r *reader) payload() Payload { return r.fields(r.length(r.head(), &maps), payloadDepth) }

func (r *reader) context(c *Context) {
	n, last := r.length(r.head(), &maps), int64(0)
	from, taken := r.at, 0
	if r.memory != nil {
		taken, last = r.memory.context.again(r, n, c)
	}
	for i := taken; i < n && r.err == nil; i++ {
		key := r.int()
		if key <= last || key > contextFields {
			r.fail("context key %d is not known, or not after %d", key, last)
			break
		}
		last = key
		*c.at(int(key)) = r.contextValue(int(key))
		if r.memory != nil {
			r.memory.context.note(i, int(key), r.at-from)
		}
	}
	if r.memory != nil {
		r.memory.context.keep(r.record[from:r.at], n, taken, c, r.err)
	}
}

// contextValue reads the text of the field with this number, or its id that was
// kept as its 16 bytes.
func (r *reader) contextValue(field int) string {
	if r.memory != nil {
		if last := r.memory.last[field]; last != "" && r.key(last) {
			return last // which was judged
		}
	}
	head, prefix := r.head(), contextPrefixes[field]
	if prefix != "" && bins.has(head) {
		return r.idText(field, r.idBody(head))
	}
	s := r.rawText(head)
	r.judgeText(s)
	if s == "" {
		r.fail("a context value is empty")
	}
	if prefix != "" {
		if _, isID := parsePrefixed(prefix, s); isID {
			r.fail("id %s is spelled out", s)
		}
	}
	if r.memory != nil && r.err == nil {
		r.memory.last[field] = s
	}
	return s
}

func (r *reader) idText(field int, id ID) string {
	if r.memory != nil {
		return r.memory.idText(field, id)
	}
	return prefixed(contextPrefixes[field], id)
}

func (r *reader) id() ID { return r.idBody(r.head()) }

func (r *reader) idBody(head byte) (id ID) {
	if n := len(id); head == bins.long1 && r.left() > n && int(r.record[r.at]) == n { // as most are
		copy(id[:], r.record[r.at+1:])
		r.at += 1 + n
		return id
	}
	if n := r.length(head, &bins); n != len(id) {
		r.fail("an id of %d bytes", n)
	}
	copy(id[:], r.take(len(id)))
	return id
}

func (r *reader) text() string { return r.textBody(r.head()) }

func (r *reader) textBody(head byte) string {
	s := r.rawText(head)
	r.judgeText(s)
	return s
}

// rawText takes a text that was not judged.
func (r *reader) rawText(head byte) string {
	if n := int(head &^ strMask); head&strMask == strShort && n <= r.left() { // as most are
		r.at += n
		return r.record[r.at-n : r.at]
	}
	return r.take(r.length(head, &strs))
}

// blob takes a byte string.
func (r *reader) blob(head byte) string {
	if head == bins.long1 && r.left() > 0 && int(r.record[r.at]) < r.left() { // as most are
		from := r.at + 1
		r.at = from + int(r.record[r.at])
		return r.record[from:r.at]
	}
	return r.take(r.length(head, &bins))
}

// key takes the next value where it is this text, and nothing else.
func (r *reader) key(key string) bool {
	if len(key) > int(^byte(strMask)) {
		return r.longKey(key)
	}
	end := r.at + 1 + len(key)
	if end > len(r.record) || r.record[r.at] != strShort|byte(len(key)) || r.record[r.at+1:end] != key {
		return false
	}
	r.at = end
	return true
}

func (r *reader) longKey(key string) bool {
	ahead := *r
	if ahead.text() != key || ahead.err != nil {
		return false
	}
	r.at = ahead.at
	return true
}

// kind is that of the next value, 0 where there is none.
func (r *reader) kind() Kind {
	if r.at >= len(r.record) {
		return 0
	}
	return headKinds[r.record[r.at]]
}

// headKinds are the kinds of values by their first byte.
var headKinds = func() (kinds [256]Kind) {
	for i := range kinds {
		switch head := byte(i); {
		case strs.has(head):
			kinds[i] = KindString
		case isInt(head):
			kinds[i] = KindInt
		case head == headFalse || head == headTrue:
			kinds[i] = KindBool
		case bins.has(head):
			kinds[i] = KindBytes
		case arrays.has(head):
			kinds[i] = KindList
		case maps.has(head):
			kinds[i] = KindMap
		}
	}
	return kinds
}()

func (r *reader) judgeText(s string) {
	if !utf8.ValidString(s) {
		r.fail("text is not valid UTF-8")
	}
}

func (r *reader) int() int64 {
	if r.at < len(r.record) && r.record[r.at] < 0x80 { // as most are
		r.at++
		return int64(r.record[r.at-1])
	}
	return r.intBody(r.head())
}

// take cuts n bytes off the front.
func (r *reader) take(n int) string {
	if n > r.left() {
		r.fail("%d bytes wanted, %d left", n, r.left())
		return ""
	}
	s := r.record[r.at : r.at+n]
	r.at += n
	return s
}

// head takes the first byte of a value. It gives headNever after an error.
func (r *reader) head() byte {
	if r.at < len(r.record) {
		r.at++
		return r.record[r.at-1]
	}
	r.take(1) // fails
	return headNever
}

// First bytes of values. headNever is the one that MessagePack leaves unused.
const (
	headNever = 0xc1
	headFalse = 0xc2
	headTrue  = 0xc3
)

// A family is a kind of value with a length: its short form, where there is
// one, and its long forms with a length of 1, 2 or 4 bytes (0 = none).
type family struct {
	name                string
	short, shortMask    byte
	long1, long2, long4 byte
}

// strShort and strMask are those of texts.
const strShort, strMask = 0xa0, 0xe0

var (
	strs   = family{"string", strShort, strMask, 0xd9, 0xda, 0xdb}
	bins   = family{"bytes", headNever, 0xff, 0xc4, 0xc5, 0xc6}
	arrays = family{"array", 0x90, 0xf0, 0, 0xdc, 0xdd}
	maps   = family{"map", 0x80, 0xf0, 0, 0xde, 0xdf}
)

func (f *family) isShort(head byte) bool { return head&f.shortMask == f.short }

func (f *family) has(head byte) bool {
	return head != headNever && head != 0 && (f.isShort(head) || head == f.long1 || head == f.long2 || head == f.long4)
}

// shortEnd is the first length that the short form does not hold.
func (f *family) shortEnd() uint64 {
	if f.short == headNever {
		return 0
	}
	return uint64(^f.shortMask) + 1
}

// length reads the length of a value whose first byte is head, in the shortest
// form there is. It is never more than the bytes that are left, so nothing can
// be asked for that is not there.
func (r *reader) length(head byte, f *family) int {
	if r.err != nil {
		return 0
	}
	if !f.has(head) {
		r.fail("byte %#02x where %s was expected", head, f.name)
		return 0
	}
	n, least := uint64(head&^f.shortMask), uint64(0)
	switch head {
	case f.long1:
		n, least = r.uint(1), f.shortEnd()
	case f.long2:
		if n, least = r.uint(2), f.shortEnd(); f.long1 != 0 {
			least = math.MaxUint8 + 1
		}
	case f.long4:
		n, least = r.uint(4), math.MaxUint16+1
	}
	if n < least {
		r.fail("%s of length %d in a longer form", f.name, n)
		return 0
	}
	if n > uint64(r.left()) {
		r.fail("%s of length %d, %d bytes left", f.name, n, r.left())
		return 0
	}
	return int(n)
}

// uint reads size bytes, most significant first.
func (r *reader) uint(size int) (n uint64) {
	s := r.take(size)
	for i := range len(s) {
		n = n<<8 | uint64(s[i])
	}
	return n
}

func isInt(head byte) bool {
	return head < 0x80 || head >= 0xe0 || head >= 0xcc && head <= 0xd3
}

// intBody reads a whole number in the shortest form there is.
func (r *reader) intBody(head byte) int64 {
	switch {
	case r.err != nil:
		return 0
	case head < 0x80 || head >= 0xe0:
		return int64(int8(head))
	case head >= 0xcc && head <= 0xcf:
		return r.unsigned(head - 0xcc)
	case head >= 0xd0 && head <= 0xd3:
		return r.negative(head - 0xd0)
	}
	r.fail("byte %#02x where an integer was expected", head)
	return 0
}

// leastUnsigned are the least numbers that need a form of 1, 2, 4 and 8 bytes,
// and mostNegative the greatest of those below zero.
var (
	leastUnsigned = [...]uint64{math.MaxInt8 + 1, math.MaxUint8 + 1, math.MaxUint16 + 1, math.MaxUint32 + 1}
	mostNegative  = [...]int64{-0x21, math.MinInt8 - 1, math.MinInt16 - 1, math.MinInt32 - 1}
)

func (r *reader) unsigned(form byte) int64 {
	n := r.uint(1 << form)
	if r.err == nil && (n < leastUnsigned[form] || n > math.MaxInt64) {
		r.fail("integer %d is out of range, or in a longer form", n)
	}
	return int64(n)
}

func (r *reader) negative(form byte) int64 {
	size := 1 << form
	shift := 64 - 8*size
	n := int64(r.uint(size)<<shift) >> shift
	if r.err == nil && n > mostNegative[form] {
		r.fail("integer %d in a longer form", n)
	}
	return n
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
		if i := len(p); i > 0 && p[i-1].Key >= key {
			r.fail("key %q does not come after %q", key, p[i-1].Key)
			break
		}
		p = append(p, Field{Key: key}) // and filled in place: a field is large
		r.value(&p[len(p)-1].Value, depth)
	}
	return p
}

func (r *reader) items(n, depth int) Payload {
	if !r.deep(depth) {
		return nil
	}
	p := make(Payload, 0, min(n, roomAhead))
	for ; n > 0 && r.err == nil; n-- {
		p = append(p, Field{})
		r.value(&p[len(p)-1].Value, depth)
	}
	return p
}

func (r *reader) deep(depth int) bool {
	if depth > maxDepth {
		r.fail("nested deeper than %d", maxDepth)
	}
	return r.err == nil
}

// value reads an item of a list or map at the given depth into v, which is zero.
func (r *reader) value(v *Value, depth int) {
	v.kind = r.kind()
	head := r.head()
	switch v.kind {
	case KindString:
		v.text = r.textBody(head)
	case KindInt:
		v.num = r.intBody(head)
	case KindBool:
		*v = Bool(head == headTrue)
	case KindBytes:
		v.text = r.blob(head)
	case KindList:
		v.kids = r.items(r.length(head, &arrays), depth+1)
	case KindMap:
		v.kids = r.fields(r.length(head, &maps), depth+1)
	default:
		r.fail("byte %#02x has no place in a record", head)
	}
}
