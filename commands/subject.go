package commands

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/projections"
)

// Bounds of bound subjects.
const (
	MaxSubjects     = 10  // of one agent at a time, as of its tokens
	MaxSubjectBytes = 512 // of a name that an issuer gives; OpenID Connect itself has 255

	maxSubjectReason = 1000 // characters
)

// BindSubject lets a subject of the issuer of agents' tokens speak for an agent.
type BindSubject struct {
	AgentID   string
	Issuer    string // "" = the gate knows none
	Subject   string
	Scopes    []string
	Reason    string
	By        string // label of the operator token
	RequestID string
}

// BindSubject records a binding before it returns it. A subject speaks for one agent of one
// project at a time. One that spoke for an agent before is bound anew for tokens alone that
// were issued since that ended, and in a log that follows another for those issued since it was begun: a token that was given away, or that was meant for another
// agent, does not come back into force. What the scopes may be is the caller's to check.
//
// Errors: validation_failed, agent_not_found, agent_inactive, subject_bound,
// token_limit_exceeded, and those of the log.
func (c *Commands) BindSubject(ctx context.Context, r *BindSubject) (projections.AgentSubject, error) {
	if err := r.check(); err != nil {
		return projections.AgentSubject{}, err
	}
	agent, err := c.agentOf(ctx, r.AgentID)
	if err != nil {
		return projections.AgentSubject{}, err
	}
	unlock, err := c.lock(ctx, AgentKey(agent.Project, agent.AgentID), subjectLock(r.Issuer, r.Subject))
	if err != nil {
		return projections.AgentSubject{}, err
	}
	defer unlock()
	now := c.now()
	since, err := c.begunBehindALog(ctx)
	if err != nil {
		return projections.AgentSubject{}, err
	}
	p := event.AgentSubjectBound{SubjectID: event.NewIDOf(event.SubjectIDKind, now), Issuer: r.Issuer, Subject: r.Subject, Scopes: r.Scopes, Reason: r.Reason, By: r.By}
	err = c.look(ctx, func(view *projections.View) error {
		agent, _, err := view.AnyAgent(r.AgentID)
		if err != nil {
			return err
		}
		if agent.Status != event.AgentActive {
			return fault.New(fault.AgentInactive, "The agent is not in service, so no subject can speak for it. Activate the agent first.").With("agent_id", agent.AgentID)
		}
		before, known, err := view.SubjectOf(r.Issuer, r.Subject)
		if err != nil {
			return err
		}
		if known {
			holder, _, err := view.AnyAgent(before.AgentID)
			if err != nil {
				return err
			}
			end := holder.SubjectEnd(&before)
			if end.IsZero() {
				return fault.New(fault.SubjectBound, "The subject speaks for an agent already. POST /subjects/{subject_id}/unbind ends that first.").
					With("subject_id", before.ID).With("agent_id", before.AgentID)
			}
			p.TokensFrom = end.UnixNano()
		}
		if !since.IsZero() {
			p.TokensFrom = max(p.TokensFrom, since.UnixNano())
		}
		bound, err := view.BoundSubjects(agent.AgentID)
		if err == nil && bound >= MaxSubjects {
			err = fault.New(fault.TokenLimitExceeded, "The agent has %d bound subjects, which is the most. Unbind one first.", bound).With("limit", MaxSubjects)
		}
		return err
	})
	if err != nil {
		return projections.AgentSubject{}, err
	}
	c.step("commands.decide")
	shared := event.Context{Operation: "bind_subject", AgentID: agent.AgentID, Project: agent.Project, RequestID: r.RequestID}
	if _, err := c.commit(ctx, eventlog.Group{Drafts: []event.Draft{event.New(now, shared, &p)}}); err != nil {
		return projections.AgentSubject{}, err
	}
	s, _, err := c.subject(context.WithoutCancel(ctx), p.SubjectID)
	return s, err
}

// begunBehindALog is when this log was begun, where it follows another, whose last events may be lost: among them
// what ended a binding. It is zero where there was none.
func (c *Commands) begunBehindALog(ctx context.Context) (time.Time, error) {
	for e, err := range c.log.From(ctx, 1) {
		if err != nil {
			return time.Time{}, err
		}
		var p event.Startup
		if e.Parse(&p) == nil && p.Predecessor == nil {
			break
		}
		return e.Time, nil
	}
	return time.Time{}, nil
}

func (r *BindSubject) check() error {
	if r.Issuer == "" {
		return fault.New(fault.ValidationFailed, "This gate takes no tokens of an issuer, so there is nothing that a subject could be bound for. Set GATE_AGENT_OIDC_ISSUER and GATE_AGENT_OIDC_AUDIENCE, and start it again.")
	}
	fields := map[string]string{}
	if !validSubject(r.Subject) {
		fields["subject"] = fmt.Sprintf("must be the sub of its tokens exactly, in 1 to %d bytes without control characters and without white space around it", MaxSubjectBytes)
	}
	checkWhy(r.Reason, fields)
	if len(fields) > 0 {
		return fault.New(fault.ValidationFailed, "The binding is not valid; details.fields says what to change.").With("fields", fields)
	}
	return nil
}

func validSubject(s string) bool {
	return s != "" && len(s) <= MaxSubjectBytes && utf8.ValidString(s) && !strings.ContainsRune(s, utf8.RuneError) && strings.TrimSpace(s) == s &&
		!strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f })
}

func checkWhy(reason string, fields map[string]string) {
	if n := utf8.RuneCountInString(reason); strings.TrimSpace(reason) == "" || n > maxSubjectReason {
		fields["reason"] = fmt.Sprintf("must say why, in 1 to %d characters", maxSubjectReason)
	}
}

// UnbindSubject ends a binding. By is the label of the operator token.
type UnbindSubject struct {
	ID, Reason, By, RequestID string
}

// UnbindSubject records the end of a binding before it returns the binding as it stands then.
// The next request with a token of the subject fails, and so does what waits. What ended
// already is given as it is, without an event.
//
// Errors: validation_failed, subject_not_found, and those of the log.
func (c *Commands) UnbindSubject(ctx context.Context, r UnbindSubject) (projections.AgentSubject, error) {
	fields := map[string]string{}
	if checkWhy(r.Reason, fields); len(fields) > 0 {
		return projections.AgentSubject{}, fault.New(fault.ValidationFailed, "The request is not valid; details.fields says what to change.").With("fields", fields)
	}
	s, found, err := c.subject(ctx, r.ID)
	if err == nil && !found {
		err = NoSubject(r.ID)
	}
	if err != nil {
		return s, err
	}
	unlock, err := c.lock(ctx, AgentKey(s.Project, s.AgentID), subjectLock(s.Issuer, s.Subject))
	if err != nil {
		return s, err
	}
	defer unlock()
	var agent projections.Agent
	err = c.look(ctx, func(view *projections.View) (err error) {
		if s, _, err = view.AgentSubject(r.ID); err != nil {
			return err
		}
		agent, _, err = view.AnyAgent(s.AgentID)
		return err
	})
	if err != nil || !agent.BoundSubject(&s) {
		return s, err
	}
	c.step("commands.decide")
	shared := event.Context{Operation: "unbind_subject", AgentID: s.AgentID, Project: s.Project, RequestID: r.RequestID}
	draft := event.New(c.now(), shared, &event.AgentSubjectUnbound{SubjectID: s.ID, Reason: r.Reason, By: r.By})
	if _, err := c.commit(ctx, eventlog.Group{Drafts: []event.Draft{draft}}); err != nil {
		return s, err
	}
	s, _, err = c.subject(context.WithoutCancel(ctx), r.ID)
	return s, err
}

// NoSubject is the fault of an id that no binding has.
func NoSubject(id string) error {
	return fault.New(fault.SubjectNotFound, "There is no bound subject with this id. GET /subjects lists those that there are.").With("subject_id", id)
}

func (c *Commands) subject(ctx context.Context, id string) (s projections.AgentSubject, found bool, err error) {
	err = c.look(ctx, func(view *projections.View) (err error) {
		s, found, err = view.AgentSubject(id)
		return err
	})
	return s, found, err
}
