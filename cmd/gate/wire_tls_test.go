package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/fixtures/certs"
)

// wireAs connects over TLS with a certificate of this name.
func (g *tlsGate) wireAs(t *testing.T, user, name string) (*pgconn.PgConn, error) {
	t.Helper()
	config, err := pgconn.ParseConfig(g.wireURL(t))
	require.NoError(t, err)
	shown := g.clients.Issue(t.TempDir(), name, x509.ExtKeyUsageClientAuth).Load()
	config.User, config.Fallbacks = user, nil
	config.TLSConfig = &tls.Config{RootCAs: g.servers.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{shown}, MinVersion: tls.VersionTLS12}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	c, err := pgconn.ConnectConfig(ctx, config)
	if err == nil {
		t.Cleanup(func() { _ = c.Close(context.Background()) }) // the gate may have closed it
	}
	return c, err
}

func TestACertificateLogsInOnTheWireAndIsEvidence(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, time.Hour, append(wireSettings, "GATE_PGWIRE_AUTH=cert")...)
	c, err := g.wireAs(t, "ana", "ana")
	require.NoError(t, err)
	_, err = c.Exec(context.Background(), insertOrder).ReadAll()
	require.NoError(t, err)
	_, err = g.wireAs(t, "eve", "ana")
	require.ErrorContains(t, err, "28000")
	_, err = pgconn.Connect(context.Background(), g.wireURL(t))
	require.ErrorContains(t, err, "28000", "TLS is required where there is a certificate")
	require.NoError(t, c.Close(context.Background()))
	g.end(t)
	for _, e := range g.events(t) {
		if e.Type == event.TypeRequestReceived {
			var p event.RequestReceived
			require.NoError(t, e.Parse(&p))
			require.Equal(t, "CN=ana", p.Principal)
			require.NotEmpty(t, p.WireSession)
			return
		}
	}
	t.Fatal("the statement left no evidence")
}

func TestPsqlSpeaksTLSWithTheGate(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, time.Hour, wireSettings...)
	pair := g.clients.Issue(t.TempDir(), "ana", x509.ExtKeyUsageClientAuth)
	_, port, err := net.SplitHostPort(g.wire)
	require.NoError(t, err)
	psql := exec.Command("psql", "-X", "-A", "-t", "-c", "SELECT count(*) FROM orders", "-d",
		"host=localhost hostaddr=127.0.0.1 port="+port+" user=ana dbname="+g.databaseName(t)+" sslmode=verify-full sslrootcert="+g.servers.Path+" sslcert="+pair.Cert+" sslkey="+pair.Key)
	psql.Env = append(os.Environ(), "PGOPTIONS=-c gate.tenant=acme -c gate.app=shop")
	out, err := psql.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "100\n", string(out))
}

func TestAnOpenConnectionEndsWhenItsAuthorityIsTakenOut(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, 10*time.Millisecond, append(wireSettings, "GATE_PGWIRE_AUTH=cert")...)
	c, err := g.wireAs(t, "ana", "ana")
	require.NoError(t, err)
	_, err = c.Exec(context.Background(), "SELECT 1").ReadAll()
	require.NoError(t, err)
	old := g.clients
	g.clients = certs.NewAuthority(t, g.files, "next")
	require.NoError(t, os.Rename(g.clients.Path, old.Path))
	require.Eventually(t, func() bool {
		_, err = c.Exec(context.Background(), "SELECT 1").ReadAll()
		return err != nil
	}, startPatience, pollEvery)
	require.ErrorContains(t, err, "28000")
	successor, err := g.wireAs(t, "ana", "ana")
	require.NoError(t, err)
	_, err = successor.Exec(context.Background(), insertOrder).ReadAll()
	require.NoError(t, err)
	g.testGate.client = g.as(t, "shop")
}
