package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/fixtures/witness/witnesstest"
)

// A fall is how one gate of a life ends.
type fall struct {
	at      death         // where it kills itself
	lingers bool          // it stands still there for a moment before
	after   time.Duration // or else it is killed so long after its start
	tear    bool          // and the batch that was being written is torn
	asked   bool          // it is asked to end, under load, and dies on the way
	maybe   bool          // it may end before it comes to where it is to die
	refuse  bool          // it is to refuse the torn tail that it finds
}

// lives are the falls that every run of the tests goes through: each named step
// at least once. The gates of one life follow each other on the same data.
var lives = map[string][]fall{
	"a first start": {
		{at: "open.before_create#1"}, {at: "open.after_create#1"}, {at: "recover.before_rewrite_sync#1"}, {at: "open.after_unclean#1"},
		{at: "append.encoded#1"}, {at: "append.before_write#1"}, {at: "append.after_write#1", tear: true}, {at: "append.before_preallocate#1"},
		{at: "append.before_wake#1"}, {at: "commands.append#2"}, {at: "commands.appended#2"},
		{at: "commands.append@9"}, {at: "close.before_clean#1", asked: true},
	},
	"under load, in the log": {
		{at: "append.encoded@30"}, {at: "append.before_write@11"}, {at: "append.after_write@12"}, {at: "append.after_sync@13"},
		{at: "append.before_wake@14"}, {at: "append.before_preallocate@1"},
	},
	"under load, in the commands": {
		{asked: true, maybe: true}, // ends cleanly, so that the projections of those that follow begin somewhere
		{at: "commands.decide@25"}, {at: "commands.append@31"}, {at: "commands.appended@32"},
		{at: "result.before_append@8"}, {at: "result.appended@9"},
	},
	"under load, around the database": {
		{at: "decision.before_append@10"}, {at: "decision.appended@11"}, {at: "write.begun@7"}, {at: "write.executed@8"},
		{at: "write.committed@9"}, {at: "read.executed@3"},
	},
	"while it recovers": {
		{asked: true, maybe: true},
		{at: "append.after_write@20", tear: true}, {refuse: true}, {at: "recover.after_quarantine#1"}, {at: "recover.after_zero#1"},
		{at: "recover.after_rewrite#1"}, {at: "append.after_write@15", tear: true}, {at: "commands.append#1"}, {at: "commands.appended#1"},
	},
	"in haste": { // all clients under the latency profile: all results are told before they are durable, none before they are written
		{at: "append.before_write@11"}, {at: "append.before_write@16"}, {at: "append.encoded@21"}, {at: "append.before_write@26"},
		{at: "append.after_write@16"},
	},
	"while the policy changes": {
		{at: "policy.appended@1"}, {at: "policy.appended@2"}, {at: "policy.swapped@1"}, {at: "policy.written@1"}, {at: "policy.swapped@3"},
	},
	sealing: {
		{at: "rotate.before_next@1"}, {at: "rotate.after_next@1"}, {at: "rotate.after_cut@1"}, {at: "rotate.before_seal@1"},
		{at: "rotate.after_seal@1"}, {at: "recover.before_begin#1"}, {at: "recover.after_begin#1"},
		{at: "rotate.before_begin@1"}, {at: "rotate.after_begin@1"}, {at: "rotate.after_sync@1"}, {at: "rotate.after_head@2"},
	},
	vouching: {
		{at: "checkpoint.signed#1"}, {at: "checkpoint.stored#1"}, {at: "checkpoint.recorded#1"}, {at: "checkpoint.offered#1"}, {at: "checkpoint.cosigned#1"},
		{at: "checkpoint.signed@1"}, {at: "checkpoint.stored@1"}, {at: "checkpoint.recorded@1"}, {at: "checkpoint.offered@1"}, {at: "checkpoint.cosigned@1"},
		{asked: true, maybe: true},
	},
	transacting: {
		{at: "block.begun@3"}, {at: "block.dispatched@9"}, {at: "block.written@8"}, {at: "block.read_dispatched@2"}, {at: "block.rolled_back_to@3"},
		{at: "block.before_append@4"}, {at: "block.appended@5"}, {at: "block.before_commit@4"}, {at: "block.committed@4"}, {at: "block.rolled_back@2"},
		{at: "describe.before_append@4"}, {at: "describe.appended@4"},
	},
	telling: {
		{asked: true, maybe: true},
		{at: "commands.decide@5"}, {at: "commands.append@6"}, {at: "append.encoded@7"}, {at: "append.before_write@7"}, {at: "append.after_write@8", tear: true},
		{at: "append.after_sync@7"}, {at: "append.before_wake@9"}, {at: "commands.appended@20"},
		{after: 500 * time.Millisecond, maybe: true}, {after: 700 * time.Millisecond, maybe: true}, {asked: true, maybe: true},
	},
	"at any moment": {{after: 50 * time.Millisecond}, {after: 400 * time.Millisecond}, {after: 600 * time.Millisecond}, {after: 900 * time.Millisecond}},
}

// sealing is the life whose log is cut into small segments.
const sealing = "while it seals segments"

// inSegments makes a gate seal a segment every few dozen statements.
const inSegments = "GATE_AUDIT_SEGMENT_BYTES=65536"

// vouching is the life whose log is signed, each second, and offered to a witness.
const vouching = "while it is vouched for"

// otherWishes are those of lives with a load of their own.
var otherWishes = map[string][]kind{
	"in haste":                 {hurrying},
	"while the policy changes": append([]kind{legislating}, allKinds...),
	transacting:                {inBlocks, inBlocks, inBlocks, writing},
	telling:                    {reporting, reporting, reporting, reading, reporting, writing},
}

// TestAGateKilledAnywhereKeepsItsWord kills gates with SIGKILL, at each named
// step and at random, while clients read, write, ask for approvals and use them.
// After each death log and database are held against what the clients were told;
// the next gate carries on where the last one died. `make crash` has each gate linger and not linger.
func TestAGateKilledAnywhereKeepsItsWord(t *testing.T) {
	ways := []int{rand.IntN(2)} // every other gate lingers, from the first or from the second one on
	if os.Getenv("CRASH_ROUNDS") != "" {
		ways = []int{0, 1}
	}
	for name, falls := range lives {
		for _, lingers := range ways {
			t.Run(fmt.Sprintf("%s, every other lingering from %d on", name, lingers), func(t *testing.T) {
				t.Parallel()
				l := beginLife(t)
				if name == sealing {
					l.extra = append(l.extra, inSegments)
				}
				if name == vouching {
					l.vouch()
				}
				if name == telling {
					l.tell()
				}
				if name == transacting {
					l.extra = append(l.extra, wireSettings...)
				}
				if wishes := otherWishes[name]; wishes != nil {
					l.book.wishes = wishes
				}
				for i, f := range falls {
					f.lingers = i%2 == lingers
					l.live(f)
				}
				l.finish()
				t.Log(l)
			})
		}
	}
}

// vouch has the gates sign, and ask a witness that outlives them.
func (l *life) vouch() {
	v := l.vouched(l.t)
	l.extra = append(l.extra, v.settings(witnesstest.Start(l.t, l.t.TempDir(), v.vkey))...)
}

// deathsOfLife is how many gates of the longer form at most die on the same data.
const deathsOfLife = 10

// TestManyGatesKilledAtRandom is the longer form: CRASH_ROUNDS more deaths, at
// random steps or moments. `make crash` runs it.
func TestManyGatesKilledAtRandom(t *testing.T) {
	t.Parallel()
	rounds := 3
	if asked := os.Getenv("CRASH_ROUNDS"); asked != "" {
		var err error
		rounds, err = strconv.Atoi(asked)
		require.NoError(t, err)
	}
	for died := 0; died < rounds; {
		l := beginLife(t)
		l.vouch()
		l.tell()
		l.extra = append(l.extra, wireSettings...)
		l.book.wishes = slices.Concat(otherWishes["while the policy changes"], []kind{reporting, inBlocks})
		seals := rand.IntN(2) == 0
		if seals {
			l.extra = append(l.extra, inSegments)
		}
		for range deathsOfLife {
			if l.live(randomFall(seals)); died+l.dead() >= rounds {
				break
			}
		}
		l.finish()
		t.Log(l)
		died += l.dead()
	}
}

// randomFall is any step at any passing, or any moment. A log in segments is not
// torn: its last batch may lie in a sealed one, which was synced.
func randomFall(seals bool) fall {
	steps := slices.DeleteFunc(killedSteps(), func(step string) bool { return !seals && strings.HasPrefix(step, "rotate.") })
	step := steps[rand.IntN(len(steps))]
	when := []string{"@", "@", "@", "#"}[rand.IntN(4)]
	f := fall{at: death(fmt.Sprintf("%s%s%d", step, when, 1+rand.IntN(60))), tear: !seals && step == "append.after_write" && rand.IntN(2) == 0, maybe: true, lingers: rand.IntN(2) == 0}
	switch {
	case strings.HasPrefix(step, "open.") || strings.HasPrefix(step, "recover."):
		f.at = death(step + "#1")
	case strings.HasPrefix(step, "close."):
		f.at, f.asked = death(step+"#1"), true
	case rand.IntN(3) == 0:
		f = fall{after: time.Duration(rand.Int64N(int64(time.Second))), maybe: true}
	}
	return f
}

// killedSteps are the steps at which lives kill, sorted.
func killedSteps() []string {
	steps := map[string]bool{}
	for _, falls := range lives {
		for _, f := range falls {
			if f.at != "" {
				steps[f.at.step()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(steps))
}

// A life is one folder and one database, and the gates that die over them.
type life struct {
	t *testing.T
	gateDir
	book   *book
	extra  []string       // settings of its gates
	active string         // policy version, by the log that the last gate left; "" = none yet
	deaths map[string]int // what they died of
	open   map[string]bool

	checked int // writes left open, and settled by the last gate
}

func beginLife(t *testing.T) *life {
	l := &life{t: t, gateDir: newGateDir(t, []byte(ledgerPolicy)), book: newBook(), extra: slices.Clone(patient), deaths: map[string]int{}}
	l.execute(t, ledgerTables)
	l.book.database = l.databaseName(t)
	return l
}

// patient are settings under which a busy machine is no reason to refuse, and
// little is written ahead, so that it has to be done often.
var patient = []string{
	"GATE_DB_ACQUIRE_TIMEOUT_MS=60000", "GATE_DB_QUERY_TIMEOUT_MS=60000", "GATE_DB_LOCK_TIMEOUT_MS=60000", "GATE_DB_CONNECT_TIMEOUT_MS=60000",
	"GATE_DB_COMMIT_TIMEOUT_MS=60000", "GATE_AUDIT_PREALLOCATE_BYTES=65536",
}

// Bounds of the work of one gate, where it does not die of itself.
const (
	workBeforeEnd = 300 * time.Millisecond
	workAtMost    = 1500 * time.Millisecond
)

// live runs one gate until it falls and looks at what it leaves.
func (l *life) live(f fall) {
	t := l.t
	if f.refuse {
		l.refuse()
		return
	}
	v := l.spawn(t, f, l.extra...)
	if v.base != "" {
		l.serves(v)
		l.work(v, f)
	}
	v.await(t)
	l.note(v, f)
	if f.tear && v.killed() {
		l.tear(t)
	}
	story := l.book.check(t, l.gateDir)
	l.settled(story)
	if len(story.events) > 0 {
		l.compareDead(t)
	}
}

// serves: a gate that listens serves, under the policy that the log says is
// active, or was killed meanwhile.
func (l *life) serves(v *victim) {
	if r, err := v.try(http.MethodGet, "/health", ""); err == nil {
		require.Equal(l.t, http.StatusOK, r.status, "%s\n%s", r.body, &v.output)
	}
	if r, err := v.try(http.MethodGet, "/policy/status", ""); err == nil && l.active != "" {
		require.Equal(l.t, l.active, r.field("policy_version"), "another version decides than the log says: %s", r.body)
	}
}

// work lets clients use the gate until it dies or is asked to end. One that is
// asked while they work answers what it has begun and nothing after.
func (l *life) work(v *victim, f fall) {
	stop := make(chan struct{})
	bound, end := startPatience, func() { close(stop) } // it dies of itself
	switch {
	case f.asked:
		bound, end = workBeforeEnd, v.ask
	case f.maybe:
		bound = workAtMost
	}
	timer := time.AfterFunc(bound, end)
	defer timer.Stop()
	l.book.load(l.t, v, stop)
	v.ask()
}

// note counts a death, and fails for one that nobody asked for.
func (l *life) note(v *victim, f fall) {
	require.True(l.t, v.killed() || f.maybe && v.err == nil, "the gate that was to die at %q ended: %v\n%s", f.at, v.err, &v.output)
	switch {
	case !v.killed():
		l.deaths["none"]++
	case f.at != "":
		l.deaths[f.at.step()]++
	default:
		l.deaths["a random moment"]++
	}
}

// settled: what the last gate left open, this one gave up as unknown, or died
// before it came so far.
func (l *life) settled(s *story) {
	for id := range l.open {
		r := s.runs[id]
		require.NotNil(l.t, r, "the dispatch of %s is lost", id)
		require.Contains(l.t, []event.Type{"", event.TypeExecutionStateUnknown}, r.result)
	}
	if n := len(s.activated); n > 0 {
		l.active = s.activated[n-1]
	}
	l.open = map[string]bool{}
	for id, r := range s.runs {
		if r.result == "" {
			l.open[id] = true
		}
	}
}

// refuse: a gate that may not go past a torn tail says so, and runs nothing.
func (l *life) refuse() {
	t := l.t
	v := l.spawn(t, fall{}, append([]string{"GATE_AUDIT_ON_TORN_TAIL=refuse"}, l.extra...)...)
	require.NotEmpty(t, v.base, "%s", &v.output)
	health, err := v.try(http.MethodGet, "/health", "")
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, health.status)
	require.Contains(t, health.field("message"), "unfinished batch", "%s", health.body)
	answer, err := v.try(http.MethodPost, "/query", `{"actor":"a","app":"shop","tenant":"t","role":"r","host":"h","env":"prod","sql":"INSERT INTO ledger (v) VALUES ('refused')"}`)
	require.NoError(t, err)
	require.GreaterOrEqual(t, answer.status, 500, "%s", answer.body)
	v.end(t)
	require.NoError(t, v.err, "%s", &v.output)
}

// finish lets a last gate answer everything that is open, and ends it cleanly.
func (l *life) finish() {
	t := l.t
	v := l.spawn(t, fall{}, l.extra...)
	require.NotEmpty(t, v.base, "%s", &v.output)
	l.serves(v)
	l.book.finish(t, v)
	l.settleUnknown(v)
	var told account
	if l.tells() {
		told = l.account(v)
	}
	verified, err := v.try(http.MethodGet, "/evidence/verify", "")
	require.NoError(t, err)
	require.Equal(t, "ok", verified.field("status"), "%s", verified.body)
	v.end(t)
	require.NoError(t, v.err, "%s", &v.output)
	story := l.book.check(t, l.gateDir)
	l.settled(story)
	if l.tells() {
		told.holds(t, story)
	}
	require.Empty(t, l.open, "executions without a result after a clean end")
	l.checkDisk(t)
}

// settleUnknown has the outcome of each write that a death left open asked of the
// database: what it says is what the tables hold, by the id of the transaction.
func (l *life) settleUnknown(v *victim) {
	t := l.t
	g := &testGate{gateDir: gateDir{path: l.path, database: l.database}, base: v.base, client: v.client} // keeps no receipts: they are not of its requests
	rows := map[string]bool{}
	for xid := range strings.SplitSeq(l.value(t, "SELECT string_agg(DISTINCT xmin::text, ' ') FROM (SELECT xmin FROM ledger UNION ALL SELECT xmin FROM held UNION ALL SELECT xmin FROM forgotten) x"), " ") {
		rows[xid] = true
	}
	var page struct {
		Items []struct {
			ExecutionID string `json:"execution_id"`
		}
	}
	unmarshal(t, g.get(t, "/executions?execution_state=unknown&limit=1000").body, &page)
	for _, x := range page.Items {
		state, outcome := settleAt(t, g, x.ExecutionID)
		if state == "unknown" {
			require.Equal(t, "not_knowable", outcome)
			require.Equal(t, "alone", g.get(t, "/executions/"+x.ExecutionID).text(t, "path"))
			continue
		}
		read := g.get(t, "/executions/"+x.ExecutionID).json(t)
		if read["path"] == "tx" {
			xid, err := strconv.ParseUint(fmt.Sprint(read["xid"]), 10, 64)
			require.NoError(t, err, "%v", read)
			require.Equal(t, rows[strconv.FormatUint(uint64(uint32(xid)), 10)], state == "success", "%v", read)
		}
		l.checked++
	}
}

// dead is how many gates were killed, those that ended in peace left out.
func (l *life) dead() (n int) {
	for what, times := range l.deaths {
		if what != "none" {
			n += times
		}
	}
	return n
}

func (l *life) String() string {
	acknowledged, unknown := 0, 0
	for _, f := range l.book.fates {
		if f.must {
			acknowledged++
		}
		if f.unknown {
			unknown++
		}
	}
	return fmt.Sprintf("deaths %v; %d requests, %d answered, %d not; %d rows acknowledged, %d keys answered with unknown; %d approvals; %d outcomes settled; %d telemetry events acknowledged",
		l.deaths, l.book.requests, len(l.book.told), l.book.unanswered, acknowledged, unknown, len(l.book.created), l.checked, len(l.book.news.must))
}

// TestEveryNamedStepHasItsDeath reads the names of the steps from the source.
func TestEveryNamedStepHasItsDeath(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, f := range ourFiles(t) {
		stepped := slices.Contains([]string{"eventlog", "checkpoints", "commands", "sqlgate"}, f.room) // elsewhere a Step may be something else
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			argument, ok := stepCall(n)
			if !ok {
				return true
			}
			name, ok := argument.(*ast.BasicLit)
			if ok && name.Kind == token.STRING {
				found[strings.Trim(name.Value, `"`)] = true
			} else if stepped {
				t.Errorf("%s: the name of a step is to be written where it is passed", f.name)
			}
			return true
		})
	}
	killed := killedSteps()
	for _, at := range deathsAtTheFence { // a start of its own, with a fence
		killed = append(killed, at.step())
	}
	slices.Sort(killed)
	require.Equal(t, slices.Sorted(maps.Keys(found)), slices.Compact(killed), "every named step stands in lives, or among those at the fence, and nothing else does")
}

// stepCall gives the argument of a call of a step hook: x.step or x.Step.
func stepCall(n ast.Node) (argument ast.Expr, ok bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return nil, false
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "step" && s.Sel.Name != "Step" {
		return nil, false
	}
	return call.Args[0], true
}
