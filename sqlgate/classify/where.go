package classify

import (
	"bytes"
	"slices"
	"sort"
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

// judgeWheres gives every UPDATE, DELETE, MERGE and DO UPDATE its value of
// Where, after the walk, which collected where columns are named.
func (w *walk) judgeWheres() {
	for _, i := range w.dml {
		value, cond := w.reach(i)
		w.wheres.addWord(value)
		switch value {
		case WhereNone:
			w.raise(SignalWriteWithoutWhere, "", i)
		case WhereTautology:
			w.raise(SignalTautologicalWhere, "", cond)
		}
	}
}

// reach gives the value of one statement and the condition that it is of.
func (w *walk) reach(i int32) (value string, cond int32) {
	switch {
	case w.is(i, "InsertStmt"):
		return w.upsertReach(i)
	case w.is(i, "MergeStmt"):
		cond = w.child(i, "joinCondition")
		return w.where(keyOf{w.child(i, "relation"), false}, cond), cond
	}
	cond = w.child(i, "whereClause")
	alone := !w.has(i, "fromClause") && !w.has(i, "usingClause")
	return w.where(keyOf{w.child(i, "relation"), alone}, cond), cond
}

// A keyOf is the relation whose key a condition may bind to one row.
type keyOf struct {
	relation int32 // RangeVar; -1: none
	alone    bool  // no other relation is in sight, so an unqualified column is its own
}

// where judges one condition.
func (w *walk) where(of keyOf, cond int32) string {
	if cond < 0 {
		return WhereNone
	}
	w.reached = w.query(cond)
	switch w.truth(cond) {
	case isTrue, undecided:
		return WhereTautology
	case byRow:
		if w.bindsKey(of, cond) {
			return WhereKeyEquality
		}
	}
	return WherePresent
}

// truth folds a condition. Its depth is that of the tree, which is bounded.
func (w *walk) truth(i int32) truth {
	switch {
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

// opaque is the truth of what cannot be folded: without a column of the rows that
// the statement reaches in it, it is the same for all of them.
func (w *walk) opaque(i int32) truth {
	if i < 0 { // not in the tree, as in one with unknown fields
		return undecided
	}
	for k := w.firstColumn(i); k < len(w.columnAt) && w.columnAt[k] < w.e[i].next; k++ {
		if w.isReached(w.columnAt[k]) {
			return byRow
		}
	}
	return undecided
}

func (w *walk) firstColumn(i int32) int {
	return sort.Search(len(w.columnAt), func(k int) bool { return w.columnAt[k] >= i })
}

// namesColumn reports whether any column is named anywhere below an entry.
func (w *walk) namesColumn(i int32) bool {
	k := w.firstColumn(i)
	return k < len(w.columnAt) && w.columnAt[k] < w.e[i].next
}

// isReached reports whether a column is one of the rows that a condition is about:
// of the target, and not of a relation beside it or of a subquery.
func (w *walk) isReached(ref int32) bool {
	qualifier, name := w.lastNames(ref)
	if len(qualifier) > 0 {
		for _, it := range w.resolveItem(ref, qualifier) {
			if w.isTarget(it.node) {
				return true
			}
		}
		return string(qualifier) == "excluded" && w.is(w.reached, "InsertStmt")
	}
	for items := range w.inSight(ref) {
		target, beside := false, false // beside: something else that may have a column of the name
		for _, it := range items {
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
		return w.query(node) == w.reached
	}
	return node == w.child(w.reached, "relation")
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
		if w.coversAll(i) {
			return isTrue
		}
		return strongest(seen, isTrue, undecided, byRow, isNull, isFalse)
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

// coversAll sees x IS NULL OR x IS NOT NULL, and x OR NOT x.
func (w *walk) coversAll(or int32) bool {
	sides := map[uint64]uint8{}
	for arg := range w.items(or, "args") {
		of, side := w.sideOf(arg)
		if side == 0 || of < 0 {
			continue
		}
		h := w.hash(of)<<1 | uint64(side>>2)
		sides[h] |= side & 3
		if sides[h] == 3 {
			return true
		}
	}
	return false
}

// sideOf gives the expression a term is about and which half of its values the
// term takes: bits 0 and 1, with bit 2 for tests on NULL.
func (w *walk) sideOf(arg int32) (int32, uint8) {
	if w.is(arg, "NullTest") {
		if string(w.raw(arg, "nulltesttype")) == "IS_NULL" {
			return w.child(arg, "arg"), 4 | 1
		}
		return w.child(arg, "arg"), 4 | 2
	}
	if w.is(arg, "BoolExpr") && string(w.raw(arg, "boolop")) == "NOT_EXPR" {
		for inner := range w.items(arg, "args") {
			return inner, 1
		}
	}
	return arg, 2
}

func (w *walk) foldNullTest(i int32) truth {
	wantsNull := string(w.raw(i, "nulltesttype")) == "IS_NULL"
	arg := w.child(i, "arg")
	if v, ok := w.constant(arg); ok {
		return truthOf((v.kind == constNull) == wantsNull)
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
	if w.is(i, "BoolExpr") || w.is(i, "NullTest") || w.is(i, "BooleanTest") || w.is(i, "A_Expr") {
		return w.truth(i)
	}
	return w.opaque(i)
}

func (w *walk) foldBooleanTest(i int32) truth {
	v := w.truth(w.child(i, "arg"))
	if v == byRow || v == undecided {
		return v
	}
	test := string(w.raw(i, "booltesttype"))
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
	kind, op := string(w.raw(i, "kind")), w.comparison(i)
	left, right := w.child(i, "lexpr"), w.child(i, "rexpr")
	if left < 0 || right < 0 {
		return w.opaque(i)
	}
	switch kind {
	case "AEXPR_OP", "AEXPR_DISTINCT", "AEXPR_NOT_DISTINCT", "AEXPR_LIKE", "AEXPR_ILIKE":
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
	if w.same(left, right) && w.namesColumn(left) {
		return sameBothSides(kind, op)
	}
	if w.comparesConditions(left, right) && kind == "AEXPR_OP" && op != "" {
		if l, r := w.truthOrRow(left), w.truthOrRow(right); l != byRow && r != byRow {
			return undecided
		}
	}
	if kind == "AEXPR_OP" && op != "" && (w.isNullConstant(left) || w.isNullConstant(right)) {
		return isNull
	}
	return w.opaque(i)
}

// foldList folds comparisons of an expression with a list that it stands in itself.
func (w *walk) foldList(i int32, kind, op string, left, right int32) truth {
	list := right
	if w.is(right, "A_ArrayExpr") {
		list = w.child(right, "elements")
	} else if w.is(right, "List") {
		list = w.child(right, "items")
	}
	itself, all := false, true
	if list >= 0 && w.e[list].msg == listEntry && w.namesColumn(left) {
		for e := list + 1; e < w.e[list].next; e = w.e[e].next {
			w.steps++
			if w.same(left, e) {
				itself = true
			} else {
				all = false
			}
		}
	}
	if !itself {
		return w.opaque(i)
	}
	one := sameBothSides("AEXPR_OP", op)
	switch kind {
	case "AEXPR_IN", "AEXPR_OP_ANY", "AEXPR_OP_ALL":
		some := kind == "AEXPR_OP_ANY" || kind == "AEXPR_IN" && op == "="
		if all || some && one == isTrue || !some && one == isFalse {
			return one
		}
	case "AEXPR_BETWEEN", "AEXPR_NOT_BETWEEN":
		if all {
			return truthOf(kind == "AEXPR_BETWEEN")
		}
	default:
		return truthOf(kind == "AEXPR_BETWEEN_SYM")
	}
	return w.opaque(i)
}

// comparesConditions reports whether a side is itself a condition, as in (1=1) = true.
func (w *walk) comparesConditions(left, right int32) bool {
	return w.is(left, "BoolExpr") || w.is(left, "A_Expr") || w.is(right, "BoolExpr") || w.is(right, "A_Expr")
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
	return byRow
}

// same reports whether two expressions are written alike; their places are no
// part of the tree.
func (w *walk) same(a, b int32) bool { return sameTree(w, a, w, b) }

// sameTree is same for parts of two trees.
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

// hash gives two expressions that are written alike the same number. All are
// made in one pass from the end, when the first is asked for: hashing each on
// its own would be quadratic in nested conditions.
func (w *walk) hash(i int32) uint64 {
	if len(w.hashes) == 0 {
		w.hashes = make([]uint64, len(w.e))
		for k := int32(len(w.e)) - 1; k >= 0; k-- {
			w.hashes[k] = w.hashEntry(k)
		}
	}
	return w.hashes[i]
}

const (
	hashStart = 14695981039346656037
	hashPrime = 1099511628211
)

func (w *walk) hashEntry(k int32) uint64 {
	e := &w.e[k]
	h := (hashStart ^ uint64(e.msg)) * hashPrime
	if e.msg == 0 && e.b > e.a {
		for _, c := range w.json[e.a:e.b] {
			h = (h ^ uint64(c)) * hashPrime
		}
	}
	for c := k + 1; c < e.next; c = w.e[c].next {
		h = (h ^ uint64(w.e[c].field)) * hashPrime
		h = (h ^ w.hashes[c]) * hashPrime
	}
	return h
}

// bindsKey reports whether one of the ANDed terms is key = constant.
func (w *walk) bindsKey(of keyOf, cond int32) bool {
	if w.is(cond, "BoolExpr") && string(w.raw(cond, "boolop")) == "AND_EXPR" {
		for arg := range w.items(cond, "args") {
			if w.bindsKey(of, arg) {
				return true
			}
		}
		return false
	}
	if !w.is(cond, "A_Expr") || string(w.raw(cond, "kind")) != "AEXPR_OP" || w.comparison(cond) != "=" {
		return false
	}
	left, right := w.child(cond, "lexpr"), w.child(cond, "rexpr")
	return w.isKey(of, left) && w.isConstant(right) || w.isKey(of, right) && w.isConstant(left)
}

// isKey reports whether an expression is a key column of the relation. Beside
// other relations only a qualified name can tell.
func (w *walk) isKey(of keyOf, i int32) bool {
	if of.relation < 0 || !w.is(i, "ColumnRef") {
		return false
	}
	var names []string
	for f := range w.items(i, "fields") {
		if !w.is(f, "String") {
			return false
		}
		names = append(names, string(w.text(f, "sval")))
	}
	if len(names) == 0 || !w.t.keyColumns[names[len(names)-1]] {
		return false
	}
	if len(names) == 1 {
		return of.alone
	}
	return w.isNamed(of.relation, names[:len(names)-1])
}

// isNamed reports whether a qualifier names the relation: by its alias if it
// has one, else by its name, with or without the schema.
func (w *walk) isNamed(relation int32, qualifier []string) bool {
	if alias := w.child(relation, "alias"); alias >= 0 {
		return slices.Equal(qualifier, []string{string(w.text(alias, "aliasname"))})
	}
	schema, name := w.text(relation, "schemaname"), string(w.text(relation, "relname"))
	switch len(qualifier) {
	case 1:
		return qualifier[0] == name
	case 2:
		return qualifier[0] == string(w.resolve(schema, []byte(name))) && qualifier[1] == name
	}
	return false
}
