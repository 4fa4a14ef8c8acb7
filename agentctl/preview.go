package agentctl

import (
	"context"
	"net/http"
	"time"

	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/replay"
)

// previewWindow is how far a preview of an application looks back.
const previewWindow = 24 * time.Hour

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
	err = s.view(func(view *projections.View) (err error) {
		if p, err = s.appliable(view, by, policyID, in.AgentID); err != nil {
			return err
		}
		a := projections.Application{PolicyApplication: event.PolicyApplication{PolicyID: policyID, AgentID: in.AgentID, Priority: text, PriorityValue: value},
			AppliedAt: now, AppliedBy: by.CredentialIDs()[0]}
		body = applicationBody(&a, p.Revision, applicationPreview)
		body.Warnings, err = s.applyWarnings(view, by.Project, in.AgentID, &p, now)
		return err
	})
	if err != nil {
		return Answer{}, err
	}
	body.Preview, err = s.preview(ctx, in.AgentID, &p, now)
	return Answer{Status: http.StatusOK, Body: body}, err
}

// preview asks the rules of one policy about what the log has of an agent.
func (s *Service) preview(ctx context.Context, agentID string, p *projections.AgentPolicy, now time.Time) (*PreviewBody, error) {
	rules, err := s.compiled.rules(&p.AgentPolicy)
	if err != nil {
		return nil, err
	}
	look := past{app: []agentrules.Application{{Rules: rules}}, agentID: agentID, body: &PreviewBody{Window: "24h"}, counted: meter{throttles: map[throttleKey][]int64{}}}
	f := projections.AuditFilter{AgentID: agentID, Since: now.Add(-previewWindow),
		EventTypes: []string{string(event.TypeRequestReceived), string(event.TypeDecisionRecorded), string(event.TypeTelemetryReceived)}}
	return look.body, s.eachEvent(ctx, f, look.take)
}

// A past is the walk over an agent's last day.
type past struct {
	agentID string
	app     []agentrules.Application
	reader  replay.Reader
	counted meter // throttles, as they would have counted
	body    *PreviewBody
}

func (w *past) take(e *event.Envelope) error {
	if e.Type == event.TypeTelemetryReceived {
		return w.telemetry(e)
	}
	d, err := w.reader.Take(e)
	if err != nil || d == nil || d.AgentLayer == nil {
		return nil // a decision whose request lies outside of the window
	}
	w.body.SQLDecisions++
	layer := agentrules.Evaluate(&agentrules.Input{Agent: d.AgentLayer.Agent, Usage: d.AgentLayer.Usage, Facts: &d.Facts, Applications: w.app, Count: w.count(e.Time)})
	if policy.Decision(layer.Decision).Strictness() > d.Recorded.Decision.Strictness() {
		w.body.SQLWouldChange++
	}
	return nil
}

func (w *past) count(at time.Time) agentrules.Counter {
	return func(policyID string, r *agentrules.Rule) (int, int) { return w.counted.count(policyID, r, at, true) }
}

func (w *past) telemetry(e *event.Envelope) error {
	var p event.TelemetryReceived
	if err := p.Parse(e.Payload); err != nil {
		return err
	}
	for i := range p.Events {
		if p.Events[i].AgentID != w.agentID {
			continue
		}
		w.body.Events++
		in := agentrules.EventInput{Event: &p.Events[i], Tool: agentrules.UnknownTool, Applications: w.app, Count: w.count(e.Time)}
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
