package classify

import "encoding/binary"

// size is what an expression or a statement comes to, whose names see these items.
func (z *sizing) size(i int32, sees *sight) nodes {
	if i < 0 {
		return nodes{}
	}
	z.steps++
	if z.is(i, "ColumnRef") || z.is(i, "ParamRef") || z.is(i, "FuncCall") || z.is(i, "SubLink") || z.is(i, "SQLValueFunction") {
		z.varying++
	}
	switch e := &z.e[i]; {
	case e.msg == 0: // a constant is copied with its bytes
		return each(int(e.b-e.a) / bytesOfNode)
	case z.isQuery(i):
		return each(z.query(i, sees).total)
	case z.is(i, "ColumnRef"):
		return z.column(i, sees)
	case z.is(i, "A_Indirection") && z.endsInStar(i):
		arg := z.child(i, "arg")
		return z.size(arg, sees).times(z.columnsOf(arg)).plus(each(1))
	case z.is(i, "A_Expr"):
		return z.operation(i, sees)
	case z.is(i, "BoolExpr") && string(z.raw(i, "boolop")) == "NOT_EXPR": // what is below is made anew (negate_clause)
		n := z.below(i, sees)
		z.negated = capped(z.negated + n.stays)
		z.bound(limitCopiedNodes, z.negated, maxCopiedNodes)
		return n
	case z.is(i, "FuncCall") && z.aggregateKind(i) != 0: // a condition that is pushed to it ends there
		if sees != nil {
			sees.calls++
			sees.keys += z.keys(i, "agg_order")
		}
		if sees != nil && (z.has(i, "agg_distinct") || z.has(i, "agg_order")) {
			sees.sorted++
		}
		return each(z.below(i, sees).stays)
	case z.is(i, "FuncCall") && inlinedFunctions[z.calls(i)]:
		n := z.below(i, sees)
		z.inline(n)
		return n
	case z.is(i, "JsonValueExpr") && string(z.raw(z.child(i, "format"), "format_type")) == "JS_FORMAT_JSON": // as it is and with its format
		return z.below(i, sees).times(2)
	case z.is(i, "JsonArrayQueryConstructor"): // its query is analysed to see whether it has one column, and again
		return z.below(i, sees).times(2)
	case z.is(i, "CaseExpr") && z.amplifies(z.child(i, "arg")): // folded, and compared with each WHEN
		whens := 0
		for range z.items(i, "args") {
			whens++
		}
		return z.below(i, sees).plus(each(whens * nodesOfAmplified))
	case z.is(i, "GroupingSet") && !z.is(z.owner(i), "GroupingSet"):
		sets := z.groupings(i)
		if sees != nil {
			sees.sets = capped(sees.sets + sets)
		}
		z.grouped = capped(z.grouped + sets)
		z.bound(limitGroupingSets, z.grouped, maxGroupingSets)
	case z.is(i, "SubLink"): // what stands before IN is hashed and compared; EXISTS and IN become joins
		q := z.query(z.child(i, "subselect"), sees)
		if string(z.raw(i, "subLinkType")) != "EXPR_SUBLINK" && sees != nil {
			sees.joined += q.joined
			sees.put++
			q.total = q.around()
		}
		if sees != nil {
			sees.whole = capped(sees.whole + q.whole)
		}
		q.total = capped(q.total + q.whole/copiesOfWhole)
		if string(z.raw(i, "subLinkType")) != "EXPR_SUBLINK" && sees != nil {
			sees.clauses, sees.others = sees.clauses.plus(q.clauses), true
		}
		times := 1
		if string(z.raw(i, "subLinkType")) == "EXISTS_SUBLINK" && !z.becomesJoin(i) { // planned as a subplan and as a hashed one
			times = 2
		}
		n := capped(1 + times*(q.total+nodesOfPlan))
		z.asked += n
		return z.size(z.child(i, "testexpr"), sees).times(2).plus(each(n))
	case z.is(i, "WindowDef") && (z.fieldName(i) != "over" || !z.has(i, "name")): // OVER w is none of its own
		if sees != nil {
			sees.keys += z.keys(i, "partitionClause") + z.keys(i, "orderClause")
		}
		z.windows[z.written(i)] = true
		z.bound(limitWindows, len(z.windows), maxWindows)
		n := z.below(i, sees)
		if sees != nil {
			sees.keyed = capped(sees.keyed + n.stays)
		}
		return n
	}
	return z.below(i, sees)
}

// becomesJoin tells an EXISTS that is a part of its query's condition by AND, and reads
// nothing but tables (convert_EXISTS_sublink_to_join).
func (z *sizing) becomesJoin(exists int32) bool {
	query := z.child(exists, "subselect")
	for _, field := range []string{"larg", "withClause", "groupClause", "havingClause", "lockingClause"} {
		if z.child(query, field) >= 0 {
			return false
		}
	}
	for item := range z.items(query, "fromClause") {
		if !z.is(item, "RangeVar") {
			return false
		}
	}
	at := exists
	for ; z.fieldName(at) != "whereClause" && z.fieldName(at) != "quals"; at = z.owner(at) {
		up := z.owner(at)
		if kind := string(z.raw(up, "boolop")); !z.is(up, "BoolExpr") || kind != "AND_EXPR" && (kind != "NOT_EXPR" || at != exists) {
			return false
		}
	}
	return !z.stays(query)
}

// written tells nodes of the same meaning by what they hold.
func (z *sizing) written(i int32) string {
	var key []byte
	for j := i + 1; j < z.e[i].next; j++ {
		z.steps++
		e := &z.e[j]
		key = binary.BigEndian.AppendUint32(key, uint32(e.field)<<16|uint32(e.msg))
		if e.msg == 0 {
			key = append(append(key, z.json[e.a:e.b]...), '"')
		}
	}
	return string(key)
}

// below adds up what a node or a list holds.
func (z *sizing) below(i int32, sees *sight) nodes {
	n := nodes{}
	if z.e[i].msg != listEntry {
		n = each(1)
	}
	for j := i + 1; j < z.e[i].next; j = z.e[j].next {
		n = n.plus(z.size(j, sees))
	}
	return n
}

// condition is what a condition comes to: each query of a set operation has it too.
func (z *sizing) condition(i int32, sees *sight) int {
	if i >= 0 {
		if sees.orsOf == nil {
			sees.orsOf = make(map[string]orCount)
		}
	}
	asked := z.asked
	n := z.size(i, sees).pushed
	if i >= 0 {
		z.orsOf, z.widest = sees.orsOf, max(z.widest, columnsOfTable)
		for _, it := range sees.items {
			z.steps++
			z.widest = max(z.widest, it.width)
		}
		c := z.clausesOf(i, false, true, 0)
		if c.equal > 0 {
			c.equalNodes = max(n-(z.asked-asked), c.equal) // a star in a row is one node, and many sides
		}
		sees.clauses = sees.clauses.plus(c)
	}
	return capped(n * (1 + sees.arms))
}

// operation knows the operators whose sides are written several times (parse_expr.c).
func (z *sizing) operation(i int32, sees *sight) nodes {
	left, right := z.child(i, "lexpr"), z.child(i, "rexpr")
	l, r := 1, 1
	switch string(z.raw(i, "kind")) {
	case "AEXPR_BETWEEN", "AEXPR_NOT_BETWEEN":
		l = 2
	case "AEXPR_BETWEEN_SYM", "AEXPR_NOT_BETWEEN_SYM":
		l, r = 4, 2
	case "AEXPR_IN": // constants become one array, but for rows
		compared, array, row := 0, 0, z.is(left, "RowExpr")
		for item := range z.items(right, "items") {
			if !row && (z.is(item, "A_Const") || z.is(item, "ParamRef")) {
				array = 1
			} else {
				compared++
			}
		}
		l = max(compared+array, 1)
	}
	before := z.varying
	n := z.size(left, sees).times(l).plus(z.size(right, sees).times(r))
	for name := range z.items(i, "name") {
		if z.varying > before && inlinedOperators[string(z.text(name, "sval"))] {
			z.inline(n)
		}
	}
	return n.plus(each(1))
}

// inline counts the arguments of what may be one of the built-ins that PostgreSQL writes in
// SQL: it puts their text in the place of the call and simplifies the arguments once more,
// those of a chain at each of its calls (inline_function), and keeps all of it. Constants are
// folded first. Which of an operator it is, only the types tell.
func (z *sizing) inline(arguments nodes) {
	z.insql = capped(z.insql + arguments.stays)
	z.bound(limitCopiedNodes, z.insql, maxCopiedNodes)
}

// calls is the name of the function that is called, without its schema.
func (z *sizing) calls(i int32) string {
	_, name := z.qualified(i, "funcname")
	return string(name)
}

var (
	inlinedOperators = map[string]bool{"||": true, "+": true, "@>": true}
	inlinedFunctions = map[string]bool{"age": true, "bit_length": true, "col_description": true, "date_part": true, "log": true, "log10": true, "lpad": true, "obj_description": true, "overlaps": true,
		"path_contain_pt": true, "pg_relation_size": true, "pg_sleep_for": true, "pg_sleep_until": true, "polygon": true, "quote_literal": true, "quote_nullable": true, "round": true, "rpad": true,
		"shobj_description": true, "substring": true, "timestamptz": true, "trunc": true, "ts_debug": true, "xpath": true, "xpath_exists": true,
		"anytextcat": true, "textanycat": true, "int8pl_inet": true, "integer_pl_date": true, "interval_pl_date": true, "interval_pl_time": true, "interval_pl_timestamp": true,
		"interval_pl_timestamptz": true, "interval_pl_timetz": true, "numeric_pl_pg_lsn": true, "timedate_pl": true, "timetzdate_pl": true}
)

func capped(n int) int { return min(n, nodesUnbounded) }

// amplifies tells whether an expression becomes a constant that is larger than what makes
// it: the server folds it before it copies it.
func (z *sizing) amplifies(i int32) bool {
	found := false
	for j := i; i >= 0 && j < z.e[i].next; j++ {
		z.steps++
		switch {
		case z.is(j, "ColumnRef"), z.is(j, "ParamRef"), z.isQuery(j):
			return false
		case z.is(j, "FuncCall"):
			_, name := z.qualified(j, "funcname")
			if z.t.builtins.sets[string(name)] {
				return false
			}
			found = found || amplifiers[string(name)]
		}
	}
	return found
}

var amplifiers = map[string]bool{"repeat": true, "lpad": true, "rpad": true, "array_fill": true, "array_cat": true, "replace": true, "regexp_replace": true, "format": true}

// groupings counts the grouping sets that a clause stands for.
func (z *sizing) groupings(i int32) int {
	n, items := 0, 0
	for item := range z.items(i, "content") {
		if items++; z.is(item, "GroupingSet") {
			n = capped(n + z.groupings(item))
		} else {
			n = capped(n + setsOfOne)
		}
	}
	switch string(z.raw(i, "kind")) {
	case "GROUPING_SET_CUBE":
		return 1 << min(items, 30)
	case "GROUPING_SET_ROLLUP":
		return items * (items + 1) / 2 // columns of its sets
	case "GROUPING_SET_SETS":
		return n
	}
	return 1
}

// keys counts what a clause groups or sorts by: the server looks for each among all
// before it, and at no interrupt (findTargetlistEntrySQL99). For each grouping set it holds
// each against each other, by all that it knows to be equal (estimate_num_groups).
func (z *sizing) keys(node int32, list string) (n int) {
	for item := range z.items(node, list) {
		switch {
		case z.is(item, "GroupingSet"):
			n += z.keys(item, "content")
		case z.is(item, "RowExpr"):
			n += z.keys(item, "args")
		default:
			n++
		}
	}
	return n
}

// columnsOf tells how many columns (x).* stands for.
func (z *sizing) columnsOf(x int32) int {
	if !z.is(x, "RowExpr") {
		return columnsOfUnknown
	}
	n := 0
	for arg := range z.items(x, "args") {
		switch {
		case !z.endsInStar(arg):
			n++
		case z.is(arg, "A_Indirection"):
			n += z.columnsOf(z.child(arg, "arg"))
		default:
			n += columnsOfUnknown
		}
	}
	return max(1, min(n, maxResultColumns))
}
