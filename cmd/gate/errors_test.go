package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
	"writegate/sqlgate/policyfolder"
)

// A raise is one way to get an error code: the request, and the status that the
// contract gives the code.
type raise struct {
	code   fault.Code
	status int
	name   string
	do     func(t *testing.T) reply
}

// notRaised are the codes that no request gets from what is built, and why.
var notRaised = map[fault.Code]string{
	fault.PolicyActivationFailed: "the tests of policy_http_test.go raise it",
	fault.PolicyVersionExists:    "likewise",
	fault.GrantEnded:             "the tests of grants_test.go raise it",
	fault.GrantLimitExceeded:     "likewise",
	fault.UnsafeReadShape:        "POST /query answers what the read fence caught as 403 BLOCK, read_fence_violation (spec/decisions.md part 3)",

	fault.LoginRequired:      "an answer of the control plane, which is another process (http/controlplane tests it)",
	fault.LoginFailed:        "likewise",
	fault.ForgedRequest:      "likewise",
	fault.BackendUnavailable: "likewise",
}

// errorPolicy is the open policy with a rule whose approvals end at once.
const errorPolicy = openPolicy + `  - id: brief
    decision: REQUIRE_APPROVAL
    reason_code: brief
    match: { query_types: [MERGE] }
    approval: { ttl_seconds: 1 }
`

// briefStatement asks for an approval that ends at once.
const briefStatement = "MERGE INTO orders o USING customers c ON o.id = c.id WHEN MATCHED THEN UPDATE SET status = 'merged'"

func newErrorDir(t *testing.T) gateDir {
	t.Helper()
	d := newGateDir(t, []byte(errorPolicy))
	d.execute(t, shopTables)
	return d
}

// sends is a raise by one statement.
func sends(g *testGate, s statement, params ...string) func(*testing.T) reply {
	return func(t *testing.T) reply { return g.query(t, s, params...) }
}

func calls(g *testGate, method, path, body string, headers ...string) func(*testing.T) reply {
	return func(t *testing.T) reply { return g.do(t, method, path, []byte(body), headers...) }
}

// TestEveryErrorCodeIsRaisedAsTheContractSays is the table of the error codes
// (spec/gate.md part 7, spec/decisions.md part 1).
func TestEveryErrorCodeIsRaisedAsTheContractSays(t *testing.T) {
	t.Parallel()
	g := startGate(t, newErrorDir(t), "GATE_MAX_BODY_BYTES=8192", "GATE_MAX_SQL_BYTES=4000", "GATE_MAX_RESULT_ROWS=50", "GATE_MAX_SESSIONS=1")
	table := requestErrors(g)
	table = append(table, approvalErrors(g)...)
	table = append(table, keyErrors(g)...)
	table = append(table, databaseErrors(t)...)
	table = append(table, serviceErrors(t)...)
	table = append(table, agentErrors(t)...)
	table = append(table, toolErrors(t)...)
	raised := map[fault.Code]bool{}
	for _, r := range table {
		raised[r.code] = true
		t.Run(string(r.code)+" "+r.name, func(t *testing.T) { requireRaised(t, r.do(t), r) })
	}
	for _, code := range declaredCodes(t) {
		if reason, excused := notRaised[code]; excused {
			require.False(t, raised[code], "%s is raised, and listed as if it were not: %s", code, reason)
		} else {
			require.True(t, raised[code], "%s is raised by no request of the table", code)
		}
	}
}

// requireRaised holds an answer against the contract's error object.
func requireRaised(t *testing.T, got reply, r raise) {
	t.Helper()
	require.Equal(t, r.status, got.status, "%s", got.body)
	require.Equal(t, string(r.code), got.text(t, "error_code"), "%s", got.body)
	require.Equal(t, "application/json", got.header.Get("Content-Type"))
	require.NotEmpty(t, got.header.Get("X-Request-Id"))
	require.True(t, strings.HasPrefix(got.text(t, "error_id"), "err_"), "%s", got.body)
	for key, value := range got.json(t) {
		require.Contains(t, []string{"error_code", "message", "error_id", "details", "execution_state", "execution_id"}, key)
		require.NotNil(t, value, key)
	}
	message := got.text(t, "message")
	require.True(t, strings.HasSuffix(message, "."), "a sentence: %s", message)
	require.GreaterOrEqual(t, strings.Count(message+" ", ". ")+strings.Count(message, "; "), 2, "what is wrong, and what to do next: %s", message)
	switch got.status {
	case http.StatusTooManyRequests:
		require.NotEmpty(t, got.header.Get("Retry-After"))
	case http.StatusMethodNotAllowed:
		require.NotEmpty(t, got.header.Get("Allow"))
	case http.StatusUnauthorized:
		require.NotEmpty(t, got.header.Get("WWW-Authenticate"))
	}
}

// declaredCodes reads the codes from the source that declares them.
func declaredCodes(t *testing.T) (codes []fault.Code) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "commands", "fault", "fault.go"), nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Code" {
			for _, v := range spec.Values {
				code, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				require.NoError(t, err)
				codes = append(codes, fault.Code(code))
			}
		}
		return true
	})
	require.Greater(t, len(codes), 30)
	return codes
}

// requestErrors are those of a request that never gets as far as a decision.
func requestErrors(g *testGate) []raise {
	operator := "X-GATE-Operator-Token: " + operatorTestToken
	return []raise{
		{fault.InvalidJSON, 400, "no JSON", calls(g, "POST", "/query", `{"actor":`)},
		{fault.InvalidJSON, 400, "unknown field", calls(g, "POST", "/query", `{"acter":"ana"}`)},
		{fault.InvalidJSON, 400, "wrong type", calls(g, "POST", "/query", `{"actor":7}`)},
		{fault.InvalidJSON, 400, "doubled key", calls(g, "POST", "/query", `{"actor":"a","actor":"b"}`)},
		{fault.InvalidJSON, 400, "trailing data", calls(g, "POST", "/query", `{} {}`)},
		{fault.ValidationFailed, 400, "empty body", calls(g, "POST", "/query", ``)},
		{fault.ValidationFailed, 400, "no actor", sends(g, ask("SELECT 1").with("actor", ""))},
		{fault.ValidationFailed, 400, "env", sends(g, ask("SELECT 1").with("env", "production"))},
		{fault.ValidationFailed, 400, "profile", sends(g, ask("SELECT 1").with("execution_profile", "fast"))},
		{fault.ValidationFailed, 400, "an empty profile", sends(g, ask("SELECT 1").with("execution_profile", ""))},
		{fault.ValidationFailed, 400, "an approval's id that would fill the log", sends(g, ask("SELECT 1").with("approval_id", strings.Repeat("x", 257)))},
		{fault.ValidationFailed, 400, "an empty session", sends(g, ask("SELECT 1").with("session_id", ""))},
		{fault.ValidationFailed, 400, "an empty approval", sends(g, ask("SELECT 1").with("approval_id", ""))},
		{fault.ValidationFailed, 400, "an empty approval in a preview", sends(g, ask("SELECT 1").with("approval_id", ""), "mode=preview")},
		{fault.ValidationFailed, 400, "mode", sends(g, ask("SELECT 1"), "mode=dry")},
		{fault.ValidationFailed, 400, "two texts", sends(g, ask("SELECT 1"), "sql=SELECT 2")},
		{fault.ValidationFailed, 400, "key in a preview", sends(g, ask("SELECT 1"), "mode=preview", "idempotency_key=k")},
		{fault.ValidationFailed, 400, "query string", calls(g, "GET", "/audit?actor=%zz", "")},
		{fault.ValidationFailed, 400, "resolution", calls(g, "POST", "/approvals/apr_x/resolve", `{"decision":"maybe"}`, operator)},
		{fault.UnsupportedMediaType, 415, "text", calls(g, "POST", "/query", `{}`, "Content-Type: text/plain")},
		{fault.UnsupportedMediaType, 415, "none", calls(g, "POST", "/query", `{}`, "Content-Type: ")},
		{fault.DryRunRefused, 422, "no rule takes it", sends(g, ask("UPDATE orders SET status = 'tried' WHERE id = 1"), "mode=dry_run")},
		{fault.ForbiddenOrigin, 403, "a page", calls(g, "GET", "/health", "", "Origin: http://elsewhere.example")},
		{fault.ForbiddenOrigin, 403, "another port", calls(g, "POST", "/query", `{}`, "Sec-Fetch-Site: same-site")},
		{fault.MisdirectedRequest, 421, "a name", calls(g, "GET", "/health", "", "Host: elsewhere.example")},
		{fault.OversizedRequest, 413, "body", sends(g, ask(strings.Repeat("x", 9000)))},
		{fault.OversizedSQL, 413, "SQL", sends(g, ask("SELECT '"+strings.Repeat("x", 4500)+"'"))},
		{fault.EmptySQL, 400, "nothing", sends(g, ask(""))},
		{fault.EmptySQL, 400, "a comment", sends(g, ask("-- nothing\n;"))},
		{fault.MultiStatementRejected, 400, "two", sends(g, ask("SELECT 1; SELECT 2"))},
		{fault.ParserError, 400, "a word", sends(g, ask("SELEC 1"))},
		{fault.ParserError, 400, "NUL", sends(g, ask("SELECT 1\x00"))},
		{fault.ParserError, 400, "open quote", sends(g, ask("SELECT 'abc"))},
		{fault.ParserUnsupportedSyntax, 422, "depth", sends(g, ask("SELECT "+strings.Repeat("(", 1900)+"1"+strings.Repeat(")", 1900)))},
		{fault.UnsupportedSQLShape, 422, "BEGIN", sends(g, ask("BEGIN"))},
		{fault.SessionNotFound, 404, "EXECUTE", sends(g, ask("EXECUTE p").with("session_id", "s"))},
		{fault.SessionNotFound, 404, "PREPARE", sends(g, ask("PREPARE p AS SELECT 1"))},
		{fault.PreparedStatementNotFound, 404, "EXECUTE", func(t *testing.T) reply {
			require.Equal(t, http.StatusOK, g.query(t, ask("PREPARE known AS SELECT 1").with("session_id", "one")).status)
			return g.query(t, ask("EXECUTE unknown").with("session_id", "one"))
		}},
		{fault.SessionLimitExceeded, 429, "a second session", sends(g, ask("PREPARE p AS SELECT 1").with("session_id", "two"))},
		{fault.NotFound, 404, "path", calls(g, "GET", "/nowhere", "")},
		{fault.NotFound, 404, "execution", calls(g, "GET", "/executions/exe_none", "")},
		{fault.MethodNotAllowed, 405, "GET /query", calls(g, "GET", "/query", "")},
		{fault.MethodNotAllowed, 405, "POST /approvals/x", calls(g, "POST", "/approvals/apr_x", "")},
		{fault.UnauthorizedOperator, 401, "no token", calls(g, "POST", "/approvals/purge", "")},
		{fault.UnauthorizedOperator, 401, "wrong token", calls(g, "POST", "/approvals/purge", "", "Authorization: Bearer wrong")},
	}
}

// held asks for an approval and answers it, where a decision is given.
func held(t *testing.T, g *testGate, sql, decision string) statement {
	t.Helper()
	r := g.query(t, ask(sql))
	require.Equal(t, http.StatusAccepted, r.status, "%s", r.body)
	id := r.text(t, "approval_id")
	if decision != "" {
		require.Equal(t, http.StatusOK, g.resolve(t, id, decision).status)
	}
	return ask(sql).with("approval_id", id)
}

// approvalErrors are those of approvals and of what runs under them.
func approvalErrors(g *testGate) []raise {
	one := func(n int) string { return "DELETE FROM order_items WHERE order_id = " + strconv.Itoa(n) }
	expired := func(t *testing.T) statement {
		s := held(t, g, briefStatement, "")
		require.Eventually(t, func() bool {
			return g.get(t, "/approvals/"+s["approval_id"].(string)).text(t, "status") == "expired"
		}, startPatience, pollEvery)
		return s
	}
	return []raise{
		{fault.GrantNotFound, 404, "GET", calls(g, "GET", "/grants/gra_none", "")},
		{fault.GrantNotFound, 404, "revoke", calls(g, "POST", "/grants/gra_none/revoke", `{}`, "X-GATE-Operator-Token: "+operatorTestToken)},
		{fault.ApprovalNotFound, 404, "GET", calls(g, "GET", "/approvals/apr_none", "")},
		{fault.ApprovalNotFound, 404, "retry", sends(g, ask(one(1)).with("approval_id", "apr_none"))},
		{fault.ApprovalNotFound, 404, "resolve", func(t *testing.T) reply { return g.resolve(t, "apr_none", "approve") }},
		{fault.ApprovalRejected, 409, "retry", func(t *testing.T) reply { return g.query(t, held(t, g, one(1), "reject")) }},
		{fault.ApprovalExpired, 410, "retry", func(t *testing.T) reply { return g.query(t, expired(t)) }},
		{fault.ApprovalExpired, 410, "resolve", func(t *testing.T) reply { return g.resolve(t, expired(t)["approval_id"].(string), "approve") }},
		{fault.ApprovalMismatch, 409, "another text", func(t *testing.T) reply {
			return g.query(t, held(t, g, one(1), "approve").with("sql", one(2)))
		}},
		{fault.ApprovalMismatch, 409, "another actor", func(t *testing.T) reply {
			return g.query(t, held(t, g, one(1), "approve").with("actor", "ben"))
		}},
		{fault.ApprovalAlreadyResolved, 409, "twice", func(t *testing.T) reply {
			return g.resolve(t, held(t, g, one(1), "approve")["approval_id"].(string), "reject")
		}},
		{fault.ApprovalAlreadyUsed, 409, "twice", func(t *testing.T) reply {
			s := held(t, g, one(1), "approve")
			require.Equal(t, http.StatusOK, g.query(t, s).status)
			return g.query(t, s)
		}},
		{fault.RowLimitExceeded, 422, "three rows", func(t *testing.T) reply {
			return g.query(t, held(t, g, "DELETE FROM order_items WHERE order_id IN (11, 12, 13)", "approve"))
		}},
		{fault.RowLimitExceeded, 422, "not countable", func(t *testing.T) reply { return g.query(t, held(t, g, "TRUNCATE order_items", "approve")) }},
	}
}

// keyErrors are those of idempotency keys.
func keyErrors(g *testGate) []raise {
	return []raise{
		{fault.IdempotencyConflict, 409, "another text", func(t *testing.T) reply {
			require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1"), "idempotency_key=k1").status)
			return g.query(t, ask("SELECT 2"), "idempotency_key=k1")
		}},
		{fault.IdempotencyInProgress, 409, "at once", func(t *testing.T) reply {
			s := ask("SELECT "+endless).with("execution_profile", "bulk")
			ended := make(chan reply, 1)
			go func() { ended <- g.query(t, s, "idempotency_key=k2") }()
			awaitActive(t, g.gateDir, 1)
			r := g.query(t, s, "idempotency_key=k2")
			g.execute(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%orders a, orders b%' AND pid <> pg_backend_pid()")
			<-ended
			return r
		}},
	}
}

// databaseErrors are those of the database: a gate in front of one that has no
// room, one in front of none, one that has no time, and one whose COMMIT is never
// answered.
func databaseErrors(t *testing.T) []raise {
	d, cluster := newClusterDir(t, map[string]string{"synchronous_standby_names": "nobody", "synchronous_commit": "local"})
	d.execute(t, "CREATE ROLE crowded LOGIN PASSWORD 'crowded' CONNECTION LIMIT 0")
	crowded := newErrorDir(t)
	crowded.database = cluster.URLFor("crowded", "crowded", "shop")
	nowhere := newErrorDir(t)
	nowhere.database = "postgres://gate:gate@127.0.0.1:1/shop"
	d.execute(t, "ALTER DATABASE shop SET synchronous_commit = on") // from the next login on COMMIT waits
	full, gone := startGate(t, crowded), startGate(t, nowhere)
	// The limit of other statements bounds what a new connection is asked, too.
	hurried := startGate(t, newErrorDir(t), "GATE_DB_BULK_QUERY_TIMEOUT_MS=200")
	g := startGate(t, d, "GATE_DB_COMMIT_TIMEOUT_MS=300", "GATE_MAX_RESULT_ROWS=50")
	return []raise{
		{fault.DBConnectionFailed, 502, "nobody there", sends(gone, ask("SELECT 1"))},
		{fault.DBConnectionFailed, 502, "nobody there for a write", sends(gone, ask("UPDATE orders SET status = 'x' WHERE id = 1"))},
		{fault.DBUnavailable, 503, "no room", sends(full, ask("SELECT 1"))},
		{fault.DBQueryTimeout, 504, "a read", sends(hurried, ask("SELECT "+endless).with("execution_profile", "bulk"))},
		{fault.DBQueryFailed, 422, "no such table", sends(g, ask("SELECT id FROM nowhere"))},
		{fault.DBQueryFailed, 422, "a key twice", sends(g, ask("INSERT INTO customers VALUES (1, 'Eve', 'eve@example.com')"))},
		{fault.ResultTooLarge, 413, "rows", sends(g, ask("SELECT id FROM orders"))},
		{fault.ApprovalOutcomeUnknown, 409, "no answer to COMMIT", func(t *testing.T) reply {
			s := held(t, g, "DELETE FROM order_items WHERE order_id = 5", "approve")
			requireRaised(t, g.query(t, s), raise{code: fault.DBQueryTimeout, status: 504})
			return g.query(t, s)
		}},
	}
}

// serviceErrors are those of a service that is limited, damaged or broken.
func serviceErrors(t *testing.T) []raise {
	limited := startGate(t, newErrorDir(t), "GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1", "GATE_RATE_LIMIT_BURST=1", "GATE_OPERATOR_TOKEN=")
	spent := func(next func(*testing.T) reply) func(*testing.T) reply {
		return func(t *testing.T) reply {
			limited.query(t, ask("SELECT 1")) // takes what there is
			return next(t)
		}
	}
	tampered := newErrorDir(t)
	flipByte(t, filepath.Join(tampered.file("policies"), policyfolder.Path("open@1.0.0")))
	closed := startGate(t, tampered)
	broken := startGateWith(t, newErrorDir(t), func(a *app) {
		a.step = func(name string) {
			if name == "decision.before_append" {
				panic("a defect")
			}
		}
	})
	return []raise{
		{fault.RateLimitExceeded, 429, "the second", spent(sends(limited, ask("SELECT 1")))},
		{fault.RateLimitExceeded, 429, "failed logins count", spent(calls(limited, "POST", "/approvals/purge", ""))},
		{fault.PolicyNotLoaded, 503, "tampered policy", sends(closed, ask("SELECT 1"))},
		{fault.PolicyNotLoaded, 503, "tampered policy, preview", sends(closed, ask("SELECT 1"), "mode=preview")},
		{fault.Internal, 500, "a defect", sends(broken, ask("SELECT 1"))},
		{fault.AuditUnavailable, 503, "full volume", func(t *testing.T) reply { return onAFullVolume(t) }},
		{fault.AuditCorruptionDetected, 503, "damaged log", func(t *testing.T) reply { return onADamagedLog(t) }},
	}
}

// onAFullVolume lets the volume of the log run full and gives the first refusal.
// Nothing is executed then, reads go on, and once there is room it serves again.
func onAFullVolume(t *testing.T) (refused reply) {
	d := newErrorDir(t)
	var full atomic.Bool
	fs := frametest.Inject(frame.OS{}, func(op frametest.Op) error {
		// Only the zeros written ahead are this long and lengthen the file.
		if full.Load() && strings.HasSuffix(op.Name, "audit.wal") && op.Kind == frametest.Pwrite && op.Len >= 16<<10 {
			return syscall.ENOSPC
		}
		return nil
	})
	g := startGateWith(t, d, func(a *app) { a.logFS = fs }, "GATE_AUDIT_PREALLOCATE_BYTES=65536")
	full.Store(true)
	sql := "INSERT INTO customers SELECT 1000 + count(*), 'x', 'x' FROM customers"
	written := 1
	require.Eventually(t, func() bool {
		refused = g.query(t, ask(sql))
		if refused.status == http.StatusOK {
			written++
		}
		return refused.status != http.StatusOK
	}, startPatience, time.Millisecond)
	require.Equal(t, strconv.Itoa(written), g.value(t, "SELECT count(*) FROM customers"), "what was refused did not run")
	h := g.health(t)
	require.Equal(t, "non-ok", h.Status)
	require.Contains(t, h.Message, "event log")
	require.Equal(t, http.StatusOK, g.get(t, "/audit").status)
	full.Store(false)
	require.Eventually(t, func() bool { return g.query(t, ask(sql)).status == http.StatusOK }, startPatience, pollEvery)
	require.Equal(t, "ok", g.health(t).Status)
	g.end(t)
	return refused
}

// onADamagedLog flips one bit of a finished log and asks the gate that starts
// over it: it only answers reads.
func onADamagedLog(t *testing.T) reply {
	d := newErrorDir(t)
	g := startGate(t, d)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	g.end(t)
	events := d.events(t)
	content, err := os.ReadFile(d.file("audit.wal"))
	require.NoError(t, err)
	at := strings.Index(string(content), events[len(events)/2].ID.String()[4:])
	if at < 0 {
		at = 4096 + 200
	}
	content[at] ^= 1
	require.NoError(t, os.WriteFile(d.file("audit.wal"), content, 0o600))
	g = startGate(t, d)
	defer g.endDamaged(t)
	require.Equal(t, "non-ok", g.health(t).Status)
	require.Equal(t, "corruption_detected", g.get(t, "/evidence/verify").text(t, "status"))
	return g.query(t, ask("UPDATE orders SET status = 'slipped' WHERE id = 1"))
}

// endDamaged ends a gate whose log does not verify.
func (g *testGate) endDamaged(t testing.TB) {
	t.Helper()
	g.stop()
	g.stop = nil
	select {
	case <-g.ended:
	case <-time.After(startPatience):
		t.Fatalf("the gate did not end:\n%s", g.output)
	}
}
