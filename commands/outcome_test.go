package commands

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/fixtures/manualclock"
	"writegate/projections"
)

func TestAVerdictIsRecordedOnlyWhereItSaysSomethingNew(t *testing.T) {
	committed := ResolveOutcome{Outcome: event.OutcomeCommitted, Basis: "pg_xact_status", Answered: "committed", By: "operator"}
	waiting := ResolveOutcome{Outcome: event.OutcomeInProgress, Basis: "pg_xact_status", Answered: "in progress"}
	for _, c := range []struct {
		name    string
		given   projections.Execution
		when    ResolveOutcome
		written bool
	}{
		{"unknown", projections.Execution{State: projections.ExecutionUnknown}, committed, true},
		{"unknown, still in progress", projections.Execution{State: projections.ExecutionUnknown, Outcome: event.OutcomeInProgress, Basis: "pg_xact_status"}, waiting, false},
		{"in progress, now committed", projections.Execution{State: projections.ExecutionUnknown, Outcome: event.OutcomeInProgress, Basis: "pg_xact_status"}, committed, true},
		{"known to have failed", projections.Execution{State: projections.ExecutionFailure, Outcome: event.OutcomeAborted}, committed, false},
		{"known to have succeeded", projections.Execution{State: projections.ExecutionSuccess}, committed, false},
		{"running", projections.Execution{State: projections.ExecutionDispatched}, committed, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.given.ID, c.given.ApprovalID = testExecution, testApproval
			drafts := decideOutcome(&c.given, c.when, moment)
			if !c.written {
				require.Empty(t, drafts)
				return
			}
			require.Len(t, drafts, 1)
			require.Equal(t, &event.ExecutionOutcomeResolved{Outcome: c.when.Outcome, Basis: c.when.Basis, Answered: c.when.Answered, By: c.when.By}, payload(t, &drafts[0]))
			require.Equal(t, testExecution, drafts[0].Context.ExecutionID)
			require.Equal(t, testApproval, drafts[0].Context.ApprovalID)
		})
	}
}

func TestAnExecutionThatNobodyKnowsHasNoOutcome(t *testing.T) {
	w := begin(t, setup{})
	_, err := w.ResolveOutcome(context.Background(), ResolveOutcome{ExecutionID: "exe_none", Outcome: event.OutcomeAborted})
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	w.check()
}

// The decision of an execution that an earlier log began is in that log: whether a
// rollback undoes all of it is not forgotten with a loss.
func TestTheDecisionOfAnInheritedExecutionIsFound(t *testing.T) {
	w := begin(t, setup{})
	decide := func() string {
		recorded, err := w.RecordDecision(t.Context(), recording(dispatching, func(r *RecordDecision) {
			r.ExecutionID, r.Decision.Facts.Functions = "", []string{"setval"}
		}))
		require.NoError(t, err)
		return recorded.ExecutionID
	}
	found := func(id string) bool {
		facts, found, err := w.DecidedFacts(t.Context(), id)
		require.NoError(t, err)
		if found {
			require.Equal(t, []string{"setval"}, facts.Functions)
		}
		return found
	}
	var inherited []string
	for range 2 { // a log before the one before it, and this one
		inherited = append(inherited, decide(), decide())
		w.end()
		_, err := eventlog.Retire(t.Context(), eventlog.Options{Path: "/data/audit.wal", FS: w.disk, Now: manualclock.At(moment).Now, Origin: "test"}, eventlog.Successor{
			Reason: "a test", Mode: "enforce", Store: "/data/approvals.db",
			Start: event.Startup{Version: "1", Profile: "development", Fsync: "required", VerifyOnStart: "active", OnTornTail: "record", Engine: map[string]string{}},
		})
		require.NoError(t, err)
		w = begin(t, setup{disk: w.disk})
	}
	for _, id := range inherited {
		require.True(t, found(id))
	}
	require.True(t, found(decide()))
	require.False(t, found("exe_none"))
	w.end()

	names, err := w.disk.List("/data/audit.wal.retired")
	require.NoError(t, err)
	for _, name := range names {
		require.NoError(t, w.disk.Remove("/data/audit.wal.retired/"+name+"/audit.wal"))
	}
	w = begin(t, setup{disk: w.disk}) // it has folded them
	require.False(t, found(inherited[0]), "nobody can tell any more")
	require.True(t, found(decide()))
}
