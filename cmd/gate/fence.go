package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/commands/fence"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/http/gateapi"
	"writegate/projections"
	"writegate/sqlgate/pgexec"
)

// fenceFaults are settings of the fence that contradict each other or those of the database.
func (s *settings) fenceFaults() (faults []string) {
	if problem := pgexec.MarkerTableFault(s.LogFenceTable); s.LogFenceTable != "" && problem != "" {
		faults = append(faults, "GATE_LOG_FENCE_TABLE "+problem)
	}
	if s.LogFenceURL == "" {
		if s.LogFenceGuarded {
			faults = append(faults, "GATE_LOG_FENCE_IN_GUARDED_DATABASE needs GATE_LOG_FENCE_URL, with a role of its own")
		}
		return faults
	}
	guarded := []string{s.DatabaseURL, s.DatabaseReadURL, s.DatabaseDDLURL}
	same := slices.ContainsFunc(guarded, func(url string) bool { return pgexec.SameDatabase(s.LogFenceURL, url) })
	if same && !s.LogFenceGuarded {
		faults = append(faults, pgexec.SettingFence+" "+fenceInGuarded)
	}
	if role := pgexec.RoleOf(s.LogFenceURL); s.LogFenceGuarded && role != "" && slices.ContainsFunc(guarded, func(url string) bool { return pgexec.RoleOf(url) == role }) {
		faults = append(faults, pgexec.SettingFence+" must name a role that is none of the gate's for statements: those could write the fence's table by it")
	}
	return faults
}

const fenceInGuarded = "leads to the guarded database, which is out of reach at the same time, and which a restore puts back together with the fence: name another one, or set GATE_LOG_FENCE_IN_GUARDED_DATABASE=true where this is meant"

func (s *settings) fenceDatabase() pgexec.LogFence {
	upstream := s.databaseConfig().TLS
	return pgexec.LogFence{URL: s.LogFenceURL, Table: s.LogFenceTable, TLS: upstream.TLSBeside(s.LogFenceURL), ConnectTimeout: millis(s.DBConnectTimeout)}
}

// takeFence takes the fence of the log, where there is one, before anything is appended.
func (g *service) takeFence(ctx context.Context) error {
	if g.fence == nil {
		return nil
	}
	view := g.store.ViewWithin(ctx)
	seqs, _, err := view.Audit(projections.AuditFilter{EventTypes: []string{string(event.TypeLogFenceTaken)}}, projections.Page{Limit: 1})
	known := slices.Collect(maps.Keys(view.Counters().Timelines))
	if err = errors.Join(err, view.Close()); err != nil {
		return commands.ViewFault(err)
	}
	o, err := fenceOptions(ctx, g.settings, g.events)
	if err != nil {
		return err
	}
	o.Logger, o.Step = g.log, g.step
	o.Allowed = func(at, database string) error { return g.fenceBeside(at, database, known, g.database.Name()) }
	for _, seq := range seqs {
		e, err := g.events.At(ctx, seq)
		var taken event.LogFenceTaken
		if err = errors.Join(err, e.Parse(&taken)); err != nil {
			return fmt.Errorf("the last log_fence_taken, event %d, can't be read: %w", seq, err)
		}
		o.Known = pgexec.FenceMark{Epoch: taken.Epoch, Nonce: taken.Nonce}
	}
	if g.fenceTaken, err = g.fence.Take(ctx, o); err != nil {
		return fenceError(err)
	}
	g.fence.Start(context.WithoutCancel(ctx))
	return nil
}

// fenceOptions are those of the fence of an open log.
func fenceOptions(ctx context.Context, s *settings, l *eventlog.Log) (o fence.Options, err error) {
	w, err := frame.OS{}.RealPath(s.AuditWALPath)
	if err != nil {
		return o, err
	}
	before, err := l.Ancestors(ctx)
	if err != nil && !errors.Is(err, eventlog.ErrAncestor) { // those that can be named count; the others are told elsewhere
		return o, err
	}
	o = fence.Options{Database: s.fenceDatabase(), LogID: l.LogID(), Path: w + fence.Suffix}
	for _, a := range before {
		o.Before = append(o.Before, a.LogID)
	}
	o.Head = func() (uint64, [32]byte) {
		head := l.Head()
		return head.Seq, head.Hash
	}
	o.At = func(ctx context.Context, seq uint64) ([32]byte, error) {
		e, err := l.At(ctx, seq)
		return e.Hash, err
	}
	return o, nil
}

// fenceBeside refuses a fence in the guarded database, by whatever name, where nobody
// said that it may be. What is not known of that one yet refuses nothing.
func (g *service) fenceBeside(system, database string, guardedSystems []string, guarded string) error {
	if g.settings.LogFenceGuarded || !slices.Contains(guardedSystems, system) || database != guarded {
		return nil
	}
	return exitWith(exitConfigured, fmt.Errorf("%s %s", pgexec.SettingFence, fenceInGuarded))
}

// lookAtFence holds the fence's database against the guarded one as the first look found it.
func (g *service) lookAtFence() error {
	if g.fence == nil || g.fenceTaken == nil {
		return nil
	}
	at, database := g.fence.At()
	system, guarded := g.database.Cluster()
	if system == "" && !g.settings.LogFenceGuarded {
		g.log.Warn("the guarded database is out of reach, so this start can't tell whether the fence's is another one", "source", "fence")
	}
	return g.fenceBeside(at, database, []string{system}, guarded)
}

// fenceError gives a refusal of the fence its exit code.
func fenceError(err error) error {
	if e := (*exitError)(nil); errors.As(err, &e) {
		return err
	}
	code := exitFatal
	switch {
	case errors.Is(err, fence.ErrHeld):
		code = exitLocked
	case errors.Is(err, fence.ErrBehind):
		code = exitConfigured
	case errors.Is(err, fence.ErrDatabase):
		code = exitUnavailable
	}
	return exitWith(code, fmt.Errorf("the log can't be taken for writing (%s): %w", pgexec.SettingFence, err))
}

// mayCommit is asked before each COMMIT. One whose evidence was durable in time is rolled
// back all the same when the fence lapsed meanwhile: another copy of the log may go on by
// now, which knows nothing of the statement, and would count its approval or
// idempotency key as not used. Rolled back it is as if it had not been sent, and either
// log may say so; what is committed can't be taken back. A COMMIT that was sent goes on.
func (g *service) mayCommit() error {
	err := g.fence.Check()
	if err == nil {
		return nil
	}
	return fault.New(fault.AuditUnavailable, "The statement was rolled back in the place of its COMMIT: the gate can't confirm that no other copy of its event log is written. Nothing was applied.").
		With("reason", commands.FenceReason(err)).Because(err)
}

// fenceState is the fence in GET /health; nil where there is none.
func (g *service) fenceState() *gateapi.FenceState {
	if g.fence == nil {
		return nil
	}
	s := &gateapi.FenceState{Status: "ok", Message: "ok", Epoch: g.fence.Epoch(), Age: g.fence.Age()}
	if err := g.fence.Check(); err != nil {
		s.Status, s.Message = strings.TrimPrefix(commands.FenceReason(err), "fence_"), err.Error()
	}
	return s
}
