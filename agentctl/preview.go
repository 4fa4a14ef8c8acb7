package agentctl

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/replay"
)

// Bounds of a preview of an application: how far it looks back, how long it may take,
// and how many of the statements that would change it names.
const (
	previewWindow  = 24 * time.Hour
	previewTime    = 5 * time.Second
	previewChanges = 10
)

// PreviewApply tells what an application would have done to the agent's last
// day. Nothing is written.
func (s *Service) PreviewApply(ctx context.Context, by *Asker, policyID string, in *ApplyInput) (Answer, error) {
	text, value, err := in.check()
	if err != nil {
		return Answer{}, err
	}
	now := s.Now()
	var p projections.AgentPolicy
	var body *ApplicationBody
	err = s.view(ctx, func(view *projections.View) (err error) {
		if p, err = s.appliable(view, by, policyID, in.AgentID); err != nil {
			return err
		}
		a := projections.Application{PolicyApplication: event.PolicyApplication{PolicyID: policyID, AgentID: in.AgentID, Priority: text, PriorityValue: value},
			AppliedAt: now, AppliedBy: by.CredentialIDs()[0]}
		body = applicationBody(&a, p.Revision, applicationPreview)
		return nil
	})
	if err != nil {
		return Answer{}, err
	}
	done, err := s.looking.take(ctx, by.Project, 1)
	if err != nil {
		return Answer{}, err
	}
	defer done()
	if body.Warnings, err = s.applyWarnings(ctx, by, policyID, in.AgentID); err != nil {
		return Answer{}, err
	}
	if begun, follows, err := s.logBegan(ctx); err != nil {
		return Answer{}, err
	} else if follows && begun.After(now.Add(-previewWindow)) {
		body.Warnings = append(body.Warnings, Warning{"preview_incomplete", "The event log follows another one, and began at " + event.Timestamp(begun) + ". The preview begins there; its counts leave out what the agent did in the 24 hours before that."})
	}
	ctx, cancel := context.WithTimeout(ctx, previewTime)
	defer cancel()
	var until time.Time
	if body.Preview, until, err = s.preview(ctx, by.Project, in.AgentID, &p, now); !until.IsZero() {
		body.Warnings = append(body.Warnings, Warning{"preview_incomplete", "The agent did more in the last 24 hours than a preview has time to look at. It ends at " + event.Timestamp(until) + "; its counts leave out what came later."})
	}
	return Answer{Status: http.StatusOK, Body: body}, err
}

// logBegan is the time of the log's first event. follows says that there is a log before
// it, whose events are not in the index.
func (s *Service) logBegan(ctx context.Context) (at time.Time, follows bool, err error) {
	first, _, err := s.at(ctx, 1)
	if err != nil || first.Type != event.TypeStartup {
		return first.Time, false, err
	}
	var p event.Startup
	err = first.Parse(&p)
	return first.Time, p.Predecessor != nil, err
}

// preview asks the rules of one policy about what the log has of an agent. The
// agent and its tools are taken as they are now, usage as it was recorded. Where the
// deadline of ctx ends it, until is the time of the last event that it has looked at.
func (s *Service) preview(ctx context.Context, project, agentID string, p *projections.AgentPolicy, now time.Time) (body *PreviewBody, until time.Time, err error) {
	compiled, err := s.compiled.revision(ctx, project, p.PolicyID, p.Revision, func() (*event.AgentPolicy, error) { return &p.AgentPolicy, nil })
	if err != nil {
		return nil, until, err
	}
	look := past{ctx: ctx, at: now.Add(-previewWindow),
		project: project, now: now, app: []agentrules.Application{{Rules: compiled.rules}}, agentID: agentID, body: &PreviewBody{Window: "24h"},
		counted: newMeter(), tools: map[string]agentrules.Tool{}}
	f := projections.AuditFilter{AgentID: agentID, Since: now.Add(-previewWindow),
		EventTypes: []string{string(event.TypeRequestReceived), string(event.TypeDecisionRecorded), string(event.TypeTelemetryReceived)}}
	err = s.view(ctx, func(view *projections.View) error {
		agent, _, err := view.Agent(project, agentID)
		if err != nil {
			return err
		}
		if look.agent, err = agentRoot(view, &agent, now); err != nil {
			return err
		}
		look.view = view
		return s.eachEvent(ctx, f, look.take)
	})
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return look.body, look.at, nil
	}
	return look.body, until, err
}

// A past is the walk over an agent's last day.
type past struct {
	ctx     context.Context
	at      time.Time // of the last event
	view    *projections.View
	project string
	now     time.Time
	agentID string
	agent   event.AgentRoot
	tools   map[string]agentrules.Tool // by the ids that events named
	app     []agentrules.Application
	reader  replay.Reader
	counted *meter // throttles, as they would have counted
	body    *PreviewBody
}

// tool is what the rules read of a tool.
func (w *past) tool(id string) (agentrules.Tool, error) {
	known, looked := w.tools[id]
	if looked {
		return known, nil
	}
	root, err := toolRoot(w.view, w.project, id, w.now)
	w.tools[id] = root
	return root, err
}

func (w *past) take(e *event.Envelope) error {
	w.at = e.Time
	if e.Type == event.TypeTelemetryReceived {
		return w.telemetry(e)
	}
	d, err := w.reader.Take(e)
	if err != nil || d == nil || d.AgentLayer == nil || d.Describes {
		return nil // also a decision whose request lies outside of the window
	}
	w.body.SQLDecisions++
	layer := agentrules.Evaluate(&agentrules.Input{Agent: d.AgentLayer.Agent, Usage: d.AgentLayer.Usage, Facts: &d.Facts, Applications: w.app, Count: w.count(e.Time)})
	if policy.Decision(layer.Decision).Strictness() <= d.Recorded.Decision.Strictness() {
		return nil
	}
	w.body.SQLWouldChange++
	one := PreviewChange{RequestID: e.Context.RequestID, Seq: e.Seq, From: string(d.Recorded.Decision), To: layer.Decision, RuleID: layer.RuleID}
	w.body.SQLChanges = slices.Insert(w.body.SQLChanges, 0, one)
	w.body.SQLChanges = w.body.SQLChanges[:min(len(w.body.SQLChanges), previewChanges)]
	return nil
}

func (w *past) count(at time.Time) agentrules.Counter {
	return func(policyID string, r *agentrules.Rule) (int, int) {
		return w.counted.count(policyID, r, at, &counting{})
	}
}

func (w *past) telemetry(e *event.Envelope) error {
	var p event.TelemetryReceived
	if err := e.Parse(&p); err != nil {
		return err
	}
	for i := range p.Events {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if p.Events[i].AgentID != w.agentID {
			continue
		}
		w.body.Events++
		tool, err := w.tool(p.Events[i].Tool.ID)
		if err != nil {
			return err
		}
		in := agentrules.EventInput{Agent: w.agent, Event: &p.Events[i], Tool: tool, Applications: w.app, Count: w.count(e.Time)}
		for _, u := range p.Usage {
			if u.AgentID == w.agentID {
				in.Usage = u.Usage
			}
		}
		if len(agentrules.EvaluateEvent(&in).Violations) > 0 {
			w.body.EventsMatching++
		}
	}
	return nil
}
