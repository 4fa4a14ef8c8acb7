package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policyfolder"
)

const testClaims = `"actor":"ana","app":"shop","tenant":"acme","role":"clerk","host":"desk-1","env":"prod"`

// bodyEndpoints are the endpoints that read a body, each with a body that is
// right but for one field, and that field.
var bodyEndpoints = map[string]struct{ but, field string }{
	"/query":                       {`{"actor":"ana","app":"shop","tenant":"acme","role":"clerk","host":"desk-1","env":"prod"`, "sql"},
	"/approvals/apr_none/resolve":  {`{"note":"none"`, "decision"},
	"/approvals/apr_other/resolve": {`{"decision":"approve"`, "note"},
	"/approvals/purge":             {`{`, ""},
}

// hostileBodies are no bodies of any endpoint.
var hostileBodies = map[string]string{
	"list": "[]", "string": `"a"`, "number": "1", "null": "null", "true": "true", "nothing but a brace": "{", "the wrong brace": "}",
	"no value": `{"a"}`, "an empty value": `{"a":}`, "a comma": "{,}", "a comma at the end": `{"decision":"approve",}`, "a name without quotes": "{a:1}",
	"single quotes": "{'a':1}", "a comment": "/* a */{}", "a byte order mark": "\ufeff{}", "utf-16": "\xff\xfe{\x00}\x00", "nul": "\x00", "nul behind": "{}\x00",
	"two values": "{} {}", "something behind": "{}x", "an unknown field": `{"no_such_field":1}`, "an unknown empty name": `{"":1}`,
	"another case": `{"SQL":"SELECT 1","Decision":"approve"}`, "deep lists": strings.Repeat("[", 100_000), "deep objects": strings.Repeat(`{"a":`, 100_000),
	"deep in a field": `{"sql":` + strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000) + "}", "a huge number": `{"sql":` + strings.Repeat("9", 500_000) + "}",
	"a huge exponent": `{"sql":1e999999999}`, "a leading zero": `{"sql":01}`, "not a number": `{"sql":NaN}`, "a lone minus": `{"sql":-}`,
	"a wrong escape": `{"sql":"\x41"}`, "half an escape": `{"sql":"\u00"}`, "a line feed in a string": "{\"sql\":\"\n\"}", "an open string": `{"sql":"`,
	"many names": "{" + strings.TrimSuffix(strings.Repeat(`"a":1,`, 50_000), ",") + "}", "a long name": `{"` + strings.Repeat("a", 500_000) + `":1}`,
}

func TestHostileBodiesThroughHTTP(t *testing.T) {
	t.Parallel()
	g := startClosed(t)
	operator := "Authorization: Bearer " + operatorTestToken
	for path, endpoint := range bodyEndpoints {
		for name, body := range hostileBodies {
			r := g.do(t, http.MethodPost, path, []byte(body), operator)
			require.Equal(t, http.StatusBadRequest, r.status, "%s, %s: %.300s", path, name, r.body)
			require.Equal(t, "invalid_json", r.text(t, "error_code"), "%s, %s: %.300s", path, name, r.body)
			require.Less(t, len(r.body), 1000, "an answer repeats little of what was sent")
		}
		if endpoint.field == "" {
			continue
		}
		for _, value := range []string{"1", "true", "[]", "{}", `["a"]`, `{"a":1}`, "1.5e3", `"a","` + endpoint.field + `":"b"`} {
			body := fmt.Sprintf("%s,%q:%s}", endpoint.but, endpoint.field, value)
			r := g.do(t, http.MethodPost, path, []byte(body), operator)
			require.Equal(t, "invalid_json", r.text(t, "error_code"), "%s: %s: %s", path, body, r.body)
			require.Contains(t, string(mustField(t, r, "details")), endpoint.field)
		}
	}
	g.requireUnharmed(t)
}

// requireUnharmed wants a gate that is alive and met no panic.
func (g *testGate) requireUnharmed(t testing.TB) {
	t.Helper()
	g.requireAlive(t)
	require.NotContains(t, g.output.String(), "panic")
}

func TestClaimsHaveTheirLimits(t *testing.T) {
	t.Parallel()
	g := startClosed(t)
	for _, claim := range []string{"actor", "app", "tenant", "role", "host"} {
		require.Equal(t, http.StatusForbidden, g.query(t, ask("SELECT 1").with(claim, strings.Repeat("ä", 256))).status)
		for _, wrong := range []string{"", strings.Repeat("a", 257)} {
			requireInvalid(t, g.query(t, ask("SELECT 1").with(claim, wrong)), claim)
		}
	}
	for _, wrong := range []string{"", "PROD", "production", "prod "} {
		requireInvalid(t, g.query(t, ask("SELECT 1").with("env", wrong)), "env")
	}
	for _, wrong := range []string{"", strings.Repeat("a", 256), "a b", "ä", "a\x00"} {
		requireInvalid(t, g.query(t, ask("SELECT 1"), "idempotency_key="+wrong), "idempotency_key")
	}
	require.Equal(t, http.StatusForbidden, g.query(t, ask("SELECT 1"), "idempotency_key="+strings.Repeat("~", 255)).status)
	requireInvalid(t, g.query(t, ask("SELECT 1").with("execution_profile", "fast")), "execution_profile")
	requireInvalid(t, g.query(t, ask("SELECT 1"), "mode=LIVE"), "mode")
	requireInvalid(t, g.do(t, http.MethodPost, "/query", nil), "sql")
	g.requireUnharmed(t)
}

func TestMediaTypesThroughHTTP(t *testing.T) {
	t.Parallel()
	g := startClosed(t)
	body := []byte("{" + testClaims + `,"sql":"SELECT 1"}`)
	for _, taken := range []string{"application/json", "application/json; charset=utf-8", "APPLICATION/JSON;charset=UTF-8"} {
		require.Equal(t, http.StatusForbidden, g.do(t, http.MethodPost, "/query", body, "Content-Type: "+taken).status, taken)
	}
	for path := range bodyEndpoints {
		for _, other := range []string{"text/plain", "text/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a",
			"application/json; charset=utf-16", "application/json; charset", "application/json, text/plain", ";", "*/*"} {
			r := g.do(t, http.MethodPost, path, body, "Content-Type: "+other, "X-GATE-Operator-Token: "+operatorTestToken)
			require.Equal(t, http.StatusUnsupportedMediaType, r.status, "%s %q: %s", path, other, r.body)
			require.Equal(t, "unsupported_media_type", r.text(t, "error_code"))
		}
	}
	g.requireUnharmed(t)
}

func TestTheSizeOfABodyThroughHTTP(t *testing.T) {
	t.Parallel()
	g := startClosed(t)
	body := []byte("{" + testClaims + `,"sql":"SELECT 1"}`)
	padded := append(body, bytes.Repeat([]byte(" "), 1<<20-len(body))...)
	require.Equal(t, http.StatusForbidden, g.do(t, http.MethodPost, "/query", padded).status)
	for path := range bodyEndpoints {
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nX-GATE-Operator-Token: %s\r\n", path, operatorTestToken)
		for _, sent := range []string{
			fmt.Sprintf("%sContent-Length: %d\r\n\r\n", head, 1<<20+1),                                               // refused before the first byte
			fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s", head, 1<<20+1, strings.Repeat(" ", 1<<20+1)), // and without an end
		} {
			r := g.converse(t, sent, 1)[0]
			require.Equal(t, http.StatusRequestEntityTooLarge, r.status, "%s: %s", path, r.body)
			requireErrorObject(t, r)
			require.Equal(t, "oversized_request", r.text(t, "error_code"))
		}
	}
	g.requireUnharmed(t)
}

// converse sends bytes over a connection of its own and reads answers until the
// server closes it or has given as many as are wanted.
func (g *testGate) converse(t testing.TB, sent string, want int) []reply {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.base, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(startPatience)))
	if _, err := io.WriteString(conn, sent); err != nil {
		t.Logf("the server closed while it was written to: %v", err)
	}
	var replies []reply
	in := bufio.NewReader(conn)
	for range want {
		method, _, _ := strings.Cut(sent, " ")
		response, err := http.ReadResponse(in, &http.Request{Method: method})
		require.NoError(t, err, "%.100q", sent)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err, "%.100q", sent)
		replies = append(replies, reply{response.StatusCode, response.Header, body})
	}
	return replies
}

// What is HTTP gets an answer of the gate, in the contract's shape.
func TestOddRequestsGetAnAnswerInTheContractsShape(t *testing.T) {
	t.Parallel()
	g := startClosed(t)
	long := strings.Repeat("a", 8000)
	for line, want := range map[string]struct {
		status int
		code   string
	}{
		"GET /":                                 {404, "not_found"},
		"GET //health":                          {404, "not_found"},
		"GET /health/":                          {404, "not_found"},
		"GET /HEALTH":                           {404, "not_found"},
		"GET /health%20":                        {404, "not_found"},
		"GET /health;a=b":                       {404, "not_found"},
		"GET /./health":                         {404, "not_found"},
		"GET /audit/../health":                  {404, "not_found"},
		"GET /audit/%2e%2e/health":              {404, "not_found"},
		"GET /audit%2f..%2fhealth":              {404, "not_found"},
		"GET /runtime%2fstats":                  {404, "not_found"},
		"GET /runtime%2Fstats":                  {404, "not_found"},
		"GET /%00":                              {404, "not_found"},
		"GET /%ff":                              {404, "not_found"},
		"GET /" + long:                          {404, "not_found"},
		"GET /approvals/":                       {404, "not_found"},
		"GET /approvals/%00":                    {404, "approval_not_found"},
		"GET /approvals/%ff":                    {404, "approval_not_found"},
		"GET /approvals/%2e%2e":                 {404, "approval_not_found"},
		"GET /approvals/a%2fb":                  {404, "not_found"},
		"GET /approvals/" + long:                {404, "approval_not_found"},
		"GET /executions/%27%3b%20DROP%20TABLE": {404, "not_found"},
		"POST /approvals/a%2fresolve":           {404, "not_found"},
		"POST /approvals//resolve":              {401, "unauthorized_operator"},
		"POST /approvals/a/resolve/":            {404, "not_found"},
		"POST /approvals/a/resolve":             {401, "unauthorized_operator"},
		"POST /approvals/a":                     {405, "method_not_allowed"},
		"GET /query":                            {405, "method_not_allowed"},
		"get /health":                           {405, "method_not_allowed"},
		"TRACE /health":                         {405, "method_not_allowed"},
		"OPTIONS /health":                       {405, "method_not_allowed"},
		"PROPFIND /query":                       {405, "method_not_allowed"},
		"DELETE /approvals/a":                   {405, "method_not_allowed"},
		"OPTIONS *":                             {405, "method_not_allowed"},
		"CONNECT example.org:443":               {421, "misdirected_request"},
		"CONNECT 127.0.0.1:443":                 {404, "not_found"},
		"CONNECT /health":                       {405, "method_not_allowed"},
		"GET http://example.org/nowhere":        {421, "misdirected_request"},
		"GET http://127.0.0.1/nowhere":          {404, "not_found"},
		"GET /audit?limit=0":                    {400, "validation_failed"},
		"GET /audit?limit=99999999999999999999": {400, "validation_failed"},
		"GET /audit?cursor=" + long:             {400, "validation_failed"},
		"GET /audit?limit=%zz":                  {400, "validation_failed"},
		"GET /approvals?status=%ff":             {400, "validation_failed"},
	} {
		for _, version := range []string{"HTTP/1.1\r\nHost: localhost\r\n", "HTTP/1.0\r\n"} {
			r := g.converse(t, line+" "+version+"\r\n", 1)[0]
			require.Equal(t, want.status, r.status, "%.100s: %s", line, r.body)
			requireErrorObject(t, r)
			require.Equal(t, want.code, r.text(t, "error_code"), "%.100s", line)
		}
	}
	g.requireUnharmed(t)
}

// What is no HTTP is refused by the reader of HTTP itself, before there is a
// request that could have an id: a status and a closed connection.
func TestWhatIsNoHTTPIsRefused(t *testing.T) {
	t.Parallel()
	g := startClosed(t)
	for sent, status := range map[string]int{
		"GARBAGE\r\n\r\n": 400,
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n": 400, // the beginning of TLS
		"GET /health\r\n\r\n":                                                                                400,
		"GET /health HTTP/1.1\r\n\r\n":                                                                       400, // no Host
		"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n":                                         400,
		"GET /health HTTP/1.1\r\nHost: localhost\r\nX : b\r\n\r\n":                                           400,
		"GET /health HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n":                                         400,
		"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n":                                                    505,
		"G\x00T /health HTTP/1.1\r\nHost: localhost\r\n\r\n":                                                 400,
		"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n":                                                       400,
		"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n":                              400,
		"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n":            400,
		"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n":          400,
		"POST /query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n":                501,
		"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("a", 72<<10) + "\r\n\r\n":          431,
		"GET /health HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X: a\r\n", 12_500) + "\r\n":          431,
		"GET /" + strings.Repeat("a", 72<<10) + " HTTP/1.1\r\nHost: localhost\r\n\r\n":                       431,
		"POST /query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n":                400,
		"POST /query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n": 400,
	} {
		r := g.converse(t, sent, 1)[0]
		require.Equal(t, status, r.status, "%.100q: %s", sent, r.body)
	}
	g.requireUnharmed(t)
}

// Clients that hang up in the middle leave nothing behind; requests in one
// packet are answered one by one.
func TestBrokenAndPipelinedConversations(t *testing.T) {
	t.Parallel()
	g := startClosed(t)
	statement := "{" + testClaims + `,"sql":"SELECT 1"}`
	post := fmt.Sprintf("POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(statement), statement)
	for _, sent := range []string{"P", "POST /query HTTP/1.1\r\n", post[:len(post)-1], "POST /query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"act"} {
		require.Empty(t, g.converse(t, sent, 0))
	}
	chunked := fmt.Sprintf("POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x;name=value\r\n%s\r\n0\r\n\r\n", len(statement), statement)
	old := fmt.Sprintf("POST /query HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(statement), statement)
	status := []int{}
	const nowhere = "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
	for _, r := range append(g.converse(t, post+nowhere+post+chunked, 4), g.converse(t, post+nowhere+old, 3)...) {
		status = append(status, r.status)
	}
	require.Equal(t, []int{403, 404, 403, 403, 403, 404, 403}, status)
	g.requireUnharmed(t)
}

// startDetached is a gate that blocks everything, without a database: for what
// must not get that far.
func startDetached(t testing.TB) *testGate {
	t.Helper()
	d := gateDir{path: t.TempDir(), database: "postgres://nobody@127.0.0.1:1/none"}
	require.NoError(t, policyfolder.Create(d.file("policies"), policyfolder.DefaultManifest, []byte(closedPolicy)))
	return startGate(t, d)
}

func FuzzQueryBody(f *testing.F) {
	for _, body := range hostileBodies {
		f.Add([]byte(body[:min(len(body), 1<<10)]))
	}
	for _, sql := range []string{`SELECT 1`, `SELECT 1\u0000`, `SELECT '\ud83d\ude00'`, `DELETE FROM t WHERE id = 1`, `/*/*`, `;`} {
		f.Add([]byte("{" + testClaims + `,"sql":"` + sql + `"}`))
	}
	g := startDetached(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		response, err := http.Post(g.base+"/query", "application/json", bytes.NewReader(body))
		require.NoError(t, err)
		defer response.Body.Close()
		read, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		requireAnswer(t, reply{response.StatusCode, response.Header, read})
	})
}
