package classify

import (
	"slices"
	"strings"
)

// A truth is what is known about a condition for every row at once.
type truth uint8

const (
	byRow     truth = iota // depends on the row
	isTrue                 // true for all rows
	isFalse                // false for all rows
	isNull                 // NULL for all rows
	undecided              // the same for all rows, but text cannot tell what
)

// truth folds a condition, each part of it once. Its depth is that of the tree,
// which is bounded.
func (w *walk) truth(i int32) truth {
	if v, ok := w.truths[i]; ok {
		return v
	}
	w.steps++
	v := w.fold(i)
	if w.truths == nil {
		w.truths = map[int32]truth{}
	}
	w.truths[i] = v
	return v
}

func (w *walk) fold(i int32) truth {
	switch {
	case w.is(i, "SubLink"):
		return w.foldSubLink(i)
	case w.is(i, "CaseExpr"):
		return w.foldCase(i)
	case w.is(i, "FuncCall"):
		return w.foldCall(i)
	case w.is(i, "CoalesceExpr"):
		for arg := range w.items(i, "args") {
			if v := w.truth(arg); v == isTrue || v == isFalse {
				return v
			} else if v != isNull {
				break
			}
		}
	case w.is(i, "A_Indirection"):
		if value := w.element(i); value >= 0 {
			return w.truth(value)
		}
	case w.is(i, "BoolExpr"):
		return w.foldBool(i)
	case w.is(i, "NullTest"):
		return w.foldNullTest(i)
	case w.is(i, "BooleanTest"):
		return w.foldBooleanTest(i)
	case w.is(i, "A_Expr"):
		return w.foldExpr(i)
	case w.is(i, "CurrentOfExpr"):
		return byRow
	case w.is(i, "A_Const"), w.is(i, "TypeCast"):
		if v, ok := w.constant(i); ok {
			return v.truth()
		}
	case w.is(i, "CollateClause"):
		return w.truth(w.child(i, "arg"))
	}
	return w.opaque(i)
}

func (w *walk) foldBool(i int32) truth {
	op := string(w.raw(i, "boolop"))
	if op == "NOT_EXPR" {
		for arg := range w.items(i, "args") {
			return not(w.truth(arg))
		}
		return undecided
	}
	var seen [undecided + 1]bool
	for arg := range w.items(i, "args") {
		seen[w.truth(arg)] = true
	}
	if op == "OR_EXPR" {
		if seen[byRow] && w.coversAll(i, false) {
			return isTrue
		}
		return strongest(seen, isTrue, undecided, byRow, isNull, isFalse)
	}
	if seen[byRow] && w.coversAll(i, true) {
		return isFalse
	}
	return strongest(seen, isFalse, isNull, byRow, undecided, isTrue)
}

// strongest gives the first of the order that was seen: for AND false wins, for
// OR true, and then one that may be true for all rows.
func strongest(seen [undecided + 1]bool, order ...truth) truth {
	for _, v := range order {
		if seen[v] {
			return v
		}
	}
	return undecided
}

func not(v truth) truth {
	switch v {
	case isTrue:
		return isFalse
	case isFalse:
		return isTrue
	}
	return v
}

func (w *walk) foldNullTest(i int32) truth {
	wantsNull := string(w.raw(i, "nulltesttype")) == "IS_NULL"
	arg := w.child(i, "arg")
	if v, ok := w.constant(arg); ok {
		return truthOf((v.kind == constNull) == wantsNull)
	}
	if w.isNeverNull(arg) {
		return truthOf(!wantsNull)
	}
	switch v := w.truthOrRow(arg); v {
	case isTrue, isFalse:
		return truthOf(!wantsNull)
	case isNull:
		return truthOf(wantsNull)
	}
	return w.opaque(i)
}

// truthOrRow folds only what is a condition by its form.
func (w *walk) truthOrRow(i int32) truth {
	if w.isCondition(i) {
		return w.truth(i)
	}
	return w.opaque(i)
}

func (w *walk) foldBooleanTest(i int32) truth {
	arg := w.child(i, "arg")
	v, test := w.truth(arg), string(w.raw(i, "booltesttype"))
	if strings.HasSuffix(test, "UNKNOWN") && w.isNeverNull(arg) {
		return truthOf(strings.HasPrefix(test, "IS_NOT"))
	}
	if v == byRow || v == undecided {
		return v
	}
	is := v == isTrue
	switch {
	case strings.HasSuffix(test, "FALSE"):
		is = v == isFalse
	case strings.HasSuffix(test, "UNKNOWN"):
		is = v == isNull
	}
	return truthOf(is != strings.HasPrefix(test, "IS_NOT"))
}

func truthOf(b bool) truth {
	if b {
		return isTrue
	}
	return isFalse
}

// foldExpr folds comparisons of constants and of an expression with itself.
func (w *walk) foldExpr(i int32) truth {
	op := w.comparison(i)
	kind, left, right := w.sides(i)
	if left < 0 || right < 0 {
		return w.opaque(i)
	}
	switch kind {
	case "AEXPR_OP", "AEXPR_DISTINCT", "AEXPR_NOT_DISTINCT", "AEXPR_LIKE", "AEXPR_ILIKE":
	case "AEXPR_NULLIF":
		if v := w.truth(left); v == isTrue && w.truth(right) != isTrue && w.truth(right) != byRow || v == isFalse {
			return v
		}
		return w.opaque(i)
	case "AEXPR_IN", "AEXPR_OP_ANY", "AEXPR_OP_ALL", "AEXPR_BETWEEN", "AEXPR_NOT_BETWEEN", "AEXPR_BETWEEN_SYM", "AEXPR_NOT_BETWEEN_SYM":
		return w.foldList(i, kind, op, left, right)
	default:
		return w.opaque(i)
	}
	if l, ok := w.constant(left); ok {
		if r, ok := w.constant(right); ok {
			return compareConstants(kind, op, l, r)
		}
	}
	if v := w.foldPair(kind, op, left, right); v != byRow {
		return v
	}
	if kind == "AEXPR_OP" && op != "" && (w.isCondition(left) || w.isCondition(right)) {
		if l, r := w.truthOrRow(left), w.truthOrRow(right); l != byRow && r != byRow {
			return undecided
		}
	}
	if kind == "AEXPR_OP" && op != "" && (w.isNullConstant(left) || w.isNullConstant(right)) {
		return isNull
	}
	return w.opaque(i)
}

// sides gives the kind of an operator and what stands on its two sides. IN and NOT IN of
// one constant or parameter are = and <>, which is what the server makes of them
// (transformAExprIn in PostgreSQL's parse_expr.c).
func (w *walk) sides(i int32) (kind string, left, right int32) {
	kind, left, right = string(w.raw(i, "kind")), w.child(i, "lexpr"), w.child(i, "rexpr")
	if kind == "AEXPR_IN" {
		if only := w.onlyConstant(right); only >= 0 {
			return "AEXPR_OP", left, only
		}
	}
	return kind, left, right
}

// onlyConstant gives the one constant or parameter, with its casts, that a list holds, or -1.
func (w *walk) onlyConstant(list int32) int32 {
	only := int32(-1)
	for item := range w.items(list, "items") {
		if only >= 0 {
			return -1
		}
		only = item
	}
	bare := only
	for w.is(bare, "TypeCast") {
		bare = w.child(bare, "arg")
	}
	if w.is(bare, "A_Const") || w.is(bare, "ParamRef") {
		return only
	}
	return -1
}

// operatorOf gives what an operand belongs to: its owner, above the list of IN.
func (w *walk) operatorOf(operand int32) int32 {
	i := w.owner(operand)
	if w.is(i, "List") {
		return w.owner(i)
	}
	return i
}

// foldPair folds the comparison of an expression with the same, or with one that is
// a number more or less; of rows, column by column. It gives byRow for all else.
func (w *walk) foldPair(kind, op string, left, right int32) truth {
	if !w.namesColumn(left) && !w.namesColumn(right) {
		return byRow
	}
	if w.nameTheSame(left, right) {
		return sameBothSides(kind, op)
	}
	l, r := w.reduce(left), w.reduce(right)
	if l.hash == r.hash {
		switch order := l.order(r); {
		case order == 0:
			return sameBothSides(kind, op)
		case kind == "AEXPR_DISTINCT" || kind == "AEXPR_NOT_DISTINCT":
			return truthOf(kind == "AEXPR_DISTINCT")
		case kind == "AEXPR_OP" && op != "":
			return orderTruth(op, order)
		}
		return byRow
	}
	if kind == "AEXPR_OP" && (op == "=" || op == "<=" || op == ">=") && (w.fallsBackFrom(left, r) || w.fallsBackFrom(right, l)) {
		return isTrue
	}
	if op == "=" && w.is(left, "RowExpr") && w.is(right, "RowExpr") {
		return w.foldRows(kind, left, right)
	}
	return byRow
}

// fallsBackFrom sees COALESCE(x, ...), which is x wherever x is not NULL.
func (w *walk) fallsBackFrom(i int32, x reduced) bool {
	if !w.is(i, "CoalesceExpr") {
		return false
	}
	for arg := range w.items(i, "args") {
		return w.reduce(arg).full() == x.full()
	}
	return false
}

func (w *walk) foldRows(kind string, left, right int32) truth {
	var values [2][]int32
	for n, row := range [...]int32{left, right} {
		values[n] = slices.Collect(w.items(row, "args"))
	}
	if len(values[0]) != len(values[1]) || kind != "AEXPR_OP" {
		return byRow
	}
	var seen [undecided + 1]bool
	for n, l := range values[0] {
		r := values[1][n]
		v := w.foldPair(kind, "=", l, r)
		if v == byRow && !w.depends(l) && !w.depends(r) {
			v = undecided
		}
		seen[v] = true
	}
	return strongest(seen, isFalse, isNull, byRow, undecided, isTrue)
}

// foldList folds comparisons of an expression with a list that it stands in itself.
func (w *walk) foldList(i int32, kind, op string, left, right int32) truth {
	for w.is(right, "TypeCast") {
		right = w.child(right, "arg")
	}
	var elements []int32
	switch {
	case w.is(right, "A_ArrayExpr"):
		elements = slices.Collect(w.items(right, "elements"))
	case w.is(right, "List"):
		elements = slices.Collect(w.items(right, "items"))
	case w.fieldName(right) == "rexpr" && w.e[right].msg == listEntry:
		for e := right + 1; e < w.e[right].next; e = w.e[e].next {
			elements = append(elements, e)
		}
	default:
		if value := w.subqueryValue(right, "ARRAY_SUBLINK"); value >= 0 {
			elements = []int32{value}
		}
	}
	itself, every, names := false, len(elements) > 0, w.namesColumn(left)
	for _, e := range elements {
		w.steps++
		if (w.namesColumn(e) || !names) && (w.same(left, e) || w.foldPair("AEXPR_OP", "=", left, e) == isTrue) {
			itself = true
		} else {
			every = false
		}
	}
	if !itself {
		return w.opaque(i)
	}
	one := sameBothSides("AEXPR_OP", op)
	switch kind {
	case "AEXPR_IN", "AEXPR_OP_ANY", "AEXPR_OP_ALL":
		some := kind == "AEXPR_OP_ANY" || kind == "AEXPR_IN" && op == "="
		if every || some && one == isTrue || !some && one == isFalse {
			return one
		}
	case "AEXPR_BETWEEN", "AEXPR_NOT_BETWEEN":
		if every {
			return truthOf(kind == "AEXPR_BETWEEN")
		}
	default:
		return truthOf(kind == "AEXPR_BETWEEN_SYM")
	}
	return w.opaque(i)
}

func (w *walk) isNullConstant(i int32) bool {
	v, ok := w.constant(i)
	return ok && v.kind == constNull
}

// comparison gives the operator's name if it is a built-in comparison.
func (w *walk) comparison(i int32) string {
	schema, name := w.qualified(i, "name")
	if len(schema) != 0 && string(schema) != "pg_catalog" {
		return ""
	}
	switch op := string(name); op {
	case "=", "<>", "!=", "<", "<=", ">", ">=", "~~", "~~*", "!~~", "!~~*":
		return op
	}
	return ""
}

// sameBothSides: x = x is true wherever x is not NULL, and counts as true.
func sameBothSides(kind, op string) truth {
	switch {
	case kind == "AEXPR_DISTINCT":
		return isFalse
	case kind == "AEXPR_NOT_DISTINCT":
		return isTrue
	}
	switch op {
	case "=", "<=", ">=", "~~", "~~*":
		return isTrue
	case "<>", "!=", "<", ">", "!~~", "!~~*":
		return isFalse
	}
	return undecided
}
