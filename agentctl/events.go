package agentctl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// visibleTypes are the event types of the agent view (spec/v1.md part 9). Of the
// last ones a project sees those of requests made with an agent's token.
var visibleTypes = []event.Type{
	event.TypeAgentRegistered, event.TypeAgentUpdated, event.TypeAgentDeactivated, event.TypeAgentTokenIssued, event.TypeAgentTokenRevoked, event.TypeAgentSubjectBound, event.TypeAgentSubjectUnbound,
	event.TypeAgentPolicyCreated, event.TypeAgentPolicyUpdated, event.TypeAgentPolicyApplied, event.TypeAgentPolicyDetached,
	event.TypeToolRegistered, event.TypeToolUpdated, event.TypeToolVerified, event.TypeTelemetryReceived, event.TypeUsageRecorded, event.TypeRateLimitHit,
	event.TypeRequestReceived, event.TypeDecisionRecorded, event.TypeQueryRejected,
	event.TypeApprovalCreated, event.TypeApprovalResolved, event.TypeApprovalExpired, event.TypeApprovalUsed,
	event.TypeExecutionDispatched, event.TypeExecutionSuccess, event.TypeExecutionFailure, event.TypeExecutionStateUnknown, event.TypeExecutionOutcomeResolved,
}

// projectOnly are the types that name other agents too: a token alone does not
// see them.
var projectOnly = []event.Type{event.TypeUsageRecorded}

// An EventFilter selects events of a project; an empty field selects all.
type EventFilter struct {
	Types                                    []string // exact, or with a trailing * a prefix
	TelemetryType, AgentID, PolicyID, ToolID string
	SessionID, RequestID, CredentialID       string
	Since, Until                             time.Time
	FromSeq, ToSeq                           uint64
}

// An EventPage asks for a piece of the agent view.
type EventPage struct {
	Limit  int
	Cursor string
	Asc    bool
}

// Events is what a page of the agent view says beside its items.
type Events struct {
	Next     string
	HeadSeq  uint64
	HeadHash [32]byte
}

// typesFor resolves the event types that a filter names.
func (c *Caller) typesFor(names []string) ([]string, error) {
	var types []string
	for _, t := range visibleTypes {
		if c.agentOnly() != "" && slices.Contains(projectOnly, t) {
			continue
		}
		if len(names) == 0 || slices.ContainsFunc(names, func(name string) bool { return named(name, string(t)) }) {
			types = append(types, string(t))
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(visibleTypes, func(t event.Type) bool { return named(name, string(t)) }) {
			return nil, InvalidFields(FieldError{"/event_type", strconv.Quote(name) + " is no event type of this list"})
		}
	}
	if len(types) == 0 {
		types = []string{"(none)"} // only types that this caller does not see
	}
	return types, nil
}

func named(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// CheckFilter refuses a filter that Events and Follow refuse, before a stream begins.
func (c *Caller) CheckFilter(f EventFilter) error {
	_, err := c.audit(&f)
	return err
}

// audit is the filter as the index takes it.
func (c *Caller) audit(f *EventFilter) (projections.AuditFilter, error) {
	types, err := c.typesFor(f.Types)
	if err != nil {
		return projections.AuditFilter{}, err
	}
	if f.AgentID, err = c.confine(f.AgentID); err != nil {
		return projections.AuditFilter{}, err
	}
	return projections.AuditFilter{EventTypes: types, Project: c.Project, AgentID: f.AgentID, AgentPolicyID: f.PolicyID, ToolID: f.ToolID, SessionID: f.SessionID,
		RequestID: f.RequestID, CredentialID: f.CredentialID, TelemetryType: f.TelemetryType, Since: f.Since, Until: f.Until, FromSeq: f.FromSeq, ToSeq: f.ToSeq}, nil
}

// A place is one item of the agent view: an event, and in a telemetry batch one
// of its events.
type place struct {
	seq   uint64
	index int
}

// eventCursor binds a place to the question that it is an answer to.
func eventCursor(p place, c *Caller, f *EventFilter, asc bool) string {
	b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, p.seq), uint32(p.index))
	return base64.RawURLEncoding.EncodeToString(append(b, questionOf(c, f, asc)...))
}

func questionOf(c *Caller, f *EventFilter, asc bool) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %+v %t", c.Project, c.agentOnly(), *f, asc))
	return sum[:8]
}

func placeOf(cursor string, c *Caller, f *EventFilter, asc bool) (place, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(b) != 20 || string(b[12:]) != string(questionOf(c, f, asc)) {
		return place{}, faultOf(projections.ErrCursor)
	}
	return place{binary.BigEndian.Uint64(b), int(binary.BigEndian.Uint32(b[8:]))}, nil
}

// eventChunk is how many events are looked up at once.
const eventChunk = 200

// eventRead is what an event counts at least of the bytes of the log that a page looks
// through, of which there are projections.PageWork: the index finds a batch of telemetry
// that has all that a filter asks for in some event each, and perhaps none with all of it.
const eventRead = 4 << 10

// Events is GET /v1/events. The items go to take, which appends them as JSON; the
// page ends before the first that it has no room for, and where it has read much.
func (s *Service) Events(ctx context.Context, c *Caller, f EventFilter, page EventPage, take func(item func([]byte) []byte) (room bool, err error)) (Events, error) {
	audit, err := c.audit(&f)
	if err != nil {
		return Events{}, err
	}
	w := eventWalk{service: s, filter: &f, audit: audit, asc: page.Asc, limit: page.Limit, give: take}
	if page.Cursor != "" {
		if w.from, err = placeOf(page.Cursor, c, &f, page.Asc); err != nil {
			return Events{}, err
		}
		w.resume()
	}
	err = w.run(ctx)
	out := Events{HeadSeq: w.head.Seq, HeadHash: w.head.Hash}
	if w.more {
		out.Next = eventCursor(w.last, c, &f, page.Asc)
	}
	return out, err
}

// An eventWalk gathers items until the page is full.
type eventWalk struct {
	service *Service
	filter  *EventFilter
	audit   projections.AuditFilter
	asc     bool
	limit   int
	give    func(item func([]byte) []byte) (room bool, err error)
	from    place // seq 0 = from the start
	items   int
	read    int64 // bytes, as eventRead counts them
	last    place
	more    bool
	head    projections.Applied
}

// resume begins at the event in which the page before ended.
func (w *eventWalk) resume() {
	if w.asc {
		w.audit.FromSeq = max(w.audit.FromSeq, w.from.seq)
	} else if w.audit.ToSeq == 0 || w.from.seq < w.audit.ToSeq {
		w.audit.ToSeq = w.from.seq
	}
}

func (w *eventWalk) run(ctx context.Context) error {
	page := projections.Page{Limit: eventChunk, Asc: w.asc}
	for {
		var seqs []uint64
		err := w.service.view(ctx, func(view *projections.View) (err error) {
			w.head = view.Applied()
			seqs, page.Cursor, err = view.Audit(w.audit, page)
			return err
		})
		if err != nil {
			return err
		}
		for _, seq := range seqs {
			if w.read >= projections.PageWork {
				w.more = true
				return nil
			}
			e, read, err := w.service.at(ctx, seq)
			if err != nil {
				return err
			}
			if err := w.take(&e); err != nil || w.more {
				return err
			}
			w.passed(&e, read)
		}
		if page.Cursor == "" {
			return nil
		}
	}
}

// passed goes on behind an event. The one in which the page before ended is not counted:
// each page comes further.
func (w *eventWalk) passed(e *event.Envelope, read int64) {
	if e.Seq == w.from.seq {
		return
	}
	w.read += max(eventRead, read)
	w.last = place{seq: e.Seq}
	if w.asc {
		w.last.index = math.MaxInt32
	}
}

// at reads an event that the index knows, and gives the bytes that were read for it.
func (s *Service) at(ctx context.Context, seq uint64) (event.Envelope, int64, error) {
	e, read, err := s.Log.AtCost(ctx, seq)
	if errors.Is(err, eventlog.ErrCorrupt) || errors.Is(err, eventlog.ErrNotFound) {
		return e, read, fault.New(fault.AuditCorruptionDetected, "Event %d cannot be read: the event log is damaged there. GET /evidence/verify shows the damage.", seq).With("seq", seq).Because(err)
	}
	if err != nil {
		return e, read, commands.ViewFault(err)
	}
	return e, read, nil
}

// take adds the items of an event, in the walk's order, until one too many.
func (w *eventWalk) take(e *event.Envelope) error {
	list := itemsOf(e, w.filter)
	if !w.asc {
		slices.Reverse(list)
	}
	for _, item := range list {
		if w.from.seq == e.Seq && (w.asc && item.index <= w.from.index || !w.asc && item.index >= w.from.index) {
			continue
		}
		room := w.items < w.limit
		if room {
			var err error
			if room, err = w.give(item.appendJSON); err != nil {
				return err
			}
		}
		if !room {
			w.more = true
			return nil
		}
		w.items, w.last = w.items+1, place{e.Seq, item.index}
	}
	return nil
}

// An eventItem is one item of the list: an event, or one of those of a batch.
type eventItem struct {
	index int
	event event.Envelope
	ids   itemIDs
	sent  []byte // the payload of a telemetry event, as it was sent; nil: as the log has it
}

// itemsOf gives the items of an event: one, or of a telemetry batch one for each
// accepted event that the filter wants.
func itemsOf(e *event.Envelope, f *EventFilter) []eventItem {
	if e.Type != event.TypeTelemetryReceived {
		return []eventItem{{0, *e, tagged(e.Fields()), nil}}
	}
	var batch event.TelemetryReceived
	if e.Parse(&batch) != nil {
		batch.Events = nil // then an item is as the log has it
	}
	v, _ := e.Get("events")
	events, _ := v.AsList()
	var matched []bool
	if f.PolicyID != "" {
		matched = matchedBy(f.PolicyID, e)
	}
	var list []eventItem
	for i := range events {
		fields, _ := events[i].AsMap()
		t := telemetryTags{agent: textOf(fields, "agent_id"), kind: textOf(fields, "type"), session: textOf(fields, "session_id"), tool: toolOf(fields)}
		if !t.wanted(f) || f.PolicyID != "" && !(i < len(matched) && matched[i]) {
			continue
		}
		one, sent := *e, []byte(nil)
		one.Draft = e.With(fields)
		if i < len(batch.Events) {
			if text, err := sentForm(&batch.Events[i]); err == nil {
				one.Draft, sent = e.With(event.Payload{}), text
			}
		}
		one.Context.AgentID, one.Context.SessionID = t.agent, t.session
		list = append(list, eventItem{i, one, itemIDs{telemetryType: t.kind, tool: t.tool, credentials: credentialsOf(e.Fields())}, sent})
	}
	return list
}

// matchedBy reports of each accepted event of a batch whether a rule of a policy matched it.
func matchedBy(policyID string, e *event.Envelope) (matched []bool) {
	v, _ := e.Get("outcomes")
	outcomes, _ := v.AsList()
	for i := range outcomes {
		o, _ := outcomes[i].AsMap()
		if textOf(o, "status") != event.TelemetryAccepted {
			continue
		}
		v, _ := o.Get("violations")
		violations, _ := v.AsList()
		matched = append(matched, slices.ContainsFunc(violations, func(v event.Value) bool {
			rule, _ := v.AsMap()
			return textOf(rule, "policy_id") == policyID
		}))
	}
	return matched
}

// telemetryTags are what a filter can ask of one telemetry event.
type telemetryTags struct{ agent, kind, session, tool string }

func (t *telemetryTags) wanted(f *EventFilter) bool {
	for _, pair := range [][2]string{{f.AgentID, t.agent}, {f.TelemetryType, t.kind}, {f.SessionID, t.session}, {f.ToolID, t.tool}} {
		if pair[0] != "" && pair[0] != pair[1] {
			return false
		}
	}
	return true
}

// itemIDs are what an item has beside the event's readable form.
type itemIDs struct {
	telemetryType, policy, tool string
	credentials                 []string
}

func tagged(p event.Payload) itemIDs {
	return itemIDs{policy: textOf(p, "policy_id"), tool: textOf(p, "tool_id"), credentials: credentialsOf(p)}
}

func textOf(p event.Payload, key string) string {
	v, _ := p.Get(key)
	s, _ := v.AsString()
	return s
}

func toolOf(p event.Payload) string {
	v, _ := p.Get("tool")
	fields, _ := v.AsMap()
	return textOf(fields, "id")
}

// credentialsOf are the credentials of a request under /v1, or of a statement.
func credentialsOf(p event.Payload) (ids []string) {
	if origin, ok := p.Get("origin"); ok {
		p, _ = origin.AsMap()
	}
	v, _ := p.Get("credential_ids")
	items, _ := v.AsList()
	for _, item := range items {
		if s, ok := item.AsString(); ok {
			ids = append(ids, s)
		}
	}
	return ids
}

// appendJSON appends the event as GET /audit gives it to everybody, with the ids of
// the agent view: neither a key nor a token opens the rows of what others asked.
func (x *eventItem) appendJSON(text []byte) []byte {
	open := x.event
	open.Draft, _ = x.event.WithoutData()
	begin := len(text)
	text = event.AppendJSON(text, &open)
	if x.sent != nil { // quotes of a client are escaped, so this is the member
		const empty = `"payload":{}`
		at := begin + bytes.Index(text[begin:], []byte(empty)) + len(empty) - len("{}")
		text = slices.Replace(text, at, at+len("{}"), x.sent...)
	}
	text = strconv.AppendInt(append(text[:len(text)-1], `,"index":`...), int64(x.index), 10)
	for _, f := range []struct{ name, value string }{{"telemetry_type", x.ids.telemetryType}, {"policy_id", x.ids.policy}, {"tool_id", x.ids.tool}, {"credential_id", lastOf(x.ids.credentials)}} {
		text = append(append(append(text, `,"`...), f.name...), `":`...)
		if f.value == "" {
			text = append(text, "null"...)
		} else {
			text = event.AppendText(text, f.value)
		}
	}
	return append(text, '}')
}

// lastOf prefers the agent's token to the key beside it.
func lastOf(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	return ids[len(ids)-1]
}

// Event is GET /v1/events/:event_id: one event whole.
func (s *Service) Event(ctx context.Context, c *Caller, id string) ([]byte, error) {
	missing := fault.New(fault.EventNotFound, "There is no event with this id in the view of your credential. GET /v1/events lists those there are.").With("event_id", id)
	wanted, err := event.ParseID(id)
	if err != nil {
		return nil, missing
	}
	f := EventFilter{}
	audit, err := c.audit(&f)
	if err != nil {
		return nil, err
	}
	// An id carries the millisecond of its event.
	at := time.UnixMilli(int64(binary.BigEndian.Uint64(append([]byte{0, 0}, wanted[:6]...))))
	audit.Since, audit.Until = at, at.Add(time.Millisecond)
	var found []byte
	err = s.eachEvent(ctx, audit, func(e *event.Envelope) error {
		if e.ID == wanted && c.seesWhole(e) {
			found = (&eventItem{0, *e, tagged(e.Fields()), nil}).appendJSON(nil)
		}
		return nil
	})
	if err == nil && found == nil {
		err = missing
	}
	return found, err
}

// seesWhole tells whether a caller may see an event with everything in it: a
// batch may hold events of several agents.
func (c *Caller) seesWhole(e *event.Envelope) bool {
	only := c.agentOnly()
	if only == "" || e.Type != event.TypeTelemetryReceived {
		return true
	}
	v, _ := e.Get("events")
	events, _ := v.AsList()
	return !slices.ContainsFunc(events, func(x event.Value) bool {
		fields, _ := x.AsMap()
		return textOf(fields, "agent_id") != only
	})
}

// A Follower is a log that goes on: *eventlog.Log.
type Follower interface {
	Stream(ctx context.Context, seq uint64) iter.Seq2[eventlog.Batch, error]
}

// A Place is where a stream goes on: behind an event, or behind one item of a
// batch. An Index below zero is the whole event.
type Place struct {
	Seq   uint64
	Index int
}

// Follow sends the items of events from a place on, as they come. Views that are
// opened then show their events: what an item tells can be read, and what it did to
// the follower's own credential is known.
func (s *Service) Follow(ctx context.Context, c *Caller, f EventFilter, log Follower, after Place, send func(id, kind string, data []byte) error) error {
	audit, err := c.audit(&f)
	if err != nil {
		return err
	}
	from := max(after.Seq, 1) // the rest of its batch may still be to come
	if after.Index < 0 {
		after.Index = math.MaxInt
	}
	for batch, err := range (skipping{s, audit, log}).stream(ctx, from) {
		if err != nil {
			return err
		}
		for i := range batch.Events {
			e := &batch.Events[i]
			if !projections.Matches(audit, e) {
				continue
			}
			for _, item := range itemsOf(e, &f) {
				if e.Seq == after.Seq && item.index <= after.Index {
					continue
				}
				if err := send(fmt.Sprintf("%d.%d", e.Seq, item.index), string(e.Type), item.appendJSON(nil)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
