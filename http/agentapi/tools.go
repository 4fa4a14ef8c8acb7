package agentapi

import (
	"writegate/agentctl"
	"writegate/agentctl/toolcheck"
	"writegate/projections"
)

func (a *api) registerTool(c *call) error {
	return write(a, c, func(by *agentctl.Asker, in *agentctl.ToolInput) (agentctl.Answer, error) {
		return a.Agents.RegisterTool(c.Request.Context(), by, in)
	})
}

func (a *api) getTool(c *call) error {
	return c.reply(a.Agents.Tool(c.Request.Context(), &c.caller, c.Params.ByName("id")))
}

func (a *api) listTools(c *call) error {
	q, page, err := c.page("type", "status", "agent_id", "name")
	if err != nil {
		return err
	}
	f := projections.ToolFilter{Type: q["type"], Status: q["status"], AgentID: q["agent_id"], NamePrefix: q["name"]}
	if f.Type != "" {
		err = oneOf("type", f.Type, toolcheck.TypeMCP, toolcheck.TypeHTTP, toolcheck.TypeFunction)
	}
	if err == nil && f.Status != "" {
		err = oneOf("status", f.Status, projections.ToolStatuses...)
	}
	if err != nil {
		return err
	}
	return list(c, func(take func(agentctl.ToolBody) (bool, error)) (string, error) {
		return a.Agents.ToolList(c.Request.Context(), &c.caller, f, page, take)
	})
}

func (a *api) updateTool(c *call) error {
	return write(a, c, func(by *agentctl.Asker, in *agentctl.ToolInput) (agentctl.Answer, error) {
		return a.Agents.UpdateTool(c.Request.Context(), by, c.Params.ByName("id"), in)
	})
}

func (a *api) verifyTool(c *call) error {
	return write(a, c, func(by *agentctl.Asker, in *agentctl.VerifyInput) (agentctl.Answer, error) {
		return a.Agents.VerifyTool(c.Request.Context(), by, c.Params.ByName("id"), in)
	})
}
