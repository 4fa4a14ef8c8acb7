package classify

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	pg "github.com/pganalyze/pg_query_go/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// placeless is a classification as JSON without what a change of spelling may
// change: places, and the fingerprint that is made of the text.
func placeless(c Classification) string {
	if strings.HasPrefix(c.Fingerprint, "x") {
		c.Fingerprint = "x"
	}
	c.Signals = slices.Clone(c.Signals)
	for i := range c.Signals {
		c.Signals[i].At = 0
		c.Signals[i].Subject = strings.ToLower(c.Signals[i].Subject) // confusable words are quoted as written
	}
	slices.SortFunc(c.Signals, func(a, b Signal) int { return strings.Compare(a.Signal+a.Subject, b.Signal+b.Subject) })
	out, err := json.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// goodTexts are the sample texts that are one statement each.
func goodTexts(t testing.TB, tb *tables) []string {
	var good []string
	for _, sql := range sampleTexts(t) {
		if _, f := classifyText(tb, sql); f == nil {
			good = append(good, sql)
		}
	}
	require.Greater(t, len(good), 450)
	return good
}

// looksAhead are the words whose meaning hangs on the next one. The parser's
// lexer, unlike the server's, does not see that one past a comment and refuses.
var looksAhead = []string{"NOT", "NULLS", "WITH", "WITHOUT"}

// respell writes a text with other gaps between its tokens and its unquoted
// words in upper case. Literals next to each other stay as they are: a line
// break between two strings makes them one.
func respell(t *rapid.T, sql string) string {
	scan, err := pg.Scan(sql)
	if err != nil {
		t.Fatal(err)
	}
	gaps := rapid.SampledFrom([]string{" ", "\n", " /* ; DROP TABLE x */ ", "\t--'\n", " /*/*'*/*/"})
	var out strings.Builder
	at, literal, ahead, commented := 0, false, false, false
	for _, token := range scan.Tokens {
		gap, word := sql[at:token.Start], sql[token.Start:token.End]
		at = int(token.End)
		if token.Token == pg.Token_SQL_COMMENT || token.Token == pg.Token_C_COMMENT {
			commented = true
			continue
		}
		if commented {
			gap, commented = " ", false
		}
		isLiteral := strings.HasSuffix(word, "'") || strings.HasSuffix(word, `"`)
		if !(literal && isLiteral) && (gap != "" || rapid.Bool().Draw(t, "apart")) {
			gap = gaps.Draw(t, "gap")
		}
		if ahead {
			gap = " \n"
		}
		ahead = slices.Contains(looksAhead, strings.ToUpper(word))
		literal = isLiteral
		if token.Token == pg.Token_IDENT && word[0] != '"' && !isLiteral || token.KeywordKind != pg.KeywordKind_NO_KEYWORD {
			word = strings.Map(upperASCII, word)
		}
		out.WriteString(gap + word)
	}
	return out.String()
}

func TestSpellingChangesNoFact(t *testing.T) {
	tb := newTestTables(t, Config{})
	good := slices.DeleteFunc(goodTexts(t, tb), func(sql string) bool {
		return strings.Contains(sql, "U&") // whose tokens Scan cuts wrong
	})
	rapid.Check(t, func(t *rapid.T) {
		sql := rapid.SampledFrom(good).Draw(t, "sql")
		other := respell(t, sql)
		want, _ := classifyText(tb, sql)
		got, f := classifyText(tb, other)
		if f != nil {
			t.Fatalf("%s\nrefused: %v", other, f)
		}
		if placeless(want) != placeless(got) {
			t.Fatalf("%q\n%s\n%s", other, placeless(want), placeless(got))
		}
	})
}

func TestNoWrapperMakesAStatementSafe(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range goodTexts(t, tb) {
		c, _ := classifyText(tb, sql)
		if c.SafeRead {
			continue
		}
		bare := strings.TrimRight(sql, "; \n")
		for _, wrapped := range []string{
			"SELECT * FROM (" + bare + "\n) x", "WITH x AS (" + bare + "\n) SELECT 1", "EXPLAIN " + bare, bare + "\nUNION ALL " + bare,
			"SELECT 1 WHERE EXISTS (" + bare + "\n)", "SELECT ARRAY(" + bare + "\n)", "SELECT 1 ORDER BY (SELECT 1 FROM (" + bare + "\n) x)",
			"SELECT * FROM a, LATERAL (" + bare + "\n) x", "VALUES ((SELECT 1 FROM (" + bare + "\n) x))",
		} {
			c, f := classifyText(tb, wrapped)
			require.False(t, f == nil && c.SafeRead, wrapped)
		}
	}
}

// expressions are the kinds of node that stand where an expression may.
var expressions = []string{
	"A_Const", "ColumnRef", "A_Expr", "FuncCall", "TypeCast", "ParamRef", "BoolExpr", "SubLink", "CaseExpr", "CoalesceExpr", "A_ArrayExpr",
	"RowExpr", "NullTest", "A_Indirection", "SQLValueFunction", "MinMaxExpr", "CollateClause", "XmlExpr",
}

// eachExpression calls visit with every object of a JSON tree that is such a
// node, after putting with in its place.
func eachExpression(v any, with map[string]any, visit func()) {
	switch v := v.(type) {
	case []any:
		for i := range v {
			swap(v[i], with, func(n any) { v[i] = n }, visit)
		}
	case map[string]any:
		for k := range v {
			swap(v[k], with, func(n any) { v[k] = n }, visit)
		}
	}
}

func swap(old any, with map[string]any, put func(any), visit func()) {
	if node, ok := old.(map[string]any); ok && len(node) == 1 {
		for name := range node {
			if slices.Contains(expressions, name) {
				put(with)
				visit()
				put(old)
			}
		}
	}
	eachExpression(old, with, visit)
}

func jsonTree(t *testing.T, sql string) map[string]any {
	text, err := pg.ParseToJSON(sql)
	require.NoError(t, err)
	var tree map[string]any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	require.NoError(t, d.Decode(&tree))
	return tree
}

func TestAnUnknownCallAnywhereEndsSafety(t *testing.T) {
	tb := newTestTables(t, Config{})
	evil := map[string]any{"FuncCall": map[string]any{"funcname": []any{map[string]any{"String": map[string]any{"sval": "evil"}}}}}
	tried := 0
	for _, sql := range ordinaryReads {
		s, f := guard(sql, 1<<18)
		require.Nil(t, f)
		tree := jsonTree(t, sql)
		eachExpression(tree, evil, func() {
			changed, err := json.Marshal(tree)
			require.NoError(t, err)
			c, f := tb.facts(parsed{JSON: changed}, sql, &s)
			require.Nil(t, f)
			require.Contains(t, c.Functions, "public.evil", "%s", changed)
			require.False(t, c.SafeRead)
			tried++
		})
		same, err := json.Marshal(tree)
		require.NoError(t, err)
		c, f := tb.facts(parsed{JSON: same}, sql, &s)
		require.True(t, f == nil && c.SafeRead, "the tree is as it was")
	}
	require.Greater(t, tried, 700)
}

func TestDeparsingAndParsingAgainKeepsTheFacts(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range ordinaryReads {
		want := mustClassify(t, tb, sql)
		parsed, err := pg.Parse(sql)
		require.NoError(t, err)
		again, err := pg.Deparse(parsed)
		require.NoError(t, err)
		got := mustClassify(t, tb, again)
		want.Fingerprint, got.Fingerprint = "", ""
		require.Equal(t, placeless(want), placeless(got), again)
	}
}

// An entry that nobody knows can only take safety away, whichever it is.
func TestForgettingAnEntryMakesNothingSafe(t *testing.T) {
	tb := newTestTables(t, Config{})
	type sample struct {
		sql  string
		json []byte
		scan scan
	}
	var unsafe []sample
	for _, sql := range goodTexts(t, tb) {
		s, f := guard(sql, 1<<18)
		require.Nil(t, f)
		p, f := parseTree(sql)
		require.Nil(t, f)
		if c, _ := classifyText(tb, sql); !c.SafeRead {
			unsafe = append(unsafe, sample{sql, slices.Clone(p.JSON), s})
		}
		p.release()
	}
	tried := 0
	for i := range tb.schema.fields {
		f := &tb.schema.fields[i]
		if f.act == actUnknown {
			continue
		}
		kept := f.act
		f.act = actUnknown
		for _, s := range unsafe {
			if !bytes.Contains(s.json, []byte(f.quoted)) {
				continue // nothing in this tree is looked up under that name
			}
			c, _ := tb.facts(parsed{JSON: s.json}, s.sql, &s.scan)
			require.False(t, c.SafeRead, "%s without the entry for %s", s.sql, f.name)
			tried++
		}
		f.act = kept
	}
	require.Greater(t, tried, 50000)
}

func TestANodeWithoutAnEntryIsUnknown(t *testing.T) {
	tb := newTestTables(t, Config{})
	sql := "SELECT a FROM t WHERE b IS NULL"
	s, _ := guard(sql, 1<<18)
	p, f := parseTree(sql)
	require.Nil(t, f)
	text := string(p.JSON)
	for what, changed := range map[string]string{
		"node":       strings.Replace(text, `"NullTest"`, `"NewTest"`, 1),
		"analysed":   strings.Replace(text, `"NullTest"`, `"Var"`, 1),
		"field":      strings.Replace(text, `"whereClause"`, `"whenClause"`, 1),
		"enum value": strings.Replace(text, `"IS_NULL"`, `"IS_MAYBE"`, 1),
		"undumped":   strings.Replace(text, `{"String":{"sval":"b"}}`, `{}`, 1),
	} {
		require.NotEqual(t, text, changed, what)
		c, f := tb.facts(parsed{JSON: []byte(changed)}, sql, &s)
		require.Nil(t, f, what)
		require.Equal(t, ClassUnknown, c.Class, what)
		require.Contains(t, c.RiskSignals, SignalUnknownNode, what)
		require.False(t, c.SafeRead)
	}
	for _, cut := range []int{0, 1, len(text) / 2, len(text) - 1} {
		_, f := tb.facts(parsed{JSON: []byte(text[:cut])}, sql, &s)
		require.NotNil(t, f, "a tree that ends early is never read as whole")
	}
	_, f = tb.facts(parsed{JSON: []byte(strings.Replace(text, "160001", "170000", 1))}, sql, &s)
	require.NotNil(t, f, "another grammar")
}

func FuzzFacts(f *testing.F) {
	tb := newTestTables(f, Config{})
	for _, sql := range sampleTexts(f) {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		c, refused := classifyText(tb, sql)
		if refused != nil {
			return
		}
		again, _ := classifyText(tb, sql)
		require.Equal(t, c, again)
		requireSound(t, &c)
	})
}

// requireSound holds what is true of every classification.
func requireSound(t *testing.T, c *Classification) {
	t.Helper()
	require.Equal(t, c.Class == ClassRead && len(c.RiskSignals) == 0, c.SafeRead)
	require.Equal(t, c.SafeRead, c.Run == RunReadFence)
	require.Contains(t, c.QueryTypes, c.QueryType)
	require.Contains(t, classes, c.Class)
	if c.SafeRead {
		require.Contains(t, []string{TypeSelect, TypeExplain, TypeShow}, c.QueryType)
		require.Empty(t, c.TablesWritten)
	}
	for _, list := range [][]string{c.QueryTypes, c.TablesRead, c.TablesWritten, c.ColumnsWritten, c.Functions, c.RiskSignals, c.Flags, c.Where, c.Advice} {
		require.NotNil(t, list)
		require.True(t, slices.IsSorted(list))
		require.LessOrEqual(t, len(list), maxFacts)
		require.Len(t, slices.Compact(slices.Clone(list)), len(list))
	}
	for _, s := range c.Signals {
		require.Contains(t, c.RiskSignals, s.Signal)
		require.NotEmpty(t, s.Severity)
	}
}
