// Package gateapi is the HTTP API of the gate: the endpoints of spec/gate.md
// part 4, each a thin translation between JSON and the packages that do the
// work. Conventions that hold for all of them are httpd's; what they mean is
// sqlgate's and commands'.
package gateapi

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"writegate/commands"
	"writegate/commands/checkpoints"
	"writegate/docs"
	"writegate/eventlog"
	"writegate/eventlog/checkpoint"
	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/http/httpd"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/pgexec"
)

// Options are what the endpoints stand on. All but TLS, Issuer and Fence are required.
type Options struct {
	Gate       *sqlgate.Gate
	Commands   *commands.Commands
	Store      *projections.Store
	Log        *eventlog.Log
	Database   *pgexec.DB
	Classifier *classify.Classifier
	Operators  *httpd.Operators
	Logs       *httpd.LogBuffer

	// TLS tells, for GET /health, of each side that has TLS; nil: none.
	TLS func() []TLSState

	// Wire counts, and WireHealth tells of, the wire listener; the latter gives
	// nil where it is off.
	Wire       func() WireStats
	WireHealth func() *WireHealth

	// Issuer tells of the issuer of agents' tokens; nil, or what gives nil: there is none.
	Issuer func() *IssuerState
	// Fence tells of the fence of the log; likewise.
	Fence func() *FenceState

	Version     string
	Started     time.Time
	MaxSQLBytes int
	Now         func() time.Time

	Checkpoints       *checkpoints.Keeper
	Source            evidence.Source // of bundles: the log
	MaxEvidenceEvents uint64
	MaxEvidenceBytes  int64
	Files             AuditFiles
	StreamsPerClient  int             // of GET /audit/stream at once
	Waits             httpd.Shares    // NewWaits, shared with the wire listener
	Stopping          context.Context // ends when the service is told to stop: streams must not hold it up
}

// api holds the options and the counters of its own.
type api struct {
	Options
	healthChecks atomic.Int64
	scrape       http.Handler
	exports      httpd.Shares // bundles that are written
	files        httpd.Shares // files beside the log that are verified
	streams      httpd.Shares // clients that follow the log
	compiles     httpd.Shares // policies and statements that are tried
	replays      httpd.Shares // of decisions, under another policy
}

// Register adds the endpoints of the gate to a mux.
func Register(mux *httpd.Mux, o Options) {
	a := &api{Options: o, exports: httpd.NewShares(maxExports, 1), files: httpd.NewShares(maxFiles, 1), streams: httpd.NewShares(maxStreams, o.StreamsPerClient),
		compiles: httpd.NewShares(maxCompiles, maxCompiles/2), replays: httpd.NewShares(sqlgate.ReplaysAtOnce, 1)}
	a.scrape = a.newMetrics()
	mux.Handle(http.MethodPost, "/query", a.query,
		httpd.Param{Name: "mode", For: []string{"preview", "dry_run", "explain", "simulate", "validate_only", "check", "test"}, Write: "mode=preview"},
		httpd.Param{Name: "idempotency_key"}, httpd.Param{Name: "sql"})

	mux.Handle(http.MethodGet, "/approvals", a.listApprovals)
	mux.Handle(http.MethodGet, "/approvals/:approval_id", a.getApproval)
	mux.Handle(http.MethodPost, "/approvals/:approval_id", onlyOf("approval_id", "purge", mux.Operator(a.purgeApprovals)))
	mux.Handle(http.MethodPost, "/approvals/:approval_id/resolve", mux.Operator(a.resolveApproval))

	mux.Handle(http.MethodPost, "/grants", mux.Operator(a.createGrant), httpd.Param{Name: "idempotency_key"})
	mux.Handle(http.MethodGet, "/grants", a.listGrants)
	mux.Handle(http.MethodGet, "/grants/:grant_id", a.getGrant)
	mux.Handle(http.MethodPost, "/grants/:grant_id", onlyOf("grant_id", "replay", mux.Operator(a.replayGrant)))
	mux.Handle(http.MethodPost, "/grants/:grant_id/revoke", mux.Operator(a.revokeGrant))

	mux.Handle(http.MethodGet, "/policy/status", a.policyStatus)
	mux.Handle(http.MethodGet, "/policy/versions", a.listVersions)
	mux.Handle(http.MethodGet, "/policy/versions/:version", a.getVersion)
	mux.Handle(http.MethodPost, "/policy/validate", a.validatePolicy)
	mux.Handle(http.MethodPost, "/policy/diff", a.diffPolicies)
	mux.Handle(http.MethodPost, "/policy/dry-run", a.dryRunPolicy)
	mux.Handle(http.MethodPost, "/policy/candidates", mux.Operator(a.createCandidate))
	mux.Handle(http.MethodPost, "/policy/activate", mux.Operator(a.activatePolicy))
	mux.Handle(http.MethodPost, "/policy/rollback", mux.Operator(a.rollbackPolicy))

	mux.Handle(http.MethodGet, "/audit", a.listAudit)
	mux.Handle(http.MethodGet, "/audit/stream", a.streamAudit)
	mux.Handle(http.MethodPost, "/audit/verify", a.verifyFile)
	mux.Handle(http.MethodPost, "/audit/evidence", a.exportEvidence)
	mux.Handle(http.MethodGet, "/audit/evidence/signing-public-key", a.signingKey)
	mux.Handle(http.MethodGet, "/evidence/verify", a.verifyEvidence)

	mux.Handle(http.MethodGet, "/executions", a.listExecutions)
	mux.Handle(http.MethodGet, "/executions/:execution_id", a.getExecution)
	mux.Handle(http.MethodPost, "/executions/:execution_id/check", mux.Operator(a.checkExecution))

	mux.HandleProbe("/health", a.health)
	mux.HandleProbe("/livez", a.live)
	mux.HandleProbe("/readyz", a.ready)
	mux.Handle(http.MethodGet, "/runtime/stats", a.stats)
	mux.Handle(http.MethodGet, "/metrics", a.metrics)
	mux.Handle(http.MethodGet, "/logs", a.logs)
	mux.Handle(http.MethodGet, "/openapi.json", httpd.Document(docs.OpenAPI))
}

// OnIncident turns what httpd noticed into an event, throttled by commands. A
// flood must not fill the log, and an event that cannot be written is no reason
// to answer the client otherwise.
func OnIncident(c *commands.Commands, log *slog.Logger) func(context.Context, httpd.Report) {
	return func(ctx context.Context, r httpd.Report) {
		err := c.RecordIncident(ctx, commands.Incident{
			Type: incidentTypes[r.Incident], RequestID: r.RequestID, Client: httpd.HolderOf(r.Client), Path: r.Path, Limit: int(r.Limit), Got: int(r.Got),
		})
		if err != nil {
			log.Warn("an incident could not be written to the event log", "source", "gate", "incident", string(r.Incident), "request_id", r.RequestID, "cause", err.Error())
		}
	}
}

// Receipts has every answer carry the receipt of the last event that its request
// made durable (design/eventlog.md part 9). One that cannot be made is no reason
// to answer otherwise: the event is in the log all the same.
func Receipts(log *slog.Logger) func(context.Context) (context.Context, func(http.Header)) {
	return func(ctx context.Context) (context.Context, func(http.Header)) {
		ctx, receipts := commands.WithReceipts(ctx)
		return ctx, func(h http.Header) {
			text, err := receipts.Text()
			if err != nil {
				log.Error("an answer goes without its receipt", "source", "gate", "cause", err.Error())
				return
			}
			if text != "" {
				h.Set(checkpoint.Header, text)
			}
		}
	}
}

// timestamp renders an optional moment: null where there is none.
func timestamp(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := event.Timestamp(t)
	return &text
}

// optional renders an optional text: null where there is none.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
