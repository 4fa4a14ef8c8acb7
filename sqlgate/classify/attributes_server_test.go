package classify

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// items of FROM whose columns stand in the text or in the server's own tables, with
// the name that they have.
var attributeItems = [][2]string{
	{"q", "(SELECT 1) q"}, {"q", "(SELECT 1 AS a, 2) q"}, {"q", "(SELECT 1 AS a, 2 AS b) q(k)"}, {"q", "(VALUES (1, 2)) q"}, {"q", "(VALUES (1, 2)) q(a)"}, {"q", "(SELECT * FROM (SELECT 1 AS a) p) q"},
	{"q", "(SELECT p.*, 2 AS b FROM (SELECT 1 AS a) p) q(k)"}, {"q", "(SELECT * FROM (SELECT 1 AS a, 2 AS b) p JOIN (SELECT 2 AS b, 3 AS k) r USING (b)) q(n)"}, {"q", "(SELECT 1 AS a UNION SELECT 2 AS b) q"},
	{"q", "((SELECT 1 AS a) p CROSS JOIN (SELECT 2 AS b) r) q"}, {"q", "((SELECT 1 AS a, 2 AS b) p JOIN (SELECT 2 AS b, 3 AS k) r USING (b)) q(n, fire)"}, {"q", "((SELECT 1 AS a) p NATURAL JOIN (SELECT 1 AS a, 2 AS k) r) q"},
	{"q", "(SELECT 1 AS a, 2 AS b) p JOIN (SELECT 1 AS a, 3 AS k) r USING (a) AS q"}, {"p", "(SELECT 1 AS a) p JOIN (SELECT 1 AS a, 3 AS k) q USING (a)"},
	{"q", "generate_series(1, 1) q"}, {"generate_series", "generate_series(1, 1)"}, {"q", "generate_series(1, 1) q(n)"}, {"q", "generate_series(1, 1) WITH ORDINALITY q"}, {"q", "unnest(ARRAY[1]) q"},
	{"q", "unnest(ARRAY[1], ARRAY['x']) q"}, {"q", "unnest(ARRAY[1], ARRAY['x']) q(k)"}, {"q", "ROWS FROM (generate_series(1, 1), unnest(ARRAY['x'])) q"}, {"q", "ROWS FROM (json_to_record('{}') AS (a int), jsonb_each('{\"x\": 1}')) q"},
	{"q", "jsonb_each('{\"x\": 1}') q"}, {"q", "jsonb_each('{\"x\": 1}') q(k)"}, {"q", "jsonb_array_elements('[1]') q"}, {"q", "json_to_recordset('[{}]') q(a int, b text)"}, {"q", "pg_options_to_table(ARRAY['a=b']) q"},
	{"q", "information_schema._pg_expandarray(ARRAY[1]) q"}, {"q", "current_date q"}, {"date", "CAST('2024-01-01' AS date)"}, {"coalesce", "coalesce('x'::text)"}, {"q", "abs(1) q"}, {"q", "pg_ls_logdir() q"},
	{"q", "XMLTABLE('/a' PASSING ('<a/>'::xml) COLUMNS a int, k text) q"}, {"q", "XMLTABLE('/a' PASSING ('<a/>'::xml) COLUMNS a int, k text) q(n)"}, {"q", "pg_class q"}, {"pg_am", "pg_am"}, {"q", "pg_am q(a)"},
	{"q", "information_schema.schemata q"}, {"q", "(SELECT relname, count(*), lower(relname), relname::text, 1::int, 'x'::varchar FROM pg_class GROUP BY 1, 3) q"},
	{"q", "(SELECT CASE WHEN true THEN 1 END, coalesce(1, 2), nullif(1, 2), greatest(1), least(1), ARRAY[1], ROW(1), EXISTS (SELECT 1), ARRAY(SELECT 1), (SELECT 5 AS k)) q"},
	{"q", "(SELECT CASE WHEN true THEN 1 ELSE a END, (ARRAY[1])[1], (ROW(1, 2)).f1, -1, 'x' COLLATE \"C\", current_user, session_user, localtime, xmlelement(NAME a), xmlforest(1 AS a) FROM (SELECT 1 AS a) p) q"},
	{"q", "(SELECT a::text, a::int::text, (a)::text, NOT true, a = 1, extract(day FROM now()), position('a' IN 'b'), trim('x'), substring('x' FROM 1), overlay('x' PLACING 'y' FROM 1) FROM (SELECT 1 AS a) p) q"},
	{"q", "(SELECT (jsonb_each('{\"x\": 1}')).*) q"}, {"q", "(SELECT (p).* FROM (SELECT 1 AS a) p) q"}, {"q", "(SELECT (information_schema._pg_expandarray(ARRAY[1])).n, information_schema._pg_expandarray(ARRAY[1]) AS k) q"},
}

// and of WITH.
var attributeCTEs = []string{
	"q AS (SELECT 1 AS a)", "q(k) AS (SELECT 1 AS a, 2 AS b)", "q AS (VALUES (1, 2))", "p AS (SELECT 1 AS a), q AS (SELECT * FROM p)", "q AS (WITH q AS (SELECT 1 AS k) SELECT * FROM q)",
	"RECURSIVE q(n) AS (SELECT 1 UNION ALL SELECT q.n + 1 FROM q WHERE q.n < 2)", "RECURSIVE q(n, a) AS (SELECT 1, 2 UNION ALL SELECT n + 1, 2 FROM q WHERE n < 2) SEARCH DEPTH FIRST BY n SET k CYCLE n SET b USING fire",
	"q AS (SELECT 1 AS a UNION ALL SELECT 2 AS b)", "p AS (SELECT 1 AS a), q(k) AS (SELECT p.*, 2 AS b FROM p)",
}

// hidesSome tells where a column is not known to be one: where an alias renames some of
// those whose order is not known, and in a statement with other references.
func hidesSome(sql string) bool {
	return strings.Contains(sql, "t q)") || strings.Contains(sql, "pg_am q(a)") || strings.Contains(sql, "1}') q(k)")
}

// names that a column may have, and what it is called in the test.
var attributeNames = []string{
	"a", "b", "k", "n", "q", "p", "fire", "column1", "column2", "f1", "f2", "key", "value", "x", "ordinality", "unnest", "generate_series", "current_date", "current_user", "session_user", "localtime",
	"localtimestamp", "extract", "position", "?column?", "case", "nullif", "greatest", "least", "array", "row", "exists", "xmlelement", "xmlforest", "relname", "relkind", "oid", "ctid", "tableoid", "amname", "amtype",
	"schema_name", "catalog_name", "option_name", "option_value", "size", "name", "modification", "grantee", "int4", "text", "varchar", "date", "lower", "count", "coalesce", "element", "pg_class",
}

// Every reference to every item, on a server where a function of the users' under
// each name takes what no column answers: it runs where the facts name it, and there
// alone.
func TestAServerCallsBehindADotWhatTheFactsName(t *testing.T) {
	cfg, err := pgconn.ParseConfig(postgres.ForTest(t))
	require.NoError(t, err)
	cfg.RuntimeParams["search_path"] = "public"
	ran := map[string]bool{}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if name, ok := strings.CutPrefix(n.Message, "ran "); ok {
			ran[name] = true
		}
	}
	conn := connect(t, cfg)
	run := func(sql string) ([]*pgconn.Result, error) {
		clear(ran)
		return conn.Exec(t.Context(), sql).ReadAll()
	}
	answer, err := run("SELECT current_setting('server_version_num')::int / 10000")
	require.NoError(t, err)
	major, err := strconv.Atoi(string(answer[0].Rows[0][0]))
	require.NoError(t, err)
	tb := newTestTables(t, Config{ServerMajor: major})
	var setup strings.Builder
	setup.WriteString("CREATE TABLE t (a int, k text); INSERT INTO t VALUES (1, 'x');")
	for _, name := range attributeNames {
		for _, arg := range []string{"anyelement", "record", "text", "int"} {
			fmt.Fprintf(&setup, "CREATE FUNCTION public.%q(%s) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'ran %s'; RETURN 1; END $$;", name, arg, name)
		}
	}
	_, err = run(setup.String())
	require.NoError(t, err)

	var texts []string
	for _, name := range attributeNames {
		of := strconv.Quote(name)
		for _, it := range attributeItems {
			for _, form := range []string{
				"SELECT $Q.$N FROM $I", "SELECT ($Q.*).$N FROM $I", "SELECT (SELECT $Q.$N) FROM $I", "SELECT 1 FROM $I, LATERAL (SELECT $Q.$N) z", "SELECT 1 FROM t JOIN ($I CROSS JOIN t y) ON $Q.$N IS NOT NULL", "SELECT 1 FROM $I WHERE $Q.$N::text <> ''",
				"SELECT (SELECT 1 FROM (SELECT $Q.$N) z, t $Q) FROM $I", "SELECT (SELECT $Q.a FROM t $Q), ($Q).$N FROM $I", "SELECT max($Q.$N::text) OVER () FROM $I", "SELECT ($Q.a).$N FROM $I", "SELECT ($Q.k).$N FROM $I", "SELECT (k).$N FROM $I",
			} {
				texts = append(texts, strings.NewReplacer("$Q", it[0], "$N", of, "$I", it[1]).Replace(form))
			}
		}
		for _, cte := range attributeCTEs {
			texts = append(texts, "WITH "+cte+" SELECT q."+of+" FROM q", "WITH "+cte+" SELECT z."+of+" FROM q z", "WITH "+cte+" SELECT (SELECT (z)."+of+" FROM q z LIMIT 1)", "WITH "+cte+" SELECT z."+of+" FROM (SELECT * FROM q) z")
		}
		for _, value := range []string{"'x'::text", "1", "ROW(1, 2)", "(ROW(1, ROW(2))).f2", "jsonb_each('{\"x\": 1}')", "information_schema._pg_expandarray(ARRAY[1])", "NULL::pg_class", "SELECT 'x'::text", "ARRAY[1]", "now()",
			"CASE WHEN true THEN 1 END", "jsonb_array_elements('[1]')", "abs(1)", "current_date", "SELECT ROW(1, 2)"} {
			texts = append(texts, "SELECT ("+value+")."+of)
		}
	}
	turns := 17
	if os.Getenv(allNames) != "" {
		turns = 1
	}
	calls, columns := 0, 0
	for i, sql := range texts {
		if i%turns != 0 {
			continue
		}
		c, f := classifyText(tb, sql)
		require.Nil(t, f, sql)
		_, err := run(sql)
		for name := range ran {
			calls++
			if !slices.Contains(c.Functions, "public."+name) && !slices.Contains(c.Functions, name) {
				t.Errorf("%d: %s ran %s, and the facts say %v", major, sql, name, c.Functions)
			}
		}
		if err == nil && len(ran) == 0 {
			columns++
			for _, called := range c.Functions {
				if name, users := strings.CutPrefix(called, "public."); users && slices.Contains(attributeNames, name) && !hidesSome(sql) {
					t.Errorf("%d: %s ran nothing, and the facts say %v", major, sql, c.Functions)
				}
			}
		}
	}
	t.Logf("%d calls, %d columns", calls, columns)
	require.Greater(t, calls, 500)
	require.Greater(t, columns, 50)
}
