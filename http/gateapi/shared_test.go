package gateapi

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/http/httpd"
	"writegate/sqlgate/pgexec"
)

// What all share, such as the writing of bundles, is not one client's alone, and
// operators have theirs beside it.
func TestWhatAllShareIsNobodysAlone(t *testing.T) {
	operators, err := httpd.ParseOperators("", "ana=an-operator-token-for-ana,ben=an-operator-token-for-ben", 1)
	require.NoError(t, err)
	mux := httpd.NewMux(httpd.Options{Logger: slog.New(slog.DiscardHandler), Operators: operators})
	bundles := httpd.NewShares(2, 1)
	begun, end := make(chan struct{}), make(chan struct{})
	mux.Handle(http.MethodPost, "/bundle", func(c *httpd.Call) error {
		release, err := bundles.Take(c, "bundles being written", 7)
		if err != nil {
			return err
		}
		defer release()
		begun <- struct{}{}
		<-end
		c.JSON(http.StatusOK, struct{}{})
		return nil
	})
	ask := func(address, token string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/bundle", nil)
		r.RemoteAddr = address
		r.Header.Set("X-GATE-Operator-Token", token)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}
	var running sync.WaitGroup
	start := func(address, token string) {
		running.Go(func() { ask(address, token) })
		<-begun
	}
	refused := func(address, token, said string) {
		t.Helper()
		w := ask(address, token)
		require.Equal(t, http.StatusTooManyRequests, w.Code)
		require.Contains(t, w.Body.String(), said)
		require.Equal(t, "7", w.Header().Get("Retry-After"))
	}
	start("192.0.2.1:1", "")
	refused("192.0.2.1:2", "", "This client has 1 bundles being written at once")
	start("[2001:db8::1]:1", "")
	refused("[2001:db8::2]:1", "", "This client has 1")
	refused("192.0.2.3:1", "", "There are 2 bundles being written at once already")
	start("192.0.2.1:3", "an-operator-token-for-ana")
	start("192.0.2.1:4", "an-operator-token-for-ana")
	refused("192.0.2.1:5", "an-operator-token-for-ben", "There are 2")
	close(end)
	running.Wait()
	go func() { <-begun }()
	require.Equal(t, http.StatusOK, ask("192.0.2.1:6", "").Code)
}

// Reading a file that may be as large as a segment is bounded too; other clients
// and the next one of the same are served.
func TestOneClientHasOneFileVerifiedAtATime(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "copy.log")
	require.NoError(t, os.WriteFile(file, []byte("no log\n"), 0o600))
	a := &api{Options: Options{Files: AuditFiles{Roots: []string{dir}}}, files: httpd.NewShares(maxFiles, 1)}
	mux := httpd.NewMux(httpd.Options{Logger: slog.New(slog.DiscardHandler)})
	mux.Handle(http.MethodPost, "/audit/verify", a.verifyFile)
	mux.Handle(http.MethodPost, "/while", func(c *httpd.Call) error {
		release, err := a.files.Take(c, "files being verified", 1)
		require.NoError(t, err)
		defer release()
		require.Equal(t, http.StatusTooManyRequests, verified(mux, c.Request.RemoteAddr, file))
		require.Equal(t, http.StatusOK, verified(mux, "192.0.2.9:1", file))
		return nil
	})
	r := httptest.NewRequest(http.MethodPost, "http://localhost/while", nil)
	mux.ServeHTTP(httptest.NewRecorder(), r)
	require.Equal(t, http.StatusOK, verified(mux, r.RemoteAddr, file))
}

func verified(mux *httpd.Mux, address, file string) (status int) {
	r := httptest.NewRequest(http.MethodPost, "http://localhost/audit/verify", strings.NewReader(`{"audit_file":`+strconv.Quote(file)+`}`))
	r.RemoteAddr = address
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	return w.Code
}

// Policies that come with a request are compiled for anybody, so a few at once and
// within the rate; an operator's are not counted.
func TestOneClientHasFewPoliciesCompiledAtATime(t *testing.T) {
	operators, err := httpd.ParseOperators("", "ana=an-operator-token-for-ana", 1)
	require.NoError(t, err)
	a := &api{compiles: httpd.NewShares(maxCompiles, maxCompiles/2), replays: httpd.NewShares(2, 1)}
	limiter, err := httpd.NewLimiter(60, maxCompiles/2+5, time.Now)
	require.NoError(t, err)
	mux := httpd.NewMux(httpd.Options{Logger: slog.New(slog.DiscardHandler), Operators: operators, Limiter: limiter})
	hold := make(chan struct{})
	held := make(chan struct{}, 2)
	holding := func(c *httpd.Call) error {
		ctx, release, err := a.compiling(c, strings.HasSuffix(c.Request.URL.Path, "/replay"))
		if err != nil {
			return err
		}
		defer release()
		require.Equal(t, c.Holder(), pgexec.ClientOf(ctx))
		held <- struct{}{}
		<-hold
		return nil
	}
	once := func(c *httpd.Call) error {
		_, release, err := a.compiling(c, strings.HasSuffix(c.Request.URL.Path, "/replay"))
		if err == nil {
			release()
			c.JSON(http.StatusOK, struct{}{})
		}
		return err
	}
	for path, h := range map[string]httpd.Handler{"/hold": holding, "/hold/replay": holding, "/once": once, "/once/replay": once} {
		mux.Handle(http.MethodPost, path, h)
	}
	ask := func(path, address, token string) int {
		r := httptest.NewRequest(http.MethodPost, "http://localhost"+path, nil)
		r.RemoteAddr = address
		r.Header.Set("X-GATE-Operator-Token", token)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Code
	}
	var running sync.WaitGroup
	running.Go(func() { ask("/hold/replay", "192.0.2.1:1", "") })
	<-held
	require.Equal(t, http.StatusTooManyRequests, ask("/once/replay", "192.0.2.1:2", ""), "one replay of one client")
	require.Equal(t, http.StatusOK, ask("/once/replay", "192.0.2.2:2", ""))
	for range maxCompiles/2 - 1 {
		running.Go(func() { ask("/hold", "192.0.2.1:1", "") })
		<-held
	}
	require.Equal(t, http.StatusTooManyRequests, ask("/once", "192.0.2.1:2", ""))
	require.Equal(t, http.StatusOK, ask("/once", "192.0.2.2:2", ""))
	close(hold)
	running.Wait()
	require.Equal(t, http.StatusOK, ask("/once", "192.0.2.1:2", ""))
	for range 20 {
		require.Equal(t, http.StatusOK, ask("/once", "192.0.2.1:2", "an-operator-token-for-ana"))
	}
	codes := map[int]int{}
	for range 5 {
		codes[ask("/once", "192.0.2.1:2", "")]++
	}
	require.NotZero(t, codes[http.StatusTooManyRequests], "the rate counts it")
	require.NotZero(t, codes[http.StatusOK])
}
