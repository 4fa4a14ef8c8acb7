package classify

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// sharing is a statement whose SET gives width columns one source, which holds such a
// statement again, depth levels deep.
func sharing(width, depth int, source string) string {
	columns := strings.TrimSuffix(strings.Repeat("a,", width), ",")
	for range depth {
		source = "(WITH x AS (UPDATE t SET (" + columns + ") = " + source + " RETURNING 1) SELECT 1)"
	}
	return "UPDATE t SET (" + columns + ") = " + source
}

func list(n int) string { return "(SELECT " + strings.Repeat("1,", n) + "1)" }

// What the grammar writes out for each target would end the process whose parser makes it.
func TestASourceOfManyColumnsIsBounded(t *testing.T) {
	c := byCPUAlone(newClassifier(t, Config{}))
	most := bearableCPU(t, c)
	for _, sql := range []string{
		sharing(8, 8, "(SELECT 1)"), sharing(2, 40, "(SELECT 1)"), sharing(3950, 0, list(3950)), sharing(1000, 0, list(1000)), sharing(60_000, 0, list(60_000)),
		"INSERT INTO t VALUES (1) ON CONFLICT (id) DO UPDATE SET b = 1, " + sharing(2000, 0, list(2000))[len("UPDATE t SET "):],
		"MERGE INTO t USING s ON true WHEN MATCHED THEN " + strings.Replace(sharing(2000, 0, list(2000)), "t SET", "SET", 1),
		"PREPARE p AS " + sharing(2000, 0, "ROW("+strings.Repeat("1,", 2000)+"1)"),
		"EXPLAIN " + strings.ReplaceAll(sharing(9, 8, "(SELECT 1)"), ") = (", ")/**/=--\n("),
		strings.ReplaceAll(sharing(2000, 0, "t.where || "+list(2000)), " SET ", " sEt "),
	} {
		_, err := c.Classify(t.Context(), sql)
		require.Equal(t, fault.ParserUnsupportedSyntax, fault.CodeOf(err), "%.200s", sql)
		require.Equal(t, limitSharedSource, fault.Of(err).Details["limit"], "%.200s", sql)
		requireBearable(t, c, most, sql)
	}
	before := c.Stats().Child
	for _, sql := range []string{sharing(100, 0, list(1000)), sharing(4, 4, "(SELECT 1)")} {
		_, err := c.Classify(t.Context(), sql)
		require.NoError(t, err)
		requireBearable(t, c, most, sql)
	}
	require.Greater(t, c.Stats().Child, before, "what would be long is parsed in a process of its own")
	for _, sql := range []string{
		"DELETE FROM t WHERE " + strings.TrimSuffix(strings.Repeat("(a, b) = (1, 2) OR ", 12_000), " OR "),
		"UPDATE t SET (a, b) = (1, 2) WHERE id IN (" + strings.Repeat("1,", 100_000) + "1)",
		"UPDATE t SET (a, b) = (SELECT x, y FROM s WHERE s.id = t.id), c = '" + strings.Repeat("x", 200_000) + "'",
	} {
		_, err := c.Classify(t.Context(), sql)
		require.NoError(t, err, "%.60s", sql)
	}
}

// The bound is never too low: each mark in a text is four bytes of it, as often as the
// parser's answer has it.
func TestTheBoundOfAnAnswerHoldsForWhateverIsShared(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	columns := func() string {
		all := make([]string, 1+r.IntN(6))
		for i := range all {
			all[i] = pick("a", "b.c", "d[7919]", "e[f(7919, 1):2]", `"set"`, `"x,"`)
		}
		return strings.Join(all, pick(",", " , ", "/*,*/,"))
	}
	var write, value func(depth int) string
	value = func(depth int) string {
		if depth == 0 {
			return "7919"
		}
		in := func() string { return value(depth - 1) }
		switch r.IntN(11) { // and not by pick, which would make all of them each time
		case 0:
			return "(SELECT " + in() + ", " + in() + ")"
		case 1:
			return "ROW(" + in() + ", " + in() + ")"
		case 2:
			return "(" + in() + ", " + in() + ")"
		case 3:
			return in() + " IS DISTINCT FROM " + in()
		case 4:
			return "t.where || " + in()
		case 5:
			return "x.returning = " + in()
		case 6:
			return "(a, " + in() + ") = (1, " + in() + ")"
		case 7:
			return "(WITH w AS (" + write(depth-1) + " RETURNING " + in() + ") SELECT 7919 FROM w WHERE " + in() + ")"
		case 8:
			return "CASE WHEN " + in() + " THEN (a,b) = (" + in() + ", 2) END"
		case 9:
			return "- " + in()
		}
		return "7919"
	}
	write = func(depth int) string {
		sets := make([]string, 1+r.IntN(3))
		for i := range sets {
			sets[i] = pick("("+columns()+pick(")=", ") = ", ")--\n=", ")/*=*/=")+value(depth), "a = "+value(depth))
		}
		set := pick("SET ", "set\n", "sEt--,\n") + strings.Join(sets, pick(",", ", "))
		return pick("UPDATE t "+set, "UPDATE t "+set+" WHERE "+value(depth), "UPDATE t "+set+" FROM u WHERE 7919", "INSERT INTO t VALUES (7919) ON CONFLICT (id) DO UPDATE "+set)
	}
	shared := 0
	for range 4000 {
		sql := write(3)
		s, f := guard(sql, 1<<40)
		require.Nil(t, f)
		if s.Written > 1<<14 {
			continue // which would take its time
		}
		p, f := parseTree(sql)
		if f != nil {
			continue // = does not associate
		}
		marks := strings.Count(string(p.JSON), "7919")
		require.LessOrEqual(t, 4*marks, s.Written, sql)
		if marks > strings.Count(sql, "7919") {
			shared++
		}
		p.release()
	}
	require.Greater(t, shared, 500, fmt.Sprint("texts in which something is shared"))
}
