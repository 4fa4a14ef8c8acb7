package projections_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
)

func approvalIDs(t *testing.T, v *projections.View, f projections.ApprovalFilter, page projections.Page) []string {
	var ids []string
	for {
		list, next, err := v.Approvals(f, page)
		require.NoError(t, err)
		for _, a := range list {
			ids = append(ids, a.ID)
		}
		if next == "" {
			return ids
		}
		page.Cursor = next
	}
}

func TestApprovalsAreFilteredByTheirStatusAtTheReadersMoment(t *testing.T) {
	w := newWorld(t)
	w.created("apr_1", time.Hour)   // pending
	w.created("apr_2", time.Second) // its time is over, no event says so
	w.created("apr_3", time.Hour)   // approved
	w.created("apr_4", time.Hour)   // rejected
	w.created("apr_5", time.Second) // expired by an event
	w.resolved("apr_3", event.ResolutionApprove)
	w.resolved("apr_4", event.ResolutionReject)
	w.do(event.Context{ApprovalID: "apr_5"}, &event.ApprovalExpired{})
	v := w.view()
	for status, want := range map[string][]string{
		"": {"apr_5", "apr_4", "apr_3", "apr_2", "apr_1"}, "pending": {"apr_1"}, "expired": {"apr_5", "apr_2"},
		"resolved": {"apr_4", "apr_3"}, "approved": {"apr_3"}, "rejected": {"apr_4"},
	} {
		f := projections.ApprovalFilter{Status: status, Now: w.now}
		require.Equal(t, want, approvalIDs(t, v, f, projections.Page{}), "status %q", status)
		require.Equal(t, want, approvalIDs(t, v, f, projections.Page{Limit: 1}), "status %q, page by page", status)
	}
	require.Equal(t, []string{"apr_1", "apr_2", "apr_3", "apr_4", "apr_5"}, approvalIDs(t, v, projections.ApprovalFilter{}, projections.Page{Asc: true, Limit: 2}))
	require.Empty(t, approvalIDs(t, v, projections.ApprovalFilter{App: "other"}, projections.Page{}))
	require.Len(t, approvalIDs(t, v, projections.ApprovalFilter{App: "billing", Env: "prod", Actor: "bot"}, projections.Page{}), 5)
	_, _, err := v.Approvals(projections.ApprovalFilter{Status: "lost"}, projections.Page{})
	require.ErrorIs(t, err, projections.ErrFilter)

	pending, err := v.ApprovalsPending(w.now)
	require.NoError(t, err)
	require.Equal(t, 1, pending)
	c := v.Counters()
	require.Equal(t, []int{2, 1, 1, 1, 2}, []int{c.ApprovalsPending, c.ApprovalsApproved, c.ApprovalsRejected, c.ApprovalsExpired, c.ApprovalsResolved()})
}

func TestDueApprovalsComeInTheOrderOfTheirDeadlines(t *testing.T) {
	w := newWorld(t)
	start := w.now
	w.created("apr_late", 3*time.Hour)
	w.created("apr_soon", time.Hour)
	w.created("apr_next", 2*time.Hour)
	w.created("apr_done", time.Hour)
	w.resolved("apr_done", event.ResolutionApprove)

	due, next, err := w.view().DueApprovals(start, 10)
	require.NoError(t, err)
	require.Empty(t, due)
	require.Equal(t, w.approval("apr_soon").ExpiresAt, next)

	due, next, err = w.view().DueApprovals(w.approval("apr_next").ExpiresAt, 10)
	require.NoError(t, err)
	require.Equal(t, []string{"apr_soon", "apr_next"}, due)
	require.Equal(t, w.approval("apr_late").ExpiresAt, next)

	due, next, err = w.view().DueApprovals(start.Add(24*time.Hour), 1)
	require.NoError(t, err)
	require.Len(t, due, 1)
	require.Equal(t, w.approval("apr_next").ExpiresAt, next, "more are due than were asked for")

	for _, id := range []string{"apr_soon", "apr_next", "apr_late"} {
		w.do(event.Context{ApprovalID: id}, &event.ApprovalExpired{})
	}
	due, next, err = w.view().DueApprovals(start.Add(24*time.Hour), 10)
	require.NoError(t, err)
	require.Empty(t, due)
	require.True(t, next.IsZero())
}

func TestExecutionsAreListedByState(t *testing.T) {
	w := newWorld(t)
	for i := range 6 {
		ctx := event.Context{ExecutionID: fmt.Sprintf("exe_%d", i), Actor: fmt.Sprint(i % 2)}
		w.do(ctx, dispatchOf(event.PathTx))
		switch i {
		case 1, 4:
			w.do(ctx, &event.ExecutionSuccess{})
		case 2:
			w.do(ctx, &event.ExecutionStateUnknown{Cause: "timeout"})
		case 3:
			w.do(ctx, &event.ExecutionFailure{Outcome: event.OutcomeAborted})
		}
	}
	ids := func(f projections.ExecutionFilter, page projections.Page) (ids []string) {
		for {
			list, next, err := w.view().Executions(f, page)
			require.NoError(t, err)
			for _, x := range list {
				ids = append(ids, x.ID)
			}
			if next == "" {
				return ids
			}
			page.Cursor = next
		}
	}
	require.Equal(t, []string{"exe_5", "exe_4", "exe_3", "exe_2", "exe_1", "exe_0"}, ids(projections.ExecutionFilter{}, projections.Page{Limit: 4}))
	require.Equal(t, []string{"exe_4", "exe_1"}, ids(projections.ExecutionFilter{State: "success"}, projections.Page{}))
	require.Equal(t, []string{"exe_0", "exe_5"}, ids(projections.ExecutionFilter{State: "dispatched"}, projections.Page{Asc: true, Limit: 1}))
	require.Equal(t, []string{"exe_2"}, ids(projections.ExecutionFilter{State: "unknown", Actor: "0"}, projections.Page{}))
	// A page looks through so much, and goes on where it ended.
	for work := 1; work < 30_000; work += 3000 {
		for _, limit := range []int{1, 2, 10} {
			require.Equal(t, []string{"exe_5", "exe_3", "exe_1"}, ids(projections.ExecutionFilter{Actor: "1"}, projections.Page{Limit: limit, Work: work}))
			require.Empty(t, ids(projections.ExecutionFilter{Actor: "nobody"}, projections.Page{Limit: limit, Work: work}))
		}
	}
	list, next, err := w.view().Executions(projections.ExecutionFilter{Actor: "nobody"}, projections.Page{Work: 1})
	require.NoError(t, err)
	require.Empty(t, list)
	require.NotEmpty(t, next, "one record is looked at")
	_, _, err = w.view().Executions(projections.ExecutionFilter{State: "lost"}, projections.Page{})
	require.ErrorIs(t, err, projections.ErrFilter)
	_, _, err = w.view().PolicyVersions(projections.PolicyFilter{Status: "lost"}, projections.Page{})
	require.ErrorIs(t, err, projections.ErrFilter)
}

func TestAPageHasAtMostAThousandRecords(t *testing.T) {
	w := newWorld(t)
	var drafts []event.Draft
	for i := range 1005 {
		drafts = append(drafts, event.New(w.now, event.Context{ExecutionID: fmt.Sprintf("exe_%d", i)}, dispatchOf(event.PathRead)))
	}
	w.append(drafts...)
	list, next, err := w.view().Executions(projections.ExecutionFilter{}, projections.Page{Limit: 5000})
	require.NoError(t, err)
	require.Len(t, list, 1000)
	require.NotEmpty(t, next)
	list, _, err = w.view().Executions(projections.ExecutionFilter{}, projections.Page{})
	require.NoError(t, err)
	require.Len(t, list, 100)
	open, err := w.view().OpenExecutions()
	require.NoError(t, err)
	require.Len(t, open, 1005)
	require.Equal(t, "exe_0", open[0].ID)
}
