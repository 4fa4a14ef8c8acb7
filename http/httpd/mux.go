package httpd

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/julienschmidt/httprouter"

	"writegate/commands/fault"
	"writegate/eventlog/event"
)

// logSource is the source attribute of this package's log entries.
const logSource = "http"

// DefaultMaxBody is GATE_MAX_BODY_BYTES where nothing else is set: 1 MB
// (spec/gate.md part 8).
const DefaultMaxBody = 1 << 20

// An Incident is something a client did that leaves evidence in the log.
type Incident string

// The incidents; the names are those of their events (spec/decisions.md part 3).
const (
	OversizedRequest   Incident = "oversized_request"
	OperatorAuthFailed Incident = "operator_auth_failed"
	RateLimitHit       Incident = "rate_limit_hit"
)

// A Report tells of one incident. Limit and Got are 0 where they mean nothing.
type Report struct {
	Incident  Incident
	Client    string
	Path      string
	RequestID string
	Limit     int64
	Got       int64
}

// Options configure a Mux. Logger is required; each other zero value means its
// default, or that the feature is off.
type Options struct {
	Logger       *slog.Logger
	MaxBodyBytes int64            // DefaultMaxBody
	Operators    *Operators       // nil: every operator endpoint answers 401
	Limiter      *Limiter         // nil: failed operator logins are not counted
	AgentIssuer  string           // URL of the issuer whose JWTs agents show, which are no operator tokens; "" = they show none
	Proxies      *Proxies         // nil: no forwarded address is believed
	Now          func() time.Time // time.Now
	NotFound     Handler          // what answers a path without a route; nil: the error object
	Names        *Names           // what the listener is called; nil: addresses and localhost
	// Pages tells that people open what is served in a browser: a link from
	// elsewhere to it is followed.
	Pages bool
	// Headers stand on every answer, by their canonical names; nil: those of an
	// API that no page may use. X-Content-Type-Options is there in any case.
	Headers map[string]string
	// OnIncident records an incident as evidence. It must bound what it
	// writes, since clients cause incidents at will.
	OnIncident func(context.Context, Report)
	// Earned gives the context that a request is served under, and tells in the
	// end which headers the request has earned: they are added just before the
	// status is sent. nil: every request has its own context and earns nothing.
	Earned func(context.Context) (context.Context, func(http.Header))
}

// A Mux routes requests to handlers and keeps the conventions around them.
type Mux struct {
	router      *httprouter.Router
	log         *slog.Logger
	maxBody     int64
	operators   *Operators
	limiter     *Limiter
	agentIssuer string
	proxies     *Proxies
	now         func() time.Time
	names       *Names
	pages       bool
	headers     map[string][]string
	onIncident  func(context.Context, Report)
	earned      func(context.Context) (context.Context, func(http.Header))
	large       Shares // answers to GET that are larger than a socket takes
	unread      *Slots // bytes of such answers to other requests
	bodies      *Slots // bytes of request bodies
	reads       *turns // of clients whose GETs are worked on
	routes      []Route
	stamps      []stamp
}

// A stamp is a header that every answer under a prefix carries.
type stamp struct{ prefix, name, value string }

// Stamp puts a header on every answer to a path under prefix, whoever gives it.
func (m *Mux) Stamp(prefix, name, value string) {
	m.stamps = append(m.stamps, stamp{prefix, name, value})
}

// A Route is one endpoint as it was registered.
type Route struct {
	Method string
	Path   string // with parameters as :name
}

// A Handler serves one endpoint: it answers through the call, or returns an
// error that is answered as the error object.
type Handler func(c *Call) error

// NewMux makes a Mux without routes.
func NewMux(o Options) *Mux {
	m := &Mux{log: o.Logger, maxBody: o.MaxBodyBytes, operators: o.Operators, limiter: o.Limiter, agentIssuer: o.AgentIssuer,
		proxies: o.Proxies, names: o.Names, pages: o.Pages, headers: map[string][]string{"X-Content-Type-Options": {"nosniff"}},
		now: o.Now, onIncident: o.OnIncident, earned: o.Earned, router: httprouter.New(), large: NewShares(maxLarge, maxLargeEach), unread: NewSlots(maxUnread, maxUnreadEach)}
	if o.Headers == nil {
		o.Headers = pageHeaders
	}
	for name, value := range o.Headers {
		m.headers[name] = []string{value}
	}
	if m.maxBody == 0 {
		m.maxBody = DefaultMaxBody
	}
	each := max(bodiesEach, 4*int(m.maxBody))
	m.reads = newTurns(readsEach, readsMaxWait)
	m.bodies = NewSlots(bodiesMost*each, each)
	if m.now == nil {
		m.now = time.Now
	}
	m.router.RedirectTrailingSlash = false
	m.router.RedirectFixedPath = false
	m.router.HandleOPTIONS = false
	m.router.NotFound = routed(nothingHere)
	if o.NotFound != nil {
		m.router.NotFound = routed(o.NotFound)
	}
	m.router.MethodNotAllowed = routed(methodNotAllowed)
	return m
}

func nothingHere(*Call) error {
	return fault.New(fault.NotFound, "There is nothing at this path. See the list of endpoints in the documentation.")
}

// Routes are the endpoints in the order of their registration, without the HEAD
// beside each GET, so that a document of the API can be held against them.
func (m *Mux) Routes() []Route { return slices.Clone(m.routes) }

// Handle registers a handler; a GET is reachable by HEAD too. The query string of
// a GET is the handler's to read. A request that may change something has the
// parameters named and no others, and no condition.
func (m *Mux) Handle(method, path string, h Handler, params ...Param) {
	if method == http.MethodGet {
		m.HandleUnchecked(method, path, h)
		return
	}
	var honoured []string
	if slices.ContainsFunc(params, func(p Param) bool { return p.Name == "idempotency_key" }) {
		honoured = append(honoured, idempotencyKey) // the header is another way to write the parameter
	}
	m.HandleUnchecked(method, path, func(c *Call) error {
		if err := c.CheckWords(honoured, params...); err != nil {
			return err
		}
		return h(c)
	})
}

// HandleProbe registers a GET that waits for no turn: supervisors take a wait for the
// service's end. What it does has to be cheap however often it is asked for.
func (m *Mux) HandleProbe(path string, h Handler) {
	m.routes = append(m.routes, Route{http.MethodGet, path})
	m.router.Handle(http.MethodGet, path, withParams(h))
	m.router.Handle(http.MethodHead, path, withParams(h))
}

// HandleUnchecked is Handle for a handler that calls CheckWords itself, in its
// own time.
func (m *Mux) HandleUnchecked(method, path string, h Handler) {
	m.routes = append(m.routes, Route{method, path})
	if method == http.MethodGet {
		h = m.reading(h)
		m.router.Handle(http.MethodHead, path, withParams(h))
	}
	m.router.Handle(method, path, withParams(h))
}

func withParams(h Handler) httprouter.Handle {
	return func(w http.ResponseWriter, _ *http.Request, params httprouter.Params) {
		c := w.(*recorder).call
		c.Params = params
		c.run(h)
	}
}

// routed lets a handler stand where the router wants a plain one.
func routed(h Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.(*recorder).call.run(h) })
}

func (c *Call) run(h Handler) {
	if err := h(c); err != nil {
		c.Fail(err)
	}
}

// methodNotAllowed keeps the Allow header that the router made, without the
// OPTIONS that it adds and we do not serve.
func methodNotAllowed(c *Call) error {
	h := c.recorder.Header()
	var methods []string
	for method := range strings.SplitSeq(h.Get("Allow"), ", ") {
		if method != http.MethodOptions {
			methods = append(methods, method)
		}
	}
	return NotAllowed(c, methods...)
}

// NotAllowed is the error for a method that a path does not have; it names
// those it has in the Allow header.
func NotAllowed(c *Call, allow ...string) error {
	c.recorder.Header().Set("Allow", strings.Join(allow, ", "))
	return fault.New(fault.MethodNotAllowed, "This path takes %s. Send the request with that method.", strings.Join(allow, ", ")).With("allow", allow)
}

// ServeHTTP implements http.Handler.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if len(r.TransferEncoding) > 0 && r.Trailer == nil {
		r.Trailer = http.Header{} // for those that nobody announced, in each copy of the request
	}
	c := &Call{Request: r, Start: m.now(), mux: m}
	c.recorder = recorder{ResponseWriter: w, call: c}
	if m.earned != nil {
		ctx, add := m.earned(r.Context())
		c.Request, c.recorder.earned = r.WithContext(ctx), add
	}
	c.RequestID = r.Header.Get("X-Request-Id")
	if !VisibleASCII(c.RequestID, 128) {
		c.RequestID = event.NewRequestID(c.Start)
	}
	c.Trace = traceOf(r.Header)
	h := w.Header()
	maps.Copy(h, m.headers)
	h.Set("X-Request-Id", c.RequestID)
	for _, s := range m.stamps {
		if strings.HasPrefix(r.URL.Path, s.prefix) {
			h.Set(s.name, s.value)
		}
	}
	defer func() {
		m.bodies.Give(c.bodyHolder, c.bodyBytes)
		if c.large != nil {
			c.large()
		}
	}()
	defer c.end()
	if err := c.admit(); err != nil {
		c.Fail(err)
		return
	}
	if escapedSlash(r) {
		m.router.NotFound.ServeHTTP(&c.recorder, r)
		return
	}
	m.router.ServeHTTP(&c.recorder, r)
}

// escapedSlash reports a path in which a slash is data (RFC 3986 part 2.2). The
// router sees paths unescaped and would take it for a border, where a proxy in
// front that guards a path does not; no id of ours holds one.
func escapedSlash(r *http.Request) bool {
	return strings.Contains(r.URL.RawPath, "%2f") || strings.Contains(r.URL.RawPath, "%2F")
}

// end is deferred around every handler: it turns a panic into a 500 and writes
// the access log.
func (c *Call) end() {
	if p := recover(); p != nil {
		c.recovered(p)
	}
	ctx := c.Request.Context()
	if !c.mux.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	c.mux.log.LogAttrs(ctx, slog.LevelDebug, "request", slog.String("source", logSource), slog.String("request_id", c.RequestID),
		slog.String("method", clip(c.Request.Method, 20)), slog.String("path", clip(c.Request.URL.Path, 200)), slog.Int("status", c.recorder.status),
		slog.Int64("bytes", c.recorder.written), slog.Duration("duration", c.mux.now().Sub(c.Start)), slog.String("client", c.Client()), c.traceAttr())
}

// traceAttr leads from a log line to the caller's trace; empty where there is none.
func (c *Call) traceAttr() slog.Attr {
	if c.Trace.TraceID == "" {
		return slog.Attr{}
	}
	return slog.String("trace_id", c.Trace.TraceID)
}

// recovered keeps the process alive. The text of a panic goes to the operator's
// log alone.
func (c *Call) recovered(p any) {
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	c.mux.log.Error("a handler panicked", "source", logSource, "request_id", c.RequestID,
		"path", clip(c.Request.URL.Path, 200), "panic", p, "stack", string(debug.Stack()))
	c.Fail(errPanic)
}

var errPanic = errors.New("a handler panicked")

// report hands an incident to whoever writes evidence.
func (m *Mux) report(c *Call, incident Incident, limit, got int64) {
	if m.onIncident == nil {
		return
	}
	m.onIncident(context.WithoutCancel(c.Request.Context()), Report{Incident: incident, Client: c.Client(),
		Path: clip(c.Request.URL.Path, 200), RequestID: c.RequestID, Limit: limit, Got: got})
}

// Report tells of an incident that only the handler can see, such as SQL over
// its limit.
func (c *Call) Report(incident Incident, limit, got int64) { c.mux.report(c, incident, limit, got) }

// VisibleASCII reports whether s has 1 to n characters between ! and ~.
func VisibleASCII(s string, n int) bool {
	if s == "" || len(s) > n {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// clip cuts text to n bytes at a border of characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// DigestOf hashes texts with their lengths, so that no two lists share a digest.
func DigestOf(parts ...string) [32]byte {
	var b []byte
	for _, p := range parts {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(p))), p...)
	}
	return sha256.Sum256(b)
}
