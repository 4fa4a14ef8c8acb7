package controlplane

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what has to come.
const patience = 20 * time.Second

// heads sends the head of a request and a part of its body, and reads the answer. The
// rest of the body never comes.
func (p *plane) heads(t *testing.T, path, media string, length int, part string, headers ...string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.URL, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n%s",
		path, strings.TrimPrefix(p.URL, "http://"), p.URL, media, length, strings.Join(append(headers, ""), "\r\n"), part)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err, path)
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

const (
	formMedia   = "application/x-www-form-urlencoded"
	uploadMedia = "multipart/form-data; boundary=B"
)

// Whoever has no session is refused by what the headers say: nothing of a body is
// waited for.
func TestNothingIsReadOfABodyBeforeTheSessionIsKnown(t *testing.T) {
	p := startPlane(t, nil)
	for _, route := range routesOf(p.server) {
		path := regexp.MustCompile(`:[a-z]+`).ReplaceAllString(route.Path, "x")
		if route.Method != http.MethodPost || path == "/login" || strings.HasSuffix(path, "/admin/login") {
			continue
		}
		media := formMedia
		switch {
		case path == "/evidence/check":
			media = uploadMedia
		case strings.HasPrefix(path, "/api/"):
			media = "application/json"
		}
		resp := p.heads(t, path, media, 1<<20, "") // of a smaller one the server drops what is under way
		require.Contains(t, []int{http.StatusSeeOther, http.StatusUnauthorized}, resp.StatusCode, path)
	}
}

// Who logs in sends little, and is shown less of it.
func TestALoginIsSmall(t *testing.T) {
	p := startPlane(t, nil)
	for path, media := range map[string]string{"/login": formMedia, "/api/gate/admin/login": "application/json"} {
		require.Equal(t, http.StatusRequestEntityTooLarge, p.heads(t, path, media, 1<<20, "").StatusCode, path)
		status, body, _ := p.do(t, http.MethodPost, path, strings.Repeat("a", maxLogin+1), "Content-Type", media)
		require.Equal(t, http.StatusRequestEntityTooLarge, status, body)
		require.Equal(t, http.StatusForbidden, p.heads(t, path, media, 1<<20, "", "Sec-Fetch-Site: cross-site").StatusCode, path)
	}
	_, empty, _ := p.do(t, http.MethodPost, "/login", "username=&password=x", "Content-Type", formMedia)
	status, body, _ := p.do(t, http.MethodPost, "/login", "next=/"+strings.Repeat("n", 30_000)+"&password=x&username="+strings.Repeat("%22", 10_000), "Content-Type", formMedia)
	require.Equal(t, http.StatusUnauthorized, status)
	require.Less(t, len(body)-len(empty), 5*maxName+100, "a quote is five characters in a page")
	status, body, _ = p.do(t, http.MethodPost, "/login", "next=/audit&password=x&username=ana", "Content-Type", formMedia)
	require.Equal(t, http.StatusUnauthorized, status)
	require.Contains(t, body, `value="ana"`)
	require.Contains(t, body, `value="/audit"`)
}

// The head of a part is read as a whole, so it is small; and a session sends so many
// files at once and no more.
func TestAnUploadHoldsLittle(t *testing.T) {
	p := startPlane(t, nil)
	token := p.login(t)
	cookie := "Cookie: gate_session=" + p.cookie(t)
	const length = 2_000_000_000
	first := "--B\r\nContent-Disposition: form-data; name=csrf\r\n\r\n" + token + "\r\n--B\r\n"
	long := `Content-Disposition: form-data; x="` + strings.Repeat("a", 2*maxPartHead)
	for _, part := range []string{"--B\r\n" + long, first + long} {
		resp := p.heads(t, "/evidence/check", uploadMedia, length, part, cookie)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Regexp(t, "can&#39;t be read|can't be read|Choose a file", string(body))
	}
	file := "Content-Disposition: form-data; name=file; filename=b.json\r\n\r\n"
	whole := first + file + `{"format":"x"}` + "\r\n--B--\r\n"
	status, body, _ := p.do(t, http.MethodPost, "/evidence/check", whole, "Content-Type", uploadMedia)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "upload-result")

	for range sessionUploads {
		release, _, ok := p.server.uploads.Take(token)
		require.True(t, ok)
		defer release()
	}
	require.Equal(t, http.StatusTooManyRequests, p.heads(t, "/evidence/check", uploadMedia, length, "", cookie).StatusCode)
}

// cookie is the value of the session's.
func (p *plane) cookie(t *testing.T) string {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, p.URL, nil)
	require.NoError(t, err)
	cookies := p.client.Jar.Cookies(r.URL)
	require.Len(t, cookies, 1)
	return cookies[0].Value
}
