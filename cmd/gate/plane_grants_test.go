package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/browser"
)

// grantsGiven goes the way of an operator who is asked the same for the third time.
func grantsGiven(t *testing.T, b *browser.Browser) {
	g := startGranted(t)
	id, token := g.register(t, "note-bot")
	p := startTestPlane(t, g.base, "CONTROL_PLANE_PROJECT_KEY="+g.key)
	w := openTab(t, b, p)
	w.login()
	w.open("/grants")
	w.sees("None.")
	var asked string
	for n := range 3 {
		asked = g.as(t, token, bump(n+1)).text(t, "approval_id")
	}
	w.open("/approvals/" + asked)
	w.sees("asked for it 3 times within an hour")
	w.do(chromedp.Click("#offer a"))
	w.sees("It would have covered 3 statements of the last day")
	w.sees("Say above why it is given")
	require.Equal(t, id, w.value("document.getElementById('agent_id').value"))
	require.Equal(t, "3", w.value("String(document.querySelectorAll('#report li').length)"))
	w.value(`for (const [name, value] of [["uses", "2"], ["rows", "5"], ["reason", "notes of <spring>"]]) document.getElementById(name).value = value; ""`)
	w.do(chromedp.Click(`form[action="/grant-new"] button`))
	w.until("document.querySelector('form[data-policy=\"giveGrant\"]')")
	w.do(chromedp.Click(`form[data-policy="giveGrant"] button`))
	w.until("document.querySelector('dialog[open]')")
	require.Empty(t, g.get(t, "/grants").json(t)["items"], "looking and asking give nothing")
	w.do(chromedp.Click(`dialog button[value="yes"]`))
	w.until("location.pathname.startsWith('/grants/gra_')")
	w.sees("notes of <spring>")
	grant := strings.TrimPrefix(w.value("location.pathname"), "/grants/")
	require.Equal(t, []any{"active", id, 2.0, 5.0, "operator"}, pick(g.grantNow(t, grant), "status", "agent_id", "uses", "rows", "created_by"))

	ran := g.as(t, token, bump(4))
	require.Equal(t, http.StatusOK, ran.status, "%s", ran.body)
	w.until("document.querySelector('#grant td a[href^=\"/executions/\"]')") // by itself
	require.Equal(t, "1 4", w.value("[...document.querySelectorAll('#grant .pair strong')].map(e => e.innerText).join(' ')"))
	w.open("/executions/" + ran.text(t, "execution_id"))
	w.until("document.querySelector('a[href=\"/grants/" + grant + "\"]')")
	w.open("/executions")
	w.until("document.querySelector('a[href=\"/grants/" + grant + "\"]')")
	w.open("/grants")
	w.do(chromedp.Click(`[data-grant="` + grant + `"] a`))
	w.sees("What is left")
	w.do(chromedp.SendKeys("#note", "enough"), chromedp.Click(`form[data-policy="revokeGrant"] button`))
	w.until("document.querySelector('dialog[open]')")
	require.Equal(t, "active", g.grantNow(t, grant)["status"])
	w.do(chromedp.Click(`dialog button[value="yes"]`))
	w.until("!document.querySelector('form[data-policy=\"revokeGrant\"]')")
	require.Equal(t, []any{"revoked", "enough", "operator"}, pick(g.grantNow(t, grant), "status", "note", "revoked_by"))
	require.Equal(t, http.StatusAccepted, g.as(t, token, bump(5)).status)
	p.requireNoSecret(t, g.testGate)
}

// A grant is offered for what was asked for three times, by one agent, and held by a rule that
// takes grants; nobody's refusal is asked around.
func TestAGrantIsOfferedForWhatAnAgentAskedForAgain(t *testing.T) {
	t.Parallel()
	g := startGranted(t)
	_, bot := g.register(t, "bot")
	_, other := g.register(t, "other-bot")
	plane := startTestPlane(t, g.base, "CONTROL_PLANE_PROJECT_KEY="+g.key).reader(t)
	const offer = "Give a grant for it"
	card := func(token string, s statement) string {
		asked := g.as(t, token, s)
		require.Equal(t, http.StatusAccepted, asked.status, "%s", asked.body)
		return plane.page(t, "/approvals/"+asked.text(t, "approval_id"))
	}
	require.NotContains(t, card(bot, bump(1)), offer)
	require.NotContains(t, card(bot, bump(2)), offer)
	require.NotContains(t, card(other, bump(3)), offer, "others do not count")
	require.NotContains(t, card(bot, bumpUpTo(3)), offer, "what binds no key is another question")
	require.Contains(t, card(bot, bump(4)), offer)
	for n := range 4 {
		strict := ask(fmt.Sprintf("UPDATE strict_notes SET n = 1 WHERE id = %d", n))
		require.NotContains(t, card(bot, strict), offer, "its rule takes no grants")
		require.NotContains(t, plane.page(t, "/approvals/"+g.hold(t, bump(10+n))), offer, "nobody's agent")
	}
	refused := g.as(t, bot, bump(5)).text(t, "approval_id")
	require.Equal(t, http.StatusOK, g.resolve(t, refused, "reject").status)
	require.NotContains(t, card(bot, bump(6)), offer)

	page := plane.page(t, "/grant-new?approval="+g.as(t, bot, bump(7)).text(t, "approval_id"))
	require.Contains(t, page, `tables_written == [&#34;public.held_notes&#34;]`)
	require.Contains(t, plane.page(t, "/grants"), "Give a grant…")
	none := startTestPlane(t, startShop(t).base).reader(t)
	require.Contains(t, none.page(t, "/grants"), "No rule of the policy in force takes grants")
}

// An execution names its grant, for programs and at the command line.
func TestAnExecutionNamesItsGrant(t *testing.T) {
	t.Parallel()
	g := startGranted(t)
	id, token := g.register(t, "bot")
	grant := g.grant(t, id, onHeld, 3, 10)
	ran := g.as(t, token, bump(1)).text(t, "execution_id")
	require.Equal(t, grant, g.get(t, "/executions/"+ran).text(t, "grant_id"))
	one := g.get(t, "/executions").json(t)["items"].([]any)[0].(map[string]any)
	require.Equal(t, grant, one["grant_id"])
	plain := g.as(t, token, ask("SELECT 1"))
	require.Nil(t, g.get(t, "/executions/"+plain.text(t, "execution_id")).json(t)["grant_id"])
	code, out, errs := g.cli(t, "", "executions", "show", ran)
	require.Zero(t, code, errs)
	require.Contains(t, out, "grant                   "+grant)
}
