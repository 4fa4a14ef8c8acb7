package main

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A cap of a hundred times as many rows is looser, and a replay that shows no change
// says that it did not try caps.
func TestTheDiffSaysWhichWayACapGoes(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.query(t, ask("SELECT id FROM orders WHERE id = 1"))
	g.propose(t, sampleVersion(t, "1.1.0", "max_rows: 100 }", "max_rows: 10000 }"))
	plane := startTestPlane(t, g.base).reader(t)
	wider := plane.page(t, "/policy-diff?target=shop-gate@1.1.0&last=24h")
	require.Contains(t, wider, `<span class="pill bad">Looser</span>`)
	require.NotContains(t, wider, "it depends on the statement")
	require.Contains(t, wider, "The terms of approvals change too, and that does not show here.")
	require.Contains(t, wider, "Only decisions are replayed. Caps are not")
	require.Contains(t, plane.page(t, "/policy-diff?base=shop-gate@1.1.0&target=shop-gate@1.0.0"), `<span class="pill good">Tighter</span>`)
	code, out, errs := g.cli(t, "", "policy", "diff", "active", "shop-gate@1.1.0", "--replay", "24h")
	require.Zero(t, code, errs)
	require.Contains(t, out, ", looser")
	require.Contains(t, out, "whether a statement would have passed max_rows")
}

// A delete that cascades changed more rows than its command tag says.
func TestThePagesSayHowManyRowsChangedInAll(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.execute(t, "INSERT INTO order_items VALUES (40, 2)")
	one := ask("DELETE FROM orders WHERE id = 40")
	ran := g.query(t, one.with("approval_id", g.approved(t, one)))
	require.Equal(t, http.StatusOK, ran.status, "%s", ran.body)
	plane := startTestPlane(t, g.base).reader(t)
	for _, path := range []string{"/requests/" + ran.text(t, "request_id"), "/executions/" + ran.text(t, "execution_id")} {
		require.Contains(t, plane.page(t, path), "DELETE 1: 3 rows changed in all, with those of cascades and triggers", path)
	}
}

// An entry shows what its line says beside the message, and leads to a request that the
// event log knows; of others there is nothing to lead to.
func TestTheLogsLeadToRequestsThatAreThere(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	known := g.query(t, ask("SELECT FROM WHERE"))
	require.Equal(t, http.StatusBadRequest, known.status)
	for range 3 {
		require.Equal(t, http.StatusNotFound, g.get(t, "/approvals/apr_nobody").status)
	}
	plane := startTestPlane(t, g.base).reader(t)
	logs := plane.page(t, "/logs")
	require.Contains(t, logs, "path <code>/approvals/apr_nobody</code>")
	require.Contains(t, logs, "status <code>404</code>")
	links := storyLink.FindAllStringSubmatch(logs, -1)
	require.NotEmpty(t, links)
	for _, link := range links {
		require.Contains(t, plane.page(t, strings.ReplaceAll(link[1], "&amp;", "&")), "Refused before a decision")
	}
	require.Regexp(t, regexp.MustCompile(`title="req_[0-9a-f-]+: no event bears this id"`), logs)
}
