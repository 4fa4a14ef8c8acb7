package pgexec

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxJSONDepth is how deep a json value may be to be handed on as JSON; deeper
// ones are strings, since many readers give up or crash on them.
const maxJSONDepth = 1000

// maxSafeInt is the largest whole number up to which every double is exact
// (RFC 8259 part 6).
const maxSafeInt = 1<<53 - 1

// appendValue appends the JSON of a value's text form.
func appendValue(dst []byte, t *typeInfo, text []byte) []byte {
	switch t.kind {
	case asBool:
		if string(text) == "t" {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	case asNumber, asFloat: // the server's digits, which are the shortest that give the same number
		return appendNumber(dst, text)
	case asInt8:
		return appendInt8(dst, text)
	case asJSON:
		return appendJSON(dst, text)
	case asArray:
		return appendArray(dst, t, text)
	default:
		return appendString(dst, text)
	}
}

func appendInt8(dst, text []byte) []byte {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || n > maxSafeInt || n < -maxSafeInt {
		return appendString(dst, text)
	}
	return appendNumber(dst, text)
}

// appendNumber writes a number as it is, and what is none, as NaN and the infinities are not, or
// whatever its type says, as a string: a value stands in an answer as a value and nothing else.
func appendNumber(dst, text []byte) []byte {
	whole := len(text) > 0 && (text[0] != '0' || len(text) == 1) // as nearly all are
	for _, c := range text {
		switch {
		case c >= '0' && c <= '9':
		case strings.IndexByte("+-.eE", c) >= 0:
			whole = false
		default:
			return appendString(dst, text)
		}
	}
	if !whole && !json.Valid(text) {
		return appendString(dst, text)
	}
	return append(dst, text...)
}

// appendJSON hands json and jsonb on byte for byte: numbers, order and doubled
// keys stay.
func appendJSON(dst, text []byte) []byte {
	if depthOf(text) > maxJSONDepth || !json.Valid(text) {
		return appendString(dst, text)
	}
	return append(dst, text...)
}

// depthOf is how deep the brackets outside strings nest.
func depthOf(text []byte) int {
	depth, most, inString := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString:
			if c == '\\' {
				i++
			} else if c == '"' {
				inString = false
			}
		case c == '"':
			inString = true
		case c == '[' || c == '{':
			depth++
			most = max(most, depth)
		case c == ']' || c == '}':
			depth--
		}
	}
	return most
}

const hexDigits = "0123456789abcdef"

// appendString appends a JSON string (RFC 8259 part 7). Bytes that are not
// UTF-8, which the server sends for the type "char" alone, become U+FFFD.
func appendString[T []byte | string](dst []byte, s T) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// maxDimensions is PostgreSQL's own limit (MAXDIM).
const maxDimensions = 6

// appendArray appends an array as nested JSON arrays. Where the text is no plain
// array (bounds before it, or anything unexpected) it stays a string.
func appendArray(dst []byte, t *typeInfo, text []byte) []byte {
	p := arrayParser{text: text, elem: t.elem, delim: t.delim}
	start := len(dst)
	dst, ok := p.array(dst, 1)
	if !ok || p.at != len(text) {
		return appendString(dst[:start], text)
	}
	return dst
}

// An arrayParser reads the output of array_out
// (https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO).
type arrayParser struct {
	text    []byte
	at      int
	elem    *typeInfo
	delim   byte
	scratch []byte
}

// array reads one brace level.
func (p *arrayParser) array(dst []byte, depth int) ([]byte, bool) {
	if depth > maxDimensions || !p.eat('{') {
		return dst, false
	}
	dst = append(dst, '[')
	if p.eat('}') {
		return append(dst, ']'), true
	}
	for {
		var ok bool
		if dst, ok = p.item(dst, depth); !ok {
			return dst, false
		}
		switch {
		case p.eat(p.delim):
			dst = append(dst, ',')
		case p.eat('}'):
			return append(dst, ']'), true
		default:
			return dst, false
		}
	}
}

func (p *arrayParser) eat(c byte) bool {
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

// item reads an element: a deeper level, a quoted text, or a bare one, of which
// NULL is null.
func (p *arrayParser) item(dst []byte, depth int) ([]byte, bool) {
	if p.at >= len(p.text) {
		return dst, false
	}
	switch p.text[p.at] {
	case '{':
		return p.array(dst, depth+1)
	case '"':
		value, ok := p.quoted()
		if !ok {
			return dst, false
		}
		return appendValue(dst, p.elem, value), true
	}
	value := p.bare()
	switch string(value) {
	case "":
		return dst, false
	case "NULL":
		return append(dst, "null"...), true
	}
	return appendValue(dst, p.elem, value), true
}

func (p *arrayParser) bare() []byte {
	start := p.at
	for p.at < len(p.text) {
		if c := p.text[p.at]; c == p.delim || c == '}' || c == '{' || c == '"' {
			break
		}
		p.at++
	}
	return p.text[start:p.at]
}

// quoted reads up to the closing quote; a backslash keeps the next character.
func (p *arrayParser) quoted() ([]byte, bool) {
	p.at++
	p.scratch = p.scratch[:0]
	for p.at < len(p.text) {
		c := p.text[p.at]
		p.at++
		switch {
		case c == '"':
			return p.scratch, true
		case c == '\\' && p.at < len(p.text):
			c = p.text[p.at]
			p.at++
		}
		p.scratch = append(p.scratch, c)
	}
	return nil, false
}
