package policy

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// document puts rules, written as flow mappings, into a document.
func document(rules ...string) string {
	var b strings.Builder
	b.WriteString("schema: gate.policy/v1\nname: p\nversion: 1.0.0\nfacts: facts/v1\nrules:\n")
	for _, r := range rules {
		b.WriteString("  - {" + r + "}\n")
	}
	return b.String()
}

// Facts of three statements that most tables below decide on.
var (
	safeRead = Facts{QueryType: "SELECT", QueryTypes: []string{"SELECT"}, Class: "read", SafeRead: true, TablesRead: []string{"public.t"}, Mode: ModeEnforce, Env: "prod"}
	update   = Facts{QueryType: "UPDATE", QueryTypes: []string{"UPDATE"}, Class: "write", TablesWritten: []string{"public.t"},
		ColumnsWritten: []string{"public.t.a"}, Where: []string{"key_equality"}, Mode: ModeEnforce, Env: "prod"}
	doBlock = Facts{QueryType: "DO", QueryTypes: []string{"DO"}, Class: "procedural", RiskSignals: []string{"opaque_code"}, Mode: ModeEnforce, Env: "prod"}
)

func with(f Facts, change func(*Facts)) *Facts {
	change(&f)
	return &f
}

const (
	vacuous     = "id: vacuous, decision: ALLOW, reason_code: vacuous, match: {query_types_only: [UPDATE], tables_written_only: [public.*]}"
	ruleAllow   = "id: allow, decision: ALLOW, reason_code: allowed, match: {class: [read, write, procedural]}"
	ruleAsk     = "id: ask, decision: REQUIRE_APPROVAL, reason_code: asked, match: {}, approval: {ttl_seconds: 60, max_rows: 5}"
	ruleAskMore = "id: ask-more, decision: REQUIRE_APPROVAL, reason_code: asked_more, match: {}, approval: {ttl_seconds: 30}"
	ruleBlock   = "id: block, decision: BLOCK, reason_code: blocked, match: {}"
	ruleWatch   = "id: watch, decision: BLOCK, reason_code: watched, match: {}, mode: observe"
	ruleBroken  = `id: broken, decision: ALLOW, reason_code: broken, match: {class: [read, write]}, when: "size(actor) + 9223372036854775807 > 0"`
	ruleLift    = "id: lift, decision: REQUIRE_APPROVAL, reason_code: lifted, match: {query_types_only: [DO]}, lifts: [opaque_code]"
)

func TestDecide(t *testing.T) {
	approved := func(f *Facts) { f.Approved = true }
	first := func(f *Facts) { f.Mode = ModeApprovalFirst }
	named := func(f *Facts) { f.Actor = "ana" }
	for _, c := range []struct {
		name   string
		rules  []string
		facts  *Facts
		want   Decision
		reason string
		rule   string
	}{
		{"nothing matches a safe read", []string{"id: r, decision: BLOCK, reason_code: r_r, match: {class: [ddl]}"}, &safeRead, Allow, ReasonSafeRead, RuleDefault},
		{"nothing matches a write", []string{"id: r, decision: BLOCK, reason_code: r_r, match: {class: [ddl]}"}, &update, Block, ReasonDefaultDeny, RuleDefault},
		{"an allow lets a write pass", []string{ruleAllow}, &update, Allow, "allowed", "allow"},
		{"a block blocks a safe read", []string{ruleBlock}, &safeRead, Block, "blocked", "block"},
		{"an approval wins over an allow", []string{ruleAllow, ruleAsk}, &update, RequireApproval, "asked", "ask"},
		{"a block wins over an approval", []string{ruleAsk, ruleBlock, ruleAllow}, &update, Block, "blocked", "block"},
		{"of two approvals the first gives the reason", []string{ruleAskMore, ruleAsk}, &update, RequireApproval, "asked_more", "ask-more"},
		{"a rule that observes decides nothing", []string{ruleWatch, ruleAllow}, &update, Allow, "allowed", "allow"},
		{"a rule that observes does not undo the default", []string{ruleWatch}, &update, Block, ReasonDefaultDeny, RuleDefault},
		{"a satisfied approval allows", []string{ruleAsk}, with(update, approved), Allow, "asked", "ask"},
		{"a satisfied approval gives the reason over an allow", []string{ruleAllow, ruleAsk}, with(update, approved), Allow, "asked", "ask"},
		{"a satisfied approval does not lift a block", []string{ruleAsk, ruleBlock}, with(update, approved), Block, "blocked", "block"},
		{"an approval of nothing is default deny", []string{"id: r, decision: BLOCK, reason_code: r_r, match: {class: [ddl]}"}, with(update, approved), Block, ReasonDefaultDeny, RuleDefault},
		{"the floor blocks what an allow matches", []string{ruleAllow}, &doBlock, Block, "opaque_code", "floor.opaque_code"},
		{"the floor goes before a block", []string{ruleBlock}, &doBlock, Block, "opaque_code", "floor.opaque_code"},
		{"a lifted floor leaves the rule", []string{ruleLift}, &doBlock, RequireApproval, "lifted", "lift"},
		{"a lift by one rule serves another", []string{ruleLift, ruleAllow}, with(doBlock, approved), Allow, "lifted", "lift"},
		{"a lift that does not match lifts nothing", []string{ruleLift, ruleAllow},
			with(update, func(f *Facts) { f.RiskSignals = []string{"opaque_code"} }), Block, "opaque_code", "floor.opaque_code"},
		{"a lift that observes lifts nothing", []string{ruleLift + ", mode: observe", ruleAsk}, &doBlock, Block, "opaque_code", "floor.opaque_code"},
		{"a lift of one signal leaves the others", []string{ruleLift},
			with(doBlock, func(f *Facts) { f.RiskSignals = []string{"opaque_code", "server_program"} }), Block, "server_program", "floor.server_program"},
		{"an error in when blocks", []string{ruleAllow, ruleBroken}, with(update, named), Block, ReasonRuleEvalError, "broken"},
		{"an error in when blocks a safe read", []string{ruleBroken}, with(safeRead, named), Block, ReasonRuleEvalError, "broken"},
		{"an error and a block tie, the first gives the reason", []string{ruleBlock, ruleBroken}, with(update, named), Block, "blocked", "block"},
		{"an error that stands first gives the reason", []string{ruleBroken, ruleBlock}, with(update, named), Block, ReasonRuleEvalError, "broken"},
		{"an error in a rule that observes is nothing", []string{ruleAllow, ruleBroken + ", mode: observe"}, with(update, named), Allow, "allowed", "allow"},
		{"an error is not lifted by an approval", []string{ruleBroken}, with(update, func(f *Facts) { f.Approved, f.Actor = true, "ana" }), Block, ReasonRuleEvalError, "broken"},
		{"approval first asks for an allowed write", []string{ruleAllow}, with(update, first), RequireApproval, ReasonApprovalFirst, "allow"},
		{"approval first lets a safe read pass", []string{ruleAllow}, with(safeRead, first), Allow, "allowed", "allow"},
		{"approval first lets an approved write pass", []string{ruleAllow}, with(update, func(f *Facts) { f.Mode, f.Approved = ModeApprovalFirst, true }), Allow, "allowed", "allow"},
		{"approval first leaves a block", []string{ruleBlock}, with(update, first), Block, "blocked", "block"},
		{"approval first leaves the default", []string{ruleWatch}, with(update, first), Block, ReasonDefaultDeny, RuleDefault},
		{"a claim of safety does not cover a signal", []string{ruleWatch},
			with(safeRead, func(f *Facts) { f.RiskSignals = []string{"row_locking"} }), Block, ReasonDefaultDeny, RuleDefault},
		{"a claim of safety does not cover a write", []string{ruleWatch},
			with(update, func(f *Facts) { f.SafeRead = true }), Block, ReasonDefaultDeny, RuleDefault},
		{"facts of nothing satisfy no rule", []string{vacuous}, &Facts{}, Block, "unknown_node", "floor.unknown_node"},
		{"a statement without a type satisfies no rule", []string{vacuous}, with(update, func(f *Facts) { f.QueryTypes = nil }), Block, "unknown_node", "floor.unknown_node"},
		{"a class that nobody knows is blocked", []string{vacuous}, with(update, func(f *Facts) { f.Class = "novel" }), Block, "unknown_node", "floor.unknown_node"},
		{"a type that nobody knows is blocked", []string{ruleAllow}, with(update, func(f *Facts) { f.QueryTypes = []string{"NOVEL"} }), Block, "unknown_node", "floor.unknown_node"},
		{"a signal that nobody knows is blocked", []string{ruleAllow}, with(update, func(f *Facts) { f.RiskSignals = []string{"novel"} }), Block, "unknown_node", "floor.unknown_node"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := load(t, document(c.rules...)).Decide(c.facts)
			require.Equal(t, c.want, r.Decision)
			require.Equal(t, c.reason, r.ReasonCode)
			require.Equal(t, c.rule, r.RuleID)
			require.Equal(t, LayerPolicy, r.Layer)
		})
	}
}

func TestAResultNamesAllThatLedToIt(t *testing.T) {
	p := load(t, document(ruleAllow, ruleWatch, ruleBroken, ruleAsk, ruleLift))
	r := p.Decide(with(doBlock, func(f *Facts) {
		f.RiskSignals = []string{"opaque_code", "oversized_facts", "server_program", "volatile_function"}
	}))
	require.Equal(t, []string{"allow", "ask", "lift"}, r.Matched)
	require.Equal(t, []string{"watch"}, r.Observed)
	require.Equal(t, []string{"opaque_code"}, r.Lifted)
	require.Equal(t, []string{"server_program", "oversized_facts"}, r.Floor)
	require.Empty(t, r.Errors, "the broken rule does not match a DO")
	require.Nil(t, r.Approval, "a block has no terms")

	r = p.Decide(with(update, func(f *Facts) { f.Actor = "ana" }))
	require.Equal(t, []string{"broken"}, r.Errors)
	require.Equal(t, []string{"allow", "ask"}, r.Matched)
}

func TestApprovalTermsAreTheSmallestOfAllMatchedRules(t *testing.T) {
	five, zero := int64(5), int64(0)
	for _, c := range []struct {
		name  string
		rules []string
		want  ApprovalTerms
	}{
		{"one rule", []string{ruleAsk}, ApprovalTerms{60, &five}},
		{"each term on its own", []string{ruleAsk, ruleAskMore}, ApprovalTerms{30, &five}},
		{"the default where a rule has none", []string{"id: r, decision: REQUIRE_APPROVAL, reason_code: r_r, match: {}"}, ApprovalTerms{TTLSeconds: 77}},
		{"the default counts among others", []string{"id: r, decision: REQUIRE_APPROVAL, reason_code: r_r, match: {}",
			"id: s, decision: REQUIRE_APPROVAL, reason_code: s_s, match: {}, approval: {ttl_seconds: 3000}"}, ApprovalTerms{TTLSeconds: 77}},
		{"no rows at all is a limit", []string{ruleAsk, "id: r, decision: REQUIRE_APPROVAL, reason_code: r_r, match: {}, approval: {max_rows: 0}"}, ApprovalTerms{60, &zero}},
		{"an observing rule has no say", []string{ruleAsk, "id: r, decision: REQUIRE_APPROVAL, reason_code: r_r, match: {}, mode: observe, approval: {ttl_seconds: 1}"}, ApprovalTerms{60, &five}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, report := Load([]byte(document(c.rules...)), Options{DefaultTTLSeconds: 77})
			require.NoError(t, report.Err())
			require.Equal(t, &c.want, p.Decide(&update).Approval)
			require.Equal(t, &c.want, p.Decide(with(update, func(f *Facts) { f.Approved = true })).Approval, "the row limit binds the approved run too")
		})
	}
}

func TestTheDefaultTTLOfTheContractIsFiveMinutes(t *testing.T) {
	p := load(t, document("id: r, decision: REQUIRE_APPROVAL, reason_code: r_r, match: {}"))
	require.Equal(t, 300, p.Decide(&update).Approval.TTLSeconds)
}

func TestSessionControl(t *testing.T) {
	prepare := Facts{QueryType: "PREPARE", QueryTypes: []string{"PREPARE", "UPDATE"}, Class: "session", RiskSignals: []string{"session_change"}, Mode: ModeEnforce}
	reset := with(prepare, func(f *Facts) {
		f.RiskSignals = []string{"identity_switch", "session_change"}
		f.Mode = ModeApprovalFirst
	})
	ask := "id: ask, decision: REQUIRE_APPROVAL, reason_code: asked, match: {query_types: [PREPARE]}"
	none := "id: none, decision: BLOCK, reason_code: none, match: {class: [ddl]}"
	for _, c := range []struct {
		name  string
		rules []string
		facts *Facts
		want  Decision
		layer string
	}{
		{"without a rule it is allowed", []string{none}, &prepare, Allow, LayerSession},
		{"neither floor nor approval first block it", []string{none}, reset, Allow, LayerSession},
		{"a rule decides", []string{ask}, &prepare, RequireApproval, LayerPolicy},
		{"a rule that observes does not", []string{ruleWatch}, &prepare, Allow, LayerSession},
		{"a block decides over a floor", []string{ruleBlock}, reset, Block, LayerPolicy},
		{"an error in when blocks", []string{`id: broken, decision: ALLOW, reason_code: broken, match: {class: [session]}, when: "size(query_types) + 9223372036854775807 > 0"`}, &prepare, Block, LayerPolicy},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := load(t, document(c.rules...)).DecideSessionControl(c.facts)
			require.Equal(t, c.want, r.Decision)
			require.Equal(t, c.layer, r.Layer)
			if c.layer == LayerSession {
				require.Equal(t, ReasonSessionControl, r.ReasonCode)
				require.Empty(t, r.RuleID)
			}
		})
	}
}

func TestMessagesNeverComeFromTheStatement(t *testing.T) {
	p := load(t, document(ruleAsk))
	for _, signal := range floorSignals {
		r := p.Decide(with(update, func(f *Facts) { f.RiskSignals = []string{signal} }))
		require.Equal(t, floorTexts[signal], r.Message)
		require.NotEmpty(t, r.Message, signal)
		require.NotEmpty(t, r.Remedy, signal)
	}
}

// anyDocument draws a document of a few rules over a small alphabet, so that
// rules overlap often.
func anyRules(t *rapid.T) []string {
	n := rapid.IntRange(1, 6).Draw(t, "rules")
	rules := make([]string, n)
	for i := range rules {
		decision := rapid.SampledFrom([]string{"ALLOW", "BLOCK", "REQUIRE_APPROVAL"}).Draw(t, "decision")
		match := rapid.SampledFrom([]string{"{class: [read]}", "{class: [write, read]}", "{query_types_only: [UPDATE]}",
			"{tables_written_only: [public.*], class: [write]}", "{safe_read: true}", "{class: [procedural], approved: true}"}).Draw(t, "match")
		extra := rapid.SampledFrom([]string{"", ", mode: observe", `, when: "size(actor) + 9223372036854775807 > 0"`, `, when: "agent_id == \"\""`,
			", unless: {tls_subject: [x]}"}).Draw(t, "extra")
		if decision != "BLOCK" && rapid.IntRange(0, 3).Draw(t, "lift") == 0 {
			extra += ", lifts: [opaque_code]"
		}
		rules[i] = fmt.Sprintf("id: r%d, decision: %s, reason_code: reason, match: %s%s", i, decision, match, extra)
	}
	return rules
}

func anyFacts(t *rapid.T) *Facts {
	f := rapid.SampledFrom([]Facts{safeRead, update, doBlock}).Draw(t, "statement")
	f.Approved = rapid.Bool().Draw(t, "approved")
	f.Actor = rapid.SampledFrom([]string{"", "ana"}).Draw(t, "actor")
	f.TLSSubject = rapid.SampledFrom([]string{"", "x"}).Draw(t, "tls")
	f.Mode = rapid.SampledFrom([]string{ModeEnforce, ModeApprovalFirst}).Draw(t, "mode")
	if f.Class != "read" && rapid.Bool().Draw(t, "floor") {
		f.RiskSignals = []string{rapid.SampledFrom(floorSignals).Draw(t, "signal")}
	}
	return &f
}

func TestOrderNeverChangesTheDecision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules, f := anyRules(t), anyFacts(t)
		shuffled := rapid.Permutation(rules).Draw(t, "order")
		a, _ := Load([]byte(document(rules...)), Options{})
		b, _ := Load([]byte(document(shuffled...)), Options{})
		ra, rb := a.Decide(f), b.Decide(f)
		if ra.Decision != rb.Decision || !sameSet(ra.Matched, rb.Matched) || !sameSet(ra.Errors, rb.Errors) || !slices.Equal(ra.Floor, rb.Floor) {
			t.Fatalf("%v and %v differ by order alone", ra, rb)
		}
	})
}

func TestTheStrictestWinsAndTheFloorHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules, f := anyRules(t), anyFacts(t)
		p, _ := Load([]byte(document(rules...)), Options{})
		r := p.Decide(f)
		strictest := map[Decision]bool{}
		for _, id := range r.Matched {
			strictest[p.rules[slices.IndexFunc(p.rules, func(u rule) bool { return u.id == id })].decision] = true
		}
		switch {
		case len(r.Floor) > 0 || len(r.Errors) > 0 || strictest[Block]:
			if r.Decision != Block {
				t.Fatalf("not blocked: %+v", r)
			}
		case strictest[RequireApproval] && !f.Approved:
			if r.Decision != RequireApproval {
				t.Fatalf("not asked: %+v", r)
			}
		case len(r.Matched) == 0 && !isSafeRead(f):
			if r.Decision != Block || r.ReasonCode != ReasonDefaultDeny {
				t.Fatalf("not denied: %+v", r)
			}
		}
		for _, signal := range f.RiskSignals {
			if slices.Contains(floorSignals, signal) && r.Decision == Allow && !slices.Contains(r.Lifted, signal) {
				t.Fatalf("the floor %s did not hold: %+v", signal, r)
			}
		}
	})
}

func TestOneMoreRestrictingRuleNeverLoosens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules, f := anyRules(t), anyFacts(t)
		more := append(slices.Clone(rules), "id: more, decision: "+rapid.SampledFrom([]string{"BLOCK", "REQUIRE_APPROVAL"}).Draw(t, "more")+", reason_code: more, match: {}")
		a, _ := Load([]byte(document(rules...)), Options{})
		b, _ := Load([]byte(document(more...)), Options{})
		before, after := a.Decide(f), b.Decide(f)
		if before.RuleID == RuleDefault && before.Decision == Block {
			return // a rule that asks is looser than the default that denies
		}
		if after.Decision.Strictness() < before.Decision.Strictness() {
			t.Fatalf("%+v became %+v", before, after)
		}
	})
}

func TestDecisionsAreTheSameFromManyGoroutines(t *testing.T) {
	p := load(t, string(exampleDocument))
	f := with(update, func(f *Facts) { f.TablesWritten, f.AgentID = []string{"billing.invoices"}, "agt_1" })
	want := p.Decide(f)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if got := p.Decide(f); got.RuleID != want.RuleID || !slices.Equal(got.Matched, want.Matched) {
					t.Errorf("%+v is not %+v", got, want)
				}
				p.Trace(f)
				p.Decide(&safeRead)
			}
		})
	}
	all.Wait()
}

// The decision record keeps facts in their JSON form, empty values left out;
// what is read back must decide the same.
func TestStoredFactsDecideTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, _ := Load([]byte(document(anyRules(t)...)), Options{})
		f := drawnFacts(t)
		stored, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var back Facts
		if err := json.Unmarshal(stored, &back); err != nil {
			t.Fatal(err)
		}
		want, got := p.Decide(f), p.Decide(&back)
		if !reflect.DeepEqual(want, got) {
			t.Fatalf("%+v became %+v by %s", want, got, stored)
		}
	})
}

func TestAPolicyGivesBackItsDocument(t *testing.T) {
	p := load(t, string(exampleDocument))
	document := p.Document()
	require.Equal(t, exampleDocument, document)
	document[0] = 'X'
	require.Equal(t, exampleDocument, p.Document(), "the policy keeps bytes of its own")
	require.Len(t, p.Tests(), 2)
	require.Equal(t, "agent-billing", p.Tests()[0].Context.App)
}

// The gate's own table is out of reach of every rule, and of what a cut list hides.
// Tables that a statement reaches without their names are inside a rule that
// restricts and an exception of one that allows, and outside of one that allows and an
// exception of one that restricts.
func TestTablesWithoutTheirNames(t *testing.T) {
	p := load(t, document(
		"id: audit, decision: BLOCK, reason_code: audit_write, match: {tables_written: [audit.log]}",
		"id: drops, decision: BLOCK, reason_code: no_drops, match: {query_types: [DROP]}, unless: {any_of: [{tables_written: [staging.*]}, {columns_written: [staging.*.*]}]}",
		"id: app, decision: ALLOW, reason_code: app_all, match: {query_types_only: [DROP, VACUUM], tables_written_only: [app.*, staging.*], columns_written_only: [\"*.*.*\"]}",
		"id: but, decision: ALLOW, reason_code: all_but, match: {query_types_only: [TRUNCATE], risk_signals_only: []}, unless: {any_of: [{tables_written: [audit.log]}, {columns_written: [audit.log.*]}]}",
		"id: all, decision: ALLOW, reason_code: all_tables, match: {query_types_only: [CLUSTER], tables_written_only: [\"*.*\"]}",
	))
	for _, c := range []struct {
		query   string
		tables  []string
		matched []string
	}{
		{"VACUUM", []string{"app.*"}, []string{"app"}},
		{"VACUUM", []string{"app.t", "app.*"}, []string{"app"}},
		{"VACUUM", []string{"other.*"}, nil},
		{"VACUUM", []string{"audit.*"}, []string{"audit"}},
		{"VACUUM", []string{"?.*"}, []string{"audit"}},
		{"VACUUM", []string{"?.*", "app.t"}, []string{"audit"}},
		{"CLUSTER", []string{"app.*", "other.*"}, []string{"all"}},
		{"CLUSTER", []string{"?.*"}, []string{"audit"}},
		{"DROP", []string{"staging.t"}, []string{"app"}},
		{"DROP", []string{"staging.*"}, []string{"app"}},
		{"DROP", []string{"?.*", "app.t"}, []string{"audit", "drops"}},
		{"DROP", []string{"?.t"}, []string{"drops"}},
		{"DROP", []string{"?.*", "staging.*"}, []string{"audit"}},
		{"TRUNCATE", []string{"app.t", "other.*"}, []string{"but"}},
		{"TRUNCATE", []string{"?.*", "app.t"}, []string{"audit"}},
		{"TRUNCATE", []string{"audit.*"}, []string{"audit"}},
	} {
		columns := make([]string, len(c.tables))
		for i, table := range c.tables {
			columns[i] = table + ".*"
		}
		r := p.Decide(&Facts{Class: "ddl", QueryTypes: []string{c.query}, TablesWritten: c.tables, ColumnsWritten: columns})
		require.Equal(t, c.matched, r.Matched, "%s %v", c.query, c.tables)
	}
}

func TestAStatementAtTheMarkerTableIsBlockedBeforeAnyRule(t *testing.T) {
	p := load(t, `
schema: gate.policy/v1
name: p
version: 1.0.0
facts: facts/v1
rules:
  - { id: all, decision: ALLOW, reason_code: all, match: { class: [write, ddl] }, lifts: [oversized_facts] }
`)
	many := make([]string, maxListFacts)
	for i := range many {
		many[i] = "public.t" + itoa(i)
	}
	for name, c := range map[string]struct {
		facts Facts
		want  string
	}{
		"written":         {Facts{TablesWritten: []string{"gate.m"}, MarkerTable: "gate.m"}, ReasonMarkerTable},
		"read":            {Facts{TablesRead: []string{"gate.m", "public.t"}, MarkerTable: "gate.m"}, ReasonMarkerTable},
		"cut, so unknown": {Facts{TablesRead: many, RiskSignals: []string{signalOversizedFacts}, MarkerTable: "gate.m"}, ReasonMarkerTable},
		"in its schema":   {Facts{TablesWritten: []string{"?.*", "gate.*"}, MarkerTable: "gate.m"}, ReasonMarkerTable},
		"another schema":  {Facts{TablesWritten: []string{"?.*", "gates.*"}, MarkerTable: "gate.m"}, "all"},
		"cut elsewhere":   {Facts{TablesRead: []string{"public.t"}, RiskSignals: []string{signalOversizedFacts}, MarkerTable: "gate.m"}, "all"},
		"another table":   {Facts{TablesRead: []string{"public.m"}, MarkerTable: "gate.m"}, "all"},
		"no marker table": {Facts{TablesWritten: []string{"gate.m"}}, "all"},
	} {
		t.Run(name, func(t *testing.T) {
			f := c.facts
			f.Class, f.QueryTypes, f.Approved = "write", []string{"INSERT"}, true
			r := p.Decide(&f)
			require.Equal(t, c.want, r.ReasonCode)
			require.Equal(t, c.want == ReasonMarkerTable, r.Decision == Block)
			traced := false
			for _, e := range p.Trace(&f) {
				traced = traced || e.RuleID == FloorPrefix+ReasonMarkerTable && e.Outcome == OutcomeMatched
			}
			require.Equal(t, c.want == ReasonMarkerTable, traced)
		})
	}
}
