package egress_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"writegate/agentctl/egress"
	"writegate/fixtures/certs"
)

// The rig has two sides of loopback: 127.0.0.2, whose network the operator
// opened, plays the public internet, and 127.0.0.1 is what nobody may reach. A
// real DNS server answers for the names, real TLS servers for the addresses.
type rig struct {
	t         testing.TB
	authority *certs.Authority
	dir       string
	names     *nameServer
	ports     []uint16
	inside    []*atomic.Int64 // connections that reached what nobody may reach
}

func newRig(t testing.TB) *rig {
	dir := t.TempDir()
	return &rig{t: t, dir: dir, authority: certs.NewAuthority(t, dir, "authority"), names: newNameServer(t)}
}

// guard judges with the rig's resolver and authority, and the ports of its servers.
func (r *rig) guard() *egress.Guard {
	rules := egress.Rules{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}, Ports: r.ports}
	return egress.New(rules, egress.WithResolver(r.names.resolver()), egress.WithRoots(r.authority.Pool()))
}

func (r *rig) config() *tls.Config {
	pair := r.authority.Issue(r.dir, "public.test", x509.ExtKeyUsageServerAuth, func(c *x509.Certificate) {
		c.DNSNames = append(c.DNSNames, "*.test")
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2)}
	})
	cert, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
	require.NoError(r.t, err)
	return &tls.Config{Certificates: []tls.Certificate{cert}}
}

// serve starts a server on an address and gives its port; with TLS when secure.
// Each connection is counted.
func (r *rig) serve(ip string, secure bool, handler http.HandlerFunc) (port string, connections *atomic.Int64) {
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	require.NoError(r.t, err)
	connections = new(atomic.Int64)
	server := httptest.NewUnstartedServer(handler)
	require.NoError(r.t, server.Listener.Close())
	server.Listener = counting{listener, connections}
	server.Config.ErrorLog = quiet()
	if secure {
		server.TLS = r.config()
		server.StartTLS()
	} else {
		server.Start()
	}
	r.t.Cleanup(server.Close)
	_, port, err = net.SplitHostPort(listener.Addr().String())
	require.NoError(r.t, err)
	n, err := strconv.ParseUint(port, 10, 16)
	require.NoError(r.t, err)
	r.ports = append(r.ports, uint16(n))
	if ip == "127.0.0.1" {
		r.inside = append(r.inside, connections)
	}
	return port, connections
}

// requireInsideUntouched holds that nothing reached 127.0.0.1.
func (r *rig) requireInsideUntouched(t *testing.T) {
	t.Helper()
	for _, connections := range r.inside {
		require.Zero(t, connections.Load(), "a connection came through the guard")
	}
}

type counting struct {
	net.Listener
	connections *atomic.Int64
}

func (c counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.connections.Add(1)
	}
	return conn, err
}

// visit gets url through the guard and reads its body.
func visit(t testing.TB, guard *egress.Guard, url string, credential egress.Credential) (*http.Response, int, *egress.Refusal) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return visitUntil(t, ctx, guard, url, credential)
}

func visitUntil(t testing.TB, ctx context.Context, guard *egress.Guard, url string, credential egress.Credential) (*http.Response, int, *egress.Refusal) {
	target, err := guard.ParseURL(url)
	if err != nil {
		var refusal *egress.Refusal
		require.ErrorAs(t, err, &refusal)
		return nil, 0, refusal
	}
	v := guard.Visit(ctx, target, credential)
	defer v.Close()
	resp, err := v.Client().Get(target.String())
	if err != nil {
		require.NotNil(t, v.Refusal(), "an error without a refusal: %v", err)
		return nil, 0, v.Refusal()
	}
	n, err := readAll(resp)
	if err != nil {
		require.NotNil(t, v.Refusal(), "an error without a refusal: %v", err)
	}
	return resp, n, v.Refusal()
}

func readAll(resp *http.Response) (int, error) {
	defer func() { _ = resp.Body.Close() }()
	total, chunk := 0, make([]byte, 4096)
	for {
		n, err := resp.Body.Read(chunk)
		total += n
		if err != nil {
			if err.Error() == "EOF" {
				err = nil
			}
			return total, err
		}
	}
}

// A nameServer answers DNS questions over UDP on loopback. A name has a list of
// answers; each question of its type takes the next, and the last one stays.
type nameServer struct {
	conn net.PacketConn

	mu      sync.Mutex
	answers map[string][][]string // name without dot -> turns -> addresses, or "cname:NAME"
	turn    map[string]int
}

func newNameServer(t testing.TB) *nameServer {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &nameServer{conn: conn, answers: map[string][][]string{}, turn: map[string]int{}}
	done := make(chan struct{})
	go func() { defer close(done); s.run() }()
	t.Cleanup(func() { require.NoError(t, conn.Close()); <-done })
	return s
}

// has gives name its answers, one list for each turn.
func (s *nameServer) has(name string, turns ...[]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[name] = turns
}

func (s *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", s.conn.LocalAddr().String())
	}}
}

func (s *nameServer) run() {
	buffer := make([]byte, 4096)
	for {
		n, from, err := s.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		var question dnsmessage.Message
		if question.Unpack(buffer[:n]) != nil || len(question.Questions) != 1 {
			continue
		}
		answer, err := s.answer(question)
		if err == nil {
			_, _ = s.conn.WriteTo(answer, from)
		}
	}
}

func (s *nameServer) answer(question dnsmessage.Message) ([]byte, error) {
	q := question.Questions[0]
	name := strings.ToLower(q.Name.String())
	s.mu.Lock()
	turns, known := s.answers[name[:len(name)-1]]
	key := name + q.Type.String()
	turn := min(s.turn[key], len(turns)-1)
	s.turn[key]++
	s.mu.Unlock()

	reply := dnsmessage.Message{Header: dnsmessage.Header{ID: question.ID, Response: true, Authoritative: true, RecursionDesired: true, RecursionAvailable: true}, Questions: question.Questions}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
		return reply.Pack()
	}
	owner := q.Name
	for _, value := range turns[turn] {
		if target, ok := cutCNAME(value); ok {
			to, err := dnsmessage.NewName(target + ".")
			if err != nil {
				return nil, err
			}
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: header(owner, dnsmessage.TypeCNAME), Body: &dnsmessage.CNAMEResource{CNAME: to}})
			owner = to
			continue
		}
		addr := netip.MustParseAddr(value)
		switch {
		case addr.Is4() && q.Type == dnsmessage.TypeA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: header(owner, q.Type), Body: &dnsmessage.AResource{A: addr.As4()}})
		case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: header(owner, q.Type), Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	return reply.Pack()
}

func cutCNAME(value string) (string, bool) {
	const mark = "cname:"
	if len(value) > len(mark) && value[:len(mark)] == mark {
		return value[len(mark):], true
	}
	return "", false
}

func header(name dnsmessage.Name, kind dnsmessage.Type) dnsmessage.ResourceHeader {
	return dnsmessage.ResourceHeader{Name: name, Type: kind, Class: dnsmessage.ClassINET}
}

// quiet is the log of a server whose clients leave in the middle of a handshake.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
