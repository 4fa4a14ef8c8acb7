package pgexec

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"writegate/commands/fault"
)

// The marker table makes outcomes certain (design/execution-and-wire.md part 3).
// A write leaves a row with its execution id in it, in its own transaction: the
// row is there if and only if the write is. A check puts a row of kind fence
// under the same id: where that succeeds the write never was, and cannot come
// late either, since the id is taken. It holds over crashes, transaction ids
// that are handed out again, and failovers.

// Kinds of a marker.
const (
	markerExec  = "exec"
	markerFence = "fence"
)

// How long a check waits for a write that holds its marker.
const (
	fenceLockTimeout = "2s"
	fenceTimeout     = "10s" // that of statements may be shorter than the wait
)

// markerName is schema.table as PostgreSQL stores names that need no quotes.
var markerName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}$`)

// MarkerTableFault says what is wrong with a name for the marker table, "" when
// nothing is.
func MarkerTableFault(name string) string {
	if !markerName.MatchString(name) || strings.HasPrefix(name, "pg_") || strings.HasPrefix(name, "information_schema.") {
		return "must be schema.table, both in small letters, digits and underscores, and not a schema of the system"
	}
	return ""
}

// quotedMarker is the table's name for SQL; the pattern above lets no quote in.
func quotedMarker(name string) string {
	schema, table, _ := strings.Cut(name, ".")
	return `"` + schema + `"."` + table + `"`
}

// MarkerDDL are the statements that make the table, for its owner to run, with
// the grants that the roles of the gate need, and the one that tidies it up.
func MarkerDDL(name string, keepDays int, roles []string) string {
	schema, _, _ := strings.Cut(name, ".")
	for i, role := range roles {
		roles[i] = `"` + strings.ReplaceAll(role, `"`, `""`) + `"`
	}
	table, grantees := quotedMarker(name), strings.Join(roles, ", ")
	return fmt.Sprintf(`-- Once, as a superuser, in the database behind the gate.
CREATE ROLE gate_owner NOLOGIN;
CREATE SCHEMA IF NOT EXISTS "%[1]s" AUTHORIZATION gate_owner;
CREATE TABLE %[2]s (
  execution_id uuid PRIMARY KEY,
  kind text NOT NULL CHECK (kind IN ('exec', 'fence')),
  at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE %[2]s OWNER TO gate_owner;
GRANT USAGE ON SCHEMA "%[1]s" TO %[3]s;
GRANT SELECT, INSERT ON %[2]s TO %[3]s; -- never UPDATE, DELETE or TRUNCATE

-- From time to time, as gate_owner: not a day earlier.
-- DELETE FROM %[2]s WHERE at < now() - interval '%[4]d days';
`, schema, table, grantees, keepDays+1)
}

// putMarker is the command that puts a row of a kind under an execution id.
func putMarker(table, executionID, kind string) *command {
	return &command{
		sql:    "INSERT INTO " + quotedMarker(table) + " (execution_id, kind) VALUES ($1, $2)",
		oids:   []uint32{2950, 25},
		params: [][]byte{markerID(executionID), []byte(kind)},
	}
}

// markerID is the UUID in an execution id, which has a prefix that tells its kind.
func markerID(executionID string) []byte {
	return []byte(executionID[strings.LastIndexByte(executionID, '_')+1:])
}

// taken reports whether the row was put into the table: a trigger or a rule may
// have swallowed it, and then it proves nothing.
func taken(put *command) bool { return put.tag == "INSERT 0 1" }

// markerFault is the fault of a write whose marker could not be left.
func (db *DB) markerFault(sqlState string, cause error) *fault.Fault {
	f := fault.New(fault.DBUnavailable, "The execution marker could not be left in the table %s (GATE_OUTCOME_MARKER_TABLE), so nothing was sent. Tell the operator: `gate marker ddl` prints the table and its grants.", db.cfg.MarkerTable)
	if sqlState != "" {
		f = f.With("sqlstate", sqlState)
	}
	return f.With("marker_table", db.cfg.MarkerTable).Because(cause)
}

// ErrMarkerUnusable says that the marker table is not what a marker needs.
var ErrMarkerUnusable = errors.New("the marker table is not usable")

// markerSQL looks at the table with the eyes of the role that will write it.
const markerSQL = `SELECT c.relkind OPERATOR(pg_catalog.=) 'r' AND c.relpersistence OPERATOR(pg_catalog.=) 'p',
 pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'INSERT'),
 EXISTS (SELECT FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_attribute AS a ON a.attrelid OPERATOR(pg_catalog.=) i.indrelid AND a.attnum OPERATOR(pg_catalog.=) i.indkey[0]
  WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts OPERATOR(pg_catalog.=) 1
  AND a.attname OPERATOR(pg_catalog.=) 'execution_id' AND a.atttypid OPERATOR(pg_catalog.=) 2950),
 (SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute AS a WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND NOT a.attisdropped
  AND (a.attname OPERATOR(pg_catalog.=) 'kind' AND a.atttypid OPERATOR(pg_catalog.=) 25 OR a.attname OPERATOR(pg_catalog.=) 'at')) OPERATOR(pg_catalog.=) 2,
 c.relhastriggers OR c.relhasrules OR c.relrowsecurity,
 pg_catalog.has_table_privilege(c.oid, 'UPDATE') OR pg_catalog.has_table_privilege(c.oid, 'DELETE') OR pg_catalog.has_table_privilege(c.oid, 'TRUNCATE')
 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
 WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND c.relname OPERATOR(pg_catalog.=) $2`

// CheckMarker looks whether the marker table is there and fit for every role that
// writes; warning is what an operator should know all the same. The error is
// ErrMarkerUnusable with what is wrong, or a fault where the database gives no
// answer. Without a marker table it does nothing.
func (db *DB) CheckMarker(ctx context.Context) (warning string, err error) {
	if db.cfg.MarkerTable == "" {
		return "", nil
	}
	for _, p := range db.pools() {
		if p.kind == reader {
			continue
		}
		said, err := db.lookAtMarker(ctx, p)
		if err != nil {
			return "", err
		}
		if said != "" {
			warning = said
		}
	}
	return warning, nil
}

func (db *DB) lookAtMarker(ctx context.Context, p *pool) (warning string, err error) {
	l, err := p.acquire(ctx)
	if err != nil {
		return "", err
	}
	defer l.release()
	look, row := query(markerSQL)
	schema, table, _ := strings.Cut(db.cfg.MarkerTable, ".")
	look.oids, look.params = []uint32{19, 19}, [][]byte{[]byte(schema), []byte(table)}
	refused, err := l.exchange(ctx, time.Now().Add(db.cfg.ConnectTimeout), segment{look})
	if err != nil || refused != nil {
		return "", checkFault(refused, err)
	}
	unusable := func(why string) error { return fmt.Errorf("%w: %s", ErrMarkerUnusable, why) }
	role := p.login.User
	switch yes := func(i int) bool { return row.text(i) == "t" }; {
	case look.rows == 0:
		return "", unusable("there is no table " + db.cfg.MarkerTable)
	case !yes(0):
		return "", unusable(db.cfg.MarkerTable + " is not an ordinary, logged table")
	case !yes(1):
		return "", unusable("the role " + role + " may not SELECT and INSERT there")
	case !yes(2):
		return "", unusable(db.cfg.MarkerTable + " has no unique index on execution_id uuid alone")
	case !yes(3):
		return "", unusable(db.cfg.MarkerTable + " lacks the column kind text or at")
	case yes(4):
		return "", unusable(db.cfg.MarkerTable + " has triggers, rules or row security, which may swallow a marker")
	case yes(5):
		return "the role " + role + " may change or remove rows of " + db.cfg.MarkerTable + ", so a marker proves less than it should", nil
	}
	return "", nil
}

// Bases of verdicts that rest on the marker table.
const (
	BasisMarker        = "marker"
	BasisMarkerExpired = "marker_expired" // its rows are not kept so long, so a missing one proves nothing
	BasisMarkerMissing = "marker_missing" // the transaction stands, and its marker is not there: it was removed, or the table is another
)

// checkMarker settles a write that left a marker. sameLife says that this is the
// server, timeline and life that the dispatch recorded: what the commit log says
// must not contradict the table then.
func (db *DB) checkMarker(ctx context.Context, l *lease, sent Sent, sameLife bool) (Verdict, error) {
	if time.Since(sent.At) > db.cfg.MarkerKeep {
		v, found, err := db.readMarker(ctx, l, sent)
		if err == nil && !found {
			return Verdict{OutcomeNotKnowable, BasisMarkerExpired, ""}, nil
		}
		return v, err
	}
	deadline := time.Now().Add(db.cfg.ConnectTimeout + db.cfg.LockTimeout)
	fence := putMarker(db.cfg.MarkerTable, sent.ExecutionID, markerFence)
	refused, err := l.exchange(ctx, deadline, segment{own("BEGIN"), own("SET LOCAL statement_timeout = '" + fenceTimeout + "'"), own("SET LOCAL lock_timeout = '" + fenceLockTimeout + "'"), fence})
	if err != nil {
		return Verdict{}, checkFault(nil, err)
	}
	if refused != nil {
		l.rollback(time.Now().Add(rollbackWait))
		switch refused.Code {
		case "23505":
			v, found, err := db.readMarker(ctx, l, sent)
			if err == nil && !found {
				return Verdict{}, checkFault(refused, nil) // removed between two looks: asked again
			}
			return v, err
		case "55P03": // the write holds its marker: its transaction is not over
			return Verdict{OutcomeInProgress, BasisMarker, refused.Code}, nil
		}
		return Verdict{}, checkFault(refused, nil)
	}
	defer l.rollback(time.Now().Add(db.cfg.CommitTimeout + rollbackWait)) // does nothing behind a COMMIT
	if !taken(fence) {
		return Verdict{}, db.markerFault("", errors.New("the fence was swallowed: "+fence.tag))
	}
	if sameLife {
		if v, err := l.checkXact(ctx, sent, sent.Upstream.CrashMark, deadline); err != nil || v.Outcome == OutcomeInProgress {
			return v, err
		} else if v.Outcome == OutcomeCommitted {
			return Verdict{OutcomeNotKnowable, BasisMarkerMissing, v.Answered}, nil
		}
	}
	commit := own("COMMIT")
	refused, err = l.exchange(ctx, time.Now().Add(db.cfg.CommitTimeout), segment{commit})
	if commit.tag != "COMMIT" { // whether it stands is asked the next time
		return Verdict{}, checkFault(refused, err)
	}
	return Verdict{OutcomeAborted, BasisMarker, markerFence}, nil
}

// readMarker is what the row under the execution's id says.
func (db *DB) readMarker(ctx context.Context, l *lease, sent Sent) (v Verdict, found bool, err error) {
	kind, row := query("SELECT m.kind FROM " + quotedMarker(db.cfg.MarkerTable) + " AS m WHERE m.execution_id OPERATOR(pg_catalog.=) $1")
	kind.oids, kind.params = []uint32{2950}, [][]byte{markerID(sent.ExecutionID)}
	refused, err := l.exchange(ctx, time.Now().Add(db.cfg.ConnectTimeout), segment{kind})
	switch {
	case err != nil || refused != nil:
		return Verdict{}, false, checkFault(refused, err)
	case kind.rows == 0:
		return Verdict{}, false, nil
	case row.text(0) == markerExec:
		return Verdict{OutcomeCommitted, BasisMarker, markerExec}, true, nil
	}
	return Verdict{OutcomeAborted, BasisMarker, row.text(0)}, true, nil
}
