package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

const readOrders = "SELECT count(*) FROM orders"

// aloneAddr is where no other test listens, so that a port that was given back
// stays closed.
const aloneAddr = "127.0.0.3:0"

// holdOrders locks the table orders, so that whatever wants it waits until
// release is called.
func (g *testGate) holdOrders(t testing.TB) (release func()) {
	t.Helper()
	return g.openBeside(t, "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
}

// openBeside keeps a transaction open at the database, beside the gate.
func (g *testGate) openBeside(t testing.TB, sql string) (release func()) {
	t.Helper()
	c, err := pgconn.Connect(context.Background(), g.database)
	require.NoError(t, err)
	_, err = c.Exec(context.Background(), "BEGIN; "+sql).ReadAll()
	require.NoError(t, err)
	release = sync.OnceFunc(func() { _ = c.Close(context.Background()) }) // which ends the lock
	t.Cleanup(release)
	return release
}

// waiting counts statements that wait for a lock. A backend that looks for a
// deadlock, a second after it began to wait, has no wait_event for the moment,
// and stands in the queue all the same.
func (g *testGate) waiting(t testing.TB) string {
	return g.value(t, "SELECT count(DISTINCT pid) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE datname = current_database() AND NOT granted")
}

// patientDatabase gives locks more time than tests need.
var patientDatabase = []string{"GATE_DB_QUERY_TIMEOUT_MS=60000", "GATE_DB_LOCK_TIMEOUT_MS=60000"}

func TestAClientThatHangsUpCancelsItsReadAndNotItsWrite(t *testing.T) {
	t.Parallel()
	g := startWire(t, patientDatabase...)
	release := g.holdOrders(t)
	reader, writer := g.rawWire(t), g.rawWire(t)
	reader.send(simple(readOrders))
	writer.send(simple(insertOrder))
	require.Eventually(t, func() bool { return g.waiting(t) == "2" }, startPatience, pollEvery)
	require.NoError(t, reader.Close())
	require.NoError(t, writer.Close())
	require.Eventually(t, func() bool { return g.waiting(t) == "1" }, startPatience, pollEvery, "the read is cancelled")
	release()
	require.Eventually(t, func() bool { return g.value(t, "SELECT count(*) FROM orders WHERE id = 2001") == "1" }, startPatience, pollEvery)
	require.Eventually(t, func() bool {
		return g.get(t, "/runtime/stats").json(t)["wire"].(map[string]any)["connections"] == 0.0
	}, startPatience, pollEvery)
	g.end(t)
	kinds := map[event.Type]int{}
	for _, e := range g.events(t) {
		kinds[e.Type]++
	}
	require.Equal(t, 1, kinds["execution_success"])
	require.Equal(t, 1, kinds["execution_failure"])
}

func TestAClientThatNeverReadsIsCutOffAndItsStatementEnded(t *testing.T) {
	t.Parallel()
	g := startWire(t, append([]string{"GATE_PGWIRE_WRITE_TIMEOUT_MS=2000", "GATE_MAX_RESULT_ROWS=10000000", "GATE_MAX_RESULT_BYTES=1073741824"}, patientDatabase...)...)
	g.execute(t, "CREATE TABLE big AS SELECT n, repeat('x', 1000) AS filler FROM generate_series(1, 100000) AS n")
	w := g.rawWire(t)
	require.NoError(t, w.Conn.(*net.TCPConn).SetReadBuffer(4096))
	w.send(simple("SELECT * FROM big"))
	require.Eventually(t, func() bool {
		return g.get(t, "/runtime/stats").json(t)["wire"].(map[string]any)["connections"] == 0.0
	}, startPatience, pollEvery)
	require.Eventually(t, func() bool {
		return g.value(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()") == "0"
	}, startPatience, pollEvery)
}

// unreading sends messages and reads nothing of what they ask for: 15 MB, which is
// more than the sockets take.
func (g *testGate) unreading(t testing.TB, messages ...pgproto3.FrontendMessage) *rawWire {
	t.Helper()
	w := g.rawWire(t)
	w.send(messages...)
	return w
}

// What a client does not take is kept for it, and the database is there for others:
// its connections, and the rows that were locked.
func TestAClientThatDoesNotReadHoldsNothingOfTheDatabase(t *testing.T) {
	t.Parallel()
	g := startGate(t, newErrorDir(t), append(wireSettings[:len(wireSettings):len(wireSettings)], "GATE_DB_POOL_MAX=1", "GATE_PGWIRE_WRITE_TIMEOUT_MS=600000")...)
	const wide = "repeat('x', 1000000)"
	update := "UPDATE orders SET status = 'x' WHERE id BETWEEN 1 AND 15 RETURNING " + wide
	readers := []*rawWire{
		g.unreading(t, simple("SELECT "+wide+" FROM orders WHERE id BETWEEN 1 AND 15")),
		g.unreading(t, append(statementMessages("SELECT "+wide+" FROM orders WHERE id BETWEEN 1 AND 15"), syncMessage)...),
		g.unreading(t, simple(update)),
		g.unreading(t, append(statementMessages(update), syncMessage)...),
	}
	other := g.rawWire(t)
	require.Eventually(t, func() bool {
		return len(g.get(t, "/audit?event_type=execution_success&limit=100").json(t)["items"].([]any)) == len(readers)
	}, startPatience, pollEvery)
	require.Equal(t, []string{"row 100", "SELECT 1", "ready I"}, other.ask(simple(readOrders))[1:])
	require.Equal(t, []string{"UPDATE 15", "ready I"}, other.ask(simple("UPDATE orders SET status = 'y' WHERE id BETWEEN 1 AND 15")))
	for _, r := range readers {
		rows := 0
		for _, m := range r.ready() {
			if row, ok := m.(*pgproto3.DataRow); ok {
				rows++
				require.Len(t, row.Values[0], 1_000_000)
			}
		}
		require.Equal(t, 15, rows)
	}
	require.Equal(t, "15", g.value(t, "SELECT count(*) FROM orders WHERE status = 'y'"))
}

// A client that reads nothing while it has a transaction open is silent.
func TestATransactionDoesNotOutlastAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	g := startWire(t, append([]string{"GATE_PGWIRE_WRITE_TIMEOUT_MS=600000", "GATE_PGWIRE_TX_IDLE_TIMEOUT_MS=500", "GATE_DB_IDLE_IN_TX_TIMEOUT_MS=600000"}, patientDatabase...)...)
	big := simple("SELECT repeat('x', 1000000) FROM generate_series(1, 15)")
	g.unreading(t, simple("BEGIN"), simple(insertOrder), big)
	g.unreading(t, append(append(statementMessages(strings.Replace(insertOrder, "2001", "2002", 1)), statementMessages(big.String)...), &pgproto3.Flush{})...)
	require.Eventually(t, func() bool {
		return g.get(t, "/runtime/stats").json(t)["wire"].(map[string]any)["connections"] == 0.0
	}, startPatience, pollEvery)
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"))
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE id BETWEEN 2001 AND 2002"))
}

func TestACleanEndLetsStatementsFinishAndTellsTheRest(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	// What is to be seen is the end, not the limits of a slow test before it.
	g := startGateWith(t, d, func(a *app) { a.drain = startPatience }, append(append(wireSettings[:len(wireSettings):len(wireSettings)], patientDatabase...),
		"GATE_PGWIRE_TX_IDLE_TIMEOUT_MS=60000", "GATE_PGWIRE_TX_MAX_MS=120000", "GATE_DB_IDLE_IN_TX_TIMEOUT_MS=60000",
		"GATE_PGWIRE_LISTEN_ADDR="+aloneAddr)...)
	release := g.openBeside(t, "INSERT INTO orders VALUES (2001, 1, 'theirs'), (2002, 1, 'theirs')") // whose keys are waited for
	idle, writer, block, batch := g.rawWire(t), g.rawWire(t), g.rawWire(t), g.rawWire(t)
	require.Equal(t, []string{"BEGIN", "ready T"}, block.ask(simple("BEGIN")))
	require.Equal(t, []string{"INSERT 0 1", "ready T"}, block.ask(simple("INSERT INTO orders VALUES (3000, 1, 'new')")))
	writer.send(simple(insertOrder))
	batch.send(append(statementMessages("INSERT INTO orders VALUES (2002, 1, 'new')"), syncMessage)...)
	require.Eventually(t, func() bool { return g.waiting(t) == "2" }, startPatience, pollEvery)
	g.stop()
	require.Equal(t, []string{"FATAL 57P01"}, inWords(idle.ready()))
	require.Equal(t, []string{"FATAL 57P01"}, inWords(block.ready()))
	_, err := net.Dial("tcp", g.wire)
	require.Error(t, err, "no new connections")
	release()
	require.Equal(t, []string{"INSERT 0 1", "ready I"}, inWords(writer.ready()))
	require.Equal(t, []string{"FATAL 57P01"}, inWords(writer.ready()))
	require.Equal(t, []string{"parsed", "bound", "INSERT 0 1", "ready I"}, inWords(batch.ready()))
	g.end(t)
	require.Equal(t, "2", g.value(t, "SELECT count(*) FROM orders WHERE id > 2000"))
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE id = 3000"))
}

func TestAnEndThatIsOverdueCancelsWhatRuns(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	g := startGateWith(t, d, func(a *app) { a.drain = 100 * time.Millisecond }, append(wireSettings, patientDatabase...)...)
	g.holdOrders(t)
	w := g.rawWire(t)
	w.send(simple(insertOrder))
	require.Eventually(t, func() bool { return g.waiting(t) == "1" }, startPatience, pollEvery)
	g.stop()
	require.Equal(t, []string{"ERROR 57014", "ready I", "FATAL 57P01"}, inWords(append(w.ready(), w.ready()...)))
	g.end(t)
}

// What a client was answered is in the log also while it sends nothing more.
func TestWhatASilentClientWasAnsweredIsWritten(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	w := g.rawWire(t)
	require.Equal(t, []string{"SET", "ready I"}, w.ask(simple("SET extra_float_digits = 2")))
	require.Eventually(t, func() bool {
		for _, e := range g.eventsOf(t, event.TypeDecisionRecorded) {
			if e["operation"] == "SET" {
				return true
			}
		}
		return false
	}, startPatience, pollEvery)
	require.Equal(t, []string{"columns", "row 1", "SELECT 1", "ready I"}, w.ask(simple("SELECT 1")), "the conversation goes on")

	require.Equal(t, []string{"SET", "ready I"}, w.ask(simple("SET extra_float_digits = 3")))
	require.Eventually(t, func() bool { // a client that says nothing of weight is as silent
		require.Equal(t, []string{"ready I"}, w.ask(&pgproto3.Sync{}))
		sets := 0
		for _, e := range g.eventsOf(t, event.TypeDecisionRecorded) {
			if e["operation"] == "SET" {
				sets++
			}
		}
		return sets == 2
	}, startPatience, pollEvery)
}

func TestConnectionsOverTheirLimitsAreTurnedAwayAndCancelsAreNot(t *testing.T) {
	t.Parallel()
	g := startWire(t, append([]string{"GATE_PGWIRE_MAX_CONNECTIONS=3", "GATE_PGWIRE_MAX_CONNECTIONS_PER_IP=2"}, patientDatabase...)...)
	release := g.holdOrders(t)
	a, b := g.rawWire(t), g.rawWire(t)
	third := g.dialWire(t)
	m := &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "ana", "database": g.databaseName(t)}}
	require.Equal(t, []string{"FATAL 53300"}, third.ask(m))
	a.send(simple(readOrders))
	require.Eventually(t, func() bool { return g.waiting(t) == "1" }, startPatience, pollEvery)
	g.cancelWire(t, a.key)
	require.Equal(t, []string{"ERROR 57014", "ready I"}, inWords(a.ready()))
	release()
	b.send(&pgproto3.Terminate{})
	require.Empty(t, b.ready())
	require.Eventually(t, func() bool {
		w := g.dialWire(t)
		defer w.Close()
		return inWords(w.asked(m))[0] != "FATAL 53300"
	}, startPatience, pollEvery, "the seat is free again")
}

// Connections of one stranger that say nothing keep neither another client out nor
// a CancelRequest back.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	g := startWire(t, append([]string{"GATE_PGWIRE_MAX_UNAUTHENTICATED=8"}, patientDatabase...)...)
	release := g.holdOrders(t)
	defer release()
	a := g.rawWire(t)
	a.send(simple(readOrders))
	require.Eventually(t, func() bool { return g.waiting(t) == "1" }, startPatience, pollEvery)
	for _, from := range []net.IP{net.IPv4(127, 0, 0, 7), net.IPv4(127, 0, 0, 1)} { // a stranger's address, and the client's own
		for range 100 {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
			c, err := dialer.Dial("tcp", g.wire)
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
		}
		if from[15] == 7 {
			b := g.rawWire(t)
			require.Equal(t, []string{"columns", "row 1", "SELECT 1", "ready I"}, b.ask(simple("SELECT 1")))
		}
	}
	g.cancelWire(t, a.key)
	require.Equal(t, []string{"ERROR 57014", "ready I"}, inWords(a.ready()))
}

// asked sends messages and reads what comes.
func (w *rawWire) asked(messages ...pgproto3.FrontendMessage) []pgproto3.BackendMessage {
	w.t.Helper()
	w.send(messages...)
	return w.ready()
}

// cancelWire sends a CancelRequest and waits until the gate has closed it.
func (g *testGate) cancelWire(t testing.TB, key []byte) {
	t.Helper()
	w := g.dialWire(t)
	packet := binary.BigEndian.AppendUint32(nil, uint32(len(key)+8))
	w.write(append(binary.BigEndian.AppendUint32(packet, 80877102), key...))
	require.NoError(t, w.SetReadDeadline(time.Now().Add(startPatience)))
	said, err := io.ReadAll(w)
	require.NoError(t, err)
	require.Empty(t, said, "whoever cancels learns nothing")
}

func TestCancelsThatAreForwardedAndThoseThatAreNot(t *testing.T) {
	t.Parallel()
	g := startWire(t, patientDatabase...)
	release := g.holdOrders(t)
	w, other, idle := g.rawWire(t), g.rawWire(t), g.rawWire(t)
	g.cancelWire(t, idle.key) // nothing runs
	w.send(simple(insertOrder))
	other.send(simple(readOrders))
	require.Eventually(t, func() bool { return g.waiting(t) == "2" }, startPatience, pollEvery)
	wrong := append([]byte(nil), w.key...)
	wrong[len(wrong)-1] ^= 1
	g.cancelWire(t, wrong)
	g.cancelWire(t, append(append([]byte(nil), w.key[:4]...), other.key[4:]...))
	g.cancelWire(t, append(w.key[:len(w.key):len(w.key)], 0))
	require.Equal(t, "2", g.waiting(t))
	g.cancelWire(t, w.key)
	require.Equal(t, []string{"ERROR 57014", "ready I"}, inWords(w.ready()))
	require.Equal(t, "1", g.waiting(t), "the other client's statement goes on")
	release()
	require.Equal(t, []string{"columns", "row 100", "SELECT 1", "ready I"}, inWords(other.ready()))
	require.Equal(t, []string{"INSERT 0 1", "ready I"}, w.ask(simple(insertOrder)), "a cancel is for what runs as it comes, not for what comes after")
	stats := g.get(t, "/runtime/stats").json(t)["wire"].(map[string]any)
	require.Equal(t, 5.0, stats["cancels"])
	w.send(&pgproto3.Terminate{})
	require.Empty(t, w.ready())
	g.cancelWire(t, w.key) // its connection is gone
	g.end(t)
	require.Equal(t, []string{
		"received", "nothing_running", "received", "unknown_key", "received", "unknown_key", "received", "unknown_key",
		"received", "forwarded", "received", "unknown_key",
	}, g.cancelEvidence(t))
}

// Whoever waits for a connection to the database has a statement that can be
// cancelled, as at a server one that waits for a lock has.
func TestACancelEndsAStatementThatWaitsForAConnection(t *testing.T) {
	t.Parallel()
	g := startWire(t, append([]string{"GATE_DB_POOL_MAX=1", "GATE_DB_ACQUIRE_TIMEOUT_MS=60000"}, patientDatabase...)...)
	release := g.holdOrders(t)
	reader, writer := g.rawWire(t), g.rawWire(t)
	reader.send(simple("SELECT id FROM orders WHERE id = 60")) // whether the INSERT comes before it or after
	writer.send(simple(insertOrder))
	require.Eventually(t, func() bool { return g.waiting(t) == "2" }, startPatience, pollEvery)
	for i, m := range [][]pgproto3.FrontendMessage{
		{simple(readOrders)}, {simple("UPDATE orders SET status = 'late' WHERE id = 60")},
		append(statementMessages("UPDATE orders SET status = 'late' WHERE id = 60"), syncMessage),
	} {
		w := g.rawWire(t)
		w.send(m...)
		require.Eventually(t, func() bool {
			return g.get(t, "/runtime/stats").json(t)["pool"].(map[string]any)["waits"] == float64(i+1)
		}, startPatience, pollEvery)
		g.cancelWire(t, w.key)
		said := inWords(w.ready())
		require.Equal(t, []string{"ERROR 57014", "ready I"}, said[len(said)-2:])
	}
	release()
	require.Equal(t, []string{"columns", "row 60", "SELECT 1", "ready I"}, inWords(reader.ready()))
	require.Equal(t, []string{"INSERT 0 1", "ready I"}, inWords(writer.ready()))
	g.end(t)
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE status = 'late'"))
	require.Equal(t, []string{"received", "before_dispatch", "received", "before_dispatch", "received", "before_dispatch"}, g.cancelEvidence(t))
	kinds := map[string]int{}
	for _, e := range g.events(t) {
		if strings.HasPrefix(string(e.Type), "execution_") {
			kinds[string(e.Type)+" "+e.Context.ReasonCode]++
		}
	}
	require.Equal(t, map[string]int{"execution_dispatched ": 2, "execution_success ": 2, "execution_failure cancelled": 3}, kinds)
}

// cancelEvidence is what the log says of CancelRequests.
func (d gateDir) cancelEvidence(t testing.TB) (said []string) {
	t.Helper()
	for _, e := range d.events(t) {
		switch e.Type {
		case event.TypeCancelReceived:
			said = append(said, "received")
		case event.TypeCancelForwarded:
			require.NotEmpty(t, e.Context.ExecutionID)
			said = append(said, "forwarded")
		case event.TypeCancelUnsent:
			said = append(said, "before_dispatch")
		case event.TypeCancelRejected:
			var p event.CancelRejected
			require.NoError(t, e.Parse(&p))
			for range p.Count {
				said = append(said, p.Cause)
			}
		}
	}
	return said
}

func TestAFloodOfCancelsIsCountedAndNotWrittenOneByOne(t *testing.T) {
	t.Parallel()
	g := startWire(t, append([]string{"GATE_PGWIRE_MAX_UNAUTHENTICATED=1000"}, patientDatabase...)...)
	w := g.rawWire(t)
	const flood = 200
	var requests sync.WaitGroup // all at once: so many a second are written one by one, and it is no flood that takes its time
	for i := range flood {
		requests.Go(func() { g.cancelWire(t, binary.BigEndian.AppendUint64(nil, uint64(i))) })
	}
	requests.Wait()
	require.Equal(t, []string{"columns", "row 1", "SELECT 1", "ready I"}, w.ask(simple("SELECT 1")))
	g.end(t)
	said := g.cancelEvidence(t)
	rejected := 0
	for _, s := range said {
		if s != "received" {
			rejected++
		}
	}
	require.Equal(t, flood, rejected, "each is counted")
	events := 0
	for _, e := range g.events(t) {
		if strings.HasPrefix(string(e.Type), "GATE_CANCEL") {
			events++
		}
	}
	require.Less(t, events, 2*flood, "each written by itself would be two events")
}

// Not parallel: it counts the goroutines of this process.
func TestTenThousandConnectionsOpenedAndDropped(t *testing.T) {
	g := startWire(t)
	steady := g.rawWire(t)
	before := runtime.NumGoroutine()
	greeting, err := (&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "ana", "database": g.databaseName(t)}}).Encode(nil)
	require.NoError(t, err)
	var group sync.WaitGroup
	for part := range 4 {
		group.Go(func() {
			for i := range 2500 {
				c, err := net.Dial("tcp", g.wire)
				if err != nil {
					t.Error(err)
					return
				}
				switch (part + i) % 4 {
				case 1:
					_, _ = c.Write(greeting)
				case 2:
					_, _ = c.Write(greeting[:20])
				case 3:
					_, _ = fmt.Fprintf(c, "\x00\x00\x00\x08\x04\xd2\x16\x2f")
				}
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}
		})
	}
	group.Wait()
	require.Equal(t, []string{"columns", "row 1", "SELECT 1", "ready I"}, steady.ask(simple("SELECT 1")), "others are served")
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+8 }, startPatience, pollEvery)
	require.Eventually(t, func() bool {
		return g.get(t, "/runtime/stats").json(t)["wire"].(map[string]any)["connections"] == 1.0
	}, startPatience, pollEvery)
	require.Equal(t, http.StatusOK, g.get(t, "/health").status)
}
