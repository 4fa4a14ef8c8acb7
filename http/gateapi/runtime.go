package gateapi

import (
	"context"
	"encoding/hex"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"writegate/commands"
	"writegate/commands/checkpoints"
	"writegate/eventlog/event"
	"writegate/http/httpd"
	"writegate/projections"
	"writegate/sqlgate"
	"writegate/sqlgate/classify"
)

// databaseLook bounds what GET /health spends on asking the database.
const databaseLook = time.Second

// healthBody is GET /health (spec/decisions.md part 11).
type healthBody struct {
	Status        string              `json:"status"`
	Version       string              `json:"version"`
	UptimeSeconds int64               `json:"uptime_seconds"`
	Mode          string              `json:"mode"`
	Bypass        bool                `json:"bypass,omitempty"`
	BypassUntil   string              `json:"bypass_until,omitempty"`
	BypassReason  string              `json:"bypass_reason,omitempty"`
	StartupChain  []sqlgate.StepState `json:"startup_chain"`
	Database      statusBody          `json:"database"`
	Log           logBody             `json:"log"`
	LogFence      *FenceState         `json:"log_fence,omitempty"`
	Checkpoints   *checkpointsBody    `json:"checkpoints,omitempty"`
	TLS           []TLSState          `json:"tls,omitempty"`
	Wire          *WireHealth         `json:"wire,omitempty"`
	AgentOIDC     *IssuerState        `json:"agent_oidc,omitempty"`
	Message       string              `json:"message,omitempty"`
}

// An IssuerState is how the issuer of agents' tokens stands. One that is down takes nothing
// from other agents, so it does not change the status of the gate.
type IssuerState struct {
	Status     string  `json:"status"` // ok, degraded
	Message    string  `json:"message"`
	Issuer     string  `json:"issuer"`
	Keys       int     `json:"keys"`
	KeysReadAt *string `json:"keys_read_at"`

	KeysAge time.Duration `json:"-"` // since then; negative = they were never read
}

// A FenceState is how the fence of the log stands: unconfirmed takes nothing for a while, and lost for good.
type FenceState struct {
	Status  string `json:"status"` // ok, unconfirmed or lost
	Message string `json:"message"`
	Epoch   uint64 `json:"epoch"` // that this run took; 0 = none

	Age time.Duration `json:"-"` // since it was confirmed; negative = it never was
}

// A TLSState is the certificates of one side of the gate.
type TLSState struct {
	Side      string `json:"side"`       // clients or database
	Status    string `json:"status"`     // ok, expires_soon, reload_failed or expired
	ExpiresAt string `json:"expires_at"` // when the first of what is in use ends
	Message   string `json:"message"`
}

// TLSExpired is the status of a side to which nobody can connect any more.
const TLSExpired = "expired"

type statusBody struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

type logBody struct {
	Seq       uint64 `json:"seq"`
	EventHash string `json:"event_hash"`
	Fsync     string `json:"fsync,omitempty"`
	// VerifiedTo is the last event before the damage, where a verification found some.
	VerifiedTo *uint64 `json:"verified_to,omitempty"`
}

// health is GET /health. A database out of reach shows and does not change the
// status: the gate protects all the same.
func (a *api) health(c *httpd.Call) error {
	a.healthChecks.Add(1)
	head := a.Log.Head()
	body := healthBody{
		Status: "ok", Version: a.Version, UptimeSeconds: int64(a.Now().Sub(a.Started).Seconds()), Mode: a.Gate.ModeNow(),
		Bypass: a.Gate.ModeNow() == sqlgate.ModeEmergencyBypass, StartupChain: a.Gate.Chain().Steps(), Database: a.databaseStatus(c.Request.Context()),
		Log: logBody{Seq: head.Seq, EventHash: hex.EncodeToString(head.Hash[:])},
	}
	if body.Bypass {
		body.BypassUntil, body.BypassReason = event.Timestamp(a.Gate.BypassUntil), a.Gate.BypassReason
	}
	if verified, damaged := a.Log.Damaged(); damaged {
		body.Log.VerifiedTo = &verified
	}
	if a.Checkpoints.Signs() {
		body.Checkpoints = newCheckpointsBody(a.Checkpoints.Status())
	}
	if a.TLS != nil {
		body.TLS = a.TLS()
	}
	body.Wire = a.WireHealth()
	if a.Issuer != nil {
		body.AgentOIDC = a.Issuer()
	}
	if a.Fence != nil {
		body.LogFence = a.Fence()
	}
	if body.Message = a.failure(body.TLS); body.Message != "" {
		body.Status = "non-ok"
	}
	status := http.StatusOK
	if body.Status != "ok" {
		status = http.StatusServiceUnavailable
	}
	c.JSON(status, body)
	return nil
}

// failure says why the gate does not protect; "" where it does.
func (a *api) failure(sides []TLSState) (message string) {
	for _, side := range sides {
		if side.Status == TLSExpired {
			message = "tls, " + side.Side + ": " + side.Message
		}
	}
	if f := a.Gate.Chain().Failure(); f != nil {
		message = f.Step + ": " + f.Message
	}
	if err := a.Store.Full(); err != nil {
		message = "projections, storage: " + err.Error()
	}
	if h := a.Log.Health(); !h.OK && (h.Step != "fence" || message == "") { // a log that is damaged is never taken, and that is the news
		message = "event log, " + h.Step + ": " + h.Message
	}
	return message
}

// probeBody is GET /livez and GET /readyz: for machines, which are told no reasons.
type probeBody struct {
	Status string `json:"status"` // ok or non-ok
}

// live is GET /livez: whoever answers is alive. A gate that refuses everything on purpose
// is, and a new start would not help it.
func (a *api) live(c *httpd.Call) error {
	c.JSON(http.StatusOK, probeBody{"ok"})
	return nil
}

// ready is GET /readyz: what GET /health says, without a look at the database.
func (a *api) ready(c *httpd.Call) error {
	var sides []TLSState
	if a.TLS != nil {
		sides = a.TLS()
	}
	if a.failure(sides) != "" {
		c.JSON(http.StatusServiceUnavailable, probeBody{"non-ok"})
		return nil
	}
	c.JSON(http.StatusOK, probeBody{"ok"})
	return nil
}

// checkpointsBody is how the signed checkpoints stand. One that fails, or a
// witness out of reach, does not change the status: the gate protects all the same.
type checkpointsBody struct {
	Size      uint64        `json:"size"`
	SignedAt  *string       `json:"signed_at"`
	Status    string        `json:"status"` // ok or failed
	Message   string        `json:"message"`
	Witnesses []witnessBody `json:"witnesses"`
}

type witnessBody struct {
	URL     string  `json:"url"`
	Status  string  `json:"status"` // ok, pending, unavailable or conflict
	Size    uint64  `json:"size"`
	AskedAt *string `json:"asked_at"`
	Message string  `json:"message"`
}

func newCheckpointsBody(s checkpoints.Status) *checkpointsBody {
	b := &checkpointsBody{Size: s.Size, SignedAt: timestamp(s.SignedAt), Status: "ok", Message: s.Failure, Witnesses: []witnessBody{}}
	if s.Failure != "" {
		b.Status = "failed"
	}
	for _, w := range s.Witnesses {
		b.Witnesses = append(b.Witnesses, witnessBody{w.URL, witnessStatus(w), w.Size, timestamp(w.AskedAt), w.Message})
	}
	return b
}

func witnessStatus(w checkpoints.WitnessStatus) string {
	switch {
	case w.Conflict:
		return "conflict"
	case w.Message != "":
		return "unavailable"
	case w.AskedAt.IsZero():
		return "pending"
	}
	return "ok"
}

func (a *api) databaseStatus(ctx context.Context) statusBody {
	ctx, cancel := context.WithTimeout(ctx, databaseLook)
	defer cancel()
	s := a.Database.Status(ctx)
	if s.OK {
		return statusBody{"ok", s.Message}
	}
	return statusBody{"unavailable", s.Message}
}

// statsBody is GET /runtime/stats (spec/decisions.md part 11).
type statsBody struct {
	UptimeSeconds int64  `json:"uptime_seconds"`
	Version       string `json:"version"`
	Mode          string `json:"mode"`
	sqlgate.Stats
	PolicyVersion     string               `json:"policy_version"`
	ApprovalsPending  int                  `json:"approvals_pending"`
	ApprovalsResolved int                  `json:"approvals_resolved"`
	ExecutionsUnknown int                  `json:"executions_unknown"`
	HealthChecks      int64                `json:"health_checks"`
	Parser            classify.ParserStats `json:"parser"`
	Pool              poolBody             `json:"pool"`
	Sessions          sqlgate.SessionStats `json:"sessions"`
	Wire              WireStats            `json:"wire"`
}

type poolBody struct {
	InUse       int   `json:"in_use"`
	Idle        int   `json:"idle"`
	Waits       int64 `json:"waits"`
	Quarantined int64 `json:"quarantined"`
}

// WireStats are the counters of the wire listener; all zero where it is off.
type WireStats struct {
	Connections int   `json:"connections"` // that logged in
	Blocks      int   `json:"blocks"`      // transaction blocks that are open
	Cancels     int64 `json:"cancels"`     // requests to cancel since the start
}

// WireHealth is the wire listener in GET /health.
type WireHealth struct {
	Status  string `json:"status"` // ok, or users_refused: the newest users file is not in use
	Message string `json:"message"`
}

func (a *api) stats(c *httpd.Call) error {
	view := a.Store.ViewWithin(c.Request.Context())
	defer view.Close()
	pending, err := view.ApprovalsPending(a.Now())
	if err != nil {
		return commands.ViewFault(err)
	}
	counters, pool := view.Counters(), a.Database.Stats()
	c.JSON(http.StatusOK, statsBody{
		UptimeSeconds: int64(a.Now().Sub(a.Started).Seconds()), Version: a.Version, Mode: a.Gate.ModeNow(), Stats: a.Gate.Stats(),
		PolicyVersion: a.Gate.PolicyVersion(), ApprovalsPending: pending, ApprovalsResolved: counters.ApprovalsResolved(),
		ExecutionsUnknown: counters.ExecutionsUnknown, HealthChecks: a.healthChecks.Load(), Parser: a.Classifier.Stats(),
		Pool:     poolBody{pool.InUse, pool.Idle, pool.Waits, pool.Quarantined},
		Sessions: a.Gate.Sessions(), Wire: a.Wire(),
	})
	return nil
}

// entryBody is one entry of GET /logs.
type entryBody struct {
	Timestamp string `json:"timestamp"`
	Level     string `json:"level"`
	Source    string `json:"source"`
	Message   string `json:"message"`
	ErrorID   string `json:"error_id"`
	RequestID string `json:"request_id"`
	TraceID   string `json:"trace_id"`
	// Recorded tells that the event log holds events of the request.
	Recorded   bool              `json:"recorded"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

var logLevels = map[string]slog.Level{"": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

// logs is GET /logs: operational entries from memory, no evidence.
func (a *api) logs(c *httpd.Call) error {
	label, err := c.OperatorLabel()
	if err != nil {
		return err
	}
	query, page, err := c.List("level", "source")
	if err != nil {
		return err
	}
	level, ok := logLevels[query.Get("level")]
	if !ok {
		return fieldFault("level", "must be debug, info, warn or error")
	}
	entries, next, err := a.Logs.Entries(httpd.LogFilter{Level: level, Source: query.Get("source")}, page)
	if err != nil {
		return err
	}
	view := a.Store.ViewWithin(c.Request.Context())
	defer view.Close()
	recorded := make(map[string]bool)
	list := c.NewList()
	for i := range entries {
		e := &entries[i]
		if _, looked := recorded[e.RequestID]; !looked && e.RequestID != "" {
			found, _, _ := view.Audit(projections.AuditFilter{RequestID: e.RequestID}, projections.Page{Limit: 1, Work: projections.PageWork}) // where events can't be found none is led to
			recorded[e.RequestID] = len(found) > 0
		}
		attributes := e.Attributes
		if label == "" {
			attributes = e.Open()
		}
		room, err := list.Add(entryBody{event.Timestamp(e.Timestamp), strings.ToLower(e.Level.String()), e.Source, e.Message, e.ErrorID, e.RequestID, e.TraceID,
			recorded[e.RequestID], attributes})
		if err != nil {
			return err
		}
		if !room {
			next = e.Cursor()
			break
		}
	}
	list.Send(next)
	return nil
}
