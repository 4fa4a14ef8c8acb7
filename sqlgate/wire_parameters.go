package sqlgate

import (
	"encoding/binary"
	"encoding/hex"
	"math"
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
// time zone that the statement runs under, where that is not UTC.
func (s *submission) shownParams() []string {
	if s.wire == nil {
		return nil
	}
	var list []string
	if p, left := s.wire.portal, shownParameters; p != nil {
		for i, value := range p.params {
			text := p.statement.showParameter(i, formatAt(p.paramFormats, i), value)
			if left -= len(text); left < 0 {
				list = append(list, strconv.Itoa(len(p.params)-i)+" more")
				break
			}
			list = append(list, text)
		}
	}
	if zone := s.wire.wire.zone(); zone != "" {
		list = append(list, "TimeZone = "+quoted([]byte(zone)))
	}
	return list
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
	oid, text := st.typeOf(i), "NULL"
	if value != nil {
		text = showValue(oid, format, value)
	}
	if oid == 0 {
		return text
	}
	if t, ok := st.typeNames[oid]; ok && !pgexec.PlainType(oid) {
		return text + "::" + t
	}
	return text + "::" + pgexec.TypeLabel(oid)
}

func showValue(oid uint32, format int16, value []byte) string {
	if format == 0 {
		return quoted(value)
	}
	if text, ok := binaryValue(pgexec.TypeLabel(oid), value); ok {
		return text
	}
	cut := value[:min(len(value), shownParameter/2)]
	return `'\x` + hex.EncodeToString(cut) + "'" + more(value, cut)
}

// binaryValue reads the binary forms that drivers use most.
func binaryValue(kind string, value []byte) (string, bool) {
	switch {
	case kind == "bool" && len(value) == 1:
		return strconv.FormatBool(value[0] != 0), true
	case kind == "int2" && len(value) == 2:
		return strconv.FormatInt(int64(int16(binary.BigEndian.Uint16(value))), 10), true
	case kind == "int4" && len(value) == 4:
		return strconv.FormatInt(int64(int32(binary.BigEndian.Uint32(value))), 10), true
	case kind == "int8" && len(value) == 8:
		return strconv.FormatInt(int64(binary.BigEndian.Uint64(value)), 10), true
	case kind == "float8" && len(value) == 8:
		return strconv.FormatFloat(math.Float64frombits(binary.BigEndian.Uint64(value)), 'g', -1, 64), true
	case kind == "uuid" && len(value) == 16:
		h := hex.EncodeToString(value)
		return "'" + strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-") + "'", true
	case kind == "text", kind == "varchar", kind == "bpchar", kind == "name", kind == "json", kind == "unknown":
		return quoted(value), true
	}
	return "", false
}

// quoted is a text as a constant; what is no UTF-8 is shown as its bytes.
func quoted(value []byte) string {
	if !utf8.Valid(value) {
		cut := value[:min(len(value), shownParameter/2)]
		return `'\x` + hex.EncodeToString(cut) + "'" + more(value, cut)
	}
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
