package agentctl

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/eventlog/event"
	"writegate/projections"
)

// aDayOf puts a day of telemetry into the log, in batches of a thousand: so many
// agents, ten kinds of events.
func (w *world) aDayOf(b *testing.B, events, agents int) {
	b.Helper()
	day := noon.Add(-24 * time.Hour)
	for n := 0; n < events; n += MaxTelemetryEvents {
		p := &event.TelemetryReceived{BatchID: fmt.Sprint("bat_", n), Origin: event.Origin{CredentialIDs: []string{fmt.Sprint("key_", n/MaxTelemetryEvents%4)}}}
		w.now.Store(day.Add(24 * time.Hour / time.Duration(events) * time.Duration(n+MaxTelemetryEvents)).UnixNano())
		for k := n; k < n+MaxTelemetryEvents; k++ {
			took := int64(k * 7919 % 5000)
			kind := k / agents % 10
			e := event.TelemetryEvent{ID: fmt.Sprint("e-", k), AgentID: fmt.Sprintf("agt_018f0000-0000-7000-8000-%012d", k%agents), DurationMS: &took,
				Timestamp: day.Add(24 * time.Hour / time.Duration(events) * time.Duration(k)).UnixNano()}
			switch {
			case kind < 3:
				e.Type, e.Model.Name = "llm_call", fmt.Sprint("m-", kind)
				e.Usage = event.TelemetryUsage{InputTokens: int64(k % 900), OutputTokens: int64(k % 90), CostMicros: 4100}
			case kind < 8:
				e.Type, e.Tool.Name = event.TelemetryToolCall, fmt.Sprint("t-", kind)
			case kind == 8:
				e.Type = "message"
			default:
				e.Type, e.Status = "error", "error"
			}
			p.Events = append(p.Events, e)
			p.Outcomes = append(p.Outcomes, event.TelemetryOutcome{Index: k - n, ID: e.ID, Status: event.TelemetryAccepted})
		}
		_, err := w.Commands.Change(b.Context(), commands.Change{Decide: func(_ *projections.View, now time.Time) ([]event.Draft, error) {
			return []event.Draft{event.New(now, event.Context{Operation: "receive_telemetry", Project: "p"}, p)}, nil
		}})
		require.NoError(b, err)
	}
}

// benchTelemetry is how much telemetry the benchmarks look at: as
// TELEMETRY_EVENTS says, which `make telemetry` sets.
func benchTelemetry(b *testing.B) int {
	b.Helper()
	n, err := strconv.Atoi(os.Getenv("TELEMETRY_EVENTS"))
	if err != nil {
		n = 20_000
	}
	return n
}

// BenchmarkMetricsOfADay measures an answer of GET /v1/metrics over a day of
// telemetry, from the question to its JSON, for each interval and for what can
// be grouped by within the bound of an answer, and one of GET /v1/usage.
func BenchmarkMetricsOfADay(b *testing.B) {
	for _, agents := range []int{8, 100} {
		b.Run(fmt.Sprint(agents, "agents"), func(b *testing.B) {
			w := begin(b)
			w.aDayOf(b, benchTelemetry(b), agents)
			for _, q := range []struct {
				interval, groups string
				hours            time.Duration // 0 = the day
			}{
				{"1m", "", 16}, {"1m", "environment", 16}, {"5m", "", 0}, {"5m", "type", 20}, {"5m", "environment", 0}, {"1h", "", 0}, {"1h", "type", 0},
				{"1h", "model,tool", 0}, {"1h", "agent_id", 9}, {"1d", "", 0}, {"1d", "type,model,tool", 0},
			} {
				b.Run(q.interval+"/"+q.groups, func(b *testing.B) { w.benchMetrics(b, q.interval, q.groups, q.hours) })
			}
			b.Run("usage", w.benchUsage)
		})
	}
}

func (w *world) benchMetrics(b *testing.B, interval, groups string, hours time.Duration) {
	caller := Caller{Project: "p", KeyID: "key_bench"}
	q := MetricsQuery{Since: noon.Add(-24 * time.Hour), Until: noon, Interval: interval}
	if hours > 0 {
		q.Until = q.Since.Add(hours * time.Hour)
	}
	if groups != "" {
		q.GroupBy = strings.Split(groups, ",")
	}
	items, least := 0, time.Hour
	for b.Loop() {
		began := time.Now()
		body, err := w.Metrics(context.Background(), &caller, q)
		require.NoError(b, err)
		text, err := json.Marshal(body)
		require.NoError(b, err)
		items, least = len(body.Items), min(least, time.Since(began))
		b.SetBytes(int64(len(text)))
	}
	b.ReportMetric(float64(items), "items")
	b.ReportMetric(float64(least.Microseconds())/1000, "ms-at-least") // on a machine that has other work
}

func (w *world) benchUsage(b *testing.B) {
	caller := Caller{Project: "p", KeyID: "key_bench"}
	for b.Loop() {
		body, err := w.Usage(context.Background(), &caller, UsageQuery{Since: noon.Add(-9 * time.Hour), Until: noon, Interval: time.Hour, ByAgent: true})
		require.NoError(b, err)
		_, err = json.Marshal(body)
		require.NoError(b, err)
	}
}
