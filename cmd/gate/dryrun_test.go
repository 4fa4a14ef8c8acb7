package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/eventlog/event"
)

// These tests hold what a dry run tells, that nothing of it stays, and where there is none.

const dryRunPolicy = `
schema: gate.policy/v1
name: rehearsed
version: 1.0.0
facts: facts/v1
rules:
  - id: closed
    decision: BLOCK
    reason_code: closed_for_all
    match: { tables_written: [public.closed] }
  - id: held
    decision: REQUIRE_APPROVAL
    reason_code: held_for_a_person
    match: { tables_written: [public.hub, public.part] }
    approval: { max_rows: 5 }
    dry_run: { rows: true }
  - id: counted
    decision: REQUIRE_APPROVAL
    reason_code: counted_alone
    match: { tables_written: [public.tree] }
    dry_run: allow
  - id: silent
    decision: REQUIRE_APPROVAL
    reason_code: says_nothing
    match: { tables_written: [public.silent] }
  - id: open
    decision: ALLOW
    reason_code: open_to_all
    match: { class: [write, session], query_types_only: [INSERT, UPDATE, DELETE, MERGE, SELECT, PREPARE, EXECUTE], tables_written_only: [public.other, public.spoke, public.leaf, public.bin, public.traded] }
    dry_run: allow
`

const rehearsedTables = `
CREATE TABLE hub (id int PRIMARY KEY, name text DEFAULT 'none', at timestamptz DEFAULT now());
CREATE TABLE spoke (id int PRIMARY KEY, hub int REFERENCES hub ON DELETE CASCADE ON UPDATE CASCADE, n int);
CREATE TABLE leaf (id int PRIMARY KEY, spoke int REFERENCES spoke ON DELETE SET NULL ON UPDATE CASCADE, note text);
CREATE TABLE tree (id int PRIMARY KEY, above int REFERENCES tree ON DELETE CASCADE);
CREATE TABLE part (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (10000);
CREATE TABLE bin (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE bin_1 PARTITION OF bin FOR VALUES FROM (0) TO (100);
CREATE TABLE bin_2 PARTITION OF bin FOR VALUES FROM (100) TO (10000);
CREATE TABLE other (id int PRIMARY KEY, n int DEFAULT 7, kept serial);
CREATE TABLE traded (id int, n int);
CREATE TABLE closed (id int);
CREATE TABLE silent (id int);
CREATE SEQUENCE counter;
INSERT INTO hub SELECT n, 'hub ' || n FROM generate_series(1, 10) AS n;
INSERT INTO spoke SELECT n, 1 + n % 10, n FROM generate_series(1, 40) AS n;
INSERT INTO leaf SELECT n, 1 + n % 40, 'x' FROM generate_series(1, 80) AS n;
INSERT INTO tree SELECT n, NULLIF(n / 2, 0) FROM generate_series(1, 15) AS n;
INSERT INTO part SELECT n, 'p' FROM generate_series(0, 199) AS n;
INSERT INTO bin SELECT n * 3, 'p' FROM generate_series(0, 60) AS n;
INSERT INTO other SELECT n FROM generate_series(1, 10) AS n`

// allThere is all that the tables and sequences hold, with where each row lies and which
// transaction left it there.
const allThere = `SELECT md5(string_agg(concat(t.relname, query_to_xml(CASE t.relkind WHEN 'S' THEN format('SELECT last_value, is_called FROM %I', t.relname)
 ELSE format('SELECT ctid, xmin, * FROM %I ORDER BY ctid', t.relname) END, true, true, '')::text, t.reltuples, t.relpages), '' ORDER BY t.relname)) FROM pg_class AS t WHERE t.relkind IN ('r', 'S') AND t.relnamespace = 'public'::regnamespace`

// locksHeld are those of others.
const locksHeld = `SELECT count(*) FROM pg_locks WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()`

func newRehearsed(t *testing.T) *agentWorld {
	d := newGateDir(t, []byte(dryRunPolicy))
	d.execute(t, rehearsedTables)
	return &agentWorld{testGate: &testGate{gateDir: d}, key: agentctl.NewSecret(agentctl.KeyPrefix)}
}

// unhurriedRuns lets dry runs take their time on a slow machine.
var unhurriedRuns = []string{"GATE_DRY_RUN_TIMEOUT_MS=60000", "GATE_DRY_RUN_LOCK_TIMEOUT_MS=5000"}

func startRehearsed(t *testing.T, extra ...string) *agentWorld {
	t.Helper()
	w := newRehearsed(t)
	w.testGate = startGate(t, w.gateDir, slices.Concat([]string{"GATE_PROJECT_KEYS=shop/ops=" + w.key}, unhurriedRuns, extra)...)
	return w
}

func (w *agentWorld) dry(t *testing.T, sql string) reply {
	t.Helper()
	return w.query(t, ask(sql), "mode=dry_run")
}

// dryTables are what a dry run tells of the tables.
func dryTables(t *testing.T, outcome any) string {
	t.Helper()
	var list []string
	for _, one := range outcome.(map[string]any)["tables"].([]any) {
		m := one.(map[string]any)
		word := fmt.Sprintf("%s %v/%v/%v", strings.TrimPrefix(m["table"].(string), "public."), m["inserted"], m["updated"], m["deleted"])
		if m["cascade"] == true {
			word += " cascade"
		}
		list = append(list, word)
	}
	return strings.Join(list, ", ")
}

func (w *agentWorld) approvalAs(t *testing.T, id string, operator bool) map[string]any {
	t.Helper()
	var headers []string
	if operator {
		headers = []string{"X-GATE-Operator-Token: " + operatorTestToken}
	}
	r := w.do(t, http.MethodGet, "/approvals/"+id, nil, headers...)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	return r.json(t)
}

func TestWhoeverApprovesSeesWhatADryRunHasFound(t *testing.T) {
	t.Parallel()
	w := startRehearsed(t)
	before := w.value(t, allThere)
	sql := "DELETE FROM hub WHERE id = 3"
	r := w.dry(t, sql)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	answer := r.json(t)
	require.Equal(t, []any{"REQUIRE_APPROVAL", true, "held_for_a_person", "success", true, "DELETE 1", 1.0, []any{}},
		pick(answer, "decision", "enforced", "reason_code", "execution_state", "rolled_back", "command_tag", "row_count", "rows"))
	outcome := answer["dry_run"].(map[string]any)
	require.Equal(t, "hub 0/0/1, leaf 0/8/0 cascade, spoke 0/0/4 cascade", dryTables(t, outcome))
	require.Equal(t, []any{13.0, 13.0}, pick(outcome, "rows_changed", "max_rows"))
	require.NotContains(t, outcome, "shown")
	require.Equal(t, before, w.value(t, allThere))
	require.Empty(t, w.get(t, "/approvals").json(t)["items"], "a dry run asks nobody")

	asked := w.query(t, ask(sql))
	require.Equal(t, http.StatusAccepted, asked.status)
	id := asked.text(t, "approval_id")
	require.Nil(t, w.approvalAs(t, id, false)["impact"], "what is in the tables is not for everybody")
	seen := w.approvalAs(t, id, true)
	require.Equal(t, true, seen["estimate_exceeds_max_rows"], "13 are more than 5")
	shown := seen["impact"].(map[string]any)["dry_run"].(map[string]any)
	require.Equal(t, dryTables(t, outcome), dryTables(t, shown))
	require.Equal(t, outcome["execution_id"], shown["execution_id"])
	require.Contains(t, fmt.Sprint(shown["shown"]), "hub 3")
	var exact struct {
		Impact struct {
			DryRun struct {
				Shown json.RawMessage `json:"shown"`
			} `json:"dry_run"`
		} `json:"impact"`
	}
	unmarshal(t, w.do(t, http.MethodGet, "/approvals/"+id, nil, "X-GATE-Operator-Token: "+operatorTestToken).body, &exact)
	sum := sha256.Sum256(exact.Impact.DryRun.Shown)
	require.Equal(t, hex.EncodeToString(sum[:]), shown["shown_sha256"])
	list := w.do(t, http.MethodGet, "/approvals", nil, "X-GATE-Operator-Token: "+operatorTestToken)
	require.NotContains(t, string(list.body), "hub 3", "rows are in the one record alone")
	require.Contains(t, string(list.body), `"rows_changed":13`)

	small := "UPDATE part SET v = 'q' WHERE k < 4"
	later := w.query(t, ask(small)).text(t, "approval_id")
	require.Nil(t, w.approvalAs(t, later, true)["impact"])
	require.Equal(t, http.StatusOK, w.dry(t, small).status)
	seen = w.approvalAs(t, later, true)
	require.Equal(t, "part 0/4/0", dryTables(t, seen["impact"].(map[string]any)["dry_run"]), "one that comes behind it is seen, too")
	require.Equal(t, false, seen["estimate_exceeds_max_rows"])
	require.Equal(t, http.StatusOK, w.resolve(t, later, "approve").status)
	require.Nil(t, w.approvalAs(t, later, true)["impact"], "and no longer than the approval waits")
	ran := w.query(t, ask(small).with("approval_id", later))
	require.Equal(t, http.StatusOK, ran.status, "%s", ran.body)
	require.Equal(t, 4.0, ran.json(t)["row_count"])

	counts := w.dry(t, "DELETE FROM tree WHERE id = 2")
	require.Equal(t, "tree 0/0/7", dryTables(t, counts.json(t)["dry_run"]))
	third := w.query(t, ask("DELETE FROM tree WHERE id = 2")).text(t, "approval_id")
	require.NotContains(t, w.approvalAs(t, third, true)["impact"].(map[string]any)["dry_run"], "shown", "a rule without rows")

	x := w.get(t, "/executions/"+outcome["execution_id"].(string)).json(t)
	require.Equal(t, []any{"dry_run", "success", nil, "rollback_acknowledged"}, pick(x, "path", "execution_state", "approval_id", "basis"))
	w.end(t)
	var types []event.Type
	for _, e := range w.events(t) {
		if e.Context.ExecutionID != outcome["execution_id"] {
			continue
		}
		types = append(types, e.Type)
		switch e.Type {
		case event.TypeExecutionDispatched:
			var p event.ExecutionDispatched
			require.NoError(t, e.Parse(&p))
			require.Equal(t, event.PathDryRun, p.Path)
			require.False(t, p.Marker)
		case event.TypeDecisionRecorded:
			var p event.DecisionRecorded
			require.NoError(t, e.Parse(&p))
			require.Equal(t, event.RunDryRun, p.Run)
			require.Equal(t, &event.DryRunTerms{Rows: true}, p.DryRun)
		case event.TypeExecutionSuccess:
			var p event.ExecutionSuccess
			require.NoError(t, e.Parse(&p))
			require.True(t, p.RolledBack)
			require.Equal(t, 13, p.RowsChanged)
			require.Len(t, p.DryRun.Tables, 3)
			require.Equal(t, sum, p.DryRun.RowsSHA256)
		}
	}
	require.Equal(t, []event.Type{event.TypeDecisionRecorded, event.TypeExecutionDispatched, event.TypeExecutionSuccess}, types)
	text, err := os.ReadFile(w.file("audit.log"))
	require.NoError(t, err)
	require.NotContains(t, string(text), "hub 3", "rows are in no log")
}

func TestADryRunIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	w := startRehearsed(t)
	w.execute(t, `CREATE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''counter''); RETURN NEW; END'; CREATE TRIGGER t BEFORE UPDATE ON traded FOR EACH ROW EXECUTE FUNCTION fired(); INSERT INTO traded VALUES (1, 1)`)
	before := w.value(t, allThere)
	for _, c := range []struct{ sql, reason, says string }{
		{"UPDATE silent SET id = 1", "not_allowed", "dry_run: allow"},
		{"UPDATE silent SET id = id WHERE id IN (SELECT id FROM hub)", "not_allowed", "dry_run: allow"},
		{"SELECT * FROM hub", "not_allowed", "dry_run: allow"},
		{"MERGE INTO other AS o USING hub AS h ON o.id = h.id WHEN MATCHED THEN UPDATE SET n = 1", "not_plain", "is a MERGE"},
		{"WITH gone AS (DELETE FROM other RETURNING id) INSERT INTO spoke (id) SELECT id + 900 FROM gone", "not_plain", "write one table"},
		{"UPDATE traded SET n = 2", "not_plain", "has the trigger t"},
		{"INSERT INTO other (id) VALUES (99)", "not_plain", "nextval"},
		{"INSERT INTO other (id, kept) VALUES (99, DEFAULT)", "not_plain", "nextval"},
		{"INSERT INTO other (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET kept = 5", "not_plain", "nextval"},
		{"INSERT INTO other VALUES (99)", "not_plain", "nextval"},
		{"UPDATE other SET kept = DEFAULT", "not_plain", "nextval"},
		{"UPDATE other SET n = nextval('counter')", "not_plain", "sequence_change"},
		{"UPDATE other SET n = 1 WHERE pg_try_advisory_lock(id)", "not_plain", "advisory_lock"},
		{"UPDATE other SET n = 1 WHERE pg_sleep(id) IS NULL", "not_plain", "delay_function"},
		{"UPDATE other SET n = random() * 10", "not_plain", "volatile_function"},
		{"UPDATE other SET n = 1 WHERE id IN (SELECT id FROM hub FOR UPDATE)", "not_plain", "row_locking"},
		{"PREPARE p AS UPDATE other SET n = $1", "not_plain", "PREPARE"},
	} {
		r := w.dry(t, c.sql)
		require.Equal(t, http.StatusUnprocessableEntity, r.status, "%s: %s", c.sql, r.body)
		require.Equal(t, "dry_run_refused", r.text(t, "error_code"), c.sql)
		require.Equal(t, c.reason, r.json(t)["details"].(map[string]any)["reason"], "%s: %s", c.sql, r.body)
		require.Contains(t, r.text(t, "message"), c.says, c.sql)
	}
	blocked := w.dry(t, "DELETE FROM closed")
	require.Equal(t, http.StatusForbidden, blocked.status)
	require.Equal(t, "closed_for_all", blocked.text(t, "reason_code"))
	require.Equal(t, http.StatusForbidden, w.dry(t, "DELETE FROM nobodys").status)
	for _, s := range []statement{ask("UPDATE other SET n = 1").with("approval_id", "apr_1")} {
		require.Equal(t, "validation_failed", w.query(t, s, "mode=dry_run").text(t, "error_code"))
	}
	require.Equal(t, "validation_failed", w.query(t, ask("UPDATE other SET n = 1"), "mode=dry_run", "idempotency_key=k").text(t, "error_code"))
	require.Equal(t, "validation_failed", w.query(t, ask("UPDATE other SET n = 1"), "mode=dryrun").text(t, "error_code"))
	require.Equal(t, before, w.value(t, allThere))

	failed := w.dry(t, "UPDATE other SET n = 1 / (id - 1)")
	require.Equal(t, "db_query_failed", failed.text(t, "error_code"))
	require.Equal(t, "failure", failed.text(t, "execution_state"))
	require.Equal(t, "23505", w.dry(t, "INSERT INTO other (id, kept) VALUES (1, 1)").json(t)["details"].(map[string]any)["sqlstate"])
	require.Equal(t, http.StatusOK, w.dry(t, "INSERT INTO other (id, kept) VALUES (99, 1)").status, "a default that is not taken is no harm")
	require.Equal(t, before, w.value(t, allThere))
	require.Equal(t, "0", w.value(t, locksHeld))
}

// One that takes too long is ended, and it is known at once that nothing was applied.
func TestADryRunThatTakesTooLong(t *testing.T) {
	t.Parallel()
	w := newRehearsed(t)
	w.testGate = startGate(t, w.gateDir, "GATE_DRY_RUN_TIMEOUT_MS=2000", "GATE_DRY_RUN_LOCK_TIMEOUT_MS=60000")
	before := w.value(t, allThere)
	r := w.dry(t, "UPDATE leaf SET note = 'x' WHERE (SELECT count(*) FROM generate_series(1, 100000000000)) > 0")
	require.Equal(t, http.StatusGatewayTimeout, r.status, "%s", r.body)
	require.Equal(t, "unknown", r.text(t, "execution_state"))
	require.Equal(t, "aborted", r.json(t)["details"].(map[string]any)["outcome"])
	require.Equal(t, "failure", w.get(t, "/executions/"+r.text(t, "execution_id")).text(t, "execution_state"))
	require.Equal(t, before, w.value(t, allThere))
}

func TestDryRunsOfATableGoOneByOne(t *testing.T) {
	t.Parallel()
	w := newRehearsed(t)
	w.testGate = startGate(t, w.gateDir, "GATE_DRY_RUN_TIMEOUT_MS=60000", "GATE_DRY_RUN_LOCK_TIMEOUT_MS=60000")
	side, err := pgconn.Connect(t.Context(), w.database)
	require.NoError(t, err)
	t.Cleanup(func() { _ = side.Close(context.Background()) })
	require.NoError(t, says(side, "BEGIN; UPDATE spoke SET n = 0 WHERE id = 1"))
	first := make(chan reply, 1)
	go func() {
		r, err := w.try(http.MethodPost, "/query?mode=dry_run", mustJSON(t, ask("UPDATE spoke SET n = 1 WHERE id = 1")))
		if err != nil {
			r.body = []byte(err.Error())
		}
		first <- r
	}()
	require.Eventually(t, func() bool {
		return w.value(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == "1"
	}, startPatience, pollEvery)
	for _, sql := range []string{"UPDATE spoke SET n = 2 WHERE id = 7", "DELETE FROM hub WHERE id = 5"} { // the second would take rows of it along
		r := w.dry(t, sql)
		require.Equal(t, http.StatusUnprocessableEntity, r.status, "%s", r.body)
		require.Equal(t, "busy", r.json(t)["details"].(map[string]any)["reason"])
	}
	require.NoError(t, says(side, "ROLLBACK"))
	require.Equal(t, http.StatusOK, (<-first).status)
	require.Equal(t, http.StatusOK, w.dry(t, "UPDATE spoke SET n = 2 WHERE id = 7").status)
}

// With the catalogue at hand the decision reads what stands behind the statement, and it is
// dry-run all the same, against the same definitions.
func TestADryRunBesideTheCatalogue(t *testing.T) {
	t.Parallel()
	w := startRehearsed(t, "GATE_CATALOG_REFRESH_SECONDS=3600")
	before := w.value(t, allThere)
	r := w.dry(t, "DELETE FROM hub WHERE id = 3")
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, "hub 0/0/1, leaf 0/8/0 cascade, spoke 0/0/4 cascade", dryTables(t, r.json(t)["dry_run"]))
	require.Equal(t, "bin 0/3/0", dryTables(t, w.dry(t, "UPDATE bin SET v = 'x' WHERE k < 9").json(t)["dry_run"]))
	require.Equal(t, before, w.value(t, allThere))
	w.execute(t, "CREATE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER t BEFORE UPDATE ON bin FOR EACH ROW EXECUTE FUNCTION fired()")
	r = w.dry(t, "UPDATE bin SET v = 'x' WHERE k < 9") // the catalogue is that of before
	require.Equal(t, "dry_run_refused", r.text(t, "error_code"), "%s", r.body)
}

func TestADryRunTakesNothingOfAShadow(t *testing.T) {
	t.Parallel()
	w := startRehearsed(t, "GATE_MODE=shadow")
	before := w.value(t, allThere)
	require.Equal(t, http.StatusForbidden, w.dry(t, "DELETE FROM closed").status, "what would be blocked is not run, though nothing is enforced")
	r := w.dry(t, "DELETE FROM hub")
	require.Equal(t, []any{"REQUIRE_APPROVAL", true, true}, pick(r.json(t), "decision", "enforced", "rolled_back"))
	require.Equal(t, before, w.value(t, allThere))
}

func TestTheToolsRunDry(t *testing.T) {
	t.Parallel()
	w := startRehearsed(t, toolsOn...)
	before := w.value(t, allThere)
	for _, door := range doors {
		_, token := w.register(t, "bot by "+door.name)
		tools := door.connect(t, w, token, make(chan any, 100))
		sql := "DELETE FROM hub WHERE id = 4"
		found := use(t, tools, "sql_preview", map[string]any{"sql": sql, "dry_run": true})
		require.Contains(t, found.text, "would change 13 rows in 3 tables, at ", door.name)
		require.Contains(t, found.text, "no promise")
		pending := use(t, tools, "sql", calling(sql))
		require.Equal(t, "pending_approval", pending.Status)
		seen := w.approvalAs(t, pending.ApprovalID, true)
		require.Equal(t, "hub 0/0/1, leaf 0/8/0 cascade, spoke 0/0/4 cascade", dryTables(t, seen["impact"].(map[string]any)["dry_run"]))
		refused := use(t, tools, "sql_preview", map[string]any{"sql": "UPDATE silent SET id = 1", "dry_run": true})
		require.Contains(t, refused.text, "dry_run: allow")
		plain := use(t, tools, "sql_preview", map[string]any{"sql": sql})
		require.NotContains(t, plain.text, "rolled back")
	}
	require.Equal(t, before, w.value(t, allThere))
}

func TestAGateThatDiesInADryRun(t *testing.T) {
	t.Parallel()
	for at, want := range map[death]string{"decision.before_append@1": "", "commands.append@1": "", "decision.appended@1": "aborted", "result.before_append@1": "aborted", "result.appended@1": "success"} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			w := newRehearsed(t)
			before := w.value(t, allThere)
			v := w.spawn(t, fall{at: at}, unhurriedRuns...)
			_, err := v.try(http.MethodPost, "/query?mode=dry_run", string(mustJSON(t, ask("DELETE FROM hub WHERE id < 5"))))
			require.Error(t, err, "it died in between")
			v.await(t)
			require.True(t, v.killed(), "%v", v.output.String())
			w.awaitBackends(t)
			require.Equal(t, before, w.value(t, allThere))
			w.testGate = startGate(t, w.gateDir, unhurriedRuns...)
			items := w.get(t, "/executions").json(t)["items"].([]any)
			if want == "" {
				require.Empty(t, items)
				return
			}
			require.Len(t, items, 1)
			x := items[0].(map[string]any)
			require.Equal(t, "dry_run", x["path"])
			if want == "success" {
				require.Equal(t, "success", x["execution_state"])
				return
			}
			require.Equal(t, []any{"failure", "aborted", "commit_never_sent"}, pick(x, "execution_state", "outcome", "basis"))
		})
	}
}

// TestRandomDryRuns runs DRYRUNS random plain writes dry and then for good (make dryruns: 10,000),
// and holds what the first told against what the second did: by the rows that bear its
// transaction's id, and by how many there are.
func TestRandomDryRuns(t *testing.T) {
	t.Parallel()
	n, seed := 120, uint64(1)
	if text := os.Getenv("DRYRUNS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	w := startRehearsed(t)
	w.activate(t, strings.NewReplacer("REQUIRE_APPROVAL", "ALLOW", "approval: { max_rows: 5 }", "", "version: 1.0.0", "version: 1.1.0", "match: { tables_written: [public.hub", "match: { class: [write], query_types_only: [INSERT, UPDATE, DELETE, SELECT], tables_written_only: [public.hub",
		"match: { tables_written: [public.tree]", "match: { class: [write], query_types_only: [INSERT, UPDATE, DELETE, SELECT], tables_written_only: [public.tree]", "match: { tables_written: [public.silent]", "match: { class: [write], query_types_only: [INSERT], tables_written_only: [public.silent]").Replace(dryRunPolicy))
	side, err := pgconn.Connect(t.Context(), w.database)
	require.NoError(t, err)
	t.Cleanup(func() { _ = side.Close(context.Background()) })
	value := func(sql string) string {
		results, err := side.Exec(t.Context(), sql).ReadAll()
		require.NoError(t, err)
		return string(results[0].Rows[0][0])
	}
	r := rand.New(rand.NewPCG(seed, 7))
	id := func() int { return 1 + r.IntN(60) }
	fresh := 1000
	next := func() string {
		fresh++
		switch r.IntN(14) {
		case 0:
			return fmt.Sprintf("INSERT INTO hub (id, name) VALUES (%d, 'new'), (%d, DEFAULT)", fresh+100_000, id())
		case 1:
			return fmt.Sprintf("INSERT INTO hub (id) SELECT %d + g FROM generate_series(1, %d) AS g ON CONFLICT (id) DO UPDATE SET name = 'again'", id(), r.IntN(30))
		case 2:
			return fmt.Sprintf("UPDATE hub SET id = %d WHERE id = %d", id(), id())
		case 3:
			return fmt.Sprintf("DELETE FROM hub WHERE id %% %d = 0 AND id > %d", 3+r.IntN(9), id())
		case 4:
			return fmt.Sprintf("INSERT INTO spoke (id, hub, n) SELECT %d + g, (SELECT min(id) FROM hub), g FROM generate_series(1, %d) AS g", fresh*100, r.IntN(20))
		case 5:
			return fmt.Sprintf("UPDATE spoke SET id = id + 1000000 WHERE n %% %d = 0", 5+r.IntN(20))
		case 6:
			return fmt.Sprintf("DELETE FROM spoke WHERE n > %d", id())
		case 7:
			return fmt.Sprintf("INSERT INTO leaf (id, spoke) SELECT %d + g, (SELECT max(id) FROM spoke) FROM generate_series(1, %d) AS g", fresh*100, r.IntN(20))
		case 8:
			return fmt.Sprintf("UPDATE leaf SET note = 'n%d' FROM spoke WHERE spoke.id = leaf.spoke AND spoke.n < %d", fresh, id())
		case 9:
			return fmt.Sprintf("INSERT INTO bin (k, v) SELECT g * %d, 'i' FROM generate_series(1, 40) AS g ON CONFLICT DO NOTHING", 1+r.IntN(7))
		case 10:
			return fmt.Sprintf("UPDATE bin SET k = k + %d WHERE k %% %d = %d", 500+fresh, 7+r.IntN(9), r.IntN(7))
		case 11:
			return fmt.Sprintf("DELETE FROM bin WHERE k BETWEEN %d AND %d", id(), id()*5)
		case 12:
			return fmt.Sprintf("INSERT INTO tree SELECT %d + g, %d + g / 2 FROM generate_series(1, %d) AS g", fresh*100, fresh*100, 1+r.IntN(9))
		default:
			return fmt.Sprintf("DELETE FROM tree WHERE id = %d OR above = %d", id(), id())
		}
	}
	const counts = `SELECT string_agg(concat(name, ' ', n, ' ', left_by), ',' ORDER BY name) FROM (%s) AS x`
	var of []string
	for _, table := range []string{"bin", "hub", "leaf", "spoke", "tree"} {
		of = append(of, fmt.Sprintf("SELECT '%[1]s' AS name, count(*) AS n, count(*) FILTER (WHERE xmin::text::int8 = %%[1]s) AS left_by FROM %[1]s", table))
	}
	look := func(xid string) map[string][2]int {
		found := map[string][2]int{}
		for _, line := range strings.Split(value(fmt.Sprintf(counts, strings.ReplaceAll(strings.Join(of, " UNION ALL "), "%[1]s", xid))), ",") {
			var name string
			var pair [2]int
			_, err := fmt.Sscan(line, &name, &pair[0], &pair[1])
			require.NoError(t, err)
			found[name] = pair
		}
		return found
	}
	changed := 0
	for i := range n {
		sql := next()
		before, stood := look("0"), value(allThere)
		told := w.dry(t, sql)
		require.Equal(t, stood, value(allThere), "%d: %s", i, sql)
		require.Equal(t, "0", value(locksHeld), "%d: %s", i, sql)
		real := w.query(t, ask(sql))
		require.Equal(t, real.status, told.status, "%d: %s: %s, then %s", i, sql, told.body, real.body)
		if real.status != http.StatusOK {
			require.Equal(t, real.json(t)["details"].(map[string]any)["sqlstate"], told.json(t)["details"].(map[string]any)["sqlstate"], sql)
			continue
		}
		require.Equal(t, pick(real.json(t), "command_tag", "row_count"), pick(told.json(t), "command_tag", "row_count"), sql)
		xid := fmt.Sprintf("%.0f", w.get(t, "/executions/"+real.text(t, "execution_id")).json(t)["xid"].(float64))
		want, got := map[string][2]int{}, map[string][2]int{}
		for name, now := range look(xid) {
			if pair := [2]int{now[1], now[0] - before[name][0]}; pair != [2]int{} {
				want[name] = pair
			}
		}
		for _, one := range told.json(t)["dry_run"].(map[string]any)["tables"].([]any) {
			m := one.(map[string]any)
			changed++
			if pair := [2]int{int(m["inserted"].(float64) + m["updated"].(float64)), int(m["inserted"].(float64) - m["deleted"].(float64))}; pair != [2]int{} {
				got[strings.TrimPrefix(m["table"].(string), "public.")] = pair
			}
		}
		require.Equal(t, want, got, "%d: %s: rows left behind, and how many more there are", i, sql)
	}
	require.Greater(t, changed, n/4)
}
