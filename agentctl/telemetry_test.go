package agentctl

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

// key is a project key's request with every right.
func key(project string) *Asker {
	return &Asker{Caller: Caller{Project: project, KeyID: "key_" + project, keyScopes: scopesOf(KeyScopes), whole: true}, RequestID: "req_1"}
}

// agent registers one.
func (w *world) agent(t testing.TB, project string) string {
	t.Helper()
	none := false
	a, err := w.Register(t.Context(), key(project), &RegisterInput{AgentInput: AgentInput{Name: "bot", Type: "worker"}, IssueToken: &none})
	require.NoError(t, err)
	return strings.TrimPrefix(a.Location, "/v1/agents/")
}

// policy makes one whose rules all have one condition, and gives its id.
func (w *world) policy(t testing.TB, project, action, condition string, rules int) string {
	t.Helper()
	a, err := w.CreatePolicy(t.Context(), key(project), rulesInput(action, condition, rules))
	require.NoError(t, err)
	return strings.TrimPrefix(a.Location, "/v1/policies/")
}

func rulesInput(action, condition string, rules int) *PolicyInput {
	in := &PolicyInput{Name: "p"}
	for range rules {
		in.Rules = append(in.Rules, RuleInput{Action: action, Condition: &condition})
	}
	return in
}

func (w *world) apply(t testing.TB, project, policy, agent string) {
	t.Helper()
	_, err := w.Apply(t.Context(), key(project), policy, &ApplyInput{AgentID: agent})
	require.NoError(t, err)
}

// sent are n events of an agent.
func sent(n int, agent string) (list []SentEvent) {
	for i := range n {
		id := fmt.Sprintf("%s-%d", agent, i)
		list = append(list, SentEvent{Bytes: 100, Input: &TelemetryInput{ID: &id, Type: "tool_call", AgentID: agent, Name: strings.Repeat("y", 200)}})
	}
	return list
}

// held holds the aggregate of an agent until the test ends.
func (w *world) held(t testing.TB, project, agent string) {
	t.Helper()
	taken, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = w.Commands.Change(context.Background(), commands.Change{Keys: []string{commands.AgentKey(project, agent)},
			Decide: func(*projections.View, time.Time) ([]event.Draft, error) {
				close(taken)
				<-release
				return nil, nil
			}})
	}()
	<-taken
	t.Cleanup(func() { close(release); <-done })
}

// A batch locks agents of its own project that it has events of, and no others: ids
// of agents are no secret.
func TestABatchThatNamesAnAgentOfAnotherProjectDoesNotWaitForIt(t *testing.T) {
	w := begin(t)
	stranger, own := w.agent(t, "default"), w.agent(t, "other")
	w.held(t, "default", stranger)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	answer, err := w.Telemetry(ctx, key("other"), append(sent(1, stranger), sent(3, own)...))
	require.NoError(t, err)
	body := answer.Body.(*TelemetryBody)
	require.Equal(t, 3, body.Accepted)
	require.Equal(t, agentUnknown, body.Results[0].ErrorCode)

	// The other requests that name an agent, a policy or a tool in their path.
	_, err = w.Deactivate(ctx, key("other"), stranger, "")
	require.Equal(t, fault.AgentNotFound, fault.CodeOf(err))
	_, err = w.Update(ctx, key("other"), stranger, &UpdateInput{AgentInput: AgentInput{Name: "x", Type: "y"}})
	require.Equal(t, fault.AgentNotFound, fault.CodeOf(err))
	_, err = w.IssueToken(ctx, key("other"), stranger, &TokenInput{})
	require.Equal(t, fault.AgentNotFound, fault.CodeOf(err))
	_, err = w.RevokeToken(ctx, key("other"), stranger, "tok_x")
	require.Equal(t, fault.AgentNotFound, fault.CodeOf(err))
	_, err = w.Apply(ctx, key("other"), w.policy(t, "other", "log", "", 1), &ApplyInput{AgentID: stranger})
	require.Equal(t, fault.AgentNotFound, fault.CodeOf(err))
	_, err = w.Detach(ctx, key("other"), "pol_x", stranger)
	require.Equal(t, fault.PolicyNotFound, fault.CodeOf(err))
}

// The events are put before the rules before anything is locked: what is too much is
// refused while somebody else has the agent, and the agent is free while it is asked.
func TestABatchIsEvaluatedUnderNoLock(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	w.apply(t, "default", w.policy(t, "default", "log", `event.name.matches("(?:.?.?){80}Q1")`, 20), agent)
	answer, err := w.Telemetry(t.Context(), key("default"), sent(30, agent))
	require.NoError(t, err, "few events may be asked about much")
	require.Equal(t, 30, answer.Body.(*TelemetryBody).Accepted)

	w.held(t, "default", agent)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = w.Telemetry(ctx, key("default"), sent(1000, agent))
	f := fault.Of(err)
	require.Equal(t, fault.OversizedRequest, f.Code, f.Message)
	require.Contains(t, f.Message, "Send fewer events at once")
	require.Equal(t, maxBatchCost, f.Details["max"])
}

// A batch whose sender left is not evaluated any further.
func TestAnEvaluationEndsWithItsRequest(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	w.apply(t, "default", w.policy(t, "default", "log", `event.name != ""`, 1), agent)
	b := telemetryBatch{service: w.Service, by: key("default"), sent: make([]telemetryItem, 10)}
	for i, e := range sent(10, agent) {
		b.read(i, &e)
	}
	require.NoError(t, b.evaluate(t.Context()))
	require.Len(t, b.matches, 10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(b.evaluate(ctx)))
	require.Empty(t, b.matches)
}

// A change acts on every agent that a policy is applied to, from its event on: also
// on a batch that was being asked about under the rules before it.
func TestABatchIsDecidedUnderTheRulesOfItsMoment(t *testing.T) {
	for name, change := range map[string]func(w *world, agent, policy string) error{
		"the policy is updated": func(w *world, _, policy string) error {
			_, err := w.UpdatePolicy(t.Context(), key("default"), policy, rulesInput("suspend", "", 1))
			return err
		},
		"another is applied": func(w *world, agent, _ string) error {
			w.apply(t, "default", w.policy(t, "default", "block", "", 1), agent)
			return nil
		},
		"it is detached": func(w *world, agent, policy string) error {
			_, err := w.Detach(t.Context(), key("default"), policy, agent)
			return err
		},
		"the agent is another": func(w *world, agent, _ string) error {
			_, err := w.Update(t.Context(), key("default"), agent, &UpdateInput{AgentInput: AgentInput{Name: "other", Type: "worker"}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t)
			agent := w.agent(t, "default")
			policy := w.policy(t, "default", "log", `event.name != ""`, 1)
			w.apply(t, "default", policy, agent)
			b := telemetryBatch{service: w.Service, by: key("default"), sent: make([]telemetryItem, 2)}
			for i, e := range sent(2, agent) {
				b.read(i, &e)
			}
			require.NoError(t, b.evaluate(t.Context()))
			require.NoError(t, change(w, agent, policy))
			answer, err := w.write(t.Context(), b.by, b.aggregates(), b.decide)
			require.NoError(t, err)
			require.True(t, b.stale)
			require.Empty(t, answer.Events)

			answer, err = w.Telemetry(t.Context(), b.by, sent(2, agent))
			require.NoError(t, err)
			require.Len(t, answer.Events, 1+len(answer.Body.(*TelemetryBody).Suspended))
		})
	}
}

// An agent that is deactivated while its events are asked about takes none of them.
func TestABatchOfAnAgentThatIsDeactivatedMeanwhileIsRejected(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	b := telemetryBatch{service: w.Service, by: key("default"), sent: make([]telemetryItem, 1)}
	for i, e := range sent(1, agent) {
		b.read(i, &e)
	}
	require.NoError(t, b.evaluate(t.Context()))
	_, err := w.Deactivate(t.Context(), key("default"), agent, "")
	require.NoError(t, err)
	_, err = w.write(t.Context(), b.by, b.aggregates(), b.decide)
	require.Equal(t, fault.AllEventsRejected, fault.CodeOf(err))
	require.Equal(t, agentNotActive, b.items[0].outcome.ErrorCode)
}

// Policies that are too much for one agent together are refused before anything is
// locked, when they are applied and when one of them changes.
func TestThePoliciesOfAnAgentAreBoundedTogether(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	slow := `request.actor.matches("(?:.?.?){80}Q1")`
	first, second := w.policy(t, "default", "log", slow, 30), w.policy(t, "default", "log", slow, 30)
	w.apply(t, "default", first, agent)
	w.held(t, "default", agent)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := w.Apply(ctx, key("default"), second, &ApplyInput{AgentID: agent})
	require.Equal(t, fault.PolicyInvalid, fault.CodeOf(err))
	require.Contains(t, fmt.Sprint(fault.Of(err).Details["findings"]), "detach one")
	_, err = w.PreviewApply(ctx, key("default"), second, &ApplyInput{AgentID: agent})
	require.Equal(t, fault.PolicyInvalid, fault.CodeOf(err))

	other := w.agent(t, "default")
	small := w.policy(t, "default", "log", "", 1)
	w.apply(t, "default", first, other)
	w.apply(t, "default", small, other)
	_, err = w.UpdatePolicy(ctx, key("default"), small, rulesInput("log", slow, 30))
	require.Equal(t, fault.PolicyInvalid, fault.CodeOf(err))
}
