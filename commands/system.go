package commands

import (
	"cmp"
	"context"
	"encoding/hex"
	"slices"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
)

// An Incident is something a client did that is written down, throttled.
type Incident struct {
	Type      event.Type // rate_limit_hit, oversized_request, operator_auth_failed or wire_login_failed
	RequestID string
	Client    string // the certificate's subject or the remote address
	Path      string
	Limit     int    // 0 = does not apply
	Got       int    // 0 = does not apply
	Project   string // of the credential that is over its limit; "" = it has none
	AgentID   string
	Login     Login // of wire_login_failed
}

// A Login is a connection to the wire listener that was refused.
type Login struct {
	Cause    string // as event.WireLoginFailed has it
	SQLState string
	User     string // as it was claimed
}

// RecordIncident counts an incident and writes its event where one is due. Most
// calls write nothing and cost a look into a table.
func (c *Commands) RecordIncident(ctx context.Context, i Incident) error {
	if !slices.Contains(floodTypes, i.Type) {
		return misuse("an incident of type " + string(i.Type))
	}
	now := c.now()
	f, due := c.floods.note(i.Type, flood{event.Flood{Client: i.Client, Path: i.Path, Limit: i.Limit, Got: i.Got}, i.Login}, now)
	if !due {
		return nil
	}
	draft := floodEvent(now, i.Type, f)
	draft.Context.RequestID, draft.Context.Project, draft.Context.AgentID = i.RequestID, i.Project, i.AgentID
	_, err := c.append(ctx, eventlog.Group{Drafts: []event.Draft{draft}})
	return err
}

// RunThrottle writes what was counted and not yet told, each minute, until ctx
// ends. The rest is written by Shutdown.
func (c *Commands) RunThrottle(ctx context.Context) {
	ticker := time.NewTicker(floodEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := c.FlushIncidents(ctx); err != nil {
			c.logs.Warn("counted incidents could not be written", "source", "commands", "error", err)
		}
	}
}

// FlushIncidents writes what was counted and is due.
func (c *Commands) FlushIncidents(ctx context.Context) error {
	now := c.now()
	for chunk := range slices.Chunk(append(c.floods.flush(now, false), c.outages.flush(now, false)...), expiryChunk) {
		if _, err := c.append(ctx, eventlog.Group{Drafts: chunk}); err != nil {
			return err
		}
	}
	return nil
}

// RecordHealthFail says that a step of the service's health failed. It is taken
// from the log's reserve, since a full volume is one such step.
func (c *Commands) RecordHealthFail(ctx context.Context, step, message, reasonCode string) error {
	return c.recordSystem(ctx, "check_health", reasonCode, &event.HealthFail{Step: step, Message: message})
}

// RecordCorruption says that the log was found damaged while the service runs.
// From then on every command is refused with audit_corruption_detected, also
// when this event can't be written.
func (c *Commands) RecordCorruption(ctx context.Context, kind, detail string, seq uint64) error {
	f := fault.New(fault.AuditCorruptionDetected, "The event log is damaged, so the service only answers reads. Tell the operator: GET /evidence/verify shows the damage.")
	if !c.refused.CompareAndSwap(nil, f) {
		return nil // it is known, and one event is enough
	}
	return c.recordSystem(ctx, "verify_log", kind, &event.AuditCorruptionDetected{Kind: kind, Detail: detail, Seq: seq})
}

// RecordCheckpoint names a checkpoint that was signed and stored, and gives the
// number of its event.
func (c *Commands) RecordCheckpoint(ctx context.Context, p *event.CheckpointSigned) (uint64, error) {
	draft := event.New(c.now(), event.Context{Actor: systemActor, Operation: "sign_checkpoint"}, p)
	done, err := c.commit(ctx, eventlog.Group{Drafts: []event.Draft{draft}})
	return done.Last, err
}

// RecordExport says that an evidence bundle is about to leave, under the name
// that the contract calls evidence_bundle. by is the operator whose token came
// with the request, "" without one. After an error nothing may leave.
func (c *Commands) RecordExport(ctx context.Context, by string, p *event.EvidenceExported) error {
	shared := event.Context{Actor: cmp.Or(by, p.Client), Operation: "export_evidence", EvidenceBundle: BundleName(p.Digest)}
	_, err := c.commit(ctx, eventlog.Group{Drafts: []event.Draft{event.New(c.now(), shared, p)}})
	return err
}

// BundleName names an evidence bundle by the SHA-256 of its document.
func BundleName(digest [32]byte) string { return "sha256:" + hex.EncodeToString(digest[:]) }

func (c *Commands) recordSystem(ctx context.Context, operation, reasonCode string, p event.Typed) error {
	draft := event.New(c.now(), event.Context{Actor: systemActor, Operation: operation, ReasonCode: reasonCode}, p)
	_, err := c.commit(ctx, eventlog.Group{Drafts: []event.Draft{draft}, Reserve: true})
	return err
}
