package classify

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ordinaryReads are the reads that application frameworks, psql and dashboards
// send, in the shapes they send them in. None calls a volatile function.
var ordinaryReads = []string{
	// SQLAlchemy
	`SELECT users.id AS users_id, users.name AS users_name FROM users WHERE users.id = $1`,
	`SELECT anon_1.users_id, orders_1.total FROM (SELECT users.id AS users_id FROM users ORDER BY users.id LIMIT $1 OFFSET $2) AS anon_1 LEFT OUTER JOIN orders AS orders_1 ON anon_1.users_id = orders_1.user_id ORDER BY anon_1.users_id`,
	`SELECT count(*) AS count_1 FROM (SELECT DISTINCT t.a AS a FROM t WHERE lower(t.b) LIKE '%' || $1::VARCHAR || '%') AS anon_1`,
	`select pg_catalog.version()`,
	`select current_schema()`,
	`show standard_conforming_strings`,
	`show transaction isolation level`,
	`SELECT EXISTS (SELECT 1 FROM users WHERE users.email = $1) AS anon_1`,
	`SELECT CAST(orders.created_at AS DATE) AS d, sum(orders.total) FILTER (WHERE orders.paid) AS s FROM orders GROUP BY CAST(orders.created_at AS DATE) HAVING sum(orders.total) > $1`,
	// Django
	`SELECT "auth_user"."id", "auth_user"."password", "auth_user"."last_login" FROM "auth_user" WHERE "auth_user"."username" = $1 LIMIT 21`,
	`SELECT (1) AS "a" FROM "django_session" WHERE "django_session"."session_key" = $1 LIMIT 1`,
	`SELECT COUNT(*) AS "__count" FROM "blog_post" INNER JOIN "blog_author" ON ("blog_post"."author_id" = "blog_author"."id") WHERE UPPER("blog_author"."name"::text) LIKE UPPER($1)`,
	`SELECT DATE_TRUNC('month', "s"."created" AT TIME ZONE 'UTC') AS "m", AVG("s"."v") AS "avg" FROM "s" WHERE "s"."created" BETWEEN $1 AND $2 GROUP BY 1 ORDER BY 1 ASC`,
	`SELECT "t"."id" FROM "t" WHERE "t"."data" -> 'a' ->> 'b' = 'c' AND NOT ("t"."tags" && ARRAY['x']::varchar(10)[])`,
	`SELECT c.relname, CASE WHEN c.relispartition THEN 'p' WHEN c.relkind IN ('m', 'v') THEN 'v' ELSE 't' END, obj_description(c.oid, 'pg_class') FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('f', 'm', 'p', 'r', 'v') AND n.nspname NOT IN ('pg_catalog', 'pg_toast') AND pg_catalog.pg_table_is_visible(c.oid)`,
	// ActiveRecord
	`SELECT "users".* FROM "users" WHERE "users"."id" IN ($1, $2, $3) ORDER BY "users"."id" ASC`,
	`SELECT 1 AS one FROM "users" WHERE "users"."email" = $1 LIMIT $2`,
	`SELECT a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid), a.attnotnull, a.atttypid, a.atttypmod, c.collname, col_description(a.attrelid, a.attnum) AS comment, attidentity AS identity FROM pg_attribute a LEFT JOIN pg_attrdef d ON a.attrelid = d.adrelid AND a.attnum = d.adnum LEFT JOIN pg_type t ON a.atttypid = t.oid LEFT JOIN pg_collation c ON a.attcollation = c.oid AND a.attcollation <> t.typcollation WHERE a.attrelid = '"users"'::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`,
	`SELECT t.oid, t.typname, t.typelem, t.typdelim, t.typinput, r.rngsubtype, t.typtype, t.typbasetype FROM pg_type as t LEFT JOIN pg_range as r ON oid = rngtypid WHERE t.typname IN ('int2', 'int4') OR t.typtype IN ('r', 'e', 'd') OR t.typelem IN (16, 17)`,
	`SHOW max_identifier_length`,
	`SELECT COUNT(*) FROM (SELECT 1 AS one FROM "posts" LIMIT $1 OFFSET $2) subquery_for_count`,
	`SELECT "p".*, array_agg("c"."id" ORDER BY "c"."id") FROM "p" LEFT OUTER JOIN "c" ON "c"."p_id" = "p"."id" GROUP BY "p"."id"`,
	// Prisma
	`SELECT "public"."User"."id", "public"."User"."email" FROM "public"."User" WHERE ("public"."User"."id" = $1 AND 1=1) LIMIT $2 OFFSET $3`,
	`SELECT "t0"."id", COALESCE("t0_posts"."__prisma_data__", '[]'::jsonb) AS "posts" FROM "public"."User" AS "t0" LEFT JOIN LATERAL (SELECT COALESCE(JSONB_AGG("__prisma_data__"), '[]'::jsonb) AS "__prisma_data__" FROM (SELECT "t1"."__prisma_data__" FROM (SELECT JSONB_BUILD_OBJECT('id', "t2"."id") AS "__prisma_data__" FROM (SELECT "t3".* FROM "public"."Post" AS "t3" WHERE "t0"."id" = "t3"."authorId") AS "t2") AS "t1") AS "t4") AS "t0_posts" ON true`,
	`SELECT COUNT(*) FROM (SELECT "public"."Post"."id" FROM "public"."Post" WHERE "public"."Post"."title"::text ILIKE $1 OFFSET $2) AS "sub"`,
	// GORM
	`SELECT * FROM "users" WHERE "users"."deleted_at" IS NULL AND ("users"."id" = 10) ORDER BY "users"."id" LIMIT 1`,
	`SELECT count(*) FROM information_schema.tables WHERE table_schema = CURRENT_SCHEMA() AND table_name = $1 AND table_type = 'BASE TABLE'`,
	`SELECT CURRENT_DATABASE()`,
	`SELECT c.column_name, c.is_nullable = 'YES', c.udt_name, c.character_maximum_length, c.numeric_precision, c.column_default, pd.description, c.identity_increment FROM information_schema.columns AS c JOIN pg_type AS pgt ON c.udt_name = pgt.typname LEFT JOIN pg_catalog.pg_description as pd ON pd.objsubid = c.ordinal_position AND pd.objoid = (SELECT oid FROM pg_catalog.pg_class WHERE relname = c.table_name AND relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = c.table_schema)) WHERE table_catalog = $1 AND table_schema = $2`,
	// psql
	`SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relname OPERATOR(pg_catalog.~) '^(t)$' COLLATE pg_catalog.default AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 2, 3`,
	`SELECT c.relchecks, c.relkind, c.relhasindex, c.relhasrules, c.relhastriggers, c.relrowsecurity, c.relforcerowsecurity, false AS relhasoids, c.relispartition, pg_catalog.array_to_string(c.reloptions || array(select 'toast.' || x from pg_catalog.unnest(tc.reloptions) x), ', '), c.reltablespace, CASE WHEN c.reloftype = 0 THEN '' ELSE c.reloftype::pg_catalog.regtype::pg_catalog.text END, c.relpersistence, c.relreplident, am.amname FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_class tc ON (c.reltoastrelid = tc.oid) LEFT JOIN pg_catalog.pg_am am ON (c.relam = am.oid) WHERE c.oid = '16384'`,
	`SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), (SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid, true) FROM pg_catalog.pg_attrdef d WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.atthasdef), a.attnotnull, (SELECT c.collname FROM pg_catalog.pg_collation c, pg_catalog.pg_type t WHERE c.oid = a.attcollation AND t.oid = a.atttypid AND a.attcollation <> t.typcollation) AS attcollation, a.attidentity, a.attgenerated FROM pg_catalog.pg_attribute a WHERE a.attrelid = '16384' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`,
	`SELECT c2.relname, i.indisprimary, i.indisunique, i.indisclustered, i.indisvalid, pg_catalog.pg_get_indexdef(i.indexrelid, 0, true), pg_catalog.pg_get_constraintdef(con.oid, true), contype, condeferrable, condeferred, i.indisreplident, c2.reltablespace FROM pg_catalog.pg_class c, pg_catalog.pg_class c2, pg_catalog.pg_index i LEFT JOIN pg_catalog.pg_constraint con ON (conrelid = i.indrelid AND conindid = i.indexrelid AND contype IN ('p','u','x')) WHERE c.oid = '16384' AND c.oid = i.indrelid AND i.indexrelid = c2.oid ORDER BY i.indisprimary DESC, c2.relname`,
	`SELECT d.datname as "Name", pg_catalog.pg_get_userbyid(d.datdba) as "Owner", pg_catalog.pg_encoding_to_char(d.encoding) as "Encoding", pg_catalog.array_to_string(d.datacl, E'\n') AS "Access privileges" FROM pg_catalog.pg_database d ORDER BY 1`,
	`SELECT n.nspname AS "Name", pg_catalog.pg_get_userbyid(n.nspowner) AS "Owner" FROM pg_catalog.pg_namespace n WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' ORDER BY 1`,
	// pgbench
	`SELECT abalance FROM pgbench_accounts WHERE aid = 1`,
	`select o.n, p.partstrat, pg_catalog.count(i.inhparent) from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on (n.oid = c.relnamespace) cross join lateral (select pg_catalog.array_position(pg_catalog.current_schemas(true), n.nspname)) as o(n) left join pg_catalog.pg_partitioned_table as p on (p.partrelid = c.oid) left join pg_catalog.pg_inherits as i on (c.oid = i.inhparent) where c.relname = 'pgbench_accounts' and o.n is not null group by 1, 2 order by 1 asc limit 1`,
	// Dashboards
	`WITH days AS (SELECT generate_series(date_trunc('day', now()) - interval '30 days', now(), interval '1 day') AS d) SELECT d, count(o.id), round(avg(o.total)::numeric, 2), percentile_cont(0.95) WITHIN GROUP (ORDER BY o.total) FROM days LEFT JOIN orders o ON date_trunc('day', o.created_at) = d GROUP BY d ORDER BY d`,
	`SELECT region, product, sum(amount), rank() OVER (PARTITION BY region ORDER BY sum(amount) DESC), sum(sum(amount)) OVER w, lag(sum(amount), 1, 0::numeric) OVER w FROM sales GROUP BY region, product WINDOW w AS (ORDER BY region ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)`,
	`SELECT brand, size, sum(sales), GROUPING(brand, size) FROM items_sold GROUP BY GROUPING SETS ((brand), ROLLUP (size), CUBE (brand, size), ())`,
	`WITH RECURSIVE tree(id, parent, path) AS (SELECT id, parent, ARRAY[id] FROM nodes WHERE parent IS NULL UNION ALL SELECT n.id, n.parent, t.path || n.id FROM nodes n JOIN tree t ON n.parent = t.id) SEARCH DEPTH FIRST BY id SET ord CYCLE id SET is_cycle USING cyc SELECT * FROM tree ORDER BY ord`,
	`SELECT jsonb_path_query(doc, '$.items[*] ? (@.price > 10)'), doc #>> '{a,b}', doc @> '{"k":1}', jsonb_pretty(doc) FROM docs`,
	`SELECT to_tsvector('english', body) @@ plainto_tsquery('english', 'fat cat'), ts_rank(tsv, q), ts_headline('english', body, q) FROM posts, to_tsquery('english', 'fat & cat') q WHERE tsv @@ q`,
	`SELECT width_bucket(x, 0, 100, 10), count(*) FILTER (WHERE ok), string_agg(DISTINCT name, ', '), bool_and(ok), json_object_agg(k, v), corr(x, y) FROM m GROUP BY 1`,
	`SELECT extract(epoch FROM ts)::bigint, to_char(ts, 'YYYY-MM'), age(ts), ts AT TIME ZONE 'Europe/Berlin', date_part('dow', ts), make_interval(days => 3), ts::date, overlay('abc' PLACING 'x' FROM 2), position('a' IN s), substring(s FROM 1 FOR 2), trim(BOTH 'x' FROM s) FROM e WHERE (ts, te) OVERLAPS (now(), now() + '1 day')`,
	`(SELECT a FROM x EXCEPT SELECT a FROM y) INTERSECT ALL (VALUES (1), (2)) ORDER BY 1 NULLS LAST FETCH FIRST 3 ROWS WITH TIES`,
	`SELECT DISTINCT ON (user_id) * FROM events TABLESAMPLE bernoulli (1) REPEATABLE (3) ORDER BY user_id, at DESC NULLS LAST`,
	`SELECT * FROM ROWS FROM (unnest(ARRAY[1,2]), json_to_recordset('[{"a":1}]') AS (a int)) WITH ORDINALITY AS r(x, y, n)`,
	`SELECT CASE a WHEN 1 THEN 'x' ELSE NULLIF(b, '') END, GREATEST(a, 2), COALESCE(b, 'n'), a IN (1, 2), a = ANY ($1), a <> ALL (ARRAY[1]), ROW(a, b) = ROW(1, 'x'), (a, b) IN (SELECT 1, 'x'), ARRAY(SELECT 1), a[1:2], (r).f, r.*, b COLLATE "C", a IS DISTINCT FROM 1, b SIMILAR TO 'x%', b ~* 'x', NOT a > 1, -a, |/ 4, a % 2 FROM t`,
	`EXPLAIN (COSTS OFF, VERBOSE, FORMAT json) SELECT * FROM t WHERE id = $1`,
	`EXPLAIN SELECT * FROM t`,
	`TABLE t`,
	`SHOW timezone`,
	`SELECT current_setting('TimeZone'), current_setting('DateStyle', true)`,
	`SELECT CURRENT_USER, SESSION_USER, CURRENT_CATALOG, CURRENT_TIMESTAMP(3), LOCALTIME, USER`,
}

// readsOf16 are reads that PostgreSQL 15 does not know.
var readsOf16 = []string{
	`SELECT JSON_OBJECT('a': 1, 'b': 2 ABSENT ON NULL), JSON_ARRAY(1, 2), JSON_ARRAYAGG(x ORDER BY x), JSON_OBJECTAGG(k: v), '{}' IS JSON OBJECT FROM t`,
	`SELECT count(*) FROM (SELECT DISTINCT a FROM t)`,
	`SELECT * FROM t WHERE n > 1_000_000 AND flags & 0x0F = 0b01`,
	`SELECT d, any_value(a) FROM t GROUP BY d`,
}

func TestOrdinaryReadsAreSafeReads(t *testing.T) {
	for _, major := range []int{0, 15, 16, 17, 18} {
		tb, err := newTables(Config{ServerMajor: major})
		require.NoError(t, err)
		reads := ordinaryReads
		if major >= 16 {
			reads = slices.Concat(reads, readsOf16)
		}
		for _, sql := range reads {
			c, f := classifyText(tb, sql)
			require.Nil(t, f, sql)
			require.True(t, c.SafeRead, "%d: %s: %s %+v", major, sql, c.Class, c.Signals)
			require.Equal(t, RunReadFence, c.Run)
		}
	}
}

func TestOrdinaryWritesRaiseNoSignal(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range []string{
		`INSERT INTO "users" ("name", "created_at") VALUES ($1, $2) RETURNING "id"`,
		`INSERT INTO users (name) SELECT name FROM staging WHERE ok ON CONFLICT (name) DO UPDATE SET name = excluded.name, n = users.n + 1 RETURNING *`,
		`UPDATE "users" SET "name" = $1, "updated_at" = now() WHERE "users"."id" = $2`,
		`UPDATE pgbench_accounts SET abalance = abalance + 5 WHERE aid = 1`,
		`DELETE FROM "sessions" WHERE "sessions"."expires_at" < $1`,
		`MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)`,
		`CREATE TABLE t (id bigserial PRIMARY KEY, name varchar(20) NOT NULL DEFAULT 'x', at timestamptz DEFAULT now(), p int REFERENCES p (id) ON DELETE CASCADE) WITH (fillfactor = 70, autovacuum_enabled = off)`,
		`CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS i ON t USING btree (lower(name) text_pattern_ops DESC NULLS LAST) INCLUDE (at) WITH (deduplicate_items = off) WHERE name IS NOT NULL`,
		`ALTER TABLE t ADD COLUMN c text COLLATE "C" NOT NULL DEFAULT '', ADD CONSTRAINT k CHECK (c <> 'x') NOT VALID`,
	} {
		c := mustClassify(t, tb, sql)
		require.Empty(t, c.RiskSignals, "%s: %+v", sql, c.Signals)
		require.False(t, c.SafeRead)
		require.NotEmpty(t, c.TablesWritten, sql)
		require.NotEmpty(t, c.ColumnsWritten, sql)
	}
}

// A trafficLine is one statement that an application, a tool or a dashboard
// sends, and what it must be: safe, or its class and risk signals.
type trafficLine struct{ verdict, sql string }

// traffic reads testdata/traffic.tsv; lines that begin with # are headings.
func traffic(t testing.TB) []trafficLine {
	data, err := os.ReadFile("testdata/traffic.tsv")
	require.NoError(t, err)
	var all []trafficLine
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		verdict, sql, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		require.True(t, ok, line)
		all = append(all, trafficLine{verdict, strings.ReplaceAll(sql, `\n`, "\n")})
	}
	require.Greater(t, len(all), 120)
	return all
}

func TestTrafficIsJudgedAsExpected(t *testing.T) {
	for _, major := range []int{0, 15, 16, 17, 18} {
		tb, err := newTables(Config{ServerMajor: major})
		require.NoError(t, err)
		for _, line := range traffic(t) {
			c := mustClassify(t, tb, line.sql)
			got := "safe"
			if !c.SafeRead {
				got = strings.TrimSpace(c.Class + " " + strings.Join(c.RiskSignals, ","))
			}
			require.Equal(t, line.verdict, got, "%d: %s", major, line.sql)
		}
	}
}
