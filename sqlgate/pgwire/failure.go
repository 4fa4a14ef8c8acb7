package pgwire

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"
)

// A failure is an ErrorResponse on its way to the client. After a fatal one the
// connection ends.
type failure struct {
	response pgproto3.ErrorResponse
	fatal    bool
	cause    error // for the operational log alone

	refused string // which kind of refused login it is; "" = what was asked for, or none

	got, most int // bytes of a message over its limit, and the limit; else 0
}

func (f *failure) Error() string {
	text := f.response.Code + ": " + f.response.Message
	if f.cause != nil {
		text += ": " + f.cause.Error()
	}
	return text
}

func (f *failure) Unwrap() error { return f.cause }

func newFailure(fatal bool, state, message string) *failure {
	severity := "ERROR"
	if fatal {
		severity = "FATAL"
	}
	return &failure{fatal: fatal, response: pgproto3.ErrorResponse{
		Severity: severity, SeverityUnlocalized: severity, Code: state, Message: message,
	}}
}

func fatalf(state, format string, args ...any) *failure {
	return newFailure(true, state, fmt.Sprintf(format, args...))
}

func errorf(state, format string, args ...any) *failure {
	return newFailure(false, state, fmt.Sprintf(format, args...))
}

// login says which kind of refused login it is.
func (f *failure) login(cause string) *failure {
	f.refused = cause
	return f
}

func (f *failure) hint(text string) *failure {
	f.response.Hint = text
	return f
}

// notThroughTheGate refuses a startup parameter or option, and says how it can
// be had where there is a way.
func notThroughTheGate(what, hint string) *failure {
	return fatalf("0A000", "not available through the gate: %s", what).hint(hint)
}
