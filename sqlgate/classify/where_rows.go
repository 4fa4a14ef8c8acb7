package classify

import "sort"

// opaque is the truth of what cannot be folded: where no part of it depends on the
// rows that the statement reaches, it is the same for all of them.
func (w *walk) opaque(i int32) truth {
	if i < 0 || !w.namesColumn(i) { // not in the tree, as in one with unknown fields
		return undecided
	}
	if w.is(i, "ColumnRef") {
		if w.isReached(i) {
			return byRow
		}
		return undecided
	}
	for part := i + 1; part < w.e[i].next; part = w.e[part].next {
		if w.depends(part) {
			return byRow
		}
	}
	return undecided
}

// depends reports whether an expression has another value in another row. What folds
// to one value inside of it does not count.
func (w *walk) depends(i int32) bool {
	switch {
	case !w.namesColumn(i), w.e[i].msg != 0 && w.e[i].msg != listEntry && w.reduce(i).hash == numberBase:
		return false
	case w.isCondition(i), w.is(i, "ColumnRef"):
		return w.truth(i) == byRow
	case w.is(i, "A_Indirection"):
		if value := w.element(i); value >= 0 {
			return w.depends(value)
		}
	case w.is(i, "SubLink"):
		if value := w.subqueryValue(i, "EXPR_SUBLINK"); value >= 0 {
			return w.depends(value)
		}
		if kind := string(w.raw(i, "subLinkType")); kind == "EXISTS_SUBLINK" || kind == "ANY_SUBLINK" {
			return w.truth(i) == byRow
		}
	}
	return w.opaque(i) == byRow
}

// isCondition reports whether an expression is a condition by its form.
func (w *walk) isCondition(i int32) bool {
	switch {
	case w.is(i, "BoolExpr"), w.is(i, "NullTest"), w.is(i, "BooleanTest"):
		return true
	case w.is(i, "A_Expr"):
		kind := string(w.raw(i, "kind"))
		return kind != "AEXPR_NULLIF" && (kind != "AEXPR_OP" || w.comparison(i) != "")
	}
	return false
}

func (w *walk) firstColumn(i int32) int {
	return sort.Search(len(w.columnAt), func(k int) bool { return w.columnAt[k] >= i })
}

// namesColumn reports whether any column is named anywhere below an entry.
func (w *walk) namesColumn(i int32) bool {
	if i < 0 {
		return false
	}
	k := w.firstColumn(i)
	return k < len(w.columnAt) && w.columnAt[k] < w.e[i].next
}

// isReached reports whether a column is one of the rows that a condition is about:
// of the target, and not of a relation beside it or of a subquery.
func (w *walk) isReached(ref int32) bool {
	schema, qualifier, name := w.columnNames(ref)
	if len(qualifier) > 0 {
		for _, it := range w.itemsNamed(ref, schema, qualifier) {
			if w.isTarget(it.node) {
				return true
			}
		}
		return w.isExcluded(qualifier)
	}
	for s := range w.inSight(ref) {
		target, beside := false, false // beside: something else that may have a column of the name
		for _, it := range w.allOf(s) {
			if w.isTarget(it.node) {
				target = true
			} else if r := w.rowOf(it); r.open {
				beside = true
			} else if w.hasColumn(r, name) {
				return false
			}
		}
		if target {
			return true
		}
		if beside && !w.isCompared(ref) {
			return false
		}
	}
	return true
}

// isTarget reports whether the rows of an item of FROM are those that a condition is
// about.
func (w *walk) isTarget(node int32) bool {
	if w.is(w.reached, "SelectStmt") {
		return w.query(node) == w.reached || w.selfJoin && w.isTargetsRelation(node)
	}
	return node == w.child(w.reached, "relation") || w.selfJoin && w.isTargetsRelation(node)
}

// isCompared sees a = b of two columns. In a subquery that is how the rows around it
// are meant, and text cannot tell which side is theirs.
func (w *walk) isCompared(ref int32) bool {
	for up := w.owner(ref); up >= 0 && !w.isQuery(up); up = w.owner(up) {
		if !w.is(up, "A_Expr") {
			continue
		}
		left, right := w.child(up, "lexpr"), w.child(up, "rexpr")
		if left >= 0 && right >= 0 && w.namesColumn(left) && w.namesColumn(right) && !w.same(left, right) {
			return true
		}
	}
	return false
}
