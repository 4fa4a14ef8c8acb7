package agentctl

import (
	"context"

	"writegate/commands"
	"writegate/eventlog/event"
)

// NoteLimit leaves evidence of a request over the rate limit: one event for
// each credential and minute.
func (s *Service) NoteLimit(ctx context.Context, c *Caller, q Quota, requestID, path string) {
	err := s.Commands.RecordIncident(context.WithoutCancel(ctx), commands.Incident{Type: event.TypeRateLimitHit, RequestID: requestID,
		Client: q.CredentialID, Path: path, Limit: RequestLimit, Project: c.Project, AgentID: c.AgentID})
	if err != nil {
		s.Logger.Warn("a request over the rate limit could not be written to the event log", "source", "agents", "request_id", requestID, "cause", err.Error())
	}
}
