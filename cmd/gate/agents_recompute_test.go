package main

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// Whoever rewrites what an agent's layer said, or what it read, is told from the
// log alone.
func TestAnAgentsLayerThatWasRewrittenIsNamed(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	w.apply(t, w.rule(t, "throttle:1/1h", `sql.class == "write"`), id)
	guard := w.rule(t, "block", `sql.query_type == "DELETE" && agent.environment == "production" && usage.sql_writes_1h > 0`)
	w.apply(t, guard, id)
	require.Equal(t, http.StatusOK, w.as(t, token, ask(paying)).status)
	require.Equal(t, http.StatusForbidden, w.as(t, token, ask("DELETE FROM orders WHERE id = 5")).status)
	w.end(t)
	_, found := decidedOtherwise(t, w.gateDir, exitOK)
	require.Empty(t, found)

	layer := func(change func(l *event.AgentLayer)) func(*event.Envelope) {
		return func(e *event.Envelope) {
			if e.Type != event.TypeDecisionRecorded || e.Context.Decision != "BLOCK" {
				return
			}
			var p event.DecisionRecorded
			require.NoError(t, e.Parse(&p))
			change(p.AgentLayer)
			e.Payload = p.Fields()
		}
	}
	for name, change := range map[string]func(*event.Envelope){
		"its decision":      layer(func(l *event.AgentLayer) { l.Decision = "ALLOW" }),
		"its reason":        layer(func(l *event.AgentLayer) { l.ReasonCode = "agent_policy_approval" }),
		"its rule":          layer(func(l *event.AgentLayer) { l.RuleID = "r9" }),
		"its policy":        layer(func(l *event.AgentLayer) { l.PolicyID = "pol_other" }),
		"what was asked":    layer(func(l *event.AgentLayer) { l.Effective = l.Effective[:1] }),
		"what matched":      layer(func(l *event.AgentLayer) { l.Matched = nil }),
		"an annotation":     layer(func(l *event.AgentLayer) { l.Notes = []event.RuleOutcome{{PolicyID: guard, RuleID: "r1"}} }),
		"the usage it read": layer(func(l *event.AgentLayer) { l.Usage.SQLWrites1h = 0 }),
		"the agent it read": layer(func(l *event.AgentLayer) { l.Agent.Environment = "staging" }),
		"the rules as of":   layer(func(l *event.AgentLayer) { l.AppliedSeq = 1 }),
		"a count": layer(func(l *event.AgentLayer) {
			for i := range l.Throttle {
				l.Throttle[i].Count = 0
			}
		}),
		"that there was one": func(e *event.Envelope) {
			if e.Type != event.TypeDecisionRecorded || e.Context.Decision != "BLOCK" {
				return
			}
			var p event.DecisionRecorded
			require.NoError(t, e.Parse(&p))
			p.AgentLayer = nil
			e.Payload = p.Fields()
		},
		"the policy in the log": func(e *event.Envelope) {
			if e.Type != event.TypeAgentPolicyCreated {
				return
			}
			var p event.AgentPolicyCreated
			require.NoError(t, e.Parse(&p))
			if p.Policy.PolicyID == guard {
				p.Policy.Rules[0].Action = "log"
			}
			e.Payload = p.Fields()
		},
		"its priority in the log": func(e *event.Envelope) {
			if e.Type != event.TypeAgentPolicyApplied {
				return
			}
			var p event.AgentPolicyApplied
			require.NoError(t, e.Parse(&p))
			p.Application.PriorityValue = 1
			e.Payload = p.Fields()
		},
	} {
		t.Run(name, func(t *testing.T) {
			verdict, found := decidedOtherwise(t, rewritten(t, w.gateDir, change), exitFailed)
			require.NotEmpty(t, found)
			require.Equal(t, false, verdict["all_equal"])
			require.Contains(t, fmt.Sprint(found), "agent")
		})
	}
}
