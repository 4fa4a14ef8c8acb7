package httpd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// service is a Mux behind a real listener on loopback, with what it logged and
// reported.
type service struct {
	t    testing.TB
	mux  *Mux
	base string
	logs *LogBuffer

	mu      sync.Mutex
	output  bytes.Buffer
	reports []Report

	stop    context.CancelFunc
	drained chan bool
}

// Write collects the operator's log output.
func (s *service) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Write(p)
}

func (s *service) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.String()
}

func (s *service) reported() []Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Report(nil), s.reports...)
}

// serve starts a service; routes are registered before the first request.
func serve(t testing.TB, o Options, so ServerOptions, routes func(*Mux)) *service {
	t.Helper()
	s := &service{t: t, logs: NewLogBuffer(100), drained: make(chan bool, 1)}
	o.Logger = slog.New(s.logs.Handler(slog.NewJSONHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug})))
	o.OnIncident = func(_ context.Context, r Report) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reports = append(s.reports, r)
	}
	s.mux = NewMux(o)
	routes(s.mux)
	so.Addr, so.Handler, so.Logger = "127.0.0.1:0", s.mux, o.Logger
	server, err := Listen(so)
	require.NoError(t, err)
	s.base = "http://" + server.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		drained, err := server.Serve(ctx)
		if err != nil {
			t.Error(err)
		}
		s.drained <- drained
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return s
}

// answer is what came back.
type reply struct {
	*http.Response
	body string
	json map[string]any
}

func (s *service) do(method, path, body string, headers ...string) reply {
	s.t.Helper()
	req, err := http.NewRequest(method, s.base+path, strings.NewReader(body))
	require.NoError(s.t, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	r := reply{Response: resp, body: string(raw)}
	if len(raw) > 0 {
		require.NoError(s.t, json.Unmarshal(raw, &r.json), "%s", raw)
	}
	return r
}

func ok(*Call) error { return nil }

func echo(m *Mux) {
	m.Handle(http.MethodPost, "/echo", Serve(func(_ context.Context, c *Call, req *struct {
		SQL string `json:"sql"`
	}) (map[string]string, error) {
		return map[string]string{"sql": req.SQL, "operator": c.Operator()}, nil
	}))
	m.Handle(http.MethodGet, "/thing", Get(func(context.Context, *Call) (map[string]string, error) {
		return map[string]string{"html": "<&>"}, nil
	}))
}

func TestAStoppedServerLetsRunningRequestsEnd(t *testing.T) {
	running, goOn := make(chan struct{}), make(chan struct{})
	s := serve(t, Options{}, ServerOptions{}, func(m *Mux) {
		m.Handle(http.MethodGet, "/slow", func(c *Call) error {
			close(running)
			<-goOn
			c.JSON(http.StatusOK, "done")
			return nil
		})
	})
	got := make(chan string)
	go func() {
		resp, err := http.Get(s.base + "/slow")
		if err != nil {
			got <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		got <- string(b)
	}()
	<-running
	s.stop()
	for { // the listener closes first
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
		if err != nil {
			break
		}
		conn.Close()
	}
	close(goOn)
	require.Equal(t, "\"done\"\n", <-got)
	require.True(t, <-s.drained)
}

func TestARequestThatDoesNotEndIsCutOff(t *testing.T) {
	running := make(chan struct{})
	s := serve(t, Options{}, ServerOptions{DrainTimeout: 10 * time.Millisecond}, func(m *Mux) {
		m.Handle(http.MethodGet, "/stuck", func(c *Call) error {
			close(running)
			<-c.Request.Context().Done() // cut off: the connection is closed
			return nil
		})
	})
	go func() {
		if resp, err := http.Get(s.base + "/stuck"); err == nil {
			resp.Body.Close()
		}
	}()
	<-running
	s.stop()
	require.False(t, <-s.drained)
}

func TestARequestThatIsAskedToEndIsStillAnswered(t *testing.T) {
	running, end := make(chan struct{}), make(chan struct{})
	asked := func(ctx context.Context) {
		close(end)
		<-ctx.Done()
	}
	s := serve(t, Options{}, ServerOptions{DrainTimeout: 10 * time.Millisecond, Overdue: asked, Grace: time.Minute}, func(m *Mux) {
		m.Handle(http.MethodGet, "/long", func(c *Call) error {
			close(running)
			<-end
			c.JSON(http.StatusOK, "ended")
			return nil
		})
	})
	got := make(chan string, 1)
	go func() {
		resp, err := http.Get(s.base + "/long")
		if err != nil {
			got <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		got <- string(b)
	}()
	<-running
	s.stop()
	require.Equal(t, "\"ended\"\n", <-got)
	require.True(t, <-s.drained)
}

func TestAnAddressInUseIsToldAtOnce(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, echo)
	_, err := Listen(ServerOptions{Addr: strings.TrimPrefix(s.base, "http://"), Handler: s.mux, Logger: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, "address already in use")
}

// Its host is this test's own, so that nobody else takes the port meanwhile.
func TestAServerThatNeverServedGivesItsAddressBack(t *testing.T) {
	o := ServerOptions{Addr: "127.0.0.3:0", Handler: http.NotFoundHandler(), Logger: slog.New(slog.DiscardHandler)}
	first, err := Listen(o)
	require.NoError(t, err)
	require.NoError(t, first.Close())
	o.Addr = first.Addr().String()
	second, err := Listen(o)
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

// hangs bounds the wait for an end that the server has to make: a bound for what
// hangs, not a measurement.
const hangs = time.Minute

// raw sends bytes that no HTTP client would, and gives what is answered. The
// server need not read to their end: then its own is a reset.
func (s *service) raw(text string) string {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
	require.NoError(s.t, err)
	defer conn.Close()
	require.NoError(s.t, conn.SetDeadline(time.Now().Add(hangs)))
	_, _ = conn.Write([]byte(text))
	_ = conn.(*net.TCPConn).CloseWrite()
	b, err := io.ReadAll(conn)
	require.NotErrorIs(s.t, err, os.ErrDeadlineExceeded)
	return string(b)
}

func TestHostileClientsLeaveTheServerAnswering(t *testing.T) {
	s := serve(t, Options{MaxBodyBytes: 1 << 10}, ServerOptions{}, echo)
	head := "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
	for _, c := range []struct{ name, send, want string }{
		{"garbage", "\x16\x03\x01\x00\xff\x00", "400 Bad Request"},
		{"upload that stops", head + "Content-Length: 100\r\n\r\n{\"sql\"", "invalid_json"},
		{"chunks that stop", head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"sql", "invalid_json"},
		{"chunks without end", head + "Transfer-Encoding: chunked\r\n\r\n800\r\n" + strings.Repeat(" ", 0x800) + "\r\n0\r\n\r\n", "oversized_request"},
		{"a length and chunks", head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 "},
		{"two lengths", head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}", "400 Bad Request"},
		{"negative length", head + "Content-Length: -5\r\n\r\n{}", "400 Bad Request"},
		{"huge header", head + "X: " + strings.Repeat("x", 200<<10) + "\r\n\r\n", "431 "},
		{"a claim of a huge body", head + "Content-Length: 99999999999\r\n\r\n", "oversized_request"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Contains(t, s.raw(c.send), c.want)
			require.Equal(t, http.StatusOK, s.do("POST", "/echo", `{"sql":"x"}`).StatusCode, "the next client is served")
		})
	}
}

// What a length beside chunks was meant to bound, whoever stands in front may see otherwise: what follows such a
// request is not read (RFC 9112 part 6.1).
func TestNothingIsReadBehindARequestWhoseEndIsInDoubt(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, echo)
	const head, chunks = "Host: localhost\r\nContent-Type: application/json\r\n", "2\r\n{}\r\n0\r\n\r\n"
	for name, send := range map[string]string{
		"a length and chunks": "POST /echo HTTP/1.1\r\n" + head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks,
		"the other way round": "POST /echo HTTP/1.1\r\n" + head + "Transfer-Encoding: chunked\r\nContent-Length: 12\r\n\r\n" + chunks,
		"chunks in HTTP/1.0":  "POST /echo HTTP/1.0\r\nConnection: keep-alive\r\n" + head + "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
		"a name that is none": "POST /echo HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks,
	} {
		answers := s.raw(send + "GET /thing HTTP/1.1\r\nHost: localhost\r\n\r\n")
		require.Equal(t, 1, strings.Count(answers, "HTTP/1."), "%s: %s", name, answers)
		require.Contains(t, answers, "Connection: close\r\n", name)
	}
}

func TestASlowClientLosesItsConnection(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{HeaderTimeout: 20 * time.Millisecond, BodyTimeout: 40 * time.Millisecond}, echo)
	for _, begun := range []string{"POST /echo HTTP/1.1\r\nHo", "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(hangs)))
		_, _ = conn.Write([]byte(begun))   // which may be too late already
		_, err = io.Copy(io.Discard, conn) // ends because the server ends it: we send nothing more
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, conn.Close())
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{}, echo)
	var send strings.Builder
	for i := range 3 {
		body := fmt.Sprintf(`{"sql":"%d"}`, i)
		fmt.Fprintf(&send, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	in := bufio.NewReader(strings.NewReader(s.raw(send.String())))
	for i := range 3 {
		resp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Contains(t, string(b), fmt.Sprintf(`"sql":"%d"`, i))
	}
}
