package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/faultproxy"
	"writegate/fixtures/postgres"
	"writegate/sqlgate/policyfolder"
)

// Short patience of a gate whose conversations are broken, and a hold beyond it:
// statement_timeout, the gate's own second behind it, and what a cancel may take.
var impatient = []string{
	"GATE_DB_QUERY_TIMEOUT_MS=400", "GATE_DB_BULK_QUERY_TIMEOUT_MS=500", "GATE_DB_COMMIT_TIMEOUT_MS=300", "GATE_DB_CONNECT_TIMEOUT_MS=1000",
	"GATE_OUTCOME_CHECK_INTERVAL_SECONDS=0", "GATE_AUDIT_PREALLOCATE_BYTES=65536", "GATE_DB_POOL_MAX=4",
}

// calm is enough patience for a gate whose messages are only counted.
var calm = append([]string{"GATE_OUTCOME_CHECK_INTERVAL_SECONDS=0", "GATE_DB_POOL_MAX=4"}, patient...)

const hold = 2500 * time.Millisecond

// outcomesEverything names the variable that has every case run: each form at
// each message boundary with each fault. `make outcomes` sets it.
const outcomesEverything = "OUTCOMES_ALL"

// TestEveryRecordedOutcomeIsWhatTheDatabaseHolds breaks the conversation between
// gate and database at every message of every form of execution, and then holds
// what the gate recorded, once it is settled, against what the database holds.
func TestEveryRecordedOutcomeIsWhatTheDatabaseHolds(t *testing.T) {
	t.Parallel()
	stride, benches := 61, 2
	if os.Getenv(outcomesEverything) != "" {
		stride, benches = 1, 6
	}
	for _, marks := range []bool{false, true} {
		var cases []outcomeCase
		counting := newBench(t, marks)
		counting.become(calm)
		counting.run(t, func(b *bench) { cases = b.everyCase(t, stride) })
		t.Run(fmt.Sprintf("marker %t", marks), func(t *testing.T) {
			t.Parallel()
			tally := newTally()
			queue := make(chan outcomeCase, len(cases))
			for _, c := range cases {
				queue <- c
			}
			close(queue)
			t.Cleanup(func() { t.Log(tally) })
			for n := range benches {
				t.Run(fmt.Sprintf("bench %d", n), func(t *testing.T) {
					t.Parallel()
					newBench(t, marks).run(t, func(b *bench) {
						for c := range queue {
							b.play(t, c, tally)
						}
					})
				})
			}
		})
	}
}

// An outcomeCase is one form under one fault.
type outcomeCase struct {
	form     *form
	fault    faultproxy.Fault
	restarts bool // the gate, before the outcome is asked for
}

// A bench is a gate with a proxy between it and its database.
type bench struct {
	gateDir
	t      testing.TB
	proxy  *faultproxy.Proxy
	direct string // URL of the database, past the proxy
	extra  []string
	gate   *testGate
	marks  bool

	mu       sync.Mutex
	text     []byte // of the case's statement
	passed   int    // how often it was on its way to the database
	unproven int    // of those, how often without durable evidence
}

func newBench(t testing.TB, marks bool) *bench {
	t.Helper()
	return newBenchOn(t, postgres.ForTest(t), marks)
}

// newBenchOn is newBench in front of an empty database that is there.
func newBenchOn(t testing.TB, database string, marks bool) *bench {
	t.Helper()
	d := gateDir{path: t.TempDir(), database: database}
	require.NoError(t, policyfolder.Create(d.file("policies"), policyfolder.DefaultManifest, []byte(outcomesPolicy)))
	d.execute(t, outcomesTables)
	b := &bench{gateDir: d, t: t, direct: d.database, marks: marks}
	if marks {
		d.execute(t, markerTable)
	}
	b.become(impatient)
	b.proxy = faultproxy.Start(t, d.database)
	b.database = b.proxy.URL()
	b.proxy.Watch(b.see)
	return b
}

// become gives the gates that start from now on these settings.
func (b *bench) become(settings []string) {
	b.extra = settings
	if b.marks {
		b.extra = append([]string{markerSetting}, settings...)
	}
}

// run has work do its part with a gate up, and ends that.
func (b *bench) run(t testing.TB, work func(*bench)) {
	t.Helper()
	b.gate = startGate(t, b.gateDir, b.extra...)
	work(b)
	b.gate.end(t)
}

// see looks at each message to the database. Where it carries the case's
// statement, its dispatch stands in the log already.
func (b *bench) see(m faultproxy.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.Direction != faultproxy.ToServer || m.Type != 'P' || len(b.text) == 0 || !bytes.Contains(m.Body, b.text) {
		return
	}
	b.passed++
	log, err := os.ReadFile(b.file("audit.wal"))
	digest := sha256.Sum256(b.text)
	if err != nil || !bytes.Contains(log, digest[:]) {
		b.unproven++
	}
}

func (b *bench) beginCase(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text, b.passed, b.unproven = []byte(text), 0, 0
}

// ask asks the database itself, past the proxy.
func (b *bench) ask(t testing.TB, sql string) string {
	t.Helper()
	return gateDir{database: b.direct}.value(t, sql)
}

func named(text, name string) string { return strings.ReplaceAll(text, "NAME", name) }

// everyCase counts the messages of each form and lists the cases, every
// stride-th of them.
func (b *bench) everyCase(t testing.TB, stride int) []outcomeCase {
	t.Helper()
	var all []outcomeCase
	n := 0
	for i := range forms {
		f := &forms[i]
		name := fmt.Sprintf("count-%d", i)
		request := b.prepare(t, f, name)
		b.proxy.Arm(faultproxy.Fault{})
		r := b.gate.query(t, request, f.params(name)...)
		require.Contains(t, []int{http.StatusOK, http.StatusUnprocessableEntity}, r.status, "%s: %s", f.name, r.body)
		for _, d := range []faultproxy.Direction{faultproxy.ToServer, faultproxy.ToClient} {
			messages := b.proxy.Count(d)
			require.NotZero(t, messages)
			for at := 1; at <= messages; at++ {
				for _, action := range append(append([]faultproxy.Action{}, faultproxy.Cuts...), faultproxy.Stalls...) {
					if n++; n%stride == 0 {
						all = append(all, outcomeCase{f, faultproxy.Fault{Direction: d, N: at, Action: action, Hold: hold}, n/stride%7 == 0})
					}
				}
			}
		}
	}
	return all
}

// prepare makes what a case of the form needs, and its request.
func (b *bench) prepare(t testing.TB, f *form, name string) statement {
	t.Helper()
	b.proxy.Arm(faultproxy.Fault{})
	if f.before != "" {
		gateDir{database: b.direct}.execute(t, named(f.before, name))
	}
	request := f.request(name)
	if f.held {
		waits := b.gate.query(t, request)
		require.Equal(t, http.StatusAccepted, waits.status, "%s", waits.body)
		id := waits.text(t, "approval_id")
		require.Equal(t, http.StatusOK, b.gate.resolve(t, id, "approve").status)
		request = request.with("approval_id", id)
	}
	if f.cold {
		b.proxy.Drop()
	} else {
		f.warm(t, b.gate)
	}
	b.beginCase(named(f.sql, name))
	return request
}

var caseNumber struct {
	sync.Mutex
	n int
}

func nextCase() string {
	caseNumber.Lock()
	defer caseNumber.Unlock()
	caseNumber.n++
	return fmt.Sprintf("case-%d", caseNumber.n)
}

// play runs one case to its end.
func (b *bench) play(t testing.TB, c outcomeCase, tally *tally) {
	t.Helper()
	name, what := nextCase(), fmt.Sprintf("%s: %s, marker %t, restarted %t", c.form.name, c.fault, b.marks, c.restarts)
	request := b.prepare(t, c.form, name)
	b.proxy.Arm(c.fault)
	r := b.gate.query(t, request, c.form.params(name)...)
	fired := b.proxy.Fired()
	b.proxy.Arm(faultproxy.Fault{})
	b.proxy.Thaw()
	if c.restarts {
		b.gate.end(t)
		b.gate = startGate(t, b.gateDir, b.extra...)
	}
	state, outcome := b.settle(t, r.text(t, "execution_id"))
	assert.True(t, b.proxy.Quiet(startPatience), what)
	applied := b.applied(t, c.form, name)
	tally.note(fired, r, state, outcome)

	b.mu.Lock()
	passed, unproven := b.passed, b.unproven
	b.mu.Unlock()
	assert.LessOrEqual(t, passed, 1, "%s: the statement was sent %d times", what, passed)
	assert.Zero(t, unproven, "%s: the statement was sent without evidence", what)
	holds(t, c.form, r, state, outcome, applied, what)
	b.again(t, c.form, name, request, r, applied, what)
}

// settle asks until the gate knows, or knows that nobody can know.
func (b *bench) settle(t testing.TB, id string) (state, outcome string) {
	t.Helper()
	if id == "" {
		return "", ""
	}
	return settleAt(t, b.gate, id)
}

func settleAt(t testing.TB, g *testGate, id string) (state, outcome string) {
	t.Helper()
	last := new(reply)
	require.Eventually(t, func() bool {
		if *last = g.get(t, "/executions/"+id); last.status != http.StatusOK {
			return false
		}
		state, outcome = last.text(t, "execution_state"), last.text(t, "outcome")
		switch {
		case state == "unknown" && outcome != "not_knowable":
			g.checkOutcome(t, id)
			return false
		case state == "dispatched": // in haste the answer is ahead of the projections
			return false
		}
		return true
	}, startPatience, 20*time.Millisecond, "%s", last)
	return state, outcome
}

// applied is how often the statement is applied, once the database has come to
// rest: what nobody waits for any more may still run.
func (b *bench) applied(t testing.TB, f *form, name string) string {
	t.Helper()
	b.rest(t)
	if f.reads {
		return "0"
	}
	return b.ask(t, named(f.applied, name))
}

// rest waits until the database does nothing any more for the gate.
func (b *bench) rest(t testing.TB) {
	t.Helper()
	var busy string
	require.Eventually(t, func() bool {
		busy = b.ask(t, "SELECT string_agg(concat_ws(' ', pid, state, wait_event, query), '; ') FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'gate/%' AND state <> 'idle'")
		return busy == ""
	}, startPatience, 20*time.Millisecond, "the database does not come to rest: %s", words{&busy})
}

// holds compares what was told and recorded with what is there.
func holds(t testing.TB, f *form, r reply, state, outcome, applied, what string) {
	t.Helper()
	why := fmt.Sprintf("%s: answered %d %s; settled as %q %q; applied %s times", what, r.status, r.body, state, outcome, applied)
	once := map[bool]string{true: "0", false: "1"}[f.reads]
	if f.never {
		assert.Equal(t, "0", applied, why)
	}
	switch {
	case r.status == http.StatusOK:
		assert.Equal(t, []string{"success", once}, []string{state, applied}, why)
	case r.text(t, "execution_state") == "failure" && !f.alone:
		assert.Equal(t, []string{"failure", "0"}, []string{state, applied}, why)
	}
	switch state {
	case "success":
		assert.Equal(t, once, applied, why)
	case "failure":
		assert.True(t, applied == "0" || f.alone && outcome == "partial_possible", why)
	case "unknown":
		assert.True(t, f.alone && outcome == "not_knowable", why)
	default: // never dispatched
		assert.Equal(t, "0", applied, why)
	}
}

// again sends the request once more, as a client in its right mind would where a
// key or an approval protects it: it never runs a second time.
func (b *bench) again(t testing.TB, f *form, name string, request statement, first reply, applied, what string) {
	t.Helper()
	if !f.key && !f.held {
		return
	}
	b.beginCase("") // this one is allowed to be sent
	r := b.gate.query(t, request, f.params(name)...)
	state, outcome := b.settle(t, r.text(t, "execution_id"))
	now := b.applied(t, f, name)
	why := fmt.Sprintf("%s: first %d %s; again %d %s, settled as %q %q", what, first.status, first.body, r.status, r.body, state, outcome)
	if state == "success" && r.json(t)["replayed"] != true { // a slow database may be done after the gate has lost patience
		assert.Equal(t, []string{"0", "1"}, []string{applied, now}, why)
		return
	}
	assert.Equal(t, applied, now, why)
}

// A tally counts what became of the cases.
type tally struct {
	mu    sync.Mutex
	cases int
	calm  int // whose fault never struck
	by    map[string]int
}

func newTally() *tally { return &tally{by: map[string]int{}} }

func (y *tally) note(fired bool, r reply, state, outcome string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.cases++
	if !fired {
		y.calm++
	}
	y.by[strings.Join(strings.Fields(fmt.Sprint(r.status, " ", state, " ", outcome)), " ")]++
}

func (y *tally) String() string {
	return fmt.Sprintf("%d cases, %d of them undisturbed; answered and settled as %v", y.cases, y.calm, y.by)
}

// words prints a text as it is when it is printed, not when it is passed.
type words struct{ text *string }

func (w words) String() string { return *w.text }
