package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reader is somebody who is logged in at a dashboard, without a browser.
type reader struct {
	*http.Client
	base string
}

func (p *testPlane) reader(t *testing.T) reader {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	r := reader{&http.Client{Jar: jar}, p.base}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.base+"/api/gate/admin/login", strings.NewReader(`{"username":"ana","password":"`+planePassword+`"}`))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Origin", p.base)
	request.Header.Set("Sec-Fetch-Site", "same-origin")
	answer, err := r.Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode)
	return r
}

func (r reader) page(t *testing.T, path string) string {
	t.Helper()
	answer, err := r.Get(r.base + path)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode, "%s: %s", path, text)
	return string(text)
}

var storyLink = regexp.MustCompile(`href="(/requests/[^"]*)"`)

// Clients name their requests, so an id joins nothing by itself.
func TestTheStoryOfARequestIsNotAnothers(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	plane := startTestPlane(t, g.base).reader(t)
	const id = "X-Request-Id: req_01a203f1-aaaa-7aaa-8aaa-bbbbbbbbbbbb"
	read := g.do(t, http.MethodPost, "/query", mustJSON(t, ask("SELECT id FROM orders WHERE id = 1")), id)
	require.Equal(t, http.StatusOK, read.status)
	alone := plane.page(t, "/requests/req_01a203f1-aaaa-7aaa-8aaa-bbbbbbbbbbbb")
	require.Contains(t, alone, "Statement in the log")
	require.NotContains(t, alone, "requests bear this id")

	asked := g.do(t, http.MethodPost, "/query", mustJSON(t, ask("DELETE FROM orders WHERE id = 3").with("actor", "eve")), id)
	require.Equal(t, http.StatusAccepted, asked.status, "%s", asked.body)
	story := plane.page(t, storyLink.FindStringSubmatch(plane.page(t, "/approvals/"+asked.text(t, "approval_id")))[1])
	require.Contains(t, story, "2 requests bear this id")
	require.NotContains(t, story, "Statement in the log")
	require.Contains(t, story, asked.text(t, "approval_id"))
	require.Contains(t, story, "eve in")
	require.NotContains(t, plane.page(t, "/executions/"+read.text(t, "execution_id")), "The statement</h2>")
}

func TestTheStoryOfARequestOpensWhateverItsID(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	plane := startTestPlane(t, g.base).reader(t)
	for _, id := range []string{"a/b", "..", ".", "-", "<b>", `"x"`, "a?b#c", "%2e%2e", "a&id=b", "50%"} {
		asked := g.do(t, http.MethodPost, "/query", mustJSON(t, ask(fmt.Sprintf("DELETE FROM orders WHERE id = %d", 10+len(id)))), "X-Request-Id: "+id)
		require.Equal(t, http.StatusAccepted, asked.status, "%s", asked.body)
		approval := asked.text(t, "approval_id")
		link := storyLink.FindStringSubmatch(plane.page(t, "/approvals/"+approval))[1]
		require.Contains(t, plane.page(t, strings.ReplaceAll(link, "&amp;", "&")), approval, "%s, %s", id, link)
	}
}

// Claims come from anybody; a mark in one must not turn the line of an inbox around.
func TestClaimsAreReadAsTheyAre(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	plane := startTestPlane(t, g.base).reader(t)
	asked := g.query(t, ask("DELETE FROM orders WHERE id = 3").with("actor", "\u202eana\u2028").with("app", "s\u200bhop"))
	require.Equal(t, http.StatusAccepted, asked.status, "%s", asked.body)
	for _, path := range []string{"/", "/approvals", "/approvals/" + asked.text(t, "approval_id"), "/audit"} {
		shown := plane.page(t, path)
		require.NotContains(t, shown, "\u202e", path)
		require.NotContains(t, shown, "\u2028", path)
		require.NotContains(t, shown, "\u200b", path)
		if path != "/" {
			require.Regexp(t, `<mark class="mark" title="U&#43;202E [^<]*>U&#43;202E<span class="unseen">[^<]*</span></mark>ana<mark class="mark" title="U&#43;2028`, shown, path)
		}
	}
}
