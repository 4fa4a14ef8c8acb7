package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"writegate/http/httpd"
)

// DefaultListenAddr is CONTROL_PLANE_LISTEN_ADDR where nothing else is set.
const DefaultListenAddr = "127.0.0.1:3000"

// How long a session lives: from its login, and without anybody at the keys
// (design/control-plane.md).
const (
	sessionLife = 12 * time.Hour
	sessionIdle = 30 * time.Minute
)

// Login attempts of one address: at once, and each minute after that.
const (
	loginBurst     = 5
	loginPerMinute = 6
)

// Options configure a control plane. Logger, Users and, in real mode, Backend are
// required.
type Options struct {
	Backend *Backend // nil: mock mode
	Users   Users
	// PublicURL is the address that browsers use (CONTROL_PLANE_PUBLIC_URL); nil
	// is whatever the listener is called, as long as that is an IP address or
	// localhost.
	PublicURL *url.URL
	Secure    bool // browsers come by HTTPS: the cookie is bound to it
	Proxies   *httpd.Proxies
	Logger    *slog.Logger
	Version   string
	Now       func() time.Time // time.Now
}

// Users are the people who may log in: one, for now.
type Users struct {
	Name string
	Hash PasswordHash
}

// A Server is the handler with the work behind it.
type Server struct {
	options  Options
	source   source
	log      *slog.Logger
	now      func() time.Time
	sessions *sessions
	logins   *httpd.Limiter
	streams  *httpd.Slots  // of live pages, by session
	uploads  *httpd.Slots  // of files that are verified, by session
	hashing  chan struct{} // slots for password hashes, which cost memory on purpose
	views    *views
	samples  *samples
	reports  *reportBook
	kept     *kept
	mux      *httpd.Mux
	stopping context.Context
}

// New makes a control plane. Its background work and open streams end with ctx.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Logger == nil || o.Users.Name == "" || o.Users.Hash.text == "" {
		return nil, errors.New("a control plane needs a logger and somebody who may log in")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	logins, err := httpd.NewLimiter(loginPerMinute, loginBurst, o.Now)
	if err != nil {
		return nil, err
	}
	s := &Server{options: o, log: o.Logger, now: o.Now, sessions: newSessions(o.Now), logins: logins, streams: httpd.NewSlots(maxStreams, sessionStreams), uploads: httpd.NewSlots(maxUploads, sessionUploads), hashing: make(chan struct{}, 2),
		samples: newSamples(o.Now), reports: new(reportBook), kept: newKept(o.Now), stopping: ctx}
	if s.views, err = parseViews(); err != nil {
		return nil, fmt.Errorf("the pages of the control plane: %w", err)
	}
	s.source = newMock(o.Now)
	if o.Backend != nil {
		s.source = o.Backend
	}
	s.mux = httpd.NewMux(httpd.Options{Logger: o.Logger, MaxBodyBytes: maxBody, Proxies: o.Proxies, Now: o.Now, NotFound: s.notFound,
		Names: &httpd.Names{Public: o.PublicURL, Secure: o.Secure, Setting: "CONTROL_PLANE_PUBLIC_URL"}, Pages: true, Headers: s.headers()})
	s.register(s.mux)
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Run collects what the charts show until ctx ends.
func (s *Server) Run(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		_, _ = s.sample(ctx) // a gap is what the charts show of it, and every page says why
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// shownSQL is a statement with its digest, where that says something: in mock
// mode nothing is to look like evidence.
func (s *Server) shownSQL(text string) sqlView {
	v := viewSQL(text)
	if s.mock() {
		v.Digest = ""
	}
	return v
}

// mock reports whether what is shown is invented.
func (s *Server) mock() bool { return s.options.Backend == nil }
