package agentctl

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"writegate/eventlog/event"
	"writegate/projections"
)

// MetricsQuery is what GET /v1/metrics asks (spec/v1.md part 10).
type MetricsQuery struct {
	Since, Until  time.Time
	Interval      string   // a key of metricIntervals; "" = 1h
	GroupBy       []string // keys of metricGroups
	AgentID, Type string
}

var metricIntervals = map[string]time.Duration{"1m": time.Minute, "5m": 5 * time.Minute, "1h": time.Hour, "1d": 24 * time.Hour}

// metricGroups are what buckets can be told apart by.
var metricGroups = map[string]func(*projections.MetricDims) string{
	"agent_id":    func(d *projections.MetricDims) string { return d.AgentID },
	"type":        func(d *projections.MetricDims) string { return d.Type },
	"model":       func(d *projections.MetricDims) string { return d.Model },
	"tool":        func(d *projections.MetricDims) string { return d.Tool },
	"environment": func(d *projections.MetricDims) string { return d.Environment },
}

// Bounds of an answer: its items, and the buckets that it looks through.
const (
	maxMetricItems   = 1000
	maxMetricBuckets = 10_000
)

// MetricFigures are the figures of one item. Latencies are null where no event
// had a duration.
type MetricFigures struct {
	Events    int64         `json:"events"`
	Errors    int64         `json:"errors"`
	Latency   LatencyBody   `json:"latency_ms"`
	Tokens    TokensBody    `json:"tokens"`
	CostUSD   string        `json:"cost_usd"`
	ToolCalls int64         `json:"tool_calls"`
	Policy    RuleCounts    `json:"policy"`
	SQL       DecisionCount `json:"sql"`
}

// LatencyBody sums up durations in milliseconds.
type LatencyBody struct {
	Count int64  `json:"count"`
	Avg   *int64 `json:"avg"`
	P50   *int64 `json:"p50"`
	P95   *int64 `json:"p95"`
	P99   *int64 `json:"p99"`
	Max   *int64 `json:"max"`
}

// TokensBody counts tokens.
type TokensBody struct {
	Input  int64 `json:"input"`
	Output int64 `json:"output"`
	Total  int64 `json:"total"`
}

// RuleCounts say what the rules at telemetry found.
type RuleCounts struct {
	Evaluated  int64 `json:"evaluated"`
	Matched    int64 `json:"matched"`
	Violations int64 `json:"violations"`
}

// DecisionCount counts decisions on statements.
type DecisionCount struct {
	Allow           int64 `json:"allow"`
	Block           int64 `json:"block"`
	RequireApproval int64 `json:"require_approval"`
}

// MetricItem is one bucket of one group.
type MetricItem struct {
	Start string            `json:"start"`
	End   string            `json:"end"`
	Group map[string]string `json:"group"`
	MetricFigures
}

// MetricsBody is the answer of GET /v1/metrics.
type MetricsBody struct {
	Items      []MetricItem  `json:"items"`
	NextCursor *string       `json:"next_cursor"`
	Totals     MetricFigures `json:"totals"`
	From       string        `json:"from"`
	To         string        `json:"to"`
	Interval   string        `json:"interval"`
	AsOfSeq    uint64        `json:"as_of_seq"`
}

// A metricsWalk gathers the items of an answer.
type metricsWalk struct {
	ctx      context.Context
	interval time.Duration
	groups   []string
	buckets  map[metricsKey]*metricsBucket
	looked   int
}

// metricsKey is a bucket and the values of its group, each with its length.
type metricsKey struct {
	start int64
	group string
}

type metricsBucket struct {
	values []string
	projections.MetricSums
}

// check gives the interval and the times of whole buckets around those asked for.
func (q *MetricsQuery) check() (interval time.Duration, from, to time.Time, err error) {
	var f fieldErrors
	q.Interval = cmp.Or(q.Interval, "1h")
	interval, ok := metricIntervals[q.Interval]
	f.add(!ok, "/interval", "must be 1m, 5m, 1h or 1d")
	for i, name := range q.GroupBy {
		f.add(metricGroups[name] == nil || slices.Contains(q.GroupBy[:i], name), "/group_by", "must be a list of agent_id, type, model, tool, environment, each once")
	}
	f.add(q.Until.Before(q.Since), "/until", "must not be before since")
	if err := f.fault(); err != nil {
		return 0, from, to, err
	}
	from, to = q.Since.UTC().Truncate(interval), q.Until.UTC().Add(interval-1).Truncate(interval)
	f.add(to.Sub(from)/interval > maxMetricBuckets, "/interval", fmt.Sprintf("gives more than %d buckets: ask for less time or for a longer interval", maxMetricBuckets))
	return interval, from, to, f.fault()
}

// Metrics sums up a project's telemetry and decisions in buckets of UTC.
func (s *Service) Metrics(ctx context.Context, c *Caller, q MetricsQuery) (*MetricsBody, error) {
	interval, from, to, err := q.check()
	if err != nil {
		return nil, err
	}
	if only := c.agentOnly(); only != "" {
		if q.AgentID != "" && q.AgentID != only {
			return nil, c.sees(q.AgentID)
		}
		q.AgentID = only
	}
	w := metricsWalk{ctx: ctx, interval: interval, groups: q.GroupBy, buckets: map[metricsKey]*metricsBucket{}}
	body := &MetricsBody{Items: []MetricItem{}, From: event.Timestamp(from), To: event.Timestamp(to), Interval: q.Interval}
	err = s.view(func(view *projections.View) error {
		body.AsOfSeq = view.Applied().Seq
		return view.Metrics(projections.MetricFilter{Project: c.Project, AgentID: q.AgentID, Type: q.Type, From: from, To: to, Level: levelOf(interval)}, w.take)
	})
	if err != nil {
		return nil, err
	}
	var totals projections.MetricSums
	for _, key := range w.order() {
		b := w.buckets[key]
		totals.Plus(&b.MetricSums)
		body.Items = append(body.Items, w.item(key, b))
	}
	body.Totals = figuresOf(&totals)
	return body, nil
}

// levelOf is the longest kept bucket that an interval is made of.
func levelOf(interval time.Duration) (level time.Duration) {
	for _, one := range projections.MetricLevels {
		if interval%one == 0 {
			level = one
		}
	}
	return level
}

func (w *metricsWalk) take(start time.Time, d projections.MetricDims, sums *projections.MetricSums) error {
	if w.looked++; w.looked%4096 == 0 && w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	var values []byte
	for _, name := range w.groups {
		value := metricGroups[name](&d)
		values = append(binary.AppendUvarint(values, uint64(len(value))), value...)
	}
	key := metricsKey{start.Truncate(w.interval).UnixNano(), string(values)}
	into := w.buckets[key]
	if into == nil {
		if len(w.buckets) == maxMetricItems {
			return InvalidFields(FieldError{"/interval", fmt.Sprintf("gives more than %d items: ask for less time, a longer interval or fewer groups", maxMetricItems)})
		}
		into = new(metricsBucket)
		for _, name := range w.groups {
			into.values = append(into.values, metricGroups[name](&d))
		}
		w.buckets[key] = into
	}
	into.Plus(sums)
	return nil
}

// order is the newest bucket first, as in GET /v1/usage.
func (w *metricsWalk) order() []metricsKey {
	keys := make([]metricsKey, 0, len(w.buckets))
	for key := range w.buckets {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b metricsKey) int {
		return cmp.Or(cmp.Compare(b.start, a.start), slices.Compare(w.buckets[a].values, w.buckets[b].values))
	})
	return keys
}

func (w *metricsWalk) item(key metricsKey, b *metricsBucket) MetricItem {
	start := time.Unix(0, key.start).UTC()
	item := MetricItem{Start: event.Timestamp(start), End: event.Timestamp(start.Add(w.interval)), Group: map[string]string{}, MetricFigures: figuresOf(&b.MetricSums)}
	for i, name := range w.groups {
		item.Group[name] = b.values[i]
	}
	return item
}

func figuresOf(m *projections.MetricSums) MetricFigures {
	f := MetricFigures{Events: m.Events, Errors: m.Errors, Latency: LatencyBody{Count: m.Latency.Count},
		Tokens: TokensBody{m.InputTokens, m.OutputTokens, m.InputTokens + m.OutputTokens}, CostUSD: Dollars(m.CostMicros), ToolCalls: m.ToolCalls,
		Policy: RuleCounts{m.Evaluated, m.Matched, m.Violations}, SQL: DecisionCount{m.Allowed, m.Blocked, m.Held}}
	if l := &m.Latency; l.Count > 0 {
		avg, p50, p95, p99, most := l.Average(), l.Percentile(500), l.Percentile(950), l.Percentile(990), l.Max
		f.Latency.Avg, f.Latency.P50, f.Latency.P95, f.Latency.P99, f.Latency.Max = &avg, &p50, &p95, &p99, &most
	}
	return f
}
