package httpd

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Bodies are read before anything is known of who sends them, so what they take of
// the memory is shared out: by what has come, and not by what a header tells.
func TestBodiesOnTheirWayAreBounded(t *testing.T) {
	mux := NewMux(Options{Logger: slog.New(slog.DiscardHandler)})
	var got []byte
	mux.Handle(http.MethodPost, "/read", func(c *Call) (err error) {
		if got, err = c.Body("application/json"); err == nil {
			c.JSON(http.StatusOK, struct{}{})
		}
		return err
	})
	ask := func(address string, body io.Reader, length int64) int {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/read", body)
		r.RemoteAddr, r.ContentLength = address, length
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Code
	}
	for _, size := range []int{0, 1, 500, smallBody - 1, smallBody, smallBody + 1, 100_000, DefaultMaxBody} {
		body := bytes.Repeat([]byte("x"), size)
		for _, length := range []int64{int64(size), -1} {
			require.Equal(t, http.StatusOK, ask("192.0.2.1:1", bytes.NewReader(body), length), size)
			require.Equal(t, string(body), string(got))
		}
	}
	require.Zero(t, mux.bodies.taken)

	release := make(chan struct{})
	slow := func(address string) {
		first := make(chan struct{})
		go ask(address, &slowBody{Reader: strings.NewReader(strings.Repeat("x", DefaultMaxBody-1)), read: first, wait: release}, -1)
		<-first
	}
	for i := 0; mux.bodies.TakeSome("192.0.2.1", 2*DefaultMaxBody); i++ {
		mux.bodies.Give("192.0.2.1", 2*DefaultMaxBody)
		require.Less(t, i, bodiesEach/DefaultMaxBody)
		slow("192.0.2.1:1")
	}
	require.Equal(t, http.StatusTooManyRequests, ask("192.0.2.1:2", strings.NewReader(strings.Repeat("x", DefaultMaxBody)), -1))
	require.Equal(t, http.StatusOK, ask("192.0.2.1:2", strings.NewReader(strings.Repeat("x", smallBody-1)), smallBody-1), "a small one is read all the same")
	require.Equal(t, http.StatusOK, ask("192.0.2.2:2", strings.NewReader(strings.Repeat("x", DefaultMaxBody)), -1), "and those of others")
	close(release)
	require.Eventually(t, func() bool { return mux.bodies.TakeSome("nobody", bodiesMost*bodiesEach/bodiesMost) }, time.Minute, time.Millisecond)
	mux.bodies.Give("nobody", bodiesEach)
	require.Eventually(t, func() bool { mux.bodies.mu.Lock(); defer mux.bodies.mu.Unlock(); return mux.bodies.taken == 0 }, time.Minute, time.Millisecond)
}

// A slowBody sends all that it has and then does not end.
type slowBody struct {
	io.Reader
	read, wait chan struct{}
}

func (b *slowBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		close(b.read)
		<-b.wait
	}
	return n, err
}
