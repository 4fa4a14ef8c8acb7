package pgexec

import (
	"context"
	"time"

	"writegate/commands/fault"
)

// ReadUpstream says where a read would go: what execution_dispatched records for
// it before it is sent. It sends nothing of the client's, and nothing at all
// where the pool has a live connection already.
func (db *DB) ReadUpstream(ctx context.Context) (Upstream, error) {
	up := db.reader.last.Load()
	if up == nil {
		l, err := db.reader.acquire(ctx)
		if err != nil {
			return Upstream{}, err
		}
		up = &l.upstream
		l.release()
	}
	// Which connection of the pool will serve is not known yet.
	u := *up
	u.BackendPID, u.BackendStart = 0, ""
	return u, nil
}

// DispatchRead is what evidence records before a read is sent: where it would go,
// and under what.
func (db *DB) DispatchRead(ctx context.Context, st *Statement, lim Limits) (Dispatch, error) {
	up, err := db.ReadUpstream(ctx)
	if err != nil {
		return Dispatch{}, err
	}
	bound := db.bound(lim)
	return Dispatch{Upstream: up, Limits: lim, Settings: db.reader.settings(int(db.reader.major.Load()), bound, st.Trace, st.Settings)}, nil
}

// Read runs a safe read behind the second fence: one write of BEGIN READ ONLY,
// the statement, ROLLBACK. Evidence of the decision was made durable before. The
// end of ctx cancels it. The Result is complete also beside an error, which is
// the fault for the client; 25006 shows as ReasonReadFence: classification and
// database disagree, nothing was applied.
func (db *DB) Read(ctx context.Context, executionID string, st Statement, lim Limits, sink Sink) (Result, error) {
	res, err := db.readOn(ctx, executionID, st, db.bound(lim), sink)
	if err == nil && db.finishSink(ctx, sink) != nil { // the connection is back: a look-up may need it
		failed := aborted(ReasonResultTooLarge, BasisReadOnly)
		failed.Bytes, failed.Duration, failed.Notices = res.Bytes, res.Duration, res.Notices
		return failed, tooLargeFault()
	}
	return res, err
}

func (db *DB) readOn(ctx context.Context, executionID string, st Statement, lim Limits, sink Sink) (Result, error) {
	l, err := db.reader.acquire(ctx)
	if err != nil {
		return aborted(ReasonDBError, BasisReadOnly), err
	}
	defer l.release()
	if err := l.reads(st.Major); err != nil {
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
	batch = append(batch, cmd, rollback)
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
