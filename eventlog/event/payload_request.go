package event

// Types of a request and its decision.
const (
	TypeRequestReceived  Type = "request_received"
	TypeQueryRejected    Type = "query_rejected"
	TypeDecisionRecorded Type = "decision_recorded"
	TypeEmergencyBypass  Type = "emergency_bypass"
)

// RequestReceived is a statement that reached a decision. Its claims, role and
// host stand in the context.
type RequestReceived struct {
	SQLDigest        [32]byte // SHA-256 of the exact text
	SQLBytes         int
	SQLText          string   // as GATE_AUDIT_SQL_TEXT says; "" = none
	ExecutionProfile string   // "" = default
	IdempotencyKey   string   // "" = none
	RequestDigest    [32]byte // SHA-256 over text and context: what an approval or key is bound to
	Principal        string   // the verified identity; "" = none
	CredentialIDs    []string // of the agent's token; none = the request had none
	WireSession      string   // the connection of the wire listener that it came on; "" = POST /query
	Purpose          string   // PurposeDescribe or PurposeDryRun; "" = it was to be carried out
	Client           string   // name and version of an MCP client, a claim; "" = it said none
	Reason           string   // why the client wants it, a claim; "" = it said none
	Salt             Salt     // of the key
}

// PurposeDescribe is the purpose of a request whose statement the server is only
// to describe or to plan: nothing of it runs under this decision. The run of the
// decision is RunDescribe.
const PurposeDescribe = "describe"

func (*RequestReceived) EventType() Type         { return TypeRequestReceived }
func (p *RequestReceived) Fields() Payload       { return write(10, p.form) }
func (p *RequestReceived) Parse(l Payload) error { return read(l, p.form) }

func (p *RequestReceived) form(f *form) {
	f.str("client", &p.Client, may)
	f.strs("credential_ids", &p.CredentialIDs, may)
	f.str("execution_profile", &p.ExecutionProfile, may)
	f.str("idempotency_key", &p.IdempotencyKey, may)
	f.str("principal", &p.Principal, may)
	f.str("purpose", &p.Purpose, may)
	f.str("reason", &p.Reason, may)
	f.hash("request_digest", &p.RequestDigest, need)
	f.salt(&p.Salt)
	num(f, "sql_bytes", &p.SQLBytes, need)
	f.hash("sql_digest", &p.SQLDigest, need)
	f.str("sql_text", &p.SQLText, may)
	f.str("wire_session", &p.WireSession, may)
}

// QueryRejected is a request that was refused before a decision; the context's
// error_code or reason_code says why.
type QueryRejected struct {
	SQLDigest        [32]byte // zero = there was no text
	SQLBytes         int      // 0 = there was no text
	Limit            string   // name of the limit that was hit; "" = none
	Position         int      // in characters of the text, from 1; 0 = none
	Principal        string
	ExecutionProfile string
	CredentialIDs    []string // of the agent's token; none = the request had none
	WireSession      string   // as in RequestReceived
	Channel          string   // as in DecisionFacts
	Client           string   // as in RequestReceived
}

func (*QueryRejected) EventType() Type         { return TypeQueryRejected }
func (p *QueryRejected) Fields() Payload       { return write(8, p.form) }
func (p *QueryRejected) Parse(l Payload) error { return read(l, p.form) }

func (p *QueryRejected) form(f *form) {
	f.str("channel", &p.Channel, may)
	f.str("client", &p.Client, may)
	f.strs("credential_ids", &p.CredentialIDs, may)
	f.str("execution_profile", &p.ExecutionProfile, may)
	f.str("limit", &p.Limit, may)
	num(f, "position", &p.Position, may)
	f.str("principal", &p.Principal, may)
	num(f, "sql_bytes", &p.SQLBytes, may)
	f.hash("sql_digest", &p.SQLDigest, may)
	f.str("wire_session", &p.WireSession, may)
}

// DecisionRecorded holds all that the decision read and all it found, so that
// anyone can compute it again (design/policy.md part 9). Decision, reason_code,
// policy_version, mode, query type and fingerprint stand in the context; the
// claims in the request's request_received.
type DecisionRecorded struct {
	Enforced   bool
	Bypass     bool
	RuleID     string
	Layer      string
	Matched    []string
	Observed   []string
	Errors     []string
	Floor      []string
	Lifted     []string
	Approval   *ApprovalTerms // with REQUIRE_APPROVAL, else nil
	PolicyHash [32]byte
	Engine     uint64 // seq of the startup event that names the engine's versions
	Run        string // how the statement runs (design/execution-and-wire.md part 2), RunSession, RunDescribe or RunDryRun
	Facts      DecisionFacts
	AgentLayer *AgentLayer  // nil = no agent's token was shown
	Catalog    *CatalogUse  // nil = by its text alone
	GrantID    string       // the grant that stands for the approval; "" = none
	DryRun     *DryRunTerms // with RunDryRun: what the rules take of it; nil = no dry run
}

// RunSession is the run of a statement that the gate answers itself: its
// decision is that on session control (design/policy.md part 5).
const RunSession = "session"

// RunDescribe is the run of a statement that does not run: the decision lets the
// server parse it for its description, or plan it for the person who approves.
const RunDescribe = "describe"

// ApprovalTerms are the terms that a rule sets for an approval.
type ApprovalTerms struct {
	TTLSeconds int
	MaxRows    *int64 // nil = no limit, 0 = no row at all
}

// DecisionFacts are the variables of facts/v1 (design/policy.md part 3) that
// stand nowhere else in the request's events.
type DecisionFacts struct {
	QueryTypes         []string
	Class              string
	SafeRead           bool
	TablesRead         []string
	TablesWritten      []string
	ColumnsWritten     []string
	Functions          []string
	RiskSignals        []string
	Flags              []string
	Where              []string
	TLSSubject         string
	AgentID            string
	AgentToolsVerified bool
	Approved           bool
	GrantSeconds       int    // how long the grant under which it was decided is for; 0 = under none
	Channel            string // how the statement came in; "" = an older record: wire where its request has a wire_session, else http
}

func (*DecisionRecorded) EventType() Type         { return TypeDecisionRecorded }
func (p *DecisionRecorded) Fields() Payload       { return write(18, p.form) }
func (p *DecisionRecorded) Parse(l Payload) error { return read(l, p.form) }

func (p *DecisionRecorded) form(f *form) {
	part(f, "agent_layer", &p.AgentLayer, (*AgentLayer).form)
	part(f, "approval", &p.Approval, (*ApprovalTerms).form)
	f.flag("bypass", &p.Bypass, may)
	part(f, "catalog", &p.Catalog, (*CatalogUse).form)
	part(f, "dry_run", &p.DryRun, (*DryRunTerms).form)
	f.flag("enforced", &p.Enforced, need)
	num(f, "engine", &p.Engine, need)
	f.strs("errors", &p.Errors, may)
	f.group("facts", 16, p.Facts.form)
	f.strs("floor", &p.Floor, may)
	f.str("grant_id", &p.GrantID, may)
	f.str("layer", &p.Layer, need)
	f.strs("lifted", &p.Lifted, may)
	f.strs("matched", &p.Matched, may)
	f.strs("observed", &p.Observed, may)
	f.hash("policy_hash", &p.PolicyHash, need)
	f.str("rule_id", &p.RuleID, need)
	f.str("run", &p.Run, need)
}

func (t *ApprovalTerms) form(f *form) {
	bound(f, "max_rows", &t.MaxRows)
	num(f, "ttl_seconds", &t.TTLSeconds, need)
}

func (d *DecisionFacts) form(f *form) {
	f.str("agent_id", &d.AgentID, may)
	f.flag("agent_tools_verified", &d.AgentToolsVerified, may)
	f.flag("approved", &d.Approved, may)
	f.str("channel", &d.Channel, may)
	f.str("class", &d.Class, may)
	f.strs("columns_written", &d.ColumnsWritten, may)
	f.strs("flags", &d.Flags, may)
	f.strs("functions", &d.Functions, may)
	num(f, "grant_seconds", &d.GrantSeconds, may)
	f.strs("query_types", &d.QueryTypes, may)
	f.strs("risk_signals", &d.RiskSignals, may)
	f.flag("safe_read", &d.SafeRead, may)
	f.strs("tables_read", &d.TablesRead, may)
	f.strs("tables_written", &d.TablesWritten, may)
	f.str("tls_subject", &d.TLSSubject, may)
	f.strs("where", &d.Where, may)
}

// EmergencyBypass is written before a statement runs although its decision was
// not ALLOW (spec/decisions.md part 2).
type EmergencyBypass struct {
	Reason string // GATE_EMERGENCY_BYPASS_REASON
	Until  int64  // GATE_EMERGENCY_BYPASS_UNTIL, ns since 1970
	By     string // label of the operator token
}

func (*EmergencyBypass) EventType() Type         { return TypeEmergencyBypass }
func (p *EmergencyBypass) Fields() Payload       { return write(3, p.form) }
func (p *EmergencyBypass) Parse(l Payload) error { return read(l, p.form) }

func (p *EmergencyBypass) form(f *form) {
	f.str("by", &p.By, need)
	f.str("reason", &p.Reason, need)
	num(f, "until", &p.Until, need)
}
