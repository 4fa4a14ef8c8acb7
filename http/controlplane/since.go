package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
)

// A since is what another policy, which became active after an approval was asked for,
// decides about its statement.
type since struct {
	Version string
	Grave   bool   // less may run than was asked for, or nobody knows
	Words   string // what to approve it comes to
	MaxRows *int64 // its own limit
}

// sinceOf asks what the active policy decides about an approval that can still be given or
// used; nil: no other one is active.
func (s *Server) sinceOf(ctx context.Context, r *approvalRow, active string) *since {
	if active == "" || active == r.PolicyVersion || r.Status != "pending" && !r.Usable() {
		return nil
	}
	result, err := s.decidedNow(ctx, &r.approval, active)
	if err != nil {
		return sinceUnder(&r.approval, active, nil)
	}
	return sinceUnder(&r.approval, active, &result)
}

// SinceOf is that in words, and whether it is grave, for who decides elsewhere, by a record of GET
// /approvals/{id} and what POST /policy/dry-run answers under the version; nil: it was not to be had.
func SinceOf(record json.RawMessage, version string, answer json.RawMessage) (words string, grave bool, err error) {
	var a approval
	if err := json.Unmarshal(record, &a); err != nil {
		return "", false, broken(err)
	}
	var result *dryRunResult
	if err := json.Unmarshal(answer, &result); answer != nil && err != nil {
		return "", false, broken(err)
	}
	n := sinceUnder(&a, version, result)
	return n.Words, n.Grave, nil
}

func sinceUnder(a *approval, version string, result *dryRunResult) *since {
	n := &since{Version: version, Grave: true}
	switch { // what EXECUTE runs is not known to a dry run, and the rules of an agent ask under any policy
	case result == nil, a.PreparedSQL != "", a.Principal != "", a.AgentID != "": // nor has it what was proven of who asks
		n.Words = version + " is active now and decides when it is sent again. What, is not known here."
	case result.Decision == "BLOCK":
		n.Words = fmt.Sprintf("It does not run, approved or not: %s is active now and blocks it (%s).", version, result.RuleID)
	case result.Approval != nil && result.Approval.MaxRows != nil && (a.MaxRows == nil || *result.Approval.MaxRows < *a.MaxRows):
		n.MaxRows = result.Approval.MaxRows
		n.Words = fmt.Sprintf("It may then run once and change %s at most: %s is active now and has that limit.", plural(int(*n.MaxRows), "row", "rows"), version)
	case result.Decision == "REQUIRE_APPROVAL" || a.DecidedBy.PolicyID != "":
		n.Grave, n.Words = false, "It may then run once, exactly as shown, when the caller sends it again in time: "+version+" is active now and asks for that, too."
	default:
		n.Grave, n.Words = false, version+" is active now and lets it run without an approval."
	}
	return n
}
