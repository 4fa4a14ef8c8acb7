package agentctl

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
)

// longRules are 100 rules of some 3 KB each.
func longRules() *PolicyInput {
	condition, in := `agent.name == "`+strings.Repeat("z", 1980)+`"`, &PolicyInput{Name: "p"}
	for range 100 {
		in.Rules = append(in.Rules, RuleInput{Action: "log", Condition: &condition, Message: strings.Repeat("m", 1000)})
	}
	return in
}

func (w *world) policyOf(t testing.TB, in *PolicyInput) string {
	t.Helper()
	a, err := w.CreatePolicy(t.Context(), key("default"), in)
	require.NoError(t, err)
	return strings.TrimPrefix(a.Location, "/v1/policies/")
}

// applied binds a policy to an agent as a log of before the bounds may have it.
func (w *world) applied(t testing.TB, agent, policyID string) {
	t.Helper()
	_, err := w.Commands.Change(t.Context(), commands.Change{Decide: func(_ *projections.View, now time.Time) ([]event.Draft, error) {
		p := &event.AgentPolicyApplied{Application: event.PolicyApplication{ApplicationID: event.NewIDOf(event.ApplicationIDKind, now), PolicyID: policyID, AgentID: agent, Priority: "normal", PriorityValue: 500}}
		return []event.Draft{event.New(now, event.Context{Project: "default", AgentID: agent}, p)}, nil
	}})
	require.NoError(t, err)
}

// recordedPolicy is a policy as it stands in the log.
func (w *world) recordedPolicy(t testing.TB, rules []event.AgentRule) string {
	t.Helper()
	p := event.AgentPolicy{PolicyID: event.NewIDOf(event.AgentPolicyIDKind, w.Now()), Name: "p", Enabled: true, Mode: event.AgentPolicyEnforce, Revision: 1, Rules: rules}
	_, err := w.Commands.Change(t.Context(), commands.Change{Decide: func(_ *projections.View, now time.Time) ([]event.Draft, error) {
		return []event.Draft{event.New(now, event.Context{Project: "default"}, &event.AgentPolicyCreated{Policy: p})}, nil
	}})
	require.NoError(t, err)
	return p.PolicyID
}

// compilations counts those of a service from now on, and how many there are at once.
func (w *world) compilations() (all, most *atomic.Int64) {
	var now atomic.Int64
	all, most = new(atomic.Int64), new(atomic.Int64)
	w.Service.compiled.compile = func(rules []event.AgentRule) ([]agentrules.Rule, []agentrules.Finding) {
		all.Add(1)
		n := now.Add(1)
		defer now.Add(-1)
		time.Sleep(time.Millisecond)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		return agentrules.Compile(rules)
	}
	return all, most
}

func refused(t testing.TB, err error, says string) {
	t.Helper()
	require.Equal(t, fault.PolicyInvalid, fault.CodeOf(err), "%v", err)
	text, err := json.Marshal(fault.Of(err).Details)
	require.NoError(t, err)
	require.Contains(t, string(text), "limit_exceeded")
	require.Contains(t, string(text), says)
}

// A decision reads neither the rules of what binds its agent, once they are compiled, nor
// of what is disabled, and no policy is compiled twice.
func TestADecisionReadsLittleOfThePoliciesThatBindItsAgent(t *testing.T) {
	w := begin(t)
	agent, off := w.agent(t, "default"), false
	a := sqlgate.Agent{Project: "default", ID: agent}
	cost := func() uint64 {
		var before, behind runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 20 {
			d, err := w.Decide(t.Context(), a, &policy.Facts{Class: "write"}, false)
			require.NoError(t, err)
			require.NoError(t, w.view(t.Context(), func(view *projections.View) error {
				one, _, err := view.Agent("default", agent)
				require.NoError(t, err)
				return unchanged(view, &one, d.Layer, w.Now())
			}))
		}
		runtime.ReadMemStats(&behind)
		return (behind.TotalAlloc - before.TotalAlloc) / 20
	}
	none := cost()
	for range 6 {
		id := w.policyOf(t, longRules())
		w.apply(t, "default", id, agent)
		in := longRules()
		in.Enabled = &off
		_, err := w.UpdatePolicy(t.Context(), key("default"), id, in)
		require.NoError(t, err)
	}
	all, _ := w.compilations()
	for range 3 {
		w.apply(t, "default", w.policyOf(t, longRules()), agent)
	}
	require.EqualValues(t, 3, all.Load())
	require.Less(t, cost(), none+500_000, "its policies have 2.7 MB")
	for range 3 {
		_, err := w.Telemetry(t.Context(), key("default"), sent(1, agent))
		require.NoError(t, err)
	}
	require.EqualValues(t, 3, all.Load())
}

// What binds one agent is bounded in bytes, whichever way it comes to be bound, and by
// whichever number of requests at once; what became too much before can be made less.
func TestTheRulesThatBindAnAgentAreBoundedInBytes(t *testing.T) {
	w := begin(t)
	by, agent, off := key("default"), w.agent(t, "default"), false
	for range 3 {
		w.apply(t, "default", w.policyOf(t, longRules()), agent)
	}
	another := w.policyOf(t, longRules())
	_, err := w.Apply(t.Context(), by, another, &ApplyInput{AgentID: agent})
	refused(t, err, "1048576 bytes")
	_, err = w.PreviewApply(t.Context(), by, another, &ApplyInput{AgentID: agent})
	refused(t, err, "1048576 bytes")
	w.apply(t, "default", another, w.agent(t, "default"))

	small := w.policy(t, "default", "log", "", 1)
	for range maxWarnedAgents + 5 {
		w.apply(t, "default", small, w.agent(t, "default"))
	}
	w.apply(t, "default", small, agent)
	_, err = w.UpdatePolicy(t.Context(), by, small, longRules())
	refused(t, err, agent)
	disabled := longRules()
	disabled.Enabled = &off
	_, err = w.UpdatePolicy(t.Context(), by, small, disabled)
	require.NoError(t, err)
	_, err = w.UpdatePolicy(t.Context(), by, small, longRules())
	refused(t, err, agent)

	w.applied(t, agent, another)
	shorter := longRules()
	shorter.Rules = shorter.Rules[:99]
	_, err = w.UpdatePolicy(t.Context(), by, another, shorter)
	require.NoError(t, err, "it is less than before")
	_, err = w.UpdatePolicy(t.Context(), by, another, longRules())
	refused(t, err, "1048576 bytes")
	high := "high"
	_, err = w.Apply(t.Context(), by, another, &ApplyInput{AgentID: agent, Priority: &high})
	require.NoError(t, err, "it is no more than before")

	one, ids := w.agent(t, "default"), []string{}
	for range 8 {
		ids = append(ids, w.policy(t, "default", "log", "", 1))
		w.apply(t, "default", ids[len(ids)-1], one)
	}
	var changing sync.WaitGroup
	var taken atomic.Int64
	for _, id := range ids {
		changing.Go(func() {
			if _, err := w.UpdatePolicy(context.Background(), by, id, longRules()); err == nil {
				taken.Add(1)
			}
		})
		changing.Go(func() {
			a, err := w.CreatePolicy(context.Background(), by, longRules())
			if err == nil {
				_, err = w.Apply(context.Background(), by, strings.TrimPrefix(a.Location, "/v1/policies/"), &ApplyInput{AgentID: one})
			}
			if err == nil {
				taken.Add(1)
			}
		})
	}
	changing.Wait()
	require.EqualValues(t, 3, taken.Load())
}

// What the rules of an agent are compiled to is bounded by what is kept of compiled rules.
func TestThePatternsThatBindAnAgentAreBounded(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	gate := rulesInput("log", `request.actor.matches("^a{900}q")`, 50)
	events := rulesInput("log", `event.name.matches("^a{900}q")`, 50)
	for range 5 {
		w.apply(t, "default", w.policyOf(t, gate), agent)
		w.apply(t, "default", w.policyOf(t, events), agent)
	}
	_, err := w.Apply(t.Context(), key("default"), w.policyOf(t, gate), &ApplyInput{AgentID: agent})
	refused(t, err, "bytes of memory")
	require.NoError(t, w.view(t.Context(), func(view *projections.View) error {
		list, err := w.effective(t.Context(), view, "default", agent)
		require.Len(t, list, 10)
		return err
	}))
	require.Equal(t, 10, w.Service.compiled.policies.Len(), "all are kept")
}

// However many policies an agent is bound by, what they say of one statement, and of one
// event, can be recorded.
func TestWhatAllRulesOfAnAgentSayCanBeRecorded(t *testing.T) {
	for _, c := range []struct{ mode, condition string }{
		{event.AgentPolicyEnforce, ""}, {event.AgentPolicyObserve, ""},
		{event.AgentPolicyEnforce, `sql.class != "x"`}, {event.AgentPolicyEnforce, `event.name != "x"`},
	} {
		w := begin(t)
		agent := w.agent(t, "default")
		in := &PolicyInput{Name: "p", Mode: &c.mode}
		for i := range 100 {
			id, reason := fmt.Sprintf("%s%03d", strings.Repeat("i", 42), i), strings.Repeat("r", 30)
			in.Rules = append(in.Rules, RuleInput{ID: &id, Action: "alert:" + strings.Repeat("a", 20), Condition: &c.condition, ReasonCode: &reason})
		}
		n := 0
		for ; n < 45; n++ {
			if _, err := w.Apply(t.Context(), key("default"), w.policyOf(t, in), &ApplyInput{AgentID: agent}); err != nil {
				refused(t, err, "524288 bytes in the record")
				break
			}
		}
		require.Greater(t, n, 10)
		require.Less(t, n, 45)
		d, err := w.Decide(t.Context(), sqlgate.Agent{Project: "default", ID: agent}, &policy.Facts{Class: "write"}, false)
		require.NoError(t, err)
		draft := event.New(w.Now(), event.Context{}, &event.DecisionRecorded{AgentLayer: d.Layer})
		record, err := event.Encode(nil, &draft)
		require.NoError(t, err)
		require.Less(t, len(record), frame.MaxRecord/2+(32<<10))
		if !strings.HasPrefix(c.condition, "event.") {
			require.Greater(t, len(record), 200<<10)
		}
		_, err = w.Telemetry(t.Context(), key("default"), sent(1, agent))
		require.NoError(t, err)
	}
}

// An agent has a bounded number of policies, also of those that are disabled.
func TestThePoliciesOfAnAgentAreBounded(t *testing.T) {
	w := begin(t)
	agent, last := w.agent(t, "default"), ""
	for range maxApplications {
		last = event.NewIDOf(event.AgentPolicyIDKind, w.Now())
		w.applied(t, agent, last)
	}
	_, err := w.Apply(t.Context(), key("default"), w.policy(t, "default", "log", "", 1), &ApplyInput{AgentID: agent})
	refused(t, err, "1000 policies")
}

// Agents that a log of before the bounds binds by more are decided about, one at a time of
// a project, and hold no memory for each request.
func TestAgentsThatAreBoundByMoreAreDecidedAboutInTurns(t *testing.T) {
	w := begin(t)
	var agents []string
	var rules []event.AgentRule
	for i := range 50 {
		rules = append(rules, event.AgentRule{ID: fmt.Sprint("r", i), Action: "log", Condition: `request.actor.matches("^a{900}q")`})
	}
	same, findings := agentrules.Compile(rules)
	require.Empty(t, findings)
	for range 2 {
		agents = append(agents, w.agent(t, "default"))
		for range 11 {
			w.applied(t, agents[len(agents)-1], w.recordedPolicy(t, rules))
		}
	}
	all, most := w.compilations()
	count := w.Service.compiled.compile
	w.Service.compiled.compile = func([]event.AgentRule) ([]agentrules.Rule, []agentrules.Finding) {
		count(nil)
		return same, nil // as it takes long
	}
	var asking sync.WaitGroup
	for _, agent := range agents {
		for range 2 {
			asking.Go(func() {
				d, err := w.Decide(context.Background(), sqlgate.Agent{Project: "default", ID: agent}, &policy.Facts{Class: "write"}, false)
				if err != nil || len(d.Layer.Effective) != 11 {
					t.Errorf("%v", err)
				}
			})
		}
	}
	asking.Wait()
	require.GreaterOrEqual(t, all.Load(), int64(2*11))
	require.EqualValues(t, 1, most.Load())
	require.LessOrEqual(t, w.Service.compiled.memory, maxCompiledMemory)
	require.Empty(t, w.holding.projects)
	_, err := w.Telemetry(t.Context(), key("default"), append(sent(1, agents[0]), sent(1, agents[1])...))
	require.Equal(t, fault.OversizedRequest, fault.CodeOf(err))
	require.ErrorContains(t, err, "fewer agents")
	_, err = w.Telemetry(t.Context(), key("default"), sent(1, agents[0]))
	require.NoError(t, err)
}

// A batch that waits for an agent holds no conditions of its rules.
func TestABatchThatWasPutBeforeTheRulesHoldsThemNoMore(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	w.apply(t, "default", w.policy(t, "default", "throttle:3/1h", `event.type == "tool_call"`, 2), agent)
	b := telemetryBatch{service: w.Service, by: key("default"), sent: make([]telemetryItem, 1)}
	b.read(0, &sent(1, agent)[0])
	require.NoError(t, b.evaluate(t.Context()))
	rules := b.asked[agent].applications[0].Rules
	require.Len(t, rules, 2)
	for i := range rules {
		require.Empty(t, rules[i].Condition)
		require.Equal(t, 3, rules[i].Limit())
	}
	counted := 0
	found := b.matches[0].Result(func(_ string, r *agentrules.Rule) (int, int) { counted++; return 1, 0 })
	require.Equal(t, 2, counted)
	require.Equal(t, "r2", found.Throttle[1].RuleID)
	require.Empty(t, w.holding.projects)
	require.Empty(t, w.asking.projects)
}
