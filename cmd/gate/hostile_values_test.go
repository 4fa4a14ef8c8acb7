package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostileValues are what no id, filter, name or path is.
var hostileValues = map[string]string{
	"nul": "\x00", "nul inside": "a\x00b", "long": strings.Repeat("a", 5000), "long path": "/" + strings.Repeat("a/", 2500), "dots": "..", "path": "../../etc/passwd",
	"absolute": "/etc/passwd", "escaped dots": "%2e%2e", "escaped nul": "%00", "escaped slash": "%2f", "control": "\x01\x1f\x7f", "lines": "a\r\nb", "high": "\U0010ffff",
	"direction": "\u202e\ufeff", "quotes": `'";--\`, "minus": "-1", "huge number": strings.Repeat("9", 400), "exponent": "1e400", "not a number": "NaN", "star": "*", "space": " ", "template": "{{.}}${x}",
}

// hostileBytes are in no text.
var hostileBytes = map[string]string{"no text": "\xff\xfe", "a surrogate": "\xed\xa0\x80", "overlong": "\xc0\xae\xc0\xae"}

// hostileBodyEndpoints are bodies that are right, in which each text is replaced
// in turn; a text stands between two dollars.
var hostileEndpoints = []struct{ method, path, body string }{
	{"POST", "/query", `{"actor":"$ana$","app":"$shop$","tenant":"$acme$","role":"$clerk$","host":"$desk$","env":"$prod$","sql":"$SELECT 1$","session_id":"$s$","approval_id":"$apr_x$","execution_profile":"$default$"}`},
	{"POST", "/query", `{"actor":"$ana$","app":"$shop$","tenant":"$acme$","role":"$clerk$","host":"$desk$","env":"prod","sql":"SELECT 1"}`},
	{"POST", "/query", `{"actor":"$ana$","app":"$shop$","tenant":"$acme$","role":"$clerk$","host":"$desk$","env":"prod","session_id":"$s$","sql":"PREPARE p AS SELECT 1"}`},
	{"POST", "/approvals/apr_x/resolve", `{"decision":"$approve$","note":"$note$"}`},
	{"POST", "/policy/validate", `{"policy_version":"$open@1.0.0$"}`},
	{"POST", "/policy/validate", `{"document":"$schema: gate.policy/v1$"}`},
	{"POST", "/policy/diff", `{"base":"$open@1.0.0$","target":"$open@1.0.0$","replay":{"last":"$1h$"}}`},
	{"POST", "/policy/diff", `{"base_document":"$a$","target_document":"$b$"}`},
	{"POST", "/policy/dry-run", `{"sql":"$SELECT 1$","policy_version":"$open@1.0.0$","compare_to":"$open@1.0.0$","context":{"actor":"$a$","app":"$a$","tenant":"$a$","role":"$a$","host":"$a$","env":"$prod$","tls_subject":"$a$","agent_id":"$a$","mode":"$enforce$","session_id":"$a$"}}`},
	{"POST", "/policy/candidates", `{"document":"$a$","note":"$b$"}`},
	{"POST", "/policy/activate", `{"policy_version":"$open@1.0.0$","expected_hash":"$a$","expected_active_hash":"$a$","impact":{"from_seq":1,"to_seq":2,"impact_hash":"$a$"},"reason":"$a$"}`},
	{"POST", "/policy/rollback", `{"policy_version":"$open@1.0.0$","expected_active_hash":"$a$","reason":"$a$"}`},
	{"POST", "/audit/verify", `{"audit_file":"$audit.wal$"}`},
	{"POST", "/audit/evidence", `{"start_seq":1,"end_seq":2,"reason":"$a$"}`},
	{"POST", "/executions/exe_x/check", `{}`},
	{"POST", "/v1/agents", `{"name":"$a$","type":"$worker$","config":{"model":"$m$"},"metadata":{"$owner$":"$a$","environment":"$prod$"}}`},
	{"PUT", "/v1/agents/agt_x", `{"name":"$a$","type":"$worker$","status":"$active$"}`},
	{"POST", "/v1/agents/agt_x/tokens", `{"scopes":["$gate:query$"],"replaces":"$tok_x$"}`},
	{"POST", "/v1/policies", `{"name":"$a$","mode":"$enforce$","rules":[{"id":"$r1$","action":"$block$","condition":"$sql.class == 'write'$","message":"$a$","reason_code":"$a_b$"}]}`},
	{"PUT", "/v1/policies/pol_x", `{"name":"$a$","mode":"$enforce$","rules":[{"id":"$r1$","action":"$block$","condition":"$true$"}]}`},
	{"POST", "/v1/policies/pol_x/apply", `{"agent_id":"$agt_x$","priority":"$high$"}`},
	{"POST", "/v1/telemetry", `{"events":[{"id":"$e$","type":"$llm_call$","timestamp":"$2026-01-01T00:00:00Z$","agent_id":"$agt_x$","session_id":"$s$","trace_id":"$t$","span_id":"$s$","parent_span_id":"$p$","name":"$n$","status":"$ok$","model":{"provider":"$p$","name":"$m$"},"usage":{"cost_usd":"$0.1$"},"tool":{"id":"$tool_x$","name":"$n$","call_id":"$c$","arguments_sha256":"$a$"},"sql":{"request_id":"$r$"},"error":{"type":"$t$","message":"$m$"},"attributes":{"$k$":"$v$"}}]}`},
	{"POST", "/v1/tools", `{"name":"$a$","type":"$mcp$","description":"$d$","version":"$1$","endpoint":{"url":"$https://example.com/$","tool_name":"$t$"},"auth":{"type":"$bearer$","header":"$X-A$","secret":"$A$"},"agents":["$agt_x$"],"metadata":{"$k$":"$v$"},"input_schema":{"type":"$object$"}}`},
	{"POST", "/v1/tools", `{"name":"$a$","type":"http","endpoint":{"url":"https://example.com/","probe":{"method":"$GET$","path":"$/$"}}}`},
	{"POST", "/v1/tools/tool_x/verify", `{"accept_fingerprint":"$a$"}`},
}

// Whatever stands in a path, a parameter, a header or a body, it is the caller's
// fault and is answered so: the service has no defect that can be reached.
func TestNoValueMakesTheServiceFail(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	agent, token := w.register(t, "worker")
	headers := []string{"X-GATE-Operator-Token: " + operatorTestToken, "X-Api-Key: " + w.key}
	sound := func(what string, r reply) {
		t.Helper()
		require.NotEqual(t, http.StatusInternalServerError, r.status, "%s: %.300s", what, r.body)
		require.NotContains(t, w.output.String(), "a handler panicked", what)
	}
	values := maps.Clone(hostileValues)
	maps.Copy(values, hostileBytes)
	names := slices.Sorted(maps.Keys(values))
	asked := 0
	some := func() []string { // each place gets those that broke something once, and a few of the others in turn
		return append([]string{"nul", "nul inside", "long", "dots", "no text"}, names[asked%len(names)], names[(asked+7)%len(names)], names[(asked+13)%len(names)])
	}
	contract, err := openAPI()
	require.NoError(t, err)
	for _, operation := range contract.documented() {
		method, path, _ := strings.Cut(operation, " ")
		if path == "/audit/stream" {
			continue
		}
		var places []string // where a value goes, written %s
		parts := strings.Split(path, "/")
		for i, part := range parts {
			if strings.HasPrefix(part, "{") {
				others := append([]string(nil), parts...)
				others[i] = "%s"
				places = append(places, strings.NewReplacer("{", "", "}", "").Replace(strings.Join(others, "/")))
			}
		}
		list, _ := contract.at("paths", path, strings.ToLower(method), "parameters")
		parameters, _ := list.([]any)
		for i := range parameters {
			p := contract.object("paths", path, strings.ToLower(method), "parameters", fmt.Sprint(i))
			if p["in"] == "query" {
				places = append(places, strings.NewReplacer("{", "", "}", "").Replace(path)+"?"+p["name"].(string)+"=%s")
			}
		}
		for _, place := range places {
			for _, name := range some() {
				value := values[name]
				target := strings.Replace(place, "%s", url.PathEscape(value), 1)
				if strings.Contains(place, "?") {
					target = strings.Replace(place, "%s", url.QueryEscape(value), 1)
				}
				r, err := w.try(method, target, nil, headers...)
				require.NoError(t, err, "%s %s: %s", method, place, name)
				sound(method+" "+place+": "+name, r)
				asked++
			}
		}
	}
	for _, e := range hostileEndpoints {
		path := strings.Replace(e.path, "agt_x", agent, 1)
		pieces := strings.Split(e.body, "$")
		for i := 1; i < len(pieces); i += 2 {
			for _, name := range some() {
				value := values[name]
				with := append([]string(nil), pieces...)
				with[i] = jsonText(value)
				r, err := w.try(e.method, path, []byte(strings.Join(with, "")), headers...)
				require.NoError(t, err, "%s %s, text %d: %s", e.method, path, i, name)
				sound(fmt.Sprintf("%s %s, text %d: %s", e.method, path, i, name), r)
				asked++
			}
		}
	}
	for _, header := range []string{"Idempotency-Key", "X-Request-Id", "Traceparent", "If-Match", "If-None-Match", "Last-Event-ID", "Accept", "Authorization", "X-Api-Key", "X-GATE-Operator-Token", "X-Forwarded-For", "User-Agent"} {
		for name, value := range hostileValues {
			if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) || strings.TrimSpace(value) != value {
				continue // no header of HTTP
			}
			for line, body := range map[string]string{"POST /query": "{" + testClaims + `,"sql":"SELECT 1"}`, "GET /audit": "", "POST /v1/agents": `{"name":"a","type":"b"}`, "GET /v1/agents/" + agent: "",
				"GET /policy/versions/open@1.0.0": "", "POST /approvals/apr_x/resolve": `{"decision":"approve"}`} {
				method, path, _ := strings.Cut(line, " ")
				r, err := w.try(method, path, []byte(body), append([]string{"Authorization: Bearer " + token}, header+": "+value)...)
				require.NoError(t, err, "%s, %s: %s", line, header, name)
				sound(line+", "+header+": "+name, r)
				asked++
			}
		}
	}
	t.Logf("%d requests", asked)
	require.Greater(t, asked, 2000)
	w.requireAlive(t)
}

// jsonText is a value inside the quotes of JSON; what is no text is left as it is.
func jsonText(value string) string {
	var b strings.Builder
	for i := range len(value) {
		switch c := value[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ':
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// A path that can be none, or that the service may not read, is the caller's to
// correct, and the answer says what is wrong with it.
func TestAnAuditFileThatCanBeNoPath(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	name := func(n int) string { return filepath.Join(g.path, strings.Repeat("a", n)) }
	require.NoError(t, os.WriteFile(g.file("secret.wal"), []byte("x"), 0o600))
	for file, want := range map[string]struct {
		status int
		said   string
	}{
		"\x00": {400, "NUL"}, g.file("audit.wal\x00"): {400, "NUL"}, g.file("a\x00b"): {400, "NUL"}, strings.Repeat("a", 5000): {400, "4095 bytes"}, g.path + "/" + strings.Repeat("./", 2500) + "audit.wal": {400, "4095 bytes"},
		name(256): {400, "255 bytes"}, name(255): {404, "no such file"}, strings.Repeat("ä", 200): {400, "none of the folders"}, g.file("audit.wal/x"): {400, "none of the folders"},
		g.file("../" + filepath.Base(g.path) + "/none"): {404, "no such file"}, "..": {400, "none of the folders"}, g.path: {400, "none of the folders"}, g.path + "/.": {400, "none of the folders"},
		g.file("%00"): {404, "no such file"}, g.file("approvals.db"): {400, "no regular file"},
	} {
		r := g.do(t, http.MethodPost, "/audit/verify", []byte(`{"audit_file":"`+jsonText(file)+`"}`))
		require.Equal(t, want.status, r.status, "%.100q: %s", file, r.body)
		require.Contains(t, string(r.body), want.said, "%.100q", file)
	}
	r := g.do(t, http.MethodPost, "/audit/verify", []byte(`{"audit_file":"`+g.file("audit.wal")+`"}`))
	require.Equal(t, "ok", r.text(t, "status"), "%s", r.body)
}
