package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/faultproxy"
	"writegate/fixtures/postgres"
)

// soakMinutes names the variable that says how long the soak lasts. `make soak`
// sets it; without it the soak is a few seconds.
const soakMinutes = "SOAK_MINUTES"

const (
	soakShortly = 8 * time.Second
	soakClients = 24
	// S1: resident memory grows by no more than this over what it is after the
	// first 10,000 statements of a gate.
	soakGrowth   = 64 << 20
	soakWarm     = 10_000
	soakCalmFrom = 2 // in the second half of the time no gate is killed, so that one of them lives long
)

var soakSettings = []string{
	markerSetting, "GATE_DB_QUERY_TIMEOUT_MS=1000", "GATE_DB_COMMIT_TIMEOUT_MS=1000", "GATE_DB_CONNECT_TIMEOUT_MS=3000",
	"GATE_OUTCOME_CHECK_INTERVAL_SECONDS=2", "GATE_AUDIT_SEGMENT_BYTES=16777216",
}

// TestManyClientsForALongTimeUnderFaults has 24 clients read, write, ask for
// approvals, use keys, be blocked and change the policy, while connections are
// cut, delayed and frozen, gates killed, and the database killed and restarted.
// In the end each recorded outcome is what the database holds.
func TestManyClientsForALongTimeUnderFaults(t *testing.T) {
	t.Parallel()
	length := soakShortly
	if asked := os.Getenv(soakMinutes); asked != "" {
		minutes, err := strconv.ParseFloat(asked, 64)
		require.NoError(t, err)
		length = time.Duration(minutes * float64(time.Minute))
	}
	c := postgres.ClusterForTest(t, nil)
	require.NoError(t, c.CreateDatabase(t.Context(), "outcomes"))
	b := newBenchOn(t, c.URL("outcomes"), true)
	b.extra = soakSettings
	b.proxy.Watch(nil)
	s := &soak{t: t, bench: b, cluster: c, over: make(chan struct{}), answers: map[string]int{}, claims: map[string]bool{}}
	v := s.begin()
	var clients sync.WaitGroup
	for n := range soakClients {
		clients.Go(func() { s.client(n) })
	}
	v = s.trouble(v, length)
	close(s.over)
	clients.Wait()
	s.settle(v)
}

// A soak is one such run.
type soak struct {
	*bench
	t       *testing.T
	cluster *postgres.Cluster
	over    chan struct{}
	base    atomic.Pointer[string] // of the gate that serves now
	http    http.Client
	names   atomic.Int64
	served  atomic.Int64 // statements answered by the present gate

	mu         sync.Mutex
	answers    map[string]int  // by kind and status
	claims     map[string]bool // names of rows that a client was told to be there
	unanswered int
	versions   int

	faults, gates, servers int
	warm, last             int64 // resident bytes of the present gate
}

// begin starts a gate for everybody.
func (s *soak) begin() *victim {
	v := s.serve(s.t)
	s.served.Store(0)
	s.warm, s.last = 0, 0
	s.base.Store(&v.base)
	return v
}

// trouble strikes at random until the time is over, and gives the last gate.
func (s *soak) trouble(v *victim, length time.Duration) *victim {
	begun := time.Now()
	killGate, killServer := length/9, length/7
	nextGate, nextServer := killGate, killServer
	tick := time.NewTicker(min(time.Second, length/20))
	defer tick.Stop()
	for gone := time.Duration(0); gone < length; gone = time.Since(begun) {
		<-tick.C
		s.measure(v)
		s.proxy.Thaw()
		if rand.IntN(10) == 0 {
			s.proxy.Drop()
		}
		actions := append(append([]faultproxy.Action{}, faultproxy.Cuts...), faultproxy.Stalls...)
		s.proxy.Arm(faultproxy.Fault{
			Direction: faultproxy.Direction(rand.IntN(2)), N: 1 + rand.IntN(200), Action: actions[rand.IntN(len(actions))], Hold: hold,
		})
		s.faults++
		if gone > nextServer {
			nextServer += killServer
			s.strikeServer()
		}
		if gone > nextGate && gone < length/soakCalmFrom {
			nextGate += killGate
			v.kill()
			v.await(s.t)
			require.True(s.t, v.killed(), "%s", &v.output)
			s.gates++
			v = s.begin()
		}
	}
	s.proxy.Arm(faultproxy.Fault{})
	s.proxy.Thaw()
	s.measure(v)
	return v
}

// strikeServer ends the database in one of several ways; it comes back.
func (s *soak) strikeServer() {
	end := []func() error{s.cluster.Stop, s.cluster.Kill, s.cluster.Crash}[s.servers%3]
	require.NoError(s.t, end())
	startAgain(s.t, s.cluster)
	s.servers++
}

// measure reads the resident memory of the gate.
func (s *soak) measure(v *victim) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", v.cmd.Process.Pid))
	if err != nil {
		return
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return // it is ending
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	require.NoError(s.t, err)
	s.last = pages * int64(os.Getpagesize())
	if s.warm == 0 && s.served.Load() >= soakWarm {
		s.warm = s.last
	}
}

// client does one thing after the other until the soak is over. The first one
// changes the policy from time to time.
func (s *soak) client(n int) {
	for turn := n; ; turn++ {
		select {
		case <-s.over:
			return
		default:
		}
		name := fmt.Sprintf("soak-%d", s.names.Add(1))
		switch {
		case n == 0 && turn%50 == 0:
			s.legislate()
		case turn%6 == 0:
			s.send("read", name, ask("SELECT count(*) FROM hits WHERE v = 'nobody'"))
		case turn%6 == 1:
			s.send("blocked", name, ask("DELETE FROM hits"))
		case turn%6 == 2:
			s.claim(name, s.send("write", name, ask("INSERT INTO hits VALUES ('"+name+"') RETURNING v")))
		case turn%6 == 3:
			profile := []string{"latency", "bulk"}[turn%2]
			s.claim(name, s.send(profile, name, ask("INSERT INTO hits VALUES ('"+name+"')").with("execution_profile", profile)))
		case turn%6 == 4:
			s.keyed(name)
		default:
			s.held(name)
		}
	}
}

// keyed sends until an answer comes, and then once more.
func (s *soak) keyed(name string) {
	for try := range 4 {
		r := s.send("keyed", fmt.Sprintf("%s.%d", name, try), ask("INSERT INTO hits VALUES ('"+name+"')"), "idempotency_key="+name)
		if s.claim(name, r); r != nil && r.field("replayed") == true {
			return
		}
	}
}

// held has a write approved, and sends it until it ran or may not run any more.
func (s *soak) held(name string) {
	request := ask("INSERT INTO held VALUES ('" + name + "')")
	waits := s.send("asked", name+".0", request)
	if waits == nil || waits.status != http.StatusAccepted {
		return
	}
	id, _ := waits.field("approval_id").(string)
	if s.post("/approvals/"+id+"/resolve", `{"decision":"approve"}`, "X-GATE-Operator-Token: "+operatorTestToken) == nil {
		return
	}
	for try := 1; try < 4; try++ {
		r := s.send("held", fmt.Sprintf("%s.%d", name, try), request.with("approval_id", id))
		s.claim(name, r)
		if r != nil && r.status != http.StatusServiceUnavailable && r.status != http.StatusBadGateway {
			return
		}
	}
}

// legislate activates another version of the policy.
func (s *soak) legislate() {
	s.mu.Lock()
	s.versions++
	number := fmt.Sprintf("1.0.%d", s.versions)
	s.mu.Unlock()
	document := strings.Replace(outcomesPolicy, "version: 1.0.0", "version: "+number, 1)
	proposal, _ := json.Marshal(map[string]any{"document": document})
	s.post("/policy/candidates", string(proposal), "X-GATE-Operator-Token: "+operatorTestToken)
	s.post("/policy/activate", fmt.Sprintf(`{"expected_hash":"%x"}`, sha256.Sum256([]byte(document))), "X-GATE-Operator-Token: "+operatorTestToken)
}

// send sends a statement, nil where no answer came. The request's id begins with
// the name of the row that it is about.
func (s *soak) send(kind, requestID string, request statement, params ...string) *reply {
	body, err := json.Marshal(request)
	assert.NoError(s.t, err)
	r := s.post("/query?"+strings.Join(params, "&"), string(body), "X-Request-Id: "+requestID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r == nil {
		s.unanswered++
		return nil
	}
	s.served.Add(1)
	s.answers[fmt.Sprintf("%s %d", kind, r.status)]++
	return r
}

// post sends a request to the gate that serves now.
func (s *soak) post(path, body string, headers ...string) *reply {
	v := victim{base: *s.base.Load(), client: &s.http}
	r, err := v.try(http.MethodPost, path, body, headers...)
	if err == nil {
		return &r
	}
	select { // it is being replaced
	case <-s.over:
	case <-time.After(pollEvery):
	}
	return nil
}

// claim keeps what a client was told about its row.
func (s *soak) claim(name string, r *reply) {
	if r == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.status == http.StatusOK {
		s.claims[name] = true
	}
}

// settle lets the last gate answer what is open, and compares everything.
func (s *soak) settle(v *victim) {
	t := s.t
	require.Eventually(t, func() bool {
		var page executionsPage
		unmarshal(t, s.gate.get(t, "/executions?execution_state=unknown&limit=1000").body, &page)
		for _, x := range page.Items {
			s.gate.checkOutcome(t, x.ExecutionID)
		}
		return len(page.Items) == 0
	}, 2*startPatience, time.Second, "what is unknown stays unknown")

	applied := map[string]int{}
	for name := range strings.SplitSeq(s.ask(t, "SELECT string_agg(v, ' ') FROM (SELECT v FROM hits UNION ALL SELECT v FROM held) x WHERE v LIKE 'soak-%'"), " ") {
		applied[name]++
	}
	success, states := map[string]int{}, map[string]int{}
	s.eachExecution(func(x *recordedExecution) {
		states[x.State+" "+x.Outcome]++
		if x.State == "success" && x.Path == "tx" {
			name, _, _ := strings.Cut(x.RequestID, ".")
			success[name]++
		}
		assert.Contains(t, []string{"success", "failure"}, x.State, "%+v", x)
	})
	doubles := 0
	for _, times := range applied {
		if times > 1 {
			doubles++
		}
	}
	assert.Zero(t, doubles, "rows that are there more than once")
	assert.Equal(t, applied, success, "what was recorded as applied is what is there")
	for name := range s.claims {
		assert.Equal(t, 1, applied[name], "%s was told to be applied", name)
	}
	v.end(t)
	require.NoError(t, v.err, "%s", &v.output)
	s.checkDisk(t)
	t.Logf("%d faults on the wire, %d gates killed, the database ended %d times; %d answers %v, %d requests without one; %d executions recorded %v; %d rows, %d of them twice; %d policy versions",
		s.faults, s.gates, s.servers, sum(s.answers), s.answers, s.unanswered, sum(states), states, len(applied), doubles, s.versions)
	t.Logf("the last gate served %d statements; resident %d MiB after %d, %d MiB at the end", s.served.Load(), s.warm>>20, soakWarm, s.last>>20)
	if s.warm != 0 {
		assert.LessOrEqual(t, s.last-s.warm, int64(soakGrowth), "S1: memory grows")
	}
}

type recordedExecution struct {
	ExecutionID string `json:"execution_id"`
	RequestID   string `json:"request_id"`
	State       string `json:"execution_state"`
	Outcome     string `json:"outcome"`
	Path        string `json:"path"`
}

type executionsPage struct {
	Items      []recordedExecution `json:"items"`
	NextCursor string              `json:"next_cursor"`
}

// eachExecution reads everything that was dispatched.
func (s *soak) eachExecution(f func(*recordedExecution)) {
	for cursor := ""; ; {
		var page executionsPage
		unmarshal(s.t, s.gate.get(s.t, "/executions?limit=1000&cursor="+cursor).body, &page)
		for i := range page.Items {
			if page.Items[i].State != "not_executed" {
				f(&page.Items[i])
			}
		}
		if cursor = page.NextCursor; cursor == "" {
			return
		}
	}
}

func sum(counts map[string]int) (n int) {
	for _, times := range counts {
		n += times
	}
	return n
}
