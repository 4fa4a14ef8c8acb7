package classify

import (
	"fmt"
	"strings"
)

// One text may be two statements: the grammar here is that of PostgreSQL 16, the
// server's may be that of 15, 17 or 18. data/versions.tsv holds whatever the four
// grammars do not have in common: nodes, fields and enum values that the walk
// knows, keywords, forms of literals, and productions that no node tells. Its
// columns are kind, name, the majors that have it, reading and an example that
// grammar 16 accepts. The readings:
//
//	unknown    a server of another major refuses the text or means something else by it: unknown_node
//	call NAME  the same, and there it is a call of NAME
//	same       all servers that take the text mean the same by it, in a tree of another shape
//	never      the parser makes none of it out of a text
//
// fixtures/pggrammars makes the rows and holds them against all four grammars.

// Kinds of rows.
const (
	versionNode       = "node"
	versionField      = "field"
	versionValue      = "value"
	versionKeyword    = "keyword"
	versionLiteral    = "literal"
	versionProduction = "production"
)

// Readings of rows.
const (
	readingUnknown = "unknown"
	readingCall    = "call"
	readingSame    = "same"
	readingNever   = "never"
)

// other is a node, or a form of one, that is read otherwise by a server that the
// statement may reach.
type other struct {
	name string
	is   func(w *walk, i int32) bool // nil: every node
	call string                      // the function that such a server calls; "" = none
}

// productions are the forms of nodes that only some majors accept, or that mean
// something else there.
var productions = map[string]struct {
	message string
	is      func(w *walk, i int32) bool
}{
	"subquery without alias": {"RangeSubselect", func(w *walk, i int32) bool { return w.child(i, "alias") < 0 }},
	"SYSTEM_USER": {"FuncCall", func(w *walk, i int32) bool {
		_, name := w.qualified(i, "funcname")
		return string(name) == "system_user" && string(w.raw(i, "funcformat")) == "COERCE_SQL_SYNTAX"
	}},
	"SYSTEM_USER as a word": {"DefElem", func(w *walk, i int32) bool {
		arg := w.child(i, "arg")
		return w.is(arg, "String") && string(w.raw(arg, "sval")) == "system_user"
	}},
	"REINDEX without name": {"ReindexStmt", func(w *walk, i int32) bool {
		return w.child(i, "relation") < 0 && !w.has(i, "name")
	}},
}

// literalForms are the literals that are not the same for all majors: before
// PostgreSQL 16 0x1F is 0 AS x1F, and from 17 on \v is a vertical tab.
var literalForms = [...]string{"0x1F", "1_000", `E'\v'`}

// literalForm gives the form of a number or string, or -1 for one that all majors
// read alike.
func literalForm(text string) int {
	switch {
	case text[0]|0x20 == 'e':
		for i := 2; i+1 < len(text); i++ {
			if text[i] != '\\' {
				continue
			}
			if i++; text[i] == 'v' {
				return 2
			}
		}
	case text[0] == '0' && len(text) > 1 && baseDigits(text[1]|0x20) != nil:
		return 0
	case text[0] != '\'' && text[0]|0x20 != 'u' && strings.IndexByte(text, '_') >= 0:
		return 1
	}
	return -1
}

// addVersions marks what a server of this major, or one of the four when it is
// not known, reads otherwise.
func (t *tables) addVersions(table string, major int) error {
	rows, err := tsv(table, 5)
	if err != nil {
		return err
	}
	for _, r := range rows {
		kind, name := r[0], r[1]
		v, err := parseVersions(r[2])
		if err != nil {
			return err
		}
		reading, call, _ := strings.Cut(r[3], " ")
		switch reading {
		case readingUnknown, readingCall:
		case readingSame, readingNever:
			continue
		default:
			return fmt.Errorf("embedded table of versions: %s %s: no reading %q", kind, name, reading)
		}
		if kind == versionKeyword {
			// Before a keyword was one it is a name: what is read here as a call of it
			// is a form of its own on the servers that have it.
			if v.in(major) || major == 0 {
				word, _, _ := strings.Cut(name, " ")
				delete(t.builtins.functions, word)
			}
			continue
		}
		if v.in(major) {
			continue
		}
		if !t.mark(kind, name, call) {
			return fmt.Errorf("embedded table of versions: no %s %s", kind, name)
		}
	}
	return nil
}

// mark notes one row that does not hold on the server.
func (t *tables) mark(kind, name, call string) bool {
	s := t.schema
	switch kind {
	case versionNode:
		return s.markMessage(name, other{name: name, call: call})
	case versionProduction:
		p, ok := productions[name]
		return ok && s.markMessage(p.message, other{name: name, is: p.is, call: call})
	case versionField:
		message, fieldName, _ := strings.Cut(name, ".")
		for i := range s.messages {
			if m := &s.messages[i]; m.name == message {
				id, ok := m.fields.find([]byte(fieldName))
				if ok {
					s.fields[id].other = true
				}
				return ok
			}
		}
	case versionValue:
		enum, value, _ := strings.Cut(name, ".")
		id, ok := s.enumIDs[enum]
		return ok && s.enums[id].set(value, otherReading)
	case versionLiteral:
		for form, n := range literalForms {
			if n == name {
				t.otherLiterals = append(t.otherLiterals, form)
				return true
			}
		}
	}
	return false
}

func (s *schema) markMessage(name string, o other) bool {
	for i := range s.messages {
		if m := &s.messages[i]; m.name == name {
			m.other = append(m.other, o)
			return true
		}
	}
	return false
}

// onOther judges a node that a server may read otherwise: the statement is not
// known, and what such a server would call is called.
func (w *walk) onOther(i int32, others []other) {
	for _, o := range others {
		if o.is != nil && !o.is(w, i) {
			continue
		}
		if o.call != "" {
			w.callUnknown(nil, []byte(o.call), i)
		}
		w.class = ClassUnknown
		w.raise(SignalUnknownNode, o.name, i)
	}
}
