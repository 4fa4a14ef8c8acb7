package pgexec

import (
	"context"
	"strconv"
	"time"
)

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
