package main

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// types lists the event types in order, without the events of start and end.
func types(all []event.Envelope) []event.Type {
	var found []event.Type
	for _, e := range all {
		switch e.Type {
		case event.TypeStartup, event.TypeShutdown, event.TypePolicyLoaded, event.TypePolicyValidated, event.TypePolicyActivated, event.TypeCheckpointSigned:
		default:
			found = append(found, e.Type)
		}
	}
	return found
}

func TestTheMainJob(t *testing.T) {
	t.Parallel()
	g := startShop(t)

	read := g.query(t, ask("SELECT id, status FROM orders ORDER BY id LIMIT 2"))
	require.Equal(t, http.StatusOK, read.status, "%s", read.body)
	require.Equal(t, "success", read.text(t, "execution_state"))
	require.JSONEq(t, `[{"id":1,"status":"new"},{"id":2,"status":"new"}]`, string(mustField(t, read, "rows")))

	write := g.query(t, ask("UPDATE orders SET status = 'paid' WHERE id = 1"))
	require.Equal(t, http.StatusOK, write.status, "%s", write.body)
	require.Equal(t, "paid", g.value(t, "SELECT status FROM orders WHERE id = 1"))

	blocked := g.query(t, ask("DELETE FROM orders"))
	require.Equal(t, http.StatusForbidden, blocked.status)
	require.Equal(t, "BLOCK", blocked.text(t, "decision"))
	require.Equal(t, "write_without_filter", blocked.text(t, "reason_code"))
	require.Equal(t, "100", g.value(t, "SELECT count(*) FROM orders"))

	held := g.query(t, ask("DELETE FROM orders WHERE id = 2"))
	require.Equal(t, http.StatusAccepted, held.status, "%s", held.body)
	id := held.text(t, "approval_id")
	retry := ask("DELETE FROM orders WHERE id = 2").with("approval_id", id)

	early := g.query(t, retry)
	require.Equal(t, http.StatusAccepted, early.status)
	require.Equal(t, id, early.text(t, "approval_id"))
	require.Equal(t, "100", g.value(t, "SELECT count(*) FROM orders"), "nothing executes before the approval")

	approved := g.resolve(t, id, "approve")
	require.Equal(t, http.StatusOK, approved.status, "%s", approved.body)
	require.Equal(t, "resolved", approved.text(t, "status"))
	require.Equal(t, "100", g.value(t, "SELECT count(*) FROM orders"), "an approval executes nothing by itself")

	done := g.query(t, retry)
	require.Equal(t, http.StatusOK, done.status, "%s", done.body)
	require.Equal(t, "99", g.value(t, "SELECT count(*) FROM orders"))
	require.Equal(t, "approval_already_used", g.query(t, retry).text(t, "error_code"))

	require.Equal(t, "ok", g.get(t, "/evidence/verify").text(t, "status"))
	g.end(t)
	require.Equal(t, []event.Type{
		"request_received", "decision_recorded", "execution_dispatched", "execution_success",
		"request_received", "decision_recorded", "execution_dispatched", "execution_success",
		"request_received", "decision_recorded",
		"request_received", "decision_recorded", "approval_created",
		"query_rejected",
		"approval_resolved",
		"request_received", "decision_recorded", "approval_used", "execution_dispatched", "execution_success",
		"query_rejected",
	}, types(g.events(t)))
}

func mustField(t testing.TB, r reply, field string) []byte {
	t.Helper()
	var fields map[string]rawJSON
	unmarshal(t, r.body, &fields)
	return fields[field]
}

func TestARequestWithTwoModesNeverRuns(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	r := g.query(t, ask("UPDATE orders SET status = 'paid' WHERE id = 1"), "mode=live", "mode=preview")
	require.Equal(t, http.StatusBadRequest, r.status)
	require.Equal(t, "validation_failed", r.text(t, "error_code"))
	require.Equal(t, "new", g.value(t, "SELECT status FROM orders WHERE id = 1"))
}

func TestAPreviewDecidesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	r := g.query(t, ask("UPDATE orders SET status = 'paid' WHERE id = 1"), "mode=preview")
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, "ALLOW", r.text(t, "decision"))
	require.Equal(t, false, r.json(t)["would_execute"])
	require.Equal(t, false, r.json(t)["audit_written"])
	require.Equal(t, "new", g.value(t, "SELECT status FROM orders WHERE id = 1"))
	g.end(t)
	require.Empty(t, types(g.events(t)))
}
