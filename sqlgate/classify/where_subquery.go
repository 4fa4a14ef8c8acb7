package classify

// foldSubLink folds what only asks whether a subquery has rows, or whether an
// expression is among values that are the expression itself.
func (w *walk) foldSubLink(i int32) truth {
	sub, test := w.child(i, "subselect"), w.child(i, "testexpr")
	switch string(w.raw(i, "subLinkType")) {
	case "EXISTS_SUBLINK":
		return w.foldExists(sub)
	case "ANY_SUBLINK":
		if _, op := w.qualified(i, "operName"); string(op) == "=" || len(op) == 0 {
			if w.findsItself(test, sub) {
				return isTrue
			}
		}
	case "EXPR_SUBLINK":
		if value := w.subqueryValue(i, "EXPR_SUBLINK"); value >= 0 {
			return w.truth(value)
		}
	}
	return w.opaque(i)
}

// foldExists is whether a query has rows. What it selects does not matter, but for
// functions that may return sets.
func (w *walk) foldExists(sub int32) truth {
	switch {
	case !w.is(sub, "SelectStmt"):
		return w.opaque(sub)
	case w.has(sub, "valuesLists"):
		return isTrue
	case w.child(sub, "larg") >= 0:
		l, r := w.foldExists(w.child(sub, "larg")), w.foldExists(w.child(sub, "rarg"))
		if string(w.raw(sub, "op")) == "SETOP_UNION" {
			return strongest(truths(l, r), isTrue, undecided, byRow, isNull, isFalse)
		}
		if l == byRow || r == byRow || w.opaque(sub) == byRow {
			return byRow
		}
		return undecided
	}
	if w.isOneRow(sub) {
		return isTrue
	}
	for _, part := range [...]string{"withClause", "limitOffset", "limitCount", "havingClause", "groupClause"} {
		if c := w.child(sub, part); c >= 0 && w.depends(c) && part != "groupClause" {
			return byRow
		}
	}
	if w.has(sub, "targetList") && !w.isSingleList(w.child(sub, "targetList")) && w.depends(w.child(sub, "targetList")) {
		return byRow
	}
	cond := isTrue
	if where := w.child(sub, "whereClause"); where >= 0 {
		cond = w.truth(where)
	}
	plain := w.child(sub, "limitOffset") < 0 && w.child(sub, "havingClause") < 0 && w.child(sub, "limitCount") < 0
	if cond == isTrue && plain && (!w.has(sub, "fromClause") || w.isTargetsAlone(sub)) {
		return isTrue
	}
	if from := w.child(sub, "fromClause"); cond == byRow || from >= 0 && w.depends(from) {
		return byRow
	}
	if w.selfJoin && cond != isTrue && w.holdsTarget(sub) {
		return byRow // that no row meets itself says nothing of other rows
	}
	if cond == isFalse || cond == isNull {
		return isFalse
	}
	return undecided
}

func truths(all ...truth) (seen [undecided + 1]bool) {
	for _, v := range all {
		seen[v] = true
	}
	return seen
}

// isOneRow sees an aggregate of all rows, which is there even of none.
func (w *walk) isOneRow(sub int32) bool {
	if w.has(sub, "groupClause") || w.has(sub, "havingClause") || w.child(sub, "limitOffset") >= 0 || w.child(sub, "limitCount") >= 0 {
		return false
	}
	list := w.child(sub, "targetList")
	if list < 0 || !w.isSingleList(list) {
		return false
	}
	for target := range w.items(sub, "targetList") {
		call := w.child(target, "val")
		if !w.is(call, "FuncCall") || w.child(call, "over") >= 0 {
			continue
		}
		if _, _, f := w.called(call); f != nil {
			for k := range f.forms {
				if f.forms[k].kind == aggregateForm {
					return true
				}
			}
		}
	}
	return false
}

// isTargetsAlone reports whether a query reads the target's relation alone, each row
// of which is its own.
func (w *walk) isTargetsAlone(sub int32) bool {
	from := w.onlyFrom(sub)
	return w.selfJoin && from >= 0 && w.isTargetsRelation(from)
}

func (w *walk) holdsTarget(sub int32) bool {
	for i := sub; i < w.e[sub].next; i++ {
		w.steps++
		if w.is(i, "RangeVar") && w.isTargetsRelation(i) {
			return true
		}
	}
	w.bounded()
	return false
}

// findsItself sees x IN (SELECT x), x IN (VALUES (x)) and, of the target's relation
// read once more, id IN (SELECT id FROM it).
func (w *walk) findsItself(test, sub int32) bool {
	if !w.is(sub, "SelectStmt") || w.child(sub, "larg") >= 0 || !w.namesColumn(test) {
		return false
	}
	for values := range w.items(sub, "valuesLists") {
		for v := range w.items(values, "items") {
			if w.foldPair("AEXPR_OP", "=", test, v) == isTrue {
				return true
			}
			break
		}
	}
	for _, part := range [...]string{"valuesLists", "groupClause", "lockingClause"} {
		if w.has(sub, part) {
			return false
		}
	}
	value, ok := w.onlyTarget(sub)
	if !ok || w.child(sub, "havingClause") >= 0 || w.child(sub, "limitOffset") >= 0 || w.child(sub, "limitCount") >= 0 {
		return false
	}
	if where := w.child(sub, "whereClause"); where >= 0 && w.truth(where) != isTrue {
		return false
	}
	if w.has(sub, "fromClause") && !w.isTargetsAlone(sub) {
		return false
	}
	return w.foldPair("AEXPR_OP", "=", test, value) == isTrue
}

// onlyTarget gives the one expression that a query selects.
func (w *walk) onlyTarget(sub int32) (value int32, ok bool) {
	value = -1
	for target := range w.items(sub, "targetList") {
		if value >= 0 {
			return -1, false
		}
		value = w.child(target, "val")
	}
	return value, value >= 0 && !w.endsInStar(value)
}

// subqueryValue gives what a subquery of the kind comes down to: the expression that
// one without FROM selects, or a column of the rows around it, if it has any row; or -1.
func (w *walk) subqueryValue(link int32, kind string) int32 {
	sub := w.child(link, "subselect")
	if !w.is(link, "SubLink") || string(w.raw(link, "subLinkType")) != kind || !w.is(sub, "SelectStmt") || w.child(sub, "larg") >= 0 {
		return -1
	}
	for _, part := range [...]string{"groupClause", "withClause"} {
		if w.child(sub, part) >= 0 {
			return -1
		}
	}
	for values := range w.items(sub, "valuesLists") {
		for v := range w.items(values, "items") {
			if w.e[values].next == w.e[w.child(sub, "valuesLists")].next {
				return v
			}
			return -1
		}
	}
	value, ok := w.onlyTarget(sub)
	if !ok || !w.isSingleList(w.child(sub, "targetList")) || w.foldExists(sub) == byRow {
		return -1
	}
	if !w.has(sub, "fromClause") {
		return value
	}
	if !w.is(value, "ColumnRef") {
		return -1
	}
	_, qualifier, _ := w.columnNames(value)
	if len(qualifier) == 0 || w.ownLevel(value, qualifier) || !w.isReached(value) {
		return -1
	}
	return value
}

// isSingleList reports whether nothing in a list returns sets.
func (w *walk) isSingleList(list int32) bool {
	for i := list + 1; i < w.e[list].next; i = w.e[i].next {
		if !w.isSingle(i) {
			return false
		}
	}
	return true
}

// foldCase folds a CASE that is a condition.
func (w *walk) foldCase(i int32) truth {
	results, whole := w.caseResults(i)
	var seen [undecided + 1]bool
	for _, r := range results {
		seen[w.truth(r)] = true
	}
	if !whole {
		seen[isNull] = true
	}
	for v := isTrue; v <= isNull; v++ {
		if seen == truths(v) {
			return v
		}
	}
	if seen[byRow] {
		return byRow
	}
	return w.opaque(i)
}

// foldCall folds f(x, x): it is written for what is not the same, such as int4eq.
func (w *walk) foldCall(i int32) truth {
	if args := w.child(i, "args"); args >= 0 {
		first := args + 1
		second := w.e[first].next
		if second < w.e[args].next && w.e[second].next == w.e[args].next && w.namesColumn(first) && w.same(first, second) {
			if _, _, f := w.called(i); f != nil {
				return undecided
			}
		}
	}
	return w.opaque(i)
}

// isNeverNull sees what is a value whatever its parts are.
func (w *walk) isNeverNull(i int32) bool {
	switch {
	case w.is(i, "A_ArrayExpr"), w.is(i, "NullTest"), w.is(i, "BooleanTest"):
		return true
	case w.is(i, "A_Expr"):
		kind := string(w.raw(i, "kind"))
		return kind == "AEXPR_DISTINCT" || kind == "AEXPR_NOT_DISTINCT"
	case w.is(i, "SubLink"):
		kind := string(w.raw(i, "subLinkType"))
		return kind == "EXISTS_SUBLINK" || kind == "ARRAY_SUBLINK"
	case w.is(i, "CoalesceExpr"), w.is(i, "MinMaxExpr"):
		for arg := range w.items(i, "args") {
			if v, ok := w.constant(arg); ok && v.kind != constNull || w.isNeverNull(arg) {
				return true
			}
		}
	case w.is(i, "TypeCast"):
		return w.isNeverNull(w.child(i, "arg"))
	case w.is(i, "FuncCall"):
		_, _, f := w.called(i)
		return f != nil && (f.name == "concat" || f.name == "concat_ws" || f.name == "num_nulls" || f.name == "num_nonnulls")
	}
	return false
}
