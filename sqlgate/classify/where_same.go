package classify

import (
	"bytes"
	"math/big"
	"slices"
)

// Two expressions are the same for a condition where both have the same value in
// every row: a column by its bare name and behind its relation's, COALESCE, NULLIF
// and CASE that give one thing only, a subquery around a column, arithmetic that
// changes nothing. A condition that compares two such expressions bounds nothing.

// A reduced expression is what it comes down to, and the number that is added to it.
type reduced struct {
	hash  uint64
	added *big.Rat // nil for 0
}

// numberBase is the hash of what is nothing but a number.
const numberBase = 1

// full is the hash of the whole expression.
func (r reduced) full() uint64 {
	if r.added == nil || r.added.Sign() == 0 && r.hash != numberBase {
		return r.hash
	}
	return mixText(r.hash, []byte(r.added.RatString()))
}

func (r reduced) plus(n *big.Rat) reduced {
	if r.added != nil {
		n = new(big.Rat).Add(r.added, n)
	}
	return reduced{r.hash, n}
}

// order compares two expressions of the same hash.
func (r reduced) order(other reduced) int {
	a, b := r.added, other.added
	if a == nil {
		a = new(big.Rat)
	}
	if b == nil {
		b = new(big.Rat)
	}
	return a.Cmp(b)
}

const (
	hashStart = 14695981039346656037
	hashPrime = 1099511628211
)

func mix(h, more uint64) uint64 { return (h ^ more) * hashPrime }

func mixText(h uint64, text []byte) uint64 {
	for _, c := range text {
		h = mix(h, uint64(c))
	}
	return mix(h, uint64(len(text)))
}

// same reports whether two expressions have the same value.
func (w *walk) same(a, b int32) bool { return w.reduce(a).full() == w.reduce(b).full() }

// reduce gives what an expression comes down to. Each is reduced once.
func (w *walk) reduce(i int32) reduced {
	if i < 0 {
		return reduced{}
	}
	if w.is(i, "A_Const") {
		return w.reduceNode(i)
	}
	if r, ok := w.reductions[i]; ok {
		return r
	}
	w.steps++
	r := w.reduceNode(i)
	if w.reductions == nil {
		w.reductions = map[int32]reduced{}
	}
	w.reductions[i] = r
	return r
}

func (w *walk) reduceNode(i int32) reduced {
	if v, ok := w.constant(i); ok && v.kind == constNumber {
		return reduced{numberBase, v.num}
	}
	switch {
	case w.is(i, "ColumnRef"):
		return reduced{hash: w.columnHash(i)}
	case w.is(i, "CollateClause"):
		return w.reduce(w.child(i, "arg"))
	case w.is(i, "A_Expr"):
		if r, ok := w.reduceExpr(i); ok {
			return r
		}
	case w.is(i, "CoalesceExpr"):
		for arg := range w.items(i, "args") {
			if v, ok := w.constant(arg); ok && v.kind != constNull {
				return w.reduce(arg)
			} else if !ok {
				break
			}
		}
		if r, ok := w.onlyValue(w.items(i, "args"), false); ok {
			return r
		}
	case w.is(i, "MinMaxExpr"):
		if r, ok := w.onlyValue(w.items(i, "args"), false); ok {
			return r
		}
	case w.is(i, "CaseExpr"):
		if results, whole := w.caseResults(i); whole {
			if r, ok := w.onlyValue(slices.Values(results), true); ok {
				return r
			}
		}
	case w.is(i, "SubLink"):
		if value := w.subqueryValue(i, "EXPR_SUBLINK"); value >= 0 {
			return w.reduce(value)
		}
	case w.is(i, "A_Indirection"):
		if value := w.element(i); value >= 0 {
			return w.reduce(value)
		}
	}
	return reduced{hash: w.hashEntry(i)}
}

// hashEntry gives two expressions that are written alike the same number; their
// places are no part of the tree.
func (w *walk) hashEntry(k int32) uint64 {
	e := &w.e[k]
	h := mix(hashStart, uint64(e.msg))
	if e.msg == 0 && e.b > e.a {
		h = mixText(h, w.json[e.a:e.b])
	}
	if w.is(k, "A_Const") && w.literal(k).kind == constUnknown && e.a >= 0 {
		h = mixText(h, numberText(w.sql[min(int(e.a), len(w.sql)):])) // which the tree may lack
	}
	for c := k + 1; c < e.next; c = w.e[c].next {
		h = mix(h, uint64(w.e[c].field))
		if m := w.e[c].msg; m == 0 || m == listEntry {
			h = mix(h, w.hashEntry(c))
		} else {
			h = mix(h, w.reduce(c).full())
		}
	}
	return h
}

// reduceExpr takes away what changes nothing: + 0, * 1, || ”, NULLIF of NULL.
func (w *walk) reduceExpr(i int32) (reduced, bool) {
	left, right := w.child(i, "lexpr"), w.child(i, "rexpr")
	switch string(w.raw(i, "kind")) {
	case "AEXPR_NULLIF":
		return w.reduce(left), w.isNullConstant(right)
	case "AEXPR_OP":
	default:
		return reduced{}, false
	}
	schema, name := w.qualified(i, "name")
	if len(schema) != 0 && string(schema) != "pg_catalog" || right < 0 {
		return reduced{}, false
	}
	if left < 0 {
		switch inner := w.child(right, "rexpr"); {
		case string(name) == "+":
			return w.reduce(right), true
		case string(name) == "-" && w.is(right, "A_Expr") && w.child(right, "lexpr") < 0 && string(w.raw(right, "kind")) == "AEXPR_OP":
			_, again := w.qualified(right, "name")
			return w.reduce(inner), string(again) == "-"
		}
		return reduced{}, false
	}
	l, r := w.reduce(left), w.reduce(right)
	is := func(side reduced, n int64) bool {
		return side.hash == numberBase && side.added.Cmp(big.NewRat(n, 1)) == 0
	}
	empty := func(i int32) bool {
		v, ok := w.constant(i)
		return ok && v.kind == constText && v.text == ""
	}
	switch op := string(name); {
	case op == "+" && r.hash == numberBase:
		return l.plus(r.added), true
	case op == "+" && l.hash == numberBase:
		return r.plus(l.added), true
	case op == "-" && r.hash == numberBase:
		return l.plus(new(big.Rat).Neg(r.added)), true
	case op == "-" && l.full() == r.full():
		return reduced{numberBase, new(big.Rat)}, true
	case op == "*" && (is(l, 1) || is(r, 0)), op == "||" && empty(left):
		return r, true
	case op == "*" && (is(r, 1) || is(l, 0)), op == "/" && is(r, 1), op == "||" && empty(right):
		return l, true
	}
	return reduced{}, false
}

// onlyValue gives what all of several values are, but for NULL if it is left out.
func (w *walk) onlyValue(values func(func(int32) bool), withNull bool) (only reduced, ok bool) {
	for v := range values {
		if !withNull && w.isNullConstant(v) {
			continue
		}
		r := w.reduce(v)
		if ok && r.full() != only.full() {
			return reduced{}, false
		}
		only, ok = r, true
	}
	return only, ok
}

// caseResults gives the results that a CASE may have, in their order, and whether
// NULL is not one besides.
func (w *walk) caseResults(i int32) (results []int32, whole bool) {
	arg := w.child(i, "arg")
	for when := range w.items(i, "args") {
		cond := byRow
		if arg < 0 {
			cond = w.truth(w.child(when, "expr"))
		}
		if cond == isFalse || cond == isNull {
			continue
		}
		results = append(results, w.child(when, "result"))
		if cond == isTrue {
			return results, true
		}
	}
	if other := w.child(i, "defresult"); other >= 0 {
		return append(results, other), true
	}
	return results, false
}

// element gives what (ARRAY[x])[1] and (ROW(x)).f1 come down to, or -1.
func (w *walk) element(i int32) int32 {
	arg, n := w.child(i, "arg"), 0
	var part int32
	for part = range w.items(i, "indirection") {
		n++
	}
	list := "elements"
	switch {
	case n == 1 && w.is(arg, "A_ArrayExpr") && w.is(part, "A_Indices") && !w.has(part, "is_slice"):
	case n == 1 && w.is(arg, "RowExpr") && w.is(part, "String"):
		list = "args"
	default:
		return -1
	}
	if _, ok := w.onlyValue(w.items(arg, list), true); ok {
		for value := range w.items(arg, list) {
			return value
		}
	}
	return -1
}

// columnHash tells columns apart: two of the same relation and name are one.
func (w *walk) columnHash(ref int32) uint64 {
	schema, qualifier, name := w.columnNames(ref)
	node := int32(-1)
	switch {
	case len(qualifier) > 0:
		for _, it := range w.itemsNamed(ref, schema, qualifier) {
			node = it.node
			break
		}
		if node < 0 && w.isExcluded(qualifier) {
			node = w.reached
			if w.isConflictColumn(name) { // what conflicts is equal
				node = w.child(w.reached, "relation")
			}
		}
		if name == nil { // the whole row, as by the name of its relation
			name = qualifier
		}
	case name != nil:
		node = w.holderOf(ref, name)
	}
	if node < 0 {
		return mixText(mixText(mixText(hashStart, schema), qualifier), name)
	}
	if w.selfJoin && w.isTargetsRelation(node) {
		node = w.target()
	}
	if w.query(node) != w.reached { // of a subquery, which may be written twice
		return mixText(mixText(mix(hashStart, 1), w.nameOf(node)), name)
	}
	return mixText(mix(hashStart, uint64(node)+1), name)
}

// columnNames gives the last three names of a ColumnRef; that of a star is nil.
func (w *walk) columnNames(ref int32) (schema, qualifier, name []byte) {
	for f := range w.items(ref, "fields") {
		schema, qualifier, name = qualifier, name, w.scalar(f)
	}
	return schema, qualifier, name
}

// itemsNamed finds what names in front of a column may stand for. With a schema
// PostgreSQL takes a relation of it that has no alias.
func (w *walk) itemsNamed(ref int32, schema, qualifier []byte) []item {
	found := w.resolveItem(ref, qualifier)
	if len(schema) == 0 {
		return found
	}
	return slices.DeleteFunc(found, func(it item) bool {
		if !w.is(it.node, "RangeVar") || w.child(it.node, "alias") >= 0 {
			return true
		}
		of, name := w.relation(it.node)
		return !bytes.Equal(w.resolve(of, name), unescape(schema))
	})
}

// isExcluded tells the row that conflicts, in ON CONFLICT DO UPDATE.
func (w *walk) isExcluded(qualifier []byte) bool {
	return string(qualifier) == "excluded" && w.is(w.reached, "InsertStmt")
}

// isConflictColumn reports whether rows conflict by a column, as far as text can tell.
func (w *walk) isConflictColumn(name []byte) bool {
	infer := w.child(w.child(w.reached, "onConflictClause"), "infer")
	for element := range w.items(infer, "indexElems") {
		if bytes.Equal(w.raw(element, "name"), name) {
			return true
		}
	}
	return w.has(infer, "conname") && w.t.keyColumns[string(unescape(name))]
}

// holderOf finds what a bare name is a column of, or -1 where text can't tell.
func (w *walk) holderOf(ref int32, name []byte) int32 {
	for s := range w.inSight(ref) {
		open := int32(-1)
		several := false
		for _, it := range w.allOf(s) {
			if it.covered {
				continue
			}
			switch r := w.rowOf(it); {
			case r.open:
				several = open >= 0
				open = it.node
			case w.hasColumn(r, name):
				return it.node
			}
		}
		if several {
			return -1
		}
		if open >= 0 {
			return open
		}
	}
	return -1
}

// nameTheSame reports whether one of two columns has a bare name and the other is of
// that name, beside relations that may both have it: it is the same, or PostgreSQL
// refuses the bare one.
func (w *walk) nameTheSame(a, b int32) bool {
	if !w.is(a, "ColumnRef") || !w.is(b, "ColumnRef") || w.query(a) != w.query(b) {
		return false
	}
	_, qa, na := w.columnNames(a)
	_, qb, nb := w.columnNames(b)
	return len(na) > 0 && bytes.Equal(na, nb) && (len(qa) == 0) != (len(qb) == 0) && w.ownLevel(a, qa) && w.ownLevel(b, qb)
}

// ownLevel reports whether a qualifier names an item of the statement that the
// column itself stands in.
func (w *walk) ownLevel(ref int32, qualifier []byte) bool {
	if len(qualifier) == 0 {
		return true
	}
	for s := range w.inSight(ref) {
		for _, it := range w.allOf(s) {
			if bytes.Equal(it.name, qualifier) {
				return true
			}
		}
		break
	}
	return false
}

// target gives the relation whose rows a condition is about, or -1 where they are of
// several.
func (w *walk) target() int32 {
	if w.is(w.reached, "SelectStmt") {
		return w.onlyFrom(w.reached)
	}
	return w.child(w.reached, "relation")
}

// isTargetsRelation reports whether an item is the target's relation once more, all
// of its rows.
func (w *walk) isTargetsRelation(node int32) bool {
	target := w.target()
	if node == target || !w.is(node, "RangeVar") || !w.is(target, "RangeVar") || !w.isQuery(w.owner(node)) {
		return false
	}
	schema, name := w.relation(node)
	if len(schema) == 0 && w.cteOf(node, name) >= 0 {
		return false
	}
	of, targetName := w.relation(target)
	if alias := w.child(node, "alias"); alias >= 0 && w.has(alias, "colnames") {
		return false
	}
	return bytes.Equal(name, targetName) && bytes.Equal(w.resolve(schema, name), w.resolve(of, targetName))
}
