package event

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

// RecordVersion is the first item of every record and names its layout.
const RecordVersion = 1

const (
	recordItems = 7
	// maxDepth bounds nesting in a record: the record is level 1, the payload 2.
	maxDepth     = 32
	payloadDepth = 2
)

// ErrNotEncodable says that a draft has no record: it breaks a rule of the
// canonical encoding. It is a fault of the program that made the draft.
var ErrNotEncodable = errors.New("event cannot be encoded")

// Encode appends the record of d to dst, in the canonical encoding of
// design/eventlog.md part 3. On an error, which wraps ErrNotEncodable, dst
// comes back as it was.
func Encode(dst []byte, d *Draft) ([]byte, error) {
	w := writers.Get().(*writer)
	defer w.release()
	w.buf = dst
	w.draft(d)
	if w.err != nil {
		return dst, fmt.Errorf("%w: %s: %w", ErrNotEncodable, d.Type, w.err)
	}
	return w.buf, nil
}

// A writer collects what the msgpack encoder emits and the first error, so
// that the code above reads as a description of the record.
type writer struct {
	enc     *msgpack.Encoder
	buf     []byte
	err     error
	scratch []byte // room for an encoding that is only looked at
}

// scratchKept bounds the room that stays with a writer in the pool.
const scratchKept = 64 << 10

func (w *writer) keepScratch() {
	if cap(w.buf) <= scratchKept {
		w.scratch = w.buf[:0]
	}
}

var writers = sync.Pool{New: func() any {
	w := new(writer)
	w.enc = msgpack.NewEncoder(w)
	return w
}}

// release gives the writer back without the caller's buffer, which it must not keep alive.
func (w *writer) release() {
	w.buf, w.err = nil, nil
	writers.Put(w)
}

// Write and WriteByte are the encoder's way to buf.
func (w *writer) Write(p []byte) (int, error) {
	w.buf = append(w.buf, p...)
	return len(p), nil
}

func (w *writer) WriteByte(c byte) error {
	w.buf = append(w.buf, c)
	return nil
}

func (w *writer) keep(err error) {
	if err != nil && w.err == nil {
		w.err = err
	}
}

func (w *writer) fail(format string, args ...any) {
	w.keep(fmt.Errorf(format, args...))
}

func (w *writer) draft(d *Draft) {
	if d.Type == "" || d.TypeVersion == 0 {
		w.fail("an event needs a type and a version from 1")
	}
	w.keep(w.enc.EncodeArrayLen(recordItems))
	w.keep(w.enc.EncodeUint(RecordVersion))
	w.bytes(string(d.ID[:]))
	w.text(string(d.Type))
	w.keep(w.enc.EncodeUint(uint64(d.TypeVersion)))
	w.moment(d.Time)
	w.context(&d.Context)
	if packed := d.bytes(); packed != "" {
		w.buf = append(w.buf, packed...)
		return
	}
	w.fields(d.Payload, payloadDepth)
}

// moment writes nanoseconds since 1970. Outside the years 1678 to 2262 they do
// not fit into 64 bits, and such a time is refused rather than wrapped.
func (w *writer) moment(t time.Time) {
	ns := t.UnixNano()
	if !time.Unix(0, ns).Equal(t) {
		w.fail("time %v is out of range", t)
	}
	w.keep(w.enc.EncodeInt(ns))
}

func (w *writer) context(c *Context) {
	w.keep(w.enc.EncodeMapLen(c.set()))
	for n := 1; n <= contextFields; n++ {
		s := *c.at(n)
		if s == "" {
			continue
		}
		w.keep(w.enc.EncodeUint(uint64(n)))
		if prefix := contextPrefixes[n]; prefix != "" {
			if id, ok := parsePrefixed(prefix, s); ok {
				w.id(id)
				continue
			}
		}
		w.text(s)
	}
}

func (w *writer) id(id ID) {
	w.keep(w.enc.EncodeBytesLen(len(id)))
	w.buf = append(w.buf, id[:]...)
}

func (w *writer) text(s string) {
	if !utf8.ValidString(s) {
		w.fail("text is not valid UTF-8")
	}
	w.length(len(s))
	w.keep(w.enc.EncodeString(s))
}

// bytes goes around EncodeBytes, which would turn an empty nil slice into nil.
func (w *writer) bytes(s string) {
	w.length(len(s))
	w.keep(w.enc.EncodeBytesLen(len(s)))
	w.buf = append(w.buf, s...)
}

func (w *writer) length(n int) {
	if uint64(n) > math.MaxUint32 {
		w.fail("a length of %d does not fit", n)
	}
}

func (w *writer) fields(p Payload, depth int) {
	if depth > maxDepth {
		w.fail("nested deeper than %d", maxDepth)
		return
	}
	w.length(len(p))
	w.keep(w.enc.EncodeMapLen(len(p)))
	for i := range p {
		if i > 0 && p[i-1].Key >= p[i].Key {
			w.fail("key %q does not come after %q", p[i].Key, p[i-1].Key)
		}
		w.text(p[i].Key)
		w.value(&p[i].Value, depth)
	}
}

// value writes v as an item of a list or map at the given depth.
func (w *writer) value(v *Value, depth int) {
	switch v.kind {
	case KindBool:
		w.keep(w.enc.EncodeBool(v.num != 0))
	case KindInt:
		w.keep(w.enc.EncodeInt(v.num))
	case KindString:
		w.text(v.text)
	case KindBytes:
		w.bytes(v.text)
	case KindList:
		w.items(v.kids, depth+1)
	case KindMap:
		w.fields(v.kids, depth+1)
	default:
		w.fail("a value is not set")
	}
}

// count begins a list.
func (w *writer) count(n int) {
	w.length(n)
	w.keep(w.enc.EncodeArrayLen(n))
}

func (w *writer) items(list Payload, depth int) {
	if depth > maxDepth {
		w.fail("nested deeper than %d", maxDepth)
		return
	}
	w.count(len(list))
	for i := range list {
		w.value(&list[i].Value, depth)
	}
}
