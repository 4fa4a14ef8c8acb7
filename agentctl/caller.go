package agentctl

import (
	"cmp"
	"context"
	"strings"
	"time"

	"writegate/agentctl/issuer"
	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

// A Caller is who a request comes from, by its credentials.
type Caller struct {
	Project string
	KeyID   string // "" = no project key
	TokenID string // of the agent's token, or of the bound subject whose JWT it is; "" = none
	AgentID string // of the token

	until                  time.Time // end of a JWT; of a token its record says it
	keyScopes, tokenScopes scopeSet
	whole                  bool // the right in use is the project key's: it reaches the whole project
}

// Until is the end of the caller's JWT; zero where it has none.
func (c *Caller) Until() time.Time { return c.until }

// CredentialIDs names the credentials, the key first.
func (c *Caller) CredentialIDs() (ids []string) {
	for _, id := range []string{c.KeyID, c.TokenID} {
		if id != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// Holder names who holds what there is only so much of: an agent may have
// several tokens; a key, agents beside it.
func (c *Caller) Holder() string { return cmp.Or(c.KeyID, c.AgentID) }

// Use gives the caller with one right in use, and with the reach and the other
// rights of the credential that it came by: the project for a key, its own agent
// for a token. Rights that came by one must not reach as far as the other.
//
// Errors: insufficient_scope.
func (c *Caller) Use(s Scope) (Caller, error) {
	if err := c.Require(s); err != nil {
		return Caller{}, err
	}
	used := *c
	if used.whole = c.keyScopes[s]; used.whole {
		used.tokenScopes = nil
	} else {
		used.keyScopes = nil
	}
	return used, nil
}

// Require refuses a caller without a scope.
func (c *Caller) Require(s Scope) error {
	if c.Has(s) {
		return nil
	}
	return fault.New(fault.InsufficientScope, "This credential may not do that: it lacks the scope %s. Use one that has it.", s).With("required_scope", string(s))
}

// Has tells whether the caller has a scope.
func (c *Caller) Has(s Scope) bool { return c.keyScopes[s] || c.tokenScopes[s] }

// agentOnly is the agent that a right of a token is confined to; "" where a
// project key's right speaks for the whole project.
func (c *Caller) agentOnly() string {
	if c.whole {
		return ""
	}
	return c.AgentID
}

// sees refuses another agent's resource where the right is the token's.
func (c *Caller) sees(agentID string) error {
	if only := c.agentOnly(); only != "" && only != agentID {
		return fault.New(fault.AgentMismatch, "An agent's token opens that agent alone. Use a project key that has the scope for others.").With("agent_id", only)
	}
	return nil
}

// confine is the agent that a list is narrowed to, where asked is the one that its
// filter names: a token's right lists its own agent alone, and says so to who asks
// for another.
func (c *Caller) confine(asked string) (agentID string, err error) {
	only := c.agentOnly()
	if only == "" || asked == "" {
		return cmp.Or(only, asked), nil
	}
	return only, c.sees(asked)
}

// Authenticate finds the caller of a request with a bearer token, a project key
// or both; "" is a credential that was not sent. Both have to be valid, and of
// one project; then the request may do what either may.
//
// Errors: credentials_missing, credentials_invalid, token_expired,
// token_revoked, credential_mismatch.
func (s *Service) Authenticate(ctx context.Context, token, key string) (Caller, error) {
	if token == "" && key == "" {
		return Caller{}, fault.New(fault.CredentialsMissing, "This endpoint needs a credential: an agent's token as Authorization: Bearer, or, but at /mcp, a project key in x-api-key. Send one of them.")
	}
	var caller Caller
	if key != "" {
		k, err := s.projectKey(key)
		if err != nil {
			return Caller{}, err
		}
		caller.Project, caller.KeyID, caller.keyScopes = k.Project, k.ID, scopesOf(k.Scopes)
	}
	if token == "" {
		return caller, nil
	}
	t, err := s.prove(ctx, token)
	if err != nil {
		return Caller{}, err
	}
	if key != "" && t.project != caller.Project {
		return Caller{}, fault.New(fault.CredentialMismatch, "The agent of the token belongs to another project than the key. Send credentials of one project.")
	}
	caller.Project, caller.TokenID, caller.AgentID, caller.tokenScopes, caller.until = t.project, t.id, t.agentID, scopesOf(t.scopes), t.until
	return caller, nil
}

func invalidCredential(what string) error {
	return fault.New(fault.CredentialsInvalid, "The %s is not valid. Send it exactly as it was given out.", what)
}

func (s *Service) projectKey(key string) (*ProjectKey, error) {
	if !WellFormed(KeyPrefix, key) {
		return nil, invalidCredential("project key in x-api-key")
	}
	if k := s.Keys.byDigest[digestOf(key)]; k != nil {
		return k, nil
	}
	return nil, invalidCredential("project key in x-api-key")
}

// A proven credential is one of an agent that is good at this moment: a token, or a JWT
// whose subject is bound to the agent.
type proven struct {
	id      string // tok_ or sub_, by which evidence names it
	agentID string
	project string
	scopes  []string
	until   time.Time // end of a JWT; of a token its record says it
}

// prove is the one place where what came as a bearer becomes an agent. A wrong form or
// checksum of a token, and a JWT that the issuer did not sign, are refused without a look
// into the store.
func (s *Service) prove(ctx context.Context, secret string) (proven, error) {
	var jwt issuer.Identity
	if s.takesJWT(secret) {
		var err error
		if jwt, err = s.Issuer.Verify(ctx, secret); err != nil {
			return proven{}, err
		}
	} else if !WellFormed(TokenPrefix, secret) {
		return proven{}, invalidCredential("bearer token")
	}
	view := s.Store.ViewWithin(ctx)
	defer view.Close()
	var p proven
	var known bool
	var err error
	if jwt.Subject != "" {
		var b projections.AgentSubject
		b, known, err = view.SubjectOf(s.Issuer.URL, jwt.Subject)
		p = proven{b.ID, b.AgentID, b.Project, b.Scopes, jwt.Until}
		switch {
		case err == nil && !known:
			return p, fault.New(fault.CredentialsInvalid, "The token is good, but its subject is bound to no agent. Ask an operator of the gate to bind it, with `gate agents bind-subject`.")
		case jwt.IssuedAt.Before(b.TokensFrom):
			err = fault.New(fault.TokenRevoked, "The token was issued before its subject was unbound the last time. Get a new one from the issuer.")
		}
	} else {
		var t projections.AgentToken
		t, known, err = view.TokenByDigest(digestOf(secret))
		p = proven{id: t.ID, agentID: t.AgentID, project: t.Project, scopes: t.Scopes}
		if err == nil && !known {
			return p, invalidCredential("bearer token")
		}
	}
	var agent projections.Agent
	if err == nil {
		agent, _, err = view.Agent(p.project, p.agentID)
	}
	if err == nil {
		err = credentialFault(view, p.id, p.until, &agent, s.Now())
	}
	if err != nil {
		return p, commands.ViewFault(err)
	}
	return p, nil
}

// takesJWT tells whether a bearer is for the issuer of agents' tokens to judge.
func (s *Service) takesJWT(secret string) bool {
	return s.Issuer != nil && strings.Count(secret, ".") == 2 && !strings.HasPrefix(secret, TokenPrefix)
}

// stands refuses a caller whose token is not good any more.
func (c *Caller) stands(view *projections.View, now time.Time) error {
	if c.TokenID == "" {
		return nil // of a project key: those are settings
	}
	agent, _, err := view.Agent(c.Project, c.AgentID)
	if err != nil {
		return err
	}
	return credentialFault(view, c.TokenID, c.until, &agent, now)
}

// credentialFault refuses a credential that was proven, and is not good any more.
func credentialFault(view *projections.View, id string, until time.Time, a *projections.Agent, now time.Time) error {
	if !strings.HasPrefix(id, string(event.SubjectIDKind)+"_") {
		token, _, err := view.AgentToken(id)
		if err != nil {
			return err
		}
		return tokenFault(&token, a, now)
	}
	b, _, err := view.AgentSubject(id)
	switch {
	case err != nil:
		return err
	case a.Status != event.AgentActive:
		return tokenFault(&projections.AgentToken{}, a, now)
	case !a.BoundSubject(&b):
		return fault.New(fault.TokenRevoked, "The subject of the token was unbound from its agent. Ask an operator of the gate.").With("agent_status", a.Status)
	case !now.Before(until):
		return fault.New(fault.TokenExpired, "The token's time is over. Get a new one from the issuer.").With("expires_at", event.Timestamp(until.Add(-issuer.Leeway)))
	}
	return nil
}

func tokenFault(t *projections.AgentToken, a *projections.Agent, now time.Time) error {
	switch status := a.TokenStatus(t, now); {
	case a.Status != event.AgentActive:
		return fault.New(fault.TokenRevoked, "The agent is deactivated, and its tokens with it. Ask whoever runs it for a new one.").With("agent_status", a.Status)
	case status == projections.TokenRevoked:
		return fault.New(fault.TokenRevoked, "The token was revoked. Ask for a new one.").With("agent_status", a.Status)
	case status == projections.TokenExpired:
		return fault.New(fault.TokenExpired, "The token's time is over. Ask for a new one.").With("expires_at", event.Timestamp(t.ExpiresAt))
	}
	return nil
}
