package policy

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// A Case is one statement with its context and what a policy must make of it.
type Case struct {
	Name    string
	SQL     string
	Context CaseContext
	Expect  Expectation
	place   place
}

type place struct {
	pointer      string
	line, column int
}

// CaseContext holds the context variables of facts/v1; what a case leaves out
// is "" or false, env is prod, mode enforce and channel http.
type CaseContext struct {
	Actor, App, Tenant, Role, Host, Env string
	TLSSubject, AgentID                 string
	AgentToolsVerified                  bool
	Mode                                string
	Approved, ReasonGiven               bool
	SessionID, Channel                  string
}

// Facts joins a classification with the context.
func (c CaseContext) Facts(classification Facts) Facts {
	f := classification
	f.Actor, f.App, f.Tenant, f.Role, f.Host, f.Env = c.Actor, c.App, c.Tenant, c.Role, c.Host, c.Env
	f.TLSSubject, f.AgentID, f.AgentToolsVerified = c.TLSSubject, c.AgentID, c.AgentToolsVerified
	f.Mode, f.Approved, f.ReasonGiven, f.SessionID, f.Channel = c.Mode, c.Approved, c.ReasonGiven, c.SessionID, c.Channel
	return f
}

// An Expectation is what must hold: Decision or Not is set, the rest is looked
// at where it is present.
type Expectation struct {
	Decision    Decision
	Not         Decision
	ReasonCode  string
	RuleID      string
	Matched     *[]string // exact set
	Observed    *[]string // exact set
	RiskSignals []string  // contained
	DryRun      string    // none, allow or rows: what rules take of one
}

// maxCases bounds one file of cases.
const maxCases = 10_000

// ParseCorpus reads a corpus file (schema gate.corpus/v1). The cases are nil
// when a finding is an error.
func ParseCorpus(data []byte) ([]Case, []Finding) {
	r := newReader(data)
	var cases []Case
	if root := r.parseYAML(data, 8*maxDocumentBytes); root != nil {
		r.object(root, "", "a corpus", []field{
			{"schema", true, func(n *yaml.Node, at string) { r.enum(n, at, "schema", []string{CorpusVersion}) }},
			{"description", false, func(n *yaml.Node, at string) { r.text(n, at, "description", maxText) }},
			{"cases", true, func(n *yaml.Node, at string) { cases = r.cases(n, at, "cases") }},
		})
	}
	sortFindings(r.findings)
	if hasErrors(r.findings) {
		return nil, r.findings
	}
	return cases, r.findings
}

func (r *reader) cases(n *yaml.Node, pointer, what string) []Case {
	if n.Kind == yaml.SequenceNode && len(n.Content) > maxCases {
		r.add(n, pointer, codeLimit, "", "%s has %d entries; at most %d are allowed", what, len(n.Content), maxCases)
		return nil
	}
	var cases []Case
	r.sequence(n, pointer, what, func(item *yaml.Node, at string) {
		cases = append(cases, r.oneCase(item, at))
	})
	return cases
}

func (r *reader) oneCase(n *yaml.Node, pointer string) Case {
	c := Case{place: place{pointer, n.Line, n.Column}}
	c.Context.Env, c.Context.Mode, c.Context.Channel = "prod", ModeEnforce, ChannelHTTP
	r.object(n, pointer, "a case", []field{
		{"name", true, func(n *yaml.Node, at string) { c.Name, _ = r.text(n, at, "name", maxText) }},
		{"sql", true, func(n *yaml.Node, at string) { c.SQL, _ = r.text(n, at, "sql", maxDocumentBytes) }},
		{"context", false, func(n *yaml.Node, at string) { r.context(n, at, &c.Context) }},
		{"expect", true, func(n *yaml.Node, at string) { r.expectation(n, at, &c.Expect) }},
	})
	return c
}

func (r *reader) context(n *yaml.Node, pointer string, c *CaseContext) {
	text := func(name string, to *string) field {
		return field{name, false, func(n *yaml.Node, at string) { *to, _ = r.text(n, at, name, maxText) }}
	}
	truth := func(name string, to *bool) field {
		return field{name, false, func(n *yaml.Node, at string) { *to, _ = r.boolean(n, at, name) }}
	}
	word := func(name string, words *vocabulary, to *string) field {
		return field{name, false, func(n *yaml.Node, at string) { *to, _ = r.enum(n, at, name, words.names) }}
	}
	r.object(n, pointer, "a context", []field{
		text("actor", &c.Actor), text("app", &c.App), text("tenant", &c.Tenant), text("role", &c.Role), text("host", &c.Host),
		word("env", envs, &c.Env), text("tls_subject", &c.TLSSubject), text("agent_id", &c.AgentID),
		truth("agent_tools_verified", &c.AgentToolsVerified), word("mode", modes, &c.Mode),
		truth("approved", &c.Approved), truth("reason_given", &c.ReasonGiven), text("session_id", &c.SessionID), word("channel", channels, &c.Channel),
	})
}

func (r *reader) expectation(n *yaml.Node, pointer string, e *Expectation) {
	decision := func(to *Decision) func(*yaml.Node, string) {
		return func(n *yaml.Node, at string) {
			d, _ := r.enum(n, at, "a decision", decisions.names)
			*to = Decision(d)
		}
	}
	names := func(what string, to *[]string) func(*yaml.Node, string) {
		return func(n *yaml.Node, at string) {
			*to = []string{}
			r.sequence(n, at, what, func(item *yaml.Node, at string) {
				if id, ok := r.text(item, at, "an entry of "+what, maxText); ok {
					*to = append(*to, id)
				}
			})
		}
	}
	ok := r.object(n, pointer, "expect", []field{
		{"decision", false, decision(&e.Decision)},
		{"not", false, decision(&e.Not)},
		{"reason_code", false, func(n *yaml.Node, at string) { e.ReasonCode, _ = r.text(n, at, "reason_code", maxText) }},
		{"rule_id", false, func(n *yaml.Node, at string) { e.RuleID, _ = r.text(n, at, "rule_id", maxText) }},
		{"matched", false, func(n *yaml.Node, at string) { e.Matched = new([]string); names("matched", e.Matched)(n, at) }},
		{"observed", false, func(n *yaml.Node, at string) { e.Observed = new([]string); names("observed", e.Observed)(n, at) }},
		{"risk_signals", false, func(n *yaml.Node, at string) {
			r.sequence(n, at, "risk_signals", func(item *yaml.Node, at string) {
				if s, ok := r.enum(item, at, "risk_signals", signals.names); ok {
					e.RiskSignals = append(e.RiskSignals, s)
				}
			})
		}},
		{"dry_run", false, func(n *yaml.Node, at string) { e.DryRun, _ = r.enum(n, at, "dry_run", dryRuns.names) }},
	})
	has := func(key string) bool { return valueOf(n, key) != nil }
	switch {
	case !ok:
	case has("decision") && has("not"):
		r.add(n, pointer, codeTypeMismatch, "", "expect has both decision and not; one of them says it")
	case !has("decision") && !has("not"):
		r.add(n, pointer, codeMissingField, "decision: BLOCK", "expect has neither decision nor not")
	}
}

func sameSet(want, got []string) bool { return slices.Equal(sorted(want), sorted(got)) }
