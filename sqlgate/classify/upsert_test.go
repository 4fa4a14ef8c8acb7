package classify

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Sources of INSERT INTO t SOURCE ON CONFLICT (id) DO UPDATE SET n = excluded.n,
// by the value that they give.
var upsertSources = map[string][]string{
	WhereKeyEquality: {
		"VALUES (1, 2)", "VALUES ($1, $2), ($3, $4)", "VALUES (DEFAULT, NULL)", "DEFAULT VALUES", "VALUES (-1, 'a' || $1)",
		"VALUES ($1::uuid, '{}'::jsonb), ($2, now())", "VALUES (gen_random_uuid(), coalesce($1, lower('X')))", "VALUES (nextval('s'), 1 BETWEEN 0 AND 2)",
		"VALUES ((SELECT max(id) FROM u), 1)", "VALUES ((SELECT generate_series(1, 2) LIMIT 1), 1)", "VALUES (ARRAY[1, $1], (ARRAY[1, 2])[1])",
		"VALUES (1, CASE WHEN $1 THEN 2 ELSE 3 END)", "(VALUES (1, 2))", "VALUES (1, 2) ORDER BY 1 LIMIT 5", "SELECT 1, 2", "SELECT $1, $2",
		"SELECT $1, 2 WHERE NOT EXISTS (SELECT 1 FROM u)", "VALUES (1, 2) UNION ALL SELECT 3, 4", "WITH x AS (SELECT * FROM u) VALUES ((SELECT a FROM x), 1)",
		"SELECT p0::int, p1::text FROM (VALUES ($1, $2, 0), ($3, $4, 1)) AS imp(p0, p1, n) ORDER BY n",
		"SELECT v.* FROM (VALUES (1, 2)) v", "SELECT v.a, v.b FROM (SELECT $1::int AS a, $2 AS b) v",
		"SELECT * FROM unnest(($1)::int[], ARRAY['a', $2]::text[])", "SELECT * FROM ROWS FROM (unnest($1::int[]), unnest('{a,b}'::text[])) AS x(a, b)",
		"SELECT id, 0 FROM u WHERE id = 7", "SELECT u.id, n FROM s.u WHERE u.id = $1 AND n > 0", "SELECT x.id, lower(x.n) FROM u AS x WHERE x.id = $1",
	},
	WherePresent: {
		"SELECT id, 0 FROM u WHERE n > 0", "SELECT id, 0 FROM u WHERE false", "SELECT u.id, 0 FROM u, v WHERE u.id = 1", "SELECT u.id, 0 FROM u JOIN v USING (id) WHERE u.id = 1",
		"SELECT generate_series(1, 50), 0 FROM u WHERE id = 1", "SELECT f(id), 0 FROM u WHERE id = 1", "SELECT id, 0 FROM u WHERE id = 1 UNION SELECT id, 0 FROM u WHERE n > 1",
		"SELECT g, 0 FROM generate_series(1, 50) g WHERE g > 2", "SELECT id, 0 FROM (SELECT 7 AS id, g FROM generate_series(1, 50) g) q WHERE id = 7",
		"WITH c AS (SELECT 7 AS id, g FROM generate_series(1, 50) g) SELECT g, 0 FROM c WHERE id = 7", "SELECT id, 0 FROM u TABLESAMPLE system (10) WHERE id = 1",
		"SELECT pk, 0 FROM u AS x(pk, id) WHERE x.id = 'new'", "SELECT pk, 0 FROM s.u x(pk, id) WHERE id = $1", "SELECT x.id, 0 FROM u AS x(id) WHERE x.id = 7",
		"SELECT id, 0 FROM u WHERE id = 1 GROUP BY CUBE (id, n)", "SELECT id, 0 FROM u WHERE id = 1 ORDER BY generate_series(1, 50)",
	},
	WhereTautology: {
		"SELECT id, 0 FROM u WHERE true", "SELECT id, 0 FROM u WHERE id = id", "SELECT id, 0 FROM u WHERE $1", "SELECT id, 0 FROM u WHERE id = 1 UNION ALL SELECT id, 0 FROM u WHERE 1 = 1",
		"SELECT generate_series(1, 50), 0 WHERE true",
	},
	WhereNone: {
		"SELECT id, 0 FROM u", "TABLE u", "SELECT generate_series(1, 50), 0", "VALUES (generate_series(1, 50), 0)", "VALUES (unnest($1::int[]), 0)",
		"VALUES (f(1), 0)", "VALUES (app.f(1), 0)", "VALUES (1 OPERATOR(app.+) 2, 0)", "VALUES ((ROW(1)::app.t).f, 0)", "SELECT g, 0 FROM generate_series(1, 50) g",
		"SELECT x, 0 FROM unnest(array_fill(1, ARRAY[1000])) x", "SELECT x, 0 FROM app.unnest($1::int[]) x", "SELECT x, 0 FROM unnest((SELECT array_agg(id) FROM u)) x",
		"SELECT x, 0 FROM unnest('x'::app.big::int[]) x", "SELECT a.x, b.x FROM (VALUES (1), (2)) a(x), (VALUES (1), (2)) b(x)",
		"SELECT a.x, 0 FROM (VALUES (1)) a(x) CROSS JOIN u", "SELECT id, 0 FROM u LIMIT 10", "SELECT n, count(*) FROM u GROUP BY n HAVING n > 2",
		"SELECT * FROM (SELECT id, 0 FROM u WHERE id = 1) q", "WITH c AS (SELECT id, 0 FROM u WHERE id = 1) SELECT * FROM c", "VALUES (1, 2) UNION ALL SELECT id, 0 FROM u",
		"SELECT 1, 2 ORDER BY generate_series(1, 50)", "SELECT x.generate_series, 0 FROM (VALUES (1)) x", "SELECT row_number() OVER (), 0 FROM (VALUES (1, 2)) v(a, b) GROUP BY CUBE (a, b)",
		"SELECT * FROM (SELECT generate_series(1, 50), 0) q", "SELECT * FROM u, LATERAL (VALUES (u.id, 0)) v", "WITH d AS (DELETE FROM u WHERE id = 1 RETURNING *) SELECT * FROM d",
		"SELECT * FROM json_to_recordset($1) AS x(id int, n int)", "SELECT CASE WHEN true THEN generate_series(1, 3) END, 0",
	},
}

func TestAnUpsertIsAnUpdateOfWhatItsSourceReaches(t *testing.T) {
	tb := newTestTables(t, Config{})
	for value, sources := range upsertSources {
		for _, source := range sources {
			upsert := "INSERT INTO t " + source + " ON CONFLICT (id) DO UPDATE SET n = excluded.n"
			for _, sql := range []string{
				upsert, "EXPLAIN ANALYZE " + upsert, "WITH w AS (" + upsert + " RETURNING 1) SELECT * FROM w", "PREPARE p AS " + upsert,
				"CREATE RULE r AS ON DELETE TO v DO INSTEAD " + upsert, "COPY (" + upsert + " RETURNING 1) TO STDOUT",
				"CREATE PROCEDURE p() BEGIN ATOMIC " + upsert + "; END",
			} {
				c := mustClassify(t, tb, sql)
				assert.Contains(t, c.Where, value, sql)
				assert.Subset(t, c.QueryTypes, []string{"INSERT", "UPDATE"}, sql)
				assert.Equal(t, value == WhereNone, strings.Contains(strings.Join(c.RiskSignals, ","), SignalWriteWithoutWhere), sql)
				assert.Equal(t, value == WhereTautology, strings.Contains(strings.Join(c.RiskSignals, ","), SignalTautologicalWhere), sql)
			}
			c := mustClassify(t, tb, upsert)
			require.Equal(t, "INSERT", c.QueryType)
			require.Contains(t, c.TablesRead, "public.t")
			require.Equal(t, Version, c.ClassificationVersion)
		}
	}
}

func TestTheConditionOfDoUpdateBoundsItToo(t *testing.T) {
	tb := newTestTables(t, Config{})
	for row, want := range map[[2]string]string{
		{"SELECT * FROM u", "t.id = 7"}:                         WhereKeyEquality,
		{"SELECT * FROM u", "t.n IS DISTINCT FROM excluded.n"}:  WherePresent,
		{"SELECT * FROM u", "excluded.id = 7"}:                  WherePresent,
		{"SELECT * FROM u", "id = 7"}:                           WherePresent,
		{"SELECT * FROM u", "true"}:                             WhereTautology,
		{"SELECT * FROM u WHERE true", "1 = 1"}:                 WhereTautology,
		{"SELECT * FROM u WHERE n > 1", "true"}:                 WherePresent,
		{"SELECT * FROM u WHERE id = 1", "t.n > 1"}:             WhereKeyEquality,
		{"VALUES ($1, $2)", "true"}:                             WhereKeyEquality,
		{"VALUES ($1, $2)", `"public"."t"."id" = $3 AND 1 = 1`}: WhereKeyEquality,
	} {
		sql := "INSERT INTO t " + row[0] + " ON CONFLICT (id) DO UPDATE SET n = 1 WHERE " + row[1]
		require.Equal(t, []string{want}, mustClassify(t, tb, sql).Where, sql)
	}
	require.Equal(t, []string{WhereKeyEquality}, mustClassify(t, tb, "INSERT INTO s.t AS x TABLE u ON CONFLICT (id) DO UPDATE SET n = 1 WHERE x.id = 7").Where)
	require.Equal(t, []string{WhereTautology}, mustClassify(t, tb, "INSERT INTO s.t AS x TABLE u ON CONFLICT (id) DO UPDATE SET n = 1 WHERE t.id = 7").Where) // no t is in sight
}

func TestAnInsertThatLeavesConflictsAloneIsNoUpdate(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range []string{
		"INSERT INTO t TABLE u", "INSERT INTO t TABLE u ON CONFLICT DO NOTHING", "INSERT INTO t VALUES (generate_series(1, 9)) ON CONFLICT (id) WHERE n > 1 DO NOTHING",
	} {
		c := mustClassify(t, tb, sql)
		require.Equal(t, []string{"INSERT"}, c.QueryTypes, sql)
		require.Empty(t, c.Where)
		require.Empty(t, c.RiskSignals)
		require.Equal(t, LockedVersion, c.ClassificationVersion)
	}
}

func TestTheArmsOfAMergeAreItsQueryTypes(t *testing.T) {
	tb := newTestTables(t, Config{})
	for arms, want := range map[string][2]string{
		"WHEN MATCHED THEN DELETE":                                                                                      {"DELETE,MERGE", "public.t.*"},
		"WHEN MATCHED AND s.a > 1 THEN UPDATE SET n = 1, (m, o) = (1, 2)":                                               {"MERGE,UPDATE", "public.t.m,public.t.n,public.t.o"},
		"WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1, 2)":                                                             {"INSERT,MERGE", "public.t.a,public.t.b"},
		"WHEN NOT MATCHED THEN INSERT DEFAULT VALUES":                                                                   {"INSERT,MERGE", "public.t.*"},
		"WHEN MATCHED THEN DO NOTHING WHEN NOT MATCHED THEN DO NOTHING":                                                 {"MERGE", "public.t.*"},
		"WHEN MATCHED AND a THEN UPDATE SET n = 1 WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (a) VALUES (1)": {"DELETE,INSERT,MERGE,UPDATE", "public.t.*,public.t.a,public.t.n"},
	} {
		for on, where := range map[string]string{"t.a = s.a": WherePresent, "t.id = 1": WhereKeyEquality, "true": WhereTautology} {
			sql := "MERGE INTO t USING s ON " + on + " " + arms
			c := mustClassify(t, tb, sql)
			require.Equal(t, "MERGE", c.QueryType)
			require.Equal(t, want[0], strings.Join(c.QueryTypes, ","), sql)
			require.Equal(t, want[1], strings.Join(c.ColumnsWritten, ","), sql)
			require.Equal(t, []string{where}, c.Where, sql)
		}
	}
}
