package event

// AgentLayer is what the rules of an agent said to a statement, with all that
// they read, so that anyone can compute it again (spec/v1.md part 7).
type AgentLayer struct {
	AgentID    string
	AppliedSeq uint64 // of the last event that the rules were as of
	Decision   string // of this layer alone
	ReasonCode string
	PolicyID   string // "" = no rule decided
	RuleID     string // "" = no rule decided
	TTLSeconds int    // of an approval that the rule asks for; 0 = the default
	Message    string
	Effective  []EffectivePolicy // what was asked, highest priority first
	Matched    []MatchedPolicy
	WouldBe    []RuleOutcome // of policies that only observe
	Notes      []RuleOutcome // annotations: alert, tag, log
	Errors     []RuleOutcome // conditions that could not be evaluated
	Agent      AgentRoot
	Usage      AgentUsage
	Throttle   []ThrottleCount
}

// An EffectivePolicy is a policy as it was asked.
type EffectivePolicy struct {
	ApplicationID string
	PolicyID      string
	Revision      int
	PriorityValue int
}

// A MatchedPolicy names the rules of a policy that matched.
type MatchedPolicy struct {
	ApplicationID string
	PolicyID      string
	Revision      int
	PriorityValue int
	Rules         []string
}

// A RuleOutcome is what one rule said.
type RuleOutcome struct {
	PolicyID   string
	RuleID     string
	Action     string
	ReasonCode string
}

// An AgentRoot is the root `agent` of a condition.
type AgentRoot struct {
	ID               string
	Name             string
	Type             string
	Environment      string
	Version          string
	Model            string
	MaxTokens        int
	TemperatureMilli int
	ToolsVerified    bool
}

// AgentUsage is the root `usage` of a condition.
type AgentUsage struct {
	Requests1h, Events1h, Errors1h int64
	Tokens1h, Tokens24h            int64
	CostMicros24h                  int64
	ToolCalls1h                    int64
	SQLDecisions1h, SQLWrites1h    int64
}

// A ThrottleCount is how often a throttled rule matched in its window, this
// time included.
type ThrottleCount struct {
	PolicyID          string
	RuleID            string
	Count             int
	Limit             int
	RetryAfterSeconds int // 0 = below the limit
}

func (l *AgentLayer) form(f *form) {
	f.group("agent", 9, l.Agent.form)
	f.str("agent_id", &l.AgentID, need)
	parts(f, "annotations", &l.Notes, (*RuleOutcome).form)
	num(f, "applied_seq", &l.AppliedSeq, need)
	f.str("decision", &l.Decision, need)
	parts(f, "effective", &l.Effective, (*EffectivePolicy).form)
	parts(f, "errors", &l.Errors, (*RuleOutcome).form)
	parts(f, "matched", &l.Matched, (*MatchedPolicy).form)
	f.str("message", &l.Message, may)
	f.str("policy_id", &l.PolicyID, may)
	f.str("reason_code", &l.ReasonCode, may)
	f.str("rule_id", &l.RuleID, may)
	parts(f, "throttle", &l.Throttle, (*ThrottleCount).form)
	num(f, "ttl_seconds", &l.TTLSeconds, may)
	f.group("usage", 9, l.Usage.form)
	parts(f, "would_be", &l.WouldBe, (*RuleOutcome).form)
}

func (p *EffectivePolicy) form(f *form) {
	f.str("application_id", &p.ApplicationID, need)
	f.str("policy_id", &p.PolicyID, need)
	num(f, "priority_value", &p.PriorityValue, need)
	num(f, "revision", &p.Revision, need)
}

func (m *MatchedPolicy) form(f *form) {
	f.str("application_id", &m.ApplicationID, need)
	f.str("policy_id", &m.PolicyID, need)
	num(f, "priority_value", &m.PriorityValue, need)
	num(f, "revision", &m.Revision, need)
	f.strs("rules", &m.Rules, need)
}

func (o *RuleOutcome) form(f *form) {
	f.str("action", &o.Action, need)
	f.str("policy_id", &o.PolicyID, need)
	f.str("reason_code", &o.ReasonCode, may)
	f.str("rule_id", &o.RuleID, need)
}

func (a *AgentRoot) form(f *form) {
	f.str("environment", &a.Environment, may)
	f.str("id", &a.ID, need)
	num(f, "max_tokens", &a.MaxTokens, may)
	f.str("model", &a.Model, may)
	f.str("name", &a.Name, need)
	num(f, "temperature_milli", &a.TemperatureMilli, may)
	f.flag("tools_verified", &a.ToolsVerified, may)
	f.str("type", &a.Type, need)
	f.str("version", &a.Version, may)
}

func (u *AgentUsage) form(f *form) {
	num(f, "cost_micros_24h", &u.CostMicros24h, may)
	num(f, "errors_1h", &u.Errors1h, may)
	num(f, "events_1h", &u.Events1h, may)
	num(f, "requests_1h", &u.Requests1h, may)
	num(f, "sql_decisions_1h", &u.SQLDecisions1h, may)
	num(f, "sql_writes_1h", &u.SQLWrites1h, may)
	num(f, "tokens_1h", &u.Tokens1h, may)
	num(f, "tokens_24h", &u.Tokens24h, may)
	num(f, "tool_calls_1h", &u.ToolCalls1h, may)
}

func (t *ThrottleCount) form(f *form) {
	num(f, "count", &t.Count, need)
	num(f, "limit", &t.Limit, need)
	f.str("policy_id", &t.PolicyID, need)
	num(f, "retry_after_seconds", &t.RetryAfterSeconds, may)
	f.str("rule_id", &t.RuleID, need)
}
