package agentctl

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
)

// Windows of the root usage, in minutes: the running one and those before it.
const (
	hourWindow = 60
	dayWindow  = 24 * 60
)

// meters hold the windows of usage and of throttles of all agents. An agent's
// meter is filled from the projections when it is first asked for.
type meters struct {
	mu     sync.Mutex
	agents map[string]*meter // guarded by mu
}

func newMeters() *meters { return &meters{agents: map[string]*meter{}} }

// lock gives an agent's meter with its lock held.
func (m *meters) lock(agentID string) *meter {
	for {
		m.mu.Lock()
		one := m.agents[agentID]
		if one == nil {
			one = newMeter()
			m.agents[agentID] = one
		}
		m.mu.Unlock()
		one.mu.Lock()
		if !one.forgotten {
			return one
		}
		one.mu.Unlock() // another takes its place: two would each count for themselves
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
				one.forgotten = true
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
	forgotten bool                      // it is no agent's any more
	minutes   []projections.AgentMinute // ascending
	throttles map[throttleKey][]int64   // of rules that were recalled; each ascending
}

func newMeter() *meter { return &meter{throttles: map[throttleKey][]int64{}} }

type throttleKey struct{ policyID, ruleID string }

func (m *meter) add(minute int64, a *projections.AgentSums) {
	i, found := slices.BinarySearchFunc(m.minutes, minute, func(x projections.AgentMinute, to int64) int { return int(x.Minute - to) })
	if !found {
		m.minutes = slices.Insert(m.minutes, i, projections.AgentMinute{Minute: minute})
	}
	m.minutes[i].Plus(a)
}

// A counting is what one decision, or the events that a batch has of an agent, added to
// the agent's meter before the log had it. It is ended once: it moves to the moment at
// which it was recorded, as a meter that is filled from the log has it, or is given back.
type counting struct {
	meter   *meter
	at      time.Time
	sums    projections.AgentSums
	matches []throttleKey
}

// end gives the counts back, and takes them again at the moment they were recorded; the
// zero time is of what is not in the log. It is called under the meter's lock.
func (c *counting) end(recorded time.Time) {
	m := c.meter
	if recorded.Equal(c.at) {
		return
	}
	for _, key := range c.matches {
		times := m.throttles[key]
		if i, found := slices.BinarySearch(times, c.at.UnixNano()); found { // else it has left every window
			m.throttles[key] = slices.Delete(times, i, i+1)
		}
	}
	minute := minuteOf(c.at)
	if i := slices.IndexFunc(m.minutes, func(x projections.AgentMinute) bool { return x.Minute == minute }); i >= 0 {
		if m.minutes[i].Minus(&c.sums); m.minutes[i].AgentSums == (projections.AgentSums{}) {
			m.minutes = slices.Delete(m.minutes, i, i+1)
		}
	}
	if recorded.IsZero() {
		return
	}
	for _, key := range c.matches {
		m.match(key, recorded)
	}
	m.add(minuteOf(recorded), &c.sums)
}

// done is end for who does not hold the meter's lock.
func (c *counting) done(recorded time.Time) {
	c.meter.mu.Lock()
	defer c.meter.mu.Unlock()
	c.end(recorded)
}

// settle moves minutes that lie ahead of now, because the clock was set back, to now:
// nobody gets a bound anew by that, and they end as if they were of now.
func (m *meter) settle(now time.Time) {
	to := minuteOf(now)
	var ahead projections.AgentSums
	for n := len(m.minutes); n > 0 && m.minutes[n-1].Minute > to+minuteSlack; n-- {
		ahead.Plus(&m.minutes[n-1].AgentSums)
		m.minutes = m.minutes[:n-1]
	}
	if ahead != (projections.AgentSums{}) {
		m.add(to, &ahead)
	}
}

// minuteSlack is what a clock may be set back by without a word.
const minuteSlack = 1

// sum adds up the running minute and the window before it.
func (m *meter) sum(now time.Time, window int64) (total projections.AgentSums) {
	to := minuteOf(now)
	for i := len(m.minutes) - 1; i >= 0 && m.minutes[i].Minute >= to-window; i-- {
		total.Plus(&m.minutes[i].AgentSums)
	}
	return total
}

func (m *meter) usage(now time.Time) event.AgentUsage {
	m.settle(now)
	hour, day := m.sum(now, hourWindow), m.sum(now, dayWindow)
	return event.AgentUsage{Requests1h: hour.Requests, Events1h: hour.Events, Errors1h: hour.Errors, Tokens1h: hour.Tokens, Tokens24h: day.Tokens,
		CostMicros24h: day.CostMicros, ToolCalls1h: hour.ToolCalls, SQLDecisions1h: hour.Decisions, SQLWrites1h: hour.Writes}
}

// count takes one match of a throttled rule. A match over the limit is not
// counted itself, so that who keeps asking is let through again in time. With into nil
// nothing is counted.
func (m *meter) count(policyID string, r *agentrules.Rule, now time.Time, into *counting) (n, retrySeconds int) {
	limit := r.Limit()
	key := throttleKey{policyID, r.ID}
	times := m.within(key, r.Window(), now)
	if len(times) >= limit {
		room := time.Unix(0, times[len(times)-limit]).Add(r.Window()).Sub(now)
		return limit + 1, max(1, int(math.Ceil(room.Seconds())))
	}
	if into != nil {
		m.match(key, now)
		into.matches = append(into.matches, key)
	}
	return len(times) + 1, 0
}

func (m *meter) match(key throttleKey, at time.Time) {
	times, ns := m.throttles[key], at.UnixNano()
	i, _ := slices.BinarySearch(times, ns+1)
	m.throttles[key] = slices.Insert(times, i, ns)
}

// within gives the matches of a rule that lie in its window. Those ahead of now it moves
// to now, as settle does.
func (m *meter) within(key throttleKey, window time.Duration, now time.Time) []int64 {
	times := m.throttles[key]
	ahead, _ := slices.BinarySearch(times, now.Add(minuteSlack*time.Minute).UnixNano()+1)
	for i := ahead; i < len(times); i++ {
		times[i] = now.UnixNano()
		if ahead > 0 {
			times[i] = max(times[i], times[ahead-1])
		}
	}
	from := now.Add(-window).UnixNano()
	i, _ := slices.BinarySearch(times, from+1)
	return times[i:]
}

// prune drops what has left the longest window, and what no limit can reach.
func (m *meter) prune(now time.Time) {
	m.settle(now)
	oldest := minuteOf(now) - dayWindow
	m.minutes = slices.DeleteFunc(m.minutes, func(x projections.AgentMinute) bool { return x.Minute < oldest })
	for key := range m.throttles {
		if kept := m.within(key, 24*time.Hour, now); len(kept) > 0 {
			m.throttles[key] = slices.Clone(kept[max(0, len(kept)-agentrules.MaxThrottle):])
		} else {
			delete(m.throttles, key)
		}
	}
}

// fill takes what an agent did in the last day from the projections, once. It is
// called under the meter's lock.
func (s *Service) fill(ctx context.Context, m *meter, agentID string, now time.Time) error {
	if m.filled {
		return nil
	}
	// The projections follow the log first, while nobody waits for the lock.
	if err := s.view(ctx, func(*projections.View) error { return nil }); err != nil {
		return err
	}
	s.flushing.RLock()
	defer s.flushing.RUnlock()
	return s.view(ctx, func(view *projections.View) error {
		minutes, err := view.AgentMinutes(agentID)
		if err != nil {
			return err
		}
		for i := range minutes {
			m.add(minutes[i].Minute, &minutes[i].AgentSums)
		}
		s.uses.pendingOf(agentID, func(minute int64, requests int) {
			m.add(minute, &projections.AgentSums{Requests: int64(requests)})
		})
		m.filled = true
		m.prune(now)
		return nil
	})
}

// recall takes the matches of throttled rules of an agent that the meter does not have
// from the projections.
func (m *meter) recall(view *projections.View, agentID string, list []agentrules.Application) error {
	for i := range list {
		for j := range list[i].Rules {
			r := &list[i].Rules[j]
			key := throttleKey{list[i].PolicyID, r.ID}
			if _, known := m.throttles[key]; known || r.Limit() == 0 {
				continue
			}
			times, err := view.ThrottleMatches(agentID, key.policyID, key.ruleID, agentrules.MaxThrottle)
			if err != nil {
				return err
			}
			m.throttles[key] = times
		}
	}
	return nil
}

const classWrite = "write"

// usageOf gives an agent's usage at a moment.
func (s *Service) usageOf(ctx context.Context, agentID string, now time.Time) (event.AgentUsage, error) {
	m := s.meters.lock(agentID)
	defer m.mu.Unlock()
	if err := s.fill(ctx, m, agentID, now); err != nil {
		return event.AgentUsage{}, err
	}
	return m.usage(now), nil
}
