package main

import (
	"encoding/base64"
	"encoding/hex"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// Secrets that occur nowhere else, so that finding one means that it leaked.
const (
	secretToken    = "tok-7f3c1e9a5b8d2460-operator"
	secretLabelled = "tok-0d4e8b1f6a92c357-night-shift"
	secretPassword = "pw-5a1f8c3e7b9d0246-database"
	secretValue    = "value-9e2d6b4a1c8f3570-of-a-row"
)

// disguises are the forms in which a secret may hide.
func disguises(secret string) []string {
	return []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret))}
}

func requireNoSecret(t *testing.T, where, text string, secrets ...string) {
	t.Helper()
	for _, secret := range secrets {
		for _, form := range disguises(secret) {
			if i := strings.Index(text, form); i >= 0 {
				t.Fatalf("%s holds %q: ...%s...", where, form, text[max(0, i-100):min(len(text), i+len(form)+100)])
			}
		}
	}
}

// TestNothingServedLoggedOrStoredHoldsASecret takes a gate through everything it
// does, errors and defects and an outage among them, and then looks everywhere.
func TestNothingServedLoggedOrStoredHoldsASecret(t *testing.T) {
	t.Parallel()
	d, cluster := newClusterDir(t, nil)
	admin := d
	admin.execute(t, "CREATE ROLE keeper LOGIN PASSWORD '"+secretPassword+"'; GRANT ALL ON ALL TABLES IN SCHEMA public TO keeper")
	d.database = cluster.URLFor("keeper", secretPassword, "shop")
	var defect atomic.Bool
	g := startGateWith(t, d, func(a *app) {
		a.step = func(name string) {
			if name == "decision.before_append" && defect.Load() {
				panic("a defect")
			}
		}
	}, "GATE_OPERATOR_TOKEN="+secretToken, "GATE_OPERATOR_TOKENS=night="+secretLabelled, "GATE_DB_QUERY_TIMEOUT_MS=500", "GATE_MAX_BODY_BYTES=8192")
	var served strings.Builder
	see := func(r reply) reply {
		served.Write(r.body)
		for name, values := range r.header {
			served.WriteString(name + ": " + strings.Join(values, ", ") + "\n")
		}
		return r
	}
	tokens := []string{"X-GATE-Operator-Token: " + secretToken, "Authorization: Bearer " + secretLabelled}
	useEverything(t, g, tokens, see)

	defect.Store(true)
	require.Equal(t, http.StatusInternalServerError, see(g.query(t, ask("SELECT 1"))).status)
	defect.Store(false)
	require.NoError(t, cluster.Stop())
	require.Equal(t, http.StatusBadGateway, see(g.query(t, ask("UPDATE orders SET status = 'x' WHERE id = 1"))).status)
	g.requireDatabase(t, "unavailable")
	require.NoError(t, cluster.Restart(t.Context()))
	g.requireDatabase(t, "ok")
	admin.execute(t, "ALTER ROLE keeper PASSWORD 'another'")
	admin.execute(t, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'keeper'")
	refused := see(g.query(t, ask("UPDATE orders SET status = 'x' WHERE id = 1")))
	require.Equal(t, http.StatusBadGateway, refused.status, "%s", refused.body)
	for _, path := range []string{"/health", "/logs?limit=1000", "/audit?limit=1000", "/approvals", "/executions", "/runtime/stats", "/policy/status", "/evidence/verify"} {
		require.Equal(t, http.StatusOK, see(g.get(t, path)).status, path)
	}
	g.end(t)

	require.Contains(t, served.String(), `"resolved_by":"night"`, "a token is named by its label")
	requireNoSecret(t, "an answer", served.String(), secretToken, secretLabelled, secretPassword)
	requireNoSecret(t, "what the gate printed", g.output.String(), secretToken, secretLabelled, secretPassword)
	requireNoSecretOnDisk(t, g.gateDir)
}

// useEverything calls each endpoint, as it is meant and otherwise.
func useEverything(t *testing.T, g *testGate, tokens []string, see func(reply) reply) {
	t.Helper()
	for _, sql := range []string{
		"SELECT id FROM orders LIMIT 2", "SELECT id FROM orders WHERE status = '" + secretValue + "'", "SELECT '" + secretValue + "'::integer",
		"UPDATE orders SET status = '" + secretValue + "' WHERE id = 3", "SELECT " + endless, "SELEC", "DROP TABLE orders", "BEGIN", "SELECT id FROM nowhere",
		"INSERT INTO customers VALUES (1, '" + secretValue + "', 'x')", "SELECT current_user", "SHOW ALL",
	} {
		see(g.query(t, ask(sql), "mode=preview"))
		see(g.query(t, ask(sql)))
		see(g.query(t, ask(sql), "idempotency_key=key"))
	}
	for _, sql := range []string{"PREPARE p (text) AS UPDATE orders SET status = $1 WHERE id = 3", "EXECUTE p('" + secretValue + "')", "EXECUTE p('" + secretValue + "'::date)",
		"EXECUTE p(upper('" + secretValue + "'))", "PREPARE q AS SELECT '" + secretValue + "'::integer", "EXECUTE q", "EXECUTE p(1, '" + secretValue + "')", "DEALLOCATE ALL"} {
		see(g.query(t, in("secret session", sql), "mode=preview"))
		see(g.query(t, in("secret session", sql), "idempotency_key=prepared"))
		see(g.query(t, in("secret session", sql)))
	}
	for i, decision := range []string{"approve", "reject"} {
		held := see(g.query(t, ask("DELETE FROM order_items WHERE order_id = 7")))
		require.Equal(t, http.StatusAccepted, held.status, "%s", held.body)
		id := held.text(t, "approval_id")
		body := []byte(`{"decision":"` + decision + `","note":"from a test"}`)
		require.Equal(t, http.StatusUnauthorized, see(g.do(t, "POST", "/approvals/"+id+"/resolve", body)).status)
		require.Equal(t, http.StatusOK, see(g.do(t, "POST", "/approvals/"+id+"/resolve", body, tokens[i])).status)
		see(g.do(t, "POST", "/approvals/"+id+"/resolve", body, tokens[i]))
		see(g.query(t, ask("DELETE FROM order_items WHERE order_id = 7").with("approval_id", id)))
		see(g.get(t, "/approvals/"+id))
	}
	for _, token := range tokens {
		see(g.do(t, "POST", "/approvals/purge", nil, token))
		see(g.do(t, "POST", "/approvals/apr_none/resolve", []byte(`{"decision":`), token))
		see(g.do(t, "POST", "/query", []byte(`{"actor":`), token))
		see(g.do(t, "POST", "/query", []byte(strings.Repeat(" ", 9000)), token))
		see(g.do(t, "GET", "/nowhere", nil, token))
		see(g.do(t, "DELETE", "/query", nil, token))
		see(g.do(t, "GET", "/audit?limit=x", nil, token))
	}
}

// requireNoSecretOnDisk reads every file of the gate and every event. A value of
// a row stays out as well: by default the log keeps statements without their
// constants.
func requireNoSecretOnDisk(t *testing.T, d gateDir) {
	t.Helper()
	files := 0
	require.NoError(t, filepath.WalkDir(d.path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		files++
		requireNoSecret(t, path, string(content), secretToken, secretLabelled, secretPassword, secretValue)
		return err
	}))
	require.Greater(t, files, 5)
	for _, e := range d.events(t) {
		requireNoSecret(t, "event "+string(e.Type), string(event.AppendJSON(nil, &e)), secretToken, secretLabelled, secretPassword, secretValue)
	}
}
