package projections

import (
	"slices"
	"strings"
	"time"

	"writegate/eventlog/event"
)

func agentKey(id string) []byte { return []byte(keyAgent + id) }

func tokenKey(id string) []byte { return []byte(keyToken + id) }

func tokenDigestKey(digest [32]byte) []byte { return append([]byte(keyTokenDigest), digest[:]...) }

func verifiersKey(agent string) []byte { return []byte(keyVerifiers + agent) }

func agentPolicyKey(id string) []byte { return []byte(keyAgentPolicy + id) }

func agentPolicyHeadKey(id string) []byte { return []byte(keyAgentPolicyHead + id) }

func applicationKey(agent, policy string) []byte {
	return []byte(keyApplication + agent + "/" + policy)
}

func appliedToKey(policy, agent string) []byte { return []byte(keyAppliedTo + policy + "/" + agent) }

// inProject is the state under which a project's members are listed; neither
// of the two holds a colon.
func inProject(project, status string) string { return project + ":" + status }

// kept binds the answer of a POST to its key, and gives the payload on.
func kept[T event.Originated](apply func(*tx, *event.Envelope, T)) func(*tx, *event.Envelope, T) {
	return func(t *tx, e *event.Envelope, p T) {
		if k := p.From().Idempotency; k != nil {
			t.keepAnswer(e, k)
		}
		apply(t, e, p)
	}
}

// keepAnswer keeps what a POST under /v1 was answered, and sweeps.
func (t *tx) keepAnswer(e *event.Envelope, k *event.KeptAnswer) {
	r := IdempotencyRecord{Key: k.Key, RequestDigest: k.RequestSHA256, RequestID: e.Context.RequestID, Seq: e.Seq,
		ExpiresAt: time.Unix(0, k.ExpiresAt).UTC(), Answered: true, Status: k.Status, Body: k.Body}
	var old IdempotencyRecord
	if t.get(idempotencyKey(k.ScopeDigest), &old) {
		t.dropExpiry(keyExpiry, dueKey(keyExpiry, old.ExpiresAt, string(k.ScopeDigest[:])))
	}
	t.sweepKeys(e.Time)
	t.put(idempotencyKey(k.ScopeDigest), &r)
	t.setExpiry(keyExpiry, dueKey(keyExpiry, r.ExpiresAt, string(k.ScopeDigest[:])), nil)
}

func agentRegistered(t *tx, e *event.Envelope, p *event.AgentRegistered) {
	a := Agent{Agent: p.Agent, Project: e.Context.Project, Seq: e.Seq, CreatedAt: e.Time, UpdatedAt: e.Time}
	t.put(agentKey(a.AgentID), &a)
	t.keep(listKey(keyAgentList, inProject(a.Project, a.Status), a.Seq), []byte(a.AgentID))
}

// agent hands an agent to change and writes it back.
func (t *tx) agent(id string, change func(*Agent)) {
	var a Agent
	if id == "" || !t.get(agentKey(id), &a) {
		return
	}
	before := a.Status
	change(&a)
	t.put(agentKey(id), &a)
	if a.Status != before {
		t.delete(listKey(keyAgentList, inProject(a.Project, before), a.Seq))
		t.keep(listKey(keyAgentList, inProject(a.Project, a.Status), a.Seq), []byte(a.AgentID))
	}
}

func agentUpdated(t *tx, e *event.Envelope, p *event.AgentUpdated) {
	t.agent(p.Agent.AgentID, func(a *Agent) {
		a.Agent, a.UpdatedAt = p.Agent, e.Time
		if a.Status == event.AgentActive {
			a.DeactivatedAt = time.Time{}
		}
	})
}

func agentDeactivated(t *tx, e *event.Envelope, p *event.AgentDeactivated) {
	t.agent(p.AgentID, func(a *Agent) {
		a.Status, a.Revision, a.UpdatedAt, a.DeactivatedAt, a.EndedAt, a.DeactivatedSeq = event.AgentInactive, p.Revision, e.Time, e.Time, e.Time, e.Seq
	})
}

func agentTokenIssued(t *tx, e *event.Envelope, p *event.AgentTokenIssued) {
	k := AgentToken{ID: p.TokenID, AgentID: p.AgentID, Project: e.Context.Project, Digest: p.TokenSHA256, Hint: p.Hint, Scopes: p.Scopes,
		Seq: e.Seq, CreatedAt: e.Time, ExpiresAt: time.Unix(0, p.ExpiresAt).UTC(), Replaces: p.Replaces}
	t.put(tokenKey(k.ID), &k)
	t.put(tokenDigestKey(k.Digest), ptr(name(k.ID)))
	t.keep(listKey(keyTokenList, k.AgentID, k.Seq), []byte(k.ID))
	if p.Replaces != "" {
		t.token(p.Replaces, func(old *AgentToken) {
			old.ExpiresAt = time.Unix(0, p.ReplacedExpiresAt).UTC()
			old.Ended = old.Ended || !old.ExpiresAt.After(e.Time)
		})
	}
	if p.Verifier == "" {
		return
	}
	var list tokenVerifiers
	t.get(verifiersKey(k.AgentID), &list)
	list = slices.DeleteFunc(list, func(v TokenVerifier) bool {
		var old AgentToken
		return !t.get(tokenKey(v.TokenID), &old) || old.StatusAt(e.Time) != TokenLive
	})
	list = append(list, TokenVerifier{k.ID, p.Verifier})
	t.put(verifiersKey(k.AgentID), &list)
}

func ptr[T any](v T) *T { return &v }

func (t *tx) token(id string, change func(*AgentToken)) {
	var k AgentToken
	if id == "" || !t.get(tokenKey(id), &k) {
		return
	}
	change(&k)
	t.put(tokenKey(id), &k)
}

func agentTokenRevoked(t *tx, e *event.Envelope, p *event.AgentTokenRevoked) {
	t.token(p.TokenID, func(k *AgentToken) {
		if k.RevokedAt.IsZero() {
			k.RevokedAt = e.Time
		}
	})
}

func agentPolicyCreated(t *tx, e *event.Envelope, p *event.AgentPolicyCreated) {
	v := AgentPolicy{AgentPolicy: p.Policy, Project: e.Context.Project, Seq: e.Seq, CreatedAt: e.Time, UpdatedAt: e.Time}
	t.put(agentPolicyKey(v.PolicyID), &v)
	t.put(agentPolicyHeadKey(v.PolicyID), v.head())
	t.keep(listKey(keyAgentPolicyList, v.Project, v.Seq), []byte(v.PolicyID))
}

func (t *tx) agentPolicy(id string, change func(*AgentPolicy)) {
	var p AgentPolicy
	if !t.get(agentPolicyKey(id), &p) {
		return
	}
	change(&p)
	t.put(agentPolicyKey(id), &p)
}

func agentPolicyUpdated(t *tx, e *event.Envelope, p *event.AgentPolicyUpdated) {
	t.agentPolicy(p.Policy.PolicyID, func(v *AgentPolicy) {
		v.AgentPolicy, v.UpdatedAt = p.Policy, e.Time
		t.put(agentPolicyHeadKey(v.PolicyID), v.head())
	})
}

func agentPolicyApplied(t *tx, e *event.Envelope, p *event.AgentPolicyApplied) {
	a := Application{PolicyApplication: p.Application, Seq: e.Seq, AppliedAt: e.Time, AppliedBy: strings.Join(p.Origin.CredentialIDs, " ")}
	var old Application
	known := t.get(applicationKey(a.AgentID, a.PolicyID), &old)
	t.put(applicationKey(a.AgentID, a.PolicyID), &a)
	if known {
		return
	}
	t.keep(appliedToKey(a.PolicyID, a.AgentID), nil)
	t.agentPolicy(a.PolicyID, func(v *AgentPolicy) { v.Applications++ })
}

func agentPolicyDetached(t *tx, _ *event.Envelope, p *event.AgentPolicyDetached) {
	var old Application
	if !t.get(applicationKey(p.Application.AgentID, p.Application.PolicyID), &old) {
		return
	}
	t.delete(applicationKey(p.Application.AgentID, p.Application.PolicyID))
	t.delete(appliedToKey(p.Application.PolicyID, p.Application.AgentID))
	t.agentPolicy(p.Application.PolicyID, func(v *AgentPolicy) { v.Applications-- })
}
