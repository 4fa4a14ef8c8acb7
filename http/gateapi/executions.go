package gateapi

import (
	"encoding/hex"
	"net/http"
	"slices"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/http/httpd"
	"writegate/projections"
)

// ExecutionBody is an execution (spec/decisions.md part 11).
type ExecutionBody struct {
	ExecutionID    string   `json:"execution_id"`
	RequestID      string   `json:"request_id"`
	ApprovalID     *string  `json:"approval_id"`
	GrantID        *string  `json:"grant_id"` // that it ran under; null: under none
	ExecutionState string   `json:"execution_state"`
	Outcome        *string  `json:"outcome"`
	Basis          *string  `json:"basis"`
	Path           string   `json:"path"`
	XID            *uint64  `json:"xid"`
	DispatchedAt   *string  `json:"dispatched_at"`
	ResolvedAt     *string  `json:"resolved_at"`
	Fingerprint    string   `json:"fingerprint"`
	Operation      string   `json:"operation"`
	PolicyVersion  string   `json:"policy_version"`
	ReasonCode     *string  `json:"reason_code"`
	ErrorCode      *string  `json:"error_code"`
	CommandTag     *string  `json:"command_tag"`
	Actor          string   `json:"actor"`
	App            string   `json:"app"`
	EventSeqs      []uint64 `json:"event_seqs"` // in the log at hand
	// EarlierEvents are those in logs before it (gate log new).
	EarlierEvents []earlierEvent `json:"earlier_events,omitempty"`
}

type earlierEvent struct {
	LogID string `json:"log_id"`
	Seq   uint64 `json:"seq"`
}

func executionOf(view *projections.View, x *projections.Execution) ExecutionBody {
	b := ExecutionBody{
		ExecutionID: x.ID, RequestID: x.RequestID, ApprovalID: optional(x.ApprovalID), GrantID: optional(x.GrantID), ExecutionState: x.State, Outcome: optional(x.Outcome),
		Basis: optional(x.Basis), Path: x.Path, DispatchedAt: timestamp(x.DispatchedAt), ResolvedAt: timestamp(x.ResolvedAt),
		Fingerprint: x.Fingerprint, Operation: x.Operation, PolicyVersion: x.PolicyVersion, ReasonCode: optional(x.ReasonCode),
		ErrorCode: optional(x.ErrorCode), CommandTag: optional(x.CommandTag), Actor: x.Actor, App: x.App, EventSeqs: []uint64{},
	}
	for _, position := range x.Events {
		at := view.Place(position)
		if at.Own {
			b.EventSeqs = append(b.EventSeqs, at.Seq)
			continue
		}
		b.EarlierEvents = append(b.EarlierEvents, earlierEvent{hex.EncodeToString(at.LogID[:]), at.Seq})
	}
	if x.XID != 0 {
		b.XID = &x.XID
	}
	return b
}

var executionStates = []string{"", projections.ExecutionNotExecuted, projections.ExecutionDispatched, projections.ExecutionSuccess,
	projections.ExecutionFailure, projections.ExecutionUnknown}

// listExecutions is GET /executions.
func (a *api) listExecutions(c *httpd.Call) error {
	query, page, err := readList(c, "execution_state")
	if err != nil {
		return err
	}
	state := query.Get("execution_state")
	if !slices.Contains(executionStates, state) {
		return fieldFault("execution_state", "must be not_executed, dispatched, success, failure or unknown")
	}
	view := a.Store.ViewWithin(c.Request.Context())
	defer view.Close()
	list := c.NewList()
	next, err := view.EachExecution(projections.ExecutionFilter{State: state}, page, func(x *projections.Execution) (bool, error) { return list.Add(executionOf(view, x)) })
	return sendList(list, view, next, err)
}

// getExecution is GET /executions/:execution_id.
func (a *api) getExecution(c *httpd.Call) error {
	view := a.Store.ViewWithin(c.Request.Context())
	defer view.Close()
	id := c.Params.ByName("execution_id")
	x, found, err := view.Execution(id)
	switch {
	case err != nil:
		return commands.ViewFault(err)
	case !found:
		return fault.New(fault.NotFound, "There is no execution with this id. GET /executions lists those that there are.").With("execution_id", id)
	}
	c.JSON(http.StatusOK, executionOf(view, &x))
	return nil
}

// checkExecution is POST /executions/:execution_id/check: the database is asked
// what became of an unknown outcome. An empty body is taken, and an empty object.
func (a *api) checkExecution(c *httpd.Call) error {
	var body struct{}
	if err := c.Decode(&body); err != nil {
		return err
	}
	x, err := a.Gate.CheckOutcome(c.Request.Context(), c.Params.ByName("execution_id"), c.Operator())
	if err != nil {
		return commands.ViewFault(err)
	}
	view := a.Store.ViewWithin(c.Request.Context())
	defer view.Close()
	c.JSON(http.StatusOK, executionOf(view, &x))
	return nil
}
