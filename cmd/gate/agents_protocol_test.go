package main

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

func TestAChangeIsMadeFromTheRevisionThatItsWriterSaw(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	agentID, _ := w.register(t, "bot")
	policyID := w.rule(t, "block", "")
	tool := w.made(t, "/tools", `{"name":"sum","type":"function","input_schema":{"type":"object"}}`)["id"].(string)
	for path, body := range map[string]string{
		"/agents/" + agentID: `{"name":"bot-2","type":"worker"}`, "/policies/" + policyID: `{"name":"guard-2","rules":[{"action":"log","condition":""}]}`, "/tools/" + tool: `{"name":"sum-2","type":"function","input_schema":{"type":"object"}}`,
	} {
		seen := w.v1(t, http.MethodGet, path, "")
		require.Equal(t, `"1"`, seen.header.Get("ETag"), path)
		unchanged := w.v1(t, http.MethodGet, path, "", `If-None-Match: "1"`)
		require.Equal(t, http.StatusNotModified, unchanged.status, path)
		require.Empty(t, unchanged.body)
		require.Equal(t, `"1"`, unchanged.header.Get("ETag"))

		changed := w.v1(t, http.MethodPut, path, body, `If-Match: "1"`)
		require.Equal(t, http.StatusOK, changed.status, "%s", changed.body)
		require.Equal(t, `"2"`, changed.header.Get("ETag"))
		late := w.v1(t, http.MethodPut, path, body, `If-Match: "1"`)
		require.Equal(t, http.StatusPreconditionFailed, late.status)
		require.EqualValues(t, 2, late.json(t)["details"].(map[string]any)["revision"])
		require.Equal(t, http.StatusOK, w.v1(t, http.MethodGet, path, "", `If-None-Match: "1"`).status)
		require.Equal(t, `"3"`, w.v1(t, http.MethodPut, path, body, "If-Match: *").header.Get("ETag"))
		require.Equal(t, `"4"`, w.v1(t, http.MethodPut, path, body).header.Get("ETag"), "without it the last writer wins")
	}
	require.Equal(t, http.StatusPreconditionFailed, w.v1(t, http.MethodDelete, "/agents/"+agentID, "", `If-Match: "1"`).status)
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+agentID, "", `If-Match: "4"`).status)

	var wait sync.WaitGroup
	var won atomic.Int32
	for range 8 {
		wait.Go(func() {
			r, err := w.try(http.MethodPut, "/v1/policies/"+policyID, []byte(`{"name":"g","rules":[{"action":"log","condition":""}]}`), "X-Api-Key: "+w.key, `If-Match: "4"`)
			if err != nil {
				t.Error(err)
			}
			if r.status == http.StatusOK {
				won.Add(1)
			}
		})
	}
	wait.Wait()
	require.EqualValues(t, 1, won.Load(), "of many from one revision one wins")
}

// A caller that got no answer asks again, also after a restart of the gate.
func TestARequestUnderAnIdempotencyKeyIsDoneOnceAlsoAcrossARestart(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	const body = `{"name":"bot","type":"worker"}`
	key := "Idempotency-Key: register-bot"
	first := w.v1(t, http.MethodPost, "/agents", body, key)
	require.Equal(t, http.StatusCreated, first.status)
	require.Empty(t, first.header.Get("Idempotency-Replayed"))
	id := first.text(t, "id")
	policyID := w.rule(t, "block", "")
	applying := fmt.Sprintf(`{"agent_id":%q}`, id)
	applied := w.v1(t, http.MethodPost, "/policies/"+policyID+"/apply", applying, key)
	require.Equal(t, http.StatusCreated, applied.status, "the same key on another path is another one")
	refused := w.v1(t, http.MethodPost, "/agents", `{"name":""}`, "Idempotency-Key: refused")
	require.Equal(t, http.StatusBadRequest, refused.status)

	for _, when := range []string{"at once", "after a restart"} {
		again := w.v1(t, http.MethodPost, "/agents", body, key)
		require.Equal(t, http.StatusCreated, again.status, when)
		require.Equal(t, "true", again.header.Get("Idempotency-Replayed"), when)
		want, got := first.json(t), again.json(t)
		require.Nil(t, got["credentials"].(map[string]any)["token"], "a secret is not kept")
		delete(want["credentials"].(map[string]any), "token")
		delete(got["credentials"].(map[string]any), "token")
		require.Equal(t, want, got, when)
		once := w.v1(t, http.MethodPost, "/policies/"+policyID+"/apply", applying, key)
		require.JSONEq(t, string(applied.body), string(once.body), when)
		require.Equal(t, applied.header.Get("X-Event-Hash"), once.header.Get("X-Event-Hash"))

		require.Equal(t, "idempotency_conflict", w.v1(t, http.MethodPost, "/agents", `{"name":"other","type":"worker"}`, key).text(t, "error_code"), when)
		require.Equal(t, "idempotency_conflict", w.v1(t, http.MethodPost, "/policies/"+policyID+"/apply?dry_run=true", applying, key).text(t, "error_code"), "another query is another request")
		if when == "at once" {
			w.end(t)
			w.testGate = startGate(t, w.gateDir, "GATE_PROJECT_KEYS=shop/ops="+w.key)
		}
	}
	require.Equal(t, http.StatusCreated, w.v1(t, http.MethodPost, "/agents", body, "Idempotency-Key: refused").status, "what wrote nothing is not kept")
	require.Len(t, w.v1(t, http.MethodGet, "/agents", "").json(t)["items"], 2)
}

// What is given again is what was given first: the status, where the thing lies,
// its revision, and the event that proves it.
func TestAnAnswerThatIsGivenAgainHasTheHeadersOfTheFirst(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	agentID, _ := w.register(t, "bot")
	policyID := w.rule(t, "suspend", `event.type == "error"`)
	tool := w.made(t, "/tools", `{"name":"sum","type":"function","input_schema":{"type":"object"}}`)["id"].(string)
	const key = "Idempotency-Key: again"
	type sending struct {
		path, body string
		location   string // begins so; "" = none
		tag        string
		events     int // that it writes; the answer names the last one
	}
	all := []sending{
		{"/agents", `{"name":"two","type":"worker"}`, "/v1/agents/agt_", `"1"`, 2},
		{"/agents/" + agentID + "/tokens", `{}`, "/v1/agents/" + agentID + "/tokens/tok_", "", 1},
		{"/policies", `{"name":"p","rules":[{"action":"log","condition":""}]}`, "/v1/policies/pol_", `"1"`, 1},
		{"/policies/" + policyID + "/apply", fmt.Sprintf(`{"agent_id":%q}`, agentID), "/v1/policies/" + policyID + "/apply?agent_id=" + agentID, "", 1},
		{"/policies/" + policyID + "/apply", fmt.Sprintf(`{"agent_id":%q,"priority":"high"}`, agentID), "", "", 1},
		{"/tools", `{"name":"two","type":"function","input_schema":{"type":"object"}}`, "/v1/tools/tool_", `"1"`, 1},
		{"/tools/" + tool + "/verify", `{}`, "", `"2"`, 1},
		{"/telemetry", fmt.Sprintf(`{"events":[{"type":"error","agent_id":%q},{"type":""}]}`, agentID), "", "", 4}, // two tokens end, and the agent
	}
	headers := []string{"Location", "ETag", "X-Event-Seq", "X-Event-Hash", "Content-Type"}
	first := make([]reply, len(all))
	for i, s := range all {
		first[i] = w.v1(t, http.MethodPost, s.path, s.body, key+fmt.Sprint(i))
		require.Less(t, first[i].status, 300, "%s", first[i].body)
		wrote := w.get(t, "/audit?order=asc&request_id="+first[i].header.Get("X-Request-Id")).json(t)["items"].([]any)
		require.Len(t, wrote, s.events, s.path)
		require.Equal(t, fmt.Sprint(wrote[s.events-1].(map[string]any)["seq"]), first[i].header.Get("X-Event-Seq"), s.path)
		require.Equal(t, s.tag, first[i].header.Get("ETag"), s.path)
		require.Equal(t, s.location != "", first[i].header.Get("Location") != "", s.path)
		require.True(t, strings.HasPrefix(first[i].header.Get("Location"), s.location), s.path)
	}
	for _, when := range []string{"at once", "after a restart"} {
		for i, s := range all {
			again := w.v1(t, http.MethodPost, s.path, s.body, key+fmt.Sprint(i))
			require.Equal(t, "true", again.header.Get("Idempotency-Replayed"), "%s %s", s.path, when)
			require.Equal(t, first[i].status, again.status, s.path)
			for _, name := range headers {
				require.Equal(t, first[i].header.Get(name), again.header.Get(name), "%s of %s %s", name, s.path, when)
			}
		}
		if when == "at once" {
			w.end(t)
			w.testGate = startGate(t, w.gateDir, "GATE_PROJECT_KEYS=shop/ops="+w.key)
		}
	}
}

func TestOfManyRequestsAtOnceUnderOneKeyOneIsDone(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	var wait sync.WaitGroup
	var fresh atomic.Int32
	for range 12 {
		wait.Go(func() {
			r, err := w.try(http.MethodPost, "/v1/agents", []byte(`{"name":"bot","type":"worker"}`), "X-Api-Key: "+w.key, "Idempotency-Key: one")
			switch {
			case err != nil:
				t.Error(err)
			case r.status == http.StatusConflict:
				if !strings.Contains(string(r.body), "idempotency_in_progress") || r.header.Get("Retry-After") != "1" {
					t.Errorf("%s", r.body)
				}
			case r.header.Get("Idempotency-Replayed") == "":
				fresh.Add(1)
			}
		})
	}
	wait.Wait()
	require.EqualValues(t, 1, fresh.Load())
	require.Len(t, w.v1(t, http.MethodGet, "/agents", "").json(t)["items"], 1)
}

func TestADryRunTellsWhatAPolicyWouldHaveDoneAndWritesNothing(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	many, other := w.register(t, "other")
	for range 3 {
		require.Equal(t, http.StatusOK, w.as(t, token, ask(paying)).status)
	}
	for range 2 {
		require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT 1")).status)
	}
	require.Equal(t, http.StatusOK, w.as(t, other, ask(paying)).status)
	require.Equal(t, http.StatusOK, w.query(t, ask(paying)).status)
	for _, c := range []struct {
		action, condition string
		changes           float64
	}{
		{"block", `sql.class == "write"`, 3}, {"block", "", 5}, {"allow", "", 0}, {"log", "", 0}, {"require_approval", `"public.orders" in sql.tables_written`, 3},
		{"throttle:2/1h", `sql.class == "write"`, 1}, {"block", `usage.sql_writes_1h >= 2`, 3}, {"block", `agent.environment == "staging"`, 0},
	} {
		policyID := w.rule(t, c.action, c.condition)
		head := w.head(t)
		r := w.v1(t, http.MethodPost, "/policies/"+policyID+"/apply?dry_run=true", fmt.Sprintf(`{"agent_id":%q}`, id))
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		preview := r.json(t)["preview"].(map[string]any)
		changes, _ := preview["sql_changes"].([]any)
		delete(preview, "sql_changes")
		require.Equal(t, map[string]any{"window": "24h", "events": 0.0, "events_matching": 0.0, "sql_decisions": 5.0, "sql_would_change": c.changes}, preview, "%s %s", c.action, c.condition)
		require.Len(t, changes, int(c.changes))
		last := uint64(math.MaxUint64)
		for _, change := range changes {
			one := change.(map[string]any)
			seq := uint64(one["seq"].(float64))
			require.Less(t, seq, last, "the newest first")
			last = seq
			recorded := w.get(t, fmt.Sprintf("/audit?event_type=decision_recorded&from_seq=%d&to_seq=%[1]d", seq)).json(t)["items"].([]any)[0].(map[string]any)
			require.Equal(t, []any{recorded["request_id"], recorded["decision"], "r1"}, []any{one["request_id"], one["from"], one["rule_id"]})
			require.Equal(t, map[string]string{"block": "BLOCK", "throttle:2/1h": "BLOCK", "require_approval": "REQUIRE_APPROVAL"}[c.action], one["to"])
		}
		written := w.v1(t, http.MethodGet, fmt.Sprintf("/events?event_type=agent_*&from_seq=%d", head+1), "").json(t)["items"]
		require.Empty(t, written, "nothing is written")
	}
	require.Empty(t, w.v1(t, http.MethodGet, "/agents/"+id, "").json(t)["applied_policies"])
	require.Equal(t, http.StatusOK, w.as(t, token, ask(paying)).status)

	var last string
	for range 11 {
		last = w.as(t, other, ask(paying)).text(t, "request_id")
	}
	preview := w.v1(t, http.MethodPost, "/policies/"+w.rule(t, "block", "")+"/apply?dry_run=true", fmt.Sprintf(`{"agent_id":%q}`, many)).json(t)["preview"].(map[string]any)
	require.Equal(t, 12.0, preview["sql_would_change"])
	require.Len(t, preview["sql_changes"], 10)
	require.Equal(t, last, preview["sql_changes"].([]any)[0].(map[string]any)["request_id"])
}

// A dry run asks about past telemetry what is asked at its receipt: also who the
// agent is, and what is known of its tools.
func TestADryRunKnowsTheAgentAndTheToolsOfItsTelemetry(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	known := w.made(t, "/tools", `{"name":"sum","type":"function","input_schema":{"type":"object"},"annotations":{"destructive":false,"read_only":true}}`)["id"].(string)
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodPost, "/tools/"+known+"/verify", "").status)
	w.sent(t, bearer(token), fmt.Sprintf(`[{"type":"tool_call","tool":{"id":%q}},{"type":"tool_call","tool":{"id":%[1]q}},{"type":"tool_call","tool":{"id":"tool_other"}},{"type":"message"}]`, known))
	for condition, matching := range map[string]float64{
		`event.type == "tool_call" && !tool.verified`: 1, `tool.verified && tool.read_only && !tool.destructive`: 2, `tool.name == "sum" && tool.type == "function"`: 2,
		`tool.destructive`: 2, `event.type == "message" && agent.environment == "production"`: 1, `agent.id == ""`: 0, `agent.name == "bot" && event.type != ""`: 4,
	} {
		r := w.v1(t, http.MethodPost, "/policies/"+w.rule(t, "block", condition)+"/apply?dry_run=true", fmt.Sprintf(`{"agent_id":%q}`, id))
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		require.Equal(t, map[string]any{"window": "24h", "events": 4.0, "events_matching": matching, "sql_decisions": 0.0, "sql_would_change": 0.0}, r.json(t)["preview"], condition)
	}
}

// An agent that is stopped in the middle of a rush gets nothing through that it
// sends after the answer to its revocation.
func TestARevokedTokenFailsOnTheNextRequestOfEachOf32Clients(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	tokenID := w.v1(t, http.MethodGet, "/agents/"+id+"/tokens", "").json(t)["items"].([]any)[0].(map[string]any)["token_id"].(string)
	const clients = 32
	var revoked atomic.Bool
	var served atomic.Int32
	var wait sync.WaitGroup
	for i := range clients {
		body := mustJSON(t, ask(fmt.Sprintf("SELECT %d", i)))
		wait.Go(func() {
			for {
				after := revoked.Load()
				r, err := w.try(http.MethodPost, "/query", body, "Authorization: Bearer "+token)
				switch {
				case err != nil:
					t.Error(err)
					return
				case r.status == http.StatusOK && !after:
					served.Add(1)
				case r.status == http.StatusUnauthorized && strings.Contains(string(r.body), `"token_revoked"`):
					if after {
						return
					}
				default:
					t.Errorf("after the revocation: %t, answered %d %s", after, r.status, r.body)
					return
				}
			}
		})
	}
	require.Eventually(t, func() bool { return served.Load() > 2*clients || t.Failed() }, startPatience, pollEvery)
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+id+"/tokens/"+tokenID, "").status)
	revoked.Store(true)
	wait.Wait()
	r := w.do(t, http.MethodGet, "/v1/agents/"+id, nil, "Authorization: Bearer "+token)
	require.Equal(t, "token_revoked", r.text(t, "error_code"))
	w.end(t)
	decided, gone := 0, false
	for _, e := range w.events(t) {
		if gone = gone || e.Type == event.TypeAgentTokenRevoked; gone && e.Type == event.TypeDecisionRecorded {
			decided++
		}
	}
	require.LessOrEqual(t, decided, clients, "what was under way then, one request of each client at most")
}

func TestAnAddressThatGuessesCredentialsIsHeldUpAndNobodyElse(t *testing.T) {
	t.Parallel()
	w := startAgents(t, "GATE_TRUSTED_PROXIES=127.0.0.0/8")
	_, token := w.register(t, "bot")
	guess := func(from string, credential ...string) reply {
		return w.do(t, http.MethodGet, "/v1/agents", nil, append(credential, "X-Forwarded-For: "+from)...)
	}
	refused := 0
	held := guess("198.51.100.4")
	for ; held.status != http.StatusTooManyRequests; held = guess("198.51.100.4", []string{"X-Api-Key: wgp_guess", "Authorization: Bearer wga_guess"}[refused%2]) {
		require.Equal(t, http.StatusUnauthorized, held.status)
		refused++
		require.Less(t, refused, 1000, "nothing holds it up")
	}
	require.GreaterOrEqual(t, refused, 60)
	require.Equal(t, "rate_limit_exceeded", held.text(t, "error_code")) // the next guess may be free again: there is one each second
	require.NotEmpty(t, held.header.Get("Retry-After"))
	require.Equal(t, http.StatusUnauthorized, guess("198.51.100.5").status, "another address")
	require.Equal(t, http.StatusOK, guess("198.51.100.4", "Authorization: Bearer "+token).status, "who has a credential is served from there too")
}
