package commands

import (
	"context"

	"writegate/eventlog"
	"writegate/eventlog/event"
)

// A ClosedSession is a session that ended by itself.
type ClosedSession struct {
	SessionID, Actor, App, Tenant, Env string
	Statements                         int // that were prepared in it
}

// closedChunk bounds the sessions of one append.
const closedChunk = 256

// CloseSessions says of sessions that nobody used them for too long.
func (c *Commands) CloseSessions(ctx context.Context, closed []ClosedSession) error {
	for len(closed) > 0 {
		n := min(len(closed), closedChunk)
		if _, err := c.append(ctx, eventlog.Group{Drafts: c.closedSessions(closed[:n])}); err != nil {
			return err
		}
		closed = closed[n:]
	}
	return nil
}

func (c *Commands) closedSessions(closed []ClosedSession) []event.Draft {
	now := c.now()
	drafts := make([]event.Draft, len(closed))
	for i, s := range closed {
		shared := event.Context{SessionID: s.SessionID, Actor: s.Actor, App: s.App, Tenant: s.Tenant, Env: s.Env, Operation: "close_session"}
		drafts[i] = event.New(now, shared, &event.SessionClosed{Reason: event.SessionIdle, Statements: s.Statements})
	}
	return drafts
}
