package pgexec

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// dry is a dry run of a statement whose facts the test names: what it writes, what it reads.
func dry(t testing.TB, db *DB, sql, written, read string, change ...func(*DryRunRequest)) (Result, *DryReport, error) {
	t.Helper()
	d, err := beginDry(t, db, sql, written, read, change...)
	if err != nil {
		return Result{}, nil, err
	}
	return d.Run(t.Context(), Statement{SQL: sql})
}

func beginDry(t testing.TB, db *DB, sql, written, read string, change ...func(*DryRunRequest)) (*DryRun, error) {
	t.Helper()
	r := DryRunRequest{Written: []string{written}, Columns: []string{written + ".*"}, Time: time.Minute, LockTime: 200 * time.Millisecond, Rows: 20, Alone: func([]string) error { return nil },
		Words: strings.FieldsFunc(strings.ToLower(sql), func(c rune) bool { return c < 'a' && c != '_' || c > 'z' }),
		Safe: func(_ context.Context, calls []BuiltinCall) (string, error) {
			if slices.Contains(calls, BuiltinCall{"query_to_xml", 4}) {
				return "query_to_xml", nil
			}
			return "", nil
		}}
	if read != "" {
		r.Read = []string{read}
	}
	r.Events = map[string]int{"I": TriggersInsert, "U": TriggersUpdate, "D": TriggersDelete}[sql[:1]]
	if strings.Contains(sql, "ON CONFLICT") {
		r.Events, r.Defaults = TriggersInsert|TriggersUpdate, true
	}
	for _, operator := range []string{"<@@>"} {
		if strings.Contains(sql, operator) {
			r.Operators = append(r.Operators, operator)
		}
	}
	for _, c := range change {
		c(&r)
	}
	return db.BeginDryRun(t.Context(), BeginOptions{ExecutionID: "exe_" + t.Name()}, r)
}

// patient lets the server answer however late, with what else the machine does.
func patient(c *Config) {
	c.QueryTimeout, c.DeadlineSlack, c.AcquireTimeout = time.Minute, time.Minute, time.Minute
}

// words are the tables of a report: inserted, updated and deleted.
func (r *DryReport) words() string {
	var list []string
	for _, t := range r.Tables {
		word := fmt.Sprint(t.Table, " ", t.Inserted, "/", t.Updated, "/", t.Deleted)
		if t.Cascade {
			word += " cascade"
		}
		list = append(list, word)
	}
	return strings.Join(list, ", ")
}

const dryWorld = `CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE TABLE hub (id int PRIMARY KEY, name text DEFAULT 'none', at timestamptz DEFAULT now(), state mood DEFAULT 'glad', twice int GENERATED ALWAYS AS (id * 2) STORED, CHECK (length(name) < 100));
CREATE TABLE spoke (id int PRIMARY KEY, hub int REFERENCES hub ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE leaf (spoke int REFERENCES spoke ON DELETE SET NULL, note text);
CREATE TABLE tree (id int PRIMARY KEY, above int REFERENCES tree ON DELETE CASCADE);
CREATE TABLE part (k int, v text, PRIMARY KEY (k)) PARTITION BY RANGE (k);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (200);
CREATE TABLE other (id int, n int);
CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED, hub int REFERENCES hub DEFERRABLE INITIALLY DEFERRED);
INSERT INTO hub SELECT n, 'hub ' || n FROM generate_series(1, 10) AS n;
INSERT INTO spoke SELECT n, 1 + n % 10 FROM generate_series(1, 40) AS n;
INSERT INTO leaf SELECT 1 + n % 40, 'x' FROM generate_series(1, 80) AS n;
INSERT INTO tree SELECT n, NULLIF(n / 2, 0) FROM generate_series(1, 15) AS n;
INSERT INTO part SELECT n, 'p' FROM generate_series(0, 199) AS n;`

// contents is all that the tables hold, with where each row lies.
const contents = `SELECT md5(string_agg(concat(t.relname, query_to_xml(format('SELECT tableoid::regclass, ctid, xmin, * FROM %I ORDER BY tableoid, ctid', t.relname), true, true, '')::text), '' ORDER BY t.relname)) FROM pg_class AS t WHERE t.relkind = 'r' AND t.relnamespace = 'public'::regnamespace`

func TestADryRunCountsWhatTheStatementChangesAndUndoesIt(t *testing.T) {
	db, side := open(t, patient)
	side.run(dryWorld)
	before := side.ask(contents)
	for _, c := range []struct{ sql, table, read, want string }{
		{"INSERT INTO hub (id) VALUES (11), (12)", "public.hub", "", "public.hub 2/0/0"},
		{"INSERT INTO hub (id, name) SELECT id + 100, name FROM hub", "public.hub", "public.hub", "public.hub 10/0/0"},
		{"INSERT INTO hub (id) VALUES (1), (13) ON CONFLICT (id) DO NOTHING", "public.hub", "", "public.hub 1/0/0"},
		{"INSERT INTO hub (id) VALUES (1), (13) ON CONFLICT (id) DO UPDATE SET name = 'again'", "public.hub", "", "public.hub 1/1/0"},
		{"UPDATE hub SET name = 'y' WHERE id < 4 RETURNING *", "public.hub", "", "public.hub 0/3/0"},
		{"UPDATE hub SET id = id + 50 WHERE id = 2", "public.hub", "", "public.hub 0/1/0, public.spoke 0/4/0 cascade"},
		{"DELETE FROM hub WHERE id = 1", "public.hub", "", "public.hub 0/0/1, public.leaf 0/8/0 cascade, public.spoke 0/0/4 cascade"},
		{"DELETE FROM hub WHERE id = 99", "public.hub", "", ""},
		{"DELETE FROM tree WHERE id = 2", "public.tree", "", "public.tree 0/0/7"},
		{"UPDATE part SET v = 'q' WHERE k < 150", "public.part", "", "public.part 0/150/0"},
		{"UPDATE part SET k = k + 100 WHERE k = 0 AND false", "public.part", "", ""},
		{"INSERT INTO part_1 (k) SELECT k FROM part WHERE false", "public.part_1", "public.part", ""},
		{"DELETE FROM part WHERE k >= 190 OR k < 5", "public.part", "", "public.part 0/0/15"},
		{"INSERT INTO late VALUES (1, 1)", "public.late", "", "public.late 1/0/0"},
	} {
		result, report, err := dry(t, db, c.sql, c.table, c.read)
		require.NoError(t, err, c.sql)
		require.Equal(t, c.want, report.words(), c.sql)
		require.Equal(t, Success, result.State)
		require.Equal(t, BasisRollbackAcknowledged, result.Basis)
		require.Empty(t, report.RowsOmitted, c.sql)
	}
	require.Equal(t, before, side.ask(contents))
	require.Equal(t, "0", side.ask("SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE a.backend_type = 'client backend' AND pid <> pg_backend_pid() AND l.locktype IN ('relation', 'tuple') AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"))
	givenBack(t, db)

	side.run("DELETE FROM part WHERE k = 100") // a row that moves is deleted here and inserted there
	_, report, err := dry(t, db, "UPDATE part SET k = k + 100 WHERE k = 0", "public.part", "")
	require.NoError(t, err)
	require.Equal(t, "public.part 1/0/1", report.words())
}

func TestADryRunShowsRowsBeforeAndBehind(t *testing.T) {
	db, side := open(t, patient)
	side.run(dryWorld)
	shown := func(sql, table string, change ...func(*DryRunRequest)) string {
		_, report, err := dry(t, db, sql, table, "", change...)
		require.NoError(t, err)
		require.Empty(t, report.RowsOmitted)
		text, err := json.Marshal(report.Rows)
		require.NoError(t, err)
		return string(text)
	}
	require.JSONEq(t, `[{"table": "public.spoke", "before": [{"id": 1, "hub": 2}], "after": [{"id": 1, "hub": 3}]}]`, shown("UPDATE spoke SET hub = 3 WHERE id = 1", "public.spoke"))
	require.JSONEq(t, `[{"table": "public.tree", "before": [], "after": [{"id": 99, "above": 1}]}]`, shown("INSERT INTO tree VALUES (99, 1)", "public.tree"), "the row that it refers to is locked, and not changed")
	require.JSONEq(t, `[{"table": "public.tree", "before": [{"id": 7, "above": 3}, {"id": 14, "above": 7}, {"id": 15, "above": 7}], "after": []}]`, shown("DELETE FROM tree WHERE id = 7", "public.tree"))
	require.JSONEq(t, `[{"table": "public.part", "before": [{"k": 5, "v": "p"}], "after": [{"k": 5, "v": "w"}]}]`, shown("UPDATE part SET v = 'w' WHERE k = 5", "public.part"))
	require.Equal(t, "null", shown("UPDATE part SET v = 'w' WHERE k = 5", "public.part", func(r *DryRunRequest) { r.Rows = 0 }))
	_, report, err := dry(t, db, "DELETE FROM part", "public.part", "")
	require.NoError(t, err)
	require.Len(t, report.Rows[0].Before, 20)
	side.run("BEGIN; SELECT FROM hub WHERE id IN (2, 3) FOR KEY SHARE")
	_, report, err = dry(t, db, "UPDATE hub SET name = 'x' WHERE id < 4", "public.hub", "")
	require.NoError(t, err)
	require.Len(t, report.Rows[0].Before, 1)
	require.Len(t, report.Rows[0].After, 3)
	require.Contains(t, report.RowsOmitted, "of public.hub before the change not all", "rows that somebody else has locked, too, are not left out in silence")
	side.run("ROLLBACK; UPDATE part SET v = repeat('x', 5000) WHERE k = 1")
	require.JSONEq(t, `[{"table": "public.part", "before": [null], "after": []}]`, shown("DELETE FROM part WHERE k = 1", "public.part"))
	side.run(`CREATE FUNCTION forged(mood) RETURNS json LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_lock(7); RETURN ''"innocent"''; END';
 CREATE TABLE felt (id int PRIMARY KEY, "Felt, now" mood, many mood[], gone int, shown text); ALTER TABLE felt DROP gone; INSERT INTO felt VALUES (1, 'glad', '{glad,sad}', 's'), (2, NULL, NULL, NULL)`)
	d, err := beginDry(t, db, "UPDATE felt SET \"Felt, now\" = 'sad'", "public.felt", "")
	require.NoError(t, err)
	reading := rowsOf(&d.found.Tables[0], "%s.xmin IS NOT NULL")
	d.Rollback()
	side.run("CREATE CAST (mood AS json) WITH FUNCTION forged(mood); CREATE FUNCTION forged_text(mood) RETURNS text LANGUAGE sql AS 'SELECT forged($1)::text'; CREATE CAST (mood AS text) WITH FUNCTION forged_text(mood) AS IMPLICIT")
	require.Equal(t, "2", side.ask("SELECT count(x) FROM ("+reading+") AS x"))
	require.Equal(t, "0", side.ask(advisoryLocks), "a cast that comes behind the last look is not used")
	side.run("DROP CAST (mood AS json); DROP CAST (mood AS text)")
	require.JSONEq(t, `[{"table": "public.felt", "before": [{"id": 1, "Felt, now": "glad", "many": "{glad,sad}", "shown": "s"}, {"id": 2, "Felt, now": null, "many": null, "shown": null}],
 "after": [{"id": 1, "Felt, now": "sad", "many": "{glad,sad}", "shown": "s"}, {"id": 2, "Felt, now": "sad", "many": null, "shown": null}]}]`, shown("UPDATE felt SET \"Felt, now\" = 'sad'", "public.felt"))
	side.run("CREATE TABLE odd (gate_dry_run_row int, x int); INSERT INTO odd VALUES (1, 2)")
	require.JSONEq(t, `[{"table": "public.odd", "before": [{"gate_dry_run_row": 1, "x": 2}], "after": [{"gate_dry_run_row": 1, "x": 3}]}]`, shown("UPDATE odd SET x = 3", "public.odd"))
}

func TestADryRunRefusesWhatIsNotPlain(t *testing.T) {
	db, side := open(t, patient)
	side.run(dryWorld)
	side.run(`CREATE SCHEMA code; CREATE FUNCTION code.fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_lock(1); RETURN NEW; END'; CREATE FUNCTION code.three(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 3';
 CREATE DOMAIN code.small AS int CHECK (VALUE < 1000); CREATE TYPE code.pair AS (a int, b int); CREATE SEQUENCE counter`)
	for _, c := range []struct{ setup, undo, sql, table, read, want string }{
		{"CREATE TRIGGER t BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION code.fired()", "DROP TRIGGER t ON other", "UPDATE other SET n = 1", "public.other", "", "has the trigger t"},
		{"CREATE TRIGGER t AFTER DELETE ON leaf FOR EACH STATEMENT EXECUTE FUNCTION code.fired()", "DROP TRIGGER t ON leaf", "DELETE FROM hub", "public.hub", "", "public.leaf has the trigger t"},
		{"CREATE TRIGGER t BEFORE UPDATE ON part_2 FOR EACH ROW EXECUTE FUNCTION code.fired()", "DROP TRIGGER t ON part_2", "UPDATE part SET v = 'x'", "public.part", "", "public.part_2 has the trigger t"},
		{"CREATE CONSTRAINT TRIGGER t AFTER INSERT ON other DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION code.fired()", "DROP TRIGGER t ON other", "INSERT INTO other VALUES (1, 2)", "public.other", "", "has the trigger t"},
		{"CREATE RULE r AS ON UPDATE TO other DO ALSO INSERT INTO other VALUES (9, 9)", "DROP RULE r ON other", "UPDATE other SET n = 1", "public.other", "", "has the rule r"},
		{"CREATE VIEW seen AS SELECT * FROM other", "DROP VIEW seen", "UPDATE seen SET n = 1", "public.seen", "", "no plain table"},
		{"CREATE VIEW seen AS SELECT * FROM other", "DROP VIEW seen", "INSERT INTO hub (id) SELECT id FROM seen", "public.hub", "public.seen", "no plain table"},
		{"", "", "DELETE FROM nowhere", "public.nowhere", "", "no table public.nowhere"},
		{"ALTER TABLE other ADD s serial", "ALTER TABLE other DROP s", "INSERT INTO other VALUES (1, 2)", "public.other", "", "nextval, and a sequence does not go back"},
		{"ALTER TABLE other ADD s int GENERATED BY DEFAULT AS IDENTITY", "ALTER TABLE other DROP s", "INSERT INTO other VALUES (1, 2)", "public.other", "", "identity of public.other.s"},
		{"ALTER TABLE other ALTER n SET DEFAULT random() * 10", "ALTER TABLE other ALTER n DROP DEFAULT", "INSERT INTO other (id) VALUES (1)", "public.other", "", "random, which is volatile"},
		{"ALTER TABLE other ADD u uuid DEFAULT gen_random_uuid()", "ALTER TABLE other DROP u", "INSERT INTO other (id) VALUES (1)", "public.other", "", "gen_random_uuid, which is volatile"},
		{"ALTER TABLE other ALTER n SET DEFAULT code.three(1)", "ALTER TABLE other ALTER n DROP DEFAULT", "INSERT INTO other (id) VALUES (1)", "public.other", "", "not built in"},
		{"ALTER TABLE other ADD CHECK (pg_notify('x', 'y') IS NULL)", "ALTER TABLE other DROP CONSTRAINT other_check", "UPDATE other SET n = 1", "public.other", "", "pg_notify, which is volatile"},
		{"ALTER TABLE other ADD CONSTRAINT c CHECK (query_to_xml('SELECT 1', true, true, '') IS NOT NULL)", "ALTER TABLE other DROP CONSTRAINT c", "UPDATE other SET n = 1", "public.other", "", "calls query_to_xml"},
		{"ALTER TABLE other ADD CONSTRAINT c CHECK (code.three(n) = 3)", "ALTER TABLE other DROP CONSTRAINT c", "UPDATE other SET n = 1", "public.other", "", "not built in"},
		{"ALTER TABLE other ADD g int GENERATED ALWAYS AS (code.three(n)) STORED", "ALTER TABLE other DROP g", "UPDATE other SET n = 1", "public.other", "", "not built in"},
		{"CREATE INDEX i ON other (code.three(n))", "DROP INDEX i", "UPDATE other SET n = 1", "public.other", "", "not built in"},
		{"CREATE INDEX i ON other (n) WHERE code.three(n) = 3", "DROP INDEX i", "DELETE FROM other", "public.other", "", "not built in"},
		{"ALTER TABLE other ADD d code.small", "ALTER TABLE other DROP d", "UPDATE other SET n = 1", "public.other", "", "type that is not built in"},
		{"ALTER TABLE other ADD d code.pair", "ALTER TABLE other DROP d", "UPDATE other SET n = 1", "public.other", "", "type that is not built in"},
		{"CREATE TABLE below (g code.small) INHERITS (other)", "DROP TABLE below", "UPDATE other SET n = 1", "public.other", "", "public.below.g"},
		{"CREATE FOREIGN DATA WRAPPER w; CREATE SERVER away FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE abroad (id int, n int) SERVER away", "DROP FOREIGN DATA WRAPPER w CASCADE", "INSERT INTO hub (id) SELECT id FROM abroad", "public.hub", "public.abroad", "no plain table"},
		{"ALTER TABLE other ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON other USING (code.three(n) = 3)", "DROP POLICY p ON other; ALTER TABLE other DISABLE ROW LEVEL SECURITY", "DELETE FROM other", "public.other", "", "not built in"},
		{"ALTER TABLE other ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON other USING (EXISTS (SELECT FROM hub))", "DROP POLICY p ON other; ALTER TABLE other DISABLE ROW LEVEL SECURITY", "DELETE FROM other", "public.other", "", "reads other tables"},
		{"ALTER TABLE other ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON other USING (pg_try_advisory_lock(n))", "DROP POLICY p ON other; ALTER TABLE other DISABLE ROW LEVEL SECURITY", "DELETE FROM other", "public.other", "", "pg_try_advisory_lock, which is volatile"},
		{"CREATE FUNCTION code.length(text) RETURNS int LANGUAGE sql AS 'SELECT 1'", "DROP FUNCTION code.length", "UPDATE hub SET name = 'x' WHERE length(name) > 1", "public.hub", "", "bears the name length"},
		{"CREATE FUNCTION code.plus(hub, int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE OPERATOR code.+ (LEFTARG = hub, RIGHTARG = int, FUNCTION = code.plus)", "DROP FUNCTION code.plus CASCADE", "UPDATE other SET n = n + 1", "public.other", "", "bears the name +"},
		{"CREATE CAST (code.pair AS text) WITH INOUT AS ASSIGNMENT", "DROP CAST (code.pair AS text)", "UPDATE other SET n = 1", "public.other", "", "a cast that is not built in, from code.pair to text"},
		{"CREATE EXTENSION citext; CREATE CAST (bigint AS citext) WITH INOUT AS IMPLICIT", "DROP EXTENSION citext CASCADE", "UPDATE other SET n = 1", "public.other", "", "a cast that is not built in, from bigint to citext"},
		{"CREATE DOMAIN code.n AS int; CREATE FUNCTION code.plus(code.n, code.n) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE OPERATOR code.+ (LEFTARG = code.n, RIGHTARG = code.n, FUNCTION = code.plus)", "DROP DOMAIN code.n CASCADE", "UPDATE other SET n = n + 1", "public.other", "", "bears the name +"},
		{"CREATE FUNCTION code.same(hub, hub) RETURNS bool LANGUAGE sql AS 'SELECT true'; CREATE OPERATOR code.= (LEFTARG = hub, RIGHTARG = hub, FUNCTION = code.same)", "DROP FUNCTION code.same CASCADE", "UPDATE hub SET name = 'x' WHERE hub = hub", "public.hub", "", "bears the name ="},
		{"CREATE EXTENSION citext; CREATE FUNCTION code.both(citext, citext) RETURNS bool LANGUAGE sql AS 'SELECT true'; CREATE OPERATOR code.<@@> (LEFTARG = citext, RIGHTARG = citext, FUNCTION = code.both)", "DROP EXTENSION citext CASCADE", "UPDATE other SET n = 1 WHERE 'a' <@@> 'b'", "public.other", "", "bears the name <@@>"},
		{"ALTER TABLE leaf ALTER spoke SET DEFAULT nextval('counter'); ALTER TABLE leaf DROP CONSTRAINT leaf_spoke_fkey; ALTER TABLE leaf ADD FOREIGN KEY (spoke) REFERENCES spoke ON DELETE SET DEFAULT NOT VALID",
			"ALTER TABLE leaf ALTER spoke DROP DEFAULT", "DELETE FROM spoke", "public.spoke", "", "nextval"},
		{"CREATE FUNCTION code.ordered(box, box) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 0'; CREATE OPERATOR CLASS code.boxes DEFAULT FOR TYPE box USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 code.ordered(box, box)", "DROP FUNCTION code.ordered CASCADE",
			"UPDATE other SET n = 1", "public.other", "", "the operator class boxes"},
		{"", "", "DELETE FROM pg_catalog.pg_class", "pg_catalog.pg_class", "", "a table of the server"},
	} {
		if c.setup != "" {
			side.run(c.setup)
		}
		before := side.ask(contents)
		_, _, err := dry(t, db, c.sql, c.table, c.read)
		f, refused := fault.As(err)
		require.True(t, refused, "%s: %s: %v", c.setup, c.sql, err)
		require.Equal(t, fault.DryRunRefused, f.Code, c.setup+": "+f.Message)
		require.Contains(t, f.Message, c.want, c.setup)
		require.Equal(t, DryRunNotPlain, f.Details["reason"])
		require.Equal(t, before, side.ask(contents))
		if c.undo != "" {
			side.run(c.undo)
		}
	}
	require.Equal(t, "f", side.ask("SELECT is_called FROM counter"))
	require.Equal(t, "0", side.ask(advisoryLocks))
	side.run("CREATE EXTENSION citext; CREATE EXTENSION pg_trgm; CREATE TYPE code.span AS RANGE (subtype = int4)")
	require.NoError(t, func() error {
		_, _, err := dry(t, db, "UPDATE other SET n = n + 1 WHERE 'a' = 'b'", "public.other", "")
		return err
	}(), "all of it is undone, and types that no table of it has are no harm")
	side.run("ALTER TABLE other ADD s serial; ALTER TABLE other ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON other USING (n > 1)")
	_, report, err := dry(t, db, "INSERT INTO other (id, n, s) VALUES (1, 2, 3)", "public.other", "", func(r *DryRunRequest) { r.Columns = []string{"public.other.id", "public.other.n", "public.other.s"} })
	require.NoError(t, err, "a default that is not taken is no harm, nor is a policy that computes")
	require.Equal(t, "public.other 1/0/0", report.words())
}

// What comes between the look and the statement waits for its end, or ends it before it runs.
func TestWhatChangesBehindADryRunDoesNotComeBetween(t *testing.T) {
	db, side := open(t, patient)
	side.run(dryWorld)
	side.run(`CREATE TABLE marks (n int); CREATE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_lock(1); RETURN NEW; END';
 CREATE TABLE extra (k int NOT NULL, v text); CREATE TRIGGER t BEFORE INSERT ON extra FOR EACH ROW EXECUTE FUNCTION fired(); CREATE TABLE child (id int, n int); CREATE TRIGGER t BEFORE UPDATE ON child FOR EACH ROW EXECUTE FUNCTION fired(); INSERT INTO child VALUES (1, 1);
 SET lock_timeout = 100`)
	for _, c := range []struct{ sql, table, ddl string }{
		{"UPDATE other SET n = 5", "public.other", "ALTER TABLE child INHERIT other"},
		{"UPDATE hub SET name = 'x'", "public.hub", "CREATE STATISTICS s ON (id + 1), (id + 2) FROM hub"},
		{"INSERT INTO spoke VALUES (99, 1)", "public.spoke", "CREATE STATISTICS s ON (id + 1), (id + 2) FROM hub"},
		{"INSERT INTO spoke VALUES (99, 1)", "public.spoke", "CREATE INDEX i ON hub ((id + 1))"},
		{"DELETE FROM other WHERE id IN (SELECT id FROM hub)", "public.other", "CREATE STATISTICS s ON (id + 1), (id + 2) FROM hub"},
		{"DELETE FROM other WHERE id IN (SELECT id FROM hub)", "public.other", "CREATE INDEX i ON hub ((id + 1))"},
		{"UPDATE hub SET name = 'x'", "public.hub", "CREATE TRIGGER t BEFORE UPDATE ON hub FOR EACH ROW EXECUTE FUNCTION fired()"},
		{"DELETE FROM hub", "public.hub", "CREATE TRIGGER t BEFORE UPDATE ON leaf FOR EACH ROW EXECUTE FUNCTION fired()"},
		{"UPDATE part SET v = 'x'", "public.part", "CREATE TRIGGER t BEFORE UPDATE ON part_1 FOR EACH ROW EXECUTE FUNCTION fired()"},
		{"INSERT INTO part VALUES (250, 'x')", "public.part", "ALTER TABLE part ATTACH PARTITION extra FOR VALUES FROM (200) TO (300)"},
		{"INSERT INTO part VALUES (250, 'x')", "public.part", "CREATE TABLE part_3 PARTITION OF part FOR VALUES FROM (200) TO (300)"},
		{"UPDATE hub SET name = 'x'", "public.hub", "CREATE RULE r AS ON UPDATE TO hub DO ALSO NOTHING"},
		{"UPDATE hub SET name = 'x'", "public.hub", "ALTER TABLE hub ADD CHECK (pg_advisory_lock(2) IS NULL)"},
		{"UPDATE hub SET name = 'x'", "public.hub", "ALTER TABLE hub ALTER name SET DEFAULT pg_advisory_lock(2)::text"},
		{"UPDATE hub SET name = 'x'", "public.hub", "ALTER TABLE hub ENABLE ROW LEVEL SECURITY"},
		{"UPDATE hub SET id = 1", "public.hub", "ALTER TABLE other ADD FOREIGN KEY (id) REFERENCES hub ON UPDATE CASCADE"},
	} {
		read := ""
		if strings.Contains(c.sql, "FROM hub)") {
			read = "public.hub"
		}
		d, err := beginDry(t, db, c.sql, c.table, read)
		require.NoError(t, err, c.sql)
		_, err = side.conn.Exec(context.Background(), c.ddl).ReadAll()
		require.ErrorContains(t, err, "lock timeout", c.ddl)
		d.Rollback()
	}
	before := side.ask(contents)
	const text = "UPDATE other SET n = length('five')"
	d, err := beginDry(t, db, text, "public.other", "")
	require.NoError(t, err)
	side.run("CREATE SCHEMA made; CREATE FUNCTION made.length(text) RETURNS int LANGUAGE sql AS 'SELECT 1'") // no lock of a table stops it
	_, _, err = d.Run(t.Context(), Statement{SQL: text})
	f, _ := fault.As(err)
	require.NotNil(t, f)
	require.Equal(t, ReasonCatalogChanged, f.Details["reason"])
	require.Equal(t, "0", side.ask(advisoryLocks))
	side.run("DROP SCHEMA made CASCADE")
	require.Equal(t, before, side.ask(contents))

	side.run("SET lock_timeout = 0; BEGIN; LOCK TABLE hub IN SHARE MODE")
	_, _, err = dry(t, db, "UPDATE hub SET name = 'x'", "public.hub", "")
	f, _ = fault.As(err)
	require.NotNil(t, f)
	require.Equal(t, DryRunBusy, f.Details["reason"])
	side.run("ROLLBACK")
	givenBack(t, db)
}

func TestADryRunThatFailsSaysWhatTheDatabaseSaid(t *testing.T) {
	db, side := open(t, patient)
	side.run(dryWorld)
	side.run("INSERT INTO other VALUES (1, 1); CREATE PUBLICATION told FOR TABLE other")
	for sql, state := range map[string]string{
		"UPDATE other SET n = 5":           "55000", // it publishes updates, and has no identity of rows to do so by
		"INSERT INTO hub (id) VALUES (1)":  "23505",
		"INSERT INTO late VALUES (1, 999)": "23503", // a deferred check is made
		"UPDATE hub SET id = 1 / (id - 1)": "22012",
	} {
		table := "public." + strings.Fields(strings.TrimPrefix(strings.TrimPrefix(sql, "INSERT INTO "), "UPDATE "))[0]
		result, report, err := dry(t, db, sql, table, "")
		require.Error(t, err)
		require.Nil(t, report)
		require.Equal(t, Failure, result.State, sql)
		require.Equal(t, state, result.SQLState, sql)
		require.Equal(t, OutcomeAborted, result.Outcome)
	}
	givenBack(t, db)
}

// A role can be kept from what it may not lock: then somebody could put a trigger there meanwhile.
func TestADryRunNeedsTheRightsOfItsRole(t *testing.T) {
	s := newRoleServer(t)
	s.in("SET ROLE app_owner; CREATE TABLE hub (id int PRIMARY KEY); CREATE TABLE spoke (id int PRIMARY KEY, hub int REFERENCES hub ON DELETE CASCADE); CREATE TABLE part (k int) PARTITION BY RANGE (k); CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10); INSERT INTO hub VALUES (1); INSERT INTO spoke VALUES (1, 1)")
	s.in("CREATE ROLE hand LOGIN PASSWORD 'hand'; GRANT CONNECT ON DATABASE app TO hand; GRANT USAGE ON SCHEMA public TO hand; GRANT INSERT, DELETE, SELECT (id) ON hub TO hand; GRANT INSERT ON part, spoke TO hand; REVOKE ALL ON hub FROM PUBLIC")
	db, _ := openURL(t, s.URLFor("hand", "hand", "app"), patient)
	refused := func(sql, table, says string) {
		_, _, err := dry(t, db, sql, table, "")
		f, _ := fault.As(err)
		require.NotNil(t, f, sql)
		require.Equal(t, fault.DryRunRefused, f.Code, f.Message)
		require.Contains(t, f.Message, says)
	}
	refused("DELETE FROM hub WHERE id = 1", "public.hub", "may not lock every table")
	refused("INSERT INTO part VALUES (1)", "public.part", "may not lock every table")
	_, report, err := dry(t, db, "INSERT INTO hub VALUES (2)", "public.hub", "")
	require.NoError(t, err)
	require.Equal(t, "public.hub 1/0/0", report.words())
	require.Equal(t, "the gate's database role may not read all tables", report.RowsOmitted)
	s.in("GRANT UPDATE ON spoke TO hand; GRANT UPDATE ON part TO hand")
	_, report, err = dry(t, db, "DELETE FROM hub WHERE id = 1", "public.hub", "")
	require.NoError(t, err)
	require.Equal(t, "public.hub 0/0/1, public.spoke 0/0/1 cascade", report.words())
	_, _, err = dry(t, db, "INSERT INTO part VALUES (1)", "public.part", "")
	require.NoError(t, err)
	givenBack(t, db)
}

func TestADryRunLeavesNoMarker(t *testing.T) {
	db, side := open(t, patient, func(c *Config) { c.MarkerTable = "public.marker" })
	side.run(dryWorld)
	side.run("CREATE TABLE marker (execution_id text PRIMARY KEY, xid xid8 NOT NULL DEFAULT pg_current_xact_id(), at timestamptz NOT NULL DEFAULT now())")
	d, err := beginDry(t, db, "DELETE FROM other", "public.other", "")
	require.NoError(t, err)
	require.False(t, d.Dispatch().Marker)
	require.NotZero(t, d.Dispatch().XID)
	d.Rollback()
	d.Rollback()
	givenBack(t, db)
}
