package pgexec

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/certs"
	"writegate/fixtures/postgres"
)

// A tlsServer is a PostgreSQL of the test's own with certificates.
type tlsServer struct {
	*postgres.Cluster
	t      *testing.T
	ca     *certs.Authority // signs the server, and is the one it believes
	client certs.Pair       // of role postgres
}

const scramRule = "host all all 127.0.0.1/32 scram-sha-256\n"

func newTLSServer(t *testing.T) *tlsServer {
	t.Helper()
	cluster := postgres.ClusterForTest(t, nil)
	s := &tlsServer{Cluster: cluster, t: t, ca: certs.NewAuthority(t, cluster.Dir, "ca")}
	s.client = s.ca.Issue(t.TempDir(), "postgres", x509.ExtKeyUsageClientAuth)
	s.show(s.ca)
	return s
}

// show gives the server a certificate of an authority.
func (s *tlsServer) show(ca *certs.Authority, change ...func(*x509.Certificate)) {
	s.t.Helper()
	pair := ca.Issue(s.Dir, "db.test", x509.ExtKeyUsageServerAuth, change...)
	info, err := os.Stat(filepath.Join(s.Dir, "data"))
	require.NoError(s.t, err)
	owner := info.Sys().(*syscall.Stat_t)
	require.NoError(s.t, os.Chown(pair.Key, int(owner.Uid), int(owner.Gid)))
	for setting, path := range map[string]string{"ssl_cert_file": pair.Cert, "ssl_key_file": pair.Key, "ssl_ca_file": s.ca.Path} {
		require.NoError(s.t, s.Execute(s.t.Context(), "postgres", "ALTER SYSTEM SET "+setting+" = '"+path+"'"))
	}
}

// serve has the server run with ssl on or off and these lines as pg_hba.conf.
func (s *tlsServer) serve(ssl, rules string) {
	s.t.Helper()
	side := newSide(s.t, s.URL("postgres"))
	require.NoError(s.t, os.WriteFile(filepath.Join(s.Dir, "data", "pg_hba.conf"), []byte(rules), 0o600))
	side.run("ALTER SYSTEM SET ssl = " + ssl)
	before := side.ask("SELECT pg_conf_load_time()")
	side.run("SELECT pg_reload_conf()")
	// The postmaster, not this session, must have read it: only a new session tells.
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if fresh := newSide(s.t, s.URL("postgres")); fresh.ask("SELECT pg_conf_load_time()") != before && fresh.ask("SHOW ssl") == ssl {
			return
		}
	}
	s.t.Fatal("the server did not read its configuration")
}

func (s *tlsServer) open(conf TLSConfig) *DB {
	s.t.Helper()
	db, err := Open(Config{URL: s.URL("postgres"), TLS: conf}, slog.New(slog.DiscardHandler))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { closeWithin(s.t, db) })
	return db
}

// sslOf is what the server says of the connection that a read gets.
func sslOf(db *DB) (string, error) {
	rows := db.NewRows(0)
	_, err := db.Read(context.Background(), "", sql("SELECT ssl, client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()"), Limits{}, rows)
	return string(rows.JSON()), err
}

func TestTLSUpstream(t *testing.T) {
	s := newTLSServer(t)
	other := certs.NewAuthority(t, t.TempDir(), "other")
	verify := TLSConfig{CAPath: s.ca.Path}
	try := func(conf TLSConfig) (string, error) { return sslOf(s.open(conf)) }

	s.serve("off", scramRule)
	_, err := try(verify)
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), "no plaintext where TLS is asked for")

	s.serve("on", scramRule)
	rows, err := try(verify)
	require.NoError(t, err)
	require.Equal(t, `[{"ssl":true,"client_dn":null}]`, rows)
	rows, err = try(TLSConfig{CAPath: s.ca.Path, ServerName: "db.test"})
	require.NoError(t, err)
	require.Equal(t, `[{"ssl":true,"client_dn":null}]`, rows)
	rows, err = try(TLSConfig{CAPath: s.ca.Path, CertPath: s.client.Cert, KeyPath: s.client.Key})
	require.NoError(t, err)
	require.Equal(t, `[{"ssl":true,"client_dn":"/CN=postgres"}]`, rows)
	rows, err = try(TLSConfig{Mode: TLSDisable})
	require.NoError(t, err)
	require.Equal(t, `[{"ssl":false,"client_dn":null}]`, rows)

	// libpq's words in the URL alone
	u, err := url.Parse(s.URL("postgres"))
	require.NoError(t, err)
	u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {s.ca.Path}, "connect_timeout": {"4"}}.Encode()
	db, err := Open(Config{URL: u.String()}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { closeWithin(t, db) })
	rows, err = sslOf(db)
	require.NoError(t, err)
	require.Equal(t, `[{"ssl":true,"client_dn":null}]`, rows)
	require.Equal(t, 4*time.Second, db.writer.login.ConnectTimeout)
	require.Equal(t, []string{s.ca.Path, "", ""}, db.TLSFiles())

	_, err = try(TLSConfig{CAPath: other.Path})
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), "another CA")
	_, err = try(TLSConfig{CAPath: s.ca.Path, ServerName: "elsewhere.test"})
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), "another name")

	s.serve("on", "host all all 127.0.0.1/32 trust\n")
	_, err = try(verify)
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), "a server that skips authentication is not believed")
	_, err = try(TLSConfig{Mode: TLSDisable})
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))

	s.serve("on", "host all all 127.0.0.1/32 md5\n")
	_, err = try(verify)
	require.NoError(t, err, "md5 in the rules still means SCRAM for a SCRAM password")
	s.serve("on", "host all all 127.0.0.1/32 password\n")
	_, err = try(verify)
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), "no password is shown in the clear")
}

func TestAServerOfAnotherAuthorityIsBelievedFromTheReloadOn(t *testing.T) {
	s := newTLSServer(t)
	s.serve("on", scramRule+"hostssl all all 127.0.0.1/32 scram-sha-256\n")
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	believe := func(ca *certs.Authority) {
		text, err := os.ReadFile(ca.Path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(bundle, text, 0o644))
	}
	believe(s.ca)
	db := s.open(TLSConfig{CAPath: bundle})
	_, err := sslOf(db)
	require.NoError(t, err)

	next := certs.NewAuthority(t, s.Dir, "next")
	s.show(next)
	s.serve("on", scramRule)
	db.reader.lost() // the next read connects anew
	_, err = sslOf(db)
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))

	require.NoError(t, os.WriteFile(bundle, []byte("nothing"), 0o644))
	_, err = db.ReloadTLS()
	require.ErrorContains(t, err, "GATE_TLS_UPSTREAM_CA_BUNDLE_PATH")
	believe(next)
	expires, err := db.ReloadTLS()
	require.NoError(t, err)
	require.True(t, expires.After(time.Now()))
	_, err = sslOf(db)
	require.NoError(t, err)

	s.show(next, certs.Expiring(time.Now().Add(-time.Minute)))
	s.serve("on", scramRule)
	db.reader.lost()
	_, err = sslOf(db)
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), "a certificate that ran out")
}

func TestTLSFilesThatDoNotFitAreRefusedAtOnce(t *testing.T) {
	dir := t.TempDir()
	ca := certs.NewAuthority(t, dir, "ca")
	client, other := ca.Issue(dir, "client", x509.ExtKeyUsageClientAuth), ca.Issue(dir, "other", x509.ExtKeyUsageClientAuth)
	for says, conf := range map[string]TLSConfig{
		"holds a PEM block":        {CAPath: client.Key},
		"belong together":          {CAPath: ca.Path, CertPath: client.Cert},
		"_CERT_PATH and _KEY_PATH": {CAPath: ca.Path, CertPath: client.Cert, KeyPath: other.Key},
	} {
		_, err := Open(Config{URL: "postgres://u:p@h/d", TLS: conf}, slog.New(slog.DiscardHandler))
		require.ErrorContains(t, err, says)
	}
}

// A connection lives on behind an exchange of certificates, and a cancel makes another
// one to the same server, which shows the new certificate by then.
func TestACancelBehindAnExchangeOfCertificates(t *testing.T) {
	s := newTLSServer(t)
	s.serve("on", scramRule)
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	old, err := os.ReadFile(s.ca.Path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(bundle, old, 0o600))
	db := s.open(TLSConfig{CAPath: bundle})
	tx, err := db.Begin(t.Context(), BeginOptions{ExecutionID: "exe_1"})
	require.NoError(t, err)

	next := certs.NewAuthority(t, s.Dir, "next")
	both, err := os.ReadFile(next.Path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(bundle, append(both, old...), 0o600))
	_, err = db.ReloadTLS()
	require.NoError(t, err)
	s.show(next)
	s.serve("on", scramRule)

	states := make(chan CancelState, 1)
	go func() {
		for {
			if state := db.Cancel(context.Background(), "exe_1"); state != CancelNothing {
				states <- state
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, err = tx.Exec(t.Context(), sql("SELECT pg_sleep(60)"), db.NewRows(0))
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, CancelForwarded, <-states)
}

// Taking a connection over is outside pgx's version promise: this test holds
// the fields that are used.
func TestWhatIsTakenOverFromPgx(t *testing.T) {
	db, side := open(t)
	l, err := db.writer.acquire(context.Background())
	require.NoError(t, err)
	defer l.release()
	require.NotNil(t, l.net)
	require.NotNil(t, l.fe)
	require.NotNil(t, l.key)
	require.Equal(t, byte('I'), l.txStatus)
	require.Equal(t, "UTC", l.params["TimeZone"])
	require.NotZero(t, l.upstream.BackendPID)
	require.Equal(t, side.ask("SHOW server_encoding"), l.params["server_encoding"])
	require.Zero(t, l.fe.ReadBufferLen())
	require.False(t, l.stale())
	require.NoError(t, l.sendCancel(context.Background()), "a cancel still finds the server")
}

func TestOnlyOtherHostsAreFallbacks(t *testing.T) {
	t.Setenv("PGSSLMODE", "prefer")
	t.Setenv("PGCONNECT_TIMEOUT", "77")
	t.Setenv("PGOPTIONS", "-c search_path=evil")
	dir := t.TempDir()
	set, err := TLSConfig{Mode: TLSVerifyFull, CAPath: certs.NewAuthority(t, dir, "ca").Path}.load(time.Now())
	require.NoError(t, err)
	cfg, err := parseURL("GATE_DATABASE_URL", "postgres://u:p@one:5432,two:5433/d", set, time.Second)
	require.NoError(t, err)
	require.Equal(t, "one", cfg.TLSConfig.ServerName)
	require.Len(t, cfg.Fallbacks, 1)
	require.Equal(t, "two", cfg.Fallbacks[0].Host)
	require.Equal(t, "two", cfg.Fallbacks[0].TLSConfig.ServerName)
	require.Empty(t, cfg.RuntimeParams)
	require.Equal(t, "scram-sha-256", cfg.RequireAuth)
	require.Equal(t, "require", cfg.ChannelBinding)

	cfg, err = parseURL("GATE_DATABASE_URL", "postgres://u:p%40%23@one/d%40e?sslmode=verify-full", set, time.Second)
	require.NoError(t, err)
	require.Equal(t, []string{"p@#", "d@e"}, []string{cfg.Password, cfg.Database})
	cfg, err = parseURL("GATE_DATABASE_URL", "postgres://u@one/d", new(tlsSet), time.Second)
	require.NoError(t, err)
	require.Nil(t, cfg.TLSConfig)
	require.Empty(t, cfg.Fallbacks)
	require.Equal(t, "none", cfg.RequireAuth)
	require.Zero(t, cfg.ConnectTimeout, "PGCONNECT_TIMEOUT does not reach us")
}
