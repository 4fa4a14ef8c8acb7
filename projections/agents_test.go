package projections_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
)

const project = "p"

func about(agent string) event.Context { return event.Context{Project: project, AgentID: agent} }

func (w *world) registered(id, name string) {
	w.do(about(id), &event.AgentRegistered{Agent: event.Agent{AgentID: id, Name: name, Type: "worker", Status: event.AgentActive, Revision: 1,
		Metadata: map[string]string{"environment": "prod"}}})
}

func (w *world) applied(application, policy, agent string, value int) {
	w.do(about(agent), &event.AgentPolicyApplied{Origin: event.Origin{CredentialIDs: []string{"key_1"}}, Application: event.PolicyApplication{
		ApplicationID: application, PolicyID: policy, AgentID: agent, Priority: "normal", PriorityValue: value}})
}

func TestAnAgentIsListedWhereItStands(t *testing.T) {
	w := newWorld(t)
	w.registered("agt_1", "invoice-bot")
	w.registered("agt_2", "mail-bot")
	w.do(about("agt_1"), &event.AgentDeactivated{AgentID: "agt_1", Revision: 2, Cause: event.CauseRequest})

	list := func(f projections.AgentFilter) (ids []string) {
		f.Project = project
		found, _, err := w.view().Agents(f, projections.Page{})
		require.NoError(t, err)
		for _, a := range found {
			ids = append(ids, a.AgentID)
		}
		return ids
	}
	require.Equal(t, []string{"agt_2"}, list(projections.AgentFilter{Status: event.AgentActive}))
	require.Equal(t, []string{"agt_1"}, list(projections.AgentFilter{Status: event.AgentInactive}))
	require.Equal(t, []string{"agt_2", "agt_1"}, list(projections.AgentFilter{}))
	require.Equal(t, []string{"agt_1"}, list(projections.AgentFilter{NamePrefix: "inv"}))
	require.Empty(t, list(projections.AgentFilter{Environment: "dev"}))
	_, ok, err := w.view().Agent("other", "agt_2")
	require.NoError(t, err)
	require.False(t, ok, "another project does not see it")

	a, _, err := w.view().Agent(project, "agt_1")
	require.NoError(t, err)
	require.Equal(t, 2, a.Revision)
	require.False(t, a.DeactivatedAt.IsZero())
	back := a.Agent
	back.Status, back.Revision = event.AgentActive, 3
	w.do(about("agt_1"), &event.AgentUpdated{Agent: back})
	a, _, err = w.view().Agent(project, "agt_1")
	require.NoError(t, err)
	require.True(t, a.DeactivatedAt.IsZero())
	require.Equal(t, []string{"agt_2", "agt_1"}, list(projections.AgentFilter{Status: event.AgentActive}))
	w.compare()
}

func TestATokenLivesUntilItExpiresIsReplacedOrRevoked(t *testing.T) {
	w := newWorld(t)
	w.registered("agt_1", "bot")
	issue := func(id string, digest byte, replaces string) {
		p := &event.AgentTokenIssued{TokenID: id, AgentID: "agt_1", TokenSHA256: [32]byte{digest}, Scopes: []string{"gate:query"}, ExpiresAt: w.now.Add(time.Hour).UnixNano()}
		if replaces != "" {
			p.Replaces, p.ReplacedExpiresAt = replaces, w.now.Add(time.Minute).UnixNano()
		}
		w.do(about("agt_1"), p)
	}
	issue("tok_1", 1, "")
	issue("tok_2", 2, "tok_1")
	old, ok, err := w.view().TokenByDigest([32]byte{1})
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, projections.TokenLive, old.StatusAt(w.now))
	require.Equal(t, projections.TokenExpired, old.StatusAt(w.now.Add(2*time.Minute)))

	w.do(about("agt_1"), &event.AgentTokenRevoked{TokenID: "tok_2", AgentID: "agt_1", Cause: event.CauseRequest})
	all, err := w.view().AllTokens("agt_1")
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, projections.TokenRevoked, all[1].StatusAt(w.now))
	_, ok, err = w.view().TokenByDigest([32]byte{9})
	require.NoError(t, err)
	require.False(t, ok)

	minute := w.now.Truncate(time.Minute)
	w.do(event.Context{Project: project}, &event.UsageRecorded{Minute: minute.UnixNano(), Credentials: []event.CredentialUsage{{CredentialID: "tok_2", AgentID: "agt_1", Requests: 3}}})
	used, _, err := w.view().AgentToken("tok_2")
	require.NoError(t, err)
	require.Equal(t, minute, used.UsedAt)

	seen := func() (at []time.Time) { // by the token, and of its agent
		k, _, err := w.view().AgentToken("tok_2")
		require.NoError(t, err)
		a, _, err := w.view().Agent(project, "agt_1")
		require.NoError(t, err)
		return []time.Time{k.UsedAt, a.SeenAt}
	}
	for _, statement := range []event.Typed{
		&event.RequestReceived{CredentialIDs: []string{"key_1", "tok_2"}}, &event.QueryRejected{CredentialIDs: []string{"tok_2"}},
		&event.RequestReceived{CredentialIDs: []string{"tok_2"}, Purpose: event.PurposeDescribe},
	} {
		w.now = w.now.Add(3 * time.Minute)
		w.do(event.Context{Project: project, AgentID: "agt_1"}, statement)
		now := w.now.Truncate(time.Minute)
		require.Equal(t, []time.Time{now, now}, seen(), "%T", statement)
	}
	last := seen()
	w.do(event.Context{Project: project}, &event.UsageRecorded{Minute: minute.UnixNano(), Credentials: []event.CredentialUsage{{CredentialID: "tok_2", AgentID: "agt_1", Requests: 3}}})
	require.Equal(t, last, seen(), "the count of an earlier minute comes later")
	w.compare()
}

func TestAPolicyKnowsItsApplications(t *testing.T) {
	w := newWorld(t)
	w.registered("agt_1", "a")
	w.registered("agt_2", "b")
	policy := event.AgentPolicy{PolicyID: "pol_1", Name: "guard", Enabled: true, Mode: event.AgentPolicyEnforce, Revision: 1, Rules: []event.AgentRule{{ID: "r1", Action: "block"}}}
	w.do(event.Context{Project: project}, &event.AgentPolicyCreated{Policy: policy})
	w.applied("apl_1", "pol_1", "agt_1", 500)
	w.applied("apl_2", "pol_1", "agt_2", 500)
	w.applied("apl_1", "pol_1", "agt_1", 750) // a new priority is no second application

	p, ok, err := w.view().AgentPolicy(project, "pol_1")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, 2, p.Applications)
	of, err := w.view().ApplicationsOf("agt_1")
	require.NoError(t, err)
	require.Len(t, of, 1)
	require.Equal(t, 750, of[0].PriorityValue)
	require.Equal(t, "key_1", of[0].AppliedBy)

	w.do(about("agt_2"), &event.AgentPolicyDetached{Application: event.PolicyApplication{ApplicationID: "apl_2", PolicyID: "pol_1", AgentID: "agt_2"}})
	ids, err := w.view().AgentsOf("pol_1")
	require.NoError(t, err)
	require.Equal(t, []string{"agt_1"}, ids)
	policy.Revision, policy.Enabled = 2, false
	w.do(event.Context{Project: project}, &event.AgentPolicyUpdated{Policy: policy})
	off := false
	var list []projections.AgentPolicy
	_, err = w.view().EachAgentPolicy(projections.AgentPolicyFilter{Project: project, Enabled: &off, AgentID: "agt_1"}, projections.Page{}, func(p *projections.AgentPolicy) (bool, error) {
		list = append(list, *p)
		return true, nil
	})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, 1, list[0].Applications)
	w.compare()
}

// What decisions read of a policy before its rules says what the policy does, and stays
// small however long these are.
func TestTheHeadOfAPolicyIsKeptBesideIt(t *testing.T) {
	w := newWorld(t)
	policy := event.AgentPolicy{PolicyID: "pol_1", Name: "guard", Enabled: true, Mode: event.AgentPolicyEnforce, Revision: 1, Rules: []event.AgentRule{{ID: "r1", Action: "block"}}}
	head := func() projections.AgentPolicyHead {
		h, ok, err := w.view().AgentPolicyHead(project, "pol_1")
		require.NoError(t, err)
		require.True(t, ok)
		return h
	}
	w.do(event.Context{Project: project}, &event.AgentPolicyCreated{Policy: policy})
	require.Equal(t, projections.AgentPolicyHead{Project: project, Enabled: true, Mode: event.AgentPolicyEnforce, Revision: 1, Text: 7}, head())
	policy.Revision, policy.Enabled, policy.Mode = 2, false, event.AgentPolicyObserve
	policy.Rules = []event.AgentRule{{ID: "r1", Action: "log", Condition: `agent.name.matches("^a")`, Message: strings.Repeat("m", 1000), ReasonCode: "r"}, {ID: "r2", Action: "log"}}
	w.do(event.Context{Project: project}, &event.AgentPolicyUpdated{Policy: policy})
	require.Equal(t, projections.AgentPolicyHead{Project: project, Mode: event.AgentPolicyObserve, Revision: 2, Text: 1035, Patterns: true}, head())
	w.applied("apl_1", "pol_1", "agt_1", 500)
	require.Equal(t, 1035, head().Text)
	_, ok, err := w.view().AgentPolicyHead("other", "pol_1")
	require.NoError(t, err)
	require.False(t, ok, "another project does not see it")
	w.compare()
}

func TestTheAnswerOfAPostIsKeptUnderItsKey(t *testing.T) {
	w := newWorld(t)
	scope := [32]byte{7}
	e := w.do(event.Context{Project: project, RequestID: "req_1"}, &event.ToolRegistered{Origin: event.Origin{Idempotency: &event.KeptAnswer{Key: "k", ScopeDigest: scope,
		RequestSHA256: [32]byte{8}, ExpiresAt: w.now.Add(24 * time.Hour).UnixNano(), Status: 201, Body: `{"id":"tool_1"}`}}})
	r, ok, err := w.view().Idempotency(scope, w.now)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, []any{true, 201, `{"id":"tool_1"}`, e.Seq, [32]byte{8}}, []any{r.Answered, r.Status, r.Body, r.Seq, r.RequestDigest})
	w.compare()
}

func TestTheIndexFindsWhatAPayloadNames(t *testing.T) {
	w := newWorld(t)
	origin := event.Origin{CredentialIDs: []string{"key_1", "tok_1"}}
	batch := w.do(event.Context{Project: project}, &event.TelemetryReceived{Origin: origin, BatchID: "bat_1", Events: []event.TelemetryEvent{
		{ID: "1", Type: "tool_call", AgentID: "agt_1", SessionID: "s-1", Tool: event.TelemetryTool{ID: "tool_1"}},
		{ID: "2", Type: "error", AgentID: "agt_2"}},
		Outcomes: []event.TelemetryOutcome{{Violations: []event.Violation{{PolicyID: "pol_9", RuleID: "r", Action: "block"}}}}})
	decided := w.do(about("agt_1"), &event.DecisionRecorded{AgentLayer: &event.AgentLayer{Matched: []event.MatchedPolicy{{PolicyID: "pol_1", Rules: []string{"r1"}}}}})
	find := func(f projections.AuditFilter) []uint64 {
		f.Project = project
		seqs, _, err := w.view().Audit(f, projections.Page{Asc: true})
		require.NoError(t, err)
		return seqs
	}
	check := func() {
		for name, f := range map[string]projections.AuditFilter{
			"credential": {CredentialID: "tok_1"}, "agent": {AgentID: "agt_2"}, "session": {SessionID: "s-1"},
			"tool": {ToolID: "tool_1"}, "telemetry type": {TelemetryType: "error"}, "violated policy": {AgentPolicyID: "pol_9"},
		} {
			require.Equal(t, []uint64{batch.Seq}, find(f), name)
		}
		require.Equal(t, []uint64{decided.Seq}, find(projections.AuditFilter{AgentPolicyID: "pol_1"}))
		require.Equal(t, []uint64{batch.Seq, decided.Seq}, find(projections.AuditFilter{AgentID: "agt_1"}))
		require.Empty(t, find(projections.AuditFilter{CredentialID: "tok_2"}))
	}
	check() // in the block that is in memory
	for range 600 {
		w.log.Append(t, event.New(w.now, event.Context{}, &event.HealthFail{Step: "s", Message: "m"}))
	}
	w.do(event.Context{}, &event.HealthFail{Step: "s", Message: "m"})
	check() // in the one that is on disk
	w.compare()
}
