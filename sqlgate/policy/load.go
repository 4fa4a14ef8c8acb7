package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Options say what Load knows beside the document.
type Options struct {
	// FileName is the name that the document has on disk, which must be
	// name@version.yaml; "" where it does not come from a file.
	FileName string
	// DefaultTTLSeconds is GATE_APPROVAL_DEFAULT_TTL_SECONDS, for rules
	// without a TTL of their own; 0 is 300.
	DefaultTTLSeconds int
	// Known maps each policy version that exists to the hash of its bytes: a
	// version never changes.
	Known map[string]string
}

// maxFindings bounds a report on a hostile document.
const maxFindings = 1000

// Load reads, checks and compiles a document. The report holds everything that
// can be said without running a statement; the policy is nil when there is an
// error among it.
func Load(document []byte, o Options) (*Policy, Report) {
	p := &Policy{document: slices.Clone(document), hash: Digest(document), defaultTTL: o.DefaultTTLSeconds}
	if p.defaultTTL <= 0 {
		p.defaultTTL = defaultTTLSeconds
	}
	r := &documentReader{reader: newReader(document), policy: p, ruleAt: map[string]int{}}
	if root := r.parseYAML(document, maxDocumentBytes); root != nil {
		r.document(root)
		r.identity(o)
	}
	report := newReport(p, r.findings)
	if !report.Valid {
		return nil, report
	}
	p.prepare()
	var err error
	if p.semanticHash, err = p.digestOfMeaning(); err != nil {
		report.Add(NewFinding(codeYAMLInvalid, "the document has no canonical form: %v", err))
		return nil, report
	}
	report.SemanticHash = p.semanticHash
	return p, report
}

// identity compares name and version with the file name and with what exists.
func (r *documentReader) identity(o Options) {
	p := r.policy
	if p.name == "" || p.version == "" {
		return
	}
	if want := p.Version() + ".yaml"; o.FileName != "" && path.Base(o.FileName) != want {
		r.add(nil, "", codeFilename, want, "the file is called %s, but the document in it is %s", clip(path.Base(o.FileName)), p.Version())
	}
	if hash, exists := o.Known[p.Version()]; exists && !strings.EqualFold(NormalHash(hash), p.hash) {
		r.add(nil, "/version", codeVersionExists, "", "%s exists with other bytes (hash %s); a version never changes, so take a new number", p.Version(), hash)
	}
}

// digestOfMeaning is the semantic hash, the SHA-256 of the canonical JSON of {facts, rules,
// schema}: no texts, no tests, no name and no version, lists expanded and sorted, rules in
// their order. A TTL of null is the default of the service, which is no part of the document.
// It is made rule by rule: a few lists that hundreds of rules name are many megabytes of it.
func (p *Policy) digestOfMeaning() (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, `{"facts":%q,"rules":[`, FactsVersion)
	for i := range p.rules {
		text, err := CanonicalJSON(p.rules[i].meaning())
		if err != nil {
			return "", err
		}
		if i > 0 {
			sum.Write([]byte{','})
		}
		sum.Write(text)
	}
	fmt.Fprintf(sum, `],"schema":%q}`, SchemaVersion)
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func (u *rule) meaning() map[string]any {
	mode := "enforce"
	if u.observe {
		mode = "observe"
	}
	m := map[string]any{
		"id": u.id, "decision": string(u.decision), "reason_code": u.reasonCode, "mode": mode,
		"match": u.match.meaning(), "unless": nil, "when": nil, "lifts": sorted(u.lifts), "approval": nil,
	}
	if u.unless != nil {
		m["unless"] = u.unless.meaning()
	}
	if u.when != nil {
		m["when"] = strings.TrimSpace(u.when.text)
	}
	if u.decision == RequireApproval {
		m["approval"] = u.approvalMeaning()
	}
	switch { // a rule without means what it meant before there were dry runs
	case u.dryRun == nil:
	case u.dryRun.Rows:
		m["dry_run"] = map[string]any{"rows": true}
	default:
		m["dry_run"] = "allow"
	}
	if u.needsReason { // without it a rule means what it meant before
		m["reason"] = "required"
	}
	return m
}

func (u *rule) approvalMeaning() map[string]any {
	terms := map[string]any{"ttl_seconds": nil, "max_rows": nil}
	if u.ttlSeconds > 0 {
		terms["ttl_seconds"] = u.ttlSeconds
	}
	if u.maxRows != nil {
		terms["max_rows"] = *u.maxRows
	}
	if u.grantSeconds > 0 { // what takes none means what it meant before there were any
		terms["grants"], terms["max_grant_seconds"] = true, u.grantSeconds
	}
	return terms
}

func (m *matcher) meaning() map[string]any {
	out := m.all.meaning()
	if m.hasAnyOf {
		groups := make([]any, len(m.anyOf))
		for i, g := range m.anyOf {
			groups[i] = g.meaning()
		}
		out["any_of"] = groups
	}
	return out
}

func (g group) meaning() map[string]any {
	out := make(map[string]any, len(g))
	for i := range g {
		out[g[i].key()] = g[i].wanted()
	}
	return out
}

// wanted is the value of a check as a document would hold it.
func (c *check) wanted() any {
	if c.v.kind == kindBool {
		return c.want
	}
	return sorted(c.values)
}

func sorted(list []string) []string {
	out := slices.Clone(list)
	slices.Sort(out)
	return slices.Compact(out)
}

// A Report is what there is to say about a document: the answer of POST
// /policy/validate.
type Report struct {
	Valid bool `json:"valid"`
	// PolicyVersion is "" where name or version could not be read.
	PolicyVersion string      `json:"policy_version"`
	Hash          string      `json:"hash"`
	SemanticHash  string      `json:"semantic_hash"`
	RuleCount     int         `json:"rule_count"`
	Findings      []Finding   `json:"findings"`
	Warnings      []Finding   `json:"warnings"`
	Counts        Counts      `json:"counts"`
	Tests         SuiteReport `json:"tests"`
	Corpus        SuiteReport `json:"corpus"`
	Coverage      Coverage    `json:"coverage"`
}

// Counts are the numbers of findings by severity.
type Counts struct {
	Error   int `json:"error"`
	Warning int `json:"warning"`
	Info    int `json:"info"`
}

func newReport(p *Policy, findings []Finding) Report {
	report := Report{
		Valid: true, Hash: p.hash, RuleCount: len(p.rules),
		Findings: []Finding{}, Warnings: []Finding{},
		Tests:    SuiteReport{Failed: []CaseFailure{}},
		Corpus:   SuiteReport{Failed: []CaseFailure{}},
		Coverage: Coverage{Rules: []RuleCoverage{}, Uncovered: []string{}},
	}
	if p.name != "" && p.version != "" {
		report.PolicyVersion = p.Version()
	}
	if len(findings) > maxFindings {
		// An error must not fall behind the bound: the last word is one.
		left := len(findings) - maxFindings
		findings = append(findings[:maxFindings:maxFindings], NewFinding(codeLimit, "there are %d more findings; mend these first", left))
	}
	sortFindings(findings)
	report.Add(findings...)
	return report
}

// Add files findings: errors under findings, the rest under warnings.
func (r *Report) Add(findings ...Finding) {
	for _, f := range findings {
		switch f.Severity {
		case SeverityError:
			r.Valid = false
			r.Counts.Error++
			r.Findings = append(r.Findings, f)
		case SeverityWarning:
			r.Counts.Warning++
			r.Warnings = append(r.Warnings, f)
		default:
			r.Counts.Info++
			r.Warnings = append(r.Warnings, f)
		}
	}
}

// Err is nil for a valid report, else an error that says all of it.
func (r *Report) Err() error {
	if r.Valid {
		return nil
	}
	lines := make([]string, len(r.Findings))
	for i, f := range r.Findings {
		lines[i] = f.String()
	}
	return fmt.Errorf("the policy %s is not valid:\n  %s", r.PolicyVersion, strings.Join(lines, "\n  "))
}
