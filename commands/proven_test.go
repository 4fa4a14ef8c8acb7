package commands

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

// What somebody wrote into the projections of a killed gate makes no approval: a use
// is held against the events of the log.
func TestAnApprovalIsUsedWhereTheLogSaysThatItMayBe(t *testing.T) {
	w := begin(t, setup{})
	judge := func(id string, change func(*projections.Approval)) (err error) {
		view := w.store.View()
		defer view.Close()
		a, found, err := view.Approval(id)
		require.NoError(t, err)
		require.True(t, found)
		if change != nil {
			change(&a)
		}
		return w.proven(t.Context(), view, &a)
	}
	refused := func(err error, why string) {
		t.Helper()
		require.Equal(t, fault.AuditCorruptionDetected, fault.CodeOf(err))
		require.ErrorContains(t, fault.Of(err).Unwrap(), why)
	}
	approved := func(a *projections.Approval) {
		a.State, a.Resolution, a.Use, a.ExecutionID = projections.ApprovalApproved, event.ResolutionApprove, projections.UseFree, ""
	}
	good := w.approvedApproval()
	require.NoError(t, judge(good, nil))
	for name, change := range map[string]func(*projections.Approval){
		"another statement": func(a *projections.Approval) { a.RequestDigest[0] ^= 1 },
		"other SQL":         func(a *projections.Approval) { a.SQLDigest[0] ^= 1 },
		"a longer time":     func(a *projections.Approval) { a.ExpiresAt = a.ExpiresAt.Add(time.Hour) },
		"more rows":         func(a *projections.Approval) { a.MaxRows = new(int64) },
		"the bulk profile":  func(a *projections.Approval) { a.Profile = bulkProfile },
	} {
		t.Run(name, func(t *testing.T) { refused(judge(good, change), "asked for otherwise") })
	}

	refused(judge(w.newApproval(), approved), "no approval_resolved")
	rejected := w.newApproval()
	_, err := w.ResolveApproval(t.Context(), ResolveApproval{ID: rejected, Decision: event.ResolutionReject, By: "operator"})
	require.NoError(t, err)
	refused(judge(rejected, approved), "no approval_resolved")

	used := w.approvedApproval()
	r := retry(used)
	recorded, err := w.RecordDecision(context.Background(), r)
	require.NoError(t, err)
	refused(judge(used, approved), "has used it")
	_, err = w.RecordResult(context.Background(), succeeded(r, recorded.ExecutionID))
	require.NoError(t, err)
	refused(judge(used, approved), "has used it")

	// What the gate itself rolled back leaves the approval free, in the log too.
	again := w.approvedApproval()
	r = retry(again)
	recorded, err = w.RecordDecision(context.Background(), r)
	require.NoError(t, err)
	_, err = w.RecordResult(context.Background(), &RecordResult{Request: &r.Request, Decision: &r.Decision, ExecutionID: recorded.ExecutionID, ApprovalID: again,
		Failure: &Failure{ExecutionFailure: event.ExecutionFailure{Outcome: event.OutcomeAborted, Basis: "rollback_acknowledged"}, ReasonCode: "row_limit_exceeded"}})
	require.NoError(t, err)
	require.NoError(t, judge(again, nil))
	_, err = w.RecordDecision(context.Background(), retry(again))
	require.NoError(t, err)
}
