package agentctl

import (
	"context"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

// AgentInput is the body of POST and PUT /v1/agents (spec/v1.md part 5).
type AgentInput struct {
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Config   ConfigInput       `json:"config"`
	Metadata map[string]string `json:"metadata"`
}

// ConfigInput is what is said of an agent's model.
type ConfigInput struct {
	Model       string   `json:"model"`
	MaxTokens   *int     `json:"max_tokens"`
	Temperature *float64 `json:"temperature"`
}

// RegisterInput is the body of POST /v1/agents.
type RegisterInput struct {
	AgentInput
	IssueToken *bool `json:"issue_token"`
	ExpiryDays *int  `json:"token_expires_in_days"`
}

// UpdateInput is the body of PUT /v1/agents/:id.
type UpdateInput struct {
	AgentInput
	Status *string `json:"status"`
}

// Limits of an agent's fields.
const (
	maxName        = 128
	maxType        = 64
	maxModel       = 200
	maxTokensMost  = 10_000_000
	maxMetadata    = 32
	maxMetadataKey = 64
	maxMetadataLen = 512
	maxReason      = 1024
)

// plainText tells whether a text has from 1 to most characters and no control
// characters.
func plainText(s string, most int) bool {
	return s != "" && utf8.RuneCountInString(s) <= most && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f })
}

func (in *AgentInput) check(f *fieldErrors) {
	f.add(!plainText(in.Name, maxName), "/name", "must have 1 to 128 characters and no control characters")
	f.add(!plainText(in.Type, maxType), "/type", "must have 1 to 64 characters and no control characters")
	f.add(utf8.RuneCountInString(in.Config.Model) > maxModel, "/config/model", "must have at most 200 characters")
	if n := in.Config.MaxTokens; n != nil {
		f.add(*n < 1 || *n > maxTokensMost, "/config/max_tokens", "must be from 1 to 10000000")
	}
	if t := in.Config.Temperature; t != nil {
		f.add(*t < 0 || *t > 2 || math.IsNaN(*t), "/config/temperature", "must be from 0 to 2")
	}
	checkMetadata(f, in.Metadata)
}

func checkMetadata(f *fieldErrors, m map[string]string) {
	f.add(len(m) > maxMetadata, "/metadata", "must have at most 32 keys")
	for k, v := range m {
		f.add(!plainText(k, maxMetadataKey), "/metadata", "keys must have 1 to 64 characters and no control characters")
		f.add(len(v) > maxMetadataLen, "/metadata/"+k, "must have at most 512 bytes")
	}
}

// agent is the agent that the input describes.
func (in *AgentInput) agent(id string, revision int) event.Agent {
	a := event.Agent{AgentID: id, Name: in.Name, Type: in.Type, Status: event.AgentActive, Revision: revision, Metadata: in.Metadata,
		Config: event.AgentConfig{Model: in.Config.Model}}
	if n := in.Config.MaxTokens; n != nil {
		a.Config.MaxTokens = *n
	}
	if t := in.Config.Temperature; t != nil {
		a.Config.Temperature = strconv.FormatFloat(*t, 'g', -1, 64)
	}
	return a
}

// Register makes an agent and, unless it is told not to, its first token.
func (s *Service) Register(ctx context.Context, by *Asker, in *RegisterInput) (Answer, error) {
	issue := by.Has(ScopeTokensWrite)
	if in.IssueToken != nil {
		issue = *in.IssueToken
	}
	var f fieldErrors
	in.check(&f)
	days := expiryDays(&f, "/token_expires_in_days", in.ExpiryDays)
	if err := f.fault(); err != nil {
		return Answer{}, err
	}
	if issue {
		if err := by.Require(ScopeTokensWrite); err != nil {
			return Answer{}, err
		}
	}
	return s.write(ctx, by, nil, func(view *projections.View, now time.Time) (plan, error) {
		a := projections.Agent{Agent: in.agent(event.NewIDOf(event.AgentIDKind, now), 1), Project: by.Project, CreatedAt: now, UpdatedAt: now}
		body, err := s.agentBody(view, &a)
		if err != nil {
			return plan{}, err
		}
		warnings, err := nameWarnings(view, &a)
		if err != nil {
			return plan{}, err
		}
		answer := RegisteredBody{AgentBody: body, Warnings: warnings}
		kept := answer
		p := plan{events: []pending{{a.AgentID, "register_agent", &event.AgentRegistered{Agent: a.Agent}}}}
		if issue {
			secret, issued, err := newToken(view, a.AgentID, defaultTokenScopes, now.AddDate(0, 0, days), now)
			if err != nil {
				return plan{}, err
			}
			p.events = append(p.events, pending{a.AgentID, "issue_token", issued})
			c := CredentialsBody{TokenID: issued.TokenID, ExpiresAt: event.Timestamp(time.Unix(0, issued.ExpiresAt))}
			kept.Credentials = &c
			shown := c
			shown.Token = &secret
			answer.Credentials = &shown
		}
		p.answer = Answer{Status: http.StatusCreated, Body: answer, Location: "/v1/agents/" + a.AgentID, Revision: 1}
		p.kept = kept
		return p, nil
	})
}

// nameWarnings says of an agent what a person may want to mend.
func nameWarnings(view *projections.View, a *projections.Agent) (warnings []Warning, err error) {
	others, _, err := view.Agents(projections.AgentFilter{Project: a.Project, Status: event.AgentActive, NamePrefix: a.Name}, projections.Page{Limit: 10, Work: projections.PageWork})
	for i := range others {
		if others[i].Name == a.Name && others[i].AgentID != a.AgentID {
			warnings = append(warnings, Warning{"name_in_use", "Another active agent has this name."})
			break
		}
	}
	if a.Metadata["owner"] == "" {
		warnings = append(warnings, Warning{"owner_missing", "metadata.owner does not say who answers for this agent."})
	}
	return warnings, err
}

// findAgent reads an agent of the caller's project that it may see.
func findAgent(view *projections.View, c *Caller, id string) (projections.Agent, error) {
	if err := c.sees(id); err != nil {
		return projections.Agent{}, err
	}
	a, known, err := view.Agent(c.Project, id)
	if err == nil && !known {
		err = fault.New(fault.AgentNotFound, "There is no agent with this id in your project. GET /v1/agents lists those there are.").With("agent_id", id)
	}
	return a, err
}

// Agent is GET /v1/agents/:id.
func (s *Service) Agent(ctx context.Context, c *Caller, id string) (answer Answer, err error) {
	err = s.view(ctx, func(view *projections.View) error {
		a, err := findAgent(view, c, id)
		if err != nil {
			return err
		}
		body, err := s.agentBody(view, &a)
		answer = Answer{Status: http.StatusOK, Body: body, Revision: a.Revision}
		return err
	})
	return answer, err
}

// Agents is GET /v1/agents. A token alone sees its own agent. The page ends before
// the first agent that take has no room for.
func (s *Service) Agents(ctx context.Context, c *Caller, f projections.AgentFilter, page projections.Page, take func(AgentBody) (room bool, err error)) (next string, err error) {
	f.Project, f.ID = c.Project, c.agentOnly()
	err = s.view(ctx, func(view *projections.View) (err error) {
		next, err = view.EachAgent(f, page, func(a *projections.Agent) (bool, error) {
			body, err := s.agentBody(view, a)
			if err != nil {
				return false, err
			}
			return take(body)
		})
		return err
	})
	return next, err
}

// Update replaces an agent; on an inactive one only its reactivation is taken.
func (s *Service) Update(ctx context.Context, by *Asker, id string, in *UpdateInput) (Answer, error) {
	var f fieldErrors
	in.check(&f)
	f.add(in.Status != nil && *in.Status != event.AgentActive, "/status", "must be active; DELETE deactivates an agent")
	if err := f.fault(); err != nil {
		return Answer{}, err
	}
	return s.write(ctx, by, []string{commands.AgentKey(by.Project, id)}, func(view *projections.View, now time.Time) (plan, error) {
		old, err := findAgent(view, &by.Caller, id)
		if err != nil {
			return plan{}, err
		}
		if err := by.matchRevision(old.Revision); err != nil {
			return plan{}, err
		}
		if old.Status != event.AgentActive && in.Status == nil {
			return plan{}, agentInactive(id)
		}
		a := old
		a.Agent, a.UpdatedAt, a.DeactivatedAt = in.agent(id, old.Revision+1), now, time.Time{}
		body, err := s.agentBody(view, &a)
		if err != nil {
			return plan{}, err
		}
		warnings, err := nameWarnings(view, &a)
		return plan{answer: Answer{Status: http.StatusOK, Body: ChangedBody{body, warnings}, Revision: a.Revision},
			events: []pending{{id, "update_agent", &event.AgentUpdated{Agent: a.Agent, Changed: changedFields(&old.Agent, &a.Agent)}}}}, err
	})
}

func agentInactive(id string) error {
	return fault.New(fault.AgentInactive, "The agent is deactivated. PUT it with \"status\":\"active\" to take it back into service.").With("agent_id", id)
}

// changedFields are the JSON pointers of what an update changes.
func changedFields(a, b *event.Agent) (changed []string) {
	for _, f := range []struct {
		pointer string
		differs bool
	}{
		{"/config/max_tokens", a.Config.MaxTokens != b.Config.MaxTokens}, {"/config/model", a.Config.Model != b.Config.Model},
		{"/config/temperature", a.Config.Temperature != b.Config.Temperature}, {"/metadata", !maps.Equal(a.Metadata, b.Metadata)},
		{"/name", a.Name != b.Name}, {"/status", a.Status != b.Status}, {"/type", a.Type != b.Type},
	} {
		if f.differs {
			changed = append(changed, f.pointer)
		}
	}
	return changed
}

// Deactivate ends an agent. A second time it changes nothing.
func (s *Service) Deactivate(ctx context.Context, by *Asker, id, reason string) (Answer, error) {
	if utf8.RuneCountInString(reason) > maxReason {
		return Answer{}, InvalidFields(FieldError{"/reason", "must have at most 1024 characters"})
	}
	return s.write(ctx, by, []string{commands.AgentKey(by.Project, id)}, func(view *projections.View, now time.Time) (plan, error) {
		a, err := findAgent(view, &by.Caller, id)
		if err != nil {
			return plan{}, err
		}
		if err := by.matchRevision(a.Revision); err != nil {
			return plan{}, err
		}
		var p plan
		if a.Status == event.AgentActive {
			end := event.AgentDeactivated{AgentID: id, Cause: event.CauseRequest, Reason: reason}
			if p.events, err = deactivation(view, &a, &end, now, mostRevoked); err != nil {
				return plan{}, err
			}
		}
		body, err := s.agentBody(view, &a)
		p.answer = Answer{Status: http.StatusOK, Body: ChangedBody{AgentBody: body}, Revision: a.Revision}
		return p, err
	})
}

// EndInherited deactivates the agents that were active when the log before this one
// ended in a loss: what was lost may be their end, the end of a token or a policy that
// binds them. Nothing of them is good until somebody takes them back into service.
func (s *Service) EndInherited(ctx context.Context, agents []projections.Agent) error {
	for i := range agents {
		project, id := agents[i].Project, agents[i].AgentID
		_, err := s.Commands.Change(ctx, commands.Change{Keys: []string{commands.AgentKey(project, id)}, Decide: func(view *projections.View, now time.Time) ([]event.Draft, error) {
			a, known, err := view.Agent(project, id)
			if err != nil || !known || a.Status != event.AgentActive {
				return nil, err
			}
			var p plan
			end := event.AgentDeactivated{Cause: event.CauseLoss, AgentID: id, Reason: "Events before this log were lost: they may have revoked a token, deactivated the agent or changed its policies."}
			if p.events, err = deactivation(view, &a, &end, now, mostRevoked); err != nil {
				return nil, err
			}
			by := Asker{Caller: Caller{Project: project}}
			return by.drafts(&p, now)
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// mostRevoked is how many tokens a deactivation revokes by events of their own: they are
// written in one group, and few agents ever have as many. The others end with the agent.
const mostRevoked = 512

// deactivation are the events that end an agent: its tokens that are not revoked yet,
// then itself. Expired ones are revoked too, as the clock that says so may be ahead: those
// that expire last, as far as there is room for them. a is changed to what it is after
// all of it.
func deactivation(view *projections.View, a *projections.Agent, end *event.AgentDeactivated, now time.Time, room int) (events []pending, err error) {
	tokens, err := view.AllTokens(a.AgentID)
	if err != nil {
		return nil, err
	}
	tokens = slices.DeleteFunc(tokens, func(k projections.AgentToken) bool { return !k.RevokedAt.IsZero() })
	slices.SortStableFunc(tokens, func(a, b projections.AgentToken) int { return b.ExpiresAt.Compare(a.ExpiresAt) })
	for i := range tokens[:min(len(tokens), max(room, 0))] {
		events = append(events, pending{a.AgentID, "deactivate_agent", &event.AgentTokenRevoked{TokenID: tokens[i].ID, AgentID: a.AgentID, Cause: event.CauseAgentDeactivated}})
	}
	a.Status, a.Revision, a.UpdatedAt, a.DeactivatedAt = event.AgentInactive, a.Revision+1, now, now
	end.Revision = a.Revision
	return append(events, pending{a.AgentID, "deactivate_agent", end}), nil
}
