package replay

import (
	"fmt"
	"slices"
	"time"

	"writegate/eventlog/event"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/policy"
)

// grants is what the log said so far of grants and of the executions under them: enough to
// know whether a use was within what an operator gave.
type grants struct {
	given   map[string]*grant
	running map[string]*granted // by execution, of those whose rows are not given back
	decided *Decision           // the last decision, while it may have a dispatch
	used    string              // the execution that the last use was for
}

type grant struct {
	id, agent           string
	condition           *policy.GrantCondition // nil: it does not compile
	made, until         time.Time
	ended               bool // revoked or expired, as an event says
	uses, used          int
	rows, changed, kept int64
}

func (g *grant) rowsLeft() int64 { return max(0, g.rows-g.changed-g.kept) }

type granted struct {
	grant *grant
	rows  int64
}

func newGrants() *grants {
	return &grants{given: map[string]*grant{}, running: map[string]*granted{}}
}

// take looks at the next event, whose grants are those of this log alone: what was given in one
// before it is withdrawn. It answers what is wrong with a use.
func (g *grants) take(e *event.Envelope) (fields []string, err error) {
	switch e.Type {
	case event.TypeGrantCreated, event.TypeGrantUsed, event.TypeGrantRevoked, event.TypeGrantExpired, event.TypeExecutionDispatched, event.TypeAgentDeactivated:
	case event.TypeExecutionSuccess, event.TypeExecutionFailure, event.TypeExecutionStateUnknown, event.TypeExecutionOutcomeResolved:
		if g.running[e.Context.ExecutionID] == nil {
			return nil, nil
		}
	default:
		return nil, nil
	}
	p, err := event.Open(&e.Draft)
	if err != nil {
		return nil, fmt.Errorf("event %d: %w", e.Seq, err)
	}
	switch p := p.(type) {
	case *event.GrantCreated:
		condition, _ := policy.CompileGrant(p.Condition)
		g.given[p.GrantID] = &grant{id: p.GrantID, agent: e.Context.AgentID, condition: condition, made: e.Time, until: time.Unix(0, p.Until), uses: p.Uses, rows: p.Rows}
	case *event.GrantUsed:
		return g.use(e, p), nil
	case *event.GrantRevoked:
		g.end(p.GrantID)
	case *event.GrantExpired:
		g.end(p.GrantID)
	case *event.AgentDeactivated:
		for _, known := range g.given {
			known.ended = known.ended || known.agent == p.AgentID
		}
	case *event.ExecutionDispatched:
		return g.dispatched(e, p), nil
	default:
		if drawn := event.GrantedAfter(p); drawn.Settled {
			x := g.running[e.Context.ExecutionID]
			changed := drawn.Of(x.rows)
			if changed < 0 || changed > x.rows {
				fields = append(fields, fmt.Sprintf("grant: the execution changed %d rows, and %d of %s were kept for it", changed, x.rows, x.grant.id))
			}
			x.grant.kept -= x.rows
			x.grant.changed += max(changed, 0)
			delete(g.running, e.Context.ExecutionID)
			return fields, nil
		}
	}
	return nil, nil
}

func (g *grants) end(id string) {
	if known := g.given[id]; known != nil {
		known.ended = true
	}
}

// use holds a use against the grant as the log says that it stood, and against the decision
// that it belongs to.
func (g *grants) use(e *event.Envelope, p *event.GrantUsed) (fields []string) {
	g.used = e.Context.ExecutionID
	wrong := func(format string, args ...any) { fields = append(fields, "grant: "+fmt.Sprintf(format, args...)) }
	if d := g.decided; d == nil || d.RequestID != e.Context.RequestID || d.GrantID != p.GrantID {
		wrong("%s was used, and the decision of that request was not made under it", p.GrantID)
	}
	is := g.given[p.GrantID]
	if is == nil {
		wrong("%s was used, and no operator gave it", p.GrantID)
		return fields
	}
	is.used++
	switch {
	case is.agent != e.Context.AgentID:
		wrong("%s is of %s, and %q used it", is.id, is.agent, e.Context.AgentID)
	case is.ended || !e.Time.Before(is.until):
		wrong("%s was used after its end", is.id)
	case is.used > is.uses || p.Use != is.used:
		wrong("use %d of %s, which has %d, is called the %d.", is.used, is.id, is.uses, p.Use)
	case p.Rows < 0 || p.Rows > is.rowsLeft():
		wrong("%d rows were kept of %s, which had %d left", p.Rows, is.id, is.rowsLeft())
	}
	is.kept += p.Rows
	g.running[e.Context.ExecutionID] = &granted{is, p.Rows}
	return fields
}

// dispatched holds a dispatch against the use that it needs: none runs under a grant without.
// And what is dispatched to be rolled back was decided as a dry run, and nothing else was.
func (g *grants) dispatched(e *event.Envelope, p *event.ExecutionDispatched) []string {
	d, used := g.decided, g.used == e.Context.ExecutionID
	g.used = ""
	if d == nil || d.RequestID != e.Context.RequestID {
		return nil
	}
	if dry := p.Path == event.PathDryRun; dry != (d.Run == event.RunDryRun) || dry && (d.Recorded.DryRun == nil || d.Recorded.Decision == policy.Block) {
		return []string{fmt.Sprintf("dry_run: the statement was dispatched by the path %s, and its decision says %s, run %s, dry run %s", p.Path, d.Recorded.Decision, d.Run, dryRunWords(d.Recorded.DryRun))}
	}
	if (d.GrantID != "") != used {
		return []string{fmt.Sprintf("grant: recorded %q, the dispatch of the statement used it: %t", d.GrantID, used)}
	}
	if x := g.running[e.Context.ExecutionID]; used && x != nil && (p.Path != event.PathRead && p.Limits.MaxRows == nil && x.rows > 0 || p.Limits.MaxRows != nil && *p.Limits.MaxRows > x.rows) {
		return []string{fmt.Sprintf("grant: %d rows were kept, the limit of the execution is larger", x.rows)}
	}
	return nil
}

// decision holds a decision that names a grant against it: that it is the agent's, that the
// facts meet its condition, and that it is for as long as the decision read.
func (g *grants) decision(d *Decision) (fields []string) {
	g.decided = d
	wrong := func(format string, args ...any) { fields = append(fields, "grant: "+fmt.Sprintf(format, args...)) }
	known := g.given[d.GrantID]
	switch {
	case d.GrantID == "" && d.Facts.GrantSeconds == 0:
	case d.GrantID == "":
		wrong("a time of %d seconds is recorded, and no grant", d.Facts.GrantSeconds)
	case known == nil:
		wrong("%s is recorded, and no operator gave it", d.GrantID)
	case known.condition == nil:
		wrong("the condition of %s is not valid for this program", d.GrantID)
	default:
		if known.agent != d.Facts.AgentID || d.Facts.AgentID == "" {
			wrong("%s is of %s, and the facts name %q", d.GrantID, known.agent, d.Facts.AgentID)
		}
		if seconds := event.GrantSeconds(known.made, known.until); seconds != d.Facts.GrantSeconds {
			wrong("recorded %d seconds, %s is for %d", d.Facts.GrantSeconds, d.GrantID, seconds)
		}
		if !known.condition.Covers(&d.Facts) {
			wrong("the facts do not meet the condition of %s", d.GrantID)
		}
		if !d.Enforced {
			wrong("%s stands in a decision that was not enforced", d.GrantID)
		}
		if slices.Contains([]string{classify.RunNone, classify.RunAlone, event.RunSession, event.RunDescribe, event.RunDryRun}, d.Run) {
			wrong("%s stands in the decision of what no grant covers (run %s)", d.GrantID, d.Run)
		}
		if d.Recorded.Decision != policy.Allow {
			wrong("%s stands in a decision that allows nothing", d.GrantID)
		}
	}
	return fields
}
