package controlplane

import (
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A meteredGate answers /v1 as the gate does to a project key with an hour of its
// own, and counts.
type meteredGate struct {
	asked     atomic.Int64 // requests under /v1
	remaining atomic.Int64
	name      atomic.Value // of its one agent
	hold      sync.Mutex   // held: answers wait
}

func (g *meteredGate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/v1/") {
		fmt.Fprint(w, `{"status":"ok","mode":"enforce","log":{"seq":7}}`)
		return
	}
	g.asked.Add(1)
	g.hold.Lock()
	defer g.hold.Unlock()
	left := g.remaining.Add(-1)
	w.Header().Set("X-RateLimit-Limit", "1000")
	w.Header().Set("X-RateLimit-Remaining", strconv.FormatInt(max(left, 0), 10))
	if left < 0 {
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"error_code":"rate_limit_exceeded","message":"This credential has used its 1000 requests an hour.","error_id":"e"}`)
		return
	}
	agent := fmt.Sprintf(`{"id":"agt_1","name":%q,"status":"active"}`, g.name.Load())
	switch r.URL.Path {
	case "/v1/agents":
		fmt.Fprintf(w, `{"items":[%s],"next_cursor":null}`, agent)
	case "/v1/agents/agt_1", "/v1/agents/agt_2", "/v1/agents/agt_3":
		fmt.Fprint(w, agent)
	default:
		fmt.Fprint(w, `{"items":[],"next_cursor":null}`)
	}
}

func startMetered(t *testing.T) (*meteredGate, *plane) {
	g := new(meteredGate)
	g.remaining.Store(1000)
	g.name.Store("before")
	gate := httptest.NewServer(g)
	t.Cleanup(gate.Close)
	backend, err := NewBackend(gate.URL, BackendFiles{}, "a-token", "a-key", time.Now)
	require.NoError(t, err)
	p := startPlane(t, func(o *Options) { o.Backend = backend })
	p.login(t)
	return g, p
}

// looks gets a page as its own script does (header) or as a person does (""), and
// tells how many requests of the project key that took.
func (g *meteredGate) looks(t *testing.T, p *plane, path, header string) (used int64, body, age string) {
	t.Helper()
	before := g.asked.Load()
	var headers []string
	if header != "" {
		headers = []string{backgroundHeader, header}
	}
	status, body, got := p.do(t, http.MethodGet, path, "", headers...)
	require.Equal(t, http.StatusOK, status, body)
	return g.asked.Load() - before, body, got.Get("Age")
}

func TestAPageThatLooksByItselfSparesTheProjectKey(t *testing.T) {
	for path, each := range map[string]int64{"/agents": 5, "/agents/agt_1": 7} {
		asked := each // where a person asks, who is offered what may be applied too
		if path != "/agents" {
			asked++
		}
		g, p := startMetered(t)
		used, body, age := g.looks(t, p, path, "")
		require.Equal(t, asked, used)
		require.Contains(t, body, "before")
		require.Contains(t, body, "As of ")
		require.Empty(t, age)
		g.name.Store("after")
		*p.now = p.now.Add(29 * time.Second)
		for range 20 {
			used, body, age = g.looks(t, p, path, "news")
			require.Zero(t, used, path)
			require.Contains(t, body, "before")
			require.Equal(t, "29", age, "the page's script knows that its news may be missing")
		}
		used, body, age = g.looks(t, p, path, "")
		require.Equal(t, asked, used, "a person sees what is there now")
		require.Contains(t, body, "after")
		require.Empty(t, age)
		g.name.Store("later")
		*p.now = p.now.Add(30 * time.Second)
		used, _, _ = g.looks(t, p, path, withoutNews)
		require.Zero(t, used, "nothing happened")
		used, body, age = g.looks(t, p, path, "news")
		require.Equal(t, each, used)
		require.Contains(t, body, "later")
		require.Empty(t, age)
		*p.now = p.now.Add(keptQuiet)
		used, _, _ = g.looks(t, p, path, withoutNews)
		require.Equal(t, each, used, "not everything has an event")
	}
}

// The time that a look takes makes nothing in it older than what happened before it:
// else the page's script would look for the same news once more.
func TestAPageThatIsFreshTellsNoAge(t *testing.T) {
	g, p := startMetered(t)
	start, ticks := *p.now, new(atomic.Int64)
	p.server.now = func() time.Time { return start.Add(time.Duration(ticks.Add(1)) * time.Millisecond) }
	for _, header := range []string{"news", ""} {
		used, _, age := g.looks(t, p, "/agents", header)
		require.EqualValues(t, 5, used)
		require.Empty(t, age)
	}
}

func TestAllSessionsShareWhatTheirPagesLookAt(t *testing.T) {
	g, p := startMetered(t)
	const sessions = 8
	g.hold.Lock()
	var all sync.WaitGroup
	for range sessions {
		one := *p
		jar, err := cookiejar.New(nil)
		require.NoError(t, err)
		one.client = &http.Client{Jar: jar}
		secret, _ := p.server.sessions.open("ana")
		all.Go(func() {
			r, _ := http.NewRequest(http.MethodGet, p.URL+"/agents", nil)
			r.Header.Set(backgroundHeader, "news")
			r.AddCookie(p.server.cookie(secret, 0))
			resp, err := one.client.Do(r)
			if err == nil {
				resp.Body.Close()
			}
		})
	}
	require.Eventually(t, func() bool { return g.asked.Load() > 0 }, time.Minute, time.Millisecond)
	g.hold.Unlock()
	all.Wait()
	require.EqualValues(t, 5, g.asked.Load())
}

// Charts are drawn from the numbers of the page that they stand in.
func TestChartsOfAPageAskNothing(t *testing.T) {
	g, p := startMetered(t)
	g.looks(t, p, "/agents/agt_1", "")
	for _, chart := range []string{"telemetry", "statements", "durations"} {
		used, _, _ := g.looks(t, p, "/charts/"+chart+".svg?theme=light&at=1&agent_id=agt_1", "")
		require.Zero(t, used, chart)
	}
}

// However many pages are open and whatever happens, a part of the key's hour stays.
func TestOpenPagesLeaveAPartOfTheKeysHour(t *testing.T) {
	g, p := startMetered(t)
	for range 240 {
		for _, path := range []string{"/agents", "/agents/agt_1", "/agents/agt_2", "/agents/agt_3"} {
			g.looks(t, p, path, "news")
		}
		p.do(t, http.MethodGet, "/nowhere", "") // the person is there
		*p.now = p.now.Add(15 * time.Second)
	}
	require.Greater(t, g.remaining.Load(), int64(50))
}

// A key that others used up shows what was there last, and says so.
func TestAUsedUpKeyShowsWhatWasThereLast(t *testing.T) {
	g, p := startMetered(t)
	g.looks(t, p, "/agents/agt_1", "")
	g.remaining.Store(0)
	for _, header := range []string{"", "news", withoutNews} {
		*p.now = p.now.Add(10 * time.Minute)
		_, body, age := g.looks(t, p, "/agents/agt_1", header)
		require.Contains(t, body, "before")
		require.NotEmpty(t, age)
		if header == "" {
			require.Contains(t, body, "has used its requests of this hour")
		}
	}
	*p.now = p.now.Add(keptLife - time.Minute)
	p.login(t)
	status, body, _ := p.do(t, http.MethodGet, "/agents/agt_1", "")
	require.Equal(t, http.StatusTooManyRequests, status, body)
}

// What is kept is bounded in number and bytes, and nothing is kept for ever.
func TestWhatIsKeptIsBounded(t *testing.T) {
	now := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	k := newKept(func() time.Time { return now })
	for i := range maxKept + 100 {
		now = now.Add(time.Second)
		k.put(strconv.Itoa(i), now, http.StatusOK, []byte("{}"))
	}
	require.Len(t, k.answers, maxKept)
	require.NotContains(t, k.answers, "99")
	require.Contains(t, k.answers, strconv.Itoa(maxKept+99))
	now = now.Add(keptLife)
	for i := range 5 {
		k.put(fmt.Sprint("large", i), now.Add(time.Duration(i)), http.StatusOK, make([]byte, maxKeptBytes/3))
	}
	require.Len(t, k.answers, 3)
	for i := range maxKept + 100 {
		k.entry(fmt.Sprint("never answered", i))
	}
	require.LessOrEqual(t, len(k.answers), maxKept)
}
