package classify

import "slices"

// A keyOf is the relation whose key a condition may bind to one row.
type keyOf struct {
	relation int32 // RangeVar; -1: none
	alone    bool  // no other relation is in sight, so an unqualified column is its own
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
