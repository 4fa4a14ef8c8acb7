package sqlgate

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
)

// A wireOrder is a statement of the closed list that the gate answers itself
// (design/execution-and-wire.md part 9): it is done for real or refused, never
// nodded at.
type wireOrder struct {
	*classify.Control
	// check refuses without a change. It comes before the evidence, do behind it.
	check func(w *Wire, o *wireOrder) error
	do    func(ctx context.Context, w *Wire, s *submission, o *wireOrder) (wireReply, error)
	value string // of a SET, as SHOW will say it
}

// A wireReply is the gate's own answer.
type wireReply struct {
	tag     string // "": the order's
	notices []pgexec.Notice
}

// endsBlock reports whether a failed block takes the order.
func (o *wireOrder) endsBlock() bool {
	if o == nil || o.Control == nil {
		return false
	}
	switch o.Kind {
	case classify.ControlCommit, classify.ControlRollback, classify.ControlRollbackTo:
		return true
	}
	return false
}

// endsBlock reports whether a statement is one that a failed block takes.
func (w *Wire) endsBlock(st *wireStatement) bool {
	return st.empty || (&wireOrder{Control: st.classification.Control}).endsBlock()
}

// controlOf is the order that a statement is, nil where it is none: then it runs
// at the database, or not at all. The error is that of a PREPARE whose inner
// statement cannot be kept.
func (w *Wire) controlOf(ctx context.Context, s *submission) (*wireOrder, error) {
	switch s.classification.QueryType {
	case classify.TypePrepare:
		var err error
		s.prepare, err = w.gate.prepareOf(ctx, s)
		return &wireOrder{Control: &classify.Control{Tag: "PREPARE"}, check: checkPrepare(s), do: doPrepare}, err
	case classify.TypeDeallocate:
		return w.deallocation(s)
	}
	c := s.classification.Control
	if c == nil {
		return nil, nil
	}
	o := &wireOrder{Control: c}
	switch c.Kind {
	case classify.ControlSet, classify.ControlSetDefault, classify.ControlReset:
		return o.setting(), nil
	case classify.ControlShow:
		return o.showing(), nil
	case classify.ControlDiscard, classify.ControlClose, classify.ControlUnlisten:
		return o.forgetting(), nil
	}
	row, ok := wireOrders[c.Kind]
	if !ok {
		return nil, nil
	}
	o.check, o.do = row.check, row.do
	return o, nil
}

// wireOrders are the orders about a transaction and about all settings.
var wireOrders = map[string]wireOrder{
	classify.ControlBegin:           {check: checkBegin, do: doBegin},
	classify.ControlCommit:          {check: checkChain, do: doCommit},
	classify.ControlRollback:        {check: checkChain, do: doRollback},
	classify.ControlSavepoint:       {check: checkSavepoint, do: doSavepoint},
	classify.ControlRelease:         {check: checkNamed, do: doRelease},
	classify.ControlRollbackTo:      {check: checkNamed, do: doRollbackTo},
	classify.ControlSetTransaction:  {check: checkModes, do: doSetTransaction},
	classify.ControlCharacteristics: {do: doCharacteristics},
	classify.ControlResetAll:        {do: doResetAll},
}

// control carries an order out. Its evidence rides in the next append, but that
// of a COMMIT over writes, which is durable before COMMIT is sent.
func (w *Wire) control(ctx context.Context, s *submission, o *wireOrder) (*Answer, error) {
	if o.check != nil {
		if err := o.check(w, o); err != nil {
			return nil, w.refuseAs(ctx, s, err)
		}
	}
	if err := w.stands(); err != nil {
		return nil, w.refuseAs(ctx, s, err)
	}
	if done := w.current.waited() || !o.waits() && !w.current.settles(); done {
		return nil, w.gate.refuse(ctx, s, context.Canceled)
	}
	if err := w.note(ctx, s, o); err != nil {
		if o.Kind == classify.ControlRollback { // nothing stays open because the log is full
			return nil, errors.Join(err, w.giveUp(ctx))
		}
		return nil, err
	}
	w.start()
	reply, err := o.do(ctx, w, s, o)
	if err != nil {
		return nil, err
	}
	a := s.answer()
	a.Executed, a.Session, a.ExecutionState, a.CommandTag, a.Notices = true, true, StateSuccess, o.Tag, reply.notices
	if reply.tag != "" {
		a.CommandTag = reply.tag
	}
	a.Duration = time.Since(s.watch.begin)
	return a, nil
}

// waits reports whether carrying out an order may have to wait for the database, or
// ends a transaction: a cancel then counts until that is settled.
func (o *wireOrder) waits() bool {
	switch o.Kind {
	case classify.ControlSavepoint, classify.ControlCommit, classify.ControlSet, classify.ControlSetDefault, classify.ControlReset:
		return true
	}
	return false
}

// note keeps an order's evidence for the next append, or writes it now, where it
// would be too much to be kept. An order whose evidence could not be written is not
// carried out, and leaves nothing to be kept.
func (w *Wire) note(ctx context.Context, s *submission, o *wireOrder) error {
	if s.approved {
		command := &commands.RecordDecision{Request: s.record, Decision: s.decision, Answered: true, UseApproval: s.ApprovalID}
		_, err := w.gate.recordDecision(ctx, s, command)
		return err
	}
	if o.Kind != classify.ControlRollback { // that has to be had always, and what it undoes takes its evidence along
		if err := w.gate.Commands.Takes(); err != nil {
			return err
		}
	}
	one := commands.Answered{Request: s.record, Decision: s.decision}
	bytes, err := one.Bytes(w.gate.Now())
	if err != nil {
		return err
	}
	weight := bytes + s.record.SQLBytes // its strings may be parts of the text
	overWrites := o.Kind == classify.ControlCommit && len(w.unit.writes) > 0
	if !overWrites && len(w.ahead) < wireAhead && w.weight+weight <= wireAheadBytes {
		w.ahead, w.weight = append(w.ahead, one), w.weight+weight
		s.counted(w.gate.Now()) // it is about to be recorded
		return nil
	}
	if err = w.writeAhead(ctx, append(w.ahead[:len(w.ahead):len(w.ahead)], one)); err == nil {
		s.counted(w.gate.Now())
	}
	if isRefusal(err) {
		return w.gate.refuse(ctx, s, err)
	}
	return err
}

// flushAhead writes what waits for an append.
func (w *Wire) flushAhead(ctx context.Context) error {
	if len(w.ahead) == 0 {
		return nil
	}
	return w.writeAhead(ctx, w.ahead)
}

// writeAhead writes what waits, or that and one more, in one append.
func (w *Wire) writeAhead(ctx context.Context, all []commands.Answered) error {
	w.gate.Step("decision.before_append")
	if _, err := w.gate.Commands.RecordBlock(context.WithoutCancel(ctx), &commands.RecordBlock{Ahead: all}); err != nil {
		return err
	}
	w.written()
	w.gate.Step("decision.appended")
	return nil
}

// written forgets the evidence that is in the log.
func (w *Wire) written() { w.ahead, w.weight = nil, 0 }

func warning(state, message string) []pgexec.Notice {
	return []pgexec.Notice{{Severity: "WARNING", SQLState: state, Message: message}}
}

// notThroughTheGate is the refusal of what has no place here.
func notThroughTheGate(queryType string) *fault.Fault {
	f := fault.New(fault.UnsupportedSQLShape, "not available through the gate: %s", tagOf(queryType)).With("query_type", queryType)
	if hint, ok := wireHints[queryType]; ok {
		f = f.With("hint", hint)
	}
	return f
}

var wireHints = map[string]string{
	classify.TypeCopyFrom: "Use INSERT with several rows.",
	classify.TypeCopyTo:   "Use SELECT.",
	classify.TypeDeclare:  "Fetch with a row limit of the protocol: setFetchSize, a cursor of the driver.",
	classify.TypeFetch:    "Fetch with a row limit of the protocol: setFetchSize, a cursor of the driver.",
	classify.TypeSet:      "The gate judges statements under its own settings; docs/WIRE.md lists those that a connection may set.",
	classify.TypeReset:    "The gate judges statements under its own settings; docs/WIRE.md lists those that a connection may set.",
}

func checkBegin(w *Wire, o *wireOrder) error {
	if w.gate.Wire.BlockTime <= 0 || w.gate.Wire.MaxBlocks <= 0 {
		return wireErrorf("0A000", "not available through the gate: %s", o.Tag)
	}
	return checkModes(w, o)
}

// doBegin makes what is open a block; the database hears of it with its first
// statement. In a block that is open its modes are those of a SET TRANSACTION.
func doBegin(ctx context.Context, w *Wire, _ *submission, o *wireOrder) (r wireReply, err error) {
	if w.unit.explicit {
		r.notices = warning("25001", "there is already a transaction in progress")
	}
	if err := w.setModes(ctx, &o.Modes); err != nil {
		return r, err
	}
	w.unit.explicit = true
	return r, nil
}

// setModes gives the transaction the modes that a statement names.
func (w *Wire) setModes(ctx context.Context, m *classify.Modes) error {
	to := w.modes()
	if m.Isolation != "" {
		to.Isolation = m.Isolation
	}
	if m.ReadOnly != nil {
		to.ReadOnly = *m.ReadOnly
	}
	if m.Deferrable != nil {
		to.Deferrable = *m.Deferrable
	}
	if w.unit.block != nil {
		return w.unit.block.SetModes(ctx, to)
	}
	w.unit.options = to
	return nil
}

func checkChain(_ *Wire, o *wireOrder) error {
	if o.Chain {
		return wireErrorf("0A000", "not available through the gate: %s AND CHAIN", o.Tag)
	}
	return nil
}

// doCommit ends the block. Outside of one it commits what is open since the last
// Sync, and says that there was no block.
func doCommit(ctx context.Context, w *Wire, _ *submission, _ *wireOrder) (wireReply, error) {
	explicit, failed := w.unit.explicit, w.unit.failed
	if failed {
		return wireReply{tag: "ROLLBACK"}, w.rollback(ctx)
	}
	notices, err := w.commit(ctx)
	if !explicit {
		notices = append(notices, warning("25P01", "there is no transaction in progress")...)
	}
	return wireReply{notices: notices}, err
}

func doRollback(ctx context.Context, w *Wire, _ *submission, _ *wireOrder) (r wireReply, err error) {
	if !w.unit.explicit {
		r.notices = warning("25P01", "there is no transaction in progress")
	}
	return r, w.rollback(ctx)
}

func checkSavepoint(w *Wire, o *wireOrder) error {
	if err := w.inBlock(o); err != nil {
		return err
	}
	if len(w.unit.savepoints) >= wireSavepoints {
		return wireErrorf("54000", "a transaction through the gate has at most %d savepoints", wireSavepoints)
	}
	return nil
}

var savepointVerbs = map[string]string{
	classify.ControlSavepoint: "SAVEPOINT", classify.ControlRelease: "RELEASE SAVEPOINT", classify.ControlRollbackTo: "ROLLBACK TO SAVEPOINT",
}

func (w *Wire) inBlock(o *wireOrder) error {
	if !w.unit.explicit {
		return wireErrorf("25P01", "%s can only be used in transaction blocks", savepointVerbs[o.Kind])
	}
	return nil
}

// checkNamed refuses a savepoint that is not there. A block that was given up has
// none: it was rolled back whole. One in which nothing was sent has none either.
func checkNamed(w *Wire, o *wireOrder) error {
	if err := w.inBlock(o); err != nil {
		return err
	}
	switch {
	case w.unit.failed && w.unit.used && w.unit.block == nil:
		return errFailedBlock()
	case w.unit.savepoint(o.Name) < 0:
		return wireErrorf("3B001", "savepoint \"%s\" does not exist", o.Name)
	}
	return nil
}

// savepoint finds the last one of a name, or -1.
func (u *wireUnit) savepoint(name string) int {
	for i := len(u.savepoints) - 1; i >= 0; i-- {
		if u.savepoints[i].name == name {
			return i
		}
	}
	return -1
}

func doSavepoint(ctx context.Context, w *Wire, _ *submission, o *wireOrder) (wireReply, error) {
	if err := w.openBlock(ctx, false); err != nil {
		return wireReply{}, err
	}
	if !w.current.settles() {
		return wireReply{}, errCancelled()
	}
	u := &w.unit
	set, err := u.block.Savepoint(ctx)
	if err != nil {
		return wireReply{}, err
	}
	u.used = true
	u.savepoints = append(u.savepoints, wireSavepoint{name: strings.Clone(o.Name), set: set, writes: len(u.writes), bound: w.bound, settings: w.settings, setters: u.setters})
	return wireReply{}, nil
}

func doRelease(ctx context.Context, w *Wire, _ *submission, o *wireOrder) (wireReply, error) {
	u := &w.unit
	i := u.savepoint(o.Name)
	if err := u.block.Release(ctx, u.savepoints[i].set); err != nil {
		return wireReply{}, err
	}
	u.savepoints = u.savepoints[:i]
	return wireReply{}, nil
}

// doRollbackTo undoes what was done since a savepoint. That its writes were
// undone is in the log before the client hears of it, and before any COMMIT:
// their transaction id would say that they were committed.
func doRollbackTo(ctx context.Context, w *Wire, _ *submission, o *wireOrder) (wireReply, error) {
	u := &w.unit
	i := u.savepoint(o.Name)
	sp := u.savepoints[i]
	if err := u.block.RollbackTo(ctx, sp.set); err != nil {
		return wireReply{}, err
	}
	w.gate.Step("block.rolled_back_to")
	if err := w.recordUndone(ctx, u.writes[sp.writes:], reasonUndoneSince, pgexec.BasisRollbackAcknowledged); err != nil {
		u.unrecorded = true
		return wireReply{}, err
	}
	u.catalogue = nil
	u.failed, u.writes, u.savepoints, w.settings, u.setters = false, u.writes[:sp.writes], u.savepoints[:i+1], sp.settings, sp.setters
	maps.DeleteFunc(w.portals, func(_ string, p *wirePortal) bool { return p.number > sp.bound })
	return wireReply{}, nil
}

// checkModes refuses, as PostgreSQL does, what comes too late in a transaction, or
// behind a savepoint.
func checkModes(w *Wire, o *wireOrder) error {
	m, late, inner := &o.Modes, w.unit.snapshot, len(w.unit.savepoints) > 0
	if m.Isolation != "" && m.Isolation != w.level() {
		switch {
		case late:
			return wireErrorf("25001", "SET TRANSACTION ISOLATION LEVEL must be called before any query")
		case inner:
			return wireErrorf("25001", "SET TRANSACTION ISOLATION LEVEL must not be called in a subtransaction")
		}
	}
	if m.ReadOnly != nil && !*m.ReadOnly && w.modes().ReadOnly {
		switch {
		case inner:
			return wireErrorf("25001", "cannot set transaction read-write mode inside a read-only transaction")
		case late:
			return wireErrorf("25001", "transaction read-write mode must be set before any query")
		}
	}
	if m.Deferrable != nil {
		switch {
		case inner:
			return wireErrorf("25001", "SET TRANSACTION [NOT] DEFERRABLE cannot be called within a subtransaction")
		case late:
			return wireErrorf("25001", "SET TRANSACTION [NOT] DEFERRABLE must be called before any query")
		}
	}
	return nil
}

// doSetTransaction warns outside of a block, where the transaction is what stands
// before the next Sync.
func doSetTransaction(ctx context.Context, w *Wire, _ *submission, o *wireOrder) (r wireReply, err error) {
	if !w.unit.explicit {
		r.notices = warning("25P01", "SET TRANSACTION can only be used in transaction blocks")
	}
	return r, w.setModes(ctx, &o.Modes)
}

// doCharacteristics is the beginning of every later transaction, with LOCAL of those
// that begin before this one ends: none.
func doCharacteristics(_ context.Context, w *Wire, _ *submission, o *wireOrder) (wireReply, error) {
	m := &o.Modes
	if m.Isolation != "" {
		w.settings = w.settings.set(settingIsolation, m.Isolation, o.Local)
	}
	if m.ReadOnly != nil {
		w.settings = w.settings.set(settingReadOnly, onOff(*m.ReadOnly), o.Local)
	}
	if m.Deferrable != nil {
		w.settings = w.settings.set(settingDeferrable, onOff(*m.Deferrable), o.Local)
	}
	return wireReply{}, nil
}

// forgetting is DISCARD ALL, CLOSE ALL and UNLISTEN *; of one thing alone there is
// none, since the connection has no cursors and no channels.
func (o *wireOrder) forgetting() *wireOrder {
	switch {
	case o.Kind == classify.ControlDiscard && o.Name == "all":
		o.check, o.do = checkDiscard, doDiscard
	case o.Kind == classify.ControlClose && o.Name == "":
		o.do = doCloseAll
	case o.Kind == classify.ControlUnlisten && o.Name == "":
		o.do = func(context.Context, *Wire, *submission, *wireOrder) (wireReply, error) { return wireReply{}, nil }
	default:
		return nil
	}
	return o
}

func checkDiscard(w *Wire, _ *wireOrder) error {
	if w.unit.explicit || w.unit.used {
		return wireErrorf("25001", "DISCARD ALL cannot run inside a transaction block")
	}
	return nil
}

func doDiscard(_ context.Context, w *Wire, _ *submission, _ *wireOrder) (wireReply, error) {
	w.deallocateAll()
	clear(w.portals)
	w.settings = wireSettings{}
	return wireReply{}, nil
}

func doCloseAll(_ context.Context, w *Wire, _ *submission, _ *wireOrder) (wireReply, error) {
	clear(w.portals)
	return wireReply{}, nil
}
