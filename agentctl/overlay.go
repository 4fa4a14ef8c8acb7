package agentctl

import (
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/scram"
)

// AgentOf finds the agent of a token, or of a JWT, that came with a statement; it has to
// have the scope gate:query. It implements sqlgate.Overlay.
func (s *Service) AgentOf(ctx context.Context, token string) (sqlgate.Agent, error) {
	if !s.takesJWT(token) && !WellFormed(TokenPrefix, token) {
		return sqlgate.Agent{}, fault.New(fault.CredentialsInvalid, "The credential of the request is neither an agent's token nor an operator's. Send an agent's token as Authorization: Bearer, exactly as it was given out, or send none.")
	}
	p, err := s.prove(ctx, token)
	if err != nil {
		return sqlgate.Agent{}, err
	}
	return s.agentWith(ctx, &p)
}

// AgentNow is AgentOf for a token that was proven before. It implements sqlgate.Overlay.
func (s *Service) AgentNow(ctx context.Context, a sqlgate.Agent) (sqlgate.Agent, error) {
	var t projections.AgentToken
	err := s.view(ctx, func(view *projections.View) (err error) {
		c := Caller{Project: a.Project, TokenID: a.CredentialID, AgentID: a.ID}
		if err := c.stands(view, s.Now()); err != nil {
			return err
		}
		t, _, err = view.AgentToken(a.CredentialID)
		return err
	})
	if err != nil {
		return sqlgate.Agent{}, err
	}
	return s.agentWith(ctx, &proven{id: t.ID, agentID: t.AgentID, project: t.Project, scopes: t.Scopes})
}

// Verifiers check the tokens of an agent as passwords of the wire listener, whatever
// became of them since: AgentNow says which are good. All have one salt, since a client is
// told one before it shows which of them it has.
func (s *Service) Verifiers(ctx context.Context, agentID string) (list []sqlgate.AgentVerifier, err error) {
	err = s.view(ctx, func(view *projections.View) error {
		kept, err := view.TokenVerifiers(agentID)
		for i := 0; err == nil && i < len(kept); i++ {
			var v sqlgate.AgentVerifier
			var t projections.AgentToken
			if v.Verifier, err = scram.Parse(kept[i].Verifier); err == nil {
				t, _, err = view.AgentToken(kept[i].TokenID)
			}
			v.Agent = sqlgate.Agent{ID: agentID, Project: t.Project, CredentialID: t.ID}
			list = append(list, v)
		}
		return err
	})
	return list, err
}

// agentWith is the agent of a credential that is good.
func (s *Service) agentWith(ctx context.Context, p *proven) (sqlgate.Agent, error) {
	c := Caller{Project: p.project, TokenID: p.id, AgentID: p.agentID, tokenScopes: scopesOf(p.scopes)}
	if err := c.Require(ScopeQuery); err != nil {
		return sqlgate.Agent{}, err
	}
	s.uses.saw(&c, s.Now())
	a := sqlgate.Agent{ID: p.agentID, Project: p.project, CredentialID: p.id, Until: p.until}
	err := s.view(ctx, func(view *projections.View) (err error) {
		a.ToolsVerified, err = view.ToolsVerified(a.ID, s.Now())
		return err
	})
	return a, err
}

// saw notes when a token was used, without counting a request of /v1.
func (u *uses) saw(c *Caller, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last[c.TokenID], u.last[c.AgentID] = now, now
}

// Decide asks the rules that are effective for an agent about a statement. With
// count set, the statement counts until it is known not to be recorded: usage and
// throttles are read and taken in one step, under the agent's meter.
func (s *Service) Decide(ctx context.Context, a sqlgate.Agent, facts *policy.Facts, count bool) (d sqlgate.LayerDecision, err error) {
	bound := map[string]int{}
	err = s.view(ctx, func(view *projections.View) error {
		_, heads, err := binding(view, a.Project, a.ID)
		s.memoryOf(heads, bound)
		return err
	})
	if err != nil {
		return d, err
	}
	done, err := s.takeMemory(ctx, a.Project, bound)
	if err != nil {
		return d, err
	}
	defer done()
	m := s.meters.lock(a.ID)
	defer m.mu.Unlock()
	now := s.Now()
	if err := s.fill(ctx, m, a.ID, now); err != nil {
		return d, faultOf(err)
	}
	var counted *counting
	if count {
		counted = &counting{meter: m, at: now}
		defer func() {
			if d.Counted == nil { // an error, or a panic
				counted.end(time.Time{})
			}
		}()
	}
	err = s.view(ctx, func(view *projections.View) error {
		agent, known, err := view.Agent(a.Project, a.ID)
		if err != nil {
			return err
		}
		if !known || agent.Status != event.AgentActive {
			return tokenFault(&projections.AgentToken{}, &agent, now)
		}
		in, err := s.input(ctx, view, &agent, a.ToolsVerified, facts)
		if err != nil {
			return err
		}
		if err := m.recall(view, a.ID, in.Applications); err != nil {
			return err
		}
		in.Usage = m.usage(now)
		in.Count = func(policyID string, r *agentrules.Rule) (int, int) { return m.count(policyID, r, now, counted) }
		d.Layer = agentrules.Evaluate(in)
		d.RetryAfterSeconds = int(agentrules.RetryAfter(d.Layer).Seconds())
		d.Suspends = agentrules.Suspends(d.Layer, in.Applications)
		return nil
	})
	if err != nil || !count {
		return d, err
	}
	counted.sums.Decisions = 1
	if facts.Class == classWrite {
		counted.sums.Writes = 1
	}
	m.add(minuteOf(now), &counted.sums)
	d.Counted = counted.done
	return d, nil
}

// input gathers what the rules read, as of one view but for toolsVerified, which is the
// fact that the gate's policy was asked with.
func (s *Service) input(ctx context.Context, view *projections.View, a *projections.Agent, toolsVerified bool, facts *policy.Facts) (*agentrules.Input, error) {
	list, err := s.effective(ctx, view, a.Project, a.AgentID)
	return &agentrules.Input{AppliedSeq: view.Applied().Seq, Agent: rootOf(a, toolsVerified), Facts: facts, Applications: list}, err
}

// effective are the policies that bind an agent, compiled. Who asks has takeMemory's turn.
func (s *Service) effective(ctx context.Context, view *projections.View, project, agentID string) ([]agentrules.Application, error) {
	list, _, err := binding(view, project, agentID)
	if err != nil {
		return nil, err
	}
	for i := range list {
		p, err := s.compiled.of(ctx, view, project, list[i].PolicyID, list[i].Revision)
		if err != nil {
			return nil, err
		}
		list[i].Rules = p.rules
	}
	return list, nil
}

// binding are the policies that bind an agent, applied and enabled, in the order in
// which they are asked, without their rules, and what is kept beside these.
func binding(view *projections.View, project, agentID string) ([]agentrules.Application, map[string]projections.AgentPolicyHead, error) {
	applied, err := view.ApplicationsOf(agentID)
	if err != nil {
		return nil, nil, err
	}
	var list []agentrules.Application
	heads := map[string]projections.AgentPolicyHead{}
	for i := range applied {
		id := applied[i].PolicyID
		p, known, err := view.AgentPolicyHead(project, id)
		if err != nil {
			return nil, nil, err
		}
		if !known || !p.Enabled {
			continue
		}
		heads[id] = p
		list = append(list, agentrules.Application{EffectivePolicy: event.EffectivePolicy{ApplicationID: applied[i].ApplicationID, PolicyID: id,
			Revision: p.Revision, PriorityValue: applied[i].PriorityValue}, Observe: p.Mode == event.AgentPolicyObserve})
	}
	agentrules.Sort(list)
	return list, heads, nil
}

// memoryOf notes by policy what some take compiled.
func (s *Service) memoryOf(heads map[string]projections.AgentPolicyHead, into map[string]int) {
	for id, head := range heads {
		into[id] = s.compiled.memoryOf(id, &head)
	}
}

// takeMemory waits until a request of a project may hold the policies compiled that it
// needs, by what they take. One that needs more than a project may hold, which no agent
// can be bound by any more, has all of that for itself.
func (s *Service) takeMemory(ctx context.Context, project string, bound map[string]int) (done func(), err error) {
	bytes := 1
	for _, n := range bound {
		bytes += n
	}
	return s.holding.take(ctx, project, int64(min(bytes, maxCompiledMemory)))
}

// agentRoot is the root agent of a condition at a moment.
func agentRoot(view *projections.View, a *projections.Agent, now time.Time) (event.AgentRoot, error) {
	verified, err := view.ToolsVerified(a.AgentID, now)
	return rootOf(a, verified), err
}

func rootOf(a *projections.Agent, toolsVerified bool) event.AgentRoot {
	temperature, _ := strconv.ParseFloat(a.Config.Temperature, 64) // "" is 0
	return event.AgentRoot{ID: a.AgentID, Name: a.Name, Type: a.Type, Environment: a.Metadata["environment"], Version: a.Metadata["version"],
		Model: a.Config.Model, MaxTokens: a.Config.MaxTokens, TemperatureMilli: int(math.Round(temperature * 1000)), ToolsVerified: toolsVerified}
}

// Aggregates are what a statement of an agent locks.
func (s *Service) Aggregates(a sqlgate.Agent) []string {
	return []string{commands.AgentKey(a.Project, a.ID)}
}

// Settle is what happens with a decision, under the agent's lock: an agent that
// was deactivated meanwhile runs nothing more, nor does a credential that ended; what
// was decided by other rules, or about another state of the agent, is decided anew; and
// a rule that suspends deactivates the agent in the same append.
func (s *Service) Settle(a sqlgate.Agent, d sqlgate.LayerDecision, requestID string, enforced bool) (extra func(*projections.View, time.Time) ([]event.Draft, error), around func(write func() error) error) {
	seen := s.shared.of(a.Project)
	around = func(write func() error) error { return s.shared.unchanged(a.Project, seen, write) }
	extra = func(view *projections.View, now time.Time) ([]event.Draft, error) {
		agent, known, err := view.Agent(a.Project, a.ID)
		if err != nil {
			return nil, err
		}
		if !known || agent.Status != event.AgentActive {
			return nil, fault.New(fault.TokenRevoked, "The agent was deactivated while its statement was on its way. Nothing was executed.").With("agent_status", agent.Status)
		}
		if err = credentialFault(view, a.CredentialID, a.Until, &agent, now); err == nil {
			err = unchanged(view, &agent, d.Layer, now)
		}
		if err != nil || !d.Suspends || !enforced {
			return nil, err
		}
		end := event.AgentDeactivated{AgentID: a.ID, Cause: event.CausePolicy, PolicyID: d.Layer.PolicyID, RuleID: d.Layer.RuleID, Reason: d.Layer.ReasonCode}
		p := plan{}
		if p.events, err = deactivation(view, &agent, &end, now, mostRevoked); err != nil {
			return nil, err
		}
		by := Asker{Caller: Caller{Project: a.Project, TokenID: a.CredentialID, AgentID: a.ID}, RequestID: requestID}
		return by.drafts(&p, now)
	}
	return extra, around
}

// unchanged is sqlgate.ErrPolicyChanged where a layer was asked other policies than
// those that bind the agent, or read other facts of it.
func unchanged(view *projections.View, a *projections.Agent, layer *event.AgentLayer, now time.Time) error {
	root, err := agentRoot(view, a, now)
	if err != nil {
		return err
	}
	list, _, err := binding(view, a.Project, a.AgentID)
	if err != nil {
		return err
	}
	same := func(asked event.EffectivePolicy, binds agentrules.Application) bool {
		return asked == binds.EffectivePolicy
	}
	if root != layer.Agent || !slices.EqualFunc(layer.Effective, list, same) {
		return sqlgate.ErrPolicyChanged
	}
	return nil
}
