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

	"github.com/stretchr/testify/require"

	"writegate/http/httpd"
)

// What all share, such as the writing of bundles, is not one client's alone, and
// operators have theirs beside it.
func TestWhatAllShareIsNobodysAlone(t *testing.T) {
	operators, err := httpd.ParseOperators("", "ana=an-operator-token-for-ana,ben=an-operator-token-for-ben", 1)
	require.NoError(t, err)
	mux := httpd.NewMux(httpd.Options{Logger: slog.New(slog.DiscardHandler), Operators: operators})
	bundles := newShared(2, 1)
	begun, end := make(chan struct{}), make(chan struct{})
	mux.Handle(http.MethodPost, "/bundle", func(c *httpd.Call) error {
		release, err := bundles.take(c, "bundles being written", 7)
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
	start("[2001:db8::1]:1", "wrong")
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
	a := &api{Options: Options{Files: AuditFiles{Roots: []string{dir}}}, files: newShared(maxFiles, 1)}
	mux := httpd.NewMux(httpd.Options{Logger: slog.New(slog.DiscardHandler)})
	mux.Handle(http.MethodPost, "/audit/verify", a.verifyFile)
	mux.Handle(http.MethodPost, "/while", func(c *httpd.Call) error {
		release, err := a.files.take(c, "files being verified", 1)
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
