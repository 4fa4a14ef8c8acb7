package policy

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// versionOf is a policy of rules in YAML flow form.
func versionOf(t require.TestingT, version string, rules ...string) *Policy {
	p, report := Load([]byte("schema: gate.policy/v1\nfacts: facts/v1\nname: p\nversion: "+version+
		"\nlists: { money: [billing.*, ledger.*] }\nrules:\n  - "+strings.Join(rules, "\n  - ")+"\n"), Options{})
	require.NotNil(t, p, "%v", report.Findings)
	return p
}

const (
	ruleDeletes = `{ id: deletes, decision: BLOCK, reason_code: no_deletes, match: { query_types: [DELETE] } }`
	ruleMoney   = `{ id: money, decision: REQUIRE_APPROVAL, reason_code: money, match: { tables_written: [billing.*, ledger.*] }, approval: { ttl_seconds: 900 } }`
	ruleApp     = `{ id: app, decision: ALLOW, reason_code: app, match: { class: [write], tables_written_only: [public.*] } }`
)

func TestWhatHappenedToARule(t *testing.T) {
	for _, c := range []struct {
		name         string
		base, target []string
		want         string // JSON of the changes
	}{
		{"nothing", []string{ruleDeletes, ruleMoney}, []string{ruleDeletes, ruleMoney}, `[]`},
		{"a pattern moved into a list", []string{ruleMoney}, []string{strings.Replace(ruleMoney, "billing.*, ledger.*", "$money", 1)}, `[]`},
		{"a BLOCK rule added", []string{ruleApp}, []string{ruleDeletes, ruleApp},
			`[{"rule_id":"deletes","change":"added","action_changed":true,"decision":{"from":null,"to":"BLOCK"},"direction":"tighter","fields":[]}]`},
		{"an ALLOW rule added", []string{ruleDeletes}, []string{ruleDeletes, ruleApp},
			`[{"rule_id":"app","change":"added","action_changed":true,"decision":{"from":null,"to":"ALLOW"},"direction":"looser","fields":[]}]`},
		{"a REQUIRE_APPROVAL rule added", []string{ruleDeletes}, []string{ruleDeletes, ruleMoney},
			`[{"rule_id":"money","change":"added","action_changed":true,"decision":{"from":null,"to":"REQUIRE_APPROVAL"},"direction":"unknown","fields":[]}]`},
		{"a rule added that only observes", []string{ruleDeletes}, []string{ruleDeletes, strings.Replace(ruleMoney, "reason_code", "mode: observe, reason_code", 1)},
			`[{"rule_id":"money","change":"added","action_changed":true,"decision":{"from":null,"to":"REQUIRE_APPROVAL"},"direction":"none","fields":[]}]`},
		{"a BLOCK rule removed", []string{ruleDeletes, ruleApp}, []string{ruleApp},
			`[{"rule_id":"deletes","change":"removed","action_changed":true,"decision":{"from":"BLOCK","to":null},"direction":"looser","fields":[]}]`},
		{"a looser decision", []string{ruleDeletes}, []string{strings.Replace(ruleDeletes, "BLOCK", "REQUIRE_APPROVAL", 1)},
			`[{"rule_id":"deletes","change":"modified","action_changed":true,"decision":{"from":"BLOCK","to":"REQUIRE_APPROVAL"},"direction":"looser","fields":[
			  {"path":"approval","from":null,"to":{"max_rows":null,"ttl_seconds":null}},{"path":"decision","from":"BLOCK","to":"REQUIRE_APPROVAL"}]}]`},
		{"enforced from now on", []string{strings.Replace(ruleDeletes, "match", "mode: observe, match", 1)}, []string{ruleDeletes},
			`[{"rule_id":"deletes","change":"modified","action_changed":true,"decision":null,"direction":"tighter","fields":[{"path":"mode","from":"observe","to":"enforce"}]}]`},
		{"a pattern more and one less", []string{ruleMoney}, []string{strings.Replace(ruleMoney, "billing.*", "audit.*", 1)},
			`[{"rule_id":"money","change":"modified","action_changed":false,"decision":null,"direction":"unknown","fields":[{"path":"match.tables_written","added":["audit.*"],"removed":["billing.*"]}]}]`},
		{"a key more", []string{ruleMoney}, []string{strings.Replace(ruleMoney, "match: {", "match: { env: [prod],", 1)},
			`[{"rule_id":"money","change":"modified","action_changed":false,"decision":null,"direction":"unknown","fields":[{"path":"match.env","from":null,"to":["prod"]}]}]`},
		{"another text", []string{ruleDeletes}, []string{strings.Replace(ruleDeletes, "match", "message: No., match", 1)},
			`[{"rule_id":"deletes","change":"modified","action_changed":false,"decision":null,"direction":"none","fields":[{"path":"message","from":"","to":"No."}]}]`},
		{"another term", []string{ruleMoney}, []string{strings.Replace(ruleMoney, "900", "60", 1)},
			`[{"rule_id":"money","change":"modified","action_changed":false,"decision":null,"direction":"tighter","fields":[{"path":"approval.ttl_seconds","from":900,"to":60}]}]`},
		{"another name", []string{ruleDeletes, ruleApp}, []string{strings.Replace(ruleDeletes, "id: deletes", "id: no-deletes", 1), ruleApp},
			`[{"rule_id":"no-deletes","change":"renamed","renamed_from":"deletes","action_changed":false,"decision":null,"direction":"none","fields":[]}]`},
		{"another place", []string{ruleDeletes, ruleMoney, ruleApp}, []string{ruleMoney, ruleApp, ruleDeletes},
			`[{"rule_id":"deletes","change":"reordered","action_changed":false,"decision":null,"direction":"none","fields":[]}]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Diff(versionOf(t, "1.0.0", c.base...), versionOf(t, "1.1.0", c.target...))
			got, err := json.Marshal(d.Changes)
			require.NoError(t, err)
			require.JSONEq(t, c.want, string(got))
			require.Equal(t, c.want == `[]` || c.name == "another text", d.IdenticalSemantics)
			require.False(t, d.IdenticalBytes)
			require.Contains(t, d.Text, "-version: 1.0.0\n+version: 1.1.0\n")
		})
	}
}

// More rows or seconds under an approval are looser, whatever else asks for one: the
// smallest of all holds.
func TestTheTermsOfAnApprovalHaveADirection(t *testing.T) {
	rule := func(terms string) *Policy {
		return versionOf(t, "1.0.0", `{ id: money, decision: REQUIRE_APPROVAL, reason_code: money, match: { class: [write] }, approval: {`+terms+`} }`)
	}
	for _, c := range []struct{ was, is, want, back string }{
		{"max_rows: 10", "max_rows: 1000", DirectionLooser, DirectionTighter},
		{"max_rows: 10", "ttl_seconds: 60, max_rows: 10", DirectionUnknown, DirectionUnknown}, // 0 is the service's own time
		{"ttl_seconds: 60, max_rows: 10", "ttl_seconds: 60", DirectionLooser, DirectionTighter},
		{"ttl_seconds: 60", "ttl_seconds: 900", DirectionLooser, DirectionTighter},
		{"ttl_seconds: 60, max_rows: 10", "ttl_seconds: 900, max_rows: 1000", DirectionLooser, DirectionTighter},
		{"ttl_seconds: 60, max_rows: 10", "ttl_seconds: 900, max_rows: 5", DirectionUnknown, DirectionUnknown},
	} {
		require.Equal(t, c.want, Diff(rule(c.was), rule(c.is)).Changes[0].Direction, "%s to %s", c.was, c.is)
		require.Equal(t, c.back, Diff(rule(c.is), rule(c.was)).Changes[0].Direction, "%s to %s", c.is, c.was)
	}
}

func TestASummaryCountsTheChanges(t *testing.T) {
	base := versionOf(t, "1.0.0", ruleDeletes, ruleMoney)
	d := Diff(base, versionOf(t, "1.1.0", ruleApp, strings.Replace(ruleMoney, "900", "60", 1)))
	require.Equal(t, DifferenceSummary{Added: 1, Removed: 1, Modified: 1, ActionChanges: 2}, d.Summary)
	same := Diff(base, base)
	require.True(t, same.IdenticalBytes)
	require.Empty(t, same.Text)
	require.Empty(t, same.Changes)
}

// The direction is a promise: what is called tighter never loosens a decision,
// and what is called none never changes one.
func TestADirectionHoldsForAllFacts(t *testing.T) {
	pool := []string{ruleDeletes, ruleMoney, ruleApp,
		strings.Replace(ruleDeletes, "match", "mode: observe, match", 1), strings.Replace(ruleMoney, "REQUIRE_APPROVAL", "BLOCK", 1),
		`{ id: do, decision: REQUIRE_APPROVAL, reason_code: ask, lifts: [opaque_code], match: { query_types_only: [DO] } }`,
		`{ id: deletes, decision: REQUIRE_APPROVAL, reason_code: ask, match: { query_types: [DELETE] } }`,
		`{ id: ddl, decision: ALLOW, reason_code: fine, match: { class: [ddl] }, unless: { tables_written: [audit.*] } }`,
		`{ id: ddl, decision: REQUIRE_APPROVAL, reason_code: fine, match: { class: [ddl] }, unless: { tables_written: [audit.*] } }`}
	for i, r := range pool {
		if strings.Contains(r, "BLOCK") && strings.Contains(r, "approval:") {
			pool[i] = strings.Replace(r, ", approval: { ttl_seconds: 900 }", "", 1)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) []string {
			return rapid.SliceOfNDistinct(rapid.SampledFrom(pool), 1, 3, func(r string) string { return r[:12] }).Draw(t, name)
		}
		base, target := versionOf(t, "1.0.0", draw("base")...), versionOf(t, "1.1.0", draw("target")...)
		d := Diff(base, target)
		looser, tighter := true, true // are all changes such
		for _, c := range d.Changes {
			looser = looser && (c.Direction == DirectionLooser || c.Direction == DirectionNone)
			tighter = tighter && (c.Direction == DirectionTighter || c.Direction == DirectionNone)
		}
		kind := rapid.SampledFrom([]string{"SELECT", "INSERT", "DELETE", "DO", "DROP"}).Draw(t, "type")
		class := map[string]string{"SELECT": "read", "INSERT": "write", "DELETE": "write", "DO": "procedural", "DROP": "ddl"}[kind]
		f := &Facts{QueryType: kind, QueryTypes: []string{kind}, Class: class, Env: "prod",
			TablesWritten: []string{rapid.SampledFrom([]string{"public.a", "billing.b", "?.x", "?.*"}).Draw(t, "table")}}
		if kind == "DO" {
			f.RiskSignals = []string{"opaque_code"}
		}
		was, is := base.Decide(f).Decision.Strictness(), target.Decide(f).Decision.Strictness()
		if tighter {
			require.GreaterOrEqual(t, is, was, "%+v", d.Changes)
		}
		if looser {
			require.LessOrEqual(t, is, was, "%+v", d.Changes)
		}
	})
}
