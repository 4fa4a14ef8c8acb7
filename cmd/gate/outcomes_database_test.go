package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/faultproxy"
	"writegate/fixtures/postgres"
)

// A disaster befalls the database while clients write.
type disaster struct {
	settings map[string]string // of the server
	before   func(t *testing.T, b *bench, c *postgres.Cluster)
	strike   func(t *testing.T, b *bench, c *postgres.Cluster)
	crash    bool // ids may be handed out again, so that only a marker knows for sure
}

var disasters = map[string]disaster{
	"a backend is killed": {crash: true, strike: func(t *testing.T, b *bench, c *postgres.Cluster) {
		life := b.ask(t, "SELECT stats_reset FROM pg_stat_wal")
		require.Eventually(t, func() bool { // the gate may have none just now, or close the one that was found
			pid, err := strconv.Atoi(b.ask(t, "SELECT pid FROM pg_stat_activity WHERE application_name = 'gate/writer' ORDER BY state LIMIT 1"))
			return err == nil && c.KillBackend(pid) == nil
		}, startPatience, pollEvery)
		require.Eventually(t, func() bool { // it recovers by itself: until then this fails
			return postgres.TryURL(t.Context(), c.URL("outcomes"), "SELECT 1 / (stats_reset <> '"+life+"')::int FROM pg_stat_wal") == nil
		}, startPatience, pollEvery)
	}},
	"the server is killed": {crash: true, strike: func(t *testing.T, _ *bench, c *postgres.Cluster) {
		require.NoError(t, c.Crash())
		startAgain(t, c)
	}},
	"the server stops at once": {crash: true, strike: func(t *testing.T, _ *bench, c *postgres.Cluster) {
		require.NoError(t, c.Kill())
		startAgain(t, c)
	}},
	"the server is restarted": {strike: func(t *testing.T, _ *bench, c *postgres.Cluster) {
		require.NoError(t, c.Stop())
		startAgain(t, c)
	}},
	"the server stands still": {strike: func(t *testing.T, _ *bench, c *postgres.Cluster) {
		require.NoError(t, c.Pause())
		time.Sleep(hold) // that is the disaster
		require.NoError(t, c.Resume())
	}},
	"no connection is left": {settings: map[string]string{"max_connections": "14"}, strike: func(t *testing.T, b *bench, c *postgres.Cluster) {
		free := takeConnections(t, c, 14)
		require.Eventually(t, func() bool {
			b.proxy.Drop() // what the gate gives up, somebody else takes
			r := b.gate.query(t, ask("INSERT INTO child VALUES ('refused', NULL)"))
			return r.status == http.StatusServiceUnavailable
		}, startPatience, pollEvery, "somebody is refused")
		free()
	}},
	"no file can grow": {
		crash: true, // the checkpoint of a shutdown that can't write what it has to ends the server as a crash does
		before: func(t *testing.T, b *bench, c *postgres.Cluster) {
			b.ask(t, "INSERT INTO hits SELECT repeat('x', 1000) FROM generate_series(1, 18000)")
			require.NoError(t, c.Stop())
			c.LimitFiles(20 << 20)
			startAgain(t, c)
		},
		strike: func(t *testing.T, b *bench, c *postgres.Cluster) {
			require.Eventually(t, func() bool {
				r := b.gate.query(t, ask("INSERT INTO hits SELECT repeat('y', 1000) FROM generate_series(1, 300)"))
				return r.status == http.StatusServiceUnavailable
			}, startPatience, time.Millisecond, "the disk is full")
			require.NoError(t, c.Stop())
			c.LimitFiles(0)
			startAgain(t, c)
		},
	},
}

// startAgain starts a server whose last processes may still be about.
func startAgain(t testing.TB, c *postgres.Cluster) {
	t.Helper()
	require.Eventually(t, func() bool { return c.Restart(t.Context()) == nil }, startPatience, pollEvery)
}

// takeConnections has clients wait for each connection that the server has, and
// keep it, until they are to give all of them back.
func takeConnections(t *testing.T, c *postgres.Cluster, most int) (free func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for range most {
		work.Go(func() {
			again := time.NewTicker(pollEvery)
			defer again.Stop()
			for ctx.Err() == nil {
				_ = postgres.TryURL(ctx, c.URL("outcomes"), takingSQL) // refused while all are taken
				<-again.C
			}
		})
	}
	return func() {
		cancel()
		work.Wait()
		require.Eventually(t, func() bool { // the server hears later than its clients that they have left
			return postgres.TryURL(t.Context(), c.URL("outcomes"), "SELECT 1 / (count(*) = 0)::int FROM pg_stat_activity WHERE query = '"+takingSQL+"'") == nil
		}, startPatience, pollEvery)
	}
}

// takingSQL is what those run who take connections away.
const takingSQL = "SELECT pg_sleep(3600)"

// TestOutcomesHoldWhateverBefallsTheDatabase: clients write while the database is
// killed, stopped, paused or full; whatever was recorded in the end is what it holds.
func TestOutcomesHoldWhateverBefallsTheDatabase(t *testing.T) {
	t.Parallel()
	for n, name := range slices.Sorted(maps.Keys(disasters)) {
		d := disasters[name]
		for _, marks := range []bool{false, true} {
			if os.Getenv(outcomesEverything) == "" && marks != (n%2 == 0) {
				continue // the short form has each disaster once
			}
			t.Run(fmt.Sprintf("%s, marker %t", name, marks), func(t *testing.T) {
				t.Parallel()
				c := postgres.ClusterForTest(t, d.settings)
				require.NoError(t, c.CreateDatabase(t.Context(), "outcomes"))
				b := newBenchOn(t, c.URL("outcomes"), marks)
				if d.before != nil {
					d.before(t, b, c)
				}
				b.run(t, func(b *bench) {
					b.storm(t, func() { d.strike(t, b, c) }, d.crash && !marks)
				})
			})
		}
	}
}

// A wanted is a row that a client wanted to write.
type wanted struct {
	form  *form
	name  string
	reply reply
}

// stormClients write at once.
const stormClients = 6

// storm lets clients write until the disaster has passed, and looks at what was
// recorded of each write. mayForget: not_knowable is an answer.
func (b *bench) storm(t *testing.T, strike func(), mayForget bool) {
	t.Helper()
	var mu sync.Mutex
	var all []wanted
	sofar := func() int { mu.Lock(); defer mu.Unlock(); return len(all) }
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for n := range stormClients {
		f := formOf([]string{"write under a key", "write with returning"}[n%2])
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				w := wanted{form: f, name: nextCase()}
				w.reply = b.gate.query(t, f.request(w.name), f.params(w.name)...)
				mu.Lock()
				all = append(all, w)
				mu.Unlock()
			}
		})
	}
	require.Eventually(t, func() bool { return sofar() > 5*stormClients }, startPatience, time.Millisecond)
	strike()
	before := sofar()
	require.Eventually(t, func() bool { return sofar() > before+2*stormClients }, startPatience, time.Millisecond, "nobody writes any more")
	close(stop)
	clients.Wait()

	tally := newTally()
	settled := make([][2]string, len(all))
	for i, w := range all {
		settled[i][0], settled[i][1] = b.settle(t, w.reply.text(t, "execution_id"))
		tally.note(true, w.reply, settled[i][0], settled[i][1])
	}
	b.rest(t)
	applied := map[string]int{} // in one question, because a connection for each would cost more than the storm
	require.NoError(t, json.Unmarshal([]byte(b.ask(t, "SELECT coalesce(json_object_agg(v, n), '{}') FROM (SELECT v, count(*) AS n FROM hits WHERE v LIKE 'case-%' GROUP BY v) AS counted")), &applied))
	require.NotEmpty(t, applied)
	for i, w := range all {
		state, outcome := settled[i][0], settled[i][1]
		if state == "unknown" {
			assert.True(t, mayForget, "%s was forgotten: %s", w.name, &w.reply)
			continue
		}
		require.Equal(t, countHits, w.form.applied)
		holds(t, w.form, w.reply, state, outcome, strconv.Itoa(applied[w.name]), w.name)
	}
	for _, w := range all {
		if w.form.key && w.reply.status != http.StatusOK {
			b.gate.query(t, w.form.request(w.name), w.form.params(w.name)...)
		}
	}
	require.Equal(t, "0", b.ask(t, "SELECT count(*) FROM (SELECT v FROM hits WHERE v LIKE 'case-%' GROUP BY v HAVING count(*) > 1) twice"))
	t.Log(tally)
}

// TestAFailoverIsSeenThroughByTheMarkerAlone: the answer to COMMIT is lost, the
// server with it, and a standby takes over, with the write or without it.
func TestAFailoverIsSeenThroughByTheMarkerAlone(t *testing.T) {
	t.Parallel()
	f := formOf("write under a key")
	for _, marks := range []bool{false, true} {
		t.Run(fmt.Sprintf("marker %t", marks), func(t *testing.T) {
			c := postgres.ClusterForTest(t, nil)
			require.NoError(t, c.CreateDatabase(t.Context(), "outcomes"))
			b := newBenchOn(t, c.URL("outcomes"), marks)
			b.become(calm) // the write is to come as far as its COMMIT
			standby := c.StandbyForTest(t)
			b.run(t, func(b *bench) {
				follows := func(name string) bool {
					return postgres.QueryURL(t, standby.URL("outcomes"), named(f.applied, name)) == "1"
				}
				carried, carriedID := b.loseCommit(t, f)
				require.Eventually(t, func() bool { return follows(carried) }, startPatience, pollEvery)
				stopReceiving(t, standby) // what comes now, it will not have
				left, leftID := b.loseCommit(t, f)
				require.Eventually(t, func() bool { return b.ask(t, named(f.applied, left)) == "1" }, startPatience, pollEvery, "the COMMIT is on its way")

				require.NoError(t, c.Crash())
				require.NoError(t, standby.Promote(t.Context()))
				b.proxy.Lead(t, standby.URL("outcomes"))
				b.direct = standby.URL("outcomes")
				require.False(t, follows(left))
				for id, want := range map[string][]string{carriedID: {"success", "committed"}, leftID: {"failure", "aborted"}} {
					state, outcome := b.settle(t, id)
					if !marks {
						want = []string{"unknown", "not_knowable"}
					}
					assert.Equal(t, want, []string{state, outcome})
				}
				for _, name := range []string{carried, left} { // nothing comes a second time, nor late
					replayed := b.gate.query(t, f.request(name), f.params(name)...)
					require.Equal(t, true, replayed.json(t)["replayed"], "%s", replayed.body)
				}
				require.True(t, follows(carried))
				require.False(t, follows(left))
			})
		})
	}
}

// TestAnOldPrimaryThatComesBackSettlesNothing: behind a failover the gate is led to the old
// primary again. It lacks what the new one committed, so nothing is written there and no
// marker that is missing there counts, after a restart of the gate neither.
func TestAnOldPrimaryThatComesBackSettlesNothing(t *testing.T) {
	t.Parallel()
	f := formOf("write under an approval")
	c := postgres.ClusterForTest(t, nil)
	require.NoError(t, c.CreateDatabase(t.Context(), "outcomes"))
	b := newBenchOn(t, c.URL("outcomes"), true)
	b.become(calm)
	standby := c.StandbyForTest(t)
	var id string
	refused := func() {
		t.Helper()
		r := b.gate.query(t, ask("INSERT INTO hits VALUES ('lost')"))
		require.Equal(t, http.StatusServiceUnavailable, r.status, "%s", r.body)
		require.Equal(t, "stale_timeline", r.json(t)["details"].(map[string]any)["reason"], "%s", r.body)
		require.Equal(t, http.StatusServiceUnavailable, b.gate.checkOutcome(t, id).status)
		require.Equal(t, "unknown", b.gate.get(t, "/executions/"+id).text(t, "execution_state"))
		require.Contains(t, b.gate.requireDatabase(t, "unavailable"), "left behind by a failover")
	}
	b.run(t, func(b *bench) {
		require.NoError(t, c.Crash())
		require.NoError(t, standby.Promote(t.Context()))
		b.proxy.Lead(t, standby.URL("outcomes"))
		b.direct = standby.URL("outcomes")
		_, id = b.loseCommit(t, f)
		startAgain(t, c)
		b.proxy.Lead(t, c.URL("outcomes"))
		b.proxy.Drop()
		refused()
	})
	b.run(t, func(b *bench) {
		refused()
		b.proxy.Lead(t, standby.URL("outcomes"))
		state, outcome := b.settle(t, id)
		require.Equal(t, []string{"success", "committed"}, []string{state, outcome})
	})
	require.Equal(t, "0", postgres.QueryURL(t, c.URL("outcomes"), "SELECT count(*) FROM hits"))

	const back = "GATE_DATABASE_TIMELINE=00000001" // on purpose
	writes := func(at *postgres.Cluster, status int, extra ...string) {
		t.Helper()
		b.become(append(extra, calm...))
		b.proxy.Lead(t, at.URL("outcomes"))
		b.run(t, func(b *bench) {
			r := b.gate.query(t, ask("INSERT INTO hits VALUES ('kept')"))
			require.Equal(t, status, r.status, "%s", r.body)
		})
	}
	writes(c, http.StatusServiceUnavailable)
	writes(c, http.StatusOK, back)
	writes(standby, http.StatusOK, back)
	writes(c, http.StatusServiceUnavailable, back) // it was left, and is said once
	code, _, errs := b.command(t, "log", "new", "--accept-loss", "nothing")
	require.Zero(t, code, errs)
	writes(c, http.StatusServiceUnavailable, back) // the log is another, and no run was without it
	writes(c, http.StatusServiceUnavailable)
	require.Equal(t, "1", postgres.QueryURL(t, c.URL("outcomes"), "SELECT count(*) FROM hits"))
}

// stopReceiving cuts the standby from its primary.
func stopReceiving(t *testing.T, standby *postgres.Cluster) {
	t.Helper()
	postgres.ExecuteURL(t, standby.URL("postgres"), "ALTER SYSTEM SET primary_conninfo = ''")
	postgres.ExecuteURL(t, standby.URL("postgres"), "SELECT pg_reload_conf()")
	require.Eventually(t, func() bool {
		return postgres.QueryURL(t, standby.URL("postgres"), "SELECT count(*) FROM pg_stat_wal_receiver") == "0"
	}, startPatience, pollEvery)
}

// loseCommit runs a write whose COMMIT arrives and whose answer does not.
func (b *bench) loseCommit(t testing.TB, f *form) (name, id string) {
	t.Helper()
	name = nextCase()
	request := b.prepare(t, f, name)
	cutBehindCommit(b.proxy)
	r := b.gate.query(t, request, f.params(name)...)
	require.Equal(t, http.StatusGatewayTimeout, r.status, "%s", r.body)
	b.proxy.Arm(faultproxy.Fault{})
	return name, r.text(t, "execution_id")
}

// cutBehindCommit lets the next COMMIT arrive, and no answer to it.
func cutBehindCommit(p *faultproxy.Proxy) {
	committing := false
	p.Arm(faultproxy.Fault{Direction: faultproxy.ToServer, Action: faultproxy.CutAfter, At: func(m faultproxy.Message) bool {
		committing = committing || m.Type == 'P' && bytes.Contains(m.Body, []byte("COMMIT"))
		return committing && m.Type == 'S' // the Sync behind COMMIT
	}})
}
