package pgexec

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"writegate/commands/fault"
)

// BeginOptions say what a write will need.
type BeginOptions struct {
	ExecutionID string // for Cancel, and for the marker
	DDL         bool   // classes ddl, dcl and maintenance: the role for them
	UserCode    bool   // the statement calls code that is not built in, as far as its text tells
	Limits      Limits
	Trace       string // trace id and span id of the caller; "" = none
	Settings    Settings
	Relations   []string // schema.table, all that the statement names
	NoSnapshot  bool     // a LOCK or SHOW: it applies nothing, and takes no snapshot
	Meaning     Meaning  // by which the statement was judged
	dryRun      bool     // it is never committed, so no marker is left
}

// A Dispatch is what execution_dispatched records about where a statement goes.
type Dispatch struct {
	XID      uint64            // transaction id; 0 for a statement that runs alone
	Marker   bool              // a row with the execution id is in the marker table, if the write is applied
	Upstream Upstream          // with the backend
	Limits   Limits            // as they apply
	Settings map[string]string // what differs from the pins
}

// A Tx is the transaction of one write. Begin sends nothing of the client's;
// then evidence is made durable; then Exec, then Commit. One of Commit and
// Rollback must be called; each call after the Tx has ended does nothing.
type Tx struct {
	db       *DB
	lease    *lease
	opts     BeginOptions
	dispatch Dispatch
	counted  rowCounts // before the statement
	result   Result
	ran      *ran
	ended    bool
}

// Begin leases a writer and opens a transaction on it: BEGIN, the transaction id and the pins, and the marker, in one round trip. A connection that fails in it
// is replaced once, since nothing of the client's was sent.
func (db *DB) Begin(ctx context.Context, opts BeginOptions) (*Tx, error) {
	opts.Limits = db.bound(opts.Limits)
	tx := &Tx{db: db, opts: opts}
	p := db.writerFor(opts.DDL)
	since, waits := time.Now(), int64(1)
	p.begins.Add(waits)
	ready := func(c *conn, deadline time.Time) error { // open looks
		p.begins.Add(-waits)
		waits = 0
		if err := c.heard(deadline); err != nil || c.begunSince(since) {
			return err
		}
		return c.reset(deadline)
	}
	err := p.onWriter(ctx, ready, func(l *lease) error {
		tx.lease = l
		return tx.open(ctx)
	})
	p.begins.Add(-waits)
	if err != nil {
		return nil, err
	}
	return tx, nil
}

// retried is an error of reads, which another connection may do better where this one broke.
func (l *lease) retried(err error) error {
	if l.broken {
		return &beginError{fault.Of(err)}
	}
	return err
}

// writerFor is the pool of a write.
func (db *DB) writerFor(ddl bool) *pool {
	if ddl {
		return db.definer
	}
	return db.writer
}

// A beginError is what another connection may do better.
type beginError struct{ fault *fault.Fault }

func (e *beginError) Error() string { return e.fault.Error() }

// onWriter leases a connection of those that write, by what ready does first, and has open
// make it ready, in which nothing of the client's is sent. Where that fails with a beginError it
// is tried once more on another connection; any other error is final.
func (p *pool) onWriter(ctx context.Context, ready func(*conn, time.Time) error, open func(*lease) error) error {
	const attempts = 2
	renewed := 0
	for attempt := 1; ; attempt++ {
		l, err := p.acquireAs(ctx, ready)
		if err != nil {
			return err
		}
		err = open(l)
		if errors.Is(err, errNotClean) {
			if failed := l.afresh(); failed != nil {
				p.unclean(l.conn, failed)
				l.broken = true
				l.release()
				attempt-- // of this session alone
				continue
			}
			err = open(l)
		}
		if err == nil && !l.outdated {
			return nil
		}
		if l.txStatus != 'I' {
			l.rollback(time.Now().Add(rollbackWait))
		}
		if l.broken && ctx.Err() == nil {
			p.lost()
		}
		outdated := l.outdated
		l.release()
		var failed *beginError
		switch {
		case outdated && renewed < cap(p.slots):
			p.purge(true) // they are as old
			renewed, attempt = renewed+1, attempt-1
		case outdated:
			return driftFault("a setting of the server's files, again and again")
		case !errors.As(err, &failed):
			return err
		case ctx.Err() != nil:
			return endedWaiting(ctx)
		case attempt == attempts:
			return failed.fault
		}
	}
}

// open is step W1.
func (tx *Tx) open(ctx context.Context) error {
	l, lim := tx.lease, tx.opts.Limits
	if err := l.reads(ctx, tx.opts.Meaning); err != nil {
		return l.retried(err)
	}
	settings := l.settings(lim, tx.opts.Trace, tx.opts.Settings)
	var batch segment
	begun := l.ahead
	if l.ahead = nil; begun == nil {
		begun = l.beginning()
		batch = begun.batch
	}
	var marker *command
	if tx.db.cfg.MarkerTable != "" && !tx.opts.dryRun {
		marker = putMarker(tx.db.cfg.MarkerTable, tx.opts.ExecutionID, markerExec)
		batch = append(batch, marker)
	}
	var counted *oneRow
	if lim.MaxRows != nil { // behind the marker, which is not the client's
		var count *command
		count, counted = query(countSQL)
		batch = append(batch, count)
	}
	batch = append(batch, set("LOCAL", settings)...) // behind what is the gate's own: that has the gate's time
	if len(tx.opts.Settings) > 0 {
		l.expect(settings)
	}
	var refused *pgconn.PgError
	var err error
	if len(batch) > 0 {
		refused, err = l.exchange(ctx, time.Now().Add(tx.db.cfg.ConnectTimeout), batch)
	}
	if err == nil && len(begun.shown.values) > 0 && !begun.seen() {
		return errNotClean
	}
	if marker != nil && err == nil && len(begun.shown.values) > 0 && !taken(marker) && (refused == nil || refused.Code != "25006") {
		return &beginError{tx.db.markerFault(sqlStateOf(refused), errors.New("no marker was left"))}
	}
	prepared := len(begun.shown.values) > 0 && (counted == nil || len(counted.values) > 0)
	switch {
	case err == nil && refused != nil && prepared && (marker == nil || taken(marker)):
		return tx.db.settingFault(refused)
	case err != nil || refused != nil:
		return &beginError{beginFault(refused, err)}
	}
	if l.compare(begun.shown.text(lookSettings)); l.drift != "" {
		return &beginError{driftFault(l.drift)}
	}
	xid, err := strconv.ParseUint(begun.shown.text(lookID), 10, 64)
	if err != nil {
		return &beginError{beginFault(nil, errProtocol)}
	}
	if lim.MaxRows != nil {
		if tx.counted, err = readCounts(counted); err != nil {
			return &beginError{beginFault(nil, err)}
		}
		if err := tx.counted.countable(tx.opts.UserCode); err != nil {
			return err
		}
	}
	tx.dispatch = Dispatch{XID: xid, Marker: marker != nil, Upstream: l.upstream, Limits: lim, Settings: settings}
	return nil
}

// settingFault is the error of a statement whose settings the server refuses. They
// are its client's, as its text is, and the database is well.
func (db *DB) settingFault(refused *pgconn.PgError) error {
	f := db.cfg.statementFault(refused)
	if f.Code == fault.DBUnavailable || f.Code == fault.DBConnectionFailed {
		return &beginError{beginFault(refused, nil)}
	}
	return f
}

func sqlStateOf(e *pgconn.PgError) string {
	if e == nil {
		return ""
	}
	return e.Code
}

// beginFault is the fault of a transaction that could not be opened.
func beginFault(refused *pgconn.PgError, err error) *fault.Fault {
	e := lastError(refused, err)
	switch {
	case e != nil && !lostCode(e.Code):
		return fault.New(fault.DBUnavailable, "The database could not begin a transaction. Nothing was sent; send the request again later.").
			With("sqlstate", e.Code).Because(e)
	case e != nil && unavailableClass(e.Code):
		return fault.New(fault.DBUnavailable, "The database is shutting down or starting. Nothing was sent; send the request again later.").
			With("sqlstate", e.Code).Because(e)
	}
	return fault.New(fault.DBConnectionFailed, "The connection to the database was lost before the statement was sent. Nothing was executed; send the request again.").Because(err)
}

// Dispatch is what evidence records before the statement is sent.
func (tx *Tx) Dispatch() Dispatch { return tx.dispatch }

// Exec sends the statement, and behind it SET CONSTRAINTS ALL IMMEDIATE, so that
// deferred checks fail as part of it; then it checks the caps. It does not heed
// the end of ctx: a client that hangs up does not cancel a write. On an error
// the transaction is rolled back and ended, and the Result is final; without one
// only Commit's Result is.
func (tx *Tx) Exec(ctx context.Context, st Statement, sink Sink) (Result, error) {
	if tx.ended || tx.ran != nil {
		return Result{}, fault.New(fault.Internal, "The transaction has run its statement already.")
	}
	l, lim := tx.lease, tx.opts.Limits
	cmd := client(st, lim, sink)
	before, behind := l.comparing(cmd)
	batch := slices.Concat(before, segment{cmd}, l.beforeCommit(), behind)
	var counted *oneRow
	if lim.MaxRows != nil {
		var count *command
		count, counted = query(countSQL)
		batch = append(batch, count)
	}
	l.notices = nil
	tx.ran = tx.db.run(context.WithoutCancel(ctx), l, tx.opts.ExecutionID, tx.db.deadline(lim), cmd, batch)
	r := tx.ran
	if r.err == nil && l.txStatus == 'I' {
		return tx.lostTrack()
	}
	if res, f, ok := tx.db.outcomeOf(r, BasisCommitNeverSent); !ok {
		return tx.fail(res, f)
	}
	if l.drift != "" {
		return tx.fail(aborted(ReasonSettingsDrift, ""), driftFault(l.drift))
	}
	tx.result = Result{State: Success, CommandTag: cmd.tag, RowCount: rowCount(cmd)}
	if lim.MaxRows != nil {
		if f := tx.result.countRows(tx.counted, counted, *lim.MaxRows); f != nil {
			return tx.fail(aborted(ReasonRowLimit, ""), f)
		}
	}
	if tx.db.finishSink(ctx, sink) != nil {
		return tx.fail(aborted(ReasonResultTooLarge, ""), tooLargeFault())
	}
	return r.stamp(tx.result, l), nil
}

// beforeCommit is what goes behind the last statement of a client's: the deferred
// checks, so that they fail as part of it, and the setting that makes a commit
// last, which any function may have switched off for its transaction. The query of a
// cursor WITH HOLD that a function has declared would run in COMMIT, behind all that is
// counted and checked; the cursor ends with the session's cleaning at the latest. Foreign tables
// are looked for at the same time: the statement, or somebody else, may have made them.
func (c *conn) beforeCommit() segment {
	lasts, _ := c.looking(look{commit: true})
	lasts.sink = foreignTables{c}
	return segment{own("SET CONSTRAINTS ALL IMMEDIATE"), own("CLOSE ALL"), lasts}
}

// foreignTables takes the answer to whether there are any.
type foreignTables struct{ *conn }

func (foreignTables) Fields([]Field) error { return nil }

func (t foreignTables) Row(v [][]byte) error {
	t.foreign = t.foreign || string(v[lookForeign]) == "t"
	return nil
}

// rowCount is the tag's number, or the rows that came where the tag has none.
func rowCount(cmd *command) int64 {
	return max(tagRows(cmd.tag), cmd.rows)
}

// fail rolls back and completes a result with how certain that is.
func (tx *Tx) fail(res Result, f error) (Result, error) {
	basis := BasisCommitNeverSent
	if !tx.lease.cancelled && tx.lease.rollback(time.Now().Add(rollbackWait)) {
		basis = BasisRollbackAcknowledged
	}
	if res.Settled != nil {
		res.Settled.Basis = basis
	} else {
		res.Basis = basis
	}
	if tx.ran.err != nil {
		tx.db.endOrphan(tx.lease)
	}
	res.RowsChanged = tx.result.RowsChanged
	res = tx.ran.stamp(res, tx.lease)
	tx.end()
	return res, f
}

// lostTrack answers a statement that ended its own transaction: what it did is
// not known, and nothing may be claimed. Classification keeps such texts away.
func (tx *Tx) lostTrack() (Result, error) {
	tx.lease.broken = true
	res := Result{State: Unknown, Step: StepStatement, Cause: CauseConnectionLost}
	res = tx.ran.stamp(res.withServer(tx.ran.refused), tx.lease)
	tx.end()
	return res, unknownFault("The statement ended its own transaction").Because(errEnded)
}

// Commit is step W5: COMMIT on its own. It is never cancelled, since a cancel
// would only drop the wait for a standby. Without an answer nothing is known.
func (tx *Tx) Commit(ctx context.Context) (Result, error) {
	if tx.ended || tx.ran == nil {
		return Result{}, fault.New(fault.Internal, "There is no statement to commit.")
	}
	defer tx.end()
	begun := time.Now()
	res, err := tx.db.commit(ctx, tx.lease, tx.result)
	tx.ran.took += time.Since(begun)
	if tx.opts.DDL {
		tx.db.types.forget()
	}
	return tx.ran.stamp(res, tx.lease), err
}

// commit sends COMMIT on its own and says what its answer means. done is the
// result of what is committed where the database says that it is.
func (db *DB) commit(ctx context.Context, l *lease, done Result) (Result, error) {
	instead := func(why error) (Result, error) {
		res := aborted(ReasonDBError, BasisCommitNeverSent)
		if l.rollback(time.Now().Add(rollbackWait)) {
			res.Basis = BasisRollbackAcknowledged
		}
		return res, why
	}
	if newest := db.timelines.behind(&l.upstream); newest != "" {
		return instead(fault.New(fault.DBQueryFailed, "The transaction was rolled back in the place of its COMMIT: the database server that it ran at was left behind by a failover. Nothing was applied; send it again, under a new idempotency key where it has one.").
			With("reason", staleReason).With("timeline", l.upstream.Timeline).With("newest_timeline", newest).With("retryable", true))
	}
	if err := db.mayCommit(); err != nil {
		return instead(err)
	}
	commit := own("COMMIT")
	l.leave()
	refused, err := l.exchange(context.WithoutCancel(ctx), time.Now().Add(db.cfg.CommitTimeout), segment{commit})
	switch {
	case commit.tag == "COMMIT": // it stands, whatever became of the connection behind it
		done.Basis = BasisCommitAcknowledged
		if notReplicated(l.notices) {
			done.Warnings = append(done.Warnings, WarningNotReplicated)
		}
		return done, nil
	case err != nil:
		if !isTimeout(err) && !(l.block && overtime(lastError(refused, err))) {
			l.pool.lost()
		}
		res := Result{State: Unknown, Step: StepCommit, Cause: cause(err), Elsewhere: l.foreign}
		return res.withServer(lastError(refused, err)), unknownFault("The database did not answer to COMMIT").Because(err)
	case refused != nil:
		res := aborted(ReasonDBError, BasisRollbackAcknowledged).withServer(refused)
		res.Elsewhere = l.reached()
		return res, db.cfg.refusedFault(refused)
	}
	f := fault.New(fault.DBQueryFailed, "The database rolled the transaction back instead of committing it. Nothing was applied; look at what the statement calls before you send it again.").With("retryable", false)
	res := aborted(ReasonRolledBack, BasisRollbackAcknowledged)
	res.Elsewhere = l.reached()
	return res, f
}

// mayCommit is Config.MayCommit, where there is one.
func (db *DB) mayCommit() error {
	if db.cfg.MayCommit == nil {
		return nil
	}
	return db.cfg.MayCommit()
}

// reached tells whether a transaction that was not committed may have reached foreign
// servers. What was seen of them before COMMIT was seen in its own snapshot, and may have
// been dropped by it, so the server is asked again.
func (l *lease) reached() bool {
	again, row := query("SELECT " + foreignSQL)
	refused, err := l.exchange(context.Background(), time.Now().Add(rollbackWait), segment{again})
	return l.foreign || err == nil && refused == nil && row.text(0) == "t"
}

func cause(err error) string {
	if isTimeout(err) {
		return CauseTimeout
	}
	return CauseConnectionLost
}

// Rollback gives the transaction up. It does nothing after the Tx has ended, so
// it can be deferred.
func (tx *Tx) Rollback() {
	if tx.ended {
		return
	}
	tx.lease.rollback(time.Now().Add(rollbackWait))
	tx.end()
}

func (tx *Tx) end() {
	if !tx.ended {
		tx.ended = true
		tx.lease.release()
	}
}
