package policy_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policy"
)

// page is docs/POLICY.md.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/POLICY.md")
	require.NoError(t, err)
	return string(text)
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// Every block is a whole document or corpus; all tests of it pass, and there is
// nothing to warn of but what the text speaks about.
func TestEveryPolicyOfThePageIsValidAndItsTestsPass(t *testing.T) {
	classify := classifier(t)
	var latest *policy.Policy
	documents := 0
	for _, block := range yamlBlock.FindAllStringSubmatch(page(t), -1) {
		text := block[1]
		if strings.HasPrefix(text, "schema: "+policy.CorpusVersion) {
			cases, findings := policy.ParseCorpus([]byte(text))
			require.Empty(t, findings)
			require.Empty(t, policy.RunCases(latest, cases, classify).Failed)
			continue
		}
		p, report := policy.Validate([]byte(text), policy.Options{}, nil, classify)
		require.NoError(t, report.Err(), text)
		for _, w := range report.Warnings {
			require.Equal(t, "PV224", w.Code, "%s\n%s", w.String(), text)
		}
		latest = p
		documents++
	}
	require.GreaterOrEqual(t, documents, 5)
}

func TestThePageListsEveryFact(t *testing.T) {
	_, facts, ok := strings.Cut(page(t), "## Which facts there are")
	require.True(t, ok)
	facts, _, _ = strings.Cut(facts, "\n## ")
	for _, name := range policy.FactNames() {
		require.Contains(t, facts, "`"+name+"`")
	}
}

var findingRow = regexp.MustCompile("(?m)^\\| (PV\\d+) \\| `([a-z_]+)` \\| (error|warning|info) \\| .* \\| (.+) \\|$")

// toldInWords are findings about files, or about more than fits a cell; their
// examples are words.
var toldInWords = []string{"PV107", "PV108", "PV109", "PV302", "PV304", "PV401", "PV402", "PV403"}

func TestThePageExplainsEveryFindingWithAnExampleThatRaisesIt(t *testing.T) {
	_, table, ok := strings.Cut(page(t), "<!-- findings: held by a test -->")
	require.True(t, ok)
	classify := classifier(t)
	catalogue := policy.Catalogue()
	for _, row := range findingRow.FindAllStringSubmatch(table, -1) {
		code, name, severity, example := row[1], row[2], row[3], row[4]
		require.Equal(t, catalogue[code], [2]string{name, severity}, code)
		delete(catalogue, code)
		if slices.Contains(toldInWords, code) {
			continue
		}
		document := withExample(t, strings.Trim(example, "`"))
		_, report := policy.Validate([]byte(document), policy.Options{}, nil, classify)
		raised := slices.ContainsFunc(slices.Concat(report.Findings, report.Warnings), func(f policy.Finding) bool { return f.Code == code })
		require.True(t, raised, "%s is not raised by\n%s\nbut %v %v", code, document, report.Findings, report.Warnings)
	}
	require.Empty(t, catalogue, "the page does not explain these")
}

// soundRule are the keys that an example of a rule leaves out.
var soundRule = [][2]string{{"id", "r"}, {"decision", "BLOCK"}, {"reason_code", "r_r"}, {"match", "{ class: [ddl] }"}}

// soundTop are the lines that an example of the top level leaves out.
var soundTop = [][2]string{
	{"schema", policy.SchemaVersion}, {"name", "p"}, {"version", "1.0.0"}, {"facts", policy.FactsVersion},
	{"rules", "[{ id: r, decision: BLOCK, reason_code: r_r, match: { class: [ddl] } }]"},
}

// withExample makes a document of an example: a line of the top level, or keys
// of a rule.
func withExample(t *testing.T, example string) string {
	t.Helper()
	key, _, ok := strings.Cut(example, ":")
	require.True(t, ok, example)
	if slices.ContainsFunc(soundTop, func(f [2]string) bool { return f[0] == key }) || key == "tests" {
		return lines(soundTop, key) + example + "\n"
	}
	rule := example
	for _, f := range soundRule {
		if !regexp.MustCompile(`(^|, )` + f[0] + `: `).MatchString(example) {
			rule = f[0] + ": " + f[1] + ", " + rule
		}
	}
	return lines(soundTop, "rules") + fmt.Sprintf("rules:\n  - { %s }\n", rule)
}

func lines(fields [][2]string, without string) string {
	var b strings.Builder
	for _, f := range fields {
		if f[0] != without {
			fmt.Fprintf(&b, "%s: %s\n", f[0], f[1])
		}
	}
	return b.String()
}

// A sound document raises nothing, so that it is the example that does.
func TestTheFrameOfTheExamplesIsSound(t *testing.T) {
	for _, document := range []string{lines(soundTop, ""), withExample(t, "message: x")} {
		_, report := policy.Load([]byte(document), policy.Options{})
		require.Empty(t, report.Findings)
		require.Empty(t, report.Warnings)
	}
}
