package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alexedwards/argon2id"
	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/cdp"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/browser"
)

// planePassword opens the dashboards of the tests.
const planePassword = "a password for the dashboards of tests"

// planeHash is as cheap as a dashboard takes: each login of a test pays for it.
var planeHash = sync.OnceValues(func() (string, error) {
	return argon2id.CreateHash(planePassword, &argon2id.Params{Memory: 19 << 10, Iterations: 1, Parallelism: 1, SaltLength: 16, KeyLength: 32})
})

// A testPlane is `gate control-plane` in this process, with a listener in front
// that writes down everything a browser is served.
type testPlane struct {
	base   string // as browsers reach it
	hash   string
	own    []string // settings of this one alone
	stop   context.CancelFunc
	ended  chan int
	output *lockedBuffer
	served *lockedBuffer
}

// startTestPlane starts a dashboard for the gate at base; more are settings.
func startTestPlane(t *testing.T, base string, more ...string) *testPlane {
	t.Helper()
	return startTestPlaneWith(t, base, func(*app) {}, more...)
}

// startTestPlaneWith is startTestPlane with the hooks that set puts in.
func startTestPlaneWith(t *testing.T, base string, set func(*app), more ...string) *testPlane {
	t.Helper()
	hash, err := planeHash()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	p := &testPlane{hash: hash, own: more, stop: cancel, ended: make(chan int, 1), output: &lockedBuffer{}, served: &lockedBuffer{}}
	ready := make(chan string, 1)
	environ := append([]string{"CONTROL_PLANE_LISTEN_ADDR=127.0.0.1:0", "CONTROL_PLANE_ADMIN_USER=ana", "CONTROL_PLANE_ADMIN_PASSWORD_HASH=" + hash,
		"GATE_BACKEND_URL=" + base, "GATE_OPERATOR_TOKEN=" + operatorTestToken}, more...)
	a := &app{streams: streams{strings.NewReader(""), p.output, p.output}, environ: environ, ready: func(addr string) { ready <- addr }}
	set(a)
	go func() { p.ended <- a.run(ctx, []string{"control-plane"}) }()
	t.Cleanup(func() { p.end(t) })
	select {
	case addr := <-ready:
		p.base = "http://" + p.tap(t, addr)
	case code := <-p.ended:
		p.ended <- code
		t.Fatalf("the dashboard ended with %d:\n%s", code, p.output)
	case <-time.After(startPatience):
		t.Fatalf("the dashboard did not start:\n%s", p.output)
	}
	return p
}

func (p *testPlane) end(t *testing.T) {
	p.stop()
	select {
	case code := <-p.ended:
		require.Zero(t, code, "the dashboard ended badly:\n%s", p.output)
	case <-time.After(startPatience):
		t.Fatalf("the dashboard did not end:\n%s", p.output)
	}
}

// tap listens in front of an address and keeps a copy of all that it answers.
func (p *testPlane) tap(t *testing.T, target string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var open sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close() // the accept loop ends by it
		p.stop()
		open.Wait()
	})
	open.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() { p.carry(in, target) })
		}
	})
	return listener.Addr().String()
}

func (p *testPlane) carry(in net.Conn, target string) {
	defer in.Close()
	out, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer out.Close()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(out, in) // ends with either side
		_ = out.(*net.TCPConn).CloseWrite()
	})
	_, _ = io.Copy(io.MultiWriter(in, p.served), out)
	_ = in.Close()
	up.Wait()
}

// requireNoSecret holds that nothing a browser was sent, and nothing that was
// logged, shows what only the server may know.
func (p *testPlane) requireNoSecret(t *testing.T, g *testGate) {
	t.Helper()
	served, logged := p.served.String(), p.output.String()
	for what, secret := range p.secrets(g) {
		require.NotContains(t, served, secret, "a browser was served %s", what)
		require.NotContains(t, logged, secret, "the log shows %s", what)
	}
	require.Contains(t, served, "<!doctype html>", "what was served can be read")
	require.Contains(t, served, "Set-Cookie: gate_session=", "with its headers")
	require.Contains(t, logged, "somebody logged in")
}

// secrets are what only the server may know.
func (p *testPlane) secrets(g *testGate) map[string]string {
	secrets := map[string]string{"the operator token": operatorTestToken, "the gate's address": strings.TrimPrefix(g.base, "http://"), "the password": planePassword, "its hash": p.hash}
	if key, given := lookUp(p.own, "CONTROL_PLANE_PROJECT_KEY"); given {
		secrets["the project key"] = key
	}
	return secrets
}

// requireNothingKept holds that the browser keeps one cookie, which no script
// sees and no other page sends, and nothing else; and that the cookie is none of
// the secrets.
func (w *tab) requireNothingKept(g *testGate) {
	w.t.Helper()
	kept, err := chromedp.Call(w.ctx, network.GetCookies, network.GetCookiesParams{URLs: []string{w.p.base}})
	require.NoError(w.t, err)
	require.Len(w.t, kept.Cookies, 1)
	one := kept.Cookies[0]
	require.True(w.t, one.HTTPOnly)
	require.EqualValues(w.t, "Strict", one.SameSite)
	for what, secret := range w.p.secrets(g) {
		require.NotContains(w.t, one.Name+one.Value, secret, "the cookie holds %s", what)
	}
	require.Equal(w.t, "", w.value("document.cookie"), "no script sees the session")
	require.Equal(w.t, "0 0", w.value("localStorage.length + ' ' + sessionStorage.length"))
	require.Equal(w.t, "0 0", w.await("Promise.all([indexedDB.databases(), caches.keys()]).then(([d, c]) => d.length + ' ' + c.length)"))
}

// A tab is one page of a browser, as a person uses it.
type tab struct {
	t   *testing.T
	ctx context.Context
	p   *testPlane

	mu       sync.Mutex
	elsewher []string // requests that left for another host
	broken   []string // scripts that failed, and what the content security policy stopped
}

// waitForPage bounds how long a page may take to show something: a bound for
// what hangs, not a measurement.
const waitForPage = 90 * time.Second

func openTab(t *testing.T, b *browser.Browser, p *testPlane) *tab {
	t.Helper()
	ctx, end := b.Tab()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	w := &tab{t: t, ctx: ctx, p: p}
	t.Cleanup(func() {
		cancel()
		end()
		w.mu.Lock()
		defer w.mu.Unlock()
		require.Empty(t, w.elsewher, "requests for other hosts")
		require.Empty(t, w.broken, "scripts that fail or are stopped")
	})
	require.NoError(t, chromedp.Do(ctx))
	require.NoError(t, chromedp.Listen(ctx, w.notice))
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	require.NoError(t, err)
	_, err = chromedp.Call(ctx, cdplog.Enable, cdp.Empty{})
	require.NoError(t, err)
	return w
}

// notice writes down what a page must not do.
func (w *tab) notice(ev any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch ev := ev.(type) {
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(ev.Request.URL, w.p.base+"/") && strings.HasPrefix(ev.Request.URL, "http") {
			w.elsewher = append(w.elsewher, ev.Request.URL)
		}
	case *cdplog.EventEntryAdded:
		if strings.Contains(ev.Entry.Text, "Content Security Policy") || strings.Contains(ev.Entry.Text, "TrustedHTML") {
			w.broken = append(w.broken, ev.Entry.Text)
		}
	case *runtime.EventExceptionThrown:
		w.broken = append(w.broken, ev.ExceptionDetails.Text+" "+ev.ExceptionDetails.URL)
	}
}

func (w *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, waitForPage)
	defer cancel()
	for _, step := range steps {
		err := chromedp.Do(ctx, step)
		for ; replacedMeanwhile(err) && ctx.Err() == nil; err = chromedp.Do(ctx, step) {
		}
		if err != nil {
			w.fail(err.Error())
		}
	}
}

// replacedMeanwhile reports that a page which keeps itself up to date put another
// element into the place of the one that was found, before anything was done to it.
func replacedMeanwhile(err error) bool {
	var said *cdproto.Error
	return errors.As(err, &said) && (strings.Contains(said.Message, "node") || strings.Contains(said.Message, "Node") || strings.Contains(said.Message, "content quads"))
}

// until waits for something that a script can see in the page.
func (w *tab) until(condition string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, waitForPage)
	defer cancel()
	for ctx.Err() == nil {
		// while a page is being left there is nothing to ask; then it is asked again
		if yes, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+condition+")")); err == nil && yes {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollEvery):
		}
	}
	w.fail("the page never showed: " + condition)
}

// sees waits for text in the page.
func (w *tab) sees(text string) {
	w.t.Helper()
	w.until("document.body && document.body.innerText.includes(" + quoted(text) + ")")
}

func (w *tab) fail(why string) {
	w.t.Helper()
	text, _ := chromedp.Run(w.ctx, chromedp.Evaluate[string]("location.href + '\\n' + document.body.innerText")) // says what it can
	w.t.Fatalf("%s\n%s\n%s", why, text, w.p.output)
}

func (w *tab) open(path string) { w.t.Helper(); w.do(chromedp.Navigate(w.p.base + path)) }

func (w *tab) login() {
	w.t.Helper()
	w.open("/login")
	w.do(chromedp.SendKeys("#username", "ana"), chromedp.SendKeys("#password", planePassword), chromedp.Click("form button"))
	w.sees("Overview")
	w.until("document.querySelector('.who')")
}

// value asks a script for text.
func (w *tab) value(expression string) string {
	w.t.Helper()
	text, err := chromedp.Run(w.ctx, chromedp.Evaluate[string](expression))
	require.NoError(w.t, err)
	return text
}

func quoted(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`).Replace(text) + "'"
}

// waitForFile waits for the one finished file of a folder.
func waitForFile(t *testing.T, dir string) string {
	t.Helper()
	var found string
	require.Eventually(t, func() bool {
		names, err := filepath.Glob(filepath.Join(dir, "*.json"))
		if err != nil || len(names) != 1 {
			return false
		}
		found = names[0]
		content, err := os.ReadFile(found)
		return err == nil && strings.HasSuffix(strings.TrimSpace(string(content)), "}")
	}, waitForPage, pollEvery)
	return found
}
