package projections_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
)

const testIssuer = "https://login.example.com"

func (w *world) bound(id, agent, subject string) {
	w.do(about(agent), &event.AgentSubjectBound{SubjectID: id, Issuer: testIssuer, Subject: subject, Scopes: []string{"gate:query"}, Reason: "its workload", By: "ada"})
}

// bindings are the ids of those that fit, the newest first.
func (w *world) bindings(f projections.SubjectFilter) (ids []string) {
	_, err := w.view().EachSubject(f, projections.Page{}, func(s *projections.AgentSubject, a *projections.Agent) (bool, error) {
		require.Equal(w.t, s.AgentID, a.AgentID)
		ids = append(ids, s.ID)
		return true, nil
	})
	require.NoError(w.t, err)
	return ids
}

func TestASubjectSpeaksForItsAgentUntilItIsUnboundOrTheAgentEnds(t *testing.T) {
	w := newWorld(t)
	w.registered("agt_1", "bot")
	w.registered("agt_2", "other")
	w.bound("sub_1", "agt_1", "client-7")
	w.bound("sub_2", "agt_2", "client-8")
	yes, no := true, false
	require.Equal(t, []string{"sub_2", "sub_1"}, w.bindings(projections.SubjectFilter{Bound: &yes}))

	s, ok, err := w.view().SubjectOf(testIssuer, "client-7")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "agt_1", s.AgentID)
	require.Equal(t, project, s.Project)
	require.True(t, s.TokensFrom.IsZero())
	for _, other := range [][2]string{{testIssuer + "/", "client-7"}, {testIssuer, "Client-7"}, {testIssuer, "client-"}, {testIssuer + "c", "lient-7"}} {
		_, ok, err = w.view().SubjectOf(other[0], other[1])
		require.NoError(t, err)
		require.False(t, ok, other)
	}

	w.do(about("agt_1"), &event.AgentSubjectUnbound{SubjectID: "sub_1", Reason: "gone", By: "bob"})
	ended := w.now.Add(-time.Second)
	w.do(about("agt_2"), &event.AgentDeactivated{AgentID: "agt_2", Revision: 2, Cause: event.CauseRequest})
	require.Equal(t, []string{"sub_2", "sub_1"}, w.bindings(projections.SubjectFilter{Bound: &no}))
	w.do(about("agt_2"), &event.AgentUpdated{Agent: event.Agent{AgentID: "agt_2", Name: "other", Status: event.AgentActive, Revision: 3}})
	require.Empty(t, w.bindings(projections.SubjectFilter{Bound: &yes}), "what a deactivation ended came back with the agent")
	s, _, err = w.view().AgentSubject("sub_1")
	require.NoError(t, err)
	require.Equal(t, []any{ended, "bob", "gone"}, []any{s.UnboundAt, s.UnboundBy, s.UnboundReason})

	from := w.now.Truncate(time.Second)
	w.do(about("agt_2"), &event.AgentSubjectBound{SubjectID: "sub_3", Issuer: testIssuer, Subject: "client-7", Reason: "moved", By: "ada", TokensFrom: from.UnixNano()})
	s, _, err = w.view().SubjectOf(testIssuer, "client-7")
	require.NoError(t, err)
	require.Equal(t, []any{"sub_3", "agt_2", from}, []any{s.ID, s.AgentID, s.TokensFrom})
	require.Equal(t, []string{"sub_3"}, w.bindings(projections.SubjectFilter{AgentID: "agt_2", Bound: &yes}))
	n, err := w.view().BoundSubjects("agt_2")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	w.compare()
}

func TestTheUseOfASubjectCountsForItsAgent(t *testing.T) {
	w := newWorld(t)
	w.registered("agt_1", "bot")
	w.bound("sub_1", "agt_1", "client-7")
	w.now = w.now.Add(5 * time.Minute)
	w.do(event.Context{Project: project, AgentID: "agt_1"}, &event.RequestReceived{CredentialIDs: []string{"sub_1"}})
	s, _, err := w.view().AgentSubject("sub_1")
	require.NoError(t, err)
	require.Equal(t, w.now.Truncate(time.Minute), s.UsedAt)
	a, _, err := w.view().Agent(project, "agt_1")
	require.NoError(t, err)
	require.Equal(t, w.now.Truncate(time.Minute), a.SeenAt)

	w.do(about("tool"), &event.ToolVerified{ToolID: "tool_1", Origin: event.Origin{CredentialIDs: []string{"sub_1"}}})
	sums := map[string]projections.UsageSums{}
	require.NoError(t, w.view().Usage(project, time.Hour, w.now.Add(-time.Hour), w.now.Add(time.Hour), func(_ time.Time, credential, agent string, u *projections.UsageSums) error {
		sums[credential+" "+agent] = *u
		return nil
	}))
	require.Equal(t, projections.UsageSums{SQLDecisions: 1, Verifications: 1}, sums["sub_1 agt_1"])
	require.True(t, projections.OfAgent("sub_1") && projections.OfAgent("tok_1") && !projections.OfAgent("key_1"))
	w.compare()
}
