package pgexec

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	cancelWait   = time.Second     // for a CancelRequest, and then for the server to heed it
	rollbackWait = 2 * time.Second // for the answer to a ROLLBACK
)

// A ran is how the conversation about a client's statement ended.
type ran struct {
	cmd     *command
	refused *pgconn.PgError // the server's first error
	err     error           // why the conversation broke off, nil when it did not
	asked   bool            // somebody asked to cancel it
	unsent  bool            // before anything of it was sent
	timeout bool            // it broke off at the gate's own deadline
	late    bool            // the server ended the block for its time
	reason  string          // why the gate lets it not run, or not stand, with fault
	fault   error
	took    time.Duration
}

// over reports whether the result exceeded a cap on rows or bytes.
func (r *ran) over() bool { return r.cmd.suspended || overCap(r.err) }

// run sends a batch with the client's statement in it. When the conversation
// breaks off while the server may still work on it, it is asked to stop.
func (db *DB) run(ctx context.Context, l *lease, executionID string, deadline time.Time, cmd *command, batch ...segment) *ran {
	begun := time.Now()
	if l.kind == reader {
		l.used = true
	} else {
		l.dirty = true
	}
	l.begin()
	if !db.cancellable(executionID, l) {
		l.finish()
		l.dirty = true // what would have cleaned the session was not sent either
		return &ran{cmd: cmd, asked: true, unsent: true}
	}
	l.ran = true
	refused, err := l.exchange(ctx, deadline, batch...)
	r := &ran{cmd: cmd, refused: lastError(refused, err), err: err}
	if l.found(cmd, r.refused) {
		db.types.forget()
		r.reason, r.fault = ReasonCatalogChanged, catalogFault()
	}
	r.late = err != nil && l.block && overtime(r.refused)
	switch hungUp := ctx.Err() != nil; {
	case err == nil:
	case hungUp:
		db.abandon(l, true)
	case isTimeout(err):
		r.timeout = true
		db.abandon(l, false)
	case overCap(err):
		l.cancel(context.Background(), false)
	case r.late:
	default:
		l.pool.lost()
	}
	db.Forget(executionID)
	r.asked = l.finish()
	r.took = time.Since(begun)
	return r
}

// abandon asks the server to end what runs and gives it a moment to do so, so
// that the answer to the client is not ahead of the database.
func (db *DB) abandon(l *lease, asked bool) {
	l.cancel(context.Background(), asked)
	if l.net.SetDeadline(time.Now().Add(cancelWait)) != nil {
		return
	}
	for {
		msg, err := l.receive()
		if err != nil {
			return
		}
		if _, idle := msg.(*pgproto3.ReadyForQuery); idle {
			return
		}
	}
}

// outcomeOf sorts the ways in which a statement can fail before COMMIT was sent;
// basis says why it is certain that nothing was applied. ok means it did not.
func (db *DB) outcomeOf(r *ran, basis string) (res Result, f error, ok bool) {
	switch {
	case r.asked:
		return aborted(ReasonCancelled, basis).withServer(r.refused), cancelledFault(), false
	case r.timeout:
		return timedOut(basis, ""), timeoutFault().With("outcome", OutcomeAborted), false
	case r.over():
		return aborted(ReasonResultTooLarge, basis), tooLargeFault(), false
	case r.fault != nil:
		return aborted(r.reason, basis), r.fault, false
	case r.late:
		return aborted(ReasonOvertime, basis).withServer(r.refused), overtimeFault(), false
	case r.err != nil:
		return aborted(lostReason(basis), basis).withServer(r.refused), lostFault(r.refused, r.err), false
	case r.refused == nil:
		return Result{}, nil, true
	case r.refused.Code == "57014" && !raised(r.refused):
		return timedOut(basis, r.refused.Code).withServer(r.refused), timeoutFault().With("sqlstate", "57014").With("outcome", OutcomeAborted), false
	}
	return aborted(ReasonDBError, basis).withServer(r.refused), db.cfg.statementFault(r.refused), false
}

// lostReason is the reason_code of a lost connection.
func lostReason(basis string) string {
	if basis == BasisCommitNeverSent {
		return ReasonCommitNeverSent
	}
	return ReasonDBError
}

// stamp adds what every result carries.
func (r *ran) stamp(res Result, l *lease) Result {
	res.Bytes = r.cmd.bytes
	res.Duration = r.took
	res.Notices = l.notices
	return res
}

var errEnded = errors.New("the statement ended its transaction")
