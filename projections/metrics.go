package projections

import (
	"encoding/binary"
	"time"

	"writegate/eventlog/event"
)

// MetricDims are what metrics are told apart by; "" where there is none. Without
// an agent they are those of all agents of the project together: agents are what
// a project may have many of, and most answers don't tell them apart.
type MetricDims struct {
	AgentID, Type, Model, Tool, Environment string
}

// MetricSums are the figures of one bucket (spec/v1.md part 10).
type MetricSums struct {
	MetricCounts
	Latency Histogram
}

// MetricCounts are the figures that simply add up.
type MetricCounts struct {
	Events, Errors            int64
	InputTokens, OutputTokens int64
	CostMicros                int64
	ToolCalls                 int64
	Evaluated                 int64 // events that rules were asked about
	Matched                   int64 // events that a rule matched
	Violations                int64 // rules that matched and decided
	Allowed, Blocked, Held    int64 // decisions on statements
}

func (m *MetricCounts) numbers() []*int64 {
	return []*int64{&m.Events, &m.Errors, &m.InputTokens, &m.OutputTokens, &m.CostMicros, &m.ToolCalls, &m.Evaluated, &m.Matched, &m.Violations,
		&m.Allowed, &m.Blocked, &m.Held}
}

func (m *MetricCounts) plus(o *MetricCounts) {
	plus(m.numbers(), o.numbers())
}

// walk adds what it reads to what is there.
func (m *MetricCounts) walk(c *codec) {
	for _, n := range m.numbers() {
		if c.reading {
			*n = sum(*n, int64(c.uvarint()))
		} else {
			number(c, n)
		}
	}
}

// Plus adds another bucket.
func (m *MetricSums) Plus(o *MetricSums) {
	m.plus(&o.MetricCounts)
	m.Latency.Plus(&o.Latency)
}

func (m *MetricSums) walk(c *codec) {
	m.MetricCounts.walk(c)
	m.Latency.walk(c)
}

// A meteredSum is MetricSums in the making: what a fold adds to a bucket is few
// durations, so it holds those alone. It is kept in the same bytes.
type meteredSum struct {
	MetricCounts
	latency fewDurations
}

func (m *meteredSum) plus(o *meteredSum) {
	m.MetricCounts.plus(&o.MetricCounts)
	m.latency.plus(&o.latency)
}

func (m *meteredSum) walk(c *codec) {
	m.MetricCounts.walk(c)
	m.latency.walk(c)
}

// Reset empties the sums and keeps the room of their histogram.
func (m *MetricSums) Reset() {
	latency := m.Latency
	latency.reset()
	*m = MetricSums{Latency: latency}
}

// MetricLevels are the lengths of the buckets that are kept: those of hours and
// days for good, shorter ones for FineLifetime.
var MetricLevels = []time.Duration{time.Minute, 5 * time.Minute, time.Hour, 24 * time.Hour}

// metricPrefix is level and project; metricKey has the start of the bucket and
// the dimensions behind it, each with its length.
func metricPrefix(level time.Duration, project string) []byte {
	return appendSized(binary.BigEndian.AppendUint32([]byte(keyMetric), uint32(level/time.Second)), project)
}

func metricKey(level time.Duration, project string, start int64, d *MetricDims) []byte {
	k := metricStart(metricPrefix(level, project), start)
	for _, s := range []string{d.AgentID, d.Type, d.Model, d.Tool, d.Environment} {
		k = appendSized(k, s)
	}
	return k
}

func appendSized(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// metered are the sums that one event of the log adds, by minute.
type metered map[meteredKey]*meteredSum

type meteredKey struct {
	start int64 // s since 1970
	dims  MetricDims
}

func (m metered) at(start int64, d MetricDims) *meteredSum {
	key := meteredKey{start, d}
	if m[key] == nil {
		m[key] = new(meteredSum)
	}
	return m[key]
}

func startOf(ns int64, level time.Duration) int64 {
	return time.Unix(0, ns).UTC().Truncate(level).Unix()
}

// meter adds the sums of an event to what is kept.
func (t *tx) meter(e *event.Envelope, minutes metered) {
	project := e.Context.Project
	from := t.forgetFine(project, e.Time)
	for _, level := range MetricLevels {
		sums := metered{}
		for key, one := range minutes {
			start, d := startOf(key.start*int64(time.Second), level), key.dims
			if fine(level) && start < from {
				continue
			}
			sums.at(start, d).plus(one)
			d.AgentID = ""
			sums.at(start, d).plus(one)
		}
		for key, one := range sums {
			k := metricKey(level, project, key.start, &key.dims)
			t.get(k, one) // adds what is kept
			t.put(k, one)
		}
	}
}

// environmentOf is the environment of an agent at this event.
func (t *tx) environmentOf(agentID string) string {
	var a Agent
	t.get(agentKey(agentID), &a)
	return a.Metadata["environment"]
}

// meterTelemetry adds a batch, whose events count where their time lies.
func (t *tx) meterTelemetry(e *event.Envelope, p *event.TelemetryReceived) {
	minutes, environments := metered{}, map[string]string{}
	for r, o := range p.Accepted() {
		environment, looked := environments[r.AgentID]
		if !looked {
			environment = t.environmentOf(r.AgentID)
			environments[r.AgentID] = environment
		}
		d := MetricDims{AgentID: r.AgentID, Type: r.Type, Model: r.Model.Name, Tool: r.Tool.ID, Environment: environment}
		if d.Tool == "" {
			d.Tool = r.Tool.Name
		}
		minutes.at(startOf(r.Timestamp, time.Minute), d).take(r, o)
	}
	t.meter(e, minutes)
}

// take counts one telemetry event.
func (m *meteredSum) take(r *event.TelemetryEvent, o *event.TelemetryOutcome) {
	m.Events++
	if r.Failed() {
		m.Errors++
	}
	if r.Type == event.TelemetryToolCall {
		m.ToolCalls++
	}
	m.InputTokens = sum(m.InputTokens, r.Usage.InputTokens)
	m.OutputTokens = sum(m.OutputTokens, r.Usage.OutputTokens)
	m.CostMicros = sum(m.CostMicros, r.Usage.CostMicros)
	if r.DurationMS != nil {
		m.latency.add(*r.DurationMS)
	}
	if o.Evaluated > 0 {
		m.Evaluated++
	}
	if len(o.Violations) > 0 {
		m.Matched++
	}
	for _, v := range o.Violations {
		if !v.Annotation {
			m.Violations++
		}
	}
}

// agentDecided counts a decision on a statement that came with an agent's token.
func agentDecided(t *tx, e *event.Envelope) error {
	if e.Context.AgentID == "" {
		return nil
	}
	var p event.DecisionRecorded
	if err := e.Parse(&p); err != nil || p.Run == event.RunDescribe { // the request's own decision comes behind it
		return err
	}
	sums := AgentSums{Decisions: 1}
	if p.Facts.Class == "write" {
		sums.Writes = 1
	}
	t.did(e, e.Context.AgentID, minuteOf(e.Time), &sums)
	if p.AgentLayer != nil {
		counts := map[throttleKey]int64{}
		counted(counts, e.Context.AgentID, p.AgentLayer.Throttle)
		t.throttled(e, counts)
	}
	one := new(meteredSum)
	switch e.Context.Decision {
	case "ALLOW":
		one.Allowed = 1
	case "BLOCK":
		one.Blocked = 1
	default:
		one.Held = 1
	}
	d := MetricDims{AgentID: e.Context.AgentID, Environment: t.environmentOf(e.Context.AgentID)}
	t.meter(e, metered{meteredKey{startOf(e.Time.UnixNano(), time.Minute), d}: one})
	return t.err
}
