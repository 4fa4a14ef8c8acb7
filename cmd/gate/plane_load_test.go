package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/browser"
)

// planeEventsVariable is how many events lie behind the overview that is opened;
// `make dashboard` sets it. An ordinary run is short and looks at what is shown
// alone.
const planeEventsVariable = "PLANE_EVENTS"

// TestTheOverviewOverALongLog opens the overview over a log full of decisions
// with hundreds of approvals waiting, and prints when the browser painted it.
func TestTheOverviewOverALongLog(t *testing.T) {
	t.Parallel()
	events, waiting := 400, 50
	if text := os.Getenv(planeEventsVariable); text != "" {
		var err error
		events, err = strconv.Atoi(text)
		require.NoError(t, err)
		waiting = 500
	}
	g := startShop(t)
	g.fill(t, events, waiting)
	p := startTestPlane(t, g.base)
	b, err := browser.Start(context.Background(), os.Stderr)
	require.NoError(t, err)
	defer b.Close()
	w := openTab(t, b, p)
	w.login()
	for range 5 {
		w.open("/")
		w.sees(fmt.Sprintf("All %d", waiting))
		w.until("performance.getEntriesByName('first-contentful-paint').length")
		timing := w.value(`(() => { const n = performance.getEntriesByType('navigation')[0]; const paint = performance.getEntriesByName('first-contentful-paint')[0];
			return 'answered after ' + Math.round(n.responseEnd) + ' ms, first paint after ' + Math.round(paint.startTime) + ' ms, loaded after ' + Math.round(n.loadEventEnd) + ' ms'; })()`)
		t.Logf("overview: %s", timing)
	}
	w.open("/approvals")
	require.Equal(t, "40", w.value("String(document.querySelectorAll('.inbox li').length)"))
	w.requireLight()
	count, err := chromedp.Run(w.ctx, chromedp.Evaluate[float64]("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"))
	require.NoError(t, err)
	t.Logf("inbox of %d: first paint after %.0f ms", waiting, count)
	shown := make(map[string]bool)
	for from := 1; from <= waiting; from += 40 {
		if from > 1 {
			w.open(w.value(`document.querySelector('[aria-label="Pages of the inbox"] a:last-child').getAttribute('href')`))
		}
		w.sees(fmt.Sprintf("%d to %d of %d, the riskiest first", from, min(from+39, waiting), waiting))
		for _, id := range strings.Fields(w.value("[...document.querySelectorAll('[data-row]')].map(e => e.dataset.row).join(' ')")) {
			shown[id] = true
		}
	}
	require.Equal(t, "false", w.value("String(document.body.innerText.includes('Further ones'))"))
	require.Len(t, shown, waiting, "each stands on one of the pages")
	w.open(w.value(`document.querySelector('[aria-label="Pages of the inbox"] a:first-child').getAttribute('href')`))
	w.sees(fmt.Sprintf("%d to %d of", (waiting-1)/40*40-39, (waiting-1)/40*40))
	w.open("/approvals?from=100000")
	w.sees(fmt.Sprintf("of %d, the riskiest first", waiting))
	require.NotEqual(t, "0", w.value("String(document.querySelectorAll('.inbox li').length)"), "the last page stands for what is behind it")
	p.requireNoSecret(t, g)
}

// fill writes so many events by asking, and leaves so many approvals waiting.
func (g *testGate) fill(t *testing.T, events, waiting int) {
	t.Helper()
	var left atomic.Int64
	left.Store(int64(waiting))
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				g.plainly(t, ask(fmt.Sprintf("DELETE FROM orders WHERE id = %d", n)), http.StatusAccepted)
			}
			for g.newest(t) < events {
				for n := range 100 {
					g.plainly(t, ask(fmt.Sprintf("SELECT status FROM orders WHERE id = %d", n)), http.StatusOK)
				}
			}
		})
	}
	work.Wait()
}

// plainly asks without holding the answer against anything but its status: a log
// is to become long.
func (g *testGate) plainly(t *testing.T, s statement, status int) {
	body, err := json.Marshal(s)
	if err != nil {
		t.Error(err)
		return
	}
	r, err := http.Post(g.base+"/query", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	defer r.Body.Close()
	if text, err := io.ReadAll(r.Body); err != nil || r.StatusCode != status {
		t.Errorf("%d %s %v", r.StatusCode, text, err)
	}
}

// newest is the seq of the newest event.
func (g *testGate) newest(t *testing.T) int {
	r, err := http.Get(g.base + "/health")
	if err != nil {
		t.Error(err)
		return 1 << 30
	}
	defer r.Body.Close()
	var h struct {
		Log struct {
			Seq int `json:"seq"`
		} `json:"log"`
	}
	if err := json.NewDecoder(r.Body).Decode(&h); err != nil {
		t.Error(err)
		return 1 << 30
	}
	return h.Log.Seq
}
