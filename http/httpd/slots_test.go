package httpd

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSlotsAreBoundedAltogetherAndForOne(t *testing.T) {
	s := NewSlots(3, 2)
	first, _, ok := s.Take("a")
	require.True(t, ok)
	_, _, ok = s.Take("a")
	require.True(t, ok)
	_, own, ok := s.Take("a")
	require.False(t, ok)
	require.True(t, own, "its own two are taken")
	_, _, ok = s.Take("b")
	require.True(t, ok, "another one has the third")
	_, own, ok = s.Take("c")
	require.False(t, ok)
	require.False(t, own, "all are taken")
	first()
	first()
	_, _, ok = s.Take("c")
	require.True(t, ok)
	_, _, ok = s.Take("b")
	require.False(t, ok, "what is given back twice is one")
}

// Whatever is taken and given back, the bounds hold and nobody is forgotten.
func TestSlotsUnderRandomUse(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := NewSlots(20, 7)
	held := map[string][]func(){}
	taken := 0
	for range 20_000 {
		who := fmt.Sprint(random.IntN(6))
		if list := held[who]; len(list) > 0 && random.IntN(2) == 0 {
			list[len(list)-1]()
			held[who] = list[:len(list)-1]
			taken--
			continue
		}
		release, _, ok := s.Take(who)
		require.Equal(t, taken < 20 && len(held[who]) < 7, ok)
		if ok {
			held[who] = append(held[who], release)
			taken++
		}
	}
	for _, list := range held {
		for _, release := range list {
			release()
		}
	}
	require.Empty(t, s.held, "holders of nothing take no memory")
	require.Zero(t, s.taken)
}

func TestAHostWithManyAddressesIsOneHolder(t *testing.T) {
	for client, want := range map[string]string{
		"203.0.113.9": "203.0.113.9", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "2001:db8:1:2::9": "2001:db8:1:2::/64", "2001:db8:1:3::9": "2001:db8:1:3::/64",
		"fe80::1%eth0": "fe80::/64", "CN=migrator": "CN=migrator", "": "",
	} {
		require.Equal(t, want, HolderOf(client), client)
	}
}

// connect opens a connection and reports whether it is served.
func (s *service) connect(t *testing.T) (net.Conn, bool) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(hangs)))
	_, _ = io.WriteString(conn, "GET /thing HTTP/1.1\r\nHost: localhost\r\n\r\n") // what is closed already is seen below
	begin := make([]byte, 12)
	n, _ := io.ReadFull(conn, begin)
	return conn, string(begin[:n]) == "HTTP/1.1 200"
}

func TestConnectionsOfOneClientAreBounded(t *testing.T) {
	s := serve(t, Options{}, ServerOptions{MaxConns: 10, MaxConnsEach: 3}, echo)
	var open []net.Conn
	for range 3 {
		conn, served := s.connect(t)
		require.True(t, served)
		open = append(open, conn)
	}
	for range 20 {
		conn, served := s.connect(t)
		require.False(t, served, "the fourth of one address")
		require.NoError(t, conn.Close())
	}
	require.Equal(t, 1, strings.Count(s.logged(), "connections are refused"), "a flood is told once")
	require.NoError(t, open[0].Close())
	require.Eventually(t, func() bool {
		conn, served := s.connect(t)
		defer conn.Close()
		return served
	}, hangs, time.Millisecond, "a connection that ended makes room")
	for _, conn := range open[1:] {
		require.NoError(t, conn.Close())
	}
}

func TestAProxyHasAllConnections(t *testing.T) {
	proxies, err := ParseProxies("127.0.0.1")
	require.NoError(t, err)
	s := serve(t, Options{}, ServerOptions{MaxConns: 5, MaxConnsEach: 2, Proxies: proxies}, echo)
	for range 5 {
		conn, served := s.connect(t)
		require.True(t, served)
		defer conn.Close()
	}
	conn, served := s.connect(t)
	require.False(t, served, "there are no more")
	require.NoError(t, conn.Close())
}

// An answer before the end of a body reaches a client that is still writing.
func TestAnEarlyAnswerIsNotCutOff(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	bounded := &boundedListener{TCPListener: listener.(*net.TCPListener), slots: NewSlots(1, 1), log: slog.New(slog.DiscardHandler), stopping: t.Context()}
	go func() {
		if conn, err := net.Dial("tcp", listener.Addr().String()); err == nil {
			defer conn.Close()
			_, _ = io.Copy(io.Discard, conn) // until the other side ends
		}
	}()
	conn, err := bounded.Accept()
	require.NoError(t, err)
	defer conn.Close()
	_, halves := conn.(interface{ CloseWrite() error })
	require.True(t, halves, "net/http asks for it by this method")
	require.Implements(t, (*io.ReaderFrom)(nil), conn)
}

var _ http.Handler = (*Mux)(nil)
