package replay

import (
	"fmt"
	"strings"

	"writegate/eventlog/event"
)

// subjects is what the log said so far of whom the subjects of an issuer speak for: enough to
// know whether a request came under a binding that stood.
type subjects map[string]*boundSubject // by the id of the binding

type boundSubject struct {
	agent string
	ended bool // unbound, or its agent was deactivated
}

// take looks at the next event, of this log or of one before it.
func (s subjects) take(e *event.Envelope) error {
	switch e.Type {
	case event.TypeAgentSubjectBound:
		var p event.AgentSubjectBound
		if err := e.Parse(&p); err != nil {
			return fmt.Errorf("event %d: %w", e.Seq, err)
		}
		s[p.SubjectID] = &boundSubject{agent: e.Context.AgentID}
	case event.TypeAgentSubjectUnbound:
		var p event.AgentSubjectUnbound
		if err := e.Parse(&p); err != nil {
			return fmt.Errorf("event %d: %w", e.Seq, err)
		}
		if b := s[p.SubjectID]; b != nil {
			b.ended = true
		}
	case event.TypeAgentDeactivated:
		for _, b := range s {
			b.ended = b.ended || b.agent == e.Context.AgentID
		}
	}
	return nil
}

// asked holds the credentials of a request against the bindings: what came with a JWT came
// under one that stood, and as the agent that it was made for.
func (s subjects) asked(e *event.Envelope) (fields []string, err error) {
	if e.Type != event.TypeRequestReceived || e.Context.AgentID == "" {
		return nil, nil
	}
	var p event.RequestReceived
	if err := e.Parse(&p); err != nil {
		return nil, fmt.Errorf("event %d: %w", e.Seq, err)
	}
	for _, id := range p.CredentialIDs {
		if !strings.HasPrefix(id, string(event.SubjectIDKind)+"_") {
			continue
		}
		switch b := s[id]; {
		case b == nil:
			fields = append(fields, fmt.Sprintf("credential: the request came under %s, and no operator bound it", id))
		case b.ended:
			fields = append(fields, fmt.Sprintf("credential: the request came under %s after its end", id))
		case b.agent != e.Context.AgentID:
			fields = append(fields, fmt.Sprintf("credential: %s is bound to %s, and the request was taken for %s", id, b.agent, e.Context.AgentID))
		}
	}
	return fields, nil
}
