package classify

import (
	"bytes"
	"math/big"
	"strconv"
	"strings"
)

// A Session is what a statement says about prepared statements: PREPARE,
// EXECUTE and DEALLOCATE as the root. The gate answers these itself
// (design/execution-and-wire.md part 5), so it needs names, types and arguments
// that no fact holds. Unlike facts, arguments are constants of the text: they go
// into no log and no answer.
type Session struct {
	Name  string     `json:"name,omitempty"`  // "" = DEALLOCATE ALL
	Inner string     `json:"inner,omitempty"` // PREPARE: the text behind AS and the blanks after it, byte for byte
	Types []TypeName `json:"types,omitempty"` // PREPARE: of the parameters
	Args  []Argument `json:"args,omitempty"`  // EXECUTE
}

// A TypeName is a type as the text names it.
type TypeName struct {
	Schema   string `json:"schema,omitempty"` // "" where the text has none
	Name     string `json:"name"`
	Array    bool   `json:"array,omitempty"`
	Modified bool   `json:"modified,omitempty"` // varchar(10), interval year
	Odd      bool   `json:"odd,omitempty"`      // t.c%TYPE, SETOF
}

// Kinds of an Argument.
const (
	ArgumentOther   = "" // no constant
	ArgumentNull    = "null"
	ArgumentBoolean = "boolean"
	ArgumentNumber  = "number"
	ArgumentString  = "string"
)

// An Argument is one argument of EXECUTE.
type Argument struct {
	Kind string    `json:"kind,omitempty"`
	Text string    `json:"text,omitempty"` // the constant: digits without exponent for a number
	Cast *TypeName `json:"cast,omitempty"` // nil: none
}

// session reads the root, where it is one of the three. For a PREPARE whose
// inner text does not parse alone to what it is inside there is none: it cannot
// be told apart then what would run.
func (w *walk) session(start, end int) *Session {
	switch {
	case w.is(w.root, "PrepareStmt"):
		s := &Session{Name: string(w.text(w.root, "name"))}
		for t := range w.items(w.root, "argtypes") {
			s.Types = append(s.Types, w.typeName(t))
		}
		inner, ok := w.innerText(start, end)
		if !ok {
			return nil
		}
		s.Inner = inner
		return s
	case w.is(w.root, "ExecuteStmt"):
		s := &Session{Name: string(w.text(w.root, "name"))}
		for a := range w.items(w.root, "params") {
			s.Args = append(s.Args, w.argument(a))
		}
		return s
	case w.is(w.root, "DeallocateStmt"):
		return &Session{Name: string(w.text(w.root, "name"))}
	}
	return nil
}

// innerText finds what a PREPARE prepares: what follows the first AS outside of
// brackets behind the name. AS is reserved, so no name or type is called so.
// Whoever reads tokens otherwise than the parser would take another text, so
// the text is parsed alone and has to be the same tree.
func (w *walk) innerText(start, end int) (string, bool) {
	l := newLexer(w.sql[:end])
	l.pos = start
	brackets := 0
	for n := 0; ; n++ {
		switch kind := l.next(); {
		case kind == tokenEnd:
			return "", false
		case kind == tokenOpen:
			brackets++
		case kind == tokenClose:
			brackets--
		case kind == tokenWord && n > 1 && brackets == 0 && strings.EqualFold(l.src[l.start:l.pos], "as"):
			inner := strings.TrimLeft(w.sql[l.pos:end], " \t\n\r\f\v")
			return inner, w.parsesAlike(inner, w.child(w.root, "query"))
		}
	}
}

// parsesAlike reports whether a text alone is the same tree as a part of this one.
func (w *walk) parsesAlike(text string, part int32) bool {
	if _, f := guard(text, largestSQLBytes); f != nil || part < 0 {
		return false
	}
	p, f := parseTree(text)
	if f != nil {
		return false
	}
	defer p.release()
	alone := walk{t: w.t, tree: tree{json: p.JSON}}
	alone.reader.read(w.t.schema, &alone.tree)
	alone.e = alone.entries
	if alone.broken {
		return false
	}
	found, n := int32(-1), 0
	for stmt := range alone.items(0, "stmts") {
		found, n = alone.child(stmt, "stmt"), n+1
	}
	return n == 1 && found >= 0 && sameTree(w, part, &alone, found)
}

func (w *walk) typeName(i int32) TypeName {
	schema, name := w.qualified(i, "names")
	parts := 0
	for range w.items(i, "names") {
		parts++
	}
	return TypeName{
		Schema: string(schema), Name: string(name), Array: w.has(i, "arrayBounds"), Modified: w.has(i, "typmods"),
		Odd: w.has(i, "setof") || w.has(i, "pct_type") || parts > 2,
	}
}

// argument reads a constant, or one cast to a type.
func (w *walk) argument(i int32) Argument {
	if !w.is(i, "TypeCast") {
		return w.plainArgument(i)
	}
	a := w.plainArgument(w.child(i, "arg"))
	if a.Kind == ArgumentOther || a.Kind == ArgumentBoolean && w.e[i].a < 0 { // the parser's own cast, of true and false
		return a
	}
	cast := w.typeName(w.child(i, "typeName"))
	a.Cast = &cast
	return a
}

func (w *walk) plainArgument(i int32) Argument {
	if !w.is(i, "A_Const") {
		return Argument{}
	}
	if w.has(i, "isnull") {
		return Argument{Kind: ArgumentNull}
	}
	for v := i + 1; v < w.e[i].next; v = w.e[v].next {
		switch w.fieldName(v) {
		case "boolval":
			if w.has(v, "boolval") {
				return Argument{Kind: ArgumentBoolean, Text: "true"}
			}
			return Argument{Kind: ArgumentBoolean, Text: "false"}
		case "sval":
			return Argument{Kind: ArgumentString, Text: string(w.text(v, "sval"))}
		case "fval", "ival":
			if text, ok := w.numberAt(int(w.e[i].a)); ok {
				return Argument{Kind: ArgumentNumber, Text: text}
			}
		}
	}
	return Argument{}
}

// numberAt reads the signed number that stands in the text: the parser's JSON
// leaves out 0 and everything below it.
func (w *walk) numberAt(at int) (string, bool) {
	if at < 0 || at >= len(w.sql) {
		return "", false
	}
	l := newLexer(w.sql)
	l.pos = at
	negative := false
	for {
		switch kind := l.next(); {
		case kind == tokenOperator && l.src[l.start:l.pos] == "-":
			negative = !negative
		case kind == tokenNumber:
			return plainDecimal(l.src[l.start:l.pos], negative)
		default:
			return "", false
		}
	}
}

// largestExponent bounds what a number is written out to, largestOther the digits
// of one in another base: both take more than the length of their text.
const (
	largestExponent = 1000
	largestOther    = 4000
)

// plainDecimal writes a number as numeric does: digits, at most one point, no
// exponent. So it is the same number whatever type takes it.
func plainDecimal(text string, negative bool) (string, bool) {
	text = strings.ReplaceAll(text, "_", "")
	if len(text) > 2 && text[0] == '0' && strings.ContainsRune("xXoObB", rune(text[1])) {
		if len(text) > largestOther {
			return "", false
		}
		n, ok := new(big.Int).SetString(text, 0)
		if !ok {
			return "", false
		}
		return signed(n.String(), negative), true
	}
	exponent := 0
	if e := strings.IndexAny(text, "eE"); e >= 0 {
		n, err := strconv.Atoi(text[e+1:])
		if err != nil || n > largestExponent || n < -largestExponent {
			return "", false
		}
		text, exponent = text[:e], n
	}
	whole, part, _ := strings.Cut(text, ".")
	if strings.Trim(whole+part, "0123456789") != "" || whole+part == "" {
		return "", false
	}
	return signed(shifted(whole+part, len(whole)+exponent), negative), true
}

// shifted puts the point of a row of digits at a place, which may lie outside.
func shifted(digits string, point int) string {
	if point < 0 {
		digits, point = strings.Repeat("0", -point)+digits, 0
	}
	if point > len(digits) {
		digits += strings.Repeat("0", point-len(digits))
	}
	whole := strings.TrimLeft(digits[:point], "0")
	if whole == "" {
		whole = "0"
	}
	if part := digits[point:]; part != "" {
		return whole + "." + part
	}
	return whole
}

func signed(digits string, negative bool) string {
	if negative && strings.Trim(digits, "0.") != "" {
		return "-" + digits
	}
	return digits
}

// sameTree reports whether parts of two trees are written alike.
func sameTree(v *walk, a int32, w *walk, b int32) bool {
	n := v.e[a].next - a
	if n != w.e[b].next-b {
		return false
	}
	for k := range n {
		x, y := &v.e[a+k], &w.e[b+k]
		if x.msg != y.msg || k > 0 && x.field != y.field || x.next-a != y.next-b {
			return false
		}
		if x.msg == 0 && !bytes.Equal(v.json[x.a:max(x.b, x.a)], w.json[y.a:max(y.b, y.a)]) {
			return false
		}
	}
	return true
}
