package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// mock is a source that invents everything, to show the pages without a gate.
// Each of its answers is marked, no hash in it looks like one, and nothing that
// it is asked to do happens.
type mock struct {
	now     func() time.Time
	started time.Time
}

func newMock(now func() time.Time) *mock { return &mock{now: now, started: now()} }

// do implements source.
func (m *mock) do(ctx context.Context, r request) (*answer, error) {
	if r.path == "/audit/stream" {
		return &answer{http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}}, &quietStream{ctx: ctx}}, nil
	}
	value, status := m.answer(r)
	body, err := json.Marshal(marked(value))
	if err != nil {
		return nil, fmt.Errorf("invented answer: %w", err)
	}
	return &answer{status, http.Header{"Content-Type": {"application/json"}}, io.NopCloser(bytes.NewReader(body))}, nil
}

// marked adds "mock": true to an answer (spec/decisions.md part 9).
func marked(value any) any {
	fields := make(map[string]any)
	body, err := json.Marshal(value)
	if err != nil || json.Unmarshal(body, &fields) != nil {
		fields = map[string]any{"value": value}
	}
	fields["mock"] = true
	return fields
}

// quietStream is a stream of events on which nothing happens.
type quietStream struct {
	ctx  context.Context
	said bool
}

func (q *quietStream) Read(p []byte) (int, error) {
	if !q.said {
		q.said = true
		return copy(p, ": mock\n\n"), nil
	}
	<-q.ctx.Done()
	return 0, io.EOF
}

func (q *quietStream) Close() error { return nil }

func items[T any](list ...T) map[string]any { return map[string]any{"items": list, "next_cursor": nil} }

func (m *mock) answer(r request) (any, int) {
	if r.method != http.MethodGet {
		return m.change(r)
	}
	switch path := r.path; {
	case path == "/health":
		return m.health(), http.StatusOK
	case path == "/runtime/stats":
		return m.stats(), http.StatusOK
	case path == "/approvals":
		return items(m.approvals(r.query.Get("status"))...), http.StatusOK
	case strings.HasPrefix(path, "/approvals/"):
		return found(m.approvals(""), func(a map[string]any) bool { return path == "/approvals/"+a["approval_id"].(string) })
	case path == "/executions":
		return items(m.executions(r.query.Get("execution_state"))...), http.StatusOK
	case strings.HasPrefix(path, "/executions/"):
		return found(m.executions(""), func(e map[string]any) bool { return path == "/executions/"+e["execution_id"].(string) })
	case path == "/grants":
		return items[any](), http.StatusOK
	case path == "/audit":
		return items(m.events(r)...), http.StatusOK
	case path == "/policy/status":
		return map[string]any{"loaded": true, "policy_version": mockPolicy, "rule_count": 2, "operator_auth_enabled": true, "hash": "mock", "mode": "enforce",
			"activated_at": m.started, "tests": counted{4, 4}, "corpus": counted{120, 120}}, http.StatusOK
	case path == "/policy/versions":
		return items(m.version("")), http.StatusOK
	case strings.HasPrefix(path, "/policy/versions/"):
		return m.version(mockDocument), http.StatusOK
	case path == "/evidence/verify":
		return map[string]any{"status": "partial", "source": "mock", "warnings": []string{"Mock mode: there is no log, so nothing was verified."}, "not_excluded": []string{"everything"}}, http.StatusOK
	case path == "/logs":
		return items(map[string]any{"timestamp": m.started, "level": "info", "source": "mock", "message": "This is mock mode. Nothing here happened."}), http.StatusOK
	case strings.HasPrefix(path, "/v1/"):
		return m.project(path)
	}
	return nothing()
}

func nothing() (any, int) {
	return map[string]any{"error_code": "not_found", "message": "Mock mode has nothing here.", "error_id": "mock"}, http.StatusNotFound
}

func found(list []map[string]any, is func(map[string]any) bool) (any, int) {
	for _, one := range list {
		if is(one) {
			return one, http.StatusOK
		}
	}
	return nothing()
}

// change answers what would change something: that nothing did.
func (m *mock) change(r request) (any, int) {
	switch r.path {
	case "/policy/validate":
		return map[string]any{"valid": true, "tests": counted{4, 4}, "corpus": counted{120, 120}, "findings": []any{}, "warnings": []any{}}, http.StatusOK
	case "/policy/dry-run":
		return map[string]any{"decision": "REQUIRE_APPROVAL", "reason_code": "mock", "reason": "Mock mode decides nothing; this is always the answer.", "rule_id": "mock-rule",
			"policy_version": mockPolicy, "fingerprint": "mock", "classification": mockClasses[0], "rule_trace": []any{}}, http.StatusOK
	}
	return map[string]any{"error_code": "validation_failed", "message": "This is mock mode: nothing was done.", "error_id": "mock"}, http.StatusBadRequest
}

func (m *mock) health() map[string]any {
	var chain []step
	for _, name := range []string{"audit_log_continuity", "manifest_validation", "policy_hash_match", "policy_validation", "activation_dry_run_corpus"} {
		chain = append(chain, step{name, "ok", "Invented."})
	}
	return map[string]any{"status": "ok", "version": "mock", "uptime_seconds": int64(m.now().Sub(m.started) / time.Second), "mode": "enforce",
		"startup_chain": chain, "database": step{Status: "ok", Message: "Invented."}, "log": map[string]any{"seq": 42, "event_hash": "mock"}}
}

func (m *mock) stats() map[string]any {
	n := int64(m.now().Sub(m.started)/time.Second) + 1
	jitter := rand.Float64()
	return map[string]any{"uptime_seconds": n, "requests_total": 40 * n, "decisions": map[string]int64{"ALLOW": 36 * n, "BLOCK": n, "REQUIRE_APPROVAL": 3 * n},
		"latency_ms":     map[string]quantiles{"total": {2.1, 4.5 + jitter, 9.2}, "database": {1.2, 2.6 + jitter, 5.1}, "classify": {0.1, 0.3, 0.6}, "log": {0.4, 1.1, 2.2}, "decide": {0.01, 0.02, 0.05}},
		"policy_version": mockPolicy, "approvals_pending": len(mockSQL), "approvals_resolved": 1, "executions_unknown": 1, "pool": map[string]int{"in_use": 1, "idle": 3}}
}

const mockPolicy = "mock-policy@0.0.0"

const mockDocument = `schema: gate.policy/v1
name: mock-policy
version: 0.0.0
rules:
  - id: mock-rule
    decision: REQUIRE_APPROVAL
    reason_code: mock
    match: { query_types: [UPDATE, DELETE] }
    message: Invented for the mock mode.
  - id: mock-allow
    decision: ALLOW
    reason_code: mock
    match: { class: [write], tables_written_only: [public.mock_orders] }
    message: Invented for the mock mode.
`

var mockSQL = []string{
	"UPDATE mock_orders SET status = 'refunded' WHERE customer = 'nobody' -- harmless, please approve",
	"DELETE FROM mock_carts",
	"ALTER TABLE mock_orders ADD COLUMN note text",
}

var mockClasses = []map[string]any{
	{"query_type": "UPDATE", "class": "write", "tables_written": []string{"public.mock_orders"}, "where": []string{"present"}, "risk_signals": []string{}, "signals": []any{}},
	{"query_type": "DELETE", "class": "write", "tables_written": []string{"public.mock_carts"}, "where": []string{"none"}, "risk_signals": []string{"write_without_where"},
		"signals": []signal{{Signal: "write_without_where", Severity: "high"}}},
	{"query_type": "ALTER", "class": "ddl", "tables_written": []string{"public.mock_orders"}, "risk_signals": []string{}, "signals": []any{}, "advice": []string{"blocks_all"}},
}

func (m *mock) approvals(status string) []map[string]any {
	var list []map[string]any
	for i, sql := range mockSQL {
		a := map[string]any{"approval_id": fmt.Sprintf("apr_mock-%d", i), "status": "pending", "sql": sql, "classification": mockClasses[i], "fingerprint": fmt.Sprintf("mock%d", i),
			"principal": "user=mock", "context": claims{Actor: "mock-agent", App: "mock-shop", Tenant: "mock", Role: "clerk", Host: "nowhere", Env: "staging"},
			"created_at": m.now().Add(-time.Duration(i+1) * 40 * time.Second), "expires_at": m.now().Add(time.Duration(4-i) * time.Minute),
			"policy_version": mockPolicy, "reason_code": "mock", "rule_id": "mock-rule", "request_id": "req_mock"}
		list = append(list, a)
	}
	if status == "" || status == "pending" {
		return list
	}
	return nil
}

func (m *mock) executions(state string) []map[string]any {
	one := map[string]any{"execution_id": "exe_mock", "request_id": "req_mock", "execution_state": "unknown", "path": "tx", "operation": "UPDATE",
		"dispatched_at": m.now().Add(-3 * time.Minute), "policy_version": mockPolicy, "actor": "mock-agent", "app": "mock-shop", "event_seqs": []int{}}
	if state == "" || state == "unknown" {
		return []map[string]any{one}
	}
	return nil
}

func (m *mock) events(r request) []map[string]any {
	var list []map[string]any
	for i, kind := range []string{"decision_recorded", "approval_created", "execution_success", "decision_recorded", "request_received"} {
		e := map[string]any{"seq": 42 - i, "event_id": fmt.Sprintf("evt_mock-%d", i), "event_type": kind, "timestamp": m.now().Add(-time.Duration(i*20) * time.Second), "operation": "UPDATE",
			"actor": "mock-agent", "app": "mock-shop", "env": "staging", "request_id": "req_mock", "policy_version": mockPolicy, "payload": map[string]any{"mock": true}, "previous_hash": "mock", "event_hash": "mock"}
		if kind == "decision_recorded" {
			e["decision"] = []string{"REQUIRE_APPROVAL", "", "", "ALLOW"}[i]
		}
		if wanted := r.query["event_type"]; len(wanted) == 0 || wanted[0] == kind {
			list = append(list, e)
		}
	}
	return list
}

func (m *mock) version(document string) map[string]any {
	v := map[string]any{"policy_version": mockPolicy, "status": "active", "hash": "mock", "rule_count": 2, "bytes": len(mockDocument), "created_at": m.started, "created_by": "mock", "activated_at": m.started}
	if document != "" {
		v["document"] = document
	}
	return v
}

func (m *mock) project(path string) (any, int) {
	agent := map[string]any{"id": "agt_mock", "name": "mock-agent", "type": "worker", "status": "active", "metadata": map[string]string{"environment": "staging"},
		"applied_policies": []any{}, "created_at": m.started}
	switch path {
	case "/v1/agents":
		return items(agent), http.StatusOK
	case "/v1/agents/agt_mock":
		return agent, http.StatusOK
	case "/v1/policies", "/v1/tools", "/v1/metrics", "/v1/events":
		return items[any](), http.StatusOK
	}
	return nothing()
}
