package pgexec

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/postgres"
)

// sentOf begins a write and gives what its dispatch would record.
func sentOf(t testing.TB, db *DB) (*Tx, Sent) {
	t.Helper()
	tx, err := db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err)
	d := tx.Dispatch()
	return tx, Sent{XID: d.XID, Upstream: d.Upstream}
}

func check(t testing.TB, db *DB, sent Sent) Verdict {
	t.Helper()
	v, err := db.Check(context.Background(), sent)
	require.NoError(t, err)
	return v
}

func TestACheckTellsWhatBecameOfATransaction(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	tx, sent := sentOf(t, db)
	_, err := tx.Exec(context.Background(), sql("INSERT INTO t VALUES (1)"), db.NewRows(0))
	require.NoError(t, err)
	require.Equal(t, Verdict{OutcomeInProgress, BasisXactStatus, "in progress"}, check(t, db, sent))
	_, err = tx.Commit(context.Background())
	require.NoError(t, err)
	require.Equal(t, Verdict{OutcomeCommitted, BasisXactStatus, "committed"}, check(t, db, sent))

	tx, gone := sentOf(t, db)
	tx.Rollback()
	require.Equal(t, Verdict{OutcomeAborted, BasisXactStatus, "aborted"}, check(t, db, gone))

	future := sent
	future.XID += 1 << 30
	require.Equal(t, Verdict{OutcomeAborted, BasisXactStatus, "22023"}, check(t, db, future), "this server has no such transaction")
	require.Equal(t, Verdict{OutcomeAborted, BasisReadOnly, ""}, check(t, db, Sent{Read: true, Upstream: sent.Upstream}))
	elsewhere := gone
	elsewhere.Upstream.Database = "another"
	require.Equal(t, OutcomeNotKnowable, check(t, db, elsewhere).Outcome, "whose foreign tables nobody sees here")

	side.run("CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; CREATE FOREIGN TABLE elsewhere (a int) SERVER files OPTIONS (filename '/nowhere')")
	require.Equal(t, Verdict{OutcomeNotKnowable, BasisForeignTables, "aborted"}, check(t, db, gone))
	require.Equal(t, Verdict{OutcomeCommitted, BasisXactStatus, "committed"}, check(t, db, sent))
	side.run("DROP EXTENSION file_fdw CASCADE")
	require.Equal(t, Verdict{OutcomeNotKnowable, BasisForeignTables, "aborted"}, check(t, db, gone), "they were there when it was committed")
	require.Eventually(t, func() bool { // another session's snapshot may still hold the row
		side.run("VACUUM pg_foreign_server")
		return check(t, db, gone) == Verdict{OutcomeAborted, BasisXactStatus, "aborted"}
	}, time.Minute, 50*time.Millisecond)
}

func TestACheckIsNotBelievedUnderAnotherServerOrTimeline(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	tx, sent := sentOf(t, db)
	_, err := tx.Exec(context.Background(), sql("INSERT INTO t VALUES (1)"), db.NewRows(0))
	require.NoError(t, err)
	_, err = tx.Commit(context.Background())
	require.NoError(t, err)

	server, timeline := sent, sent
	server.Upstream.SystemIdentifier = "1"
	v := check(t, db, server)
	require.Equal(t, OutcomeNotKnowable, v.Outcome)
	require.Equal(t, BasisOtherServer, v.Basis)
	timeline.Upstream.Timeline = "00000000"
	v = check(t, db, timeline)
	require.Equal(t, OutcomeNotKnowable, v.Outcome)
	require.Equal(t, BasisOtherTimeline, v.Basis)
	beside := sent // two standbys that were promoted have the same number
	beside.XID += 1 << 30
	beside.Upstream.Host = "192.0.2.1:5432"
	v = check(t, db, beside)
	require.Equal(t, []string{OutcomeNotKnowable, BasisOtherServer}, []string{v.Outcome, v.Basis})
	beside.Upstream.Host, beside.Upstream.CrashMark = sent.Upstream.Host, "2001-01-01 00:00:00+00" // a crash
	require.Equal(t, OutcomeAborted, check(t, db, beside).Outcome)
}

// The id of a transaction that never reached the disk is handed out again after
// a crash: "committed" would be said of somebody else's.
func TestAfterACrashACommittedIDIsNotBelieved(t *testing.T) {
	// Nobody else of the server is to write, or to have written, what the test leaves unwritten.
	cluster := postgres.ClusterForTest(t, map[string]string{"wal_level": "minimal", "max_wal_senders": "0", "autovacuum": "off", "wal_writer_delay": "10s"})
	db, side := openURL(t, cluster.URL("postgres"))
	side.run("CREATE TABLE t (a int)")
	tx, lost := sentOf(t, db)
	_, err := tx.Exec(context.Background(), sql("INSERT INTO t VALUES (1)"), db.NewRows(0))
	require.NoError(t, err)

	require.NoError(t, cluster.Kill())
	tx.Rollback()
	_, err = db.Check(context.Background(), lost)
	require.Contains(t, []fault.Code{fault.DBConnectionFailed, fault.DBUnavailable}, fault.CodeOf(err), "no server, no verdict")
	require.NoError(t, cluster.Restart(context.Background()))

	again := newSide(t, cluster.URL("postgres"))
	for reached := false; !reached; { // the same id, for somebody else
		id, err := strconv.ParseUint(again.ask("SELECT pg_current_xact_id()::text"), 10, 64)
		require.NoError(t, err)
		reached = id >= lost.XID
	}
	var v Verdict
	require.Eventually(t, func() bool {
		v, err = db.Check(context.Background(), lost)
		return err == nil
	}, time.Minute, 20*time.Millisecond)
	require.Equal(t, Verdict{OutcomeNotKnowable, BasisCrashBetween, "committed"}, v)
}

func TestAStatementOutsideATransactionIsKnownOnlyWhileItRuns(t *testing.T) {
	db, side := open(t, unhurried)
	side.run("CREATE TABLE t (a int)")
	side.run("BEGIN; LOCK TABLE t")
	a, err := db.BeginAlone(context.Background(), BeginOptions{})
	require.NoError(t, err)
	sent := Sent{Upstream: a.Dispatch().Upstream}
	ended := make(chan error, 1)
	go func() {
		_, err := a.Exec(context.Background(), sql("VACUUM t"), db.NewRows(0))
		ended <- err
	}()
	newSide(t, side.url).eventually("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'VACUUM%' AND wait_event_type = 'Lock' AND datname = current_database()", "1")
	require.Equal(t, Verdict{OutcomeInProgress, BasisActivity, "active"}, check(t, db, sent))
	side.run("ROLLBACK")
	require.NoError(t, <-ended)
	v := check(t, db, sent)
	require.Equal(t, OutcomeNotKnowable, v.Outcome)
	require.Equal(t, BasisBackendGone, v.Basis)
}
