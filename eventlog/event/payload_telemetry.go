package event

import "iter"

// Types of what agents report and of what they use.
const (
	TypeTelemetryReceived Type = "telemetry_received"
	TypeUsageRecorded     Type = "usage_recorded"
)

// Statuses of one event of a telemetry batch.
const (
	TelemetryAccepted  = "accepted"
	TelemetryDuplicate = "duplicate"
	TelemetryRejected  = "rejected"
)

// TelemetryReceived is one batch of events that agents sent (spec/v1.md part
// 8). Where one record would pass the log's limit a batch has several, all in
// one append; their outcomes are those of their own part.
type TelemetryReceived struct {
	Origin     Origin
	BatchID    string
	Part       int // from 1; 0 = the batch has one record
	Parts      int
	Events     []TelemetryEvent // the accepted ones
	Duplicates int
	Rejected   int
	Outcomes   []TelemetryOutcome // of every event sent
	Usage      []AgentUsageRead   // what the conditions read, for each agent
	Suspended  []string           // agents that a rule deactivated
}

// A TelemetryEvent is one accepted event. Texts are "" where they were not given.
type TelemetryEvent struct {
	ID           string
	Type         string
	Timestamp    int64 // ns since 1970
	AgentID      string
	SessionID    string
	TraceID      string
	SpanID       string
	ParentSpanID string
	Name         string
	Status       string
	DurationMS   *int64 // nil = not given
	Model        TelemetryModel
	Usage        TelemetryUsage
	Tool         TelemetryTool
	SQLRequestID string
	ErrorType    string
	ErrorMessage string
	Attributes   string // JSON object
}

// TelemetryToolCall is the type of an event that is a call of a tool.
const TelemetryToolCall = "tool_call"

// Failed tells whether the event says that something went wrong.
func (e *TelemetryEvent) Failed() bool { return e.Status == "error" || e.Type == "error" }

// TelemetryModel names the model that was called.
type TelemetryModel struct{ Provider, Name string }

// TelemetryUsage is what an event consumed.
type TelemetryUsage struct {
	InputTokens, OutputTokens, CachedInputTokens int64
	CostMicros                                   int64
}

// TelemetryTool names the tool that was called; of its arguments only a digest.
type TelemetryTool struct{ ID, Name, CallID, ArgumentsSHA256 string }

// A TelemetryOutcome is what became of one event of a batch.
type TelemetryOutcome struct {
	Index      int // in the batch, from 0
	ID         string
	Status     string // TelemetryAccepted and so on
	ErrorCode  string
	Pointer    string
	Message    string
	Evaluated  int // rules asked
	Violations []Violation
	Throttle   []ThrottleCount // matches of throttled rules, this one included
}

// Accepted yields the events of a batch with their outcomes: those that were accepted,
// in the order of the batch.
func (p *TelemetryReceived) Accepted() iter.Seq2[*TelemetryEvent, *TelemetryOutcome] {
	return func(yield func(*TelemetryEvent, *TelemetryOutcome) bool) {
		next := 0
		for i := range p.Outcomes {
			o := &p.Outcomes[i]
			if o.Status != TelemetryAccepted || next == len(p.Events) {
				continue
			}
			next++
			if !yield(&p.Events[next-1], o) {
				return
			}
		}
	}
}

// A Violation is a rule that matched an event after the fact.
type Violation struct {
	PolicyID    string
	RuleID      string
	Action      string
	ReasonCode  string
	Revision    int // of the policy; 0 in events that older versions wrote
	NeedsReview bool
	Annotation  bool // alert, tag or log: noted, not a violation
}

// AgentUsageRead is the root `usage` of one agent.
type AgentUsageRead struct {
	AgentID string
	Usage   AgentUsage
}

func (*TelemetryReceived) EventType() Type         { return TypeTelemetryReceived }
func (p *TelemetryReceived) From() *Origin         { return &p.Origin }
func (p *TelemetryReceived) Fields() Payload       { return write(10, p.form) }
func (p *TelemetryReceived) Parse(l Payload) error { return read(l, p.form) }

func (p *TelemetryReceived) form(f *form) {
	f.str("batch_id", &p.BatchID, need)
	num(f, "duplicates", &p.Duplicates, may)
	parts(f, "events", &p.Events, (*TelemetryEvent).form)
	f.origin(&p.Origin)
	parts(f, "outcomes", &p.Outcomes, (*TelemetryOutcome).form)
	num(f, "part", &p.Part, may)
	num(f, "parts", &p.Parts, may)
	num(f, "rejected", &p.Rejected, may)
	f.strs("suspended", &p.Suspended, may)
	parts(f, "usage", &p.Usage, (*AgentUsageRead).form)
}

func (e *TelemetryEvent) form(f *form) {
	f.str("agent_id", &e.AgentID, need)
	f.str("attributes", &e.Attributes, may)
	bound(f, "duration_ms", &e.DurationMS)
	f.str("error_message", &e.ErrorMessage, may)
	f.str("error_type", &e.ErrorType, may)
	f.str("id", &e.ID, need)
	f.group("model", 2, e.Model.form)
	f.str("name", &e.Name, may)
	f.str("parent_span_id", &e.ParentSpanID, may)
	f.str("session_id", &e.SessionID, may)
	f.str("span_id", &e.SpanID, may)
	f.str("sql_request_id", &e.SQLRequestID, may)
	f.str("status", &e.Status, may)
	num(f, "timestamp", &e.Timestamp, need)
	f.group("tool", 4, e.Tool.form)
	f.str("trace_id", &e.TraceID, may)
	f.str("type", &e.Type, need)
	f.group("usage", 4, e.Usage.form)
}

func (m *TelemetryModel) form(f *form) {
	f.str("name", &m.Name, may)
	f.str("provider", &m.Provider, may)
}

func (u *TelemetryUsage) form(f *form) {
	num(f, "cached_input_tokens", &u.CachedInputTokens, may)
	num(f, "cost_micros", &u.CostMicros, may)
	num(f, "input_tokens", &u.InputTokens, may)
	num(f, "output_tokens", &u.OutputTokens, may)
}

func (t *TelemetryTool) form(f *form) {
	f.str("arguments_sha256", &t.ArgumentsSHA256, may)
	f.str("call_id", &t.CallID, may)
	f.str("id", &t.ID, may)
	f.str("name", &t.Name, may)
}

func (o *TelemetryOutcome) form(f *form) {
	f.str("error_code", &o.ErrorCode, may)
	num(f, "evaluated", &o.Evaluated, may)
	f.str("id", &o.ID, may)
	num(f, "index", &o.Index, need)
	f.str("message", &o.Message, may)
	f.str("pointer", &o.Pointer, may)
	f.str("status", &o.Status, need)
	parts(f, "throttle", &o.Throttle, (*ThrottleCount).form)
	parts(f, "violations", &o.Violations, (*Violation).form)
}

func (v *Violation) form(f *form) {
	f.str("action", &v.Action, need)
	f.flag("annotation", &v.Annotation, may)
	f.flag("needs_review", &v.NeedsReview, may)
	f.str("policy_id", &v.PolicyID, need)
	f.str("reason_code", &v.ReasonCode, may)
	num(f, "revision", &v.Revision, may)
	f.str("rule_id", &v.RuleID, need)
}

func (u *AgentUsageRead) form(f *form) {
	f.str("agent_id", &u.AgentID, need)
	f.group("usage", 9, u.Usage.form)
}

// UsageRecorded counts the requests of a project's credentials in one minute
// (spec/v1.md part 11). A minute may have several: they are added up.
type UsageRecorded struct {
	Minute      int64 // its start, ns since 1970
	Credentials []CredentialUsage
}

// CredentialUsage is one credential's part of a minute.
type CredentialUsage struct {
	CredentialID string
	AgentID      string // of a token, or of the token beside a key
	Requests     int    // counted by the rate limit
	Throttled    int    // refused by it
	Errors       int    // of the counted ones, answered 4xx or 5xx
}

func (*UsageRecorded) EventType() Type         { return TypeUsageRecorded }
func (p *UsageRecorded) Fields() Payload       { return write(2, p.form) }
func (p *UsageRecorded) Parse(l Payload) error { return read(l, p.form) }

func (p *UsageRecorded) form(f *form) {
	parts(f, "credentials", &p.Credentials, (*CredentialUsage).form)
	num(f, "minute", &p.Minute, need)
}

func (u *CredentialUsage) form(f *form) {
	f.str("agent_id", &u.AgentID, may)
	f.str("credential_id", &u.CredentialID, need)
	num(f, "errors", &u.Errors, may)
	num(f, "requests", &u.Requests, may)
	num(f, "throttled", &u.Throttled, may)
}
