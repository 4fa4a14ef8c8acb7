package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// batch is the answer of POST /v1/telemetry.
type batch struct {
	BatchID    string  `json:"batch_id"`
	Accepted   int     `json:"accepted"`
	Duplicates int     `json:"duplicates"`
	Rejected   int     `json:"rejected"`
	FirstSeq   *uint64 `json:"first_seq"`
	LastSeq    *uint64 `json:"last_seq"`
	Results    []struct {
		Index      int              `json:"index"`
		ID         string           `json:"id"`
		Status     string           `json:"status"`
		ErrorCode  string           `json:"error_code"`
		Pointer    string           `json:"pointer"`
		Message    string           `json:"message"`
		Violations []map[string]any `json:"violations"`
	} `json:"results"`
	Suspended []string `json:"agents_suspended"`
}

// sent posts events with a credential and gives the answer.
func (w *agentWorld) sent(t *testing.T, credential, events string, headers ...string) (reply, batch) {
	t.Helper()
	r := w.do(t, http.MethodPost, "/v1/telemetry", []byte(`{"events":`+events+`}`), append([]string{credential}, headers...)...)
	var b batch
	if r.status < 300 {
		require.NoError(t, json.Unmarshal(r.body, &b))
	}
	return r, b
}

func bearer(token string) string { return "Authorization: Bearer " + token }

func (w *agentWorld) projectKey() string { return "X-Api-Key: " + w.key }

// listed are the telemetry events that GET /v1/events shows, oldest first.
func (w *agentWorld) listed(t *testing.T, query string) (items []map[string]any) {
	t.Helper()
	cursor := ""
	for {
		r := w.v1(t, http.MethodGet, "/events?event_type=telemetry_received&order=asc&limit=200"+query+cursor, "")
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		for _, item := range r.json(t)["items"].([]any) {
			items = append(items, item.(map[string]any))
		}
		next, more := r.json(t)["next_cursor"].(string)
		if !more {
			return items
		}
		cursor = "&cursor=" + next
	}
}

func TestABatchKeepsWhatIsGoodAndSaysWhatIsNot(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	other, _ := w.register(t, "other")
	gone, _ := w.register(t, "gone")
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+gone, "").status)
	late := time.Now().Add(-8 * 24 * time.Hour).UTC().Format(time.RFC3339)
	ahead := time.Now().Add(10 * time.Minute).UTC().Format(time.RFC3339)
	for _, c := range []struct{ event, code, pointer string }{
		{`{}`, "event_invalid", "/events/1/type"},
		{`7`, "event_invalid", "/events/1"},
		{`null`, "event_invalid", "/events/1"},
		{`{"type":"Tool"}`, "event_invalid", "/events/1/type"},
		{`{"type":"a","prompt":"x"}`, "event_invalid", "/events/1/prompt"},
		{`{"type":"a","usage":{"input_tokens":"x"}}`, "event_invalid", "/events/1/usage/input_tokens"},
		{`{"type":"a","usage":{"output_tokens":-1}}`, "event_invalid", "/events/1/usage/output_tokens"},
		{`{"type":"a","usage":{"cost_usd":"1.0000001"}}`, "event_invalid", "/events/1/usage/cost_usd"},
		{`{"type":"a","usage":{"cost_usd":"-1"}}`, "event_invalid", "/events/1/usage/cost_usd"},
		{`{"type":"a","status":"fine"}`, "event_invalid", "/events/1/status"},
		{`{"type":"a","id":""}`, "event_invalid", "/events/1/id"},
		{`{"type":"a","duration_ms":-1}`, "event_invalid", "/events/1/duration_ms"},
		{`{"type":"a","tool":{"arguments_sha256":"secret text"}}`, "event_invalid", "/events/1/tool/arguments_sha256"},
		{`{"type":"a","attributes":{"a.b":{"c":1}}}`, "event_invalid", "/events/1/attributes"},
		{`{"type":"a","timestamp":"yesterday"}`, "event_invalid", "/events/1/timestamp"},
		{`{"type":"a","name":"` + strings.Repeat("x", 70_000) + `"}`, "event_too_large", "/events/1"},
		{`{"type":"a","timestamp":"` + late + `"}`, "timestamp_out_of_range", "/events/1/timestamp"},
		{`{"type":"a","timestamp":"` + ahead + `"}`, "timestamp_out_of_range", "/events/1/timestamp"},
		{`{"type":"a","agent_id":"` + other + `"}`, "agent_mismatch", "/events/1/agent_id"},
	} {
		r, b := w.sent(t, bearer(token), `[{"type":"heartbeat"},`+c.event+`]`)
		require.Equal(t, http.StatusMultiStatus, r.status, "%s: %s", c.event, r.body)
		require.Equal(t, []int{1, 0, 1}, []int{b.Accepted, b.Duplicates, b.Rejected})
		require.Equal(t, c.code, b.Results[1].ErrorCode, "%s", r.body)
		require.Equal(t, c.pointer, b.Results[1].Pointer, "%s", r.body)
	}
	for agent, code := range map[string]string{`""`: "agent_missing", `"agt_none"`: "agent_not_found", fmt.Sprintf("%q", gone): "agent_inactive"} {
		_, b := w.sent(t, w.projectKey(), fmt.Sprintf(`[{"type":"a","agent_id":%q},{"type":"a","agent_id":%s}]`, id, agent))
		require.Equal(t, code, b.Results[1].ErrorCode)
	}
	require.Len(t, w.listed(t, "&agent_id="+id), 22)
	r, _ := w.sent(t, bearer(token), `[{},{"type":"UPPER"}]`)
	require.Equal(t, http.StatusUnprocessableEntity, r.status)
	require.Equal(t, "all_events_rejected", r.text(t, "error_code"))
	require.Len(t, r.json(t)["details"].(map[string]any)["results"], 2)
	for _, body := range []string{`[]`, `{}`, `{"events":[]}`, `{"events":{}}`, `{"events":[{"type":"a"}],"more":1}`, `{"events":[{"type":"a","attributes":{"a":1,"a":2}}]}`} {
		require.Equal(t, http.StatusBadRequest, w.do(t, http.MethodPost, "/v1/telemetry", []byte(body), bearer(token)).status, body)
	}
}

// A body of a megabyte may hold 349,000 events, each of which takes much more than its
// bytes once it is read.
// Not parallel: it counts what this process allocates.
func TestABatchIsCountedBeforeItIsRead(t *testing.T) {
	w := startAgents(t)
	body := `{"events":[{}` + strings.Repeat(",{}", 349_000) + `]}`
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := w.v1(t, http.MethodPost, "/telemetry", body)
	runtime.ReadMemStats(&after)
	require.Equal(t, http.StatusBadRequest, r.status)
	require.Contains(t, string(r.body), "must have 1 to 1000 events")
	t.Log((after.TotalAlloc - before.TotalAlloc) >> 20)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(160<<20), "54 MB as it is, and 328 where the events are read first")
}

func TestAnAcceptedEventIsListedAsItWasSent(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	_, b := w.sent(t, bearer(token), `[{"id":"ev-17","type":"tool_call","timestamp":"`+time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)+`","session_id":"s-1","trace_id":"t","span_id":"s","parent_span_id":null,"name":"run_sql",
		"status":"ok","duration_ms":182,"model":{"provider":"p","name":"m-1"},"usage":{"input_tokens":812,"output_tokens":90,"cached_input_tokens":0,"cost_usd":"0.0041"},
		"tool":{"id":"tool_x","name":"run_sql","call_id":"c9"},"sql":{"request_id":"req_1"},"error":{"type":"timeout","message":"m"},"attributes":{"gen_ai.operation.name":"execute_tool", "n": 1.50}},{"type":"heartbeat"}]`)
	require.Equal(t, b.FirstSeq, b.LastSeq)
	require.Equal(t, b.BatchID+".1", b.Results[1].ID, "an id of its own")
	items := w.listed(t, "&session_id=s-1")
	require.Len(t, items, 1)
	require.EqualValues(t, *b.FirstSeq, items[0]["seq"])
	require.Equal(t, []any{id, "tool_call", "tool_x", 0.0}, []any{items[0]["agent_id"], items[0]["telemetry_type"], items[0]["tool_id"], items[0]["index"]})
	payload := items[0]["payload"].(map[string]any)
	require.Equal(t, "ev-17", payload["id"])
	require.Equal(t, map[string]any{"gen_ai.operation.name": "execute_tool", "n": 1.5}, payload["attributes"])
	require.Equal(t, map[string]any{"input_tokens": 812.0, "output_tokens": 90.0, "cost_usd": "0.0041"}, payload["usage"])
	require.Equal(t, []any{map[string]any{"request_id": "req_1"}, map[string]any{"type": "timeout", "message": "m"}, 182.0, id}, []any{payload["sql"], payload["error"], payload["duration_ms"], payload["agent_id"]})
	at, err := time.Parse(time.RFC3339Nano, payload["timestamp"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(-time.Hour), at, time.Minute)
	var whole map[string]any
	unmarshal(t, w.get(t, "/audit?event_type=telemetry_received").body, &whole)
	require.Contains(t, string(mustJSON(t, whole)), "cost_micros", "the log keeps its own form")
	require.Len(t, w.listed(t, "&telemetry_type=heartbeat"), 1)
}

func TestAnEventIsStoredOnceWithinSevenDays(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	_, token := w.register(t, "bot")
	_, b := w.sent(t, bearer(token), `[{"id":"a","type":"x"},{"id":"a","type":"x"},{"id":"b","type":"x"}]`)
	require.Equal(t, []int{2, 1, 0}, []int{b.Accepted, b.Duplicates, b.Rejected})
	w.end(t)
	w.testGate = startGate(t, w.gateDir, "GATE_PROJECT_KEYS=shop/ops="+w.key)
	r, b := w.sent(t, bearer(token), `[{"id":"a","type":"x"},{"id":"b","type":"x"}]`)
	require.Equal(t, http.StatusOK, r.status)
	require.Equal(t, []int{0, 2, 0}, []int{b.Accepted, b.Duplicates, b.Rejected})
	require.Nil(t, b.FirstSeq)
	require.Empty(t, r.header.Get("X-Event-Seq"), "nothing was appended")

	var wait sync.WaitGroup
	accepted := make([]int, 8)
	for i := range accepted {
		wait.Go(func() {
			_, b := w.sent(t, bearer(token), `[{"id":"c","type":"x"},{"id":"d","type":"x"},{"id":"e","type":"x"}]`)
			accepted[i] = b.Accepted
		})
	}
	wait.Wait()
	total := 0
	for _, n := range accepted {
		total += n
	}
	require.Equal(t, 3, total, "each of them once, whoever came first: %v", accepted)
}

func TestOneBadEventOfAThousandDoesNotSinkTheBatch(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	_, token := w.register(t, "bot")
	events := make([]string, 1000)
	for i := range events {
		events[i] = fmt.Sprintf(`{"id":"e%d","type":"x"}`, i)
	}
	events[500] = `{"type":"BAD"}`
	_, b := w.sent(t, bearer(token), "["+strings.Join(events, ",")+"]")
	require.Equal(t, []int{999, 0, 1}, []int{b.Accepted, b.Duplicates, b.Rejected})
	require.Equal(t, "rejected", b.Results[500].Status)
	require.Len(t, w.listed(t, ""), 999)
	r, _ := w.sent(t, bearer(token), "["+strings.Join(append(events, `{"type":"x"}`), ",")+"]")
	require.Equal(t, "validation_failed", r.text(t, "error_code"))
}

func TestABatchThatPassesTheLimitOfARecordIsSeveralInOneAppend(t *testing.T) {
	t.Parallel()
	w := startAgents(t, "GATE_MAX_BODY_BYTES=16777216")
	_, token := w.register(t, "bot")
	large := func(n int) string {
		events := make([]string, n)
		for i := range events {
			attributes := make([]string, 60)
			for j := range attributes {
				attributes[j] = fmt.Sprintf(`"k%d":%q`, j, strings.Repeat("v", 1000))
			}
			events[i] = fmt.Sprintf(`{"id":"e%d","type":"x","attributes":{%s}}`, i, strings.Join(attributes, ","))
		}
		events[1] = `{"type":"BAD"}`
		return "[" + strings.Join(events, ",") + "]"
	}
	first, b := w.sent(t, bearer(token), large(40), "Idempotency-Key: k1")
	require.Equal(t, http.StatusMultiStatus, first.status, "%s", first.body)
	require.Equal(t, 39, b.Accepted)
	require.Equal(t, uint64(2), *b.LastSeq-*b.FirstSeq, "three records")
	require.Len(t, w.listed(t, ""), 39)

	again, _ := w.sent(t, bearer(token), large(40), "Idempotency-Key: k1")
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
	require.JSONEq(t, string(first.body), string(again.body), "rebuilt from the records")
	require.Equal(t, http.StatusMultiStatus, again.status)
	r, _ := w.sent(t, bearer(token), large(200))
	require.Equal(t, "oversized_request", r.text(t, "error_code"), "%.200s", r.body)
	w.end(t)
	require.Equal(t, "", keptBodies(t, w), "what the records hold is not kept twice")
}

// keptBodies are the bodies that telemetry events keep for their keys.
func keptBodies(t *testing.T, w *agentWorld) (bodies string) {
	t.Helper()
	for _, e := range w.events(t) {
		if e.Type != event.TypeTelemetryReceived {
			continue
		}
		var p event.TelemetryReceived
		require.NoError(t, e.Parse(&p))
		if p.Origin.Idempotency != nil {
			bodies += p.Origin.Idempotency.Body
		}
	}
	return bodies
}

func TestRulesSpeakAtTelemetryAfterTheFact(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	policy := w.made(t, "/policies", `{"name":"watch","rules":[
		{"id":"costly","action":"alert:cost","condition":"event.total_tokens > 1000 || usage.cost_micros_24h > 50000000","reason_code":"tokens_over"},
		{"id":"review","action":"require_approval","condition":"event.tool_name == \"rm\" && tool.destructive && !tool.verified"},
		{"id":"calls","action":"throttle:2/1h","condition":"event.type == \"tool_call\""},
		{"id":"gate","action":"block","condition":"sql.class == \"write\""}]}`)["id"].(string)
	w.apply(t, policy, id)
	_, b := w.sent(t, bearer(token), `[{"type":"llm_call","usage":{"input_tokens":900,"output_tokens":200,"cost_usd":"60"}},{"type":"message"},{"type":"tool_call","tool":{"name":"rm"}}]`, "Idempotency-Key: k")
	violation := func(rule, action, reason string, review bool) []map[string]any {
		return []map[string]any{{"policy_id": policy, "rule_id": rule, "action": action, "reason_code": reason, "needs_review": review}}
	}
	require.Equal(t, violation("costly", "alert:cost", "tokens_over", false), b.Results[0].Violations)
	require.Empty(t, b.Results[1].Violations, "usage is what it was before the batch")
	require.Equal(t, violation("review", "require_approval", "agent_policy_approval", true), b.Results[2].Violations)
	_, b = w.sent(t, bearer(token), `[{"type":"message"},{"type":"tool_call"}]`)
	require.Equal(t, violation("costly", "alert:cost", "tokens_over", false), b.Results[0].Violations, "now the cost counts")

	w.end(t)
	w.testGate = startGate(t, w.gateDir, "GATE_PROJECT_KEYS=shop/ops="+w.key)
	_, b = w.sent(t, bearer(token), `[{"type":"tool_call"}]`)
	require.Contains(t, fmt.Sprint(b.Results[0].Violations), "throttle:2/1h", "the third one, counted from the log")
	require.Contains(t, fmt.Sprint(b.Results[0].Violations), "tokens_over", "and so is the cost")
	require.Len(t, w.listed(t, "&policy_id="+policy), 5, "events are found by the policy that matched them")
}

func TestARuleThatSuspendsAtTelemetryEndsTheAgentInTheAppendOfTheBatch(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	w.apply(t, w.rule(t, "suspend", `event.type == "error"`), id)
	first, b := w.sent(t, bearer(token), `[{"id":"1","type":"error"},{"id":"2","type":"error"},{"id":"3","type":"message"}]`, "Idempotency-Key: k")
	require.Equal(t, []string{id}, b.Suspended)
	require.Equal(t, 3, b.Accepted, "what has happened is kept")
	require.NotEqual(t, fmt.Sprint(*b.LastSeq), first.header.Get("X-Event-Seq"), "the last event is the agent's end")
	refused, _ := w.sent(t, bearer(token), `[{"type":"message"}]`)
	require.Equal(t, "token_revoked", refused.text(t, "error_code"))

	_, b = w.sent(t, w.projectKey(), fmt.Sprintf(`[{"id":"1","type":"error","agent_id":%q},{"type":"message","agent_id":%q}]`, id, id))
	require.Equal(t, "duplicate", b.Results[0].Status)
	require.Equal(t, "agent_inactive", b.Results[1].ErrorCode)
	w.end(t)
	events := w.events(t)
	for i, e := range events {
		if e.Type == event.TypeAgentDeactivated {
			require.Equal(t, []event.Type{event.TypeTelemetryReceived, event.TypeAgentTokenRevoked}, []event.Type{events[i-2].Type, events[i-1].Type})
			return
		}
	}
	t.Fatal("the agent was not deactivated")
}

// groupsOf gives the values of a group among the items of an answer.
func groupsOf(body map[string]any, name string) map[any]bool {
	values := map[any]bool{}
	for _, item := range body["items"].([]any) {
		values[item.(map[string]any)["group"].(map[string]any)[name]] = true
	}
	return values
}

func TestUsageCountsTelemetry(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	since := time.Now().UTC()
	id, token := w.register(t, "bot")
	w.sent(t, bearer(token), `[{"type":"llm_call","usage":{"input_tokens":900,"output_tokens":200,"cost_usd":"0.412"}},{"type":"heartbeat"}]`)
	w.sent(t, w.projectKey(), fmt.Sprintf(`[{"type":"heartbeat","agent_id":%q}]`, id))
	// Items are of a day, and a test may meet the end of one.
	usage := w.v1(t, http.MethodGet, "/usage?group_by=agent_id", "").json(t)
	totals := usage["totals"].(map[string]any)
	require.Equal(t, []any{3.0, 900.0, 200.0, "0.412000"}, []any{totals["telemetry_events"], totals["input_tokens"], totals["output_tokens"], totals["cost_usd"]})
	require.Equal(t, map[any]bool{id: true}, groupsOf(usage, "agent_id"))
	require.Len(t, groupsOf(w.v1(t, http.MethodGet, "/usage", "").json(t), "credential_id"), 2, "the token's and the key's")

	// Buckets are whole, wherever in them the question begins and ends.
	until := time.Now().UTC().Truncate(time.Second).Add(time.Second)
	hour := w.v1(t, http.MethodGet, "/usage?interval=1h&since="+since.Format(time.RFC3339)+"&until="+until.Format(time.RFC3339), "").json(t)
	require.Equal(t, event.Timestamp(since.Truncate(time.Hour)), hour["from"])
	require.Equal(t, event.Timestamp(until.Add(time.Hour-1).Truncate(time.Hour)), hour["to"])
	require.Equal(t, 3.0, hour["totals"].(map[string]any)["telemetry_events"])
	invalid := w.v1(t, http.MethodGet, "/usage?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "")
	require.Equal(t, "validation_failed", invalid.text(t, "error_code"))
}
