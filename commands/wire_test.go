package commands

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

func typesOf(drafts []event.Draft) []event.Type {
	types := make([]event.Type, len(drafts))
	for i := range drafts {
		types[i] = drafts[i].Type
	}
	return types
}

func TestABlockIsRecordedAsOneAppendInTheOrderInWhichItHappened(t *testing.T) {
	at := time.Unix(1, 0)
	request := Request{RequestID: "req_a", WireSession: "wir_1"}
	drafts, err := decideBlock(&RecordBlock{
		Ahead: []Answered{{Request: Request{RequestID: "req_commit", WireSession: "wir_1"}, Decision: Decision{Operation: "COMMIT"}}},
		Results: []RecordResult{
			{Request: &request, Decision: &Decision{}, ExecutionID: "exe_1", Success: &event.ExecutionSuccess{CommandTag: "INSERT 0 1"}},
			{Request: &request, Decision: &Decision{}, ExecutionID: "exe_2", Unknown: &Unknown{ErrorCode: "db_query_timeout"},
				Resolved: &event.ExecutionOutcomeResolved{Outcome: event.OutcomeAborted}},
		},
	}, 7, at)
	require.NoError(t, err)
	require.Equal(t, []event.Type{event.TypeRequestReceived, event.TypeDecisionRecorded, event.TypeExecutionSuccess,
		event.TypeExecutionStateUnknown, event.TypeExecutionOutcomeResolved}, typesOf(drafts))
	require.Equal(t, "COMMIT", drafts[1].Context.Operation)
	require.Equal(t, "exe_2", drafts[4].Context.ExecutionID)
	received, err := event.Open(&drafts[0])
	require.NoError(t, err)
	require.Equal(t, "wir_1", received.(*event.RequestReceived).WireSession)
	decided, err := event.Open(&drafts[1])
	require.NoError(t, err)
	require.EqualValues(t, 7, decided.(*event.DecisionRecorded).Engine)
}

func TestABlockWithAFaultyResultIsRefusedWhole(t *testing.T) {
	_, err := decideBlock(&RecordBlock{Results: []RecordResult{{Request: &Request{}, ExecutionID: "exe_1"}}}, 1, time.Unix(1, 0))
	require.ErrorContains(t, err, "exactly one result")
}

func TestWhatTheGateAnsweredBeforeStandsAheadOfADispatch(t *testing.T) {
	r := &RecordDecision{
		Request: Request{RequestID: "req_insert"}, Decision: Decision{Operation: "INSERT"}, ExecutionID: "exe_1",
		Dispatch: &event.ExecutionDispatched{Path: event.PathTx, BlockID: "blk_1"},
		Ahead:    []Answered{{Request: Request{RequestID: "req_begin"}, Decision: Decision{Operation: "BEGIN"}}},
	}
	drafts, _, err := decideRecord(r, decisionFacts{}, time.Minute, time.Unix(1, 0))
	require.NoError(t, err)
	require.Equal(t, []event.Type{event.TypeRequestReceived, event.TypeDecisionRecorded, event.TypeRequestReceived, event.TypeDecisionRecorded,
		event.TypeExecutionDispatched}, typesOf(drafts))
	require.Equal(t, []string{"req_begin", "req_begin", "req_insert", "req_insert", "req_insert"},
		[]string{drafts[0].Context.RequestID, drafts[1].Context.RequestID, drafts[2].Context.RequestID, drafts[3].Context.RequestID, drafts[4].Context.RequestID})
	require.Empty(t, drafts[1].Context.ExecutionID)
}

func TestACancelIsRecordedWithItsConnectionAndItsExecution(t *testing.T) {
	w := begin(t, setup{})
	r := &CancelRequest{Request: Request{RequestID: "req_c", Actor: "ann", WireSession: "wir_1"}, Client: "192.0.2.7"}
	require.NoError(t, w.RecordCancelReceived(t.Context(), r))
	require.NoError(t, w.RecordCancelForwarded(t.Context(), r, "exe_1"))
	require.NoError(t, w.RecordCancelRejected(t.Context(), &CancelRequest{Client: "192.0.2.8"}, "unknown_key", 3))
	events := w.events()
	events = events[len(events)-3:]
	require.Equal(t, event.TypeCancelReceived, events[0].Type)
	require.Equal(t, "192.0.2.7", events[0].Context.Host)
	require.Equal(t, "exe_1", events[1].Context.ExecutionID)
	require.Equal(t, "unknown_key", events[2].Context.ReasonCode)
	rejected, err := event.Open(&events[2].Draft)
	require.NoError(t, err)
	require.Equal(t, &event.CancelRejected{Cause: "unknown_key", Client: "192.0.2.8", Count: 3}, rejected)
}
