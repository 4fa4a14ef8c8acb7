package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/eventlog/event"
	"writegate/fixtures/postgres"
	"writegate/sqlgate/classify"
)

// These tests hold what a grant lets run: statements of its agent that meet its condition, in
// its time and within its budget, and nothing else.

// grantedPolicy asks for approvals in three ways: one takes grants, one takes them for rows up
// to a limit, one takes none.
const grantedPolicy = `
schema: gate.policy/v1
name: granted
version: 1.0.0
facts: facts/v1
rules:
  - id: closed
    decision: BLOCK
    reason_code: notes_are_closed
    match: { tables_written: [public.closed_notes] }
  - id: strict
    decision: REQUIRE_APPROVAL
    reason_code: notes_are_strict
    match: { tables_written: [public.strict_notes] }
  - id: few
    decision: REQUIRE_APPROVAL
    reason_code: few_at_a_time
    match: { tables_written: [public.few_notes] }
    approval: { grants: true, max_grant_seconds: 7200, max_rows: 2 }
  - id: held
    decision: REQUIRE_APPROVAL
    reason_code: notes_are_held
    match: { query_types: [INSERT, UPDATE, DELETE, TRUNCATE] }
    approval: { grants: true, max_grant_seconds: 3600 }
  - id: open
    decision: ALLOW
    reason_code: notes_are_open
    match: { class: [session, tcl], query_types_only: [BEGIN, COMMIT, ROLLBACK, SET] }
`

const grantedTables = `
CREATE TABLE closed_notes (id int, n int NOT NULL DEFAULT 0);
CREATE TABLE strict_notes (id int, n int NOT NULL DEFAULT 0);
CREATE TABLE few_notes (id int, n int NOT NULL DEFAULT 0);
CREATE TABLE held_notes (id int, n int NOT NULL DEFAULT 0);
INSERT INTO held_notes SELECT g FROM generate_series(1, 100) g;
INSERT INTO few_notes SELECT g FROM generate_series(1, 100) g;
INSERT INTO strict_notes SELECT g FROM generate_series(1, 100) g`

const (
	onHeld   = `query_types.all(t, t == "UPDATE") && tables_written.all(t, t == "public.held_notes")`
	anyWrite = `class == "write"`
)

func newGranted(t *testing.T) *agentWorld {
	d := newGateDir(t, []byte(grantedPolicy))
	d.execute(t, grantedTables)
	return &agentWorld{testGate: &testGate{gateDir: d}, key: agentctl.NewSecret(agentctl.KeyPrefix)}
}

func startGranted(t *testing.T, extra ...string) *agentWorld {
	t.Helper()
	w := newGranted(t)
	w.testGate = startGate(t, w.gateDir, append([]string{"GATE_PROJECT_KEYS=shop/ops=" + w.key}, extra...)...)
	return w
}

// grantRequest is a body of POST /grants.
func grantRequest(agentID, condition string, uses int, rows int64) statement {
	return statement{"agent_id": agentID, "condition": condition, "until": time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano), "uses": uses, "rows": rows, "reason": "the spring catalogue"}
}

func (w *agentWorld) operate(t *testing.T, path string, body any, headers ...string) reply {
	t.Helper()
	return w.do(t, http.MethodPost, path, mustJSON(t, body), append([]string{"X-GATE-Operator-Token: " + operatorTestToken}, headers...)...)
}

func (w *agentWorld) grant(t *testing.T, agentID, condition string, uses int, rows int64) string {
	t.Helper()
	r := w.operate(t, "/grants", grantRequest(agentID, condition, uses, rows))
	require.Equal(t, http.StatusCreated, r.status, "%s", r.body)
	require.Equal(t, "active", r.text(t, "status"))
	require.Equal(t, "/grants/"+r.text(t, "grant_id"), r.header.Get("Location"))
	return r.text(t, "grant_id")
}

func (w *agentWorld) grantNow(t *testing.T, id string) map[string]any {
	t.Helper()
	r := w.get(t, "/grants/"+id)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	return r.json(t)
}

// requireBudget demands what is left of a grant.
func (w *agentWorld) requireBudget(t *testing.T, id string, usesLeft, rowsLeft, reserved int) {
	t.Helper()
	g := w.grantNow(t, id)
	require.Equal(t, []any{float64(usesLeft), float64(rowsLeft), float64(reserved)}, pick(g, "uses_left", "rows_left", "rows_reserved"), "%v", g)
}

// asAgent is as for a goroutine that is not the test's own.
func (w *agentWorld) asAgent(token string, s statement) (reply, error) {
	body := []byte(fmt.Sprintf(`{"actor":"ana","app":"shop","tenant":"acme","role":"clerk","host":"desk-1","env":"prod","sql":%q}`, s["sql"]))
	return w.try(http.MethodPost, "/query", body, "Authorization: Bearer "+token)
}

func bump(id int) statement {
	return ask(fmt.Sprintf("UPDATE held_notes SET n = n + 1 WHERE id = %d", id))
}

// bumpUpTo changes so many rows.
func bumpUpTo(rows int) statement {
	return ask(fmt.Sprintf("UPDATE held_notes SET n = n + 1 WHERE id <= %d", rows))
}

func TestAGrantStandsForTheApprovalsOfItsAgent(t *testing.T) {
	t.Parallel()
	w := startGranted(t)
	id, token := w.register(t, "bot")
	_, other := w.register(t, "other-bot")
	require.Equal(t, http.StatusAccepted, w.as(t, token, bump(1)).status)
	grant := w.grant(t, id, onHeld, 3, 10)

	require.Equal(t, grant, w.as(t, token, bump(1), "mode=preview").json(t)["grant_id"])
	w.requireBudget(t, grant, 3, 10, 0)
	r := w.as(t, token, bumpUpTo(2))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, []any{"ALLOW", grant, float64(2)}, pick(r.json(t), "decision", "grant_id", "row_count"))
	w.requireBudget(t, grant, 2, 8, 0)
	require.Equal(t, r.text(t, "policy_version"), w.get(t, "/executions/"+r.text(t, "execution_id")).text(t, "policy_version"))
	require.Equal(t, http.StatusAccepted, w.as(t, other, bump(1)).status, "another agent has none")
	require.Equal(t, http.StatusAccepted, w.query(t, bump(1)).status, "and neither has a caller without a token")
	for sql, status := range map[string]int{
		"UPDATE strict_notes SET n = 1 WHERE id = 1": http.StatusAccepted,
		"UPDATE few_notes SET n = 1 WHERE id = 1":    http.StatusAccepted,
		"DELETE FROM held_notes WHERE id = 99":       http.StatusAccepted,
		"TRUNCATE held_notes":                        http.StatusAccepted,
		"WITH gone AS (DELETE FROM held_notes WHERE id = 98) UPDATE held_notes SET n = 1 WHERE id = 1":      http.StatusAccepted,
		"WITH one AS (INSERT INTO closed_notes VALUES (1)) UPDATE held_notes SET n = 1 WHERE id = 1":        http.StatusForbidden,
		"UPDATE held_notes SET n = 1 WHERE id = 1 AND pg_sleep(0) IS NOT NULL":                              http.StatusAccepted,
		"WITH one AS (UPDATE strict_notes SET n = 1 WHERE id = 1) UPDATE held_notes SET n = 1 WHERE id = 1": http.StatusAccepted,
	} {
		r := w.as(t, token, ask(sql))
		require.Equal(t, status, r.status, "%s: %s", sql, r.body)
		require.Nil(t, r.json(t)["grant_id"])
	}
	w.requireBudget(t, grant, 2, 8, 0)
	require.Equal(t, http.StatusOK, w.as(t, token, bump(1)).status)
	require.Equal(t, http.StatusOK, w.as(t, token, bump(1)).status)
	require.Equal(t, "used_up", w.grantNow(t, grant)["status"])
	require.Equal(t, http.StatusAccepted, w.as(t, token, bump(1)).status, "all uses are over")

	w.end(t)
	var life []event.Type
	for _, e := range w.events(t) {
		if strings.HasPrefix(string(e.Type), "grant_") || len(life) > 0 && e.Type == event.TypeExecutionDispatched {
			life = append(life, e.Type)
		}
	}
	use := []event.Type{event.TypeGrantUsed, event.TypeExecutionDispatched}
	require.Equal(t, slices.Concat([]event.Type{event.TypeGrantCreated}, use, use, use), life)
}

func TestAGrantIsAnOperatorsAndAllOfItIsHeld(t *testing.T) {
	t.Parallel()
	w := startGranted(t)
	id, token := w.register(t, "bot")
	good := grantRequest(id, onHeld, 1, 1)
	for _, credential := range []string{"X-GATE-Operator-Token: wrong-wrong-wrong-wrong-wrong", "Authorization: Bearer " + token, "X-Other: none"} {
		for _, path := range []string{"/grants", "/grants/gra_x/revoke", "/grants/replay"} {
			r := w.do(t, http.MethodPost, path, mustJSON(t, good), credential)
			requireFault(t, r, http.StatusUnauthorized, "unauthorized_operator")
		}
	}
	for field, bad := range map[string][]any{
		"agent_id":  {nil, ""},
		"condition": {nil, "", "true", `actor == "bot"`, `fingerprint == "x" && class == "write"`, `"public.held_notes" in tables_written`, `class ==`, strings.Repeat(`class == "write" && `, 200) + `safe_read`},
		"until":     {nil, "", "tomorrow", time.Now().Add(-time.Second).Format(time.RFC3339Nano), time.Now().Add(3 * time.Hour).Format(time.RFC3339Nano)},
		"uses":      {nil, 0, -1, 10_001},
		"rows":      {nil, -1},
		"reason":    {nil, "", " ", strings.Repeat("x", 1001)},
	} {
		for _, value := range bad {
			body := good.with(field, value)
			if value == nil {
				delete(body, field)
			}
			r := w.operate(t, "/grants", body)
			requireFault(t, r, http.StatusBadRequest, "validation_failed")
			require.Contains(t, r.json(t)["details"].(map[string]any)["fields"], field, "%v", value)
		}
	}
	requireFault(t, w.operate(t, "/grants", good.with("more", 1)), http.StatusBadRequest, "invalid_json")
	requireFault(t, w.operate(t, "/grants", good.with("uses", "1")), http.StatusBadRequest, "invalid_json")
	requireFault(t, w.operate(t, "/grants?preview=true", good), http.StatusBadRequest, "validation_failed")
	requireFault(t, w.operate(t, "/grants", good.with("agent_id", "agt_nobody")), http.StatusNotFound, "agent_not_found")
	requireFault(t, w.get(t, "/grants/gra_nothing"), http.StatusNotFound, "grant_not_found")
	requireFault(t, w.get(t, "/grants?status=any"), http.StatusBadRequest, "validation_failed")
	requireFault(t, w.operate(t, "/grants/gra_nothing/revoke", statement{}), http.StatusNotFound, "grant_not_found")
	require.Equal(t, http.StatusMethodNotAllowed, w.operate(t, "/grants/gra_nothing", statement{}).status)
	require.Empty(t, w.get(t, "/grants").json(t)["items"], "nothing of this made one")

	grant := w.grant(t, id, onHeld, 1, 1)
	requireFault(t, w.operate(t, "/grants/"+grant+"/revoke", statement{"note": strings.Repeat("x", 4097)}), http.StatusBadRequest, "validation_failed")
	require.Equal(t, []any{"revoked", "operator", "done"}, pick(w.operate(t, "/grants/"+grant+"/revoke", statement{"note": "done"}).json(t), "status", "revoked_by", "note"))
	requireFault(t, w.operate(t, "/grants/"+grant+"/revoke", statement{}), http.StatusConflict, "grant_ended")
	require.Equal(t, http.StatusAccepted, w.as(t, token, bump(1)).status)
	for range 20 {
		w.grant(t, id, onHeld, 1, 1)
	}
	requireFault(t, w.operate(t, "/grants", grantRequest(id, onHeld, 1, 1)), http.StatusConflict, "grant_limit_exceeded")
	require.Len(t, w.get(t, "/grants?status=active&agent_id="+id).json(t)["items"], 20)
	require.Len(t, w.get(t, "/grants?status=revoked").json(t)["items"], 1)

	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+id, "").status)
	requireFault(t, w.operate(t, "/grants", grantRequest(id, onHeld, 1, 1)), http.StatusConflict, "agent_inactive")
	require.Eventually(t, func() bool {
		return len(w.get(t, "/audit?event_type=grant_expired").json(t)["items"].([]any)) == 20
	}, startPatience, pollEvery, "what the agent had ends with it")
	require.Empty(t, w.get(t, "/grants?status=active").json(t)["items"])
}

func TestAGrantIsMadeOnceUnderItsKey(t *testing.T) {
	t.Parallel()
	w := startGranted(t)
	id, _ := w.register(t, "bot")
	body := grantRequest(id, onHeld, 1, 1)
	first := w.operate(t, "/grants", body, "Idempotency-Key: k-1")
	require.Equal(t, http.StatusCreated, first.status, "%s", first.body)
	again := w.operate(t, "/grants?idempotency_key=k-1", body)
	require.Equal(t, http.StatusCreated, again.status)
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
	require.JSONEq(t, string(first.body), string(again.body))
	requireFault(t, w.operate(t, "/grants", body.with("uses", 2), "Idempotency-Key: k-1"), http.StatusConflict, "idempotency_conflict")
	requireFault(t, w.operate(t, "/grants?idempotency_key=k-2", body, "Idempotency-Key: k-1"), http.StatusBadRequest, "validation_failed")
	require.Len(t, w.get(t, "/grants").json(t)["items"], 1)
}

func TestACrowdSpendsTheLastUseOfAGrantOnce(t *testing.T) {
	t.Parallel()
	w := startGranted(t)
	id, token := w.register(t, "bot")
	for range rounds(t) {
		before := w.value(t, "SELECT sum(n) FROM held_notes")
		grant := w.grant(t, id, onHeld, 1, 1000)
		replies := atOnce(t, func(int) (reply, error) { return w.asAgent(token, bump(1)) })
		count := map[int]int{}
		for _, r := range replies {
			count[r.status]++
		}
		require.Equal(t, map[int]int{http.StatusOK: 1, http.StatusAccepted: crowd - 1}, count)
		require.Equal(t, "1", w.value(t, "SELECT sum(n) - "+before+" FROM held_notes"))
		require.Equal(t, "used_up", w.grantNow(t, grant)["status"])
	}
}

func TestWritersAtOnceStayWithinTheRowsOfAGrant(t *testing.T) {
	t.Parallel()
	w := startGranted(t)
	id, token := w.register(t, "bot")
	for table, each := range map[string]int{"held_notes": 3, "few_notes": 2} {
		grant := w.grant(t, id, anyWrite, 1000, 25)
		var writers sync.WaitGroup
		var mu sync.Mutex
		statuses, failures := map[int]int{}, []error(nil)
		for i := range 32 {
			sql := ask(fmt.Sprintf("UPDATE %s SET n = n + 1 WHERE id BETWEEN %d AND %d", table, i*3+1, i*3+each))
			writers.Go(func() {
				r, err := w.asAgent(token, sql)
				mu.Lock()
				defer mu.Unlock()
				statuses[r.status]++
				if err != nil {
					failures = append(failures, err)
				}
			})
		}
		writers.Wait()
		require.Empty(t, failures)
		t.Log(table, statuses)
		require.NotZero(t, statuses[http.StatusOK])
		require.Equal(t, 32, statuses[http.StatusOK]+statuses[http.StatusAccepted]+statuses[http.StatusUnprocessableEntity], "%v", statuses)
		g := w.grantNow(t, grant)
		require.Equal(t, w.value(t, "SELECT sum(n) FROM "+table), fmt.Sprint(g["rows_changed"]))
		require.LessOrEqual(t, g["rows_changed"], float64(25))
		require.GreaterOrEqual(t, g["rows_changed"], float64(25-each), "what was there to be had was given")
		require.EqualValues(t, statuses[http.StatusOK]*each, g["rows_changed"])
		require.Zero(t, g["rows_reserved"])
		w.operate(t, "/grants/"+grant+"/revoke", statement{})
	}
}

func TestAStatementOverTheRowsOfAGrantIsRolledBack(t *testing.T) {
	t.Parallel()
	w := startGranted(t)
	id, token := w.register(t, "bot")
	grant := w.grant(t, id, onHeld, 10, 5)
	require.Equal(t, http.StatusOK, w.as(t, token, bumpUpTo(4)).status)
	over := w.as(t, token, bumpUpTo(2))
	requireFault(t, over, http.StatusUnprocessableEntity, "row_limit_exceeded")
	require.Equal(t, grant, over.json(t)["details"].(map[string]any)["grant_id"])
	require.Equal(t, "4", w.value(t, "SELECT sum(n) FROM held_notes"))
	w.requireBudget(t, grant, 8, 1, 0)
	require.Equal(t, http.StatusAccepted, w.as(t, token, bumpUpTo(2)).status, "sent again it asks")
	require.Equal(t, http.StatusOK, w.as(t, token, bump(1)).status, "one row is left")
	require.Equal(t, http.StatusAccepted, w.as(t, token, bump(1)).status, "and none now")
	w.requireBudget(t, grant, 7, 0, 0)
	require.Equal(t, "active", w.grantNow(t, grant)["status"])

	require.Equal(t, http.StatusOK, w.operate(t, "/grants/"+grant+"/revoke", statement{}).status)
	w.execute(t, "CREATE TABLE followers (id int); CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO followers SELECT generate_series(1, 20); RETURN NEW; END'; CREATE TRIGGER follows AFTER UPDATE ON held_notes FOR EACH ROW EXECUTE FUNCTION follow()")
	w.grant(t, id, onHeld, 10, 10)
	requireFault(t, w.as(t, token, bump(2)), http.StatusUnprocessableEntity, "row_limit_exceeded")
	require.Equal(t, "0", w.value(t, "SELECT count(*) FROM followers"), "what triggers write counts")
}

// A statement that was dispatched under a grant ends as it was decided; no later one starts.
func TestAGrantThatEndsWhileAStatementRuns(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, w *agentWorld, grant string){
		"revoked": func(t *testing.T, w *agentWorld, grant string) {
			require.Equal(t, http.StatusOK, w.operate(t, "/grants/"+grant+"/revoke", statement{}).status)
		},
		"expired": func(t *testing.T, w *agentWorld, grant string) {
			require.Eventually(t, func() bool {
				return w.grantNow(t, grant)["status"] == "expired" && len(w.get(t, "/audit?event_type=grant_expired").json(t)["items"].([]any)) == 1
			}, startPatience, pollEvery)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startGranted(t)
			id, token := w.register(t, "bot")
			body := grantRequest(id, onHeld, 10, 100)
			if name == "expired" {
				body = body.with("until", time.Now().Add(4*time.Second).UTC().Format(time.RFC3339Nano))
			}
			made := w.operate(t, "/grants", body)
			require.Equal(t, http.StatusCreated, made.status, "%s", made.body)
			grant := made.text(t, "grant_id")
			release := postgres.HoldURL(t, w.database, "LOCK TABLE held_notes IN ACCESS EXCLUSIVE MODE")
			answers := make(chan reply, 1)
			go func() {
				r, _ := w.asAgent(token, bump(1)) // a reply without a status says that it failed
				answers <- r
			}()
			require.Eventually(t, func() bool { return w.grantNow(t, grant)["uses_left"] == float64(9) }, startPatience, pollEvery)
			end(t, w, grant)
			require.Equal(t, http.StatusAccepted, w.as(t, token, bump(2)).status)
			release()
			r := <-answers
			require.Equal(t, http.StatusOK, r.status, "%s", r.body)
			require.Equal(t, "1", w.value(t, "SELECT sum(n) FROM held_notes"))
			w.requireBudget(t, grant, 9, 99, 0)
			require.Equal(t, http.StatusAccepted, w.as(t, token, bump(2)).status)
		})
	}
}

// A use is in the append of its dispatch: whenever the gate dies there is neither without the
// other, and what may have changed rows keeps them until it is known.
func TestAGateThatDiesUnderAGrant(t *testing.T) {
	t.Parallel()
	for at, want := range map[death]struct {
		uses, left, reserved int
		settled              int // rows left once the outcome was looked up
		rows                 string
	}{
		"decision.before_append@1": {10, 100, 0, 100, "0"},
		"commands.append@1":        {10, 100, 0, 100, "0"},
		"decision.appended@1":      {9, 0, 100, 100, "0"},
		"write.executed@1":         {9, 0, 100, 100, "0"},
		"write.committed@1":        {9, 0, 100, 0, "1"},
		"result.appended@1":        {9, 99, 0, 99, "1"},
	} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			w := newGranted(t)
			key := []string{"GATE_PROJECT_KEYS=shop/ops=" + w.key, "GATE_OUTCOME_CHECK_INTERVAL_SECONDS=0"}
			w.testGate = startGate(t, w.gateDir, key...)
			id, token := w.register(t, "bot")
			grant := w.grant(t, id, onHeld, 10, 100)
			w.end(t)

			v := w.spawn(t, fall{at: at}, key...)
			_, err := v.try(http.MethodPost, "/query", string(mustJSON(t, bump(1))), "Authorization: Bearer "+token)
			require.Error(t, err, "it died in between")
			v.await(t)
			require.True(t, v.killed(), "%v", v.output.String())
			w.awaitBackends(t)
			w.testGate = startGate(t, w.gateDir, key...)
			w.requireBudget(t, grant, want.uses, want.left, want.reserved)
			require.Equal(t, want.rows, w.value(t, "SELECT sum(n) FROM held_notes"))
			if want.reserved > 0 {
				require.Equal(t, http.StatusAccepted, w.as(t, token, bump(2)).status, "an unknown outcome keeps all rows that were left")
				unknown := w.get(t, "/executions?execution_state=unknown").json(t)["items"].([]any)
				require.Len(t, unknown, 1)
				execution := unknown[0].(map[string]any)["execution_id"].(string)
				checked := w.operate(t, "/executions/"+execution+"/check", statement{})
				require.Equal(t, http.StatusOK, checked.status, "%s", checked.body)
				w.requireBudget(t, grant, want.uses, want.settled, 0)
			}
			used := 0
			w.end(t)
			for _, e := range w.events(t) {
				if e.Type == event.TypeGrantUsed {
					used++
				}
			}
			require.Equal(t, 10-want.uses, used)
		})
	}
}

func TestWhatAGrantDoesNotReach(t *testing.T) {
	t.Parallel()
	for mode, status := range map[string]int{"approval_first": http.StatusAccepted, "shadow": http.StatusOK} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := startGranted(t, "GATE_MODE="+mode)
			id, token := w.register(t, "bot")
			grant := w.grant(t, id, onHeld, 10, 1)
			r := w.as(t, token, bumpUpTo(5))
			require.Equal(t, status, r.status, "%s", r.body)
			require.Equal(t, "REQUIRE_APPROVAL", r.text(t, "decision"))
			w.requireBudget(t, grant, 10, 1, 0)
		})
	}
	t.Run("the agent's rules", func(t *testing.T) {
		t.Parallel()
		w := startGranted(t)
		id, token := w.register(t, "bot")
		grant := w.grant(t, id, anyWrite, 10, 100)
		require.Equal(t, http.StatusOK, w.as(t, token, bump(1)).status)
		w.apply(t, w.rule(t, "block", `sql.query_type == "DELETE"`), id)
		w.apply(t, w.rule(t, "require_approval", `sql.query_type == "INSERT"`), id)
		require.Equal(t, http.StatusForbidden, w.as(t, token, ask("DELETE FROM held_notes WHERE id = 1")).status)
		asked := w.as(t, token, ask("INSERT INTO held_notes VALUES (500)"))
		require.Equal(t, http.StatusAccepted, asked.status)
		require.Nil(t, asked.json(t)["grant_id"])
		require.Equal(t, http.StatusOK, w.as(t, token, bump(1)).status)
		w.requireBudget(t, grant, 8, 98, 0)
	})
	t.Run("rows of none", func(t *testing.T) {
		t.Parallel()
		w := startGranted(t)
		id, token := w.register(t, "bot")
		w.grant(t, id, onHeld, 10, 0)
		require.Equal(t, http.StatusAccepted, w.as(t, token, bump(1)).status)
	})
}

func TestAReplayTellsWhatAGrantWouldHaveCovered(t *testing.T) {
	t.Parallel()
	w := startGranted(t)
	id, token := w.register(t, "bot")
	for i := range 3 {
		require.Equal(t, http.StatusAccepted, w.as(t, token, bump(i)).status)
	}
	s := bump(7)
	approval := w.as(t, token, s).text(t, "approval_id")
	require.Equal(t, http.StatusOK, w.resolve(t, approval, "approve").status)
	require.Equal(t, http.StatusOK, w.as(t, token, s.with("approval_id", approval)).status)
	require.Equal(t, http.StatusAccepted, w.as(t, token, ask("UPDATE strict_notes SET n = 1 WHERE id = 1")).status)
	require.Equal(t, http.StatusAccepted, w.as(t, token, ask("TRUNCATE held_notes")).status)
	require.Equal(t, http.StatusAccepted, w.query(t, bump(1)).status)
	for _, body := range []statement{{}, {"replay": statement{"last": "24h"}}, {"replay": statement{"from_seq": 1}}} {
		r := w.operate(t, "/grants/replay", body.with("agent_id", id).with("condition", anyWrite))
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		found := r.json(t)
		require.Equal(t, []any{float64(4), float64(6), true}, pick(found, "covered", "evaluated", "complete"), "%s", r.body)
		require.Equal(t, map[string]any{"held": float64(4)}, found["by_rule"])
		require.Len(t, found["statements"], 4)
	}
	longer := w.operate(t, "/grants/replay", statement{"agent_id": id, "condition": anyWrite, "seconds": 3601}).json(t)
	require.Equal(t, float64(0), longer["covered"], "no rule that asked takes one for so long")
	for _, bad := range []statement{{"agent_id": id}, {"condition": anyWrite}, {"agent_id": id, "condition": "true"}, {"agent_id": id, "condition": anyWrite, "seconds": 0},
		{"agent_id": id, "condition": anyWrite, "replay": statement{"last": "x"}}, {"agent_id": id, "condition": anyWrite, "replay": statement{"from_seq": 100000}}} {
		requireFault(t, w.operate(t, "/grants/replay", bad), http.StatusBadRequest, "validation_failed")
	}
}

// Whoever rewrites a grant, its life or a use of it is told from the log alone.
func TestAGrantThatWasRewrittenIsNamed(t *testing.T) {
	t.Parallel()
	w := startGranted(t)
	id, token := w.register(t, "bot")
	grant := w.grant(t, id, onHeld, 2, 10)
	other := w.grant(t, id, anyWrite, 1, 1)
	require.Equal(t, http.StatusOK, w.operate(t, "/grants/"+other+"/revoke", statement{}).status)
	require.Equal(t, http.StatusOK, w.as(t, token, bumpUpTo(3)).status)
	require.Equal(t, http.StatusOK, w.as(t, token, bump(4)).status)
	w.end(t)
	_, found := decidedOtherwise(t, w.gateDir, exitOK)
	require.Empty(t, found)

	created := func(change func(p *event.GrantCreated)) func(*event.Envelope) {
		return func(e *event.Envelope) {
			var p event.GrantCreated
			if e.Type == event.TypeGrantCreated && e.Parse(&p) == nil && p.GrantID == grant {
				change(&p)
				e.Payload = p.Fields()
			}
		}
	}
	used := func(change func(p *event.GrantUsed)) func(*event.Envelope) {
		return func(e *event.Envelope) {
			var p event.GrantUsed
			if e.Type == event.TypeGrantUsed && e.Parse(&p) == nil {
				change(&p)
				e.Payload = p.Fields()
			}
		}
	}
	succeeded := func(change func(p *event.ExecutionSuccess)) func(*event.Envelope) {
		return func(e *event.Envelope) {
			var p event.ExecutionSuccess
			if e.Type == event.TypeExecutionSuccess && e.Parse(&p) == nil {
				change(&p)
				e.Payload = p.Fields()
			}
		}
	}
	decided := func(change func(p *event.DecisionRecorded)) func(*event.Envelope) {
		return func(e *event.Envelope) {
			var p event.DecisionRecorded
			if e.Type == event.TypeDecisionRecorded && e.Parse(&p) == nil && p.GrantID != "" {
				change(&p)
				e.Payload = p.Fields()
			}
		}
	}
	for name, change := range map[string]func(*event.Envelope){
		"its condition":       created(func(p *event.GrantCreated) { p.Condition = `class == "read"` }),
		"a condition of none": created(func(p *event.GrantCreated) { p.Condition = "true" }),
		"its time":            created(func(p *event.GrantCreated) { p.Until += int64(time.Hour) }),
		"its uses":            created(func(p *event.GrantCreated) { p.Uses = 1 }),
		"its rows":            created(func(p *event.GrantCreated) { p.Rows = 3 }),
		"its id":              created(func(p *event.GrantCreated) { p.GrantID += "x" }),
		"the rows of a use":   used(func(p *event.GrantUsed) { p.Rows++ }),
		"less rows of a use":  used(func(p *event.GrantUsed) { p.Rows = 0 }),
		"the number of a use": used(func(p *event.GrantUsed) { p.Use = 1 }),
		"the grant of a use":  used(func(p *event.GrantUsed) { p.GrantID = other }),
		"no grant":            decided(func(p *event.DecisionRecorded) { p.GrantID, p.Facts.GrantSeconds = "", 0 }),
		"an unnamed grant":    decided(func(p *event.DecisionRecorded) { p.GrantID = "" }),
		"another grant":       decided(func(p *event.DecisionRecorded) { p.GrantID = other }),
		"less seconds":        decided(func(p *event.DecisionRecorded) { p.Facts.GrantSeconds-- }),
		"that it was revoked": revokes(grant),
		"more rows changed":   succeeded(func(p *event.ExecutionSuccess) { p.RowsChanged = 5000 }),
		"less than no rows":   succeeded(func(p *event.ExecutionSuccess) { p.RowsChanged = -5000 }),
		"not enforced":        decided(func(p *event.DecisionRecorded) { p.Enforced = false }),
		"a run of its own":    decided(func(p *event.DecisionRecorded) { p.Run = classify.RunAlone }),
		"an agent that ended": func(e *event.Envelope) {
			if e.Type == event.TypeGrantRevoked {
				e.Draft = event.New(e.Time, e.Context, &event.AgentDeactivated{AgentID: id, Cause: event.CauseRequest})
			}
		},
		"whose it is": func(e *event.Envelope) {
			if e.Type == event.TypeGrantCreated {
				e.Context.AgentID += "x"
			}
		},
		"a use that is another event": func(e *event.Envelope) {
			if e.Type == event.TypeGrantUsed {
				e.Draft = event.New(e.Time, e.Context, &event.ApprovalUsed{})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			verdict, found := decidedOtherwise(t, rewritten(t, w.gateDir, change), exitFailed)
			require.NotEmpty(t, found)
			require.Equal(t, false, verdict["all_equal"])
			require.Contains(t, fmt.Sprint(found), "grant")
		})
	}
}

// revokes turns the revocation of another grant into that of this one.
func revokes(grant string) func(*event.Envelope) {
	return func(e *event.Envelope) {
		var p event.GrantRevoked
		if e.Type == event.TypeGrantRevoked && e.Parse(&p) == nil {
			p.GrantID = grant
			e.Payload = p.Fields()
		}
	}
}

func TestAGrantOnTheWire(t *testing.T) {
	t.Parallel()
	w := startGranted(t, wireAgents()...)
	id, token := w.register(t, "bot")
	c, err := w.login(t, id, token)
	require.NoError(t, err)
	requireState(t, says(c, bump(1)["sql"].(string)), "ERROR GT001")
	grant := w.grant(t, id, onHeld, 100, 10)
	require.NoError(t, says(c, bump(1)["sql"].(string)))
	w.requireBudget(t, grant, 99, 9, 0)

	// With parameters, described first: what is only described uses nothing.
	ctx := context.Background()
	_, err = c.Prepare(ctx, "one", "UPDATE held_notes SET n = n + $1::int WHERE id = $2::int", nil)
	require.NoError(t, err)
	w.requireBudget(t, grant, 99, 9, 0)
	result := c.ExecPrepared(ctx, "one", [][]byte{[]byte("1"), []byte("2")}, nil, nil).Read()
	require.NoError(t, result.Err)
	require.Equal(t, "UPDATE 1", result.CommandTag.String())
	w.requireBudget(t, grant, 98, 8, 0)

	// A block that is undone gives its rows back; until then they are kept, and the next
	// statement in it finds none.
	require.NoError(t, says(c, "BEGIN"))
	require.NoError(t, says(c, bumpUpTo(3)["sql"].(string)))
	w.requireBudget(t, grant, 97, 0, 8)
	requireState(t, says(c, bump(5)["sql"].(string)), "ERROR GT001")
	require.NoError(t, says(c, "ROLLBACK"))
	w.requireBudget(t, grant, 97, 8, 0)
	require.Equal(t, "2", w.value(t, "SELECT sum(n) FROM held_notes"))
	require.NoError(t, says(c, "BEGIN"))
	require.NoError(t, says(c, bumpUpTo(3)["sql"].(string)))
	require.NoError(t, says(c, "COMMIT"))
	w.requireBudget(t, grant, 96, 5, 0)

	// A rule's own limit leaves rows for the statements behind it.
	few := w.grant(t, id, `query_types.all(t, t == "UPDATE") && tables_written.all(t, t == "public.few_notes")`, 100, 5)
	require.NoError(t, says(c, "BEGIN"))
	require.NoError(t, says(c, "UPDATE few_notes SET n = 1 WHERE id = 1"))
	require.NoError(t, says(c, "UPDATE few_notes SET n = 1 WHERE id = 2"))
	w.requireBudget(t, few, 98, 1, 4)
	require.NoError(t, says(c, "COMMIT"))
	w.requireBudget(t, few, 98, 3, 0)

	requireState(t, says(c, "UPDATE few_notes SET n = 1 WHERE id <= 3"), "ERROR GT003")
	w.requireBudget(t, few, 97, 3, 0)
	requireState(t, says(c, "UPDATE few_notes SET n = 1 WHERE id <= 3"), "ERROR GT001")

	// Nobody could see what a transaction with something temporary comes to.
	require.NoError(t, says(c, "BEGIN"))
	requireState(t, says(c, "SELECT setseed(0.5)"), "ERROR 42501")
	require.NoError(t, says(c, "ROLLBACK"))
}

func TestAGrantThatAnotherPolicyDoesNotTake(t *testing.T) {
	t.Parallel()
	w := startGranted(t)
	id, token := w.register(t, "bot")
	grant := w.grant(t, id, onHeld, 10, 10)
	require.Equal(t, http.StatusOK, w.as(t, token, bump(1)).status)
	for n, change := range []struct{ from, to string }{{"max_grant_seconds: 3600", "max_grant_seconds: 600"}, {"grants: true, max_grant_seconds: 3600", "ttl_seconds: 60"}} {
		document := strings.Replace(strings.Replace(grantedPolicy, "version: 1.0.0", fmt.Sprintf("version: 1.%d.0", n+1), 1), change.from, change.to, 1)
		w.activate(t, document)
		require.Equal(t, http.StatusAccepted, w.as(t, token, bump(1)).status, change.to)
	}
	w.requireBudget(t, grant, 9, 9, 0)
}

// activate makes a document the policy in force.
func (w *agentWorld) activate(t *testing.T, document string) {
	t.Helper()
	made := w.operate(t, "/policy/candidates", statement{"document": document})
	require.Equal(t, http.StatusCreated, made.status, "%s", made.body)
	r := w.operate(t, "/policy/activate", statement{"expected_hash": made.json(t)["hash"]})
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
}

func TestGrantsAreListed(t *testing.T) {
	t.Parallel()
	w := startGranted(t)
	id, _ := w.register(t, "bot")
	for range 3 {
		w.grant(t, id, onHeld, 1, 1)
	}
	first := w.get(t, "/grants?limit=2").json(t)
	require.Len(t, first["items"], 2)
	rest := w.get(t, "/grants?limit=2&cursor="+url.QueryEscape(first["next_cursor"].(string))).json(t)
	require.Len(t, rest["items"], 1)
	require.Nil(t, rest["next_cursor"])
}

func TestAGrantCoversWhatComesByTheTools(t *testing.T) {
	t.Parallel()
	w := startGranted(t, toolsOn...)
	id, token := w.register(t, "bot")
	tools := toolsOver(t, w, token)
	sql := bumpUpTo(2)["sql"].(string)
	require.Equal(t, "pending_approval", use(t, tools, "sql", calling(sql)).Status)
	grant := w.grant(t, id, onHeld, 2, 3)
	ran := use(t, tools, "sql", calling(sql))
	require.Equal(t, "completed", ran.Status, "%s", ran.raw)
	require.Contains(t, string(ran.raw), grant)
	over := use(t, tools, "sql", calling(sql))
	require.Equal(t, []any{"failed", "row_limit_exceeded"}, []any{over.Status, over.ErrorCode}, "%s", over.raw)
	require.Equal(t, "pending_approval", use(t, tools, "sql", calling(sql)).Status)
	require.Equal(t, "2", w.value(t, "SELECT sum(n) FROM held_notes"))
}
