package agentctl

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/semaphore"

	"writegate/agentctl/toolcheck"
	"writegate/commands/fault"
)

// What one project may have of each kind of dear work at once. All projects together
// may have twice that, and turnsWaiting times of one project may have its turn or wait for it.
const (
	// Telemetry on its way into the projections, as costOf counts it: every view waits
	// until what is durable is folded, and with it whoever has a statement or an approval.
	telemetryOfOne = MaxTelemetryEvents
	// Steps of rules over telemetry.
	stepsOfOne = maxBatchCost
	// Previews of applications.
	previewsOfOne = 1
	// Bytes of the rules that are compiled.
	compiledOfOne = 64 << 10
	// Changes of policies and of what they are applied to.
	changesOfOne = 1
	// Verifications of tools.
	verificationsOfOne = toolcheck.MaxRunning / 2

	turnsWaiting = 32
)

// turns are given to the requests of a project in the order in which they come, and
// to projects among each other.
type turns struct {
	ofOne   int64
	waiting int64 // times ofOne may wait
	all     *semaphore.Weighted

	mu       sync.Mutex
	projects map[string]*projectTurns // those with a request; guarded by mu
}

type projectTurns struct {
	turns *semaphore.Weighted
	cost  int64 // of all that have their turn or wait for it; guarded by turns.mu
}

func newTurns(ofOne int64) *turns {
	return &turns{ofOne: ofOne, waiting: turnsWaiting, all: semaphore.NewWeighted(2 * ofOne), projects: map[string]*projectTurns{}}
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

// take waits for the turn of a request; done is called when its work is over. The cost
// is from 1 to what one project may have.
//
// Errors: rate_limit_exceeded where very much of the project waits already;
// audit_unavailable when ctx ends first.
func (t *turns) take(ctx context.Context, project string, cost int64) (done func(), err error) {
	t.mu.Lock()
	p := t.projects[project]
	if p == nil {
		p = &projectTurns{turns: semaphore.NewWeighted(t.ofOne)}
		t.projects[project] = p
	}
	if p.cost+cost > t.waiting*t.ofOne {
		t.mu.Unlock()
		return nil, fault.New(fault.RateLimitExceeded, "The project has more of these requests waiting than are taken. Nothing of this one was kept; send it again in a moment.").With("retry_after_seconds", 1)
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
		return nil, fault.New(fault.AuditUnavailable, "The request ended while it waited for its turn. Nothing of it was kept; send it again.").
			With("outcome", "not_written").Because(errors.Join(err, context.Cause(ctx)))
	}
	return func() {
		t.all.Release(cost)
		p.turns.Release(cost)
		leave()
	}, nil
}
