package agentctl

import (
	"context"
	"errors"
	"slices"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
)

// An askedAgent is an agent as its rules saw it.
type askedAgent struct {
	root         event.AgentRoot
	usage        event.AgentUsage         // before the batch
	applications []agentrules.Application // with bare rules once they were asked
	heads        map[string]projections.AgentPolicyHead
}

// maxBatchCost is what the rules may cost over all events of a batch, in the units
// of agentrules.Rule: half a second at most, and 50 steps for each of 1000 events and 100 rules.
const maxBatchCost = 5_000_000

// evaluate puts the events before the rules of their agents, as things are now and
// under no lock: it may take long, and its context ends it.
func (b *telemetryBatch) evaluate(ctx context.Context) error {
	b.asked, b.tools, b.matches, b.stale = map[string]*askedAgent{}, map[string]agentrules.Tool{}, map[int]*agentrules.EventMatches{}, false
	byAgent, order, err := b.gather(ctx)
	if err != nil {
		return err
	}
	cost, bound, err := b.weigh(ctx, byAgent, order)
	if err != nil || b.stale {
		return err
	}
	if cost > maxBatchCost {
		return fault.New(fault.OversizedRequest, "The rules of its agents could take %d steps over the events of the batch, and at most %d are taken at once. Send fewer events at once, or apply conditions with fewer patterns and lists.", cost, maxBatchCost).
			With("got", cost).With("max", maxBatchCost)
	}
	done, err := b.service.asking.take(ctx, b.by.Project, int64(max(1, cost)))
	if err != nil {
		return err
	}
	defer done()
	release, err := b.service.takeMemory(ctx, b.by.Project, bound)
	if err != nil {
		return err
	}
	defer release()
	for _, id := range order {
		a := b.asked[id]
		bare, err := b.compiled(ctx, a)
		if err != nil || b.stale {
			return err
		}
		if a.usage, err = b.service.usageOf(ctx, id, b.now); err != nil {
			return faultOf(err)
		}
		in := agentrules.EventInput{Agent: a.root, Usage: a.usage, Applications: a.applications}
		for _, it := range byAgent[id] {
			if ctx.Err() != nil {
				return fault.New(fault.AuditUnavailable, "The request ended while its events were looked at. Nothing was written; send them again.").
					With("outcome", "not_written").Because(context.Cause(ctx))
			}
			in.Event, in.Tool = &it.event, b.tools[it.event.Tool.ID]
			b.matches[it.outcome.Index] = agentrules.MatchEvent(&in)
		}
		for i := range a.applications {
			a.applications[i].Rules = bare[i] // what waits for the agent's lock holds no more
		}
	}
	return nil
}

// weigh is what the rules could cost over the events, in steps, and what the policies
// take compiled, by their ids.
func (b *telemetryBatch) weigh(ctx context.Context, byAgent map[string][]*telemetryItem, order []string) (steps int, bound map[string]int, err error) {
	s := b.service
	bound = map[string]int{}
	for _, id := range order {
		s.memoryOf(b.asked[id].heads, bound)
	}
	done, err := s.takeMemory(ctx, b.by.Project, bound) // those that nobody has weighed are compiled
	if err != nil {
		return 0, nil, err
	}
	defer done()
	memory := 0
	clear(bound)
	err = s.view(ctx, func(view *projections.View) error {
		for _, id := range order {
			each, list := 0, b.asked[id].applications
			for i := range list {
				w, err := s.compiled.weightOf(ctx, view, b.by.Project, list[i].PolicyID, list[i].Revision)
				if err != nil {
					return err
				}
				if _, counted := bound[list[i].PolicyID]; !counted {
					memory += w.memory
				}
				bound[list[i].PolicyID] = w.memory
				each += w.steps[1]
			}
			steps += len(byAgent[id]) * min(each, policy.MaxDecisionCost)
			if memory > maxCompiledMemory && len(order) > 1 {
				return fault.New(fault.OversizedRequest, "The policies of its agents take more than %d MiB together where their rules are asked. Send the events of fewer agents at once.", maxCompiledMemory>>20)
			}
		}
		return nil
	})
	return steps, bound, b.changed(err)
}

// changed makes the batch stale where a policy has another revision by now.
func (b *telemetryBatch) changed(err error) error {
	if errors.Is(err, errOtherRevision) {
		b.stale = true
		return nil
	}
	return err
}

// compiled gives the applications of an agent their rules, and the bare ones of each.
func (b *telemetryBatch) compiled(ctx context.Context, a *askedAgent) (bare [][]agentrules.Rule, err error) {
	err = b.service.view(ctx, func(view *projections.View) error {
		for i := range a.applications {
			x := &a.applications[i]
			p, err := b.service.compiled.of(ctx, view, b.by.Project, x.PolicyID, x.Revision)
			if err != nil {
				return err
			}
			x.Rules, bare = p.rules, append(bare, p.bare)
		}
		return nil
	})
	return bare, b.changed(err)
}

// gather finds the events that would be accepted now and all that the rules of their
// agents read but usage.
func (b *telemetryBatch) gather(ctx context.Context) (byAgent map[string][]*telemetryItem, order []string, err error) {
	s := b.service
	b.begin(s.Now())
	err = s.view(ctx, func(view *projections.View) error {
		if byAgent, order, err = b.admit(view); err != nil {
			return err
		}
		for _, id := range order {
			agent, _, err := view.Agent(b.by.Project, id)
			if err != nil {
				return err
			}
			a := new(askedAgent)
			if a.applications, a.heads, err = binding(view, b.by.Project, id); err != nil {
				return err
			}
			if a.root, err = agentRoot(view, &agent, b.now); err != nil {
				return err
			}
			b.asked[id] = a
			for _, it := range byAgent[id] {
				id := it.event.Tool.ID
				if _, looked := b.tools[id]; looked {
					continue
				}
				if b.tools[id], err = toolRoot(view, b.by.Project, id, b.now); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return byAgent, order, err
}

// outdated tells whether an agent's rules, or what they read beside usage, are others
// than those that were asked about its events.
func (b *telemetryBatch) outdated(view *projections.View, id string, items []*telemetryItem) (bool, error) {
	a := b.asked[id]
	if a == nil {
		return true, nil
	}
	agent, _, err := view.Agent(b.by.Project, id)
	if err != nil {
		return false, err
	}
	root, err := agentRoot(view, &agent, b.now)
	if err != nil {
		return false, err
	}
	list, _, err := binding(view, b.by.Project, id)
	if err != nil {
		return false, err
	}
	if root != a.root || !slices.EqualFunc(list, a.applications, func(x, y agentrules.Application) bool {
		return x.EffectivePolicy == y.EffectivePolicy && x.Observe == y.Observe
	}) {
		return true, nil
	}
	looked := map[string]bool{}
	for _, it := range items {
		if b.matches[it.outcome.Index] == nil {
			return true, nil
		}
		if id := it.event.Tool.ID; !looked[id] {
			looked[id] = true
			tool, err := toolRoot(view, b.by.Project, id, b.now)
			if err != nil || tool != b.tools[id] {
				return true, err
			}
		}
	}
	return false, nil
}
