package classify

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// formCalls writes calls of a form in the ways that PostgreSQL takes, without the
// name in front.
func formCalls(f *form) (calls []string) {
	if f.kind == hypotheticalForm {
		return []string{"(1) WITHIN GROUP (ORDER BY 1)", "(1, 2) WITHIN GROUP (ORDER BY 1, 2) FILTER (WHERE true)"}
	}
	if f.kind == orderedForm {
		return []string{"(" + ones(f.direct) + ") WITHIN GROUP (ORDER BY " + ones(f.most-f.direct) + ")"}
	}
	var args []string
	for n := f.least; n <= f.most; n++ {
		args = append(args, ones(n))
	}
	if f.variadic {
		args = append(args, ones(f.most+1), ones(f.most+7), strings.TrimPrefix(ones(f.most-1)+", VARIADIC ARRAY[1]", ", "))
	}
	if f.names != nil && !f.variadic && !slices.Contains(f.names, "") {
		var named []string
		for _, name := range f.names {
			named = append(named, fmt.Sprintf("%q => 1", name))
		}
		args = append(args, strings.Join(named[:f.least], ", "))
		for n := range f.most {
			args = append(args, strings.Join(slices.Concat(slices.Repeat([]string{"1"}, n), named[n:]), ", "))
		}
		slices.Reverse(named)
		args = append(args, strings.Join(named, ", "))
	}
	for _, a := range args {
		switch {
		case f.kind == aggregateForm && a == "":
			calls = append(calls, "(*)", "(*) FILTER (WHERE true)", "(*) OVER ()")
		case f.kind == aggregateForm:
			calls = append(calls, "("+a+")", "(DISTINCT "+a+")", "(ALL "+a+" ORDER BY 1)", "("+a+") FILTER (WHERE true)", "("+a+") FILTER (WHERE true) OVER (PARTITION BY 1)")
		case f.kind == windowForm:
			calls = append(calls, "("+a+") OVER ()", "("+a+") OVER w FROM t WINDOW w AS (ORDER BY 1)")
		default:
			calls = append(calls, "("+a+")", "("+a+") FROM t")
		}
	}
	return calls
}

func ones(n int) string { return strings.Join(slices.Repeat([]string{"1"}, n), ", ") }

// A call that no built-in takes is one of the users', and called so.
func TestACallThatNoBuiltInTakesIsTheUsers(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, call := range []string{
		"lower()", "lower('a', 'b')", "upper(evil => 'a')", "count(1, 2)", "count()", "lower(*)", "lower(DISTINCT 'a')", "lower('a' ORDER BY 1)", "lower('a') FILTER (WHERE true)",
		"lower('a') OVER ()", "lower('a') WITHIN GROUP (ORDER BY 1)", "count(1) WITHIN GROUP (ORDER BY 1)", "row_number()", "first_value(a)", "first_value(DISTINCT a) OVER ()",
		"sum(DISTINCT a) OVER ()", "sum(a ORDER BY 1) OVER ()", "row_number() FILTER (WHERE true) OVER ()", "rank(1)", "rank() WITHIN GROUP (ORDER BY 1)", "rank(1, 2) WITHIN GROUP (ORDER BY 1)",
		"percentile_disc(0.5, a)", "percentile_disc(0.5) WITHIN GROUP (ORDER BY 1, 2)", "percentile_disc(0.5) WITHIN GROUP (ORDER BY 1) OVER ()", "mode(a)", "mode(1) WITHIN GROUP (ORDER BY 1)",
		"concat()", "concat('a', VARIADIC ARRAY['b'])", "format()", "jsonb_extract_path(a)", "jsonb_extract_path(a, 'b', VARIADIC c)", "jsonb_extract_path(from_json => a, path_elems => 'b')",
		"make_interval(1, years => 2)", "make_interval(lustra => 2)", "make_interval(1, 2, 3, 4, 5, 6, 7, 8)", "make_date(year => 1, month => 2)", "make_date(1, 2, hour => 3)", `make_date(1, 2, "Day" => 3)`,
		"int4range(a => '[1,2]')", "int4(1, 2)", "text(1, 2)", `"varchar"(1, 2)`, `"numeric"(1, 2, 3)`, "pg_timezone_names(1)", "pg_cursor('x')", "repeat(VARIADIC a)", "unnest(a, b)",
		"now(1)", "pg_read_file(1, 2, 3, 4, 5)", "pg_catalog.lower('a', 'b')", `"lower"('a', 'b')`, "LOWER('a', 'b')", "json_strip_nulls(a, true)", "random(1, 2)",
		"abs()", "coalesce(lower())", "(lower('a', 'b'))", "array_agg(lower('a', 'b'))",
	} {
		sql := "SELECT " + call + " FROM t"
		c := mustClassify(t, tb, sql)
		require.Contains(t, c.RiskSignals, SignalUnknownFunction, sql)
		require.False(t, c.SafeRead, sql)
		require.Equal(t, ClassWrite, c.Class)
		require.Condition(t, func() bool {
			return slices.ContainsFunc(c.Functions, func(f string) bool { return strings.Contains(f, ".") })
		}, "%s: %v", sql, c.Functions)
	}
	for sql, name := range map[string]string{
		"SELECT 1 FROM t WHERE lower(a, b) = 'x'": "public.lower", "UPDATE t SET a = lower('paid', 'x') WHERE id = 1": "public.lower", "CALL lower('a')": "public.lower",
		"INSERT INTO t VALUES (upper(a => 'b'))": "public.upper", "SELECT * FROM lower('a', 'b')": "public.lower", "SELECT * FROM ROWS FROM (unnest(a, b) AS (x int))": "public.unnest",
		"SELECT * FROM unnest(a, VARIADIC b)": "public.unnest", "SELECT * FROM unnest(a, b) WITH ORDINALITY, unnest()": "public.unnest", "SELECT * FROM pg_catalog.unnest(a, b)": "pg_catalog.unnest",
		"SELECT x FROM t, LATERAL generate_series(1)": "public.generate_series", "SELECT a FROM t WINDOW w AS (ORDER BY abs(a, 1))": "public.abs",
		"CREATE INDEX ON t (lower(a, b))": "public.lower", "SELECT 1 FROM t TABLESAMPLE system (abs(1, 2))": "public.abs", "MERGE INTO t USING s ON lower(t.a, s.a) WHEN MATCHED THEN DELETE": "public.lower",
	} {
		c := mustClassify(t, tb, sql)
		require.Contains(t, c.Functions, name, sql)
		require.Contains(t, c.RiskSignals, SignalUnknownFunction, sql)
	}
}

// The forms that SQL has for some functions, casts written as calls and what
// PostgreSQL takes for another call are the built-ins'.
func TestACallThatABuiltInTakesIsOne(t *testing.T) {
	for _, major := range testMajors {
		tb, err := newTables(Config{ServerMajor: major})
		require.NoError(t, err)
		for _, call := range []string{
			"EXTRACT(year FROM a)", "OVERLAY(a PLACING b FROM 1)", "OVERLAY(a PLACING b FROM 1 FOR 2)", "overlay(a, b, 1)", "POSITION(a IN b)", `"position"(a, b)`,
			"SUBSTRING(a FROM 1)", "SUBSTRING(a FROM 1 FOR 2)", "SUBSTRING(a FOR 2)", "SUBSTRING(a SIMILAR b ESCAPE c)", "SUBSTRING(a FROM b FOR c)", "substring(a, 1)", "substr(a, 1, 2)",
			"TRIM(a)", "TRIM(BOTH FROM a)", "TRIM(LEADING b FROM a)", "TRIM(a, b)", "TRIM(TRAILING FROM a, b)", "btrim(a)", "COALESCE(a, b, c)", "GREATEST(a)", "LEAST(a, b)", "NULLIF(a, b)",
			"a AT TIME ZONE 'UTC'", "a LIKE b ESCAPE c", "a NOT ILIKE b ESCAPE c", "a SIMILAR TO b", "a SIMILAR TO b ESCAPE c", "a BETWEEN b AND c", "(a, b) OVERLAPS (c, d)",
			"NORMALIZE(a)", "NORMALIZE(a, NFD)", "a IS NORMALIZED", "a IS NOT NFC NORMALIZED", "COLLATION FOR (a)", "TREAT(a AS numeric)",
			"current_date", "localtime(3)", "CURRENT_USER", "SESSION_USER", "CURRENT_CATALOG",
			"int4(a)", "text(a)", `"varchar"(a)`, `"varchar"(a, 5, true)`, `"numeric"(a)`, `"numeric"(a, 5)`, `"char"(a)`, "int4range('[1,2]')", "int4range(1, 2)", "int4range(1, 2, '[]')", "date(a)", "bpchar(a)",
			"regclass('t')", "name(a)", "money(1)", `"interval"(a)`, `"timestamp"(a)`, `"time"(a, 3)`, "float8(a)", "int4range(VARIADIC a)", "lower(VARIADIC a)",
			"count(*)", "count(a)", "count(DISTINCT a)", "count(*) FILTER (WHERE a > 1)", "count(*) OVER w", "sum(a) OVER (PARTITION BY b ORDER BY c)", "array_agg(a ORDER BY b)", "string_agg(DISTINCT a, ',' ORDER BY a)",
			"row_number() OVER ()", "row_number(*) OVER ()", "lag(a, 1, b) OVER w", "rank() OVER w", "rank(1) WITHIN GROUP (ORDER BY a)", "rank(1, 2) WITHIN GROUP (ORDER BY a, b DESC)",
			"percentile_cont(0.5) WITHIN GROUP (ORDER BY a)", "mode() WITHIN GROUP (ORDER BY a) FILTER (WHERE true)", "concat(a)", "concat(a, b, c)", "concat(VARIADIC a)", "format('x')", "format('x', a, b)",
			"format('x', VARIADIC a)", "jsonb_build_object()", "jsonb_build_object('a', 1)", "jsonb_extract_path(a, 'b', 'c')", "jsonb_extract_path(from_json => a, VARIADIC path_elems => b)",
			"make_interval()", "make_interval(1, 2)", "make_interval(days => 1, secs => 2.5)", "make_interval(1, days := 2)", "make_date(day => 1, month => 2, year => 3)", "jsonb_set(a, b, c)", "jsonb_set(a, b, c, false)",
			"jsonb_path_query(a, '$', silent => true)", "json_strip_nulls(a)", "lower(t.*)", "lower(t)", "coalesce(nullif(lower(upper(a)), ''), 'x')",
		} {
			sql := "SELECT " + call + " FROM t WINDOW w AS (ORDER BY a)"
			c := mustClassify(t, tb, sql)
			require.True(t, c.SafeRead, "%d: %s: %v", major, sql, c.Signals)
		}
		for _, sql := range []string{
			"SELECT * FROM unnest($1::int[], $2::text[]) AS x(a, b)", `SELECT * FROM t, "unnest"(a, b, c) WITH ORDINALITY`, "SELECT * FROM ROWS FROM (unnest(a, b), generate_series(1, 2))",
			"SELECT * FROM ROWS FROM (unnest(a) AS (x int), unnest(b))", "SELECT * FROM generate_series(1, 2), LATERAL lower('x')", "SELECT 1 WHERE EXISTS (SELECT FROM unnest(a, b))",
		} {
			require.True(t, mustClassify(t, tb, sql).SafeRead, "%d: %s", major, sql)
		}
	}
}

// A form that some majors have is the built-in's on these, and the users' on the
// others and where the major is not known.
func TestFormsDependOnTheVersion(t *testing.T) {
	for call, known := range map[string]versions{
		"json_strip_nulls(a)": 0b1111, "json_strip_nulls(a, true)": 0b1000, "json_strip_nulls(target => a)": 0b1000, "jsonb_strip_nulls(a, strip_in_arrays => true)": 0b1000,
		"regexp_like(string => a, pattern => b)": 0b1000, "regexp_like(a, b)": 0b1111,
	} {
		for _, major := range testMajors {
			tb, err := newTables(Config{ServerMajor: major})
			require.NoError(t, err)
			c := mustClassify(t, tb, "SELECT "+call+" FROM t")
			require.Equal(t, known.in(major), c.SafeRead, "%d: %s", major, call)
			require.Equal(t, !known.in(major), slices.Contains(c.RiskSignals, SignalUnknownFunction), "%d: %s", major, call)
		}
	}
}

// An operator of one operand is another one than that of two.
func TestOperatorsAreKnownByTheirOperands(t *testing.T) {
	tb := newTestTables(t, Config{})
	for expression, name := range map[string]string{
		"@> a": "public.@>", "<-> a": "public.<->", "OPERATOR(pg_catalog.*) a": "pg_catalog.*", "|| a": "public.||", "a !! b": "public.!!", "a |/ b": "public.|/", "a @-@ b": "public.@-@",
		"a OPERATOR(pg_catalog.@) b": "pg_catalog.@", "~~ a": "public.~~", "a @ ANY (b)": "public.@", "(a, b) |/ (SELECT 1, 2)": "public.|/",
	} {
		c := mustClassify(t, tb, "SELECT "+expression+" FROM t")
		require.Contains(t, c.Functions, name, expression)
		require.Equal(t, []string{SignalUnknownFunction}, c.RiskSignals, expression)
	}
	for _, expression := range []string{"- a", "+ a", "@ a", "~ a", "|/ a", "||/ a", "!! a", "@-@ a", "# a", "?- a", "?| a", "@@ a", "a # b", "a ?| b", "a @@ b", "- (- 1)", "OPERATOR(pg_catalog.-) a", "-a - -b"} {
		require.True(t, mustClassify(t, tb, "SELECT "+expression+" FROM t").SafeRead, expression)
	}
}

// A function that a statement names without calling it is the users' where the
// built-ins of its name have other arguments, and where it is made.
func TestFunctionsThatAreMadeOrBoundAreKnownByTheirArguments(t *testing.T) {
	tb := newTestTables(t, Config{})
	for sql, name := range map[string]string{
		"CREATE FUNCTION lower(a text, b text) RETURNS text LANGUAGE sql AS 'SELECT a'": "public.lower", "CREATE OR REPLACE FUNCTION lower(text) RETURNS text LANGUAGE sql AS 'SELECT $1'": "public.lower",
		"CREATE FUNCTION pg_catalog.lower(int) RETURNS text LANGUAGE sql AS 'SELECT 1'": "pg_catalog.lower", "CREATE PROCEDURE now() LANGUAGE sql AS 'SELECT 1'": "public.now",
		"CREATE AGGREGATE count(int, int) (SFUNC = int4pl, STYPE = int)": "public.count", "CREATE TYPE lower": "public.lower",
		"DROP FUNCTION lower(text, text)": "public.lower", "ALTER FUNCTION lower() STABLE": "public.lower", "COMMENT ON FUNCTION now(int) IS 'x'": "public.now", "DROP AGGREGATE count(int, int)": "public.count",
		"GRANT EXECUTE ON FUNCTION lower(text, text) TO PUBLIC": "public.lower", "CREATE CAST (text AS int) WITH FUNCTION lower(text, text)": "public.lower", "ALTER FUNCTION int4range(text) STABLE": "public.int4range",
		"CREATE TRIGGER x BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION lower()": "public.lower", "CREATE EVENT TRIGGER x ON ddl_command_end EXECUTE FUNCTION lower()": "public.lower",
		"DROP FUNCTION lower(text)": "lower", "DROP FUNCTION lower": "lower", "ALTER FUNCTION now() STABLE": "now", "DROP AGGREGATE count(*)": "count", "DROP AGGREGATE rank(VARIADIC \"any\" ORDER BY VARIADIC \"any\")": "rank",
		"DROP AGGREGATE percentile_disc(float8 ORDER BY anyelement)": "percentile_disc", "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO r": "pg_read_file", "COMMENT ON FUNCTION concat(VARIADIC \"any\") IS 'x'": "concat",
		"CREATE TRIGGER x BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()": "suppress_redundant_updates_trigger",
		"CREATE ACCESS METHOD x TYPE INDEX HANDLER bthandler":                                                    "bthandler", "CREATE CONVERSION x FOR 'UTF8' TO 'LATIN1' FROM utf8_to_iso8859_1": "utf8_to_iso8859_1",
	} {
		c := mustClassify(t, tb, sql)
		require.Contains(t, c.Functions, name, sql)
		if word, foreign := strings.CutPrefix(name, "public."); foreign {
			require.NotContains(t, c.Functions, word, sql)
		}
	}
}

// An aggregate that stands where none may is no aggregate, but in a query within
// another one it may be that one's.
func TestAggregatesAndWindowFunctionsHaveTheirPlaces(t *testing.T) {
	tb := newTestTables(t, Config{})
	for sql, name := range map[string]string{
		"SELECT a FROM t WHERE max(a) = 'x'": "max", "SELECT * FROM max('a'::varchar)": "max", "UPDATE t SET a = max(b) WHERE id = 1": "max", "SELECT a FROM t GROUP BY max(a)": "max", "VALUES (sum(1))": "sum",
		"SELECT a FROM t WHERE first_value(a) OVER () = 1": "first_value", "SELECT a FROM t JOIN s ON count(t.a) = 1": "count", "INSERT INTO t VALUES (max('a'))": "max", "DELETE FROM t WHERE max(a) > 1 RETURNING 1": "max",
		"SELECT (SELECT 1 FROM s WHERE max('x') = b) FROM t": "max", "SELECT (SELECT 1 FROM s WHERE sum(t.a) OVER () = b) FROM t": "sum", "UPDATE t SET a = 1 WHERE id = 1 RETURNING max(a)": "max", "EXECUTE p (max(1))": "max",
		"SELECT a FROM t LIMIT max(1)": "max", "CREATE TABLE n (a int DEFAULT max(1))": "max", "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY 1) FROM t WHERE mode() WITHIN GROUP (ORDER BY a) = 1": "mode",
	} {
		c := mustClassify(t, tb, sql)
		require.Contains(t, c.Functions, "public."+name, sql)
		require.Contains(t, c.RiskSignals, SignalUnknownFunction, sql)
	}
	for _, sql := range []string{
		"SELECT (SELECT 1 FROM s WHERE max(t.a) = b) FROM t", "SELECT a FROM t GROUP BY a HAVING EXISTS (SELECT 1 FROM s WHERE s.b = max(t.a))", "SELECT a, max(b) FROM t GROUP BY a HAVING max(b) > 1 ORDER BY max(b)",
		"SELECT (SELECT x FROM unnest(array_agg(t.a)) x LIMIT 1) FROM t", "SELECT a, sum(max(b)) OVER (ORDER BY max(b)) FROM t GROUP BY a", "SELECT rank() OVER w FROM t GROUP BY a WINDOW w AS (ORDER BY count(*))",
		"SELECT a FROM t WHERE b = (SELECT max(b) FROM t)", "SELECT a FROM t, LATERAL (SELECT max(s.b) FROM s WHERE s.a = t.a) x", "WITH x AS (SELECT a, row_number() OVER (ORDER BY b) FROM t) SELECT * FROM x",
		"SELECT DISTINCT ON (count(*)) 1 FROM t", "SELECT a FROM t ORDER BY row_number() OVER ()", "SELECT array(SELECT json_agg(x) FROM s x)", "SELECT count(*) + sum(a) FILTER (WHERE b) FROM t UNION ALL SELECT max(a) FROM s",
	} {
		require.True(t, mustClassify(t, tb, sql).SafeRead, sql)
	}
}
