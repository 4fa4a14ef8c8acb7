package pgexec

import (
	"slices"
	"strconv"
	"strings"

	"writegate/commands/fault"
)

// Rows are counted by the server's statistics of the transaction: cascades,
// triggers and CTEs count as well. Three things could make the count too small. A
// setting, track_counts, switches it off; it is looked at before and behind the
// statement, and code that is not built in does not run where the role could switch
// it off and on again. TRUNCATE and DROP inside of code count nothing; but they hold
// their lock to the end, so a lock as they need it is looked for. And what a
// deferred trigger writes is counted when the block ends. Where the transaction holds
// such a lock already nothing tells them, so nothing is counted there. The counters
// are listed by tables of the transaction's snapshot, and a statement of a REPEATABLE
// READ transaction writes younger ones too: a lock of such a table, and of no index
// (pg_get_indexdef looks at no snapshot), shows that. A TRUNCATE puts the counters of
// its table back, so temporary tables, which may be truncated freely, are left out:
// what another table gained would hide behind it.
//
// What cannot be held: a function of somebody who may set track_counts and runs as
// its owner (SECURITY DEFINER) can switch the count off and on again.

// countSQL counts what this connection changed, table by table, and by the tables that
// others have left. It still holds earlier work of the connection, so only the growth
// between two answers means anything; a sum would fall with a table that is dropped.
const countSQL = `SELECT s.changed, pg_catalog.current_setting('track_counts'), pg_catalog.has_parameter_privilege('track_counts', 'SET'), l.exclusive, l.unseen
 FROM (SELECT COALESCE(pg_catalog.string_agg(pg_catalog.concat(c.oid, '=', c.n), ','), '') AS changed
  FROM (SELECT c.oid, pg_catalog.pg_stat_get_xact_tuples_inserted(c.oid) OPERATOR(pg_catalog.+) pg_catalog.pg_stat_get_xact_tuples_updated(c.oid)
    OPERATOR(pg_catalog.+) pg_catalog.pg_stat_get_xact_tuples_deleted(c.oid) AS n
   FROM pg_catalog.pg_class AS c WHERE c.relkind OPERATOR(pg_catalog.=) ANY ('{r,m}'::"char"[]) AND c.relpersistence OPERATOR(pg_catalog.<>) 't'::"char"
   AND c.relnamespace OPERATOR(pg_catalog.<>) 'pg_catalog'::pg_catalog.regnamespace) AS c WHERE c.n OPERATOR(pg_catalog.<>) 0::pg_catalog.int8) AS s,
 (SELECT pg_catalog.count(*) FILTER (WHERE l.mode OPERATOR(pg_catalog.=) 'AccessExclusiveLock' AND c.relpersistence IS DISTINCT FROM 't') AS exclusive,
   pg_catalog.count(*) FILTER (WHERE l.mode OPERATOR(pg_catalog.=) 'RowExclusiveLock' AND c.oid IS NULL
    AND pg_catalog.pg_get_indexdef(l.relation) IS NULL) AS unseen
  FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) l.relation
  WHERE l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid() AND l.locktype OPERATOR(pg_catalog.=) 'relation') AS l`

// A rowCount is an answer to countSQL.
type rowCounts struct {
	rows      map[string]int64 // by the table's oid
	on        bool             // track_counts
	mayTurn   bool             // the role may set it
	exclusive int64            // tables held as TRUNCATE holds them
	unseen    int64            // tables that are written and that the transaction's snapshot does not have
}

func readCounts(row *oneRow) (c rowCounts, err error) {
	c.rows = map[string]int64{}
	for _, counter := range strings.FieldsFunc(row.text(0), func(r rune) bool { return r == ',' }) {
		table, n, _ := strings.Cut(counter, "=")
		if c.rows[table], err = strconv.ParseInt(n, 10, 64); err != nil {
			return c, errProtocol
		}
	}
	c.on, c.mayTurn = row.text(1) == "on", row.text(2) == "t"
	if c.exclusive, err = strconv.ParseInt(row.text(3), 10, 64); err != nil {
		return c, errProtocol
	}
	if c.unseen, err = strconv.ParseInt(row.text(4), 10, 64); err != nil {
		return c, errProtocol
	}
	return c, nil
}

// countable says whether the rows of a statement can be counted from here on.
// userCode says that it calls code that is not built in.
func (c rowCounts) countable(userCode bool) error {
	switch {
	case !c.on:
		return notCountableFault("track_counts")
	case userCode && c.mayTurn:
		return notCountableFault("the statement calls code of users, and the gate's database role may set track_counts")
	case c.exclusive > 0: // a trigger's TRUNCATE of that table would take no lock that shows
		return notCountableFault("the transaction holds a table as TRUNCATE does, by LOCK, DDL or a TRUNCATE; send the statement in a transaction of its own")
	case c.unseen > 0:
		return unseenFault()
	}
	return nil
}

func unseenFault() *fault.Fault {
	return notCountableFault("a table that the transaction writes is younger than its snapshot; send the statement in a transaction of its own, or in a READ COMMITTED one")
}

func notCountableFault(why string) *fault.Fault {
	return fault.New(fault.RowLimitExceeded, "The approval limits the rows that may change, and they cannot be counted here (%s). Nothing was applied; ask for an approval under a rule without max_rows.", why).
		With("reason", notCountable)
}

// countRows compares what changed with what the approval allows: the larger of
// the number in the tag of a write and the growth of the server's counters.
func (r *Result) countRows(before rowCounts, row *oneRow, most int64) error {
	changed, err := before.growth(row)
	if err != nil {
		return err
	}
	if word, _, _ := strings.Cut(r.CommandTag, " "); slices.Contains([]string{"INSERT", "UPDATE", "DELETE", "MERGE"}, word) {
		changed = max(changed, tagRows(r.CommandTag))
	}
	r.RowsChanged = &changed
	if changed > most {
		return tooManyRows(changed, most)
	}
	return nil
}

// growth is how many rows changed since c.
func (c rowCounts) growth(row *oneRow) (int64, error) {
	after, err := readCounts(row)
	switch {
	case err != nil:
		return 0, notCountableFault("no count")
	case !after.on:
		return 0, notCountableFault("the statement switched track_counts off")
	case after.exclusive > c.exclusive:
		return 0, notCountableFault("the statement holds a table as TRUNCATE and DROP do")
	case after.unseen > 0:
		return 0, unseenFault()
	}
	var grown int64
	for table, n := range after.rows {
		grown += max(n-c.rows[table], 0)
	}
	return grown, nil
}

// limitedRows are what a write of a block changed when it ran, and how many its
// approval allows.
type limitedRows struct{ changed, most int64 }

func tooManyRows(changed, most int64) error {
	return fault.New(fault.RowLimitExceeded, "The statement changes %d rows, the approval allows %d. It was rolled back; change fewer rows, or ask for an approval of more.", changed, most).
		With("max_rows", most).With("rows", changed)
}
