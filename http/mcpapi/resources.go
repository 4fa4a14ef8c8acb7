package mcpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"writegate/agentctl"
	"writegate/commands"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/policy"
)

// Bounds of a resource.
const (
	maxAgentRules = 100
	maxPendings   = 50
)

func (d *door) addResources(s *mcp.Server) {
	add := func(uri, name, title, media, description string, read func(context.Context, *visit) (string, error)) {
		s.AddResource(&mcp.Resource{URI: uri, Name: name, Title: title, MIMEType: media, Description: description},
			func(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
				v := ctx.Value(visitKey{}).(*visit)
				text, err := read(ctx, v)
				if err != nil {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: d.refused(v, err).Message}
				}
				return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: media, Text: text}}}, nil
			})
	}
	add("gate://policy", "policy", "The policy in words", "text/markdown", "What the rules in force say, in their order.", d.policyText)
	add("gate://agent", "agent", "You, as the gate sees you", "application/json", "Your name, the claims of your statements, the rules that bind you alone, and your limits.", d.agentText)
	add("gate://approvals", "approvals", "What waits for a person", "application/json", "Your statements that nobody has decided about yet.", d.approvalsText)
}

// policyText is the active policy in words. Conditions are not in it: sql_preview tells
// what they make of a statement.
func (d *door) policyText(context.Context, *visit) (string, error) {
	version, rules := d.Gate.PolicyTexts()
	if version == "" {
		return "No policy is loaded, so every statement is refused.\n", nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\nThe strictest rule that a statement meets decides. Without one a read that is safe passes, and all else is blocked. sql_preview tells what they make of a statement.\n\n", version)
	for _, r := range rules {
		does := map[policy.Decision]string{policy.Allow: "allows", policy.Block: "blocks", policy.RequireApproval: "asks a person about"}[r.Decision]
		if r.Observe {
			does = "only watches, and would say " + string(r.Decision) + " to"
		}
		fmt.Fprintf(&b, "- **%s** %s what it is about.", r.ID, does)
		for _, words := range []string{r.Message, r.Remedy} {
			if words != "" {
				b.WriteString(" " + words)
			}
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// agentText is what binds the agent, without the conditions of its rules.
func (d *door) agentText(ctx context.Context, v *visit) (string, error) {
	type rule struct {
		Policy  string `json:"policy"`
		Observe bool   `json:"only_watched,omitempty"`
		Action  string `json:"action"`
		Message string `json:"message,omitempty"`
	}
	rules := []rule{}
	_, err := d.Agents.Policies(ctx, v.caller, projections.AgentPolicyFilter{AgentID: v.agent.AgentID}, projections.Page{Limit: maxAgentRules, Work: projections.PageWork}, func(p agentctl.PolicyBody) (bool, error) {
		if !p.Enabled {
			return true, nil
		}
		for _, r := range p.Rules {
			rules = append(rules, rule{p.Name, p.Mode == event.AgentPolicyObserve, r.Action, r.Message})
		}
		return len(rules) < maxAgentRules, nil
	})
	if err != nil {
		return "", err
	}
	c := d.request(v, "").Claims
	return text(map[string]any{
		"agent_id": v.agent.AgentID, "name": v.agent.Name, "rules": rules,
		"claims": map[string]string{"actor": c.Actor, "app": c.App, "tenant": c.Tenant, "role": c.Role, "host": c.Host, "env": c.Env},
		"limits": map[string]any{"requests_per_hour": agentctl.RequestLimit, "rows_shown": maxRows, "row_bytes_shown": maxRowBytes, "sql_bytes": d.MaxSQLBytes},
	})
}

// approvalsText is what of the agent's waits.
func (d *door) approvalsText(ctx context.Context, v *visit) (string, error) {
	type pending struct {
		ApprovalID string `json:"approval_id"`
		SQL        string `json:"sql"`
		RuleID     string `json:"rule_id"`
		CreatedAt  string `json:"created_at"`
		ExpiresAt  string `json:"expires_at"`
	}
	view := d.Store.ViewWithin(ctx)
	defer view.Close()
	list := []pending{}
	filter := projections.ApprovalFilter{Status: projections.StatusPending, Now: d.Now(), Actor: d.request(v, "").Actor}
	next, err := view.EachApproval(filter, projections.Page{Limit: maxPendings, Work: projections.PageWork}, func(a *projections.Approval) (bool, error) {
		if a.AgentID == v.agent.AgentID {
			list = append(list, pending{a.ID, a.SQL, a.RuleID, event.Timestamp(a.CreatedAt), event.Timestamp(a.ExpiresAt)})
		}
		return true, nil
	})
	if err != nil {
		return "", commands.ViewFault(err)
	}
	return text(map[string]any{"approvals": list, "more": next != ""})
}

func text(value any) (string, error) {
	b, err := json.Marshal(value)
	return string(b), err
}
