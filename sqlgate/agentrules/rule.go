package agentrules

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"writegate/eventlog/event"
	"writegate/sqlgate/policy"
)

// Bounds of a policy (spec/v1.md part 6).
const (
	MaxRules    = 100
	MaxThrottle = 10_000 // matches that a throttle may let through
	maxTTL      = 86_400
	maxMessage  = 1024
)

// Reason codes of the actions, where a rule has none of its own.
const (
	ReasonBlocked   = "agent_policy_blocked"
	ReasonApproval  = "agent_policy_approval"
	ReasonThrottled = "agent_policy_throttled"
	ReasonSuspended = "agent_policy_suspended"
)

// A verb is what a rule does.
type verb uint8

// The verbs in the order of their strictness inside one priority; those after
// verbAllow annotate and decide nothing.
const (
	verbSuspend verb = iota
	verbBlock
	verbApproval
	verbThrottle
	verbAllow
	verbAlert
	verbTag
	verbLog
)

var verbs = map[string]verb{
	"suspend": verbSuspend, "block": verbBlock, "deny": verbBlock, "require_approval": verbApproval, "throttle": verbThrottle,
	"allow": verbAllow, "alert": verbAlert, "tag": verbTag, "log": verbLog,
}

func (v verb) decides() bool { return v <= verbAllow }

// A Place is where a rule runs.
type Place uint8

// The places; a rule over agent and usage alone runs at both.
const (
	AtGate Place = 1 << iota
	AtTelemetry
)

// A Rule is a compiled rule.
type Rule struct {
	event.AgentRule
	Place  Place
	Reads  []string
	verb   verb
	ttl    int           // seconds, of require_approval; 0 = the default
	limit  int           // of throttle
	window time.Duration // of throttle
	expr   *policy.Expression

	patterns int // steps of the condition's patterns
}

// Window is the window of a throttle; zero for other actions.
func (r *Rule) Window() time.Duration { return r.window }

// Limit is how many matches a throttle lets through in its window; 0 for other
// actions.
func (r *Rule) Limit() int { return r.limit }

// reason is the rule's own code, or its action's.
func (r *Rule) reason() string {
	if r.ReasonCode != "" {
		return r.ReasonCode
	}
	switch r.verb {
	case verbSuspend:
		return ReasonSuspended
	case verbBlock:
		return ReasonBlocked
	case verbApproval:
		return ReasonApproval
	case verbThrottle:
		return ReasonThrottled
	}
	return ""
}

// A Finding is one thing that is wrong with a policy. Line and Column count
// from 1 and lie in the condition; 0 is the field as a whole.
type Finding struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Pointer string `json:"pointer"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
}

// language declares the roots of spec/v1.md part 6.
var language = sync.OnceValues(func() (*policy.Language, error) {
	variables := map[string]policy.Variable{}
	for name, bounds := range policy.FactBounds() {
		root := "sql."
		if slices.Contains(requestFacts, name) {
			root = "request."
		}
		variables[root+name] = bounds
	}
	for name, chars := range stringVariables {
		variables[name] = policy.Variable{Kind: policy.StringValue, Chars: chars}
	}
	for _, name := range intVariables {
		variables[name] = policy.Variable{Kind: policy.IntValue}
	}
	for _, name := range boolVariables {
		variables[name] = policy.Variable{Kind: policy.BoolValue}
	}
	return policy.NewLanguage(variables)
})

// requestFacts are the facts of the root request: the context of a statement.
var requestFacts = []string{"actor", "app", "tenant", "role", "host", "env", "tls_subject", "agent_id", "agent_tools_verified", "mode", "approved", "session_id", "channel"}

var (
	// stringVariables have the characters that their fields may have.
	stringVariables = map[string]int{"agent.id": 64, "agent.name": 128, "agent.type": 64, "agent.environment": 512, "agent.version": 512, "agent.model": 200,
		"event.type": 64, "event.name": 200, "event.status": 16, "event.model": 200, "event.tool_id": 128, "event.tool_name": 200, "event.error_type": 128,
		"event.session_id": 128, "tool.id": 64, "tool.name": 128, "tool.type": 16}
	intVariables = []string{"agent.max_tokens", "agent.temperature_milli",
		"usage.requests_1h", "usage.events_1h", "usage.errors_1h", "usage.tokens_1h", "usage.tokens_24h", "usage.cost_micros_24h",
		"usage.tool_calls_1h", "usage.sql_decisions_1h", "usage.sql_writes_1h",
		"event.duration_ms", "event.input_tokens", "event.output_tokens", "event.total_tokens", "event.cost_micros"}
	boolVariables = []string{"agent.tools_verified", "tool.verified", "tool.read_only", "tool.destructive"}
)

var (
	ruleIDForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	reasonForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
	labelForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
)

// Compile checks the rules of a policy and reports all findings at once; there
// are rules where there are none. A rule without an id gets one by its place.
func Compile(source []event.AgentRule) ([]Rule, []Finding) {
	rules := make([]Rule, len(source))
	var findings []Finding
	seen := map[string]bool{}
	patterns, cost := 0, 0
	for i := range source {
		rules[i].AgentRule = source[i]
		if rules[i].ID == "" {
			rules[i].ID = "r" + strconv.Itoa(i+1)
		}
		at := fmt.Sprintf("/rules/%d", i)
		if seen[rules[i].ID] {
			findings = append(findings, Finding{Code: "duplicate_rule_id", Message: fmt.Sprintf("the id %q is there twice", rules[i].ID), Pointer: at + "/id"})
		}
		seen[rules[i].ID] = true
		findings = append(findings, rules[i].compile(at)...)
		patterns += rules[i].PatternSteps()
		if patterns > policy.MaxPatternSteps {
			findings = append(findings, Finding{Code: limitExceeded, Message: fmt.Sprintf("the patterns of the policy's conditions compile to more than %d steps; write them without counted repetitions, or use startsWith, endsWith and contains", policy.MaxPatternSteps), Pointer: at + "/condition"})
			break
		}
		if cost += rules[i].Cost(); cost > policy.MaxDecisionCost {
			findings = append(findings, Finding{Code: limitExceeded, Message: fmt.Sprintf("the policy's conditions could cost more than %d steps together on the largest values; look through fewer lists, begin patterns with ^, or use startsWith, endsWith and contains", policy.MaxDecisionCost), Pointer: at + "/condition"})
			break
		}
	}
	if len(findings) > 0 {
		return nil, findings
	}
	return rules, nil
}

const limitExceeded = "limit_exceeded"

// costOfRule is what a rule costs beside its condition, where it matches.
const costOfRule = 10

// Cost is what the rule costs on the largest values, in the units of policy.Expression.
// A pattern counts by its size too: a policy that was not used lately is compiled anew.
func (r *Rule) Cost() int {
	if r.expr == nil {
		return costOfRule
	}
	return costOfRule + r.patterns/2 + r.expr.Cost()
}

// CostAt is what the rules that run at a place cost together.
func CostAt(place Place, rules []Rule) (cost int) {
	for i := range rules {
		if rules[i].Place&place != 0 {
			cost += rules[i].Cost()
		}
	}
	return cost
}

// Memory is what the rules take, about, in bytes.
func Memory(rules []Rule) (bytes int) {
	for i := range rules {
		bytes += MemoryOf(rules[i].AgentRule.Bytes(), rules[i].PatternSteps())
	}
	return bytes
}

// MemoryOf is what rules take at most, about, in bytes, whose texts and patterns are as
// long as that.
func MemoryOf(text, patternSteps int) (bytes int) {
	return 24*text + 136*patternSteps
}

// OutcomeBytes is what the record of a decision or of telemetry has for one rule that
// matched, beside its texts and its policy's id, at most.
const OutcomeBytes = 128

// Bounds of the room that an application takes in a record beside its rules.
const effectiveBytes = 512

// RecordedAt is how long what the rules of one application say at a place can be in a
// record, in bytes, at most.
func (a *Application) RecordedAt(place Place) int {
	bytes := effectiveBytes
	for i := range a.Rules {
		r := &a.Rules[i]
		if r.Place&place == 0 {
			continue
		}
		outcome := OutcomeBytes + len(a.PolicyID) + len(r.ID) + len(r.Action) + max(len(r.reason()), len(policy.ReasonRuleEvalError))
		bytes += len(r.ID) + 4 + outcome
		if a.Observe && r.expr != nil {
			bytes += outcome // it failed, and what it would have done
		}
		if r.verb == verbThrottle {
			bytes += OutcomeBytes + len(a.PolicyID) + len(r.ID)
		}
	}
	return bytes
}

// Bare gives the rules without what evaluates their conditions: enough for what is counted
// and said of those that matched, in little memory.
func Bare(rules []Rule) []Rule {
	list := make([]Rule, len(rules))
	for i := range rules {
		list[i] = rules[i]
		list[i].expr, list[i].Reads, list[i].Condition, list[i].Message = nil, nil, "", ""
	}
	return list
}

// PatternSteps is the size of the patterns of its condition, as policy.Language has it.
func (r *Rule) PatternSteps() int { return r.patterns }

func (r *Rule) compile(at string) (findings []Finding) {
	if !ruleIDForm.MatchString(r.ID) {
		findings = append(findings, Finding{Code: "bad_rule_id", Message: "an id has 1 to 64 letters, digits, dots, dashes and underscores", Pointer: at + "/id"})
	}
	if r.ReasonCode != "" && !reasonForm.MatchString(r.ReasonCode) {
		findings = append(findings, Finding{Code: "reason_code_format", Message: "a reason code has 1 to 64 small letters, digits and underscores and begins with a letter", Pointer: at + "/reason_code"})
	}
	if len(r.Message) > maxMessage {
		findings = append(findings, Finding{Code: "limit_exceeded", Message: "a message has at most 1024 bytes", Pointer: at + "/message"})
	}
	if problem := r.parseAction(); problem != "" {
		findings = append(findings, Finding{Code: "bad_action", Message: problem, Pointer: at + "/action"})
	}
	return append(findings, r.parseCondition(at+"/condition")...)
}

const actionsText = "actions are allow, block (or deny), require_approval[:seconds], throttle:<n>/<1m|5m|1h|24h>, suspend, alert[:label], tag:<label> and log"

// parseAction reads verb[:argument].
func (r *Rule) parseAction() (problem string) {
	word, argument, has := strings.Cut(r.Action, ":")
	v, known := verbs[word]
	if !known {
		return fmt.Sprintf("%.80q is no action; %s", r.Action, actionsText)
	}
	r.verb = v
	switch {
	case v == verbApproval && has:
		ttl, err := strconv.Atoi(argument)
		if err != nil || ttl < 1 || ttl > maxTTL || strconv.Itoa(ttl) != argument {
			return "require_approval takes the seconds of the approval, from 1 to 86400"
		}
		r.ttl = ttl
	case v == verbThrottle:
		return r.parseThrottle(argument)
	case v == verbTag && !labelForm.MatchString(argument), v == verbAlert && has && !labelForm.MatchString(argument):
		return word + " takes a label of 1 to 64 letters, digits, dots, dashes and underscores"
	case has && v != verbAlert && v != verbTag:
		return word + " takes no argument"
	}
	return ""
}

var windows = map[string]time.Duration{"1m": time.Minute, "5m": 5 * time.Minute, "1h": time.Hour, "24h": 24 * time.Hour}

func (r *Rule) parseThrottle(argument string) (problem string) {
	count, window, _ := strings.Cut(argument, "/")
	n, err := strconv.Atoi(count)
	w, known := windows[window]
	if err != nil || n < 1 || n > MaxThrottle || strconv.Itoa(n) != count || !known {
		return "throttle takes a count from 1 to 10000 and a window of 1m, 5m, 1h or 24h, as in throttle:20/1h"
	}
	r.limit, r.window = n, w
	return ""
}

// parseCondition compiles the condition; the roots it reads say where it runs.
func (r *Rule) parseCondition(pointer string) (findings []Finding) {
	r.Place = AtGate | AtTelemetry
	if r.Condition == "" {
		return nil
	}
	l, err := language()
	if err != nil {
		return []Finding{{Code: "cel_compile", Message: "the expression language could not be set up: " + err.Error(), Pointer: pointer}}
	}
	expr, steps, faults := l.Compile(r.Condition)
	r.patterns = steps
	for _, f := range faults {
		findings = append(findings, Finding{Code: f.Code, Message: f.Message, Pointer: pointer, Line: f.Line, Column: f.Column})
	}
	if expr == nil {
		return findings
	}
	r.expr, r.Reads = expr, expr.Reads()
	gate, telemetry := r.readsRoot("sql.", "request."), r.readsRoot("event.", "tool.")
	switch {
	case gate && telemetry:
		return []Finding{{Code: "mixed_roots", Message: "the condition reads a statement and a telemetry event, and no rule ever sees both: make two rules of it", Pointer: pointer, Line: 1, Column: 1}}
	case gate:
		r.Place = AtGate
	case telemetry:
		r.Place = AtTelemetry
	}
	return nil
}

func (r *Rule) readsRoot(roots ...string) bool {
	return slices.ContainsFunc(r.Reads, func(name string) bool {
		return slices.ContainsFunc(roots, func(root string) bool { return strings.HasPrefix(name, root) })
	})
}
