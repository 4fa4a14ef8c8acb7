package sqlgate

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// Reasons in the evidence of what a connection's own state refuses.
const (
	reasonFailedBlock = "transaction_failed"
	reasonShape       = "result_shape_changed"
)

// once takes one statement through the journey. A decision that stops it is an
// error here, a WireRefusal.
func (w *Wire) once(ctx context.Context, st *wireStatement, c *wireCall) (WireDone, error) {
	g := w.gate
	if st.empty {
		return WireDone{Empty: true}, nil
	}
	g.meters.requests.Add(1)
	s, err := w.submission(ctx, st, c)
	if err != nil {
		return WireDone{}, err
	}
	defer s.counted(time.Time{}) // unless a decision was recorded
	st.reading = 0
	if s.policy == nil || g.chain.Failed() {
		return WireDone{}, g.chain.fault()
	}
	s.mode = g.ModeNow()
	a, err := w.journey(ctx, s)
	switch {
	case err != nil:
		g.Logger.Debug("a statement was refused or failed", "source", "gate", "request_id", s.RequestID, "cause", err.Error())
		return WireDone{}, err
	case !a.Executed:
		return WireDone{}, &WireRefusal{Answer: a}
	}
	return WireDone{Tag: a.CommandTag, Notices: append(w.shadowNotice(s), a.Notices...)}, nil
}

// shadowNotice tells a client in shadow mode what would have stopped it.
func (w *Wire) shadowNotice(s *submission) []pgexec.Notice {
	if s.result.Decision == policy.Allow {
		return nil
	}
	return []pgexec.Notice{{Severity: "WARNING", SQLState: "01000", Message: "not enforced: this would have been " + string(s.result.Decision) + " (" + s.result.ReasonCode + ")"}}
}

// journey is decideAndRun for the wire: what a connection answers itself, its
// block, and approvals that a setting names come in between.
func (w *Wire) journey(ctx context.Context, s *submission) (*Answer, error) {
	g, c := w.gate, s.wire
	order, err := w.controlOf(ctx, s)
	if err != nil {
		return nil, g.refuse(ctx, s, err)
	}
	c.control = order != nil
	switch {
	case w.unit.failed && !order.endsBlock():
		return nil, w.refuse(ctx, s, reasonFailedBlock, errFailedBlock())
	case s.classification.QueryType == classify.TypeExecute:
		if err := w.replaceExecute(ctx, s); err != nil {
			return nil, w.refuseAs(ctx, s, err)
		}
	}
	if order == nil {
		if err := w.knowTemporary(ctx, s); err != nil {
			return nil, err
		}
	}
	if s.ApprovalID != "" {
		answer, err := g.lookUpApproval(ctx, s)
		if err != nil || answer != nil {
			return answer, err
		}
	}
	answer, err := g.whileInForce(ctx, s, func() (*Answer, error) {
		if err := w.decide(ctx, s); err != nil {
			return nil, err
		}
		return w.carryOut(ctx, s, order)
	})
	g.meters.decided(s)
	return answer, err
}

// decide decides, and once more with the approval that gate.approval_id names
// where the statement needs one. What the connection cannot carry is refused
// before that, unless a rule blocks it.
func (w *Wire) decide(ctx context.Context, s *submission) error {
	g := w.gate
	defer s.watch.time(phaseDecide, time.Now())
	if err := g.decide(ctx, s); err != nil {
		return g.refuse(ctx, s, err)
	}
	if err := w.unseen(s); err != nil {
		return w.refuseAs(ctx, s, err)
	}
	if s.result.Decision == policy.RequireApproval && s.enforced && w.approval() != "" && s.ApprovalID == "" {
		s.ApprovalID, s.record.ApprovalID = w.approval(), w.approval()
		answer, err := g.lookUpApproval(ctx, s)
		if answer == nil {
			w.forgetApproval() // it served; one that is pending may still
		}
		switch {
		case err != nil:
			return err
		case answer != nil:
			return &WireRefusal{Answer: answer}
		}
		if err := g.decide(ctx, s); err != nil {
			return g.refuse(ctx, s, err)
		}
	}
	if err := w.shapeFault(s); err != nil {
		return w.refuseAs(ctx, s, err)
	}
	return nil
}

// shapeFault refuses what the wire cannot carry. The default and the floor do not
// come first: a driver shall hear that there is no COPY here, not that it may not.
func (w *Wire) shapeFault(s *submission) error {
	c := &s.classification
	switch {
	case s.isControl(), s.result.Decision == policy.Block && s.enforced && (len(s.result.Matched) > 0 || c.Run != classify.RunNone):
		return nil
	case c.Run == classify.RunNone:
		return notThroughTheGate(c.QueryType)
	case executesPrepared(c):
		return s.shapeFault()
	case s.runs() && w.modes().ReadOnly && notReadOnly(c, w.modes()):
		return fault.New(fault.UnsafeReadShape, "cannot execute %s in a read-only transaction", tagOf(c.QueryType)).With("sqlstate", "25006")
	case c.QueryType == classify.TypeLock && s.runs() && !w.unit.explicit && w.unit.block == nil:
		return wireErrorf("25P01", "LOCK TABLE can only be used in transaction blocks")
	case c.Run == classify.RunAlone && s.runs() && (w.unit.explicit || w.unit.block != nil):
		return wireErrorf("25001", "%s cannot run inside a transaction block", tagOf(c.QueryType))
	}
	return nil
}

// notReadOnly reports what does not go to a READ ONLY transaction: what the facts say
// writes, and what runs in none. Of all else the server says whether it writes. A
// transaction that may wait for its first snapshot takes safe reads alone: the gate asks
// for its id before anything else, and not for that long.
func notReadOnly(c *classify.Classification, modes pgexec.BlockOptions) bool {
	switch {
	case c.SafeRead:
		return false
	case c.Run == classify.RunAlone, modes.Deferrable && modes.Isolation == "serializable":
		return true
	case c.QueryType == classify.TypeExplain, c.QueryType == classify.TypeLock:
		return false
	}
	return len(c.TablesWritten) > 0 || slices.Contains([]string{classify.ClassDDL, classify.ClassDCL, classify.ClassMaintenance}, c.Class)
}

// refuse leaves evidence of a refusal in PostgreSQL's words, and gives it back.
func (w *Wire) refuse(ctx context.Context, s *submission, reason string, refusal error) error {
	err := w.gate.Commands.RecordRejection(context.WithoutCancel(ctx), &commands.Rejection{
		Request: s.record, ReasonCode: reason, Operation: s.classification.QueryType,
	})
	switch {
	case err != nil && ends(refusal): // the connection does not stay because the log is full
		return errors.Join(refusal, err)
	case err != nil:
		return err
	}
	return refusal
}

// refuseAs is refuse for either kind of error.
func (w *Wire) refuseAs(ctx context.Context, s *submission, refusal error) error {
	var wire *WireError
	if errors.As(refusal, &wire) {
		return w.refuse(ctx, s, "sqlstate_"+wire.SQLState, wire)
	}
	return w.gate.refuse(ctx, s, refusal)
}

// carryOut records the decision and does what follows from it.
func (w *Wire) carryOut(ctx context.Context, s *submission, order *wireOrder) (*Answer, error) {
	g := w.gate
	switch {
	case !s.runs():
		return g.stop(ctx, s)
	case order != nil:
		return w.control(ctx, s, order)
	case s.classification.Run == classify.RunNone: // nothing that the gate does not know how to run is sent
		return nil, w.refuseAs(ctx, s, notThroughTheGate(s.classification.QueryType))
	}
	if err := s.countable(); err != nil {
		return nil, g.refuse(ctx, s, err)
	}
	if _, kept := s.wire.out.sink.(*wireRows); !s.approved || kept { // what a portal keeps is handed on by slices, once it is done
		return w.execute(ctx, s)
	}
	if err := w.hold(leastResult); err != nil {
		return nil, w.refuseAs(ctx, s, err)
	}
	defer w.settle()
	s.wire.out.kept = &wireRows{beside: w.held(nil), most: g.ResultBytes, counted: leastResult, hold: w.hold}
	a, err := w.execute(ctx, s)
	if err == nil && a.Executed {
		w.settle() // they are counted again as they go out
		err = s.wire.out.handOver()
	}
	return a, err
}

// execute runs what was decided so.
func (w *Wire) execute(ctx context.Context, s *submission) (*Answer, error) {
	g := w.gate
	s.executionID = event.NewExecutionID(g.Now())
	w.current.executes(s.executionID)
	defer w.current.executed(g.Database)
	read, alone := s.classification.Run == classify.RunReadFence, !w.unit.explicit && w.unit.block == nil && w.plain()
	switch {
	case alone && read:
		return g.read(ctx, s)
	case s.classification.Run == classify.RunAlone:
		return g.alone(ctx, s)
	case alone && s.wire.last && !w.modes().ReadOnly:
		return g.write(ctx, s)
	case read:
		return w.readInBlock(ctx, s)
	}
	return w.writeInBlock(ctx, s)
}

// committing says that nothing can be cancelled any more.
func (s *submission) committing() {
	if s.wire != nil {
		s.wire.wire.current.commits() // what was dispatched is not asked about any more
	}
}

// recordedAhead forgets the evidence that was written along.
func (s *submission) recordedAhead() {
	if s.wire != nil {
		s.wire.wire.written()
	}
}

// Execute runs a portal, or goes on with what it holds. A row limit of 0 is none.
// last says that a Sync comes next and is there already: what stands alone then
// needs no block.
func (w *Wire) Execute(ctx context.Context, portal string, maxRows uint32, last bool, out WireSink) (done WireDone, err error) {
	err = w.extended(ctx, func(ctx context.Context) error {
		p := w.portals[portal]
		if p == nil {
			return wireErrorf("34000", "portal \"%s\" does not exist", portal)
		}
		if w.unit.failed && p.done != nil {
			return errFailedBlock()
		}
		if p.done == nil {
			if maxRows > 0 {
				if err := w.hold(leastResult); err != nil {
					return err
				}
				defer w.settle()
			}
			if err := w.runPortal(ctx, p, maxRows > 0, last, out); err != nil {
				return err
			}
			done = *p.done
			if maxRows == 0 || p.rows == nil {
				return nil
			}
		}
		if p.done.Empty { // as often as it is asked for
			done = *p.done
			return nil
		}
		if p.rows == nil {
			return wireErrorf("55000", "portal \"%s\" cannot be run", portal)
		}
		notices := done.Notices
		done, err = p.rows.slice(p.done.Tag, maxRows, out)
		done.Notices = notices
		return err
	})
	if err != nil {
		return WireDone{}, err
	}
	return done, nil
}

// runPortal runs a portal's statement to its end. With keep the rows stay with
// the gate.
func (w *Wire) runPortal(ctx context.Context, p *wirePortal, keep, last bool, sink WireSink) error {
	out := &wireOut{sink: sink}
	if st := p.statement; st.described {
		out.expected, out.expects = st.columns, true
	}
	var rows *wireRows
	if keep {
		rows = &wireRows{beside: w.held(p), most: w.gate.ResultBytes, counted: leastResult, hold: w.hold}
		out.sink = rows
	}
	done, err := w.run(ctx, p.statement, &wireCall{wire: w, last: last, out: out, portal: p})
	if err != nil {
		return err
	}
	p.done = &done
	switch {
	case rows != nil && rows.columns != nil:
		p.rows = rows
	case out.rows:
		p.rows = &wireRows{} // all were fetched
	}
	return nil
}

// A wireOut hands a result to the client and notes why it did not take it.
type wireOut struct {
	sink     WireSink
	kept     *wireRows // what comes of an approved statement, until it is done (handOver)
	asked    bool      // Fields was called
	expects  bool      // a Describe has told the client what comes
	expected []pgexec.Field
	rows     bool // the statement returns rows
	err      error
}

// Fields refuses a result of another shape than the one that was described: the
// client would read its values as something else.
func (o *wireOut) Fields(columns []pgexec.Field) error {
	if o.expects && !slices.EqualFunc(o.expected, columns, sameColumn) {
		o.err = fault.New(fault.UnsupportedSQLShape, "cached plan must not change result type").With("reason", reasonShape)
		return o.err
	}
	o.rows = columns != nil
	if o.asked = true; o.kept != nil {
		return o.kept.Fields(columns)
	}
	o.err = o.sink.Fields(columns)
	return o.err
}

// handOver gives the client the result of an approved statement that is done. What a
// client has of one that fails can't be taken back: with rows handed on as they come,
// one that passes its row limit or its time would give them away, and its approval
// would be good for another time.
func (o *wireOut) handOver() error {
	if !o.asked {
		return nil
	}
	o.err = o.sink.Fields(o.kept.columns)
	for o.err == nil && o.kept.count > 0 {
		o.err = o.sink.Row(o.kept.take())
	}
	if _, own := fault.As(o.err); own {
		return fault.New(fault.ResultTooLarge, "The statement ran, but there is no room for its result. Do not send it again; read what you need in parts.").Because(o.err)
	}
	return o.err
}

func sameColumn(a, b pgexec.Field) bool { return a.Label == b.Label && a.TypeOID == b.TypeOID }

// Row hands a row on.
func (o *wireOut) Row(values [][]byte) error {
	if o.kept != nil {
		o.err = o.kept.Row(values)
	} else {
		o.err = o.sink.Row(values)
	}
	return o.err
}

// refusedBySink is the fault where the client's side ended the result, and not a
// limit.
func (s *submission) refusedBySink(result *pgexec.Result, f *fault.Fault) *fault.Fault {
	if s.wire == nil || s.wire.out.err == nil || result.State == pgexec.Success {
		return f
	}
	if own, ok := fault.As(s.wire.out.err); ok {
		result.ReasonCode = reasonShape
		if own.Code == fault.ResultTooLarge || own.Code == fault.SessionLimitExceeded {
			result.ReasonCode = pgexec.ReasonResultTooLarge
		}
		return own
	}
	result.ReasonCode = pgexec.ReasonCancelled
	return fault.New(fault.DBQueryFailed, "The client did not take the result; nothing was applied.").With("sqlstate", "57014").Because(s.wire.out.err)
}

// wireRows keeps the result of a portal with a row limit. What the portals of a
// connection hold together is bounded by the limit of one result.
type wireRows struct {
	beside  int64 // bytes that the other portals hold
	most    int64 // bytes that all may hold
	counted int64 // bytes that the client's share has for it
	hold    func(more int64) error
	columns []pgexec.Field
	rows    []byte   // that were not fetched, in their order: each value behind its length, nullValue for a NULL
	count   int      // of rows
	slicing [][]byte // of the row that is handed on
}

const nullValue = math.MaxUint32

// Fields keeps the columns.
func (r *wireRows) Fields(columns []pgexec.Field) error {
	r.columns = columns
	return nil
}

// held is how many bytes columns and rows take.
func (r *wireRows) held() int64 { return inMemory(r.columns) + int64(len(r.rows)) }

// Row keeps a row.
func (r *wireRows) Row(values [][]byte) error {
	if r.beside+int64(len(r.rows)+4*len(values))+bytesOf(values) > r.most {
		return portalsFull()
	}
	if all := int64(len(r.rows)+4*len(values)) + bytesOf(values); all > r.counted {
		if err := r.hold(all + leastResult); err != nil {
			return err
		}
		r.counted = all + leastResult
	}
	for _, v := range values {
		if v == nil {
			r.rows = binary.BigEndian.AppendUint32(r.rows, nullValue)
			continue
		}
		r.rows = append(binary.BigEndian.AppendUint32(r.rows, uint32(len(v))), v...)
	}
	r.count++
	return nil
}

func bytesOf(values [][]byte) (bytes int64) {
	for _, v := range values {
		bytes += int64(len(v))
	}
	return bytes
}

// slice hands on the next rows, at most most of them, or all with 0. As with
// PostgreSQL the portal is suspended also where the last row was the last there
// is, and the tag counts the rows of this slice.
func (r *wireRows) slice(tag string, most uint32, out WireSink) (WireDone, error) {
	fetched := r.count
	suspended := most > 0 && uint64(most) <= uint64(r.count)
	if suspended {
		fetched = int(most)
	}
	if err := out.Fields(r.columns); err != nil {
		return WireDone{}, err
	}
	for range fetched {
		if err := out.Row(r.take()); err != nil {
			return WireDone{}, err
		}
	}
	return WireDone{Tag: withCount(tag, fetched), Suspended: suspended}, nil
}

// take is the next row, which is not held any more when all were fetched.
func (r *wireRows) take() [][]byte {
	r.slicing = r.slicing[:0]
	for range r.columns {
		n := binary.BigEndian.Uint32(r.rows)
		r.rows = r.rows[4:]
		if n == nullValue {
			r.slicing = append(r.slicing, nil)
			continue
		}
		r.slicing = append(r.slicing, r.rows[:n:n])
		r.rows = r.rows[n:]
	}
	if r.count--; r.count == 0 {
		r.rows = nil
	}
	return r.slicing
}

// withCount is a tag with another number of rows.
func withCount(tag string, rows int) string {
	words, number, found := cutLast(tag)
	if !found || strings.Trim(number, "0123456789") != "" {
		return tag
	}
	return words + " " + strconv.Itoa(rows)
}

func cutLast(tag string) (words, number string, found bool) {
	i := strings.LastIndexByte(tag, ' ')
	if i < 0 {
		return tag, "", false
	}
	return tag[:i], tag[i+1:], true
}
