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
			"1 IS NOT NULL", "NOT (1=2)", "NOT (id <> id)", "NOT (1=2 AND id=3)", "1::int = 1", "'1' = 1", "-1 = - 1", "-1 > -2", "0 > -1", "1 IN (1)",
			"1 BETWEEN 0 AND 2", "'a' < 'b'", "(1=1) = true", "true AND (1 = 1 OR id = 2)", "'x'::citext = 'x'", "1e0 = 1", "1.0 = 1", "0 = 0",
			"false IS NOT TRUE", "(NULL::bool) IS UNKNOWN", "(id = id) IS TRUE", "length('x') = 1", "random() < 2", "'a' = 'a' COLLATE \"C\"",
			"1 IS DISTINCT FROM 2", "1 = ANY (ARRAY[1])", "id = 1 OR $1", "TRUE = TRUE", "5 <> 6", "row(1) = row(1)", "CASE WHEN true THEN true END",
		},
		WherePresent: {
			"false", "NULL", "1=2", "-1 = -2", "id > -1", "v LIKE '%'", "id IS NOT NULL", "id IN (SELECT id FROM u)", "id = v", "id = NULL", "id = 1 OR id = 2",
			"a = 1", "id > 5", "NOT id = 1", "id = 1 AND false", "lower(v) = 'x'", "id <> id", "NOT true", "id = a + 1",
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

// A condition that compares a row with itself, however it is written, bounds nothing.
func TestAConditionOnTheSameRowIsNone(t *testing.T) {
	tb := newTestTables(t, Config{})
	for value, conditions := range map[string][]string{
		WhereTautology: {
			"id = t.id", "t.id = public.t.id", "public.t.id = id", "t.id IN (id)", "id BETWEEN t.id AND t.id", "(id, n) = (t.id, n)", "ROW(id, 1) = ROW(t.id, $1)", "(id, n) IN ((t.id, t.n))", "ARRAY[id] = ARRAY[t.id]",
			"EXISTS (SELECT id)", "EXISTS (SELECT t.id)", "EXISTS (SELECT t.id FROM u)", "EXISTS (SELECT 1 FROM u WHERE t.id = t.id)", "EXISTS (SELECT 1 FROM u WHERE u.id = id)", "EXISTS (SELECT count(*) FROM u WHERE u.id = t.id)", "EXISTS (VALUES (id))", "EXISTS (SELECT id UNION SELECT n)",
			"id = (SELECT id)", "id = (SELECT t.id)", "id = (SELECT t.id FROM u LIMIT 1)", "id IN (SELECT t.id)", "id IN (VALUES (id))", "id = ANY (ARRAY(SELECT id))", "id = ANY ((ARRAY[t.id])::int[])", "(SELECT id = t.id)", "(SELECT true FROM u WHERE u.a = 1)",
			"id >= t.id", "id = id + 0", "0 + id = id", "id - 0 = id", "id * 1 = t.id", "id / 1 = id", "v || '' = v", "+id = id", "- - id = id", "id - id = 0", "id + 1 > id", "id < id + 1", "id <> id + 1", "id + 1 = 1 + t.id", "id IS NOT DISTINCT FROM t.id",
			"coalesce(id, id) = id", "coalesce(id, 0) = id", "coalesce(id, NULL) = id", "coalesce(true, id = 1)", "greatest(id, t.id) = id", "least(id) = id", "nullif(id, NULL) = id", "NOT (id <> t.id)", "NOT id IS DISTINCT FROM t.id", "CASE WHEN true THEN true ELSE id = 1 END", "CASE WHEN id = 1 THEN true ELSE true END",
			"CASE WHEN id = 1 THEN n ELSE n END = n", "CASE WHEN false THEN false ELSE id = id END", "(CASE WHEN n > 1 THEN 5 ELSE 5 END) = 5", "id::text = t.id::text", `id COLLATE "C" = id`, "(ARRAY[id])[1] = id", "(ROW(id)).f1 = t.id", "int4eq(id, t.id)", "starts_with(v, v)", "tags @> tags", "t.* = t.*", "t = t.*", "v ~~ t.v",
			"(id = t.id)::text = 'true'", "(id = t.id)::int = 1", "coalesce(id = t.id, false)", "nullif(id = t.id, false)", "ARRAY[id] IS NOT NULL", "(id IS NULL) IS NOT NULL", "coalesce(id, 0) IS NOT NULL", "concat(v) IS NOT NULL", "(id IS DISTINCT FROM 1) IS NOT UNKNOWN",
			"a OR NOT a", "t.a OR NOT a", "a IS TRUE OR a IS NOT TRUE", "a = true OR a = false", "a IS NULL OR t.a IS NOT NULL", "id = 1 OR id <> 1", "id > 5 OR id <= 5", "id > 5 OR t.id < 7", "5 < id OR 7 > id", "id < 5 OR id = 5 OR id > 5", "id > n OR n >= id", "v <> 'a' OR NOT v <> 'a'", "v LIKE 'a%' OR v NOT LIKE 'a%'",
			"id IN (1, 2) OR id NOT IN (1, 2)", "id BETWEEN 1 AND 2 OR id NOT BETWEEN 1 AND 2", "NOT (id = 1 AND id = 2)", "NOT (id > 5 AND id < 3)", "id <> 1 OR id <> 2", "id = 1 OR (n = 2 OR NOT id = 1)", "id <> -1 OR id = -1", "id + 1 > 5 OR id < 5", "id IS DISTINCT FROM n OR n IS NOT DISTINCT FROM id",
			"1 IN (1, id)", "$1 IN ($1, id)", "-2 BETWEEN SYMMETRIC -2 AND id", "(id = 1 OR n = 1) OR NOT (id = 1 OR n = 1)", "id * 0 = 0", "id < 4 OR id <> -2", "(SELECT count(*) FROM u x WHERE x.t = t.id) = (SELECT count(*) FROM u x WHERE x.t = t.id)", "id IN (SELECT id FROM t)", "id IN (SELECT x.id FROM public.t x)", "EXISTS (SELECT 1 FROM t x WHERE x.id = t.id)", "EXISTS (SELECT 1 FROM t x WHERE x.id = t.id AND x.n >= t.n)", "NOT (NOT EXISTS (SELECT FROM t x WHERE x.id = t.id))",
		},
		WherePresent: {
			"id = n", "1 IN (2, id)", "-2 = 3 OR n >= 3", "(SELECT count(*) FROM u x WHERE x.t = t.id) = (SELECT count(*) FROM u y WHERE y.t = t.n)", "v = lower(v)", "v <> trim(v)", "attempts < max_attempts", "created_at::date = created_at", "id + n = n + 1", "id + id = 4", "power(n, n) = 4", "(n + n) = 4", "id = id * 2", "id = -id", "coalesce(n, 0) = 0", "coalesce($1, n) = n", "n = coalesce($1, n)", "coalesce(a, b) <> a", "greatest(id, n) = id", "least(id, 5) = id", "nullif(v, '') IS NULL",
			"CASE WHEN id = 1 THEN n ELSE NULL END = n", "CASE WHEN id = 1 THEN true ELSE false END", "CASE n WHEN 1 THEN true END", "CASE WHEN id = 1 THEN 'yes' ELSE 'true' END = 'yes'", "CASE WHEN id = 1 THEN $1 ELSE $2 END", "(SELECT CASE WHEN id = 1 THEN 'yes' ELSE 'on' END) = 'on'",
			"id = 1 OR id = 2", "id = -1 OR id <> -2 AND n = 1", "id < 5 OR id > 5", "id < 5 OR id >= 6", "v = 'a' OR v <> 'b' AND n = 1", "id > 1 AND id < 9", "a OR NOT b", "a IS TRUE OR b IS NOT TRUE", "id IN (1, 2) OR id NOT IN (1, 3) AND n = 1", "NOT (id = 1 AND n = 2)", "NOT (id < 5 AND id > 3)", "v LIKE 'a%' OR v NOT LIKE 'b%' AND n = 1", "a IS NULL OR a",
			"EXISTS (SELECT unnest(tags))", "EXISTS (SELECT 1 WHERE t.id = 1)", "EXISTS (SELECT 1 FROM u WHERE u.t = t.id AND u.a = 1)", "NOT EXISTS (SELECT 1 FROM u WHERE u.t = t.id)", "EXISTS (SELECT 1 FROM u GROUP BY u.a HAVING count(*) > t.n)", "EXISTS (SELECT 1 FROM u LIMIT t.n)", "EXISTS (SELECT id WHERE n = 1 UNION SELECT n WHERE id = 1)",
			"id = (SELECT max(id) FROM t)", "id = (SELECT u.id FROM u LIMIT 1)", "id IN (SELECT id FROM t WHERE n = 1)", "id IN (SELECT id FROM t LIMIT 10)", "id IN (SELECT id FROM t ORDER BY n LIMIT 5 FOR UPDATE SKIP LOCKED)", "id NOT IN (SELECT min(id) FROM t GROUP BY v)", "id IN (SELECT max(id) FROM t)", "id IN (SELECT n FROM t)", "id = (SELECT id FROM t ORDER BY n LIMIT 1)", "id IN (SELECT id FROM s.t)",
			"EXISTS (SELECT 1 FROM t x WHERE x.v = t.v AND x.id < t.id)", "NOT EXISTS (SELECT 1 FROM t x WHERE x.v = t.v AND x.n > t.n)", "NOT EXISTS (SELECT 1 FROM t x WHERE x.id <> t.id)", "EXISTS (SELECT 1 FROM t x WHERE x.id = t.id AND x.n > 1)", "EXISTS (SELECT 1 FROM t x WHERE x.parent = t.id)", "n < (SELECT avg(n) FROM t x WHERE x.v = t.v)",
			"(id, n) = (t.id, 5)", "(id, n) IN ((1, 2), (3, 4))", "(id, n) > (1, 2)", "id = ANY ($1)", "id = ANY (ARRAY(SELECT u.id FROM u))", "v || 'x' = v || n", "(id = 1) IS NOT UNKNOWN", "(tags)[1] = 'a'", "(ARRAY[id, n])[2] = 5", "doc -> 'a' = doc -> 'b'", "doc->>'a' = 'b'", "t.* = ROW(1, 2)", "deleted", "NOT deleted", "n - id = 0", "concat(v, 'x') = 'ax'",
		},
		WhereKeyEquality: {"id = 1 AND id = t.id", "t.id = 1 AND EXISTS (SELECT id)", "id = 1 AND (a OR NOT a)"},
	} {
		for _, cond := range conditions {
			assert.Equal(t, []string{value}, mustClassify(t, tb, "UPDATE t SET n = 1 WHERE "+cond).Where, cond)
			assert.Equal(t, []string{value}, mustClassify(t, tb, "DELETE FROM public.t WHERE "+cond).Where, cond)
		}
	}
	for value, texts := range map[string][]string{
		WhereTautology: {
			"UPDATE t o SET n = 1 WHERE o.id = id", "UPDATE t o SET n = 1 WHERE o.* = o", "DELETE FROM public.orders USING archive.orders WHERE archive.orders.id = 1", "UPDATE public.orders SET n = 1 FROM archive.orders WHERE archive.orders.id = 1",
			"DELETE FROM orders WHERE EXISTS (SELECT 1 FROM archive.orders WHERE archive.orders.id = 1)", "UPDATE s.t SET n = 1 FROM u WHERE r.t.id = 1",
			"UPDATE t SET n = 1 FROM t x WHERE t.id = x.id", "UPDATE t SET n = 1 FROM public.t x WHERE x.id = t.id AND x.n = t.n", "DELETE FROM t a USING t b WHERE a.id = b.id", "DELETE FROM t a USING t b WHERE a.id >= b.id", "MERGE INTO t USING t s ON t.id = s.id WHEN MATCHED THEN DELETE",
			"UPDATE t SET n = 1 FROM u WHERE t.id = id", "UPDATE t SET n = 1 FROM u WHERE id = u.id", "UPDATE t SET n = 1 FROM u WHERE t.id = t.id", "UPDATE t SET n = 1 FROM u WHERE t.id = t.id AND u.a = 1", "MERGE INTO t USING s ON t.id = t.id WHEN MATCHED THEN DELETE",
			"INSERT INTO t SELECT * FROM u ON CONFLICT (id) DO UPDATE SET n = 1 WHERE t.id = excluded.id", "INSERT INTO t SELECT * FROM u ON CONFLICT ON CONSTRAINT t_pkey DO UPDATE SET n = 1 WHERE excluded.id = t.id", "INSERT INTO t SELECT * FROM u ON CONFLICT (id) DO UPDATE SET n = 1 WHERE excluded.n = excluded.n",
			"INSERT INTO t SELECT * FROM u WHERE EXISTS (SELECT 1 FROM u x WHERE x.id = u.id) ON CONFLICT (id) DO UPDATE SET n = 1", "INSERT INTO t SELECT * FROM u WHERE u.id = id ON CONFLICT (id) DO UPDATE SET n = 1",
		},
		WherePresent: {
			"UPDATE t SET n = 1 FROM t x WHERE t.id = x.id AND x.n > 5", "UPDATE t SET n = 1 FROM t x WHERE t.id = x.parent", "DELETE FROM t a USING t b WHERE a.v = b.v AND a.id < b.id", "DELETE FROM t a USING t b WHERE a.v = b.v AND a.ctid > b.ctid", "DELETE FROM t a USING t b WHERE a.v = b.v AND a.id <> b.id",
			"UPDATE t SET n = x.n FROM s.t x WHERE t.id = x.id", "WITH t AS (SELECT 1 AS id) UPDATE public.t SET n = 1 FROM t x WHERE x.id = public.t.id", "UPDATE t SET n = 1 FROM (SELECT id FROM t WHERE n = 1 LIMIT 5) x WHERE x.id = t.id", "UPDATE t SET n = 1 FROM t x JOIN u ON u.id = x.id WHERE t.id = x.id AND u.a = 1",
			"UPDATE t SET n = 1 FROM u WHERE id = t", "UPDATE t SET n = 1 FROM u WHERE t.id = u.id", "UPDATE t SET n = 1 FROM u WHERE u_id = u.id", "MERGE INTO t USING (VALUES ($1, $2)) s(id, n) ON t.id = s.id WHEN MATCHED THEN DELETE",
			"INSERT INTO t SELECT * FROM u ON CONFLICT (id) DO UPDATE SET n = 1 WHERE t.n = excluded.n", "INSERT INTO t SELECT * FROM u ON CONFLICT (v) DO UPDATE SET n = 1 WHERE t.id = excluded.id",
		},
		WhereKeyEquality: {"UPDATE t SET n = 1 FROM t x WHERE t.id = 1 AND x.id = t.id", "UPDATE public.orders SET n = 1 FROM archive.orders WHERE public.orders.id = 1"},
	} {
		for _, sql := range texts {
			assert.Equal(t, []string{value}, mustClassify(t, tb, sql).Where, sql)
		}
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
			"UPDATE t SET n = 1 FROM u WHERE id > 1", "UPDATE t SET n = 1 FROM u WHERE u.t = t.id AND u.a = 1", "UPDATE s.t SET n = 1 FROM u WHERE u.t = s.t.id", "UPDATE t AS x SET n = 1 FROM u AS t WHERE t.id = x.id", "UPDATE t SET n = v.b FROM (VALUES (1, 2)) v(a, b) WHERE v.a = t.id",
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
