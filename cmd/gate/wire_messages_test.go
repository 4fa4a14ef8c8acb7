package main

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// A simple statement, and the messages of the extended protocol for one.
func simple(sql string) *pgproto3.Query { return &pgproto3.Query{String: sql} }

func parse(sql string) *pgproto3.Parse { return &pgproto3.Parse{Query: sql} }

func statementMessages(sql string) []pgproto3.FrontendMessage {
	return []pgproto3.FrontendMessage{parse(sql), &pgproto3.Bind{}, &pgproto3.Execute{}}
}

var syncMessage = &pgproto3.Sync{}

// bytesMessage is a message whose length and body are what they are.
type bytesMessage []byte

func (bytesMessage) Frontend()                           {}
func (bytesMessage) Decode([]byte) error                 { return nil }
func (m bytesMessage) Encode(dst []byte) ([]byte, error) { return append(dst, m...), nil }

func badMessage(kind byte, body string) bytesMessage {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
}

const insertOrder = "INSERT INTO orders VALUES (2001, 1, 'new')"

func TestAMalformedMessageIsAnErrorAndTheConversationGoesOn(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	w := g.rawWire(t)
	for _, m := range []bytesMessage{badMessage('Q', ""), badMessage('Q', "SELECT 1"), badMessage('Q', "SELECT 1\x00;\x00"), badMessage('S', "x")} {
		require.Equal(t, []string{"ERROR 08P01", "ready I"}, w.ask(m), "%q", m)
	}
	for _, m := range []bytesMessage{
		badMessage('P', ""), badMessage('P', "a\x00SELECT 1\x00\x00\x01"), badMessage('P', "a\x00SELECT 1\x00\x00\x00x"), badMessage('B', "\x00"),
		badMessage('D', "X\x00"), badMessage('D', "S"), badMessage('C', "X\x00"), badMessage('E', "\x00\x00\x00"), badMessage('H', "x"),
	} {
		require.Equal(t, []string{"ERROR 08P01", "ready I"}, w.ask(m, simple(insertOrder), syncMessage), "%q", m)
	}
	require.Equal(t, []string{"columns", "row 1", "SELECT 1", "ready I"}, w.ask(simple("SELECT 1")))
	require.Equal(t, []string{"BEGIN", "ready T"}, w.ask(simple("BEGIN")))
	require.Equal(t, []string{"ERROR 08P01", "ready E"}, w.ask(badMessage('Q', "")), "as after a statement that failed")
	require.Equal(t, []string{"ERROR 25P02", "ready E"}, w.ask(simple("SELECT 1")))
	require.Equal(t, []string{"ROLLBACK", "ready I"}, w.ask(simple("ROLLBACK")))
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE id = 2001"))
}

func TestFramesThatCannotBeEndTheConnection(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	for _, m := range []string{"Q\x00\x00\x00\x03", "Q\xff\xff\xff\xff", "S\x7f\xff\xff\xff", "Y\x00\x00\x00\x04", "\x00\x00\x00\x00\x04", "p\x00\x00\x00\x04"} {
		w := g.rawWire(t)
		require.Equal(t, []string{"FATAL 08P01"}, w.ask(bytesMessage(m), simple(insertOrder)), "%q", m)
	}
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE id = 2001"))
}

func TestNothingRunsBehindAnErrorBeforeSync(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	w := g.rawWire(t)
	first, second := statementMessages(insertOrder), statementMessages("INSERT INTO orders VALUES (2002, 1, 'new')")
	for name, bad := range map[string][]pgproto3.FrontendMessage{
		"a statement that fails":    statementMessages("SELECT 1/0"),
		"a statement that is wrong": {parse("SELEC")},
		"an unknown name":           {&pgproto3.Bind{PreparedStatement: "nobody"}},
		"a malformed message":       {badMessage('B', "x")},
		"a blocked statement":       statementMessages("DROP TABLE orders"),
	} {
		batch := append(append(append(append([]pgproto3.FrontendMessage{}, first...), bad...), second...), simple("INSERT INTO orders VALUES (2003, 1, 'new')"), &pgproto3.Flush{}, &pgproto3.FunctionCall{}, syncMessage)
		got := w.ask(batch...)
		require.Equal(t, "ready I", got[len(got)-1], name)
		require.Contains(t, got[len(got)-2], "ERROR", name)
		require.Len(t, errorsAmong(got), 1, "%s: %v", name, got)
		require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE id > 2000"), name)
	}
	got := w.ask(append(append(first, second...), syncMessage)...)
	require.Equal(t, []string{"parsed", "bound", "INSERT 0 1", "parsed", "bound", "INSERT 0 1", "ready I"}, got)
	require.Equal(t, "2", g.value(t, "SELECT count(*) FROM orders WHERE id > 2000"))
}

func errorsAmong(words []string) (found []string) {
	for _, w := range words {
		if strings.HasPrefix(w, "ERROR") || strings.HasPrefix(w, "FATAL") {
			found = append(found, w)
		}
	}
	return found
}

func TestOneMessageTooManyBetweenTwoSyncs(t *testing.T) {
	t.Parallel()
	g := startWire(t, "GATE_PGWIRE_MAX_BATCH_ITEMS=6")
	w := g.rawWire(t)
	six := append(statementMessages(insertOrder), statementMessages("SELECT 1")...)
	require.Empty(t, errorsAmong(w.ask(append(six, syncMessage)...)))
	require.Empty(t, errorsAmong(w.ask(append(statementMessages("SELECT 2"), append(statementMessages("SELECT 1"), syncMessage)...)...)), "each Sync begins anew")
	seven := append(append(statementMessages("INSERT INTO orders VALUES (2002, 1, 'new')"), statementMessages("SELECT 1")...), parse("SELECT 1"), syncMessage)
	require.Equal(t, []string{"ERROR 54000"}, errorsAmong(w.ask(seven...)))
	require.Equal(t, "1", g.value(t, "SELECT count(*) FROM orders WHERE id > 2000"), "what came before the error is undone too")
}

// Drivers send a whole executemany before its Sync: with the defaults it may be as long
// as a transaction may be.
func TestABatchMayHaveAsManyWritesAsATransaction(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	w := g.rawWire(t)
	var batch []pgproto3.FrontendMessage
	for i := range 200 {
		batch = append(batch, statementMessages(fmt.Sprintf("INSERT INTO orders VALUES (%d, 1, 'new')", 3000+i))...)
	}
	require.Empty(t, errorsAmong(w.ask(append(batch, syncMessage)...)))
	require.Equal(t, "200", g.value(t, "SELECT count(*) FROM orders WHERE id >= 3000"))
}

func TestManySyncsAndFlushes(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	w := g.rawWire(t)
	const many = 10_000
	go func() {
		b := make([]byte, 0, 5*many)
		for range many {
			b = append(b, 'S', 0, 0, 0, 4)
		}
		_, _ = w.Write(b) // a failure shows in what is missing
	}()
	for range many {
		require.Equal(t, []string{"ready I"}, inWords(w.ready()))
	}
	w.send(parse("SELECT 1"), &pgproto3.Flush{})
	require.Equal(t, []string{"parsed"}, inWords([]pgproto3.BackendMessage{w.next()}))
	w.send(&pgproto3.Bind{}, &pgproto3.Flush{})
	require.Equal(t, []string{"bound"}, inWords([]pgproto3.BackendMessage{w.next()}))
	w.send(&pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Flush{})
	require.Equal(t, []string{"columns"}, inWords([]pgproto3.BackendMessage{w.next()}))
	w.send(&pgproto3.Execute{}, &pgproto3.Flush{})
	require.Equal(t, []string{"row 1", "SELECT 1"}, inWords([]pgproto3.BackendMessage{w.next(), w.next()}))
	require.Equal(t, []string{"closed", "ready I"}, w.ask(&pgproto3.Close{ObjectType: 'S', Name: "nobody"}, syncMessage))
	require.Equal(t, []string{"ERROR 42601"}, inWords(append([]pgproto3.BackendMessage{}, func() pgproto3.BackendMessage { w.send(parse("SELEC")); return w.next() }())), "an error does not wait for a Flush that is dropped")
	require.Equal(t, []string{"ready I"}, w.ask(syncMessage))
}

func TestMessagesOverTheirLimitAreThrownAway(t *testing.T) {
	t.Parallel()
	g := startWire(t, "GATE_PGWIRE_MAX_MESSAGE_BYTES=4096")
	w := g.rawWire(t)
	long := "SELECT '" + strings.Repeat("x", 5000) + "'"
	require.Equal(t, []string{"ERROR 54000", "ready I"}, w.ask(simple(long)))
	require.Equal(t, []string{"ERROR 54000", "ready I"}, w.ask(parse(long), simple(insertOrder), syncMessage))
	require.Equal(t, []string{"columns", "row 1", "SELECT 1", "ready I"}, w.ask(simple("SELECT 1")))
	g.end(t)
	found := 0
	for _, e := range g.events(t) {
		if e.Type == "oversized_request" {
			found++
		}
	}
	require.Positive(t, found)
}

func TestWhatTheGateDoesNotDoIsRefusedByName(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	w := g.rawWire(t)
	require.Equal(t, []string{"ERROR 0A000", "ready I"}, w.ask(&pgproto3.FunctionCall{Function: 1}))
	require.Equal(t, []string{"ERROR 0A000", "ready I"}, w.ask(simple("COPY orders TO STDOUT")))
	require.Equal(t, []string{"ERROR 0A000", "ready I"}, w.ask(simple("LISTEN x")))
	require.Equal(t, []string{"ERROR 42601", "ready I"}, w.ask(simple("SELECT 1; SELECT 2")))
	require.Equal(t, []string{"empty", "ready I"}, w.ask(simple("  -- nothing\n;")))
	require.Equal(t, []string{"ready I"}, w.ask(&pgproto3.CopyData{Data: []byte("1\n")}, &pgproto3.CopyDone{}, &pgproto3.CopyFail{}, syncMessage))
}

func TestWireStatementsShareTheRateOfPOSTQuery(t *testing.T) {
	t.Parallel()
	g := startWire(t, "GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1", "GATE_RATE_LIMIT_BURST=3")
	w := g.rawWire(t)
	require.Empty(t, errorsAmong(w.ask(simple("SELECT 1"))))
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	require.Empty(t, errorsAmong(w.ask(append(statementMessages("SELECT 1"), syncMessage)...)))
	require.Equal(t, []string{"ERROR 53400", "ready I"}, w.ask(simple(insertOrder)))
	require.Equal(t, []string{"parsed", "bound", "ERROR 53400", "ready I"}, w.ask(append(statementMessages(insertOrder), syncMessage)...))
	require.Equal(t, http.StatusTooManyRequests, g.query(t, ask("SELECT 1")).status)
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE id = 2001"))
	g.end(t)
	for _, e := range g.events(t) {
		if e.Type == "rate_limit_hit" {
			return
		}
	}
	t.Fatal("no evidence of it")
}

// Parse and Describe run nothing, but each may leave evidence: a flood of them is
// stopped, at ten times the rate of statements.
func TestParseAndDescribeHaveARateOfTheirOwn(t *testing.T) {
	t.Parallel()
	g := startWire(t, "GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1", "GATE_RATE_LIMIT_BURST=3")
	w := g.rawWire(t)
	broken := []pgproto3.FrontendMessage{&pgproto3.Parse{Query: "SELEC 1"}, syncMessage}
	for range 28 {
		require.Equal(t, []string{"ERROR 42601", "ready I"}, w.ask(broken...))
	}
	described := []pgproto3.FrontendMessage{&pgproto3.Parse{Query: "SELECT 1"}, &pgproto3.Describe{ObjectType: 'S'}, syncMessage}
	require.Empty(t, errorsAmong(w.ask(described...)))
	require.Equal(t, []string{"ERROR 53400", "ready I"}, w.ask(broken...))
	require.Equal(t, []string{"ERROR 53400", "ready I"}, w.ask(described...))
	require.Empty(t, errorsAmong(w.ask(simple("SELECT 1"))), "statements have their own")
	g.end(t)
	rejected := 0
	for _, e := range g.events(t) {
		if e.Type == "query_rejected" {
			rejected++
		}
	}
	require.Equal(t, 28, rejected)
}

func TestAClientThatIsSilentForTooLongIsToldSoAndEnded(t *testing.T) {
	t.Parallel()
	g := startWire(t, "GATE_PGWIRE_IDLE_TIMEOUT_SECONDS=1")
	w := g.rawWire(t)
	require.Equal(t, []string{"FATAL 57P05"}, inWords(w.ready()))
}

func TestABlockThatIdlesOrLastsTooLongIsUndone(t *testing.T) {
	t.Parallel()
	g := startWire(t, "GATE_PGWIRE_TX_IDLE_TIMEOUT_MS=2000", "GATE_PGWIRE_TX_MAX_MS=4000")
	idle, open, busy := g.rawWire(t), g.rawWire(t), g.rawWire(t)
	// In one write, so that a client that is slow does not idle in between.
	idle.send(simple("BEGIN"), simple("INSERT INTO orders VALUES (2001, 1, 'new')"))
	require.Equal(t, []string{"BEGIN", "ready T", "INSERT 0 1", "ready T"}, inWords(append(idle.ready(), idle.ready()...)))
	open.send(append(statementMessages("INSERT INTO orders VALUES (2002, 1, 'new')"), &pgproto3.Flush{})...) // a batch without its Sync is open too
	for range 3 {
		open.next()
	}
	busy.send(simple("BEGIN"), simple("INSERT INTO orders VALUES (2003, 1, 'new')"))
	require.Equal(t, []string{"BEGIN", "ready T", "INSERT 0 1", "ready T"}, inWords(append(busy.ready(), busy.ready()...)))
	// What is sent while the connection ends may cost its last message.
	told := false
	for begun := time.Now(); !told && time.Since(begun) < 3*time.Second; time.Sleep(100 * time.Millisecond) {
		got := busy.ask(simple("SELECT 1"))
		told = len(got) > 0 && got[len(got)-1] == "FATAL 25P03"
	}
	if !told {
		require.Equal(t, []string{"FATAL 25P03"}, inWords(busy.ready()))
	}
	require.Equal(t, []string{"FATAL 25P03"}, inWords(idle.ready()))
	require.Equal(t, []string{"FATAL 25P03"}, inWords(open.ready()))
	require.Eventually(t, func() bool {
		return g.value(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'") == "0"
	}, startPatience, pollEvery)
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE id > 2000"))
}

// A statement that runs past the end of its block's time is answered, and its client is
// told why the block ends. The database is well, and the log doesn't say otherwise.
func TestABlockThatIsBusyAtItsEndIsToldSo(t *testing.T) {
	t.Parallel()
	g := startWire(t, "GATE_PGWIRE_TX_MAX_MS=1000")
	w := g.rawWire(t)
	w.send(simple("BEGIN"))
	w.ready()
	told := ""
	for told == "" { // each shorter than the time of a statement, all together longer than that of the block
		w.send(simple("SELECT count(*) FROM generate_series(1, 8000000) g"))
		for _, word := range inWords(w.ready()) {
			if strings.HasPrefix(word, "ERROR ") || strings.HasPrefix(word, "FATAL ") {
				told = word
			}
		}
	}
	require.Contains(t, []string{"ERROR 25P03", "FATAL 25P03"}, told)
	if told == "ERROR 25P03" {
		w.send(simple("ROLLBACK"))
		require.Equal(t, []string{"FATAL 25P03"}, inWords(w.ready()))
	}
	g.end(t)
	for _, e := range g.events(t) {
		require.NotEqual(t, event.TypeDBUnavailable, e.Type)
	}
}
