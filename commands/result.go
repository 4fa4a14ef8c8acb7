package commands

import (
	"context"
	"time"

	"writegate/eventlog"
	"writegate/eventlog/event"
)

// RecordResult asks for the evidence of what became of a dispatched statement.
// Exactly one of Success, Failure and Unknown is set.
type RecordResult struct {
	Request     *Request
	Decision    *Decision
	ExecutionID string
	ApprovalID  string // the approval the statement ran under; "" = none

	Success *event.ExecutionSuccess
	Failure *Failure
	Unknown *Unknown
	// Resolved settles an unknown at once, where the gate knows better than the
	// contract's answer to a timeout says (design/execution-and-wire.md part 3).
	Resolved *event.ExecutionOutcomeResolved
	// Violation says that the database refused a safe read as a write.
	Violation *event.ReadFenceViolation
	// Written answers before the evidence is durable: execution profile latency.
	Written bool
}

// Unknown is a dispatched statement whose outcome is not known.
type Unknown struct {
	event.ExecutionStateUnknown
	ErrorCode string // what the client was told
}

// RecordResult appends the evidence of a result. It is taken from the log's
// reserve where new commands are refused, because the statement has run.
//
// After an error the outcome is unknown to the log: the answer is
// audit_unavailable with execution_state unknown and no rows, and the next
// start writes execution_state_unknown (design/execution-and-wire.md, W6).
func (c *Commands) RecordResult(ctx context.Context, r *RecordResult) (Recorded, error) {
	c.step("commands.decide")
	drafts, err := decideResult(r, c.now())
	if err != nil {
		return Recorded{}, err
	}
	group := eventlog.Group{Drafts: drafts, Reserve: true}
	if r.Written {
		group.Ack = eventlog.Written
	}
	// A client that hung up does not make the result untrue.
	done, err := c.commit(context.WithoutCancel(ctx), group)
	if err != nil {
		c.late.keep(group, err)
		return Recorded{}, err
	}
	for r.Written {
		if last := c.written.Load(); last >= done.Last || c.written.CompareAndSwap(last, done.Last) {
			break
		}
	}
	return Recorded{ExecutionID: r.ExecutionID, ApprovalID: r.ApprovalID, Events: refs(drafts, done)}, nil
}

// decideResult is the pure heart of RecordResult.
func decideResult(r *RecordResult, now time.Time) ([]event.Draft, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	shared := r.Request.context(r.Decision)
	shared.ExecutionID = r.ExecutionID
	if r.Decision != nil {
		shared.PolicyVersion = r.Decision.PolicyVersion
	}
	if r.ApprovalID != "" {
		shared.ApprovalID = r.ApprovalID
	}
	drafts := make([]event.Draft, 0, 2)
	switch {
	case r.Success != nil:
		drafts = append(drafts, event.New(now, shared, r.Success))
	case r.Failure != nil:
		drafts = append(drafts, failed(now, shared, r.Failure))
	default:
		told := shared
		told.ErrorCode = r.Unknown.ErrorCode
		drafts = append(drafts, event.New(now, told, &r.Unknown.ExecutionStateUnknown))
		if r.Resolved != nil {
			drafts = append(drafts, event.New(now, shared, r.Resolved))
		}
	}
	if r.Violation != nil {
		drafts = append(drafts, event.New(now, shared, r.Violation))
	}
	return drafts, nil
}

func (r *RecordResult) check() error {
	results := 0
	for _, set := range []bool{r.Success != nil, r.Failure != nil, r.Unknown != nil} {
		if set {
			results++
		}
	}
	switch {
	case results != 1:
		return misuse("an execution has exactly one result")
	case r.ExecutionID == "":
		return misuse("a result names no execution")
	case r.Resolved != nil && r.Unknown == nil:
		return misuse("a known result is resolved")
	case r.Violation != nil && r.Failure == nil:
		return misuse("a read fence violation did not fail")
	}
	return nil
}
