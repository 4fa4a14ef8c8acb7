package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// measured asks for metrics.
func (w *agentWorld) measured(t *testing.T, query string, headers ...string) map[string]any {
	t.Helper()
	if len(headers) == 0 {
		headers = []string{w.projectKey()}
	}
	r := w.do(t, http.MethodGet, "/v1/metrics?"+query, nil, headers...)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	return r.json(t)
}

func TestMetricsSumUpWhatAgentsDid(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	other, _ := w.register(t, "other")
	w.apply(t, w.made(t, "/policies", `{"name":"p","rules":[{"action":"alert","condition":"event.type == \"llm_call\""},{"action":"block","condition":"event.type == \"error\""},{"action":"block","condition":"sql.class == \"write\""}]}`)["id"].(string), id)
	hour := time.Now().UTC().Add(-2 * time.Hour).Truncate(time.Hour)
	at := func(minute int) string { return hour.Add(time.Duration(minute) * time.Minute).Format(time.RFC3339) }
	_, b := w.sent(t, w.projectKey(), fmt.Sprintf(`[
		{"agent_id":%[1]q,"timestamp":%[3]q,"type":"llm_call","duration_ms":180,"model":{"name":"m-1"},"usage":{"input_tokens":91,"output_tokens":12,"cost_usd":"0.412"}},
		{"agent_id":%[1]q,"timestamp":%[4]q,"type":"tool_call","duration_ms":900,"tool":{"name":"run_sql"}},
		{"agent_id":%[1]q,"timestamp":%[4]q,"type":"error"},
		{"agent_id":%[2]q,"timestamp":%[4]q,"type":"tool_call","status":"error"}]`, id, other, at(1), at(7)))
	require.Equal(t, 4, b.Accepted)
	require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT 1")).status)
	require.Equal(t, http.StatusForbidden, w.as(t, token, ask(paying)).status)

	all := w.measured(t, "")
	totals := all["totals"].(map[string]any)
	require.Equal(t, 4.0, totals["events"])
	require.Equal(t, 2.0, totals["errors"])
	require.Equal(t, 2.0, totals["tool_calls"])
	require.Equal(t, "0.412000", totals["cost_usd"])
	require.Equal(t, map[string]any{"input": 91.0, "output": 12.0, "total": 103.0}, totals["tokens"])
	require.Equal(t, map[string]any{"count": 2.0, "avg": 540.0, "p50": 181.0, "p95": 900.0, "p99": 900.0, "max": 900.0}, totals["latency_ms"])
	require.Equal(t, map[string]any{"evaluated": 3.0, "matched": 2.0, "violations": 1.0}, totals["policy"])
	require.Equal(t, map[string]any{"allow": 1.0, "block": 1.0, "require_approval": 0.0}, totals["sql"])
	require.Equal(t, "1h", all["interval"])

	span := "since=" + at(0) + "&until=" + at(59)
	one := w.measured(t, span+"&interval=5m&group_by=agent_id,tool&agent_id="+id)["items"].([]any)
	require.Len(t, one, 3)
	require.Equal(t, map[string]any{"agent_id": id, "tool": ""}, one[0].(map[string]any)["group"])
	require.Equal(t, map[string]any{"agent_id": id, "tool": "run_sql"}, one[1].(map[string]any)["group"])
	require.Equal(t, hour.Format("2006-01-02T15:04:05.000000000Z"), one[2].(map[string]any)["start"], "the oldest bucket is last")
	require.Nil(t, one[0].(map[string]any)["latency_ms"].(map[string]any)["avg"], "nothing had a duration")
	require.Len(t, w.measured(t, span+"&interval=1d&group_by=environment")["items"], 1)
	require.Equal(t, 2.0, w.measured(t, span+"&type=tool_call")["totals"].(map[string]any)["events"])

	own := w.made(t, "/agents/"+id+"/tokens", `{"scopes":["metrics:read"]}`)["token"].(string)
	require.Equal(t, 3.0, w.measured(t, span, bearer(own))["totals"].(map[string]any)["events"], "a token sees its own agent")
	for query, code := range map[string]string{"agent_id=" + other: "agent_mismatch", "interval=2h": "validation_failed", "group_by=name": "validation_failed", "group_by=type,type": "validation_failed",
		"since=" + at(5) + "&until=" + at(1): "validation_failed", "interval=1m&since=2020-01-01T00:00:00Z": "validation_failed", "since=x": "validation_failed"} {
		require.Equal(t, code, w.do(t, http.MethodGet, "/v1/metrics?"+query, nil, bearer(own)).text(t, "error_code"), query)
	}
	before := w.measured(t, span+"&group_by=agent_id,type,model,tool,environment")
	w.end(t)
	w.testGate = startGate(t, w.gateDir, "GATE_PROJECT_KEYS=shop/ops="+w.key)
	after := w.measured(t, span+"&group_by=agent_id,type,model,tool,environment")
	require.Equal(t, before["items"], after["items"])
}

func TestMetricsOfTooManyItemsAreRefused(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	_, token := w.register(t, "bot")
	for half := range 2 {
		events := make([]string, 600)
		for i := range events {
			events[i] = fmt.Sprintf(`{"type":"x","tool":{"name":"t-%d-%d"}}`, half, i)
		}
		w.sent(t, bearer(token), "["+strings.Join(events, ",")+"]")
	}
	r := w.v1(t, http.MethodGet, "/metrics?group_by=tool", "")
	require.Equal(t, "validation_failed", r.text(t, "error_code"), "%.300s", r.body)
	require.Equal(t, 1200.0, w.measured(t, "")["totals"].(map[string]any)["events"])
}
