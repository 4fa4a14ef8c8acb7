package classify

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type versionRow struct {
	kind, name    string
	versions      versions
	reading, call string
	example       string
}

func versionRows(t testing.TB) (rows []versionRow) {
	t.Helper()
	table, err := tsv(versionsTSV, 5)
	require.NoError(t, err)
	for _, r := range table {
		v, err := parseVersions(r[2])
		require.NoError(t, err)
		reading, call, _ := strings.Cut(r[3], " ")
		rows = append(rows, versionRow{r[0], r[1], v, reading, call, r[4]})
	}
	require.Greater(t, len(rows), 60)
	return rows
}

var testMajors = []int{0, 15, 16, 17, 18}

// What a server may read otherwise is not known for it, and all that it could
// call by it is named; for all other servers the same text is what it was.
func TestTextsOfOtherMajorsAreNotKnown(t *testing.T) {
	for _, major := range testMajors {
		tb := newTestTables(t, Config{ServerMajor: major})
		if major == 0 {
			var err error
			tb, err = newTables(Config{})
			require.NoError(t, err)
		}
		for _, r := range versionRows(t) {
			if r.reading == readingNever {
				require.Empty(t, r.example)
				continue
			}
			c := mustClassify(t, tb, r.example)
			unknown := slices.Contains(c.RiskSignals, SignalUnknownNode)
			switch {
			case r.kind == versionKeyword && r.reading == readingCall:
				require.Contains(t, c.Functions, "public."+r.call, "%d: %s", major, r.example)
				require.Contains(t, c.RiskSignals, SignalUnknownFunction, "%d: %s", major, r.example)
			case r.reading == readingSame || r.versions.in(major):
				require.False(t, unknown, "%d: %s: %v", major, r.example, c.Signals)
				require.NotContains(t, c.RiskSignals, SignalUnknownFunction, "%d: %s", major, r.example)
			default:
				require.True(t, unknown, "%d: %s", major, r.example)
				require.Equal(t, ClassUnknown, c.Class)
				require.False(t, c.SafeRead)
				if r.call != "" {
					require.Contains(t, c.Functions, "public."+r.call, "%d: %s", major, r.example)
				}
			}
		}
	}
}

// A row without an example would hold nothing.
func TestEveryRowOfVersionsHasAnExample(t *testing.T) {
	for _, r := range versionRows(t) {
		require.Equal(t, r.reading == readingNever, r.example == "", "%s %s", r.kind, r.name)
		require.NotEqual(t, allVersions, r.versions, "%s %s is nothing special", r.kind, r.name)
	}
}

// The row of a form says it wherever the form stands, whatever is around it.
func TestFormsOfOtherMajorsAreSeenEverywhere(t *testing.T) {
	for sql, known := range map[string]versions{
		"SELECT a FROM t WHERE b IN (1, 0x1F)": 0b1110, "SELECT 0X1f": 0b1110, "SELECT 0o17": 0b1110, "SELECT 0B11": 0b1110, "SELECT -0b_1": 0b1110,
		"SELECT .1_0": 0b1110, "SELECT 1_0.5": 0b1110, "SELECT 1.5_0e3": 0b1110, "SELECT 1e1_0": 0b1110, "SELECT * FROM t LIMIT 1_0": 0b1110,
		`SELECT e'\v'`: 0b0011, `SELECT E'a\\\v'`: 0b0011, "SELECT E'a'\n'\\v'": 0b0011, `SELECT E'''\v'`: 0b0011, `EXECUTE p (E'\v')`: 0,
		`SELECT E'\\v'`: 0b1111, `SELECT '\v'`: 0b1111, "SELECT 'x_1', x_1, _1, $1, 1.5, 1e5, 0, 00, 0.1": 0b1111, `SELECT U&'_'`: 0b1111, `SELECT x0x1f, "0x1F" FROM t`: 0b1111,
		"SELECT '0x1F', 'E''\\v'''": 0b1111, "SELECT 1 -- 0x1F 1_000": 0b1111, "SELECT $$0x1F$$, E'a_b'": 0b1111,
		"SELECT * FROM t, LATERAL (VALUES (1))": 0b1110, "SELECT * FROM (SELECT 1) x": 0b1111, "SELECT * FROM (t JOIN s ON true)": 0b1111,
		"WITH x AS (SELECT * FROM (TABLE t)) SELECT 1": 0b1110, "SELECT * FROM SYSTEM_USER": 0b1110, `SELECT "system_user" FROM t`: 0b1111, "SELECT t.system_user FROM t": 0b1111,
		"SELECT json_object('{a}', '{b}')": 0b1111, "SELECT pg_catalog.json_object('{a}')": 0b1111, "EXPLAIN SELECT json_array()": 0b1110, `SELECT "json_array"(1)`: 0,
		"SELECT json FROM t": 0b1111, "SELECT '1'::json, json '1', path, plan, source, target, error, period FROM t AS string": 0b1111,
		`SELECT "json"(a) FROM t`: 0, "SELECT pg_catalog.json(a) FROM t": 0, "SELECT pg_catalog.system_user()": 0b1110,
	} {
		for _, major := range testMajors {
			tb, err := newTables(Config{ServerMajor: major})
			require.NoError(t, err)
			c := mustClassify(t, tb, sql)
			require.Equal(t, known.in(major), c.SafeRead, "%d: %s: %v", major, sql, c.Signals)
		}
	}
}

// Below what a server does not know the walk goes on: facts are whole.
func TestFactsOfWhatAServerDoesNotKnowAreWhole(t *testing.T) {
	tb := newTestTables(t, Config{ServerMajor: 15})
	c := mustClassify(t, tb, "SELECT json_array(pg_read_file('x'), (SELECT a FROM secrets), evil(1_0)) FROM (SELECT 0x1F)")
	require.Equal(t, []string{"pg_read_file", "public.evil", "public.json_array"}, c.Functions)
	require.Equal(t, []string{"public.secrets"}, c.TablesRead)
	require.Contains(t, c.RiskSignals, SignalServerFileAccess)
	require.Contains(t, c.RiskSignals, SignalUnknownNode)
	require.Equal(t, ClassUnknown, c.Class)
}

// Serials are special where a table's column is made, and nowhere else.
func TestSerialsAreBuiltInForNewColumnsAlone(t *testing.T) {
	tb := newTestTables(t, Config{})
	for name := range serials {
		for _, sql := range []string{
			"CREATE TABLE n (a @)", `CREATE TABLE n (a "@" NOT NULL)`, "CREATE TEMP TABLE n (b int, a @ PRIMARY KEY)", "ALTER TABLE t ADD a @", "ALTER TABLE t ADD COLUMN IF NOT EXISTS a @",
			"CREATE SCHEMA x CREATE TABLE n (a @)",
		} {
			c := mustClassify(t, tb, strings.ReplaceAll(sql, "@", name))
			require.NotContains(t, c.RiskSignals, SignalUnknownFunction, "%s: %s", name, sql)
			require.False(t, c.UserTypes)
		}
		for _, sql := range []string{
			"SELECT '1'::@", `SELECT '1'::"@"`, "SELECT CAST('1' AS @)", "SELECT @ '1'", "SELECT '1'::@[]", "SELECT @('1')", "SELECT * FROM json_to_record('{}') AS x(a @)",
			"SELECT * FROM XMLTABLE('/a' PASSING d COLUMNS a @) x", "SELECT xmlserialize(CONTENT d AS @) FROM t", "SELECT json_array(1 RETURNING @)", "SELECT $1::@",
			"CREATE TYPE n AS (a @)", "ALTER TYPE n ADD ATTRIBUTE a @", "ALTER TABLE t ALTER a TYPE @", "CREATE DOMAIN d AS @", "CREATE FUNCTION f(@) RETURNS int LANGUAGE sql AS 'SELECT 1'",
			"PREPARE p (@) AS SELECT $1", "CREATE CAST (@ AS int) WITHOUT FUNCTION", "UPDATE t SET a = '1'::@ WHERE id = 1",
		} {
			c := mustClassify(t, tb, strings.ReplaceAll(sql, "@", name))
			require.Contains(t, c.Functions, "public."+name, "%s: %s", name, sql)
			require.Contains(t, c.RiskSignals, SignalUnknownFunction, "%s: %s", name, sql)
		}
		for _, sql := range []string{"SELECT '1'::pg_catalog.@", "CREATE TABLE n (a pg_catalog.@)"} {
			c := mustClassify(t, tb, strings.ReplaceAll(sql, "@", name))
			require.Contains(t, c.RiskSignals, SignalUnknownFunction, "%s: %s", name, sql)
		}
	}
}

// The parser child judges for the server that is connected, too.
func TestTheChildKnowsTheServer(t *testing.T) {
	c := byCPUAlone(newClassifier(t, Config{ServerMajor: 15, ParserMode: "child"}))
	for _, sql := range []string{"SELECT json_array(1, 2)", "SELECT 1_000", "SELECT * FROM (SELECT 1)"} {
		found, err := c.Classify(t.Context(), sql)
		require.NoError(t, err)
		require.Contains(t, found.RiskSignals, SignalUnknownNode, sql)
	}
	require.NoError(t, c.SetServerMajor(16))
	for _, sql := range []string{"SELECT json_array(1, 2)", "SELECT 1_000", "SELECT * FROM (SELECT 1)"} {
		found, err := c.Classify(t.Context(), sql)
		require.NoError(t, err)
		require.True(t, found.SafeRead, sql)
	}
}
