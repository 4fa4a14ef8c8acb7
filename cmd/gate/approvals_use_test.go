package main

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/event"
	"writegate/fixtures/faultproxy"
	"writegate/fixtures/postgres"
)

// These tests hold what an approval lets run: exactly the request that was
// approved, once, within its limits (spec/decisions.md part 5).

func TestAnApprovalIsForTheExactRequest(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	request := insertHeld("bound").with("session_id", "s-1")
	id := g.approved(t, request)
	sql := request["sql"].(string)
	for name, changed := range map[string]statement{
		"a space at the end":   request.with("sql", sql+" "),
		"a space in front":     request.with("sql", " "+sql),
		"two spaces":           request.with("sql", strings.Replace(sql, " ", "  ", 1)),
		"a semicolon":          request.with("sql", sql+";"),
		"a comment":            request.with("sql", sql+" -- x"),
		"the case of a word":   request.with("sql", strings.Replace(sql, "INSERT", "insert", 1)),
		"another value":        request.with("sql", strings.Replace(sql, "bound", "Bound", 1)),
		"a qualified name":     request.with("sql", strings.Replace(sql, "held_notes", "public.held_notes", 1)),
		"another table":        request.with("sql", strings.Replace(sql, "held_notes", "open_notes", 1)),
		"a blocked statement":  request.with("sql", "INSERT INTO closed_notes VALUES ('bound')"),
		"a read":               request.with("sql", "SELECT 1"),
		"another actor":        request.with("actor", "bo"),
		"the actor's case":     request.with("actor", "Ana"),
		"another app":          request.with("app", "desk"),
		"another tenant":       request.with("tenant", "acme "),
		"another role":         request.with("role", "admin"),
		"another host":         request.with("host", "desk-2"),
		"another env":          request.with("env", "staging"),
		"another session":      request.with("session_id", "s-2"),
		"no session":           request.without("session_id"),
		"values moved between": request.with("actor", "anashop").with("app", ""),
	} {
		t.Run(name, func(t *testing.T) {
			r := g.query(t, changed.with("approval_id", id))
			if changed["app"] == "" {
				requireFault(t, r, http.StatusBadRequest, "validation_failed")
			} else {
				requireFault(t, r, http.StatusConflict, "approval_mismatch")
			}
			require.Equal(t, "0", g.value(t, "SELECT count(*) FROM (SELECT FROM held_notes UNION ALL SELECT FROM open_notes UNION ALL SELECT FROM closed_notes) AS notes"))
		})
	}
	requireFault(t, g.query(t, request.with("approval_id", strings.ToUpper(id))), http.StatusNotFound, "approval_not_found")
	requireFault(t, g.query(t, request.with("approval_id", " "+id)), http.StatusNotFound, "approval_not_found")
	other := g.hold(t, request)
	require.NotEqual(t, id, other, "without approval_id it is a new question")

	// A longer time than the operator was shown is another question.
	require.Equal(t, "default", g.record(t, id)["execution_profile"])
	requireFault(t, g.query(t, request.with("approval_id", id).with("execution_profile", "bulk")), http.StatusConflict, "approval_mismatch")
	long := g.approved(t, request.with("execution_profile", "bulk"))
	require.Equal(t, "bulk", g.record(t, long)["execution_profile"])
	require.Equal(t, http.StatusOK, g.query(t, request.with("approval_id", long).with("execution_profile", "bulk")).status)
	require.Equal(t, "1", g.rowsOf(t, "held_notes", "bound"))

	// What is no part of the context may differ: the text may come as the query
	// parameter, the profile may be another that gives no more time.
	bare := request.without("sql")
	r := g.query(t, bare.with("approval_id", id).with("execution_profile", "latency"), "sql="+sql)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, "2", g.rowsOf(t, "held_notes", "bound"))
	require.Equal(t, "pending", g.record(t, other)["status"], "the other question is untouched")
}

func TestNoChangedByteRunsUnderAnApproval(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	request := insertHeld("bytes")
	id := g.approved(t, request)
	fields := slices.Sorted(maps.Keys(request))
	rapid.Check(t, func(rt *rapid.T) {
		field := rapid.SampledFrom(fields).Draw(rt, "field")
		text := []rune(request[field].(string))
		at := rapid.IntRange(0, len(text)).Draw(rt, "at")
		inserted := rapid.SliceOfN(rapid.Rune(), 0, 2).Draw(rt, "inserted")
		removed := rapid.IntRange(0, min(2, len(text)-at)).Draw(rt, "removed")
		changed := string(slices.Concat(text[:at], inserted, text[at+removed:]))
		if changed == string(text) {
			return
		}
		r := g.query(t, request.with(field, changed).with("approval_id", id))
		if r.status < http.StatusBadRequest {
			rt.Fatalf("%s = %q ran under the approval of %q: %d %s", field, changed, string(text), r.status, r.body)
		}
	})
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM held_notes"))
	require.Equal(t, "approve", g.record(t, id)["resolution"])
	require.Nil(t, g.record(t, id)["execution_id"], "none of it used the approval")
	require.Equal(t, http.StatusOK, g.query(t, request.with("approval_id", id)).status)
}

func TestThePolicyStillDecidesAboutAnApprovedStatement(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	g := startGate(t, d, "GATE_MODE=approval_first")
	asked := g.approved(t, insertOpen("asked"))
	require.Equal(t, "approval_first_mode", g.record(t, asked)["reason_code"])
	g.end(t)

	g = startGate(t, d)
	r := g.query(t, insertOpen("asked").with("approval_id", asked))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, "1", g.rowsOf(t, "open_notes", "asked"))
	require.NotNil(t, g.record(t, asked)["used_at"], "used up, though this mode would not have asked")
	requireFault(t, g.query(t, insertOpen("asked").with("approval_id", asked)), http.StatusConflict, "approval_already_used")
	require.Equal(t, http.StatusOK, g.query(t, insertOpen("asked")).status)
}

func TestAnApprovalIsUsedByWhatReachedTheDatabase(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	request := ask("INSERT INTO held_notes SELECT (1 / (length(note) - 4))::text FROM open_notes")
	require.Equal(t, http.StatusOK, g.query(t, insertOpen("four")).status)
	id := g.approved(t, request)
	failed := g.query(t, request.with("approval_id", id))
	details := requireFault(t, failed, http.StatusUnprocessableEntity, "db_query_failed")
	require.Equal(t, "22012", details["sqlstate"])
	require.Equal(t, "failure", failed.text(t, "execution_state"))
	record := g.record(t, id)
	require.Equal(t, failed.text(t, "execution_id"), record["execution_id"])
	requireFault(t, g.query(t, request.with("approval_id", id)), http.StatusConflict, "approval_already_used")
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM held_notes"))
}

// TestAnAbortedExecutionLeavesItsApprovalUsable: a timeout answers 504 and
// unknown, and where the log knows that nothing was applied the approval may be
// used again.
func TestAnAbortedExecutionLeavesItsApprovalUsable(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	g := startGate(t, d, "GATE_DB_QUERY_TIMEOUT_MS=2000", "GATE_DB_LOCK_TIMEOUT_MS=0")
	id := g.approved(t, insertHeld("patient"))
	retry := insertHeld("patient").with("approval_id", id)
	release := postgres.HoldURL(t, g.database, "LOCK TABLE held_notes")
	late := g.query(t, retry)
	details := requireFault(t, late, http.StatusGatewayTimeout, "db_query_timeout")
	require.Equal(t, []any{"unknown", "aborted"}, []any{late.json(t)["execution_state"], details["outcome"]})
	release()
	g.end(t)

	g = startGate(t, d)
	require.Equal(t, "0", g.rowsOf(t, "held_notes", "patient"))
	again := g.query(t, retry)
	require.Equal(t, http.StatusOK, again.status, "%s", again.body)
	require.NotEqual(t, late.text(t, "execution_id"), again.text(t, "execution_id"))
	require.Equal(t, "1", g.rowsOf(t, "held_notes", "patient"))
	requireFault(t, g.query(t, retry), http.StatusConflict, "approval_already_used")
	require.Equal(t, again.text(t, "execution_id"), g.record(t, id)["execution_id"])
	g.end(t)
	count := countTypes(g.events(t), id)
	require.Equal(t, []int{2, 2, 1, 1, 1}, []int{count[event.TypeApprovalUsed], count[event.TypeExecutionDispatched],
		count[event.TypeExecutionStateUnknown], count[event.TypeExecutionOutcomeResolved], count[event.TypeExecutionSuccess]})
}

// TestAnUnknownOutcomeHoldsItsApprovalAndItsKey: a COMMIT that waits for a
// standby that is gone may have been applied, so nothing runs again under the
// approval or the key, neither now nor after a restart.
func TestAnUnknownOutcomeHoldsItsApprovalAndItsKey(t *testing.T) {
	t.Parallel()
	d, _ := newClusterDir(t, map[string]string{"synchronous_standby_names": "gone", "synchronous_commit": "local"})
	request := ask("DELETE FROM order_items WHERE order_id = 2")
	g := startGate(t, d)
	id := g.approved(t, request)
	d.execute(t, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = on', current_database()); END $$")
	g.end(t)

	g = startGate(t, d, "GATE_DB_COMMIT_TIMEOUT_MS=300")
	retry := request.with("approval_id", id)
	lost := g.query(t, retry, "idempotency_key=lost")
	requireFailure(t, lost, http.StatusGatewayTimeout, "db_query_timeout", "unknown")
	execution := lost.text(t, "execution_id")
	check := func() {
		t.Helper()
		require.Equal(t, execution, requireFault(t, g.query(t, retry), http.StatusConflict, "approval_outcome_unknown")["execution_id"])
		requireFault(t, g.query(t, retry, "idempotency_key=other"), http.StatusConflict, "approval_outcome_unknown")
		requireFault(t, g.query(t, retry.with("host", "desk-2")), http.StatusConflict, "approval_mismatch") // before outcome unknown
		replayed := g.query(t, retry, "idempotency_key=lost")
		requireFailure(t, replayed, http.StatusGatewayTimeout, "db_query_timeout", "unknown")
		require.Equal(t, []any{execution, true}, pick(replayed.json(t), "execution_id", "replayed"))
		require.Equal(t, []any{"resolved", execution}, pick(g.record(t, id), "status", "execution_id"))
		require.Equal(t, "unknown", g.get(t, "/executions/"+execution).text(t, "execution_state"))
		require.Equal(t, 1.0, g.get(t, "/runtime/stats").json(t)["executions_unknown"])
	}
	check()
	g.end(t)
	g = startGate(t, d)
	check()
	g.end(t)
	require.Equal(t, 1, countTypes(g.events(t), id)["execution_dispatched"], "it was sent once")
}

func TestTheRowLimitOfAnApproval(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	d.execute(t, `
CREATE TABLE copies (note text NOT NULL);
CREATE FUNCTION copy_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO copies VALUES (NEW.note); RETURN NEW; END $$;
CREATE TRIGGER copy AFTER INSERT ON held_notes FOR EACH ROW WHEN (NEW.note LIKE 'copied%') EXECUTE FUNCTION copy_note()`)
	g := startGate(t, d)
	rows := func(n int, prefix string) statement {
		return ask(fmt.Sprintf("INSERT INTO held_notes SELECT '%s' || n FROM generate_series(1, %d) AS n", prefix, n))
	}
	for name, c := range map[string]struct {
		request statement
		rows    float64 // what the limit counted; 0 = within it
	}{
		"at the limit":                {rows(5, "at"), 0},
		"one more":                    {rows(6, "over"), 6},
		"many":                        {rows(1000, "many"), 1000},
		"what a trigger writes too":   {rows(3, "copied"), 6},
		"within it, with the trigger": {rows(2, "copied few"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			before := g.value(t, "SELECT count(*) FROM held_notes")
			id := g.approved(t, c.request)
			r := g.query(t, c.request.with("approval_id", id))
			if c.rows == 0 {
				require.Equal(t, http.StatusOK, r.status, "%s", r.body)
				require.Equal(t, "used", g.record(t, id)["use"])
				return
			}
			details := requireFault(t, r, http.StatusUnprocessableEntity, "row_limit_exceeded")
			require.Equal(t, []any{5.0, c.rows}, pick(details, "max_rows", "rows"))
			require.Equal(t, "failure", r.text(t, "execution_state"))
			require.Equal(t, before, g.value(t, "SELECT count(*) FROM held_notes"), "rolled back")
			requireFault(t, g.query(t, c.request.with("approval_id", id)), http.StatusUnprocessableEntity, "row_limit_exceeded") // nothing was applied: it is still there
			require.Equal(t, []any{"free", true}, []any{g.record(t, id)["use"], g.record(t, id)["execution_id"] != nil}, "the record shows the attempt")
		})
	}
	require.Equal(t, "7", g.value(t, "SELECT count(*) FROM held_notes"))
	require.Equal(t, "2", g.value(t, "SELECT count(*) FROM copies"))
}

// Who decides is told beforehand where PostgreSQL expects more rows than may change; who
// asks is not, since an estimate tells of what is in the tables.
func TestAnEstimateOverTheRowLimitIsToldToWhoDecides(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), "GATE_PLAN_ESTIMATES=true")
	for n, over := range map[int]bool{5: false, 6: true} {
		id := g.query(t, ask(fmt.Sprintf("INSERT INTO held_notes SELECT 'x' FROM generate_series(1, %d)", n))).text(t, "approval_id")
		require.Equal(t, false, g.get(t, "/approvals/"+id).json(t)["estimate_exceeds_max_rows"])
		record := g.do(t, http.MethodGet, "/approvals/"+id, nil, operatorHeader).json(t)
		require.NotNil(t, record["impact"], "%v", record)
		require.Equal(t, over, record["estimate_exceeds_max_rows"])
		_, out, _ := g.cli(t, "", "approvals", "show", id)
		require.Equal(t, over, strings.Contains(out, "It will probably fail"), out)
		_, out, _ = g.cli(t, "", "approvals", "approve", id, "--yes")
		require.Equal(t, over, strings.Contains(out, "more than the 5 rows that it may"), out)
	}
}

// TestARowLimitDoesNotSetFreeWhatNoRollbackUndoes: the rows were rolled back and the
// sequence was not, so that the approval has been used.
func TestARowLimitDoesNotSetFreeWhatNoRollbackUndoes(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	d.execute(t, "CREATE SEQUENCE sq")
	g := startGate(t, d)
	request := ask("INSERT INTO held_notes SELECT setval('sq', 100 + n)::text FROM generate_series(1, 6) AS n")
	id := g.approved(t, request)
	r := g.query(t, request.with("approval_id", id))
	details := requireFault(t, r, http.StatusUnprocessableEntity, "row_limit_exceeded")
	require.Equal(t, "partial_possible", details["outcome"])
	require.Contains(t, r.json(t)["message"], "no rollback undoes")
	require.Equal(t, "106", g.value(t, "SELECT last_value FROM sq"))
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM held_notes"))
	requireFault(t, g.query(t, request.with("approval_id", id)), http.StatusConflict, "approval_already_used")
	require.Equal(t, []any{"failure", "partial_possible"}, pick(g.get(t, "/executions/"+r.text(t, "execution_id")).json(t), "execution_state", "outcome"))
}

// TestARowLimitThatCannotBeCountedRunsNothing: TRUNCATE counts no rows, and
// track_counts says whether any are counted, so that an approval with a limit
// cannot let such a statement run.
func TestARowLimitThatCannotBeCountedRunsNothing(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	d.execute(t, "INSERT INTO held_notes VALUES ('kept')")
	g := startGate(t, d)
	for _, sql := range []string{
		"TRUNCATE held_notes",
		"WITH w AS (INSERT INTO held_notes SELECT 'many' FROM generate_series(1, 50000) RETURNING note) SELECT set_config('app.tenant', 'off', true) FROM w LIMIT 1",
		"INSERT INTO held_notes SELECT pg_catalog.set_config('app.tenant', 'off', true) FROM generate_series(1, 50000)",
		"INSERT INTO held_notes SELECT 'names track_counts' FROM generate_series(1, 50000)",
		"WITH x AS (SELECT \"set_config\"('app.tenant', 'off', true)) INSERT INTO held_notes SELECT * FROM x, generate_series(1, 50000)",
	} {
		id := g.approved(t, ask(sql))
		for range 2 { // it never reached the database, so that the approval stays as it was
			details := requireFault(t, g.query(t, ask(sql).with("approval_id", id)), http.StatusUnprocessableEntity, "row_limit_exceeded")
			require.Equal(t, "not_countable", details["reason"], sql)
		}
		require.Nil(t, g.record(t, id)["execution_id"], sql)
	}
	require.Equal(t, "BLOCK", g.query(t, ask("INSERT INTO held_notes SELECT set_config('track_counts', 'off', true)"), "mode=preview").text(t, "decision"), "its name alone is enough")
	require.Equal(t, "1", g.value(t, "SELECT count(*) FROM held_notes"))
}

func TestAPreviewTakesNoApproval(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	id := g.approved(t, insertHeld("preview"))
	details := requireFault(t, g.query(t, insertHeld("preview").with("approval_id", id), "mode=preview"), http.StatusBadRequest, "validation_failed")
	require.Contains(t, details["fields"], "approval_id")
	preview := g.query(t, insertHeld("preview"), "mode=preview")
	require.Equal(t, []any{"REQUIRE_APPROVAL", nil}, pick(preview.json(t), "decision", "approval_id"))
	require.Len(t, g.approvals(t, "").Items, 1, "a preview asks nobody")
	require.Equal(t, http.StatusOK, g.query(t, insertHeld("preview").with("approval_id", id)).status)
}

// The same text is another statement where its names lead elsewhere.
func TestAnApprovalEndsWithTheDatabaseThatItWasFor(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	d.execute(t, "CREATE SCHEMA beside; CREATE TABLE beside.held_notes (LIKE public.held_notes)")
	request := insertHeld("bound")
	g := startGate(t, d)
	id := g.approved(t, request)
	g.end(t)

	g = startGate(t, d, "GATE_SEARCH_PATH=beside")
	requireFault(t, g.query(t, request.with("approval_id", id)), http.StatusConflict, "approval_mismatch")
	g.end(t)

	g = startGate(t, d, "GATE_DATABASE_URL="+postgres.ForTest(t))
	requireFault(t, g.query(t, request.with("approval_id", id)), http.StatusConflict, "approval_mismatch")
	g.end(t)

	u, err := url.Parse(d.database)
	require.NoError(t, err)
	u.Host = "localhost:" + u.Port()
	g = startGate(t, d, "GATE_DATABASE_URL="+u.String()) // by its name it could be any server
	requireFault(t, g.query(t, request.with("approval_id", id)), http.StatusConflict, "approval_mismatch")
	g.end(t)

	g = startGate(t, d)
	require.Equal(t, http.StatusOK, g.query(t, request.with("approval_id", id)).status)
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM beside.held_notes"))
}

// TestACommitThatIsNotAnsweredUsesItsApprovalWhereForeignTablesAre: a foreign server has
// committed its part, whatever the database says of the transaction, and whether the tables
// are there when it is asked.
func TestACommitThatIsNotAnsweredUsesItsApprovalWhereForeignTablesAre(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(`
schema: gate.policy/v1
name: remote
version: 1.0.0
facts: facts/v1
rules:
  - id: held
    decision: REQUIRE_APPROVAL
    reason_code: held
    match: { tables_written: [public.f_a] }
`))
	login, err := pgconn.ParseConfig(d.database)
	require.NoError(t, err)
	setup := "CREATE EXTENSION postgres_fdw; CREATE TABLE at_a (id int); CREATE TABLE at_b (id int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO at_b VALUES (0);"
	foreign := ""
	for _, name := range []string{"a", "b"} {
		setup += fmt.Sprintf("CREATE SERVER %[1]s FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '%[2]s', port '%[3]d', dbname '%[4]s'); CREATE USER MAPPING FOR CURRENT_USER SERVER %[1]s OPTIONS (user '%[5]s', password '%[6]s');",
			name, login.Host, login.Port, login.Database, login.User, login.Password)
		foreign += fmt.Sprintf("CREATE FOREIGN TABLE f_%[1]s (id int) SERVER %[1]s OPTIONS (table_name 'at_%[1]s');", name)
	}
	d.execute(t, setup+foreign)
	direct := d.database
	proxy := faultproxy.Start(t, direct)
	d.database = proxy.URL()
	g := startGate(t, d)
	d.database = direct
	request := ask("WITH a AS (INSERT INTO f_a VALUES (11)) INSERT INTO f_b VALUES (0)")
	id := g.approved(t, request)
	proxy.Arm(faultproxy.Fault{Direction: faultproxy.ToClient, Action: faultproxy.CutBefore, At: func(m faultproxy.Message) bool {
		return m.Type == 'E' && bytes.Contains(m.Body, []byte("23505"))
	}})
	r := g.query(t, request.with("approval_id", id))
	require.Equal(t, "unknown", r.text(t, "execution_state"))
	stands := d.value(t, "SELECT count(*) FROM at_a") // or the other server was asked first
	execution := "/executions/" + r.text(t, "execution_id")
	require.Equal(t, []any{"unknown", "not_knowable"}, pick(g.get(t, execution).json(t), "execution_state", "outcome"))
	d.execute(t, "DROP FOREIGN TABLE f_a, f_b")
	g.post(t, execution+"/check", "")
	require.Equal(t, []any{"unknown", "not_knowable"}, pick(g.get(t, execution).json(t), "execution_state", "outcome"))
	d.execute(t, foreign)
	requireFault(t, g.query(t, request.with("approval_id", id)), http.StatusConflict, "approval_outcome_unknown")
	require.Equal(t, stands, d.value(t, "SELECT count(*) FROM at_a"))
}
