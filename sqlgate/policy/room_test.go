package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// manyRules is a document of n rules that all ask for the names of one list, and whose ids
// begin with id.
func manyRules(t testing.TB, id string, n, names int, mark string) *Policy {
	t.Helper()
	var b strings.Builder
	b.WriteString("schema: gate.policy/v1\nname: x\nversion: 1.0.0\nfacts: facts/v1\nlists:\n  l: [")
	for i := range names {
		fmt.Fprintf(&b, "%q,", strings.Repeat("<", 200)+mark+fmt.Sprint(i))
	}
	b.WriteString("]\nrules:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - { id: %s%d, decision: BLOCK, reason_code: rea, match: { actor: [$l] } }\n", id, i)
	}
	p, report := Load([]byte(b.String()), Options{})
	require.True(t, report.Valid, "%v", report.Findings)
	return p
}

// What a list of a few hundred names costs stands in the answers once, and not once for
// each rule that asks for it.
func TestAnswersDoNotGrowByRulesTimesNames(t *testing.T) {
	was, is := manyRules(t, "r", 200, 450, "a"), manyRules(t, "r", 200, 450, "b")
	d := Diff(was, is)
	text, err := json.Marshal(d)
	require.NoError(t, err)
	require.Less(t, len(text), 16<<20)
	require.Equal(t, 200, d.Summary.Modified)
	require.Len(t, d.Changes[0].Fields[0].Added, 450)
	last := d.Changes[199].Fields[0]
	require.Equal(t, []string{"and 450 more"}, last.Added)
	require.Equal(t, []string{"and 450 more"}, last.Removed)

	trace := was.Trace(&Facts{Actor: "ana", QueryType: "INSERT", Class: "write"})
	text, err = json.Marshal(trace)
	require.NoError(t, err)
	require.Less(t, len(text), 16<<20)
	wants := func(rule string) any {
		for _, entry := range trace {
			if entry.RuleID == rule {
				return entry.Checks[0].Want
			}
		}
		return nil
	}
	require.Len(t, wants("r0"), 450)
	require.Equal(t, []string{"and 450 more"}, wants("r199"))
}

// Rules that only changed their names are found without a comparison of each with each.
func TestManyRenamedRulesAreFound(t *testing.T) {
	d := Diff(manyRules(t, "a", 500, 190, ""), manyRules(t, "b", 500, 190, ""))
	require.Equal(t, DifferenceSummary{Renamed: 500}, d.Summary)
	require.Equal(t, "a7", d.Changes[7].RenamedFrom)
}

// A finding holds the way to its place, so a long key that many stand below is refused
// before anything is said of them.
func TestFindingsBelowALongKeyAreNotMade(t *testing.T) {
	for _, document := range []string{
		"? \"" + strings.Repeat("x", 100_000) + "\"\n: {" + strings.Repeat("a,", 20_000) + "}\n",
		"x: {" + strings.Repeat("a,", 100_000) + "}\n",
		"x: [" + strings.Repeat("!a b,", 40_000) + "]\n",
		"name: x\nversion: 1.0.0\nfacts: facts/v1\nlists: {" + numbered("l%d: [a],", 5000) + "}\nrules: [{id: r, decision: BLOCK, reason_code: rea, match: {actor: [" + strings.Repeat("$qqqqqq,", 2000) + "]}}]\n",
	} {
		_, report := Load([]byte("schema: gate.policy/v1\n"+document), Options{})
		text, err := json.Marshal(report)
		require.NoError(t, err)
		require.Less(t, len(text), 1<<20)
		require.False(t, report.Valid)
	}
}

func numbered(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// A test that fails names a few of the rules that matched, however many do.
func TestAFailingTestNamesAFewRules(t *testing.T) {
	document := "schema: gate.policy/v1\nname: x\nversion: 1.0.0\nfacts: facts/v1\nrules:\n" +
		numbered("  - { id: "+strings.Repeat("r", 50)+"%d, decision: BLOCK, reason_code: rea, match: {} }\n", 400) +
		"tests:\n" + numbered("  - { name: t%d, sql: SELECT 1, expect: { decision: BLOCK, matched: [x] } }\n", 500)
	p, report := Load([]byte(document), Options{})
	require.True(t, report.Valid, "%v", report.Findings)
	p.Check(&report, nil, func(string) (Facts, error) { return Facts{QueryType: "SELECT", Class: "read"}, nil }, 0)
	text, err := json.Marshal(report)
	require.NoError(t, err)
	require.Less(t, len(text), 8<<20)
	require.Contains(t, report.Tests.Failed[0].Got, "and 370 more")
}
