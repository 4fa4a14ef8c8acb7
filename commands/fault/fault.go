// Package fault holds the coded errors of the service.
//
// Every failure that a client may see is a Fault: an error_code of the
// contract (spec/gate.md part 7 and spec/decisions.md part 1), a message that
// tells the person what to do, and details a program can read. Packages return
// faults; only http/httpd turns a code into an HTTP status and only the wire
// listener turns it into a SQLSTATE, so a code means the same on every road.
//
// The cause of a fault is for the operational log alone. It never reaches a
// client, because it may hold connection strings or values of rows.
package fault

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Code is an error_code of the contract: stable, lower-case, snake_case.
type Code string

// Codes of the gate's paths, in the order of the contract's table and then of
// the decisions page.
const (
	PolicyNotLoaded           Code = "policy_not_loaded"
	PolicyActivationFailed    Code = "policy_activation_failed"
	ApprovalExpired           Code = "approval_expired"
	ApprovalRejected          Code = "approval_rejected"
	UnauthorizedOperator      Code = "unauthorized_operator"
	DBConnectionFailed        Code = "db_connection_failed"
	DBUnavailable             Code = "db_unavailable"
	DBQueryTimeout            Code = "db_query_timeout"
	RateLimitExceeded         Code = "rate_limit_exceeded"
	OversizedRequest          Code = "oversized_request"
	OversizedSQL              Code = "oversized_sql"
	SessionNotFound           Code = "session_not_found"
	InvalidJSON               Code = "invalid_json"
	EmptySQL                  Code = "empty_sql"
	MultiStatementRejected    Code = "multi_statement_rejected"
	ParserError               Code = "parser_error"
	ParserUnsupportedSyntax   Code = "parser_unsupported_syntax"
	UnsupportedSQLShape       Code = "unsupported_sql_shape"
	UnsafeReadShape           Code = "unsafe_read_shape"
	ApprovalNotFound          Code = "approval_not_found"
	PreparedStatementNotFound Code = "prepared_statement_not_found"

	NotFound                Code = "not_found"
	MethodNotAllowed        Code = "method_not_allowed"
	UnsupportedMediaType    Code = "unsupported_media_type"
	ValidationFailed        Code = "validation_failed"
	ApprovalAlreadyResolved Code = "approval_already_resolved"
	ApprovalMismatch        Code = "approval_mismatch"
	ApprovalAlreadyUsed     Code = "approval_already_used"
	ApprovalOutcomeUnknown  Code = "approval_outcome_unknown"
	IdempotencyConflict     Code = "idempotency_conflict"
	IdempotencyInProgress   Code = "idempotency_in_progress"
	RowLimitExceeded        Code = "row_limit_exceeded"
	PolicyVersionExists     Code = "policy_version_exists"
	PolicyNotFound          Code = "policy_not_found"
	PolicyInvalid           Code = "policy_invalid"
	SessionLimitExceeded    Code = "session_limit_exceeded"
	ResultTooLarge          Code = "result_too_large"
	DBQueryFailed           Code = "db_query_failed"
	AuditUnavailable        Code = "audit_unavailable"
	AuditCorruptionDetected Code = "audit_corruption_detected"
	Internal                Code = "internal"
	ForbiddenOrigin         Code = "forbidden_origin"
	MisdirectedRequest      Code = "misdirected_request"
	GrantNotFound           Code = "grant_not_found"
	GrantEnded              Code = "grant_ended"
	GrantLimitExceeded      Code = "grant_limit_exceeded"
	DryRunRefused           Code = "dry_run_refused"
)

// Codes of the control plane, which is a process of its own.
const (
	LoginRequired      Code = "login_required"
	LoginFailed        Code = "login_failed"
	ForgedRequest      Code = "forged_request"
	BackendUnavailable Code = "backend_unavailable"
)

// Codes of the paths under /v1 (spec/v1.md part 4).
const (
	CredentialsMissing  Code = "credentials_missing"
	CredentialsInvalid  Code = "credentials_invalid"
	TokenExpired        Code = "token_expired"
	TokenRevoked        Code = "token_revoked"
	InsufficientScope   Code = "insufficient_scope"
	AgentMismatch       Code = "agent_mismatch"
	CredentialMismatch  Code = "credential_mismatch"
	AgentNotFound       Code = "agent_not_found"
	TokenNotFound       Code = "token_not_found"
	EventNotFound       Code = "event_not_found"
	ApplicationNotFound Code = "application_not_found"
	RevisionMismatch    Code = "revision_mismatch"
	AgentInactive       Code = "agent_inactive"
	PolicyDisabled      Code = "policy_disabled"
	TokenLimitExceeded  Code = "token_limit_exceeded"
	SubjectBound        Code = "subject_bound"
	SubjectNotFound     Code = "subject_not_found"
	IssuerUnavailable   Code = "issuer_unavailable"
	CursorInvalid       Code = "cursor_invalid"

	ToolNotFound           Code = "tool_not_found"
	ToolDisabled           Code = "tool_disabled"
	ToolNotVerifiable      Code = "tool_not_verifiable"
	VerificationInProgress Code = "verification_in_progress"
	FingerprintChanged     Code = "fingerprint_changed"

	AllEventsRejected Code = "all_events_rejected"
)

// A Fault is a failure with a code of the contract. Message is for the person
// who sent the request and says what to do next; Details is for programs; Beside
// stands at the top level of the error object, next to error_code (an unknown
// outcome puts execution_state and execution_id there, spec/decisions.md part
// 4). All three may be shown to the client and therefore hold no secret.
type Fault struct {
	Code    Code
	Message string
	Details map[string]any
	Beside  map[string]any
	cause   error
	logged  string // what Error says in the place of Message; "" = Message
}

// The most bytes of a text that a message quotes, and of one in the details. What a
// client sent comes back in its answer, the operator's log and sometimes an event.
const (
	mostQuoted = 512
	mostDetail = 4096
)

// clip cuts a text to n bytes of whole characters.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}

// New makes a fault with a formatted message. Texts in args are cut to 512 bytes.
func New(code Code, format string, args ...any) *Fault {
	if len(args) == 0 {
		return &Fault{Code: code, Message: format}
	}
	for i, a := range args {
		if text, ok := a.(string); ok && len(text) > mostQuoted {
			args = slices.Clone(args)
			args[i] = clip(text, mostQuoted)
		}
	}
	return &Fault{Code: code, Message: fmt.Sprintf(format, args...)}
}

// With returns a copy of f with one more detail, so that a fault kept as a
// package variable is never changed under another goroutine.
func (f *Fault) With(key string, value any) *Fault {
	c := *f
	c.Details = maps.Clone(f.Details)
	if c.Details == nil {
		c.Details = make(map[string]any, 1)
	}
	if text, ok := value.(string); ok {
		value = clip(text, mostDetail)
	}
	c.Details[key] = value
	return &c
}

// WithBeside returns a copy of f with one more field at the top level of the
// error object.
func (f *Fault) WithBeside(key string, value any) *Fault {
	c := *f
	c.Beside = maps.Clone(f.Beside)
	if c.Beside == nil {
		c.Beside = make(map[string]any, 1)
	}
	c.Beside[key] = value
	return &c
}

// Because returns a copy of f with the error that caused it. The cause is
// found by errors.Is and errors.As and printed by Error, never shown to a client.
func (f *Fault) Because(cause error) *Fault {
	c := *f
	c.cause = cause
	return &c
}

// Logged returns a copy of f that says something else in the logs than to
// its client: a message that quotes values is for the client alone.
func (f *Fault) Logged(text string) *Fault {
	c := *f
	c.logged = text
	return &c
}

// ForLogs is the message as everybody may read it, who did not send the statement.
func (f *Fault) ForLogs() string { return cmp.Or(f.logged, f.Message) }

// Error is the text for the operational log: code, message and cause, the last of at
// most 4096 bytes.
func (f *Fault) Error() string {
	text := string(f.Code) + ": " + f.ForLogs()
	if f.cause != nil {
		text += ": " + clip(f.cause.Error(), mostDetail)
	}
	return text
}

// Unwrap gives the cause to errors.Is and errors.As.
func (f *Fault) Unwrap() error { return f.cause }

// Is reports whether target is a fault of the same code, so that
// errors.Is(err, fault.New(fault.NotFound, "")) asks for the code alone.
func (f *Fault) Is(target error) bool {
	t, ok := target.(*Fault)
	return ok && t.Code == f.Code
}

// As finds the first fault in err's chain.
func As(err error) (*Fault, bool) {
	var f *Fault
	ok := errors.As(err, &f)
	return f, ok
}

// Of turns any error into a fault: the one it holds, or internal, with the
// error as its cause and nothing of it in the message.
func Of(err error) *Fault {
	if f, ok := As(err); ok {
		return f
	}
	return New(Internal, "The service failed while handling the request. Send it again, and tell the operator the error_id if it stays.").Because(err)
}

// CodeOf gives the code of the first fault in err's chain, or "" when there is none.
func CodeOf(err error) Code {
	if f, ok := As(err); ok {
		return f.Code
	}
	return ""
}
