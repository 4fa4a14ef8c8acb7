package classify

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A comparison of two paths compares all pairs of what they find and looks at no interrupt.
func TestAJSONPathThatMayMultiplyIsNoSafeRead(t *testing.T) {
	tb := newTestTables(t, Config{})
	plain := []string{
		"$", "$.a.b[*]", "strict $.a", `$.items[*] ? (@.price > 10 && @.name == "x < y")`, "$.** ? (@.id == 7)", `$.a ? (@ like_regex "^b.*")`, "$[*] ? (@.a >= $min)", "$.a == true", "1 == $.a",
		`$."a b"[0 to 3]`, "exists($.a)", "$.a.size() > 3", "$[*] ? (exists(@.b ? (@ == 1)))", "$.a == null || $.b != -1.5", `$.x starts with "a"`, `$[*] ? (@.datetime() < "2015-08-02".datetime())`, `$ ? (@.d.date() >= $from.date())`, `"1".double() < $.a`, `$ ? (@.t.datetime("HH24:MI") == "10:00".datetime("HH24:MI"))`, `$.x like_regex "^\\d+\"$"`, "strict 5 < $.a", `lax "x" == $.a`, "$.b == 1 && 5 < $.a", "!( 1 == $.a)", "$.b == 1 ||true == $.a",
	}
	slow := []string{
		"$.**.** == 1", "$.** < $.**", "$[*] < $[*]", "$ ? (@.a == @.b)", "$.a < $.b", `$[*].datetime() < $[*].datetime()`, `$[*] < "1".a`, "($.a) == ($.b)", "$.**.**", "$[*] == 1 + $[*]", "$ ? (@.a <> $.b[*])", "$.** /*x*/ < $.a", `$.a\" ? (@.b < $.c) ."d"`, `$.\u0061.**.**`,
		`$.a[*]. "k" == $.b[*]."k"`, "$.a[*]. true == $.b[*]. true", `$ ? (@.a[*] . "k" == $.b[*]."k")`, "$.a .\tnull != $.b", "$.a[*] + 5 < $.b[*]", `$.a[*]."x" .	"k" == $.b[*]`, `$.strict "k" == $.b`,
	}
	for _, form := range []string{
		"SELECT jsonb_path_query(x, '%', '{\"min\": 5, \"from\": \"2020-01-01\"}') FROM t", "SELECT jsonb_path_exists(x, '%'::jsonpath, '{}') FROM t", "SELECT jsonb_path_match(x, '%', '{\"min\": 5}'::jsonb, true) FROM t", "SELECT 1 FROM t WHERE x @@ '%'", "SELECT 1 FROM t WHERE x @? '%'", "SELECT 1 FROM t WHERE x @? '%'::jsonpath",
		"SELECT 1 FROM t WHERE x OPERATOR(pg_catalog.@@) '%'", "SELECT 1 FROM t WHERE x @@ jsonpath '%'",
	} {
		judge := func(path string) Classification {
			return mustClassify(t, tb, strings.Replace(form, "%", strings.ReplaceAll(path, "'", "''"), 1))
		}
		for _, path := range plain {
			c := judge(path)
			require.True(t, c.SafeRead, "%s: %s: %v", form, path, c.RiskSignals)
		}
		for _, path := range slow {
			c := judge(path)
			require.False(t, c.SafeRead, "%s: %s", form, path)
			require.Contains(t, c.RiskSignals, SignalDelayFunction, "%s: %s", form, path)
		}
	}
	for _, sql := range []string{"SELECT jsonb_path_query(x, p) FROM t", "SELECT jsonb_path_query(x, $1) FROM t", "SELECT 1 FROM t WHERE x @? p", "SELECT 1 FROM t WHERE x @? $1", "SELECT 1 FROM t WHERE x @@ ('$' || p)::jsonpath", "SELECT p::jsonpath FROM t",
		"SELECT a FROM jsonb_to_record('{}') AS x(a jsonpath)", "SELECT ('{$}'::jsonpath[])[1]", "SELECT 1 FROM t WHERE x @@ ANY ('{$}')",
		// A variable may be an array.
		`SELECT jsonb_path_match(x, '$.a[*] == $v', '{"v":[7,2]}') FROM t`, "SELECT jsonb_path_exists(x, '$ ? (@.a[*] == $v)', y) FROM t", "SELECT jsonb_path_exists(x, '$.a == $\"v\"'::jsonpath, $1) FROM t", "SELECT jsonb_path_exists(x, '$.a == $v', silent => true, vars => y) FROM t",
		"SELECT jsonb_path_exists(x, '$.a == $v', vars => y) FROM t", `SELECT jsonb_path_exists(x, '$v == $w', '{"v":1,"w":[1]}'::jsonb) FROM t`, "SELECT jsonb_path_exists_tz(x, '$.a == $v', jsonb_build_object('v', y)) FROM t",
		// A constant without a type is a path beside one that is.
		"SELECT jsonpath '$'", `SELECT 1 FROM t WHERE x @? ANY ('{"$.a"}'::_jsonpath)`, "SELECT x @@ (ARRAY['$'::jsonpath, '$.a[*] == $.b[*]'])[2] FROM t", "SELECT x @@ CASE WHEN true THEN '$.a == $.b' ELSE '$'::jsonpath END FROM t",
		"SELECT x @@ p FROM t, (VALUES ('$'::jsonpath), ('$.a == $.b')) v(p)", "SELECT x @@ lead('$'::jsonpath, 1, '$.a == $.b') OVER () FROM t", "SELECT x @@ coalesce(NULL::pg_catalog.jsonpath, '$.a == $.b') FROM t", "SELECT x @@ jsonpath_in('$.a == $.b') FROM t",
		"SELECT x @@ ('$.a == $.b').jsonpath_in FROM t", "SELECT x @@ $1 FROM t", "SELECT x @@ ANY ($1) FROM t", "PREPARE p AS SELECT x @@ $1 FROM t", "PREPARE p(jsonpath) AS SELECT x @@ $1 FROM t", "SELECT x @? ($1) FROM t",
		"SELECT x @@ (SELECT '$.a == $.b' UNION SELECT '$'::jsonpath LIMIT 1) FROM t", `SELECT x @@ '$.a == $.b' COLLATE "C" FROM t`, "SELECT x @@ '$.a == $.b'::unknown FROM t", "SELECT x @? '$.a ? (@ == $.b)'::unknown FROM t", `SELECT x @@ $1 COLLATE "C" FROM t`,
		"SELECT x @? $1::unknown FROM t", `SELECT x @@ ($1::unknown COLLATE "C")::pg_catalog.unknown FROM t`, `SELECT x @@ ANY ('{$}' COLLATE "C") FROM t`, `SELECT x @@ ANY ($1 COLLATE "C") FROM t`, "SELECT ROW(x) @@ ROW('$.a == $.b') FROM t", "SELECT ROW(x) OPERATOR(pg_catalog.@@) (ROW($1)) FROM t", "SELECT ROW(x) @? ROW('$.a ? (@ == $.b)') FROM t", "UPDATE t SET n = 1 WHERE id = 1 AND x @@ '$.a == $.b'::unknown"} {
		require.False(t, mustClassify(t, tb, sql).SafeRead, sql)
	}
	for _, sql := range []string{"SELECT 1 FROM t WHERE v @@ to_tsquery($1)", "SELECT 1 FROM t WHERE v @@ $1::tsquery", "SELECT 1 FROM t WHERE to_tsvector('simple', v) @@ $1", "SELECT 1 FROM t WHERE v::tsvector @@ $1", "SELECT 1 FROM t WHERE v @@ 'quick <-> fox & !b'", "SELECT 1 FROM t WHERE v @@ q", "SELECT 1 FROM t WHERE v @@ plainto_tsquery('english', 'a')"} {
		require.True(t, mustClassify(t, tb, sql).SafeRead, sql)
	}
	require.NotContains(t, mustClassify(t, tb, "CREATE TABLE t (p jsonpath)").RiskSignals, SignalDelayFunction)
}
