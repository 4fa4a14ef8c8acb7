package main

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// cataloguePolicy guards a table, and knows no users' functions.
const cataloguePolicy = `schema: gate.policy/v1
name: guarded
version: 1.0.0
facts: facts/v1
rules:
  - id: guarded
    decision: BLOCK
    reason_code: guarded
    match: { tables_read: [public.salaries] }
  - id: guarded-writes
    decision: BLOCK
    reason_code: guarded
    match: { tables_written: [public.salaries] }
  - id: plain
    decision: ALLOW
    reason_code: plain
    match: { query_types_only: [SELECT, INSERT, UPDATE, DELETE], risk_signals_only: [] }
  - id: definitions
    decision: ALLOW
    reason_code: definitions
    match: { query_types_only: [CREATE, ALTER, SELECT] }
  - id: firing
    decision: ALLOW
    reason_code: firing
    match: { query_types_only: [INSERT], tables_written_only: [public.firing] }
`

const catalogueTables = `
CREATE TABLE people (id int PRIMARY KEY, name text);
CREATE TABLE salaries (person int REFERENCES people ON DELETE CASCADE, amount int);
CREATE VIEW names AS SELECT id, name FROM people;
CREATE VIEW earnings AS SELECT p.name, s.amount FROM people AS p JOIN salaries AS s ON s.person = p.id;
CREATE TABLE visits (id int PRIMARY KEY, note text);
CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
INSERT INTO people VALUES (1, 'a'), (2, 'b');
INSERT INTO salaries VALUES (1, 10)`

// What stands in the database behind the names of a statement is decided upon where the
// catalogue is read, over HTTP and the wire, and is in the evidence; without it a statement
// is what its text says.
func TestWhatStandsBehindNamesIsDecidedUpon(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(cataloguePolicy))
	d.execute(t, catalogueTables)
	decided := func(g *testGate, sql string) string {
		t.Helper()
		r := g.query(t, ask(sql))
		if r.status == http.StatusOK {
			return "runs"
		}
		return fmt.Sprint(r.status, " ", r.json(t)["reason_code"])
	}
	g := startGate(t, d)
	require.Equal(t, "runs", decided(g, "SELECT * FROM earnings"))
	require.Empty(t, g.query(t, ask("SELECT * FROM earnings")).json(t)["classification"].(map[string]any)["engine"].(map[string]any)["catalog"])
	g.end(t)

	g = startGate(t, d, "GATE_CATALOG_REFRESH_SECONDS=3600", "GATE_PGWIRE_ENABLED=true", "GATE_PGWIRE_LAB_MODE=true", "GATE_PGWIRE_LISTEN_ADDR=127.0.0.1:0")
	require.Equal(t, "runs", decided(g, "SELECT * FROM names"))
	require.Equal(t, "403 guarded", decided(g, "SELECT * FROM earnings"))
	require.Equal(t, "403 guarded", decided(g, "SELECT e.name FROM (SELECT * FROM earnings) AS e"))
	require.Equal(t, "403 guarded", decided(g, "DELETE FROM people WHERE id = 1"))
	require.Equal(t, "runs", decided(g, "UPDATE people SET name = 'c' WHERE id = 2"))
	require.Equal(t, "runs", decided(g, "INSERT INTO visits VALUES (1, 'x')"))
	require.Equal(t, "1", g.value(t, "SELECT count(*) FROM salaries"))

	c := g.query(t, ask("SELECT * FROM earnings")).json(t)["classification"].(map[string]any)
	require.Equal(t, []any{"public.earnings", "public.people", "public.salaries"}, c["tables_read"])
	require.Equal(t, "1.1", c["classification_version"])
	first := c["engine"].(map[string]any)["catalog"]
	require.Len(t, first, 64)

	require.Equal(t, []any{"public.earnings reads public.people, public.salaries"}, g.previewed(t, "SELECT * FROM earnings")["behind"])
	require.NotContains(t, g.previewed(t, "SELECT * FROM people"), "behind")
	dry := g.operate(t, "/policy/dry-run", map[string]any{"sql": "SELECT * FROM earnings"}).json(t)
	require.Equal(t, []any{"public.earnings reads public.people, public.salaries"}, dry["behind"])
	require.Equal(t, "BLOCK", dry["decision"])
	dry = g.operate(t, "/policy/dry-run", map[string]any{"sql": "SELECT * FROM people"}).json(t)
	require.NotContains(t, dry, "behind")
	code, out, errs := d.command(t, "policy", "dry-run", "--catalog", "--sql", "SELECT * FROM earnings")
	require.Zero(t, code, errs)
	require.Contains(t, out, "BLOCK guarded")
	require.Contains(t, out, "  public.earnings reads public.people, public.salaries\n")
	code, out, errs = d.command(t, "policy", "dry-run", "--sql", "SELECT * FROM earnings")
	require.Zero(t, code, errs)
	require.Contains(t, out, "ALLOW plain", "by its text alone")

	conn := g.connect(t)
	_, err := conn.Exec(t.Context(), "SELECT * FROM earnings").ReadAll()
	require.ErrorContains(t, err, "A rule of the policy blocks this statement")
	_, err = conn.Exec(t.Context(), "SELECT * FROM names").ReadAll()
	require.NoError(t, err)

	// A change that the gate itself carries out is known to the next statement.
	require.Equal(t, "403 guarded", decided(g, "CREATE VIEW mine AS SELECT * FROM earnings"))
	require.Equal(t, "runs", decided(g, "ALTER VIEW earnings RENAME TO wages"))
	require.Equal(t, "403 guarded", decided(g, "SELECT * FROM wages"))
	d.execute(t, "CREATE TRIGGER counted BEFORE INSERT ON visits FOR EACH ROW EXECUTE FUNCTION counted()")
	require.Equal(t, "runs", decided(g, "ALTER VIEW wages RENAME TO earned"))
	require.Equal(t, "403 default_deny", decided(g, "INSERT INTO visits VALUES (2, 'x')"))
	require.NotEqual(t, first, g.query(t, ask("SELECT * FROM names")).json(t)["classification"].(map[string]any)["engine"].(map[string]any)["catalog"])
	require.Equal(t, "1", g.value(t, "SELECT count(*) FROM visits"))

	require.True(t, slices.ContainsFunc(g.eventsOf(t, event.TypeDecisionRecorded), func(e map[string]any) bool {
		functions, _ := e["payload"].(map[string]any)["facts"].(map[string]any)["functions"].([]any)
		return slices.Contains(functions, any("public.counted"))
	}), "the facts that decided are in the log")
}

// A change that somebody else makes is known once what is known is old.
func TestTheCatalogueIsReadAgain(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(cataloguePolicy))
	d.execute(t, catalogueTables)
	g := startGate(t, d, "GATE_CATALOG_REFRESH_SECONDS=1")
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT * FROM names")).status)
	d.execute(t, "CREATE OR REPLACE VIEW names AS SELECT id, name FROM people WHERE id IN (SELECT person FROM salaries)")
	require.Eventually(t, func() bool { return g.query(t, ask("SELECT * FROM names")).status == http.StatusForbidden }, startPatience, 50*time.Millisecond)
}

// A trigger that comes and goes under a running gate never fires for a statement that was
// judged without it, over HTTP, the wire and its blocks. CATALOG_CHANGES is how often it does.
func TestNoStatementRunsThatWasJudgedUnderAnotherSchema(t *testing.T) {
	t.Parallel()
	changes, err := strconv.Atoi(cmp.Or(os.Getenv("CATALOG_CHANGES"), "40"))
	require.NoError(t, err)
	d := newGateDir(t, []byte(cataloguePolicy))
	d.execute(t, catalogueTables+`; CREATE TABLE fired (at timestamptz DEFAULT now());
		CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO fired DEFAULT VALUES; RETURN NEW; END'`)
	g := startGate(t, d, "GATE_CATALOG_REFRESH_SECONDS=1", "GATE_PGWIRE_ENABLED=true", "GATE_PGWIRE_LAB_MODE=true", "GATE_PGWIRE_LISTEN_ADDR=127.0.0.1:0",
		"GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1000000", "GATE_RATE_LIMIT_BURST=100000")
	var ran, again, blocked atomic.Int64
	var id atomic.Int64
	count := func(state, what string) {
		switch state {
		case "":
			ran.Add(1)
		case "40001":
			again.Add(1)
		case "42501":
			blocked.Add(1)
		default:
			assert.Fail(t, "a statement failed", "%s: %s", state, what)
		}
	}
	over := make(chan struct{})
	var clients sync.WaitGroup
	each := func(send func() (state, what string)) {
		clients.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					count(send())
				}
			}
		})
	}
	insert := func() string { return fmt.Sprintf("INSERT INTO visits VALUES (%d, 'x')", id.Add(1)) }
	each(func() (string, string) {
		r, err := g.tryQuery(ask(insert()))
		if !assert.NoError(t, err) {
			return "", ""
		}
		body := r.json(t)
		details, _ := body["details"].(map[string]any)
		switch {
		case r.status == http.StatusOK:
			return "", ""
		case body["reason_code"] == "default_deny":
			return "42501", ""
		}
		return fmt.Sprint(details["sqlstate"]), fmt.Sprint(body)
	})
	for _, begin := range []string{"", "BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"} {
		conn := g.connect(t)
		each(func() (string, string) {
			texts := []string{insert()}
			if begin != "" {
				texts = []string{begin, insert(), insert(), "COMMIT"}
			}
			for _, text := range texts {
				if _, err := conn.Exec(t.Context(), text).ReadAll(); err != nil {
					if begin != "" {
						_, _ = conn.Exec(t.Context(), "ROLLBACK").ReadAll()
					}
					var refused *pgconn.PgError
					if !errors.As(err, &refused) {
						return "lost", err.Error()
					}
					return refused.Code, err.Error()
				}
			}
			return "", ""
		})
	}
	begun := time.Now()
	for n := 0; n < changes || (ran.Load() == 0 || again.Load() == 0 || blocked.Load() == 0) && time.Since(begun) < startPatience; n++ {
		d.execute(t, "CREATE TRIGGER fires BEFORE INSERT ON visits FOR EACH ROW EXECUTE FUNCTION fires()")
		time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
		d.execute(t, "DROP TRIGGER fires ON visits")
		time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
	}
	close(over)
	clients.Wait()
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM fired"))
	t.Logf("%d ran, %d were told to come again, %d were blocked", ran.Load(), again.Load(), blocked.Load())
	require.Positive(t, ran.Load())
	require.Positive(t, again.Load())
	require.Positive(t, blocked.Load())
}

// An approval is for what stood behind the names when it was asked for.
func TestAnApprovalIsForWhatStoodBehindTheNames(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(cataloguePolicy+`  - id: deletes
    decision: REQUIRE_APPROVAL
    reason_code: asked
    match: { query_types_only: [DELETE] }
    approval: { ttl_seconds: 3600 }
`))
	d.execute(t, catalogueTables+`; CREATE TABLE drafts (id int PRIMARY KEY); CREATE VIEW listed AS SELECT id FROM drafts; INSERT INTO drafts VALUES (1);
		CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'; CREATE TRIGGER kept BEFORE DELETE ON drafts FOR EACH ROW EXECUTE FUNCTION kept();
		CREATE TRIGGER kept BEFORE DELETE ON visits FOR EACH ROW EXECUTE FUNCTION kept(); INSERT INTO visits VALUES (1)`)
	g := startGate(t, d, "GATE_CATALOG_REFRESH_SECONDS=1")
	const sql = "DELETE FROM listed WHERE id = 1"
	r := g.query(t, ask(sql))
	require.Equal(t, http.StatusAccepted, r.status, string(r.body))
	id := r.json(t)["approval_id"].(string)
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	use := func(want string) {
		t.Helper()
		for begun := time.Now(); ; time.Sleep(time.Second) { // until the new reading is there
			r := g.query(t, ask(sql).with("approval_id", id))
			said := r.json(t)["error_code"]
			if fmt.Sprint(r.status, said) == want {
				return
			}
			require.Contains(t, []any{"db_query_failed", "approval_mismatch"}, said, string(r.body))
			require.Less(t, time.Since(begun), startPatience)
		}
	}
	d.execute(t, "CREATE OR REPLACE VIEW listed AS SELECT id FROM drafts WHERE id < 100") // of the same table
	use("409approval_mismatch")
	d.execute(t, "CREATE OR REPLACE VIEW listed AS SELECT id FROM visits")
	use("409approval_mismatch")
	require.Equal(t, "1", g.value(t, "SELECT count(*) FROM visits"))
	d.execute(t, "CREATE OR REPLACE VIEW listed AS SELECT id FROM drafts")
	use("200 <nil>")
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM drafts"))
}

// A block is judged by what it has defined itself, which nobody else sees before its COMMIT,
// and by that alone while it stands: a migration in one transaction runs, and what it puts
// behind a name is seen.
func TestABlockIsJudgedByWhatItHasDefined(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(cataloguePolicy))
	d.execute(t, catalogueTables+`; CREATE TABLE watched (id int PRIMARY KEY, note text); CREATE TRIGGER counted BEFORE INSERT ON watched FOR EACH ROW EXECUTE FUNCTION counted();
		CREATE FUNCTION swap() RETURNS int LANGUAGE plpgsql AS 'BEGIN CREATE OR REPLACE VIEW fresh AS SELECT amount AS id FROM salaries; RETURN 1; END';
		CREATE FUNCTION swaps() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM swap(); RETURN NEW; END';
		CREATE TABLE firing (id int); CREATE TRIGGER swaps BEFORE INSERT ON firing FOR EACH ROW EXECUTE FUNCTION swaps()`)
	g := startGate(t, d, "GATE_CATALOG_REFRESH_SECONDS=3600", "GATE_PGWIRE_ENABLED=true", "GATE_PGWIRE_LAB_MODE=true", "GATE_PGWIRE_LISTEN_ADDR=127.0.0.1:0")
	const guarded, unknown = "42501 guarded", "42501 default_deny"
	for name, test := range map[string]struct{ begin, texts, ends string }{
		"what it made is there": {"BEGIN", `CREATE TABLE made (id int PRIMARY KEY, note text); INSERT INTO made VALUES (1, 'a'); ALTER TABLE made ADD COLUMN more int; UPDATE made SET more = 2 WHERE id = 1;
			CREATE VIEW shown AS SELECT id FROM made; SELECT * FROM shown; ALTER TABLE made RENAME TO kept; SELECT more FROM kept; INSERT INTO people VALUES (7, 'g')`, ""},
		"a view of its own":       {"BEGIN", "ALTER VIEW earnings RENAME TO mine; SELECT * FROM mine", guarded},
		"a view of before":        {"BEGIN", "ALTER TABLE visits ADD COLUMN x int; SELECT * FROM earnings", guarded},
		"a trigger of another":    {"BEGIN", "ALTER TABLE visits RENAME TO aside; ALTER TABLE watched RENAME TO visits; INSERT INTO visits VALUES (9, 'x')", unknown},
		"a name that it took":     {"BEGIN", "ALTER VIEW names RENAME TO aside; ALTER VIEW earnings RENAME TO names; SELECT * FROM aside; SELECT * FROM names", guarded},
		"what it gave away":       {"BEGIN", "ALTER VIEW earnings RENAME TO aside; CREATE VIEW earnings AS SELECT id FROM people; SELECT * FROM earnings; SELECT * FROM aside", guarded},
		"undone, and not there":   {"BEGIN", "SAVEPOINT a; ALTER VIEW earnings RENAME TO mine; ROLLBACK TO a; CREATE VIEW mine AS SELECT id FROM people; SELECT * FROM mine", ""},
		"undone, and as before":   {"BEGIN", "SAVEPOINT a; ALTER VIEW names RENAME TO aside; ROLLBACK TO a; SELECT * FROM names", ""},
		"undone, and seen again":  {"BEGIN", "SAVEPOINT a; ALTER VIEW earnings RENAME TO aside; CREATE VIEW earnings AS SELECT id FROM people; SELECT * FROM earnings; ROLLBACK TO a; SELECT * FROM earnings", guarded},
		"released, and kept":      {"BEGIN", "SAVEPOINT a; ALTER VIEW earnings RENAME TO mine; RELEASE a; SELECT * FROM mine", guarded},
		"what a function defined": {"BEGIN", "CREATE VIEW fresh AS SELECT id FROM people; SELECT * FROM fresh; SELECT swap(); SELECT * FROM fresh", guarded},
		"what a trigger defined":  {"BEGIN", "CREATE VIEW fresh AS SELECT id FROM people; SELECT * FROM fresh; INSERT INTO firing VALUES (1); SELECT * FROM fresh", guarded},
		"a snapshot that stays":   {"BEGIN ISOLATION LEVEL REPEATABLE READ", "CREATE TABLE made (id int); SELECT * FROM names; SELECT * FROM earnings", guarded},
		"and what it made there":  {"BEGIN ISOLATION LEVEL SERIALIZABLE", "CREATE TABLE made (id int); INSERT INTO made VALUES (1)", "40001 catalog_changed"},
	} {
		conn := g.connect(t)
		run := func(sql string) string {
			_, err := conn.Exec(t.Context(), sql).ReadAll()
			var refused *pgconn.PgError
			if !errors.As(err, &refused) {
				require.NoError(t, err, "%s: %s", name, sql)
				return ""
			}
			return refused.Code + " " + refused.Message + " " + refused.Detail
		}
		require.Empty(t, run(test.begin))
		texts := strings.Split(test.texts, ";")
		for i, sql := range texts {
			ended := run(strings.TrimSpace(sql))
			if i < len(texts)-1 || test.ends == "" {
				require.Empty(t, ended, "%s: %s", name, sql)
				continue
			}
			state, reason, _ := strings.Cut(test.ends, " ")
			require.Contains(t, ended, state, "%s: %s", name, sql)
			require.Contains(t, ended, reason, "%s: %s", name, sql)
		}
		require.Empty(t, run("ROLLBACK"))
	}

	// What was committed is known to all; what was not, to nobody.
	conn := g.connect(t)
	for _, sql := range []string{"BEGIN", "CREATE TABLE made (id int PRIMARY KEY, note text)", "ALTER VIEW earnings RENAME TO told", "INSERT INTO made VALUES (1, 'a')", "COMMIT"} {
		_, err := conn.Exec(t.Context(), sql).ReadAll()
		require.NoError(t, err, sql)
	}
	require.Equal(t, "1", g.value(t, "SELECT count(*) FROM made"))
	require.Equal(t, http.StatusForbidden, g.query(t, ask("SELECT * FROM told")).status)
	require.Equal(t, http.StatusOK, g.query(t, ask("INSERT INTO made VALUES (2, 'b')")).status)
}
