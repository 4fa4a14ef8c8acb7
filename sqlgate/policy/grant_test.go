package policy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policy"
)

const itemsAlone = `query_types.all(t, t == "UPDATE") && tables_written.all(t, t == "public.items")`

func TestTheConditionOfAGrantSaysWhatTheStatementDoes(t *testing.T) {
	for _, text := range []string{
		itemsAlone,
		`class == "write" && actor == "bot"`,
		`safe_read`,
		`class == "write" ? env == "prod" : class == "read"`,
		`!(class != "write" || env == "prod")`,
		`!risk_signals.exists(s, true) && class == "write"`,
		`tables_written.all(t, t == "public.items" && tenant == "blue")`,
		`tables_written.all(t, t == "public.items") && (tenant == "blue" || actor == "bot")`,
	} {
		_, faults := policy.CompileGrant(text)
		require.Empty(t, faults, text)
	}
	for text, code := range map[string]string{
		`true`:                                                                     "rests_on_claim",
		`actor == "bot"`:                                                           "rests_on_claim",
		`agent_id == "agt_1"`:                                                      "rests_on_claim",
		`channel == "mcp"`:                                                         "rests_on_claim",
		`class == "write" || actor == "bot"`:                                       "rests_on_claim",
		`class == "write" || true`:                                                 "rests_on_claim",
		`!(class == "write" && actor == "bot")`:                                    "rests_on_claim",
		`actor == "bot" ? true : class == "write"`:                                 "rests_on_claim",
		`(class == "write") == (actor == "bot")`:                                   "rests_on_claim",
		`env == "prod" ? class == "write" : true`:                                  "rests_on_claim",
		`fingerprint == "abc" && class == "write"`:                                 "cel_nondeterministic",
		`approved && class == "write"`:                                             "cel_nondeterministic",
		`mode == "enforce" && class == "write"`:                                    "cel_nondeterministic",
		`session_id == "s" && class == "write"`:                                    "cel_nondeterministic",
		`"public.items" in tables_written`:                                         "condition_quantifier",
		`[class == "read", actor == "x"].exists(b, b)`:                             "rests_on_claim",
		`[class == "read", true].exists(b, b)`:                                     "rests_on_claim",
		`true in [class == "read", actor == "x"]`:                                  "rests_on_claim",
		`[class == "read", actor == "x"] == [false, true]`:                         "rests_on_claim",
		`class in [actor, "read"]`:                                                 "rests_on_claim",
		`class == actor`:                                                           "rests_on_claim",
		`size(tables_written) < size(actor)`:                                       "rests_on_claim",
		`tables_written.all(t, t in [actor, "public.items"])`:                      "rests_on_claim",
		`size(tables_written.filter(t, t == "public.items" || env == "dev")) == 1`: "condition_quantifier",
		`tables_written.all(t, t != "public.prices") ? false : true`:               "condition_quantifier",
		`(tables_written.all(t, t != "public.prices")) in [false]`:                 "condition_quantifier",
		`query_type == "UPDATE"`:                                                   "condition_quantifier",
		`tables_written.all(t, t == "public.items" || tenant == "blue")`:           "rests_on_claim",
		`class == "write" && query_types.all(q, env == "dev") || functions.all(f, env == "dev")`: "rests_on_claim",
		`false`:                               "rule_never_matches",
		`tables_written[0] == "public.items"`: "cel_may_error",
		`class`:                               "cel_compile",
		``:                                    "cel_compile",
		`class == `:                           "cel_compile",
		`nothing == "x"`:                      "cel_compile",
		`class == "` + strings.Repeat("x", 3000) + `"`: "limit_exceeded",
	} {
		_, faults := policy.CompileGrant(text)
		require.NotEmpty(t, faults, text)
		require.Equal(t, code, faults[0].Code, text)
	}
}

func TestAGrantCoversWhatItsConditionSays(t *testing.T) {
	condition, faults := policy.CompileGrant(itemsAlone)
	require.Empty(t, faults)
	update := policy.Facts{QueryType: "UPDATE", QueryTypes: []string{"UPDATE"}, Class: "write", TablesWritten: []string{"public.items"}, Where: []string{"key_equality"}}
	require.True(t, condition.Covers(&update))
	for name, change := range map[string]func(*policy.Facts){
		"another table too":     func(f *policy.Facts) { f.TablesWritten = []string{"public.audit", "public.items"} },
		"a CTE that deletes":    func(f *policy.Facts) { f.QueryTypes = []string{"DELETE", "UPDATE"} },
		"a risk nobody weighed": func(f *policy.Facts) { f.RiskSignals = []string{"unknown_function"} },
	} {
		other := update
		change(&other)
		require.False(t, condition.Covers(&other), name)
	}
	weighed, faults := policy.CompileGrant(itemsAlone + ` && risk_signals.all(s, s == "volatile_function")`)
	require.Empty(t, faults)
	update.RiskSignals = []string{"volatile_function"}
	require.True(t, weighed.Covers(&update))
	update.RiskSignals = []string{"unknown_function", "volatile_function"}
	require.False(t, weighed.Covers(&update))
}

// grantsPolicy has rules of every kind over one statement; rules is put in front.
func grantsPolicy(t *testing.T, rules string) *policy.Policy {
	t.Helper()
	p, report := policy.Load([]byte("schema: gate.policy/v1\nfacts: facts/v1\nname: grants\nversion: 1.0.0\nrules:\n"+rules), policy.Options{})
	require.NoError(t, report.Err())
	return p
}

const (
	takesGrants = "  - {id: asks, decision: REQUIRE_APPROVAL, reason_code: asks_first, match: {class: [write, ddl]}, approval: {grants: true, max_grant_seconds: 3600, max_rows: 50}}\n"
	takesNone   = "  - {id: asks-always, decision: REQUIRE_APPROVAL, reason_code: asks_always, match: {tables_written: [public.ledger]}}\n"
	blocks      = "  - {id: blocks, decision: BLOCK, reason_code: not_at_all, match: {where: [none]}}\n"
	shorter     = "  - {id: shorter, decision: REQUIRE_APPROVAL, reason_code: asks_briefly, match: {tables_written: [public.items]}, approval: {grants: true, max_grant_seconds: 60, max_rows: 7}}\n"
	observed    = "  - {id: watches, decision: REQUIRE_APPROVAL, reason_code: would_ask, mode: observe, match: {class: [write]}, approval: {grants: true}}\n"
)

func TestAGrantStandsForApprovalsOfRulesThatTakeItAndNothingElse(t *testing.T) {
	update := policy.Facts{QueryType: "UPDATE", QueryTypes: []string{"UPDATE"}, Class: "write", TablesWritten: []string{"public.items"},
		Where: []string{"key_equality"}, Mode: policy.ModeEnforce, Env: "prod", AgentID: "agt_1"}
	for name, c := range map[string]struct {
		rules    string
		seconds  int
		change   func(*policy.Facts)
		decision policy.Decision
		reason   string
	}{
		"no grant":                     {takesGrants, 0, nil, policy.RequireApproval, "asks_first"},
		"a grant":                      {takesGrants, 3600, nil, policy.Allow, "asks_first"},
		"longer than the rule takes":   {takesGrants, 3601, nil, policy.RequireApproval, "asks_first"},
		"a rule that takes none":       {takesGrants + takesNone, 60, func(f *policy.Facts) { f.TablesWritten = []string{"public.ledger"} }, policy.RequireApproval, "asks_always"},
		"a BLOCK":                      {takesGrants + blocks, 60, func(f *policy.Facts) { f.Where = []string{"none"} }, policy.Block, "not_at_all"},
		"the floor":                    {takesGrants, 60, func(f *policy.Facts) { f.RiskSignals = []string{"remote_access"} }, policy.Block, "remote_access"},
		"the default":                  {takesNone, 60, nil, policy.Block, "default_deny"},
		"the mode approval_first":      {takesGrants, 60, func(f *policy.Facts) { f.Mode = policy.ModeApprovalFirst }, policy.RequireApproval, "approval_first_mode"},
		"two rules that take it":       {takesGrants + shorter, 60, nil, policy.Allow, "asks_first"},
		"two rules, one for less time": {takesGrants + shorter, 61, nil, policy.RequireApproval, "asks_briefly"},
		"negative time":                {takesGrants, -1, nil, policy.RequireApproval, "asks_first"},
	} {
		f := update
		if f.GrantSeconds = c.seconds; c.change != nil {
			c.change(&f)
		}
		r := grantsPolicy(t, c.rules).Decide(&f)
		require.Equal(t, c.decision, r.Decision, name)
		require.Equal(t, c.reason, r.ReasonCode, name)
	}
	update.GrantSeconds = 60
	r := grantsPolicy(t, takesGrants+shorter).Decide(&update)
	require.EqualValues(t, 7, *r.Approval.MaxRows, "the smallest limit of rows holds under a grant too")
	require.Equal(t, 3600, grantsPolicy(t, takesGrants+shorter).TakesGrants())
	require.Zero(t, grantsPolicy(t, takesNone+observed).TakesGrants(), "a rule that only watches takes none")
	require.Equal(t, 86_400, grantsPolicy(t, strings.Replace(takesGrants, "max_grant_seconds: 3600, ", "", 1)).TakesGrants(), "a day where the rule says no more")
}

func TestWhatARuleSaysOfGrantsIsBounded(t *testing.T) {
	for name, rule := range map[string]string{
		"lifts the floor": "  - {id: a, decision: REQUIRE_APPROVAL, reason_code: a_b, match: {class: [procedural]}, lifts: [opaque_code], approval: {grants: true}}\n",
		"time without":    "  - {id: a, decision: REQUIRE_APPROVAL, reason_code: a_b, match: {class: [write]}, approval: {max_grant_seconds: 60}}\n",
		"time, but false": "  - {id: a, decision: REQUIRE_APPROVAL, reason_code: a_b, match: {class: [write]}, approval: {grants: false, max_grant_seconds: 60}}\n",
		"over 30 days":    "  - {id: a, decision: REQUIRE_APPROVAL, reason_code: a_b, match: {class: [write]}, approval: {grants: true, max_grant_seconds: 2592001}}\n",
		"no time":         "  - {id: a, decision: REQUIRE_APPROVAL, reason_code: a_b, match: {class: [write]}, approval: {grants: true, max_grant_seconds: 0}}\n",
		"no truth value":  "  - {id: a, decision: REQUIRE_APPROVAL, reason_code: a_b, match: {class: [write]}, approval: {grants: 1}}\n",
		"an ALLOW":        "  - {id: a, decision: ALLOW, reason_code: a_b, match: {class: [read]}, approval: {grants: true}}\n",
	} {
		p, report := policy.Load([]byte("schema: gate.policy/v1\nfacts: facts/v1\nname: grants\nversion: 1.0.0\nrules:\n"+rule), policy.Options{})
		require.Nil(t, p, name)
		require.NotEmpty(t, report.Findings, name)
	}
}

func TestADifferenceTellsWhereARuleTakesGrants(t *testing.T) {
	without := grantsPolicy(t, strings.Replace(takesGrants, "grants: true, max_grant_seconds: 3600, ", "", 1))
	with := grantsPolicy(t, takesGrants)
	longer := grantsPolicy(t, strings.Replace(takesGrants, "3600", "7200", 1))
	for _, c := range []struct {
		base, target *policy.Policy
		direction    string
	}{
		{without, with, policy.DirectionLooser}, {with, longer, policy.DirectionLooser}, {longer, with, policy.DirectionTighter}, {with, without, policy.DirectionTighter},
	} {
		d := policy.Diff(c.base, c.target)
		require.False(t, d.IdenticalSemantics)
		require.Len(t, d.Changes, 1)
		require.Equal(t, c.direction, d.Changes[0].Direction)
	}
}
