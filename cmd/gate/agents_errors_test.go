package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/commands/fault"
)

// agentErrors are the codes of /v1 (spec/v1.md part 4).
func agentErrors(t *testing.T) []raise {
	t.Helper()
	w := startAgents(t)
	foreign := agentctl.NewSecret(agentctl.KeyPrefix)
	w.end(t)
	w.testGate = startGate(t, w.gateDir, append([]string{"GATE_PROJECT_KEYS=shop/ops=" + w.key + ",other/ops=" + foreign}, nobodysIssuer...)...)
	id, token := w.register(t, "bot")
	other, _ := w.register(t, "other")
	gone, revoked := w.register(t, "gone")
	require.Equal(t, 200, w.v1(t, "DELETE", "/agents/"+gone, "").status)
	full, _ := w.register(t, "full")
	for range 9 {
		w.made(t, "/agents/"+full+"/tokens", `{}`)
	}
	old := w.made(t, "/agents/"+id+"/tokens", `{}`)
	w.made(t, "/agents/"+id+"/tokens", fmt.Sprintf(`{"replaces":%q}`, old["token_id"]))
	policyID := w.rule(t, "block", "")
	asleep := w.made(t, "/policies", `{"name":"off","enabled":false,"rules":[{"action":"block","condition":""}]}`)["id"].(string)

	w.bind(t, id, "client-7")

	key, bearer := "X-Api-Key: "+w.key, "Authorization: Bearer "
	body := `{"name":"n","type":"t"}`
	return []raise{
		{fault.CredentialsMissing, 401, "", calls(w.testGate, "GET", "/v1/agents", "")},
		{fault.CredentialsInvalid, 401, "a key with a slip", calls(w.testGate, "GET", "/v1/agents", "", key[:len(key)-1]+"-")},
		{fault.CredentialsInvalid, 401, "an unknown key", calls(w.testGate, "GET", "/v1/agents", "", "X-Api-Key: "+agentctl.NewSecret(agentctl.KeyPrefix))},
		{fault.CredentialsInvalid, 401, "a good key beside a bad token", calls(w.testGate, "GET", "/v1/agents", "", key, bearer+"wga_x")},
		{fault.TokenExpired, 401, "replaced without grace", calls(w.testGate, "GET", "/v1/agents", "", bearer+old["token"].(string))},
		{fault.TokenRevoked, 401, "of a deactivated agent", calls(w.testGate, "GET", "/v1/agents", "", bearer+revoked)},
		{fault.InsufficientScope, 403, "", calls(w.testGate, "POST", "/v1/agents", body, bearer+token)},
		{fault.AgentMismatch, 403, "", calls(w.testGate, "GET", "/v1/agents/"+other, "", bearer+token)},
		{fault.CredentialMismatch, 403, "", calls(w.testGate, "GET", "/v1/agents", "", bearer+token, "X-Api-Key: "+foreign)},
		{fault.AgentNotFound, 404, "of another project", calls(w.testGate, "GET", "/v1/agents/"+id, "", "X-Api-Key: "+foreign)},
		{fault.PolicyNotFound, 404, "of agents", calls(w.testGate, "GET", "/v1/policies/pol_x", "", key)},
		{fault.TokenNotFound, 404, "", calls(w.testGate, "DELETE", "/v1/agents/"+id+"/tokens/tok_x", "", key)},
		{fault.EventNotFound, 404, "", calls(w.testGate, "GET", "/v1/events/evt_x", "", key)},
		{fault.ApplicationNotFound, 404, "", calls(w.testGate, "DELETE", "/v1/policies/"+policyID+"/apply?agent_id="+id, "", key)},
		{fault.RevisionMismatch, 412, "", calls(w.testGate, "PUT", "/v1/agents/"+id, body, key, `If-Match: "7"`)},
		{fault.AgentInactive, 409, "update", calls(w.testGate, "PUT", "/v1/agents/"+gone, body, key)},
		{fault.AgentInactive, 409, "apply", calls(w.testGate, "POST", "/v1/policies/"+policyID+"/apply", fmt.Sprintf(`{"agent_id":%q}`, gone), key)},
		{fault.PolicyDisabled, 409, "", calls(w.testGate, "POST", "/v1/policies/"+asleep+"/apply", fmt.Sprintf(`{"agent_id":%q}`, id), key)},
		{fault.TokenLimitExceeded, 409, "", calls(w.testGate, "POST", "/v1/agents/"+full+"/tokens", "", key)},
		{fault.SubjectNotFound, 404, "", calls(w.testGate, "GET", "/subjects/sub_x", "", operatorHeader)},
		{fault.SubjectNotFound, 404, "unbind", calls(w.testGate, "POST", "/subjects/sub_x/unbind", `{"reason":"r"}`, operatorHeader)},
		{fault.SubjectBound, 409, "", calls(w.testGate, "POST", "/subjects", fmt.Sprintf(`{"agent_id":%q,"subject":"client-7","reason":"r"}`, other), operatorHeader)},
		{fault.AgentNotFound, 404, "of a subject", calls(w.testGate, "POST", "/subjects", `{"agent_id":"agt_x","subject":"client-8","reason":"r"}`, operatorHeader)},
		{fault.AgentInactive, 409, "of a subject", calls(w.testGate, "POST", "/subjects", fmt.Sprintf(`{"agent_id":%q,"subject":"client-8","reason":"r"}`, gone), operatorHeader)},
		{fault.IssuerUnavailable, 503, "", calls(w.testGate, "GET", "/v1/agents", "", bearer+"eyJhbGciOiJFUzI1NiIsImtpZCI6IngifQ.e30.AAAA")},
		{fault.PolicyInvalid, 422, "of agents", calls(w.testGate, "POST", "/v1/policies", `{"name":"n","rules":[{"action":"explode"}]}`, key)},
		{fault.PolicyInvalid, 422, "without a condition", calls(w.testGate, "POST", "/v1/policies", `{"name":"n","rules":[{"action":"block"}]}`, key)},
		{fault.CursorInvalid, 400, "", calls(w.testGate, "GET", "/v1/agents?cursor=AAAA", "", key)},
		{fault.CursorInvalid, 400, "of events", calls(w.testGate, "GET", "/v1/events?cursor=AAAA", "", key)},
		{fault.InvalidJSON, 400, "of an agent", calls(w.testGate, "POST", "/v1/agents", `{"nam":"x"}`, key)},
		{fault.ValidationFailed, 400, "of an agent", calls(w.testGate, "POST", "/v1/agents", `{"config":{"temperature":3}}`, key)},
		{fault.UnsupportedMediaType, 415, "of an agent", calls(w.testGate, "POST", "/v1/agents", body, key, "Content-Type: text/plain")},
		{fault.OversizedRequest, 413, "of an agent", calls(w.testGate, "POST", "/v1/agents", `{"name":"`+strings.Repeat("x", 2<<20)+`"}`, key)},
		{fault.AllEventsRejected, 422, "", calls(w.testGate, "POST", "/v1/telemetry", `{"events":[{"type":"x"}]}`, key)},
		{fault.ValidationFailed, 400, "an empty batch", calls(w.testGate, "POST", "/v1/telemetry", `{"events":[]}`, key)},
		{fault.MethodNotAllowed, 405, "under /v1", calls(w.testGate, "PATCH", "/v1/agents", body, key)},
	}
}
