package sqlgate

import (
	"context"
	"errors"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/replay"
)

// Bounds of a replay (design/policy.md part 8).
const (
	DefaultReplay = 10_000
	MaxReplay     = 100_000
	// ReplaysAtOnce are those of clients, and of operators beside them. Who asks for
	// one takes it; here the sum is bounded.
	ReplaysAtOnce = 2
	maxReplays    = 2 * ReplaysAtOnce
)

// A ReplayRequest asks what another version would have decided. Either Last is
// set, or a range.
type ReplayRequest struct {
	Base, Target   Source
	Last           time.Duration
	FromSeq, ToSeq uint64 // ToSeq 0: the head
	Limit          int    // decisions, newest first; 0 = DefaultReplay
}

// Replay decides recorded decisions again, under two versions. It reads one
// stream of events and keeps the changes alone; it ends with the context, and
// with the time that a replay may take it is not complete.
//
// Errors: policy_not_found, policy_invalid, and rate_limit_exceeded when as
// many replays as may run do.
func (g *Gate) Replay(ctx context.Context, r ReplayRequest) (*replay.Report, error) {
	base, _, err := g.compiled(ctx, r.Base)
	if err != nil {
		return nil, err
	}
	target, _, err := g.compiled(ctx, r.Target)
	if err != nil {
		return nil, err
	}
	return g.replayBetween(ctx, base, target, r)
}

func (g *Gate) replayBetween(ctx context.Context, base, target *policy.Policy, r ReplayRequest) (*replay.Report, error) {
	var comparison *replay.Comparison
	complete, err := g.replayOver(ctx, r, func(from, to uint64) replayed {
		comparison = replay.NewComparison(base, target, from, to)
		return comparison
	})
	if err != nil {
		return nil, err
	}
	report, err := comparison.Report(complete, EngineRecord())
	return &report, err
}

// A replayed takes recorded decisions, in their order.
type replayed interface {
	Add(d *replay.Decision)
	Unreplayable()
}

// replayOver hands the decisions of a range to what begin makes for it. complete is false where
// the time that a replay may take was over first.
func (g *Gate) replayOver(ctx context.Context, r ReplayRequest, begin func(from, to uint64) replayed) (complete bool, err error) {
	select {
	case g.replays <- struct{}{}:
		defer func() { <-g.replays }()
	default:
		return false, fault.New(fault.RateLimitExceeded, "%d replays run already, and no more may at once. Try again when one has ended.", maxReplays).With("retry_after_seconds", 1)
	}
	first, from, to, err := g.replayRange(ctx, r)
	if err != nil {
		return false, err
	}
	limited, cancel := context.WithTimeout(ctx, g.ReplayTimeout)
	defer cancel()
	err = g.replayInto(limited, begin(from, to), first, to)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}

// replayRange turns a request into a range: first is the first decision to look
// at, 0 for none; from and to are what the answer names. A limit moves from up,
// so that the range names exactly what was looked at.
func (g *Gate) replayRange(ctx context.Context, r ReplayRequest) (first, from, to uint64, err error) {
	view := g.Store.ViewWithin(ctx)
	defer view.Close()
	to = view.Applied().Seq
	if r.ToSeq != 0 && r.ToSeq < to {
		to = r.ToSeq
	}
	from = max(r.FromSeq, 1)
	filter := projections.AuditFilter{EventTypes: []string{string(event.TypeDecisionRecorded)}, FromSeq: r.FromSeq, ToSeq: to}
	if r.Last > 0 {
		filter.Since = g.Now().Add(-r.Last)
	}
	limit := r.Limit
	if limit == 0 {
		limit = DefaultReplay
	}
	page := projections.Page{}
	for left := limit; left > 0; {
		page.Limit = min(left, 1000)
		seqs, next, err := view.Audit(filter, page)
		if err != nil {
			return 0, 0, 0, err
		}
		if len(seqs) > 0 {
			first = seqs[len(seqs)-1]
		}
		left -= len(seqs)
		if next == "" {
			if r.Last > 0 {
				from = first
				if first == 0 {
					from = to
				}
			}
			return first, from, to, nil
		}
		page.Cursor = next
	}
	return first, first, to, nil
}

// replayInto feeds the decisions from first on. The event before a decision is
// its request.
func (g *Gate) replayInto(ctx context.Context, c replayed, first, to uint64) error {
	if first == 0 {
		return nil
	}
	engines := engineRecords{gate: g, known: map[uint64]map[string]string{}}
	var reader replay.Reader
	for e, err := range g.Events(ctx, max(first, 2)-1) {
		if err != nil {
			return err
		}
		if e.Seq > to {
			return nil
		}
		d, err := reader.Take(&e)
		switch {
		case err != nil:
			c.Unreplayable()
		case d == nil:
		default:
			engine, err := engines.of(ctx, d.Engine)
			if err != nil {
				return err
			}
			if !d.Under(engine) {
				c.Unreplayable()
				continue
			}
			c.Add(d)
		}
	}
	return ctx.Err()
}

// engineRecords remembers the engine that each startup event names.
type engineRecords struct {
	gate  *Gate
	known map[uint64]map[string]string
}

func (f *engineRecords) of(ctx context.Context, seq uint64) (map[string]string, error) {
	if engine, ok := f.known[seq]; ok {
		return engine, nil
	}
	for e, err := range f.gate.Events(ctx, seq) {
		if err != nil {
			return nil, err
		}
		var p event.Startup
		if e.Type == event.TypeStartup {
			if err := e.Parse(&p); err != nil {
				return nil, err
			}
		}
		f.known[seq] = p.Engine
		break
	}
	return f.known[seq], nil
}
