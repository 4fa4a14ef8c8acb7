package pgexec

import (
	"context"
	"strings"
	"time"

	"writegate/commands/fault"
)

// An Alone is the connection of a statement that PostgreSQL refuses inside a
// transaction block (VACUUM, CREATE INDEX CONCURRENTLY, ...). It has no
// transaction id, and when it fails part of it may stay.
type Alone struct {
	db       *DB
	lease    *lease
	opts     BeginOptions
	dispatch Dispatch
	ended    bool
}

// BeginAlone leases a writer and looks at its settings;
// nothing of the client's is sent. One of Exec and Close must be called.
func (db *DB) BeginAlone(ctx context.Context, opts BeginOptions) (*Alone, error) {
	opts.Limits = db.bound(opts.Limits)
	if opts.Limits.MaxRows != nil {
		return nil, notCountableFault("the statement runs outside a transaction")
	}
	a := &Alone{db: db, opts: opts}
	err := db.writerFor(opts.DDL).onWriter(ctx, (*conn).reset, func(l *lease) error {
		a.lease = l
		return a.open(ctx)
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// open prepares the session. Settings go to the session, where the cleaning
// behind it undoes them: there is no transaction to hold them.
func (a *Alone) open(ctx context.Context) error {
	deadline := time.Now().Add(a.db.cfg.ConnectTimeout)
	if err := a.lease.reads(ctx, a.opts.Meaning); err != nil {
		return a.lease.retried(err)
	}
	if a.lease.cleaned(deadline) != nil {
		return errNotClean
	}
	if _, err := a.lease.look(ctx, deadline); err != nil {
		return &beginError{beginFault(nil, err)}
	}
	if a.lease.drift != "" {
		return &beginError{driftFault(a.lease.drift)}
	}
	settings := a.lease.settings(a.opts.Limits, a.opts.Trace, a.opts.Settings)
	if len(settings) > 0 {
		a.lease.expect(settings)
		a.lease.dirty = true
		if refused, err := a.lease.exchange(ctx, deadline, set("SESSION", settings)); err != nil {
			return &beginError{beginFault(refused, err)}
		} else if refused != nil {
			return a.db.settingFault(refused)
		}
	}
	a.dispatch = Dispatch{Upstream: a.lease.upstream, Limits: a.opts.Limits, Settings: settings}
	return nil
}

// Dispatch is what evidence records before the statement is sent.
func (a *Alone) Dispatch() Dispatch { return a.dispatch }

// Exec sends the statement and gives the connection back. It does not heed the
// end of ctx. The Result is final.
func (a *Alone) Exec(ctx context.Context, st Statement, sink Sink) (Result, error) {
	if a.ended {
		return Result{}, fault.New(fault.Internal, "The connection has run its statement already.")
	}
	defer a.Close()
	defer a.db.types.forget()
	if newest := a.db.timelines.behind(&a.lease.upstream); newest != "" { // since BeginAlone
		return aborted(ReasonDBError, BasisCommitNeverSent), staleFault(a.lease.upstream.Timeline, newest)
	}
	if err := a.db.mayCommit(); err != nil {
		return aborted(ReasonDBError, BasisCommitNeverSent), err
	}
	lim := a.opts.Limits
	cmd := client(st, lim, sink) // with no comparison: that would begin a transaction
	a.lease.notices = nil
	r := a.db.run(context.WithoutCancel(ctx), a.lease, a.opts.ExecutionID, a.db.deadline(lim), cmd, segment{cmd})
	res, f := a.outcome(r)
	if f == nil && a.db.finishSink(ctx, sink) != nil {
		f = fault.New(fault.ResultTooLarge, "The statement ran, but its result is larger than the gate hands on. Do not send it again; read what you need in parts.")
	}
	return r.stamp(res, a.lease), f
}

// outcome sorts the ways in which the statement can end. Without a transaction
// nothing but the server's own answer tells what was done, and the tag is not the
// end of it: what CREATE INDEX CONCURRENTLY does last is committed behind its tag.
func (a *Alone) outcome(r *ran) (Result, error) {
	partial := Result{State: Failure, Outcome: OutcomePartialPossible}
	unknown := Result{State: Unknown, Step: StepStatement, Cause: CauseTimeout}
	switch {
	case r.unsent:
		return aborted(ReasonCancelled, BasisCommitNeverSent), cancelledFault()
	case r.over():
		partial.ReasonCode = ReasonResultTooLarge
		return partial, partly(tooLargeFault())
	case r.cmd.tag != "" && r.refused == nil && r.err == nil:
		return Result{State: Success, CommandTag: r.cmd.tag, RowCount: rowCount(r.cmd), Basis: BasisAloneCompleted}, nil
	case r.asked && r.refused != nil:
		partial.ReasonCode = ReasonCancelled
		return partial.withServer(r.refused), partly(cancelledFault())
	case r.err != nil && !r.timeout && !r.asked:
		unknown.Cause = CauseConnectionLost
		return unknown.withServer(r.refused), unknownFault("The connection to the database was lost").Because(r.err)
	case r.err != nil || r.refused != nil && r.refused.Code == "57014" && !raised(r.refused):
		return unknown.withServer(r.refused), timeoutFault().Because(r.err)
	case r.refused != nil:
		partial.ReasonCode = ReasonDBError
		return partial.withServer(r.refused), partly(a.db.cfg.statementFault(r.refused))
	}
	return Result{State: Success, Basis: BasisAloneCompleted}, nil // an empty statement: no tag
}

// partly says of a failure that it may have left something behind, and takes
// back what holds inside a transaction only.
func partly(f *fault.Fault) *fault.Fault {
	f = f.With("outcome", OutcomePartialPossible)
	f.Message = strings.Replace(f.Message, "; nothing was applied", "", 1) +
		" It ran outside a transaction, so a part of it may have been applied: look at the database first."
	return f
}

// Close gives the connection back without a statement; after Exec it does nothing.
func (a *Alone) Close() {
	if !a.ended {
		a.ended = true
		a.lease.release()
	}
}
