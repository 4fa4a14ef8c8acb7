package agentctl

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/scram"
)

// Lives of a token in days, and how many live ones an agent has at most.
const (
	defaultTokenDays = 90
	maxTokenDays     = 365
	maxLiveTokens    = 10
	maxGrace         = 86_400
)

// TokenInput is the body of POST /v1/agents/:id/tokens.
type TokenInput struct {
	ExpiryDays *int     `json:"expires_in_days"`
	Scopes     []string `json:"scopes"`
	Replaces   *string  `json:"replaces"`
	Grace      int      `json:"grace_seconds"`
}

func expiryDays(f *fieldErrors, pointer string, days *int) int {
	if days == nil {
		return defaultTokenDays
	}
	f.add(*days < 1 || *days > maxTokenDays, pointer, "must be from 1 to 365")
	return *days
}

func (in *TokenInput) check(f *fieldErrors) {
	f.add(in.Grace < 0 || in.Grace > maxGrace, "/grace_seconds", "must be from 0 to 86400")
	f.add(in.Grace > 0 && in.Replaces == nil, "/grace_seconds", "means nothing without replaces")
	f.add(in.Replaces != nil && *in.Replaces == "", "/replaces", "must be the id of a token, or be left out")
	for i, scope := range in.Scopes {
		f.add(!slices.Contains(allowedTokenScopes, scope), "/scopes/"+strconv.Itoa(i), "is no scope that an agent's token can have")
	}
	f.add(in.Scopes != nil && len(in.Scopes) == 0, "/scopes", "must name at least one scope, or be left out")
}

// newToken makes a token and the event that brings it. Its verifier has the salt of those
// before it.
func newToken(view *projections.View, agentID string, scopes []string, expires, now time.Time) (secret string, issued *event.AgentTokenIssued, err error) {
	salt := scram.NewSalt()
	before, err := view.TokenVerifiers(agentID)
	if err != nil {
		return "", nil, err
	}
	if len(before) > 0 {
		v, err := scram.Parse(before[0].Verifier)
		if err != nil {
			return "", nil, err
		}
		salt = v.Salt
	}
	secret = NewSecret(TokenPrefix)
	verifier, err := scram.New(secret, salt, scram.Iterations)
	if err != nil {
		return "", nil, err
	}
	scopes = slices.Compact(slices.Sorted(slices.Values(scopes)))
	return secret, &event.AgentTokenIssued{TokenID: event.NewIDOf(event.TokenIDKind, now), AgentID: agentID, TokenSHA256: digestOf(secret),
		Hint: hintOf(secret), Scopes: scopes, ExpiresAt: expires.UnixNano(), Verifier: verifier.String()}, nil
}

// IssueToken makes a token, possibly in place of another one, which then ends
// after a grace.
func (s *Service) IssueToken(ctx context.Context, by *Asker, id string, in *TokenInput) (Answer, error) {
	var f fieldErrors
	in.check(&f)
	days := expiryDays(&f, "/expires_in_days", in.ExpiryDays)
	if err := f.fault(); err != nil {
		return Answer{}, err
	}
	scopes := in.Scopes
	if scopes == nil {
		scopes = defaultTokenScopes
	}
	for _, scope := range scopes {
		if slices.Contains(defaultTokenScopes, scope) {
			continue
		}
		if err := by.Require(Scope(scope)); err != nil { // what not every token has is given by who has it
			return Answer{}, err
		}
	}
	return s.write(ctx, by, []string{commands.AgentKey(by.Project, id)}, func(view *projections.View, now time.Time) (plan, error) {
		a, err := findAgent(view, &by.Caller, id)
		if err != nil {
			return plan{}, err
		}
		if a.Status != event.AgentActive {
			return plan{}, agentInactive(id)
		}
		if err := roomForToken(view, &a, now); err != nil {
			return plan{}, err
		}
		secret, issued, err := newToken(view, id, scopes, now.AddDate(0, 0, days), now)
		if err != nil {
			return plan{}, err
		}
		if in.Replaces != nil {
			if err := replace(view, issued, in, now); err != nil {
				return plan{}, err
			}
		}
		k := projections.AgentToken{ID: issued.TokenID, AgentID: id, Hint: issued.Hint, Scopes: issued.Scopes, CreatedAt: now,
			ExpiresAt: time.Unix(0, issued.ExpiresAt).UTC(), Replaces: issued.Replaces}
		kept := IssuedBody{TokenBody: s.tokenBody(&a, &k, []projections.TokenVerifier{{TokenID: k.ID}}, now)}
		shown := kept
		shown.Token = &secret
		return plan{answer: Answer{Status: http.StatusCreated, Body: shown, Location: "/v1/agents/" + id + "/tokens/" + k.ID}, kept: kept,
			events: []pending{{id, "issue_token", issued}}}, nil
	})
}

func roomForToken(view *projections.View, a *projections.Agent, now time.Time) error {
	tokens, err := view.AllTokens(a.AgentID)
	live := 0
	for i := range tokens {
		if a.TokenStatus(&tokens[i], now) == projections.TokenLive {
			live++
		}
	}
	if err == nil && live >= maxLiveTokens {
		return fault.New(fault.TokenLimitExceeded, "The agent has %d live tokens, which is the most. Revoke one first.", live).With("limit", maxLiveTokens)
	}
	return err
}

// replace ends an older token after the grace; it never makes it live longer.
func replace(view *projections.View, issued *event.AgentTokenIssued, in *TokenInput, now time.Time) error {
	old, err := findToken(view, issued.AgentID, *in.Replaces)
	if err != nil {
		return err
	}
	end := now.Add(time.Duration(in.Grace) * time.Second)
	if old.ExpiresAt.Before(end) {
		end = old.ExpiresAt
	}
	issued.Replaces, issued.ReplacedExpiresAt = old.ID, end.UnixNano()
	return nil
}

func findToken(view *projections.View, agentID, id string) (projections.AgentToken, error) {
	k, known, err := view.AgentToken(id)
	if err == nil && (!known || k.AgentID != agentID) {
		err = fault.New(fault.TokenNotFound, "The agent has no token with this id. GET /v1/agents/{id}/tokens lists those it has.").With("token_id", id)
	}
	return k, err
}

// Tokens is GET /v1/agents/:id/tokens, by take as Agents.
func (s *Service) Tokens(ctx context.Context, c *Caller, id string, page projections.Page, take func(TokenBody) (room bool, err error)) (next string, err error) {
	err = s.view(ctx, func(view *projections.View) error {
		a, err := findAgent(view, c, id)
		if err != nil {
			return err
		}
		verifiers, err := view.TokenVerifiers(id)
		if err != nil {
			return err
		}
		next, err = view.EachAgentToken(id, page, func(k *projections.AgentToken) (bool, error) { return take(s.tokenBody(&a, k, verifiers, s.Now())) })
		return err
	})
	return next, err
}

// RevokeToken ends a token for good. A second time it changes nothing.
func (s *Service) RevokeToken(ctx context.Context, by *Asker, agentID, id string) (Answer, error) {
	return s.write(ctx, by, []string{commands.AgentKey(by.Project, agentID)}, func(view *projections.View, now time.Time) (plan, error) {
		a, err := findAgent(view, &by.Caller, agentID)
		if err != nil {
			return plan{}, err
		}
		k, err := findToken(view, agentID, id)
		if err != nil {
			return plan{}, err
		}
		var p plan
		if k.RevokedAt.IsZero() {
			k.RevokedAt = now
			p.events = []pending{{agentID, "revoke_token", &event.AgentTokenRevoked{TokenID: id, AgentID: agentID, Cause: event.CauseRequest}}}
		}
		p.answer = Answer{Status: http.StatusOK, Body: s.tokenBody(&a, &k, nil, now)}
		return p, nil
	})
}
