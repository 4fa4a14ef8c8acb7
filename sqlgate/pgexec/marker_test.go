package pgexec

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/postgres"
)

const markers = "gate.execution_marker"

const markersDDL = `CREATE SCHEMA gate; CREATE TABLE gate.execution_marker (execution_id uuid PRIMARY KEY,
 kind text NOT NULL CHECK (kind IN ('exec','fence')), at timestamptz NOT NULL DEFAULT now()); CREATE TABLE t (a int)`

func marked(c *Config) { c.MarkerTable = markers }

// openMarked is a DB with a marker table and a table t.
func openMarked(t testing.TB, change ...func(*Config)) (*DB, *side) {
	db, side := open(t, append(change, marked)...)
	side.run(markersDDL)
	return db, side
}

func newExecution() string { return "exe_" + uuid.Must(uuid.NewV7()).String() }

// begin opens a marked write and gives what its dispatch would record.
func begin(t testing.TB, db *DB) (*Tx, Sent) {
	t.Helper()
	id := newExecution()
	tx, err := db.Begin(context.Background(), BeginOptions{ExecutionID: id})
	require.NoError(t, err)
	d := tx.Dispatch()
	require.True(t, d.Marker)
	return tx, Sent{ExecutionID: id, At: time.Now(), Marker: d.Marker, XID: d.XID, Upstream: d.Upstream}
}

func insert(t testing.TB, db *DB, tx *Tx) {
	t.Helper()
	_, err := tx.Exec(context.Background(), sql("INSERT INTO t VALUES (1)"), db.NewRows(0))
	require.NoError(t, err)
}

// elsewhere is the same dispatch as seen after a failover.
func elsewhere(s Sent) Sent {
	s.Upstream.Timeline = "00000000"
	return s
}

// crashed is the same dispatch as seen after a crash of the server.
func crashed(s Sent) Sent {
	s.Upstream.CrashMark = "2001-01-01 00:00:00+00"
	return s
}

func TestAMarkerDecidesWhereTheCommitLogCannotBeBelieved(t *testing.T) {
	db, side := openMarked(t)
	tx, stands := begin(t, db)
	insert(t, db, tx)
	require.Equal(t, Verdict{OutcomeInProgress, BasisMarker, "55P03"}, check(t, db, stands))
	_, err := tx.Commit(context.Background())
	require.NoError(t, err)
	tx, gone := begin(t, db)
	insert(t, db, tx)
	tx.Rollback()

	for name, seen := range map[string]func(Sent) Sent{"same life": func(s Sent) Sent { return s }, "failover": elsewhere, "crash": crashed} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, Verdict{OutcomeCommitted, BasisMarker, markerExec}, check(t, db, seen(stands)))
			require.Equal(t, Verdict{OutcomeAborted, BasisMarker, markerFence}, check(t, db, seen(gone)))
		})
	}
	beside := func(s Sent) Sent { // at a server that was promoted beside this one
		s.Upstream.Host = "192.0.2.1:5432"
		return s
	}
	require.Equal(t, Verdict{OutcomeCommitted, BasisMarker, markerExec}, check(t, db, beside(stands)))
	missing := gone
	missing.ExecutionID = newExecution()
	require.Equal(t, OutcomeNotKnowable, check(t, db, beside(missing)).Outcome)
	require.Equal(t, "2", side.ask("SELECT count(*) FROM "+markers), "and no fence is put there")
	require.Equal(t, "1", side.ask("SELECT count(*) FROM t"))
	other := stands
	other.Upstream.SystemIdentifier = "1"
	require.Equal(t, BasisOtherServer, check(t, db, other).Basis, "the table of another cluster is another table")
	other = stands
	other.ExecutionID, other.Upstream.Database = newExecution(), "elsewhere"
	require.Equal(t, BasisXactStatus, check(t, db, other).Basis, "and so is that of another database, though the commit log is the same")
}

// What a check called aborted cannot come late: its id is taken.
func TestAFencedWriteCannotComeLate(t *testing.T) {
	db, _ := openMarked(t)
	id := newExecution()
	at := time.Now()
	sent := Sent{ExecutionID: id, At: at, Marker: true, XID: 3, Upstream: Upstream{SystemIdentifier: systemIdentifier(t, db), Timeline: "00000000"}}
	require.Equal(t, OutcomeAborted, check(t, db, sent).Outcome)
	_, err := db.Begin(context.Background(), BeginOptions{ExecutionID: id})
	require.Equal(t, fault.DBUnavailable, fault.CodeOf(err))
	require.Equal(t, "23505", fault.Of(err).Details["sqlstate"])
	require.Equal(t, Verdict{OutcomeAborted, BasisMarker, markerFence}, check(t, db, sent), "asked again it says the same")
}

// A write that is under way is waited for, however short the time of statements is.
func TestACheckWaitsForAWriteLongerThanAStatementMay(t *testing.T) {
	db, side := openMarked(t)
	tx, sent := begin(t, db)
	insert(t, db, tx)
	hasty, _ := openURL(t, side.url, func(c *Config) { c.MarkerTable, c.QueryTimeout = markers, time.Second })
	require.Equal(t, Verdict{OutcomeInProgress, BasisMarker, "55P03"}, check(t, hasty, sent))
	tx.Rollback()
}

func systemIdentifier(t testing.TB, db *DB) string {
	t.Helper()
	up := upstream(t, db)
	return up.SystemIdentifier
}

func TestAMissingMarkerOfACommittedWriteProvesNothing(t *testing.T) {
	db, side := openMarked(t)
	tx, sent := begin(t, db)
	insert(t, db, tx)
	_, err := tx.Commit(context.Background())
	require.NoError(t, err)
	side.run("DELETE FROM " + markers)
	require.Equal(t, Verdict{OutcomeNotKnowable, BasisMarkerMissing, "committed"}, check(t, db, sent))
	require.Equal(t, "0", side.ask("SELECT count(*) FROM "+markers), "and no fence is left")

	old := sent
	old.At = time.Now().Add(-31 * 24 * time.Hour)
	require.Equal(t, Verdict{OutcomeNotKnowable, BasisMarkerExpired, ""}, check(t, db, old))
	side.run("INSERT INTO " + markers + " VALUES ('" + string(markerID(sent.ExecutionID)) + "', 'exec')")
	require.Equal(t, OutcomeCommitted, check(t, db, old).Outcome, "a row that is still there proves as much as ever")
}

func TestWithoutAMarkerTheCommitLogDecides(t *testing.T) {
	db, side := openMarked(t)
	side.run("INSERT INTO t VALUES (0)")
	tx, sent := begin(t, db)
	insert(t, db, tx)
	_, err := tx.Commit(context.Background())
	require.NoError(t, err)
	sent.Marker = false
	require.Equal(t, Verdict{OutcomeCommitted, BasisXactStatus, "committed"}, check(t, db, sent))
	require.Equal(t, OutcomeNotKnowable, check(t, db, elsewhere(sent)).Outcome)
}

func TestAWriteWhoseMarkerIsNotTakenIsNotSent(t *testing.T) {
	db, side := openMarked(t)
	for name, spoil := range map[string]string{
		"no table":  "DROP TABLE gate.execution_marker",
		"swallowed": "CREATE RULE quiet AS ON INSERT TO gate.execution_marker DO INSTEAD NOTHING",
	} {
		t.Run(name, func(t *testing.T) {
			side.run(spoil)
			_, err := db.Begin(context.Background(), BeginOptions{ExecutionID: newExecution()})
			require.Equal(t, fault.DBUnavailable, fault.CodeOf(err))
			require.Equal(t, markers, fault.Of(err).Details["marker_table"])
			require.Zero(t, db.Stats().InUse)
			_, err = db.CheckMarker(context.Background())
			require.ErrorIs(t, err, ErrMarkerUnusable)
			side.run("DROP SCHEMA gate CASCADE; DROP TABLE t; " + markersDDL)
		})
	}
}

// A client's short time is its statement's: the marker and the count have the gate's.
func TestTheMarkerIsNotLeftUnderTheStatementsTime(t *testing.T) {
	db, side := openMarked(t)
	side.run(`CREATE FUNCTION gate.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.6); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE INSERT ON gate.execution_marker FOR EACH ROW EXECUTE FUNCTION gate.slow()`)
	tx, err := db.Begin(context.Background(), BeginOptions{ExecutionID: newExecution(), Limits: Limits{Timeout: 300 * time.Millisecond}})
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = tx.Exec(context.Background(), sql("SELECT pg_sleep(60)"), db.NewRows(0))
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
}

func TestAMarkerIsNoRowOfTheStatement(t *testing.T) {
	db, _ := openMarked(t)
	one := int64(1)
	tx, err := db.Begin(context.Background(), BeginOptions{ExecutionID: newExecution(), Limits: Limits{MaxRows: &one}})
	require.NoError(t, err)
	res, err := tx.Exec(context.Background(), sql("INSERT INTO t VALUES (1)"), db.NewRows(0))
	require.NoError(t, err)
	require.EqualValues(t, 1, *res.RowsChanged)
	_, err = tx.Commit(context.Background())
	require.NoError(t, err)
}

// The COMMIT of a fence can be lost like any other: the next check finds it.
func TestALostFenceIsAskedAbout(t *testing.T) {
	for _, kind := range []lossKind{lostBefore, lostAfter} {
		t.Run(kind.String(), func(t *testing.T) {
			raw := postgres.ForTest(t)
			through := through(t, raw, "COMMIT", kind, 1)
			side := newSide(t, raw)
			side.run(markersDDL)
			db, _ := openURL(t, through, marked)
			tx, sent := begin(t, db)
			tx.Rollback()
			_, err := db.Check(context.Background(), sent)
			require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
			require.Eventually(t, func() bool {
				v, err := db.Check(context.Background(), sent)
				return err == nil && v == Verdict{OutcomeAborted, BasisMarker, markerFence}
			}, 20*time.Second, 20*time.Millisecond)
		})
	}
}

func TestTheMarkerTableIsLookedAt(t *testing.T) {
	const head = "CREATE SCHEMA gate; CREATE TABLE gate.execution_marker "
	for name, c := range map[string]struct{ ddl, wrong string }{
		"nothing there":       {"SELECT 1", "there is no table"},
		"a view":              {"CREATE SCHEMA gate; CREATE VIEW gate.execution_marker AS SELECT NULL::uuid AS execution_id, ''::text AS kind, now() AS at", "ordinary, logged"},
		"lost in a crash":     {"CREATE SCHEMA gate; CREATE UNLOGGED TABLE gate.execution_marker (execution_id uuid PRIMARY KEY, kind text, at timestamptz)", "ordinary, logged"},
		"any row twice":       {head + "(execution_id uuid, kind text, at timestamptz)", "unique index"},
		"checked at the end":  {head + "(execution_id uuid UNIQUE DEFERRABLE, kind text, at timestamptz)", "unique index"},
		"unique with another": {head + "(execution_id uuid, kind text, at timestamptz, UNIQUE (execution_id, kind))", "unique index"},
		"unique in part":      {head + "(execution_id uuid, kind text, at timestamptz); CREATE UNIQUE INDEX ON gate.execution_marker (execution_id) WHERE kind = 'exec'", "unique index"},
		"another column":      {head + "(execution_id uuid PRIMARY KEY, sort text, at timestamptz)", "lacks"},
		"a trigger":           {head + "(execution_id uuid PRIMARY KEY, kind text, at timestamptz); CREATE TRIGGER q BEFORE INSERT ON gate.execution_marker FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()", "triggers"},
		"fit":                 {markersDDL, ""},
	} {
		t.Run(name, func(t *testing.T) {
			db, side := open(t, marked)
			side.run(c.ddl)
			warning, err := db.CheckMarker(context.Background())
			if c.wrong == "" {
				require.NoError(t, err)
				require.Contains(t, warning, "may change or remove rows", "a superuser's")
				return
			}
			require.ErrorIs(t, err, ErrMarkerUnusable)
			require.ErrorContains(t, err, c.wrong)
		})
	}
}

// The statements that are printed for the operator make a table that is fit, for
// a role that may do no more than it needs.
func TestTheMarkerDDLMakesATableThatIsFit(t *testing.T) {
	url := postgres.ForTest(t)
	root := newSide(t, url)
	role, owner := "marker_"+uuid.NewString()[:8], "gate_owner"
	root.run(`DO $$ BEGIN IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gate_owner') THEN DROP ROLE gate_owner; END IF; END $$`)
	root.run("CREATE ROLE " + role + " LOGIN PASSWORD 'secret'")
	t.Cleanup(func() {
		root.run("DROP OWNED BY " + role + ", " + owner + "; DROP ROLE " + role + "; DROP ROLE " + owner)
	})
	login := withUser(t, url, role, "secret")
	db, _ := openURL(t, login, marked)
	root.run("CREATE TABLE t (a int); GRANT INSERT ON t TO " + role)
	_, err := db.CheckMarker(context.Background())
	require.ErrorIs(t, err, ErrMarkerUnusable)
	root.run(MarkerDDL(markers, 30, []string{RoleOf(login)}))
	warning, err := db.CheckMarker(context.Background())
	require.NoError(t, err)
	require.Empty(t, warning)
	tx, sent := begin(t, db)
	insert(t, db, tx)
	_, err = tx.Commit(context.Background())
	require.NoError(t, err)
	require.Equal(t, OutcomeCommitted, check(t, db, sent).Outcome)
	root.run("REVOKE INSERT ON " + markers + " FROM " + role)
	_, err = db.CheckMarker(context.Background())
	require.ErrorContains(t, err, "may not SELECT and INSERT")
}

func TestNamesOfMarkerTables(t *testing.T) {
	for name, fine := range map[string]bool{
		"gate.execution_marker": true, "public._m1": true, "": false, "execution_marker": false, "a.b.c": false, "Gate.m": false, `"g".m`: false,
		"pg_catalog.m": false, "information_schema.m": false, "gate.m;": false, "gate. m": false,
	} {
		require.Equal(t, fine, MarkerTableFault(name) == "", name)
	}
}
