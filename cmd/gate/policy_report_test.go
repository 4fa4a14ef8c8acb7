package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/cmd/terminal"
	"writegate/sqlgate/policy"
)

func printed(t *testing.T, document string, findings ...policy.Finding) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, (&app{}).printFindings(&out, &policyText{shown: "p.yaml", document: []byte(document)}, findings))
	return out.String()
}

func at(line, column int, code, message, suggestion string) policy.Finding {
	f := policy.NewFinding(code, "%s", message)
	f.Line, f.Column, f.Suggestion = line, column, suggestion
	return f
}

func TestAFindingIsShownWithItsLineAndAMarkUnderThePlace(t *testing.T) {
	got := printed(t, "one\nkey: välue\n",
		at(0, 0, "PV302", "no tests", ""), at(2, 6, "PV110", "knows no välue", "value"), at(1, 1, "PV103", "no key one", ""))
	require.Equal(t, `p.yaml:1:1: error PV103 unknown_field: no key one
    1 | one
        ^
p.yaml:2:6: error PV110 unknown_enum: knows no välue
    2 | key: välue
             ^
  try: value
p.yaml: warning PV302 no_tests: no tests
`, got)
}

// A document is what a stranger sent: what it holds must not reach a terminal
// where it could steer it, nor may a place outside of it be looked up.
func TestLinesThatAPersonShouldNotSeeAreLeftOut(t *testing.T) {
	for name, document := range map[string]string{
		"an escape":       "a: \x1b[2J",
		"a bell":          "a: \a",
		"a C1 control":    "a: \u009b2J",
		"a line too long": "a: " + strings.Repeat("x", 500),
		"nothing":         "",
	} {
		require.Equal(t, "p.yaml:1:4: error PV110 unknown_enum: m\n", printed(t, document, at(1, 4, "PV110", "m", "")), name)
	}
	for _, place := range [][2]int{{99, 1}, {1, 99}, {1, 0}, {-1, -1}} {
		require.Contains(t, printed(t, "a: b", at(place[0], place[1], "PV110", "m", "\x1b[2J")), "PV110")
	}
	require.Equal(t, `x⟨U+001B⟩[2Jy`, shown("x\x1b[2Jy"))
	require.Equal(t, `[a⟨U+000A⟩b]`, shown([]any{"a\nb"}))
}

func TestValuesAreShownAsAPersonReadsThem(t *testing.T) {
	for want, value := range map[string]any{
		"text": "text", "[a, b]": []string{"a", "b"}, "[a, true]": []any{"a", true}, "none": nil, "7": 7, "true": true,
		`a = "x", b = [y]`: map[string]any{"b": []any{"y"}, "a": "x"}, "as by default": map[string]any{"a": nil}, "nothing": map[string]any{},
	} {
		require.Equal(t, want, shown(value))
	}
}

func TestWhatAGateRefusesIsTakenApart(t *testing.T) {
	require.Equal(t, "  env must be prod\n  policy_version: p@1.0.0\n",
		detailLines(map[string]any{"policy_version": "p@1.0.0", "fields": map[string]any{"env": "must be prod"}, "status": nil, "findings": []any{}}))
	var out, errs bytes.Buffer
	a := &app{streams: streams{nil, &out, &errs}}
	refusal := &gateRefusal{Code: "policy_invalid", Message: "It is not valid.", Details: map[string]any{
		"findings": []any{map[string]any{"code": "PV110", "name": "unknown_enum", "severity": "error", "message": "m", "line": 1, "column": 1}}},
		raw: []byte(`{"error_code":"policy_invalid"}`)}
	var e *exitError
	require.ErrorAs(t, a.refused(refusal, false, &policyText{shown: "p.yaml", document: []byte("a")}), &e)
	require.Equal(t, exitFailed, e.code)
	require.Equal(t, "p.yaml:1:1: error PV110 unknown_enum: m\n    1 | a\n        ^\ngate: It is not valid. (policy_invalid)\n", errs.String())
	require.Empty(t, out.String())
	require.ErrorAs(t, a.refused(refusal, true, nil), &e)
	require.Equal(t, "{\"error_code\":\"policy_invalid\"}\n", out.String())
	require.ErrorContains(t, a.refused(errors.New("no gate"), false, nil), "no gate")
}

func TestATraceSaysWhyARuleDidNotMatch(t *testing.T) {
	for want, e := range map[string]policy.TraceEntry{
		"":                         {Outcome: policy.OutcomeMatched},
		"its unless holds":         {FailedAt: "unless"},
		"no group of any_of holds": {FailedAt: "match.any_of"},
		"where wants [none], has [present]": {FailedAt: "match.where", Checks: []policy.TraceCheck{
			{Key: "match.class", Want: []string{"write"}, Got: []string{"write"}, Pass: true},
			{Key: "match.where", Want: []string{"none"}, Got: []string{"present"}}}},
		`when: actor == "x" && approved, with actor = "y", approved = false`: {FailedAt: "when", Checks: []policy.TraceCheck{
			{Key: "when", Want: "actor == \"x\"\n  && approved", Got: map[string]any{"actor": "y", "approved": false}}}},
	} {
		require.Equal(t, want, why(&e))
	}
	style := terminal.Style{}
	for want, e := range map[string]policy.TraceEntry{
		"decides": {RuleID: "it", Outcome: policy.OutcomeMatched}, "matched": {RuleID: "r", Outcome: policy.OutcomeMatched, Mode: "enforce"},
		"observed": {RuleID: "r", Outcome: policy.OutcomeMatched, Mode: "observe"}, "no match": {RuleID: "r", Outcome: policy.OutcomeNotMatched},
		"lifted": {RuleID: "floor.opaque_code", Outcome: policy.OutcomeLifted}, "error": {RuleID: "r", Outcome: policy.OutcomeError},
	} {
		require.Equal(t, want, outcomeOf(style, &e, "it").Text)
	}
}

func TestAPersonIsAskedOnce(t *testing.T) {
	for answer, agrees := range map[string]bool{"y\n": true, "YES\n": true, "y": true, "n\n": false, "\n": false, "": false, "yesterday\n": false} {
		var errs bytes.Buffer
		a := &app{streams: streams{strings.NewReader(answer), nil, &errs}}
		require.Equal(t, agrees, a.confirmed("Really?", false) == nil, "%q", answer)
		require.Contains(t, errs.String(), "Really? [y/N]")
	}
	require.NoError(t, (&app{}).confirmed("Really?", true))
}
