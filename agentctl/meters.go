package agentctl

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
)

// amounts is what an agent did in one minute, or in a window.
type amounts struct {
	requests, events, errors, tokens, costMicros, toolCalls, decisions, writes int64
}

func (a *amounts) plus(b *amounts) {
	a.requests += b.requests
	a.events += b.events
	a.errors += b.errors
	a.tokens += b.tokens
	a.costMicros += b.costMicros
	a.toolCalls += b.toolCalls
	a.decisions += b.decisions
	a.writes += b.writes
}

// Windows of the root usage, in minutes: the running one and those before it.
const (
	hourWindow = 60
	dayWindow  = 24 * 60
)

// meters hold the windows of usage and of throttles of all agents. An agent's
// meter is filled from the log when it is first asked for.
type meters struct {
	mu     sync.Mutex
	agents map[string]*meter // guarded by mu
}

func newMeters() *meters { return &meters{agents: map[string]*meter{}} }

func (m *meters) of(agentID string) *meter {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.agents[agentID]
	if one == nil {
		one = &meter{throttles: map[throttleKey][]int64{}}
		m.agents[agentID] = one
	}
	return one
}

// add counts for an agent whose meter is filled; for others the log will tell.
func (m *meters) add(agentID string, at time.Time, a amounts) {
	one := m.of(agentID)
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.filled {
		one.add(minuteOf(at), &a)
	}
}

// forget drops what has left every window.
func (m *meters) forget(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, one := range m.agents {
		if one.mu.TryLock() { // one that is in use is not idle
			one.prune(now)
			if one.filled && len(one.minutes) == 0 && len(one.throttles) == 0 {
				delete(m.agents, id)
			}
			one.mu.Unlock()
		}
	}
}

// A meter is one agent's windows. A decision reads and counts under one lock,
// so that two statements at once can't both be the last one that a throttle
// lets through.
type meter struct {
	mu        sync.Mutex
	filled    bool
	minutes   []minuteAmounts // ascending
	throttles map[throttleKey][]int64
	fresh     *meter // what was read so far of one that is not filled
	recalled  uint64 // the last event in fresh
}

type minuteAmounts struct {
	minute int64
	amounts
}

type throttleKey struct{ policyID, ruleID string }

func (m *meter) add(minute int64, a *amounts) {
	i, found := slices.BinarySearchFunc(m.minutes, minute, func(x minuteAmounts, to int64) int { return int(x.minute - to) })
	if !found {
		m.minutes = slices.Insert(m.minutes, i, minuteAmounts{minute: minute})
	}
	m.minutes[i].plus(a)
}

// sum adds up the running minute and the window before it.
func (m *meter) sum(now time.Time, window int64) (total amounts) {
	to := minuteOf(now)
	for i := len(m.minutes) - 1; i >= 0 && m.minutes[i].minute >= to-window; i-- {
		if m.minutes[i].minute <= to {
			total.plus(&m.minutes[i].amounts)
		}
	}
	return total
}

func (m *meter) usage(now time.Time) event.AgentUsage {
	hour, day := m.sum(now, hourWindow), m.sum(now, dayWindow)
	return event.AgentUsage{Requests1h: hour.requests, Events1h: hour.events, Errors1h: hour.errors, Tokens1h: hour.tokens, Tokens24h: day.tokens,
		CostMicros24h: day.costMicros, ToolCalls1h: hour.toolCalls, SQLDecisions1h: hour.decisions, SQLWrites1h: hour.writes}
}

// count takes one match of a throttled rule. A match over the limit is not
// counted itself, so that who keeps asking is let through again in time.
func (m *meter) count(policyID string, r *agentrules.Rule, now time.Time, keep bool) (n, retrySeconds int) {
	limit := r.Limit()
	key := throttleKey{policyID, r.ID}
	times := m.within(key, r.Window(), now)
	if len(times) >= limit {
		room := time.Unix(0, times[len(times)-limit]).Add(r.Window()).Sub(now)
		return limit + 1, max(1, int(math.Ceil(room.Seconds())))
	}
	if keep {
		m.throttles[key] = append(m.throttles[key], now.UnixNano())
	}
	return len(times) + 1, 0
}

// within gives the matches of a rule that lie in its window.
func (m *meter) within(key throttleKey, window time.Duration, now time.Time) []int64 {
	times := m.throttles[key]
	from := now.Add(-window).UnixNano()
	i, _ := slices.BinarySearch(times, from+1)
	return times[i:]
}

// prune drops what has left the longest window.
func (m *meter) prune(now time.Time) {
	oldest := minuteOf(now) - dayWindow
	m.minutes = slices.DeleteFunc(m.minutes, func(x minuteAmounts) bool { return x.minute < oldest })
	for key := range m.throttles {
		if kept := m.within(key, 24*time.Hour, now); len(kept) > 0 {
			m.throttles[key] = slices.Clone(kept)
		} else {
			delete(m.throttles, key)
		}
	}
}

// fillTime bounds how long one request reads of an agent's last day.
const fillTime = 2 * time.Second

// fill reads an agent's last day from the log, once. It is called under the
// meter's lock. What does not fit into fillTime is read on by the agent's next request;
// until then rules can't be asked, and the error is audit_unavailable.
func (s *Service) fill(ctx context.Context, m *meter, agentID string, now time.Time) error {
	if m.filled {
		return nil
	}
	if m.fresh == nil {
		m.fresh = &meter{throttles: map[throttleKey][]int64{}}
	}
	ctx, cancel := context.WithTimeout(ctx, fillTime)
	defer cancel()
	f := projections.AuditFilter{AgentID: agentID, Since: now.Add(-(dayWindow + 1) * time.Minute),
		EventTypes: []string{string(event.TypeDecisionRecorded), string(event.TypeTelemetryReceived), string(event.TypeUsageRecorded)}}
	read := func() error {
		f.FromSeq = m.recalled + 1
		err := s.eachEvent(ctx, f, func(e *event.Envelope) error {
			if err := m.fresh.recall(e, agentID); err != nil {
				return err
			}
			m.recalled = e.Seq
			return nil
		})
		if err != nil && ctx.Err() != nil {
			err = fault.New(fault.AuditUnavailable, "The service is still reading what the agent did in the last day, so its rules can't be asked. Nothing was executed; send the request again in a moment.").
				With("outcome", "not_written").Because(err)
		}
		return err
	}
	if err := read(); err != nil { // nearly all of it, while nobody waits for the lock
		return err
	}
	s.flushing.RLock()
	defer s.flushing.RUnlock()
	if err := read(); err != nil {
		return err
	}
	pending := s.uses.pendingOf(func(k useKey) bool { return k.agent == agentID && projections.IsToken(k.credential) })
	m.fresh.add(minuteOf(now), &amounts{requests: int64(pending.Requests)})
	m.minutes, m.throttles, m.filled, m.fresh = m.fresh.minutes, m.fresh.throttles, true, nil
	m.prune(now)
	return nil
}

// recall counts an event of the log.
func (m *meter) recall(e *event.Envelope, agentID string) error {
	switch e.Type {
	case event.TypeDecisionRecorded:
		var p event.DecisionRecorded
		if err := e.Parse(&p); err != nil {
			return err
		}
		if p.Run != event.RunDescribe { // the request's own decision comes behind it
			m.recallDecision(e, &p)
		}
	case event.TypeTelemetryReceived:
		var p event.TelemetryReceived
		if err := e.Parse(&p); err != nil {
			return err
		}
		m.recallTelemetry(e, &p, agentID)
	case event.TypeUsageRecorded:
		var p event.UsageRecorded
		if err := e.Parse(&p); err != nil {
			return err
		}
		for i := range p.Credentials {
			if u := &p.Credentials[i]; u.AgentID == agentID && projections.IsToken(u.CredentialID) {
				m.add(minuteOf(time.Unix(0, p.Minute)), &amounts{requests: int64(u.Requests)})
			}
		}
	}
	return nil
}

func (m *meter) recallDecision(e *event.Envelope, p *event.DecisionRecorded) {
	a := amounts{decisions: 1}
	if p.Facts.Class == classWrite {
		a.writes = 1
	}
	m.add(minuteOf(e.Time), &a)
	if p.AgentLayer == nil {
		return
	}
	m.recallThrottles(e, p.AgentLayer.Throttle)
}

func (m *meter) recallThrottles(e *event.Envelope, counts []event.ThrottleCount) {
	for _, t := range counts {
		if key := (throttleKey{t.PolicyID, t.RuleID}); t.Count <= t.Limit {
			m.throttles[key] = append(m.throttles[key], e.Time.UnixNano())
		}
	}
}

// recallTelemetry counts a batch: its events are the accepted ones of its
// outcomes, in the same order.
func (m *meter) recallTelemetry(e *event.Envelope, p *event.TelemetryReceived, agentID string) {
	next := 0
	for i := range p.Outcomes {
		o := &p.Outcomes[i]
		if o.Status != event.TelemetryAccepted || next == len(p.Events) {
			continue
		}
		t := &p.Events[next]
		next++
		if t.AgentID == agentID {
			a := amountsOf(t)
			m.add(minuteOf(e.Time), &a)
			m.recallThrottles(e, o.Throttle)
		}
	}
}

const classWrite = "write"

// amountsOf is what one telemetry event adds.
func amountsOf(t *event.TelemetryEvent) amounts {
	a := amounts{events: 1, tokens: t.Usage.InputTokens + t.Usage.OutputTokens, costMicros: t.Usage.CostMicros}
	if t.Failed() {
		a.errors = 1
	}
	if t.Type == event.TelemetryToolCall {
		a.toolCalls = 1
	}
	return a
}

// usageOf gives an agent's usage at a moment.
func (s *Service) usageOf(ctx context.Context, agentID string, now time.Time) (event.AgentUsage, error) {
	m := s.meters.of(agentID)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := s.fill(ctx, m, agentID, now); err != nil {
		return event.AgentUsage{}, err
	}
	return m.usage(now), nil
}
