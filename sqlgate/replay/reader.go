package replay

import (
	"fmt"
	"time"

	"writegate/eventlog/event"
	"writegate/sqlgate/policy"
)

// A Decision is one recorded decision with the facts that it was made from.
type Decision struct {
	Seq           uint64 // of decision_recorded
	EventID       string
	PolicyVersion string
	PolicyHash    [32]byte
	Engine        uint64 // seq of the startup event that names the engine
	Facts         policy.Facts
	AgentLayer    *event.AgentLayer // nil = no agent asked
	Catalog       *event.CatalogUse // nil = judged by its text alone
	RequestID     string
	At            time.Time
	GrantID       string // the grant that stood for the approval; "" = none
	Enforced      bool
	Run           string        // how the statement runs
	Describes     bool          // the statement was only to be described
	Recorded      policy.Result // what the record says; texts are not in it
	session       bool          // it was decided as session control
}

// under decides it once more.
func (d *Decision) under(p *policy.Policy) policy.Result {
	if d.session {
		return p.DecideSessionControl(&d.Facts)
	}
	return p.Decide(&d.Facts)
}

// EngineMarkerTable is the key under which an engine record names the gate's own
// table of execution markers. It stands there because it decides: a statement
// that names the table is blocked.
const EngineMarkerTable = "marker_table"

// Under completes the facts with what the engine record of their gate says. It
// reports whether this program knows what the facts mean.
func (d *Decision) Under(engine map[string]string) (known bool) {
	d.Facts.MarkerTable = engine[EngineMarkerTable]
	return engine["facts"] == policy.FactsVersion
}

// A Reader joins the events of a request, as they stand in the log: both are
// written in one append, so that one request is in sight at a time.
type Reader struct {
	request *event.Envelope
}

// Take looks at the next event of the log. It answers a decision when the
// event is one. The error says that a decision's request is not where it must
// be, or that an event is not to be read.
func (r *Reader) Take(e *event.Envelope) (*Decision, error) {
	switch e.Type {
	case event.TypeRequestReceived:
		kept := *e
		r.request = &kept
		return nil, nil
	case event.TypeDecisionRecorded:
		return r.join(e)
	}
	return nil, nil
}

func (r *Reader) join(e *event.Envelope) (*Decision, error) {
	request := r.request
	r.request = nil
	if request == nil || request.Seq+1 != e.Seq || request.Context.RequestID != e.Context.RequestID {
		return nil, fmt.Errorf("event %d is a decision, and the event before it is not its request", e.Seq)
	}
	var p event.DecisionRecorded
	if err := e.Parse(&p); err != nil {
		return nil, fmt.Errorf("event %d: %w", e.Seq, err)
	}
	channel, err := channelOf(request, &p.Facts)
	if err != nil {
		return nil, fmt.Errorf("event %d: %w", request.Seq, err)
	}
	return &Decision{
		Seq: e.Seq, EventID: e.ID.String(), PolicyVersion: e.Context.PolicyVersion, PolicyHash: p.PolicyHash, Engine: p.Engine,
		session:    p.Run == event.RunSession,
		Facts:      factsOf(request, &e.Context, &p.Facts, channel),
		AgentLayer: p.AgentLayer, Catalog: p.Catalog, Describes: p.Run == event.RunDescribe, RequestID: e.Context.RequestID, At: e.Time, GrantID: p.GrantID, Enforced: p.Enforced, Run: p.Run,
		Recorded: policy.Result{
			Decision: policy.Decision(e.Context.Decision), ReasonCode: e.Context.ReasonCode, RuleID: p.RuleID, Layer: p.Layer,
			Matched: p.Matched, Observed: p.Observed, Errors: p.Errors, Floor: p.Floor, Lifted: p.Lifted, DryRun: (*policy.DryRunTerms)(p.DryRun),
		},
	}, nil
}

// factsOf gathers facts/v1 from where the record keeps them.
func factsOf(received *event.Envelope, decision *event.Context, f *event.DecisionFacts, channel string) policy.Facts {
	request := &received.Context
	_, reasoned := received.Fields().Get("reason") // a field that is empty is not there
	mode := policy.ModeEnforce
	if decision.Mode == policy.ModeApprovalFirst {
		mode = policy.ModeApprovalFirst
	}
	return policy.Facts{
		QueryType: decision.Operation, QueryTypes: f.QueryTypes, Class: f.Class, SafeRead: f.SafeRead,
		TablesRead: f.TablesRead, TablesWritten: f.TablesWritten, ColumnsWritten: f.ColumnsWritten, Functions: f.Functions,
		RiskSignals: f.RiskSignals, Flags: f.Flags, Where: f.Where, Fingerprint: decision.Fingerprint,
		Actor: request.Actor, App: request.App, Tenant: request.Tenant, Role: request.Role, Host: request.Host, Env: request.Env,
		TLSSubject: f.TLSSubject, AgentID: f.AgentID, AgentToolsVerified: f.AgentToolsVerified,
		Mode: mode, Approved: f.Approved, SessionID: request.SessionID, Channel: channel, GrantSeconds: f.GrantSeconds, ReasonGiven: reasoned,
	}
}

// channelOf is how the statement came in, also where the record is from before the
// channel was a fact: no rule of that time could read it.
func channelOf(received *event.Envelope, f *event.DecisionFacts) (string, error) {
	if f.Channel != "" {
		return f.Channel, nil
	}
	var p event.RequestReceived
	if err := received.Parse(&p); err != nil {
		return "", err
	}
	if p.WireSession != "" {
		return policy.ChannelWire, nil
	}
	return policy.ChannelHTTP, nil
}
