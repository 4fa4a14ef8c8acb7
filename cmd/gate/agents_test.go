package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/eventlog/event"
	"writegate/fixtures/postgres"
)

// agentWorld is a gate with a project key, in front of the sample tables.
type agentWorld struct {
	*testGate
	key string
}

// openAgents lets everything through, so that what stops a statement is the agent's layer.
const openAgents = openPolicy

func startAgents(t *testing.T, extra ...string) *agentWorld {
	t.Helper()
	d := newGateDir(t, []byte(openAgents))
	d.execute(t, shopTables)
	w := &agentWorld{key: agentctl.NewSecret(agentctl.KeyPrefix)}
	w.testGate = startGate(t, d, append([]string{"GATE_PROJECT_KEYS=shop/ops=" + w.key}, extra...)...)
	return w
}

// v1 sends a request under /v1 with the project key.
func (w *agentWorld) v1(t *testing.T, method, path, body string, headers ...string) reply {
	t.Helper()
	return w.do(t, method, "/v1"+path, []byte(body), append([]string{"X-Api-Key: " + w.key}, headers...)...)
}

// made sends a request that must give 201 and returns its body.
func (w *agentWorld) made(t *testing.T, path, body string) map[string]any {
	t.Helper()
	r := w.v1(t, http.MethodPost, path, body)
	require.Equal(t, http.StatusCreated, r.status, "%s", r.body)
	return r.json(t)
}

// register makes an agent and gives its id and token.
func (w *agentWorld) register(t *testing.T, name string) (id, token string) {
	t.Helper()
	a := w.made(t, "/agents", fmt.Sprintf(`{"name":%q,"type":"worker","metadata":{"owner":"finance","environment":"production"}}`, name))
	return a["id"].(string), a["credentials"].(map[string]any)["token"].(string)
}

// rule makes a policy of one rule.
func (w *agentWorld) rule(t *testing.T, action, condition string) (policyID string) {
	t.Helper()
	return w.made(t, "/policies", fmt.Sprintf(`{"name":"guard","rules":[{"action":%q,"condition":%q,"message":"Ask finance."}]}`, action, condition))["id"].(string)
}

func (w *agentWorld) apply(t *testing.T, policyID, agentID string) map[string]any {
	t.Helper()
	return w.made(t, "/policies/"+policyID+"/apply", fmt.Sprintf(`{"agent_id":%q,"priority":"high"}`, agentID))
}

// as sends a statement with an agent's token.
func (w *agentWorld) as(t *testing.T, token string, s statement, params ...string) reply {
	t.Helper()
	path := "/query"
	if len(params) > 0 {
		path += "?" + strings.Join(params, "&")
	}
	return w.do(t, http.MethodPost, path, mustJSON(t, s), "Authorization: Bearer "+token)
}

const paying = "UPDATE orders SET status = 'paid' WHERE id = 1"

func TestAnAppliedPolicyStopsTheStatementsOfItsAgentAlone(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "invoice-bot")
	_, other := w.register(t, "mail-bot")
	require.Equal(t, http.StatusOK, w.as(t, token, ask(paying)).status)

	application := w.apply(t, w.rule(t, "block", `sql.class == "write" && sql.tables_written.exists(t, t == "public.orders")`), id)
	require.Equal(t, "effective", application["status"])
	require.NotZero(t, application["effective_from_seq"])

	stopped := w.as(t, token, ask(paying))
	require.Equal(t, http.StatusForbidden, stopped.status, "%s", stopped.body)
	b := stopped.json(t)
	require.Equal(t, "agent_policy_blocked", b["reason_code"])
	require.Equal(t, "Ask finance.", b["message"])
	require.Equal(t, map[string]any{"layer": "agent", "policy_id": application["policy_id"], "rule_id": "r1"}, b["decided_by"])
	require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT id FROM orders")).status, "reads are no writes")
	require.Equal(t, http.StatusOK, w.as(t, other, ask(paying)).status, "another agent is not bound")
	require.Equal(t, http.StatusOK, w.query(t, ask(paying)).status, "and neither is a caller without a token")

	preview := w.as(t, token, ask(paying), "mode=preview").json(t)
	require.Equal(t, "BLOCK", preview["decision"])
	require.Contains(t, fmt.Sprint(preview["rule_trace"]), "agent:"+application["policy_id"].(string)+"/r1")

	detached := w.v1(t, http.MethodDelete, "/policies/"+application["policy_id"].(string)+"/apply?agent_id="+id, "")
	require.Equal(t, "detached", detached.text(t, "status"))
	require.Equal(t, http.StatusOK, w.as(t, token, ask(paying)).status)
}

// A policy binds its agent from its event on, also a statement that was decided before
// it and waits for a connection.
func TestAStatementThatWaitsIsDecidedByThePolicyThatBindsWhenItRuns(t *testing.T) {
	t.Parallel()
	for class, sql := range map[string]string{"write": "UPDATE orders SET status = 'paid' WHERE id = 2", "read": "SELECT id FROM customers"} {
		t.Run(class, func(t *testing.T) { aStatementThatWaits(t, class, sql) })
	}
}

func aStatementThatWaits(t *testing.T, class, sql string) {
	w := startAgents(t, "GATE_DB_POOL_MAX=1", "GATE_DB_POOL_RESERVED=0", "GATE_DB_ACQUIRE_TIMEOUT_MS=60000", "GATE_DB_LOCK_TIMEOUT_MS=0", "GATE_DB_QUERY_TIMEOUT_MS=60000")
	id, token := w.register(t, "bot")
	blocked := w.rule(t, "block", fmt.Sprintf("sql.class == %q", class))
	release := postgres.HoldURL(t, w.database, "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
	answers := make(chan reply, 2)
	first := map[string]string{"write": paying, "read": "SELECT id FROM orders"}[class]
	go func() { answers <- w.query(t, ask(first)) }()
	require.Eventually(t, func() bool {
		return w.value(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == "1"
	}, startPatience, pollEvery, "the one connection is taken")
	go func() { answers <- w.as(t, token, ask(sql)) }()
	require.Eventually(t, func() bool {
		return w.v1(t, http.MethodGet, "/agents/"+id, "").json(t)["last_seen_at"] != nil
	}, startPatience, pollEvery, "the agent's statement has come")
	application := w.apply(t, blocked, id)
	release()
	var statuses []int
	for range cap(answers) {
		statuses = append(statuses, (<-answers).status)
	}
	require.ElementsMatch(t, []int{http.StatusOK, http.StatusForbidden}, statuses)
	require.NotEqual(t, "paid", w.value(t, "SELECT status FROM orders WHERE id = 2"))
	require.Equal(t, "effective", application["status"])
}

func TestADecisionWithAnAgentSaysAllThatItRead(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	w.apply(t, w.rule(t, "require_approval:900", `sql.class == "write" && agent.environment == "production" && usage.sql_writes_1h == 0`), id)
	r := w.as(t, token, ask(paying))
	require.Equal(t, http.StatusAccepted, r.status, "%s", r.body)
	w.end(t)
	for _, e := range w.events(t) {
		if e.Type != event.TypeDecisionRecorded {
			continue
		}
		var p event.DecisionRecorded
		require.NoError(t, e.Parse(&p))
		require.Equal(t, id, e.Context.AgentID)
		require.Equal(t, "shop", e.Context.Project)
		require.Equal(t, "REQUIRE_APPROVAL", p.AgentLayer.Decision)
		require.Equal(t, "production", p.AgentLayer.Agent.Environment)
		require.Equal(t, 900, p.AgentLayer.TTLSeconds)
		require.Len(t, p.AgentLayer.Effective, 1)
		require.Equal(t, id, p.Facts.AgentID)
		return
	}
	t.Fatal("there is no decision")
}

func TestAnApprovalOfAnAgentNeedsTheSameAgentsTokenAndSatisfiesBothLayers(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	_, other := w.register(t, "other")
	w.apply(t, w.rule(t, "require_approval:900", `sql.class == "write"`), id)
	waiting := w.as(t, token, ask(paying))
	approval := waiting.text(t, "approval_id")
	require.NotEmpty(t, approval, "%s", waiting.body)
	require.Equal(t, "agent", waiting.json(t)["decided_by"].(map[string]any)["layer"])
	again := w.as(t, token, ask(paying).with("approval_id", approval))
	require.Equal(t, http.StatusAccepted, again.status)
	require.Equal(t, "agent", again.json(t)["decided_by"].(map[string]any)["layer"], "also while it is pending")
	shown := w.get(t, "/approvals/"+approval).json(t)
	require.Equal(t, id, shown["agent_id"])
	require.Equal(t, waiting.json(t)["decided_by"], shown["decided_by"])
	require.Equal(t, waiting.text(t, "message"), shown["message"])

	require.Equal(t, http.StatusOK, w.resolve(t, approval, "approve").status)
	require.Equal(t, "approval_mismatch", w.as(t, other, ask(paying).with("approval_id", approval)).text(t, "error_code"))
	require.Equal(t, "approval_mismatch", w.query(t, ask(paying).with("approval_id", approval)).text(t, "error_code"))
	require.Equal(t, http.StatusOK, w.as(t, token, ask(paying).with("approval_id", approval)).status)
}

// The estimate for whoever approves is asked for behind evidence that an agent's
// policies and token are compared under too, and its statement counts once.
func TestAnEstimateForAStatementOfAnAgent(t *testing.T) {
	t.Parallel()
	w := startAgents(t, "GATE_PLAN_ESTIMATES=true")
	id, token := w.register(t, "bot")
	w.apply(t, w.rule(t, "require_approval:900", `sql.class == "write" && usage.sql_writes_1h == 0`), id)
	held := w.as(t, token, ask(paying))
	require.Equal(t, http.StatusAccepted, held.status, "%s", held.body)
	require.NotNil(t, w.do(t, http.MethodGet, "/approvals/"+held.text(t, "approval_id"), nil, operatorHeader).json(t)["impact"])
	require.Equal(t, http.StatusOK, w.as(t, token, ask(paying)).status, "the first counted")
	w.end(t)
	var runs []string
	for _, e := range w.events(t) {
		if e.Type == event.TypeDecisionRecorded {
			var p event.DecisionRecorded
			require.NoError(t, e.Parse(&p))
			runs = append(runs, p.Run)
		}
	}
	require.Equal(t, []string{event.RunDescribe, "transaction", "transaction"}, runs)
}

// What an agent asked for before it was deactivated is never used, also when the agent
// is back in service, by whatever it was deactivated and in whatever state the approval
// was. What it asks for afterwards is.
func TestApprovalsOfADeactivatedAgentAreWithdrawn(t *testing.T) {
	t.Parallel()
	for how, deactivate := range map[string]func(t *testing.T, w *agentWorld, id, token string){
		"by a request": func(t *testing.T, w *agentWorld, id, _ string) {
			require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+id, "").status)
		},
		"by a rule at the gate": func(t *testing.T, w *agentWorld, id, token string) {
			w.apply(t, w.rule(t, "suspend", `sql.query_type == "DELETE"`), id)
			require.Equal(t, http.StatusForbidden, w.as(t, token, ask("DELETE FROM orders WHERE id = 9")).status)
		},
		"by a rule of telemetry": func(t *testing.T, w *agentWorld, id, token string) {
			w.apply(t, w.rule(t, "suspend", `event.type == "tool_call"`), id)
			r := w.do(t, http.MethodPost, "/v1/telemetry", []byte(`{"events":[{"type":"tool_call"}]}`), "Authorization: Bearer "+token)
			require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		},
	} {
		t.Run(how, func(t *testing.T) {
			w := startAgents(t)
			id, token := w.register(t, "bot")
			asking := w.apply(t, w.rule(t, "require_approval:900", `sql.query_type == "UPDATE"`), id)
			hold := func(token string) string {
				t.Helper()
				r := w.as(t, token, ask(paying))
				require.Equal(t, http.StatusAccepted, r.status, "%s", r.body)
				return r.text(t, "approval_id")
			}
			approved, pending := hold(token), hold(token)
			require.Equal(t, http.StatusOK, w.resolve(t, approved, "approve").status)
			deactivate(t, w, id, token)

			require.Equal(t, []any{"resolved", true}, pick(w.record(t, approved), "status", "withdrawn"))
			require.Equal(t, []any{"expired", true}, pick(w.record(t, pending), "status", "withdrawn"))
			require.Empty(t, w.approvals(t, "status=pending").Items)
			require.Len(t, w.approvals(t, "status=expired").Items, 1)
			for _, decision := range []string{"approve", "reject"} {
				details := requireFault(t, w.resolve(t, pending, decision), http.StatusGone, "approval_expired")
				require.Equal(t, "agent_deactivated", details["reason"])
			}
			require.Eventually(t, func() bool { return slices.Contains(w.auditOf(t, pending), "approval_expired") }, startPatience, pollEvery, "the log says so")
			require.Equal(t, 0.0, w.get(t, "/runtime/stats").json(t)["approvals_pending"])

			w.v1(t, http.MethodDelete, "/policies/"+asking["policy_id"].(string)+"/apply?agent_id="+id, "")
			back := w.v1(t, http.MethodPut, "/agents/"+id, `{"name":"bot","type":"worker","status":"active","metadata":{"owner":"finance"}}`)
			require.Equal(t, http.StatusOK, back.status, "%s", back.body)
			token = w.made(t, "/agents/"+id+"/tokens", `{}`)["token"].(string)
			never := func() {
				t.Helper()
				for _, old := range []string{approved, pending} {
					details := requireFault(t, w.as(t, token, ask(paying).with("approval_id", old)), http.StatusGone, "approval_expired")
					require.Equal(t, "agent_deactivated", details["reason"])
				}
			}
			never()
			w.apply(t, asking["policy_id"].(string), id)
			anew := hold(token)
			require.Equal(t, http.StatusOK, w.resolve(t, anew, "approve").status)
			require.Equal(t, http.StatusOK, w.as(t, token, ask(paying).with("approval_id", anew)).status)

			w.end(t)
			require.Equal(t, 1, countTypes(w.events(t), pending)["approval_expired"], "once")
			w.testGate = startGate(t, w.gateDir, "GATE_PROJECT_KEYS=shop/ops="+w.key)
			never()
		})
	}
}

func TestAThrottleLetsThroughWhatItSaysAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	w.apply(t, w.rule(t, "throttle:5/1h", `sql.class == "write"`), id)
	var wait sync.WaitGroup
	statuses := make([]int, 12)
	for i := range statuses {
		wait.Go(func() { statuses[i] = w.as(t, token, ask(paying)).status })
	}
	wait.Wait()
	allowed := 0
	for _, s := range statuses {
		if s == http.StatusOK {
			allowed++
		}
	}
	require.Equal(t, 5, allowed, "%v", statuses)
	w.end(t)
	w.testGate = startGate(t, w.gateDir, "GATE_PROJECT_KEYS=shop/ops="+w.key)
	stopped := w.as(t, token, ask(paying)).json(t)
	require.Equal(t, "agent_policy_throttled", stopped["reason_code"], stopped)
	require.Greater(t, stopped["retry_after_seconds"], float64(3000))
}

// A statement that is refused after its decision does not count, and one that is decided
// anew because the policy changed counts once: now as after a restart.
func TestAThrottleCountsWhatWasRecordedAlone(t *testing.T) {
	t.Parallel()
	waits, goOn := make(chan struct{}), make(chan struct{})
	var holds atomic.Bool
	d := newGateDir(t, []byte(openAgents))
	d.execute(t, shopTables)
	w := &agentWorld{key: agentctl.NewSecret(agentctl.KeyPrefix)}
	projectKey := "GATE_PROJECT_KEYS=shop/ops=" + w.key
	w.testGate = startGateWith(t, d, func(a *app) {
		a.step = func(name string) {
			if name == "decision.before_append" && holds.CompareAndSwap(true, false) {
				waits <- struct{}{}
				<-goOn
			}
		}
	}, projectKey)
	id, token := w.register(t, "bot")
	w.apply(t, w.rule(t, "throttle:1/24h", ""), id)
	for range 3 {
		require.Equal(t, "unsupported_sql_shape", w.as(t, token, ask("BEGIN")).text(t, "error_code"))
	}

	holds.Store(true)
	paid := make(chan reply, 1)
	go func() {
		r, err := w.try(http.MethodPost, "/query", mustJSON(t, ask(paying)), "Authorization: Bearer "+token)
		if err != nil {
			t.Error(err)
		}
		paid <- r
	}()
	<-waits
	w.activate(t, strings.Replace(openAgents, "version: 1.0.0", "version: 1.0.1", 1))
	goOn <- struct{}{}
	first := <-paid
	require.Equal(t, http.StatusOK, first.status, "%s", first.body)
	require.Equal(t, "open@1.0.1", first.text(t, "policy_version"), "it was decided anew")

	over := func(decisions int) {
		t.Helper()
		stopped := w.as(t, token, ask(paying))
		require.Equal(t, "agent_policy_throttled", stopped.text(t, "reason_code"), "%s", stopped.body)
		items := w.v1(t, http.MethodGet, "/events?event_type=decision_recorded", "").json(t)["items"].([]any)
		read := items[0].(map[string]any)["payload"].(map[string]any)["agent_layer"].(map[string]any)["usage"].(map[string]any)
		require.EqualValues(t, decisions, read["sql_decisions_1h"], "before it")
	}
	over(1)
	w.end(t)
	w.testGate = startGate(t, w.gateDir, projectKey)
	over(2)
}

func TestARuleThatSuspendsEndsTheAgentInTheSameAppend(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	w.apply(t, w.rule(t, "suspend", `sql.query_type == "DELETE"`), id)
	require.Equal(t, "BLOCK", w.as(t, token, ask("DELETE FROM orders WHERE id = 1"), "mode=preview").text(t, "decision"))
	require.Equal(t, http.StatusOK, w.as(t, token, ask(paying)).status, "a preview suspends nobody")

	stopped := w.as(t, token, ask("DELETE FROM orders WHERE id = 1"))
	require.Equal(t, "agent_policy_suspended", stopped.text(t, "reason_code"), "%s", stopped.body)
	refused := w.as(t, token, ask("SELECT 1"))
	require.Equal(t, http.StatusUnauthorized, refused.status)
	require.Equal(t, "token_revoked", refused.text(t, "error_code"))
	a := w.v1(t, http.MethodGet, "/agents/"+id, "").json(t)
	require.Equal(t, "inactive", a["status"])
	w.end(t)
	events := w.events(t)
	for i, e := range events {
		if e.Type == event.TypeAgentDeactivated {
			require.Equal(t, []event.Type{event.TypeRequestReceived, event.TypeDecisionRecorded, event.TypeAgentTokenRevoked}, []event.Type{events[i-3].Type, events[i-2].Type, events[i-1].Type})
			return
		}
	}
	t.Fatal("the agent was not deactivated")
}

func TestATokenThatIsNotGoodIsRefusedWithEvidenceAndNeverTakenForAbsent(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	for _, bad := range []string{"wga_nonsense", agentctl.NewSecret(agentctl.TokenPrefix), token[:len(token)-1] + "-"} {
		r := w.as(t, bad, ask("SELECT 1"))
		require.Equal(t, http.StatusUnauthorized, r.status, "%s", r.body)
		require.Equal(t, "credentials_invalid", r.text(t, "error_code"))
	}
	narrow := w.made(t, "/agents/"+id+"/tokens", `{"scopes":["events:read"]}`)["token"].(string)
	r := w.as(t, narrow, ask("SELECT 1"))
	require.Equal(t, "insufficient_scope", r.text(t, "error_code"), "%s", r.body)
	rejected := w.get(t, "/audit?event_type=query_rejected").json(t)["items"].([]any)
	require.Len(t, rejected, 4)
}

// A token that stands where none is read says that the agent's rules are relied on.
func TestATokenInAnotherPlaceIsNotTakenForAbsent(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	w.apply(t, w.rule(t, "block", ""), id)
	send := func(headers ...string) reply {
		return w.do(t, http.MethodPost, "/query", mustJSON(t, ask(paying)), headers...)
	}
	for _, header := range []string{"Authorization: " + token, "Authorization: Token " + token, "Authorization: Basic " + token, "Authorization: Bearer\t" + token, "Authorization: Bearer x " + token,
		"X-Api-Key: " + token, "X-Agent-Token: " + token, "X-GATE-Operator-Token: " + token, "Proxy-Authorization: Bearer " + token, "Cookie: token=" + token, "Authorization: wga_cut",
		"Authorization: Bearer", "Authorization: bearer ", "Authorization: "} {
		r := send(header)
		require.Equal(t, http.StatusUnauthorized, r.status, "%s: %s", header, r.body)
		require.Equal(t, "credentials_invalid", r.text(t, "error_code"), header)
		require.NotContains(t, string(r.body), token)
	}
	twice := w.pageRequest(t, "POST /query", "localhost", string(mustJSON(t, ask(paying))), "Content-Type: application/json", "Authorization: Bearer "+operatorTestToken, "Authorization: Bearer "+token)
	require.Equal(t, "credentials_invalid", twice.text(t, "error_code"), "%s", twice.body)
	require.Equal(t, "agent_policy_blocked", send("Authorization: Bearer "+token, "X-GATE-Operator-Token: "+operatorTestToken).text(t, "reason_code"))
	require.Len(t, w.get(t, "/audit?event_type=query_rejected").json(t)["items"].([]any), 15)
}

// One of two credentials of a kind would be passed over, and whoever reads the
// other one sees another caller.
func TestACredentialIsThereOnceAndNotEmpty(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	_, token := w.register(t, "bot")
	key, bearer := "X-Api-Key: "+w.key, "Authorization: Bearer "+token
	for _, headers := range [][]string{
		{key, key}, {bearer, bearer}, {key, bearer, "Authorization: Bearer x"}, {bearer, key, "x-api-key: wgp_x"},
		{key, "Authorization: Bearer "}, {key, "Authorization: Bearer"}, {key, "Authorization: "}, {bearer, "X-Api-Key: "},
	} {
		for _, line := range []string{"GET /v1/agents", "POST /v1/agents"} {
			r := w.pageRequest(t, line, "localhost", "", headers...)
			require.Equal(t, http.StatusUnauthorized, r.status, "%s %q: %s", line, headers, r.body)
			require.Equal(t, "credentials_invalid", r.text(t, "error_code"), "%q", headers)
		}
	}
	require.Equal(t, http.StatusOK, w.pageRequest(t, "GET /v1/agents", "localhost", "", key, bearer).status)
	twice := w.pageRequest(t, "POST /approvals/purge", "localhost", "", "X-GATE-Operator-Token: "+operatorTestToken, "X-GATE-Operator-Token: "+operatorTestToken)
	require.Equal(t, "unauthorized_operator", twice.text(t, "error_code"), "%s", twice.body)
}

func TestShadowModeSuspendsNobody(t *testing.T) {
	t.Parallel()
	w := startAgents(t, "GATE_MODE=shadow")
	id, token := w.register(t, "bot")
	w.apply(t, w.rule(t, "suspend", ""), id)
	for range 2 {
		r := w.as(t, token, ask(paying))
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		require.Equal(t, "BLOCK", r.text(t, "decision"))
		require.Equal(t, false, r.json(t)["enforced"])
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return text
}
