package agentctl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// Policies are kept by what they weigh: one key may make as many as it wants.
func TestCompiledPoliciesAreKeptByTheirWeight(t *testing.T) {
	c, err := newRuleCache()
	require.NoError(t, err)
	policy := func(n int) *event.AgentPolicy {
		var rules []event.AgentRule
		for i := range 100 {
			rules = append(rules, event.AgentRule{ID: fmt.Sprintf("r%d", i), Action: "alert", Condition: `event.name == "` + strings.Repeat("x", 2000) + `"`})
		}
		return &event.AgentPolicy{PolicyID: fmt.Sprintf("pol_%d", n), Revision: 1, Rules: rules}
	}
	for n := range 6 {
		_, err := c.rules(policy(n))
		require.NoError(t, err)
		_, err = c.rules(policy(n))
		require.NoError(t, err)
		require.LessOrEqual(t, c.weight, maxCompiledWeight)
	}
	require.Equal(t, maxCompiledWeight/(100*2*len(policy(0).Rules[0].Condition)), c.compiled.Len())
	_, kept := c.get("pol_5@1")
	require.True(t, kept, "the newest stays")
}
