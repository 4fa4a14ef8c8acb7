package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/http/mcpapi"
)

// A sent is a request with a body that is taken.
type sent struct{ method, path, header, body string }

// What docs/openapi.yaml requires is required, and what it does not take is not
// taken as a default: in every body, each required field is left out and set to
// null, each text that may not be empty is set to "", and each field gets a value
// of another type. All are refused and change nothing; the body as it is is taken.
func TestNoFieldOfAnyBodyDefaultsSilently(t *testing.T) {
	t.Parallel()
	w := startAgents(t, nobodysIssuer...)
	contract, err := openAPI()
	require.NoError(t, err)
	key := "X-Api-Key: " + w.key
	agent, _ := w.register(t, "bot")
	policyID := w.rule(t, "log", "")
	old := w.made(t, "/agents/"+agent+"/tokens", `{}`)["token_id"].(string)
	made := w.made(t, "/tools", `{"name":"sum","type":"function","input_schema":{"type":"object"}}`)["id"].(string)
	held := w.query(t, ask("DELETE FROM orders WHERE id = 1")).text(t, "approval_id")
	next := strings.Replace(openPolicy, "version: 1.0.0", "version: 1.1.0", 1) + "  - { id: takes, decision: REQUIRE_APPROVAL, reason_code: takes_grants, match: { query_types: [MERGE] }, approval: { grants: true } }\n"
	candidate := w.operate(t, "/policy/candidates", map[string]any{"document": next}).json(t)
	active := w.get(t, "/policy/status").text(t, "hash")

	tool := `{"name":"run","type":"http","description":"d","version":"1","enabled":true,
		"endpoint":{"url":"https://tools.example.com/t","probe":{"method":"HEAD","path":"/up","expect_status":[204]}},"auth":{"type":"header","header":"X-Token","secret":"S"},
		"annotations":{"read_only":true},"agents":[],"metadata":{"owner":"o"}}`
	rules := `{"name":"p","enabled":true,"mode":"observe","rules":[{"id":"a","action":"block","condition":"sql.class == \"write\"","message":"m","reason_code":"r"}]}`
	seen, grant, subject := []string{}, "", ""
	for _, s := range []sent{
		{"POST", "/query", "", `{"actor":"a","app":"b","tenant":"c","role":"d","host":"e","env":"prod","sql":"SELECT 1","execution_profile":"default"}`},
		{"POST", "/approvals/" + held + "/resolve", operatorHeader, `{"decision":"reject","note":"n"}`},
		{"POST", "/policy/validate", operatorHeader, `{"policy_version":"active"}`},
		{"POST", "/policy/diff", operatorHeader, `{"base":"active","target":"open@1.1.0","replay":{"last":"1h","limit":10}}`},
		{"POST", "/policy/dry-run", operatorHeader, `{"sql":"SELECT 1","mode":"enforce","policy_version":"active","compare_to":"open@1.1.0"}`},
		{"POST", "/policy/candidates", operatorHeader, fmt.Sprintf(`{"document":%q,"note":"n"}`, next)},
		{"POST", "/policy/activate", operatorHeader, fmt.Sprintf(`{"policy_version":"open@1.1.0","expected_hash":%q,"expected_active_hash":%q,"reason":"r"}`, candidate["hash"], active)},
		{"POST", "/grants", operatorHeader, fmt.Sprintf(`{"agent_id":%q,"condition":"class == \"write\"","until":%q,"uses":1,"rows":1,"reason":"r"}`, agent, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))},
		{"POST", "/grants/replay", operatorHeader, fmt.Sprintf(`{"agent_id":%q,"condition":"class == \"write\"","seconds":1,"replay":{"last":"1h","limit":10}}`, agent)},
		{"POST", "/grants/GRANT/revoke", operatorHeader, `{"note":"n"}`},
		{"POST", "/subjects", operatorHeader, fmt.Sprintf(`{"agent_id":%q,"subject":"client-7","scopes":["gate:query"],"reason":"r"}`, agent)},
		{"POST", "/subjects/SUBJECT/unbind", operatorHeader, `{"reason":"r"}`},
		{"POST", "/policy/rollback", operatorHeader, fmt.Sprintf(`{"policy_version":"open@1.0.0","expected_active_hash":%q,"reason":"r"}`, candidate["hash"])},
		{"POST", "/audit/evidence", operatorHeader, `{"start_seq":1,"end_seq":2,"reason":"r"}`},
		{"POST", "/v1/agents", key, `{"name":"n","type":"t","config":{"model":"m","max_tokens":1,"temperature":1},"metadata":{"a":"b"},"issue_token":true,"token_expires_in_days":1}`},
		{"PUT", "/v1/agents/" + agent, key, `{"name":"n","type":"t","config":{"model":"m"},"metadata":{"a":"b"},"status":"active"}`},
		{"POST", "/v1/agents/" + agent + "/tokens", key, fmt.Sprintf(`{"expires_in_days":1,"scopes":["gate:query"],"replaces":%q,"grace_seconds":1}`, old)},
		{"POST", "/v1/policies", key, rules},
		{"PUT", "/v1/policies/" + policyID, key, rules},
		{"POST", "/v1/policies/" + policyID + "/apply", key, fmt.Sprintf(`{"agent_id":%q,"priority":"high"}`, agent)},
		{"POST", "/v1/tools", key, tool},
		{"PUT", "/v1/tools/" + made, key, `{"name":"sum","type":"function","input_schema":{"type":"object"},"auth":{"type":"none"}}`},
		{"POST", "/v1/tools/" + made + "/verify", key, `{"timeout_ms":500}`},
		{"POST", "/v1/telemetry", key, fmt.Sprintf(`{"events":[{"id":"e","type":"tool_call","agent_id":%q,"session_id":"s","name":"n","status":"ok","duration_ms":1,
			"model":{"provider":"p","name":"m"},"usage":{"input_tokens":1,"cost_usd":"0.1"},"tool":{"id":"t","arguments_sha256":%q},"sql":{"request_id":"r"},"error":{"type":"t","message":"m"},"attributes":{"a":1}}]}`, agent, strings.Repeat("0", 64))},
	} {
		s.path = strings.NewReplacer("GRANT", grant, "SUBJECT", subject).Replace(s.path)
		template, found := contract.route(strings.ToLower(s.method), s.path)
		require.True(t, found, s.path)
		seen = append(seen, s.method+" "+template)
		schema := []string{"paths", template, strings.ToLower(s.method), "requestBody", "content", jsonType, "schema"}
		var whole any
		require.NoError(t, json.Unmarshal([]byte(s.body), &whole))
		head := w.get(t, "/health").json(t)["log"].(map[string]any)["seq"]
		spoiled := contract.spoiled(whole, schema)
		require.NotEmpty(t, spoiled, s.path)
		for _, name := range slices.Sorted(maps.Keys(spoiled)) {
			body, err := json.Marshal(spoiled[name])
			require.NoError(t, err)
			r, err := w.try(s.method, s.path, body, headers(s.header)...)
			if err != nil { // taken, where the document does not
				t.Errorf("%s: %v", name, err)
				continue
			}
			if slices.Contains([]int{400, 422}, r.status) {
				require.Contains(t, []string{"validation_failed", "invalid_json", "policy_invalid", "all_events_rejected"}, r.text(t, "error_code"), "%s %s %s", s.path, name, r.body)
				continue
			}
			t.Errorf("%s %s: %s is answered with %d: %s\n%s", s.method, s.path, name, r.status, r.body, body)
		}
		if s.path != "/query" { // whose refusals are events
			require.Equal(t, head, w.get(t, "/health").json(t)["log"].(map[string]any)["seq"], s.path)
		}
		r := w.do(t, s.method, s.path, []byte(s.body), headers(s.header)...)
		require.Equal(t, 2, r.status/100, "%s %s: %d %s", s.method, s.path, r.status, r.body)
		if template == "/grants" {
			grant = r.text(t, "grant_id")
		}
		if template == "/subjects" {
			subject = r.text(t, "subject_id")
		}
	}
	for _, operation := range contract.documented() {
		method, path, _ := strings.Cut(operation, " ")
		if path == mcpapi.Path { // JSON-RPC: see TestOddMessagesAreAnswered
			continue
		}
		if len(contract.object("paths", path, strings.ToLower(method), "requestBody", "content", jsonType, "schema", "properties")) > 0 && path != "/audit/verify" {
			require.Contains(t, seen, operation)
		}
	}
}

func headers(one string) []string {
	if one == "" {
		return nil
	}
	return []string{one}
}

// spoiled gives variants of a value that its schema does not take, by what was
// done to it.
func (d *contractDoc) spoiled(value any, schema []string) map[string]any {
	all := map[string]any{}
	for i := range d.choices(schema) {
		maps.Copy(all, d.spoiled(value, d.choices(schema)[i]))
	}
	switch v := value.(type) {
	case map[string]any:
		required, _ := d.object(schema...)["required"].([]any)
		for name, field := range v {
			put := func(what string, to any, there bool) {
				other := maps.Clone(v)
				if delete(other, name); there {
					other[name] = to
				}
				all[what] = other
			}
			at := under(schema, "properties", name)
			if d.object(at...) == nil {
				continue
			}
			if slices.Contains(required, any(name)) {
				put("without "+name, nil, false)
				put("null for "+name, nil, true)
			}
			if _, text := field.(string); text && d.checkValue("", at...) != nil {
				put("an empty "+name, "", true)
			}
			for _, other := range []any{json.Number("7"), []any{"x"}, map[string]any{"x": true}} {
				if d.checkValue(other, at...) != nil {
					put(fmt.Sprintf("%T for %s", other, name), other, true)
				}
			}
			for what, inner := range d.spoiled(field, at) {
				put(name+": "+what, inner, true)
			}
		}
	case []any:
		for i := range v {
			for what, inner := range d.spoiled(v[i], under(schema, "items")) {
				other := slices.Clone(v)
				other[i] = inner
				all[strconv.Itoa(i)+": "+what] = other
			}
		}
	}
	return all
}

// choices are the schemas of oneOf.
func (d *contractDoc) choices(schema []string) (list [][]string) {
	value, _ := d.at(under(schema, "oneOf")...)
	of, _ := value.([]any)
	for i := range of {
		list = append(list, under(schema, "oneOf", strconv.Itoa(i)))
	}
	return list
}
