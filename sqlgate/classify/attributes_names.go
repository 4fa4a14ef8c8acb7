package classify

// figure gives the name that PostgreSQL gives a column of a result whose text gives
// none (FigureColname of parse_target.c).
func (w *walk) figure(i int32) []byte {
	if name, _ := w.figureOf(i); name != nil {
		return name
	}
	return []byte("?column?")
}

// figureOf also tells whether the name is better than that of a type.
func (w *walk) figureOf(i int32) (name []byte, good bool) {
	if i < 0 || w.e[i].msg == 0 || w.e[i].msg == listEntry {
		return nil, false
	}
	w.steps++
	switch kind := w.t.schema.messages[w.e[i].msg].name; kind {
	case "ColumnRef":
		_, name = w.lastNames(i)
		return name, name != nil
	case "A_Indirection":
		for part := range w.items(i, "indirection") {
			if w.is(part, "String") {
				name = w.scalar(part)
			}
		}
		if name != nil {
			return name, true
		}
		return w.figureOf(w.child(i, "arg"))
	case "FuncCall":
		for part := range w.items(i, "funcname") {
			name = w.scalar(part)
		}
		return name, true
	case "A_Expr":
		if string(w.raw(i, "kind")) == "AEXPR_NULLIF" {
			return []byte("nullif"), true
		}
	case "TypeCast":
		if name, good = w.figureOf(w.child(i, "arg")); good {
			return name, true
		}
		for part := range w.items(w.child(i, "typeName"), "names") {
			name = w.scalar(part)
		}
		return name, false
	case "CollateClause":
		return w.figureOf(w.child(i, "arg"))
	case "CaseExpr":
		if name, good = w.figureOf(w.child(i, "defresult")); good {
			return name, true
		}
		return []byte("case"), false
	case "SubLink":
		switch string(w.raw(i, "subLinkType")) {
		case "EXISTS_SUBLINK":
			return []byte("exists"), true
		case "ARRAY_SUBLINK":
			return []byte("array"), true
		case "EXPR_SUBLINK":
			if r := w.outputs(w.child(i, "subselect")); !r.open && len(r.columns) > 0 {
				return r.columns[0].name, true
			}
		}
	case "MinMaxExpr":
		if string(w.raw(i, "op")) == "IS_LEAST" {
			return []byte("least"), true
		}
		return []byte("greatest"), true
	case "SQLValueFunction":
		return valueFunctions[string(w.raw(i, "op"))], true
	case "XmlExpr":
		name = xmlExpressions[string(w.raw(i, "op"))]
		return name, name != nil
	default:
		name = figured[kind]
		return name, name != nil
	}
	return nil, false
}

var figured = map[string][]byte{
	"GroupingFunc": []byte("grouping"), "A_ArrayExpr": []byte("array"), "RowExpr": []byte("row"), "CoalesceExpr": []byte("coalesce"), "XmlSerialize": []byte("xmlserialize"),
	"JsonObjectConstructor": []byte("json_object"), "JsonArrayConstructor": []byte("json_array"), "JsonArrayQueryConstructor": []byte("json_array"),
	"JsonObjectAgg": []byte("json_objectagg"), "JsonArrayAgg": []byte("json_arrayagg"),
}

var xmlExpressions = map[string][]byte{
	"IS_XMLCONCAT": []byte("xmlconcat"), "IS_XMLELEMENT": []byte("xmlelement"), "IS_XMLFOREST": []byte("xmlforest"), "IS_XMLPARSE": []byte("xmlparse"),
	"IS_XMLPI": []byte("xmlpi"), "IS_XMLROOT": []byte("xmlroot"),
}

var valueFunctions = map[string][]byte{
	"SVFOP_CURRENT_DATE": []byte("current_date"), "SVFOP_CURRENT_TIME": []byte("current_time"), "SVFOP_CURRENT_TIME_N": []byte("current_time"),
	"SVFOP_CURRENT_TIMESTAMP": []byte("current_timestamp"), "SVFOP_CURRENT_TIMESTAMP_N": []byte("current_timestamp"),
	"SVFOP_LOCALTIME": []byte("localtime"), "SVFOP_LOCALTIME_N": []byte("localtime"), "SVFOP_LOCALTIMESTAMP": []byte("localtimestamp"),
	"SVFOP_LOCALTIMESTAMP_N": []byte("localtimestamp"), "SVFOP_CURRENT_ROLE": []byte("current_role"), "SVFOP_CURRENT_USER": []byte("current_user"),
	"SVFOP_USER": []byte("user"), "SVFOP_SESSION_USER": []byte("session_user"), "SVFOP_CURRENT_CATALOG": []byte("current_catalog"), "SVFOP_CURRENT_SCHEMA": []byte("current_schema"),
}
