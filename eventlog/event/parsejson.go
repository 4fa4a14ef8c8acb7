package event

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// ErrJSON says that a text is not the readable form of any event.
var ErrJSON = errors.New("not the readable form of an event")

// ParseJSON reads what AppendJSON writes, without a newline, and refuses
// everything else: what it accepts has a record and is rendered again and
// compared byte for byte. Hashes are read, not judged: whoever verifies a line
// encodes the draft and hashes the record.
func ParseJSON(line []byte) (Envelope, error) {
	p := parser{rest: string(line)}
	if !utf8.ValidString(p.rest) {
		p.fail("not valid UTF-8")
	}
	e := p.envelope()
	if p.err == nil && p.rest != "" {
		p.fail("%d bytes after the end", len(p.rest))
	}
	if p.err != nil {
		return Envelope{}, fmt.Errorf("%w: %w", ErrJSON, p.err)
	}
	if err := sameLine(line, &e); err != nil {
		return Envelope{}, err
	}
	return e, nil
}

func sameLine(line []byte, e *Envelope) error {
	w := writers.Get().(*writer)
	defer w.release()
	w.buf = w.scratch[:0]
	w.draft(&e.Draft)
	if w.err != nil {
		return fmt.Errorf("%w: %w", ErrJSON, w.err)
	}
	w.buf = AppendJSON(w.buf[:0], e)
	w.keepScratch()
	if !bytes.Equal(w.buf, line) {
		return fmt.Errorf("%w: not as it is written", ErrJSON)
	}
	return nil
}

// A parser takes the readable form off the front of rest. After the first
// error it gives zero values.
type parser struct {
	rest string
	err  error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
		p.rest = ""
	}
}

func (p *parser) envelope() (e Envelope) {
	p.want(jsonSeq)
	e.Seq = p.uint(math.MaxUint64)
	p.want(jsonID)
	id, err := ParseID(p.text())
	if err != nil {
		p.fail("%w", err)
	}
	e.ID = id
	p.want(jsonType)
	e.Type = Type(p.text())
	p.want(jsonTime)
	e.Time = p.moment()
	p.context(&e.Context)
	p.want(jsonRecordVer)
	if v := p.uint(math.MaxUint16); v != RecordVersion {
		p.fail("record version %d is not known", v)
	}
	p.want(jsonTypeVer)
	e.TypeVersion = uint16(p.uint(math.MaxUint16))
	p.want(jsonPayload)
	p.want("{")
	e.Payload = p.fields(payloadDepth)
	p.want(jsonPreviousHash)
	e.PreviousHash = p.hash()
	p.want(jsonHash)
	e.Hash = p.hash()
	p.want("}")
	return e
}

// has takes s off the front if it stands there.
func (p *parser) has(s string) bool {
	rest, ok := strings.CutPrefix(p.rest, s)
	if ok {
		p.rest = rest
	}
	return ok && p.err == nil
}

func (p *parser) want(s string) {
	if !p.has(s) {
		p.fail("%q expected before %.20q", s, p.rest)
	}
}

func (p *parser) context(c *Context) {
	for n := 1; n <= contextFields; n++ {
		key := `,"` + contextNames[n] + `":`
		if n <= contextAlways {
			p.want(key)
		} else if !p.has(key) {
			continue
		}
		*c.at(n) = p.text()
	}
}

func (p *parser) moment() time.Time {
	s := p.text()
	t, err := time.Parse(timeLayout, s)
	if err != nil {
		p.fail("timestamp %.40q", s)
	}
	return t.UTC()
}

func (p *parser) hash() (h [32]byte) {
	s := p.text()
	if len(s) != 2*len(h) {
		p.fail("a hash of %d characters", len(s))
		return h
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		p.fail("hash: %w", err)
	}
	return h
}

// number takes the characters of a whole number off the front.
func (p *parser) number() string {
	n := 0
	for n < len(p.rest) && (p.rest[n] == '-' || p.rest[n] >= '0' && p.rest[n] <= '9') {
		n++
	}
	s := p.rest[:n]
	p.rest = p.rest[n:]
	return s
}

func (p *parser) uint(limit uint64) uint64 {
	n, err := strconv.ParseUint(p.number(), 10, 64)
	if err != nil || n > limit {
		p.fail("not a number up to %d", limit)
		return 0
	}
	return n
}

func (p *parser) int(s string) Value {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		p.fail("%.30q is not a whole number of 64 bits", s)
	}
	return Int(n)
}

// text reads a string in quotes.
func (p *parser) text() string {
	p.want(`"`)
	end := strings.IndexAny(p.rest, `"\`)
	if end >= 0 && p.rest[end] == '"' {
		s := p.rest[:end]
		p.rest = p.rest[end+1:]
		return s
	}
	return p.escaped()
}

// escaped reads the rest of a string that holds escapes. What it takes too
// generously, the comparison at the end refuses.
func (p *parser) escaped() string {
	var b strings.Builder
	for p.err == nil {
		end := strings.IndexAny(p.rest, `"\`)
		if end < 0 || end+1 >= len(p.rest) {
			p.fail("a string without an end")
			break
		}
		b.WriteString(p.rest[:end])
		quote := p.rest[end] == '"'
		p.rest = p.rest[end+1:]
		if quote {
			return b.String()
		}
		b.WriteByte(p.escape())
	}
	return ""
}

// escape reads what follows a backslash.
func (p *parser) escape() byte {
	c := p.rest[0]
	p.rest = p.rest[1:]
	if c != 'u' {
		return c
	}
	if len(p.rest) < 4 {
		p.fail("an escape without an end")
		return 0
	}
	n, err := strconv.ParseUint(p.rest[:4], 16, 16)
	if err != nil || n >= 0x20 {
		p.fail("escape \\u%.4q is not written so", p.rest)
		return 0
	}
	p.rest = p.rest[4:]
	return byte(n)
}

// fields reads a map whose opening brace is taken already.
func (p *parser) fields(depth int) Payload {
	list := make(Payload, 0, 8)
	if !p.deep(depth) || p.has("}") {
		return list
	}
	for p.err == nil {
		key := p.text()
		if strings.HasPrefix(key, "$") {
			if key = key[1:]; !strings.HasPrefix(key, "$") {
				p.fail("key $%.20s has no meaning here", key)
			}
		}
		p.want(":")
		list = append(list, Field{Key: key, Value: p.value(depth)})
		if p.has("}") {
			break
		}
		p.want(",")
	}
	return list
}

func (p *parser) items(depth int) Payload {
	list := make(Payload, 0, 8)
	if !p.deep(depth) || p.has("]") {
		return list
	}
	for p.err == nil {
		list = append(list, Field{Value: p.value(depth)})
		if p.has("]") {
			break
		}
		p.want(",")
	}
	return list
}

func (p *parser) deep(depth int) bool {
	if depth > maxDepth {
		p.fail("nested deeper than %d", maxDepth)
	}
	return p.err == nil
}

// value reads an item of a list or map at the given depth.
func (p *parser) value(depth int) Value {
	switch {
	case p.has("true"):
		return Bool(true)
	case p.has("false"):
		return Bool(false)
	case p.has(jsonIntKey):
		return p.closed(p.int(p.text()))
	case p.has(jsonBytesKey):
		return p.closed(p.base64(p.text()))
	case p.has("{"):
		return Value{kind: KindMap, kids: p.fields(depth + 1)}
	case p.has("["):
		return Value{kind: KindList, kids: p.items(depth + 1)}
	case strings.HasPrefix(p.rest, `"`):
		return String(p.text())
	}
	return p.int(p.number())
}

func (p *parser) closed(v Value) Value {
	p.want("}")
	return v
}

func (p *parser) base64(s string) Value {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		p.fail("base64: %w", err)
	}
	return Value{kind: KindBytes, text: string(b)}
}
