package classify

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWhatAPrepareHolds(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, c := range []struct{ sql, name, inner string }{
		{"PREPARE p AS SELECT 1", "p", "SELECT 1"},
		{"PREPARE p AS INSERT INTO t SELECT n FROM generate_series(1, 2) AS n", "p", "INSERT INTO t SELECT n FROM generate_series(1, 2) AS n"},
		{" ;; /* x */ prepare P as\n select 1 ; ", "p", "select 1 "},
		{`PREPARE "as" AS SELECT 1 AS "as"`, "as", `SELECT 1 AS "as"`},
		{`PREPARE "a as b"AS(SELECT 1)`, "a as b", "(SELECT 1)"},
		{`PREPARE U&"d!0061t" UESCAPE '!' (int, text) AS VALUES ($1, $2)`, "dat", "VALUES ($1, $2)"},
		{"PREPARE p (numeric(10, 2), pg_catalog.int8[]) AS--AS x\nSELECT $1 AS as_", "p", "--AS x\nSELECT $1 AS as_"},
		{"PREPARE p/* AS DELETE FROM t */AS/* AS x */INSERT INTO t VALUES ('AS')", "p", "/* AS x */INSERT INTO t VALUES ('AS')"},
		{"PREPARE p AS WITH x AS (DELETE FROM t RETURNING id) SELECT * FROM x;", "p", "WITH x AS (DELETE FROM t RETURNING id) SELECT * FROM x"},
		{"PREPARE p AS SELECT 'é' AS v -- end", "p", "SELECT 'é' AS v"},
		{"PREPARE " + strings.Repeat("n", 70) + " AS SELECT 1", strings.Repeat("n", 63), "SELECT 1"},
	} {
		got := mustClassify(t, tb, c.sql)
		require.Equal(t, TypePrepare, got.QueryType, c.sql)
		require.NotNil(t, got.Session, c.sql)
		require.Equal(t, c.name, got.Session.Name, c.sql)
		require.Equal(t, c.inner, got.Session.Inner, c.sql)
	}
	got := mustClassify(t, tb, "PREPARE p (int, varchar(3), pg_catalog.int8[], shop.mood, a.b.c) AS SELECT 1")
	require.Equal(t, []TypeName{
		{Schema: "pg_catalog", Name: "int4"}, {Schema: "pg_catalog", Name: "varchar", Modified: true}, {Schema: "pg_catalog", Name: "int8", Array: true},
		{Schema: "shop", Name: "mood"}, {Schema: "b", Name: "c", Odd: true},
	}, got.Session.Types)
}

func TestArgumentsAreConstantsOrNothing(t *testing.T) {
	tb := newTestTables(t, Config{})
	date, int4 := &TypeName{Name: "date"}, &TypeName{Schema: "pg_catalog", Name: "int4"}
	number := func(text string) Argument { return Argument{Kind: ArgumentNumber, Text: text} }
	for sql, want := range map[string]Argument{
		"1": number("1"), "0": number("0"), "-1": number("-1"), "- - 5": number("5"), "-0": number("0"), "007": number("7"), "1_000": number("1000"),
		"0x1F": number("31"), "-0b101": number("-5"), "0o17": number("15"), "1.50": number("1.50"), ".5": number("0.5"), "5.": number("5"),
		"-1.5e1": number("-15"), "1.50e1": number("15.0"), "15e-3": number("0.015"), "1e3": number("1000"), "9223372036854775808": number("9223372036854775808"),
		"1e999999999": {}, "1e2000": {}, "'x'": {Kind: ArgumentString, Text: "x"}, "E'a\\nb\"'": {Kind: ArgumentString, Text: "a\nb\""},
		"$$it's$$": {Kind: ArgumentString, Text: "it's"}, "'1); DROP TABLE t; --'": {Kind: ArgumentString, Text: "1); DROP TABLE t; --"}, "''": {Kind: ArgumentString},
		"true": {Kind: ArgumentBoolean, Text: "true"}, "false": {Kind: ArgumentBoolean, Text: "false"}, "NULL": {Kind: ArgumentNull},
		"'2024-01-01'::date": {Kind: ArgumentString, Text: "2024-01-01", Cast: date}, "date '2024-01-01'": {Kind: ArgumentString, Text: "2024-01-01", Cast: date},
		"CAST(-5 AS int)": {Kind: ArgumentNumber, Text: "-5", Cast: int4}, "NULL::int": {Kind: ArgumentNull, Cast: int4},
		"'x'::varchar(1)": {Kind: ArgumentString, Text: "x", Cast: &TypeName{Schema: "pg_catalog", Name: "varchar", Modified: true}},
		"true::bool":      {Kind: ArgumentBoolean, Text: "true", Cast: &TypeName{Name: "bool"}},
		// What only the server could work out is no constant.
		"now()": {}, "1 + 1": {}, "-5::int": {}, "-(5)": {}, "(SELECT 1)": {}, "ARRAY[1]": {}, "ROW(1)": {}, "'a' || 'b'": {}, "$1": {}, "x": {}, "B'1'": {},
		"'5'::int::text": {}, "DEFAULT": {},
	} {
		c, f := classifyText(tb, "EXECUTE p("+sql+")")
		require.Nil(t, f, sql)
		require.Equal(t, &Session{Name: "p", Args: []Argument{want}}, c.Session, sql)
	}
}

func TestOnlyTheRootIsOfASession(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range []string{"SELECT 1", "EXPLAIN EXECUTE p(1)", "CREATE TABLE t AS EXECUTE p(1)", "EXPLAIN ANALYZE CREATE TABLE t AS EXECUTE p", "DISCARD PLANS", "DO 'EXECUTE p'"} {
		require.Nil(t, mustClassify(t, tb, sql).Session, sql)
	}
	require.Equal(t, &Session{}, mustClassify(t, tb, "DEALLOCATE ALL").Session)
	require.Equal(t, &Session{Name: "all"}, mustClassify(t, tb, `DEALLOCATE PREPARE "all"`).Session)
	for _, sql := range []string{"PREPARE p AS PREPARE q AS SELECT 1", "PREPARE p AS EXECUTE q", "PREPARE p AS DROP TABLE t", "PREPARE p AS SELECT 1; SELECT 2"} {
		_, f := classifyText(tb, sql)
		require.NotNil(t, f, sql)
	}
}

// TestTheInnerStatementIsTheSameAlone: whatever is prepared, the text taken out
// of the PREPARE has the facts that the statement has by itself.
func TestTheInnerStatementIsTheSameAlone(t *testing.T) {
	tb := newTestTables(t, Config{})
	statements := []string{
		"SELECT 1", "SELECT a AS b FROM t WHERE id = $1", "VALUES (1), ($1)", "INSERT INTO t (a) VALUES ($1) RETURNING a AS \"as\"",
		"UPDATE t SET a = $1 WHERE id = $2", "DELETE FROM t WHERE $1", "MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN DELETE",
		"WITH a AS (SELECT 'AS'), b AS MATERIALIZED (SELECT 2) SELECT * FROM a, b", "(SELECT 1) UNION (SELECT 2) LIMIT 1", "TABLE t",
	}
	blanks := []string{" ", "\n", "/* AS */", "-- as\n", "\t/*/* AS SELECT */*/"}
	rapid.Check(t, func(t *rapid.T) {
		sql := rapid.SampledFrom(statements).Draw(t, "sql")
		blank := func() string { return rapid.SampledFrom(blanks).Draw(t, "blank") }
		name := rapid.SampledFrom([]string{"p", `"as"`, `"p AS SELECT"`, `U&"\0061"`}).Draw(t, "name")
		types := rapid.SampledFrom([]string{"", "(int)", "(text, bool[])"}).Draw(t, "types")
		c, f := classifyText(tb, "PREPARE"+blank()+name+blank()+types+blank()+"AS"+blank()+sql+rapid.SampledFrom([]string{"", ";", " -- AS", ";;"}).Draw(t, "end"))
		require.Nil(t, f)
		require.NotNil(t, c.Session)
		alone, f := classifyText(tb, c.Session.Inner)
		require.Nil(t, f)
		want, f := classifyText(tb, sql)
		require.Nil(t, f)
		require.Equal(t, want.Fingerprint, alone.Fingerprint)
		require.Equal(t, want.RiskSignals, alone.RiskSignals)
		require.Equal(t, want.Where, alone.Where)
		require.Equal(t, strings.TrimSpace(sql), strings.TrimSpace(c.Session.Inner[alone.Start:alone.End][strings.Index(c.Session.Inner[alone.Start:alone.End], sql):]))
	})
}

func TestASessionComesThroughTheParserChild(t *testing.T) {
	sql := "EXECUTE p('x', NULL, -5::int4, '1'::int)"
	replies := talk(t, greeting{MaxSQLBytes: 1000}, "\x10"+sql, "\x10PREPARE p (int) AS SELECT $1")
	for i, text := range []string{sql, "PREPARE p (int) AS SELECT $1"} {
		c, err := replies[i].result()
		require.NoError(t, err)
		require.Equal(t, mustClassify(t, newTestTables(t, Config{}), text).Session, c.Session)
	}
}

func FuzzSession(f *testing.F) {
	f.Add("PREPARE p (int) AS SELECT $1")
	f.Add("EXECUTE p(-1, 'x'::date, 1e5, NULL, true)")
	f.Add(`prepare U&"!0061" UESCAPE '!' AS VALUES (1)`)
	tb := newTestTables(f, Config{})
	f.Fuzz(func(t *testing.T, sql string) {
		c, fault := classifyText(tb, sql)
		if fault != nil || c.Session == nil {
			return
		}
		if c.Session.Inner != "" && !bytes.Contains([]byte(sql), []byte(c.Session.Inner)) {
			t.Fatalf("%q is no part of %q", c.Session.Inner, sql)
		}
		for _, a := range c.Session.Args {
			if a.Kind == ArgumentNumber && strings.Trim(a.Text, "-0123456789.") != "" {
				t.Fatalf("%q", a.Text)
			}
		}
	})
}

// What a number is computed to is bounded, and a number in tens is as long as its
// text.
func TestNumbersOfArgumentsAreBounded(t *testing.T) {
	digits := strings.Repeat("7", 5000)
	for text, want := range map[string]string{
		"0x10": "16", "0o17": "15", "0b11": "3", "1e3": "1000", "1e+3": "1000", "1e-3": "0.001", digits: digits,
		"0x" + digits: "", "0o" + digits: "", "1e1001": "", "1e-1001": "", "1e" + digits: "", "1e-" + digits: "",
	} {
		got, ok := plainDecimal(text, false)
		require.Equal(t, want != "", ok, "%.20s", text)
		require.Equal(t, want, got, "%.20s", text)
	}
}
