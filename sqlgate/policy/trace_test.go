package policy

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTheTraceOfTheDesignPage(t *testing.T) {
	p := load(t, string(exampleDocument))
	trace := p.Trace(with(update, func(f *Facts) {
		f.TablesWritten, f.App, f.AgentID = []string{"billing.invoices"}, "agent-billing", "agt_1"
	}))
	require.Len(t, trace, len(floorSignals)+8)
	got, err := json.Marshal(trace[len(floorSignals)])
	require.NoError(t, err)
	require.JSONEq(t, `{"rule_id":"filter-required","decision":"BLOCK","mode":"enforce","outcome":"not_matched","failed_at":"match.where",
   "checks":[{"key":"match.query_types","want":["UPDATE","DELETE"],"got":["UPDATE"],"pass":true},{"key":"match.where","want":["none","tautology"],"got":["key_equality"],"pass":false}]}`, string(got))

	observed := trace[len(floorSignals)+3]
	require.Equal(t, TraceEntry{RuleID: "agents-show-a-token", Decision: Block, Mode: "observe", Outcome: OutcomeNotMatched, FailedAt: "when", Checks: []TraceCheck{
		{Key: "match.app", Want: []string{"agent-*"}, Got: []string{"agent-billing"}, Pass: true},
		{Key: "when", Want: `agent_id == ""`, Got: map[string]any{"agent_id": "agt_1"}},
	}}, observed)
	asked := trace[len(floorSignals)+5]
	require.Equal(t, OutcomeMatched, asked.Outcome)
	require.Equal(t, map[string]any{"agent_id": "agt_1", "query_types": []string{"UPDATE"}}, asked.Checks[1].Got,
		"a fact that was not read does not appear")
}

func TestTheTraceOfFloorLiftErrorAndDefault(t *testing.T) {
	p := load(t, document(ruleLift, ruleBroken))
	trace := p.Trace(with(doBlock, func(f *Facts) { f.RiskSignals = []string{"opaque_code", "server_program"} }))
	byID := map[string]TraceEntry{}
	for _, e := range trace {
		byID[e.RuleID] = e
	}
	require.Equal(t, OutcomeLifted, byID["floor.opaque_code"].Outcome)
	require.Equal(t, OutcomeMatched, byID["floor.server_program"].Outcome)
	require.Equal(t, OutcomeNotMatched, byID["floor.remote_access"].Outcome)
	require.NotContains(t, byID, RuleDefault)

	trace = p.Trace(with(update, func(f *Facts) { f.Actor = "ana" }))
	broken := trace[len(trace)-1]
	require.Equal(t, OutcomeError, broken.Outcome)
	require.Equal(t, "when", broken.FailedAt)

	p = load(t, document("id: r, decision: BLOCK, reason_code: r_r, match: {any_of: [{env: [staging]}, {app: [x], class: [write]}]}, unless: {approved: true}"))
	trace = p.Trace(with(update, func(f *Facts) { f.App = "x" }))
	require.Equal(t, OutcomeMatched, trace[len(trace)-1].Outcome)
	trace = p.Trace(with(update, func(f *Facts) { f.App, f.Approved = "x", true }))
	require.Equal(t, "unless", trace[len(trace)-2].FailedAt)
	require.Equal(t, RuleDefault, trace[len(trace)-1].RuleID)
	trace = p.Trace(&safeRead)
	require.Equal(t, "match.any_of", trace[len(trace)-2].FailedAt)
	require.Equal(t, Allow, trace[len(trace)-1].Decision)
}

func TestTheTraceAgreesWithTheDecision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules, f := anyRules(t), anyFacts(t)
		p, _ := Load([]byte(document(rules...)), Options{})
		r := p.Decide(f)
		var matched, observed, errors, floor, lifted []string
		for _, e := range p.Trace(f) {
			switch {
			case e.RuleID == RuleDefault:
				if r.RuleID != RuleDefault {
					t.Fatalf("the default did not decide: %+v", r)
				}
			case e.Outcome == OutcomeLifted:
				lifted = append(lifted, e.RuleID)
			case e.Outcome == OutcomeMatched && e.RuleID[:min(6, len(e.RuleID))] == FloorPrefix:
				floor = append(floor, e.RuleID)
			case e.Outcome == OutcomeMatched && e.Mode == "observe":
				observed = append(observed, e.RuleID)
			case e.Outcome == OutcomeMatched:
				matched = append(matched, e.RuleID)
			case e.Outcome == OutcomeError && e.Mode == "enforce":
				errors = append(errors, e.RuleID)
			}
		}
		if !sameSet(matched, r.Matched) || !sameSet(observed, r.Observed) || !sameSet(errors, r.Errors) || len(floor) != len(r.Floor) || len(lifted) != len(r.Lifted) {
			t.Fatalf("trace %v %v %v %v %v, decision %+v", matched, observed, errors, floor, lifted, r)
		}
	})
}
