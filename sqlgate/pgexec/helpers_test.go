package pgexec

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// open gives a DB on a database of the test's own, and a connection beside it to
// look at what really happened.
func open(t testing.TB, change ...func(*Config)) (*DB, *side) {
	t.Helper()
	return openURL(t, postgres.ForTest(t), change...)
}

func openURL(t testing.TB, url string, change ...func(*Config)) (*DB, *side) {
	t.Helper()
	cfg := Config{URL: url, TLS: TLSConfig{Mode: TLSDisable}, PoolMax: 4}
	for _, c := range change {
		c(&cfg)
	}
	db, err := Open(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s := newSide(t, url)
	t.Cleanup(func() { closeWithin(t, db) })
	return db, s
}

// closeWithin closes db and fails the test when that hangs: a connection was
// leased and not given back.
func closeWithin(t testing.TB, db *DB) {
	done := make(chan struct{})
	go func() { db.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Errorf("Close hangs: %+v", db.Stats())
	}
}

// givenBack waits until no connection is leased. The end of a lost backend takes
// one for a moment, in the background.
func givenBack(t testing.TB, db *DB) {
	t.Helper()
	require.Eventually(t, func() bool { return db.Stats().InUse == 0 }, 20*time.Second, time.Millisecond, "a connection was not given back")
}

// A side is a connection that does not go through pgexec.
type side struct {
	t    testing.TB
	url  string
	conn *pgconn.PgConn
}

func newSide(t testing.TB, url string) *side {
	t.Helper()
	cfg, err := pgconn.ParseConfig(url)
	require.NoError(t, err)
	conn, err := pgconn.ConnectConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return &side{t: t, url: url, conn: conn}
}

// run executes statements.
func (s *side) run(sql string) {
	s.t.Helper()
	_, err := s.conn.Exec(context.Background(), sql).ReadAll()
	require.NoError(s.t, err, sql)
}

// ask returns the first value of a query, "" for NULL or no row.
func (s *side) ask(sql string) string {
	s.t.Helper()
	value, err := s.first(sql)
	require.NoError(s.t, err, sql)
	return value
}

func (s *side) first(sql string) (string, error) {
	results, err := s.conn.Exec(context.Background(), sql).ReadAll()
	if err != nil || len(results) == 0 || len(results[0].Rows) == 0 {
		return "", err
	}
	return string(results[0].Rows[0][0]), nil
}

// eventually waits until a query gives a value.
func (s *side) eventually(sql, want string) {
	s.t.Helper()
	retry := time.NewTicker(5 * time.Millisecond)
	defer retry.Stop()
	var got string
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); <-retry.C {
		if got, err = s.first(sql); err == nil && got == want {
			return
		}
	}
	s.t.Errorf("%s: got %q, want %q (%v)", sql, got, want, err)
}

// meanwhile waits, on a connection of its own, until a query gives a value, then
// runs do. The returned function waits until that is done.
func (s *side) meanwhile(sql, want string, do func()) (wait func()) {
	other := newSide(s.t, s.url)
	done := make(chan struct{})
	go func() {
		defer close(done)
		other.eventually(sql, want)
		do()
	}()
	return func() { <-done }
}

// killWhenActive ends the backend that runs a statement like pattern.
func (s *side) killWhenActive(pattern string) (wait func()) {
	return s.meanwhile("SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '"+pattern+
		"' AND state = 'active' AND datname = current_database() AND pid <> pg_backend_pid()) x", "1", func() {})
}

// advisoryLocks counts those of the test's own database: others on the server
// have theirs.
const advisoryLocks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"

// unhurried leaves a statement running until the test ends it, however late.
func unhurried(c *Config) { c.QueryTimeout, c.LockTimeout = time.Minute, time.Minute }

// slack lets the server end a statement that takes too long: the gate does not
// come first, however late the answer is.
func slack(c *Config) { c.DeadlineSlack = time.Minute }

// brief is a short time for one statement; the pinned timeout, which also holds
// for the gate's own queries, stays long.
var brief = Limits{Timeout: 300 * time.Millisecond}

func sql(text string) Statement { return Statement{SQL: text} }

// Read is a Reading from its beginning to its end.
func (db *DB) Read(ctx context.Context, executionID string, st Statement, lim Limits, sink Sink) (Result, error) {
	r, err := db.BeginRead(ctx, &st, lim)
	if err != nil {
		return aborted(ReasonDBError, BasisReadOnly), err
	}
	defer r.Release()
	return r.Run(ctx, executionID, st, sink)
}

// Describe is as Read.
func (db *DB) Describe(ctx context.Context, text string, types []uint32) (Description, error) {
	r, err := db.BeginRead(ctx, &Statement{}, Limits{})
	if err != nil {
		return Description{}, err
	}
	return r.Describe(ctx, text, types, nil)
}

// upstream is where a read goes.
func upstream(t testing.TB, db *DB) Upstream {
	t.Helper()
	r, err := db.BeginRead(context.Background(), &Statement{}, Limits{})
	require.NoError(t, err)
	defer r.Release()
	return r.Dispatch().Upstream
}

// read runs a read and returns its rows as JSON.
func read(t testing.TB, db *DB, text string) (Result, string, error) {
	t.Helper()
	rows := db.NewRows(0)
	res, err := db.Read(context.Background(), "", sql(text), Limits{}, rows)
	return res, string(rows.JSON()), err
}

// mustRead is a read that succeeds.
func mustRead(t testing.TB, db *DB, text string) string {
	t.Helper()
	res, rows, err := read(t, db, text)
	require.NoError(t, err, text)
	require.Equal(t, Success, res.State)
	return rows
}

// write runs a write to its end.
func write(t testing.TB, db *DB, text string, lim Limits) (Result, string, error) {
	t.Helper()
	tx, err := db.Begin(context.Background(), BeginOptions{Limits: lim})
	require.NoError(t, err)
	defer tx.Rollback()
	rows := db.NewRows(0)
	res, err := tx.Exec(context.Background(), sql(text), rows)
	if err != nil {
		return res, "", err
	}
	res, err = tx.Commit(context.Background())
	return res, string(rows.JSON()), err
}

func mustWrite(t testing.TB, db *DB, text string) Result {
	t.Helper()
	res, _, err := write(t, db, text, Limits{})
	require.NoError(t, err, text)
	require.Equal(t, Success, res.State)
	return res
}
