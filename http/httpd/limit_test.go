package httpd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/manualclock"
)

func TestABucketGivesItsBurstAndThenItsRate(t *testing.T) {
	clock := manualclock.At(time.Unix(1000, 0))
	l, err := NewLimiter(120, 30, clock.Now)
	require.NoError(t, err)
	for range 30 {
		_, ok := l.Allow("a")
		require.True(t, ok)
	}
	for range 100 { // a refusal costs nothing: waiting as told is enough
		wait, ok := l.Allow("a")
		require.False(t, ok)
		require.Equal(t, 500*time.Millisecond, wait)
	}
	_, ok := l.Allow("b")
	require.True(t, ok, "another client has its own bucket")
	for i := range 31 { // all addresses of an IPv6 network of 64 bits are one client
		_, ok = l.Allow("2001:db8::" + strconv.Itoa(i+1))
		require.Equal(t, i < 30, ok)
	}
	_, ok = l.Allow("2001:db8:0:1::1")
	require.True(t, ok)
	clock.Advance(500 * time.Millisecond)
	_, ok = l.Allow("a")
	require.True(t, ok)
	_, ok = l.Allow("a")
	require.False(t, ok)
}

func TestBucketsAreBounded(t *testing.T) {
	l, err := NewLimiter(1, 1, time.Now)
	require.NoError(t, err)
	for i := range maxClients + 100 {
		l.Allow(strconv.Itoa(i))
	}
	require.Equal(t, maxClients, l.buckets.Len())
}

func TestOneBucketForOneClientUnderConcurrency(t *testing.T) {
	at := time.Now()
	l, err := NewLimiter(1, 10, func() time.Time { return at })
	require.NoError(t, err)
	var mu sync.Mutex
	allowed := 0
	var group sync.WaitGroup
	for range 64 {
		group.Go(func() {
			if _, ok := l.Allow("a"); ok {
				mu.Lock()
				defer mu.Unlock()
				allowed++
			}
		})
	}
	group.Wait()
	require.Equal(t, 10, allowed)
}

func TestRatesOutOfRangeAreRefused(t *testing.T) {
	for _, c := range [][2]int{{0, 1}, {1, 0}, {-1, 1}, {10_000_001, 1}, {1, 10_000_001}} {
		_, err := NewLimiter(c[0], c[1], time.Now)
		require.Error(t, err)
	}
}

func TestOverTheRateIsA429ThatSaysWhenToComeBack(t *testing.T) {
	clock := manualclock.At(time.Now())
	limiter, err := NewLimiter(6, 1, clock.Now)
	require.NoError(t, err)
	s := serve(t, Options{Limiter: limiter}, ServerOptions{}, func(m *Mux) {
		m.Handle("POST", "/query", func(c *Call) error {
			if err := c.Limit(); err != nil {
				return err
			}
			c.JSON(200, "ok")
			return nil
		})
	})
	post := func() int {
		resp, err := http.Post(s.base+"/query", "", nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, 200, post())
	r := s.do("POST", "/query", "")
	require.Equal(t, 429, r.StatusCode)
	require.Equal(t, "rate_limit_exceeded", r.json["error_code"])
	require.Equal(t, "10", r.Header.Get("Retry-After"))
	require.Equal(t, map[string]any{"retry_after_seconds": 10.0}, r.json["details"])
	require.Equal(t, RateLimitHit, s.reported()[0].Incident)
	require.Equal(t, int64(6), s.reported()[0].Limit)
	clock.Advance(10 * time.Second)
	require.Equal(t, 200, post())
}

func TestTheClientIsWhoSpokeToUsOrToOurProxy(t *testing.T) {
	proxies, err := ParseProxies("10.0.0.0/8, 192.0.2.7 , fd00::/8,,")
	require.NoError(t, err)
	for _, c := range []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"direct", "203.0.113.9:1234", nil, "203.0.113.9"},
		{"a forged header from outside", "203.0.113.9:1234", []string{"1.1.1.1"}, "203.0.113.9"},
		{"through a proxy", "10.1.2.3:1", []string{"198.51.100.4"}, "198.51.100.4"},
		{"through two proxies", "10.1.2.3:1", []string{"198.51.100.4, 192.0.2.7"}, "198.51.100.4"},
		{"a forged hop before the client", "10.1.2.3:1", []string{"1.1.1.1, 198.51.100.4"}, "198.51.100.4"},
		{"a forged proxy before the client", "10.1.2.3:1", []string{"10.9.9.9, 198.51.100.4"}, "198.51.100.4"},
		{"headers in two lines", "10.1.2.3:1", []string{"1.1.1.1", "198.51.100.4"}, "198.51.100.4"},
		{"a proxy that says nothing", "10.1.2.3:1", nil, "10.1.2.3"},
		{"a proxy that says nonsense", "10.1.2.3:1", []string{"unknown"}, "10.1.2.3"},
		{"only proxies", "10.1.2.3:1", []string{"10.0.0.1, 10.0.0.2"}, "10.0.0.1"},
		{"a v4 peer on a v6 socket", "[::ffff:10.1.2.3]:1", []string{"198.51.100.4"}, "198.51.100.4"},
		{"the same client on both sockets", "[::ffff:203.0.113.9]:1", nil, "203.0.113.9"},
		{"v6", "[fd00::1]:1", []string{"2001:db8::1"}, "2001:db8::1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = c.peer
			r.Header["X-Forwarded-For"] = c.forwarded
			require.Equal(t, c.want, proxies.client(r))
		})
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr, r.Header["X-Forwarded-For"] = "10.1.2.3:1", []string{"1.1.1.1"}
	require.Equal(t, "10.1.2.3", (*Proxies)(nil).client(r), "without trusted proxies nobody is believed")
	for _, bad := range []string{"proxy.example", "10.0.0.0/33", "10.0.0"} {
		_, err := ParseProxies(bad)
		require.ErrorContains(t, err, bad)
	}
}

func TestAVerifiedCertificateNamesTheClientAsItIsWritten(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	subject := pkix.RDNSequence{
		{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "migrator"}}, // the order is the certificate's own
		{{Type: asn1.ObjectIdentifier{2, 5, 4, 10}, Value: "core, inc"}},
	}
	raw, err := asn1.Marshal(subject)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), RawSubject: raw}, &x509.Certificate{}, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)

	r := httptest.NewRequest("GET", "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
	require.Empty(t, TLSSubject(r), "a certificate that nobody verified names nobody")
	r.TLS.VerifiedChains = [][]*x509.Certificate{{cert}}
	require.Equal(t, `O=core\, inc,CN=migrator`, TLSSubject(r))
	require.Equal(t, TLSSubject(r), (*Proxies)(nil).client(r))
}
