package pgexec

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Definitions are how the relations that a statement was judged by were defined then: those
// that it names, and those behind them. They are compared in the transaction that runs it,
// between its Bind, whose plan has locked what it reads and names, and its Execute; so what
// comes between the reading of the catalogue and the statement ends the statement before it runs.
type Definitions struct {
	OIDs   []uint32
	Types  []uint32    // that ran no code of the users'
	Parts  uint8       // a bit for each of definedBy that is compared; the first always is
	Hashes string      // what comparingSQL shows of them
	Absent [][2]string // schema and name of relations that were not there
	Behind bool        // some are locked only as the statement runs: they are compared behind it, too
}

// definedBy hashes the rows of the catalogues that define a relation c, in parts; all but the
// first are NULL for relations that have nothing of their kind. A row that was changed, or
// put in the place of another, has another xmin, or ctid where one transaction did both. Its names, columns and keys are in the
// first; the others are triggers (those of foreign keys on both sides, too), rules, checks,
// policies, and all of that of the tables right below.
var definedBy = append(definedAs("c"), "CASE WHEN c.relhassubclass THEN "+hashed("ARRAY(SELECT pg_catalog.concat_ws(' ', k.oid, "+strings.Join(definedAs("k"), ", ")+
	") FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS k ON k.oid OPERATOR(pg_catalog.=) i.inhrelid WHERE i.inhparent OPERATOR(pg_catalog.=) c.oid ORDER BY k.oid)")+" END")

func definedAs(c string) []string {
	rows := func(catalogue, relation, order string) string {
		more := ""
		if catalogue == "pg_attribute" {
			more = " AND x.attnum OPERATOR(pg_catalog.>) 0::pg_catalog.int2"
		}
		return "ARRAY(SELECT pg_catalog.concat(x.xmin, x.ctid) FROM pg_catalog." + catalogue + " AS x WHERE x." + relation + " OPERATOR(pg_catalog.=) " + c + ".oid" + more + " ORDER BY x." + order + ")"
	}
	where := func(condition, rows string) string {
		return "CASE WHEN " + c + "." + condition + " THEN " + hashed(rows) + " END"
	}
	fields := "relname, relkind, relrowsecurity, relispartition, relchecks, relhastriggers, relhasrules, relhassubclass"
	return []string{
		hashed("(SELECT n.nspname FROM pg_catalog.pg_namespace AS n WHERE n.oid OPERATOR(pg_catalog.=) " + c + ".relnamespace), " +
			c + "." + strings.ReplaceAll(fields, ", ", ", "+c+".") + ", " + rows("pg_attribute", "attrelid", "attnum") + ", " + rows("pg_index", "indrelid", "indexrelid")),
		where("relhastriggers", rows("pg_trigger", "tgrelid", "oid")),
		where("relhasrules", rows("pg_rewrite", "ev_class", "oid")),
		where("relchecks OPERATOR(pg_catalog.>) 0::pg_catalog.int2", rows("pg_constraint", "conrelid", "oid")),
		where("relrowsecurity", rows("pg_policy", "polrelid", "oid")),
	}
}

// typeDefinedBy hashes what makes a type t one that runs no code of the users' and what its name means: its rows, a
// type of the session's own that a name without a schema would mean, and all that is anybody's of casts,
// operators, support of operator classes and checks of domains, whose types nothing but their rows tells.
var typeDefinedBy = func() string {
	rows := func(catalogue, where string) string {
		return "ARRAY(SELECT pg_catalog.concat(x.oid, ' ', x.xmin, x.ctid) FROM pg_catalog." + catalogue + " AS x WHERE " + where + " ORDER BY x.oid)"
	}
	anybodys := "x.oid OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid"
	return hashed("(SELECT n.nspname FROM pg_catalog.pg_namespace AS n WHERE n.oid OPERATOR(pg_catalog.=) t.typnamespace), t.typname, t.xmin, t.ctid, " +
		"ARRAY(SELECT pg_catalog.concat(x.xmin, x.ctid) FROM pg_catalog.pg_attribute AS x WHERE x.attrelid OPERATOR(pg_catalog.=) t.typrelid AND x.attnum OPERATOR(pg_catalog.>) 0::pg_catalog.int2 ORDER BY x.attnum), " +
		"ARRAY(SELECT x.oid FROM pg_catalog.pg_type AS x WHERE x.typname OPERATOR(pg_catalog.=) t.typname AND x.typnamespace OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema()), " +
		rows("pg_constraint", "x.conrelid OPERATOR(pg_catalog.=) 0::pg_catalog.oid AND x.contypid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid") + ", " +
		rows("pg_cast", anybodys) + ", " + rows("pg_operator", anybodys) + ", " + rows("pg_amproc", anybodys))
}()

func hashed(what string) string {
	return `pg_catalog.hashtextextended(pg_catalog.concat_ws(' ', ` + what + `) COLLATE pg_catalog."C", 0)`
}

// comparingSQL fails with 22P02 where relations are not defined as $1 says, or one that was
// absent is there by now. Each has a parameter of its own, $2 and following: over an array of
// them the server would expect another number each time, and plan anew. It fails, too, where a standby is none any more.
func (d *Definitions) comparingSQL(standby bool) (sql string, types []uint32, params [][]byte) {
	var parts []string
	for i, part := range definedBy {
		if i == 0 || d.Parts&(1<<i) != 0 {
			parts = append(parts, part)
		}
	}
	one := "(SELECT pg_catalog.concat_ws(' ', " + strings.Join(parts, ", ") + ") FROM pg_catalog.pg_class AS c WHERE c.oid OPERATOR(pg_catalog.=) $"
	types, params = append(types, oidText), append(params, []byte(d.Hashes))
	var now []string
	for _, oid := range d.OIDs {
		types, params = append(types, oidOID), append(params, strconv.AppendUint(nil, uint64(oid), 10))
		now = append(now, one+strconv.Itoa(len(types))+")")
	}
	if standby {
		now = append(now, "CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN 'promoted' END")
	}
	for _, oid := range d.Types {
		types, params = append(types, oidOID), append(params, strconv.AppendUint(nil, uint64(oid), 10))
		now = append(now, "(SELECT "+typeDefinedBy+" FROM pg_catalog.pg_type AS t WHERE t.oid OPERATOR(pg_catalog.=) $"+strconv.Itoa(len(types))+")::pg_catalog.text")
	}
	for _, a := range d.Absent {
		types, params = append(types, oidText, oidText), append(params, []byte(a[0]), []byte(a[1]))
		now = append(now, `(SELECT 'there' FROM pg_catalog.pg_class AS k JOIN pg_catalog.pg_namespace AS s ON s.oid OPERATOR(pg_catalog.=) k.relnamespace
 WHERE s.nspname OPERATOR(pg_catalog.=) $`+strconv.Itoa(len(types)-1)+` AND k.relname OPERATOR(pg_catalog.=) $`+strconv.Itoa(len(types))+` AND k.relkind OPERATOR(pg_catalog.=) ANY ('{r,p,v,m,f}'::pg_catalog."char"[]))`)
	}
	sql = "SELECT CASE WHEN d.now OPERATOR(pg_catalog.=) $1 THEN 0 ELSE pg_catalog.concat('changed: ', d.now)::pg_catalog.int4 END FROM (SELECT pg_catalog.concat_ws('\n', " +
		strings.Join(now, ", ") + ") AS now OFFSET 0) AS d"
	return sql, types, params
}

// comparison is how the names begin under which a connection keeps comparingSQL prepared.
// A function that a statement calls could put one of its own in its place, by SQL: it runs in
// that transaction anyway, and none that was made so outlasts it.
const comparison = "definitions"

// mostComparisons is how many of them a connection keeps.
const mostComparisons = 32

// comparing is what goes before a client's command, its own Parse and Bind and the comparison;
// and what goes behind it.
func (c *conn) comparing(cmd *command) (before, behind segment) {
	d := cmd.definitions
	if d == nil {
		return nil, nil
	}
	standby := c.upstream.Timeline == ""
	sql, types, params := d.comparingSQL(standby)
	name := fmt.Sprint(comparison, "_", d.Parts, "_", len(d.OIDs), "_", len(d.Types), "_", len(d.Absent), "_", standby)
	if !c.comparisons[name] {
		if len(c.comparisons) >= mostComparisons {
			name = comparison
		}
		before = append(before, &command{name: name, sql: sql, oids: types, prepare: true})
	}
	again := func() *command { return &command{name: name, prepared: true, params: params} }
	if cmd.compared = again(); cmd.only != nil { // it is parsed alone
		return append(before, cmd.compared), nil
	}
	if len(d.Types) > 0 { // constants become values of them as the text is parsed
		cmd.ahead = again()
		before = append(before, cmd.ahead)
	}
	opens := *cmd
	opens.opens, cmd.opened = true, true
	before, behind = append(before, &opens, cmd.compared), segment{{closes: true}}
	if d.Behind {
		cmd.again = again()
		behind = append(behind, cmd.again)
	}
	return before, behind
}

// found tells whether a comparison around a client's command has found a difference, and keeps
// whether the connection has it prepared.
func (c *conn) found(cmd *command, refused *pgconn.PgError) (moved bool) {
	if cmd.compared == nil {
		return false
	}
	if name := cmd.compared.name; (cmd.compared.tag != "" || cmd.ahead != nil && cmd.ahead.tag != "") && name != comparison {
		if c.comparisons == nil {
			c.comparisons = map[string]bool{}
		}
		c.comparisons[name] = true
	}
	if failed := cmd.compared.failed || cmd.ahead != nil && cmd.ahead.failed || cmd.again != nil && cmd.again.failed; !failed || refused == nil {
		return false
	}
	if refused.Code != invalidText && refused.Code != twoRows {
		c.comparisons = nil
		return false
	}
	return true
}

// invalidText is the SQLSTATE by which a comparison says that there is a difference
// (invalid_text_representation).
const invalidText = "22P02"

// twoRows (cardinality_violation) says so, too: a transaction that keeps its first snapshot
// sees a relation twice where another one has changed it since, and then it itself (a
// TRUNCATE changes its row of pg_class).
const twoRows = "21000"

// differ compares definitions on another connection to the same server, as they are by now, and says why the
// statement must not run, or must not stand.
func (p *pool) differ(ctx context.Context, d *Definitions) (reason string, f error) {
	if d == nil {
		return "", nil
	}
	l, err := p.acquire(ctx)
	if err != nil {
		return ReasonDBError, err
	}
	defer l.release()
	sql, types, params := d.comparingSQL(l.upstream.Timeline == "")
	refused, err := l.exchange(ctx, time.Now().Add(p.cfg.QueryTimeout), segment{{sql: sql, oids: types, params: params}})
	switch {
	case err != nil:
		return ReasonDBError, lostFault(refused, err)
	case refused == nil:
		return "", nil
	case refused.Code == invalidText:
		return ReasonCatalogChanged, catalogFault()
	}
	return ReasonDBError, p.cfg.statementFault(refused)
}

// perform runs a client's command in the block, between what goes before it and behind. A
// transaction that keeps its first snapshot sees what others have defined since by that too,
// though it runs by what is; so there they are compared on another connection as well, while
// the command is bound and its locks stand, and again behind a write.
func (b *Block) perform(ctx context.Context, o BeginOptions, cmd *command, before, behind segment) *ran {
	l, d := b.lease, cmd.definitions
	first, last := l.comparing(cmd)
	run := func(batch ...segment) *ran {
		return b.db.run(ctx, l, o.ExecutionID, b.db.deadline(o.Limits), cmd, slices.Concat(batch...))
	}
	if d == nil || !slices.Contains([]string{"repeatable read", "serializable"}, b.opts.Isolation) {
		return run(before, first, segment{cmd}, last, behind)
	}
	r := run(before, first)
	for _, batch := range []segment{slices.Concat(segment{cmd}, last, behind), nil} {
		if r.err != nil || r.refused != nil || r.unsent || r.fault != nil {
			return r
		}
		if r.reason, r.fault = l.pool.differ(ctx, d); r.fault == nil && batch != nil {
			r = run(batch)
		} else if r.reason == ReasonCatalogChanged {
			b.db.types.forget()
		}
		if !d.Behind {
			break
		}
	}
	return r
}
