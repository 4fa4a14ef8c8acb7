package agentctl

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
)

// A telemetryItem is one event of a batch on its way: its outcome, and where it
// is accepted what is kept of it.
type telemetryItem struct {
	outcome event.TelemetryOutcome
	event   event.TelemetryEvent
	bytes   int
	suspend *event.Violation
}

func (it *telemetryItem) rejected() bool { return it.outcome.Status == event.TelemetryRejected }

func (it *telemetryItem) accepted() bool { return it.outcome.Status == event.TelemetryAccepted }

// reject says what is wrong; pointer is inside the event.
func (it *telemetryItem) reject(code, pointer, message string) {
	o := &it.outcome
	o.Status, o.ErrorCode, o.Message = event.TelemetryRejected, code, message
	o.Pointer = fmt.Sprintf("/events/%d%s", o.Index, pointer)
}

// A telemetryBatch is a batch while it is decided.
type telemetryBatch struct {
	service *Service
	by      *Asker
	id      string
	now     time.Time
	items   []telemetryItem
	usage   map[string]event.AgentUsage // of each agent, before the batch
	ends    []pending                   // of agents that a rule suspends
}

// Telemetry is POST /v1/telemetry: what is good in a batch is kept, in one
// append, and the rules that run at telemetry say what they find.
//
// Errors: all_events_rejected; oversized_request where the batch with its
// outcomes is more than one append takes.
func (s *Service) Telemetry(ctx context.Context, by *Asker, sent []SentEvent) (Answer, error) {
	if len(sent) == 0 || len(sent) > MaxTelemetryEvents {
		return Answer{}, InvalidFields(FieldError{"/events", "must have 1 to 1000 events"})
	}
	b := telemetryBatch{service: s, by: by, items: make([]telemetryItem, len(sent)), usage: map[string]event.AgentUsage{}}
	for i := range sent {
		b.read(i, &sent[i])
	}
	answer, err := s.write(ctx, by, b.aggregates(), b.decide)
	if err == nil && len(answer.Events) > 0 {
		b.meter()
	}
	return answer, err
}

// read judges what an event alone can be judged by.
func (b *telemetryBatch) read(i int, sent *SentEvent) {
	it := &b.items[i]
	it.outcome.Index, it.bytes = i, sent.Bytes
	switch {
	case sent.Bytes > MaxTelemetryBytes:
		it.reject(eventTooLarge, "", "The event has more than 64 KiB.")
		return
	case sent.Problem != nil:
		it.reject(eventInvalid, sent.Problem.Pointer, sent.Problem.Message)
		return
	}
	t, problems := sent.Input.read()
	it.event = t
	if plainText(t.ID, maxTelemetryID) {
		it.outcome.ID = t.ID
	}
	if len(problems) > 0 {
		it.reject(eventInvalid, problems[0].Pointer, "It "+problems[0].Message+".")
		return
	}
	if it.event.AgentID == "" {
		it.event.AgentID = b.by.AgentID
	}
	switch only := b.by.agentOnly(); {
	case it.event.AgentID == "":
		it.reject(agentMissing, "/agent_id", "The event names no agent, and a project key speaks for none.")
	case only != "" && it.event.AgentID != only:
		it.reject(agentNotOwn, "/agent_id", "An agent's token sends events of that agent alone.")
	}
}

// aggregates are what a batch locks: its agents, and the ids that came with it,
// so that two batches with the same event don't both bring it.
func (b *telemetryBatch) aggregates() (keys []string) {
	for i := range b.items {
		it := &b.items[i]
		if it.rejected() {
			continue
		}
		keys = append(keys, commands.AgentKey(it.event.AgentID))
		if it.event.ID != "" {
			digest := sha256.Sum256([]byte(it.event.ID))
			keys = append(keys, "telemetry/"+b.by.Project+"/"+hex.EncodeToString(digest[:1]))
		}
	}
	return keys
}

func (b *telemetryBatch) decide(view *projections.View, now time.Time) (plan, error) {
	b.id, b.now = event.NewIDOf(event.BatchIDKind, now), now
	byAgent, order, err := b.admit(view)
	if err != nil {
		return plan{}, err
	}
	for _, id := range order {
		if err := b.ask(view, byAgent[id]); err != nil {
			return plan{}, err
		}
	}
	body := b.body()
	if body.Rejected == len(b.items) {
		return plan{}, fault.New(fault.AllEventsRejected, "No event of the batch was taken. details.results says of each what is wrong; correct them and send them again.").With("results", body.Results)
	}
	p := plan{answer: Answer{Status: body.status(), Body: body}, rebuilt: true}
	if body.Accepted == 0 {
		return p, nil
	}
	records, err := b.records()
	if err != nil {
		return plan{}, err
	}
	if p.events = append(records, b.ends...); len(p.events) > eventlog.MaxGroupEvents {
		return plan{}, tooMuchTelemetry()
	}
	p.after = func(refs []commands.EventRef) { body.FirstSeq, body.LastSeq = &refs[0].Seq, &refs[len(records)-1].Seq }
	return p, nil
}

func (b *telemetryBatch) body() *TelemetryBody {
	outcomes, suspended := make([]event.TelemetryOutcome, len(b.items)), []string{}
	for i := range b.items {
		it := &b.items[i]
		outcomes[i] = it.outcome
		if it.suspend != nil {
			suspended = append(suspended, it.event.AgentID)
		}
	}
	return telemetryBody(b.id, outcomes, suspended)
}

// admit tells accepted events from duplicates and rejected ones, and gives the
// accepted ones of each agent.
func (b *telemetryBatch) admit(view *projections.View) (map[string][]*telemetryItem, []string, error) {
	agents, byAgent, ids := map[string]string{}, map[string][]*telemetryItem{}, map[sentID]bool{}
	var order []string
	for i := range b.items {
		it := &b.items[i]
		if it.rejected() {
			continue
		}
		if err := b.admitOne(view, it, agents, ids); err != nil {
			return nil, nil, err
		}
		if !it.accepted() {
			continue
		}
		if byAgent[it.event.AgentID] == nil {
			order = append(order, it.event.AgentID)
		}
		byAgent[it.event.AgentID] = append(byAgent[it.event.AgentID], it)
	}
	return byAgent, order, nil
}

// A sentID tells events apart: an id is its agent's own.
type sentID struct{ agent, id string }

// admitOne judges an event by what the log knows. agents holds the statuses
// that were looked up, ids those of the batch.
func (b *telemetryBatch) admitOne(view *projections.View, it *telemetryItem, agents map[string]string, ids map[sentID]bool) error {
	t := &it.event
	if t.ID != "" {
		sent, err := view.TelemetrySent(b.by.Project, t.AgentID, t.ID, b.now)
		if err != nil {
			return err
		}
		if sent || ids[sentID{t.AgentID, t.ID}] {
			it.outcome.Status = event.TelemetryDuplicate
			return nil
		}
	}
	if _, looked := agents[t.AgentID]; !looked {
		a, _, err := view.Agent(b.by.Project, t.AgentID)
		if err != nil {
			return err
		}
		agents[t.AgentID] = a.Status
	}
	switch agents[t.AgentID] {
	case "":
		it.reject(agentUnknown, "/agent_id", "There is no agent with this id in your project.")
		return nil
	case event.AgentInactive:
		it.reject(agentNotActive, "/agent_id", "The agent is deactivated.")
		return nil
	}
	if t.Timestamp == 0 {
		t.Timestamp = b.now.UnixNano()
	}
	if at := time.Unix(0, t.Timestamp); at.Before(b.now.Add(-telemetryBack)) || at.After(b.now.Add(telemetryAhead)) {
		it.reject(timestampOutOfRange, "/timestamp", "The time is more than 7 days ago, or more than 5 minutes ahead.")
		return nil
	}
	if t.ID == "" {
		t.ID = fmt.Sprintf("%s.%d", b.id, it.outcome.Index)
	}
	ids[sentID{t.AgentID, t.ID}], it.outcome.ID, it.outcome.Status = true, t.ID, event.TelemetryAccepted
	return nil
}

// ask puts the events of one agent before its rules. Throttles are counted under
// the agent's meter, in the order of the events.
func (b *telemetryBatch) ask(view *projections.View, items []*telemetryItem) error {
	s, id := b.service, items[0].event.AgentID
	agent, _, err := view.Agent(b.by.Project, id)
	if err != nil {
		return err
	}
	in := agentrules.EventInput{}
	if in.Applications, err = s.effective(view, &agent); err != nil {
		return err
	}
	if in.Agent, err = agentRoot(view, &agent, b.now); err != nil {
		return err
	}
	m := s.meters.of(id)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := s.fill(context.Background(), m, id, b.now); err != nil {
		return err
	}
	in.Usage = m.usage(b.now)
	in.Count = func(policyID string, r *agentrules.Rule) (int, int) { return m.count(policyID, r, b.now, true) }
	b.usage[id] = in.Usage
	for _, it := range items {
		if in.Tool, err = toolRoot(view, b.by.Project, it.event.Tool.ID, b.now); err != nil {
			return err
		}
		in.Event = &it.event
		found := agentrules.EvaluateEvent(&in)
		it.outcome.Evaluated, it.outcome.Violations, it.outcome.Throttle = found.Evaluated, found.Violations, found.Throttle
		if found.Suspend != nil && agent.Status == event.AgentActive {
			if err := b.suspend(view, &agent, it, found.Suspend); err != nil {
				return err
			}
		}
	}
	return nil
}

// suspend ends an agent in the append of the batch.
func (b *telemetryBatch) suspend(view *projections.View, agent *projections.Agent, it *telemetryItem, v *event.Violation) error {
	end := event.AgentDeactivated{AgentID: agent.AgentID, Cause: event.CausePolicy, PolicyID: v.PolicyID, RuleID: v.RuleID, Reason: v.ReasonCode}
	events, err := deactivation(view, agent, &end, b.now)
	b.ends, it.suspend = append(b.ends, events...), v
	return err
}

// Sizes of records. What is estimated is never less than what is written.
const (
	recordRoom = frame.MaxRecord - 64<<10 // for the envelope and the origin
	groupRoom  = eventlog.MaxGroupBytes - 1<<20
	itemRoom   = 768 // fields that no client sends: ids, times, names of fields
	usageRoom  = 512
	ruleRoom   = 256
)

func (it *telemetryItem) size() int {
	n := itemRoom + len(it.outcome.ID) + len(it.outcome.Message) + len(it.outcome.Pointer)
	if it.accepted() {
		n += it.bytes + usageRoom
	}
	for _, v := range it.outcome.Violations {
		n += ruleRoom + len(v.PolicyID) + len(v.RuleID) + len(v.Action) + len(v.ReasonCode)
	}
	for _, t := range it.outcome.Throttle {
		n += ruleRoom + len(t.PolicyID) + len(t.RuleID)
	}
	return n
}

// records are the events of the batch: one, or several where one would pass the
// limit of a record.
func (b *telemetryBatch) records() ([]pending, error) {
	var parts []*event.TelemetryReceived
	size, total := 0, 0
	for i := range b.items {
		it := &b.items[i]
		n := it.size()
		total += n
		if n > recordRoom || total > groupRoom {
			return nil, tooMuchTelemetry()
		}
		if len(parts) == 0 || size+n > recordRoom {
			parts, size = append(parts, &event.TelemetryReceived{BatchID: b.id}), 0
		}
		size += n
		b.add(parts[len(parts)-1], it)
	}
	records := make([]pending, len(parts))
	for i, p := range parts {
		if len(parts) > 1 {
			p.Part, p.Parts = i+1, len(parts)
		}
		records[i] = pending{agentID: b.agentOf(p), operation: "receive_telemetry", payload: p}
	}
	return records, nil
}

// add puts an event into a record, with what was read of its agent.
func (b *telemetryBatch) add(p *event.TelemetryReceived, it *telemetryItem) {
	p.Outcomes = append(p.Outcomes, it.outcome)
	switch {
	case it.rejected():
		p.Rejected++
		return
	case !it.accepted():
		p.Duplicates++
		return
	}
	p.Events = append(p.Events, it.event)
	if it.suspend != nil {
		p.Suspended = append(p.Suspended, it.event.AgentID)
	}
	for _, u := range p.Usage {
		if u.AgentID == it.event.AgentID {
			return
		}
	}
	p.Usage = append(p.Usage, event.AgentUsageRead{AgentID: it.event.AgentID, Usage: b.usage[it.event.AgentID]})
}

// agentOf is the agent of a record, where all of its events are of one.
func (b *telemetryBatch) agentOf(p *event.TelemetryReceived) string {
	if len(p.Usage) == 1 {
		return p.Usage[0].AgentID
	}
	return ""
}

func tooMuchTelemetry() error {
	return fault.New(fault.OversizedRequest, "The batch, with what the rules say of it, is more than one append to the log takes. Send fewer events at once.")
}

// meter counts what was accepted, now that the log has it.
func (b *telemetryBatch) meter() {
	sums := map[string]amounts{}
	for i := range b.items {
		if it := &b.items[i]; it.accepted() {
			sum, one := sums[it.event.AgentID], amountsOf(&it.event)
			sum.plus(&one)
			sums[it.event.AgentID] = sum
		}
	}
	for id, sum := range sums {
		b.service.meters.add(id, b.now, sum)
	}
}
