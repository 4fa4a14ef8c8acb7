package agentctl

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/sqlgate/agentrules"
)

// kept compiles a policy, or finds it compiled.
func kept(c *ruleCache, p *event.AgentPolicy) (*compiledPolicy, error) {
	return c.revision(p.PolicyID, p.Revision, func() (*event.AgentPolicy, error) { return p, nil })
}

// Policies are kept by what they take: one key may make as many as it wants.
func TestCompiledPoliciesAreKeptByTheirMemory(t *testing.T) {
	c, err := newRuleCache()
	require.NoError(t, err)
	policy := func(n int) *event.AgentPolicy {
		var rules []event.AgentRule
		for i := range 100 {
			rules = append(rules, event.AgentRule{ID: fmt.Sprintf("r%d", i), Action: "alert", Condition: `event.name == "` + strings.Repeat("x", 2000) + `"`})
		}
		return &event.AgentPolicy{PolicyID: fmt.Sprintf("pol_%d", n), Revision: 1, Rules: rules}
	}
	one := 0
	for n := range 16 {
		_, err := kept(c, policy(n))
		require.NoError(t, err)
		p, err := kept(c, policy(n))
		require.NoError(t, err)
		require.LessOrEqual(t, c.memory, maxCompiledMemory)
		one = p.weight.memory
	}
	require.Equal(t, maxCompiledMemory/one, c.policies.Len())
	_, there := c.get("pol_15@1")
	require.True(t, there, "the newest stays")
}

// Who needs a policy while it is compiled waits for that, and who does not get it because
// another one could not read it reads it.
func TestAPolicyIsCompiledOnceForAllWhoNeedItAtOnce(t *testing.T) {
	c, err := newRuleCache()
	require.NoError(t, err)
	policy := &event.AgentPolicy{PolicyID: "pol_1", Revision: 1, Rules: []event.AgentRule{{ID: "r1", Action: "log"}}}
	compiled, entered, goOn := 0, make(chan struct{}), make(chan struct{})
	c.compile = func(rules []event.AgentRule) ([]agentrules.Rule, []agentrules.Finding) {
		compiled++
		if compiled == 1 {
			close(entered)
		}
		<-goOn
		return agentrules.Compile(rules)
	}
	var asking sync.WaitGroup
	found := make([]*compiledPolicy, 20)
	for i := range found {
		asking.Go(func() {
			p, err := kept(c, policy)
			if err != nil {
				t.Error(err)
			}
			found[i] = p
		})
	}
	<-entered
	close(goOn)
	asking.Wait()
	require.Equal(t, 1, compiled)
	for _, p := range found {
		require.Same(t, found[0], p)
	}

	policy.Revision++
	reading, fails := make(chan struct{}), make(chan struct{})
	asking.Go(func() {
		_, err := c.revision("pol_1", 2, func() (*event.AgentPolicy, error) {
			close(reading)
			<-fails
			return nil, errOtherRevision
		})
		if !errors.Is(err, errOtherRevision) {
			t.Errorf("the revision was not there: %v", err)
		}
	})
	<-reading
	asking.Go(func() {
		if _, err := kept(c, policy); err != nil {
			t.Error(err)
		}
	})
	close(fails)
	asking.Wait()
	require.Equal(t, 2, compiled)
}
