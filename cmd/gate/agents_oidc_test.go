package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/fixtures/issuer"
)

// trusting are the settings of a gate that takes tokens of an issuer.
func trusting(t *testing.T, i *issuer.Issuer) []string {
	t.Helper()
	return []string{"GATE_AGENT_OIDC_ISSUER=" + i.URL, "GATE_AGENT_OIDC_AUDIENCE=" + issuer.Audience, "GATE_AGENT_OIDC_CA_BUNDLE_PATH=" + i.Authority.Path}
}

// nobodysIssuer are settings of a gate whose issuer never answers.
var nobodysIssuer = []string{"GATE_AGENT_OIDC_ISSUER=https://127.0.0.1:1", "GATE_AGENT_OIDC_AUDIENCE=" + issuer.Audience}

// bind lets a subject speak for an agent.
func (w *agentWorld) bind(t *testing.T, agentID, subject string) (subjectID string) {
	t.Helper()
	r := w.operate(t, "/subjects", map[string]any{"agent_id": agentID, "subject": subject, "reason": "its workload"})
	require.Equal(t, http.StatusCreated, r.status, "%s", r.body)
	require.Equal(t, "/subjects/"+r.text(t, "subject_id"), r.header.Get("Location"))
	return r.text(t, "subject_id")
}

func (w *agentWorld) unbind(t *testing.T, subjectID string) {
	t.Helper()
	r := w.operate(t, "/subjects/"+subjectID+"/unbind", map[string]any{"reason": "no more"})
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, "unbound", r.text(t, "status"))
}

// refused sends a statement with a credential that is not taken.
func (w *agentWorld) refused(t *testing.T, token string) (code string) {
	t.Helper()
	r := w.as(t, token, ask("SELECT 1"))
	require.Equal(t, http.StatusUnauthorized, r.status, "%s", r.body)
	return r.text(t, "error_code")
}

func TestAnAgentComesByATokenOfItsIssuer(t *testing.T) {
	t.Parallel()
	i := issuer.New(t)
	w := startDoor(t, trusting(t, i)...)
	id, _ := w.register(t, "invoice-bot")
	token := i.Token("client-7")
	require.Equal(t, "credentials_invalid", w.refused(t, token))
	require.Contains(t, string(w.as(t, token, ask("SELECT 1")).body), "gate agents bind-subject")
	subject := w.bind(t, id, "client-7")

	for _, d := range doors {
		s := d.connect(t, w, token, make(chan any, 100))
		o := use(t, s, "sql", map[string]any{"sql": "SELECT id FROM orders ORDER BY id LIMIT 2"})
		require.Equal(t, "completed", o.Status, "%s: %s", d.name, o.raw)
		require.Len(t, o.Rows, 2)
		o = use(t, s, "sql", map[string]any{"sql": "DELETE FROM orders WHERE id = 1"})
		require.Equal(t, "pending_approval", o.Status)
	}
	r := w.as(t, token, ask("SELECT 1 AS one"))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	r = w.do(t, http.MethodGet, "/v1/agents/"+id, nil, bearer(token))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, http.StatusForbidden, w.do(t, http.MethodPost, "/v1/policies", []byte(`{"name":"p","rules":[{"action":"allow","condition":""}]}`), bearer(token)).status, "an agent changed its rules")
	require.NotNil(t, w.do(t, http.MethodGet, "/subjects/"+subject, nil, "X-GATE-Operator-Token: "+operatorTestToken).json(t)["last_used_at"])

	seen := w.eventsOf(t, event.TypeAgentSubjectBound)
	require.Len(t, seen, 1)
	bound, err := json.Marshal(seen[0])
	require.NoError(t, err)
	require.NotContains(t, string(bound), "client-7", "anybody is shown whom the issuer calls so")
	require.Contains(t, string(bound), `"subject_withheld":true`)

	health := w.get(t, "/health").json(t)["agent_oidc"].(map[string]any)
	require.Equal(t, []any{"ok", i.URL, 1.0}, []any{health["status"], health["issuer"], health["keys"]})
	require.Contains(t, string(w.get(t, "/metrics").body), "gate_agent_oidc_ok 1")
	w.end(t)
	under := 0
	for _, e := range w.events(t) {
		if e.Type == event.TypeRequestReceived && e.Context.AgentID == id {
			var p event.RequestReceived
			require.NoError(t, e.Parse(&p))
			require.Equal(t, []string{subject}, p.CredentialIDs)
			under++
		}
	}
	require.Equal(t, 2*len(doors)+1, under)
	for _, name := range []string{"audit.wal", "audit.log"} {
		text, err := os.ReadFile(w.file(name))
		require.NoError(t, err)
		for _, part := range strings.Split(token, ".") {
			require.NotContains(t, string(text), part, "%s holds a part of the token", name)
		}
	}
	for _, part := range strings.Split(token, ".") {
		require.NotContains(t, w.output.String(), part)
	}
}

func TestAClientIsToldWhereToGetAToken(t *testing.T) {
	t.Parallel()
	i := issuer.New(t)
	w := startDoor(t, trusting(t, i)...)
	ping := []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	r := w.do(t, http.MethodPost, "/mcp", ping)
	require.Equal(t, http.StatusUnauthorized, r.status)
	challenges, err := oauthex.ParseWWWAuthenticate(r.header["Www-Authenticate"])
	require.NoError(t, err)
	require.Len(t, challenges, 1)
	require.Equal(t, map[string]string{"resource_metadata": w.base + "/.well-known/oauth-protected-resource/mcp"}, challenges[0].Params)
	about, err := oauthex.GetProtectedResourceMetadata(t.Context(), challenges[0].Params["resource_metadata"], w.base+"/mcp", http.DefaultClient)
	require.NoError(t, err)
	require.Equal(t, []string{i.URL}, about.AuthorizationServers)
	_, err = oauthex.GetProtectedResourceMetadata(t.Context(), w.base+"/.well-known/oauth-protected-resource", w.base, http.DefaultClient)
	require.NoError(t, err)

	for name, c := range map[string]struct {
		token, failure string
		status         int
	}{
		"unbound":   {i.Token("client-7"), "invalid_token", 401},
		"expired":   {i.Token("client-7", map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}), "invalid_token", 401},
		"elsewhere": {i.Token("client-7", map[string]any{"aud": "https://other.example.com"}), "invalid_token", 401},
		"nonsense":  {"nonsense", "invalid_token", 401},
		"unsigned":  {"eyJhbGciOiJub25lIn0.e30.", "invalid_token", 401},
	} {
		r := w.do(t, http.MethodPost, "/mcp", ping, bearer(c.token))
		require.Equal(t, c.status, r.status, "%s: %s", name, r.body)
		challenges, err := oauthex.ParseWWWAuthenticate(r.header["Www-Authenticate"])
		require.NoError(t, err)
		require.Equal(t, c.failure, challenges[0].Params["error"], name)
		require.NotEmpty(t, challenges[0].Params["resource_metadata"], name)
	}
	id, _ := w.register(t, "narrow")
	r = w.operate(t, "/subjects", map[string]any{"agent_id": id, "subject": "client-8", "scopes": []string{"agents:read"}, "reason": "looks alone"})
	require.Equal(t, http.StatusCreated, r.status, "%s", r.body)
	r = w.do(t, http.MethodPost, "/mcp", ping, bearer(i.Token("client-8")))
	require.Equal(t, http.StatusForbidden, r.status, "%s", r.body)
	require.Contains(t, r.header.Get("WWW-Authenticate"), `error="insufficient_scope", scope="gate:query"`)
	require.Equal(t, "Bearer", w.do(t, http.MethodGet, "/v1/agents", nil).header.Get("WWW-Authenticate"), "what is said of /mcp is said of it alone")

	named := startDoor(t, append(trusting(t, i), "GATE_MCP_PUBLIC_URL=https://gate.example.com/mcp")...)
	r = named.get(t, "/.well-known/oauth-protected-resource/mcp")
	require.Equal(t, "https://gate.example.com/mcp", r.text(t, "resource"))
	require.Equal(t, "https://gate.example.com", named.get(t, "/.well-known/oauth-protected-resource").text(t, "resource"))
	require.Contains(t, named.do(t, http.MethodPost, "/mcp", ping).header.Get("WWW-Authenticate"), `"https://gate.example.com/.well-known/oauth-protected-resource/mcp"`)
	require.Equal(t, http.StatusMisdirectedRequest, named.do(t, http.MethodGet, "/.well-known/oauth-protected-resource/mcp", nil, "Host: evil.example").status)

	off := startDoor(t)
	require.Equal(t, http.StatusNotFound, off.get(t, "/.well-known/oauth-protected-resource/mcp").status)
	require.Equal(t, "Bearer", off.do(t, http.MethodPost, "/mcp", ping).header.Get("WWW-Authenticate"))
	require.Equal(t, "credentials_invalid", off.refused(t, i.Token("client-7")), "a gate without an issuer takes its tokens for absent")
}

// What ends the credential ends what is done with it, by the order of the log.
func TestATokenOfAnIssuerEndsWithItsBindingItsAgentAndItsTime(t *testing.T) {
	t.Parallel()
	i := issuer.New(t)
	w := startDoor(t, trusting(t, i)...)
	id, _ := w.register(t, "invoice-bot")
	token := i.Token("client-7", map[string]any{"iat": time.Now().Add(-time.Hour).Unix()})
	subject := w.bind(t, id, "client-7")
	require.Equal(t, http.StatusConflict, w.operate(t, "/subjects", map[string]any{"agent_id": id, "subject": "client-7", "reason": "again"}).status)

	const clients = 4
	var served atomic.Int64
	var ended atomic.Bool
	var work sync.WaitGroup
	for range clients {
		work.Go(func() {
			for {
				after := ended.Load()
				r, err := w.asAgent(token, ask("SELECT 1"))
				switch {
				case err == nil && r.status == http.StatusOK && !after:
					served.Add(1)
				case err == nil && r.status == http.StatusUnauthorized && strings.Contains(string(r.body), `"token_revoked"`):
					return
				default:
					t.Errorf("after the end: %t, answered %d %s, %v", after, r.status, r.body, err)
					return
				}
			}
		})
	}
	require.Eventually(t, func() bool { return served.Load() > 2*clients || t.Failed() }, startPatience, pollEvery)
	w.unbind(t, subject)
	ended.Store(true)
	work.Wait()

	again := w.bind(t, id, "client-7")
	require.NotEqual(t, subject, again)
	require.Equal(t, "token_revoked", w.refused(t, token), "a token from before it was unbound came back")
	time.Sleep(time.Second) // iat has whole seconds
	require.Equal(t, http.StatusOK, w.as(t, i.Token("client-7"), ask("SELECT 1")).status)

	// Its time ends while it waits for a person.
	brief := i.Token("client-7", map[string]any{"exp": time.Now().Add(-27 * time.Second).Unix()})
	s := toolsOver(t, w, brief)
	o := use(t, s, "sql", map[string]any{"sql": "DELETE FROM orders WHERE id = 1"})
	require.Equal(t, "pending_approval", o.Status, "%s", o.raw)
	o = use(t, s, "approval_wait", map[string]any{"approval_id": o.ApprovalID, "seconds": 60})
	require.Equal(t, "token_expired", o.ErrorCode, "%s", o.raw)
	require.Equal(t, "token_expired", w.refused(t, brief))

	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+id+"?reason=test", "").status)
	require.Equal(t, "token_revoked", w.refused(t, i.Token("client-7")))
	b := w.do(t, http.MethodGet, "/subjects/"+again, nil, "X-GATE-Operator-Token: "+operatorTestToken).json(t)
	require.Equal(t, []any{"unbound", nil}, []any{b["status"], b["unbound_by"]})
	back := `{"name":"invoice-bot","type":"worker","status":"active"}`
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodPut, "/agents/"+id, back).status)
	require.Equal(t, "token_revoked", w.refused(t, i.Token("client-7")), "what a deactivation ended came back with the agent")

	w.end(t)
	ends := map[string]bool{}
	for _, e := range w.events(t) {
		switch e.Type {
		case event.TypeAgentSubjectUnbound:
			var p event.AgentSubjectUnbound
			require.NoError(t, e.Parse(&p))
			ends[p.SubjectID] = true
		case event.TypeRequestReceived:
			var p event.RequestReceived
			require.NoError(t, e.Parse(&p))
			require.False(t, slices.ContainsFunc(p.CredentialIDs, func(id string) bool { return ends[id] }), "event %d was decided under a binding that had ended", e.Seq)
		}
	}
	require.Len(t, ends, 1)
}

// A JWT is no operator token, and a gate with an issuer goes on without it.
func TestAJWTIsNoOperatorTokenAndAnIssuerThatIsDownStopsNobodyElse(t *testing.T) {
	t.Parallel()
	i := issuer.New(t)
	settings := trusting(t, i)
	i.Stop()
	w := startDoor(t, settings...)
	id, own := w.register(t, "invoice-bot")
	w.bind(t, id, "client-7")
	token := i.Token("client-7")
	r := w.as(t, token, ask("SELECT 1"))
	require.Equal(t, http.StatusServiceUnavailable, r.status, "%s", r.body)
	require.Equal(t, "issuer_unavailable", r.text(t, "error_code"))
	require.NotEmpty(t, r.header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, w.as(t, own, ask("SELECT 1")).status)
	health := w.get(t, "/health")
	require.Equal(t, http.StatusOK, health.status)
	require.Equal(t, "degraded", health.json(t)["agent_oidc"].(map[string]any)["status"])
	require.Contains(t, string(w.get(t, "/metrics").body), "gate_agent_oidc_ok 0")

	require.Equal(t, http.StatusOK, w.do(t, http.MethodGet, "/audit", nil, bearer(token)).status, "an agent's credential is no wrong operator token")
	require.Equal(t, http.StatusUnauthorized, w.do(t, http.MethodGet, "/audit", nil, bearer("no-JWT-and-no-operator-either")).status)
	for _, path := range []string{"/subjects", "/approvals/purge", "/policy/activate"} {
		require.Equal(t, http.StatusUnauthorized, w.do(t, http.MethodPost, path, []byte(`{}`), bearer(token)).status, path)
	}
	require.Equal(t, http.StatusUnauthorized, w.do(t, http.MethodGet, "/subjects", nil).status, "anybody sees the subjects")
	require.Equal(t, http.StatusUnauthorized, w.do(t, http.MethodGet, "/subjects", nil, "X-Api-Key: "+w.key).status, "a project's key sees the subjects of all")
	require.Equal(t, http.StatusOK, w.query(t, ask("SELECT 1")).status)
	for _, header := range []string{"X-Authorization: Bearer ", "Proxy-Authorization: Bearer ", "X-Agent-Token: ", "X-GATE-Operator-Token: ", "Cookie: token="} { // it is not taken for absent
		require.Equal(t, http.StatusUnauthorized, w.do(t, http.MethodPost, "/query", mustJSON(t, ask("SELECT 1")), header+token).status, header)
	}
	require.Equal(t, http.StatusOK, w.do(t, http.MethodPost, "/query", mustJSON(t, ask("SELECT 1")), "X-Assertion: "+i.Token("client-7", map[string]any{"iss": "https://proxy.example.com"})).status, "one of somebody else's issuer is none of ours")
	spaced := strings.Replace(token, token[:strings.Index(token, ".")], base64.RawURLEncoding.EncodeToString([]byte(`{ "alg":"ES256"}`)), 1)
	require.Equal(t, "issuer_unavailable", w.as(t, spaced, ask("SELECT 1")).text(t, "error_code"), "a JWT begins with a brace, and with white space behind it")

	for _, bad := range [][]string{{"GATE_AGENT_OIDC_ISSUER=https://login.example.com"}, {"GATE_AGENT_OIDC_AUDIENCE=x"}, {"GATE_AGENT_OIDC_AUDIENCE=x", "GATE_AGENT_OIDC_ISSUER=http://login.example.com"},
		{"GATE_MCP_PUBLIC_URL=https://gate.example.com/other"}, {"GATE_AGENT_OIDC_CA_BUNDLE_PATH=/nowhere"},
		{"GATE_AGENT_OIDC_ISSUER=https://login.example.com", "GATE_AGENT_OIDC_AUDIENCE=x", "GATE_OPERATOR_TOKEN=eyJhbGciOiJub25lIn0.e30.x"}} {
		code, _, errs := runCLI(t, newGateDir(t, []byte(openAgents)).environ(bad...), "", "config")
		require.Equal(t, exitConfigured, code, bad)
		require.Contains(t, errs, strings.SplitN(bad[len(bad)-1], "=", 2)[0], bad)
	}
}

func TestSubjectsAreBoundOnTheCommandLine(t *testing.T) {
	t.Parallel()
	i := issuer.New(t)
	w := startDoor(t, trusting(t, i)...)
	id, _ := w.register(t, "invoice-bot")
	run := func(args ...string) string {
		t.Helper()
		code, out, errs := w.agents(t, "", args...)
		require.Zero(t, code, "%s: %s", args, errs)
		return out
	}
	require.Contains(t, run("subjects"), "No bound subject fits.")
	out := run("bind-subject", "invoice-bot", "client-7", "--reason", "the worker in the shop's cluster")
	require.Contains(t, out, fmt.Sprintf("speak for invoice-bot (%s)", id))
	subject := out[:strings.Index(out, " ")]
	code, _, errs := w.agents(t, "", "bind-subject", id, "client-8")
	require.NotZero(t, code)
	require.Contains(t, errs, "reason")
	require.Contains(t, run("subjects", "--agent", "invoice-bot"), "client-7")
	require.Equal(t, http.StatusOK, w.as(t, i.Token("client-7"), ask("SELECT 1")).status)
	require.Contains(t, run("unbind-subject", subject, "--reason", "gone"), "speak for nobody")
	require.Contains(t, run("subjects", "--status", "all", "--json"), `"unbound_reason":"gone"`)
	require.Equal(t, "token_revoked", w.refused(t, i.Token("client-7")))
	require.Contains(t, run("bind-subject", id, "client-7", "--reason", "back"), "are not good")
}

// What brings tokens of an hour writes the next one into the file of the last.
func TestTheBridgeShowsTheTokenThatItsFileHasNow(t *testing.T) {
	t.Parallel()
	i := issuer.New(t)
	w := startDoor(t, trusting(t, i)...)
	id, _ := w.register(t, "invoice-bot")
	w.bind(t, id, "client-7")
	file := w.file("agent-token")
	write := func(token string) { require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600)) }
	write(i.Token("client-7"))
	cmd := exec.Command("gate", "mcp", "--url", w.base)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GATE_AGENT_TOKEN_FILE=" + file}
	s := connected(t, &mcp.CommandTransport{Command: cmd}, "", make(chan any, 100))
	read := map[string]any{"sql": "SELECT 1"}
	require.Equal(t, "completed", use(t, s, "sql", read).Status)
	write(i.Token("client-7", map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}))
	_, err := tryUse(t.Context(), s, "sql", read)
	require.ErrorContains(t, err, "token_expired")
	write(i.Token("client-7"))
	require.Equal(t, "completed", use(t, s, "sql", read).Status)
}
