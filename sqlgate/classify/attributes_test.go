package classify

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// attributeCalls are statements in which the text shows that .fire is no column.
var attributeCalls = []string{
	"SELECT ('x'::text).fire", "SELECT (x.*).fire FROM generate_series(1, 2) x(fire)", "SELECT (x).fire FROM generate_series(1, 2) x(fire)", "SELECT (ROW(1, ROW(2))).f2.fire", "SELECT (1).fire", "SELECT ('a' || 'b').fire", "SELECT (lower('x')).fire", "SELECT (ARRAY['x'])[1].fire", "SELECT (NULL).fire", "SELECT ($1).fire",
	"SELECT (CASE WHEN true THEN 'x'::text END).fire", "SELECT (SELECT 'x'::text).fire", "SELECT (NULL::pg_class).fire", "SELECT (ROW(1, 2)).fire", "SELECT (ROW(1, 2)).f3.fire",
	"SELECT (ROW(1, 2)).f1.fire", "SELECT ((ROW(1, ROW(2))).f2).fire", "SELECT (jsonb_each('{}')).fire", "SELECT (now()).fire", "SELECT (CURRENT_DATE).fire", "SELECT (NOT true).fire",
	"SELECT x.fire FROM generate_series(1, 2) x", "SELECT generate_series.fire FROM generate_series(1, 2)", "SELECT x.fire FROM generate_series(1, 2) WITH ORDINALITY x",
	"SELECT x.fire FROM (SELECT 1) x", "SELECT x.fire FROM (VALUES (1)) x", "SELECT x.fire FROM (VALUES (1)) x(a)", "SELECT x.fire FROM (SELECT 1 AS fire) x(a)",
	"WITH x AS (SELECT 1) SELECT x.fire FROM x", "WITH x(a) AS (SELECT 1 AS fire) SELECT x.fire FROM x", "WITH x AS (SELECT 1) SELECT y.fire FROM x y",
	"WITH RECURSIVE x(a) AS (SELECT 1 UNION ALL SELECT x.fire FROM x) SELECT a FROM x", "WITH x AS (DELETE FROM t RETURNING id) SELECT x.fire FROM x",
	"SELECT x.fire FROM (SELECT a.* FROM (SELECT 1 AS b) a) x", "SELECT x.fire FROM (SELECT * FROM (SELECT 1 AS b) a) x", "SELECT x.fire FROM ((SELECT 1 AS b) a CROSS JOIN (SELECT 2) c) x",
	"SELECT j.fire FROM (SELECT 1 AS id) a JOIN (SELECT 1 AS id, 2 AS fire) b USING (id) AS j", "SELECT x.fire FROM jsonb_each('{}') x", "SELECT x.fire FROM pg_class x",
	"SELECT pg_class.fire FROM pg_class", "SELECT pg_catalog.pg_class.fire FROM pg_catalog.pg_class", "SELECT c.fire FROM information_schema.columns c",
	"SELECT x.fire FROM json_to_record('{}') x(a int)", "SELECT x.fire FROM ROWS FROM (generate_series(1, 2), json_to_record('{}') AS (a int)) x",
	"SELECT x.fire FROM XMLTABLE('/a' PASSING ('<a/>'::xml) COLUMNS a int) x", "SELECT coalesce.fire FROM coalesce('x'::text)", "SELECT text.fire FROM CAST('x' AS text)",
	"SELECT (x).fire FROM o, (SELECT 'a'::text AS x) s", "SELECT (x).fire FROM o, (VALUES (7)) s(x)", "SELECT (x).fire FROM o, generate_series(1, 2) x",
	"SELECT (k.b).fire FROM (SELECT 'a'::text AS b, o.* FROM o) k", "WITH k AS (SELECT o.*, 'a'::text AS b FROM o) SELECT (k.b).fire FROM k", "SELECT (b).fire FROM (SELECT 'a'::text AS b, o.* FROM o) k",
	"SELECT (z.a).fire FROM (SELECT id AS a FROM o UNION ALL SELECT 1) z", "SELECT ((x).a).fire FROM (SELECT 1 AS a) x, o", "SELECT (ctid).fire FROM o", "SELECT (o.tableoid).fire FROM o",
	"SELECT (ROW(s.*)).fire FROM (SELECT 'a'::text AS a) s", "SELECT ((ROW(s.*)).f1).fire FROM (SELECT 'a'::text AS a) s", "SELECT (k.amname).fire FROM (SELECT pg_catalog.pg_am.* FROM pg_catalog.pg_am) k",
	"SELECT k.fire FROM (SELECT pg_catalog.pg_am.* FROM pg_catalog.pg_am) k", "SELECT (SELECT (k.a).fire FROM (SELECT 'a'::text AS a) q, LATERAL (SELECT q.*) k) FROM (SELECT 2 AS z) q",
	"SELECT (r.amname).fire FROM json_populate_record(NULL::pg_am, '{}') r", "SELECT r.fire FROM json_populate_record(NULL::pg_am, '{}') r", "SELECT k.fire FROM (SELECT (coalesce(c)).* FROM pg_am c) k",
	"UPDATE orders SET status = (ROW(s.*)).fire FROM (SELECT 'a'::text AS a) s WHERE id = 1", "UPDATE orders SET status = k.fire FROM (SELECT pg_catalog.pg_am.* FROM pg_catalog.pg_am) k WHERE id = 1",
	"SELECT (j.a1).fire FROM ((SELECT " + manyColumns("a") + ") x CROSS JOIN (SELECT " + manyColumns("b") + ") y) AS j", "SELECT (a1).fire FROM ((SELECT " + manyColumns("a") + ") x CROSS JOIN (SELECT " + manyColumns("b") + ") y) AS j",
	"SELECT (SELECT x.fire) FROM generate_series(1, 2) x", "SELECT (SELECT 1 FROM (SELECT x.fire) q, t x) FROM generate_series(1, 2) x", "SELECT 1 FROM t y JOIN generate_series(1, 2) x ON x.fire = '1'",
	"SELECT 1 FROM generate_series(1, 2) x, LATERAL (SELECT x.fire) y", "SELECT 1 FROM t ORDER BY (1).fire", "SELECT x.*, (x).fire FROM (SELECT 1 AS a) x", "SELECT (x.*).fire FROM (SELECT 1 AS a) x",
	"SELECT (x.a).fire FROM (SELECT 1 AS a) x", "SELECT (a).fire FROM (SELECT 1 AS a) x", "SELECT (x.a).fire FROM (SELECT ROW(1, 2) AS a) x", "SELECT (relname).fire FROM pg_class",
	"SELECT (k.z).fire FROM (SELECT 'a'::text AS b, o.* FROM o) k(z)", "WITH k(z) AS (SELECT 'a'::text AS b, o.* FROM o) SELECT (k.z).fire FROM k", "SELECT (j.z).fire FROM ((SELECT 'a'::text AS b) s CROSS JOIN o) AS j(z)",
	"SELECT (k.y).fire FROM (SELECT o.*, 'a'::text AS b FROM o) k(x, y)", "SELECT (j.x).fire FROM ((SELECT ROW(1, 2) AS b, 1 AS id) s JOIN o USING (id)) AS j(x)", "SELECT (j.x).f1.fire FROM ((SELECT ROW(1, 2) AS b, 1 AS id) s JOIN o USING (id)) AS j(x)",
	"SELECT 1 FROM o, (SELECT 'a'::text AS x) s, LATERAL (SELECT (x).fire) z", "SELECT (SELECT 1 FROM (SELECT 'a'::text AS x) s, LATERAL (SELECT (s.x).fire) z) FROM o s", "SELECT (SELECT (k.a).fire FROM (SELECT 'a'::text AS a) q, LATERAL (SELECT q.*) k) FROM o q",
	"SELECT (SELECT (x.a).fire FROM LATERAL (SELECT x.*) x) FROM (SELECT 'a'::text AS a) x", "SELECT (o).ctid.fire FROM o", "SELECT ((o).ctid).fire FROM o", "SELECT (o.*).tableoid.fire FROM o", "SELECT (id[1:2]).fire FROM o", "SELECT (o.id[1:2][1]).fire FROM o",
	"SELECT (SELECT (k).fire FROM o) FROM (VALUES ('a'::text)) a(k)", "SELECT (SELECT (k).fire FROM o k) FROM (VALUES ('a'::text)) a(k)", "SELECT (SELECT (p).fire FROM o b) FROM unnest(ARRAY['a']) p", "SELECT (SELECT (s).fire FROM o) FROM (SELECT 1 AS x) s",
	"SELECT (z.id).fire FROM (SELECT o.* FROM o UNION SELECT 1) z", "SELECT (z.id).fire FROM (SELECT * FROM o UNION ALL (SELECT * FROM o UNION SELECT 1)) z", "SELECT (z).id.fire FROM (SELECT * FROM o UNION ALL SELECT * FROM o EXCEPT SELECT 1) z",
	"SELECT zz.* FROM (VALUES ('x'::text)) k, o, LATERAL (SELECT (k).fire) zz", "SELECT 1 FROM (VALUES ('x'::text)) k, o, concat((k).fire) z", "SELECT 1 FROM (VALUES ('x'::text)) k, LATERAL (SELECT (k).fire FROM o) z", "SELECT 1 FROM o, (SELECT 1 AS a) k, LATERAL (SELECT (k).a.fire) z",
	"SELECT 1 FROM o, (SELECT 1 AS a) k, LATERAL (SELECT (k.*).fire) z", "SELECT 1 FROM o, (SELECT ROW(1) AS a) k, LATERAL (SELECT (k.a).fire) z", "SELECT 1 FROM o, unnest(ARRAY['x']) k, LATERAL (VALUES ((k).fire)) z", "SELECT 1 FROM o, jsonb_each('{}') k, LATERAL (SELECT (k).fire UNION SELECT '') z",
	"WITH k AS (SELECT 1 AS a) SELECT 1 FROM o, k, LATERAL (WITH c AS (SELECT (k).fire) SELECT 1 FROM c) z", "WITH c AS (SELECT 1 AS a) SELECT 1 FROM c k JOIN o ON true LEFT JOIN LATERAL (SELECT (k).fire) z ON true", "SELECT 1 FROM o, ((SELECT 1 AS a) p CROSS JOIN (SELECT 2 AS b) q) AS k, concat((SELECT (k).fire FROM i)) z",
	"SELECT 1 FROM o, (SELECT 1 AS a) p JOIN (SELECT 1 AS a, 2 AS fire) q USING (a) AS k, LATERAL (SELECT (k).fire) z", "SELECT 1 FROM ((SELECT 1 AS a) k CROSS JOIN o JOIN LATERAL (SELECT (k).fire) z ON true) AS j", "SELECT 1 FROM o, ROWS FROM (generate_series(1, 2), unnest(ARRAY[1])) k, LATERAL (SELECT 1 FROM i x, LATERAL (SELECT (k).fire) y) z",
	"SELECT 1 FROM o, (SELECT 1 AS a) k, XMLTABLE('/a' PASSING ('<a/>'::xml) COLUMNS a text DEFAULT (k).fire) z", "SELECT (SELECT 1 FROM o TABLESAMPLE system((k).fire)) FROM (SELECT 1 AS a) k", "SELECT (SELECT 1 FROM o, (SELECT 1 AS fire) k, (SELECT (k).fire) z) FROM (SELECT 1 AS a) k", "SELECT (SELECT 1 FROM o, LATERAL (SELECT (k).fire) z, (SELECT 1 AS fire) k) FROM (SELECT 1 AS a) k",
	"SELECT (SELECT 1 FROM o, ((SELECT 1 AS fire) k CROSS JOIN i) AS j, LATERAL (SELECT (k).fire) z) FROM (SELECT 1 AS a) k", "SELECT (SELECT 1 FROM o JOIN i ON (k).fire = '') FROM (SELECT 1 AS a) k", "SELECT 1 FROM o, (SELECT 1 AS a) k JOIN LATERAL (SELECT 2 AS b) l ON (k).fire = ''", "SELECT 1 FROM pg_am k, o, LATERAL (SELECT (k).fire) z",
	"UPDATE orders SET note = z.f FROM (SELECT 1 AS a) k, LATERAL (SELECT (k).fire AS f) z WHERE id = 1", "DELETE FROM orders USING o, (SELECT 1 AS a) k, concat((k).fire) z WHERE id = 1", "MERGE INTO orders USING ((SELECT 1 AS a) k CROSS JOIN o CROSS JOIN LATERAL (SELECT (k).fire AS f) z) ON false WHEN MATCHED THEN DO NOTHING",
	"UPDATE orders status SET note = (status).fire WHERE id = 1", "UPDATE orders SET note = (SELECT (status).fire FROM (SELECT 1 AS fire) status) WHERE id = 1", "WITH t AS (SELECT ROW(1, 2) AS a) UPDATE t SET x = (t.a).f1.fire, y = (t.a).fire WHERE id = 1",
	"UPDATE orders SET status = ('x'::text).fire WHERE id = 1", "UPDATE orders SET status = (status).fire WHERE id = 1", "UPDATE orders SET status = (orders.status).fire WHERE id = 1",
	"UPDATE orders SET status = x.fire FROM (VALUES (1)) x(a) WHERE id = x.a", "INSERT INTO orders SELECT (o.id).fire FROM orders o", "DELETE FROM orders USING (SELECT 1) x WHERE id = 1 AND x.fire = 'a'",
	"MERGE INTO orders o USING (SELECT 1 AS id) s ON o.id = s.id WHEN MATCHED THEN UPDATE SET status = s.fire", "INSERT INTO orders VALUES ((1).fire)",
	"INSERT INTO orders (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET status = (excluded.status).fire", "SELECT (o.id).fire FROM orders o FOR UPDATE",
}

func TestANameBehindADotThatIsNoColumnIsACall(t *testing.T) {
	for _, major := range []int{0, 15, 16, 17, 18} {
		tb := newTestTables(t, Config{ServerMajor: major})
		for _, sql := range attributeCalls {
			c := mustClassify(t, tb, sql)
			require.Contains(t, c.Functions, "public.fire", "%d: %s", major, sql)
			require.Contains(t, c.RiskSignals, SignalUnknownFunction, sql)
			require.False(t, c.SafeRead, sql)
		}
	}
	tb := newTestTables(t, Config{})
	c := mustClassify(t, tb, "SELECT ('x').lower, (1).jsonb, x.count FROM (SELECT 1) x")
	require.Equal(t, []string{"count", "lower", "public.jsonb"}, c.Functions, "a call of a built-in, and of what is none")
	for major, safe := range map[int]bool{15: false, 16: true, 17: true, 18: true} { // which has the column
		require.Equal(t, safe, mustClassify(t, newTestTables(t, Config{ServerMajor: major}), "SELECT d.daticurules FROM pg_database d").SafeRead, major)
	}
}

// attributeColumns are reads in which a name behind a dot is a column, or may be one
// of a relation whose columns no text knows.
var attributeColumns = []string{
	"SELECT o.fire, (o).fire, (o.a).b.c, (a).b, a[1].b, (o.a[1]).b, public.o.fire FROM o", "SELECT x.fire FROM (SELECT * FROM o) x", "SELECT x.fire FROM (SELECT o.*, 1 FROM o) x",
	"SELECT x.fire FROM (SELECT 1 AS fire) x", "SELECT x.fire FROM (VALUES (1)) x(fire)", "SELECT x.column1 FROM (VALUES (1)) x", "SELECT (ROW(1, 2)).f2, (ROW(1, ROW(2))).f2",
	"SELECT x.x, y.y FROM generate_series(1, 2) x, unnest(ARRAY[1]) y", "SELECT x.n, x.ordinality FROM unnest(ARRAY[1]) WITH ORDINALITY x(n)", "SELECT u.a, u.b FROM unnest($1::int[], $2::text[]) u(a, b)",
	"SELECT e.key, e.value FROM o, jsonb_each(o.doc) e", "SELECT e.k FROM jsonb_each_text('{}') e(k, v)", "SELECT v.value FROM jsonb_array_elements('[]') v",
	"SELECT (jsonb_each(doc)).key, (aclexplode(relacl)).grantee FROM pg_class, o", "SELECT x.relname, x.ctid, x.oid FROM pg_class x", "SELECT (NULL::pg_class).relname",
	"WITH x AS (SELECT id, lower(name), count(*) FROM o GROUP BY 1, 2) SELECT x.id, x.lower, x.count FROM x", "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT x.n + 1 FROM x) SELECT x.n FROM x",
	"WITH RECURSIVE x AS (SELECT id FROM o) SEARCH DEPTH FIRST BY id SET ord CYCLE id SET loop USING way SELECT x.id, x.ord, x.loop, x.way FROM x", "WITH x AS (SELECT * FROM o) SELECT x.fire FROM x",
	"SELECT x.a, x.b FROM ((SELECT 1 AS a) p CROSS JOIN (SELECT 2 AS b) q) x", "SELECT p.id, q.b FROM (SELECT 1 AS id) p JOIN (SELECT 1 AS id, 2 AS b) q USING (id)",
	"SELECT (r.k).x, (r.k).n FROM (SELECT information_schema._pg_expandarray(i.indkey) AS k FROM pg_index i) r", "SELECT x.fire FROM (SELECT 1 AS a) y, LATERAL (SELECT y.a AS fire) x",
	"SELECT (SELECT x.fire FROM o x) FROM (SELECT 1) x", "SELECT (SELECT 1 FROM o x JOIN o y ON x.fire = y.fire) FROM (SELECT 1) x", "SELECT x.a, x.b FROM json_to_recordset('[]') x(a int, b text)",
	"SELECT s.coalesce, s.case, s.text, s.exists, s.array, s.row, s.int4 FROM (SELECT coalesce(1, 2), CASE WHEN true THEN 1 END, 'x'::text, EXISTS (SELECT 1), ARRAY[1], ROW(1), 1::int) s",
	"SELECT (x.a).b FROM o, LATERAL (SELECT o.*) x", "SELECT (x.a).b, (y.a).b FROM o JOIN LATERAL (SELECT i.*, 1 AS n FROM i WHERE i.id = o.id) x ON true, LATERAL (SELECT o.a) y", "SELECT (z.a).b FROM (SELECT * FROM o UNION ALL SELECT * FROM i) z", "SELECT (k.a).b FROM (SELECT * FROM o) k(id, a)",
	"SELECT k.id, k.n, (k.id).b FROM (SELECT 1 AS x, o.* FROM o) k(n, id)", "WITH RECURSIVE q AS (SELECT o.*, 1 AS n FROM o UNION ALL SELECT o.*, q.n + 1 FROM o JOIN q ON o.up = q.id) SELECT q.n, q.name FROM q", "SELECT (SELECT (o).b FROM i) FROM o", "SELECT 1 FROM (SELECT 1 AS id) s, LATERAL (SELECT (a).b FROM o WHERE o.id = s.id) z", "SELECT (SELECT (a).b FROM o) FROM (SELECT a FROM i) y",
	"SELECT 1 FROM o, (SELECT 1 AS a) k, LATERAL (SELECT (k).a, k.a, (k.*).a) z", "SELECT 1 FROM o, (SELECT 1 AS id) s, LATERAL (SELECT (address).city) z", "SELECT 1 FROM (SELECT (address).city FROM o) z JOIN (SELECT 1 AS id) address ON true", "SELECT 1 FROM o address, (SELECT 1 AS id) s, LATERAL (SELECT (address).city, (address.a).b, address.c) z",
	"SELECT (SELECT 1 FROM LATERAL (SELECT k.fire) z, (SELECT 1 AS a) k) FROM o k", "SELECT (SELECT 1 FROM (SELECT 1 AS a) k, (SELECT k.fire) z) FROM o k", "SELECT (SELECT 1 FROM (SELECT 1 AS a) k, o TABLESAMPLE system(k.n)) FROM o k", "SELECT 1 FROM o, (SELECT 1 AS a) k, ((SELECT 1 AS b) x JOIN LATERAL (SELECT (k).a, (x).b, x.b) y ON (y).a = 1 AND (x).b = 1) AS j",
	"SELECT x.greatest, x.current_date, x.nullif, x.max FROM (SELECT greatest(1, 2), current_date, nullif(1, 2), (SELECT max(id) FROM o)) x", "SELECT d.d FROM CAST('2024-01-01' AS date) d",
}

func TestANameBehindADotThatMayBeAColumnIsNone(t *testing.T) {
	for _, major := range []int{0, 15, 16, 17, 18} {
		tb := newTestTables(t, Config{ServerMajor: major})
		for _, sql := range attributeColumns {
			require.True(t, mustClassify(t, tb, sql).SafeRead, "%d: %s: %v", major, sql, mustClassify(t, tb, sql).Signals)
		}
		require.Equal(t, []string{SignalDelayFunction}, mustClassify(t, tb, "SELECT x.a FROM XMLTABLE('/a' PASSING ('<a/>'::xml) COLUMNS a int PATH '.') x").RiskSignals)
	}
}

// What is a column in a read is a call in everything else, also where the text, the message
// or the database tells behind it that it is no safe read.
func TestAColumnOfAReadIsACallWhereItIsNoReadAfterAll(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range []string{
		"SELECT (o.status).evil, ('a'::text).mood FROM orders o", "SELECT (o.status).evil FROM orders o, LATERAL (SELECT ('a'::text).mood) z", "EXPLAIN ANALYZE SELECT (o.status).evil FROM orders o",
		"SELECT (o.status).evil, a.rolpassword FROM orders o, pg_authid a", "SELECT (status).evil, 'x' AS \"p\u0430ypal\" FROM orders", "SELECT (o.status).evil, public.mine(1) FROM orders o", "SELECT (SELECT (status).evil) FROM orders FOR UPDATE",
	} {
		c := mustClassify(t, tb, sql)
		require.False(t, c.SafeRead, sql)
		require.Contains(t, c.Functions, "public.evil", sql)
		require.Contains(t, c.RiskSignals, SignalUnknownFunction, sql)
	}
	for _, sql := range []string{"SELECT o.order_total, (o.status).evil FROM orders o WHERE $1 IS NOT NULL", "SELECT o.order_total FROM orders o WHERE (status).evil = '' AND $1 IS NOT NULL"} {
		c := mustClassify(t, tb, sql)
		require.True(t, c.SafeRead, sql)
		require.Empty(t, c.Functions, sql)
		for how, more := range map[string]Classification{"a call": c.WithCalls([]string{"public.order_total"}), "a type": c.WithTypes([]uint32{99999}, []string{"public.order_total"}), "both": c.WithTypes([]uint32{99999}, []string{"public.order_total"}).WithCalls([]string{"public.order_total"})} {
			require.Equal(t, []string{"public.evil", "public.order_total"}, more.Functions, "%s: %s", how, sql)
			require.False(t, more.SafeRead, sql)
			require.Equal(t, RunTransaction, more.Run, sql)
			require.NotEqual(t, c.Fingerprint, more.Fingerprint, sql)
		}
		require.Equal(t, c, c.WithTypes([]uint32{25}, nil), sql)
	}
}

// A key bounds the rows of an upsert only where nothing else gives more: what the message or
// the database tells of may.
func TestAKeyOfAnUpsertIsJudgedByAllCalls(t *testing.T) {
	tb := newTestTables(t, Config{})
	names := []string{"public.related"}
	for sql, want := range map[string]string{
		"INSERT INTO orders (id, status) SELECT o.related, 'x' FROM orders o WHERE id = 1 ON CONFLICT (id) DO UPDATE SET status = excluded.status":     WherePresent,
		"INSERT INTO orders (id, status) SELECT u, 'x' FROM unnest($1) u ON CONFLICT (id) DO UPDATE SET status = excluded.status":                      WhereNone,
		"INSERT INTO orders (id, status) SELECT u, 'x' FROM (SELECT v FROM unnest($1) v) s(u) ON CONFLICT (id) DO UPDATE SET status = excluded.status": WhereNone,
		"INSERT INTO orders (id, mood) VALUES ($1, lower($2)) ON CONFLICT (id) DO UPDATE SET mood = excluded.mood":                                     WhereKeyEquality,
		"INSERT INTO orders (id, mood) SELECT $1, $2 ON CONFLICT (id) DO UPDATE SET mood = excluded.mood":                                              WhereKeyEquality,
		"UPDATE orders o SET status = o.related WHERE o.id = 1":                                                                                        WhereKeyEquality,
	} {
		c := mustClassify(t, tb, sql)
		require.Equal(t, []string{WhereKeyEquality}, c.Where, sql)
		require.Equal(t, []string{want}, c.WithCalls(names).Where, sql)
		require.Equal(t, []string{want}, c.WithTypes([]uint32{23, 99999}, names).Where, sql)
		require.Equal(t, want == WhereNone, slices.Contains(c.WithCalls(names).RiskSignals, SignalWriteWithoutWhere), sql)
	}
}

// The result of RETURNING * has the columns of the statement's relations.
func TestTheColumnsOfReturning(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range []string{
		"WITH d AS (DELETE FROM jobs WHERE id = 1 RETURNING *) SELECT d.id FROM d", "WITH d AS (DELETE FROM jobs USING u WHERE jobs.id = 1 RETURNING *, 1 AS x) INSERT INTO a SELECT d.id, d.x FROM d",
		"WITH d AS (INSERT INTO jobs SELECT * FROM x RETURNING *) UPDATE a SET n = d.n FROM d WHERE a.id = d.id", "WITH d AS (UPDATE jobs j SET a = 1 FROM x WHERE j.id = x.id RETURNING j.*) SELECT d.id FROM d",
		"INSERT INTO t SELECT (s).k FROM (SELECT 1 AS k) s", "INSERT INTO t SELECT (s.*).k FROM (SELECT 1 AS k) s, o",
	} {
		require.NotContains(t, mustClassify(t, tb, sql).RiskSignals, SignalUnknownFunction, sql)
	}
	c := mustClassify(t, tb, "WITH d AS (DELETE FROM jobs WHERE id = 1 RETURNING *, 1 AS x) SELECT (d.x).fire FROM d")
	require.Equal(t, []string{"public.fire"}, c.Functions)
}

// A function behind a dot may return a set, and then its rows are not written out.
func TestACallBehindADotBoundsNoUpsert(t *testing.T) {
	tb := newTestTables(t, Config{})
	for source, value := range map[string]string{
		"SELECT x.a, 1 FROM (VALUES (1)) x(a)": WhereKeyEquality, "SELECT x.fire, 1 FROM (VALUES (1)) x(a)": WhereNone, "SELECT (1).fire, 1": WhereNone,
		"SELECT information_schema._pg_index_position(1, 1), 1": WhereKeyEquality, "SELECT information_schema._pg_expandarray($1), 1": WhereNone,
	} {
		require.Equal(t, []string{value}, mustClassify(t, tb, "INSERT INTO t "+source+" ON CONFLICT (id) DO UPDATE SET n = 1").Where, source)
	}
}

func TestFunctionsOfTheInformationSchemaAreBuiltIn(t *testing.T) {
	tb := newTestTables(t, Config{})
	c := mustClassify(t, tb, "SELECT (information_schema._pg_expandarray(i.indkey)).n FROM pg_index i")
	require.True(t, c.SafeRead)
	require.Equal(t, []string{"information_schema._pg_expandarray"}, c.Functions)
	for _, call := range []string{"_pg_expandarray($1)", "pg_catalog._pg_expandarray($1)", "public._pg_expandarray($1)", "information_schema._pg_expandarray(1, 2)", "information_schema.lower('x')",
		"information_schema._pg_numeric_scale(typ => 1, typmod => 2)", "information_schema._pg_other(1)", `"information_schema._pg_expandarray"($1)`} {
		c := mustClassify(t, tb, "SELECT "+call)
		require.Contains(t, c.RiskSignals, SignalUnknownFunction, call)
	}
}

// manyColumns are more than half of what a result may have; a join takes two of them.
func manyColumns(prefix string) string {
	var all []string
	for i := range 900 {
		all = append(all, fmt.Sprintf("%d AS %s%d", i, prefix, i))
	}
	return strings.Join(all, ", ")
}
