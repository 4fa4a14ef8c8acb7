// Package mcpapi is the gate as tools of a model (design/mcp.md): one endpoint,
// POST /mcp, that speaks the Model Context Protocol over streamable HTTP without
// sessions. Whoever calls it shows an agent's token, or a JWT of the issuer that agents
// have. Each tool is a few lines around
// what POST /query does: every statement goes through Gate.Submit, with the same
// decision, the same evidence and the same limits.
package mcpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"writegate/agentctl"
	"writegate/commands"
	"writegate/commands/fault"
	"writegate/http/httpd"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/pgexec"
)

// Options are what the endpoint stands on. All but the URLs are required.
type Options struct {
	Gate     *sqlgate.Gate
	Agents   *agentctl.Service
	Commands *commands.Commands
	Store    *projections.Store
	// Guard puts the endpoint behind what requests under /v1 are behind.
	Guard func(serve func(c *httpd.Call, caller *agentctl.Caller) error) httpd.Handler

	// Issuer is whose JWTs agents may show, "" where none are taken; PublicURL is how clients
	// call the endpoint, "" = by the Host of their requests.
	Issuer, PublicURL string
	ControlPlaneURL   string // the origin of the dashboard; "" = not known

	Claims      sqlgate.Claims // what an agent's record does not say
	MaxSQLBytes int
	Version     string
	Logger      *slog.Logger
	Now         func() time.Time
	Waits       httpd.Shares    // of those who wait for a person, by any way
	Stopping    context.Context // ends when the service is told to stop: waiting must not hold it up
}

// Path is where the endpoint is.
const Path = "/mcp"

// door is the endpoint.
type door struct {
	Options
	plain, stream *mcp.StreamableHTTPHandler // answers of one JSON text, and of server-sent events
}

// Register adds the endpoint to a mux.
func Register(mux *httpd.Mux, o Options) {
	d := &door{Options: o}
	server := d.newServer()
	serverOf := func(*http.Request) *mcp.Server { return server }
	// The mux has checked Host and Origin, by the names that the gate has.
	options := mcp.StreamableHTTPOptions{Stateless: true, DisableLocalhostProtection: true, MaxRequestBodyBytes: -1, PropagateRequestCancellation: true}
	d.stream = mcp.NewStreamableHTTPHandler(serverOf, &options)
	options.JSONResponse = true
	d.plain = mcp.NewStreamableHTTPHandler(serverOf, &options)
	mux.HandleUnchecked(http.MethodPost, Path, d.challenged(o.Guard(d.serve)))
	mux.Handle(http.MethodGet, metadataPath, d.metadata(""))
	mux.Handle(http.MethodGet, metadataPath+Path, d.metadata(Path))
}

// newServer describes the gate to clients. It offers nothing that would need a
// connection that lasts.
func (d *door) newServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "gate", Title: "Gate: PostgreSQL behind a policy", Version: d.Version}, &mcp.ServerOptions{
		Instructions: instructions,
		Logger:       slog.New(slog.DiscardHandler), // it would log what clients send
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{}},
	})
	s.AddReceivingMiddleware(d.guarded)
	d.addTools(s)
	d.addResources(s)
	return s
}

// A visit is one request of a client, which is one message.
type visit struct {
	*httpd.Call
	caller *agentctl.Caller
	agent  projections.Agent
	client string // its name and version, as it says; "" = it said none
	stream bool   // progress can be told

	mu    sync.Mutex
	over  bool
	tools sync.WaitGroup
}

type visitKey struct{}

// begin tells that a tool works on the visit; it is false where the visit has ended.
func (v *visit) begin() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.over {
		v.tools.Add(1)
	}
	return !v.over
}

// end waits for what works on the visit: nothing may use its call any more.
func (v *visit) end() {
	v.mu.Lock()
	v.over = true
	v.mu.Unlock()
	v.tools.Wait()
}

// guarded works on a message while its visit lasts, and no longer than its request. The
// library works in goroutines of its own, so a panic is caught here: it must not end
// the service.
func (d *door) guarded(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, r mcp.Request) (result mcp.Result, err error) {
		v, ok := ctx.Value(visitKey{}).(*visit)
		if !ok || !v.begin() {
			return nil, errInternal
		}
		defer v.tools.Done()
		defer func() {
			if p := recover(); p != nil {
				d.Logger.Error("a tool panicked", "source", logSource, "request_id", v.RequestID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				result, err = nil, errInternal
			}
		}()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(v.Request.Context(), cancel)()
		return next(ctx, method, r)
	}
}

// logSource is the source attribute of this package's log entries.
const logSource = "mcp"

var errInternal = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Something went wrong inside of the gate. Look up what became of a statement before it is sent again."}

// message is what the endpoint itself reads of a message.
type message struct {
	ID     any    `json:"id"`
	Method string `json:"method"`
	Params struct {
		Name       string         `json:"name"`
		ClientInfo implementation `json:"clientInfo"`
		Meta       struct {
			ProgressToken any            `json:"progressToken"`
			ClientInfo    implementation `json:"io.modelcontextprotocol/clientInfo"`
		} `json:"_meta"`
	} `json:"params"`
}

type implementation struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// sessionHeader carries, for clients that tell their name only once, that name: the
// endpoint itself keeps no sessions.
const sessionHeader = "Mcp-Session-Id"

// serve is POST /mcp, behind the guard.
func (d *door) serve(c *httpd.Call, caller *agentctl.Caller) error {
	ctx := c.Request.Context()
	c.HoldAs("") // its statements hold what those of POST /query from the same address do
	if caller.TokenID == "" {
		return fault.New(fault.CredentialsMissing, "This endpoint is for agents. Send an agent's token as Authorization: Bearer.")
	}
	if err := c.CheckWords(nil); err != nil {
		return err
	}
	if _, err := d.Agents.AgentOf(ctx, c.Bearer()); err != nil {
		return err
	}
	body, err := c.Body("application/json")
	if err != nil {
		return err
	}
	if err := c.ReadsAnswers(); err != nil {
		return err
	}
	var m message
	if err := httpd.DecodeKnown(body, &m); err != nil {
		return err
	}
	v := &visit{Call: c, caller: caller}
	if v.agent, err = d.agentOf(ctx, caller); err != nil {
		return err
	}
	v.client = v.clientOf(&m)
	switch m.Method {
	case "subscriptions/listen", "resources/subscribe": // a stream without an end, for what never changes
		return fault.New(fault.NotFound, "This endpoint has no subscriptions. Ask again with resources/read.")
	case "initialize":
		if v.client != "" {
			c.Writer().Header().Set(sessionHeader, base64.RawURLEncoding.EncodeToString([]byte(v.client)))
		}
	}
	v.stream = m.Method == "tools/call" && m.Params.Name == toolWait && m.Params.Meta.ProgressToken != nil &&
		strings.Contains(strings.Join(c.Request.Header.Values("Accept"), ","), "text/event-stream")
	return d.answer(v, body)
}

func (d *door) agentOf(ctx context.Context, caller *agentctl.Caller) (projections.Agent, error) {
	view := d.Store.ViewWithin(ctx)
	defer view.Close()
	agent, found, err := view.Agent(caller.Project, caller.AgentID)
	if err == nil && !found {
		err = fmt.Errorf("the agent %s of a valid token is not there", caller.AgentID)
	}
	if err != nil {
		return agent, commands.ViewFault(err)
	}
	return agent, nil
}

// maxClient bounds the name and version of a client, in bytes.
const maxClient = 200

// clientOf is what the client says that it is: with each message, or when it began.
func (v *visit) clientOf(m *message) string {
	said := cmp.Or(m.Params.Meta.ClientInfo, m.Params.ClientInfo)
	name := said.Name
	if said.Version != "" {
		name += "/" + said.Version
	}
	if name == "" {
		began, err := base64.RawURLEncoding.DecodeString(v.Request.Header.Get(sessionHeader))
		if err != nil {
			return ""
		}
		name = string(began)
	}
	name = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(name, "?"))
	for len(name) > maxClient {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return name
}

// answer hands one message to the protocol's library. It answers a text that the
// bounds on answers hold for, or a stream where progress is to be told.
func (d *door) answer(v *visit, body []byte) error {
	request := v.Request.Clone(context.WithValue(v.Request.Context(), visitKey{}, v))
	request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	request.Header["Accept"] = []string{"application/json, text/event-stream"} // who takes no stream is sent none
	if v.stream {
		defer v.end()
		d.stream.ServeHTTP(streamed{v.Writer(), v.BeginStream()}, request)
		return nil
	}
	w := &kept{header: http.Header{}}
	v.Await(func(context.Context) {
		defer v.end()
		d.plain.ServeHTTP(w, request)
	})
	switch {
	case w.status == http.StatusAccepted:
		v.Writer().WriteHeader(http.StatusAccepted)
		return nil
	case !strings.HasPrefix(w.header.Get("Content-Type"), "application/json"):
		return fault.New(fault.ValidationFailed, "The message is not taken: %s.", strings.TrimSpace(w.body.String()))
	}
	v.Raw(cmp.Or(w.status, http.StatusOK), w.body.Bytes())
	return nil
}

// kept is an answer that is sent when it is whole.
type kept struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *kept) Header() http.Header { return k.header }

func (k *kept) WriteHeader(status int) { k.status = cmp.Or(k.status, status) }

func (k *kept) Write(b []byte) (int, error) { return k.body.Write(b) }

// streamed is an answer that leaves piece by piece, each in its time.
type streamed struct {
	http.ResponseWriter
	out io.Writer
}

func (s streamed) Write(b []byte) (int, error) { return s.out.Write(b) }

// Unwrap lets http.ResponseController find the real writer.
func (s streamed) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// request is a statement of the visit, as POST /query would make it.
func (d *door) request(v *visit, sql string) *sqlgate.Request {
	claims := d.Claims
	claims.Actor = "agent:" + v.agent.Name
	claims.Tenant = cmp.Or(v.agent.Metadata["owner"], claims.Tenant)
	claims.Env = cmp.Or(environments[v.agent.Metadata["environment"]], claims.Env)
	return &sqlgate.Request{
		RequestID: v.RequestID, Claims: claims, SQL: sql, TLSSubject: httpd.TLSSubject(v.Request), AgentToken: v.Bearer(), MCP: true,
		Client: v.client, Trace: v.Trace.String(), ReceivedAt: v.Start, Stands: v.CertificateStands,
	}
}

// environments are the claims that an agent's environment stands for.
var environments = map[string]string{"prod": "prod", "production": "prod", "staging": "staging", "shadow": "shadow"}

// submit is what POST /query does with a request: its fields, its size, the rate, the decision.
func (d *door) submit(ctx context.Context, v *visit, r *sqlgate.Request) (*sqlgate.Answer, error) {
	if err := r.Validate(d.MaxSQLBytes); err != nil {
		if fault.CodeOf(err) == fault.OversizedSQL {
			v.Report(httpd.OversizedRequest, int64(d.MaxSQLBytes), int64(len(r.SQL)))
		}
		return nil, err
	}
	if err := v.Limit(); err != nil {
		return nil, err
	}
	return d.Gate.Submit(pgexec.ForClient(ctx, v.Holder()), r)
}
