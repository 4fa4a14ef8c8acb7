package classify

import "slices"

// The server looks for an index for each arm of each OR, and tries all that the query asks
// for besides with it each time (generate_bitmap_or_paths, build_paths_for_OR). Each OR that
// has one is compared with each other, arm by arm (choose_bitmap_and, predicate_implied_by;
// the dearest at 18, which makes arrays of them). It keeps what it tried, and looks at no
// interrupt.

// clauses are what the conditions of a query come to.
type clauses struct {
	parts      int  // joined by AND, on top
	ors        int  // of those
	arms       int  // of ORs, at any depth
	within     int  // clauses that arms are tried with and that stand inside of an OR
	pairs      int  // of ORs and arms that stand beside each other inside of an OR
	same       int  // of arms with those of their own OR, of ors
	equal      int  // sides of equalities on top: each is held against all that it may equal
	equalNodes int  // of the conditions that have them
	blind      bool // one comparison that no index serves (<>): as an arm it is tried with nothing
}

func (c clauses) plus(d clauses) clauses {
	return clauses{capped(c.parts + d.parts), capped(c.ors + d.ors), capped(c.arms + d.arms), capped(c.within + d.within), capped(c.pairs + d.pairs), min(c.same+d.same, nodesUnbounded<<30), capped(c.equal + d.equal), capped(c.equalNodes + d.equalNodes), false}
}

func (c clauses) most(d clauses) clauses {
	return clauses{max(c.parts, d.parts), max(c.ors, d.ors), max(c.arms, d.arms), max(c.within, d.within), max(c.pairs, d.pairs), min(c.same, d.same), max(c.equal, d.equal), max(c.equalNodes, d.equalNodes), false}
}

// boundClauses holds what the conditions of a query come to against the bounds: of one
// that stands around a set operation, in each of its queries.
func (z *sizing) boundClauses(sees *sight) {
	queries := max(sees.arms, 1)
	z.bound(limitConditions, sees.clauses.parts, maxConditions)
	z.bound(limitEqualNodes, capped(capped(sees.clauses.equal*sees.clauses.equalNodes)*queries), maxEqualNodes)
	c := sees.indexed()
	z.bound(limitAlternatives, capped(capped(c.within+capped(c.arms*c.parts))*queries), maxAlternatives)
	z.bound(limitAlternativePairs, capped(c.together()*queries), maxAlternativePairs)
}

// An orCount is how many ORs begin with a column, and what arms they have.
type orCount struct{ ors, arms int }

func (z *sizing) countOR(i int32, arms int) {
	column := z.columnOf(i)
	n := z.orsOf[column]
	z.orsOf[column] = orCount{n.ors + 1, capped(n.arms + arms)}
}

// indexedColumns is how many columns of a query's tables have an index, at the most that
// is reckoned with: ORs over others are tried with nothing.
const indexedColumns = 16

// indexed leaves the ORs over the columns that have most of them, and most arms, where
// all are columns of tables: those of a query may be one column under many names.
func (s *sight) indexed() clauses {
	c := s.clauses
	if len(s.orsOf) <= indexedColumns || len(s.items) > 0 || s.others {
		return c
	}
	var ors, arms []int
	for _, n := range s.orsOf {
		ors, arms = append(ors, n.ors), append(arms, n.arms)
	}
	share := func(counts []int) float64 {
		slices.Sort(counts)
		most, all := 0, 1
		for i, n := range counts {
			if all += n; i >= len(counts)-indexedColumns {
				most += n
			}
		}
		return min(1, float64(most+1)/float64(all))
	}
	ofORs, ofArms := share(ors), share(arms)
	c.ors, c.arms = int(float64(c.ors)*ofORs)+1, int(float64(c.arms)*ofArms)+1
	c.within, c.same = int(float64(c.within)*ofArms)+1, int(float64(c.same)*ofArms*ofArms)
	return c
}

// columnOf is the column that a comparison begins with; "" of anything else.
func (z *sizing) columnOf(i int32) string {
	for z.is(i, "BoolExpr") {
		next := int32(-1)
		for arg := range z.items(i, "args") {
			next = arg
			break
		}
		i = next
	}
	ref := z.child(i, "lexpr")
	if z.is(i, "NullTest") {
		ref = z.child(i, "arg")
	}
	name := ""
	if z.is(ref, "ColumnRef") {
		for f := range z.items(ref, "fields") {
			name = string(z.scalar(f))
		}
	}
	return name
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
		return z.comparison(i, not, top, around)
	}
	if z.is(i, "SubLink") { // each column of a row is compared with one of the query's
		columns := max(z.columnsOfRow(z.child(i, "testexpr")), 1)
		return clauses{parts: columns, equal: 2 * (columns - 1)}
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
		if c.blind {
			all.blind = true
			continue
		}
		all.arms, all.within, all.pairs = capped(all.arms+1+c.arms), capped(all.within+around+c.parts+c.within), capped(all.pairs+c.together())
	}
	if all.parts = 1; !all.blind { // else it comes to no path
		all.ors, all.same = 1, all.arms*all.arms
	}
	all.blind = false
	z.countOR(i, all.arms)
	return all
}

// columnsOfRow is how many columns a row has that is written out; 0 for what is none.
func (z *sizing) columnsOfRow(i int32) (columns int) {
	if !z.is(i, "RowExpr") {
		return 0
	}
	for arg := range z.items(i, "args") {
		if z.steps++; z.endsInStar(arg) {
			columns = capped(columns + z.widest)
		} else {
			columns++
		}
	}
	return columns
}

// comparison is clausesOf an operator: BETWEEN, IN and rows are several.
func (z *sizing) comparison(i int32, not, top bool, around int) (c clauses) {
	columns := z.columnsOfRow(z.child(i, "lexpr"))
	equal := false
	for name := range z.items(i, "name") {
		switch string(z.text(name, "sval")) {
		case "<>", "!=": // that of NOT IN, too
			not, equal = !not, true
		case "=":
			equal = true
		}
	}
	kind := string(z.raw(i, "kind"))
	defer func() {
		if c.ors > 0 {
			z.countOR(i, c.arms)
		}
	}()
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
		case n <= 1 && !not && top && (n == 0 || columns > 0): // of one constant, or of one row
			if n == 1 {
				return clauses{parts: columns, equal: 2 * columns}
			}
			return clauses{parts: 1, equal: 2 * max(columns, 1)}
		case n == 0:
			return clauses{parts: 1}
		case not:
			return clauses{parts: n + 1}
		}
		return alternatives(n+1, max(columns, 1), around)
	}
	if not && (columns > 0 || equal) {
		return clauses{parts: 1, blind: columns == 0}
	}
	if top && equal && !not {
		return clauses{parts: max(columns, 1), equal: 2 * max(columns, 1)}
	}
	return clauses{parts: max(columns, 1)}
}
