package classify

import (
	"bytes"
	_ "embed" // the tables below
	"fmt"
	"slices"
	"sync"
)

// Which columns of the server's own relations and which settings may be read is
// a person's decision, column by column and name by name, for PostgreSQL 15 to
// 18. `make pg-tables` finds what has no row yet. What has none when a statement
// comes is a secret.
var (
	//go:embed data/catalog.tsv
	catalogTSV string
	//go:embed data/settings.tsv
	settingsTSV string
)

// Verdicts of both tables.
const (
	verdictSafe   = "safe"
	verdictSecret = "secret"
)

// A catalogRelation is a table or view of the server's own.
type catalogRelation struct {
	name     string          // with its schema
	secret   map[string]bool // every column: whether it is one
	secrets  int
	versions map[string]versions // of every column
}

// whole reports whether all columns are secrets, so that the relation is one:
// then even its number of rows is not told.
func (r *catalogRelation) whole() bool { return r.secrets == len(r.secret) }

// catalogTables are both tables as they are looked up. A column is a secret on
// every server if it is on one.
var catalogTables = sync.OnceValues(func() (c struct {
	relations map[string]*catalogRelation
	settings  map[string]bool // those that anybody may see
}, err error) {
	rows, err := tsv(catalogTSV, 5) // relation, column, verdict, reason, versions
	if err != nil {
		return c, err
	}
	c.relations, c.settings = map[string]*catalogRelation{}, map[string]bool{}
	for _, row := range rows {
		r := c.relations[row[0]]
		if r == nil {
			r = &catalogRelation{name: row[0], secret: map[string]bool{}, versions: map[string]versions{}}
			c.relations[row[0]] = r
		}
		if row[2] != verdictSafe && row[2] != verdictSecret {
			return c, fmt.Errorf("embedded table of the catalogue: %v", row)
		}
		if r.versions[row[1]], err = parseVersions(row[4]); err != nil {
			return c, err
		}
		if r.secret[row[1]] = row[2] == verdictSecret; r.secret[row[1]] {
			r.secrets++
		}
	}
	if rows, err = tsv(settingsTSV, 4); err != nil { // name, verdict, reason, versions
		return c, err
	}
	for _, row := range rows {
		if row[1] != verdictSafe && row[1] != verdictSecret {
			return c, fmt.Errorf("embedded table of settings: %v", row)
		}
		c.settings[row[0]] = row[1] == verdictSafe
	}
	return c, nil
})

// secretSetting tells the settings that nobody has found harmless: also ALL and
// those with a dot in their name, in which applications keep secrets.
func (t *tables) secretSetting(name string) bool { return !t.settings[asciiLower(name)] }

// systemColumns are those that every table has.
var systemColumns = []string{"tableoid", "ctid", "xmin", "xmax", "cmin", "cmax"}

// A catalogRead is a relation of the server's own that a statement reads.
type catalogRead struct {
	relation *catalogRelation
	at       int32  // its RangeVar
	query    int32  // the statement whose FROM it stands in: below it the columns can be named
	name     string // what qualifies its columns
	renamed  bool   // its columns have other names here
}

// readsCatalog raises the signal where a relation is a secret as a whole, and
// remembers others: what is read of them is known when all of the statement is.
// Unqualified tells that the text names no schema.
func (w *walk) readsCatalog(schema, name []byte, unqualified bool, i int32) {
	if unqualified && w.t.engine.ServerMajor == 0 && w.t.catalog["pg_catalog."+string(name)] != nil {
		schema = []byte("pg_catalog") // some server has it
	}
	w.buf = append(append(append(w.buf[:0], schema...), '.'), name...)
	r := w.t.catalog[string(w.buf)]
	switch {
	case r == nil && !isSystemSchema(schema) && string(name) != "pg_stat_statements": // which lives where its extension was put
	case r == nil || r.whole():
		w.raise(SignalSecretCatalogRead, string(w.buf), i)
	default:
		read := catalogRead{relation: r, at: i, query: w.query(i), name: string(name)}
		if alias := w.child(i, "alias"); alias >= 0 {
			read.name, read.renamed = string(w.text(alias, "aliasname")), w.has(alias, "colnames")
		}
		w.catalogReads = append(w.catalogReads, read)
		w.defines = true
	}
}

// query gives the statement that a node belongs to: names in it are looked up
// there first, and then in the statements around that one.
func (w *walk) query(i int32) int32 {
	for i = w.e[i].parent; i > 0; i = w.e[i].parent {
		if w.steps++; w.isQuery(i) {
			return i
		}
	}
	w.bounded()
	return 0
}

func (w *walk) isQuery(i int32) bool {
	m := w.e[i].msg
	if m == 0 || m == listEntry {
		return false
	}
	switch w.t.schema.messages[m].name {
	case "SelectStmt", "InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt":
		return true
	}
	return false
}

// judgeCatalogReads raises the signal for every relation of which a secret
// column may be read.
func (w *walk) judgeCatalogReads() {
	for k := range w.catalogReads {
		r := &w.catalogReads[k]
		if r.relation.secrets > 0 {
			w.judgePlace(r)
			for _, star := range w.starAt {
				if w.query(star) == r.query {
					w.raise(SignalSecretCatalogRead, r.relation.name, star)
				}
			}
		}
		w.steps += len(w.columnAt)
		w.bounded()
		for _, ref := range w.columnAt {
			if r.query <= ref && ref < w.e[r.query].next {
				w.judgeColumn(r, ref)
			}
		}
	}
}

// judgePlace sees what reads columns without naming them: a list of names or a
// join that renames them or compares those of one name, COPY, and RETURNING,
// which can name a row in ways that only newer servers know.
func (w *walk) judgePlace(r *catalogRead) {
	secret := r.renamed
	for i := w.e[r.at].parent; i >= 0 && !secret; i = w.e[i].parent {
		switch {
		case w.is(i, "JoinExpr"):
			secret = w.child(i, "alias") >= 0 || w.has(i, "isNatural")
			for name := range w.items(i, "usingClause") {
				secret = secret || r.relation.secret[string(w.text(name, "sval"))]
			}
			continue
		case w.is(i, "CopyStmt"):
			secret = !w.has(i, "attlist")
			for name := range w.items(i, "attlist") {
				secret = secret || r.relation.hides(w.text(name, "sval"))
			}
		case w.is(i, "SelectStmt"):
		default:
			secret = w.e[r.at].parent == i && w.has(i, "returningList")
		}
		if w.isQuery(i) {
			break
		}
	}
	if secret {
		w.raise(SignalSecretCatalogRead, r.relation.name, r.at)
	}
}

// hides reports whether a column of the relation is a secret, or none that
// anybody has looked at.
func (r *catalogRelation) hides(column []byte) bool {
	secret, known := r.secret[string(column)]
	return secret || !known && !slices.Contains(systemColumns, string(column))
}

// judgeColumn judges one ColumnRef below a relation's statement.
func (w *walk) judgeColumn(r *catalogRead, ref int32) {
	n, qualifier, last := 0, int32(-1), int32(-1)
	for f := range w.items(ref, "fields") {
		n, qualifier, last = n+1, last, f
	}
	if n == 1 {
		// A column of this or another relation, or this one's whole row.
		name := w.text(last, "sval")
		if r.relation.secret[string(name)] || r.relation.secrets > 0 && string(name) == r.name {
			w.raise(SignalSecretCatalogRead, r.relation.name+"."+string(name), ref)
		}
		return
	}
	// With a schema in front PostgreSQL looks for the relation itself, and passes
	// over all that is only called so.
	if string(w.text(qualifier, "sval")) != r.name || n == 2 && w.hidden(r, ref) {
		return
	}
	if !w.is(last, "String") { // a star
		if r.relation.secrets > 0 {
			w.raise(SignalSecretCatalogRead, r.relation.name, ref)
		}
		return
	}
	if name := w.text(last, "sval"); r.relation.hides(name) && !r.renamed {
		w.raise(SignalSecretCatalogRead, r.relation.name+"."+string(name), ref)
	}
}

// hidden reports whether a qualifier means something else than the relation
// because a statement between has an item of that name in its FROM.
func (w *walk) hidden(r *catalogRead, ref int32) bool {
	for inside, q := ref, w.query(ref); q != r.query; inside, q = q, w.query(q) {
		for w.owner(inside) != q {
			inside = w.owner(inside)
		}
		if w.is(q, "SelectStmt") && w.seesFrom(inside) && w.hasItem(q, r.name) {
			return true
		}
	}
	return false
}

// seesFrom reports whether a part of a SELECT sees its FROM, whole. What stands
// in FROM itself may not, and what WITH holds never does.
func (w *walk) seesFrom(part int32) bool {
	if w.e[part].parent >= 0 && w.e[w.e[part].parent].msg == listEntry {
		part = w.e[part].parent
	}
	switch w.fieldName(part) {
	case "targetList", "whereClause", "groupClause", "havingClause", "sortClause", "distinctClause", "windowClause":
		return true
	}
	return false
}

// hasItem reports whether a SELECT has an item of this name in its FROM that no
// alias of a join hides.
func (w *walk) hasItem(query int32, name string) bool {
	from := w.child(query, "fromClause")
	if from < 0 {
		return false
	}
	for i := from + 1; i < w.e[from].next; i++ {
		w.steps++
		var item int32
		switch {
		case w.isQuery(i):
			i = w.e[i].next - 1 // has a FROM of its own
			continue
		case w.is(i, "RangeVar") && w.child(i, "alias") < 0 && bytes.Equal(w.text(i, "relname"), []byte(name)):
			item = i
		case w.is(i, "Alias") && w.fieldName(i) == "alias" && bytes.Equal(w.text(i, "aliasname"), []byte(name)):
			item = w.owner(i)
		default:
			continue
		}
		covered := false
		for join := w.owner(item); join != query; join = w.owner(join) {
			covered = covered || w.is(join, "JoinExpr") && w.child(join, "alias") >= 0
		}
		if !covered {
			return true
		}
	}
	w.bounded()
	return false
}

// judgeSettingArgument judges what set_config tells of a setting: with no value
// it goes back to its default and the answer is that default.
func (w *walk) judgeSettingArgument(f *function, call int32) {
	setting, ok := w.argumentText(call, 0)
	if ok && !w.t.secretSetting(setting) {
		return
	}
	n := 0
	for value := range w.items(call, "args") {
		if n++; n != 2 {
			continue
		}
		if w.is(value, "TypeCast") {
			value = w.child(value, "arg")
		}
		if w.is(value, "ParamRef") || w.is(value, "A_Const") && !w.has(value, "isnull") {
			return
		}
	}
	w.raise(SignalSecretCatalogRead, f.name, call)
}
