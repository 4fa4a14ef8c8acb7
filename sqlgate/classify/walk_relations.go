package classify

import (
	"bytes"
	"slices"
)

// Schemas whose relations are the server's own.
func isSystemSchema(schema []byte) bool {
	return string(schema) == "pg_catalog" || string(schema) == "information_schema" || isToast(schema)
}

// isToast tells the schemas that hold the long values of tables.
func isToast(schema []byte) bool { return bytes.HasPrefix(schema, []byte("pg_toast")) }

// resolve gives the schema an unqualified relation is looked up in.
func (w *walk) resolve(schema, name []byte) []byte {
	switch {
	case len(schema) != 0:
		return schema
	case w.t.builtins.relations[string(name)]:
		return []byte("pg_catalog")
	}
	return []byte(w.t.searchPath)
}

// relation reads a RangeVar. A temporary one that is being made lives in the
// session's own schema.
func (w *walk) relation(i int32) (schema, name []byte) {
	schema, name = w.text(i, "schemaname"), w.text(i, "relname")
	if string(w.raw(i, "relpersistence")) == "t" {
		w.flags.addWord(FlagTemporary)
		if len(schema) == 0 {
			return []byte("pg_temp"), name
		}
	}
	return schema, name
}

// onRangeVar records a relation as the field it stands in says.
func onRangeVar(w *walk, i int32) {
	schema, name := w.relation(i)
	if alias := w.child(i, "alias"); alias >= 0 && w.has(alias, "colnames") {
		w.relabels = true
	}
	switch w.t.schema.fields[w.e[i].field].act {
	case actAlias, actHandled:
	case actTarget:
		if len(schema) == 0 && w.isElement(i) {
			schema = w.newSchema
		}
		w.writes(schema, name, i)
		w.column(schema, name, nil)
	default:
		if len(schema) == 0 && w.ctes.visible(name) {
			w.defines = true
			return
		}
		w.reads(schema, name, i)
	}
}

// reads records a relation that is read.
func (w *walk) reads(schema, name []byte, i int32) {
	unqualified := len(schema) == 0
	if len(schema) == 0 && w.newSchema != nil {
		w.reads(w.newSchema, name, i)
	}
	schema = w.resolve(schema, name)
	w.readsCatalog(schema, name, unqualified, i)
	w.buf = append(append(append(w.buf[:0], schema...), '.'), name...)
	w.read.add(w.buf)
}

// writes records a relation that is written or changed.
func (w *walk) writes(schema, name []byte, i int32) {
	if len(schema) == 0 && w.newSchema != nil {
		w.writes(w.newSchema, name, i)
	}
	schema = w.resolve(schema, name)
	w.buf = append(append(append(w.buf[:0], schema...), '.'), name...)
	w.written.add(w.buf)
	if !isSystemSchema(schema) {
		return
	}
	w.raise(SignalSystemCatalogWrite, string(w.buf), i)
	if w.is(w.owner(i), "InsertStmt") && w.has(w.owner(i), "returningList") {
		w.readsCatalog(schema, name, false, i)
	}
	if string(schema) == "pg_catalog" && string(name) == "pg_settings" { // its rule is a SET
		w.raise(SignalSessionChange, "pg_catalog.pg_settings", i)
		w.raise(SignalIdentitySwitch, "pg_catalog.pg_settings", i)
	}
}

// column records a written column, or all of them for a nil name.
func (w *walk) column(schema, name, column []byte) {
	if len(schema) == 0 && w.newSchema != nil {
		w.column(w.newSchema, name, column)
	}
	schema = w.resolve(schema, name)
	w.buf = append(append(append(append(w.buf[:0], schema...), '.'), name...), '.')
	table := len(w.buf)
	if column == nil {
		column = []byte("*")
	}
	w.buf = append(w.buf, column...)
	if !w.columns.contains(w.buf) {
		w.columns.addNew(string(w.buf))
		w.tableOf = append(w.tableOf, table)
	}
}

// widenColumns puts schema.table.* in the place of the columns of each table of which
// more are named than a list holds: tables have up to 1,600.
func (w *walk) widenColumns() bool {
	if len(w.columns.list) <= maxFacts {
		return false
	}
	columns := make(map[string]int)
	for k, name := range w.columns.list {
		columns[name[:w.tableOf[k]]]++
	}
	var widened nameSet
	for k, name := range w.columns.list {
		if table := name[:w.tableOf[k]]; columns[table] > maxFacts {
			name = table + "*"
		}
		widened.add([]byte(name))
	}
	fell := len(widened.list) < len(w.columns.list)
	w.columns = widened
	return fell
}

// columnsOf records the columns that the ResTargets of a list set; an empty
// list stands for all.
func (w *walk) columnsOf(schema, name []byte, node int32, list string) {
	none := true
	for i := range w.items(node, list) {
		if column := w.text(i, "name"); len(column) != 0 {
			none = false
			w.column(schema, name, column)
		}
	}
	if none {
		w.column(schema, name, nil)
	}
}

// named records a relation given as a list of names (DROP TABLE, COMMENT ON).
// The last drop names are not the relation's but of a part of it.
func (w *walk) named(list int32, drop int) {
	var parts [][]byte
	for i, end := list+1, w.e[list].next; i < end; i = w.e[i].next {
		if w.is(i, "String") {
			parts = append(parts, w.text(i, "sval"))
		}
	}
	if len(parts) <= drop {
		return
	}
	parts = parts[:len(parts)-drop]
	var schema []byte
	if len(parts) > 1 {
		schema = parts[len(parts)-2]
	}
	name := parts[len(parts)-1]
	w.writes(schema, name, list)
	w.column(schema, name, nil)
}

// scopes knows which CTE names hide a table at each place of the tree. A CTE
// is seen in the statement that its WITH belongs to: in the siblings after it
// and the body, or with RECURSIVE in all siblings. As entries lie in the order
// of the tree, that is one or two ranges of entries for each CTE.
type scopes struct {
	events []scopeEvent
	next   int
	open   map[string]int
}

type scopeEvent struct {
	at   int32
	name string
	by   int
}

// collectScopes makes the ranges of all WITH clauses, before the walk: parts of
// a statement lie before its WITH in the tree.
func (w *walk) collectScopes() {
	for _, i := range w.withs {
		w.flags.addWord(FlagCTE)
		stmt, end := w.e[i].parent, w.e[w.e[i].parent].next
		for cte := range w.items(i, "ctes") {
			name := string(w.text(cte, "ctename"))
			if w.has(i, "recursive") {
				w.ctes.add(name, stmt, end)
				continue
			}
			w.ctes.add(name, stmt, i)
			w.ctes.add(name, w.e[cte].next, end)
		}
	}
	slices.SortStableFunc(w.ctes.events, func(a, b scopeEvent) int { return int(a.at) - int(b.at) })
}

func (s *scopes) add(name string, from, to int32) {
	s.events = append(s.events, scopeEvent{from, name, 1}, scopeEvent{to, name, -1})
	if s.open == nil {
		s.open = map[string]int{}
	}
}

// advance moves to an entry; entries come in order.
func (s *scopes) advance(i int32) {
	for ; s.next < len(s.events) && s.events[s.next].at <= i; s.next++ {
		s.open[s.events[s.next].name] += s.events[s.next].by
	}
}

// visible reports whether a CTE of this name hides a table here.
func (s *scopes) visible(name []byte) bool { return s.open != nil && s.open[string(name)] > 0 }
