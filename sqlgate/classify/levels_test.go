package classify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// chained is a query of n levels of CTEs, of which each reads the one before.
func chained(n int, each string) string {
	list := []string{"a0 AS (SELECT 1 x)"}
	for k := 1; k < n-1; k++ {
		list = append(list, fmt.Sprintf("a%d AS "+each, k, k-1))
	}
	return fmt.Sprintf("WITH %s SELECT * FROM a%d", strings.Join(list, ", "), n-2)
}

func nested(n int) string {
	return strings.Repeat("SELECT * FROM (", n-1) + "SELECT 1 x" + strings.Repeat(") s", n-1)
}

// PostgreSQL plans queries in each other in more than the square of their number, and
// looks at no time limit meanwhile.
func TestQueriesThatComeToLieTooDeepAreRefused(t *testing.T) {
	tb := newTestTables(t, Config{})
	const one = "(SELECT * FROM a%d)"
	copies := func(n int) string {
		list := []string{"a0 AS NOT MATERIALIZED (SELECT 1 x)"}
		for k := 1; k <= n; k++ {
			list = append(list, fmt.Sprintf("a%d AS NOT MATERIALIZED (SELECT p.x FROM a%d p, a%d q)", k, k-1, k-1))
		}
		return fmt.Sprintf("WITH %s SELECT * FROM a%d", strings.Join(list, ", "), n)
	}
	scattered := "SELECT 1 x" // the chain goes through WITH clauses at other places
	for k := range 60 {
		scattered = fmt.Sprintf("WITH b%d AS (%s) SELECT * FROM (SELECT * FROM b%d) s", k, scattered, k)
	}
	for name, c := range map[string]struct {
		sql   string
		limit string
	}{
		"a chain":               {chained(maxQueryLevels+1, one), limitQueryLevels},
		"a long chain":          {chained(4000, one), limitQueryLevels},
		"a materialized chain":  {chained(maxQueryLevels+1, "MATERIALIZED "+one), limitQueryLevels},
		"subqueries":            {nested(maxQueryLevels + 1), limitQueryLevels},
		"in EXISTS":             {"SELECT 1 WHERE EXISTS (" + nested(maxQueryLevels) + ")", limitQueryLevels},
		"in an UPDATE":          {"UPDATE t SET n = 1 FROM (" + nested(maxQueryLevels+1) + ") s WHERE id = 1", limitQueryLevels},
		"in front of an UPDATE": {strings.Replace(chained(maxQueryLevels+2, one), " SELECT * FROM a100", " UPDATE t SET n = 1 FROM a100 WHERE id = 1", 1), limitQueryLevels},
		"scattered":             {scattered, limitQueryLevels},
		"copied":                {copies(12), limitQueriesCopied},
		"copied for ever":       {copies(50), limitQueriesCopied},
	} {
		_, f := classifyText(tb, c.sql)
		require.NotNil(t, f, name)
		require.Equal(t, fault.ParserUnsupportedSyntax, f.Code, name)
		require.Equal(t, c.limit, f.Details["limit"], name)
	}
	for range 5 {
		_, f := classifyText(tb, chained(200, one))
		require.Equal(t, 200, f.Details["got"])
	}
	for name, sql := range map[string]string{
		"a chain":             chained(maxQueryLevels, one),
		"subqueries":          nested(maxQueryLevels),
		"a UNION":             "SELECT 1" + strings.Repeat(" UNION ALL SELECT 1", 500),
		"a recursive one":     "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 9) SELECT * FROM t",
		"a name of a table":   "WITH orders AS (SELECT * FROM customers), customers AS (SELECT * FROM orders) SELECT * FROM orders, customers",
		"names at two places": "WITH RECURSIVE a AS (WITH b AS NOT MATERIALIZED (SELECT id FROM orders) SELECT id FROM b), b AS (SELECT id FROM a) SELECT count(*) FROM b",
		"one name, twice":     "WITH a AS (WITH a AS (SELECT 1 x) SELECT * FROM a) SELECT * FROM a",
		"used by many":        "WITH a AS (SELECT 1 x), b AS (SELECT * FROM a p, a q), c AS (SELECT * FROM b p, b q, a r), d AS (SELECT * FROM c p, c q, b r) SELECT * FROM d p, d q, c r",
		"not materialized":    copies(6),
		"in a circle":         "WITH RECURSIVE a AS (SELECT * FROM b), b AS (SELECT * FROM a) SELECT * FROM a", // the server's affair
		"beside a circle":     "WITH RECURSIVE a AS (SELECT * FROM b), b AS (SELECT * FROM a) SELECT * FROM a, (" + nested(50) + ") p, (" + nested(60) + ") q",
		"many beside others":  "SELECT " + strings.Repeat("(SELECT 1), ", 400) + "1",
	} {
		_, f := classifyText(tb, sql)
		require.Nil(t, f, "%s: %v", name, f)
	}
}
