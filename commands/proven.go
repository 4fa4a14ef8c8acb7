package commands

import (
	"context"
	"errors"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

// proven holds an approval that something is to run under against the events of the
// log: after a kill a start believes the projections, and what somebody wrote into
// them makes no approval. The index that finds the events is theirs too; what it finds
// is read from the log. Error: audit_corruption_detected.
func (c *Commands) proven(ctx context.Context, view *projections.View, a *projections.Approval) error {
	f, err := c.fromLog(ctx, view, a)
	if err != nil {
		return err
	}
	p := &f.created
	switch {
	case p.RequestDigest != a.RequestDigest || p.SQLDigest != a.SQLDigest || p.ExpiresAt != a.ExpiresAt.UnixNano() || p.Profile != a.Profile ||
		(p.MaxRows == nil) != (a.MaxRows == nil) || p.MaxRows != nil && *p.MaxRows != *a.MaxRows:
		err = errors.New("it was asked for otherwise")
	case f.resolution != event.ResolutionApprove:
		err = errors.New("no approval_resolved approves it")
	case f.use != projections.UseFree:
		err = errors.New("an approval_used has used it")
	default:
		return nil
	}
	c.logs.Error("an approval is not what the event log says of it, so nothing ran under it", "source", "commands", "approval_id", a.ID, "cause", err.Error())
	return fault.New(fault.AuditCorruptionDetected, "The projections say that this approval may be used, and the event log does not, so nothing was executed. Tell the operator: `gate log rebuild` makes the projections anew from the log.").
		With("approval_id", a.ID).Because(err)
}

// A loggedApproval is what the log says of an approval.
type loggedApproval struct {
	id         string
	created    event.ApprovalCreated
	resolution string // "" = none
	use        projections.ApprovalUse
	execution  string // the last one under it
}

// fromLog reads what decides about an approval: that it was asked for and answered,
// its last use and the results of that execution. All of it stands in the log at hand:
// what was asked for in an earlier one, and not used there, is withdrawn.
func (c *Commands) fromLog(ctx context.Context, view *projections.View, a *projections.Approval) (*loggedApproval, error) {
	l := &loggedApproval{id: a.ID}
	for _, t := range []event.Type{event.TypeApprovalCreated, event.TypeApprovalResolved, event.TypeApprovalUsed} {
		if err := c.read(ctx, view, projections.AuditFilter{ApprovalID: a.ID, EventTypes: []string{string(t)}}, projections.Page{Limit: 1}, l.take); err != nil {
			return nil, err
		}
	}
	if l.execution == "" {
		return l, nil
	}
	return l, c.read(ctx, view, projections.AuditFilter{ExecutionID: l.execution, EventTypes: executionResults}, projections.Page{Limit: 100, Asc: true}, l.take)
}

// read hands on the events of a page that the index finds.
func (c *Commands) read(ctx context.Context, view *projections.View, f projections.AuditFilter, page projections.Page, take func(*event.Envelope) error) error {
	seqs, _, err := view.Audit(f, page)
	if err != nil {
		return err
	}
	return c.readSeqs(ctx, seqs, take)
}

func (c *Commands) readSeqs(ctx context.Context, seqs []uint64, take func(*event.Envelope) error) error {
	for _, seq := range seqs {
		e, err := c.log.At(ctx, seq)
		if err == nil {
			err = take(&e)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return refusal(err)
		}
	}
	return nil
}

// take folds one event, as the projections do.
func (l *loggedApproval) take(e *event.Envelope) error {
	ofApproval, ofExecution := e.Context.ApprovalID == l.id, l.execution != "" && e.Context.ExecutionID == l.execution
	switch {
	case ofApproval && e.Type == event.TypeApprovalCreated:
		l.created = event.ApprovalCreated{}
		return e.Parse(&l.created)
	case ofApproval && e.Type == event.TypeApprovalResolved:
		var p event.ApprovalResolved
		err := e.Parse(&p)
		l.resolution = p.Resolution
		return err
	case ofApproval && e.Type == event.TypeApprovalUsed:
		l.use, l.execution = projections.UseTaken, e.Context.ExecutionID
	case ofExecution && e.Type == event.TypeExecutionSuccess:
		l.use = projections.UseTaken
	case ofExecution && e.Type == event.TypeExecutionFailure:
		var p event.ExecutionFailure
		err := e.Parse(&p)
		l.use = projections.UseAfterFailure(p.Outcome, e.Context.ReasonCode)
		return err
	case ofExecution && e.Type == event.TypeExecutionStateUnknown:
		l.use = projections.UseUnknown
	case ofExecution && e.Type == event.TypeExecutionOutcomeResolved:
		var p event.ExecutionOutcomeResolved
		err := e.Parse(&p)
		l.use = projections.UseAfterOutcome(p.Outcome)
		return err
	}
	return nil
}
