package sqlgate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// temporaryPolicy lets a client make and fill temporary tables, write t by its key and
// read public alone; it asks a person about other writes of t.
const temporaryPolicy = `schema: gate.policy/v1
name: wire
version: 1.0.1
facts: facts/v1
rules:
  - id: scratch
    decision: ALLOW
    reason_code: scratch
    match: { tables_written_only: [pg_temp.*, public.mine, public.plain, public.v], query_types_only: [CREATE, CREATE_TABLE_AS, ALTER, DROP, SELECT, INSERT, UPDATE] }
  - id: deletes
    decision: REQUIRE_APPROVAL
    reason_code: delete_needs_approval
    match: { query_types: [DELETE] }
  - id: children
    decision: ALLOW
    reason_code: children
    match: { query_types_only: [CREATE], tables_written_only: [pg_temp.*, public.t] }
  - id: by-key
    decision: ALLOW
    reason_code: by_key
    match: { query_types_only: [SELECT, INSERT, UPDATE], tables_written_only: [public.t], tables_read_only: [public.*], where_only: [key_equality], functions_only: [], risk_signals_only: [] }
`

func temporaryWorld(t *testing.T) *wireWorld {
	w := newWireWorld(t, nil)
	w.activate(temporaryPolicy)
	require.NotEmpty(t, w.value("INSERT INTO t SELECT g, 'old' FROM generate_series(1, 60) g RETURNING 1"))
	return w
}

// facts are those of the newest decision.
func (w *wireWorld) facts() (facts event.DecisionFacts) {
	w.t.Helper()
	for _, e := range w.events() {
		if e.Type == event.TypeDecisionRecorded {
			var p event.DecisionRecorded
			require.NoError(w.t, e.Parse(&p))
			facts = p.Facts
		}
	}
	return facts
}

// heldBy is the approval that a refusal asked for.
func heldBy(t *testing.T, refusal error) string {
	t.Helper()
	var held *WireRefusal
	require.ErrorAs(t, refusal, &held)
	return held.Answer.ApprovalID
}

const (
	makesMine = "CREATE TEMP TABLE mine AS SELECT 1 AS id, g AS target FROM (VALUES (1), (2), (3)) AS v (g)"
	fromMine  = "INSERT INTO t (id, v) SELECT target, 'new' FROM %s WHERE mine.id = 1 ON CONFLICT (id) DO UPDATE SET v = 'new'"
)

// What a client made for itself is judged as that, whether its name is written with
// its schema or without: the server looks there behind public.
func TestANameThatMayBeTheClientsOwnIsJudgedAsThat(t *testing.T) {
	w := temporaryWorld(t)
	for _, made := range [][]string{
		{makesMine},
		{"CREATE TEMP TABLE other AS SELECT 1 AS id, 2 AS target", "ALTER TABLE pg_temp.other RENAME TO mine"},
		{"CREATE TEMP TABLE base AS SELECT 1 AS id, 2 AS target", "CREATE TEMP VIEW mine AS SELECT * FROM pg_temp.base"},
		{"CREATE TABLE pg_temp.mine (id int, target int)", "INSERT INTO pg_temp.mine VALUES (1, 2)"},
	} {
		for _, name := range []string{"mine", "pg_temp.mine"} {
			c := w.wire()
			c.query("BEGIN")
			for _, sql := range made {
				c.query(sql)
			}
			require.Equal(t, "BLOCK", state(c.refused(fmt.Sprintf(fromMine, name))), "%v %s", made, name)
			facts := w.facts()
			require.Contains(t, facts.TablesRead, "pg_temp.mine")
			require.Equal(t, []string{"present"}, facts.Where)
		}
	}
	require.Equal(t, "60", w.value("SELECT count(*) FROM t WHERE v = 'old'"))

	c := w.wire() // one transaction without a BEGIN
	require.NoError(t, c.Parse(t.Context(), "", makesMine, nil))
	require.NoError(t, c.Bind("", "", nil, nil, nil))
	_, err := c.Execute(t.Context(), "", 0, false, &rowsSink{})
	require.NoError(t, err)
	require.NoError(t, c.Parse(t.Context(), "s", fmt.Sprintf(fromMine, "mine"), nil))
	_, _, err = c.DescribeStatement(t.Context(), "s")
	require.Equal(t, "BLOCK", state(err), "it is not described either")
}

// A name stays public's where the session has no relation of it, and in the next
// transaction, which has none.
func TestWhereNothingIsTemporaryNamesArePublics(t *testing.T) {
	w := temporaryWorld(t)
	c := w.wire()
	c.query("BEGIN")
	c.query("CREATE TEMP TABLE other (id int)")
	c.query("INSERT INTO t VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET v = 'x'")
	require.Equal(t, []string{"public.t"}, w.facts().TablesRead)
	require.Equal(t, []string{"public.t"}, w.facts().TablesWritten)
	require.Equal(t, []string{"key_equality"}, w.facts().Where)
	c.query("DROP TABLE pg_temp.other")
	c.query("COMMIT")
	c.query("BEGIN")
	c.query("CREATE TEMP TABLE mine (id int)")
	c.query("INSERT INTO mine VALUES (1)")
	require.Equal(t, []string{"pg_temp.mine", "public.mine"}, w.facts().TablesWritten)
	require.Equal(t, []string{"pg_temp.mine.*", "public.mine.*"}, w.facts().ColumnsWritten)
	c.query("SAVEPOINT s")
	c.query("DROP TABLE pg_temp.mine")
	c.query("ROLLBACK TO s")
	_, rows := c.query("SELECT id FROM mine")
	require.Equal(t, []string{"1"}, rows)
	require.Equal(t, []string{"pg_temp.mine", "public.mine"}, w.facts().TablesRead)
	c.query("COMMIT")
	require.Equal(t, "42P01", state(c.refused("SELECT id FROM mine")), "it is gone with its transaction")
	require.Equal(t, []string{"public.mine"}, w.facts().TablesRead)
}

// A write of a temporary view reaches the table behind it.
func TestAWriteOfATemporaryViewMayReachAnyTable(t *testing.T) {
	w := temporaryWorld(t)
	for _, name := range []string{"mine", "pg_temp.mine"} {
		c := w.wire()
		c.query("BEGIN")
		c.query("CREATE TEMP VIEW mine AS SELECT * FROM t")
		require.Equal(t, "BLOCK", state(c.refused("UPDATE "+name+" SET v = 'new' WHERE id > 0")))
		require.Contains(t, w.facts().TablesWritten, "?.*")
		require.Contains(t, w.facts().ColumnsWritten, "?.*.*")
	}
	require.Equal(t, "60", w.value("SELECT count(*) FROM t WHERE v = 'old'"))
}

// What defines or takes away something temporary hands no row on, and an INSERT may name as
// many columns of it as of any table.
func TestTemporaryThingsAreMadeAndDroppedLikeOthers(t *testing.T) {
	w := temporaryWorld(t)
	c := w.wire()
	c.query("BEGIN")
	for _, sql := range []string{
		"CREATE TEMP VIEW v AS SELECT * FROM t", "CREATE OR REPLACE TEMP VIEW v AS SELECT * FROM t", "DROP VIEW pg_temp.v", "CREATE TEMP SEQUENCE s", "DROP SEQUENCE pg_temp.s",
		"CREATE TEMP TABLE mine (" + strings.Join(numbered("c%d int", 250), ", ") + ")", "CREATE INDEX i ON pg_temp.mine (c0)", "DROP INDEX pg_temp.i",
	} {
		c.query(sql)
		require.NotContains(t, w.facts().TablesWritten, "?.*", sql)
	}
	for _, n := range []int{127, 128, 129, 250} {
		c.query("INSERT INTO mine (" + strings.Join(numbered("c%d", n), ", ") + ") VALUES (" + strings.Join(numbered("%d", n), ", ") + ")")
		require.LessOrEqual(t, len(w.facts().ColumnsWritten), 256)
		require.Contains(t, w.facts().ColumnsWritten, map[bool]string{true: "pg_temp.mine.c1", false: "pg_temp.mine.*"}[n < 128])
	}
	c.query("COMMIT")
}

func numbered(form string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf(form, i))
	}
	return list
}

// Code behind a write makes temporary tables too.
func TestWhatATriggerMakesTemporaryIsKnown(t *testing.T) {
	w := temporaryWorld(t)
	postgresExecute(w, `CREATE FUNCTION stash() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE IF NOT EXISTS mine (id int, target int); INSERT INTO pg_temp.mine VALUES (1, NEW.id); RETURN NEW; END $$`)
	postgresExecute(w, "CREATE TABLE plain (id int)")
	postgresExecute(w, "CREATE TRIGGER stash BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION stash()")
	c := w.wire()
	c.query("BEGIN")
	c.query("INSERT INTO plain VALUES (2)")
	require.Equal(t, "BLOCK", state(c.refused(fmt.Sprintf(fromMine, "mine"))))
	require.Contains(t, w.facts().TablesRead, "pg_temp.mine")
	c.query("ROLLBACK")
	c.query("BEGIN")
	c.query("INSERT INTO plain VALUES (2)")
	require.Equal(t, "0A000", state(c.refused("DELETE FROM t WHERE id IN (SELECT target FROM mine)")))
	c.query("ROLLBACK")
}

// Rows of a temporary child are among those of its parent, whose keys do not bind them.
func TestRowsOfATemporaryChildAreBoundByNoKeyOfItsParent(t *testing.T) {
	w := temporaryWorld(t)
	c := w.wire()
	const upsert = "INSERT INTO t SELECT id, 'x' FROM t WHERE id = 1 ON CONFLICT (id) DO UPDATE SET v = 'x'"
	c.query(upsert)
	require.Equal(t, []string{"key_equality"}, w.facts().Where)
	c.query("BEGIN")
	c.query("CREATE TEMP TABLE child () INHERITS (t)")
	require.Equal(t, "BLOCK", state(c.refused(upsert)))
	require.Equal(t, []string{"present"}, w.facts().Where)
}

// What a person approves must be all that decides. What a session has of its own does not
// show in a statement's text, and no rollback undoes all of it.
func TestNobodyIsAskedWhileAnythingIsTemporary(t *testing.T) {
	w := temporaryWorld(t)
	const byTable, byText, byKey = "DELETE FROM t WHERE id IN (SELECT target FROM mine)", "DELETE FROM t WHERE to_tsvector('mine', v) @@ to_tsquery('mine', 'old')", "DELETE FROM t WHERE id = 60"
	for deletes, makes := range map[string][]string{
		byTable: {makesMine, "CREATE TEMP VIEW mine AS SELECT 1 AS target", "CREATE VIEW mine AS SELECT target FROM pg_temp.base", "CREATE TABLE pg_temp.mine (target int)"},
		byText:  {"CREATE TEXT SEARCH CONFIGURATION pg_temp.mine (COPY = pg_catalog.english)"},
		byKey: {
			makesMine, "CREATE TEMP SEQUENCE mine", "CREATE DOMAIN pg_temp.mine AS int", "CREATE TYPE pg_temp.mine AS (a int)",
			"CREATE TEXT SEARCH DICTIONARY pg_temp.mine (TEMPLATE = pg_catalog.simple)",
			`CREATE COLLATION pg_temp.mine FROM pg_catalog."C"`,
		},
	} {
		c := w.wire()
		held := heldBy(t, c.refused(deletes))
		w.approve(held)
		for _, made := range makes {
			c.query("BEGIN")
			if strings.Contains(made, "base") {
				c.query("CREATE TEMP TABLE base AS SELECT 1 AS target")
			}
			c.query(made)
			c.query("SAVEPOINT s")
			asked := len(w.events())
			refusal := c.refused(deletes)
			require.Equal(t, "0A000", state(refusal), made)
			require.ErrorContains(t, refusal, "temporary", made)
			for _, e := range w.events()[asked:] {
				require.NotEqual(t, event.TypeApprovalCreated, e.Type)
			}
			c.query("ROLLBACK TO s")
			c.query("SET LOCAL gate.approval_id = '" + held + "'")
			require.Equal(t, "0A000", state(c.refused(deletes)), made)
			c.query("ROLLBACK")
		}
	}
	require.Equal(t, "60", w.value("SELECT count(*) FROM t"))

	c := w.wire() // nor by a description, of which a person is asked where the constants of a text may meet a type of somebody's
	c.query("BEGIN")
	c.query(makesMine)
	require.NoError(t, c.Parse(t.Context(), "", `DELETE FROM U&"t" WHERE U&"v" = 'x' AND id IN (SELECT target FROM mine)`, nil))
	require.NoError(t, c.Bind("", "", nil, nil, nil))
	_, err := c.DescribePortal(t.Context(), "")
	require.Equal(t, "0A000", state(err))

	c = w.wire()
	held := heldBy(t, c.refused(byKey))
	w.approve(held)
	for _, undone := range []string{"DROP TABLE pg_temp.mine", "ROLLBACK TO s"} {
		c.query("BEGIN")
		c.query("SAVEPOINT s")
		c.query("CREATE TEMP TABLE mine (id serial, v text)")
		c.query("INSERT INTO mine (v) VALUES ('x')")
		c.query(undone)
		c.query("SET LOCAL gate.approval_id = '" + held + "'")
		require.Equal(t, "0A000", state(c.refused(byKey)), "what it did may last: %s", undone)
		c.query("ROLLBACK")
	}
	c.query("BEGIN")
	c.query("CREATE TABLE plain (id int)")
	c.query("SET LOCAL gate.approval_id = '" + held + "'")
	tag, _ := c.query(byKey)
	require.Equal(t, "DELETE 1", tag, "there was nothing temporary")
	c.query("COMMIT")
}
