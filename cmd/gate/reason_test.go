package main

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// reasonPolicy demands a reason of every write, also where a grant would stand for the approval.
const reasonPolicy = `
schema: gate.policy/v1
name: with-reasons
version: 1.0.0
facts: facts/v1
rules:
  - id: writes
    decision: ALLOW
    reason_code: order_write
    match: { class: [write], query_types_only: [INSERT, UPDATE], tables_written_only: [public.orders], where_only: [key_equality], functions_only: [], risk_signals_only: [] }
    reason: required
  - id: deletes
    decision: REQUIRE_APPROVAL
    reason_code: delete_needs_approval
    match: { query_types: [DELETE], query_types_only: [DELETE], tables_written_only: [public.orders] }
    approval: { grants: true }
    reason: required
  - id: settings
    decision: ALLOW
    reason_code: settings
    match: { class: [session, tcl] }
`

const (
	paysOne    = "UPDATE orders SET status = 'paid' WHERE id = 1"
	deletesTwo = "DELETE FROM orders WHERE id = 2"
)

func startReasons(t *testing.T, extra ...string) *agentWorld {
	t.Helper()
	w := startAgents(t, append(toolsOn, extra...)...)
	w.activate(t, reasonPolicy)
	return w
}

func requireReasonDemanded(t *testing.T, r reply) {
	t.Helper()
	require.Equal(t, http.StatusForbidden, r.status, "%s", r.body)
	require.Equal(t, "reason_required", r.text(t, "reason_code"))
	require.Contains(t, r.text(t, "remedy"), "the field reason of POST /query")
}

func TestAWriteSaysWhyWhereThePolicyAsksForIt(t *testing.T) {
	t.Parallel()
	g := startReasons(t)
	requireReasonDemanded(t, g.query(t, ask(paysOne)))
	require.Equal(t, "reason_required", g.query(t, ask(paysOne), "mode=preview").text(t, "reason_code"))
	require.Equal(t, "new", g.value(t, "SELECT status FROM orders WHERE id = 1"))
	for _, bad := range []string{"", "  ", strings.Repeat("x", 257), "a\nb"} {
		r := g.query(t, ask(paysOne).with("reason", bad))
		require.Equal(t, "validation_failed", r.text(t, "error_code"), "%q", bad)
		require.Contains(t, string(r.body), `"reason":"must`)
	}
	require.Equal(t, http.StatusOK, g.query(t, ask(paysOne).with("reason", "ticket 1")).status)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT id FROM orders")).status)

	// The approver sees it; the retry says it, too; and no approval or grant stands for one.
	requireReasonDemanded(t, g.query(t, ask(deletesTwo)))
	asked := g.query(t, ask(deletesTwo).with("reason", "asked for by <Ada>"))
	require.Equal(t, http.StatusAccepted, asked.status, "%s", asked.body)
	id := asked.text(t, "approval_id")
	page := startTestPlane(t, g.base).reader(t).page(t, "/approvals/"+id)
	require.Contains(t, page, "asked for by")
	require.Contains(t, page, "&lt;Ada&gt;")
	code, out, errs := g.cli(t, "", "approvals", "show", id)
	require.Zero(t, code, errs)
	require.Contains(t, out, "asked for by <Ada>")
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	retry := ask(deletesTwo).with("approval_id", id)
	requireReasonDemanded(t, g.query(t, retry))
	require.Equal(t, "100", g.value(t, "SELECT count(*) FROM orders"))
	require.Equal(t, http.StatusOK, g.query(t, retry.with("reason", "asked for by <Ada>")).status)
	agent, token := g.register(t, "bot")
	g.grant(t, agent, `query_types.all(q, q == "DELETE") && tables_written.all(t, t == "public.orders")`, 5, 5)
	requireReasonDemanded(t, g.as(t, token, ask("DELETE FROM orders WHERE id = 3")))
	require.Equal(t, http.StatusOK, g.as(t, token, ask("DELETE FROM orders WHERE id = 3").with("reason", "so it was told")).status)
	require.Equal(t, "98", g.value(t, "SELECT count(*) FROM orders"))

	// Over the tools of agents.
	s := toolsOver(t, g, token)
	blocked := use(t, s, "sql", calling(paysOne))
	require.Equal(t, []string{"blocked", "reason_required"}, []string{blocked.Status, blocked.ReasonCode}, "%s", blocked.raw)
	require.Contains(t, blocked.text, "the argument reason of the tool sql")
	require.Equal(t, "completed", use(t, s, "sql", map[string]any{"sql": paysOne, "reason": "again"}).Status)
	require.Equal(t, "reason_required", use(t, s, "sql_preview", map[string]any{"sql": paysOne}).ReasonCode)
	require.Contains(t, string(use(t, s, "sql_preview", map[string]any{"sql": paysOne, "reason": "again"}).raw), `"decision":"ALLOW"`)
	found := use(t, s, "schema_search", map[string]any{"words": "public.orders"})
	require.Contains(t, string(found.raw), `"update_by_key":"ALLOW"`)

	// What a policy would have decided is told from the log, which has the reasons.
	dry := g.do(t, http.MethodPost, "/policy/dry-run", mustJSON(t, map[string]any{"sql": paysOne, "context": map[string]any{"reason_given": true}}))
	require.Equal(t, "ALLOW", dry.text(t, "decision"), "%s", dry.body)
	g.end(t) // and decides everything again
	require.Equal(t, map[string]int{"ticket 1": 1, "asked for by <Ada>": 2, "so it was told": 1, "again": 1}, g.reasonsGiven(t))
}

// reasonsGiven counts the reasons in the log of a gate that has ended.
func (d gateDir) reasonsGiven(t *testing.T) map[string]int {
	t.Helper()
	reasons := map[string]int{}
	for _, e := range d.events(t) {
		if e.Type == event.TypeRequestReceived {
			var p event.RequestReceived
			require.NoError(t, e.Parse(&p))
			reasons[p.Reason]++
		}
	}
	delete(reasons, "")
	return reasons
}

func TestAPersonSaysWhyOnTheCommandLine(t *testing.T) {
	t.Parallel()
	g := startReasons(t)
	code, out, errs := g.cli(t, "", "query", paysOne)
	require.Equal(t, exitFailed, code, errs)
	require.Regexp(t, `(?m)^reason +reason_required$`, out)
	require.Contains(t, out, "send it again with --reason")
	require.Equal(t, "new", g.value(t, "SELECT status FROM orders WHERE id = 1"))
	code, _, errs = g.cli(t, "", "query", paysOne, "--reason", "ticket 12")
	require.Zero(t, code, errs)
	require.Equal(t, "paid", g.value(t, "SELECT status FROM orders WHERE id = 1"))
	code, out, errs = g.cli(t, "", "query", paysOne, "--preview", "--reason", "would it pass?")
	require.Zero(t, code, errs)
	require.Contains(t, out, "ALLOW")

	// What waits for a person is sent again with its reason.
	approved := make(chan int, 1)
	go func() {
		var id string
		require.Eventually(t, func() bool {
			items, _ := g.get(t, "/approvals?status=pending").json(t)["items"].([]any)
			for _, one := range items {
				id = one.(map[string]any)["approval_id"].(string)
			}
			return id != ""
		}, startPatience, pollEvery)
		approved <- g.resolve(t, id, "approve").status
	}()
	code, _, errs = g.cli(t, "", "query", deletesTwo, "--reason", "Ada left", "--wait")
	require.Zero(t, code, errs)
	require.Equal(t, http.StatusOK, <-approved)
	require.Equal(t, "99", g.value(t, "SELECT count(*) FROM orders"))
	g.end(t)
	require.Equal(t, map[string]int{"ticket 12": 1, "Ada left": 2}, g.reasonsGiven(t))
}

func TestAConnectionSaysWhyByASetting(t *testing.T) {
	t.Parallel()
	g := startReasons(t, wireAgents()...)
	id, token := g.register(t, "bot")
	c, err := pgx.Connect(t.Context(), g.agentURL(t, id, token)+"&default_query_exec_mode=simple_protocol")
	require.NoError(t, err)
	defer c.Close(context.WithoutCancel(t.Context()))
	_, err = c.Exec(t.Context(), paysOne)
	require.ErrorContains(t, err, "lets this statement pass with a reason alone")
	require.Equal(t, "new", g.value(t, "SELECT status FROM orders WHERE id = 1"))
	for _, nothing := range []string{"   ", "\u200b", "\u3164 \u2800", "\u202e\ufeff\u115f\u00ad"} {
		_, err = c.Exec(t.Context(), "SET gate.reason = '"+nothing+"'")
		require.ErrorContains(t, err, "must say why", "%q", nothing)
	}
	_, err = c.Exec(t.Context(), "SET gate.reason = 'ticket 7'")
	require.NoError(t, err)
	_, err = c.Exec(t.Context(), paysOne)
	require.NoError(t, err)
	require.Equal(t, "paid", g.value(t, "SELECT status FROM orders WHERE id = 1"))
	_, err = c.Exec(t.Context(), "RESET gate.reason")
	require.NoError(t, err)
	_, err = c.Exec(t.Context(), paysOne)
	require.Error(t, err)
}
