package sqlgate

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

func TestBetweenTwoSyncsWritesStandOrFallTogether(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	require.Equal(t, "INSERT 0 1", c.ran("INSERT INTO t VALUES ($1, $2)", "1", "a"))
	require.Equal(t, "INSERT 0 1", c.ran("INSERT INTO t VALUES ($1, $2)", "2", "b"))
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"), "CommandComplete is no promise before Sync")
	require.Equal(t, WireIdle, c.Status())
	c.sync()
	require.Equal(t, "2", w.value("SELECT count(*) FROM t"))
	require.Equal(t, []string{"INSERT dispatched", "INSERT dispatched", "INSERT success", "INSERT success"}, w.trail())
}

func TestAfterAnErrorNothingRunsUntilSync(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.ran("INSERT INTO t VALUES (1, 'a')")
	_, _, err := c.execute(false, "INSERT INTO t VALUES (1, 'b')")
	require.Equal(t, "23505", state(err))
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
	require.Zero(t, w.Database.Stats().InUse)
	want := []string{"INSERT dispatched", "INSERT dispatched", "INSERT failure db_error", "INSERT failure rolled_back"}
	require.Equal(t, want, w.trail())
	_, _, err = c.execute(true, "INSERT INTO t VALUES (3, 'c')")
	require.Equal(t, "25P02", state(err))
	require.Error(t, c.Bind("", "", nil, nil, nil))
	_, err = c.Execute(t.Context(), "", 0, true, &rowsSink{})
	require.Error(t, err)
	_, _, err = c.DescribeStatement(t.Context(), "")
	require.Error(t, err)
	require.Error(t, c.refused("INSERT INTO t VALUES (4, 'd')"))
	c.sync()
	require.Equal(t, want, w.trail())
	c.query("INSERT INTO t VALUES (5, 'e')")
	require.Equal(t, "5", w.value("SELECT string_agg(id::text, ',') FROM t"))
}

func TestALastWriteNeedsNoBlock(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	done, _, err := c.execute(true, "INSERT INTO t VALUES ($1, 'a')", "7")
	require.NoError(t, err)
	require.Equal(t, "INSERT 0 1", done.Tag)
	require.Equal(t, []string{"INSERT dispatched", "INSERT success"}, w.trail())
	c.sync()
	require.Equal(t, "7", w.value("SELECT id FROM t"))
}

func TestAQueryBeforeSyncEndsWhatWasOpen(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.ran("INSERT INTO t VALUES (1, 'a')")
	c.query("INSERT INTO t VALUES (2, 'b')")
	require.Equal(t, "2", w.value("SELECT count(*) FROM t"))
	c.ran("INSERT INTO t VALUES (3, 'c')")
	require.Equal(t, "23505", state(c.refused("INSERT INTO t VALUES (1, 'b')")))
	require.Equal(t, "2", w.value("SELECT count(*) FROM t"))
}

func TestBeginAndCommitInsideOfABatchTakeWhatCameBefore(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.ran("INSERT INTO t VALUES (1, 'a')")
	c.ran("BEGIN")
	c.ran("INSERT INTO t VALUES (2, 'b')")
	c.sync()
	require.Equal(t, WireInBlock, c.Status())
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
	c.ran("COMMIT")
	require.Equal(t, "2", w.value("SELECT count(*) FROM t"))
	c.ran("INSERT INTO t VALUES (3, 'c')")
	c.ran("ROLLBACK")
	c.ran("INSERT INTO t VALUES (4, 'd')")
	c.ran("COMMIT")
	_, _, err := c.execute(false, "INSERT INTO t VALUES (1, 'e')")
	require.Error(t, err)
	c.sync()
	require.Equal(t, "1,2,4", w.value("SELECT string_agg(id::text, ',' ORDER BY id) FROM t"))
}

func TestAPortalWithARowLimitIsFetchedInSlices(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	ctx := t.Context()
	slice := func(portal string, most uint32) (string, bool, []string) {
		t.Helper()
		var out rowsSink
		done, err := c.Execute(ctx, portal, most, false, &out)
		require.NoError(t, err)
		require.Len(t, out.columns, 1)
		return done.Tag, done.Suspended, out.rows
	}
	require.NoError(t, c.Parse(ctx, "s", "SELECT i FROM generate_series(1, $1) AS i", []uint32{23}))
	require.NoError(t, c.Bind("p", "s", []int16{1}, [][]byte{binary.BigEndian.AppendUint32(nil, 5)}, nil))
	_, suspended, rows := slice("p", 2)
	require.True(t, suspended)
	require.Equal(t, []string{"1", "2"}, rows)
	_, suspended, rows = slice("p", 2)
	require.True(t, suspended)
	require.Equal(t, []string{"3", "4"}, rows)
	tag, suspended, rows := slice("p", 2)
	require.False(t, suspended)
	require.Equal(t, "SELECT 1", tag)
	require.Equal(t, []string{"5"}, rows)
	tag, _, rows = slice("p", 2)
	require.Equal(t, "SELECT 0", tag)
	require.Empty(t, rows)
	require.Equal(t, []string{"SELECT dispatched", "SELECT success"}, w.trail(), "it ran once")
	c.sync()
	_, err := c.Execute(ctx, "p", 0, false, &rowsSink{})
	require.Equal(t, "34000", state(err), "a portal ends with its transaction")
}

// All portals of a connection together hold as much as one result may have.
func TestOpenPortalsHoldNoMoreThanOneResult(t *testing.T) {
	w := newWireWorld(t, func(o *Options) { o.ResultBytes = 64 << 10 })
	c := w.wire()
	ctx := t.Context()
	open := func(portal string, most uint32) error {
		require.NoError(t, c.Parse(ctx, "", "SELECT repeat('x', 10000) FROM generate_series(1, 4)", nil))
		require.NoError(t, c.Bind(portal, "", nil, nil, nil))
		_, err := c.Execute(ctx, portal, most, false, &rowsSink{})
		return err
	}
	require.NoError(t, open("a", 1))
	require.Equal(t, "result_too_large", state(open("b", 1)))
	c.sync()
	require.NoError(t, open("a", 1))
	_, err := c.Execute(ctx, "a", 0, false, &rowsSink{})
	require.NoError(t, err)
	require.NoError(t, open("b", 1), "what was fetched to the end holds nothing")
	c.ClosePortal("b")
	require.NoError(t, open("c", 1), "nor does what was closed")
	require.NoError(t, open("d", 0), "what is not sliced is not held")
	c.sync()

	require.NoError(t, c.Parse(ctx, "s", "SELECT $1::text", nil))
	value := [][]byte{make([]byte, 40_000)}
	require.NoError(t, c.Bind("a", "s", nil, value, nil))
	require.Equal(t, "result_too_large", state(c.Bind("b", "s", nil, value, nil)))
	c.sync()
	for range 3 { // the unnamed one takes the place of the one before it
		require.NoError(t, c.Bind("", "s", nil, value, nil))
	}
}

func TestAFinishedPortalDoesNotRunAgain(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.ran("INSERT INTO t VALUES (1, 'a')")
	_, err := c.Execute(t.Context(), "", 0, false, &rowsSink{})
	require.Equal(t, "55000", state(err))
	c.sync()
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
}

func TestBinaryParametersAndResultsPassThrough(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	require.NoError(t, c.Parse(t.Context(), "", "SELECT $1::int8 + 1, $2::text", []uint32{20, 25}))
	require.NoError(t, c.Bind("", "", []int16{1, 0}, [][]byte{binary.BigEndian.AppendUint64(nil, 41), nil}, []int16{1, 0}))
	var got [][]byte
	sink := &funcSink{row: func(values [][]byte) { got = [][]byte{append([]byte{}, values[0]...), values[1]} }}
	done, err := c.Execute(t.Context(), "", 0, true, sink)
	require.NoError(t, err)
	require.Equal(t, "SELECT 1", done.Tag)
	require.EqualValues(t, 42, binary.BigEndian.Uint64(got[0]))
	require.Nil(t, got[1])
	require.EqualValues(t, 1, sink.columns[0].Format)
	require.EqualValues(t, 8, sink.columns[0].Size)
	c.sync()
	for _, e := range w.events() {
		if e.Type == event.TypeExecutionDispatched {
			var p event.ExecutionDispatched
			require.NoError(t, e.Parse(&p))
			require.Equal(t, 2, p.Params.Count)
		}
	}
}

func TestWrongNamesAndCountsAreRefusedAsPostgreSQLDoes(t *testing.T) {
	c := newWireWorld(t, nil).wire()
	ctx := t.Context()
	for want, f := range map[string]func() error{
		"26000": func() error { return c.Bind("", "nobody", nil, nil, nil) },
		"34000": func() error { _, err := c.Execute(ctx, "nobody", 0, true, &rowsSink{}); return err },
		"42P05": func() error {
			require.NoError(t, c.Parse(ctx, "s", "SELECT 1", nil))
			return c.Parse(ctx, "s", "SELECT 2", nil)
		},
		"08P01": func() error { return c.Bind("", "s", nil, [][]byte{nil}, nil) },
		"42P03": func() error {
			require.NoError(t, c.Bind("p", "s", nil, nil, nil))
			return c.Bind("p", "s", nil, nil, nil)
		},
		"22023": func() error { return c.Bind("", "s", nil, nil, []int16{2}) },
		"42622": func() error { return c.Parse(ctx, fmt.Sprintf("%064d", 1), "SELECT 1", nil) },
	} {
		if want != "42P05" && c.statements["s"] == nil {
			require.NoError(t, c.Parse(ctx, "s", "SELECT 1", nil))
		} else if want == "42P05" {
			c.CloseStatement("s")
		}
		require.Equal(t, want, state(f()), want)
		c.sync()
	}
}

func TestAConnectionHasAtMostSoManyStatements(t *testing.T) {
	c := newWireWorld(t, nil).wire()
	ctx := t.Context()
	for i := range wireStatements {
		require.NoError(t, c.Parse(ctx, fmt.Sprintf("s%d", i), "SELECT 1", nil))
	}
	require.Equal(t, "session_limit_exceeded", state(c.Parse(ctx, "one more", "SELECT 1", nil)))
	c.sync()
	require.NoError(t, c.Parse(ctx, "", "SELECT 1", nil), "the unnamed one has its own place")
	c.query("DEALLOCATE s0")
	require.NoError(t, c.Parse(ctx, "one more", "SELECT 1", nil))
	c.query("DEALLOCATE ALL")
	require.NoError(t, c.Parse(ctx, "s1", "SELECT 1", nil))
}

func TestPrepareAndParseShareTheirNames(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	ctx := t.Context()
	c.query("PREPARE ins (int, text) AS INSERT INTO t VALUES ($1, $2)")
	require.Equal(t, "42P05", state(c.Parse(ctx, "ins", "SELECT 1", nil)))
	c.sync()
	tag, _ := c.query("EXECUTE ins (1, 'a')")
	require.Equal(t, "INSERT 0 1", tag)
	require.NoError(t, c.Bind("", "ins", nil, [][]byte{[]byte("2"), []byte("b")}, nil))
	_, err := c.Execute(ctx, "", 0, true, &rowsSink{})
	require.NoError(t, err)
	c.sync()
	require.NoError(t, c.Parse(ctx, "sel", "SELECT v FROM t WHERE id = $1", nil))
	c.sync()
	_, rows := c.query("EXECUTE sel (2)")
	require.Equal(t, []string{"b"}, rows)
	require.Equal(t, "26000", state(c.refused("EXECUTE nobody")))
	require.Equal(t, "validation_failed", state(c.refused("EXECUTE ins (1)")))
	c.query("DEALLOCATE ins")
	require.Equal(t, "26000", state(c.refused("DEALLOCATE ins")))
	require.Equal(t, "26000", state(c.refused("EXECUTE ins (3, 'c')")))
	require.Equal(t, "2", w.value("SELECT count(*) FROM t"))
}

func TestAnEmptyTextIsNoStatement(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	done, err := c.Query(t.Context(), " -- nothing\n ;", &rowsSink{})
	require.NoError(t, err)
	require.True(t, done.Empty)
	done, _, err = c.execute(true, "")
	require.NoError(t, err)
	require.True(t, done.Empty)
	c.sync()
	require.Equal(t, "multi_statement_rejected", state(c.refused("INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (2, 'b')")))
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
}

func TestAStatementIsDescribedWithoutRunning(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	ctx := t.Context()
	require.NoError(t, c.Parse(ctx, "s", "INSERT INTO t VALUES ($1, $2) RETURNING id, v AS value", nil))
	params, columns, err := c.DescribeStatement(ctx, "s")
	require.NoError(t, err)
	require.Equal(t, []uint32{23, 25}, params)
	require.Len(t, columns, 2)
	require.Equal(t, "value", columns[1].Label)
	require.EqualValues(t, 2, columns[1].TableColumn)
	require.NoError(t, c.Bind("p", "s", nil, [][]byte{[]byte("1"), nil}, []int16{1}))
	columns, err = c.DescribePortal(ctx, "p")
	require.NoError(t, err)
	require.EqualValues(t, 1, columns[1].Format)
	for sql, want := range map[string]int{"BEGIN": 0, "SHOW timezone": 1, "SHOW server_version": 1, "CREATE TABLE u (a int)": 0, "": 0, "PREPARE x AS SELECT 1": 0} {
		require.NoError(t, c.Parse(ctx, "", sql, nil))
		_, columns, err = c.DescribeStatement(ctx, "")
		require.NoError(t, err, sql)
		require.Len(t, columns, want, sql)
	}
	c.sync()
	require.Empty(t, w.trail())
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
}

func TestFormatsOfAResultThatThereIsNotAreNoError(t *testing.T) {
	c := newWireWorld(t, nil).wire()
	for _, sql := range []string{"INSERT INTO t VALUES (1, 'a')", "BEGIN", "CREATE TABLE u (a int)", ""} {
		require.NoError(t, c.Parse(t.Context(), "", sql, nil))
		require.NoError(t, c.Bind("", "", nil, nil, []int16{1, 1}))
		columns, err := c.DescribePortal(t.Context(), "")
		require.NoError(t, err, sql)
		require.Nil(t, columns, sql)
	}
}

func TestWhatIsBlockedIsNotDescribed(t *testing.T) {
	w := newWireWorld(t, nil)
	w.wire().query("INSERT INTO t VALUES (1, 'a')")
	c := w.wire()
	ctx := t.Context()
	require.NoError(t, c.Parse(ctx, "", "SELECT pg_read_file('x')", nil))
	_, _, err := c.DescribeStatement(ctx, "")
	require.Equal(t, "BLOCK", state(err))
	events := w.events()
	require.Equal(t, event.TypeDecisionRecorded, events[len(events)-1].Type)
	c.sync()
	require.NoError(t, c.Parse(ctx, "", "DELETE FROM t WHERE id = $1", nil))
	params, _, err := c.DescribeStatement(ctx, "")
	require.NoError(t, err, "what waits for an approval may be described")
	require.Equal(t, []uint32{23}, params)
	c.sync()
	require.NoError(t, c.Parse(ctx, "", "DELETE FROM t WHERE v = 'x'::mood", nil))
	_, _, err = c.DescribeStatement(ctx, "")
	require.Equal(t, "REQUIRE_APPROVAL", state(err))
	c.sync()
	require.NoError(t, c.Parse(ctx, "", "DELETE FROM t WHERE v = 'x'::mood AND id = $1", nil))
	_, _, err = c.DescribeStatement(ctx, "")
	require.Equal(t, "0A000", state(err))
	c.sync()
}

// What waits for an approval is parsed beside the block, whose own locks it would wait
// for. What is approved is parsed inside of it.
func TestAnApprovedStatementIsDescribedBehindTheLocksOfItsBlock(t *testing.T) {
	w := newWireWorld(t, nil)
	w.wire().query("INSERT INTO t VALUES (1, 'a')")
	c := w.wire()
	describe := func(sql string) error {
		c.query("BEGIN")
		c.query("LOCK TABLE t")
		require.NoError(t, c.Parse(t.Context(), "", sql, nil))
		_, _, err := c.DescribeStatement(t.Context(), "")
		return err
	}
	const sql = "DELETE FROM t WHERE v = 'a'"
	c.query("SET statement_timeout = 1000") // sooner than a lock is given up
	require.Equal(t, "REQUIRE_APPROVAL", state(describe(sql)))
	c.sync()
	c.query("ROLLBACK")
	c.query("RESET statement_timeout")
	c.query("SET lock_timeout = 100")
	err := describe(sql)
	require.Equal(t, "REQUIRE_APPROVAL", state(err))
	id := err.(*WireRefusal).Answer.ApprovalID
	c.sync()
	c.query("ROLLBACK")
	w.approve(id)
	require.NoError(t, describe("/* gate.approval_id="+id+" */ "+sql))
	require.Equal(t, "DELETE 1", c.ran("/* gate.approval_id="+id+" */ "+sql))
	c.sync()
	c.query("COMMIT")
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
}

func TestABlockDescribesWhatItMade(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	c.query("CREATE TABLE u (a int)")
	require.NoError(t, c.Parse(t.Context(), "", "INSERT INTO u VALUES ($1)", nil))
	params, _, err := c.DescribeStatement(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, []uint32{23}, params)
	c.sync()
	c.query("COMMIT")
}

func TestAResultOfAnotherShapeIsNotHandedOn(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	ctx := t.Context()
	require.NoError(t, c.Parse(ctx, "s", "SELECT * FROM t", nil))
	_, _, err := c.DescribeStatement(ctx, "s")
	require.NoError(t, err)
	c.sync()
	w.wire().query("INSERT INTO t VALUES (1, 'a')")
	postgresExecute(w, "ALTER TABLE t ADD COLUMN more int")
	require.NoError(t, c.Bind("", "s", nil, nil, nil))
	var out rowsSink
	_, err = c.Execute(ctx, "", 0, true, &out)
	require.Equal(t, "unsupported_sql_shape", state(err))
	require.ErrorContains(t, err, "cached plan must not change result type")
	require.Empty(t, out.rows)
	require.Contains(t, w.trail(), "SELECT failure result_shape_changed")
	c.sync()
}

// A funcSink hands rows to a function.
type funcSink struct {
	rowsSink
	row func(values [][]byte)
}

func (f *funcSink) Row(values [][]byte) error {
	f.row(values)
	return nil
}

func TestThePolicyOfTheMomentOfExecuteDecides(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	require.NoError(t, c.Parse(t.Context(), "s", "INSERT INTO t VALUES (1, 'a')", nil))
	require.NoError(t, c.Bind("p", "s", nil, nil, nil))
	blocking := strings.Replace(wirePolicy, "version: 1.0.0", "version: 1.0.1", 1)
	blocking = strings.Replace(blocking, "match: { query_types: [TRUNCATE] }", "match: { query_types: [TRUNCATE, INSERT] }", 1)
	blocking = strings.Replace(blocking, "expect: { decision: ALLOW }", "expect: { decision: BLOCK }", 1)
	_, err := w.CreateCandidate(t.Context(), []byte(blocking), "", "test")
	require.NoError(t, err)
	_, err = w.ChangePolicy(t.Context(), PolicyChangeRequest{ExpectedHash: fmt.Sprintf("%x", sha256.Sum256([]byte(blocking))), By: "test"})
	require.NoError(t, err)
	_, err = c.Execute(t.Context(), "p", 0, true, &rowsSink{})
	require.Equal(t, "BLOCK", state(err))
	c.sync()
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
}

func TestExecuteRunsWhatItsTextSays(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	ctx := t.Context()
	c.query("PREPARE ins (int) AS INSERT INTO t VALUES ($1, 'a')")
	require.NoError(t, c.Parse(ctx, "", "EXECUTE ins (5)", []uint32{23}))
	require.NoError(t, c.Bind("", "", nil, [][]byte{[]byte("7")}, nil))
	_, err := c.Execute(ctx, "", 0, true, &rowsSink{})
	require.Equal(t, "0A000", state(err), "a parameter beside the text must not take the place of its argument")
	c.sync()
	for name, sql := range map[string]string{"p": "PREPARE q AS DELETE FROM t", "d": "DEALLOCATE ALL", "b": "BEGIN", "e": "EXECUTE ins (1)", "c": "COPY t TO STDOUT"} {
		require.NoError(t, c.Parse(ctx, name, sql, nil))
		c.sync()
		require.Equal(t, "unsupported_sql_shape", state(c.refused("EXECUTE "+name)), sql)
		require.Equal(t, WireIdle, c.Status())
	}
	require.Empty(t, w.trail(), "nothing of it reached the database")
	c.query("EXECUTE ins (5)")
	require.Equal(t, "5", w.value("SELECT id FROM t"))
}

func TestAPortalOfAFailedBlockGivesNoMoreRows(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	ctx := t.Context()
	c.query("BEGIN")
	require.NoError(t, c.Parse(ctx, "", "SELECT generate_series(1, 5)", nil))
	require.NoError(t, c.Bind("p", "", nil, nil, nil))
	_, err := c.Execute(ctx, "p", 2, false, &rowsSink{})
	require.NoError(t, err)
	c.sync()
	require.Error(t, c.refused("SELECT 1/0"))
	_, err = c.Execute(ctx, "p", 2, false, &rowsSink{})
	require.Equal(t, "25P02", state(err))
	c.sync()
	c.query("ROLLBACK")
}

// A portal ends with the savepoint behind which it was made.
func TestAPortalGoesWithTheSavepointBeforeIt(t *testing.T) {
	c := newWireWorld(t, nil).wire()
	ctx := t.Context()
	c.query("BEGIN")
	require.NoError(t, c.Parse(ctx, "s", "SELECT generate_series(1, 5)", nil))
	require.NoError(t, c.Bind("before", "s", nil, nil, nil))
	c.query("SAVEPOINT a")
	c.query("SAVEPOINT b")
	require.NoError(t, c.Bind("behind", "s", nil, nil, nil))
	c.query("RELEASE b")
	c.query("ROLLBACK TO a")
	_, err := c.Execute(ctx, "before", 2, false, &rowsSink{})
	require.NoError(t, err)
	_, err = c.Execute(ctx, "behind", 2, false, &rowsSink{})
	require.Equal(t, "34000", state(err))
}

func TestAWriteIsDescribedAlsoWhereItMayNotRun(t *testing.T) {
	c := newWireWorld(t, nil).wire()
	c.query("SET default_transaction_read_only = on")
	require.NoError(t, c.Parse(t.Context(), "", "INSERT INTO t VALUES ($1, $2)", nil))
	params, _, err := c.DescribeStatement(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, []uint32{23, 25}, params)
	c.sync()
}
