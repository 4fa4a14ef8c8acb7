package classify

import (
	"bytes"
	"slices"
	"strconv"
)

// A row is what is known of the columns of a value.
type row struct {
	open      bool // a relation of the users' is in it: beside those that are known it may have any
	system    bool // it has those that every table has
	unordered bool // the order of its columns is not known here
	scalar    bool // the value is no row but its one column
	plain     bool // the columns of the users' in it are no rows
	placed    int  // of an open row: how many of the known columns stand in front of all others
	catalogs  []*catalogRelation
	columns   []column
	beside    []column         // that no star stands for
	byName    map[string]int32 // where the first column of a name stands, once more than a few were looked through
}

// A column has its name as it stands in the tree's JSON.
type column struct {
	name  []byte
	value int32 // the expression that it is, or -1
}

var openRow = &row{open: true}

// unknownRow is of what is not known, and is no relation of the users' either: a name
// behind its dot is a call.
var unknownRow = &row{}

// An item is what a name of FROM stands for.
type item struct {
	node    int32
	name    []byte // as it stands in the JSON; "" for none
	covered bool   // by the alias of a join: seen from inside of that alone
}

// Up to fewColumns a list is looked through name by name; beyond it an index is made,
// each entry of which takes as long as indexSteps.
const (
	fewColumns = 16
	indexSteps = 8
)

// mostColumns bounds what is kept of a row: joins of the largest relations.
const mostColumns = 1 << 16

// addItems adds what a node of FROM has a name for.
func (w *walk) addItems(all []item, node int32, covered bool) []item {
	if using := w.child(node, "join_using_alias"); using >= 0 {
		all = append(all, item{node: using, name: w.raw(using, "aliasname"), covered: covered})
	}
	return append(all, item{node: node, name: w.nameOf(node), covered: covered})
}

// nameOf gives the name of a node of FROM, or nil.
func (w *walk) nameOf(node int32) (name []byte) {
	alias := w.child(node, "alias")
	switch {
	case alias >= 0:
		return w.raw(alias, "aliasname")
	case w.is(node, "RangeVar"):
		return w.raw(node, "relname")
	case w.is(node, "RangeFunction"):
		for list := range w.items(node, "functions") {
			for call := range w.items(list, "items") {
				return w.figure(call)
			}
		}
	case w.is(node, "RangeTableFunc"):
		return []byte("xmltable")
	}
	return nil
}

// rowOf gives the columns of an item.
func (w *walk) rowOf(it item) *row {
	if r := w.rows[it.node]; r != nil {
		return r
	}
	if w.rows == nil {
		w.rows = map[int32]*row{}
	}
	w.rows[it.node] = unknownRow // for one that refers to itself
	r := w.makeRow(it)
	w.rows[it.node] = r
	return r
}

func (w *walk) makeRow(it item) *row {
	var r *row
	switch node := it.node; {
	case w.is(node, "Alias"): // of JOIN ... USING (...) AS
		r = &row{}
		for name := range w.items(w.owner(node), "usingClause") {
			r.columns = append(r.columns, column{w.scalar(name), -1})
		}
		return r
	case w.is(node, "CommonTableExpr"):
		return w.cteRow(node)
	case w.is(node, "RangeVar"):
		r = w.relationRow(node)
	case w.is(node, "RangeSubselect"):
		r = w.outputs(w.child(node, "subquery"))
	case w.is(node, "RangeFunction"):
		r = w.functionRow(it)
	case w.is(node, "RangeTableFunc"):
		r = &row{}
		for c := range w.items(node, "columns") {
			r.columns = append(r.columns, column{w.raw(c, "colname"), -1})
		}
	case w.is(node, "JoinExpr"):
		r = w.joinRow(node)
	default:
		return unknownRow
	}
	if alias := w.child(it.node, "alias"); alias >= 0 {
		r = w.renamed(r, alias, "colnames")
	}
	return r
}

// renamed gives columns the names of a list, in their order. Of columns whose order
// is not known here the new names are left.
func (w *walk) renamed(r *row, node int32, list string) *row {
	if !w.has(node, list) {
		return r
	}
	n, renamed := 0, &row{open: r.open, system: r.system, scalar: r.scalar, plain: r.plain, beside: r.beside}
	kept := len(r.columns)
	if r.open {
		kept = r.placed
	}
	if !r.unordered {
		renamed.columns = append(make([]column, 0, kept), r.columns[:kept]...)
	}
	others := r.open && len(r.columns) == kept && len(r.catalogs) == 0 // the names are of columns of the users'
	for name := range w.items(node, list) {
		switch {
		case n < len(renamed.columns):
			renamed.columns[n].name = w.scalar(name)
		case !others:
			renamed.columns = append(renamed.columns, column{w.scalar(name), -1})
		}
		n++
	}
	if renamed.placed = len(renamed.columns); r.open {
		renamed.placed = kept
		renamed.columns, renamed.catalogs = append(renamed.columns, r.columns[kept:]...), r.catalogs
	}
	return renamed
}

// relationRow gives the columns of a relation: of a CTE, of the server's own, or
// of one of the users'.
func (w *walk) relationRow(node int32) *row {
	schema, name := w.text(node, "schemaname"), w.text(node, "relname")
	if act := w.t.schema.fields[w.e[node].field].act; len(schema) == 0 && act != actTarget && act != actHandled {
		if cte := w.cteOf(node, name); cte >= 0 {
			return w.rowOf(item{node: cte})
		}
	}
	if r := w.catalogOf(schema, name); r != nil {
		return &row{catalogs: []*catalogRelation{r}, system: true, unordered: true}
	}
	return openRow
}

// catalogOf finds a relation of the server's own.
func (w *walk) catalogOf(schema, name []byte) *catalogRelation {
	if schema = w.resolve(schema, name); !isSystemSchema(schema) {
		return nil
	}
	return w.t.catalog[string(schema)+"."+string(name)]
}

// cteAt gives the CTE that an entry names, or -1.
func (w *walk) cteAt(i int32) int32 {
	if len(w.withs) == 0 || !w.is(i, "RangeVar") || w.has(i, "schemaname") {
		return -1
	}
	return w.cteOf(i, w.text(i, "relname"))
}

// cteOf finds the CTE that a name without a schema stands for, or -1: of the innermost
// statement around that has one.
func (w *walk) cteOf(node int32, name []byte) int32 {
	found, of := int32(-1), int32(-1)
	for _, with := range w.withs {
		w.steps++
		stmt := w.e[with].parent
		if stmt <= of || node < stmt || node >= w.e[stmt].next {
			continue
		}
		below := with < node && node < w.e[with].next && !w.has(with, "recursive")
		for cte := range w.items(with, "ctes") {
			if below && cte <= node && node < w.e[cte].next {
				break // a CTE sees those before it
			}
			if bytes.Equal(w.text(cte, "ctename"), name) {
				found, of = cte, stmt
			}
		}
	}
	w.bounded()
	return found
}

// cteRow gives the columns of a CTE.
func (w *walk) cteRow(cte int32) *row {
	r := w.renamed(w.outputs(w.child(cte, "ctequery")), cte, "aliascolnames")
	search, cycle := w.child(cte, "search_clause"), w.child(cte, "cycle_clause")
	if r.open || search < 0 && cycle < 0 {
		return r
	}
	more := *r
	for _, name := range [][]byte{w.raw(search, "search_seq_column"), w.raw(cycle, "cycle_mark_column"), w.raw(cycle, "cycle_path_column")} {
		if len(name) > 0 {
			more.beside = append(more.beside, column{name, -1})
		}
	}
	return &more
}

// outputs gives the columns of a statement's result. The first statement of a set
// operation names them; what they are, all of its statements decide together.
func (w *walk) outputs(stmt int32) *row {
	if first := stmt; w.child(stmt, "larg") >= 0 {
		for w.child(first, "larg") >= 0 {
			w.steps++
			first = w.child(first, "larg")
		}
		named := *w.outputs(first)
		for ; named.open && stmt != first; stmt = w.child(stmt, "larg") {
			r := w.outputs(w.child(stmt, "rarg"))
			named.plain = named.plain || !r.open || r.plain
		}
		named.columns = slices.Clone(named.columns)
		for i := range named.columns {
			named.columns[i].value = -1
		}
		return &named
	}
	r := &row{}
	for values := range w.items(stmt, "valuesLists") {
		for v := range w.items(values, "items") {
			r.columns = append(r.columns, column{strconv.AppendInt([]byte("column"), int64(len(r.columns)+1), 10), v})
		}
		return r
	}
	list := "targetList"
	if !w.is(stmt, "SelectStmt") {
		list = "returningList"
	}
	for target := range w.items(stmt, list) {
		value := w.child(target, "val")
		switch name := w.raw(target, "name"); {
		case len(name) > 0:
			r.columns = append(r.columns, column{name, value})
		case w.endsInStar(value):
			r = w.with(r, w.starRow(value))
		default:
			r.columns = append(r.columns, column{w.figure(value), value})
		}
	}
	return r
}

// with adds the columns of another row.
func (w *walk) with(r, more *row) *row {
	if len(r.columns)+len(more.columns) > mostColumns {
		return unknownRow
	}
	w.steps += len(r.columns) + len(more.columns)
	w.bounded()
	placed := r.placed
	if !r.open && !r.unordered {
		if placed = len(r.columns); !more.unordered {
			placed += more.placed
		}
	}
	return &row{
		open: r.open || more.open, plain: r.plain || more.plain, placed: placed,
		unordered: r.unordered || more.unordered, catalogs: append(r.catalogs[:len(r.catalogs):len(r.catalogs)], more.catalogs...),
		columns: append(r.columns[:len(r.columns):len(r.columns)], more.columns...),
	}
}

// endsInStar tells *, a.* and (x).*.
func (w *walk) endsInStar(i int32) bool {
	list := "fields"
	if w.is(i, "A_Indirection") {
		list = "indirection"
	} else if !w.is(i, "ColumnRef") {
		return false
	}
	star := false
	for part := range w.items(i, list) {
		star = w.is(part, "A_Star")
	}
	return star
}

// starRow gives the columns that a star stands for.
func (w *walk) starRow(i int32) *row {
	r := (*row)(nil)
	if w.is(i, "A_Indirection") {
		r = w.fields(i, 0, false)
	} else if n, qualifier, schema := w.star(i); n > 1 {
		for _, it := range w.resolveItem(i, qualifier) {
			if schema && (!w.is(it.node, "RangeVar") || w.child(it.node, "alias") >= 0) {
				continue
			}
			if of := w.rowOf(it); r == nil {
				r = of
			} else if len(r.columns) > 0 || len(of.columns) > 0 || !r.open || !of.open { // one of several is meant
				r = unknownRow
			}
		}
	} else if q := w.query(i); q > 0 {
		r = &row{}
		if target := w.child(q, "relation"); target >= 0 {
			r = w.with(r, w.fromRow(target))
		}
		for _, list := range []string{"fromClause", "usingClause"} {
			for from := range w.items(q, list) {
				r = w.with(r, w.fromRow(from))
			}
		}
	}
	if r == nil {
		return unknownRow
	}
	return r
}

// star reads a ColumnRef that ends in a star.
func (w *walk) star(i int32) (n int, qualifier []byte, schema bool) {
	for f := range w.items(i, "fields") {
		if n++; w.is(f, "String") {
			qualifier = w.scalar(f)
		}
	}
	return n, qualifier, n > 2
}

// whole is the value that the name of an item stands for.
func (r *row) whole() *row {
	if r.scalar {
		return nil
	}
	return r
}

// fromRow gives the columns that an item of FROM adds to a star.
func (w *walk) fromRow(node int32) *row {
	switch {
	case w.is(node, "RangeTableSample"):
		return w.fromRow(w.child(node, "relation"))
	case w.is(node, "JoinExpr") && w.child(node, "alias") < 0:
		return w.joinRow(node)
	}
	return w.rowOf(item{node: node, name: w.nameOf(node)})
}

// joinRow gives the columns of a join: those of USING once, and first.
func (w *walk) joinRow(node int32) *row {
	both := w.with(w.fromRow(w.child(node, "larg")), w.fromRow(w.child(node, "rarg")))
	both.unordered = both.unordered || w.has(node, "isNatural")
	if both.open {
		if both.unordered || w.has(node, "usingClause") {
			both.placed = 0
		}
		return both
	}
	if !w.has(node, "usingClause") {
		return both
	}
	r := &row{unordered: both.unordered, catalogs: both.catalogs}
	for name := range w.items(node, "usingClause") {
		r.columns = append(r.columns, column{w.scalar(name), -1})
	}
	merged := r.columns
	for _, c := range both.columns {
		if w.steps += len(merged); indexOf(merged, c.name) < 0 {
			r.columns = append(r.columns, c)
		}
	}
	w.bounded()
	return r
}

// indexOf gives the place of the first column of a name, or -1.
func indexOf(columns []column, name []byte) int {
	return slices.IndexFunc(columns, func(c column) bool { return bytes.Equal(c.name, name) })
}

// populated are the built-in functions that give rows of the type of an argument.
var populated = map[string]bool{
	"json_populate_record": true, "json_populate_recordset": true, "jsonb_populate_record": true, "jsonb_populate_recordset": true,
}

// functionRow gives the columns of functions in FROM. What one of the users' returns
// is not known.
func (w *walk) functionRow(it item) *row {
	r, several := &row{}, 0
	for range w.items(it.node, "functions") {
		several++
	}
	for list := range w.items(it.node, "functions") {
		call, definitions := int32(-1), int32(-1)
		for part := range w.items(list, "items") {
			if call < 0 {
				call = part
			} else if w.is(part, "List") {
				definitions = part
			}
		}
		from, field := definitions, "items"
		if from < 0 && w.has(it.node, "coldeflist") {
			from, field = it.node, "coldeflist"
		}
		if from >= 0 {
			for c := range w.items(from, field) {
				r.columns = append(r.columns, column{w.raw(c, "colname"), -1})
			}
			continue
		}
		name, copies := it.name, 1
		if several > 1 {
			name = w.figure(call)
		}
		if w.is(call, "FuncCall") {
			_, _, f := w.called(call)
			if f == nil {
				r.unordered = true
				continue
			}
			if populated[f.name] { // of its first argument's type; one of the users' is named as a type
				for arg := range w.items(call, "args") {
					if of := w.infer(arg, 0); of != nil {
						return of
					}
					break
				}
				return unknownRow
			}
			if results := w.t.builtins.results[f.name]; len(results) > 0 {
				for _, c := range results {
					r.columns = append(r.columns, column{[]byte(c), -1})
				}
				r.unordered, r.scalar = r.unordered || len(results) > 1, several == 1 && len(results) == 1
				continue
			}
			if c := w.callOf(call); f.name == "unnest" && w.isManyUnnests(call, &c) {
				name, copies = w.figure(call), c.args
			}
		}
		for range copies {
			r.columns = append(r.columns, column{name, call})
		}
		r.scalar = several == 1 && copies == 1
	}
	if w.has(it.node, "ordinality") {
		r.scalar = false
		r.columns = append(r.columns, column{[]byte("ordinality"), -1})
	}
	return r
}
