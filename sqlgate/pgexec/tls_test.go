package pgexec

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/postgres"
)

// An authority signs certificates for a test.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	path string // PEM of the certificate
}

func newAuthority(t testing.TB, dir, name string) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	a := &authority{t: t, cert: cert, key: key, path: filepath.Join(dir, name+".pem")}
	a.write(a.path, "CERTIFICATE", der, 0o644)
	return a
}

func (a *authority) write(path, kind string, der []byte, mode os.FileMode) {
	require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode))
}

// issue signs a certificate for 127.0.0.1 and writes it with its key.
func (a *authority) issue(dir, name string, usage x509.ExtKeyUsage) (certPath, keyPath string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(a.t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	certPath, keyPath = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	a.write(certPath, "CERTIFICATE", der, 0o644)
	a.write(keyPath, "EC PRIVATE KEY", private, 0o600)
	return certPath, keyPath
}

func TestTLSUpstream(t *testing.T) {
	cluster := postgres.ClusterForTest(t, nil)
	ca, other := newAuthority(t, cluster.Dir, "ca"), newAuthority(t, t.TempDir(), "other")
	cert, key := ca.issue(cluster.Dir, "db.test", x509.ExtKeyUsageServerAuth)
	clientCert, clientKey := ca.issue(t.TempDir(), "postgres", x509.ExtKeyUsageClientAuth)
	info, err := os.Stat(filepath.Join(cluster.Dir, "data"))
	require.NoError(t, err)
	owner := info.Sys().(*syscall.Stat_t)
	require.NoError(t, os.Chown(key, int(owner.Uid), int(owner.Gid)))

	side := newSide(t, cluster.URL("postgres"))
	hba := filepath.Join(cluster.Dir, "data", "pg_hba.conf")
	server := func(ssl, rules string) {
		require.NoError(t, os.WriteFile(hba, []byte(rules), 0o600))
		side.run("ALTER SYSTEM SET ssl_cert_file = '" + cert + "'")
		side.run("ALTER SYSTEM SET ssl_key_file = '" + key + "'")
		side.run("ALTER SYSTEM SET ssl_ca_file = '" + ca.path + "'")
		side.run("ALTER SYSTEM SET ssl = " + ssl)
		side.run("SELECT pg_reload_conf()")
		// The postmaster, not this session, must have read it: only a new session tells.
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			if newSide(t, cluster.URL("postgres")).ask("SHOW ssl") == ssl {
				return
			}
		}
		t.Fatal("the server did not read its configuration")
	}
	const scram = "host all all 127.0.0.1/32 scram-sha-256\n"
	verify := TLSConfig{CAPath: ca.path}
	try := func(conf TLSConfig) (string, error) {
		db, err := Open(Config{URL: cluster.URL("postgres"), TLS: conf}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		defer closeWithin(t, db)
		rows := db.NewRows(0)
		_, err = db.Read(context.Background(), "", sql("SELECT ssl, client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()"), Limits{}, rows)
		return string(rows.JSON()), err
	}

	server("off", scram)
	_, err = try(verify)
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), "no plaintext where TLS is asked for")

	server("on", scram)
	rows, err := try(verify)
	require.NoError(t, err)
	require.Equal(t, `[{"ssl":true,"client_dn":null}]`, rows)
	rows, err = try(TLSConfig{CAPath: ca.path, ServerName: "db.test"})
	require.NoError(t, err)
	require.Equal(t, `[{"ssl":true,"client_dn":null}]`, rows)
	rows, err = try(TLSConfig{CAPath: ca.path, CertPath: clientCert, KeyPath: clientKey})
	require.NoError(t, err)
	require.Equal(t, `[{"ssl":true,"client_dn":"/CN=postgres"}]`, rows)
	rows, err = try(TLSConfig{Mode: TLSDisable})
	require.NoError(t, err)
	require.Equal(t, `[{"ssl":false,"client_dn":null}]`, rows)

	_, err = try(TLSConfig{CAPath: other.path})
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), "another CA")
	_, err = try(TLSConfig{CAPath: ca.path, ServerName: "elsewhere.test"})
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), "another name")

	server("on", "host all all 127.0.0.1/32 trust\n")
	_, err = try(verify)
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), "a server that skips authentication is not believed")
	_, err = try(TLSConfig{Mode: TLSDisable})
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))

	server("on", "host all all 127.0.0.1/32 md5\n")
	_, err = try(verify)
	require.NoError(t, err, "md5 in the rules still means SCRAM for a SCRAM password")
	server("on", "host all all 127.0.0.1/32 password\n")
	_, err = try(verify)
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err), "no password is shown in the clear")
}

func TestTLSFilesThatDoNotFitAreRefusedAtOnce(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir, "ca")
	cert, key := ca.issue(dir, "client", x509.ExtKeyUsageClientAuth)
	_, otherKey := ca.issue(dir, "other", x509.ExtKeyUsageClientAuth)
	for says, conf := range map[string]TLSConfig{
		"holds no PEM certificate": {CAPath: key},
		"belong together":          {CAPath: ca.path, CertPath: cert},
		"_CERT_PATH and _KEY_PATH": {CAPath: ca.path, CertPath: cert, KeyPath: otherKey},
	} {
		_, err := Open(Config{URL: "postgres://u:p@h/d", TLS: conf}, slog.New(slog.DiscardHandler))
		require.ErrorContains(t, err, says)
	}
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
	require.NotNil(t, l.pg)
	require.Equal(t, byte('I'), l.txStatus)
	require.Equal(t, "UTC", l.params["TimeZone"])
	require.NotZero(t, l.upstream.BackendPID)
	require.Equal(t, side.ask("SHOW server_encoding"), l.params["server_encoding"])
	require.Zero(t, l.fe.ReadBufferLen())
	require.False(t, l.stale())
	require.NoError(t, l.pg.CancelRequest(context.Background()), "a cancel still finds the server")
}

func TestOnlyOtherHostsAreFallbacks(t *testing.T) {
	t.Setenv("PGSSLMODE", "prefer")
	t.Setenv("PGOPTIONS", "-c search_path=evil")
	dir := t.TempDir()
	conf, err := TLSConfig{Mode: TLSVerifyFull, CAPath: newAuthority(t, dir, "ca").path}.load()
	require.NoError(t, err)
	cfg, err := parseURL("GATE_DATABASE_URL", "postgres://u:p@one:5432,two:5433/d", conf, false, "")
	require.NoError(t, err)
	require.Equal(t, "one", cfg.TLSConfig.ServerName)
	require.Len(t, cfg.Fallbacks, 1)
	require.Equal(t, "two", cfg.Fallbacks[0].Host)
	require.Equal(t, "two", cfg.Fallbacks[0].TLSConfig.ServerName)
	require.Empty(t, cfg.RuntimeParams)
	require.Equal(t, "scram-sha-256", cfg.RequireAuth)
	require.Equal(t, "require", cfg.ChannelBinding)

	cfg, err = parseURL("GATE_DATABASE_URL", "postgres://u@one/d", nil, false, "")
	require.NoError(t, err)
	require.Nil(t, cfg.TLSConfig)
	require.Empty(t, cfg.Fallbacks)
	require.Equal(t, "none", cfg.RequireAuth)
}
