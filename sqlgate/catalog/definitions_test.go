package catalog_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/sqlgate/catalog"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
)

// A way is how a statement reaches the database: ended says why it did not run.
type way func(s *server, c *classify.Classification, st pgexec.Statement) (ended string, err error)

var ways = map[string]way{
	"read": func(s *server, _ *classify.Classification, st pgexec.Statement) (string, error) {
		r, err := s.db.BeginRead(s.t.Context(), &st, pgexec.Limits{})
		if err != nil {
			return "", err
		}
		res, err := r.Run(s.t.Context(), event.NewExecutionID(s.now), st, s.db.NewRows(1<<20))
		return res.ReasonCode, err
	},
	"write": func(s *server, c *classify.Classification, st pgexec.Statement) (string, error) {
		tx, err := s.db.Begin(s.t.Context(), pgexec.BeginOptions{ExecutionID: event.NewExecutionID(s.now)})
		if err != nil {
			return "", err
		}
		defer tx.Rollback()
		res, err := tx.Exec(s.t.Context(), st, s.db.NewRows(1<<20))
		return res.ReasonCode, err
	},
}

func init() {
	for _, isolation := range []string{"", "repeatable read", "serializable"} {
		ways[strings.TrimSpace("block "+isolation)] = func(s *server, c *classify.Classification, st pgexec.Statement) (string, error) {
			b, err := s.db.BeginBlock(s.t.Context(), pgexec.BlockOptions{Isolation: isolation})
			if err != nil {
				return "", err
			}
			defer b.Rollback()
			o := pgexec.BeginOptions{ExecutionID: event.NewExecutionID(s.now)}
			var res pgexec.Result
			if c.SafeRead {
				if _, err = b.DispatchRead(context.Background(), o); err == nil {
					res, err = b.Read(s.t.Context(), o, st, s.db.NewRows(1<<20))
				}
			} else if _, err = b.DispatchWrite(s.t.Context(), o); err == nil {
				res, err = b.Write(s.t.Context(), st, false, s.db.NewRows(1<<20))
			}
			return res.ReasonCode, err
		}
	}
}

// definedBy is a statement with what it was judged by.
func (s *server) definedBy(snapshot *catalog.Snapshot, sql string) (classify.Classification, pgexec.Statement) {
	s.t.Helper()
	c, err := s.classifier.Classify(s.t.Context(), sql)
	require.NoError(s.t, err, sql)
	_, d := snapshot.Resolve(&c, nil, false, nil, nil)
	return c, pgexec.Statement{SQL: sql, Definitions: (*pgexec.Definitions)(d)}
}

// A statement runs where nothing changed since it was judged, whatever stands behind its
// names, by every way to the database.
func TestADefinitionThatStandsEndsNoStatement(t *testing.T) {
	s := newServer(t, shop)
	snapshot := s.snapshot()
	compared := 0
	for _, sql := range []string{
		"SELECT * FROM plain", "SELECT * FROM order_emails", "SELECT * FROM totals", "SELECT * FROM pg_class", "SELECT * FROM secret", "SELECT * FROM parent", "SELECT * FROM split", "SELECT 1",
		"SELECT * FROM kept", "SELECT * FROM loud", "INSERT INTO defaulted VALUES (1)", "INSERT INTO marked VALUES (1)", "UPDATE moved SET at = 11", "DELETE FROM watched WHERE id = 1",
		"DELETE FROM customers WHERE id = 1", "UPDATE mine SET note = 'x' WHERE id = 1", "INSERT INTO ruled VALUES (1)", "INSERT INTO split VALUES (11)", "TRUNCATE orders CASCADE", "REFRESH MATERIALIZED VIEW kept",
		"ALTER TABLE orders ADD COLUMN x int", "INSERT INTO secret VALUES (1)", "INSERT INTO domained VALUES (1)", "CREATE TABLE fresh (id int)", "SELECT * FROM plain AS a, orders AS b, first_moved AS c",
	} {
		c, st := s.definedBy(snapshot, sql)
		for name, run := range ways {
			if name == "read" && !c.SafeRead || name == "write" && c.SafeRead {
				continue
			}
			for range 2 { // where the connection has it prepared, too
				_, plain := run(s, &c, pgexec.Statement{SQL: sql})
				ended, err := run(s, &c, st)
				assert.NotEqual(t, pgexec.ReasonCatalogChanged, ended, "%s: %s", name, sql)
				assert.Equal(t, plain == nil, err == nil, "%s: %s: %v, %v", name, sql, plain, err)
			}
		}
		if st.Definitions != nil {
			compared++
		}
	}
	require.Greater(t, compared, 20)
}

// A transaction that has defined something may define it anew, by a function that it calls:
// then the same one has changed what stands there.
func TestADefinitionThatChangedInItsOwnTransactionEndsTheStatement(t *testing.T) {
	s := newServer(t, shop)
	b, err := s.db.BeginBlock(t.Context(), pgexec.BlockOptions{})
	require.NoError(t, err)
	defer b.Rollback()
	o := pgexec.BeginOptions{ExecutionID: event.NewExecutionID(s.now), DDL: true}
	define := func(sql string) {
		_, err := b.DispatchWrite(t.Context(), o)
		require.NoError(t, err)
		_, err = b.Write(t.Context(), pgexec.Statement{SQL: sql}, false, s.db.NewRows(1<<20))
		require.NoError(t, err, sql)
	}
	read := func(st pgexec.Statement) string {
		_, err := b.DispatchRead(context.Background(), o)
		require.NoError(t, err)
		res, err := b.Read(t.Context(), o, st, s.db.NewRows(1<<20))
		if res.ReasonCode == "" {
			require.NoError(t, err)
		}
		return res.ReasonCode
	}
	define("CREATE VIEW fresh AS SELECT id FROM plain")
	_, st := s.definedBy(s.snapshotOf(b.Catalogue), "SELECT * FROM fresh")
	require.Empty(t, read(st))
	define("CREATE TABLE beside (id int)")
	require.Empty(t, read(st))
	define("CREATE OR REPLACE VIEW fresh AS SELECT id FROM orders")
	require.Equal(t, pgexec.ReasonCatalogChanged, read(st))
}

// Whatever changes behind the names of a statement between its judgement and its execution,
// by whatever way it goes, it does not run, and its client is told to send it again.
func TestADefinitionThatChangedEndsTheStatement(t *testing.T) {
	s := newServer(t, shop+`CREATE TABLE trunk (id int) PARTITION BY RANGE (id); CREATE TABLE branch PARTITION OF trunk FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF branch FOR VALUES FROM (0) TO (5); CREATE TABLE spare (id int, note text); CREATE POLICY own ON secret USING (true);
ALTER TABLE moved_1 ADD CONSTRAINT small CHECK (at < 100); CREATE SCHEMA blue; CREATE SCHEMA green; CREATE TABLE blue.visits (id int); CREATE TABLE green.visits (id int);`)
	for _, test := range []struct{ change, back, sql string }{
		{"CREATE TRIGGER t BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION audit()", "DROP TRIGGER t ON plain", "INSERT INTO plain VALUES (77)"},
		{"CREATE TRIGGER t AFTER DELETE ON lines FOR EACH ROW EXECUTE FUNCTION audit()", "DROP TRIGGER t ON lines", "DELETE FROM orders WHERE id = 1"},
		{"CREATE TRIGGER t AFTER INSERT ON leaf FOR EACH ROW EXECUTE FUNCTION audit()", "DROP TRIGGER t ON leaf", "INSERT INTO trunk VALUES (1)"},
		{"CREATE TRIGGER t AFTER INSERT ON moved_1 FOR EACH ROW EXECUTE FUNCTION audit()", "DROP TRIGGER t ON moved_1", "INSERT INTO moved VALUES (1, 1)"},
		{"ALTER TABLE held DISABLE TRIGGER ALL", "ALTER TABLE held ENABLE TRIGGER ALL", "DELETE FROM held WHERE id = 1"},
		{"CREATE RULE r AS ON INSERT TO plain DO ALSO DELETE FROM orders", "DROP RULE r ON plain", "INSERT INTO plain VALUES (78)"},
		{"ALTER TABLE plain ADD CONSTRAINT c CHECK (allowed(note))", "ALTER TABLE plain DROP CONSTRAINT c", "INSERT INTO plain VALUES (79)"},
		{"ALTER TABLE plain ALTER note SET DEFAULT next_note()", "ALTER TABLE plain ALTER note DROP DEFAULT", "INSERT INTO plain (id) VALUES (80)"},
		{"ALTER TABLE defaulted ALTER id SET DEFAULT 7", "ALTER TABLE defaulted ALTER id DROP DEFAULT", "INSERT INTO defaulted VALUES (1)"},
		{"CREATE INDEX i ON plain (mark(id))", "DROP INDEX i", "INSERT INTO plain VALUES (81)"},
		{"ALTER TABLE plain ENABLE ROW LEVEL SECURITY", "ALTER TABLE plain DISABLE ROW LEVEL SECURITY", "SELECT * FROM plain"},
		{"CREATE POLICY other ON secret USING (allowed('x'))", "DROP POLICY other ON secret", "SELECT * FROM secret"},
		{"ALTER POLICY own ON secret USING (allowed('y'))", "ALTER POLICY own ON secret USING (true)", "SELECT * FROM secret"},
		{"CREATE TABLE younger () INHERITS (parent)", "DROP TABLE younger", "SELECT * FROM parent"},
		{"CREATE OR REPLACE VIEW order_emails AS SELECT o.id, pg_sleep(0)::text AS email FROM orders AS o", "SELECT 1", "SELECT * FROM order_emails"},
		{"ALTER TABLE plain RENAME TO aside; ALTER TABLE spare RENAME TO plain", "ALTER TABLE plain RENAME TO spare; ALTER TABLE aside RENAME TO plain", "SELECT id FROM plain"},
		{"ALTER TABLE spare ALTER note TYPE varchar", "SELECT 1", "UPDATE spare SET note = 'x'"},
		{"CREATE TABLE late (id int)", "DROP TABLE late", "INSERT INTO late VALUES (1)"},
		{`CREATE SCHEMA "?x"; CREATE VIEW "?x".late AS SELECT 1`, `DROP SCHEMA "?x" CASCADE`, `SELECT * FROM "?x".late`},
		{`CREATE SCHEMA "information_schema.z"; CREATE VIEW "information_schema.z".late AS SELECT 1`, `DROP SCHEMA "information_schema.z" CASCADE`, `SELECT * FROM "information_schema.z".late`},
		{`CREATE VIEW "*" AS SELECT 1`, `DROP VIEW "*"`, `SELECT * FROM public."*"`},
		{"CREATE SCHEMA odd; CREATE VIEW odd.late AS SELECT 1", "DROP SCHEMA odd CASCADE", "SELECT * FROM odd.late"},
		{"CREATE TABLE referring (id int REFERENCES plain ON DELETE CASCADE)", "DROP TABLE referring", "DELETE FROM plain WHERE id = 1"},
		{"CREATE INDEX i ON leaf (mark(id))", "DROP INDEX i", "INSERT INTO trunk VALUES (2)"},
		{"ALTER TABLE moved_1 DROP CONSTRAINT small, ADD CONSTRAINT small CHECK (mark(at) > 0)", "ALTER TABLE moved_1 DROP CONSTRAINT small, ADD CONSTRAINT small CHECK (at < 100)", "INSERT INTO moved VALUES (1, 1)"},
		{"ALTER SCHEMA blue RENAME TO aside; ALTER SCHEMA green RENAME TO blue", "ALTER SCHEMA blue RENAME TO green; ALTER SCHEMA aside RENAME TO blue", "INSERT INTO blue.visits VALUES (1)"},
		{"ALTER TABLE plain ADD COLUMN extra text DEFAULT next_note()", "ALTER TABLE plain DROP COLUMN extra", "INSERT INTO plain VALUES (82)"},
	} {
		c, st := s.definedBy(s.snapshot(), test.sql)
		require.NotNil(t, st.Definitions, test.sql)
		s.run(test.change)
		for name, run := range ways {
			if name == "read" && !c.SafeRead || name == "write" && c.SafeRead {
				continue
			}
			for range 2 {
				ended, err := run(s, &c, st)
				if assert.Equal(t, pgexec.ReasonCatalogChanged, ended, "%s: %s; %s: %v", name, test.change, test.sql, err) {
					assert.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
					assert.Equal(t, "40001", fault.Of(err).Details["sqlstate"])
				}
			}
		}
		s.run(test.back)
	}
	require.Equal(t, "0", s.ask("SELECT count(*) FROM plain WHERE id > 76"))
}

// What a block does behind a change that came within it is not committed, at each level of
// isolation, also where the block's own snapshot is older than the change.
func TestADefinitionThatChangesWithinABlockEndsIt(t *testing.T) {
	s := newServer(t, shop)
	for _, isolation := range []string{"", "repeatable read", "serializable"} {
		_, first := s.definedBy(s.snapshot(), "INSERT INTO orders VALUES (901)")
		_, second := s.definedBy(s.snapshot(), "INSERT INTO plain VALUES (902)")
		b, err := s.db.BeginBlock(t.Context(), pgexec.BlockOptions{Isolation: isolation})
		require.NoError(t, err)
		defer b.Rollback()
		write := func(st pgexec.Statement) (pgexec.Result, error) {
			_, err := b.DispatchWrite(t.Context(), pgexec.BeginOptions{ExecutionID: event.NewExecutionID(s.now)})
			require.NoError(t, err)
			return b.Write(t.Context(), st, false, s.db.NewRows(1<<20))
		}
		_, err = write(first)
		require.NoError(t, err)
		s.run("CREATE TRIGGER t BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION audit()")
		res, err := write(second)
		require.Equal(t, pgexec.ReasonCatalogChanged, res.ReasonCode, "%s: %v", isolation, err)
		_, err = b.Commit(t.Context())
		require.Error(t, err)
		s.run("DROP TRIGGER t ON plain")
	}
	require.Equal(t, "0", s.ask(fmt.Sprint("SELECT count(*) FROM (SELECT id FROM plain UNION ALL SELECT id FROM orders) AS x WHERE id > 900")))
}

// A statement that waits for a lock, while what it was judged by changes under it, ends.
func TestAStatementThatWaitedForALockIsComparedBehindIt(t *testing.T) {
	s := newServer(t, shop+`CREATE TABLE heir () INHERITS (parent); CREATE TABLE aside (id int);`)
	looks, err := pgconn.Connect(t.Context(), s.url)
	require.NoError(t, err)
	t.Cleanup(func() { looks.Close(t.Context()) })
	for _, test := range []struct{ change, sql string }{
		{"CREATE TRIGGER t BEFORE TRUNCATE ON plain FOR EACH STATEMENT EXECUTE FUNCTION audit()", "TRUNCATE plain"},
		{"CREATE TRIGGER t BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION audit()", "INSERT INTO plain VALUES (701)"},
		{"CREATE TRIGGER t BEFORE DELETE ON lines FOR EACH ROW EXECUTE FUNCTION audit(); LOCK TABLE lines", "DELETE FROM orders WHERE id = 1"},
		{"CREATE TRIGGER t BEFORE INSERT ON moved_1 FOR EACH ROW EXECUTE FUNCTION audit(); LOCK TABLE moved_1", "INSERT INTO moved VALUES (1, 1)"},
		{"CREATE OR REPLACE VIEW order_emails AS SELECT o.id, h.note AS email FROM orders AS o JOIN held AS h ON h.id = o.id", "SELECT * FROM order_emails"},
		{"LOCK TABLE heir; CREATE TABLE secrets () INHERITS (heir)", "SELECT * FROM parent"},
	} {
		s.run("INSERT INTO orders VALUES (1) ON CONFLICT DO NOTHING; INSERT INTO lines (order_id) SELECT 1 WHERE NOT EXISTS (SELECT FROM lines WHERE order_id = 1)")
		for name, run := range ways {
			c, st := s.definedBy(s.snapshot(), test.sql)
			if name == "read" && !c.SafeRead || name == "write" && c.SafeRead {
				continue
			}
			s.run("BEGIN; " + test.change)
			type answer struct {
				ended string
				err   error
			}
			answers := make(chan answer, 1)
			go func() {
				ended, err := run(s, &c, st)
				answers <- answer{ended, err}
			}()
			waits := func() bool {
				rows, err := looks.Exec(t.Context(), "SELECT FROM pg_locks WHERE NOT granted").ReadAll()
				return err == nil && len(rows[0].Rows) > 0
			}
			require.Eventually(t, waits, time.Minute, 5*time.Millisecond, "%s: %s", name, test.sql)
			s.run("COMMIT")
			a := <-answers
			assert.Equal(t, pgexec.ReasonCatalogChanged, a.ended, "%s: %s; %s: %v", name, test.change, test.sql, a.err)
			s.run("DROP TRIGGER IF EXISTS t ON plain; DROP TRIGGER IF EXISTS t ON lines; DROP TRIGGER IF EXISTS t ON moved_1; DROP TABLE IF EXISTS secrets; CREATE OR REPLACE VIEW order_emails AS SELECT o.id, c.email FROM orders AS o JOIN customers AS c ON c.id = o.customer_id")
		}
	}
}

// What a transaction has defined itself is not what its later statements were judged by,
// whatever its isolation.
func TestWhatABlockDefinedItselfEndsWhatComesBehind(t *testing.T) {
	s := newServer(t, shop+`CREATE VIEW aside AS SELECT id, note FROM held; CREATE VIEW shown AS SELECT id, note FROM plain;`)
	for _, isolation := range []string{"", "repeatable read", "serializable"} {
		snapshot := s.snapshot()
		b, err := s.db.BeginBlock(t.Context(), pgexec.BlockOptions{Isolation: isolation})
		require.NoError(t, err)
		defer b.Rollback()
		o := pgexec.BeginOptions{ExecutionID: event.NewExecutionID(s.now)}
		var res pgexec.Result
		for _, sql := range []string{"ALTER VIEW shown RENAME TO away", "ALTER VIEW aside RENAME TO shown", "SELECT * FROM shown"} {
			c, st := s.definedBy(snapshot, sql)
			if c.SafeRead {
				_, err = b.DispatchRead(context.Background(), o)
				require.NoError(t, err)
				res, err = b.Read(t.Context(), o, st, s.db.NewRows(1<<20))
			} else {
				_, err = b.DispatchWrite(t.Context(), o)
				require.NoError(t, err)
				res, err = b.Write(t.Context(), st, false, s.db.NewRows(1<<20))
			}
			if err != nil {
				break
			}
		}
		require.Error(t, err)
		require.Equal(t, pgexec.ReasonCatalogChanged, res.ReasonCode, "%s: %v", isolation, err)
		b.Rollback()
	}
}
