package httpd

import (
	"net/http"

	"writegate/commands/fault"
)

// statuses is the one place that knows which HTTP status a code has
// (spec/gate.md part 7, spec/decisions.md part 1).
var statuses = map[fault.Code]int{
	fault.PolicyNotLoaded:           http.StatusServiceUnavailable,
	fault.PolicyActivationFailed:    http.StatusConflict,
	fault.ApprovalExpired:           http.StatusGone,
	fault.ApprovalRejected:          http.StatusConflict,
	fault.UnauthorizedOperator:      http.StatusUnauthorized,
	fault.DBConnectionFailed:        http.StatusBadGateway,
	fault.DBUnavailable:             http.StatusServiceUnavailable,
	fault.DBQueryTimeout:            http.StatusGatewayTimeout,
	fault.RateLimitExceeded:         http.StatusTooManyRequests,
	fault.OversizedRequest:          http.StatusRequestEntityTooLarge,
	fault.OversizedSQL:              http.StatusRequestEntityTooLarge,
	fault.SessionNotFound:           http.StatusNotFound,
	fault.InvalidJSON:               http.StatusBadRequest,
	fault.EmptySQL:                  http.StatusBadRequest,
	fault.MultiStatementRejected:    http.StatusBadRequest,
	fault.ParserError:               http.StatusBadRequest,
	fault.ParserUnsupportedSyntax:   http.StatusUnprocessableEntity,
	fault.UnsupportedSQLShape:       http.StatusUnprocessableEntity,
	fault.UnsafeReadShape:           http.StatusUnprocessableEntity,
	fault.ApprovalNotFound:          http.StatusNotFound,
	fault.PreparedStatementNotFound: http.StatusNotFound,

	fault.NotFound:                http.StatusNotFound,
	fault.MethodNotAllowed:        http.StatusMethodNotAllowed,
	fault.UnsupportedMediaType:    http.StatusUnsupportedMediaType,
	fault.ValidationFailed:        http.StatusBadRequest,
	fault.ApprovalAlreadyResolved: http.StatusConflict,
	fault.ApprovalMismatch:        http.StatusConflict,
	fault.ApprovalAlreadyUsed:     http.StatusConflict,
	fault.ApprovalOutcomeUnknown:  http.StatusConflict,
	fault.IdempotencyConflict:     http.StatusConflict,
	fault.IdempotencyInProgress:   http.StatusConflict,
	fault.RowLimitExceeded:        http.StatusUnprocessableEntity,
	fault.PolicyVersionExists:     http.StatusConflict,
	fault.PolicyNotFound:          http.StatusNotFound,
	fault.PolicyInvalid:           http.StatusUnprocessableEntity,
	fault.SessionLimitExceeded:    http.StatusTooManyRequests,
	fault.ResultTooLarge:          http.StatusRequestEntityTooLarge,
	fault.DBQueryFailed:           http.StatusUnprocessableEntity,
	fault.AuditUnavailable:        http.StatusServiceUnavailable,
	fault.AuditCorruptionDetected: http.StatusServiceUnavailable,
	fault.Internal:                http.StatusInternalServerError,
	fault.ForbiddenOrigin:         http.StatusForbidden,
	fault.MisdirectedRequest:      http.StatusMisdirectedRequest,
	fault.GrantNotFound:           http.StatusNotFound,
	fault.GrantEnded:              http.StatusConflict,
	fault.GrantLimitExceeded:      http.StatusConflict,
	fault.DryRunRefused:           http.StatusUnprocessableEntity,

	fault.LoginRequired:       http.StatusUnauthorized,
	fault.LoginFailed:         http.StatusUnauthorized,
	fault.ForgedRequest:       http.StatusForbidden,
	fault.BackendUnavailable:  http.StatusBadGateway,
	fault.CredentialsMissing:  http.StatusUnauthorized,
	fault.CredentialsInvalid:  http.StatusUnauthorized,
	fault.TokenExpired:        http.StatusUnauthorized,
	fault.TokenRevoked:        http.StatusUnauthorized,
	fault.InsufficientScope:   http.StatusForbidden,
	fault.AgentMismatch:       http.StatusForbidden,
	fault.CredentialMismatch:  http.StatusForbidden,
	fault.AgentNotFound:       http.StatusNotFound,
	fault.TokenNotFound:       http.StatusNotFound,
	fault.EventNotFound:       http.StatusNotFound,
	fault.ApplicationNotFound: http.StatusNotFound,
	fault.RevisionMismatch:    http.StatusPreconditionFailed,
	fault.AgentInactive:       http.StatusConflict,
	fault.PolicyDisabled:      http.StatusConflict,
	fault.TokenLimitExceeded:  http.StatusConflict,
	fault.SubjectBound:        http.StatusConflict,
	fault.SubjectNotFound:     http.StatusNotFound,
	fault.IssuerUnavailable:   http.StatusServiceUnavailable,
	fault.CursorInvalid:       http.StatusBadRequest,

	fault.ToolNotFound:           http.StatusNotFound,
	fault.ToolDisabled:           http.StatusConflict,
	fault.ToolNotVerifiable:      http.StatusUnprocessableEntity,
	fault.VerificationInProgress: http.StatusConflict,
	fault.FingerprintChanged:     http.StatusConflict,

	fault.AllEventsRejected: http.StatusUnprocessableEntity,
}

// Status gives the HTTP status of a code; 500 for a code that has none, which
// a test keeps from happening.
func Status(code fault.Code) int {
	if status, ok := statuses[code]; ok {
		return status
	}
	return http.StatusInternalServerError
}
