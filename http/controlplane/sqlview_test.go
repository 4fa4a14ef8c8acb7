package controlplane

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// kinds renders pieces as kind:text, so that a table can say what is seen.
func kindsOf(v sqlView) string {
	var parts []string
	for _, p := range v.Pieces {
		if strings.TrimSpace(p.Text) != "" || p.Kind != "plain" {
			parts = append(parts, p.Kind+":"+strings.TrimSpace(p.Text))
		}
	}
	return strings.Join(parts, " ")
}

func TestSQLIsSetApartAsItWillRun(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT a FROM t":                            "keyword:SELECT word:a keyword:FROM word:t",
		"select 'it''s' -- no":                       "keyword:select string:'it''s' comment:-- no",
		"x /* a /* b */ c */ y":                      "word:x comment:/* a /* b */ c */ word:y",
		"$$ DROP $$ $t$ a $$ b $t$":                  "string:$$ DROP $$ string:$t$ a $$ b $t$",
		`E'a\'b' 'a\'`:                               `word:E string:'a\'b' string:'a\'`,
		"E'x'\n'b\\' /*' OR id > 1 -- */ AND id = 2": `word:E string:'x' string:'b\' /*' keyword:OR word:id plain:> number:1 comment:-- */ AND id = 2`,
		"E'x' \t\r '\\'' OR 'y'":                     `word:E string:'x' string:'\'' keyword:OR string:'y'`,
		"E'x' '\\' OR 'y'":                           `word:E string:'x' string:'\' keyword:OR string:'y'`,
		"'x'\n'\\' OR 'y'":                           `string:'x' string:'\' keyword:OR string:'y'`,
		"E'x'\n, '\\' OR 'y'":                        `word:E string:'x' plain:, string:'\' keyword:OR string:'y'`,
		`"DROP" 12.5e3`:                              `word:"DROP" number:12.5e3`,
		"a -- one\nDROP TABLE t":                     "word:a comment:-- one keyword:DROP keyword:TABLE word:t",
		"'open":                                      "string:'open",
		"/* open":                                    "comment:/* open",
		"$1 $2":                                      "plain:$ number:1 plain:$ number:2",
		"p\u0430id":                                  "word:p mark:\u0430 word:id",
		"'p\u0430id'":                                "string:'p mark:\u0430 string:id'",
		"'\u0440\u0430\u0437'":                       "string:'\u0440\u0430\u0437'",
		"a\u200bb":                                   "word:a mark:U+200B word:b",
		"'\u202eabc'":                                "string:' mark:U+202E string:abc'",
		"a" + strings.Repeat(" ", 90) + "b":          "word:a blank: word:b",
	} {
		require.Equal(t, want, kindsOf(viewSQL(text)), text)
	}
}

func TestWhatAReaderWouldNotSeeIsSaid(t *testing.T) {
	for text, want := range map[string]string{
		"DELETE FROM t -- please":               "1 comment.",
		"SELECT '\u202e'":                       "1 character that",
		"DELETE FROM t WHERE a <> 'paid\u034f'": "1 character that", "SELECT 'a\u2800b\u3164c\u17b4\U000e0080'": "4 characters that",
		"SELECT p\u0430id FROM t":                              "mixes Cyrillic and Latin",
		"UPDATE t SET a = 1 WHERE b = 'unp\u0430id'":           "mixes Cyrillic and Latin",
		"SELECT 1" + strings.Repeat("\n", 40) + ", drop_all()": "A long run of blanks",
	} {
		v := viewSQL(text)
		require.NotEmpty(t, v.Warnings, text)
		require.Contains(t, strings.Join(v.Warnings, " "), want)
	}
	require.Empty(t, viewSQL("UPDATE orders SET status = 'größer' WHERE id = 7").Warnings)
}

// An alias that looks like another is marked, and said, where it stands.
func TestAnAliasThatLooksLikeAnotherIsMarked(t *testing.T) {
	for alias, mark := range map[string]string{
		"\u043e": "\u043e", "\U0001d5c8": "\U0001d5c8", "\u13ae": "\u13ae", "\ua4f3": "\ua4f3", "\u1d0f": "\u1d0f", "\u0585": "\u0585", "\u03bf": "\u03bf", "\uff4f": "\uff4f", "\"\u043e\"": "\u043e",
		"o\ufe00": "U+FE00", "o\ufe0f": "U+FE0F", "o\U000e01ef": "U+E01EF", "o\u200b": "U+200B",
	} {
		v := viewSQL("DELETE FROM orders o USING (SELECT 2 AS id) AS " + alias + " WHERE " + alias + ".id = 2 AND o.status = 'new'")
		require.True(t, v.Misread, "%+q", alias)
		require.Equal(t, 2, strings.Count(kindsOf(v), "mark:"+mark), "%+q", alias)
	}
	for _, text := range []string{
		"SELECT о.номер, с.имя FROM заказы о JOIN сотрудники с ON с.id = о.сотрудник ORDER BY \"ВУ\"", "SELECT ο.όνομα FROM παραγγελίες ο WHERE ο.σο = 1",
		"SELECT ո.անուն_և_հասցե, ո.օր FROM պատվերներ ո", "SELECT kır AS \"Δt\", \"latency_μs\", \"売上（円）\", \"m²\" FROM größe",
	} {
		require.Empty(t, viewSQL(text).Warnings, text)
		require.False(t, viewSQL(text).Misread, text)
	}
}

func TestALongStatementIsFoldedWithItsLengthAndDigest(t *testing.T) {
	v := viewSQL("SELECT '" + strings.Repeat("ä", 3000) + "'")
	require.Equal(t, 6009, v.Bytes)
	require.Len(t, v.Digest, 64)
	require.Len(t, v.Parts, 1)
	size := 0
	for _, p := range v.Parts[0].Lines[0].Pieces {
		require.True(t, utf8.ValidString(p.Text))
		size += len(p.Text)
	}
	require.LessOrEqual(t, size, partBytes)
}

// What of a long text writes is shown first, with the numbers of its lines.
func TestTheWritingPartsOfALongStatementAreFound(t *testing.T) {
	long := strings.Repeat("  and status <> 'delete from x'\n", 100)
	for text, want := range map[string][]string{
		"WITH a AS (SELECT 1\n" + long + "), b AS (\n  DELETE FROM orders\n  WHERE id = 1)\nSELECT id FROM b": {"103:DELETE FROM orders", "104:  WHERE id = 1"},
		"SELECT 1\n" + long: {"1:SELECT 1", "2:  and status <> 'delete from x'"},
		"INSERT INTO a SELECT 1\n" + strings.Repeat("-- INTO\n", 60) + "ON CONFLICT (id) DO UPDATE SET n = 2": {"1:INSERT INTO a SELECT 1", "3:⟨59 more comments⟩", "62:ON CONFLICT (id) DO UPDATE SET n = 2"},
		"MERGE INTO a USING b ON (a.id = b.id)\n" + long + "WHEN MATCHED THEN DELETE":                         {"1:MERGE INTO a USING b ON (a.id = b.id)", "102:DELETE"},
		"DELETE FROM a WHERE b = substring(delete from 1) OR c > 1" + strings.Repeat("\n OR d > 2", 20):       {"1:DELETE FROM a WHERE b = substring(delete from 1) OR c > 1", "1:delete from 1"},
		"EXPLAIN ANALYZE UPDATE a SET b = '" + strings.Repeat("x", 2000) + "'":                                {"1:EXPLAIN ANALYZE UPDATE a SET b = '" + strings.Repeat("x", longPiece/2-1) + " … " + strings.Repeat("x", longPiece/4-1) + "'"},
		"UPDATE a SET b = '" + strings.Repeat("x", 2000) + "' WHERE c > 0":                                    {"1:UPDATE a SET b = '" + strings.Repeat("x", longPiece/2-1) + " … " + strings.Repeat("x", longPiece/4-1) + "' WHERE c > 0"},
		"DELETE FROM a WHERE b = 1 /* " + strings.Repeat("only one row. ", 300) + "*/ OR c > 0":               {"1:DELETE FROM a WHERE b = 1 /* only one row. only one row. only one row. only one row. only one row. only on …  one row. only one row. only one row. */ OR c > 0"},
		"UPDATE a SET\n" + strings.Repeat("-- note\n", 60) + "b = 1 WHERE c = 1 OR d > 0":                     {"1:UPDATE a SET", "2:-- note", "62:b = 1 WHERE c = 1 OR d > 0"},
		"DELETE FROM a WHERE b IN (1" + strings.Repeat(",\n1", 600) + ") OR d > 0":                            {"1:DELETE FROM a WHERE b IN (⟨601 numbers, all 1⟩", "601:) OR d > 0"},
		"SELECT \"update\", substring(a from 2)" + strings.Repeat("\n, update", 40) + " FROM t FOR UPDATE":    {"1:SELECT \"update\", substring(a from 2)", "2:, update"},
		"/* DELETE FROM a */ UPDATE b SET c = 1\r\n WHERE d = 2" + strings.Repeat("\r\n OR e = 3", 20):        {"1:UPDATE b SET c = 1", "2: WHERE d = 2"},
		"\n\nDROP TABLE a" + strings.Repeat("\n, b", 20):                                                      {"3:DROP TABLE a", "4:, b"},
	} {
		var lines []string
		for _, part := range viewSQL(text).Parts {
			for _, line := range part.Lines {
				var said strings.Builder
				for _, p := range line.Pieces {
					said.WriteString(seenAs(p))
				}
				lines = append(lines, fmt.Sprintf("%d:%s", line.Number, said.String()))
			}
		}
		require.Subset(t, lines, want, text)
		require.Equal(t, want[0], lines[0], text)
	}
	flood := viewSQL("SELECT " + strings.Repeat("substring(delete from 1), ", 100) + "1; DELETE FROM orders")
	require.Len(t, flood.Parts, mostParts)
	require.Contains(t, flood.Warnings[len(flood.Warnings)-1], "101 passages of it write")
}

// seenAs is a piece as a page has it.
func seenAs(p sqlPiece) string {
	if p.Kind == "blank" {
		return "⟨" + p.Note + "⟩"
	}
	return p.Text
}

// excerpt is what a card shows of a text before all of it is asked for.
func excerpt(v sqlView) string {
	var said strings.Builder
	for _, part := range v.Parts {
		for _, line := range part.Lines {
			for _, p := range line.Pieces {
				said.WriteString(seenAs(p))
			}
		}
		if part.Cut {
			said.WriteString("…")
		}
	}
	return said.String()
}

// Of a list its constants are folded, and nothing that stands between two lists.
func TestAFoldHidesConstantsAlone(t *testing.T) {
	numbers := func(from, to int) string {
		var b strings.Builder
		for n := from; n <= to; n++ {
			fmt.Fprintf(&b, ",%d", n)
		}
		return b.String()[1:]
	}
	strs := func(n int) string {
		return "'a'" + strings.Repeat(", 'm'", n-2) + ", 'z'"
	}
	long := strings.Repeat("'"+strings.Repeat("x", longConstant)+"', ", 40)
	for text, want := range map[string]string{
		"UPDATE t SET a = 99 WHERE line IN (" + numbers(10000, 10599) + ") OR line > (SELECT min(0) FROM c) OR line IN (" + numbers(10000, 10599) + ")": "UPDATE t SET a = 99 WHERE line IN (⟨600 numbers from 10000 to 10599⟩) OR line > (SELECT min(0) FROM c) OR line IN (⟨600 numbers from 10000 to 10599⟩)",
		"DELETE FROM t WHERE a IN (" + numbers(1, 500) + ", 7 + f(1), " + numbers(501, 900) + ")":                                                       "DELETE FROM t WHERE a IN (⟨500 numbers from 1 to 500⟩, 7 + f(1), ⟨400 numbers from 501 to 900⟩)",
		"DELETE FROM t WHERE a IN (" + numbers(1, 500) + ") AND b = ANY ('{" + numbers(1, 20) + "}')":                                                   "DELETE FROM t WHERE a IN (⟨500 numbers from 1 to 500⟩) AND b = ANY ('{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20}')",
		"DELETE FROM t WHERE a IN (" + numbers(1, 500) + ", 9 /* all */ OR true)":                                                                       "DELETE FROM t WHERE a IN (⟨500 numbers from 1 to 500⟩, 9 /* all */ OR true)",
		"DELETE FROM t WHERE a IN (1 OR x, " + numbers(1, 500) + ")":                                                                                    "DELETE FROM t WHERE a IN (1 OR x, ⟨500 numbers from 1 to 500⟩)",
		"DELETE FROM t WHERE a IN (" + strs(500) + ") OR b = ARRAY[" + strs(8) + "]":                                                                    "DELETE FROM t WHERE a IN (⟨500 strings from 'a' to 'z'⟩) OR b = ARRAY[⟨8 strings from 'a' to 'z'⟩]",
		"DELETE FROM t WHERE a IN (-1, 'x', NULL, " + numbers(1, 500) + ")":                                                                             "DELETE FROM t WHERE a IN (⟨503 constants⟩)",
		"INSERT INTO t VALUES (0, 'a')" + strings.Repeat(",\n(1, 'b')", 300) + " ON CONFLICT (id) DO UPDATE SET a = 1":                                  "INSERT INTO t VALUES (0, 'a'),⟨300 more rows, of 600 constants⟩ ON CONFLICT (id) DO UPDATE SET a = 1",
		"INSERT INTO t VALUES (0, 'a')" + strings.Repeat(", (1, 'b')", 200) + ", (1, f())" + strings.Repeat(", (1, 'b')", 200):                          "INSERT INTO t VALUES (0, 'a'), ⟨200 more rows, of 400 constants⟩, (1, f()), ⟨200 more rows, of 400 constants⟩",
		"DELETE FROM t WHERE (a, b) IN ((0, 0)" + strings.Repeat(", (1, 2)", 300) + ") OR a > 1":                                                        "DELETE FROM t WHERE (a, b) IN ((0, 0), ⟨300 more rows, of 600 constants⟩) OR a > 1",
	} {
		v := viewSQL(text)
		require.Equal(t, want, excerpt(v))
		require.Empty(t, slices.DeleteFunc(v.Warnings, func(w string) bool { return strings.Contains(w, "comment") }), text)
	}
	v := viewSQL("DELETE FROM t WHERE a IN (" + long + "'y') OR b > (SELECT 1) OR c IN (" + long + "'z')")
	require.Equal(t, "Left out below: OR ×2, a subquery, IN.", v.Warnings[0])
	v = viewSQL("DO $$ " + strings.Repeat("SELECT 1; ", 300) + "DELETE FROM t $$")
	require.Contains(t, v.Warnings[0], "Left out below: the middle of 1 long string.")
}

// Whatever a text is, what an excerpt leaves out besides constants of lists and comments is
// said above it.
func TestNothingThatIsLeftOutIsUnsaid(t *testing.T) {
	words := []string{"OR ", "(", ")", "1", "1, 2, 3, 4, 5, 6, 7, 8, 9", ", ", "'a', 'b'", "x ", "SELECT ", "DELETE FROM ", "-- c\n", "/* c */", "\n", "+ ", "; ", "f(", "'" + strings.Repeat("s", 90) + "'", strings.Repeat("y", 300) + " ", strings.Repeat("1,", 100), "(1, 2), ", "VALUES "}
	folded := 0
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 20, 400).Draw(t, "words"), "")
		v := viewSQL(text)
		if v.Parts == nil {
			return
		}
		folded++
		count := func(pieces []sqlPiece) (n int) {
			for _, p := range pieces {
				if p.Kind == "keyword" || p.Kind == "word" || p.Text == ";" || p.Text == "+" {
					n++
				}
			}
			return n
		}
		shown := 0
		for _, part := range v.Parts {
			for _, line := range part.Lines {
				shown += count(line.Pieces)
			}
		}
		if shown < count(v.Pieces) {
			require.Contains(t, strings.Join(v.Warnings, " "), "Left out below: ")
		}
		for _, most := range []int{lineBytes, shownBytes} {
			line, notes := lineOf(text, most), ""
			for _, p := range line.Pieces {
				notes += p.Note
			}
			if count(line.Pieces) < count(v.Pieces) {
				require.Contains(t, notes, ", with ")
			}
		}
	})
	require.Positive(t, folded)
}

// A row of a list shows the first write that stands behind what it shows of the beginning.
func TestARowShowsTheWriteBehindItsCut(t *testing.T) {
	long := "WITH a AS (SELECT 1 WHERE " + strings.Repeat("b <> 'delete from x' AND ", 40) + "true), "
	for text, want := range map[string]string{
		"DELETE FROM a WHERE b IN (" + strings.Repeat("1, ", 100) + "2)":                              "IN ([101 numbers from 1 to 2])",
		long + "b AS (DELETE FROM orders WHERE id > 0 RETURNING id) SELECT 1":                         ", with AND ×32, TRUE, AS]DELETE FROM orders WHERE id > 0 RETURNING id) SELECT 1[cut: ",
		long + "b AS (DELETE /* " + strings.Repeat("none ", 60) + "*/ FROM orders) SELECT 1":          "none */ FROM orders) SELECT 1[cut: ",
		long + "b AS (SELECT substring(delete from 1)), c AS (DELETE FROM orders) UPDATE z SET y = 1": " bytes in all, with 2 more passages that write]",
		"/* " + strings.Repeat("harmless ", 60) + "*/ DELETE FROM orders":                             "harmless */ DELETE FROM orders",
		"UPDATE a SET b = '" + strings.Repeat("x", 600) + "'":                                         "x'[cut: 482 bytes of a long string]",
		"UPDATE a SET b = '" + strings.Repeat("x", 60) + "' WHERE " + strings.Repeat("c <> 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' AND ", 5) + "c > 1 OR d > (SELECT 1)": ", with OR, a subquery, AND",
		"SELECT " + strings.Repeat("1, ", 75) + "(2); DELETE FROM orders WHERE " + strings.Repeat("a = 1 OR ", 10) + "true LIMIT":                                                                                  "DELETE FROM orders WHERE",
	} {
		var said strings.Builder
		for _, p := range lineOf(text, lineBytes).Pieces {
			if p.Kind != "blank" {
				said.WriteString(p.Text)
			} else {
				said.WriteString("[" + p.Note + "]")
			}
		}
		require.Contains(t, said.String(), want, text)
		require.LessOrEqual(t, said.Len(), 2*lineBytes+300)
	}
}

// Whatever the text, its lines hold all of it, in order, with the numbers of an editor.
func TestTheLinesAreTheWholeText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.SampledFrom([]rune("ab '\n\r-/*("))).Draw(t, "text")
		v := viewSQL(text)
		var all, shown strings.Builder
		for _, p := range v.Pieces {
			all.WriteString(p.Text)
		}
		last := 0
		for _, line := range v.Lines {
			require.Greater(t, line.Number, last)
			last = line.Number
			for _, p := range line.Pieces {
				shown.WriteString(p.Text)
			}
		}
		bare := strings.NewReplacer("\n", "", "\r", "")
		require.Equal(t, bare.Replace(all.String()), bare.Replace(shown.String()))
		require.Equal(t, 1+strings.Count(lineEnds.Replace(text), "\n"), last)
	})
}

// What a card shows as a constant or a comment is one to PostgreSQL's own lexer. Where a
// comment stands between two constants that lexer and the server's part, and the gate
// takes no such text.
func TestConstantsAndCommentsAreThoseOfPostgreSQL(t *testing.T) {
	fragments := []string{"'", "'", "E'x'", "\n'", "''", "E'", "e'", "N'", "B'", "\"", "\\", "\\'", "$$", "$a$", "$", "$1", "--", "/*", "*/", "/", "*", "\n", "\n", "\r", " ", "\t", "a", "E", "1", "1e", "ü", ",", "OR ", "+", "(", ";"}
	compared := 0
	rapid.Check(t, func(t *rapid.T) {
		for range 100 {
			text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(fragments), 1, 14).Draw(t, "text"), "")
			scanned, err := pg_query.Scan(text)
			if err != nil {
				continue
			}
			want, got := bytes.Repeat([]byte("."), len(text)), make([]byte, 0, len(text))
			behind, parted := false, false // a constant, and a comment behind that
			for _, token := range scanned.Tokens {
				kind, from := byte('.'), int(token.Start)
				switch token.Token {
				case pg_query.Token_SCONST, pg_query.Token_BCONST, pg_query.Token_XCONST:
					kind = 's'
					if quote := strings.IndexByte(text[from:token.End], '\''); text[from] != '$' {
						from += quote
					}
					if behind && parted {
						return
					}
					behind, parted = true, false
				case pg_query.Token_SQL_COMMENT, pg_query.Token_C_COMMENT:
					kind, parted = 'c', true
				default:
					behind = false
				}
				for i := from; i < int(token.End); i++ {
					want[i] = kind
				}
			}
			for _, p := range viewSQL(text).Pieces {
				kind := "."
				if p.Kind == "string" || p.Kind == "comment" {
					kind = p.Kind[:1]
				}
				got = append(got, strings.Repeat(kind, len(p.Text))...)
			}
			for i := range want {
				if isBlank(text[i]) {
					want[i], got[i] = ' ', ' ' // between the parts of a constant
				}
			}
			require.Equal(t, string(want), string(got), "%q", text)
			compared++
		}
	})
	require.Positive(t, compared)
}

// Nothing is lost: the pieces, with what is folded and marked put back, are the
// text.
func TestThePiecesAreTheWholeText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.SampledFrom([]rune("ab 1'\"$/*-\\\n;E(\u0430\u202e\u200b\u00a0=é"))).Draw(t, "text")
		var all strings.Builder
		marks := 0
		for _, p := range viewSQL(text).Pieces {
			if p.Kind == "mark" {
				marks++
				continue
			}
			all.WriteString(p.Text)
		}
		bare := strings.Map(func(r rune) rune {
			if strings.ContainsRune(all.String(), r) || r < 0x80 {
				return r
			}
			return -1
		}, text)
		require.LessOrEqual(t, len(all.String()), len(text))
		require.GreaterOrEqual(t, len([]rune(text)), len([]rune(all.String())))
		require.Equal(t, len([]rune(text)), len([]rune(all.String()))+marks, "%q", bare)
	})
}

func FuzzViewSQL(f *testing.F) {
	f.Add("SELECT $a$ ' -- /* ")
	f.Add("E'\\")
	f.Fuzz(func(t *testing.T, text string) {
		v := viewSQL(text)
		if v.Bytes != len(text) {
			t.Fatal("bytes are lost")
		}
	})
}

// A text may be nothing but words that mislead: what is said of them is bounded, each
// letter is marked, and the work grows with the text alone.
func TestATextFullOfMisleadingWordsIsShownInBearableSize(t *testing.T) {
	var words strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&words, "%c%cа ", 'a'+i%26, 'a'+i/26%26)
	}
	v := viewSQL("DELETE FROM orders WHERE status <> '" + words.String() + "'")
	require.LessOrEqual(t, len(v.Warnings), mostMixed+3)
	require.Contains(t, v.Warnings[len(v.Warnings)-1], "more mix letters")
	marks, notes := 0, 0
	for _, p := range v.Pieces {
		if p.Kind == "mark" {
			marks++
			notes += len(p.Note)
		}
	}
	require.Equal(t, 40_000, marks)
	require.Less(t, notes, 1<<20)
}
