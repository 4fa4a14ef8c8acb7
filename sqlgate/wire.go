package sqlgate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/sqlgate/pgexec"
)

// A WireLogin is who logged in on a connection of the wire listener. The claims
// stay for the whole connection; SessionID is "", or no approval would fit a new
// connection.
type WireLogin struct {
	Claims
	TLSSubject   string // name of the verified client certificate, "" without one
	User         string // who proved by a password to be it, "" without one
	Agent        Agent  // whose token was the password, the zero Agent without one
	ConnectionID string // wire_session of the evidence
	Client       string // whose share of memory it takes
	// Settings are the startup parameters that are settings of the session
	// (application_name, client_encoding, DateStyle, TimeZone, ...), as they came.
	Settings [][2]string
	// Stands is the refusal of a client who could not log in as this one any more, nil
	// as long as it could; the connection ends with it. nil: nothing was proven. The
	// goroutine of the connection calls it, and nobody else.
	Stands func() *WireError
	// Stopping ends when the listener is told to stop: nobody waits for a person then.
	// May be nil.
	Stopping context.Context
}

// Principal is who is verified, as evidence names it: the name of a certificate, the
// user of a password, or both.
func (l *WireLogin) Principal() string { return principal(l.TLSSubject, l.User) }

func principal(subject, user string) string {
	switch {
	case user == "":
		return subject
	case subject == "":
		return "user=" + user
	}
	return subject + ";user=" + user // such a name has each semicolon of its own behind a backslash
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
	Tag       string // of CommandComplete
	Suspended bool   // the row limit of Execute was reached: PortalSuspended in its place
	Empty     bool   // there was no statement: EmptyQueryResponse in its place
	Notices   []pgexec.Notice
}

// A WireRefusal is a decision that keeps a statement from running: BLOCK, or
// REQUIRE_APPROVAL, which is an ERROR on the wire.
type WireRefusal struct {
	Answer *Answer
	Hint   string // besides what there is to do; "" = nothing
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
	wireStatements = 1024 // prepared at once; drivers keep 256 to 1,000 of them for good by default
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
	// TakeWait lets one more statement of a client wait for an approval, until release is
	// called; ok is false where no more may. nil: there is no bound.
	TakeWait func(client string) (release func(), ok bool)
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
	waited   time.Duration       // for approvals, that Waited has not told yet
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
	names   pgexec.Types
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

// stands is the refusal of a client whose login does not stand any more. The listener
// looks as a message begins, and its statement may have waited since.
func (w *Wire) stands() error {
	if w.login.Stands != nil {
		if gone := w.login.Stands(); gone != nil {
			return gone
		}
	}
	return nil
}

// agentStands is the refusal of a client whose agent's token is not good any more.
func (w *Wire) agentStands(ctx context.Context) error {
	if w.login.Agent.ID == "" {
		return nil
	}
	_, err := w.gate.Overlay.AgentNow(context.WithoutCancel(ctx), w.login.Agent)
	return err
}

// agentGone ends a connection with the fault of an agent's token that is not good any more.
// Any other error is given as it is.
func agentGone(err error) error {
	switch fault.CodeOf(err) {
	case fault.TokenRevoked, fault.TokenExpired, fault.InsufficientScope:
		return &WireError{SQLState: "28P01", Message: fault.Of(err).Message, Fatal: true}
	}
	return err
}

// ends reports whether the connection ends with an error.
func ends(err error) bool {
	var own *WireError
	return errors.As(err, &own) && own.Fatal
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
	ctx, over := w.current.begin(ctx)
	defer over()
	w.CloseStatement("")
	w.ClosePortal("")
	done, err := w.query(ctx, sql, out)
	if err == nil && !w.current.settles() {
		err = errCancelled()
	}
	if err == nil {
		err = w.endUnit(ctx)
	}
	if err != nil {
		return WireDone{}, w.failed(ctx, w.cancelledInstead(err))
	}
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
	ctx, over := w.current.begin(ctx)
	defer over()
	w.skipping = false
	err := w.endUnit(ctx)
	w.settle()
	if err != nil {
		return w.failed(ctx, w.cancelledInstead(err))
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

// Stages of a message of the client's, as a CancelRequest meets them.
type wireStage int

const (
	wireDone       wireStage = iota // nothing is under way that could be cancelled
	wireWaits                       // nothing of it was dispatched: a cancel ends the wait
	wireDispatched                  // the append of its dispatch began: the execution is cancelled
	wireCommits
)

// A wireRun is what a CancelRequest would be for.
type wireRun struct {
	mu    sync.Mutex
	stage wireStage
	id    string             // of the execution; "" = none was begun
	asked bool               // somebody cancelled it while it waited
	gone  context.Context    // ends with a cancel while it waits, and not where the client hangs up
	end   context.CancelFunc // ends the waits
}

// begin is a message that may wait. Its context ends where the client hangs up, or
// cancels while nothing was dispatched. done must be called when the message is over.
func (r *wireRun) begin(ctx context.Context) (waits context.Context, done func()) {
	waits, end := context.WithCancel(ctx)
	gone, endGone := context.WithCancel(context.WithoutCancel(ctx))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stage, r.id, r.asked, r.gone = wireWaits, "", false, gone
	r.end = func() { endGone(); end() }
	return waits, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stage, r.id, r.gone = wireDone, "", nil
		r.end()
	}
}

// executes names the execution whose statement waits.
func (r *wireRun) executes(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id = id
}

// dispatches says that the append of the dispatch begins; false where somebody has
// cancelled it. From here on the database package takes the cancel.
func (r *wireRun) dispatches(db *pgexec.DB) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked {
		return false
	}
	db.Expect(r.id)
	r.stage = wireDispatched
	return true
}

// executed is the end of a statement, unless it was not dispatched: then it may be
// decided anew.
func (r *wireRun) executed(db *pgexec.DB) {
	r.mu.Lock()
	defer r.mu.Unlock()
	db.Forget(r.id)
	if r.id = ""; r.stage != wireWaits {
		r.stage = wireDone
	}
}

// commits says that COMMIT is about to be sent; false where somebody has cancelled
// what it would commit.
func (r *wireRun) commits() bool { return r.reaches(wireCommits) }

// settles says that what was under way is done, or is done now whatever comes; false
// where somebody has cancelled it before.
func (r *wireRun) settles() bool { return r.reaches(wireDone) }

func (r *wireRun) reaches(stage wireStage) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked {
		return false
	}
	r.stage = stage
	return true
}

// waited reports whether somebody cancelled what waited.
func (r *wireRun) waited() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// Why a CancelRequest cancelled nothing.
const (
	CancelNothingRuns = "nothing_running"
	CancelCommitting  = "commit_under_way"
	CancelUndelivered = "not_delivered"
)

// A WireCancel is what became of a CancelRequest.
type WireCancel struct {
	ExecutionID string // that it is for; "" = none was begun
	Unsent      bool   // nothing was sent to the database yet, and the gate ends what waits
	Cause       string // why nothing was cancelled; "" = there was: the database was asked, unless Unsent
}

// Runs reports whether there is something that a cancel could end. It may be called by
// any goroutine.
func (w *Wire) Runs() bool {
	r := &w.current
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stage != wireDone || r.id != ""
}

// Cancel ends what is under way: what waits is not sent any more, and what runs the
// database is asked to end. It may be called by any goroutine.
func (w *Wire) Cancel(ctx context.Context) WireCancel {
	r := &w.current
	r.mu.Lock()
	stage, id := r.stage, r.id
	if stage == wireWaits {
		r.asked = true
		r.end()
	}
	r.mu.Unlock()
	state := pgexec.CancelNothing
	if id != "" && stage != wireCommits {
		state = w.gate.Database.Cancel(ctx, id)
	}
	switch {
	case stage == wireCommits:
		return WireCancel{Cause: CancelCommitting}
	case state == pgexec.CancelForwarded:
		return WireCancel{ExecutionID: id}
	case state == pgexec.CancelUnsent || stage == wireWaits:
		return WireCancel{ExecutionID: id, Unsent: true}
	case state == pgexec.CancelUndelivered:
		return WireCancel{Cause: CancelUndelivered}
	}
	return WireCancel{Cause: CancelNothingRuns}
}

// waits is a context for what no hanging up of a client may end: with a wire a
// cancel does, as long as nothing was dispatched.
func (s *submission) waits(ctx context.Context) context.Context {
	if s.wire == nil {
		return context.WithoutCancel(ctx)
	}
	return s.wire.wire.current.gone
}

// errCancelled is the fault of what was cancelled while it waited.
func errCancelled() *fault.Fault {
	return fault.New(fault.DBQueryFailed, "The statement was cancelled before it was sent; nothing was applied. Send it again if it is still wanted.").
		With("sqlstate", "57014").With("reason", pgexec.ReasonCancelled)
}

// cancelledInstead is the fault of a wait that a cancel ended, in place of what the
// wait itself says.
func (w *Wire) cancelledInstead(err error) error {
	if errors.Is(err, context.Canceled) && w.current.waited() {
		return errCancelled()
	}
	return err
}

// errSkipping is what is asked for after an error and before Sync.
func errSkipping() *WireError {
	return wireErrorf("25P02", "an error came before: nothing is taken until Sync")
}
