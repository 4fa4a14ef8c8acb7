package projections_test

import (
	"fmt"
	"maps"
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

func (n naive) add(level time.Duration, agentID string, r *event.TelemetryEvent, o *event.TelemetryOutcome) {
	key := fmt.Sprint(time.Unix(0, r.Timestamp).UTC().Truncate(level).Unix(), projections.MetricDims{AgentID: agentID, Type: r.Type, Model: r.Model.Name, Tool: r.Tool.Name, Environment: "prod"})
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
				n.add(level, p.Events[i].AgentID, &p.Events[i], &o)
				n.add(level, "", &p.Events[i], &o)
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
	f := projections.MetricFilter{Project: project, From: w.now.Add(-96 * time.Hour), To: w.now.Add(24 * time.Hour), Level: level}
	together := w.measured(f)
	f.EachAgent = true
	each := w.measured(f)
	for key := range together {
		require.NotContains(w.t, each, key)
	}
	maps.Copy(each, together)
	return each
}

func (w *world) measured(f projections.MetricFilter) naive {
	w.t.Helper()
	got := naive{}
	require.NoError(w.t, w.view().Metrics(f, func(b *projections.MetricBucket) error {
		kept := new(projections.MetricSums)
		got[fmt.Sprint(b.Start, dims(b))] = kept
		return b.AddTo(kept)
	}))
	return got
}

// What a filter selects is what is there, less the rest.
func TestAFilterOfMetricsSelectsTheBucketsThatMeetIt(t *testing.T) {
	w := newWorld(t)
	agents, kinds := []string{"agt_1", "agt_2", "agt_22", "agt_3"}, []string{"llm_call", "tool_call"}
	for batch := range 60 {
		p := &event.TelemetryReceived{BatchID: "bat_x", Events: rapid.SliceOfN(drawn(w.now), 1, 10).Example(batch)}
		for i := range p.Events {
			p.Events[i].AgentID = agents[(batch*7+i)%len(agents)]
			p.Outcomes = append(p.Outcomes, event.TelemetryOutcome{Index: i, Status: event.TelemetryAccepted})
		}
		w.do(event.Context{Project: project}, p)
	}
	for _, level := range projections.MetricLevels {
		whole := projections.MetricFilter{Project: project, From: w.now.Add(-30 * time.Hour).Truncate(level), To: w.now.Add(-2 * time.Hour).Truncate(level), Level: level}
		each := whole
		each.EachAgent = true
		all, found := w.measured(each), 0
		for _, agent := range append(agents, "agt_0", "agt_4") {
			f := whole
			f.AgentID = agent
			for key := range w.measured(f) {
				require.Contains(t, key, "{"+agent+" ")
				require.Contains(t, all, key)
				found++
			}
		}
		require.Equal(t, len(all), found, level)
		for _, kind := range kinds {
			f := each
			f.Type = kind
			found -= len(w.measured(f))
			f.AgentID = agents[1]
			for key := range w.measured(f) {
				require.Contains(t, key, "{"+agents[1]+" "+kind)
			}
		}
		require.Zero(t, found, level)
	}
}

func dims(b *projections.MetricBucket) projections.MetricDims {
	return projections.MetricDims{AgentID: string(b.Dims[projections.MetricAgent]), Type: string(b.Dims[projections.MetricType]), Model: string(b.Dims[projections.MetricModel]),
		Tool: string(b.Dims[projections.MetricTool]), Environment: string(b.Dims[projections.MetricEnvironment])}
}

func TestDecisionsOfAgentsAreCounted(t *testing.T) {
	w := newWorld(t)
	w.registered("agt_1", "a")
	for _, decision := range []string{"ALLOW", "BLOCK", "REQUIRE_APPROVAL", "BLOCK"} {
		w.do(event.Context{Project: project, AgentID: "agt_1", Decision: decision}, &event.DecisionRecorded{})
	}
	w.do(event.Context{Decision: "BLOCK"}, &event.DecisionRecorded{})
	w.do(event.Context{Project: project, AgentID: "agt_1", Decision: "BLOCK"}, &event.DecisionRecorded{Run: event.RunDescribe})
	var total projections.MetricSums
	require.NoError(t, w.view().Metrics(projections.MetricFilter{Project: project, From: w.now.Add(-time.Hour), To: w.now.Add(time.Hour), Level: time.Minute},
		func(b *projections.MetricBucket) error {
			require.Equal(t, projections.MetricDims{Environment: "prod"}, dims(b))
			return b.AddTo(&total)
		}))
	require.Equal(t, []int64{1, 2, 1}, []int64{total.Allowed, total.Blocked, total.Held})
	w.compare()
}

// Minutes go after five weeks, hours and days stay, and it does not show in
// which batch: also where a clock jumps, and comes back.
func TestShortBucketsAreDroppedAfterFiveWeeks(t *testing.T) {
	w := newWorld(t)
	w.registered("agt_1", "a")
	begin := w.now
	decide := func(at time.Time, project string) event.Draft {
		return event.New(at, event.Context{Project: project, AgentID: "agt_1", Decision: "ALLOW"}, &event.DecisionRecorded{})
	}
	count := func(project string, level time.Duration) (n int) {
		f := projections.MetricFilter{Project: project, From: begin.Add(-24 * time.Hour), To: begin.Add(100 * 24 * time.Hour), Level: level}
		return len(w.measured(f))
	}
	day := func(n int) time.Time { return begin.Add(time.Duration(n) * 24 * time.Hour) }
	for n := range 30 {
		w.append(decide(day(n), project), decide(day(n), "other"))
	}
	for _, level := range projections.MetricLevels {
		require.Equal(t, 30, count(project, level))
	}
	w.append(decide(day(40), project))
	for _, level := range projections.MetricLevels {
		want := 31
		if level < time.Hour {
			want = 30 - 5 + 1
		}
		require.Equal(t, want, count(project, level), level)
		require.Equal(t, 30, count("other", level), "each project by its own events")
	}
	kept, err := w.view().FineFrom(project)
	require.NoError(t, err)
	require.Equal(t, day(5).Truncate(24*time.Hour), kept)

	// One batch in which time leaps and comes back.
	w.append(decide(day(41), project), decide(day(90), project), decide(day(41), project), decide(day(60), project))
	require.Equal(t, 2, count(project, time.Minute))
	require.Equal(t, 2, count(project, 5*time.Minute))
	require.Equal(t, 34, count(project, time.Hour))
	w.compare()
	for _, events := range []int{1, 3, 100} { // a replay drops them wherever its loads end, as tables or not
		for _, load := range []int{0, 2_000, 1 << 20} {
			w.compareReplay(events, load, 0)
			w.compareReplay(events, load, 1<<30)
		}
	}
	w.stop()
	w.start()
	require.Equal(t, 2, count(project, time.Minute))
	w.compare()
}
