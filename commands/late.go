package commands

import (
	"context"
	"errors"
	"sync"
	"time"

	"writegate/eventlog"
)

// What runs when the fence of the log is no longer confirmed comes to its end all the
// same, and the log does not take the evidence of that (eventlog.ErrFenceUnconfirmed): its
// client is told that the outcome is unknown. Once the fence is confirmed again it is
// written after all; else the execution and its idempotency key would stay open until the
// next start. There are never more of these than statements that ran at once, since
// no other is dispatched meanwhile.
type late struct {
	mu     sync.Mutex
	groups []eventlog.Group
}

const lateEvery = 250 * time.Millisecond

// keep takes what the log refused with err, where it may take it later.
func (l *late) keep(g eventlog.Group, err error) {
	if !g.Reserve || !errors.Is(err, eventlog.ErrFenceUnconfirmed) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	g.Ack = eventlog.Durable
	l.groups = append(l.groups, g)
}

func (l *late) take() []eventlog.Group {
	l.mu.Lock()
	defer l.mu.Unlock()
	groups := l.groups
	l.groups = nil
	return groups
}

// RunLate writes results that came while the fence of the log was not confirmed, until
// ctx ends. What it does not come to is settled by the next start.
func (c *Commands) RunLate(ctx context.Context) {
	ticker := time.NewTicker(lateEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, g := range c.late.take() {
			if _, err := c.append(ctx, g); errors.Is(err, eventlog.ErrFenceUnconfirmed) {
				c.late.keep(g, err)
			} else if err != nil {
				c.logs.Error("what became of a statement could not be written; the next start settles it", "source", "commands", "error", err)
			}
		}
	}
}
