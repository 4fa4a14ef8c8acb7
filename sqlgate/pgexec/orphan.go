package pgexec

import (
	"context"
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What is waited for a server to end a session that is given up, before its connection
// is counted on beside; and how long the server's host may be silent meanwhile.
const (
	endWait    = 100 * time.Millisecond
	silentHost = 5 * time.Second // TCP_USER_TIMEOUT, tcp(7)
)

// hangUp tells the server that nobody listens on a connection that broke off.
func (c *conn) hangUp() {
	raw := c.socket()
	half, ok := raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		_ = c.net.Close() // what is read then fails
		return
	}
	if tcp, ok := raw.(syscall.Conn); ok {
		if rc, err := tcp.SyscallConn(); err == nil { // without it, a host that is gone is noticed later
			_ = rc.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silentHost.Milliseconds()))
			})
		}
	}
}

// gone waits for the server to hang up. A backend that plans, or is inside of a function
// that looks at no interrupt, does so when it is done: neither a cancel nor
// pg_terminate_backend ends it before.
func (c *conn) gone(deadline time.Time) bool {
	raw := c.socket()
	if raw.SetDeadline(deadline) != nil {
		return true
	}
	rest := make([]byte, 4<<10)
	for {
		if _, err := raw.Read(rest); err != nil {
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// outlive gives a connection back when the server has ended its session: until then it
// is one of its client's, and of the pool's.
func (l *lease) outlive() {
	stop := context.AfterFunc(l.pool.ctx, func() { _ = l.net.Close() }) // Close waits for no server
	defer stop()
	l.gone(time.Time{})
	l.res.Destroy()
	l.pool.giveSlot(l.client)
}

// endOrphan sees to the backend of a write whose connection was lost before
// COMMIT was sent. It can never apply, but it may go on holding locks, so after
// a grace it is ended. Only a backend of the same role, pid and start is; that
// needs no grant.
func (db *DB) endOrphan(l *lease) {
	up, p := l.upstream, l.pool
	db.spawn(func() {
		timer := time.NewTimer(db.cfg.OrphanGrace)
		defer timer.Stop()
		select {
		case <-db.ctx.Done():
			return
		case <-timer.C:
		}
		if err := p.terminate(db.ctx, up); err != nil {
			db.log.Warn("the backend of a lost connection could not be looked for; the server ends it by itself", "backend_pid", up.BackendPID, "error", err)
		}
	})
}

// terminate ends one backend, if it is still the same.
func (p *pool) terminate(ctx context.Context, up Upstream) error {
	l, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	defer l.release()
	end := &command{
		sql: `SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity AS a
 WHERE a.pid OPERATOR(pg_catalog.=) $1 AND a.backend_start OPERATOR(pg_catalog.=) $2 AND a.usename OPERATOR(pg_catalog.=) current_user`,
		oids:   []uint32{23, 1184},
		params: [][]byte{strconv.AppendInt(nil, up.BackendPID, 10), []byte(up.BackendStart)},
	}
	refused, err := l.exchange(ctx, time.Now().Add(p.cfg.ConnectTimeout), segment{end})
	if err != nil {
		return err
	}
	if refused != nil {
		return refused
	}
	if end.rows > 0 {
		p.log.Warn("ended the backend of a lost connection", "backend_pid", up.BackendPID)
	}
	return nil
}
