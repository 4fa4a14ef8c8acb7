package evidence

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of what a document may hold. Each is checked while it is read, so no
// text makes a reader allocate more than these.
const (
	MaxReason = 4 << 10  // bytes of a bundle's reason
	MaxLine   = 16 << 20 // bytes of one readable event: a record of 1 MiB never needs as much

	MaxSkipped = 256 << 20 // bytes of a line of a JSONL file in which its end is looked for
	maxProof   = 64        // hashes of a proof: a tree of 2^64 leaves is not deeper
	maxNumber  = 20        // digits of the largest 64-bit number
	buffer     = 64 << 10
)

// errCut is the end of the input in the middle of a document.
var errCut = errors.New("the document ends here, before it is complete")

// A formError says where a document leaves its one canonical form.
type formError struct {
	off int64
	why string
}

func (e *formError) Error() string { return fmt.Sprintf("byte %d: %s", e.off, e.why) }

// A reader takes a canonical document off the front of a stream. After the first
// error it gives zero values.
type reader struct {
	in   *bufio.Reader
	off  int64
	err  error
	buf  []byte // of text and object
	tick func(done int64)
}

func newReader(r io.Reader, tick func(done int64)) *reader {
	return &reader{in: bufio.NewReaderSize(r, buffer), tick: tick}
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = &formError{r.off, fmt.Sprintf(format, args...)}
	}
}

// broken keeps an error of the input; its end is a cut.
func (r *reader) broken(err error) {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = errCut
	}
	if r.err == nil {
		r.err = err
	}
}

// is reports whether lit comes next; it takes nothing. An input that ends
// within lit is cut: what is asked for is always what may stand there.
func (r *reader) is(lit string) bool {
	if r.err != nil {
		return false
	}
	b, err := r.in.Peek(len(lit))
	if string(b) == lit {
		return true
	}
	if err != nil && (err != io.EOF || strings.HasPrefix(lit, string(b))) {
		r.off += int64(len(b))
		r.broken(err)
	}
	return false
}

// has takes lit if it comes next.
func (r *reader) has(lit string) bool {
	if !r.is(lit) {
		return false
	}
	r.skip(len(lit))
	return true
}

func (r *reader) skip(n int) {
	n, err := r.in.Discard(n)
	r.off += int64(n)
	if err != nil {
		r.broken(err)
	}
}

// want takes lit, which has to come next.
func (r *reader) want(lit string) {
	if r.has(lit) || r.err != nil {
		return
	}
	b, _ := r.in.Peek(len(lit)) // has looked already, and met no error but the end
	n := 0
	for n < len(b) && b[n] == lit[n] {
		n++
	}
	r.off += int64(n)
	r.fail("%q stands where %q belongs", b[n:], lit[n:])
}

// next takes one byte.
func (r *reader) next() byte {
	b := r.window()
	if len(b) == 0 {
		return 0
	}
	c := b[0]
	r.pass(1)
	return c
}

// window shows what is at hand, at least one byte; nothing after an error.
func (r *reader) window() []byte {
	if r.err != nil {
		return nil
	}
	b, err := r.in.Peek(max(r.in.Buffered(), 1))
	if len(b) == 0 {
		r.broken(err)
	}
	return b
}

// pass takes n bytes of the window.
func (r *reader) pass(n int) {
	before := r.off >> 20
	r.skip(n)
	if r.tick != nil && r.off>>20 > before {
		r.tick(r.off)
	}
}

// text takes a JSON string of at most limit bytes, in the one form that
// event.AppendText writes. The bytes are valid until the next call.
func (r *reader) text(limit int) []byte {
	r.want(`"`)
	r.buf = r.buf[:0]
	for r.err == nil {
		r.plain(limit)
		if r.err == nil && len(r.buf) > limit { // judged before the next byte, which may be missing
			r.fail("the text is longer than %d bytes", limit)
		}
		switch c := r.next(); {
		case r.err != nil:
		case c == '"' && !utf8.Valid(r.buf):
			r.fail("the text is not valid UTF-8")
		case c == '"':
			return r.buf
		case c == '\\':
			r.buf = append(r.buf, r.escape())
		default:
			r.fail("byte %#02x stands in a text without an escape", c)
		}
	}
	return nil
}

// plain takes what stands in a text up to its end or to a byte that needs a
// look; of a text that is too long no more than shows it.
func (r *reader) plain(limit int) {
	for len(r.buf) <= limit {
		b := r.window()
		n := 0
		for n < len(b) && b[n] >= 0x20 && b[n] != '"' && b[n] != '\\' {
			n++
		}
		r.buf = append(r.buf, b[:n]...)
		r.pass(n)
		if n < len(b) || r.err != nil {
			return
		}
	}
}

// escape takes what follows a backslash.
func (r *reader) escape() byte {
	c := r.next()
	if c == '"' || c == '\\' || r.err != nil {
		return c
	}
	if c == 'u' {
		r.want("00")
		hi, lo := r.next(), strings.IndexByte("0123456789abcdef", r.next())
		if (hi == '0' || hi == '1') && lo >= 0 {
			return (hi-'0')<<4 | byte(lo)
		}
	}
	r.fail("an escape that is not written so")
	return 0
}

// number takes a whole number without a sign, as strconv writes it.
func (r *reader) number() uint64 {
	var digits [maxNumber + 1]byte
	n := 0
	for r.err == nil {
		b, err := r.in.Peek(1)
		if err != nil {
			r.broken(err)
			return 0
		}
		if b[0] < '0' || b[0] > '9' || n == len(digits) {
			break
		}
		digits[n] = r.next()
		n++
	}
	v, err := strconv.ParseUint(string(digits[:n]), 10, 64)
	if err != nil || n > 1 && digits[0] == '0' {
		r.fail("%q is not a whole number of 64 bits", digits[:n])
		return 0
	}
	return v
}

// hex takes a text of n bytes in lower-case hex.
func (r *reader) hex(dst []byte) {
	s := r.text(2 * len(dst))
	if r.err != nil {
		return
	}
	if n, err := hex.Decode(dst, s); err != nil || n != len(dst) || hex.EncodeToString(dst) != string(s) {
		r.fail("%.80q is not %d bytes in lower-case hex", s, len(dst))
	}
}

func (r *reader) hash() (h [32]byte) {
	r.hex(h[:])
	return h
}

// base64 takes a text of at most limit bytes in padded base64. The bytes are
// appended to dst.
func (r *reader) base64(dst []byte, limit int) []byte {
	s := r.text(base64.StdEncoding.EncodedLen(limit))
	if r.err != nil {
		return dst
	}
	b, err := base64.StdEncoding.Strict().AppendDecode(dst, s)
	if err != nil || len(b)-len(dst) > limit || base64.StdEncoding.EncodedLen(len(b)-len(dst)) != len(s) { // the decoder passes line ends over
		r.fail("not base64 of at most %d bytes, as it is written", limit)
		return dst
	}
	return b
}

// object takes one JSON object of at most limit bytes, whatever is in it, and
// gives its text, valid until the next call. Only brackets and texts are
// looked at: the caller compares the whole with what it has to be.
func (r *reader) object(limit int) []byte {
	if !r.is("{") {
		r.want("{")
		return nil
	}
	r.buf = r.buf[:0]
	var o nesting
	for r.err == nil {
		b := r.window()
		n, done := o.walk(b)
		if r.buf = append(r.buf, b[:n]...); len(r.buf) > limit {
			r.fail("an event's text is longer than %d bytes", limit)
		}
		r.pass(n)
		if done && r.err == nil {
			return r.buf
		}
	}
	return nil
}

// nesting follows brackets and texts.
type nesting struct {
	depth           int
	quoted, escaped bool
}

// walk goes through b up to the bracket that closes the first one.
func (o *nesting) walk(b []byte) (n int, done bool) {
	for i, c := range b {
		switch {
		case o.escaped:
			o.escaped = false
		case o.quoted && c == '\\':
			o.escaped = true
		case c == '"':
			o.quoted = !o.quoted
		case o.quoted:
		case c == '{' || c == '[':
			o.depth++
		case c == '}' || c == ']':
			if o.depth--; o.depth == 0 {
				return i + 1, true
			}
		}
	}
	return len(b), false
}

// end holds that nothing follows.
func (r *reader) end() {
	if r.err != nil {
		return
	}
	switch b, err := r.in.Peek(1); {
	case len(b) > 0:
		r.fail("%q follows the end of the document", b)
	case err != io.EOF:
		r.broken(err)
	}
}
