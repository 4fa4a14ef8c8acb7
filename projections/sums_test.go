package projections

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// What agents report can add up to more than a number holds: the largest cost nine
// million times is enough.
func TestSumsStopAtTheGreatestNumber(t *testing.T) {
	const almost = math.MaxInt64 - 10
	ms := int64(20)
	e := event.TelemetryEvent{Usage: event.TelemetryUsage{InputTokens: 20, OutputTokens: 20, CostMicros: 20}, DurationMS: &ms}
	window := AgentSums{Tokens: almost, CostMicros: almost}
	added := SumsOf(&e)
	window.Plus(&added)
	require.Equal(t, AgentSums{Events: 1, Tokens: math.MaxInt64, CostMicros: math.MaxInt64}, window)
	window.Minus(&added)
	require.Equal(t, AgentSums{Tokens: math.MaxInt64, CostMicros: math.MaxInt64}, window, "how much more it was is not known")

	m := meteredSum{MetricCounts: MetricCounts{InputTokens: almost, OutputTokens: almost, CostMicros: almost}, latency: fewDurations{sum: almost}}
	m.take(&e, new(event.TelemetryOutcome))
	counts := MetricCounts{Events: 1, InputTokens: math.MaxInt64, OutputTokens: math.MaxInt64, CostMicros: math.MaxInt64}
	require.Equal(t, counts, m.MetricCounts)
	require.EqualValues(t, math.MaxInt64, m.latency.sum)
	kept := codec{}
	m.walk(&kept)
	var total MetricSums
	for range 2 { // what is read is added
		read := codec{buf: kept.buf, reading: true}
		total.walk(&read)
	}
	counts.Events = 2
	require.Equal(t, counts, total.MetricCounts)
	require.EqualValues(t, math.MaxInt64, total.Latency.Sum)
	total.Latency.Plus(&Histogram{Sum: 1})
	require.EqualValues(t, math.MaxInt64, total.Latency.Sum)
	total.Latency.Add(1)
	require.EqualValues(t, math.MaxInt64, total.Latency.Sum)

	usage := UsageSums{CostMicros: almost}
	usage.Plus(&UsageSums{CostMicros: 20})
	require.EqualValues(t, math.MaxInt64, usage.CostMicros)
}
