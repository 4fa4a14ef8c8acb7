package main

import (
	"errors"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/fixtures/browser"
)

// wrongClock: how long is left is the server's word, whatever time the browser believes.
func wrongClock(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 2"))
	w := openTab(t, b, startTestPlane(t, g.base))
	_, err := chromedp.Call(w.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: "const right = Date.now; Date.now = () => right() + 3600e3"})
	require.NoError(t, err)
	w.login()
	w.open("/approvals/" + id)
	w.until("/^1[0-5] min \\d+ s left$/.test(document.querySelector('[data-countdown]').innerText)")
}

// decidedElsewhere: what somebody else decides ends what one is at, and what was typed
// can still be read.
func decidedElsewhere(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 2"))
	w := openTab(t, b, startTestPlane(t, g.base))
	w.login()
	w.open("/approvals/" + id)
	w.do(chromedp.SendKeys("#note", "half a thought"), chromedp.Click(`[data-decision="approve"]`))
	w.until("document.querySelector('dialog[open]')")
	require.Equal(t, http.StatusOK, g.resolve(t, id, "reject").status)
	w.until("document.querySelector('#approval .lead')?.innerText.includes('Rejected')")
	w.until("!document.querySelector('dialog[open], [data-decision]')")
	w.sees("Your note was not sent: half a thought")
}

// saidBeside: what is said of a conflict covers no button of the card that follows, on a desk
// and on a phone, and goes when it was read.
func saidBeside(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	first := g.hold(t, ask("DELETE FROM orders WHERE id = 2"))
	g.hold(t, ask("DELETE FROM orders WHERE id = 3"))
	w := openTab(t, b, startTestPlane(t, g.base)).walk()
	w.login()
	w.open("/approvals/" + first)
	w.do(chromedp.Click(`[data-decision="approve"]`))
	w.until("document.querySelector('dialog[open]')")
	w.do(chromedp.Click(`dialog button[value="yes"]`))
	require.Equal(t, http.StatusOK, g.resolve(t, first, "reject").status)
	w.until("document.querySelector('#said button') && document.querySelector('[data-decision]') && !location.pathname.endsWith('" + first + "')")
	w.sees("Not done: ")
	for _, screen := range []struct{ width, height int64 }{{1440, 900}, {390, 844}} {
		_, err := chromedp.Call(w.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: screen.width, Height: screen.height, DeviceScaleFactor: 1})
		require.NoError(t, err)
		w.value("scrollTo(0, 0), ''")
		require.Equal(t, "", w.value(`(() => {
			const said = document.querySelector('#said p').getBoundingClientRect();
			return [...document.querySelectorAll('[data-decision]')].filter((button) => {
				const box = button.getBoundingClientRect();
				return box.left < said.right && said.left < box.right && box.top < said.bottom && said.top < box.bottom;
			}).map((button) => button.innerText).join();
		})()`), "%d wide", screen.width)
	}
	w.do(chromedp.Click("#said button"))
	w.until("!document.querySelector('#said p')")
}

// groupsNamed: an inbox row says why it is of high risk, and what can't be decided together
// is named.
func groupsNamed(t *testing.T, b *browser.Browser) {
	g := startGate(t, newGateDir(t, []byte(openPolicy)))
	for n := range 2 {
		g.hold(t, ask("DELETE FROM orders").with("actor", fmt.Sprint("ana", n)))
		g.hold(t, ask(fmt.Sprint("DELETE FROM order_items WHERE order_id = ", n)))
	}
	w := openTab(t, b, startTestPlane(t, g.base))
	w.login()
	w.open("/approvals")
	w.until("document.querySelectorAll('[data-select]').length === 4")
	require.Contains(t, w.value("document.querySelector('.inbox .soft').innerText"), "Write without where · ana")
	for _, name := range []string{"orders", "order_items"} {
		w.value(`document.querySelector('.group[data-name="Delete from public.` + name + `"] [data-select]').click(), ''`)
	}
	w.do(chromedp.Focus("#main"), chromedp.KeyEvent("a"))
	w.until("document.getElementById('said').innerText.includes('“Delete from public.orders” is not approved together. To approve, open each: write without where')")
	w.do(chromedp.Focus("#main"), chromedp.KeyEvent("r"))
	w.until("document.getElementById('said').innerText.includes('One group is decided at a time, and some are selected in 2: “Delete from public.orders”, “Delete from public.order_items”.')")
	asked := w.value("document.querySelector('[data-ago]').innerText")
	w.until("document.querySelector('[data-ago]').innerText !== " + quoted(asked)) // though the list is left alone
}

// loggedOutMeanwhile: a decision that was not sent says so, and what was typed stays.
func loggedOutMeanwhile(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 2"))
	w := openTab(t, b, startTestPlane(t, g.base))
	w.login()
	w.open("/approvals/" + id)
	w.await("fetch('/logout', { method: 'POST', redirect: 'manual', body: new URLSearchParams({ csrf: document.querySelector('meta[name=csrf]').content }) }).then(() => '')")
	w.do(chromedp.SendKeys("#note", "half a thought"), chromedp.Click(`[data-decision="reject"]`))
	w.until("document.querySelector('dialog[open]')")
	w.do(chromedp.Click(`dialog button[value="yes"]`))
	w.sees("Not done: You were logged out, and this was not sent. Reload the page to log in.")
	w.sees("Your note was: half a thought")
	require.Equal(t, "pending", g.get(t, "/approvals/"+id).text(t, "status"))
	w.do(chromedp.Reload())
	w.until("location.pathname === '/login'")
}

// loaded are the document and what it takes besides.
const loaded = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource').filter(e => e.initiatorType !== 'fetch')]"

// requireLight holds that a page is small and takes few requests.
func (w *tab) requireLight() {
	w.t.Helper()
	require.Equal(w.t, "", w.value("(all => all.length <= 6 && all.reduce((sum, e) => sum + e.decodedBodySize, 0) <= 100 * 1024 ? '' : JSON.stringify(all.map(e => [e.name, e.decodedBodySize])))("+loaded+")"))
}

// A card counts what was decided of the same shape and of the same tables, and says how
// that ended.
func TestACardShowsWhatWasDecidedBefore(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.execute(t, "CREATE TABLE orders_2 (id bigint PRIMARY KEY)")
	plane := startTestPlane(t, g.base).reader(t)
	card := func(sql string) string { return plane.page(t, "/approvals/"+g.hold(t, ask(sql))) }
	require.Contains(t, card("DELETE FROM orders WHERE id = 1"), "none of its shape was decided this week")
	for id, decision := range map[int]string{2: "approve", 3: "approve", 4: "reject"} { // the values are others
		s := ask(fmt.Sprint("DELETE FROM orders WHERE id = ", id))
		approval := g.hold(t, s)
		require.Equal(t, http.StatusOK, g.resolve(t, approval, decision).status)
		if id == 2 {
			require.Equal(t, http.StatusOK, g.query(t, s.with("approval_id", approval)).status)
		}
	}
	other := g.hold(t, ask("DELETE FROM orders_2 WHERE id = 5"))
	require.Equal(t, http.StatusOK, g.resolve(t, other, "approve").status)
	shown := card("DELETE FROM orders WHERE id = 6")
	require.Contains(t, shown, "2 of its shape were approved this week, 1 rejected, 3 of these with other values")
	require.Equal(t, 3, strings.Count(shown, "; its values were others"))
	require.Equal(t, 1, strings.Count(shown, "; it ran"))
	require.Contains(t, shown, "Rejected</a> by operator: “from a test”")
	require.Contains(t, card("DELETE FROM orders_2 WHERE id = 7"), "1 of its shape was approved this week, 0 rejected, 1 of these with other values")
	require.Contains(t, card("delete from orders_2 where id = 5"), "1 of its shape was approved this week, 0 rejected</h1>")
}

// Who decided, and with which note, stands wherever an approval shows.
func TestWhoDecidedStandsWhereverAnApprovalShows(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	plane := startTestPlane(t, g.base).reader(t)
	s := ask("DELETE FROM orders WHERE id = 3").with("actor", "support-agent")
	id := g.hold(t, s)
	decided := g.do(t, http.MethodPost, "/approvals/"+id+"/resolve", []byte(`{"decision":"approve","note":"the customer asked for it"}`), operatorHeader)
	require.Equal(t, http.StatusOK, decided.status, "%s", decided.body)
	ran := g.query(t, s.with("approval_id", id))
	require.Equal(t, http.StatusOK, ran.status, "%s", ran.body)
	for _, path := range []string{"/", "/audit", "/audit?event_type=approval_resolved", "/approvals/" + id, "/approvals?show=approved", "/requests/" + ran.text(t, "request_id"), "/executions/" + ran.text(t, "execution_id")} {
		shown := plane.page(t, path)
		require.Contains(t, shown, "Approved by operator", path)
		require.Contains(t, shown, "the customer asked for it", path)
	}
	require.Contains(t, plane.page(t, "/approvals?show=approved"), ">once</a>")

	g.execute(t, "INSERT INTO order_items SELECT 40, 100 + n FROM generate_series(1, 200) AS n")
	s = ask("DELETE FROM order_items WHERE order_id = 40")
	id = g.approved(t, s)
	failed := g.query(t, s.with("approval_id", id))
	requireFault(t, failed, http.StatusUnprocessableEntity, "row_limit_exceeded")
	require.Contains(t, plane.page(t, "/approvals?show=approved"), ">without effect</a>", "a statement that was rolled back may be sent again")
	answer, err := plane.Get(plane.base + "/approvals?show=rejectet")
	require.NoError(t, errors.Join(err, answer.Body.Close()))
	require.Equal(t, http.StatusBadRequest, answer.StatusCode)
}

// Pages and the command line tell what was approved and can be sent from what can't any
// more: its time is over, it was taken back, or it ran.
func TestAnApprovalThatIsOverIsNotCalledGood(t *testing.T) {
	t.Parallel()
	w := &agentWorld{key: agentctl.NewSecret(agentctl.KeyPrefix)}
	w.testGate = startShop(t, "GATE_PROJECT_KEYS=shop/ops="+w.key, "GATE_APPROVAL_DEFAULT_TTL_SECONDS=12", "GATE_MODE=approval_first")
	plane := startTestPlane(t, w.base).reader(t)
	said := func(id string) string {
		_, out, errs := w.cli(t, "", "approvals", "show", id)
		require.Empty(t, errs)
		return regexp.MustCompile(`(?m)^status +(.*)$`).FindStringSubmatch(out)[1]
	}
	late := ask("INSERT INTO orders (id, customer_id, status) VALUES (901, 1, 'new')")
	id := w.approved(t, late)
	require.Regexp(t, `^approved, \d+s left$`, said(id))
	require.Regexp(t, `(?s)<dt>Usable</dt><dd>until .*not sent again yet</dd>`, plane.page(t, "/approvals/"+id))
	require.Eventually(t, func() bool { return said(id) == "approved, not used in time" }, startPatience, pollEvery)
	requireFault(t, w.query(t, late.with("approval_id", id)), http.StatusGone, "approval_expired")
	page := plane.page(t, "/approvals/"+id)
	require.Contains(t, page, `<span class="pill calm">Approved, not used in time</span>`)
	require.Contains(t, page, "it never ran: it was not used in its time, and can't be used any more")
	require.NotContains(t, page, "not sent again yet")
	require.Contains(t, plane.page(t, "/approvals?show=approved"), "Approved, not used in time")

	agent, token := w.register(t, "bot")
	held := w.as(t, token, ask("DELETE FROM customers WHERE id = 7"))
	require.Equal(t, http.StatusAccepted, held.status, "%s", held.body)
	id = held.text(t, "approval_id")
	named := startTestPlane(t, w.base, "CONTROL_PLANE_PROJECT_KEY="+w.key).reader(t)
	require.Contains(t, named.page(t, "/approvals/"+id), `<h1><span class="asked">Agent <span class="claim">“bot”</span>, whose token was checked, asks to delete from`)
	for _, path := range []string{"/", "/approvals"} {
		require.Contains(t, named.page(t, path), `agent “bot” (its token was checked) in shop, prod (unverified)`, path)
		require.Contains(t, plane.page(t, path), `agent “`+agent+`” (its token was checked) in shop, prod (unverified)`, path)
	}
	require.Equal(t, http.StatusOK, w.resolve(t, id, "approve").status)
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+agent, "").status)
	require.Equal(t, "withdrawn", said(id))
	for _, path := range []string{"/approvals/" + id, "/approvals?show=approved"} {
		page := plane.page(t, path)
		require.Contains(t, page, `<span class="pill warn">Withdrawn</span>`, path)
		require.NotContains(t, page, "not sent again yet", path)
	}

	w.execute(t, "INSERT INTO order_items SELECT 40, 100 + n FROM generate_series(1, 200) AS n")
	over := ask("DELETE FROM order_items WHERE order_id = 40")
	id = w.approved(t, over)
	requireFault(t, w.query(t, over.with("approval_id", id)), http.StatusUnprocessableEntity, "row_limit_exceeded")
	require.Regexp(t, `^approved, tried without effect, \d+m\d+s left$`, said(id))
	page = plane.page(t, "/approvals/"+id)
	require.Regexp(t, `(?s)<dt>Usable</dt><dd>until .*: nothing of that was applied, and it may be sent again</dd>`, page)
	require.Regexp(t, `(?s)<p class="lead">.*data-countdown="[^"]+">1\d min left`, page)
	require.Contains(t, page, "it would have changed more rows than it may")
	require.Regexp(t, `>without effect</a>; <span data-countdown="[^"]+">1\d min left`, plane.page(t, "/approvals?show=approved"))
}

// Who approved learns that it was sent again, and why it did not run, where it ended before
// it counted as an execution.
func TestAnApprovalSaysThatItWasSentAgainAndDidNotRun(t *testing.T) {
	t.Parallel()
	gone := "postgres://gate:gate@127.0.0.1:1/shop"
	for code, c := range map[string]struct{ sql, database, why string }{
		"row_limit_exceeded":   {"TRUNCATE order_items", "", "the gate can&#39;t count the rows that it changes, and the approval limits them"},
		"db_connection_failed": {"DELETE FROM orders WHERE id = 3", gone, "the database was out of reach"},
	} {
		d := newGateDir(t, []byte(openPolicy))
		d.execute(t, shopTables)
		if c.database != "" {
			d.database = c.database
		}
		g := startGate(t, d)
		plane := startTestPlane(t, g.base).reader(t)
		s := ask(c.sql)
		id := g.hold(t, s)
		require.Equal(t, http.StatusAccepted, g.query(t, s.with("approval_id", id)).status, "too early")
		require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
		require.Contains(t, plane.page(t, "/approvals/"+id), "not sent again yet")
		require.Equal(t, code, g.query(t, s.with("approval_id", id)).text(t, "error_code"))
		card := plane.page(t, "/approvals/"+id)
		require.NotContains(t, card, "not sent again yet")
		require.Regexp(t, `<dt>Sent again</dt><dd><time [^>]*>[^<]*</time>, and did not run: `+regexp.QuoteMeta(c.why)+`</dd>`, card)
		require.Regexp(t, `<dt>Usable</dt><dd>until .*: nothing of that was applied, and it may be sent again</dd>`, card)
		_, out, errs := g.cli(t, "", "approvals", "show", id)
		require.Empty(t, errs)
		require.Regexp(t, `(?m)^sent again +\d.* UTC, and did not run: `+regexp.QuoteMeta(html.UnescapeString(c.why))+`\. The approval may still be used\.$`, out)
	}
}

// A claim whose letters are not those that they look like is marked wherever it stands,
// and its card is no ordinary one.
func TestAMisleadingClaimIsNotOrdinary(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_PLAN_ESTIMATES=true")
	plane := startTestPlane(t, g.base).reader(t)
	honest := g.hold(t, ask("DELETE FROM customers WHERE id = 3").with("actor", "Анна"))
	require.Contains(t, plane.page(t, "/approvals/"+honest), "Ordinary")
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 4").with("actor", "supp\u043ert"))
	for _, path := range []string{"/approvals/" + id, "/approvals", "/audit", "/"} {
		require.Contains(t, plane.page(t, path), `supp<mark class="mark" title="U&#43;043E cyrillic small letter o`, path)
	}
	card := plane.page(t, "/approvals/"+id)
	require.Contains(t, card, "High risk")
	require.NotContains(t, card, "Ordinary")
	require.Contains(t, card, "mixes Cyrillic and Latin letters")
}

// What failed is said once.
func TestAReasonIsSaidOnce(t *testing.T) {
	t.Parallel()
	d := newErrorDir(t)
	d.database = "postgres://gate:gate@127.0.0.1:1/shop"
	g := startGate(t, d)
	require.NotEqual(t, http.StatusOK, g.query(t, ask("SELECT id FROM orders")).status)
	shown := startTestPlane(t, g.base).reader(t).page(t, "/audit")
	require.Contains(t, shown, "db connection failed")
	require.NotContains(t, shown, "db connection faileddb connection failed")
	require.NotContains(t, shown, "db connection failed, db connection failed")
}

// triageByKeys goes through the inbox without a mouse: what could do most harm first, each
// decision taken back or sent, the next one in its place, a set of one shape at once.
func triageByKeys(t *testing.T, b *browser.Browser) {
	g := startShop(t, "GATE_PLAN_ESTIMATES=true")
	g.execute(t, "CREATE TABLE carts (id bigint PRIMARY KEY)")
	var plain []string
	for n := range 10 {
		plain = append(plain, g.hold(t, ask(fmt.Sprint("DELETE FROM carts WHERE id = ", 50+n)).with("actor", "invoice-bot")))
	}
	some := g.hold(t, ask("UPDATE orders SET status = 'archived' WHERE status = 'paid'"))
	misread := g.hold(t, ask("DELETE FROM orders WHERE id = 7 AND status <> 'p\u0430id'"))
	w := openTab(t, b, startTestPlane(t, g.base)).walk()
	w.login()
	w.until("document.title.startsWith('(12) ')")
	w.open("/approvals")
	w.until("document.querySelector('#count-waiting').innerText.startsWith('12') && document.activeElement.id === 'main'")
	require.Equal(t, strings.Join(append([]string{misread, some}, plain...), " "), w.value("[...document.querySelectorAll('[data-row]')].map(e => e.dataset.row).join(' ')"))
	require.Equal(t, "50 51 52 53 54 55 56 57 58 59", w.value("[...document.querySelectorAll('.differs')].map(e => e.innerText).join(' ')"))

	pressed := 0
	press := func(keys ...string) {
		pressed += len(keys)
		for _, key := range keys {
			w.do(chromedp.KeyEvent(key))
		}
	}
	yes := func() {
		w.until("document.querySelector('dialog[open]')")
		require.Equal(t, "no", w.value("document.activeElement.value"), "the careful answer has the focus")
		pressed++
		w.do(chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)))
		require.Equal(t, "yes", w.value("document.activeElement.value"))
		press(kb.Enter)
	}
	status := func(id, want string) {
		t.Helper()
		require.Eventually(t, func() bool { return g.record(t, id)["resolution"] == want }, waitForPage, pollEvery, id)
	}
	at := func(id string) {
		t.Helper()
		w.until("location.pathname === '/approvals/" + id + "' && document.querySelector('.scripted .decide') && document.activeElement.id === 'main'")
	}
	press("?")
	w.until("document.querySelector('#keys[open]')")
	w.see("inbox keys")
	press(kb.Escape)
	w.until("!document.querySelector('dialog[open]')")
	w.do(chromedp.Focus("#main"))
	press("j", "j", "k")
	require.Equal(t, "/approvals/"+misread, w.value("document.activeElement.getAttribute('href')"))
	w.requireLight()
	press(kb.Enter)
	at(misread)
	w.requireLight()
	press("j")
	w.until("document.getElementById('said').innerText.includes('There is no list here to go through.')")
	w.do(chromedp.SendKeys("#note", "a r x not what it says"))
	require.Equal(t, "a r x not what it says", w.value("document.getElementById('note').value"))
	require.Equal(t, "null", w.value("String(document.querySelector('dialog[open]'))"), "who types a note decides nothing")
	w.do(chromedp.Focus("#main"))
	press("r")
	yes()
	at(some) // by itself
	w.sees("Rejecting one statement in 5 seconds: DELETE FROM orders WHERE id = 7 AND ")
	w.pictureOfScreen("held", 1440)
	press("u")
	at(misread)
	require.Equal(t, "a r x not what it says", w.value("document.getElementById('note').value"))
	require.Equal(t, "pending", g.record(t, misread)["status"], "nothing was sent")
	press("r")
	yes()
	at(some)
	status(misread, "reject")
	require.Equal(t, "a r x not what it says", g.record(t, misread)["note"])
	pressed = 0
	press("a")
	yes()
	at(plain[0])
	t.Logf("from a card to its decision: %d keys", pressed)
	status(some, "approve")

	late := g.hold(t, ask("DELETE FROM orders WHERE id = 8").with("actor", "late; one"))
	w.open("/approvals/" + late)
	w.until("document.querySelector('.scripted .decide')")
	said := w.value(`(() => {
		document.querySelector('.lead [data-countdown]').dataset.countdown = new Date(+new Date(document.querySelector('main[data-now]').dataset.now) + 900).toISOString();
		document.querySelector('[data-decision=approve]').click();
		const said = document.querySelector('dialog[open]').innerText;
		document.querySelector('dialog[open] [value=yes]').click();
		return said;
	})()`)
	require.Contains(t, said, "Its time is nearly over, so that is sent at once and can't be taken back.")
	require.Contains(t, said, "“late; one” asks to delete from public.orders", "a claim ends no sentence")
	status(late, "approve")

	w.open("/approvals")
	w.until("document.activeElement.id === 'main' && document.querySelectorAll('[data-select]').length === 10")
	require.Equal(t, "true", w.value("String([...document.querySelectorAll('.inbox .line')].every(e => parseFloat(getComputedStyle(e).fontSize) >= 15))"))
	press("a")
	w.until("document.getElementById('said').innerText.includes('Nothing is selected. Select with x, or open one with Enter.')")
	press("j", "x", "j", "x", "a")
	w.until("document.querySelector('dialog[open]')")
	require.Equal(t, "DELETE FROM carts WHERE id = 50|DELETE FROM carts WHERE id = 51", w.value("[...document.querySelectorAll('#confirm-list .line')].map(e => e.innerText).join('|')"), "the question names each")
	w.see("inbox together")
	yes()
	status(plain[0], "approve")
	status(plain[1], "approve")
	for _, id := range plain[2:] {
		require.Equal(t, "pending", g.record(t, id)["status"])
	}
	w.until("document.querySelectorAll('[data-row]').length === 8")
	w.do(chromedp.Click("[data-all]"), chromedp.Click(`[data-together="reject"]`))
	yes()
	for _, id := range plain[2:] {
		status(id, "reject")
	}
	w.sees("Nobody waits for you.")

	for n := range 2 {
		g.hold(t, ask(fmt.Sprintf("DELETE FROM orders WHERE id = %d AND status <> 'p\u0430id'", n)))
	}
	w.until("document.querySelectorAll('[data-select]').length === 2")
	w.sees("To approve, open each: read with care, deletes elsewhere.")
	require.Equal(t, "null", w.value("String(document.querySelector('[data-together=\"approve\"]'))"))
	w.do(chromedp.Focus("#main"))
	press("j", "x", "a")
	w.until("document.getElementById('said').innerText.includes('“Delete from public.orders” is not approved together. To approve, open each: read with care, deletes elsewhere.')")
	press("x")

	// What is alike but for a claim says so, in the list and in the question; and a list that
	// is left alone says what it does not show.
	alike := ask("DELETE FROM carts WHERE id = 70")
	first, second := g.hold(t, alike.with("tenant", "acme")), g.hold(t, alike.with("tenant", "globex").with("role", "admin"))
	w.until("document.querySelectorAll('[data-select]').length === 4")
	require.Equal(t, "acme clerk globex admin", w.value("[...document.querySelectorAll('[data-row] .soft .differs')].map(e => e.innerText).join(' ')"))
	w.value("document.querySelector('[data-select=\"" + first + "\"]').click(), ''") // wherever it moves to meanwhile
	w.value("document.querySelector('[data-select=\"" + second + "\"]').click(), ''")
	w.do(chromedp.Click(`section:has([data-row="` + first + `"]) [data-together="approve"]`))
	w.until("document.querySelector('dialog[open]')")
	w.pictureOfScreen("together", 1440)
	require.Equal(t, "acme clerk globex admin", w.value("[...document.querySelectorAll('#confirm-list .differs')].map(e => e.innerText).join(' ')"))
	require.Equal(t, http.StatusOK, g.resolve(t, first, "reject").status)
	w.until("document.querySelector('#confirm-list [data-of=\"" + first + "\"]').innerText.includes('Decided or over meanwhile')")
	yes()
	status(second, "approve")
	require.Equal(t, "reject", g.record(t, first)["resolution"])
	w.until("document.querySelectorAll('[data-row]').length === 2")
	w.value("document.querySelector('[data-select]').click(), ''")
	g.hold(t, alike)
	w.sees("The list has changed: 1 new.")
	w.do(chromedp.Click("[data-show]"))
	w.until("document.querySelectorAll('[data-row]').length === 3 && !document.querySelector('.changed')")
	require.Equal(t, http.StatusOK, g.resolve(t, w.value("[...document.querySelectorAll('[data-row]')].at(-1).dataset.row"), "reject").status)

	// Each decision has its own five seconds: the second one takes nothing from the first.
	w.open("/approvals")
	w.until("document.activeElement.id === 'main' && document.querySelectorAll('[data-row]').length === 2")
	ids := strings.Fields(w.value("[...document.querySelectorAll('[data-row]')].map(e => e.dataset.row).join(' ')"))
	w.open("/approvals/" + ids[0])
	at(ids[0])
	press("r")
	yes()
	at(ids[1])
	press("r")
	yes()
	w.until("document.querySelectorAll('.held').length === 2")
	require.Equal(t, "2", w.value("String(new Set([...document.querySelectorAll('.held span')].map(e => e.innerText)).size)"), "each names its statement")
	w.do(chromedp.Click(".held:last-of-type button"))
	w.sees("Taken back. Nothing was sent.")
	status(ids[0], "reject")
	require.Equal(t, "pending", g.record(t, ids[1])["status"])
}

// A part of the inbox stays the same part from card to card, and one that there is not is
// refused.
func TestTheInboxKeepsItsFilter(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	first := g.hold(t, ask("DELETE FROM orders WHERE id = 3").with("actor", "ana"))
	g.hold(t, ask("DELETE FROM orders WHERE id = 4").with("actor", "ben"))
	last := g.hold(t, ask("DELETE FROM orders WHERE id = 5").with("actor", "ana"))
	plane := startTestPlane(t, g.base).reader(t)
	require.Contains(t, plane.page(t, "/approvals?actor=ana"), `href="/approvals/`+first+`?actor=ana"`)
	require.Contains(t, plane.page(t, "/approvals/"+first+"?actor=ana"), `data-next="/approvals/`+last+`?actor=ana"`)
	card := plane.page(t, "/approvals/"+last+"?actor=ana")
	require.Contains(t, card, `data-next="/approvals?actor=ana"`)
	require.Contains(t, card, `<a href="/approvals?actor=ana">Approvals</a>`)
	require.Contains(t, plane.page(t, "/approvals"), `href="/approvals/`+first+`"`)
	answer, err := plane.Get(plane.base + "/approvals?risk=foo")
	require.NoError(t, errors.Join(err, answer.Body.Close()))
	require.Equal(t, http.StatusBadRequest, answer.StatusCode)
}

// tenByKeys is a night's work without a mouse: log in, find the inbox, decide ten. It tells
// how many keys and how much time of the page one decision takes.
func tenByKeys(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	var held []string
	for n := range 10 {
		held = append(held, g.hold(t, ask(fmt.Sprint("DELETE FROM orders WHERE id = ", 50+n))))
	}
	w := openTab(t, b, startTestPlane(t, g.base))
	pressed := 0
	press := func(keys ...string) {
		pressed += len(keys)
		for _, key := range keys {
			w.do(chromedp.KeyEvent(key))
		}
	}
	back := func() {
		pressed++
		w.do(chromedp.KeyEvent(kb.Tab, chromedp.KeyModifiers(chromedp.ModifierShift)))
	}
	tabTo := func(what string) {
		for range 30 {
			if w.value("String(document.activeElement.matches("+quoted(what)+"))") == "true" {
				return
			}
			press(kb.Tab)
		}
		w.fail("the tabulator never came to " + what)
	}
	w.open("/login")
	w.until("document.getElementById('username')")
	tabTo("#username")
	press("a", "n", "a", kb.Tab)
	for _, key := range planePassword {
		press(string(key))
	}
	press(kb.Enter)
	w.until("document.querySelector('.who')")
	tabTo("nav a[href='/approvals']")
	press(kb.Enter)
	w.until("location.pathname === '/approvals' && document.activeElement.id === 'main'")
	press("j", kb.Enter)
	t.Logf("from the login to the first card: %d keys", pressed)
	pressed = 0
	var took time.Duration
	for i, id := range held { // the first to end is the first
		w.until("location.pathname === '/approvals/" + id + "' && document.querySelector('.scripted .decide') && document.activeElement.id === 'main'")
		began := time.Now()
		press([]string{"a", "r"}[i%2])
		w.until("document.querySelector('dialog[open]')")
		back()
		press(kb.Enter)
		w.until("location.pathname !== '/approvals/" + id + "'")
		took += time.Since(began)
	}
	for i, id := range held {
		require.Eventually(t, func() bool { return g.record(t, id)["resolution"] == []any{"approve", "reject"}[i%2] }, waitForPage, pollEvery, id)
	}
	t.Logf("a decision, from its card to the next one: %.1f keys, %d ms", float64(pressed)/float64(len(held)), took.Milliseconds()/int64(len(held)))
}

// What a write reaches is looked at again when its card is opened: hours may lie between,
// and somebody who makes a trigger meanwhile is not heard of otherwise.
func TestACardShowsWhatAWriteReachesByNow(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables+`; CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER was_there AFTER DELETE ON orders FOR EACH ROW EXECUTE FUNCTION audit()`)
	g := startGate(t, d, "GATE_PLAN_ESTIMATES=true")
	plane := startTestPlane(t, g.base).reader(t)
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 1"))
	card := func() string { return plane.page(t, "/approvals/"+id) }
	require.NotContains(t, card(), "Changed since it was asked for")
	now := func(headers ...string) any {
		return g.do(t, http.MethodGet, "/approvals/"+id+"?reach=now", nil, headers...).json(t)["reached_now"]
	}
	require.Nil(t, now(), "it is for operators")
	require.NotNil(t, now(operatorHeader))
	require.Nil(t, g.do(t, http.MethodGet, "/approvals/"+id, nil, operatorHeader).json(t)["reached_now"], "nobody asked for it")
	requireFault(t, g.get(t, "/approvals/"+id+"?reach=then"), http.StatusBadRequest, "validation_failed")

	g.execute(t, `CREATE TABLE invoices (order_id bigint REFERENCES orders ON DELETE CASCADE);
		CREATE TRIGGER came_later AFTER DELETE ON orders FOR EACH ROW EXECUTE FUNCTION audit();
		DROP TRIGGER was_there ON orders; ALTER TABLE order_items DROP CONSTRAINT order_items_order_id_fkey`)
	shown := card()
	for _, words := range []string{"High risk", "Changed since it was asked for", "It reaches public.invoices too.", "A write of public.orders fires came_later, which calls public.audit.",
		"A write of public.orders does not fire was_there, which calls public.audit any more.", "It does not reach public.order_items any more.", "by cascade, from public.invoices"} {
		require.Contains(t, shown, words)
	}
	_, out, _ := g.cli(t, "", "approvals", "show", id)
	require.Contains(t, out, "It reaches public.invoices too.")
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	require.Nil(t, now(operatorHeader), "it is decided")
}
