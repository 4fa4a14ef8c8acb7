package main

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// TestATraceLeadsFromTheClientToTheDatabase: the trace of a request stands in the
// log lines about it, in the name under which the database shows its statement,
// and in the evidence; a traceparent that is none changes nothing.
func TestATraceLeadsFromTheClientToTheDatabase(t *testing.T) {
	t.Parallel()
	const id, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	g := startShop(t, "GATE_MODE=shadow")
	send := func(sql, traceparent string) reply {
		t.Helper()
		body, err := json.Marshal(ask(sql))
		require.NoError(t, err)
		return g.do(t, http.MethodPost, "/query", body, "traceparent: "+traceparent)
	}
	const name = "UPDATE orders SET status = current_setting('application_name') WHERE id = 1 RETURNING status"
	for range 2 {
		require.JSONEq(t, `[{"status": "gate/writer `+id+"-"+span+`"}]`, string(send(name, "00-"+id+"-"+span+"-01").raw(t, "rows")))
		require.JSONEq(t, `[{"status": "gate/writer"}]`, string(send(name, "00-'; DROP TABLE orders; --").raw(t, "rows")))
	}
	require.Equal(t, 0.0, g.get(t, "/runtime/stats").json(t)["pool"].(map[string]any)["quarantined"], "no drift")

	require.Equal(t, http.StatusBadRequest, send("SELEC", "00-"+id+"-"+span+"-01").status)
	found := false
	for _, item := range g.get(t, "/logs").json(t)["items"].([]any) {
		entry := item.(map[string]any)
		found = found || entry["trace_id"] == id && entry["message"] == "request failed: parser_error"
	}
	require.True(t, found)
	require.Contains(t, g.output.String(), `"trace_id":"`+id+`"`)
	g.end(t)
	var traced []string
	for _, e := range g.events(t) {
		var p event.ExecutionDispatched
		if e.Type == event.TypeExecutionDispatched {
			require.NoError(t, e.Parse(&p))
			traced = append(traced, p.Settings["application_name"])
		}
	}
	with := "gate/writer " + id + "-" + span
	require.Equal(t, []string{with, "", with, ""}, traced)
}

// What a client chooses and nobody was shown must not tell an approved statement what to do.
func TestAnApprovedStatementReadsNoTrace(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	s := ask("DELETE FROM orders WHERE id = CASE current_setting('application_name') WHEN 'gate/writer' THEN 1 ELSE 2 END RETURNING id")
	id := g.approved(t, s)
	body, err := json.Marshal(s.with("approval_id", id))
	require.NoError(t, err)
	answer := g.do(t, http.MethodPost, "/query", body, "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	require.Equal(t, http.StatusOK, answer.status, "%s", answer.body)
	require.JSONEq(t, `[{"id": 1}]`, string(answer.raw(t, "rows")))
}
