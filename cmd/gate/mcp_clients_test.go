package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// mcpClients names the folder in which `make mcp` has installed the clients of others.
const mcpClients = "MCP_CLIENTS"

const mcpSources = "../../fixtures/mcpclients"

// Clients that nobody here wrote find their way by the tools. Without `make mcp` it is seen
// that they would be of exact versions.
func TestClientsOfOthersFindTheirWay(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(mcpSources, "package.json"))
	require.NoError(t, err)
	var page struct{ Dependencies map[string]string }
	require.NoError(t, json.Unmarshal(text, &page))
	require.Len(t, page.Dependencies, 2)
	for name, version := range page.Dependencies {
		require.Regexp(t, `^\d+\.\d+\.\d+$`, version, name)
	}
	installed := os.Getenv(mcpClients)
	if installed == "" {
		return
	}
	for _, way := range []string{"http", "stdio"} {
		t.Run("typescript "+way, func(t *testing.T) { theTypeScriptClient(t, installed, way) })
	}
	t.Run("inspector", func(t *testing.T) { theInspector(t, installed) })
}

func theTypeScriptClient(t *testing.T, installed, way string) {
	w := startDoor(t)
	_, token := w.register(t, "invoice-bot")
	cmd := exec.CommandContext(t.Context(), "node", filepath.Join(nodeFolder(t, installed, mcpSources, "journey.mjs"), "journey.mjs"), way, w.base)
	cmd.Env = append(os.Environ(), "GATE_AGENT_TOKEN="+token)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	step := func() map[string]any {
		require.True(t, lines.Scan(), "the client ended early")
		var m map[string]any
		require.NoError(t, json.Unmarshal(lines.Bytes(), &m), "%s", lines.Bytes())
		return m
	}
	require.Equal(t, map[string]any{"tools": []any{"approval_wait", "execution", "schema_search", "sql", "sql_preview"}}, step())
	require.Equal(t, map[string]any{"status": "completed", "rows": []any{map[string]any{"id": 1.0, "status": "new"}}}, step())
	require.Equal(t, map[string]any{"status": "blocked"}, step())
	asked := step()
	require.Equal(t, "pending_approval", asked["status"])
	require.Equal(t, map[string]any{"progress": true}, step())
	require.Equal(t, http.StatusOK, w.resolve(t, asked["approval_id"].(string), "approve").status)
	require.Equal(t, map[string]any{"status": "approved"}, step())
	require.Equal(t, map[string]any{"status": "completed", "row_count": 1.0}, step())
	require.Equal(t, map[string]any{"policy": true}, step())
	require.False(t, lines.Scan())
	require.NoError(t, cmd.Wait())
}

func theInspector(t *testing.T, installed string) {
	w := startDoor(t)
	_, token := w.register(t, "invoice-bot")
	inspect := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), filepath.Join(installed, "node_modules/.bin/mcp-inspector"),
			append([]string{"--cli", w.base + "/mcp", "--transport", "http", "--header", "Authorization: Bearer " + token}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		var out, complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &complaints
		require.NoError(t, cmd.Run(), "%s%s", &out, &complaints)
		return out.String()
	}
	require.Contains(t, inspect("--method", "tools/list", "--strict"), `"approval_wait"`)
	require.Contains(t, inspect("--method", "resources/list"), "gate://policy")
	require.Contains(t, inspect("--method", "tools/call", "--tool-name", "sql", "--tool-arg", "sql=SELECT count(*) AS n FROM orders"), `"n": 100`)
	require.Contains(t, inspect("--method", "resources/read", "--uri", "gate://agent"), "invoice-bot")
}
