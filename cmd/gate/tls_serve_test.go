package main

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/fixtures/certs"
)

// A tlsGate is a gate behind TLS that demands certificates of its clients.
type tlsGate struct {
	*testGate
	files   string           // folder of its PEM files
	servers *certs.Authority // signs the gate
	clients *certs.Authority // signs its clients
}

// startTLSGate starts the shop behind TLS; its harness shows the certificate of
// CN=shop.
func startTLSGate(t *testing.T, look time.Duration, extra ...string) *tlsGate {
	t.Helper()
	return startTLSGateWith(t, newGateDir(t, nil), look, extra...)
}

// startTLSGateWith is startTLSGate in a folder that is there, with its policy.
func startTLSGateWith(t *testing.T, d gateDir, look time.Duration, extra ...string) *tlsGate {
	t.Helper()
	g := &tlsGate{files: t.TempDir()}
	g.servers, g.clients = certs.NewAuthority(t, g.files, "servers"), certs.NewAuthority(t, g.files, "clients")
	pair := g.servers.Issue(g.files, "gate.test", x509.ExtKeyUsageServerAuth)
	d.execute(t, shopTables)
	g.testGate = startGateWith(t, d, func(a *app) { a.look = look }, append(extra,
		"GATE_TLS_CERT_PATH="+pair.Cert, "GATE_TLS_KEY_PATH="+pair.Key, "GATE_TLS_CLIENT_CA_BUNDLE_PATH="+g.clients.Path, "GATE_TLS_REQUIRE_CLIENT_CERT=true")...)
	g.base = "https://" + strings.TrimPrefix(g.base, "http://")
	g.testGate.client = g.as(t, "shop")
	return g
}

// as is a client with a certificate of this name.
func (g *tlsGate) as(t *testing.T, name string, change ...func(*x509.Certificate)) *http.Client {
	shown := g.clients.Issue(t.TempDir(), name, x509.ExtKeyUsageClientAuth, change...).Load()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: g.servers.Pool(), Certificates: []tls.Certificate{shown}}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestTheVerifiedSubjectIsAFactAndEvidence(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, time.Hour)
	r := g.query(t, ask("UPDATE orders SET status = 'paid' WHERE id = 1"))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	g.end(t)
	var subjects, principals []string
	for _, e := range g.events(t) {
		switch e.Type {
		case event.TypeRequestReceived:
			var p event.RequestReceived
			require.NoError(t, e.Parse(&p))
			principals = append(principals, p.Principal)
		case event.TypeDecisionRecorded:
			var p event.DecisionRecorded
			require.NoError(t, e.Parse(&p))
			subjects = append(subjects, p.Facts.TLSSubject)
		}
	}
	require.Equal(t, []string{"CN=shop"}, principals)
	require.Equal(t, []string{"CN=shop"}, subjects)
}

func TestRatesAreCountedByTheVerifiedSubject(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, time.Hour, "GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1", "GATE_RATE_LIMIT_BURST=1")
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	require.Equal(t, http.StatusTooManyRequests, g.query(t, ask("SELECT 1")).status)
	g.testGate.client = g.as(t, "reports")
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status, "from the same address, and another client")
	g.testGate.client = g.as(t, "shop")
	require.Equal(t, http.StatusTooManyRequests, g.query(t, ask("SELECT 1")).status, "another certificate of the same subject")
	for _, workload := range []string{"spiffe://shop.test/one", "spiffe://shop.test/two"} {
		g.testGate.client = g.as(t, "leaf", certs.Nameless(workload))
		require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
		g.testGate.client = g.as(t, "leaf", certs.Nameless(workload))
		require.Equal(t, http.StatusTooManyRequests, g.query(t, ask("SELECT 1")).status, "another certificate of the same workload")
	}
}

func TestNobodyWithoutACertificateGetsThrough(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, time.Hour)
	stranger, err := tls.Dial("tcp", strings.TrimPrefix(g.base, "https://"), &tls.Config{RootCAs: g.servers.Pool()})
	require.NoError(t, err, "a client hears of it behind its own handshake")
	_, err = stranger.Read(make([]byte, 1)) // no request is sent: one that crosses the refusal would end in a reset
	require.ErrorContains(t, err, "certificate required")
	require.NoError(t, stranger.Close())
	plain, err := http.Get("http" + strings.TrimPrefix(g.base, "https") + "/health")
	require.NoError(t, err)
	defer plain.Body.Close()
	body, err := io.ReadAll(plain.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, plain.StatusCode)
	require.Contains(t, string(body), "HTTPS")
}

// tlsHealth is the side clients in GET /health.
func (g *tlsGate) tlsHealth(t *testing.T) (status int, side map[string]any) {
	t.Helper()
	r := g.get(t, "/health")
	sides, _ := r.json(t)["tls"].([]any)
	require.Len(t, sides, 1, "the database has no TLS in this test")
	return r.status, sides[0].(map[string]any)
}

func TestChangedFilesAreTakenWithoutARestartAndBadOnesAreNot(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, 10*time.Millisecond)
	_, side := g.tlsHealth(t)
	require.Equal(t, "ok", side["status"])

	// A client of the old authority is out as soon as the bundle has another one.
	revoked := g.testGate.client
	g.clients = certs.NewAuthority(t, g.files, "next")
	require.NoError(t, os.Rename(g.clients.Path, g.files+"/clients.pem"))
	g.testGate.client = g.as(t, "successor")
	require.Eventually(t, func() bool { _, err := g.try(http.MethodGet, "/health", nil); return err == nil }, startPatience, pollEvery)
	_, err := revoked.Get(g.base + "/health")
	require.Error(t, err)

	soon := time.Now().Add(24 * time.Hour).Truncate(time.Second)
	g.servers.Issue(g.files, "gate.test", x509.ExtKeyUsageServerAuth, certs.Expiring(soon))
	require.Eventually(t, func() bool { _, side := g.tlsHealth(t); return side["status"] == "expires_soon" }, startPatience, pollEvery)
	status, side := g.tlsHealth(t)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, event.Timestamp(soon), side["expires_at"])

	require.NoError(t, os.WriteFile(g.files+"/gate.test.key", []byte("no key"), 0o600))
	require.Eventually(t, func() bool { _, side := g.tlsHealth(t); return side["status"] == "reload_failed" }, startPatience, pollEvery)
	status, side = g.tlsHealth(t)
	require.Equal(t, http.StatusOK, status, "the old certificates serve")
	require.Contains(t, side["message"], "GATE_TLS_KEY_PATH")
	require.Contains(t, g.output.String(), "new certificates are refused")

	g.servers.Issue(g.files, "gate.test", x509.ExtKeyUsageServerAuth)
	require.Eventually(t, func() bool { _, side := g.tlsHealth(t); return side["status"] == "ok" }, startPatience, pollEvery)
}

// Not parallel: its signal reaches every gate of this process.
func TestSIGHUPReadsCertificatesAnew(t *testing.T) {
	g := startTLSGate(t, time.Hour)
	_, side := g.tlsHealth(t)
	ends := time.Now().Add(200 * 24 * time.Hour).Truncate(time.Second)
	g.servers.Issue(g.files, "gate.test", x509.ExtKeyUsageServerAuth, certs.Expiring(ends))
	require.NotEqual(t, event.Timestamp(ends), side["expires_at"])
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	require.Eventually(t, func() bool { _, side := g.tlsHealth(t); return side["expires_at"] == event.Timestamp(ends) }, startPatience, pollEvery)
}

// Not parallel: its signals reach every gate of this process.
func TestCertificatesThatRanOutMakeHealthNonOK(t *testing.T) {
	g := startTLSGate(t, time.Hour)
	client := g.testGate.client
	require.Equal(t, http.StatusOK, g.get(t, "/health").status)
	short := func() {
		g.servers.Issue(g.files, "gate.test", x509.ExtKeyUsageServerAuth, certs.Expiring(time.Now().Add(2*time.Second)))
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	}
	short()
	require.Eventually(t, func() bool {
		_, side := g.tlsHealth(t)
		if side["status"] == "reload_failed" { // it ran out before it was read
			short()
		}
		return side["status"] == "expired"
	}, startPatience, pollEvery, "told over the connection from before")
	status, side := g.tlsHealth(t)
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Equal(t, "expired", side["status"])
	client.CloseIdleConnections()
	_, err := client.Get(g.base + "/health")
	require.ErrorContains(t, err, "expired")
}

func TestAGateDoesNotStartWithCertificatesThatDoNotFit(t *testing.T) {
	dir := t.TempDir()
	ca := certs.NewAuthority(t, dir, "ca")
	one, two := ca.Issue(dir, "one", x509.ExtKeyUsageServerAuth), ca.Issue(dir, "two", x509.ExtKeyUsageServerAuth)
	d := gateDir{path: t.TempDir(), database: "postgres://u:p@127.0.0.1:1/db"}
	output := new(lockedBuffer)
	code := Run(t.Context(), []string{"serve"}, streams{strings.NewReader(""), output, output}, d.environ("GATE_TLS_CERT_PATH="+one.Cert, "GATE_TLS_KEY_PATH="+two.Key))
	require.Equal(t, exitConfigured, code)
	require.Contains(t, output.String(), "GATE_TLS_CERT_PATH and GATE_TLS_KEY_PATH")
	require.NoFileExists(t, d.file("audit.wal"), "nothing was begun")
}

func TestCommandsReachAGateBehindTLS(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, time.Hour)
	shown := g.clients.Issue(t.TempDir(), "ana", x509.ExtKeyUsageClientAuth)
	run := func(args ...string) (int, string) {
		output := new(lockedBuffer)
		base := []string{"policy", "diff", "active", "active", "--url", g.base}
		code := Run(t.Context(), append(base, args...), streams{strings.NewReader(""), output, output}, []string{"GATE_OPERATOR_TOKEN=" + operatorTestToken})
		return code, output.String()
	}
	code, said := run("--cacert", g.servers.Path, "--cert", shown.Cert, "--key", shown.Key)
	require.Zero(t, code, said)
	code, said = run("--cert", shown.Cert, "--key", shown.Key)
	require.NotZero(t, code, "the system knows no such authority")
	require.Contains(t, said, "certificate")
	code, said = run("--cacert", g.servers.Path)
	require.NotZero(t, code, "without a certificate: %s", said)
	code, said = run("--cacert", g.servers.Path, "--cert", shown.Cert)
	require.NotZero(t, code)
	require.Contains(t, said, "--cert and --key go together")
}

func TestCleartextThatOthersReachIsWarnedOf(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	g := startGate(t, d, "GATE_HTTP_LISTEN_ADDR=0.0.0.0:0")
	require.Contains(t, g.output.String(), "cleartext on an address that others reach")
	quiet := startGate(t, newGateDir(t, nil))
	require.NotContains(t, quiet.output.String(), "cleartext")
}
