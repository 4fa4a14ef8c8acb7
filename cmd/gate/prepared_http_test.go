package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/event"
	"writegate/sqlgate/policyfolder"
)

// These tests hold SQL-level prepared statements over POST /query
// (spec/decisions.md part 8, design/execution-and-wire.md part 5).

// in is a statement of a session.
func in(session, sql string) statement { return ask(sql).with("session_id", session) }

func (g *testGate) prepare(t testing.TB, session, sql string) {
	t.Helper()
	r := g.query(t, in(session, sql))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
}

func TestAPreparedStatementIsJudgedAndRunAsWhatItHolds(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	r := g.query(t, in("s1", "PREPARE pay (bigint) AS UPDATE orders SET status = $2 WHERE id = $1"))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, []any{"ALLOW", map[string]any{"layer": "session", "policy_version": "shop-gate@1.0.0", "rule_id": ""}, "session_control", "", "success", nil, "PREPARE", []any{}, true},
		pick(r.json(t), "decision", "decided_by", "reason_code", "rule_id", "execution_state", "execution_id", "command_tag", "rows", "enforced"))
	require.Equal(t, []string{"request_received", "decision_recorded", "session_opened"}, eventTypes(t, r))

	r = g.query(t, in("s1", "EXECUTE pay(7, 'paid; it''s done')"))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	body := r.json(t)
	require.Equal(t, []any{"ALLOW", "UPDATE 1", 1.0}, pick(body, "decision", "command_tag", "row_count"))
	require.Equal(t, []any{"UPDATE", []any{"parameters", "prepared"}, []any{"key_equality"}}, pick(body["classification"].(map[string]any), "query_type", "flags", "where"))
	require.Equal(t, "paid; it's done", g.value(t, "SELECT status FROM orders WHERE id = 7"))

	g.prepare(t, "s1", "PREPARE one AS SELECT id, status FROM orders WHERE id = $1")
	r = g.query(t, in("s1", "EXECUTE one(7)"))
	require.JSONEq(t, `[{"id": 7, "status": "paid; it's done"}]`, string(r.raw(t, "rows")))
	require.Equal(t, []any{1.0, 2.0}, pick(g.get(t, "/runtime/stats").json(t)["sessions"].(map[string]any), "open", "statements"))

	// Blocked as the statement would be, and never sent.
	g.prepare(t, "s1", "PREPARE wipe AS SELECT pg_read_file($1)")
	r = g.query(t, in("s1", "EXECUTE wipe('/etc/passwd')"))
	require.Equal(t, http.StatusForbidden, r.status, "%s", r.body)
	require.Equal(t, "server_file_access", r.text(t, "reason_code"))

	for sql, tag := range map[string]string{"DEALLOCATE pay": "DEALLOCATE", "DEALLOCATE ALL": "DEALLOCATE ALL"} {
		r = g.query(t, in("s1", sql))
		if r.status == http.StatusNotFound { // after ALL the other is gone
			require.Equal(t, "prepared_statement_not_found", r.text(t, "error_code"))
			continue
		}
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		require.Equal(t, tag, r.text(t, "command_tag"))
	}
	requireFault(t, g.query(t, in("s1", "EXECUTE one(7)")), http.StatusNotFound, "prepared_statement_not_found")
	g.prepare(t, "s1", "PREPARE pay AS SELECT 1")
	g.end(t)
	requireDispatchOf(t, g, "UPDATE orders SET status = $2 WHERE id = $1", 2)
}

// raw is a field of the answer as it came.
func (r reply) raw(t testing.TB, name string) rawJSON {
	t.Helper()
	var m map[string]rawJSON
	unmarshal(t, r.body, &m)
	return m[name]
}

func eventTypes(t testing.TB, r reply) (types []string) {
	t.Helper()
	for _, e := range r.json(t)["events"].([]any) {
		types = append(types, e.(map[string]any)["event_type"].(string))
	}
	return types
}

// requireDispatchOf finds the evidence that exactly this text was sent, with its
// number of parameters.
func requireDispatchOf(t testing.TB, g *testGate, sql string, params int) {
	t.Helper()
	for _, e := range g.events(t) {
		var p event.ExecutionDispatched
		if e.Type != event.TypeExecutionDispatched {
			continue
		}
		require.NoError(t, e.Parse(&p))
		if p.SQLSHA256 == digestOfText(sql) {
			require.NotNil(t, p.Params)
			require.Equal(t, params, p.Params.Count)
			return
		}
	}
	t.Fatalf("nothing says that %s was sent", sql)
}

func TestASessionBelongsToWhoOpenedIt(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.prepare(t, "s1", "PREPARE p AS SELECT 1 AS one")
	for _, claim := range []string{"actor", "app", "tenant", "role", "host"} {
		for _, sql := range []string{"EXECUTE p", "DEALLOCATE p", "DEALLOCATE ALL"} {
			requireFault(t, g.query(t, in("s1", sql).with(claim, "other")), http.StatusNotFound, "session_not_found")
			requireFault(t, g.query(t, in("s1", sql).with(claim, "other"), "mode=preview"), http.StatusNotFound, "session_not_found")
		}
		for _, sql := range []string{"SELECT 1", "UPDATE orders SET status = 'x' WHERE id = 1"} {
			r := g.query(t, in("s1", sql).with(claim, "other")) // decided by its claims, as without a session
			require.Contains(t, []int{http.StatusOK, http.StatusForbidden}, r.status, "%s", r.body)
		}
	}
	requireFault(t, g.query(t, in("s1", "EXECUTE p").with("env", "staging")), http.StatusNotFound, "session_not_found")
	for _, sql := range []string{"EXECUTE p", "DEALLOCATE p", "DEALLOCATE ALL"} {
		requireFault(t, g.query(t, ask(sql)), http.StatusNotFound, "session_not_found")
		requireFault(t, g.query(t, in("s2", sql)), http.StatusNotFound, "session_not_found")
		requireFault(t, g.query(t, in("s2", sql), "mode=preview"), http.StatusNotFound, "session_not_found")
	}
	require.Equal(t, http.StatusOK, g.query(t, in("s1", "EXECUTE p")).status)
	require.Equal(t, http.StatusOK, g.query(t, in("s1", "SELECT 1")).status)
	require.Equal(t, http.StatusOK, g.query(t, in("context only", "SELECT 1")).status)
	require.Equal(t, 1.0, g.get(t, "/runtime/stats").json(t)["sessions"].(map[string]any)["open"], "neither context nor a refusal opens one")

	require.Equal(t, http.StatusOK, g.query(t, in("s1", "EXECUTE p"), "mode=preview").status)
	require.Equal(t, http.StatusOK, g.query(t, in("s3", "PREPARE p AS SELECT 1"), "mode=preview").status)
	requireFault(t, g.query(t, in("s3", "EXECUTE p")), http.StatusNotFound, "session_not_found")

	g.end(t)
	g = startGate(t, g.gateDir) // memory alone: lost on restart
	requireFault(t, g.query(t, in("s1", "EXECUTE p")), http.StatusNotFound, "session_not_found")
}

func TestAnApprovalOfExecuteIsForWhatWasPrepared(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	request := in("s1", "EXECUTE note('held')")
	prepare := func(sql string) {
		t.Helper()
		id := g.approved(t, in("s1", sql)) // the rule matches the PREPARE too, so it asks for it
		require.Equal(t, http.StatusOK, g.query(t, in("s1", sql).with("approval_id", id)).status)
		requireFault(t, g.query(t, in("s1", sql).with("approval_id", id)), http.StatusConflict, "approval_already_used")
	}
	prepare("PREPARE note (text) AS INSERT INTO held_notes VALUES ($1)")
	id := g.approved(t, request)
	record := g.record(t, id)
	require.Equal(t, []any{request["sql"], "INSERT INTO held_notes VALUES ($1)", []any{"types of the parameters: text"}}, pick(record, "sql", "prepared_sql", "parameters"))

	require.Equal(t, http.StatusOK, g.query(t, in("s1", "DEALLOCATE note")).status)
	prepare("PREPARE note (text) AS INSERT INTO held_notes VALUES ($1 || ' twice')")
	requireFault(t, g.query(t, request.with("approval_id", id)), http.StatusConflict, "approval_mismatch")
	require.Equal(t, http.StatusOK, g.query(t, in("s1", "DEALLOCATE note")).status)
	prepare(`PREPARE note ("char") AS INSERT INTO held_notes VALUES ($1)`)
	require.Equal(t, []any{`types of the parameters: "char"`}, g.record(t, g.approved(t, request))["parameters"], "'held' is 'h' then")
	requireFault(t, g.query(t, request.with("approval_id", id)), http.StatusConflict, "approval_mismatch") // another type
	require.Equal(t, http.StatusOK, g.query(t, in("s1", "DEALLOCATE note")).status)
	prepare("PREPARE note (text) AS INSERT INTO held_notes VALUES ($1)")
	requireFault(t, g.query(t, request.with("sql", "EXECUTE note('other')").with("approval_id", id)), http.StatusConflict, "approval_mismatch")
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM held_notes"))
	require.Equal(t, http.StatusOK, g.query(t, request.with("approval_id", id)).status)
	require.Equal(t, "1", g.value(t, "SELECT count(*) FROM held_notes"))
	requireFault(t, g.query(t, request.with("approval_id", id)), http.StatusConflict, "approval_already_used")
}

func TestWhatCannotBePreparedOrExecuted(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables+"; CREATE TYPE mood AS ENUM ('ok'); CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
	g := startGate(t, d)
	g.prepare(t, "s", "PREPARE one (int, text, bool) AS SELECT $1 AS a, $2 AS b, $3 AS c")
	g.prepare(t, "s", "PREPARE loose AS SELECT id FROM orders WHERE id = $1")
	g.prepare(t, "s", `PREPARE "Robert'); DROP TABLE orders; --" AS SELECT 1 AS fine`)
	for _, c := range []struct {
		sql    string
		status int
		code   string
	}{
		{"PREPARE one AS SELECT 1", 400, "validation_failed"},
		{"PREPARE two AS DROP TABLE orders", 400, "parser_error"},
		{"PREPARE two AS PREPARE three AS SELECT 1", 400, "parser_error"},
		{"PREPARE two AS SELECT 1; DROP TABLE orders", 400, "multi_statement_rejected"},
		{"PREPARE two (mood) AS SELECT $1", 422, "unsupported_sql_shape"},
		{"PREPARE two (positive) AS SELECT $1", 422, "unsupported_sql_shape"},
		{"PREPARE two (public.text) AS SELECT $1", 422, "unsupported_sql_shape"},
		{"PREPARE two (record, internal) AS SELECT 1", 422, "unsupported_sql_shape"},
		{"PREPARE two (orders) AS SELECT $1", 422, "unsupported_sql_shape"},
		{"PREPARE two AS SELECT $1001", 400, "validation_failed"},
		{"EXECUTE one(1, 'x')", 400, "validation_failed"},
		{"EXECUTE one(1, 'x', true, 4)", 400, "validation_failed"},
		{"EXECUTE one", 400, "validation_failed"},
		{"EXECUTE one(1 + 1, 'x', true)", 422, "unsupported_sql_shape"},
		{"EXECUTE one((SELECT 1), 'x', true)", 422, "unsupported_sql_shape"},
		{"EXECUTE one(1, current_user, true)", 422, "unsupported_sql_shape"},
		{"EXECUTE one(1, 'x'::mood, true)", 422, "unsupported_sql_shape"},
		{"EXECUTE one(1, 'x'::varchar(1), true)", 422, "unsupported_sql_shape"},
		{"EXECUTE one('1'::text, 'x', true)", 422, "unsupported_sql_shape"}, // prepared with int
		{"EXECUTE one(1, 'x', 1)", 422, "unsupported_sql_shape"},            // a number is no bool
		{"EXECUTE loose(5::bytea)", 422, "unsupported_sql_shape"},
		{"EXECUTE loose(pg_sleep(10))", 422, "unsupported_sql_shape"},
		{"EXECUTE one(1.5, 'x', true)", 422, "db_query_failed"}, // the server says what an int is
		{"EXECUTE ONE_(1)", 404, "prepared_statement_not_found"},
		{"EXECUTE \"One\"(1, 'x', true)", 404, "prepared_statement_not_found"},
		{"DEALLOCATE nothing", 404, "prepared_statement_not_found"},
	} {
		t.Run(c.sql, func(t *testing.T) { requireFault(t, g.query(t, in("s", c.sql)), c.status, c.code) })
	}
	for _, sql := range []string{"EXPLAIN EXECUTE loose(1)", "CREATE TABLE copied AS EXECUTE loose(1)", "EXPLAIN ANALYZE EXECUTE loose(1)"} {
		r := g.query(t, in("s", sql))
		require.Equal(t, []any{http.StatusForbidden, "opaque_code"}, []any{r.status, r.text(t, "reason_code")}, "%s", r.body)
	}
	require.JSONEq(t, `[{"fine": 1}]`, string(g.query(t, in("s", `EXECUTE "Robert'); DROP TABLE orders; --"`)).raw(t, "rows")))
	require.JSONEq(t, `[{"a": -5, "b": "NULL", "c": null}]`, string(g.query(t, in("s", `EXECUTE OnE(-5, 'NULL', NULL)`)).raw(t, "rows")))
	require.JSONEq(t, `[{"id": 3}]`, string(g.query(t, in("s", `EXECUTE loose('3'::bigint)`)).raw(t, "rows")))
	require.Equal(t, "100", g.value(t, "SELECT count(*) FROM orders"))
}

// In shadow mode what would be stopped runs: an EXECUTE inside of another
// statement is refused all the same, since the database knows nothing of it.
func TestAnExecuteInsideAnotherStatementIsNeverSent(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_MODE=shadow")
	g.prepare(t, "s", "PREPARE p AS SELECT 1")
	for _, sql := range []string{"EXPLAIN EXECUTE p", "CREATE TABLE copied AS EXECUTE p"} {
		requireFault(t, g.query(t, in("s", sql)), http.StatusUnprocessableEntity, "unsupported_sql_shape")
	}
}

func TestSessionsEndWhenNobodyUsesThem(t *testing.T) {
	t.Parallel()
	var passed atomic.Int64
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	clock := func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	g := startGateWith(t, d, func(a *app) { a.sessionClock = clock }, "GATE_MAX_SESSIONS=2")
	g.prepare(t, "a", "PREPARE p AS SELECT 1")
	g.prepare(t, "b", "PREPARE p AS SELECT 1")
	details := requireFault(t, g.query(t, in("c", "PREPARE p AS SELECT 1")), http.StatusTooManyRequests, "session_limit_exceeded")
	require.Equal(t, 2.0, details["max"])
	passed.Store(int64(14 * time.Minute))
	require.Equal(t, http.StatusOK, g.query(t, in("a", "EXECUTE p")).status)
	passed.Store(int64(16 * time.Minute))
	require.Equal(t, http.StatusOK, g.query(t, in("a", "EXECUTE p")).status, "used two minutes ago")
	requireFault(t, g.query(t, in("b", "EXECUTE p")), http.StatusNotFound, "session_not_found")
	g.prepare(t, "b", "PREPARE p AS SELECT 2")
	passed.Store(int64(40 * time.Minute))
	g.prepare(t, "c", "PREPARE p AS SELECT 3") // makes room by ending both
	g.end(t)
	var opened, closed []string
	for _, e := range g.events(t) {
		switch e.Type {
		case event.TypeSessionOpened:
			opened = append(opened, e.Context.SessionID)
		case event.TypeSessionClosed:
			closed = append(closed, e.Context.SessionID)
			require.Equal(t, []string{"ana", "shop", "acme", "prod"}, []string{e.Context.Actor, e.Context.App, e.Context.Tenant, e.Context.Env})
		}
	}
	require.Equal(t, []string{"a", "b", "b", "c"}, opened)
	require.ElementsMatch(t, []string{"b", "a", "b"}, closed)
}

func TestASessionTakesSoMuchAndNoMore(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	for i := range 100 {
		g.prepare(t, "many", fmt.Sprintf("PREPARE p%d AS SELECT %d", i, i))
	}
	details := requireFault(t, g.query(t, in("many", "PREPARE more AS SELECT 1")), http.StatusTooManyRequests, "session_limit_exceeded")
	require.Equal(t, "statements", details["limit"])
	long := "SELECT '" + strings.Repeat("x", 250<<10) + "'"
	for i := range 16 {
		g.prepare(t, "long", fmt.Sprintf("PREPARE p%d AS %s", i, long))
	}
	details = requireFault(t, g.query(t, in("long", "PREPARE more AS "+long)), http.StatusTooManyRequests, "session_limit_exceeded")
	require.Equal(t, "session_bytes", details["limit"])
	require.Equal(t, http.StatusOK, g.query(t, in("long", "DEALLOCATE p3")).status)
	g.prepare(t, "long", "PREPARE more AS "+long)
}

// TestManyPrepareOneNameAtOnce: one of them does, whatever the order.
func TestManyPrepareOneNameAtOnce(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	for round := range 5 {
		var done sync.WaitGroup
		var got [8]reply
		for i := range got {
			done.Go(func() {
				got[i], _ = g.tryQuery(in("crowd", fmt.Sprintf("PREPARE p%d AS SELECT %d AS v", round, i)))
			})
		}
		done.Wait()
		require.Equal(t, map[string]int{"200": 1, "400 validation_failed": 7}, outcomes(t, got[:]))
	}
	opened := 0
	for _, item := range g.get(t, "/audit?session_id=crowd&event_type=session_opened").json(t)["items"].([]any) {
		require.Equal(t, "crowd", item.(map[string]any)["session_id"])
		opened++
	}
	require.Equal(t, 1, opened)
}

func TestShadowAndApprovalFirstWithSessions(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_MODE=approval_first")
	g.prepare(t, "s", "PREPARE pay AS UPDATE orders SET status = 'paid' WHERE id = 1")
	require.Equal(t, http.StatusAccepted, g.query(t, in("s", "EXECUTE pay")).status)
	g.end(t)
	g = startGate(t, g.gateDir, "GATE_MODE=shadow")
	r := g.query(t, in("s", "PREPARE wipe AS DELETE FROM orders"))
	require.Equal(t, []any{200, "BLOCK", false}, []any{r.status, r.text(t, "decision"), r.json(t)["enforced"]}, "%s", r.body)
	r = g.query(t, in("s", "EXECUTE wipe"))
	require.Equal(t, []any{200, "BLOCK", false, "DELETE 100"}, []any{r.status, r.text(t, "decision"), r.json(t)["enforced"], r.text(t, "command_tag")}, "%s", r.body)
	code, _, errs := g.cli(t, "", "query", "DELETE FROM orders ")
	require.Zero(t, code)
	require.Contains(t, errs, "NOT ENFORCED: the policy says BLOCK (")
}

// A key answers for its EXECUTE also when the session is long gone.
func TestAKeyOutlivesItsSession(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.prepare(t, "s", "PREPARE pay (bigint) AS UPDATE orders SET status = 'paid' WHERE id = $1 RETURNING id")
	first := g.query(t, in("s", "EXECUTE pay(4)"), "idempotency_key=k")
	require.Equal(t, http.StatusOK, first.status, "%s", first.body)
	g.end(t)
	g = startGate(t, g.gateDir)
	again := g.query(t, in("s", "EXECUTE pay(4)"), "idempotency_key=k")
	require.Equal(t, http.StatusOK, again.status, "%s", again.body)
	require.Equal(t, pick(first.json(t), "execution_id", "rows"), pick(again.json(t), "execution_id", "rows"))
	require.Equal(t, true, again.json(t)["replayed"])
}

// A key of an EXECUTE is for what was prepared, as an approval is: the text, the types
// of its parameters and the arguments.
func TestAKeyOfExecuteIsForWhatWasPrepared(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	const first = "PREPARE pay (bigint) AS UPDATE orders SET status = 'first' WHERE id = $1"
	execute := func() reply { return g.query(t, in("s", "EXECUTE pay(4)"), "idempotency_key=k") }
	anew := func(sql string) {
		t.Helper()
		require.Equal(t, http.StatusOK, g.query(t, in("s", "DEALLOCATE pay")).status)
		g.prepare(t, "s", sql)
	}
	g.prepare(t, "s", first)
	require.Equal(t, http.StatusOK, execute().status)
	for _, other := range []string{
		"PREPARE pay (bigint) AS UPDATE orders SET status = 'second' WHERE id = $1",
		"PREPARE pay (int) AS UPDATE orders SET status = 'first' WHERE id = $1",
		"PREPARE pay AS UPDATE orders SET status = 'first' WHERE id = $1",
		"PREPARE pay (bigint, text) AS UPDATE orders SET status = $2 WHERE id = $1",
		"PREPARE pay (bigint) AS DELETE FROM orders WHERE id = $1",
	} {
		anew(other)
		requireFault(t, execute(), http.StatusConflict, "idempotency_conflict")
	}
	require.Equal(t, "first", g.value(t, "SELECT status FROM orders WHERE id = 4"))
	anew(first)
	require.Equal(t, true, execute().json(t)["replayed"])
	require.Equal(t, http.StatusOK, g.query(t, in("s", "DEALLOCATE pay")).status)
	require.Equal(t, true, execute().json(t)["replayed"], "nothing is prepared that could be meant")

	// What needs no session is bound to its text alone.
	plain := func() reply {
		return g.query(t, in("s", "UPDATE orders SET status = 'plain' WHERE id = 5"), "idempotency_key=p")
	}
	require.Equal(t, http.StatusOK, plain().status)
	require.Equal(t, true, plain().json(t)["replayed"])

	// A restart keeps what the key is bound to.
	g.end(t)
	g = startGate(t, g.gateDir)
	g.prepare(t, "s", "PREPARE pay (bigint) AS DELETE FROM orders WHERE id = $1")
	requireFault(t, execute(), http.StatusConflict, "idempotency_conflict")
}

// TestExecuteDecidesAndRunsAsTheStatementWithItsArguments draws statements and
// arguments: an EXECUTE is decided as the statement by itself, and does what the
// same statement does with its constants written into it.
func TestExecuteDecidesAndRunsAsTheStatementWithItsArguments(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	templates := []struct{ sql, types string }{
		{"SELECT $1::text AS a, $2::text AS b", "text, text"},
		{"SELECT id, status FROM orders WHERE id = $1 AND status <> $2", "bigint, text"},
		{"UPDATE orders SET status = $2 WHERE id = $1 RETURNING id, status", "bigint, text"},
		{"UPDATE orders SET status = $2 WHERE id > $1", "bigint, text"},
		{"INSERT INTO orders VALUES ($1, 1, $2)", "bigint, text"},
		{"DELETE FROM orders WHERE id = $1 AND status = $2", "bigint, text"},
		{"SELECT pg_read_file($2), $1", "bigint, text"},
		{"DELETE FROM orders WHERE $1 = 1 OR $2 = 'x'", "int, text"},
		{"INSERT INTO customers VALUES ($1, $2, $2)", "bigint, text"},
	}
	texts := []string{"''", "'x'", "'it''s'", "E'\\n\\\\'", "'\"; DROP TABLE orders; --'", "$tag$$1$tag$", "NULL", "'é😀'", "'$2'", "U&'\\0061'"}
	numbers := []string{"1", "0", "-1", "7", "42", "'5'", "NULL", "9223372036854775807", "'x'", "- -3"}
	beside := gateDir{path: t.TempDir(), database: g.database}
	require.NoError(t, policyfolder.Create(beside.file("policies"), policyfolder.DefaultManifest, []byte(openPolicy)))
	runs := startGate(t, beside, "GATE_MODE=shadow") // whatever it is sent
	fresh := g.value(t, shopDigest)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		c := rapid.SampledFrom(templates).Draw(rt, "statement")
		first, second := rapid.SampledFrom(numbers).Draw(rt, "first"), rapid.SampledFrom(texts).Draw(rt, "second")
		typed := ""
		if rapid.Bool().Draw(rt, "typed") {
			typed = " (" + c.types + ")"
		}
		n++
		session := fmt.Sprintf("s%d", n/90)
		prepared := g.query(t, in(session, fmt.Sprintf("PREPARE p%d%s AS %s", n, typed, c.sql)))
		if prepared.status != http.StatusOK { // a rule of the policy matches the PREPARE itself
			require.Equal(rt, http.StatusForbidden, prepared.status, "%s", prepared.body)
			return
		}
		decided := g.query(t, ask(c.sql), "mode=preview").json(t)
		executed := g.query(t, in(session, fmt.Sprintf("EXECUTE p%d(%s, %s)", n, first, second)))
		after := g.value(t, shopDigest)
		defer func() {
			if g.value(t, shopDigest) != fresh {
				g.execute(t, "TRUNCATE orders, order_items, customers; "+shopRows)
			}
		}()
		switch failed := executed.status == http.StatusUnprocessableEntity; {
		case failed:
			require.Equal(rt, []any{"ALLOW", "db_query_failed"}, []any{decided["decision"], executed.text(t, "error_code")}, "%s", executed.body)
		default:
			require.Equal(rt, pick(decided, "decision", "fingerprint"), pick(executed.json(t), "decision", "fingerprint"), "%s", executed.body)
		}
		if decided["decision"] != "ALLOW" {
			require.Equal(rt, fresh, after)
			return
		}
		if after != fresh {
			g.execute(t, "TRUNCATE orders, order_items, customers; "+shopRows)
			require.Equal(rt, fresh, g.value(t, shopDigest), "the rows are back")
		}
		names := strings.Split(c.types, ", ")
		plain := strings.NewReplacer("$1", "CAST("+first+" AS "+names[0]+")", "$2", "CAST("+second+" AS "+names[1]+")").Replace(c.sql)
		literal := runs.query(t, ask(plain))
		require.Equal(rt, literal.status, executed.status, "%s: %s %s", plain, literal.body, executed.body)
		require.Equal(rt, pick(literal.json(t), "row_count", "rows", "command_tag"), pick(executed.json(t), "row_count", "rows", "command_tag"), plain)
		require.Equal(rt, after, g.value(t, shopDigest), plain)
	})
}

// shopRows are the rows of shopTables, and shopDigest tells whether they are as
// they were.
const (
	shopRows = `INSERT INTO customers VALUES (1, 'Ada', 'ada@example.com');
INSERT INTO orders SELECT n, 1, 'new' FROM generate_series(1, 100) AS n;
INSERT INTO order_items SELECT n, 1 FROM generate_series(1, 100) AS n`
	shopDigest = `SELECT md5(concat((SELECT string_agg(o::text, ';' ORDER BY o.id) FROM orders o), (SELECT string_agg(c::text, ';' ORDER BY c.id) FROM customers c),
 (SELECT string_agg(i::text, ';' ORDER BY i.order_id) FROM order_items i)))`
)

func digestOfText(sql string) [32]byte { return sha256.Sum256([]byte(sql)) }

// LOCK TABLE holds to the end of its transaction, and here that is its own.
func TestALockIsNoRequestOfItsOwn(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(strings.Replace(openPolicy, "SET, PREPARE]", "SET, PREPARE, LOCK]", 1)))
	d.execute(t, shopTables)
	g := startGate(t, d)
	requireFault(t, g.query(t, ask("LOCK TABLE orders IN ACCESS SHARE MODE")), http.StatusUnprocessableEntity, "unsupported_sql_shape")
}

// Whoever uses a session_id first takes it from nobody: the ids stand in the open
// audit, and many are fixed.
func TestASessionIDIsNotTakenFromOthers(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	bob := func(sql string) reply { return g.query(t, in("worker-7", sql).with("actor", "bob")) }
	require.Equal(t, http.StatusOK, bob("PREPARE p AS SELECT 'bob' AS who").status)
	require.Equal(t, http.StatusOK, g.query(t, in("worker-7", "SELECT 1")).status)
	requireFault(t, g.query(t, in("worker-7", "EXECUTE p")), http.StatusNotFound, "session_not_found")
	g.prepare(t, "worker-7", "PREPARE p AS SELECT 'ana' AS who")
	require.Contains(t, string(g.query(t, in("worker-7", "EXECUTE p")).body), `"ana"`)
	require.Contains(t, string(bob("EXECUTE p").body), `"bob"`)
	require.Equal(t, 2.0, g.get(t, "/runtime/stats").json(t)["sessions"].(map[string]any)["open"])
	require.Equal(t, http.StatusOK, bob("DEALLOCATE ALL").status)
	require.Contains(t, string(g.query(t, in("worker-7", "EXECUTE p")).body), `"ana"`)
	require.Len(t, g.eventsOf(t, event.TypeSessionOpened), 2)
}

// A session that an operator began is nobody else's: what is prepared in it may run unenforced.
func TestASessionOfAnOperatorIsHisOwn(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_MODE=emergency_bypass", "GATE_EMERGENCY_BYPASS_REASON=the policy is wrong", "GATE_EMERGENCY_BYPASS_UNTIL="+time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	ask := func(session, path, sql string, headers ...string) int {
		return g.do(t, http.MethodPost, path, mustJSON(t, in(session, sql)), headers...).status
	}
	const prepare, preview = "PREPARE fix (int) AS UPDATE orders SET status = status WHERE id = $1", "/query?mode=preview"
	require.Equal(t, http.StatusOK, ask("maintenance", "/query", prepare, operatorTestHeader))
	for _, path := range []string{"/query", preview} {
		for _, sql := range []string{"EXECUTE fix(1)", "DEALLOCATE fix"} {
			require.Equal(t, http.StatusNotFound, ask("maintenance", path, sql), sql)
		}
		require.Equal(t, http.StatusOK, ask("maintenance", path, "SELECT 1"))
	}
	// What somebody else prepares under the name is not what the operator's EXECUTE runs.
	require.Equal(t, http.StatusOK, ask("maintenance", "/query", "PREPARE fix (int) AS UPDATE orders SET status = 'x' WHERE id > $1"))
	r := g.do(t, http.MethodPost, "/query", mustJSON(t, in("maintenance", "EXECUTE fix(1)")), operatorTestHeader)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, "UPDATE 1", r.text(t, "command_tag"))

	// In a session of somebody else an operator may look and touches nothing.
	require.Equal(t, http.StatusOK, ask("worker", "/query", prepare))
	for _, sql := range []string{"EXECUTE fix(1)", "DEALLOCATE fix"} {
		require.Equal(t, http.StatusNotFound, ask("worker", "/query", sql, operatorTestHeader), sql)
	}
	require.Equal(t, http.StatusNotFound, ask("worker", preview, "DEALLOCATE fix", operatorTestHeader))
	require.Equal(t, http.StatusOK, ask("worker", preview, "EXECUTE fix(1)", operatorTestHeader))
	require.Equal(t, http.StatusOK, ask("worker", "/query", "SELECT 1", operatorTestHeader))
}
