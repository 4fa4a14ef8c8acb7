package classify

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// corpusLines reads a file of the corpus without its head line.
func corpusLines(t testing.TB, name string, head int) []string {
	t.Helper()
	data, err := os.ReadFile("../../fixtures/corpus/" + name)
	require.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")[head:]
}

// stricterVector is a vector that is a safe read by the corpus, and none since it is known that an
// XPath can end the server (TestNoXPathIsASafeRead).
const stricterVector = "SELECT * FROM xmltable('/r' PASSING '<r/>' COLUMNS a int) LIMIT 1"

func TestTheClassificationVectorsHold(t *testing.T) {
	tb := newTestTables(t, Config{SearchPath: "public"})
	lines := corpusLines(t, "classification_vectors.tsv", 1)
	require.Greater(t, len(lines), 90)
	for _, line := range lines {
		v := strings.Split(line, "\t")
		require.Len(t, v, 6, line)
		sql := strings.NewReplacer(`\x00`, "\x00", `\xff`, "\xff").Replace(v[0])
		t.Run(v[0], func(t *testing.T) {
			c, f := classifyText(tb, sql)
			if v[1] == "" {
				require.NotNil(t, f)
				require.Equal(t, v[5], string(f.Code))
				return
			}
			require.Nil(t, f)
			require.Equal(t, v[1], c.QueryType)
			if v[0] == stricterVector {
				require.Equal(t, []any{[]string{SignalDelayFunction}, false}, []any{c.RiskSignals, c.SafeRead})
				return
			}
			require.Equal(t, v[2], c.Class)
			require.Equal(t, v[3], strings.Join(c.RiskSignals, ","), "%+v", c.Signals)
			require.Equal(t, v[4], map[bool]string{true: "true", false: "false"}[c.SafeRead])
			require.Equal(t, v[5] == "ALLOW", c.SafeRead)
		})
	}
}
