package policy_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policy"
)

const (
	asksAndRuns  = "  - {id: asks, decision: REQUIRE_APPROVAL, reason_code: asks_first, match: {class: [write]}, dry_run: {rows: true}}\n"
	countsAlone  = "  - {id: counts, decision: REQUIRE_APPROVAL, reason_code: asks_too, match: {tables_written: [public.ledger]}, dry_run: allow}\n"
	saysNothing  = "  - {id: silent, decision: REQUIRE_APPROVAL, reason_code: asks_alone, match: {tables_written: [public.secrets]}}\n"
	admitsAndRun = "  - {id: admits, decision: ALLOW, reason_code: admitted, match: {class: [write], query_types_only: [UPDATE], tables_written_only: [public.items]}, dry_run: allow}\n"
	admitsAlone  = "  - {id: admits-all, decision: ALLOW, reason_code: admitted, match: {class: [write], query_types_only: [UPDATE], tables_written_only: [public.items, public.more]}}\n"
	watchesRuns  = "  - {id: watches, decision: REQUIRE_APPROVAL, reason_code: would_ask, mode: observe, match: {class: [write]}, dry_run: {rows: true}}\n"
	stops        = "  - {id: stops, decision: BLOCK, reason_code: never_all, match: {where: [none]}}\n"
)

func TestADryRunIsTakenWhereEveryRuleWithASaySaysSo(t *testing.T) {
	update := policy.Facts{QueryType: "UPDATE", QueryTypes: []string{"UPDATE"}, Class: "write", TablesWritten: []string{"public.items"}, Where: []string{"key_equality"}, Mode: policy.ModeEnforce, Env: "prod"}
	for name, c := range map[string]struct {
		rules  string
		change func(*policy.Facts)
		want   *policy.DryRunTerms
	}{
		"one rule":                        {asksAndRuns, nil, &policy.DryRunTerms{Rows: true}},
		"counts alone":                    {asksAndRuns + countsAlone, func(f *policy.Facts) { f.TablesWritten = []string{"public.ledger"} }, &policy.DryRunTerms{}},
		"a rule that says nothing":        {asksAndRuns + saysNothing, func(f *policy.Facts) { f.TablesWritten = []string{"public.secrets"} }, nil},
		"an ALLOW rule":                   {admitsAndRun, nil, &policy.DryRunTerms{}},
		"an ALLOW rule that says nothing": {admitsAndRun + admitsAlone, nil, nil},
		"an ALLOW rule beside":            {asksAndRuns + admitsAlone, nil, &policy.DryRunTerms{Rows: true}},
		"one that admits it has no say":   {saysNothing + admitsAndRun, func(f *policy.Facts) { f.TablesWritten = []string{"public.secrets", "public.items"} }, nil},
		"the mode approval_first":         {admitsAndRun, func(f *policy.Facts) { f.Mode = policy.ModeApprovalFirst }, &policy.DryRunTerms{}},
		"a BLOCK":                         {asksAndRuns + stops, func(f *policy.Facts) { f.Where = []string{"none"} }, nil},
		"the floor":                       {asksAndRuns, func(f *policy.Facts) { f.RiskSignals = []string{"remote_access"} }, nil},
		"the default":                     {countsAlone, nil, nil},
		"a rule that only watches":        {watchesRuns, nil, nil},
		"a safe read": {asksAndRuns, func(f *policy.Facts) {
			f.Class, f.SafeRead, f.QueryType, f.QueryTypes = "read", true, "SELECT", []string{"SELECT"}
		}, nil},
	} {
		lines := strings.SplitAfter(strings.TrimSuffix(c.rules, "\n"), "\n")
		backwards := ""
		for _, line := range lines {
			backwards = strings.TrimSuffix(line, "\n") + "\n" + backwards
		}
		f := update
		if c.change != nil {
			c.change(&f)
		}
		require.Equal(t, c.want, grantsPolicy(t, c.rules).Decide(&f).DryRun, name)
		require.Equal(t, c.want, grantsPolicy(t, backwards).Decide(&f).DryRun, name+", the other way round")
	}
}

func TestWhatADryRunMayShowIsPartOfThePolicysMeaning(t *testing.T) {
	none, counts, rows := grantsPolicy(t, strings.Replace(countsAlone, ", dry_run: allow", "", 1)), grantsPolicy(t, countsAlone), grantsPolicy(t, strings.Replace(countsAlone, "dry_run: allow", "dry_run: {rows: true}", 1))
	same := grantsPolicy(t, strings.Replace(countsAlone, "dry_run: allow", "dry_run: {rows: false}", 1))
	require.NotEqual(t, none.SemanticHash(), counts.SemanticHash())
	require.NotEqual(t, counts.SemanticHash(), rows.SemanticHash())
	require.Equal(t, counts.SemanticHash(), same.SemanticHash())
	for _, c := range []struct {
		from, to  *policy.Policy
		direction string
	}{{none, counts, policy.DirectionLooser}, {counts, rows, policy.DirectionLooser}, {rows, none, policy.DirectionTighter}} {
		d := policy.Diff(c.from, c.to)
		require.Len(t, d.Changes, 1)
		require.Equal(t, c.direction, d.Changes[0].Direction)
		require.Equal(t, "dry_run", strings.SplitN(d.Changes[0].Fields[0].Path, ".", 2)[0])
	}
	for _, wrong := range []string{"dry_run: deny", "dry_run: true", "dry_run: {}", "dry_run: {rows: yes please}", "dry_run: {rows: true, count: 3}", "dry_run: [allow]"} {
		_, report := policy.Load([]byte("schema: gate.policy/v1\nfacts: facts/v1\nname: runs\nversion: 1.0.0\nrules:\n"+strings.Replace(countsAlone, "dry_run: allow", wrong, 1)), policy.Options{})
		require.False(t, report.Valid, wrong)
	}
}
