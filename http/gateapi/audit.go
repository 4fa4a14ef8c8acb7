package gateapi

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/http/httpd"
	"writegate/projections"
)

// auditFilters are the filters that stand there once at most; event_type may be
// repeated.
var auditFilters = []string{"fingerprint", "actor", "app", "tenant", "env", "decision", "approval_id", "session_id",
	"policy_version", "execution_id", "request_id", "agent_id", "table", "rule_id", "since", "until", "from_seq", "to_seq"}

// listAudit is GET /audit: the index finds the events, the log tells them.
func (a *api) listAudit(c *httpd.Call) error {
	label, err := c.OperatorLabel()
	if err != nil {
		return err
	}
	query, page, err := readList(c, auditFilters...)
	if err != nil {
		return err
	}
	filter, err := auditFilter(query)
	if err != nil {
		return err
	}
	if err := a.reached(filter.FromSeq, "from_seq"); err != nil {
		return err
	}
	view := a.Store.ViewWithin(c.Request.Context())
	defer view.Close()
	seqs, next, err := view.Audit(filter, page)
	if errors.Is(err, projections.ErrNotConnected) {
		return a.listUnindexed(c, filter, page, label)
	}
	if err != nil {
		return listFault(err)
	}
	verified, damaged := a.Log.Damaged()
	list := c.NewList()
	looked := int64(0)
	for i, seq := range seqs {
		if looked > int64(page.Work) {
			next = projections.AuditCursor(filter, page, seqs[i-1])
			break
		}
		e, read, err := a.Log.AtCost(c.Request.Context(), seq)
		looked += read
		lost := errors.Is(err, eventlog.ErrCorrupt) || errors.Is(err, eventlog.ErrNotFound) // the index knows it, so it was there
		if lost && damaged && seq > verified {
			continue
		}
		if lost {
			return fault.New(fault.AuditCorruptionDetected, "Event %d cannot be read: the event log is damaged there. GET /evidence/verify shows the damage.", seq).With("seq", seq).Because(err)
		}
		if err != nil {
			return listFault(err)
		}
		room, err := list.AddJSON(func(b []byte) []byte { return event.AppendJSON(b, shown(&e, label)) })
		if err != nil {
			return err
		}
		if !room {
			next = projections.AuditCursor(filter, page, seqs[i-1])
			break
		}
	}
	if err := view.Close(); err != nil {
		return listFault(err)
	}
	list.Send(next, a.damage()...)
	return nil
}

// listUnindexed is GET /audit where damage keeps the log and its index apart: the events
// that verify are looked through one by one, as many as a page may cost.
func (a *api) listUnindexed(c *httpd.Call, f projections.AuditFilter, page projections.Page, label string) error {
	first, last := max(f.FromSeq, 1), f.ToSeq
	if verified, _ := a.Log.Damaged(); last == 0 || last > verified {
		last = verified
	}
	at, step := last, ^uint64(0) // one back
	if page.Asc {
		at, step = first, 1
	}
	if page.Cursor != "" {
		n, err := strconv.ParseUint(page.Cursor, 10, 64)
		if err != nil {
			return httpd.BadCursor()
		}
		at = n
	}
	list, next := c.NewList(), ""
	found, looked := 0, int64(0)
	for ; at >= first && at <= last; at += step {
		if found == page.Limit || looked > int64(page.Work) {
			next = strconv.FormatUint(at, 10)
			break
		}
		e, read, err := a.Log.AtCost(c.Request.Context(), at)
		if err != nil {
			return listFault(err)
		}
		looked += read + 1<<10 // what any event costs
		if !projections.Matches(f, &e) {
			continue
		}
		room, err := list.AddJSON(func(b []byte) []byte { return event.AppendJSON(b, shown(&e, label)) })
		if err != nil {
			return err
		}
		if !room {
			next = strconv.FormatUint(at, 10)
			break
		}
		found++
	}
	list.Send(next, a.damage()...)
	return nil
}

// damage is the member of an answer that tells how far the log verifies; it is empty
// where nothing is wrong with it.
func (a *api) damage() []byte {
	verified, damaged := a.Log.Damaged()
	if !damaged {
		return nil
	}
	return fmt.Appendf(nil, `,"damaged":{"verified_to":%d,"message":"The event log is damaged behind event %[1]d. What can be read of it is shown; nothing vouches for later events. GET /evidence/verify shows the damage."}`, verified)
}

// auditFilter reads the filters of spec/decisions.md part 7.
func auditFilter(q url.Values) (projections.AuditFilter, error) {
	fields := map[string]string{}
	f := projections.AuditFilter{
		Fingerprint: q.Get("fingerprint"), Actor: q.Get("actor"), App: q.Get("app"), Tenant: q.Get("tenant"),
		Env: q.Get("env"), Decision: q.Get("decision"), ApprovalID: q.Get("approval_id"), SessionID: q.Get("session_id"),
		PolicyVersion: q.Get("policy_version"), ExecutionID: q.Get("execution_id"), RequestID: q.Get("request_id"),
		AgentID: q.Get("agent_id"), Table: q.Get("table"), RuleID: q.Get("rule_id"),
	}
	for _, name := range q["event_type"] {
		switch _, known := event.Lookup(event.Type(name)); {
		case name == "" || slices.Contains(f.EventTypes, name): // an empty filter selects all, as everywhere
		case !known:
			fields["event_type"] = "must be a type of event, such as decision_recorded; docs/openapi.yaml lists them"
		default:
			f.EventTypes = append(f.EventTypes, name)
		}
	}
	closedSet(fields, "decision", f.Decision, "ALLOW", "BLOCK", "REQUIRE_APPROVAL")
	closedSet(fields, "env", f.Env, environments...)
	if f.Table != "" && !strings.Contains(f.Table, ".") {
		fields["table"] = "must be a table with its schema, such as public.orders"
	}
	for name, dst := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		t, err := httpd.Moment(q.Get(name))
		if *dst = t; err != nil {
			fields[name] = "must be a moment like 2026-01-31T18:00:00Z"
		}
	}
	for name, dst := range map[string]*uint64{"from_seq": &f.FromSeq, "to_seq": &f.ToSeq} {
		if text := q.Get(name); text != "" {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil || n == 0 {
				fields[name] = "must be a whole number from 1"
			}
			*dst = n
		}
	}
	if len(fields) > 0 {
		return f, httpd.Invalid(fields)
	}
	return f, nil
}

// environments are those that a request may claim.
var environments = []string{"shadow", "staging", "prod"}

// closedSet notes a filter that nothing can ever have.
func closedSet(fields map[string]string, name, value string, set ...string) bool {
	if value == "" || slices.Contains(set, value) {
		return true
	}
	fields[name] = "must be one of " + strings.Join(set, ", ")
	return false
}

// shown is an event as an operator may see it, or, without a label, everybody:
// result rows leave by POST /query alone, where the policy decided about them.
func shown(e *event.Envelope, label string) *event.Envelope {
	if label != "" {
		return e
	}
	open, withheld := e.WithoutData()
	if !withheld {
		return e
	}
	changed := *e
	changed.Draft = open
	return &changed
}

// follow sends the log's events from next on, in the form of GET /audit.
func (a *api) follow(ctx context.Context, label string, next uint64, send func(id, kind string, data []byte) error) error {
	var data []byte
	for batch, err := range a.Log.Stream(ctx, next) {
		if err != nil {
			return err
		}
		for i := range batch.Events {
			e := &batch.Events[i]
			data = event.AppendJSON(data[:0], shown(e, label))
			if err := send(strconv.FormatUint(e.Seq, 10), string(e.Type), data); err != nil {
				return err
			}
		}
	}
	return nil
}
