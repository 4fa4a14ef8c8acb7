package policy

import (
	"fmt"
	"slices"
	"strings"

	"writegate/commands/fault"
)

// A Classifier turns the text of one statement into the classification part of
// facts. An error is a refusal of the text, or a failure of the classifier.
type Classifier func(sql string) (Facts, error)

// refusals are the codes with which SQL is turned away before any rule.
var refusals = []fault.Code{
	fault.MultiStatementRejected, fault.EmptySQL, fault.ParserError, fault.ParserUnsupportedSyntax,
	fault.UnsupportedSQLShape, fault.UnsafeReadShape, fault.OversizedSQL,
}

// A SuiteReport is the outcome of a set of cases. Hash names the set where it
// is a corpus.
type SuiteReport struct {
	Cases  int           `json:"cases"`
	Passed int           `json:"passed"`
	Hash   string        `json:"hash,omitempty"`
	Failed []CaseFailure `json:"failed"`
}

// A CaseFailure says what a case expected and what it got.
type CaseFailure struct {
	Name     string `json:"name"`
	SQL      string `json:"sql"`
	Expected string `json:"expected"`
	Got      string `json:"got"`
	place    place
}

// Coverage says which rules the cases reach.
type Coverage struct {
	Rules     []RuleCoverage `json:"rules"`
	Uncovered []string       `json:"uncovered"`
}

// RuleCoverage counts the cases that match a rule and those that it decides.
type RuleCoverage struct {
	RuleID  string   `json:"rule_id"`
	Matched int      `json:"matched"`
	Decided int      `json:"decided"`
	Cases   []string `json:"cases"`
}

// maxCasesNamed bounds the names that the coverage of a rule lists.
const maxCasesNamed = 20

// A CasesReport is what RunCases found.
type CasesReport struct {
	SuiteReport
	Coverage Coverage
}

// RunCases decides every case with p, through the real classifier. A refusal
// of the text is an outcome that is not ALLOW and is no decision either; a
// classifier that fails for any other reason fails the case.
func RunCases(p *Policy, cases []Case, classify Classifier) CasesReport {
	run := newRun(p, 0)
	report := CasesReport{SuiteReport: run.suite(cases, classify)}
	report.Coverage = run.coverage()
	return report
}

// A caseRun gathers coverage over several suites.
type caseRun struct {
	policy  *Policy
	rules   []RuleCoverage
	byID    map[string]int
	matches matchCost
	cost    int // so far, in units
	most    int // where it ends; 0 is nowhere
}

func newRun(p *Policy, most int) *caseRun {
	run := &caseRun{policy: p, rules: make([]RuleCoverage, len(p.rules)), byID: map[string]int{}, matches: p.matchCost(), most: most}
	for i := range p.rules {
		run.rules[i] = RuleCoverage{RuleID: p.rules[i].id, Cases: []string{}}
		run.byID[p.rules[i].id] = i
	}
	return run
}

func (run *caseRun) suite(cases []Case, classify Classifier) SuiteReport {
	report := SuiteReport{Cases: len(cases), Failed: []CaseFailure{}}
	for i := range cases {
		if run.tooCostly() {
			break
		}
		c := &cases[i]
		expected, got, ok := run.one(c, classify)
		if ok {
			report.Passed++
			continue
		}
		report.Failed = append(report.Failed, CaseFailure{Name: c.Name, SQL: c.SQL, Expected: expected, Got: got, place: c.place})
	}
	return report
}

func (run *caseRun) tooCostly() bool { return run.most > 0 && run.cost > run.most }

func (run *caseRun) one(c *Case, classify Classifier) (expected, got string, ok bool) {
	classification, err := classify(c.SQL)
	if err != nil {
		code := fault.CodeOf(err)
		if !slices.Contains(refusals, code) {
			return c.Expect.String(), "the classifier failed: " + err.Error(), false
		}
		return c.Expect.String(), "refused before any rule: " + string(code), c.Expect.acceptsRefusal()
	}
	f := c.Context.Facts(classification)
	e := evaluate(&f)
	r := run.policy.decideStatement(e)
	if run.cost += run.matches.of(&f); fewFacts(&f) {
		run.cost += e.costOfFew
	} else {
		run.cost += e.cost
	}
	e.done()
	run.count(c.Name, &r)
	expected, got = c.Expect.compare(&r, &f)
	return expected, got, expected == ""
}

func (run *caseRun) count(name string, r *Result) {
	for _, ids := range [][]string{r.Matched, r.Observed, r.Errors} {
		for _, id := range ids {
			rule := &run.rules[run.byID[id]]
			rule.Matched++
			if len(rule.Cases) < maxCasesNamed {
				rule.Cases = append(rule.Cases, name)
			}
		}
	}
	if i, ok := run.byID[r.RuleID]; ok {
		run.rules[i].Decided++
	}
}

func (run *caseRun) coverage() Coverage {
	c := Coverage{Rules: run.rules, Uncovered: []string{}}
	for _, rule := range run.rules {
		if rule.Matched == 0 {
			c.Uncovered = append(c.Uncovered, rule.RuleID)
		}
	}
	return c
}

// acceptsRefusal: a refused statement was not allowed, and nothing more can be
// said of it.
func (e *Expectation) acceptsRefusal() bool {
	return e.Not == Allow && e.ReasonCode == "" && e.RuleID == "" && e.Matched == nil && e.Observed == nil && len(e.RiskSignals) == 0 && e.DryRun == ""
}

// compare returns what was expected and what came, both "" where all holds.
func (e *Expectation) compare(r *Result, f *Facts) (expected, got string) {
	var want, have []string
	differ := func(what, expected, got string) {
		want, have = append(want, what+" "+expected), append(have, what+" "+got)
	}
	if e.Decision != "" && r.Decision != e.Decision {
		differ("decision", string(e.Decision), string(r.Decision))
	}
	if e.Not != "" && r.Decision == e.Not {
		differ("decision", "other than "+string(e.Not), string(r.Decision))
	}
	if e.ReasonCode != "" && r.ReasonCode != e.ReasonCode {
		differ("reason_code", e.ReasonCode, r.ReasonCode)
	}
	if e.RuleID != "" && r.RuleID != e.RuleID {
		differ("rule_id", e.RuleID, r.RuleID)
	}
	if e.Matched != nil && !sameSet(*e.Matched, r.Matched) {
		differ("matched", listed(*e.Matched), listed(r.Matched))
	}
	if e.Observed != nil && !sameSet(*e.Observed, r.Observed) {
		differ("observed", listed(*e.Observed), listed(r.Observed))
	}
	for _, signal := range e.RiskSignals {
		if !slices.Contains(f.RiskSignals, signal) {
			differ("risk_signals", "with "+signal, listed(f.RiskSignals))
		}
	}
	if got := r.DryRun.word(); e.DryRun != "" && got != e.DryRun {
		differ("dry_run", e.DryRun, got)
	}
	if len(want) == 0 {
		return "", ""
	}
	if e.RuleID == "" && e.Decision != "" && r.Decision != e.Decision {
		have = append(have, fmt.Sprintf("by %s (%s)", r.RuleID, r.ReasonCode))
	}
	return strings.Join(want, ", "), strings.Join(have, ", ")
}

func listed(names []string) string { return "[" + strings.Join(someOf(names), ", ") + "]" }

// String is the expectation in words.
func (e *Expectation) String() string {
	if e.Decision != "" {
		return "decision " + string(e.Decision)
	}
	return "decision other than " + string(e.Not)
}

// A Corpus is a file of cases with the name and hash that reports use.
type Corpus struct {
	Name   string
	SHA256 string
	Cases  []Case
}

// CorpusHash names a set of corpora, the baseline first: the SHA-256 of the
// canonical JSON of their hashes.
func CorpusHash(corpora []Corpus) string {
	h := []byte{'['}
	for i, c := range corpora {
		if i > 0 {
			h = append(h, ',')
		}
		h = append(h, '"')
		h = append(h, c.SHA256...)
		h = append(h, '"')
	}
	return Digest(append(h, ']'))
}

// Validate is Load and then every case: the baseline, the corpora in their
// order, the tests of the document. The policy is nil when the report is not
// valid.
func Validate(document []byte, o Options, corpora []Corpus, classify Classifier) (*Policy, Report) {
	p, report := Load(document, o)
	if p == nil {
		return nil, report
	}
	p.Check(&report, corpora, classify, 0)
	if !report.Valid {
		return nil, report
	}
	return p, report
}

// MaxCheckCost bounds the decisions of a check, in units of some 50 ns, for a document
// that anybody may have sent: some two to four seconds. An ordinary document with a
// thousand tests needs a hundredth of it.
const MaxCheckCost = 40_000_000

// Check runs the cases for a policy that was loaded and adds tests, corpus,
// coverage and their findings to its report. most bounds what the decisions may cost;
// past it no case is run any more, and the report is not valid. 0 is no bound.
func (p *Policy) Check(report *Report, corpora []Corpus, classify Classifier, most int) {
	cases, hash := Baseline()
	corpora = append([]Corpus{{Name: "baseline", SHA256: hash, Cases: cases}}, corpora...)
	run := newRun(p, most)
	report.Corpus = SuiteReport{Hash: CorpusHash(corpora), Failed: []CaseFailure{}}
	for _, c := range corpora {
		suite := run.suite(c.Cases, classify)
		report.Corpus.Cases += suite.Cases
		report.Corpus.Passed += suite.Passed
		report.Corpus.Failed = append(report.Corpus.Failed, suite.Failed...)
		for _, f := range suite.Failed {
			report.Add(NewFinding(codeTestFailed, "the case %s of the corpus %s failed: expected %s, got %s", clip(f.Name), c.Name, f.Expected, f.Got))
		}
	}
	report.Tests = run.suite(p.tests, classify)
	for _, f := range report.Tests.Failed {
		finding := NewFinding(codeTestFailed, "the test %s failed: expected %s, got %s", clip(f.Name), f.Expected, f.Got)
		finding.Pointer, finding.Line, finding.Column = f.place.pointer, f.place.line, f.place.column
		report.Add(finding)
	}
	report.Coverage = run.coverage()
	if run.tooCostly() {
		f := NewFinding(codeLimit, "the tests and the corpus take more than %d steps with this document's rules, and what is left of them was not run", most)
		f.Pointer, f.Suggestion = "/tests", "write fewer tests, patterns and conditions on lists, send it with an operator's token, or use gate policy test"
		report.Add(f)
		return
	}
	p.uncovered(report)
}

// uncovered warns of rules that no case tells anything about.
func (p *Policy) uncovered(report *Report) {
	if len(p.tests) == 0 {
		f := NewFinding(codeNoTests, "the document has no tests, so nothing shows that it does what it is meant to")
		f.Suggestion = "tests: [{name: ..., sql: ..., expect: {decision: BLOCK}}]"
		report.Add(f)
	}
	for i, c := range report.Coverage.Rules {
		var f Finding
		switch {
		case c.Matched == 0:
			f = NewFinding(codeNotCovered, "no case matches the rule %s; add a test that does", c.RuleID)
		case c.Decided == 0 && !p.rules[i].observe:
			f = NewFinding(codeNeverDecisive, "the rule %s matches, but decides no case; add a test where it does, or drop it", c.RuleID)
		default:
			continue
		}
		f.RuleID, f.Pointer, f.Line, f.Column = c.RuleID, "/rules/"+itoa(i), p.rules[i].line, p.rules[i].column
		report.Add(f)
	}
}
