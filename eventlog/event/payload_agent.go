package event

// Types of an agent's life (spec/v1.md part 13).
const (
	TypeAgentRegistered   Type = "agent_registered"
	TypeAgentUpdated      Type = "agent_updated"
	TypeAgentDeactivated  Type = "agent_deactivated"
	TypeAgentTokenIssued  Type = "agent_token_issued"
	TypeAgentTokenRevoked Type = "agent_token_revoked"
)

// Statuses of an agent.
const (
	AgentActive   = "active"
	AgentInactive = "inactive"
)

// Causes of what ends an agent or a token.
const (
	CauseRequest          = "request"
	CausePolicy           = "policy"
	CauseAgentDeactivated = "agent_deactivated"
	CauseLoss             = "log_loss" // events before the log were lost, and may have been what ends it
)

// An Agent is a registered agent whole, as of a revision.
type Agent struct {
	AgentID  string
	Name     string
	Type     string
	Status   string // AgentActive or AgentInactive
	Config   AgentConfig
	Metadata map[string]string
	Revision int
}

// AgentConfig is what is known of the agent's model.
type AgentConfig struct {
	Model       string
	MaxTokens   int    // 0 = not said
	Temperature string // JSON number; "" = not said
}

func (a *Agent) agentForm(f *form) {
	f.str("agent_id", &a.AgentID, need)
	f.group("config", 3, a.Config.form)
	f.dict("metadata", &a.Metadata, may)
	f.str("name", &a.Name, need)
}

func (c *AgentConfig) form(f *form) {
	num(f, "max_tokens", &c.MaxTokens, may)
	f.str("model", &c.Model, may)
	f.str("temperature", &c.Temperature, may)
}

// AgentRegistered brings a new agent.
type AgentRegistered struct {
	Origin Origin
	Agent  Agent
}

func (*AgentRegistered) EventType() Type         { return TypeAgentRegistered }
func (p *AgentRegistered) From() *Origin         { return &p.Origin }
func (p *AgentRegistered) Fields() Payload       { return write(8, p.form) }
func (p *AgentRegistered) Parse(l Payload) error { return read(l, p.form) }

func (p *AgentRegistered) form(f *form) {
	p.Agent.agentForm(f)
	f.origin(&p.Origin)
	p.Agent.agentEnd(f)
}

func (a *Agent) agentEnd(f *form) {
	num(f, "revision", &a.Revision, need)
	f.str("status", &a.Status, need)
	f.str("type", &a.Type, need)
}

// AgentUpdated replaces what an agent is; a change of status to active takes it
// back into service.
type AgentUpdated struct {
	Origin  Origin
	Agent   Agent
	Changed []string // JSON pointers
}

func (*AgentUpdated) EventType() Type         { return TypeAgentUpdated }
func (p *AgentUpdated) From() *Origin         { return &p.Origin }
func (p *AgentUpdated) Fields() Payload       { return write(9, p.form) }
func (p *AgentUpdated) Parse(l Payload) error { return read(l, p.form) }

func (p *AgentUpdated) form(f *form) {
	f.str("agent_id", &p.Agent.AgentID, need)
	f.strs("changed", &p.Changed, may)
	f.group("config", 3, p.Agent.Config.form)
	f.dict("metadata", &p.Agent.Metadata, may)
	f.str("name", &p.Agent.Name, need)
	f.origin(&p.Origin)
	p.Agent.agentEnd(f)
}

// AgentDeactivated ends an agent until it is reactivated.
type AgentDeactivated struct {
	Origin   Origin
	AgentID  string
	Revision int
	Cause    string // CauseRequest, CausePolicy or CauseLoss
	Reason   string
	PolicyID string // with CausePolicy
	RuleID   string // with CausePolicy
}

func (*AgentDeactivated) EventType() Type         { return TypeAgentDeactivated }
func (p *AgentDeactivated) From() *Origin         { return &p.Origin }
func (p *AgentDeactivated) Fields() Payload       { return write(7, p.form) }
func (p *AgentDeactivated) Parse(l Payload) error { return read(l, p.form) }

func (p *AgentDeactivated) form(f *form) {
	f.str("agent_id", &p.AgentID, need)
	f.str("cause", &p.Cause, need)
	f.origin(&p.Origin)
	f.str("policy_id", &p.PolicyID, may)
	f.str("reason", &p.Reason, may)
	num(f, "revision", &p.Revision, need)
	f.str("rule_id", &p.RuleID, may)
}

// AgentTokenIssued brings a token; only its digest is kept, and what checks it as a
// password of the wire listener.
type AgentTokenIssued struct {
	Origin            Origin
	TokenID           string
	AgentID           string
	TokenSHA256       [32]byte
	Hint              string // first 8 and last 4 characters
	Scopes            []string
	ExpiresAt         int64  // ns since 1970
	Replaces          string // a token's id; "" = none
	ReplacedExpiresAt int64  // ns since 1970, when the replaced token ends
	Verifier          string // SCRAM-SHA-256, in PostgreSQL's form; "" = of a token that is older than these
	Salt              Salt
}

func (*AgentTokenIssued) EventType() Type         { return TypeAgentTokenIssued }
func (p *AgentTokenIssued) From() *Origin         { return &p.Origin }
func (p *AgentTokenIssued) Fields() Payload       { return write(11, p.form) }
func (p *AgentTokenIssued) Parse(l Payload) error { return read(l, p.form) }

func (p *AgentTokenIssued) form(f *form) {
	f.str("agent_id", &p.AgentID, need)
	num(f, "expires_at", &p.ExpiresAt, need)
	f.str("hint", &p.Hint, need)
	f.origin(&p.Origin)
	num(f, "replaced_expires_at", &p.ReplacedExpiresAt, may)
	f.str("replaces", &p.Replaces, may)
	f.salt(&p.Salt)
	f.strs("scopes", &p.Scopes, need)
	f.str(keyVerifier, &p.Verifier, may)
	f.str("token_id", &p.TokenID, need)
	f.hash("token_sha256", &p.TokenSHA256, need)
}

// AgentTokenRevoked ends a token for good.
type AgentTokenRevoked struct {
	Origin  Origin
	TokenID string
	AgentID string
	Cause   string // CauseRequest or CauseAgentDeactivated
}

func (*AgentTokenRevoked) EventType() Type         { return TypeAgentTokenRevoked }
func (p *AgentTokenRevoked) From() *Origin         { return &p.Origin }
func (p *AgentTokenRevoked) Fields() Payload       { return write(4, p.form) }
func (p *AgentTokenRevoked) Parse(l Payload) error { return read(l, p.form) }

func (p *AgentTokenRevoked) form(f *form) {
	f.str("agent_id", &p.AgentID, need)
	f.str("cause", &p.Cause, need)
	f.origin(&p.Origin)
	f.str("token_id", &p.TokenID, need)
}
