package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"writegate/http/mcpapi"
)

// Bounds of the bridge: a message of a client, and calls of it that are under way.
const (
	maxBridgedMessage = 16 << 20
	maxBridgedCalls   = 16
)

func (a *app) mcpCommand() *cobra.Command {
	var at gateAddress
	cmd := &cobra.Command{
		Use: "mcp", Short: "Hand the tools of a running gate to an agent that speaks over standard input and output", Args: cobra.NoArgs,
		Long: `Hand the tools of a running gate to an agent that speaks over standard input and output.

The gate must serve POST /mcp (GATE_MCP_ENABLED). The agent's token is read from GATE_AGENT_TOKEN, or from
the file that GATE_AGENT_TOKEN_FILE names, anew for each message; it is never taken from the command line,
which others can read.`,
		RunE: func(c *cobra.Command, _ []string) error { return a.bridge(c.Context(), at) },
	}
	gateFlag(cmd, &at)
	return cmd
}

// A bridge carries messages between a client at standard input and output and the
// gate's endpoint, each in a request of its own. It understands of them only what their
// headers have to say.
type bridge struct {
	gate   *gateClient
	bearer func() string   // the agent's token, as it is at this moment
	ctx    context.Context // of all calls

	mu       sync.Mutex
	out      io.Writer
	session  string                        // as the gate gave it, for all that comes after
	protocol string                        // as it was agreed on
	running  map[string]context.CancelFunc // by the JSON of the call's id

	calls sync.WaitGroup
	slots chan struct{}
}

func (a *app) bridge(ctx context.Context, at gateAddress) error {
	s, err := a.settingsFor()
	if err != nil {
		return err
	}
	if s.AgentToken == "" {
		return exitWith(exitConfigured, errors.New("GATE_AGENT_TOKEN is not set; it is the agent's token that this command shows to the gate, and `gate agents token` makes one (GATE_AGENT_TOKEN_FILE names a file of it)"))
	}
	client, err := a.gateClient(s, at)
	if err != nil {
		return err
	}
	client.http.Timeout = 0 // each call ends by the gate's own limits, or with its client
	ctx, cancel := context.WithCancel(ctx)
	// What issues tokens for an hour writes the next one into the file of the last.
	bearer := func() string {
		if now, err := a.settingsFor(); err == nil && now.AgentToken != "" {
			return now.AgentToken
		}
		return s.AgentToken
	}
	b := &bridge{gate: client, bearer: bearer, ctx: ctx, out: a.out, running: map[string]context.CancelFunc{}, slots: make(chan struct{}, maxBridgedCalls)}
	defer b.calls.Wait()
	defer cancel() // nobody reads the answers any more
	lines := make(chan []byte)
	failed := make(chan error, 1)
	go func() {
		in := bufio.NewScanner(a.in)
		in.Buffer(nil, maxBridgedMessage)
		for in.Scan() {
			select {
			case lines <- bytes.Clone(in.Bytes()):
			case <-ctx.Done():
				return
			}
		}
		failed <- in.Err()
	}()
	for {
		select {
		case line := <-lines:
			if len(bytes.TrimSpace(line)) > 0 {
				b.take(line)
			}
		case err := <-failed:
			if err != nil {
				return exitWith(exitFailed, fmt.Errorf("standard input can't be read: %w", err))
			}
			b.settle(a.err)
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// bridgeEnd is how long calls that are under way may go on behind the end of standard input.
const bridgeEnd = 5 * time.Second

// settle waits for the answers of calls that were read before standard input ended.
func (b *bridge) settle(w io.Writer) {
	done := make(chan struct{})
	go func() { b.calls.Wait(); close(done) }()
	select {
	case <-done:
	case <-b.ctx.Done():
	case <-time.After(bridgeEnd):
		b.mu.Lock()
		fmt.Fprintf(w, "gate: standard input ended, and %s had no answer: it is not known what became of that\n", counted(len(b.running), "call"))
		b.mu.Unlock()
	}
}

// A bridged message is what the bridge reads of one.
type bridged struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		URI       string          `json:"uri"`
		RequestID json.RawMessage `json:"requestId"`
		Meta      struct {
			Protocol string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	} `json:"params"`
}

func (m *bridged) call() bool { return len(m.ID) > 0 && m.Method != "" }

// take begins to carry a message. Notifications go one by one, so that none overtakes
// another; calls run beside each other.
func (b *bridge) take(line []byte) {
	var m bridged
	if err := json.Unmarshal(line, &m); err != nil {
		b.refuse(json.RawMessage("null"), -32700, "The message is no JSON object.")
		return
	}
	switch {
	case m.Method == "notifications/cancelled":
		b.mu.Lock()
		cancel := b.running[string(m.Params.RequestID)]
		b.mu.Unlock()
		if cancel != nil {
			cancel()
		}
	case !m.call():
		b.carry(b.ctx, &m, line)
	default:
		ctx, cancel := context.WithCancel(b.ctx)
		b.mu.Lock()
		b.running[string(m.ID)] = cancel
		b.mu.Unlock()
		b.calls.Go(func() {
			defer func() {
				b.mu.Lock()
				delete(b.running, string(m.ID))
				b.mu.Unlock()
				cancel()
			}()
			select {
			case b.slots <- struct{}{}:
				b.carry(ctx, &m, line)
				<-b.slots
			case <-ctx.Done():
			}
		})
	}
}

// carry sends a message to the gate and hands on what it answers.
func (b *bridge) carry(ctx context.Context, m *bridged, line []byte) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.gate.base+mcpapi.Path, bytes.NewReader(line))
	if err != nil {
		b.refuse(m.ID, -32603, err.Error())
		return
	}
	h := request.Header
	h.Set("Authorization", "Bearer "+b.bearer())
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "application/json, text/event-stream")
	h.Set("Mcp-Method", m.Method)
	if name := cmp.Or(m.Params.Name, m.Params.URI); name != "" {
		h.Set("Mcp-Name", name)
	}
	b.mu.Lock()
	session, protocol := b.session, cmp.Or(m.Params.Meta.Protocol, b.protocol)
	b.mu.Unlock()
	if session != "" {
		h.Set("Mcp-Session-Id", session)
	}
	if protocol != "" && m.Method != "initialize" {
		h.Set("Mcp-Protocol-Version", protocol)
	}
	response, err := b.gate.http.Do(request)
	if err != nil {
		b.lost(ctx, m, err)
		return
	}
	defer response.Body.Close()
	if strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		b.follow(ctx, m, response.Body)
		return
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxGateAnswer))
	if err != nil {
		b.lost(ctx, m, err)
		return
	}
	b.answered(m, response, body)
}

// answered hands on an answer that came as a whole.
func (b *bridge) answered(m *bridged, response *http.Response, body []byte) {
	var answer struct {
		Version string `json:"jsonrpc"`
		Result  struct {
			Protocol string `json:"protocolVersion"`
		} `json:"result"`
	}
	isAnswer := json.Unmarshal(body, &answer) == nil && answer.Version != ""
	switch {
	case !m.call():
		return
	case !isAnswer && response.StatusCode == http.StatusNotFound:
		b.refuse(m.ID, -32000, "not_found: nothing at "+b.gate.base+" serves POST /mcp. Look whether that is the gate's own address, and whether GATE_MCP_ENABLED=true is set there.")
		return
	case !isAnswer:
		why := b.gate.refusal(response.Status, body)
		var refusal *gateRefusal
		if errors.As(why, &refusal) {
			b.refuse(m.ID, -32000, string(refusal.Code)+": "+refusal.Message)
			return
		}
		b.refuse(m.ID, -32603, why.Error())
		return
	case m.Method == "initialize":
		b.mu.Lock()
		b.session, b.protocol = response.Header.Get("Mcp-Session-Id"), answer.Result.Protocol
		b.mu.Unlock()
	}
	b.write(body)
}

// follow hands on the messages of a stream: progress, and the answer behind it.
func (b *bridge) follow(ctx context.Context, m *bridged, body io.Reader) {
	in := bufio.NewScanner(body)
	in.Buffer(nil, maxGateAnswer)
	answered := false
	for in.Scan() {
		data, ok := strings.CutPrefix(in.Text(), "data:")
		if !ok {
			continue
		}
		var of bridged
		if json.Unmarshal([]byte(data), &of) == nil {
			answered = answered || len(of.ID) > 0
			b.write([]byte(data))
		}
	}
	if !answered {
		b.lost(ctx, m, cmp.Or(in.Err(), io.ErrUnexpectedEOF))
	}
}

// lost says what is known of a call whose answer did not come.
func (b *bridge) lost(ctx context.Context, m *bridged, err error) {
	var dial *net.OpError
	switch {
	case !m.call() || ctx.Err() != nil: // nobody waits for it
		return
	case errors.As(err, &dial) && dial.Op == "dial":
		b.refuse(m.ID, -32001, b.gate.unreachable(err).Error()+". Nothing was sent.")
	default:
		b.refuse(m.ID, -32001, b.gate.unreachable(err).Error()+". The answer did not come, so it is not known what became of the call: look before you send a statement again, unless it had an idempotency_key.")
	}
}

func (b *bridge) refuse(id json.RawMessage, code int, message string) {
	if len(id) == 0 {
		return
	}
	answer, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": message}})
	if err == nil {
		b.write(answer)
	}
}

// write puts a message on a line of its own.
func (b *bridge) write(message []byte) {
	var line bytes.Buffer
	if json.Compact(&line, message) != nil {
		return
	}
	line.WriteByte('\n')
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = b.out.Write(line.Bytes()) // a client that is gone ends standard input, too
}
