package pgexec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"writegate/commands/fault"
)

// A Statement is the client's: its text is sent byte for byte as it was judged.
type Statement struct {
	SQL           string
	ParamOIDs     []uint32     // types; 0 or absent: the server infers
	Params        [][]byte     // values; nil is NULL
	ParamFormats  []int16      // 0 text, 1 binary; none: all text
	ResultFormats []int16      // the same for columns; a Rows sink needs text
	Trace         string       // trace id and span id of a read's caller, shown as a part of application_name; "" = none
	Settings      Settings     // of a read's caller; what differs from the pins
	Meaning       Meaning      // of a read: by which it was judged
	Owner         string       // whose a read is: it meets nothing that one of another owner left in the session
	Definitions   *Definitions // that it was judged by; nil: by its text alone. What runs alone is not compared
}

// Settings are what a caller's session may set for its statements, by name:
// TimeZone and lock_timeout (milliseconds), and no other. They hold for one
// statement. The caller of this package has checked them: Setting tells whether
// the server takes a value.
type Settings map[string]string

// Limits bound one execution. Zero values take the configured limit, and none
// can be above it.
type Limits struct {
	Rows    int           // rows of the result
	Bytes   int64         // bytes of the values of the result
	MaxRows *int64        // rows the statement may change (an approval's); nil: not counted
	Timeout time.Duration // statement_timeout
	Bulk    bool          // profile bulk: its own timeout, no row-limited portal
}

// A Field is a column as the server described it.
type Field struct {
	Label    string
	TypeOID  uint32
	Modifier int32
	Format   int16

	// What else RowDescription says, for a client that reads it itself.
	Size        int16  // of the type; negative: it varies
	TableOID    uint32 // 0: the column is none of a table
	TableColumn uint16
}

// A Sink takes a result as it comes. Values are text or binary as asked for, nil
// is NULL; they are valid until the next call only. An error ends the reading
// and counts as a result over its limits.
type Sink interface {
	Fields(columns []Field) error
	Row(values [][]byte) error
}

// DB is the database behind the gate. It connects when it is first needed, so it
// can be opened while the database is out of reach.
type DB struct {
	cfg Config
	log *slog.Logger

	reader, writer, definer *pool
	timelines               *timelines
	types                   typeCache
	tls                     atomic.Pointer[tlsSet]

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // goroutines of ours

	mu      sync.Mutex
	closed  bool
	running map[string]*execution // by its id: what can be cancelled

	health healthCheck
}

// logins are what the addresses and the TLS files of a configuration say; ddl is nil
// where it has no role of its own.
type logins struct {
	files            TLSConfig // of the settings and of the URLs
	tls              *tlsSet
	write, read, ddl *pgconn.Config
}

func (c Config) logins() (l logins, err error) {
	var urlErr, tlsErr, writeErr, readErr, ddlErr error
	urls := [][2]string{{"GATE_DATABASE_URL", c.URL}, {"GATE_DATABASE_DDL_URL", c.DDLURL}}
	if c.ReadURL != c.URL {
		urls = append(urls, [2]string{"GATE_DATABASE_READ_URL", c.ReadURL})
	}
	l.files, urlErr = c.TLS.withURLs(urls)
	if l.tls, tlsErr = l.files.load(time.Now()); tlsErr != nil {
		l.tls = new(tlsSet) // only so that the faults of the URLs are found too
	}
	l.write, writeErr = parseURL("GATE_DATABASE_URL", c.URL, l.tls, c.ConnectTimeout)
	l.read, readErr = parseURL("GATE_DATABASE_READ_URL", c.ReadURL, l.tls, c.ConnectTimeout)
	if c.ReadURL == c.URL {
		readErr = nil // said once
	}
	if c.DDLURL != "" {
		l.ddl, ddlErr = parseURL("GATE_DATABASE_DDL_URL", c.DDLURL, l.tls, c.ConnectTimeout)
	}
	if err := errors.Join(urlErr, tlsErr, writeErr, readErr, ddlErr); err != nil {
		return l, err
	}
	for setting, login := range map[string]*pgconn.Config{"GATE_DATABASE_READ_URL": l.read, "GATE_DATABASE_DDL_URL": l.ddl} {
		if login != nil && login.Database != l.write.Database {
			return l, fmt.Errorf("%s names another database than GATE_DATABASE_URL: a statement must mean the same wherever it runs; name the same database in both", setting)
		}
	}
	return l, nil
}

// Check says what Open would say of the addresses and the TLS files, all of it.
func (c Config) Check() error {
	_, err := c.withDefaults().logins()
	return err
}

// Open checks the configuration, all of it, and makes the pools. A database that
// is out of reach is no error.
func Open(cfg Config, log *slog.Logger) (*DB, error) {
	cfg = cfg.withDefaults()
	l, err := cfg.logins()
	if err := errors.Join(cfg.check(), err); err != nil {
		return nil, err
	}
	cfg.TLS = l.files
	db := &DB{cfg: cfg, log: log, running: make(map[string]*execution), timelines: &timelines{newest: make(map[string]string)}}
	db.health.turn = make(chan struct{}, 1)
	db.tls.Store(l.tls)
	db.ctx, db.stop = context.WithCancel(context.Background())
	if err := db.makePools(l.read, l.write, l.ddl); err != nil {
		return nil, err
	}
	db.spawn(db.janitor)
	db.spawn(db.watchRoles)
	return db, nil
}

func (db *DB) makePools(read, write, ddl *pgconn.Config) (err error) {
	if told := db.cfg.OnServerMajor; told != nil {
		db.cfg.OnServerMajor = func(int) { told(db.commonMajor()) }
	}
	if db.reader, err = newPool(reader, db.cfg, read, db.cfg.PoolMax, &db.tls, db.log); err != nil {
		return err
	}
	if db.writer, err = newPool(writer, db.cfg, write, db.cfg.PoolMax, &db.tls, db.log); err != nil {
		return err
	}
	db.definer = db.writer
	if ddl != nil {
		db.definer, err = newPool(definer, db.cfg, ddl, definerConns, &db.tls, db.log)
	}
	var roles []string
	for _, p := range db.pools() {
		roles = append(roles, p.login.User)
	}
	for _, p := range db.pools() {
		p.ctx, p.spawn, p.askEvery, p.timelines, p.types, p.roles, p.pools = db.ctx, db.spawn, askEvery, db.timelines, &db.types, roles, db.pools()
	}
	return err
}

// pools lists each pool once.
func (db *DB) pools() []*pool {
	if db.definer == db.writer {
		return []*pool{db.reader, db.writer}
	}
	return []*pool{db.reader, db.writer, db.definer}
}

// commonMajor is the major of all servers that are known so far, or 0 where the
// pools lead to servers of different majors: then no grammar is that of all.
func (db *DB) commonMajor() int {
	var common int32
	for _, p := range db.pools() {
		switch major := p.major.Load(); {
		case major == 0 || major == common:
		case common != 0:
			return 0
		default:
			common = major
		}
	}
	return int(common)
}

// janitor closes connections that idled or lived too long.
func (db *DB) janitor() {
	every := time.NewTicker(max(time.Second, min(db.cfg.ConnIdle/2, 30*time.Second)))
	defer every.Stop()
	for {
		select {
		case <-db.ctx.Done():
			return
		case <-every.C:
			for _, p := range db.pools() {
				p.purge(false)
			}
		}
	}
}

// Close ends the idle connections and waits for those in use to be given back.
func (db *DB) Close() {
	db.mu.Lock()
	db.closed = true
	db.mu.Unlock()
	db.stop()
	db.work.Wait()
	for _, p := range db.pools() {
		p.conns.Close()
	}
}

// spawn runs a goroutine that Close waits for; after Close it runs nothing, and says so.
func (db *DB) spawn(work func()) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed {
		return false
	}
	db.work.Go(work)
	return true
}

// ServerMajor is the major version of the writer's server, 0 before the first
// connection.
func (db *DB) ServerMajor() int { return int(db.writer.major.Load()) }

// ServerVersion is server_version as the database says it. Before the first
// connection it makes one; the error says why that cannot be had.
func (db *DB) ServerVersion(ctx context.Context) (string, error) {
	if v := db.reader.version.Load(); v != nil {
		return *v, nil
	}
	if err := db.reader.ping(ctx); err != nil {
		return "", connectFault(err)
	}
	return *db.reader.version.Load(), nil
}

// Name is the database behind the gate, as its URL says it.
func (db *DB) Name() string { return cmp.Or(db.writer.login.Database, db.writer.login.User) }

// Servers are the hosts and ports behind the gate, as its URL names them.
func (db *DB) Servers() string {
	login := db.writer.login
	servers := []string{net.JoinHostPort(login.Host, strconv.Itoa(int(login.Port)))}
	for _, f := range login.Fallbacks {
		servers = append(servers, net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))))
	}
	return strings.Join(servers, ",")
}

// Cluster is the cluster, by its system identifier, and the database behind the gate, as the
// last connection found them; "" before the first.
func (db *DB) Cluster() (system, database string) {
	if at := db.writer.server.Load(); at != nil {
		return at.SystemIdentifier, at.Database
	}
	return "", ""
}

// PoolStats counts connections of all pools together.
type PoolStats struct {
	InUse, Idle int
	Waits       int64 // acquisitions that had to wait for a free connection
	Quarantined int64 // connections closed because a pinned setting changed
}

// Stats counts connections, for GET /runtime/stats.
func (db *DB) Stats() PoolStats {
	var s PoolStats
	for _, p := range db.pools() {
		stat := p.conns.Stat()
		s.InUse += len(p.slots) + int(p.outliving.Load())
		s.Idle += int(stat.IdleResources())
		s.Waits += p.waits.Load()
		s.Quarantined += p.quarantined.Load()
	}
	return s
}

// Status is the database's part of GET /health.
type Status struct {
	OK          bool
	Message     string // for a person; names no host
	ServerMajor int
	Role        string // the writer's
}

// healthCheck keeps the last answer for a moment, so that a flood of health
// requests is not one of database round trips.
type healthCheck struct {
	turn chan struct{} // one looks; who waits longer than it has time is told so
	at   time.Time
	last Status
}

const healthFor = time.Second

// Status asks reader and writer for a sign of life.
func (db *DB) Status(ctx context.Context) Status {
	select {
	case db.health.turn <- struct{}{}:
		defer func() { <-db.health.turn }()
	case <-ctx.Done():
		return Status{Message: "The database did not answer in time.", Role: db.writer.login.User, ServerMajor: db.ServerMajor()}
	}
	if time.Since(db.health.at) < healthFor {
		return db.health.last
	}
	s := Status{OK: true, Message: "ok", Role: db.writer.login.User}
	for _, p := range []*pool{db.reader, db.writer} {
		if err := p.ping(ctx); err != nil {
			db.log.Warn("the database does not answer", "pool", p.kind.String(), "error", err)
			s.OK, s.Message = false, fault.Of(err).Message
			break
		}
	}
	s.ServerMajor = db.ServerMajor()
	if ctx.Err() == nil { // an answer that was cut short is nobody else's
		db.health.at, db.health.last = time.Now(), s
	}
	return s
}

// ping leases a connection and has the server answer an empty batch.
func (p *pool) ping(ctx context.Context) error {
	l, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	defer l.release()
	if _, err := l.exchange(ctx, time.Now().Add(p.cfg.ConnectTimeout), segment{}); err != nil {
		p.lost()
		return connectFault(err)
	}
	return nil
}

// An execution is a statement that can be cancelled.
type execution struct {
	lease     *lease // nil: it was not sent yet
	cancelled bool   // before that
}

// A CancelState is what became of a cancel.
type CancelState int

// States of a cancel.
const (
	CancelNothing     CancelState = iota // there is nothing to cancel: COMMIT is under way, or all is done
	CancelUnsent                         // the statement was not sent yet, and will not be
	CancelForwarded                      // the database was asked to end it
	CancelUndelivered                    // it could not be asked; the statement's own time limit ends it
)

// Cancel ends an execution: one that runs is ended by the database, one that Expect
// told of and that was not sent yet is not sent. Nothing is cancelled once COMMIT is
// under way.
func (db *DB) Cancel(ctx context.Context, executionID string) CancelState {
	db.mu.Lock()
	e := db.running[executionID]
	unsent := e != nil && e.lease == nil
	if unsent {
		e.cancelled = true
	}
	db.mu.Unlock()
	switch {
	case unsent:
		return CancelUnsent
	case e != nil:
		return e.lease.cancel(ctx, true)
	}
	return CancelNothing
}

// Expect has Cancel take what comes before an execution's statement is sent: the
// statement then fails as one that was cancelled, and nothing of it is sent. Forget
// must be called for one that does not come.
func (db *DB) Expect(executionID string) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.running[executionID] = new(execution)
}

// Forget ends what Expect and a statement that was sent begin.
func (db *DB) Forget(executionID string) {
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.running, executionID)
}

// CancelAll asks the database to end every statement that runs now, for the end
// of the time that a shutdown waits. It returns how many were asked to end.
func (db *DB) CancelAll(ctx context.Context) int {
	db.mu.Lock()
	leases := make([]*lease, 0, len(db.running))
	for _, e := range db.running {
		if e.lease != nil {
			leases = append(leases, e.lease)
		}
	}
	db.mu.Unlock()
	var n atomic.Int64
	var all sync.WaitGroup
	for _, l := range leases {
		all.Go(func() {
			if l.cancel(ctx, true) != CancelNothing {
				n.Add(1)
			}
		})
	}
	all.Wait()
	return int(n.Load())
}

// cancellable lets Cancel find the lease until Forget; false where somebody has
// cancelled the execution already.
func (db *DB) cancellable(executionID string, l *lease) bool {
	if executionID == "" {
		return true
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if e := db.running[executionID]; e != nil && e.cancelled {
		return false
	}
	db.running[executionID] = &execution{lease: l}
	return true
}

// bound completes limits from the configuration, which none may exceed.
func (db *DB) bound(lim Limits) Limits {
	if lim.Rows <= 0 || lim.Rows > db.cfg.MaxResultRows {
		lim.Rows = db.cfg.MaxResultRows
	}
	if lim.Bytes <= 0 || lim.Bytes > db.cfg.MaxResultBytes {
		lim.Bytes = db.cfg.MaxResultBytes
	}
	most := db.cfg.QueryTimeout
	if lim.Bulk {
		most = db.cfg.BulkQueryTimeout
	}
	if lim.Timeout <= 0 || lim.Timeout > most {
		lim.Timeout = most
	}
	return lim
}

// deadline is the gate's own, a little behind the server's.
func (db *DB) deadline(lim Limits) time.Time {
	return time.Now().Add(lim.Timeout + db.cfg.DeadlineSlack)
}

// settings are what differs from the pins for these limits.
func (l *lease) settings(lim Limits, trace string, own Settings) map[string]string {
	p, major := l.pool, l.major
	name := tracedName(p.kind, trace)
	if name == "" && lim.Timeout == p.cfg.QueryTimeout && len(own) == 0 {
		return nil
	}
	s := map[string]string{}
	for _, setting := range ownSettings {
		if v, ok := own[setting]; ok {
			s[setting] = v
		}
	}
	if name != "" {
		s["application_name"] = name
	}
	if lim.Timeout == p.cfg.QueryTimeout {
		return s
	}
	s["statement_timeout"] = millis(lim.Timeout)
	if major >= 17 {
		s["transaction_timeout"] = millis(lim.Timeout + transactionSlack)
	}
	return s
}

// set are the commands that apply settings, for the transaction or the session.
// The clock of transaction_timeout starts with the transaction, and the server
// starts it anew only where it does not run: so it is stopped first.
func set(scope string, settings map[string]string) []*command {
	var cmds []*command
	for _, name := range settable {
		if v, ok := settings[name]; ok {
			if name == "transaction_timeout" {
				cmds = append(cmds, own("SET "+scope+" transaction_timeout = '0'"))
			}
			cmds = append(cmds, own("SET "+scope+" "+name+" = '"+strings.ReplaceAll(v, "'", "''")+"'")) // standard_conforming_strings is pinned
		}
	}
	return cmds
}

// ownSettings are the names of Settings; settable are all that the gate sets.
var (
	ownSettings = []string{"TimeZone", "lock_timeout"}
	settable    = append([]string{"statement_timeout", "transaction_timeout", "idle_in_transaction_session_timeout", "application_name"}, ownSettings...)
)

// tracedName is the application_name under which the database shows, in its
// views and logs, a statement whose caller has a trace: for its transaction alone,
// so that the pin stands again when it ends. It fits the 63 bytes of a name.
// Anything but hex digits and a dash is no trace.
func tracedName(kind poolKind, trace string) string {
	if trace == "" || len(trace) > 49 || strings.Trim(trace, "0123456789abcdef-") != "" {
		return ""
	}
	return "gate/" + kind.String() + " " + trace
}

// client is the command of the client's statement. One row more than allowed is
// asked for, to see that there are more. Profile bulk counts rows itself: a row
// limit would make a parallel plan run without workers.
func client(st Statement, lim Limits, sink Sink) *command {
	cmd := &command{
		sql: st.SQL, oids: st.ParamOIDs, params: st.Params, paramFormats: st.ParamFormats, resultFormats: st.ResultFormats,
		describe: true, sink: sink, byteCap: lim.Bytes, definitions: st.Definitions,
	}
	if lim.Bulk {
		cmd.rowCap = int64(lim.Rows)
	} else {
		cmd.maxRows = uint32(lim.Rows) + 1
	}
	return cmd
}
