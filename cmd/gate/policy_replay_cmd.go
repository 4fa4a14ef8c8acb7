package main

import (
	"context"
	"errors"
	"fmt"

	"writegate/cmd/terminal"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/sqlgate"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/replay"
)

// replayLog decides what the log recorded again, under two policies, without a
// gate: what POST /policy/diff does, with the same impact hash for the same
// range, and without its limit and its time. Ctrl-C ends it.
func (a *app) replayLog(ctx context.Context, wal string, base, target *policy.Policy, from, to uint64) (*replay.Report, error) {
	set, verdict, err := a.judgeLog(ctx, wal)
	if err == nil && verdict.Status == frame.Corruption {
		err = errors.New("the log is damaged, so what it recorded is not decided again (gate log verify says more)")
	}
	if err == nil && (to > verdict.VerifiedTo || (to != 0 && from > to)) {
		err = fmt.Errorf("events %d to %d are not a range of the log, which has 1 to %d", from, to, verdict.VerifiedTo)
	}
	if err != nil {
		return nil, errors.Join(err, set.Close())
	}
	if to == 0 {
		to = verdict.VerifiedTo
	}
	comparison := replay.NewComparison(base, target, from, to)
	if err = a.compareRecorded(ctx, &set, &verdict, comparison, from, to); err == nil {
		err = ctx.Err()
	}
	if err = errors.Join(err, set.Close()); err != nil {
		return nil, err
	}
	report, err := comparison.Report(true, sqlgate.EngineRecord())
	return &report, err
}

// compareRecorded feeds the decisions of a range, in order.
func (a *app) compareRecorded(ctx context.Context, set *frame.Set, verdict *frame.Report, c *replay.Comparison, from, to uint64) error {
	progress := terminal.NewProgress(a.err, "deciding", false)
	engines := map[uint64]map[string]string{} // by startup event
	var reader replay.Reader
	for e, err := range eventlog.Vouched(ctx, set, verdict, 1) {
		if err != nil {
			return errors.Join(err, progress.Done())
		}
		if e.Seq > to {
			break
		}
		if err := takeRecorded(c, &reader, engines, &e, from); err != nil {
			return errors.Join(err, progress.Done())
		}
		progress.Step(int64(e.Seq), int64(to))
	}
	return progress.Done()
}

func takeRecorded(c *replay.Comparison, reader *replay.Reader, engines map[uint64]map[string]string, e *event.Envelope, from uint64) error {
	if e.Type == event.TypeStartup {
		var p event.Startup
		if err := e.Parse(&p); err != nil {
			return fmt.Errorf("event %d: %w", e.Seq, err)
		}
		engines[e.Seq] = p.Engine
	}
	d, err := reader.Take(e)
	switch {
	case e.Seq < from || (err == nil && d == nil):
	case err != nil || !d.Under(engines[d.Engine]):
		c.Unreplayable()
	default:
		c.Add(d)
	}
	return nil
}
