package agentctl

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"writegate/agentctl/egress"
	"writegate/agentctl/toolcheck"
	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
)

// A ToolGuard is how tools are verified and where the gate may go for it.
type ToolGuard struct {
	Guard   *egress.Guard
	Checker *toolcheck.Checker
}

// NewToolGuard makes one from the settings GATE_EGRESS_ALLOW_CIDRS and
// GATE_EGRESS_ALLOW_PORTS, and from the secrets in the environment.
func NewToolGuard(cidrs, ports string, secrets toolcheck.Secrets, log *slog.Logger) (*ToolGuard, error) {
	rules, err := egress.ParseRules(cidrs, ports)
	if err != nil {
		return nil, err
	}
	guard := egress.New(rules)
	return &ToolGuard{Guard: guard, Checker: toolcheck.New(guard, secrets, log)}, nil
}

// RegisterTool is POST /v1/tools.
func (s *Service) RegisterTool(ctx context.Context, by *Asker, in *ToolInput) (Answer, error) {
	tool, err := in.tool(ctx, by, s.Tools)
	if err != nil {
		return Answer{}, err
	}
	return s.writeShared(ctx, by, nil, func(view *projections.View, now time.Time) (plan, error) {
		if err := agentsThere(view, by.Project, tool.Agents); err != nil {
			return plan{}, err
		}
		tool.ToolID, tool.Revision, tool.Status = event.NewIDOf(event.ToolIDKind, now), 1, event.ToolIsRegistered
		if !tool.Enabled {
			tool.Status = event.ToolIsDisabled
		}
		v := projections.Tool{Tool: tool, Project: by.Project, CreatedAt: now, UpdatedAt: now}
		warnings, err := toolWarnings(view, &v)
		return plan{answer: Answer{Status: http.StatusCreated, Body: ChangedTool{toolBody(&v, now), warnings}, Location: "/v1/tools/" + tool.ToolID, Revision: 1},
			events: []pending{{"", "register_tool", &event.ToolRegistered{Tool: tool}}}}, err
	})
}

// UpdateTool is PUT /v1/tools/:id. What changes how the tool is reached or what
// it should be puts it back to registered and drops its pin.
func (s *Service) UpdateTool(ctx context.Context, by *Asker, id string, in *ToolInput) (Answer, error) {
	tool, err := in.tool(ctx, by, s.Tools)
	if err != nil {
		return Answer{}, err
	}
	return s.writeShared(ctx, by, []string{commands.ToolKey(by.Project, id)}, func(view *projections.View, now time.Time) (plan, error) {
		old, err := findTool(view, &by.Caller, id)
		if err != nil {
			return plan{}, err
		}
		if err := by.matchRevision(old.Revision); err != nil {
			return plan{}, err
		}
		if err := agentsThere(view, by.Project, tool.Agents); err != nil {
			return plan{}, err
		}
		v := old
		v.Tool, v.UpdatedAt = tool, now
		v.ToolID, v.Revision, v.Pinned = id, old.Revision+1, old.Pinned
		if !v.SameTarget(&old.Tool) {
			v.Checked, v.PinnedParts, v.Pinned = projections.ToolCheck{}, "", [32]byte{}
		}
		v.Status = statusOf(&v)
		warnings, err := toolWarnings(view, &v)
		return plan{answer: Answer{Status: http.StatusOK, Body: ChangedTool{toolBody(&v, now), warnings}, Revision: v.Revision},
			events: []pending{{"", "update_tool", &event.ToolUpdated{Tool: v.Tool}}}}, err
	})
}

// statusOf is what a tool is by its configuration and its last verification.
func statusOf(v *projections.Tool) string {
	if !v.Enabled {
		return event.ToolIsDisabled
	}
	switch v.Checked.Status {
	case event.VerificationPassed:
		return event.ToolIsVerified
	case event.VerificationFailed:
		return event.ToolIsFailed
	case event.VerificationDrifted:
		return event.ToolIsDrifted
	}
	return event.ToolIsRegistered
}

func agentsThere(view *projections.View, project string, agents []string) error {
	var f fieldErrors
	for i, id := range agents {
		_, known, err := view.Agent(project, id)
		if err != nil {
			return err
		}
		f.add(!known, fmt.Sprintf("/agents/%d", i), "is no agent of your project")
	}
	return f.fault()
}

// toolWarnings says of a tool what a person may want to mend.
func toolWarnings(view *projections.View, v *projections.Tool) (warnings []Warning, err error) {
	others, _, err := view.Tools(projections.ToolFilter{Project: v.Project, NamePrefix: v.Name}, projections.Page{Limit: 10, Work: projections.PageWork})
	for i := range others {
		if others[i].Name == v.Name && others[i].ToolID != v.ToolID {
			warnings = append(warnings, Warning{"name_in_use", "Another tool has this name."})
			break
		}
	}
	if v.Metadata["owner"] == "" {
		warnings = append(warnings, Warning{"owner_missing", "metadata.owner does not say who answers for this tool."})
	}
	if strings.HasPrefix(v.Endpoint.URL, "http://") {
		warnings = append(warnings, Warning{"insecure_url", "The URL is plain http: whoever is on the way reads and changes what is sent, a secret too."})
	}
	return warnings, err
}

// findTool reads a tool of the caller's project that it may see: a token alone
// sees the tools that are bound to its agent.
func findTool(view *projections.View, c *Caller, id string) (projections.Tool, error) {
	v, known, err := view.Tool(c.Project, id)
	if only := c.agentOnly(); known && only != "" {
		known = slices.Contains(v.Agents, only)
	}
	if err == nil && !known {
		err = fault.New(fault.ToolNotFound, "There is no tool with this id in your project. GET /v1/tools lists those there are.").With("tool_id", id)
	}
	return v, err
}

// Tool is GET /v1/tools/:id.
func (s *Service) Tool(ctx context.Context, c *Caller, id string) (answer Answer, err error) {
	err = s.view(ctx, func(view *projections.View) error {
		v, err := findTool(view, c, id)
		answer = Answer{Status: http.StatusOK, Body: toolBody(&v, s.Now()), Revision: v.Revision}
		return err
	})
	return answer, err
}

// ToolList is GET /v1/tools, by take as Agents.
func (s *Service) ToolList(ctx context.Context, c *Caller, f projections.ToolFilter, page projections.Page, take func(ToolBody) (room bool, err error)) (next string, err error) {
	f.Project = c.Project
	if f.AgentID, err = c.confine(f.AgentID); err != nil {
		return "", err
	}
	err = s.view(ctx, func(view *projections.View) (err error) {
		next, err = view.EachTool(f, page, func(v *projections.Tool) (bool, error) { return take(toolBody(v, s.Now())) })
		return err
	})
	return next, err
}

// toolRoot is the root tool of a condition: what is known of the tool that an
// event names.
func toolRoot(view *projections.View, project, id string, now time.Time) (agentrules.Tool, error) {
	f, known, err := view.ToolFacts(project, id)
	if err != nil || !known {
		return agentrules.UnknownTool, err
	}
	return agentrules.Tool{ID: id, Name: f.Name, Type: f.Type, Verified: f.VerifiedAt(now), ReadOnly: f.ReadOnly, Destructive: f.Destructive}, nil
}
