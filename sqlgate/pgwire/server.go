package pgwire

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"writegate/sqlgate"
)

// Ways to log in (GATE_PGWIRE_AUTH).
const (
	AuthScram = "scram"
	AuthCert  = "cert"  // the common name of the verified client certificate is the user
	AuthTrust = "trust" // nothing is asked; for a loopback address alone
)

// TLS of clients (GATE_PGWIRE_TLS).
const (
	TLSOff     = "off"
	TLSPrefer  = "prefer"
	TLSRequire = "require"
)

// An Incident is something that a client did and that is written down, throttled.
type Incident struct {
	Oversized  bool // a message or a text over its limit; else a client over its rate
	Client     string
	Limit, Got int
}

// Causes of a login that failed.
const (
	LoginPassword    = "password"      // or a user that nobody knows: which of them is not told
	LoginToken       = "agent_token"   // it is an agent's, and revoked, expired or without the scope for statements
	LoginCertificate = "certificate"   // none that names the user
	LoginCleartext   = "tls_required"  // a connection without TLS where it is demanded
	LoginHandshake   = "tls_handshake" // TLS did not come about, as with a certificate that no authority of ours signed
	LoginStartup     = "startup"       // what the client asked for at the start is not to be had
)

// A LoginFailure is a connection that was refused before it was let in.
type LoginFailure struct {
	Cause    string
	Client   string // its address
	SQLState string // what it is told; "" = nothing can be said to it
	User     string // that it claims; "" = it named none
}

// maxClaimed bounds what is kept of the name that a stranger claims, in bytes.
const maxClaimed = 256

// Options are what a Server stands on. All but Overdue, Now and those of agents are
// required, Users with AuthScram alone and TLS with another mode than off.
type Options struct {
	Addr   string
	Logger *slog.Logger
	Now    func() time.Time

	// Holder is the client as one who holds what all share, by the name under which
	// its statements are counted.
	Holder func(client string) string
	// Open makes the Wire of a connection that logged in.
	Open func(sqlgate.WireLogin) (Wire, error)
	// ServerVersion is server_version as the database behind the gate says it.
	ServerVersion func(context.Context) (string, error)
	Database      string // the one that clients may name
	DefaultEnv    string // claim env of a client that gives none

	// AgentVerifiers check the tokens of an agent, by its id, as passwords; none for an id
	// that is nobody's. AgentNow refuses one whose token is not good. nil: no agent logs in.
	AgentVerifiers func(ctx context.Context, agentID string) ([]sqlgate.AgentVerifier, error)
	AgentNow       func(ctx context.Context, a sqlgate.Agent) (sqlgate.Agent, error)

	Auth    string
	Users   *Users
	TLSMode string
	TLS     func() *tls.Config // today's; asked for at each handshake

	MaxConnections, MaxPerAddress, MaxUnauthenticated int
	MaxBatchItems, MaxMessageBytes                    int

	AuthTimeout  time.Duration // for all of start-up
	IdleTimeout  time.Duration // between commands
	WriteTimeout time.Duration // of a client that does not read
	TxMax        time.Duration // of a block; 0: there are none
	TxIdle       time.Duration // idle in a block

	// Allow takes one statement from a client's rate, which it shares with
	// POST /query; where there is none left it says how long to wait.
	Allow func(client string) (wait time.Duration, ok bool)
	// AllowText takes a Parse, Bind or Describe from a rate of their own, a large one
	// as several: they run nothing, but leave evidence and take memory.
	AllowText  func(client string, messages int) (wait time.Duration, ok bool)
	OnIncident func(Incident)
	// OnLoginFailed writes a refused login down, throttled, before it is answered.
	OnLoginFailed func(LoginFailure)
	Cancels       CancelEvidence

	// Drain is how long what runs has to end once the server is told to stop;
	// then Overdue asks it to, and it has Grace.
	Drain, Grace time.Duration
	Overdue      func(context.Context)
}

// Stats are the counters of the listener, for GET /runtime/stats.
type Stats struct {
	Connections int   // that logged in
	Cancels     int64 // CancelRequests since the start
}

// A Server is one listener with its connections.
type Server struct {
	o        Options
	listener net.Listener
	cancels  *registry
	log      *slog.Logger
	secret   []byte // of this server alone

	ctx  context.Context // of all statements; ends when the rest is cut off
	cut  context.CancelFunc
	work sync.WaitGroup
	told context.Context // ends when the server is told to stop
	tell context.CancelFunc

	lingering atomic.Int32

	mu       sync.Mutex
	stopping bool
	conns    map[*conn]struct{} // all that were accepted
	seats    seats
	toldFull time.Time
}

// Listen opens the listener, so that an address in use is told before anything
// else starts.
func Listen(o Options) (*Server, error) {
	listener, err := net.Listen("tcp", o.Addr)
	if err != nil {
		return nil, fmt.Errorf("wire listener: %w", err)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{o: o, listener: listener, secret: randomBytes(secretLen32), log: o.Logger.With("source", "pgwire"), conns: map[*conn]struct{}{}, seats: newSeats(&o)}
	s.cancels = newRegistry(o.Now, o.Cancels, s.log)
	s.ctx, s.cut = context.WithCancel(context.Background())
	s.told, s.tell = context.WithCancel(s.ctx)
	return s, nil
}

// Addr is the address that is listened on, with the port that was found.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Stats counts connections and cancels.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Connections: s.seats.loggedIn, Cancels: s.cancels.requests.Load()}
}

// Close gives the listener up at once and cuts every connection off.
func (s *Server) Close() error {
	err := s.listener.Close()
	s.stop()
	s.cutOff()
	s.work.Wait()
	s.cancels.close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Serve takes connections until ctx ends; then it takes no new ones, ends those
// that are between statements, and waits for the rest. drained is true when all
// of them ended by themselves, or within the grace after Overdue.
func (s *Server) Serve(ctx context.Context) (drained bool, err error) {
	served := make(chan error, 1)
	go func() { served <- s.accept() }()
	select {
	case err := <-served:
		return false, errors.Join(err, s.Close())
	case <-ctx.Done():
	}
	err = s.listener.Close()
	<-served
	s.stop()
	drained = s.await(s.o.Drain, nil) || s.await(s.o.Grace, s.o.Overdue)
	s.cutOff()
	s.work.Wait()
	s.cancels.close()
	return drained, err
}

// Bounds of the wait after an accept that failed because the process has no
// file descriptors left.
const (
	acceptPauseLeast = 5 * time.Millisecond
	acceptPauseMost  = time.Second
)

func (s *Server) accept() error {
	pause := time.Duration(0)
	for {
		raw, err := s.listener.Accept()
		var temporary interface{ Temporary() bool }
		switch {
		case err == nil:
			pause = 0
			s.take(raw)
		case errors.As(err, &temporary) && temporary.Temporary():
			pause = min(max(2*pause, acceptPauseLeast), acceptPauseMost)
			s.log.Warn("a connection could not be accepted", "cause", err.Error())
			time.Sleep(pause)
		default:
			return err
		}
	}
}

// take gives a new connection a seat among those that have not logged in, or one
// for a CancelRequest alone.
func (s *Server) take(raw net.Conn) {
	c := &conn{server: s, raw: raw, net: raw, id: uuid.Must(uuid.NewV7()).String()}
	c.out = messageWriter{conn: raw, timeout: s.o.WriteTimeout}
	if addr, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		c.addr = addr.AddrPort().Addr().Unmap().WithZone("")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		raw.Close()
		return
	}
	if displaced := s.seats.enter(c); displaced != nil {
		displaced.displaced.Store(true)
		_ = displaced.raw.Close() // its goroutine ends by that
	}
	s.tellFull()
	s.conns[c] = struct{}{}
	s.work.Go(func() { s.handle(c) })
}

// fullEvery is how often the log is told that the seats are taken.
const fullEvery = time.Minute

// tellFull tells the log where the seats of those that have not logged in are
// taken; the lock is held.
func (s *Server) tellFull() {
	now := s.o.Now()
	if s.seats.cancels.count == 0 || now.Sub(s.toldFull) < fullEvery && now.After(s.toldFull) {
		return
	}
	s.toldFull = now
	from, most := s.seats.strangers.largest()
	s.log.Warn("connections are refused: as many as there may be have not logged in", "most", s.seats.strangers.most, "of_one_network", most, "network", from.String())
}

// stateTooMany is too_many_connections.
const stateTooMany = "53300"

func tooMany() *failure { return fatalf(stateTooMany, "sorry, too many clients already") }

// handle is the whole life of a connection.
func (s *Server) handle(c *conn) {
	defer s.leave(c)
	defer s.survive(c)
	err := c.live(s.ctx)
	var f *failure
	refused := errors.As(err, &f)
	if !c.loggedIn {
		c.loginFailed(err, f)
	}
	if refused {
		c.answer(f)
	}
	if err != nil {
		s.log.Debug("a connection ended", "wire_session", c.id, "client", c.addr.String(), "cause", err.Error())
	}
}

// survive keeps a mistake in the handling of one connection from ending the gate.
func (s *Server) survive(c *conn) {
	if r := recover(); r != nil {
		s.log.Error("a connection failed and is closed", "wire_session", c.id, "cause", fmt.Sprint(r), "stack", string(debug.Stack()))
	}
}

// end has the Wire of a connection undo what is open.
func (s *Server) end(c *conn) {
	defer s.survive(c)
	if c.wire != nil {
		c.wire.Close(context.WithoutCancel(s.ctx))
	}
}

// leave gives the seat of a connection back.
func (s *Server) leave(c *conn) {
	s.end(c)
	if c.key.pid != 0 {
		s.cancels.remove(c.key.pid)
	}
	c.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.seats.leave(c)
}

// stop ends the connections that wait for their clients; the others see it when
// they wait next.
func (s *Server) stop() {
	s.tell()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	for c := range s.conns {
		c.stop()
	}
}

// cutOff ends everything that still runs.
func (s *Server) cutOff() {
	s.cut()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.raw.Close()
	}
}

// await waits for all connections to end; meanwhile runs beside it.
func (s *Server) await(most time.Duration, meanwhile func(context.Context)) bool {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	if meanwhile != nil {
		beside.Go(func() { meanwhile(ctx) })
	}
	ended := make(chan struct{})
	go func() { s.work.Wait(); close(ended) }()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// A conn is one connection. Its goroutine owns everything but what stop touches.
type conn struct {
	server    *Server
	id        string   // wire_session of the evidence
	raw       net.Conn // the socket; stop and whoever takes its seat may close it
	net       net.Conn // the same, or TLS over it
	addr      netip.Addr
	tls       *tls.ConnectionState // nil without TLS
	leaf      []byte               // our certificate in this connection, DER
	judged    *tls.Config          // what the client certificate was last verified with, nil before the first message
	until     time.Time            // how long that holds
	users     *userList            // what the password was last compared with; nil without one
	storedKey [sha256.Size]byte    // stored key of that password
	agent     sqlgate.Agent        // whose token the password was, the zero Agent without one
	version   uint32               // of the protocol

	out        messageWriter
	in         *messageReader
	stopped    atomic.Bool
	displaced  atomic.Bool // its seat went to another
	cancelOnly bool        // there was no seat but for a CancelRequest
	loggedIn   bool
	waiting    *pending // where it has its seat until it logs in; the Server's lock guards it
	claimed    string   // the user that the greeting names

	client  string // whose rate its statements count against
	wire    Wire
	login   sqlgate.WireLogin
	key     cancelKey
	session session
}

// stop has the connection end where it waits for its client.
func (c *conn) stop() {
	c.stopped.Store(true)
	_ = c.raw.SetReadDeadline(time.Unix(1, 0)) // fails for a connection that ends anyway
}

// answer sends a failure at once.
func (c *conn) answer(f *failure) {
	// The time for answers may have ended the connection: this is the last one.
	c.out.bounds = func() (time.Duration, time.Time) { return min(c.server.o.WriteTimeout, lingerTime), time.Time{} }
	if c.out.send(&f.response) == nil {
		_ = c.out.flush() // the connection ends either way
	}
}

// Bounds of the wait for the other side's end.
const (
	lingerTime  = time.Second
	mostLingers = 64
)

// close ends the connection so that what was sent last arrives: a socket that is
// closed with something unread resets the connection, and a reset overtakes it.
func (c *conn) close() {
	defer c.raw.Close()
	half, ok := c.net.(interface{ CloseWrite() error })
	if !ok || !c.out.wrote || c.out.writing() || c.out.err != nil || half.CloseWrite() != nil {
		return
	}
	if c.net != c.raw {
		if tcp, ok := c.raw.(*net.TCPConn); ok && tcp.CloseWrite() != nil {
			return
		}
	}
	if c.server.lingering.Add(1) <= mostLingers && c.raw.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		var waste [512]byte
		for read := 0; read < maxStartup; {
			n, err := c.raw.Read(waste[:])
			if err != nil {
				break
			}
			read += n
		}
	}
	c.server.lingering.Add(-1)
}
