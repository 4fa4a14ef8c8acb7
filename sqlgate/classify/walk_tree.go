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
	expect  uint16 // the field that is likely next: the parser writes them in the schema's order
	wrapped bool   // the object stands inside {"Name": ... }
}

// treeReader turns the JSON into entries in one pass with its own stack: no
// recursion, nothing allocated per node beyond the two slices it reuses.
type treeReader struct {
	s     *schema
	t     *tree
	json  []byte // t.json
	pos   int
	open  int // open JSON objects
	stack []frame
}

// read fills t from the JSON. What it does not know it skips and notes.
func (r *treeReader) read(s *schema, t *tree) {
	r.s, r.t, r.json, r.pos, r.open, r.stack = s, t, t.json, 0, 0, r.stack[:0]
	t.entries, t.unknown, t.withs, t.depth, t.broken = t.entries[:0], nil, nil, 0, false
	if !r.take('{') {
		t.broken = true
		return
	}
	r.push(s.root, 0, false, -1)
	for len(r.stack) > 0 && !t.broken {
		if r.stack[len(r.stack)-1].msg == listEntry {
			r.list()
		} else {
			r.object()
		}
	}
	t.broken = t.broken || r.pos != len(t.json)
}

// take consumes one byte if it is c.
func (r *treeReader) take(c byte) bool {
	if r.pos < len(r.json) && r.json[r.pos] == c {
		r.pos++
		return true
	}
	return false
}

func (r *treeReader) peek() byte {
	if r.pos < len(r.json) {
		return r.json[r.pos]
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
func (r *treeReader) push(msg, field uint16, wrapped bool, parent int32) {
	at := int32(len(r.t.entries))
	r.t.entries = append(r.t.entries, entry{field: field, msg: msg, parent: parent, a: -1})
	f := frame{entry: at, msg: msg, field: field, wrapped: wrapped}
	if msg != listEntry {
		f.expect = r.s.messages[msg].first
		r.deeper(1)
	}
	if wrapped {
		r.deeper(1)
	}
	r.stack = append(r.stack, f)
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

// list reads one element, or the end of a list.
func (r *treeReader) list() {
	f := &r.stack[len(r.stack)-1]
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

// object reads fields until one opens another object or list, or its own end.
func (r *treeReader) object() {
	depth := len(r.stack)
	for len(r.stack) == depth && !r.t.broken {
		f := &r.stack[depth-1]
		switch r.peek() {
		case '}':
			r.pos++
			r.pop()
			return
		case ',':
			r.pos++
		}
		id, ok := r.key(f)
		if !ok {
			r.unknownField(f)
			continue
		}
		f.expect = id + 1
		fd := &r.s.fields[id]
		if fd.other {
			r.note(r.s.messages[f.msg].name+"."+fd.name, f.entry)
		}
		r.value(fd, id, f.entry)
	}
}

// key reads a field's name and the colon behind it. The next few fields of the
// schema are tried first: comparing is cheaper than looking up.
func (r *treeReader) key(f *frame) (uint16, bool) {
	m := &r.s.messages[f.msg]
	for id := f.expect; id < min(f.expect+3, m.end); id++ {
		fd := &r.s.fields[id]
		end := r.pos + len(fd.quoted)
		if end <= len(r.json) && string(r.json[r.pos:end]) == fd.quoted && fd.act != actUnknown {
			r.pos = end
			return id, true
		}
	}
	start := r.pos
	name, ok := r.str()
	if !ok {
		return 0, false
	}
	id, ok := m.fields.find(r.json[name[0]:name[1]])
	if !ok || r.s.fields[id].act == actUnknown || !r.take(':') {
		r.pos = start
		return 0, false
	}
	return id, true
}

// unknownField notes and skips a field that has no entry.
func (r *treeReader) unknownField(f *frame) {
	name, ok := r.str()
	if !ok || !r.take(':') {
		r.t.broken = true
		return
	}
	r.note(r.s.messages[f.msg].name+"."+string(r.json[name[0]:name[1]]), f.entry)
	r.skip()
}

// value reads the value of a known field.
func (r *treeReader) value(fd *field, id uint16, parent int32) {
	switch {
	case r.peek() == 'n':
		r.skip() // null: as good as absent
	case fd.list:
		if r.take('[') {
			r.push(listEntry, id, false, parent)
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
	r.push(msg, id, false, parent)
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
			r.t.entries = append(r.t.entries, entry{field: id, parent: parent, next: at + 1})
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
	msg, ok := r.s.nodes.find(r.json[name[0]:name[1]])
	if !ok || !r.s.messages[msg].known {
		r.note(string(r.json[name[0]:name[1]]), parent)
		r.skip()
		r.t.broken = r.t.broken || !r.take('}')
		return
	}
	if !r.take('{') {
		r.t.broken = true
		return
	}
	r.push(msg, id, true, parent)
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
		r.t.entries[parent].a = int32(number(r.json[span[0]:span[1]]))
		return
	case actSkip:
		return
	}
	raw := r.json[span[0]:span[1]]
	if fd.holds == holdsEnum {
		if known, ok := r.s.enums[fd.sub].find(raw); !ok || known == otherReading {
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
	start, json := r.pos, r.json
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
	for r.pos < len(r.json) {
		switch c := r.json[r.pos]; c {
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

// number reads an offset or length of the parser's; what it left out is 0, and
// -1, which it writes where it knows no place, stays negative.
func number(b []byte) int {
	n, negative := 0, false
	for _, c := range b {
		switch {
		case c == '-':
			negative = true
		case c >= '0' && c <= '9' && n < 1<<30:
			n = n*10 + int(c-'0')
		}
	}
	if negative {
		return -n
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
		if w.steps++; w.t.schema.fields[w.e[i].field].name == name {
			return i
		}
	}
	w.bounded()
	return -1
}

// What a walk may cost: steps from entry to entry. Ordinary statements take less
// than ten for each entry of their tree, and what looks back for each name that it
// meets (a column, a signal) may take as many as there are names.
const (
	stepsAtLeast  = 1 << 20
	stepsForEntry = 40
	raiseSteps    = 100 // of one signal, for its share in keeping the first ones
)

// tooManySteps is what a walk ends with that goes on for too long.
type tooManySteps struct{ got, max int }

// bounded ends a walk that has taken too many steps.
func (w *walk) bounded() {
	if most := stepsAtLeast + stepsForEntry*len(w.e); w.steps > most {
		panic(tooManySteps{w.steps, most})
	}
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
	w.steps++
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
			if w.steps++; !yield(i) {
				return
			}
		}
		w.bounded()
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
