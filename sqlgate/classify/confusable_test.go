package classify

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTextThatReadsOtherwiseIsFound(t *testing.T) {
	for _, c := range []struct {
		name, sql string
		want      []textFinding
	}{
		{"plain", "SELECT 'x' FROM größe -- Größe", nil},
		{"another alphabet", "SELECT имя FROM \"таблица\" WHERE α = 'ω'", nil},
		{"no-break blank in a literal", "SELECT 'a\u00a0b', $$\u200b$$, E'\u2060'", nil},
		{"wide blank in a comment", "SELECT 1 --\u3000x", nil},
		{"accents are Latin", "SELECT é, ñandú", nil},
		{"emoji in a name", "SELECT 1 AS \"❤\ufe0f\"", nil},
		{"what fonts ignore, in names", "SELECT a\u2800, b\u17b4, c\U000e0080, d\U000e0041, e\u3164", []textFinding{{8, "U+2800"}, {14, "U+17B4"}, {20, "U+E0080"}, {27, "U+E0041"}, {34, "U+3164"}}},
		{"bidirectional control in a comment", "SELECT 1 /* \u202e */", []textFinding{{12, "U+202E"}}},
		{"bidirectional control in a literal", "SELECT '\u2066'", []textFinding{{8, "U+2066"}}},
		{"bidirectional control in a dollar quote", "SELECT $$\u200f$$", []textFinding{{9, "U+200F"}}},
		{"zero width in a name", "SELECT us\u200bers", []textFinding{{9, "U+200B"}}},
		{"zero width in a quoted name", "SELECT \"us\u200bers\"", []textFinding{{10, "U+200B"}}},
		{"zero width and blanks in a comment", "SELECT 1 -- \u200d prix\u00a0: total /* \ufeff */", nil},
		{"blanks in a comment in brackets", "SELECT 1 /* \u00a0\u202f /* \u200b */ */ + 2", nil},
		{"marks in a string", "SELECT '\u05d0\u200f 1', E'\u200e', U&'\u061c'", nil},
		{"a mark in a comment", "SELECT 1 -- \u200f", []textFinding{{12, "U+200F"}}},
		{"a mark in a name", "SELECT \"a\u200f\"", []textFinding{{9, "U+200F"}}},
		{"an override in a string", "SELECT '\u202e'", []textFinding{{8, "U+202E"}}},
		{"a line end in a comment", "SELECT 1 -- x\u2028, evil()", []textFinding{{13, "U+2028"}}},
		{"a line end in a name", "SELECT a\u2029b", []textFinding{{8, "U+2029"}}},
		{"a line end in a string", "SELECT '\u2028'", nil},
		{"units", "SELECT 1 AS \"Δt\", 2 AS \"latency_μs\", 3 AS \"kΩ\", 4 AS Σ_x, 5 AS \"latency_\u00b5s\"", nil},
		{"a unit beside a look-alike", "SELECT \"Δ\u03bft\"", []textFinding{{7, "\"Δ\u03bft\""}}},
		{"Greek that looks Latin", "SELECT \"\u03c3rders\"", []textFinding{{7, "\"\u03c3rders\""}}},
		{"no-break blank between words", "SELECT\u00a01", []textFinding{{6, "U+00A0"}}},
		{"wide blank between words", "SELECT\u30001", []textFinding{{6, "U+3000"}}},
		{"byte order mark in front", "\ufeffSELECT 1", []textFinding{{0, "U+FEFF"}}},
		{"Cyrillic in a Latin name", "SELECT us\u0435rs", []textFinding{{7, "us\u0435rs"}}},
		{"Greek in a quoted Latin name", "SELECT \"\u03bfrders\"", []textFinding{{7, "\"\u03bfrders\""}}},
		{"Armenian", "SELECT \u0570ome", []textFinding{{7, "\u0570ome"}}},
		{"several", "SELECT a\u0430, '\u202e', \u200b", []textFinding{{7, "a\u0430"}, {13, "U+202E"}, {19, "U+200B"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, f := guard(c.sql, defaultMaxSQL)
			require.Nil(t, f)
			require.Equal(t, c.want, s.Confusable)
		})
	}
}

func TestFindingsAreBounded(t *testing.T) {
	for _, unit := range []string{"\u202e", "a\u0430,", "'\u202e',"} {
		require.Len(t, confusables("SELECT "+strings.Repeat(unit, 1000)), maxTextFindings)
	}
	found := confusables("SELECT a\u0430" + strings.Repeat("b", 1000))
	require.Len(t, found[0].Subject, 63)
}
