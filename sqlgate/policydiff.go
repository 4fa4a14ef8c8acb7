package sqlgate

import (
	"context"

	"writegate/sqlgate/policy"
	"writegate/sqlgate/replay"
)

// A DiffAnswer is the answer of POST /policy/diff (design/policy.md part 8).
// Transitions is kept for proofs over all statements and is null.
type DiffAnswer struct {
	Base   PolicyRef `json:"base"`
	Target PolicyRef `json:"target"`
	policy.Difference
	Transitions any            `json:"transitions"`
	Replay      *replay.Report `json:"replay"`
}

// A PolicyRef names a policy and its bytes.
type PolicyRef struct {
	PolicyVersion string `json:"policy_version"`
	Hash          string `json:"hash"`
}

// DiffPolicies compares two versions, and with r their decisions on what the
// log recorded. Nothing is written.
func (g *Gate) DiffPolicies(ctx context.Context, base, target Source, r *ReplayRequest) (*DiffAnswer, error) {
	was, from, err := g.compiled(ctx, base)
	if err != nil {
		return nil, err
	}
	is, to, err := g.compiled(ctx, target)
	if err != nil {
		return nil, err
	}
	a := &DiffAnswer{Base: PolicyRef{from.version, from.hexHash()}, Target: PolicyRef{to.version, to.hexHash()}, Difference: policy.Diff(was, is)}
	if r != nil {
		a.Replay, err = g.replayBetween(ctx, was, is, *r)
	}
	return a, err
}
