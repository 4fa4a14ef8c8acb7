package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/browser"
)

// listsGoOn holds that a page which can't show all says so and leads to the rest, and
// that what a rollback brings back is the gate's word.
func listsGoOn(t *testing.T, b *browser.Browser) {
	g := startAgents(t)
	p := startTestPlane(t, g.base, "CONTROL_PLANE_PROJECT_KEY="+g.key)
	first, _ := g.register(t, "the-first")
	var last string
	for i := range 200 {
		last, _ = g.register(t, fmt.Sprintf("one-of-many-%d", i))
	}
	w := openTab(t, b, p)
	w.login()
	w.open("/agents")
	w.sees("There are more than these 200.")
	w.value("[...document.querySelectorAll('a')].find(a => a.innerText === 'Older ones').click(); ''")
	w.until("document.querySelector('[data-agent=\"" + first + "\"]')")
	w.until("document.querySelectorAll('[data-agent]').length === 1")
	require.Equal(t, http.StatusOK, g.v1(t, http.MethodDelete, "/agents/"+last, "").status)
	w.open("/agents")
	w.until("document.querySelectorAll('[data-agent]').length === 200 && !document.querySelector('[data-agent=\"" + last + "\"]')")
	w.sees("the-first")
	w.open("/agents?status=inactive")
	w.until("document.querySelectorAll('[data-agent]').length === 1 && document.querySelector('[data-agent=\"" + last + "\"]')")

	open := g.get(t, "/policy/status").text(t, "policy_version")
	require.Nil(t, g.get(t, "/policy/status").json(t)["rollback_version"])
	document := func(n int) string {
		return strings.Replace(openAgents, "version: 1.0.0", fmt.Sprintf("version: 1.0.%d", n), 1)
	}
	g.activate(t, document(1))
	for n := range 200 {
		g.propose(t, document(n+2))
	}
	require.Equal(t, open, g.get(t, "/policy/status").text(t, "rollback_version"))
	w.open("/policies")
	w.sees("Roll back to " + open)
	w.until("document.querySelectorAll('tbody tr').length === 200")
	w.value("[...document.querySelectorAll('a')].find(a => a.innerText === 'Older').click(); ''")
	w.until("document.querySelectorAll('tbody tr').length === 2")
	w.sees(open)
	w.open("/policy-diff?target=" + open)
	require.Equal(t, open, w.value("document.getElementById('target').value"))
}
