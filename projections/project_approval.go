package projections

import (
	"time"

	"writegate/eventlog/event"
)

func approvalKey(id string) []byte { return []byte(keyApproval + id) }

func approvalCreated(t *tx, e *event.Envelope, p *event.ApprovalCreated) {
	a := Approval{
		ID: e.Context.ApprovalID, State: ApprovalPending, Seq: e.Seq, RequestID: e.Context.RequestID,
		Actor: e.Context.Actor, App: e.Context.App, Tenant: e.Context.Tenant, Env: e.Context.Env, SessionID: e.Context.SessionID,
		AgentID: e.Context.AgentID, AgentPolicyID: p.AgentPolicyID, Profile: p.Profile, Project: e.Context.Project, Role: p.Role, Host: p.Host, Principal: p.Principal,
		SQL: p.SQL, SQLDigest: p.SQLDigest, RequestDigest: p.RequestDigest, Classification: p.Classification,
		Operation: e.Context.Operation, Fingerprint: e.Context.Fingerprint, PolicyVersion: e.Context.PolicyVersion, ReasonCode: e.Context.ReasonCode,
		RuleID: p.RuleID, Message: p.Message, Remedy: p.Remedy, PreparedSQL: p.PreparedSQL, Impact: p.Impact, Salt: p.Salt, Parameters: p.Parameters, MaxRows: p.MaxRows, TTLSeconds: p.TTLSeconds,
		CreatedAt: e.Time, ExpiresAt: time.Unix(0, p.ExpiresAt).UTC(),
	}
	t.put(approvalKey(a.ID), &a)
	t.keep(listKey(keyApprovalList, a.State, a.Seq), []byte(a.ID))
	t.keep(dueKey(keyApprovalDue, a.ExpiresAt, a.ID), nil)
	t.count(func(c *Counters) { c.ApprovalsPending++ })
}

// approval hands an approval to change and writes it back. One that was purged
// stays away: what is purged can't come back by a late event.
func (t *tx) approval(id string, change func(*Approval)) {
	if id == "" {
		return
	}
	var a Approval
	if !t.get(approvalKey(id), &a) {
		return
	}
	before := a.State
	change(&a)
	t.put(approvalKey(id), &a)
	if a.State != before {
		t.moveApproval(&a, before)
	}
}

func (t *tx) moveApproval(a *Approval, before string) {
	t.delete(listKey(keyApprovalList, before, a.Seq))
	t.keep(listKey(keyApprovalList, a.State, a.Seq), []byte(a.ID))
	if before == ApprovalPending {
		t.delete(dueKey(keyApprovalDue, a.ExpiresAt, a.ID))
	}
	t.count(func(c *Counters) {
		*c.approvals(before)--
		*c.approvals(a.State)++
	})
}

// approvals is the counter of a state.
func (c *Counters) approvals(state string) *int {
	switch state {
	case ApprovalApproved:
		return &c.ApprovalsApproved
	case ApprovalRejected:
		return &c.ApprovalsRejected
	case ApprovalExpired:
		return &c.ApprovalsExpired
	default:
		return &c.ApprovalsPending
	}
}

func approvalResolved(t *tx, e *event.Envelope, p *event.ApprovalResolved) {
	t.approval(e.Context.ApprovalID, func(a *Approval) {
		a.State = ApprovalRejected
		if p.Resolution == event.ResolutionApprove {
			a.State = ApprovalApproved
		}
		a.Resolution, a.Note, a.ResolvedBy, a.ResolvedAt = p.Resolution, p.Note, p.By, e.Time
	})
}

func approvalExpired(t *tx, e *event.Envelope, _ *event.ApprovalExpired) {
	t.approval(e.Context.ApprovalID, func(a *Approval) {
		if a.State == ApprovalPending {
			a.State = ApprovalExpired
		}
	})
}

func approvalUsed(t *tx, e *event.Envelope, _ *event.ApprovalUsed) {
	t.approval(e.Context.ApprovalID, func(a *Approval) {
		a.Use, a.ExecutionID, a.UsedAt = UseTaken, e.Context.ExecutionID, e.Time
	})
}

func approvalsPurged(t *tx, _ *event.Envelope, p *event.ApprovalsPurged) {
	for _, id := range p.ApprovalIDs {
		var a Approval
		if !t.get(approvalKey(id), &a) {
			continue
		}
		t.delete(approvalKey(id))
		t.delete(listKey(keyApprovalList, a.State, a.Seq))
		if a.State == ApprovalPending {
			t.delete(dueKey(keyApprovalDue, a.ExpiresAt, a.ID))
		}
		t.count(func(c *Counters) { *c.approvals(a.State)-- })
	}
}

// useOf tells the approval what became of the execution under it. A newer
// execution under the same approval is not touched by news of an older one.
func (t *tx) useOf(x *Execution, use ApprovalUse) {
	t.approval(x.ApprovalID, func(a *Approval) {
		if a.ExecutionID == x.ID {
			a.Use = use
		}
	})
}
