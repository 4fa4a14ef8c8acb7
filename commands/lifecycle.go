package commands

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// systemActor is the actor of events that no client caused.
const systemActor = "system"

// Startup is how a run begins. Tails are what the log put aside when it was
// opened.
type Startup struct {
	Mode  string
	Event event.Startup
	Tails []event.Tail
	Fence *event.LogFenceTaken // that this run took; nil where it needs none
}

// Start begins the run in the log, before anything is served: what was found
// torn, then which fence was taken, then startup, then an execution_state_unknown for every execution that
// an earlier run dispatched and left without a result. Where it fails midway
// the next start carries on, since those executions are still open then.
func (c *Commands) Start(ctx context.Context, s Startup) error {
	drafts := decideStart(&s, c.now())
	done, err := c.commit(ctx, eventlog.Group{Drafts: drafts})
	if err != nil {
		return err
	}
	c.engine.Store(done.Last)
	return c.settleOpen(ctx)
}

// Engine is the seq of this run's startup event, which names the versions of
// everything that decides; 0 before Start.
func (c *Commands) Engine() uint64 { return c.engine.Load() }

// decideStart ends with the startup event.
func decideStart(s *Startup, now time.Time) []event.Draft {
	var drafts []event.Draft
	if len(s.Tails) > 0 {
		drafts = append(drafts, event.New(now, event.Context{Actor: systemActor, Operation: "recover_log"}, &event.LogTailRecovered{Tails: s.Tails}))
	}
	if s.Fence != nil {
		drafts = append(drafts, event.New(now, event.Context{Actor: systemActor, Operation: "take_log"}, s.Fence))
	}
	return append(drafts, event.New(now, event.Context{Actor: systemActor, Operation: "start", Mode: s.Mode}, &s.Event))
}

// openChunk bounds the executions settled in one append: two events each.
const openChunk = 256

func (c *Commands) settleOpen(ctx context.Context) error {
	open, err := c.openExecutions()
	if err != nil {
		return err
	}
	for len(open) > 0 {
		n := min(len(open), openChunk)
		drafts, err := decideStopped(open[:n], c.now())
		if err != nil {
			return err
		}
		if _, err := c.commit(ctx, eventlog.Group{Drafts: drafts, Reserve: true}); err != nil {
			return err
		}
		open = open[n:]
	}
	return nil
}

// openExecution is what deciding needs of an execution without a result.
type openExecution struct {
	shared event.Context // with the ids of execution, request and approval
	path   string
	keyed  bool // a client's idempotency key waits for an answer
}

// settledBy tells by its path why an execution has changed nothing, whatever became of it: a
// dry run is never followed by COMMIT.
var settledBy = map[string]string{event.PathRead: "read_only", event.PathDryRun: "commit_never_sent"}

// decideStopped says of each execution that its outcome is unknown because the
// gate died. A read and a dry run are settled at once.
func decideStopped(open []openExecution, now time.Time) ([]event.Draft, error) {
	drafts := make([]event.Draft, 0, len(open)+1)
	for i := range open {
		e := &open[i]
		told := e.shared
		told.ErrorCode = string(fault.DBQueryTimeout)
		p := &event.ExecutionStateUnknown{Cause: "gate_stopped"}
		if e.keyed {
			answer, err := stoppedAnswer(e.shared.ExecutionID)
			if err != nil {
				return nil, err
			}
			p.Answer = answer
		}
		drafts = append(drafts, event.New(now, told, p))
		if basis := settledBy[e.path]; basis != "" {
			drafts = append(drafts, event.New(now, e.shared, &event.ExecutionOutcomeResolved{Outcome: event.OutcomeAborted, Basis: basis}))
		}
	}
	return drafts, nil
}

// stoppedAnswer is what the key of such an execution answers from now on: the
// error object of an unknown outcome (spec/decisions.md part 4), to which each
// occurrence adds an error_id of its own.
func stoppedAnswer(executionID string) (*event.Answer, error) {
	body, err := json.Marshal(struct {
		ErrorCode      fault.Code `json:"error_code"`
		Message        string     `json:"message"`
		ExecutionState string     `json:"execution_state"`
		ExecutionID    string     `json:"execution_id"`
	}{fault.DBQueryTimeout, "The gate stopped while the statement ran, so its outcome is not known. Check the database, or the execution, before sending it again under a new key.",
		"unknown", executionID})
	if err != nil {
		return nil, err
	}
	return &event.Answer{Status: http.StatusGatewayTimeout, Body: string(body)}, nil
}

// digestTime bounds how long a clean end may take to sum up the projections.
const digestTime = 5 * time.Second

// Shutdown is the last event of a run. Drained says that every running request
// came to its end. What was held back by throttling is written with it.
func (c *Commands) Shutdown(ctx context.Context, reason string, drained bool) error {
	now := c.now()
	if held := append(c.floods.flush(now, true), c.outages.flush(now, true)...); len(held) > 0 { // before the digest, which the next start compares
		if _, err := c.commit(ctx, eventlog.Group{Drafts: held, Reserve: true}); err != nil {
			return err
		}
	}
	p := &event.Shutdown{Reason: reason, Drained: drained}
	if seq, digest, ok := c.digest(ctx); ok {
		p.Digest, p.DigestSeq, p.DigestProjectors = digest, seq, projections.ProjectorVersion
	}
	_, err := c.commit(ctx, eventlog.Group{Drafts: []event.Draft{event.New(now, event.Context{Actor: systemActor, Operation: "shutdown"}, p)}, Reserve: true})
	return err
}

// digest sums the projections up, where that is quick.
func (c *Commands) digest(ctx context.Context) (seq uint64, digest [32]byte, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, digestTime)
	defer cancel()
	seq, digest, err := c.store.Digest(ctx)
	if err != nil {
		c.logs.Info("shutdown goes without a digest of the projections", "source", "commands", "error", err)
	}
	return seq, digest, err == nil
}
