package classify

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	pg "github.com/pganalyze/pg_query_go/v5"
	"github.com/stretchr/testify/require"
)

// mutateFolder is a folder of statements as `make oracle` writes them: all of them
// are mutated, in every way.
const mutateFolder = "CLASSIFY_MUTATE"

// A piece is a token of a text with what stands in front of it.
type piece struct {
	gap, word string
	kind      tokenKind
}

// cutPieces cuts a text; its comments are in the gaps. The last piece is only a gap.
func cutPieces(sql string) []piece {
	var all []piece
	at := 0
	for l := newLexer(sql); ; {
		kind := l.next()
		if kind == tokenEnd {
			return append(all, piece{gap: sql[at:]})
		}
		all = append(all, piece{gap: sql[at:l.start], word: sql[l.start:l.pos], kind: kind})
		at = l.pos
	}
}

func join(all []piece) string {
	var b strings.Builder
	for _, p := range all {
		b.WriteString(p.gap + p.word)
	}
	return b.String()
}

// A mutation says the same in another way. One that writes tokens otherwise has
// to leave the parser's tree as it was, places aside: what does not is no
// mutation, such as a keyword in quotes. One that writes another statement has no
// tree to be held against; the table below says what of the facts it may change.
type mutation struct {
	name     string
	token    func(r *rand.Rand, all []piece, i int) string // the token written otherwise; "" where it can't be
	rewrite  func(sql string, c *Classification) string    // the statement; "" where it can't be
	unfolded func(tree string) string                      // the tree as it was before, where a token changes it in a known way
}

var mutations = []mutation{
	{name: "case", token: otherCase},
	{name: "gaps", token: otherGap},
	{name: "quoted names", token: quotedName},
	{name: "names in Unicode escapes", token: escapedName},
	{name: "dollar quotes", token: dollarQuoted},
	{name: "backslash escapes", token: backslashed},
	{name: "Unicode escapes", token: unicodeEscaped},
	{name: "CAST for ::", token: castWord},
	{name: "a cast of a number", token: castNumber, unfolded: withoutNumberCasts},
	{name: "brackets around a constant", token: bracketed},
	{name: "brackets around all", rewrite: ofSelect("(", ")")},
	{name: "subquery", rewrite: ofSelect("SELECT * FROM (", ") AS mutation_wrap")},
	{name: "CTE around", rewrite: ofSelect("WITH mutation_wrap AS (", ") SELECT * FROM mutation_wrap")},
	{name: "CTE in front", rewrite: inFront("WITH mutation_wrap AS (SELECT 1) ")},
	{name: "parameters", rewrite: parameterized},
	{name: "EXPLAIN", rewrite: inFront("EXPLAIN ")},
}

// A difference is what a mutation may change of one fact, of all where none is
// named: values that it adds to a list or takes from it; any where the whole fact
// may be another one.
type difference struct {
	mutation, fact string
	adds, drops    []string
	any            bool
	confusable     bool // only where the statement as it was raises confusable_text
	why            string
}

var mayDiffer = []difference{
	{mutation: "subquery", fact: "fingerprint", any: true, why: "it is of the whole statement"},
	{mutation: "subquery", fact: "flags", drops: []string{"limit"}, why: "a limit counts at the root alone"},
	{mutation: "subquery", fact: "advice", any: true, why: "it is about the root"},
	{mutation: "CTE around", fact: "fingerprint", any: true, why: "it is of the whole statement"},
	{mutation: "CTE around", fact: "flags", adds: []string{"cte"}, drops: []string{"limit"}, why: "there is a CTE, and a limit counts at the root alone"},
	{mutation: "CTE around", fact: "advice", any: true, why: "it is about the root"},
	{mutation: "CTE in front", fact: "fingerprint", any: true, why: "it is of the whole statement"},
	{mutation: "CTE in front", fact: "flags", adds: []string{"cte"}, why: "there is a CTE"},
	{mutation: "CTE in front", fact: "query_types", adds: []string{TypeSelect}, why: "the CTE is a SELECT"},
	{mutation: "EXPLAIN", fact: "fingerprint", any: true, why: "it is of the whole statement"},
	{mutation: "EXPLAIN", fact: "flags", adds: []string{"explain"}, drops: []string{"limit"}, why: "that is what it is, and a limit counts at the root alone"},
	{mutation: "EXPLAIN", fact: "query_type", any: true, why: "the root is the EXPLAIN"},
	{mutation: "EXPLAIN", fact: "query_types", adds: []string{TypeExplain}, why: "the root is the EXPLAIN"},
	{mutation: "EXPLAIN", fact: "advice", any: true, why: "nothing is executed"},
	{mutation: "parameters", fact: "flags", adds: []string{"parameters"}, why: "there are parameters"},
	{mutation: "parameters", fact: "key_params", any: true, why: "there are parameters"},
	{mutation: "parameters", fact: "fingerprint", any: true, why: "a number behind a sign is one constant with it, and a parameter is not"},
	{mutation: "parameters", fact: "risk_signals", adds: []string{SignalDelayFunction}, why: "a jsonpath or an XPath that the text does not show may take any time"},
	{mutation: "parameters", fact: "signals", any: true, why: "as risk_signals"},
	{mutation: "parameters", fact: "class", any: true, why: "as risk_signals"},
	{mutation: "parameters", fact: "safe_read", any: true, why: "as risk_signals"},
	{mutation: "parameters", fact: "run", any: true, why: "as risk_signals"},
	{mutation: "a cast of a number", fact: "fingerprint", any: true, why: "the cast is a node of its own"},
	{mutation: "gaps", any: true, confusable: true, why: "what cannot be seen in a comment goes with the comment"},
	{mutation: "names in Unicode escapes", any: true, confusable: true, why: "a letter that is spelled out is taken for no other one"},
	{mutation: "backslash escapes", any: true, confusable: true, why: "a character that is spelled out can be seen"},
	{mutation: "Unicode escapes", any: true, confusable: true, why: "a character that is spelled out can be seen"},
}

func isQuote(w string) bool { return strings.HasPrefix(w, "'") }

// literalText is the text of a plain literal in one piece.
func literalText(p piece) (string, bool) {
	if p.kind != tokenString || !isQuote(p.word) || strings.ContainsAny(p.word[1:len(p.word)-1], "'\n\r") {
		return "", false
	}
	return p.word[1 : len(p.word)-1], true
}

func otherCase(r *rand.Rand, all []piece, i int) string {
	if all[i].kind != tokenWord {
		return ""
	}
	return strings.Map(func(c rune) rune {
		if r.IntN(2) == 0 {
			return upperASCII(c)
		}
		return c
	}, all[i].word)
}

var mutationGaps = []string{" ", "\n", "\t", "\r\n", "\f", " /* ; DROP TABLE x */ ", "\n--'\n", " /*/*'*/$$*/ ", " "}

// otherGap puts another gap in front of a token. Between two literals a line end
// has a meaning; behind a word that looks ahead a comment does.
func otherGap(r *rand.Rand, all []piece, i int) string {
	if i == 0 || all[i].kind.isLiteral() && all[i-1].kind.isLiteral() {
		return ""
	}
	gaps := mutationGaps
	if slices.Contains(looksAhead, strings.ToUpper(all[i-1].word)) {
		gaps = gaps[:5]
	}
	return gaps[r.IntN(len(gaps))] + all[i].word
}

// quotedName leaves keywords as they are: a name in quotes is none.
func quotedName(_ *rand.Rand, all []piece, i int) string {
	if all[i].kind != tokenWord || isQuote(all[i+1].word) || isKeyword(all[i].word) {
		return ""
	}
	return `"` + strings.Map(lowerASCII, all[i].word) + `"`
}

func isKeyword(word string) bool {
	scan, err := pg.Scan(word)
	return err != nil || len(scan.Tokens) != 1 || scan.Tokens[0].KeywordKind != pg.KeywordKind_NO_KEYWORD
}

func lowerASCII(c rune) rune {
	if c >= 'A' && c <= 'Z' {
		return c - 'A' + 'a'
	}
	return c
}

func escapedName(r *rand.Rand, all []piece, i int) string {
	quoted := all[i].word
	if all[i].kind == tokenWord {
		quoted = quotedName(r, all, i)
	}
	if all[i].kind != tokenWord && all[i].kind != tokenQuotedName || !strings.HasPrefix(quoted, `"`) || strings.Contains(quoted[1:len(quoted)-1], `"`) {
		return ""
	}
	return `U&"` + escapes(quoted[1:len(quoted)-1], func(c rune) string { return fmt.Sprintf(`\%04x`, c) }) + `"`
}

// escapes writes every other character by write.
func escapes(text string, write func(rune) string) string {
	var b strings.Builder
	for i, c := range []rune(text) {
		if (i%2 == 0 || c == '\\') && c <= 0xffff {
			b.WriteString(write(c))
		} else {
			b.WriteRune(c)
		}
	}
	return b.String()
}

func dollarQuoted(_ *rand.Rand, all []piece, i int) string {
	text, ok := literalText(all[i])
	if !ok || strings.Contains(text, "$") {
		return ""
	}
	return " $q$" + text + "$q$"
}

func backslashed(_ *rand.Rand, all []piece, i int) string {
	text, ok := literalText(all[i])
	if !ok {
		return ""
	}
	return " E'" + escapes(text, func(c rune) string { return fmt.Sprintf(`\u%04x`, c) }) + "'"
}

func unicodeEscaped(_ *rand.Rand, all []piece, i int) string {
	text, ok := literalText(all[i])
	if !ok {
		return ""
	}
	return " U&'" + escapes(text, func(c rune) string { return fmt.Sprintf(`\%04x`, c) }) + "'"
}

// castWord takes the literal in front of :: and the one word behind it along.
func castWord(_ *rand.Rand, all []piece, i int) string {
	if !all[i].kind.isLiteral() || i+3 >= len(all) || all[i+1].kind != tokenCast || all[i+2].kind != tokenWord {
		return ""
	}
	if next := all[i+3].word; next == "." || next == "(" || next == "[" || all[i+3].kind == tokenWord || i > 0 && all[i-1].kind == tokenOperator {
		return ""
	}
	word := " CAST(" + all[i].word + " AS " + all[i+2].word + ")"
	all[i+1], all[i+2] = piece{}, piece{}
	return word
}

var wholeNumber = regexp.MustCompile(`^[0-9]{1,9}$`)

// castNumber casts a whole number to the type that it has. Behind an operator it
// is an operand, and no place in a list.
func castNumber(_ *rand.Rand, all []piece, i int) string {
	if !wholeNumber.MatchString(all[i].word) || i == 0 || all[i-1].kind != tokenOperator {
		return ""
	}
	return " (" + all[i].word + "::pg_catalog.int4)"
}

var numberCast = regexp.MustCompile(`\{"TypeCast":\{"arg":(\{"A_Const":\{"ival":\{(?:"ival":[0-9]+)?\}\}\}),"typeName":\{"names":\[\{"String":\{"sval":"pg_catalog"\}\},\{"String":\{"sval":"int4"\}\}\],"typemod":-1\}\}\}`)

func withoutNumberCasts(tree string) string { return numberCast.ReplaceAllString(tree, "$1") }

func bracketed(_ *rand.Rand, all []piece, i int) string {
	if !all[i].kind.isLiteral() || isQuote(all[i].word) && i > 0 && all[i-1].kind == tokenWord {
		return ""
	}
	return "(" + all[i].word + ")"
}

// bare is a statement without what may follow it.
func bare(sql string) string {
	all := cutPieces(sql)
	all = all[:len(all)-1] // comments behind it would hide what is added
	for len(all) > 0 && all[len(all)-1].kind == tokenSemicolon {
		all = all[:len(all)-1]
	}
	return join(all)
}

// ofSelect wraps a SELECT that may stand inside another one.
func ofSelect(before, after string) func(string, *Classification) string {
	return func(sql string, c *Classification) string {
		if c.QueryType != TypeSelect || slices.Contains(c.RiskSignals, SignalDataModifyingCTE) {
			return "" // what writes stands at the top alone
		}
		return before + bare(sql) + after
	}
}

// queries are the types of statements that take parameters, WITH and EXPLAIN.
var queries = []string{TypeSelect, TypeInsert, TypeUpdate, TypeDelete, TypeMerge}

// inFront puts a text in front of a query.
func inFront(text string) func(string, *Classification) string {
	return func(sql string, c *Classification) string {
		if !slices.Contains(queries, c.QueryType) || strings.HasPrefix(text, "WITH") && slices.Contains(c.Flags, "cte") {
			return ""
		}
		return text + bare(sql)
	}
}

// parameterized puts parameters in the place of constants that are operands, in what
// a server takes with parameters.
func parameterized(sql string, c *Classification) string {
	if !slices.Contains(queries, c.QueryType) {
		return ""
	}
	all := cutPieces(sql)
	n := c.Params
	for i := 1; i < len(all); i++ {
		if all[i].kind.isLiteral() && all[i-1].kind == tokenOperator && all[i].kind != tokenParam {
			n++
			all[i].word = fmt.Sprintf(" $%d", n)
		}
	}
	if n == c.Params {
		return ""
	}
	return join(all)
}

var treePlace = regexp.MustCompile(`,?"(location|stmt_location|stmt_len)":-?[0-9]+`)

// placelessTree is what the parser makes of a text, without places; "" where it
// refuses.
func placelessTree(sql string) string {
	tree, err := pg.ParseToJSON(sql)
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(treePlace.ReplaceAllString(tree, ""), "{,", "{")
}

// mutate writes a statement in another way; "" where that can't be.
func (m *mutation) mutate(r *rand.Rand, sql string, c *Classification) string {
	if m.rewrite != nil {
		return m.rewrite(sql, c)
	}
	all := cutPieces(sql)
	changed := false
	for i := range len(all) - 1 {
		if all[i].word == "" || r.IntN(4) == 0 {
			continue
		}
		if other := m.token(r, all, i); other != "" {
			if m.name == "gaps" {
				all[i].gap = ""
			}
			all[i].word, changed = other, true
		}
	}
	if !changed {
		return ""
	}
	return join(all)
}

// A mutationCount is what became of one kind of mutation.
type mutationCount struct{ made, other, refused int }

// tryMutation mutates one statement and compares the facts.
func tryMutation(t *testing.T, tb *tables, m *mutation, r *rand.Rand, sql string, c *Classification, count *mutationCount) {
	t.Helper()
	text := m.mutate(r, sql, c)
	if text == "" {
		return
	}
	if m.rewrite == nil {
		tree := placelessTree(text)
		if m.unfolded != nil {
			tree = m.unfolded(tree)
		}
		if tree != placelessTree(sql) {
			count.other++
			return
		}
	}
	got, f := classifyText(tb, text)
	if f != nil {
		count.refused++
		return
	}
	count.made++
	if wrong := unlike(t, m.name, c, &got); len(wrong) > 0 {
		t.Errorf("%s: %s\n%s\n%s", m.name, strings.Join(wrong, "\n\t"), sql, text)
	}
}

// unlike names the facts that a mutation changed though it may not.
func unlike(t *testing.T, name string, before, after *Classification) (wrong []string) {
	a, b := factsOf(t, before), factsOf(t, after)
	for _, fact := range slices.Sorted(maps.Keys(a)) {
		var may difference
		for _, d := range mayDiffer {
			if d.mutation == name && (d.fact == fact || d.fact == "" && d.confusable == slices.Contains(before.RiskSignals, SignalConfusableText)) {
				may = d
			}
		}
		if may.any || same(a[fact], b[fact], &may) {
			continue
		}
		wrong = append(wrong, fmt.Sprintf("%s was %v and is %v", fact, a[fact], b[fact]))
	}
	if after.SafeRead && !before.SafeRead && !slices.Contains(before.RiskSignals, SignalConfusableText) {
		wrong = append(wrong, "safe_read came of it") // whatever the table says
	}
	return wrong
}

func factsOf(t *testing.T, c *Classification) map[string]any {
	var facts map[string]any
	require.NoError(t, json.Unmarshal([]byte(placeless(*c)), &facts))
	facts["key_params"] = fmt.Sprint(c.KeyParams)
	return facts
}

func same(a, b any, may *difference) bool {
	before, isList := a.([]any)
	after, _ := b.([]any)
	if !isList || len(may.adds)+len(may.drops) == 0 {
		return fmt.Sprint(a) == fmt.Sprint(b)
	}
	for _, v := range before {
		if !slices.Contains(after, v) && !slices.Contains(may.drops, v.(string)) {
			return false
		}
	}
	for _, v := range after {
		if !slices.Contains(before, v) && !slices.Contains(may.adds, v.(string)) {
			return false
		}
	}
	return true
}

// A mutation that keeps the meaning keeps the facts: each statement of the corpus
// and of the tests is mutated once in each way, where the seed says. `make oracle`
// adds those of PostgreSQL's regression suite.
func TestAMutationKeepsTheFacts(t *testing.T) {
	if folder := os.Getenv(mutateFolder); folder != "" {
		for major := 15; major <= 18; major++ {
			t.Run(strconv.Itoa(major), func(t *testing.T) {
				mutateAll(t, major, filepath.Join(folder, fmt.Sprintf("statements-%d.jsonl", major)))
			})
		}
	}
	tb := newTestTables(t, Config{})
	counts := make([]mutationCount, len(mutations))
	for n, sql := range sampleTexts(t) {
		c, f := classifyText(tb, sql)
		if f != nil {
			continue
		}
		r := rand.New(rand.NewPCG(19, uint64(n)))
		for i := range mutations {
			tryMutation(t, tb, &mutations[i], r, sql, &c, &counts[i])
		}
	}
	requireMutations(t, counts, 10)
}

// The comparison can fail: a change of meaning is no mutation.
func TestAChangeOfMeaningIsNoMutation(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, row := range [][3]string{
		{"case", "DELETE FROM t WHERE id = 1", "DELETE FROM t"},
		{"gaps", "SELECT lower(a) FROM t", "SELECT evil(a) FROM t"},
		{"subquery", "SELECT a FROM t LIMIT 1", "SELECT * FROM (SELECT a FROM u LIMIT 1) x"},
		{"CTE around", "SELECT a FROM t", "WITH x AS (SELECT a FROM t FOR UPDATE) SELECT * FROM x"},
		{"EXPLAIN", "SELECT a FROM t", "EXPLAIN ANALYZE SELECT a FROM t"},
		{"names in Unicode escapes", "SELECT a FROM t", "SELECT a FROM u"},
		{"a cast of a number", "SELECT a FROM t WHERE id = 1", "SELECT a FROM t WHERE id = (1::evil)"},
	} {
		before, after := mustClassify(t, tb, row[1]), mustClassify(t, tb, row[2])
		require.NotEmpty(t, unlike(t, row[0], &before, &after), "%q", row)
		require.Empty(t, unlike(t, row[0], &before, &before), "%q", row)
	}
}

// requireMutations holds that each kind was tried, and that most of what was made was none other.
func requireMutations(t *testing.T, counts []mutationCount, least int) {
	t.Helper()
	for i, c := range counts {
		t.Logf("%s: %d, and %d that are none, %d refused", mutations[i].name, c.made, c.other, c.refused)
		require.Greater(t, c.made, least, mutations[i].name)
		require.Less(t, c.refused, c.made/4+5, mutations[i].name)
	}
}

// mutateAll mutates every statement of a server's regression suite, in every way,
// as `make oracle` has written them down.
func mutateAll(t *testing.T, major int, path string) {
	tb := newTestTables(t, Config{ServerMajor: major})
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	counts := make([]mutationCount, len(mutations))
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var line struct{ SQL string }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line))
		if seen[line.SQL] || len(line.SQL) > inProcessBytes {
			continue
		}
		seen[line.SQL] = true
		c, f := classifyText(tb, line.SQL)
		if f != nil {
			continue
		}
		r := rand.New(rand.NewPCG(uint64(major), uint64(len(seen))))
		for i := range mutations {
			tryMutation(t, tb, &mutations[i], r, line.SQL, &c, &counts[i])
		}
	}
	require.NoError(t, lines.Err())
	requireMutations(t, counts, 500)
}
