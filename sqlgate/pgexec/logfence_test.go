package pgexec

import (
	"context"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/certs"
	"writegate/fixtures/postgres"
)

// openLogFence gives two sessions at a table that is made as the DDL says.
func openLogFence(t *testing.T) (one, two *FenceSession, side *side) {
	t.Helper()
	url := postgres.ForTest(t)
	side = newSide(t, url)
	ddl := LogFenceDDL("gate.log_fence", "postgres")
	side.run(ddl[len("-- Once, as a superuser, in the database of GATE_LOG_FENCE_URL.\nCREATE ROLE \"postgres\" LOGIN;"):])
	f := LogFence{URL: url, Table: "gate.log_fence", TLS: TLSConfig{Mode: TLSDisable}, Holder: "ein Rechner, größer pid 7"}
	for _, s := range []**FenceSession{&one, &two} {
		var err error
		*s, err = f.Open(t.Context())
		require.NoError(t, err)
		t.Cleanup((*s).Close)
	}
	return one, two, side
}

func TestTheFenceOfALogIsOneSessionsAndChangesByWhatItWas(t *testing.T) {
	ctx := context.Background()
	one, two, side := openLogFence(t)
	require.Equal(t, side.ask("SELECT system_identifier FROM pg_control_system()"), one.System)
	id, other := [16]byte{1}, [16]byte{2}
	first := &FenceRow{FenceMark: FenceMark{1, [16]byte{7}}, Holder: "one", HeadSeq: 3, HeadHash: [32]byte{3}}
	took, err := one.Take(ctx, id, FenceMark{}, first)
	require.NoError(t, err)
	require.False(t, took, "without the lock")

	got, _, err := one.Lock(ctx, id)
	require.NoError(t, err)
	require.True(t, got)
	got, by, err := two.Lock(ctx, id)
	require.NoError(t, err)
	require.False(t, got)
	require.Contains(t, by, "ein Rechner, gr??er pid 7", "what application_name can hold of it")
	require.Contains(t, by, "127.0.0.1")
	got, _, err = two.Lock(ctx, other)
	require.NoError(t, err)
	require.True(t, got, "that of another log is another one")

	took, err = one.Take(ctx, id, FenceMark{1, [16]byte{7}}, first)
	require.NoError(t, err)
	require.False(t, took, "there is no row yet")
	took, err = one.Take(ctx, id, FenceMark{}, first)
	require.NoError(t, err)
	require.True(t, took)
	took, err = one.Take(ctx, id, FenceMark{}, first)
	require.NoError(t, err)
	require.False(t, took, "now there is")
	row, found, err := two.Row(ctx, id)
	require.NoError(t, err)
	require.True(t, found)
	require.WithinDuration(t, time.Now(), row.TakenAt, time.Hour)
	row.TakenAt, row.ConfirmedAt = time.Time{}, time.Time{}
	require.Equal(t, *first, row)
	_, found, err = two.Row(ctx, other)
	require.NoError(t, err)
	require.False(t, found)

	confirm := func(s *FenceSession, mark FenceMark, had, hash byte) bool {
		t.Helper()
		ok, err := s.Confirm(ctx, id, mark, [2][32]byte{{had}, {99}}, uint64(hash), [32]byte{hash}, false)
		require.NoError(t, err)
		return ok
	}
	require.True(t, confirm(one, first.FenceMark, 3, 4))
	require.False(t, confirm(one, first.FenceMark, 3, 5), "somebody has confirmed it in between")
	require.False(t, confirm(two, first.FenceMark, 4, 5), "without the lock")
	require.False(t, confirm(one, FenceMark{1, [16]byte{8}}, 4, 5), "another nonce")
	require.False(t, confirm(one, FenceMark{2, [16]byte{7}}, 4, 5), "another epoch")
	second := &FenceRow{FenceMark: FenceMark{2, [16]byte{9}}, Holder: "one", Released: true, FollowedBy: other}
	took, err = one.Take(ctx, id, FenceMark{1, [16]byte{8}}, second)
	require.NoError(t, err)
	require.False(t, took)
	took, err = one.Take(ctx, id, first.FenceMark, second)
	require.NoError(t, err)
	require.True(t, took)
	row, _, err = two.Row(ctx, id)
	require.NoError(t, err)
	row.TakenAt, row.ConfirmedAt = time.Time{}, time.Time{}
	require.Equal(t, *second, row)

	one.Close()
	require.Eventually(t, func() bool {
		got, _, err := two.Lock(ctx, id)
		return err == nil && got
	}, time.Minute, time.Millisecond, "the lock ends with its session")
}

// A server that hears nothing more of a holder ends its session later than the holder
// stops, which commands/fence counts on, and not never.
func TestAFencesSessionOutlivesItsHolderForAWhile(t *testing.T) {
	one, _, _ := openLogFence(t)
	for setting, want := range map[string]string{"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "2", "tcp_user_timeout": "20000",
		"synchronous_commit": "on", "row_security": "off", "search_path": "pg_catalog, pg_temp", "idle_session_timeout": "0", "statement_timeout": "2000"} {
		var got string
		require.NoError(t, one.ask(t.Context(), &got, "SELECT to_json(setting) FROM pg_settings WHERE name = $1", setting))
		require.Equal(t, want, got, setting)
	}
}

func TestATableThatSwallowsTheFenceIsNone(t *testing.T) {
	ctx := context.Background()
	one, _, side := openLogFence(t)
	_, _, err := one.Lock(ctx, [16]byte{1})
	require.NoError(t, err)
	side.run("CREATE FUNCTION gate.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER t BEFORE INSERT ON gate.log_fence FOR EACH ROW EXECUTE FUNCTION gate.nothing()")
	took, err := one.Take(ctx, [16]byte{1}, FenceMark{}, &FenceRow{FenceMark: FenceMark{1, [16]byte{1}}})
	require.NoError(t, err)
	require.False(t, took)
	side.run("DROP TRIGGER t ON gate.log_fence; ALTER TABLE gate.log_fence DROP CONSTRAINT log_fence_pkey")
	_, err = one.Take(ctx, [16]byte{1}, FenceMark{}, &FenceRow{FenceMark: FenceMark{1, [16]byte{1}}})
	require.ErrorContains(t, err, "gate log fence ddl")
	side.run("INSERT INTO gate.log_fence SELECT repeat('01', 16), 1, 'x', '', now(), now(), false, 0, '', ''")
	_, _, err = one.Row(ctx, [16]byte{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1})
	require.ErrorContains(t, err, "holds what no gate wrote there")
}

func TestTwoURLsOfOneDatabaseAreKnownByTheirNames(t *testing.T) {
	const a = "postgres://a:b@db.example.com/app"
	for url, same := range map[string]bool{
		"postgres://other@db.example.com:5432/app": true, "postgres://x@one,db.example.com/app": true,
		"postgres://a@db.example.com/fence": false, "postgres://a@db.example.com:5433/app": false, "postgres://a@other/app": false, "": false, "nonsense": false,
	} {
		require.Equal(t, same, SameDatabase(a, url), url)
	}
}

func TestTheTLSOfAnotherDatabaseIsAsStrictOrStricter(t *testing.T) {
	guarded := TLSConfig{Mode: TLSDisable, CAPath: "/guarded.pem", ServerName: "guarded"}
	require.Equal(t, TLSConfig{Mode: TLSVerifyFull, CAPath: "/own.pem"}, guarded.TLSBeside("postgres://a@b/c?sslmode=verify-full&sslrootcert=/own.pem"))
	guarded.Mode = TLSVerifyFull
	require.Equal(t, TLSConfig{Mode: TLSVerifyFull, CAPath: "/guarded.pem"}, guarded.TLSBeside("postgres://a@b/c?sslmode=disable"), "and then refused for that word")
	f := LogFence{URL: "postgres://a:geheim@b/c?sslmode=disable", TLS: guarded}
	err := f.Check()
	require.ErrorContains(t, err, SettingFence)
	require.NotContains(t, err.Error(), "geheim")
}

// The fence's server is verified by its own name, whatever the guarded database is called, and by
// the authority of the fence's URL.
func TestAFencesServerIsVerified(t *testing.T) {
	server := newTLSServer(t)
	server.serve("on", "hostssl all all 127.0.0.1/32 scram-sha-256\n"+scramRule)
	open := func(ca string, guarded TLSConfig) (bool, error) {
		url := server.URL("postgres") + "?sslmode=verify-full&sslrootcert=" + ca
		f := LogFence{URL: url, Table: "gate.log_fence", TLS: guarded.TLSBeside(url)}
		s, err := f.Open(t.Context())
		if err != nil {
			return false, err
		}
		defer s.Close()
		var encrypted bool
		return encrypted, s.ask(t.Context(), &encrypted, "SELECT to_json(ssl) FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
	}
	for _, guarded := range []TLSConfig{{Mode: TLSDisable}, {Mode: TLSVerifyFull, CAPath: "/nowhere.pem", ServerName: "db.test"}} {
		encrypted, err := open(server.ca.Path, guarded)
		require.NoError(t, err)
		require.True(t, encrypted)
	}
	other := certs.NewAuthority(t, t.TempDir(), "other")
	_, err := open(other.Path, TLSConfig{Mode: TLSVerifyFull})
	require.ErrorContains(t, err, "certificate signed by unknown authority")
	server.show(server.ca, func(c *x509.Certificate) { c.IPAddresses = nil }) // db.test, and not 127.0.0.1 any more
	server.serve("on", scramRule)
	_, err = open(server.ca.Path, TLSConfig{Mode: TLSVerifyFull, ServerName: "db.test"})
	require.ErrorContains(t, err, "certificate")
}

// What may not be applied any more is rolled back in the place of its COMMIT, and what runs
// outside a transaction is not sent.
func TestNothingIsCommittedThatMayNotBe(t *testing.T) {
	refused := fault.New(fault.AuditUnavailable, "for a test").With("reason", "fence_lost")
	var why error
	db, side := open(t, func(c *Config) { c.MayCommit = func() error { return why } })
	side.run("CREATE TABLE t (a int)")
	_, _, err := write(t, db, "INSERT INTO t VALUES (1)", Limits{})
	require.NoError(t, err)
	why = refused
	res, _, err := write(t, db, "INSERT INTO t VALUES (2)", Limits{})
	require.ErrorIs(t, err, refused)
	require.Equal(t, Failure, res.State)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, BasisRollbackAcknowledged, res.Basis)
	alone, err := db.BeginAlone(context.Background(), BeginOptions{DDL: true})
	require.NoError(t, err)
	res, err = alone.Exec(context.Background(), sql("CREATE INDEX CONCURRENTLY i ON t (a)"), db.NewRows(0))
	require.ErrorIs(t, err, refused)
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM pg_class WHERE relname = 'i'"))
	require.Equal(t, "1", side.ask("SELECT count(*) FROM t"))
	require.Zero(t, db.Stats().InUse)
}
