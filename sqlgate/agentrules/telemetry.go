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

// EvaluateEvent asks the rules that run at telemetry about an event. An allow
// exempts it from the rules of lower priorities, as at the gate.
func EvaluateEvent(in *EventInput) EventResult {
	e := evaluation{roots: roots{agent: &in.Agent, usage: &in.Usage, event: in.Event, tool: &in.Tool}, count: in.Count, layer: new(event.AgentLayer)}
	var result EventResult
	for i := range in.Applications {
		for j := range in.Applications[i].Rules {
			if in.Applications[i].Rules[j].Place&AtTelemetry != 0 {
				result.Evaluated++
			}
		}
		e.ask(&in.Applications[i], AtTelemetry)
	}
	result.Throttle = e.layer.Throttle
	for _, n := range e.layer.Notes {
		result.Violations = append(result.Violations, event.Violation{PolicyID: n.PolicyID, RuleID: n.RuleID, Action: n.Action, ReasonCode: n.ReasonCode, Annotation: true})
	}
	m := e.deciding()
	if m == nil || m.strictness() == verbAllow {
		return result
	}
	v := event.Violation{PolicyID: m.application.PolicyID, RuleID: m.rule.ID, Action: m.rule.Action, ReasonCode: m.rule.reason(), NeedsReview: m.strictness() == verbApproval}
	if m.failed {
		v.ReasonCode = policy.ReasonRuleEvalError
	}
	result.Violations = append(result.Violations, v)
	if m.strictness() == verbSuspend {
		result.Suspend = &v
	}
	return result
}
