package commands

import (
	"time"

	"writegate/eventlog/event"
)

// A Request is what a client asked, as far as evidence names it. The claims
// (Actor to Env) are unverified; Principal is verified.
type Request struct {
	RequestID                           string
	Actor, App, Tenant, Role, Host, Env string
	SessionID, ApprovalID               string
	SQLDigest                           [32]byte // SHA-256 of the exact text
	RequestDigest                       [32]byte // SHA-256 over text and context: what an approval or a key is bound to
	SQLText                             string   // as GATE_AUDIT_SQL_TEXT says; "" = none
	SQLBytes                            int
	Profile, IdempotencyKey, Principal  string
	At                                  time.Time // when it came in
	AgentID, Project                    string    // of the agent whose token came with it; "" = none
	CredentialIDs                       []string
	WireSession                         string // the connection of the wire listener; "" = another channel
	Channel                             string // http, wire or mcp
	Client, Reason                      string // the client's name of itself over MCP, and why it asks: claims; "" = it said none
}

// A Decision is what the policy decided and everything that explains it.
// Engine, the seq of the run's startup event, is filled in when it is recorded.
type Decision struct {
	Decision, ReasonCode, RuleID, Layer, Mode  string
	PolicyVersion, Operation, Fingerprint, Run string
	PolicyHash                                 [32]byte
	Enforced, Bypass                           bool
	Matched, Observed, Errors, Floor, Lifted   []string
	Terms                                      *event.ApprovalTerms
	Facts                                      event.DecisionFacts
	AgentLayer                                 *event.AgentLayer  // nil = no agent's token came with the request
	Catalog                                    *event.CatalogUse  // nil = judged by its text alone
	GrantID                                    string             // the grant that stands for the approval; "" = none
	DryRun                                     *event.DryRunTerms // of a dry run, what the rules take of it; nil = none
}

// context gives what every event of a request shares.
func (r *Request) context(d *Decision) event.Context {
	ctx := event.Context{Actor: r.Actor, App: r.App, Tenant: r.Tenant, Env: r.Env, SessionID: r.SessionID,
		ApprovalID: r.ApprovalID, RequestID: r.RequestID, AgentID: r.AgentID, Project: r.Project}
	if d != nil {
		ctx.Operation, ctx.Fingerprint = d.Operation, d.Fingerprint
	}
	return ctx
}

// received is the request's first event. Role and host stand in it alone.
func (r *Request) received(now time.Time, d *Decision) event.Draft {
	ctx := r.context(d)
	ctx.Role, ctx.Host = r.Role, r.Host
	purpose := map[string]string{event.RunDescribe: event.PurposeDescribe, event.RunDryRun: event.PurposeDryRun}[d.Run]
	return event.New(now, ctx, &event.RequestReceived{SQLDigest: r.SQLDigest, SQLBytes: r.SQLBytes, SQLText: r.SQLText,
		ExecutionProfile: r.profile(), IdempotencyKey: r.IdempotencyKey, RequestDigest: r.RequestDigest, Principal: r.Principal,
		CredentialIDs: r.CredentialIDs, WireSession: r.WireSession, Purpose: purpose, Client: r.Client, Reason: r.Reason})
}

// Execution profiles: the one that evidence leaves out, and the one under which a
// statement may run for longer.
const (
	defaultProfile = "default"
	bulkProfile    = "bulk"
)

// profile is the execution profile as evidence has it.
func (r *Request) profile() string {
	if r.Profile == defaultProfile {
		return ""
	}
	return r.Profile
}

// The reasons of decisions that no rule of the policy made: fallback_reason of
// the contract (spec/gate.md part 2.6). They are those of package policy.
const (
	fallbackDefaultDeny   = "default_deny"
	fallbackRuleError     = "rule_eval_error"
	fallbackApprovalFirst = "approval_first_mode"
)

// decisionBlock is the decision of a statement that never reaches the database.
const decisionBlock = "BLOCK"

// fallback says why a decision is not what the rules alone make of the statement;
// "" where it is.
func (d *Decision) fallback() string {
	switch {
	case d.ReasonCode == fallbackDefaultDeny || d.ReasonCode == fallbackApprovalFirst:
		return d.ReasonCode
	case len(d.Errors) > 0: // a rule that could not be evaluated blocks, whichever rule gives the reason
		return fallbackRuleError
	}
	return ""
}

// payload gives the decision as it is recorded.
func (d *Decision) payload(engine uint64) *event.DecisionRecorded {
	return &event.DecisionRecorded{Enforced: d.Enforced, Bypass: d.Bypass, RuleID: d.RuleID, Layer: d.Layer,
		Matched: d.Matched, Observed: d.Observed, Errors: d.Errors, Floor: d.Floor, Lifted: d.Lifted, Approval: d.Terms,
		PolicyHash: d.PolicyHash, Engine: engine, Run: d.Run, Facts: d.Facts, AgentLayer: d.AgentLayer, Catalog: d.Catalog, GrantID: d.GrantID, DryRun: d.DryRun}
}
