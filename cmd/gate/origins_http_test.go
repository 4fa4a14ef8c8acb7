package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pageRequest is a statement as the page of a browser sends it, byte for byte.
func (g *testGate) pageRequest(t testing.TB, line, host string, body string, headers ...string) reply {
	t.Helper()
	sent := line + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n"
	if body != "" {
		sent += "Content-Length: " + strconv.Itoa(len(body)) + "\r\n"
	}
	for _, h := range headers {
		sent += h + "\r\n"
	}
	return g.converse(t, sent+"\r\n"+body, 1)[0]
}

// What a page of another origin can make a browser send is refused before
// anything is done, whatever the endpoint; nothing in the answer lets the page
// read it.
func TestAWebPageCannotDriveTheGate(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_ALLOWED_HOSTS=gate.example, proxy.example:8443")
	address := strings.TrimPrefix(g.base, "http://")
	port := address[strings.LastIndex(address, ":"):]
	statement := "{" + testClaims + `,"sql":"INSERT INTO orders VALUES (900, 1, 'page')"}`
	const jsonBody = "Content-Type: application/json"
	for name, c := range map[string]struct {
		line, host string
		body       string
		headers    []string
		status     int
	}{
		"no media type":                {"POST /query", address, statement, nil, 415},
		"a form of text":               {"POST /query", address, statement, []string{"Content-Type: text/plain", "Origin: http://evil.example"}, 403},
		"text without an origin":       {"POST /query", address, statement, []string{"Content-Type: text/plain"}, 415},
		"an urlencoded form":           {"POST /query?sql=SELECT+1", address, "actor=a", []string{"Content-Type: application/x-www-form-urlencoded"}, 415},
		"another origin":               {"POST /query", address, statement, []string{jsonBody, "Origin: http://evil.example"}, 403},
		"another port":                 {"POST /query", address, statement, []string{jsonBody, "Origin: http://127.0.0.1:1"}, 403},
		"no port":                      {"POST /query", address, statement, []string{jsonBody, "Origin: http://127.0.0.1"}, 403},
		"another scheme":               {"POST /query", address, statement, []string{jsonBody, "Origin: https://" + address}, 403},
		"an opaque origin":             {"POST /query", address, statement, []string{jsonBody, "Origin: null"}, 403},
		"an empty origin":              {"POST /query", address, statement, []string{jsonBody, "Origin:"}, 403},
		"two origins":                  {"POST /query", address, statement, []string{jsonBody, "Origin: http://" + address, "Origin: http://evil.example"}, 403},
		"a list of origins":            {"POST /query", address, statement, []string{jsonBody, "Origin: http://" + address + " http://evil.example"}, 403},
		"an extension":                 {"POST /query", address, statement, []string{jsonBody, "Origin: chrome-extension://abcdef"}, 403},
		"cross-site":                   {"POST /query", address, statement, []string{jsonBody, "Sec-Fetch-Site: cross-site"}, 403},
		"same-site":                    {"POST /query", address, statement, []string{jsonBody, "Sec-Fetch-Site: same-site"}, 403},
		"a site that is not known yet": {"POST /query", address, statement, []string{jsonBody, "Sec-Fetch-Site: near-site"}, 403},
		"our origin and cross-site":    {"POST /query", address, statement, []string{jsonBody, "Origin: http://" + address, "Sec-Fetch-Site: cross-site"}, 403},
		"a name that leads here":       {"POST /query", "evil.example" + port, statement, []string{jsonBody}, 421},
		"its own page":                 {"POST /query", "evil.example" + port, statement, []string{jsonBody, "Origin: http://evil.example" + port, "Sec-Fetch-Site: same-origin"}, 421},
		"a name below localhost":       {"POST /query", "evil.localhost" + port, statement, []string{jsonBody}, 421},
		"a name before an address":     {"POST /query", "127.0.0.1.evil.example", statement, []string{jsonBody}, 421},
		"an empty name":                {"POST /query", "", statement, []string{jsonBody}, 421},
		"a port alone":                 {"POST /query", port, statement, []string{jsonBody}, 421},
		"a port that is none":          {"POST /query", "localhost:evil", statement, []string{jsonBody}, 421},
		"a name with another port":     {"POST /query", "proxy.example", statement, []string{jsonBody}, 421},
		"an absolute target":           {"POST http://evil.example/query", address, statement, []string{jsonBody}, 421},
		"a read of another origin":     {"GET /audit", address, "", []string{"Origin: http://evil.example"}, 403},
		"a read of a script":           {"GET /audit", address, "", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"}, 403},
		"a read of another port":       {"GET /audit", address, "", []string{"Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"}, 403},
		"a read through a name":        {"GET /audit", "evil.example", "", nil, 421},
		"a link to the gate":           {"GET /audit", address, "", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 403},
		"a stream":                     {"GET /audit/stream", address, "", []string{"Origin: http://evil.example", "Accept: text/event-stream"}, 403},
		"a web socket":                 {"GET /audit/stream", address, "", []string{"Origin: http://evil.example", "Upgrade: websocket", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13"}, 403},
		"a question of CORS":           {"OPTIONS /query", address, "", []string{"Origin: http://evil.example", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type", "Access-Control-Request-Private-Network: true"}, 403},
		"a question for all":           {"OPTIONS *", address, "", []string{"Origin: http://evil.example", "Access-Control-Request-Method: POST"}, 403},
		"agents":                       {"GET /v1/agents", address, "", []string{"Origin: http://evil.example"}, 403},
		"agents through a name":        {"GET /v1/agents", "evil.example", "", nil, 421},
		"metrics":                      {"GET /metrics", "evil.example", "", nil, 421},
		"a path that is not there":     {"GET /nowhere", "evil.example", "", nil, 421},
	} {
		r := g.pageRequest(t, c.line, c.host, c.body, c.headers...)
		require.Equal(t, c.status, r.status, "%s: %s", name, r.body)
		requireErrorObject(t, r)
		require.Equal(t, map[int]string{403: "forbidden_origin", 415: "unsupported_media_type", 421: "misdirected_request"}[c.status], r.text(t, "error_code"), name)
		requireNoPermission(t, r)
	}
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE id = 900"))
	require.NotContains(t, string(g.get(t, "/audit?event_type=request_received").body), "event_hash", "nothing was taken for a request")

	// Programs, pages of the listener's own and whoever types the address are served as before.
	for name, c := range map[string]struct {
		host    string
		headers []string
	}{
		"a program":                {address, nil},
		"localhost":                {"localhost" + port, nil},
		"capitals and a final dot": {"LocalHost." + port, nil},
		"no port":                  {"localhost", nil},
		"an empty port":            {"localhost:", nil},
		"six":                      {"[::1]" + port, nil},
		"six without a port":       {"[::1]", nil},
		"six with a zone":          {"[fe80::1%25eth0]" + port, nil},
		"another address":          {"192.0.2.7", nil},
		"a name of the list":       {"gate.example:9999", nil},
		"its capitals":             {"GATE.example.", nil},
		"a name with its port":     {"proxy.example:8443", nil},
		"a page of our own":        {address, []string{"Origin: http://" + address, "Sec-Fetch-Site: same-origin"}},
		"behind a proxy with TLS":  {"gate.example", []string{"Origin: https://gate.example", "Sec-Fetch-Site: same-origin"}},
		"with its port":            {"proxy.example:8443", []string{"Origin: https://proxy.example:8443"}},
		"an address in a browser":  {address, []string{"Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}},
		"a final dot in both":      {"gate.example.", []string{"Origin: http://gate.example."}},
	} {
		r := g.pageRequest(t, "GET /policy/status", c.host, "", c.headers...)
		require.Equal(t, http.StatusOK, r.status, "%s: %s", name, r.body)
		requireNoPermission(t, r)
	}
	require.Equal(t, http.StatusOK, g.converse(t, "GET /health HTTP/1.0\r\n\r\n", 1)[0].status, "a check of a load balancer")
	sent := fmt.Sprintf("{%s,\"sql\":\"SELECT id FROM orders WHERE id = 1\"}", testClaims)
	require.Equal(t, http.StatusOK, g.pageRequest(t, "POST /query", address, sent, jsonBody).status)
	require.Equal(t, http.StatusOK, g.pageRequest(t, "POST http://localhost/query", "evil.example", sent, jsonBody).status, "the target counts (RFC 9112 part 3.2.2)")
}

// requireNoPermission wants an answer that no page of another origin may read,
// embed or run.
func requireNoPermission(t testing.TB, r reply) {
	t.Helper()
	for name := range r.header {
		require.False(t, strings.HasPrefix(name, "Access-Control-"), name)
	}
	require.Equal(t, "nosniff", r.header.Get("X-Content-Type-Options"))
	require.Equal(t, "same-origin", r.header.Get("Cross-Origin-Resource-Policy"))
	require.Contains(t, r.header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
}
