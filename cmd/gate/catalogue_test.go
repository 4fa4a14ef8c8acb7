package main

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// cataloguePolicy guards a table, and knows no users' functions.
const cataloguePolicy = `schema: gate.policy/v1
name: guarded
version: 1.0.0
facts: facts/v1
rules:
  - id: guarded
    decision: BLOCK
    reason_code: guarded
    match: { tables_read: [public.salaries] }
  - id: guarded-writes
    decision: BLOCK
    reason_code: guarded
    match: { tables_written: [public.salaries] }
  - id: plain
    decision: ALLOW
    reason_code: plain
    match: { query_types_only: [SELECT, INSERT, UPDATE, DELETE], risk_signals_only: [] }
  - id: definitions
    decision: ALLOW
    reason_code: definitions
    match: { query_types_only: [CREATE, ALTER, SELECT] }
`

const catalogueTables = `
CREATE TABLE people (id int PRIMARY KEY, name text);
CREATE TABLE salaries (person int REFERENCES people ON DELETE CASCADE, amount int);
CREATE VIEW names AS SELECT id, name FROM people;
CREATE VIEW earnings AS SELECT p.name, s.amount FROM people AS p JOIN salaries AS s ON s.person = p.id;
CREATE TABLE visits (id int PRIMARY KEY, note text);
CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
INSERT INTO people VALUES (1, 'a'), (2, 'b');
INSERT INTO salaries VALUES (1, 10)`

// What stands in the database behind the names of a statement is decided upon where the
// catalogue is read, over HTTP and the wire, and is in the evidence; without it a statement
// is what its text says.
func TestWhatStandsBehindNamesIsDecidedUpon(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(cataloguePolicy))
	d.execute(t, catalogueTables)
	decided := func(g *testGate, sql string) string {
		t.Helper()
		r := g.query(t, ask(sql))
		if r.status == http.StatusOK {
			return "runs"
		}
		return fmt.Sprint(r.status, " ", r.json(t)["reason_code"])
	}
	g := startGate(t, d)
	require.Equal(t, "runs", decided(g, "SELECT * FROM earnings"))
	require.Empty(t, g.query(t, ask("SELECT * FROM earnings")).json(t)["classification"].(map[string]any)["engine"].(map[string]any)["catalog"])
	g.end(t)

	g = startGate(t, d, "GATE_CATALOG_REFRESH_SECONDS=3600", "GATE_PGWIRE_ENABLED=true", "GATE_PGWIRE_LAB_MODE=true", "GATE_PGWIRE_LISTEN_ADDR=127.0.0.1:0")
	require.Equal(t, "runs", decided(g, "SELECT * FROM names"))
	require.Equal(t, "403 guarded", decided(g, "SELECT * FROM earnings"))
	require.Equal(t, "403 guarded", decided(g, "SELECT e.name FROM (SELECT * FROM earnings) AS e"))
	require.Equal(t, "403 guarded", decided(g, "DELETE FROM people WHERE id = 1"))
	require.Equal(t, "runs", decided(g, "UPDATE people SET name = 'c' WHERE id = 2"))
	require.Equal(t, "runs", decided(g, "INSERT INTO visits VALUES (1, 'x')"))
	require.Equal(t, "1", g.value(t, "SELECT count(*) FROM salaries"))

	c := g.query(t, ask("SELECT * FROM earnings")).json(t)["classification"].(map[string]any)
	require.Equal(t, []any{"public.earnings", "public.people", "public.salaries"}, c["tables_read"])
	require.Equal(t, "1.1", c["classification_version"])
	first := c["engine"].(map[string]any)["catalog"]
	require.Len(t, first, 64)

	require.Equal(t, []any{"public.earnings reads public.people, public.salaries"}, g.previewed(t, "SELECT * FROM earnings")["behind"])
	require.NotContains(t, g.previewed(t, "SELECT * FROM people"), "behind")

	conn := g.connect(t)
	_, err := conn.Exec(t.Context(), "SELECT * FROM earnings").ReadAll()
	require.ErrorContains(t, err, "A rule of the policy blocks this statement")
	_, err = conn.Exec(t.Context(), "SELECT * FROM names").ReadAll()
	require.NoError(t, err)

	// A change that the gate itself carries out is known to the next statement.
	require.Equal(t, "403 guarded", decided(g, "CREATE VIEW mine AS SELECT * FROM earnings"))
	require.Equal(t, "runs", decided(g, "ALTER VIEW earnings RENAME TO wages"))
	require.Equal(t, "403 guarded", decided(g, "SELECT * FROM wages"))
	d.execute(t, "CREATE TRIGGER counted BEFORE INSERT ON visits FOR EACH ROW EXECUTE FUNCTION counted()")
	require.Equal(t, "runs", decided(g, "ALTER VIEW wages RENAME TO earned"))
	require.Equal(t, "403 default_deny", decided(g, "INSERT INTO visits VALUES (2, 'x')"))
	require.NotEqual(t, first, g.query(t, ask("SELECT * FROM names")).json(t)["classification"].(map[string]any)["engine"].(map[string]any)["catalog"])
	require.Equal(t, "1", g.value(t, "SELECT count(*) FROM visits"))

	require.True(t, slices.ContainsFunc(g.eventsOf(t, event.TypeDecisionRecorded), func(e map[string]any) bool {
		functions, _ := e["payload"].(map[string]any)["facts"].(map[string]any)["functions"].([]any)
		return slices.Contains(functions, any("public.counted"))
	}), "the facts that decided are in the log")
}

// A change that somebody else makes is known once what is known is old.
func TestTheCatalogueIsReadAgain(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(cataloguePolicy))
	d.execute(t, catalogueTables)
	g := startGate(t, d, "GATE_CATALOG_REFRESH_SECONDS=1")
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT * FROM names")).status)
	d.execute(t, "CREATE OR REPLACE VIEW names AS SELECT id, name FROM people WHERE id IN (SELECT person FROM salaries)")
	require.Eventually(t, func() bool { return g.query(t, ask("SELECT * FROM names")).status == http.StatusForbidden }, startPatience, 50*time.Millisecond)
}
