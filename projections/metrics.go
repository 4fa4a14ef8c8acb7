package projections

import (
	"encoding/binary"
	"fmt"
	"time"

	"writegate/eventlog/event"
)

// MetricDims are what metrics are told apart by; "" where there is none.
type MetricDims struct {
	AgentID, Type, Model, Tool, Environment string
}

// MetricSums are the figures of one bucket (spec/v1.md part 10).
type MetricSums struct {
	Events, Errors            int64
	InputTokens, OutputTokens int64
	CostMicros                int64
	ToolCalls                 int64
	Evaluated                 int64 // events that rules were asked about
	Matched                   int64 // events that a rule matched
	Violations                int64 // rules that matched and decided
	Allowed, Blocked, Held    int64 // decisions on statements
	Latency                   Histogram
}

func (m *MetricSums) numbers() []*int64 {
	return []*int64{&m.Events, &m.Errors, &m.InputTokens, &m.OutputTokens, &m.CostMicros, &m.ToolCalls, &m.Evaluated, &m.Matched, &m.Violations,
		&m.Allowed, &m.Blocked, &m.Held}
}

// Plus adds another bucket.
func (m *MetricSums) Plus(o *MetricSums) {
	into := m.numbers()
	for i, n := range o.numbers() {
		*into[i] += *n
	}
	m.Latency.Plus(&o.Latency)
}

func (m *MetricSums) walk(c *codec) {
	for _, n := range m.numbers() {
		number(c, n)
	}
	m.Latency.walk(c)
}

// MetricLevels are the lengths of the buckets that are kept. Longer times are
// added up from them.
var MetricLevels = []time.Duration{time.Minute, time.Hour, 24 * time.Hour}

// metricPrefix is level and project; metricKey has the start of the bucket and
// the dimensions behind it, each with its length.
func metricPrefix(level time.Duration, project string) []byte {
	return appendSized(binary.BigEndian.AppendUint32([]byte(keyMetric), uint32(level/time.Second)), project)
}

func metricKey(level time.Duration, project string, start int64, d *MetricDims) []byte {
	k := binary.BigEndian.AppendUint64(metricPrefix(level, project), uint64(start))
	for _, s := range []string{d.AgentID, d.Type, d.Model, d.Tool, d.Environment} {
		k = appendSized(k, s)
	}
	return k
}

func appendSized(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// dimsOf reads what stands behind the prefix of a key.
func dimsOf(rest []byte) (start int64, d MetricDims, err error) {
	c := codec{reading: true, buf: rest}
	if b := c.take(8); b != nil {
		start = int64(binary.BigEndian.Uint64(b))
	}
	texts(&c, &d.AgentID, &d.Type, &d.Model, &d.Tool, &d.Environment)
	return start, d, c.err
}

// metered are the sums that one event of the log adds, by minute.
type metered map[meteredKey]*MetricSums

type meteredKey struct {
	start int64 // s since 1970
	dims  MetricDims
}

func (m metered) at(start int64, d MetricDims) *MetricSums {
	key := meteredKey{start, d}
	if m[key] == nil {
		m[key] = new(MetricSums)
	}
	return m[key]
}

func startOf(ns int64, level time.Duration) int64 {
	return time.Unix(0, ns).UTC().Truncate(level).Unix()
}

// meter adds the sums of an event to what is kept.
func (t *tx) meter(project string, minutes metered) {
	for _, level := range MetricLevels {
		sums := minutes
		if level != time.Minute {
			sums = metered{}
			for key, one := range minutes {
				sums.at(startOf(key.start*int64(time.Second), level), key.dims).Plus(one)
			}
		}
		for key, one := range sums {
			k := metricKey(level, project, key.start, &key.dims)
			var kept MetricSums
			t.get(k, &kept)
			kept.Plus(one)
			t.put(k, &kept)
		}
	}
}

// environmentOf is the environment of an agent at this event.
func (t *tx) environmentOf(agentID string) string {
	var a Agent
	t.get(agentKey(agentID), &a)
	return a.Metadata["environment"]
}

// meterTelemetry adds a batch. Its events are the accepted ones of its outcomes,
// in the same order; they count where their time lies.
func (t *tx) meterTelemetry(e *event.Envelope, p *event.TelemetryReceived) {
	minutes, environments := metered{}, map[string]string{}
	next := 0
	for i := range p.Outcomes {
		o := &p.Outcomes[i]
		if o.Status != event.TelemetryAccepted || next == len(p.Events) {
			continue
		}
		r := &p.Events[next]
		next++
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
	t.meter(e.Context.Project, minutes)
}

// take counts one telemetry event.
func (m *MetricSums) take(r *event.TelemetryEvent, o *event.TelemetryOutcome) {
	m.Events++
	if r.Failed() {
		m.Errors++
	}
	if r.Type == event.TelemetryToolCall {
		m.ToolCalls++
	}
	m.InputTokens += r.Usage.InputTokens
	m.OutputTokens += r.Usage.OutputTokens
	m.CostMicros += r.Usage.CostMicros
	if r.DurationMS != nil {
		m.Latency.Add(*r.DurationMS)
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
	one := new(MetricSums)
	switch e.Context.Decision {
	case "ALLOW":
		one.Allowed = 1
	case "BLOCK":
		one.Blocked = 1
	default:
		one.Held = 1
	}
	d := MetricDims{AgentID: e.Context.AgentID, Environment: t.environmentOf(e.Context.AgentID)}
	t.meter(e.Context.Project, metered{meteredKey{startOf(e.Time.UnixNano(), time.Minute), d}: one})
	return t.err
}

// A MetricFilter selects buckets of a project; an empty field selects all.
type MetricFilter struct {
	Project       string
	AgentID, Type string
	From, To      time.Time     // starts of buckets: from From on, before To
	Level         time.Duration // one of MetricLevels
}

// Metrics hands every bucket that a filter selects to take, the oldest first.
// The sums are take's until it returns.
func (v *View) Metrics(f MetricFilter, take func(start time.Time, d MetricDims, sums *MetricSums) error) error {
	prefix := metricPrefix(f.Level, f.Project)
	bound := func(at time.Time) []byte {
		return binary.BigEndian.AppendUint64(append([]byte(nil), prefix...), uint64(max(0, at.Unix())))
	}
	it, err := v.iter(bound(f.From), bound(f.To))
	if err != nil {
		return err
	}
	var sums MetricSums
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		start, d, bad := dimsOf(it.Key()[1+len(prefix):])
		if bad != nil {
			err = v.store.damaged(fmt.Errorf("%q: %w", it.Key(), bad))
			break
		}
		if !matches(f.AgentID, d.AgentID) || !matches(f.Type, d.Type) {
			continue
		}
		if bad := unmarshal(it.Value(), &sums); bad != nil {
			err = v.store.damaged(fmt.Errorf("%q: %w", it.Key(), bad))
			break
		}
		err = take(time.Unix(start, 0).UTC(), d, &sums)
	}
	return v.closeIter(it, err)
}
