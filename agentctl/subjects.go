package agentctl

import (
	"context"
	"slices"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

// BindInput is the body of POST /subjects.
type BindInput struct {
	AgentID string   `json:"agent_id"`
	Subject string   `json:"subject"`
	Scopes  []string `json:"scopes"`
	Reason  string   `json:"reason"`
}

// SubjectBody is a subject of the issuer of agents' tokens that is, or was, bound to an agent.
type SubjectBody struct {
	SubjectID     string   `json:"subject_id"`
	Status        string   `json:"status"` // bound, unbound
	AgentID       string   `json:"agent_id"`
	AgentName     string   `json:"agent_name"`
	Project       string   `json:"project"`
	Issuer        string   `json:"issuer"`
	Subject       string   `json:"subject"`
	Scopes        []string `json:"scopes"`
	Reason        string   `json:"reason"`
	CreatedAt     string   `json:"created_at"`
	CreatedBy     string   `json:"created_by"`
	TokensFrom    *string  `json:"tokens_from"` // tokens that were issued before are not good; null = all are
	UnboundAt     *string  `json:"unbound_at"`
	UnboundBy     *string  `json:"unbound_by"` // null where the deactivation of the agent ended it
	UnboundReason *string  `json:"unbound_reason"`
	LastUsedAt    *string  `json:"last_used_at"`
}

// Statuses of a bound subject.
const (
	SubjectBound   = "bound"
	SubjectUnbound = "unbound"
)

func (s *Service) subjectBody(b *projections.AgentSubject, a *projections.Agent) SubjectBody {
	body := SubjectBody{SubjectID: b.ID, Status: SubjectBound, AgentID: b.AgentID, AgentName: a.Name, Project: b.Project, Issuer: b.Issuer, Subject: b.Subject, Scopes: b.Scopes,
		Reason: b.Reason, CreatedAt: event.Timestamp(b.CreatedAt), CreatedBy: b.CreatedBy, TokensFrom: moment(b.TokensFrom),
		UnboundAt: moment(a.SubjectEnd(b)), UnboundBy: optional(b.UnboundBy), UnboundReason: optional(b.UnboundReason), LastUsedAt: moment(s.uses.seen(b.ID, b.UsedAt))}
	if body.UnboundAt != nil {
		body.Status = SubjectUnbound
	}
	return body
}

// BindSubject lets a subject of the issuer speak for an agent. By is the label of an operator
// token: the issuer is one for all projects, so who of it is whom is not for the key of one
// project to say.
func (s *Service) BindSubject(ctx context.Context, by, requestID string, in *BindInput) (SubjectBody, error) {
	fields := map[string]string{}
	if in.AgentID == "" {
		fields["agent_id"] = "is required: the agent that the subject is to speak for"
	}
	for _, scope := range in.Scopes {
		if !slices.Contains(allowedTokenScopes, scope) {
			fields["scopes"] = "must be scopes that an agent's token can have"
		}
	}
	if in.Scopes != nil && len(in.Scopes) == 0 {
		fields["scopes"] = "must name at least one scope, or be left out"
	}
	if len(fields) > 0 {
		return SubjectBody{}, fault.New(fault.ValidationFailed, "The binding is not valid; details.fields says what to change.").With("fields", fields)
	}
	r := commands.BindSubject{AgentID: in.AgentID, Subject: in.Subject, Scopes: in.Scopes, Reason: in.Reason, By: by, RequestID: requestID}
	if s.Issuer != nil {
		r.Issuer = s.Issuer.URL
	}
	if r.Scopes == nil {
		r.Scopes = defaultTokenScopes
	}
	r.Scopes = slices.Compact(slices.Sorted(slices.Values(r.Scopes)))
	b, err := s.Commands.BindSubject(ctx, &r)
	if err != nil {
		return SubjectBody{}, err
	}
	return s.shownSubject(context.WithoutCancel(ctx), &b)
}

// UnbindSubject ends that a subject speaks for its agent. A second time it changes nothing.
func (s *Service) UnbindSubject(ctx context.Context, by, requestID, id, reason string) (SubjectBody, error) {
	b, err := s.Commands.UnbindSubject(ctx, commands.UnbindSubject{ID: id, Reason: reason, By: by, RequestID: requestID})
	if err != nil {
		return SubjectBody{}, err
	}
	return s.shownSubject(context.WithoutCancel(ctx), &b)
}

func (s *Service) shownSubject(ctx context.Context, b *projections.AgentSubject) (body SubjectBody, err error) {
	err = s.view(ctx, func(view *projections.View) error {
		agent, _, err := view.AnyAgent(b.AgentID)
		body = s.subjectBody(b, &agent)
		return err
	})
	return body, err
}

// Subject is GET /subjects/:subject_id.
func (s *Service) Subject(ctx context.Context, id string) (body SubjectBody, err error) {
	err = s.view(ctx, func(view *projections.View) error {
		b, known, err := view.AgentSubject(id)
		if err == nil && !known {
			err = commands.NoSubject(id)
		}
		if err != nil {
			return err
		}
		agent, _, err := view.AnyAgent(b.AgentID)
		body = s.subjectBody(&b, &agent)
		return err
	})
	return body, err
}

// Subjects is GET /subjects, by take as Agents.
func (s *Service) Subjects(ctx context.Context, f projections.SubjectFilter, page projections.Page, take func(SubjectBody) (room bool, err error)) (next string, err error) {
	err = s.view(ctx, func(view *projections.View) (err error) {
		next, err = view.EachSubject(f, page, func(b *projections.AgentSubject, a *projections.Agent) (bool, error) {
			return take(s.subjectBody(b, a))
		})
		return err
	})
	return next, err
}
