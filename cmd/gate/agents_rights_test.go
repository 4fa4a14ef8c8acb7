package main

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
)

// allTokenScopes are all that a token can have.
const allTokenScopes = `["agents:read","telemetry:write","events:read","tools:read","gate:query","policies:read","metrics:read","usage:read","tools:verify"]`

// startWithKeys is a gate whose project shop has a second key with the scopes given.
func startWithKeys(t *testing.T, scopes string) (w *agentWorld, narrow string) {
	t.Helper()
	w, second := startAgents(t), agentctl.NewSecret(agentctl.KeyPrefix)
	w.end(t)
	w.testGate = startGate(t, w.gateDir, "GATE_PROJECT_KEYS=shop/ops="+w.key+",shop/narrow="+second+";"+scopes)
	return w, "X-Api-Key: " + second
}

// A right reaches as far as the credential that it came by, whatever stands beside it.
func TestAKeyBesideATokenDoesNotWidenWhatTheTokenReaches(t *testing.T) {
	t.Parallel()
	w, narrow := startWithKeys(t, "telemetry:write")
	own, token := w.register(t, "mallory")
	token = w.made(t, "/agents/"+own+"/tokens", `{"scopes":`+allTokenScopes+`}`)["token"].(string)
	other, victims := w.register(t, "victim")
	policy := w.rule(t, "block", `sql.class == "write"`)
	w.apply(t, policy, other)
	require.Equal(t, http.StatusForbidden, w.as(t, victims, ask(paying)).status)
	_, sent := w.sent(t, bearer(victims), `[{"type":"error","error":{"type":"x","message":"a secret of the victim"}}]`)
	require.Equal(t, 1, sent.Accepted)
	tool := w.made(t, "/tools", fmt.Sprintf(`{"name":"run","type":"function","input_schema":{"type":"object"},"agents":[%q]}`, other))["id"].(string)
	event := w.listed(t, "&agent_id="+other)[0]["event_id"].(string)

	for _, path := range []string{"/agents", "/agents/" + other, "/agents/" + other + "/tokens", "/policies", "/policies/" + policy, "/policies?agent_id=" + other,
		"/metrics", "/metrics?group_by=agent_id", "/metrics?agent_id=" + other, "/events", "/events?agent_id=" + other, "/events/" + event, "/usage", "/usage?group_by=agent_id", "/tools", "/tools/" + tool} {
		get := func(headers ...string) reply { return w.do(t, http.MethodGet, "/v1"+path, nil, headers...) }
		alone, both := get(bearer(token)), get(bearer(token), narrow)
		require.Equal(t, http.StatusForbidden, get(narrow).status, path)
		require.Equal(t, alone.status, both.status, "%s: %s", path, both.body)
		for _, theirs := range []string{"a secret of the victim", `"name":"victim"`, `"group":{"agent_id":"` + other, `"agent_id":"` + other, `"id":"` + tool, `"id":"` + policy} {
			if both.status == http.StatusOK {
				require.NotContains(t, string(both.body), theirs, path)
			}
		}
		require.Equal(t, http.StatusOK, get(bearer(token), w.projectKey()).status, "a key with the scope opens the project: %s", path)
	}
	verify := w.do(t, http.MethodPost, "/v1/tools/"+tool+"/verify", nil, bearer(token), narrow)
	require.Equal(t, "tool_not_found", verify.text(t, "error_code"), "%s", verify.body)

	// And what the key alone may do reaches the project with a token beside it too.
	_, sent = w.sent(t, narrow, fmt.Sprintf(`[{"type":"heartbeat","agent_id":%q},{"type":"heartbeat"}]`, other), bearer(token))
	require.Equal(t, 2, sent.Accepted)
}

// A list that an agent may not have is refused, and never answered with another one.
func TestAFilterForAnotherAgentIsRefused(t *testing.T) {
	t.Parallel()
	w, _ := startWithKeys(t, "agents:read")
	own, _ := w.register(t, "bot")
	token := w.made(t, "/agents/"+own+"/tokens", `{"scopes":`+allTokenScopes+`}`)["token"].(string)
	other, _ := w.register(t, "victim")
	w.apply(t, w.rule(t, "block", `sql.class == "write"`), own)
	for _, path := range []string{"/policies", "/events", "/metrics", "/tools"} {
		refused := w.do(t, http.MethodGet, "/v1"+path+"?agent_id="+other, nil, bearer(token))
		require.Equal(t, http.StatusForbidden, refused.status, "%s: %s", path, refused.body)
		require.Equal(t, "agent_mismatch", refused.text(t, "error_code"), path)
		if path == "/events" {
			followed := w.do(t, http.MethodGet, "/v1/events?agent_id="+other, nil, bearer(token), "Accept: text/event-stream")
			require.Equal(t, "agent_mismatch", followed.text(t, "error_code"), "a stream is refused before it begins")
		}
		for _, query := range []string{"", "?agent_id=" + own} {
			r := w.do(t, http.MethodGet, "/v1"+path+query, nil, bearer(token))
			require.Equal(t, http.StatusOK, r.status, "%s%s: %s", path, query, r.body)
		}
	}
}

func TestATokenGivesTheProjectNothingBesideAKeyWithoutIt(t *testing.T) {
	t.Parallel()
	w, narrow := startWithKeys(t, "agents:read")
	_, token := w.register(t, "mallory")
	other, _ := w.register(t, "victim")
	_, sent := w.sent(t, bearer(token), fmt.Sprintf(`[{"type":"heartbeat"},{"type":"heartbeat","agent_id":%q}]`, other), narrow)
	require.Equal(t, 1, sent.Accepted)
	require.Equal(t, "agent_mismatch", sent.Results[1].ErrorCode)
}

func TestAKeyGivesNoScopeThatItLacks(t *testing.T) {
	t.Parallel()
	w, narrow := startWithKeys(t, "agents:write+tokens:write+usage:read")
	id, token := w.register(t, "bot")
	rich := w.made(t, "/agents/"+id+"/tokens", `{"scopes":`+allTokenScopes+`}`)["token"].(string)
	issue := func(body string, headers ...string) reply {
		return w.do(t, http.MethodPost, "/v1/agents/"+id+"/tokens", []byte(body), append(headers, narrow)...)
	}
	for _, headers := range [][]string{nil, {bearer(token)}, {bearer(rich)}} {
		for _, scope := range []string{"policies:read", "metrics:read", "tools:verify"} {
			r := issue(fmt.Sprintf(`{"scopes":["gate:query",%q]}`, scope), headers...)
			require.Equal(t, http.StatusForbidden, r.status, "%s: %s", scope, r.body)
			require.Equal(t, scope, r.json(t)["details"].(map[string]any)["required_scope"])
		}
	}
	require.Equal(t, http.StatusCreated, issue(`{"scopes":["usage:read","gate:query"]}`).status)
	require.Equal(t, http.StatusCreated, issue(`{}`).status, "what every token has by default")
}
