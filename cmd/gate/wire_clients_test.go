package main

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// What a client finds: a table of its own, and a policy that lets nearly
// everything pass, so that what it does can be compared with what it does
// without a gate.
const (
	clientTables = `
CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL, price numeric(10,2), note text);
INSERT INTO items SELECT n, 'item ' || n, n * 1.25, NULL FROM generate_series(1, 5) AS n`

	clientPolicy = `
schema: gate.policy/v1
name: clients
version: 1.0.0
facts: facts/v1
rules:
  - id: filter-required
    decision: BLOCK
    reason_code: write_without_filter
    match: { query_types: [UPDATE, DELETE, MERGE], where: [none, tautology] }
    remedy: Add a key, such as WHERE id = 7.
  - id: deletes-of-items
    decision: REQUIRE_APPROVAL
    reason_code: delete_needs_approval
    match: { query_types: [DELETE], tables_written: [public.items] }
  - id: anything
    decision: ALLOW
    reason_code: anything
    match: { env: [prod] }
`
)

// clientPatience bounds all that one client does.
const clientPatience = 5 * startPatience

// A clientRun is a client that goes through the common list: connect, read,
// parameters, write, errors, blocks, cancel and so on, and says what it saw.
type clientRun func(t *testing.T, c *clientNotes)

// clientNotes is what one run of a client is told, and what it saw.
type clientNotes struct {
	url     string                // what it connects to
	resolve func(approval string) // approves; nil: there is no gate, and what only a gate does is left out
	// database is the database itself, where one can look what runs.
	database string
	seen     []string
	refused  []string // what only a gate says
}

func (c *clientNotes) gated() bool { return c.resolve != nil }

// saw notes what happened, which has to be the same without a gate.
func (c *clientNotes) saw(item, format string, values ...any) {
	c.seen = append(c.seen, item+": "+fmt.Sprintf(format, values...))
}

// told notes what only a gate says.
func (c *clientNotes) told(item, format string, values ...any) {
	c.refused = append(c.refused, item+": "+fmt.Sprintf(format, values...))
}

// direct lets a client run against a database of its own.
func direct(t *testing.T, run clientRun) *clientNotes {
	t.Helper()
	database := postgres.ForTest(t)
	postgres.ExecuteURL(t, database, clientTables)
	pgbenchTables(t, database)
	pin(t, database)
	c := &clientNotes{url: database, database: database}
	run(t, c)
	return c
}

// requireNothingOpen fails where a client left a transaction or a statement behind.
func requireNothingOpen(t *testing.T, database string) {
	t.Helper()
	require.Eventually(t, func() bool { // the gate may only now hear that the client hung up
		return postgres.QueryURL(t, database,
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND state <> 'idle' AND pid <> pg_backend_pid()") == "0"
	}, startPatience, pollEvery)
}

// sleeps waits until the statement runs that a client is to cancel: one that is
// only being parsed might miss the cancel.
func (c *clientNotes) sleeps(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool {
		return postgres.QueryURL(t, c.database, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(61)%' AND wait_event = 'PgSleep'") == "1"
	}, startPatience, pollEvery, "the statement that is to be cancelled does not run")
}

// approvalIn finds the approval that an error names.
func approvalIn(text string) string {
	i := strings.Index(text, "apr_")
	if i < 0 {
		return ""
	}
	return text[i:min(len(text), i+len("apr_")+36)]
}

// wireClients are the clients that every run of the tests has, and those in
// other languages where they are asked for.
func wireClients() map[string]clientRun {
	clients := map[string]clientRun{
		"lib/pq": pqClient(false), "lib/pq with bytes": pqClient(true), "psql": psqlClient, "pgbench": pgbenchClient,
	}
	for name, mode := range pgxModes {
		clients["pgx "+name] = pgxClient(mode)
	}
	if os.Getenv(allClients) != "" {
		maps.Copy(clients, clientPrograms())
	}
	return clients
}

// saidByAGate is what a gate has to say, whoever asks: what is refused, with
// which SQLSTATE, and what an approval is good for.
var saidByAGate = map[string]string{
	"blocked": "42501", "too many rows": "54000", "several statements in one text": "42601", "copy": "0A000", "listen": "0A000", "named cursor": "0A000",
	"large object": "0A000", "initialise": "refused",
	"held": "GT001", "not approved yet": "ok", "still held": "GT001",
	"approved for another row": "GT002", "approved": "ok", "approved and used": "GT002", "usable": "ok",
}

func TestEveryClientSeesBehindAGateWhatItSeesAtTheDatabase(t *testing.T) {
	t.Parallel()
	clients := wireClients()
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "client\t"+strings.Join(commonList, "\t"))
	for _, name := range slices.Sorted(maps.Keys(clients)) {
		t.Run(name, func(t *testing.T) {
			behind := behindAGate(t, clients[name])
			requireSame(t, direct(t, clients[name]).seen, behind)
			fmt.Fprintln(w, name+"\t"+strings.Join(behind.done(!t.Failed()), "\t"))
		})
	}
	require.NoError(t, w.Flush())
	t.Log("what a client did behind a gate as at the database; from \"too many rows\" to \"copy\" it heard what only a gate says\n" + table.String())
}

// commonList is what clients do, as the beginning of the names of their items.
var commonList = []string{"read", "parameters", "types", "many rows", "insert", "duplicate", "block", "batch", "pipeline", "cursor", "cancel", "too many rows", "blocked", "approved", "copy", "reconnect"}

// done says which of the common list a client did, for the table that `make
// clients` prints.
func (c *clientNotes) done(well bool) []string {
	all := make([]string, len(commonList))
	for i, name := range commonList {
		about := func(line string) bool { return strings.HasPrefix(line, name) }
		switch {
		case !slices.ContainsFunc(c.seen, about) && !slices.ContainsFunc(c.refused, about):
			all[i] = "-"
		case well:
			all[i] = "yes"
		default:
			all[i] = "no"
		}
	}
	return all
}

// inTheGatesWords are the items whose errors come from the gate itself: their
// SQLSTATE is PostgreSQL's, their words say more.
var inTheGatesWords = []string{"wrong syntax", "cancel", "read only"}

var sqlstate = regexp.MustCompile(`\b[0-9]{2}[0-9A-Z]{3}\b`)

// behindAGate lets a client run against a gate of its own.
func behindAGate(t *testing.T, run clientRun) *clientNotes {
	t.Helper()
	d := newGateDir(t, []byte(clientPolicy))
	d.execute(t, clientTables)
	pgbenchTables(t, d.database)
	g := startGate(t, d, asAtTheDatabase...)
	c := &clientNotes{url: g.plainURL(t), database: d.database, resolve: func(approval string) {
		answer := g.resolve(t, approval, "approve")
		require.Equal(t, http.StatusOK, answer.status, "%s", answer.body)
	}}
	run(t, c)
	requireNothingOpen(t, d.database)
	return c
}

// requireSame compares what a client saw, and holds what only a gate says
// against what it has to say.
func requireSame(t *testing.T, want []string, behind *clientNotes) {
	t.Helper()
	for i, line := range want {
		require.Less(t, i, len(behind.seen), "behind the gate nothing came after %d lines", i)
		item, _, _ := strings.Cut(line, ": ")
		if slices.Contains(inTheGatesWords, item) {
			assert.Equal(t, item+" "+sqlstate.FindString(line), item+" "+sqlstate.FindString(behind.seen[i]), "line %d", i)
			continue
		}
		assert.Equal(t, line, behind.seen[i], "line %d", i)
	}
	require.Len(t, behind.seen, len(want))
	for _, line := range behind.refused {
		item, said, _ := strings.Cut(line, ": ")
		require.Contains(t, saidByAGate, item)
		require.Contains(t, said, saidByAGate[item], "%s", item)
	}
	require.NotEmpty(t, behind.refused)
}
