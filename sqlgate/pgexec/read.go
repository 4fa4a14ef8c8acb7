package pgexec

import (
	"context"
	"slices"
	"time"

	"writegate/commands/fault"
)

// A Reading is a connection that waits for one read, or for one statement that is only
// described or planned.
type Reading struct {
	db    *DB
	lease *lease
	d     Dispatch
}

// BeginRead takes a connection for a safe read, or for Describe. It sends nothing of
// the client's, and nothing at all where the pool has a live connection already. What
// comes of it is run or released. A server on which the statement means something else than
// it was judged by is an error.
func (db *DB) BeginRead(ctx context.Context, st *Statement, lim Limits) (*Reading, error) {
	var l *lease
	for renewed := 0; ; renewed++ {
		var err error
		if l, err = db.reader.acquire(ctx); err != nil {
			return nil, err
		}
		if err = l.reads(ctx, st.Meaning); err == nil {
			break
		}
		outdated := l.outdated
		l.release()
		if !outdated || renewed == cap(db.reader.slots) {
			return nil, err
		}
	}
	return &Reading{db, l, Dispatch{Upstream: l.upstream, Limits: lim, Settings: l.settings(db.bound(lim), st.Trace, st.Settings)}}, nil
}

// Dispatch is what evidence records before the read is sent: where it goes, and
// under what.
func (r *Reading) Dispatch() Dispatch { return r.d }

// Release gives the connection back; it does nothing once that was done.
func (r *Reading) Release() {
	if r.lease != nil {
		r.lease.release()
		r.lease = nil
	}
}

// Run runs the read behind the second fence: one write of BEGIN READ ONLY,
// the statement, ROLLBACK. Evidence of the decision was made durable before. The
// end of ctx cancels it. The Result is complete also beside an error, which is
// the fault for the client; 25006 shows as ReasonReadFence: classification and
// database disagree, nothing was applied.
func (r *Reading) Run(ctx context.Context, executionID string, st Statement, sink Sink) (Result, error) {
	res, err := r.db.readOn(ctx, r.lease, executionID, st, r.db.bound(r.d.Limits), sink)
	r.Release()
	if err == nil && r.db.finishSink(ctx, sink) != nil { // the connection is back: a look-up may need it
		failed := aborted(ReasonResultTooLarge, BasisReadOnly)
		failed.Bytes, failed.Duration, failed.Notices = res.Bytes, res.Duration, res.Notices
		return failed, tooLargeFault()
	}
	return res, err
}

func (db *DB) readOn(ctx context.Context, l *lease, executionID string, st Statement, lim Limits, sink Sink) (Result, error) {
	if err := l.reads(ctx, st.Meaning); err != nil {
		return aborted(ReasonDBError, BasisReadOnly), err
	}
	cmd := client(st, lim, sink)
	rollback := own("ROLLBACK")
	batch := segment{own("BEGIN READ ONLY")}
	owner := l.client + "\x00" + st.Owner
	if l.used && l.owner != owner {
		batch = append(batch, l.forgetting()...)
	}
	l.owner = owner
	batch = append(batch, set("LOCAL", l.settings(lim, st.Trace, st.Settings))...)
	before, behind := l.comparing(cmd)
	batch = slices.Concat(batch, before, segment{cmd}, behind, segment{rollback})
	r := db.run(ctx, l, executionID, db.deadline(lim), cmd, batch)
	if r.refused != nil && r.err == nil {
		// The server skipped our ROLLBACK with the rest of the batch.
		l.rollback(time.Now().Add(rollbackWait))
		l.dirty = true
	}
	res, f, ok := db.outcomeOf(r, BasisReadOnly)
	if !ok {
		res, f = fenced(r, res, f)
		return r.stamp(res, l), f
	}
	res = Result{State: Success, CommandTag: cmd.tag, RowCount: cmd.rows, Basis: BasisReadRolledBack}
	return r.stamp(res, l), nil
}

// fenced says of a read that the database refused as a write what that means.
func fenced(r *ran, res Result, f error) (Result, error) {
	if r.err != nil || r.refused == nil || r.refused.Code != "25006" || raised(r.refused) {
		return res, f
	}
	res.ReasonCode = ReasonReadFence
	return res, fault.New(fault.UnsafeReadShape, "The statement was taken for a read, but the database saw it write. Nothing was applied.").With("sqlstate", "25006").Because(quiet{r.refused})
}
