package classify

// The server looks for an index for each arm of each OR, and tries all that the query asks
// for besides with it each time (generate_bitmap_or_paths, build_paths_for_OR). Each OR that
// has one is compared with each other, arm by arm (choose_bitmap_and, predicate_implied_by;
// the dearest at 18, which makes arrays of them). It keeps what it tried, and looks at no
// interrupt.

// clauses are what the conditions of a query come to.
type clauses struct {
	parts  int // joined by AND, on top
	ors    int // of those
	arms   int // of ORs, at any depth
	within int // clauses that arms are tried with and that stand inside of an OR
	pairs  int // of ORs and arms that stand beside each other inside of an OR
	same   int // of arms with those of their own OR, of ors
}

func (c clauses) plus(d clauses) clauses {
	return clauses{capped(c.parts + d.parts), capped(c.ors + d.ors), capped(c.arms + d.arms), capped(c.within + d.within), capped(c.pairs + d.pairs), min(c.same+d.same, nodesUnbounded<<30)}
}

func (c clauses) most(d clauses) clauses {
	return clauses{max(c.parts, d.parts), max(c.ors, d.ors), max(c.arms, d.arms), max(c.within, d.within), max(c.pairs, d.pairs), min(c.same, d.same)}
}

// boundClauses holds what the conditions of a query come to against the bounds: of one
// that stands around a set operation, in each of its queries.
func (z *sizing) boundClauses(c clauses, queries int) {
	queries = max(queries, 1)
	z.bound(limitConditions, c.parts, maxConditions)
	z.bound(limitAlternatives, capped(capped(c.within+capped(c.arms*c.parts))*queries), maxAlternatives)
	z.bound(limitAlternativePairs, capped(c.together()*queries), maxAlternativePairs)
}

// armsOfPair is how many arms are compared with arms in the time of an OR with an arm.
const armsOfPair = 50

// together are the pairs with those of the ORs on top, where there are several.
func (c clauses) together() int {
	if c.ors < 2 {
		return c.pairs
	}
	return capped(c.pairs + max(capped(c.ors*c.arms), capped((c.arms*c.arms-c.same)/2/armsOfPair)))
}

// alternatives are n arms of parts each, around which stand others.
func alternatives(n, parts, around int) clauses {
	return clauses{parts: 1, ors: 1, arms: n, within: capped(n * (around + parts)), same: n * n}
}

// clausesOf takes a condition apart as the server does (negate_clause, canonicalize_qual):
// not says that it is negated, top that only ANDs are around it, and around is how many
// clauses stand beside it inside of ORs.
func (z *sizing) clausesOf(i int32, not, top bool, around int) clauses {
	if z.steps++; z.is(i, "A_Expr") {
		return z.comparison(i, not, around)
	}
	if !z.is(i, "BoolExpr") {
		return clauses{parts: 1}
	}
	n := 0
	for range z.items(i, "args") {
		n++
	}
	op := string(z.raw(i, "boolop"))
	if op == "NOT_EXPR" {
		not = !not
	}
	var all clauses
	if op == "NOT_EXPR" || (op == "AND_EXPR") != not {
		if !top {
			around = capped(around + n - 1)
		}
		for arg := range z.items(i, "args") {
			all = all.plus(z.clausesOf(arg, not, top, around))
		}
		return all
	}
	for arg := range z.items(i, "args") {
		c := z.clausesOf(arg, not, false, around)
		z.bound(limitConditions, c.parts, maxConditions) // what stands in all arms is looked for
		all = clauses{1, 1, capped(all.arms + 1 + c.arms), capped(all.within + around + c.parts + c.within), capped(all.pairs + c.together()), 0}
	}
	all.same = all.arms * all.arms
	return all
}

// comparison is clausesOf an operator: BETWEEN, IN and rows are several.
func (z *sizing) comparison(i int32, not bool, around int) clauses {
	columns := 0
	if left := z.child(i, "lexpr"); z.is(left, "RowExpr") {
		for range z.items(left, "args") {
			columns++
		}
	}
	for name := range z.items(i, "name") {
		if text := string(z.text(name, "sval")); text == "<>" || text == "!=" { // that of NOT IN, too
			not = !not
		}
	}
	kind := string(z.raw(i, "kind"))
	switch kind {
	case "AEXPR_BETWEEN_SYM", "AEXPR_NOT_BETWEEN_SYM":
		return alternatives(2, 2, around).plus(alternatives(2, 2, around)) // the most of both
	case "AEXPR_BETWEEN", "AEXPR_NOT_BETWEEN":
		if not != (kind == "AEXPR_NOT_BETWEEN") {
			return alternatives(2, 1, around)
		}
		return clauses{parts: 2}
	case "AEXPR_IN":
		n := 0
		for item := range z.items(z.child(i, "rexpr"), "items") {
			if columns > 0 || !z.is(item, "A_Const") && !z.is(item, "ParamRef") { // constants become one array
				n++
			}
		}
		switch {
		case n == 0:
			return clauses{parts: 1}
		case not:
			return clauses{parts: n + 1, arms: n * columns, within: capped(n * columns * (around + 1))} // no index is for what differs
		}
		return alternatives(n+1, max(columns, 1), around)
	}
	if columns > 0 && not {
		return clauses{parts: 1, arms: columns, within: capped(columns * (around + 1))}
	}
	return clauses{parts: max(columns, 1)}
}
