package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/eventlog/event"
	"writegate/fixtures/certs"
)

// These tests hold that what was kept for one caller is given to no other: a key
// or an id is its caller's own, and a name that is verified counts beside claims.

func TestAKeyUnderV1IsItsCallersOwn(t *testing.T) {
	t.Parallel()
	second := agentctl.NewSecret(agentctl.KeyPrefix)
	w := startAgents(t)
	w.end(t)
	w.testGate = startGate(t, w.gateDir, "GATE_PROJECT_KEYS=shop/ops="+w.key+",shop/dev="+second)
	_, a := w.register(t, "a")
	_, b := w.register(t, "b")
	for _, token := range []string{a, b} {
		r, sent := w.sent(t, bearer(token), `[{"type":"heartbeat"}]`, "Idempotency-Key: 1")
		require.Empty(t, r.header.Get("Idempotency-Replayed"))
		require.Equal(t, 1, sent.Accepted)
		again, kept := w.sent(t, bearer(token), `[{"type":"heartbeat"}]`, "Idempotency-Key: 1")
		require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
		require.Equal(t, sent, kept)
	}
	require.Len(t, w.listed(t, "&event_type=telemetry_received"), 2)

	// An agent beside a key is another caller than the key alone, and so is another key.
	made := map[string]bool{}
	for _, headers := range [][]string{{w.projectKey()}, {w.projectKey(), bearer(a)}, {"X-Api-Key: " + second}, {w.projectKey()}} {
		r := w.do(t, http.MethodPost, "/v1/agents", []byte(`{"name":"c","type":"worker","issue_token":false}`), append(headers, "Idempotency-Key: 1")...)
		require.Equal(t, http.StatusCreated, r.status, "%s", r.body)
		made[r.text(t, "id")] = true
	}
	require.Len(t, made, 3)
}

func TestAnIDOfTelemetryIsItsAgentsOwn(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	one, a := w.register(t, "a")
	two, b := w.register(t, "b")
	for _, token := range []string{a, b} {
		_, sent := w.sent(t, bearer(token), `[{"id":"ev-1","type":"heartbeat"},{"id":"ev-1","type":"heartbeat"}]`)
		require.Equal(t, []int{1, 1}, []int{sent.Accepted, sent.Duplicates})
	}
	_, sent := w.sent(t, w.projectKey(), fmt.Sprintf(`[{"id":"ev-1","type":"x","agent_id":%q},{"id":"ev-2","type":"x","agent_id":%q},{"id":"ev-2","type":"x","agent_id":%q}]`, one, one, two))
	require.Equal(t, []int{2, 1}, []int{sent.Accepted, sent.Duplicates}, "whoever reports it")
}

// readings lets one certificate alone read customers.
const readings = openPolicy + `  - id: closed
    decision: BLOCK
    reason_code: only_alice
    match: { tables_read: [public.customers] }
    when: tls_subject != "CN=alice"
`

func TestAnAnswerUnderAKeyIsForTheCertificateThatAsked(t *testing.T) {
	t.Parallel()
	g := startTLSGateWith(t, newGateDir(t, []byte(readings)), time.Hour)
	read := ask("SELECT * FROM customers ORDER BY id LIMIT 2")
	as := func(name string, s statement, params ...string) reply {
		g.testGate.client = g.as(t, name)
		return g.query(t, s, params...)
	}
	first := as("alice", read, "idempotency_key=k7")
	require.Equal(t, http.StatusOK, first.status, "%s", first.body)
	again := as("alice", read, "idempotency_key=k7")
	require.Equal(t, true, again.json(t)["replayed"])
	require.Equal(t, "only_alice", as("bob", read).text(t, "reason_code"))
	other := as("bob", read, "idempotency_key=k7")
	require.Equal(t, http.StatusConflict, other.status, "%s", other.body)
	require.Equal(t, "idempotency_conflict", other.text(t, "error_code"))
	require.NotContains(t, string(other.body), "rows")
}

// Certificates of workloads often have no subject, but are named by the names in
// their extension alone: each is a client of its own all the same.
func TestACertificateWithoutASubjectIsAClientOfItsOwn(t *testing.T) {
	t.Parallel()
	g := startTLSGateWith(t, newGateDir(t, []byte(strings.Replace(readings, "CN=alice", "SAN:URI=spiffe://shop.test/one", 1))), time.Hour)
	as := func(workload string, s statement, params ...string) reply {
		g.testGate.client = g.as(t, "leaf", certs.Nameless("spiffe://shop.test/"+workload))
		return g.query(t, s, params...)
	}
	read := ask("SELECT * FROM customers ORDER BY id LIMIT 2")
	first := as("one", read, "idempotency_key=k7")
	require.Equal(t, http.StatusOK, first.status, "%s", first.body)
	require.Equal(t, true, as("one", read, "idempotency_key=k7").json(t)["replayed"])
	require.Equal(t, "only_alice", as("two", read).text(t, "reason_code"))
	other := as("two", read, "idempotency_key=k7")
	require.Equal(t, "idempotency_conflict", other.text(t, "error_code"))
	require.NotContains(t, string(other.body), "rows")

	deleting := ask("DELETE FROM order_items WHERE order_id = 1 AND line = 1")
	id := as("one", deleting).text(t, "approval_id")
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	require.Equal(t, "approval_mismatch", as("two", deleting.with("approval_id", id)).text(t, "error_code"))
	require.Equal(t, http.StatusOK, as("one", deleting.with("approval_id", id)).status)

	require.Equal(t, http.StatusOK, as("one", in("s1", "PREPARE p AS SELECT 1")).status)
	require.Equal(t, "session_not_found", as("two", in("s1", "EXECUTE p")).text(t, "error_code"))
	require.Equal(t, http.StatusOK, as("one", in("s1", "EXECUTE p")).status)

	g.end(t)
	asked := map[string]int{}
	for _, e := range g.events(t) {
		if e.Type == event.TypeRequestReceived {
			var p event.RequestReceived
			require.NoError(t, e.Parse(&p))
			asked[p.Principal]++
		}
	}
	require.Equal(t, []string{"SAN:URI=spiffe://shop.test/one", "SAN:URI=spiffe://shop.test/two"}, slices.Sorted(maps.Keys(asked)))
}

func TestAnApprovalIsForTheCertificateThatAsked(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, time.Hour, "GATE_MODE=approval_first")
	asked := g.query(t, ask(paying))
	require.Equal(t, http.StatusAccepted, asked.status, "%s", asked.body)
	id := asked.text(t, "approval_id")
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	retry := ask(paying).with("approval_id", id)
	g.testGate.client = g.as(t, "bob")
	require.Equal(t, "approval_mismatch", g.query(t, retry).text(t, "error_code"))
	g.testGate.client = g.as(t, "shop")
	require.Equal(t, http.StatusOK, g.query(t, retry).status)
}

func TestWhatAnOperatorReadInAnEmergencyIsGivenToNoOther(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(readings))
	d.execute(t, shopTables)
	g := startGate(t, d, "GATE_MODE=emergency_bypass", "GATE_EMERGENCY_BYPASS_REASON=the policy is wrong",
		"GATE_EMERGENCY_BYPASS_UNTIL="+time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	read := mustJSON(t, ask("SELECT * FROM customers ORDER BY id LIMIT 2"))
	operator := "X-GATE-Operator-Token: " + operatorTestToken
	for _, replayed := range []any{nil, true} {
		r := g.do(t, http.MethodPost, "/query", read, operator, "Idempotency-Key: k")
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		require.Equal(t, replayed, r.json(t)["replayed"])
	}
	r := g.do(t, http.MethodPost, "/query", read, "Idempotency-Key: k")
	require.Equal(t, "idempotency_conflict", r.text(t, "error_code"), "%s", r.body)
}

func TestASessionIsItsAgentsOwn(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	_, a := w.register(t, "a")
	_, b := w.register(t, "b")
	require.Equal(t, http.StatusOK, w.as(t, a, in("s1", "PREPARE one AS SELECT 1")).status)
	require.Equal(t, http.StatusOK, w.as(t, a, in("s1", "EXECUTE one")).status)
	require.Equal(t, "session_not_found", w.as(t, b, in("s1", "EXECUTE one")).text(t, "error_code"))
	require.Equal(t, "session_not_found", w.query(t, in("s1", "DEALLOCATE one")).text(t, "error_code"))
}
