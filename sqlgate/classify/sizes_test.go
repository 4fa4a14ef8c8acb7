package classify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// listOf joins n texts, each made of its number by a format that uses it any number of times.
func listOf(n int, separator, format string) string {
	var all []string
	for i := range n {
		all = append(all, strings.ReplaceAll(format, "#", fmt.Sprint(i)))
	}
	return strings.Join(all, separator)
}

// chainOf is a report of CTEs, each of which reads the one before it under an alias.
func chainOf(ctes, columns int, alias func(cte int) string, join bool) string {
	var all []string
	for k := range ctes {
		before := "src"
		if k > 0 {
			before = fmt.Sprint("c", k-1)
		}
		a := alias(k)
		from := before + " " + a
		if join {
			from += fmt.Sprintf(" LEFT JOIN %s j%s ON j%s.c1 = %s.c1", before, a, a, a)
		}
		all = append(all, fmt.Sprintf("c%d AS (SELECT %s FROM %s)", k, listOf(columns, ", ", a+".c#"), from))
	}
	return "WITH " + strings.Join(all, ", ") + fmt.Sprintf(" SELECT o.* FROM c%d o", ctes-1)
}

// armsOf is a UNION ALL of subqueries.
func armsOf(arms, columns int, alias func(arm int) string) string {
	var all []string
	for k := range arms {
		a := alias(k)
		all = append(all, fmt.Sprintf("SELECT %s FROM (SELECT %s FROM t%d t) %s", listOf(columns, ", ", a+".c#"), listOf(columns, ", ", "t.c#"), k, a))
	}
	return strings.Join(all, " UNION ALL ")
}

// An alias that many parts of a statement have costs what as many aliases cost: the
// verdict is the same, and the steps are few for each entry of the tree.
func TestOneAliasInManyPartsIsJudgedAsManyAliases(t *testing.T) {
	tb := newTestTables(t, Config{})
	one := func(int) string { return "o" }
	own := func(k int) string { return fmt.Sprint("o", k) }
	for _, size := range [][2]int{{12, 120}, {25, 60}, {30, 50}, {40, 40}, {30, 100}, {90, 100}} {
		for _, join := range []bool{false, true} {
			for _, prefix := range []string{"", "INSERT INTO report "} {
				same, others := prefix+chainOf(size[0], size[1], one, join), prefix+chainOf(size[0], size[1], own, join)
				requireSameFacts(t, tb, same, others)
			}
		}
		requireSameFacts(t, tb, armsOf(size[0], size[1], one), armsOf(size[0], size[1], own))
	}
}

func requireSameFacts(t *testing.T, tb *tables, sql, other string) {
	t.Helper()
	got, want := mustClassify(t, tb, sql), mustClassify(t, tb, other)
	require.Equal(t, want.Class, got.Class)
	require.Equal(t, want.SafeRead, got.SafeRead)
	require.Equal(t, want.Functions, got.Functions)
	require.Equal(t, want.TablesRead, got.TablesRead)
	require.Equal(t, want.RiskSignals, got.RiskSignals)
}

// What programs write, in the sizes in which they do: reports, loads of many rows,
// long lists, long conditions of ORMs, wide joins. They take few steps for each entry
// of their tree, far below what ends a walk.
func TestLargeOrdinaryStatementsTakeFewSteps(t *testing.T) {
	tb := newTestTables(t, Config{})
	one := func(int) string { return "o" }
	columns := listOf(200, ", ", "c#")
	wide := "(" + listOf(200, ", ", "'x#'") + ")"
	starts := "c0 AS (SELECT " + listOf(100, ", ", "o.c#") + " FROM src o), " + strings.ReplaceAll(listOf(99, ", ", "d# AS (SELECT o.*, o.c1 + o.c2 AS n# FROM @ o WHERE o.c# > 0)"), "@", "c0")
	for name, sql := range map[string]string{
		"CTEs of one alias":         chainOf(90, 100, one, true),
		"arms of one alias":         armsOf(90, 100, one),
		"CTEs with stars":           "WITH " + starts + " SELECT " + listOf(100, ", ", "o.c#") + " FROM d98 o",
		"CTEs with stars, chained":  "WITH c0 AS (SELECT " + listOf(100, ", ", "o.c#") + " FROM src o), c1 AS (SELECT o.* FROM c0 o)" + chainedStars(90) + " SELECT o.c1, o.n3 FROM c90 o",
		"joins of CTEs":             "WITH " + listOf(100, ", ", "w# AS (SELECT 1 AS id, 2 AS v)") + " SELECT " + listOf(100, ", ", "x#.v AS v#") + " FROM w0 x" + listOf(100, "", " LEFT JOIN w# x# ON x#.id = x.id"),
		"joins of tables":           "SELECT " + listOf(100, ", ", "x#.a, x#.b, x#.c") + " FROM t x" + listOf(100, "", " JOIN t# x# ON x#.id = x.id AND x#.a IS NOT NULL"),
		"joins by USING":            "SELECT * FROM t" + listOf(100, "", " JOIN (SELECT o.id, o.a AS a# FROM t# o) x# USING (id)"),
		"lateral items":             "SELECT " + listOf(100, ", ", "x#.v") + " FROM o" + listOf(100, "", " CROSS JOIN LATERAL (SELECT o.a + 1 AS v) x#"),
		"items of JSON":             "SELECT " + listOf(100, ", ", "(x#.v->>'k')::int AS k#") + " FROM o, " + listOf(100, ", ", "jsonb_array_elements(o.d#) AS x#(v)"),
		"joins of catalogs":         "SELECT " + listOf(50, ", ", "c#.relname, a#.attname, a#.attnum") + " FROM pg_class c" + listOf(50, "", " JOIN pg_class c# ON c#.oid = c.oid JOIN pg_attribute a# ON a#.attrelid = c#.oid"),
		"rows of 200 columns":       "INSERT INTO t (" + columns + ") VALUES " + strings.Repeat(wide+", ", 999) + wide,
		"an upsert of rows":         "INSERT INTO t (" + columns + ") VALUES " + strings.Repeat(wide+", ", 499) + wide + " ON CONFLICT (c0) DO UPDATE SET " + listOf(200, ", ", "c# = excluded.c#"),
		"an update from rows":       "UPDATE t SET " + listOf(200, ", ", "c# = v.c#") + " FROM (VALUES " + strings.Repeat(wide+", ", 199) + wide + ") AS v(" + columns + ") WHERE t.id = v.c0",
		"an update by CASE":         "UPDATE t SET a = CASE " + listOf(2000, " ", "WHEN t.id = # THEN 'v#'") + " END WHERE t.id IN (" + listOf(2000, ", ", "#") + ")",
		"IN":                        "SELECT * FROM t o WHERE o.id IN (" + listOf(10_000, ", ", "#") + ")",
		"DELETE IN":                 "DELETE FROM t WHERE id IN (" + listOf(10_000, ", ", "#") + ")",
		"DELETE of pairs":           "DELETE FROM t WHERE (a, b) IN (" + listOf(2000, ", ", "(#, 'x#')") + ")",
		"ANY of an array":           "UPDATE t SET a = 1 WHERE id = ANY(ARRAY[" + listOf(10_000, ", ", "#") + "])",
		"UNION ALL":                 listOf(500, " UNION ALL ", "SELECT o.id, o.name, # AS n FROM t# o WHERE o.id = #"),
		"UNION ALL in FROM":         "SELECT u.id, u.n FROM (" + listOf(500, " UNION ALL ", "SELECT o.id, # AS n FROM t# o") + ") u WHERE u.n > 1",
		"OR of pairs":               "SELECT * FROM t o WHERE " + listOf(2000, " OR ", "(o.a = # AND o.b = 'x#')"),
		"DELETE by OR of pairs":     "DELETE FROM t WHERE " + listOf(2000, " OR ", "(a = # AND b = 'x#')"),
		"UPDATE by AND of lists":    "UPDATE t SET a = 1 WHERE " + listOf(1000, " AND ", "(b# = 1 OR b# IS NULL)"),
		"NOT of many":               "UPDATE t SET a = 1 WHERE " + listOf(1000, " AND ", "NOT (b = # AND c <> #)"),
		"columns of one CTE":        "WITH w AS (SELECT " + listOf(500, ", ", "o.c#") + " FROM t o) SELECT " + listOf(500, ", ", "coalesce(w.c#, 0) AS c#") + " FROM w",
		"upsert of a report":        chainedUpsert(50, 50),
		"aggregates of one CTE":     "WITH w AS (SELECT " + listOf(300, ", ", "o.c#") + " FROM t o) SELECT w.c0, " + listOf(299, ", ", "sum(w.c#) FILTER (WHERE w.c0 > #)") + " FROM w GROUP BY w.c0",
		"bare aggregates of a CTE":  "WITH w AS (SELECT " + listOf(300, ", ", "c#") + " FROM t) SELECT c0, " + listOf(299, ", ", "sum(c#) OVER (PARTITION BY c0 ORDER BY c1)") + " FROM w",
		"subqueries in the results": "WITH w AS (SELECT o.id, o.v FROM t o) SELECT " + listOf(200, ", ", "(SELECT w.v FROM w WHERE w.id = o.a#) AS v#") + " FROM orders o",
		"EXISTS of many":            "DELETE FROM t WHERE " + listOf(145, " AND ", "EXISTS (SELECT 1 FROM u# o WHERE o.id = t.id AND o.a = #)"),
	} {
		steps, most, f := stepsOf(tb, sql)
		assert.Nil(t, f, name)
		assert.Less(t, steps, most/2, "%s: %d bytes", name, len(sql))
		t.Logf("%-28s %8d bytes %8d steps, %5.3f", name, len(sql), steps, float64(steps)/float64(most))
	}
}

// stepsOf gives the steps that a statement takes, and how many end its walk.
func stepsOf(tb *tables, sql string) (steps, most int, f *fault.Fault) {
	s, f := guard(sql, len(sql))
	if f != nil {
		return 0, 0, f
	}
	p, f := parseTree(sql)
	if f != nil {
		return 0, 0, f
	}
	defer p.release()
	w := &walk{}
	defer func() {
		if r, ok := recover().(tooManySteps); ok {
			steps, most = r.got, r.max
		}
	}()
	_, f = w.facts(tb, p, sql, &s)
	return w.steps, stepsAtLeast + stepsForEntry*len(w.e), f
}

func chainedStars(n int) string {
	var sql string
	for k := 2; k <= n; k++ {
		sql += fmt.Sprintf(", c%d AS (SELECT o.*, o.c1 + o.c2 AS n%d FROM c%d o WHERE o.c%d > 0)", k, k, k-1, k%100)
	}
	return sql
}

func chainedUpsert(ctes, columns int) string {
	return "INSERT INTO report (id) " + chainOf(ctes, columns, func(int) string { return "o" }, true) + " ON CONFLICT (id) DO UPDATE SET c1 = excluded.c1"
}
