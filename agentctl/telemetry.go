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
	"writegate/eventlog/frame"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
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
// agents, unless the rules are others by then.
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

// An askedAgent is an agent as its rules saw it.
type askedAgent struct {
	root         event.AgentRoot
	usage        event.AgentUsage         // before the batch
	applications []agentrules.Application // with bare rules once they were asked
	heads        map[string]projections.AgentPolicyHead
}

// maxBatchCost is what the rules may cost over all events of a batch, in the units
// of agentrules.Rule: half a second at most, and 50 steps for each of 1000 events and 100 rules.
const maxBatchCost = 5_000_000

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
		if err == nil && b.stale {
			continue
		}
		if err == nil && len(answer.Events) > 0 {
			// Until then it is work that others wait for, also when its client has left.
			s.Store.WaitFolded(context.WithoutCancel(ctx), answer.Events[len(answer.Events)-1].Seq)
		}
		return answer, err
	}
}

// write decides the batch and appends it. What it counted is given back unless it is in
// the log, or may be.
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
	answer, err = b.service.write(ctx, b.by, b.aggregates(), b.decide)
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

// evaluate puts the events before the rules of their agents, as things are now and
// under no lock: it may take long, and its context ends it.
func (b *telemetryBatch) evaluate(ctx context.Context) error {
	b.asked, b.tools, b.matches, b.stale = map[string]*askedAgent{}, map[string]agentrules.Tool{}, map[int]*agentrules.EventMatches{}, false
	byAgent, order, err := b.gather(ctx)
	if err != nil {
		return err
	}
	cost, bound, err := b.weigh(ctx, byAgent, order)
	if err != nil || b.stale {
		return err
	}
	if cost > maxBatchCost {
		return fault.New(fault.OversizedRequest, "The rules of its agents could take %d steps over the events of the batch, and at most %d are taken at once. Send fewer events at once, or apply conditions with fewer patterns and lists.", cost, maxBatchCost).
			With("got", cost).With("max", maxBatchCost)
	}
	done, err := b.service.asking.take(ctx, b.by.Project, int64(max(1, cost)))
	if err != nil {
		return err
	}
	defer done()
	release, err := b.service.takeMemory(ctx, b.by.Project, bound)
	if err != nil {
		return err
	}
	defer release()
	for _, id := range order {
		a := b.asked[id]
		bare, err := b.compiled(ctx, a)
		if err != nil || b.stale {
			return err
		}
		if a.usage, err = b.service.usageOf(ctx, id, b.now); err != nil {
			return faultOf(err)
		}
		in := agentrules.EventInput{Agent: a.root, Usage: a.usage, Applications: a.applications}
		for _, it := range byAgent[id] {
			if ctx.Err() != nil {
				return fault.New(fault.AuditUnavailable, "The request ended while its events were looked at. Nothing was written; send them again.").
					With("outcome", "not_written").Because(context.Cause(ctx))
			}
			in.Event, in.Tool = &it.event, b.tools[it.event.Tool.ID]
			b.matches[it.outcome.Index] = agentrules.MatchEvent(&in)
		}
		for i := range a.applications {
			a.applications[i].Rules = bare[i] // what waits for the agent's lock holds no more
		}
	}
	return nil
}

// weigh is what the rules could cost over the events, in steps, and what the policies
// take compiled, by their ids.
func (b *telemetryBatch) weigh(ctx context.Context, byAgent map[string][]*telemetryItem, order []string) (steps int, bound map[string]int, err error) {
	s := b.service
	bound = map[string]int{}
	for _, id := range order {
		s.memoryOf(b.asked[id].heads, bound)
	}
	done, err := s.takeMemory(ctx, b.by.Project, bound) // those that nobody has weighed are compiled
	if err != nil {
		return 0, nil, err
	}
	defer done()
	memory := 0
	clear(bound)
	err = s.view(ctx, func(view *projections.View) error {
		for _, id := range order {
			each, list := 0, b.asked[id].applications
			for i := range list {
				w, err := s.compiled.weightOf(ctx, view, b.by.Project, list[i].PolicyID, list[i].Revision)
				if err != nil {
					return err
				}
				if _, counted := bound[list[i].PolicyID]; !counted {
					memory += w.memory
				}
				bound[list[i].PolicyID] = w.memory
				each += w.steps[1]
			}
			steps += len(byAgent[id]) * min(each, policy.MaxDecisionCost)
			if memory > maxCompiledMemory && len(order) > 1 {
				return fault.New(fault.OversizedRequest, "The policies of its agents take more than %d MiB together where their rules are asked. Send the events of fewer agents at once.", maxCompiledMemory>>20)
			}
		}
		return nil
	})
	return steps, bound, b.changed(err)
}

// changed makes the batch stale where a policy has another revision by now.
func (b *telemetryBatch) changed(err error) error {
	if errors.Is(err, errOtherRevision) {
		b.stale = true
		return nil
	}
	return err
}

// compiled gives the applications of an agent their rules, and the bare ones of each.
func (b *telemetryBatch) compiled(ctx context.Context, a *askedAgent) (bare [][]agentrules.Rule, err error) {
	err = b.service.view(ctx, func(view *projections.View) error {
		for i := range a.applications {
			x := &a.applications[i]
			p, err := b.service.compiled.of(ctx, view, b.by.Project, x.PolicyID, x.Revision)
			if err != nil {
				return err
			}
			x.Rules, bare = p.rules, append(bare, p.bare)
		}
		return nil
	})
	return bare, b.changed(err)
}

// gather finds the events that would be accepted now and all that the rules of their
// agents read but usage.
func (b *telemetryBatch) gather(ctx context.Context) (byAgent map[string][]*telemetryItem, order []string, err error) {
	s := b.service
	b.begin(s.Now())
	err = s.view(ctx, func(view *projections.View) error {
		if byAgent, order, err = b.admit(view); err != nil {
			return err
		}
		for _, id := range order {
			agent, _, err := view.Agent(b.by.Project, id)
			if err != nil {
				return err
			}
			a := new(askedAgent)
			if a.applications, a.heads, err = binding(view, b.by.Project, id); err != nil {
				return err
			}
			if a.root, err = agentRoot(view, &agent, b.now); err != nil {
				return err
			}
			b.asked[id] = a
			for _, it := range byAgent[id] {
				id := it.event.Tool.ID
				if _, looked := b.tools[id]; looked {
					continue
				}
				if b.tools[id], err = toolRoot(view, b.by.Project, id, b.now); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return byAgent, order, err
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

// outdated tells whether an agent's rules, or what they read beside usage, are others
// than those that were asked about its events.
func (b *telemetryBatch) outdated(view *projections.View, id string, items []*telemetryItem) (bool, error) {
	a := b.asked[id]
	if a == nil {
		return true, nil
	}
	agent, _, err := view.Agent(b.by.Project, id)
	if err != nil {
		return false, err
	}
	root, err := agentRoot(view, &agent, b.now)
	if err != nil {
		return false, err
	}
	list, _, err := binding(view, b.by.Project, id)
	if err != nil {
		return false, err
	}
	if root != a.root || !slices.EqualFunc(list, a.applications, func(x, y agentrules.Application) bool {
		return x.EffectivePolicy == y.EffectivePolicy && x.Observe == y.Observe
	}) {
		return true, nil
	}
	looked := map[string]bool{}
	for _, it := range items {
		if b.matches[it.outcome.Index] == nil {
			return true, nil
		}
		if id := it.event.Tool.ID; !looked[id] {
			looked[id] = true
			tool, err := toolRoot(view, b.by.Project, id, b.now)
			if err != nil || tool != b.tools[id] {
				return true, err
			}
		}
	}
	return false, nil
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
	ruleRoom   = agentrules.OutcomeBytes
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
	p.Usage = append(p.Usage, event.AgentUsageRead{AgentID: it.event.AgentID, Usage: b.asked[it.event.AgentID].usage})
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
