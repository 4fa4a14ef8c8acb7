package httpd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/certs"
)

// A tlsService is a listener with TLS, its files, and the authorities behind them.
type tlsService struct {
	*service
	t       *testing.T
	dir     string
	addr    string
	files   TLSFiles
	tls     *TLS
	clock   atomic.Pointer[time.Time] // nil: the real one
	servers *certs.Authority          // signs the server
	clients *certs.Authority          // signs clients
}

func serveTLS(t *testing.T, change func(*TLSFiles), routes ...func(*Mux)) *tlsService {
	t.Helper()
	s := &tlsService{t: t, dir: t.TempDir()}
	s.servers, s.clients = certs.NewAuthority(t, s.dir, "servers"), certs.NewAuthority(t, s.dir, "clients")
	pair := s.servers.Issue(s.dir, "gate.test", x509.ExtKeyUsageServerAuth)
	s.files = TLSFiles{CertPath: pair.Cert, KeyPath: pair.Key, ClientCAPath: s.clients.Path, RequireClientCert: true, MinVersion: "1.2"}
	if change != nil {
		change(&s.files)
	}
	var err error
	s.tls, err = NewTLS(s.files, s.now)
	require.NoError(t, err)
	s.service = serve(t, Options{}, ServerOptions{TLS: s.tls}, func(m *Mux) {
		m.Handle(http.MethodGet, "/who", Get(func(_ context.Context, c *Call) (map[string]string, error) {
			return map[string]string{"client": c.Client(), "subject": TLSSubject(c.Request)}, nil
		}))
		for _, more := range routes {
			more(m)
		}
	})
	s.addr = strings.TrimPrefix(s.base, "http://")
	return s
}

func (s *tlsService) now() time.Time {
	if at := s.clock.Load(); at != nil {
		return *at
	}
	return time.Now()
}

// client is an HTTP client that believes the server's authority and shows the
// certificates given.
func (s *tlsService) client(shown ...tls.Certificate) *http.Client {
	return s.clientWith(&tls.Config{RootCAs: s.servers.Pool(), Certificates: shown})
}

func (s *tlsService) clientWith(config *tls.Config) *http.Client {
	transport := &http.Transport{TLSClientConfig: config}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// who asks the server who the client is.
func (s *tlsService) who(c *http.Client) (string, error) {
	resp, err := c.Get("https://" + s.addr + "/who")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body)), err
}

// issue signs a client certificate.
func (s *tlsService) issue(a *certs.Authority, name string, change ...func(*x509.Certificate)) tls.Certificate {
	return a.Issue(s.t.TempDir(), name, x509.ExtKeyUsageClientAuth, change...).Load()
}

// refusal is what the server says to a client that it does not let in. The client
// sends no request: one that crosses the refusal would end in a reset.
func (s *tlsService) refusal(config *tls.Config) error {
	s.t.Helper()
	config.RootCAs = s.servers.Pool()
	conn, err := tls.Dial("tcp", s.addr, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	require.NoError(s.t, conn.SetDeadline(time.Now().Add(hangs)))
	_, err = conn.Read(make([]byte, 1))
	return err
}

func TestAVerifiedClientIsKnownByItsSubject(t *testing.T) {
	s := serveTLS(t, nil)
	got, err := s.who(s.client(s.issue(s.clients, "migrator")))
	require.NoError(t, err)
	require.Equal(t, `{"client":"CN=migrator","subject":"CN=migrator"}`, got)
}

func TestAVerifiedClientWithoutASubjectIsNotAnAddress(t *testing.T) {
	s := serveTLS(t, nil)
	for _, workload := range []string{"spiffe://shop.test/one", "spiffe://shop.test/two"} {
		got, err := s.who(s.client(s.issue(s.clients, "leaf", certs.Nameless(workload))))
		require.NoError(t, err)
		require.Equal(t, `{"client":"SAN:URI=`+workload+`","subject":"SAN:URI=`+workload+`"}`, got)
	}
}

func TestClientsThatDoNotVerifyAreRefused(t *testing.T) {
	s := serveTLS(t, nil)
	elsewhere := certs.NewAuthority(t, t.TempDir(), "elsewhere")
	for name, shown := range map[string][]tls.Certificate{
		"no certificate":            nil,
		"another authority":         {s.issue(elsewhere, "migrator")},
		"the servers' authority":    {s.issue(s.servers, "migrator")},
		"an expired certificate":    {s.issue(s.clients, "migrator", certs.Expiring(time.Now().Add(-time.Minute)))},
		"one that is not valid yet": {s.issue(s.clients, "migrator", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) })},
		"a certificate of a server": {s.clients.Issue(t.TempDir(), "migrator", x509.ExtKeyUsageServerAuth).Load()},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.refusal(&tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if len(shown) == 0 {
					return new(tls.Certificate), nil
				}
				return &shown[0], nil // whatever the server says it believes
			}})
			require.ErrorContains(t, err, "remote error: tls: ")
		})
	}
	_, err := s.who(s.client(s.issue(s.clients, "migrator")))
	require.NoError(t, err, "the others are served all the same")
}

func TestWhereItIsNotRequiredACertificateMayBeAbsentButNotWrong(t *testing.T) {
	s := serveTLS(t, func(f *TLSFiles) { f.RequireClientCert = false })
	got, err := s.who(s.client())
	require.NoError(t, err)
	require.Equal(t, `{"client":"127.0.0.1","subject":""}`, got)
	wrong := s.issue(certs.NewAuthority(t, t.TempDir(), "elsewhere"), "migrator")
	err = s.refusal(&tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &wrong, nil }})
	require.ErrorContains(t, err, "remote error: tls: ")
}

func TestClientsRefuseAServerThatIsNotTheOneTheyMean(t *testing.T) {
	s := serveTLS(t, nil)
	shown := []tls.Certificate{s.issue(s.clients, "migrator")}
	_, err := s.who(s.clientWith(&tls.Config{RootCAs: s.servers.Pool(), Certificates: shown, ServerName: "other.test"}))
	require.ErrorAs(t, err, new(x509.HostnameError))
	_, err = s.who(s.clientWith(&tls.Config{RootCAs: s.clients.Pool(), Certificates: shown}))
	require.ErrorAs(t, err, new(x509.UnknownAuthorityError))
}

func TestOldTLSIsRefused(t *testing.T) {
	for least, versions := range map[string]map[uint16]bool{
		"1.2": {tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true},
		"1.3": {tls.VersionTLS11: false, tls.VersionTLS12: false, tls.VersionTLS13: true},
	} {
		s := serveTLS(t, func(f *TLSFiles) { f.MinVersion = least })
		shown := []tls.Certificate{s.issue(s.clients, "migrator")}
		for version, served := range versions {
			_, err := s.who(s.clientWith(&tls.Config{RootCAs: s.servers.Pool(), Certificates: shown, MinVersion: tls.VersionTLS10, MaxVersion: version}))
			if served {
				require.NoError(t, err, "%s of at least %s", tls.VersionName(version), least)
			} else {
				require.ErrorContains(t, err, "protocol version not supported", "%s of at least %s", tls.VersionName(version), least)
			}
		}
	}
}

func TestTLS13IsPreferredAndTLS12HasForwardSecrecyOnly(t *testing.T) {
	s := serveTLS(t, func(f *TLSFiles) { f.RequireClientCert = false })
	conn, err := tls.Dial("tcp", s.addr, &tls.Config{RootCAs: s.servers.Pool(), ServerName: "gate.test"})
	require.NoError(t, err)
	require.Equal(t, "TLS 1.3", tls.VersionName(conn.ConnectionState().Version))
	require.NoError(t, conn.Close())
	_, err = tls.Dial("tcp", s.addr, &tls.Config{RootCAs: s.servers.Pool(), ServerName: "gate.test", MaxVersion: tls.VersionTLS12,
		CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_128_GCM_SHA256}})
	require.ErrorContains(t, err, "remote error: tls: handshake failure")
}

func TestPlaintextAtATLSPortIsToldSo(t *testing.T) {
	s := serveTLS(t, nil)
	resp, err := http.Get("http://" + s.addr + "/who")
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	require.Contains(t, string(body), "HTTPS")
}

func TestASilentPeerDoesNotHoldTheListener(t *testing.T) {
	s := serveTLS(t, nil)
	silent, err := net.Dial("tcp", s.addr)
	require.NoError(t, err)
	defer silent.Close()
	_, err = s.who(s.client(s.issue(s.clients, "migrator")))
	require.NoError(t, err)
}

func TestAReloadedCertificateIsShownFromTheNextHandshakeOn(t *testing.T) {
	s := serveTLS(t, nil)
	shown := s.issue(s.clients, "migrator")
	first := s.client(shown)
	_, err := s.who(first)
	require.NoError(t, err)

	ends := time.Now().Add(48 * time.Hour).Truncate(time.Second)
	s.servers.Issue(s.dir, "gate.test", x509.ExtKeyUsageServerAuth, certs.Expiring(ends))
	expires, err := s.tls.Reload()
	require.NoError(t, err)
	require.True(t, expires.Equal(ends), expires)

	conn, err := tls.Dial("tcp", s.addr, &tls.Config{RootCAs: s.servers.Pool(), ServerName: "gate.test", Certificates: []tls.Certificate{shown}})
	require.NoError(t, err)
	defer conn.Close()
	require.True(t, conn.ConnectionState().PeerCertificates[0].NotAfter.Equal(ends))
	_, err = s.who(first)
	require.NoError(t, err, "a connection from before goes on")
}

func TestAClientWhoseAuthorityWasTakenOutIsRefusedAtOnce(t *testing.T) {
	s := serveTLS(t, nil)
	revoked, kept := s.client(s.issue(s.clients, "revoked")), s.clients
	_, err := s.who(revoked)
	require.NoError(t, err)

	next := certs.NewAuthority(t, s.dir, "next")
	require.NoError(t, os.Rename(next.Path, s.files.ClientCAPath))
	_, err = s.tls.Reload()
	require.NoError(t, err)

	_, err = s.who(revoked)
	require.Error(t, err, "neither its open connection nor a new one")
	err = s.refusal(&tls.Config{Certificates: []tls.Certificate{s.issue(kept, "of the old authority")}})
	require.ErrorContains(t, err, "remote error: tls: ")
	got, err := s.who(s.client(s.issue(next, "successor")))
	require.NoError(t, err)
	require.Contains(t, got, "CN=successor")
	require.Contains(t, s.logged(), "does not verify any more")
}

// TestAnOpenConnectionEndsWithItsChain: the first end of a certificate and its
// authorities counts, and of several chains the last one.
func TestAnOpenConnectionEndsWithItsChain(t *testing.T) {
	soon, late := certs.Expiring(time.Now().Add(time.Hour)), certs.Expiring(time.Now().Add(30*24*time.Hour))
	for name, chain := range map[string]struct{ root, between, leaf func(*x509.Certificate) }{
		"certificate": {late, late, soon}, "intermediate": {late, soon, late}, "root": {soon, late, late},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root := certs.NewAuthority(t, dir, "root", chain.root)
			other := certs.NewAuthority(t, dir, "other") // keeps the bundle from ending
			between := root.Intermediate(dir, "between", chain.between)
			bundle := filepath.Join(dir, "bundle.pem")
			require.NoError(t, os.WriteFile(bundle, append(readFile(t, root.Path), readFile(t, other.Path)...), 0o644))
			s := serveTLS(t, func(f *TLSFiles) { f.ClientCAPath = bundle })
			client := s.client(certs.Under(s.issue(between, "migrator", chain.leaf), between))
			for _, after := range []time.Duration{0, 50 * time.Minute} {
				at := time.Now().Add(after)
				s.clock.Store(&at)
				_, err := s.who(client)
				require.NoError(t, err)
			}
			at := time.Now().Add(2 * time.Hour)
			s.clock.Store(&at)
			_, err := s.who(client)
			require.Error(t, err)
			require.Contains(t, s.logged(), "does not verify any more", "the open connection is looked at, not a new one alone")
		})
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// What a body or a stream took time for is neither done for nor shown to a client
// whose certificate ended meanwhile.
func TestACertificateIsLookedAtBehindTheBodyAndInAStream(t *testing.T) {
	var did atomic.Int64
	next := make(chan string)
	s := serveTLS(t, nil, func(m *Mux) {
		m.Handle(http.MethodPost, "/do", Serve(func(context.Context, *Call, *struct{}) (map[string]string, error) {
			did.Add(1)
			return map[string]string{}, nil
		}))
		m.Handle(http.MethodGet, "/stream", func(c *Call) error {
			return c.Events(c.Request.Context(), time.Hour, func(send func(id, kind string, data []byte) error) error {
				for id := range next {
					if err := send(id, "event", []byte("{}")); err != nil {
						return err
					}
				}
				return nil
			})
		})
	})
	client := s.client(s.issue(s.clients, "migrator", certs.Expiring(time.Now().Add(time.Hour))))
	client.Transport.(*http.Transport).ExpectContinueTimeout = hangs
	do := func(meanwhile func()) error {
		asked := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: meanwhile}) // for the body, which comes behind it
		r, err := http.NewRequestWithContext(asked, http.MethodPost, "https://"+s.addr+"/do", strings.NewReader("{}"))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Expect", "100-continue")
		resp, err := client.Do(r)
		if err == nil {
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusOK, resp.StatusCode)
		}
		return err
	}
	resp, err := client.Get("https://" + s.addr + "/stream")
	require.NoError(t, err)
	defer resp.Body.Close()
	require.NoError(t, do(func() {}))
	require.EqualValues(t, 1, did.Load())
	next <- "one"

	later := time.Now().Add(2 * time.Hour)
	require.Error(t, do(func() { s.clock.Store(&later) }))
	require.EqualValues(t, 1, did.Load())
	next <- "two"
	close(next)
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(got), "id: one")
	require.NotContains(t, string(got), "id: two")
}

func TestABadNewSetKeepsTheOldOne(t *testing.T) {
	for name, spoil := range map[string]func(*tlsService){
		"a key of another certificate": func(s *tlsService) {
			other := s.servers.Issue(s.t.TempDir(), "other.test", x509.ExtKeyUsageServerAuth)
			require.NoError(s.t, os.Rename(other.Key, s.files.KeyPath))
		},
		"a certificate that ran out": func(s *tlsService) {
			s.servers.Issue(s.dir, "gate.test", x509.ExtKeyUsageServerAuth, certs.Expiring(time.Now().Add(-time.Minute)))
		},
		"no certificate at all": func(s *tlsService) { require.NoError(s.t, os.WriteFile(s.files.CertPath, nil, 0o644)) },
		"a file that is gone":   func(s *tlsService) { require.NoError(s.t, os.Remove(s.files.KeyPath)) },
		"an empty bundle":       func(s *tlsService) { require.NoError(s.t, os.WriteFile(s.files.ClientCAPath, nil, 0o644)) },
		"a key in the bundle": func(s *tlsService) {
			key, err := os.ReadFile(s.files.KeyPath)
			require.NoError(s.t, err)
			require.NoError(s.t, os.WriteFile(s.files.ClientCAPath, key, 0o644))
		},
		"a broken bundle": func(s *tlsService) {
			require.NoError(s.t, os.WriteFile(s.files.ClientCAPath, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveTLS(t, nil)
			spoil(s)
			_, err := s.tls.Reload()
			require.ErrorContains(t, err, "GATE_TLS_")
			_, err = s.who(s.client(s.issue(s.clients, "migrator")))
			require.NoError(t, err, "what was loaded goes on serving")
			_, err = NewTLS(s.files, time.Now)
			require.Error(t, err, "no start with it")
		})
	}
}

func TestReloadingUnderLoadLosesNoRequest(t *testing.T) {
	s := serveTLS(t, nil)
	stop := make(chan struct{})
	var load sync.WaitGroup
	var asked atomic.Int64
	for _, keepAlive := range []bool{true, false, true, false} {
		client := s.client(s.issue(s.clients, "migrator"))
		client.Transport.(*http.Transport).DisableKeepAlives = !keepAlive
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := s.who(client); err != nil {
					t.Errorf("lost: %v", err)
					return
				}
				asked.Add(1)
			}
		})
	}
	// Both authorities are believed from now on: the way to exchange one.
	both, err := os.ReadFile(s.files.ClientCAPath)
	require.NoError(t, err)
	next := certs.NewAuthority(t, t.TempDir(), "next")
	more, err := os.ReadFile(next.Path)
	require.NoError(t, err)
	for i := range 20 {
		s.servers.Issue(s.dir, "gate.test", x509.ExtKeyUsageServerAuth)
		if i == 10 {
			draft := filepath.Join(s.dir, "draft")
			require.NoError(t, os.WriteFile(draft, append(both, more...), 0o644))
			require.NoError(t, os.Rename(draft, s.files.ClientCAPath))
		}
		before := asked.Load()
		_, err := s.tls.Reload()
		require.NoError(t, err)
		require.Eventually(t, func() bool { return asked.Load() > before+8 || t.Failed() }, time.Minute, time.Millisecond)
	}
	close(stop)
	load.Wait()
}
