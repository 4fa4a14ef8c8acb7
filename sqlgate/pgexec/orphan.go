package pgexec

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"
)

// How long a server has to end a session that is given up, before it counts as one that
// goes on; how often it is looked at whether another server has taken its place, and how
// often this one is asked: what lies between may have forgotten the connection.
const (
	endWait  = 100 * time.Millisecond
	moveWait = time.Second
	askEvery = 10 * time.Second
)

// gone hangs up on a connection that broke off and waits for the server to do so too. A
// backend that plans, or is inside of a function that looks at no interrupt, does that
// when it is done: neither a cancel nor pg_terminate_backend ends it before.
func (c *conn) gone(deadline time.Time) bool {
	raw := c.socket()
	half, ok := raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || raw.SetReadDeadline(deadline) != nil {
		return true
	}
	rest := make([]byte, 4<<10)
	for {
		if _, err := raw.Read(rest); err != nil {
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// outlive keeps a session that goes on in its client's share, until the server ends it or
// the pool connects to another server: who has the database do what it doesn't stop has
// fewer connections for it, and nobody else has. false: the gate is stopping.
func (l *lease) outlive() bool {
	c, p := l.conn, l.pool
	c.outlives = true
	p.outliving.Add(1)
	started := p.spawn(func() {
		defer p.own.give(l.client)
		defer p.outliving.Add(-1)
		defer c.net.Close()
		asked := time.Now()
		for p.ctx.Err() == nil && !c.upstream.left(p.server.Load()) && !c.gone(time.Now().Add(moveWait)) {
			if time.Since(asked) > p.askEvery {
				if there, err := p.hasSession(p.ctx, c.upstream); err == nil && !there {
					return
				}
				asked = time.Now()
			}
		}
	})
	if c.outlives = started; started {
		p.log.Warn("a database session that was given up goes on; it counts for its client until the server ends it", "backend_pid", c.upstream.BackendPID)
	} else {
		p.outliving.Add(-1)
	}
	return started
}

// hasSession asks the server whether it still has a session.
func (p *pool) hasSession(ctx context.Context, up Upstream) (bool, error) {
	found, err := p.ofSession(ctx, up, "a.pid")
	if err != nil {
		p.lost() // the next connection may lead to another server
	}
	return found, err
}

// ofSession asks for something of a session of this role, if it is still the same one.
func (p *pool) ofSession(ctx context.Context, up Upstream, what string) (found bool, err error) {
	l, err := p.acquire(ctx)
	if err != nil {
		return false, err
	}
	defer l.release()
	asked := &command{
		sql: "SELECT " + what + ` FROM pg_catalog.pg_stat_activity AS a
 WHERE a.pid OPERATOR(pg_catalog.=) $1 AND a.backend_start OPERATOR(pg_catalog.=) $2 AND a.usename OPERATOR(pg_catalog.=) current_user`,
		oids:   []uint32{23, 1184},
		params: [][]byte{strconv.AppendInt(nil, up.BackendPID, 10), []byte(up.BackendStart)},
	}
	refused, err := l.exchange(ctx, time.Now().Add(p.cfg.ConnectTimeout), segment{asked})
	if err == nil && refused != nil {
		err = refused
	}
	return asked.rows > 0, err
}

// left tells whether connections lead to another server now, or to another life of it.
func (u *Upstream) left(now *Upstream) bool {
	return now != nil && (u.Host != now.Host || u.SystemIdentifier != now.SystemIdentifier || u.Timeline != now.Timeline || u.CrashMark != now.CrashMark)
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
	ended, err := p.ofSession(ctx, up, "pg_catalog.pg_terminate_backend(a.pid)")
	if err == nil && ended {
		p.log.Warn("told the backend of a lost connection to end, which it does once it heeds that", "backend_pid", up.BackendPID)
	}
	return err
}
