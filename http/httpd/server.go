package httpd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// DefaultListenAddr is GATE_HTTP_LISTEN_ADDR where nothing else is set.
const DefaultListenAddr = "127.0.0.1:6543"

// Bounds on what a slow client can stretch. A statement may run for minutes, so
// the time to answer is set by the caller; a large answer has its own deadline.
const (
	defaultHeaderTimeout = 10 * time.Second
	defaultBodyTimeout   = 30 * time.Second
	defaultIdleTimeout   = 120 * time.Second
	defaultAnswerTimeout = 6 * time.Minute
	defaultDrainTimeout  = 30 * time.Second
	defaultPatience      = 2 * time.Second
	defaultGrace         = 5 * time.Second
	maxHeaderBytes       = 64 << 10
)

// ServerOptions configure a Server. Handler and Logger are required.
type ServerOptions struct {
	Addr    string // DefaultListenAddr
	Handler http.Handler
	Logger  *slog.Logger
	TLS     *TLS // nil: cleartext
	// MaxConns and MaxConnsEach bound the connections, of all clients and of one
	// address; Proxies are addresses that only the former bounds.
	MaxConns, MaxConnsEach int
	Proxies                *Proxies
	// HeaderTimeout and BodyTimeout bound how long a request may take to arrive,
	// its body counted from its first byte; AnswerTimeout, how long from then
	// until the answer is out; IdleTimeout, the wait for a next request.
	HeaderTimeout, BodyTimeout, AnswerTimeout, IdleTimeout time.Duration
	// DrainTimeout is how long running requests have to end once the server is
	// told to stop.
	DrainTimeout time.Duration
	// Patience is how long, from then on, the rest of a request may take to arrive,
	// and how long 64 KiB of an answer may take to leave.
	Patience time.Duration
	// Overdue runs when that time is over and requests still run, until its
	// context ends: it asks what they wait for to end. They have Grace to be
	// answered; the rest is cut off.
	Overdue func(context.Context)
	Grace   time.Duration
}

// A Server is one listener and its orderly end.
type Server struct {
	listener net.Listener
	hurry    context.CancelFunc // tells the connections that the server stops
	http     *http.Server
	drain    time.Duration
	overdue  func(context.Context)
	grace    time.Duration
}

// Listen opens the listener, so that an address in use is told before anything
// else starts. Close the server with Serve's context, or by Close when Serve is
// never called.
func Listen(o ServerOptions) (*Server, error) {
	listener, err := net.Listen("tcp", cmp.Or(o.Addr, DefaultListenAddr))
	if err != nil {
		return nil, fmt.Errorf("http listener: %w", err)
	}
	stopping, hurry := context.WithCancel(context.Background())
	listener = &boundedListener{TCPListener: listener.(*net.TCPListener), proxies: o.Proxies, log: o.Logger,
		stopping: stopping, patience: cmp.Or(o.Patience, defaultPatience),
		slots: NewSlots(cmp.Or(o.MaxConns, DefaultMaxConns), cmp.Or(o.MaxConnsEach, DefaultMaxConnsEach))}
	s := &Server{listener: listener, hurry: hurry, drain: cmp.Or(o.DrainTimeout, defaultDrainTimeout), overdue: o.Overdue, grace: cmp.Or(o.Grace, defaultGrace)}
	s.http = &http.Server{
		Handler: o.Handler,
		// OPTIONS * too is answered by the handler, which has no such method
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            cmp.Or(o.HeaderTimeout, defaultHeaderTimeout),
		ReadTimeout:                  cmp.Or(o.BodyTimeout, defaultBodyTimeout),
		WriteTimeout:                 cmp.Or(o.AnswerTimeout, defaultAnswerTimeout),
		IdleTimeout:                  cmp.Or(o.IdleTimeout, defaultIdleTimeout),
		MaxHeaderBytes:               maxHeaderBytes,
		ErrorLog:                     log.New(serverLines{o.Logger}, "", 0),
	}
	if o.TLS != nil {
		s.listener = o.TLS.listen(listener)
		s.http.Handler, s.http.ConnContext = o.TLS.guard(o.Handler, o.Logger), o.TLS.remember
	}
	s.http.Handler = endsInDoubt(s.http.Handler)
	return s, nil
}

// endsInDoubt closes the connection behind a request that others on its way may have seen
// end elsewhere: one in chunks beside which a length stood, or chunks in HTTP/1.0 (RFC
// 9112 part 6.1). net/http takes the header away that would tell, so each request in
// chunks, and each of HTTP/1.0, is its connection's last one.
func endsInDoubt(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// serverLines takes what net/http says by itself, such as of handshakes that
// failed. The message is the same for all, so that their lines are bounded.
type serverLines struct{ log *slog.Logger }

// Write implements io.Writer.
func (l serverLines) Write(line []byte) (int, error) {
	l.log.Warn("the HTTP server could not serve a connection", "source", logSource, "error", string(bytes.TrimSpace(line)))
	return len(line), nil
}

// Addr is the address that is listened on, with the port that was found.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close gives the listener up at once; running requests are cut off.
func (s *Server) Close() error {
	s.hurry()
	return errors.Join(s.http.Close(), ignoreClosed(s.listener.Close()))
}

// Serve answers requests until ctx ends; then it takes no new ones and waits for the
// running ones, with little patience for what their clients have to do. drained is true
// when all of them were answered, by themselves or within the grace after Overdue; the
// rest is cut off.
func (s *Server) Serve(ctx context.Context) (drained bool, err error) {
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	defer s.hurry()
	select {
	case err := <-served:
		return false, err
	case <-ctx.Done():
	}
	s.hurry()
	ctx = context.WithoutCancel(ctx)
	drained = s.await(ctx, s.drain, nil)
	if !drained && s.overdue != nil {
		drained = s.await(ctx, s.grace, s.overdue)
	}
	if !drained {
		err = s.http.Close()
	}
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return drained, err
}

// await takes no new requests and gives the running ones their time to end;
// meanwhile runs beside it.
func (s *Server) await(ctx context.Context, most time.Duration, meanwhile func(context.Context)) (drained bool) {
	ctx, cancel := context.WithTimeout(ctx, most)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	if meanwhile != nil {
		beside.Go(func() { meanwhile(ctx) })
	}
	return s.http.Shutdown(ctx) == nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
