package agentctl

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
)

// did is the slow way to an agent's windows: by looking at every event of the log, and
// at every request that was admitted.
type did struct {
	usage     event.AgentUsage
	throttles map[throttleKey][]time.Time
}

func (w *world) did(t *testing.T, agent string, admitted []time.Time, now time.Time) did {
	d := did{throttles: map[throttleKey][]time.Time{}}
	within := func(at time.Time, minutes int64) bool {
		return minuteOf(at) >= minuteOf(now)-minutes && minuteOf(at) <= minuteOf(now)
	}
	for _, at := range admitted {
		if within(at, 60) {
			d.usage.Requests1h++
		}
	}
	matched := func(at time.Time, counts []event.ThrottleCount) {
		for _, c := range counts {
			if key := (throttleKey{c.PolicyID, c.RuleID}); c.Count <= c.Limit {
				d.throttles[key] = append(d.throttles[key], at)
			}
		}
	}
	for e, err := range w.log.From(t.Context(), 1) {
		require.NoError(t, err)
		switch e.Type {
		case event.TypeDecisionRecorded:
			var p event.DecisionRecorded
			require.NoError(t, e.Parse(&p))
			if e.Context.AgentID != agent || p.Run == event.RunDescribe {
				continue
			}
			if within(e.Time, 60) {
				d.usage.SQLDecisions1h++
				if p.Facts.Class == "write" {
					d.usage.SQLWrites1h++
				}
			}
			matched(e.Time, p.AgentLayer.Throttle)
		case event.TypeTelemetryReceived:
			var p event.TelemetryReceived
			require.NoError(t, e.Parse(&p))
			require.Len(t, p.Outcomes, len(p.Events))
			for i, r := range p.Events {
				if r.AgentID != agent {
					continue
				}
				if within(e.Time, 60) {
					d.usage.Events1h++
					d.usage.Tokens1h += r.Usage.InputTokens + r.Usage.OutputTokens
					if r.Status == "error" {
						d.usage.Errors1h++
					}
					if r.Type == "tool_call" {
						d.usage.ToolCalls1h++
					}
				}
				if within(e.Time, 24*60) {
					d.usage.Tokens24h += r.Usage.InputTokens + r.Usage.OutputTokens
					d.usage.CostMicros24h += r.Usage.CostMicros
				}
				matched(e.Time, p.Outcomes[i].Throttle)
			}
		}
	}
	return d
}

// What a meter has after a start, and at any time, is what all events of the log add up
// to: over more days than the projections keep minutes of.
func TestTheWindowsOfAnAgentAreThoseOfItsEvents(t *testing.T) {
	w := begin(t)
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 7))
		agents := []string{w.agent(t, "default"), w.agent(t, "default")}
		rules := &PolicyInput{Name: "p"}
		always := ""
		for _, action := range []string{"throttle:3/1m", "throttle:5/5m", "throttle:9/1h", "throttle:40/24h"} {
			rules.Rules = append(rules.Rules, RuleInput{Action: action, Condition: &always})
		}
		a, err := w.CreatePolicy(t.Context(), key("default"), rules)
		require.NoError(t, err)
		policyID := a.Location[len("/v1/policies/"):]
		var compiled []agentrules.Rule
		for _, one := range []event.AgentRule{{ID: "r1", Action: "throttle:3/1m"}, {ID: "r2", Action: "throttle:5/5m"}, {ID: "r3", Action: "throttle:9/1h"}, {ID: "r4", Action: "throttle:40/24h"},
			{ID: "r1", Action: "throttle:30/24h"}, {ID: "r4", Action: "throttle:7/5m"}} { // a rule can become another one
			rules, findings := agentrules.Compile([]event.AgentRule{one})
			require.Empty(t, findings)
			compiled = append(compiled, rules...)
		}
		admitted := map[string][]time.Time{}
		for _, agent := range agents {
			w.apply(t, "default", policyID, agent)
		}
		most := 0
		for range 250 {
			steps := []time.Duration{time.Millisecond, time.Second, 20 * time.Second, 3 * time.Minute, 50 * time.Minute, 5 * time.Hour}
			w.now.Add(r.Int64N(int64(steps[r.IntN(len(steps))])))
			agent := agents[r.IntN(2)]
			switch r.IntN(6) {
			case 0:
				_, ok := w.Admit(&Caller{Project: "default", TokenID: "tok_" + agent, AgentID: agent})
				require.True(t, ok)
				admitted[agent] = append(admitted[agent], w.Now())
			case 1:
				require.NoError(t, w.FlushUsage(t.Context(), false))
			case 2, 3:
				list := sent(1+r.IntN(4), agent)
				for i := range list {
					status, id := []string{"ok", "error"}[r.IntN(2)], fmt.Sprint("e", r.Int64())
					list[i].Input.ID, list[i].Input.Status, list[i].Input.Type = &id, &status, []string{"tool_call", "message"}[r.IntN(2)]
					list[i].Input.AgentID = agents[r.IntN(2)]
					list[i].Input.Usage = ConsumedInput{InputTokens: r.Int64N(100), OutputTokens: r.Int64N(100), CostUSD: "0.25"}
				}
				_, err := w.Telemetry(t.Context(), key("default"), list)
				require.NoError(t, err)
			default:
				facts := &policy.Facts{Class: []string{"write", "read"}[r.IntN(2)]}
				d, err := w.Decide(t.Context(), sqlgate.Agent{ID: agent, Project: "default"}, facts, true)
				require.NoError(t, err)
				p := &event.DecisionRecorded{Facts: event.DecisionFacts{Class: facts.Class}, AgentLayer: d.Layer}
				describe := *p
				describe.Run = event.RunDescribe
				ctx := event.Context{Project: "default", AgentID: agent, Decision: "ALLOW"}
				_, err = w.log.Append(t.Context(), eventlog.Group{Drafts: []event.Draft{event.New(w.Now(), ctx, &describe), event.New(w.Now(), ctx, p)}})
				require.NoError(t, err)
			}
			if r.IntN(4) == 0 { // as after a start
				w.meters = newMeters()
			}
			usage, err := w.usageOf(t.Context(), agent, w.Now())
			require.NoError(t, err)
			want := w.did(t, agent, admitted[agent], w.Now())
			require.Equal(t, want.usage, usage)
			m := w.meters.lock(agent)
			m.mu.Unlock() // nobody else is there
			list := []agentrules.Application{{Rules: compiled}}
			list[0].PolicyID = policyID
			require.NoError(t, w.view(t.Context(), func(view *projections.View) error { return m.recall(view, agent, list) }))
			for i := range compiled {
				c, n := &compiled[i], 0
				for _, at := range want.throttles[throttleKey{policyID, c.ID}] {
					if at.After(w.Now().Add(-c.Window())) {
						n++
					}
				}
				most = max(most, n)
				got, _ := m.count(policyID, c, w.Now(), nil)
				require.Equal(t, min(n, c.Limit())+1, got, "%s %s", c.ID, c.Action)
			}
		}
		require.Greater(t, most, 30, "a throttle counted something")
	}
}

// The first request of an agent after a start reads as many records as there are minutes,
// however much the agent did in them.
func TestAMeterIsFilledFromARecordForEachMinute(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	w.apply(t, "default", w.policy(t, "default", "throttle:10000/24h", "", 1), agent)
	for i := range 40 {
		w.now.Add(int64(3 * time.Second))
		list := sent(200, agent)
		for k := range list {
			id := fmt.Sprint(i, "-", k)
			list[k].Input.ID = &id
		}
		_, err := w.Telemetry(t.Context(), key("default"), list)
		require.NoError(t, err)
	}
	require.NoError(t, w.view(t.Context(), func(view *projections.View) error {
		minutes, err := view.AgentMinutes(agent)
		require.Len(t, minutes, 3)
		return err
	}))
	w.meters = newMeters()
	usage, err := w.usageOf(t.Context(), agent, w.Now())
	require.NoError(t, err)
	require.EqualValues(t, 8000, usage.Events1h)
}
