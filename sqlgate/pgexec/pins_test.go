package pgexec

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/postgres"
	"writegate/sqlgate/classify"
)

func TestPinsBeatRoleAndDatabaseSettings(t *testing.T) {
	url := postgres.ForTest(t)
	setup := newSide(t, url)
	base := setup.ask("SELECT quote_ident(current_database())")
	for _, p := range (Config{}).withDefaults().pins(writer, 16) {
		if p.asserted && p.name != "client_encoding" && p.name != "application_name" {
			other := otherThan(p)
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

// otherThan is another value of a pinned setting.
func otherThan(p pin) string {
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
	case "timezone_abbreviations":
		other = "Australia"
	case "extra_float_digits":
		other = "-5"
	case "bytea_output":
		other = "escape"
	}
	if other == "" {
		other = "77000"
	}
	return other
}

// A write begins with a look that leaves the pins out, because RESET ALL went before: it
// has to reach each of them.
func TestResetAllPutsEveryPinBack(t *testing.T) {
	db, _ := open(t)
	l, err := db.writer.acquire(context.Background())
	require.NoError(t, err)
	defer l.release()
	change := segment{}
	for _, p := range db.cfg.pins(writer, l.major) {
		if p.asserted && p.name != "client_encoding" {
			change = append(change, own("SELECT set_config('"+p.name+"', '"+otherThan(p)+"', false)"))
		}
	}
	l.params = map[string]string{} // what the server reports is no drift here
	for _, reset := range []bool{false, true} {
		batch := change
		if reset {
			batch = resetting()
		}
		looks, shown := l.looking(look{pins: true})
		refused, err := l.exchange(context.Background(), time.Now().Add(time.Minute), append(batch, looks))
		require.NoError(t, err)
		require.Nil(t, refused)
		for i, name := range l.watch.names {
			was, is := strings.Split(l.settled, separator)[i], strings.Split(shown.text(lookSettings), separator)[i]
			changed := !reset && name != "client_encoding" && !slices.Contains(watchedBeside, name)
			require.Equal(t, changed, was != is, "%s: %s, then %s", name, was, is)
		}
	}
}

// A server looks at no time limit while it compiles what a statement computes. Where it was
// built to compile, it would here.
func TestNothingIsCompiledForAClient(t *testing.T) {
	url := postgres.ForTest(t)
	setup := newSide(t, url)
	base := setup.ask("SELECT quote_ident(current_database())")
	setup.run("ALTER DATABASE " + base + " SET jit = on; ALTER DATABASE " + base + " SET jit_above_cost = 0")
	const explain = "EXPLAIN (ANALYZE, FORMAT JSON) SELECT sum(i + 1) FROM generate_series(1, 10) AS i"
	side := newSide(t, url)
	require.Equal(t, side.ask("SELECT pg_jit_available()") == "t", strings.Contains(side.ask(explain), `"JIT"`))
	db, _ := openURL(t, url)
	_, rows, err := write(t, db, explain, Limits{})
	require.NoError(t, err)
	require.Contains(t, rows, "Aggregate")
	require.NotContains(t, rows, "JIT")
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

// A client that changes a setting again and again harms itself alone, also where it
// does so in a function that no text shows.
func TestDriftBehindAClientsStatementsDoesNotStopThePool(t *testing.T) {
	var stopped []string
	db, side := open(t, func(c *Config) {
		c.OnPoolStopped = func(pool, reason string) { stopped = append(stopped, pool+" "+reason) }
	})
	side.run("CREATE TABLE t (a int); CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$ SELECT set_config('DateStyle', 'German', false) $$")
	for _, text := range []string{"SELECT set_config('TimeZone', 'Asia/Tokyo', true)", "SELECT f()", "INSERT INTO t SELECT length(f())"} {
		for range driftMost {
			_, _, err := write(t, db, text, Limits{})
			require.Equal(t, ReasonSettingsDrift, fault.Of(err).Details["reason"], text)
			b := beginBlock(t, db, BlockOptions{})
			_, err = b.failWrite(text)
			require.Equal(t, ReasonSettingsDrift, fault.Of(err).Details["reason"], text)
			b.Rollback()
		}
	}
	for range driftMost {
		alone, err := db.BeginAlone(context.Background(), BeginOptions{})
		require.NoError(t, err)
		_, err = alone.Exec(context.Background(), sql("SELECT f()"), db.NewRows(0))
		require.NoError(t, err)
	}
	require.EqualValues(t, 7*driftMost, db.Stats().Quarantined, "each connection is closed all the same")
	require.Empty(t, stopped)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
	mustWrite(t, db, "INSERT INTO t VALUES (1)")
	require.True(t, db.Status(context.Background()).OK)
}

// A setting of the caller's that the server refuses is the statement's trouble: the
// database is well, and so is the marker.
func TestASettingThatIsRefusedRefusesItsStatement(t *testing.T) {
	url := postgres.ForTest(t)
	newSide(t, url).run(markersDDL)
	for _, marker := range []string{"", markers} {
		db, _ := openURL(t, url, func(c *Config) { c.MarkerTable = marker })
		options := BeginOptions{ExecutionID: newExecution(), Settings: Settings{"TimeZone": "<+01:14:04>-01:14:04"}}
		refused := map[string]func() error{
			"a transaction": func() error { _, err := db.Begin(context.Background(), options); return err },
			"alone":         func() error { _, err := db.BeginAlone(context.Background(), options); return err },
			"a block": func() error {
				_, _, err := beginBlock(t, db, BlockOptions{}).tryWrite("SELECT 1", options, false)
				return err
			},
			"a read": func() error {
				_, err := db.Read(context.Background(), "", Statement{SQL: "SELECT 1", Settings: options.Settings}, Limits{}, db.NewRows(0))
				return err
			},
		}
		for how, begin := range refused {
			err := begin()
			require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), how)
			require.Equal(t, "22023", fault.Of(err).Details["sqlstate"], how)
		}
		require.True(t, db.Status(context.Background()).OK)
	}
}

// What changes without a statement meets every connection.
func TestThreeDriftsInAMinuteStopThePool(t *testing.T) {
	var stopped []string
	db, _ := open(t, func(c *Config) {
		c.OnPoolStopped = func(pool, reason string) { stopped = append(stopped, pool+" "+reason) }
	})
	for range driftMost {
		require.Empty(t, stopped)
		l, err := db.writer.acquire(context.Background())
		require.NoError(t, err)
		l.reported("TimeZone", "Asia/Tokyo")
		l.release()
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

// A reload of the server's files changes what the gate does not pin for all sessions at
// once. Nobody's statement fails for it, and no pool stops.
func TestSettingsOfTheServersFilesMayChange(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 4 })
	side.run("CREATE TABLE t (a int)")
	var pids []int64
	for _, p := range []*pool{db.writer, db.reader} {
		var leases []*lease
		for range 4 {
			l, err := p.acquire(context.Background())
			require.NoError(t, err)
			leases, pids = append(leases, l), append(pids, l.upstream.BackendPID)
			l.settled = asBefore(l.conn)
			l.dirty = l.kind == reader
		}
		for _, l := range leases {
			l.release()
		}
	}
	for range 5 {
		mustWrite(t, db, "INSERT INTO t VALUES (1)")
		b := beginBlock(t, db, BlockOptions{})
		b.write("INSERT INTO t VALUES (1)")
		b.commit()
		_, err := alone(t, db, "VACUUM t", Limits{})
		require.NoError(t, err)
		require.Equal(t, `[{"a":1}]`, mustRead(t, db, "SELECT 1 AS a"))
	}
	b := beginBlock(t, db, BlockOptions{})
	b.write("INSERT INTO t VALUES (1)")
	b.lease.settled = asBefore(b.lease.conn) // in the middle of a block
	b.write("INSERT INTO t VALUES (1)")
	b.commit()
	require.Equal(t, "12", side.ask("SELECT count(*) FROM t"))
	require.Zero(t, db.Stats().Quarantined)
	for _, p := range []*pool{db.writer, db.reader} {
		l, err := p.acquire(context.Background())
		require.NoError(t, err)
		require.NotContains(t, pids, l.upstream.BackendPID)
		l.release()
	}
}

// asBefore is what a connection would have shown at its beginning, had another
// synchronous_commit been in force.
func asBefore(c *conn) string {
	shown := strings.Split(c.settled, separator)
	shown[slices.Index(c.watch.names, "synchronous_commit")] = "remote_write"
	return strings.Join(shown, separator)
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

// The classifier blocks set_config of all but few names before anything is sent: of none that
// the gate pins or watches but application_name, which is pinned and may change.
func TestTheClassifierKnowsEverySettingThatTheGateHolds(t *testing.T) {
	open := []string{"application_name", "client_min_messages", "work_mem"}
	want := map[string]bool{"transaction_read_only": true, "session_authorization": true, "plpgsql.check_asserts": true, "no_setting": true, "app.tenant": false, "timezone.app": false}
	pins := (Config{SearchPath: "public"}).pins(writer, newestMajor)
	w := newWatch(pins)
	for _, p := range pins {
		want[strings.ToLower(p.name)] = p.name != "application_name"
	}
	for _, name := range w.names {
		want[strings.ToLower(name)] = true
	}
	all, err := os.ReadFile("../classify/data/settings.tsv")
	require.NoError(t, err)
	for row := range strings.Lines(string(all)) {
		name, _, _ := strings.Cut(strings.ToLower(row), "\t")
		if held, known := want[name]; known {
			require.Equal(t, held, !slices.Contains(open, name) && !strings.HasPrefix(name, "enable_"), name)
		}
		want[name] = !slices.Contains(open, name) && !strings.HasPrefix(name, "enable_")
	}
	for _, name := range reportedPins {
		_, known := want[strings.ToLower(name)]
		require.True(t, known, name)
	}
	require.Greater(t, len(want), 400)
	require.True(t, want["jit"])

	c, err := classify.New(classify.Config{SearchPath: "public"})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	for name, held := range want {
		for _, call := range []string{"SELECT set_config('" + name + "', $1, true)", "INSERT INTO t SELECT pg_catalog.SET_CONFIG(E'" + strings.ToUpper(name) + "'::text, 'x', false)"} {
			got, err := c.Classify(context.Background(), call)
			require.NoError(t, err, call)
			require.Equal(t, held, slices.Contains(got.RiskSignals, classify.SignalIdentitySwitch), call)
			require.Contains(t, got.RiskSignals, classify.SignalSessionChange, call)
		}
	}
}
