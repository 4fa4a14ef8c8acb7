package sqlgate

import (
	"context"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// finish records what became of a dispatched statement and answers. Whatever
// happened, it is in the log before the client hears of it.
func (g *Gate) finish(ctx context.Context, s *submission, recorded commands.Recorded, result pgexec.Result, rows *pgexec.Rows, cause error) (*Answer, error) {
	a := s.answer()
	a.Executed, a.ExecutionID, a.ExecutionState = true, recorded.ExecutionID, string(result.State)
	a.Events = recorded.Events
	command := &commands.RecordResult{
		Request: &s.record, Decision: &s.decision, ExecutionID: recorded.ExecutionID, Written: s.ExecutionProfile == ProfileLatency,
	}
	if s.approved {
		command.ApprovalID = s.ApprovalID
	}
	a.Notices = result.Notices
	if result.State == pgexec.Success {
		if rows != nil {
			a.Rows, a.Columns = rows.JSON(), rows.ColumnsJSON()
		}
		a.RowCount, a.CommandTag = result.RowCount, result.CommandTag
		a.Warnings, a.Duration = result.Warnings, time.Since(s.watch.begin)
		command.Success = successRecord(&result)
		if s.tried != nil {
			a.DryRun = s.tried
			command.Success.RolledBack, command.Success.DryRun = true, s.dryRunRecord()
		}
		command.Success.Answer = s.keepAnswer(a)
		return g.answerRecorded(ctx, s, a, command)
	}
	f := g.overGrant(s, s.refusedBySink(&result, fault.Of(cause)))
	if result.ReasonCode == pgexec.ReasonReadFence {
		return g.fenceViolation(ctx, s, a, command, &result)
	}
	if s.outlasts() || result.Elsewhere {
		result, f = partly(result, f)
	}
	f = f.WithBeside("execution_state", string(result.State)).WithBeside("execution_id", recorded.ExecutionID)
	if result.Settled != nil {
		f = f.With("outcome", result.Settled.Outcome)
	}
	g.describeFailure(s.keepFault(f, g.StatusOf), command, &result, f)
	if err := g.recordResult(ctx, s, a, command); err != nil {
		return nil, err
	}
	g.noteOutage(ctx, f)
	return nil, f
}

// describeFailure fills in the evidence of a failure or of an unknown outcome.
func (g *Gate) describeFailure(kept *event.Answer, command *commands.RecordResult, result *pgexec.Result, f *fault.Fault) {
	if result.State == pgexec.Unknown {
		command.Unknown = &commands.Unknown{
			ExecutionStateUnknown: event.ExecutionStateUnknown{Step: result.Step, Cause: result.Cause, Answer: kept}, ErrorCode: string(f.Code),
		}
		if result.Elsewhere { // whatever the tables are when it is checked
			command.Resolved = &event.ExecutionOutcomeResolved{Outcome: pgexec.OutcomeNotKnowable, Basis: pgexec.BasisForeignTables}
		}
		if settled := result.Settled; settled != nil {
			command.Resolved = &event.ExecutionOutcomeResolved{Outcome: settled.Outcome, Basis: settled.Basis, Answered: settled.Answered}
		}
		return
	}
	command.Failure = &commands.Failure{
		ExecutionFailure: event.ExecutionFailure{
			SQLState: result.SQLState, Outcome: result.Outcome, Basis: result.Basis, DurationUS: int(result.Duration.Microseconds()),
			Rows: int(result.RowCount), Answer: kept,
		},
		ReasonCode: result.ReasonCode, ErrorCode: string(f.Code),
	}
	if g.SQLText == SQLTextFull {
		command.Failure.Message = result.DBMessage // it carries values
	}
}

// fenceViolation answers BLOCK: the database refused, as a write, what the
// classifier took for a safe read. Nothing was applied.
func (g *Gate) fenceViolation(ctx context.Context, s *submission, a *Answer, command *commands.RecordResult, result *pgexec.Result) (*Answer, error) {
	g.Logger.Error("the database refused a safe read as a write: classification and database disagree", "source", "gate",
		"request_id", s.RequestID, "fingerprint", s.classification.Fingerprint)
	command.Failure = &commands.Failure{
		ExecutionFailure: event.ExecutionFailure{SQLState: result.SQLState, Outcome: event.OutcomeAborted, Basis: result.Basis},
		ReasonCode:       pgexec.ReasonReadFence,
	}
	command.Violation = &event.ReadFenceViolation{SQLState: result.SQLState}
	a.Executed, a.Enforced = false, true
	a.Result = policy.Result{
		Decision: policy.Block, ReasonCode: pgexec.ReasonReadFence, RuleID: "read_fence", Layer: "database",
		Message: "The statement reads, and the database refused it because something behind it writes (a function, view, rule or trigger). Nothing was applied.",
		Remedy:  "Call what writes by name, so that a policy rule can decide about it.",
	}
	command.Failure.Answer = s.keepAnswer(a)
	return g.answerRecorded(ctx, s, a, command)
}

// answerRecorded gives the answer once its evidence is in the log.
func (g *Gate) answerRecorded(ctx context.Context, s *submission, a *Answer, command *commands.RecordResult) (*Answer, error) {
	if err := g.recordResult(ctx, s, a, command); err != nil {
		return nil, err
	}
	return a, nil
}

// recordResult appends the result. A result that cannot be written is an
// unknown outcome for everybody who reads the log, so the client is told that
// and gets no rows (spec/decisions.md part 4).
func (g *Gate) recordResult(ctx context.Context, s *submission, a *Answer, command *commands.RecordResult) error {
	g.Step("result.before_append")
	begin := time.Now()
	recorded, err := g.Commands.RecordResult(context.WithoutCancel(ctx), command)
	s.watch.time(phaseLog, begin)
	if err != nil {
		s.unrecorded = true
		return resultNotWritten(err).WithBeside("execution_id", command.ExecutionID)
	}
	g.Step("result.appended")
	a.Events = append(a.Events[:len(a.Events):len(a.Events)], recorded.Events...)
	return nil
}

// resultNotWritten is what a client is told where the log could not take what
// became of its statement. The words of a refusal would have it send it again.
func resultNotWritten(err error) *fault.Fault {
	told := fault.New(fault.AuditUnavailable, "The statement was sent to the database, and what became of it could not be written to the event log. Look it up (GET /executions) before you send it again.")
	f := fault.Of(err)
	if f.Code == fault.AuditCorruptionDetected {
		told.Code = f.Code
	}
	for key, value := range f.Details {
		told = told.With(key, value)
	}
	return told.WithBeside("execution_state", StateUnknown).Because(err)
}

func successRecord(r *pgexec.Result) *event.ExecutionSuccess {
	p := &event.ExecutionSuccess{
		CommandTag: r.CommandTag, RowCount: int(r.RowCount), Bytes: int(r.Bytes), DurationUS: int(r.Duration.Microseconds()),
		Basis: r.Basis, Warnings: r.Warnings,
	}
	if r.RowsChanged != nil {
		p.RowsChanged = int(*r.RowsChanged)
	}
	return p
}
