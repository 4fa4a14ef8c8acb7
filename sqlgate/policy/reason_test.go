package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What asks for a reason lets nothing pass without one: no ALLOW, no approval, no grant, in no
// mode; and it opens nothing that is closed.
func TestAReasonThatIsRequiredIsDemandedOfWhatPasses(t *testing.T) {
	document := func(reason string) []byte {
		return []byte(`
schema: gate.policy/v1
name: reasons
version: 1.0.0
facts: facts/v1
rules:
  - {id: allows, decision: ALLOW, reason_code: allowed, match: {class: [write], query_types_only: [INSERT], tables_written_only: [public.t]}` + reason + `}
  - {id: asks, decision: REQUIRE_APPROVAL, reason_code: asked, match: {query_types: [UPDATE], query_types_only: [UPDATE]}, approval: {grants: true}` + reason + `}
  - {id: stops, decision: BLOCK, reason_code: stopped, match: {query_types: [DELETE]}}
  - {id: watches, decision: ALLOW, reason_code: watched, mode: observe, match: {class: [read]}` + reason + `}
`)
	}
	p, report := Load(document(", reason: required"), Options{})
	require.NotNil(t, p, "%+v", report.Findings)
	plain, _ := Load(document(""), Options{})
	require.NotEqual(t, plain.SemanticHash(), p.SemanticHash())
	facts := func(kind string, change func(*Facts)) *Facts {
		f := Facts{QueryType: kind, QueryTypes: []string{kind}, Class: "write", TablesWritten: []string{"public.t"}, Mode: ModeEnforce}
		change(&f)
		return &f
	}
	for name, f := range map[string]*Facts{
		"allowed":        facts("INSERT", func(*Facts) {}),
		"asked":          facts("UPDATE", func(*Facts) {}),
		"approved":       facts("UPDATE", func(f *Facts) { f.Approved = true }),
		"granted":        facts("UPDATE", func(f *Facts) { f.GrantSeconds = 60 }),
		"approval_first": facts("INSERT", func(f *Facts) { f.Mode = ModeApprovalFirst }),
	} {
		r := p.Decide(f)
		require.Equal(t, Block, r.Decision, name)
		require.Equal(t, ReasonRequired, r.ReasonCode, name)
		require.Nil(t, r.Approval, name)
		require.Contains(t, r.Remedy, "gate.reason", name)
		require.NotEmpty(t, r.Matched, name)
		f.ReasonGiven = true
		with, without := p.Decide(f), plain.Decide(f)
		require.Equal(t, []any{without.Decision, without.ReasonCode, without.RuleID}, []any{with.Decision, with.ReasonCode, with.RuleID}, name)
		require.NotEqual(t, Block, with.Decision, name)
	}
	stopped := facts("DELETE", func(f *Facts) { f.ReasonGiven = true })
	require.Equal(t, "stopped", p.Decide(stopped).ReasonCode)
	read := Facts{QueryType: "SELECT", QueryTypes: []string{"SELECT"}, Class: "read", SafeRead: true, Mode: ModeEnforce}
	require.Equal(t, Allow, p.Decide(&read).Decision, "a rule that only observes demands nothing")

	d := Diff(plain, p)
	require.Len(t, d.Changes, 3)
	require.Equal(t, []string{"reason", DirectionTighter}, []string{d.Changes[0].Fields[0].Path, d.Changes[0].Direction})
	require.Equal(t, DirectionLooser, Diff(p, plain).Changes[0].Direction)

	_, report = Load([]byte(`{schema: gate.policy/v1, name: a, version: 1.0.0, facts: facts/v1, rules: [{id: a, decision: BLOCK, reason_code: stopped, match: {}, reason: required}]}`), Options{})
	require.False(t, report.Valid)
	require.Equal(t, "PV115", report.Findings[0].Code)
}
