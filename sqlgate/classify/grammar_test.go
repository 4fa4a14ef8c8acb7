package classify

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// grammarTexts reads testdata/grammar.sql, which together with the other
// samples uses every kind of node and every place of the grammar.
func grammarTexts(t testing.TB) []string {
	data, err := os.ReadFile("testdata/grammar.sql")
	require.NoError(t, err)
	var all []string
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") {
			all = append(all, strings.TrimSuffix(line, "\n"))
		}
	}
	return all
}

var evilCall = regexp.MustCompile(`\bevil\d?\(`)

// In the statements of the grammar each place that holds an expression calls a
// function of its own, and none of them is missed.
func TestACallIsSeenAtEveryPlaceOfTheGrammar(t *testing.T) {
	tb := newTestTables(t, Config{})
	calls := 0
	for _, sql := range grammarTexts(t) {
		c := mustClassify(t, tb, sql)
		require.False(t, c.SafeRead, sql)
		require.NotContains(t, c.RiskSignals, SignalUnknownNode, "%s: %+v", sql, c.Signals)
		for _, call := range evilCall.FindAllString(sql, -1) {
			require.Contains(t, c.Functions, "public."+strings.TrimSuffix(call, "("), sql)
			calls++
		}
	}
	require.Greater(t, calls, 65)
}

// neverParsed are places that the schema has and only the analyser fills.
var neverParsed = []string{"AlterOwnerStmt.relation", "CreateStmt.constraints"}

func TestTheSamplesUseEveryKindAndPlaceOfTheGrammar(t *testing.T) {
	tb := newTestTables(t, Config{})
	kinds, fields := map[uint16]bool{}, map[uint16]bool{}
	for _, sql := range goodTexts(t, tb) {
		p, f := parseTree(sql)
		require.Nil(t, f)
		own := tree{json: p.JSON}
		new(treeReader).read(tb.schema, &own)
		for _, e := range own.entries {
			kinds[e.msg], fields[e.field] = true, true
		}
		p.release()
	}
	var missing []string
	for i, m := range tb.schema.messages {
		if !m.known {
			continue
		}
		if !kinds[uint16(i)] {
			missing = append(missing, m.name)
		}
		for id := m.first; id != 0 && id < m.end; id++ {
			if fd := &tb.schema.fields[id]; fd.act >= actWalk && !fields[id] {
				missing = append(missing, m.name+"."+fd.name)
			}
		}
	}
	slices.Sort(missing)
	require.Equal(t, neverParsed, missing)
}
