package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// allClients asks for the clients that need other languages too. `make clients`
// sets it, after it has installed them.
const allClients = "WIRE_CLIENTS_ALL"

// Where the programs lie, and where make has put what they need.
const (
	clientSources = "../../fixtures/wireclients"
	clientModules = "../../var/wireclients"
)

// clientPrograms are the clients in other languages.
func clientPrograms() map[string]clientRun {
	return map[string]clientRun{
		"node-postgres": nodeClient("node_postgres.mjs"),
		"postgres.js":   nodeClient("postgres_js.mjs"),
		"psycopg":       programClient("/usr/bin/python3", filepath.Join(clientSources, "psycopg3.py")),
		"pgjdbc":        programClient("java", "-cp", "/usr/share/java/postgresql.jar", filepath.Join(clientSources, "Pgjdbc.java")),
	}
}

// nodeClient is a program of node. It runs beside its modules, where node looks
// for them.
func nodeClient(name string) clientRun {
	return func(t *testing.T, c *clientNotes) {
		dir := nodeFolder(t, clientModules, clientSources, name, "common.mjs")
		programClient("node", filepath.Join(dir, name))(t, c)
	}
}

// nodeFolder is a folder with programs beside their modules.
func nodeFolder(t *testing.T, installed, sources string, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	modules, err := filepath.Abs(filepath.Join(installed, "node_modules"))
	require.NoError(t, err)
	require.NoError(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	for _, file := range files {
		source, err := os.ReadFile(filepath.Join(sources, file))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), source, 0o600))
	}
	return dir
}

// programClient runs a program that says what it saw as lines of JSON.
func programClient(program string, args ...string) clientRun {
	return func(t *testing.T, c *clientNotes) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), clientEnviron(t, c)...)
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		output, err := cmd.Output()
		require.NoError(t, err, "%s\n%s", output, &complaints)
		for line := range bytes.Lines(output) {
			var said struct{ Kind, Item, Text string }
			require.NoError(t, json.Unmarshal(line, &said), "%s", line)
			switch said.Kind {
			case "told":
				c.told(said.Item, "%s", said.Text)
			default:
				c.saw(said.Item, "%s", said.Text)
			}
		}
		require.NotEmpty(t, c.seen)
	}
}

// clientEnviron tells a program where to connect to, whom to ask whether its
// statement runs, and how to have something approved where there is a gate.
func clientEnviron(t *testing.T, c *clientNotes) []string {
	t.Helper()
	u, err := url.Parse(c.url)
	require.NoError(t, err)
	password, _ := u.User.Password()
	environ := []string{
		"CLIENT_HOST=" + u.Hostname(), "CLIENT_PORT=" + u.Port(), "CLIENT_USER=" + u.User.Username(), "CLIENT_PASSWORD=" + password,
		"CLIENT_DATABASE=" + strings.TrimPrefix(u.Path, "/"), "TZ=UTC", "LC_ALL=C.UTF-8",
	}
	ask := http.NewServeMux()
	ask.HandleFunc("GET /sleeps", func(http.ResponseWriter, *http.Request) { c.sleeps(t) })
	ask.HandleFunc("GET /approve/{id}", func(_ http.ResponseWriter, r *http.Request) { c.resolve(r.PathValue("id")) })
	server := httptest.NewServer(ask)
	t.Cleanup(server.Close)
	environ = append(environ, "CLIENT_SLEEPS="+server.URL+"/sleeps")
	if c.gated() {
		environ = append(environ, "CLIENT_APPROVE="+server.URL+"/approve/")
	}
	return environ
}
