package classify

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/postgres"
)

// layered puts a query into itself: each %s of a layer stands for what is inside.
func layered(n int, inside, layer string) string {
	for range n {
		inside = strings.ReplaceAll(layer, "%s", inside)
	}
	return inside
}

// copyChain is a chain of CTEs.
func copyChain(n int, each string) string {
	list := []string{"x0(x) AS (SELECT id FROM t)"}
	for k := range n {
		list = append(list, strings.NewReplacer("OLD", fmt.Sprint("x", k), "NEW", fmt.Sprint("x", k+1)).Replace(each))
	}
	return fmt.Sprintf("WITH %s SELECT x FROM x%d", strings.Join(list, ", "), n)
}

const copyBase = "SELECT id AS x, id AS y FROM t"

// boundedCopies are statements that stay small.
func boundedCopies() map[string]string {
	wide := "SELECT id AS c0"
	for k := range 200 {
		wide += fmt.Sprintf(", coalesce(n, %d) AS c%d", k, k+1)
	}
	named, list := "SELECT x FROM m0", "WITH m0 AS (SELECT x, count(*) AS c0 FROM (SELECT id AS x FROM t) s GROUP BY x)"
	for k := 1; k < 40; k++ {
		named += fmt.Sprintf(" FULL JOIN m%d USING (x)", k)
		list += fmt.Sprintf(", m%d AS (SELECT x, count(*) AS c%d FROM (SELECT id AS x FROM t) s GROUP BY x)", k, k)
	}
	named = list + " " + named + " WHERE x > 0"
	joins := "SELECT * FROM t"
	for k := range 120 {
		joins += fmt.Sprintf(" JOIN t t%d ON true", k)
	}
	metrics := ""
	for k := range 40 {
		metrics += fmt.Sprintf(" FULL JOIN (SELECT id AS x, count(*) AS c%d FROM t GROUP BY id) m%d USING (x)", k, k)
	}
	return map[string]string{
		"names that pass through": layered(50, wide+" FROM t", "SELECT * FROM (%s) s"),
		"one more at each level":  layered(30, copyBase, "SELECT s.*, x + 1 AS z FROM (%s) s"),
		"sums of two":             layered(20, copyBase, "SELECT x + 1 AS x, x + y AS y FROM (%s) s"),
		"some that double":        layered(12, copyBase, "SELECT CASE WHEN x IS NULL THEN 0 ELSE x END AS x FROM (%s) s"),
		"behind a LIMIT":          layered(40, copyBase, "SELECT x + x AS x FROM (%s) s LIMIT 10"),
		"CTEs that stay":          copyChain(40, "NEW AS MATERIALIZED (SELECT x + x AS x FROM OLD)"),
		"CTEs named twice":        copyChain(40, "NEW AS (SELECT p.x + p.x AS x FROM OLD p, OLD q)"),
		"a recursive one":         "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + x + x + x + x + x FROM r WHERE x + x + x < 100) SELECT x + x + x + x FROM r",
		"joins":                   joins,
		"one window of many":      "SELECT 1" + strings.Repeat(", sum(n) OVER (PARTITION BY id ORDER BY n)", 600) + " FROM t",
		"a year of counts":        "SELECT 1" + strings.Repeat(", count(DISTINCT CASE WHEN id = 3 THEN n END)", 365) + " FROM t",
		"months":                  "SELECT CASE to_char(id, '09')" + strings.Repeat(" WHEN '01' THEN 'Jan'", 40) + " END, CASE replace(lower(name), ' ', '')" + strings.Repeat(" WHEN 'a' THEN 1", 40) + " END FROM t",
		"elements of JSON":        "SELECT o.id" + strings.Repeat(", o.n", 60) + " FROM t o, jsonb_array_elements(replace(o.name, 'a', 'b')::jsonb) e(value), generate_series(1, to_char(now(), 'DD')::int) d, unnest(string_to_array(repeat('a,', 3), ',')) u",
		"metrics by name":         named,
		"a report of reports":     copyChain(20, "NEW AS (SELECT x, sum(CASE WHEN x > 0 THEN x WHEN x < 0 THEN -x ELSE coalesce(x, 0) END) AS y, x - lag(x) OVER (PARTITION BY x ORDER BY x) AS z FROM OLD GROUP BY x)"),
		"sums of sums":            copyChain(30, "NEW AS (SELECT sum(CASE WHEN x > 0 THEN x ELSE 0 END) AS x FROM OLD)"),
		"windows of windows":      copyChain(30, "NEW AS (SELECT x - lag(x) OVER (PARTITION BY x ORDER BY x) AS x FROM OLD)"),
		"merged metrics":          "SELECT x FROM t a0(x)" + metrics + " WHERE x > 0",
		"a pivot of sources":      "WITH s AS (SELECT id, n AS x FROM t" + strings.Repeat(" UNION ALL SELECT id, n + 1 FROM t", 24) + "), c AS (SELECT id, CASE WHEN x > 0 THEN x ELSE -x END AS x FROM s), d AS (SELECT id, CASE WHEN x > 9 THEN x ELSE x + 1 END AS x FROM c) SELECT id" + strings.Repeat(", sum(CASE WHEN id = 1 THEN x END)", 300) + " FROM d GROUP BY id",
		"grouping sets":           "SELECT 1 FROM t GROUP BY GROUPING SETS ((id), (n), ()), CUBE (id, n), ROLLUP (id, n)",
		"a large UNION":           "SELECT * FROM (SELECT * FROM t" + strings.Repeat(" UNION ALL SELECT * FROM t", 400) + ") s",
		"windows of one name":     "SELECT 1" + strings.Repeat(", sum(id) OVER w", 600) + " FROM t WINDOW w AS (PARTITION BY n)",
		"subqueries as columns":   "SELECT 1" + strings.Repeat(", (SELECT max(id) FROM t)", 600),
		"long lists":              "SELECT 1 FROM t WHERE lower(trim(name)) IN ('a'" + strings.Repeat(", 'a'", 20_000) + ")",
		"many rows":               "INSERT INTO t VALUES (1, 2, 3)" + strings.Repeat(", (1, 2, 3)", 20_000),
		"many ranges":             "SELECT 1 FROM t WHERE id BETWEEN 1 AND 2" + strings.Repeat(" OR id BETWEEN 1 AND 2", 3000),
		"keys of two columns":     "SELECT 1 FROM t WHERE (id = 1 AND n = 2)" + strings.Repeat(" OR (id = 1 AND n = 2)", 10_000),
		"rows as keys":            "SELECT 1 FROM t WHERE (id, n) IN ((1, 2)" + strings.Repeat(", (1, 2)", 200) + ")",
		"rows that differ":        "SELECT 1 FROM t WHERE true" + strings.Repeat(" AND (id, n) <> (1, 2)", 1_000),
		"pairs that differ":       "SELECT 1 FROM t WHERE true" + strings.Repeat(" AND NOT (id = 1 AND n = 2)", 1_000),
		"no such rows":            "SELECT 1 FROM t WHERE (id, n) NOT IN ((1, 2)" + strings.Repeat(", (1, 2)", 400) + ")",
		"a search of many words":  "SELECT 1 FROM t WHERE true" + strings.Repeat(" AND (id = 1 OR n = 2 OR name LIKE 'a%' OR name LIKE 'b%' OR name LIKE 'c%')", 60),
		"pages by a key":          "SELECT 1 FROM t WHERE id > 1 OR (id = 1 AND (n > 2 OR (n = 2 AND name > 'a')))",
		"ORs in each arm":         "SELECT 1 FROM t WHERE (id = 1 AND (n = 1 OR n = 2))" + strings.Repeat(" OR (id = 1 AND (n = 1 OR n = 2))", 3_000),
		"a NOT of many":           "SELECT 1 FROM t WHERE NOT (NOT (NOT (id = 1" + strings.Repeat(" OR n = 2", 4_000) + ")))",
		"keys and a choice":       "SELECT 1 FROM t WHERE (id = 1 AND n = 2" + strings.Repeat(" OR id = 1 AND n = 2", 4_000) + ") AND (n = 1 OR n = 2) AND name = 'a'",
		"many conditions":         "SELECT 1 FROM t WHERE true" + strings.Repeat(" AND id <> 1 AND n BETWEEN 1 AND 2", 1_600),
		"a query for each arm":    "SELECT * FROM (SELECT * FROM t" + strings.Repeat(" UNION ALL SELECT * FROM t", 20) + ") s WHERE true" + strings.Repeat(" AND id = (SELECT max(o.n) FROM t o WHERE o.id = s.id)", 10),
		"a long text":             "SELECT ''" + strings.Repeat(" || name", 400) + " FROM t",
		"a sum of many":           "SELECT n" + strings.Repeat(" + n", 400) + " FROM t",
		"rounded columns":         "SELECT 1" + strings.Repeat(", round(n::numeric / 3 + 1, 2), substring(name FROM 1 FOR 3) || ' ' || name", 400) + " FROM t",
		"arms of a report":        "SELECT 1, 2, 3, 4, 5, 6, 7, 8" + strings.Repeat(" UNION ALL SELECT 1, 2, 3, 4, 5, 6, 7, 8", 400),
		"subqueries with a list":  "SELECT 1 FROM t" + numbered(30, " JOIN (SELECT id FROM t) s%[1]d ON s%[1]d.id = t.id") + " WHERE t.id IN (1" + strings.Repeat(", 1", 5_000) + ")",
		"pages of pages":          layered(20, "SELECT n AS c"+numbered(60, ", n AS c%d")+" FROM t", "SELECT * FROM (%s) s LIMIT 10"),
		"equal in all":            "SELECT 1 FROM t WHERE id = 1" + strings.Repeat(" AND id = 1", 3_000),
		"other relations":         layered(20, "SELECT id AS x FROM t", "SELECT t.id + t.n AS x FROM t JOIN (%s) s ON s.x = t.id"),
	}
}

// PostgreSQL copies what a column stands for wherever it is named, so the statements that
// are refused here would keep a backend planning, and growing, past every time limit.
func TestExpressionsThatCopyEachOtherAreRefused(t *testing.T) {
	wide := "c0 int"
	for i := range 1_500 {
		wide += fmt.Sprintf(", c%d int", i+1)
	}
	tb := newTestTables(t, Config{})
	side := func(n int, each string) string { // FROM, from the left to the right
		from := "(SELECT g AS x0 FROM generate_series(1, 1) g) s0"
		for k := range n {
			from += ", " + strings.NewReplacer("OLD", fmt.Sprint("x", k), "NEW", fmt.Sprint("x", k+1), "SIDE", fmt.Sprint("s", k+1)).Replace(each)
		}
		return from
	}
	for name, sql := range map[string]string{
		"subqueries":                layered(18, copyBase, "SELECT x + x AS x FROM (%s) s"),
		"by two names":              layered(18, copyBase, "SELECT x + y AS x, x - y AS y FROM (%s) s"),
		"qualified":                 layered(18, copyBase, "SELECT s.x + S.x AS x FROM (%s) s"),
		"in a condition":            "SELECT 1 FROM (" + layered(17, copyBase, "SELECT x + x AS x FROM (%s) s") + ") s WHERE x + x > 1",
		"without a name":            layered(18, "SELECT id + 1 FROM t", "SELECT abs + abs FROM (SELECT abs(\"?column?\") FROM (%s) s) s"),
		"through a star":            layered(18, copyBase, "SELECT x + x AS x FROM (SELECT * FROM (SELECT s.* FROM (%s) s) s) s"),
		"other names":               layered(18, copyBase, "SELECT a + a AS x FROM (%s) s(a)"),
		"names behind a star":       layered(18, copyBase, "SELECT b + b AS x, 1 AS y FROM (SELECT *, 1 FROM (%s) s) s(b)"),
		"whole rows":                layered(18, copyBase, "SELECT s AS x, s AS y FROM (%s) s"),
		"fields of rows":            layered(18, copyBase, "SELECT ROW((x).f1, (x).f1) AS x FROM (%s) s"),
		"all fields":                layered(18, "SELECT ROW(id, id) AS r FROM t", "SELECT ROW(f1, f2) AS r FROM (SELECT (r).* FROM (%s) s) s"),
		"rows of stars":             "SELECT " + layered(18, "ROW(id, n)", "ROW((%s).*)") + " FROM t",
		"LATERAL":                   "SELECT * FROM " + side(18, "LATERAL (SELECT OLD + OLD AS NEW) SIDE"),
		"LATERAL VALUES":            "SELECT * FROM " + side(18, "LATERAL (VALUES (OLD + OLD)) SIDE(NEW)"),
		"CTEs":                      copyChain(18, "NEW AS (SELECT x + x AS x FROM OLD)"),
		"CTEs with names":           copyChain(18, "NEW(x) AS (SELECT x + x FROM OLD)"),
		"CTEs, copied":              copyChain(6, "NEW AS NOT MATERIALIZED (SELECT p.x + q.x"+strings.Repeat(" + q.x", 8)+" AS x FROM OLD p, OLD q)"),
		"CTEs of one name":          layered(18, copyBase, "WITH c AS (%s) SELECT x + x AS x FROM c"),
		"a UNION":                   layered(18, copyBase, "SELECT x + x AS x, 1 AS y FROM (SELECT 1 AS x, 2 AS y UNION ALL %s) s"),
		"DISTINCT":                  "SELECT 1 FROM (" + layered(18, copyBase, "SELECT DISTINCT x + x AS x FROM (%s) s") + ") s WHERE x > 0",
		"groups":                    "SELECT 1 FROM (" + layered(18, copyBase, "SELECT x + x AS x FROM (%s) s GROUP BY x") + ") s WHERE x > 0",
		"FULL JOIN":                 layered(18, copyBase, "SELECT x + x AS x FROM ((%s) s FULL JOIN (SELECT 1 AS x) b USING (x))"),
		"what it merges":            "SELECT x FROM " + layered(9, "(SELECT id AS x FROM t)", "(SELECT x + x AS x FROM (%s s FULL JOIN (SELECT x + x AS x FROM t s) b USING (x)))") + " s WHERE " + strings.Repeat("x > 0 AND ", 60) + "x > 1",
		"merged columns":            layered(18, copyBase, "SELECT 1 AS x, a + a AS y FROM ((%s) s JOIN (SELECT 1 AS y) b USING (y)) AS j(a, c)"),
		"a star of them":            layered(18, copyBase, "SELECT 1 AS x, a + a AS y FROM (SELECT * FROM (%s) s NATURAL JOIN (SELECT 1 AS y) b) AS j(a, c)"),
		"a CTE named like a target": "WITH o AS (SELECT ARRAY[n" + strings.Repeat(", n", 1000) + "] AS x FROM t) INSERT INTO o (id) SELECT cardinality(ARRAY[x" + strings.Repeat(", x", 1000) + "]) FROM o",
		"like what is locked":       "WITH a AS (SELECT ARRAY[n" + strings.Repeat(", n", 1000) + "] AS x FROM t) SELECT ARRAY[q.x" + strings.Repeat(", q.x", 1000) + "] FROM a q, t a FOR UPDATE OF a",
		"a chain of ||":             "SELECT ''" + strings.Repeat(" || n", 1_000) + " FROM t",
		"many chains of ||":         "SELECT ''" + strings.Repeat(strings.Repeat(" || n", 100)+", ''", 60) + " FROM t",
		"sums of a date":            "SELECT " + strings.Repeat("1 + (", 900) + "current_date" + strings.Repeat(")", 900),
		"paddings":                  "SELECT " + strings.Repeat("lpad(", 900) + "name" + strings.Repeat(", 5)", 900) + " FROM t",
		"a padding of much":         "SELECT " + strings.Repeat("lpad(", 400) + "name" + strings.Repeat(" || name", 400) + strings.Repeat(", 5)", 400) + " FROM t",
		"many arms":                 "SELECT 1" + strings.Repeat(", 1", 99) + strings.Repeat(" UNION ALL SELECT 1"+strings.Repeat(", 1", 99), 500),
		"much around subqueries":    "SELECT ARRAY[-n" + strings.Repeat(", -n", 20_000) + "] FROM t" + numbered(140, ", (SELECT 1) s%d"),
		"much around CTEs":          "WITH s AS (SELECT 1)" + numbered(140, ", s%d AS (SELECT 1)") + " SELECT ARRAY[-n" + strings.Repeat(", -n", 20_000) + "] FROM t" + numbered(140, ", s%d"),
		"a condition around them":   "SELECT 1 FROM t JOIN u ON t.id = ANY (ARRAY[-n" + strings.Repeat(", -n", 20_000) + "])" + numbered(140, ", (SELECT 1) s%d"),
		"queries for each arm":      "SELECT * FROM (SELECT * FROM t" + strings.Repeat(" UNION ALL SELECT * FROM t", 60) + ") s WHERE true" + strings.Repeat(" AND id = (SELECT max(o.n) FROM t o WHERE o.id = s.id)", 60),
		"much behind LIMITs":        layered(95, "SELECT -n AS c"+numbered(800, ", -n AS c%d")+" FROM t", "SELECT * FROM (%s) s LIMIT 1"),
		"much behind subqueries":    layered(45, "SELECT -n"+strings.Repeat(", -n", 2_000)+" FROM t", "SELECT 1 FROM t WHERE EXISTS (SELECT count(*) FROM (%s) s)"),
		"EXISTS in EXISTS":          layered(18, "SELECT 1", "SELECT 1 FROM t WHERE id = 1 OR EXISTS (%s)"),
		"JSON_ARRAY of queries":     layered(18, "SELECT 1", "SELECT JSON_ARRAY(%s)"),
		"natural joins":             "SELECT 1 FROM t" + strings.Repeat(" NATURAL JOIN t", 100),
		"a schema's views":          "SELECT 1" + strings.Repeat(", (SELECT 1 FROM information_schema.columns)", 300),
		"rows of stars over tables": "SELECT ARRAY[x" + strings.Repeat(", x", 400) + "] FROM (SELECT ARRAY[r" + strings.Repeat(", r", 200) + "] AS x FROM (SELECT ROW(s.*) AS r FROM (SELECT * FROM t) s) s) s",
		"USING of a wide value":     "SELECT 1 FROM (SELECT ARRAY[n" + strings.Repeat(", n", 2000) + "] AS x FROM t) s" + strings.Repeat(" JOIN (SELECT ARRAY[id] AS x FROM t) s USING (x)", 140),
		"FORMAT JSON":               "SELECT " + layered(18, "'1'", "JSON_ARRAY(%s FORMAT JSON RETURNING text)"),
		"conditions on a UNION":     "SELECT 1 FROM (SELECT id FROM t" + strings.Repeat(" UNION ALL SELECT id FROM t", 600) + ") s, o WHERE s.id = ANY(ARRAY[n" + strings.Repeat(", n", 600) + "])",
		"a function's constant":     "SELECT ARRAY[a" + strings.Repeat(", a", 100) + "] FROM repeat('x', 2000000) a",
		"CASE of a constant":        "SELECT CASE repeat('x', 2000000)" + strings.Repeat(" WHEN name THEN 1", 100) + " END FROM t",
		"copies of joins":           "WITH a AS NOT MATERIALIZED (SELECT 1 FROM t" + strings.Repeat(" JOIN t ON true", 140) + ") SELECT 1" + strings.Repeat(", (SELECT 1 FROM a)", 20),
		"rows of a wide function":   "SELECT ROW(x.*) = ROW(x.*)" + strings.Repeat(", ROW(x.*) = ROW(x.*)", 100) + " FROM json_to_record('{}') AS x(" + wide + ")",
		"rows of a wide subquery":   "SELECT ROW(y.*) IN (ROW(y.*)" + strings.Repeat(", ROW(y.*)", 200) + ") FROM (SELECT * FROM json_to_record('{}') AS x(" + wide + ") OFFSET 0) y",
		"stars of a wide join":      "SELECT j.*" + strings.Repeat(", j.*", 100) + " FROM (json_to_record('{}') AS x(" + wide + ") CROSS JOIN json_to_record('{}') AS z(" + wide + ")) AS j",
		"rows of XMLTABLE":          "SELECT ROW(x.*)" + strings.Repeat(", ROW(x.*)", 200) + " FROM XMLTABLE('/a' PASSING '<a/>' COLUMNS " + wide + ") x",
		"views of the catalogue":    "SELECT ARRAY[(SELECT 1 FROM pg_seclabels)" + strings.Repeat(", (SELECT 1 FROM pg_catalog.pg_seclabels)", 100) + "]",
		"types of a schema":         "SELECT 1 FROM information_schema.element_types" + strings.Repeat(" UNION ALL SELECT 1 FROM information_schema.element_types", 20),
		"joins of wide rows":        "WITH w AS (SELECT *, *, * FROM pg_class) SELECT 1 FROM w" + strings.Repeat(" JOIN w ON true", 140),
		"subqueries as value":       layered(18, "SELECT (SELECT max(id) FROM t) AS x", "SELECT x + x AS x FROM (%s) s"),
		"values":                    layered(18, copyBase, "SELECT (SELECT x + x) AS x FROM (%s) s"),
		"a constant":                layered(12, "SELECT '"+strings.Repeat("x", 20_000)+"' AS x", "SELECT x || x AS x FROM (%s) s"),
		"a view":                    layered(13, "SELECT data_type AS x FROM information_schema.columns", "SELECT x || x AS x FROM (%s) s"),
		"before IN (SELECT":         "SELECT " + layered(18, "true", "(%s IN (SELECT true))"),
		"wide lists":                "SELECT ARRAY[x" + strings.Repeat(", x", 600) + "] FROM (SELECT ARRAY[id" + strings.Repeat(", id", 600) + "] AS x FROM t) s",
		"a CTE that nobody reads":   "WITH c AS (SELECT " + layered(18, "1", "(%s BETWEEN 0 AND 1)::int") + ") SELECT 1",
		"NOTs in NOTs":              "SELECT " + strings.Repeat("NOT (id = 0 AND ", 200) + "(id > 0" + strings.Repeat(" OR id > 1", 2_000) + ")" + strings.Repeat(")", 200) + " FROM t",
		"BETWEEN":                   "SELECT " + layered(18, "1", "(%s BETWEEN 0 AND 1)::int"),
		"BETWEEN SYMMETRIC":         "SELECT " + layered(9, "1", "(%s NOT BETWEEN SYMMETRIC 0 AND 1)::int"),
		"its bounds":                "SELECT " + layered(18, "1", "(id BETWEEN SYMMETRIC %s AND 1)::int") + " FROM t",
		"IN":                        "SELECT " + layered(18, "id", "(%s IN (id, n))::int") + " FROM t",
		"IN of rows":                "SELECT " + layered(18, "1", "((%s, 1) IN ((1, 1), (2, 2)))::int"),
		"IN of many":                "SELECT 1 FROM t WHERE " + layered(3, "id", "(%s IN (id"+strings.Repeat(", id", 90)+"))::int") + " = 1",
		"a write":                   "INSERT INTO t SELECT x FROM (" + layered(18, copyBase, "SELECT x + x AS x FROM (%s) s") + ") s",
		"in an UPDATE":              "UPDATE t SET id = x FROM (" + layered(18, copyBase, "SELECT x + x AS x FROM (%s) s") + ") s WHERE t.id = 1",
		"in EXPLAIN":                "EXPLAIN " + layered(18, copyBase, "SELECT x + x AS x FROM (%s) s"),
		"in EXISTS":                 "SELECT 1 WHERE EXISTS (SELECT 1 FROM (" + layered(18, copyBase, "SELECT x + x AS x FROM (%s) s") + ") s WHERE x = 1)",
	} {
		_, f := classifyText(tb, sql)
		require.NotNil(t, f, name)
		require.Equal(t, fault.ParserUnsupportedSyntax, f.Code, "%s: %v", name, f)
		require.Equal(t, limitCopiedNodes, f.Details["limit"], "%s: %v", name, f)
	}
	named := "w0 AS (ORDER BY id)"
	for k := range maxWindows {
		named += fmt.Sprintf(", w%d AS (ORDER BY id + %d)", k+1, k)
	}
	windows := func(from, to int) string {
		sql := "SELECT 1"
		for k := from; k < to; k++ {
			sql += fmt.Sprintf(", count(*) OVER (ORDER BY id + %d)", k)
		}
		return sql + " FROM t"
	}
	relations := func(n int, each string) string { return "pg_class r" + strings.Repeat(each, n-1) }
	for name, c := range map[string]struct{ sql, limit string }{
		"bare names":          {"WITH c AS (SELECT *, *, *, * FROM t) SELECT ARRAY[zz" + strings.Repeat(", zz", 2000) + "] FROM c" + strings.Repeat(", c", 200) + ", (SELECT 1 AS zz) z", limitLookups},
		"stars of a star":     {"SELECT *" + strings.Repeat(", *", 200) + " FROM (SELECT *" + strings.Repeat(", *", 15) + " FROM t) s", limitColumns},
		"pairs of groups":     {"SELECT 1 FROM t GROUP BY GROUPING SETS ((1, 2)" + strings.Repeat(", (1, 2)", 1100) + ")", limitGroupingSets},
		"stars":               {"SELECT *" + strings.Repeat(", *", 16) + " FROM " + relations(100, ", pg_class"), limitColumns},
		"stars of subselects": {"SELECT *" + strings.Repeat(", *", 50) + " FROM " + relations(50, ", (SELECT 1) s"), limitColumns},
		"joins":               {"SELECT 1 FROM " + relations(151, " JOIN pg_class ON true"), limitJoined},
		"natural joins":       {"SELECT 1 FROM " + relations(151, " NATURAL JOIN pg_class"), limitJoined},
		"joins in subselects": {"SELECT 1 FROM " + relations(2, ", (SELECT 1 FROM "+relations(75, ", t")+") a, (SELECT 1 FROM "+relations(75, ", t")+") b"), limitJoined},
		"joins of a CTE":      {"WITH c AS (SELECT 1 FROM " + relations(100, ", t") + ") SELECT 1 FROM c, " + relations(51, ", t"), limitJoined},
		"EXISTS":              {"SELECT 1 WHERE true" + strings.Repeat(" AND EXISTS (SELECT FROM t)", 151), limitJoined},
		"IN":                  {"DELETE FROM t WHERE true" + strings.Repeat(" AND id IN (SELECT id FROM t)", 151), limitJoined},
		"windows":             {windows(0, 401), limitWindows},
		"ROLLUP of many":      {"SELECT 1 FROM t GROUP BY ROLLUP (1" + strings.Repeat(", 1", 100) + ")", limitGroupingSets},
		"grouping sets":       {"SELECT 1 FROM t GROUP BY GROUPING SETS (ROLLUP (1)" + strings.Repeat(", CUBE (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)", 4) + ")", limitGroupingSets},
		"a schema's views":    {"SELECT 1 FROM information_schema.columns" + strings.Repeat(", information_schema.columns", 30), limitJoined},
		"two large joins":     {"SELECT (SELECT 1 FROM " + relations(130, ", t") + "), (SELECT 1 FROM " + relations(130, ", t") + ")", limitCopiedNodes},
		"many joins":          {"SELECT 1" + strings.Repeat(", (SELECT 1 FROM "+relations(50, " LEFT JOIN t ON true")+" LIMIT 1)", 40), limitCopiedNodes},
		"joins of eight":      {"SELECT 1" + strings.Repeat(", (SELECT 1 FROM "+relations(8, ", t")+" LIMIT 1)", 80), limitCopiedNodes},
		"joins of eleven":     {"SELECT 1" + strings.Repeat(", (SELECT 1 FROM "+relations(11, ", t")+" LIMIT 1)", 3), limitCopiedNodes},
		"a list of twelve":    {"SELECT 1" + strings.Repeat(", (SELECT 1 FROM "+relations(10, ", t")+", (t a JOIN t b ON true) LIMIT 1)", 3), limitCopiedNodes},
		"lists of eleven":     {"SELECT 1 FROM " + strings.TrimSuffix(strings.Repeat("(SELECT 1 FROM "+relations(11, ", t")+") s, ", 4), ", "), limitCopiedNodes},
		"arrays of eleven":    {"SELECT ARRAY(SELECT 1 FROM " + relations(11, ", t") + ")" + strings.Repeat(", ARRAY(SELECT 1 FROM "+relations(11, ", t")+")", 4), limitCopiedNodes},
		"nothing joined":      {"SELECT " + strings.Repeat("(", 12) + "EXISTS (SELECT FROM (SELECT) a" + strings.Repeat(", (SELECT) a", 20) + ")" + strings.Repeat(" BETWEEN SYMMETRIC false AND true)", 12), limitCopiedNodes},
		"a CTE read often":    {"WITH c AS NOT MATERIALIZED (SELECT 1 FROM " + relations(50, ", t") + " LIMIT 1) SELECT 1 FROM c" + strings.Repeat(", c", 40), limitCopiedNodes},
		"large joins beside":  {"SELECT 1 FROM (SELECT 1 FROM " + relations(130, ", t") + " OFFSET 0) a, (SELECT 1 FROM " + relations(130, ", t") + " OFFSET 0) b", limitCopiedNodes},
		"distinct counts":     {"SELECT 1" + strings.Repeat(", count(DISTINCT id)", 401) + " FROM t", limitSorted},
		"windows of many":     {windows(0, 300) + " UNION ALL " + windows(300, 600), limitWindows},
		"named windows":       {"SELECT count(*) OVER w9 FROM t WINDOW " + named, limitWindows},
	} {
		_, f := classifyText(tb, c.sql)
		require.NotNil(t, f, name)
		require.Equal(t, c.limit, f.Details["limit"], "%s: %v", name, f)
	}
	for name, sql := range map[string]string{
		"reports of eleven": "SELECT 1 FROM " + relations(11, " JOIN t ON true") + strings.Repeat(" UNION ALL SELECT 1 FROM "+relations(11, " JOIN t ON true"), 20),
		"a list of eleven":  "SELECT 1 FROM " + relations(11, ", t"),
		"arms of six":       "SELECT 1 FROM " + relations(6, ", t") + strings.Repeat(" UNION ALL SELECT 1 FROM "+relations(6, ", t"), 50),
		"a hundred":         "SELECT 1 FROM " + relations(100, " LEFT JOIN t ON true"),
	} {
		_, f := classifyText(tb, sql)
		require.Nil(t, f, "%s: %v", name, f)
	}
	for name, sql := range boundedCopies() {
		_, f := classifyText(tb, sql)
		require.Nil(t, f, "%s: %v", name, f)
	}
}

// A copyWriter writes random queries of numbers whose expressions copy each other.
type copyWriter struct{ *rand.Rand }

func (r *copyWriter) pick(list ...string) string { return list[r.IntN(len(list))] }

func (r *copyWriter) value(depth int) string {
	x := r.pick("x", "y", "s.x", "s.y", "x", "y")
	if depth > 2 {
		return x
	}
	switch r.IntN(10) {
	case 0:
		return "(" + r.value(depth+1) + " BETWEEN " + r.pick("", "SYMMETRIC ") + r.value(depth+1) + " AND " + x + ")::int"
	case 1:
		return "(" + r.value(depth+1) + " IN (" + r.value(depth+1) + ", 1, " + x + "))::int"
	case 2:
		return "(SELECT " + r.value(depth+1) + ")"
	case 3:
		return "(SELECT sum(k) FROM (SELECT " + r.value(depth+1) + " AS k) v)::int"
	case 4:
		return "CASE WHEN " + x + " > 0 THEN " + r.value(depth+1) + " ELSE " + r.value(depth+1) + " END"
	case 5:
		return "(row_to_json(s)->>'x')::int"
	}
	return r.value(depth+1) + " - " + r.value(depth+1)
}

func (r *copyWriter) layer(inside string) string {
	list := r.value(0) + " AS x, " + r.value(0) + " AS y"
	switch r.IntN(14) {
	case 11:
		return "SELECT a - a AS x, c AS y FROM ((" + inside + ") s JOIN (SELECT 1 AS y) b USING (y)) AS j(a, c)"
	case 12:
		return "SELECT a AS x, c - a AS y FROM (SELECT * FROM (" + inside + ") s NATURAL LEFT JOIN (SELECT 1 AS y) b) AS j(a, c) WHERE " + r.pick("a", "c") + " > 0"
	case 0:
		return "SELECT " + list + " FROM (SELECT * FROM (" + inside + ") s) s"
	case 1:
		return "SELECT " + r.value(0) + ", " + r.value(0) + " FROM (" + inside + ") s(y, x)"
	case 2:
		return "SELECT DISTINCT " + list + " FROM (" + inside + ") s WHERE " + r.value(1) + " > 0"
	case 3:
		return "WITH c(x, y) AS " + r.pick("", "MATERIALIZED ", "NOT MATERIALIZED ") + "(" + inside + ") SELECT " + list + " FROM c s" + r.pick("", ", c d(p, q)")
	case 4:
		return "(" + inside + ") UNION ALL SELECT 1, 2"
	case 5:
		return "SELECT x, y FROM (" + inside + ") s0(p, q), LATERAL (SELECT p - p AS x, q - p) s(x, y)"
	case 6:
		return "SELECT " + list + " FROM (" + inside + ") s0(p, q), LATERAL (VALUES (p + q, q + p)) s(x, y)"
	case 7:
		return "SELECT x, y FROM ((" + inside + ") s FULL JOIN (SELECT 1 AS x, 2 AS k) b USING (x)) WHERE " + r.value(1) + " > 0"
	case 8:
		return "SELECT (r).f1 AS x, (r).f2 AS y FROM (SELECT ROW(" + r.value(1) + ", " + r.value(1) + ") AS r FROM (" + inside + ") s) s"
	case 9:
		return "SELECT " + list + " FROM (" + inside + ") s " + r.pick("ORDER BY x", "GROUP BY x, y")
	case 10:
		return "SELECT j.x, j.y FROM ((" + inside + ") s CROSS JOIN (VALUES (1)) v(k)) j WHERE j.x + j.x > 0"
	}
	return "SELECT " + list + " FROM (" + inside + ") s"
}

// A server compares each arm of an OR with all else that is asked for, and looks at no
// interrupt meanwhile: 6,000 ORs joined by AND keep it planning for half a minute and take
// gigabytes.
func TestORsThatStandBesideEachOtherAreRefused(t *testing.T) {
	tb := newTestTables(t, Config{})
	join := func(between, each string, n int) string {
		var list []string
		for k := range n {
			list = append(list, strings.ReplaceAll(each, "#", strconv.Itoa(k)))
		}
		return strings.Join(list, between)
	}
	list := func(each string, n int) string { return join(", ", each, n) }
	for name, sql := range map[string]string{
		"some ORs in ANDs":           "SELECT 1 FROM t WHERE true" + strings.Repeat(" AND (id = 1 OR id = 2)", 120),
		"long ORs in ANDs":           "SELECT 1 FROM t WHERE true" + strings.Repeat(" AND (id = 1"+strings.Repeat(" OR id = 2", 30)+")", 40),
		"three long ORs":             "SELECT 1 FROM t WHERE true" + strings.Repeat(" AND (id = 1"+strings.Repeat(" OR id = 2", 1_600)+")", 3),
		"one column by many names":   "SELECT 1 FROM (SELECT " + list("id AS c#", 400) + " FROM t) s WHERE " + join(" AND ", "(c# = 1 OR c# = 2)", 400),
		"among ORs of other columns": "SELECT 1 FROM t WHERE true" + strings.Repeat(" AND (id = 1"+strings.Repeat(" OR id = 2", 1_600)+")", 3) + " AND " + join(" AND ", "(c# = 1 OR c# = 2)", 1_000),
		"beside those of a subquery": "SELECT 1 FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.id = t.id" + strings.Repeat(" AND (id = 1 OR id = 2)", 300) + ") AND " + join(" AND ", "(c# = 1 OR c# = 2)", 1_000),
		"beside those of a column":   "SELECT (SELECT 1 FROM t WHERE " + join(" AND ", "(c# = 1 OR c# = 2)", 1_000) + ") FROM t WHERE true" + strings.Repeat(" AND (id = 1 OR id = 2)", 300),
		"ORs in ANDs":                "SELECT 1 FROM t WHERE true" + strings.Repeat(" AND (id = 1 OR id = 2)", 1_000),
		"negated ANDs":               "SELECT 1 FROM t WHERE NOT (false" + strings.Repeat(" OR (id <> 1 AND id <> 2)", 1_000) + ")",
		"ranges around":              "DELETE FROM t WHERE true" + strings.Repeat(" AND id NOT BETWEEN 1 AND 2", 1_000),
		"more conditions":            "SELECT 1 FROM t WHERE true" + strings.Repeat(" AND id = n", 5_000),
		"conditions of a join":       "SELECT 1 FROM t JOIN t u ON true" + strings.Repeat(" AND t.id = u.n", 2_500) + " WHERE true" + strings.Repeat(" AND t.id = u.n", 2_500),
		"symmetric ranges":           "UPDATE t SET n = 1 WHERE true" + strings.Repeat(" AND id BETWEEN SYMMETRIC 1 AND 2", 1_000),
		"lists of columns":           "SELECT 1 FROM t WHERE true" + strings.Repeat(" AND id IN (n, n + 1)", 1_000),
		"ORs in an OR":               "SELECT 1 FROM t WHERE id = 1 OR (true" + strings.Repeat(" AND (id = 1 OR id = 2)", 1_000) + ")",
		"ORs of a join":              "SELECT 1 FROM t JOIN t u ON true" + strings.Repeat(" AND (u.id = 1 OR u.id = t.id)", 1_000),
		"ORs of subqueries":          layered(10, "SELECT * FROM t", "SELECT * FROM (%s) s WHERE true"+strings.Repeat(" AND (id = 1 OR id = 2)", 100)),
		"ORs of a CTE":               "WITH c AS (SELECT * FROM t WHERE true" + strings.Repeat(" AND (id = 1 OR id = 2)", 300) + ") SELECT 1 FROM c WHERE true" + strings.Repeat(" AND (id = 1 OR id = 2)", 300),
		"ORs of an EXISTS":           "SELECT 1 FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.id = t.id" + strings.Repeat(" AND (id = 1 OR id = 2)", 600) + ")",
		"ORs on a UNION":             "SELECT 1 FROM (SELECT * FROM t" + strings.Repeat(" UNION ALL SELECT * FROM t", 200) + ") s WHERE true" + strings.Repeat(" AND (id = 1 OR id = 2)", 100),
		"ORs of a MERGE":             "MERGE INTO t USING t u ON t.id = u.id" + strings.Repeat(" AND (t.id = 1 OR u.id = 2)", 1_000) + " WHEN MATCHED THEN DELETE",
	} {
		_, f := classifyText(tb, sql)
		require.NotNil(t, f, name)
		require.Contains(t, []any{limitAlternatives, limitAlternativePairs, limitConditions}, f.Details["limit"], "%s: %v", name, f)
	}
}

// A server looks for each key among all before it, and at no interrupt: 12,000 take half a
// minute.
func TestQueriesOfManyKeysAreRefused(t *testing.T) {
	tb := newTestTables(t, Config{})
	keys := func(from, to int) string {
		var list []string
		for k := from; k < to; k++ {
			list = append(list, fmt.Sprintf("id + %d", k))
		}
		return strings.Join(list, ", ")
	}
	merged := func(joins int) string { // whose id is that of the first that has one
		from := "t a0"
		for k := range joins {
			from += fmt.Sprintf(" FULL JOIN t a%d USING (id)", k+1)
		}
		return from
	}
	for _, sql := range []string{
		"SELECT 1 FROM t GROUP BY " + keys(0, 3001), "SELECT 1 FROM t ORDER BY " + keys(0, 3001), "SELECT DISTINCT ON (" + keys(0, 3001) + ") 1 FROM t",
		"SELECT count(*) OVER (PARTITION BY " + keys(0, 3001) + ") FROM t", "SELECT count(*) OVER (PARTITION BY " + keys(0, 1501) + "), count(*) OVER (ORDER BY " + keys(1501, 3001) + ") FROM t",
		"SELECT count(*) OVER w FROM t WINDOW w AS (ORDER BY " + keys(0, 3001) + ")", "SELECT 1 FROM t GROUP BY GROUPING SETS ((" + keys(0, 1501) + "), (" + keys(1501, 3001) + "))",
		"SELECT 1 FROM t GROUP BY (" + keys(0, 1501) + ") ORDER BY " + keys(1501, 3001), "(SELECT 1 FROM t) UNION ALL SELECT 1 FROM t ORDER BY " + keys(0, 3001),
		"WITH c AS (SELECT 1 FROM t GROUP BY " + keys(0, 3001) + ") SELECT 1", "UPDATE t SET n = (SELECT 1 FROM t GROUP BY " + keys(0, 3001) + ")",
	} {
		_, f := classifyText(tb, sql)
		require.NotNil(t, f, "%.80s", sql)
		require.Equal(t, limitKeys, f.Details["limit"], "%.80s: %v", sql, f)
	}
	for _, each := range []string{", sum(id)", ", sum(id) OVER ()", ", row_number() OVER ()"} {
		_, f := classifyText(tb, "SELECT ARRAY[1"+strings.Repeat(each, 3_001)+"] FROM t")
		require.NotNil(t, f, each)
		require.Equal(t, limitAggregates, f.Details["limit"], "%s: %v", each, f)
	}
	for sql, limit := range map[string]string{
		"SELECT 1 FROM t GROUP BY CUBE (" + strings.Repeat("("+keys(0, 20)+"), ", 11) + "(" + keys(0, 20) + "))": limitGroupingKeys,
		"SELECT string_agg(name, '' ORDER BY " + keys(0, 3_001) + ") FROM t":                                     limitKeys,
		"SELECT 1 FROM " + merged(110) + " GROUP BY " + keys(0, 260):                                             limitKeyNodes,
		"SELECT 1 FROM " + merged(100) + " GROUP BY CUBE (" + keys(0, 12) + ")":                                  limitKeyNodes,
		"SELECT DISTINCT " + keys(0, 260) + " FROM " + merged(110):                                               limitKeyNodes,
		"SELECT count(*) OVER (ORDER BY " + keys(0, 960) + ") FROM " + merged(60):                                limitKeyNodes,
		"SELECT count(*) OVER w FROM " + merged(30) + " WINDOW w AS (PARTITION BY " + keys(0, 1600) + ")":        limitKeyNodes,
		"WITH w AS MATERIALIZED (SELECT 1" + strings.Repeat(", 1", 1599) + ") SELECT 1 FROM w a, w b, w c, w d WHERE ROW(a.*) = ROW(b.*) AND ROW(c.*) = ROW(d.*) AND ROW(a.*) = ROW(d.*) AND ROW(b.*) = ROW(c.*)": limitConditions,
		"EXPLAIN WITH w AS MATERIALIZED (SELECT 1" + strings.Repeat(", 1", 1599) + ") SELECT * FROM w UNION SELECT * FROM w UNION SELECT * FROM w":                                                                limitExplained,
		"EXPLAIN WITH w AS MATERIALIZED (SELECT 1" + strings.Repeat(", 1", 999) + ") SELECT 1" + strings.Repeat(", (SELECT 1 FROM w)", 20):                                                                        limitExplained,
		"WITH w AS MATERIALIZED (SELECT 1" + strings.Repeat(", 1", 1599) + ") SELECT 1 FROM w a WHERE true" + strings.Repeat(" AND ROW(a.*) = (SELECT * FROM w)", 4):                                              limitConditions,
		"WITH w AS MATERIALIZED (SELECT 1" + strings.Repeat(", 1", 1599) + ") SELECT 1 FROM w a, w b WHERE true" + strings.Repeat(" AND ROW(a.*) IN (ROW(b.*))", 4):                                               limitConditions,
		"SELECT 1 FROM t WHERE id + 1 = id - 1" + strings.Repeat(" AND id + 1 = id - 1", 4_000):                                                                                                                   limitEqualNodes,
		"SELECT 1 FROM t JOIN u ON t.a" + strings.Repeat(" - a", 9) + " = u.a" + strings.Repeat(" AND t.a"+strings.Repeat(" - a", 9)+" = u.a", 2_000):                                                             limitEqualNodes,
		"SELECT 1 FROM t WHERE NOT (id + 1 <> id - 1" + strings.Repeat(" OR id + 1 <> id - 1", 4_000) + ")":                                                                                                       limitEqualNodes,
		"SELECT 1 FROM (SELECT n - n - n - n - n - n AS x FROM t) s WHERE x = 1" + strings.Repeat(" AND x = 1", 3_000):                                                                                            limitEqualNodes,
		"SELECT 1 FROM t WHERE n = 1 OR (true" + strings.Repeat(" AND id = 1", 5_001) + ")":                                                                                                                       limitConditions,
	} {
		_, f := classifyText(tb, sql)
		require.NotNil(t, f, "%.80s", sql)
		require.Equal(t, limit, f.Details["limit"], "%.80s: %v", sql, f)
	}
	_, f := classifyText(tb, "SELECT 1 FROM t GROUP BY CUBE (id, n, name, 4, 5, 6, 7, 8, 9, 10, 11)")
	require.Nil(t, f)
	_, f = classifyText(tb, "SELECT 1 FROM t GROUP BY "+keys(0, 1500)+" ORDER BY "+keys(0, 1500))
	require.Nil(t, f)
	_, f = classifyText(tb, "SELECT count(*) FROM t JOIN u USING (id) GROUP BY CUBE (date_trunc('day', a), date_trunc('day', b), lower(c), lower(d), e, f, g, h, i, j, k, l)")
	require.Nil(t, f)
	_, f = classifyText(tb, "SELECT DISTINCT id, count(*) OVER (ORDER BY "+keys(0, 20)+") FROM "+merged(20)+" GROUP BY "+keys(0, 20))
	require.Nil(t, f)
}

// The plans of what is taken are no larger than was estimated. EXPLAIN writes an expression
// again at each node that passes it on, and so for what a LIMIT keeps apart too, which
// is looked at by itself.
func TestAServersPlansAreNoLargerThanEstimated(t *testing.T) {
	cfg, err := pgconn.ParseConfig(postgres.ForTest(t))
	require.NoError(t, err)
	cfg.RuntimeParams["statement_timeout"] = "20s"
	conn := connect(t, cfg)
	_, err = conn.Exec(t.Context(), "CREATE TABLE t (x int, y int, id int, n int, name text)").ReadAll()
	require.NoError(t, err)
	for name, sql := range boundedCopies() {
		_, err := conn.Exec(t.Context(), "EXPLAIN "+sql).ReadAll()
		require.NoError(t, err, name)
	}
	tb := newTestTables(t, Config{})
	turns, seed := 150, uint64(1)
	if n, err := strconv.Atoi(os.Getenv(allNames)); err == nil {
		turns, seed = 10_000, uint64(n)
	}
	r := &copyWriter{rand.New(rand.NewPCG(seed, 0))}
	planned, grown := 0, 0
	for range turns {
		sql := "SELECT x, y FROM t s"
		for range 1 + r.IntN(9) {
			sql = r.layer(sql)
		}
		p, f := parseTree(sql)
		require.Nil(t, f, sql)
		w := tb.walks.Get().(*walk)
		w.t, w.json, w.sql = tb, p.JSON, sql
		w.reader.read(tb.schema, &w.tree)
		w.e = w.entries
		written := len(w.e)
		copied, _ := w.copiedNodes()
		w.release()
		if copied > maxCopiedNodes {
			continue
		}
		answer, err := conn.Exec(t.Context(), "EXPLAIN (VERBOSE, COSTS off) "+sql).ReadAll()
		var refused *pgconn.PgError
		if errors.As(err, &refused) && strings.HasPrefix(refused.Code, "42") { // a mistake of the writer's
			continue
		}
		require.NoError(t, err, sql)
		size := 0
		for _, row := range answer[0].Rows {
			size += len(strings.TrimLeft(string(row[0]), " "))
		}
		if planned++; size > 3*len(sql) {
			grown++
		}
		require.LessOrEqual(t, size, 4000+250*(written+copied), "%d written, %d copied: %s", written, copied, sql)
	}
	require.Greater(t, planned, turns/3)
	require.Greater(t, grown, turns/10)
}

// numbered is a part n times, each with its number.
func numbered(n int, part string) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, part, i)
	}
	return s.String()
}

// What the server may write in SQL in the place of a call is known by its name.
func TestWhatAServerWritesInSQLIsKnown(t *testing.T) {
	cfg, err := pgconn.ParseConfig(postgres.ForTest(t))
	require.NoError(t, err)
	conn := connect(t, cfg)
	for query, known := range map[string]map[string]bool{
		"SELECT DISTINCT o.oprname FROM pg_operator AS o JOIN pg_proc AS p ON p.oid = o.oprcode JOIN pg_language AS l ON l.oid = p.prolang WHERE l.lanname = 'sql'":                          inlinedOperators,
		"SELECT DISTINCT p.proname FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang WHERE l.lanname = 'sql' AND p.prokind = 'f' AND p.pronamespace = 'pg_catalog'::regnamespace": inlinedFunctions,
	} {
		results, err := conn.Exec(t.Context(), query).ReadAll()
		require.NoError(t, err)
		require.NotEmpty(t, results[0].Rows)
		for _, row := range results[0].Rows {
			require.True(t, known[string(row[0])], "%s", row[0])
		}
	}
}
