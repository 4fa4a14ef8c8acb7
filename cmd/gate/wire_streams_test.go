package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/fixtures/postgres"
)

// streamTable is what the statements of random streams write and read.
const streamTable = "CREATE TABLE marks (id int PRIMARY KEY, note text)"

// streamStatements are the texts of random streams. What an error depends on is
// in the data, since the gate looks a name up when it is run and PostgreSQL when
// it is parsed.
var streamStatements = []string{
	"INSERT INTO marks VALUES (1)", "INSERT INTO marks VALUES (2)", "INSERT INTO marks VALUES (3) RETURNING id", "INSERT INTO marks SELECT n FROM generate_series(4, 6) AS n RETURNING id",
	"UPDATE marks SET note = 'seen' WHERE id = 1", "SELECT id, note FROM marks ORDER BY id", "SELECT count(*) FROM marks",
	"SELECT 1/(SELECT count(*) FROM marks WHERE id = 1)", "SELEC", "", "BEGIN", "COMMIT", "ROLLBACK", "BEGIN READ ONLY", "BEGIN READ WRITE", "START TRANSACTION ISOLATION LEVEL SERIALIZABLE",
	"SAVEPOINT s", "ROLLBACK TO s", "RELEASE s", "SAVEPOINT gate_fence", "ROLLBACK TO gate_fence", "SELECT 1/(count(*)-count(*)) FROM marks",
}

// streamPrepared are texts with parameters, for Parse alone: a Query with one
// fails at the gate with another SQLSTATE than at PostgreSQL.
var streamPrepared = []string{
	"INSERT INTO marks VALUES ($1::int, $2::text)", "SELECT $1::int AS given, count(*) FROM marks WHERE id = $1::int",
}

// streamParameters are what Bind gives: none, too few, too many, NULL and binary. How
// many columns a result has the gate knows at Execute (docs/WIRE.md).
var streamParameters = []struct {
	values           [][]byte
	formats, results []int16
}{
	{}, {}, {}, {},
	{values: [][]byte{[]byte("7")}},
	{values: [][]byte{[]byte("8"), []byte("a note")}},
	{values: [][]byte{nil, []byte("nobody")}, results: []int16{1}},
	{values: [][]byte{{0, 0, 0, 9}, []byte("binary")}, formats: []int16{1, 0}, results: []int16{1}},
	{values: [][]byte{{0, 0, 0, 7}}, formats: []int16{1}, results: []int16{0}},
	{values: [][]byte{[]byte("7")}, formats: []int16{0, 0}},
	{formats: []int16{1, 1, 1}},
}

// functionCall is one of a function that is not there: the server refuses it, and the
// gate any.
var functionCall = badMessage('F', "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")

var streamNames = []string{"", "a", "b"}

// streamMessage draws one message, and a few that are malformed.
func streamMessage(t *rapid.T) pgproto3.FrontendMessage {
	name := func(what string) string { return rapid.SampledFrom(streamNames).Draw(t, what) }
	sql := func() string { return rapid.SampledFrom(streamStatements).Draw(t, "sql") }
	switch rapid.IntRange(0, 11).Draw(t, "message") {
	case 0, 1:
		return &pgproto3.Query{String: sql()}
	case 2, 3:
		text := sql()
		if rapid.Bool().Draw(t, "prepared") {
			text = rapid.SampledFrom(streamPrepared).Draw(t, "sql")
		}
		return &pgproto3.Parse{Name: name("statement"), Query: text}
	case 4, 5:
		given := rapid.SampledFrom(streamParameters).Draw(t, "parameters")
		return &pgproto3.Bind{DestinationPortal: name("portal"), PreparedStatement: name("statement"),
			Parameters: given.values, ParameterFormatCodes: given.formats, ResultFormatCodes: given.results}
	case 6:
		return &pgproto3.Describe{ObjectType: rapid.SampledFrom([]byte("SP")).Draw(t, "object"), Name: name("name")}
	case 7, 8:
		return &pgproto3.Execute{Portal: name("portal"), MaxRows: rapid.SampledFrom([]uint32{0, 0, 1, 2}).Draw(t, "rows")}
	case 9:
		return &pgproto3.Close{ObjectType: rapid.SampledFrom([]byte("SP")).Draw(t, "object"), Name: name("name")}
	case 10:
		return syncMessage
	}
	return rapid.SampledFrom([]pgproto3.FrontendMessage{
		&pgproto3.Flush{}, badMessage('P', "x"), badMessage('B', "\x00"), badMessage('E', "\x00"), badMessage('D', "X\x00"), badMessage('C', "X\x00"), badMessage('Q', "x"), badMessage('H', "x"),
		badMessage('c', ""), badMessage('d', "data"), badMessage('f', "no\x00"), badMessage('S', "x"),
		badMessage('E', "\x00\xff\xff\xff\xff"), badMessage('P', "\x00SELECT 1\x00\xff\xff"), badMessage('D', "S"),
		functionCall, functionCall,
	}).Draw(t, "other")
}

// overStream takes a connection over from the driver, behind its login.
func overStream(t *testing.T, url string) *rawWire {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	c, err := pgconn.Connect(ctx, url)
	require.NoError(t, err)
	require.NoError(t, c.SyncConn(ctx))
	h, err := c.Hijack()
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Conn.Close() }) // the test is over
	return &rawWire{Conn: h.Conn, t: t}
}

// answers sends a stream and gives what came, up to the answer of a last
// statement that runs whatever the stream left behind.
func (w *rawWire) answers(stream []pgproto3.FrontendMessage) []string {
	w.t.Helper()
	w.send(append(stream[:len(stream):len(stream)], syncMessage, simple("ROLLBACK"), simple("SELECT 'the end'"))...)
	var words []string
	for {
		m := w.next()
		require.NotNil(w.t, m, "the connection ended behind %v", words)
		words = append(words, inWords([]pgproto3.BackendMessage{m})...)
		if words[len(words)-1] == "row the end" {
			w.ready()
			return comparable(words)
		}
	}
}

// comparable leaves out the four differences that are known. PostgreSQL keeps the
// portal of a Query that failed until its block ends, and says 25P02 to an Execute
// of it, or 55000 where it was a ROLLBACK TO, where the gate says 34000 or 25P02. And it runs a write of a Query before it
// describes what RETURNING gives, so columns may stand before an error or not. It warns
// of a BEGIN in a block before it refuses the modes of that BEGIN. A call
// of a function that is not there is 42883 at the server, or 25P02 in a failed block.
func comparable(words []string) []string {
	var kept []string
	failed := false
	for _, word := range words {
		if word == "ERROR 42883" {
			word = "ERROR 0A000"
		}
		if failed && (word == "ERROR 34000" || word == "ERROR 0A000" || word == "ERROR 55000") {
			word = "ERROR 25P02"
		}
		if strings.HasPrefix(word, "ready") {
			failed = word == "ready E"
		}
		if last := len(kept) - 1; last >= 0 && (kept[last] == "columns" || kept[last] == "WARNING 25001") && strings.HasPrefix(word, "ERROR") {
			kept = kept[:last]
		}
		kept = append(kept, word)
	}
	return kept
}

// streamRounds is how many random streams are compared: few in every run, as
// many as WIRE_STREAMS says where it is set.
func streamRounds(t *testing.T) int {
	text := os.Getenv("WIRE_STREAMS")
	if text == "" {
		return 40
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// Whatever order messages come in, the gate answers as PostgreSQL does, and the
// database holds afterwards what it would hold without a gate: nothing that came
// behind an error, all that was committed.
func TestAnyStreamOfMessagesEndsAsItWouldAtTheDatabaseItself(t *testing.T) {
	t.Parallel()
	compareStreams(t, rapid.SliceOfN(rapid.Custom(streamMessage), 1, 25), streamRounds(t), func(words []string) []string { return words })
}

// compareStreams sends random streams to a gate and to a database of its own.
func compareStreams(t *testing.T, draw *rapid.Generator[[]pgproto3.FrontendMessage], rounds int, normal func([]string) []string) {
	d := newGateDir(t, []byte(clientPolicy))
	d.execute(t, streamTable)
	g := startGate(t, d, wireSettings...)
	direct := postgres.ForTest(t)
	postgres.ExecuteURL(t, direct, streamTable)
	for round := range rounds {
		stream := draw.Example(round)
		gate, server := overStream(t, g.wireURL(t)), overStream(t, direct)
		require.Equal(t, normal(server.answers(stream)), normal(gate.answers(stream)), "stream %d: %s", round, describeStream(stream))
		const content = "SELECT coalesce(string_agg(id || coalesce(note, ''), ',' ORDER BY id), '') FROM marks"
		require.Equal(t, postgres.QueryURL(t, direct, content), g.value(t, content), "stream %d: %s", round, describeStream(stream))
		for _, url := range []string{direct, d.database} {
			postgres.ExecuteURL(t, url, "TRUNCATE marks")
		}
		require.NoError(t, gate.Close())
		require.NoError(t, server.Close())
	}
}

// transactionModes are what names the modes of a transaction, what shows them, and what
// they are for.
var transactionModes = []string{
	"BEGIN", "BEGIN READ ONLY", "BEGIN READ WRITE", "START TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", "BEGIN DEFERRABLE",
	"START TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE", "BEGIN NOT DEFERRABLE",
	"SET TRANSACTION READ ONLY", "SET TRANSACTION READ ONLY", "SET TRANSACTION READ WRITE", "SET LOCAL TRANSACTION READ ONLY", "SET SESSION TRANSACTION READ WRITE",
	"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE", "SET TRANSACTION DEFERRABLE", "SET TRANSACTION NOT DEFERRABLE",
	"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ, DEFERRABLE",
	"SET LOCAL SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET LOCAL SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
	"SET default_transaction_read_only = on", "SET LOCAL default_transaction_read_only = off", "RESET default_transaction_read_only", "RESET ALL",
	"SHOW transaction_isolation", "SHOW transaction_read_only", "SHOW transaction_deferrable", "SHOW default_transaction_read_only", "SHOW default_transaction_isolation",
	"INSERT INTO marks SELECT count(*) FROM marks", "INSERT INTO marks SELECT count(*) FROM marks RETURNING id", "UPDATE marks SET note = 'seen' WHERE id = 0", "INSERT INTO marks SELECT count(*) FROM marks",
	"SELECT count(*) FROM marks", "SELECT 1/(count(*)-count(*)) FROM marks", "SAVEPOINT s", "SAVEPOINT t", "SAVEPOINT s", "ROLLBACK TO s", "ROLLBACK TO t", "RELEASE s", "RELEASE t", "COMMIT", "COMMIT", "ROLLBACK",
}

// modeStream draws statements, each as a Query or in messages of its own. A Query
// behind messages without their Sync is a known difference.
func modeStream(t *rapid.T) (stream []pgproto3.FrontendMessage) {
	open := false
	for _, sql := range rapid.SliceOfN(rapid.SampledFrom(transactionModes), 3, 20).Draw(t, "statements") {
		form := rapid.IntRange(0, 3).Draw(t, "form")
		if form < 2 && open {
			stream, open = append(stream, syncMessage), false
		}
		if form < 2 {
			stream = append(stream, simple(sql))
			continue
		}
		if stream, open = append(stream, statementMessages(sql)...), form == 3; !open {
			stream = append(stream, syncMessage)
		}
	}
	return stream
}

// The modes of a transaction are done or refused as the database does it, wherever a
// client names them: no transaction writes whose client said READ ONLY.
func TestTheModesOfATransactionAreThoseOfTheDatabase(t *testing.T) {
	t.Parallel()
	compareStreams(t, rapid.Custom(modeStream), streamRounds(t), ofModes)
}

// ofModes leaves out whether what holds until the next Sync outside of a block is warned
// of (that depends on the server's version and on what stands before), and when a setting
// is reported.
func ofModes(words []string) (kept []string) {
	for _, word := range words {
		if word != "WARNING 25P01" && !strings.HasPrefix(word, "default_transaction_read_only=") {
			kept = append(kept, word)
		}
	}
	return kept
}

func describeStream(stream []pgproto3.FrontendMessage) (text string) {
	for _, m := range stream {
		text += fmt.Sprintf("\n  %T %+v", m, m)
	}
	return text
}
