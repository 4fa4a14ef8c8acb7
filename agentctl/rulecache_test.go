package agentctl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/sqlgate/agentrules"
)

// kept compiles a policy, or finds it compiled.
func kept(c *ruleCache, p *event.AgentPolicy) (*compiledPolicy, error) {
	return c.revision(context.Background(), "default", p.PolicyID, p.Revision, func() (*event.AgentPolicy, error) { return p, nil })
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
	synctest.Test(t, func(t *testing.T) {
		c, err := newRuleCache()
		require.NoError(t, err)
		policy := &event.AgentPolicy{PolicyID: "pol_1", Revision: 1, Rules: []event.AgentRule{{ID: "r1", Action: "log"}}}
		var compiled atomic.Int32
		goOn := make(chan struct{})
		c.compile = func(rules []event.AgentRule) ([]agentrules.Rule, []agentrules.Finding) {
			compiled.Add(1)
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
		synctest.Wait() // each waits for one compilation
		close(goOn)
		asking.Wait()
		require.Equal(t, int32(1), compiled.Load())
		for _, p := range found {
			require.Same(t, found[0], p)
		}

		policy.Revision++
		fails := make(chan struct{})
		asking.Go(func() {
			_, err := c.revision(context.Background(), "default", "pol_1", 2, func() (*event.AgentPolicy, error) {
				<-fails
				return nil, errOtherRevision
			})
			if !errors.Is(err, errOtherRevision) {
				t.Errorf("the revision was not there: %v", err)
			}
		})
		synctest.Wait()
		asking.Go(func() {
			if _, err := kept(c, policy); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(fails)
		asking.Wait()
		require.Equal(t, int32(2), compiled.Load())
	})
}

// Long policies of a project are compiled one by one, however many requests need them, and
// who waits for that can leave.
func TestLongPoliciesOfAProjectAreCompiledOneByOne(t *testing.T) {
	c, err := newRuleCache()
	require.NoError(t, err)
	var rules []event.AgentRule
	for i := range 100 {
		rules = append(rules, event.AgentRule{ID: fmt.Sprint("r", i), Action: "log", Message: strings.Repeat("m", 1000)})
	}
	entered, goOn := make(chan struct{}, 50), make(chan struct{})
	c.compile = func(rules []event.AgentRule) ([]agentrules.Rule, []agentrules.Finding) {
		entered <- struct{}{}
		<-goOn
		return agentrules.Compile(rules)
	}
	ask := func(ctx context.Context, project, id string) error {
		_, err := c.revision(ctx, project, id, 1, func() (*event.AgentPolicy, error) {
			return &event.AgentPolicy{PolicyID: id, Revision: 1, Rules: rules}, nil
		})
		return err
	}
	var asking sync.WaitGroup
	for i := range 40 {
		asking.Go(func() {
			if err := ask(context.Background(), "default", fmt.Sprint("pol_", i)); err != nil {
				t.Error(err)
			}
		})
	}
	<-entered
	require.Eventually(t, func() bool {
		c.turns.mu.Lock()
		defer c.turns.mu.Unlock()
		return c.turns.projects["default"].cost == 40*compiledOfOne
	}, time.Minute, time.Millisecond)
	require.Empty(t, entered, "one is compiled, and all others wait")
	gone, leave := context.WithCancel(t.Context())
	leave()
	require.Equal(t, fault.AuditUnavailable, fault.CodeOf(ask(gone, "default", "pol_x")))
	asking.Go(func() {
		if err := ask(context.Background(), "other", "pol_y"); err != nil {
			t.Error(err)
		}
	})
	<-entered // another project has its turn
	close(goOn)
	asking.Wait()
	require.Empty(t, c.turns.projects)
}
