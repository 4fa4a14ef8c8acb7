package httpd

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamesAreReadStrictly(t *testing.T) {
	n, err := ParseNames(" Gate.Example. , gate-2:6543,, xn--bcher-kva.example,my_service ")
	require.NoError(t, err)
	for host, known := range map[string]bool{
		"gate.example": true, "GATE.EXAMPLE.:1": true, "gate-2:6543": true, "gate-2": false, "gate-2:6544": false, "xn--bcher-kva.example": true, "my_service:80": true,
		"": false, ":": false, ":6543": false, ".": false, "[]": false, "localhost": true, "LOCALHOST.:6543": true, "localhost.example": false, "a.localhost": false, "notlocalhost": false, "localhost..": false, "localhost:": true,
		"localhost:65x": false, "localhost:80:80": false, "localhost@evil.example": false, "127.0.0.1": true, "127.0.0.1:6543": true, "127.0.0.1.": true, "127.0.0.1.evil.example": false,
		"127.1": false, "2130706433": false, "0x7f000001": false, "0177.0.0.1": false, "[::1]": true, "[::1]:6543": true, "::1": true, "[::1": false, "[::1]6543": false,
		"[::ffff:127.0.0.1]:1": true, "[fe80::1%25eth0]": true, "evil.example": false, "evil.example:6543": false, "gate.example.evil.example": false, "evil-gate.example": false,
		"gate.example/": false, "gate.example%00": false, "[gate.example]": true, "localhost,evil.example": false, " localhost": false,
	} {
		require.Equal(t, known, n.known(host), host)
	}
	for _, bad := range []string{"https://gate.example", "gate.example/", "gate.example:x", "gate example", "*.example", "bücher.example", "[gate", ":6543", "a@b"} {
		_, err := ParseNames("good.example," + bad)
		require.ErrorContains(t, err, bad)
	}
}

// A Host that is there and empty names nobody (RFC 9110 part 7.2); one that is not there is HTTP/1.0's alone.
func TestAnEmptyHostIsNoName(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, echo)
	for head, want := range map[string]string{
		"HTTP/1.0\r\n":                    "200",
		"HTTP/1.1\r\n":                    "400",
		"HTTP/1.1\r\nHost:\r\n":           "421",
		"HTTP/1.1\r\nHost: \r\n":          "421",
		"HTTP/1.1\r\nHost: :6543\r\n":     "421",
		"HTTP/1.0\r\nHost: :6543\r\n":     "421",
		"HTTP/1.1\r\nHost: .\r\n":         "421",
		"HTTP/1.1\r\nHost: localhost\r\n": "200",
	} {
		require.Contains(t, s.raw("GET /thing " + head + "Connection: close\r\n\r\n")[len("HTTP/1.x"):], " "+want+" ", "%q", head)
	}
}

func TestOnlyItsOwnOriginIsTheListeners(t *testing.T) {
	listed, err := ParseNames("gate.example,proxy.example:8443")
	require.NoError(t, err)
	public, err := url.Parse("https://gate.example")
	require.NoError(t, err)
	for _, c := range []struct {
		names        *Names
		tls          bool
		host, origin string
		own          bool
	}{
		{nil, false, "127.0.0.1:6543", "http://127.0.0.1:6543", true},
		{nil, false, "127.0.0.1:6543", "https://127.0.0.1:6543", false},
		{nil, false, "127.0.0.1:6543", "http://localhost:6543", false},
		{nil, false, "localhost:6543", "http://LocalHost.:6543", true},
		{nil, false, "localhost", "http://localhost", true},
		{nil, false, "localhost:80", "http://localhost", true},
		{nil, false, "localhost:6543", "http://localhost", false},
		{nil, false, "", "http://", false},
		{nil, false, "", "http://localhost", false},
		{nil, false, "localhost", "null", false},
		{nil, false, "localhost", "", false},
		{nil, false, "localhost", "localhost", false},
		{nil, false, "localhost", "file://", false},
		{nil, false, "localhost", "ftp://localhost", false},
		{nil, false, "localhost", "http://localhost/", false},
		{nil, false, "localhost", "http://localhost http://evil.example", false},
		{nil, false, "localhost", "http://evil@localhost", false},
		{nil, true, "localhost:6543", "https://localhost:6543", true},
		{nil, true, "localhost:6543", "http://localhost:6543", false},
		{nil, true, "localhost:443", "https://localhost", true},
		{listed, false, "gate.example", "https://gate.example", true},
		{listed, false, "gate.example", "http://gate.example", true},
		{listed, true, "gate.example", "http://gate.example", false},
		{listed, false, "proxy.example:8443", "https://proxy.example:8443", true},
		{listed, false, "gate.example", "https://proxy.example:8443", false},
		{&Names{Secure: true}, false, "10.0.0.7:3000", "https://10.0.0.7:3000", true},
		{&Names{Secure: true}, false, "10.0.0.7:3000", "http://10.0.0.7:3000", false},
		{&Names{Public: public}, false, "gate.example", "https://gate.example", true},
		{&Names{Public: public}, false, "gate.example", "https://gate.example:443", true},
		{&Names{Public: public}, false, "gate.example", "http://gate.example", false},
		{&Names{Public: public}, false, "127.0.0.1:3000", "http://127.0.0.1:3000", false},
	} {
		r := httptest.NewRequest(http.MethodPost, "http://x/", nil)
		r.Host = c.host
		if c.tls {
			r.TLS = &tls.ConnectionState{}
		}
		require.Equal(t, c.own, c.names.own(c.origin, r), "%q to %q", c.origin, c.host)
	}
}

func TestThePublicAddressIsTheOnlyName(t *testing.T) {
	public, err := url.Parse("https://gate.example:8443")
	require.NoError(t, err)
	n := &Names{Public: public}
	for host, known := range map[string]bool{"gate.example:8443": true, "Gate.Example.:8443": true, "gate.example": false, "127.0.0.1:8443": false, "localhost:8443": false, "": false, "evil.example:8443": false} {
		require.Equal(t, known, n.known(host), host)
	}
}

func TestABodyNeedsItsMediaType(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, echo)
	length := "POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
	for sent, want := range map[string]string{
		length + "Content-Length: 2\r\n\r\n{}":                                                                 "415",
		length + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n":                                      "415",
		length + "Content-Length: 1\r\n\r\n ":                                                                  "415",
		length + "Content-Type: application/json\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}":   "415",
		length + "Content-Type:\r\nContent-Length: 2\r\n\r\n{}":                                                "415",
		length + "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}":     "415",
		length + "Content-Type: application/json\r\nContent-Encoding:\r\nContent-Length: 2\r\n\r\n{}":          "415",
		length + "Content-Type: application/json\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}": "200",
		length + "Content-Length: 0\r\n\r\n":                                                                   "200",
		length + "\r\n":                                                                                        "200",
		length + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                                                 "200",
		length + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n":    "200",
		length + "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}":                               "200",
	} {
		require.Contains(t, s.raw(sent), "HTTP/1.1 "+want+" ", "%q", sent)
	}
}

// Fields behind the body come too late to be listened to.
func TestTrailersAreRefused(t *testing.T) {
	earned := func(ctx context.Context) (context.Context, func(http.Header)) {
		return context.WithValue(ctx, "copied", true), nil
	}
	for name, o := range map[string]Options{"the request": {}, "a copy of it": {Earned: earned}} {
		s := serve(t, o, ServerOptions{}, func(m *Mux) {
			echo(m)
			m.Handle(http.MethodDelete, "/act", func(c *Call) error { c.JSON(http.StatusOK, map[string]bool{"acted": true}); return nil })
		})
		const chunks = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
		for sent, want := range map[string]string{
			"POST /echo" + chunks + "\r\n":                                                   "200",
			"POST /echo" + chunks + "Idempotency-Key: a\r\n\r\n":                             "400",
			"POST /echoTrailer: Idempotency-Key\r\n" + chunks + "Idempotency-Key: a\r\n\r\n": "400",
			"POST /echoTrailer: Idempotency-Key\r\n" + chunks + "\r\n":                       "400",
			"DELETE /actTrailer: If-Match\r\n" + chunks + "If-Match: \"1\"\r\n\r\n":          "400",
		} {
			line, rest := sent[:len("POST /echo")], sent[len("POST /echo"):]
			if strings.HasPrefix(sent, "DELETE") {
				line, rest = "DELETE /act", strings.TrimPrefix(sent, "DELETE /act")
			}
			answer := s.raw(line + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + rest)
			require.Contains(t, answer, "HTTP/1.1 "+want+" ", "%s: %q", name, sent)
			require.Equal(t, want == "400", strings.Contains(answer, "trailer fields"), answer)
		}
	}
}

func TestAChangeListensToEveryWordOrRefuses(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, func(m *Mux) {
		echo(m)
		m.Handle(http.MethodPost, "/act", func(c *Call) error { c.JSON(http.StatusOK, map[string]bool{"acted": true}); return nil },
			Param{Name: "mode", For: []string{"preview", "dry_run"}, Write: "mode=preview"}, Param{Name: "idempotency_key"}, Param{Name: "sql"})
	})
	for query, want := range map[string]string{
		"preview=true": `"preview":"is no parameter of this endpoint; did you mean mode=preview?`, "Preview": "did you mean mode=preview?", "previw=1": "did you mean mode=preview?",
		"dry_run=true": "did you mean mode=preview?", "dryRun=true": "did you mean mode=preview?", "dry-run": "did you mean mode=preview?", "Mode=preview": "did you mean mode?",
		"MODE=preview": "did you mean mode?", "mode%20=preview": "did you mean mode?", "moed=preview": "did you mean mode?", "idempotency-key=a": "did you mean idempotency_key?",
		"idempotencyKey=a": "did you mean idempotency_key?", "mode=preview&mode=preview": `"mode":"must be there once at most"`, "mode=live&mode=preview": `"mode":"must be there once at most"`,
		"mode=live&m%6fde=preview": `"mode":"must be there once at most"`, "sql=a&sql=b": `"sql":"must be there once at most"`, "mode=live;mode=preview": "can't be read",
		"mode=%zz": "can't be read", "=preview": "is no parameter", "mode%00=preview": "is no parameter", "%ff=1": `"?":"is no parameter`, "approval_id=apr_1": "all else in the body",
	} {
		r := s.do("POST", "/act?"+query, "")
		require.Equal(t, http.StatusBadRequest, r.StatusCode, query)
		require.Equal(t, "validation_failed", r.json["error_code"], query)
		require.Contains(t, r.body, want, query)
	}
	for _, query := range []string{"", "mode=preview", "m%6fde=preview", "mode", "sql=%ff", "&", "mode=live&idempotency_key=a&sql=b"} {
		require.Equal(t, http.StatusOK, s.do("POST", "/act?"+query, "").StatusCode, query)
	}
	require.Contains(t, s.do("POST", "/echo?sql=x", "").body, "takes none in the query string")
	require.Equal(t, http.StatusOK, s.do("GET", "/thing?preview=true&preview=false", "").StatusCode, "a GET does nothing")
	for header, value := range map[string]string{"X-Idempotency-Key": "a", "Idempotence-Key": "a", "Idempotency_Key": "a", "X-Idempotency-Token": "a", "Dry-Run": "true", "X-Dry-Run": "1", "X-DryRun": "1", "X-Gate-Mode": "preview",
		"X-Preview": "true", "Prefer": "respond-async, dry-run", "X-Validate-Only": "true"} {
		r := s.do("POST", "/act", "", header, value)
		require.Equal(t, http.StatusBadRequest, r.StatusCode, header)
		require.Contains(t, r.body, "did you mean", header)
		require.Equal(t, http.StatusOK, s.do("GET", "/thing", "", header, value).StatusCode, header)
	}
	for header, value := range map[string]string{"Prefer": "return=minimal", "Sec-Fetch-Mode": "cors", "Idempotency-Key": "a", "X-Requested-With": "preview"} {
		require.Equal(t, http.StatusOK, s.do("POST", "/act", "", header, value).StatusCode, header)
	}
}
