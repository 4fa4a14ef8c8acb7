package commands

import (
	"context"
	"time"

	"writegate/eventlog"
	"writegate/eventlog/event"
)

// RecordBlock asks for the evidence of what became of statements that stand or
// fall together, and of what the gate answered itself around them.
type RecordBlock struct {
	Ahead   []Answered
	Results []RecordResult
}

// RecordBlock appends it all at once, from the log's reserve: the statements
// have run. It does nothing where there is nothing to say. An error is that of
// RecordResult.
func (c *Commands) RecordBlock(ctx context.Context, b *RecordBlock) (Recorded, error) {
	c.step("commands.decide")
	drafts, err := decideBlock(b, c.engine.Load(), c.now())
	if err != nil || len(drafts) == 0 {
		return Recorded{}, err
	}
	group := eventlog.Group{Drafts: drafts, Reserve: len(b.Results) > 0}
	done, err := c.append(context.WithoutCancel(ctx), group)
	if err != nil {
		c.late.keep(group, err)
		return Recorded{}, err
	}
	return Recorded{Events: refs(drafts, done)}, nil
}

// decideBlock is the pure heart of RecordBlock. What the gate answered stands
// first: it came first.
func decideBlock(b *RecordBlock, engine uint64, now time.Time) ([]event.Draft, error) {
	drafts := make([]event.Draft, 0, 2*(len(b.Ahead)+len(b.Results)))
	for i := range b.Ahead {
		drafts = append(drafts, b.Ahead[i].drafts(now, engine)...)
	}
	for i := range b.Results {
		result, err := decideResult(&b.Results[i], now)
		if err != nil {
			return nil, err
		}
		drafts = append(drafts, result...)
	}
	return drafts, nil
}

// A CancelRequest is one that came to the wire listener. Request holds the
// claims of the connection that it is for and its WireSession, where the key is
// known, and a RequestID of its own.
type CancelRequest struct {
	Request Request
	Client  string // the address that sent it
}

func (r *CancelRequest) context() event.Context {
	ctx := r.Request.context(nil)
	ctx.Host, ctx.Operation = r.Client, "cancel"
	return ctx
}

// RecordCancelReceived comes before anything is done about the request.
func (c *Commands) RecordCancelReceived(ctx context.Context, r *CancelRequest) error {
	return c.recordCancel(ctx, r.context(), &event.CancelReceived{Client: r.Client, WireSession: r.Request.WireSession})
}

// RecordCancelForwarded says that the database was asked to end an execution.
func (c *Commands) RecordCancelForwarded(ctx context.Context, r *CancelRequest, executionID string) error {
	shared := r.context()
	shared.ExecutionID = executionID
	return c.recordCancel(ctx, shared, &event.CancelForwarded{Client: r.Client, WireSession: r.Request.WireSession})
}

// RecordCancelUnsent says that the gate ends what had not been sent to the database;
// executionID is "" where no execution was begun.
func (c *Commands) RecordCancelUnsent(ctx context.Context, r *CancelRequest, executionID string) error {
	shared := r.context()
	shared.ExecutionID = executionID
	return c.recordCancel(ctx, shared, &event.CancelUnsent{Client: r.Client, WireSession: r.Request.WireSession})
}

// RecordCancelRejected says why the request, or as many as count says, went nowhere.
func (c *Commands) RecordCancelRejected(ctx context.Context, r *CancelRequest, cause string, count int) error {
	shared := r.context()
	shared.ReasonCode = cause
	return c.recordCancel(ctx, shared, &event.CancelRejected{Cause: cause, Client: r.Client, Count: count, WireSession: r.Request.WireSession})
}

func (c *Commands) recordCancel(ctx context.Context, shared event.Context, p event.Typed) error {
	_, err := c.append(context.WithoutCancel(ctx), eventlog.Group{Drafts: []event.Draft{event.New(c.now(), shared, p)}})
	return err
}
