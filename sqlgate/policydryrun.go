package sqlgate

import (
	"cmp"
	"context"
	"math"

	"writegate/sqlgate/classify"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/replay"
)

// A DryRunRequest asks what a policy makes of a statement, or of those that the
// log recorded (design/policy.md part 8).
type DryRunRequest struct {
	SQL       *string // nil: no statement
	Context   policy.CaseContext
	Policy    Source
	CompareTo string // a version, ActiveVersion, or "" for none
	Replay    *ReplayRequest
}

// A DryRunAnswer is the answer of POST /policy/dry-run. What is about one
// statement is absent where none was given.
type DryRunAnswer struct {
	*DryRunDecision
	PolicyVersion string         `json:"policy_version"`
	PolicyHash    string         `json:"policy_hash"`
	Executed      bool           `json:"executed"`
	AuditWritten  bool           `json:"audit_written"`
	Replay        *replay.Report `json:"replay"`
}

// A DryRunDecision is what a policy makes of one statement.
type DryRunDecision struct {
	Decision       policy.Decision          `json:"decision"`
	ReasonCode     string                   `json:"reason_code"`
	Reason         string                   `json:"reason"`
	Remedy         *string                  `json:"remedy"`
	RuleID         string                   `json:"rule_id"`
	Fingerprint    string                   `json:"fingerprint"`
	QueryType      string                   `json:"query_type"`
	RiskSignals    []string                 `json:"risk_signals"`
	Classification *classify.Classification `json:"classification"`
	Matched        []string                 `json:"matched"`
	Observed       []string                 `json:"observed"`
	Approval       *policy.ApprovalTerms    `json:"approval"`
	DryRun         *policy.DryRunTerms      `json:"dry_run"` // null: no dry run
	RuleTrace      []policy.TraceEntry      `json:"rule_trace"`
	Compared       *Compared                `json:"compared"`
	Behind         []string                 `json:"behind,omitempty"` // what stands in the database behind its names, for people
}

// Compared is what another version decides on the same statement.
type Compared struct {
	PolicyVersion string          `json:"policy_version"`
	Decision      policy.Decision `json:"decision"`
	Changed       bool            `json:"changed"`
}

// CheckContext refuses claims that no request could carry, one line per field.
func CheckContext(c *policy.CaseContext, fields map[string]string) {
	for name, value := range map[string]string{
		"actor": c.Actor, "app": c.App, "tenant": c.Tenant, "role": c.Role, "host": c.Host, "session_id": c.SessionID,
		"tls_subject": c.TLSSubject, "agent_id": c.AgentID,
	} {
		if problem := claimProblem(value); value != "" && problem != "" {
			fields[name] = problem
		}
	}
}

// DryRun decides without executing or writing anything. SQL that is refused
// before a decision is refused here in the same way.
func (g *Gate) DryRun(ctx context.Context, r DryRunRequest) (*DryRunAnswer, error) {
	if r.SQL == nil && r.Replay == nil {
		return nil, FieldsFault(map[string]string{"sql": "give sql, replay or both"})
	}
	p, found, err := g.compiled(ctx, r.Policy)
	if err != nil {
		return nil, err
	}
	var other *policy.Policy
	if r.CompareTo != "" {
		if other, _, err = g.compiled(ctx, Source{PolicyVersion: r.CompareTo}); err != nil {
			return nil, err
		}
	}
	a := &DryRunAnswer{PolicyVersion: found.version, PolicyHash: found.hexHash()}
	if r.SQL != nil {
		if a.DryRunDecision, err = Explain(ctx, g.classify, *r.SQL, r.Context, g.MarkerTable, p, other); err != nil {
			return nil, err
		}
	}
	if r.Replay == nil {
		return a, nil
	}
	if other == nil {
		if other, _, err = g.compiled(ctx, Source{PolicyVersion: ActiveVersion}); err != nil {
			return nil, err
		}
	}
	a.Replay, err = g.replayBetween(ctx, other, p, *r.Replay)
	return a, err
}

// A Statement is one as a text and perhaps a database tell of it.
type Statement struct {
	classify.Classification
	Behind  []string // what stands in the database behind its names, for people
	unknown error    // why the database did not tell
}

// classify reads a text, with what the database tells of it as far as that is known.
func (g *Gate) classify(ctx context.Context, sql string) (Statement, error) {
	c, err := g.Classifier.Classify(ctx, sql)
	if err != nil {
		return Statement{}, err
	}
	var s submission
	c = g.withDatabase(ctx, &s, c.WithTypes(nil, nil), sql)
	return Statement{c, s.behind(), s.unknown}, nil
}

// InDatabase reads texts as a gate does in front of a database whose catalogues it reads. It fails where
// the database can't be asked.
func InDatabase(o Options) func(ctx context.Context, sql string) (Statement, error) {
	g := &Gate{Options: Options{Classifier: o.Classifier, Database: o.Database, Logger: o.Logger, CatalogRefresh: math.MaxInt64}}
	return func(ctx context.Context, sql string) (Statement, error) {
		s, err := g.classify(ctx, sql)
		return s, cmp.Or(err, s.unknown)
	}
}

// Explain is what a policy makes of one statement, and with other (nil: none)
// what another one would. It needs no gate that runs. An error is a refusal of
// the text, or a failure of the classifier.
func Explain(ctx context.Context, read func(ctx context.Context, sql string) (Statement, error), sql string, claims policy.CaseContext, markerTable string, p, other *policy.Policy) (*DryRunDecision, error) {
	seen, err := read(ctx, sql)
	if err == nil {
		err = needsSession(&seen.Classification, claims.SessionID)
	}
	if err != nil {
		return nil, err
	}
	s := submission{Request: &Request{}, classification: seen.Classification, markerTable: markerTable}
	f := claims.Facts(s.facts())
	result := p.DecideStatement(&f)
	d := &DryRunDecision{
		Decision: result.Decision, ReasonCode: result.ReasonCode, Reason: result.Message, RuleID: result.RuleID, Fingerprint: seen.Fingerprint,
		QueryType: seen.QueryType, RiskSignals: orEmpty(seen.RiskSignals), Classification: &seen.Classification, Matched: orEmpty(result.Matched), Observed: orEmpty(result.Observed),
		Approval: result.Approval, DryRun: result.DryRun, RuleTrace: p.Trace(&f), Behind: seen.Behind,
	}
	if d.Reason == "" {
		d.Reason = (&Answer{Result: result, Preview: true}).message()
	}
	if result.Remedy != "" {
		d.Remedy = &result.Remedy
	}
	if other != nil {
		decision := other.DecideStatement(&f).Decision
		d.Compared = &Compared{other.Version(), decision, decision != result.Decision}
	}
	return d, nil
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
