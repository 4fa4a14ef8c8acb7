package sqlgate

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/eventlog/event"
	"writegate/fixtures/postgres"
	"writegate/projections"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policyfolder"
)

// heldSQL are the tables, views and sequences of users on which the other sessions have
// the lock of a read, and of no more.
const heldSQL = `SELECT coalesce(string_agg(DISTINCT c.relname, ' ' ORDER BY c.relname), '') FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
 WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.pid <> pg_backend_pid() AND l.mode = 'AccessShareLock' AND l.granted
 AND c.oid >= 16384 AND c.relkind NOT IN ('i', 'I')`

// The locks of what a block read, or had described, are those that a server holds.
func TestAReadInABlockKeepsItsLocks(t *testing.T) {
	w := newWireWorld(t, func(o *Options) {
		o.Policies.Dir = filepath.Join(t.TempDir(), "plans")
		require.NoError(t, policyfolder.Create(o.Policies.Dir, policyfolder.DefaultManifest, []byte(strings.Replace(wirePolicy, "MERGE, LOCK]", "MERGE, LOCK, EXPLAIN]", 1))))
	})
	postgres.ExecuteURL(t, w.url, `CREATE SCHEMA shop; CREATE SCHEMA "a.b"; CREATE TABLE shop.orders (id int PRIMARY KEY, v text); CREATE TABLE lines (id int, of int);
		CREATE VIEW of_lines AS SELECT l.id FROM lines l JOIN shop.orders o ON o.id = l.of; CREATE VIEW of_views AS SELECT * FROM of_lines WHERE id > 1;
		CREATE MATERIALIZED VIEW kept AS SELECT * FROM t; CREATE SEQUENCE numbers; CREATE TABLE "Odd ""name" (id int); CREATE TABLE "an.y" (id int);
		CREATE TABLE parent (id int); CREATE TABLE child () INHERITS (parent)`)
	direct, err := pgx.Connect(t.Context(), w.url)
	require.NoError(t, err)
	defer direct.Close(t.Context())
	type row struct {
		begin, held string
		before      string // statements
		sql         string
	}
	reads := map[string]string{
		"SELECT 1": "", "SHOW work_mem": "", "SELECT relname FROM pg_class WHERE false": "",
		"SELECT * FROM t": "t", "SELECT t.id FROM public.t, shop.orders": "orders t", "TABLE t": "t", "SELECT (SELECT max(v) FROM t), (SELECT max(v) FROM shop.orders)": "orders t",
		"SELECT * FROM of_lines": "lines of_lines orders", "SELECT * FROM of_views WHERE id = 3": "lines of_lines of_views orders", "SELECT * FROM kept": "kept", "SELECT last_value FROM numbers": "numbers",
		`SELECT * FROM "Odd ""name"`: `Odd "name`, "WITH t AS (SELECT * FROM t) SELECT * FROM t": "t", "WITH t AS (SELECT 1) SELECT * FROM t": "",
		"SELECT * FROM t AS a JOIN t AS b ON a.id = b.id": "t", "SELECT * FROM ONLY parent": "parent", "EXPLAIN SELECT * FROM t": "t", "SELECT * FROM t WHERE id IN (SELECT id FROM lines)": "lines t",
	}
	var rows []row
	for sql, held := range reads {
		rows = append(rows, row{"BEGIN", held, "", sql})
	}
	for _, begin := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE", "BEGIN READ ONLY", "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE"} {
		rows = append(rows, row{begin, "lines of_lines orders", "", "SELECT * FROM of_lines"}, row{begin, "t", "SELECT 1; SHOW work_mem; SAVEPOINT s; SELECT * FROM lines; ROLLBACK TO s", "SELECT * FROM t"},
			row{begin, "lines t", "SAVEPOINT s; SELECT * FROM lines; RELEASE s", "SELECT * FROM t"}, row{begin, "lines t", "SAVEPOINT s; SELECT * FROM lines; ROLLBACK TO s; SELECT * FROM lines", "SELECT * FROM t"})
	}
	run := func(r row, query func(sql string)) {
		query(r.begin)
		for sql := range strings.SplitSeq(r.before, "; ") {
			if sql != "" {
				query(sql)
			}
		}
		query(r.sql)
		require.Equal(t, r.held, w.value(heldSQL), "%s; %s; %s", r.begin, r.before, r.sql)
		query("ROLLBACK")
	}
	c := w.wire()
	for _, r := range rows {
		run(r, func(sql string) {
			_, err := direct.Exec(t.Context(), sql)
			require.NoError(t, err, "as a server holds")
		})
		run(r, func(sql string) { c.query(sql) })
	}

	c.query("BEGIN")
	c.query("SELECT 1")
	require.NoError(t, c.Parse(t.Context(), "", "SELECT * FROM of_lines", nil))
	_, _, err = c.DescribeStatement(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, "lines of_lines orders", w.value(heldSQL), "what was described stays what it is")
	c.query("ROLLBACK")

	c.query("BEGIN") // what is only to be made is not looked for
	c.query("SELECT 1")
	for sql, held := range map[string]string{
		"EXPLAIN CREATE TABLE made AS SELECT * FROM t": "t", "EXPLAIN SELECT * INTO made FROM t": "t", "EXPLAIN CREATE MATERIALIZED VIEW made AS SELECT * FROM t": "t",
		"INSERT INTO lines (id) SELECT id FROM t RETURNING id": "lines t",
	} {
		c.query("SAVEPOINT s")
		require.NoError(t, c.Parse(t.Context(), "", sql, nil))
		_, _, err = c.DescribeStatement(t.Context(), "")
		require.NoError(t, err, sql)
		require.Equal(t, held, w.value(heldSQL), sql)
		c.query("ROLLBACK TO s")
	}
	c.query("ROLLBACK")

	c.query("BEGIN")
	c.query("CREATE TEMPORARY TABLE passing (id int)")
	c.query("SELECT * FROM passing")
	c.query(`SELECT * FROM "an.y"`)
	require.Equal(t, "42P01", state(c.refused("SELECT * FROM nowhere")))
	c.query("ROLLBACK")
}

// A wait for such a lock ends as the client said, and with its cancel.
func TestAWaitForTheLockOfAReadEndsInTime(t *testing.T) {
	w := newWireWorld(t, nil)
	direct, err := pgx.Connect(t.Context(), w.url)
	require.NoError(t, err)
	defer direct.Close(t.Context())
	_, err = direct.Exec(t.Context(), "BEGIN; LOCK TABLE t")
	require.NoError(t, err)
	c := w.wire()
	c.query("SET lock_timeout = '30ms'")
	c.query("BEGIN")
	c.query("SAVEPOINT s")
	require.Equal(t, "55P03", state(c.refused("SELECT * FROM t")))
	c.query("ROLLBACK TO s")
	for setting, want := range map[string]string{"lock_timeout": "55P03", "statement_timeout": "57014"} { // a Describe is no different
		for _, begin := range []string{"ROLLBACK", "BEGIN; SELECT 1"} {
			c.query("ROLLBACK")
			c.query("RESET ALL")
			for sql := range strings.SplitSeq(begin+"; SET "+setting+" = '30ms'", "; ") {
				c.query(sql)
			}
			require.NoError(t, c.Parse(t.Context(), "", "SELECT * FROM t", nil))
			_, _, err := c.DescribeStatement(t.Context(), "")
			require.Equal(t, want, state(err), "%s; %s: %v", setting, begin, err)
			c.sync()
		}
	}
	c.query("ROLLBACK")
	_, err = direct.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	c.query("SELECT * FROM t")
}

// A block that an error of the gate's own ended lets go what a server lets go.
func TestAFailedBlockHoldsNothingThatItDidSince(t *testing.T) {
	w := newWireWorld(t, nil)
	postgres.ExecuteURL(t, w.url, "INSERT INTO t VALUES (1), (2)")
	for _, wrong := range []string{"RELEASE nowhere", "ROLLBACK TO nowhere", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "VACUUM t", "COPY t FROM STDIN", "SELEC 1"} {
		c := w.wire()
		c.query("BEGIN")
		c.query("UPDATE t SET v = 'kept' WHERE id = 1")
		c.query("SAVEPOINT s")
		c.query("UPDATE t SET v = 'undone' WHERE id = 2")
		c.refused(wrong)
		if c.Status() == WireFailed {
			postgres.ExecuteURL(t, w.url, "SET lock_timeout = '50ms'; UPDATE t SET v = v WHERE id = 2")
		}
		c.query("ROLLBACK TO s")
		c.query("COMMIT")
		require.Equal(t, "kept", w.value("SELECT v FROM t WHERE id = 1"), wrong)
		require.Empty(t, w.value("SELECT coalesce(v, '') FROM t WHERE id = 2"), wrong)
		postgres.ExecuteURL(t, w.url, "UPDATE t SET v = NULL")
	}
}

// A block of one snapshot takes it where a server would: SHOW takes none.
func TestASnapshotIsNotTakenByShow(t *testing.T) {
	w := newWireWorld(t, nil)
	for i, begin := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE", "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY"} {
		c := w.wire()
		c.query(begin)
		c.query("SHOW work_mem")
		postgres.ExecuteURL(t, w.url, "INSERT INTO t SELECT count(*) FROM t")
		_, rows := c.query("SELECT count(*) FROM t")
		require.Len(t, rows, 1)
		require.Equal(t, string(rune('1'+i)), rows[0], begin)
		c.query("COMMIT")
		c.query("BEGIN")
		c.query("SHOW work_mem")
		c.query("SET TRANSACTION" + strings.TrimPrefix(begin, "BEGIN"))
		c.query("SHOW work_mem")
		c.query("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
		c.query("COMMIT")
	}
}

// The lock asks for no right that the read does not need.
func TestTheLockOfAReadNeedsNoRightOfItsOwn(t *testing.T) {
	url := postgres.ForTest(t)
	postgres.ExecuteURL(t, url, "CREATE ROLE reads_columns LOGIN PASSWORD 'plain'; CREATE TABLE salaries (id int, amount int); CREATE VIEW ids AS SELECT id FROM salaries")
	defer postgres.ExecuteURL(t, url, "DROP OWNED BY reads_columns; DROP ROLE reads_columns")
	postgres.ExecuteURL(t, url, "GRANT SELECT (id) ON salaries TO reads_columns; GRANT SELECT ON ids TO reads_columns")
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	w := newWireWorldAt(t, url, fmt.Sprintf("postgres://reads_columns:plain@%s:%d/%s", config.Host, config.Port, config.Database), nil)
	c := w.wire()
	c.query("BEGIN")
	c.query("SELECT id FROM salaries")
	c.query("SELECT id FROM ids")
	c.query("SAVEPOINT s")
	require.Equal(t, "42501", state(c.refused("SELECT amount FROM salaries")))
	c.query("ROLLBACK TO s")
	require.Equal(t, "ids salaries", w.value(heldSQL))
	c.query("COMMIT")
}

// What is read behind a lock is of after the lock: in a transaction with one snapshot
// nothing of the gate's takes it before. The modes are settled by what takes the
// snapshot, too. Outside of a block there is no lock, as at a server.
func TestALockDoesNotComeBehindItsSnapshot(t *testing.T) {
	w := newWireWorld(t, func(o *Options) {
		o.Policies.Dir = filepath.Join(t.TempDir(), "locks")
		require.NoError(t, policyfolder.Create(o.Policies.Dir, policyfolder.DefaultManifest, []byte(strings.Replace(wirePolicy, "MERGE, LOCK]", "MERGE, LOCK, NOTIFY]", 1))))
	})
	postgres.ExecuteURL(t, w.url, "CREATE TABLE other AS SELECT 1 AS v")
	const lock = "LOCK TABLE t IN EXCLUSIVE MODE"
	c := w.wire()
	require.Equal(t, "25P01", state(c.refused(lock)))
	postgres.ExecuteURL(t, w.url, "INSERT INTO t VALUES (1)")
	for _, begin := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE", "BEGIN; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
		"SET default_transaction_isolation = 'repeatable read'; BEGIN"} {
		for between, sees := range map[string]bool{
			"": true, "SAVEPOINT s": true, "SHOW work_mem": true, "SAVEPOINT s; LOCK t IN ACCESS SHARE MODE; ROLLBACK TO s": true, "SAVEPOINT s; LISTEN x; ROLLBACK TO s": true, "NOTIFY x": false,
			"SELECT count(*) FROM t": false, "UPDATE t SET v = 'a' WHERE id = 1": false,
		} {
			if strings.HasSuffix(begin, "READ ONLY") && strings.HasPrefix(between, "UPDATE") {
				continue
			}
			c := w.wire()
			for sql := range strings.SplitSeq(begin+"; "+between, "; ") {
				if sql != "" {
					_, err := c.Query(t.Context(), sql, &rowsSink{})
					require.Equal(t, sql == "LISTEN x", err != nil, "%s: %v", sql, err)
				}
			}
			mode := "EXCLUSIVE"
			if strings.HasSuffix(begin, "READ ONLY") {
				mode = "ACCESS SHARE" // no other is taken there
			}
			c.query("LOCK TABLE t IN " + mode + " MODE")
			before := w.value("SELECT v FROM other")
			postgres.ExecuteURL(t, w.url, "UPDATE other SET v = v + 1")
			_, rows := c.query("SELECT v FROM other")
			require.Equal(t, sees, rows[0] != before, "%s; %s", begin, between)
			require.Equal(t, "25001", state(c.refused("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")))
			c.query("ROLLBACK")
			c.query("BEGIN")
			c.query("LOCK TABLE t IN ACCESS SHARE MODE")
			c.query("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
			require.Equal(t, "serializable", c.show("transaction_isolation"))
			c.query("COMMIT")
			c.Close(t.Context())
		}
	}
	c = w.wire()
	require.Equal(t, "25P01", state(c.executed(lock, nil)), "nor is there one between two Syncs")
	c.sync()
	c.ran("UPDATE t SET v = 'a' WHERE id = 1")
	c.ran(lock) // where a transaction is open already there is
	c.sync()
	require.Equal(t, "a", w.value("SELECT v FROM t"))
}

// Whatever became of a lock, nothing was applied, and nobody has to look.
func TestALockWhoseEndIsNotRecordedIsSettled(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN ISOLATION LEVEL REPEATABLE READ")
	c.query("LOCK TABLE t")
	require.NoError(t, w.Commands.Start(t.Context(), commands.Startup{Mode: ModeEnforce, Event: event.Startup{Version: "0", Engine: EngineRecord()}}), "as behind a crash")
	events := w.events()
	unknown := slices.IndexFunc(events, func(e event.Envelope) bool { return e.Type == event.TypeExecutionStateUnknown })
	x, err := w.CheckOutcome(t.Context(), events[unknown].Context.ExecutionID, "")
	require.NoError(t, err)
	require.Equal(t, []string{"LOCK", projections.ExecutionFailure, pgexec.OutcomeAborted, pgexec.BasisReadOnly}, []string{x.Operation, x.State, x.Outcome, x.Basis})
}
