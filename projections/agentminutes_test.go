package projections_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// The minutes of a day are there, and no more than there are slots, also where the clock
// was wrong for a while or usage comes late.
func TestMinutesGiveTheirPlaceToThoseAfterThem(t *testing.T) {
	const slots = 2048
	w := newWorld(t)
	minute := w.now.Unix() / 60
	used := func(at int64) {
		w.do(event.Context{Project: project}, &event.UsageRecorded{Minute: at * int64(time.Minute), Credentials: []event.CredentialUsage{{CredentialID: "tok_1", AgentID: "agt_1", Requests: 1}, {CredentialID: "key_1", AgentID: "agt_1", Requests: 1}}})
	}
	pass := func(minutes int64) { minute += minutes; w.now = time.Unix(minute*60, 0).UTC() }
	kept := func() map[int64]int64 {
		list, err := w.view().AgentMinutes("agt_1")
		require.NoError(t, err)
		m := map[int64]int64{}
		for _, one := range list {
			m[one.Minute] = one.Requests
		}
		require.Len(t, m, len(list))
		return m
	}
	for range 70 { // 32 of them have slots of their own
		pass(slots / 32)
		used(minute)
		used(minute)
	}
	want := map[int64]int64{}
	for i := range int64(32) {
		want[minute-i*slots/32] = 2
	}
	require.Equal(t, want, kept())

	used(minute - slots) // later than anything that is asked for
	used(minute - slots/32)
	want[minute-slots/32]++
	require.Equal(t, want, kept())

	pass(30 * slots)
	used(minute)
	pass(-30 * slots)
	used(minute)
	want[minute] = 1
	require.Equal(t, want, kept())
	w.compare()
}

// A throttle's matches are given in order, the last ones where there are more, and each
// rule has its own.
func TestMatchesOfThrottlesAreKeptByTheirRule(t *testing.T) {
	w := newWorld(t)
	var want []int64
	for i := range 150 {
		w.now = w.now.Add(time.Duration(i%40) * time.Second)
		counts := []event.ThrottleCount{{PolicyID: "pol_1", RuleID: "r1", Count: 1, Limit: 1}, {PolicyID: "pol_1", RuleID: "r2", Count: 2, Limit: 1}}
		p := &event.TelemetryReceived{BatchID: "bat_x"}
		for range 1 + i%3 {
			p.Events = append(p.Events, event.TelemetryEvent{ID: "x", Type: "heartbeat", AgentID: "agt_1", Timestamp: 1})
			p.Outcomes = append(p.Outcomes, event.TelemetryOutcome{Status: event.TelemetryAccepted, Throttle: counts}, event.TelemetryOutcome{Status: event.TelemetryRejected})
		}
		at := w.do(event.Context{Project: project}, p).Time.UnixNano()
		for range p.Events {
			want = append(want, at)
		}
	}
	matches := func(agent, rule string, most int) []int64 {
		times, err := w.view().ThrottleMatches(agent, "pol_1", rule, most)
		require.NoError(t, err)
		return times
	}
	require.Equal(t, want, matches("agt_1", "r1", 1000))
	require.Equal(t, want[len(want)-100:], matches("agt_1", "r1", 100))
	require.Empty(t, matches("agt_1", "r2", 100), "matches over the limit")
	require.Empty(t, matches("agt_1", "r", 100))
	require.Empty(t, matches("agt_", "r1", 100))
	w.compare()
}
