package pgexec

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A State is what is known about an execution when pgexec has done its part.
type State string

// The states of a Result.
const (
	Success State = "success"
	Failure State = "failure"
	Unknown State = "unknown"
)

// Values of a Result's fields, as the events record them.
const (
	BasisCommitAcknowledged   = "commit_acknowledged"
	BasisReadRolledBack       = "read_rolled_back"
	BasisAloneCompleted       = "alone_completed"
	BasisRollbackAcknowledged = "rollback_acknowledged"
	BasisCommitNeverSent      = "commit_never_sent"
	BasisReadOnly             = "read_only"

	OutcomeAborted         = "aborted"
	OutcomePartialPossible = "partial_possible"

	ReasonDBError         = "db_error"
	ReasonRowLimit        = "row_limit_exceeded"
	ReasonResultTooLarge  = "result_too_large"
	ReasonCommitNeverSent = "commit_never_sent"
	ReasonRolledBack      = "rolled_back"
	ReasonCancelled       = "cancelled"
	ReasonOvertime        = "transaction_overtime" // open for longer than a transaction may be
	ReasonSettingsDrift   = "settings_drift"
	ReasonReadFence       = "read_fence_violation"
	ReasonCatalogChanged  = "catalog_changed" // what it was judged by is defined otherwise by now
	WarningNotReplicated  = "not_replicated"
	StepStatement         = "statement"
	StepCommit            = "commit"
	CauseTimeout          = "timeout"
	CauseConnectionLost   = "connection_lost"
	notCountable          = "not_countable"
)

// A Result is all that the result events of one execution record. Which fields
// are set depends on State:
//
//	Success  CommandTag, RowCount, RowsChanged, Bytes, Basis, Warnings, Notices
//	Failure  ReasonCode, Outcome, Basis, and SQLState and DBMessage where the server answered
//	Unknown  Step, Cause; and Settled where the gate knows at once that nothing
//	         was applied: execution_outcome_resolved then stands in the same
//	         append as execution_state_unknown, and the record reads failure
type Result struct {
	State       State
	CommandTag  string // as the server wrote it
	RowCount    int64  // the tag's number for a write, the rows returned for a read
	RowsChanged *int64 // counted by the server's statistics; set under max_rows alone. Of a block's end: by deferred triggers
	Bytes       int64  // of the values received
	Basis       string

	ReasonCode string
	Outcome    string // aborted or partial_possible
	SQLState   string
	DBMessage  string // the server's text: it carries values, for the log under GATE_AUDIT_SQL_TEXT=full alone
	Elsewhere  bool   // a COMMIT failed or was not answered, and foreign tables may hold a part of what it was for

	Step, Cause string
	Settled     *Settled

	Warnings []string
	Notices  []Notice
	Duration time.Duration // from sending the statement to the last answer
}

// Settled is an outcome that is known although the answer is "unknown".
type Settled struct {
	Outcome  string // aborted
	Basis    string
	Answered string // what the server answered: a SQLSTATE, or ""
}

// tagRows reads the number at the end of a command tag: "INSERT 0 5" is 5. Tags
// without one ("CREATE TABLE") count nothing.
func tagRows(tag string) int64 {
	n, err := strconv.ParseInt(tag[strings.LastIndexByte(tag, ' ')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// aborted is the result of a statement that certainly was not applied.
func aborted(reason, basis string) Result {
	return Result{State: Failure, ReasonCode: reason, Outcome: OutcomeAborted, Basis: basis}
}

// timedOut is the contract's answer to every timeout, unknown, with the outcome
// that the gate knows all the same.
func timedOut(basis, answered string) Result {
	return Result{
		State: Unknown, Step: StepStatement, Cause: CauseTimeout,
		Settled: &Settled{Outcome: OutcomeAborted, Basis: basis, Answered: answered},
	}
}

// withServer notes the server's answer in a result.
func (r Result) withServer(e *pgconn.PgError) Result {
	if e != nil {
		r.SQLState, r.DBMessage = e.Code, clip(e.Message)
	}
	return r
}

// unreplicated is the server's function that gives up the wait for a standby.
const unreplicated = "SyncRepWaitForLSN"

// notReplicated reports whether a COMMIT came with the notice that its wait for
// a standby was cancelled: it is committed, though perhaps on one machine alone.
// The text is localised, so the server's function tells it.
func notReplicated(notices []Notice) bool {
	for _, n := range notices {
		if n.Severity == "WARNING" && n.routine == unreplicated {
			return true
		}
	}
	return false
}

// lastError is the server's error in a conversation that broke off, nil when it
// broke off without one.
func lastError(refused *pgconn.PgError, err error) *pgconn.PgError {
	if refused != nil {
		return refused
	}
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e
	}
	return nil
}
