package httpd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

func TestWhatIsReadForOneClientAtOnceIsBounded(t *testing.T) {
	operators, err := ParseOperators("", "ana=an-operator-token-for-ana", 1)
	require.NoError(t, err)
	mux := NewMux(Options{Logger: slog.New(slog.DiscardHandler), Operators: operators})
	mux.reads = newTurns(2, time.Minute)
	entered, hold := make(chan string, 10), make(chan struct{})
	mux.Handle(http.MethodGet, "/slow", func(c *Call) error {
		entered <- c.Client()
		<-hold
		c.JSON(http.StatusOK, struct{}{})
		return nil
	})
	mux.Handle(http.MethodGet, "/stream", func(c *Call) error {
		return c.Events(c.Request.Context(), time.Hour, func(func(string, string, []byte) error) error {
			entered <- "stream"
			<-hold
			return nil
		})
	})
	var running sync.WaitGroup
	ask := func(path, address, token string) {
		running.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
			r.RemoteAddr = address
			r.Header.Set("X-GATE-Operator-Token", token)
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r)
			require.Equal(t, http.StatusOK, w.Code)
		})
	}
	users := func(holder string) int {
		mux.reads.mu.Lock()
		defer mux.reads.mu.Unlock()
		if own := mux.reads.of[holder]; own != nil {
			return own.users
		}
		return 0
	}
	for range 3 {
		ask("/stream", "[2001:db8::1]:1", "")
		require.Equal(t, "stream", <-entered, "streams are not among them")
	}
	for _, address := range []string{"[2001:db8::1]:1", "[2001:db8::2]:1"} {
		ask("/slow", address, "")
		<-entered
	}
	ask("/slow", "[2001:db8::3]:1", "") // of the same network: it waits
	require.Eventually(t, func() bool { return users("2001:db8::/64") == 3 }, time.Minute, time.Millisecond)
	require.Empty(t, entered)
	ask("/slow", "192.0.2.1:1", "")
	require.Equal(t, "192.0.2.1", <-entered, "others do not wait for it")
	ask("/slow", "[2001:db8::1]:1", "an-operator-token-for-ana")
	require.Equal(t, "2001:db8::1", <-entered)
	close(hold)
	running.Wait()
	require.Equal(t, "2001:db8::3", <-entered)
	require.Empty(t, mux.reads.of)
}

func TestAWaitForATurnHasItsEnd(t *testing.T) {
	reads := newTurns(1, time.Millisecond)
	end, err := reads.take(nil, "a")
	require.NoError(t, err)
	_, err = reads.take(nil, "a")
	require.Equal(t, fault.RateLimitExceeded, fault.CodeOf(err))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = newTurnsTaken(t).take(ctx.Done(), "a")
	require.Equal(t, fault.RateLimitExceeded, fault.CodeOf(err))
	end()
	end()
	end, err = reads.take(nil, "a")
	require.NoError(t, err)
	end()
	require.Empty(t, reads.of)
}

func newTurnsTaken(t *testing.T) *turns {
	reads := newTurns(1, time.Minute)
	_, err := reads.take(nil, "a")
	require.NoError(t, err)
	return reads
}

func TestNobodyFillsTheLogWithLines(t *testing.T) {
	var out bytes.Buffer
	bound := BoundLines(slog.NewTextHandler(&out, nil)).(*boundedLines)
	var err error
	bound.limit, err = NewLimiter(1, 3, func() time.Time { return time.Unix(1000, 0) })
	require.NoError(t, err)
	mux := NewMux(Options{Logger: slog.New(bound)})
	mux.Handle(http.MethodGet, "/broken", func(*Call) error { return errors.New("broken") })
	mux.Handle(http.MethodGet, "/slow", func(c *Call) error { return c.Request.Context().Err() })
	ask := func(path, address string, ctx context.Context) {
		r := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
		r.RemoteAddr = address
		mux.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	for i := range 100 {
		ask([]string{"/nothing", "/slow"}[i%2], "192.0.2.1:1", []context.Context{t.Context(), gone}[i%2])
	}
	require.Equal(t, 3, strings.Count(out.String(), "request failed"))
	require.NotContains(t, out.String(), "level=ERROR", "a client that leaves is no failure of the service")
	for range 100 {
		ask("/broken", "192.0.2.1:1", t.Context())
	}
	require.Equal(t, 3, strings.Count(out.String(), "level=ERROR"), "what went wrong here does not depend on what the client was refused")
	require.Equal(t, 1, strings.Count(out.String(), "not_written_before=97"))
	ask("/nothing", "192.0.2.2:1", t.Context())
	require.Equal(t, 3, strings.Count(out.String(), "request failed: not_found"))
	require.Equal(t, 2, strings.Count(out.String(), "not_written_before=97"))
	for i := range 100 { // strangers whose handshake fails have many addresses
		_, _ = fmt.Fprintf(serverLines{slog.New(bound)}, "http: TLS handshake error from 192.0.2.%d:4711: EOF\n", i)
	}
	require.Equal(t, 3, strings.Count(out.String(), "TLS handshake error"))
}
