package sqlgate

import (
	"context"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/projections"
	"writegate/sqlgate/classify"
	"writegate/sqlgate/policy"
)

// reasonApprovalPending marks the evidence of a retry that came too early.
const reasonApprovalPending = "approval_pending"

// lookUpApproval finds the approval that the request names and says what it
// allows, in the order of spec/decisions.md part 3: unknown, rejected, expired,
// mismatch, outcome unknown, already used, pending. A pending one answers 202
// once more; an approved one sets s.approved. The command that uses it checks
// all of it again under the approval's lock.
func (g *Gate) lookUpApproval(ctx context.Context, s *submission) (*Answer, error) {
	a, pending, err := g.Commands.LookUpApproval(s.ApprovalID, s.record.RequestDigest)
	switch {
	case err != nil:
		return nil, g.refuse(ctx, s, err)
	case pending:
		return g.stillPending(ctx, s, &a)
	}
	s.approved, s.approvalRows = true, a.MaxRows
	return nil, nil
}

// stillPending answers 202 with the same approval. The look is evidence too, as
// a request that reached no decision of its own.
func (g *Gate) stillPending(ctx context.Context, s *submission, a *projections.Approval) (*Answer, error) {
	err := g.Commands.RecordRejection(context.WithoutCancel(ctx), &commands.Rejection{
		Request: s.record, ReasonCode: reasonApprovalPending, Operation: s.classification.QueryType,
	})
	if err != nil {
		return nil, err
	}
	s.enforced = true
	s.result = policy.Result{
		Decision: policy.RequireApproval, ReasonCode: a.ReasonCode, RuleID: a.RuleID, Layer: policy.LayerPolicy,
		Message: a.Message, Remedy: a.Remedy,
	}
	answer := s.answer()
	if answer.AgentPolicyID = a.AgentPolicyID; a.AgentPolicyID != "" {
		answer.Result.Layer = policy.LayerAgent
	}
	answer.PolicyVersion = a.PolicyVersion
	answer.ApprovalID, answer.ApprovalExpiresAt = a.ID, a.ExpiresAt
	return answer, nil
}

// maxRows is the row limit that binds the execution: the smaller of what was
// approved and what the policy of this moment says. nil is no limit.
func (s *submission) maxRows() *int64 {
	limit := s.approvalRows
	now := s.result.Approval
	if s.result.Decision == policy.Allow && now != nil && now.MaxRows != nil && (limit == nil || *now.MaxRows < *limit) {
		limit = now.MaxRows
	}
	return limit
}

// countable refuses a row limit where changed rows cannot be counted
// (design/execution-and-wire.md part 2).
func (s *submission) countable() error {
	c, limit := &s.classification, s.maxRows()
	counted := c.Run == classify.RunTransaction && (c.Class == classify.ClassWrite || c.Class == classify.ClassProcedural)
	if limit == nil || counted || c.Run == classify.RunReadFence {
		return nil
	}
	return fault.New(fault.RowLimitExceeded, "The approval limits the number of changed rows, and those of a %s cannot be counted. Ask for an approval under a rule without max_rows.", c.QueryType).
		With("reason", "not_countable").With("max_rows", *limit)
}
