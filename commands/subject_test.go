package commands

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/fixtures/manualclock"
	"writegate/projections"
)

const subjectIssuer = "https://login.example.com"

func binding(change ...func(*BindSubject)) *BindSubject {
	r := &BindSubject{AgentID: grantedAgent, Issuer: subjectIssuer, Subject: "client-7", Scopes: []string{"gate:query"}, Reason: "its workload", By: "ada"}
	for _, c := range change {
		c(r)
	}
	return r
}

func (w *world) refusesToBind(code fault.Code, change ...func(*BindSubject)) {
	w.t.Helper()
	before := w.log.Head().Seq
	_, err := w.BindSubject(context.Background(), binding(change...))
	require.Equal(w.t, code, fault.CodeOf(err), "%v", err)
	require.Equal(w.t, before, w.log.Head().Seq, "nothing is written")
}

func TestASubjectIsBoundToOneAgentAtATime(t *testing.T) {
	clock := manualclock.At(moment)
	w := begin(t, setup{now: clock.Now})
	w.refusesToBind(fault.AgentNotFound)
	w.newAgent(&event.AgentRegistered{Agent: event.Agent{AgentID: grantedAgent, Status: event.AgentActive}})
	s, err := w.BindSubject(context.Background(), binding())
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(s.ID, "sub_"))
	require.Equal(t, []any{"p", grantedAgent, "client-7", "ada"}, []any{s.Project, s.AgentID, s.Subject, s.CreatedBy})
	require.True(t, s.TokensFrom.IsZero())

	w.refusesToBind(fault.SubjectBound)
	w.refusesToBind(fault.ValidationFailed, func(r *BindSubject) { r.Issuer = "" })
	w.refusesToBind(fault.ValidationFailed, func(r *BindSubject) { r.Reason = "  " })
	for _, bad := range []string{"", " client-8", "client-8\n", "a\x00b", "\xff", strings.Repeat("x", MaxSubjectBytes+1)} {
		w.refusesToBind(fault.ValidationFailed, func(r *BindSubject) { r.Subject = bad })
	}

	_, err = w.UnbindSubject(context.Background(), UnbindSubject{ID: "sub_none", Reason: "x"})
	require.Equal(t, fault.SubjectNotFound, fault.CodeOf(err))
	_, err = w.UnbindSubject(context.Background(), UnbindSubject{ID: s.ID})
	require.Equal(t, fault.ValidationFailed, fault.CodeOf(err))
	ended, err := w.UnbindSubject(context.Background(), UnbindSubject{ID: s.ID, Reason: "retired", By: "bob"})
	require.NoError(t, err)
	require.Equal(t, []any{"bob", "retired"}, []any{ended.UnboundBy, ended.UnboundReason})
	again, err := w.UnbindSubject(context.Background(), UnbindSubject{ID: s.ID, Reason: "once more", By: "eve"})
	require.NoError(t, err)
	require.Equal(t, ended, again)
	require.Equal(t, 1, w.count(event.TypeAgentSubjectUnbound))

	anew, err := w.BindSubject(context.Background(), binding())
	require.NoError(t, err)
	require.Equal(t, ended.UnboundAt, anew.TokensFrom, "tokens from before come back into force")
	w.check()
}

func TestADeactivationFreesTheSubjectsOfItsAgent(t *testing.T) {
	w := begin(t, setup{})
	w.newAgent(&event.AgentRegistered{Agent: event.Agent{AgentID: grantedAgent, Status: event.AgentActive}})
	first, err := w.BindSubject(context.Background(), binding())
	require.NoError(t, err)
	w.newAgent(&event.AgentDeactivated{AgentID: grantedAgent, Revision: 2, Cause: event.CauseLoss})
	w.refusesToBind(fault.AgentInactive)
	w.newAgent(&event.AgentUpdated{Agent: event.Agent{AgentID: grantedAgent, Status: event.AgentActive, Revision: 3}})
	gone, err := w.UnbindSubject(context.Background(), UnbindSubject{ID: first.ID, Reason: "it ended already", By: "ada"})
	require.NoError(t, err)
	require.True(t, gone.UnboundAt.IsZero())
	require.Zero(t, w.count(event.TypeAgentSubjectUnbound))
	anew, err := w.BindSubject(context.Background(), binding())
	require.NoError(t, err)
	require.False(t, anew.TokensFrom.IsZero())
	w.check()
}

func TestOfManyBindingsOfOneSubjectOneIsMade(t *testing.T) {
	w := begin(t, setup{})
	w.newAgent(&event.AgentRegistered{Agent: event.Agent{AgentID: grantedAgent, Status: event.AgentActive}})
	var work sync.WaitGroup
	codes := make([]fault.Code, 16)
	for i := range codes {
		work.Go(func() {
			if _, err := w.BindSubject(context.Background(), binding()); err != nil {
				codes[i] = fault.CodeOf(err)
			}
		})
	}
	work.Wait()
	made := 0
	for _, code := range codes {
		if code == "" {
			made++
			continue
		}
		require.Equal(t, fault.SubjectBound, code)
	}
	require.Equal(t, 1, made)
	require.Equal(t, 1, w.count(event.TypeAgentSubjectBound))
}

func TestAnAgentHasSoManySubjects(t *testing.T) {
	w := begin(t, setup{})
	w.newAgent(&event.AgentRegistered{Agent: event.Agent{AgentID: grantedAgent, Status: event.AgentActive}})
	var last projections.AgentSubject
	for i := range MaxSubjects {
		var err error
		last, err = w.BindSubject(context.Background(), binding(func(r *BindSubject) { r.Subject = strings.Repeat("s", i+1) }))
		require.NoError(t, err)
	}
	w.refusesToBind(fault.TokenLimitExceeded)
	_, err := w.UnbindSubject(context.Background(), UnbindSubject{ID: last.ID, Reason: "room", By: "ada"})
	require.NoError(t, err)
	_, err = w.BindSubject(context.Background(), binding())
	require.NoError(t, err)
}
