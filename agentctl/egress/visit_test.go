package egress_test

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/agentctl/egress"
	"writegate/fixtures/certs"
	"writegate/fixtures/loopback"
)

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }

func TestAPublicServerIsReached(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	port, _ := r.Serve(loopback.Public, true, hello)
	guard := guardOf(r)

	target, err := guard.ParseURL("https://public.test:" + port + "/")
	require.NoError(t, err)
	v := guard.Visit(context.Background(), target, egress.Credential{})
	defer v.Close()
	require.Nil(t, v.Connection())
	resp, err := v.Client().Get(target.String())
	require.NoError(t, err)
	n, err := readAll(resp)
	require.NoError(t, err)
	require.Equal(t, len("hello"), n)
	require.Nil(t, v.Refusal())
	require.Equal(t, "127.0.0.2", v.Connection().Address)
	require.WithinDuration(t, time.Now().Add(365*24*time.Hour), v.Connection().TLSNotAfter, time.Hour)
}

func TestPlainHTTPReachesAnOpenedNetworkAlone(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	port, _ := r.Serve(loopback.Public, false, hello)
	_, n, refusal := visit(t, guardOf(r), "http://public.test:"+port+"/", egress.Credential{})
	require.Nil(t, refusal)
	require.Equal(t, 5, n)
}

// The name means a public address when the first connection is made, and
// loopback when the second is.
func TestANameThatIsBoundAnewIsJudgedAnew(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("rebind.test", []string{"127.0.0.2"}, []string{"127.0.0.1"})
	inside, _ := r.Serve(loopback.Inside, true, hello)
	listener, err := net.Listen("tcp", "127.0.0.2:"+inside)
	require.NoError(t, err)
	first := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.Header().Set("Location", "/again")
		w.WriteHeader(http.StatusFound)
	}), TLSConfig: r.TLS()}
	done := make(chan error)
	go func() { done <- first.ServeTLS(listener, "", "") }()
	defer func() { require.NoError(t, first.Close()); require.ErrorIs(t, <-done, http.ErrServerClosed) }()

	_, _, refusal := visit(t, guardOf(r), "https://rebind.test:"+inside+"/", egress.Credential{})
	require.NotNil(t, refusal)
	require.Equal(t, egress.RedirectBlocked, refusal.Code, refusal.Why)
	r.RequireInsideUntouched(t)
}

func TestOfSeveralAddressesOnlyThePublicOneIsConnected(t *testing.T) {
	r := loopback.New(t)
	inside, _ := r.Serve(loopback.Inside, true, hello)
	r.Names.Has("several.test", []string{"127.0.0.1", "10.0.0.1", "::1"})
	_, _, refusal := visit(t, guardOf(r), "https://several.test:"+inside+"/", egress.Credential{})
	require.NotNil(t, refusal)
	require.Equal(t, egress.Blocked, refusal.Code)

	port, _ := r.Serve(loopback.Public, true, hello)
	r.Names.Has("mixed.test", []string{"127.0.0.1", "127.0.0.2"})
	_, n, refusal := visit(t, guardOf(r), "https://mixed.test:"+port+"/", egress.Credential{})
	require.Nil(t, refusal)
	require.Equal(t, 5, n)
	r.RequireInsideUntouched(t)
}

// Two names, one address, one certificate for both: the second name is resolved
// and judged for itself. The server offers HTTP/2 and is not taken up on it.
func TestAConnectionServesOneHost(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	r.Names.Has("coalesced.test", []string{"127.0.0.1"})
	var proto atomic.Value
	port, connections := r.Serve(loopback.Public, true, func(w http.ResponseWriter, req *http.Request) {
		proto.Store(req.Proto)
		http.Redirect(w, req, "https://coalesced.test:"+req.URL.Query().Get("port")+"/", http.StatusFound)
	})
	inside, _ := r.Serve(loopback.Inside, true, hello)
	for _, where := range []string{inside, port} {
		_, _, refusal := visit(t, guardOf(r), "https://public.test:"+port+"/?port="+where, egress.Credential{})
		require.NotNil(t, refusal)
		require.Equal(t, egress.RedirectBlocked, refusal.Code)
	}
	require.Equal(t, "HTTP/1.1", proto.Load())
	require.EqualValues(t, 2, connections.Load())
	r.RequireInsideUntouched(t)
}

func TestVisitsShareNoConnection(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	port, connections := r.Serve(loopback.Public, true, hello)
	guard := guardOf(r)
	for range 3 {
		_, _, refusal := visit(t, guard, "https://public.test:"+port+"/", egress.Credential{})
		require.Nil(t, refusal)
	}
	require.EqualValues(t, 3, connections.Load())
}

// A process reads the variables of proxies once, so the visit is made by another
// one, which has them from its beginning.
func TestProxiesOfTheEnvironmentAreNotUsed(t *testing.T) {
	r := loopback.New(t)
	if os.Getenv("EGRESS_TEST_BEHIND_PROXY") != "" {
		r.Names.Has("public.test", []string{"127.0.0.2"})
		port, _ := r.Serve(loopback.Public, true, hello)
		_, n, refusal := visit(t, guardOf(r), "https://public.test:"+port+"/", egress.Credential{})
		require.Nil(t, refusal)
		require.Equal(t, 5, n)
		return
	}
	proxy, _ := r.Serve(loopback.Inside, false, hello)
	child := exec.Command(os.Args[0], "-test.run=^TestProxiesOfTheEnvironmentAreNotUsed$")
	child.Env = append(os.Environ(), "EGRESS_TEST_BEHIND_PROXY=1")
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		child.Env = append(child.Env, name+"=http://127.0.0.1:"+proxy)
	}
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	r.RequireInsideUntouched(t)
}

func TestCertificatesAreAlwaysVerified(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	r.Names.Has("other.example", []string{"127.0.0.2"})
	stranger := certs.NewAuthority(t, t.TempDir(), "stranger")
	for _, c := range []struct {
		name, host string
		pair       certs.Pair
	}{
		{"of an unknown authority", "public.test", stranger.Issue(t.TempDir(), "public.test", x509.ExtKeyUsageServerAuth)},
		{"for another name", "other.example", r.Authority.Issue(t.TempDir(), "public.test", x509.ExtKeyUsageServerAuth)},
		{"for another address", "127.0.0.2", r.Authority.Issue(t.TempDir(), "public.test", x509.ExtKeyUsageServerAuth)},
		{"expired", "public.test", r.Authority.Issue(t.TempDir(), "public.test", x509.ExtKeyUsageServerAuth, certs.Expiring(time.Now().Add(-time.Minute)))},
		{"of a client", "public.test", r.Authority.Issue(t.TempDir(), "public.test", x509.ExtKeyUsageClientAuth)},
	} {
		t.Run(c.name, func(t *testing.T) {
			listener, err := tls.Listen("tcp", "127.0.0.2:0", &tls.Config{Certificates: []tls.Certificate{c.pair.Load()}})
			require.NoError(t, err)
			server := &http.Server{Handler: http.HandlerFunc(hello), ErrorLog: loopback.Quiet()}
			done := make(chan error)
			go func() { done <- server.Serve(listener) }()
			defer func() { require.NoError(t, server.Close()); require.ErrorIs(t, <-done, http.ErrServerClosed) }()
			port := r.Keep(listener)
			_, _, refusal := visit(t, guardOf(r), "https://"+c.host+":"+port+"/", egress.Credential{})
			require.NotNil(t, refusal)
			require.Equal(t, egress.TLSFailed, refusal.Code, refusal.Why)
		})
	}
}

func TestNamesAndPortsWithoutAnswer(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	plain, _ := r.Serve(loopback.Public, false, hello)
	closed, err := net.Listen("tcp", "127.0.0.2:0")
	require.NoError(t, err)
	r.Keep(closed)
	require.NoError(t, closed.Close())

	for url, code := range map[string]egress.Code{
		"https://nowhere.test/":              egress.DNSFailed,
		"https://" + closed.Addr().String():  egress.ConnectFailed,
		"https://public.test:" + plain + "/": egress.TLSFailed,
	} {
		_, _, refusal := visit(t, guardOf(r), url, egress.Credential{})
		require.NotNil(t, refusal)
		require.Equal(t, code, refusal.Code, refusal.Why)
	}
}

// seen keeps what a server was sent under a header.
type seen struct {
	mu     sync.Mutex
	values []string
}

func (s *seen) add(v string) { s.mu.Lock(); defer s.mu.Unlock(); s.values = append(s.values, v) }

func (s *seen) all() []string { s.mu.Lock(); defer s.mu.Unlock(); return s.values }

func TestACredentialStaysWithTheFirstHost(t *testing.T) {
	for _, header := range []string{"Authorization", "X-Api-Key"} {
		t.Run(header, func(t *testing.T) {
			r := loopback.New(t)
			r.Names.Has("public.test", []string{"127.0.0.2"})
			r.Names.Has("sub.public.test", []string{"127.0.0.2"})
			var atHome, abroad, referers seen
			home, _ := r.Serve(loopback.Public, true, func(w http.ResponseWriter, req *http.Request) {
				atHome.add(req.URL.Path + " " + req.Header.Get(header))
				referers.add(req.Header.Get("Referer"))
				switch req.URL.Path {
				case "/":
					http.Redirect(w, req, "/moved", http.StatusFound)
				case "/moved":
					http.Redirect(w, req, req.URL.Query().Get("to")+"https://other.test:"+fmt.Sprint(r.Ports[1])+"/", http.StatusFound)
				}
			})
			_, _ = r.Serve(loopback.Public, true, func(w http.ResponseWriter, req *http.Request) {
				abroad.add(req.Header.Get(header))
				referers.add(req.Header.Get("Referer"))
				http.Redirect(w, req, "https://public.test:"+home+"/back", http.StatusFound)
			})
			r.Names.Has("other.test", []string{"127.0.0.2"})
			_, _, refusal := visit(t, guardOf(r), "https://public.test:"+home+"/", egress.Credential{Header: header, Value: "hush"})
			require.Nil(t, refusal)
			require.Equal(t, []string{"/ hush", "/moved hush", "/back "}, atHome.all(), "sent at home, not after the way led abroad")
			require.Equal(t, []string{""}, abroad.all())
			require.Equal(t, []string{"", "", "", ""}, referers.all(), "no URL is told to the next host")
		})
	}
}

// Another port of the same host, and a name below it, are other servers.
func TestACredentialIsForOneOrigin(t *testing.T) {
	for _, host := range []string{"public.test", "sub.test"} {
		r := loopback.New(t)
		r.Names.Has("public.test", []string{"127.0.0.2"})
		r.Names.Has("sub.test", []string{"127.0.0.2"})
		var abroad seen
		port, _ := r.Serve(loopback.Public, true, func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "https://"+host+":"+fmt.Sprint(r.Ports[1])+"/", http.StatusTemporaryRedirect)
		})
		_, _ = r.Serve(loopback.Public, true, func(_ http.ResponseWriter, req *http.Request) { abroad.add(req.Header.Get("Authorization")) })
		_, _, refusal := visit(t, guardOf(r), "https://public.test:"+port+"/", egress.Credential{Header: "Authorization", Value: "Bearer hush"})
		require.Nil(t, refusal)
		require.Equal(t, []string{""}, abroad.all())
	}
}

func TestThreeRedirectsAndNoMore(t *testing.T) {
	for redirects, fine := range map[int]bool{1: true, 3: true, 4: false, 1000: false} {
		r := loopback.New(t)
		r.Names.Has("public.test", []string{"127.0.0.2"})
		var asked atomic.Int64
		port, _ := r.Serve(loopback.Public, true, func(w http.ResponseWriter, req *http.Request) {
			if n := asked.Add(1); n <= int64(redirects) {
				http.Redirect(w, req, fmt.Sprintf("/%d", n), http.StatusFound)
			}
		})
		_, _, refusal := visit(t, guardOf(r), "https://public.test:"+port+"/", egress.Credential{})
		require.Equal(t, fine, refusal == nil, "%d redirects: %v", redirects, refusal)
		if !fine {
			require.Equal(t, egress.RedirectBlocked, refusal.Code)
			require.EqualValues(t, 4, asked.Load())
		}
	}
}

// Not even where plain http would be allowed as a first URL.
func TestNoRedirectLeadsToHTTP(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	plain, connections := r.Serve(loopback.Public, false, hello)
	port, _ := r.Serve(loopback.Public, true, func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, "http://public.test:"+plain+"/", http.StatusFound)
	})
	_, _, refusal := visit(t, guardOf(r), "https://public.test:"+port+"/", egress.Credential{})
	require.NotNil(t, refusal)
	require.Equal(t, egress.RedirectBlocked, refusal.Code)
	require.Zero(t, connections.Load())
}

func TestABodyEndsAtOneMebibyte(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	block := make([]byte, 1<<16)
	var size atomic.Int64
	var chunked atomic.Bool
	port, _ := r.Serve(loopback.Public, true, func(w http.ResponseWriter, _ *http.Request) {
		if !chunked.Load() {
			w.Header().Set("Content-Length", fmt.Sprint(size.Load()))
		}
		for left := size.Load(); left > 0; left -= int64(len(block)) {
			if _, err := w.Write(block[:min(left, int64(len(block)))]); err != nil {
				return
			}
		}
	})
	for _, c := range []struct {
		size    int64
		chunked bool
		fits    bool
	}{{egress.MaxBodyBytes, false, true}, {egress.MaxBodyBytes, true, true}, {egress.MaxBodyBytes + 1, false, false}, {egress.MaxBodyBytes + 1, true, false}, {1 << 40, true, false}} {
		size.Store(c.size)
		chunked.Store(c.chunked)
		_, n, refusal := visit(t, guardOf(r), "https://public.test:"+port+"/", egress.Credential{})
		require.LessOrEqual(t, n, egress.MaxBodyBytes)
		require.Equal(t, c.fits, refusal == nil, "%+v", c)
		if !c.fits {
			require.Equal(t, egress.ResponseTooLarge, refusal.Code)
		}
	}
}

// A gibibyte of zeros in a mebibyte of gzip stays a mebibyte.
func TestNothingIsDecompressed(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	var accepted seen
	port, _ := r.Serve(loopback.Public, true, func(w http.ResponseWriter, req *http.Request) {
		accepted.add(req.Header.Get("Accept-Encoding"))
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		block := make([]byte, 1<<16)
		for range 256 {
			_, _ = packed.Write(block)
		}
		_ = packed.Close()
	})
	_, n, refusal := visit(t, guardOf(r), "https://public.test:"+port+"/", egress.Credential{})
	require.Nil(t, refusal)
	require.Less(t, n, 1<<16, "sixteen mebibytes of zeros are read as they were sent")
	require.Equal(t, []string{"identity"}, accepted.all())
}

func TestHeadersHaveALimit(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	port, _ := r.Serve(loopback.Public, true, func(w http.ResponseWriter, _ *http.Request) {
		for i := range 200 {
			w.Header().Set(fmt.Sprintf("X-Long-%d", i), strings.Repeat("a", 1000))
		}
	})
	_, _, refusal := visit(t, guardOf(r), "https://public.test:"+port+"/", egress.Credential{})
	require.NotNil(t, refusal)
	require.Equal(t, egress.ResponseTooLarge, refusal.Code, refusal.Why)
}

func TestOneDeadlineCoversEverything(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	// A client drops a connection that speaks before it was asked.
	asked := func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1024)) }
	drip := func(conn net.Conn, stop <-chan struct{}, text string) {
		for {
			if _, err := conn.Write([]byte(text)); err != nil {
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	mute, err := net.Listen("tcp", "127.0.0.2:0") // accepts by the kernel and never speaks
	require.NoError(t, err)
	defer func() { require.NoError(t, mute.Close()) }()

	ports := map[string]string{
		"no handshake": r.Keep(mute),
		"no answer":    r.Raw(func(_ net.Conn, stop <-chan struct{}) { <-stop }),
		"slow headers": r.Raw(func(conn net.Conn, stop <-chan struct{}) {
			asked(conn)
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nX-Slow: "))
			drip(conn, stop, "a")
		}),
		"interim answers without end": r.Raw(func(conn net.Conn, stop <-chan struct{}) {
			asked(conn)
			drip(conn, stop, "HTTP/1.1 103 Early Hints\r\n\r\n")
		}),
		"slow body": r.Raw(func(conn net.Conn, stop <-chan struct{}) {
			asked(conn)
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"))
			drip(conn, stop, "a")
		}),
		"slow chunks": r.Raw(func(conn net.Conn, stop <-chan struct{}) {
			asked(conn)
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))
			drip(conn, stop, "1\r\na\r\n")
		}),
	}
	for name, port := range ports {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			_, _, refusal := visitUntil(t, ctx, guardOf(r), "https://public.test:"+port+"/", egress.Credential{})
			require.NotNil(t, refusal)
			require.Equal(t, egress.Timeout, refusal.Code, refusal.Why)
		})
	}
}

// A request with a context of its own ends with the visit all the same.
func TestARequestDoesNotOutliveItsVisit(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	arrived := make(chan struct{})
	port := r.Raw(func(_ net.Conn, stop <-chan struct{}) { close(arrived); <-stop })
	guard := guardOf(r)
	target, err := guard.ParseURL("https://public.test:" + port + "/")
	require.NoError(t, err)
	v := guard.Visit(context.Background(), target, egress.Credential{})
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, target.String(), nil)
	require.NoError(t, err)
	failed := make(chan error)
	go func() { _, err := v.Client().Do(req); failed <- err }()
	<-arrived
	v.Close()
	require.Error(t, <-failed)
}

func TestWhatIsNotHTTPIsAProtocolError(t *testing.T) {
	r := loopback.New(t)
	r.Names.Has("public.test", []string{"127.0.0.2"})
	for name, text := range map[string]string{
		"another protocol":         "SSH-2.0-OpenSSH_9.6\r\n",
		"nothing":                  "",
		"half a header":            "HTTP/1.1 200 OK\r\nContent-Le",
		"two lengths":              "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
		"a body cut short":         "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello",
		"a switch of the protocol": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			port := r.Raw(func(conn net.Conn, _ <-chan struct{}) {
				_, _ = conn.Read(make([]byte, 1024))
				_, _ = conn.Write([]byte(text))
			})
			resp, _, refusal := visit(t, guardOf(r), "https://public.test:"+port+"/", egress.Credential{})
			if refusal == nil {
				require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
				return
			}
			require.Equal(t, egress.ProtocolError, refusal.Code, refusal.Why)
		})
	}
}
