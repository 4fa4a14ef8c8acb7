package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// withTests is a document of one blocking rule on UPDATE and the given tests.
func withTests(tests string) string {
	return ruleWith("BLOCK", "match: { query_types: [UPDATE] }") + "tests:\n" + tests
}

var known = map[string]Facts{"u": update, "s": safeRead}

// passing classifies the baseline as statements that nothing allows.
func passing(known map[string]Facts) Classifier {
	floor := map[string]bool{}
	cases, _ := Baseline()
	for _, c := range cases {
		floor[c.SQL] = true
	}
	return func(sql string) (Facts, error) {
		if floor[sql] {
			return Facts{Class: "unknown", RiskSignals: []string{"unknown_node"}}, nil
		}
		return classifyBy(known)(sql)
	}
}

func validated(t *testing.T, document string, corpora []Corpus, classify Classifier) Report {
	t.Helper()
	_, loaded := Load([]byte(document), Options{})
	require.NoError(t, loaded.Err())
	_, report := Validate([]byte(document), Options{}, corpora, classify)
	return report
}

func TestCases(t *testing.T) {
	for _, c := range []struct {
		name, expect  string
		expected, got string // both empty: the case passes
	}{
		{"decision", "{ decision: BLOCK }", "", ""},
		{"wrong decision", "{ decision: ALLOW }", "decision ALLOW", "decision BLOCK, by r (r_r)"},
		{"not", "{ not: ALLOW }", "", ""},
		{"wrong not", "{ not: BLOCK }", "decision other than BLOCK", "decision BLOCK"},
		{"reason", "{ decision: BLOCK, reason_code: r_r, rule_id: r }", "", ""},
		{"wrong reason", "{ decision: BLOCK, reason_code: other }", "reason_code other", "reason_code r_r"},
		{"wrong rule", "{ decision: BLOCK, rule_id: s }", "rule_id s", "rule_id r"},
		{"matched", "{ decision: BLOCK, matched: [r], observed: [] }", "", ""},
		{"wrong matched", "{ decision: BLOCK, matched: [] }", "matched []", "matched [r]"},
		{"wrong observed", "{ decision: BLOCK, observed: [r] }", "observed [r]", "observed []"},
		{"dry run", "{ decision: BLOCK, dry_run: none }", "", ""},
		{"wrong dry run", "{ decision: BLOCK, dry_run: allow }", "dry_run allow", "dry_run none"},
		{"missing signal", "{ decision: BLOCK, risk_signals: [cascade] }", "risk_signals with cascade", "risk_signals []"},
	} {
		t.Run(c.name, func(t *testing.T) {
			document := withTests("  - { name: the case, sql: u, expect: " + c.expect + " }\n")
			report := validated(t, document, nil, passing(known))
			require.Equal(t, c.expected == "", report.Valid)
			require.Equal(t, 1, report.Tests.Cases)
			if c.expected == "" {
				require.Equal(t, 1, report.Tests.Passed)
				require.Empty(t, withCode(report, codeTestFailed))
				return
			}
			require.Equal(t, []CaseFailure{{Name: "the case", SQL: "u", Expected: c.expected, Got: c.got, place: place{"/tests/0", 8, 5}}}, report.Tests.Failed)
			f := withCode(report, codeTestFailed)[0]
			require.Equal(t, 8, f.Line)
			require.Contains(t, f.Message, "expected "+c.expected+", got "+c.got)
		})
	}
}

func TestTheContextOfACaseReachesTheFacts(t *testing.T) {
	for key, value := range map[string]string{
		"actor": "ana", "app": "shop", "tenant": "t1", "role": "dba", "host": "h", "env": "staging", "tls_subject": "CN=x", "agent_id": "agt_1",
		"agent_tools_verified": "true", "mode": "approval_first", "approved": "true", "session_id": "s1", "channel": "mcp",
	} {
		t.Run(key, func(t *testing.T) {
			want := "[" + value + "]"
			if value == "true" {
				want = value
			}
			document := ruleWith("BLOCK", "match: { "+key+": "+want+" }") +
				"tests:\n  - { name: with, sql: s, context: { " + key + ": " + value + " }, expect: { decision: BLOCK } }\n" +
				"  - { name: without, sql: s, expect: { decision: ALLOW } }\n"
			report := validated(t, document, nil, passing(known))
			require.NoError(t, report.Err())
			require.Equal(t, 2, report.Tests.Passed)
		})
	}
	report := validated(t, ruleWith("BLOCK", "match: { env: [prod], mode: [enforce] }")+
		"tests:\n  - { name: n, sql: s, expect: { decision: BLOCK } }\n", nil, passing(known))
	require.NoError(t, report.Err(), "prod and enforce are what a case means without them")
}

func TestARefusalIsNotAllowAndNoDecision(t *testing.T) {
	p := load(t, rulesOf(plainRule))
	refuse := func(code fault.Code) Classifier {
		return func(string) (Facts, error) { return Facts{}, fault.New(code, "no") }
	}
	notAllow := []Case{{Name: "c", SQL: "x", Expect: Expectation{Not: Allow}}}
	for _, code := range refusals {
		require.Equal(t, 1, RunCases(p, notAllow, refuse(code)).Passed, code)
	}
	for _, e := range []Expectation{{Decision: Block}, {Not: Block}, {Decision: Allow}, {Not: Allow, ReasonCode: "x"}, {Not: Allow, Matched: &[]string{}}} {
		report := RunCases(p, []Case{{SQL: "x", Expect: e}}, refuse(fault.MultiStatementRejected))
		require.Len(t, report.Failed, 1, "%+v", e)
		require.Equal(t, "refused before any rule: multi_statement_rejected", report.Failed[0].Got)
	}
}

func TestAFailingClassifierPassesNoCase(t *testing.T) {
	p := load(t, rulesOf(plainRule))
	for _, err := range []error{errors.New("disk on fire"), fault.New(fault.Internal, "no child")} {
		report := RunCases(p, []Case{{SQL: "x", Expect: Expectation{Not: Allow}}}, func(string) (Facts, error) { return Facts{}, err })
		require.Len(t, report.Failed, 1)
		require.Contains(t, report.Failed[0].Got, "the classifier failed")
	}
}

func TestCoverage(t *testing.T) {
	document := rulesOf("  - { id: decides, decision: BLOCK, reason_code: r_r, match: { query_types: [UPDATE] } }\n" +
		"  - { id: only-matches, decision: REQUIRE_APPROVAL, reason_code: r_r, match: { class: [write] } }\n" +
		"  - { id: watches, decision: BLOCK, reason_code: r_r, mode: observe, match: { class: [write] } }\n" +
		"  - { id: never, decision: BLOCK, reason_code: r_r, match: { class: [dcl] } }\n")
	report := validated(t, document+"tests:\n  - { name: n, sql: u, expect: { decision: BLOCK } }\n", nil, passing(known))
	require.NoError(t, report.Err())
	require.Equal(t, []RuleCoverage{
		{"decides", 1, 1, []string{"n"}}, {"only-matches", 1, 0, []string{"n"}}, {"watches", 1, 0, []string{"n"}}, {"never", 0, 0, []string{}},
	}, report.Coverage.Rules)
	require.Equal(t, []string{"never"}, report.Coverage.Uncovered)
	require.Len(t, report.Warnings, 2)
	require.Equal(t, []string{"only-matches", "never"}, []string{withCode(report, codeNeverDecisive)[0].RuleID, withCode(report, codeNotCovered)[0].RuleID})

	report = validated(t, document, nil, passing(known))
	require.Len(t, withCode(report, codeNoTests), 1, "a document without tests is told so")
	require.True(t, report.Valid)
}

func TestTheBaselineVetoesAPolicyThatLiftsTheFloorForEverybody(t *testing.T) {
	document := ruleWith("ALLOW", "match: { class: [unknown] }, lifts: [unknown_node]")
	report := validated(t, document, nil, passing(known))
	cases, _ := Baseline()
	require.False(t, report.Valid)
	require.Len(t, report.Corpus.Failed, len(cases))
	require.Contains(t, report.Findings[0].Message, "baseline")
}

func TestACorpusRunsAfterTheBaseline(t *testing.T) {
	data := []byte("schema: gate.corpus/v1\ncases:\n  - { name: a, sql: u, expect: { decision: ALLOW } }\n  - { name: b, sql: s, expect: { decision: ALLOW } }\n")
	cases, findings := ParseCorpus(data)
	require.Empty(t, findings)
	corpus := Corpus{Name: "ours", SHA256: Digest(data), Cases: cases}
	report := validated(t, rulesOf(plainRule), []Corpus{corpus}, passing(known))
	require.False(t, report.Valid)
	base, hash := Baseline()
	require.Equal(t, len(base)+2, report.Corpus.Cases)
	require.Equal(t, len(base)+1, report.Corpus.Passed)
	require.Equal(t, "a", report.Corpus.Failed[0].Name)
	require.Contains(t, report.Findings[0].Message, "corpus ours")
	require.Equal(t, CorpusHash([]Corpus{{SHA256: hash}, corpus}), report.Corpus.Hash)
	require.NotEqual(t, CorpusHash([]Corpus{{SHA256: hash}}), report.Corpus.Hash)
	require.Equal(t, Digest([]byte(`["`+hash+`"]`)), CorpusHash([]Corpus{{SHA256: hash}}))
}

func TestFaultsOfACorpus(t *testing.T) {
	for name, data := range map[string]string{
		"schema":        "schema: gate.corpus/v2\ncases: []\n",
		"unknown field": "schema: gate.corpus/v1\ncases: [ { name: n, sql: s, expects: {} } ]\n",
		"no cases":      "schema: gate.corpus/v1\n",
		"unknown env":   "schema: gate.corpus/v1\ncases: [ { name: n, sql: s, context: { env: production }, expect: { not: ALLOW } } ]\n",
		"claim as list": "schema: gate.corpus/v1\ncases: [ { name: n, sql: s, context: { app: [a] }, expect: { not: ALLOW } } ]\n",
	} {
		cases, findings := ParseCorpus([]byte(data))
		require.Nil(t, cases, name)
		require.True(t, hasErrors(findings), name)
	}
}

// What the cases of a document cost that anybody may have sent is bounded, counted in
// the work of its conditions and patterns and not in time.
func TestTheTestsOfADocumentAreBoundedInWhatTheyCost(t *testing.T) {
	check := func(t *testing.T, rules string, tests, most int, classify Classifier) Report {
		var document strings.Builder
		document.WriteString(rulesOf(rules) + "tests:\n")
		for i := range tests {
			fmt.Fprintf(&document, "  - { name: t%d, sql: SELECT 1, expect: { not: BLOCK } }\n", i)
		}
		p, report := Load([]byte(document.String()), Options{})
		require.NoError(t, report.Err())
		p.Check(&report, nil, classify, most)
		return report
	}
	repeated := func(n int, rule string) string {
		var rules strings.Builder
		for i := range n {
			fmt.Fprintf(&rules, "  - { id: r%d, decision: BLOCK, reason_code: r_r, %s }\n", i, rule)
		}
		return rules.String()
	}
	few := func(string) (Facts, error) {
		return *with(update, func(f *Facts) { f.QueryType, f.Class = "SELECT", "read" }), nil
	}
	many := func(string) (Facts, error) {
		f, _ := few("")
		f.TablesRead = nil
		for i := range maxListFacts {
			f.TablesRead = append(f.TablesRead, fmt.Sprintf("public.t%d", i))
		}
		return f, nil
	}
	slow := repeated(30, `match: {}, when: 'actor.matches("(?:.?.?){80}Q1$")'`)
	loops := repeated(100, `match: {}, when: 'tables_read.exists(t, t.startsWith("billing."))'`)
	globs := repeated(1, "match: { tables_read: [x*a*b*c.*d*e*] }")
	for name, c := range map[string]struct {
		rules    string
		tests    int
		classify Classifier
		ok       bool
	}{
		"conditions that cost much":         {slow, 700, few, false},
		"the same, fewer tests":             {slow, 10, few, true},
		"conditions on lists that are long": {loops, 700, many, false},
		"the same on short ones":            {loops, 700, few, true},
		"an ordinary document":              {repeated(300, `match: { tables_written: [billing.*, audit.*] }, when: 'actor != "x"'`), 700, few, true},
		"patterns of match":                 {globs, 700, many, true},
		"rules that are not asked":          {repeated(30, `match: { class: [ddl] }, when: 'actor.matches("(?:.?.?){80}Q1$")'`), 700, few, true},
	} {
		t.Run(name, func(t *testing.T) {
			report := check(t, c.rules, c.tests, MaxCheckCost, c.classify)
			found := withCode(report, codeLimit)
			require.Equal(t, c.ok, len(found) == 0, "%v", found)
			if !c.ok {
				require.False(t, report.Valid)
				require.Contains(t, found[0].Message+found[0].Suggestion, "operator's token")
				report = check(t, c.rules, 20, 0, c.classify)
				require.Empty(t, withCode(report, codeLimit), "an operator's are not bounded")
			}
		})
	}

	// Lists of patterns take long where a document repeats one in every rule.
	var list strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&list, "public.x%d, ", i)
	}
	rules := repeated(20, "match: { tables_read: [$l] }") + "lists: { l: [" + strings.TrimSuffix(list.String(), ", ") + "] }\n"
	dotted := func(string) (Facts, error) {
		f, _ := many("")
		for i := range f.TablesRead {
			f.TablesRead[i] = "?.a" + itoa(i)
		}
		return f, nil
	}
	report := check(t, rules, 900, MaxCheckCost, dotted)
	require.Len(t, withCode(report, codeLimit), 1)
}
