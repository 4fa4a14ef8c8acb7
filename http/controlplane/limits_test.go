package controlplane

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A new request without a word on what bounds it fails here.
func TestThePageSaysOfEachRequestOfTheDashboardWhatBoundsIt(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "OPERATIONS.md"))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "<!-- what bounds each request of the dashboard: held against the routes by a test -->\n")
	require.True(t, ok)
	table, _, ok := strings.Cut(rest, "<!-- end of requests of the dashboard -->")
	require.True(t, ok)
	var told, routes []string
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[2:] {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		require.Len(t, cells, 4, line)
		for _, route := range strings.Split(cells[0], ", ") {
			told = append(told, strings.Trim(route, "`"))
		}
	}
	for _, r := range routesOf(startPlane(t, nil).server) {
		routes = append(routes, r.Method+" "+regexp.MustCompile(`:(\w+)`).ReplaceAllString(r.Path, "{$1}"))
	}
	require.ElementsMatch(t, routes, told)
}

// The numbers of that table, and of the page around it, are those of the program.
func TestThePageSaysTheNumbersOfTheDashboard(t *testing.T) {
	require.Equal(t, []int{5, 6, 2, 8, 16, 64}, []int{loginBurst, loginPerMinute, sessionUploads, maxUploads, sessionStreams, maxStreams})
	require.Equal(t, []int{64 << 10, 16 << 20, 2 << 30}, []int{maxLogin, maxBody, maxUpload})
	require.Equal(t, []float64{5, 10}, []float64{answerTime.Minutes(), uploadTime.Minutes()})
}
