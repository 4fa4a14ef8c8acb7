package classify

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConditionsByTheirReach(t *testing.T) {
	tb := newTestTables(t, Config{KeyColumns: []string{"uuid"}})
	for value, conditions := range map[string][]string{
		WhereTautology: {
			"true", "1=1", "2>1", "NOT false", "'t'::boolean", "'yes'", "id = 1 OR true", "id=id", "t.id = t.id", "v LIKE v", "id <= id",
			"id IS NOT DISTINCT FROM id", "id IS NULL OR id IS NOT NULL", "v IS NOT NULL OR a = 1 OR v IS NULL", "id = 1 OR NOT id = 1",
			"$1", "$1 = 1", "now() > '2000-01-01'", "EXISTS (SELECT 1)", "EXISTS (SELECT * FROM u)", "(1=1) IS TRUE", "NULL IS NULL",
			"1 IS NOT NULL", "NOT (1=2)", "NOT (id <> id)", "NOT (1=2 AND id=3)", "1::int = 1", "'1' = 1", "-1 = -2", "0 > -1", "1 IN (1)",
			"1 BETWEEN 0 AND 2", "'a' < 'b'", "(1=1) = true", "true AND (1 = 1 OR id = 2)", "'x'::citext = 'x'", "1e0 = 1", "1.0 = 1", "0 = 0",
			"false IS NOT TRUE", "(NULL::bool) IS UNKNOWN", "(id = id) IS TRUE", "length('x') = 1", "random() < 2", "'a' = 'a' COLLATE \"C\"",
			"1 IS DISTINCT FROM 2", "1 = ANY (ARRAY[1])", "id = 1 OR $1", "TRUE = TRUE", "5 <> 6", "row(1) = row(1)", "CASE WHEN true THEN true END",
		},
		WherePresent: {
			"false", "NULL", "1=2", "id > -1", "v LIKE '%'", "id IS NOT NULL", "id IN (SELECT id FROM u)", "id = v", "id = NULL", "id = 1 OR id = 2",
			"a = 1", "id > 5", "NOT id = 1", "id = 1 AND false", "lower(v) = 'x'", "id <> id", "NOT true", "id IN (1)", "id = a + 1",
			"EXISTS (SELECT 1 FROM u WHERE u.id = t.id)", "id OPERATOR(app.=) 1", "(id = 1) IS NOT TRUE", "v COLLATE \"C\" = 'x'", "$1 AND a > 1",
			"id = (SELECT 1)", "1 = 0", "0 <> 0", "id = 1 AND NULL",
		},
		WhereKeyEquality: {
			"id = 1", "1 = id", "id = $1", "t.id = 5", "public.t.id = 5", "id = '5'::bigint", "id = 1 AND v = 'x'", "v = 'x' AND (a = 2 AND id = $2)",
			"uuid = 'a'", "id = 1 AND 1 = 1", "id OPERATOR(pg_catalog.=) 1", "id = 1 AND $1",
		},
	} {
		for _, cond := range conditions {
			for _, form := range []string{"UPDATE t SET n = 1 WHERE ", "EXPLAIN DELETE FROM t WHERE ", "WITH d AS (DELETE FROM t RETURNING *) UPDATE t SET n = 1 WHERE "} {
				c := mustClassify(t, tb, form+cond)
				assert.Contains(t, c.Where, value, form+cond)
				assert.Equal(t, value == WhereTautology, strings.Contains(strings.Join(c.RiskSignals, ","), SignalTautologicalWhere), form+cond)
			}
		}
	}
}

func TestAKeyNextToOtherRelationsMustBeTheTargets(t *testing.T) {
	tb := newTestTables(t, Config{})
	for sql, value := range map[string]string{
		"UPDATE t SET n = 1 FROM u WHERE id = 1":                                    WherePresent,
		"UPDATE t SET n = 1 FROM u WHERE t.id = 1":                                  WhereKeyEquality,
		"UPDATE t AS x SET n = 1 FROM u WHERE x.id = 1":                             WhereKeyEquality,
		"UPDATE s.t SET n = 1 FROM u WHERE s.t.id = 1":                              WhereKeyEquality,
		"DELETE FROM t USING u WHERE t.id = $1 AND u.id = 2":                        WhereKeyEquality,
		"DELETE FROM t USING u":                                                     WhereNone,
		"MERGE INTO t USING s ON t.id = 1 WHEN MATCHED THEN DELETE":                 WhereKeyEquality,
		"MERGE INTO t USING s ON id = 1 WHEN MATCHED THEN DELETE":                   WherePresent,
		"MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE":                     WhereTautology,
		"MERGE INTO t USING s ON t.a = s.a WHEN NOT MATCHED THEN INSERT VALUES (1)": WherePresent,
	} {
		require.Equal(t, []string{value}, mustClassify(t, tb, sql).Where, sql)
	}
}

// A condition that names no column of the target is the same for all of its rows.
func TestAConditionOnOtherRelationsIsNone(t *testing.T) {
	tb := newTestTables(t, Config{})
	for value, texts := range map[string][]string{
		WhereTautology: {
			"UPDATE t SET n = 1 FROM u WHERE u.id = 1", "UPDATE t AS x SET n = 1 FROM u AS t WHERE t.id = 1", "DELETE FROM t USING u WHERE u.id = $1",
			"DELETE FROM t WHERE u.id = 1", "UPDATE t SET n = 1 FROM (VALUES (1)) v(x) WHERE v.x = 1", "UPDATE t SET n = 1 FROM (VALUES (1)) v(x) WHERE x = 1", "UPDATE t SET n = 1 FROM generate_series(1, 2) g WHERE g > 1",
			"WITH c AS (SELECT 1 AS a) UPDATE t SET n = 1 FROM c WHERE a = 1", "DELETE FROM t USING u, v WHERE u.id = v.id AND v.a IS NOT NULL", "DELETE FROM t USING u WHERE t.id = 1 OR u.id = 1", "DELETE FROM t USING u JOIN t x ON x.id = u.id WHERE x.id = 1",
			"DELETE FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id = 1)", "DELETE FROM t WHERE EXISTS (SELECT 1 FROM u WHERE id = 1)", "DELETE FROM t WHERE (SELECT count(id) FROM u) > 0", "DELETE FROM t WHERE EXISTS (SELECT 1 FROM t WHERE t.id = 1)",
			"DELETE FROM t WHERE EXISTS (SELECT 1 FROM t x WHERE x.id = 1)", "DELETE FROM t WHERE EXISTS (SELECT 1 FROM u JOIN v ON u.id = v.id)", "DELETE FROM t WHERE 1 IN (SELECT u.id FROM u)", "DELETE FROM t WHERE EXISTS (SELECT u.* FROM u)",
			"DELETE FROM t WHERE EXISTS (SELECT 1 FROM (SELECT 1 AS a) x WHERE a = 1)", "DELETE FROM t WHERE (SELECT max(x) FROM unnest($1::int[]) x) > 1", "MERGE INTO t USING s ON s.id = 1 WHEN MATCHED THEN DELETE",
			"DELETE FROM t WHERE id IN (id)", "DELETE FROM t WHERE id IN (1, id)", "DELETE FROM t WHERE id BETWEEN id AND id", "DELETE FROM t WHERE id BETWEEN SYMMETRIC id AND 5", "DELETE FROM t WHERE id = ANY (ARRAY[id])", "DELETE FROM t WHERE id >= ANY (ARRAY[3, id])",
			"DELETE FROM t WHERE id = ALL (ARRAY[id, id])", "DELETE FROM t WHERE NOT id <> ALL (ARRAY[id])", "DELETE FROM t WHERE NOT id NOT IN (id)", "DELETE FROM t WHERE NOT id NOT BETWEEN id AND id", "DELETE FROM t WHERE (id, n) = (id, n)",
			"INSERT INTO t SELECT a FROM u, v WHERE EXISTS (SELECT 1 FROM x WHERE x.a = 1) ON CONFLICT (id) DO UPDATE SET n = 1",
		},
		WherePresent: {
			"UPDATE t SET n = 1 FROM u WHERE id > 1", "UPDATE s.t SET n = 1 FROM u WHERE r.t.id = 1", "UPDATE t SET n = 1 FROM u WHERE u.t = t.id AND u.a = 1", "UPDATE s.t SET n = 1 FROM u WHERE u.t = s.t.id", "UPDATE t AS x SET n = 1 FROM u AS t WHERE t.id = x.id", "UPDATE t SET n = v.b FROM (VALUES (1, 2)) v(a, b) WHERE v.a = t.id",
			"UPDATE t SET n = v.b FROM (VALUES (1, 2)) v(a, b) WHERE id = a", "WITH c AS (SELECT id FROM t LIMIT 5 FOR UPDATE) DELETE FROM t USING c WHERE t.id = c.id", "DELETE FROM t USING u WHERE u.t = t.id AND (t.n = 1 OR u.a = 2)", "DELETE FROM t USING u JOIN t x ON x.id = u.id WHERE x.id = t.id",
			"DELETE FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.t = t.id)", "DELETE FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id = t_id)", "DELETE FROM t WHERE EXISTS (SELECT 1 FROM u WHERE t_id = id AND a = 1)", "DELETE FROM t WHERE EXISTS (SELECT 1 FROM u WHERE lower(u.a) = lower(name))",
			"DELETE FROM t WHERE id IN (SELECT t_id FROM u WHERE u.a = 1)", "DELETE FROM t WHERE (SELECT count(*) FROM u WHERE u.t = t.id) = 0", "DELETE FROM t WHERE 'a' = ANY (SELECT unnest(tags))", "DELETE FROM t WHERE EXISTS (SELECT 1 FROM unnest(tags) x WHERE x = 'a')",
			"DELETE FROM t WHERE EXISTS (SELECT 1 FROM jsonb_each(doc) e WHERE e.key = 'a')", "DELETE FROM t WHERE EXISTS (SELECT 1 WHERE id > 1)", "DELETE FROM t WHERE t IS NOT NULL", "DELETE FROM t WHERE (t.*) IS NOT NULL", "DELETE FROM t WHERE ROW(t.*) = ROW(1)", "DELETE FROM t WHERE (t).n = 1",
			"DELETE FROM t WHERE id BETWEEN id AND 5", "DELETE FROM t WHERE id IN (a, 1)", "DELETE FROM t WHERE id = ALL (ARRAY[id, 5])", "DELETE FROM t WHERE id NOT IN (id)", "DELETE FROM t WHERE id NOT BETWEEN id AND id",
			"MERGE INTO t USING s ON t.id = s.id AND s.a = 1 WHEN MATCHED THEN DELETE", "INSERT INTO t SELECT a FROM u, v WHERE u.a = 1 ON CONFLICT (id) DO UPDATE SET n = 1", "INSERT INTO t SELECT a FROM (SELECT a FROM u) x WHERE x.a = 1 ON CONFLICT (id) DO UPDATE SET n = 1",
			"INSERT INTO t SELECT a FROM u ON CONFLICT (id) DO UPDATE SET n = 1 WHERE t.n < excluded.n", "INSERT INTO t SELECT a FROM u ON CONFLICT (id) DO UPDATE SET n = 1 WHERE excluded.n > 1", "INSERT INTO t AS x SELECT a FROM u ON CONFLICT (id) DO UPDATE SET n = 1 WHERE x.n < 5",
		},
	} {
		for _, sql := range texts {
			require.Equal(t, []string{value}, mustClassify(t, tb, sql).Where, sql)
		}
	}
}

func TestEveryWriteInAStatementHasItsWhere(t *testing.T) {
	c := mustClassify(t, newTestTables(t, Config{}),
		"WITH a AS (UPDATE t SET n = 1 WHERE id = 1 RETURNING *), b AS (DELETE FROM u RETURNING *) DELETE FROM v WHERE x > 2")
	require.Equal(t, []string{WhereKeyEquality, WhereNone, WherePresent}, c.Where)
	require.Equal(t, []string{"DELETE", "UPDATE"}, c.QueryTypes)
}

// The fold must not be where a hostile text finds a quadratic cost.
func TestNestedConditionsAreFoldedInLinearTime(t *testing.T) {
	tb := newTestTables(t, Config{})
	deep := strings.Repeat("(NOT a OR (b IS NULL AND ", 450)
	sql := "DELETE FROM t WHERE " + deep + "x = '" + strings.Repeat("y", 1000) + "' AND z IN (1" + strings.Repeat(",2", 50_000) + ")" + strings.Repeat("))", 450)
	cpu := cpuOf(func() {
		require.Equal(t, []string{WherePresent}, mustClassify(t, tb, sql).Where)
	})
	require.Less(t, cpu, 500*time.Millisecond, "the bound on any text")
}
