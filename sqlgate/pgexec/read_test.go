package pgexec

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

func TestAReadReturnsRowsAndLeavesNoTransaction(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int, b text); INSERT INTO t VALUES (1, 'x'), (2, NULL)")

	rows := db.NewRows(0)
	res, err := db.Read(context.Background(), "", sql("SELECT a, b, a AS b FROM t ORDER BY a"), Limits{}, rows)
	require.NoError(t, err)
	require.Equal(t, `[{"a":1,"b":"x","b_2":1},{"a":2,"b":null,"b_2":2}]`, string(rows.JSON()))
	require.Equal(t, `[{"name":"a","label":"a","type":"int4","type_oid":23,"modifier":-1},{"name":"b","label":"b","type":"text","type_oid":25,"modifier":-1},{"name":"b_2","label":"b","type":"int4","type_oid":23,"modifier":-1}]`, string(rows.ColumnsJSON()))
	require.Equal(t, "SELECT 2", res.CommandTag)
	require.EqualValues(t, 2, res.RowCount)
	require.EqualValues(t, 5, res.Bytes)
	require.Equal(t, BasisReadRolledBack, res.Basis)
	require.Positive(t, res.Duration)
	require.Equal(t, "idle", side.ask("SELECT state FROM pg_stat_activity WHERE application_name = 'gate/reader' AND datname = current_database()"))
}

func TestTheFenceStopsAWriteThatWasTakenForARead(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int); CREATE FUNCTION sneak() RETURNS int LANGUAGE sql AS 'INSERT INTO t VALUES (1) RETURNING a'")

	res, _, err := read(t, db, "SELECT sneak()")
	require.Equal(t, fault.UnsafeReadShape, fault.CodeOf(err))
	require.Equal(t, Failure, res.State)
	require.Equal(t, ReasonReadFence, res.ReasonCode)
	require.Equal(t, "25006", res.SQLState)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
	require.Equal(t, `[{"?column?":1}]`, mustRead(t, db, "SELECT 1"), "the connection serves on")
}

// What READ ONLY lets through is undone by ROLLBACK, or by the DISCARD ALL that
// follows an error.
func TestWhatReadOnlyLetsThroughIsUndone(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run("CREATE SEQUENCE s")
	side.run("CREATE TABLE real (a int); INSERT INTO real VALUES (7)")

	mustRead(t, db, "SELECT set_config('search_path', 'pg_catalog', false), set_config('DateStyle', 'German', false)")
	require.Equal(t, `[{"a":7,"now":"2020-02-01"}]`, mustRead(t, db, "SELECT a, date '2020-02-01' AS now FROM real"), "a setting is rolled back")
	read(t, db, "CREATE TEMPORARY TABLE real (a int)")
	require.Equal(t, `[{"a":7}]`, mustRead(t, db, "SELECT a FROM real"), "so is a temporary table")
	_, _, err := read(t, db, "SELECT nextval('s')")
	require.Error(t, err)
	require.Equal(t, "1", side.ask("SELECT nextval('s')"))

	mustRead(t, db, "SELECT pg_advisory_lock(42)")
	require.Equal(t, "1", side.ask(advisoryLocks), "a session lock outlives ROLLBACK ...")
	_, _, err = read(t, db, "SELECT 1/0")
	require.Error(t, err)
	mustRead(t, db, "SELECT 1")
	require.Equal(t, "0", side.ask(advisoryLocks), "... until the next discard")
}

func TestAReaderIsDiscardedEveryHundredUses(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	mustRead(t, db, "SELECT pg_advisory_lock(43)")
	for range readerUses {
		mustRead(t, db, "SELECT 1")
	}
	require.Equal(t, "0", side.ask(advisoryLocks))
}

func TestAReadThatTheServerTimesOut(t *testing.T) {
	db, _ := open(t, slack)
	res, err := db.Read(context.Background(), "", sql("SELECT pg_sleep(30)"), brief, db.NewRows(0))
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, OutcomeAborted, fault.Of(err).Details["outcome"])
	require.Equal(t, Unknown, res.State)
	require.Equal(t, CauseTimeout, res.Cause)
	require.Equal(t, StepStatement, res.Step)
	require.Equal(t, &Settled{Outcome: OutcomeAborted, Basis: BasisReadOnly, Answered: "57014"}, res.Settled)
}

func TestAReadThatTheGateTimesOutIsCancelledAndItsConnectionClosed(t *testing.T) {
	db, side := open(t, func(c *Config) { c.QueryTimeout = time.Minute; c.DeadlineSlack = 150*time.Millisecond - time.Minute })
	res, _, err := read(t, db, "SELECT pg_sleep(30)")
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, Unknown, res.State)
	require.Equal(t, &Settled{Outcome: OutcomeAborted, Basis: BasisReadOnly}, res.Settled)
	side.eventually("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gate/reader' AND datname = current_database()", "0")
}

func TestAClientThatHangsUpCancelsItsRead(t *testing.T) {
	db, side := open(t, unhurried)
	ctx, hangUp := context.WithCancel(context.Background())
	wait := side.meanwhile("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active' AND datname = current_database()", "1", hangUp)
	res, err := db.Read(ctx, "exe_1", sql("SELECT pg_sleep(60)"), Limits{}, db.NewRows(0))
	wait()
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, Failure, res.State)
	require.Equal(t, ReasonCancelled, res.ReasonCode)
	require.Empty(t, db.running)

	res, err = db.Read(ctx, "exe_2", sql("SELECT 1"), Limits{}, db.NewRows(0))
	require.Error(t, err, "nothing is sent for a client that is gone already")
	require.Equal(t, Failure, res.State)
	require.Equal(t, `[{"?column?":2}]`, mustRead(t, db, "SELECT 2"))
}

func TestAReadWhoseBackendIsKilled(t *testing.T) {
	db, side := open(t, unhurried)
	killed := side.killWhenActive("SELECT pg_sleep%")
	res, _, err := read(t, db, "SELECT pg_sleep(60)")
	killed()
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
	require.Equal(t, Failure, res.State)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, BasisReadOnly, res.Basis)
	require.Equal(t, "57P01", res.SQLState)
	require.Equal(t, `[{"?column?":1}]`, mustRead(t, db, "SELECT 1"))
}

func TestAResultOverItsLimitsIsRefused(t *testing.T) {
	db, _ := open(t, func(c *Config) { c.MaxResultBytes = 1 << 20 })
	for _, c := range []struct {
		name, sql string
		limits    Limits
	}{
		{"one row more than allowed", "SELECT g FROM generate_series(1, 11) g", Limits{Rows: 10}},
		{"one row more under bulk", "SELECT g FROM generate_series(1, 11) g", Limits{Rows: 10, Bulk: true}},
		{"endless rows", "SELECT generate_series(1, 1000000000)", Limits{Bulk: true}},
		{"more bytes than allowed", "SELECT repeat('x', 600) FROM generate_series(1, 2)", Limits{Bytes: 1000}},
		{"more JSON than allowed", "SELECT repeat(E'\\x01', 300000)", Limits{}},
		{"one message that is too long", "SELECT repeat('x', 20000000)", Limits{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, err := db.Read(context.Background(), "", sql(c.sql), c.limits, db.NewRows(0))
			require.Equal(t, fault.ResultTooLarge, fault.CodeOf(err))
			require.Equal(t, Failure, res.State)
			require.Equal(t, ReasonResultTooLarge, res.ReasonCode)
			require.Equal(t, OutcomeAborted, res.Outcome)
			require.LessOrEqual(t, res.Bytes, int64(1<<20), "what is over is not read to its end")
		})
	}
	res, err := db.Read(context.Background(), "", sql("SELECT g FROM generate_series(1, 10) g"), Limits{Rows: 10}, db.NewRows(0))
	require.NoError(t, err, "just as many as allowed")
	require.EqualValues(t, 10, res.RowCount)
	require.Zero(t, db.Stats().InUse)
}

func TestParametersReachTheServerAsGiven(t *testing.T) {
	db, _ := open(t)
	rows := db.NewRows(0)
	_, err := db.Read(context.Background(), "", Statement{
		SQL: "SELECT $1 AS n, $2 AS t, $3 AS nil, $4 AS bin", ParamOIDs: []uint32{23, 25, 25, 23},
		Params: [][]byte{[]byte("42"), []byte("a'b"), nil, {0, 0, 1, 0}}, ParamFormats: []int16{0, 0, 0, 1},
	}, Limits{}, rows)
	require.NoError(t, err)
	require.Equal(t, `[{"n":42,"t":"a'b","nil":null,"bin":256}]`, string(rows.JSON()))
}

func TestBytesThatAreNoneOfTheirTypeAreTheStatementsFault(t *testing.T) {
	db, _ := open(t)
	short := Statement{SQL: "SELECT $1", ParamOIDs: []uint32{23}, Params: [][]byte{{0, 3}}, ParamFormats: []int16{1}}
	res, err := db.Read(context.Background(), "", short, Limits{}, db.NewRows(0))
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), "the server calls it a violation of the protocol, and stays: %v", err)
	require.Equal(t, "08P01", res.SQLState)
	_, _, err = read(t, db, "SELECT 1")
	require.NoError(t, err)
}

func TestTheServerRefusesASecondCommandInAText(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int)")
	res, _, err := read(t, db, "SELECT 1; INSERT INTO t VALUES (1)")
	require.Equal(t, "42601", res.SQLState)
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestARefusalIsHandedOnWithoutValues(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (77)")

	_, _, err := read(t, db, "SELECT 'ä', nope FROM t")
	f := fault.Of(err)
	require.Equal(t, fault.DBQueryFailed, f.Code)
	require.Equal(t, map[string]any{"sqlstate": "42703", "position": int64(13), "retryable": false}, f.Details)

	_, _, err = write(t, db, "INSERT INTO t VALUES (77)", Limits{})
	f = fault.Of(err)
	require.Equal(t, map[string]any{"sqlstate": "23505", "constraint": "t_pkey", "table": "t", "retryable": false}, f.Details)
	require.NotContains(t, f.Message, "77")

	open, _ := openURL(t, side.url, func(c *Config) { c.ErrorDetail = true })
	_, _, err = write(t, open, "INSERT INTO t VALUES (77)", Limits{})
	require.Equal(t, "Key (a)=(77) already exists.", fault.Of(err).Details["detail"], "only where the operator allowed it")
}

func TestNoticesAreBounded(t *testing.T) {
	db, _ := open(t)
	res, _, err := write(t, db, `DO $$ BEGIN FOR i IN 1..100 LOOP RAISE WARNING '%', repeat('é', 5000); END LOOP; END $$`, Limits{})
	require.NoError(t, err)
	require.Len(t, res.Notices, maxNotices)
	require.Equal(t, "WARNING", res.Notices[0].Severity)
	require.Equal(t, strings.Repeat("é", maxNoticeBytes/2), res.Notices[0].Message)
}

func TestAReadSaysWhereItWillGo(t *testing.T) {
	db, side := open(t)
	up := upstream(t, db)
	require.Equal(t, side.ask("SELECT system_identifier FROM pg_control_system()"), up.SystemIdentifier)
	require.Equal(t, side.ask("SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"), up.Timeline)
	require.Equal(t, "postgres", up.Role)
	require.NotEmpty(t, up.CrashMark)
	require.NotEmpty(t, up.Host)
	require.Equal(t, fmt.Sprintf(`[{"pg_backend_pid":%d}]`, up.BackendPID), mustRead(t, db, "SELECT pg_backend_pid()"))
	require.Equal(t, up, upstream(t, db))
}
