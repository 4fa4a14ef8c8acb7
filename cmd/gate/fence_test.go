package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fence"
	"writegate/eventlog/event"
	"writegate/fixtures/faultproxy"
	"writegate/fixtures/postgres"
	"writegate/sqlgate/pgexec"
)

// A fenced is the folder of a gate, a database for its fence, and the settings for it.
type fenced struct {
	gateDir
	fenceDB string // as its superuser
	extra   []string
}

// newFenced makes the table as `gate log fence ddl` prints it, for a role of the test's own.
func newFenced(t *testing.T) fenced {
	t.Helper()
	d := newGateDir(t, []byte(anythingGoes))
	d.execute(t, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	f := d.fencedAt(t, postgres.ForTest(t))
	role := pgexec.RoleOf(f.url())
	t.Cleanup(func() { // it is the server's, which other tests have too
		require.NoError(t, postgres.TryURL(context.Background(), f.fenceDB, "DROP OWNED BY "+role+"; DROP ROLE "+role))
	})
	return f
}

const fencePassword = "a-password-of-the-fence"

func (d gateDir) fencedAt(t *testing.T, fenceDB string) fenced {
	t.Helper()
	u, err := url.Parse(fenceDB)
	require.NoError(t, err)
	role := "fence_" + strings.ReplaceAll(event.NewID(time.Now()).String()[4:], "-", "")
	u.User = url.UserPassword(role, fencePassword)
	f := fenced{gateDir: d, fenceDB: fenceDB, extra: []string{"GATE_LOG_FENCE_URL=" + u.String()}}
	code, ddl, errs := f.run(t, "log", "fence", "ddl")
	require.Zero(t, code, errs)
	postgres.ExecuteURL(t, fenceDB, ddl+"ALTER ROLE "+role+" PASSWORD '"+fencePassword+"'")
	return f
}

// url is that of the fence.
func (f fenced) url() string { return strings.TrimPrefix(f.extra[0], "GATE_LOG_FENCE_URL=") }

// run is a command with the settings of the fence.
func (f fenced) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{streams: streams{strings.NewReader(""), &out, &errs}, environ: f.environ(f.extra...)}
	return a.run(context.WithoutCancel(t.Context()), args), out.String(), errs.String()
}

func (f fenced) start(t *testing.T) *testGate {
	t.Helper()
	return startGate(t, f.gateDir, f.extra...)
}

// refused starts a gate that has to end by itself.
func (f fenced) refused(t *testing.T, code int) (said string) {
	t.Helper()
	got, _, said := f.run(t, "serve")
	require.Equal(t, code, got, said)
	require.NotContains(t, said, fencePassword)
	return said
}

// copied is a copy of all files, as of a disk.
func (f fenced) copied(t *testing.T) fenced {
	t.Helper()
	f.gateDir = f.copyTo(t, filepath.Join(t.TempDir(), "copy"))
	return f
}

// row is a column of what the table has of the folder's log.
func (f fenced) row(t *testing.T, column string) string {
	t.Helper()
	return postgres.QueryURL(t, f.fenceDB, "SELECT ("+column+")::text FROM gate.log_fence AS f WHERE f.followed_by = ''")
}

// taken are the log_fence_taken events of a gate that does not run.
func (d gateDir) taken(t *testing.T) (all []event.LogFenceTaken) {
	t.Helper()
	for _, e := range d.events(t) {
		if e.Type == event.TypeLogFenceTaken {
			var p event.LogFenceTaken
			require.NoError(t, e.Parse(&p))
			all = append(all, p)
		}
	}
	return all
}

// insert writes a row through a gate and gives the status, and the reason of a refusal.
func (g *testGate) insert(t *testing.T, id int) (status int, reason string) {
	t.Helper()
	r := g.query(t, ask(fmt.Sprintf("INSERT INTO t VALUES (%d, 'x')", id)))
	details, _ := r.json(t)["details"].(map[string]any)
	reason, _ = details["reason"].(string)
	return r.status, reason
}

// insertUntil writes rows, from id on, until one gets an answer of this status and reason, and gives its id.
func (g *testGate) insertUntil(t *testing.T, id, status int, reason string) int {
	t.Helper()
	for end := time.Now().Add(startPatience); ; id++ {
		got, why := g.insert(t, id)
		if got == status && why == reason {
			return id
		}
		require.True(t, time.Now().Before(end), "row %d: %d %s", id, got, why)
		time.Sleep(pollEvery)
	}
}

// requirePrefix holds the log of one folder to be the beginning of another's.
func requirePrefix(t *testing.T, shorter, longer gateDir) {
	t.Helper()
	a, b := shorter.events(t), longer.events(t)
	require.Less(t, len(a), len(b))
	for i := range a {
		require.Equal(t, b[i].Hash, a[i].Hash, "event %d", i+1)
	}
}

func TestTheFenceOfALogIsTakenHeldAndGivenBack(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	g := f.start(t)
	health := g.get(t, "/health").json(t)
	require.Equal(t, map[string]any{"status": "ok", "message": "ok", "epoch": 1.0}, health["log_fence"])
	metrics := string(g.get(t, "/metrics").body)
	require.Contains(t, metrics, "gate_log_fence_ok 1")
	require.Contains(t, metrics, "gate_log_fence_epoch 1")
	status, _ := g.insert(t, 1)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "false", f.row(t, "released"))
	g.end(t)
	require.NoFileExists(t, f.file("audit.wal"+fence.Suffix))
	require.Equal(t, "true", f.row(t, "released"))
	all := f.events(t)
	require.Equal(t, fmt.Sprint(len(all)), f.row(t, "head_seq"), "the last one, the shutdown, included")
	require.Equal(t, []event.Type{event.TypeLogFenceTaken, event.TypeStartup}, []event.Type{all[0].Type, all[1].Type})

	g = f.start(t)
	g.end(t)
	require.NotContains(t, g.output.String(), "did not give it back", "nobody waits for what was given back")
	require.NotContains(t, g.output.String(), fencePassword)
	taken := f.taken(t)
	require.Len(t, taken, 2)
	require.Equal(t, []uint64{1, 0, 2, 1}, []uint64{taken[0].Epoch, taken[0].PreviousEpoch, taken[1].Epoch, taken[1].PreviousEpoch})
	require.NotEqual(t, taken[0].Nonce, taken[1].Nonce)
	require.Contains(t, taken[0].Holder, fmt.Sprintf("pid %d", os.Getpid()))
	require.Equal(t, fmt.Sprintf("%x", taken[1].Nonce), f.row(t, "nonce"))
}

func TestWithoutAFenceThereIsNone(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.NotContains(t, g.get(t, "/health").json(t), "log_fence")
	require.NotContains(t, string(g.get(t, "/metrics").body), "gate_log_fence")
	g.end(t)
	require.Empty(t, g.taken(t))
	require.NoFileExists(t, g.file("audit.wal"+fence.Suffix))
}

// At the first use, and at a later one: of two copies that start at once one serves, and
// the log of the other one gets no event.
func TestOfTwoCopiesThatStartAtOnceTheFenceLetsOneServe(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	startGate(t, f.gateDir).end(t) // a log that knows of no fence yet
	for round := range 2 {
		copies := []fenced{f, f.copied(t)}
		before := len(f.events(t))
		ready, codes := make(chan int, 2), [2]int{}
		ctx, stop := context.WithCancel(context.Background())
		var both sync.WaitGroup
		outputs := [2]*lockedBuffer{{}, {}}
		for i, c := range copies {
			a := &app{streams: streams{strings.NewReader(""), outputs[i], outputs[i]}, environ: c.environ(c.extra...), ready: func(string) { ready <- i }, courtesy: startPatience / 2}
			both.Go(func() { codes[i] = a.run(ctx, []string{"serve"}) })
		}
		winner := <-ready
		require.Eventually(t, func() bool {
			return strings.Contains(outputs[1-winner].String(), "GATE_LOG_FENCE_URL")
		}, startPatience, pollEvery)
		stop()
		both.Wait()
		require.Empty(t, ready, "both served")
		require.Zero(t, codes[winner], outputs[winner])
		require.Contains(t, []int{exitLocked, exitConfigured}, codes[1-winner], outputs[1-winner])
		require.Len(t, copies[1-winner].events(t), before, "round %d: the other one wrote", round)
		f = copies[winner]
		f.checkDisk(t)
	}
}

func TestACopyThatIsBehindItsFenceGoesOnByAnOperatorsDecisionAlone(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	f.start(t).end(t)
	old := f.copied(t)
	g := f.start(t)
	held := old.refused(t, exitLocked)
	require.Contains(t, held, fmt.Sprintf("pid %d", os.Getpid()), "who holds it")
	require.Contains(t, held, "since ")
	code, _, said := old.run(t, "log", "fence", "take", "--reason", "too early")
	require.Equal(t, exitLocked, code, said)
	g.end(t)
	before := old.events(t)
	said = old.refused(t, exitConfigured)
	require.Contains(t, said, "its newest epoch is 1, and the table has 2")
	require.Contains(t, said, "gate log fence take")
	require.Equal(t, before, old.events(t))

	code, _, said = old.run(t, "log", "fence", "take")
	require.Equal(t, exitUsage, code, said)
	code, out, said := old.run(t, "log", "fence", "take", "--reason", "the other disk is gone")
	require.Zero(t, code, said)
	require.Contains(t, out, "had epoch 2")
	g = old.start(t)
	g.end(t)
	taken := old.taken(t)
	require.Equal(t, "the other disk is gone", taken[1].Reason)
	require.Equal(t, []uint64{4, 3}, []uint64{taken[1].Epoch, taken[1].PreviousEpoch})
	require.Contains(t, f.refused(t, exitConfigured), "its newest epoch is 2, and the table has 4", "the other one is behind now")
	old.start(t).end(t)
	require.Empty(t, old.taken(t)[2].Reason, "it was one decision")
}

// A copy of the files of a running gate has its epoch, and not what was written since.
func TestACopyThatLacksEventsIsRefusedByItsFence(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	v := f.spawn(t, fall{}, f.extra...)
	old := f.copied(t)
	r, err := v.try(http.MethodPost, "/query", `{"actor":"ana","app":"shop","tenant":"acme","role":"clerk","host":"desk-1","env":"prod","sql":"INSERT INTO t VALUES (1, 'x')"}`)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	written := fmt.Sprintf("head_seq >= %d", v.head(t))
	require.Eventually(t, func() bool { return f.row(t, written) == "true" }, startPatience, pollEvery)
	v.kill()
	v.await(t)
	require.Contains(t, old.refused(t, exitConfigured), "event "+f.row(t, "head_seq")+" of that log")
	f.start(t).end(t)
}

// head is the last event of a gate, as it says.
func (v *victim) head(t *testing.T) int {
	t.Helper()
	r, err := v.try(http.MethodGet, "/health", "")
	require.NoError(t, err)
	return int(r.json(t)["log"].(map[string]any)["seq"].(float64))
}

// deathsAtTheFence are the steps of a start on the way to its fence, and of the append of its event.
var deathsAtTheFence = []death{"fence.before_file#1", "fence.filed#1", "fence.taken#1", "commands.append#1", "append.after_write#1", "commands.appended#1"}

// Killed anywhere between the file, the row and the event, a start goes on by itself, and a
// copy that was made when it was dead does not, once the other one has started.
func TestAStartThatIsKilledOnTheWayToItsFenceGoesOn(t *testing.T) {
	for _, at := range deathsAtTheFence {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, the first start: %v", at, first), func(t *testing.T) {
				t.Parallel()
				f := newFenced(t)
				if !first {
					f.start(t).end(t)
				}
				v := f.spawn(t, fall{at: at}, f.extra...)
				v.await(t)
				require.True(t, v.killed(), &v.output)
				old := f.copied(t)
				f.start(t).end(t)
				f.start(t).end(t)
				taken := f.taken(t)
				for i := 1; i < len(taken); i++ {
					require.Greater(t, taken[i].Epoch, taken[i-1].Epoch)
				}
				require.Equal(t, fmt.Sprint(taken[len(taken)-1].Epoch), f.row(t, "epoch"))
				old.refused(t, exitConfigured)
			})
		}
	}
}

func TestAGateOutlivesARestartOfItsFencesDatabase(t *testing.T) {
	t.Parallel()
	cluster := postgres.ClusterForTest(t, nil)
	d := newGateDir(t, []byte(anythingGoes))
	d.execute(t, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	f := d.fencedAt(t, cluster.URL("postgres"))
	g := f.start(t)
	status, _ := g.insert(t, 1)
	require.Equal(t, http.StatusOK, status)
	require.NoError(t, cluster.Stop())
	require.NoError(t, cluster.Restart(t.Context()))
	require.Eventually(t, func() bool { return strings.Contains(g.output.String(), "fence is confirmed again") }, startPatience, pollEvery)
	next := g.insertUntil(t, 2, http.StatusOK, "")

	// A failover to a standby that lacks confirmations, and nothing else.
	earlier := postgres.QueryURL(t, f.fenceDB, "SELECT format('UPDATE gate.log_fence SET head_seq = %s, head_hash = %L', head_seq, head_hash) FROM gate.log_fence")
	g.insert(t, next+1000)
	head := fmt.Sprintf("head_seq >= %v", g.get(t, "/health").json(t)["log"].(map[string]any)["seq"])
	confirmed := func() bool { return f.row(t, head) == "true" }
	require.Eventually(t, confirmed, startPatience, pollEvery)
	postgres.ExecuteURL(t, f.fenceDB, earlier)
	require.Eventually(t, confirmed, startPatience, pollEvery)
	require.Equal(t, http.StatusOK, g.get(t, "/health").status)

	require.NoError(t, cluster.Stop())
	refused := g.insertUntil(t, next+1, http.StatusServiceUnavailable, "fence_unconfirmed")
	require.Equal(t, "0", f.value(t, fmt.Sprintf("SELECT count(*) FROM t WHERE id = %d", refused)))
	health := g.get(t, "/health")
	require.Equal(t, http.StatusServiceUnavailable, health.status)
	require.Equal(t, "unconfirmed", health.json(t)["log_fence"].(map[string]any)["status"])
	require.Contains(t, health.text(t, "message"), "event log, fence")
	require.Contains(t, string(g.get(t, "/metrics").body), "gate_log_fence_ok 0")
	require.Equal(t, http.StatusOK, g.get(t, "/audit").status, "reads of evidence go on")

	require.NoError(t, cluster.Restart(t.Context()))
	g.insertUntil(t, refused, http.StatusOK, "")
	require.Equal(t, http.StatusOK, g.get(t, "/health").status)
	g.end(t)
	require.Len(t, f.taken(t), 1, "it is the same run, and nobody came in between")
	require.Equal(t, "1", f.row(t, "epoch"))
}

// The primary ends, its standby, which has all, is promoted: the gate has the same row there, and
// goes on. While the standby is none of its own it is not asked.
func TestAGateFollowsItsFenceOverAFailover(t *testing.T) {
	t.Parallel()
	primary := postgres.ClusterForTest(t, nil)
	standby := primary.StandbyForTest(t)
	d := newGateDir(t, []byte(anythingGoes))
	d.execute(t, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	f := d.fencedAt(t, primary.URL("postgres"))
	one, err := url.Parse(f.url())
	require.NoError(t, err)
	two, err := url.Parse(standby.URL("postgres"))
	require.NoError(t, err)
	one.Host = two.Host + "," + one.Host
	f.extra = []string{"GATE_LOG_FENCE_URL=" + one.String()}
	g := f.start(t)
	status, _ := g.insert(t, 1)
	require.Equal(t, http.StatusOK, status)
	f.fenceDB = standby.URL("postgres")
	require.NoError(t, primary.Stop()) // which waits until the standby has all
	require.Eventually(t, func() bool {
		return postgres.QueryURL(t, f.fenceDB, "SELECT count(*) FROM pg_stat_wal_receiver") == "0"
	}, startPatience, pollEvery)
	require.NoError(t, standby.Promote(t.Context()))
	g.insertUntil(t, 2, http.StatusOK, "")
	head := fmt.Sprintf("head_seq >= %v", g.get(t, "/health").json(t)["log"].(map[string]any)["seq"])
	require.Eventually(t, func() bool { return f.row(t, head) == "true" }, startPatience, pollEvery, "at the server that took over")
	g.end(t)
	require.Equal(t, "true", f.row(t, "released"))
	require.Len(t, f.taken(t), 1)
}

// elsewhere is a URL that leads to nobody.
const elsewhere = "postgres://nobody@127.0.0.1:1/nothing"

// Nothing passes any more between a gate and its fence, and neither side hears of it. The
// gate stops writing by itself, and the server still keeps others away then. Only when the server has
// ended the session does another copy start; the first one never writes again.
func TestAGateThatIsCutOffStopsBeforeItsFenceIsFree(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	proxy := faultproxy.Start(t, f.url())
	cut := f
	cut.extra = []string{"GATE_LOG_FENCE_URL=" + proxy.URL()}
	g := cut.start(t)
	g.accused = true // its log is copied while it runs
	status, _ := g.insert(t, 1)
	require.Equal(t, http.StatusOK, status)

	proxy.Lead(t, elsewhere) // no new session either
	proxy.Arm(faultproxy.Fault{Direction: faultproxy.ToServer, N: 1, Action: faultproxy.Freeze})
	last := g.insertUntil(t, 2, http.StatusServiceUnavailable, "fence_unconfirmed")
	require.True(t, proxy.Fired())
	locks := fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32 | objid::bigint) = %d", pgexec.FenceKey(g.logID(t)))
	require.Equal(t, "1", postgres.QueryURL(t, f.fenceDB, locks), "the server has not given it up when the holder has")
	other := f.copied(t)
	other.refused(t, exitLocked)

	proxy.Thaw() // as if the server had given the session up
	require.Eventually(t, func() bool { return postgres.QueryURL(t, f.fenceDB, locks) == "0" }, startPatience, pollEvery)
	h := other.start(t)
	require.Contains(t, h.output.String(), "did not give it back")
	require.Equal(t, last, h.insertUntil(t, last, http.StatusOK, ""), "what was refused is not there")
	status, reason := g.insert(t, last+1)
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Equal(t, "fence_unconfirmed", reason, "it can't know better")

	proxy.Lead(t, f.fenceDB)
	g.insertUntil(t, last+1, http.StatusServiceUnavailable, "fence_lost")
	health := g.get(t, "/health").json(t)
	require.Equal(t, "lost", health["log_fence"].(map[string]any)["status"])
	require.Contains(t, health["message"], "this gate has epoch 1, and the table has 2")
	require.Contains(t, g.output.String(), "another copy of this event log goes on")
	require.Equal(t, http.StatusOK, g.get(t, "/audit").status)
	g.end(t)
	h.end(t)
	require.NotContains(t, g.output.String(), fencePassword)
	requirePrefix(t, g.gateDir, h.gateDir)
	f.refused(t, exitConfigured)
}

// logID is the id of a gate's log.
func (g *testGate) logID(t *testing.T) (id [16]byte) {
	t.Helper()
	b, err := hex.DecodeString(g.get(t, "/evidence/verify").text(t, "log_id"))
	require.NoError(t, err)
	require.Len(t, b, len(id))
	copy(id[:], b)
	return id
}

// A process that was stopped, and goes on when another copy has taken over, writes nothing.
func TestAStoppedGateFindsItsFenceTakenWhenItGoesOn(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	v := f.spawn(t, fall{}, f.extra...)
	require.NoError(t, v.cmd.Process.Signal(syscall.SIGSTOP))
	other := f.copied(t)
	require.Contains(t, other.refused(t, exitLocked), fmt.Sprintf("pid %d", v.cmd.Process.Pid))
	postgres.ExecuteURL(t, f.fenceDB, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'gate/fence%' AND datname = current_database()")
	h := other.start(t)
	h.insertUntil(t, 1, http.StatusOK, "")

	require.NoError(t, v.cmd.Process.Signal(syscall.SIGCONT))
	const write = `{"actor":"ana","app":"shop","tenant":"acme","role":"clerk","host":"desk-1","env":"prod","sql":"INSERT INTO t VALUES (2, 'x')"}`
	r, err := v.try(http.MethodPost, "/query", write)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, r.status, "%s", r.body)
	require.Eventually(t, func() bool {
		r, err := v.try(http.MethodPost, "/query", write)
		return err == nil && bytes.Contains(r.body, []byte("fence_lost"))
	}, startPatience, pollEvery)
	v.end(t)
	require.Equal(t, 0, v.cmd.ProcessState.ExitCode(), &v.output)
	h.end(t)
	require.Equal(t, "1", f.value(t, "SELECT count(*) FROM t"))
	requirePrefix(t, f.gateDir, h.gateDir)
}

// A statement waits in the database while the fence lapses: it is rolled back in the place of its
// COMMIT, and the log gets to know that once the fence is back.
func TestWhatRunsWhenTheFenceLapsesIsRolledBack(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	proxy := faultproxy.Start(t, f.url())
	f.extra = []string{"GATE_LOG_FENCE_URL=" + proxy.URL()}
	g := f.start(t)
	release := g.openBeside(t, "LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
	type answer struct {
		status int
		reason string
	}
	told := make(chan answer, 1)
	go func() {
		status, reason := g.insert(t, 1)
		told <- answer{status, reason}
	}()
	require.Eventually(t, func() bool {
		return f.value(t, "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == "1"
	}, startPatience, pollEvery)
	proxy.Lead(t, elsewhere)
	proxy.Drop()
	require.Eventually(t, func() bool {
		return g.get(t, "/health").json(t)["log_fence"].(map[string]any)["status"] == "unconfirmed"
	}, startPatience, pollEvery)
	release()
	require.Equal(t, answer{http.StatusServiceUnavailable, "fence_unconfirmed"}, <-told)
	require.Equal(t, "0", f.value(t, "SELECT count(*) FROM t"))
	proxy.Lead(t, f.fenceDB)
	g.insertUntil(t, 2, http.StatusOK, "")
	require.Eventually(t, func() bool {
		return bytes.Contains(g.get(t, "/audit?event_type=execution_failure").body, []byte("rollback_acknowledged"))
	}, startPatience, pollEvery)
	g.end(t)
	require.Zero(t, slices.IndexFunc(f.events(t), func(e event.Envelope) bool { return e.Type == event.TypeLogFenceTaken }))
}

// A restored backup is followed by a new log, so the fence of the old one is ended by the
// first start behind it: not while the old gate runs, and for good then. Of two restores one goes on.
func TestARestoredLogEndsTheFenceOfTheOneBefore(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	g := f.start(t)
	status, _ := g.insert(t, 1)
	require.Equal(t, http.StatusOK, status)
	backup := filepath.Join(t.TempDir(), "backup")
	code, _, errs := f.run(t, "log", "backup", backup)
	require.Zero(t, code, errs)
	require.NoFileExists(t, filepath.Join(backup, "log", "audit.wal"+fence.Suffix))
	var restored [2]fenced
	for i := range restored {
		restored[i] = f
		restored[i].path = t.TempDir()
		code, _, errs := restored[i].run(t, "log", "restore", backup)
		require.Zero(t, code, errs)
	}
	require.Contains(t, restored[0].refused(t, exitLocked), "which this log follows")
	g.insertUntil(t, 2, http.StatusOK, "")
	g.end(t)

	restored[0].start(t).end(t)
	require.Contains(t, f.refused(t, exitConfigured), "follows it")
	require.Contains(t, restored[1].refused(t, exitConfigured), "is followed by log")
	code, _, errs = restored[1].run(t, "log", "fence", "take", "--reason", "the first restore was of the wrong disk")
	require.Zero(t, code, errs)
	restored[1].start(t).end(t)
	require.Equal(t, "the first restore was of the wrong disk", restored[1].taken(t)[0].Reason)
	require.Contains(t, restored[0].refused(t, exitConfigured), "is followed by log", "the log before it has another successor now")
}

// A gate that is moved goes on with its log, and with its epoch; what stayed behind does not.
func TestAMovedLogTakesItsFenceAlong(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	f.start(t).end(t)
	backup := filepath.Join(t.TempDir(), "backup")
	code, _, errs := f.run(t, "log", "backup", backup)
	require.Zero(t, code, errs)
	moved := f
	moved.path = t.TempDir()
	code, _, errs = moved.run(t, "log", "restore", backup, "--old-log", f.file("audit.wal"))
	require.Zero(t, code, errs)
	moved.start(t).end(t)
	require.Len(t, moved.taken(t), 2)
	f.refused(t, exitConfigured)
}

func TestAFenceThatIsNoFenceIsRefused(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	own := f.url()
	guarded, err := url.Parse(own)
	require.NoError(t, err)
	database, err := url.Parse(f.database)
	require.NoError(t, err)
	guarded.Path = database.Path
	elsewhereNamed := *guarded
	elsewhereNamed.Host = strings.Replace(guarded.Host, "127.0.0.1", "localhost", 1)
	for name, c := range map[string]struct {
		settings []string
		code     int
		says     string
	}{
		"the guarded database":                 {[]string{"GATE_LOG_FENCE_URL=" + guarded.String()}, exitConfigured, "leads to the guarded database"},
		"the guarded one's own role":           {[]string{"GATE_LOG_FENCE_URL=" + f.database, "GATE_LOG_FENCE_IN_GUARDED_DATABASE=true"}, exitConfigured, "must name a role that is none of the gate's"},
		"a word without a fence":               {[]string{"GATE_LOG_FENCE_IN_GUARDED_DATABASE=true"}, exitConfigured, "needs GATE_LOG_FENCE_URL"},
		"weaker TLS":                           {[]string{"GATE_LOG_FENCE_URL=" + own + "?sslmode=require"}, exitConfigured, "GATE_LOG_FENCE_URL"},
		"a setting of the session":             {[]string{"GATE_LOG_FENCE_URL=" + own + "?options=-c%20search_path=x"}, exitConfigured, "is not taken"},
		"no table":                             {[]string{f.extra[0], "GATE_LOG_FENCE_TABLE=gate.other"}, exitUnavailable, "gate log fence ddl"},
		"no name of a table":                   {[]string{f.extra[0], "GATE_LOG_FENCE_TABLE=other"}, exitConfigured, "GATE_LOG_FENCE_TABLE must be schema.table"},
		"nobody there":                         {[]string{"GATE_LOG_FENCE_URL=" + strings.Replace(own, guarded.Host, "127.0.0.1:1", 1)}, exitUnavailable, "no connection to the fence's database"},
		"the guarded database by another name": {[]string{"GATE_LOG_FENCE_URL=" + elsewhereNamed.String()}, exitConfigured, "leads to the guarded database"},
	} {
		t.Run(name, func(t *testing.T) {
			d := f
			d.path, d.extra = t.TempDir(), c.settings
			if strings.Contains(name, "another name") {
				code, ddl, errs := d.run(t, "log", "fence", "ddl")
				require.Zero(t, code, errs)
				d.execute(t, strings.Join(slices.DeleteFunc(strings.SplitAfter(ddl, "\n"), func(line string) bool { return strings.HasPrefix(line, "CREATE ROLE") }), ""))
			}
			require.NoError(t, os.CopyFS(d.file("policies"), os.DirFS(f.file("policies"))))
			require.Contains(t, d.refused(t, c.code), c.says)
		})
	}
	none := f
	none.path, none.extra = t.TempDir(), nil
	code, _, said := none.run(t, "log", "fence", "take", "--reason", "x")
	require.Equal(t, exitConfigured, code, said)
	none.extra = f.extra
	code, _, said = none.run(t, "log", "fence", "take", "--reason", "x")
	require.Equal(t, exitPartial, code, said)
	require.NoFileExists(t, none.file("audit.wal"))
	code, out, _ := f.run(t, "config")
	require.Zero(t, code)
	require.NotContains(t, out, fencePassword)

	f.execute(t, "DROP SCHEMA gate CASCADE")
	f.extra = []string{"GATE_LOG_FENCE_URL=" + guarded.String(), "GATE_LOG_FENCE_IN_GUARDED_DATABASE=true"}
	code, ddl, _ := f.run(t, "log", "fence", "ddl")
	require.Zero(t, code)
	f.execute(t, strings.Join(slices.DeleteFunc(strings.SplitAfter(ddl, "\n"), func(line string) bool { return strings.HasPrefix(line, "CREATE ROLE") }), ""))
	t.Cleanup(func() {
		require.NoError(t, postgres.TryURL(context.Background(), f.database, "DROP OWNED BY "+guarded.User.Username()))
	})
	f.start(t).end(t)
}

// What the table says and the log does not know refuses a start, whichever of them was put back.
func TestATableThatWasPutBackIsNoFence(t *testing.T) {
	t.Parallel()
	f := newFenced(t)
	f.start(t).end(t)
	saved := postgres.QueryURL(t, f.fenceDB, "SELECT format('UPDATE gate.log_fence SET epoch = %s, nonce = %L, head_seq = %s, head_hash = %L', epoch, nonce, head_seq, head_hash) FROM gate.log_fence")
	f.start(t).end(t)
	postgres.ExecuteURL(t, f.fenceDB, saved)
	require.Contains(t, f.refused(t, exitConfigured), "its newest epoch is 2, and the table has 1")
	postgres.ExecuteURL(t, f.fenceDB, "TRUNCATE gate.log_fence")
	require.Contains(t, f.refused(t, exitConfigured), "knows nothing of log")
	code, _, errs := f.run(t, "log", "fence", "take", "--reason", "the table was lost")
	require.Zero(t, code, errs)
	f.start(t).end(t)
	require.Equal(t, uint64(3), f.taken(t)[2].Epoch, "above all that this copy knows")
}
