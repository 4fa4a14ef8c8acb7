package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/fixtures/postgres"
	"writegate/sqlgate/policyfolder"
)

// openPolicy lets nearly everything pass, for tests of what comes behind the
// decision.
const openPolicy = `schema: gate.policy/v1
name: open
version: 1.0.0
facts: facts/v1
rules:
  - id: careful
    decision: REQUIRE_APPROVAL
    reason_code: careful
    match: { query_types: [DELETE, VACUUM, TRUNCATE] }
    approval: { max_rows: 2 }
  - id: open
    decision: ALLOW
    reason_code: open
    match: { query_types_only: [SELECT, INSERT, UPDATE, CREATE, CREATE_TABLE_AS, ALTER, BEGIN, SET, PREPARE] }
`

// endless runs until somebody ends it, and needs neither memory nor disk.
const endless = "(SELECT count(*) FROM orders a, orders b, orders c, orders d, orders e, orders f, orders g)"

// newClusterDir is the folder of a gate in front of a server of its own, which
// the test may stop; the shop's tables are in it.
func newClusterDir(t testing.TB, settings map[string]string) (gateDir, *postgres.Cluster) {
	t.Helper()
	cluster := postgres.ClusterForTest(t, settings)
	require.NoError(t, cluster.CreateDatabase(t.Context(), "shop"))
	d := gateDir{path: t.TempDir(), database: cluster.URL("shop")}
	require.NoError(t, policyfolder.Create(d.file("policies"), policyfolder.DefaultManifest, []byte(openPolicy)))
	d.execute(t, shopTables)
	return d, cluster
}

// health is GET /health.
type health struct {
	status int
	Status string `json:"status"`
	Chain  []struct {
		Step    string `json:"step"`
		Status  string `json:"status"`
		Message string `json:"message"`
	} `json:"startup_chain"`
	Database struct {
		Status  string `json:"status"`
		Message string `json:"message"`
	} `json:"database"`
	Message string `json:"message"`
}

func (g *testGate) health(t testing.TB) health {
	t.Helper()
	r := g.get(t, "/health")
	h := health{status: r.status}
	unmarshal(t, r.body, &h)
	return h
}

// requireDatabase polls GET /health, which keeps an answer for a second, until
// the database has this status, and returns the message.
func (g *testGate) requireDatabase(t testing.TB, status string) (message string) {
	t.Helper()
	require.Eventually(t, func() bool {
		h := g.health(t)
		require.Equal(t, "ok", h.Status, "the database does not change the gate's own status")
		require.Equal(t, http.StatusOK, h.status)
		message = h.Database.Message
		return h.Database.Status == status
	}, startPatience, pollEvery)
	return message
}

// requireFailure wants the error object with this code and state.
func requireFailure(t testing.TB, r reply, status int, code, state string) {
	t.Helper()
	require.Equal(t, status, r.status, "%s", r.body)
	require.Equal(t, code, r.text(t, "error_code"), "%s", r.body)
	require.Equal(t, state, r.text(t, "execution_state"), "%s", r.body)
	if state != "" {
		require.True(t, strings.HasPrefix(r.text(t, "execution_id"), "exe_"), "%s", r.body)
	}
}

// count is how many events of a type the log of an ended gate holds.
func (d gateDir) count(t testing.TB, kind event.Type) (n int) {
	t.Helper()
	for _, e := range d.events(t) {
		if e.Type == kind {
			n++
		}
	}
	return n
}

func TestADatabaseThatStopsAndStartsAgain(t *testing.T) {
	t.Parallel()
	d, cluster := newClusterDir(t, nil)
	g := startGate(t, d)
	update := ask("UPDATE orders SET status = 'paid' WHERE id = 1")
	require.Equal(t, http.StatusOK, g.query(t, update).status)
	held := g.query(t, ask("DELETE FROM order_items WHERE order_id = 2"))
	require.Equal(t, http.StatusAccepted, held.status, "%s", held.body)
	retry := ask("DELETE FROM order_items WHERE order_id = 2").with("approval_id", held.text(t, "approval_id"))
	require.Equal(t, http.StatusOK, g.resolve(t, held.text(t, "approval_id"), "approve").status)

	require.NoError(t, cluster.Stop())
	for range 20 {
		requireFailure(t, g.query(t, update), http.StatusBadGateway, "db_connection_failed", "not_executed")
		requireFailure(t, g.query(t, ask("SELECT 1")), http.StatusBadGateway, "db_connection_failed", "not_executed")
	}
	requireFailure(t, g.query(t, retry), http.StatusBadGateway, "db_connection_failed", "not_executed")
	require.Contains(t, g.requireDatabase(t, "unavailable"), "cannot be reached")
	blocked := g.query(t, ask("DROP TABLE orders"))
	require.Equal(t, http.StatusForbidden, blocked.status, "what never reaches the database is decided all the same")

	require.NoError(t, cluster.Restart(t.Context()))
	g.requireDatabase(t, "ok")
	require.Equal(t, http.StatusOK, g.query(t, update).status, "no restart of the gate is needed")
	done := g.query(t, retry)
	require.Equal(t, http.StatusOK, done.status, "the approval was not used up: %s", done.body)
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM order_items WHERE order_id = 2"))
	g.end(t)
	require.LessOrEqual(t, d.count(t, event.TypeDBUnavailable), 2, "an outage under load leaves few events")
	require.NotZero(t, d.count(t, event.TypeDBUnavailable))
}

func TestAGateStartsWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	d, cluster := newClusterDir(t, nil)
	require.NoError(t, cluster.Stop())
	g := startGate(t, d)
	g.requireDatabase(t, "unavailable")
	requireFailure(t, g.query(t, ask("SELECT 1")), http.StatusBadGateway, "db_connection_failed", "not_executed")
	require.NoError(t, cluster.Restart(t.Context()))
	g.requireDatabase(t, "ok")
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	g.end(t)
	require.NotZero(t, d.count(t, event.TypeDBUnavailable))
}

// A statement that was running when the server died was never committed.
func TestAServerThatDiesUnderAStatementLeavesAFailure(t *testing.T) {
	t.Parallel()
	d, cluster := newClusterDir(t, nil)
	g := startGate(t, d, "GATE_DB_QUERY_TIMEOUT_MS=60000")
	answer := make(chan reply, 2)
	for _, sql := range []string{"UPDATE orders SET status = 'lost' WHERE " + endless + " > 0", "SELECT " + endless} {
		go func() { answer <- g.query(t, ask(sql)) }()
	}
	awaitActive(t, d, 2)
	require.NoError(t, cluster.Kill())
	for range 2 {
		requireFailure(t, <-answer, http.StatusBadGateway, "db_connection_failed", "failure")
	}
	require.NoError(t, cluster.Restart(t.Context()))
	g.requireDatabase(t, "ok")
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE status = 'lost'"))
}

// awaitActive waits until n statements of the gate run at the database.
func awaitActive(t testing.TB, d gateDir, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		return d.value(t, "SELECT count(*) >= "+fmt.Sprint(n)+" FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query LIKE '%orders a, orders b%' AND pid <> pg_backend_pid()") == "t"
	}, startPatience, pollEvery)
}

func TestADatabaseThatIsNotThere(t *testing.T) {
	t.Parallel()
	d, cluster := newClusterDir(t, nil)
	g := startGate(t, d)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT id FROM orders LIMIT 1")).status)
	admin := gateDir{database: cluster.URL("postgres")}
	postgres.DropDatabase(t, admin.database, "shop")
	for range 3 {
		requireFailure(t, g.query(t, ask("UPDATE orders SET status = 'paid' WHERE id = 1")), http.StatusBadGateway, "db_connection_failed", "not_executed")
	}
	message := g.requireDatabase(t, "unavailable")
	require.Contains(t, message, "operator")
	admin.execute(t, "CREATE DATABASE shop")
	g.requireDatabase(t, "ok")
	missing := g.query(t, ask("SELECT id FROM orders LIMIT 1"))
	requireFailure(t, missing, http.StatusUnprocessableEntity, "db_query_failed", "failure")
}

func TestAWrongPasswordIsToldWithoutShowingIt(t *testing.T) {
	t.Parallel()
	d, cluster := newClusterDir(t, nil)
	const password = "a-password-that-opens-nothing"
	d.database = cluster.URLFor(postgres.Superuser, password, "shop")
	g := startGate(t, d)
	r := g.query(t, ask("SELECT 1"))
	requireFailure(t, r, http.StatusBadGateway, "db_connection_failed", "not_executed")
	require.Contains(t, r.text(t, "message"), "login")
	require.Contains(t, g.requireDatabase(t, "unavailable"), "login")
	for _, shown := range []string{string(r.body), string(g.get(t, "/logs").body), string(g.get(t, "/audit").body), string(g.get(t, "/health").body), g.output.String()} {
		require.NotContains(t, shown, password)
	}
}

// What PostgreSQL says of the row that is in the way stays with PostgreSQL: neither
// the client nor any output of the gate has its values.
func TestTheRowThatIsInTheWayIsShownNowhere(t *testing.T) {
	t.Parallel()
	g := startGate(t, newErrorDir(t))
	g.execute(t, "CREATE TABLE members (email text PRIMARY KEY); INSERT INTO members VALUES ('zoe.private@example.com')")
	r := g.query(t, ask("INSERT INTO members SELECT 'zoe.' || 'private' || '@example.com'"))
	requireFailure(t, r, http.StatusUnprocessableEntity, "db_query_failed", "failure")
	require.Contains(t, string(r.body), "members_pkey")
	require.Contains(t, g.output.String(), "members_pkey")
	for _, shown := range []string{string(r.body), string(g.get(t, "/logs").body), string(g.get(t, "/audit").body), g.output.String()} {
		require.NotContains(t, shown, "zoe.private@example.com")
	}
}

// The server quotes values in its messages, of any length. The operator's log has the
// SQLSTATE of them, whatever the gate's way was to the statement.
func TestTheLogHasNoTextOfTheServersAboutAStatement(t *testing.T) {
	t.Parallel()
	g := startGate(t, newErrorDir(t))
	g.execute(t, "CREATE TABLE members (email text); INSERT INTO members VALUES ('zoe.private@example.com')")
	before := len(g.output.String())
	for _, sql := range []string{
		"SELECT email::int FROM members", "SELECT repeat('long', 1000000)::int", "INSERT INTO members SELECT (email::int)::text FROM members",
	} {
		r := g.query(t, ask(sql))
		require.Equal(t, http.StatusUnprocessableEntity, r.status, "%s", r.body)
		require.Equal(t, "db_query_failed", r.text(t, "error_code"))
	}
	said := g.output.String()[before:]
	require.Equal(t, 3, strings.Count(said, "SQLSTATE 22P02"), "%.2000s", said)
	require.NotContains(t, said, "zoe.private")
	require.NotContains(t, said, "longlong")
}

// What any client can have the server say is no outage: the client is not told to try
// again, and nobody is woken.
func TestAnInternalErrorOfAStatementIsNoOutage(t *testing.T) {
	t.Parallel()
	g := startGate(t, newErrorDir(t))
	for _, sql := range []string{
		"SELECT acldefault('x', 1)", "SELECT pg_describe_object(99999, 1, 0)", "SELECT to_tsvector(1, 'x')", "SELECT setweight('a'::tsvector, 'x')",
		"SELECT intervaltypmodout(1)",
	} {
		r := g.query(t, ask(sql))
		require.Equal(t, http.StatusUnprocessableEntity, r.status, "%s: %s", sql, r.body)
		require.Equal(t, []any{"db_query_failed", "XX000"}, []any{r.text(t, "error_code"), r.json(t)["details"].(map[string]any)["sqlstate"]}, "%s", r.body)
	}
	g.end(t)
	for _, e := range g.events(t) {
		require.NotEqual(t, event.TypeDBUnavailable, e.Type)
	}
}

func TestConnectionsThatAreAllInUse(t *testing.T) {
	t.Parallel()
	d, cluster := newClusterDir(t, nil)
	admin := d
	admin.execute(t, "CREATE ROLE app LOGIN PASSWORD 'app'; GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
	d.database = cluster.URLFor("app", "app", "shop")
	g := startGate(t, d, "GATE_DB_POOL_MAX=1", "GATE_DB_ACQUIRE_TIMEOUT_MS=100", "GATE_DB_QUERY_TIMEOUT_MS=60000")
	answer := make(chan reply, 1)
	go func() { answer <- g.query(t, ask("SELECT "+endless)) }()
	awaitActive(t, admin, 1)
	full := g.query(t, ask("SELECT 1"))
	requireFailure(t, full, http.StatusServiceUnavailable, "db_unavailable", "not_executed")
	require.Contains(t, full.text(t, "message"), "in use")

	// Now the server has none left for the gate's writer.
	admin.execute(t, "ALTER ROLE app CONNECTION LIMIT 1")
	admin.execute(t, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'app' AND state = 'idle'")
	update := ask("UPDATE orders SET status = 'paid' WHERE id = 1")
	refused := g.query(t, update)
	requireFailure(t, refused, http.StatusServiceUnavailable, "db_unavailable", "not_executed")
	require.Equal(t, "53300", refused.json(t)["details"].(map[string]any)["sqlstate"])

	admin.execute(t, "ALTER ROLE app CONNECTION LIMIT -1")
	require.Equal(t, http.StatusOK, g.query(t, update).status, "room again, and nothing to restart")
	admin.execute(t, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'app' AND state = 'active'")
	requireFailure(t, <-answer, http.StatusBadGateway, "db_connection_failed", "failure")
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
}

func TestAStatementThatTakesTooLongIsUnknownToTheClientAndAbortedInTheLog(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(openPolicy))
	d.execute(t, shopTables)
	g := startGate(t, d, "GATE_DB_QUERY_TIMEOUT_MS=1000")
	for _, sql := range []string{"SELECT " + endless, "UPDATE orders SET status = 'late' WHERE " + endless + " > 0"} {
		r := g.query(t, ask(sql))
		requireFailure(t, r, http.StatusGatewayTimeout, "db_query_timeout", "unknown")
		require.Equal(t, "aborted", r.json(t)["details"].(map[string]any)["outcome"])
		x := g.get(t, "/executions/"+r.text(t, "execution_id"))
		require.Equal(t, "failure", x.text(t, "execution_state"), "%s", x.body)
		require.Equal(t, "aborted", x.text(t, "outcome"))
	}
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE status = 'late'"))
	g.end(t)
	require.Equal(t, 2, g.count(t, event.TypeExecutionStateUnknown))
	require.Equal(t, 2, g.count(t, event.TypeExecutionOutcomeResolved))
}

// A statement that outlasts the drain is cancelled, answered and recorded.
func TestAnEndUnderALongStatementDoesNotHang(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(openPolicy))
	d.execute(t, shopTables)
	g := startGateWith(t, d, func(a *app) { a.drain = 200 * time.Millisecond })
	answers := make(chan reply, 2)
	for _, sql := range []string{"SELECT " + endless, "UPDATE orders SET status = 'late' WHERE " + endless + " > 0"} {
		go func() { answers <- g.query(t, ask(sql).with("execution_profile", "bulk")) }()
	}
	awaitActive(t, d, 2)
	g.end(t)
	for range 2 {
		r := <-answers
		requireFailure(t, r, http.StatusUnprocessableEntity, "db_query_failed", "failure")
		require.Equal(t, "cancelled", r.json(t)["details"].(map[string]any)["reason"])
	}
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE status = 'late'"))
	all := g.events(t)
	require.Equal(t, 2, g.count(t, event.TypeExecutionFailure))
	require.Equal(t, event.TypeShutdown, all[len(all)-1].Type)
	var end event.Shutdown
	require.NoError(t, end.Parse(all[len(all)-1].Payload))
	require.True(t, end.Drained, "both were answered")
}

// The drain is for statements: what clients do not send does not keep the end waiting.
func TestAnEndWaitsForStatementsAndNotForClients(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(openPolicy))
	d.execute(t, shopTables)
	g := startGateWith(t, d, func(a *app) { a.drain = time.Hour }, patientDatabase...)
	release := g.holdOrders(t)
	runs := make(chan reply, 1)
	go func() { runs <- g.query(t, ask(insertOrder)) }()
	require.Eventually(t, func() bool { return g.waiting(t) == "1" }, startPatience, pollEvery)
	begins := func(request, expect string) *bufio.Reader {
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.base, "http://"))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(startPatience)))
		_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n%s\r\n", request, expect)
		require.NoError(t, err)
		return bufio.NewReader(conn)
	}
	stream := begins("GET /audit/stream", "")
	query := begins("POST /query", "Expect: 100-continue\r\n")
	resp, err := http.ReadResponse(query, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusContinue, resp.StatusCode, "its body is read")
	g.stop()
	resp, err = http.ReadResponse(query, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	_, err = io.Copy(io.Discard, stream)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "its connection is closed")
	release()
	require.Equal(t, http.StatusOK, (<-runs).status)
	g.end(t)
	require.Equal(t, "1", g.value(t, "SELECT count(*) FROM orders WHERE id = 2001"))
}

// A folder that is not what its manifest says keeps the gate from protecting:
// it says which step failed, runs nothing, and serves again once it is mended.
func TestAPolicyFolderThatWasTamperedWith(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		tamper func(t *testing.T, dir, document string)
		step   string
		says   string
	}{
		{"a flipped byte", func(t *testing.T, _, document string) { flipByte(t, document) }, "policy_hash_match", "hash"},
		{"a missing file", func(t *testing.T, _, document string) { require.NoError(t, os.Remove(document)) }, "manifest_validation", "open@1.0.0"},
		{"an extra file", func(t *testing.T, _, document string) {
			require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(document), "other@1.0.0.yaml"), []byte(openPolicy), 0o600))
		}, "manifest_validation", "other@1.0.0"},
		{"a symlink", func(t *testing.T, dir, document string) {
			elsewhere := filepath.Join(dir, "..", "elsewhere.yaml")
			require.NoError(t, os.Rename(document, elsewhere))
			require.NoError(t, os.Symlink(elsewhere, document))
		}, "manifest_validation", "open@1.0.0"},
		{"a manifest that is no JSON", func(t *testing.T, dir, _ string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, policyfolder.DefaultManifest), []byte("{"), 0o600))
		}, "manifest_validation", "manifest"},
	} {
		for _, start := range []string{"first", "later"} {
			t.Run(c.name+" before the "+start+" start", func(t *testing.T) {
				t.Parallel()
				d := newGateDir(t, []byte(openPolicy))
				d.execute(t, shopTables)
				if start == "later" {
					g := startGate(t, d)
					require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
					g.end(t)
				}
				policies, kept := d.file("policies"), d.file("kept")
				require.NoError(t, os.CopyFS(kept, os.DirFS(policies)))
				c.tamper(t, policies, filepath.Join(policies, policyfolder.Path("open@1.0.0")))
				g := startGate(t, d)
				requireClosed(t, g, c.step, c.says)
				g.end(t)
				require.NotZero(t, d.count(t, event.TypeHealthFail))

				require.NoError(t, os.RemoveAll(policies))
				require.NoError(t, os.CopyFS(policies, os.DirFS(kept)))
				g = startGate(t, d)
				require.Equal(t, "ok", g.health(t).Status)
				require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
			})
		}
	}
}

// requireClosed wants a gate that runs nothing and says why.
func requireClosed(t testing.TB, g *testGate, step, says string) {
	t.Helper()
	h := g.health(t)
	require.Equal(t, http.StatusServiceUnavailable, h.status)
	require.Equal(t, "non-ok", h.Status)
	failed := 0
	for _, s := range h.Chain {
		if s.Status == "failed" {
			failed++
			require.Equal(t, step, s.Step)
			require.Contains(t, s.Message, says)
		}
	}
	require.Equal(t, 1, failed, "%+v", h.Chain)
	for _, mode := range []string{"mode=live", "mode=preview"} {
		for _, sql := range []string{"SELECT 1", "UPDATE orders SET status = 'slipped' WHERE id = 1"} {
			r := g.query(t, ask(sql), mode)
			require.Equal(t, http.StatusServiceUnavailable, r.status, "%s", r.body)
			require.Equal(t, "policy_not_loaded", r.text(t, "error_code"))
			require.Contains(t, r.text(t, "message"), step)
		}
	}
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE status = 'slipped'"))
	status := g.get(t, "/policy/status")
	require.Equal(t, http.StatusOK, status.status)
	require.Equal(t, false, status.json(t)["loaded"])
	require.NotNil(t, status.json(t)["failure"])
	for _, path := range []string{"/audit", "/approvals", "/executions", "/logs", "/runtime/stats", "/evidence/verify"} {
		require.Equal(t, http.StatusOK, g.get(t, path).status, "reads go on: %s", path)
	}
}

func flipByte(t testing.TB, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	content[len(content)/2] ^= 1
	require.NoError(t, os.WriteFile(path, content, 0o600))
}
