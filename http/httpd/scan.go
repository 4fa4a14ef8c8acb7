package httpd

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// This file is the grammar of RFC 8259, stricter where the RFC leaves a choice:
// names are unique, text is Unicode without lone surrogates, depth is bounded.

// skip checks one value of any shape and keeps nothing of it.
func (d *decoder) skip(path string) error {
	switch c := d.peek(); {
	case c == '{':
		return d.members(path, func(_, path string) error { return d.skip(path) })
	case c == '[':
		return d.elements(path, d.skip)
	case c == '"':
		_, err := d.str(path)
		return err
	case c == 't':
		return d.literal("true", path)
	case c == 'f':
		return d.literal("false", path)
	case c == 'n':
		return d.literal("null", path)
	case c == '-' || '0' <= c && c <= '9':
		return d.number(path)
	}
	return d.unexpected(path, "a value")
}

// members walks over an object and calls each for every member, standing at
// its value.
func (d *decoder) members(path string, each func(name, path string) error) error {
	if err := d.enter(path); err != nil {
		return err
	}
	seen := make(map[string]struct{}, 12)
	for d.space(); d.peek() != '}'; d.space() {
		name, err := d.name(path, len(seen) == 0)
		if err != nil {
			return err
		}
		inner := join(path, name)
		if _, doubled := seen[name]; doubled {
			return d.fail(inner, "the field is there twice")
		}
		seen[name] = struct{}{}
		if err := each(name, inner); err != nil {
			return err
		}
	}
	d.leave()
	return nil
}

// name reads the comma before a member (unless it is the first), its name and
// its colon.
func (d *decoder) name(path string, first bool) (string, error) {
	if !first {
		if err := d.expect(',', path); err != nil {
			return "", err
		}
	}
	if d.peek() != '"' {
		return "", d.unexpected(path, "a field name in double quotes")
	}
	name, err := d.str(path)
	if err != nil {
		return "", err
	}
	d.space()
	return name, d.expect(':', path)
}

func (d *decoder) elements(path string, each func(path string) error) error {
	if err := d.enter(path); err != nil {
		return err
	}
	d.space()
	for first := true; d.peek() != ']'; first = false {
		if !first {
			if err := d.expect(',', path); err != nil {
				return err
			}
		}
		if err := each(path); err != nil {
			return err
		}
		d.space()
	}
	d.leave()
	return nil
}

// enter and leave step over a bracket and count the depth.
func (d *decoder) enter(path string) error {
	d.pos++
	d.depth++
	if d.depth > maxDepth {
		return d.fail(path, fmt.Sprintf("nested more than %d levels deep", maxDepth))
	}
	return nil
}

func (d *decoder) leave() {
	d.pos++
	d.depth--
}

// expect steps over c and the space behind it.
func (d *decoder) expect(c byte, path string) error {
	if d.peek() != c {
		return d.unexpected(path, strconv.Quote(string(c)))
	}
	d.pos++
	d.space()
	return nil
}

func (d *decoder) unexpected(path, want string) error {
	if d.pos >= len(d.in) {
		return d.fail(path, "the JSON ends where "+want+" is expected")
	}
	return d.fail(path, want+" is expected here")
}

func (d *decoder) literal(word, path string) error {
	if !bytes.HasPrefix(d.in[d.pos:], []byte(word)) {
		return d.unexpected(path, "a value")
	}
	d.pos += len(word)
	return nil
}

// number steps over a number by the grammar of RFC 8259 part 6.
func (d *decoder) number(path string) error {
	d.accept("-")
	if !d.accept("0") && d.digits() == 0 {
		return d.unexpected(path, "a digit")
	}
	if d.accept(".") && d.digits() == 0 {
		return d.unexpected(path, "a digit")
	}
	if d.accept("eE") {
		d.accept("+-")
		if d.digits() == 0 {
			return d.unexpected(path, "a digit")
		}
	}
	return nil
}

// accept steps over one byte out of a set.
func (d *decoder) accept(set string) bool {
	if d.pos < len(d.in) && strings.IndexByte(set, d.in[d.pos]) >= 0 {
		d.pos++
		return true
	}
	return false
}

func (d *decoder) digits() (n int) {
	for d.accept("0123456789") {
		n++
	}
	return n
}

// str reads a string. Most have no escape and are copied once.
func (d *decoder) str(path string) (string, error) {
	start := d.pos + 1
	for i := start; i < len(d.in); i++ {
		switch c := d.in[i]; {
		case c == '"':
			d.pos = i + 1
			return d.unicodeText(d.in[start:i], path)
		case c == '\\':
			d.pos = start
			return d.escaped(path)
		case c < ' ':
			d.pos = i
			return "", d.fail(path, "a control character in a string must be escaped")
		}
	}
	d.pos = len(d.in)
	return "", d.fail(path, "the JSON ends inside a string")
}

func (d *decoder) unicodeText(raw []byte, path string) (string, error) {
	if !utf8.Valid(raw) {
		return "", d.fail(path, "the text is not valid UTF-8")
	}
	return string(raw), nil
}

// escaped reads a string that holds escapes, from behind its opening quote.
func (d *decoder) escaped(path string) (string, error) {
	var out []byte
	for d.pos < len(d.in) {
		switch c := d.in[d.pos]; {
		case c == '"':
			d.pos++
			return d.unicodeText(out, path)
		case c < ' ':
			return "", d.fail(path, "a control character in a string must be escaped")
		case c == '\\':
			r, ok := d.escape()
			if !ok {
				return "", d.fail(path, "a string holds an escape that stands for no character")
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, c)
			d.pos++
		}
	}
	return "", d.fail(path, "the JSON ends inside a string")
}

const (
	escapeNames  = `"\/bfnrt`
	escapeValues = "\"\\/\b\f\n\r\t"
)

// escape reads one escape sequence, or the two of a surrogate pair.
func (d *decoder) escape() (rune, bool) {
	d.pos++ // the backslash
	if d.pos < len(d.in) {
		if i := strings.IndexByte(escapeNames, d.in[d.pos]); i >= 0 {
			d.pos++
			return rune(escapeValues[i]), true
		}
	}
	high, ok := d.codeUnit()
	if !ok || !utf16.IsSurrogate(high) {
		return high, ok
	}
	if !d.accept(`\`) {
		return 0, false
	}
	low, ok := d.codeUnit()
	r := utf16.DecodeRune(high, low)
	return r, ok && r != utf8.RuneError
}

// codeUnit reads the u and four hex digits of an escape.
func (d *decoder) codeUnit() (rune, bool) {
	if d.peek() != 'u' || d.pos+5 > len(d.in) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(d.in[d.pos+1:d.pos+5]), 16, 16)
	d.pos += 5
	return rune(n), err == nil
}

// peek is the byte at the position, 0 at the end; 0 begins nothing in JSON.
func (d *decoder) peek() byte {
	if d.pos < len(d.in) {
		return d.in[d.pos]
	}
	return 0
}

func (d *decoder) space() {
	for d.accept(" \t\n\r") {
	}
}
