package main

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// TestPrometheusReadsWhatTheStatsSay: one service, one set of figures.
func TestPrometheusReadsWhatTheStatsSay(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	g.busy(t)
	w := g.rawWire(t)
	require.Equal(t, []string{"BEGIN", "ready T"}, w.ask(simple("BEGIN")))
	g.cancelWire(t, w.key)
	answer := g.get(t, "/metrics")
	require.Equal(t, http.StatusOK, answer.status, "%s", answer.body)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(answer.body))
	require.NoError(t, err)
	stats := g.get(t, "/runtime/stats").json(t)

	value := func(name string, labels ...string) float64 {
		t.Helper()
		require.Contains(t, families, name)
		for _, m := range families[name].Metric {
			if hasLabels(m, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetSummary().GetSampleCount())
			}
		}
		t.Fatalf("%s has no %v", name, labels)
		return 0
	}
	require.Equal(t, stats["requests_total"], value("gate_requests_total"))
	decisions := stats["decisions"].(map[string]any)
	for decision, n := range decisions {
		require.Equal(t, n, value("gate_decisions_total", "decision", decision))
	}
	require.Len(t, decisions, 3)
	require.Equal(t, stats["approvals_pending"], value("gate_approvals_pending"))
	require.Equal(t, 1.0, value("gate_startup_chain_ok"))
	require.Equal(t, 1.0, value("gate_log_ok"))
	require.Equal(t, 1.0, value("gate_projections_ok"))
	require.Equal(t, float64(g.head(t)), value("gate_log_head_seq"))
	require.Equal(t, 1.0, value("gate_info", "version", version, "mode", "enforce", "policy_version", stats["policy_version"].(string)))
	require.Equal(t, 12.0, value("gate_phase_seconds", "phase", "total"), "BEGIN is decided too")
	wire := stats["wire"].(map[string]any)
	require.Equal(t, map[string]any{"connections": 1.0, "blocks": 0.0, "cancels": 1.0}, wire, "a block that has not reached the database holds nothing")
	require.Equal(t, wire["connections"], value("gate_wire_connections"))
	require.Equal(t, wire["blocks"], value("gate_wire_blocks"))
	require.Equal(t, wire["cancels"], value("gate_wire_cancels_total"))
	require.Contains(t, families, "process_resident_memory_bytes")

	problems, err := promlint.New(bytes.NewReader(answer.body)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

func hasLabels(m *dto.Metric, pairs []string) bool {
	got := map[string]string{}
	for _, l := range m.Label {
		got[l.GetName()] = l.GetValue()
	}
	for i := 0; i < len(pairs); i += 2 {
		if got[pairs[i]] != pairs[i+1] {
			return false
		}
	}
	return true
}
