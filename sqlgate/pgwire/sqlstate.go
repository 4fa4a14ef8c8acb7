package pgwire

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"

	"writegate/commands/fault"
	"writegate/sqlgate"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
)

// SQLSTATEs of the gate's own; classes that begin with G are nobody's.
const (
	stateApprovalNeeded = "GT001"
	stateApproval       = "GT002" // every error_code of approvals
	stateRowLimit       = "GT003"
)

// stateToken is invalid_password, of an agent's token that is not good any more.
const stateToken = "28P01"

// states are the SQLSTATEs of faults (design/execution-and-wire.md part 9). What
// is not here cannot come by this road; it is 58000.
var states = map[fault.Code]string{
	fault.ParserError: "42601", fault.MultiStatementRejected: "42601", fault.EmptySQL: "42601",
	fault.ParserUnsupportedSyntax: "0A000", fault.UnsupportedSQLShape: "0A000",
	fault.OversizedSQL: "54000", fault.OversizedRequest: "54000", fault.ResultTooLarge: "54000", fault.SessionLimitExceeded: "54000",
	fault.ApprovalNotFound: stateApproval, fault.ApprovalExpired: stateApproval, fault.ApprovalRejected: stateApproval, fault.ApprovalMismatch: stateApproval,
	fault.ApprovalAlreadyUsed: stateApproval, fault.ApprovalOutcomeUnknown: stateApproval,
	fault.RowLimitExceeded:   stateRowLimit,
	fault.UnsafeReadShape:    "25006",
	fault.DBConnectionFailed: "57P03", fault.DBUnavailable: "57P03", fault.PolicyNotLoaded: "57P03",
	fault.RateLimitExceeded: "53400",
	fault.AuditUnavailable:  "58000", fault.AuditCorruptionDetected: "58000", fault.Internal: "58000",
	fault.DBQueryFailed:             "XX000", // the server's own, where it is known
	fault.PreparedStatementNotFound: "26000",
	fault.ValidationFailed:          "22023",
	fault.TokenRevoked:              stateToken, fault.TokenExpired: stateToken, fault.InsufficientScope: stateToken,
}

// Outcomes that a timeout can have (spec/decisions.md part 4).
const (
	stateUnknown   = "08007"
	stateCancelled = "57014"
)

// failureOf is the ErrorResponse for any error of a Wire.
func failureOf(err error) *failure {
	var own *failure
	var refusal *sqlgate.WireRefusal
	var wire *sqlgate.WireError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &refusal):
		return refused(refusal)
	case errors.As(err, &wire):
		f := newFailure(wire.Fatal, wire.SQLState, wire.Message)
		f.response.Detail, f.response.Hint = wire.Detail, wire.Hint
		return f
	}
	return faultFailure(fault.Of(err))
}

// fatal is the same for an error that ends the connection.
func fatal(err error) *failure {
	f := failureOf(err)
	f.fatal = true
	f.response.Severity, f.response.SeverityUnlocalized = "FATAL", "FATAL"
	return f
}

// refused says BLOCK and REQUIRE_APPROVAL. DETAIL is what finds the rule, the approval
// and the evidence, by the names that POST /query has for them; a person reads it.
func refused(r *sqlgate.WireRefusal) *failure {
	a := r.Answer
	f := newFailure(false, "42501", r.Error())
	var detail []string
	for _, part := range []struct{ name, value string }{
		{"rule_id", a.Result.RuleID}, {"reason_code", a.Result.ReasonCode}, {"approval_id", a.ApprovalID}, {"request_id", a.RequestID},
	} {
		if part.value != "" {
			detail = append(detail, part.name+": "+part.value)
		}
	}
	f.response.Detail, f.response.Hint = strings.Join(detail, ", "), a.Result.Remedy
	if a.Result.Decision == policy.RequireApproval {
		f.response.Code = stateApprovalNeeded
		f.response.Hint = fmt.Sprintf("After approval send it again, once: after SET gate.approval_id = '%s', or with /* gate.approval_id=%s */ in front.", a.ApprovalID, a.ApprovalID)
	}
	if r.Hint != "" {
		f.response.Hint += " " + r.Hint
	}
	return f
}

// faultFailure says a fault: what the database refused as the database said it,
// all else in the gate's words, with the error object as DETAIL. So is what the database
// refused where a part of it may stand all the same.
func faultFailure(f *fault.Fault) *failure {
	state, ok := states[f.Code]
	if f.Code == fault.DBQueryTimeout {
		state, ok = stateUnknown, true
		if f.Details["outcome"] == "aborted" || f.Beside["execution_state"] == sqlgate.StateNotExecuted {
			state = stateCancelled
		}
	}
	if !ok {
		state = "58000"
	}
	if state == "58000" && f.Beside["execution_state"] == sqlgate.StateUnknown { // it ran, and the log does not have how it ended
		state = stateUnknown
	}
	out := newFailure(false, state, f.Message)
	out.cause = f
	stands := f.Details["outcome"] == pgexec.OutcomePartialPossible || f.Details["outcome"] == pgexec.OutcomeNotKnowable
	if f.Code == fault.DBQueryFailed {
		if code, ok := f.Details["sqlstate"].(string); ok {
			out.response.Code = code
		}
		if stands && (pgexec.Retryable(out.response.Code) || out.response.Code == stateCancelled) {
			out.response.Code = stateUnknown // drivers send the others again by themselves, and this one says that nothing was applied
		}
		if said, ok := pgexec.ServerErrorOf(f); ok {
			if repeat(&out.response, said, f); !stands {
				return out
			}
			out.response.Message = f.Message
		}
	}
	if character, ok := f.Details["character"].(int); ok {
		out.response.Position = int32(character)
	}
	out.response.Hint, _ = f.Details["hint"].(string)
	if object, err := json.Marshal(errorObject(f)); err == nil {
		out.response.Detail = string(object)
	}
	return out
}

// repeat fills in what the server said. Texts that carry values of rows are in
// the fault's details where the operator lets them through.
func repeat(e *pgproto3.ErrorResponse, said pgexec.ServerError, f *fault.Fault) {
	e.Message, e.Hint = said.Message, said.Hint
	e.SchemaName, e.TableName, e.ColumnName, e.DataTypeName, e.ConstraintName = said.Schema, said.Table, said.Column, said.DataType, said.Constraint
	e.Detail, _ = f.Details["detail"].(string)
	e.Where, _ = f.Details["context"].(string)
	if position, ok := f.Details["position"].(int64); ok {
		e.Position = int32(position)
	}
}

// errorObject is the error object of the contract without its error_id.
func errorObject(f *fault.Fault) map[string]any {
	object := map[string]any{}
	maps.Copy(object, f.Beside)
	object["error_code"] = f.Code
	if len(f.Details) > 0 {
		object["details"] = f.Details
	}
	return object
}
