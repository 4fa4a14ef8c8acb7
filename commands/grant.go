package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// Bounds of grants.
const (
	MaxGrantUses = 10_000    // of one grant: what holds it against the log reads them all
	MaxGrantRows = 1<<53 - 1 // what a JSON number keeps
	MaxGrants    = 20        // of one agent at a time: a statement is held against the conditions of all

	maxGrantReason = 1000 // characters
)

// CreateGrant is an operator's answer ahead of the questions.
type CreateGrant struct {
	AgentID   string
	Condition string
	Until     time.Time
	Uses      int
	Rows      int64
	Reason    string
	By        string // label of the operator token
	RequestID string

	// MaxSeconds is the longest time that the policy in force takes.
	MaxSeconds int
	// Keep gives what the request's idempotency key keeps, of the grant as it was made; nil
	// without a key.
	Keep func(projections.Grant) (*event.KeptAnswer, error)
}

// CreateGrant records a grant before it returns it. What the condition may say is the
// caller's to check.
//
// Errors: validation_failed, agent_not_found, agent_inactive, grant_limit_exceeded, and
// those of the log.
func (c *Commands) CreateGrant(ctx context.Context, r *CreateGrant) (projections.Grant, error) {
	agent, err := c.agentOf(ctx, r.AgentID)
	if err != nil {
		return projections.Grant{}, err
	}
	unlock, err := c.lock(ctx, AgentKey(agent.Project, agent.AgentID))
	if err != nil {
		return projections.Grant{}, err
	}
	defer unlock()
	var live []projections.Grant
	now := c.now()
	err = c.look(ctx, func(view *projections.View) (err error) {
		if agent, _, err = view.AnyAgent(r.AgentID); err != nil {
			return err
		}
		live, err = view.GrantsOf(r.AgentID)
		return err
	})
	if err != nil {
		return projections.Grant{}, err
	}
	c.step("commands.decide")
	if err := decideCreateGrant(r, &agent, live, now); err != nil {
		return projections.Grant{}, err
	}
	p := event.GrantCreated{GrantID: event.NewGrantID(now), Condition: r.Condition, Until: r.Until.UnixNano(), Uses: r.Uses, Rows: r.Rows, Reason: r.Reason, By: r.By}
	if r.Keep != nil {
		made := projections.Grant{ID: p.GrantID, State: projections.GrantActive, AgentID: agent.AgentID, Project: agent.Project, Condition: r.Condition,
			CreatedAt: now, Until: r.Until, Uses: r.Uses, Rows: r.Rows, Reason: r.Reason, CreatedBy: r.By}
		if p.Origin.Idempotency, err = r.Keep(made); err != nil {
			return projections.Grant{}, fault.Of(err)
		}
	}
	shared := event.Context{Operation: "create_grant", AgentID: agent.AgentID, Project: agent.Project, RequestID: r.RequestID}
	if _, err := c.commit(ctx, eventlog.Group{Drafts: []event.Draft{event.New(now, shared, &p)}}); err != nil {
		return projections.Grant{}, err
	}
	c.wakeExpiry()
	g, _, err := c.grant(context.WithoutCancel(ctx), p.GrantID)
	return g, err
}

// decideCreateGrant is the pure heart of CreateGrant.
func decideCreateGrant(r *CreateGrant, agent *projections.Agent, live []projections.Grant, now time.Time) error {
	fields := map[string]string{}
	if r.Uses < 1 || r.Uses > MaxGrantUses {
		fields["uses"] = fmt.Sprintf("must be a number from 1 to %d", MaxGrantUses)
	}
	if r.Rows < 0 || r.Rows > MaxGrantRows {
		fields["rows"] = fmt.Sprintf("must be a number from 0 to %d; 0 covers statements that change none", int64(MaxGrantRows))
	}
	if n := utf8.RuneCountInString(r.Reason); strings.TrimSpace(r.Reason) == "" || n > maxGrantReason {
		fields["reason"] = fmt.Sprintf("must say why, in 1 to %d characters", maxGrantReason)
	}
	switch left := r.Until.Sub(now); {
	case left <= 0:
		fields["until"] = "must be in the future"
	case left > time.Duration(r.MaxSeconds)*time.Second:
		fields["until"] = fmt.Sprintf("must be at most %d seconds from now: no rule of the policy in force takes a grant for longer (max_grant_seconds)", r.MaxSeconds)
	}
	switch {
	case len(fields) > 0:
		return fault.New(fault.ValidationFailed, "The grant is not valid; details.fields says what to change.").With("fields", fields)
	case agent.Status != event.AgentActive:
		return fault.New(fault.AgentInactive, "The agent is not in service, so it can't be given a grant.").With("agent_id", agent.AgentID)
	}
	active := 0
	for i := range live {
		if live[i].StatusAt(now) == projections.GrantActive {
			active++
		}
	}
	if active >= MaxGrants {
		return fault.New(fault.GrantLimitExceeded, "The agent has %d grants, and no more may be active at a time. Revoke one, or wait until one ends.", active).With("limit", MaxGrants)
	}
	return nil
}

// agentOf finds an agent of any project.
func (c *Commands) agentOf(ctx context.Context, id string) (agent projections.Agent, err error) {
	found := false
	err = c.look(ctx, func(view *projections.View) (err error) {
		agent, found, err = view.AnyAgent(id)
		return err
	})
	if err == nil && !found {
		err = fault.New(fault.AgentNotFound, "There is no agent with this id. GET /v1/agents lists those of a project.").With("agent_id", id)
	}
	return agent, err
}

// RevokeGrant ends a grant. By is the label of the operator token.
type RevokeGrant struct {
	ID, Note, By, RequestID string
}

// RevokeGrant records the revocation before it returns the grant as it stands then. What was
// dispatched under it ends as it was decided; nothing is dispatched under it any more.
//
// Errors: validation_failed, grant_not_found, grant_ended, and those of the log.
func (c *Commands) RevokeGrant(ctx context.Context, r RevokeGrant) (projections.Grant, error) {
	if len(r.Note) > maxNote {
		return projections.Grant{}, fault.New(fault.ValidationFailed, "The revocation is not valid; details.fields says what to change.").
			With("fields", map[string]string{"note": "must be at most 4096 bytes"})
	}
	unlock, err := c.lock(ctx, grantLock(r.ID))
	if err != nil {
		return projections.Grant{}, err
	}
	defer unlock()
	g, found, err := c.grant(ctx, r.ID)
	if err != nil {
		return g, err
	}
	c.step("commands.decide")
	now := c.now()
	switch status := g.StatusAt(now); {
	case !found:
		return g, GrantNotFound(r.ID)
	case status == projections.GrantRevoked:
		return g, fault.New(fault.GrantEnded, "The grant was revoked before.").With("grant_id", r.ID).With("status", status).
			With("revoked_by", g.RevokedBy).With("revoked_at", event.Timestamp(g.RevokedAt)).With("note", g.Note)
	case status == projections.GrantExpired:
		return g, fault.New(fault.GrantEnded, "The grant is over, so it covers nothing that could be revoked.").With("grant_id", r.ID).With("status", status)
	}
	draft := event.New(now, grantContext(&g, "revoke_grant", r.RequestID), &event.GrantRevoked{GrantID: g.ID, Note: r.Note, By: r.By})
	if _, err := c.commit(ctx, eventlog.Group{Drafts: []event.Draft{draft}}); err != nil {
		return g, err
	}
	g, _, err = c.grant(context.WithoutCancel(ctx), r.ID)
	return g, err
}

// GrantNotFound is the fault of an id that no grant has.
func GrantNotFound(id string) error {
	return fault.New(fault.GrantNotFound, "There is no grant with this id. GET /grants lists those that there are.").With("grant_id", id)
}

func grantContext(g *projections.Grant, operation, requestID string) event.Context {
	return event.Context{Operation: operation, AgentID: g.AgentID, Project: g.Project, RequestID: requestID}
}

func (c *Commands) grant(ctx context.Context, id string) (g projections.Grant, found bool, err error) {
	err = c.look(ctx, func(view *projections.View) (err error) {
		g, found, err = view.Grant(id)
		return err
	})
	return g, found, err
}

// A GrantUse asks for one use of a grant, and for rows of its budget.
type GrantUse struct {
	ID   string
	Rows int64 // that the execution may change at most; they are kept for it until its result
}

// ErrGrantLost says that a grant does not cover any more what was decided under it: it was
// revoked, its time is over, or others were quicker. Nothing was written; the statement has
// to be decided again.
var ErrGrantLost = errors.New("commands: the grant does not cover the statement any more")

// useGrant checks a use under the grant's lock, and says the how many-eth it is.
func (c *Commands) useGrant(ctx context.Context, view *projections.View, use *GrantUse, agentID string, now time.Time) (nth int, err error) {
	g, found, err := view.Grant(use.ID)
	switch {
	case err != nil:
		return 0, err
	case !found || g.AgentID != agentID || g.StatusAt(now) != projections.GrantActive || use.Rows > g.RowsLeft():
		return 0, ErrGrantLost
	}
	return g.Used + 1, c.provenGrant(ctx, view, &g)
}

// provenGrants are the grants that were held against the log in this run. What the
// projections say of them since is of events that this run folded itself.
type provenGrants struct {
	mu  sync.Mutex
	ids map[string]bool // guarded by mu
}

func (p *provenGrants) has(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ids[id]
}

func (p *provenGrants) add(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ids == nil || len(p.ids) >= 10_000 { // those that are over are not asked about again
		p.ids = map[string]bool{}
	}
	p.ids[id] = true
}

// provenGrant holds a grant against the events of the log, once in a run, as proven does
// with an approval. Error: audit_corruption_detected.
func (c *Commands) provenGrant(ctx context.Context, view *projections.View, g *projections.Grant) error {
	if c.grants.has(g.ID) {
		return nil
	}
	e, err := c.log.At(ctx, view.OwnSeq(g.Seq))
	if err != nil {
		return refusal(err)
	}
	var made event.GrantCreated
	if e.Type == event.TypeGrantCreated {
		err = e.Parse(&made)
	}
	l := loggedGrant{id: g.ID}
	if err == nil {
		types := []string{string(event.TypeGrantUsed), string(event.TypeGrantRevoked), string(event.TypeGrantExpired)}
		err = c.readAll(ctx, view, projections.AuditFilter{AgentID: g.AgentID, EventTypes: types, FromSeq: e.Seq}, l.take)
	}
	for execution, kept := range l.kept {
		if err != nil {
			break
		}
		var d event.Drawn
		err = c.readAll(ctx, view, projections.AuditFilter{ExecutionID: execution, EventTypes: executionResults}, func(e *event.Envelope) error {
			p, err := event.Open(&e.Draft)
			if after := event.GrantedAfter(p); err == nil && after.Settled && !d.Settled {
				d = after
			}
			return err
		})
		if d.Settled {
			l.changed += d.Of(kept)
		} else {
			l.reserved += kept
		}
	}
	if err != nil {
		return err
	}
	switch {
	case made.GrantID != g.ID || e.Context.AgentID != g.AgentID || made.Condition != g.Condition || made.Until != g.Until.UnixNano() || !e.Time.Equal(g.CreatedAt) ||
		made.Uses != g.Uses || made.Rows != g.Rows:
		err = errors.New("it was given otherwise")
	case l.ended:
		err = errors.New("an event has ended it")
	case l.used > g.Used:
		err = fmt.Errorf("it was used %d times, and not %d", l.used, g.Used)
	case l.changed+l.reserved > g.Changed+g.Reserved:
		err = fmt.Errorf("%d rows of it are gone, and not %d", l.changed+l.reserved, g.Changed+g.Reserved)
	default:
		c.grants.add(g.ID)
		return nil
	}
	c.logs.Error("a grant is not what the event log says of it, so nothing ran under it", "source", "commands", "grant_id", g.ID, "cause", err.Error())
	return fault.New(fault.AuditCorruptionDetected, "The projections say that this grant covers the statement, and the event log does not, so nothing was executed. Tell the operator: `gate log rebuild` makes the projections anew from the log.").
		With("grant_id", g.ID).Because(err)
}

// executionResults are the types that tell what became of an execution.
var executionResults = []string{string(event.TypeExecutionSuccess), string(event.TypeExecutionFailure), string(event.TypeExecutionStateUnknown), string(event.TypeExecutionOutcomeResolved)}

// A loggedGrant is what the log says of a grant's life.
type loggedGrant struct {
	id                string
	ended             bool
	used              int
	kept              map[string]int64 // rows, by execution
	changed, reserved int64
}

func (l *loggedGrant) take(e *event.Envelope) error {
	p, err := event.Open(&e.Draft)
	if err != nil {
		return err
	}
	switch p := p.(type) {
	case *event.GrantUsed:
		if p.GrantID != l.id {
			return nil
		}
		if l.kept == nil {
			l.kept = map[string]int64{}
		}
		l.used, l.kept[e.Context.ExecutionID] = l.used+1, p.Rows
	case *event.GrantRevoked:
		l.ended = l.ended || p.GrantID == l.id
	case *event.GrantExpired:
		l.ended = l.ended || p.GrantID == l.id
	}
	return nil
}

// readAll is read of all pages, the oldest event first.
func (c *Commands) readAll(ctx context.Context, view *projections.View, f projections.AuditFilter, take func(*event.Envelope) error) error {
	for page := (projections.Page{Limit: 1000, Asc: true}); ; {
		seqs, next, err := view.Audit(f, page)
		if err == nil {
			err = c.readSeqs(ctx, seqs, take)
		}
		if err != nil || next == "" {
			return err
		}
		page.Cursor = next
	}
}

// expireGrants writes grant_expired for every grant whose time is over, or which is
// withdrawn. next is when the next one will be due, zero when none is.
func (c *Commands) expireGrants(ctx context.Context, now time.Time, withdrawn bool) (n int, next time.Time, err error) {
	for {
		var ids []string
		err = c.look(ctx, func(view *projections.View) (err error) {
			if withdrawn {
				ids, err = view.WithdrawnGrants(expiryChunk)
			} else {
				ids, next, err = view.DueGrants(now, expiryChunk)
			}
			return err
		})
		if err != nil || len(ids) == 0 {
			return n, next, err
		}
		ended, err := c.expireSomeGrants(ctx, ids, now)
		if n += ended; err != nil || ended == 0 {
			return n, next, err
		}
	}
}

func (c *Commands) expireSomeGrants(ctx context.Context, ids []string, now time.Time) (int, error) {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = grantLock(id)
	}
	unlock, err := c.lock(ctx, keys...)
	if err != nil {
		return 0, err
	}
	defer unlock()
	var drafts []event.Draft
	err = c.look(ctx, func(view *projections.View) error {
		for _, id := range ids {
			g, found, err := view.Grant(id)
			if err != nil {
				return err
			}
			if !found || g.State != projections.GrantActive || g.StatusAt(now) != projections.GrantExpired {
				continue
			}
			shared := grantContext(&g, "expire_grant", "")
			if now.Before(g.Until) {
				shared.ReasonCode = string(g.Withdrawn)
			}
			drafts = append(drafts, event.New(now, shared, &event.GrantExpired{GrantID: g.ID, Until: g.Until.UnixNano()}))
		}
		return nil
	})
	if err != nil || len(drafts) == 0 {
		return 0, err
	}
	_, err = c.commit(ctx, eventlog.Group{Drafts: drafts})
	return len(drafts), err
}
