package classify

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// neverSafe reads testdata/never_safe.sql: one statement a line, headings with #.
func neverSafe(t testing.TB) []string {
	data, err := os.ReadFile("testdata/never_safe.sql")
	require.NoError(t, err)
	var all []string
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") {
			all = append(all, strings.TrimSuffix(line, "\n"))
		}
	}
	require.Greater(t, len(all), 300)
	return all
}

// Statements that were thought of to be taken for a safe read, on every
// version; a refusal is as good.
func TestWhatDoesMoreThanReadIsNeverSafe(t *testing.T) {
	for _, major := range []int{0, 15, 16, 17, 18} {
		tb, err := newTables(Config{ServerMajor: major})
		require.NoError(t, err)
		for _, sql := range neverSafe(t) {
			c, f := classifyText(tb, sql)
			if f == nil && c.SafeRead {
				t.Errorf("%d: %s", major, sql)
			}
		}
	}
}
