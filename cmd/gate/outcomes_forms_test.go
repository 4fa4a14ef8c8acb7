package main

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// outcomesPolicy lets the statements of the forms through.
const outcomesPolicy = `
schema: gate.policy/v1
name: outcomes-gate
version: 1.0.0
facts: facts/v1
rules:
  - id: rows
    decision: ALLOW
    reason_code: row
    match: { query_types_only: [INSERT], tables_written_only: [public.hits, public.child] }
  - id: accounts
    decision: ALLOW
    reason_code: account
    match: { query_types_only: [UPDATE], tables_written_only: [public.accounts] }
  - id: held
    decision: REQUIRE_APPROVAL
    reason_code: held
    match: { query_types_only: [INSERT], tables_written: [public.held], tables_written_only: [public.held] }
    approval: { ttl_seconds: 3600, max_rows: 1 }
  - id: indexes
    decision: ALLOW
    reason_code: index
    match: { class: [ddl], query_types_only: [CREATE] }
`

// outcomesTables have no key where a statement that ran twice is to show.
const outcomesTables = `
CREATE TABLE hits (v text NOT NULL);
CREATE TABLE held (v text NOT NULL);
CREATE TABLE accounts (id text PRIMARY KEY, n int NOT NULL);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (v text NOT NULL, p int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE indexed (v text);`

// A form is a way in which the gate executes a statement. NAME in its texts is
// the name of the case, which no other case has.
type form struct {
	name    string
	before  string // SQL run at the database, before the case
	sql     string
	applied string // SQL that counts how often the statement was applied
	profile string // execution_profile
	key     bool   // under an idempotency key
	held    bool   // needs an approval, which limits the rows
	cold    bool   // no connection is open yet
	never   bool   // the statement fails, so it is never applied
	reads   bool   // applies nothing
	alone   bool   // runs outside a transaction: not_knowable is an answer
}

var forms = []form{
	{name: "read", sql: "SELECT 'NAME', v FROM hits LIMIT 3", reads: true},
	{name: "write by key", before: "INSERT INTO accounts VALUES ('NAME', 0)", sql: "UPDATE accounts SET n = n + 1 WHERE id = 'NAME'", applied: "SELECT n FROM accounts WHERE id = 'NAME'"},
	{name: "write with returning", sql: "INSERT INTO hits VALUES ('NAME') RETURNING v", applied: countHits},
	{name: "write under an approval", sql: "INSERT INTO held VALUES ('NAME')", applied: "SELECT count(*) FROM held WHERE v = 'NAME'", held: true},
	{name: "write in bulk", sql: "INSERT INTO hits VALUES ('NAME')", applied: countHits, profile: "bulk"},
	{name: "write in haste", sql: "INSERT INTO hits VALUES ('NAME')", applied: countHits, profile: "latency"},
	{name: "write under a key", sql: "INSERT INTO hits VALUES ('NAME')", applied: countHits, key: true},
	{name: "write with a deferred fault", sql: "INSERT INTO child VALUES ('NAME', 7)", applied: "SELECT count(*) FROM child WHERE v = 'NAME'", never: true},
	{name: "write that fails", sql: "INSERT INTO hits SELECT 'NAME' WHERE 1 / (SELECT count(*) FROM parent) = 0", applied: countHits, never: true},
	{name: "write on a new connection", sql: "INSERT INTO hits VALUES ('NAME')", applied: countHits, cold: true},
	{name: "alone", sql: `CREATE INDEX CONCURRENTLY "NAME" ON indexed (v)`, applied: "SELECT count(*) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE c.relname = 'NAME' AND i.indisvalid", alone: true},
}

const countHits = "SELECT count(*) FROM hits WHERE v = 'NAME'"

// request is what a client sends.
func (f *form) request(name string) statement {
	s := ask(named(f.sql, name))
	if f.profile != "" {
		s = s.with("execution_profile", f.profile)
	}
	return s
}

// params of the request's URL.
func (f *form) params(name string) []string {
	if f.key {
		return []string{"idempotency_key=" + name}
	}
	return nil
}

// warm opens the connections that the form uses, so that a case counts its own
// messages alone.
func (f *form) warm(t testing.TB, g *testGate) {
	t.Helper()
	if f.cold {
		return
	}
	sql := "INSERT INTO child VALUES ('warm', NULL)"
	if f.reads {
		sql = "SELECT 1"
	}
	var r reply
	require.Eventually(t, func() bool { // the first may meet what the last case left
		r = g.query(t, ask(sql))
		return r.status == http.StatusOK
	}, startPatience, pollEvery, "%s", &r)
}

func (r *reply) String() string { return fmt.Sprintf("%d %s", r.status, r.body) }
