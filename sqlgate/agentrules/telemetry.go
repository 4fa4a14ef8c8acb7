package agentrules

import (
	"writegate/eventlog/event"
	"writegate/sqlgate/policy"
)

// An EventInput is all that the rules read of one telemetry event.
type EventInput struct {
	Agent        event.AgentRoot
	Usage        event.AgentUsage // the values before the batch
	Event        *event.TelemetryEvent
	Tool         Tool
	Applications []Application // sorted
	Count        Counter
}

// An EventResult is what the rules say of an event, after the fact.
type EventResult struct {
	Evaluated  int // rules asked
	Violations []event.Violation
	Throttle   []event.ThrottleCount // matches of throttled rules
	Suspend    *event.Violation      // the rule that deactivates the agent; nil = none
}

// EventMatches are the rules that matched an event, before throttles are counted:
// the part of an evaluation that takes time.
type EventMatches struct {
	applications []Application
	hits         [][]hit
	evaluated    int
}

// MatchEvent asks the rules that run at telemetry about an event. It counts nothing.
func MatchEvent(in *EventInput) *EventMatches {
	e := evaluation{roots: roots{agent: &in.Agent, usage: &in.Usage, event: in.Event, tool: &in.Tool}}
	m := &EventMatches{applications: in.Applications, hits: make([][]hit, len(in.Applications))}
	for i := range in.Applications {
		for j := range in.Applications[i].Rules {
			if in.Applications[i].Rules[j].Place&AtTelemetry != 0 {
				m.evaluated++
			}
		}
		m.hits[i] = e.ask(&in.Applications[i], AtTelemetry)
	}
	return m
}

// EvaluateEvent asks the rules that run at telemetry about an event and counts what
// they throttle.
func EvaluateEvent(in *EventInput) EventResult { return MatchEvent(in).Result(in.Count) }

// Result is what the rules that matched say together. The rules of the applications may be
// Bare ones by then. An allow
// exempts the event from the rules of lower priorities, as at the gate.
func (matches *EventMatches) Result(count Counter) EventResult {
	e := evaluation{count: count, layer: new(event.AgentLayer)}
	for i := range matches.applications {
		e.take(&matches.applications[i], matches.hits[i])
	}
	result := EventResult{Evaluated: matches.evaluated, Throttle: e.layer.Throttle}
	revisions := map[string]int{}
	for _, m := range e.layer.Matched {
		revisions[m.PolicyID] = m.Revision
	}
	for _, n := range e.layer.Notes {
		result.Violations = append(result.Violations, event.Violation{PolicyID: n.PolicyID, RuleID: n.RuleID, Action: n.Action, ReasonCode: n.ReasonCode, Revision: revisions[n.PolicyID], Annotation: true})
	}
	m := e.deciding()
	if m == nil || m.strictness() == verbAllow {
		return result
	}
	v := event.Violation{PolicyID: m.application.PolicyID, RuleID: m.rule.ID, Action: m.rule.Action, ReasonCode: m.rule.reason(), Revision: m.application.Revision, NeedsReview: m.strictness() == verbApproval}
	if m.failed {
		v.ReasonCode = policy.ReasonRuleEvalError
	}
	result.Violations = append(result.Violations, v)
	if m.strictness() == verbSuspend {
		result.Suspend = &v
	}
	return result
}
