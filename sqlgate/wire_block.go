package sqlgate

import (
	"context"
	"errors"
	"slices"
	"sync"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// Reasons of writes that were undone with what stood around them.
const (
	reasonRolledBack  = "rolled_back"
	reasonUndoneSince = "rolled_back_to_savepoint"
)

// A wireUnit is what stands or falls together: all that comes between two Syncs,
// or a block that the client began. The database hears of it with the first
// statement that needs it.
type wireUnit struct {
	explicit   bool                // the client said BEGIN
	failed     bool                // of an explicit one: only its end and ROLLBACK TO are taken
	used       bool                // a statement ran in it
	snapshot   bool                // the server has taken one, or would have: isolation and the like are settled
	options    pgexec.BlockOptions // its modes while nothing is open at the database, once it has begun
	block      *pgexec.Block       // nil: nothing is open at the database
	id         string              // block_id of the evidence
	client     string              // whose block it is, of those that may be open
	writes     []wireWrite         // that ran; their results come with the end
	savepoints []wireSavepoint
	unrecorded bool         // the log does not have what became of a write that was dispatched
	setters    wireSetters  // of settings, for all that comes behind them
	seeded     bool         // what random() gives was set
	begun      bool         // before and options are set
	before     wireSettings // as they stood when it began
	defines    bool         // a statement that may have changed definitions ran in block
	catalogue  *snapshot    // that shows them; nil: to be read
}

// wireSetters are the statements of a unit that set what those behind them run under
// (set_config: policies of rows let the same text see other rows then).
type wireSetters struct {
	last   []wireSetter // those that are shown, for the last of them decide
	more   int          // before these
	digest [32]byte     // over all of them; zero without any
}

// and are the setters with one more.
func (w wireSetters) and(s wireSetter, request [32]byte) wireSetters {
	w.last, w.digest = append(slices.Clip(w.last), s), digestOf("gate.request.set.v1", string(w.digest[:]), string(request[:]))
	left, first := shownParameters, len(w.last)
	for ; first > 0; first-- {
		s := &w.last[first-1]
		if left -= len(s.with) + len(s.text); left < 0 {
			break
		}
	}
	w.last, w.more = w.last[first:], w.more+first
	return w
}

// A wireWrite is a write of a block: dispatched in the log, done at the database,
// and not yet committed.
type wireWrite struct {
	record    commands.Request
	decision  commands.Decision // as much of it as results name
	execution string
	approval  string
	outlasts  bool // it names something that no rollback undoes
	result    pgexec.Result
}

// A wireSavepoint is one of the client's. The server knows it under a name of the
// gate's; which one a client means is found here, as PostgreSQL finds it.
type wireSavepoint struct {
	name     string
	set      pgexec.Savepoint
	writes   int // before it
	bound    int // portals before it
	settings wireSettings
	setters  wireSetters
}

// blockID is what the dispatches of one block share; "" outside of one.
func (s *submission) blockID() string {
	if s.wire == nil || s.wire.wire.unit.block == nil {
		return ""
	}
	return s.wire.wire.unit.id
}

// start notes how the settings stood before the unit, and takes its modes from them:
// a default that is set later is that of later transactions.
func (w *Wire) start() {
	if u := &w.unit; !u.begun {
		u.begun, u.before, u.options = true, w.settings, w.transaction()
	}
}

// plain reports whether a statement by itself runs as its transaction is to.
func (w *Wire) plain() bool { return w.level() == "read committed" }

// modes are those of the transaction of the next statement.
func (w *Wire) modes() pgexec.BlockOptions {
	switch u := &w.unit; {
	case u.block != nil:
		return u.block.Modes()
	case u.begun:
		return u.options
	}
	return w.transaction()
}

// level is the isolation of the transaction of the next statement.
func (w *Wire) level() string {
	if level := w.modes().Isolation; level != "" {
		return level
	}
	return "read committed"
}

// openBlock begins the unit's transaction at the database, where that was not
// done. ddl picks the role, where the database has one for it.
func (w *Wire) openBlock(ctx context.Context, ddl bool) error {
	u, g := &w.unit, w.gate
	if u.block != nil {
		return nil
	}
	w.start()
	client := pgexec.ClientOf(ctx)
	if err := g.blocks.enter(client); err != nil {
		return err
	}
	u.options.DDL, u.options.Timeout, u.options.IdleTimeout = ddl, g.Wire.BlockTime, g.Wire.BlockIdle
	block, err := g.Database.BeginBlock(ctx, u.options)
	if err != nil {
		g.blocks.leave(client)
		return err
	}
	u.client = client
	u.block, u.id = block, event.NewBlockID(g.Now())
	g.Step("block.begun")
	return nil
}

// transaction is how a transaction begins that says nothing else.
func (w *Wire) transaction() pgexec.BlockOptions {
	o := pgexec.BlockOptions{ReadOnly: w.show(settingReadOnly) == "on", Deferrable: w.show(settingDeferrable) == "on", Isolation: w.show(settingIsolation)}
	if o.Isolation == "read committed" {
		o.Isolation = "" // as pinned
	}
	return o
}

// close gives the block's place to another.
func (w *Wire) closeBlock() {
	w.unit.block = nil
	w.gate.blocks.leave(w.unit.client)
}

// endOfUnit forgets it. What its settings were before comes back where it was
// undone; what SET LOCAL said is over in either case. Portals end with it.
func (w *Wire) endOfUnit(undone bool) {
	if undone && w.unit.begun {
		w.settings = w.unit.before
	}
	w.settings.local = nil
	w.unit = wireUnit{}
	clear(w.portals)
}

// endUnit commits what is open outside of a block.
func (w *Wire) endUnit(ctx context.Context) error {
	if w.unit.explicit {
		return nil
	}
	_, err := w.commit(ctx)
	return err
}

// failed undoes what an error undoes, and gives the error back, or that of the
// evidence. Outside of a block everything since the last Sync is rolled back. A
// block waits for its end, unless a decision stopped a statement in it: no
// transaction waits for a person. Nor does one wait for a connection that ends, nor
// may one be committed that holds a write whose fate is not in the log: its
// transaction id would say that it was committed.
func (w *Wire) failed(ctx context.Context, cause error) error {
	cause = agentGone(cause)
	var refusal *WireRefusal
	undo := w.rollback
	switch stopped := errors.As(cause, &refusal) || ends(cause); {
	case !w.unit.explicit:
	case stopped || w.unit.unrecorded || w.unit.block != nil && w.unit.block.Lost():
		undo = w.giveUp
	default:
		if w.unit.block != nil {
			w.unit.block.Fail()
		}
		w.unit.failed = true
		w.settings = w.unit.standing(w.settings)
		return cause
	}
	if err := undo(ctx); err != nil {
		return err
	}
	return cause
}

// standing are the settings of a block that failed, as a server tells them then: those
// of its last savepoint, or of before it. It goes on with no others.
func (u *wireUnit) standing(now wireSettings) wireSettings {
	switch n := len(u.savepoints); {
	case n > 0:
		return u.savepoints[n-1].settings
	case u.begun:
		return u.before
	}
	return now
}

// giveUp rolls a block back at once. For the client it is one that failed.
func (w *Wire) giveUp(ctx context.Context) error {
	u := &w.unit
	err := w.undo(ctx)
	u.failed, u.writes, u.savepoints = true, nil, nil
	w.settings = u.standing(w.settings)
	clear(w.portals)
	return err
}

// rollback ends the unit with nothing of it applied.
func (w *Wire) rollback(ctx context.Context) error {
	err := w.undo(ctx)
	w.endOfUnit(true)
	return err
}

// undo rolls back at the database, and says so of every write in one append.
func (w *Wire) undo(ctx context.Context) error {
	u := &w.unit
	if u.block == nil {
		return nil
	}
	basis := pgexec.BasisCommitNeverSent
	if u.block.Rollback() {
		basis = pgexec.BasisRollbackAcknowledged
	}
	w.gate.Step("block.rolled_back")
	w.closeBlock()
	return w.recordUndone(ctx, u.writes, reasonRolledBack, basis)
}

// recordUndone says of writes that they were undone.
func (w *Wire) recordUndone(ctx context.Context, writes []wireWrite, reason, basis string) error {
	if len(writes) == 0 {
		return nil
	}
	return w.recordResults(ctx, w.ahead, writes, rolledBack(reason, basis), nil)
}

func rolledBack(reason, basis string) pgexec.Result {
	return pgexec.Result{State: pgexec.Failure, ReasonCode: reason, Outcome: pgexec.OutcomeAborted, Basis: basis}
}

// recordResults says in one append what became of writes: what ended them is the
// same for all. Nothing is ahead of results that may be those of a COMMIT: they
// must not fail for what stands beside them.
func (w *Wire) recordResults(ctx context.Context, ahead []commands.Answered, writes []wireWrite, end pgexec.Result, cause error) error {
	g := w.gate
	command := &commands.RecordBlock{Ahead: ahead, Results: make([]commands.RecordResult, len(writes))}
	for i := range writes {
		command.Results[i] = g.resultOf(&writes[i], end, cause)
	}
	g.Step("block.before_append")
	if _, err := g.Commands.RecordBlock(context.WithoutCancel(ctx), command); err != nil {
		return resultNotWritten(err)
	}
	if ahead != nil {
		w.written()
	}
	g.Step("block.appended")
	return nil
}

// resultOf is the evidence of one write of a block that ended.
func (g *Gate) resultOf(write *wireWrite, end pgexec.Result, cause error) commands.RecordResult {
	r := commands.RecordResult{Request: &write.record, Decision: &write.decision, ExecutionID: write.execution, ApprovalID: write.approval}
	if end.State == pgexec.Success {
		result := write.result
		result.Basis, result.Warnings = end.Basis, end.Warnings
		if result.RowsChanged != nil && end.RowsChanged != nil { // whose triggers these were is not told, so they count for each
			changed := *result.RowsChanged + *end.RowsChanged
			result.RowsChanged = &changed
		}
		r.Success = successRecord(&result)
		return r
	}
	end.Duration = write.result.Duration
	f := &fault.Fault{} // undone by the client: nobody was told of a fault
	if cause != nil {
		f = fault.Of(cause)
	}
	if write.outlasts || end.Elsewhere {
		end, f = partly(end, f)
	}
	g.describeFailure(nil, &r, &end, f)
	return r
}

// commit ends the unit with all of it applied. What was answered since its writes
// is in the log before COMMIT is sent, and the results of the writes when it
// returns. An error without an execution_state says that nothing was committed yet.
func (w *Wire) commit(ctx context.Context) ([]pgexec.Notice, error) {
	u, g := &w.unit, w.gate
	if u.block == nil {
		w.endOfUnit(false)
		return nil, nil
	}
	if len(u.writes) > 0 {
		if err := w.flushAhead(ctx); err != nil {
			return nil, err
		}
	}
	stop := w.stands()
	if stop == nil {
		stop = w.agentStands(ctx)
	}
	if stop == nil && !w.current.commits() { // as at a server: what a COMMIT would have ended is rolled back
		stop = errCancelled()
	}
	if stop == nil && len(u.savepoints) > 0 && u.block.Modes().ReadOnly { // behind which it may have begun: what is deferred is not behind it
		stop = u.block.Release(ctx, u.savepoints[0].set)
	}
	if stop != nil {
		if err := w.rollback(ctx); err != nil {
			return nil, err
		}
		return nil, stop
	}
	defer w.current.settles()
	g.Step("block.before_commit")
	result, cause := u.block.Commit(ctx)
	g.Step("block.committed")
	w.closeBlock()
	writes := u.writes
	w.endOfUnit(result.State == pgexec.Failure || result.Settled != nil)
	switch { // each write was carried out: what ends the block makes no approval good for another time
	case result.Settled != nil:
		answered := result.Settled.Answered
		result = rolledBack(reasonRolledBack, result.Settled.Basis)
		result.SQLState = answered
	case result.ReasonCode == pgexec.ReasonRowLimit && len(writes) > 1: // whose rows these are is not told
		result = rolledBack(reasonRolledBack, result.Basis)
	}
	if len(writes) > 0 {
		if err := w.recordResults(ctx, nil, writes, result, cause); err != nil {
			return nil, err
		}
	}
	if cause != nil {
		f := fault.Of(cause)
		if result.Elsewhere || slices.ContainsFunc(writes, func(write wireWrite) bool { return write.outlasts }) {
			_, f = partly(result, f)
		}
		f = f.WithBeside("execution_state", string(result.State))
		g.noteOutage(ctx, f)
		return nil, f
	}
	return result.Notices, nil
}

// readInBlock runs a safe read behind a fence of its own inside the block.
func (w *Wire) readInBlock(ctx context.Context, s *submission) (*Answer, error) {
	g := w.gate
	if err := w.openBlock(ctx, false); err != nil {
		return nil, w.notBegun(ctx, s, err)
	}
	o := g.fenceOptions(s)
	d, err := w.unit.block.DispatchRead(ctx, o)
	if err != nil {
		return nil, g.notDispatched(ctx, s, err)
	}
	recorded, err := g.recordDecision(ctx, s, s.dispatch(event.PathRead, d))
	if err != nil {
		return nil, err
	}
	w.unit.sends(s)
	g.Step("block.read_dispatched")
	result, err := w.unit.block.Read(ctx, o, s.statement(), s.wire.out)
	return g.finish(ctx, s, recorded, result, nil, err)
}

// writesRows are the statements whose every target is there before they run.
var writesRows = []string{classify.TypeInsert, classify.TypeUpdate, classify.TypeDelete, classify.TypeMerge}

// fenceOptions are those of a statement that a block runs or describes behind a fence.
func (g *Gate) fenceOptions(s *submission) pgexec.BeginOptions {
	o, c := g.beginOptions(s, g.limits(s)), &s.classification
	if o.Relations = c.TablesRead; slices.Contains(writesRows, c.QueryType) {
		o.Relations = s.relations()
	}
	return o
}

// writeInBlock runs a write inside the block. Its result is the block's to give:
// until that ends, the log says that it was dispatched.
func (w *Wire) writeInBlock(ctx context.Context, s *submission) (*Answer, error) {
	g, u := w.gate, &w.unit
	if len(u.writes) >= wireWrites {
		return nil, g.refuse(ctx, s, fault.New(fault.SessionLimitExceeded, "A transaction through the gate has at most %d writes. Commit more often.", wireWrites).With("limit", "writes").With("max", wireWrites))
	}
	o := g.beginOptions(s, g.limits(s))
	if err := w.openBlock(ctx, o.DDL); err != nil {
		return nil, w.notBegun(ctx, s, err)
	}
	d, err := u.block.DispatchWrite(ctx, o)
	if err != nil {
		return nil, g.notDispatched(ctx, s, err)
	}
	recorded, err := g.recordDecision(ctx, s, s.dispatch(event.PathTx, d))
	if err != nil {
		if errors.Is(err, ErrPolicyChanged) || w.current.waited() || ends(err) {
			u.block.NotSent()
		} else {
			u.unrecorded = !isRefusal(err)
		}
		return nil, err
	}
	u.sends(s)
	if slices.Contains(defining, s.classification.Class) {
		u.defines = true
	}
	if u.defines && (s.callsUserCode() || slices.Contains(defining, s.classification.Class)) {
		u.catalogue = nil
	}
	g.Step("block.dispatched")
	result, err := u.block.Write(ctx, s.statement(), s.wire.last && !u.explicit, s.wire.out)
	g.Step("block.written")
	if result.State != pgexec.Success {
		return w.writeFailed(ctx, s, recorded, result, err)
	}
	record := s.record
	record.SQLText = "" // a block's results need no text, and may wait for long
	u.writes = append(u.writes, wireWrite{record: record, decision: commands.Decision{Operation: s.decision.Operation, Fingerprint: s.decision.Fingerprint}, execution: recorded.ExecutionID, approval: s.usedApproval(), outlasts: s.outlasts(), result: result})
	a := s.answer()
	a.Executed, a.ExecutionID, a.ExecutionState, a.Events = true, recorded.ExecutionID, StateDispatched, recorded.Events
	a.RowCount, a.CommandTag, a.Notices = result.RowCount, result.CommandTag, result.Notices
	return a, nil
}

// writeFailed records a write that failed. Where it ended the transaction by
// itself nothing is known of those before it either.
func (w *Wire) writeFailed(ctx context.Context, s *submission, recorded commands.Recorded, result pgexec.Result, cause error) (*Answer, error) {
	u := &w.unit
	if result.State == pgexec.Unknown && result.Settled == nil {
		writes := u.writes
		u.writes = nil
		if err := w.recordResults(ctx, nil, writes, result, cause); err != nil {
			return nil, err
		}
	}
	a, err := w.gate.finish(ctx, s, recorded, result, nil, cause)
	u.unrecorded = u.unrecorded || s.unrecorded
	return a, err
}

// knowTemporary puts into a statement's facts what its names may mean in a session that
// has temporary relations. Which they are the server says: a model of them would have
// to know all that renames and drops one.
func (w *Wire) knowTemporary(ctx context.Context, s *submission) error {
	if w.unit.failed || w.unit.block == nil {
		return nil
	}
	relations, inherits, err := w.unit.block.Temporary(ctx)
	if err != nil {
		return w.gate.refuse(ctx, s, err)
	}
	s.classification = s.classification.WithTemporary(w.gate.Wire.SearchPath, relations, inherits)
	return nil
}

// unseen refuses to ask a person, or to use what one approved, where what decides on the
// rows can't be shown: in a transaction that had anything temporary, or set a seed. The text
// need not name what is temporary ('mine'::regclass, a text search configuration), and
// neither DROP nor a rollback undoes all that it did (sequences, set_config in a CHECK).
func (w *Wire) unseen(s *submission) error {
	u, had := &w.unit, ""
	switch {
	case !s.enforced || !s.approved && s.result.Decision != policy.RequireApproval:
		return nil
	case u.block != nil && u.block.HadTemporary():
		had = "has or had anything temporary"
	case u.seeded:
		had = "has set a seed"
	default:
		return nil
	}
	e := wireErrorf("0A000", "a statement that needs an approval can't run in a transaction that %s", had)
	e.Hint = "Nobody could see what it comes to. Run it in a transaction of its own, with the rows that it needs in tables of the database."
	return e
}

// sends notes that a statement goes to the server.
func (u *wireUnit) sends(s *submission) {
	u.used = true
	u.snapshot = u.snapshot || !slices.Contains(withoutSnapshot, s.classification.QueryType)
	if slices.Contains(s.classification.RiskSignals, classify.SignalSessionChange) {
		u.setters = u.setters.and(s.setter(), s.record.RequestDigest)
	}
	u.seeded = u.seeded || slices.Contains(s.classification.Functions, "setseed") || slices.Contains(s.classification.RiskSignals, classify.SignalOversizedFacts)
}

// defining are the classes of statements behind which other definitions may stand.
var defining = []string{classify.ClassDDL, classify.ClassDCL, classify.ClassMaintenance, classify.ClassProcedural}

// withoutSnapshot are the statements of a block that a server runs without a snapshot
// (PlannedStmtRequiresSnapshot), and that need no transaction id: they apply nothing.
var withoutSnapshot = []string{classify.TypeLock, classify.TypeShow}

// notBegun records a statement whose transaction could not be begun.
func (w *Wire) notBegun(ctx context.Context, s *submission, cause error) error {
	var own *WireError
	if errors.As(cause, &own) {
		return w.refuseAs(ctx, s, own)
	}
	return w.gate.notDispatched(ctx, s, cause)
}

// usedApproval is the approval that the statement ran under.
func (s *submission) usedApproval() string {
	if s.approved {
		return s.ApprovalID
	}
	return ""
}

// A blockCount bounds the blocks of all connections, and those of one client.
type blockCount struct {
	most, each int

	mu    sync.Mutex
	taken int
	of    map[string]int
}

func newBlockCount(most, reserved int) *blockCount {
	return &blockCount{most: most, each: pgexec.ShareOf(most, reserved), of: map[string]int{}}
}

func (c *blockCount) enter(client string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.taken == c.most:
		return wireErrorf("53300", "too many transactions: %d are open through the gate", c.most)
	case client != "" && c.of[client] == c.each:
		return wireErrorf("53300", "too many transactions: this client has %d open through the gate, and the rest is kept for others", c.each)
	}
	c.taken++
	c.of[client]++
	return nil
}

func (c *blockCount) leave(client string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken--
	if c.of[client]--; c.of[client] == 0 {
		delete(c.of, client)
	}
}

func (c *blockCount) open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken
}

// errFailedBlock is PostgreSQL's answer to all but the end of a failed block.
func errFailedBlock() *WireError {
	return wireErrorf("25P02", "current transaction is aborted, commands ignored until end of transaction block")
}

// tagOf is how a query type is called in messages.
func tagOf(queryType string) string {
	switch queryType {
	case classify.TypeCreateTableAs:
		return "CREATE TABLE AS"
	case classify.TypeCopyFrom, classify.TypeCopyTo:
		return "COPY"
	}
	return queryType
}

// WireBlocks counts the blocks that are open now, of all connections.
func (g *Gate) WireBlocks() int { return g.blocks.open() }
