package agentctl

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/policy"
)

// A statement may wait for its connection while its token is revoked.
func TestATokenThatIsRevokedMeanwhileRunsNothing(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	issued, err := w.IssueToken(t.Context(), key("default"), agent, &TokenInput{})
	require.NoError(t, err)
	id := issued.Body.(IssuedBody).TokenID
	settle := func() error {
		return w.view(t.Context(), func(view *projections.View) error {
			extra, _ := w.Settle(sqlgate.Agent{Project: "default", ID: agent, CredentialID: id}, sqlgate.LayerDecision{Layer: w.counts(t, w.Service, agent)}, "req_1", true)
			_, err := extra(view, w.Now())
			return err
		})
	}
	require.NoError(t, settle())
	_, err = w.RevokeToken(t.Context(), key("default"), agent, id)
	require.NoError(t, err)
	w.now.Add(int64(time.Second))
	require.Equal(t, fault.TokenRevoked, fault.CodeOf(settle()))
}

// A statement may wait for its connection while something changes that the rules of its
// agent read: it is decided anew.
func TestWhatTheRulesOfAnAgentReadIsAsItWasOrTheStatementIsDecidedAnew(t *testing.T) {
	w := begin(t)
	by, off := key("default"), false
	agent := w.agent(t, "default")
	issued, err := w.IssueToken(t.Context(), by, agent, &TokenInput{})
	require.NoError(t, err)
	asking := sqlgate.Agent{Project: "default", ID: agent, CredentialID: issued.Body.(IssuedBody).TokenID}
	low, high := "low", "high"
	first, second := w.policy(t, "default", "block", "", 1), w.policy(t, "default", "alert", "", 1)
	toolID := ""
	tool := func(agents ...string) *ToolInput {
		return &ToolInput{Name: "search", Type: "mcp", Endpoint: &EndpointInput{URL: "https://tools.example/mcp"}, Agents: agents}
	}
	for _, change := range []struct {
		what string
		do   func() (Answer, error)
		anew bool
	}{
		{"nothing", func() (Answer, error) { return Answer{}, nil }, false},
		{"another agent", func() (Answer, error) {
			return w.Apply(t.Context(), by, first, &ApplyInput{AgentID: w.agent(t, "default")})
		}, false},
		{"a policy is applied", func() (Answer, error) { return w.Apply(t.Context(), by, first, &ApplyInput{AgentID: agent}) }, true},
		{"one more", func() (Answer, error) {
			return w.Apply(t.Context(), by, second, &ApplyInput{AgentID: agent, Priority: &low})
		}, true},
		{"another priority", func() (Answer, error) {
			return w.Apply(t.Context(), by, second, &ApplyInput{AgentID: agent, Priority: &high})
		}, true},
		{"other rules", func() (Answer, error) { return w.UpdatePolicy(t.Context(), by, first, rulesInput("alert", "", 1)) }, true},
		{"a policy is switched off", func() (Answer, error) {
			in := rulesInput("alert", "", 1)
			in.Enabled = &off
			return w.UpdatePolicy(t.Context(), by, first, in)
		}, true},
		{"other rules of it", func() (Answer, error) {
			in := rulesInput("block", "", 1)
			in.Enabled = &off
			return w.UpdatePolicy(t.Context(), by, first, in)
		}, false},
		{"a policy is removed", func() (Answer, error) { return w.Detach(t.Context(), by, second, agent) }, true},
		{"another name", func() (Answer, error) {
			return w.Update(t.Context(), by, agent, &UpdateInput{AgentInput: AgentInput{Name: "other", Type: "worker"}})
		}, true},
		{"a tool", func() (a Answer, err error) {
			a, err = w.RegisterTool(t.Context(), by, tool(agent))
			toolID = a.Location[len("/v1/tools/"):]
			return a, err
		}, false}, // it is not verified, as no tool was
		{"the tool of another", func() (Answer, error) { return w.UpdateTool(t.Context(), by, toolID, tool()) }, false},
	} {
		d, err := w.Decide(t.Context(), asking, &policy.Facts{Class: "write"}, true)
		require.NoError(t, err)
		_, err = change.do()
		require.NoError(t, err, change.what)
		w.now.Add(int64(time.Second))
		err = w.view(t.Context(), func(view *projections.View) error {
			extra, _ := w.Settle(asking, d, "req_1", true)
			_, err := extra(view, w.Now())
			return err
		})
		require.Equal(t, change.anew, errors.Is(err, sqlgate.ErrPolicyChanged), "%s: %v", change.what, err)
		if !change.anew {
			require.NoError(t, err, change.what)
		}
		d.Counted(time.Time{})
	}
}

// A policy or a tool that changes between the look at them and the record of the decision
// that read them has it made anew, in its own project alone; and whoever waits for a lock
// or a view keeps nobody waiting.
func TestADecisionIsNotRecordedBehindAChangeThatItDidNotSee(t *testing.T) {
	w := begin(t)
	agent := w.agent(t, "default")
	mine, others := w.policy(t, "default", "block", "", 1), w.policy(t, "other", "block", "", 1)
	d := sqlgate.LayerDecision{Layer: w.counts(t, w.Service, agent)}
	written := 0
	write := func() error { written++; return nil }
	_, around := w.Settle(sqlgate.Agent{Project: "default", ID: agent}, d, "req_1", true)
	require.NoError(t, around(write))
	_, err := w.UpdatePolicy(t.Context(), key("other"), others, rulesInput("alert", "", 1))
	require.NoError(t, err)
	require.NoError(t, around(write))
	_, err = w.UpdatePolicy(t.Context(), key("default"), mine, rulesInput("alert", "", 1))
	require.NoError(t, err)
	require.ErrorIs(t, around(write), sqlgate.ErrPolicyChanged)
	_, around = w.Settle(sqlgate.Agent{Project: "default", ID: agent}, d, "req_1", true)
	_, err = w.RegisterTool(t.Context(), key("default"), &ToolInput{Name: "search", Type: "mcp", Endpoint: &EndpointInput{URL: "https://tools.example/mcp"}})
	require.NoError(t, err)
	require.ErrorIs(t, around(write), sqlgate.ErrPolicyChanged)
	require.Equal(t, 2, written)
}

// The same of telemetry: between the look at the rules and the append of what they said,
// another rule is in force.
func TestABatchIsNotRecordedBehindAChangeThatItDidNotSee(t *testing.T) {
	w := begin(t)
	off := false
	for _, c := range []struct {
		action string
		change *PolicyInput
		status string
		found  []string
	}{
		{"block", rulesInput("require_approval", "", 1), event.AgentActive, []string{"require_approval"}},
		{"suspend", &PolicyInput{Name: "p", Enabled: &off, Rules: rulesInput("suspend", "", 1).Rules}, event.AgentActive, nil},
		{"log", rulesInput("suspend", "", 1), event.AgentInactive, []string{"suspend"}},
		{"throttle:1/1h", rulesInput("throttle:1/1h", "", 2), event.AgentActive, []string{"throttle:1/1h"}},
	} {
		agent, id := w.agent(t, "default"), w.policy(t, "default", c.action, "", 1)
		w.apply(t, "default", id, agent)
		change := func(name string) {
			if name != "commands.decide" {
				return
			}
			w.step.Store(nil)
			_, err := w.UpdatePolicy(t.Context(), key("default"), id, c.change)
			require.NoError(t, err)
		}
		w.step.Store(&change)
		answer, err := w.Telemetry(t.Context(), key("default"), sent(2, agent))
		require.NoError(t, err)
		require.Nil(t, w.step.Load())
		var found []string
		results := answer.Body.(*TelemetryBody).Results
		for _, v := range results[1].Violations {
			found = append(found, v.Action)
		}
		require.Equal(t, c.found, found, c.action)
		require.NoError(t, w.view(t.Context(), func(view *projections.View) error {
			a, _, err := view.Agent("default", agent)
			require.Equal(t, c.status, a.Status, c.action)
			return err
		}))
		if c.status == event.AgentActive {
			w.asAfterAStart(t, agent, c.action)
		}
	}
}

// A token is looked at as the head of a request comes, and again where it is decided:
// the body may have been on its way for long, and the batch have waited.
func TestATokenThatEndedMeanwhileChangesNothing(t *testing.T) {
	w := begin(t)
	days := 1
	for end, code := range map[string]fault.Code{"revoked": fault.TokenRevoked, "deactivated": fault.TokenRevoked, "expired": fault.TokenExpired, "none": ""} {
		agent := w.agent(t, "default")
		a, err := w.IssueToken(t.Context(), key("default"), agent, &TokenInput{ExpiryDays: &days})
		require.NoError(t, err)
		issued := a.Body.(IssuedBody)
		caller, err := w.Authenticate(t.Context(), *issued.Token, "")
		require.NoError(t, err)
		by := &Asker{Caller: caller, RequestID: "req_1"}
		switch end {
		case "revoked":
			_, err = w.RevokeToken(t.Context(), key("default"), agent, issued.TokenID)
		case "deactivated":
			_, err = w.Deactivate(t.Context(), key("default"), agent, "")
		case "expired":
			w.now.Add(int64(25 * time.Hour))
		}
		require.NoError(t, err)
		head := w.log.Head().Seq
		for what, do := range map[string]func() (Answer, error){
			"telemetry": func() (Answer, error) { return w.Telemetry(t.Context(), by, sent(1, agent)) },
			"a change":  func() (Answer, error) { return w.IssueToken(t.Context(), by, agent, &TokenInput{}) },
		} {
			_, err := do()
			if code == "" {
				require.NoError(t, err, what)
				continue
			}
			require.Equal(t, code, fault.CodeOf(err), "%s: %s: %v", end, what, err)
			require.Equal(t, head, w.log.Head().Seq)
		}
	}
}
