package agentapi

import (
	"writegate/agentctl"
	"writegate/projections"
)

func (a *api) createPolicy(c *call) error {
	return write(a, c, func(by *agentctl.Asker, in *agentctl.PolicyInput) (agentctl.Answer, error) {
		return a.Agents.CreatePolicy(c.Request.Context(), by, in)
	})
}

func (a *api) updatePolicy(c *call) error {
	return write(a, c, func(by *agentctl.Asker, in *agentctl.PolicyInput) (agentctl.Answer, error) {
		return a.Agents.UpdatePolicy(c.Request.Context(), by, c.Params.ByName("id"), in)
	})
}

func (a *api) getPolicy(c *call) error {
	return c.reply(a.Agents.Policy(c.Request.Context(), &c.caller, c.Params.ByName("id")))
}

func (a *api) listPolicies(c *call) error {
	q, page, err := c.page("name", "enabled", "agent_id")
	if err != nil {
		return err
	}
	f := projections.AgentPolicyFilter{NamePrefix: q["name"], AgentID: q["agent_id"]}
	if q["enabled"] != "" {
		if err := oneOf("enabled", q["enabled"], "true", "false"); err != nil {
			return err
		}
		on := q["enabled"] == "true"
		f.Enabled = &on
	}
	return list(c, func(take func(agentctl.PolicyBody) (bool, error)) (string, error) {
		return a.Agents.Policies(c.Request.Context(), &c.caller, f, page, take)
	})
}

// applyPolicy is POST /v1/policies/:id/apply; with dry_run nothing is written.
func (a *api) applyPolicy(c *call) error {
	query, err := c.Query("dry_run")
	if err != nil {
		return asList(err)
	}
	dry := query.Get("dry_run")
	if query.Has("dry_run") { // empty is neither
		if err := oneOf("dry_run", dry, "true", "false"); err != nil {
			return err
		}
	}
	return write(a, c, func(by *agentctl.Asker, in *agentctl.ApplyInput) (agentctl.Answer, error) {
		if dry == "true" {
			return a.Agents.PreviewApply(c.Request.Context(), by, c.Params.ByName("id"), in)
		}
		return a.Agents.Apply(c.Request.Context(), by, c.Params.ByName("id"), in)
	})
}

func (a *api) detachPolicy(c *call) error {
	query, err := c.Query("agent_id")
	if err != nil {
		return asList(err)
	}
	return c.reply(a.Agents.Detach(c.Request.Context(), c.asker(), c.Params.ByName("id"), query.Get("agent_id")))
}
