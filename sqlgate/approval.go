package sqlgate

import (
	"context"
	"slices"
	"strings"

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
	a, pending, err := g.Commands.LookUpApproval(ctx, s.ApprovalID, s.record.RequestDigest, s.ExecutionProfile)
	switch {
	case err != nil:
		return nil, g.refuse(ctx, s, err)
	case pending:
		return g.stillPending(ctx, s, &a)
	}
	if a.Fingerprint != s.classification.Fingerprint {
		return nil, g.refuse(ctx, s, fault.New(fault.ApprovalMismatch, "What stands in the database behind the names in the statement is other than what was approved. Ask for an approval again."))
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

// maxRows is the row limit that binds the execution: the smallest of what was
// approved, what is left of a grant and what the policy of this moment says. nil is no limit.
func (s *submission) maxRows() *int64 {
	limit := s.approvalRows
	now := s.result.Approval
	if s.result.Decision == policy.Allow && now != nil && now.MaxRows != nil && (limit == nil || *now.MaxRows < *limit) {
		limit = now.MaxRows
	}
	if s.grant != nil && (limit == nil || s.grant.rows < *limit) {
		limit = &s.grant.rows
	}
	return limit
}

// countable refuses a row limit where changed rows cannot be counted
// (design/execution-and-wire.md part 2).
func (s *submission) countable() error {
	limit := s.maxRows()
	if limit == nil {
		return nil
	}
	what := Uncounted(&s.classification, s.statement().SQL)
	if what == "" {
		return nil
	}
	return fault.New(fault.RowLimitExceeded, "The approval limits the number of changed rows, and %s cannot be counted. Ask for an approval under a rule without max_rows.", what).
		With("reason", "not_countable").With("max_rows", *limit)
}

// Uncounted names the changed rows of a statement that cannot be counted: it never runs under
// a limit of them. "": they can be, as far as its text tells, or there are none.
func Uncounted(c *classify.Classification, text string) string {
	switch {
	case c.Run == classify.RunReadFence, slices.Contains(withoutSnapshot, c.QueryType):
		return ""
	case slices.Contains(c.Functions, "set_config"), strings.Contains(strings.ToLower(text), "track_counts"):
		return "those of a statement that changes settings" // track_counts switches the count off
	case c.Run == classify.RunTransaction && c.QueryType != classify.TypeRefresh && (c.Class == classify.ClassWrite || c.Class == classify.ClassProcedural):
		return ""
	}
	return "those of a " + c.QueryType
}

// callsUserCode reports whether the statement calls code that is not built in, as
// far as its text tells: triggers and the like do not show there.
func (s *submission) callsUserCode() bool {
	c := &s.classification
	return c.Class == classify.ClassProcedural || c.UserTypes || slices.Contains(c.RiskSignals, classify.SignalUnknownFunction)
}
