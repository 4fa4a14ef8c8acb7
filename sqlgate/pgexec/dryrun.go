package pgexec

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"writegate/commands/fault"
)

// A dry run is a write that runs and is always rolled back. What a rollback does not undo must
// not happen in it, so nothing of a user's may run: the statement has to be plain, and so has
// all that it reaches. That is looked up in the transaction that runs it, three times:
//
//   - before anything is locked, for the names of what has to be;
//   - under the locks, which keep triggers, rules, keys, defaults, checks, policies, indexes,
//     extended statistics and partitions as they are, before the evidence of the dispatch;
//   - between the statement's Bind and its Execute.
//
// Each time it must be the same. What is locked is all of which a plan is made: what changes, what
// is read, and what foreign keys lead to, since the plan for a key is made as the statement ends. A
// plan evaluates what an index or a statistics object of a table computes of constants. Types are not locked by anything, so that a domain's checks
// could change between: columns of domains are not plain.

// Bits of what becomes of a relation, beside those of triggers.
const dryDefaults = 32 // all defaults are taken, whichever columns the statement names

// mostDryTables bounds how many tables a dry run may reach, partitions counted.
const mostDryTables = 200

// A DryRunRequest is a statement that is to be dry-run, with every name in it. It has no
// parameters, is one INSERT, UPDATE or DELETE, and calls built-in functions alone that are not
// volatile, as far as its text tells: the caller has seen to that.
type DryRunRequest struct {
	Written, Read    []string // schema.table, all that it names
	Columns          []string // schema.table.column that it writes, schema.table.* for any
	Events           int      // what it does to what it writes: TriggersInsert, TriggersDelete, TriggersUpdate
	Defaults         bool     // it may take the default of a column that it names, too
	Words, Operators []string // of the text, as in PlanRequest
	Rows             int      // how many rows are kept, of those before and of those behind; 0 = none
	Time, LockTime   time.Duration

	// Alone has tables, as SQL writes their names, for this dry run until it has ended: those that
	// it is about to lock. An error keeps it from that.
	Alone func(tables []string) error

	// Safe names the first of built-in functions that may do more than compute a value, "" for
	// none. They are what checks, defaults and policies of the tables call.
	Safe func(ctx context.Context, calls []BuiltinCall) (unsafe string, err error)
}

// Reasons of a refused dry run, in details.reason.
const (
	DryRunNotAllowed = "not_allowed" // by the rules of the policy
	DryRunNotPlain   = "not_plain"
	DryRunBusy       = "busy"
)

// NotPlain refuses a dry run of what may do more than change rows.
func NotPlain(format string, args ...any) *fault.Fault {
	return fault.New(fault.DryRunRefused, "The statement is not plain enough for a dry run, which must do nothing that a rollback leaves: %s. Nothing was run. Preview it in place of that, or write it so that this does not stand behind it.", fmt.Sprintf(format, args...)).
		With("reason", DryRunNotPlain)
}

// Busy refuses a dry run that would have to wait.
func Busy(why string) *fault.Fault {
	return fault.New(fault.DryRunRefused, "The dry run would have to wait: %s. Nothing was run; try again later.", why).With("reason", DryRunBusy)
}

// A DryRun is the transaction of one. Begin sends nothing of the client's but names of tables.
type DryRun struct {
	tx      *Tx
	request DryRunRequest
	known   string // what the look under the locks has found
	found   dryLook
	before  map[string][3]int64
}

// A BuiltinCall is a call of a function of PostgreSQL's own that an expression of the server's has.
type BuiltinCall struct {
	Name string `json:"name"`
	Args int    `json:"args"`
}

// dryLook is what plainSQL finds.
type dryLook struct {
	Refused   string   `json:"refused"`
	Locks     []string `json:"locks"` // as SQL writes their names
	Functions []struct {
		BuiltinCall
		What string `json:"what"` // calls it
	} `json:"functions"`
	Tables []dryTable `json:"tables"`
}

type dryTable struct {
	OID      string `json:"oid"`
	Counts   string `json:"counts"`   // schema.table that its rows count for
	Cascade  bool   `json:"cascade"`  // no name of the statement leads there
	Readable string `json:"readable"` // as SQL writes it: rows of it may be read by that name; "" = not, or by another
	Shown    string `json:"shown"`    // how its columns are read
}

// DryRows are rows of one table that a statement would change, as JSON.
type DryRows struct {
	Table  string            `json:"table"`
	Before []json.RawMessage `json:"before"`
	After  []json.RawMessage `json:"after"`
}

// DryTable are the rows of one table that a statement would have changed.
type DryTable struct {
	Table    string `json:"table"`
	Inserted int64  `json:"inserted"`
	Updated  int64  `json:"updated"`
	Deleted  int64  `json:"deleted"`
	Cascade  bool   `json:"cascade"`
}

// A DryReport is what a dry run would have changed.
type DryReport struct {
	Tables      []DryTable
	Rows        []DryRows // some of them, where they were asked for
	RowsOmitted string    // why there are none, or not all
}

// BeginDryRun leases a connection of those that write, opens a transaction on it, locks what
// the statement reaches and finds it plain. The error is a *fault.Fault; what is not plain, or
// busy, is dry_run_refused.
func (db *DB) BeginDryRun(ctx context.Context, opts BeginOptions, r DryRunRequest) (*DryRun, error) {
	opts.dryRun = true
	opts.Limits.Timeout, opts.Limits.Bulk, opts.Limits.MaxRows = min(r.Time, db.cfg.QueryTimeout), false, nil
	opts.Settings = maps.Clone(opts.Settings)
	if opts.Settings == nil {
		opts.Settings = Settings{}
	}
	opts.Settings["lock_timeout"] = strings.Trim(millis(min(r.LockTime, db.cfg.LockTimeout)), "'")
	tx, err := db.Begin(ctx, opts)
	if err != nil {
		return nil, err
	}
	d := &DryRun{tx: tx, request: r}
	if err := d.prepare(ctx); err != nil {
		tx.Rollback()
		return nil, err
	}
	return d, nil
}

func (d *DryRun) prepare(ctx context.Context) error {
	first, text, err := d.look(ctx, nil)
	if err != nil {
		return err
	}
	if err := d.request.Alone(first.Locks); err != nil {
		return err
	}
	var locks segment
	for _, name := range first.Locks { // and what is below it
		locks = append(locks, own("LOCK TABLE "+name+" IN SHARE UPDATE EXCLUSIVE MODE"))
	}
	if d.found, d.known, err = d.look(ctx, locks); err != nil {
		return err
	}
	if d.known != text {
		return Busy("what stands behind the statement was changed while it was looked at")
	}
	var calls []BuiltinCall
	callers := map[string]string{}
	for _, f := range d.found.Functions {
		calls = append(calls, f.BuiltinCall)
		callers[f.Name] = f.What
	}
	unsafe, err := d.request.Safe(ctx, calls)
	if err != nil || unsafe == "" {
		return err
	}
	return NotPlain("%s calls %s, which may do more than compute a value", callers[unsafe], unsafe)
}

// look finds what stands behind the statement, behind locks that are taken first.
func (d *DryRun) look(ctx context.Context, locks segment) (found dryLook, text string, err error) {
	cmd, row := query(plainSQL)
	cmd.oids, cmd.params = d.plainParams()
	count, counted := query(dryCountSQL)
	refused, err := d.tx.lease.exchange(ctx, d.tx.db.deadline(d.tx.opts.Limits), append(locks, cmd, count))
	switch {
	case err != nil:
		return found, "", lostFault(refused, err)
	case refused != nil && refused.Code == "55P03":
		return found, "", Busy("somebody else holds a lock on a table that it reaches")
	case refused != nil && refused.Code == "57014":
		return found, "", Busy("the database did not say in time what stands behind it")
	case refused != nil && refused.Code == "42501":
		return found, "", NotPlain("the gate's database role may not lock every table that it reaches, reads or refers to (UPDATE or DELETE on it would let it), and so cannot keep triggers, indexes and partitions from coming between")
	case refused != nil:
		return found, "", d.tx.db.cfg.statementFault(refused)
	}
	if err := json.Unmarshal([]byte(row.text(0)), &found); err != nil {
		return found, "", fault.Of(fmt.Errorf("%w: %w", errProtocol, err))
	}
	if found.Refused != "" {
		return found, "", NotPlain("%s", found.Refused)
	}
	var on bool
	if d.before, on, err = readDryCounts(counted); err == nil && !on {
		err = NotPlain("the server does not count changed rows (track_counts is off)")
	}
	return found, row.text(0), err
}

// Dispatch is what evidence records before the statement is sent.
func (d *DryRun) Dispatch() Dispatch { return d.tx.dispatch }

// Rollback gives the transaction up; it does nothing after Run.
func (d *DryRun) Rollback() { d.tx.Rollback() }

// Run sends the statement, and behind it SET CONSTRAINTS ALL IMMEDIATE, as Tx.Exec does, counts,
// and rolls back, whatever came of it. Rows of its result are dropped: they are not asked about.
// It does not heed the end of ctx. A success says that all of it ran, and that it is undone.
func (d *DryRun) Run(ctx context.Context, st Statement) (Result, *DryReport, error) {
	tx, l, lim := d.tx, d.tx.lease, d.tx.opts.Limits
	if tx.ended || tx.ran != nil {
		return Result{}, nil, fault.New(fault.Internal, "The transaction has run its statement already.")
	}
	cmd := client(st, lim, nil)
	before, behind := l.comparing(cmd)
	if before == nil { // it is judged by its text alone
		opens := *cmd
		opens.opens, cmd.opened = true, true
		before, behind = segment{&opens}, segment{{closes: true}}
	}
	plain := &command{sql: samePlainSQL}
	plain.oids, plain.params = d.plainParams()
	plain.oids, plain.params = append(plain.oids, oidText), append(plain.params, []byte(d.known))
	count, counted := query(dryCountSQL)
	batch := slices.Concat(d.watchRows(), before, segment{plain, cmd, own("SET CONSTRAINTS ALL IMMEDIATE")}, behind, segment{count})
	l.notices = nil
	r := tx.db.run(context.WithoutCancel(ctx), l, tx.opts.ExecutionID, tx.db.deadline(lim), cmd, batch)
	tx.ran = r
	if plain.failed && r.refused != nil && r.refused.Code == invalidText && r.fault == nil {
		r.reason, r.fault = ReasonCatalogChanged, catalogFault()
	}
	if r.err == nil && l.txStatus == 'I' {
		res, f := tx.lostTrack()
		return res, nil, f
	}
	res, f, ok := tx.db.outcomeOf(r, BasisCommitNeverSent)
	switch {
	case ok && l.drift != "":
		res, f, ok = aborted(ReasonSettingsDrift, ""), driftFault(l.drift), false
	case ok:
		res = Result{State: Success, CommandTag: cmd.tag, RowCount: rowCount(cmd)}
	}
	if !ok {
		if r.refused != nil && r.fault == nil && fault.CodeOf(f) == fault.DBQueryFailed {
			f = dryRefusedFault(r.refused)
		}
		res, f = tx.fail(res, f)
		return res, nil, f
	}
	report, err := d.report(counted)
	if err != nil {
		res, f = tx.fail(aborted(ReasonDBError, ""), err)
		return res, nil, f
	}
	var changed int64
	for _, t := range report.Tables {
		changed += t.Inserted + t.Updated + t.Deleted
	}
	res.RowsChanged = &changed
	d.readRows(report)
	res.Basis = BasisCommitNeverSent
	if l.rollback(time.Now().Add(rollbackWait)) {
		res.Basis = BasisRollbackAcknowledged
	} else {
		tx.db.endOrphan(l)
	}
	res = r.stamp(res, l)
	tx.end()
	return res, report, nil
}

// dryRefusedFault says of a refusal what its client may know: the server's words quote values, so a
// cast of what somebody else's rows hold would tell them.
func dryRefusedFault(e *pgconn.PgError) *fault.Fault {
	f := fault.New(fault.DBQueryFailed, "The database refused the statement (SQLSTATE %s), as it would now if it were sent. What it says of it may quote rows, which a dry run shows to no client.", e.Code).
		With("sqlstate", e.Code).With("retryable", Retryable(e.Code)).Because(quiet{e})
	for key, value := range map[string]string{"constraint": e.ConstraintName, "table": e.TableName, "column": e.ColumnName} {
		if value != "" {
			f = f.With(key, clip(value))
		}
	}
	return f
}

// report counts by table.
func (d *DryRun) report(row *oneRow) (*DryReport, error) {
	after, on, err := readDryCounts(row)
	if err != nil || !on {
		return nil, NotPlain("its rows could not be counted")
	}
	tables, cascade := map[string]*DryTable{}, map[string]dryTable{}
	for _, t := range d.found.Tables {
		cascade[t.OID] = t
	}
	for oid, n := range after {
		was := d.before[oid]
		if n == was {
			continue
		}
		t, known := cascade[oid]
		if !known { // so there is more behind it than was seen
			return nil, NotPlain("it changed a table that was not expected (oid %s)", oid)
		}
		if tables[t.Counts] == nil {
			tables[t.Counts] = &DryTable{Table: t.Counts, Cascade: t.Cascade}
		}
		sum := tables[t.Counts]
		sum.Inserted, sum.Updated, sum.Deleted = sum.Inserted+n[0]-was[0], sum.Updated+n[1]-was[1], sum.Deleted+n[2]-was[2]
		sum.Cascade = sum.Cascade && t.Cascade
	}
	report := &DryReport{Tables: []DryTable{}}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		report.Tables = append(report.Tables, *tables[name])
	}
	return report, nil
}

// mostRowBytes is how long a row may be, as JSON, that is shown.
const mostRowBytes = 4096

// rowsOf selects rows of a table by a condition on them. JSON is made of built-in types alone:
// of others the server makes it by a cast, which somebody may make at any time.
func rowsOf(t *dryTable, condition string) string {
	const row = "gate_dry_run_row"
	return inCatalog(fmt.Sprintf(`SELECT %[1]s.tableoid::int8, %[1]s.ctid::text, CASE WHEN octet_length(row_to_json(shown.*)::text) <= %[2]d THEN row_to_json(shown.*)::text END FROM `, row, mostRowBytes)) +
		t.Readable + " AS " + row + " CROSS JOIN LATERAL (SELECT " + t.Shown + ") AS shown WHERE " + inCatalog(fmt.Sprintf(condition, row))
}

func cursor(i int) string { return fmt.Sprintf("gate_dry_run_%d", i) }

// watchRows declares a cursor for each table, which sees the rows that the statement is about
// to change as they are now: those that bear its transaction's id as the one that ends them.
func (d *DryRun) watchRows() (batch segment) {
	if d.request.Rows == 0 {
		return nil
	}
	for i, t := range d.found.Tables {
		if t.Readable != "" {
			batch = append(batch, own("DECLARE "+cursor(i)+" NO SCROLL CURSOR FOR "+rowsOf(&t, "%s.xmax = '"+d.xid()+"'::xid")))
		}
	}
	return batch
}

// xid is the transaction's id as rows bear it.
func (d *DryRun) xid() string { return strconv.FormatUint(d.tx.dispatch.XID&0xffffffff, 10) }

// readRows fills in rows. What the server refuses or is too slow for is left out: the locks of
// the write stay meanwhile, so no table is begun behind the time of one statement.
func (d *DryRun) readRows(report *DryReport) {
	left, end := [2]int{d.request.Rows, d.request.Rows}, time.Now().Add(d.tx.opts.Limits.Timeout)
	for i, t := range d.found.Tables {
		if left[0] <= 0 && left[1] <= 0 || d.request.Rows == 0 {
			return
		}
		changed := slices.IndexFunc(report.Tables, func(c DryTable) bool { return c.Table == t.Counts })
		switch {
		case changed < 0 || slices.ContainsFunc(report.Rows, func(r DryRows) bool { return r.Table == t.Counts }):
			continue
		case t.Readable == "":
			if !slices.ContainsFunc(d.found.Tables, func(o dryTable) bool { return o.Counts == t.Counts && o.Readable != "" }) {
				report.RowsOmitted = "the gate's database role may not read all tables"
			}
			continue
		}
		if time.Now().After(end) {
			report.RowsOmitted = "the database did not give them in time"
			return
		}
		rows := DryRows{Table: t.Counts, Before: []json.RawMessage{}, After: []json.RawMessage{}}
		var before, after, still manyRows
		var batch segment
		if c := &report.Tables[changed]; left[0] > 0 && c.Updated+c.Deleted > 0 {
			batch = append(batch, &command{sql: "FETCH " + strconv.Itoa(2*d.request.Rows) + " FROM " + cursor(i), sink: &before, byteCap: 1 << 20})
		}
		if c := &report.Tables[changed]; left[1] > 0 && c.Inserted+c.Updated > 0 {
			batch = append(batch, &command{sql: rowsOf(&t, "%s.xmin = '"+d.xid()+"'::xid") + " LIMIT " + strconv.Itoa(left[1]), sink: &after, byteCap: 1 << 20})
		}
		if batch == nil {
			continue
		}
		refused, err := d.tx.lease.exchange(context.Background(), d.tx.db.deadline(d.tx.opts.Limits), batch)
		if err == nil && refused == nil && len(before) > 0 { // one that is only locked, by a key that refers to it, stays where it is
			var places []string
			for _, row := range before {
				places = append(places, row[1])
			}
			refused, err = d.tx.lease.exchange(context.Background(), d.tx.db.deadline(d.tx.opts.Limits), segment{
				{sql: rowsOf(&t, "%s.ctid = ANY ($1)"), oids: []uint32{oidTIDArray}, params: [][]byte{[]byte(textArray(places))}, sink: &still, byteCap: 1 << 20}})
		}
		if err != nil || refused != nil {
			report.RowsOmitted = "the database did not give them in time"
			return
		}
		changes := report.Tables[changed].Updated + report.Tables[changed].Deleted
		wanted := min(int64(left[0]), changes)
		for _, row := range before {
			if left[0] > 0 && !slices.ContainsFunc(still, func(s [3]string) bool { return s[0] == row[0] && s[1] == row[1] }) {
				rows.Before, left[0] = append(rows.Before, shownRow(row)), left[0]-1
			}
		}
		// A row that somebody else has locked by a key that refers to it bears another id, of both.
		if int64(len(rows.Before)) < wanted {
			report.RowsOmitted = fmt.Sprintf("of %s before the change not all could be told from rows that are only locked", t.Counts)
		}
		for _, row := range after {
			rows.After, left[1] = append(rows.After, shownRow(row)), left[1]-1
		}
		report.Rows = append(report.Rows, rows)
	}
}

const oidTIDArray = 1010

func shownRow(row [3]string) json.RawMessage { return json.RawMessage(cmp.Or(row[2], "null")) }

// manyRows keeps rows of three columns; NULL is "".
type manyRows [][3]string

func (*manyRows) Fields([]Field) error { return nil }

func (m *manyRows) Row(values [][]byte) error {
	if len(values) != 3 {
		return errProtocol
	}
	*m = append(*m, [3]string{string(values[0]), string(values[1]), string(values[2])})
	return nil
}

// readDryCounts reads an answer to dryCountSQL: rows inserted, updated and deleted by the oid of the table.
func readDryCounts(row *oneRow) (counts map[string][3]int64, on bool, err error) {
	counts = map[string][3]int64{}
	for _, counter := range strings.Fields(row.text(0)) {
		table, numbers, _ := strings.Cut(counter, "=")
		var n [3]int64
		parts := strings.Split(numbers, "/")
		if len(parts) != len(n) {
			return nil, false, errProtocol
		}
		for i, part := range parts {
			if n[i], err = strconv.ParseInt(part, 10, 64); err != nil {
				return nil, false, errors.Join(errProtocol, err)
			}
		}
		counts[table] = n
	}
	return counts, row.text(1) == "on", nil
}

// plainParams are those of plainSQL.
func (d *DryRun) plainParams() (oids []uint32, params [][]byte) {
	r := &d.request
	events := r.Events
	if r.Defaults {
		events |= dryDefaults
	}
	for _, list := range [][]string{r.Written, r.Read, r.Columns, r.Words, slices.Concat(impliedOperators, r.Operators)} {
		oids, params = append(oids, oidTextArray), append(params, []byte(textArray(list)))
	}
	return append(oids, oidInt4), append(params, []byte(strconv.Itoa(events)))
}

// inCatalog has each operator and function of a text of ours mean that of pg_catalog, whatever
// the search path of the connection leads to. An operator so written binds as all others do:
// from left to right, and closer than AND, OR and NOT.
func inCatalog(sql string) string {
	sql = operatorsOurs.ReplaceAllString(sql, " OPERATOR(pg_catalog.$1) ")
	return functionsOurs.ReplaceAllString(sql, "${1}pg_catalog.$2(")
}

var (
	operatorsOurs = regexp.MustCompile(` (=|<>|<|<=|>|>=|&|\||~) `)
	functionsOurs = regexp.MustCompile(`([ (,])(concat|concat_ws|json_build_object|json_agg|json_build_array|string_agg|quote_ident|regexp_matches|pg_partition_root|has_table_privilege|count|bool_and|octet_length|row_to_json|current_setting|pg_stat_get_xact_tuples_inserted|pg_stat_get_xact_tuples_updated|pg_stat_get_xact_tuples_deleted|cardinality|starts_with|strpos|unnest)\(`)
)

// dryCountSQL counts the rows that this connection changed, by table, as countSQL does.
var dryCountSQL = inCatalog(`SELECT COALESCE(string_agg(concat(c.oid, '=', c.i, '/', c.u, '/', c.d), ' '), ''), current_setting('track_counts')
 FROM (SELECT c.oid, pg_stat_get_xact_tuples_inserted(c.oid) AS i, pg_stat_get_xact_tuples_updated(c.oid) AS u, pg_stat_get_xact_tuples_deleted(c.oid) AS d
  FROM pg_catalog.pg_class AS c WHERE c.relkind = ANY ('{r,m}'::"char"[]) AND c.relnamespace <> 'pg_catalog'::regnamespace::oid) AS c WHERE c.i <> 0::int8 OR c.u <> 0::int8 OR c.d <> 0::int8`)

// plainSQL says what a statement reaches, and why it is not plain, in one row of JSON. It reads
// catalogues alone. Pinned objects have no entries in pg_depend, so each entry that leads to code
// is one of somebody's; what an expression that the server keeps calls of PostgreSQL's own stands
// in its stored form (FuncExpr.funcid of primnodes.h, the same in 15 to 18).
//
// reach is what changes: what is written by name, what foreign keys take along, and what lies
// below these; of an event 4 is INSERT, 8 DELETE, 16 UPDATE, 32 that all defaults are taken. rel is
// that, what is read, and all that is of one tree with it, since bounds of partitions are asked
// too; w tells that its rows may change. strange are base types of users', such as extensions bring:
// no expression is of one, since columns of them are refused, their names in the text too, and casts
// that the server makes by itself. So an operator of two of them, or of one and text, is apart: constants
// without a type alone could mean it. Where one of the same name is built in for text that one leads, and
// they mean that; where one is built in at all, and its types are of another category, they mean neither, and the server refuses the text. near are the tables beside it that foreign keys look at: those
// that are referred to, and, where rows go or change, those that refer.
var plainSQL = inCatalog(`WITH RECURSIVE named AS (
 SELECT c.oid, n.said, n.w, c.relkind FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS s ON s.oid = c.relnamespace
  JOIN (SELECT w.said, true AS w FROM unnest($1::text[]) AS w(said) UNION ALL SELECT r.said, false FROM unnest($2::text[]) AS r(said)) AS n ON n.said = concat(s.nspname, '.', c.relname)
  WHERE c.relkind = ANY ('{r,p,v,m,f,S}'::"char"[])),
reach(oid, ev, casc, below) AS (
 SELECT n.oid, $6 | CASE WHEN n.relkind = 'p'::"char" AND ($6 & 16) <> 0 THEN 12 ELSE 0 END, false, false FROM named AS n WHERE n.w
 UNION SELECT next.oid, next.ev | CASE WHEN (next.ev & 16) <> 0 AND EXISTS (SELECT FROM pg_catalog.pg_class AS p WHERE p.oid = next.oid AND p.relkind = 'p'::"char") THEN 12 ELSE 0 END, next.casc, next.below FROM reach CROSS JOIN LATERAL (
  SELECT i.inhrelid AS oid, reach.ev AS ev, reach.casc AS casc, true AS below FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = reach.oid
  UNION ALL SELECT k.conrelid, CASE WHEN k.confdeltype = 'c'::"char" THEN 8 WHEN k.confdeltype = 'd'::"char" THEN 48 ELSE 16 END, true, false FROM pg_catalog.pg_constraint AS k
   WHERE k.confrelid = reach.oid AND k.contype = 'f'::"char" AND (reach.ev & 8) <> 0 AND k.confdeltype = ANY ('{c,n,d}'::"char"[])
  UNION ALL SELECT k.conrelid, CASE WHEN k.confupdtype = 'd'::"char" THEN 48 ELSE 16 END, true, false FROM pg_catalog.pg_constraint AS k
   WHERE k.confrelid = reach.oid AND k.contype = 'f'::"char" AND (reach.ev & 16) <> 0 AND k.confupdtype = ANY ('{c,n,d}'::"char"[])) AS next),
rel(oid, w) AS (SELECT r.oid, true FROM reach AS r UNION SELECT n.oid, n.w FROM named AS n
 UNION SELECT CASE WHEN i.inhparent = rel.oid THEN i.inhrelid ELSE i.inhparent END, rel.w FROM pg_catalog.pg_inherits AS i JOIN rel ON i.inhparent = rel.oid OR i.inhrelid = rel.oid),
near AS (SELECT rel.oid FROM rel UNION SELECT CASE WHEN k.conrelid = rel.oid THEN k.confrelid ELSE k.conrelid END FROM pg_catalog.pg_constraint AS k JOIN rel ON rel.w AND (k.conrelid = rel.oid OR k.confrelid = rel.oid AND EXISTS (SELECT FROM reach AS r WHERE r.oid = rel.oid AND (r.ev & 24) <> 0)) WHERE k.contype = 'f'::"char"),
called AS (SELECT c.oid, concat(s.nspname, '.', c.relname) AS said, concat(quote_ident(s.nspname::text), '.', quote_ident(c.relname::text)) AS quoted, c.relkind, c.relpersistence, c.relrowsecurity, s.nspname
 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS s ON s.oid = c.relnamespace JOIN near ON near.oid = c.oid),
own AS (SELECT 'pg_catalog.pg_class'::regclass::oid AS classid, near.oid AS objid, near.oid AS rel FROM near
 UNION ALL SELECT 'pg_catalog.pg_class'::regclass::oid, x.indexrelid, near.oid FROM pg_catalog.pg_index AS x JOIN near ON x.indrelid = near.oid
 UNION ALL SELECT 'pg_catalog.pg_constraint'::regclass::oid, x.oid, near.oid FROM pg_catalog.pg_constraint AS x JOIN near ON x.conrelid = near.oid
 UNION ALL SELECT 'pg_catalog.pg_attrdef'::regclass::oid, x.oid, near.oid FROM pg_catalog.pg_attrdef AS x JOIN near ON x.adrelid = near.oid
 UNION ALL SELECT 'pg_catalog.pg_statistic_ext'::regclass::oid, x.oid, near.oid FROM pg_catalog.pg_statistic_ext AS x JOIN near ON x.stxrelid = near.oid
 UNION ALL SELECT 'pg_catalog.pg_policy'::regclass::oid, x.oid, near.oid FROM pg_catalog.pg_policy AS x JOIN near ON x.polrelid = near.oid),
strange AS (SELECT t.oid, t.typcategory FROM pg_catalog.pg_type AS t WHERE t.oid >= 16384::oid AND t.typtype = 'b'::"char" AND t.typelem = 0::oid AND NOT t.typispreferred),
apart AS (SELECT o.oid FROM pg_catalog.pg_operator AS o LEFT JOIN strange AS l ON l.oid = o.oprleft LEFT JOIN strange AS r ON r.oid = o.oprright
 WHERE l.oid IS NOT NULL AND (r.oid IS NOT NULL OR o.oprright = 25::oid) OR r.oid IS NOT NULL AND o.oprleft = 25::oid),
leads AS (SELECT a.oid FROM apart AS a JOIN pg_catalog.pg_operator AS o ON o.oid = a.oid WHERE EXISTS (SELECT FROM pg_catalog.pg_operator AS b WHERE b.oid < 16384::oid AND b.oprname = o.oprname AND b.oprleft <> 0::oid
  AND (b.oprleft = 25::oid AND b.oprright = 25::oid OR NOT EXISTS (SELECT FROM pg_catalog.pg_type AS t WHERE (t.oid = o.oprleft OR t.oid = o.oprright) AND t.typcategory <> 'U'::"char")))),
enums AS (SELECT t.oid FROM pg_catalog.pg_type AS t WHERE t.typtype = 'e'::"char" UNION ALL SELECT t.typarray FROM pg_catalog.pg_type AS t WHERE t.typtype = 'e'::"char"),
taken AS (SELECT a.attrelid, a.attnum, concat(c.said, '.', a.attname) AS said, a.attidentity FROM pg_catalog.pg_attribute AS a JOIN called AS c ON c.oid = a.attrelid
 WHERE a.attnum > 0::int2 AND NOT a.attisdropped AND a.attgenerated = ''::"char" AND (a.atthasdef OR a.attidentity <> ''::"char")
 AND EXISTS (SELECT FROM reach AS r WHERE r.oid = a.attrelid AND ((r.ev & 32) <> 0 OR NOT r.below AND NOT r.casc AND ($6 & 4) <> 0
  AND (concat(c.said, '.*') = ANY ($3) OR NOT concat(c.said, '.', a.attname) = ANY ($3))))),
stored AS (SELECT concat('the default of ', t.said) AS what, d.adbin::text AS form FROM pg_catalog.pg_attrdef AS d JOIN taken AS t ON t.attrelid = d.adrelid AND t.attnum = d.adnum
 UNION ALL SELECT concat('the generated column ', c.said, '.', a.attname), d.adbin::text FROM pg_catalog.pg_attrdef AS d JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated <> ''::"char" JOIN called AS c ON c.oid = d.adrelid
 UNION ALL SELECT concat('the constraint ', k.conname, ' of ', c.said), k.conbin::text FROM pg_catalog.pg_constraint AS k JOIN called AS c ON c.oid = k.conrelid WHERE k.conbin IS NOT NULL
 UNION ALL SELECT concat('the policy ', y.polname, ' of ', c.said), concat(y.polqual::text, ' ', y.polwithcheck::text) FROM pg_catalog.pg_policy AS y JOIN called AS c ON c.oid = y.polrelid AND c.relrowsecurity),
calls AS (SELECT DISTINCT p.proname::text AS name, p.pronargs, p.provolatile, s.what FROM stored AS s CROSS JOIN LATERAL regexp_matches(s.form, ':(?:funcid|aggfnoid|winfnoid) ([0-9]+)', 'g') AS m(found) JOIN pg_catalog.pg_proc AS p ON p.oid = m.found[1]::oid),
refused(place, why) AS (
 SELECT 1, concat('there is no table ', n.said) FROM (SELECT unnest($1::text[]) UNION SELECT unnest($2::text[])) AS n(said) WHERE NOT EXISTS (SELECT FROM named WHERE named.said = n.said)
 UNION ALL SELECT 2, concat(c.said, ' is no plain table') FROM called AS c WHERE c.relkind <> ALL ('{r,p}'::"char"[]) OR c.relpersistence = 't'::"char"
 UNION ALL SELECT 3, concat(c.said, ' is a table of the server') FROM called AS c JOIN rel ON rel.oid = c.oid AND rel.w WHERE c.nspname = 'information_schema'::name OR starts_with(c.nspname::text, 'pg_')
 UNION ALL SELECT 4, concat(c.said, ' has the rule ', w.rulename) FROM pg_catalog.pg_rewrite AS w JOIN called AS c ON c.oid = w.ev_class JOIN rel ON rel.oid = c.oid
 UNION ALL SELECT 5, concat(c.said, ' has the trigger ', t.tgname) FROM pg_catalog.pg_trigger AS t JOIN called AS c ON c.oid = t.tgrelid JOIN rel ON rel.oid = c.oid AND rel.w WHERE NOT t.tgisinternal AND t.tgenabled <> 'D'::"char" OR t.tgfoid >= 16384::oid
 UNION ALL SELECT 6, concat(c.said, '.', a.attname, ' has a type that is not built in, nor an enumeration') FROM pg_catalog.pg_attribute AS a JOIN called AS c ON c.oid = a.attrelid JOIN rel ON rel.oid = c.oid WHERE a.attnum > 0::int2 AND NOT a.attisdropped AND a.atttypid >= 16384::oid AND NOT EXISTS (SELECT FROM enums AS e WHERE e.oid = a.atttypid)
 UNION ALL SELECT 7, concat(c.said, ' uses code that is not built in') FROM pg_catalog.pg_depend AS d JOIN own ON d.classid = own.classid AND d.objid = own.objid JOIN called AS c ON c.oid = own.rel
  WHERE d.refclassid = ANY (ARRAY['pg_catalog.pg_proc', 'pg_catalog.pg_operator', 'pg_catalog.pg_type', 'pg_catalog.pg_opclass', 'pg_catalog.pg_opfamily', 'pg_catalog.pg_am']::regclass[]::oid[])
  AND NOT (d.refclassid = 'pg_catalog.pg_type'::regclass::oid AND (EXISTS (SELECT FROM enums AS e WHERE e.oid = d.refobjid) OR NOT EXISTS (SELECT FROM rel WHERE rel.oid = own.rel)))
 UNION ALL SELECT 8, concat('the identity of ', t.said, ' would be taken from its sequence') FROM taken AS t WHERE t.attidentity <> ''::"char"
 UNION ALL SELECT 9, concat(f.what, ' calls ', f.name, CASE WHEN f.name = ANY ('{nextval,setval}'::text[]) THEN ', and a sequence does not go back' ELSE ', which is volatile' END) FROM calls AS f WHERE f.provolatile = 'v'::"char"
 UNION ALL SELECT 10, concat(s.what, ' reads other tables') FROM stored AS s WHERE strpos(s.form, '{SUBLINK ') > 0
 UNION ALL SELECT 11, concat('a function that is not built in bears the name ', p.proname, ', which the text has') FROM pg_catalog.pg_proc AS p WHERE p.oid >= 16384::oid AND p.proname::text = ANY ($4)
 UNION ALL SELECT 12, concat('an operator that is not built in bears the name ', o.oprname, ', which the text has or implies') FROM pg_catalog.pg_operator AS o WHERE o.oid >= 16384::oid AND o.oprname::text = ANY ($5) AND NOT EXISTS (SELECT FROM leads WHERE leads.oid = o.oid)
 UNION ALL SELECT 13, concat('a type that is not built in bears the name ', t.typname, ', which the text has') FROM pg_catalog.pg_type AS t WHERE t.oid >= 16384::oid AND t.typname::text = ANY ($4) AND t.typtype <> 'c'::"char" AND t.typelem = 0::oid
 UNION ALL SELECT 14, concat('the database has a cast that is not built in, from ', k.castsource::regtype, ' to ', k.casttarget::regtype) FROM pg_catalog.pg_cast AS k WHERE k.oid >= 16384::oid
  AND NOT EXISTS (SELECT FROM strange AS s WHERE s.oid = k.castsource OR s.oid = k.casttarget AND k.castcontext <> 'i'::"char")
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_range AS g WHERE g.rngtypid = k.castsource AND g.rngmultitypid = k.casttarget)
 UNION ALL SELECT 15, concat('the operator class ', o.opcname, ', which is not built in, sorts or hashes a type that is') FROM pg_catalog.pg_opclass AS o WHERE o.oid >= 16384::oid AND o.opcdefault AND o.opcintype < 16384::oid AND o.opcmethod = ANY ('{403,405}'::oid[])
 UNION ALL SELECT 16, 'it reaches more tables than are looked at' FROM (SELECT count(*) AS n FROM near) AS x WHERE x.n > ` + strconv.Itoa(mostDryTables) + `::int8)
SELECT json_build_object('refused', COALESCE((SELECT r.why FROM refused AS r ORDER BY r.place, r.why COLLATE "C" LIMIT 1), ''),
 'locks', (SELECT COALESCE(json_agg(c.quoted ORDER BY c.oid), '[]'::json) FROM called AS c WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_inherits AS i JOIN called AS p ON p.oid = i.inhparent WHERE i.inhrelid = c.oid)),
 'functions', (SELECT COALESCE(json_agg(json_build_object('name', f.name, 'args', f.pronargs, 'what', f.what) ORDER BY f.name COLLATE "C", f.pronargs, f.what COLLATE "C"), '[]'::json) FROM calls AS f),
 'tables', (SELECT COALESCE(json_agg(json_build_object('oid', c.oid::text, 'counts', COALESCE(top.said, c.said), 'cascade', NOT EXISTS (SELECT FROM reach AS r WHERE r.oid = c.oid AND NOT r.casc),
   'readable', CASE WHEN EXISTS (SELECT FROM reach AS r WHERE r.oid = c.oid AND NOT r.below) AND has_table_privilege(c.oid, 'SELECT') THEN c.quoted ELSE '' END,
   'shown', (SELECT COALESCE(string_agg(CASE WHEN a.atttypid < 16384::oid THEN a.place ELSE concat('CASE WHEN ', a.place, ' IS NOT NULL THEN pg_catalog.concat(', a.place, ') END AS ', a.name) END, ', ' ORDER BY a.attnum), '')
    FROM (SELECT a.attnum, a.atttypid, quote_ident(a.attname::text) AS name, concat('gate_dry_run_row.', quote_ident(a.attname::text)) AS place FROM pg_catalog.pg_attribute AS a
     WHERE a.attrelid = c.oid AND a.attnum > 0::int2 AND NOT a.attisdropped) AS a)) ORDER BY c.oid), '[]'::json)
  FROM called AS c LEFT JOIN called AS top ON top.oid = pg_partition_root(c.oid::regclass)::oid WHERE EXISTS (SELECT FROM reach AS r WHERE r.oid = c.oid)))::text`)

// samePlainSQL fails with 22P02 where plainSQL does not give $7 any more.
var samePlainSQL = `SELECT CASE WHEN d.now OPERATOR(pg_catalog.=) $7 THEN 0 ELSE pg_catalog.concat('changed: ', d.now)::pg_catalog.int4 END FROM (SELECT (` + plainSQL + `) AS now OFFSET 0) AS d`
