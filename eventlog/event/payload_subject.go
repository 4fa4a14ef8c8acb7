package event

// Types of the life of a bound subject.
const (
	TypeAgentSubjectBound   Type = "agent_subject_bound"
	TypeAgentSubjectUnbound Type = "agent_subject_unbound"
)

// AgentSubjectBound lets a subject of the issuer of agents' tokens speak for one agent:
// from here on a JWT of it is a credential of that agent, named by SubjectID wherever
// evidence names credentials. The agent and its project stand in the context. The subject
// stands here in plain, so that an auditor can hold it against the issuer's own records;
// everybody else is shown the event without it (Draft.WithoutData), since issuers may
// name people by it.
type AgentSubjectBound struct {
	SubjectID  string
	Issuer     string // as `iss` of its tokens, exact
	Subject    string // as `sub` of its tokens, exact
	Scopes     []string
	TokensFrom int64 // ns since 1970; tokens that were issued before are not good. 0 = all are
	Reason     string
	By         string // label of the operator token
	Salt       Salt   // of the subject
}

func (*AgentSubjectBound) EventType() Type         { return TypeAgentSubjectBound }
func (p *AgentSubjectBound) Fields() Payload       { return write(8, p.form) }
func (p *AgentSubjectBound) Parse(l Payload) error { return read(l, p.form) }

func (p *AgentSubjectBound) form(f *form) {
	f.str("by", &p.By, need)
	f.str("issuer", &p.Issuer, need)
	f.str("reason", &p.Reason, need)
	f.salt(&p.Salt)
	f.strs("scopes", &p.Scopes, need)
	f.str(keySubject, &p.Subject, need)
	f.str("subject_id", &p.SubjectID, need)
	num(f, "tokens_from", &p.TokensFrom, may)
}

// AgentSubjectUnbound ends that a subject speaks for its agent. Tokens of it that were
// issued before are not good under a later binding either.
type AgentSubjectUnbound struct {
	SubjectID string
	Reason    string
	By        string // label of the operator token
}

func (*AgentSubjectUnbound) EventType() Type         { return TypeAgentSubjectUnbound }
func (p *AgentSubjectUnbound) Fields() Payload       { return write(3, p.form) }
func (p *AgentSubjectUnbound) Parse(l Payload) error { return read(l, p.form) }

func (p *AgentSubjectUnbound) form(f *form) {
	f.str("by", &p.By, need)
	f.str("reason", &p.Reason, need)
	f.str("subject_id", &p.SubjectID, need)
}
