package classify

import "slices"

// ON CONFLICT DO UPDATE changes at most one row for each row of its source. So
// its source bounds it, and so does the WHERE of DO UPDATE: what is changed, both
// let through, and the tighter of the two is the value.

// tightest first.
var byReach = []string{WhereKeyEquality, WherePresent, WhereTautology, WhereNone}

// A bound is what keeps the rows of a source few.
type bound struct {
	value   string
	cond    int32 // the condition that the value is of, or -1
	written bool  // every row is written in the text or comes as a parameter
}

// upsertReach gives the value of an INSERT with ON CONFLICT DO UPDATE.
func (w *walk) upsertReach(i int32) (value string, cond int32) {
	b := w.boundOf(w.child(i, "selectStmt"))
	if own := w.child(w.child(i, "onConflictClause"), "whereClause"); own >= 0 {
		// EXCLUDED stands beside the target, so a key has to be qualified.
		if v := w.where(keyOf{w.child(i, "relation"), false}, own); looser(v, b.value) != v {
			b = bound{value: v, cond: own}
		}
	}
	if b.cond < 0 {
		b.cond = i
	}
	return b.value, b.cond
}

func looser(a, b string) string {
	if slices.Index(byReach, a) < slices.Index(byReach, b) {
		return b
	}
	return a
}

// boundOf judges the source of an INSERT. Rows that are written out reach as
// many rows as so many statements by key would. Any other source reaches what
// its WHERE lets through, of set operations the looser side. LIMIT, HAVING and
// the conditions of joins and subqueries do not count.
func (w *walk) boundOf(source int32) bound {
	if source < 0 { // DEFAULT VALUES
		return bound{WhereKeyEquality, -1, true}
	}
	if !w.is(source, "SelectStmt") {
		return bound{WhereNone, -1, false}
	}
	if left := w.child(source, "larg"); left >= 0 {
		a, b := w.boundOf(left), w.boundOf(w.child(source, "rarg"))
		if looser(a.value, b.value) != a.value {
			a.value, a.cond = b.value, b.cond
		}
		a.written = a.written && b.written
		return a
	}
	single := w.isSingle(source)
	if single && w.hasWrittenRows(source) {
		return bound{WhereKeyEquality, -1, true}
	}
	of, cond := keyOf{relation: -1}, w.child(source, "whereClause")
	if single {
		of = keyOf{w.onlyTable(source), true}
	}
	return bound{w.where(of, cond), cond, false}
}

// onlyFrom gives the one item of FROM, or -1 where there is none or a product.
func (w *walk) onlyFrom(source int32) int32 {
	only, n := int32(-1), 0
	for f := range w.items(source, "fromClause") {
		only, n = f, n+1
	}
	if n != 1 {
		return -1
	}
	return only
}

// hasWrittenRows reports whether what a SELECT starts from is written out:
// VALUES, no FROM, a subquery of such, or unnest of constants.
func (w *walk) hasWrittenRows(source int32) bool {
	if !w.has(source, "fromClause") {
		return true
	}
	switch from := w.onlyFrom(source); {
	case w.is(from, "RangeSubselect"):
		return w.boundOf(w.child(from, "subquery")).written
	case w.is(from, "RangeFunction"):
		if w.userTypes || w.beyond || !w.unnestsWritten(from) {
			return false
		}
		w.byText = true
		return true
	}
	return false
}

// unnestsWritten sees FROM unnest($1::int[], ARRAY['a', 'b']), in which drivers
// send the rows of many.
func (w *walk) unnestsWritten(from int32) bool {
	for list := range w.items(from, "functions") {
		for call := range w.items(list, "items") {
			if w.e[call].msg == 0 { // no column definitions
				continue
			}
			if !w.is(call, "FuncCall") {
				return false
			}
			if _, name, f := w.called(call); string(name) != "unnest" || f == nil {
				return false
			}
			for arg := range w.items(call, "args") {
				if !w.isWrittenArray(arg) {
					return false
				}
			}
		}
	}
	return true
}

func (w *walk) isWrittenArray(i int32) bool {
	for w.is(i, "TypeCast") {
		i = w.child(i, "arg")
	}
	if !w.is(i, "A_ArrayExpr") {
		return w.isConstant(i)
	}
	for element := range w.items(i, "elements") {
		if !w.isWrittenArray(element) {
			return false
		}
	}
	return true
}

// onlyTable gives the one table that a SELECT reads. A CTE is none, nor is a table
// whose alias names its columns anew: what is called id there is what the text
// makes of it.
func (w *walk) onlyTable(source int32) int32 {
	from := w.onlyFrom(source)
	if !w.is(from, "RangeVar") {
		return -1
	}
	if alias := w.child(from, "alias"); alias >= 0 && w.has(alias, "colnames") {
		return -1
	}
	if schema, name := w.relation(from); len(schema) == 0 {
		for _, with := range w.withs {
			for cte := range w.items(with, "ctes") {
				if string(w.text(cte, "ctename")) == string(name) {
					return -1
				}
			}
		}
	}
	return from
}

// isSingle reports whether a SELECT gives at most one row for each row of its
// FROM: nothing in it returns sets, as far as text can tell. A function that is
// not built in may. Its FROM and its subqueries are not looked at.
func (w *walk) isSingle(source int32) bool {
	for i, end := source+1, w.e[source].next; i < end; i++ {
		switch w.fieldName(i) {
		case "fromClause", "withClause", "subselect":
			i = w.e[i].next - 1
			continue
		}
		m := w.e[i].msg
		if m == 0 || m == listEntry {
			continue
		}
		switch w.t.schema.messages[m].name {
		case "FuncCall":
			if _, _, f := w.called(i); f == nil || w.t.builtins.sets[f.name] {
				return false
			}
		case "A_Expr":
			if !w.namesBuiltinOperator(i, "name") && !w.isBetween(i) {
				return false
			}
		case "ColumnRef": // a.b may call b
			if schema, name := w.qualified(i, "fields"); len(schema) != 0 {
				if w.t.builtins.sets[string(name)] || slices.Contains(w.calledAt, i) || w.beyond {
					return false
				}
				w.byText = true
			}
		case "A_Indirection":
			for part := range w.items(i, "indirection") {
				if w.is(part, "String") {
					return false
				}
			}
		case "GroupingSet":
			return false
		}
	}
	return true
}
