package projections

import (
	"time"

	"writegate/eventlog/event"
)

func grantKey(id string) []byte { return []byte(keyGrant + id) }

func grantCreated(t *tx, e *event.Envelope, p *event.GrantCreated) {
	g := Grant{ID: p.GrantID, State: GrantActive, Seq: e.Seq, AgentID: e.Context.AgentID, Project: e.Context.Project, Condition: p.Condition,
		CreatedAt: e.Time, Until: time.Unix(0, p.Until).UTC(), Uses: p.Uses, Rows: p.Rows, Reason: p.Reason, CreatedBy: p.By}
	if k := p.Origin.Idempotency; k != nil {
		g.IdempotencyKey = k.Key
	}
	t.put(grantKey(g.ID), &g)
	t.keep(listKey(keyGrantList, g.State, g.Seq), []byte(g.ID))
	t.keep(dueKey(keyGrantDue, g.Until, g.ID), nil)
	t.keep(listKey(keyGrantOf, g.AgentID, g.Seq), []byte(g.ID))
}

// grant hands a grant to change and writes it back.
func (t *tx) grant(id string, change func(*Grant)) {
	var g Grant
	if id == "" || !t.get(grantKey(id), &g) {
		return
	}
	before := g.State
	change(&g)
	t.put(grantKey(id), &g)
	if g.State != before { // it is active no more
		t.delete(listKey(keyGrantList, before, g.Seq))
		t.keep(listKey(keyGrantList, g.State, g.Seq), []byte(g.ID))
		t.delete(dueKey(keyGrantDue, g.Until, g.ID))
		t.delete(listKey(keyGrantOf, g.AgentID, g.Seq))
	}
}

func grantUsed(t *tx, e *event.Envelope, p *event.GrantUsed) {
	t.grant(p.GrantID, func(g *Grant) {
		g.Used, g.UsedAt = g.Used+1, e.Time
		g.Reserved, g.Running = g.Reserved+p.Rows, g.Running+1
	})
	t.execution(e, func(x *Execution) { x.GrantID, x.GrantRows, x.GrantUse = p.GrantID, p.Rows, GrantUseRuns })
}

func grantRevoked(t *tx, e *event.Envelope, p *event.GrantRevoked) {
	t.grant(p.GrantID, func(g *Grant) {
		g.State, g.RevokedAt, g.RevokedBy, g.Note = GrantRevoked, e.Time, p.By, p.Note
	})
}

func grantExpired(t *tx, _ *event.Envelope, p *event.GrantExpired) {
	t.grant(p.GrantID, func(g *Grant) {
		if g.State == GrantActive {
			g.State = GrantExpired
		}
	})
}

// grantOf tells the grant what became of an execution under it. The first result ends that it
// runs; the rows that are kept for it are given back once.
func (t *tx) grantOf(x *Execution, d event.Drawn) {
	if x.GrantID == "" || x.GrantUse == GrantUseSettled {
		return
	}
	t.grant(x.GrantID, func(g *Grant) {
		if x.GrantUse == GrantUseRuns {
			g.Running--
		}
		if d.Settled {
			g.Reserved, g.Changed = g.Reserved-x.GrantRows, g.Changed+d.Of(x.GrantRows)
		}
	})
	if x.GrantUse = GrantUseOpen; d.Settled {
		x.GrantUse = GrantUseSettled
	}
}
