package classify

import (
	"bytes"
	"slices"
)

// PostgreSQL refuses an aggregate in the arguments of another one of the same query,
// and a window function in those of an aggregate or of a window function. So where
// names of built-in ones stand like that, one of the two calls is of the users'
// function, and no text tells which: both count as that.

// refusedNesting reports whether a call would be refused for another one that stands
// around it or in it, were both of built-in functions.
func (w *walk) refusedNesting(call int32) bool {
	kind := byte(aggregateForm)
	if w.child(call, "over") >= 0 {
		kind = windowForm
	}
	if w.refusedInside(call, kind) {
		return true
	}
	for i := call + 1; i < w.e[call].next; i++ {
		w.steps++
		if inner := w.aggregateKind(i); inner != 0 && w.refusedIn(i, inner, call) {
			return true
		}
	}
	w.bounded()
	return false
}

// refusedInside looks at the calls around.
func (w *walk) refusedInside(call int32, kind byte) bool { return w.refusedIn(call, kind, 0) }

// aggregateKind tells whether a node is the call of an aggregate or of a window
// function, by its form or by its name; 0 for any other.
func (w *walk) aggregateKind(i int32) byte {
	if w.e[i].msg == 0 || w.e[i].msg == listEntry {
		return 0
	}
	call := i
	switch w.t.schema.messages[w.e[i].msg].name {
	case "GroupingFunc":
		return aggregateForm
	case "JsonObjectAgg", "JsonArrayAgg":
		call = w.child(i, "constructor")
	case "FuncCall":
	default:
		return 0
	}
	if w.child(call, "over") >= 0 {
		return windowForm
	}
	if call != i || w.has(i, "agg_star") || w.has(i, "agg_distinct") || w.has(i, "agg_order") || w.child(i, "agg_filter") >= 0 {
		return aggregateForm
	}
	f := w.t.builtin(w.qualified(i, "funcname"))
	if f == nil || slices.ContainsFunc(f.forms, func(of form) bool { return !of.aggregates() }) {
		return 0
	}
	return aggregateForm
}

// refusedIn climbs from a call to the nodes around it, up to the last one. An aggregate
// of a query inside of another one's arguments is no part of that, nor is one of a query
// around it.
func (w *walk) refusedIn(call int32, kind byte, last int32) bool {
	of := int32(-1) // the query that an aggregate belongs to, once it is needed
	var filter, over, frame bool
	for i := call; i > last; i = w.e[i].parent {
		w.steps++
		switch w.fieldName(i) {
		case "agg_filter":
			filter = true
		case "over":
			over = true
		case "startOffset", "endOffset":
			frame = true
		}
		around := w.e[i].parent
		outer := byte(0)
		switch {
		case around < 0:
			return false
		case w.isQuery(around):
			if kind == windowForm {
				return false
			}
			filter, over, frame = false, false, false
			continue
		case frame && w.is(around, "WindowDef"):
		default:
			if outer = w.aggregateKind(around); outer == 0 {
				continue
			}
		}
		if kind == windowForm {
			return true
		}
		if of < 0 {
			of = w.aggregated(call)
		}
		if (frame || filter) && of == w.query(around) || outer == aggregateForm && !over && of < around && of >= w.aggregated(around) {
			return true
		}
		filter, over, frame = false, false, false
	}
	return false
}

// aggregated gives the query that an aggregate belongs to: the innermost one of whose
// FROM it names a column, or the one that it stands in.
func (w *walk) aggregated(call int32) int32 {
	of := int32(-1)
	for ref := call + 1; ref < w.e[call].next; ref++ {
		if w.steps++; w.is(ref, "ColumnRef") {
			if q := w.queryOf(ref); q < call {
				of = max(of, q)
			}
		}
	}
	w.bounded()
	if of < 0 {
		return w.query(call)
	}
	return of
}

// queryOf gives the query that a column is of, as far as text can tell; -1 for none.
func (w *walk) queryOf(ref int32) int32 {
	qualifier, name := w.lastNames(ref)
	for s := range w.inSight(ref) {
		for _, it := range w.allOf(s) {
			switch {
			case it.covered:
			case len(qualifier) > 0:
				if bytes.Equal(it.name, qualifier) {
					return w.query(it.node)
				}
			case len(name) == 0 || bytes.Equal(it.name, name) || w.hasColumn(w.rowOf(it), name):
				return w.query(it.node)
			}
		}
	}
	return -1
}
