package sqlgate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A statement may wait for the parser, or for its turn in a session, and meanwhile
// another policy is activated: that one decides.
func TestADecisionIsOfThePolicyOfItsMoment(t *testing.T) {
	g := newWireWorld(t, nil).Gate
	r := &Request{RequestID: "req_1", SQL: "SELECT 1", Claims: Claims{Actor: "a", App: "app", Tenant: "t", Role: "r", Host: "h", Env: "prod"}}
	s := &submission{Request: r, policy: &runningPolicy{version: "gone@1.0.0"}, mode: ModeShadow}
	s.record = g.recordOf(r)
	var err error
	s.classification, err = g.Classifier.Classify(t.Context(), r.SQL)
	require.NoError(t, err)
	require.NoError(t, g.decide(t.Context(), s))
	require.Same(t, g.running.Load(), s.policy)
	require.Equal(t, g.ModeNow(), s.mode)
	require.Equal(t, s.policy.version, s.decision.PolicyVersion)
}
