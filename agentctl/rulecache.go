package agentctl

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"

	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
)

// What compiled policies may take together, in bytes as agentrules.Memory has it, and how
// many there may be; and of how many it is known what they cost.
const (
	maxCompiledMemory = 64 << 20
	maxCompiled       = 4096
	maxWeighed        = 1 << 16
)

// A compiledPolicy is one revision of a policy. All who need it at once share it.
type compiledPolicy struct {
	rules, bare []agentrules.Rule
	weight      weight
}

// A weight is what a policy, or all policies of an agent, cost. What counts at the gate
// comes before what counts at telemetry.
type weight struct {
	text     int    // bytes of its rules
	memory   int    // bytes that they take compiled
	steps    [2]int // of its conditions
	recorded [2]int // bytes in a record, at most
}

var places = [2]agentrules.Place{agentrules.AtGate, agentrules.AtTelemetry}

func weightOf(policyID, mode string, rules []agentrules.Rule) (w weight) {
	a := agentrules.Application{EffectivePolicy: event.EffectivePolicy{PolicyID: policyID}, Observe: mode == event.AgentPolicyObserve, Rules: rules}
	w.memory = agentrules.Memory(rules)
	for i := range rules {
		w.text += rules[i].AgentRule.Bytes()
	}
	for i, place := range places {
		w.steps[i], w.recorded[i] = agentrules.CostAt(place, rules), a.RecordedAt(place)
	}
	return w
}

func (w *weight) add(x weight) {
	w.text, w.memory = w.text+x.text, w.memory+x.memory
	for i := range places {
		w.steps[i], w.recorded[i] = w.steps[i]+x.steps[i], w.recorded[i]+x.recorded[i]
	}
}

// A ruleCache keeps compiled policies by id and revision: a revision never changes, so
// nothing in it is ever stale. It is bounded by the memory that they take: one with many
// conditions takes as much as a thousand small ones.
type ruleCache struct {
	turns     *turns // of compilations, by the bytes of the texts
	compile   func([]event.AgentRule) ([]agentrules.Rule, []agentrules.Finding)
	compiling singleflight.Group

	mu       sync.Mutex
	policies *simplelru.LRU[string, *compiledPolicy] // guarded by mu, as all below
	memory   int
	weights  *simplelru.LRU[string, weight]
}

func newRuleCache() (*ruleCache, error) {
	c := &ruleCache{turns: newTurns(compiledOfOne), compile: agentrules.Compile}
	c.turns.waiting = math.MaxInt32 // who waits here has a turn of memory
	var err error
	if c.policies, err = simplelru.NewLRU(maxCompiled, func(_ string, gone *compiledPolicy) { c.memory -= gone.weight.memory }); err != nil {
		return nil, err
	}
	c.weights, err = simplelru.NewLRU[string, weight](maxWeighed, nil)
	return c, err
}

// errOtherRevision says that a policy was changed since it was looked at.
var errOtherRevision = errors.New("the policy has another revision now")

func revisionKey(policyID string, revision int) string {
	return policyID + "@" + strconv.Itoa(revision)
}

// of gives a revision of a policy of a project compiled, which is read where it is not kept.
//
// Errors: errOtherRevision where the view has another one.
func (c *ruleCache) of(ctx context.Context, view *projections.View, project, policyID string, revision int) (*compiledPolicy, error) {
	return c.revision(ctx, project, policyID, revision, func() (*event.AgentPolicy, error) {
		p, known, err := view.AgentPolicy(project, policyID)
		if err == nil && (!known || p.Revision != revision) {
			err = errOtherRevision
		}
		return &p.AgentPolicy, err
	})
}

// revision gives a revision of a policy compiled, which is read where it is not kept. Who
// needs the same one meanwhile waits for it. Long ones of a project are compiled one by one.
func (c *ruleCache) revision(ctx context.Context, project, policyID string, revision int, read func() (*event.AgentPolicy, error)) (*compiledPolicy, error) {
	key := revisionKey(policyID, revision)
	if p, ok := c.get(key); ok {
		return p, nil
	}
	own := false
	shared, err, _ := c.compiling.Do(key, func() (any, error) {
		own = true
		if p, ok := c.get(key); ok {
			return p, nil
		}
		p, err := read()
		if err != nil {
			return nil, err
		}
		text := 1
		for i := range p.Rules {
			text += p.Rules[i].Bytes()
		}
		done, err := c.turns.take(ctx, project, int64(min(text, compiledOfOne)))
		if err != nil {
			return nil, err
		}
		defer done()
		rules, findings := c.compile(p.Rules)
		if len(findings) > 0 {
			return nil, fmt.Errorf("policy %s is recorded with rules that this program does not take: %s", key, findings[0].Message)
		}
		compiled := &compiledPolicy{rules: rules, bare: agentrules.Bare(rules), weight: weightOf(policyID, p.Mode, rules)}
		c.add(key, compiled)
		return compiled, nil
	})
	switch {
	case err == nil:
		return shared.(*compiledPolicy), nil
	case !own && ctx.Err() == nil: // the view of another request did not have it, or that one ended
		return c.revision(ctx, project, policyID, revision, read)
	}
	return nil, err
}

func (c *ruleCache) get(key string) (*compiledPolicy, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.policies.Get(key)
}

func (c *ruleCache) add(key string, p *compiledPolicy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.weights.Add(key, p.weight)
	c.memory += p.weight.memory
	c.policies.Add(key, p)
	for c.memory > maxCompiledMemory && c.policies.Len() > 1 {
		c.policies.RemoveOldest()
	}
}

// weightOf is what a revision of a policy costs. It is compiled for that once.
func (c *ruleCache) weightOf(ctx context.Context, view *projections.View, project, policyID string, revision int) (weight, error) {
	c.mu.Lock()
	w, known := c.weights.Get(revisionKey(policyID, revision))
	c.mu.Unlock()
	if known {
		return w, nil
	}
	p, err := c.of(ctx, view, project, policyID, revision)
	if err != nil {
		return w, err
	}
	return p.weight, nil
}

// memoryOf is what a policy takes compiled; of one that never was, at most.
func (c *ruleCache) memoryOf(policyID string, head *projections.AgentPolicyHead) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, known := c.weights.Get(revisionKey(policyID, head.Revision)); known {
		return w.memory
	}
	patterns := 0
	if head.Patterns {
		patterns = policy.MaxPatternSteps
	}
	return agentrules.MemoryOf(head.Text, patterns)
}
