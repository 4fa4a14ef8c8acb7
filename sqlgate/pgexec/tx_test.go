package pgexec

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

func TestAWriteIsCommittedUnderTheRecordedTransactionID(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	tx, err := db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err)
	d := tx.Dispatch()
	require.NotZero(t, d.XID)
	require.NotZero(t, d.Upstream.BackendPID)
	require.NotEmpty(t, d.Upstream.BackendStart)
	require.Equal(t, Limits{Rows: 10_000, Bytes: 16 << 20, Timeout: 5 * time.Second}, d.Limits)
	require.Nil(t, d.Settings)

	rows := db.NewRows(0)
	_, err = tx.Exec(context.Background(), sql("INSERT INTO t SELECT g FROM generate_series(1, 3) g RETURNING a"), rows)
	require.NoError(t, err)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"), "not before COMMIT")
	res, err := tx.Commit(context.Background())
	require.NoError(t, err)
	require.Equal(t, Success, res.State)
	require.Equal(t, BasisCommitAcknowledged, res.Basis)
	require.Equal(t, "INSERT 0 3", res.CommandTag)
	require.EqualValues(t, 3, res.RowCount)
	require.Nil(t, res.RowsChanged)
	require.Equal(t, `[{"a":1},{"a":2},{"a":3}]`, string(rows.JSON()))
	require.Equal(t, "3", side.ask("SELECT count(*) FROM t"))
	require.Equal(t, "committed", side.ask("SELECT pg_xact_status('"+strconv.FormatUint(d.XID, 10)+"')"))

	_, err = tx.Commit(context.Background())
	require.Error(t, err, "it has ended")
	tx.Rollback()
}

func TestBeginSendsNothingOfTheClientAndRollbackGivesBack(t *testing.T) {
	db, _ := open(t, func(c *Config) { c.PoolMax = 1 })
	for range 3 {
		tx, err := db.Begin(context.Background(), BeginOptions{})
		require.NoError(t, err)
		_, err = tx.Commit(context.Background())
		require.Error(t, err, "there is no statement")
		tx.Rollback()
		tx.Rollback()
	}
	require.Zero(t, db.Stats().InUse)
}

func TestAStatementErrorRollsBack(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	res, _, err := write(t, db, "INSERT INTO t SELECT 10 / (5 - g) FROM generate_series(1, 9) g", Limits{})
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, Failure, res.State)
	require.Equal(t, ReasonDBError, res.ReasonCode)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, BasisRollbackAcknowledged, res.Basis)
	require.Equal(t, "22012", res.SQLState)
	require.Equal(t, "division by zero", res.DBMessage)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
	mustWrite(t, db, "INSERT INTO t VALUES (1)")
}

func TestAWriteThatTheServerTimesOutIsKnownToBeAborted(t *testing.T) {
	db, side := open(t, slack)
	side.run("CREATE TABLE t (a int)")
	res, _, err := write(t, db, "WITH w AS (INSERT INTO t VALUES (1) RETURNING a) SELECT pg_sleep(30) FROM w", brief)
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, OutcomeAborted, fault.Of(err).Details["outcome"])
	require.Equal(t, Unknown, res.State)
	require.Equal(t, StepStatement, res.Step)
	require.Equal(t, CauseTimeout, res.Cause)
	require.Equal(t, &Settled{Outcome: OutcomeAborted, Basis: BasisRollbackAcknowledged, Answered: "57014"}, res.Settled)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestAWriteThatOnlyTheGateTimesOutIsAbortedSinceCommitWasNeverSent(t *testing.T) {
	db, side := open(t, func(c *Config) { c.QueryTimeout = time.Minute; c.DeadlineSlack = 200*time.Millisecond - time.Minute })
	side.run("CREATE TABLE t (a int)")
	res, _, err := write(t, db, "WITH w AS (INSERT INTO t VALUES (1) RETURNING a) SELECT pg_sleep(30) FROM w", Limits{})
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, &Settled{Outcome: OutcomeAborted, Basis: BasisCommitNeverSent}, res.Settled)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
	side.eventually("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gate/writer' AND datname = current_database()", "0")
}

func TestAWriteWhoseBackendIsKilledBeforeCommit(t *testing.T) {
	db, side := open(t, unhurried)
	side.run("CREATE TABLE t (a int)")
	killed := side.killWhenActive("%INSERT INTO t VALUES%pg_sleep%")
	res, _, err := write(t, db, "WITH w AS (INSERT INTO t VALUES (1) RETURNING a) SELECT pg_sleep(60) FROM w", Limits{})
	killed()
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
	require.Equal(t, Failure, res.State)
	require.Equal(t, ReasonCommitNeverSent, res.ReasonCode)
	require.Equal(t, BasisCommitNeverSent, res.Basis)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, "57P01", res.SQLState)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestATransactionThatIdledTooLongIsLostBeforeCommit(t *testing.T) {
	db, side := open(t, func(c *Config) { c.IdleInTxTimeout = 50 * time.Millisecond })
	side.run("CREATE TABLE t (a int)")
	tx, err := db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err)
	side.eventually("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gate/writer' AND datname = current_database()", "0")
	res, err := tx.Exec(context.Background(), sql("INSERT INTO t VALUES (1)"), db.NewRows(0))
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
	require.Equal(t, ReasonCommitNeverSent, res.ReasonCode)
	require.Equal(t, Failure, res.State)
	require.Zero(t, db.Stats().InUse)
}

func TestADeferredConstraintFailsAsPartOfTheStatement(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO t VALUES (1)")
	res, _, err := write(t, db, "INSERT INTO t VALUES (1)", Limits{})
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, "23505", res.SQLState)
	require.Equal(t, BasisRollbackAcknowledged, res.Basis, "it failed before COMMIT was sent")
	require.Equal(t, "1", side.ask("SELECT count(*) FROM t"))
}

func TestDatabaseErrorsByClass(t *testing.T) {
	for _, c := range []struct {
		state     string
		code      fault.Code
		retryable any
	}{
		{"40001", fault.DBQueryFailed, true},
		{"40P01", fault.DBQueryFailed, true},
		{"55P03", fault.DBQueryFailed, true},
		{"23514", fault.DBQueryFailed, false},
		{"P0001", fault.DBQueryFailed, false},
		{"53100", fault.DBUnavailable, nil},
		{"58030", fault.DBUnavailable, nil},
		{"XX001", fault.DBUnavailable, nil},
		{"XX002", fault.DBUnavailable, nil},
		{"XX000", fault.DBQueryFailed, false}, // any client can have one
		{"53400", fault.DBQueryFailed, false}, // a limit that the operator set
		{"53200", fault.DBQueryFailed, false}, // the bound of a process
		{"25006", fault.DBUnavailable, nil},
		{"57P03", fault.DBConnectionFailed, nil},
		{"08006", fault.DBConnectionFailed, nil},
		{"57014", fault.DBQueryTimeout, nil},
	} {
		t.Run(c.state, func(t *testing.T) {
			severity := "ERROR"
			if c.code == fault.DBConnectionFailed {
				severity = "FATAL"
			}
			f := new(Config).statementFault(&pgconn.PgError{Code: c.state, SeverityUnlocalized: severity, Routine: "of_the_server"})
			require.Equal(t, c.code, f.Code)
			require.Equal(t, c.state, f.Details["sqlstate"])
			require.Equal(t, c.retryable, f.Details["retryable"])
		})
	}
}

func TestCallAndDoCannotCommitInside(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int); CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t VALUES (1); COMMIT; INSERT INTO t VALUES (2); END $$")
	for _, text := range []string{"CALL p()", "DO $$ BEGIN INSERT INTO t VALUES (1); COMMIT; END $$"} {
		res, _, err := write(t, db, text, Limits{})
		require.Error(t, err)
		require.Equal(t, "2D000", res.SQLState)
		require.Equal(t, OutcomeAborted, res.Outcome)
	}
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestAStatementThatRefusesABlockFailsWithNothingApplied(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	res, _, err := write(t, db, "VACUUM t", Limits{})
	require.Equal(t, "25001", res.SQLState)
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, OutcomeAborted, res.Outcome)
}

func TestAWriteOverTheRowCapIsRolledBack(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	for _, bulk := range []bool{false, true} {
		res, _, err := write(t, db, "INSERT INTO t SELECT g FROM generate_series(1, 11) g RETURNING a", Limits{Rows: 10, Bulk: bulk})
		require.Equal(t, fault.ResultTooLarge, fault.CodeOf(err))
		require.Equal(t, ReasonResultTooLarge, res.ReasonCode)
		require.Equal(t, OutcomeAborted, res.Outcome)
	}
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
	_, rows, err := write(t, db, "INSERT INTO t SELECT g FROM generate_series(1, 10) g RETURNING 1 AS a", Limits{Rows: 10})
	require.NoError(t, err)
	require.Len(t, rows, 10*len(`{"a":1},`)+1)
}

func TestMaxRowsCountsCascadesTriggersAndEarlierWork(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run(`CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (p int REFERENCES p ON DELETE CASCADE); CREATE TABLE log (t text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES ('x'); RETURN OLD; END $$;
CREATE TRIGGER n AFTER DELETE ON c FOR EACH ROW EXECUTE FUNCTION note();
INSERT INTO p SELECT g FROM generate_series(1, 2) g; INSERT INTO c SELECT 1 + g % 2 FROM generate_series(1, 10) g`)
	most := func(n int64) Limits { return Limits{MaxRows: &n} }

	mustWrite(t, db, "INSERT INTO log SELECT 'earlier' FROM generate_series(1, 50)")
	res, _, err := write(t, db, "DELETE FROM p", most(21))
	require.Equal(t, fault.RowLimitExceeded, fault.CodeOf(err))
	require.Equal(t, map[string]any{"max_rows": int64(21), "rows": int64(22)}, fault.Of(err).Details)
	require.Equal(t, ReasonRowLimit, res.ReasonCode)
	require.EqualValues(t, 22, *res.RowsChanged)
	require.Equal(t, "2", side.ask("SELECT count(*) FROM p"), "rolled back")

	res, _, err = write(t, db, "DELETE FROM p", most(22))
	require.NoError(t, err)
	require.EqualValues(t, 22, *res.RowsChanged, "2 parents, 10 children, 10 notes")
	require.EqualValues(t, 2, res.RowCount)
	res, _, err = write(t, db, "WITH d AS (DELETE FROM log RETURNING t) SELECT count(*) FROM d", most(1000))
	require.NoError(t, err)
	require.EqualValues(t, 60, *res.RowsChanged)
}

func TestMaxRowsIsRefusedWhereNothingCanBeCounted(t *testing.T) {
	db, side := open(t)
	side.run("ALTER DATABASE " + side.ask("SELECT quote_ident(current_database())") + " SET track_counts = off")
	n := int64(5)
	_, err := db.Begin(context.Background(), BeginOptions{Limits: Limits{MaxRows: &n}})
	require.Equal(t, fault.RowLimitExceeded, fault.CodeOf(err))
	require.Equal(t, "not_countable", fault.Of(err).Details["reason"])
	_, err = db.BeginAlone(context.Background(), BeginOptions{Limits: Limits{MaxRows: &n}})
	require.Equal(t, "not_countable", fault.Of(err).Details["reason"])
	require.Zero(t, db.Stats().InUse)
}

func TestAnOwnTimeoutIsSetForTheTransactionAlone(t *testing.T) {
	db, _ := open(t, func(c *Config) { c.PoolMax = 1 })
	tx, err := db.Begin(context.Background(), BeginOptions{Limits: Limits{Bulk: true}})
	require.NoError(t, err)
	require.Equal(t, "300000", tx.Dispatch().Settings["statement_timeout"])
	rows := db.NewRows(0)
	_, err = tx.Exec(context.Background(), sql("SELECT current_setting('statement_timeout') AS s"), rows)
	require.NoError(t, err)
	require.Equal(t, `[{"s":"5min"}]`, string(rows.JSON()))
	_, err = tx.Commit(context.Background())
	require.NoError(t, err)
	_, after, err := write(t, db, "SELECT current_setting('statement_timeout') AS s", Limits{})
	require.NoError(t, err)
	require.Equal(t, `[{"s":"5s"}]`, after)
}

func TestAWriteIsCancelledOnRequestAlone(t *testing.T) {
	db, side := open(t, unhurried)
	side.run("CREATE TABLE t (a int)")
	ctx, hangUp := context.WithCancel(context.Background())
	tx, err := db.Begin(ctx, BeginOptions{ExecutionID: "exe_7"})
	require.NoError(t, err)
	require.Equal(t, CancelNothing, db.Cancel(ctx, "exe_7"), "nothing runs yet")
	hangUp()
	var other, this CancelState
	wait := side.meanwhile("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND application_name = 'gate/writer' AND datname = current_database()", "1", func() {
		other, this = db.Cancel(context.Background(), "exe_8"), db.Cancel(context.Background(), "exe_7")
	})
	res, err := tx.Exec(ctx, sql("WITH w AS (INSERT INTO t VALUES (1) RETURNING a) SELECT pg_sleep(60) FROM w"), db.NewRows(0))
	wait()
	require.Equal(t, CancelNothing, other)
	require.Equal(t, CancelForwarded, this)
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, Failure, res.State)
	require.Equal(t, ReasonCancelled, res.ReasonCode)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, CancelNothing, db.Cancel(context.Background(), "exe_7"), "nor any more")
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

// The host of the database is where a cancel goes, too. The statement ends by its own
// time limit, and the gate ends, however often it was asked.
func TestCancelsAtAHostThatHangsKeepNothing(t *testing.T) {
	_, side := open(t)
	db, _ := openURL(t, through(t, side.url, "pg_sleep(0.25)", hung, 1), func(c *Config) { c.QueryTimeout = 2 * time.Second })
	tx, err := db.Begin(t.Context(), BeginOptions{ExecutionID: "exe_1"})
	require.NoError(t, err)
	results := make(chan Result, 1)
	go func() {
		res, _ := tx.Exec(context.Background(), sql("SELECT pg_sleep(0.25)"), db.NewRows(0))
		results <- res
	}()
	side.eventually("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND application_name = 'gate/writer' AND datname = current_database()", "1")
	asked := make(chan CancelState, 8)
	for range cap(asked) {
		go func() { asked <- db.Cancel(context.Background(), "exe_1") }()
	}
	for range cap(asked) {
		require.Equal(t, CancelUndelivered, <-asked)
	}
	require.Equal(t, 1, db.CancelAll(context.Background()))
	require.Equal(t, ReasonCancelled, (<-results).ReasonCode)
}

func TestEverythingRunningCanBeCancelledAtShutdown(t *testing.T) {
	db, side := open(t, unhurried)
	results := make(chan Result, 2)
	for i := range 2 {
		tx, err := db.Begin(context.Background(), BeginOptions{ExecutionID: strconv.Itoa(i)})
		require.NoError(t, err)
		go func() {
			res, _ := tx.Exec(context.Background(), sql("SELECT pg_sleep(60)"), db.NewRows(0))
			results <- res
		}()
	}
	side.eventually("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND state = 'active' AND application_name = 'gate/writer' AND datname = current_database()", "2")
	require.Equal(t, 2, db.CancelAll(context.Background()))
	require.Equal(t, ReasonCancelled, (<-results).ReasonCode)
	require.Equal(t, ReasonCancelled, (<-results).ReasonCode)
}
