package agentctl

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/semaphore"

	"writegate/commands/fault"
)

// Bounds of the telemetry that is on its way into the projections at once, as costOf
// counts it: every view waits until what is durable is folded, and with it
// whoever has a statement or an approval. One project has half of it at most.
const (
	telemetryAtOnce  = 2 * telemetryOfOne
	telemetryOfOne   = MaxTelemetryEvents
	telemetryWaiting = 32 * telemetryOfOne // of one project
)

// telemetryTurns give batches their turns, the first come first of a project, and
// projects among each other.
type telemetryTurns struct {
	all *semaphore.Weighted

	mu       sync.Mutex
	projects map[string]*projectTurns // those with a batch; guarded by mu
}

type projectTurns struct {
	turns *semaphore.Weighted
	cost  int64 // of all that have their turn or wait for it; guarded by telemetryTurns.mu
}

func newTelemetryTurns() *telemetryTurns {
	return &telemetryTurns{all: semaphore.NewWeighted(telemetryAtOnce), projects: map[string]*projectTurns{}}
}

// costOf is what a batch costs the projections, about: its events, and what they
// are read from. It is never more than one project may have.
func costOf(sent []SentEvent) int64 {
	cost, bytes := int64(len(sent)), 0
	for i := range sent {
		bytes += sent[i].Bytes
	}
	return min(telemetryOfOne, cost+int64(bytes/(16<<10)))
}

// take waits for the turn of a batch; done is called once it is folded.
//
// Errors: rate_limit_exceeded where very much of the project waits already;
// audit_unavailable when ctx ends first.
func (t *telemetryTurns) take(ctx context.Context, project string, cost int64) (done func(), err error) {
	t.mu.Lock()
	p := t.projects[project]
	if p == nil {
		p = &projectTurns{turns: semaphore.NewWeighted(telemetryOfOne)}
		t.projects[project] = p
	}
	if p.cost+cost > telemetryWaiting {
		t.mu.Unlock()
		return nil, fault.New(fault.RateLimitExceeded, "The project has more telemetry waiting than is taken. Nothing of this batch was kept; send it again in a moment.").With("retry_after_seconds", 1)
	}
	p.cost += cost
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if p.cost -= cost; p.cost == 0 {
			delete(t.projects, project)
		}
	}
	if err = p.turns.Acquire(ctx, cost); err == nil {
		if err = t.all.Acquire(ctx, cost); err != nil {
			p.turns.Release(cost)
		}
	}
	if err != nil {
		leave()
		return nil, fault.New(fault.AuditUnavailable, "The request ended while it waited for its turn. Nothing of the batch was kept; send it again.").
			With("outcome", "not_written").Because(errors.Join(err, context.Cause(ctx)))
	}
	return func() {
		t.all.Release(cost)
		p.turns.Release(cost)
		leave()
	}, nil
}
