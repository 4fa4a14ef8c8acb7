package projections

import (
	"strings"
	"time"

	"writegate/eventlog/event"
)

// An Agent is a registered agent as it is now.
type Agent struct {
	event.Agent
	Project       string
	Seq           uint64 // of agent_registered
	CreatedAt     time.Time
	UpdatedAt     time.Time
	DeactivatedAt time.Time // zero = active
	SeenAt        time.Time // start of the last minute with recorded usage or a statement; zero = never
	// DeactivatedSeq is of the last agent_deactivated, also where the agent is back in
	// service: approvals that were asked for before it are withdrawn. 0 = never.
	DeactivatedSeq uint64
	EndedAt        time.Time // when that was; DeactivatedAt is that of an inactive agent
}

// An AgentToken is a token without its secret.
type AgentToken struct {
	ID        string
	AgentID   string
	Project   string
	Digest    [32]byte
	Hint      string
	Scopes    []string
	Seq       uint64 // of agent_token_issued
	CreatedAt time.Time
	ExpiresAt time.Time
	RevokedAt time.Time // zero = not revoked
	Replaces  string
	Ended     bool      // it was replaced without a grace: it is expired for good, also where the clock is set back
	UsedAt    time.Time // start of the last minute with recorded usage or a statement; zero = never
}

// A TokenVerifier checks a token as a password of the wire listener.
type TokenVerifier struct {
	TokenID  string
	Verifier string // SCRAM-SHA-256, in PostgreSQL's form
}

// tokenVerifiers are those of an agent's tokens, the oldest first, but for tokens that were
// not live any more when a later one was issued.
type tokenVerifiers []TokenVerifier

// Statuses of a token.
const (
	TokenLive    = "live"
	TokenExpired = "expired"
	TokenRevoked = "revoked"
)

// StatusAt is the token's status at a moment, as far as it goes by the token alone.
func (k *AgentToken) StatusAt(now time.Time) string {
	switch {
	case !k.RevokedAt.IsZero():
		return TokenRevoked
	case k.Ended, !now.Before(k.ExpiresAt):
		return TokenExpired
	}
	return TokenLive
}

// TokenStatus is the status of one of the agent's tokens at a moment. Those from before its
// deactivation ended with it, whatever the clock said and however many they were; events tell
// of a part of them.
func (a *Agent) TokenStatus(k *AgentToken, now time.Time) string {
	if k.Seq != 0 && k.Seq < a.DeactivatedSeq { // 0: it is only being issued
		return TokenRevoked
	}
	return k.StatusAt(now)
}

// An AgentPolicy is a policy for agents as it is now.
type AgentPolicy struct {
	event.AgentPolicy
	Project      string
	Seq          uint64 // of agent_policy_created
	CreatedAt    time.Time
	UpdatedAt    time.Time
	Applications int // that are not detached
}

// An AgentPolicyHead is what decisions read of a policy before its rules: a small
// record, however long they are.
type AgentPolicyHead struct {
	Project  string
	Enabled  bool
	Mode     string // event.AgentPolicyEnforce or event.AgentPolicyObserve
	Revision int
	Text     int  // bytes of the texts of its rules
	Patterns bool // a condition may have patterns
}

func (p *AgentPolicy) head() *AgentPolicyHead {
	h := &AgentPolicyHead{Project: p.Project, Enabled: p.Enabled, Mode: p.Mode, Revision: p.Revision}
	for i := range p.Rules {
		h.Text += p.Rules[i].Bytes()
		h.Patterns = h.Patterns || strings.Contains(p.Rules[i].Condition, "matches")
	}
	return h
}

// An Application binds a policy to an agent. A detached one is no more.
type Application struct {
	event.PolicyApplication
	Seq       uint64 // of the last agent_policy_applied
	AppliedAt time.Time
	AppliedBy string // credential
}

func (a *Agent) walk(c *codec) {
	texts(c, &a.AgentID, &a.Name, &a.Type, &a.Status, &a.Config.Model, &a.Config.Temperature)
	number(c, &a.Config.MaxTokens)
	c.dict(&a.Metadata)
	number(c, &a.Revision)
	text(c, &a.Project)
	number(c, &a.Seq)
	c.moments(&a.CreatedAt, &a.UpdatedAt, &a.DeactivatedAt, &a.EndedAt, &a.SeenAt)
	number(c, &a.DeactivatedSeq)
}

func (k *AgentToken) walk(c *codec) {
	texts(c, &k.ID, &k.AgentID, &k.Project, &k.Hint, &k.Replaces)
	c.fixed(k.Digest[:])
	c.strings(&k.Scopes)
	number(c, &k.Seq)
	c.moments(&k.CreatedAt, &k.ExpiresAt, &k.RevokedAt, &k.UsedAt)
	c.flag(&k.Ended)
}

func (l *tokenVerifiers) walk(c *codec) {
	n := c.length(len(*l))
	if c.reading {
		*l = make(tokenVerifiers, n)
	}
	for i := range *l {
		texts(c, &(*l)[i].TokenID, &(*l)[i].Verifier)
	}
}

func (p *AgentPolicy) walk(c *codec) {
	texts(c, &p.PolicyID, &p.Name, &p.Mode, &p.Project)
	c.flag(&p.Enabled)
	number(c, &p.Revision)
	number(c, &p.Seq)
	number(c, &p.Applications)
	c.moments(&p.CreatedAt, &p.UpdatedAt)
	n := c.length(len(p.Rules))
	if c.reading {
		p.Rules = make([]event.AgentRule, n)
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		texts(c, &r.ID, &r.Action, &r.Condition, &r.Message, &r.ReasonCode)
	}
}

func (h *AgentPolicyHead) walk(c *codec) {
	texts(c, &h.Project, &h.Mode)
	c.flag(&h.Enabled)
	number(c, &h.Revision)
	number(c, &h.Text)
	c.flag(&h.Patterns)
}

func (a *Application) walk(c *codec) {
	texts(c, &a.ApplicationID, &a.PolicyID, &a.AgentID, &a.Priority, &a.AppliedBy)
	number(c, &a.PriorityValue)
	number(c, &a.Seq)
	c.moments(&a.AppliedAt)
}

// A name is a record that is one text: where an index leads.
type name string

func (n *name) walk(c *codec) { text(c, n) }
