package sqlgate

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// carryOut records the decision and does what follows from it. Nothing of the
// client's is sent before the append of the decision succeeded.
func (g *Gate) carryOut(ctx context.Context, s *submission) (*Answer, error) {
	switch {
	case !s.runs():
		return g.stop(ctx, s)
	case s.isControl():
		return g.control(ctx, s)
	}
	if err := s.countable(); err != nil {
		return nil, g.refuse(ctx, s, err)
	}
	s.executionID = event.NewExecutionID(g.Now())
	switch s.classification.Run {
	case classify.RunReadFence:
		return g.read(ctx, s)
	case classify.RunAlone:
		return g.alone(ctx, s)
	default:
		return g.write(ctx, s)
	}
}

// stop records a BLOCK or asks for an approval; nothing runs.
func (g *Gate) stop(ctx context.Context, s *submission) (*Answer, error) {
	command := &commands.RecordDecision{Request: s.record, Decision: s.decision}
	a := s.answer()
	if s.result.Decision == policy.RequireApproval {
		impact, err := g.impact(ctx, s)
		if err != nil {
			return nil, err
		}
		if s.cancelled(context.Canceled) {
			return nil, g.refuse(ctx, s, context.Canceled)
		}
		command.NewApproval = &commands.NewApproval{
			SQL: s.SQL, PreparedSQL: s.preparedSQL(), Parameters: s.shownParams(), Impact: impact, Classification: string(appendValue(nil, a.Classification)), Message: a.message(), Remedy: a.remedy(),
			AgentPolicyID: a.AgentPolicyID,
		}
	}
	recorded, err := g.recordDecision(ctx, s, command)
	if err != nil {
		return nil, err
	}
	a.ApprovalID, a.ApprovalExpiresAt, a.Events = recorded.ApprovalID, recorded.ExpiresAt, recorded.Events
	return a, nil
}

// recordDecision is the commit point of the journey.
func (g *Gate) recordDecision(ctx context.Context, s *submission, command *commands.RecordDecision) (commands.Recorded, error) {
	if s.bypass {
		command.Emergency = &event.EmergencyBypass{Reason: g.BypassReason, Until: g.BypassUntil.UnixNano(), By: s.Operator}
	}
	g.Step("decision.before_append")
	recorded, err := g.record(ctx, s, command)
	if err == nil {
		s.counted(recorded.At)
		g.Step("decision.appended")
		g.warnOfBypass(s)
	}
	return recorded, err
}

// record writes a decision. One that lets text reach the server, to run or to be
// described, is written only while the policy that decided is in force, and one
// of the wire only for a client who could still log in.
func (g *Gate) record(ctx context.Context, s *submission, command *commands.RecordDecision) (commands.Recorded, error) {
	if s.wire != nil {
		command.Ahead = s.wire.wire.ahead
	}
	if s.Agent.ID != "" {
		command.Keys = g.Overlay.Aggregates(s.Agent)
		command.Extra, command.Around = g.Overlay.Settle(s.Agent, s.layer, s.RequestID, s.enforced)
	}
	sends := command.Dispatch != nil || command.Decision.Run == event.RunDescribe
	if within := command.Around; sends || s.wire != nil {
		command.Around = func(write func() error) error {
			g.inForce.RLock()
			defer g.inForce.RUnlock()
			if s.wire != nil {
				if err := s.wire.wire.stands(); err != nil {
					return err
				}
			}
			if sends && s.Stands != nil {
				if err := s.Stands(); err != nil {
					return err
				}
			}
			switch {
			case sends && !g.decides(s):
				return ErrPolicyChanged
			case sends && command.Dispatch == nil && s.cancelled(context.Canceled), // of a description: no execution is to be cancelled later
				command.Dispatch != nil && s.wire != nil && !s.wire.wire.current.dispatches(g.Database):
				return context.Canceled
			case within != nil:
				return within(write)
			}
			return write()
		}
	}
	begin := time.Now()
	recorded, err := g.Commands.RecordDecision(context.WithoutCancel(ctx), command)
	s.watch.time(phaseLog, begin)
	switch {
	case errors.Is(err, commands.ErrGrantLost):
		err = ErrPolicyChanged // it is decided anew, in the same way
	case err == nil:
		s.recordedAhead()
	case ends(err):
		err = s.wire.wire.refuseAs(ctx, s, err)
	case command.Dispatch != nil && s.cancelled(err):
		err = g.notDispatched(ctx, s, err)
	case isRefusal(err), s.cancelled(err):
		err = g.refuse(ctx, s, err)
	case commands.MayBeWritten(err):
		s.layer.Counted = nil // it stays counted
	}
	return recorded, err
}

// decides reports whether the policy and the mode that decided are those in force.
func (g *Gate) decides(s *submission) bool {
	return g.running.Load() == s.policy && g.ModeNow() == s.mode
}

// warnOfBypass tells whoever watches the operational log; the evidence says it all.
func (g *Gate) warnOfBypass(s *submission) {
	if s.bypass {
		g.Logger.Warn("emergency bypass: a statement runs whatever was decided about it", "source", "gate", "request_id", s.RequestID,
			"decision", string(s.result.Decision), "reason_code", s.result.ReasonCode, "operator", s.Operator)
	}
}

// cancelled reports whether an error is that of a statement of the wire that was
// cancelled while it waited.
func (s *submission) cancelled(err error) bool {
	return s.wire != nil && errors.Is(err, context.Canceled) && s.wire.wire.current.waited()
}

// isRefusal holds for what the state of an approval or of a key forbids, also
// when that was found only under its lock: somebody else was quicker; and for what
// is too large for a record of the log. All other errors of a command mean that
// the log cannot be written.
func isRefusal(err error) bool {
	switch fault.CodeOf(err) {
	case fault.ApprovalNotFound, fault.ApprovalRejected, fault.ApprovalExpired, fault.ApprovalMismatch, fault.ApprovalOutcomeUnknown,
		fault.ApprovalAlreadyUsed, fault.IdempotencyConflict, fault.IdempotencyInProgress, fault.TokenRevoked, fault.TokenExpired, fault.CredentialsInvalid,
		fault.OversizedRequest:
		return true
	}
	return false
}

// dispatch is the command that lets the statement run.
func (s *submission) dispatch(path string, d pgexec.Dispatch) *commands.RecordDecision {
	statement := s.statement()
	command := &commands.RecordDecision{
		Request: s.record, Decision: s.decision, ExecutionID: s.executionID, Idempotency: s.idempotency(),
		Dispatch: &event.ExecutionDispatched{
			Path: path, SQLSHA256: sha256.Sum256([]byte(statement.SQL)), Params: paramsRecord(&statement), Limits: limitsRecord(d.Limits),
			Settings: d.Settings, Upstream: upstreamRecord(d.Upstream), XID: d.XID, Marker: d.Marker, BlockID: s.blockID(),
		},
	}
	if s.approved {
		command.UseApproval = s.ApprovalID
	}
	command.UseGrant = s.useOf(d.Limits)
	return command
}

func paramsRecord(st *pgexec.Statement) *event.Params {
	if len(st.Params) == 0 {
		return nil
	}
	return &event.Params{Count: len(st.Params), SHA256: pgexec.ParamsDigest(st)}
}

func limitsRecord(l pgexec.Limits) event.Limits {
	return event.Limits{Rows: l.Rows, Bytes: int(l.Bytes), MaxRows: l.MaxRows, TimeoutMS: int(l.Timeout.Milliseconds())}
}

func upstreamRecord(u pgexec.Upstream) event.Upstream {
	return event.Upstream{
		SystemIdentifier: u.SystemIdentifier, Timeline: u.Timeline, CrashMark: u.CrashMark, Database: u.Database, Host: u.Host, Role: u.Role,
		BackendPID: int(u.BackendPID), BackendStart: u.BackendStart,
	}
}

// limits bound the execution by profile and approval.
func (g *Gate) limits(s *submission) pgexec.Limits {
	l := pgexec.Limits{Rows: g.ResultRows, Bytes: g.ResultBytes, MaxRows: s.maxRows(), Timeout: g.QueryTimeout}
	if s.ExecutionProfile == ProfileBulk {
		l.Bulk, l.Timeout = true, g.BulkTimeout
	}
	if s.wire != nil {
		l.Timeout = s.wire.wire.timeout(l.Timeout)
	}
	if s.classification.Run == classify.RunReadFence || slices.Contains(withoutSnapshot, s.classification.QueryType) {
		l.MaxRows = nil // it changes nothing
	}
	return l
}

// preparedSQL is what an EXECUTE runs, "" for all else.
func (s *submission) preparedSQL() string {
	if s.execute == nil {
		return ""
	}
	return s.execute.sql
}

// trace is what the database shows of the caller's trace. A statement that a person approved
// has none, nor one whose dry run a person may be shown: it could read it (application_name), and so do what the person was not shown.
func (s *submission) trace() string {
	if s.ApprovalID != "" || s.DryRun {
		return ""
	}
	return s.Trace
}

// statement is exactly the text that was judged: the bytes of the one statement,
// and for an EXECUTE those of what was prepared, with its arguments beside it.
func (s *submission) statement() pgexec.Statement {
	st := pgexec.Statement{SQL: s.SQL, Trace: s.trace(), Settings: s.settings(), Meaning: s.meaning(), Owner: s.owner(), Definitions: s.definitions}
	if b := s.execute; b != nil {
		st.SQL, st.ParamOIDs, st.Params = b.sql, b.types, b.values
	}
	st.SQL = st.SQL[s.classification.Start:s.classification.End]
	switch {
	case s.wire == nil:
	case s.execute == nil:
		s.wire.bind(&st)
	case s.wire.portal != nil:
		st.ResultFormats = s.wire.portal.resultFormats
	}
	return st
}

// meaning is what the database said of the statement when it was judged.
func (s *submission) meaning() pgexec.Meaning {
	m := pgexec.Meaning{Major: s.classification.Engine.ServerMajor, Words: s.classification.Attributes, Calls: s.calls, Catalogue: s.catalogue}
	switch {
	case s.execute != nil:
		m.Types = s.execute.names
	case s.wire != nil:
		m.Types = s.wire.names
	}
	return m
}

// owner is whose a statement is, of what the gate knows and of what is claimed.
func (s *submission) owner() string {
	return strings.Join([]string{s.Actor, s.App, s.Tenant, s.Role, s.Host, s.Env, s.TLSSubject, s.WireUser, s.Agent.ID, s.Agent.CredentialID, s.Operator}, "\x00")
}

// sink takes the result: the client of the wire as it comes, or as JSON for
// POST /query.
func (g *Gate) sink(s *submission, l pgexec.Limits) (pgexec.Sink, *pgexec.Rows) {
	if s.wire != nil {
		return s.wire.out, nil
	}
	rows := g.Database.NewRows(l.Bytes)
	return rows, rows
}

// read runs a safe read behind the fence: BEGIN READ ONLY ... ROLLBACK. A
// client that hangs up cancels it.
func (g *Gate) read(ctx context.Context, s *submission) (*Answer, error) {
	limits := g.limits(s)
	statement := s.statement()
	begin := time.Now()
	reading, err := g.Database.BeginRead(ctx, &statement, limits) // what waits for it is decided by the policy that is in force then
	s.watch.time(phaseDatabase, begin)
	if err != nil {
		return nil, g.notDispatched(ctx, s, err)
	}
	defer reading.Release() // does nothing once the statement has run
	recorded, err := g.recordDecision(ctx, s, s.dispatch(event.PathRead, reading.Dispatch()))
	if err != nil {
		return nil, err
	}
	sink, rows := g.sink(s, limits)
	begin = time.Now()
	result, err := reading.Run(ctx, s.executionID, statement, sink)
	s.watch.time(phaseDatabase, begin)
	g.Step("read.executed")
	return g.finish(ctx, s, recorded, result, rows, err)
}

// write runs a statement in a transaction of its own. The connection, BEGIN and
// the transaction id come first, so that the id is in the dispatch evidence;
// COMMIT is sent on its own, after the rows were counted. A client that hangs
// up does not cancel a write: that would only make unknowns.
func (g *Gate) write(ctx context.Context, s *submission) (*Answer, error) {
	ctx = context.WithoutCancel(ctx)
	limits := g.limits(s)
	begin := time.Now()
	tx, err := g.Database.Begin(s.waits(ctx), g.beginOptions(s, limits)) // W1: nothing of the client's is sent
	s.watch.time(phaseDatabase, begin)
	if err != nil {
		return nil, g.notDispatched(ctx, s, err)
	}
	defer tx.Rollback() // does nothing once the transaction has ended
	g.Step("write.begun")
	recorded, err := g.recordDecision(ctx, s, s.dispatch(event.PathTx, tx.Dispatch())) // W2: COMMIT POINT of the log
	if err != nil {
		return nil, err
	}
	sink, rows := g.sink(s, limits)
	begin = time.Now()
	result, err := tx.Exec(ctx, s.statement(), sink) // W3, W4
	if err == nil {
		g.Step("write.executed")
		s.committing()
		result, err = tx.Commit(ctx) // W5: COMMIT POINT of the database
		g.Step("write.committed")
	}
	s.watch.time(phaseDatabase, begin)
	return g.finish(ctx, s, recorded, result, rows, err)
}

// alone runs what PostgreSQL refuses inside a transaction block. There is no
// transaction id, and a failure may have left something behind.
func (g *Gate) alone(ctx context.Context, s *submission) (*Answer, error) {
	ctx = context.WithoutCancel(ctx)
	limits := g.limits(s)
	begin := time.Now()
	alone, err := g.Database.BeginAlone(s.waits(ctx), g.beginOptions(s, limits))
	s.watch.time(phaseDatabase, begin)
	if err != nil {
		return nil, g.notDispatched(ctx, s, err)
	}
	defer alone.Close() // does nothing once the statement has run
	recorded, err := g.recordDecision(ctx, s, s.dispatch(event.PathAlone, alone.Dispatch()))
	if err != nil {
		return nil, err
	}
	sink, rows := g.sink(s, limits)
	begin = time.Now()
	result, err := alone.Exec(ctx, s.statement(), sink)
	s.watch.time(phaseDatabase, begin)
	return g.finish(ctx, s, recorded, result, rows, err)
}

// beginOptions picks the role: ddl, dcl and maintenance have their own, and a REFRESH,
// which is a write that only the view's owner may do.
func (g *Gate) beginOptions(s *submission, l pgexec.Limits) pgexec.BeginOptions {
	o := pgexec.BeginOptions{ExecutionID: s.executionID, Limits: l, Trace: s.trace(), Settings: s.settings(), UserCode: s.callsUserCode(), Meaning: s.meaning(),
		NoSnapshot: slices.Contains(withoutSnapshot, s.classification.QueryType)}
	switch s.classification.Class {
	case classify.ClassDDL, classify.ClassDCL, classify.ClassMaintenance:
		o.DDL = true
	default:
		o.DDL = s.classification.QueryType == classify.TypeRefresh
	}
	return o
}

// notDispatched records a decision whose statement could not even be begun:
// the approval and the key stay usable.
func (g *Gate) notDispatched(ctx context.Context, s *submission, cause error) error {
	f := g.overGrant(s, fault.Of(cause))
	reason := string(f.Code)
	if s.wire != nil && s.wire.wire.current.waited() {
		f, reason = errCancelled(), pgexec.ReasonCancelled
	}
	command := &commands.RecordDecision{Request: s.record, Decision: s.decision, ExecutionID: s.executionID, NotDispatched: &commands.Failure{
		ExecutionFailure: event.ExecutionFailure{Outcome: event.OutcomeNotExecuted},
		ReasonCode:       reason, ErrorCode: string(f.Code),
	}}
	if s.approved {
		command.UseApproval = s.ApprovalID
	}
	recorded, err := g.recordDecision(ctx, s, command)
	if err != nil {
		return err
	}
	g.noteOutage(ctx, f)
	return f.WithBeside("execution_state", StateNotExecuted).WithBeside("execution_id", recorded.ExecutionID)
}
