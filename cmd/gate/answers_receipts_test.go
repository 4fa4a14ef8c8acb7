package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/sqlgate/policy"
)

// TestEveryKindOfAnswerThatWritesHasTheReceiptOfItsLastEvent calls each endpoint
// that can write, one after the other, and names the type of the event whose
// receipt the answer has to carry; "" is an answer that writes nothing.
func TestEveryKindOfAnswerThatWritesHasTheReceiptOfItsLastEvent(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_MAX_BODY_BYTES=65536")
	type answer struct {
		what string
		r    reply
		want event.Type
	}
	var answers []answer
	see := func(what string, status int, r reply, want event.Type) reply {
		t.Helper()
		require.Equal(t, status, r.status, "%s: %s", what, r.body)
		answers = append(answers, answer{what, r, want})
		return r
	}
	operate := func(path, body string) reply {
		return g.do(t, http.MethodPost, path, []byte(body), "X-GATE-Operator-Token: "+operatorTestToken)
	}
	see("a read", 200, g.query(t, ask("SELECT 1")), event.TypeExecutionSuccess)
	see("a write", 200, g.query(t, ask("UPDATE orders SET status = 'a' WHERE id = 1")), event.TypeExecutionSuccess)
	see("a write whose result is not synced", 200, g.query(t, ask("UPDATE orders SET status = 'b' WHERE id = 1").with("execution_profile", "latency")), event.TypeExecutionDispatched)
	see("a statement that fails", 422, g.query(t, ask("SELECT id / 0 FROM orders")), event.TypeExecutionFailure)
	see("a blocked one", 403, g.query(t, ask("DELETE FROM orders")), event.TypeDecisionRecorded)
	see("no SQL", 400, g.query(t, ask("SELEC")), event.TypeQueryRejected)
	see("a preview", 200, g.query(t, ask("SELECT 1"), "mode=preview"), "")
	see("a key", 200, g.query(t, ask("SELECT 2"), "idempotency_key=k"), event.TypeExecutionSuccess)
	see("its kept answer", 200, g.query(t, ask("SELECT 2"), "idempotency_key=k"), "")
	see("a missing field", 400, g.query(t, statement{"sql": "SELECT 1"}), "")

	held := see("a held one", 202, g.query(t, ask("DELETE FROM order_items WHERE order_id = 7")), event.TypeApprovalCreated)
	id := held.text(t, "approval_id")
	see("an approval", 200, g.resolve(t, id, "approve"), event.TypeApprovalResolved)
	see("a second one", 409, g.resolve(t, id, "reject"), "")
	see("its use", 200, g.query(t, ask("DELETE FROM order_items WHERE order_id = 7").with("approval_id", id)), event.TypeExecutionSuccess)
	see("an approval that nobody knows", 404, g.query(t, ask("SELECT 3").with("approval_id", "apr_01a1fea4-c55b-7d68-9511-eb79d97f5334")), event.TypeQueryRejected)
	see("nothing to purge", 200, operate("/approvals/purge", ""), "")

	next := strings.Replace(string(policy.Sample()), "version: 1.0.0", "version: 1.0.1", 1)
	require.NotEqual(t, string(policy.Sample()), next)
	see("a candidate", 201, operate("/policy/candidates", fmt.Sprintf(`{"document":%q}`, next)), event.TypePolicyCandidateCreated)
	see("the same again", 200, operate("/policy/candidates", fmt.Sprintf(`{"document":%q}`, next)), "")
	see("a wrong hash", 409, operate("/policy/activate", fmt.Sprintf(`{"expected_hash":"%064d"}`, 0)), "")
	see("an activation", 200, operate("/policy/activate", fmt.Sprintf(`{"expected_hash":"%x"}`, sha256.Sum256([]byte(next)))), event.TypePolicyActivated)
	see("a rollback", 200, operate("/policy/rollback", `{}`), event.TypePolicyRollback)

	see("a wrong token", 401, g.do(t, http.MethodPost, "/approvals/purge", nil, "X-GATE-Operator-Token: wrong"), event.TypeOperatorAuthFailed)
	see("a second one soon after", 401, g.do(t, http.MethodPost, "/approvals/purge", nil, "X-GATE-Operator-Token: wrong"), "")
	see("a body too large", 413, g.do(t, http.MethodPost, "/query", []byte(strings.Repeat(" ", 70000))), event.TypeOversizedRequest)
	for _, path := range []string{"/audit", "/approvals", "/health", "/executions", "/evidence/verify", "/policy/status", "/nowhere"} {
		r := g.get(t, path)
		see(path, r.status, r, "")
	}
	g.end(t)

	events := g.events(t)
	for _, a := range answers {
		text := a.r.header.Get(checkpoint.Header)
		if a.want == "" {
			require.Empty(t, text, "%s wrote nothing", a.what)
			continue
		}
		require.NotEmpty(t, text, a.what)
		r, err := checkpoint.ParseReceipt(text)
		require.NoError(t, err)
		require.Equal(t, a.want, events[r.Seq-1].Type, a.what)
	}
}

func TestALimitedRequestHasTheReceiptOfItsIncident(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1", "GATE_RATE_LIMIT_BURST=1")
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	first, second := g.query(t, ask("SELECT 1")), g.query(t, ask("SELECT 1"))
	require.Equal(t, http.StatusTooManyRequests, first.status)
	require.Equal(t, http.StatusTooManyRequests, second.status)
	require.NotEmpty(t, first.header.Get(checkpoint.Header), "rate_limit_hit is an event")
	require.Empty(t, second.header.Get(checkpoint.Header), "it is only counted")
}
