package sqlgate

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"writegate/sqlgate/pgexec"
)

// Most bytes of the parameters that an approval shows: of one, and of all. The same of
// what was set before a statement, each by a text with its parameters or their types.
const (
	shownParameter  = 1 << 10
	shownParameters = 64 << 10
	shownOfSetter   = 32 << 10
	shownOfValue    = 200
	leastOfValue    = 16
)

// shownParams are the parameters of a statement as the person reads them who is asked
// to approve it: as constants of SQL, with their types where those are known. The
// approval itself is for their bytes. Behind them stands what else it is for: the time
// zone that the statement runs under, where that is not UTC, the types of what an
// EXECUTE runs, and what its transaction has set before it.
func (s *submission) shownParams() (list []string) {
	zone := ""
	if s.wire != nil {
		list = s.wire.params(shownParameters, shownParameter)
		if zone = s.wire.wire.zone(); zone != "" {
			list = append(list, "TimeZone = "+quoted([]byte(zone), shownParameter))
		}
	}
	if types := s.preparedTypes(shownParameters); types != "" {
		list = append(list, "types of the parameters: "+types)
	}
	if s.wire == nil {
		return list
	}
	before := &s.wire.wire.unit.setters
	if before.more > 0 {
		list = append(list, strconv.Itoa(before.more)+" more before these in its transaction")
	}
	for i := range before.last {
		list = append(list, before.last[i].shown(zone))
	}
	return list
}

// params are the parameters of a portal as a person reads them: at most so many bytes
// of all, and of each.
func (c *wireCall) params(all, each int) (list []string) {
	p := c.portal
	if p == nil {
		return nil
	}
	for i, value := range p.params {
		text := p.statement.showParameter(i, formatAt(p.paramFormats, i), value, each)
		if all -= len(text) + len(", "); all < 0 {
			return append(list, strconv.Itoa(len(p.params)-i)+" more")
		}
		list = append(list, text)
	}
	return list
}

// preparedTypes are those of the parameters of what an EXECUTE runs, whose own text has
// the values alone; "" of all else, and where the server infers them all.
func (s *submission) preparedTypes(most int) string {
	if s.execute == nil || !slices.ContainsFunc(s.execute.types, func(oid uint32) bool { return oid != 0 }) {
		return ""
	}
	var types []string
	for i, oid := range s.execute.types {
		label := cmp.Or(typeLabel(oid, s.execute.names.Names), "inferred")
		if most -= len(label) + len(", "); most < 0 {
			types = append(types, strconv.Itoa(len(s.execute.types)-i)+" more")
			break
		}
		types = append(types, label)
	}
	return strings.Join(types, ", ")
}

// typeLabel is a type as a cast names it, "" of one that the server infers.
func typeLabel(oid uint32, names map[uint32]pgexec.TypeName) string {
	if t, ok := names[oid]; ok {
		return t.Label
	}
	switch kind := pgexec.TypeLabel(oid); {
	case oid == 0:
		return ""
	case strings.HasPrefix(kind, "char"), strings.HasPrefix(kind, "bit"): // unquoted they are character(1) and bit(1)
		elem, array := strings.CutSuffix(kind, "[]")
		if array {
			return `"` + elem + `"[]`
		}
		return `"` + elem + `"`
	case kind[0] <= '9': // a Describe found it
		return "oid." + kind
	default:
		return kind
	}
}

// A wireSetter is a statement as it is shown beside those that come behind it.
type wireSetter struct {
	zone string // that it ran under, "" for UTC
	with string // its parameters, or the types of those of what an EXECUTE runs
	text string // of an EXECUTE what it runs, too
}

func (s *submission) setter() wireSetter {
	shown := wireSetter{zone: s.wire.wire.zone(), text: cut(s.statement().SQL, shownParameter)}
	if s.execute != nil {
		shown.text = cut(strings.TrimSpace(s.SQL), shownParameter) + " which runs " + shown.text
		if types := s.preparedTypes(shownOfSetter); types != "" {
			shown.with = ", with parameters of the types " + types
		}
	}
	if p := s.wire.portal; p != nil && len(p.params) > 0 { // all of them, rather than much of one: any may decide
		each := max(leastOfValue, min(shownOfValue, shownOfSetter/2/len(p.params)))
		shown.with = ", with the parameters " + strings.Join(s.wire.params(shownOfSetter, each), ", ")
	}
	return shown
}

// shown is the setter beside a statement that runs under a time zone. Its text comes
// last: nothing in it passes for what was bound.
func (s *wireSetter) shown(zone string) string {
	text := "before it in its transaction"
	if s.zone != zone {
		text += ", under TimeZone = " + quoted([]byte(cmp.Or(s.zone, "UTC")), shownParameter)
	}
	return text + s.with + ": " + s.text
}

// cut shortens a text to at most n bytes of whole characters.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + " …"
}

// typeOf is the type that a parameter is sent with: as Parse said it, or, of a value in
// its binary form, as a Describe found it. A text is the server's to read: 0.
func (st *wireStatement) typeOf(i int, format int16) uint32 {
	if i < len(st.types) && st.types[i] != 0 {
		return st.types[i]
	}
	if format == 1 && i < len(st.parameters) {
		return st.parameters[i]
	}
	return 0
}

// showParameter is a parameter with at most so many bytes of its value.
func (st *wireStatement) showParameter(i int, format int16, value []byte, most int) string {
	oid := st.typeOf(i, format)
	label, kind := typeLabel(oid, st.typeNames.Names), pgexec.TypeLabel(oid)
	typed := ""
	if label != "" {
		typed = "::" + label
	}
	switch {
	case value == nil:
		return "NULL" + typed
	case format == 0:
		if !utf8.Valid(value) || bytes.IndexByte(value, 0) >= 0 {
			return wireBytes("text", label, value, most)
		}
		return quoted(value, most) + typed
	}
	if oid == 0 {
		return wireBytes("binary", label, value, most)
	}
	text, whole, ok := binaryText(kind, value)
	switch {
	case !ok:
		return wireBytes("binary", label, value, most)
	case !whole:
		cut := text[:min(len(text), most)]
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
func wireBytes(form, label string, value []byte, most int) string {
	if label == "" {
		label = "a type that the server infers"
	}
	cut := value[:min(len(value), most/2)]
	return "no constant: the " + form + " form of " + label + ", bytes " + hex.EncodeToString(cut) + more(value, cut)
}

// quoted is a text of UTF-8 as a constant, with at most so many bytes of it.
func quoted(value []byte, most int) string {
	cut := value
	for len(cut) > most {
		cut = cut[:most]
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
