package sqlgate

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"writegate/sqlgate/pgexec"
)

// Most bytes of the parameters that an approval shows: of one, and of all.
const (
	shownParameter  = 1 << 10
	shownParameters = 64 << 10
)

// shownParams are the parameters of a statement of the wire as the person reads
// them who is asked to approve it: as constants of SQL, with their types where
// those are known. The approval itself is for their bytes. Behind them stands the
// time zone that the statement runs under, where that is not UTC, and what its
// transaction has set before it.
func (s *submission) shownParams() []string {
	if s.wire == nil {
		return nil
	}
	list := s.wire.params()
	if zone := s.wire.wire.zone(); zone != "" {
		list = append(list, "TimeZone = "+quoted([]byte(zone)))
	}
	if types := s.preparedTypes(); types != "" {
		list = append(list, "types of the parameters: "+types)
	}
	left, setters := shownParameters, s.wire.wire.unit.setters.shown
	first := len(setters) // the last of them decide
	for first > 0 && left >= len(setters[first-1]) {
		first--
		left -= len(setters[first])
	}
	if first > 0 {
		list = append(list, strconv.Itoa(first)+" more before these in its transaction")
	}
	for _, setter := range setters[first:] {
		list = append(list, "before it in its transaction: "+setter)
	}
	return list
}

// params are the parameters of a portal as a person reads them.
func (c *wireCall) params() (list []string) {
	p, left := c.portal, shownParameters
	if p == nil {
		return nil
	}
	for i, value := range p.params {
		text := p.statement.showParameter(i, formatAt(p.paramFormats, i), value)
		if left -= len(text); left < 0 {
			return append(list, strconv.Itoa(len(p.params)-i)+" more")
		}
		list = append(list, text)
	}
	return list
}

// preparedTypes are those of the parameters of what an EXECUTE runs, whose own text has
// the values alone; "" of all else, and where the server infers them all. In quotes
// "char" is not character(1).
func (s *submission) preparedTypes() string {
	if s.execute == nil || !slices.ContainsFunc(s.execute.types, func(oid uint32) bool { return oid != 0 }) {
		return ""
	}
	types := make([]string, len(s.execute.types))
	for i, oid := range s.execute.types {
		if oid == 0 {
			types[i] = "inferred"
			continue
		}
		elem, array := strings.CutSuffix(pgexec.TypeLabel(oid), "[]")
		if types[i] = `"` + elem + `"`; array {
			types[i] += "[]"
		}
	}
	return cut(strings.Join(types, ", "), shownParameter)
}

// setter is how a statement is shown beside one that comes behind it: of an EXECUTE
// what it runs, too.
func (s *submission) setter() string {
	text := cut(s.statement().SQL, shownParameter)
	if s.execute != nil {
		text = cut(strings.TrimSpace(s.SQL), shownParameter) + " which runs " + text
		if types := s.preparedTypes(); types != "" {
			text += " with parameters of the types " + types
		}
	}
	for i, value := range s.wire.params() {
		if text += " $" + strconv.Itoa(i+1) + " = " + value; len(text) > 4*shownParameter {
			break
		}
	}
	return cut(text, 4*shownParameter)
}

// cut shortens a text to at most n bytes of whole characters.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + " …"
}

// typeOf is the type of a parameter as Parse said it, or else as a Describe found it.
func (st *wireStatement) typeOf(i int) uint32 {
	if i < len(st.types) && st.types[i] != 0 {
		return st.types[i]
	}
	if i < len(st.parameters) {
		return st.parameters[i]
	}
	return 0
}

func (st *wireStatement) showParameter(i int, format int16, value []byte) string {
	oid := st.typeOf(i)
	label, kind := "", pgexec.TypeLabel(oid)
	switch t, named := st.typeNames[oid]; {
	case oid == 0:
	case named && !pgexec.PlainType(oid):
		if label = t; strings.HasSuffix(kind, "[]") { // the name is that of its elements
			label += "[]"
		}
	case strings.HasPrefix(kind, "char"), strings.HasPrefix(kind, "bit"): // unquoted they are character(1) and bit(1)
		elem, array := strings.CutSuffix(kind, "[]")
		if label = `"` + elem + `"`; array {
			label += "[]"
		}
	default:
		label = kind
	}
	typed := ""
	if label != "" {
		typed = "::" + label
	}
	switch {
	case value == nil:
		return "NULL" + typed
	case format == 0:
		if !utf8.Valid(value) || bytes.IndexByte(value, 0) >= 0 {
			return wireBytes("text", label, value)
		}
		return quoted(value) + typed
	}
	if oid == 0 {
		return wireBytes("binary", label, value)
	}
	text, whole, ok := binaryText(kind, value)
	switch {
	case !ok:
		return wireBytes("binary", label, value)
	case !whole:
		cut := text[:min(len(text), shownParameter)]
		for !utf8.ValidString(cut) {
			cut = cut[:len(cut)-1]
		}
		return "'" + strings.ReplaceAll(cut, "'", "''") + "'… (" + strconv.Itoa(len(value)) + " bytes)" + typed
	case bareTypes[kind] && (kind == "bool" || text[0] >= '0' && text[0] <= '9'):
		return text + typed // a sign would bind less than the type does
	}
	return "'" + strings.ReplaceAll(text, "'", "''") + "'" + typed
}

// bareTypes are those whose constants stand without quotes.
var bareTypes = map[string]bool{"bool": true, "int2": true, "int4": true, "int8": true, "float4": true, "float8": true}

// wireBytes shows a value that no constant is known for, in words that nobody takes
// for one.
func wireBytes(form, label string, value []byte) string {
	if label == "" {
		label = "a type that the server infers"
	}
	cut := value[:min(len(value), shownParameter/2)]
	return "no constant: the " + form + " form of " + label + ", bytes " + hex.EncodeToString(cut) + more(value, cut)
}

// quoted is a text of UTF-8 as a constant.
func quoted(value []byte) string {
	cut := value
	for len(cut) > shownParameter {
		cut = cut[:shownParameter]
		for len(cut) > 0 && !utf8.Valid(cut) {
			cut = cut[:len(cut)-1]
		}
	}
	return "'" + strings.ReplaceAll(string(cut), "'", "''") + "'" + more(value, cut)
}

func more(value, cut []byte) string {
	if len(cut) == len(value) {
		return ""
	}
	return "… (" + strconv.Itoa(len(value)) + " bytes)"
}
