package pgexec

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// alone runs a statement outside a transaction.
func alone(t testing.TB, db *DB, text string, lim Limits) (Result, error) {
	t.Helper()
	a, err := db.BeginAlone(context.Background(), BeginOptions{ExecutionID: "exe_alone", Limits: lim})
	require.NoError(t, err)
	defer a.Close()
	return a.Exec(context.Background(), sql(text), db.NewRows(0))
}

func TestAStatementThatRefusesABlockRunsAlone(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	a, err := db.BeginAlone(context.Background(), BeginOptions{})
	require.NoError(t, err)
	require.Zero(t, a.Dispatch().XID)
	require.NotZero(t, a.Dispatch().Upstream.BackendPID)
	res, err := a.Exec(context.Background(), sql("CREATE INDEX CONCURRENTLY i ON t (a)"), db.NewRows(0))
	require.NoError(t, err)
	require.Equal(t, Success, res.State)
	require.Equal(t, BasisAloneCompleted, res.Basis)
	require.Equal(t, "CREATE INDEX", res.CommandTag)
	require.Equal(t, "t", side.ask("SELECT indisvalid FROM pg_index WHERE indexrelid = 'i'::regclass"))
	_, err = a.Exec(context.Background(), sql("VACUUM"), db.NewRows(0))
	require.Error(t, err, "one statement each")
	require.Zero(t, db.Stats().InUse)
}

func TestAStatementAloneThatFailsMayHaveLeftSomething(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (1)")
	res, err := alone(t, db, "CREATE UNIQUE INDEX CONCURRENTLY i ON t (a)", Limits{})
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, OutcomePartialPossible, fault.Of(err).Details["outcome"])
	require.Equal(t, Failure, res.State)
	require.Equal(t, OutcomePartialPossible, res.Outcome)
	require.Equal(t, "23505", res.SQLState)
	require.Equal(t, "f", side.ask("SELECT indisvalid FROM pg_index WHERE indexrelid = 'i'::regclass"), "an invalid index stays")
}

// The server sends the tag of what begins transactions of its own before it commits
// the last of them, at the Sync.
func TestAStatementAloneWhoseLastCommitFailsIsNoSuccess(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE TABLE t (a int); CREATE INDEX old ON t (a); CREATE TABLE none (id int PRIMARY KEY);
		CREATE TABLE log (id int REFERENCES none DEFERRABLE INITIALLY DEFERRED);
		CREATE TABLE whole (a int) PARTITION BY LIST (a); CREATE TABLE part PARTITION OF whole FOR VALUES IN (1);
		CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (77); END $$;
		CREATE EVENT TRIGGER noting ON ddl_command_end EXECUTE FUNCTION note()`)
	for _, text := range []string{"CREATE INDEX CONCURRENTLY i ON t (a)", "DROP INDEX CONCURRENTLY old", "ALTER TABLE whole DETACH PARTITION part CONCURRENTLY"} {
		res, err := alone(t, db, text, Limits{})
		require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), text)
		require.Equal(t, OutcomePartialPossible, fault.Of(err).Details["outcome"], text)
		require.Equal(t, Failure, res.State, text)
		require.Equal(t, "23503", res.SQLState, text)
	}
	require.Equal(t, "f", side.ask("SELECT indisvalid FROM pg_index WHERE indexrelid = 'i'::regclass"))
	require.Equal(t, "1", side.ask("SELECT count(*) FROM pg_class WHERE relname = 'old'"))
	require.Equal(t, "t", side.ask("SELECT inhdetachpending FROM pg_inherits"))
}

// That a table is partitioned stands in no text: REINDEX and CLUSTER of one are told
// what the gate can run.
func TestUpkeepOfAPartitionedTableIsToldItsOtherForm(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE TABLE whole (a int) PARTITION BY LIST (a); CREATE INDEX i ON whole (a);
		CREATE TABLE part PARTITION OF whole FOR VALUES IN (1); CREATE INDEX j ON part (a)`)
	for _, text := range []string{"REINDEX TABLE whole", "REINDEX INDEX i", "CLUSTER whole USING i"} {
		_, _, err := write(t, db, text, Limits{})
		require.Equal(t, "25001", fault.Of(err).Details["sqlstate"], text)
		require.Equal(t, partitionedHint, fault.Of(err).Details["hint"], text)
		said, ok := ServerErrorOf(err)
		require.True(t, ok)
		require.Equal(t, partitionedHint, said.Hint, text)
	}
	for _, text := range []string{"REINDEX TABLE CONCURRENTLY whole", "REINDEX INDEX CONCURRENTLY i"} {
		_, err := alone(t, db, text, Limits{})
		require.NoError(t, err, text)
	}
	for _, text := range []string{"REINDEX TABLE part", "CLUSTER part USING j"} {
		_, _, err := write(t, db, text, Limits{})
		require.NoError(t, err, text)
	}
}

func TestAStatementAloneThatTimesOutOrIsLostIsUnknown(t *testing.T) {
	db, side := open(t, func(c *Config) { c.LockTimeout = time.Minute })
	side.run("CREATE TABLE t (a int)")
	side.run("BEGIN; LOCK TABLE t")
	defer side.run("ROLLBACK")

	res, err := alone(t, db, "VACUUM t", brief)
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, Unknown, res.State)
	require.Equal(t, CauseTimeout, res.Cause)
	require.Nil(t, res.Settled)

	killed := side.killWhenActive("VACUUM (FULL)%")
	res, err = alone(t, db, "VACUUM (FULL) t", Limits{Bulk: true})
	killed()
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, Unknown, res.State)
	require.Equal(t, CauseConnectionLost, res.Cause)
	require.Nil(t, res.Settled)
}

func TestAStatementAloneCanBeCancelled(t *testing.T) {
	db, side := open(t, unhurried)
	side.run("CREATE TABLE t (a int)")
	side.run("BEGIN; LOCK TABLE t")
	defer side.run("ROLLBACK")
	wait := side.meanwhile("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'VACUUM%' AND wait_event_type = 'Lock' AND datname = current_database()", "1",
		func() { db.Cancel(context.Background(), "exe_alone") })
	res, err := alone(t, db, "VACUUM t", Limits{})
	wait()
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, ReasonCancelled, res.ReasonCode)
	require.Equal(t, OutcomePartialPossible, res.Outcome)
}

func TestSettingsOfAStatementAloneEndWithIt(t *testing.T) {
	db, _ := open(t, func(c *Config) { c.PoolMax = 1 })
	a, err := db.BeginAlone(context.Background(), BeginOptions{Limits: Limits{Bulk: true}})
	require.NoError(t, err)
	require.Equal(t, "300000", a.Dispatch().Settings["statement_timeout"])
	rows := db.NewRows(0)
	_, err = a.Exec(context.Background(), sql("SHOW statement_timeout"), rows)
	require.NoError(t, err)
	require.Equal(t, `[{"statement_timeout":"5min"}]`, string(rows.JSON()))
	_, after, err := write(t, db, "SHOW statement_timeout", Limits{})
	require.NoError(t, err)
	require.Equal(t, `[{"statement_timeout":"5s"}]`, after)
}
