package pgexec

import (
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/postgres"
)

func TestAShareIsNearlyAll(t *testing.T) {
	for _, c := range []struct{ size, reserved, want int }{
		{1, 2, 1}, {2, 2, 2}, {7, 2, 7}, {8, 2, 7}, {16, 2, 14}, {16, 0, 16}, {100, 2, 98}, {16, 1000, 14}, {1000, 1000, 875},
	} {
		require.Equal(t, c.want, ShareOf(c.size, c.reserved), "%+v", c)
	}
}

// One client cannot take all connections: the next one finds one at once, and the
// gate's own work too.
func TestOneClientDoesNotTakeAllConnections(t *testing.T) {
	db, _ := open(t, func(c *Config) { c.PoolMax, c.PoolReserved, c.AcquireTimeout = 8, 2, 30*time.Millisecond })
	greedy, other := ForClient(context.Background(), "greedy"), ForClient(context.Background(), "other")
	var held []*Tx
	for range 7 {
		tx, err := db.Begin(greedy, BeginOptions{})
		require.NoError(t, err)
		held = append(held, tx)
	}
	_, err := db.Begin(greedy, BeginOptions{})
	require.Equal(t, fault.RateLimitExceeded, fault.CodeOf(err))
	require.ErrorContains(t, err, "7 database connections")
	require.Equal(t, 7, db.Stats().InUse)
	tx, err := db.Begin(other, BeginOptions{})
	require.NoError(t, err)
	_, err = db.Begin(other, BeginOptions{})
	require.Equal(t, fault.DBUnavailable, fault.CodeOf(err), "all of them are in use now")
	tx.Rollback()
	own, err := db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err)
	own.Rollback()

	db.writer.cfg.AcquireTimeout = time.Minute // what ends the wait is one that is given back
	waited := make(chan error, 1)
	go func() {
		tx, err := db.Begin(greedy, BeginOptions{})
		if err == nil {
			tx.Rollback()
		}
		waited <- err
	}()
	held[0].Rollback()
	require.NoError(t, <-waited)
	gone, cancel := context.WithCancel(greedy)
	again, err := db.Begin(greedy, BeginOptions{})
	require.NoError(t, err)
	cancel()
	_, err = db.Begin(gone, BeginOptions{})
	require.ErrorIs(t, err, context.Canceled)
	for _, tx := range append(held[1:], again) {
		tx.Rollback()
	}
	require.Zero(t, db.Stats().InUse)
	require.Empty(t, db.writer.own.of, "nothing is kept of clients that have none")
}

func TestClientsGiveBackWhatTheyHad(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax, c.PoolReserved, c.AcquireTimeout = 8, 2, time.Minute })
	side.run("CREATE TABLE t (a int)")
	var work sync.WaitGroup
	for i := range 40 {
		work.Go(func() {
			tx, err := db.Begin(ForClient(context.Background(), []string{"a", "b", ""}[i%3]), BeginOptions{})
			if err == nil {
				_, err = tx.Exec(context.Background(), Statement{SQL: "INSERT INTO t VALUES (1)"}, db.NewRows(1<<10))
			}
			if err == nil {
				_, err = tx.Commit(context.Background())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	require.Equal(t, "40", side.ask("SELECT count(*) FROM t"))
	require.Zero(t, db.Stats().InUse)
	require.Empty(t, db.writer.own.of)
}

// No cancel ends what looks at no interrupt, so whoever has the database do that has his
// share until it is done.
func TestASessionThatWasGivenUpCountsUntilItEnds(t *testing.T) {
	db, side := open(t, func(c *Config) {
		c.PoolMax, c.QueryTimeout, c.DeadlineSlack, c.AcquireTimeout = 8, 500*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond
	})
	mustRead(t, db, "SELECT 1")
	db.reader.own.each = 1
	read := func(text string) error {
		_, err := db.Read(ForClient(t.Context(), "c"), "", Statement{SQL: text}, Limits{}, db.NewRows(0))
		return err
	}
	const endless = "SELECT length(translate(repeat('a', 24000), repeat('b', 24000), ''))" // two seconds, which nothing cancels
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(read(endless)))
	const active = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'gate/%' AND state = 'active'"
	require.Equal(t, "1", side.ask(active))
	require.Equal(t, 1, db.Stats().InUse)
	require.Equal(t, fault.RateLimitExceeded, fault.CodeOf(read("SELECT 1")))
	require.Equal(t, `[{"?column?":1}]`, mustRead(t, db, "SELECT 1"), "the rest is for others")
	side.eventually(active, "0")
	require.Eventually(t, func() bool { return db.Stats().InUse == 0 }, 2*time.Minute, 10*time.Millisecond)
	require.NoError(t, read("SELECT 1"))

	// A server that is frozen, and that connections lead to no more, hangs up on nobody.
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(read(endless)))
	require.Equal(t, 1, db.Stats().InUse)
	db.reader.server.Store(&Upstream{Host: "another"})
	require.Eventually(t, func() bool { return db.Stats().InUse == 0 }, 2*time.Minute, 10*time.Millisecond)
	require.NoError(t, read("SELECT 1"))
}

func TestWhatCountsAsAnotherServer(t *testing.T) {
	u := Upstream{SystemIdentifier: "1", Timeline: "1", CrashMark: "a", Host: "h", BackendPID: 1}
	same := u
	same.BackendPID = 2
	require.False(t, u.left(nil))
	require.False(t, u.left(&same))
	for _, change := range []func(*Upstream){func(u *Upstream) { u.SystemIdentifier = "2" }, func(u *Upstream) { u.Timeline = "2" }, func(u *Upstream) { u.CrashMark = "b" }, func(u *Upstream) { u.Host = "i" }} {
		now := same
		change(&now)
		require.True(t, u.left(&now))
	}
}

// What lies between may forget a connection without a word to either side.
func TestASessionThatTheServerHasNoMoreIsNotCounted(t *testing.T) {
	raw := postgres.ForTest(t)
	target, err := url.Parse(raw)
	require.NoError(t, err)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	database := target.Host
	var forgets atomic.Bool // the connections that are there: nothing of them passes, and none is closed here
	var work sync.WaitGroup
	work.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp4", database)
			if err != nil {
				client.Close()
				continue
			}
			old := new(atomic.Bool)
			old.Store(!forgets.Load())
			pass := func(to, from net.Conn) {
				buf := make([]byte, 4<<10)
				for {
					n, err := from.Read(buf)
					lost := forgets.Load() && old.Load()
					if err == nil && !lost {
						_, err = to.Write(buf[:n])
					}
					if err != nil && !lost {
						to.Close()
					}
					if err != nil {
						return
					}
				}
			}
			t.Cleanup(func() { client.Close(); server.Close() })
			work.Go(func() { pass(server, client) })
			work.Go(func() { pass(client, server) })
		}
	})
	t.Cleanup(work.Wait)
	t.Cleanup(func() { listener.Close() })
	target.Host = listener.Addr().String()
	db, _ := openURL(t, target.String(), func(c *Config) { c.QueryTimeout, c.DeadlineSlack = 2*time.Second, 50*time.Millisecond })
	mustRead(t, db, "SELECT 1")
	db.reader.askEvery = 0
	forgets.Store(true)
	_, err = db.Read(ForClient(t.Context(), "c"), "", Statement{SQL: "SELECT 17"}, Limits{}, db.NewRows(0))
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, 1, db.Stats().InUse, "the server has a session that waits")
	postgres.ExecuteURL(t, raw, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'gate/reader' AND state = 'idle' AND pid <> pg_backend_pid()")
	require.Eventually(t, func() bool { return db.Stats().InUse == 0 }, 2*time.Minute, 10*time.Millisecond)
}
