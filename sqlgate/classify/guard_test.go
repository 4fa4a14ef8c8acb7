package classify

import (
	"strings"
	"testing"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/commands/fault"
)

const defaultMaxSQL = 256 << 10

// cut gives the tokens of a text as the guard's lexer sees them.
func cut(sql string) (tokens []string, kinds []tokenKind) {
	for l := newLexer(sql); ; {
		kind := l.next()
		if kind == tokenEnd {
			return tokens, kinds
		}
		tokens, kinds = append(tokens, sql[l.start:l.pos]), append(kinds, kind)
	}
}

func TestTheGuardCutsTokensAsPostgreSQLDoes(t *testing.T) {
	for _, c := range []struct {
		name, sql string
		tokens    []string
	}{
		{"quotes double", `'it''s' x`, []string{`'it''s'`, "x"}},
		{"backslash is an ordinary character", `'a\' , b`, []string{`'a\'`, ",", "b"}},
		{"E string hides its quote", `E'a\' , b' x`, []string{`E'a\' , b'`, "x"}},
		{"E string ends in a hidden backslash", `e'\\' x`, []string{`e'\\'`, "x"}},
		{"joined over a line end", "'a' \n 'b' x", []string{"'a' \n 'b'", "x"}},
		{"joined over a comment line", "'a' -- c\r'b' x", []string{"'a' -- c\r'b'", "x"}},
		{"E string stays one over a line end", "E'a'\n'b\\'c' x", []string{"E'a'\n'b\\'c'", "x"}},
		{"bit strings do not double quotes", "B'0''1' x''", []string{"B'0'", "'1'", "x''"}},
		{"not joined on one line", "'a' 'b'", []string{"'a'", "'b'"}},
		{"not joined over a block comment", "'a' /* \n */ 'b'", []string{"'a'", "'b'"}},
		{"not joined over a minus", "'a'\n-'b'", []string{"'a'", "-", "'b'"}},
		{"unicode string and name", `U&'\0041' u&"\0041"`, []string{`U&'\0041'`, `u&"\0041"`}},
		{"u and ampersand apart", `u&x`, []string{"u", "&", "x"}},
		{"bits and hex", `B'01' x'ff'`, []string{"B'01'", "x'ff'"}},
		{"N is a word", `N'x'`, []string{"N", "'x'"}},
		{"a longer word before a quote", `ab'x'`, []string{"ab", "'x'"}},
		{"quoted name", `"a""b".c`, []string{`"a""b"`, ".", "c"}},
		{"dollar quotes", `$$a$b$$ x`, []string{"$$a$b$$", "x"}},
		{"tagged dollar quote", `$a$ $b$ $$ $a$x`, []string{"$a$ $b$ $$ $a$", "x"}},
		{"last dollar opens again", `$a$ $b$a$`, []string{"$a$ $b$a$"}},
		{"no dollar quote behind a name", `a$$b$$ x`, []string{"a$$b$$", "x"}},
		{"dollar quote behind a number", `1$$b$$`, []string{"1", "$$b$$"}},
		{"parameter before a dollar quote", `$1$$b$$`, []string{"$1", "$$b$$"}},
		{"lone dollar", `$a b`, []string{"$", "a", "b"}},
		{"line comment ends at a carriage return", "1 -- x\r2", []string{"1", "2"}},
		{"nested comment", "1 /* /* */ 2 */ 3", []string{"1", "3"}},
		{"stars in a comment", "/***/1/****/2/*/**/*/3", []string{"1", "2", "3"}},
		{"operator stops at a comment", "a +-/* */ b*--c\n<>d", []string{"a", "+", "-", "b", "*", "<>", "d"}},
		{"minus behind SQL operators is its own", "a=-1", []string{"a", "=", "-", "1"}},
		{"minus behind another operator is part", "a@-1", []string{"a", "@-", "1"}},
		{"only plus and minus", "a+-+1", []string{"a", "+", "-", "+", "1"}},
		{"cast, range, assignment", "a::b 1..2 c:=d e:f", []string{"a", "::", "b", "1", "..", "2", "c", ":=", "d", "e", ":", "f"}},
		{"numbers", "1 1.5 1. .5 1e5 1.e-5 .5E+5 0x1F 0o7 0b1 1_000", strings.Fields("1 1.5 1. .5 1e5 1.e-5 .5E+5 0x1F 0o7 0b1 1_000")},
		{"no range behind an underscore", "1_0..5 1_0.5", []string{"1_0.", ".5", "1_0.5"}},
		{"letters above ASCII", "größe Ω1", []string{"größe", "Ω1"}},
		{"vertical tab is no white space before 17", "a\vb", []string{"a", "\v", "b"}},
		{"brackets and list", "f(a[1],b);", []string{"f", "(", "a", "[", "1", "]", ",", "b", ")", ";"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tokens, _ := cut(c.sql)
			require.Equal(t, c.tokens, tokens)
			requireSameTokens(t, c.sql)
		})
	}
}

// failer is what requireSameTokens needs of *testing.T and *rapid.T.
type failer interface {
	require.TestingT
	Helper()
}

// requireSameTokens compares the tokens with those of PostgreSQL's own lexer,
// where both take the text. Scan gives no ends for U& tokens: there the start,
// and the start of what follows, must do.
func requireSameTokens(t failer, sql string) {
	t.Helper()
	if _, f := guard(sql, defaultMaxSQL); f != nil {
		return
	}
	scanned, err := pg_query.Scan(sql)
	if err != nil {
		return
	}
	type span struct{ start, end int }
	var want, got []span
	l := newLexer(sql)
	for _, token := range scanned.Tokens {
		switch token.Token {
		case pg_query.Token_SQL_COMMENT, pg_query.Token_C_COMMENT:
			continue
		}
		l.next()
		s := span{int(token.Start), int(token.End)}
		if token.Token == pg_query.Token_USCONST || token.Token == pg_query.Token_UIDENT {
			s.end = l.pos
		}
		want, got = append(want, s), append(got, span{l.start, l.pos})
	}
	require.Equal(t, want, got, "%q", sql)
	require.Equal(t, tokenEnd, l.next(), "%q", sql)
}

// pieces are fragments from which hostile and ordinary texts are made: every
// byte sequence that changes the lexer's state is among them.
var pieces = []string{
	"'", "''", "E'", "e'", "B'", "x'", "N'", "U&'", "U&\"", "\"", "\\", "\\'", "$$", "$a$", "$b$", "$", "$1", "$12", "--", "/*", "*/", "/", "*",
	"\n", "\r", " ", "\t", "\v", "\f", "+", "-", "@", "=", "<", ">", "!", "|", "%", "?", "`", "::", ":=", "..", ".", "1", "0x", "0x1f", "1_0", "_", "e5", "e+", "1.5",
	"(", ")", "[", "]", ",", ";", "select", "a", "b1", "ü", "и", "NOT ", "IS NULL ", "union ", "UESCAPE", "\u200b",
}

func textOf(t *rapid.T) string {
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 40).Draw(t, "pieces"), "")
}

func TestTokenEndsAreThoseOfPostgreSQL(t *testing.T) {
	for _, sql := range ordinary {
		requireSameTokens(t, sql)
	}
	rapid.Check(t, func(t *rapid.T) { requireSameTokens(t, textOf(t)) })
}

func FuzzTokenEnds(f *testing.F) {
	for _, sql := range append(ordinary, pieces...) {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) { requireSameTokens(t, sql) })
}

func TestTheGuardRefusesInTheOrderOfItsTable(t *testing.T) {
	tooMany := strings.Repeat("/*", 33) + strings.Repeat("*/", 33)
	for _, c := range []struct {
		name, sql string
		code      fault.Code
		limit     any
		position  any
		got       any
	}{
		{"over the size", strings.Repeat("x", 4001), fault.OversizedSQL, "sql_bytes", nil, 4001},
		{"size before encoding", strings.Repeat("\xff", 4001), fault.OversizedSQL, "sql_bytes", nil, 4001},
		{"NUL", "SELECT 1\x00; DROP TABLE t", fault.ParserError, nil, 8, nil},
		{"NUL in a string", "SELECT '\x00'", fault.ParserError, nil, 8, nil},
		{"not UTF-8", "SELECT 'ü\xff'", fault.ParserError, nil, 10, nil},
		{"a surrogate", "SELECT '\xed\xa0\x80'", fault.ParserError, nil, 8, nil},
		{"encoding before emptiness", "--\xc3", fault.ParserError, nil, 2, nil},
		{"nothing", "", fault.EmptySQL, nil, nil, nil},
		{"white space", " \t\r\n\f", fault.EmptySQL, nil, nil, nil},
		{"comments and semicolons", "-- a\n;/* b /* c */ */;", fault.EmptySQL, nil, nil, nil},
		{"emptiness before nesting", tooMany, fault.EmptySQL, nil, nil, nil},
		{"open string", "SELECT 'abc", fault.ParserError, nil, 7, nil},
		{"open E string", `SELECT E'abc\'`, fault.ParserError, nil, 7, nil},
		{"open at a hidden end", `SELECT E'abc\`, fault.ParserError, nil, 7, nil},
		{"open name", `SELECT "abc""`, fault.ParserError, nil, 7, nil},
		{"open dollar quote", "SELECT $a$ $b$ $$", fault.ParserError, nil, 7, nil},
		{"open comment", "SELECT 1 /* /* */", fault.ParserError, nil, 9, nil},
		{"open comment alone", " /* x", fault.ParserError, nil, 1, nil},
		{"open before nesting", "1" + tooMany + "'", fault.ParserError, nil, 133, nil},
		{"comments 33 deep", "1" + tooMany, fault.ParserUnsupportedSyntax, "comment_depth", 65, 33},
		{"nesting before operators", "1" + tooMany + strings.Repeat("+", 64), fault.ParserUnsupportedSyntax, "comment_depth", 65, 33},
		{"joined comments", "1" + strings.Repeat("/**/", 600), fault.ParserUnsupportedSyntax, "lexer_work", 1069, 1442400},
		{"an operator of 64", "SELECT " + strings.Repeat("@", 64) + "1", fault.ParserUnsupportedSyntax, "operator_length", 7, 64},
		{"operators before brackets", strings.Repeat("(", 1001) + strings.Repeat("@", 64), fault.ParserUnsupportedSyntax, "operator_length", 1001, 64},
		{"literal joined over a comment", "SELECT 'a' -- x\n 'b'", fault.ParserUnsupportedSyntax, nil, 7, nil},
		{"E literal joined over a comment", "DO e'a'\n--\n'b\\'", fault.ParserError, nil, 3, nil},
		{"brackets 1001 deep", strings.Repeat("(", 500) + strings.Repeat("[", 501), fault.ParserUnsupportedSyntax, "bracket_depth", 1000, 1001},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, f := guard(c.sql, 4000)
			require.NotNil(t, f)
			require.Equal(t, c.code, f.Code)
			require.Equal(t, c.limit, f.Details["limit"])
			require.Equal(t, c.position, f.Details["position"])
			require.Equal(t, c.got, f.Details["got"])
			require.Equal(t, f.Details["max"] != nil, c.got != nil)
			require.NotEmpty(t, f.Message)
		})
	}
}

func TestTheGuardLetsPassWhatIsJustWithinItsLimits(t *testing.T) {
	for name, sql := range map[string]string{
		"a banner of stars":   "/" + strings.Repeat("*", 200_000) + "/ SELECT 1",
		"a banner of dashes":  strings.Repeat("-", 200_000) + "\nSELECT 1",
		"comments 32 deep":    "SELECT 1" + strings.Repeat("/*", 32) + strings.Repeat("*/", 32),
		"an operator of 63":   "SELECT " + strings.Repeat("@", 63) + "1",
		"brackets 1000 deep":  strings.Repeat("(", 1000) + "SELECT 1" + strings.Repeat(")", 1000),
		"many short comments": "SELECT 1" + strings.Repeat(" /* x */", 20_000),
		"256 KB of one list":  "SELECT 1 WHERE 1 IN (" + strings.Repeat("1,", 120_000) + "1)",
		"unbalanced brackets": ")))((( 1",
		"the largest text":    strings.Repeat("x", defaultMaxSQL),
	} {
		_, f := guard(sql, defaultMaxSQL)
		require.Nil(t, f, name)
	}
	_, f := guard("1"+strings.Repeat("/**/", 700), defaultMaxSQL)
	require.NotNil(t, f, "700 joined comments are quadratic work")
}

func TestTheGuardTellsStatementAndParameters(t *testing.T) {
	s, f := guard(" -- x\n;; SELECT $2, $10 /* y */ ; ; -- $99", defaultMaxSQL)
	require.Nil(t, f)
	require.Equal(t, 9, s.Start)
	require.Equal(t, 23, s.End)
	require.Equal(t, 10, s.HighestParam)

	s, f = guard("SELECT $99999999999999999999", defaultMaxSQL)
	require.Nil(t, f)
	require.Equal(t, 1<<31-1, s.HighestParam)
}

func FuzzGuard(f *testing.F) {
	for _, sql := range append(ordinary, pieces...) {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		s, refusal := guard(sql, defaultMaxSQL)
		if refusal == nil && (s.Start < 0 || s.End <= s.Start || s.End > len(sql)) {
			t.Fatalf("statement [%d:%d] of %q", s.Start, s.End, sql)
		}
	})
}

func BenchmarkGuard(b *testing.B) {
	for name, sql := range map[string]string{
		"ordinary":    "SELECT o.id, o.total, c.name FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.id = $1 AND o.state <> 'x'",
		"256KB list":  "SELECT 1 WHERE 1 IN (" + strings.Repeat("1,", 131_000) + "1)",
		"256KB words": strings.Repeat("abcdefg ", 32_000),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(sql)))
			b.ReportAllocs()
			for b.Loop() {
				if _, f := guard(sql, defaultMaxSQL); f != nil {
					b.Fatal(f)
				}
			}
		})
	}
}
