package pgexec

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/postgres"
)

// failAtCommit makes a trigger that SET CONSTRAINTS ALL IMMEDIATE before COMMIT
// cannot reach: a first deferred trigger, run by it, defers a second one anew.
// The body is that of the second.
func failAtCommit(s *side, body string) {
	s.run(fmt.Sprintf(`
CREATE TABLE a (x int); CREATE TABLE b (x int);
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN %s RETURN NULL; END $$;
CREATE FUNCTION relay() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN SET CONSTRAINTS second DEFERRED; INSERT INTO b VALUES (1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER first AFTER INSERT ON a DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION relay();
CREATE CONSTRAINT TRIGGER second AFTER INSERT ON b DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();`, body))
}

func TestACommitThatTheServerRefusesIsAFailure(t *testing.T) {
	db, side := open(t)
	failAtCommit(side, "RAISE EXCEPTION 'too late' USING ERRCODE = '23514';")
	res, _, err := write(t, db, "INSERT INTO a VALUES (1)", Limits{})
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, Failure, res.State)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, "23514", res.SQLState)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM a"))
	require.Zero(t, db.Stats().InUse)
}

// COMMIT of a failed transaction answers with the tag ROLLBACK and no error.
func TestACommitAnsweredWithTheTagRollbackIsAFailure(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	tx, err := db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err)
	_, err = tx.Exec(context.Background(), sql("INSERT INTO t VALUES (1)"), db.NewRows(0))
	require.NoError(t, err)
	refused, err := tx.lease.exchange(context.Background(), time.Now().Add(time.Minute), segment{own("SELECT 1/0")})
	require.NoError(t, err)
	require.NotNil(t, refused)

	res, err := tx.Commit(context.Background())
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, Failure, res.State)
	require.Equal(t, ReasonRolledBack, res.ReasonCode)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestACommitWithoutAnAnswerInTimeIsUnknownAndNotCancelled(t *testing.T) {
	db, side := open(t, unhurried, func(c *Config) { c.CommitTimeout = 100 * time.Millisecond })
	failAtCommit(side, "PERFORM pg_advisory_xact_lock(1);")
	side.run("SELECT pg_advisory_lock(1)")
	res, _, err := write(t, db, "INSERT INTO a VALUES (1)", Limits{})
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.NotContains(t, fault.Of(err).Details, "outcome")
	require.Equal(t, Unknown, res.State)
	require.Equal(t, StepCommit, res.Step)
	require.Equal(t, CauseTimeout, res.Cause)
	require.Nil(t, res.Settled, "nothing is known")
	require.Equal(t, "0", side.ask("SELECT count(*) FROM a"))
	side.run("SELECT pg_advisory_unlock(1)")
	side.eventually("SELECT count(*) FROM a", "1")
}

func TestACommitWhoseBackendIsKilledIsUnknown(t *testing.T) {
	db, side := open(t, unhurried, func(c *Config) { c.CommitTimeout = time.Minute })
	failAtCommit(side, "PERFORM pg_sleep(60);")
	killed := side.killWhenActive("COMMIT")
	res, _, err := write(t, db, "INSERT INTO a VALUES (1)", Limits{})
	killed()
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, Unknown, res.State)
	require.Equal(t, StepCommit, res.Step)
	require.Equal(t, CauseConnectionLost, res.Cause)
	require.Nil(t, res.Settled)
}

func TestADeferredTriggerThatSleepsIsCutByTheStatementsTimeout(t *testing.T) {
	db, side := open(t, slack)
	side.run(`CREATE TABLE a (x int);
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(30); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER one AFTER INSERT ON a DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()`)
	res, _, err := write(t, db, "INSERT INTO a VALUES (1)", brief)
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, &Settled{Outcome: OutcomeAborted, Basis: BasisRollbackAcknowledged, Answered: "57014"}, res.Settled)
}

func TestACommitThatWaitsForAStandbyThatIsGone(t *testing.T) {
	cluster := postgres.ClusterForTest(t, map[string]string{"synchronous_standby_names": "gone"})
	url := cluster.URL("postgres")
	setup := newSide(t, url)
	setup.run("SET synchronous_commit = local; CREATE TABLE t (a int)")

	db, side := openURL(t, url, func(c *Config) { c.CommitTimeout = 200 * time.Millisecond })
	tx, err := db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err)
	_, err = tx.Exec(context.Background(), sql("INSERT INTO t VALUES (1)"), db.NewRows(0))
	require.NoError(t, err)
	res, err := tx.Commit(context.Background())
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, Unknown, res.State)
	const waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
	side.eventually(waiting, "1") // it was not cancelled: it still waits, or only begins to
	xid := strconv.FormatUint(tx.Dispatch().XID, 10)
	require.Equal(t, "in progress", side.ask("SELECT pg_xact_status('"+xid+"')"))

	side.ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	side.eventually("SELECT pg_xact_status('"+xid+"')", "committed")

	patient, _ := openURL(t, url, func(c *Config) { c.CommitTimeout = time.Minute })
	wait := side.meanwhile("SELECT count(*) FROM (SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep') x", "1", func() {})
	// More notices than are handed on do not keep the server's own out.
	res, _, err = write(t, patient, "DO $$ BEGIN INSERT INTO t VALUES (2); FOR n IN 1..40 LOOP RAISE WARNING 'note'; END LOOP; END $$", Limits{})
	wait()
	require.NoError(t, err, "the wait ended, the commit stands")
	require.Equal(t, Success, res.State)
	require.Equal(t, []string{WarningNotReplicated}, res.Warnings)
	require.Equal(t, "2", side.ask("SELECT count(*) FROM t"))
}

// A function may switch off that a commit waits for the disk, up to the deferred
// checks, and no word of the text tells it.
func TestACommitLastsWhateverAFunctionSet(t *testing.T) {
	db, side := open(t)
	failAtCommit(side, "INSERT INTO seen VALUES (current_setting('synchronous_commit'));")
	side.run(`CREATE TABLE seen (v text);
CREATE FUNCTION hurry() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('synchronous_commit', 'off', true); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER hurry AFTER INSERT ON a DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hurry();
CREATE TABLE plain (a int, s text)`)
	_, _, err := write(t, db, "INSERT INTO a VALUES (1)", Limits{})
	require.NoError(t, err)
	_, _, err = write(t, db, "WITH s AS (SELECT set_config('synchronous_commit', 'off', true)) INSERT INTO a SELECT 1 FROM s", Limits{})
	require.NoError(t, err)
	b := beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO a VALUES (2)")
	b.commit()
	require.Equal(t, "on,on,on", side.ask("SELECT string_agg(v, ',') FROM seen"))
}
