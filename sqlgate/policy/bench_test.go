package policy

import (
	"fmt"
	"testing"
)

// fiftyRules is the policy of goal P7: 50 rules, five of them with a condition
// that is reached for the statement decided on.
func fiftyRules() string {
	conditions := []string{
		`agent_id != "" && (query_types.exists(q, q != "INSERT") || !agent_tools_verified)`,
		`actor.startsWith("svc-") && env == "prod"`,
		`size(tables_written) > 3`,
		`!("public.t" in tables_written)`,
		`host.matches("^db[0-9]+$")`,
	}
	var rules []string
	for i := range 50 {
		decision := []string{"ALLOW", "BLOCK", "REQUIRE_APPROVAL"}[i%3]
		match := fmt.Sprintf("{class: [write], tables_written_only: [app%d.*, \"audit%d.log\"], query_types_only: [INSERT, UPDATE]}", i, i)
		switch i % 5 {
		case 1:
			match = fmt.Sprintf("{class: [ddl, dcl], env: [prod], app: [\"app-%d\"]}", i)
		case 2:
			match = fmt.Sprintf("{query_types_only: [UPDATE, DELETE], tenant: [\"t%d-*\"]}", i)
		case 3:
			match = fmt.Sprintf("{columns_written_only: [\"public.t%d.*\"], risk_signals_only: [], class: [write]}", i)
		}
		when := ""
		if i%10 == 0 {
			match, when = "{class: [write]}", ", when: '"+conditions[i/10]+"'"
		}
		rules = append(rules, fmt.Sprintf("id: r%d, decision: %s, reason_code: reason, match: %s%s", i, decision, match, when))
	}
	rules[49] = "id: r49, decision: ALLOW, reason_code: reason, match: {class: [write], query_types_only: [SELECT, INSERT, UPDATE], tables_written_only: [public.*], functions_only: [now, lower, upper]}"
	return document(rules...)
}

func benchmarkFacts() map[string]*Facts {
	return map[string]*Facts{
		"write": with(update, func(f *Facts) {
			f.Actor, f.App, f.Tenant, f.Role, f.Host = "ana", "shop", "t1", "dev", "web1"
			f.Functions = []string{"lower", "now"}
		}),
		"read": with(safeRead, func(f *Facts) { f.Actor, f.App, f.Tenant = "ana", "shop", "t1" }),
	}
}

func BenchmarkDecide(b *testing.B) {
	p := load(b, fiftyRules())
	for name, f := range benchmarkFacts() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Decide(f)
			}
		})
	}
}

func BenchmarkDecideWithoutConditions(b *testing.B) {
	p := load(b, string(Starting("")))
	f := benchmarkFacts()["write"]
	b.ReportAllocs()
	for b.Loop() {
		p.Decide(f)
	}
}

func BenchmarkLoadOfTheExample(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Load(exampleDocument, Options{})
	}
}
