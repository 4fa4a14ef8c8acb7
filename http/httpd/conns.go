package httpd

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Bounds on connections where nothing else is set. Each costs a descriptor and
// some memory, whether it says anything or not.
const (
	DefaultMaxConns     = 4096
	DefaultMaxConnsEach = 1024
)

// boundedListener closes what is beyond its bounds as it comes in: clients see a
// connection that ends, and those inside are not disturbed.
type boundedListener struct {
	*net.TCPListener
	slots   *Slots
	proxies *Proxies // not bounded each: many clients come through one
	log     *slog.Logger

	mu   sync.Mutex
	said time.Time // when the log was last told
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		release, own, ok := l.slots.Take(l.holder(conn))
		if ok {
			return &boundedConn{conn, release}, nil
		}
		l.refused(conn, own)
		_ = conn.Close() // there is nobody to tell
	}
}

// holder is who a connection counts for. Each connection of a proxy has its own
// address and port as its holder, so that only the total bounds them.
func (l *boundedListener) holder(conn net.Conn) string {
	peer, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return conn.RemoteAddr().String()
	}
	if addr := peer.Addr().Unmap(); !l.proxies.trusts(addr) {
		return HolderOf(addr.String())
	}
	return conn.RemoteAddr().String()
}

// refusalEvery is how often the log is told of refused connections.
const refusalEvery = time.Minute

func (l *boundedListener) refused(conn net.Conn, own bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.said) >= refusalEvery {
		l.said = now
		l.log.Warn("connections are refused: there are as many as there may be", "source", logSource, "client", conn.RemoteAddr().String(),
			"of_this_client", own, "most", l.slots.Total(), "most_of_one_client", l.slots.Each())
	}
}

// boundedConn gives its slot back with the connection. It is a TCP connection
// otherwise: the server ends its writing side before it closes it.
type boundedConn struct {
	*net.TCPConn
	release func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.release()
	return c.TCPConn.Close()
}
