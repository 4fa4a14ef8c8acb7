package classify

import (
	"bytes"
	"slices"
	"strconv"
)

// In PostgreSQL x.f and (x).f are a column, and where x has none of that name they
// are the call f(x), also of a number or a text. So a name behind a dot counts as a
// column only where the text or the server's own catalogue shows one, and behind the
// name of a relation of the users, whose columns no text knows. Any other is a call.

// A dotted is a ColumnRef of two names or more, the last of which is no star.
type dotted struct {
	ref, qualifier, last int32
	schema               bool // stands in front of the qualifier
}

// maxInference bounds the steps from a column to the expression that it is.
const maxInference = 40

// onRangeItem sees what the text gives columns to.
func onRangeItem(w *walk, i int32) {
	if !w.is(i, "JoinExpr") || w.child(i, "alias") >= 0 || w.child(i, "join_using_alias") >= 0 {
		w.defines = true
	}
}

// judgeAttributes finds the calls among the names behind dots.
func (w *walk) judgeAttributes() {
	if w.defines {
		for _, d := range w.dotted {
			if w.isCall(d) {
				w.calledAsColumn(w.scalar(d.last), d.ref)
				w.calledAt = append(w.calledAt, d.ref)
			}
		}
		w.bounded()
	}
	for _, i := range w.selections {
		w.fields(i, 0, true)
	}
}

// isCall looks for what the name in front of the dot stands for where it stands. With
// a schema in front PostgreSQL looks for the relation itself.
func (w *walk) isCall(d dotted) bool {
	for _, it := range w.resolveItem(d.ref, w.scalar(d.qualifier)) {
		if d.schema && (!w.is(it.node, "RangeVar") || w.child(it.node, "alias") >= 0) {
			continue
		}
		if !w.hasColumn(w.rowOf(it), w.scalar(d.last)) {
			return true
		}
	}
	return false
}

// calledAsColumn records a call in the way of a column.
func (w *walk) calledAsColumn(raw []byte, i int32) {
	name := unescape(raw)
	f := w.t.builtins.functions[string(name)]
	switch {
	case f == nil || !f.takes(&callForm{args: 1, aggregate: w.mayAggregate(i) && !w.refusedInside(i, aggregateForm)}, w.t.engine.ServerMajor):
		w.callUnknown(nil, name, i)
	case w.t.builtins.attributes[string(name)] == nil: // which the walk has seen
		w.call(f, i)
	}
}

// scalar gives the value of a String as it stands in the JSON, nil for another node.
func (w *walk) scalar(i int32) []byte {
	if !w.is(i, "String") || i+1 >= w.e[i].next {
		return nil
	}
	return w.json[w.e[i+1].a:w.e[i+1].b]
}

func (w *walk) hasColumn(r *row, name []byte) bool {
	switch {
	case r == nil:
		return false
	case r.open:
		return true
	}
	_, ok := w.columnOf(r, name)
	return ok
}

// columnOf finds a column and what it is.
func (w *walk) columnOf(r *row, name []byte) (value int32, ok bool) {
	w.steps += 1 + len(r.beside) + len(r.catalogs)
	if len(r.columns) > fewColumns {
		if r.byName == nil {
			w.steps += indexSteps * len(r.columns)
			r.byName = make(map[string]int32, len(r.columns))
			for k, c := range slices.Backward(r.columns) {
				r.byName[string(c.name)] = int32(k)
			}
		}
		if k, ok := r.byName[string(name)]; ok {
			return r.columns[k].value, true
		}
	} else if k := indexOf(r.columns, name); k >= 0 {
		return r.columns[k].value, true
	}
	if k := indexOf(r.beside, name); k >= 0 {
		return r.beside[k].value, true
	}
	major := w.t.engine.ServerMajor
	for _, c := range r.catalogs {
		if c.versions[string(name)].in(major) {
			return -1, true
		}
	}
	if r.system {
		if isSystemColumn(name) {
			return -1, true
		}
	}
	return -1, false
}

// fields follows the names behind an expression in brackets, and judges them if it
// is told so. It gives what the last one is, nil for what is no row or not known.
func (w *walk) fields(i int32, depth int, judge bool) *row {
	r := w.infer(w.child(i, "arg"), depth)
	for part := range w.items(i, "indirection") {
		switch {
		case w.is(part, "String") && r != nil && r.open:
			r = w.columnRow(r, w.scalar(part), depth+1)
		case w.is(part, "String"): // of what a column of such a row is PostgreSQL knows no columns
			if name := w.scalar(part); judge && !w.hasColumn(r, name) {
				w.calledAsColumn(name, i)
			}
			r = nil
		case w.is(part, "A_Indices") && (r == nil || !r.open || w.has(part, "is_slice")): // a slice is an array
			r = nil
		}
	}
	return r
}

// infer gives the columns of an expression, nil for what is no row or not known.
func (w *walk) infer(i int32, depth int) *row {
	if w.steps++; i < 0 || depth > maxInference {
		return nil
	}
	switch depth++; {
	case w.is(i, "A_Indirection"):
		return w.fields(i, depth, false)
	case w.is(i, "RowExpr"):
		r := &row{}
		for arg := range w.items(i, "args") {
			if w.endsInStar(arg) {
				return unknownRow
			}
			r.columns = append(r.columns, column{strconv.AppendInt([]byte("f"), int64(len(r.columns)+1), 10), arg})
		}
		return r
	case w.is(i, "TypeCast"):
		schema, name := w.qualified(w.child(i, "typeName"), "names")
		if (len(schema) == 0 || string(schema) == "pg_catalog") && w.t.builtins.relations[string(name)] && !w.has(w.child(i, "typeName"), "arrayBounds") {
			return &row{catalogs: []*catalogRelation{w.t.catalog["pg_catalog."+string(name)]}}
		}
	case w.is(i, "FuncCall"):
		_, _, f := w.called(i)
		if f == nil || len(w.t.builtins.results[f.name]) < 2 {
			return nil
		}
		r := &row{}
		for _, c := range w.t.builtins.results[f.name] {
			r.columns = append(r.columns, column{[]byte(c), -1})
		}
		return r
	case w.is(i, "ColumnRef"):
		return w.inferColumn(i, depth)
	}
	return nil
}

// inferColumn does it for a column, and for the whole row of an item of FROM.
func (w *walk) inferColumn(i int32, depth int) *row {
	if w.endsInStar(i) {
		if n, _, _ := w.star(i); n == 2 {
			return w.starRow(i).whole()
		}
		return nil
	}
	qualifier, name := w.lastNames(i)
	if len(qualifier) > 0 {
		var of *row
		for n, it := range w.resolveItem(i, qualifier) { // of several, all have to be of the users'
			r := w.columnRow(w.rowOf(it), name, depth)
			if r == nil || n > 0 && (!r.open || !of.open) {
				return nil
			}
			of = r
		}
		return of
	}
	var whole *row // PostgreSQL looks for a column in all queries around, and then for an item of the name
	maybe := false // a relation of the users' may have the column
	for s := range w.inSight(i) {
		open := false
		for _, it := range w.allOf(s) {
			if it.covered {
				continue
			}
			r := w.rowOf(it)
			if value, ok := w.columnOf(r, name); ok {
				is := w.infer(value, depth)
				if !maybe {
					return is // had another item one too, PostgreSQL would refuse the name
				}
				if is == nil || !is.open {
					return nil
				}
				open = true
			}
			if whole == nil && bytes.Equal(it.name, name) {
				whole = r
			}
			open = open || r.open
		}
		switch {
		case open && (isSystemColumn(name) || w.unfenced):
			return nil
		case open:
			maybe, w.lax = true, true
		}
	}
	switch {
	case whole != nil:
		return whole.whole()
	case maybe:
		return openRow
	}
	return nil
}

// columnRow gives what a column of a row is.
func (w *walk) columnRow(r *row, name []byte, depth int) *row {
	value, ok := w.columnOf(r, name)
	switch {
	case ok:
		return w.infer(value, depth)
	case r.open && !r.plain && !isSystemColumn(name) && !w.unfenced:
		w.lax = true
		return openRow
	}
	return nil
}

func isSystemColumn(name []byte) bool { return slices.Contains(systemColumns, string(name)) }

// lastNames gives the last two names of a ColumnRef.
func (w *walk) lastNames(i int32) (qualifier, name []byte) {
	for f := range w.items(i, "fields") {
		qualifier, name = name, w.scalar(f)
	}
	return qualifier, name
}
