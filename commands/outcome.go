package commands

import (
	"context"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// ResolveOutcome says what a check found out about an execution whose outcome
// is unknown. By is the label of the operator token, "" for the gate itself.
type ResolveOutcome struct {
	ExecutionID string
	Outcome     string // event.OutcomeCommitted, OutcomeAborted, OutcomeInProgress or OutcomeNotKnowable
	Basis       string
	Answered    string
	By          string
}

// ResolveOutcome records the verdict of a check, where it says something new,
// and returns the execution as it stands then. An execution whose outcome is
// known by now stays as it is.
//
// Errors: not_found, and those of the log.
func (c *Commands) ResolveOutcome(ctx context.Context, r ResolveOutcome) (projections.Execution, error) {
	x, err := c.execution(ctx, r.ExecutionID)
	if err != nil {
		return x, err
	}
	unlock, err := c.lock(ctx, aggregatesOf(&x)...)
	if err != nil {
		return x, err
	}
	defer unlock()
	if x, err = c.execution(ctx, r.ExecutionID); err != nil {
		return x, err
	}
	c.step("commands.decide")
	drafts := decideOutcome(&x, r, c.now())
	if len(drafts) == 0 {
		return x, nil
	}
	if _, err := c.commit(ctx, eventlog.Group{Drafts: drafts}); err != nil {
		return x, err
	}
	return c.execution(context.WithoutCancel(ctx), r.ExecutionID)
}

// decideOutcome is the pure heart of ResolveOutcome.
func decideOutcome(x *projections.Execution, r ResolveOutcome, now time.Time) []event.Draft {
	if x.State != projections.ExecutionUnknown || (x.Outcome == r.Outcome && x.Basis == r.Basis) {
		return nil
	}
	return []event.Draft{event.New(now, openOf(x).shared, &event.ExecutionOutcomeResolved{Outcome: r.Outcome, Basis: r.Basis, Answered: r.Answered, By: r.By})}
}

// DecidedFacts are the facts of the decision under which an execution ran, from the
// log. found is false where the log at hand does not have it.
func (c *Commands) DecidedFacts(ctx context.Context, executionID string) (facts event.DecisionFacts, found bool, err error) {
	err = c.look(ctx, func(view *projections.View) error {
		filter := projections.AuditFilter{ExecutionID: executionID, EventTypes: []string{string(event.TypeDecisionRecorded)}}
		return c.read(ctx, view, filter, projections.Page{Limit: 1}, func(e *event.Envelope) error {
			var p event.DecisionRecorded
			err := e.Parse(&p)
			facts, found = p.Facts, true
			return err
		})
	})
	return facts, found, err
}

func (c *Commands) execution(ctx context.Context, id string) (x projections.Execution, err error) {
	err = c.look(ctx, func(view *projections.View) error {
		found, ok, err := view.Execution(id)
		if err == nil && !ok {
			return fault.New(fault.NotFound, "There is no execution with this id. GET /executions lists those there are.").With("execution_id", id)
		}
		x = found
		return err
	})
	return x, err
}

// aggregatesOf are the execution, and the approval and the key that its outcome
// sets free or keeps.
func aggregatesOf(x *projections.Execution) []string {
	keys := []string{executionKey(x.ID)}
	if x.ApprovalID != "" {
		keys = append(keys, approvalKey(x.ApprovalID))
	}
	if x.KeyScope != [32]byte{} {
		keys = append(keys, idempotencyKey(x.KeyScope))
	}
	return keys
}

func executionKey(id string) string { return "execution/" + id }
