package classify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What part 3 of the design promises of the depth bound.
const (
	objectsPerUnit      = 8
	objectsPerStatement = 16
)

// jsonDepth counts the deepest nesting of objects in a tree.
func jsonDepth(tree []byte) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(tree); i++ {
		switch c := tree[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			depth++
			deepest = max(deepest, depth)
		case c == '}':
			depth--
		}
	}
	return deepest
}

// requireBounded holds a text's tree against its bound. It tells whether the
// text has a tree.
func requireBounded(t failer, sql string) bool {
	t.Helper()
	s, f := guard(sql, largestSQLBytes)
	if f != nil {
		return false
	}
	p, f := parseTree(sql)
	if f != nil {
		return false
	}
	defer p.release()
	require.LessOrEqual(t, jsonDepth(p.JSON), objectsPerUnit*s.Depth+objectsPerStatement, "%s", cutAt(sql, 300))
	return true
}

func TestTheDepthBoundHoldsForHostileShapes(t *testing.T) {
	for _, s := range hostileShapes {
		for _, size := range []int{60, 300, 2000, 20_000} { // in-process stack bears these
			requireBounded(t, s.text(size))
		}
	}
	for _, sql := range ordinary {
		require.True(t, requireBounded(t, sql), sql)
	}
}

// A grammar of everything that nests. %e is an expression, %q a query, %f an
// item of FROM, %s a statement.
var nesting = map[byte][]string{
	'e': {"a", "1", "$1", "a.b", "%e + %e", "%e || %e", "- %e", "%e::int", "%e IS NULL", "%e NOTNULL", "%e ISNULL", "%e COLLATE \"C\"", "%e AT TIME ZONE 'x'", "NOT %e",
		"%e BETWEEN %e AND %e", "%e BETWEEN SYMMETRIC %e AND %e", "%e LIKE %e ESCAPE %e", "%e NOT ILIKE %e", "%e SIMILAR TO %e", "%e IN (%e, %e)", "%e IN (%q)", "%e = ANY (%q)", "%e <> ALL (%e)",
		"%e OPERATOR(pg_catalog.+) %e", "(%e, %e) OVERLAPS (%e, %e)", "CASE %e WHEN %e THEN %e ELSE %e END", "CASE WHEN %e THEN %e END", "(%e)", "(%e).b", "(%e)[%e]", "(%e)[%e:%e].c",
		"f(%e, %e)", "f(DISTINCT %e ORDER BY %e)", "f(VARIADIC %e)", "f(a => %e) FILTER (WHERE %e) OVER (PARTITION BY %e ORDER BY %e ROWS BETWEEN %e PRECEDING AND CURRENT ROW)", "ARRAY[%e, %e]", "ARRAY[[%e], [%e]]", "ARRAY(%q)", "ROW(%e, %e)", "(%e, %e)", "EXISTS (%q)", "(%q)",
		"CAST(%e AS numeric(10, 2)[])", "COALESCE(%e, %e)", "GREATEST(%e, %e)", "NULLIF(%e, %e)", "EXTRACT(year FROM %e)", "OVERLAY(%e PLACING %e FROM %e)", "SUBSTRING(%e FROM %e FOR %e)", "TRIM(BOTH %e FROM %e)", "POSITION(%e IN %e)",
		"XMLELEMENT(NAME a, XMLATTRIBUTES(%e AS b), %e)", "XMLFOREST(%e AS a)", "XMLSERIALIZE(CONTENT %e AS text)", "JSON_OBJECT('a' : %e FORMAT JSON RETURNING text)", "JSON_ARRAY(%e, %e NULL ON NULL)", "JSON_ARRAYAGG(%e ORDER BY %e)", "%e IS JSON OBJECT WITH UNIQUE KEYS",
		"%e IS DISTINCT FROM %e", "%e IS DOCUMENT", "%e IS NORMALIZED", "%e IS NOT TRUE", "%e AND %e", "%e OR %e", "%e @> %e", "%e ->> 'a'", "interval '1' day", "%e AT TIME ZONE %e", "@ %e", "%e = %e", "%e < %e", "percentile(%e) WITHIN GROUP (ORDER BY %e)"},
	'f': {"a", "s.a AS b (c, d)", "%f JOIN %f ON %e", "%f LEFT JOIN %f USING (a, b)", "%f CROSS JOIN %f", "%f NATURAL JOIN %f", "(%f JOIN %f ON %e) AS x", "(%q) x", "LATERAL (%q) x", "f(%e) WITH ORDINALITY x (a, b)", "f(%e) AS (a int, b text)", "ROWS FROM (f(%e), g(%e) AS (a int)) x",
		"a TABLESAMPLE system (%e) REPEATABLE (%e)", "XMLTABLE(%e PASSING %e COLUMNS a int PATH %e DEFAULT %e) x", "%f, %f"},
	'q': {"SELECT %e", "SELECT %e, %e FROM %f WHERE %e", "VALUES (%e), (%e, %e)", "TABLE a", "%q UNION %q", "%q UNION ALL %q", "%q EXCEPT %q", "%q INTERSECT %q", "(%q)", "(%q) ORDER BY %e LIMIT %e", "WITH a AS (%q), b AS MATERIALIZED (%s) %q", "WITH RECURSIVE a AS (%q) SEARCH DEPTH FIRST BY a SET b CYCLE a SET c USING d %q",
		"SELECT DISTINCT ON (%e) %e AS b FROM %f GROUP BY GROUPING SETS (%e, CUBE (%e, %e), (ROLLUP (%e))) HAVING %e WINDOW w AS (PARTITION BY %e) ORDER BY %e USING < NULLS FIRST OFFSET %e FOR UPDATE OF a", "SELECT %e INTO x FROM %f"},
	's': {"%q", "%q", "INSERT INTO a (b, c[%e]) %q ON CONFLICT (lower(%e)) WHERE %e DO UPDATE SET b = %e, (c, d) = (%q) WHERE %e RETURNING %e", "UPDATE a SET b = %e, (c, d) = ROW(%e, %e) FROM %f WHERE %e RETURNING %e", "DELETE FROM a USING %f WHERE %e", "MERGE INTO a USING %f ON %e WHEN MATCHED AND %e THEN UPDATE SET b = %e WHEN NOT MATCHED THEN INSERT VALUES (%e)",
		"EXPLAIN (ANALYZE, COSTS off) %s", "PREPARE p (int, numeric(2)[]) AS %s", "DECLARE c CURSOR FOR %q", "COPY (%s) TO STDOUT (FORMAT csv)", "CREATE TABLE t AS %q", "CREATE VIEW v AS %q", "CREATE RULE r AS ON INSERT TO t WHERE %e DO ALSO (%s; %s)", "CREATE TABLE t (a int DEFAULT (%e) CHECK (%e) GENERATED ALWAYS AS (%e) STORED, EXCLUDE USING gist ((%e) WITH =)) PARTITION BY RANGE ((%e))",
		"CREATE FUNCTION f(a int DEFAULT %e, b text) RETURNS TABLE (a int) BEGIN ATOMIC SELECT 1, 2; %s; %s; END", "CREATE FUNCTION f() RETURNS int RETURN %e", "CREATE TRIGGER t AFTER UPDATE OF a ON t FOR EACH ROW WHEN (%e) EXECUTE FUNCTION f('a')", "CREATE INDEX ON t ((%e) text_ops (a = 1), lower(%e)) WHERE %e", "CALL f(%e)", "EXECUTE p (%e, %e)", "CREATE POLICY p ON t USING (%e) WITH CHECK (%e)",
		"ALTER TABLE t ADD CHECK (%e), ALTER a SET DEFAULT %e, ALTER b TYPE int USING %e, ATTACH PARTITION p FOR VALUES FROM (%e) TO (%e)", "CREATE SCHEMA s CREATE TABLE t (a int CHECK (%e)) CREATE VIEW v AS %q", "ALTER DOMAIN d ADD CHECK (%e)", "CREATE STATISTICS s ON (%e), a FROM t", "CREATE PUBLICATION p FOR TABLE t (a) WHERE (%e)"},
}

// grow replaces one hole after another until the text is large enough, then
// fills those that are left with the simplest of their kind. Depth first: the
// first hole again and again makes deep texts, the last one others.
func grow(t *rapid.T, text string, rounds int) string {
	for range rounds {
		holes := strings.Count(text, "%")
		if holes == 0 {
			break
		}
		at := nthHole(text, rapid.IntRange(0, min(2, holes-1)).Draw(t, "hole"))
		text = text[:at] + rapid.SampledFrom(nesting[text[at+1]]).Draw(t, "rule") + text[at+2:]
	}
	return strings.NewReplacer("%e", "a", "%f", "a", "%q", "SELECT 1", "%s", "SELECT 1").Replace(text)
}

func nthHole(text string, n int) int {
	at := strings.IndexByte(text, '%')
	for range n {
		at += 1 + strings.IndexByte(text[at+1:], '%')
	}
	return at
}

func TestTheDepthBoundHoldsForTheGrammar(t *testing.T) {
	parsed := 0
	rapid.Check(t, func(t *rapid.T) {
		if requireBounded(t, grow(t, "%s", rapid.IntRange(1, 60).Draw(t, "rounds"))) {
			parsed++
		}
	})
	require.NotZero(t, parsed, "no generated statement has a tree")
}

// Every rule alone, nested into itself: a construct that the bound forgets
// grows past any constant here.
func TestTheDepthBoundGrowsWithEachConstruct(t *testing.T) {
	for kind, rules := range nesting {
		for _, rule := range rules {
			self := fmt.Sprintf("%%%c", kind)
			for hole := range strings.Count(rule, self) {
				text := rule
				for range 40 {
					text = replaceNth(text, self, rule, hole)
				}
				text = strings.NewReplacer("%e", "a", "%f", "a", "%q", "SELECT 1", "%s", "SELECT 1").Replace(text)
				requireBounded(t, map[byte]string{'e': "SELECT ", 'f': "SELECT * FROM "}[kind]+text)
			}
		}
	}
}

func replaceNth(text, old, new string, n int) string {
	at := 0
	for range n {
		next := strings.Index(text[at:], old)
		if next < 0 {
			return text
		}
		at += next + len(old)
	}
	return text[:at] + strings.Replace(text[at:], old, new, 1)
}

func FuzzDepthBound(f *testing.F) {
	for _, sql := range ordinary {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		if s, refusal := guard(sql, inProcessBytes); refusal == nil && s.Depth <= inProcessDepth {
			requireBounded(t, sql)
		}
	})
}
