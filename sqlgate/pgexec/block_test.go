package pgexec

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// A block under test, with the shape of calls that a client's statements make.
type blockTest struct {
	*Block
	t     testing.TB
	db    *DB
	marks []mark // savepoints
}

// A mark is a savepoint under the name by which a client would call it.
type mark struct {
	name string
	Savepoint
}

func beginBlock(t testing.TB, db *DB, opts BlockOptions) *blockTest {
	t.Helper()
	b, err := db.BeginBlock(context.Background(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { b.Rollback() })
	return &blockTest{Block: b, t: t, db: db}
}

// tryWrite dispatches and sends a write.
func (b *blockTest) tryWrite(text string, o BeginOptions, last bool) (Result, string, error) {
	b.t.Helper()
	_, err := b.DispatchWrite(context.Background(), o)
	require.NoError(b.t, err, text)
	rows := b.db.NewRows(0)
	res, err := b.Block.Write(context.Background(), sql(text), last, rows)
	if err != nil {
		return res, "", err
	}
	return res, string(rows.JSON()), nil
}

func (b *blockTest) write(text string) Result {
	b.t.Helper()
	res, _, err := b.tryWrite(text, BeginOptions{}, false)
	require.NoError(b.t, err, text)
	require.Equal(b.t, Success, res.State)
	require.Equal(b.t, byte('T'), b.Status())
	return res
}

// failWrite is a write that the server or the gate refuses.
func (b *blockTest) failWrite(text string) (Result, error) {
	b.t.Helper()
	res, _, err := b.tryWrite(text, BeginOptions{}, false)
	require.Error(b.t, err, text)
	require.Equal(b.t, byte('E'), b.Status())
	return res, err
}

func (b *blockTest) tryRead(text string, o BeginOptions) (Result, string, error) {
	b.t.Helper()
	rows := b.db.NewRows(0)
	res, err := b.Block.Read(context.Background(), o, sql(text), rows)
	return res, string(rows.JSON()), err
}

func (b *blockTest) read(text string) string {
	b.t.Helper()
	res, rows, err := b.tryRead(text, BeginOptions{})
	require.NoError(b.t, err, text)
	require.Equal(b.t, Success, res.State)
	require.Equal(b.t, BasisReadRolledBack, res.Basis)
	return rows
}

func (b *blockTest) commit() Result {
	b.t.Helper()
	res, err := b.Commit(context.Background())
	require.NoError(b.t, err)
	require.Equal(b.t, Success, res.State)
	require.Equal(b.t, BasisCommitAcknowledged, res.Basis)
	require.Equal(b.t, byte('I'), b.Status())
	return res
}

// Savepoint, Release and RollbackTo find a name as PostgreSQL does.
func (b *blockTest) Savepoint(ctx context.Context, name string) error {
	s, err := b.Block.Savepoint(ctx)
	if err == nil {
		b.marks = append(b.marks, mark{name, s})
	}
	return err
}

var errNoMark = errors.New("there is no such savepoint")

func (b *blockTest) find(name string) int {
	for i, m := range slices.Backward(b.marks) {
		if m.name == name {
			return i
		}
	}
	return -1
}

func (b *blockTest) Release(ctx context.Context, name string) error {
	i := b.find(name)
	if i < 0 {
		b.failed = true // it is who calls that finds no such name
		return errNoMark
	}
	err := b.Block.Release(ctx, b.marks[i].Savepoint)
	if err == nil {
		b.marks = b.marks[:i]
	}
	return err
}

func (b *blockTest) RollbackTo(ctx context.Context, name string) error {
	i := b.find(name)
	if i < 0 {
		b.failed = true // it is who calls that finds no such name
		return errNoMark
	}
	err := b.Block.RollbackTo(ctx, b.marks[i].Savepoint)
	if err == nil {
		b.marks = b.marks[:i+1]
	}
	return err
}

func (b *blockTest) savepoint(name string) {
	b.t.Helper()
	require.NoError(b.t, b.Savepoint(context.Background(), name))
}

func (b *blockTest) rollbackTo(name string) {
	b.t.Helper()
	require.NoError(b.t, b.RollbackTo(context.Background(), name))
	require.Equal(b.t, byte('T'), b.Status())
}

func TestTheWritesOfABlockAreCommittedTogetherUnderOneTransactionID(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	b := beginBlock(t, db, BlockOptions{})
	require.Equal(t, `[{"n":0}]`, b.read("SELECT count(*) AS n FROM t"))
	first, err := b.DispatchWrite(context.Background(), BeginOptions{})
	require.NoError(t, err)
	require.NotZero(t, first.XID)
	require.NotZero(t, first.Upstream.BackendPID)
	require.NotEmpty(t, first.Upstream.BackendStart)
	require.Equal(t, Limits{Rows: 10_000, Bytes: 16 << 20, Timeout: 5 * time.Second}, first.Limits)
	res, err := b.Block.Write(context.Background(), sql("INSERT INTO t VALUES (1), (2)"), false, db.NewRows(0))
	require.NoError(t, err)
	require.Equal(t, "INSERT 0 2", res.CommandTag)
	require.EqualValues(t, 2, res.RowCount)

	second, err := b.DispatchWrite(context.Background(), BeginOptions{})
	require.NoError(t, err)
	require.Equal(t, first.XID, second.XID)
	_, err = b.Block.Write(context.Background(), sql("UPDATE t SET a = a + 10"), true, db.NewRows(0))
	require.NoError(t, err)
	require.Equal(t, `[{"a":11},{"a":12}]`, b.read("SELECT a FROM t ORDER BY a"), "a read sees the writes before it")
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"), "nobody else does before COMMIT")
	require.Equal(t, "COMMIT", b.commit().CommandTag)
	require.Equal(t, "23", side.ask("SELECT sum(a) FROM t"))
	require.Equal(t, "committed", side.ask("SELECT pg_xact_status('"+strconv.FormatUint(first.XID, 10)+"')"))
	_, err = b.Commit(context.Background())
	require.Error(t, err, "it has ended")
	require.False(t, b.Rollback())
	require.Zero(t, db.Stats().InUse)
}

func TestARolledBackBlockLeavesNothing(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run("CREATE TABLE t (a int)")
	for range 3 {
		b := beginBlock(t, db, BlockOptions{})
		b.write("INSERT INTO t VALUES (1)")
		require.True(t, b.Rollback())
		require.Equal(t, byte('I'), b.Status())
		require.False(t, b.Rollback(), "it has ended")
	}
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
	require.Zero(t, db.Stats().InUse)
}

func TestABlockOfReadsTakesNoTransactionID(t *testing.T) {
	db, _ := open(t)
	b := beginBlock(t, db, BlockOptions{})
	require.Equal(t, `[{"x":null}]`, b.read("SELECT pg_current_xact_id_if_assigned() AS x"))
	d, err := b.DispatchRead(context.Background(), BeginOptions{Limits: Limits{Rows: 5}})
	require.NoError(t, err)
	require.Zero(t, d.XID)
	require.Equal(t, 5, d.Limits.Rows)
	require.NotZero(t, d.Upstream.BackendPID)
	b.commit()
}

func TestAfterAnErrorOnlyRollbackAndRollbackToGoOn(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int PRIMARY KEY)")
	b := beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO t VALUES (1)")
	b.savepoint(`a "strange" näme`)
	b.write("INSERT INTO t VALUES (2)")
	res, err := b.failWrite("INSERT INTO t VALUES (1)")
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, Failure, res.State)
	require.Equal(t, "23505", res.SQLState)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, BasisRollbackAcknowledged, res.Basis, "the server says that the transaction has failed")

	_, err = b.DispatchWrite(context.Background(), BeginOptions{})
	require.Error(t, err)
	_, _, err = b.tryRead("SELECT 1", BeginOptions{})
	require.Error(t, err)
	require.Error(t, b.Savepoint(context.Background(), "x"))
	require.Error(t, b.Release(context.Background(), `a "strange" näme`))
	require.Error(t, b.RollbackTo(context.Background(), "no such savepoint"))
	require.Equal(t, byte('E'), b.Status())
	b.rollbackTo(`a "strange" näme`)
	b.write("INSERT INTO t VALUES (3)")
	require.NoError(t, b.Release(context.Background(), `a "strange" näme`))
	require.Error(t, b.Release(context.Background(), `a "strange" näme`), "it is gone")
	require.Equal(t, byte('E'), b.Status())
	res, err = b.Commit(context.Background())
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, ReasonRolledBack, res.ReasonCode)
	require.Equal(t, BasisRollbackAcknowledged, res.Basis)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))

	b = beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO t VALUES (1)")
	b.savepoint("s")
	b.failWrite("INSERT INTO t VALUES (1)")
	b.rollbackTo("s")
	b.commit()
	require.Equal(t, "1", side.ask("SELECT count(*) FROM t"))
}

func TestAWriteWithoutItsDispatchIsRefused(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	b := beginBlock(t, db, BlockOptions{})
	_, err := b.Block.Write(context.Background(), sql("INSERT INTO t VALUES (1)"), false, db.NewRows(0))
	require.Equal(t, fault.Internal, fault.CodeOf(err))
	_, err = b.DispatchWrite(context.Background(), BeginOptions{})
	require.NoError(t, err)
	_, _, err = b.tryRead("SELECT 1", BeginOptions{})
	require.Equal(t, fault.Internal, fault.CodeOf(err), "the write is the next statement")
	res, err := b.Commit(context.Background())
	require.Error(t, err, "its evidence is there, and it never ran")
	require.Equal(t, OutcomeAborted, res.Outcome)
}

func TestWhatTheServerReadsAsTwoCommandsIsRefused(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	b := beginBlock(t, db, BlockOptions{})
	res, _ := b.failWrite("INSERT INTO t VALUES (1); COMMIT")
	require.Equal(t, "42601", res.SQLState)
	require.True(t, b.Rollback())
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestAStatementThatEndsTheBlockLeavesItUnknown(t *testing.T) {
	db, _ := open(t)
	b := beginBlock(t, db, BlockOptions{})
	_, err := b.DispatchWrite(context.Background(), BeginOptions{})
	require.NoError(t, err)
	res, err := b.Block.Write(context.Background(), sql("ROLLBACK"), false, db.NewRows(0))
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, Unknown, res.State)
	require.Nil(t, res.Settled)
	require.True(t, b.Lost())
	require.Equal(t, byte('E'), b.Status())
	require.False(t, b.Rollback())
	require.Zero(t, db.Stats().InUse)
}

// viewOf makes a view v whose function does what body says.
func viewOf(side *side, body string) {
	side.run(`CREATE TABLE log (a int);
CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql VOLATILE AS $$ BEGIN ` + body + ` RETURN 1; END $$;
CREATE VIEW v AS SELECT f() AS a`)
}

func TestTheFenceOfAReadHoldsAgainstAFunctionThatWrites(t *testing.T) {
	db, side := open(t)
	viewOf(side, "INSERT INTO log VALUES (1);")
	for _, opts := range []BlockOptions{{}, {ReadOnly: true}} {
		b := beginBlock(t, db, opts)
		if !opts.ReadOnly {
			b.write("INSERT INTO log VALUES (7)")
		}
		b.savepoint("s")
		res, _, err := b.tryRead("SELECT a FROM v", BeginOptions{})
		require.Equal(t, fault.UnsafeReadShape, fault.CodeOf(err))
		require.Equal(t, ReasonReadFence, res.ReasonCode)
		require.Equal(t, "25006", res.SQLState)
		require.Equal(t, BasisReadOnly, res.Basis)
		require.Equal(t, byte('E'), b.Status())
		b.rollbackTo("s")
		b.commit()
	}
	require.Equal(t, "7", side.ask("SELECT sum(a) FROM log"), "the write of the block stands, the function's does not")
}

func TestWhatAReadLeavesInTheSessionIsUndoneByItsFence(t *testing.T) {
	db, side := open(t)
	viewOf(side, "PERFORM set_config('search_path', 'pg_temp', false), set_config('TimeZone', 'Asia/Tokyo', false);")
	for _, opts := range []BlockOptions{{}, {ReadOnly: true}} {
		b := beginBlock(t, db, opts)
		require.Equal(t, `[{"a":1}]`, b.read("SELECT a FROM v"))
		require.Equal(t, `[{"p":"\"public\", pg_temp","z":"UTC"}]`, b.read("SELECT current_setting('search_path') AS p, current_setting('TimeZone') AS z"))
		b.commit()
	}
	require.Zero(t, db.Stats().Quarantined)
}

func TestAWriteAfterAReadMayWriteAgain(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	b := beginBlock(t, db, BlockOptions{})
	for i := range 3 {
		require.Equal(t, `[{"n":`+strconv.Itoa(i)+`}]`, b.read("SELECT count(*) AS n FROM t"))
		b.write("INSERT INTO t VALUES (1)")
	}
	b.commit()
	require.Equal(t, "3", side.ask("SELECT count(*) FROM t"))
}

// Whether a statement writes is the server's word in a READ ONLY block, and its refusal
// the client's doing. No marker can be left there, so the dispatch tells of none.
func TestTheServerRefusesTheWritesOfAReadOnlyBlock(t *testing.T) {
	db, side := openMarked(t)
	b := beginBlock(t, db, BlockOptions{ReadOnly: true})
	d, err := b.DispatchWrite(context.Background(), BeginOptions{ExecutionID: newExecution()})
	require.NoError(t, err)
	require.False(t, d.Marker)
	require.NotZero(t, d.XID)
	_, err = b.Block.Write(context.Background(), sql("SELECT clock_timestamp()"), false, db.NewRows(0))
	require.NoError(t, err)
	res, _, err := b.tryWrite("INSERT INTO t VALUES (1)", BeginOptions{ExecutionID: newExecution()}, false)
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, "25006", fault.Of(err).Details["sqlstate"])
	require.Equal(t, []any{Failure, ReasonDBError, BasisRollbackAcknowledged, "25006"}, []any{res.State, res.ReasonCode, res.Basis, res.SQLState})
	require.Equal(t, byte('E'), b.Status())
	b.Rollback()
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

// A block that the server ends, because it was open or silent for too long, is its
// client's doing: no connection is doubted for it, and the client hears the same
// SQLSTATE whatever the version of the server.
func TestABlockThatTheServerEndsForItsTimeIsNoLostDatabase(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	const busy, idle = "busy", "idle"
	cases := []string{idle}
	if db.ServerMajor() >= 17 {
		cases = append(cases, busy)
	}
	for _, how := range cases {
		for name, next := range map[string]func(b *blockTest) error{
			"read": func(b *blockTest) error {
				res, err := b.Block.Read(context.Background(), BeginOptions{Limits: Limits{Timeout: time.Minute}}, sql("SELECT count(*) FROM generate_series(1, 1000000000)"), b.db.NewRows(0))
				require.Equal(t, []any{Failure, ReasonOvertime, OutcomeAborted}, []any{res.State, res.ReasonCode, res.Outcome})
				return err
			},
			"write": func(b *blockTest) error {
				if how == idle {
					_, err := b.DispatchWrite(context.Background(), BeginOptions{})
					return err
				}
				res, _, err := b.tryWrite("INSERT INTO t SELECT count(*) FROM generate_series(1, 1000000000)", BeginOptions{Limits: Limits{Timeout: time.Minute}}, false)
				require.Equal(t, []any{Failure, ReasonOvertime, OutcomeAborted}, []any{res.State, res.ReasonCode, res.Outcome})
				return err
			},
			"savepoint": func(b *blockTest) error {
				if how == busy {
					return overtimeFault() // nothing of it lasts
				}
				_, err := b.Block.Savepoint(context.Background())
				return err
			},
		} {
			t.Run(how+" "+name, func(t *testing.T) {
				kept := beginBlock(t, db, BlockOptions{}) // so that the pool has two
				o := BlockOptions{Timeout: 300 * time.Millisecond}
				if how == idle {
					o = BlockOptions{IdleTimeout: 50 * time.Millisecond}
				}
				b := beginBlock(t, db, o)
				pid := strconv.Itoa(int(kept.lease.upstream.BackendPID))
				kept.Rollback()
				own := strconv.Itoa(int(b.lease.upstream.BackendPID))
				if how == idle {
					require.Eventually(t, func() bool { return side.ask("SELECT count(*) FROM pg_stat_activity WHERE pid = "+own) == "0" }, 20*time.Second, time.Millisecond)
				}
				f := fault.Of(next(b))
				require.Equal(t, []any{fault.DBQueryFailed, "25P03"}, []any{f.Code, f.Details["sqlstate"]}, "%v", f)
				if name == "savepoint" && how == busy {
					return
				}
				require.True(t, b.Lost())
				_, err := b.Commit(context.Background())
				require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), "and so for all that comes")
				require.Equal(t, "1", side.ask("SELECT count(*) FROM pg_stat_activity WHERE pid = "+pid), "the other connection stays")
			})
		}
	}
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}
