package gateapi

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strconv"
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
	"policy_version", "execution_id", "request_id", "since", "until", "from_seq", "to_seq"}

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
		return fault.New(fault.AuditCorruptionDetected, "The event log and its index contradict each other, so nothing is shown from them. GET /evidence/verify shows the damage.").Because(err)
	}
	if err != nil {
		return listFault(err)
	}
	list := c.NewList()
	looked := int64(0)
	for i, seq := range seqs {
		if looked > int64(page.Work) {
			next = projections.AuditCursor(filter, page, seqs[i-1])
			break
		}
		e, read, err := a.Log.AtCost(c.Request.Context(), seq)
		looked += read
		if errors.Is(err, eventlog.ErrCorrupt) || errors.Is(err, eventlog.ErrNotFound) { // the index knows it, so it was there
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
	return sendList(list, view, next, nil)
}

// auditFilter reads the filters of spec/decisions.md part 7.
func auditFilter(q url.Values) (projections.AuditFilter, error) {
	fields := map[string]string{}
	f := projections.AuditFilter{
		Fingerprint: q.Get("fingerprint"), Actor: q.Get("actor"), App: q.Get("app"), Tenant: q.Get("tenant"),
		Env: q.Get("env"), Decision: q.Get("decision"), ApprovalID: q.Get("approval_id"), SessionID: q.Get("session_id"),
		PolicyVersion: q.Get("policy_version"), ExecutionID: q.Get("execution_id"), RequestID: q.Get("request_id"),
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
