package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostile documents: each must be answered with findings, quickly and without
// taking the process along.
var hostileDocuments = []string{
	strings.Repeat("[", 200_000),
	strings.Repeat("{a: ", 60_000),
	strings.Repeat("- ", 100_000),
	strings.Repeat("a:\n ", 50_000),
	"a: &a [x]\nb: [" + strings.Repeat("*a,", 50_000) + "]",
	"a: !!binary " + strings.Repeat("A", 200_000),
	"? [a]\n: b\n",
	"\ufeffa: b",
	"%YAML 9.9\n---\na: b",
	"a: \"" + strings.Repeat("\\x00", 50_000) + "\"",
	strings.Repeat("#\n", 100_000),
	head + "lists: {" + manyLists(8000) + "}\nrules:\n" + plainRule,
	ruleWith("BLOCK", "match: {}, when: '"+strings.Repeat("!", 2000)+"true'"),
	ruleWith("BLOCK", "match: {}, when: '"+strings.Repeat("(", 1000)+"true"+strings.Repeat(")", 1000)+"'"),
	ruleWith("BLOCK", "match: {}, when: '"+strings.Repeat("[", 1000)+strings.Repeat("]", 1000)+" == []'"),
	ruleWith("BLOCK", "match: {}, when: \"actor.matches('"+strings.Repeat("(", 900)+strings.Repeat(")*", 500)+"')\""),
	ruleWith("BLOCK", "match: {}, when: \""+strings.Repeat("flags.exists(a, ", 60)+"true"+strings.Repeat(")", 60)+"\""),
	ruleWith("BLOCK", "match: {}, when: "+strings.Repeat("approved ? approved : ", 90)+"approved"),
	"\x00", "a: \x00", ": : :", "!!map {a: b}", "- - - - -", "'", "\"\\", "|", ">\n", "a: |9\n",
}

// manyLists is a chain in which each list holds the one before it.
func manyLists(n int) string {
	var b strings.Builder
	b.WriteString("l0: [a.b]")
	for i := 1; i < n; i++ {
		b.WriteString(", l" + itoa(i) + ": [$l" + itoa(i-1) + ", a.t" + itoa(i) + "]")
	}
	return b.String()
}

func TestHostileDocumentsAreAnswered(t *testing.T) {
	for _, document := range hostileDocuments {
		_, report := Load([]byte(document), Options{})
		require.LessOrEqual(t, len(report.Findings)+len(report.Warnings), maxFindings+1)
		if !report.Valid {
			require.NotEmpty(t, report.Findings)
		}
		ParseCorpus([]byte(document))
	}
}

func TestExpandedListsAreBounded(t *testing.T) {
	var names []string
	for i := range maxPatterns + 1 {
		names = append(names, "a.t"+itoa(i))
	}
	lists := "lists: { l: [" + strings.Join(names[:maxPatterns], ", ") + "], m: [x.y] }\n"
	_, report := Load([]byte(ruleWith("BLOCK", "match: { tables_written: [$l] }")+lists), Options{})
	require.NoError(t, report.Err())
	_, report = Load([]byte(ruleWith("BLOCK", "match: { tables_written: [$l, $m] }")+lists), Options{})
	require.Len(t, withCode(report, codeLimit), 1)

	var rules strings.Builder
	for i := range maxAllPatterns/maxPatterns + 1 {
		rules.WriteString(strings.Replace("  - { id: rN, decision: BLOCK, reason_code: r_r, match: { tables_written: [$l] } }\n", "rN", "r"+itoa(i), 1))
	}
	_, report = Load([]byte(rulesOf(rules.String())+lists), Options{})
	require.NotEmpty(t, withCode(report, codeLimit))
}

// A decision looks at each pattern for each name: what one may cost is bounded over all
// rules, and stars cost more.
func TestPatternsOnNamesAreBoundedForADecision(t *testing.T) {
	document := func(rules int, pattern, key string) []byte {
		var list, all strings.Builder
		for i := range maxPatterns {
			list.WriteString("'" + strings.Replace(pattern, "N", itoa(i), 1) + "', ")
		}
		for i := range rules {
			all.WriteString("  - { id: r" + itoa(i) + ", decision: BLOCK, reason_code: r_r, match: { " + key + ": [$l] } }\n")
		}
		return []byte(rulesOf(all.String()) + "lists: { l: [" + strings.TrimSuffix(list.String(), ", ") + "] }\n")
	}
	for _, c := range []struct {
		rules        int
		pattern, key string
		ok           bool
	}{
		{20, "a.tN", "tables_read", true},
		{20, "aN.*", "tables_read", true},
		{21, "a.tN", "tables_read", false},
		{90, "*a*N.*", "tables_read_only", false},
		{2, "*a*N.*", "tables_read", true},
		{3, "*a*N.*", "functions", false},
		{90, "botN*", "actor", true},
	} {
		_, report := Load(document(c.rules, c.pattern, c.key), Options{})
		found := withCode(report, codeLimit)
		require.Equal(t, c.ok, len(found) == 0, "%+v: %v", c, found)
		if !c.ok {
			require.Len(t, found, 1)
			require.Contains(t, found[0].Message, "20000")
		}
	}
}

// FuzzLoad: whatever the bytes are, there is a policy or an error to show, not
// both, and a policy decides.
func FuzzLoad(f *testing.F) {
	for _, document := range hostileDocuments {
		f.Add([]byte(document[:min(len(document), 4096)]))
	}
	for _, document := range [][]byte{exampleDocument, Starting(""), Sample(), baselineDocument} {
		f.Add(document)
	}
	for _, c := range findingCases {
		f.Add([]byte(c.bad))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		p, report := Load(document, Options{})
		if (p != nil) != report.Valid || report.Valid != (len(report.Findings) == 0) {
			t.Fatalf("valid %v with %v", report.Valid, report.Findings)
		}
		if p == nil {
			return
		}
		for _, facts := range []*Facts{&safeRead, &update, &doBlock} {
			if r := p.Decide(facts); facts == &doBlock && r.Decision == Allow && len(r.Lifted) == 0 {
				t.Fatalf("the floor did not hold: %+v", r)
			}
		}
	})
}
