package classify

import (
	"bytes"
	"math"
	"slices"
)

// A keyOf is the relation whose key a condition may bind to one row.
type keyOf struct {
	relation int32 // RangeVar; -1: none
	alone    bool  // no other relation is in sight, so an unqualified column is its own
}

// bindsKey reports whether one of the ANDed terms is key = constant, the constant
// being of a type that holds one value of a key at most. Where only parameters
// bind it, their types say the rest (WithTypes).
func (w *walk) bindsKey(of keyOf, cond int32) bool {
	noted := len(w.keyParams)
	if w.bindsKeyByText(of, cond) {
		w.keyParams = w.keyParams[:noted]
		return true
	}
	return len(w.keyParams) > noted
}

// bindsKeyByText notes the parameters that a key is compared with.
func (w *walk) bindsKeyByText(of keyOf, cond int32) bool {
	if w.is(cond, "BoolExpr") && string(w.raw(cond, "boolop")) == "AND_EXPR" {
		for arg := range w.items(cond, "args") {
			if w.bindsKeyByText(of, arg) {
				return true
			}
		}
		return false
	}
	if !w.isEquality(cond) {
		return false
	}
	_, left, right := w.sides(cond)
	if !w.isKey(of, left) {
		left, right = right, left
	}
	if !w.isKey(of, left) || w.is(right, "TypeCast") && !w.isExact(right) {
		return false
	}
	constant := right
	for ; w.is(constant, "TypeCast"); constant = w.child(constant, "arg") {
		if !w.isBuiltinType(w.child(constant, "typeName")) { // a domain's collation outlives the casts around it
			return false
		}
	}
	if w.is(constant, "A_Const") {
		return true
	}
	if n := number(w.raw(constant, "number")); w.is(constant, "ParamRef") && n > 0 {
		w.keyParams = append(w.keyParams, KeyParam{Number: n, Cast: constant != right, Inferred: constant != right || w.isInferredByKey(right, of.relation, left)})
	}
	return false
}

func (w *walk) isEquality(i int32) bool {
	if !w.is(i, "A_Expr") || w.comparison(i) != "=" {
		return false
	}
	kind, _, _ := w.sides(i)
	return kind == "AEXPR_OP"
}

// exactTypes are the built-in types by their number. A key of a usual type (integers,
// numeric, text, uuid, date, timestamp) is compared with a value of these by its own type or
// by one that keeps its values apart: of a key's values one at most is equal to it.
// Others are not: bigint and numeric become float8 beside float4 and float8, varchar
// loses its trailing blanks beside char(n), and what a type does that somebody made is not
// known.
var exactTypes = map[string]uint32{
	"bool": 16, "bytea": 17, "int8": 20, "int2": 21, "int4": 23, "text": 25, "inet": 869, "varchar": 1043,
	"date": 1082, "timestamp": 1114, "timestamptz": 1184, "numeric": 1700, "uuid": 2950,
}

func isExactOID(oid uint32) bool {
	for _, exact := range exactTypes {
		if oid == exact {
			return true
		}
	}
	return false
}

// isInferredOID tells what the server takes for no type: 0 and that of an untyped literal.
func isInferredOID(oid uint32) bool { return oid == 0 || oid == 705 }

// isExact reports whether a cast is one to an exact type.
func (w *walk) isExact(cast int32) bool {
	to := w.child(cast, "typeName")
	schema, name := w.qualified(to, "names")
	return (len(schema) == 0 || string(schema) == "pg_catalog") && exactTypes[string(name)] != 0 && !w.has(to, "arrayBounds")
}

// isInferredByKey reports whether a parameter without a type surely gets that of
// the key that it is compared with: the server takes it from the first place that it analyses. That is
// this one or another comparison with that column of that table, unless the parameter stands elsewhere before.
func (w *walk) isInferredByKey(param, relation, key int32) bool {
	n, first, other := number(w.raw(param, "number")), int32(math.MaxInt32), int32(math.MaxInt32)
	for _, p := range w.params {
		w.steps++
		if number(w.raw(p, "number")) != n {
			continue
		}
		at := w.e[p].a
		switch owner := w.owner(p); {
		case p == param || w.isComparedWithKey(p, relation, key):
			if w.isAnalysedInOrder(p) {
				first = min(first, at)
			}
		case w.is(owner, "TypeCast") && w.isExact(owner): // as good as a key where it comes first
		default:
			other = min(other, at)
		}
	}
	w.bounded()
	return other == math.MaxInt32 || first < other
}

// isComparedWithKey reports whether a parameter stands beside a key of the one table of
// its query, which is the column of the relation.
func (w *walk) isComparedWithKey(param, relation, key int32) bool {
	owner := w.operatorOf(param)
	if !w.isEquality(owner) {
		return false
	}
	_, other, right := w.sides(owner)
	if other == param {
		other = right
	}
	of := keyOf{relation: -1}
	switch query := w.query(param); {
	case w.is(query, "SelectStmt"):
		of = keyOf{w.onlyTable(query), !w.seesOuter(query)}
	case w.is(query, "UpdateStmt"), w.is(query, "DeleteStmt"):
		of = keyOf{w.child(query, "relation"), !w.has(query, "fromClause") && !w.has(query, "usingClause")}
	}
	if !w.isKey(of, other) {
		return false
	}
	schema, name := w.relation(of.relation)
	keySchema, keyName := w.relation(relation)
	_, column := w.lastNames(other)
	_, keyColumn := w.lastNames(key)
	return bytes.Equal(name, keyName) && bytes.Equal(w.resolve(schema, name), w.resolve(keySchema, keyName)) && bytes.Equal(column, keyColumn)
}

// seesOuter reports whether a name in a query may be a column of a query around it.
func (w *walk) seesOuter(query int32) bool {
	for i := query; i > 0; i = w.e[i].parent {
		w.steps++
		if w.is(i, "SubLink") || w.is(i, "RangeSubselect") && w.has(i, "lateral") {
			return true
		}
	}
	return false
}

// analysedInOrder are the fields whose content the server analyses before all
// that stands behind it in the text.
var analysedInOrder = map[string]bool{
	"lexpr": true, "rexpr": true, "whereClause": true, "fromClause": true, "usingClause": true, "joinCondition": true, "sourceRelation": true, "withClause": true, "ctes": true,
	"ctequery": true, "selectStmt": true, "subquery": true, "subselect": true, "larg": true, "rarg": true, "quals": true, "query": true, "stmt": true, "stmts": true,
}

func (w *walk) isAnalysedInOrder(param int32) bool {
	equality := w.operatorOf(param)
	for i := w.e[param].parent; i > 0; i = w.e[i].parent {
		w.steps++
		switch m := w.e[i].msg; {
		case w.is(i, "A_Expr") && i != equality, w.is(i, "WithClause") && w.has(i, "recursive"):
			return false
		case m == 0 || m == listEntry, w.fieldName(i) == "", analysedInOrder[w.fieldName(i)]:
		case w.fieldName(i) != "args" || !w.is(w.owner(i), "BoolExpr"):
			return false
		}
	}
	return true
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
