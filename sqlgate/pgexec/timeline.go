package pgexec

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"writegate/commands/fault"
)

// A timelines is the newest timeline of each cluster that a connection for writes led to,
// of all pools. A server on an older one was left behind by a failover: it takes writes
// that the server which took over never has. A standby's timeline is not known to it
// (PostgreSQL, "Continuous Archiving", Timelines).
type timelines struct {
	mu     sync.RWMutex
	newest map[string]string // by system identifier; eight hex digits, so their order is that of texts
	back   string            // that the database was put back to on purpose, whichever cluster it is; "" = none, or it was met
}

// saw notes where a connection for writes leads.
func (t *timelines) saw(system, timeline string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.back == "" {
		timeline = max(t.newest[system], timeline)
	}
	t.newest[system], t.back = timeline, ""
}

// behind gives the timeline that a server is behind of, "" where it is not.
func (t *timelines) behind(u *Upstream) string {
	t.mu.RLock()
	newest := t.newest[u.SystemIdentifier]
	if t.back != "" {
		newest = min(newest, t.back)
	}
	t.mu.RUnlock()
	if u.Timeline == "" || u.Timeline >= newest {
		return ""
	}
	return newest
}

const timelineSQL = `SELECT c.system_identifier, CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL
 ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END FROM pg_catalog.pg_control_system() AS c`

// admit refuses a new connection to a server that was left behind, so that the next host of
// the URL is tried.
func (t *timelines) admit(ctx context.Context, pg *pgconn.PgConn) error {
	result := pg.ExecParams(ctx, timelineSQL, nil, nil, nil, nil).Read()
	if result.Err != nil {
		return result.Err
	}
	if len(result.Rows) != 1 {
		return fmt.Errorf("%w: %d rows instead of one", errProtocol, len(result.Rows))
	}
	u := &Upstream{SystemIdentifier: string(result.Rows[0][0]), Timeline: string(result.Rows[0][1])}
	if newest := t.behind(u); newest != "" {
		return staleFault(u.Timeline, newest)
	}
	return nil
}

const staleReason = "stale_timeline"

// staleFault is the fault of a use that was not begun.
func staleFault(timeline, newest string) *fault.Fault {
	return fault.New(fault.DBUnavailable, "The database server that answers was left behind by a failover, or another one was promoted by mistake: it is on timeline %s, and this gate has met %s. Nothing was applied. Tell the operator: one of the two has to be stopped; where the database was put back on purpose, GATE_DATABASE_TIMELINE says so.", timeline, newest).
		With("reason", staleReason).With("timeline", timeline).With("newest_timeline", newest)
}

// Knows tells of the newest timelines that earlier runs of the gate have written to, by system identifier, and of
// the one that the database was put back to since on purpose, "" for none.
func (db *DB) Knows(timelines map[string]string, back string) {
	for system, timeline := range timelines {
		db.timelines.saw(system, timeline)
	}
	db.timelines.mu.Lock()
	db.timelines.back = back
	db.timelines.mu.Unlock()
}
