package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A new user pastes docs/AGENTS.md and sees a statement stopped.
func TestAgentsPageIsPastedAndStopsAStatement(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "AGENTS.md"))
	require.NoError(t, err)
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		script.WriteString(block[1])
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", script.String())
	cmd.Env = append(os.Environ(), "GATE="+w.base, "KEY="+w.key)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, want := range []string{`"status":"effective"`, `"decision":"BLOCK"`, "agent_policy_blocked", "Ask finance.", `"event_type":"decision_recorded"`, `"accepted":2`, "secret_unavailable"} {
		require.Contains(t, string(out), want)
	}
}
