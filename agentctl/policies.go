package agentctl

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
	"writegate/sqlgate/agentrules"
	"writegate/sqlgate/policy"
)

// PolicyInput is the body of POST and PUT /v1/policies (spec/v1.md part 6).
type PolicyInput struct {
	Name    string      `json:"name"`
	Rules   []RuleInput `json:"rules"`
	Enabled *bool       `json:"enabled"`
	Mode    *string     `json:"mode"`
}

// RuleInput is one rule of it. A condition that was forgotten is not "always",
// which is written as an empty text.
type RuleInput struct {
	ID         *string `json:"id"`
	Action     string  `json:"action"`
	Condition  *string `json:"condition"`
	Message    string  `json:"message"`
	ReasonCode *string `json:"reason_code"`
}

// rule is the rule that the input describes, and what is wrong with what is
// there or not there; the rest is agentrules.Compile's to judge.
func (in *RuleInput) rule(pointer string) (r event.AgentRule, findings []agentrules.Finding) {
	r = event.AgentRule{Action: in.Action, Message: in.Message}
	for _, f := range []struct {
		from                *string
		to                  *string
		name, code, problem string
		bad                 bool
	}{
		{in.ID, &r.ID, "id", "bad_rule_id", "an id is left out or has 1 to 64 letters, digits, dots, dashes and underscores", in.ID != nil && *in.ID == ""},
		{in.Condition, &r.Condition, "condition", "missing_field", `a rule has a condition; "" is always`, in.Condition == nil},
		{in.ReasonCode, &r.ReasonCode, "reason_code", "reason_code_format", "a reason code is left out or has 1 to 64 small letters, digits and underscores",
			in.ReasonCode != nil && *in.ReasonCode == ""},
	} {
		if f.from != nil {
			*f.to = *f.from
		}
		if f.bad {
			findings = append(findings, agentrules.Finding{Code: f.code, Message: f.problem, Pointer: pointer + "/" + f.name})
		}
	}
	return r, findings
}

// policy checks the input and gives the policy that it describes, without an id.
func (in *PolicyInput) policy() (p event.AgentPolicy, rules []agentrules.Rule, err error) {
	var f fieldErrors
	f.add(!plainText(in.Name, maxName), "/name", "must have 1 to 128 characters and no control characters")
	f.add(len(in.Rules) == 0 || len(in.Rules) > agentrules.MaxRules, "/rules", "must have 1 to 100 rules")
	mode := event.AgentPolicyEnforce
	if in.Mode != nil {
		mode = *in.Mode
		f.add(mode != event.AgentPolicyEnforce && mode != event.AgentPolicyObserve, "/mode", "must be enforce or observe")
	}
	if err := f.fault(); err != nil {
		return p, nil, err
	}
	p = event.AgentPolicy{Name: in.Name, Enabled: in.Enabled == nil || *in.Enabled, Mode: mode, Rules: make([]event.AgentRule, len(in.Rules))}
	var wrong, findings []agentrules.Finding
	for i := range in.Rules {
		p.Rules[i], findings = in.Rules[i].rule(fmt.Sprintf("/rules/%d", i))
		wrong = append(wrong, findings...)
	}
	rules, findings = agentrules.Compile(p.Rules)
	findings = append(findings, wrong...)
	if len(findings) > 0 {
		return p, nil, fault.New(fault.PolicyInvalid, "The policy has %d fault(s); details.findings names each.", len(findings)).With("findings", findings)
	}
	for i := range rules {
		p.Rules[i].ID = rules[i].ID
	}
	return p, rules, nil
}

// CreatePolicy is POST /v1/policies.
func (s *Service) CreatePolicy(ctx context.Context, by *Asker, in *PolicyInput) (Answer, error) {
	done, err := s.applying.take(ctx, by.Project, 1)
	if err != nil {
		return Answer{}, err
	}
	defer done()
	p, _, err := in.policy()
	if err != nil {
		return Answer{}, err
	}
	return s.write(ctx, by, nil, func(_ *projections.View, now time.Time) (plan, error) {
		p.PolicyID, p.Revision = event.NewIDOf(event.AgentPolicyIDKind, now), 1
		body := policyBody(&projections.AgentPolicy{AgentPolicy: p, CreatedAt: now, UpdatedAt: now})
		return plan{answer: Answer{Status: http.StatusCreated, Body: body, Location: "/v1/policies/" + p.PolicyID, Revision: 1},
			events: []pending{{"", "create_agent_policy", &event.AgentPolicyCreated{Policy: p}}}}, nil
	})
}

// UpdatePolicy is PUT /v1/policies/:id. It acts on every agent that the policy
// is applied to, from its event on.
func (s *Service) UpdatePolicy(ctx context.Context, by *Asker, id string, in *PolicyInput) (Answer, error) {
	done, err := s.applying.take(ctx, by.Project, 1)
	if err != nil {
		return Answer{}, err
	}
	defer done()
	p, rules, err := in.policy()
	if err != nil {
		return Answer{}, err
	}
	p.PolicyID = id
	warnings, err := s.matchesNow(ctx, by.Project, &p, rules)
	if err != nil {
		return Answer{}, err
	}
	return s.writeShared(ctx, by, []string{commands.AgentPolicyKey(by.Project, id)}, func(view *projections.View, now time.Time) (plan, error) {
		old, err := findPolicy(view, &by.Caller, id)
		if err != nil {
			return plan{}, err
		}
		if err := by.matchRevision(old.Revision); err != nil {
			return plan{}, err
		}
		p.Revision = old.Revision + 1
		updated := old
		updated.AgentPolicy, updated.UpdatedAt = p, now
		body := policyBody(&updated)
		body.Warnings = warnings
		return plan{answer: Answer{Status: http.StatusOK, Body: body, Revision: p.Revision},
			events: []pending{{"", "update_agent_policy", &event.AgentPolicyUpdated{Policy: p}}}}, nil
	})
}

// matchesNow warns where a rule over agent and usage alone holds for one of the
// first agents at this moment, and refuses rules that are too much for an agent. It
// compiles and evaluates, so it is asked before anything is locked, in the turn of what
// changes policies of the project.
func (s *Service) matchesNow(ctx context.Context, project string, p *event.AgentPolicy, rules []agentrules.Rule) (warnings []Warning, err error) {
	if !p.Enabled {
		return nil, nil
	}
	err = s.view(ctx, func(view *projections.View) error {
		if _, known, err := view.AgentPolicyHead(project, p.PolicyID); err != nil || !known {
			return err // the change says so
		}
		agents, err := view.AgentsOf(p.PolicyID)
		if err != nil {
			return err
		}
		w := weightOf(p.PolicyID, p.Mode, rules)
		for i, id := range agents {
			if err := s.bearable(ctx, view, project, id, p.PolicyID, w); err != nil {
				return err
			}
			if i >= maxWarnedAgents {
				continue
			}
			more, err := s.ruleMatchesNow(ctx, view, project, id, rules)
			if err != nil {
				return err
			}
			warnings = append(warnings, more...)
		}
		return nil
	})
	return warnings, err
}

// Bounds of what binds one agent: the bytes of the rules of its policies that are
// enabled, those that the rules take compiled, those that they may add to one record, and
// its policies, enabled or not. Compiled they fit where they are kept; the record of a
// decision has room for the facts of its statement beside them, and one of telemetry for an event.
const (
	maxAgentText     = 1 << 20
	maxAgentMemory   = maxCompiledMemory
	maxAgentRecorded = 512 << 10
	maxApplications  = 1000
)

// bearable refuses what would bind an agent by more than is bounded, with a policy that
// has, or would have, a weight. What was bound by more may become less.
func (s *Service) bearable(ctx context.Context, view *projections.View, project, agentID, policyID string, w weight) error {
	list, _, err := binding(view, project, agentID)
	if err != nil {
		return err
	}
	before, after := weight{}, w
	for i := range list {
		x, err := s.compiled.weightOf(ctx, view, project, list[i].PolicyID, list[i].Revision)
		if err != nil {
			return err
		}
		before.add(x)
		if list[i].PolicyID != policyID {
			after.add(x)
		}
	}
	is := "with the other policies of agent " + agentID + " "
	for _, bound := range []struct {
		before, after, most int
		problem             string
	}{
		{before.steps[0], after.steps[0], policy.MaxDecisionCost, costsTooMuch},
		{before.steps[1], after.steps[1], policy.MaxDecisionCost, costsTooMuch},
		{before.text, after.text, maxAgentText, "the rules have more than %d bytes; detach one, or write shorter conditions and messages"},
		{before.memory, after.memory, maxAgentMemory, "the rules take more than %d bytes of memory; detach one, or use startsWith, endsWith and contains in place of patterns"},
		{before.recorded[0], after.recorded[0], maxAgentRecorded, recordsTooMuch},
		{before.recorded[1], after.recorded[1], maxAgentRecorded, recordsTooMuch},
	} {
		if bound.after > max(bound.most, bound.before) {
			return tooMuchForAgent("/rules", is+fmt.Sprintf(bound.problem, bound.most))
		}
	}
	return nil
}

const (
	costsTooMuch   = "the conditions could cost more than %d steps in one decision; detach one, look through fewer lists, begin patterns with ^, or use startsWith, endsWith and contains"
	recordsTooMuch = "the rules that match could take more than %d bytes in the record of one decision; detach one, or use fewer rules and shorter ids, labels and reason codes"
)

func tooMuchForAgent(pointer, message string) error {
	return fault.New(fault.PolicyInvalid, "The policy is too much for an agent; details.findings says why.").
		With("findings", []agentrules.Finding{{Code: "limit_exceeded", Message: message, Pointer: pointer}})
}

// maxWarnedAgents bounds the work of a warning.
const maxWarnedAgents = 20

// ruleMatchesNow is about one agent that the policy is, or would be, applied to.
func (s *Service) ruleMatchesNow(ctx context.Context, view *projections.View, project, agentID string, rules []agentrules.Rule) (warnings []Warning, err error) {
	a, known, err := view.Agent(project, agentID)
	if err != nil || !known {
		return nil, err
	}
	now := s.Now()
	root, err := agentRoot(view, &a, now)
	if err != nil {
		return nil, err
	}
	usage, err := s.usageOf(ctx, agentID, now)
	for i := range rules {
		if rules[i].MatchesNow(&root, &usage) {
			warnings = append(warnings, Warning{"rule_matches_now", fmt.Sprintf("Rule %s holds for agent %s at this moment.", rules[i].ID, agentID)})
		}
	}
	return warnings, err
}

func findPolicy(view *projections.View, c *Caller, id string) (projections.AgentPolicy, error) {
	p, known, err := view.AgentPolicy(c.Project, id)
	if only := c.agentOnly(); err == nil && known && only != "" {
		_, known, err = view.Application(only, id) // a token sees what is applied to its agent
	}
	if err == nil && !known {
		err = fault.New(fault.PolicyNotFound, "There is no policy for agents with this id in your project. GET /v1/policies lists those there are.").With("policy_id", id)
	}
	return p, err
}

// Policy is GET /v1/policies/:id.
func (s *Service) Policy(ctx context.Context, c *Caller, id string) (answer Answer, err error) {
	err = s.view(ctx, func(view *projections.View) error {
		p, err := findPolicy(view, c, id)
		answer = Answer{Status: http.StatusOK, Body: policyBody(&p), Revision: p.Revision}
		return err
	})
	return answer, err
}

// Policies is GET /v1/policies, by take as Agents.
func (s *Service) Policies(ctx context.Context, c *Caller, f projections.AgentPolicyFilter, page projections.Page, take func(PolicyBody) (room bool, err error)) (next string, err error) {
	f.Project = c.Project
	if f.AgentID, err = c.confine(f.AgentID); err != nil {
		return "", err
	}
	err = s.view(ctx, func(view *projections.View) (err error) {
		next, err = view.EachAgentPolicy(f, page, func(p *projections.AgentPolicy) (bool, error) { return take(policyBody(p)) })
		return err
	})
	return next, err
}

// ApplyInput is the body of POST /v1/policies/:id/apply.
type ApplyInput struct {
	AgentID  string  `json:"agent_id"`
	Priority *string `json:"priority"`
}

var priorities = map[string]int{"low": 100, "normal": 500, "medium": 500, "high": 750, "critical": 1000}

// defaultPriority is what is meant without one.
const defaultPriority = "normal"

// priority reads a word or a number as text.
func (in *ApplyInput) priority() (text string, value int, ok bool) {
	if in.Priority == nil {
		return defaultPriority, priorities[defaultPriority], true
	}
	text = *in.Priority
	if value, ok = priorities[text]; ok {
		return text, value, true
	}
	value, err := strconv.Atoi(text)
	return text, value, err == nil && value >= 0 && value <= 1000 && strconv.Itoa(value) == text
}

// Statuses of an application.
const (
	applicationEffective = "effective"
	applicationAsleep    = "asleep"
	applicationDetached  = "detached"
	applicationPreview   = "preview"
)

// Apply binds a policy to an agent, or changes the priority with which it is
// bound.
func (s *Service) Apply(ctx context.Context, by *Asker, policyID string, in *ApplyInput) (Answer, error) {
	text, value, err := in.check()
	if err != nil {
		return Answer{}, err
	}
	done, err := s.applying.take(ctx, by.Project, 1)
	if err != nil {
		return Answer{}, err
	}
	defer done()
	warnings, err := s.applyWarnings(ctx, by, policyID, in.AgentID)
	if err != nil {
		return Answer{}, err
	}
	return s.write(ctx, by, []string{commands.AgentKey(by.Project, in.AgentID), commands.AgentPolicyKey(by.Project, policyID)}, func(view *projections.View, now time.Time) (plan, error) {
		p, err := s.appliable(view, by, policyID, in.AgentID)
		if err != nil {
			return plan{}, err
		}
		old, known, err := view.Application(in.AgentID, policyID)
		if err != nil {
			return plan{}, err
		}
		a := projections.Application{PolicyApplication: event.PolicyApplication{ApplicationID: old.ApplicationID, PolicyID: policyID, AgentID: in.AgentID, Priority: text, PriorityValue: value},
			AppliedAt: now, AppliedBy: by.CredentialIDs()[0]}
		answer := Answer{Status: http.StatusOK}
		if !known {
			a.ApplicationID = event.NewIDOf(event.ApplicationIDKind, now)
			answer.Status, answer.Location = http.StatusCreated, "/v1/policies/"+policyID+"/apply?agent_id="+in.AgentID // DELETE there ends it
		}
		if known && old.Priority == text {
			a = old
		}
		body := applicationBody(&a, p.Revision, applicationEffective)
		body.Warnings = warnings
		answer.Body = body
		if known && old.Priority == text {
			return plan{answer: answer}, nil
		}
		return plan{answer: answer, events: []pending{{in.AgentID, "apply_agent_policy", &event.AgentPolicyApplied{Application: a.PolicyApplication}}},
			after: func(refs []commands.EventRef) { body.EffectiveFromSeq = refs[len(refs)-1].Seq }}, nil
	})
}

func (in *ApplyInput) check() (text string, value int, err error) {
	var f fieldErrors
	text, value, ok := in.priority()
	f.add(in.AgentID == "", "/agent_id", "is required")
	f.add(!ok, "/priority", `must be low, normal, medium, high, critical, or a text from "0" to "1000"`)
	return text, value, f.fault()
}

// appliable refuses what can't be bound: a policy or agent that is not there or
// not in service.
func (s *Service) appliable(view *projections.View, by *Asker, policyID, agentID string) (projections.AgentPolicy, error) {
	p, err := findPolicy(view, &by.Caller, policyID)
	if err != nil {
		return p, err
	}
	a, err := findAgent(view, &by.Caller, agentID)
	switch {
	case err != nil:
		return p, err
	case a.Status != event.AgentActive:
		return p, agentInactive(agentID)
	case !p.Enabled:
		return p, fault.New(fault.PolicyDisabled, "The policy is disabled. PUT it with \"enabled\": true before you apply it.").With("policy_id", policyID)
	}
	return p, nil
}

// applyWarnings is what there is to say of an application before anything is locked;
// its error refuses one that can't be.
func (s *Service) applyWarnings(ctx context.Context, by *Asker, policyID, agentID string) (warnings []Warning, err error) {
	err = s.view(ctx, func(view *projections.View) error {
		p, err := s.appliable(view, by, policyID, agentID)
		if err != nil {
			return err
		}
		applied, err := view.ApplicationsOf(agentID)
		if err != nil {
			return err
		}
		if len(applied) >= maxApplications && !slices.ContainsFunc(applied, func(a projections.Application) bool { return a.PolicyID == policyID }) {
			return tooMuchForAgent("/agent_id", fmt.Sprintf("the agent has %d policies, also those that are disabled; detach one", maxApplications))
		}
		compiled, err := s.compiled.of(ctx, view, by.Project, policyID, p.Revision)
		if err != nil {
			return err
		}
		if err := s.bearable(ctx, view, by.Project, agentID, policyID, compiled.weight); err != nil {
			return err
		}
		warnings, err = s.ruleMatchesNow(ctx, view, by.Project, agentID, compiled.rules)
		return err
	})
	if warnings == nil {
		warnings = []Warning{}
	}
	return warnings, err
}

func applicationBody(a *projections.Application, revision int, status string) *ApplicationBody {
	return &ApplicationBody{ApplicationID: a.ApplicationID, PolicyID: a.PolicyID, AgentID: a.AgentID, Priority: a.Priority, PriorityValue: a.PriorityValue,
		PolicyRevision: revision, Status: status, AppliedAt: event.Timestamp(a.AppliedAt), AppliedBy: a.AppliedBy, EffectiveFromSeq: a.Seq, Warnings: []Warning{}}
}

// Detach ends an application.
func (s *Service) Detach(ctx context.Context, by *Asker, policyID, agentID string) (Answer, error) {
	if agentID == "" {
		return Answer{}, InvalidFields(FieldError{"/agent_id", "is required, as a query parameter"})
	}
	return s.write(ctx, by, []string{commands.AgentKey(by.Project, agentID), commands.AgentPolicyKey(by.Project, policyID)}, func(view *projections.View, _ time.Time) (plan, error) {
		p, err := findPolicy(view, &by.Caller, policyID)
		if err != nil {
			return plan{}, err
		}
		a, known, err := view.Application(agentID, policyID)
		if err == nil && !known {
			err = fault.New(fault.ApplicationNotFound, "The policy is not applied to this agent. GET /v1/agents/{id} lists what is.").With("policy_id", policyID).With("agent_id", agentID)
		}
		if err != nil {
			return plan{}, err
		}
		return plan{answer: Answer{Status: http.StatusOK, Body: applicationBody(&a, p.Revision, applicationDetached)},
			events: []pending{{agentID, "detach_agent_policy", &event.AgentPolicyDetached{Application: a.PolicyApplication}}}}, nil
	})
}
