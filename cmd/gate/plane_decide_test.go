package main

import (
	"net/http"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

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
}

// A claim whose letters are not those that they look like is marked wherever it stands,
// and its card is no ordinary one.
func TestAMisleadingClaimIsNotOrdinary(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	plane := startTestPlane(t, g.base).reader(t)
	honest := g.hold(t, ask("DELETE FROM orders WHERE id = 3").with("actor", "Анна"))
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
