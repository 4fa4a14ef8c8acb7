package httpd

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/certs"
)

// What a client leaves open keeps no stop waiting: every other time is an hour here, and
// the clients hold their connections until the stop has ended. What runs meanwhile is
// not disturbed, and is answered.
func TestAStopWaitsLittleForClients(t *testing.T) {
	patience := writePatience
	writePatience = time.Hour
	t.Cleanup(func() { writePatience = patience })
	dir := t.TempDir()
	authority := certs.NewAuthority(t, dir, "servers")
	pair := authority.Issue(dir, "gate.test", x509.ExtKeyUsageServerAuth)
	certificate, err := NewTLS(TLSFiles{CertPath: pair.Cert, KeyPath: pair.Key, MinVersion: "1.2"}, time.Now)
	require.NoError(t, err)
	trusted := &tls.Config{RootCAs: authority.Pool(), ServerName: "gate.test"}
	for name, secure := range map[string]*TLS{"cleartext": nil, "TLS": certificate} {
		t.Run(name, func(t *testing.T) { stopsAlthoughClientsWait(t, secure, trusted) })
	}
}

func stopsAlthoughClientsWait(t *testing.T, secure *TLS, trusted *tls.Config) {
	large := make([]byte, 32<<20) // more than sockets take, and minutes of patience with its reader
	var began, ended sync.WaitGroup
	running, goOn := make(chan struct{}), make(chan struct{})
	s := serve(t, Options{}, ServerOptions{
		TLS: secure, HeaderTimeout: time.Hour, BodyTimeout: time.Hour, AnswerTimeout: time.Hour, DrainTimeout: time.Hour, Patience: 200 * time.Millisecond,
	}, func(m *Mux) {
		waits := func(method, path string, h Handler) {
			m.HandleUnchecked(method, path, func(c *Call) error {
				began.Done()
				defer ended.Done()
				return h(c)
			})
		}
		waits("POST", "/read", func(c *Call) error {
			if _, err := c.Body("application/json"); err != nil {
				return err
			}
			c.JSON(http.StatusOK, "the whole body")
			return nil
		})
		waits("POST", "/unread", func(c *Call) error { c.JSON(http.StatusOK, "no body is read"); return nil })
		for _, method := range []string{"GET", "POST"} {
			waits(method, "/raw", func(c *Call) error { c.Raw(http.StatusOK, large); return nil })
		}
		waits("GET", "/stream", func(c *Call) error {
			return c.Stream(http.StatusOK, "text/plain", int64(len(large)), func(w io.Writer) error {
				_, err := w.Write(large)
				return err
			})
		})
		waits("GET", "/pieces", func(c *Call) error {
			out := c.BeginStream()
			for {
				if _, err := out.Write(large[:100<<10]); err != nil {
					return nil
				}
			}
		})
		waits("GET", "/events", func(c *Call) error {
			return c.Events(c.Request.Context(), time.Hour, func(func(string, string, []byte) error) error {
				<-c.Request.Context().Done()
				return nil
			})
		})
		m.Handle("GET", "/running", func(c *Call) error {
			close(running)
			<-goOn
			c.JSON(http.StatusOK, c.Request.Context().Err() == nil)
			return nil
		})
	})

	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	connect := func() net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(hangs)))
		if secure != nil {
			conn = tls.Client(conn, trusted)
		}
		return conn
	}
	send := func(conn net.Conn, method, path, more string) net.Conn {
		_, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path, more)
		require.NoError(t, err)
		return conn
	}
	const part = "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"s"
	const chunk = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"sql"

	connect() // says nothing; of TLS, not even its first word
	send(connect(), "POST", "/read", "Content-")
	began.Add(12)
	ended.Add(12)
	refused := map[string]*bufio.Reader{}
	for _, body := range []string{part, chunk} {
		refused["a body: "+body] = bufio.NewReader(send(connect(), "POST", "/read", body))
	}
	kept := send(connect(), "POST", "/read", "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
	in := bufio.NewReader(kept)
	readAnswer(t, in, http.StatusOK)
	began.Add(1)
	ended.Add(1)
	send(kept, "POST", "/read", part)
	refused["a second request"] = in
	unread := bufio.NewReader(send(connect(), "POST", "/unread", part))
	send(connect(), "GET", "/raw", "\r\n")
	send(connect(), "POST", "/raw", part) // both at once
	send(connect(), "POST", "/raw", "Content-Length: 0\r\n\r\n")
	send(connect(), "GET", "/raw", "\r\n"+strings.Repeat("GET /raw HTTP/1.1\r\nHost: localhost\r\n\r\n", 5))
	send(connect(), "GET", "/stream", "\r\n")
	send(connect(), "GET", "/pieces", "\r\n")
	send(connect(), "HEAD", "/raw", part)
	send(connect(), "GET", "/events", part)
	work := bufio.NewReader(send(connect(), "GET", "/running", "\r\n"))

	began.Wait()
	<-running
	s.stop()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		ended.Wait()
	}()
	within(t, gone, "the handlers end")
	release()
	require.Equal(t, "true\n", readAnswer(t, work, http.StatusOK), "what runs has its context still")
	within(t, s.drained, "the stop ends")
	for what, in := range refused {
		require.Contains(t, readAnswer(t, in, http.StatusBadRequest), `"error_code":"invalid_json"`, what)
	}
	readAnswer(t, unread, http.StatusOK)
}

func readAnswer(t *testing.T, in *bufio.Reader, status int) string {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, status, resp.StatusCode, "%s", body)
	return string(body)
}

func within[T any](t *testing.T, c <-chan T, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(hangs):
		t.Fatal("not within a minute: " + what)
	}
}

// A client that reads gets its answer whole, although that takes longer than the
// patience with one that does not.
func TestAnAnswerThatIsReadSlowlyIsWhole(t *testing.T) {
	const patience = 2 * time.Second
	large := make([]byte, 24<<20)
	writing := make(chan struct{})
	s := serve(t, Options{}, ServerOptions{DrainTimeout: time.Hour, Patience: patience}, func(m *Mux) {
		m.Handle("GET", "/raw", func(c *Call) error {
			close(writing)
			c.Raw(http.StatusOK, large)
			return nil
		})
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(64<<10))
	_, err = fmt.Fprintf(conn, "GET /raw HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	<-writing
	s.stop()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	var got int64
	for begun := time.Now(); time.Since(begun) < patience+patience/2; time.Sleep(patience / 40) {
		n, err := io.CopyN(io.Discard, resp.Body, 128<<10)
		require.NoError(t, err)
		got += n
	}
	require.Empty(t, s.drained, "the answer is still written")
	n, err := io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.Equal(t, int64(len(large)), got+n)
	require.True(t, <-s.drained)
}
