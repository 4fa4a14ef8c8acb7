package classify

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// What a condition is reduced to is found in bearable time, however it is nested.
func TestConditionsAreReducedInBearableTime(t *testing.T) {
	tb := newTestTables(t, Config{})
	nest := func(open, inner, end string, n int) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
	}
	for name, cond := range map[string]string{
		"AND, NOT and OR":  nest("(a = 1 AND NOT (b = 2 OR NOT ", "c", "))", 120),
		"OR and NOT":       nest("(a = 1 OR NOT ", "c", ")", 250),
		"joint terms":      "c OR NOT (" + strings.Repeat("c OR ", 2000) + "d)",
		"CASE":             nest("CASE WHEN a = 1 THEN b ELSE ", "c", " END", 200) + " = b",
		"CASE conditions":  nest("CASE WHEN ", "a = 1", " THEN true ELSE c END", 200),
		"COALESCE":         nest("coalesce(a, ", "b", ")", 250) + " = a",
		"subqueries":       nest("(SELECT ", "a", ")", 95) + " = a",
		"EXISTS":           nest("EXISTS (SELECT 1 FROM t x WHERE x.a = t.a AND ", "x.b = t.b", ")", 95),
		"EXISTS of others": nest("EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND ", "b = u.b", ")", 95),
		"sums":             strings.Repeat("1 + ", 400) + "a = a",
		"comparisons":      nest("(", "a", " = b)", 250),
		"a list of itself": "1 IN (" + strings.Repeat("2, ", 20_000) + "a)",
		"rows":             "(" + strings.Repeat("a, ", 1000) + "b) = (" + strings.Repeat("t.a, ", 1000) + "c)",
		"OR of columns":    strings.Repeat("a = 1 OR t.b <> 2 AND c OR ", 1500) + "d",
	} {
		for _, form := range []string{"UPDATE t SET n = 1 WHERE ", "DELETE FROM t USING t y WHERE y.id = t.id AND ", "INSERT INTO t SELECT * FROM t WHERE "} {
			sql := form + cond
			if strings.HasPrefix(form, "INSERT") {
				sql += " ON CONFLICT (id) DO UPDATE SET n = 1"
			}
			var refused bool
			cpu := cpuOf(func() {
				defer func() { refused = recover() != nil }()
				_, f := classifyText(tb, sql)
				assert.Nil(t, f)
			})
			assert.Less(t, cpu, 400*time.Millisecond, "%s: %s", form, name)
			assert.False(t, refused, "%s: %s", form, name)
		}
	}
}
