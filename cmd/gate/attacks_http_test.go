package main

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/fixtures/postgres"
	"writegate/sqlgate/policyfolder"
)

// An attack is one line of the attack corpus (design/classification.md part 11).
type attack struct {
	ID           string `json:"id"`
	SQL          string `json:"sql"`
	Must         string `json:"must"` // not_allow_by_default, may_allow or column_policy
	NeedsCatalog bool   `json:"needs_catalog"`
}

func attackCorpus(t testing.TB) []attack {
	t.Helper()
	file, err := os.Open(filepath.Join("..", "..", "fixtures", "corpus", "attacks.jsonl"))
	require.NoError(t, err)
	defer file.Close()
	var all []attack
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var a attack
		require.NoError(t, json.Unmarshal(lines.Bytes(), &a))
		all = append(all, a)
	}
	require.NoError(t, lines.Err())
	require.Greater(t, len(all), 200)
	return all
}

// mayNotRun holds for an attack that the text alone gives away.
func (a attack) mayNotRun() bool { return a.Must == "not_allow_by_default" && !a.NeedsCatalog }

// harmlessButNotAllowed lists every harmless statement of the corpus that is no
// safe read, with the reason.
var harmlessButNotAllowed = map[string]string{
	"C136": "txid_current assigns a transaction id, which a reader's transaction must not",
	"E230": "SET changes the session, which is shared; a time zone too changes what later texts mean",
}

// hiddenCode lists the statements whose text shows no harm: a view and an
// overload of a built-in function write behind it. The read fence holds them.
var hiddenCode = map[string]string{
	"B075": "the view calls a function that writes",
	"D163": "public.upper(varchar) fits better than the built-in",
}

// protectedButNotAllowed lists the reads of protected data that no column
// policy has to decide about, because they are no safe reads already.
var protectedButNotAllowed = map[string]string{
	"H350": "pg_sleep",
	"H361": "pg_largeobject is a secret catalogue",
	"H363": "pg_stats shows values of columns",
}

// refusedByTheServer lists what the gate allows and PostgreSQL has no meaning for.
var refusedByTheServer = map[string]string{
	"D166": "db_query_failed", // there is no column "now"
}

// noMatchingRule is a policy that leaves everything to the default; a policy
// without any rule is not valid.
const noMatchingRule = `
schema: gate.policy/v1
name: no-matching-rule
version: 1.0.0
facts: facts/v1
rules:
  - id: elsewhere
    decision: BLOCK
    reason_code: elsewhere
    match: { tables_written: [nowhere.nothing] }
`

// attackedTables is what the attacks aim at: tables, and code of the kind that
// a text does not show. "lab" is the name that the corpus has for the database.
const attackedTables = `
CREATE TABLE users (id bigint PRIMARY KEY, org_id bigint NOT NULL, email text NOT NULL, ssn text NOT NULL);
CREATE TABLE "users " (id bigint);
CREATE TABLE staging (id bigint, email text);
CREATE TABLE audit_sink (note text);
CREATE TABLE dtab (id bigint, made timestamptz DEFAULT now());
CREATE SEQUENCE seq1;
INSERT INTO users SELECT n, n % 2, 'user' || n || '@example.com', to_char(n, 'FM000000000') FROM generate_series(1, 9) AS n;
INSERT INTO staging SELECT n, 'staged' FROM generate_series(1, 9) AS n;
INSERT INTO audit_sink VALUES ('begin');
CREATE FUNCTION purge() RETURNS int LANGUAGE plpgsql VOLATILE AS 'BEGIN DELETE FROM staging; RETURN 1; END';
CREATE FUNCTION liar() RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN DELETE FROM staging; RETURN 1; END';
CREATE FUNCTION secdef_write() RETURNS int LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN DELETE FROM staging; RETURN 1; END';
CREATE FUNCTION "Now"() RETURNS int LANGUAGE plpgsql AS 'BEGIN DELETE FROM staging; RETURN 1; END';
CREATE FUNCTION upper(varchar) RETURNS text LANGUAGE plpgsql AS 'BEGIN DELETE FROM staging; RETURN $1; END';
CREATE FUNCTION evil_equal(int, int) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN DELETE FROM staging; RETURN true; END';
CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = evil_equal);
CREATE FUNCTION evil_step(int, bigint) RETURNS int LANGUAGE plpgsql AS 'BEGIN DELETE FROM staging; RETURN 1; END';
CREATE AGGREGATE evil_agg(bigint) (SFUNC = evil_step, STYPE = int, INITCOND = '0');
CREATE TYPE mytype AS (a int);
CREATE FUNCTION evil_cast(mytype) RETURNS int LANGUAGE plpgsql AS 'BEGIN DELETE FROM staging; RETURN 1; END';
CREATE CAST (mytype AS int) WITH FUNCTION evil_cast(mytype);
CREATE FUNCTION evil_check(text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN DELETE FROM staging; RETURN true; END';
CREATE DOMAIN evil_dom AS text CHECK (evil_check(VALUE));
CREATE VIEW v_evil AS SELECT id, purge() AS p FROM users`

// printOfTheServer is one text that differs when a row, an object, a right, a
// setting, a sequence, a lock or an open transaction does.
const printOfTheServer = `
SELECT concat_ws(' ',
 (SELECT md5(string_agg(x::text, ',' ORDER BY x::text)) FROM (
   SELECT u::text FROM users u UNION ALL SELECT s::text FROM staging s UNION ALL SELECT a::text FROM audit_sink a UNION ALL SELECT d::text FROM dtab d) x),
 (SELECT last_value::text || is_called FROM seq1),
 (SELECT md5(string_agg(concat_ws(',', oid, relname, relnamespace, relowner, relfilenode, relkind, relhasrules, relhastriggers, relrowsecurity, relacl, reloptions), ';' ORDER BY oid)) FROM pg_class),
 (SELECT md5(string_agg(concat_ws(',', attrelid, attname, atttypid, attnotnull, attacl), ';' ORDER BY attrelid, attnum)) FROM pg_attribute WHERE attrelid >= 16384),
 (SELECT md5(string_agg(concat_ws(',', oid, rolname, rolsuper, rolcreaterole, rolpassword), ';' ORDER BY oid)) FROM pg_authid),
 (SELECT md5(string_agg(concat_ws(',', setdatabase, setrole, setconfig), ';' ORDER BY setdatabase, setrole)) FROM pg_db_role_setting),
 (SELECT md5(string_agg(concat_ws(',', nspname, nspowner, nspacl), ';' ORDER BY oid)) FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%temp%'),
 (SELECT md5(string_agg(datname, ',' ORDER BY oid)) FROM pg_database),
 (SELECT md5(string_agg(tgname::text || tgenabled::text, ',' ORDER BY oid)) FROM pg_trigger),
 (SELECT md5(string_agg(concat_ws(',', name, setting), ';' ORDER BY name)) FROM pg_file_settings),
 (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_operator), (SELECT count(*) FROM pg_type), (SELECT count(*) FROM pg_cast),
 (SELECT count(*) FROM pg_rewrite), (SELECT count(*) FROM pg_event_trigger), (SELECT count(*) FROM pg_extension), (SELECT count(*) FROM pg_language),
 (SELECT count(*) FROM pg_foreign_server), (SELECT count(*) FROM pg_subscription), (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_tablespace),
 (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_largeobject_metadata), (SELECT count(*) FROM pg_prepared_xacts),
 (SELECT count(*) FROM pg_default_acl), (SELECT count(*) FROM pg_statistic_ext), (SELECT count(*) FROM pg_transform), (SELECT count(*) FROM pg_am),
 (SELECT count(*) FROM pg_seclabel), (SELECT count(*) FROM pg_policy), (SELECT count(*) FROM pg_collation), (SELECT count(*) FROM pg_description),
 (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
 (SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'))`

// sharedSettings are asked through the gate, on its own connections: whoever
// comes next must find them as they were.
var sharedSettings = []string{"search_path", "standard_conforming_strings", "client_encoding", "role", "session_authorization", "session_replication_role",
	"row_security", "timezone", "application_name", "statement_timeout", "transaction_read_only", "default_transaction_read_only", "lock_timeout"}

// An attackedGate is a gate in front of a server of its own that writes down
// every statement it gets.
type attackedGate struct {
	*testGate
	cluster *postgres.Cluster
}

func startAttacked(t *testing.T, writePolicy func(dir string), extra ...string) attackedGate {
	t.Helper()
	cluster := postgres.ClusterForTest(t, map[string]string{"log_statement": "all", "wal_level": "logical", "max_prepared_transactions": "5"})
	require.NoError(t, cluster.CreateDatabase(t.Context(), "lab"))
	d := gateDir{path: t.TempDir(), database: cluster.URL("lab")}
	writePolicy(d.file("policies"))
	d.execute(t, attackedTables)
	return attackedGate{startGate(t, d, append(extra, "GATE_DB_POOL_MAX=1")...), cluster}
}

func (g attackedGate) serverLog(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.cluster.Dir, "server.log"))
	require.NoError(t, err)
	return string(text)
}

// reached tells whether the server got this text, alone or as part of another.
func reached(serverLog, sql string) bool {
	return strings.Contains(serverLog, strings.ReplaceAll(sql, "\n", "\n\t"))
}

func (g attackedGate) settings(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range sharedSettings {
		r := g.query(t, ask("SHOW "+name))
		require.Equal(t, http.StatusOK, r.status, "%s: %s", name, r.body)
		all[name] = string(mustField(t, r, "rows"))
	}
	return all
}

// decided is what became of an attack: a decision, or the code of a refusal.
func decided(t *testing.T, r reply) string {
	t.Helper()
	if code := r.text(t, "error_code"); code != "" {
		return code
	}
	return r.text(t, "decision")
}

// attackLive sends every attack in preview, and live too: that is harmless,
// because a preview that says ALLOW where it must not ends the test before. It
// gives what was decided about each.
func (g attackedGate) attackLive(t *testing.T, all []attack) map[string]string {
	t.Helper()
	outcome := map[string]string{}
	before := g.value(t, printOfTheServer)
	for some := range slices.Chunk(all, attacksPerPrint) {
		for _, a := range some {
			outcome[a.ID] = g.attackOnce(t, a)
		}
		require.Equal(t, before, g.value(t, printOfTheServer), "one of these changed something: %v", some)
	}
	return outcome
}

// attacksPerPrint is how many attacks share one look at the server.
const attacksPerPrint = 10

func (g attackedGate) attackOnce(t *testing.T, a attack) string {
	t.Helper()
	outcome := decided(t, g.query(t, ask(a.SQL), "mode=preview"))
	if a.mayNotRun() {
		require.NotEqual(t, "ALLOW", outcome, "%s: %s", a.ID, a.SQL)
	}
	live := g.liveAttack(t, a)
	switch {
	case live.text(t, "reason_code") == "read_fence_violation":
		require.Contains(t, hiddenCode, a.ID, a.SQL)
	case outcome == "ALLOW":
		require.Equal(t, refusedByTheServer[a.ID], live.text(t, "error_code"), "%s: %s: %s", a.ID, a.SQL, live.body)
	default:
		require.Equal(t, outcome, decided(t, live), "%s: preview and live decide the same: %s", a.ID, a.SQL)
	}
	return outcome
}

// liveAttack sends an attack under a request id that names it.
func (g attackedGate) liveAttack(t *testing.T, a attack) reply {
	t.Helper()
	body, err := json.Marshal(ask(a.SQL))
	require.NoError(t, err)
	return g.do(t, http.MethodPost, "/query", body, "X-Request-Id: attack-"+a.ID)
}

// requireEvidence wants the decision or the refusal of every attack in the log,
// and a dispatch only of what was allowed.
func (g attackedGate) requireEvidence(t *testing.T, all []attack, outcome map[string]string) {
	t.Helper()
	g.end(t)
	of := map[string][]event.Type{}
	for _, e := range g.events(t) {
		of[e.Context.RequestID] = append(of[e.Context.RequestID], e.Type)
	}
	for _, a := range all {
		found := of["attack-"+a.ID]
		switch outcome[a.ID] {
		case "ALLOW":
			require.Contains(t, found, event.TypeExecutionDispatched, a.ID)
		case "BLOCK", "REQUIRE_APPROVAL":
			require.Contains(t, found, event.TypeDecisionRecorded, a.ID)
			require.NotContains(t, found, event.TypeExecutionDispatched, a.ID)
		default:
			require.Equal(t, []event.Type{event.TypeQueryRejected}, found, a.ID)
		}
	}
}

// requireUnseen wants none of the statements that were not allowed in the
// server's own log (spec/gate.md part 1: a BLOCK never reaches the database).
func (g attackedGate) requireUnseen(t *testing.T, all []attack, outcome map[string]string) {
	t.Helper()
	serverLog, seen := g.serverLog(t), 0
	for _, a := range all {
		got := reached(serverLog, a.SQL)
		if got {
			seen++
		}
		require.False(t, got && outcome[a.ID] != "ALLOW", "%s (%s) reached the server: %s", a.ID, outcome[a.ID], a.SQL)
	}
	require.Greater(t, seen, 20, "what was allowed is in the log, so this is the place to look")
}

func TestAttacksWithoutAMatchingRule(t *testing.T) {
	g := startAttacked(t, func(dir string) {
		require.NoError(t, policyfolder.Create(dir, policyfolder.DefaultManifest, []byte(noMatchingRule)))
	})
	all := attackCorpus(t)
	settings := g.settings(t)
	outcome := g.attackLive(t, all)
	require.Equal(t, settings, g.settings(t))
	for _, a := range all {
		var notAllowed bool
		switch a.Must {
		case "not_allow_by_default":
			_, hidden := hiddenCode[a.ID]
			notAllowed = !hidden
		case "may_allow":
			_, notAllowed = harmlessButNotAllowed[a.ID]
		case "column_policy":
			_, notAllowed = protectedButNotAllowed[a.ID]
		default:
			t.Fatalf("%s: unknown expectation %q", a.ID, a.Must)
		}
		require.Equal(t, notAllowed, outcome[a.ID] != "ALLOW", "%s: %s: %s", a.ID, outcome[a.ID], a.SQL)
	}
	g.requireUnseen(t, all, outcome)
	g.requireEvidence(t, all, outcome)
}

// heldForApproval are the attacks that the starting policy puts before a
// person: column "start" of design/classification.md part 5. All others that
// are no safe reads it blocks, or the gate refuses them.
var heldForApproval = map[string]string{
	"B028": "an INSERT in a WITH is an INSERT",
	"B040": "SELECT INTO makes a table",
	"B041": "SELECT INTO makes a table",
	"B043": "a temporary table is a table",
	"B050": "MERGE by a condition that leaves rows out",
	"B053": "INSERT",
	"B058": "IS NOT NULL is a condition; that it holds for every row is in the data, and max_rows is the answer to it",
	"B063": "INSERT, whose RETURNING reads another table: the person sees it",
	"E235": "NOTIFY",
	"F253": "a view",
	"F255": "ALTER TABLE",
	"F256": "ALTER TABLE",
	"F258": "ALTER TABLE",
	"F260": "ALTER TABLE",
	"F261": "ALTER TABLE",
	"F263": "ALTER TABLE",
	"F265": "an index",
	"F266": "an index",
	"F286": "GRANT on a table; the facts do not tell to whom, so PUBLIC is for the person to see",
	"F288": "REVOKE on a table",
	"F293": "statistics",
	"F295": "VACUUM",
	"F296": "VACUUM",
	"F298": "REINDEX",
	"F300": "a materialized view, whose function the person sees",
	"F301": "a table",
}

func TestAttacksUnderTheStartingPolicy(t *testing.T) {
	g := startAttacked(t, func(dir string) {
		init := &app{streams: streams{strings.NewReader(""), io.Discard, os.Stderr}, environ: []string{"GATE_POLICY_DIR=" + dir}}
		require.Zero(t, init.run(t.Context(), []string{"policy", "init"}))
	})
	all := attackCorpus(t)
	settings := g.settings(t)
	outcome := g.attackLive(t, all)
	require.Equal(t, settings, g.settings(t))
	held := map[string]string{}
	for _, a := range all {
		if outcome[a.ID] == "REQUIRE_APPROVAL" {
			held[a.ID] = a.SQL
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(heldForApproval)), slices.Sorted(maps.Keys(held)), "%v", held)
	g.requireUnseen(t, all, outcome)
	g.requireEvidence(t, all, outcome)
}
