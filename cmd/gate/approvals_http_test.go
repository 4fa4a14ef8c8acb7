package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const operatorHeader = "X-GATE-Operator-Token: " + operatorTestToken

// approvalFields are the fields of an approval record (spec/gate.md part 2.4,
// spec/decisions.md part 5).
var approvalFields = []string{"approval_id", "sql", "classification", "context", "status", "expires_at", "resolved_at",
	"resolution", "note", "resolved_by", "created_at", "fingerprint", "policy_version", "reason_code", "rule_id", "max_rows",
	"principal", "agent_id", "impact", "execution_id", "used_at"}

// post sends a JSON text as the operator.
func (g *testGate) post(t testing.TB, path, body string) reply {
	t.Helper()
	return g.do(t, http.MethodPost, path, []byte(body), operatorHeader)
}

// record reads one approval.
func (g *testGate) record(t testing.TB, id string) map[string]any {
	t.Helper()
	r := g.get(t, "/approvals/"+id)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	return r.json(t)
}

// requireFault holds an answer against a status and a code of the contract.
func requireFault(t testing.TB, r reply, status int, code string) map[string]any {
	t.Helper()
	fields := r.json(t)
	require.Equal(t, []any{status, code}, []any{r.status, fields["error_code"]}, "%s", r.body)
	require.NotEmpty(t, fields["message"])
	require.Regexp(t, `^err_[0-9a-f-]{36}$`, fields["error_id"])
	details, _ := fields["details"].(map[string]any)
	return details
}

func moment(t testing.TB, value any) time.Time {
	t.Helper()
	text, _ := value.(string)
	at, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(text, "Z"), "UTC: %s", text)
	return at
}

func TestAnApprovalRecordThroughItsLife(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	sql := "INSERT INTO held_notes\r\n\tVALUES ('naïve \u202f 🙂 \"x\"') -- as it came "
	request := ask(sql).with("session_id", "s-1")
	held := g.query(t, request)
	require.Equal(t, http.StatusAccepted, held.status, "%s", held.body)
	id := held.text(t, "approval_id")
	require.Regexp(t, `^apr_[0-9a-f-]{36}$`, id)

	pending := g.record(t, id)
	for _, field := range approvalFields {
		require.Contains(t, pending, field)
	}
	require.Equal(t, sql, pending["sql"], "the exact text")
	require.Equal(t, held.json(t)["classification"], pending["classification"])
	require.Equal(t, map[string]any{"actor": "ana", "app": "shop", "tenant": "acme", "role": "clerk", "host": "desk-1", "env": "prod", "session_id": "s-1"}, pending["context"])
	require.Equal(t, []any{"pending", nil, nil, nil, nil, nil, nil, nil, nil, nil}, pick(pending, "status", "resolution", "resolved_at", "resolved_by", "note", "execution_id", "used_at", "principal", "agent_id", "impact"))
	require.Equal(t, map[string]any{"layer": "policy", "policy_version": "notes@1.0.0", "rule_id": "held-notes"}, pending["decided_by"])
	require.Equal(t, []any{"notes_are_held", "held-notes", "notes@1.0.0", 5.0}, pick(pending, "reason_code", "rule_id", "policy_version", "max_rows"))
	require.Equal(t, held.text(t, "fingerprint"), pending["fingerprint"])
	require.Equal(t, held.text(t, "approval_expires_at"), pending["expires_at"])
	require.Equal(t, 600*time.Second, moment(t, pending["expires_at"]).Sub(moment(t, pending["created_at"])), "the rule's TTL, from creation")

	resolved := g.post(t, "/approvals/"+id+"/resolve", `{"decision":"approve","note":"looks right – ✓"}`)
	require.Equal(t, http.StatusOK, resolved.status, "%s", resolved.body)
	require.Equal(t, g.record(t, id), resolved.json(t), "resolve answers the record")
	require.Equal(t, []any{"resolved", "approve", "looks right – ✓", "operator", nil}, pick(resolved.json(t), "status", "resolution", "note", "resolved_by", "execution_id"))
	evidence := g.get(t, "/audit?event_type=approval_resolved&approval_id="+id).json(t)["items"].([]any)
	require.Len(t, evidence, 1, "the evidence is there before the answer")

	ran := g.query(t, request.with("approval_id", id))
	require.Equal(t, http.StatusOK, ran.status, "%s", ran.body)
	used := g.record(t, id)
	require.Equal(t, []any{"resolved", "approve", ran.text(t, "execution_id")}, pick(used, "status", "resolution", "execution_id"))
	require.False(t, moment(t, used["used_at"]).Before(moment(t, used["resolved_at"])))
	execution := g.get(t, "/executions/"+ran.text(t, "execution_id")).json(t)
	require.Equal(t, []any{id, "success"}, pick(execution, "approval_id", "execution_state"))
}

func pick(fields map[string]any, names ...string) []any {
	values := make([]any, len(names))
	for i, name := range names {
		values[i] = fields[name]
	}
	return values
}

func TestAResolutionIsFinal(t *testing.T) {
	t.Parallel()
	for decision, retried := range map[string]string{"approve": "", "reject": "approval_rejected"} {
		t.Run(decision, func(t *testing.T) {
			g := startGate(t, newNotes(t))
			id := g.hold(t, insertHeld("final"))
			first := g.post(t, "/approvals/"+id+"/resolve", fmt.Sprintf(`{"decision":%q,"note":"mine"}`, decision))
			require.Equal(t, http.StatusOK, first.status, "%s", first.body)
			for _, again := range []string{"approve", "reject"} {
				details := requireFault(t, g.resolve(t, id, again), http.StatusConflict, "approval_already_resolved")
				require.Equal(t, []any{decision, "operator", "mine"}, pick(details, "resolution", "resolved_by", "note"))
				require.True(t, moment(t, details["resolved_at"]).Equal(moment(t, first.json(t)["resolved_at"])))
			}
			require.Equal(t, first.json(t), g.record(t, id))
			r := g.query(t, insertHeld("final").with("approval_id", id))
			if retried == "" {
				require.Equal(t, http.StatusOK, r.status, "%s", r.body)
				return
			}
			requireFault(t, r, http.StatusConflict, retried)
			require.Equal(t, "0", g.rowsOf(t, "held_notes", "final"))
		})
	}
}

func TestResolveRefuses(t *testing.T) {
	t.Parallel()
	const night = "the-token-of-the-night-shift"
	g := startGate(t, newNotes(t), "GATE_OPERATOR_TOKENS=night="+night)
	id := g.hold(t, insertHeld("refused"))
	path := "/approvals/" + id + "/resolve"
	pending := g.record(t, id)
	field := func(name string) func(*testing.T, map[string]any) {
		return func(t *testing.T, details map[string]any) {
			require.Contains(t, details["fields"], name)
		}
	}
	for _, c := range []struct {
		name, path, body string
		headers          []string
		status           int
		code             string
		details          func(*testing.T, map[string]any)
	}{
		{"no token", path, `{"decision":"approve"}`, nil, 401, "unauthorized_operator", nil},
		{"a wrong token", path, `{"decision":"approve"}`, []string{"X-GATE-Operator-Token: " + operatorTestToken + "x"}, 401, "unauthorized_operator", nil},
		{"a wrong bearer", path, `{"decision":"approve"}`, []string{"Authorization: Bearer x"}, 401, "unauthorized_operator", nil},
		{"basic is no bearer", path, `{"decision":"approve"}`, []string{"Authorization: Basic " + operatorTestToken}, 401, "unauthorized_operator", nil},
		{"no token comes before a bad body", path, `{`, nil, 401, "unauthorized_operator", nil},
		{"an empty body", path, ``, []string{operatorHeader}, 400, "validation_failed", field("decision")},
		{"no decision", path, `{"note":"x"}`, []string{operatorHeader}, 400, "validation_failed", field("decision")},
		{"another word", path, `{"decision":"approved"}`, []string{operatorHeader}, 400, "validation_failed", field("decision")},
		{"another case", path, `{"decision":"Approve"}`, []string{operatorHeader}, 400, "validation_failed", field("decision")},
		{"a note that is too long", path, `{"decision":"approve","note":"` + strings.Repeat("é", 2048) + `x"}`, []string{operatorHeader}, 400, "validation_failed", field("note")},
		{"both wrong", path, `{"decision":"","note":"` + strings.Repeat("x", 4097) + `"}`, []string{operatorHeader}, 400, "validation_failed", field("note")},
		{"not JSON", path, `{"decision":"approve"`, []string{operatorHeader}, 400, "invalid_json", nil},
		{"data after the JSON", path, `{"decision":"approve"} {}`, []string{operatorHeader}, 400, "invalid_json", nil},
		{"a doubled key", path, `{"decision":"reject","decision":"approve"}`, []string{operatorHeader}, 400, "invalid_json", nil},
		{"an unknown field", path, `{"decision":"approve","by":"me"}`, []string{operatorHeader}, 400, "invalid_json", nil},
		{"a wrong type", path, `{"decision":true}`, []string{operatorHeader}, 400, "invalid_json", nil},
		{"another media type", path, `{"decision":"approve"}`, []string{operatorHeader, "Content-Type: text/plain"}, 415, "unsupported_media_type", nil},
		{"an unknown id", "/approvals/apr_01890000-0000-7000-8000-000000000000/resolve", `{"decision":"approve"}`, []string{operatorHeader}, 404, "approval_not_found", nil},
		{"no id at all", "/approvals/x/resolve", `{"decision":"approve"}`, []string{operatorHeader}, 404, "approval_not_found", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			details := requireFault(t, g.do(t, http.MethodPost, c.path, []byte(c.body), c.headers...), c.status, c.code)
			if c.details != nil {
				c.details(t, details)
			}
			require.Equal(t, pending, g.record(t, id), "still pending")
		})
	}
	r := g.do(t, http.MethodPost, path, []byte(`{"decision":"reject","note":"`+strings.Repeat("x", 4096)+`"}`), "Authorization: bearer "+night)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, "night", r.text(t, "resolved_by"), "the label of the token")
	require.Len(t, r.text(t, "note"), 4096)
}

func TestWithoutAnOperatorTokenNobodyResolves(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), "GATE_OPERATOR_TOKEN=")
	id := g.hold(t, insertHeld("alone"))
	require.Equal(t, false, g.get(t, "/policy/status").json(t)["operator_auth_enabled"])
	for _, header := range []string{"X-Nothing: x", operatorHeader, "Authorization: Bearer ", "X-GATE-Operator-Token: "} {
		for path, body := range map[string]string{"/approvals/" + id + "/resolve": `{"decision":"approve"}`, "/approvals/purge": ``} {
			requireFault(t, g.do(t, http.MethodPost, path, []byte(body), header), http.StatusUnauthorized, "unauthorized_operator")
		}
	}
	require.Equal(t, "pending", g.record(t, id)["status"])
}

func TestMethodsOfTheApprovalPaths(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	id := g.hold(t, insertHeld("methods"))
	for _, c := range []struct{ method, path, allow string }{
		{http.MethodPost, "/approvals/" + id, "GET, HEAD"},
		{http.MethodDelete, "/approvals/" + id, ""},
		{http.MethodPost, "/approvals", ""},
		{http.MethodGet, "/approvals/" + id + "/resolve", "POST"},
	} {
		r := g.do(t, c.method, c.path, nil, operatorHeader)
		requireFault(t, r, http.StatusMethodNotAllowed, "method_not_allowed")
		require.NotEmpty(t, r.header.Get("Allow"), c.path)
		if c.allow != "" {
			require.ElementsMatch(t, strings.Split(c.allow, ", "), withoutOptions(r.header.Get("Allow")), c.path)
		}
	}
	require.Equal(t, http.StatusOK, g.do(t, http.MethodHead, "/approvals/"+id, nil).status)
	requireFault(t, g.get(t, "/approvals/apr_none"), http.StatusNotFound, "approval_not_found")
	requireFault(t, g.get(t, "/approvals/purge"), http.StatusNotFound, "approval_not_found")
}

func withoutOptions(allow string) []string {
	return slices.DeleteFunc(strings.Split(allow, ", "), func(m string) bool { return m == http.MethodOptions })
}

// page is a list of approvals as it came.
type approvalPage struct {
	Items      []map[string]any `json:"items"`
	NextCursor *string          `json:"next_cursor"`
}

func (g *testGate) approvals(t testing.TB, query string) approvalPage {
	t.Helper()
	r := g.get(t, "/approvals?"+query)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	var p approvalPage
	unmarshal(t, r.body, &p)
	return p
}

func TestTheListOfApprovals(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	for i := range 12 {
		s := insertHeld(fmt.Sprint("n", i)).with("actor", []string{"ana", "bo"}[i%2]).with("app", []string{"shop", "desk"}[i/6]).with("env", []string{"shadow", "staging", "prod"}[i%3])
		id := g.hold(t, s)
		if i%4 > 1 {
			require.Equal(t, http.StatusOK, g.resolve(t, id, []string{"approve", "reject"}[i%4-2]).status)
		}
	}
	all := g.approvals(t, "").Items
	require.Len(t, all, 12)
	require.True(t, slices.IsSortedFunc(all, func(a, b map[string]any) int {
		return strings.Compare(b["created_at"].(string), a["created_at"].(string))
	}), "newest first")
	for _, item := range all {
		require.Equal(t, g.record(t, item["approval_id"].(string)), item, "the list holds the records themselves")
	}
	matches := func(item map[string]any, status, env, app, actor string) bool {
		c := item["context"].(map[string]any)
		is := func(want string, got any) bool { return want == "" || want == got }
		switch status {
		case "approved", "rejected":
			return item["status"] == "resolved" && strings.HasPrefix(status, item["resolution"].(string)) && is(env, c["env"]) && is(app, c["app"]) && is(actor, c["actor"])
		}
		return is(status, item["status"]) && is(env, c["env"]) && is(app, c["app"]) && is(actor, c["actor"])
	}
	for _, status := range []string{"", "pending", "expired", "resolved", "approved", "rejected"} {
		for _, env := range []string{"", "staging", "prod"} {
			for _, app := range []string{"", "shop", "nobody"} {
				for _, actor := range []string{"", "bo"} {
					query := url.Values{"status": {status}, "env": {env}, "app": {app}, "actor": {actor}}
					for name, value := range query {
						if value[0] == "" {
							query.Del(name)
						}
					}
					want := []map[string]any{}
					for _, item := range all {
						if matches(item, status, env, app, actor) {
							want = append(want, item)
						}
					}
					require.Equal(t, want, g.approvals(t, query.Encode()).Items, query.Encode())
					require.Equal(t, want, g.pages(t, query.Encode(), 2), "in pages: %s", query.Encode())
					slices.Reverse(want)
					require.Equal(t, want, g.pages(t, query.Encode()+"&order=asc", 5), "ascending: %s", query.Encode())
				}
			}
		}
	}
}

// pages walks a list by its cursor.
func (g *testGate) pages(t testing.TB, query string, limit int) []map[string]any {
	t.Helper()
	all, cursor := []map[string]any{}, ""
	for {
		p := g.approvals(t, fmt.Sprintf("%s&limit=%d&cursor=%s", query, limit, url.QueryEscape(cursor)))
		require.LessOrEqual(t, len(p.Items), limit)
		all = append(all, p.Items...)
		if p.NextCursor == nil {
			return all
		}
		require.NotEqual(t, cursor, *p.NextCursor)
		cursor = *p.NextCursor
	}
}

func TestTheListOfApprovalsRefuses(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	for query, name := range map[string]string{
		"status=open": "status", "limit=0": "limit", "limit=1001": "limit", "limit=x": "limit", "order=up": "order",
		"cursor=nonsense": "cursor", "status=pending&status=expired": "status",
	} {
		details := requireFault(t, g.get(t, "/approvals?"+query), http.StatusBadRequest, "validation_failed")
		require.Contains(t, details["fields"], name, query)
	}
	require.Empty(t, g.approvals(t, "unknown=ignored").Items)
}

func TestTheStatisticsCountApprovals(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	for i, decision := range []string{"", "", "approve", "reject", "approve"} {
		id := g.hold(t, insertHeld(fmt.Sprint("s", i)))
		if decision != "" {
			require.Equal(t, http.StatusOK, g.resolve(t, id, decision).status)
		}
	}
	require.Equal(t, []any{2.0, 3.0}, pick(g.get(t, "/runtime/stats").json(t), "approvals_pending", "approvals_resolved"))
}

// encode is the body of a statement.
func encode(t testing.TB, s statement) []byte {
	t.Helper()
	body, err := json.Marshal(s)
	require.NoError(t, err)
	return body
}
