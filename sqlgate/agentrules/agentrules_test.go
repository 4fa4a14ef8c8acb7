package agentrules

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/eventlog/event"
	"writegate/sqlgate/policy"
)

// compiled makes an application of one policy.
func compiled(t require.TestingT, policyID string, priority int, rules ...event.AgentRule) Application {
	list, findings := Compile(rules)
	require.Empty(t, findings)
	return Application{EffectivePolicy: event.EffectivePolicy{ApplicationID: "apl_" + policyID, PolicyID: policyID, Revision: 1, PriorityValue: priority}, Rules: list}
}

func rule(action, condition string) event.AgentRule {
	return event.AgentRule{Action: action, Condition: condition}
}

var write = policy.Facts{QueryType: "UPDATE", Class: "write", TablesWritten: []string{"billing.invoices"}, Env: "prod", Actor: "ana"}

func evaluate(facts policy.Facts, list ...Application) *event.AgentLayer {
	Sort(list)
	return Evaluate(&Input{Agent: event.AgentRoot{ID: "agt_1", Name: "bot", Type: "worker"}, Facts: &facts, Applications: list,
		Count: func(string, *Rule) (int, int) { return 1, 0 }})
}

func TestEachActionDecidesAsThePageSays(t *testing.T) {
	for action, want := range map[string]struct{ decision, reason string }{
		"allow": {"ALLOW", ""}, "block": {"BLOCK", ReasonBlocked}, "deny": {"BLOCK", ReasonBlocked},
		"require_approval": {"REQUIRE_APPROVAL", ReasonApproval}, "require_approval:900": {"REQUIRE_APPROVAL", ReasonApproval},
		"suspend": {"BLOCK", ReasonSuspended}, "alert": {"ALLOW", ""}, "alert:cost": {"ALLOW", ""}, "tag:x": {"ALLOW", ""}, "log": {"ALLOW", ""},
		"throttle:20/1h": {"ALLOW", ""},
	} {
		l := evaluate(write, compiled(t, "pol_1", 500, rule(action, `sql.class == "write"`)))
		require.Equal(t, want.decision, l.Decision, action)
		require.Equal(t, want.reason, l.ReasonCode, action)
	}
}

func TestEveryRootHasItsVariables(t *testing.T) {
	for condition, place := range map[string]Place{
		`sql.class == "write" && sql.tables_written.exists(t, t.startsWith("billing."))`: AtGate,
		`request.env == "prod"`: AtGate, `request.agent_tools_verified`: AtGate, `!sql.safe_read`: AtGate,
		`agent.type == "worker" && usage.requests_1h >= 0 && agent.temperature_milli == 0`: AtGate | AtTelemetry,
		`event.total_tokens > 100000 || usage.cost_micros_24h > 50000000`:                  AtTelemetry,
		`tool.destructive && !tool.verified`:                                               AtTelemetry,
		``:                                                                                 AtGate | AtTelemetry,
		`usage.events_1h + usage.errors_1h + usage.tokens_1h + usage.tokens_24h + usage.tool_calls_1h + usage.sql_decisions_1h + usage.sql_writes_1h == 0`: AtGate | AtTelemetry,
	} {
		list, findings := Compile([]event.AgentRule{rule("block", condition)})
		require.Empty(t, findings, condition)
		require.Equal(t, place, list[0].Place, condition)
		if place&AtGate != 0 && !strings.Contains(condition, "tools_verified") {
			require.Equal(t, "BLOCK", evaluate(write, compiled(t, "pol_1", 1, rule("block", condition))).Decision, condition)
		}
	}
}

func TestEveryVariableOfTheLanguageCanBeRead(t *testing.T) {
	e := &event.TelemetryEvent{}
	v := roots{agent: &event.AgentRoot{}, usage: &event.AgentUsage{}, facts: &policy.Facts{}, event: e, tool: &Tool{}}
	for _, names := range [][]string{slices.Collect(maps.Keys(stringVariables)), intVariables, boolVariables} {
		for _, name := range names {
			_, ok := v.value(name)
			require.True(t, ok, name)
		}
	}
	for name := range policy.FactBounds() {
		_, ok := v.value("sql." + name)
		require.True(t, ok, name)
	}
}

func TestFindingsNameThePlaceAndAreAllThereAtOnce(t *testing.T) {
	_, findings := Compile([]event.AgentRule{
		rule("explode", ""),
		rule("throttle:0/1h", ""),
		rule("block", `sql.class == 3`),
		rule("block", `sql.clas == "x"`),
		rule("block", `event.type == "x" && sql.class == "write"`),
		rule("require_approval:99999999", ""),
		rule("tag", ""),
		rule("block:now", ""),
		{ID: "a b", Action: "block", ReasonCode: "Not So"},
		{ID: "r1", Action: "block"},
	})
	got := map[string]string{}
	for _, f := range findings {
		got[f.Pointer] = f.Code
		require.NotEmpty(t, f.Message)
	}
	require.Equal(t, map[string]string{
		"/rules/0/action": "bad_action", "/rules/1/action": "bad_action", "/rules/2/condition": "cel_compile", "/rules/3/condition": "cel_compile",
		"/rules/4/condition": "mixed_roots", "/rules/5/action": "bad_action", "/rules/6/action": "bad_action", "/rules/7/action": "bad_action",
		"/rules/8/id": "bad_rule_id", "/rules/8/reason_code": "reason_code_format", "/rules/9/id": "duplicate_rule_id",
	}, got)
}

// What is to be tried is a variable of this language, or how a text is written.
func TestAnUnknownNameIsToldWhatIsThere(t *testing.T) {
	for condition, want := range map[string]string{
		`usage.nope > 1`:     "'usage.nope' (try: usage has cost_micros_24h, errors_1h, ",
		`sql.nope == 1`:      "'sql.nope' (try: sql has ",
		`sql == "x"`:         "'sql' (try: sql has ",
		`agent.nam == "x"`:   "'agent.nam' (try: agent.name)",
		`agent.idd == "x"`:   "'agent.idd' (try: agent.id)",
		`usage.tokens_1 > 1`: "'usage.tokens_1' (try: usage.tokens_1h)",
		`sql.class == "x" && "x" in sql.table_read`:   "'sql.table_read' (try: sql.tables_read)",
		`class == "write"`:                            "'class' (try: sql.class)",
		`id == "x"`:                                   "'id' (try: agent.id or tool.id)",
		`sql.env == "prod"`:                           "'sql.env' (try: request.env)",
		`AGENT.name == "x"`:                           "'AGENT.name' (try: agent.name or event.name or tool.name)",
		`requst.env == "prod"`:                        "'requst.env' (try: request.env)",
		`foo.bar == 1`:                                "'foo.bar' (try: one of the roots agent, event, request, sql, tool, usage)",
		`sql.class == write`:                          `'write' (try: "write": a text needs quotes; a variable has a root, as in agent.`,
		`"x" in sql.tables_read && request.role == b`: `'b' (try: "b": a text needs quotes`,
		`tools.destructive`:                           "'tools.destructive' (try: tool.destructive)",
	} {
		_, findings := Compile([]event.AgentRule{rule("block", condition)})
		require.Len(t, findings, 1, condition)
		require.Contains(t, findings[0].Message, "the condition: undeclared reference to "+want)
	}
}

func TestAConditionIsBoundedAsThoseOfADocumentAre(t *testing.T) {
	for condition, code := range map[string]string{
		`1 / usage.requests_1h > 2`:      "cel_may_error",
		`now() > 3`:                      "cel_nondeterministic",
		`false`:                          "rule_never_matches",
		`sql.tables_read[0] == "x"`:      "cel_may_error",
		`"a" + sql.class`:                "cel_compile",
		strings.Repeat("true && ", 2048): "limit_exceeded",
	} {
		_, findings := Compile([]event.AgentRule{rule("block", condition)})
		require.NotEmpty(t, findings, condition)
		require.Equal(t, code, findings[0].Code, "%s: %s", condition, findings[0].Message)
	}
}

func TestTheHighestPriorityWithADecidingMatchDecides(t *testing.T) {
	low := compiled(t, "pol_low", 100, rule("block", ""))
	exempt := compiled(t, "pol_mid", 500, rule("allow", `sql.class == "write"`), rule("log", ""))
	noise := compiled(t, "pol_high", 900, rule("alert:x", ""))
	l := evaluate(write, low, exempt, noise)
	require.Equal(t, "ALLOW", l.Decision)
	require.Equal(t, "pol_mid", l.PolicyID)
	require.Len(t, l.Notes, 2, "annotations come from all priorities")
	require.Len(t, l.Matched, 3)

	same := compiled(t, "pol_z", 500, rule("require_approval", ""))
	require.Equal(t, "REQUIRE_APPROVAL", evaluate(write, low, exempt, same).Decision, "inside one priority the stricter verb")
	require.Equal(t, "BLOCK", evaluate(policy.Facts{Class: "read"}, low, exempt).Decision)
}

func TestAnObservingPolicyOnlySaysWhatItWouldDo(t *testing.T) {
	a := compiled(t, "pol_1", 500, rule("suspend", ""))
	a.Observe = true
	l := evaluate(write, a)
	require.Equal(t, "ALLOW", l.Decision)
	require.Equal(t, []event.RuleOutcome{{PolicyID: "pol_1", RuleID: "r1", Action: "suspend", ReasonCode: ReasonSuspended}}, l.WouldBe)
	require.False(t, Suspends(l, []Application{a}))
}

func TestAThrottleIsAMatchOnlyOverItsLimit(t *testing.T) {
	a := compiled(t, "pol_1", 500, rule("throttle:2/1h", ""))
	for n, want := range map[int]string{1: "ALLOW", 2: "ALLOW", 3: "BLOCK"} {
		l := Evaluate(&Input{Facts: &write, Applications: []Application{a}, Count: func(string, *Rule) (int, int) { return n, 30 }})
		require.Equal(t, want, l.Decision, "match %d", n)
		require.Equal(t, n, l.Throttle[0].Count)
	}
}

func TestOnlyTheRuleThatDecidesSuspends(t *testing.T) {
	block, suspend := compiled(t, "pol_1", 900, rule("block", "")), compiled(t, "pol_2", 100, rule("suspend", ""))
	l := evaluate(write, block, suspend)
	require.False(t, Suspends(l, []Application{block, suspend}))
	l = evaluate(write, suspend)
	require.True(t, Suspends(l, []Application{suspend}))
}

func TestAnApprovalSatisfiesTheLayer(t *testing.T) {
	facts := write
	facts.Approved = true
	l := evaluate(facts, compiled(t, "pol_1", 500, rule("require_approval", "")))
	require.Equal(t, "ALLOW", l.Decision)
	require.Equal(t, "r1", l.RuleID)
}

func TestTheLayersTogetherAreNeverLooserThanTheGateAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		decision := rapid.SampledFrom([]policy.Decision{policy.Allow, policy.RequireApproval, policy.Block})
		base := policy.Result{Decision: decision.Draw(t, "gate"), ReasonCode: "gate", RuleID: "g"}
		rows := int64(rapid.IntRange(0, 9).Draw(t, "rows"))
		if rapid.Bool().Draw(t, "terms") {
			base.Approval = &policy.ApprovalTerms{TTLSeconds: rapid.IntRange(1, 1000).Draw(t, "ttl"), MaxRows: &rows}
		}
		actions := rapid.SliceOfN(rapid.SampledFrom([]string{"allow", "block", "require_approval:60", "require_approval", "suspend", "log", "throttle:1/1m"}), 0, 6).Draw(t, "actions")
		var list []Application
		for i, action := range actions {
			a := compiled(t, string(rune('a'+i)), rapid.IntRange(0, 3).Draw(t, "priority"), rule(action, ""))
			a.Observe = rapid.Bool().Draw(t, "observe")
			list = append(list, a)
		}
		count := rapid.IntRange(1, 3).Draw(t, "count")
		Sort(list)
		l := Evaluate(&Input{Facts: &write, Applications: list, Count: func(string, *Rule) (int, int) { return count, 1 }})
		both := Tighten(base, l)
		require.GreaterOrEqual(t, both.Decision.Strictness(), base.Decision.Strictness())
		require.GreaterOrEqual(t, both.Decision.Strictness(), policy.Decision(l.Decision).Strictness())
		if both.Decision == policy.RequireApproval && base.Approval != nil {
			require.NotNil(t, both.Approval)
			require.LessOrEqual(t, both.Approval.TTLSeconds, base.Approval.TTLSeconds)
			require.Equal(t, base.Approval.MaxRows, both.Approval.MaxRows)
		}
	})
}

func TestAnEventIsJudgedAfterTheFact(t *testing.T) {
	e := &event.TelemetryEvent{Type: "tool_call", Usage: event.TelemetryUsage{InputTokens: 900, OutputTokens: 200}}
	in := EventInput{Event: e, Tool: UnknownTool, Applications: []Application{compiled(t, "pol_1", 500,
		rule("alert:cost", "event.total_tokens > 1000"), rule("require_approval", "tool.destructive"), rule("block", `sql.class == "write"`))}}
	r := EvaluateEvent(&in)
	require.Equal(t, 2, r.Evaluated)
	require.Len(t, r.Violations, 2)
	require.True(t, r.Violations[0].Annotation)
	require.True(t, r.Violations[1].NeedsReview)
	require.Equal(t, []int{1, 1}, []int{r.Violations[0].Revision, r.Violations[1].Revision}, "of the policies")
	require.Nil(t, r.Suspend)

	in.Applications = []Application{compiled(t, "pol_1", 900, rule("suspend", `event.type == "tool_call"`))}
	require.NotNil(t, EvaluateEvent(&in).Suspend)
	in.Applications = append(in.Applications, compiled(t, "pol_2", 950, rule("allow", "")))
	Sort(in.Applications)
	require.Nil(t, EvaluateEvent(&in).Suspend, "an allow of a higher priority exempts")
}

func FuzzCompile(f *testing.F) {
	f.Add("block", `sql.class == "write"`)
	f.Add("throttle:20/1h", `usage.requests_1h > 3`)
	f.Fuzz(func(t *testing.T, action, condition string) {
		if list, findings := Compile([]event.AgentRule{rule(action, condition)}); len(findings) == 0 {
			evaluate(write, Application{Rules: list})
		}
	})
}

func TestThePatternsOfAPolicyAreBounded(t *testing.T) {
	var parts []string
	for i := range 20 {
		parts = append(parts, fmt.Sprintf(`event.name.matches("^a{900}q%d")`, i))
	}
	var rules []event.AgentRule
	for range 100 {
		rules = append(rules, rule("alert", strings.Join(parts, "||")))
	}
	_, findings := Compile(rules[:2])
	require.Empty(t, findings)
	_, findings = Compile(rules)
	require.Len(t, findings, 1)
	require.Equal(t, "limit_exceeded", findings[0].Code)
	require.Contains(t, findings[0].Message, "50000")
}

// What the rules of all policies of an agent cost together is bounded where a decision
// asks them: the rule that would pass it is not evaluated, and counts as one that failed.
func TestARuleThatWouldMakeTheDecisionSlowIsABlock(t *testing.T) {
	var rules []event.AgentRule
	for range 16 {
		rules = append(rules, rule("log", `request.actor.matches("(?:.?.?){80}Q1$")`))
	}
	var list []Application
	for i := range 3 {
		list = append(list, compiled(t, fmt.Sprintf("pol_%d", i), 500, rules...))
	}
	require.LessOrEqual(t, CostAt(AtGate, list[0].Rules)+CostAt(AtGate, list[1].Rules), policy.MaxDecisionCost)
	require.Equal(t, "ALLOW", evaluate(write, list[:2]...).Decision)
	l := evaluate(write, list...)
	require.Equal(t, "BLOCK", l.Decision)
	require.Equal(t, policy.ReasonRuleEvalError, l.ReasonCode)
	require.Equal(t, "pol_2", l.PolicyID)

	_, findings := Compile(slices.Concat(rules, rules, rules))
	require.Len(t, findings, 1)
	require.Equal(t, "limit_exceeded", findings[0].Code)
	require.Contains(t, findings[0].Message, "300000")
}

// What the rules of an application say, however they match or fail, takes no more in a
// record than what is counted for it.
func TestWhatRulesSayTakesNoMoreThanIsCounted(t *testing.T) {
	var rules []event.AgentRule
	for i := range 30 {
		r := event.AgentRule{ID: fmt.Sprintf("%s%02d", strings.Repeat("i", 1+i*2), i), Action: []string{"log", "alert:" + strings.Repeat("a", 64), "tag:b", "block", "throttle:10000/24h", "allow", "suspend"}[i%7]}
		if i%2 == 0 {
			r.ReasonCode = strings.Repeat("r", 1+i*2)
		}
		if i%3 == 0 {
			r.Condition = `agent.name == "a"`
		}
		rules = append(rules, r)
	}
	bytes := func(layer *event.AgentLayer, outcome event.TelemetryOutcome) int {
		d := event.New(time.Unix(0, 0), event.Context{}, &event.DecisionRecorded{AgentLayer: layer})
		gate, err := event.Encode(nil, &d)
		require.NoError(t, err)
		e := event.New(time.Unix(0, 0), event.Context{}, &event.TelemetryReceived{Outcomes: []event.TelemetryOutcome{outcome}})
		telemetry, err := event.Encode(nil, &e)
		require.NoError(t, err)
		return len(gate) + len(telemetry)
	}
	empty := bytes(new(event.AgentLayer), event.TelemetryOutcome{})
	for _, observe := range []bool{false, true} {
		for _, fails := range []bool{false, true} {
			a := compiled(t, "pol_018f0000-0000-7000-8000-000000000001", 1000, rules...)
			a.ApplicationID, a.Revision, a.Observe = "apl_018f0000-0000-7000-8000-000000000001", 1<<40, observe
			var hits []hit
			for i := range a.Rules {
				hits = append(hits, hit{i, fails && a.Rules[i].expr != nil})
			}
			count := func(string, *Rule) (int, int) { return 10_001, 86_400 }
			e := evaluation{count: count, layer: &event.AgentLayer{Effective: []event.EffectivePolicy{a.EffectivePolicy}}}
			e.take(&a, hits)
			gate := bytes(e.layer, event.TelemetryOutcome{})
			require.LessOrEqual(t, gate-empty, a.RecordedAt(AtGate))
			require.Greater(t, 3*(gate-empty), a.RecordedAt(AtGate), "it is no wild guess")

			matches := EventMatches{applications: []Application{a}, hits: [][]hit{hits}}
			r := matches.Result(count)
			room := 0
			for _, v := range r.Violations {
				room += OutcomeBytes + len(v.PolicyID) + len(v.RuleID) + len(v.Action) + len(v.ReasonCode)
			}
			for _, n := range r.Throttle {
				room += OutcomeBytes + len(n.PolicyID) + len(n.RuleID)
			}
			telemetry := bytes(new(event.AgentLayer), event.TelemetryOutcome{Violations: r.Violations, Throttle: r.Throttle})
			require.LessOrEqual(t, telemetry-empty, room)
			require.LessOrEqual(t, room, a.RecordedAt(AtTelemetry))

			a.Rules = Bare(a.Rules)
			require.Equal(t, r, matches.Result(count))
			matches.applications[0].Rules = a.Rules
			require.Equal(t, r, matches.Result(count), "rules that are bare say the same")
		}
	}
}

func TestRulesOfAgentsTakeNoDryRunWhereTheyDecide(t *testing.T) {
	base := policy.Result{Decision: policy.Allow, DryRun: &policy.DryRunTerms{}}
	require.NotNil(t, Tighten(base, &event.AgentLayer{Decision: "ALLOW"}).DryRun)
	require.Nil(t, Tighten(base, &event.AgentLayer{Decision: "REQUIRE_APPROVAL", TTLSeconds: 60}).DryRun)
	require.Nil(t, Tighten(base, &event.AgentLayer{Decision: "BLOCK"}).DryRun)
	base.Decision = policy.RequireApproval
	require.NotNil(t, Tighten(base, &event.AgentLayer{Decision: "REQUIRE_APPROVAL", TTLSeconds: 60}).DryRun, "the gate's own rules ask as well, and take it")
}
