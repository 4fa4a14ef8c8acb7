package pgexec

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"writegate/commands/fault"
)

// Write sends the statement for which DispatchWrite was called. last says that
// the block ends behind it: where it is the only write, the deferred checks then fail
// as part of it. It does not heed the end of ctx. The Result of a failure is final: whatever becomes of
// the block, nothing of the statement is applied. That of a success is final only
// with the block's end; its Basis is that of Commit. In a Result that is Unknown
// and not Settled the statement ended the transaction itself: then nothing is
// known of the writes before it either.
func (b *Block) Write(ctx context.Context, st Statement, last bool, sink Sink) (Result, error) {
	if b.lost || b.ended || b.next == nil {
		return Result{}, fault.New(fault.Internal, "No write was dispatched in the transaction.")
	}
	l, o := b.lease, *b.next
	last = last && !b.unchecked // else Commit makes the deferred checks: they are of the writes before, too
	b.next, b.settings = nil, b.each(o.Limits, o)
	b.unchecked, b.ddl = true, b.ddl || o.DDL
	cmd := client(st, o.Limits, sink)
	var batch segment
	if last {
		batch = l.beforeCommit()
	}
	batch = append(batch, b.unset(b.settings)...)
	var counted *oneRow
	if o.Limits.MaxRows != nil {
		var count *command
		count, counted = query(countSQL)
		batch = append(batch, count)
	}
	shows, shown := l.looking(look{pins: true})
	if !o.NoSnapshot { // a LOCK changes no setting, and ends no transaction
		batch = append(batch, shows)
	}
	l.notices = nil
	r := b.perform(context.WithoutCancel(ctx), o, cmd, set("LOCAL", b.settings), batch)
	if r.err == nil && !r.unsent && r.fault == nil && !b.stands(r, o, shown.text(lookID)) {
		return b.lostTrack(r)
	}
	if res, f, ok := b.db.outcomeOf(r, BasisCommitNeverSent); !ok {
		return b.fail(r, res, b.refusedWrite(r, f))
	}
	b.unchecked = !last
	if !o.NoSnapshot {
		b.look(shown.text(lookSettings))
		b.temporary = b.temporary || shown.text(lookTemporary) == "t"
	}
	if l.drift != "" {
		return b.fail(r, aborted(ReasonSettingsDrift, ""), driftFault(l.drift))
	}
	res := Result{State: Success, CommandTag: cmd.tag, RowCount: rowCount(cmd)}
	if counted != nil {
		if f := res.countRows(b.counted, counted, *o.Limits.MaxRows); f != nil {
			failed := aborted(ReasonRowLimit, "")
			failed.RowsChanged = res.RowsChanged
			return b.fail(r, failed, f)
		}
	}
	if b.db.finishSink(ctx, sink) != nil {
		return b.fail(r, aborted(ReasonResultTooLarge, ""), tooLargeFault())
	}
	if counted != nil {
		b.limited = append(b.limited, limitedRows{*res.RowsChanged, *o.Limits.MaxRows})
	}
	return r.stamp(res, l), nil
}

// refusedWrite is the fault of what ran. That a READ ONLY transaction may not write is
// its client's doing, and no trouble of the server.
func (b *Block) refusedWrite(r *ran, f error) error {
	if r.err == nil && r.refused != nil && r.refused.Code == "25006" && b.opts.ReadOnly {
		return b.db.cfg.refusedFault(r.refused)
	}
	return f
}

// stands reports whether the server is in the transaction in which the gate takes
// it to be: after an error it is the one that failed, else that of the id which
// the evidence has.
func (b *Block) stands(r *ran, o BeginOptions, xid string) bool {
	if r.refused != nil {
		return b.lease.txStatus == 'E'
	}
	return b.lease.txStatus == 'T' && (o.NoSnapshot || xid == strconv.FormatUint(b.xid, 10))
}

// look compares the settings behind a statement with those before BEGIN, but for
// what the block itself set: the next statement was judged under the pins.
func (b *Block) look(shown string) {
	l := b.lease
	if shown != l.settled && l.drift == "" {
		except := map[string]string{"synchronous_commit": ""} // a reload, or code: before COMMIT it is what it was
		maps.Copy(except, b.own)
		l.drift = l.watch.differenceBut(except, l.settled, shown)
	}
}

// fail completes a result with how certain it is that nothing was applied. The
// block goes on to ROLLBACK, or to ROLLBACK TO where the conversation is whole
// and the settings are the pinned ones. What only the gate refuses of a write it
// has the server refuse as well: the transaction may still be committed, and then
// without it.
func (b *Block) fail(r *ran, res Result, f error) (Result, error) {
	b.failed = true
	if res.Basis != BasisReadOnly {
		if r.err == nil && b.lease.drift == "" && b.lease.txStatus == 'T' {
			b.undo()
		}
		basis := BasisCommitNeverSent
		if r.err == nil && b.lease.txStatus == 'E' {
			basis = BasisRollbackAcknowledged
		}
		if res.Settled != nil && res.Settled.Basis != BasisReadOnly {
			res.Settled.Basis = basis
		} else if res.Settled == nil {
			res.Basis = basis
		}
	}
	res = r.stamp(res, b.lease)
	switch {
	case b.lost:
	case r.err != nil:
		b.over = r.late
		b.broke()
	case b.lease.drift != "":
		b.quit()
	}
	return res, f
}

// Fail has a block fail that an error of the gate's own ends, as it would have at the
// server: it undoes and lets go what was done since the last savepoint.
func (b *Block) Fail() {
	if !b.ended && !b.lost && b.lease.txStatus == 'T' {
		b.failed = true
		b.undo()
	}
}

// undo has the server fail the transaction, by naming a savepoint that is none:
// an error undoes all since the last savepoint.
func (b *Block) undo() {
	refused, err := b.lease.exchange(context.Background(), time.Now().Add(rollbackWait), b.settled(own(rollbackTo+b.newName()))...)
	if err != nil || refused == nil || b.lease.txStatus != 'E' {
		b.quit()
	}
}

// quit rolls back at once and gives the connection up: the server's state is not
// the one that the gate takes it to be, or its settings are not.
func (b *Block) quit() {
	l := b.lease
	l.rollback(time.Now().Add(rollbackWait))
	l.broken = true
	b.lose()
}

// settled is a segment behind which nothing of a cancel is left: where the server
// was asked to cancel something, an empty exchange takes what is heeded only now.
func (b *Block) settled(cmds ...*command) []segment {
	if b.lease.cancelled {
		return []segment{{}, cmds}
	}
	return []segment{cmds}
}

// lostTrack answers a statement that ended the block's transaction.
func (b *Block) lostTrack(r *ran) (Result, error) {
	b.lease.broken = true
	res := Result{State: Unknown, Step: StepStatement, Cause: CauseConnectionLost}
	res = r.stamp(res.withServer(r.refused), b.lease)
	b.lose()
	return res, unknownFault("The statement ended its own transaction").Because(errEnded)
}

// The words before a savepoint's name.
const (
	setSavepoint = "SAVEPOINT "
	rollbackTo   = "ROLLBACK TO SAVEPOINT "
	release      = "RELEASE SAVEPOINT "
)

// newName is the name of a savepoint: another one each time, of this block alone,
// and not to be guessed. No name of a client's reaches the server, so what the
// server says of a name is about the savepoint that the gate means.
func (b *Block) newName() string {
	if b.names == "" {
		b.names = "gate_" + rand.Text()
	}
	b.named++
	return quoteName(b.names + "_" + strconv.Itoa(b.named))
}

// Read runs a safe read in the block behind a fence of its own: a savepoint,
// under which the transaction is read-only, and back, in one write. What a
// function of a view did to the session is undone as well, so a READ ONLY block
// has the savepoint too. The end of ctx cancels the read, and the block with it.
func (b *Block) Read(ctx context.Context, o BeginOptions, st Statement, sink Sink) (Result, error) {
	if err := b.usable(); err != nil {
		return aborted(ReasonDBError, BasisReadOnly), err
	}
	o.Limits = b.db.bound(o.Limits)
	l, lim := b.lease, o.Limits
	cmd := client(st, lim, sink)
	fence := b.newFence(o)
	l.notices = nil
	r := b.perform(ctx, o, cmd, fence.before, fence.behind)
	b.unfence(r, fence)
	res, f, ok := b.db.outcomeOf(r, BasisReadOnly)
	if !ok {
		res, f = fenced(r, res, f)
		return b.fail(r, res, f)
	}
	if l.drift != "" {
		return b.fail(r, aborted(ReasonSettingsDrift, BasisReadOnly), driftFault(l.drift))
	}
	if b.db.finishSink(ctx, sink) != nil {
		return b.fail(r, aborted(ReasonResultTooLarge, BasisReadOnly), tooLargeFault())
	}
	res = Result{State: Success, CommandTag: cmd.tag, RowCount: cmd.rows, Basis: BasisReadRolledBack}
	return r.stamp(res, l), nil
}

// A fence is the savepoint around a safe read, under a name of its own.
type fence struct {
	name           string
	before, behind segment
	set            *command // SAVEPOINT
	gone           *command // RELEASE, behind ROLLBACK TO
	holds          []string // relations whose locks stay when it is gone
}

// newFence makes the fence of one read. ROLLBACK TO gives up the locks that the
// read takes, and at a server they stay to the end of the transaction: so the
// relations that it names are parsed before, which locks them and those behind
// views, and runs nothing. A serializable transaction that may write takes its
// snapshot before it is made read-only for a moment: the server decides by its
// first snapshot whether it has to watch what the transaction reads.
func (b *Block) newFence(o BeginOptions) *fence {
	settings, waits := b.each(o.Limits, o), map[string]string{}
	f := &fence{name: b.newName()}
	f.set = own(setSavepoint + f.name)
	switch lock := b.holding(f, o.Relations); {
	case lock != nil:
		for _, name := range []string{"statement_timeout", "lock_timeout"} {
			if v, ok := settings[name]; ok {
				waits[name] = v
			}
		}
		f.before = append(set("LOCAL", waits), lock)
	case b.opts.Isolation == "serializable" && !b.opts.ReadOnly && !o.NoSnapshot:
		f.before = append(f.before, own("SELECT 1"))
	}
	f.before = append(f.before, f.set)
	if !b.opts.ReadOnly {
		f.before = append(f.before, own("SET LOCAL transaction_read_only = on"))
	}
	f.before = append(f.before, set("LOCAL", settings)...)
	f.behind = append(f.undo(), b.unset(waits)...)
	return f
}

// holding is the command that locks relations, nil where they are locked already
// and where there are none. What is the server's own nobody drops or rewrites. A
// schema is not written where it is that of the search path, since the name may be
// one of a temporary table; where more than one dot stands in a name it is not to
// be told what is the schema, and the lock is not kept.
func (b *Block) holding(f *fence, relations []string) *command {
	var from []string
	for _, relation := range relations {
		schema, name, _ := strings.Cut(relation, ".")
		if name == "" || name == "*" || strings.Contains(name, ".") || strings.HasPrefix(schema, "pg_") || schema == "information_schema" || slices.Contains(b.held, relation) {
			continue
		}
		f.holds = append(f.holds, relation)
		name = quoteName(name)
		if !slices.Contains(b.db.cfg.schemas(), schema) {
			name = quoteName(schema) + "." + name
		}
		from = append(from, name+" AS r"+strconv.Itoa(len(from)))
	}
	if len(from) == 0 {
		return nil
	}
	return describing("SELECT FROM "+strings.Join(from, ", "), nil, nil)
}

// undo is what goes behind the read.
func (f *fence) undo() segment {
	f.gone = own(release + f.name)
	return segment{own(rollbackTo + f.name), f.gone}
}

func (f *fence) around(cmd *command) segment {
	return slices.Concat(f.before, segment{cmd}, f.behind)
}

// unfence sees to it that the fence is gone, whatever became of the read: after an
// error the server has skipped what stood behind it. A block in which that cannot
// be had is given up.
func (b *Block) unfence(r *ran, f *fence) {
	if f.set.tag != "" {
		b.held = append(b.held, f.holds...)
	} else if r.refused != nil {
		r.refused.Position = 0 // in a text that is not the client's
	}
	if r.err != nil || f.set.tag == "" || f.gone.tag != "" { // fail gives it up; no fence; gone already
		return
	}
	refused, err := b.lease.exchange(context.Background(), time.Now().Add(rollbackWait), b.settled(f.undo()...)...)
	switch {
	case err != nil:
		b.brokeOff(refused, err)
	case refused != nil || b.lease.txStatus != 'T':
		b.quit()
	}
}

// A Savepoint is one that Block.Savepoint set, for Release and RollbackTo.
type Savepoint struct {
	name     string
	limited  int  // of the block, before it
	held     int  // of the block, before it
	readOnly bool // the transaction, before it
}

// Savepoint sets a savepoint, under a name that nobody else knows.
func (b *Block) Savepoint(ctx context.Context) (Savepoint, error) {
	if err := b.usable(); err != nil {
		return Savepoint{}, err
	}
	s := Savepoint{b.newName(), len(b.limited), len(b.held), b.opts.ReadOnly}
	return s, b.control(ctx, setSavepoint+s.name, true)
}

// Release gives a savepoint up, with those behind it, and keeps what was done
// since; that the transaction is READ ONLY since then is not kept.
func (b *Block) Release(ctx context.Context, s Savepoint) error {
	if err := b.usable(); err != nil {
		return err
	}
	if err := b.control(ctx, release+s.name, false); err != nil {
		return err
	}
	b.opts.ReadOnly = s.readOnly
	return nil
}

// RollbackTo undoes what was done since a savepoint, which stays; those behind it
// are gone. A failed block goes on behind it, unless its connection is gone.
// Without an error the server has said so of this very savepoint.
func (b *Block) RollbackTo(ctx context.Context, s Savepoint) error {
	switch {
	case b.lost:
		return b.gone()
	case b.ended:
		return b.usable()
	}
	b.next = nil
	if err := b.control(ctx, rollbackTo+s.name, false); err != nil {
		return err
	}
	b.failed, b.limited, b.held, b.opts.ReadOnly = false, b.limited[:s.limited], b.held[:s.held], s.readOnly
	return nil
}

// temporarySQL names the relations of the session's own schema. One that is no plain
// table, or has rules or triggers, may hand a write of it on to another.
const temporarySQL = `SELECT pg_catalog.jsonb_object_agg(c.relname, c.relkind OPERATOR(pg_catalog.<>) 'r'::pg_catalog."char" OR c.relhasrules OR c.relhastriggers),
pg_catalog.bool_or(EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhrelid OPERATOR(pg_catalog.=) c.oid))
FROM pg_catalog.pg_class c WHERE c.relnamespace OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema()`

// HadTemporary tells whether there was anything temporary behind one of the writes so
// far, whoever made it: the statement, or a trigger.
func (b *Block) HadTemporary() bool { return b.temporary }

// Temporary asks which temporary relations there are by now, where there was anything
// temporary. The value tells whether a write of the relation may reach others; inherits,
// whether rows of one are among those of another table.
func (b *Block) Temporary(ctx context.Context) (relations map[string]bool, inherits bool, err error) {
	if !b.temporary {
		return nil, false, nil
	}
	if err := b.usable(); err != nil {
		return nil, false, err
	}
	c, row := query(temporarySQL)
	if err := b.ask(ctx, c, true); err != nil {
		return nil, false, err
	}
	if text := row.text(0); text != "" {
		err = json.Unmarshal([]byte(text), &relations)
	}
	return relations, row.text(1) == "t", err
}

// Modes are those of the transaction as it is now: READ ONLY ends with the
// savepoint behind which it began.
func (b *Block) Modes() BlockOptions { return b.opts }

// SetModes makes Isolation, ReadOnly and Deferrable those of to, as SET TRANSACTION
// does. A refusal of the server is one of a statement, and fails the block.
func (b *Block) SetModes(ctx context.Context, to BlockOptions) error {
	if err := b.usable(); err != nil {
		return err
	}
	var modes []string
	if level(to.Isolation) != level(b.opts.Isolation) {
		modes = append(modes, "ISOLATION LEVEL "+strings.ToUpper(level(to.Isolation)))
	}
	if to.ReadOnly != b.opts.ReadOnly {
		modes = append(modes, map[bool]string{true: "READ ONLY", false: "READ WRITE"}[to.ReadOnly])
	}
	if to.Deferrable != b.opts.Deferrable {
		modes = append(modes, map[bool]string{true: "DEFERRABLE", false: "NOT DEFERRABLE"}[to.Deferrable])
	}
	if len(modes) == 0 {
		return nil
	}
	if err := b.control(ctx, "SET TRANSACTION "+strings.Join(modes, ", "), true); err != nil {
		return err
	}
	b.opts.Isolation, b.opts.ReadOnly, b.opts.Deferrable = to.Isolation, to.ReadOnly, to.Deferrable
	return nil
}

// level is an isolation level by its name.
func level(isolation string) string {
	if isolation == "" {
		return "read committed"
	}
	return isolation
}

// control sends a statement about savepoints or modes. The server has to know the
// savepoints that the gate knows: where it refuses to release one or to go back to
// it, the block is given up. One that it did not set is never named again.
func (b *Block) control(ctx context.Context, text string, refusable bool) error {
	return b.ask(ctx, own(text), refusable)
}

// ask is control for a command of the gate's own.
func (b *Block) ask(ctx context.Context, c *command, refusable bool) error {
	l := b.lease
	l.notices = nil
	refused, err := l.exchange(context.WithoutCancel(ctx), time.Now().Add(b.db.cfg.QueryTimeout+b.db.cfg.DeadlineSlack), b.settled(c)...)
	switch {
	case err != nil:
		if b.brokeOff(refused, err); b.over {
			return overtimeFault()
		}
		return lostFault(lastError(refused, err), err)
	case refused == nil && l.txStatus == 'T':
		return nil
	case refused != nil && refusable && l.txStatus == 'E':
		b.failed = true
		return b.db.cfg.statementFault(refused)
	}
	b.quit()
	return lostFault(refused, errOutOfStep)
}

// quoteName quotes an identifier. A NUL cannot be sent; no name has one.
func quoteName(name string) string {
	name = strings.ReplaceAll(name, "\x00", "")
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// Commit makes the deferred checks, where that was not done behind the last
// write, and sends COMMIT on its own. It ends the block. The Result is about the
// block: it is that of each of its writes. A block that has failed is rolled
// back.
func (b *Block) Commit(ctx context.Context) (Result, error) {
	switch {
	case b.ended:
		return Result{}, fault.New(fault.Internal, "The transaction has ended.")
	case b.lost:
		b.end()
		return aborted(ReasonCommitNeverSent, BasisCommitNeverSent), b.gone()
	case b.failed || b.next != nil:
		res := aborted(ReasonRolledBack, BasisCommitNeverSent)
		if b.Rollback() {
			res.Basis = BasisRollbackAcknowledged
		}
		return res, fault.New(fault.DBQueryFailed, "The transaction had failed, so it was rolled back. Nothing was applied.").With("sqlstate", "25P02").With("retryable", false)
	}
	b.lease.notices = nil
	var deferred *int64
	if b.unchecked {
		res, err := b.check(ctx)
		if err != nil {
			return res, err
		}
		deferred = res.RowsChanged
	}
	defer b.end()
	begun := time.Now()
	res, err := b.db.commit(ctx, b.lease, Result{State: Success, CommandTag: "COMMIT", RowsChanged: deferred})
	if b.ddl {
		b.db.types.forget()
	}
	res.Duration, res.Notices = time.Since(begun), b.lease.notices
	return res, err
}

// check makes the deferred checks under the settings of the last write, so that
// they fail before COMMIT is sent.
func (b *Block) check(ctx context.Context) (Result, error) {
	checks := b.lease.beforeCommit()
	batch := append(segment(set("LOCAL", b.settings)), checks...)
	var before, behind *oneRow
	if len(b.limited) > 0 {
		counts := [2]*command{}
		counts[0], before = query(countSQL)
		counts[1], behind = query(countSQL)
		batch = append(append(segment{counts[0]}, batch...), counts[1])
	}
	batch = append(batch, b.unset(b.settings)...)
	lim := b.db.bound(Limits{})
	r := b.db.run(context.WithoutCancel(ctx), b.lease, "", b.db.deadline(lim), checks[0], batch)
	res, f, ok := b.db.outcomeOf(r, BasisCommitNeverSent)
	if ok && before != nil {
		var changed *int64
		if changed, f = b.deferredRows(before, behind); f != nil {
			res, ok = aborted(ReasonRowLimit, ""), false
		}
		res.RowsChanged = changed
	}
	if ok {
		return res, nil
	}
	res, f = b.fail(r, res, b.refusedWrite(r, f))
	if b.Rollback() {
		if res.Settled != nil {
			res.Settled.Basis = BasisRollbackAcknowledged
		} else {
			res.Basis = BasisRollbackAcknowledged
		}
	}
	return res, f
}

// deferredRows counts what the deferred triggers changed. Whose they are is not
// told, so all of it counts for each write that has a limit.
func (b *Block) deferredRows(before, behind *oneRow) (*int64, error) {
	counted, err := readCounts(before)
	if err != nil {
		return nil, notCountableFault("no count")
	}
	if err := counted.countable(false); err != nil {
		return nil, err
	}
	deferred, err := counted.growth(behind)
	if err != nil {
		return nil, err
	}
	for _, w := range b.limited {
		if changed := w.changed + deferred; changed > w.most {
			return &deferred, tooManyRows(changed, w.most)
		}
	}
	return &deferred, nil
}

// Rollback gives the block up and reports whether the server acknowledged that;
// without it, nothing of the block is applied either, since COMMIT was not sent.
// It does nothing after the block has ended, so it can be deferred.
func (b *Block) Rollback() bool {
	if b.ended {
		return false
	}
	acknowledged := !b.lost && b.lease.rollback(time.Now().Add(rollbackWait))
	b.end()
	return acknowledged
}
