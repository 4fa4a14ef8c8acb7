package agentrules

import (
	"cmp"
	"slices"
	"time"

	"writegate/eventlog/event"
	"writegate/sqlgate/policy"
)

// An Application is a policy that is effective for an agent.
type Application struct {
	event.EffectivePolicy
	Observe bool // it only says what it would do
	Rules   []Rule
}

// Sort puts applications into the order in which they are asked: the highest
// priority first, and inside one by the policy's id.
func Sort(list []Application) {
	slices.SortFunc(list, func(a, b Application) int {
		return cmp.Or(cmp.Compare(b.PriorityValue, a.PriorityValue), cmp.Compare(a.PolicyID, b.PolicyID))
	})
}

// A Counter counts a match of a throttled rule and gives how many there are in
// its window, this one included, and after how many seconds there is room again
// where they are over the limit.
type Counter func(policyID string, r *Rule) (count, retryAfterSeconds int)

// An Input is all that the layer reads.
type Input struct {
	AppliedSeq   uint64
	Agent        event.AgentRoot
	Usage        event.AgentUsage
	Facts        *policy.Facts
	Applications []Application // sorted
	Count        Counter
}

// A match is a rule that matched, or whose condition failed.
type match struct {
	application *Application
	rule        *Rule
	failed      bool
}

// Evaluate asks the rules that run at the gate about a statement.
func Evaluate(in *Input) *event.AgentLayer {
	e := evaluation{roots: roots{agent: &in.Agent, usage: &in.Usage, facts: in.Facts}, count: in.Count}
	e.layer = &event.AgentLayer{AgentID: in.Agent.ID, AppliedSeq: in.AppliedSeq, Decision: string(policy.Allow), Agent: in.Agent, Usage: in.Usage}
	for i := range in.Applications {
		e.layer.Effective = append(e.layer.Effective, in.Applications[i].EffectivePolicy)
		e.take(&in.Applications[i], e.ask(&in.Applications[i], AtGate))
	}
	if m := e.deciding(); m != nil {
		e.decide(m, in.Facts.Approved)
	}
	return e.layer
}

// An evaluation gathers what the rules of all applications say.
type evaluation struct {
	roots   roots
	count   Counter
	layer   *event.AgentLayer
	matches []match
	cost    int // of the rules asked
}

// A hit is a rule whose condition holds, or failed.
type hit struct {
	rule   int // of the application's
	failed bool
}

// ask evaluates the conditions of the rules of one application that run at a
// place. A rule that would make the decision slow is not evaluated: its condition
// failed.
func (e *evaluation) ask(a *Application, place Place) (hits []hit) {
	for i := range a.Rules {
		r := &a.Rules[i]
		if r.Place&place == 0 {
			continue
		}
		holds, ok := false, false
		if e.cost += r.Cost(); e.cost <= policy.MaxDecisionCost {
			holds, ok = r.holds(&e.roots)
		}
		if holds || !ok {
			hits = append(hits, hit{i, !ok})
		}
	}
	return hits
}

// take gathers what the rules of one application that matched say.
func (e *evaluation) take(a *Application, hits []hit) {
	var matched []string
	for _, h := range hits {
		r := &a.Rules[h.rule]
		switch {
		case h.failed:
			e.layer.Errors = append(e.layer.Errors, outcome(a, r, policy.ReasonRuleEvalError))
		case r.verb == verbThrottle && !e.over(a, r):
			continue
		}
		matched = append(matched, r.ID)
		e.note(a, r, h.failed)
	}
	if len(matched) > 0 {
		e.layer.Matched = append(e.layer.Matched, event.MatchedPolicy{ApplicationID: a.ApplicationID, PolicyID: a.PolicyID,
			Revision: a.Revision, PriorityValue: a.PriorityValue, Rules: matched})
	}
}

// note files a match: as one that decides, an annotation, or what would be.
func (e *evaluation) note(a *Application, r *Rule, failed bool) {
	switch {
	case a.Observe:
		e.layer.WouldBe = append(e.layer.WouldBe, outcome(a, r, r.reason()))
	case failed || r.verb.decides():
		e.matches = append(e.matches, match{application: a, rule: r, failed: failed})
	default:
		e.layer.Notes = append(e.layer.Notes, outcome(a, r, r.reason()))
	}
}

// over counts a match of a throttled rule; below its limit it is no match.
func (e *evaluation) over(a *Application, r *Rule) bool {
	n, retry := e.count(a.PolicyID, r)
	e.layer.Throttle = append(e.layer.Throttle, event.ThrottleCount{PolicyID: a.PolicyID, RuleID: r.ID, Count: n, Limit: r.limit, RetryAfterSeconds: retry})
	return n > r.limit
}

func outcome(a *Application, r *Rule, reason string) event.RuleOutcome {
	return event.RuleOutcome{PolicyID: a.PolicyID, RuleID: r.ID, Action: r.Action, ReasonCode: reason}
}

// holds evaluates the condition; an empty one always holds.
func (r *Rule) holds(v *roots) (match, ok bool) {
	if r.expr == nil {
		return true, true
	}
	return r.expr.Match(v.value)
}

// strictness orders matches inside one priority; a condition that failed is a block.
func (m *match) strictness() verb {
	if m.failed {
		return verbBlock
	}
	return m.rule.verb
}

// deciding is the first of the strictest matches of the highest priority.
func (e *evaluation) deciding() *match {
	var best *match
	for i := range e.matches {
		m := &e.matches[i]
		if best != nil && best.application.PriorityValue > m.application.PriorityValue {
			break // applications are sorted: all the rest has lower priorities
		}
		if best == nil || m.strictness() < best.strictness() {
			best = m
		}
	}
	return best
}

func (e *evaluation) decide(m *match, approved bool) {
	l, r := e.layer, m.rule
	l.PolicyID, l.RuleID, l.ReasonCode, l.Message = m.application.PolicyID, r.ID, r.reason(), r.Message
	switch m.strictness() {
	case verbApproval:
		l.Decision, l.TTLSeconds = string(policy.RequireApproval), r.ttl
		if approved {
			l.Decision = string(policy.Allow) // an approval satisfies both layers
		}
	case verbAllow:
	default:
		l.Decision = string(policy.Block)
	}
	if m.failed {
		l.ReasonCode = policy.ReasonRuleEvalError
	}
}

// Suspends tells whether the rule that decided a layer deactivates the agent.
func Suspends(l *event.AgentLayer, list []Application) bool {
	if l.PolicyID == "" || l.Decision != string(policy.Block) || l.ReasonCode == policy.ReasonRuleEvalError {
		return false
	}
	for i := range list {
		for j := range list[i].Rules {
			if r := &list[i].Rules[j]; list[i].PolicyID == l.PolicyID && r.ID == l.RuleID {
				return r.verb == verbSuspend
			}
		}
	}
	return false
}

// Tighten gives the decision of both layers: the stricter of the two. Where the
// agent's layer is no stricter, what the gate's policy decided stands; an
// approval lives for the shorter of two times.
func Tighten(base policy.Result, l *event.AgentLayer) policy.Result {
	r := base
	layer := policy.Decision(l.Decision)
	if layer == policy.RequireApproval && base.Decision == policy.RequireApproval && l.TTLSeconds > 0 {
		r.Approval = withTTL(base.Approval, l.TTLSeconds)
		return r
	}
	if layer.Strictness() <= base.Decision.Strictness() {
		return r
	}
	r.Decision, r.ReasonCode, r.RuleID, r.Layer, r.Message, r.Remedy = layer, l.ReasonCode, l.RuleID, policy.LayerAgent, l.Message, ""
	r.Approval, r.DryRun = nil, nil // the rules of agents have no say in dry runs
	if layer == policy.RequireApproval {
		r.Approval = withTTL(base.Approval, l.TTLSeconds)
	}
	return r
}

// withTTL keeps the row limit; 0 is no wish of its own.
func withTTL(terms *policy.ApprovalTerms, ttl int) *policy.ApprovalTerms {
	var t policy.ApprovalTerms
	if terms != nil {
		t = *terms
	}
	if ttl > 0 && (t.TTLSeconds == 0 || ttl < t.TTLSeconds) {
		t.TTLSeconds = ttl
	}
	return &t
}

// MatchesNow tells whether a rule over agent and usage alone holds at this moment.
func (r *Rule) MatchesNow(agent *event.AgentRoot, usage *event.AgentUsage) bool {
	if r.expr == nil || r.Place != AtGate|AtTelemetry {
		return false
	}
	hit, ok := r.holds(&roots{agent: agent, usage: usage})
	return hit || !ok
}

// RetryAfter is the longest wait that a throttle of the layer asks for.
func RetryAfter(l *event.AgentLayer) time.Duration {
	most := 0
	for _, t := range l.Throttle {
		most = max(most, t.RetryAfterSeconds)
	}
	return time.Duration(most) * time.Second
}
