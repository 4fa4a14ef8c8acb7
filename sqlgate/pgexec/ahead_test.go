package pgexec

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An exchangeCounter counts the exchanges of a connection: each sets a deadline.
type exchangeCounter struct {
	net.Conn
	n atomic.Int64
}

func (c *exchangeCounter) SetDeadline(t time.Time) error {
	c.n.Add(1)
	return c.Conn.SetDeadline(t)
}

// waitingWrite has a write wait for the only connection, and tells when it waits.
func waitingWrite(t *testing.T, db *DB) (begun <-chan *Tx) {
	t.Helper()
	got := make(chan *Tx, 1)
	go func() {
		tx, err := db.Begin(context.Background(), BeginOptions{})
		if err != nil {
			t.Error(err)
		}
		got <- tx
	}()
	p := db.writer
	require.Eventually(t, func() bool { return p.begins.Load() == 1 && p.waiting.Load() == 1 }, 20*time.Second, time.Millisecond)
	return got
}

// A write that waits while another commits has its transaction begun in the same
// exchange. It meets nothing of the one before, and its now() is no older than it is.
func TestAWriteThatWaitsIsBegunBehindTheCommitBefore(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1; c.AcquireTimeout = time.Minute })
	side.run(`CREATE TABLE t (a int); CREATE FUNCTION leave() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(1), set_config('work_mem', '77kB', false);
 EXECUTE 'PREPARE left_over AS SELECT 1; LISTEN left_over'; RETURN 1; END $$`)
	const rest = "SELECT (SELECT count(*) FROM pg_prepared_statements WHERE from_sql) + (SELECT count(*) FROM pg_listening_channels()) + (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS n, current_setting('work_mem') = '77kB' AS l, now() >= '"
	for _, text := range []string{"INSERT INTO t VALUES (1)", "INSERT INTO t SELECT leave()"} {
		first, err := db.Begin(context.Background(), BeginOptions{})
		require.NoError(t, err)
		_, err = first.Exec(context.Background(), sql(text), db.NewRows(0))
		require.NoError(t, err)
		counter := &exchangeCounter{Conn: first.lease.net}
		first.lease.net = counter
		asked := side.ask("SELECT clock_timestamp()")
		waited := waitingWrite(t, db)
		_, err = first.Commit(context.Background())
		require.NoError(t, err)
		second := <-waited
		require.NotNil(t, second)
		if text == "INSERT INTO t VALUES (1)" {
			require.EqualValues(t, 2, counter.n.Load(), "COMMIT, and the answer to what was sent behind it: nothing was sent to begin")
		}
		require.NotEqual(t, first.Dispatch().XID, second.Dispatch().XID)
		rows := db.NewRows(0)
		_, err = second.Exec(context.Background(), sql(rest+asked+"' AS young"), rows)
		require.NoError(t, err)
		require.Equal(t, `[{"n":0,"l":false,"young":true}]`, string(rows.JSON()))
		second.Rollback()
		require.Equal(t, "1", side.ask("DELETE FROM t RETURNING a"))
	}
	require.Zero(t, db.Stats().Quarantined)
}

// What a write leaves in its session, in code that no text shows, is no part of the
// transaction that is begun behind its COMMIT: neither its beginning nor its rollback has any of it.
func TestATransactionThatIsBegunAheadHasNothingOfTheOneBefore(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1; c.AcquireTimeout = time.Minute })
	timeouts := ""
	if major, err := strconv.Atoi(side.ask("SELECT current_setting('server_version_num')::int / 10000")); err == nil && major >= 17 {
		timeouts = "PERFORM set_config('transaction_timeout', '1', false);"
	}
	side.run(`CREATE TABLE t (a int);
CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
 PERFORM set_config('app.tenant', 'another', false), set_config('work_mem', '77kB', false), set_config('default_transaction_isolation', 'serializable', false),
  set_config('default_transaction_deferrable', 'on', false), set_config('xmloption', 'document', false); ` + timeouts + `
 RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION leave();
CREATE TRIGGER soon AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION leave()`)
	const shows = `SELECT coalesce(current_setting('app.tenant', true), '') || ' ' || current_setting('work_mem') || ' ' || current_setting('transaction_isolation') || ' ' || current_setting('transaction_deferrable') || ' ' || current_setting('xmloption') AS s`
	want := side.ask(shows)
	show := func(tx *Tx) string {
		rows := db.NewRows(0)
		_, err := tx.Exec(context.Background(), sql(shows), rows)
		require.NoError(t, err)
		return string(rows.JSON())
	}
	for range 5 {
		for _, used := range []bool{true, false} {
			first, err := db.Begin(context.Background(), BeginOptions{})
			require.NoError(t, err)
			_, err = first.Exec(context.Background(), sql("INSERT INTO t VALUES (1)"), db.NewRows(0))
			require.NoError(t, err)
			waited := waitingWrite(t, db)
			_, err = first.Commit(context.Background())
			require.NoError(t, err)
			second := <-waited
			require.NotNil(t, second)
			if used {
				require.Equal(t, `[{"s":"`+want+`"}]`, show(second))
			}
			second.Rollback() // as of one whose approval somebody else has used
			third, err := db.Begin(context.Background(), BeginOptions{})
			require.NoError(t, err)
			require.Equal(t, `[{"s":"`+want+`"}]`, show(third))
			third.Rollback()
		}
	}
}

// left leaves a transaction open for a write that waits, in an idle connection, and then
// there is no such write.
func left(t *testing.T, db *DB) {
	t.Helper()
	p := db.writer
	l, err := p.acquire(context.Background())
	require.NoError(t, err)
	p.begins.Add(1)
	p.waiting.Add(1)
	l.leave()
	refused, err := l.exchange(context.Background(), time.Now().Add(time.Minute), segment{})
	require.NoError(t, err)
	require.Nil(t, refused)
	require.NotNil(t, l.owed.begun)
	l.release()
	p.begins.Add(-1)
	p.waiting.Add(-1)
	require.Equal(t, int32(1), p.conns.Stat().IdleResources(), "the connection was kept")
}

// A transaction that was begun for a write which went away is ended: by the next use,
// whatever it is, and before long without one.
func TestATransactionThatNobodyComesForIsEnded(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run("CREATE TABLE t (a timestamptz)")
	for what, use := range map[string]func(){
		"nothing": func() {},
		"a write": func() { mustWrite(t, db, "INSERT INTO t VALUES (now())") },
		"a block": func() {
			b := beginBlock(t, db, BlockOptions{})
			b.write("INSERT INTO t VALUES (now())")
			b.commit()
		},
		"a statement alone": func() {
			_, err := alone(t, db, "INSERT INTO t VALUES (now())", Limits{})
			require.NoError(t, err)
		},
		"a sign of life": func() { require.NoError(t, db.writer.ping(context.Background())) },
	} {
		side.run("DELETE FROM t")
		left(t, db)
		asked := side.ask("SELECT clock_timestamp()")
		use()
		side.eventually("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'", "0")
		require.Equal(t, "0", side.ask("SELECT count(*) FROM t WHERE a < '"+asked+"'"), what)
	}
	require.Zero(t, db.Stats().Quarantined)
	require.Equal(t, "1", side.ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gate/writer' AND datname = current_database()"), "the connection serves on")
}

// Where nobody waits any more when the use ends, the transaction does not even stay.
func TestNothingStaysBegunWhereNobodyWaits(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1; c.AcquireTimeout = time.Minute })
	first, err := db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err)
	_, err = first.Exec(context.Background(), sql("SELECT 1"), db.NewRows(0))
	require.NoError(t, err)
	p := db.writer
	p.begins.Add(1)
	p.waiting.Add(1)
	_, err = db.commit(context.Background(), first.lease, Result{})
	require.NoError(t, err)
	require.NotNil(t, first.lease.owed.begun)
	p.begins.Add(-1)
	p.waiting.Add(-1)
	first.end()
	require.Equal(t, "0", side.ask("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"))
	mustWrite(t, db, "SELECT 1")
	require.Equal(t, "1", side.ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gate/writer' AND datname = current_database()"))
}

// Many writers at two connections, of which somebody ends one again and again, and
// some go away while they wait or before they send their text: what is said of each write is what the table has, and none
// meets what another one left.
func TestManyWritersAtFewConnectionsThatAreKilled(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 2; c.AcquireTimeout = time.Minute }, unhurried)
	side.run("CREATE TABLE t (a int PRIMARY KEY)")
	var (
		mu      sync.Mutex
		results = map[int]Result{}
		xids    = map[int]uint64{}
		unclean []string
		work    sync.WaitGroup
		next    atomic.Int64
	)
	const writers, each = 12, 40
	write := func(value int) (res Result, sent bool) {
		ctx := context.Background()
		if value%7 == 0 { // goes away while it waits, or just in time
			short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(3000))*time.Microsecond)
			defer cancel()
			ctx = short
		}
		asked := time.Now().UTC().Format("2006-01-02 15:04:05.999999Z")
		tx, err := db.Begin(ctx, BeginOptions{})
		if err != nil {
			return Result{}, false
		}
		defer tx.Rollback()
		mu.Lock()
		xids[value] = tx.Dispatch().XID
		mu.Unlock()
		if value%6 == 0 { // as one whose approval somebody else has used meanwhile
			return Result{State: Failure}, true
		}
		rows := db.NewRows(0)
		res, err = tx.Exec(context.Background(), sql(fmt.Sprintf(`WITH w AS (INSERT INTO t VALUES (%[1]d) RETURNING a) SELECT current_setting('work_mem') <> '77kB' AND current_setting('xmloption') = 'content' AND current_setting('transaction_isolation') = 'read committed' AND now() >= '%[2]s'
 AND (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) = 0 AS clean, set_config('work_mem', '77kB', false) AS s, set_config('xmloption', 'document', false) AS x,
 set_config('default_transaction_isolation', 'serializable', false) AS i, pg_advisory_lock(%[1]d)::text AS l FROM w`, value, asked)), rows)
		if err != nil {
			return res, true
		}
		if got := string(rows.JSON()); !strings.Contains(got, `"clean":true`) {
			mu.Lock()
			if len(unclean) < 3 {
				unclean = append(unclean, got)
			}
			mu.Unlock()
		}
		if value%5 == 0 {
			tx.Rollback()
			return Result{State: Failure}, true
		}
		res, _ = tx.Commit(context.Background())
		return res, true
	}
	stop := make(chan struct{})
	killer := newSide(t, side.url)
	killed := make(chan int)
	go func() {
		n := 0
		for last := int64(0); ; {
			select {
			case <-stop:
				killed <- n
				return
			case <-time.After(time.Duration(rand.IntN(4)) * time.Millisecond):
			}
			begun := next.Load()
			if begun < last+8 { // however slow the machine is, most are not killed
				continue
			}
			last = begun
			got, err := killer.first("SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE application_name = 'gate/writer' AND datname = current_database() ORDER BY random() LIMIT 1) x")
			if err == nil && got == "1" {
				n++
			}
		}
	}()
	for range writers {
		work.Go(func() {
			for range each {
				value := int(next.Add(1))
				res, sent := write(value)
				mu.Lock()
				if sent {
					results[value] = res
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	close(stop)
	require.Positive(t, <-killed)
	require.Empty(t, unclean)
	there := map[string]bool{}
	for a := range strings.SplitSeq(side.ask("SELECT string_agg(a::text, ' ') FROM t"), " ") {
		there[a] = true
	}
	states := map[State]int{}
	for value := 1; value <= writers*each; value++ {
		is := there[strconv.Itoa(value)]
		res, sent := results[value]
		states[res.State]++
		switch {
		case !sent, res.State == Failure, res.Settled != nil && res.Settled.Outcome == OutcomeAborted:
			require.False(t, is, "%d: %+v", value, res)
		case res.State == Success:
			require.True(t, is, "%d: %+v", value, res)
		default:
			require.Equal(t, is, side.ask(fmt.Sprintf("SELECT pg_xact_status('%d')", xids[value])) == "committed", "%d: %+v", value, res)
		}
	}
	require.Positive(t, states[Success], "%v", states)
	seen := map[uint64]bool{}
	for value, xid := range xids {
		require.False(t, seen[xid], "%d has the transaction id of another one", value)
		seen[xid] = true
	}
	givenBack(t, db)
	side.eventually("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'", "0")
}
