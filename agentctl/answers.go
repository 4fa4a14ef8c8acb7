package agentctl

import (
	"encoding/json"
	"slices"
	"time"

	"writegate/eventlog/event"
	"writegate/projections"
)

// AgentBody is an agent as /v1 shows it (spec/v1.md part 5).
type AgentBody struct {
	ID              string            `json:"id"`
	Name            string            `json:"name"`
	Type            string            `json:"type"`
	Status          string            `json:"status"`
	Config          ConfigBody        `json:"config"`
	Metadata        map[string]string `json:"metadata"`
	AppliedPolicies []AppliedPolicy   `json:"applied_policies"`
	Revision        int               `json:"revision"`
	CreatedAt       string            `json:"created_at"`
	UpdatedAt       string            `json:"updated_at"`
	DeactivatedAt   *string           `json:"deactivated_at"`
	LastSeenAt      *string           `json:"last_seen_at"`
}

// ConfigBody is what is known of an agent's model.
type ConfigBody struct {
	Model       string          `json:"model,omitempty"`
	MaxTokens   int             `json:"max_tokens,omitempty"`
	Temperature json.RawMessage `json:"temperature,omitempty"`
}

// AppliedPolicy names an application of an agent.
type AppliedPolicy struct {
	ApplicationID string `json:"application_id"`
	PolicyID      string `json:"policy_id"`
	Priority      string `json:"priority"`
}

// A Warning is something to look at that does not keep a write from happening.
type Warning struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// RegisteredBody is the answer of a registration; only the first answer holds
// the token.
type RegisteredBody struct {
	AgentBody
	Credentials *CredentialsBody `json:"credentials"`
	Warnings    []Warning        `json:"warnings,omitempty"`
}

// CredentialsBody is a new token. Token is null where the answer is given again.
type CredentialsBody struct {
	TokenID   string  `json:"token_id"`
	Token     *string `json:"token"`
	ExpiresAt string  `json:"expires_at"`
}

// ChangedBody is the answer of a change of an agent.
type ChangedBody struct {
	AgentBody
	Warnings []Warning `json:"warnings,omitempty"`
}

// TokenBody is a token; Token stands in the first answer to its issue alone.
type TokenBody struct {
	TokenID    string   `json:"token_id"`
	Token      *string  `json:"token,omitempty"`
	Hint       string   `json:"hint"`
	Scopes     []string `json:"scopes"`
	Status     string   `json:"status"`
	ExpiresAt  string   `json:"expires_at"`
	CreatedAt  string   `json:"created_at"`
	RevokedAt  *string  `json:"revoked_at"`
	LastUsedAt *string  `json:"last_used_at"`
	Replaces   *string  `json:"replaces"`
	WireLogin  bool     `json:"wire_login"` // it is good as the agent's password at the wire listener
}

// IssuedBody is the answer of an issue: Token is null where it is given again.
type IssuedBody struct {
	TokenBody
	Token *string `json:"token"`
}

// PolicyBody is a policy for agents (spec/v1.md part 6).
type PolicyBody struct {
	ID                string     `json:"id"`
	Name              string     `json:"name"`
	Enabled           bool       `json:"enabled"`
	Mode              string     `json:"mode"`
	Revision          int        `json:"revision"`
	ApplicationsCount int        `json:"applications_count"`
	CreatedAt         string     `json:"created_at"`
	UpdatedAt         string     `json:"updated_at"`
	Rules             []RuleBody `json:"rules"`
	Warnings          []Warning  `json:"warnings,omitempty"`
}

// RuleBody is one rule of it.
type RuleBody struct {
	ID         string `json:"id"`
	Action     string `json:"action"`
	Condition  string `json:"condition"`
	Message    string `json:"message,omitempty"`
	ReasonCode string `json:"reason_code,omitempty"`
}

// ApplicationBody is a policy applied to an agent.
type ApplicationBody struct {
	ApplicationID    string       `json:"application_id"`
	PolicyID         string       `json:"policy_id"`
	AgentID          string       `json:"agent_id"`
	Priority         string       `json:"priority"`
	PriorityValue    int          `json:"priority_value"`
	PolicyRevision   int          `json:"policy_revision"`
	Status           string       `json:"status"` // effective, asleep, detached, preview
	AppliedAt        string       `json:"applied_at"`
	AppliedBy        string       `json:"applied_by"`
	EffectiveFromSeq uint64       `json:"effective_from_seq"`
	Preview          *PreviewBody `json:"preview"`
	Warnings         []Warning    `json:"warnings"`
}

// PreviewBody is what a policy would have done in the agent's last 24 hours.
type PreviewBody struct {
	Window         string `json:"window"`
	Events         int    `json:"events"`
	EventsMatching int    `json:"events_matching"`
	SQLDecisions   int    `json:"sql_decisions"`
	SQLWouldChange int    `json:"sql_would_change"`

	// The newest of those that would change, the newest first, at most previewChanges.
	SQLChanges []PreviewChange `json:"sql_changes,omitempty"`
}

// A PreviewChange is a decision that would have been stricter.
type PreviewChange struct {
	RequestID string `json:"request_id"`
	Seq       uint64 `json:"seq"`  // of its decision_recorded
	From      string `json:"from"` // as it was recorded
	To        string `json:"to"`
	RuleID    string `json:"rule_id"` // of the policy that was asked
}

// moment renders an optional time: null where there is none.
func moment(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := event.Timestamp(t)
	return &text
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// agentBody renders an agent with its applications.
func (s *Service) agentBody(view *projections.View, a *projections.Agent) (AgentBody, error) {
	list, err := view.ApplicationsOf(a.AgentID)
	b := AgentBody{ID: a.AgentID, Name: a.Name, Type: a.Type, Status: a.Status, Metadata: a.Metadata, AppliedPolicies: []AppliedPolicy{},
		Config: ConfigBody{Model: a.Config.Model, MaxTokens: a.Config.MaxTokens, Temperature: json.RawMessage(a.Config.Temperature)}, Revision: a.Revision,
		CreatedAt: event.Timestamp(a.CreatedAt), UpdatedAt: event.Timestamp(a.UpdatedAt), DeactivatedAt: moment(a.DeactivatedAt),
		LastSeenAt: moment(s.uses.seen(a.AgentID, a.SeenAt))}
	if b.Metadata == nil {
		b.Metadata = map[string]string{}
	}
	for i := range list {
		b.AppliedPolicies = append(b.AppliedPolicies, AppliedPolicy{list[i].ApplicationID, list[i].PolicyID, list[i].Priority})
	}
	return b, err
}

// tokenBody renders a token of an agent; verifiers are those of its agent.
func (s *Service) tokenBody(a *projections.Agent, k *projections.AgentToken, verifiers []projections.TokenVerifier, now time.Time) TokenBody {
	status, revoked := a.TokenStatus(k, now), k.RevokedAt
	if status == projections.TokenRevoked && revoked.IsZero() {
		revoked = a.EndedAt
	}
	wire := slices.Contains(k.Scopes, string(ScopeQuery)) && status == projections.TokenLive &&
		slices.ContainsFunc(verifiers, func(v projections.TokenVerifier) bool { return v.TokenID == k.ID })
	return TokenBody{TokenID: k.ID, Hint: k.Hint, Scopes: k.Scopes, Status: status, ExpiresAt: event.Timestamp(k.ExpiresAt),
		CreatedAt: event.Timestamp(k.CreatedAt), RevokedAt: moment(revoked), LastUsedAt: moment(s.uses.seen(k.ID, k.UsedAt)), Replaces: optional(k.Replaces), WireLogin: wire}
}

func policyBody(p *projections.AgentPolicy) PolicyBody {
	b := PolicyBody{ID: p.PolicyID, Name: p.Name, Enabled: p.Enabled, Mode: p.Mode, Revision: p.Revision, ApplicationsCount: p.Applications,
		CreatedAt: event.Timestamp(p.CreatedAt), UpdatedAt: event.Timestamp(p.UpdatedAt), Rules: make([]RuleBody, len(p.Rules))}
	for i, r := range p.Rules {
		b.Rules[i] = RuleBody{ID: r.ID, Action: r.Action, Condition: r.Condition, Message: r.Message, ReasonCode: r.ReasonCode}
	}
	return b
}
