package sqlgate

import (
	"context"
	"maps"
	"slices"
	"time"

	"writegate/commands"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/pgexec"
)

// Rhythm of the checks that the gate makes by itself (design/execution-and-wire.md
// part 3): what was not settled in an hour is asked about less often.
const (
	checkSlowlyAfter = time.Hour
	checkSlowly      = 10 * time.Minute
	checksAtOnce     = 1000 // executions looked at in one round, oldest first
)

// CheckOutcome asks the database what became of an execution whose outcome is
// unknown, and records what is new. One whose outcome is known is answered as
// it is; the database is not asked.
//
// Errors: not_found, db_connection_failed and db_unavailable where there is no
// answer now, and those of the log.
func (g *Gate) CheckOutcome(ctx context.Context, id, by string) (projections.Execution, error) {
	view := g.Store.ViewWithin(ctx)
	x, found, err := view.Execution(id)
	view.Close()
	if err != nil {
		return x, err
	}
	verdict := commands.ResolveOutcome{ExecutionID: id, By: by}
	switch {
	case !found || x.State != projections.ExecutionUnknown:
	case x.Path == event.PathDryRun: // no COMMIT ever follows it
		verdict.Outcome, verdict.Basis = pgexec.OutcomeAborted, pgexec.BasisCommitNeverSent
	default:
		v, err := g.Database.Check(ctx, sentOf(&x))
		if err != nil {
			return x, err
		}
		verdict.Outcome, verdict.Basis, verdict.Answered = v.Outcome, v.Basis, v.Answered
		if v.Outcome != pgexec.OutcomeCommitted && x.Basis == pgexec.BasisForeignTables { // which only the living gate knew
			verdict.Outcome, verdict.Basis = pgexec.OutcomeNotKnowable, x.Basis
		}
		if v.Outcome == pgexec.OutcomeAborted && x.Path != event.PathRead {
			outlasted, err := g.outlasted(ctx, &x)
			if err != nil {
				return x, err
			}
			if outlasted {
				verdict.Outcome = pgexec.OutcomeNotKnowable
			}
		}
	}
	return g.Commands.ResolveOutcome(context.WithoutCancel(ctx), verdict)
}

// sentOf is an execution as its dispatch recorded it. A lock or a SHOW applies
// nothing, no more than a read does.
func sentOf(x *projections.Execution) pgexec.Sent {
	u := &x.Upstream
	return pgexec.Sent{ExecutionID: x.ID, At: x.DispatchedAt, Marker: x.Marker, Read: x.Path == event.PathRead || x.XID == 0 && slices.Contains(withoutSnapshot, x.Operation), XID: x.XID, Upstream: pgexec.Upstream{
		SystemIdentifier: u.SystemIdentifier, Timeline: u.Timeline, CrashMark: u.CrashMark, Database: u.Database, Host: u.Host, Role: u.Role,
		BackendPID: int64(u.BackendPID), BackendStart: u.BackendStart,
	}}
}

// KeepChecking settles unknown outcomes until ctx ends, a round every interval.
// It never sends a statement again; an event is written only where the verdict
// changes.
func (g *Gate) KeepChecking(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	c := checks{most: checksAtOnce, asked: make(map[string]time.Time)}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			g.checkUnknown(ctx, &c)
		}
	}
}

// checks is what rounds of them know of each other.
type checks struct {
	most  int                  // executions of a round
	next  string               // where the next round goes on among all
	asked map[string]time.Time // those that are asked about slowly, and when they were
}

// checkUnknown is one round: the newest, and the next of all, since those that nobody can
// settle stay unknown for ever. A database that does not answer ends it: it would not
// answer the next question either.
func (g *Gate) checkUnknown(ctx context.Context, c *checks) {
	newest, oldest := projections.Page{Limit: c.most / 2}, projections.Page{Limit: c.most / 2, Asc: true, Cursor: c.next}
	filter := projections.ExecutionFilter{State: projections.ExecutionUnknown}
	view := g.Store.ViewWithin(ctx)
	unknown, _, err := view.Executions(filter, newest)
	if err == nil {
		var more []projections.Execution
		more, c.next, err = view.Executions(filter, oldest)
		unknown = append(unknown, more...)
	}
	view.Close()
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		c.next = "" // it may name what is not there any more
		g.Logger.Error("the executions whose outcome is unknown cannot be read", "source", "gate", "cause", err.Error())
		return
	}
	maps.DeleteFunc(c.asked, func(_ string, last time.Time) bool { return g.Now().Sub(last) >= checkSlowly })
	seen := make(map[string]bool)
	for i := range unknown {
		x, now := &unknown[i], g.Now()
		if _, slow := c.asked[x.ID]; slow || seen[x.ID] {
			continue
		}
		seen[x.ID] = true
		settled, err := g.CheckOutcome(ctx, x.ID, "")
		if err != nil {
			g.Logger.Debug("an outcome could not be checked", "source", "gate", "execution_id", x.ID, "cause", err.Error())
			return
		}
		g.tellOutcome(x, &settled)
		if now.Sub(x.ResultAt) >= checkSlowlyAfter {
			c.asked[x.ID] = now
		}
	}
}

func (g *Gate) tellOutcome(was, is *projections.Execution) {
	if is.Outcome != was.Outcome || is.State != was.State {
		g.Logger.Info("an unknown outcome was checked", "source", "gate", "execution_id", is.ID, "execution_state", is.State, "outcome", is.Outcome, "basis", is.Basis)
	}
}
