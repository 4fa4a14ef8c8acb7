package classify

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// Each function, operator and type of the server's own is given a text that is no XML, and one that is
// no path of JSON and no plain one: what a server refuses as such, it had libxml parse, or would
// evaluate, and then the statement is no safe read.
func TestNothingThatIsParsedAsXMLOrAsAPathIsASafeRead(t *testing.T) {
	conn, err := pgconn.Connect(t.Context(), postgres.ForTest(t))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	major, _, _ := strings.Cut(conn.ParameterStatus("server_version"), ".")
	number, err := strconv.Atoi(major)
	require.NoError(t, err)
	tb := newTestTables(t, Config{ServerMajor: number})
	_, err = conn.Exec(t.Context(), `CREATE TABLE documents (one text, many text); INSERT INTO documents VALUES ('<a', '{<a}'); CREATE TABLE paths (one text, many text); INSERT INTO paths VALUES ('$.a == $.b[', '{$.a == $.b[}')`).ReadAll()
	require.NoError(t, err)
	var statements []string
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(tb.builtins.functions)), slices.Sorted(maps.Keys(tb.builtins.types))) { // each like a column, which is a call or a cast
		for _, from := range []string{"documents", "paths"} {
			statements = append(statements, `SELECT (one)."`+name+`" FROM `+from, `SELECT (many)."`+name+`" FROM `+from)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tb.builtins.functions)) {
		for arguments := 1; arguments <= 4; arguments++ {
			statements = append(statements, `SELECT pg_catalog."`+name+`"(`+strings.TrimSuffix(strings.Repeat("'<a', ", arguments), ", ")+")")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tb.builtins.types)) {
		for _, sql := range []string{"SELECT '<a'::%", "SELECT '{<a}'::%", "SELECT '{<a}'::%[]", "SELECT * FROM json_to_record('{\"b\":\"<a\"}') AS x(b %)", "SELECT coalesce(NULL::%, '<a')", "SELECT coalesce(NULL::%, '{<a}')"} {
			statements = append(statements, strings.ReplaceAll(sql, "%", `pg_catalog."`+name+`"`))
		}
	}
	statements = append(statements, "SELECT '<a'::xml", "SELECT xml_out('<a')")
	for _, sql := range slices.Clone(statements) {
		statements = append(statements, strings.ReplaceAll(sql, "<a", "$.a == $.b["))
	}
	for _, name := range slices.Sorted(maps.Keys(tb.builtins.operators)) {
		for _, right := range []string{"'$.a == $.b['", "ANY ('{$.a == $.b[}')", "ALL (ARRAY['$.a == $.b['])", `'$.a == $.b[' COLLATE "C"`, "'$.a == $.b['::unknown", `('$.a == $.b['::pg_catalog.unknown COLLATE "C")::unknown`, `ANY ('{$.a == $.b[}' COLLATE "C")`, "ANY ('{$.a == $.b[}'::unknown)", `ALL (ARRAY['$.a == $.b[' COLLATE "C"])`, "ALL (ARRAY['$.a == $.b['::unknown])"} {
			statements = append(statements, "SELECT '{}'::jsonb OPERATOR(pg_catalog."+name+") "+right, "SELECT '{}' OPERATOR(pg_catalog."+name+") "+right)
		}
		statements = append(statements, "SELECT ROW('{}'::jsonb) OPERATOR(pg_catalog."+name+") ROW('$.a == $.b[')", "SELECT ROW('{}') OPERATOR(pg_catalog."+name+") ROW('$.a == $.b[' COLLATE \"C\")")
	}
	parsed, paths := 0, 0
	for _, sql := range statements {
		c, refused := classifyText(tb, sql)
		if refused != nil {
			continue
		}
		if !c.SafeRead && !strings.Contains(sql, "xml") && !strings.Contains(sql, "json") {
			continue // it may do anything
		}
		_, err := conn.Exec(t.Context(), sql).ReadAll()
		var e *pgconn.PgError
		if err != nil && !errors.As(err, &e) {
			require.NoError(t, err, sql)
		}
		if e != nil && strings.HasPrefix(e.Code, "2200") && e.Code >= "2200L" && e.Code <= "2200T" { // the errors of XML
			parsed++
			require.False(t, c.SafeRead, "%s: %s", sql, e.Message)
		}
		if e != nil && strings.Contains(e.Message, "jsonpath input") && !strings.Contains(sql, "jsonpath_out") && !strings.Contains(sql, "jsonpath_send") { // which only show one
			paths++
			require.False(t, c.SafeRead, "%s: %s", sql, e.Message)
		}
	}
	require.Greater(t, parsed, 10)
	require.Greater(t, paths, 10)
}
