package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// planTables are plain tables, and one of each kind behind which a function stands
// that runs while PostgreSQL plans. It fails, so that a plan that was asked for
// shows as one that the database refused.
const planTables = `
CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int NOT NULL DEFAULT 7, note text, at timestamptz DEFAULT now(), CHECK (n > 0));
CREATE TABLE child (id serial PRIMARY KEY, plain_id bigint REFERENCES plain ON DELETE CASCADE, doc jsonb);
CREATE INDEX ON plain (lower(note));
INSERT INTO plain (n) SELECT n FROM generate_series(1, 1000) AS n;
ANALYZE plain;
CREATE FUNCTION ran(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN IF current_setting('test.armed', true) IS NULL THEN RAISE 'it ran'; END IF; RETURN $1; END $$;
CREATE FUNCTION ran(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE 'it ran'; END $$;
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'it ran'; END $$;
SET test.armed = 'no';
CREATE TABLE by_check (n int CHECK (ran(n) > 0));
CREATE TABLE by_default (n int DEFAULT ran(1), m int);
CREATE TABLE by_generated (n int, m int GENERATED ALWAYS AS (ran(n)) STORED);
CREATE TABLE by_index (n int);
CREATE INDEX ON by_index (ran(n));
CREATE TABLE by_predicate (n int);
CREATE INDEX ON by_predicate (n) WHERE ran(3) > 0;
CREATE TABLE by_statistics (n int, m int);
CREATE STATISTICS by_statistics_of ON (ran(n)), m FROM by_statistics;
CREATE TABLE by_partition (n int) PARTITION BY LIST (ran(n));
CREATE TABLE below_partition PARTITION OF by_partition DEFAULT PARTITION BY LIST (n);
CREATE TABLE far_below_partition PARTITION OF below_partition DEFAULT;
CREATE TABLE by_children (n int);
CREATE TABLE a_child (CHECK (ran(n) > 0)) INHERITS (by_children);
CREATE TABLE by_rule (n int);
CREATE RULE r AS ON INSERT TO by_rule DO ALSO INSERT INTO plain (n) VALUES (ran(1));
CREATE TABLE by_policy (n int);
ALTER TABLE by_policy ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON by_policy USING (ran(n) > 0);
CREATE VIEW by_view AS SELECT ran(1) AS n;
CREATE DOMAIN positive AS int CHECK (ran(VALUE) > 0);
CREATE TABLE by_domain (n positive);
CREATE TABLE by_trigger (id int PRIMARY KEY);
CREATE TRIGGER t BEFORE INSERT ON by_trigger FOR EACH ROW EXECUTE FUNCTION audit();
CREATE TYPE pair AS (a positive, b text);
CREATE OPERATOR <=> (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq);
CREATE FUNCTION shout(plain) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE 'it ran'; END $$`

func startPlanning(t *testing.T, mode string) *testGate {
	t.Helper()
	d := newGateDir(t, []byte(openPolicy))
	d.execute(t, planTables)
	return startGate(t, d, "GATE_PLAN_ESTIMATES=true", "GATE_MODE="+mode)
}

// previewed is an operator's preview.
func (g *testGate) previewed(t *testing.T, sql string) map[string]any {
	t.Helper()
	body, err := json.Marshal(ask(sql))
	require.NoError(t, err)
	return g.do(t, http.MethodPost, "/query?mode=preview", body, operatorHeader).json(t)
}

func TestAPreviewShowsThePlanOfAPlainStatement(t *testing.T) {
	t.Parallel()
	g := startPlanning(t, "enforce")
	for sql, want := range map[string]struct {
		node  string
		least float64
		most  float64
	}{
		"SELECT * FROM plain WHERE n > 0":                                                               {"Seq Scan", 900, 1000},
		"SELECT note FROM plain WHERE id = 7":                                                           {"", 1, 1},
		"UPDATE plain SET note = 'x' WHERE n <= 500":                                                    {"Update", 400, 600},
		"DELETE FROM plain":                                                                             {"Delete", 1000, 1000},
		"INSERT INTO child (plain_id, doc) VALUES (1, '{}'), (2, NULL)":                                 {"Insert", 2, 2},
		"INSERT INTO by_trigger VALUES (1)":                                                             {"Insert", 1, 1},
		"MERGE INTO plain p USING child c ON p.id = c.plain_id WHEN MATCHED THEN DELETE":                {"Merge", 0, 10_000},
		"DELETE FROM plain WHERE id > (SELECT min(id) FROM child)":                                      {"Delete", 200, 1000}, // of whose parts the subquery comes first
		"DELETE FROM plain WHERE EXISTS (SELECT FROM child)":                                            {"Delete", 1000, 1000},
		"UPDATE plain SET n = (SELECT max(n) FROM plain) WHERE n <= 500":                                {"Update", 400, 600},
		"INSERT INTO by_trigger SELECT n FROM plain WHERE n > (SELECT 0 FROM child)":                    {"Insert", 200, 1000},
		"WITH few AS MATERIALIZED (SELECT 1 AS id) DELETE FROM plain USING few WHERE plain.id > few.id": {"Delete", 200, 1000},
		"DELETE FROM plain RETURNING (SELECT count(*) FROM child)":                                      {"Delete", 1000, 1000},
		`SELECT "n" FROM public.plain AS "p" ORDER BY id DESC LIMIT 5`:                                  {"Limit", 5, 5},
	} {
		r := g.previewed(t, sql)
		plan, ok := r["plan"].(map[string]any)
		require.True(t, ok, "%s: %v", sql, r["plan_omitted"])
		if want.node != "" {
			require.Equal(t, want.node, plan["node"], sql)
		}
		require.GreaterOrEqual(t, plan["rows"], want.least, sql)
		require.LessOrEqual(t, plan["rows"], want.most, sql)
		require.NotContains(t, r, "plan_omitted")
	}
	require.Equal(t, "1000", g.value(t, "SELECT count(*) FROM plain WHERE note IS NULL"), "nothing was executed")
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM child"))
	require.Equal(t, 0.0, g.get(t, "/runtime/stats").json(t)["pool"].(map[string]any)["in_use"])

	r := g.query(t, ask("DELETE FROM plain WHERE n < 100"))
	require.Equal(t, http.StatusAccepted, r.status, "%s", r.body)
	impact := g.do(t, http.MethodGet, "/approvals/"+r.text(t, "approval_id"), nil, operatorHeader).json(t)["impact"].(map[string]any)
	require.Equal(t, "Delete", impact["node"])
	require.InDelta(t, 99, impact["rows"], 30)
}

// An approval says which tables a write reaches, with those that foreign keys and
// triggers add, also where no plan may be asked for.
func TestAnApprovalSaysWhatAWriteReaches(t *testing.T) {
	t.Parallel()
	g := startPlanning(t, "approval_first")
	g.execute(t, `CREATE TABLE noted (child_id int DEFAULT 7 REFERENCES child ON DELETE SET NULL);
		CREATE TABLE parted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
		CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
		CREATE TABLE parted_items (parted_id int REFERENCES parted ON DELETE CASCADE ON UPDATE CASCADE) PARTITION BY RANGE (parted_id);
		CREATE TABLE parted_items_1 PARTITION OF parted_items DEFAULT;
		CREATE TRIGGER above AFTER DELETE ON parted FOR EACH ROW EXECUTE FUNCTION audit();
		CREATE TRIGGER own AFTER DELETE ON parted_1 FOR EACH ROW EXECUTE FUNCTION audit();
		CREATE TRIGGER statement AFTER DELETE ON parted_1 EXECUTE FUNCTION audit();
		CREATE VIEW parted_view AS SELECT id FROM parted;
		CREATE TRIGGER emptied AFTER TRUNCATE ON parted_items_1 EXECUTE FUNCTION audit();
		CREATE TABLE notes (id int PRIMARY KEY, above int REFERENCES notes, parted_id int REFERENCES parted);
		CREATE TABLE made (base int, id int GENERATED ALWAYS AS (base * 2) STORED UNIQUE);
		CREATE TABLE made_items (id int REFERENCES made (id) ON UPDATE CASCADE);
		CREATE TABLE by_list (n positive[]);
		CREATE TABLE ruled (id int);
		CREATE RULE kept AS ON DELETE TO ruled DO ALSO INSERT INTO plain VALUES (1);
		CREATE TABLE older (id int PRIMARY KEY);
		CREATE TABLE younger (PRIMARY KEY (id)) INHERITS (older);
		CREATE TABLE younger_items (id int REFERENCES younger ON DELETE CASCADE);
		CREATE TRIGGER own BEFORE DELETE ON younger FOR EACH ROW EXECUTE FUNCTION audit();
		CREATE TABLE some_columns (id int, n int, m int, g int GENERATED ALWAYS AS (m * 2) STORED);
		CREATE TRIGGER of_n AFTER UPDATE OF n ON some_columns FOR EACH ROW EXECUTE FUNCTION audit();
		CREATE TRIGGER of_n_or_gone AFTER UPDATE OF n OR DELETE ON some_columns FOR EACH ROW EXECUTE FUNCTION audit();
		CREATE TRIGGER of_made AFTER UPDATE OF g ON some_columns FOR EACH ROW EXECUTE FUNCTION audit();
		CREATE TABLE owners (id int PRIMARY KEY);
		CREATE TABLE owned (owner int REFERENCES owners ON DELETE SET NULL, n int);
		CREATE TRIGGER of_other AFTER UPDATE OF n ON owned FOR EACH ROW EXECUTE FUNCTION audit();
		CREATE TRIGGER of_key AFTER UPDATE OF owner ON owned FOR EACH ROW EXECUTE FUNCTION audit();
		CREATE TRIGGER on_replicas AFTER DELETE ON owners FOR EACH ROW EXECUTE FUNCTION audit();
		ALTER TABLE owners ENABLE REPLICA TRIGGER on_replicas;
		CREATE TRIGGER under_when AFTER DELETE ON some_columns FOR EACH ROW WHEN (OLD.n = 1) EXECUTE FUNCTION audit();
		CREATE VIEW shown AS SELECT id FROM some_columns;
		CREATE RULE elsewhere AS ON DELETE TO shown DO INSTEAD DELETE FROM plain;
		CREATE RULE nothing AS ON UPDATE TO shown DO INSTEAD NOTHING;
		CREATE VIEW by_instead AS SELECT id FROM some_columns;
		CREATE TRIGGER instead INSTEAD OF DELETE ON by_instead FOR EACH ROW EXECUTE FUNCTION audit()`)
	reached := func(sql string) string {
		var impact struct {
			Tables []struct {
				Table, How, From string
				Rows             *int64
				Triggers         []string
				Moves            bool
			}
		}
		record := g.do(t, http.MethodGet, "/approvals/"+g.hold(t, ask(sql)), nil, operatorHeader).json(t)
		unmarshal(t, mustJSON(t, record["impact"]), &impact)
		var said []string
		for _, r := range impact.Tables {
			how := r.How
			if r.Moves {
				how += " (moves)"
			}
			said = append(said, fmt.Sprint(r.Table, " ", how, " ", r.From, " ", r.Rows != nil, " ", r.Triggers))
		}
		slices.Sort(said)
		return strings.Join(said, "; ")
	}
	require.Equal(t, "public.child cascade public.plain false []; public.noted set_null public.child false []; public.plain named  true []", reached("DELETE FROM plain WHERE n < 100"))
	require.Equal(t, "public.plain named  true []", reached("UPDATE plain SET note = 'x' WHERE n < 100"), "nothing is deleted")
	require.Equal(t, "public.by_check named  false []", reached("DELETE FROM by_check WHERE n = 1"), "of which no plan may be asked for")
	require.Equal(t, "public.by_trigger named  false [t, which calls public.audit]", reached("INSERT INTO by_trigger VALUES (1)"))
	require.Equal(t, "public.by_trigger named  false []", reached("UPDATE by_trigger SET id = 1 WHERE id = 2"), "which does not fire it")
	for sql, want := range map[string]string{
		"DELETE FROM parted WHERE id = 1":           "public.parted named  false [above, which calls public.audit]; public.parted_1 partition public.parted false [own, which calls public.audit]; public.parted_items cascade public.parted false []",
		"DELETE FROM parted_1 WHERE id = 1":         "public.parted_1 named  false [above, which calls public.audit own, which calls public.audit statement, which calls public.audit]; public.parted_items cascade public.parted_1 false []",
		"UPDATE parted SET id = 2 WHERE id = 1":     "public.parted named (moves)  false [above, which calls public.audit]; public.parted_1 partition (moves) public.parted false [own, which calls public.audit]; public.parted_items key_changed (moves) public.parted false []",
		"UPDATE made SET base = 2 WHERE base = 1":   "public.made named  false []; public.made_items key_changed public.made false []",
		"INSERT INTO by_default (m) VALUES (1)":     "public.by_default named  false [the default of n, which calls public.ran]",
		"UPDATE by_default SET m = 1 WHERE n = 1":   "public.by_default named  false []",
		"INSERT INTO by_check VALUES (1)":           "public.by_check named  false [the check by_check_n_check, which calls public.ran]",
		"UPDATE by_generated SET n = 1 WHERE n = 2": "public.by_generated named  false [the default of m, which calls public.ran]",
		"INSERT INTO by_index VALUES (1)":           "public.by_index named  false [the index by_index_ran_idx, which calls public.ran]",
		"INSERT INTO by_domain VALUES (1)":          "public.by_domain named  false [the domain of n, which calls public.ran]",
		"INSERT INTO by_list VALUES ('{1}')":        "public.by_list named  false [the domain of n, which calls public.ran]",
		"INSERT INTO by_partition VALUES (1)":       "public.by_partition named  false [the partition key, which calls public.ran]",
		"DELETE FROM by_policy WHERE n = 1":         "public.by_policy named  false [the policy p, which calls public.ran]",
		"UPDATE parted SET n = 2 WHERE id = 1":      "public.parted named  false []",
		"DELETE FROM ruled WHERE id = 1":            "public.plain rule public.ruled true []; public.ruled named  false [the rule kept, which has statements of its own]",
		"INSERT INTO ruled VALUES (1)":              "public.ruled named  false []",
		"DELETE FROM parted_view WHERE id = 1":      "public.parted view public.parted_view false [above, which calls public.audit]; public.parted_1 partition public.parted false [own, which calls public.audit]; public.parted_items cascade public.parted false []; public.parted_view named  false []",
		"DELETE FROM older WHERE id = 1":            "public.older named  false []; public.younger child public.older false [own, which calls public.audit]; public.younger_items cascade public.younger false []",
		"UPDATE older SET id = id WHERE id = 10":    "public.older named  false []; public.younger child public.older false []",
		"DELETE FROM owners WHERE id = 1":           "public.owned set_null public.owners false [of_key, which calls public.audit]; public.owners named  false []",
		"INSERT INTO older VALUES (1)":              "public.older named  false []",
		"UPDATE some_columns SET id = 1":            "public.some_columns named  false [of_made, which calls public.audit]",
		"UPDATE some_columns SET n = 1":             "public.some_columns named  false [of_made, which calls public.audit of_n, which calls public.audit of_n_or_gone, which calls public.audit]",
		"DELETE FROM some_columns WHERE id = 1":     "public.some_columns named  false [of_n_or_gone, which calls public.audit under_when (where its WHEN holds), which calls public.audit]",
		"DELETE FROM shown WHERE id = 1":            "public.child cascade public.plain false []; public.noted set_null public.child false []; public.plain rule public.shown true []; public.shown named  false [the rule elsewhere, whose statements run instead]",
		"UPDATE shown SET id = 1":                   "public.shown named  false [the rule nothing, which does nothing instead]",
		"INSERT INTO shown VALUES (1)":              "public.shown named  false []; public.some_columns view public.shown false []",
		"DELETE FROM by_instead WHERE id = 1":       "public.by_instead named  false [instead, which calls public.audit]",
		"UPDATE by_instead SET id = 1":              "public.by_instead named  false []; public.some_columns view public.by_instead false [of_made, which calls public.audit of_n, which calls public.audit of_n_or_gone, which calls public.audit]",
		"UPDATE parted_view SET id = 2":             "public.parted view (moves) public.parted_view false [above, which calls public.audit]; public.parted_1 partition (moves) public.parted false [own, which calls public.audit]; public.parted_items key_changed (moves) public.parted false []; public.parted_view named  false []",
		"TRUNCATE parted CASCADE":                   "public.notes emptied public.parted false []; public.parted named  false []; public.parted_items emptied public.parted false []; public.parted_items_1 partition public.parted_items false [emptied, which calls public.audit]",
		"TRUNCATE parted_1 CASCADE":                 "public.notes emptied public.parted_1 false []; public.parted_1 named  false []; public.parted_items emptied public.parted_1 false []; public.parted_items_1 partition public.parted_items false [emptied, which calls public.audit]",
		"TRUNCATE child, plain":                     "public.child named  false []; public.plain named  true []",
	} {
		require.Equal(t, want, reached(sql), sql)
	}
	g.execute(t, `CREATE TABLE hub (id int PRIMARY KEY);
		DO $$ BEGIN FOR n IN 1 .. 60 LOOP EXECUTE format('CREATE TABLE hub_%s (id int REFERENCES hub ON DELETE CASCADE)', n); END LOOP; END $$;
		CREATE TABLE last_of_hub (id int REFERENCES hub ON DELETE CASCADE);
		CREATE TRIGGER own AFTER DELETE ON last_of_hub FOR EACH ROW EXECUTE FUNCTION audit()`)
	impact := g.do(t, http.MethodGet, "/approvals/"+g.hold(t, ask("DELETE FROM hub WHERE id = 1")), nil, operatorHeader).json(t)["impact"].(map[string]any)
	require.Len(t, impact["tables"], 50)
	require.Equal(t, 12.0, impact["tables_more"], "60 and the last, of which what has triggers comes first")
	require.Contains(t, string(mustJSON(t, impact["tables"])), "own, which calls public.audit")
	for _, table := range []string{"parted", "parted_1"} { // the server does as is said
		g.execute(t, "INSERT INTO parted VALUES (1); INSERT INTO notes VALUES (1, NULL, NULL); INSERT INTO parted_items VALUES (1)")
		g.execute(t, "DROP TRIGGER emptied ON parted_items_1; TRUNCATE "+table+" CASCADE; CREATE TRIGGER emptied AFTER TRUNCATE ON parted_items_1 EXECUTE FUNCTION audit()")
		require.Equal(t, "0 0", g.value(t, "SELECT (SELECT count(*) FROM notes) || ' ' || (SELECT count(*) FROM parted_items)"))
	}
}

// TestAPlanIsNotAskedForWhereSomethingCouldRun goes through every kind of thing
// behind which a user's code runs while a statement is planned.
func TestAPlanIsNotAskedForWhereSomethingCouldRun(t *testing.T) {
	t.Parallel()
	g := startPlanning(t, "shadow")
	const code, kind = "a relation uses code that is not built in", "a relation is no plain table"
	for sql, want := range map[string]string{
		"SELECT * FROM by_check WHERE n = 1":        code,
		"INSERT INTO by_default (m) VALUES (1)":     code,
		"INSERT INTO by_generated (n) VALUES (1)":   code,
		"SELECT * FROM by_index WHERE n = 1":        code,
		"SELECT * FROM by_predicate WHERE n = 1":    code,
		"SELECT * FROM by_statistics WHERE n = 1":   code,
		"SELECT * FROM by_partition WHERE n = 1":    code,
		"SELECT * FROM below_partition":             code,
		"DELETE FROM far_below_partition":           code,
		"SELECT * FROM by_children WHERE n = 1":     code,
		"INSERT INTO by_rule VALUES (1)":            kind,
		"SELECT * FROM by_policy":                   kind,
		"SELECT * FROM by_view":                     kind,
		"SELECT * FROM pg_catalog.pg_tables":        kind,
		"INSERT INTO by_domain VALUES (1)":          "a column has a type that is not built in",
		"SELECT n <=> 1 FROM plain":                 "the statement has the risk signal unknown_function",
		"SELECT plain.shout FROM plain":             "the statement has the risk signal unknown_function",
		`SELECT plain."shout" FROM plain`:           "the statement has the risk signal unknown_function",
		"SELECT '(5,x)'::pair FROM plain":           "the statement has the risk signal unknown_function",
		"SELECT '{5}'::positive[] FROM plain":       "the statement has the risk signal unknown_function",
		"SELECT '(5)'::by_domain FROM plain":        "the statement has the risk signal unknown_function",
		`SELECT U&"\006e" FROM plain`:               "a name in the text is written in an unusual way",
		"SELECT id FROM nowhere":                    "a relation is not there",
		"SELECT ran(1) FROM plain":                  "the statement has the risk signal unknown_function",
		"SELECT pg_sleep(1)":                        "the statement has the risk signal delay_function",
		"SELECT n FROM plain WHERE n = $1":          "the statement has parameters",
		"CREATE TABLE x (n int)":                    "a CREATE has no plan that could be asked for",
		"EXPLAIN SELECT 1":                          "an EXPLAIN has no plan that could be asked for",
		"SELECT n FROM plain WHERE nope = 1":        "the database refused to plan the statement (SQLSTATE 42703)",
		"SELECT pg_input_is_valid('5', 'positive')": "the statement has the risk signal unknown_function",
	} {
		r := g.previewed(t, sql)
		require.Equal(t, []any{want, nil}, pick(r, "plan_omitted", "plan"), sql)
	}
	for _, c := range []struct{ made, dropped, want string }{
		{"CREATE OPERATOR + (LEFTARG = text, RIGHTARG = text, FUNCTION = textcat)", "DROP OPERATOR + (text, text)", "an operator that is not built in bears a name of the text"},
		{"CREATE DOMAIN note AS text CHECK (ran(VALUE) <> '')", "DROP DOMAIN note", "a type that is not built in bears a name of the text"},
		{"CREATE FUNCTION note(plain) RETURNS text LANGUAGE sql AS 'SELECT 1'", "DROP FUNCTION note", "a function that is not built in bears a name of the text"},
		{"CREATE SCHEMA other CREATE TABLE plain (note positive)", "DROP SCHEMA other CASCADE", ""},
		{"CREATE CAST (date AS int) WITHOUT FUNCTION", "DROP CAST (date AS int)", "the database has casts that are not built in"},
		{"SELECT 1", "SELECT 1", ""},
	} {
		g.execute(t, c.made)
		r := g.query(t, ask("SELECT note FROM plain"), "mode=preview")
		require.Equal(t, c.want, r.text(t, "plan_omitted"), c.made)
		g.execute(t, c.dropped)
	}
}

// Without the setting nobody is asked, and nothing is said of it.
func TestPlansAreOffByDefault(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	r := g.query(t, ask("SELECT id FROM orders"), "mode=preview").json(t)
	require.NotContains(t, r, "plan")
	require.NotContains(t, r, "plan_omitted")
	require.Nil(t, g.do(t, http.MethodGet, "/approvals/"+g.hold(t, ask("DELETE FROM orders WHERE id = 3")), nil, operatorHeader).json(t)["impact"])
}

// A database that is away costs a preview its plan and nothing else.
func TestAPreviewNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	d := newErrorDir(t)
	d.database = "postgres://gate:gate@127.0.0.1:1/shop"
	g := startGate(t, d, "GATE_PLAN_ESTIMATES=true")
	r := g.query(t, ask("SELECT id FROM orders"), "mode=preview")
	require.Equal(t, []any{http.StatusOK, "ALLOW", "the database gave no connection in time"}, []any{r.status, r.text(t, "decision"), r.text(t, "plan_omitted")})
}

// The estimate of what waits for an approval is for operators alone, wherever it stands.
// A gate that reads the catalogues has what a write reaches among its facts, too; whoever
// decides is still told which tables the text names, and how the others are reached.
func TestWhatTheCataloguesAddIsNotSaidToBeNamed(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(openPolicy))
	d.execute(t, `CREATE TABLE customers (id int PRIMARY KEY, n int); CREATE TABLE orders (id int PRIMARY KEY, customer int REFERENCES customers ON DELETE CASCADE);
		CREATE TABLE lines (id int PRIMARY KEY, ord int REFERENCES orders ON DELETE CASCADE); INSERT INTO customers SELECT n, n FROM generate_series(1, 100) AS n; ANALYZE customers`)
	g := startGate(t, d, "GATE_PLAN_ESTIMATES=true", "GATE_MODE=approval_first", "GATE_CATALOG_REFRESH_SECONDS=3600")
	named := func(tables any) (list []any) {
		for _, one := range tables.([]any) {
			one := one.(map[string]any)
			list = append(list, fmt.Sprint(one["table"], " ", one["how"]))
		}
		return list
	}
	want := []any{"public.customers named", "public.orders cascade", "public.lines cascade"}
	id := g.hold(t, ask("DELETE FROM customers WHERE n IN (3, 4)"))
	record := g.do(t, http.MethodGet, "/approvals/"+id+"?reach=now", nil, operatorHeader).json(t)
	require.Equal(t, []any{"public.customers", "public.lines", "public.orders"}, record["classification"].(map[string]any)["tables_written"])
	require.ElementsMatch(t, want, named(record["impact"].(map[string]any)["tables"]))
	require.ElementsMatch(t, want, named(record["reached_now"].(map[string]any)["tables"]))
	_, out, _ := g.cli(t, "", "approvals", "show", id)
	require.Regexp(t, `asks to +delete from public\.customers \(the rows that its condition finds\) and, by cascade, from public\.(lines, public\.orders|orders, public\.lines)\n`, out)
	_, out, _ = g.cli(t, "", "approvals", "show", g.hold(t, ask("DELETE FROM customers")))
	require.Contains(t, out, "It changes every row of public.customers, about 100")
}

func TestAnImpactIsForOperators(t *testing.T) {
	t.Parallel()
	g := startPlanning(t, "enforce")
	id := g.hold(t, ask("DELETE FROM plain WHERE n < 100"))
	for _, path := range []string{"/approvals/" + id, "/approvals", "/audit?event_type=approval_created"} {
		for _, headers := range [][]string{nil, {operatorHeader}} {
			said := string(g.do(t, http.MethodGet, path, nil, headers...).body)
			require.Equal(t, headers != nil, strings.Contains(said, `"node"`) || strings.Contains(said, `\"node\"`), "%s: %s", path, said)
		}
	}
	for _, item := range g.withheld(t, event.TypeApprovalCreated) {
		impact, _ := item.whole.Get("impact")
		require.False(t, item.found(t, event.Field{Key: "impact", Value: impact}), "the estimate itself, tried against the hash that is shown")
	}
}

// Whoever may not read a table learns nothing of it by what PostgreSQL expects of a
// statement about it.
func TestWhatThePolicyBlocksIsNotPlanned(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(strings.Replace(openPolicy, "rules:", "rules:\n  - {id: hidden, decision: BLOCK, reason_code: hidden, match: {tables_read: [public.orders], query_types_only: [SELECT]}}", 1)))
	d.execute(t, shopTables)
	for mode, planned := range map[string]bool{"enforce": false, "approval_first": false, "shadow": true} {
		g := startGate(t, d, "GATE_PLAN_ESTIMATES=true", "GATE_MODE="+mode)
		r := g.query(t, ask("SELECT id FROM orders WHERE status = 'paid'"), "mode=preview").json(t)
		require.Equal(t, "BLOCK", r["decision"], "%s: %v", mode, r)
		if planned {
			require.Contains(t, r, "plan", "in shadow it runs")
		} else {
			require.NotContains(t, r, "plan", mode)
			require.Equal(t, "the policy blocks the statement", r["plan_omitted"])
			r = g.query(t, ask("DELETE FROM orders"), "mode=preview").json(t)
			require.Equal(t, "REQUIRE_APPROVAL", r["decision"])
			require.NotContains(t, r, "plan", mode)
			require.Contains(t, r["plan_omitted"], "an operator's preview shows its plan")
		}
		g.end(t)
	}
}
