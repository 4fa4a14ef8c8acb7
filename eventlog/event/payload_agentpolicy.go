package event

// Types of an agent policy's life (spec/v1.md part 6).
const (
	TypeAgentPolicyCreated  Type = "agent_policy_created"
	TypeAgentPolicyUpdated  Type = "agent_policy_updated"
	TypeAgentPolicyApplied  Type = "agent_policy_applied"
	TypeAgentPolicyDetached Type = "agent_policy_detached"
)

// Modes of an agent policy.
const (
	AgentPolicyEnforce = "enforce"
	AgentPolicyObserve = "observe"
)

// An AgentPolicy is a policy for agents whole, as of a revision.
type AgentPolicy struct {
	PolicyID string
	Name     string
	Enabled  bool
	Mode     string // AgentPolicyEnforce or AgentPolicyObserve
	Rules    []AgentRule
	Revision int
}

// An AgentRule is one rule of an agent policy.
type AgentRule struct {
	ID         string
	Action     string // verb[:argument]
	Condition  string // CEL; "" = always
	Message    string
	ReasonCode string // "" = the action's own
}

// Bytes is how long the texts of the rule are together.
func (r *AgentRule) Bytes() int {
	return len(r.ID) + len(r.Action) + len(r.Condition) + len(r.Message) + len(r.ReasonCode)
}

func (p *AgentPolicy) form(f *form, origin *Origin) {
	f.flag("enabled", &p.Enabled, may)
	f.str("mode", &p.Mode, need)
	f.str("name", &p.Name, need)
	f.origin(origin)
	f.str("policy_id", &p.PolicyID, need)
	num(f, "revision", &p.Revision, need)
	parts(f, "rules", &p.Rules, (*AgentRule).form)
}

func (r *AgentRule) form(f *form) {
	f.str("action", &r.Action, need)
	f.str("condition", &r.Condition, may)
	f.str("id", &r.ID, need)
	f.str("message", &r.Message, may)
	f.str("reason_code", &r.ReasonCode, may)
}

// AgentPolicyCreated brings a policy.
type AgentPolicyCreated struct {
	Origin Origin
	Policy AgentPolicy
}

// AgentPolicyUpdated replaces a policy for every agent it is applied to.
type AgentPolicyUpdated struct {
	Origin Origin
	Policy AgentPolicy
}

func (*AgentPolicyCreated) EventType() Type         { return TypeAgentPolicyCreated }
func (p *AgentPolicyCreated) From() *Origin         { return &p.Origin }
func (p *AgentPolicyCreated) Fields() Payload       { return write(7, p.form) }
func (p *AgentPolicyCreated) Parse(l Payload) error { return read(l, p.form) }
func (p *AgentPolicyCreated) form(f *form)          { p.Policy.form(f, &p.Origin) }

func (*AgentPolicyUpdated) EventType() Type         { return TypeAgentPolicyUpdated }
func (p *AgentPolicyUpdated) From() *Origin         { return &p.Origin }
func (p *AgentPolicyUpdated) Fields() Payload       { return write(7, p.form) }
func (p *AgentPolicyUpdated) Parse(l Payload) error { return read(l, p.form) }
func (p *AgentPolicyUpdated) form(f *form)          { p.Policy.form(f, &p.Origin) }

// A PolicyApplication binds a policy to an agent with a priority.
type PolicyApplication struct {
	ApplicationID string
	PolicyID      string
	AgentID       string
	Priority      string // as it was given
	PriorityValue int    // 0 to 1000
}

func (a *PolicyApplication) form(f *form, origin *Origin) {
	f.str("agent_id", &a.AgentID, need)
	f.str("application_id", &a.ApplicationID, need)
	f.origin(origin)
	f.str("policy_id", &a.PolicyID, need)
	f.str("priority", &a.Priority, need)
	num(f, "priority_value", &a.PriorityValue, need)
}

// AgentPolicyApplied applies a policy to an agent, or changes the priority of
// an application that there is.
type AgentPolicyApplied struct {
	Origin      Origin
	Application PolicyApplication
}

// AgentPolicyDetached ends an application.
type AgentPolicyDetached struct {
	Origin      Origin
	Application PolicyApplication
}

func (*AgentPolicyApplied) EventType() Type         { return TypeAgentPolicyApplied }
func (p *AgentPolicyApplied) From() *Origin         { return &p.Origin }
func (p *AgentPolicyApplied) Fields() Payload       { return write(6, p.form) }
func (p *AgentPolicyApplied) Parse(l Payload) error { return read(l, p.form) }
func (p *AgentPolicyApplied) form(f *form)          { p.Application.form(f, &p.Origin) }

func (*AgentPolicyDetached) EventType() Type         { return TypeAgentPolicyDetached }
func (p *AgentPolicyDetached) From() *Origin         { return &p.Origin }
func (p *AgentPolicyDetached) Fields() Payload       { return write(6, p.form) }
func (p *AgentPolicyDetached) Parse(l Payload) error { return read(l, p.form) }
func (p *AgentPolicyDetached) form(f *form)          { p.Application.form(f, &p.Origin) }
