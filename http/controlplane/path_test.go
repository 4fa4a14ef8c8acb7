package controlplane

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An id reaches the gate as it is or not at all: nothing on the way finds
// another path in it than the one from the list.
func TestNoIDLeadsToAnotherPathOfTheGate(t *testing.T) {
	var mu sync.Mutex
	var reached []string
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		reached = append(reached, r.Method+" "+r.RequestURI)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{}`) // a client that left is no matter here
	}))
	defer gate.Close()
	asked := func() []string {
		mu.Lock()
		defer mu.Unlock()
		all := reached
		reached = nil
		return all
	}
	p := startPlane(t, func(o *Options) {
		backend, err := NewBackend(gate.URL+"/behind%2Fa", BackendFiles{}, "token", "", time.Now)
		require.NoError(t, err)
		o.Backend, o.Logger = backend, slog.New(slog.DiscardHandler)
	})
	token := p.login(t)
	long := strings.Repeat("a", 300)
	for _, id := range []string{"..", ".", "...", "%2e%2e", "%2E.", ".%2e", "%252e%252e", "..%2f", "..%252f", "%2f", "..;", ".;", "..%3b", "..;a=b", "%5c", "..%5c", "..\\", "a%5c..%5cb",
		"%00", "a%00b", "%0a", "%0d%0a", "%20", "%09", "%3f", "%3fa=b", "%23", "%ff", "%c0%ae%c0%ae", "%ef%bc%8e%ef%bc%8e", "%e2%80%a4", "a:b", "~", "*", "%25", "a%2bb", long} {
		for _, f := range forwards {
			if !strings.Contains(f.path, ":") {
				continue
			}
			path := apiPrefix + strings.NewReplacer(":id", id, ":token", id, ":version", id).Replace(f.path)
			status, body, _ := p.do(t, f.method, path, "{}", csrfHeader, token)
			require.Equal(t, http.StatusNotFound, status, "%s: %s", path, body)
			require.Empty(t, asked(), path)
		}
		for _, page := range []string{"/approvals/", "/executions/", "/policies/"} {
			status, _, _ := p.do(t, http.MethodGet, page+id, "")
			require.Equal(t, http.StatusNotFound, status, page+id)
			for _, line := range asked() { // the frame around a page asks for itself
				require.Contains(t, []string{"GET /behind%2Fa/health", "GET /behind%2Fa/policy/status", "GET /behind%2Fa/runtime/stats"}, line, page+id)
			}
		}
	}
	for _, id := range []string{"apr_01a1fea4-c55b-7d68-9511-eb79d97f5334", "shop-gate@1.0.0", "a..b"} {
		status, body, _ := p.do(t, http.MethodPost, apiPrefix+"/approvals/"+id+"/resolve", "{}", csrfHeader, token)
		require.Equal(t, http.StatusOK, status, body)
		require.Equal(t, []string{"POST /behind%2Fa/approvals/" + id + "/resolve"}, asked())
	}
	// A filter that can't be read is no filter, and would show more than was asked for.
	status, body, _ := p.do(t, http.MethodGet, apiPrefix+"/approvals?status=%zz", "")
	require.Equal(t, http.StatusBadRequest, status, body)
	require.Empty(t, asked())
}
