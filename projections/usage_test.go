package projections_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/event"
	"writegate/projections"
)

// used gives all buckets of a level, by start, credential and agent.
func (w *world) used(project string, level time.Duration, from, to time.Time) map[string]projections.UsageSums {
	w.t.Helper()
	got := map[string]projections.UsageSums{}
	require.NoError(w.t, w.view().Usage(project, level, from, to, func(start time.Time, credential, agent string, sums *projections.UsageSums) error {
		key := fmt.Sprint(start.Unix(), credential, agent)
		require.NotContains(w.t, got, key)
		got[key] = *sums
		return nil
	}))
	return got
}

func TestUsageIsTheSumOfTheLogsEventsAtEachLevel(t *testing.T) {
	w := newWorld(t)
	w.registered("agt_1", "a")
	w.registered("agt_2", "b")
	w.do(event.Context{Project: project, AgentID: "agt_1"}, &event.AgentTokenIssued{TokenID: "tok_1", AgentID: "agt_1"})
	want := map[time.Duration]map[string]projections.UsageSums{time.Hour: {}, 24 * time.Hour: {}}
	count := func(at time.Time, credential, agent string, more projections.UsageSums) {
		for level, sums := range want {
			key := fmt.Sprint(at.UTC().Truncate(level).Unix(), credential, agent)
			sum := sums[key]
			sum.Plus(&more)
			sums[key] = sum
		}
	}
	credentials := rapid.SampledFrom([][]string{{"key_1"}, {"tok_1"}, {"key_1", "tok_1"}})
	agents := rapid.SampledFrom([]string{"agt_1", "agt_2"})
	for i := range 150 {
		w.now = w.now.Add(time.Duration(rapid.IntRange(0, 40).Example(i)) * time.Minute)
		by, agent := credentials.Example(i), agents.Example(i+1)
		last := by[len(by)-1]
		switch i % 4 {
		case 0:
			minute := w.now.Add(-time.Minute).Truncate(time.Minute)
			w.do(event.Context{Project: project}, &event.UsageRecorded{Minute: minute.UnixNano(), Credentials: []event.CredentialUsage{
				{CredentialID: "key_1", Requests: i, Errors: 1}, {CredentialID: "key_1", AgentID: "agt_1", Requests: 2}, {CredentialID: "tok_1", AgentID: "agt_1", Throttled: 3}}})
			count(minute, "key_1", "", projections.UsageSums{Requests: int64(i), Errors: 1})
			count(minute, "key_1", "agt_1", projections.UsageSums{Requests: 2})
			count(minute, "tok_1", "agt_1", projections.UsageSums{Throttled: 3})
		case 1:
			w.do(event.Context{Project: project, AgentID: agent}, &event.RequestReceived{CredentialIDs: by[len(by)-1:]})
			count(w.now.Add(-time.Second), last, agent, projections.UsageSums{SQLDecisions: 1})
			w.do(event.Context{}, &event.RequestReceived{})
			w.do(event.Context{Project: project, AgentID: agent}, &event.RequestReceived{CredentialIDs: by[len(by)-1:], Purpose: event.PurposeDescribe})
		case 2:
			w.do(event.Context{Project: project}, &event.ToolVerified{Origin: event.Origin{CredentialIDs: by}, ToolID: "tool_1"})
			of := ""
			if last == "tok_1" {
				of = "agt_1"
			}
			count(w.now.Add(-time.Second), last, of, projections.UsageSums{Verifications: 1})
		default:
			p := &event.TelemetryReceived{Origin: event.Origin{CredentialIDs: by}, Events: rapid.SliceOfN(drawn(w.now), 1, 8).Example(i)}
			for j := range p.Events {
				r := &p.Events[j]
				p.Outcomes = append(p.Outcomes, event.TelemetryOutcome{Index: j, Status: event.TelemetryAccepted})
				count(w.now, last, r.AgentID, projections.UsageSums{TelemetryEvents: 1, InputTokens: r.Usage.InputTokens, OutputTokens: r.Usage.OutputTokens, CostMicros: r.Usage.CostMicros})
			}
			w.do(event.Context{Project: project}, p)
		}
	}
	begin, end := w.now.Add(-200*time.Hour), w.now.Add(24*time.Hour)
	for level, sums := range want {
		require.Equal(t, sums, w.used(project, level, begin, end), level)
		require.Empty(t, w.used("other", level, begin, end))
	}
	some := w.used(project, time.Hour, w.now.Add(-5*time.Hour).Truncate(time.Hour), w.now.Add(-3*time.Hour).Truncate(time.Hour))
	for key := range some {
		require.Contains(t, want[time.Hour], key)
	}
	require.Less(t, len(some), len(want[time.Hour]))
	w.compare()
}
