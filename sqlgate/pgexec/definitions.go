package pgexec

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Definitions are how the relations that a statement was judged by were defined then: those
// that it names, and those behind them. They are compared in the transaction that runs it,
// behind its Parse, which locks what it names, and before its Bind; so what comes between the
// reading of the catalogue and the statement ends the statement before it runs.
type Definitions struct {
	OIDs   []uint32
	Parts  uint8       // a bit for each of definedBy that is compared; the first always is
	Hashes string      // what comparingSQL shows of them
	Absent [][2]string // schema and name of relations that were not there
	Hidden bool        // the statement does not name all of them: some are locked only as it runs
}

// definedBy hashes the rows of the catalogues that define the relation c, in parts; all but
// the first are NULL for relations that have nothing of their kind. A row that was changed, or
// put in the place of another, has another xmin. What columns and keys there are is in the
// first; the others are triggers (those of foreign keys on both sides, too), rules, checks,
// policies, and the tables whose rows are among the relation's, with their triggers.
var definedBy = []string{
	hashed(`c.relname, c.relnamespace, c.relkind, c.relrowsecurity, c.relispartition, c.relchecks, c.relhastriggers, c.relhasrules, c.relhassubclass, ` +
		rowsOf("pg_attribute", "attrelid", "attnum") + ", " + rowsOf("pg_index", "indrelid", "indexrelid")),
	"CASE WHEN c.relhastriggers THEN " + hashed(rowsOf("pg_trigger", "tgrelid", "oid")) + " END",
	"CASE WHEN c.relhasrules THEN " + hashed(rowsOf("pg_rewrite", "ev_class", "oid")) + " END",
	"CASE WHEN c.relchecks OPERATOR(pg_catalog.>) 0::pg_catalog.int2 THEN " + hashed(rowsOf("pg_constraint", "conrelid", "oid")) + " END",
	"CASE WHEN c.relrowsecurity THEN " + hashed(rowsOf("pg_policy", "polrelid", "oid")) + " END",
	"CASE WHEN c.relhassubclass THEN " + hashed(`ARRAY(SELECT pg_catalog.concat_ws(' ', k.oid, k.relrowsecurity, k.relchecks, k.relhasrules,
 ARRAY(SELECT x.xmin FROM pg_catalog.pg_trigger AS x WHERE x.tgrelid OPERATOR(pg_catalog.=) k.oid ORDER BY x.oid))
 FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS k ON k.oid OPERATOR(pg_catalog.=) i.inhrelid WHERE i.inhparent OPERATOR(pg_catalog.=) c.oid ORDER BY k.oid)`) + " END",
}

func hashed(what string) string {
	return `pg_catalog.hashtextextended(pg_catalog.concat_ws(' ', ` + what + `) COLLATE pg_catalog."C", 0)`
}

func rowsOf(catalogue, relation, order string) string {
	positive := ""
	if catalogue == "pg_attribute" {
		positive = " AND x.attnum OPERATOR(pg_catalog.>) 0::pg_catalog.int2"
	}
	return "ARRAY(SELECT x.xmin FROM pg_catalog." + catalogue + " AS x WHERE x." + relation + " OPERATOR(pg_catalog.=) c.oid" + positive + " ORDER BY x." + order + ")"
}

// comparingSQL fails with 22P02 where relations $1 are not defined as $2 says, or a relation
// of the schemas and names $3 and $4 is there by now.
func (d *Definitions) comparingSQL() string {
	var compared []string
	for i, part := range definedBy {
		if i == 0 || d.Parts&(1<<i) != 0 {
			compared = append(compared, part)
		}
	}
	now := `(SELECT pg_catalog.string_agg((SELECT pg_catalog.concat_ws(' ', ` + strings.Join(compared, ", ") + `) FROM pg_catalog.pg_class AS c WHERE c.oid OPERATOR(pg_catalog.=) o.oid), '
' ORDER BY o.at) FROM pg_catalog.unnest($1) WITH ORDINALITY AS o(oid, at))`
	if len(d.Absent) > 0 {
		now = `pg_catalog.concat_ws('
', ` + now + `, (SELECT pg_catalog.count(*) FROM ROWS FROM (pg_catalog.unnest($3), pg_catalog.unnest($4)) AS a(schema, name) JOIN pg_catalog.pg_namespace AS s ON s.nspname OPERATOR(pg_catalog.=) a.schema
 JOIN pg_catalog.pg_class AS k ON k.relnamespace OPERATOR(pg_catalog.=) s.oid AND k.relname OPERATOR(pg_catalog.=) a.name WHERE k.relkind OPERATOR(pg_catalog.=) ANY ('{r,p,v,m,f}'::pg_catalog."char"[])))`
	}
	return "SELECT CASE WHEN d.now OPERATOR(pg_catalog.=) $2 THEN 0 ELSE pg_catalog.concat('changed: ', d.now)::pg_catalog.int4 END FROM (SELECT " + now + " AS now OFFSET 0) AS d"
}

// comparison is the name under which a connection keeps comparingSQL of some parts prepared.
// A function that a statement calls could put one of its own in its place, by SQL: it runs in
// that transaction anyway, and none that was made so outlasts it.
const comparison = "definitions_"

var comparedTypes = []uint32{oidOIDArray, oidText, oidTextArray, oidTextArray}

// comparing is what goes before a client's command, and behind it where a relation is locked
// only as it runs: its own Parse, and the comparison. The command is then not parsed again.
func (c *conn) comparing(cmd *command) (before, behind segment) {
	d := cmd.definitions
	if d == nil {
		return nil, nil
	}
	cmd.prepared = true
	before = segment{{sql: cmd.sql, oids: cmd.oids, prepare: true}}
	name := comparison + strconv.Itoa(d.kind())
	if c.comparisons&(1<<d.kind()) == 0 {
		before = append(before, &command{name: name, sql: d.comparingSQL(), oids: comparedTypes, prepare: true})
	}
	cmd.compared = d.command(name)
	if d.Hidden {
		cmd.again = d.command(name)
		behind = segment{cmd.again}
	}
	return append(before, cmd.compared), behind
}

// kind numbers the texts of comparingSQL, of which there are 64.
func (d *Definitions) kind() int {
	kind := int(d.Parts >> 1)
	if len(d.Absent) > 0 {
		kind |= 1 << (len(definedBy) - 1)
	}
	return kind
}

func (d *Definitions) command(name string) *command {
	return &command{name: name, prepared: true, params: d.params()}
}

func (d *Definitions) params() [][]byte {
	oids := make([]string, len(d.OIDs))
	for i, oid := range d.OIDs {
		oids[i] = strconv.FormatUint(uint64(oid), 10)
	}
	schemas, names := make([]string, len(d.Absent)), make([]string, len(d.Absent))
	for i, a := range d.Absent {
		schemas[i], names[i] = a[0], a[1]
	}
	return [][]byte{[]byte("{" + strings.Join(oids, ",") + "}"), []byte(d.Hashes), []byte(textArray(schemas)), []byte(textArray(names))}
}

// found tells whether a comparison around a client's command has found a difference, and keeps
// whether the connection has it prepared.
func (c *conn) found(cmd *command, refused *pgconn.PgError) (moved bool) {
	if cmd.compared == nil {
		return false
	}
	if cmd.compared.tag != "" {
		c.comparisons |= 1 << cmd.definitions.kind()
	}
	if failed := cmd.compared.failed || cmd.again != nil && cmd.again.failed; !failed || refused == nil {
		return false
	}
	if refused.Code != invalidText {
		c.comparisons = 0
		return false
	}
	return true
}

// invalidText is the SQLSTATE by which a comparison says that there is a difference
// (invalid_text_representation).
const invalidText = "22P02"

// differ compares definitions on a connection of its own, as they are by now, and says why the
// statement must not run, or must not stand.
func (db *DB) differ(ctx context.Context, d *Definitions) (reason string, f error) {
	if d == nil {
		return "", nil
	}
	l, err := db.reader.acquire(ctx)
	if err != nil {
		return ReasonDBError, err
	}
	defer l.release()
	refused, err := l.exchange(ctx, time.Now().Add(db.cfg.QueryTimeout), segment{{sql: d.comparingSQL(), oids: comparedTypes, params: d.params()}})
	switch {
	case err != nil:
		return ReasonDBError, lostFault(refused, err)
	case refused == nil:
		return "", nil
	case refused.Code == invalidText:
		db.types.forget()
		return ReasonCatalogChanged, catalogFault()
	}
	return ReasonDBError, db.cfg.statementFault(refused)
}

// beside takes the definitions from a command that is to run where the transaction keeps its
// first snapshot: it sees the catalogues by that too, and so they are compared beside it,
// before a statement and again behind a write, whose locks stand then.
func (b *Block) beside(cmd *command) (d *Definitions) {
	if slices.Contains([]string{"repeatable read", "serializable"}, b.opts.Isolation) {
		d, cmd.definitions = cmd.definitions, nil
	}
	return d
}
