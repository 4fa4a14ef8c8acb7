package sqlgate

import (
	"fmt"

	"writegate/sqlgate/pgexec"
)

// A WireLogin is who logged in on a connection of the wire listener. The claims
// stay for the whole connection; SessionID is "", or no approval would fit a new
// connection.
type WireLogin struct {
	Claims
	TLSSubject   string // subject of the verified client certificate, "" without one
	ConnectionID string // wire_session of the evidence
	// Settings are the startup parameters that are settings of the session
	// (application_name, client_encoding, DateStyle, TimeZone, ...), as they came.
	Settings [][2]string
}

// A WireSink takes the result of a statement as it comes. Fields is called once,
// before the first row; nil says that the statement returns none. Values are
// valid until the next call only. An error ends the statement.
type WireSink interface {
	Fields(columns []pgexec.Field) error
	Row(values [][]byte) error
}

// WireDone is how a statement of the wire ended.
type WireDone struct {
	Tag        string // of CommandComplete
	Suspended  bool   // the row limit of Execute was reached: PortalSuspended in its place
	Empty      bool   // there was no statement: EmptyQueryResponse in its place
	Notices    []pgexec.Notice
	Parameters [][2]string // ParameterStatus to be sent
}

// A WireRefusal is a decision that keeps a statement from running: BLOCK, or
// REQUIRE_APPROVAL, which is an ERROR on the wire.
type WireRefusal struct {
	Answer *Answer
}

func (e *WireRefusal) Error() string { return e.Answer.message() }

// A WireError is an error of the protocol or of a transaction block, for which
// PostgreSQL has a SQLSTATE of its own. All other errors of a Wire are a
// WireRefusal or a *fault.Fault.
type WireError struct {
	SQLState              string
	Message, Detail, Hint string
	Fatal                 bool // the connection ends
}

func (e *WireError) Error() string { return e.SQLState + ": " + e.Message }

func wireErrorf(state, format string, args ...any) *WireError {
	return &WireError{SQLState: state, Message: fmt.Sprintf(format, args...)}
}

// States of a Wire as ReadyForQuery says them.
const (
	WireIdle    byte = 'I' // outside of a transaction block
	WireInBlock byte = 'T'
	WireFailed  byte = 'E' // in a block that failed: only its end and ROLLBACK TO are taken
)
