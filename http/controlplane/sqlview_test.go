package controlplane

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

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
		"SELECT a FROM t":                   "keyword:SELECT word:a keyword:FROM word:t",
		"select 'it''s' -- no":              "keyword:select string:'it''s' comment:-- no",
		"x /* a /* b */ c */ y":             "word:x comment:/* a /* b */ c */ word:y",
		"$$ DROP $$ $t$ a $$ b $t$":         "string:$$ DROP $$ string:$t$ a $$ b $t$",
		`E'a\'b' 'a\'`:                      `word:E string:'a\'b' string:'a\'`,
		`"DROP" 12.5e3`:                     `word:"DROP" number:12.5e3`,
		"a -- one\nDROP TABLE t":            "word:a comment:-- one keyword:DROP keyword:TABLE word:t",
		"'open":                             "string:'open",
		"/* open":                           "comment:/* open",
		"$1 $2":                             "plain:$ number:1 plain:$ number:2",
		"p\u0430id":                         "word:p mark:\u0430 word:id",
		"'p\u0430id'":                       "string:'p mark:\u0430 string:id'",
		"'\u0440\u0430\u0437'":              "string:'\u0440\u0430\u0437'",
		"a\u200bb":                          "word:a mark:U+200B word:b",
		"'\u202eabc'":                       "string:' mark:U+202E string:abc'",
		"a" + strings.Repeat(" ", 90) + "b": "word:a blank: word:b",
	} {
		require.Equal(t, want, kindsOf(viewSQL(text)), text)
	}
}

func TestWhatAReaderWouldNotSeeIsSaid(t *testing.T) {
	for text, want := range map[string]string{
		"DELETE FROM t -- please":                              "1 comment.",
		"SELECT '\u202e'":                                      "1 character that",
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

func TestALongStatementIsFoldedWithItsLengthAndDigest(t *testing.T) {
	v := viewSQL("SELECT '" + strings.Repeat("ä", 3000) + "'")
	require.True(t, v.Folded)
	require.Equal(t, 6009, v.Bytes)
	require.Len(t, v.Digest, 64)
	size := 0
	for _, p := range v.Head {
		require.True(t, utf8.ValidString(p.Text))
		size += len(p.Text)
	}
	require.LessOrEqual(t, size, foldedBytes)
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
	require.LessOrEqual(t, len(v.Warnings), mostMixed+2)
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
