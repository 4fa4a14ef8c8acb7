package toolcheck_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"writegate/agentctl/egress"
	"writegate/agentctl/toolcheck"
	"writegate/fixtures/loopback"
)

const (
	secretValue = "hush-hush-0123456789"
	inputSchema = `{"type":"object","properties":{"sql":{"type":"string"},"limit":{"type":"integer","maximum":1.0}},"required":["sql"]}`
)

// A lab is an internet with a checker that may visit its public side.
type lab struct {
	*loopback.Internet
	t    testing.TB
	logs *logText
}

func newLab(t testing.TB) *lab {
	l := &lab{Internet: loopback.New(t), t: t, logs: new(logText)}
	l.Names.Has("tools.test", []string{loopback.Public})
	return l
}

// checker knows the secret RUNSQL for tools.test. It is made after the servers,
// whose ports it allows.
func (l *lab) checker() *toolcheck.Checker {
	return l.checkerWith("GATE_TOOL_SECRET_RUNSQL="+secretValue, "GATE_TOOL_SECRET_RUNSQL_HOST=tools.test", "PATH=/bin")
}

func (l *lab) checkerWith(environ ...string) *toolcheck.Checker {
	guard := egress.New(egress.Rules{Networks: loopback.PublicSide(), Ports: l.Ports}, egress.WithResolver(l.Names.Resolver()), egress.WithRoots(l.Authority.Pool()))
	secrets, err := toolcheck.ParseSecrets(environ)
	require.NoError(l.t, err)
	checker := toolcheck.New(guard, secrets, slog.New(slog.NewTextHandler(l.logs, nil)))
	l.t.Cleanup(checker.Close)
	return checker
}

// verify verifies with time enough, and holds that the secret is nowhere.
func (l *lab) verify(target toolcheck.Target) toolcheck.Result {
	l.t.Helper()
	result, err := l.checker().Verify(context.Background(), "tool_1", target, 20*time.Second)
	require.NoError(l.t, err)
	l.requireNoSecret(result)
	return result
}

func (l *lab) requireNoSecret(result toolcheck.Result) {
	l.t.Helper()
	text, err := json.Marshal(result)
	require.NoError(l.t, err)
	require.NotContains(l.t, string(text), secretValue)
	require.NotContains(l.t, l.logs.String(), secretValue)
}

type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// An mcpServer is a real one, made with the protocol's own kit. It counts calls of
// its tool, which must never come.
type mcpServer struct {
	tool    mcp.Tool
	more    int // tools besides
	server  mcp.ServerOptions
	http    mcp.StreamableHTTPOptions
	wrap    func(http.HandlerFunc) http.HandlerFunc
	calls   atomic.Int64
	methods methods
}

func newMCPServer() *mcpServer {
	return &mcpServer{tool: mcp.Tool{Name: "run_sql", Description: "Runs SQL.", InputSchema: json.RawMessage(inputSchema)}}
}

// start serves it at https://tools.test and gives the URL.
func (s *mcpServer) start(l *lab) string {
	handler := s.handler()
	if s.wrap != nil {
		handler = s.wrap(handler)
	}
	port, _ := l.Serve(loopback.Public, true, handler)
	l.t.Cleanup(func() { require.Zero(l.t, s.calls.Load(), "the tool was called") })
	return "https://tools.test:" + port + "/mcp"
}

func (s *mcpServer) handler() http.HandlerFunc {
	called := func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		s.calls.Add(1)
		return &mcp.CallToolResult{}, nil
	}
	build := func(*http.Request) *mcp.Server {
		server := mcp.NewServer(&mcp.Implementation{Name: "lab", Version: "1.2.3"}, &s.server)
		tool := s.tool
		server.AddTool(&tool, called)
		for i := range s.more {
			server.AddTool(&mcp.Tool{Name: "other_" + strings.Repeat("x", i), InputSchema: json.RawMessage(`{"type":"object"}`)}, called)
		}
		return server
	}
	s.http.DisableLocalhostProtection = true
	handler := mcp.NewStreamableHTTPHandler(build, &s.http)
	return func(w http.ResponseWriter, req *http.Request) {
		s.methods.note(req)
		handler.ServeHTTP(w, req)
	}
}

// methods are the JSON-RPC methods that a server was asked.
type methods struct {
	mu   sync.Mutex
	seen []string
}

func (m *methods) note(req *http.Request) {
	if req.GetBody == nil && req.Method != http.MethodPost {
		return
	}
	body, rest := teeBody(req)
	req.Body = rest
	var call struct {
		Method string `json:"method"`
	}
	if json.Unmarshal(body, &call) == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.seen = append(m.seen, call.Method)
	}
}

func (m *methods) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

func mcpTarget(url string) toolcheck.Target {
	return toolcheck.Target{Type: toolcheck.TypeMCP, URL: url, ToolName: "run_sql"}
}

func stepNames(result toolcheck.Result) (names []string) {
	for _, s := range result.Steps {
		names = append(names, s.Name+" "+s.Status)
	}
	return names
}

func lastStep(result toolcheck.Result) toolcheck.Step { return result.Steps[len(result.Steps)-1] }
