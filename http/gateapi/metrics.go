package gateapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"writegate/commands/checkpoints"
	"writegate/http/httpd"
	"writegate/projections"
)

// newMetrics makes GET /metrics: what GET /runtime/stats and GET /health say, in the
// text format of Prometheus, and the figures of the process. Everything is read
// when it is asked for; nothing is counted twice.
func (a *api) newMetrics() http.Handler {
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own := prometheus.NewRegistry()
		own.MustRegister(gateMetrics{r.Context(), a})
		promhttp.HandlerFor(prometheus.Gatherers{process, own}, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}).ServeHTTP(w, r)
	})
}

func (a *api) metrics(c *httpd.Call) error {
	c.Writer().Header().Set("Cache-Control", "no-store")
	a.scrape.ServeHTTP(c.Writer(), c.Request)
	return nil
}

// Names, meanings and labels of the gate's own metrics.
var (
	metricInfo        = describe("info", "The version, the mode in force and the policy that decides; always 1.", "version", "mode", "policy_version")
	metricRequests    = describe("requests_total", "Statements that were submitted, previews and refusals included.")
	metricStatements  = describe("statements_total", "Statements that got a decision, by query type.", "query_type")
	metricDecisions   = describe("decisions_total", "Decisions.", "decision")
	metricPhase       = describe("phase_seconds", "Time that statements spent in each phase.", "phase")
	metricPending     = describe("approvals_pending", "Approvals that wait for an operator.")
	metricUnknown     = describe("executions_unknown", "Executions whose outcome is not known.")
	metricParser      = describe("parser_statements_total", "Statements by the lane that took them.", "lane")
	metricParserKills = describe("parser_kills_total", "Parser children ended for their time.")
	metricConnections = describe("database_connections", "Connections to the database.", "state")
	metricWaits       = describe("database_connection_waits_total", "Statements that waited for a free connection.")
	metricQuarantined = describe("database_connections_quarantined_total", "Connections closed because a pinned setting changed.")
	metricWire        = describe("wire_connections", "Connections of the wire listener that logged in.")
	metricWireBlocks  = describe("wire_blocks", "Transaction blocks that are open on the wire listener.")
	metricWireCancels = describe("wire_cancels_total", "Requests to cancel that came to the wire listener.")
	metricHead        = describe("log_head_seq", "Sequence number of the last durable event.")
	metricLogOK       = describe("log_ok", "Whether the event log takes events: 1 or 0.")
	metricFenceOK     = describe("log_fence_ok", "Whether the fence of the log is held and confirmed: 1 or 0.")
	metricFenceEpoch  = describe("log_fence_epoch", "The epoch of the log that this run took; 0 before it did.")
	metricFenceAge    = describe("log_fence_confirmed_age_seconds", "How long ago the fence of the log was confirmed.")
	metricFollowed    = describe("projections_ok", "Whether the volume of the projections takes what is written to it: 1 or 0.")
	metricCheckpoint  = describe("checkpoint_size", "Events that the newest signed checkpoint vouches for.")
	metricCheckpoints = describe("checkpoint_ok", "Whether checkpoints are signed: 1, or 0 when the last one failed.")
	metricWitnessSize = describe("witness_cosigned_size", "Events of the largest checkpoint that a witness cosigned for this process.", "witness")
	metricWitnessOK   = describe("witness_ok", "Whether the witness cosigned when it was last asked: 1 or 0.", "witness")
	metricIssuerOK    = describe("agent_oidc_ok", "Whether the keys of the issuer of agents' tokens could be read the last time: 1 or 0.")
	metricIssuerAge   = describe("agent_oidc_keys_age_seconds", "How long ago the keys of the issuer of agents' tokens were read; they are good for a day.")
	metricChainOK     = describe("startup_chain_ok", "Whether every step of the startup chain passed: 1 or 0. With 0 no statement is accepted.")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("gate_"+name, help, labels, nil)
}

// gateMetrics reads the service for one scrape, which it waits for no longer than ctx.
type gateMetrics struct {
	ctx context.Context
	a   *api
}

// Describe implements prometheus.Collector.
func (m gateMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{metricInfo, metricRequests, metricStatements, metricDecisions, metricPhase, metricPending, metricUnknown,
		metricParser, metricParserKills, metricConnections, metricWaits, metricQuarantined, metricWire, metricWireBlocks, metricWireCancels, metricHead, metricLogOK, metricFenceOK, metricFenceEpoch, metricFenceAge, metricFollowed, metricChainOK,
		metricCheckpoint, metricCheckpoints, metricWitnessSize, metricWitnessOK, metricIssuerOK, metricIssuerAge} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m gateMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	a, stats := m.a, m.a.Gate.Stats()
	gauge(metricInfo, 1, a.Version, a.Gate.ModeNow(), a.Gate.PolicyVersion())
	counter(metricRequests, float64(stats.Requests))
	for kind, n := range stats.ByQueryType {
		counter(metricStatements, float64(n), kind)
	}
	for decision, n := range stats.Decisions {
		counter(metricDecisions, float64(n), decision)
	}
	for phase, p := range stats.Latency {
		ch <- prometheus.MustNewConstSummary(metricPhase, p.Count, p.Seconds,
			map[float64]float64{0.5: p.P50 / 1000, 0.95: p.P95 / 1000, 0.99: p.P99 / 1000}, phase)
	}
	m.records(ch, gauge)
	parser, pool := a.Classifier.Stats(), a.Database.Stats()
	counter(metricParser, float64(parser.InProcess), "in_process")
	counter(metricParser, float64(parser.Child), "child")
	counter(metricParser, float64(parser.Refused), "refused")
	counter(metricParserKills, float64(parser.Killed))
	gauge(metricConnections, float64(pool.InUse), "in_use")
	gauge(metricConnections, float64(pool.Idle), "idle")
	counter(metricWaits, float64(pool.Waits))
	counter(metricQuarantined, float64(pool.Quarantined))
	wire := a.Wire()
	gauge(metricWire, float64(wire.Connections))
	gauge(metricWireBlocks, float64(wire.Blocks))
	counter(metricWireCancels, float64(wire.Cancels))
	gauge(metricHead, float64(a.Log.Head().Seq))
	gauge(metricLogOK, truth(a.Log.Health().OK))
	if a.Fence != nil {
		if s := a.Fence(); s != nil {
			gauge(metricFenceOK, truth(s.Status == "ok"))
			gauge(metricFenceEpoch, float64(s.Epoch))
			if s.Age >= 0 {
				gauge(metricFenceAge, s.Age.Seconds())
			}
		}
	}
	gauge(metricFollowed, truth(a.Store.Full() == nil))
	gauge(metricChainOK, truth(!a.Gate.Chain().Failed()))
	if a.Issuer != nil {
		if s := a.Issuer(); s != nil {
			gauge(metricIssuerOK, truth(s.Status == "ok"))
			if s.KeysAge >= 0 {
				gauge(metricIssuerAge, s.KeysAge.Seconds())
			}
		}
	}
	if a.Checkpoints.Signs() {
		collectCheckpoints(a.Checkpoints.Status(), gauge)
	}
}

// collectCheckpoints tells of checkpoints and witnesses; where signing is off
// there is nothing to tell.
func collectCheckpoints(s checkpoints.Status, gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(metricCheckpoint, float64(s.Size))
	gauge(metricCheckpoints, truth(s.Failure == ""))
	for _, w := range s.Witnesses {
		gauge(metricWitnessSize, float64(w.Size), w.URL)
		gauge(metricWitnessOK, truth(witnessStatus(w) == "ok"), w.URL)
	}
}

// records are what the projections count. Where they can't be read the scrape
// fails: a figure that is missing must not look like none. Where their volume is full
// these figures are left out.
func (m gateMetrics) records(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string)) {
	view := m.a.Store.ViewWithin(m.ctx)
	defer view.Close()
	pending, err := view.ApprovalsPending(m.a.Now())
	if errors.Is(err, projections.ErrFull) {
		return // and what else there is tells of that emergency
	}
	if err != nil {
		ch <- prometheus.NewInvalidMetric(metricPending, err)
		return
	}
	gauge(metricPending, float64(pending))
	gauge(metricUnknown, float64(view.Counters().ExecutionsUnknown))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
