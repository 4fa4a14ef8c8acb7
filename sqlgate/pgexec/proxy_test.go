package pgexec

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
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

// A lossKind is what the proxy does at the message that holds its text.
type lossKind int

const (
	lostBefore lossKind = iota // both sides are cut, the message never arrives
	lostAfter                  // the batch arrives whole, then both sides are cut
	silent                     // the batch arrives, no answer ever comes back
	hung                       // nor does one to connections that are made from then on
)

func (k lossKind) String() string {
	return [...]string{"lost before", "lost after", "silent", "hung"}[k]
}

// A proxy stands between pgexec and the server and breaks one conversation, or
// all of them, at the message that has a text run: its Parse, or the Bind of what was
// prepared under the text as its name.
type proxy struct {
	t      testing.TB
	target string
	listen net.Listener
	text   []byte
	kind   lossKind
	left   atomic.Int32 // how many conversations are still to be broken
	hangs  atomic.Bool

	mu    sync.Mutex
	conns []net.Conn
}

// through starts a proxy and returns the URL that leads through it.
func through(t testing.TB, raw, text string, kind lossKind, times int) string {
	u, err := url.Parse(raw)
	require.NoError(t, err)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{t: t, target: u.Host, listen: l, text: []byte(text), kind: kind}
	p.left.Store(int32(times))
	var work sync.WaitGroup
	work.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			if p.hangs.Load() {
				p.mu.Lock()
				p.conns = append(p.conns, client)
				p.mu.Unlock()
				continue
			}
			server, err := net.Dial("tcp4", p.target)
			if err != nil {
				client.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.mu.Unlock()
			var mute atomic.Bool
			work.Go(func() { p.forward(client, server, &mute) })
			work.Go(func() { p.back(server, client, &mute) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		work.Wait()
	})
	u.Host = l.Addr().String()
	return u.String()
}

// forward passes the client's messages on, one by one.
func (p *proxy) forward(client, server net.Conn, mute *atomic.Bool) {
	defer client.Close()
	defer server.Close()
	head := make([]byte, 5)
	typed := false // the first message has no type
	cutAtSync := false
	for {
		start := 1
		if typed {
			start = 0
		}
		if _, err := io.ReadFull(client, head[start:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(client, body); err != nil {
			return
		}
		if typed && p.runs(head[0], body) && p.left.Add(-1) >= 0 {
			switch p.kind {
			case lostBefore:
				return
			case lostAfter:
				cutAtSync = true
			case hung:
				p.hangs.Store(true)
			}
			mute.Store(true)
		}
		if _, err := server.Write(append(bytes.Clone(head[start:]), body...)); err != nil {
			return
		}
		if cutAtSync && typed && head[0] == 'S' {
			return
		}
		typed = true
	}
}

func (p *proxy) runs(kind byte, body []byte) bool {
	name, rest, _ := bytes.Cut(body, []byte{0}) // of a Bind: the portal's
	switch kind {
	case 'P':
		return string(name) == passing && bytes.Contains(rest, p.text)
	case 'B':
		name, _, _ = bytes.Cut(rest, []byte{0})
		return bytes.Contains(name, p.text)
	}
	return false
}

// back passes the server's bytes on until the proxy is told to be silent.
func (p *proxy) back(server, client net.Conn, mute *atomic.Bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			if !mute.Load() {
				client.Close()
			}
			return
		}
		if mute.Load() {
			continue
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// lossy opens a DB behind a proxy, with short limits, and a table t.
func lossy(t *testing.T, text string, kind lossKind, times int) (*DB, *side) {
	raw := postgres.ForTest(t)
	url := through(t, raw, text, kind, times)
	_, side := openURL(t, raw)
	side.run("CREATE TABLE t (a int)")
	db, _ := openURL(t, url, func(c *Config) {
		c.DeadlineSlack, c.CommitTimeout, c.OrphanGrace = time.Minute, time.Minute, 10*time.Millisecond
		if kind == silent { // the answer that does not come is waited for
			c.DeadlineSlack, c.CommitTimeout = 100*time.Millisecond, time.Second
		}
	})
	return db, side
}

const settled = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gate/writer' AND datname = current_database() AND state <> 'idle'"

func TestALossBeforeTheStatementIsMadeGoodOnce(t *testing.T) {
	for _, kind := range []lossKind{lostBefore, lostAfter} {
		t.Run(kind.String(), func(t *testing.T) {
			db, side := lossy(t, "BEGIN\x00", kind, 1)
			mustWrite(t, db, "INSERT INTO t VALUES (1)")
			require.Equal(t, "1", side.ask("SELECT count(*) FROM t"))

			db, _ = lossy(t, "BEGIN\x00", kind, 2)
			_, err := db.Begin(context.Background(), BeginOptions{})
			require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
			givenBack(t, db)
			mustWrite(t, db, "INSERT INTO t VALUES (1)")
		})
	}
}

func TestALossOfTheStatementIsAFailureSinceCommitWasNeverSent(t *testing.T) {
	for _, kind := range []lossKind{lostBefore, lostAfter} {
		t.Run(kind.String(), func(t *testing.T) {
			db, side := lossy(t, "INSERT INTO t", kind, 1)
			res, _, err := write(t, db, "INSERT INTO t VALUES (1)", Limits{})
			require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
			require.Equal(t, Failure, res.State)
			require.Equal(t, ReasonCommitNeverSent, res.ReasonCode)
			require.Equal(t, OutcomeAborted, res.Outcome)
			side.eventually(settled, "0")
			require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
			mustWrite(t, db, "INSERT INTO t VALUES (2)")
		})
	}
}

func TestAStatementWithoutAnAnswerTimesOutAndIsKnownToBeAborted(t *testing.T) {
	db, side := lossy(t, "INSERT INTO t", silent, 1)
	res, _, err := write(t, db, "INSERT INTO t VALUES (1)", brief)
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, Unknown, res.State)
	require.Equal(t, &Settled{Outcome: OutcomeAborted, Basis: BasisCommitNeverSent}, res.Settled)
	side.eventually(settled, "0")
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestALossOfCommitIsUnknownWhateverHappened(t *testing.T) {
	for kind, want := range map[lossKind]struct{ cause, rows string }{
		lostBefore: {CauseConnectionLost, "0"},
		lostAfter:  {CauseConnectionLost, "1"},
		silent:     {CauseTimeout, "1"},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			db, side := lossy(t, "COMMIT", kind, 1)
			res, _, err := write(t, db, "INSERT INTO t VALUES (1)", Limits{})
			require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
			require.Equal(t, Unknown, res.State)
			require.Equal(t, StepCommit, res.Step)
			require.Equal(t, want.cause, res.Cause)
			require.Nil(t, res.Settled)
			side.eventually("SELECT count(*) FROM t", want.rows)
			mustWrite(t, db, "INSERT INTO t VALUES (2)")
		})
	}
}

func TestALossOfARollbackChangesNothing(t *testing.T) {
	db, side := lossy(t, "ROLLBACK", lostBefore, 1)
	res, _, err := write(t, db, "INSERT INTO t VALUES (1/0)", Limits{})
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err))
	require.Equal(t, BasisCommitNeverSent, res.Basis, "nobody acknowledged it")
	require.Equal(t, OutcomeAborted, res.Outcome)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

func TestALossOfARead(t *testing.T) {
	for _, kind := range []lossKind{lostBefore, lostAfter, silent} {
		t.Run(kind.String(), func(t *testing.T) {
			db, _ := lossy(t, "SELECT 4711", kind, 1)
			limits := Limits{}
			if kind == silent {
				limits = brief
			}
			res, err := db.Read(context.Background(), "", sql("SELECT 4711"), limits, db.NewRows(0))
			if kind == silent {
				require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
				require.Equal(t, &Settled{Outcome: OutcomeAborted, Basis: BasisReadOnly}, res.Settled)
			} else {
				require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(err))
				require.Equal(t, Failure, res.State)
				require.Equal(t, BasisReadOnly, res.Basis)
			}
			require.Equal(t, `[{"?column?":4711}]`, mustRead(t, db, "SELECT 4711"))
		})
	}
}

// A backend whose connection was lost may go on holding locks; it is ended by
// its pid, start and role together, so that no other is.
func TestOnlyTheVeryBackendOfALostConnectionIsEnded(t *testing.T) {
	db, side := open(t, unhurried)
	tx, err := db.Begin(context.Background(), BeginOptions{})
	require.NoError(t, err)
	lost := make(chan Result)
	go func() {
		res, _ := tx.Exec(context.Background(), sql("SELECT pg_sleep(60)"), db.NewRows(0))
		lost <- res
	}()
	const running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active' AND datname = current_database()"
	side.eventually(running, "1")
	another := tx.Dispatch().Upstream
	another.BackendStart = "2001-01-01 00:00:00+00"
	require.NoError(t, db.writer.terminate(context.Background(), another))
	require.Equal(t, "1", side.ask(running))
	require.NoError(t, db.writer.terminate(context.Background(), tx.Dispatch().Upstream))
	require.Equal(t, "57P01", (<-lost).SQLState)
}
