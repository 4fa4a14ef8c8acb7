package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/browser"
)

// attackPage tries, against one address, everything by which a page makes a
// browser send something or learns something; what came of it is its value, a
// line for each way. It is the function of the page; %s is the address.
const attackPage = `(async base => {
  const statement = n => JSON.stringify({actor: 'page', app: 'shop', tenant: 'acme', role: 'clerk', host: 'page', env: 'prod', sql: "INSERT INTO orders VALUES (" + n + ", 1, 'page')"});
  const told = [];
  const within = (p, what) => Promise.race([p, new Promise(done => setTimeout(done, 5000, 'late'))]).then(r => told.push(what + ': ' + r), e => told.push(what + ': refused'));
  const read = r => r.type === 'opaque' ? 'refused' : r.text().then(t => r.ok ? 'READ ' + t.slice(0, 80) : 'refused');
  const seen = (e, otherwise = 'refused') => {
    if (!('contentDocument' in e)) return otherwise;
    let text = '';
    try { text = e.contentDocument.body.innerText; } catch (refused) {}
    return text === '' || text.includes('error_code') ? 'refused' : 'READ ' + text.slice(0, 80);
  };
  const json = {'Content-Type': 'application/json'};
  let n = 7000;
  for (const mode of ['cors', 'no-cors']) for (const credentials of ['include', 'omit']) {
    for (const headers of [json, {'Content-Type': 'text/plain'}, {}]) {
      await within(fetch(base + '/query', {method: 'POST', mode, credentials, headers, body: statement(n++)}).then(read), 'fetch POST');
    }
    await within(fetch(base + '/query', {method: 'POST', mode, credentials, headers: json, body: new Blob([statement(n++)])}).then(read), 'fetch of a blob without a type');
    await within(fetch(base + '/query', {method: 'POST', mode, credentials, referrerPolicy: 'no-referrer', body: new Blob([statement(n++)])}).then(read), 'fetch without a referrer');
    for (const path of ['/audit', '/health', '/policy/status', '/login', '/api/gate/health', '/audit/stream', '/v1/openapi.json']) {
      await within(fetch(base + path, {mode, credentials}).then(read), 'fetch ' + path);
    }
    await within(fetch(base + '/approvals/purge', {method: 'POST', mode, credentials}).then(read), 'fetch without a body');
    await within(fetch(base + '/query', {method: 'PUT', mode: 'cors', credentials, body: '{}'}).then(read), 'fetch PUT');
  }
  await within(Promise.resolve(navigator.sendBeacon(base + '/query', new Blob([statement(n++)], {type: 'text/plain'}))).then(() => 'sent'), 'beacon');
  await within(new Promise(done => {
    const x = new XMLHttpRequest();
    x.onload = () => done(x.status < 400 ? 'READ ' + x.responseText.slice(0, 80) : 'refused'); x.onerror = () => done('refused');
    x.open('POST', base + '/query'); x.setRequestHeader('Content-Type', 'text/plain'); x.withCredentials = true; x.send(statement(n++));
  }), 'XMLHttpRequest');
  for (const path of ['/audit/stream?from_seq=1', '/api/gate/audit/stream?from_seq=1']) await within(new Promise(done => {
    const e = new EventSource(base + path, {withCredentials: true});
    e.onopen = () => { e.close(); done('READ a stream'); }; e.onmessage = e.onopen; e.onerror = () => { e.close(); done('refused'); };
  }), 'EventSource');
  for (const path of ['/audit/stream', '/query']) await within(new Promise(done => {
    const s = new WebSocket(base.replace('http', 'ws') + path);
    s.onopen = () => done('READ a socket'); s.onerror = () => done('refused');
  }), 'WebSocket');
  for (const [name, attribute, path] of [['img', 'src', '/audit'], ['script', 'src', '/audit'], ['script', 'src', '/v1/openapi.json'], ['link', 'href', '/audit'], ['video', 'src', '/audit'], ['object', 'data', '/audit'], ['iframe', 'src', '/health']]) {
    await within(new Promise(done => {
      const e = document.createElement(name);
      if (name === 'link') e.rel = 'stylesheet';
      e.onload = () => done(seen(e, 'READ ' + name)); e.onerror = () => done('refused');
      e[attribute] = base + path; document.body.append(e);
      if (name === 'video' || name === 'object') setTimeout(done, 500, 'refused');
    }), name);
  }
  for (const enctype of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data']) {
    const frame = document.createElement('iframe'); frame.name = 'f' + n; document.body.append(frame);
    const form = document.createElement('form'); form.method = 'post'; form.enctype = enctype; form.target = frame.name;
    form.action = base + '/query?sql=' + encodeURIComponent("INSERT INTO orders VALUES (" + n + ", 1, 'page')");
    const field = document.createElement('input'); field.name = statement(n++).slice(0, -1) + ',"x":"'; field.value = '"}'; form.append(field);
    document.body.append(form);
    await within(new Promise(done => { frame.onload = () => done(seen(frame)); form.submit(); setTimeout(done, 500, 'refused'); }), 'form of ' + enctype);
  }
  return told.join('\n');
})(%s)`

// Pages of another port and of names that lead here, against a gate and a
// dashboard in which a person is logged in: nothing is done for them, and nothing
// is told to them.
func hostilePages(t *testing.T, b *browser.Browser) {
	g := startShop(t)
	p := startTestPlane(t, g.base)
	w := openTab(t, b, p)
	w.login()
	// hostile opens a page that the attacker made, at an address that is the gate's a moment later.
	hostile := func(base string) *tab {
		stranger := openTab(t, b, &testPlane{base: base, output: &lockedBuffer{}})
		require.NoError(t, chromedp.Listen(stranger.ctx, func(ev any) {
			if paused, ok := ev.(*fetch.EventRequestPaused); ok {
				go func() {
					_, _ = chromedp.Call(stranger.ctx, fetch.FulfillRequest, fetch.FulfillRequestParams{RequestID: paused.RequestID, ResponseCode: 200,
						ResponseHeaders: []*fetch.HeaderEntry{{Name: "Content-Type", Value: "text/html"}}, Body: []byte("<!doctype html><title>x</title><body>")}) // the page does not come without it
				}()
			}
		}))
		_, err := chromedp.Call(stranger.ctx, fetch.Enable, fetch.EnableParams{Patterns: []*fetch.RequestPattern{{URLPattern: "*/made-by-the-attacker"}}})
		require.NoError(t, err)
		stranger.open("/made-by-the-attacker")
		return stranger
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!doctype html><title>x</title><body>")
	}))
	defer elsewhere.Close()
	port := func(base string) string { return base[strings.LastIndex(base, ":"):] }
	named := func(name, base string) string { return "http://" + name + port(base) }
	for page, targets := range map[string][]string{
		elsewhere.URL:                          {g.base, p.base}, // another port of the same host: the same site
		named("a.rebound.test", elsewhere.URL): {g.base, p.base, named("localhost", g.base), named("b.rebound.test", g.base)},
		// To the browser this is the page's own origin, so that it may read what it is answered.
		named("a.rebound.test", g.base): {named("a.rebound.test", g.base)},
		named("a.rebound.test", p.base): {named("a.rebound.test", p.base)},
	} {
		for _, target := range targets {
			stranger := hostile(page)
			told := stranger.await(strings.Replace(attackPage, "%s", quoted(target), 1))
			require.NotContains(t, told, "READ", "a page of %s at %s", page, target)
			require.Greater(t, strings.Count(told, "refused"), 30, "a page of %s at %s: %s", page, target, told)
			stranger.mu.Lock()
			stranger.elsewher, stranger.broken = nil, nil // it was meant to try
			stranger.mu.Unlock()
		}
	}
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE status = 'page'"))
	events := string(g.get(t, "/audit?event_type=request_received&limit=1000").body)
	require.NotContains(t, events, `"page"`, "no statement of a page was taken")
	require.Contains(t, g.output.String(), "forbidden_origin", "what was tried came as far as the gate")
	require.Contains(t, g.output.String(), "misdirected_request")
	require.Contains(t, p.output.String(), "forbidden_origin")
	require.Contains(t, p.output.String(), "misdirected_request")
	w.open("/")
	w.until("document.querySelector('.who')")

	// The same page at the gate's own address has it done, so the way of attack is one.
	told := hostile(g.base).await("fetch('/query', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify({actor: 'own', app: 'shop', tenant: 'acme', role: 'clerk', host: 'own', env: 'prod', sql: 'SELECT id FROM orders WHERE id = 1'})}).then(r => r.json()).then(v => v.decision, e => String(e))")
	require.Equal(t, "ALLOW", told)
}
