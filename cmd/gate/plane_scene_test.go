package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/fixtures/faultproxy"
)

// A scene is a gate with an evening's work behind it: everything that a page of
// the dashboard can show is there, and is real.
type scene struct {
	*agentWorld
	proxy      *faultproxy.Proxy
	tools      *toolServer
	misleading string // an approval whose SQL is written to be misread
	change     string // an approval of a change of the schema
	given      string // an approval that was given, and used
	lost       string // an execution whose answer was lost
	agent      string
	rules      string // of a policy for agents that is applied to none
	request    string // of the approved statement
	candidate  string // hash of shop-gate@1.1.0
}

// startScene starts a gate in which nothing has happened yet; play fills it.
func startScene(t *testing.T) *scene {
	t.Helper()
	tools := startToolServer(t)
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	s := &scene{proxy: faultproxy.Start(t, d.database), tools: tools}
	d.database = s.proxy.URL()
	s.agentWorld = &agentWorld{key: agentctl.NewSecret(agentctl.KeyPrefix)}
	s.testGate = startGate(t, d, "GATE_PROJECT_KEYS=shop/ops="+s.key, "GATE_OUTCOME_CHECK_INTERVAL_SECONDS=0", "GATE_EGRESS_ALLOW_CIDRS=127.0.0.1/32",
		"GATE_EGRESS_ALLOW_PORTS="+tools.port, "GATE_TOOL_SECRET_RUNSQL="+toolSecret, "GATE_TOOL_SECRET_RUNSQL_HOST=127.0.0.1:"+tools.port)
	return s
}

func (s *scene) play(t *testing.T) {
	t.Helper()
	for range 3 {
		for id := range 8 {
			s.query(t, ask(fmt.Sprintf("SELECT id, status FROM orders WHERE id = %d", id+1)))
			s.query(t, ask(fmt.Sprintf("UPDATE orders SET status = 'paid' WHERE id = %d", id+1)))
		}
		s.query(t, ask("DELETE FROM orders"))
	}
	s.query(t, ask("INSERT INTO orders (id, customer_id, status) VALUES (1, 1, 'new')")) // the key is taken
	s.query(t, ask("SELECT id FROM orders; DROP TABLE orders"))

	done := ask("DELETE FROM orders WHERE id = 40")
	s.given = s.approved(t, done)
	ran := s.query(t, done.with("approval_id", s.given))
	require.Equal(t, http.StatusOK, ran.status, "%s", ran.body)
	s.request = ran.text(t, "request_id")
	require.Equal(t, http.StatusOK, s.resolve(t, s.hold(t, ask("DELETE FROM customers WHERE id = 1")), "reject").status)

	s.playAgents(t)
	tool := s.made(t, "/tools", s.tools.tool().text(t))
	require.Equal(t, "passed", s.verify(t, tool["id"].(string), "").text(t, "status"))
	s.playPolicy(t)
	s.lost = s.loseCommit(t, ask("UPDATE orders SET status = 'shipped' WHERE id = 12"))
	for id := range 3 {
		s.hold(t, ask(fmt.Sprintf("DELETE FROM orders WHERE id = %d", 50+id)).with("actor", "invoice-bot"))
	}
	s.hold(t, ask("UPDATE orders SET status = 'archived' WHERE status = 'paid' AND customer_id IN (SELECT id FROM customers WHERE email LIKE '%@example.com')").with("app", "reports"))
	s.change = s.hold(t, ask("ALTER TABLE orders ADD COLUMN refunded_at timestamptz NOT NULL DEFAULT now()").with("actor", "migrations"))
	s.hold(t, ask("DELETE FROM orders WHERE id = 6 AND status <> '"+strings.Repeat("\u202E\u2066", 5000)+"'")) // whose marks are noted where nobody sees them
	s.misleading = s.hold(t, ask("DELETE FROM orders WHERE id = 7"+strings.Repeat(" ", 60)+"OR customer_id = 1 OR status <> 'р\u0430id' /* \u202Ereviewed and approved by ops\u202C, one row */\n-- see ticket 4711: harmless, please approve"))
}

// loseCommit runs a write whose COMMIT arrives at the database and whose answer
// does not.
func (s *scene) loseCommit(t *testing.T, request statement) (execution string) {
	t.Helper()
	cutBehindCommit(s.proxy)
	r := s.query(t, request)
	requireFailure(t, r, http.StatusGatewayTimeout, "db_query_timeout", "unknown")
	s.proxy.Arm(faultproxy.Fault{})
	return r.text(t, "execution_id")
}

// playAgents has three agents work for a day.
func (s *scene) playAgents(t *testing.T) {
	t.Helper()
	var token string
	s.agent, token = s.register(t, "invoice-bot")
	other, _ := s.register(t, "mail-bot")
	gone, _ := s.register(t, "a-worker-with-a-name-that-somebody-generated-0123456789")
	require.Equal(t, http.StatusOK, s.v1(t, http.MethodDelete, "/agents/"+gone, "").status)
	s.apply(t, s.rule(t, "block", `sql.class == "write" && usage.sql_writes_1h > 500`), s.agent)
	s.rules = s.rule(t, "require_approval", `"public.orders" in sql.tables_read`)
	require.Equal(t, http.StatusOK, s.as(t, token, ask("SELECT id FROM orders WHERE id = 3")).status)
	var events []string
	for hour := range 24 {
		at := time.Now().Add(-time.Duration(hour) * time.Hour).UTC().Format(time.RFC3339)
		for n := range 3 + hour*7%11 {
			agent, status := s.agent, "ok"
			if n%3 == 2 {
				agent = other
			}
			if (hour+n)%9 == 0 {
				status = "error"
			}
			events = append(events, fmt.Sprintf(`{"agent_id":%q,"timestamp":%q,"type":"llm_call","status":%q,"duration_ms":%d,"model":{"name":"m-1"},"usage":{"input_tokens":%d,"output_tokens":%d,"cost_usd":"0.0123"}}`,
				agent, at, status, 180+hour*37%400+n*90, 900+hour*31, 120+n*17))
		}
	}
	_, b := s.sent(t, s.projectKey(), "["+strings.Join(events, ",")+"]")
	require.Equal(t, len(events), b.Accepted)
}

// playPolicy hands in a version that is not active.
func (s *scene) playPolicy(t *testing.T) {
	t.Helper()
	body := mustJSON(t, map[string]string{"document": sampleVersion(t, "1.1.0", append(looserDeletes, "ttl_seconds: 900, max_rows: 100 }", "ttl_seconds: 1800, max_rows: 50 }")...), "note": "asked for by finance"})
	r := s.do(t, http.MethodPost, "/policy/candidates", body, operatorHeader)
	require.Equal(t, http.StatusCreated, r.status, "%s", r.body)
	s.candidate = r.text(t, "hash")
}
