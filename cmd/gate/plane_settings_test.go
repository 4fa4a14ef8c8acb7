package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/certs"
	"writegate/http/controlplane"
)

// planeEnvironment is what a control plane needs at least.
func planeEnvironment(t *testing.T) map[string]string {
	t.Helper()
	hash, err := planeHash()
	require.NoError(t, err)
	return map[string]string{"CONTROL_PLANE_ADMIN_USER": "ana", "CONTROL_PLANE_ADMIN_PASSWORD_HASH": hash, "GATE_BACKEND_URL": "http://127.0.0.1:6543"}
}

func pairs(values map[string]string) []string {
	var environ []string
	for name, value := range values {
		environ = append(environ, name+"="+value)
	}
	return environ
}

func TestAControlPlaneRefusesSettingsThatCannotBeMeant(t *testing.T) {
	t.Parallel()
	good := planeEnvironment(t)
	_, err := loadControlPlane(pairs(good))
	require.NoError(t, err)
	production := map[string]string{"CONTROL_PLANE_PROFILE": "production", "CONTROL_PLANE_TLS_CERT_PATH": "c", "CONTROL_PLANE_TLS_KEY_PATH": "k",
		"CONTROL_PLANE_PUBLIC_URL": "https://gate.example", "GATE_BACKEND_URL": "https://gate.internal:6543"}
	for _, c := range []struct {
		name, value string
		production  bool
		want        string
	}{
		{"CONTROL_PLANE_ADMIN_USER", "", false, "CONTROL_PLANE_ADMIN_USER must name"},
		{"CONTROL_PLANE_ADMIN_PASSWORD_HASH", "", false, "CONTROL_PLANE_ADMIN_PASSWORD_HASH must be set"},
		{"CONTROL_PLANE_ADMIN_PASSWORD_HASH", "plain-password-here", false, "neither argon2id nor bcrypt"},
		{"GATE_BACKEND_URL", "", false, "GATE_BACKEND_URL must be the address"},
		{"CONTROL_PLANE_MODE", "demo", false, "must be one of real, mock"},
		{"CONTROL_PLANE_MODDE", "mock", false, "Did you mean CONTROL_PLANE_MODE?"},
		{"CONTROL_PLANE_TLS_CERT_PATH", "c", false, "go together"},
		{"CONTROL_PLANE_BACKEND_KEY_PATH", "k", false, "go together"},
		{"CONTROL_PLANE_PUBLIC_URL", "https://gate.example", false, "must begin with http://"},
		{"CONTROL_PLANE_PUBLIC_URL", "http://gate.example/path", false, "without a path"},
		{"CONTROL_PLANE_TRUSTED_PROXIES", "somewhere", false, "CONTROL_PLANE_TRUSTED_PROXIES"},
		{"CONTROL_PLANE_TLS_CERT_PATH", "", true, "CONTROL_PLANE_TLS_CERT_PATH and CONTROL_PLANE_TLS_KEY_PATH"},
		{"CONTROL_PLANE_PUBLIC_URL", "", true, "CONTROL_PLANE_PUBLIC_URL must be set in production"},
		{"CONTROL_PLANE_MODE", "mock", true, "CONTROL_PLANE_MODE must be real in production"},
		{"GATE_BACKEND_URL", "http://gate.internal:6543", true, "must begin with https:// in production"},
	} {
		values := make(map[string]string)
		for name, value := range good {
			values[name] = value
		}
		if c.production {
			for name, value := range production {
				values[name] = value
			}
			_, err := loadControlPlane(pairs(values))
			require.NoError(t, err)
		}
		values[c.name] = c.value
		_, err := loadControlPlane(pairs(values))
		require.ErrorContains(t, err, c.want, c.name)
		require.NotContains(t, err.Error(), good["CONTROL_PLANE_ADMIN_PASSWORD_HASH"])
		require.NotContains(t, err.Error(), "plain-password-here")
	}
}

func TestAControlPlaneWithoutItsSettingsEndsWithAllOfThem(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, exitConfigured, Run(context.Background(), []string{"control-plane"}, streams{strings.NewReader(""), &out, &errs}, []string{"CONTROL_PLANE_PROFILE=production"}))
	for _, name := range []string{"CONTROL_PLANE_ADMIN_USER", "CONTROL_PLANE_ADMIN_PASSWORD_HASH", "GATE_BACKEND_URL", "CONTROL_PLANE_TLS_CERT_PATH", "CONTROL_PLANE_PUBLIC_URL"} {
		require.Contains(t, errs.String(), name)
	}
}

func TestAPasswordIsHashedAndNotShown(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	require.Zero(t, Run(context.Background(), []string{"control-plane", "hash-password"}, streams{strings.NewReader(planePassword + "\n"), &out, &errs}, nil), errs.String())
	_, err := controlplane.ParsePasswordHash(strings.TrimSpace(out.String()))
	require.NoError(t, err)
	require.NotContains(t, out.String()+errs.String(), planePassword)
	require.NotZero(t, Run(context.Background(), []string{"control-plane", "hash-password"}, streams{strings.NewReader("short\n"), &out, &errs}, nil))
}

// A securePlane is a control plane in production, asked as https://localhost.
type securePlane struct {
	*testPlane
	client *http.Client
	files  string           // folder of its PEM files
	own    *certs.Authority // signs what browsers see
}

func (p *securePlane) do(t *testing.T, method, path, body, token string) (int, map[string]any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, strings.Replace(p.base, "http:", "https:", 1)+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Host = "localhost"
	r.Header.Set("Origin", "https://localhost")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-CSRF-Token", token)
	resp, err := p.client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	answer := make(map[string]any)
	require.NoError(t, json.Unmarshal(text, &answer), "%s", text)
	return resp.StatusCode, answer
}

func startSecurePlane(t *testing.T, g *tlsGate, backendCA string, look time.Duration) *securePlane {
	t.Helper()
	p := &securePlane{files: t.TempDir()}
	p.own = certs.NewAuthority(t, p.files, "own")
	pair, shown := p.own.Issue(p.files, "localhost", x509.ExtKeyUsageServerAuth), g.clients.Issue(p.files, "control-plane", x509.ExtKeyUsageClientAuth)
	p.testPlane = startTestPlaneWith(t, g.base, func(a *app) { a.look = look }, "CONTROL_PLANE_PROFILE=production", "CONTROL_PLANE_PUBLIC_URL=https://localhost",
		"CONTROL_PLANE_TLS_CERT_PATH="+pair.Cert, "CONTROL_PLANE_TLS_KEY_PATH="+pair.Key, "CONTROL_PLANE_BACKEND_CA_BUNDLE_PATH="+backendCA,
		"CONTROL_PLANE_BACKEND_CERT_PATH="+shown.Cert, "CONTROL_PLANE_BACKEND_KEY_PATH="+shown.Key)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.own.Pool(), ServerName: "localhost"}}
	t.Cleanup(transport.CloseIdleConnections)
	p.client = &http.Client{Jar: jar, Transport: transport}
	return p
}

// login begins a session of the client and gives its token.
func (p *securePlane) login(t *testing.T) string {
	t.Helper()
	status, answer := p.do(t, http.MethodPost, "/api/gate/admin/login", `{"username":"ana","password":"`+planePassword+`"}`, "")
	require.Equal(t, http.StatusOK, status, "%v", answer)
	token, _ := answer["csrf_token"].(string)
	return token
}

// handshake connects anew, believing one authority, and gives the end of the
// certificate that was shown.
func (p *securePlane) handshake(believed *certs.Authority) (time.Time, error) {
	conn, err := tls.Dial("tcp", strings.TrimPrefix(p.base, "http://"), &tls.Config{RootCAs: believed.Pool(), ServerName: "localhost"})
	if err != nil {
		return time.Time{}, err
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].NotAfter, nil
}

// Not parallel: its signal reaches every gate of this process.
func TestAControlPlaneTakesNewCertificatesWithoutARestart(t *testing.T) {
	g := startTLSGate(t, time.Hour)
	p := startSecurePlane(t, g, g.servers.Path, time.Hour)
	before, err := p.handshake(p.own)
	require.NoError(t, err)
	ends := time.Now().Add(100 * 24 * time.Hour).Truncate(time.Second)
	p.own.Issue(p.files, "localhost", x509.ExtKeyUsageServerAuth, certs.Expiring(ends))
	still, err := p.handshake(p.own)
	require.NoError(t, err)
	require.Equal(t, before, still, "nobody looked yet")
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	require.Eventually(t, func() bool { now, err := p.handshake(p.own); return err == nil && now.Equal(ends) }, startPatience, pollEvery)

	require.NoError(t, os.WriteFile(p.files+"/localhost.key", []byte("no key"), 0o600))
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	require.Eventually(t, func() bool { return strings.Contains(p.output.String(), "CONTROL_PLANE_TLS_KEY_PATH") }, startPatience, pollEvery)
	now, err := p.handshake(p.own)
	require.NoError(t, err, "the old certificate serves")
	require.True(t, now.Equal(ends))
}

func TestTheWayToTheGateFollowsTheFilesOfBothSides(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, 10*time.Millisecond)
	p := startSecurePlane(t, g, g.servers.Path, 10*time.Millisecond)
	p.login(t)
	reached := func() bool {
		status, _ := p.do(t, http.MethodGet, "/api/gate/health", "", "")
		return status == http.StatusOK
	}
	require.True(t, reached())
	// The gate believes another authority from now on: what the dashboard showed is worth nothing any more.
	g.clients = certs.NewAuthority(t, g.files, "next")
	require.NoError(t, os.Rename(g.clients.Path, g.files+"/clients.pem"))
	require.Eventually(t, func() bool { return !reached() }, startPatience, pollEvery)
	g.clients.Issue(p.files, "control-plane", x509.ExtKeyUsageClientAuth)
	require.Eventually(t, reached, startPatience, pollEvery)
	// And the gate comes with a certificate of another authority, which the dashboard is told to believe.
	next := certs.NewAuthority(t, t.TempDir(), "servers")
	next.Issue(g.files, "gate.test", x509.ExtKeyUsageServerAuth)
	require.NoError(t, os.Rename(next.Path, g.servers.Path))
	require.Eventually(t, func() bool { return strings.Contains(p.output.String(), `"side":"gate"`) && reached() }, startPatience, pollEvery)
	g.servers = next
	g.testGate.client = g.as(t, "shop")
}

func TestAControlPlaneInProductionDecidesOverTLSOnBothSides(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, time.Hour)
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 2"))
	p := startSecurePlane(t, g, g.servers.Path, time.Hour)
	token := p.login(t)
	status, answer := p.do(t, http.MethodGet, "/api/gate/health", "", "")
	require.Equal(t, http.StatusOK, status, "%v", answer)
	status, answer = p.do(t, http.MethodPost, "/api/gate/approvals/"+id+"/resolve", `{"decision":"approve"}`, token)
	require.Equal(t, http.StatusOK, status, "%v", answer)
	require.Equal(t, "approve", answer["resolution"])
}

func TestAGateOfAnotherAuthorityIsNotBelieved(t *testing.T) {
	t.Parallel()
	g := startTLSGate(t, time.Hour)
	p := startSecurePlane(t, g, certs.NewAuthority(t, t.TempDir(), "other").Path, time.Hour)
	p.login(t)
	status, answer := p.do(t, http.MethodGet, "/api/gate/health", "", "")
	require.Equal(t, http.StatusBadGateway, status)
	require.Equal(t, "backend_unavailable", answer["error_code"])
	require.Contains(t, answer["message"], "certificate does not verify")
	require.NotContains(t, answer["message"], strings.TrimPrefix(g.base, "https://"))
	require.NotContains(t, p.output.String(), strings.TrimPrefix(g.base, "https://"))
}
