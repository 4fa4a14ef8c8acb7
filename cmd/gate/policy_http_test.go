package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policy"
)

// sampleVersion is the sample policy under another version, with changes.
func sampleVersion(t testing.TB, version string, changes ...string) string {
	t.Helper()
	text := string(policy.Sample())
	const own = "version: 1.0.0"
	require.Contains(t, text, own)
	text = strings.Replace(text, own, "version: "+version, 1)
	require.Zero(t, len(changes)%2)
	for i := 0; i < len(changes); i += 2 {
		require.Contains(t, text, changes[i])
		text = strings.Replace(text, changes[i], changes[i+1], 1)
	}
	return text
}

// operate sends a JSON body, with the operator token.
func (g *testGate) operate(t testing.TB, path string, body map[string]any) reply {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	return g.do(t, http.MethodPost, path, text, operatorHeader)
}

// propose hands in a version and gives its hash.
func (g *testGate) propose(t testing.TB, document string) string {
	t.Helper()
	r := g.operate(t, "/policy/candidates", map[string]any{"document": document, "note": "a change"})
	require.Equal(t, http.StatusCreated, r.status, "%s", r.body)
	return r.text(t, "hash")
}

func TestAVersionIsProposedActivatedAndRolledBack(t *testing.T) {
	g := startShop(t)
	active := g.get(t, "/policy/status").json(t)
	document := sampleVersion(t, "1.1.0")
	hash := g.propose(t, document)

	again := g.operate(t, "/policy/candidates", map[string]any{"document": document})
	require.Equal(t, http.StatusOK, again.status, "the same bytes are the same version")
	other := g.operate(t, "/policy/candidates", map[string]any{"document": document + "\n# changed\n"})
	require.Equal(t, http.StatusConflict, other.status)
	require.Equal(t, "policy_version_exists", other.text(t, "error_code"))

	name, _, _ := strings.Cut(active["policy_version"].(string), "@")
	done := g.operate(t, "/policy/activate", map[string]any{"expected_hash": hash, "reason": "reviewed"})
	require.Equal(t, http.StatusOK, done.status, "%s", done.body)
	body := done.json(t)
	require.Equal(t, name+"@1.1.0", body["policy_version"])
	require.Equal(t, "active", body["status"])
	require.Equal(t, map[string]any{"policy_version": active["policy_version"], "status": "archived"}, body["previous"])
	require.Equal(t, name+"@1.1.0", g.query(t, ask("SELECT 1")).text(t, "policy_version"))

	back := g.operate(t, "/policy/rollback", map[string]any{})
	require.Equal(t, http.StatusOK, back.status, "%s", back.body)
	require.Equal(t, active["policy_version"], back.text(t, "policy_version"))
	require.Equal(t, name+"@1.1.0", back.text(t, "rolled_back_from"))
	status := g.get(t, "/policy/status").json(t)
	require.Equal(t, active["hash"], status["hash"])
	require.Equal(t, true, status["manifest"].(map[string]any)["matches"])

	one := g.do(t, http.MethodGet, "/policy/versions/"+name+"@1.1.0", nil, "Accept: application/yaml")
	require.Equal(t, document, string(one.body))
	require.Equal(t, `"`+hash+`"`, one.header.Get("ETag"))
	onDisk, err := os.ReadFile(filepath.Join(g.file("policies"), name+"@1.1.0.yaml"))
	require.NoError(t, err)
	require.Equal(t, document, string(onDisk))
}
