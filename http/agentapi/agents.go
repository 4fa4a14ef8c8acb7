package agentapi

import (
	"writegate/agentctl"
	"writegate/eventlog/event"
	"writegate/http/httpd"
	"writegate/projections"
)

func (a *api) registerAgent(c *call) error {
	return write(a, c, func(by *agentctl.Asker, in *agentctl.RegisterInput) (agentctl.Answer, error) {
		return a.Agents.Register(c.Request.Context(), by, in)
	})
}

func (a *api) getAgent(c *call) error {
	return c.reply(a.Agents.Agent(c.Request.Context(), &c.caller, c.Params.ByName("id")))
}

func (a *api) listAgents(c *call) error {
	q, page, err := c.page("status", "type", "environment", "name", "policy_id", "updated_since")
	if err != nil {
		return err
	}
	f := projections.AgentFilter{Status: event.AgentActive, Type: q["type"], Environment: q["environment"], NamePrefix: q["name"], PolicyID: q["policy_id"]}
	if q["status"] != "" {
		if err := oneOf("status", q["status"], event.AgentActive, event.AgentInactive, "all"); err != nil {
			return err
		}
		f.Status = q["status"]
	}
	if f.Status == "all" {
		f.Status = ""
	}
	if f.UpdatedSince, err = httpd.Moment(q["updated_since"]); err != nil {
		return agentctl.InvalidFields(agentctl.FieldError{Pointer: "/updated_since", Message: "must be a moment like 2026-01-31T18:00:00Z"})
	}
	return list(c, func(take func(agentctl.AgentBody) (bool, error)) (string, error) {
		return a.Agents.Agents(c.Request.Context(), &c.caller, f, page, take)
	})
}

func (a *api) updateAgent(c *call) error {
	return write(a, c, func(by *agentctl.Asker, in *agentctl.UpdateInput) (agentctl.Answer, error) {
		return a.Agents.Update(c.Request.Context(), by, c.Params.ByName("id"), in)
	})
}

func (a *api) deactivateAgent(c *call) error {
	query, err := c.Query("reason")
	if err != nil {
		return asList(err)
	}
	return c.reply(a.Agents.Deactivate(c.Request.Context(), c.asker(), c.Params.ByName("id"), query.Get("reason")))
}

func (a *api) issueToken(c *call) error {
	return write(a, c, func(by *agentctl.Asker, in *agentctl.TokenInput) (agentctl.Answer, error) {
		return a.Agents.IssueToken(c.Request.Context(), by, c.Params.ByName("id"), in)
	})
}

func (a *api) listTokens(c *call) error {
	_, page, err := c.page()
	if err != nil {
		return err
	}
	return list(c, func(take func(agentctl.TokenBody) (bool, error)) (string, error) {
		return a.Agents.Tokens(c.Request.Context(), &c.caller, c.Params.ByName("id"), page, take)
	})
}

func (a *api) revokeToken(c *call) error {
	return c.reply(a.Agents.RevokeToken(c.Request.Context(), c.asker(), c.Params.ByName("id"), c.Params.ByName("token_id")))
}
