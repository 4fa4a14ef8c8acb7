package replay

import (
	"bytes"
	"fmt"
	"slices"

	"writegate/eventlog/event"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
)

// agents is what the log said so far of the policies of agents: enough to know
// which bound an agent as of any event.
type agents struct {
	policies     map[string][]policyAt      // by policy, in the order of the log
	applications map[string][]applicationAt // by agent, likewise
	compiled     map[string][]agentrules.Rule
}

type policyAt struct {
	seq    uint64
	policy event.AgentPolicy
}

type applicationAt struct {
	seq         uint64
	application event.PolicyApplication
	detached    bool
}

func newAgents() *agents {
	return &agents{policies: map[string][]policyAt{}, applications: map[string][]applicationAt{}, compiled: map[string][]agentrules.Rule{}}
}

// take notes what an event says of policies and applications, from seq on: 0 is what
// stood before the log began.
func (a *agents) take(e *event.Envelope, seq uint64) error {
	p, err := event.Open(&e.Draft)
	if err != nil {
		return fmt.Errorf("event %d: %w", e.Seq, err)
	}
	switch p := p.(type) {
	case *event.AgentPolicyCreated:
		a.policies[p.Policy.PolicyID] = append(a.policies[p.Policy.PolicyID], policyAt{seq, p.Policy})
	case *event.AgentPolicyUpdated:
		a.policies[p.Policy.PolicyID] = append(a.policies[p.Policy.PolicyID], policyAt{seq, p.Policy})
	case *event.AgentPolicyApplied:
		a.applications[p.Application.AgentID] = append(a.applications[p.Application.AgentID], applicationAt{seq, p.Application, false})
	case *event.AgentPolicyDetached:
		a.applications[p.Application.AgentID] = append(a.applications[p.Application.AgentID], applicationAt{seq, p.Application, true})
	}
	return nil
}

// tellsOfAgents are the types that take looks at.
func tellsOfAgents(t event.Type) bool {
	switch t {
	case event.TypeAgentPolicyCreated, event.TypeAgentPolicyUpdated, event.TypeAgentPolicyApplied, event.TypeAgentPolicyDetached:
		return true
	}
	return false
}

// effective are the policies that bound an agent as of an event.
func (a *agents) effective(agentID string, seq uint64) ([]agentrules.Application, error) {
	bound := map[string]applicationAt{}
	for _, x := range a.applications[agentID] {
		if x.seq <= seq {
			bound[x.application.PolicyID] = x
		}
	}
	var list []agentrules.Application
	for id, x := range bound {
		p := a.asOf(id, seq)
		if x.detached || p == nil || !p.Enabled {
			continue
		}
		rules, err := a.rules(p)
		if err != nil {
			return nil, err
		}
		list = append(list, agentrules.Application{EffectivePolicy: event.EffectivePolicy{ApplicationID: x.application.ApplicationID, PolicyID: id,
			Revision: p.Revision, PriorityValue: x.application.PriorityValue}, Observe: p.Mode == event.AgentPolicyObserve, Rules: rules})
	}
	agentrules.Sort(list)
	return list, nil
}

func (a *agents) asOf(policyID string, seq uint64) *event.AgentPolicy {
	var found *event.AgentPolicy
	for i := range a.policies[policyID] {
		if a.policies[policyID][i].seq <= seq {
			found = &a.policies[policyID][i].policy
		}
	}
	return found
}

func (a *agents) rules(p *event.AgentPolicy) ([]agentrules.Rule, error) {
	key := fmt.Sprintf("%s@%d", p.PolicyID, p.Revision)
	if rules, done := a.compiled[key]; done {
		return rules, nil
	}
	rules, findings := agentrules.Compile(p.Rules)
	if len(findings) > 0 {
		return nil, fmt.Errorf("revision %d of the agent policy %s is not valid for this program: %s", p.Revision, p.PolicyID, findings[0].Message)
	}
	a.compiled[key] = rules
	return rules, nil
}

// recompute evaluates a recorded layer once more, over the usage and the counts
// that it recorded, and gives the fields in which it comes out otherwise. The
// policies are those that the log says were in force, not those it recorded.
func (a *agents) recompute(l *event.AgentLayer, f *policy.Facts) (fields []string, err error) {
	list, err := a.effective(l.AgentID, l.AppliedSeq)
	if err != nil {
		return nil, err
	}
	again := agentrules.Evaluate(&agentrules.Input{AppliedSeq: l.AppliedSeq, Agent: l.Agent, Usage: l.Usage, Facts: f, Applications: list, Count: recordedCounts(l)})
	was, is := (&event.DecisionRecorded{AgentLayer: l}).Fields(), (&event.DecisionRecorded{AgentLayer: again}).Fields()
	return differentFields(layerOf(was), layerOf(is)), nil
}

// recordedCounts gives the counts of throttled rules as they were.
func recordedCounts(l *event.AgentLayer) agentrules.Counter {
	return func(policyID string, r *agentrules.Rule) (int, int) {
		i := slices.IndexFunc(l.Throttle, func(t event.ThrottleCount) bool { return t.PolicyID == policyID && t.RuleID == r.ID })
		if i < 0 {
			return 0, 0
		}
		return l.Throttle[i].Count, l.Throttle[i].RetryAfterSeconds
	}
}

func layerOf(p event.Payload) event.Payload {
	layer, _ := p.Get("agent_layer")
	fields, _ := layer.AsMap()
	return fields
}

// differentFields compares by the bytes that the log would hold.
func differentFields(was, is event.Payload) (fields []string) {
	names := map[string]bool{}
	for _, p := range []event.Payload{was, is} {
		for _, f := range p {
			names[f.Key] = true
		}
	}
	for name := range names {
		if !bytes.Equal(fieldBytes(was, name), fieldBytes(is, name)) {
			fields = append(fields, "agent_layer."+name+": recomputed otherwise")
		}
	}
	slices.Sort(fields)
	return fields
}

func fieldBytes(p event.Payload, name string) []byte {
	v, ok := p.Get(name)
	if !ok {
		return nil
	}
	e := event.Envelope{Draft: event.Draft{Payload: event.NewPayload(event.Field{Key: name, Value: v})}}
	return event.AppendJSON(nil, &e)
}
