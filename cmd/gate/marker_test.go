package main

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/sqlgate/replay"
)

const (
	markerSetting = "GATE_OUTCOME_MARKER_TABLE=gate.execution_marker"
	markerTable   = `CREATE SCHEMA gate; CREATE TABLE gate.execution_marker (execution_id uuid PRIMARY KEY,
 kind text NOT NULL CHECK (kind IN ('exec','fence')), at timestamptz NOT NULL DEFAULT now())`
)

// anythingGoes is as permissive as a policy can be.
const anythingGoes = `
schema: gate.policy/v1
name: anything-goes
version: 1.0.0
facts: facts/v1
rules:
  - id: anything
    decision: ALLOW
    reason_code: anything
    match: { env: [prod] }
`

func markedDir(t *testing.T) gateDir {
	t.Helper()
	d := newGateDir(t, []byte(anythingGoes))
	d.execute(t, markerTable+"; CREATE TABLE t (id int PRIMARY KEY, v text)")
	return d
}

func TestAWriteLeavesItsMarkerAndEvidenceSaysSo(t *testing.T) {
	t.Parallel()
	d := markedDir(t)
	g := startGate(t, d, markerSetting)
	wrote := g.query(t, ask("INSERT INTO t VALUES (1, 'a')"))
	require.Equal(t, http.StatusOK, wrote.status, "%s", wrote.body)
	id := wrote.text(t, "execution_id")
	require.Equal(t, "exec", d.value(t, "SELECT kind FROM gate.execution_marker WHERE execution_id = '"+strings.TrimPrefix(id, "exe_")+"'"))
	refused := g.query(t, ask("INSERT INTO t VALUES (1, 'b')"))
	require.Equal(t, http.StatusUnprocessableEntity, refused.status)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT v FROM t")).status)
	require.Equal(t, "1", d.value(t, "SELECT count(*) FROM gate.execution_marker"), "of what is applied, and of nothing else")
	g.end(t)
	for _, e := range g.events(t) {
		switch e.Type {
		case event.TypeStartup:
			var p event.Startup
			require.NoError(t, e.Parse(&p))
			require.Equal(t, "gate.execution_marker", p.Engine[replay.EngineMarkerTable])
		case event.TypeExecutionDispatched:
			var p event.ExecutionDispatched
			require.NoError(t, e.Parse(&p))
			require.Equal(t, p.Path == event.PathTx, p.Marker)
		}
	}
}

// namingTheMarkerTable are ways to reach the table, one for each kind of statement.
var namingTheMarkerTable = []string{
	"SELECT * FROM gate.execution_marker",
	`SELECT 1 FROM t WHERE EXISTS (SELECT FROM "gate"."execution_marker")`,
	"TABLE GATE.Execution_Marker",
	"INSERT INTO gate.execution_marker VALUES ('00000000-0000-0000-0000-000000000000', 'fence')",
	"UPDATE gate.execution_marker SET kind = 'fence'",
	"DELETE FROM gate.execution_marker WHERE at < now()",
	"WITH x AS (DELETE FROM gate.execution_marker RETURNING 1) SELECT * FROM x",
	"MERGE INTO gate.execution_marker m USING t ON false WHEN MATCHED THEN DELETE",
	"TRUNCATE t, gate.execution_marker",
	"DROP TABLE gate.execution_marker",
	"ALTER TABLE gate.execution_marker RENAME TO other",
	"ALTER TABLE gate.execution_marker DISABLE ROW LEVEL SECURITY",
	"CREATE INDEX ON gate.execution_marker (at)",
	"CREATE RULE r AS ON INSERT TO gate.execution_marker DO INSTEAD NOTHING",
	"CREATE TRIGGER r BEFORE INSERT ON gate.execution_marker FOR EACH ROW EXECUTE FUNCTION f()",
	"CREATE POLICY p ON gate.execution_marker",
	"CREATE VIEW v AS SELECT * FROM gate.execution_marker",
	"CREATE TABLE c (LIKE gate.execution_marker)",
	"CREATE TABLE c () INHERITS (gate.execution_marker)",
	"CREATE TABLE c (x uuid REFERENCES gate.execution_marker)",
	"LOCK TABLE gate.execution_marker",
	"GRANT ALL ON gate.execution_marker TO PUBLIC",
	"COMMENT ON TABLE gate.execution_marker IS ''",
	"VACUUM gate.execution_marker",
	"ANALYZE gate.execution_marker",
	"REINDEX TABLE gate.execution_marker",
	"CLUSTER gate.execution_marker",
	"COPY gate.execution_marker TO STDOUT",
	"EXPLAIN ANALYZE DELETE FROM gate.execution_marker",
	"PREPARE p AS DELETE FROM gate.execution_marker",
}

func TestAStatementThatNamesTheMarkerTableIsBlockedWhateverThePolicySays(t *testing.T) {
	t.Parallel()
	d := markedDir(t)
	g := startGate(t, d, markerSetting)
	for _, sql := range namingTheMarkerTable {
		r := g.query(t, in("s", sql))
		require.Equal(t, http.StatusForbidden, r.status, "%s\n%s", sql, r.body)
		require.Equal(t, []any{"marker_table", "floor.marker_table"}, pick(r.json(t), "reason_code", "rule_id"), sql)
	}
	seen := g.query(t, ask("SELECT * FROM gate.execution_marker"), "mode=preview")
	require.Equal(t, "BLOCK", seen.text(t, "decision"))
	require.Contains(t, string(seen.body), `"floor.marker_table"`)
	dry := g.post(t, "/policy/dry-run", `{"sql":"DELETE FROM gate.execution_marker","context":{"env":"prod"}}`)
	require.Equal(t, "marker_table", dry.text(t, "reason_code"), "%s", dry.body)
	require.Equal(t, http.StatusOK, g.query(t, ask("WITH execution_marker AS (SELECT 1 AS n) SELECT n FROM execution_marker")).status, "another thing of that name")
	compared := g.post(t, "/policy/diff", `{"base":"active","target":"active","replay":{"last":"1h"}}`)
	require.Equal(t, http.StatusOK, compared.status, "%s", compared.body)
	require.Contains(t, string(compared.body), `"recorded_differs":0`)
	g.end(t) // recomputes every decision from the log alone

	var out bytes.Buffer
	a := &app{streams: streams{strings.NewReader(""), &out, &out}, environ: d.environ()}
	require.Equal(t, exitOK, a.run(t.Context(), []string{"verify", "--decisions"}), "%s", &out)
	require.Contains(t, out.String(), "0 differ, 0 could not be checked")
}

func TestAMissingMarkerTableKeepsTheGateFromServingUntilItIsThere(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(anythingGoes))
	d.execute(t, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	g := startGateWith(t, d, func(a *app) { a.look = 20 * time.Millisecond }, markerSetting)
	_, status, message := g.step(t, "outcome_marker")
	require.Equal(t, "failed", status)
	require.Contains(t, message, "there is no table gate.execution_marker. `gate marker ddl` prints")
	require.Equal(t, map[string]any{"step": "outcome_marker"}, g.query(t, ask("INSERT INTO t VALUES (1, 'a')")).json(t)["details"])
	d.execute(t, markerTable)
	require.Eventually(t, func() bool { return g.query(t, ask("SELECT 1")).status == http.StatusOK }, startPatience, pollEvery)
	require.Equal(t, http.StatusOK, g.query(t, ask("INSERT INTO t VALUES (1, 'a')")).status)

	g.end(t)
	g = startGate(t, d, markerSetting) // which will not look again so soon
	d.execute(t, "DROP TABLE gate.execution_marker")
	lost := g.query(t, ask("INSERT INTO t VALUES (2, 'a')"))
	requireFailure(t, lost, http.StatusServiceUnavailable, "db_unavailable", "not_executed")
	require.Contains(t, lost.text(t, "message"), "gate marker ddl")
	require.Equal(t, "1", d.value(t, "SELECT count(*) FROM t"))
}

func TestADatabaseOutOfReachLeavesTheMarkerTableOpen(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.database = "postgres://u:p@127.0.0.1:1/db"
	g := startGate(t, d, markerSetting)
	_, status, _ := g.step(t, "outcome_marker")
	require.Equal(t, "pending", status)
}

func TestTheMarkerDDLIsPrinted(t *testing.T) {
	for _, c := range []struct {
		environ []string
		want    []string
	}{
		{nil, []string{`CREATE TABLE "gate"."execution_marker"`, `TO "gate_writer"; --`, "interval '31 days'"}},
		{[]string{"GATE_OUTCOME_MARKER_TABLE=ops.m", "GATE_OUTCOME_MARKER_KEEP_DAYS=7", "GATE_DATABASE_URL=postgres://w:x@h/d", "GATE_DATABASE_DDL_URL=postgres://o:x@h/d"},
			[]string{`CREATE TABLE "ops"."m"`, `TO "w", "o"; --`, "interval '8 days'"}},
	} {
		var out bytes.Buffer
		a := &app{streams: streams{strings.NewReader(""), &out, &out}, environ: c.environ}
		require.Equal(t, exitOK, a.run(t.Context(), []string{"marker", "ddl"}), "%s", &out)
		for _, want := range c.want {
			require.Contains(t, out.String(), want)
		}
	}
}
