package sqlgate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"writegate/commands"
	"writegate/sqlgate/pgexec"
)

// A WireLogin is who logged in on a connection of the wire listener. The claims
// stay for the whole connection; SessionID is "", or no approval would fit a new
// connection.
type WireLogin struct {
	Claims
	TLSSubject   string // subject of the verified client certificate, "" without one
	User         string // who proved by a password to be it, "" without one
	ConnectionID string // wire_session of the evidence
	Client       string // whose share of memory it takes
	// Settings are the startup parameters that are settings of the session
	// (application_name, client_encoding, DateStyle, TimeZone, ...), as they came.
	Settings [][2]string
}

// Principal is who is verified, as evidence names it: the subject of a certificate, the
// user of a password, or both.
func (l *WireLogin) Principal() string { return principal(l.TLSSubject, l.User) }

func principal(subject, user string) string {
	switch {
	case user == "":
		return subject
	case subject == "":
		return "user=" + user
	}
	return subject + ";user=" + user // a subject has each semicolon of its own behind a backslash
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

// Limits of one connection (design/execution-and-wire.md part 9).
const (
	wireStatements = 64 // prepared at once
	wirePortals    = 64
	wireSavepoints = 200
	wireWrites     = 200 // in one block
	wireNameBytes  = 63

	// wireStatementBytes is how many bytes prepared statements take in memory: the
	// texts, and what is known of them.
	wireStatementBytes = 8 << 20
)

// Bounds of the evidence of what the gate answered and that waits for the next
// append. It is kept in memory by each connection, and has to leave an append
// room for the statement that takes it along; that is at most six records.
const (
	wireAhead      = 64       // statements
	wireAheadBytes = 64 << 10 // of evidence, and of the texts that it came from
)

// WireOptions are what the wire listener allows its connections.
type WireOptions struct {
	MaxBlocks int // transactions of several statements at once, of all connections; each holds a database connection
	// BlocksReserved are those that one client alone does not get (pgexec.ShareOf).
	BlocksReserved int
	BlockTime      time.Duration // how long one may last; 0: BEGIN is refused
	BlockIdle      time.Duration // how long one may wait for its next statement
	SearchPath     string        // the one schema, as the database has it
	LockTimeout    time.Duration // a connection may set less, not more
}

// A Wire is one connection of the wire listener behind its protocol: its
// statements and portals, its transaction, its settings, and the evidence of all
// that. Every statement goes through the same four steps as one of POST /query.
//
// All methods but Cancel are called by one goroutine. After an error of Parse,
// Bind, a Describe or Execute everything is refused until Sync.
type Wire struct {
	gate  *Gate
	login WireLogin

	settings   wireSettings
	started    map[string]string // settings of the startup, to which RESET goes back
	reported   map[string]string // what the client knows of its settings
	statements map[string]*wireStatement
	portals    map[string]*wirePortal
	bound      int   // how many there were
	unread     int64 // bytes of answers that wait for the client
	holds      int64 // bytes of all that that are counted

	unit     wireUnit
	ahead    []commands.Answered // session control whose evidence waits for the next append
	weight   int                 // of that, in bytes
	skipping bool                // up to Sync
	current  wireRun
}

// A wireCall is what one statement brings along on its way through the journey.
type wireCall struct {
	wire    *Wire
	control bool // the gate answers it itself
	last    bool // its transaction ends behind it
	out     *wireOut
	portal  *wirePortal // parameters and formats; nil in the simple protocol
	types   []uint32    // of the parameters, as Parse said
}

// OpenWire begins a connection that has logged in. The error is a WireError for
// a startup parameter that the gate does not take, or the fault of the startup
// chain, where the gate runs nothing.
func (g *Gate) OpenWire(l WireLogin) (*Wire, error) {
	if g.running.Load() == nil || g.chain.Failed() {
		return nil, g.chain.fault()
	}
	w := &Wire{gate: g, login: l, statements: map[string]*wireStatement{}, portals: map[string]*wirePortal{}}
	if err := w.begin(); err != nil {
		return nil, err
	}
	return w, nil
}

// Status is what ReadyForQuery says.
func (w *Wire) Status() byte {
	switch {
	case !w.unit.explicit:
		return WireIdle
	case w.unit.failed:
		return WireFailed
	}
	return WireInBlock
}

// Query runs the one statement of a Query message, and what is open before it,
// to its end: with its answer everything is committed and in the log.
func (w *Wire) Query(ctx context.Context, sql string, out WireSink) (WireDone, error) {
	w.CloseStatement("")
	w.ClosePortal("")
	done, err := w.query(ctx, sql, out)
	if err == nil {
		err = w.endUnit(ctx)
	}
	if err != nil {
		return WireDone{}, w.failed(ctx, err)
	}
	done.Parameters = w.changed()
	w.settle()
	return done, nil
}

func (w *Wire) query(ctx context.Context, sql string, out WireSink) (WireDone, error) {
	if w.skipping {
		return WireDone{}, errSkipping()
	}
	st, err := w.read(ctx, sql, nil)
	if err != nil {
		return WireDone{}, err
	}
	return w.run(ctx, st, &wireCall{wire: w, last: true, out: &wireOut{sink: out}})
}

// Sync ends what is open outside of a block: its writes are committed, and their
// results are in the log before it returns.
func (w *Wire) Sync(ctx context.Context) error {
	w.skipping = false
	err := w.endUnit(ctx)
	w.settle()
	if err != nil {
		return w.failed(ctx, err)
	}
	return nil
}

// Fail is as a statement that failed: the listener has refused a message.
func (w *Wire) Fail(ctx context.Context) {
	if err := w.failed(ctx, nil); err != nil {
		w.gate.Logger.Error("what a refused message undid could not be written to the event log", "source", "gate", "wire_session", w.login.ConnectionID, "cause", err.Error())
	}
}

// Close ends what is open: the client is gone.
func (w *Wire) Close(ctx context.Context) {
	defer func() {
		clear(w.statements)
		clear(w.portals)
		w.unread = 0
		w.settle()
	}()
	err := w.rollback(ctx)
	if err == nil {
		err = w.flushAhead(ctx)
	}
	if err != nil {
		w.gate.Logger.Error("the end of a wire connection could not be written to the event log", "source", "gate", "wire_session", w.login.ConnectionID, "cause", err.Error())
	}
}

// Unwritten reports whether evidence waits for the next append.
func (w *Wire) Unwritten() bool { return len(w.ahead) > 0 }

// WriteEvidence writes what waits for an append: the client is silent. Where that
// fails it goes on waiting, and it is what the next statement has to write.
func (w *Wire) WriteEvidence(ctx context.Context) {
	if err := w.flushAhead(context.WithoutCancel(ctx)); err != nil {
		w.gate.Logger.Warn("what a wire connection was answered could not be written to the event log yet", "source", "gate", "wire_session", w.login.ConnectionID, "cause", err.Error())
	}
}

// A wireRun is the execution that a CancelRequest would be for.
type wireRun struct {
	mu         sync.Mutex
	id         string
	committing bool
}

func (r *wireRun) set(id string, committing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id, r.committing = id, committing
}

// Why a CancelRequest had nothing to cancel.
const (
	CancelNothingRuns = "nothing_running"
	CancelCommitting  = "commit_under_way"
)

// Cancel asks the database to end the statement that runs now. It may be called
// by any goroutine.
func (w *Wire) Cancel(ctx context.Context) (executionID, cause string, ok bool) {
	r := &w.current
	r.mu.Lock()
	id, committing := r.id, r.committing
	r.mu.Unlock()
	switch {
	case committing:
		return "", CancelCommitting, false
	case id == "" || !w.gate.Database.Cancel(ctx, id):
		return "", CancelNothingRuns, false
	}
	return id, "", true
}

// errSkipping is what is asked for after an error and before Sync.
func errSkipping() *WireError {
	return wireErrorf("25P02", "an error came before: nothing is taken until Sync")
}
