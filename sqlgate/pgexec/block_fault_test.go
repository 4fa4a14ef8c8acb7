package pgexec

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/commands/fault"
)

func TestABlockThatCannotBeginIsTriedOnceMore(t *testing.T) {
	for _, kind := range []lossKind{lostBefore, lostAfter} {
		t.Run(kind.String(), func(t *testing.T) {
			db, side := lossy(t, "BEGIN\x00", kind, 1)
			b := beginBlock(t, db, BlockOptions{})
			b.write("INSERT INTO t VALUES (1)")
			b.commit()
			require.Equal(t, "1", side.ask("SELECT count(*) FROM t"))

			db, _ = lossy(t, "BEGIN\x00", kind, 2)
			_, err := db.BeginBlock(context.Background(), BlockOptions{})
			require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
			givenBack(t, db)
		})
	}
}

// Whatever step the connection is lost in before COMMIT, nothing is applied, no
// statement goes to another connection, and the block only ends.
func TestALossInABlockBeforeCommit(t *testing.T) {
	for _, c := range []struct {
		text string
		step func(*testing.T, *blockTest) error
	}{
		{"INSERT INTO t VALUES (2)", func(t *testing.T, b *blockTest) error {
			res, _, err := b.tryWrite("INSERT INTO t VALUES (2)", BeginOptions{}, false)
			require.Equal(t, Failure, res.State)
			require.Equal(t, ReasonCommitNeverSent, res.ReasonCode)
			require.Equal(t, BasisCommitNeverSent, res.Basis)
			return err
		}},
		{"SELECT 4711", func(t *testing.T, b *blockTest) error {
			res, _, err := b.tryRead("SELECT 4711", BeginOptions{})
			require.Equal(t, Failure, res.State)
			require.Equal(t, BasisReadOnly, res.Basis)
			return err
		}},
		{"SELECT 4712", func(t *testing.T, b *blockTest) error {
			_, err := b.Block.Describe(context.Background(), BeginOptions{}, "SELECT 4712", nil, nil)
			return err
		}},
		{"SAVEPOINT \"gate_", func(t *testing.T, b *blockTest) error { return b.Savepoint(context.Background(), "s") }},
		{"SET CONSTRAINTS", func(t *testing.T, b *blockTest) error {
			res, err := b.Commit(context.Background())
			require.Equal(t, Failure, res.State)
			require.Equal(t, ReasonCommitNeverSent, res.ReasonCode)
			require.Equal(t, OutcomeAborted, res.Outcome)
			return err
		}},
	} {
		for _, kind := range []lossKind{lostBefore, lostAfter} {
			t.Run(c.text+" "+kind.String(), func(t *testing.T) {
				db, side := lossy(t, c.text, kind, 1)
				b := beginBlock(t, db, BlockOptions{})
				b.write("INSERT INTO t VALUES (1)")
				require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(c.step(t, b)))
				if b.Status() != 'I' {
					require.True(t, b.Lost())
					require.Equal(t, byte('E'), b.Status())
					_, err := b.DispatchWrite(context.Background(), BeginOptions{})
					require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
					require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(b.Block.RollbackTo(context.Background(), Savepoint{})))
				}
				givenBack(t, db)
				require.False(t, b.Rollback(), "nobody acknowledges it")
				require.Equal(t, byte('I'), b.Status())
				side.eventually(settled, "0")
				require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
				mustWrite(t, db, "INSERT INTO t VALUES (3)")
			})
		}
	}
}

func TestALossBeforeTheFirstWriteOfABlockIsSent(t *testing.T) {
	for _, kind := range []lossKind{lostBefore, lostAfter, silent} {
		t.Run(kind.String(), func(t *testing.T) {
			db, _ := lossy(t, "pg_current_xact_id", kind, 1)
			b := beginBlock(t, db, BlockOptions{})
			db.cfg.ConnectTimeout = 300 * time.Millisecond // of what comes now, not of the login
			_, err := b.DispatchWrite(context.Background(), BeginOptions{})
			require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
			require.True(t, b.Lost())
			res, err := b.Commit(context.Background())
			require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
			require.Equal(t, OutcomeAborted, res.Outcome)
		})
	}
}

func TestALossOfABlocksCommitIsUnknown(t *testing.T) {
	for kind, want := range map[lossKind]struct{ cause, rows string }{
		lostBefore: {CauseConnectionLost, "0"},
		lostAfter:  {CauseConnectionLost, "2"},
		silent:     {CauseTimeout, "2"},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			db, side := lossy(t, "COMMIT", kind, 1)
			b := beginBlock(t, db, BlockOptions{})
			b.write("INSERT INTO t VALUES (1)")
			b.write("INSERT INTO t VALUES (2)")
			res, err := b.Commit(context.Background())
			require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
			require.Equal(t, Unknown, res.State)
			require.Equal(t, StepCommit, res.Step)
			require.Equal(t, want.cause, res.Cause)
			require.Nil(t, res.Settled)
			side.eventually("SELECT count(*) FROM t", want.rows)
			givenBack(t, db)
		})
	}
}

func TestALossOfABlocksRollbackChangesNothing(t *testing.T) {
	db, side := lossy(t, "ROLLBACK", lostBefore, 1)
	b := beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO t VALUES (1)")
	require.False(t, b.Rollback())
	side.eventually(settled, "0")
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestABlockThatIdledTooLongIsLost(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	var b *blockTest
	var d Dispatch
	for written := false; !written; { // on a busy machine the write itself may come too late
		b = beginBlock(t, db, BlockOptions{IdleTimeout: 50 * time.Millisecond})
		var err error
		if d, err = b.DispatchWrite(context.Background(), BeginOptions{}); err == nil {
			_, err = b.Block.Write(context.Background(), sql("INSERT INTO t VALUES (1)"), false, db.NewRows(0))
		}
		written = err == nil
	}
	side.eventually("SELECT count(*) FROM pg_stat_activity WHERE pid = "+strconv.FormatInt(d.Upstream.BackendPID, 10)+" AND application_name = 'gate/writer'", "0")
	_, _, err := b.tryRead("SELECT 1", BeginOptions{})
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, "25P03", fault.Of(err).Details["sqlstate"])
	require.True(t, b.Lost())
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestAWriteOfABlockThatTimesOutFailsTheBlock(t *testing.T) {
	db, side := open(t, slack)
	side.run("CREATE TABLE t (a int)")
	b := beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO t VALUES (1)")
	b.savepoint("s")
	res, _, err := b.tryWrite("WITH w AS (INSERT INTO t VALUES (2) RETURNING a) SELECT pg_sleep(30) FROM w", BeginOptions{Limits: brief}, false)
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, Unknown, res.State)
	require.Equal(t, &Settled{Outcome: OutcomeAborted, Basis: BasisRollbackAcknowledged, Answered: "57014"}, res.Settled)
	b.rollbackTo("s")
	require.Equal(t, `[{"s":"5s"}]`, b.read("SELECT current_setting('statement_timeout') AS s"))
	b.commit()
	require.Equal(t, "1", side.ask("SELECT sum(a) FROM t"))
}

func TestAStatementOfABlockIsCancelledOnRequest(t *testing.T) {
	db, side := open(t, unhurried, func(c *Config) { c.PoolMax = 1 })
	side.run("CREATE TABLE t (a int)")
	const asleep = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND application_name = 'gate/writer' AND datname = current_database()"
	b := beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO t VALUES (1)")
	d, err := b.DispatchRead(context.Background(), BeginOptions{})
	require.NoError(t, err)
	b.savepoint("s")
	for i, run := range []func(o BeginOptions) (Result, string, error){
		func(o BeginOptions) (Result, string, error) { return b.tryWrite("SELECT pg_sleep(60)", o, false) },
		func(o BeginOptions) (Result, string, error) { return b.tryRead("SELECT pg_sleep(60)", o) },
	} {
		id := "exe_" + strconv.Itoa(i)
		require.Equal(t, CancelNothing, db.Cancel(context.Background(), id), "nothing runs yet")
		wait := side.meanwhile(asleep, "1", func() { db.Cancel(context.Background(), id) })
		res, _, err := run(BeginOptions{ExecutionID: id})
		wait()
		require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
		require.Equal(t, "57014", fault.Of(err).Details["sqlstate"])
		require.Equal(t, ReasonCancelled, res.ReasonCode)
		require.Equal(t, CancelNothing, db.Cancel(context.Background(), id), "nor any more")
		b.rollbackTo("s")
		require.Equal(t, `[{"n":1}]`, b.read("SELECT count(*) AS n FROM t"), "the next statement is not cancelled")
	}
	b.commit()
	require.Equal(t, "1", side.ask("SELECT count(*) FROM t"))
	next := beginBlock(t, db, BlockOptions{})
	after, err := next.DispatchRead(context.Background(), BeginOptions{})
	require.NoError(t, err)
	require.NotEqual(t, d.Upstream.BackendPID, after.Upstream.BackendPID, "the connection is not used for anybody else")
}

func TestAWriteOfABlockThatChangesASettingLosesTheBlock(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE TABLE t (a int);
CREATE FUNCTION f(name text, value text) RETURNS text LANGUAGE sql AS $$ SELECT set_config(name, value, false) $$`)
	for name, value := range map[string]string{"search_path": "pg_temp", "TimeZone": "Asia/Tokyo"} {
		b := beginBlock(t, db, BlockOptions{Timeout: time.Minute, IdleTimeout: time.Minute})
		b.write("INSERT INTO t VALUES (1)")
		res, err := b.failWrite("SELECT f('" + name + "', '" + value + "')")
		require.Equal(t, fault.DBUnavailable, fault.CodeOf(err))
		require.Equal(t, ReasonSettingsDrift, res.ReasonCode)
		require.Equal(t, OutcomeAborted, res.Outcome)
		require.True(t, b.Lost())
		require.Zero(t, db.Stats().InUse)
	}
	require.EqualValues(t, 2, db.Stats().Quarantined)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestDeferredConstraintsOfABlock(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO t VALUES (1)")
	b := beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO t VALUES (1)")
	b.write("UPDATE t SET a = 2 WHERE ctid = (SELECT max(ctid) FROM t)")
	b.commit() // mended before the end

	b = beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO t VALUES (1)")
	res, err := b.Commit(context.Background())
	require.Equal(t, "23505", fault.Of(err).Details["sqlstate"])
	require.Equal(t, Failure, res.State)
	require.Equal(t, BasisRollbackAcknowledged, res.Basis)
	require.Equal(t, byte('I'), b.Status())

	b = beginBlock(t, db, BlockOptions{})
	res, _, err = b.tryWrite("INSERT INTO t VALUES (2)", BeginOptions{}, true)
	require.Equal(t, "23505", fault.Of(err).Details["sqlstate"])
	require.Equal(t, "23505", res.SQLState)
	require.Equal(t, byte('E'), b.Status(), "it is the last write that failed")
	require.True(t, b.Rollback())
	require.Equal(t, "2", side.ask("SELECT count(*) FROM t"))
	require.Zero(t, db.Stats().InUse)
}

// What fires at the end of a block sees the session's settings, as it would
// without the gate.
func TestDeferredTriggersOfABlockSeeItsSettings(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE TABLE t (a int); CREATE TABLE log (zone text);
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (current_setting('TimeZone')); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER c AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f()`)
	for _, last := range []bool{true, false} {
		b := beginBlock(t, db, BlockOptions{})
		_, _, err := b.tryWrite("INSERT INTO t VALUES (1)", BeginOptions{Settings: Settings{"TimeZone": "Asia/Tokyo"}}, last)
		require.NoError(t, err)
		b.commit()
	}
	require.Equal(t, "Asia/Tokyo Asia/Tokyo", side.ask("SELECT string_agg(zone, ' ') FROM log"))
	require.Zero(t, db.Stats().Quarantined)
}

func TestABlocksCommitThatTheServerRefuses(t *testing.T) {
	db, side := open(t)
	failAtCommit(side, "RAISE EXCEPTION 'too late' USING ERRCODE = '23514';")
	b := beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO a VALUES (1)")
	res, err := b.Commit(context.Background())
	require.Equal(t, "23514", fault.Of(err).Details["sqlstate"])
	require.Equal(t, Failure, res.State)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM a"))
	require.Zero(t, db.Stats().InUse)
}

func TestCapsInABlockFailItAsAnErrorDoes(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	ten := BeginOptions{Limits: Limits{Rows: 10}}
	b := beginBlock(t, db, BlockOptions{})
	b.savepoint("s")
	for _, n := range []int{10, 11} {
		text := "INSERT INTO t SELECT g FROM generate_series(1, " + strconv.Itoa(n) + ") g RETURNING a"
		res, _, err := b.tryWrite(text, ten, false)
		if n == 10 {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, fault.ResultTooLarge, fault.CodeOf(err))
		require.Equal(t, ReasonResultTooLarge, res.ReasonCode)
		require.Equal(t, BasisRollbackAcknowledged, res.Basis, "the server has undone it")
		require.Equal(t, byte('E'), b.Status())
	}
	b.rollbackTo("s")
	res, _, err := b.tryRead("SELECT g FROM generate_series(1, 11) g", ten)
	require.Equal(t, fault.ResultTooLarge, fault.CodeOf(err))
	require.Equal(t, BasisReadOnly, res.Basis)
	require.Equal(t, byte('E'), b.Status())
	b.rollbackTo("s")
	b.write("INSERT INTO t VALUES (7)")
	b.commit()
	require.Equal(t, "7", side.ask("SELECT sum(a) FROM t"))

	b = beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO t VALUES (8)")
	_, _, err = b.tryRead("SELECT repeat('x', 2000000)", BeginOptions{Limits: Limits{Bytes: 1000}})
	require.Equal(t, fault.ResultTooLarge, fault.CodeOf(err))
	require.True(t, b.Lost(), "the rest of the result was not read")
	b.Rollback()
	require.Equal(t, "7", side.ask("SELECT sum(a) FROM t"))
}

func TestMaxRowsInABlockCountsItsOwnStatementAlone(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (p int REFERENCES p ON DELETE CASCADE);
INSERT INTO p SELECT g FROM generate_series(1, 2) g; INSERT INTO c SELECT 1 + g % 2 FROM generate_series(1, 10) g`)
	most := func(n int64) BeginOptions { return BeginOptions{Limits: Limits{MaxRows: &n}} }
	b := beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO p SELECT g FROM generate_series(100, 150) g")
	b.savepoint("s")
	res, _, err := b.tryWrite("DELETE FROM p WHERE id < 3", most(11), false)
	require.Equal(t, fault.RowLimitExceeded, fault.CodeOf(err))
	require.EqualValues(t, 12, *res.RowsChanged)
	require.Equal(t, ReasonRowLimit, res.ReasonCode)
	b.rollbackTo("s")
	res, _, err = b.tryWrite("DELETE FROM p WHERE id < 3", most(12), false)
	require.NoError(t, err)
	require.EqualValues(t, 12, *res.RowsChanged)
	b.commit()
	require.Equal(t, "0", side.ask("SELECT count(*) FROM c"))
}

func TestEachWriteOfABlockLeavesItsMarker(t *testing.T) {
	db, side := openMarked(t)
	b := beginBlock(t, db, BlockOptions{})
	first, undone := newExecution(), newExecution()
	_, _, err := b.tryWrite("INSERT INTO t VALUES (1)", BeginOptions{ExecutionID: first}, false)
	require.NoError(t, err)
	b.savepoint("s")
	d, err := b.DispatchWrite(context.Background(), BeginOptions{ExecutionID: undone})
	require.NoError(t, err)
	require.True(t, d.Marker)
	_, err = b.Block.Write(context.Background(), sql("INSERT INTO t VALUES (2)"), false, db.NewRows(0))
	require.NoError(t, err)
	b.rollbackTo("s")
	_, err = b.DispatchWrite(context.Background(), BeginOptions{ExecutionID: first})
	require.Equal(t, fault.DBUnavailable, fault.CodeOf(err), "the id is taken")
	b.rollbackTo("s")
	b.commit()
	require.Equal(t, string(markerID(first)), side.ask("SELECT string_agg(execution_id::text, ' ') FROM "+markers))
}

func TestTheSnapshotOfABlockIsThatOfItsFirstStatement(t *testing.T) {
	db, side := open(t, unhurried) // a deferrable one waits for those of the whole server
	side.run("CREATE TABLE t (a int)")
	for _, opts := range []BlockOptions{{Isolation: "repeatable read"}, {Isolation: "serializable", ReadOnly: true, Deferrable: true}} {
		side.run("TRUNCATE t")
		b := beginBlock(t, db, opts)
		side.run("INSERT INTO t VALUES (1)")
		require.Equal(t, `[{"n":1}]`, b.read("SELECT count(*) AS n FROM t"))
		side.run("INSERT INTO t VALUES (2)")
		require.Equal(t, `[{"n":1}]`, b.read("SELECT count(*) AS n FROM t"))
		require.Equal(t, `[{"i":"`+opts.Isolation+`"}]`, b.read("SELECT current_setting('transaction_isolation') AS i"))
		b.commit()
	}
	_, err := db.BeginBlock(context.Background(), BlockOptions{Isolation: "serializable; DROP TABLE t"})
	require.Equal(t, fault.Internal, fault.CodeOf(err))
}

// The server does not watch a serializable transaction that is read-only at its
// first snapshot. A read behind its fence must not make it one.
func TestAConflictOfSerializableBlocksIsSeen(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
	one, two := beginBlock(t, db, BlockOptions{Isolation: "serializable"}), beginBlock(t, db, BlockOptions{Isolation: "serializable"})
	for _, b := range []*blockTest{one, two} {
		require.Equal(t, `[{"s":1}]`, b.read("SELECT sum(a) AS s FROM t"))
	}
	one.write("INSERT INTO t VALUES (2)")
	one.commit()
	res, err := two.failWrite("INSERT INTO t VALUES (2)")
	require.Equal(t, "40001", res.SQLState)
	require.Equal(t, true, fault.Of(err).Details["retryable"])
}

func TestABlockRunsUnderOneRole(t *testing.T) {
	db, side := open(t, func(c *Config) { c.DDLURL = c.URL })
	side.run("CREATE TABLE t (a int)")
	b := beginBlock(t, db, BlockOptions{})
	_, err := b.DispatchWrite(context.Background(), BeginOptions{DDL: true})
	require.Equal(t, fault.UnsupportedSQLShape, fault.CodeOf(err))
	b = beginBlock(t, db, BlockOptions{DDL: true})
	_, _, err = b.tryWrite("CREATE TABLE u (a int)", BeginOptions{DDL: true}, false)
	require.NoError(t, err)
	_, err = b.DispatchWrite(context.Background(), BeginOptions{})
	require.Equal(t, fault.UnsupportedSQLShape, fault.CodeOf(err))
	_, err = beginBlock(t, db, BlockOptions{DDL: true}).DispatchRead(context.Background(), BeginOptions{})
	require.Equal(t, fault.UnsupportedSQLShape, fault.CodeOf(err))
}

func TestBinaryValuesOfABlock(t *testing.T) {
	db, _ := open(t)
	b := beginBlock(t, db, BlockOptions{})
	st := Statement{
		SQL: "SELECT $1 + 1 AS n, $2 AS t", ParamOIDs: []uint32{int4, text}, Params: [][]byte{{0, 0, 1, 0}, []byte("ä")}, ParamFormats: []int16{1, 0}, ResultFormats: []int16{1, 0},
	}
	want := [][]byte{{0, 0, 1, 1}, []byte("ä")}
	var got keep
	_, err := b.Block.Read(context.Background(), BeginOptions{}, st, &got)
	require.NoError(t, err)
	require.Equal(t, want, got.values)
	require.EqualValues(t, 1, got.columns[0].Format)
	_, err = b.DispatchWrite(context.Background(), BeginOptions{})
	require.NoError(t, err)
	_, err = b.Block.Write(context.Background(), st, true, &got)
	require.NoError(t, err)
	require.Equal(t, want, got.values)
}

// keep is a sink that keeps the last row.
type keep struct {
	columns []Field
	values  [][]byte
}

func (k *keep) Fields(columns []Field) error { k.columns = columns; return nil }

func (k *keep) Row(values [][]byte) error {
	k.values = nil
	for _, v := range values {
		k.values = append(k.values, append([]byte{}, v...))
	}
	return nil
}

// TestABlockIsAsATransactionOfTheServer: whatever order of writes, reads, errors,
// savepoints and READ ONLY, the block leaves what the same statements leave on a plain
// connection, and is in the state that it is in.
func TestABlockIsAsATransactionOfTheServer(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE a (n int UNIQUE DEFERRABLE INITIALLY DEFERRED, m int PRIMARY KEY); CREATE TABLE b (LIKE a INCLUDING ALL)")
	plain := newSide(t, side.url)
	name := rapid.SampledFrom([]string{"x", "y", `"z`, "gate_fence"})
	rapid.Check(t, func(rt *rapid.T) {
		side.run("TRUNCATE a; TRUNCATE b")
		opts := BlockOptions{Isolation: rapid.SampledFrom(isolations).Draw(rt, "isolation")}
		begun, err := db.BeginBlock(context.Background(), opts)
		require.NoError(rt, err)
		defer begun.Rollback()
		defer plain.first("ROLLBACK") // what fails is drawn anew, and waits for no lock of this
		b := &blockTest{Block: begun, t: t, db: db}
		both := &twice{rt: rt, block: b, plain: plain, db: db}
		both.plainly(opts.beginSQL())
		for range rapid.IntRange(1, 12).Draw(rt, "statements") {
			switch rapid.IntRange(0, 9).Draw(rt, "kind") {
			case 0, 1, 2:
				n, m := rapid.IntRange(0, 9).Draw(rt, "n"), rapid.IntRange(0, 9).Draw(rt, "m")
				both.write("INSERT INTO %s VALUES (" + strconv.Itoa(n) + ", " + strconv.Itoa(m) + ")")
			case 3:
				both.write("UPDATE %s SET n = n + 1")
			case 4:
				both.read("SELECT string_agg(n || '-' || m, ' ' ORDER BY m) AS s FROM %s")
			case 5:
				both.savepoint("SAVEPOINT ", name.Draw(rt, "name"), b.Savepoint)
			case 6:
				both.savepoint("ROLLBACK TO SAVEPOINT ", name.Draw(rt, "name"), b.RollbackTo)
			case 7:
				both.savepoint("RELEASE SAVEPOINT ", name.Draw(rt, "name"), b.Release)
			case 8:
				both.read("SELECT 1/0 FROM (SELECT count(*) FROM %s) AS x")
			case 9:
				_, err := b.Describe(context.Background(), BeginOptions{}, "SELECT nothing FROM a", nil, nil)
				both.agree(err == nil, "SELECT nothing FROM b")
			}
			if rapid.IntRange(0, 3).Draw(rt, "read only") == 3 {
				to := b.Modes()
				to.ReadOnly = true
				both.agree(b.SetModes(context.Background(), to) == nil, "SET TRANSACTION READ ONLY")
			}
			if shown, ok := both.plainly("SHOW transaction_read_only"); ok {
				require.Equal(rt, shown == "on", b.Modes().ReadOnly)
			}
		}
		both.end(rapid.Bool().Draw(rt, "commit"))
		const all = "SELECT string_agg(n || '-' || m, ' ' ORDER BY m) FROM "
		require.Equal(rt, side.ask(all+"b"), side.ask(all+"a"))
	})
}

// twice runs each statement in a block, on table a, and plainly, on table b.
type twice struct {
	rt    *rapid.T
	block *blockTest
	plain *side
	db    *DB
}

func (w *twice) plainly(sql string) (value string, ok bool) {
	value, err := w.plain.first(sql)
	return value, err == nil
}

// agree holds the two against each other.
func (w *twice) agree(did bool, sql string) string {
	value, ok := w.plainly(sql)
	require.Equal(w.rt, ok, did, sql)
	require.Equal(w.rt, string(w.plain.conn.TxStatus()), string(w.block.Status()), sql)
	return value
}

func (w *twice) write(format string) {
	_, err := w.block.DispatchWrite(context.Background(), BeginOptions{})
	if err == nil {
		_, err = w.block.Block.Write(context.Background(), sql(tabled(format, "a")), false, w.db.NewRows(0))
	}
	w.agree(err == nil, tabled(format, "b"))
}

func (w *twice) read(format string) {
	var got keep
	_, err := w.block.Block.Read(context.Background(), BeginOptions{}, sql(tabled(format, "a")), &got)
	want := w.agree(err == nil, tabled(format, "b"))
	if err == nil {
		require.Equal(w.rt, want, string(got.values[0]))
	}
}

func (w *twice) savepoint(verb, name string, do func(context.Context, string) error) {
	w.agree(do(context.Background(), name) == nil, verb+quoteName(name))
}

func (w *twice) end(commit bool) {
	if !commit {
		w.block.Rollback()
		w.agree(true, "ROLLBACK")
		return
	}
	failed := w.block.Status() == 'E'
	_, err := w.block.Commit(context.Background())
	w.agree(err == nil || failed, "COMMIT") // of a failed transaction it is a ROLLBACK, without an error
}

func tabled(format, table string) string { return strings.ReplaceAll(format, "%s", table) }

// What a write of a block waits for before it is sent, here its marker, ends with a
// cancel too, and the block can go back to its savepoint.
func TestAWaitBeforeAWriteOfABlockIsCancelledOnRequest(t *testing.T) {
	db, side := openMarked(t, unhurried)
	b := beginBlock(t, db, BlockOptions{})
	_, _, err := b.tryWrite("INSERT INTO t VALUES (1)", BeginOptions{ExecutionID: newExecution()}, false)
	require.NoError(t, err)
	b.savepoint("s")
	waiting := newExecution()
	side.run("BEGIN; INSERT INTO " + markers + " VALUES ('" + strings.TrimPrefix(waiting, "exe_") + "', 'exec')") // whose end is waited for
	wait := side.meanwhile("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'gate/writer' AND datname = current_database()", "1",
		func() { db.Cancel(context.Background(), waiting) })
	_, err = b.DispatchWrite(context.Background(), BeginOptions{ExecutionID: waiting})
	wait()
	require.Equal(t, "57014", fault.Of(err).Details["sqlstate"])
	side.run("ROLLBACK")
	b.rollbackTo("s")
	b.commit()
	require.Equal(t, "1", side.ask("SELECT count(*) FROM t"))
}
