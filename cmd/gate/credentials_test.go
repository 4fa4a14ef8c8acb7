package main

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/eventlog/event"
)

// A credential in whatever shape says that somebody relies on it: what is neither
// an agent's token nor an operator's is refused, and the statement does not run
// without the rules of the agent.
func TestACredentialInAnotherShapeIsNotTakenForAbsent(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	w.apply(t, w.rule(t, "block", ""), id)
	basic := func(text string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(text))
	}
	shapes := []string{basic(token + ":"), basic("x:" + token), "Authorization: Bearer", "Authorization: Bearer ", "Authorization:", "Authorization: " + strings.TrimPrefix(token, "wga_"),
		bearer(strings.ToUpper(token)), bearer(strings.TrimPrefix(token, "wga_")), bearer(`"` + token + `"`), bearer("null"), bearer("$TOKEN"), "Authorization: Digest username=x", "X-Api-Key: " + w.key,
		"X-Api-Key: " + strings.TrimPrefix(token, "wga_"), "X-Api-Key: "}
	for _, mode := range []string{"live", "preview"} {
		for _, header := range shapes {
			line := strings.TrimSuffix(header, ":")
			if !strings.Contains(header, ": ") {
				header = line + ": "
			}
			r := w.do(t, http.MethodPost, "/query?mode="+mode, mustJSON(t, ask(paying)), header)
			require.Equal(t, http.StatusUnauthorized, r.status, "%q: %s", header, r.body)
			require.Equal(t, "credentials_invalid", r.text(t, "error_code"), "%q", header)
			require.NotContains(t, string(r.body), strings.TrimPrefix(token, "wga_"))
		}
	}
	require.Len(t, w.eventsOf(t, event.TypeQueryRejected), len(shapes))
	require.Equal(t, "new", w.value(t, "SELECT status FROM orders WHERE id = 1"))

	beside := w.do(t, http.MethodPost, "/query", mustJSON(t, ask(paying)), bearer(token), w.projectKey())
	require.Equal(t, "agent_policy_blocked", beside.text(t, "reason_code"), "a key beside the token takes nothing away")
	for _, good := range [][]string{nil, {bearer(operatorTestToken)}, {operatorTestHeader}, {operatorTestHeader, bearer(operatorTestToken)}} {
		require.Equal(t, http.StatusOK, w.do(t, http.MethodPost, "/query", mustJSON(t, ask(paying)), good...).status, "%q", good)
	}

	// Under /v1 a key beside it would answer for the whole project.
	for _, header := range []string{basic(token + ":"), "Authorization: " + token, "Authorization: Bearer", "Authorization: Token " + token} {
		r := w.v1(t, http.MethodGet, "/agents", "", header)
		require.Equal(t, http.StatusUnauthorized, r.status, "%q: %s", header, r.body)
		require.Equal(t, "credentials_invalid", r.text(t, "error_code"))
	}
}

// Where a token only adds something, guessing it leaves the same trace as
// where it is needed.
func TestAWrongOperatorTokenIsEvidenceAtEveryEndpointThatLooksAtIt(t *testing.T) {
	for _, line := range []string{"GET /audit", "GET /audit/stream", "POST /audit/evidence", "POST /audit/verify", "GET /evidence/verify", "POST /query", "POST /approvals/purge"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			g := startShop(t, "GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1", "GATE_RATE_LIMIT_BURST=2")
			g.client = &http.Client{Timeout: startPatience} // a stream that opens has no end
			method, path, _ := strings.Cut(line, " ")
			body := map[string]string{"/audit/evidence": `{"start_seq":1,"end_seq":1}`, "/audit/verify": `{"audit_file":"` + g.file("audit.log") + `"}`, "/query": string(mustJSON(t, ask("SELECT 1"))), "/approvals/purge": "{}"}[path]
			statuses := []int{401, 401, 429}
			if path == "/query" { // a statement is anybody's then, and counts itself
				statuses = []int{200, 429, 429}
			}
			for i, status := range statuses {
				r := g.do(t, method, path, []byte(body), "X-GATE-Operator-Token: wrong-"+strings.Repeat("x", i))
				require.Equal(t, status, r.status, "%s", r.body)
				if status == 401 {
					require.Equal(t, "unauthorized_operator", r.text(t, "error_code"))
				}
			}
			require.NotEmpty(t, g.eventsOf(t, event.TypeOperatorAuthFailed))
		})
	}
}

func TestAnAgentsTokenIsNoWrongOperatorToken(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	for range 3 {
		require.Equal(t, http.StatusOK, g.do(t, http.MethodGet, "/audit", nil, bearer(agentctl.NewSecret(agentctl.TokenPrefix))).status)
	}
	require.Empty(t, g.eventsOf(t, event.TypeOperatorAuthFailed))
}
