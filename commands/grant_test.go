package commands

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/fixtures/manualclock"
	"writegate/projections"
)

const grantedAgent = "agt_1"

// newAgent registers the agent of these tests, in a state.
func (w *world) newAgent(change event.Originated) {
	w.t.Helper()
	_, err := w.Change(context.Background(), Change{Keys: []string{AgentKey("p", grantedAgent)}, Decide: func(_ *projections.View, now time.Time) ([]event.Draft, error) {
		return []event.Draft{event.New(now, event.Context{Project: "p", AgentID: grantedAgent}, change)}, nil
	}})
	require.NoError(w.t, err)
}

func (w *world) newGrant(uses int, rows int64) projections.Grant {
	w.t.Helper()
	g, err := w.CreateGrant(context.Background(), &CreateGrant{AgentID: grantedAgent, Condition: `class == "write"`, Until: w.Commands.now().Add(time.Hour), Uses: uses, Rows: rows,
		Reason: "the catalogue", By: "operator", MaxSeconds: 3600})
	require.NoError(w.t, err)
	return g
}

// underGrant dispatches under a grant.
func underGrant(id string, rows int64) *RecordDecision {
	return recording(dispatching, func(r *RecordDecision) {
		r.Request.AgentID, r.Request.Project = grantedAgent, "p"
		r.Decision.GrantID, r.UseGrant, r.ExecutionID = id, &GrantUse{ID: id, Rows: rows}, ""
	})
}

func (w *world) grantAt(id string) *projections.Grant {
	w.t.Helper()
	view := w.store.View()
	defer view.Close()
	g, found, err := view.Grant(id)
	require.NoError(w.t, err)
	require.True(w.t, found)
	return &g
}

func TestAGrantIsUsedWithinItsTimeAndBudget(t *testing.T) {
	clock := manualclock.At(moment)
	w := begin(t, setup{now: clock.Now})
	w.newAgent(&event.AgentRegistered{Agent: event.Agent{AgentID: grantedAgent, Status: event.AgentActive}})
	use := func(r *RecordDecision) (Recorded, error) { return w.RecordDecision(context.Background(), r) }
	lost := func(r *RecordDecision) {
		t.Helper()
		before := w.log.Head().Seq
		_, err := use(r)
		require.ErrorIs(t, err, ErrGrantLost)
		require.Equal(t, before, w.log.Head().Seq, "nothing is written")
	}
	g := w.newGrant(3, 10)
	lost(underGrant("gra_other", 1))
	lost(underGrant(g.ID, 11))
	stranger := underGrant(g.ID, 1)
	stranger.Request.AgentID = "agt_2"
	lost(stranger)

	r := underGrant(g.ID, 6)
	recorded, err := use(r)
	require.NoError(t, err)
	require.Equal(t, []event.Type{event.TypeRequestReceived, event.TypeDecisionRecorded, event.TypeGrantUsed, event.TypeExecutionDispatched},
		[]event.Type{recorded.Events[0].Type, recorded.Events[1].Type, recorded.Events[2].Type, recorded.Events[3].Type})
	lost(underGrant(g.ID, 5)) // six are kept
	result := succeeded(r, recorded.ExecutionID)
	result.Success.RowsChanged = 2
	_, err = w.RecordResult(context.Background(), result)
	require.NoError(t, err)
	now := w.grantAt(g.ID)
	require.Equal(t, []int64{8, 2, 0, 2, 0}, []int64{now.RowsLeft(), now.Changed, now.Reserved, int64(now.UsesLeft()), int64(now.Running)})

	r = underGrant(g.ID, 8)
	recorded, err = use(r)
	require.NoError(t, err)
	_, err = w.RecordResult(context.Background(), &RecordResult{Request: &r.Request, Decision: &r.Decision, ExecutionID: recorded.ExecutionID,
		Unknown: &Unknown{ExecutionStateUnknown: event.ExecutionStateUnknown{Cause: "timeout"}}})
	require.NoError(t, err)
	now = w.grantAt(g.ID)
	require.Equal(t, []int64{0, 2, 8, 0}, []int64{now.RowsLeft(), now.Changed, now.Reserved, int64(now.Running)}, "what is not known keeps them")
	for _, outcome := range []string{event.OutcomeNotKnowable, event.OutcomeCommitted} {
		_, err = w.ResolveOutcome(context.Background(), ResolveOutcome{ExecutionID: recorded.ExecutionID, Outcome: outcome, Basis: "test"})
		require.NoError(t, err)
		require.Zero(t, w.grantAt(g.ID).RowsLeft(), outcome)
	}
	require.EqualValues(t, 10, w.grantAt(g.ID).Changed, "committed counts as all that were kept")

	part := w.newGrant(1, 10)
	r = underGrant(part.ID, 4)
	recorded, err = use(r)
	require.NoError(t, err)
	_, err = w.RecordResult(context.Background(), &RecordResult{Request: &r.Request, Decision: &r.Decision, ExecutionID: recorded.ExecutionID,
		Failure: &Failure{ExecutionFailure: event.ExecutionFailure{Outcome: event.OutcomePartialPossible}}})
	require.NoError(t, err)
	require.EqualValues(t, 6, w.grantAt(part.ID).RowsLeft())
	lost(underGrant(part.ID, 0)) // its one use is spent

	late := w.newGrant(3, 10)
	clock.Advance(time.Hour)
	lost(underGrant(late.ID, 1))
	n, _, err := w.ExpireDue(context.Background())
	require.NoError(t, err)
	require.Equal(t, 3, n)
	_, err = w.RevokeGrant(context.Background(), RevokeGrant{ID: late.ID, By: "operator"})
	require.Equal(t, fault.GrantEnded, fault.CodeOf(err))

	gone := w.newGrant(3, 10)
	w.newAgent(&event.AgentDeactivated{AgentID: grantedAgent, Cause: event.CauseRequest})
	lost(underGrant(gone.ID, 1))
	_, err = w.CreateGrant(context.Background(), &CreateGrant{AgentID: grantedAgent, Until: w.Commands.now().Add(time.Minute), Uses: 1, Reason: "x", MaxSeconds: 60})
	require.Equal(t, fault.AgentInactive, fault.CodeOf(err))
	n, _, err = w.ExpireDue(context.Background())
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestManyUsersOfAGrantStayWithinIt(t *testing.T) {
	w := begin(t, setup{})
	w.newAgent(&event.AgentRegistered{Agent: event.Agent{AgentID: grantedAgent, Status: event.AgentActive}})
	g := w.newGrant(5, 100)
	var used, failed atomic.Int64
	together(64, func(int) {
		switch _, err := w.RecordDecision(context.Background(), underGrant(g.ID, 30)); {
		case err == nil:
			used.Add(1)
		case !errors.Is(err, ErrGrantLost):
			failed.Add(1)
		}
	})
	require.Zero(t, failed.Load())
	require.EqualValues(t, 3, used.Load(), "of 100 rows there are three times 30")
	require.EqualValues(t, 90, w.grantAt(g.ID).Reserved)
}

func TestADispatchAndTheUseOfItsGrantGoTogether(t *testing.T) {
	w := begin(t, setup{})
	for name, change := range map[string]func(r *RecordDecision){
		"a dispatch without the use":       func(r *RecordDecision) { r.UseGrant = nil },
		"a use that was not decided":       func(r *RecordDecision) { r.Decision.GrantID = "" },
		"a use of another grant":           func(r *RecordDecision) { r.UseGrant.ID = "gra_2" },
		"a use without a dispatch":         func(r *RecordDecision) { r.Dispatch = nil },
		"a use beside that of an approval": func(r *RecordDecision) { r.UseApproval = "apr_1" },
		"rows that are given":              func(r *RecordDecision) { r.UseGrant.Rows = -1 },
	} {
		r := underGrant("gra_1", 1)
		change(r)
		before := w.log.Head().Seq
		_, err := w.RecordDecision(context.Background(), r)
		require.Error(t, err, name)
		require.Equal(t, before, w.log.Head().Seq, name)
	}
}

// What somebody wrote into the projections of a killed gate makes no grant.
func TestAGrantIsUsedWhereTheLogSaysThatItMayBe(t *testing.T) {
	w := begin(t, setup{})
	w.newAgent(&event.AgentRegistered{Agent: event.Agent{AgentID: grantedAgent, Status: event.AgentActive}})
	g := w.newGrant(5, 100)
	r := underGrant(g.ID, 30)
	recorded, err := w.RecordDecision(context.Background(), r)
	require.NoError(t, err)
	result := succeeded(r, recorded.ExecutionID)
	result.Success.RowsChanged = 20
	_, err = w.RecordResult(context.Background(), result)
	require.NoError(t, err)
	_, err = w.RecordDecision(context.Background(), underGrant(g.ID, 10))
	require.NoError(t, err)
	judge := func(change func(*projections.Grant)) error {
		w.grants = provenGrants{} // as in another run
		view := w.store.View()
		defer view.Close()
		g, found, err := view.Grant(g.ID)
		require.NoError(t, err)
		require.True(t, found)
		change(&g)
		return w.provenGrant(t.Context(), view, &g)
	}
	require.NoError(t, judge(func(*projections.Grant) {}))
	for name, change := range map[string]func(*projections.Grant){
		"another condition": func(g *projections.Grant) { g.Condition = "true" },
		"more time":         func(g *projections.Grant) { g.Until = g.Until.Add(time.Hour) },
		"an earlier begin":  func(g *projections.Grant) { g.CreatedAt = g.CreatedAt.Add(-time.Hour) },
		"more uses":         func(g *projections.Grant) { g.Uses++ },
		"more rows":         func(g *projections.Grant) { g.Rows++ },
		"another agent":     func(g *projections.Grant) { g.AgentID = "agt_2" },
		"another event":     func(g *projections.Grant) { g.Seq++ },
		"less used":         func(g *projections.Grant) { g.Used-- },
		"less changed":      func(g *projections.Grant) { g.Changed-- },
		"less kept":         func(g *projections.Grant) { g.Reserved-- },
	} {
		require.Equal(t, fault.AuditCorruptionDetected, fault.CodeOf(judge(change)), name)
	}
	_, err = w.RevokeGrant(context.Background(), RevokeGrant{ID: g.ID, By: "operator"})
	require.NoError(t, err)
	require.ErrorContains(t, fault.Of(judge(func(g *projections.Grant) { g.State = projections.GrantActive })).Unwrap(), "ended")
}
