package sqlgate

import (
	"fmt"
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
    match: { tables_written_only: [pg_temp.*, public.mine], query_types_only: [CREATE, CREATE_TABLE_AS, ALTER, DROP, SELECT, INSERT, UPDATE] }
  - id: deletes
    decision: REQUIRE_APPROVAL
    reason_code: delete_needs_approval
    match: { query_types: [DELETE] }
  - id: numbers
    decision: ALLOW
    reason_code: numbers
    match: { query_types_only: [SELECT], functions_only: [nextval], tables_read_only: [], tables_written_only: [] }
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
	}
	require.Equal(t, "60", w.value("SELECT count(*) FROM t WHERE v = 'old'"))
}

// An approval is for what its transaction had made before it too: the person is shown it.
func TestAnApprovalIsForTheTemporaryTablesBeforeIt(t *testing.T) {
	w := temporaryWorld(t)
	const deletes = "DELETE FROM t WHERE id IN (SELECT target FROM mine)"
	c := w.wire()
	held := heldBy(t, c.refused(deletes))
	w.approve(held)
	c.query("BEGIN")
	c.query(makesMine)
	c.query("SET LOCAL gate.approval_id = '" + held + "'")
	require.Equal(t, "approval_mismatch", state(c.refused(deletes)))
	c.query("ROLLBACK")
	require.Equal(t, "60", w.value("SELECT count(*) FROM t"))

	c.query("BEGIN")
	c.query(makesMine)
	refusal := c.refused(deletes)
	require.Contains(t, fmt.Sprint(w.asked(refusal)), "CREATE TEMP TABLE mine")
	held = heldBy(t, refusal)
	w.approve(held)
	c.query("ROLLBACK")
	for _, also := range []string{"CREATE VIEW mine AS SELECT target FROM (VALUES (%d)) AS v (target), base", "CREATE OR REPLACE VIEW mine AS SELECT x + %d AS target FROM base"} { // temporary, for base is
		view := func(n int) {
			c.query("BEGIN")
			c.query("CREATE TEMP TABLE base AS SELECT 0 AS x")
			c.query(fmt.Sprintf(also, n))
		}
		view(1)
		refusal := c.refused(deletes)
		require.Contains(t, fmt.Sprint(w.asked(refusal)), "VIEW mine")
		approved := heldBy(t, refusal)
		w.approve(approved)
		c.query("ROLLBACK")
		view(2)
		c.query("SET LOCAL gate.approval_id = '" + approved + "'")
		require.Equal(t, "approval_mismatch", state(c.refused(deletes)), also)
		c.query("ROLLBACK")
	}
	elsewhere := heldBy(t, c.refused("DELETE FROM t WHERE id = 60"))
	w.approve(elsewhere)
	c.query("BEGIN")
	c.query("CREATE TEMP TABLE mine AS SELECT 1 AS id, g AS target FROM (VALUES (1), (2), (4)) AS v (g)")
	c.query("SET LOCAL gate.approval_id = '" + held + "'")
	require.Equal(t, "approval_mismatch", state(c.refused(deletes)))
	c.query("ROLLBACK")
	c.query("BEGIN")
	c.query(makesMine)
	c.query("SET LOCAL gate.approval_id = '" + held + "'")
	tag, _ := c.query(deletes)
	require.Equal(t, "DELETE 3", tag)
	c.query("SET LOCAL gate.approval_id = '" + elsewhere + "'")
	require.Equal(t, "approval_mismatch", state(c.refused("DELETE FROM t WHERE id = 60")), "what it reaches by a text does not show")
	c.query("ROLLBACK")
	c.query("BEGIN")
	c.query("CREATE TEMP TABLE mine (id int)")
	c.query("DROP TABLE pg_temp.mine")
	c.query("SET LOCAL gate.approval_id = '" + elsewhere + "'")
	tag, _ = c.query("DELETE FROM t WHERE id = 60")
	require.Equal(t, "DELETE 1", tag, "there is nothing temporary any more")
	c.query("COMMIT")

	numbered := "DELETE FROM t WHERE id > nextval('s')"
	c.query("BEGIN")
	c.query("CREATE TEMP SEQUENCE s START 58")
	numbers := heldBy(t, c.refused(numbered))
	w.approve(numbers)
	c.query("ROLLBACK")
	c.query("BEGIN")
	c.query("CREATE TEMP SEQUENCE s START 58")
	c.query("SELECT nextval('s')")
	c.query("SET LOCAL gate.approval_id = '" + numbers + "'")
	require.Equal(t, "approval_mismatch", state(c.refused(numbered)), "the sequence has gone on")
	c.query("ROLLBACK")

	byText := "DELETE FROM t WHERE id > (SELECT substr(attname, 2)::int FROM pg_attribute WHERE attrelid = 'mine'::regclass AND attnum = 1)"
	elsewhere = heldBy(t, c.refused(byText))
	w.approve(elsewhere)
	c.query("BEGIN")
	c.query("CREATE TEMP TABLE mine (c1 int)")
	c.query("SET LOCAL gate.approval_id = '" + elsewhere + "'")
	require.Equal(t, "approval_mismatch", state(c.refused(byText)))
	c.query("ROLLBACK")
}
