package classify

import (
	"slices"
	"strconv"
	"strings"

	"writegate/commands/fault"
)

// PostgreSQL copies expressions: a column of a subquery is put wherever the query around
// names it (pull_up_subqueries; subquery_push_qual for a query that stays one), BETWEEN and
// IN write their left side several times, and (x).* writes x for each column. A copy may be
// copied again: two dozen names come to gigabytes, and neither a time limit nor a cancel is
// looked at meanwhile. What a text comes to is estimated here, from above.

// maxCopiedNodes bounds the nodes of expressions that are made of a text beside those that
// are written. A million of them take a second to ten, and a gigabyte.
const maxCopiedNodes = 250_000

const (
	fewEntries       = 100    // no smaller tree comes to maxCopiedNodes
	columnsOfUnknown = 100    // that (x).* stands for where the text doesn't tell
	columnsOfTable   = 33     // of which a join makes two in its turn
	nodesOfAmplified = 10_000 // of what becomes a constant of any size
	nodesOfView      = 3_000  // of a view of the server's own, but for
	nodesOfTypes     = 15_000 // two of information_schema
	viewsOfSchema    = 13     // relations of a view of information_schema
	nodesOfCatalog   = 50     // of a column of one of the server's own views
	bytesOfNode      = 100    // of a constant count as one
	setsOfOne        = 4      // grouping sets: those that are written differ more than those of a CUBE
	nodesUnbounded   = 1 << 30
	maxResultColumns = 1664 // MaxTupleAttributeNumber, at which the server itself looks when all are made
)

// What grows with the square of a number in one query is bounded too.
const (
	maxJoined           = 150 // relations, with those of subqueries that are put into it
	mostSearched        = 11  // parts of a list that are joined in every order (geqo_threshold)
	collapsed           = 8   // of relations that are put into one (from_collapse_limit, join_collapse_limit)
	maxWindows          = 400 // different ones of a text
	maxLookups          = 20_000_000
	maxAlternatives     = 1_500_000
	maxAggregates       = 3_000
	maxConditions       = 5_000
	maxGroupingKeys     = 500_000_000 // sets, times keys, times keys, times keys
	maxKeys             = 3_000
	maxKeyNodes         = 144_000_000 // nodes of keys, times themselves, times sets: each is held against each, in seconds
	maxEqualNodes       = 144_000_000 // sides of equalities, times the nodes of their conditions: the same
	maxExplained        = 10_000_000  // of PostgreSQL 15 to 17, where no name is looked up by its hash: some seconds
	copiesOfArm         = 30          // arms of UNION ALL, times themselves, times columns, that take what a node does
	copiesOfQuery       = 8           // nodes of a query that are copied for one that is put into it, of which the same holds
	nodesOfPlan         = 100         // of a query in an expression, which is planned wherever that is copied to
	copiesOfWhole       = 2           // nodes of a query that is planned as a copy
	maxAlternativePairs = 20_000
	maxSorted           = 400  // aggregates of a query with DISTINCT or ORDER BY
	maxGroupingSets     = 4096 // of a text: the server looks at its bound for a query when all are made
)

// A sight is what the names of a query may stand for.
type sight struct {
	items   []sizedItem
	plain   int // a column of what is no query
	put     int // queries that may be put into it
	quals   int // nodes of the conditions of what stands in FROM
	whole   int // and of all of that
	joined  int // relations
	listed  int // parts of its list
	sorted  int
	calls   int  // of aggregates and window functions
	sets    int  // grouping sets
	keys    int  // that it is grouped, sorted and cut into windows by
	keyed   int  // nodes of those, but for what it is sorted by
	width   int  // columns of the items, about
	least   int  // and at least
	merged  bool // a join puts its merged columns first
	arms    int  // queries of set operations that are put into it
	clauses clauses
	orsOf   map[string]orCount // by the column of their first arm
	others  bool               // there are clauses of other queries among its own
	outside *sight
}

type sizedItem struct {
	name string // "" for the columns that a join merges
	*sized
}

// A sizing is one pass over a statement.
type sizing struct {
	*walk
	references map[int32]int  // to a CTE
	recursive  map[int32]bool // a CTE that names itself
	ctes       map[int32]*sized
	around     map[int32]*sight   // a CTE
	grouped    int                // grouping sets
	windows    map[string]bool    // that differ
	lookups    int                // columns that bare names are compared with
	negated    int                // nodes below each NOT
	asked      int                // nodes of queries in expressions
	varying    int                // what has been met that is no constant
	insql      int                // nodes of arguments of what the server writes in SQL
	orsOf      map[string]orCount // of the query whose condition is taken apart
	widest     int                // columns of what stands in FROM so far
	explains   bool               // it is an EXPLAIN, which makes the names of columns in FROM differ
	explained  int                // tens of those of each thing, times themselves, times themselves
	refused    *fault.Fault       // by another bound than the size
}

func (z *sizing) bound(limit string, got, most int) {
	if got > most && z.refused == nil {
		z.refused = refuseLimit(limit, -1, got, most)
	}
}

// refuseCopies bounds how much larger expressions become than they are written.
func (w *walk) refuseCopies() *fault.Fault {
	if len(w.e) < fewEntries {
		return nil
	}
	got, f := w.copiedNodes()
	if f == nil && got > maxCopiedNodes {
		f = refuseLimit(limitCopiedNodes, -1, got, maxCopiedNodes)
	}
	return f
}

func (w *walk) copiedNodes() (int, *fault.Fault) {
	z := &sizing{walk: w, references: map[int32]int{}, recursive: map[int32]bool{}, ctes: map[int32]*sized{}, around: map[int32]*sight{}, windows: map[string]bool{}}
	for stmt := range w.items(0, "stmts") {
		z.explains = w.is(w.child(stmt, "stmt"), "ExplainStmt")
	}
	for i := int32(0); i < int32(len(w.e)) && len(w.withs) > 0; i++ {
		if cte := z.cteAt(i); cte >= 0 && z.isRead(i) {
			z.references[cte]++
			z.recursive[cte] = z.recursive[cte] || cte < i && i < w.e[cte].next
		}
	}
	return z.size(0, nil).stays - len(w.e), z.refused
}

// isRead tells the name of what is read; the table that a statement writes, or a lock is
// on, is no CTE.
func (z *sizing) isRead(i int32) bool {
	switch z.fieldName(i) {
	case "relation":
		return !z.isQuery(z.owner(i))
	case "lockedRels", "rel":
		return false
	}
	return true
}

// column is what a name comes to: the largest of what it may stand for, or all that a
// star does.
func (z *sizing) column(ref int32, sees *sight) nodes {
	var names []string
	for f := range z.items(ref, "fields") {
		names = append(names, string(z.scalar(f))) // "" of a star
	}
	if len(names) == 0 {
		return each(1)
	}
	name, qualifiers := names[len(names)-1], names[:len(names)-1]
	n, all := each(1), nodes{}
	defer func() { z.bound(limitLookups, z.lookups, maxLookups) }()
	for ; sees != nil; sees = sees.outside {
		n, all = n.most(each(sees.plain)), all.plus(each(sees.plain*columnsOfUnknown))
		if len(qualifiers) == 0 {
			z.lookups = capped(z.lookups + sees.width)
		}
		for _, it := range sees.items {
			z.steps++
			meant, size := len(qualifiers) == 0 || slices.Contains(qualifiers, it.name), nodes{}
			switch {
			case len(name) == 0 && meant:
				all = all.plus(z.row(it.sized))
				continue
			case meant:
				size = z.of(it.sized, name)
			}
			if it.name == name || size == (nodes{}) && meant && len(qualifiers) > 0 { // x, and x.f for f(x)
				size = z.row(it.sized)
			}
			n = n.most(size)
		}
		if len(name) == 0 && len(qualifiers) == 0 {
			break
		}
	}
	z.bounded()
	if len(name) == 0 {
		return all
	}
	return n
}

// query is what a statement comes to, with the columns of its result.
func (z *sizing) query(stmt int32, outside *sight) *sized {
	z.bounded()
	sees, r := &sight{outside: outside}, &sized{}
	if stmt < 0 {
		return r
	}
	for cte := range z.items(z.child(stmt, "withClause"), "ctes") {
		z.around[cte] = outside
	}
	if left := z.child(stmt, "larg"); left >= 0 {
		r = z.united(z.query(left, sees), z.query(z.child(stmt, "rarg"), sees))
		sees.joined = 1
		if z.child(z.owner(stmt), "larg") != stmt && z.child(z.owner(stmt), "rarg") != stmt { // each arm has the columns of all
			r.total = capped(r.total + capped(r.arms*r.arms)*max(r.width, 1)/copiesOfArm)
		}
	}
	for _, field := range fromFields {
		if i := z.child(stmt, field); i >= 0 {
			r.total = capped(r.total + z.from(i, sees))
			parts := 0
			for range z.items(stmt, field) {
				parts++
			}
			sees.listed += max(parts, 1)
		}
	}
	targets, wheres, read, asked := 0, 0, r.total, z.asked // so far
	for i := stmt + 1; i < z.e[stmt].next; i = z.e[i].next {
		switch field := z.fieldName(i); {
		case field == "withClause" || field == "larg" || field == "rarg" || slices.Contains(fromFields, field):
		case field == "targetList" && z.is(stmt, "SelectStmt"), field == "returningList":
			for target := i + 1; target < z.e[i].next; target = z.e[target].next {
				n := z.target(r, target, sees).stays
				r.total, targets = capped(r.total+n), capped(targets+n)
			}
		case field == "groupClause":
			n := z.size(i, sees).stays
			r.total, sees.keyed = capped(r.total+n), capped(sees.keyed+n)
		case field == "whereClause", field == "havingClause", field == "joinCondition":
			n := z.condition(i, sees)
			r.total, wheres = capped(r.total+n), capped(wheres+n)
		case field == "valuesLists":
			z.values(r, i, sees)
			r.count = len(r.columns)
		default:
			r.total = capped(r.total + z.size(i, sees).stays)
		}
	}
	own := max(r.total-read-(z.asked-asked), 0)
	r.total = capped(r.total + capped(sees.put*(own+sees.quals))/copiesOfQuery)
	r.whole, r.quals = capped(r.whole+own+sees.whole), capped(sees.quals+wheres)
	for cte := range z.items(z.child(stmt, "withClause"), "ctes") {
		if !z.inlined(cte) || z.references[cte] == 0 { // one that nobody reads is analysed, too
			r.total = capped(r.total + z.cte(cte).total)
		}
	}
	if z.child(stmt, "larg") < 0 {
		r.arms = sees.arms
	}
	z.bound(limitJoined, sees.joined, maxJoined)
	r.listed, r.ways = sees.listed, ways(sees.listed, sees.joined)
	r.total = capped(r.total + r.ways)
	z.bound(limitSorted, sees.sorted, maxSorted)
	grouped := z.keys(stmt, "groupClause")
	sees.keys += grouped + z.keys(stmt, "sortClause") + z.keys(stmt, "distinctClause")
	z.bound(limitKeys, sees.keys, maxKeys)
	z.bound(limitGroupingKeys, capped(capped(capped(grouped*grouped)*grouped)*sees.sets), maxGroupingKeys)
	if z.has(stmt, "distinctClause") {
		sees.keyed = capped(sees.keyed + targets)
	}
	z.bound(limitKeyNodes, capped(capped(sees.keyed*sees.keyed)*max(sees.sets, 1)), maxKeyNodes)
	z.bound(limitAggregates, sees.calls, maxAggregates)
	z.boundClauses(sees)
	r.joined, r.clauses = max(sees.joined, 1), r.clauses.plus(sees.clauses)
	if !z.is(stmt, "SelectStmt") || z.child(stmt, "limitCount") >= 0 || z.child(stmt, "limitOffset") >= 0 {
		return r.kept()
	}
	if r.alone = z.stays(stmt); r.alone {
		for i := range r.columns {
			r.columns[i].size.stays = 1
		}
		r.rest.stays, r.joined, r.ways = min(r.rest.stays, 1), 1, 0
	}
	return r
}

// ways is what the ways to join relations come to, all of which stay while a text is
// planned. Every order is tried of a few, which are the parts of a list, or groups of those
// that JOIN names: where one column of each equals the others, on two indexes, 3^n pairs
// take 4 kB each, and most joins far less. Of many there are fewer orders, and what is known
// of each grows with their number: a 16th of a kB for the cube.
func ways(listed, joined int) int {
	group := func(n int) int {
		pairs := 1
		for range n {
			pairs *= 3
		}
		return pairs / 2
	}
	together := max(listed, min(joined, collapsed))
	if together > mostSearched {
		together = collapsed
	}
	return capped(max(group(together)+joined/collapsed*group(collapsed), joined*joined*joined/16))
}

// within is what a query in FROM comes to: its relations are joined with those around. One
// that stays is copied as a whole to be planned (set_subquery_pathlist), and for one that does
// not, all of the query around (pull_up_simple_subquery).
func (z *sizing) within(s *sized, sees *sight) int {
	sees.whole = capped(sees.whole + s.whole)
	if s.alone {
		return capped(s.around() + s.whole/copiesOfWhole)
	}
	sees.put++
	sees.quals = capped(sees.quals + s.quals)
	return s.around()
}

// around is what a query comes to in the one that it is put into, which joins its relations
// with others. One of a longer list is joined by itself.
func (s *sized) around() int {
	if s.listed > collapsed {
		return s.total
	}
	return max(s.total-s.ways, 0)
}

// stays tells a query that stays one in the query around (is_simple_subquery), whose
// conditions are pushed into it.
func (z *sizing) stays(stmt int32) bool {
	for _, field := range []string{"groupClause", "havingClause", "distinctClause", "sortClause"} {
		if z.has(stmt, field) {
			return true
		}
	}
	list := z.child(stmt, "targetList")
	for i := list + 1; list >= 0 && i < z.e[list].next; i++ {
		z.steps++
		switch {
		case z.isQuery(i):
			i = z.e[i].next - 1
		case z.is(i, "FuncCall") && z.aggregateKind(i) != 0:
			return true
		}
	}
	return false
}

// fromFields hold what the names of a statement see.
var fromFields = []string{"relation", "fromClause", "usingClause", "sourceRelation"}

// target adds a column of the result and gives what it comes to.
func (z *sizing) target(r *sized, target int32, sees *sight) nodes {
	r.count++
	r.width++
	value, name := z.child(target, "val"), z.raw(target, "name")
	n := z.size(value, sees)
	switch {
	case len(name) > 0:
		r.add(sizedColumn{string(name), n})
	case z.is(value, "A_Indirection") && z.endsInStar(value):
		columns := z.columnsOf(z.child(value, "arg"))
		r.width += columns
		r.rest = r.rest.most(nodes{n.stays/columns + 1, n.pushed/columns + 1})
	case z.endsInStar(value):
		_, qualifier, _ := z.star(value)
		r.rest = r.rest.most(each(sees.plain))
		if len(qualifier) == 0 {
			r.width += sees.width
		} else {
			wide := columnsOfTable
			for _, it := range sees.items {
				if z.steps++; it.name == string(qualifier) {
					wide = max(wide, it.width)
				}
			}
			r.width += wide
		}
		if len(qualifier) == 0 && !sees.merged {
			r.count += sees.least - 1
		}
		z.bound(limitColumns, r.count, maxResultColumns)
		if sees.merged { // their order is another one
			for _, it := range sees.items {
				r.rest = r.rest.most(z.most(it.sized))
			}
		}
		for _, it := range sees.items {
			if z.steps++; len(qualifier) == 0 || it.name == string(qualifier) {
				z.steps += indexSteps * len(it.columns)
				r.add(it.columns...)
				r.rest = r.rest.most(it.rest)
			}
			z.bounded()
		}
	case z.namedBySubquery(value): // which may be large itself
		r.rest = r.rest.most(n)
	default:
		r.add(sizedColumn{string(z.figure(value)), n})
	}
	return n
}

// namedBySubquery tells a value whose column has the name of one of a subquery's.
func (z *sizing) namedBySubquery(value int32) bool {
	for {
		z.steps++
		switch {
		case z.is(value, "TypeCast"), z.is(value, "CollateClause"), z.is(value, "A_Indirection"):
			value = z.child(value, "arg")
		case z.is(value, "CaseExpr"):
			value = z.child(value, "defresult")
		default:
			return z.is(value, "SubLink")
		}
	}
}

// values adds the columns of VALUES, each with the largest of its rows.
func (z *sizing) values(r *sized, list int32, sees *sight) {
	for row := list + 1; row < z.e[list].next; row = z.e[row].next {
		k := 0
		for value := range z.items(row, "items") {
			n := z.size(value, sees)
			if r.total = capped(r.total + n.stays); k == len(r.columns) {
				r.columns = append(r.columns, sizedColumn{name: "column" + strconv.Itoa(k+1)})
			}
			r.columns[k].size = r.columns[k].size.most(n)
			k++
		}
	}
}

// inlined tells whether a CTE is put where it is named (SS_process_ctes).
func (z *sizing) inlined(cte int32) bool {
	switch string(z.raw(cte, "ctematerialized")) {
	case "CTEMaterializeAlways":
		return false
	case "CTEMaterializeDefault":
		if z.references[cte] > 1 {
			return false
		}
	}
	return !z.recursive[cte] && z.is(z.child(cte, "ctequery"), "SelectStmt")
}

// cte is what one comes to where it is named.
func (z *sizing) cte(cte int32) *sized {
	if s := z.ctes[cte]; s != nil {
		return s
	}
	z.ctes[cte] = &sized{rest: each(1)} // for one that names itself
	s := z.query(z.child(cte, "ctequery"), z.around[cte])
	if !z.inlined(cte) {
		s = s.kept()
	}
	s = z.resized(s, cte, "aliascolnames")
	if z.child(cte, "search_clause") >= 0 || z.child(cte, "cycle_clause") >= 0 {
		s.rest = s.rest.most(each(1))
	}
	z.ctes[cte] = s
	return s
}

// from adds what a part of FROM has names for, and gives what it takes itself.
func (z *sizing) from(i int32, sees *sight) int {
	z.steps++
	start, total := len(sees.items), 0
	var s *sized
	switch {
	case i < 0:
		return 0
	case z.e[i].msg == listEntry:
		for j := i + 1; j < z.e[i].next; j = z.e[j].next {
			total = capped(total + z.from(j, sees))
		}
		return total
	case z.is(i, "RangeSubselect"):
		around := sees.outside
		if z.has(i, "lateral") {
			around = sees
		}
		s = z.query(z.child(i, "subquery"), around)
		total = z.within(s, sees)
		sees.joined += s.joined
		sees.clauses = sees.clauses.plus(s.clauses)
		sees.width += s.width
		sees.least += max(s.count, 1)
		sees.arms += s.arms
	case z.is(i, "RangeTableSample"):
		total = z.from(z.child(i, "relation"), sees)
		return capped(total + z.below(i, sees).stays)
	case z.is(i, "RangeVar"):
		cte := z.cteAt(i)
		if cte < 0 {
			sees.plain = max(sees.plain, 1)
			sees.joined++
			sees.width += columnsOfTable
			sees.least++
			r := z.catalogOf(z.text(i, "schemaname"), z.text(i, "relname"))
			if r == nil {
				return 1
			}
			sees.plain = nodesOfCatalog
			switch schema, name, _ := strings.Cut(r.name, "."); {
			case name == "element_types", name == "data_type_privileges":
				sees.joined += viewsOfSchema - 1
				return nodesOfTypes
			case schema == "information_schema":
				sees.joined += viewsOfSchema - 1
				return nodesOfView
			case strings.HasPrefix(name, "pg_stat"), slices.Contains(catalogViews, name):
				return nodesOfView
			}
			return 1
		}
		s = z.cte(cte)
		sees.width += s.width
		sees.least += max(s.count, 1)
		if sees.joined++; z.inlined(cte) {
			total = z.within(s, sees)
			sees.joined += s.joined - 1
			sees.clauses = sees.clauses.plus(s.clauses)
			sees.arms += s.arms
		}
	case z.is(i, "JoinExpr"):
		before := sees.width
		total = z.from(z.child(i, "larg"), sees)
		middle := len(sees.items)
		total = capped(total + z.from(z.child(i, "rarg"), sees))
		quals := z.condition(z.child(i, "quals"), sees)
		total, sees.whole, sees.quals = capped(total+quals), capped(sees.whole+quals), capped(sees.quals+quals)
		total = capped(total + (sees.width-before)/2) // it has all their columns, half a node each
		if z.has(i, "isNatural") {                    // and compares their names
			total = capped(total + (sees.width-before)*columnsOfTable/8)
		}
		sees.merged = sees.merged || z.has(i, "isNatural") || z.has(i, "usingClause")
		s = z.join(i, sees, start, middle)
		s.width = sees.width - before
		if total = capped(total + s.total); z.child(i, "alias") < 0 && string(z.raw(i, "jointype")) != "JOIN_FULL" {
			return total
		}
	default:
		sees.plain = max(sees.plain, 1)
		sees.joined++
		given := z.columnsGiven(i)
		sees.width += max(given, 1)
		sees.least += given
		size := 1
		if z.amplifies(i) { // pull_up_constant_function
			size = nodesOfAmplified
		}
		if size > 1 || given > 0 {
			sees.items = append(sees.items, sizedItem{string(z.nameOf(i)), &sized{rest: each(size), width: given, count: given}})
		}
		return z.below(i, sees).stays
	}
	alias := z.child(i, "alias")
	if alias >= 0 {
		s = z.resized(s, alias, "colnames")
	}
	sees.items = append(sees.items, sizedItem{string(z.nameOf(i)), s})
	if tens := s.width / 10; z.explains && tens > 0 {
		z.explained = capped(z.explained + tens*tens*tens)
		z.bound(limitExplained, z.explained, maxExplained)
	}
	return total
}

// catalogViews are views of pg_catalog that read several relations, beside pg_stat_….
var catalogViews = []string{"pg_seclabels", "pg_tables", "pg_views", "pg_matviews", "pg_indexes", "pg_sequences", "pg_rules", "pg_policies", "pg_publication_tables",
	"pg_roles", "pg_user", "pg_user_mappings", "pg_shadow", "pg_group", "pg_locks", "pg_prepared_xacts", "pg_replication_slots"}

// columnsGiven is how many columns the text gives to what is neither a relation nor a query.
func (z *sizing) columnsGiven(i int32) (n int) {
	for j := i + 1; j < z.e[i].next; j++ {
		z.steps++
		switch {
		case z.is(j, "ColumnDef"), z.is(j, "RangeTableFuncCol"), z.is(j, "JsonTableColumn"):
			n++
		case z.is(j, "FuncCall"): // each of ROWS FROM has a column, and unnest one for each array
			for range z.items(j, "args") {
				n++
			}
		}
	}
	return n
}

// join is what the alias of a join stands for, and the columns that a FULL JOIN merges;
// its total is what comparing the columns of USING takes.
func (z *sizing) join(i int32, sees *sight, start, middle int) *sized {
	items, j := sees.items[start:], &sized{}
	left, right := items[:middle-start], items[middle-start:]
	using, natural := z.has(i, "usingClause"), z.has(i, "isNatural")
	alias := z.child(i, "join_using_alias")
	if alias >= 0 || z.child(i, "alias") >= 0 {
		for _, it := range items {
			z.steps += len(it.columns)
			j.add(it.columns...)
			j.rest = j.rest.most(it.rest)
		}
		j.rest = j.rest.most(each(sees.plain))
		if natural || using { // the merged columns come first
			j.rest = j.rest.most(z.mostOf(items, (*sizing).most))
		}
		if alias >= 0 {
			sees.items = append(sees.items, sizedItem{string(z.raw(alias, "aliasname")), j})
		}
	}
	full := string(z.raw(i, "jointype")) == "JOIN_FULL"
	if natural {
		for _, it := range items {
			j.total = capped(j.total + z.row(it.sized).pushed)
		}
		sides := clauses{equal: 2, equalNodes: capped(j.total + 2)}
		if sees.plain > 0 {
			sides = clauses{equal: 2 * columnsOfTable, equalNodes: capped(j.total + 2*columnsOfTable)}
		}
		for _, it := range items {
			sides.equal += len(it.columns)
		}
		sees.clauses = sees.clauses.plus(sides)
		if full {
			j.rest = z.mostOf(left, (*sizing).most).plus(z.mostOf(right, (*sizing).most)).plus(each(1))
		}
	}
	for name := range z.items(i, "usingClause") {
		merged := string(z.scalar(name))
		named := func(z *sizing, s *sized) nodes { return z.of(s, merged) }
		both := z.mostOf(left, named).plus(z.mostOf(right, named)).plus(each(1))
		sees.clauses = sees.clauses.plus(clauses{equal: 2, equalNodes: both.pushed})
		if j.total = capped(j.total + both.pushed); full { // COALESCE of the two
			j.add(sizedColumn{merged, both})
		}
	}
	return j
}

// mostOf is the largest of items.
func (z *sizing) mostOf(items []sizedItem, size func(*sizing, *sized) nodes) nodes {
	n := nodes{}
	for _, it := range items {
		z.steps++
		n = n.most(size(z, it.sized))
	}
	return n
}
