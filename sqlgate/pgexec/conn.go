package pgexec

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"writegate/commands/fault"
)

// An Upstream says which server, and which life of it, a statement went to:
// what execution_dispatched records, so that a later look at a transaction id
// knows whether it may be believed.
type Upstream struct {
	SystemIdentifier string // of pg_control_system(): the cluster
	Timeline         string // first 8 characters of the WAL file's name; "" in recovery
	CrashMark        string // stats_reset of pg_stat_wal: another after every crash recovery
	Database         string // "" in records of before it was written down
	Host             string // address of the server as connected to
	Role             string // database role
	BackendPID       int64
	BackendStart     string // timestamp of the backend, UTC
}

// A conn is one connection, taken over from pgconn after the login. It is used
// by one goroutine at a time; only cancel may come from another.
type conn struct {
	net net.Conn
	fe  *pgproto3.Frontend
	key *pgconn.HijackedConn // how a CancelRequest is made: backend, secret, TLS

	kind     poolKind
	upstream Upstream
	life     string // cluster, database and start of the server: under another, numbers and names may mean something else
	major    int
	version  string // server_version, as the server says it
	watch    watch
	settled  string            // the watch's answer when everything was asserted
	params   map[string]string // reported values that must not change

	txStatus    byte // of the last ReadyForQuery: I, T or E
	uses        int
	born        time.Time
	dirty       bool            // a statement ran that may have left something in the session
	used        bool            // a safe read ran since it was cleaned
	owner       string          // whose it was
	comparisons map[string]bool // of definitions, by the names under which the session has them prepared
	foreign     bool            // there were servers of foreign tables before COMMIT
	broken      bool            // the conversation broke off: only good for closing
	drift       string          // the setting that changed; the connection is quarantined
	outlives    bool            // it was given up and goes on: closed when the server has ended it

	// A server's process keeps to its end what statements had it look up: names of time
	// zones, which a text makes up at 20 KB each, names of relations, plans. No DISCARD
	// frees it, so a connection ends behind so much work.
	worked time.Duration
	worn   bool

	notices []Notice

	owed    *cleaning // sent, and not answered yet
	unseen  bool      // it was cleaned, and nobody has looked since
	leaving *cleaning // goes out behind the next exchange; nil: nothing
	ahead   *ahead    // a transaction that is open for a write that has waited; nil: none

	outdated bool // the server has other settings of its own now: it is closed before its next use
	later    *time.Timer
	mu       sync.Mutex // between a use and what happens while it idles
	taken    bool
}

// Most notices of one statement that are handed on, and the most bytes of one.
const (
	maxNotices     = 32
	maxNoticeBytes = 1 << 10
)

// A Notice is a message that came beside a result.
type Notice struct {
	Severity string
	SQLState string
	Message  string
	routine  string // the server's function that wrote it; the text is localised, this is not
}

// noticed keeps a notice. What a statement raises itself keeps none out that is part of
// the evidence.
func (c *conn) noticed(m *pgproto3.NoticeResponse) {
	if len(c.notices) >= maxNotices && m.Routine != unreplicated {
		return
	}
	c.notices = append(c.notices, Notice{
		Severity: m.SeverityUnlocalized,
		SQLState: m.Code,
		Message:  clip(m.Message),
		routine:  m.Routine,
	})
}

// clip shortens a text of the server to 1 KiB of whole characters.
func clip(s string) string {
	if len(s) <= maxNoticeBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxNoticeBytes], "")
}

// reported takes a ParameterStatus. A value other than at the start is drift: a
// statement changed what every later one depends on.
func (c *conn) reported(name, value string) {
	switch want, watched := c.params[name]; {
	case !watched || want == value:
	case name == "in_hot_standby": // the server was promoted: a new connection knows it
		c.outdated = true
	case c.drift == "":
		c.drift = name
	}
}

// reportedPins are the parameters that servers report by themselves and that
// must stay; application_name and is_superuser are not among them.
var reportedPins = []string{
	"client_encoding", "DateStyle", "IntervalStyle", "TimeZone", "standard_conforming_strings",
	"default_transaction_read_only", "in_hot_standby", "server_encoding", "session_authorization", "search_path",
}

// takeOver makes a conn of a connection that pgconn logged in.
func takeOver(ctx context.Context, pg *pgconn.PgConn, kind poolKind) (*conn, error) {
	if err := pg.SyncConn(ctx); err != nil {
		return nil, errors.Join(err, pg.Close(ctx))
	}
	h, err := pg.Hijack()
	if err != nil {
		return nil, errors.Join(err, pg.Close(ctx))
	}
	c := &conn{net: h.Conn, fe: h.Frontend, key: h, kind: kind, txStatus: h.TxStatus, born: time.Now(), params: make(map[string]string)}
	for _, name := range reportedPins {
		if v, ok := h.ParameterStatuses[name]; ok {
			c.params[name] = v
		}
	}
	c.version = h.ParameterStatuses["server_version"]
	c.major = leadingInt(c.version)
	c.upstream.BackendPID = int64(h.PID)
	c.upstream.Host = h.Conn.RemoteAddr().String()
	return c, nil
}

// leadingInt reads the digits a text begins with: "18beta1" is 18.
func leadingInt(s string) int {
	end := 0
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(s[:end])
	if err != nil {
		return 0
	}
	return n
}

// The PostgreSQL majors that the service knows.
const (
	oldestMajor = 15
	newestMajor = 18
)

// assert proves, once per connection, that the session is what was asked for
// and reads the server's incarnation.
func (c *conn) assert(ctx context.Context, cfg *pgconn.Config, pins []pin, deadline time.Time) error {
	c.watch = newWatch(pins)
	q, row := query(c.watch.assertSQL)
	refused, err := c.exchange(ctx, deadline, segment{q})
	if err != nil {
		return err
	}
	if refused != nil {
		return fmt.Errorf("the query that checks a new connection failed: %w", refused)
	}
	if len(row.values) != 13 {
		return fmt.Errorf("%w: %d columns instead of 13", errProtocol, len(row.values))
	}
	for _, a := range []struct {
		what, want, got string
	}{
		{"current_user", cfg.User, row.text(0)},
		{"session_user", cfg.User, row.text(1)},
		{"current_database()", cfg.Database, row.text(2)},
		{"server_encoding", "UTF8", row.text(3)},
		{"pg_backend_pid()", strconv.FormatInt(c.upstream.BackendPID, 10), row.text(4)},
	} {
		if a.want != a.got {
			return assertionFailed(a.what, a.got)
		}
	}
	if name, value, ok := assertedPins(pins, row.text(10)); !ok {
		return assertionFailed(name, value)
	}
	c.upstream.Role, c.upstream.Database = cfg.User, row.text(2)
	c.upstream.SystemIdentifier = row.text(6)
	c.upstream.Timeline = row.text(7)
	c.upstream.CrashMark = row.text(8)
	c.upstream.BackendStart = row.text(9)
	c.settled = row.text(11)
	c.life = row.text(12)
	return nil
}

// keep prepares the look, once for a connection. It has no name, so nothing but the
// protocol reaches it: under a name, a function that a client calls could put a
// statement of its own in its place by SQL, and the gate would run that.
func (c *conn) keep(ctx context.Context, deadline time.Time) error {
	refused, err := c.exchange(ctx, deadline, segment{{sql: c.watch.lookSQL, oids: []uint32{16, 16, 16, 701, 25}, keep: true}}) // bool, float8, text
	if err == nil && refused != nil {
		err = refused
	}
	return err
}

var boolText = map[bool][]byte{false: []byte("f"), true: []byte("t")}

// A look is what one look at a connection does besides showing what it finds.
type look struct {
	assign bool // has the server give the transaction an id, where it has none
	pins   bool // shows the pinned settings too: not needed where RESET ALL went before, which puts them back
	clean  bool // gives up all of the session's advisory locks and has random() begin elsewhere (DISCARD ALL does not)
	commit bool // makes synchronous_commit what it was, for the rest of the transaction, and looks for servers of foreign tables
}

// The columns of a look's answer.
const (
	lookID        = iota // the transaction's id, "" where it has none
	lookSettings         // and users
	lookLeft             // of clean: "t" for what only DISCARD ALL takes away, temporary tables, channels, cursors, prepared statements
	lookForeign          // of commit: "t" where there are any
	lookTemporary        // "t" where the session has made something temporary: no connection with any is used again
)

func (c *conn) looking(l look) (*command, *oneRow) {
	cmd, row := query(c.watch.lookSQL)
	cmd.look = true
	cmd.params = [][]byte{boolText[l.assign], boolText[l.pins], boolText[l.clean], nil, nil}
	if l.clean {
		cmd.params[3] = strconv.AppendFloat(nil, 2*rand.Float64()-1, 'f', -1, 64)
	}
	if l.commit {
		cmd.params[4] = []byte(c.watch.synchronousCommit(c.settled))
	}
	return cmd, row
}

// assertionFailed is the fault of a session that is not what was asked for.
func assertionFailed(what, got string) error {
	hint := "The database session is not what the gate asked for"
	if what == "pg_backend_pid()" {
		hint = "A connection pooler stands between the gate and the database; the gate needs a direct connection"
	}
	return fault.New(fault.DBConnectionFailed, "%s (%s). Tell the operator.", hint, what).
		With("assertion", what).Because(fmt.Errorf("%s is %q", what, got))
}

// look compares the session with what was asserted, and reports whether something
// is left in it. No transaction is open.
func (c *conn) look(ctx context.Context, deadline time.Time) (left bool, err error) {
	q, row := c.looking(look{pins: true, clean: true})
	refused, err := c.exchange(ctx, deadline, segment{q})
	switch {
	case err != nil:
		return false, err
	case refused != nil:
		c.broken = true
		return false, refused
	}
	c.compare(row.text(lookSettings))
	return row.text(lookLeft) != "f", nil
}

// compare notes drift between a watch's answer and what was asserted. What is not
// pinned is the server's to change, by a reload of its files: a new connection knows it.
func (c *conn) compare(shown string) {
	if !c.unchanged(shown) && c.drift == "" {
		name := c.watch.difference(c.settled, shown)
		if slices.Contains(serversOwn, name) {
			c.outdated = true
			return
		}
		c.drift = name
	}
}

// unchanged tells of what a look showed, with the pins or without, whether it is as at
// the start.
func (c *conn) unchanged(shown string) bool {
	return shown == c.settled || strings.HasSuffix(c.settled, separator+shown) && strings.Count(shown, separator) == len(watchedBeside)+1
}

// stale reports whether the server has closed an idle connection, or has said
// something on it (only bad news comes unasked). It looks without reading.
func (c *conn) stale() bool { return c.fe.ReadBufferLen() > 0 || c.readable() }

// socket is the connection below TLS.
func (c *conn) socket() net.Conn {
	if t, ok := c.net.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c.net
}

// readable reports whether the socket has something to read, or is closed.
func (c *conn) readable() bool {
	sc, ok := c.socket().(syscall.Conn)
	if !ok {
		return false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	var readable bool
	err = rc.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		readable = !errors.Is(err, syscall.EAGAIN)
	})
	return readable || err != nil
}

// rollback ends the open transaction and reports whether the server said so.
func (c *conn) rollback(deadline time.Time) bool {
	if c.broken {
		return false
	}
	cmd := own("ROLLBACK")
	refused, err := c.exchange(context.Background(), deadline, segment{cmd})
	if err != nil || refused != nil || c.txStatus != 'I' {
		c.broken = true
		return false
	}
	return true
}

// close says goodbye where that can be heard, and closes the socket.
func (c *conn) close() {
	c.take()
	if c.later != nil {
		c.later.Stop()
	}
	if !c.broken && c.net.SetDeadline(time.Now().Add(time.Second)) == nil {
		c.fe.Send(&pgproto3.Terminate{})
		if c.fe.Flush() != nil {
			c.broken = true
		}
	}
	if !c.outlives {
		// The socket is gone either way; an error here changes nothing for anybody.
		_ = c.net.Close()
	}
}
