package toolcheck

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// scripted answers calls by their method, with the call's own id.
type scripted map[string]string

func (s scripted) RoundTrip(req *http.Request) (*http.Response, error) {
	var call struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	status, body := http.StatusAccepted, ""
	if req.Body != nil {
		text, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		if json.Unmarshal(text, &call) == nil && call.ID != nil {
			status, body = http.StatusOK, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, call.ID, s[call.Method])
		}
	}
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(bytes.NewReader([]byte(body))), Request: req}, nil
}

// The protocol's client works in goroutines of its own, where a panic would end
// the service. Sound messages of any content reach it here, and it lives.
func FuzzTheClientSurvives(f *testing.F) {
	f.Add(`"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":5,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"a","version":"1"}}}`, `"error":{"code":1,"message":"m","data":[1]}`, `"result":{"tools":[null,{"name":"a","inputSchema":{"properties":{"x":{"x-mcp-header":"A"}}}}],"nextCursor":"b","ttlMs":1000}`)
	f.Add(`"error":{"code":-32022,"message":"m","data":{"supported":["2026-07-28"]}}`, `"result":{"protocolVersion":"2025-06-18","capabilities":null,"serverInfo":null}`, `"result":{"tools":[{"name":"a","inputSchema":{"type":"object"},"annotations":null}]}`)
	f.Fuzz(func(t *testing.T, discover, initialize, list string) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		s := &screen{next: scripted{"server/discover": discover, "initialize": initialize, "tools/list": list}, answered: func() {}}
		client := &http.Client{Transport: s}
		log := slog.New(slog.DiscardHandler)
		session, err := guarded(log, func() (*mcp.ClientSession, error) {
			return newMCPClient().Connect(ctx, &mcp.StreamableClientTransport{Endpoint: "https://tools.test/", HTTPClient: client, DisableStandaloneSSE: true, MaxRetries: -1}, nil)
		})
		if err != nil {
			return
		}
		m := &mcpCheck{ctx: ctx, target: Target{ToolName: "a"}, screen: s, log: log}
		if tools, _, err := m.list(session); err == nil && len(tools) == 1 {
			_, _ = m.compare(tools[0])
		}
		_ = session.Close()
	})
}

// The library panics on numbers that it takes for readable; they do not come so
// far, and whatever else does is a schema that cannot be read.
func TestAPanicOfTheLibraryIsAnError(t *testing.T) {
	for _, text := range []string{`{"multipleOf":1e2000000}`, `null`} {
		require.NotPanics(t, func() { require.Error(t, compile([]byte(text)), text) })
	}
}
