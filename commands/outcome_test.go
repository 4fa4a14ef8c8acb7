package commands

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
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
