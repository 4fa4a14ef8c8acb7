package main

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/fixtures/postgres"
)

// startLost is a gate whose last write waits at COMMIT for a standby that is
// not there: its outcome is unknown. arrive lets the COMMIT through.
func startLost(t *testing.T, extra ...string) (g *testGate, approval, execution string, arrive func()) {
	t.Helper()
	d, cluster := newClusterDir(t, map[string]string{"synchronous_standby_names": "gone", "synchronous_commit": "local"})
	request := ask("DELETE FROM order_items WHERE order_id = 2")
	g = startGate(t, d, "GATE_OUTCOME_CHECK_INTERVAL_SECONDS=0")
	approval = g.approved(t, request)
	d.execute(t, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = on', current_database()); END $$")
	g.end(t)
	g = startGate(t, d, append(extra, "GATE_DB_COMMIT_TIMEOUT_MS=300")...)
	lost := g.query(t, request.with("approval_id", approval), "idempotency_key=lost")
	requireFailure(t, lost, http.StatusGatewayTimeout, "db_query_timeout", "unknown")
	require.Eventually(t, func() bool { // the server may only now have come so far
		return postgres.QueryURL(t, cluster.URL("postgres"), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1"
	}, startPatience, pollEvery)
	return g, approval, lost.text(t, "execution_id"), func() {
		ended := postgres.QueryURL(t, cluster.URL("postgres"), "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
		require.Equal(t, "1", ended, "the wait for the standby ends, the COMMIT stands")
	}
}

func (g *testGate) checkOutcome(t testing.TB, execution string) reply {
	t.Helper()
	return g.post(t, "/executions/"+execution+"/check", "")
}

// TestAnUnknownOutcomeIsSettledByACheck: "did my write land?" is answered by
// the database, once it can tell, and what hung on the answer goes on.
func TestAnUnknownOutcomeIsSettledByACheck(t *testing.T) {
	t.Parallel()
	g, approval, execution, arrive := startLost(t, "GATE_OUTCOME_CHECK_INTERVAL_SECONDS=0")
	for range 2 { // the second check says nothing new
		waits := g.checkOutcome(t, execution)
		require.Equal(t, http.StatusOK, waits.status, "%s", waits.body)
		require.Equal(t, []any{"unknown", "in_progress", "pg_xact_status"}, pick(waits.json(t), "execution_state", "outcome", "basis"))
	}
	arrive()
	var settled reply
	require.Eventually(t, func() bool {
		settled = g.checkOutcome(t, execution)
		return settled.text(t, "outcome") == "committed"
	}, startPatience, pollEvery, "%s", settled.body)
	require.Equal(t, "success", settled.text(t, "execution_state"))
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM order_items WHERE order_id = 2"))
	require.JSONEq(t, string(settled.body), string(g.checkOutcome(t, execution).body), "what is known is not asked again")

	request := ask("DELETE FROM order_items WHERE order_id = 2")
	requireFault(t, g.query(t, request.with("approval_id", approval)), http.StatusConflict, "approval_already_used")
	replayed := g.query(t, request.with("approval_id", approval), "idempotency_key=lost").json(t)
	require.Equal(t, "unknown", replayed["execution_state"], "the first answer stays what it was")
	require.Equal(t, "committed", replayed["details"].(map[string]any)["outcome"])
	g.end(t)

	count := map[string]int{}
	for _, e := range g.events(t) {
		var p event.ExecutionOutcomeResolved
		if e.Type == event.TypeExecutionOutcomeResolved && e.Parse(&p) == nil && e.Context.ExecutionID == execution {
			count[p.Outcome+" by "+p.By]++
		}
	}
	require.Equal(t, map[string]int{"in_progress by operator": 1, "committed by operator": 1}, count)
}

func TestTheGateChecksUnknownOutcomesByItself(t *testing.T) {
	t.Parallel()
	g, _, execution, arrive := startLost(t, "GATE_OUTCOME_CHECK_INTERVAL_SECONDS=1")
	arrive()
	require.Eventually(t, func() bool {
		return g.get(t, "/executions/"+execution).text(t, "execution_state") == "success"
	}, startPatience, pollEvery)
	require.Zero(t, g.get(t, "/runtime/stats").json(t)["executions_unknown"])
}

func TestACheckThatCannotBeAnswered(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, http.StatusUnauthorized, g.do(t, http.MethodPost, "/executions/exe_x/check", nil).status)
	requireFault(t, g.checkOutcome(t, "exe_x"), http.StatusNotFound, "not_found")
	requireFault(t, g.post(t, "/executions/exe_x/check", `{"x":1}`), http.StatusBadRequest, "invalid_json")
	ran := g.query(t, ask("SELECT 1"))
	known := g.checkOutcome(t, ran.text(t, "execution_id"))
	require.Equal(t, []any{"success", nil}, pick(known.json(t), "execution_state", "outcome"))
}
