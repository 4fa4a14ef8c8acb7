package agentctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate"
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

// A telemetryBatch is a batch on its way. Its events are put before the rules
// first, under no lock; then what came of that is decided under the locks of its
// agents, unless the rules are others by then, and appended, unless they changed since.
type telemetryBatch struct {
	service *Service
	by      *Asker
	sent    []telemetryItem // as they were read

	// Of the last evaluation.
	asked   map[string]*askedAgent // agents of accepted events, by id
	tools   map[string]agentrules.Tool
	matches map[int]*agentrules.EventMatches // by the index of the event
	stale   bool                             // the rules, or what they read, changed before the locks were taken

	// Of the decision.
	id    string
	now   time.Time
	items []telemetryItem
	ends  []pending // of agents that a rule suspends

	counted []*counting // what it added to the meters of its agents
}

// BatchSize refuses a batch of telemetry with fewer or more events than are taken.
func BatchSize(events int) error {
	if events == 0 || events > MaxTelemetryEvents {
		return InvalidFields(FieldError{"/events", "must have 1 to 1000 events"})
	}
	return nil
}

// Telemetry is POST /v1/telemetry: what is good in a batch is kept, in one
// append, and the rules that run at telemetry say what they find.
//
// Errors: all_events_rejected; oversized_request where the batch with its
// outcomes is more than one append takes, or the rules could take too long over it.
func (s *Service) Telemetry(ctx context.Context, by *Asker, sent []SentEvent) (Answer, error) {
	if err := BatchSize(len(sent)); err != nil {
		return Answer{}, err
	}
	b := telemetryBatch{service: s, by: by, sent: make([]telemetryItem, len(sent))}
	for i := range sent {
		b.read(i, &sent[i])
	}
	done, err := s.folding.take(ctx, by.Project, costOf(sent))
	if err != nil {
		return Answer{}, err
	}
	defer done()
	for {
		if err := b.evaluate(ctx); err != nil {
			return Answer{}, err
		}
		if b.stale {
			continue
		}
		answer, err := b.write(ctx)
		for errors.Is(err, sqlgate.ErrPolicyChanged) {
			answer, err = b.write(ctx) // which finds out whether it changed for its agents
		}
		if err == nil && b.stale {
			continue
		}
		if err == nil && len(answer.Events) > 0 {
			// Until then it is work that others wait for, also when its client has left. It is
			// written, whatever comes of the wait.
			_ = s.Store.WaitFolded(context.WithoutCancel(ctx), answer.Events[len(answer.Events)-1].Seq)
		}
		return answer, err
	}
}

// write decides the batch and appends it. What it counted is given back unless it is in
// the log, or may be.
//
// Errors: sqlgate.ErrPolicyChanged where a policy or a tool of the project changed
// before the append. Nothing was written.
func (b *telemetryBatch) write(ctx context.Context) (answer Answer, err error) {
	recorded := false
	defer func() {
		if !recorded {
			for _, c := range b.counted {
				c.done(time.Time{})
			}
		}
		b.counted = nil
	}()
	shared, project := &b.service.shared, b.by.Project
	seen := shared.of(project)
	answer, err = b.service.writeWithin(ctx, b.by, b.aggregates(), func(write func() error) error { return shared.unchanged(project, seen, write) }, b.decide)
	recorded = err == nil && len(answer.Events) > 0 || commands.MayBeWritten(err)
	return answer, err
}

// read judges what an event alone can be judged by.
func (b *telemetryBatch) read(i int, sent *SentEvent) {
	it := &b.sent[i]
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

// begin takes the events anew as they were read.
func (b *telemetryBatch) begin(now time.Time) {
	b.id, b.now = event.NewIDOf(event.BatchIDKind, now), now
	b.items, b.ends = slices.Clone(b.sent), nil
}

// aggregates are what a batch locks: the agents of its project that it was found to
// have events of. An id of an event is its agent's own, so that two batches with the
// same event don't both bring it.
func (b *telemetryBatch) aggregates() (keys []string) {
	for id := range b.asked {
		keys = append(keys, commands.AgentKey(b.by.Project, id))
	}
	return keys
}

// decide is the batch under its locks. Where the rules would have been asked about
// something else now, it is stale and changes nothing.
func (b *telemetryBatch) decide(view *projections.View, now time.Time) (plan, error) {
	b.begin(now)
	byAgent, order, err := b.admit(view)
	if err != nil {
		return plan{}, err
	}
	for _, id := range order {
		if b.stale, err = b.outdated(view, id, byAgent[id]); err != nil || b.stale {
			return plan{}, err
		}
	}
	for _, id := range order {
		if err := b.settle(view, byAgent[id]); err != nil {
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

// settle is what the rules said of the events of one agent. Throttles are counted
// under the agent's meter, in the order of the events, and then the events themselves.
func (b *telemetryBatch) settle(view *projections.View, items []*telemetryItem) error {
	s, id := b.service, items[0].event.AgentID
	agent, _, err := view.Agent(b.by.Project, id)
	if err != nil {
		return err
	}
	m := s.meters.lock(id)
	defer m.mu.Unlock()
	if err := s.fill(context.Background(), m, id, b.now); err != nil {
		return err
	}
	if err := m.recall(view, id, b.asked[id].applications); err != nil {
		return err
	}
	counted := &counting{meter: m, at: b.now}
	b.counted = append(b.counted, counted)
	var sums projections.AgentSums
	count := func(policyID string, r *agentrules.Rule) (int, int) { return m.count(policyID, r, b.now, counted) }
	for _, it := range items {
		found := b.matches[it.outcome.Index].Result(count)
		it.outcome.Evaluated, it.outcome.Violations, it.outcome.Throttle = found.Evaluated, found.Violations, found.Throttle
		if found.Suspend != nil && agent.Status == event.AgentActive {
			if err := b.suspend(view, &agent, it, found.Suspend); err != nil {
				return err
			}
		}
		one := projections.SumsOf(&it.event)
		sums.Plus(&one)
	}
	m.add(minuteOf(b.now), &sums)
	counted.sums = sums
	return nil
}

// suspend ends an agent in the append of the batch.
func (b *telemetryBatch) suspend(view *projections.View, agent *projections.Agent, it *telemetryItem, v *event.Violation) error {
	end := event.AgentDeactivated{AgentID: agent.AgentID, Cause: event.CausePolicy, PolicyID: v.PolicyID, RuleID: v.RuleID, Reason: v.ReasonCode}
	events, err := deactivation(view, agent, &end, b.now, mostRevoked-len(b.ends))
	b.ends, it.suspend = append(b.ends, events...), v
	return err
}
