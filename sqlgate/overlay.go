package sqlgate

import (
	"context"
	"time"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/scram"
)

// An Overlay lets the rules of an agent tighten decisions about the statements
// that come with its token (spec/v1.md part 7). Package agentctl implements it.
type Overlay interface {
	// AgentOf finds the agent of a token, at this moment. Its error is the 401 or
	// 403 that the request is refused with.
	AgentOf(ctx context.Context, token string) (Agent, error)
	// AgentNow finds the same of an agent whose token, that of CredentialID, was proven
	// before: by the password of a wire connection.
	AgentNow(ctx context.Context, a Agent) (Agent, error)
	// Decide asks the agent's rules about a statement. With count set the
	// statement counts towards usage and throttles, in the same atomic step, until
	// Counted of the decision says that it is not recorded.
	Decide(ctx context.Context, a Agent, f *policy.Facts, count bool) (LayerDecision, error)
	// Aggregates are what the evidence of such a decision is written under.
	Aggregates(a Agent) []string
	// Settle is called before those locks are taken. Extra decides under them what
	// happens to the agent with the decision, and around writes it; their errors refuse
	// the statement, with ErrPolicyChanged where the rules would read something else now.
	Settle(a Agent, d LayerDecision, requestID string, enforced bool) (extra func(*projections.View, time.Time) ([]event.Draft, error), around func(write func() error) error)
}

// An Agent is the one whose token, or JWT, came with a request; the zero Agent is none.
type Agent struct {
	ID            string
	Project       string
	CredentialID  string
	Until         time.Time // end of the JWT that it came with; zero = it came with a token, whose record says it
	ToolsVerified bool      // every tool that it may use is verified, and there is one
}

// An AgentVerifier checks one token of an agent as a password of the wire listener.
type AgentVerifier struct {
	Agent    Agent
	Verifier scram.Verifier
}

// A LayerDecision is what the rules of an agent say to a statement.
type LayerDecision struct {
	Layer             *event.AgentLayer
	Suspends          bool
	RetryAfterSeconds int // of a throttle that stopped it; 0 = none
	// Counted says, once, when the log recorded the decision; the zero time gives back
	// what it counted. nil where nothing was.
	Counted func(recorded time.Time)
}

// findAgent resolves the token of a request, or of the connection that it came on. One
// that is not good is refused, never taken for absent.
func (g *Gate) findAgent(ctx context.Context, s *submission) error {
	proven := s.wire != nil && s.Agent.ID != ""
	switch {
	case s.AgentToken == "" && !proven:
		return nil
	case g.Overlay == nil:
		return fault.New(fault.CredentialsInvalid, "This gate knows no agents. Send the statement without an agent's token.")
	}
	var a Agent
	var err error
	if proven {
		a, err = g.Overlay.AgentNow(ctx, s.Agent)
	} else {
		a, err = g.Overlay.AgentOf(ctx, s.AgentToken)
	}
	if err == nil {
		s.Agent = a
	}
	return err
}

// counted says when the decision was recorded; the zero time: it was not, and will not be.
func (s *submission) counted(recorded time.Time) {
	if done := s.layer.Counted; done != nil {
		s.layer.Counted = nil
		done(recorded)
	}
}

// askAgent lets the rules of the agent tighten what the gate's policy decided.
func (g *Gate) askAgent(ctx context.Context, s *submission, f *policy.Facts) (err error) {
	if s.Agent.ID == "" {
		return nil
	}
	if s.layer, err = g.Overlay.Decide(ctx, s.Agent, f, !s.Preview); err != nil {
		return err
	}
	s.result = agentrules.Tighten(s.result, s.layer.Layer)
	return nil
}

// layerTrace shows the rules of the agent in a preview, behind those of the policy.
func (s *submission) layerTrace() (entries []policy.TraceEntry) {
	if s.layer.Layer == nil {
		return nil
	}
	for _, m := range s.layer.Layer.Matched {
		for _, id := range m.Rules {
			decides := m.PolicyID == s.layer.Layer.PolicyID && id == s.layer.Layer.RuleID
			decision := policy.Allow
			if decides {
				decision = policy.Decision(s.layer.Layer.Decision)
			}
			entries = append(entries, policy.TraceEntry{RuleID: "agent:" + m.PolicyID + "/" + id, Decision: decision, Mode: "enforce",
				Outcome: policy.OutcomeMatched, Checks: []policy.TraceCheck{{Key: "priority", Want: m.PriorityValue, Got: m.PriorityValue, Pass: true}}})
		}
	}
	return entries
}
