package policy

import (
	"fmt"
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// head is a document up to its rules.
const head = "schema: gate.policy/v1\nname: p\nversion: 1.0.0\nfacts: facts/v1\n"

// plainRule is a rule without anything to say about.
const plainRule = "  - { id: r, decision: BLOCK, reason_code: r_r, match: { class: [ddl] } }\n"

func rulesOf(rules string) string { return head + "rules:\n" + rules }

// ruleWith puts a rest behind the start of a rule.
func ruleWith(decision, rest string) string {
	return rulesOf("  - { id: r, decision: " + decision + ", reason_code: r_r, " + rest + " }\n")
}

func all(r Report) []Finding { return append(append([]Finding{}, r.Findings...), r.Warnings...) }

func withCode(r Report, code string) []Finding {
	var found []Finding
	for _, f := range all(r) {
		if f.Code == code {
			found = append(found, f)
		}
	}
	return found
}

// Every finding that Load can make, with a document that raises it, a near one
// that does not, the place, and what the message must tell.
var findingCases = []struct {
	code, name string
	bad, good  string
	at         string // what stands at the place of the finding
	pointer    string
	tells      string // part of message or suggestion
}{
	{codeYAMLInvalid, "syntax", head + "rules: [", rulesOf(plainRule), "rules: [", "", "cannot be read"},
	{codeYAMLInvalid, "empty", "", rulesOf(plainRule), "", "", "it is empty"},
	{codeYAMLInvalid, "only a comment", "# nothing\n", rulesOf(plainRule), "", "", "it is empty"},
	{codeYAMLInvalid, "not UTF-8", rulesOf(plainRule) + "# \xff\n", rulesOf(plainRule) + "# \u00ff\n", "", "", "UTF-8"},
	{codeYAMLInvalid, "second document", rulesOf(plainRule) + "---\na: 1\n", "---\n" + rulesOf(plainRule) + "...\n", "", "", "second document"},
	{codeDuplicateKey, "top", rulesOf(plainRule) + "owner: a\nowner: b\n", rulesOf(plainRule) + "owner: a\n", "owner: b", "/owner", "the first is in line 7"},
	{codeDuplicateKey, "match", ruleWith("BLOCK", "match: { class: [ddl], class: [dcl] }"), ruleWith("BLOCK", "match: { class: [ddl, dcl] }"), "class: [dcl]", "/rules/0/match/class", "second time"},
	{codeUnknownField, "top", rulesOf(plainRule) + "descripton: x\n", rulesOf(plainRule) + "description: x\n", "descripton: ", "/descripton", "description"},
	{codeUnknownField, "rule", ruleWith("BLOCK", "match: {}, remdy: x"), ruleWith("BLOCK", "match: {}, message: x"), "remdy: x }", "/rules/0/remdy", "remedy"},
	{codeUnknownField, "match", ruleWith("BLOCK", "match: { table_written: [a.b] }"), ruleWith("BLOCK", "match: { tables_written: [a.b] }"), "table_writte", "/rules/0/match/table_written", "tables_written"},
	{codeUnknownField, "only on a scalar", ruleWith("BLOCK", "match: { class_only: [ddl] }"), ruleWith("BLOCK", "match: { where_only: [none] }"), "class_only: ", "/rules/0/match/class_only", "class"},
	{codeUnknownField, "any_of inside any_of", ruleWith("BLOCK", "match: { any_of: [ { any_of: [ {} ] } ] }"), ruleWith("BLOCK", "match: { any_of: [ {} ] }"), "any_of: [ {}", "/rules/0/match/any_of/0/any_of", "one level"},
	{codeMissingField, "rules", head, rulesOf(plainRule), "schema: gate", "", "has no rules"},
	{codeMissingField, "match", ruleWith("BLOCK", "message: x"), ruleWith("BLOCK", "match: {}"), "{ id: r, dec", "/rules/0", "has no match"},
	{codeMissingField, "expectation", rulesOf(plainRule) + "tests: [ { name: n, sql: s, expect: { rule_id: r } } ]\n", rulesOf(plainRule) + "tests: [ { name: n, sql: s, expect: { not: ALLOW } } ]\n", "{ rule_id: r", "/tests/0/expect", "decision: BLOCK"},
	{codeTypeMismatch, "top", "[]", rulesOf(plainRule), "[]", "", "must be a mapping"},
	{codeTypeMismatch, "scalar for list", ruleWith("BLOCK", "match: { class: ddl }"), ruleWith("BLOCK", "match: { class: [ddl] }"), "ddl } }", "/rules/0/match/class", "[ddl]"},
	{codeTypeMismatch, "number for text", ruleWith("BLOCK", "match: { tenant: [42] }"), ruleWith("BLOCK", `match: { tenant: ["42"] }`), "42] } }", "/rules/0/match/tenant/0", `"42"`},
	{codeTypeMismatch, "text for bool", ruleWith("BLOCK", `match: { approved: "true" }`), ruleWith("BLOCK", "match: { approved: true }"), `"true" } }`, "/rules/0/match/approved", "true or false"},
	{codeTypeMismatch, "null", ruleWith("BLOCK", "match: "), ruleWith("BLOCK", "match: {}"), "}", "/rules/0/match", "empty"},
	{codeTypeMismatch, "table of one segment", ruleWith("BLOCK", "match: { tables_written: [orders] }"), ruleWith("BLOCK", "match: { tables_written: [public.orders] }"), "orders] } }", "/rules/0/match/tables_written/0", "public.orders"},
	{codeTypeMismatch, "table of three segments", ruleWith("BLOCK", "match: { tables_read: [db.public.orders] }"), ruleWith("BLOCK", "match: { tables_read: [public.orders] }"), "db.public.or", "/rules/0/match/tables_read/0", "public.orders"},
	{codeTypeMismatch, "column of two segments", ruleWith("BLOCK", "match: { columns_written: [public.orders] }"), ruleWith("BLOCK", "match: { columns_written: [public.orders.*] }"), "public.order", "/rules/0/match/columns_written/0", "public.orders.*"},
	{codeTypeMismatch, "built-in with a schema", ruleWith("BLOCK", "match: { functions: [pg_catalog.now] }"), ruleWith("BLOCK", "match: { functions: [now] }"), "pg_catalog.n", "/rules/0/match/functions/0", "now"},
	{codeTypeMismatch, "empty segment", ruleWith("BLOCK", "match: { functions: [app.] }"), ruleWith("BLOCK", "match: { functions: [app.f] }"), "app.] } }", "/rules/0/match/functions/0", "empty segment"},
	{codeTypeMismatch, "both decision and not", rulesOf(plainRule) + "tests: [ { name: n, sql: s, expect: { not: ALLOW, decision: BLOCK } } ]\n", rulesOf(plainRule) + "tests: [ { name: n, sql: s, expect: { decision: BLOCK } } ]\n", "{ not: ALLOW", "/tests/0/expect", "one of them"},
	{codeBadName, "name", strings.Replace(rulesOf(plainRule), "name: p", "name: P_1", 1), rulesOf(plainRule), "P_1", "/name", "lower-case"},
	{codeBadName, "version of two numbers", strings.Replace(rulesOf(plainRule), "1.0.0", "1.5", 1), rulesOf(plainRule), "1.5", "/version", "1.5.0"},
	{codeBadName, "leading zero", strings.Replace(rulesOf(plainRule), "1.0.0", "1.05.0", 1), rulesOf(plainRule), "1.05.0", "/version", "leading zeros"},
	{codeBadName, "reserved id", rulesOf("  - { id: default, decision: BLOCK, reason_code: r_r, match: {} }\n"), rulesOf("  - { id: defaults, decision: BLOCK, reason_code: r_r, match: {} }\n"), "default, dec", "/rules/0/id", "kept for the gate"},
	{codeBadName, "floor id", rulesOf("  - { id: floor-x, decision: BLOCK, reason_code: r_r, match: {} }\n"), rulesOf("  - { id: x-floor, decision: BLOCK, reason_code: r_r, match: {} }\n"), "floor-x, dec", "/rules/0/id", "kept for the gate"},
	{codeBadName, "list name", rulesOf(plainRule) + "lists: { A: [] }\n", rulesOf(plainRule) + "lists: { a: [] }\n", "A: [] }", "/lists/A", "form"},
	{codeDuplicateRule, "twice", rulesOf(plainRule + plainRule), rulesOf(plainRule + strings.Replace(plainRule, "id: r", "id: s", 1)), "r, decision:", "/rules/1/id", "line 6"},
	{codeUnknownEnum, "decision", ruleWith("DENY", "match: {}"), ruleWith("BLOCK", "match: {}"), "DENY, reason", "/rules/0/decision", "REQUIRE_APPROVAL"},
	{codeUnknownEnum, "case", ruleWith("allow", "match: { class: [write] }"), ruleWith("ALLOW", "match: { class: [write] }"), "allow, reaso", "/rules/0/decision", "ALLOW"},
	{codeUnknownEnum, "query type", ruleWith("BLOCK", "match: { query_types: [UPDAT] }"), ruleWith("BLOCK", "match: { query_types: [UPDATE] }"), "UPDAT] } }", "/rules/0/match/query_types/0", "UPDATE"},
	{codeUnknownEnum, "signal", ruleWith("BLOCK", "match: { risk_signals: [destructive] }"), ruleWith("BLOCK", "match: { risk_signals: [destructive_ddl] }"), "destructive]", "/rules/0/match/risk_signals/0", "destructive_ddl"},
	{codeUnknownEnum, "lists are for patterns", ruleWith("BLOCK", "match: { class: [$x] }"), ruleWith("BLOCK", "match: { class: [ddl] }"), "$x] } }", "/rules/0/match/class/0", "known are"},
	{codeUnknownEnum, "lift of no floor signal", ruleWith("ALLOW", "match: { class: [write] }, lifts: [cascade]"), ruleWith("ALLOW", "match: { class: [write] }, lifts: [opaque_code]"), "cascade] }", "/rules/0/lifts/0", "not a floor signal"},
	{codeUnknownEnum, "lift of a pattern", ruleWith("ALLOW", `match: { class: [write] }, lifts: ["opaque_*"]`), ruleWith("ALLOW", "match: { class: [write] }, lifts: [opaque_code]"), `"opaque_*"] `, "/rules/0/lifts/0", "opaque_code"},
	{codeUnknownEnum, "schema", strings.Replace(rulesOf(plainRule), "policy/v1", "policy/v2", 1), rulesOf(plainRule), "gate.policy/", "/schema", "gate.policy/v1"},
	{codeReasonCode, "hyphen", rulesOf("  - { id: r, decision: BLOCK, reason_code: a-b-c, match: {} }\n"), rulesOf("  - { id: r, decision: BLOCK, reason_code: a_b_c, match: {} }\n"), "a-b-c, match", "/rules/0/reason_code", "underscores"},
	{codeReasonCode, "too short", rulesOf("  - { id: r, decision: BLOCK, reason_code: ab, match: {} }\n"), rulesOf("  - { id: r, decision: BLOCK, reason_code: abc, match: {} }\n"), "ab, match: {", "/rules/0/reason_code", "form"},
	{codeLimit, "bytes", rulesOf(plainRule) + "#" + strings.Repeat("x", maxDocumentBytes), rulesOf(plainRule) + "#" + strings.Repeat("x", maxDocumentBytes/2), "", "", "at most 262144"},
	{codeLimit, "depth", rulesOf(plainRule) + "owner: " + strings.Repeat("[", 12) + strings.Repeat("]", 12), rulesOf(plainRule) + "owner: x", "[]]]]]]]]]]]", "/owner" + strings.Repeat("/0", 11), "deeper than 12"},
	{codeLimit, "no rules", head + "rules: []\n", rulesOf(plainRule), "[]", "/rules", "at least one"},
	{codeLimit, "too many rules", rulesOf(strings.Repeat("  - 1\n", 501)), rulesOf(plainRule), "- 1", "/rules", "at most 500"},
	{codeLimit, "ttl", ruleWith("REQUIRE_APPROVAL", "match: {}, approval: { ttl_seconds: 86401 }"), ruleWith("REQUIRE_APPROVAL", "match: {}, approval: { ttl_seconds: 60 }"), "86401 } }", "/rules/0/approval/ttl_seconds", "between 1 and 86400"},
	{codeLimit, "negative rows", ruleWith("REQUIRE_APPROVAL", "match: {}, approval: { max_rows: -1 }"), ruleWith("REQUIRE_APPROVAL", "match: {}, approval: { max_rows: 0 }"), "-1 } }", "/rules/0/approval/max_rows", "between 0"},
	{codeLimit, "message", ruleWith("BLOCK", "match: {}, message: "+strings.Repeat("ä", 501)), ruleWith("BLOCK", "match: {}, message: "+strings.Repeat("ä", 500)), "ääääääääääää", "/rules/0/message", "at most 500"},
	{codeLimit, "when", ruleWith("BLOCK", "match: {}, when: 'actor == \""+strings.Repeat("x", 2048)+"\"'"), ruleWith("BLOCK", "match: {}, when: 'actor == \"x\"'"), `actor == "xx`, "/rules/0/when", "at most 2048"},
	{codeAnchor, "anchor", ruleWith("BLOCK", "match: { class: &c [ddl] }"), ruleWith("BLOCK", "match: { class: [ddl] }"), "&c [ddl] } }", "/rules/0/match/class", "anchor"},
	{codeAnchor, "alias", ruleWith("BLOCK", "match: { class: &c [ddl] }, unless: { class: *c }"), ruleWith("BLOCK", "match: { class: [ddl] }, unless: { env: [prod], class: [ddl] }"), "&c [ddl] }, ", "/rules/0/match/class", "anchor"},
	{codeAnchor, "tag", ruleWith("BLOCK", "match: {}, message: !!str 7"), ruleWith("BLOCK", `match: {}, message: "7"`), "!!str 7 }", "/rules/0/message", "tag"},
	{codeAnchor, "merge", ruleWith("BLOCK", "match: { <<: { class: [ddl] } }"), ruleWith("BLOCK", "match: { class: [ddl] }"), "<<: { class:", "/rules/0/match/<<", "merge key"},
	{codeUnknownList, "near", rulesOf("  - { id: r, decision: BLOCK, reason_code: r_r, match: { tables_written: [$mony] } }\n") + "lists: { money: [a.b] }\n", rulesOf("  - { id: r, decision: BLOCK, reason_code: r_r, match: { tables_written: [$money] } }\n") + "lists: { money: [a.b] }\n", "$mony] } }", "/rules/0/match/tables_written/0", "$money"},
	{codeUnknownList, "itself", rulesOf(plainRule) + "lists: { a: [$b], b: [$a] }\n", rulesOf(plainRule) + "lists: { a: [$b], b: [c.d] }\n", "$a] }", "/lists/b/0", "holds itself"},
	{codeApprovalBlock, "approval", ruleWith("BLOCK", "match: {}, approval: { ttl_seconds: 60 }"), ruleWith("REQUIRE_APPROVAL", "match: {}, approval: { ttl_seconds: 60 }"), "{ ttl_second", "/rules/0/approval", "only REQUIRE_APPROVAL"},
	{codeApprovalBlock, "dry_run", ruleWith("BLOCK", "match: {}, dry_run: allow"), ruleWith("REQUIRE_APPROVAL", "match: {}, dry_run: allow"), "allow }", "/rules/0/dry_run", "dry_run stands in a BLOCK rule"},
	{codeApprovalBlock, "lifts", ruleWith("BLOCK", "match: {}, lifts: [opaque_code]"), ruleWith("REQUIRE_APPROVAL", "match: {}, lifts: [opaque_code]"), "[opaque_code", "/rules/0/lifts", "only ALLOW and REQUIRE_APPROVAL"},
	{codeFactsVersion, "newer", strings.Replace(rulesOf(plainRule), "facts/v1", "facts/v2", 1), rulesOf(plainRule), "facts/v2", "/facts", "facts/v1"},

	{codeCELCompile, "syntax", ruleWith("BLOCK", `match: {}, when: "actor =="`), ruleWith("BLOCK", `match: {}, when: "actor == role"`), `" }`, "/rules/0/when", "Syntax error"},
	{codeCELCompile, "unknown fact", ruleWith("BLOCK", `match: {}, when: "actr == role"`), ruleWith("BLOCK", `match: {}, when: "actor == role"`), "actr == role", "/rules/0/when", "actor"},
	{codeCELCompile, "types", ruleWith("BLOCK", `match: {}, when: "actor == 1"`), ruleWith("BLOCK", `match: {}, when: "size(actor) == 1"`), `== 1" }`, "/rules/0/when", "does not go with (string, int)"},
	{codeCELCompile, "not bool", ruleWith("BLOCK", `match: {}, when: "actor"`), ruleWith("BLOCK", `match: {}, when: "approved"`), `actor" }`, "/rules/0/when", "not bool"},
	{codeCELCompile, "bad pattern", ruleWith("BLOCK", `match: {}, when: "actor.matches('(')"`), ruleWith("BLOCK", `match: {}, when: "actor.matches('()')"`), `'(')" }`, "/rules/0/when", "matches"},
	{codeCELCompile, "empty", ruleWith("BLOCK", `match: {}, when: " "`), ruleWith("BLOCK", "match: {}"), `" " }`, "/rules/0/when", "leave the key out"},
	{codeNeverMatches, "constant", ruleWith("BLOCK", "match: {}, when: 1 > 2"), ruleWith("BLOCK", "match: {}, when: 1 < 2"), "1 > 2 }", "/rules/0/when", "false whatever"},
	{codeNeverMatches, "constant part", ruleWith("BLOCK", "match: {}, when: approved && false"), ruleWith("BLOCK", "match: {}, when: approved || false"), "approved && ", "/rules/0/when", "false whatever"},
	{codeNeverMatches, "empty list", ruleWith("BLOCK", "match: { tables_written: [] }"), ruleWith("BLOCK", "match: { tables_written_only: [] }"), "[] } }", "/rules/0/match/tables_written", "tables_written_only: []"},
	{codeNeverMatches, "empty named list", rulesOf("  - { id: r, decision: BLOCK, reason_code: r_r, match: { app: [$a] } }\n") + "lists: { a: [] }\n", rulesOf("  - { id: r, decision: BLOCK, reason_code: r_r, match: { app: [$a] } }\n") + "lists: { a: [x] }\n", "[$a] } }", "/rules/0/match/app", "empty list"},
	{codeNeverMatches, "empty exception", ruleWith("BLOCK", "match: {}, unless: {}"), ruleWith("BLOCK", "match: {}, unless: { any_of: [] }"), "{} }", "/rules/0/unless", "asks for nothing"},
	{codeNeverMatches, "empty group of an exception", ruleWith("BLOCK", "match: {}, unless: { any_of: [ { env: [prod] }, {} ] }"), ruleWith("BLOCK", "match: {}, unless: { app: [x], any_of: [ {} ] }"), "{ any_of: [ ", "/rules/0/unless", "asks for nothing"},
	{codeNeverMatches, "no group", ruleWith("BLOCK", "match: { any_of: [] }"), ruleWith("BLOCK", "match: { any_of: [ { env: [prod] } ] }"), "[] } }", "/rules/0/match/any_of", "never matches"},
	{codeCELCost, "cost", ruleWith("BLOCK", `match: {}, when: "tables_read.exists(a, a in functions)"`), ruleWith("BLOCK", `match: {}, when: "tables_read.exists(a, a == actor)"`), "tables_read.", "/rules/0/when", "at most 10000"},
	{codeCELCost, "nesting", ruleWith("BLOCK", `match: {}, when: "flags.exists(a, flags.exists(b, a == b))"`), ruleWith("BLOCK", `match: {}, when: "flags.exists(a, a == 'cte')"`), "(b, a == b))", "/rules/0/when", "nesting limit"},
	{codeCELCost, "a pattern of few characters and many steps", ruleWith("BLOCK", `match: {}, when: "actor.matches('(?:.?.?){240}Q1$')"`), ruleWith("BLOCK", `match: {}, when: "actor.matches('^(svc|bot)-[a-z0-9]{1,40}$')"`), `actor.matche`, "/rules/0/when", "begin the patterns"},
	{codeCELCost, "a pattern on texts put together", ruleWith("BLOCK", `match: {}, when: "(actor + app + tenant + role + host + actor + app).matches('(a|b){1,20}x')"`), ruleWith("BLOCK", `match: {}, when: "actor.matches('(a|b){1,20}x')"`), `(actor + app`, "/rules/0/when", "begin the patterns"},
	{codeCELCost, "a pattern on every table", ruleWith("BLOCK", `match: {}, when: "tables_read.exists(t, t.matches('[.](ssn|iban|card_.*)$'))"`), ruleWith("BLOCK", `match: {}, when: "tables_read.exists(t, t.matches('^(billing|ledger)[.]inv'))"`), `tables_read.`, "/rules/0/when", "begin the patterns"},
	{codeCELCost, "program", ruleWith("BLOCK", `match: {}, when: "actor.matches('(a{1,100}){1,9}')"`), ruleWith("BLOCK", `match: {}, when: "actor.matches('a{1,100}')"`), "'(a{1,100}){", "/rules/0/when", "program size"},
	{codeCELForbidden, "map", ruleWith("BLOCK", `match: {}, when: "actor in {'a': 1}"`), ruleWith("BLOCK", `match: {}, when: "actor in ['a']"`), `{'a': 1}" }`, "/rules/0/when", "map"},
	{codeCELForbidden, "double", ruleWith("BLOCK", `match: {}, when: "1.5 > 1.0 || approved"`), ruleWith("BLOCK", `match: {}, when: "2 > 1 || approved"`), "1.5 > 1.0 ||", "/rules/0/when", "double"},
	{codeCELForbidden, "function", ruleWith("BLOCK", `match: {}, when: "flags.map(f, f) == flags"`), ruleWith("BLOCK", `match: {}, when: "flags.filter(f, f == 'cte') == flags"`), "(f, f) == fl", "/rules/0/when", "not on the list"},
	{codeCELForbidden, "multiplication", ruleWith("BLOCK", `match: {}, when: "size(flags) * 2 > 4"`), ruleWith("BLOCK", `match: {}, when: "size(flags) + 2 > 4"`), `* 2 > 4" }`, "/rules/0/when", "not on the list"},
	{codeCELForbidden, "field", ruleWith("BLOCK", `match: {}, when: "actor.name == 'x'"`), ruleWith("BLOCK", `match: {}, when: "actor == 'x'"`), ".name == 'x'", "/rules/0/when", "no fields"},
	{codeCELMayError, "index", ruleWith("BLOCK", `match: {}, when: "flags[0] == 'cte'"`), ruleWith("BLOCK", `match: {}, when: "'cte' in flags"`), "[0] == 'cte'", "/rules/0/when", "an index"},
	{codeCELMayError, "division", ruleWith("BLOCK", `match: {}, when: "1 / size(flags) == 1"`), ruleWith("BLOCK", `match: {}, when: "size(flags) == 1"`), "/ size(flags", "/rules/0/when", "a division"},
	{codeCELMayError, "conversion", ruleWith("BLOCK", `match: {}, when: "int(actor) == 1"`), ruleWith("BLOCK", `match: {}, when: "actor == '1'"`), "(actor) == 1", "/rules/0/when", "a conversion"},
	{codeCELMayError, "time", ruleWith("BLOCK", `match: {}, when: "timestamp(actor) > timestamp(role)"`), ruleWith("BLOCK", `match: {}, when: "actor > role"`), "(actor) > ti", "/rules/0/when", "a conversion"},
	{codeCELMayError, "pattern", ruleWith("BLOCK", `match: {}, when: "actor.matches(role)"`), ruleWith("BLOCK", `match: {}, when: "actor.matches('a')"`), `(role)" }`, "/rules/0/when", "not a literal"},

	{codeAllowTooBroad, "everything", ruleWith("ALLOW", "match: {}"), ruleWith("ALLOW", "match: { class: [write] }"), "{} }", "/rules/0/match", "of every kind"},
	{codeAllowTooBroad, "ddl by class", ruleWith("ALLOW", "match: { class: [write, ddl] }"), ruleWith("ALLOW", "match: { class: [write, ddl], query_types_only: [INSERT] }"), "{ class: [wr", "/rules/0/match", "ddl or dcl"},
	{codeAllowTooBroad, "dcl by type", ruleWith("ALLOW", "match: { query_types_only: [GRANT] }"), ruleWith("ALLOW", "match: { query_types_only: [INSERT] }"), "{ query_type", "/rules/0/match", "ddl or dcl"},
	{codeAllowTooBroad, "tables alone", ruleWith("ALLOW", "match: { tables_written_only: [a.b] }"), ruleWith("ALLOW", "match: { tables_written_only: [a.b], class: [write] }"), "{ tables_wri", "/rules/0/match", "ddl or dcl"},
	{codeAllowTooBroad, "one alternative", ruleWith("ALLOW", "match: { any_of: [ { class: [write] }, { app: [a] } ] }"), ruleWith("ALLOW", "match: { class: [write], any_of: [ { role: [x] }, { app: [a] } ] }"), "{ any_of: [ ", "/rules/0/match", "of every kind"},
	{codeAllowTooBroad, "reads are narrow", ruleWith("ALLOW", "match: { safe_read: false }"), ruleWith("ALLOW", "match: { safe_read: true, tables_read_only: [a.b] }"), "{ safe_read:", "/rules/0/match", "of every kind"},
	{codeTTLLong, "over an hour", ruleWith("REQUIRE_APPROVAL", "match: {}, approval: { ttl_seconds: 3601 }"), ruleWith("REQUIRE_APPROVAL", "match: {}, approval: { ttl_seconds: 3600 }"), "{ ttl_second", "/rules/0/approval/ttl_seconds", "3601 seconds"},
	{codeConfusable, "mixed scripts", ruleWith("BLOCK", "match: { app: [аdmin] }"), ruleWith("BLOCK", "match: { app: [admin, админ] }"), "аdmin] } }", "/rules/0/match/app/0", "mixes Latin"},
	{codeConfusable, "direction", ruleWith("BLOCK", "match: {}, message: \"a\\u202eb\""), ruleWith("BLOCK", "match: {}, message: \"a b\""), `"a\u202eb" }`, "/rules/0/message", "direction"},
	{codeConfusable, "invisible in a list", rulesOf(plainRule) + "lists: { a: [\"x\\u200by\"] }\n", rulesOf(plainRule) + "lists: { a: [xy] }\n", `"x\u200by"] `, "/lists/a/0", "invisible"},
	{codeAllowAny, "query_type", ruleWith("ALLOW", "match: { query_type: [SELECT], class: [read] }"), ruleWith("ALLOW", "match: { query_types_only: [SELECT], class: [read] }"), "query_type: ", "/rules/0/match/query_type", "query_types_only"},
	{codeAllowAny, "plain list", ruleWith("ALLOW", "match: { class: [write], tables_written: [a.b] }"), ruleWith("ALLOW", "match: { class: [write], tables_written_only: [a.b] }"), "tables_writt", "/rules/0/match/tables_written", "tables_written_only"},
	{codeAllowAny, "in any_of", ruleWith("ALLOW", "match: { class: [write], any_of: [ { where: [present] } ] }"), ruleWith("ALLOW", "match: { class: [write], any_of: [ { where_only: [present] } ] }"), "where: [pres", "/rules/0/match/any_of/0/where", "where_only"},
	{codeExceptAny, "plain list", ruleWith("BLOCK", "match: { query_types: [DELETE] }, unless: { tables_written: [a.b] }"), ruleWith("BLOCK", "match: { query_types: [DELETE] }, unless: { tables_written_only: [a.b] }"), "tables_writt", "/rules/0/unless/tables_written", "tables_written_only"},
	{codeExceptAny, "query_type", ruleWith("REQUIRE_APPROVAL", "match: { class: [write] }, unless: { query_type: [SELECT] }"), ruleWith("REQUIRE_APPROVAL", "match: { class: [write] }, unless: { query_types_only: [SELECT] }"), "query_type: ", "/rules/0/unless/query_type", "query_types_only"},
	{codeExceptAny, "of an ALLOW", ruleWith("ALLOW", "match: { class: [write] }, unless: { tables_written_only: [a.b] }"), ruleWith("ALLOW", "match: { class: [write] }, unless: { tables_written: [a.b], query_type: [MERGE] }"), "tables_writt", "/rules/0/unless/tables_written_only", "stays allowed"},
	{codeExceptAny, "in any_of", ruleWith("BLOCK", "match: {}, unless: { any_of: [ { functions: [now] } ] }"), ruleWith("BLOCK", "match: {}, unless: { any_of: [ { functions_only: [now] } ] }"), "functions: [", "/rules/0/unless/any_of/0/functions", "functions_only"},
	{codeRestsOnClaim, "allow", ruleWith("ALLOW", "match: { app: [shop] }"), ruleWith("ALLOW", "match: { app: [shop], class: [write] }"), "{ app: [shop", "/rules/0/match", "any client can claim"},
	{codeRestsOnClaim, "allow with a condition on claims", ruleWith("ALLOW", `match: { app: [shop] }, when: "role == 'x'"`), ruleWith("ALLOW", `match: { app: [shop] }, when: "agent_id == 'x'"`), "{ app: [shop", "/rules/0/match", "any client can claim"},
	{codeRestsOnClaim, "unless", ruleWith("BLOCK", "match: {}, unless: { role: [dba] }"), ruleWith("BLOCK", "match: {}, unless: { role: [dba], tls_subject: [x] }"), "{ role: [dba", "/rules/0/unless", "verified"},
	{codeRestsOnClaim, "a session's name", ruleWith("BLOCK", "match: {}, unless: { session_id: [s] }"), ruleWith("BLOCK", "match: {}, unless: { session_id: [s], tls_subject: [x] }"), "{ session_id", "/rules/0/unless", "verified"},
	{codeRestsOnShape, "allow", ruleWith("ALLOW", "match: { class: [write], fingerprint: ['1'] }"), ruleWith("ALLOW", "match: { class: [write], fingerprint: ['1'], tables_written_only: [a.b], where_only: [key_equality] }"), "{ class: [wr", "/rules/0/match", "other tables"},
	{codeRestsOnShape, "allow of reads", ruleWith("ALLOW", "match: { class: [read], fingerprint: ['1'] }"), ruleWith("ALLOW", "match: { class: [read], fingerprint: ['1'], tables_read_only: [a.b] }"), "{ class: [re", "/rules/0/match", "other tables"},
	{codeRestsOnShape, "one alternative", ruleWith("ALLOW", "match: { class: [write], where_only: [present], any_of: [ { tables_written_only: [a.b] }, { fingerprint: ['1'] } ] }"), ruleWith("ALLOW", "match: { class: [write], where_only: [present], tables_written_only: [a.b], any_of: [ { app: [a] }, { fingerprint: ['1'] } ] }"), "{ class: [wr", "/rules/0/match", "other tables"},
	{codeRestsOnShape, "a condition", ruleWith("ALLOW", `match: { class: [write] }, when: "fingerprint == '1'"`), ruleWith("BLOCK", `match: { class: [write] }, when: "fingerprint == '1'"`), "{ class: [wr", "/rules/0/match", "other tables"},
	{codeRestsOnShape, "unless", ruleWith("BLOCK", "match: {}, unless: { fingerprint: ['1'] }"), ruleWith("ALLOW", "match: { class: [write] }, unless: { fingerprint: ['1'] }"), "{ fingerprin", "/rules/0/unless", "lets through"},
	{codeConditionAny, "in", ruleWith("ALLOW", `match: { class: [write] }, when: "'a.b' in tables_written"`), ruleWith("ALLOW", `match: { class: [write] }, when: "!('a.b' in tables_written)"`), "{ class: [wr", "/rules/0/match", "any of tables_written"},
	{codeConditionAny, "exists", ruleWith("ALLOW", `match: { class: [write] }, when: "approved || tables_written.exists(t, t == 'a.b')"`), ruleWith("ALLOW", `match: { class: [write] }, when: "approved || tables_written.all(t, t == 'a.b')"`), "{ class: [wr", "/rules/0/match", "any of tables_written"},
	{codeConditionAny, "not all", ruleWith("ALLOW", `match: { class: [write] }, when: "!functions.all(f, f != 'now')"`), ruleWith("ALLOW", `match: { class: [write] }, when: "!functions.exists(f, f != 'now')"`), "{ class: [wr", "/rules/0/match", "any of functions"},
	{codeConditionAny, "one of them, and a part", ruleWith("ALLOW", `match: { class: [write] }, when: "functions.exists_one(f, f == 'now') && size(where.filter(w, w == 'present')) == 1"`), ruleWith("ALLOW", `match: { class: [write] }, when: "functions == ['now']"`), "{ class: [wr", "/rules/0/match", "functions, where"},
	{codeConditionAny, "a list around it", ruleWith("ALLOW", `match: { class: [write] }, when: "[query_type] == ['INSERT']"`), ruleWith("ALLOW", `match: { class: [write] }, when: "tables_written == ['a.b']"`), "{ class: [wr", "/rules/0/match", "any of query_type"},
	{codeConditionAny, "compared with false", ruleWith("ALLOW", `match: { class: [write] }, when: "('a.b' in tables_written) != false"`), ruleWith("ALLOW", `match: { class: [write] }, when: "agent_tools_verified != false"`), "{ class: [wr", "/rules/0/match", "any of tables_written"},
	{codeConditionAny, "a sum of lists", ruleWith("ALLOW", `match: { class: [write] }, when: "(tables_written + []).exists(t, t == 'a.b')"`), ruleWith("ALLOW", `match: { class: [write] }, when: "(tables_written + []).all(t, t == 'a.b')"`), "{ class: [wr", "/rules/0/match", "any of tables_written"},
	{codeConditionAny, "the root", ruleWith("ALLOW", `match: { class: [write] }, when: "query_type == 'UPDATE'"`), ruleWith("ALLOW", `match: { class: [write] }, when: "query_type != 'UPDATE'"`), "{ class: [wr", "/rules/0/match", "any of query_type"},
	{codeRestsOnClaim, "lifts", ruleWith("REQUIRE_APPROVAL", "match: { query_types_only: [DO], role: [dba] }, lifts: [opaque_code]"), ruleWith("REQUIRE_APPROVAL", "match: { query_types_only: [DO], role: [dba], tls_subject: [x] }, lifts: [opaque_code]"), "[opaque_code", "/rules/0/lifts", "verified"},
	{codeFloorLifted, "named", ruleWith("REQUIRE_APPROVAL", "match: { query_types_only: [DO] }, lifts: [opaque_code]"), ruleWith("REQUIRE_APPROVAL", "match: { query_types_only: [DO] }"), "[opaque_code", "/rules/0/lifts/0", "opaque_code"},
}

func TestFindings(t *testing.T) {
	for _, c := range findingCases {
		t.Run(fmt.Sprintf("%s %s", c.code, c.name), func(t *testing.T) {
			p, report := Load([]byte(c.bad), Options{})
			found := withCode(report, c.code)
			require.NotEmpty(t, found, "%v", all(report))
			f := found[0]
			require.Equal(t, catalogue[c.code].severity, f.Severity)
			require.Equal(t, catalogue[c.code].name, f.Name)
			require.Contains(t, f.Message+" "+f.Suggestion, c.tells)
			require.Equal(t, c.pointer, f.Pointer)
			require.Equal(t, c.at, standing(c.bad, f))
			require.Equal(t, f.Severity != SeverityError, report.Valid)
			require.Equal(t, report.Valid, p != nil)

			p, report = Load([]byte(c.good), Options{})
			require.Empty(t, withCode(report, c.code))
			require.NoError(t, report.Err(), "the near document has no other error either")
			require.NotNil(t, p)
		})
	}
}

// standing is the text at the place of a finding, as far as a reader needs to
// recognise it.
func standing(document string, f Finding) string {
	if f.Line == 0 {
		return ""
	}
	line := []rune(strings.Split(document, "\n")[f.Line-1])
	return string(line[f.Column-1 : min(f.Column+11, len(line))])
}

func TestFindingsAboutTheFileAndItsVersion(t *testing.T) {
	document := []byte(rulesOf(plainRule))
	_, report := Load(document, Options{FileName: "policies/p@1.0.1.yaml"})
	require.Len(t, withCode(report, codeFilename), 1)
	require.Equal(t, "p@1.0.0.yaml", report.Findings[0].Suggestion)
	_, report = Load(document, Options{FileName: "policies/p@1.0.0.yaml"})
	require.True(t, report.Valid)

	_, report = Load(document, Options{Known: map[string]string{"p@1.0.0": Digest([]byte("other"))}})
	require.Len(t, withCode(report, codeVersionExists), 1)
	_, report = Load(document, Options{Known: map[string]string{"p@1.0.0": "sha256:" + Digest(document), "p@0.9.0": "x"}})
	require.True(t, report.Valid)
}

func TestEveryFindingOfThisPackageIsTested(t *testing.T) {
	tested := map[string]bool{
		codeFilename: true, codeVersionExists: true, // above
		codeTestFailed: true, codeNoTests: true, codeNotCovered: true, codeNeverDecisive: true, // run_test.go
		codeIntegrity: true, codeFileSet: true, codeCorpusChanged: true, // of the folder
	}
	for _, c := range findingCases {
		tested[c.code] = true
	}
	for code := range catalogue {
		require.True(t, tested[code], code)
	}
}

func TestAllFindingsAreReportedAtOnce(t *testing.T) {
	_, report := Load([]byte(head+"color: red\nrules:\n"+
		"  - { id: Bad, decision: NEVER, reason_code: x, match: { clas: [ddl] }, when: actr }\n"+
		"  - { decision: ALLOW, reason_code: r_r, match: { tables_written: [orders] } }\n"), Options{})
	var codes []string
	for _, f := range report.Findings {
		codes = append(codes, f.Code)
	}
	require.Equal(t, []string{codeUnknownField, codeBadName, codeUnknownEnum, codeReasonCode, codeUnknownField, codeCELCompile,
		codeMissingField, codeAllowAny, codeTypeMismatch}, codes)
	require.Equal(t, report.Counts.Error, len(codes))
	require.Equal(t, "p@1.0.0", report.PolicyVersion, "the version is known even so")
	require.ErrorContains(t, report.Err(), "8:51")
}

func TestPlacesInsideConditions(t *testing.T) {
	for _, c := range []struct {
		name, when   string
		line, column int
	}{
		{"plain", "    when: actor == actr\n", 10, 20},
		{"quoted", "    when: 'actor == actr'\n", 10, 21},
		{"block", "    when: |\n      actor == role &&\n        actor == actr\n", 12, 18},
		{"folded stays at its start", "    when: >\n      actor == role &&\n      actor == actr\n", 10, 11},
		{"escaped stays at its start", "    when: \"actor == \\\"x\\\" || actr\"\n", 10, 11},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, report := Load([]byte(head+"rules:\n  - id: r\n    decision: BLOCK\n    reason_code: r_r\n    match: {}\n"+c.when), Options{})
			require.Len(t, report.Findings, 1)
			require.Equal(t, fmt.Sprint(c.line, ":", c.column), fmt.Sprint(report.Findings[0].Line, ":", report.Findings[0].Column))
			require.Equal(t, "actor", report.Findings[0].Suggestion)
			require.Equal(t, "r", report.Findings[0].RuleID)
		})
	}
}

func TestJSONIsTakenAsTheYAMLItIs(t *testing.T) {
	p := load(t, `{"schema":"gate.policy/v1","name":"p","version":"1.0.0","facts":"facts/v1",
		"rules":[{"id":"r","decision":"BLOCK","reason_code":"r_r","match":{"tables_written":["a.*"],"approved":false}}]}`)
	require.Equal(t, Block, p.Decide(&update).Decision)
}

// heavy is a condition within every bound of one condition, whose patterns are large.
func heavy(mark string) string {
	var parts []string
	for i := range 8 {
		parts = append(parts, fmt.Sprintf(`actor.matches("^a{900}%s%d")`, mark, i))
	}
	return strings.Join(parts, " || ")
}

// What patterns take of the memory is bounded for the document: a rule may have many
// of them, and a document many rules.
func TestThePatternsOfADocumentAreBounded(t *testing.T) {
	document := func(n int) []byte {
		var rules strings.Builder
		for i := range n {
			fmt.Fprintf(&rules, "  - { id: r%d, decision: BLOCK, reason_code: r_r, match: {}, when: '%s' }\n", i, heavy(fmt.Sprint(i)))
		}
		return []byte(rulesOf(rules.String()))
	}
	_, few := Load(document(5), Options{})
	require.Empty(t, withCode(few, codeLimit))
	_, many := Load(document(400), Options{})
	found := withCode(many, codeLimit)
	require.Len(t, found, 1, "what follows is not compiled")
	require.Contains(t, found[0].Message, "at most 50000")
	require.Regexp(t, `^/rules/[0-9]{1,2}/when$`, found[0].Pointer)
}

// What the conditions of a document cost together is bounded: each may be within the
// bound of one, and a decision asks them all.
func TestTheConditionsOfADocumentAreBoundedTogether(t *testing.T) {
	document := func(n int, when string) []byte {
		var rules strings.Builder
		for i := range n {
			fmt.Fprintf(&rules, "  - { id: r%d, decision: BLOCK, reason_code: r_r, match: {}, when: '%s' }\n", i, when)
		}
		return []byte(rulesOf(rules.String()))
	}
	worst := `actor.matches("(?:.?.?){80}Q1$")`
	_, few := Load(document(30, worst), Options{})
	require.Empty(t, withCode(few, codeCELCost))
	p, many := Load(document(100, worst), Options{})
	require.Nil(t, p)
	found := withCode(many, codeCELCost)
	require.Len(t, found, 1)
	require.Contains(t, found[0].Message, "at most 300000")

	for _, ordinary := range []string{
		`agent_id != "" && (query_types.exists(q, q != "INSERT") || !agent_tools_verified)`, `actor.matches("^(svc|bot)-[a-z0-9]{1,40}$")`,
		`actor.matches("(?i)admin|root") && env == "prod"`, `tls_subject.matches("^CN=(migrator|deploy)-[0-9]+,O=core$")`, `size(tables_written) > 3`,
		`flags.exists(f, f == "cascade") || risk_signals.exists(s, s.startsWith("destructive"))`,
	} {
		_, report := Load(document(200, ordinary), Options{})
		require.NoError(t, report.Err(), ordinary)
	}
	for _, ordinary := range []string{`tables_written.exists(t, t.startsWith("billing."))`, `tables_written.exists(t, t.matches("^billing[.]"))`, `tables_read.all(t, t.matches("^(app|public)[.]") || t == "a.b")`} {
		_, report := Load(document(25, ordinary), Options{})
		require.NoError(t, report.Err(), ordinary)
	}
}

// The bound of a pattern is of the steps that package regexp makes at the places of a
// text: no text makes it do more of them, and where a match can only begin with the
// text they are far fewer.
func TestAPatternCostsItsStepsAtThePlacesOfTheText(t *testing.T) {
	cost := func(pattern string, chars uint64) uint64 {
		tree, err := syntax.Parse(pattern, syntax.Perl)
		require.NoError(t, err)
		return newPatternProgram(tree).cost(chars)
	}
	require.Greater(t, cost("(?:.?.?){240}Q1", 200), uint64(960*200/pairsPerUnit))
	require.Equal(t, cost("^(?:.?.?){240}Q1", 200), cost(`\A(?:.?.?){240}Q1`, 200))
	require.Greater(t, cost("^(?:.?.?){240}Q1", 200), uint64(960*100/pairsPerUnit), "half of the steps and places can be reached together")
	require.Less(t, cost("^abc", 10_000)-cost("^abc", 1000), uint64(1000), "a place each, and the look for the text's beginning")
	require.Greater(t, cost("(^abc|^abd)", 1000), cost("^ab(c|d)", 1000), "nothing says where it begins")
	require.Less(t, cost("billing", 200), cost("billin[a-z]", 200), "found as a text")
	require.Greater(t, cost(".*x", 200), cost(".*x", 100))

	rapid.Check(t, func(t *rapid.T) {
		pattern := "^" + rapid.StringMatching(`([ab.][*+?]?|\([ab.]{1,2}\|[ab]\)[*?]|a\{1,4\}){1,6}\$?`).Draw(t, "pattern")
		text := rapid.StringMatching(`[abc]{0,12}`).Draw(t, "text")
		tree, err := syntax.Parse(pattern, syntax.Perl)
		require.NoError(t, err)
		p := newPatternProgram(tree)
		require.LessOrEqual(t, visited(p.program, text), p.reach(len(text)+1), pattern)
	})
}

// visited counts the steps and places that some way through the program comes to on a text.
func visited(program *syntax.Prog, text string) int {
	seen := map[[2]int]bool{}
	var walk func(step, place int)
	walk = func(step, place int) {
		if seen[[2]int{step, place}] {
			return
		}
		seen[[2]int{step, place}] = true
		in := &program.Inst[step]
		before, after := rune(-1), rune(-1)
		if place > 0 {
			before = rune(text[place-1])
		}
		if place < len(text) {
			after = rune(text[place])
		}
		switch in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			walk(int(in.Out), place)
			walk(int(in.Arg), place)
		case syntax.InstCapture, syntax.InstNop:
			walk(int(in.Out), place)
		case syntax.InstEmptyWidth:
			if in.MatchEmptyWidth(before, after) {
				walk(int(in.Out), place)
			}
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			if after >= 0 && in.MatchRune(after) {
				walk(int(in.Out), place+1)
			}
		}
	}
	walk(program.Start, 0)
	return len(seen)
}
