package pgexec

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"writegate/commands/fault"
)

// Verdicts of a check, as execution_outcome_resolved records them; aborted is
// OutcomeAborted.
const (
	OutcomeCommitted   = "committed"
	OutcomeInProgress  = "in_progress"
	OutcomeNotKnowable = "not_knowable"
)

// What a verdict of a check rests on.
const (
	BasisXactStatus    = "pg_xact_status"     // the server's commit log, on the server and in the life that was recorded
	BasisActivity      = "pg_stat_activity"   // the backend still runs the statement
	BasisBackendGone   = "backend_gone"       // it does not, and nothing else tells
	BasisOtherServer   = "other_server"       // another system identifier; of what was not committed, another database too
	BasisOtherTimeline = "other_timeline"     // a failover or a restore lies between
	BasisCrashBetween  = "crash_between"      // the id may have been handed out again
	BasisStatusTooOld  = "commit_log_too_old" // the server does not keep it any more
	BasisForeignTables = "foreign_tables"     // it was not committed here, and their servers commit by themselves
)

// A Sent is an execution as its dispatch recorded it.
type Sent struct {
	ExecutionID string
	At          time.Time // of the dispatch
	Read        bool      // behind the read fence: whatever became of it, nothing was applied
	Marker      bool      // it left a row in the marker table
	XID         uint64
	Upstream    Upstream
}

// A Verdict is what a check found out.
type Verdict struct {
	Outcome  string
	Basis    string
	Answered string // what the server said; "" where it was not asked
}

// Check asks the database what became of a statement whose outcome is unknown
// (design/execution-and-wire.md part 3). A write that left a marker is settled by
// the marker table, for good. Of any other the answer counts only under the
// server, timeline and life that the dispatch recorded: after a crash a
// transaction id that never reached the disk is handed out again, and the answer
// would be about somebody else; the check changes nothing then.
//
// The error says that there is no answer now: the database is out of reach or
// in recovery. The outcome stays unknown, and the check is made again later.
func (db *DB) Check(ctx context.Context, sent Sent) (Verdict, error) {
	if sent.Read {
		return Verdict{Outcome: OutcomeAborted, Basis: BasisReadOnly}, nil
	}
	l, err := db.writer.acquire(ctx)
	if err != nil {
		return Verdict{}, err
	}
	defer l.release()
	deadline := time.Now().Add(db.cfg.ConnectTimeout)
	v, err := db.checkOn(ctx, l, sent, deadline)
	if err == nil && v.Outcome == OutcomeAborted {
		foreign, row := query("SELECT " + foreignSQL)
		refused, lost := l.exchange(ctx, deadline, segment{foreign})
		switch was := sent.Upstream.Database; {
		case lost != nil || refused != nil:
			v, err = Verdict{}, checkFault(refused, lost)
		case was != "" && was != l.upstream.Database: // which has other foreign tables
			v = Verdict{OutcomeNotKnowable, BasisOtherServer, l.upstream.Database}
		case row.text(0) != "f":
			v = Verdict{OutcomeNotKnowable, BasisForeignTables, v.Answered}
		}
	}
	if err != nil && l.broken {
		db.writer.lost()
	}
	return v, err
}

// lifeSQL is the server and the life of it that answer now.
const lifeSQL = `SELECT pg_catalog.pg_is_in_recovery(), (SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c),
 CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END,
 (SELECT w.stats_reset FROM pg_catalog.pg_stat_wal AS w)`

// checkOn asks on one connection: a crash between two questions would end it.
func (db *DB) checkOn(ctx context.Context, l *lease, sent Sent, deadline time.Time) (Verdict, error) {
	life, row := query(lifeSQL)
	refused, err := l.exchange(ctx, deadline, segment{life})
	if err != nil || refused != nil {
		return Verdict{}, checkFault(refused, err)
	}
	switch was := sent.Upstream; {
	case row.text(0) != "f":
		return Verdict{}, fault.New(fault.DBUnavailable, "The database is in recovery and cannot tell what became of the statement. The check is made again later.")
	case row.text(1) != was.SystemIdentifier:
		return Verdict{OutcomeNotKnowable, BasisOtherServer, row.text(1)}, nil
	case row.text(2) < was.Timeline: // the database was put back: what it lacks proves nothing of the server that took the write
		return Verdict{OutcomeNotKnowable, BasisOtherTimeline, row.text(2)}, nil
	case sent.XID == 0:
		return l.checkBackend(ctx, was, deadline)
	case row.text(2) == was.Timeline && l.upstream.Host != was.Host:
		// This may be the same server under another address, and it may be one that was promoted beside
		// it, to the same number, or a copy of it. A marker that stands here does in both.
		if sent.Marker && db.cfg.MarkerTable != "" {
			if v, found, err := db.readMarker(ctx, l, sent); found || err != nil {
				return v, err
			}
		}
		return Verdict{OutcomeNotKnowable, BasisOtherServer, l.upstream.Host}, nil
	case sent.Marker && db.cfg.MarkerTable != "" && (was.Database == "" || was.Database == db.Name()): // another database has another table
		return db.checkMarker(ctx, l, sent, row.text(2) == was.Timeline && row.text(3) == was.CrashMark)
	case row.text(2) != was.Timeline:
		return Verdict{OutcomeNotKnowable, BasisOtherTimeline, row.text(2)}, nil
	}
	return l.checkXact(ctx, sent, row.text(3), deadline)
}

// checkXact asks for the state of the transaction.
func (l *lease) checkXact(ctx context.Context, sent Sent, crashMark string, deadline time.Time) (Verdict, error) {
	status, row := query(`SELECT pg_catalog.pg_xact_status($1)`)
	status.oids, status.params = []uint32{5069}, [][]byte{strconv.AppendUint(nil, sent.XID, 10)}
	refused, err := l.exchange(ctx, deadline, segment{status})
	switch {
	case err != nil:
		return Verdict{}, checkFault(nil, err)
	case refused != nil && refused.Code == "22023": // the id is in the future: no such transaction ever was, or will be on disk
		return Verdict{OutcomeAborted, BasisXactStatus, refused.Code}, nil
	case refused != nil:
		return Verdict{}, checkFault(refused, nil)
	}
	switch answer := row.text(0); answer {
	case "aborted":
		return Verdict{OutcomeAborted, BasisXactStatus, answer}, nil
	case "in progress":
		return Verdict{OutcomeInProgress, BasisXactStatus, answer}, nil
	case "committed":
		if crashMark != sent.Upstream.CrashMark {
			return Verdict{OutcomeNotKnowable, BasisCrashBetween, answer}, nil
		}
		return Verdict{OutcomeCommitted, BasisXactStatus, answer}, nil
	default:
		return Verdict{OutcomeNotKnowable, BasisStatusTooOld, answer}, nil
	}
}

// checkBackend looks for the backend of a statement that ran outside a
// transaction: there is no id to ask about.
func (l *lease) checkBackend(ctx context.Context, was Upstream, deadline time.Time) (Verdict, error) {
	found, row := query(`SELECT a.state FROM pg_catalog.pg_stat_activity AS a
 WHERE a.pid OPERATOR(pg_catalog.=) $1 AND a.backend_start OPERATOR(pg_catalog.=) $2 AND a.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()`)
	found.oids, found.params = []uint32{23, 1184}, [][]byte{strconv.AppendInt(nil, was.BackendPID, 10), []byte(was.BackendStart)}
	refused, err := l.exchange(ctx, deadline, segment{found})
	switch {
	case err != nil || refused != nil:
		return Verdict{}, checkFault(refused, err)
	case found.rows > 0 && (row.text(0) == "active" || row.text(0) == ""): // empty: another role's, whose state is hidden
		return Verdict{OutcomeInProgress, BasisActivity, row.text(0)}, nil
	case found.rows > 0:
		return Verdict{OutcomeNotKnowable, BasisBackendGone, row.text(0)}, nil
	}
	return Verdict{OutcomeNotKnowable, BasisBackendGone, ""}, nil
}

func checkFault(refused *pgconn.PgError, err error) *fault.Fault {
	if refused != nil {
		return fault.New(fault.DBUnavailable, "The database did not answer the check (SQLSTATE %s). The outcome stays unknown; check it again later.", refused.Code).
			With("sqlstate", refused.Code).Because(refused)
	}
	return fault.New(fault.DBConnectionFailed, "The connection to the database was lost during the check. The outcome stays unknown; check it again later.").Because(err)
}
