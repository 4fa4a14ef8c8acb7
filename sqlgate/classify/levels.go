package classify

import "writegate/commands/fault"

// PostgreSQL puts subqueries and CTEs in the place of each other while it plans
// (pull_up_subqueries, inline_cte) and looks at no interrupt meanwhile: its time grows
// faster than the square of the levels, 500 are 6 s and 1,000 minutes, and neither a
// time limit nor a cancel ends them. People nest a dozen, programs a few dozen.
const (
	maxQueryLevels   = 100
	maxQueriesCopied = 1_000 // that NOT MATERIALIZED makes of those that are written
)

// A queryLevel is a query, or a CTE with its query, and what comes of it in a plan.
type queryLevel struct {
	inner        []int32 // queries in it, and CTEs that it names
	state        levelState
	deep, copies int
}

type levelState int8

const (
	levelUnseen levelState = iota
	levelOpen
	levelDone
)

// A namedQuery is a CTE, and the WITH clause that it stands in.
type namedQuery struct{ cte, with int32 }

// refuseLevels bounds how deep queries come to lie in each other. Where there are many
// CTEs, a name stands for every one of that name that may be seen there by its place in
// a WITH clause.
func (w *walk) refuseLevels() *fault.Fault {
	if len(w.withs) == 0 && w.depth <= 2*maxQueryLevels { // each level is two objects of the tree and more
		return nil
	}
	levels := map[int32]*queryLevel{}
	ctes := map[string][]namedQuery{}
	copied, many := false, 0
	for _, with := range w.withs {
		for cte := range w.items(with, "ctes") {
			name := string(w.text(cte, "ctename"))
			ctes[name] = append(ctes[name], namedQuery{cte, with})
			many++
			copied = copied || string(w.raw(cte, "ctematerialized")) == "CTEMaterializeNever"
		}
	}
	var around []int32 // the levels that an entry lies in
	for i := int32(0); i < int32(len(w.e)); i++ {
		for len(around) > 0 && i >= w.e[around[len(around)-1]].next {
			around = around[:len(around)-1]
		}
		var level *queryLevel
		if len(around) > 0 {
			level = levels[around[len(around)-1]]
		}
		switch {
		case w.is(i, "CommonTableExpr"), w.is(i, "SelectStmt") && !continues[w.fieldName(i)]:
			if level != nil && w.is(i, "SelectStmt") {
				level.inner = append(level.inner, i)
			}
			levels[i], around = new(queryLevel), append(around, i)
		case level != nil && many <= maxQueryLevels:
			if cte := w.cteAt(i); cte >= 0 {
				level.inner = append(level.inner, cte)
			}
		case w.is(i, "RangeVar") && level != nil && len(ctes) > 0 && !w.has(i, "schemaname"):
			for _, q := range ctes[string(w.text(i, "relname"))] {
				w.steps++
				if i < q.with || i >= w.e[q.cte].next || w.has(q.with, "recursive") { // else it is a table: a CTE is seen behind itself
					level.inner = append(level.inner, q.cte)
				}
			}
			w.bounded()
		}
	}
	if len(levels) <= maxQueryLevels && !copied {
		return nil
	}
	deepest, most := 0, 0
	for i, level := range levels {
		switch {
		case w.measure(levels, i):
		case many <= maxQueryLevels:
			return nil // the server refuses a circle before it plans anything
		default:
			return refuseLimit(limitQueryLevels, -1, len(levels), maxQueryLevels)
		}
		deepest, most = max(deepest, level.deep), max(most, level.copies)
	}
	switch {
	case deepest > maxQueryLevels:
		return refuseLimit(limitQueryLevels, -1, deepest, maxQueryLevels)
	case copied && most > maxQueriesCopied:
		return refuseLimit(limitQueriesCopied, -1, most, maxQueriesCopied)
	}
	return nil
}

// continues are the fields of a SelectStmt that is no level of its own: a part of a
// UNION, and what a CTE stands for.
var continues = map[string]bool{"larg": true, "rarg": true, "ctequery": true}

// measure finds how deep a level is and how many queries it comes to. false is a text
// whose CTEs name each other in a circle, but for one that names itself.
func (w *walk) measure(levels map[int32]*queryLevel, at int32) bool {
	level := levels[at]
	switch level.state {
	case levelDone:
		return true
	case levelOpen:
		return false
	}
	level.state, level.deep, level.copies = levelOpen, 1, 1
	for _, i := range level.inner {
		if i <= at && at < w.e[i].next { // recursive, from inside of it
			continue
		}
		if !w.measure(levels, i) {
			return false
		}
		inner := levels[i]
		level.deep = max(level.deep, inner.deep+1)
		level.copies = min(level.copies+inner.copies, maxQueriesCopied+1)
	}
	level.state = levelDone
	return true
}
