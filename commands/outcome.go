package commands

import (
	"context"
	"errors"
	"sync"
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
// log that has it: this one, or one before it. found is false where no log at hand does.
func (c *Commands) DecidedFacts(ctx context.Context, executionID string) (facts event.DecisionFacts, found bool, err error) {
	inherited := false
	err = c.look(ctx, func(view *projections.View) error {
		x, known, err := view.Execution(executionID)
		if err != nil {
			return err
		}
		if inherited = known && !view.Place(x.Seq).Own; inherited {
			return nil
		}
		filter := projections.AuditFilter{ExecutionID: executionID, EventTypes: []string{string(event.TypeDecisionRecorded)}}
		return c.read(ctx, view, filter, projections.Page{Limit: 1}, func(e *event.Envelope) error {
			var p event.DecisionRecorded
			err := e.Parse(&p)
			facts, found = p.Facts, true
			return err
		})
	})
	if inherited && err == nil {
		facts, found, err = c.earlier.facts(ctx, c, executionID)
	}
	return facts, found, err
}

// earlierDecisions are those of the executions without an outcome that the log took
// over. The logs before it have no index, so they are read once, for all of them.
type earlierDecisions struct {
	mu    sync.Mutex
	known map[string]event.DecisionFacts // by the execution's id; nil: not read yet
}

func (d *earlierDecisions) facts(ctx context.Context, c *Commands, executionID string) (facts event.DecisionFacts, found bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		if d.known, err = c.readEarlier(ctx); err != nil {
			return facts, false, err
		}
	}
	facts, found = d.known[executionID]
	return facts, found, nil
}

// readEarlier reads the decisions of the inherited executions whose outcome is unknown
// now. A log that is missing or damaged leaves those that it decided out.
func (c *Commands) readEarlier(ctx context.Context) (map[string]event.DecisionFacts, error) {
	wanted, logs := map[string]bool{}, map[[16]byte]bool{}
	err := c.look(ctx, func(view *projections.View) error {
		page := projections.Page{Limit: earlierPage, Asc: true}
		for {
			list, next, err := view.Executions(projections.ExecutionFilter{State: projections.ExecutionUnknown}, page)
			if err != nil {
				return err
			}
			for i := range list {
				place := view.Place(list[i].Seq)
				if place.Own {
					return nil // so are all that follow
				}
				wanted[list[i].ID], logs[place.LogID] = true, true
			}
			if next == "" {
				return nil
			}
			page.Cursor = next
		}
	})
	if err != nil {
		return nil, err
	}
	ancestors, err := c.log.Ancestors(ctx)
	known := map[string]event.DecisionFacts{}
	for _, a := range ancestors {
		if !logs[a.LogID] {
			continue
		}
		for e, err1 := range a.Events(ctx) {
			var p event.DecisionRecorded
			if err1 == nil && e.Type == event.TypeDecisionRecorded && wanted[e.Context.ExecutionID] {
				if err1 = e.Parse(&p); err1 == nil {
					known[e.Context.ExecutionID] = p.Facts
				}
			}
			err = errors.Join(err, err1)
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		c.logs.Warn("the decisions of executions without an outcome can't be read from the log before this one, so none of these is settled as aborted", "source", "commands", "cause", err.Error())
	}
	return known, nil
}

const earlierPage = 1000

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
