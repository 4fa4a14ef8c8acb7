package catalog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
	"writegate/sqlgate/catalog"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
)

// A server has a database of the test's own, and what reads its catalogue.
type server struct {
	t          testing.TB
	db         *pgexec.DB
	side       *pgconn.PgConn
	now        time.Time
	url        string
	classifier *classify.Classifier
}

func newServer(t testing.TB, schema string) *server {
	t.Helper()
	url := postgres.ForTest(t)
	s := &server{t: t, now: time.Now(), url: url}
	var err error
	s.classifier, err = classify.New(classify.Config{})
	require.NoError(t, err)
	t.Cleanup(s.classifier.Close)
	s.db, err = pgexec.Open(pgexec.Config{URL: url, TLS: pgexec.TLSConfig{Mode: pgexec.TLSDisable}, OnServerMajor: func(major int) { require.NoError(t, s.classifier.SetServerMajor(major)) }}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(s.db.Close)
	s.side, err = pgconn.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { s.side.Close(t.Context()) })
	s.run(schema)
	return s
}

func (s *server) run(sql string) {
	s.t.Helper()
	_, err := s.side.Exec(s.t.Context(), sql).ReadAll()
	require.NoError(s.t, err, sql)
}

func (s *server) snapshot() *catalog.Snapshot {
	s.t.Helper()
	return s.snapshotOf(s.db.Catalogue)
}

// snapshotOf is that of what one reading hands on.
func (s *server) snapshotOf(read func(ctx context.Context, keys []string, each func(row []byte) error) (pgexec.CatalogueRead, error)) *catalog.Snapshot {
	s.t.Helper()
	var entries []catalog.Entry
	_, err := read(s.t.Context(), s.classifier.Keys(), func(row []byte) error {
		if row == nil {
			entries = nil
			return nil
		}
		var e catalog.Entry
		entries = append(entries, e)
		return json.Unmarshal(row, &entries[len(entries)-1])
	})
	require.NoError(s.t, err)
	snapshot, err := catalog.New(entries, func(sql string) (classify.Classification, error) { return s.classifier.Classify(s.t.Context(), sql) })
	require.NoError(s.t, err)
	return snapshot
}

// judged is a statement as it is with a snapshot.
func (s *server) judged(snapshot *catalog.Snapshot, sql string) (classify.Classification, []string) {
	s.t.Helper()
	c, err := s.classifier.Classify(s.t.Context(), sql)
	require.NoError(s.t, err, sql)
	found, _ := snapshot.Resolve(&c, classify.NamesOf(sql).Operators, strings.Contains(sql, "DEFAULT"), s.classifier.Keys(), nil)
	if found == nil {
		return c, nil
	}
	return c.WithBeside(found.Beside), found.Lines
}

const shop = `
CREATE TABLE customers (id int PRIMARY KEY, email text);
CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers ON DELETE CASCADE ON UPDATE CASCADE, note text);
CREATE TABLE lines (order_id int REFERENCES orders ON DELETE CASCADE, at int CHECK (at > 0));
CREATE TABLE seen (order_id int REFERENCES orders ON DELETE SET NULL);
CREATE TABLE plain (id int PRIMARY KEY, note text DEFAULT lower('X'));
CREATE TABLE odd (id int, note text);
CREATE TABLE deferred_key (id int UNIQUE DEFERRABLE, note text);
CREATE FUNCTION total(o orders) RETURNS int LANGUAGE sql STABLE AS 'SELECT 1';
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE FUNCTION allowed(text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION next_note() RETURNS text LANGUAGE sql AS 'SELECT ''n''';
CREATE VIEW order_emails AS SELECT o.id, c.email FROM orders AS o JOIN customers AS c ON c.id = o.customer_id;
CREATE VIEW behind AS SELECT email FROM order_emails;
CREATE VIEW totals AS SELECT id, o.total FROM orders AS o;
CREATE VIEW sleeper AS SELECT pg_sleep(0) IS NULL AS slept FROM plain;
CREATE VIEW napper AS SELECT pg_sleep(0) IS NULL AS slept;
CREATE VIEW today AS SELECT now();
CREATE VIEW hashes AS SELECT rolpassword FROM pg_authid;
CREATE VIEW mine AS SELECT id, note FROM plain WHERE id > 0;
CREATE TABLE held (id int PRIMARY KEY, note text);
CREATE TRIGGER changed AFTER UPDATE OF note ON held FOR EACH ROW EXECUTE FUNCTION audit();
CREATE TRIGGER removed AFTER DELETE ON held FOR EACH ROW EXECUTE FUNCTION audit();
CREATE TABLE secret (id int PRIMARY KEY, owner text);
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON secret USING (allowed(owner));
CREATE TABLE filled (id int PRIMARY KEY, note text DEFAULT next_note());
CREATE DOMAIN note AS text CHECK (allowed(VALUE));
CREATE TABLE domained (id int PRIMARY KEY, notes note[]);
CREATE TABLE ruled (id int PRIMARY KEY);
CREATE RULE copy AS ON INSERT TO ruled DO ALSO INSERT INTO plain VALUES (NEW.id);
CREATE TABLE pruned (id int PRIMARY KEY, note text); CREATE TABLE leaves (id int PRIMARY KEY, pruned int REFERENCES pruned ON DELETE CASCADE);
CREATE RULE thins AS ON UPDATE TO pruned DO ALSO DELETE FROM pruned WHERE id = 3;
CREATE FUNCTION shown() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE VIEW mirror AS SELECT id, note FROM held; CREATE TRIGGER shown INSTEAD OF UPDATE ON mirror FOR EACH ROW EXECUTE FUNCTION shown();
CREATE TABLE asking (id int PRIMARY KEY, note text CHECK (query_to_xml('SELECT 1', true, true, '') IS NOT NULL), at timestamptz DEFAULT now());
CREATE TABLE shown_to (id int PRIMARY KEY, made timestamptz CHECK (made < 'tomorrow'), n int DEFAULT nextval('pg_class_oid_index'::regclass)); ALTER TABLE shown_to ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON shown_to USING (id IN (SELECT id FROM order_emails) AND current_user <> current_setting('a.b', true));
CREATE TABLE told (id int PRIMARY KEY); CREATE TRIGGER told BEFORE UPDATE ON told FOR EACH ROW WHEN (pg_notify('a', 'b') IS NULL) EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE split (id int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (0) TO (10);
CREATE TABLE split_2 PARTITION OF split FOR VALUES FROM (10) TO (20);
CREATE TRIGGER only_there BEFORE INSERT ON split_2 FOR EACH ROW EXECUTE FUNCTION audit();
CREATE MATERIALIZED VIEW kept AS SELECT o.total FROM orders AS o;
CREATE VIEW loud AS SELECT pg_sleep(0) IS NULL AS slept, 'р0' AS c0, 'р1' AS c1, 'р2' AS c2, 'р3' AS c3, 'р4' AS c4, 'р5' AS c5, 'р6' AS c6, 'р7' AS c7, 'р8' AS c8, 'р9' AS c9, 'р10' AS c10, 'р11' AS c11, 'р12' AS c12, 'р13' AS c13, 'р14' AS c14, 'р15' AS c15, 'р16' AS c16, 'р17' AS c17, 'р18' AS c18, 'р19' AS c19, 'р20' AS c20, 'р21' AS c21, 'р22' AS c22, 'р23' AS c23, 'р24' AS c24, 'р25' AS c25, 'р26' AS c26, 'р27' AS c27, 'р28' AS c28, 'р29' AS c29, 'р30' AS c30, 'р31' AS c31, 'р32' AS c32, 'р33' AS c33, 'р34' AS c34, 'р35' AS c35, 'р36' AS c36, 'р37' AS c37, 'р38' AS c38, 'р39' AS c39 FROM plain;
CREATE DOMAIN filled_note AS text DEFAULT next_note();
CREATE TABLE defaulted (id int PRIMARY KEY, note filled_note);
CREATE FUNCTION mark(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE TABLE marked (id int) PARTITION BY LIST (mark(id));
CREATE TABLE marked_1 PARTITION OF marked FOR VALUES IN (1);
CREATE TABLE moved (id int, at int) PARTITION BY RANGE (at);
CREATE TABLE moved_1 PARTITION OF moved FOR VALUES FROM (0) TO (10);
CREATE TABLE moved_2 PARTITION OF moved FOR VALUES FROM (10) TO (20);
CREATE TRIGGER arrived AFTER INSERT ON moved FOR EACH ROW EXECUTE FUNCTION audit();
CREATE TABLE watched (id int PRIMARY KEY);
CREATE TRIGGER gone AFTER DELETE ON watched FOR EACH ROW WHEN (allowed(OLD.id::text)) EXECUTE FUNCTION audit();
CREATE TABLE far (id int REFERENCES watched ON DELETE SET DEFAULT DEFAULT mark(1));
CREATE VIEW first_moved AS SELECT id, at FROM moved_1;
CREATE TABLE called (id int PRIMARY KEY, up int REFERENCES customers ON UPDATE CASCADE);
CREATE TRIGGER carried AFTER UPDATE OF up ON called FOR EACH ROW EXECUTE FUNCTION audit();
CREATE COLLATION alike (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE lettered (id text COLLATE alike);
CREATE UNIQUE INDEX ON lettered (id COLLATE "C");
CREATE TABLE spelled (id text);
CREATE UNIQUE INDEX ON spelled (id text_pattern_ops);
CREATE TABLE worded (id text COLLATE alike UNIQUE);
CREATE TYPE mood AS ENUM ('calm', 'loud');
CREATE TABLE felt (id int PRIMARY KEY, m mood);
CREATE TYPE shade AS ENUM ('light', 'dark');
CREATE FUNCTION alike(shade, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR === (FUNCTION = alike, LEFTARG = shade, RIGHTARG = text);
CREATE TABLE painted (id int PRIMARY KEY, s shade[]);
CREATE TYPE pair AS (a int, b int);
CREATE FUNCTION paired(pair) RETURNS text LANGUAGE sql AS 'SELECT null::text';
CREATE CAST (pair AS text) WITH FUNCTION paired(pair) AS ASSIGNMENT;
CREATE DOMAIN twice AS pair;
CREATE TABLE coupled (id int PRIMARY KEY, p twice);
CREATE VIEW couples AS SELECT p FROM coupled;
CREATE TABLE summed (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a + 1) STORED UNIQUE, note text);
CREATE TRIGGER of_g AFTER UPDATE OF g ON summed FOR EACH ROW EXECUTE FUNCTION audit();
CREATE TABLE of_summed (g int REFERENCES summed (g) ON UPDATE CASCADE);
CREATE TABLE stem (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE bough PARTITION OF stem FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
CREATE TABLE twig PARTITION OF bough FOR VALUES FROM (0) TO (5);
CREATE TABLE of_stem (id int REFERENCES stem ON DELETE CASCADE);
CREATE FUNCTION upper(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION differs(int, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR <> (FUNCTION = differs, LEFTARG = int, RIGHTARG = text);
`

// What stands behind a name is among the facts of a statement that names it, and nothing else
// is.
func TestASnapshotTellsWhatStandsBehindNames(t *testing.T) {
	s := newServer(t, shop)
	s.run("SET track_functions = 'all'")
	snapshot := s.snapshot()
	for _, test := range []struct {
		sql  string
		want string // facts that are more, or others: read, written, columns, functions, signals
	}{
		{"SELECT * FROM plain", ""},
		{"SELECT id FROM orders WHERE id = 1", ""},
		{"SELECT * FROM pg_class", ""},
		{"SELECT * FROM order_emails", "read public.customers public.orders"},
		{"SELECT * FROM behind", "read public.customers public.order_emails public.orders"},
		{"SELECT * FROM totals", "read public.orders; functions public.total; signals unknown_function; not safe"},
		{"SELECT * FROM sleeper", "read public.plain; functions pg_sleep; signals delay_function; not safe"},
		{"SELECT * FROM napper", "functions pg_sleep; signals delay_function; not safe"},
		{"SELECT * FROM today", ""},
		{"SELECT * FROM hashes", "read pg_catalog.pg_authid; signals secret_catalog_read; not safe"},
		{"SELECT * FROM secret", "functions public.allowed; signals unknown_function; not safe"},
		{"SELECT * FROM parent", "read public.child"},
		{"UPDATE asking SET note = 'x' WHERE id = 1", "functions query_to_xml; signals sql_executing_function"},
		{"SELECT * FROM asking", ""},
		{"SELECT * FROM shown_to", "read public.customers public.order_emails public.orders"},
		{"INSERT INTO shown_to VALUES (1)", "read public.customers public.order_emails public.orders"},
		{"UPDATE told SET id = 2 WHERE id = 1", "functions pg_notify; signals session_change"},
		{"UPDATE pruned SET note = 'x' WHERE id = 5", "written public.leaves; columns public.pruned.*"},
		{"UPDATE mirror SET note = 'x' WHERE id = 5", "read public.held; functions public.shown; signals unknown_function; where present"},
		{"INSERT INTO mirror VALUES (5, 'x') ON CONFLICT (id) DO UPDATE SET note = 'y'", "read public.held; written public.held; columns public.held.*; functions public.audit public.shown; signals unknown_function; where present"},
		{"SELECT * FROM split", ""},
		{"SELECT * FROM kept", ""},
		{"REFRESH MATERIALIZED VIEW kept", "read public.orders; functions public.total; signals unknown_function"},
		{"SELECT upper('x')", "functions public.upper; signals unknown_function; not safe"},
		{"SELECT lower('x')", ""},
		{"SELECT * FROM loud", "read public.plain; functions pg_sleep; signals delay_function; not safe"},
		{"INSERT INTO defaulted VALUES (1)", "functions public.next_note; signals unknown_function"},
		{"INSERT INTO marked VALUES (1)", "functions public.mark; signals unknown_function"},
		{"INSERT INTO marked_1 VALUES (1)", "functions public.mark; signals unknown_function"},
		{"INSERT INTO moved_1 VALUES (1, 1)", "functions public.audit; signals unknown_function"},
		{"UPDATE moved SET at = 11", "functions public.audit; signals unknown_function"},
		{"UPDATE moved SET id = 11", ""},
		{"DELETE FROM watched WHERE id = 1", "written public.far; columns public.far.*; functions public.allowed public.audit public.mark; signals unknown_function"},
		{"SELECT id FROM plain WHERE id != 1", "functions public.<>; signals unknown_function; not safe"},
		{"SELECT id FROM plain WHERE id <> 1", "functions public.<>; signals unknown_function; not safe"},
		{"INSERT INTO plain VALUES (1)", ""},
		{"UPDATE plain SET note = 'x' WHERE id = 1", ""},
		{"UPDATE odd SET note = 'x' WHERE id = 1", "where present"},
		{"UPDATE deferred_key SET note = 'x' WHERE id = 1", "where present"},
		{"UPDATE mine SET note = 'x' WHERE id = 1", "read public.plain; written public.plain; columns public.plain.*; where present"},
		{"DELETE FROM mine WHERE id = 1", "read public.plain; written public.plain; where present"},
		{"UPDATE held SET note = 'x' WHERE id = 1", "functions public.audit; signals unknown_function"},
		{"UPDATE held SET id = 2 WHERE id = 1", ""},
		{"INSERT INTO held VALUES (1)", ""},
		{"DELETE FROM held WHERE id = 1", "functions public.audit; signals unknown_function"},
		{"DELETE FROM orders WHERE id = 1", "written public.lines public.seen; columns public.seen.*"},
		{"DELETE FROM customers WHERE id = 1", "written public.lines public.orders public.seen; columns public.seen.*"},
		{"UPDATE customers SET email = 'x' WHERE id = 1", ""},
		{"UPDATE customers SET id = 2 WHERE id = 1", "written public.called public.orders; columns public.called.* public.orders.*; functions public.audit; signals unknown_function"},
		{"WITH c AS (UPDATE called SET id = 3 WHERE id = 9 RETURNING id) UPDATE customers SET id = 2 WHERE id = 1", "written public.orders; columns public.called.* public.orders.*; functions public.audit; signals unknown_function"},
		{"UPDATE called SET id = 3 WHERE id = 9", ""},
		{"INSERT INTO first_moved VALUES (1, 1)", "read public.moved_1; written public.moved_1; columns public.moved_1.*; functions public.audit; signals unknown_function"},
		{"TRUNCATE orders", ""},
		{"TRUNCATE orders CASCADE", "written public.lines public.seen"},
		{"INSERT INTO filled (id) VALUES (1)", "functions public.next_note; signals unknown_function"},
		{"UPDATE filled SET id = 1 WHERE id = 2", ""},
		{"INSERT INTO domained VALUES (1)", "functions public.allowed; signals unknown_function"},
		{"DELETE FROM domained WHERE id = 1", ""},
		{"INSERT INTO ruled VALUES (1)", "written public.plain; columns public.plain.*"},
		{"DELETE FROM ruled WHERE id = 1", ""},
		{"DELETE FROM parent WHERE id = 1", "read public.child; written public.child; where present"},
		{"INSERT INTO split VALUES (11)", "functions public.audit; signals unknown_function"},
		{"UPDATE split SET id = 3 WHERE id = 1", "functions public.audit; signals unknown_function"},
		{"INSERT INTO secret VALUES (1)", "functions public.allowed; signals unknown_function"},
		{"INSERT INTO plain VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET note = 'y'", ""},
		{"INSERT INTO plain SELECT id, note FROM plain WHERE id = 1 ON CONFLICT (id) DO UPDATE SET note = 'y'", ""},
		{"INSERT INTO plain SELECT 1, note FROM odd WHERE id = 1 ON CONFLICT (id) DO UPDATE SET note = 'y'", "where present"},
		{"INSERT INTO plain SELECT id, note FROM mine WHERE id = 1 ON CONFLICT (id) DO UPDATE SET note = 'y'", "where present"},
		{"WITH x AS (INSERT INTO plain VALUES (1, 'a') ON CONFLICT (id) DO NOTHING) UPDATE odd SET note = 'x' WHERE id = 1", "where present"},
		{"WITH x AS (INSERT INTO plain VALUES (1, 'a') ON CONFLICT (id) DO UPDATE SET note = 'y') UPDATE odd SET note = 'x' WHERE id = 1", "where present"},
		{"ALTER TABLE orders ADD COLUMN x int", ""},
		{"ALTER TABLE domained ALTER id TYPE bigint", "functions public.allowed; signals unknown_function"},
		{"DROP TABLE domained", ""},
		{"DELETE FROM lettered WHERE id = 'A'", "where present"},
		{"DELETE FROM spelled WHERE id = 'A'", "where present"},
		{"DELETE FROM worded WHERE id = 'A'", ""},
		{"SELECT id FROM felt", ""},
		{"SELECT id FROM painted", "functions public.alike; signals unknown_function; not safe"},
		{"DELETE FROM painted WHERE id = 1", "functions public.alike; signals unknown_function"},
		{"SELECT p FROM coupled", "functions public.paired; signals unknown_function; not safe"},
		{"INSERT INTO coupled (id) VALUES (1)", "functions public.paired; signals unknown_function"},
		{"SELECT p FROM couples", "read public.coupled; functions public.paired; signals unknown_function; not safe"},
		{"UPDATE summed SET a = 2 WHERE id = 1", "written public.of_summed; columns public.of_summed.*; functions public.audit; signals unknown_function"},
		{"DELETE FROM twig WHERE id = 1", "written public.of_stem"},
		{"DELETE FROM bough WHERE id = 1", "written public.of_stem"},
		{"UPDATE filled SET note = DEFAULT WHERE id = 1", "functions public.next_note; signals unknown_function"},
		{"UPDATE defaulted SET note = DEFAULT WHERE id = 1", "functions public.next_note; signals unknown_function"},
		{"INSERT INTO filled VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET note = DEFAULT", "functions public.next_note; signals unknown_function"},
	} {
		before, err := s.classifier.Classify(t.Context(), test.sql)
		require.NoError(t, err, test.sql)
		after, lines := s.judged(snapshot, test.sql)
		assert.Equal(t, test.want, difference(&before, &after), test.sql)
		assert.True(t, test.want == "" || lines != nil, test.sql)
		s.run("SELECT pg_stat_force_next_flush()")
		s.run("BEGIN")
		if _, err := s.side.Exec(t.Context(), test.sql).ReadAll(); err == nil { // what the server called, as far as it counts
			called := s.ask("SELECT string_agg(schemaname || '.' || funcname, ' ') FROM pg_stat_xact_user_functions")
			for _, name := range strings.Fields(called) {
				assert.True(t, slices.Contains(after.Functions, name) || slices.Contains(after.Functions, "public.<>") && name == "public.differs", "%s calls %s", test.sql, called)
			}
		}
		s.run("ROLLBACK")
		if test.want != "" {
			assert.NotEqual(t, before.Fingerprint, after.Fingerprint, test.sql)
			require.Equal(t, classify.Version, after.ClassificationVersion)
		}
	}
}

// difference names the facts that one classification has and another has not.
func difference(before, after *classify.Classification) string {
	var said []string
	for _, f := range []struct {
		name   string
		of, is []string
	}{{"read", before.TablesRead, after.TablesRead}, {"written", before.TablesWritten, after.TablesWritten}, {"columns", before.ColumnsWritten, after.ColumnsWritten},
		{"functions", before.Functions, after.Functions}, {"signals", before.RiskSignals, after.RiskSignals}, {"where", before.Where, after.Where}} {
		known := map[string]bool{}
		for _, name := range f.of {
			known[name] = true
		}
		var more []string
		for _, name := range f.is {
			if !known[name] {
				more = append(more, name)
			}
		}
		if len(more) > 0 {
			said = append(said, fmt.Sprint(f.name, " ", strings.Join(more, " ")))
		}
	}
	if before.SafeRead && !after.SafeRead {
		said = append(said, "not safe")
	}
	return strings.Join(said, "; ")
}

// Whatever the rows of a table that a random statement changes, by whatever way, stands in
// tables_written, over random views, foreign keys, inheritance and rules: the server counts
// what it changed.
func TestWhatAWriteChangesIsAmongItsFacts(t *testing.T) {
	s := newServer(t, "")
	random := rand.New(rand.NewPCG(20261130, 1))
	changed, beyond := 0, 0
	for round := range 12 {
		var schema strings.Builder
		schema.WriteString("DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public;")
		tables := 4 + random.IntN(5)
		for i := range tables {
			fmt.Fprintf(&schema, "CREATE TABLE t%d (id int PRIMARY KEY, up int, note text) ", i)
			switch {
			case i > 0 && random.IntN(4) == 0:
				fmt.Fprintf(&schema, "INHERITS (t%d);", random.IntN(i))
			default:
				schema.WriteString(";")
			}
			if i > 0 {
				actions := []string{"CASCADE", "SET NULL", "NO ACTION", "SET DEFAULT"}
				fmt.Fprintf(&schema, "ALTER TABLE t%d ADD FOREIGN KEY (up) REFERENCES t%d ON DELETE %s ON UPDATE %s;", i, random.IntN(i), actions[random.IntN(4)], actions[random.IntN(4)])
			}
		}
		for i := range 3 {
			from := fmt.Sprint("t", random.IntN(tables))
			if i > 0 && random.IntN(2) == 0 {
				from = fmt.Sprint("v", i-1)
			}
			fmt.Fprintf(&schema, "CREATE VIEW v%d AS SELECT id, up, note FROM %s WHERE id > 0;", i, from)
		}
		if random.IntN(2) == 0 {
			schema.WriteString("CREATE FUNCTION io() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER io INSTEAD OF UPDATE ON v0 FOR EACH ROW EXECUTE FUNCTION io();")
		}
		events := []string{"INSERT", "DELETE", "UPDATE"}
		var rules strings.Builder
		for i := range 2 { // the server refuses a circle of rules as it meets it
			on := []int{random.IntN(tables), random.IntN(tables)}
			does := []string{"UPDATE t%d SET note = 'r'", "DELETE FROM t%d WHERE id % 10 = 2", "INSERT INTO t%d SELECT 900 + count(*) FROM t0"}[random.IntN(3)]
			fmt.Fprintf(&rules, "CREATE RULE r%d AS ON %s TO t%d DO ALSO "+strings.ReplaceAll(does, " % ", " %% ")+";", i, events[random.IntN(3)], on[0], on[random.IntN(2)])
		}
		for i := range tables {
			fmt.Fprintf(&schema, "INSERT INTO t%d (id) SELECT %d + n FROM generate_series(1, 3) AS n;", i, 10*i)
		}
		text := schema.String()
		s.run(text)
		for i := 1; i < tables; i++ {
			to := s.ask(fmt.Sprintf("SELECT confrelid::regclass::text FROM pg_constraint WHERE conrelid = 't%d'::regclass AND contype = 'f'", i))
			s.run(fmt.Sprintf("UPDATE ONLY t%d SET up = (SELECT min(id) FROM ONLY %s)", i, to))
		}
		s.run(rules.String())
		text += rules.String()
		snapshot := s.snapshot()
		for range 25 {
			on := fmt.Sprint("t", random.IntN(tables))
			if random.IntN(3) == 0 {
				on = fmt.Sprint("v", random.IntN(3))
			}
			sql := []string{
				"DELETE FROM " + on,
				"DELETE FROM " + on + " WHERE id % 10 = 1",
				"UPDATE " + on + " SET id = id + 1000",
				"UPDATE " + on + " SET note = 'x'",
				"UPDATE " + on + " SET up = NULL",
				fmt.Sprintf("INSERT INTO %s (id, note) VALUES (%d, 'x')", on, 500+random.IntN(100)),
				"TRUNCATE " + strings.Replace(on, "v", "t", 1) + " CASCADE",
				fmt.Sprintf("INSERT INTO %s (id) SELECT %d + n FROM generate_series(1, 3) AS n ON CONFLICT (id) DO UPDATE SET id = excluded.id + 1000", on, 10*random.IntN(tables)),
			}[random.IntN(8)]
			before, err := s.classifier.Classify(t.Context(), sql)
			require.NoError(t, err)
			after, _ := s.judged(snapshot, sql)
			s.run("SELECT pg_stat_force_next_flush()") // else the counters have the rows of before
			s.run("BEGIN")
			if _, err := s.side.Exec(t.Context(), sql).ReadAll(); err == nil {
				for _, table := range strings.Fields(s.ask("SELECT string_agg(relname, ' ') FROM pg_stat_xact_user_tables WHERE n_tup_ins + n_tup_upd + n_tup_del > 0 OR " + emptied(sql))) {
					changed++
					if !slices.Contains(before.TablesWritten, "public."+table) {
						beyond++
					}
					require.Contains(t, after.TablesWritten, "public."+table, "round %d: %s\n%s", round, sql, text)
				}
			}
			s.run("ROLLBACK")
		}
	}
	t.Logf("%d tables changed, %d of them beyond the text", changed, beyond)
	require.Greater(t, beyond, 50)
}

// emptied is the condition of the tables that a TRUNCATE has emptied.
func emptied(sql string) string {
	if strings.HasPrefix(sql, "TRUNCATE") {
		return "pg_relation_size(relid) = 0"
	}
	return "false"
}

func (s *server) ask(sql string) string {
	s.t.Helper()
	results, err := s.side.Exec(s.t.Context(), sql).ReadAll()
	require.NoError(s.t, err, sql)
	if len(results[0].Rows) == 0 {
		return ""
	}
	return string(results[0].Rows[0][0])
}

// A table that inherits from one on many ways is looked through once.
func TestDiamondsOfTablesAreReadInBearableTime(t *testing.T) {
	var entries []catalog.Entry
	for i := range 200 {
		e := catalog.Entry{Relation: fmt.Sprintf("public.t%03d", i), Kind: "r"}
		if i >= 2 {
			e.Parents = []string{fmt.Sprintf("public.t%03d", i-1), fmt.Sprintf("public.t%03d", i-2)}
		}
		entries = append(entries, e)
	}
	entries = append(entries, catalog.Entry{Relation: "public.a", Kind: "r", Part: true, Parents: []string{"public.b"}}, catalog.Entry{Relation: "public.b", Kind: "r", Part: true, Parents: []string{"public.a"}})
	snapshot, err := catalog.New(entries, nil)
	require.NoError(t, err)
	found, _ := snapshot.Resolve(&classify.Classification{QueryTypes: []string{classify.TypeDelete}, TablesRead: []string{"public.t000"}, TablesWritten: []string{"public.t000", "public.a"}}, nil, false, nil, nil)
	require.Len(t, found.TablesWritten, 198)
}

// A view that the server can't print keeps nobody from reading the rest.
func TestAViewThatCannotBePrintedIsNotJudged(t *testing.T) {
	s := newServer(t, shop)
	for depth := 500; ; depth += 500 { // as deep as the server takes it
		text := "CREATE OR REPLACE VIEW deep AS SELECT note" + strings.Repeat(` COLLATE "C"`, depth) + " AS x FROM plain"
		if _, err := s.side.Exec(t.Context(), text).ReadAll(); err != nil {
			break
		}
	}
	_, err := s.side.Exec(t.Context(), "SELECT pg_get_viewdef('deep')").ReadAll()
	require.ErrorContains(t, err, "54001")
	snapshot := s.snapshot()
	c, lines := s.judged(snapshot, "SELECT * FROM deep")
	require.False(t, c.SafeRead, "%v", lines)
	c, _ = s.judged(snapshot, "SELECT * FROM order_emails")
	require.Contains(t, c.TablesRead, "public.customers")
}

// A function of the users' that works with types of PostgreSQL's own, as a cast does or an
// operator class, may be called by any text.
func TestWhatWorksWithBuiltInTypesMayBeCalledByAnyText(t *testing.T) {
	s := newServer(t, `CREATE TABLE plain (id int PRIMARY KEY, at point);
CREATE FUNCTION far(point) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'`)
	const sql = "SELECT id FROM plain"
	c, _ := s.judged(s.snapshot(), sql)
	require.True(t, c.SafeRead)
	for _, test := range []struct{ change, back, calls string }{
		{"CREATE CAST (point AS int) WITH FUNCTION far(point) AS IMPLICIT", "DROP CAST (point AS int)", "public.far"},
		{`CREATE FUNCTION nearer(point, point) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 0'; CREATE FUNCTION before(point, point) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
			CREATE SCHEMA aside; CREATE OPERATOR aside.<<< (FUNCTION = before, LEFTARG = point, RIGHTARG = point);
			CREATE OPERATOR CLASS points DEFAULT FOR TYPE point USING btree AS OPERATOR 1 aside.<<<, FUNCTION 1 nearer(point, point)`, "DROP SCHEMA aside CASCADE; DROP OPERATOR FAMILY points USING btree CASCADE", "public.before public.nearer"},
	} {
		s.run(test.change)
		c, lines := s.judged(s.snapshot(), sql)
		require.Equal(t, test.calls, strings.Join(c.Functions, " "), "%v", lines)
		require.False(t, c.SafeRead)
		s.run(test.back)
		c, _ = s.judged(s.snapshot(), sql)
		require.True(t, c.SafeRead, test.back)
	}
}

// What an approval is bound to, the fingerprint, tells of the texts behind a statement, not of their names alone.
func TestAnotherTextBehindAStatementIsAnotherFingerprint(t *testing.T) {
	s := newServer(t, `CREATE TABLE rls (id int, tenant int); ALTER TABLE rls ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON rls USING (tenant = 1);
		CREATE TABLE a (id int); CREATE TABLE b (id int); CREATE RULE also AS ON INSERT TO a DO ALSO DELETE FROM b WHERE id = new.id;
		CREATE TABLE c (id int); CREATE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER fires BEFORE INSERT ON c FOR EACH ROW WHEN (new.id > 1) EXECUTE FUNCTION fired();
		CREATE VIEW shown AS SELECT id FROM rls`)
	texts := []string{"UPDATE rls SET id = 2 WHERE id = 1", "INSERT INTO a VALUES (1)", "INSERT INTO c VALUES (1)", "UPDATE shown SET id = 2 WHERE id = 1", "SELECT id FROM b"}
	of := func() (all []string) {
		snapshot := s.snapshot()
		for _, sql := range texts {
			c, _ := s.judged(snapshot, sql)
			all = append(all, c.Fingerprint)
		}
		return all
	}
	was := of()
	s.run("CREATE TABLE another (id int)")
	require.Equal(t, was, of())
	s.run(`DROP POLICY own ON rls; CREATE POLICY own ON rls USING (true); CREATE OR REPLACE RULE also AS ON INSERT TO a DO ALSO DELETE FROM b;
		DROP TRIGGER fires ON c; CREATE TRIGGER fires BEFORE INSERT ON c FOR EACH ROW EXECUTE FUNCTION fired()`)
	now := of()
	for i, sql := range texts[:4] {
		require.NotEqual(t, was[i], now[i], sql)
	}
	require.Equal(t, was[4], now[4], "nothing stands behind it")
}
