package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"writegate/commands/fault"
	"writegate/http/httpd"
)

// Bodies: of what scripts send, and of files that a person uploads to have them
// verified.
const (
	maxBody   = 16 << 20
	maxUpload = 2 << 30
)

// Live pages at once, of everybody and of one session. The gate has as many
// streams for operators.
const (
	maxStreams     = 64
	sessionStreams = 16
)

// Files that are verified at once, of everybody and of one session.
const (
	maxUploads     = 8
	sessionUploads = 2
)

// apiPrefix stands before every endpoint of the gate that a browser reaches.
const apiPrefix = "/api/gate"

// A forwarded endpoint is one that is handed on to the gate.
type forwarded struct {
	method  string
	path    string
	changes bool // needs the session's token and the page's own origin
	project bool // is sent with the project key, the others with the operator token
	follows bool // may last as long as the session

	params []httpd.Param // of the query string, where a change takes any
}

// forwards is the closed list of what a browser may reach (design/control-plane.md).
var forwards = []forwarded{
	{method: http.MethodGet, path: "/health"},
	{method: http.MethodGet, path: "/logs"},
	{method: http.MethodGet, path: "/runtime/stats"},
	{method: http.MethodGet, path: "/approvals"},
	{method: http.MethodGet, path: "/approvals/:id"},
	{method: http.MethodPost, path: "/approvals/:id/resolve", changes: true},
	{method: http.MethodGet, path: "/grants"},
	{method: http.MethodPost, path: "/grants", changes: true},
	{method: http.MethodPost, path: "/grants/:id/revoke", changes: true},
	{method: http.MethodGet, path: "/policy/status"},
	{method: http.MethodGet, path: "/policy/versions"},
	{method: http.MethodGet, path: "/policy/versions/:version"},
	{method: http.MethodPost, path: "/policy/validate", changes: true},
	{method: http.MethodPost, path: "/policy/diff", changes: true},
	{method: http.MethodPost, path: "/policy/dry-run", changes: true},
	{method: http.MethodPost, path: "/policy/candidates", changes: true},
	{method: http.MethodPost, path: "/policy/activate", changes: true},
	{method: http.MethodPost, path: "/policy/rollback", changes: true},
	{method: http.MethodGet, path: "/audit"},
	{method: http.MethodGet, path: "/audit/stream", follows: true},
	{method: http.MethodPost, path: "/audit/verify", changes: true},
	{method: http.MethodPost, path: "/audit/evidence", changes: true},
	{method: http.MethodGet, path: "/audit/evidence/signing-public-key"},
	{method: http.MethodGet, path: "/evidence/verify"},
	{method: http.MethodGet, path: "/executions"},
	{method: http.MethodPost, path: "/executions/:id/check", changes: true},
	{method: http.MethodGet, path: "/v1/agents", project: true},
	{method: http.MethodDelete, path: "/v1/agents/:id", project: true, changes: true, params: []httpd.Param{{Name: "reason"}}},
	{method: http.MethodDelete, path: "/v1/agents/:id/tokens/:token", project: true, changes: true},
	{method: http.MethodGet, path: "/v1/policies", project: true},
	{method: http.MethodPost, path: "/v1/policies/:id/apply", project: true, changes: true},
	{method: http.MethodDelete, path: "/v1/policies/:id/apply", project: true, changes: true, params: []httpd.Param{{Name: "agent_id"}}},
	{method: http.MethodGet, path: "/v1/tools", project: true},
	{method: http.MethodGet, path: "/v1/metrics", project: true},
	{method: http.MethodGet, path: "/v1/events", project: true, follows: true},
}

// forward makes the handler of one of them.
func (s *Server) forward(f forwarded) httpd.Handler {
	return func(c *httpd.Call) error {
		one, err := s.admit(c, f)
		if err != nil {
			return err
		}
		if f.follows {
			_, release, err := s.stream(c, &one)
			if err != nil {
				return err
			}
			defer release()
		}
		r, err := s.handOn(c, f)
		if err != nil {
			return err
		}
		ctx, cancel := s.whileSignedIn(c)
		defer cancel()
		a, err := s.send(ctx, r)
		if err != nil {
			return err
		}
		defer a.body.Close()
		return pass(c, a)
	}
}

// stream begins an answer that may last, which counts among those of its session.
func (s *Server) stream(c *httpd.Call, one *session) (out io.Writer, release func(), err error) {
	release, _, ok := s.streams.Take(one.csrf)
	if !ok {
		return nil, nil, fault.New(fault.RateLimitExceeded, "There are too many live pages and downloads. Close one of them.").With("retry_after_seconds", 10)
	}
	return c.BeginStream(), release, nil
}

func (s *Server) admit(c *httpd.Call, f forwarded) (session, error) {
	if f.changes {
		return s.mayChange(c, c.Request.Header.Get(csrfHeader))
	}
	return s.signedIn(c)
}

// handOn builds the gate's request from what may pass: method, path, query,
// body and three headers.
func (s *Server) handOn(c *httpd.Call, f forwarded) (request, error) {
	query, err := c.Query()
	if err != nil {
		return request{}, err
	}
	r := request{method: f.method, path: f.path, query: query, accept: c.Request.Header.Get("Accept"),
		lastID: c.Request.Header.Get("Last-Event-ID"), project: f.project}
	for _, p := range c.Params {
		r.path = strings.Replace(r.path, ":"+p.Key, p.Value, 1)
	}
	if f.method != http.MethodPost {
		return r, nil
	}
	body, err := c.Body("application/json", "application/yaml")
	if err == nil {
		_, err = s.signedIn(c) // the body may have taken its time
	}
	if err != nil {
		return request{}, err
	}
	r.body, r.media = bytes.NewReader(body), c.Request.Header.Get("Content-Type")
	return r, nil
}

// passes are the headers of an answer that a browser gets to see.
var passes = []string{"Content-Type", "Content-Length", "Retry-After", "ETag", "X-Gate-Receipt", "X-Event-Seq", "X-Event-Hash"}

// pass hands an answer on, piece by piece as it comes.
func pass(c *httpd.Call, a *answer) error {
	h := c.Writer().Header()
	for _, name := range passes {
		if value := a.header.Get(name); value != "" {
			h.Set(name, value)
		}
	}
	control := http.NewResponseController(c.Writer())
	c.Writer().WriteHeader(a.status)
	buffer := make([]byte, 64<<10)
	for {
		n, err := a.body.Read(buffer)
		if n > 0 {
			if late := control.SetWriteDeadline(time.Now().Add(writePatience)); late != nil && !errors.Is(late, http.ErrNotSupported) {
				return nil
			}
			if _, gone := c.Writer().Write(buffer[:n]); gone != nil {
				return nil
			}
			if gone := control.Flush(); gone != nil && !errors.Is(gone, http.ErrNotSupported) {
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			panic(http.ErrAbortHandler) // half an answer is out: the only honest end is a broken connection
		}
	}
}

// writePatience is how long one piece of an answer may take to leave.
const writePatience = 30 * time.Second

// whileSignedIn ends a long answer with the session, or with the process.
func (s *Server) whileSignedIn(c *httpd.Call) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(c.Request.Context())
	secret := s.secretOf(c.Request)
	go func() {
		look := time.NewTicker(sessionLook)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.stopping.Done():
				cancel()
				return
			case <-look.C:
				if _, ok := s.sessions.find(secret, false); !ok {
					cancel()
					return
				}
			}
		}
	}()
	return ctx, cancel
}

// sessionLook is how often a stream asks whether its session is still there.
const sessionLook = 5 * time.Second

// jsonBody is a value as the body of a request.
func jsonBody(value any) (io.Reader, error) {
	body, err := json.Marshal(value)
	return bytes.NewReader(body), err
}
