package commands

import (
	"context"
	"time"

	"writegate/eventlog/event"
	"writegate/projections"
)

// This file is the border between what the views hold and what deciding needs:
// the decide functions see only the small structs made here.

// stateOf gives the facts of an approval.
func stateOf(a *projections.Approval) *approvalState {
	s := &approvalState{id: a.ID, requestDigest: a.RequestDigest, profile: a.Profile, expiresAt: a.ExpiresAt,
		expired: a.State == projections.ApprovalExpired, withdrawn: a.Withdrawn, resolution: a.Resolution, resolvedAt: a.ResolvedAt,
		resolvedBy: a.ResolvedBy, note: a.Note, executionID: a.ExecutionID,
		claims: event.Context{ApprovalID: a.ID, PolicyVersion: a.PolicyVersion, Fingerprint: a.Fingerprint,
			Actor: a.Actor, App: a.App, Tenant: a.Tenant, Env: a.Env, SessionID: a.SessionID,
			AgentID: a.AgentID, Project: a.Project}}
	switch a.Use {
	case projections.UseTaken:
		s.use = used
	case projections.UseUnknown:
		s.use = unknown
	}
	return s
}

// dueApprovals lists pending approvals whose time is over, at most a chunk of
// them, and gives the moment at which the next one falls due.
func (c *Commands) dueApprovals(now time.Time) (ids []string, next time.Time, err error) {
	err = c.look(context.Background(), func(view *projections.View) (err error) {
		ids, next, err = view.DueApprovals(now, expiryChunk)
		return err
	})
	return ids, next, err
}

// withdrawnApprovals lists pending approvals that are withdrawn, at most a chunk of
// them.
func (c *Commands) withdrawnApprovals() (ids []string, err error) {
	err = c.look(context.Background(), func(view *projections.View) (err error) {
		ids, err = view.WithdrawnApprovals(expiryChunk)
		return err
	})
	return ids, err
}

// expiredApprovals lists approvals that a purge would remove, at most a chunk.
func (c *Commands) expiredApprovals(now time.Time) (ids []string, err error) {
	err = c.look(context.Background(), func(view *projections.View) error {
		filter := projections.ApprovalFilter{Status: projections.StatusExpired, Now: now}
		_, err := view.EachApproval(filter, projections.Page{Limit: expiryChunk}, func(a *projections.Approval) (bool, error) {
			ids = append(ids, a.ID)
			return true, nil
		})
		return err
	})
	return ids, err
}

// openExecutions are those without a result.
func (c *Commands) openExecutions() (open []openExecution, err error) {
	err = c.look(context.Background(), func(view *projections.View) error {
		list, err := view.OpenExecutions()
		for i := range list {
			open = append(open, openOf(&list[i]))
		}
		return err
	})
	return open, err
}

func openOf(e *projections.Execution) openExecution {
	return openExecution{path: e.Path, keyed: e.KeyScope != [32]byte{},
		shared: event.Context{Operation: e.Operation, Fingerprint: e.Fingerprint, PolicyVersion: e.PolicyVersion, Actor: e.Actor, App: e.App, Tenant: e.Tenant,
			Env: e.Env, SessionID: e.SessionID, AgentID: e.AgentID, Project: e.Project, ApprovalID: e.ApprovalID, RequestID: e.RequestID, ExecutionID: e.ID}}
}
