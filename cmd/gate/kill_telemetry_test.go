package main

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/eventlog/event"
	"writegate/projections"
)

// telling is the life whose clients send telemetry.
const telling = "while telemetry comes"

// A newsroom is what the clients of a life know of the telemetry they sent.
type newsroom struct {
	keys  []string          // project keys: each has a thousand requests an hour
	agent string            // its id; "" = not registered yet
	sent  map[string]bool   // ids of events
	must  map[string]string // ids that were acknowledged, with their batch
	spans []span
}

// A span is where the log has a batch, as its answer said.
type span struct {
	batch       string
	first, last uint64
}

func newNewsroom() *newsroom {
	n := &newsroom{sent: map[string]bool{}, must: map[string]string{}}
	for range 16 {
		n.keys = append(n.keys, agentctl.NewSecret(agentctl.KeyPrefix))
	}
	return n
}

// tell has the gates of a life take telemetry.
func (l *life) tell() {
	entries := make([]string, len(l.book.news.keys))
	for i, key := range l.book.news.keys {
		entries[i] = fmt.Sprintf("shop/k%d=%s", i, key)
	}
	l.extra = append(l.extra, "GATE_PROJECT_KEYS="+strings.Join(entries, ","), "GATE_MAX_BODY_BYTES=4194304")
}

// v1 sends a request of an errand under /v1; nil means that no answer came.
func (b *book) v1(t testing.TB, v *victim, e *errand, path, body, key string) *reply {
	headers := []string{"X-Api-Key: " + b.news.keys[e.number%len(b.news.keys)]}
	if key != "" {
		headers = append(headers, "Idempotency-Key: "+key)
	}
	r, err := v.try(http.MethodPost, "/v1"+path, body, headers...)
	if err != nil {
		b.know(func() { b.unanswered++ })
		return nil
	}
	assert.Less(t, r.status, 300, "%s", r.body)
	return &r
}

// reporter gives the agent that telemetry is about: the first who asks registers
// it, and asks under a key until there is an answer.
func (b *book) reporter(t testing.TB, v *victim, e *errand) string {
	b.registry.Lock()
	defer b.registry.Unlock()
	if b.news.agent == "" {
		if r := b.v1(t, v, e, "/agents", `{"name":"reporter","type":"worker","metadata":{"environment":"prod"}}`, "the-reporter"); r != nil {
			b.news.agent, _ = r.field("id").(string)
		}
	}
	return b.news.agent
}

// report sends a batch until an answer comes, and then once more: whatever gate
// answers then has it already.
func (b *book) report(t testing.TB, v *victim, e *errand) (answered, done bool) {
	agent := b.reporter(t, v, e)
	if agent == "" {
		return false, false
	}
	ids, body := batchOf(e, agent)
	b.know(func() {
		for _, id := range ids {
			b.news.sent[id] = true
		}
	})
	key := ""
	if e.number%3 == 0 {
		key = e.value
	}
	r := b.v1(t, v, e, "/telemetry", body, key)
	if r == nil {
		e.lost = true
		return false, false
	}
	var a agentctl.TelemetryBody
	assert.NoError(t, json.Unmarshal(r.body, &a), "%s", r.body)
	again := e.stage > 0
	switch {
	case key != "":
		assert.Equal(t, len(ids), a.Accepted, "%s", r.body)
		assert.True(t, !again || r.header.Get("Idempotency-Replayed") == "true")
	case again:
		assert.Equal(t, len(ids), a.Duplicates, "%s", r.body)
	default:
		assert.Contains(t, []int{0, len(ids)}, a.Accepted, "a batch is there whole, or not at all: %s", r.body)
		assert.True(t, e.lost || a.Duplicates == 0, "%s", r.body)
	}
	b.know(func() {
		for _, id := range ids {
			b.news.must[id] = e.value
		}
		if a.Accepted > 0 {
			b.news.spans = append(b.news.spans, span{a.BatchID, *a.FirstSeq, *a.LastSeq})
		}
	})
	e.stage++
	return true, again
}

// batchOf is the batch of an errand: a few events, and now and then more than
// one record of the log holds.
func batchOf(e *errand, agent string) (ids []string, body string) {
	n, attributes := 1+e.number%5, ""
	if e.number%11 == 0 {
		pairs := make([]string, 60)
		for i := range pairs {
			pairs[i] = fmt.Sprintf(`"k%d":%q`, i, strings.Repeat("v", 1000))
		}
		n, attributes = 20, `,"attributes":{`+strings.Join(pairs, ",")+"}"
	}
	events := make([]string, n)
	for i := range events {
		ids = append(ids, fmt.Sprintf("%s.%d", e.value, i))
		kind := []string{"llm_call", "tool_call", "message"}[i%3]
		events[i] = fmt.Sprintf(`{"id":%q,"agent_id":%q,"type":%q,"duration_ms":%d,"usage":{"input_tokens":%d,"output_tokens":%d,"cost_usd":"0.0041"}%s}`,
			ids[i], agent, kind, e.number*37%4000, e.number, i, attributes)
	}
	return ids, `{"events":[` + strings.Join(events, ",") + "]}"
}

// checkNews: what was acknowledged of telemetry is there, once and where its
// answer said; nothing else is.
func (b *book) checkNews(t testing.TB, s *story) {
	t.Helper()
	there := map[string]uint64{}
	for i := range s.events {
		e := &s.events[i]
		if e.Type != event.TypeTelemetryReceived {
			continue
		}
		var p event.TelemetryReceived
		require.NoError(t, e.Parse(&p))
		for j := range p.Events {
			id := p.Events[j].ID
			require.True(t, b.news.sent[id], "nobody sent %s", id)
			require.NotContains(t, there, id, "%s is there twice: events %d and %d", id, there[id], e.Seq)
			there[id] = e.Seq
		}
	}
	for id, batch := range b.news.must {
		require.Contains(t, there, id, "%s of %s was acknowledged and is not in the log", id, batch)
	}
	for _, span := range b.news.spans {
		for seq := span.first; seq <= span.last; seq++ {
			var p event.TelemetryReceived
			require.NoError(t, p.Parse(s.events[seq-1].Payload))
			require.Equal(t, span.batch, p.BatchID)
		}
	}
}

// An account is what a gate answers about telemetry, to be held against its log.
type account struct{ metrics, usage map[string]any }

// account asks a gate for it.
func (l *life) account(v *victim) (a account) {
	l.t.Helper()
	for path, into := range map[string]*map[string]any{"/v1/metrics?interval=1m&group_by=agent_id,type": &a.metrics, "/v1/usage?interval=1h&group_by=agent_id": &a.usage} {
		r, err := v.try(http.MethodGet, path, "", "X-Api-Key: "+l.book.news.keys[0])
		require.NoError(l.t, err)
		require.Equal(l.t, http.StatusOK, r.status, "%s", r.body)
		*into = r.json(l.t)
	}
	return a
}

// holds compares it with the sums of the log's events.
func (a account) holds(t testing.TB, s *story) {
	t.Helper()
	requireMetrics(t, a.metrics, telemetrySums(t, asOf(s.events, a.metrics), time.Minute))
	var want, got projections.UsageSums
	for e := range asOf(s.events, a.usage) {
		var p event.TelemetryReceived
		if e.Type != event.TypeTelemetryReceived {
			continue
		}
		require.NoError(t, e.Parse(&p))
		for i := range p.Events {
			u := &p.Events[i].Usage
			want.Plus(&projections.UsageSums{TelemetryEvents: 1, InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, CostMicros: u.CostMicros})
		}
	}
	totals := a.usage["totals"].(map[string]any)
	require.Equal(t, agentctl.Dollars(want.CostMicros), totals["cost_usd"])
	got.CostMicros = want.CostMicros
	for name, into := range map[string]*int64{"telemetry_events": &got.TelemetryEvents, "input_tokens": &got.InputTokens, "output_tokens": &got.OutputTokens} {
		*into = int64(totals[name].(float64))
	}
	require.Equal(t, want, got)
}

// asOf are the events that an answer is as of.
func asOf(events []event.Envelope, answer map[string]any) iter.Seq[*event.Envelope] {
	return func(yield func(*event.Envelope) bool) {
		for i := range events[:int(answer["as_of_seq"].(float64))] {
			if !yield(&events[i]) {
				return
			}
		}
	}
}

// telemetrySums adds up the telemetry of events, by the start of an interval,
// agent and type.
func telemetrySums(t testing.TB, events iter.Seq[*event.Envelope], interval time.Duration) map[string]*projections.MetricSums {
	t.Helper()
	sums := map[string]*projections.MetricSums{}
	for e := range events {
		if e.Type != event.TypeTelemetryReceived {
			continue
		}
		var p event.TelemetryReceived
		require.NoError(t, e.Parse(&p))
		for i := range p.Events {
			r := &p.Events[i]
			key := event.Timestamp(time.Unix(0, r.Timestamp).UTC().Truncate(interval)) + r.AgentID + r.Type
			if sums[key] == nil {
				sums[key] = new(projections.MetricSums)
			}
			m := sums[key]
			m.Events, m.InputTokens, m.OutputTokens, m.CostMicros = m.Events+1, m.InputTokens+r.Usage.InputTokens, m.OutputTokens+r.Usage.OutputTokens, m.CostMicros+r.Usage.CostMicros
			m.Latency.Add(*r.DurationMS)
		}
	}
	return sums
}

// requireMetrics compares an answer of GET /v1/metrics grouped by agent_id,type.
func requireMetrics(t testing.TB, answer map[string]any, sums map[string]*projections.MetricSums) {
	t.Helper()
	items := answer["items"].([]any)
	require.Len(t, items, len(sums))
	for _, one := range items {
		item := one.(map[string]any)
		group := item["group"].(map[string]any)
		m := sums[item["start"].(string)+group["agent_id"].(string)+group["type"].(string)]
		require.NotNil(t, m, item)
		l := &m.Latency
		want := fmt.Sprintf(`{"events":%d,"cost_usd":%q,"tokens":{"input":%d,"output":%d,"total":%d},"latency_ms":{"count":%d,"avg":%d,"p50":%d,"p95":%d,"p99":%d,"max":%d}}`, m.Events, agentctl.Dollars(m.CostMicros),
			m.InputTokens, m.OutputTokens, m.InputTokens+m.OutputTokens, l.Count, l.Average(), l.Percentile(500), l.Percentile(950), l.Percentile(990), l.Max)
		got, err := json.Marshal(map[string]any{"events": item["events"], "cost_usd": item["cost_usd"], "tokens": item["tokens"], "latency_ms": item["latency_ms"]})
		require.NoError(t, err)
		require.JSONEq(t, want, string(got))
	}
}

// tells reports whether the gates of this life take telemetry.
func (l *life) tells() bool {
	return slices.ContainsFunc(l.extra, func(pair string) bool { return strings.HasPrefix(pair, "GATE_PROJECT_KEYS=") })
}
