package main

import (
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// clientSettings is what a test of the generated client needs: its generator is
// built, and the client is compiled, from modules of its own.
const clientSettings = "CLIENT_TEST"

// A program that knows nothing but the description that a gate serves registers
// an agent, applies a policy, sends telemetry and reads usage. The client is
// generated here and now; testdata/client pins its generator.
func TestAClientGeneratedFromTheServedDescriptionWorks(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "client"))))
	part := w.get(t, "/v1/openapi.json")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "v1.json"), part.body, 0o600))
	if os.Getenv(clientSettings) == "" {
		requireClientOperations(t, dir, part)
		return
	}
	in := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GATE="+w.base, "KEY="+w.key, "GOFLAGS=-mod=readonly", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "client"), 0o700))
	in("go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "client", "-o", filepath.Join("client", "client.go"), "v1.json")
	out := in("go", "run", ".")
	require.Regexp(t, `(?m)^agt_\S+ effective$`, out)
	require.Regexp(t, `(?m)^agt_\S+ telemetry_events 3 `, out)

	agents := w.v1(t, http.MethodGet, "/agents?name=generated", "").json(t)["items"].([]any)
	require.Len(t, agents, 1)
	require.Len(t, agents[0].(map[string]any)["applied_policies"], 1)
}

// requireClientOperations is the short form: every operation that the program
// calls is in the description that the gate serves.
func requireClientOperations(t *testing.T, dir string, part reply) {
	t.Helper()
	source, err := fs.ReadFile(os.DirFS(dir), "main.go")
	require.NoError(t, err)
	calls := regexp.MustCompile(`\.([A-Z]\w+)WithResponse\(`).FindAllStringSubmatch(string(source), -1)
	require.Len(t, calls, 5)
	for _, call := range calls {
		id := strings.ToLower(call[1][:1]) + call[1][1:]
		require.Contains(t, string(part.body), `"operationId":"`+id+`"`)
	}
}
