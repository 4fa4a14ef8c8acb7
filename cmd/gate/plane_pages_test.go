package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/browser"
)

// picturesVariable names the folder that pictures of every page are written to;
// `make screenshots` sets it. Without it the pages are judged and not kept.
const picturesVariable = "SCREENSHOTS"

// A look is a width and a theme that pages are seen in.
type look struct {
	width int64
	dark  bool
}

// looks are those that a test walks through; pictures are taken in all of them.
var looks = []look{{390, false}, {390, true}, {1440, false}, {1440, true}}

// A walk sees one page after the other.
type walk struct {
	*tab
	folder string          // of the pictures, "" where there are none
	links  map[string]bool // of all pages to others
}

func (w *tab) walk() *walk {
	return &walk{tab: w, folder: os.Getenv(picturesVariable), links: make(map[string]bool)}
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// see judges the page that is open, in each look, and keeps pictures of it.
func (w *walk) see(name string) {
	w.t.Helper()
	w.until("document.querySelector('main h1')")
	for _, link := range strings.Fields(w.value("[...document.querySelectorAll('a[href^=\"/\"]')].map(a => a.getAttribute('href').replaceAll(' ', '%20')).join(' ')")) {
		w.links[link] = true
	}
	for _, l := range looks {
		if l.width != looks[0].width && w.folder == "" {
			continue // the narrow screen is the one that things do not fit on
		}
		require.NoError(w.t, browser.Look(w.ctx, l.width, l.dark))
		w.until("[...document.images].every(i => i.complete)")
		assert.Equal(w.t, "", w.value(readability), "%s, %d wide, dark: %v", name, l.width, l.dark)
		assert.Equal(w.t, "true", w.value("String(document.documentElement.scrollWidth <= innerWidth + 1)"), "%s is wider than the screen", name)
		w.picture(name, l)
	}
}

func (w *walk) picture(name string, l look) {
	w.t.Helper()
	if w.folder == "" {
		return
	}
	theme := "light"
	if l.dark {
		theme = "dark"
	}
	png, err := chromedp.Run(w.ctx, chromedp.FullScreenshot(100))
	require.NoError(w.t, err)
	require.NoError(w.t, os.MkdirAll(w.folder, 0o755))
	file := fmt.Sprintf("%s-%d-%s.png", strings.Trim(notInNames.ReplaceAllString(name, "-"), "-"), l.width, theme)
	require.NoError(w.t, os.WriteFile(filepath.Join(w.folder, file), png, 0o644))
}

// pictureOfScreen keeps what stands in the first screen.
func (w *walk) pictureOfScreen(name string, width int64) {
	w.t.Helper()
	if w.folder == "" {
		return
	}
	png, err := chromedp.Run(w.ctx, chromedp.CaptureScreenshot())
	require.NoError(w.t, err)
	require.NoError(w.t, os.MkdirAll(w.folder, 0o755))
	require.NoError(w.t, os.WriteFile(filepath.Join(w.folder, fmt.Sprintf("%s-%d-first.png", strings.Trim(notInNames.ReplaceAllString(name, "-"), "-"), width)), png, 0o644))
}

// page opens a page, which takes few requests, and sees it.
func (w *walk) page(name, path string) {
	w.t.Helper()
	w.open(path)
	require.Equal(w.t, "", w.value("(all => all.length <= 6 ? '' : all.map(e => e.name).join())("+loaded+")"), name)
	w.see(name)
}

// everyPage holds contrast, labels, headings and the size of what is pressed, on
// every page in light and dark: empty, with an evening's work, and after each
// thing that a person does there.
func everyPage(t *testing.T, b *browser.Browser) {
	s := startScene(t)
	p := startTestPlane(t, s.base, "CONTROL_PLANE_PROJECT_KEY="+s.key)
	w := openTab(t, b, p).walk()
	w.page("login", "/login")
	w.do(chromedp.SendKeys("#username", "ana"), chromedp.SendKeys("#password", "not it"), chromedp.Click("form button"))
	w.sees("The name or the password is wrong.")
	w.see("login refused")
	w.login()
	for _, path := range []string{"overview", "approvals", "executions", "agents", "audit?actor=nobody"} {
		w.page("empty "+path, "/"+strings.TrimPrefix(path, "overview"))
	}
	s.play(t)
	for _, page := range [][2]string{
		{"overview", "/"}, {"approvals", "/approvals"}, {"approvals given", "/approvals?show=approved"}, {"approvals rejected", "/approvals?show=rejected"},
		{"card misleading", "/approvals/" + s.misleading}, {"card schema", "/approvals/" + s.change}, {"card used", "/approvals/" + s.given},
		{"story", "/requests/" + s.request}, {"audit", "/audit"}, {"audit filtered", "/audit?event_type=decision_recorded&actor=ana"}, {"audit refused", "/audit?since=yesterday"},
		{"approvals expired", "/approvals?show=expired"}, {"executions unknown", "/executions?state=unknown"}, {"agents inactive", "/agents?status=inactive"},
		{"policies", "/policies"}, {"policy active", "/policies/shop-gate@1.0.0"}, {"policy candidate", "/policies/shop-gate@1.1.0"},
		{"policy diff", "/policy-diff?base=shop-gate@1.0.0&target=shop-gate@1.1.0&last=1h"}, {"dry run", "/policy-dry-run"},
		{"evidence", "/evidence"}, {"executions", "/executions"}, {"execution unknown", "/executions/" + s.lost},
		{"grants", "/grants"}, {"grant new", "/grant-new"}, {"agents", "/agents"}, {"agent", "/agents/" + s.agent}, {"agent tried", "/agents/" + s.agent + "?policy=" + s.rules + "&priority=high#try"}, {"logs", "/logs"}, {"nothing here", "/nowhere"},
	} {
		w.page(page[0], page[1])
	}
	require.NoError(t, browser.Look(w.ctx, 800, false)) // where a line of a list is cut
	for _, path := range []string{"/", "/approvals"} {
		w.open(path)
		w.until("document.querySelector('main .line')")
		require.Equal(t, "true", w.value("String(document.documentElement.scrollWidth <= innerWidth + 1)"), path)
	}
	w.open("/policies/shop-gate@1.1.0")
	w.sees("Looser or tighter: it depends on the statement") // the longest there is, on a page that was judged
	w.do(chromedp.Click(`a[href^="/policy-dry-run"]`))
	w.until("document.getElementById('d-version')?.value === 'shop-gate@1.1.0'")
	w.followed()
	w.deeds(s)
	w.requireNothingKept(s.testGate)
	p.requireNoSecret(t, s.testGate)
}

// followed holds that every link leads to what it names, in a page of at most 100 KiB
// unless that shows a statement whole, which may have more.
func (w *walk) followed() {
	w.t.Helper()
	require.Greater(w.t, len(w.links), 20)
	links, err := json.Marshal(slices.Sorted(maps.Keys(w.links)))
	require.NoError(w.t, err)
	w.value(`window.led = null; (async () => {
		const bad = [];
		for (const link of ` + string(links) + `) {
			const answer = await fetch(link);
			const text = await answer.text();
			if (answer.status !== 200 || text.includes('<p class="callout bad" role="alert">')) bad.push(link + ": " + answer.status);
			else if (text.length > 100 * 1024 && !/^\/(approvals|requests)\//.test(link) && answer.headers.get("Content-Type").startsWith("text/html")) bad.push(link + ": " + text.length + " bytes");
		}
		led = bad.join(" ");
	})(); ''`)
	w.until("led !== null")
	require.Equal(w.t, "", w.value("led"))
}

// deeds sees what a page shows when something was done on it.
func (w *walk) deeds(s *scene) {
	w.t.Helper()
	w.open("/approvals/" + s.misleading)
	w.do(chromedp.SendKeys("#note", "not what it says"), chromedp.Click(`[data-decision="reject"]`))
	w.until("document.querySelector('dialog[open]')")
	w.see("card confirm")
	w.open("/policies/shop-gate@1.1.0")
	w.do(chromedp.Click(`form[data-policy="activate"] button`))
	w.until("document.querySelector('dialog[open]')")
	w.do(chromedp.SendKeys("#typed-hash", "0000"), chromedp.Click(`dialog button[value="yes"]`))
	w.sees("That is not the SHA-256 of this version.")
	w.see("policy activate")
	w.open("/policies")
	w.value("document.getElementById('document').value = 'schema: gate.policy/v1\\nname: x\\nrulez: []'")
	w.do(chromedp.Click(`[data-step="validate"]`))
	w.until("document.querySelector('#findings li, #findings p')")
	w.see("policy findings")
	w.open("/policy-dry-run")
	w.do(chromedp.SendKeys("#sql", "UPDATE orders SET status = 'paid' WHERE id = 7"), chromedp.Click("form.card button"))
	w.sees("Allowed")
	w.see("dry run result")
	w.open("/evidence")
	w.do(chromedp.Click(`form[action="/evidence/verify"] button`))
	w.sees("Every check passed")
	w.see("evidence verified")
	file := filepath.Join(w.t.TempDir(), "bundle.json")
	require.NoError(w.t, os.WriteFile(file, []byte(`{"bundle_type":"gate.evidence_bundle.v1"}`), 0o600))
	w.open("/evidence")
	w.do(chromedp.SetUploadFiles("#upload", []string{file}), chromedp.Click(`form[action="/evidence/check"] button`))
	w.until("document.querySelector('#upload-result .pill.bad')")
	w.see("evidence damaged")
	w.open("/executions/" + s.lost)
	w.do(chromedp.Click("[data-check]"))
	w.sees("It was applied. Do not send it again.")
	w.see("execution settled")
}

// whenItDoesNot sees the states in which the gate does not simply enforce: mock
// mode, shadow mode, emergency bypass, a start that failed, out of reach. None of
// them looks like the ordinary one.
func whenItDoesNot(t *testing.T, b *browser.Browser) {
	mock := openTab(t, b, startTestPlane(t, "http://127.0.0.1:1", "CONTROL_PLANE_MODE=mock")).walk()
	mock.login()
	for _, path := range []string{"/", "/approvals", "/approvals/apr_mock-0", "/executions/exe_mock", "/agents/agt_mock"} {
		mock.page("mock "+path, path)
	}
	closed := startShop(t, "GATE_MODE=shadow")
	w := openTab(t, b, startTestPlane(t, closed.base)).walk()
	w.login()
	w.until("document.getElementById('gate-state').innerText === 'NOT ENFORCING'")
	w.page("shadow mode", "/")
	w.page("agents closed", "/agents")
	closed.end(t)
	w.open("/")
	w.sees("The gate cannot be reached.")
	require.NotContains(t, w.value("document.body.innerText"), "every outcome is known")
	require.NotContains(t, w.value("document.body.innerText"), "nothing to decide")
	w.see("gate down overview")
	w.page("gate down approvals", "/approvals")
	w.page("gate down evidence", "/evidence")
	bypass := openTab(t, b, startTestPlane(t, startShop(t, "GATE_MODE=emergency_bypass", "GATE_EMERGENCY_BYPASS_REASON=the policy server burns",
		"GATE_EMERGENCY_BYPASS_UNTIL="+time.Now().Add(time.Hour).UTC().Format(time.RFC3339)).base)).walk()
	bypass.login()
	bypass.until("/^BYPASS until \\d\\d:\\d\\d/.test(document.getElementById('gate-state').innerText)")
	bypass.sees("Reason given: the policy server burns")
	bypass.page("bypass", "/")
	d := newGateDir(t, nil)
	spoiling("shop-gate@1.0.0.yaml", flipped)(t, d.file("policies"))
	failed := openTab(t, b, startTestPlane(t, startGate(t, d, "GATE_DATABASE_URL="+d.database).base)).walk()
	failed.login()
	failed.until("document.getElementById('gate-state').innerText === 'Refusing everything'")
	failed.sees("The gate refuses every statement.")
	failed.page("start failed", "/")
}

// readability says what is wrong with a page, by WCAG 2.2: text with too little
// contrast (1.4.3), fields and buttons without a name (4.1.2), pictures without
// words (1.1.1), headings that skip a level (1.3.1), things to press that are
// smaller than 24 pixels (2.5.8).
const readability = `(() => {
  const wrong = [];
  const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return { r: m[0], g: m[1], b: m[2], a: m[3] ?? 1 }; };
  const over = (top, under) => ({ r: top.r * top.a + under.r * (1 - top.a), g: top.g * top.a + under.g * (1 - top.a), b: top.b * top.a + under.b * (1 - top.a), a: 1 });
  const light = (c) => { const f = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(c.r) + 0.7152 * f(c.g) + 0.0722 * f(c.b); };
  const ground = (e) => { const layers = []; for (; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor)); let c = { r: 255, g: 255, b: 255, a: 1 }; for (const l of layers.reverse()) c = over(l, c); return c; };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || seen.has(e) || !e.offsetParent || e.closest('.unseen, option, script, style, noscript')) continue;
    seen.add(e);
    const style = getComputedStyle(e), back = ground(e), front = over(parse(style.color), back);
    const [hi, lo] = [light(front), light(back)].sort((a, b) => b - a);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && parseInt(style.fontWeight) >= 700);
    if ((hi + 0.05) / (lo + 0.05) < (large ? 3 : 4.5)) wrong.push('contrast ' + ((hi + 0.05) / (lo + 0.05)).toFixed(2) + ': ' + e.textContent.trim().slice(0, 40));
  }
  for (const e of document.querySelectorAll('input:not([type=hidden]), select, textarea')) if (!(e.labels?.length || e.getAttribute('aria-label'))) wrong.push('no label: ' + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll('button, a[href]')) if (!(e.textContent.trim() || e.getAttribute('aria-label'))) wrong.push('no name: ' + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll('img')) if (!e.alt) wrong.push('no words: ' + e.src);
  for (const e of document.querySelectorAll('img')) if (e.complete && e.naturalWidth === 0) wrong.push('no picture: ' + e.src);
  for (const e of document.querySelectorAll('button, summary, input:not([type=hidden]), select, textarea, nav a, .tabs a, .inbox a, .button, a.tile')) { const r = e.getBoundingClientRect(); if (r.width && (r.width < 24 || r.height < 24)) wrong.push('too small to press: ' + e.outerHTML.slice(0, 60)); }
  let level = 0;
  for (const e of document.querySelectorAll('h1, h2, h3, h4')) { if (!e.offsetParent) continue; const n = Number(e.tagName[1]); if (n > level + 1) wrong.push('heading skips: ' + e.textContent.slice(0, 40)); level = n; }
  if (document.querySelectorAll('main').length !== 1 || !document.documentElement.lang || !document.title) wrong.push('no main, language or title');
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  if (new Set(ids).size !== ids.length) wrong.push('an id stands twice: ' + ids.filter((id, i) => ids.indexOf(id) !== i));
  return wrong.join('\n');
})()`
