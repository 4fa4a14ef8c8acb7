package pgexec

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/postgres"
)

func TestPinsBeatRoleAndDatabaseSettings(t *testing.T) {
	url := postgres.ForTest(t)
	setup := newSide(t, url)
	base := setup.ask("SELECT quote_ident(current_database())")
	for _, p := range (Config{}).withDefaults().pins(writer, 16) {
		if p.asserted && p.name != "client_encoding" && p.name != "application_name" {
			other := map[string]string{"on": "off", "off": "on", "0": "60000"}[p.value]
			switch p.name {
			case "search_path":
				other = "pg_temp, public"
			case "backslash_quote":
				other = "on"
			case "default_transaction_isolation":
				other = "serializable"
			case "xmloption":
				other = "document"
			case "DateStyle":
				other = "German"
			case "IntervalStyle":
				other = "iso_8601"
			case "TimeZone":
				other = "Asia/Tokyo"
			case "extra_float_digits":
				other = "-5"
			case "bytea_output":
				other = "escape"
			}
			if other == "" {
				other = "77000"
			}
			setup.run("ALTER DATABASE " + base + " SET " + p.name + " = '" + other + "'")
		}
	}
	require.Equal(t, "Asia/Tokyo", newSide(t, url).ask("SHOW TimeZone"), "the test's settings count for others")

	db, _ := openURL(t, url)
	const show = `SELECT current_setting('TimeZone') || current_setting('search_path') || current_setting('extra_float_digits') AS s`
	require.Equal(t, `[{"s":"UTC\"public\", pg_temp1"}]`, mustRead(t, db, show))
	for range 2 { // the second time behind DISCARD ALL
		_, rows, err := write(t, db, show, Limits{})
		require.NoError(t, err)
		require.Equal(t, `[{"s":"UTC\"public\", pg_temp1"}]`, rows)
	}
	require.Zero(t, db.Stats().Quarantined)
}

func TestSynchronousCommitOffIsTurnedOn(t *testing.T) {
	url := postgres.ForTest(t)
	setup := newSide(t, url)
	setup.run("ALTER DATABASE " + setup.ask("SELECT quote_ident(current_database())") + " SET synchronous_commit = off")
	db, _ := openURL(t, url)
	_, rows, err := write(t, db, "SHOW synchronous_commit", Limits{})
	require.NoError(t, err)
	require.Equal(t, `[{"synchronous_commit":"on"}]`, rows)
}

func TestTheSearchPathIsQuotedAndEndsInTemp(t *testing.T) {
	for in, want := range map[string]string{
		"public":        `"public", pg_temp`,
		` app , "odd" `: `"app", """odd""", pg_temp`,
	} {
		got, err := quoteSearchPath(in)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, in := range []string{"", "a,,b", "pg_catalog", "public, pg_temp", "a\x00b"} {
		_, err := quoteSearchPath(in)
		require.ErrorContains(t, err, "GATE_SEARCH_PATH")
	}
}

// A temporary table must not stand before a real one, and CREATE TABLE must not
// go to pg_catalog.
func TestNewTablesGoToTheFirstSchemaOfThePath(t *testing.T) {
	db, side := open(t)
	mustWrite(t, db, "CREATE TABLE fresh (a int)")
	require.Equal(t, "public", side.ask("SELECT schemaname FROM pg_tables WHERE tablename = 'fresh'"))
}

// A function's SET clause is undone at its end, before the server reports
// anything, so it is no drift on any major.
func TestAFunctionWithSettingsOfItsOwnIsNoDrift(t *testing.T) {
	db, side := open(t)
	side.run("CREATE FUNCTION f() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog SET TimeZone = 'Asia/Tokyo' AS $$ SELECT current_setting('TimeZone') $$")
	_, rows, err := write(t, db, "SELECT f()", Limits{})
	require.NoError(t, err)
	require.Equal(t, `[{"f":"Asia/Tokyo"}]`, rows)
	require.Zero(t, db.Stats().Quarantined)
}

func TestWhatAFunctionLeavesInAWriterIsGoneBeforeTheNextUse(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run("CREATE TABLE t (a int)")
	// Servers from 18 on report search_path by themselves, so a setting that none reports stands for it.
	mustWrite(t, db, "SELECT set_config('xmloption', 'document', false), pg_advisory_lock(99), set_config('lock_timeout', '0', false)")
	_, rows, err := write(t, db, "SHOW xmloption", Limits{})
	require.NoError(t, err)
	require.Equal(t, `[{"xmloption":"content"}]`, rows)
	mustWrite(t, db, "CREATE TEMPORARY TABLE t (a int)")
	mustWrite(t, db, "INSERT INTO t VALUES (1)")
	require.Equal(t, "1", side.ask("SELECT count(*) FROM t"), "not the temporary one")
	require.Equal(t, "0", side.ask(advisoryLocks))
	require.Zero(t, db.Stats().Quarantined)
}

func TestAStatementThatChangesAReportedPinIsRolledBackAndItsConnectionClosed(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a text)")
	res, _, err := write(t, db, "INSERT INTO t SELECT set_config('TimeZone', 'Asia/Tokyo', false)", Limits{})
	require.Equal(t, fault.DBUnavailable, fault.CodeOf(err))
	require.Equal(t, Failure, res.State)
	require.Equal(t, ReasonSettingsDrift, res.ReasonCode)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, BasisRollbackAcknowledged, res.Basis)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
	require.EqualValues(t, 1, db.Stats().Quarantined)
	mustWrite(t, db, "INSERT INTO t VALUES ('x')")
}

func TestThreeDriftsInAMinuteStopThePool(t *testing.T) {
	var stopped []string
	db, _ := open(t, func(c *Config) {
		c.OnPoolStopped = func(pool, reason string) { stopped = append(stopped, pool+" "+reason) }
	})
	for range driftMost {
		require.Empty(t, stopped)
		_, _, err := write(t, db, "SELECT set_config('DateStyle', 'German', false)", Limits{})
		require.Error(t, err)
	}
	require.Equal(t, []string{"writer settings_drift"}, stopped)
	_, err := db.Begin(context.Background(), BeginOptions{})
	require.Equal(t, fault.DBUnavailable, fault.CodeOf(err))
	require.Equal(t, ReasonSettingsDrift, fault.Of(err).Details["reason"])
	require.False(t, db.Status(context.Background()).OK)
	require.Equal(t, `[{"?column?":1}]`, mustRead(t, db, "SELECT 1"), "the reader's pool serves on")
}

// Drift that no server reports is seen by the query before the next statement.
func TestDriftThatSurvivesDiscardIsSeenBeforeTheNextStatement(t *testing.T) {
	db, _ := open(t, func(c *Config) { c.PoolMax = 1 })
	mustWrite(t, db, "SELECT 1")
	l, err := db.writer.acquire(context.Background())
	require.NoError(t, err)
	l.settled += "x" // as if the server had been asked for something else
	l.release()
	tx, err := db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err, "another connection once")
	tx.Rollback()
	require.EqualValues(t, 1, db.Stats().Quarantined)

	mustRead(t, db, "SELECT 1")
	r, err := db.reader.acquire(context.Background())
	require.NoError(t, err)
	r.settled, r.dirty = r.settled+"x", true
	r.release()
	require.Equal(t, `[{"?column?":1}]`, mustRead(t, db, "SELECT 1"))
	require.EqualValues(t, 2, db.Stats().Quarantined)
}

func TestAnotherSessionThanAskedForIsRefused(t *testing.T) {
	db, _ := open(t)
	l, err := db.writer.acquire(context.Background())
	require.NoError(t, err)
	defer l.release()
	pins := db.cfg.pins(writer, l.major)
	deadline := time.Now().Add(time.Minute)
	login := db.writer.login.Copy()
	require.NoError(t, l.assert(context.Background(), login, pins, deadline))

	for name, change := range map[string]func(){
		"pg_backend_pid()":   func() { l.upstream.BackendPID++ },
		"current_user":       func() { login.User = "somebody" },
		"current_database()": func() { login.Database = "elsewhere" },
		"statement_timeout": func() {
			pins = db.cfg.pins(writer, l.major)
			for i := range pins {
				if pins[i].name == "statement_timeout" {
					pins[i].value = "1"
				}
			}
		},
	} {
		pid := l.upstream.BackendPID
		login, pins = db.writer.login.Copy(), db.cfg.pins(writer, l.major)
		change()
		err := l.assert(context.Background(), login, pins, deadline)
		l.upstream.BackendPID = pid
		require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), name)
		require.Equal(t, name, fault.Of(err).Details["assertion"])
	}
}

func TestADatabaseThatIsNotUTF8IsRefused(t *testing.T) {
	url := postgres.ForTest(t)
	setup := newSide(t, url)
	name := setup.ask("SELECT current_database()") + "_a"
	setup.run(`CREATE DATABASE "` + name + `" ENCODING 'SQL_ASCII' TEMPLATE template0`)
	defer postgres.DropDatabase(t, url, name)
	cfg := Config{URL: withDatabase(t, url, name), TLS: TLSConfig{Mode: TLSDisable}}
	db, err := Open(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer closeWithin(t, db)
	_, err = db.Begin(context.Background(), BeginOptions{})
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
	require.Equal(t, "server_encoding", fault.Of(err).Details["assertion"])
}

func TestARoleWithoutGrantsMayServe(t *testing.T) {
	url := postgres.ForTest(t)
	setup := newSide(t, url)
	role := "plain_" + strconv.Itoa(int(time.Now().UnixNano()))
	setup.run("CREATE ROLE " + role + " LOGIN PASSWORD 'plain'; CREATE TABLE t (a int); GRANT SELECT, INSERT ON t TO " + role)
	defer setup.run("DROP OWNED BY " + role + "; DROP ROLE " + role)
	db, _ := openURL(t, url, func(c *Config) { c.URL = withUser(t, url, role, "plain") })
	mustWrite(t, db, "INSERT INTO t VALUES (1)")
	require.Equal(t, `[{"a":1}]`, mustRead(t, db, "SELECT a FROM t"))
	up := upstream(t, db)
	require.Equal(t, role, up.Role)
	require.NotEmpty(t, up.SystemIdentifier)
	require.NotEmpty(t, up.CrashMark)
	closeWithin(t, db) // before the role can be dropped
}

// A server of 17 or later goes on with the clock that it started at BEGIN, under
// the pinned time, when a longer transaction_timeout is set.
func TestALongerTransactionTimeoutStopsTheClockFirst(t *testing.T) {
	var sent []string
	for _, c := range set("LOCAL", map[string]string{"transaction_timeout": "315000", "statement_timeout": "300000"}) {
		sent = append(sent, c.sql)
	}
	require.Equal(t, []string{"SET LOCAL statement_timeout = '300000'", "SET LOCAL transaction_timeout = '0'", "SET LOCAL transaction_timeout = '315000'"}, sent)
}
