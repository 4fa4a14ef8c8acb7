package classify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a statement writes: the statement, its query types, the tables written,
// and the condition where it has one. A column list stands behind its table, as
// in s.t(a,b); without one all columns are written.
var writtenRows = [][4]string{
	// Statements in statements.
	{`EXPLAIN (ANALYZE) MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE`, "DELETE,EXPLAIN,MERGE", "public.t", "present"},
	{`EXPLAIN ANALYZE CREATE TABLE n AS DELETE FROM t RETURNING *`, "", "", ""},
	{`EXPLAIN ANALYZE CREATE TABLE n AS WITH d AS (DELETE FROM t RETURNING *) TABLE d`, "CREATE_TABLE_AS,DELETE,EXPLAIN,SELECT", "public.n,public.t", "none"},
	{`EXPLAIN ANALYZE EXECUTE p`, "EXECUTE,EXPLAIN", "", ""},
	{`EXPLAIN ANALYZE DECLARE c CURSOR FOR SELECT 1`, "DECLARE,EXPLAIN,SELECT", "", ""},
	{`EXPLAIN ANALYZE REFRESH MATERIALIZED VIEW m`, "EXPLAIN,REFRESH", "public.m", ""},
	{`COPY (INSERT INTO t (a) VALUES (1) RETURNING a) TO STDOUT`, "COPY_TO,INSERT", "public.t(a)", ""},
	{`COPY (UPDATE t SET a = 1 RETURNING a) TO STDOUT`, "COPY_TO,UPDATE", "public.t(a)", "none"},
	{`COPY (DELETE FROM t WHERE id = 1 RETURNING a) TO STDOUT`, "COPY_TO,DELETE", "public.t", "key_equality"},
	{`PREPARE p AS UPDATE t SET a = 1 WHERE b = 2`, "PREPARE,UPDATE", "public.t(a)", "present"},
	{`PREPARE p AS CREATE TABLE n AS SELECT 1`, "", "", ""},
	{`DECLARE c CURSOR FOR WITH d AS (DELETE FROM t RETURNING *) TABLE d`, "DECLARE,DELETE,SELECT", "public.t", "none"},
	{`WITH a AS (INSERT INTO t TABLE u RETURNING *), b AS (UPDATE u SET x = 1 FROM a WHERE u.id = 1 RETURNING 1) DELETE FROM v USING b`, "DELETE,INSERT,UPDATE", "public.t,public.u(x),public.v", "key_equality,none"},
	{`INSERT INTO t WITH d AS (DELETE FROM u RETURNING *) SELECT * FROM d`, "DELETE,INSERT", "public.t,public.u", "none"},
	{`SELECT (WITH d AS (UPDATE t SET a = 1 RETURNING a) SELECT a FROM d)`, "SELECT,UPDATE", "public.t(a)", "none"},
	{`SELECT * FROM (SELECT * FROM (WITH d AS (MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE) SELECT 1) x) y`, "DELETE,MERGE,SELECT", "public.t", "tautology"},
	{`UPDATE t SET (a, b) = (SELECT x, y FROM u) FROM v WHERE t.k = v.k`, "UPDATE", "public.t(a,b)", "present"},
	{`DELETE FROM t AS d USING v WHERE d.id = 3`, "DELETE", "public.t", "key_equality"},
	{`CREATE TABLE n AS WITH d AS (DELETE FROM t RETURNING *) TABLE d`, "CREATE_TABLE_AS,DELETE,SELECT", "public.n,public.t", "none"},
	{`CREATE TABLE n AS EXECUTE p`, "CREATE_TABLE_AS,EXECUTE", "public.n", ""},
	{`WITH d AS (DELETE FROM t RETURNING *) SELECT * INTO n FROM d`, "CREATE_TABLE_AS,DELETE,SELECT", "public.n,public.t", "none"},
	{`CREATE VIEW v AS WITH d AS (DELETE FROM t RETURNING *) TABLE d`, "CREATE,DELETE,SELECT", "public.t,public.v", "none"},
	{`CREATE MATERIALIZED VIEW m AS SELECT 1`, "CREATE_TABLE_AS,SELECT", "public.m", ""},
	{`CREATE RULE r AS ON UPDATE TO t DO INSTEAD (INSERT INTO a VALUES (1); UPDATE b SET x = 1 WHERE y = 2; DELETE FROM c)`, "CREATE,DELETE,INSERT,UPDATE", "public.a,public.b(x),public.c,public.t", "none,present"},
	{`CREATE RULE r AS ON INSERT TO t DO INSTEAD INSERT INTO a (k) VALUES (1) ON CONFLICT (k) DO UPDATE SET x = 1`, "CREATE,INSERT,UPDATE", "public.a(k,x),public.t", "key_equality"},
	{`CREATE FUNCTION f() RETURNS int BEGIN ATOMIC INSERT INTO a (x) TABLE b; UPDATE c SET d = 1; SELECT 1; END`, "CREATE_FUNCTION,INSERT,SELECT,UPDATE", "public.a(x),public.c(d)", "none"},
	{`CREATE SCHEMA s CREATE TABLE t (a int REFERENCES u) CREATE VIEW v AS TABLE w CREATE SEQUENCE q CREATE INDEX i ON t (a) GRANT SELECT ON x TO y`, "CREATE,GRANT,SELECT",
		"public.u,public.x,s.q,s.t,s.u,s.v,s.x", ""},
	{`CREATE SCHEMA AUTHORIZATION joe CREATE TABLE t (a int)`, "CREATE", "joe.t", ""},
	{`CREATE SCHEMA AUTHORIZATION CURRENT_USER CREATE TABLE t (a int)`, "CREATE", "?.t", ""},
	{`CREATE SCHEMA s CREATE TABLE t (a int) CREATE TRIGGER g AFTER INSERT ON t EXECUTE FUNCTION f()`, "CREATE", "s.t", ""},
	{`CREATE SCHEMA s`, "CREATE", "", ""},
	{`CREATE TABLE s.t (id int GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME s.q))`, "CREATE", "s.q,s.t", ""},
	{`ALTER TABLE t ALTER id ADD GENERATED ALWAYS AS IDENTITY (START 5 SEQUENCE NAME q)`, "ALTER", "public.q,public.t", ""},

	// Tables that are not named.
	{`DROP SCHEMA a, b CASCADE`, "DROP", "?.*,a.*,b.*", ""},
	{`DROP SCHEMA IF EXISTS a`, "DROP", "a.*", ""},
	{`ALTER SCHEMA a RENAME TO b`, "ALTER", "a.*,b.*", ""},
	{`GRANT SELECT ON ALL TABLES IN SCHEMA a, b TO x`, "GRANT", "a.*,b.*", ""},
	{`REVOKE ALL ON ALL SEQUENCES IN SCHEMA a FROM x CASCADE`, "REVOKE", "a.*", ""},
	{`GRANT SELECT (a), INSERT ON t, s.u TO x`, "GRANT", "public.t,s.u", ""},
	{`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA a TO x`, "GRANT", "", ""},
	{`GRANT USAGE ON SCHEMA a, "B" TO x`, "GRANT", "B.*,a.*", ""},
	{`REVOKE CREATE ON SCHEMA a FROM x`, "REVOKE", "a.*", ""},
	{`ALTER SCHEMA a OWNER TO x`, "ALTER_OWNER", "a.*", ""},
	{`ALTER DOMAIN a.d OWNER TO x`, "ALTER_OWNER", "a.d", ""},
	{`GRANT CREATE ON DATABASE a TO x`, "GRANT", "", ""},
	{`GRANT a TO x`, "GRANT", "", ""},
	{`ALTER DEFAULT PRIVILEGES IN SCHEMA a GRANT SELECT ON TABLES TO x`, "ALTER_DEFAULT_PRIVILEGES", "a.*", ""},
	{`ALTER DEFAULT PRIVILEGES FOR ROLE y REVOKE ALL ON SEQUENCES FROM x`, "ALTER_DEFAULT_PRIVILEGES", "?.*", ""},
	{`ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO x`, "ALTER_DEFAULT_PRIVILEGES", "", ""},
	{`REASSIGN OWNED BY a TO b`, "REASSIGN_OWNED", "?.*", ""},
	{`DROP OWNED BY a`, "DROP", "?.*", ""},
	{`DROP DATABASE d`, "DROP", "?.*", ""},
	{`ALTER DATABASE d SET TABLESPACE x`, "ALTER", "?.*", ""},
	{`ALTER TABLE ALL IN TABLESPACE a SET TABLESPACE b`, "ALTER", "?.*", ""},
	{`ALTER INDEX ALL IN TABLESPACE a OWNED BY x SET TABLESPACE b`, "ALTER", "?.*", ""},
	{`DROP TABLE a CASCADE`, "DROP", "?.*,public.a", ""},
	{`DROP VIEW s.a, b`, "DROP", "public.b,s.a", ""},
	{`DROP TYPE mood CASCADE`, "DROP", "?.*", ""},
	{`DROP TYPE mood`, "DROP", "", ""},
	{`DROP DOMAIN d CASCADE`, "DROP", "?.*", ""},
	{`DROP FUNCTION f(int) CASCADE`, "DROP", "?.*", ""},
	{`DROP OPERATOR + (int, int) CASCADE`, "DROP", "?.*", ""},
	{`DROP CAST (int AS text) CASCADE`, "DROP", "?.*", ""},
	{`DROP COLLATION c CASCADE`, "DROP", "?.*", ""},
	{`DROP SEQUENCE q CASCADE`, "DROP", "?.*,public.q", ""},
	{`DROP EXTENSION e`, "DROP", "?.*", ""},
	{`DROP SERVER s CASCADE`, "DROP", "?.*", ""},
	{`DROP ACCESS METHOD m CASCADE`, "DROP", "?.*", ""},
	{`DROP POLICY p ON t`, "DROP", "public.t", ""},
	{`DROP RULE r ON s.t CASCADE`, "DROP", "?.*,s.t", ""},
	{`TRUNCATE a, s.b CASCADE`, "TRUNCATE", "?.*,public.a,s.b", ""},
	{`TRUNCATE a, s.b`, "TRUNCATE", "public.a,s.b", ""},
	{`ALTER TABLE t DROP COLUMN c CASCADE`, "ALTER", "?.*,public.t", ""},
	{`ALTER TYPE ct ADD ATTRIBUTE a int CASCADE`, "ALTER", "?.*,public.ct", ""},
	{`ALTER TYPE ct RENAME ATTRIBUTE a TO b CASCADE`, "ALTER", "?.*,public.ct", ""},
	{`ALTER DOMAIN d DROP CONSTRAINT c CASCADE`, "ALTER", "?.*,public.d", ""},
	{`REVOKE SELECT ON t FROM x CASCADE`, "REVOKE", "public.t", ""},
	{`REVOKE a FROM b CASCADE`, "REVOKE", "", ""},
	{`ALTER EXTENSION e SET SCHEMA s`, "ALTER", "?.*", ""},
	{`IMPORT FOREIGN SCHEMA r FROM SERVER s INTO l`, "CREATE", "l.*", ""},
	{`IMPORT FOREIGN SCHEMA r EXCEPT (a) FROM SERVER s INTO l`, "CREATE", "l.*", ""},
	{`IMPORT FOREIGN SCHEMA r LIMIT TO (a, b) FROM SERVER s INTO l`, "CREATE", "l.a,l.b", ""},
	{`VACUUM`, "VACUUM", "?.*", ""},
	{`VACUUM (FULL) a, s.b (c)`, "VACUUM", "public.a,s.b", ""},
	{`ANALYZE`, "ANALYZE", "?.*", ""},
	{`CLUSTER`, "CLUSTER", "?.*", ""},
	{`REINDEX SCHEMA s`, "REINDEX", "s.*", ""},
	{`REINDEX DATABASE d`, "REINDEX", "?.*", ""},
	{`REINDEX SYSTEM d`, "REINDEX", "?.*", ""},
	{`DISCARD TEMP`, "DISCARD", "pg_temp.*", ""},
	{`DISCARD ALL`, "DISCARD", "pg_temp.*", ""},
	{`DISCARD PLANS`, "DISCARD", "", ""},

	// Lists and second names.
	{`LOCK TABLE a, ONLY s.b IN SHARE MODE`, "LOCK", "public.a,s.b", ""},
	{`ALTER TABLE t RENAME TO u`, "ALTER", "public.t,public.u", ""},
	{`ALTER VIEW s.t RENAME TO u`, "ALTER", "s.t,s.u", ""},
	{`ALTER TABLE t RENAME COLUMN a TO b`, "ALTER", "public.t", ""},
	{`ALTER TABLE t RENAME CONSTRAINT a TO b`, "ALTER", "public.t", ""},
	{`ALTER TYPE mood RENAME TO m`, "ALTER", "public.mood", ""},
	{`ALTER TABLE t SET SCHEMA s`, "ALTER", "public.t,s.t", ""},
	{`ALTER SEQUENCE a.q SET SCHEMA s`, "ALTER", "a.q,s.q", ""},
	{`ALTER FUNCTION f() SET SCHEMA s`, "ALTER", "", ""},
	{`ALTER SEQUENCE q OWNED BY s.t.c`, "ALTER", "public.q,s.t", ""},
	{`CREATE SEQUENCE q OWNED BY t.c`, "CREATE", "public.q,public.t", ""},
	{`ALTER SEQUENCE q OWNED BY NONE`, "ALTER", "public.q", ""},
	{`ALTER TABLE t ATTACH PARTITION s.p DEFAULT`, "ALTER", "public.t,s.p", ""},
	{`ALTER TABLE t ALTER a TYPE int USING (SELECT max(b) FROM u)`, "ALTER", "public.t", ""},
	{`CREATE TABLE p PARTITION OF s.t FOR VALUES IN (1)`, "CREATE", "public.p,s.t", ""},
	{`CREATE TABLE p (a int REFERENCES s.u) INHERITS (t)`, "CREATE", "public.p,public.t,s.u", ""},
	{`CREATE CONSTRAINT TRIGGER g AFTER INSERT ON t FROM u FOR EACH ROW EXECUTE FUNCTION f()`, "CREATE", "public.t,public.u", ""},
	{`COMMENT ON COLUMN s.t.a IS 'x'`, "COMMENT", "s.t", ""},
	{`SECURITY LABEL ON COLUMN t.a IS 'x'`, "SECURITY_LABEL", "public.t", ""},
	{`REFRESH MATERIALIZED VIEW CONCURRENTLY s.m`, "REFRESH", "s.m", ""},
	{`CREATE PUBLICATION p FOR ALL TABLES`, "CREATE", "", ""},
}

func TestWhatAStatementWrites(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, row := range writtenRows {
		c, f := classifyText(tb, row[0])
		if row[1] == "" {
			assert.NotNil(t, f, "%s: now it parses, so say what it writes", row[0])
			continue
		}
		if !assert.Nil(t, f, row[0]) {
			continue
		}
		assert.Equal(t, row[1:], []string{strings.Join(c.QueryTypes, ","), written(&c), strings.Join(c.Where, ",")}, row[0])
	}
}

// written lists the tables with their columns, where these are not all.
func written(c *Classification) string {
	var all []string
	for _, table := range c.TablesWritten {
		var columns []string
		for _, column := range c.ColumnsWritten {
			if name, ok := strings.CutPrefix(column, table+"."); ok && !strings.Contains(name, ".") {
				columns = append(columns, name)
			}
		}
		if list := strings.Join(columns, ","); list != "*" {
			table += "(" + list + ")"
		}
		all = append(all, table)
	}
	return strings.Join(all, ",")
}

// A fact that 1.0 would not have had is told by the version, and no other.
func TestTheVersionSaysWhereAFactHoldsMore(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, row := range writtenRows {
		c, f := classifyText(tb, row[0])
		if f != nil {
			continue
		}
		more := strings.Contains(row[2], "*") || strings.Contains(row[2], "?") || strings.Contains(row[1], "MERGE") || strings.Contains(row[0], "DO UPDATE") ||
			strings.Contains(row[0], "RENAME TO u") || strings.Contains(row[0], "SET SCHEMA") && row[2] != "" || strings.HasPrefix(row[0], "ALTER TYPE mood") || strings.HasPrefix(row[0], "ALTER DOMAIN a.d") ||
			strings.HasPrefix(row[0], "DROP POLICY") || strings.Contains(row[0], "USING (SELECT") || strings.Contains(row[0], "OWNED BY") && !strings.Contains(row[0], "NONE") ||
			strings.HasPrefix(row[0], "CREATE SCHEMA") && row[2] != "" || strings.Contains(row[0], "FUNCTIONS") || strings.Contains(row[0], "ALL TABLES") || strings.Contains(row[0], "SEQUENCE NAME")
		assert.Equal(t, map[bool]string{false: LockedVersion, true: Version}[more], c.ClassificationVersion, row[0])
	}
}

func TestWhatIsReadOrCalledWithoutAName(t *testing.T) {
	tb := newTestTables(t, Config{SearchPath: "app"})
	for sql, want := range map[string]string{
		"CREATE PUBLICATION p FOR ALL TABLES":                                                    "?.*",
		"CREATE PUBLICATION p FOR TABLES IN SCHEMA a, CURRENT_SCHEMA":                            "a.*,app.*",
		"ALTER PUBLICATION p SET TABLES IN SCHEMA a, TABLE b.t":                                  "a.*,b.t",
		"CREATE SCHEMA s CREATE VIEW v AS SELECT * FROM t, b.u, (WITH c AS (TABLE d) TABLE c) x": "app.d,app.t,b.u,s.d,s.t",
	} {
		assert.Equal(t, want, strings.Join(mustClassify(t, tb, sql).TablesRead, ","), sql)
	}
	for sql, want := range map[string]string{
		"GRANT EXECUTE ON ALL ROUTINES IN SCHEMA a, b TO x":                    "a.*,b.*",
		"REVOKE EXECUTE ON ALL PROCEDURES IN SCHEMA a FROM x":                  "a.*",
		"ALTER DEFAULT PRIVILEGES IN SCHEMA a GRANT EXECUTE ON FUNCTIONS TO x": "a.*",
		"ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON ROUTINES TO x":              "?.*",
	} {
		assert.Equal(t, want, strings.Join(mustClassify(t, tb, sql).Functions, ","), sql)
	}
}

// Where more columns of a table are named than a list holds, the facts say that all are written.
func TestMoreColumnsThanAListHoldsAreAllColumns(t *testing.T) {
	tb := newTestTables(t, Config{})
	names := func(n int, form string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(form, i))
		}
		return strings.Join(all, ", ")
	}
	for _, n := range []int{257, 1600} {
		for sql, want := range map[string][]string{
			"INSERT INTO wide (" + names(n, "c%d") + ") VALUES (1)":                                                {"public.wide.*"},
			"UPDATE app.wide SET " + names(n, "c%d = 1") + " WHERE id = 1":                                         {"app.wide.*"},
			"UPDATE \"a.b\".wide SET " + names(n, `"c.%d" = 1`) + " WHERE id = 1":                                  {"a.b.wide.*"},
			"WITH a AS (UPDATE a SET x = 1 WHERE id = 1) UPDATE wide SET " + names(n, "c%d = 1") + " WHERE id = 1": {"public.a.x", "public.wide.*"},
		} {
			c := mustClassify(t, tb, sql)
			require.Equal(t, want, c.ColumnsWritten, sql[:60])
			require.NotContains(t, c.RiskSignals, SignalOversizedFacts)
			require.Equal(t, Version, c.ClassificationVersion)
		}
	}
	c := mustClassify(t, tb, "INSERT INTO wide ("+names(256, "c%d")+") VALUES (1)")
	require.Len(t, c.ColumnsWritten, 256)
	require.Equal(t, LockedVersion, c.ClassificationVersion)
	c = mustClassify(t, tb, "WITH a AS (UPDATE a SET "+names(200, "c%d = 1")+" WHERE id = 1) UPDATE b SET "+names(200, "c%d = 1")+" WHERE id = 1")
	require.Contains(t, c.RiskSignals, SignalOversizedFacts, "neither of the tables is the wide one")
	var many []string
	for i := range 257 {
		many = append(many, fmt.Sprintf("x%d AS (DELETE FROM t%d WHERE id = 1)", i, i))
	}
	require.Contains(t, mustClassify(t, tb, "WITH "+strings.Join(many, ",")+" SELECT 1").RiskSignals, SignalOversizedFacts)
}
