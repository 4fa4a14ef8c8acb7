package classify

import (
	"math/big"
	"strings"
)

// A constant is the value of a literal, as far as comparing needs it.
type constant struct {
	kind constKind
	num  *big.Rat
	text string
	b    bool
}

type constKind uint8

const (
	constNull constKind = iota
	constBool
	constNumber
	constText    // a string literal, whose type the server finds out
	constUnknown // a constant all the same
)

func (c constant) truth() truth {
	switch c.kind {
	case constNull:
		return isNull
	case constBool:
		return truthOf(c.b)
	case constText:
		if b, ok := boolWord(c.text); ok {
			return truthOf(b)
		}
	}
	return undecided
}

// constant gives the value of a literal or of a cast of one.
func (w *walk) constant(i int32) (constant, bool) {
	switch {
	case w.is(i, "A_Const"):
		return w.literal(i), true
	case w.is(i, "TypeCast"):
		v, ok := w.constant(w.child(i, "arg"))
		if !ok {
			return v, false
		}
		return w.cast(v, w.child(i, "typeName")), true
	}
	return constant{}, false
}

func (w *walk) literal(i int32) constant {
	if w.has(i, "isnull") {
		return constant{kind: constNull}
	}
	for v := i + 1; v < w.e[i].next; v = w.e[v].next {
		switch w.fieldName(v) {
		case "boolval":
			return constant{kind: constBool, b: w.has(v, "boolval")}
		case "sval":
			return constant{kind: constText, text: string(w.text(v, "sval"))}
		case "fval":
			return numberConstant(string(w.text(v, "fval")))
		case "ival":
			return w.integer(i, v)
		}
	}
	return constant{kind: constUnknown}
}

// integer reads a whole number. The parser's JSON leaves out 0 and, by a flaw
// of its own, everything below it, so the text itself must show which it is.
func (w *walk) integer(i, v int32) constant {
	if raw := w.raw(v, "ival"); raw != nil {
		return numberConstant(string(raw))
	}
	if at := w.e[i].a; at >= 0 && int(at) < len(w.sql) {
		return numberConstant(string(numberText(w.sql[at:])))
	}
	return constant{kind: constUnknown}
}

// numberText gives the whole number that a text begins with, or nothing.
func numberText(s string) []byte {
	var number []byte
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9', c == '-' && number == nil:
			number = append(number, c)
		case c == ' ' && len(number) == 1 && number[0] == '-':
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c == '.', c >= 0x80:
			return nil
		default:
			return number
		}
	}
	return number
}

// numberConstant refuses exponents: 1e999999999 would take a gigabyte.
func numberConstant(text string) constant {
	if len(text) > 100 || strings.ContainsAny(text, "eEpP_/") {
		return constant{kind: constUnknown}
	}
	n, ok := new(big.Rat).SetString(text)
	if !ok {
		return constant{kind: constUnknown}
	}
	return constant{kind: constNumber, num: n}
}

// cast keeps what a cast surely keeps; every other value becomes unknown.
func (w *walk) cast(v constant, typeName int32) constant {
	schema, name := w.qualified(typeName, "names")
	if v.kind == constNull || len(schema) != 0 && string(schema) != "pg_catalog" || w.has(typeName, "arrayBounds") || w.has(typeName, "typmods") {
		if v.kind == constNull {
			return v
		}
		return constant{kind: constUnknown}
	}
	switch string(name) {
	case "bool":
		if b, ok := boolWord(v.text); ok && v.kind == constText {
			return constant{kind: constBool, b: b}
		}
		if v.kind == constBool {
			return v
		}
		if v.kind == constNumber && v.num.IsInt() {
			return constant{kind: constBool, b: v.num.Sign() != 0}
		}
	case "int4", "int8", "int2", "numeric":
		if v.kind == constText {
			v = numberConstant(strings.TrimSpace(v.text))
		}
		if v.kind == constNumber && v.num.IsInt() {
			return v
		}
	case "text":
		if v.kind == constText {
			return v
		}
	}
	return constant{kind: constUnknown}
}

// boolWord reads what the server reads as a boolean: any unambiguous
// beginning of true, false, yes, no, on, off, and 1 and 0.
func boolWord(s string) (value, ok bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	switch {
	case s == "":
	case s == "1" || s == "on" || strings.HasPrefix("true", s) || strings.HasPrefix("yes", s):
		return true, true
	case s == "0" || s == "of" || s == "off" || strings.HasPrefix("false", s) || strings.HasPrefix("no", s):
		return false, true
	}
	return false, false
}

// compareConstants compares two literals; what the server's types or collations
// decide is undecided.
func compareConstants(kind, op string, l, r constant) truth {
	distinct := kind == "AEXPR_DISTINCT" || kind == "AEXPR_NOT_DISTINCT"
	if l.kind == constNull || r.kind == constNull {
		switch {
		case distinct && l.kind != constUnknown && r.kind != constUnknown:
			return truthOf((l.kind != r.kind) == (kind == "AEXPR_DISTINCT"))
		case distinct || op == "":
			return undecided
		}
		return isNull
	}
	order, ok := compareValues(l, r)
	if !ok {
		return undecided
	}
	if distinct {
		return truthOf((order != 0) == (kind == "AEXPR_DISTINCT"))
	}
	if l.kind == constText && op != "=" && op != "<>" && op != "!=" && order != 0 {
		return undecided // a collation's business, or a pattern's
	}
	return orderTruth(op, order)
}

func orderTruth(op string, order int) truth {
	switch op {
	case "=":
		return truthOf(order == 0)
	case "<>", "!=":
		return truthOf(order != 0)
	case "<":
		return truthOf(order < 0)
	case "<=":
		return truthOf(order <= 0)
	case ">":
		return truthOf(order > 0)
	case ">=":
		return truthOf(order >= 0)
	}
	return undecided
}

// compareValues orders two literals; a string beside a number is read as one.
func compareValues(l, r constant) (int, bool) {
	if l.kind == constText && r.kind == constNumber {
		l = numberConstant(strings.TrimSpace(l.text))
	}
	if r.kind == constText && l.kind == constNumber {
		r = numberConstant(strings.TrimSpace(r.text))
	}
	switch {
	case l.kind != r.kind:
	case l.kind == constNumber:
		return l.num.Cmp(r.num), true
	case l.kind == constText:
		return strings.Compare(l.text, r.text), true
	case l.kind == constBool:
		return truthOrder(l.b) - truthOrder(r.b), true
	}
	return 0, false
}

func truthOrder(b bool) int {
	if b {
		return 1
	}
	return 0
}
