package projections

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"writegate/eventlog/event"
)

// What an agent did, and which of its matches throttles count, is kept by minutes too:
// the windows of its rules are read from there after a start. They reach back a day at
// most, so the record of a minute takes the place of the one minuteSlots before it.
const minuteSlots = 2048

// AgentSums is what an agent did in a minute, or in a window, by when it was received.
type AgentSums struct {
	Requests, Events, Errors, Tokens, CostMicros, ToolCalls, Decisions, Writes int64
}

func (s *AgentSums) numbers() []*int64 {
	return []*int64{&s.Requests, &s.Events, &s.Errors, &s.Tokens, &s.CostMicros, &s.ToolCalls, &s.Decisions, &s.Writes}
}

// Plus adds what another minute has.
func (s *AgentSums) Plus(o *AgentSums) {
	plus(s.numbers(), o.numbers())
}

// Minus takes away what Plus added; a sum at the greatest number stays there, since
// how much more it was is not known.
func (s *AgentSums) Minus(o *AgentSums) {
	from := s.numbers()
	for i, n := range o.numbers() {
		if *from[i] != math.MaxInt64 {
			*from[i] -= *n
		}
	}
}

// SumsOf is what one telemetry event adds.
func SumsOf(t *event.TelemetryEvent) AgentSums {
	s := AgentSums{Events: 1, Tokens: t.Usage.InputTokens + t.Usage.OutputTokens, CostMicros: t.Usage.CostMicros}
	if t.Failed() {
		s.Errors = 1
	}
	if t.Type == event.TelemetryToolCall {
		s.ToolCalls = 1
	}
	return s
}

// An AgentMinute is what an agent did in one minute, counted from 1970.
type AgentMinute struct {
	Minute int64
	AgentSums
}

func (m *AgentMinute) walk(c *codec) {
	number(c, &m.Minute)
	for _, n := range m.numbers() {
		number(c, n)
	}
}

// A throttleMinute are the matches of one throttled rule that were counted in one minute.
type throttleMinute struct {
	minute  int64
	matches []throttleMatches
}

type throttleMatches struct{ at, count int64 } // ns since 1970; matches of one batch are of one moment

func (m *throttleMinute) walk(c *codec) {
	number(c, &m.minute)
	n := c.length(len(m.matches))
	if c.reading {
		m.matches = make([]throttleMatches, n)
	}
	for i := range m.matches {
		number(c, &m.matches[i].at)
		number(c, &m.matches[i].count)
	}
}

func agentMinutePrefix(agent string) []byte { return appendSized([]byte(keyAgentMinute), agent) }

func throttlePrefix(agent, policy, rule string) []byte {
	return appendSized(appendSized(appendSized([]byte(keyThrottle), agent), policy), rule)
}

func slotKey(prefix []byte, minute int64) []byte {
	return binary.BigEndian.AppendUint16(prefix, uint16(uint64(minute)%minuteSlots))
}

func minuteOf(at time.Time) int64 { return startOf(at.UnixNano(), time.Minute) / 60 }

// yields tells whether the record of one minute gives its slot to another. One that
// lies ahead of the event is from before the clock was put back.
func yields(kept, minute int64, e *event.Envelope) bool {
	return kept < minute || kept > max(minute, minuteOf(e.Time))
}

// did adds to what an agent did in a minute.
func (t *tx) did(e *event.Envelope, agent string, minute int64, sums *AgentSums) {
	key := slotKey(agentMinutePrefix(agent), minute)
	var kept AgentMinute
	if !t.get(key, &kept) || yields(kept.Minute, minute, e) {
		kept = AgentMinute{Minute: minute}
	}
	if kept.Minute == minute {
		kept.Plus(sums)
		t.put(key, &kept)
	}
}

// A throttleKey is a throttled rule of an agent.
type throttleKey struct{ agent, policy, rule string }

// counted adds the matches that throttles have counted. One over the limit is not.
func counted(into map[throttleKey]int64, agent string, counts []event.ThrottleCount) {
	for i := range counts {
		if counts[i].Count <= counts[i].Limit {
			into[throttleKey{agent, counts[i].PolicyID, counts[i].RuleID}]++
		}
	}
}

// throttled adds to the matches of an event's minute.
func (t *tx) throttled(e *event.Envelope, counts map[throttleKey]int64) {
	minute := minuteOf(e.Time)
	for k, n := range counts {
		key := slotKey(throttlePrefix(k.agent, k.policy, k.rule), minute)
		var kept throttleMinute
		if !t.get(key, &kept) || yields(kept.minute, minute, e) {
			kept = throttleMinute{minute: minute}
		}
		if kept.minute == minute {
			kept.matches = append(kept.matches, throttleMatches{e.Time.UnixNano(), n})
			t.put(key, &kept)
		}
	}
}

// didTelemetry adds a batch.
func (t *tx) didTelemetry(e *event.Envelope, p *event.TelemetryReceived) {
	sums, counts := map[string]*AgentSums{}, map[throttleKey]int64{}
	for r, o := range p.Accepted() {
		if sums[r.AgentID] == nil {
			sums[r.AgentID] = new(AgentSums)
		}
		one := SumsOf(r)
		sums[r.AgentID].Plus(&one)
		counted(counts, r.AgentID, o.Throttle)
	}
	for agent, sum := range sums {
		t.did(e, agent, minuteOf(e.Time), sum)
	}
	t.throttled(e, counts)
}

// AgentMinutes gives what an agent did, minute by minute, at least over the last day, in
// no order: minuteSlots records at most.
func (v *View) AgentMinutes(agent string) (list []AgentMinute, err error) {
	err = v.slots(agentMinutePrefix(agent), func(value []byte) error {
		var m AgentMinute
		err := unmarshal(value, &m)
		list = append(list, m)
		return err
	})
	return list, err
}

// ThrottleMatches gives when matches of a throttled rule by an agent were counted, in ns
// since 1970 and in order: at least those of the last day, but no more than the last most.
func (v *View) ThrottleMatches(agent, policy, rule string, most int) (times []int64, err error) {
	var all []throttleMatches
	err = v.slots(throttlePrefix(agent, policy, rule), func(value []byte) error {
		var m throttleMinute
		err := unmarshal(value, &m)
		all = append(all, m.matches...)
		return err
	})
	slices.SortFunc(all, func(a, b throttleMatches) int { return cmp.Compare(b.at, a.at) })
	for _, m := range all {
		for ; m.count > 0 && len(times) < most; m.count-- {
			times = append(times, m.at)
		}
	}
	slices.Reverse(times)
	return times, err
}

func (v *View) slots(prefix []byte, take func(value []byte) error) error {
	it, err := v.iter(prefix, after(prefix))
	if err != nil {
		return err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		if err = take(it.Value()); err != nil {
			err = v.store.damaged(err)
		}
	}
	return v.closeIter(it, err)
}
