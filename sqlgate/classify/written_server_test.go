package classify

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// writtenSchema is what the statements of the next test find.
const writtenSchema = `
CREATE ROLE other; CREATE ROLE joe;
CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN few AS int CHECK (VALUE < 1000);
CREATE TABLE t (id int PRIMARY KEY, n int, m mood, f few);
INSERT INTO t SELECT g, g, 'ok', g FROM generate_series(1, 20) g;
CREATE TABLE u (id int PRIMARY KEY REFERENCES t, n int);
INSERT INTO u SELECT g, g FROM generate_series(1, 10) g;
CREATE VIEW v AS SELECT id, n FROM t; CREATE SEQUENCE q;
CREATE MATERIALIZED VIEW mv AS SELECT id FROM t;
CREATE SCHEMA a; CREATE TABLE a.x (id int PRIMARY KEY, m public.mood); INSERT INTO a.x VALUES (1, 'ok');
CREATE TABLE a.y (id int); CREATE VIEW a.w AS SELECT id FROM public.t;
CREATE SCHEMA b; CREATE TABLE b.z (id int, x int REFERENCES a.x); CREATE VIEW b.s AS SELECT id FROM a.x;
CREATE TYPE a.pair AS (l int, r int); CREATE TABLE b.typed OF a.pair;
CREATE FUNCTION a.f() RETURNS int LANGUAGE sql RETURN 1; CREATE TABLE b.d (id int DEFAULT a.f());
CREATE TABLE p (id int, k int) PARTITION BY LIST (k); CREATE TABLE p1 (id int, k int);
CREATE INDEX ti ON t (n); GRANT SELECT ON t, a.x TO other WITH GRANT OPTION;
CREATE TABLE owned (id int); ALTER TABLE owned OWNER TO joe; ALTER TABLE a.y OWNER TO joe;
ANALYZE`

// changing are statements that change tables, each in a transaction of its own
// that is rolled back.
var changing = []string{
	"INSERT INTO t SELECT id, 0 FROM t ON CONFLICT (id) DO UPDATE SET n = excluded.n",
	"INSERT INTO t (id, n) VALUES (1, 0), (99, 1) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
	"WITH d AS (DELETE FROM u WHERE id = 3 RETURNING id), i AS (INSERT INTO a.y SELECT id FROM d RETURNING id) UPDATE t SET n = 0 FROM i WHERE t.id = i.id",
	"MERGE INTO t USING u ON t.id = u.id WHEN MATCHED AND u.n > 5 THEN UPDATE SET n = 0 WHEN MATCHED THEN DO NOTHING WHEN NOT MATCHED THEN INSERT (id) VALUES (500)",
	"MERGE INTO u USING t ON t.id = u.id WHEN MATCHED THEN DELETE",
	"EXPLAIN ANALYZE INSERT INTO t SELECT id, 0 FROM t ON CONFLICT (id) DO UPDATE SET n = excluded.n",
	"EXPLAIN ANALYZE CREATE TABLE made AS SELECT 1",
	"COPY (DELETE FROM u RETURNING id) TO STDOUT", "SELECT * INTO made FROM t", "CREATE TABLE made AS TABLE t",
	"CREATE SCHEMA c CREATE TABLE made (id int REFERENCES t) CREATE VIEW w AS SELECT * FROM made CREATE SEQUENCE s CREATE INDEX ON made (id) GRANT SELECT ON t TO other",
	"CREATE SCHEMA AUTHORIZATION joe CREATE TABLE made (id int)", "CREATE SCHEMA AUTHORIZATION CURRENT_USER CREATE TABLE made (id int)",
	"CREATE RULE r AS ON INSERT TO u DO INSTEAD NOTHING", "CREATE VIEW w AS SELECT * FROM t", "REFRESH MATERIALIZED VIEW mv",
	"DROP SCHEMA a CASCADE", "ALTER SCHEMA a RENAME TO c", "DROP TYPE mood CASCADE", "DROP DOMAIN few CASCADE", "DROP TABLE t CASCADE", "DROP FUNCTION a.f() CASCADE",
	"DROP TABLE a.x CASCADE", "DROP INDEX ti", "DROP VIEW v", "TRUNCATE t CASCADE", "TRUNCATE u, a.y", "DROP OWNED BY joe", "REASSIGN OWNED BY joe TO other", "DROP OWNED BY other",
	"GRANT SELECT ON ALL TABLES IN SCHEMA a, b TO other", "REVOKE ALL ON ALL TABLES IN SCHEMA a FROM other CASCADE", "GRANT INSERT ON t, u TO other", "REVOKE SELECT ON t FROM other CASCADE",
	"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO other", "GRANT SELECT (n), UPDATE (n) ON t TO other",
	"ALTER TABLE t DROP COLUMN n CASCADE", "ALTER TABLE t DROP CONSTRAINT t_pkey CASCADE", "ALTER TABLE t RENAME TO u2", "ALTER VIEW v RENAME TO v2", "ALTER TABLE t RENAME COLUMN n TO o",
	"ALTER TABLE t SET SCHEMA a", "ALTER SEQUENCE q SET SCHEMA b", "ALTER SEQUENCE q OWNED BY t.n", "CREATE SEQUENCE q2 OWNED BY t.n", "ALTER TYPE a.pair ADD ATTRIBUTE o int CASCADE",
	"ALTER TYPE a.pair RENAME ATTRIBUTE l TO lo CASCADE", "ALTER TABLE t ADD COLUMN o int DEFAULT 1", "ALTER TABLE t ALTER f TYPE text USING (f::text)", "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES IN (1)",
	"CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)", "CREATE TABLE made (id int REFERENCES t) INHERITS (a.y)", "ALTER TABLE t OWNER TO joe", "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
	"CREATE POLICY po ON t USING (true)", "CREATE STATISTICS st ON id, n FROM t", "CREATE INDEX made ON t (n)", "REINDEX TABLE t", "REINDEX INDEX ti", "CLUSTER t USING ti", "ANALYZE", "ANALYZE t (n)",
	"COMMENT ON TABLE t IS 'x'", "COMMENT ON COLUMN t.n IS 'x'", "ALTER TABLE ALL IN TABLESPACE pg_default OWNED BY joe SET TABLESPACE pg_default NOWAIT", "LOCK TABLE t, a.x",
	"ALTER DEFAULT PRIVILEGES IN SCHEMA a GRANT SELECT ON TABLES TO other", "DELETE FROM u USING t WHERE u.id = t.id", "UPDATE a.x SET id = 2 WHERE false",
}

// print reads every relation of the users and what hangs on it, as text, and
// adds how many rows of it this transaction wrote.
const writtenPrint = `
SELECT n.nspname || '.' || c.relname,
       concat_ws(' ', c.oid, c.xmin, c.relfilenode, s.n_tup_ins, s.n_tup_upd, s.n_tup_del,
         (SELECT string_agg(a.xmin::text, ',' ORDER BY attnum) FROM pg_attribute a WHERE attrelid = c.oid AND attnum > 0),
         (SELECT string_agg(k.xmin::text, ',' ORDER BY k.oid) FROM pg_constraint k WHERE conrelid = c.oid),
         (SELECT string_agg(r.xmin::text, ',' ORDER BY r.oid) FROM pg_rewrite r WHERE ev_class = c.oid),
         (SELECT string_agg(o.xmin::text, ',' ORDER BY o.oid) FROM pg_policy o WHERE polrelid = c.oid),
         (SELECT string_agg(d.xmin::text, ',' ORDER BY d.xmin::text) FROM pg_description d WHERE objoid = c.oid AND classoid = 'pg_class'::regclass))
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace LEFT JOIN pg_stat_xact_all_tables s ON s.relid = c.oid
WHERE nspname !~ '^(pg_|information_schema)' AND relkind IN ('r', 'v', 'm', 'p', 'f', 'S')`

// What a real server changed is among what the classifier says is written: by
// name, as one of a schema's tables, or as one that text cannot name.
func TestAServerChangesNoTableThatTheFactsLeaveOut(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cluster := postgres.ClusterForTest(t, nil)
	conn, err := pgx.Connect(ctx, cluster.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, writtenSchema)
	require.NoError(t, err)
	tb := newTestTables(t, Config{ServerMajor: cluster.Major})
	look := func(tx pgx.Tx) map[string]string {
		rows, err := tx.Query(ctx, writtenPrint)
		require.NoError(t, err)
		found := map[string]string{}
		var name, state string
		_, err = pgx.ForEachRow(rows, []any{&name, &state}, func() error { found[name] = state; return nil })
		require.NoError(t, err)
		return found
	}
	changed := 0
	for _, sql := range changing {
		c := mustClassify(t, tb, sql)
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		before := look(tx)
		_, err = tx.Exec(ctx, sql)
		require.NoError(t, err, sql)
		after := look(tx)
		require.NoError(t, tx.Rollback(ctx))
		for name := range union(before, after) {
			if before[name] != after[name] {
				changed++
				require.True(t, covers(c.TablesWritten, name), "%s changed %s\n%s\n%s\nand the facts say %v", sql, name, before[name], after[name], c.TablesWritten)
			}
		}
	}
	require.Greater(t, changed, 100, "too little changed for the test to mean anything")
}

func union(a, b map[string]string) map[string]bool {
	all := map[string]bool{}
	for name := range a {
		all[name] = true
	}
	for name := range b {
		all[name] = true
	}
	return all
}

func covers(written []string, name string) bool {
	schema, table, _ := strings.Cut(name, ".")
	return slices.Contains(written, name) || slices.Contains(written, schema+".*") || slices.Contains(written, "?.*") || slices.Contains(written, "?."+table)
}

// An upsert changes at most as many rows as its where says: those written out,
// or those that the source's condition lets through.
func TestAnUpsertByKeyChangesNoMoreRowsThanItWritesOut(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cluster := postgres.ClusterForTest(t, nil)
	conn, err := pgx.Connect(ctx, cluster.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, `CREATE TABLE t (id int PRIMARY KEY, n text); INSERT INTO t SELECT g FROM generate_series(1, 200) g; CREATE TABLE u AS TABLE t; ALTER TABLE u ADD PRIMARY KEY (id);
CREATE SEQUENCE s; CREATE TABLE s_t (id int)`)
	require.NoError(t, err)
	tb := newTestTables(t, Config{ServerMajor: cluster.Major})
	ran := 0
	for value, sources := range upsertSources {
		for _, source := range sources {
			sql := "INSERT INTO t " + source + " ON CONFLICT (id) DO UPDATE SET n = 'x'"
			require.Contains(t, mustClassify(t, tb, sql).Where, value)
			for _, constant := range []string{"1", "'7'", "'{1,2,3}'"} {
				text := sql
				for i := range 4 {
					text = strings.ReplaceAll(text, fmt.Sprintf("$%d", i+1), constant)
				}
				tag, err := conn.Exec(ctx, text)
				if err != nil || value != WhereKeyEquality {
					continue
				}
				ran++
				require.LessOrEqual(t, tag.RowsAffected(), int64(3), text)
			}
		}
	}
	require.Greater(t, ran, 20)
}
