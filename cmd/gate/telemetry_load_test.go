package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/eventlog/event"
)

// telemetryEvents is how many events the test of many sends: as
// TELEMETRY_EVENTS says, which `make telemetry` sets.
func telemetryEvents(t *testing.T) int {
	t.Helper()
	text := os.Getenv("TELEMETRY_EVENTS")
	if text == "" {
		return 10_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

const perBatch = agentctl.MaxTelemetryEvents

// manyEvents is the nth batch of a day of telemetry: eight agents, ten kinds of
// events, in the order in which they would happen.
func manyEvents(agents []string, from time.Time, n, batches int) []byte {
	b := []byte(`{"events":[`)
	for i := range perBatch {
		k := n*perBatch + i
		at := from.Add(22 * time.Hour / time.Duration(batches*perBatch) * time.Duration(k))
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"id":"e-%d","agent_id":%q,"session_id":"s-%d","timestamp":%q,"duration_ms":%d,`, k, agents[k%len(agents)], n%50, at.Format(time.RFC3339Nano), k*7919%5000)
		switch kind := k / len(agents) % 10; {
		case kind < 3:
			b = fmt.Appendf(b, `"type":"llm_call","model":{"provider":"p","name":"m-%d"},"usage":{"input_tokens":%d,"output_tokens":%d,"cost_usd":"0.0041"}}`, kind, k%900, k%90)
		case kind < 8:
			b = fmt.Appendf(b, `"type":"tool_call","status":"ok","tool":{"name":"t-%d","call_id":"c"}}`, kind)
		case kind == 8:
			b = append(b, `"type":"message","attributes":{"gen_ai.operation.name":"chat"}}`...)
		default:
			b = append(b, `"type":"error","status":"error","error":{"type":"timeout","message":"m"}}`...)
		}
	}
	return append(b, "]}"...)
}

// resident is the memory of this process, in MiB: VmRSS of /proc/self/status.
func resident(t *testing.T) int {
	t.Helper()
	runtime.GC()
	text, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	kib, err := strconv.Atoi(string(regexp.MustCompile(`VmRSS:\s+(\d+)`).FindSubmatch(text)[1]))
	require.NoError(t, err)
	return kib >> 10
}

// Telemetry of a day goes in, its metrics are what the log says, and they are
// the same after a start and a rebuild.
// Not parallel: it reads the memory of this process.
func TestManyTelemetryEventsAreMeasuredAsTheLogSays(t *testing.T) {
	w := startAgents(t)
	reader := agentctl.NewSecret(agentctl.KeyPrefix) // the writer's key has a thousand requests an hour, and spends them
	w.end(t)
	keys := "GATE_PROJECT_KEYS=shop/ops=" + w.key + ",shop/read=" + reader
	w.testGate = startGate(t, w.gateDir, keys)
	w.key, reader = reader, w.key
	agents := make([]string, 8)
	for i := range agents {
		agents[i], _ = w.register(t, fmt.Sprintf("bot-%d", i))
	}
	from := time.Now().UTC().Add(-23 * time.Hour)
	batches := telemetryEvents(t) / perBatch
	began := time.Now()
	for n := range batches {
		w.post(t, reader, manyEvents(agents, from, n, batches))
		if (n+1)%max(1, batches/10) == 0 {
			t.Logf("%d events after %s, %d MiB resident", (n+1)*perBatch, time.Since(began).Round(time.Millisecond), resident(t))
		}
	}
	query := "since=" + from.Format(time.RFC3339) + "&group_by=agent_id,type"
	before := w.measured(t, query, w.projectKey())
	require.EqualValues(t, batches*perBatch, before["totals"].(map[string]any)["events"])
	for _, q := range []string{"", "group_by=agent_id,type", "interval=5m", "interval=1m&since=" + from.Format(time.RFC3339) + "&until=" + from.Add(16*time.Hour).Format(time.RFC3339)} {
		w.timed(t, q)
	}
	began = time.Now()
	w.end(t) // verifies the chain, and compares live with rebuilt
	t.Logf("end, verification and rebuild took %s", time.Since(began).Round(time.Millisecond))
	requireRecomputed(t, w, before)

	w.testGate = startGate(t, w.gateDir, keys)
	require.Equal(t, before["items"], w.measured(t, query, w.projectKey())["items"])
}

// post sends a batch without the checks of the harness, which take longer than the gate.
func (w *agentWorld) post(t *testing.T, key string, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.base+"/v1/telemetry", bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("X-Api-Key", key)
	req.Header.Set("Content-Type", "application/json")
	r, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	answer, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusOK, r.StatusCode, "%.500s", answer)
}

// timed tells how long an answer takes, best of five.
func (w *agentWorld) timed(t *testing.T, query string) {
	t.Helper()
	best := time.Hour
	for range 5 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.base+"/v1/metrics?"+query, nil)
		require.NoError(t, err)
		req.Header.Set("X-Api-Key", w.key)
		began := time.Now()
		r, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, r.Body)
		require.NoError(t, err)
		best = min(best, time.Since(began))
		require.NoError(t, r.Body.Close())
		require.Equal(t, http.StatusOK, r.StatusCode, query)
	}
	t.Logf("GET /v1/metrics?%s: %s", query, best)
}

// requireRecomputed adds up the events of the log of a gate that does not run,
// and compares.
func requireRecomputed(t *testing.T, w *agentWorld, answer map[string]any) {
	t.Helper()
	log := w.openLog(t)
	defer func() { require.NoError(t, log.Close(context.Background())) }()
	requireMetrics(t, answer, telemetrySums(t, func(yield func(*event.Envelope) bool) {
		for e, err := range log.From(t.Context(), 1) {
			require.NoError(t, err)
			if !yield(&e) {
				return
			}
		}
	}, time.Hour))
}
