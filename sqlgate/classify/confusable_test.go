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
		{"emoji in a name", "SELECT 1 AS \"❤\"", nil},
		{"variation selectors", "SELECT o\ufe00, o\ufe0f, \"o\U000e01ef\"", []textFinding{{8, "U+FE00"}, {14, "U+FE0F"}, {21, "U+E01EF"}}},
		{"one in a string", "SELECT '❤\ufe0f'", nil},
		{"mathematical", "SELECT \U0001d5c8 FROM \"\uff4f\"", []textFinding{{7, "\U0001d5c8"}, {17, "\"\uff4f\""}}},
		{"a ligature", "SELECT \ufb01eld", []textFinding{{7, "\ufb01eld"}}},
		{"punctuation in full width", "SELECT 1 AS \"売上（円）\", a\uff1b", []textFinding{{31, "a\uff1b"}}},
		{"forms that nobody takes for plain ones", "SELECT 1 AS \"m²\", 2 AS \"№\", 3 AS co₂, 4 AS nª, 5 AS \"½\"", nil},
		{"a small capital", "SELECT \u1d0frders", []textFinding{{7, "\u1d0frders"}}},
		{"Cyrillic beside its twin", "SELECT o, 'о' FROM \u043e", []textFinding{{20, "\u043e"}}},
		{"quoted beside its twin", "SELECT \"O\" FROM \"\u041e\"", []textFinding{{16, "\"\u041e\""}}},
		{"without its twin", "SELECT \u043e FROM \u0441\u043e\u0440\u0443", nil},
		{"accents set together and apart", "SELECT \u00e9 FROM e\u0301", []textFinding{{7, "\u00e9"}, {15, "e\u0301"}}},
		{"ASCII alone", "SELECT \"Order1\", orderl, \"é\"", nil},
		{"capitals of another alphabet", "SELECT \"Имя\", имя, ИМЯ", nil},
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
		{"units", "SELECT 1 AS \"Δt\", 2 AS \"latency_μs\", 3 AS \"kΩ\", 4 AS Σ_x, 5 AS \"wait_\u00b5s\"", nil},
		{"a unit in two spellings", "SELECT \"μs\", \"\u00b5s\"", []textFinding{{7, "\"μs\""}, {14, "\"\u00b5s\""}}},
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

// What a reviewer would take for a change of one row is one of all new orders.
func TestANameThatLooksLikeAnotherOfItsStatementIsFound(t *testing.T) {
	for _, alias := range []string{
		"\u043e", "\U0001d5c8", "\u13ae", "\ua4f3", "\u1d0f", "\u0585", "\u03bf", "\uff4f", "\u2c9f", "o\ufe00", "o\ufe0f", "o\U000e01ef", "o\u200b", "\"\u043e\"", "\u041e", "\u0555",
	} {
		s, f := guard("DELETE FROM orders o USING (SELECT 2 AS id) AS "+alias+" WHERE "+alias+".id = 2 AND o.status = 'new'", defaultMaxSQL)
		require.Nil(t, f)
		require.Len(t, s.Confusable, 2, "%+q", alias)
	}
	s, f := guard("DELETE FROM orders i USING (SELECT 2 AS id) AS \u2170 WHERE \u2170.id = 2 AND i.status = 'new'", defaultMaxSQL)
	require.Nil(t, f)
	require.Len(t, s.Confusable, 2, "a Roman numeral")
}

func TestStatementsOfOneAlphabetRaiseNothing(t *testing.T) {
	for _, sql := range []string{
		"SELECT о.номер, с.имя, о.\"ВУ\" AS то FROM заказы о JOIN сотрудники с ON с.id = о.сотрудник WHERE о.сумма > 0 GROUP BY с.имя ORDER BY \"ВУ\"",
		"UPDATE накладные SET статус = 'новый', рост = 1 WHERE ср = 2 AND \"№\" = 3",
		"SELECT ο.όνομα, σ.ποσό, ο.\"ΙΝ\" FROM παραγγελίες ο JOIN συνεργάτες σ ON σ.id = ο.κωδικός WHERE ο.σσ IN (1) AND ο.σο = 2",
		"SELECT ո.անուն_և_հասցե, ռ.գին, ռ.զին FROM պատվերներ ո JOIN հաճախորդներ ռ ON ռ.id = ո.օր",
	} {
		s, f := guard(sql, defaultMaxSQL)
		require.Nil(t, f)
		require.Empty(t, s.Confusable, sql)
	}
}

func TestFindingsAreBounded(t *testing.T) {
	for _, unit := range []string{"\u202e", "a\u0430,", "'\u202e',"} {
		require.Len(t, confusables("SELECT "+strings.Repeat(unit, 1000)), maxTextFindings)
	}
	found := confusables("SELECT a\u0430" + strings.Repeat("b", 1000))
	require.Len(t, found[0].Subject, 63)
}
