package httpd

import (
	"context"
	"errors"
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

	stopping context.Context // ends when the server is told to stop
	patience time.Duration   // with what is on its way then

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
			c := &boundedConn{TCPConn: conn, release: release, patience: l.patience}
			c.forget = context.AfterFunc(l.stopping, c.hurry)
			return c, nil
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
//
// Once the server is told to stop it waits little for its client: what is still read
// has the patience from then on, and so has each piece that is written. A read without
// a deadline is left alone: it is how net/http notices, while a request is worked on,
// that the client is gone.
type boundedConn struct {
	*net.TCPConn
	release  func()
	forget   func() bool // ends the wait for the stop
	patience time.Duration

	mu      sync.Mutex
	readBy  time.Time // the deadlines that were set, zero: none
	writeBy time.Time
	hurried time.Time // when the server was told to stop, zero: not yet
}

// writePiece is how much may have to leave within the patience.
const writePiece = 64 << 10

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.forget()
	c.release()
	return c.TCPConn.Close()
}

// hurry is called once, when the server is told to stop.
func (c *boundedConn) hurry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hurried = time.Now()
	// both fail for a connection that ends anyway
	_ = c.setRead()
	_ = c.setWrite()
}

// SetReadDeadline implements net.Conn.
func (c *boundedConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = t
	return c.setRead()
}

// SetWriteDeadline implements net.Conn.
func (c *boundedConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeBy = t
	return c.setWrite()
}

// SetDeadline implements net.Conn.
func (c *boundedConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *boundedConn) setRead() error {
	by := c.readBy
	if last := c.hurried.Add(c.patience); !c.hurried.IsZero() && last.Before(by) {
		by = last
	}
	return c.TCPConn.SetReadDeadline(by)
}

func (c *boundedConn) setWrite() error {
	by := c.writeBy
	if last := time.Now().Add(c.patience); !c.hurried.IsZero() && (by.IsZero() || last.Before(by)) {
		by = last
	}
	return c.TCPConn.SetWriteDeadline(by)
}

// Write implements net.Conn. Who reads slowly gets all of a long answer, piece by piece.
func (c *boundedConn) Write(b []byte) (n int, err error) {
	for begin := true; err == nil && (begin || n < len(b)); begin = false {
		if err = c.beginPiece(); err == nil {
			var wrote int
			wrote, err = c.TCPConn.Write(b[n:min(n+writePiece, len(b))])
			n += wrote
		}
	}
	return n, err
}

func (c *boundedConn) beginPiece() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hurried.IsZero() {
		return nil
	}
	return c.setWrite()
}
