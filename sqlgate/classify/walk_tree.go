package classify

import (
	"strconv"
	"unicode/utf8"
)

// An entry is one value of the tree, in the order of the text (a node before
// what it holds). Entries of one tree lie in one slice; a subtree is the range
// from its entry to next.
type entry struct {
	field  uint16 // how it stands in its parent; the elements of a list have the list's
	msg    uint16 // its message; 0 for scalars, listEntry for lists
	parent int32
	next   int32
	a, b   int32 // scalars: their bytes in the JSON, without quotes; nodes: a is the offset in the SQL text, or -1
}

// listEntry marks a list; no message has this number.
const listEntry = 0xFFFF

// maxTreeDepth bounds the depth of a tree in JSON objects (design/classification.md part 3).
const maxTreeDepth = 10_000

// A notice is something in the tree that the schema has no entry for.
type notice struct {
	subject string
	at      int32 // entry that holds it
}

// A tree is the parser's JSON as entries.
type tree struct {
	json    []byte
	entries []entry
	unknown []notice
	withs   []int32 // the WITH clauses
	depth   int     // deepest nesting of JSON objects
	broken  bool    // the bytes are not what the parser writes
}

// frame is one open object or list of the reader's explicit stack.
type frame struct {
	entry   int32
	msg     uint16 // listEntry for a list
	field   uint16
	wrapped bool // the object stands inside {"Name": ... }
}

// treeReader turns the JSON into entries in one pass with its own stack: no
// recursion, nothing allocated per node beyond the two slices it reuses.
type treeReader struct {
	s     *schema
	t     *tree
	pos   int
	open  int // open JSON objects
	stack []frame
}

// read fills t from the JSON. What it does not know it skips and notes.
func (r *treeReader) read(s *schema, t *tree) {
	r.s, r.t, r.pos, r.open, r.stack = s, t, 0, 0, r.stack[:0]
	t.entries, t.unknown, t.withs, t.depth, t.broken = t.entries[:0], nil, nil, 0, false
	if !r.take('{') {
		t.broken = true
		return
	}
	r.push(frame{msg: s.root}, -1)
	for len(r.stack) > 0 && !t.broken {
		if r.stack[len(r.stack)-1].msg == listEntry {
			r.listStep()
		} else {
			r.objectStep()
		}
	}
	t.broken = t.broken || r.pos != len(t.json)
}

// take consumes one byte if it is c.
func (r *treeReader) take(c byte) bool {
	if r.pos < len(r.t.json) && r.t.json[r.pos] == c {
		r.pos++
		return true
	}
	return false
}

func (r *treeReader) peek() byte {
	if r.pos < len(r.t.json) {
		return r.t.json[r.pos]
	}
	return 0
}

// deeper counts n objects opened.
func (r *treeReader) deeper(n int) {
	if r.open += n; r.open > r.t.depth {
		r.t.depth = r.open
	}
}

// push adds an entry for an object or list and makes it the open frame.
func (r *treeReader) push(f frame, parent int32) {
	f.entry = int32(len(r.t.entries))
	r.t.entries = append(r.t.entries, entry{field: f.field, msg: f.msg, parent: parent, a: -1})
	r.stack = append(r.stack, f)
	switch {
	case f.msg == listEntry:
	case f.wrapped:
		r.deeper(2)
	default:
		r.deeper(1)
	}
}

func (r *treeReader) pop() {
	f := &r.stack[len(r.stack)-1]
	r.t.entries[f.entry].next = int32(len(r.t.entries))
	if f.msg != listEntry {
		r.open--
	}
	if f.wrapped {
		r.open--
		r.t.broken = r.t.broken || !r.take('}')
	}
	r.stack = r.stack[:len(r.stack)-1]
}

// listStep reads one element, or the end of a list.
func (r *treeReader) listStep() {
	f := r.stack[len(r.stack)-1]
	if r.take(']') {
		r.pop()
		return
	}
	r.take(',')
	fd := &r.s.fields[f.field]
	if fd.holds == holdsMessage {
		r.openMessage(fd.sub, f.field, f.entry)
		return
	}
	r.openNode(fd, f.field, f.entry)
}

// objectStep reads one field, or the end of an object.
func (r *treeReader) objectStep() {
	f := r.stack[len(r.stack)-1]
	if r.take('}') {
		r.pop()
		return
	}
	r.take(',')
	key, ok := r.str()
	if !ok || !r.take(':') {
		r.t.broken = true
		return
	}
	m := &r.s.messages[f.msg]
	id, ok := m.fields.find(r.t.json[key[0]:key[1]])
	fd := &r.s.fields[id]
	if !ok || fd.act == actUnknown {
		r.note(m.name+"."+string(r.t.json[key[0]:key[1]]), f.entry)
		r.skip()
		return
	}
	r.value(fd, id, f.entry)
}

// value reads the value of a known field.
func (r *treeReader) value(fd *field, id uint16, parent int32) {
	switch {
	case r.peek() == 'n':
		r.skip() // null: as good as absent
	case fd.list:
		if r.take('[') {
			r.push(frame{msg: listEntry, field: id}, parent)
			return
		}
		r.t.broken = true
	case fd.holds == holdsNode:
		r.openNode(fd, id, parent)
	case fd.holds == holdsMessage:
		r.openMessage(fd.sub, id, parent)
	default:
		r.scalar(fd, id, parent)
	}
}

func (r *treeReader) openMessage(msg, id uint16, parent int32) {
	if !r.take('{') {
		r.t.broken = true
		return
	}
	if msg == r.s.with {
		r.t.withs = append(r.t.withs, int32(len(r.t.entries)))
	}
	r.push(frame{msg: msg, field: id}, parent)
}

// openNode reads {"Name":{ of a node, or {} where a list may hold NULL.
func (r *treeReader) openNode(fd *field, id uint16, parent int32) {
	if !r.take('{') {
		r.t.broken = true
		return
	}
	if r.take('}') {
		if fd.act == actWalkNull {
			at := int32(len(r.t.entries))
			r.t.entries = append(r.t.entries, entry{field: id, parent: parent, next: at + 1, a: -1})
			return
		}
		// The parser writes a node it cannot dump like this, so it is no NULL here.
		r.note(fd.name+".{}", parent)
		return
	}
	name, ok := r.str()
	if !ok || !r.take(':') {
		r.t.broken = true
		return
	}
	msg, ok := r.s.nodes.find(r.t.json[name[0]:name[1]])
	if !ok || !r.s.messages[msg].known {
		r.note(string(r.t.json[name[0]:name[1]]), parent)
		r.skip()
		r.t.broken = r.t.broken || !r.take('}')
		return
	}
	if !r.take('{') {
		r.t.broken = true
		return
	}
	r.push(frame{msg: msg, field: id, wrapped: true}, parent)
}

// scalar reads a string, boolean or number and keeps what handlers read.
func (r *treeReader) scalar(fd *field, id uint16, parent int32) {
	start := r.pos
	span := [2]int{start, start}
	if r.peek() == '"' {
		var ok bool
		if span, ok = r.str(); !ok {
			r.t.broken = true
			return
		}
	} else {
		r.skip()
		span[1] = r.pos
	}
	switch fd.act {
	case actLocation:
		r.t.entries[parent].a = int32(number(r.t.json[span[0]:span[1]]))
		return
	case actSkip:
		return
	}
	raw := r.t.json[span[0]:span[1]]
	if fd.holds == holdsEnum {
		if _, ok := r.s.enums[fd.sub].find(raw); !ok {
			r.note(fd.name+"="+string(raw), parent)
		}
	}
	at := int32(len(r.t.entries))
	r.t.entries = append(r.t.entries, entry{field: id, parent: parent, next: at + 1, a: int32(span[0]), b: int32(span[1])})
}

// str reads a quoted string and returns its bytes between the quotes, still escaped.
func (r *treeReader) str() ([2]int, bool) {
	if !r.take('"') {
		return [2]int{}, false
	}
	start, json := r.pos, r.t.json
	for i := start; i < len(json); i++ {
		switch json[i] {
		case '"':
			r.pos = i + 1
			return [2]int{start, i}, true
		case '\\':
			i++
		}
	}
	return [2]int{}, false
}

// skip passes over any value, counting the objects in it.
func (r *treeReader) skip() {
	level, open := 0, r.open
	for r.pos < len(r.t.json) {
		switch c := r.t.json[r.pos]; c {
		case '"':
			if _, ok := r.str(); !ok {
				r.t.broken = true
				return
			}
			if level == 0 {
				return
			}
			continue
		case '{', '[':
			level++
			if c == '{' {
				r.deeper(1)
			}
		case '}', ']', ',':
			if level == 0 {
				return
			}
			if c != ',' {
				level--
			}
			if c == '}' {
				r.open--
			}
			if level == 0 && c != ',' {
				r.pos++
				r.open = open
				return
			}
		}
		r.pos++
	}
}

// note remembers something unknown; the first 32 are enough to say what.
func (r *treeReader) note(subject string, parent int32) {
	if len(r.t.unknown) < maxSignals {
		r.t.unknown = append(r.t.unknown, notice{subject, parent})
	}
}

// number reads a decimal of the parser's; it never fails on what the parser writes.
func number(b []byte) int {
	n, err := strconv.Atoi(string(b))
	if err != nil {
		return -1
	}
	return n
}

// child finds the field of a node by name, or -1. Fields that are false, zero,
// empty or NULL are not in the tree.
func (w *walk) child(node int32, name string) int32 {
	if node < 0 {
		return -1
	}
	for i, end := node+1, w.e[node].next; i < end; i = w.e[i].next {
		if w.t.schema.fields[w.e[i].field].name == name {
			return i
		}
	}
	return -1
}

// has reports whether a field is there: for a bool, that it is true; for a
// list, that it has elements.
func (w *walk) has(node int32, name string) bool {
	i := w.child(node, name)
	return i >= 0 && (w.e[i].msg != listEntry || w.e[i].next > i+1)
}

// raw gives the bytes of a scalar field, "" when absent. Enum values and other
// words of the parser hold no escapes, so they may be compared as they are.
func (w *walk) raw(node int32, name string) []byte {
	if i := w.child(node, name); i >= 0 {
		return w.json[w.e[i].a:w.e[i].b]
	}
	return nil
}

// text gives a string field with its escapes undone.
func (w *walk) text(node int32, name string) []byte {
	return unescape(w.raw(node, name))
}

// is reports whether a node is of the named message.
func (w *walk) is(i int32, name string) bool {
	return i >= 0 && w.e[i].msg != 0 && w.e[i].msg != listEntry && w.t.schema.messages[w.e[i].msg].name == name
}

// fieldName names the field through which an entry hangs on its parent.
func (w *walk) fieldName(i int32) string { return w.t.schema.fields[w.e[i].field].name }

// owner is the node that holds an entry, above any lists.
func (w *walk) owner(i int32) int32 {
	for i = w.e[i].parent; i >= 0 && w.e[i].msg == listEntry; i = w.e[i].parent {
	}
	return i
}

// items yields the elements of a list field.
func (w *walk) items(node int32, name string) func(func(int32) bool) {
	list := w.child(node, name)
	return func(yield func(int32) bool) {
		if list < 0 || w.e[list].msg != listEntry {
			return
		}
		for i, end := list+1, w.e[list].next; i < end; i = w.e[i].next {
			if !yield(i) {
				return
			}
		}
	}
}

// unescape undoes the escapes that the parser's JSON uses; without one it
// returns its argument.
func unescape(b []byte) []byte {
	for i, c := range b {
		if c == '\\' {
			return unescapeFrom(b, i)
		}
	}
	return b
}

func unescapeFrom(b []byte, i int) []byte {
	out := append(make([]byte, 0, len(b)), b[:i]...)
	for ; i < len(b); i++ {
		if b[i] != '\\' || i+1 >= len(b) {
			out = append(out, b[i])
			continue
		}
		i++
		switch b[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			if i+4 < len(b) {
				v, err := strconv.ParseUint(string(b[i+1:i+5]), 16, 16)
				if err != nil {
					v = utf8.RuneError
				}
				out = utf8.AppendRune(out, rune(v))
				i += 4
			}
		default:
			out = append(out, b[i])
		}
	}
	return out
}
