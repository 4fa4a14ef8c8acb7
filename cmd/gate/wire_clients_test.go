package main

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

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

// A clientRun is a client that goes through the common list: connect, read,
// parameters, write, errors, blocks, cancel and so on, and says what it saw.
type clientRun func(t *testing.T, c *clientNotes)

// clientNotes is what one run of a client is told, and what it saw.
type clientNotes struct {
	url     string                // what it connects to
	resolve func(approval string) // approves; nil: there is no gate, and what only a gate does is left out
	seen    []string
	refused []string // what only a gate says
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
	c := &clientNotes{url: database}
	run(t, c)
	return c
}

// requireNothingOpen fails where a client left a transaction or a statement behind.
func requireNothingOpen(t *testing.T, database string) {
	t.Helper()
	require.Equal(t, "0", postgres.QueryURL(t, database,
		"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()"))
}

// sleepsNow asks whether the statement that a client is to cancel runs.
const sleepsNow = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(61)%' AND state = 'active' AND pid <> pg_backend_pid()"

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

func TestEveryClientGoesThroughTheListAtADatabase(t *testing.T) {
	for name, run := range wireClients() {
		t.Run(name, func(t *testing.T) {
			c := direct(t, run)
			for _, line := range c.seen {
				t.Log(line)
			}
		})
	}
}
