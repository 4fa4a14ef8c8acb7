package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// sequenceTable is what random sequences write: each row names the write that
// made it. Two rows of one late are an error, and not before the end of their
// transaction.
const sequenceTable = `CREATE TABLE written (write bigint NOT NULL, n int NOT NULL, late int UNIQUE DEFERRABLE INITIALLY DEFERRED);
INSERT INTO written VALUES (0, 0, 0);
CREATE TABLE taken (id int PRIMARY KEY); INSERT INTO taken VALUES (1)`

// sequenceNames are what clients call their savepoints: names that are equal after
// folding and cutting, and such as a gate could choose.
var sequenceNames = []string{
	"s", "S", `"S"`, "t", "gate_fence", `"gate_fence"`, `U&"gate\005ffence"`, "gate_1", `"a ""b"" \"`, `"ROLLBACK"`,
	strings.Repeat("x", 63), strings.Repeat("x", 70), `"` + strings.Repeat("ä", 40) + `"`, `"` + strings.Repeat("ä", 31) + `"`,
}

// A sequence is what one client sends, drawn from its number alone.
type sequence struct {
	*rand.Rand
	number   int
	writes   []sequenceWrite
	block    bool     // it is in one, unless something went wrong
	names    []string // of savepoints
	failed   bool     // the last statement was one that fails
	messages []pgproto3.FrontendMessage
}

// A sequenceWrite is a statement that makes rows, as often as it runs.
type sequenceWrite struct {
	id   int64
	sql  string
	rows int
}

func newSequence(number int) *sequence {
	q := &sequence{Rand: rand.New(rand.NewPCG(15, uint64(number))), number: number}
	for range 4 + q.IntN(20) {
		q.step()
	}
	return q
}

// write is a statement that makes rows, or would: some fail, at once or at the
// end of their transaction, and some only for the gate.
func (q *sequence) write() string {
	w := sequenceWrite{id: int64(q.number)*100 + int64(len(q.writes)) + 1, rows: 1 + q.IntN(4)}
	insert := fmt.Sprintf("INSERT INTO written SELECT %d, n FROM generate_series(1, %d) AS n", w.id, w.rows)
	kind := q.IntN(24)
	q.failed = kind == 2 || kind == 3 || kind == 4 || kind == 7
	switch w.sql = insert; kind {
	case 0:
		w.sql += " RETURNING write, n"
	case 1:
		w.sql = fmt.Sprintf("WITH w AS (%s RETURNING n) SELECT count(*) FROM w", insert)
	case 2:
		w.sql = fmt.Sprintf("WITH w AS (%s RETURNING n) SELECT 1/(count(*)-%d) FROM w", insert, w.rows)
	case 3:
		w.sql = fmt.Sprintf("WITH w AS (%s RETURNING n) INSERT INTO taken SELECT 1 FROM w", insert)
	case 4: // more rows than the gate hands on
		w.rows = 12
		w.sql = fmt.Sprintf("INSERT INTO written SELECT %d, n FROM generate_series(1, 12) AS n RETURNING n", w.id)
	case 5:
		w.rows = 1
		w.sql = fmt.Sprintf("INSERT INTO written VALUES (%d, 1, 0)", w.id)
	case 6:
		w.sql = fmt.Sprintf("DO $$ BEGIN %s; BEGIN INSERT INTO taken VALUES (1); EXCEPTION WHEN unique_violation THEN NULL; END; END $$", insert)
	case 7:
		w.sql = fmt.Sprintf("DO $$ BEGIN %s; COMMIT; END $$", insert)
	}
	q.writes = append(q.writes, w)
	return w.sql
}

// statement draws one, mostly such as can run where the block may stand by now.
func (q *sequence) statement() string {
	one := func(of ...string) string { return of[q.IntN(len(of))] }
	if q.failed = q.failed && q.IntN(4) > 0; q.failed {
		return one("ROLLBACK TO ", "ROLLBACK TRANSACTION TO SAVEPOINT ") + q.back()
	}
	if !q.block && q.IntN(3) > 0 {
		q.block, q.names = true, nil
		return one("BEGIN", "BEGIN", "START TRANSACTION", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE")
	}
	switch n := q.IntN(100); {
	case n < 40:
		return q.write()
	case n < 56:
		q.names = append(q.names, sequenceNames[q.IntN(len(sequenceNames))])
		return "SAVEPOINT " + q.names[len(q.names)-1]
	case n < 66:
		return one("ROLLBACK TO ", "ROLLBACK TRANSACTION TO SAVEPOINT ") + q.back()
	case n < 70:
		return one("RELEASE ", "RELEASE SAVEPOINT ") + q.back()
	case n < 76:
		return one("SELECT count(*) FROM written", "SELECT n FROM generate_series(1, 3) AS n", "SHOW TimeZone", "SHOW server_version")
	case n < 84:
		q.failed = true
		return one("SELECT 1/(count(*)-count(*)) FROM written", "SELECT nothing FROM written", "SELECT 'x'::int", "SELECT n FROM generate_series(1, 12) AS n", "SELEC")
	case n < 86:
		return one("BEGIN", "BEGIN READ ONLY", "BEGIN ISOLATION LEVEL SERIALIZABLE")
	case n < 92:
		q.block = false
		return one("COMMIT", "END", "COMMIT", "END", "COMMIT AND CHAIN")
	case n < 94:
		q.block = false
		return one("ROLLBACK", "ABORT", "ROLLBACK AND CHAIN")
	case n < 97:
		return one("SET LOCAL TimeZone = 'Europe/Berlin'", "SET TimeZone = 'UTC'", "SET TRANSACTION READ ONLY", "DEALLOCATE ALL", "DISCARD ALL", "")
	case n < 98:
		return one("DELETE FROM written", "DELETE FROM items WHERE id = 1", "COPY written TO STDOUT", "LISTEN x", "VACUUM taken")
	}
	return "EXECUTE p"
}

// back is the name of a savepoint, mostly of one that was set; those behind it go.
func (q *sequence) back() string {
	q.failed = false
	if len(q.names) == 0 || q.IntN(20) == 0 {
		q.failed = true
		return sequenceNames[q.IntN(len(sequenceNames))]
	}
	i := q.IntN(len(q.names))
	q.names = q.names[:i+1]
	return q.names[i]
}

func (q *sequence) say(sql string) { q.send(&pgproto3.Query{String: sql}) }

func (q *sequence) send(messages ...pgproto3.FrontendMessage) {
	q.messages = append(q.messages, messages...)
}

// step adds messages: a Query, or a statement in messages of its own, with more or
// less of what belongs to it.
func (q *sequence) step() {
	name := streamNames[q.IntN(len(streamNames))]
	chance := func(of int) bool { return q.IntN(of) == 0 }
	switch n := q.IntN(20); {
	case n < 11:
		q.say(q.statement())
	case n < 18:
		if name != "" && !chance(10) {
			q.send(&pgproto3.Close{ObjectType: 'S', Name: name})
		}
		q.send(&pgproto3.Parse{Name: name, Query: q.statement()})
		if chance(4) {
			q.send(&pgproto3.Describe{ObjectType: 'S', Name: name})
		}
		portal := ""
		if chance(4) {
			portal = streamNames[q.IntN(len(streamNames))]
		}
		if !chance(20) {
			q.send(&pgproto3.Bind{DestinationPortal: portal, PreparedStatement: name})
		}
		if chance(4) {
			q.send(&pgproto3.Describe{ObjectType: 'P', Name: portal})
		}
		if !chance(8) {
			q.send(&pgproto3.Execute{Portal: portal, MaxRows: uint32(max(0, q.IntN(6)-3))})
		}
		if chance(10) {
			q.send(&pgproto3.Execute{Portal: portal, MaxRows: 1})
		}
		if !chance(5) {
			q.send(syncMessage)
		}
	case n == 18: // what was left there runs again
		q.send(&pgproto3.Bind{PreparedStatement: name}, &pgproto3.Execute{}, syncMessage)
	case q.IntN(2) == 0:
		q.send(syncMessage)
	default:
		q.send([]pgproto3.FrontendMessage{syncMessage, &pgproto3.Flush{}, simple("PREPARE p AS " + q.write()), badMessage('B', "\x00")}[q.IntN(4)])
	}
}

// run sends it, and leaves in one of four ways.
func (q *sequence) run(w *rawWire) {
	w.t.Helper()
	switch q.IntN(4) {
	case 0:
		w.answers(q.messages)
	case 1:
		w.answers(append(q.messages, syncMessage, simple("COMMIT")))
	case 2:
		w.send(append(q.messages, syncMessage, &pgproto3.Terminate{})...)
	case 3: // cut somewhere
		w.send(q.messages[:q.IntN(len(q.messages)+1)]...)
	}
	require.NoError(w.t, w.Close())
}

// sequenceCount is how many sequences are sent: few in every run, as many as
// WIRE_SEQUENCES says where it is set.
func sequenceCount(t *testing.T) int {
	text := os.Getenv("WIRE_SEQUENCES")
	if text == "" {
		return 300
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

const (
	sequenceClients = 8
	sequenceBatch   = 2500 // sequences before one gate
)

// Whatever order of writes, savepoints, errors, reads, Describes and portals
// clients send, and however they leave: what the log says of a write is what the
// table holds, row by row, and of each write it says something.
func TestWhateverAClientSendsLogAndTableTellTheSame(t *testing.T) {
	t.Parallel()
	told := map[string]int{}
	for first, count := 0, sequenceCount(t); first < count; first += sequenceBatch {
		compareSequences(t, first, min(first+sequenceBatch, count), told)
	}
	t.Logf("writes by what became of them: %v", told)
	require.Positive(t, told[event.OutcomeCommitted])
	require.Positive(t, told["rolled_back_to_savepoint"])
	require.Positive(t, told["rolled_back"])
	require.Positive(t, told["result_too_large"])
}

// compareSequences sends the sequences of some numbers to one gate.
func compareSequences(t *testing.T, first, end int, told map[string]int) {
	d := newGateDir(t, []byte(clientPolicy))
	d.execute(t, sequenceTable)
	g := startGate(t, d, append(wireSettings, "GATE_PGWIRE_TX_MAX_MS=600000", "GATE_PGWIRE_TX_IDLE_TIMEOUT_MS=600000",
		"GATE_PGWIRE_MAX_TRANSACTIONS=16", "GATE_MAX_RESULT_ROWS=10", "GATE_AUDIT_FSYNC=off")...)
	var next atomic.Int64
	next.Store(int64(first))
	var clients sync.WaitGroup
	for range sequenceClients {
		clients.Go(func() {
			for n := int(next.Add(1)) - 1; n < end; n = int(next.Add(1)) - 1 {
				newSequence(n).run(g.rawWire(t))
			}
		})
	}
	clients.Wait()
	require.Eventually(t, func() bool { return d.value(t, openTransactions) == "0" }, startPatience, pollEvery, "a client that left has a transaction")
	g.end(t)
	writes := map[[32]byte]sequenceWrite{}
	for n := first; n < end; n++ {
		for _, w := range newSequence(n).writes {
			writes[sha256.Sum256([]byte(w.sql))] = w
		}
	}
	requireLogOfTable(t, g, writes, told)
}

// openTransactions counts those of the gate's connections.
const openTransactions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'gate/%' AND state LIKE 'idle in transaction%'"

// requireLogOfTable holds each execution of a write against the rows that bear
// its number.
func requireLogOfTable(t *testing.T, g *testGate, writes map[[32]byte]sequenceWrite, told map[string]int) {
	t.Helper()
	of, outcome := map[string]sequenceWrite{}, map[string]string{}
	for _, e := range g.events(t) {
		id := e.Context.ExecutionID
		if e.Type == event.TypeExecutionDispatched {
			var dispatched event.ExecutionDispatched
			require.NoError(t, e.Parse(&dispatched))
			if w, ok := writes[dispatched.SQLSHA256]; ok {
				of[id] = w
			}
			continue
		}
		if _, ok := of[id]; !ok {
			continue
		}
		switch e.Type {
		case event.TypeExecutionSuccess:
			require.Empty(t, outcome[id], "a second result of %s", of[id].sql)
			outcome[id] = event.OutcomeCommitted
		case event.TypeExecutionFailure:
			require.Empty(t, outcome[id], "a second result of %s", of[id].sql)
			outcome[id] = e.Context.ReasonCode
		case event.TypeExecutionStateUnknown, event.TypeExecutionOutcomeResolved:
			t.Errorf("%s of %s", e.Type, of[id].sql)
		}
	}
	want := map[int64]int{0: 1}
	for id, w := range of {
		require.NotEmpty(t, outcome[id], "it stayed dispatched: %s%s", w.sql, describeSequence(w))
		if told[outcome[id]]++; outcome[id] == event.OutcomeCommitted {
			want[w.id] += w.rows
		}
	}
	got := g.rowsOfWrites(t)
	for id, n := range want {
		require.Equal(t, n, got[id], "rows of write %d, which the log says are committed%s", id, describeSequence(sequenceWrite{id: id}))
	}
	for id, n := range got {
		require.Equal(t, want[id], n, "rows of write %d in the table%s", id, describeSequence(sequenceWrite{id: id}))
	}
}

func describeSequence(w sequenceWrite) string {
	return describeStream(newSequence(int(w.id / 100)).messages)
}

// rowsOfWrites counts the rows that each write left.
func (d gateDir) rowsOfWrites(t testing.TB) map[int64]int {
	t.Helper()
	conn, err := pgconn.Connect(context.Background(), d.database)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	results, err := conn.Exec(context.Background(), "SELECT write, count(*) FROM written GROUP BY write").ReadAll()
	require.NoError(t, err)
	rows := map[int64]int{}
	for _, row := range results[0].Rows {
		id, err := strconv.ParseInt(string(row[0]), 10, 64)
		require.NoError(t, err)
		rows[id], err = strconv.Atoi(string(row[1]))
		require.NoError(t, err)
	}
	return rows
}
