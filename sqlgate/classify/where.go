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
	w.about(w.query(cond), false)
	switch w.truth(cond) {
	case isTrue, undecided:
		return WhereTautology
	case byRow:
		if w.bindsKey(of, cond) {
			return WhereKeyEquality
		}
		if w.readsTargetAgain() {
			w.about(w.reached, true)
			if w.truth(cond) == isTrue {
				return WhereTautology
			}
		}
	}
	return WherePresent
}

// about begins the judgement of a condition on the rows of a statement. With self,
// each row of the target is also what the text reads of the same relation: where a
// condition is true then, each row meets itself.
func (w *walk) about(stmt int32, self bool) {
	w.reached, w.selfJoin = stmt, self
	w.forgetTruths()
}

// forgetTruths keeps the maps unless they are large, which makes clearing them slow.
func (w *walk) forgetTruths() {
	if len(w.reductions)+len(w.truths) > 1000 {
		w.reductions, w.truths = nil, nil
		return
	}
	clear(w.reductions)
	clear(w.truths)
}

// readsTargetAgain reports whether the relation of the target stands in its
// statement once more.
func (w *walk) readsTargetAgain() bool {
	for i := w.reached + 1; i < w.e[w.reached].next; i++ {
		w.steps++
		if w.is(i, "RangeVar") && w.isTargetsRelation(i) {
			return true
		}
	}
	w.bounded()
	return false
}

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
	kind, op := string(w.raw(i, "kind")), w.comparison(i)
	left, right := w.child(i, "lexpr"), w.child(i, "rexpr")
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

// sameTree reports whether parts of two trees are written alike.
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
