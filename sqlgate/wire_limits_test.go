package sqlgate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
)

// What deferred triggers changed is counted at COMMIT, and is in the evidence of each
// write that has a limit.
func TestTheRowsOfDeferredTriggersAreInTheEvidenceOfABlock(t *testing.T) {
	w := newWireWorld(t, nil)
	w.activate(strings.NewReplacer("version: 1.0.0", "version: 1.0.1", "query_types: [DELETE] }", "query_types: [DELETE] }\n    approval: { max_rows: 5 }").Replace(wirePolicy))
	postgresExecute(w, `INSERT INTO t SELECT g, 'a' FROM generate_series(1, 9) g; CREATE TABLE log (id int); CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO log SELECT generate_series(1, 2); RETURN NULL; END'`)
	postgresExecute(w, `CREATE CONSTRAINT TRIGGER noted AFTER DELETE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION noted()`)
	c := w.wire()
	approved := func(sql string) string {
		id := c.refused(sql).(*WireRefusal).Answer.ApprovalID
		c.query("ROLLBACK")
		w.approve(id)
		return "/* gate.approval_id=" + id + " */ " + sql
	}
	fits, over := approved("DELETE FROM t WHERE id = 1"), approved("DELETE FROM t WHERE id < 4")
	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (99, 'b')")
	c.query(fits)
	c.query("COMMIT")
	var changed []int
	for _, e := range w.events() {
		if e.Type == event.TypeExecutionSuccess {
			var p event.ExecutionSuccess
			require.NoError(t, e.Parse(&p))
			changed = append(changed, p.RowsChanged)
		}
	}
	require.Equal(t, []int{0, 3}, changed)

	c.query("BEGIN")
	c.query(over)
	err := c.refused("COMMIT")
	require.Equal(t, fault.RowLimitExceeded, fault.CodeOf(err), "%v", err)
	require.Equal(t, []any{int64(6), int64(5)}, []any{fault.Of(err).Details["rows"], fault.Of(err).Details["max_rows"]})
	require.Equal(t, "9|2", w.value("SELECT (SELECT count(*) FROM t) || '|' || (SELECT count(*) FROM log)"))
}

// What ends a block is no reason to run a write of it again under its approval, unless
// the one write that it has is over its limit.
func TestTheEndOfABlockGivesNoApprovalBackButThatOfItsOneWrite(t *testing.T) {
	w := newWireWorld(t, nil)
	w.activate(strings.NewReplacer("version: 1.0.0", "version: 1.0.1", "query_types: [DELETE] }", "query_types: [DELETE] }\n    approval: { max_rows: 5 }",
		"TRUNCATE] }\n    message: Tables are not emptied.\n    remedy: Delete rows by key.", "TRUNCATE] }\n  - id: merges\n    decision: REQUIRE_APPROVAL\n    reason_code: merge_needs_approval\n    match: { query_types: [MERGE] }").Replace(wirePolicy))
	postgresExecute(w, `INSERT INTO t SELECT g, 'a' FROM generate_series(1, 9) g; CREATE TABLE log (id int);
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO log SELECT generate_series(1, OLD.id); RETURN NULL; END';
CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END'`)
	postgresExecute(w, `CREATE CONSTRAINT TRIGGER noted AFTER DELETE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION noted()`)
	postgresExecute(w, `CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION waits()`)
	c := w.wire()
	approved := func(sql string) string {
		id := c.refused(sql).(*WireRefusal).Answer.ApprovalID
		w.approve(id)
		return "/* gate.approval_id=" + id + " */ " + sql
	}
	const merge = "MERGE INTO t USING (VALUES (1)) AS s (id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 'b'"
	few, over := "DELETE FROM t WHERE id = 1", "DELETE FROM t WHERE id = 6"
	for name, end := range map[string]struct {
		writes []string
		before string
		code   fault.Code
		kept   int // approvals that are good for another time
	}{
		"its limit":          {[]string{approved(over)}, "", fault.RowLimitExceeded, 1},
		"another's limit":    {[]string{approved(merge), approved(over)}, "", fault.RowLimitExceeded, 0},
		"another's rows":     {[]string{approved(few), approved(over)}, "", fault.RowLimitExceeded, 0},
		"nothing is counted": {[]string{approved(few)}, "LOCK TABLE log", fault.RowLimitExceeded, 0},
		"no time left":       {[]string{approved(merge)}, "INSERT INTO t VALUES (99, 'b')", fault.DBQueryTimeout, 0},
	} {
		c.query("BEGIN")
		for _, sql := range end.writes {
			c.query(sql)
		}
		if end.before != "" {
			c.query(end.before)
		}
		c.query("SET LOCAL statement_timeout = '1s'")
		require.Equal(t, end.code, fault.CodeOf(c.refused("COMMIT")), name)
		kept := 0
		for _, sql := range end.writes {
			c.query("BEGIN")
			if _, _, err := c.execute(false, sql); err == nil {
				kept++
			} else {
				require.Equal(t, "approval_already_used", state(err), "%s: %s", name, sql)
			}
			c.sync()
			c.query("ROLLBACK")
		}
		require.Equal(t, end.kept, kept, name)
	}
}

// What an approved statement returns goes out once it ran within its limits: what a
// client has is never taken back.
func TestNoRowsOfAnApprovedStatementThatFailedReachTheClient(t *testing.T) {
	w := newWireWorld(t, nil)
	w.activate(strings.NewReplacer("version: 1.0.0", "version: 1.0.1", "query_types: [DELETE] }", "query_types: [DELETE, EXPLAIN] }\n    approval: { max_rows: 5 }",
		"TRUNCATE] }\n    message: Tables are not emptied.\n    remedy: Delete rows by key.", "TRUNCATE] }\n  - id: reads\n    decision: REQUIRE_APPROVAL\n    reason_code: read_needs_approval\n    match: { query_types: [SELECT], functions: [md5] }").Replace(wirePolicy))
	postgresExecute(w, "INSERT INTO t SELECT g, 'a' FROM generate_series(1, 50) g")
	c := w.wire()
	approved := func(sql string) string {
		id := c.refused(sql).(*WireRefusal).Answer.ApprovalID
		w.approve(id)
		return "/* gate.approval_id=" + id + " */ " + sql
	}
	over := approved("DELETE FROM t WHERE id > 1 RETURNING id")
	slow := approved("SELECT md5(a::text || b::text) FROM generate_series(1, 3000) a, generate_series(1, 100000) b")
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		for _, sql := range []string{over, slow} {
			var out rowsSink
			if end == "ROLLBACK" {
				c.query("BEGIN")
			}
			_, err := c.Query(t.Context(), sql, &out)
			require.Error(t, err)
			require.Empty(t, out.rows, "%v", err)
			require.False(t, out.asked)
			if end == "ROLLBACK" {
				c.query(end)
			}
		}
	}
	within := approved("DELETE FROM t WHERE id = 1 RETURNING id, v")
	_, rows := c.query(within)
	require.Equal(t, []string{"1|a"}, rows)
	// What is returned is not what is changed.
	_, rows = c.query(approved("WITH d AS (DELETE FROM t WHERE id = 2 RETURNING id) SELECT t.id FROM t, d"))
	require.Len(t, rows, 49)
	_, rows = c.query(approved("EXPLAIN (ANALYZE, VERBOSE, BUFFERS) DELETE FROM t WHERE id = 3"))
	require.Greater(t, len(rows), 5)
	require.Equal(t, "47", w.value("SELECT count(*) FROM t"))
}

// Nor is what ends a pipeline the doing of its last write.
func TestTheEndOfAPipelineGivesTheApprovalOfItsLastWriteNotBack(t *testing.T) {
	w := newWireWorld(t, nil)
	postgresExecute(w, `INSERT INTO t SELECT g, 'a' FROM generate_series(1, 9) g; CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END'`)
	postgresExecute(w, `CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION waits()`)
	c := w.wire()
	id := c.refused("DELETE FROM t WHERE id = 1").(*WireRefusal).Answer.ApprovalID
	w.approve(id)
	c.query("SET statement_timeout = '1s'")
	with := "/* gate.approval_id=" + id + " */ DELETE FROM t WHERE id = 1"
	c.ran("INSERT INTO t VALUES (99, 'b')")
	_, _, err := c.execute(true, with)
	if err == nil {
		err = c.Sync(t.Context())
	}
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err), "%v", err)
	c.sync()
	require.Equal(t, "approval_already_used", state(c.refused(with)))
	var told []string
	for _, e := range w.events() {
		if e.Type == event.TypeExecutionFailure {
			told = append(told, e.Context.ReasonCode+" "+e.Context.ErrorCode)
		}
	}
	require.Equal(t, []string{"rolled_back db_query_timeout", "rolled_back db_query_timeout"}, told)
}
