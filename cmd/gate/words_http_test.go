package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/http/agentapi"
	"writegate/http/gateapi"
	"writegate/http/httpd"
)

// A word that asks for nothing to be done, or for something to be done once, is
// listened to or refused: it is never passed over while the statement runs.
func TestNoWordOfCautionIsPassedOver(t *testing.T) {
	t.Parallel()
	g := startGate(t, newErrorDir(t))
	n := 0
	insert := func() statement {
		n++
		return ask(fmt.Sprintf("INSERT INTO orders VALUES (%d, 1, 'word')", 10_000+n))
	}
	rows := func() string { return g.value(t, "SELECT count(*) FROM orders WHERE status = 'word'") }
	for query, said := range map[string]string{
		"preview=true": "mode=preview", "preview": "mode=preview", "Preview=true": "mode=preview", "PREVIEW=1": "mode=preview", "previw=true": "mode=preview",
		"dry_run=true": "mode=preview", "dry-run=true": "mode=preview", "dryRun=true": "mode=preview", "dryrun": "mode=preview", "explain=true": "mode=preview", "validate_only=true": "mode=preview",
		"Mode=preview": "mode?", "MODE=preview": "mode?", "mode%20=preview": "mode?", "mdoe=preview": "mode?",
		"mode=": "live, preview or dry_run", "mode": "live, preview or dry_run", "mode=PREVIEW": "live, preview or dry_run", "mode=Preview": "live, preview or dry_run", "mode=%20preview": "live, preview or dry_run", "mode=preview%20": "live, preview or dry_run",
		"mode=dry-run": "live, preview or dry_run", "mode=Dry_run": "live, preview or dry_run", "mode=preview%00": "live, preview or dry_run", "mode=preview,live": "live, preview or dry_run",
		"mode=live&mode=preview": "once at most", "mode=preview&mode=preview": "once at most", "mode=preview&m%6fde=live": "once at most", "mode=live;mode=preview": "can't be read", "mode=preview;": "can't be read",
		"idempotency_key=": "visible ASCII", "idempotency-key=a": "idempotency_key", "Idempotency-Key=a": "idempotency_key", "idempotencyKey=a": "idempotency_key", "idempotency_key=a&idempotency_key=b": "once at most",
		"approval_id=apr_1": "all else in the body", "execution_profile=bulk": "all else in the body", "session_id=s": "all else in the body", "env=shadow": "all else in the body", "max_rows=1": "all else in the body",
		"timeout=1": "all else in the body", "sql=SELECT%201&sql=SELECT%202": "once at most", "sql=SELECT%201": "the two differ",
	} {
		s := insert()
		r := g.do(t, http.MethodPost, "/query?"+query, mustJSON(t, s))
		require.Equal(t, http.StatusBadRequest, r.status, "%s: %s", query, r.body)
		require.Equal(t, "validation_failed", r.text(t, "error_code"), query)
		require.Contains(t, string(r.body), said, query)
	}
	for _, header := range []string{"X-Idempotency-Key: a", "Idempotence-Key: a", "Idempotency_Key: a", "X-Idempotency-Token: a", "Dry-Run: true", "X-Dry-Run: true", "X-DryRun: 1", "X-Preview: true", "X-Gate-Mode: preview", "Mode: preview", "Prefer: dry-run", "Prefer: handling=strict, preview",
		"If-Match: ", "If-Match: *", `If-Match: "1"`, "X-If-Match: 1", "If_Match: 1", "If-None-Match: *", "If_None_Match: *", "If-Unmodified-Since: Mon, 01 Jan 2001 00:00:00 GMT", "If: (<urn:x>)",
		"Idempotency-Key: ", "Idempotency-Key: a b", "Idempotency-Key: " + strings.Repeat("a", 256)} {
		r := g.do(t, http.MethodPost, "/query", mustJSON(t, insert()), header)
		require.Equal(t, http.StatusBadRequest, r.status, "%s: %s", header, r.body)
		require.Equal(t, "validation_failed", r.text(t, "error_code"), header)
	}
	for field, value := range map[string]any{"mode": "preview", "preview": true, "dry_run": true, "Mode": "preview", "idempotency_key": "a", "enforced": false} {
		r := g.query(t, insert().with(field, value))
		require.Equal(t, "invalid_json", r.text(t, "error_code"), field)
	}
	require.Equal(t, "0", rows(), "nothing ran")

	// The header is the key, beside the parameter or in its place.
	s := insert()
	for i, send := range []func() reply{
		func() reply {
			return g.do(t, http.MethodPost, "/query", mustJSON(t, s), "Idempotency-Key: once")
		},
		func() reply {
			return g.do(t, http.MethodPost, "/query", mustJSON(t, s), "idempotency-key: once")
		},
		func() reply { return g.query(t, s, "idempotency_key=once") },
		func() reply {
			return g.do(t, http.MethodPost, "/query?idempotency_key=once", mustJSON(t, s), "Idempotency-Key: once")
		},
	} {
		r := send()
		require.Equal(t, http.StatusOK, r.status, "%d: %s", i, r.body)
		require.Equal(t, i > 0, r.json(t)["replayed"] == true, "%d: %s", i, r.body)
	}
	require.Equal(t, "1", rows())
	r := g.do(t, http.MethodPost, "/query?idempotency_key=twice", mustJSON(t, insert()), "Idempotency-Key: once")
	requireInvalid(t, r, "idempotency_key")
	doubled := insert()
	answer := g.pageRequest(t, "POST /query", "localhost", string(mustJSON(t, doubled)), "Content-Type: application/json", "Idempotency-Key: a", "Idempotency-Key: b")
	requireInvalid(t, answer, "idempotency_key")
	r = g.do(t, http.MethodPost, "/query?mode=preview", mustJSON(t, insert()), "Idempotency-Key: a")
	require.Equal(t, http.StatusBadRequest, r.status, "%s", r.body)
	r = g.do(t, http.MethodPost, "/query?m%6fde=previe%77", mustJSON(t, insert()))
	require.Equal(t, http.StatusOK, r.status)
	require.Equal(t, false, r.json(t)["would_execute"], "%s", r.body)
	require.Equal(t, "1", rows())
}

// Every endpoint that changes something refuses what it does not know, and says
// so before it does anything; one that only shows leaves it alone.
func TestOnlyAGetPassesOverUnknownParameters(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	mux := httpd.NewMux(httpd.Options{})
	gateapi.Register(mux, gateapi.Options{StreamsPerClient: 1})
	_, err := agentapi.Register(mux, agentapi.Options{Now: time.Now, StreamsPerClient: 1})
	require.NoError(t, err)
	ids := strings.NewReplacer(":approval_id", "purge", ":grant_id", "replay", ":subject_id", "sub_none", ":execution_id", "exe_none", ":token_id", "tok_none", ":event_id", "evt_none", ":version", "none@1.0.0", ":id", "none_none")
	checked := 0
	for _, route := range mux.Routes() {
		path := ids.Replace(route.Path)
		if route.Path == "/approvals/:approval_id" && route.Method == http.MethodGet || path == "/audit/stream" {
			continue
		}
		headers := []string{"X-GATE-Operator-Token: " + operatorTestToken, "X-Api-Key: " + w.key}
		for _, query := range []string{"?preview=true", "?dry_run=yes&dry_run=no", "?Agent_id=agt_x", "?REASON=x", "?a=1;b=2"} {
			r := w.do(t, route.Method, path+query, nil, headers...)
			if route.Method == http.MethodGet {
				continue
			}
			checked++
			require.Equal(t, http.StatusBadRequest, r.status, "%s %s: %s", route.Method, path+query, r.body)
			require.Equal(t, "validation_failed", r.text(t, "error_code"), "%s %s", route.Method, path+query)
		}
	}
	require.Greater(t, checked, 100)
	// A key is listened to by POST /query and under /v1, and refused elsewhere.
	for _, route := range mux.Routes() {
		if route.Method == http.MethodGet {
			continue
		}
		r := w.do(t, route.Method, ids.Replace(route.Path), []byte("{}"), "X-GATE-Operator-Token: "+operatorTestToken, "X-Api-Key: "+w.key, "Idempotency-Key: once")
		listens := route.Path == "/query" || route.Path == "/grants" || strings.HasPrefix(route.Path, "/v1/")
		require.Equal(t, !listens, strings.Contains(string(r.body), "Idempotency-Key"), "%s %s: %s", route.Method, route.Path, r.body)
	}
	// A condition is honoured or refused: those that honour If-Match are named here.
	honoured := []string{"PUT /v1/agents/:id", "DELETE /v1/agents/:id", "PUT /v1/policies/:id", "PUT /v1/tools/:id"}
	for _, route := range mux.Routes() {
		for _, condition := range []string{`If-Match: "7"`, "If-Match: *", "If-Match: ", "If-None-Match: *", "If-Unmodified-Since: Mon, 01 Jan 2001 00:00:00 GMT"} {
			if route.Method == http.MethodGet {
				continue
			}
			headers := []string{"X-GATE-Operator-Token: " + operatorTestToken, "X-Api-Key: " + w.key, condition}
			r := w.do(t, route.Method, ids.Replace(route.Path), nil, headers...)
			if slices.Contains(honoured, route.Method+" "+route.Path) && strings.HasPrefix(condition, "If-Match: ") && condition != "If-Match: " {
				require.NotContains(t, string(r.body), "If-Match", "%s %s", route.Method, route.Path)
				continue
			}
			require.Equal(t, http.StatusBadRequest, r.status, "%s %s, %s: %s", route.Method, route.Path, condition, r.body)
			require.Equal(t, "validation_failed", r.text(t, "error_code"), "%s %s, %s", route.Method, route.Path, condition)
		}
	}
	// What is asked of a DELETE stands in its query string: a body that says something is refused.
	for _, path := range []string{"/v1/agents/none", "/v1/agents/none/tokens/none", "/v1/policies/none/apply"} {
		for body, status := range map[string]int{`{"dry_run":true}`: http.StatusBadRequest, `[]`: http.StatusBadRequest, `{}`: http.StatusNotFound, ``: http.StatusNotFound} {
			r := w.do(t, http.MethodDelete, path, []byte(body), "X-Api-Key: "+w.key)
			if path != "/v1/policies/none/apply" || status != http.StatusNotFound { // this one misses its agent
				require.Equal(t, status, r.status, "%s %s: %s", path, body, r.body)
			}
		}
		require.Equal(t, http.StatusUnsupportedMediaType, w.do(t, http.MethodDelete, path, []byte(`{}`), "X-Api-Key: "+w.key, "Content-Type: text/plain").status)
	}
	agent, _ := w.register(t, "kept")
	require.Equal(t, http.StatusBadRequest, w.v1(t, http.MethodDelete, "/agents/"+agent+"?preview=true", "").status)
	require.Equal(t, "active", w.v1(t, http.MethodGet, "/agents/"+agent, "").text(t, "status"))
	for _, path := range []string{"/health", "/approvals", "/audit", "/policy/status", "/executions", "/logs", "/runtime/stats"} {
		require.Equal(t, http.StatusOK, w.get(t, path+"?preview=true&Mode=x").status, path)
	}
}
