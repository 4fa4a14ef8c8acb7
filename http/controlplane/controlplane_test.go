package controlplane

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"writegate/http/httpd"
)

const testPassword = "a password of the tests"

// A plane is a control plane in mock mode behind a real listener, with a clock
// that a test can move.
type plane struct {
	*httptest.Server
	server *Server
	now    *time.Time
	client *http.Client
}

func startPlane(t *testing.T, change func(*Options)) *plane {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(testPassword), leastCost)
	require.NoError(t, err)
	parsed, err := ParsePasswordHash(string(hash))
	require.NoError(t, err)
	now := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	p := &plane{now: &now}
	o := Options{Users: Users{"ana", parsed}, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return *p.now }}
	if change != nil {
		change(&o)
	}
	p.server, err = New(t.Context(), o)
	require.NoError(t, err)
	p.Server = httptest.NewServer(p.server)
	t.Cleanup(p.Close)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	p.client = &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return p
}

// noOrigin takes the header away that do sends with every POST.
const noOrigin = "no Origin"

func (p *plane) do(t *testing.T, method, path, body string, headers ...string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, p.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	if method != http.MethodGet {
		r.Header.Set("Origin", p.URL)
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == noOrigin {
			r.Header.Del("Origin")
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	resp, err := p.client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text), resp.Header
}

// login gives the CSRF token of a new session.
func (p *plane) login(t *testing.T) string {
	t.Helper()
	status, body, _ := p.do(t, http.MethodPost, "/api/gate/admin/login", `{"username":"ana","password":"`+testPassword+`"}`)
	require.Equal(t, http.StatusOK, status, body)
	var answer loginAnswer
	require.NoError(t, json.Unmarshal([]byte(body), &answer))
	require.NotEmpty(t, answer.CSRFToken)
	return answer.CSRFToken
}

func codeOf(body string) string {
	var e refusal
	_ = json.Unmarshal([]byte(body), &e)
	return e.ErrorCode
}

func TestWithoutASessionNothingIsShown(t *testing.T) {
	p := startPlane(t, nil)
	for _, route := range routesOf(p.server) {
		path := regexp.MustCompile(`:[a-z]+`).ReplaceAllString(route.Path, "x")
		if path == "/login" || strings.HasPrefix(path, "/assets/") || strings.HasSuffix(path, "/admin/login") {
			continue
		}
		status, body, header := p.do(t, route.Method, path, "")
		switch {
		case strings.HasPrefix(path, "/api/"), strings.HasPrefix(path, "/charts/"):
			require.Equal(t, http.StatusUnauthorized, status, "%s %s", route.Method, path)
			require.Equal(t, "login_required", codeOf(body))
		case route.Method == http.MethodGet:
			require.Equal(t, http.StatusSeeOther, status, path)
			require.True(t, strings.HasPrefix(header.Get("Location"), "/login?next="), path)
		default:
			require.NotEqual(t, http.StatusOK, status, "%s %s", route.Method, path)
		}
	}
}

// routesOf registers the routes once more, to read them.
func routesOf(s *Server) []httpd.Route {
	m := httpd.NewMux(httpd.Options{Logger: slog.New(slog.DiscardHandler)})
	s.register(m)
	return m.Routes()
}

func TestEveryPageIsMadeAndCarriesTheSameHeaders(t *testing.T) {
	p := startPlane(t, nil)
	p.login(t)
	for _, path := range []string{"/", "/approvals", "/approvals?show=rejected", "/approvals/apr_mock-1", "/audit", "/audit?decision=ALLOW", "/requests/req_mock", "/policies",
		"/policies/mock-policy@0.0.0", "/policy-diff", "/policy-dry-run", "/evidence", "/executions", "/executions?state=unknown", "/executions/exe_mock", "/grants", "/grant-new", "/agents", "/agents/agt_mock", "/logs"} {
		status, body, header := p.do(t, http.MethodGet, path, "")
		require.Equal(t, http.StatusOK, status, "%s: %s", path, body)
		require.Contains(t, body, "Mock mode.", path)
		require.NotContains(t, body, "Enforcing", path)
		require.NotRegexp(t, `[0-9a-f]{64}`, body, "%s: something looks like evidence", path)
		require.Equal(t, policyHeader, header.Get("Content-Security-Policy"), path)
		require.Equal(t, "no-store", header.Get("Cache-Control"), path)
		require.NotRegexp(t, `(?i)<script(?:[^>]*)>[^<]|\son[a-z]+=|\sstyle=|javascript:`, body, "%s has something inline", path)
		require.NotRegexp(t, `(?i)(src|href|action)="(https?:)?//`, body, "%s names another host", path)
		require.Regexp(t, `<title>[^<]+ · Gate \(mock\)</title>`, body, path)
		require.Equal(t, 1, strings.Count(body, "<h1"), "%s has one heading", path)
	}
	require.NotContains(t, policyHeader, "unsafe")
	require.Contains(t, policyHeader, "default-src 'none'")
	require.Contains(t, policyHeader, "frame-ancestors 'none'")
}

func TestInMockModeEveryJSONAnswerIsMarked(t *testing.T) {
	p := startPlane(t, nil)
	token := p.login(t)
	for _, f := range forwards {
		path := apiPrefix + strings.NewReplacer(":id", "apr_mock-1", ":token", "tok_mock", ":version", "mock-policy@0.0.0").Replace(f.path)
		if f.path == "/audit/stream" {
			continue
		}
		_, body, _ := p.do(t, f.method, path, "{}", csrfHeader, token)
		require.Contains(t, body, `"mock":true`, path)
	}
}

func TestAChangeNeedsSessionTokenAndOrigin(t *testing.T) {
	p := startPlane(t, nil)
	token := p.login(t)
	for _, f := range forwards {
		if !f.changes {
			continue
		}
		path := apiPrefix + strings.NewReplacer(":id", "x", ":token", "x", ":version", "x").Replace(f.path)
		for name, refused := range map[string]struct {
			code    string
			headers []string
		}{
			"no token":              {"forged_request", nil},
			"another token":         {"forged_request", []string{csrfHeader, token + "x"}},
			"no origin":             {"forged_request", []string{csrfHeader, token, noOrigin, ""}},
			"typed into the bar":    {"forged_request", []string{csrfHeader, token, noOrigin, "", "Sec-Fetch-Site", "none"}},
			"another origin":        {"forbidden_origin", []string{csrfHeader, token, "Origin", "https://elsewhere.example"}},
			"another port":          {"forbidden_origin", []string{csrfHeader, token, "Origin", "http://127.0.0.1:1"}},
			"origin null":           {"forbidden_origin", []string{csrfHeader, token, "Origin", "null"}},
			"cross-site":            {"forbidden_origin", []string{csrfHeader, token, noOrigin, "", "Sec-Fetch-Site", "cross-site"}},
			"same-site":             {"forbidden_origin", []string{csrfHeader, token, noOrigin, "", "Sec-Fetch-Site", "same-site"}},
			"a form of another one": {"forbidden_origin", []string{csrfHeader, token, noOrigin, "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}},
		} {
			status, body, _ := p.do(t, f.method, path, "{}", refused.headers...)
			require.Equal(t, http.StatusForbidden, status, "%s: %s", path, name)
			require.Equal(t, refused.code, codeOf(body), name)
		}
	}
	status, body, _ := p.do(t, http.MethodPost, apiPrefix+"/policy/validate", "{}", csrfHeader, token)
	require.Equal(t, http.StatusOK, status, body)
	status, body, _ = p.do(t, http.MethodPost, apiPrefix+"/policy/validate", "{}", csrfHeader, token, noOrigin, "", "Sec-Fetch-Site", "same-origin")
	require.Equal(t, http.StatusOK, status, body)
}

// A link from elsewhere opens a page for the person who follows it; no other page
// gets to read one, to frame one, or to follow the log.
func TestALinkFromElsewhereOpensAPage(t *testing.T) {
	p := startPlane(t, nil)
	p.login(t)
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	status, _, header := p.do(t, http.MethodGet, "/approvals", "", link...)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
	require.Equal(t, "same-origin", header.Get("Cross-Origin-Opener-Policy"))
	for _, other := range [][]string{{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, {"Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, {"Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}} {
		for _, site := range []string{"cross-site", "same-site"} {
			for _, path := range []string{"/approvals", "/api/gate/audit", "/api/gate/audit/stream", "/assets/x/app.js"} {
				status, body, _ := p.do(t, http.MethodGet, path, "", append(other, "Sec-Fetch-Site", site)...)
				require.Equal(t, http.StatusForbidden, status, path)
				require.Equal(t, "forbidden_origin", codeOf(body), path)
			}
		}
	}
}

// What a page sends is taken in the query string or in the body, never in both.
func TestAChangeHasNoQueryParameters(t *testing.T) {
	p := startPlane(t, nil)
	token := p.login(t)
	for _, route := range routesOf(p.server) {
		if route.Method != http.MethodPost {
			continue
		}
		path := regexp.MustCompile(`:[a-z]+`).ReplaceAllString(route.Path, "x")
		status, body, _ := p.do(t, http.MethodPost, path+"?preview=true", "{}", csrfHeader, token)
		require.Equal(t, http.StatusBadRequest, status, path)
		require.Equal(t, "validation_failed", codeOf(body), path)
		require.Contains(t, body, `"preview":`, path)
	}
}

func TestALoginFromAnotherOriginIsRefused(t *testing.T) {
	p := startPlane(t, nil)
	status, body, header := p.do(t, http.MethodPost, "/api/gate/admin/login", `{"username":"ana","password":"`+testPassword+`"}`, "Origin", "https://elsewhere.example")
	require.Equal(t, http.StatusForbidden, status)
	require.Equal(t, "forbidden_origin", codeOf(body))
	require.Empty(t, header.Get("Set-Cookie"))
	status, body, header = p.do(t, http.MethodPost, "/api/gate/admin/login", `{"username":"ana","password":"`+testPassword+`"}`, noOrigin, "")
	require.Equal(t, http.StatusForbidden, status, "and so is one without")
	require.Equal(t, "forged_request", codeOf(body))
	require.Empty(t, header.Get("Set-Cookie"))
}

func TestLoginsAreLimitedAndTellNothing(t *testing.T) {
	p := startPlane(t, nil)
	for i := range loginBurst {
		name, password := "ana", "wrong password"
		if i%2 == 1 {
			name = "nobody"
		}
		status, body, header := p.do(t, http.MethodPost, "/api/gate/admin/login", `{"username":"`+name+`","password":"`+password+`"}`)
		require.Equal(t, http.StatusUnauthorized, status)
		require.Contains(t, body, "The name or the password is wrong.")
		require.Empty(t, header.Get("Set-Cookie"))
	}
	status, body, header := p.do(t, http.MethodPost, "/api/gate/admin/login", `{"username":"ana","password":"`+testPassword+`"}`)
	require.Equal(t, http.StatusTooManyRequests, status, "the right password does not help: %s", body)
	require.NotEmpty(t, header.Get("Retry-After"))
	*p.now = p.now.Add(time.Minute)
	p.login(t)
}

func TestASessionEndsIdleOldOrByLogout(t *testing.T) {
	shown := func(p *plane, headers ...string) bool {
		status, _, _ := p.do(t, http.MethodGet, "/", "", headers...)
		return status == http.StatusOK
	}
	t.Run("idle", func(t *testing.T) {
		p := startPlane(t, nil)
		p.login(t)
		*p.now = p.now.Add(sessionIdle - time.Second)
		require.True(t, shown(p))
		*p.now = p.now.Add(sessionIdle)
		require.False(t, shown(p))
	})
	t.Run("what a page does by itself keeps nothing alive", func(t *testing.T) {
		p := startPlane(t, nil)
		p.login(t)
		for range 3 {
			*p.now = p.now.Add(sessionIdle/3 - time.Second)
			require.True(t, shown(p, backgroundHeader, "1"))
			for _, loaded := range []string{"/charts/decisions.svg", apiPrefix + "/health", apiPrefix + "/policy"} { // by the browser, or a script
				status, _, _ := p.do(t, http.MethodGet, loaded, "")
				require.NotEqual(t, http.StatusUnauthorized, status, loaded)
			}
		}
		*p.now = p.now.Add(10 * time.Second)
		require.False(t, shown(p, backgroundHeader, "1"))
	})
	t.Run("old", func(t *testing.T) {
		p := startPlane(t, nil)
		p.login(t)
		for range int(sessionLife/(sessionIdle-time.Minute)) - 1 {
			*p.now = p.now.Add(sessionIdle - time.Minute)
			require.True(t, shown(p))
		}
		*p.now = p.now.Add(sessionIdle - time.Minute)
		require.True(t, shown(p))
		*p.now = p.now.Add(sessionIdle - time.Minute)
		require.False(t, shown(p), "twelve hours are over, however busy they were")
	})
	t.Run("logout", func(t *testing.T) {
		p := startPlane(t, nil)
		token := p.login(t)
		status, _, _ := p.do(t, http.MethodPost, "/api/gate/admin/logout", "", csrfHeader, token)
		require.Equal(t, http.StatusOK, status)
		require.False(t, shown(p))
	})
	t.Run("logout while a change is on its way", func(t *testing.T) {
		p := startPlane(t, nil)
		for path, media := range map[string]string{apiPrefix + "/approvals/apr_mock-1/resolve": "application/json", "/policy-dry-run": "application/x-www-form-urlencoded",
			"/evidence/check": "multipart/form-data; boundary=b"} {
			token := p.login(t)
			body := map[string]string{"application/json": "{}", "application/x-www-form-urlencoded": csrfField + "=" + token}[media]
			if body == "" {
				body = "--b\r\nContent-Disposition: form-data; name=\"" + csrfField + "\"\r\n\r\n" + token +
					"\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n{}\r\n--b--\r\n"
			}
			asked := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { // for the body, which comes behind it
				status, _, _ := p.do(t, http.MethodPost, "/api/gate/admin/logout", "", csrfHeader, token)
				require.Equal(t, http.StatusOK, status)
			}})
			r, err := http.NewRequestWithContext(asked, http.MethodPost, p.URL+path, strings.NewReader(body))
			require.NoError(t, err)
			for name, value := range map[string]string{"Origin": p.URL, "Content-Type": media, csrfHeader: token, "Expect": "100-continue"} {
				r.Header.Set(name, value)
			}
			patient := &http.Client{Jar: p.client.Jar, Transport: &http.Transport{ExpectContinueTimeout: time.Minute}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			resp, err := patient.Do(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			if media == "application/json" {
				require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
			} else {
				require.Contains(t, resp.Header.Get("Location"), "/login", "%d", resp.StatusCode)
			}
		}
	})
	t.Run("a new login ends the session before it", func(t *testing.T) {
		p := startPlane(t, nil)
		p.login(t)
		address, err := url.Parse(p.URL)
		require.NoError(t, err)
		old := p.client.Jar.Cookies(address)[0]
		p.login(t)
		_, ok := p.server.sessions.find(old.Value, true)
		require.False(t, ok)
	})
}

func TestTheCookieIsForThisHostAndNoScript(t *testing.T) {
	p := startPlane(t, nil)
	_, _, header := p.do(t, http.MethodPost, "/api/gate/admin/login", `{"username":"ana","password":"`+testPassword+`"}`)
	require.Regexp(t, `^gate_session=[\w-]+; Path=/; Max-Age=\d+; HttpOnly; SameSite=Strict$`, header.Get("Set-Cookie"))
	p = startPlane(t, func(o *Options) { o.Secure = true })
	_, _, header = p.do(t, http.MethodPost, "/api/gate/admin/login", `{"username":"ana","password":"`+testPassword+`"}`, "Origin", strings.Replace(p.URL, "http:", "https:", 1))
	require.Regexp(t, `^__Host-gate_session=[\w-]+; Path=/; Max-Age=\d+; HttpOnly; Secure; SameSite=Strict$`, header.Get("Set-Cookie"))
	require.Contains(t, header.Get("Strict-Transport-Security"), "max-age=")
}

func TestAnotherNameShowsNothing(t *testing.T) {
	p := startPlane(t, nil)
	for host, served := range map[string]bool{"evil.example": false, "evil.example:3000": false, "127.0.0.1.evil.example": false, "localhost:3000": true, "[::1]:3000": true} {
		status, _, _ := p.do(t, http.MethodGet, "/login", "", "Host", host)
		require.Equal(t, served, status == http.StatusOK, host)
	}
	public, err := url.Parse("https://gate.example")
	require.NoError(t, err)
	p = startPlane(t, func(o *Options) { o.PublicURL, o.Secure = public, true })
	status, _, _ := p.do(t, http.MethodGet, "/login", "", "Host", "gate.example")
	require.Equal(t, http.StatusOK, status)
	status, _, _ = p.do(t, http.MethodGet, "/login", "")
	require.Equal(t, http.StatusMisdirectedRequest, status, "the address itself is not the public name")
}

func TestARedirectStaysHere(t *testing.T) {
	for next, want := range map[string]string{"": "/", "/audit?x=1": "/audit?x=1", "//evil.example": "/", "https://evil.example": "/", "/\\evil.example": "/", "/login?next=/": "/", "javascript:x": "/", "/a\nb": "/"} {
		require.Equal(t, want, inside(next), next)
	}
}

func TestAPasswordHashIsStrongAndNeverShown(t *testing.T) {
	hash, err := HashPassword(testPassword)
	require.NoError(t, err)
	parsed, err := ParsePasswordHash(hash)
	require.NoError(t, err)
	require.True(t, parsed.matches(testPassword))
	require.False(t, parsed.matches(testPassword+"x"))
	require.False(t, parsed.matches(""))
	_, err = HashPassword("short")
	require.Error(t, err)
	for _, bad := range []string{"", "password", "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHRzYWx0c2FsdA$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g", "$argon2id$broken", "$2a$04$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"} {
		_, err := ParsePasswordHash(bad)
		require.Error(t, err, bad)
		if len(bad) > 10 {
			require.NotContains(t, err.Error(), bad)
		}
	}
}

// Live pages and downloads leave the turns of their address to other pages.
func TestLivePagesKeepNoOtherPageWaiting(t *testing.T) {
	p := startPlane(t, nil)
	p.login(t)
	for i := range sessionStreams {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL+[]string{apiPrefix + "/audit/stream", "/audit/download"}[i%2], nil)
		require.NoError(t, err)
		stream, err := p.client.Do(r)
		require.NoError(t, err)
		defer stream.Body.Close()
		require.Equal(t, http.StatusOK, stream.StatusCode)
	}
	status, body, _ := p.do(t, http.MethodGet, "/approvals", "")
	require.Equal(t, http.StatusOK, status, body)
}
