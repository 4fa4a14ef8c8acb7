package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
	"writegate/sqlgate/catalog"
	"writegate/sqlgate/classify"
)

// keptCatalogues gives the snapshots that a log keeps, in their order, and holds every decision
// against it: what decided it is in the log before it.
func keptCatalogues(t testing.TB, d gateDir) (kept []event.CatalogRecorded, uses []event.CatalogUse) {
	t.Helper()
	for _, e := range d.events(t) {
		switch e.Type {
		case event.TypeCatalogRecorded:
			var p event.CatalogRecorded
			require.NoError(t, e.Parse(&p))
			require.False(t, slices.ContainsFunc(kept, func(k event.CatalogRecorded) bool { return k.Hash == p.Hash && k.Part == p.Part }), "each is kept once")
			kept = append(kept, p)
		case event.TypeDecisionRecorded:
			var p event.DecisionRecorded
			require.NoError(t, e.Parse(&p))
			if p.Catalog != nil {
				uses = append(uses, *p.Catalog)
				require.True(t, slices.ContainsFunc(kept, func(k event.CatalogRecorded) bool { return k.Hash == p.Catalog.Hash }), "event %d names what the log does not have", e.Seq)
			}
		}
	}
	return kept, uses
}

// The log has what was read of the catalogues before the first decision by it, once, later ones
// as what is different; and from the log alone the facts behind the names are found again.
func TestTheCatalogueThatDecidedIsInTheLog(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(cataloguePolicy))
	d.execute(t, catalogueTables)
	g := startGate(t, d)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT * FROM earnings")).status)
	g.end(t)
	kept, uses := keptCatalogues(t, d)
	require.Empty(t, kept)
	require.Empty(t, uses)

	settings := []string{"GATE_CATALOG_REFRESH_SECONDS=3600", "GATE_PGWIRE_ENABLED=true", "GATE_PGWIRE_LAB_MODE=true", "GATE_PGWIRE_LISTEN_ADDR=127.0.0.1:0"}
	d.execute(t, `CREATE FUNCTION odd(int, text) RETURNS bool LANGUAGE sql AS 'SELECT true'; CREATE OPERATOR <> (LEFTARG = int, RIGHTARG = text, FUNCTION = odd);
		CREATE FUNCTION public.lower(int) RETURNS text LANGUAGE sql AS 'SELECT ''x''';
		CREATE TRIGGER counted BEFORE UPDATE OF note ON visits FOR EACH ROW EXECUTE FUNCTION counted()`)
	g = startGate(t, d, settings...)
	before := g.head(t)
	g.previewed(t, "SELECT * FROM earnings")
	require.Equal(t, before, g.head(t), "a preview writes nothing")

	for _, sql := range []string{"SELECT * FROM names", "SELECT * FROM earnings", "SELECT 1", "SELECT id FROM people WHERE id <> 1", "SELECT lower(name) FROM people WHERE name = 'a'",
		"DELETE FROM people WHERE id = 1", "UPDATE visits SET note = 'x' WHERE id = 1", "UPDATE visits SET id = 2 WHERE id = 1", "INSERT INTO visits VALUES (1, 'x')", "INSERT INTO salaries VALUES (2, 20)"} {
		g.query(t, ask(sql))
	}
	conn := g.connect(t)
	for _, sql := range []string{"BEGIN", "CREATE TEMPORARY TABLE people (id int PRIMARY KEY)", "UPDATE people SET id = 2 WHERE id = 2", "SELECT * FROM names", "ROLLBACK", "SELECT * FROM names WHERE id = 1"} {
		_, _ = conn.Exec(t.Context(), sql).ReadAll()
	}
	require.Equal(t, http.StatusOK, g.query(t, ask("ALTER VIEW names RENAME TO called")).status)
	g.query(t, ask("SELECT * FROM called"))

	// What is in it is the operators' to see.
	for _, item := range g.withheld(t, event.TypeCatalogRecorded) {
		_, shown := item.open.Get("content")
		require.False(t, shown)
		_, shown = item.whole.Get("content")
		require.True(t, shown)
	}
	require.NotContains(t, string(g.get(t, "/audit?event_type=catalog_recorded").body), `"content":`)
	everything := fmt.Sprintf(`{"start_seq":1,"end_seq":%d,"reason":"a drill"}`, g.head(t))
	r := g.do(t, http.MethodPost, "/audit/evidence", []byte(everything))
	require.Equal(t, http.StatusUnauthorized, r.status, "%.200s", r.body)
	r = g.do(t, http.MethodPost, "/audit/evidence", []byte(everything), operatorTestHeader)
	require.Equal(t, http.StatusOK, r.status)
	report, err := evidence.Verify(context.Background(), bytes.NewReader(r.body), evidence.Options{})
	require.NoError(t, err)
	require.Equal(t, frame.OK, report.Status)
	g.end(t)

	kept, uses = keptCatalogues(t, d)
	require.Len(t, kept, 2)
	require.GreaterOrEqual(t, len(uses), 14)
	require.True(t, slices.ContainsFunc(uses, func(u event.CatalogUse) bool { return u.Wider }), "of the statement that names a temporary table")
	require.True(t, slices.ContainsFunc(uses, func(u event.CatalogUse) bool { return len(u.Operators) > 0 }))
	require.True(t, slices.ContainsFunc(uses, func(u event.CatalogUse) bool { return u.Added == nil }))
	require.Zero(t, kept[0].Base)
	require.Equal(t, kept[0].Hash, kept[1].Base)
	require.Less(t, len(kept[1].Content), len(kept[0].Content)/2)

	g = startGate(t, d, settings...)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT * FROM called")).status)
	g.query(t, ask("ALTER VIEW called RENAME TO names"))
	g.query(t, ask("SELECT * FROM names"))
	g.end(t)
	again, _ := keptCatalogues(t, d)
	require.Len(t, again, 2, "both were known")

	require.NoError(t, os.RemoveAll(g.file("approvals.db")))
	verdict, found := decidedOtherwise(t, d, exitOK)
	require.Empty(t, found)
	require.Equal(t, true, verdict["all_equal"])

	change := func(alter func(*event.DecisionRecorded), snapshot func(*event.CatalogRecorded)) gateDir {
		return rewritten(t, d, func(e *event.Envelope) {
			switch {
			case e.Type == event.TypeDecisionRecorded && alter != nil:
				var p event.DecisionRecorded
				require.NoError(t, e.Parse(&p))
				if p.Catalog != nil {
					alter(&p)
				}
				e.Draft = e.With(p.Fields())
			case e.Type == event.TypeCatalogRecorded && snapshot != nil:
				var p event.CatalogRecorded
				require.NoError(t, e.Parse(&p))
				snapshot(&p)
				e.Draft = e.With(p.Fields())
			}
		})
	}
	reads := func(p *event.DecisionRecorded) bool { return slices.Contains(p.Facts.TablesRead, "public.earnings") }

	// A fact that the catalogue adds is missing, and the decision would be right without it.
	_, found = decidedOtherwise(t, change(func(p *event.DecisionRecorded) {
		if a := p.Catalog.Added; a != nil && reads(p) && slices.Contains(a.TablesRead, "public.people") {
			a.TablesRead = slices.DeleteFunc(a.TablesRead, func(name string) bool { return name == "public.people" })
			p.Facts.TablesRead = slices.DeleteFunc(p.Facts.TablesRead, func(name string) bool { return name == "public.people" })
		}
	}, nil), exitFailed)
	require.Len(t, found, 1)
	require.Contains(t, fmt.Sprint(found[0]["fields"]), "facts.tables_read: recorded [public.earnings public.salaries], by the catalogue [public.earnings public.people public.salaries]")

	// So is one, also of a statement that has more than the catalogue adds.
	_, found = decidedOtherwise(t, change(func(p *event.DecisionRecorded) {
		if a := p.Catalog.Added; a != nil && reads(p) {
			p.Catalog.Wider, a.TablesRead = true, nil
			p.Facts.TablesRead = []string{"public.earnings", "public.salaries"}
		}
	}, nil), exitFailed)
	require.NotEmpty(t, found)

	// What decided is not there, or is something else than its hash says.
	verdict, found = decidedOtherwise(t, change(func(p *event.DecisionRecorded) { p.Catalog.Hash[0]++ }, nil), exitPartial)
	require.Contains(t, found[0]["problem"], "does not hold what was read of the database's catalogues")
	require.EqualValues(t, len(found), verdict["unchecked"])
	_, found = decidedOtherwise(t, change(nil, func(p *event.CatalogRecorded) { p.Content = append([]byte{0}, p.Content[1:]...) }), exitPartial)
	require.NotEmpty(t, found)

	// Another catalogue, whole in itself, would have told something else.
	content, err := catalog.Unpack(kept[0].Content, nil)
	require.NoError(t, err)
	content = bytes.ReplaceAll(content, []byte("public.counted"), []byte("public.harmless"))
	other, err := catalog.Parse(content, func(string) (c classify.Classification, err error) { return c, nil })
	require.NoError(t, err)
	_, found = decidedOtherwise(t, change(func(p *event.DecisionRecorded) {
		if p.Catalog.Hash == kept[0].Hash {
			p.Catalog.Hash = sha256.Sum256(content)
		}
	}, func(p *event.CatalogRecorded) {
		if p.Hash == kept[0].Hash {
			p.Hash, p.Content = other.Sum(), other.Packed()
		}
	}), exitFailed)
	require.Contains(t, fmt.Sprint(found), "public.harmless")
}

// Whatever a statement is, what the record says of its facts is found again; the end of the gate
// holds every decision against that.
func TestWhatTheCatalogueToldOfAnyStatementIsFoundAgain(t *testing.T) {
	t.Parallel()
	statements := vectorCorpus(t)
	for _, a := range attackCorpus(t) {
		statements = append(statements, a.SQL)
	}
	statements = append(statements, "SELECT (o.note).f FROM t AS o", "SELECT (t.x).f, (t.note).g FROM t JOIN u ON u.id = t.id", "SELECT (users.note).f.g FROM users WHERE (users.x).h = 1")
	d := newGateDir(t, []byte(`schema: gate.policy/v1
name: reads
version: 1.0.0
facts: facts/v1
rules:
  - id: none
    decision: BLOCK
    reason_code: none
    match: { query_types: [UPDATE] }
`))
	d.execute(t, catalogueTables+`; CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE FUNCTION odd(int, text) RETURNS bool LANGUAGE sql AS 'SELECT true'; CREATE OPERATOR = (LEFTARG = int, RIGHTARG = text, FUNCTION = odd);
		CREATE FUNCTION public.lower(int) RETURNS text LANGUAGE sql AS 'SELECT $1::text'; CREATE FUNCTION public.now(int) RETURNS text LANGUAGE sql AS 'SELECT $1::text'`)
	for i, name := range []string{"t", "u", "users", "orders", "accounts", "a"} {
		d.execute(t, fmt.Sprintf(`CREATE TABLE of_%[1]s (id int PRIMARY KEY, x int); CREATE TRIGGER fires BEFORE INSERT OR DELETE ON of_%[1]s FOR EACH ROW EXECUTE FUNCTION fires();
			CREATE TABLE below_%[1]s (of int REFERENCES of_%[1]s ON DELETE CASCADE)`, name))
		if i%2 == 0 {
			d.execute(t, fmt.Sprintf("CREATE VIEW %[1]s AS SELECT id, x, lower(x) AS note FROM of_%[1]s", name))
		} else {
			d.execute(t, fmt.Sprintf("ALTER TABLE of_%[1]s RENAME TO %[1]s; ALTER TABLE %[1]s DROP CONSTRAINT of_%[1]s_pkey CASCADE", name))
		}
	}
	g := startGate(t, d, append([]string{"GATE_CATALOG_REFRESH_SECONDS=3600", "GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1000000", "GATE_RATE_LIMIT_BURST=100000"}, patience...)...)
	for _, sql := range statements {
		g.query(t, ask(sql))
	}
	g.end(t)
	_, uses := keptCatalogues(t, d)
	added, wider := 0, 0
	for _, u := range uses {
		if u.Added != nil {
			added++
		}
		if u.Wider {
			wider++
		}
	}
	t.Logf("%d decisions by the catalogue, which added facts to %d; %d have more", len(uses), added, wider)
	require.Greater(t, len(uses), len(statements)/2)
	require.Greater(t, added, 50)
}
