package projections_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/event"
	"writegate/projections"
)

func histogramOf(values []int64) (h projections.Histogram) {
	for _, v := range values {
		h.Add(v)
	}
	return h
}

func TestPercentilesAreWithinA64thOfTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 2000), rapid.Int64Range(0, 1<<40)), 1, 300).Draw(t, "values")
		h := histogramOf(values)
		slices.Sort(values)
		for _, permille := range []int64{1, 500, 950, 990, 1000} {
			truth := values[(int64(len(values))*permille+999)/1000-1]
			got := h.Percentile(permille)
			require.GreaterOrEqual(t, got, truth)
			require.LessOrEqual(t, got-truth, truth/64)
		}
		require.Equal(t, values[len(values)-1], h.Max)
	})
	require.Zero(t, new(projections.Histogram).Percentile(500))
}

func TestHistogramsAddUpInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOf(rapid.Int64Range(0, 1<<62)).Draw(t, "values")
		cut := rapid.IntRange(0, len(values)).Draw(t, "cut")
		one, two := histogramOf(values[:cut]), histogramOf(values[cut:])
		two.Plus(&one)
		whole := histogramOf(values)
		require.Equal(t, whole, two)
	})
}

// naive adds up events the plain way.
type naive map[string]*projections.MetricSums

func (n naive) add(level time.Duration, r *event.TelemetryEvent, o *event.TelemetryOutcome) {
	key := fmt.Sprint(time.Unix(0, r.Timestamp).UTC().Truncate(level).Unix(), projections.MetricDims{AgentID: r.AgentID, Type: r.Type, Model: r.Model.Name, Tool: r.Tool.Name, Environment: "prod"})
	if n[key] == nil {
		n[key] = new(projections.MetricSums)
	}
	m := n[key]
	m.Events++
	if r.Status == "error" {
		m.Errors++
	}
	if r.Type == "tool_call" {
		m.ToolCalls++
	}
	m.InputTokens += r.Usage.InputTokens
	m.CostMicros += r.Usage.CostMicros
	if r.DurationMS != nil {
		m.Latency.Add(*r.DurationMS)
	}
	if len(o.Violations) > 0 {
		m.Matched, m.Violations = m.Matched+1, m.Violations+1
	}
}

// drawn makes telemetry events of two agents within two days.
func drawn(now time.Time) *rapid.Generator[event.TelemetryEvent] {
	return rapid.Custom(func(t *rapid.T) event.TelemetryEvent {
		r := event.TelemetryEvent{ID: rapid.StringN(1, 4, 8).Draw(t, "id"), AgentID: rapid.SampledFrom([]string{"agt_1", "agt_2"}).Draw(t, "agent"),
			Type: rapid.SampledFrom([]string{"llm_call", "tool_call"}).Draw(t, "type"), Status: rapid.SampledFrom([]string{"", "error"}).Draw(t, "status"),
			Timestamp: now.Add(-time.Duration(rapid.Int64Range(0, int64(50*time.Hour)).Draw(t, "age"))).UnixNano(),
			Model:     event.TelemetryModel{Name: rapid.SampledFrom([]string{"", "m"}).Draw(t, "model")}, Tool: event.TelemetryTool{Name: rapid.SampledFrom([]string{"", "x"}).Draw(t, "tool")},
			Usage: event.TelemetryUsage{InputTokens: rapid.Int64Range(0, 1000).Draw(t, "tokens"), CostMicros: rapid.Int64Range(0, 1000).Draw(t, "cost")}}
		if d := rapid.Int64Range(-1, 5000).Draw(t, "duration"); d >= 0 {
			r.DurationMS = &d
		}
		return r
	})
}

func TestMetricsAreTheSumsOfTheLogsEventsAtEachLevel(t *testing.T) {
	w := newWorld(t)
	w.registered("agt_1", "a")
	w.registered("agt_2", "b")
	levels := map[time.Duration]naive{}
	for _, level := range projections.MetricLevels {
		levels[level] = naive{}
	}
	for batch := range 100 {
		p := &event.TelemetryReceived{BatchID: "bat_x", Events: rapid.SliceOfN(drawn(w.now), 0, 30).Example(batch), Outcomes: []event.TelemetryOutcome{{Status: event.TelemetryRejected}}}
		for i := range p.Events {
			o := event.TelemetryOutcome{Index: i + 1, ID: p.Events[i].ID, Status: event.TelemetryAccepted}
			if (batch+i)%3 == 0 {
				o.Violations = []event.Violation{{PolicyID: "pol_1", RuleID: "r", Action: "block"}}
			}
			p.Outcomes = append(p.Outcomes, o, event.TelemetryOutcome{Status: event.TelemetryDuplicate})
			for level, n := range levels {
				n.add(level, &p.Events[i], &o)
			}
		}
		w.do(event.Context{Project: project}, p)
	}
	for level, want := range levels {
		require.Equal(t, want, w.metrics(level), level)
	}
	w.compare()
}

// metrics gives all buckets of a level.
func (w *world) metrics(level time.Duration) naive {
	w.t.Helper()
	got := naive{}
	require.NoError(w.t, w.view().Metrics(projections.MetricFilter{Project: project, From: w.now.Add(-96 * time.Hour), To: w.now.Add(24 * time.Hour), Level: level},
		func(start time.Time, d projections.MetricDims, sums *projections.MetricSums) error {
			kept := new(projections.MetricSums)
			kept.Plus(sums)
			got[fmt.Sprint(start.Unix(), d)] = kept
			return nil
		}))
	return got
}

func TestDecisionsOfAgentsAreCounted(t *testing.T) {
	w := newWorld(t)
	w.registered("agt_1", "a")
	for _, decision := range []string{"ALLOW", "BLOCK", "REQUIRE_APPROVAL", "BLOCK"} {
		w.do(event.Context{Project: project, AgentID: "agt_1", Decision: decision}, &event.DecisionRecorded{})
	}
	w.do(event.Context{Decision: "BLOCK"}, &event.DecisionRecorded{})
	var total projections.MetricSums
	require.NoError(t, w.view().Metrics(projections.MetricFilter{Project: project, From: w.now.Add(-time.Hour), To: w.now.Add(time.Hour), Level: time.Minute},
		func(_ time.Time, d projections.MetricDims, sums *projections.MetricSums) error {
			require.Equal(t, projections.MetricDims{AgentID: "agt_1", Environment: "prod"}, d)
			total.Plus(sums)
			return nil
		}))
	require.Equal(t, []int64{1, 2, 1}, []int64{total.Allowed, total.Blocked, total.Held})
	w.compare()
}
