package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/browser"
	"writegate/fixtures/manualclock"
)

// The dashboard in a real browser, in front of a real gate on a real database.
// All parts share one Chromium; each has a gate and a login of its own.
func TestTheControlPlaneInABrowser(t *testing.T) {
	t.Parallel()
	b, err := browser.Start(context.Background(), os.Stderr)
	require.NoError(t, err)
	t.Cleanup(b.Close)
	for name, part := range map[string]func(*testing.T, *browser.Browser){
		"an approval from its asking to its story":    approvalJourney,
		"a policy is activated and rolled back":       policyJourney,
		"a version goes with the impact it was shown": impactJourney,
		"evidence is exported and verified":           evidenceJourney,
		"the gate goes down and comes back":           downAndBack,
		"without scripts all is shown, none changed":  withoutScripts,
		"with the keyboard alone":                     keyboardAlone,
		"news comes under a finger":                   newsUnderAFinger,
		"a browser whose clock is wrong":              wrongClock,
		"somebody else decides meanwhile":             decidedElsewhere,
		"what is said covers no button":               saidBeside,
		"a group that can't be approved is named":     groupsNamed,
		"a session ends before a decision is sent":    loggedOutMeanwhile,
		"what is dangerous is seen without scrolling": dangersInSight,
		"the inbox by keys alone":                     triageByKeys,
		"from login to ten decided, by keys alone":    tenByKeys,
		"another origin changes nothing":              anotherOrigin,
		"a page drives neither gate nor dashboard":    hostilePages,
		"logins are limited":                          limitedLogins,
		"agents, with what binds them":                agentsShown,
		"a grant is offered, given, used and revoked": grantsGiven,
		"what a dry run has found is on the card":     dryRunShown,
		"lists that are longer than a page":           listsGoOn,
		"decisions are unfolded, copied and timed":    decisionsRead,
		"an outcome that nobody knew is settled":      unknownJourney,
		"every page can be read":                      everyPage,
		"what to do while the gate does not protect":  whenItDoesNot,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own, err := b.Apart()
			require.NoError(t, err)
			t.Cleanup(own.Close)
			part(t, own)
		})
	}
}

func approvalJourney(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	p := startTestPlane(t, g.base)
	w := openTab(t, b, p)
	w.login()
	w.open("/approvals")
	w.sees("Nobody waits for you.")

	s := ask("DELETE FROM orders WHERE id = 2 -- tidy up, please approve")
	id := g.hold(t, s)
	w.until("document.querySelector('a[href=\"/approvals/" + id + "\"]')") // by itself
	w.do(chromedp.Click(`a[href="/approvals/` + id + `"]`))
	w.sees("tidy up, please approve")
	w.sees("1 comment. Comments do not run")
	w.do(chromedp.SendKeys("#note", "seen by ana"), chromedp.Click(`[data-decision="approve"]`))
	w.until("document.querySelector('dialog[open]')")
	require.Equal(t, "pending", g.record(t, id)["status"], "the question alone decides nothing")
	w.do(chromedp.Click(`dialog button[value="yes"]`))
	w.until("document.querySelector('#approval .lead .pill.good')?.innerText === 'Approved'")
	require.Equal(t, "seen by ana", g.record(t, id)["note"])

	answer := g.query(t, s.with("approval_id", id))
	require.Equal(t, http.StatusOK, answer.status, "%s", answer.body)
	w.until("document.querySelector('#approval a[href^=\"/executions/\"]')")
	var ran struct {
		RequestID string `json:"request_id"`
	}
	unmarshal(t, answer.body, &ran)
	w.open("/requests/" + ran.RequestID)
	w.sees("Chain holds")
	for _, step := range []string{"Request received", "Decided", "Approval used", "Sent to the database", "Ran"} {
		w.sees(step)
	}
	w.requireNothingKept(g)
	p.requireNoSecret(t, g)
}

func policyJourney(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	p := startTestPlane(t, g.base)
	w := openTab(t, b, p)
	w.login()
	document, err := os.ReadFile(g.policyFile(t, "1.1.0", "max_rows: 100 }", "max_rows: 50 }"))
	require.NoError(t, err)
	w.open("/policies")
	w.sees("shop-gate@1.0.0")
	w.value("document.getElementById('document').value = " + quoted(string(document)))
	w.do(chromedp.Click(`[data-step="validate"]`))
	w.sees("24 of 24 own tests passed.")
	untested, _, _ := strings.Cut(string(document), "\ntests:")
	w.value("document.getElementById('document').value = " + quoted(untested))
	w.do(chromedp.Click(`[data-step="validate"]`))
	w.sees("Valid, with ")
	w.sees("PV302") // which gate policy validate says, too
	w.value("document.getElementById('document').value = " + quoted(string(document)))
	w.do(chromedp.Click(`[data-step="candidate"]`))
	w.until("document.querySelector('dialog[open]')")
	w.do(chromedp.Click(`dialog button[value="yes"]`))
	w.until("location.pathname === '/policies/shop-gate%401.1.0' || location.pathname === '/policies/shop-gate@1.1.0'")
	w.sees("Candidate")
	hash := w.value("document.querySelector('[data-hash]').dataset.hash")

	w.do(chromedp.Click(`form[data-policy="activate"] button`))
	w.until("document.querySelector('dialog[open]')")
	w.do(chromedp.SendKeys("#typed-hash", strings.Repeat("0", 64)), chromedp.Click(`dialog button[value="yes"]`))
	w.sees("That is not the SHA-256 of this version.")
	w.value("document.getElementById('typed-hash').value = ''")
	w.do(chromedp.SendKeys("#typed-hash", hash), chromedp.Click(`dialog button[value="yes"]`))
	w.until("location.pathname === '/policies'")
	w.until("document.querySelector('#policies .lead')?.innerText.includes('shop-gate@1.1.0')")

	w.open("/policy-diff?base=shop-gate@1.0.0&target=shop-gate@1.1.0&last=1h")
	w.sees("deletes-need-approval")
	for _, width := range []int64{390, 1440} {
		require.NoError(t, browser.Look(w.ctx, width, false))
		require.Equal(t, "true", w.value("String([...document.querySelectorAll('.sides code')].every(e => e.getBoundingClientRect().right <= innerWidth) && !document.querySelector('.scroll .sides'))"), "nothing is cut at %d", width)
	}
	w.open("/policies")
	w.do(chromedp.Click(`#policies a.danger`))
	w.sees("Before you go back to it: what that changes")
	w.do(chromedp.Click(`form[data-policy="rollback"] button`))
	w.until("document.querySelector('dialog[open]')")
	w.sees("otherwise than shop-gate@1.1.0.")
	w.do(chromedp.Click(`dialog button[value="yes"]`))
	w.until("document.querySelector('#policies .lead')?.innerText.includes('shop-gate@1.0.0')")
	p.requireNoSecret(t, g)
}

// impactJourney activates where a gate wants to know the impact that was looked at.
func impactJourney(t *testing.T, b *browser.Browser) {
	g := startShop(t, "GATE_POLICY_REQUIRE_IMPACT=true")
	g.query(t, ask("SELECT id FROM orders WHERE id = 1"))
	document, err := os.ReadFile(g.policyFile(t, "1.1.0", "max_rows: 100 }", "max_rows: 50 }"))
	require.NoError(t, err)
	hash := g.propose(t, string(document))
	w := openTab(t, b, startTestPlane(t, g.base))
	w.login()
	activate := func() {
		w.do(chromedp.Click(`form[data-policy="activate"] button`))
		w.until("document.querySelector('dialog[open]')")
		w.do(chromedp.SendKeys("#typed-hash", hash), chromedp.Click(`dialog button[value="yes"]`))
	}
	w.open("/policies/shop-gate@1.1.0")
	w.sees("The activation is bound to the replay above, of events ")
	w.do(chromedp.Click(`a[href^="/policy-diff"]`))
	w.sees("Impact hash")
	w.do(chromedp.Click(`a[href*="impact_hash"]`))
	w.sees("The activation is bound to the replay above, of events ")
	activate()
	w.until("location.pathname === '/policies'")
	w.until("document.querySelector('#policies .lead')?.innerText.includes('shop-gate@1.1.0')")
	require.NotNil(t, g.get(t, "/audit?event_type=policy_activated").json(t)["items"].([]any)[0].(map[string]any)["payload"].(map[string]any)["impact"])
}

func evidenceJourney(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	g.query(t, ask("SELECT id FROM orders WHERE id = 1"))
	p := startTestPlane(t, g.base)
	w := openTab(t, b, p)
	w.login()
	w.open("/evidence")
	w.do(chromedp.Click(`form[action="/evidence/verify"] button`))
	w.sees("Every check passed")

	dir := t.TempDir()
	_, err := chromedp.CallBrowser(w.ctx, cdpbrowser.SetDownloadBehavior, cdpbrowser.SetDownloadBehaviorParams{Behavior: "allow", DownloadPath: dir, BrowserContextID: browser.Profile(w.ctx)})
	require.NoError(t, err)
	w.open("/evidence")
	w.do(chromedp.SendKeys("#export-reason", "asked by the auditor"), chromedp.Click(`form[action="/evidence/export"] button`))
	file := waitForFile(t, dir)

	w.open("/evidence")
	w.do(chromedp.SetUploadFiles("#upload", []string{file}), chromedp.Click(`form[action="/evidence/check"] button`))
	w.until("document.querySelector('#upload-result .pill.good')")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(content), "asked by the auditor")
	changed := strings.Replace(string(content), "asked by the auditor", "asked by somebody", 1)
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o600))
	w.open("/evidence")
	w.do(chromedp.SetUploadFiles("#upload", []string{file}), chromedp.Click(`form[action="/evidence/check"] button`))
	w.until("document.querySelector('#upload-result .pill.bad')")
	p.requireNoSecret(t, g)
}

func downAndBack(t *testing.T, b *browser.Browser) {
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	g := startGate(t, d, "GATE_HTTP_LISTEN_ADDR=127.0.0.4:0") // where nobody takes its port while it is down
	address := strings.TrimPrefix(g.base, "http://")
	p := startTestPlane(t, g.base)
	w := openTab(t, b, p)
	w.login()
	w.until("document.getElementById('gate-state').innerText === 'Enforcing'")
	w.open("/executions")
	w.sees("Every outcome is known.")
	g.end(t)
	w.until("document.getElementById('gate-state')?.innerText === 'Gate unreachable'") // by itself
	w.sees("This page could not be read again.")
	w.sees("The gate cannot be reached.")
	w.open("/approvals")
	w.sees("The gate cannot be reached")
	w.open("/policies")
	w.sees("Not known: they could not be read.")
	again := startGate(t, d, "GATE_HTTP_LISTEN_ADDR="+address)
	w.open("/")
	w.until("document.getElementById('gate-state')?.innerText === 'Enforcing'")
	p.requireNoSecret(t, again)
}

func withoutScripts(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 2"))
	p := startTestPlane(t, g.base)
	w := openTab(t, b, p)
	_, err := chromedp.Call(w.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	w.login()
	for _, path := range []string{"/", "/approvals", "/approvals/" + id, "/audit", "/policies", "/evidence", "/executions", "/grants", "/agents", "/logs"} {
		w.open(path)
		w.sees("Scripts are off")
		require.Equal(t, "0", w.value("String([...document.querySelectorAll('[data-decision], [data-policy] button, [data-step], [data-check]')].filter(e => e.offsetParent).length)"), path)
	}
	w.open("/policy-dry-run")
	w.do(chromedp.SendKeys("#sql", "DELETE FROM orders"), chromedp.Click("form.card button"))
	w.sees("Blocked")
	require.Equal(t, "pending", g.record(t, id)["status"])
	p.requireNoSecret(t, g)
}

func keyboardAlone(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 2"))
	p := startTestPlane(t, g.base)
	w := openTab(t, b, p)
	w.open("/login")
	w.until("document.activeElement?.id === 'username'")
	w.do(chromedp.KeyEvent("ana"), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(planePassword), chromedp.KeyEvent(kb.Enter))
	w.until("document.querySelector('.who')")
	w.open("/approvals/" + id)
	w.until("document.querySelector('.scripted')")
	w.tabTo("document.activeElement?.dataset?.decision === 'approve'")
	w.do(chromedp.KeyEvent(kb.Enter))
	w.until("document.querySelector('dialog[open]')")
	require.Equal(t, "no", w.value("document.activeElement.value"), "the careful answer has the focus")
	w.do(chromedp.KeyEvent(kb.Escape))
	w.until("!document.querySelector('dialog[open]')")
	w.tabTo("document.activeElement?.dataset?.decision === 'reject'")
	w.do(chromedp.KeyEvent(kb.Enter))
	w.until("document.querySelector('dialog[open]')")
	w.tabTo("document.activeElement?.value === 'yes'")
	w.do(chromedp.KeyEvent(kb.Enter))
	w.until("document.querySelector('#approval .lead')?.innerText.includes('Rejected')")
	require.Equal(t, "reject", g.record(t, id)["resolution"])
}

// newsUnderAFinger: the page is brought up to date while a button is held down, or
// has the focus, and what is pressed is what was meant.
func newsUnderAFinger(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 2"))
	p := startTestPlane(t, g.base)
	w := openTab(t, b, p)
	w.login()
	w.open("/approvals/" + id)
	other := 3
	news := func() { // of something else, for which the page is fetched again
		fetched := w.value(backgroundFetches)
		require.Equal(t, http.StatusOK, g.resolve(t, g.hold(t, ask(fmt.Sprint("DELETE FROM orders WHERE id = ", other))), "reject").status)
		w.until(backgroundFetches + " !== " + quoted(fetched))
		other++
	}
	place := w.value("(({left, top, width, height}) => (left + width / 2) + ' ' + (top + height / 2))((e => (e.scrollIntoView(), e))(document.querySelector('[data-decision=\"approve\"]')).getBoundingClientRect())")
	var x, y float64
	_, err := fmt.Sscan(place, &x, &y)
	require.NoError(t, err)
	w.do(chromedp.MouseEvent(chromedp.MousePressed, x, y, chromedp.ButtonLeft, chromedp.ClickCount(1)))
	news()
	w.do(chromedp.MouseEvent(chromedp.MouseReleased, x, y, chromedp.ButtonLeft, chromedp.ClickCount(1)))
	w.until("document.querySelector('dialog[open]')")
	w.do(chromedp.KeyEvent(kb.Escape))
	w.until("!document.querySelector('dialog[open]')")

	w.value("document.getElementById('approval').dataset.old = '', document.querySelector('[data-decision=\"reject\"]').focus(), ''")
	news()
	w.until("!document.querySelector('#approval[data-old]')")
	require.Equal(t, "reject", w.value("document.activeElement?.dataset.decision ?? 'nothing'"), "the focus stays where it was")
}

// backgroundFetches counts how often the page was fetched to bring it up to date.
const backgroundFetches = "String(performance.getEntriesByType('resource').filter(e => e.initiatorType === 'fetch' && e.name === location.href).length)"

// tabTo presses Tab until the focus is where it should be; all that it passes
// shows that it has the focus.
func (w *tab) tabTo(reached string) {
	w.t.Helper()
	for range 80 {
		w.do(chromedp.KeyEvent(kb.Tab))
		if w.value("String(Boolean("+reached+"))") == "true" {
			require.NotEqual(w.t, "none", w.value("getComputedStyle(document.activeElement).outlineStyle"), "the focus can be seen")
			return
		}
	}
	w.fail("the keyboard does not reach: " + reached)
}

func anotherOrigin(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 2"))
	p := startTestPlane(t, g.base)
	w := openTab(t, b, p)
	w.login()
	// A page of another origin on the same host, so that even SameSite lets the cookie through.
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!doctype html><title>x</title>")
	}))
	defer elsewhere.Close()
	stranger := openTab(t, b, &testPlane{base: elsewhere.URL, output: &lockedBuffer{}})
	stranger.open("/")
	// The browser sends these with the cookie, and hides the answer from the page (Cross-Origin-Resource-Policy).
	const post = ", {method: 'POST', mode: 'no-cors', credentials: 'include', headers: {'Content-Type': 'application/x-www-form-urlencoded'}, body: 'decision=approve'}).then(r => 'answered', e => 'nothing')"
	for _, path := range []string{"/api/gate/approvals/" + id + "/resolve", "/logout", "/api/gate/policy/rollback"} {
		before := strings.Count(p.served.String(), "HTTP/1.1 403 ")
		require.Equal(t, "nothing", stranger.await("fetch("+quoted(p.base+path)+post), path)
		require.Eventually(t, func() bool { return strings.Count(p.served.String(), "HTTP/1.1 403 ") > before }, startPatience, pollEvery, "%s is refused", path)
	}
	stranger.mu.Lock()
	stranger.elsewher = nil // they were meant to leave
	stranger.mu.Unlock()
	require.Equal(t, "pending", g.record(t, id)["status"])
	w.open("/")
	w.until("document.querySelector('.who')")
	forged := w.await("fetch('/api/gate/approvals/" + id + "/resolve', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{\"decision\":\"approve\"}'}).then(r => r.json()).then(v => v.error_code)")
	require.Equal(t, "forged_request", forged, "our own page without its token")
	require.Equal(t, "pending", g.record(t, id)["status"])
}

// await gives what a promise comes to.
func (w *tab) await(expression string) string {
	w.t.Helper()
	text, err := chromedp.Run(w.ctx, chromedp.Evaluate[string](expression, chromedp.EvalAwaitPromise))
	require.NoError(w.t, err)
	return text
}

func limitedLogins(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	still := manualclock.At(time.Now()) // or a slow browser would be let in again
	p := startTestPlaneWith(t, g.base, func(a *app) { a.sessionClock = still.Now })
	w := openTab(t, b, p)
	for range 5 {
		w.open("/login")
		w.do(chromedp.SendKeys("#username", "ana"), chromedp.SendKeys("#password", "not the password"), chromedp.Click("form button"))
		w.sees("The name or the password is wrong.")
	}
	w.open("/login")
	w.do(chromedp.SendKeys("#username", "ana"), chromedp.SendKeys("#password", planePassword), chromedp.Click("form button"))
	w.sees("Too many logins from this address.")
}

// unknownJourney: the answer to a COMMIT is lost on the way. Whoever is on call
// sees it without looking for it, reads what to do, asks the database while the
// transaction still waits and once it has ended, and nothing runs twice.
func unknownJourney(t *testing.T, b *browser.Browser) {
	g, approval, execution, arrive := startLost(t, "GATE_OUTCOME_CHECK_INTERVAL_SECONDS=0")
	p := startTestPlane(t, g.base)
	w := openTab(t, b, p)
	w.login()
	w.sees("check before anybody sends them again")
	w.do(chromedp.Click(`a[href="/executions"].tile`))
	w.sees("Unknown outcomes")
	w.sees("DELETE FROM order_items WHERE order_id =") // which one, before it is opened
	w.sees("public.order_items")
	w.do(chromedp.Click(`a[href="/executions/` + execution + `"]`))
	w.sees("Until that is known, do not send it again: it may have been applied.")
	w.sees("DELETE FROM order_items WHERE order_id =")
	w.sees("This is its shape: the log leaves values out.")
	w.do(chromedp.Click("[data-check]"))
	w.sees("Do not end it and do not send it again: ask once more in a minute.")
	arrive()
	w.until("(document.querySelector('[data-check]:enabled')?.click(), document.querySelector('#execution .lead')?.innerText.includes('It was applied'))")
	w.sees("It was applied. Do not send it again.")
	w.sees("the database's own record of transactions")
	w.until("!document.querySelector('[data-check]')")
	w.open("/")
	w.sees("every outcome is known")
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM order_items WHERE order_id = 2"))
	again := g.query(t, ask("DELETE FROM order_items WHERE order_id = 2").with("approval_id", approval))
	requireFault(t, again, http.StatusConflict, "approval_already_used")
	p.requireNoSecret(t, g)
}

func agentsShown(t *testing.T, b *browser.Browser) {
	g := startAgents(t)
	p := startTestPlane(t, g.base, "CONTROL_PLANE_PROJECT_KEY="+g.key)
	w := openTab(t, b, p)
	w.login()
	w.open("/agents")
	w.sees("No agent is active.")
	const watched = "window.looks = []; const plain = fetch; window.fetch = (to, how) => { looks.push(how.headers['X-Background']); return plain(to, how); }; ''"
	w.value(watched)
	id, token := g.register(t, "invoice-bot")
	w.until("looks.includes('news')") // by itself; what it shows is shared for a while
	w.open("/agents")
	w.until("document.querySelector('a[href=\"/agents/" + id + "\"]')")
	g.apply(t, g.rule(t, "block", `sql.class == "write"`), id)
	stopped := g.as(t, token, ask("UPDATE orders SET status = 'paid' WHERE id = 1"))
	require.Equal(t, http.StatusForbidden, stopped.status, "%s", stopped.body)
	at := time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339)
	_, sent := g.sent(t, g.projectKey(), fmt.Sprintf(`[{"agent_id":%[1]q,"timestamp":%[2]q,"type":"llm_call","duration_ms":210,"usage":{"input_tokens":910,"output_tokens":12}},
		{"agent_id":%[1]q,"timestamp":%[2]q,"type":"llm_call","status":"error"}]`, id, at))
	require.Equal(t, 2, sent.Accepted)
	w.do(chromedp.Click(`a[href="/agents/` + id + `"]`))
	w.sees("Ask finance.")
	w.sees("Decided")
	w.sees("0 allowed, 0 asked, 1 blocked")
	w.sees("2, 1 error")
	w.until("[...document.querySelectorAll('img.chart')].length === 3 && [...document.images].every(i => i.complete && i.naturalWidth > 0)")
	require.Equal(t, "true", w.value("String([...document.querySelectorAll('img.chart, source')].every(e => new URL(e.src || e.srcset, location).searchParams.get('agent_id') === '"+id+"'))"), "charts of this agent alone")
	require.Regexp(t, `^2 1 0 / 0 / 0 910 / 12 0\S* 21\d / 21\d ms 0 0 0 / 0 / 1 0 / 0 0\S* $`, w.value("[...document.querySelectorAll('[aria-label=\"Telemetry per hour\"] tbody td.number')].map(e => e.innerText).join(' ')"))
	w.value(watched)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	w.value("const due = document.createElement('span'); due.dataset.countdown = new Date(Date.now() + 2000).toISOString(); document.body.append(due); ''") // a look that is soon
	w.until("looks.length > 0")
	require.Equal(t, "look", w.value("looks[0]"), "a statement of nobody is no news of this agent")
	require.Equal(t, http.StatusForbidden, g.as(t, token, ask("UPDATE orders SET status = 'paid' WHERE id = 2")).status)
	w.until("looks.includes('news')")
	other, another := g.register(t, "payment-bot")
	rules := g.rule(t, "require_approval", `sql.class == "write"`)
	g.apply(t, rules, other)
	asked := g.as(t, another, ask(paying))
	require.Equal(t, http.StatusAccepted, asked.status, "%s", asked.body)
	w.open("/approvals/" + asked.text(t, "approval_id"))
	w.sees("of the agent's policy " + rules)
	w.sees("payment-bot (its token was checked)")
	w.sees("Ask finance.")
	w.until("document.querySelector('a[href=\"/agents/" + other + "\"]')")
	w.open("/agents/" + other)
	appliedInThePage(w, g, other, another)
	w.do(chromedp.Click(`[data-step="revoke"]`))
	w.until("document.querySelector('dialog[open]')")
	require.Equal(t, http.StatusOK, g.as(t, another, ask("SELECT id FROM orders WHERE id = 1")).status)
	w.do(chromedp.Click(`dialog button[value="yes"]`))
	w.until("!document.querySelector('[data-step=\"revoke\"]')") // by itself, and there is no live one
	requireFault(t, g.as(t, another, ask("SELECT id FROM orders WHERE id = 1")), http.StatusUnauthorized, "token_revoked")
	w.open("/agents/" + id)
	w.do(chromedp.SendKeys("#reason", "It writes where nobody asked it to."), chromedp.Click(`form[data-policy="deactivate"] button`))
	w.until("document.querySelector('dialog[open]')")
	require.Equal(t, "active", g.v1(t, http.MethodGet, "/agents/"+id, "").text(t, "status"))
	w.do(chromedp.Click(`dialog button[value="yes"]`))
	w.until("!document.querySelector('form[data-policy=\"deactivate\"]')")
	require.Equal(t, "inactive", g.v1(t, http.MethodGet, "/agents/"+id, "").text(t, "status"))
	require.Contains(t, string(g.v1(t, http.MethodGet, "/events?event_type=agent_deactivated", "").body), "It writes where nobody asked it to.")
	requireFault(t, g.as(t, token, ask("SELECT id FROM orders WHERE id = 1")), http.StatusUnauthorized, "token_revoked")
	require.NotContains(t, p.served.String(), token)
	p.requireNoSecret(t, g.testGate)
	closed := openTab(t, b, startTestPlane(t, g.base))
	closed.login()
	closed.open("/agents")
	closed.sees("The agent API needs a project key.")
}

// appliedInThePage tries a policy on an agent's last day, applies it, and takes it
// away again. The agent has asked for the approval of a write before.
func appliedInThePage(w *tab, g *agentWorld, agent, token string) {
	w.t.Helper()
	applied := func() string {
		return fmt.Sprint(g.v1(w.t, http.MethodGet, "/agents/"+agent, "").json(w.t)["applied_policies"])
	}
	before := applied()
	rules := g.made(w.t, "/policies", `{"name":"no writes <at> all","rules":[{"id":"stop","action":"block","condition":"sql.class == \"write\""}]}`)["id"].(string)
	w.open("/agents/" + agent)
	w.value(`document.getElementById("t-policy").value = "` + rules + `"; document.getElementById("t-priority").value = "high"; ""`)
	w.do(chromedp.Click(`#try form button`))
	w.sees("It would have decided 1 of 1 statement more strictly")
	w.sees("no writes <at> all, priority high")
	require.Equal(w.t, "Blocked by stop in the place of Asks for approval", w.value(`document.querySelector('#trial li').innerText.split(' event ')[0]`))
	require.Regexp(w.t, `^/requests/`, w.value(`document.querySelector('#trial li a').getAttribute('href')`))
	require.Equal(w.t, before, applied(), "nothing is written")
	w.do(chromedp.Click(`form[data-policy="apply"] button`))
	w.until("document.querySelector('dialog[open]')")
	require.Equal(w.t, before, applied())
	w.do(chromedp.Click(`dialog button[value="yes"]`))
	w.until("!location.search && document.querySelector('[data-rules=\"" + rules + "\"]')")
	require.Equal(w.t, "agent_policy_blocked", g.as(w.t, token, ask(paying)).text(w.t, "reason_code"))
	require.Contains(w.t, applied(), "high")
	w.do(chromedp.Click(`[data-step="detach"][data-rules="` + rules + `"]`))
	w.until("document.querySelector('dialog[open]')")
	w.do(chromedp.Click(`dialog button[value="yes"]`))
	w.until("!document.querySelector('[data-step=\"detach\"][data-rules=\"" + rules + "\"]')")
	require.Equal(w.t, before, applied())
	w.open("/agents/" + agent + "?policy=pol_01AAAAAAAAAAAAAAAAAAAAAAAA#try")
	w.until("document.querySelector('#trial [role=alert]')")
}
