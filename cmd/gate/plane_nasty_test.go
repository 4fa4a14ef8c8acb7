package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/browser"
)

// nastyTables hold what a statement's text does not show: rows that hang on others, and
// triggers.
const nastyTables = shopTables + `;
CREATE TABLE parents (id bigint PRIMARY KEY, note text);
CREATE TABLE children (id bigint PRIMARY KEY, parent_id bigint NOT NULL REFERENCES parents ON DELETE CASCADE);
CREATE TABLE grandchildren (id bigint PRIMARY KEY, child_id bigint REFERENCES children ON DELETE SET NULL);
INSERT INTO parents VALUES (1, 'the only one');
INSERT INTO children SELECT n, 1 FROM generate_series(1, 5000) AS n;
INSERT INTO grandchildren SELECT n, n FROM generate_series(1, 7000) AS n WHERE n <= 5000;
CREATE TABLE logs (id bigint, line text);
INSERT INTO logs SELECT 1 + n / 90, 'x' FROM generate_series(0, 99) AS n;
CREATE TABLE heaps (id bigint, n int) PARTITION BY LIST (n);
CREATE TABLE heaps_1 PARTITION OF heaps DEFAULT;
INSERT INTO heaps SELECT n, n FROM generate_series(1, 40) AS n;
CREATE TABLE watched (id bigint PRIMARY KEY, n int);
CREATE FUNCTION copy_away() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
CREATE TRIGGER whisper AFTER UPDATE ON watched FOR EACH ROW EXECUTE FUNCTION copy_away();
CREATE TRIGGER other AFTER INSERT ON watched FOR EACH ROW EXECUTE FUNCTION copy_away();
CREATE TABLE hub (id bigint PRIMARY KEY);
DO $$ BEGIN FOR n IN 10..39 LOOP EXECUTE format('CREATE TABLE spoke_%s (id bigint PRIMARY KEY, hub bigint REFERENCES hub ON DELETE CASCADE)', n); END LOOP; END $$;
CREATE TABLE center (id bigint PRIMARY KEY);
INSERT INTO center VALUES (1);
DO $$ BEGIN FOR n IN 10..22 LOOP EXECUTE format('CREATE TABLE arm_%s (id bigint PRIMARY KEY, center bigint REFERENCES center ON DELETE CASCADE); INSERT INTO arm_%s SELECT 1, 1', n, n); END LOOP; END $$;
CREATE TABLE arm_z (id bigint PRIMARY KEY, center bigint REFERENCES center ON DELETE CASCADE);
INSERT INTO arm_z SELECT n, 1 FROM generate_series(1, 30000) AS n;
CREATE TABLE victims (id bigint PRIMARY KEY, n int);
INSERT INTO victims SELECT n, n FROM generate_series(1, 5000) AS n;
CREATE TABLE kept (id bigint PRIMARY KEY);
CREATE VIEW ruled AS SELECT * FROM kept;
CREATE RULE swap AS ON DELETE TO ruled DO INSTEAD DELETE FROM victims;
CREATE TABLE above (id bigint, n int);
CREATE TABLE below () INHERITS (above);
INSERT INTO above SELECT n, n FROM generate_series(1, 10) AS n;
INSERT INTO below SELECT n, n FROM generate_series(1, 199) AS n;
CREATE TABLE filled (id bigint PRIMARY KEY, n int) WITH (autovacuum_enabled = false);
ANALYZE`

// firstScreen says of each text whether it stands whole, without scrolling, above the
// place where one decides; it gives those that do not.
const firstScreen = `((texts) => {
  const bottom = document.querySelector('.decide').getBoundingClientRect().top;
  const wrong = [];
  const plain = (text) => text.replace(/\s+/g, ' ');
  for (const text of texts) {
    const holding = [...document.querySelectorAll('#approval *')].filter((e) => plain(e.innerText ?? '').includes(text));
    const seen = holding.some((e) => {
      const box = e.getBoundingClientRect(), frame = e.closest('pre')?.getBoundingClientRect() ?? { bottom };
      return box.height > 0 && box.top >= 0 && box.bottom <= Math.min(bottom, frame.bottom);
    });
    if (!seen) wrong.push(text + (holding.length ? ': from ' + Math.round(holding.at(-1).getBoundingClientRect().top) + ', above ' + Math.round(bottom) + ' is seen' : ': not there'));
  }
  for (const button of document.querySelectorAll('[data-decision]')) {
    const box = button.getBoundingClientRect();
    if (box.top < 0 || box.bottom > innerHeight) wrong.push('button ' + button.innerText);
  }
  return wrong.join('\n');
})`

// dangersInSight: whatever a statement hides, whoever decides sees it without scrolling,
// on a desk and on a phone.
func dangersInSight(t *testing.T, b *browser.Browser) {
	asking := strings.Replace(openPolicy, "match: { query_types: [DELETE, VACUUM, TRUNCATE] }", "match: { query_types: [DELETE, INSERT, UPDATE, TRUNCATE, SELECT, GRANT, DROP, ALTER], class: [write, ddl, dcl] }", 1)
	d := newGateDir(t, []byte(asking))
	d.execute(t, nastyTables)
	d.execute(t, "INSERT INTO filled SELECT n, 0 FROM generate_series(1, 50000) AS n")
	g := startGate(t, d, "GATE_PLAN_ESTIMATES=true")
	w := openTab(t, b, startTestPlane(t, g.base)).walk()
	w.login()
	many := "WITH old AS (\n  SELECT id FROM customers\n" + "  WHERE name <> 'delete from nothing'\n" + strings.Repeat("    AND email <> 'nobody@example.com'\n", 297) + "), gone AS (\n  DELETE FROM orders\n  WHERE customer_id IN (SELECT id FROM old))\nSELECT count(*) FROM old"
	var list []string
	for n := 10000; n < 10600; n++ {
		list = append(list, strconv.Itoa(n))
	}
	numbers, texts := strings.Join(list, ", "), strings.TrimSuffix(strings.Repeat("'"+strings.Repeat("long ", 20)+"', ", 20), ", ")
	for _, c := range []struct {
		name string
		s    statement
		sees []string
	}{
		{"a delete that cascades", ask("DELETE FROM parents WHERE id = 1"), []string{"asks to delete from public.parents (rows whose id, or other key column, has a given value) and, by cascade, from public.children", "It may fail", "Deletes elsewhere", "Rows of public.children (about 5 000 rows", "on average", "Empties columns elsewhere", "public.grandchildren (about 5 000 rows"}},
		{"a comment hides the condition", ask("DELETE FROM orders -- only the test order:\n  -- WHERE id = 7"), []string{"Has no condition: it touches every row.", "2 comments. Comments do not run", "It will probably fail", "It changes every row of public.orders, about 100, and over 2 nothing is changed."}},
		{"one delete behind 300 lines", ask(many), []string{"delete from public.orders", "DELETE FROM orders", "WHERE customer_id IN (SELECT id FROM old)", "Jump to the rest: all 304 lines", "Writes from inside a WITH clause."}},
		{"an upsert over the whole table", ask("INSERT INTO orders (id, customer_id, status) SELECT id, customer_id, 'void' FROM orders ON CONFLICT (id) DO UPDATE SET status = excluded.status"), []string{"every row", "ON CONFLICT (id) DO UPDATE"}},
		{"letters of another alphabet", ask("UPDATE orders SET status = 'p\u0430id' WHERE id = 1"), []string{"High risk", "mixes Cyrillic and Latin letters", "is not the word it looks like"}},
		{"a trigger that writes elsewhere", ask("UPDATE watched SET n = 1 WHERE id = 1"), []string{"A write of public.watched fires whisper, which calls public.copy_away. It may write elsewhere."}},
		{"a condition that is always true", ask("DELETE FROM orders WHERE id = 1 OR 1 = 1"), []string{"Has a condition that is always true: it touches every row.", "OR 1 = 1"}},
		{"a condition out of sight", ask("DELETE FROM orders WHERE id = 1" + strings.Repeat(" ", 400) + strings.Repeat("\n", 60) + "OR status <> ''"), []string{"A long run of blanks is folded", "OR status <> ''", "asks to delete from public.orders (the rows that its condition finds)"}},
		{"a condition between two long lists", ask("UPDATE orders SET status = 'void' WHERE id IN (" + numbers + ") OR id > (SELECT min(0) FROM customers) OR id IN (" + numbers + ")"), []string{"600 numbers from 10000 to 10599", "OR id > (SELECT min(0) FROM customers) OR id IN ("}},
		{"a condition between two long texts", ask("UPDATE orders SET status = 'void' WHERE id = 7 AND status NOT IN (" + texts + ") OR id > (SELECT min(0) FROM customers) OR status IN (" + texts + ")"), []string{"Left out below: OR ×2, a subquery", "UPDATE orders SET status = 'void' WHERE id = 7"}},
		{"a condition below the edge of its box", ask("UPDATE orders SET status = 'void' WHERE id = 7 AND status NOT IN (" + texts[:1200] + "') OR id > 3"), []string{"Scroll in it for the rest: OR"}},
		{"a key that is none", ask("DELETE FROM logs WHERE id = 1"), []string{"High risk", "More than one row", "PostgreSQL expects 90 rows, though the condition gives one value"}},
		{"a condition that every row meets", ask("DELETE FROM orders WHERE id > 0"), []string{"High risk", "It will probably fail: PostgreSQL expects 100 rows, all of public.orders, and over 2 nothing is changed."}},
		{"a write that reads elsewhere", ask("UPDATE customers SET name = (SELECT string_agg(line, ',') FROM logs) WHERE id = 1"), []string{"asks to update public.customers (rows whose id, or other key column, has a given value), reading public.logs", "FROM logs"}},
		{"a delete that cascades into thirty tables", ask("DELETE FROM hub WHERE id = 1"), []string{"and, by cascade, from public.spoke_10, public.spoke_11, public.spoke_12 and 27 more", "and 27 more that belong to those deleted from public.hub", "DELETE FROM hub WHERE id = 1"}},
		{"one part without a condition", ask("WITH gone AS (DELETE FROM order_items) UPDATE orders SET status = 'void' WHERE id = 1"), []string{"(at least one part touches every row)", "DELETE FROM order_items", "Writes from inside a WITH clause."}},
		{"a function that does anything", ask("SELECT copy_away() FROM orders WHERE id = 1"), []string{"asks to call public.copy_away, which may change anything, and read public.orders", "Calls a function, operator or type that is not built into PostgreSQL; it could do anything."}},
		{"a rule that does something else", ask("DELETE FROM ruled WHERE id = 1"), []string{"High risk", "asks to delete from public.ruled (rows whose id, or other key column, has a given value), where a rule may write public.victims", "A rule may write elsewhere", "Rows of public.victims (about 5 000 rows", "the rule swap, whose statements run instead"}},
		{"a table with others below it", ask("DELETE FROM above WHERE id < 200"), []string{"asks to delete from public.above (the rows that its condition finds), with public.below below it", "Rows of public.below (about 199 rows"}},
		{"the largest of many cascades", ask("DELETE FROM center WHERE id = 1"), []string{"High risk", "and, by cascade, from public.arm_z, ", "It may fail: PostgreSQL expects 1 row, on which about 30 013 more hang by foreign keys", "Rows of public.arm_z (about 30 000 rows"}},
		{"a condition that asks elsewhere first", ask("UPDATE victims SET n = 1 WHERE id > (SELECT min(0) FROM customers)"), []string{"PostgreSQL expects 1 667 rows"}},
		{"a claim with words of the page's", ask("DELETE FROM orders WHERE id = 9").with("actor", "ana” asks to read public.orders; 7 of its shape were approved this week. Formerly “eve"), []string{"High risk", "A claim is written to be misread", "It has quotation marks in it", "more, below"}},
		{"a table that was filled since it was counted", ask("UPDATE filled SET n = 1 WHERE n = 0"), []string{"May be many more", "it counted public.filled before most of its rows were written: about 50 000 rows"}},
		{"a name that is somebody else's", ask("DELETE FROM orders WHERE id = 4").with("actor", "supp\u043ert-agent"), []string{"High risk", "A claim is written to be misread"}},
		{"rows that move to another partition", ask("UPDATE heaps SET n = n + 1 WHERE id IN (7, 8)"), []string{"It may fail: PostgreSQL expects 2 rows. A row that moves to another partition counts twice, and over 2 nothing is changed."}},
		{"a table is emptied, and others with it", ask("TRUNCATE parents CASCADE"), []string{"asks to empty public.parents and what hangs on it: public.children, public.grandchildren", "Empties another table", "Rows of public.children (about 5 000 rows", "go, every one, with those of public.parents"}},
		{"a table is emptied", ask("TRUNCATE orders CASCADE"), []string{"It will fail: The rule lets it change 2 rows at most, and those of a TRUNCATE can't be counted. It needs an approval under a rule without max_rows.", "asks to empty public.orders and what hangs on it", "Drops or empties something for good.", "Cascades", "Nobody can read or write public.orders and what hangs on it while it runs", "TRUNCATE orders CASCADE"}},
		{"rights for everybody", ask("GRANT SELECT, DELETE ON orders TO PUBLIC"), []string{"High risk", "asks to grant select, delete on orders to everybody (public)", "Changes who may do what."}},
		{"a function goes with what hangs on it", ask("DROP FUNCTION copy_away() CASCADE"), []string{"High risk", "asks to drop function copy_away() and what hangs on it", "What that is, is not known here: ask the database first."}},
		{"triggers and foreign keys are off", ask("ALTER TABLE order_items DISABLE TRIGGER ALL"), []string{"High risk", "asks to alter table public.order_items: disable trigger all", "Triggers and foreign keys off: No trigger of public.order_items runs until it is enabled again"}},
		{"rows leave a table", ask("ALTER TABLE heaps DETACH PARTITION heaps_1"), []string{"High risk", "asks to take partition public.heaps_1 out of table public.heaps", "Rows leave the table"}},
	} {
		id := g.hold(t, c.s)
		w.open("/approvals/" + id)
		w.until("document.querySelector('.scripted .decide')")
		for _, screen := range []struct{ width, height int64 }{{1440, 900}, {390, 844}} {
			_, err := chromedp.Call(w.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: screen.width, Height: screen.height, DeviceScaleFactor: 1})
			require.NoError(t, err)
			w.value("scrollTo(0, 0), ''")
			assert.Equal(t, "", w.value(firstScreen+"("+string(mustJSON(t, c.sees))+")"), "%s, %d wide", c.name, screen.width)
			assert.Equal(t, "true", w.value("String([...document.querySelectorAll('.sql pre code')].every(e => parseFloat(getComputedStyle(e).fontSize) >= 15))"), "SQL is large enough to read")
			w.pictureOfScreen("nasty "+c.name, screen.width)
		}
		if strings.Contains(w.value("document.querySelector('.lead').innerText"), "High risk") {
			require.Equal(t, "", w.value("document.querySelector('[data-decision=\"approve\"]').className"), "to approve is not the button that is filled")
		}
		w.see("card " + c.name)
	}
}

// Who decides on the command line is told what the card tells.
func TestTheCommandLineSaysOfAnApprovalWhatItsCardSays(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(strings.Replace(openPolicy, "match: { query_types: [DELETE, VACUUM, TRUNCATE] }", "match: { query_types: [DELETE, UPDATE] }", 1)))
	d.execute(t, nastyTables)
	g := startGate(t, d, "GATE_PLAN_ESTIMATES=true")
	show := func(s statement) string {
		_, out, errs := g.cli(t, "", "approvals", "show", g.hold(t, s))
		require.Empty(t, errs)
		return regexp.MustCompile(" +").ReplaceAllString(out, " ")
	}
	require.Contains(t, show(ask("DELETE FROM logs WHERE id = 1")), "beware More than one row: PostgreSQL expects 90 rows, though the condition gives one value")
	require.NotContains(t, show(ask("DELETE FROM logs WHERE id = 2 AND line = 'y'")), "More than one row")
	require.Contains(t, show(ask("DELETE FROM heaps WHERE id > 0")), "beware It will probably fail: PostgreSQL expects 40 rows, all of public.heaps, and over 2 nothing is changed.\n")
	out := show(ask("DELETE FROM parents WHERE id = 1"))
	for _, said := range []string{"asks to delete from public.parents (rows whose id, or other key column, has a given value) and, by cascade, from public.children\n", "look at Deletes elsewhere: Rows of public.children (about 5 000 rows", "Empties columns elsewhere", "expected PostgreSQL expects"} {
		require.Contains(t, out, said)
	}
	require.NotContains(t, out, "\nbefore ")
	require.Contains(t, out, "\nrisk High risk\n")
	wide := show(ask("DELETE FROM hub WHERE id = 1"))
	require.Contains(t, wide, "and 27 more")
	for n := 10; n < 40; n++ {
		require.Contains(t, wide, fmt.Sprintf("\nbesides public.spoke_%d (", n))
	}
	require.Contains(t, show(ask("WITH gone AS (DELETE FROM order_items WHERE order_id = 1) UPDATE orders SET status = 'void' WHERE id = 1")), "\nexpected None: the statement has the risk signal data_modifying_cte.")
	require.Contains(t, show(ask("UPDATE watched SET n = 1 WHERE id = 1")), "fires whisper, which calls public.copy_away. It may write elsewhere.")
	require.Contains(t, show(ask("UPDATE orders SET status = 'p\u0430id' WHERE id = 1")), "is not the word it looks like")
	require.Contains(t, show(ask("DELETE FROM orders")), "Has no condition: it touches every row.")
	require.Contains(t, show(ask("DELETE FROM orders WHERE id = 4").with("actor", "supp\u043ert-agent")), "beware A claim is written to be misread: ")

	g.resolve(t, g.hold(t, ask("DELETE FROM orders WHERE id = 5")), "approve")
	g.resolve(t, g.hold(t, ask("DELETE FROM orders WHERE id = 6")), "reject")
	g.resolve(t, g.hold(t, ask("DELETE FROM parents WHERE id = 6")), "reject")
	require.Contains(t, show(ask("DELETE FROM orders WHERE id = 7")), "before 1 approved and 1 rejected in the last 7 days")

	g.hold(t, ask("DELETE FROM orders WHERE id = 8").with("actor", strings.Repeat("long ", 50)))
	_, list, _ := g.cli(t, "", "approvals", "list")
	require.Contains(t, list, "DELETE FROM orders WHERE id = 8")
	require.NotContains(t, list, strings.Repeat("long ", 5), "a claim leaves room for the statement")
}

// What can't run under its limit says so before it is approved, by the fact by which it is
// refused afterwards.
func TestWhatCannotBeCountedSaysThatItWillFail(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, []byte(strings.Replace(openPolicy, "match: { query_types: [DELETE, VACUUM, TRUNCATE] }", "match: { class: [write, ddl, read] }", 1)))
	d.execute(t, shopTables)
	g := startGate(t, d)
	for _, c := range []struct {
		sql, what string
		fails     bool
	}{
		{"TRUNCATE order_items", "TRUNCATE", true},
		{"DROP TABLE order_items", "DROP", true},
		{"CREATE INDEX ON orders (status)", "CREATE", true},
		{"CREATE TABLE stolen AS SELECT * FROM customers", "CREATE_TABLE_AS", true},
		{"SELECT * INTO stolen FROM customers", "CREATE_TABLE_AS", true},
		{"DELETE FROM order_items WHERE order_id = 3", "DELETE", false},
		{"SELECT id FROM orders WHERE id = 3", "SELECT", false},
	} {
		s := ask(c.sql)
		id := g.hold(t, s)
		_, out, errs := g.cli(t, "", "approvals", "show", id)
		require.Empty(t, errs)
		require.Equal(t, c.fails, regexp.MustCompile(`beware +It will fail: The rule lets it change 2 rows at most, and those of a `+c.what+` can't be counted`).MatchString(out), "%s", out)
		require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
		ran := g.query(t, s.with("approval_id", id))
		require.Equal(t, c.fails, ran.status != http.StatusOK, "%s: %s", c.sql, ran.body)
	}
}

// What nobody could look at is no ordinary write, and says why: where looking is off, and
// where the database did not answer.
func TestWhatNobodyLookedAtIsNotOrdinary(t *testing.T) {
	t.Parallel()
	for why, start := range map[string]func() *testGate{
		"GATE_PLAN_ESTIMATES is off, or an operator alone is told": func() *testGate { return startShop(t) },
		"the database gave no connection in time": func() *testGate {
			d := newGateDir(t, nil)
			d.database = "postgres://gate:gate@127.0.0.1:1/shop"
			return startGate(t, d, "GATE_PLAN_ESTIMATES=true")
		},
	} {
		g := start()
		id := g.hold(t, ask("DELETE FROM customers WHERE id = 3"))
		g.hold(t, ask("DELETE FROM customers WHERE id = 4"))
		plane := startTestPlane(t, g.base).reader(t)
		card := plane.page(t, "/approvals/"+id)
		require.Contains(t, card, "<strong>Not looked at</strong>: Whether it cascades, or fires triggers, is not known: "+why)
		require.NotContains(t, card, "Ordinary")
		inbox := plane.page(t, "/approvals")
		require.NotContains(t, inbox, "Ordinary")
		require.NotContains(t, inbox, "Approve the selected")
		_, out, errs := g.cli(t, "", "approvals", "show", id)
		require.Empty(t, errs)
		require.Contains(t, out, "Not looked at: Whether it cascades, or fires triggers, is not known: "+why)
		require.NotContains(t, plane.page(t, "/approvals/"+g.hold(t, ask("ALTER TABLE orders ADD COLUMN n int"))), "Not looked at", "which fires none")
	}
}

// What is to be looked at closely says why.
func TestACardSaysWhyItIsToBeLookedAt(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_PLAN_ESTIMATES=true")
	g.execute(t, "ANALYZE")
	plane := startTestPlane(t, g.base).reader(t)
	card := plane.page(t, "/approvals/"+g.hold(t, ask("UPDATE orders SET status = 'paid' WHERE id > 90")))
	require.Contains(t, card, "Look closely: how many rows its condition finds, the text does not say. No risk signal, no cascade and no trigger.")
	require.Contains(t, plane.page(t, "/approvals/"+g.hold(t, ask("DELETE FROM nowhere WHERE id = 1"))), "is not known: the database had no table public.nowhere when it was asked for.")
	g.execute(t, `CREATE FUNCTION sneaky() RETURNS int LANGUAGE sql AS 'DELETE FROM orders WHERE id = 4; SELECT 1';
		CREATE VIEW peeking AS SELECT sneaky() AS n; CREATE TABLE plain (id int, n int DEFAULT sneaky()); ANALYZE`)
	require.Contains(t, plane.page(t, "/approvals/"+g.hold(t, ask("UPDATE orders SET status = 'x' WHERE id IN (SELECT n FROM peeking)"))), "no cascade and no trigger; whether code of users runs behind it is not known, since a relation is no plain table.")
	require.Contains(t, plane.page(t, "/approvals/"+g.hold(t, ask("DELETE FROM orders WHERE nope = 1"))), "It will probably fail</strong>: The database refused to plan the statement (SQLSTATE 42703).")
	card = plane.page(t, "/approvals/"+g.hold(t, ask("DELETE FROM plain WHERE id = 1")))
	require.Contains(t, card, "<dd>None: a relation uses code that is not built in.</dd>")
	require.Contains(t, plane.page(t, "/approvals/"+g.hold(t, ask("COMMENT ON TABLE orders IS 'x'"))), "Look closely: it changes what others find in the database.")
}
