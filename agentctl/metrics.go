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
var metricGroups = map[string]projections.MetricDim{
	"agent_id": projections.MetricAgent, "type": projections.MetricType, "model": projections.MetricModel,
	"tool": projections.MetricTool, "environment": projections.MetricEnvironment,
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

// A metricsWalk gathers the items of an answer. Buckets come in the order of
// their starts, so the groups of one stretch of time are all that it holds.
type metricsWalk struct {
	ctx      context.Context
	interval time.Duration
	names    []string
	dims     []projections.MetricDim
	start    int64                   // of the stretch
	groups   map[string]*metricGroup // by the values of the group, each with its length
	key      []byte
	spare    []*metricGroup
	items    []metricItem
	totals   projections.MetricSums
	looked   int
}

type metricGroup struct {
	values []string
	projections.MetricSums
}

// A metricItem is an item with what it is sorted by.
type metricItem struct {
	start  int64
	values []string
	MetricItem
}

// check gives the interval and the times of whole buckets around those asked for.
func (q *MetricsQuery) check() (interval time.Duration, from, to time.Time, err error) {
	var f fieldErrors
	q.Interval = cmp.Or(q.Interval, "1h")
	interval, ok := metricIntervals[q.Interval]
	f.add(!ok, "/interval", "must be 1m, 5m, 1h or 1d")
	for i, name := range q.GroupBy {
		_, known := metricGroups[name]
		f.add(!known || slices.Contains(q.GroupBy[:i], name), "/group_by", "must be a list of agent_id, type, model, tool, environment, each once")
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
	if q.AgentID, err = c.confine(q.AgentID); err != nil {
		return nil, err
	}
	w := metricsWalk{ctx: ctx, interval: interval, names: q.GroupBy, groups: map[string]*metricGroup{}}
	for _, name := range q.GroupBy {
		w.dims = append(w.dims, metricGroups[name])
	}
	body := &MetricsBody{From: event.Timestamp(from), To: event.Timestamp(to), Interval: q.Interval}
	err = s.view(ctx, func(view *projections.View) error {
		body.AsOfSeq = view.Applied().Seq
		if err := keptSince(view, c.Project, interval, from); err != nil {
			return err
		}
		f := projections.MetricFilter{Project: c.Project, AgentID: q.AgentID, EachAgent: slices.Contains(q.GroupBy, "agent_id"), Type: q.Type, From: from, To: to, Level: interval}
		return view.Metrics(f, w.take)
	})
	if err != nil {
		return nil, err
	}
	body.Items, body.Totals = w.finish(), figuresOf(&w.totals)
	return body, nil
}

// keptSince refuses a question about short buckets that are gone.
func keptSince(view *projections.View, project string, interval time.Duration, from time.Time) error {
	if interval >= time.Hour {
		return nil
	}
	kept, err := view.FineFrom(project)
	if err == nil && from.Before(kept) {
		err = InvalidFields(FieldError{"/since", fmt.Sprintf("is before %s: intervals of less than an hour are kept for %d days; ask for hours", event.Timestamp(kept), projections.FineLifetime/(24*time.Hour))})
	}
	return err
}

// take adds a bucket to its group.
func (w *metricsWalk) take(b *projections.MetricBucket) error {
	if w.looked++; w.looked%4096 == 0 && w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	if b.Start != w.start {
		w.close()
		w.start = b.Start
	}
	w.key = w.key[:0]
	for _, dim := range w.dims {
		w.key = append(binary.AppendUvarint(w.key, uint64(len(b.Dims[dim]))), b.Dims[dim]...)
	}
	into := w.groups[string(w.key)]
	if into == nil {
		if len(w.items)+len(w.groups) == maxMetricItems {
			return InvalidFields(FieldError{"/interval", fmt.Sprintf("gives more than %d items: ask for less time, a longer interval or fewer groups", maxMetricItems)})
		}
		into = w.open(b)
		w.groups[string(w.key)] = into
	}
	return b.AddTo(&into.MetricSums)
}

// open makes a group with the values of a bucket.
func (w *metricsWalk) open(b *projections.MetricBucket) *metricGroup {
	g := new(metricGroup)
	if n := len(w.spare); n > 0 {
		g, w.spare = w.spare[n-1], w.spare[:n-1]
	}
	g.values = make([]string, len(w.dims))
	for i, dim := range w.dims {
		g.values[i] = string(b.Dims[dim])
	}
	return g
}

// close turns the groups of a stretch into items.
func (w *metricsWalk) close() {
	start := time.Unix(w.start, 0).UTC()
	for _, g := range w.groups {
		w.totals.Plus(&g.MetricSums)
		item := metricItem{w.start, g.values, MetricItem{Start: event.Timestamp(start), End: event.Timestamp(start.Add(w.interval)),
			Group: make(map[string]string, len(w.names)), MetricFigures: figuresOf(&g.MetricSums)}}
		for i, name := range w.names {
			item.Group[name] = g.values[i]
		}
		w.items = append(w.items, item)
		g.Reset()
		w.spare = append(w.spare, g)
	}
	clear(w.groups)
}

// finish gives the items, the newest stretch first, as GET /v1/usage does.
func (w *metricsWalk) finish() []MetricItem {
	w.close()
	slices.SortFunc(w.items, func(a, b metricItem) int {
		return cmp.Or(cmp.Compare(b.start, a.start), slices.Compare(a.values, b.values))
	})
	items := make([]MetricItem, len(w.items))
	for i := range w.items {
		items[i] = w.items[i].MetricItem
	}
	return items
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
