package pgexec

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/faultproxy"
	"writegate/fixtures/postgres"
)

func withDatabase(t testing.TB, raw, name string) string {
	u, err := url.Parse(raw)
	require.NoError(t, err)
	u.Path = "/" + name
	return u.String()
}

func withUser(t testing.TB, raw, user, password string) string {
	u, err := url.Parse(raw)
	require.NoError(t, err)
	u.User = url.UserPassword(user, password)
	return u.String()
}

func TestManyClientsShareFewConnections(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 3; c.AcquireTimeout = time.Minute })
	side.run("CREATE TABLE t (a int)")
	var work sync.WaitGroup
	errs := make(chan error, 64)
	for i := range 32 {
		work.Go(func() {
			_, _, err := write(t, db, fmt.Sprintf("INSERT INTO t VALUES (%d)", i), Limits{})
			errs <- err
		})
		work.Go(func() {
			res, rows, err := read(t, db, fmt.Sprintf("SELECT %d AS a", i))
			if err == nil && rows != fmt.Sprintf(`[{"a":%d}]`, i) {
				err = fmt.Errorf("somebody else's rows: %s %+v", rows, res)
			}
			errs <- err
		})
	}
	work.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, "32 496", side.ask("SELECT count(*) || ' ' || sum(a) FROM t"))
	require.LessOrEqual(t, db.Stats().Idle, 6)
	require.Zero(t, db.Stats().InUse)
	require.Positive(t, db.Stats().Waits)
}

func TestNobodyWaitsLongForAFreeConnection(t *testing.T) {
	db, _ := open(t, func(c *Config) { c.PoolMax = 1; c.AcquireTimeout = 30 * time.Millisecond })
	tx, err := db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err)
	_, err = db.Begin(context.Background(), BeginOptions{})
	require.Equal(t, fault.DBUnavailable, fault.CodeOf(err))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	db.writer.cfg.AcquireTimeout = time.Minute // what ends the wait is the client's going
	_, err = db.Begin(ctx, BeginOptions{})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, db.Stats().InUse)
	tx.Rollback()
	mustWrite(t, db, "SELECT 1")
}

func TestNoGoroutineAndNoConnectionIsLeft(t *testing.T) {
	base := postgres.ForTest(t)
	side := newSide(t, base)
	before := runtime.NumGoroutine()
	db, err := Open(Config{URL: base, TLS: TLSConfig{Mode: TLSDisable}}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	mustWrite(t, db, "SELECT 1")
	mustRead(t, db, "SELECT 1")
	_, _, err = read(t, db, "SELECT repeat('x', 20000000)")
	require.Error(t, err)
	db.Close()
	side.eventually("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'gate/%' AND datname = current_database()", "0")
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		runtime.Gosched()
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

func TestAConnectionThatTheServerClosedIsNotUsed(t *testing.T) {
	db, side := open(t)
	mustRead(t, db, "SELECT 1")
	mustWrite(t, db, "SELECT 1")
	side.ask("SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name LIKE 'gate/%' AND datname = current_database()")
	require.Equal(t, `[{"?column?":1}]`, mustRead(t, db, "SELECT 1"), "no statement is lost on it")
	mustWrite(t, db, "SELECT 1")
}

func TestIdleAndOldConnectionsAreClosed(t *testing.T) {
	const mine = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'gate/%' AND datname = current_database()"
	idle, side := open(t, func(c *Config) { c.ConnIdle = time.Millisecond })
	mustRead(t, idle, "SELECT 1")
	side.eventually(mine, "0")

	old, side := open(t, func(c *Config) { c.ConnLifetime = time.Millisecond })
	mustRead(t, old, "SELECT pg_sleep(0.002)")
	side.eventually(mine, "0")

	young, side := open(t)
	mustRead(t, young, "SELECT 1")
	side.eventually(mine, "1") // the connection that learned the server's version has gone
	young.reader.purge(false)
	require.Equal(t, 1, young.Stats().Idle)
	require.Equal(t, "1", side.ask(mine))
}

func TestWhyADatabaseCannotBeReached(t *testing.T) {
	base := postgres.ForTest(t)
	side := newSide(t, base)
	closed, err := net.Listen("tcp4", "127.0.0.3:0") // where nobody else comes to listen
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	name := side.ask("SELECT current_database()")
	for _, c := range []struct {
		why, url, sqlstate string
		code               fault.Code
	}{
		{"nobody listens", "postgres://u:hunter2@" + closed.Addr().String() + "/x", "", fault.DBConnectionFailed},
		{"no such host", "postgres://u:hunter2@database.invalid/x", "", fault.DBConnectionFailed},
		{"wrong password", withUser(t, base, "postgres", "hunter2"), "28P01", fault.DBConnectionFailed},
		{"no such database", withDatabase(t, base, "nowhere"), "3D000", fault.DBConnectionFailed},
		{"no connections left", withUser(t, base, "narrow_"+name, "hunter2"), "53300", fault.DBUnavailable},
	} {
		t.Run(c.why, func(t *testing.T) {
			if c.sqlstate == "53300" {
				side.run(`CREATE ROLE "narrow_` + name + `" LOGIN PASSWORD 'hunter2' CONNECTION LIMIT 0`)
				defer side.run(`DROP ROLE "narrow_` + name + `"`)
			}
			db, err := Open(Config{URL: c.url, TLS: TLSConfig{Mode: TLSDisable}}, slog.New(slog.DiscardHandler))
			require.NoError(t, err, "the gate starts without a database")
			defer closeWithin(t, db)
			_, err = db.Begin(context.Background(), BeginOptions{})
			f := fault.Of(err)
			require.Equal(t, c.code, f.Code)
			if c.sqlstate != "" {
				require.Equal(t, c.sqlstate, f.Details["sqlstate"])
			}
			require.NotContains(t, err.Error(), "hunter2")
			res, _, err := read(t, db, "SELECT 1")
			require.Equal(t, c.code, fault.CodeOf(err))
			require.Equal(t, Failure, res.State)
			status := db.Status(context.Background())
			require.False(t, status.OK)
			require.Equal(t, f.Message, status.Message)
			require.NotContains(t, status.Message, "127.0.0.")
			require.Zero(t, db.Stats().InUse)
		})
	}
}

func TestAServerThatWasReplacedOrRestartedIsFoundAgain(t *testing.T) {
	cluster := postgres.ClusterForTest(t, nil)
	var majors []int
	cfg := Config{URL: cluster.URL("postgres"), TLS: TLSConfig{Mode: TLSDisable}, OnServerMajor: func(m int) { majors = append(majors, m) }}
	db, err := Open(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer closeWithin(t, db)
	require.Zero(t, db.ServerMajor())
	mustWrite(t, db, "CREATE TABLE t (a int)")
	require.Equal(t, cluster.Major, db.ServerMajor())
	require.Equal(t, []int{cluster.Major}, majors)
	first := upstream(t, db)

	require.NoError(t, cluster.Stop())
	_, err = db.Begin(context.Background(), BeginOptions{})
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
	require.NoError(t, cluster.Restart(t.Context()))
	mustWrite(t, db, "INSERT INTO t VALUES (1)")
	mustRead(t, db, "SELECT 1")
	clean := upstream(t, db)
	require.Equal(t, first.CrashMark, clean.CrashMark, "a clean restart keeps the crash mark")

	mustWrite(t, db, "INSERT INTO t VALUES (2)")
	require.NoError(t, cluster.Kill())
	require.NoError(t, cluster.Restart(t.Context()))
	mustWrite(t, db, "INSERT INTO t VALUES (3)")
	require.Equal(t, `[{"count":3}]`, mustRead(t, db, "SELECT count(*) FROM t"))
	crashed := upstream(t, db)
	require.Equal(t, first.SystemIdentifier, crashed.SystemIdentifier)
	require.NotEqual(t, first.CrashMark, crashed.CrashMark, "a crash changes it")
}

func TestStatusTellsAHealthyDatabase(t *testing.T) {
	db, side := open(t)
	s := db.Status(context.Background())
	require.True(t, s.OK, s.Message)
	require.Equal(t, "postgres", s.Role)
	require.Equal(t, side.ask("SELECT current_setting('server_version_num')::int / 10000"), fmt.Sprint(s.ServerMajor))
}

func TestAConfigurationThatCannotBeRightIsRefusedAtOnce(t *testing.T) {
	good := Config{URL: "postgres://u:p@h/d", TLS: TLSConfig{Mode: TLSDisable}}
	for _, c := range []struct {
		change func(*Config)
		says   string
	}{
		{func(c *Config) { c.URL = "" }, "GATE_DATABASE_URL is empty"},
		{func(c *Config) { c.URL = "mysql://u:hunter2@h/d" }, "GATE_DATABASE_URL must have the form"},
		{func(c *Config) { c.URL = "postgres://u:hunter2@h:port/d" }, "GATE_DATABASE_URL must have the form"},
		{func(c *Config) { c.URL = "postgres://u:hunter2@h/d?sslmode=prefer" }, "write one of them"},
		{func(c *Config) { c.URL = "postgres://u:hunter2@h/d?sslmode=verify-full" }, "GATE_TLS_UPSTREAM_MODE=disable contradict"},
		{func(c *Config) { c.URL = "postgres://u:hunter2@h/d?sslrootcert=/ca" }, "sslrootcert is for TLS"},
		{func(c *Config) { c.URL, c.TLS.Mode = "postgres://u:hunter2@h/d?sslmode=disable", "" }, "weaker than verify-full"},
		{func(c *Config) { c.DDLURL, c.TLS.Mode = "postgres://u:hunter2@h/d?sslmode=require", "" }, "GATE_DATABASE_DDL_URL: that sslmode is weaker"},
		{func(c *Config) { c.URL, c.TLS.Mode = "postgres://u:hunter2@h/d?sslrootcert=system", "" }, "sslrootcert=system is not taken"},
		{func(c *Config) { c.ReadURL, c.TLS = "postgres://u:hunter2@h/d?sslrootcert=/b", TLSConfig{CAPath: "/a"} }, "GATE_DATABASE_READ_URL: sslrootcert names another file"},
		{func(c *Config) { c.URL = "postgres://u:hunter2@h/d?connect_timeout=6" }, "set that for a longer time"},
		{func(c *Config) { c.URL = "postgres://u:hunter2@h/d?connect_timeout=0" }, "connect_timeout must be whole seconds"},
		{func(c *Config) { c.URL = "postgres://u:hunter2@h/d?application_name=x" }, "application_name is not taken: leave it out"},
		{func(c *Config) { c.URL = "postgres://u:hunter2@h/d?sslcert=x" }, "set GATE_TLS_UPSTREAM_CERT_PATH"},
		{func(c *Config) { c.URL = "postgres://u:hunter2#x@h/d" }, "# %23"},
		{func(c *Config) { c.URL = "postgres://u:12#hunter2@h/d" }, "# %23"},
		{func(c *Config) { c.URL = "postgres://u:12/hunter2@h/d" }, "/ %2F"},
		{func(c *Config) { c.URL = "postgres://u:hunter2%zz@h/d" }, "% %25"},
		{func(c *Config) { c.URL = "postgres://u:hunter2@h/d?options=-c%20search_path%3Dx" }, "options is not taken"},
		{func(c *Config) { c.URL = "postgres://u:x?hunter2@h/d" }, "GATE_DATABASE_URL"},
		{func(c *Config) { c.ReadURL = "nonsense" }, "GATE_DATABASE_READ_URL must have the form"},
		{func(c *Config) { c.ReadURL = "postgres://r:hunter2@h/other" }, "GATE_DATABASE_READ_URL names another database"},
		{func(c *Config) { c.DDLURL = "postgres://d:hunter2@h/other" }, "GATE_DATABASE_DDL_URL names another database"},
		{func(c *Config) { c.DDLURL = "nonsense" }, "GATE_DATABASE_DDL_URL must have the form"},
		{func(c *Config) { c.TLS.Mode = "prefer" }, "GATE_TLS_UPSTREAM_MODE must be verify-full or disable"},
		{func(c *Config) { c.TLS.Mode = "" }, "GATE_TLS_UPSTREAM_CA_BUNDLE_PATH is empty"},
		{func(c *Config) { c.TLS = TLSConfig{CAPath: "/nonexistent/ca.pem"} }, "GATE_TLS_UPSTREAM_CA_BUNDLE_PATH"},
		{func(c *Config) { c.QueryTimeout = -time.Second }, "GATE_DB_QUERY_TIMEOUT_MS must be"},
		{func(c *Config) { c.LockTimeout = 48 * time.Hour }, "GATE_DB_LOCK_TIMEOUT_MS must be"},
		{func(c *Config) { c.PoolMax = -1 }, "GATE_DB_POOL_MAX must be"},
		{func(c *Config) { c.MaxResultRows = -1 }, "GATE_MAX_RESULT_ROWS must be"},
		{func(c *Config) { c.MaxResultBytes = 10 }, "GATE_MAX_RESULT_BYTES must be"},
		{func(c *Config) { c.SearchPath = "pg_catalog" }, "GATE_SEARCH_PATH must"},
	} {
		bad := good
		c.change(&bad)
		_, err := Open(bad, slog.New(slog.DiscardHandler))
		require.ErrorContains(t, err, c.says)
		require.NotContains(t, err.Error(), "hunter2")
	}
	_, err := Open(Config{PoolMax: -1, TLS: TLSConfig{Mode: "prefer"}}, slog.New(slog.DiscardHandler))
	require.Equal(t, 3, strings.Count(err.Error(), "\n")+1, "all at once: %v", err)
}

func TestDefinitionsMayHaveARoleOfTheirOwn(t *testing.T) {
	url := postgres.ForTest(t)
	db, side := openURL(t, url, func(c *Config) { c.DDLURL = c.URL })
	tx, err := db.Begin(context.Background(), BeginOptions{DDL: true})
	require.NoError(t, err)
	_, err = tx.Exec(context.Background(), sql("CREATE TABLE t AS SELECT current_setting('application_name') AS a"), db.NewRows(0))
	require.NoError(t, err)
	_, err = tx.Commit(context.Background())
	require.NoError(t, err)
	require.Equal(t, "gate/ddl", side.ask("SELECT a FROM t"))
}

// What a type's OID means is forgotten after a definition.
func TestTypesAreLookedUpAnewAfterADefinition(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TYPE mood AS ENUM ('a')")
	rows := db.NewRows(0)
	_, err := db.Read(context.Background(), "", sql("SELECT 'a'::mood AS v"), Limits{}, rows)
	require.NoError(t, err)
	require.Equal(t, "public.mood", rows.Columns()[0].Type)
	require.Len(t, db.types.types, 1)

	tx, err := db.Begin(context.Background(), BeginOptions{DDL: true})
	require.NoError(t, err)
	_, err = tx.Exec(context.Background(), sql("ALTER TYPE mood RENAME TO humour"), db.NewRows(0))
	require.NoError(t, err)
	_, err = tx.Commit(context.Background())
	require.NoError(t, err)
	rows = db.NewRows(0)
	_, err = db.Read(context.Background(), "", sql("SELECT 'a'::humour AS v"), Limits{}, rows)
	require.NoError(t, err)
	require.Equal(t, "public.humour", rows.Columns()[0].Type)
}

func TestTypesThatCannotBeLookedUpAreText(t *testing.T) {
	db, side := open(t, func(c *Config) { c.AcquireTimeout = 50 * time.Millisecond; c.PoolMax = 1 })
	side.run("CREATE TYPE mood AS ENUM ('a')")
	busy, err := db.reader.acquire(context.Background())
	require.NoError(t, err)
	defer busy.release()
	_, rows, err := write(t, db, "SELECT ARRAY['a']::mood[] AS v", Limits{})
	require.NoError(t, err)
	require.Equal(t, `[{"v":"{a}"}]`, rows)
}

// What an asynchronous standby had not received when it was promoted is a success in the
// log; whoever reads the service's log is told when to look.
func TestAnotherTimelineIsToldOf(t *testing.T) {
	var log bytes.Buffer
	db, err := Open(Config{URL: postgres.ForTest(t), TLS: TLSConfig{Mode: TLSDisable}, PoolMax: 1}, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	defer db.Close()
	connect := func() *Upstream {
		db.writer.purge(true)
		l, err := db.writer.acquire(context.Background())
		require.NoError(t, err)
		defer l.release()
		return &l.upstream
	}
	connect()
	before := *connect()
	require.NotContains(t, log.String(), "promoted")
	before.Timeline, before.CrashMark = "00000000", "earlier"
	db.writer.server.Store(&before)
	connect()
	require.Contains(t, log.String(), "timeline_before=00000000")
}

// A server's process keeps names of time zones, relations and plans to its end, a text
// can have it look up some gigabytes of them, and no DISCARD frees that.
func TestAConnectionEndsBehindMuchWork(t *testing.T) {
	db, _ := open(t, func(c *Config) { c.PoolMax = 1 })
	process := func() string { return mustRead(t, db, "SELECT pg_backend_pid()") }
	first := process()
	mustRead(t, db, "SELECT pg_sleep(1.1)")
	second := process()
	require.NotEqual(t, first, second, "one long read")

	l, err := db.reader.acquire(context.Background())
	require.NoError(t, err)
	l.worked = workInAll
	l.release()
	process() // the last one of that connection
	require.NotEqual(t, second, process(), "many short ones")

	tx, err := db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err)
	writer := tx.lease.upstream.BackendPID
	tx.Rollback()
	mustWrite(t, db, "SELECT pg_sleep(1.1)")
	tx, err = db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err)
	require.NotEqual(t, writer, tx.lease.upstream.BackendPID, "a write")
	tx.Rollback()
}

// Two servers may be well, a primary and its standby, and connections to both be in one pool: what
// was learnt of the one keeps nothing from the other.
func TestConnectionsToTwoServersServeSideBySide(t *testing.T) {
	one, other := postgres.ClusterForTest(t, nil), postgres.ClusterForTest(t, nil)
	proxy := faultproxy.Start(t, one.URL("postgres"))
	db, err := Open(Config{URL: proxy.URL(), TLS: TLSConfig{Mode: TLSDisable}, PoolMax: 2, AcquireTimeout: time.Minute}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer closeWithin(t, db)
	st := &Statement{SQL: "SELECT t.a FROM (SELECT 1 AS a) AS t", Meaning: Meaning{Words: []string{"a"}}}
	for _, to := range []*postgres.Cluster{other, one} {
		first, err := db.reader.acquire(t.Context())
		require.NoError(t, err)
		proxy.Lead(t, to.URL("postgres"))
		second, err := db.reader.acquire(t.Context()) // one that is there, or a new one
		require.NoError(t, err)
		second.broken = true
		second.release()
		second, err = db.reader.acquire(t.Context())
		require.NoError(t, err)
		require.NotEqual(t, first.life, second.life)
		second.release()
		first.release()
		for range 4 {
			r, err := db.BeginRead(t.Context(), st, Limits{})
			require.NoError(t, err)
			_, err = r.Run(t.Context(), "e", *st, db.NewRows(0))
			require.NoError(t, err)
			tx, err := db.Begin(t.Context(), BeginOptions{Meaning: st.Meaning})
			require.NoError(t, err)
			tx.Rollback()
		}
	}
}
