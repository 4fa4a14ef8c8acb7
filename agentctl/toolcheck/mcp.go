package toolcheck

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"runtime/debug"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"writegate/agentctl/egress"
)

// maxPages is how many pages of tools/list are read.
const maxPages = 20

// An mcpCheck is one verification of an MCP tool, from the handshake on.
type mcpCheck struct {
	run
	ctx    context.Context // of this verification
	target Target
	visit  *egress.Visit
	screen *screen
	log    *slog.Logger
}

func (c *Checker) verifyMCP(ctx context.Context, r run, target Target, u *url.URL, credential egress.Credential) (Result, error) {
	visit := c.guard.Visit(ctx, u, credential)
	defer visit.Close()
	m := &mcpCheck{run: r, ctx: ctx, target: target, visit: visit, screen: &screen{next: visit, answered: visit.Forget}, log: c.log}
	client := visit.Client()
	client.Transport = m.screen

	session, err := guarded(c.log, func() (*mcp.ClientSession, error) {
		return newMCPClient().Connect(ctx, &mcp.StreamableClientTransport{
			Endpoint: u.String(), HTTPClient: client, DisableStandaloneSSE: true, MaxRetries: -1, MaxEventSize: egress.MaxBodyBytes + 1024,
		}, nil)
	})
	if !m.connected() {
		return m.failedAt(StepConnect, err), nil
	}
	if err != nil {
		return m.failedAt(StepHandshake, err), nil
	}
	result, err := m.look(session)
	// A server that does not take the good-bye has been looked at all the same.
	_, _ = guarded(c.log, func() (struct{}, error) { return struct{}{}, session.Close() })
	return result, err
}

// newMCPClient offers the server nothing: no sampling, no elicitation, no roots.
func newMCPClient() *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "gate-tool-verification", Version: "1"}, &mcp.ClientOptions{
		Capabilities:   &mcp.ClientCapabilities{},
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
		Logger:         slog.New(slog.DiscardHandler), // it would log what servers send
	})
}

// guarded turns a panic of the protocol's client into an error: an answer that
// nobody foresaw must not end the service. The panic's value may quote the answer
// and is not logged.
func guarded[T any](log *slog.Logger, f func() (T, error)) (result T, err error) {
	defer func() {
		if recover() != nil {
			log.Error("the MCP client panicked on an answer", "source", "tools", "stack", string(debug.Stack()))
			err = errors.New("the MCP client panicked")
		}
	}()
	return f()
}

// connected passes the step connect once there was a connection.
func (m *mcpCheck) connected() bool {
	connection := m.visit.Connection()
	if connection != nil {
		m.pass(Step{Name: StepConnect, Address: connection.Address, TLSNotAfter: connection.TLSNotAfter})
	}
	return connection != nil
}

// look is all that is asked of a server that shook hands.
func (m *mcpCheck) look(session *mcp.ClientSession) (Result, error) {
	hello := session.InitializeResult()
	shaken := Step{Name: StepHandshake, ProtocolVersion: hello.ProtocolVersion}
	if hello.ServerInfo != nil {
		shaken.ServerName, shaken.ServerVersion = plain(hello.ServerInfo.Name), plain(hello.ServerInfo.Version)
	}
	m.pass(shaken)

	tools, count, err := m.list(session)
	if err != nil {
		return m.failedAt(StepToolPresent, err), nil
	}
	switch len(tools) {
	case 0:
		return m.fail(Step{Name: StepToolPresent, Tools: count}, ToolMissing, "The server does not list a tool of this name."), nil
	case 1:
		m.pass(Step{Name: StepToolPresent, Tools: count})
	default:
		// Which of them a model would call is the model's accident.
		return m.fail(Step{Name: StepToolPresent, Tools: count}, egress.ProtocolError, "The server lists several tools of this name."), nil
	}
	return m.compare(tools[0])
}

// errMorePages: what is not read may list a second tool of the name.
var errMorePages = errors.New("the list of tools has more pages than are read")

// list reads tools/list and gives the tools of the wanted name.
func (m *mcpCheck) list(session *mcp.ClientSession) (named []listedTool, count int, err error) {
	cursor := ""
	for range maxPages {
		_, err := guarded(m.log, func() (*mcp.ListToolsResult, error) {
			return session.ListTools(m.ctx, &mcp.ListToolsParams{Cursor: cursor})
		})
		if err != nil {
			return nil, 0, err
		}
		page, err := readPage(m.screen.takeResult())
		if err != nil {
			return nil, 0, err
		}
		count += len(page.Tools)
		for _, tool := range page.Tools {
			if tool.Name == m.target.ToolName {
				named = append(named, tool)
			}
		}
		if page.NextCursor == "" {
			return named, count, nil
		}
		cursor = page.NextCursor
	}
	return nil, 0, errMorePages
}

type listPage struct {
	Tools      []listedTool `json:"tools"`
	NextCursor string       `json:"nextCursor"`
}

var errUnreadablePage = errors.New("the list of tools cannot be read")

// readPage reads the result of tools/list as it was received. There is none when
// the client answered itself, which it does when a server repeats a cursor.
func readPage(result jsontext.Value) (listPage, error) {
	var page listPage
	if result == nil || json.Unmarshal(result, &page) != nil || page.Tools == nil {
		return listPage{}, errUnreadablePage
	}
	return page, nil
}

// compare holds the listed tool against what was declared and what was pinned.
func (m *mcpCheck) compare(tool listedTool) (Result, error) {
	if why := mismatch(m.target, tool); why != "" {
		return m.fail(Step{Name: StepSchema}, SchemaMismatch, why), nil
	}
	m.pass(Step{Name: StepSchema})

	current, err := define(tool)
	if err != nil {
		return m.fail(Step{Name: StepFingerprint}, egress.ProtocolError, "The tool's definition has no one meaning: look for duplicate members and broken Unicode."), nil
	}
	step := Step{Name: StepFingerprint}
	if pinned := m.target.Pinned; pinned.Fingerprint != "" && pinned.Fingerprint != current.Fingerprint {
		step.Changes = changes(pinned, current)
	}
	switch {
	case m.target.Accept != "" && m.target.Accept != current.Fingerprint:
		return Result{}, &MovedError{Current: current.Fingerprint}
	case m.target.Accept == "" && step.Changes != nil:
		return m.drifted(step, current), nil
	}
	m.pass(step)
	return m.passed(current), nil
}

// mismatch tells what of the listed schemas is not as declared; "" when all is.
// An output schema is compared when both sides have one.
func mismatch(target Target, tool listedTool) string {
	if tool.InputSchema.Kind() != '{' {
		return "The server lists the tool without an input schema."
	}
	if len(target.InputSchema) > 0 && !same(target.InputSchema, tool.InputSchema) {
		return "The server's input schema is not the declared one."
	}
	if len(target.OutputSchema) > 0 && tool.OutputSchema != nil && !same(target.OutputSchema, tool.OutputSchema) {
		return "The server's output schema is not the declared one."
	}
	return ""
}

func same(a, b []byte) bool {
	first, err := canonical(a)
	if err != nil {
		return false
	}
	second, err := canonical(b)
	return err == nil && string(first) == string(second)
}

// failedAt finds out why the protocol's client gave up. What went wrong on the way
// comes first; then the server's status; then what the client says.
func (m *mcpCheck) failedAt(step string, err error) Result {
	if m.ctx.Err() != nil {
		return m.fail(Step{Name: step}, egress.Timeout, "The deadline came before the answer.")
	}
	if refusal := m.visit.Refusal(); refusal != nil {
		return m.refused(step, refusal)
	}
	status := m.screen.lastStatus()
	if status == 401 || status == 403 {
		return m.fail(Step{Name: step, HTTPStatus: status}, AuthRequired, "The server asks for credentials, or for others.")
	}
	if status/100 != 2 && status != 0 {
		return m.fail(Step{Name: step, HTTPStatus: status}, HTTPStatus, "The server answered with an HTTP status that is no success.")
	}
	if errors.Is(err, errMorePages) {
		return m.fail(Step{Name: step}, egress.ProtocolError, fmt.Sprintf("The server lists its tools on more than %d pages.", maxPages))
	}
	var answered *jsonrpc.Error
	unsupported := errors.As(err, &answered) && answered.Code == mcp.CodeUnsupportedProtocolVersion
	if unsupported || strings.Contains(err.Error(), "unsupported protocol version") {
		return m.fail(Step{Name: step}, VersionUnsupported, "The server speaks no version of the protocol that the gate speaks.")
	}
	return m.fail(Step{Name: step}, egress.ProtocolError, "The server's answer is not what the protocol asks for.")
}

// plain cuts a name of the server's to what may be told on.
func plain(name string) string {
	kept := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(" ._-+/()", r) {
			return r
		}
		return -1
	}, name)
	return strings.TrimSpace(kept[:min(len(kept), 64)])
}
