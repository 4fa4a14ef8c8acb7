package projections

import (
	"strings"
	"time"

	"writegate/eventlog/event"
)

// Agent finds an agent of a project.
func (v *View) Agent(project, id string) (a Agent, ok bool, err error) {
	ok, err = v.read(agentKey(id), &a)
	if a.Project != project {
		return Agent{}, false, err
	}
	return a, ok, err
}

// AnyAgent finds an agent by its id, of whichever project it is.
func (v *View) AnyAgent(id string) (a Agent, ok bool, err error) {
	ok, err = v.read(agentKey(id), &a)
	return a, ok, err
}

// AgentToken finds a token by its id.
func (v *View) AgentToken(id string) (k AgentToken, ok bool, err error) {
	ok, err = v.read(tokenKey(id), &k)
	return k, ok, err
}

// TokenByDigest finds the token whose secret has the SHA-256.
func (v *View) TokenByDigest(digest [32]byte) (k AgentToken, ok bool, err error) {
	var id name
	if ok, err = v.read(tokenDigestKey(digest), &id); err != nil || !ok {
		return k, false, err
	}
	return v.AgentToken(string(id))
}

// TokenVerifiers are those of an agent's tokens, whatever became of these since.
func (v *View) TokenVerifiers(agent string) (list []TokenVerifier, err error) {
	_, err = v.read(verifiersKey(agent), (*tokenVerifiers)(&list))
	return list, err
}

// AgentPolicy finds a policy of a project.
func (v *View) AgentPolicy(project, id string) (p AgentPolicy, ok bool, err error) {
	ok, err = v.read(agentPolicyKey(id), &p)
	if p.Project != project {
		return AgentPolicy{}, false, err
	}
	return p, ok, err
}

// AgentPolicyHead finds what decisions read of a policy of a project.
func (v *View) AgentPolicyHead(project, id string) (h AgentPolicyHead, ok bool, err error) {
	ok, err = v.read(agentPolicyHeadKey(id), &h)
	if h.Project != project {
		return AgentPolicyHead{}, false, err
	}
	return h, ok, err
}

// Application finds what binds a policy to an agent.
func (v *View) Application(agent, policy string) (a Application, ok bool, err error) {
	ok, err = v.read(applicationKey(agent, policy), &a)
	return a, ok, err
}

// ApplicationsOf lists the applications of an agent by their policies' ids.
func (v *View) ApplicationsOf(agent string) (list []Application, err error) {
	prefix := []byte(keyApplication + agent + "/")
	it, err := v.iter(prefix, after(prefix))
	if err != nil {
		return nil, err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		var a Application
		if err = unmarshal(it.Value(), &a); err == nil {
			list = append(list, a)
		}
	}
	if err != nil {
		err = v.store.damaged(err)
	}
	return list, v.closeIter(it, err)
}

// AgentsOf lists the ids of the agents that a policy is applied to.
func (v *View) AgentsOf(policy string) (ids []string, err error) {
	prefix := []byte(keyAppliedTo + policy + "/")
	it, err := v.iter(prefix, after(prefix))
	if err != nil {
		return nil, err
	}
	for ok := it.First(); ok; ok = it.Next() {
		ids = append(ids, string(it.Key()[1+len(prefix):]))
	}
	return ids, v.closeIter(it, nil)
}

// An AgentFilter selects agents of a project; an empty field selects all.
type AgentFilter struct {
	Project           string
	Status            string // event.AgentActive, event.AgentInactive
	ID                string // one agent alone
	Type, Environment string
	NamePrefix        string
	PolicyID          string
	UpdatedSince      time.Time
}

// Agents lists agents by the time of their registration.
func (v *View) Agents(f AgentFilter, page Page) ([]Agent, string, error) {
	return gather(func(take func(*Agent) (bool, error)) (string, error) { return v.EachAgent(f, page, take) })
}

// EachAgent is Agents one by one, as EachApproval.
func (v *View) EachAgent(f AgentFilter, page Page, take func(*Agent) (room bool, err error)) (next string, err error) {
	statuses, err := oneOf(f.Status, []string{event.AgentActive, event.AgentInactive})
	if err != nil {
		return "", err
	}
	states := make([]string, len(statuses))
	for i, s := range statuses {
		states[i] = inProject(f.Project, s)
	}
	applied := map[string]bool{}
	if f.PolicyID != "" {
		ids, err := v.AgentsOf(f.PolicyID)
		if err != nil {
			return "", err
		}
		for _, id := range ids {
			applied[id] = true
		}
	}
	question := []string{f.Project, f.Status, f.ID, f.Type, f.Environment, f.NamePrefix, f.PolicyID, f.UpdatedSince.String()}
	return each(v, listing{keyAgentList, keyAgent, states, question}, page, func(a *Agent) bool {
		return matches(f.Type, a.Type) && matches(f.Environment, a.Metadata["environment"]) && strings.HasPrefix(a.Name, f.NamePrefix) &&
			matches(f.ID, a.AgentID) && (f.PolicyID == "" || applied[a.AgentID]) && !a.UpdatedAt.Before(f.UpdatedSince)
	}, take)
}

// EachAgentToken lists the tokens of an agent by the time of their issue, one by
// one, as EachApproval.
func (v *View) EachAgentToken(agent string, page Page, take func(*AgentToken) (room bool, err error)) (next string, err error) {
	return each(v, listing{keyTokenList, keyToken, []string{agent}, []string{agent}}, page, func(*AgentToken) bool { return true }, take)
}

// AllTokens gives every token of an agent, oldest first.
func (v *View) AllTokens(agent string) ([]AgentToken, error) {
	var all []AgentToken
	err := v.all(Page{Asc: true, Limit: maxLimit}, func(page Page) (string, error) {
		return v.EachAgentToken(agent, page, func(k *AgentToken) (bool, error) {
			all = append(all, *k)
			return true, nil
		})
	})
	return all, err
}

// An AgentPolicyFilter selects policies of a project; an empty field selects all.
type AgentPolicyFilter struct {
	Project    string
	NamePrefix string
	Enabled    *bool
	AgentID    string // applied to this agent
}

// EachAgentPolicy lists policies by the time of their creation, one by one, as
// EachApproval.
func (v *View) EachAgentPolicy(f AgentPolicyFilter, page Page, take func(*AgentPolicy) (room bool, err error)) (next string, err error) {
	enabled := ""
	if f.Enabled != nil {
		enabled = map[bool]string{true: "yes", false: "no"}[*f.Enabled]
	}
	var failed error
	question := []string{f.Project, f.NamePrefix, enabled, f.AgentID}
	next, err = each(v, listing{keyAgentPolicyList, keyAgentPolicy, []string{f.Project}, question}, page, func(p *AgentPolicy) bool {
		if !strings.HasPrefix(p.Name, f.NamePrefix) || (f.Enabled != nil && p.Enabled != *f.Enabled) {
			return false
		}
		if f.AgentID == "" {
			return true
		}
		_, ok, err := v.Application(f.AgentID, p.PolicyID)
		if err != nil && failed == nil {
			failed = err
		}
		return ok
	}, take)
	if err == nil {
		err = failed
	}
	return next, err
}
