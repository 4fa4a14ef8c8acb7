package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What two general parsers say is not enough for a person; these are the
// mistakes that people make and what they are told to try.
func TestMistakesOfEveryDayAreMendedByWhatTheFindingSays(t *testing.T) {
	when := func(text string) string {
		return rulesOf("  - id: r\n    decision: BLOCK\n    reason_code: r_r\n    match: {}\n    when: |\n      " + text + "\n")
	}
	for _, c := range []struct{ name, document, code, try string }{
		{"a tab", head + "rules:\n\t- id: r\n", codeYAMLInvalid, "blanks: YAML takes no tab"},
		{"a star without quotes", ruleWith("BLOCK", "match: { tables_written: *.orders }"), codeYAMLInvalid, `"*.orders": a pattern`},
		{"a star in a list", ruleWith("BLOCK", "match: { app: [*-agent] }"), codeYAMLInvalid, `"*-agent": a pattern`},
		{"a colon in a text", rulesOf("  - id: r\n    message: No: never\n"), codeYAMLInvalid, `message: "No: never"`},
		{"an open bracket", head + "rules:\n  - { id: r, match: { app: [a }\n", codeYAMLInvalid, "close the bracket"},
		{"a key too far left", rulesOf("  - id: r\n   decision: BLOCK\n"), codeYAMLInvalid, "indentation"},
		{"one equals sign", when(`role = "dba"`), codeCELCompile, "== instead of ="},
		{"and", when(`agent_id == "" and role == "x"`), codeCELCompile, "&& instead of and"},
		{"OR", when(`agent_id == "" OR role == "x"`), codeCELCompile, "|| instead of OR"},
		{"not", when(`not approved`), codeCELCompile, "! instead of not"},
		{"is", when(`role is "dba"`), codeCELCompile, "== instead of is"},
		{"a text without quotes", when(`role == dba`), codeCELCompile, `"dba": a text needs quotes`},
		{"an open list", when(`role in ["a", "b"`), codeCELCompile, "close what is open"},
		{"a list compared", when(`tables_written == "public.orders"`), codeCELCompile, `"..." in the_list`},
		{"a list that contains", when(`query_types.contains("DELETE")`), codeCELCompile, `"..." in the_list`},
		{"in a text", when(`"x" in role`), codeCELCompile, `"..." == fact`},
		{"a number for a text", when(`actor == 1`), codeCELCompile, "one type"},
		{"a text for a bool", when(`approved == "true"`), codeCELCompile, "true or false without quotes"},
		{"null", when(`role != null`), codeCELCompile, `compare with ""`},
		{"len", when(`len(tables_written) > 1`), codeCELForbidden, "size"},
		{"startswith", when(`app.startswith("a")`), codeCELForbidden, "startsWith"},
		{"an underscore in a name", rulesOf("  - { id: no_writes, decision: BLOCK, reason_code: r_r, match: {} }\n"), codeBadName, "no-writes"},
		{"a hyphen in a reason code", rulesOf("  - { id: r, decision: BLOCK, reason_code: No-Writes, match: {} }\n"), codeReasonCode, "no_writes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, report := Load([]byte(c.document), Options{})
			found := withCode(report, c.code)
			require.NotEmpty(t, found, "%v", report.Findings)
			require.Contains(t, found[0].Suggestion, c.try, found[0].Message)
			require.NotContains(t, found[0].Message, "_==_")
		})
	}
}

// A hint is words; it must not fall over on what a stranger sends.
func TestHintsTakeAnyPlace(t *testing.T) {
	for _, line := range []int{-1, 0, 1, 2, 99} {
		require.NotPanics(t, func() {
			yamlHint([]string{"a", "\tb"}, line, "x")
			yamlHint(nil, line, "did not find expected key")
			factsDialect.celHint("a and b", "Syntax error", line, line*7)
		})
	}
}
