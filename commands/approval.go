package commands

import (
	"context"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// maxNote bounds an operator's note (spec/decisions.md part 5).
const maxNote = 4 << 10

// approvalState is what deciding needs to know of an approval. Whether it has
// expired is a question of the moment, never of the timer that writes it down.
type approvalState struct {
	id            string
	requestDigest [32]byte
	profile       string // that was asked for; "" = default
	expiresAt     time.Time
	expired       bool // approval_expired is in the log
	withdrawn     projections.Withdrawal
	resolution    string // "" = pending
	resolvedAt    time.Time
	resolvedBy    string
	note          string
	use           use
	executionID   string        // of the last execution under it
	claims        event.Context // repeated in the events of the approval's life
}

// withdrawals say why in words.
var withdrawals = map[projections.Withdrawal]string{
	projections.WithdrawnAgent: "The agent that asked for the approval was deactivated since",
	projections.WithdrawnLoss:  "The log lost events since, which may be that the approval was resolved or used",
}

// use says what became of the one execution that an approval is for.
type use uint8

const (
	unused  use = iota // none, or one that is known to have changed nothing
	used               // it reached the database
	unknown            // it may have
)

// isExpired holds for an approval that nobody resolved in time, or before it was
// withdrawn.
func (a *approvalState) isExpired(now time.Time) bool {
	return a.resolution == "" && (a.expired || a.withdrawn != "" || a.pastTime(now))
}

func (a *approvalState) pastTime(now time.Time) bool { return !now.Before(a.expiresAt) }

// decideUse tells whether a statement with this digest may run under an
// approval in this execution profile: nil and not pending. The order of the checks is the contract's
// (spec/decisions.md part 3). A nil state is an id that nobody knows.
func decideUse(id string, a *approvalState, requestDigest [32]byte, profile string, now time.Time) (pending bool, err error) {
	refuse := func(code fault.Code, message string) (bool, error) {
		return false, fault.New(code, "%s", message).With("approval_id", id)
	}
	switch {
	case a == nil:
		return refuse(fault.ApprovalNotFound, "There is no approval with this id. Send the request without approval_id to ask for one.")
	case a.resolution == event.ResolutionReject:
		return refuse(fault.ApprovalRejected, "The approval was rejected, so the statement will not run under it. Talk to the operator before you ask for another one.")
	case a.withdrawn != "":
		_, err = refuse(fault.ApprovalExpired, withdrawals[a.withdrawn]+", so it can't be used any more. Send the request without approval_id to ask for a new one.")
		return false, fault.Of(err).With("reason", string(a.withdrawn))
	case a.expired || a.pastTime(now):
		return refuse(fault.ApprovalExpired, "The approval's time is over. Send the request without approval_id to ask for a new one.")
	case a.requestDigest != requestDigest:
		return refuse(fault.ApprovalMismatch, "The approval is for another statement or another context. Send exactly the request that was approved.")
	case profile == bulkProfile && a.profile != bulkProfile:
		return refuse(fault.ApprovalMismatch, "The approval was asked for without execution_profile bulk, whose statements may run for longer. Send the request that was approved, or ask for an approval with that profile.")
	case a.use == unknown:
		_, err = refuse(fault.ApprovalOutcomeUnknown, "The statement was sent under this approval and its outcome is not known. Look at GET /executions/"+a.executionID+" and at the data before anything else.")
		return false, fault.Of(err).With("execution_id", a.executionID)
	case a.use == used:
		return refuse(fault.ApprovalAlreadyUsed, "The approval was used by an earlier execution. Send the request without approval_id to ask for a new one.")
	}
	return a.resolution == "", nil
}

// LookUpApproval finds the approval that a retry names and makes every check
// that comes before the policy. Pending means that the answer is 202 again. The
// same checks are made once more, under the approval's lock, when it is used.
func (c *Commands) LookUpApproval(ctx context.Context, id string, requestDigest [32]byte, profile string) (a projections.Approval, pending bool, err error) {
	a, state, err := c.approval(ctx, id)
	if err != nil {
		return a, false, err
	}
	pending, err = decideUse(id, state, requestDigest, profile, c.now())
	return a, pending, err
}

// ResolveApproval is an operator's answer. By is the label of the token.
type ResolveApproval struct {
	ID, Decision, Note, By string
}

// ResolveApproval records an operator's answer before it returns the approval
// as it stands then. It executes nothing.
//
// Errors: validation_failed, approval_not_found, approval_expired,
// approval_already_resolved with the standing resolution in its details, and
// those of the log.
func (c *Commands) ResolveApproval(ctx context.Context, r ResolveApproval) (projections.Approval, error) {
	if err := r.check(); err != nil {
		return projections.Approval{}, err
	}
	unlock, err := c.lock(ctx, approvalKey(r.ID))
	if err != nil {
		return projections.Approval{}, err
	}
	defer unlock()
	_, state, err := c.approval(ctx, r.ID)
	if err != nil {
		return projections.Approval{}, err
	}
	c.step("commands.decide")
	drafts, err := decideResolve(r, state, c.now())
	if err != nil {
		return projections.Approval{}, err
	}
	if _, err := c.commit(ctx, eventlog.Group{Drafts: drafts}); err != nil {
		return projections.Approval{}, err
	}
	a, _, err := c.approval(context.WithoutCancel(ctx), r.ID)
	return a, err
}

func (r *ResolveApproval) check() error {
	fields := make(map[string]string)
	if r.Decision != event.ResolutionApprove && r.Decision != event.ResolutionReject {
		fields["decision"] = "must be approve or reject"
	}
	if len(r.Note) > maxNote {
		fields["note"] = "must be at most 4096 bytes"
	}
	if len(fields) == 0 {
		return nil
	}
	return fault.New(fault.ValidationFailed, "The resolution is not valid; details.fields says what to change.").With("fields", fields)
}

// decideResolve is the pure heart of ResolveApproval.
func decideResolve(r ResolveApproval, a *approvalState, now time.Time) ([]event.Draft, error) {
	switch {
	case a == nil:
		return nil, fault.New(fault.ApprovalNotFound, "There is no approval with this id; an expired one may have been purged. GET /approvals lists those that there are.").With("approval_id", r.ID)
	case a.resolution != "":
		return nil, fault.New(fault.ApprovalAlreadyResolved, "The approval was resolved before (%s). A resolution is final; for another one the client has to ask again, without approval_id.", a.resolution).
			With("approval_id", r.ID).With("resolution", a.resolution).With("resolved_by", a.resolvedBy).
			With("resolved_at", event.Timestamp(a.resolvedAt)).With("note", a.note)
	case a.withdrawn != "":
		return nil, fault.New(fault.ApprovalExpired, "%s, so it can't be resolved. The client has to ask again, without approval_id.", withdrawals[a.withdrawn]).
			With("approval_id", r.ID).With("reason", string(a.withdrawn))
	case a.isExpired(now):
		return nil, fault.New(fault.ApprovalExpired, "The approval's time is over, so it can't be resolved. The client has to ask again, without approval_id.").With("approval_id", r.ID)
	}
	shared := a.claims
	shared.Operation = "resolve_approval"
	return []event.Draft{event.New(now, shared, &event.ApprovalResolved{Resolution: r.Decision, Note: r.Note, By: r.By})}, nil
}

// turnWait is how long a command waits for its aggregates: it may hold a connection
// to the database meanwhile.
const turnWait = 10 * time.Second

// lock takes keys for a command; its error is a fault.
func (c *Commands) lock(ctx context.Context, keys ...string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, c.turnWait)
	defer cancel()
	unlock, err = c.locks.lock(ctx, keys...)
	if err != nil {
		return nil, fault.New(fault.AuditUnavailable, "Others that concern the same approval, key, agent or policy went first, and the request ended or waited for too long. Nothing was executed or recorded; send it again.").
			With("outcome", "not_written").Because(err)
	}
	return unlock, nil
}

// approval looks one approval up.
func (c *Commands) approval(ctx context.Context, id string) (a projections.Approval, state *approvalState, err error) {
	err = c.look(ctx, func(view *projections.View) (err error) {
		a, state, err = findApproval(view, id)
		return err
	})
	return a, state, err
}

// findApproval reads an approval. One that nobody knows has a nil state.
func findApproval(view *projections.View, id string) (projections.Approval, *approvalState, error) {
	a, found, err := view.Approval(id)
	if err != nil || !found {
		return a, nil, err
	}
	return a, stateOf(&a), nil
}

// waitPause is the least time between two looks at an approval that is waited for,
// however much else happens.
const waitPause = 200 * time.Millisecond

// AwaitResolution returns when an approval is pending no more, which it reports, or when ctx
// ends. What it can't look at is as what is not pending: the caller's own look tells. It
// writes nothing and holds nothing meanwhile.
func (c *Commands) AwaitResolution(ctx context.Context, id string) (decided bool) {
	for ctx.Err() == nil {
		view := c.store.ViewWithin(ctx)
		p, found, err := view.Approval(id)
		applied := view.Applied()
		view.Close()
		if err != nil {
			return ctx.Err() == nil
		}
		if !found || p.StatusAt(c.now()) != projections.StatusPending {
			return true
		}
		left, end := context.WithTimeout(ctx, p.ExpiresAt.Sub(c.now()))
		err = c.store.WaitApplied(left, applied.Seq+1)
		nothing := err != nil && left.Err() == nil // is applied any more
		end()
		if nothing {
			return false
		}
		select {
		case <-ctx.Done():
		case <-time.After(waitPause):
		}
	}
	return false
}
