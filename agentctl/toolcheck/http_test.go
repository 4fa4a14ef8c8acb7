package toolcheck_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl/egress"
	"writegate/agentctl/toolcheck"
	"writegate/fixtures/loopback"
)

func TestAnHTTPToolIsProbedOnce(t *testing.T) {
	l := newLab(t)
	var asked atomic.Int64
	port, _ := l.Serve(loopback.Public, true, func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		switch {
		case req.Header.Get("X-Api-Key") != "" && req.Header.Get("X-Api-Key") != secretValue:
			w.WriteHeader(http.StatusBadRequest)
		case req.URL.Path == "/healthz" && req.URL.RawQuery == "deep=1":
			w.WriteHeader(http.StatusNoContent)
		case req.URL.Path == "/locked" && req.Header.Get("X-Api-Key") == "":
			w.WriteHeader(http.StatusUnauthorized)
		case req.URL.Path == "/forbidden":
			w.WriteHeader(http.StatusForbidden)
		case req.URL.Path == "/moved":
			http.Redirect(w, req, "/healthz?deep=1", http.StatusFound)
		case req.URL.Path == "/nowhere":
			http.NotFound(w, req)
		case req.URL.Path == "/head" && req.Method != http.MethodHead:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case req.URL.Path == "/endless":
			block := make([]byte, 1<<16)
			for {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}
	})
	base := "https://tools.test:" + port
	key := toolcheck.Auth{Type: "header", Header: "X-Api-Key", Secret: "RUNSQL"}
	for _, c := range []struct {
		name     string
		probe    toolcheck.Probe
		auth     toolcheck.Auth
		status   int
		code     egress.Code
		requests int64
	}{
		{name: "the default", status: 200, requests: 1},
		{name: "a path with a query", probe: toolcheck.Probe{Path: "/healthz?deep=1"}, status: 204, requests: 1},
		{name: "HEAD", probe: toolcheck.Probe{Method: "HEAD", Path: "/head"}, status: 200, requests: 1},
		{name: "a redirect at home", probe: toolcheck.Probe{Path: "/moved"}, status: 204, requests: 2},
		{name: "an expected status", probe: toolcheck.Probe{Path: "/nowhere", ExpectStatus: []int{404}}, status: 404, requests: 1},
		{name: "an expected 401", probe: toolcheck.Probe{Path: "/locked", ExpectStatus: []int{401}}, status: 401, requests: 1},
		{name: "another status", probe: toolcheck.Probe{Path: "/nowhere"}, status: 404, code: toolcheck.HTTPStatus, requests: 1},
		{name: "none of those expected", probe: toolcheck.Probe{ExpectStatus: []int{201, 202}}, status: 200, code: toolcheck.HTTPStatus, requests: 1},
		{name: "credentials missing", probe: toolcheck.Probe{Path: "/locked"}, status: 401, code: toolcheck.AuthRequired, requests: 1},
		{name: "forbidden", probe: toolcheck.Probe{Path: "/forbidden"}, status: 403, code: toolcheck.AuthRequired, requests: 1},
		{name: "with its secret", probe: toolcheck.Probe{Path: "/locked"}, auth: key, status: 200, requests: 1},
		{name: "an endless body", probe: toolcheck.Probe{Path: "/endless"}, code: egress.ResponseTooLarge, requests: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked.Store(0)
			result := l.verify(toolcheck.Target{Type: toolcheck.TypeHTTP, URL: base + "/api", Probe: c.probe, Auth: c.auth})
			require.Equal(t, c.code, result.Code, "%+v", result)
			verdict := "probe passed"
			if c.code != "" {
				verdict = "probe failed"
			}
			require.Equal(t, []string{"url passed", "connect passed", verdict}, stepNames(result))
			require.Equal(t, c.status, lastStep(result).HTTPStatus)
			require.Equal(t, c.requests, asked.Load())
			require.Empty(t, result.Current.Fingerprint, "an endpoint has no definition")
		})
	}
}

func TestAProbeStaysOnTheHostOfItsURL(t *testing.T) {
	l := newLab(t)
	inside, _ := l.Serve(loopback.Inside, true, func(http.ResponseWriter, *http.Request) {})
	port, _ := l.Serve(loopback.Public, true, func(http.ResponseWriter, *http.Request) {})
	for _, path := range []string{"healthz", "@127.0.0.1:" + inside + "/", ":" + inside + "/", ".other.test/", "https://127.0.0.1/", `/\127.0.0.1`, "/a b", "/#x", "/é"} {
		result := l.verify(toolcheck.Target{Type: toolcheck.TypeHTTP, URL: "https://tools.test:" + port, Probe: toolcheck.Probe{Path: path}})
		require.Equal(t, egress.URLForbidden, result.Code, path)
	}
	result := l.verify(toolcheck.Target{Type: toolcheck.TypeHTTP, URL: "https://tools.test:" + port, Probe: toolcheck.Probe{Path: "//127.0.0.1:" + inside + "/@x"}})
	require.Equal(t, toolcheck.Passed, result.Status, "two slashes are a path behind a host")
	l.RequireInsideUntouched(t)
}

func TestAFunctionIsItsSchemas(t *testing.T) {
	l := newLab(t)
	good := toolcheck.Target{Type: toolcheck.TypeFunction, InputSchema: []byte(inputSchema)}
	result := l.verify(good)
	require.Equal(t, toolcheck.Passed, result.Status)
	require.Equal(t, []string{"schema passed"}, stepNames(result))

	result = l.verify(toolcheck.Target{Type: toolcheck.TypeFunction, OutputSchema: []byte(`{"type":"nothing"}`)})
	require.Equal(t, toolcheck.SchemaMismatch, result.Code)

	_, err := l.checker().Verify(t.Context(), "tool_1", toolcheck.Target{Type: toolcheck.TypeFunction}, toolcheck.DefaultTimeout)
	require.ErrorIs(t, err, toolcheck.ErrNotVerifiable)
}

func TestSchemasAreChecked(t *testing.T) {
	checker := newLab(t).checker()
	for text, good := range map[string]bool{
		`{}`:        true,
		inputSchema: true,
		`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object"}`: true,
		`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}`:      true,
		`{"$defs":{"a":{"type":"string"}},"properties":{"x":{"$ref":"#/$defs/a"}}}`:  true,
		`{"properties":{"x":{"$ref":"#"}}}`:                                          true,
		`{"type":"nothing"}`:                                                         false,
		`{"type":7}`:                                                                 false,
		`{"pattern":"("}`:                                                            false,
		`{"properties":[]}`:                                                          false,
		`{"$ref":"#/$defs/missing"}`:                                                 false,
		`{"$ref":"https://example.com/schema.json"}`:                                 false,
		`{"$ref":"file:///etc/passwd"}`:                                              false,
		`{"$schema":"https://example.com/meta"}`:                                     false,
		`{"type":"object","type":"string"}`:                                          false,
		`true`:                                                                       false,
		`[]`:                                                                         false,
		``:                                                                           false,
		`{`:                                                                          false,
		`{} {}`:                                                                      false,
		`{"a":` + strings.Repeat(`{"not":`, 200) + `{}` + strings.Repeat(`}`, 201): false,
		`{"description":"` + strings.Repeat("a", 1<<16) + `"}`:                     false,
	} {
		why := check(t, checker, text)
		require.Equal(t, good, why == "", "%.80s: %v", text, why)
	}
}

// A few characters of a pattern can come to megabytes when they are compiled.
func TestThePatternsOfASchemaAreBoundedTogether(t *testing.T) {
	checker := newLab(t).checker()
	dots := strings.Repeat(".{1000}", 40)
	for text, good := range map[string]bool{
		`{"pattern":"^[A-Za-z0-9_.-]{1,255}@[a-z]{2,63}$"}`:                               true,
		`{"pattern":"` + dots + `"}`:                                                      true,
		`{"properties":{"a":{"pattern":"` + dots + `"},"b":{"pattern":"` + dots + `b"}}}`: false,
		`{"patternProperties":{"` + dots + `":{},"b` + dots + `":{}}}`:                    false,
		`{"pattern":"(` + dots + `){10,}"}`:                                               false,
	} {
		why := check(t, checker, text)
		require.Equal(t, good, why == "", "%.80s: %v", text, why)
	}
	require.Contains(t, check(t, checker, `{"patternProperties":{"`+dots+dots+`":{}}}`), "steps")
}

func check(t testing.TB, checker *toolcheck.Checker, text string) (why string) {
	why, err := checker.CheckSchema(t.Context(), "client", []byte(text))
	require.NoError(t, err)
	return why
}

func FuzzCheckSchema(f *testing.F) {
	checker := newLab(f).checker()
	f.Add([]byte(inputSchema))
	f.Add([]byte(`{"$ref":"#","$dynamicRef":"#x","$id":"a","items":[{}],"pattern":"(a+)+"}`))
	f.Fuzz(func(t *testing.T, text []byte) { check(t, checker, string(text)) })
}
