package sqlgate

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog"
	"writegate/eventlog/event"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policyfolder"
)

// typesPolicy allows writes that call nothing but what it names, and asks a
// person about DELETE.
const typesPolicy = `schema: gate.policy/v1
name: types
version: 1.0.0
facts: facts/v1
description: For the tests of types in messages.
rules:
  - id: deletes
    decision: REQUIRE_APPROVAL
    reason_code: delete_needs_approval
    match: { query_types: [DELETE] }
    message: Deleting waits for an approval.
  - id: own-calls
    decision: ALLOW
    reason_code: known_calls
    match: { query_types_only: [INSERT, UPDATE, SELECT], functions_only: [lower, public.mood] }
tests:
  - { name: an insert, sql: "INSERT INTO t VALUES (1)", expect: { decision: ALLOW } }
`

// typesSQL makes types that run code of a user's: the canary writes a file at the
// server and takes a lock that outlives its transaction, as a read may.
const typesSQL = `CREATE FUNCTION canary(int) RETURNS bool LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
 EXECUTE format('COPY (SELECT 1) TO %L', current_setting('data_directory') || '/canary_' || current_database());
 PERFORM pg_catalog.pg_advisory_lock_shared(4711); RETURN true; END $$;
CREATE DOMAIN dom AS int CHECK (canary(VALUE));
CREATE DOMAIN doms AS dom[];
CREATE TYPE comp AS (a dom);
CREATE TYPE span AS RANGE (subtype = dom);
CREATE TYPE mood AS ENUM ('ok', 'bad');
CREATE SCHEMA "Shop";
CREATE DOMAIN "Shop"."Odd ""name""" AS text CHECK (canary(1));
CREATE TABLE u (id int PRIMARY KEY, status int, m mood, c comp, note text);
INSERT INTO u VALUES (1, 0, 'ok', NULL, 'a')`

type typesWorld struct{ *wireWorld }

func newTypesWorld(t *testing.T, set func(*Options)) *typesWorld {
	t.Helper()
	w := &typesWorld{newWireWorld(t, func(o *Options) {
		o.Policies.Dir = filepath.Join(t.TempDir(), "types")
		require.NoError(t, policyfolder.Create(o.Policies.Dir, policyfolder.DefaultManifest, []byte(typesPolicy)))
		if set != nil {
			set(o)
		}
	})}
	postgresExecute(w.wireWorld, typesSQL)
	return w
}

// ran reports whether the canary ran since the last time.
func (w *typesWorld) ran() bool {
	w.t.Helper()
	const file = "current_setting('data_directory') || '/canary_' || current_database()"
	if w.value("SELECT pg_stat_file("+file+", true) IS NULL") == "t" {
		return false
	}
	postgresExecute(w.wireWorld, "DO $$ BEGIN EXECUTE format('COPY (SELECT 1) TO PROGRAM %L', 'cat > /dev/null; rm ' || "+file+"); END $$")
	return true
}

func (w *typesWorld) oid(name string) uint32 {
	w.t.Helper()
	n, err := strconv.ParseUint(w.value("SELECT '"+strings.ReplaceAll(name, "'", "''")+"'::regtype::oid"), 10, 32)
	require.NoError(w.t, err)
	return uint32(n)
}

// decisions are the decisions in the log: run, decision, functions.
func (w *typesWorld) decisions() (list []string) {
	w.t.Helper()
	for _, e := range w.events() {
		if e.Type == event.TypeDecisionRecorded {
			var p event.DecisionRecorded
			require.NoError(w.t, e.Parse(&p))
			list = append(list, strings.TrimSpace(p.Run+" "+e.Context.Decision+" "+strings.Join(p.Facts.Functions, ",")))
		}
	}
	return list
}

func (c *wireClient) bound(sql string, types []uint32, format int16, params ...[]byte) error {
	c.t.Helper()
	if err := c.Parse(c.t.Context(), "", sql, types); err != nil {
		return err
	}
	return c.Bind("", "", []int16{format}, params, nil)
}

// executed is Parse, Bind and Execute with types.
func (c *wireClient) executed(sql string, types []uint32, params ...[]byte) error {
	c.t.Helper()
	err := c.bound(sql, types, 0, params...)
	if err == nil {
		_, err = c.Execute(c.t.Context(), "", 0, true, &rowsSink{})
	}
	return err
}

// A type of a user's in Parse is a fact as one in the text is, through every
// message that the server would meet it by.
func TestParameterTypesAreFacts(t *testing.T) {
	w := newTypesWorld(t, nil)
	pseudo := map[string]string{"record": "pg_catalog.record", "anyelement": "pg_catalog.anyelement", "cstring": "pg_catalog.cstring", "internal": "pg_catalog.internal",
		"void": "pg_catalog.void", "record[]": "pg_catalog.record", "pg_type": "pg_catalog.pg_type", "pg_class[]": "pg_catalog.pg_class",
		"pg_stats": "pg_catalog.pg_stats", "regclass": "pg_catalog.regclass", "regtype[]": "pg_catalog.regtype", "information_schema.sql_identifier": "information_schema.sql_identifier"}
	named := map[string]string{"dom": "public.dom", "dom[]": "public.dom", "doms": "public.doms", "doms[]": "public.doms", "comp": "public.comp", "comp[]": "public.comp", "span": "public.span",
		"span_multirange": "public.span_multirange", "u": "public.u", `"Shop"."Odd ""name"""`: `Shop.Odd "name"`}
	for name, function := range pseudo {
		named[name] = function
	}
	for name, function := range named {
		before := len(w.decisions())
		types, value := []uint32{w.oid(name)}, []byte("5")
		c := w.wire()
		require.Equal(t, "BLOCK", state(c.executed("SELECT $1", types, value)), name)
		c.sync()
		require.NoError(t, c.bound("SELECT coalesce($1, '(5)')", types, 0, value))
		_, err := c.DescribePortal(t.Context(), "")
		require.Equal(t, "BLOCK", state(err), name)
		c.sync()
		require.NoError(t, c.Parse(t.Context(), "s", "SELECT $1 IS NULL", types))
		_, _, err = c.DescribeStatement(t.Context(), "s")
		require.Equal(t, "BLOCK", state(err), name)
		c.sync()
		require.Equal(t, "BLOCK", state(c.refused("EXECUTE s('5')")), name)
		require.False(t, w.ran(), name)
		for _, d := range w.decisions()[before:] {
			require.Equal(t, "transaction BLOCK "+function, d, name)
		}
		require.Len(t, w.decisions(), before+4, name)
		c.Wire.Close(t.Context())
	}
	require.Empty(t, w.trail())
	require.Equal(t, "0", w.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"))
}

// What a policy admits by name it admits in messages too, and nothing else.
func TestTypesInMessagesAreHeldAgainstFunctionsOnly(t *testing.T) {
	w := newTypesWorld(t, nil)
	c := w.wire()
	require.Equal(t, "BLOCK", state(c.executed("UPDATE u SET status = $1 WHERE id = 1", []uint32{w.oid("dom")}, []byte("7"))))
	c.sync()
	for _, mood := range []string{"mood", "mood[]"} {
		require.NoError(t, c.executed("UPDATE u SET note = $1::text WHERE id = 1", []uint32{w.oid(mood)}, []byte(map[string]string{"mood": "ok", "mood[]": "{ok}"}[mood])), mood)
		c.sync()
	}
	require.Equal(t, "{ok}", w.value("SELECT note FROM u"))
	require.Equal(t, []string{"transaction BLOCK public.dom", "transaction ALLOW public.mood", "transaction ALLOW public.mood"}, w.decisions())
	require.False(t, w.ran())
}

// The server may hand out the number of a type at any time: nobody knows what it
// will mean when it is reached.
func TestATypeThatIsNotThereIsNamedByItsNumber(t *testing.T) {
	w := newTypesWorld(t, nil)
	c := w.wire()
	for _, oid := range []uint32{9999, 16383, 4_000_000_000, 4294967295} {
		require.Equal(t, "BLOCK", state(c.executed("SELECT $1", []uint32{oid}, []byte("1"))))
		c.sync()
		list := w.decisions()
		require.Equal(t, fmt.Sprintf("transaction BLOCK oid.%d", oid), list[len(list)-1])
	}
	c.query("BEGIN")
	c.query("ROLLBACK")
}

// A type that the server infers, or that is its own, is no fact, and costs no look-up.
func TestBuiltInParameterTypesStayAsTheyWere(t *testing.T) {
	w := newTypesWorld(t, nil)
	c := w.wire()
	require.NoError(t, c.executed("SELECT $1::int, $2, $3, $4, $5", []uint32{0, 705, 25, 1007, 3802}, []byte("1"), []byte("a"), nil, []byte("{1}"), []byte("{}")))
	c.sync()
	require.Equal(t, []string{"read_fence ALLOW"}, w.decisions())
	w.Database.Close()
	require.NoError(t, c.bound("SELECT $1, $2", []uint32{23, 25}, 0, nil, nil))
	c.sync()
	require.Error(t, c.Parse(t.Context(), "", "SELECT $1", []uint32{w.oid("dom")}), "what a type is must be known")
	c.sync()
}

// A type of a user's is shown as SQL says it: what stands there is a constant of the type
// that was bound, and no name passes for more than a name.
func TestAnApprovalShowsTypesOfUsersAsSQLSaysThem(t *testing.T) {
	w := newTypesWorld(t, nil)
	const odd = `"odd, text'::x` + "\n" + `TimeZone = 'UTC'"`
	postgresExecute(w.wireWorld, "CREATE DOMAIN label AS text; CREATE DOMAIN "+odd+" AS text")
	c := w.wire()
	const sql = "DELETE FROM u WHERE note = to_jsonb($1)::text"
	for kind, label := range map[string]string{
		"label": "public.label", "label[]": "public.label[]", "mood[]": "public.mood[]", "regclass[]": "pg_catalog.regclass[]", odd: "public." + odd, odd + "[]": "public." + odd + "[]",
		`"Shop"."Odd ""name"""`: `"Shop"."Odd ""name"""`,
	} {
		oid := w.oid(kind)
		require.Equal(t, []string{"'{a,b}'::" + label}, w.asked(c.executed(sql, []uint32{oid}, []byte("{a,b}"))), kind)
		c.sync()
		require.NoError(t, c.Parse(t.Context(), "s", sql, []uint32{oid}))
		c.sync()
		require.Equal(t, []string{"types of the parameters: " + label}, w.asked(c.refused("EXECUTE s('{a,b}')")), kind)
		c.query("DEALLOCATE s")
	}
	require.NoError(t, c.bound(sql, []uint32{w.oid("label[]")}, 1, []byte{0}))
	_, err := c.Execute(t.Context(), "", 0, true, &rowsSink{})
	require.Equal(t, []string{"no constant: the binary form of public.label[], bytes 00"}, w.asked(err))
	c.sync()
	require.NoError(t, c.Parse(t.Context(), "m", "DELETE FROM u WHERE m = $1", nil))
	_, _, err = c.DescribeStatement(t.Context(), "m")
	require.NoError(t, err)
	require.NoError(t, c.Bind("", "m", []int16{1}, [][]byte{nil}, nil))
	_, err = c.Execute(t.Context(), "", 0, true, &rowsSink{})
	require.Equal(t, []string{"NULL::public.mood"}, w.asked(err), "a Describe says the name, too")
}

// An approval is for the statement with its types, and shows them by name.
func TestAnApprovalShowsTypesOfMessages(t *testing.T) {
	w := newTypesWorld(t, nil)
	c := w.wire()
	delete := func() error {
		return c.executed("DELETE FROM u WHERE status = $1", []uint32{w.oid("dom")}, []byte("0"))
	}
	err := delete()
	require.Equal(t, "REQUIRE_APPROVAL", state(err))
	c.sync()
	require.False(t, w.ran())
	id := err.(*WireRefusal).Answer.ApprovalID
	view := w.store.View()
	a, found, err := view.Approval(id)
	view.Close()
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, []string{"'0'::public.dom"}, a.Parameters)
	require.Contains(t, a.Classification, "public.dom")
	w.approve(id)
	c.query("SET gate.approval_id = '" + id + "'")
	require.Equal(t, "approval_mismatch", state(c.executed("DELETE FROM u WHERE status = $1", []uint32{23}, []byte("0"))), "another type is another request")
	c.sync()
	c.query("SET gate.approval_id = '" + id + "'")
	require.NoError(t, delete())
	c.sync()
	require.True(t, w.ran(), "it was approved")
	require.Equal(t, "0", w.value("SELECT count(*) FROM u"))
}

// Names of portals and statements may hold anything and stay with the gate.
func TestNamesOfMessagesReachNothing(t *testing.T) {
	w := newTypesWorld(t, nil)
	c := w.wire()
	for _, name := range []string{"pg_temp.x", `"; SELECT canary(1)`, "gate_fence", strings.Repeat("ä", 31), "\x01\xff"} {
		require.NoError(t, c.Parse(t.Context(), name, "SELECT $1", []uint32{23}), name)
		require.NoError(t, c.Bind(name, name, nil, [][]byte{[]byte("1")}, nil), name)
		var out rowsSink
		_, err := c.Execute(t.Context(), name, 0, true, &out)
		require.NoError(t, err)
		require.Equal(t, []string{"1"}, out.rows)
		c.sync()
	}
	for _, name := range []string{strings.Repeat("ä", 32), strings.Repeat("x", 100_000)} {
		require.Equal(t, "42622", state(c.Parse(t.Context(), name, "SELECT 1", nil)))
		c.sync()
		require.NoError(t, c.Parse(t.Context(), "", "SELECT 1", nil))
		require.Equal(t, "42622", state(c.Bind(name, "", nil, nil, nil)))
		c.sync()
	}
}

// Nothing of a statement reaches the server before the evidence of its decision
// is durable, for a description neither; what is not allowed is not described
// where that could run code.
func TestNothingIsDescribedBeforeItsEvidence(t *testing.T) {
	w := newTypesWorld(t, nil)
	ctx := t.Context()
	var seen []string
	w.stops.Store("describe.before_append", func() {
		if w.ran() {
			seen = append(seen, "ran before its evidence")
		}
		seen = append(seen, "before")
	})
	w.stops.Store("describe.appended", func() {
		list := w.decisions()
		seen = append(seen, list[len(list)-1])
	})
	const described = "SELECT coalesce(c, '(5)') FROM u" // the text does not say that c is of a type with a check
	c := w.wire()
	require.NoError(t, c.Parse(ctx, "s", described, nil))
	_, columns, err := c.DescribeStatement(ctx, "s")
	require.NoError(t, err)
	require.Len(t, columns, 1)
	require.True(t, w.ran(), "parsing runs what the type of a column asks for")
	require.Equal(t, []string{"before", "describe ALLOW"}, seen)
	require.Empty(t, w.trail(), "nothing was dispatched")

	_, _, err = c.DescribeStatement(ctx, "s")
	require.NoError(t, err)
	require.NoError(t, c.Bind("", "s", nil, nil, nil))
	_, err = c.DescribePortal(ctx, "")
	require.NoError(t, err)
	require.Len(t, seen, 2, "the decision of the same statement stands")
	require.True(t, w.ran())
	require.NoError(t, c.Parse(ctx, "again", described, nil))
	_, _, err = c.DescribeStatement(ctx, "again")
	require.NoError(t, err)
	require.Len(t, seen, 4, "another statement has a decision of its own")
	c.sync()

	var last event.RequestReceived
	for _, e := range w.events() {
		if e.Type == event.TypeRequestReceived {
			last = event.RequestReceived{}
			require.NoError(t, e.Parse(&last))
		}
	}
	require.Equal(t, event.PurposeDescribe, last.Purpose)

	c.query("BEGIN")
	require.NoError(t, c.Parse(ctx, "", "INSERT INTO t VALUES ($1)", nil))
	_, _, err = c.DescribeStatement(ctx, "")
	require.NoError(t, err)
	require.Equal(t, "describe ALLOW", seen[len(seen)-1], "in a block too")
	c.query("ROLLBACK")
}

// A log that takes nothing lets nothing be described.
func TestNothingIsDescribedWithoutEvidence(t *testing.T) {
	w := newTypesWorld(t, nil)
	c := w.wire()
	require.NoError(t, c.Parse(t.Context(), "", "SELECT coalesce(c, '(5)') FROM u", nil))
	log, _, err := eventlog.Open(t.Context(), eventlog.Options{Path: filepath.Join(t.TempDir(), "other.wal")})
	require.NoError(t, err)
	require.NoError(t, log.Close(t.Context()))
	w.Gate.Commands, err = commands.New(commands.Options{Log: log, Store: w.store})
	require.NoError(t, err)
	_, _, err = c.DescribeStatement(t.Context(), "")
	require.Equal(t, "audit_unavailable", state(err))
	require.False(t, w.ran())
}

// What waits for an approval is described where parsing it provably runs no code
// of a user's. Where it may, the answer is that of Execute if the statement is
// all there, and else says how to go on.
func TestWhatWaitsForAnApprovalIsDescribedWithoutRunningCode(t *testing.T) {
	w := newTypesWorld(t, nil)
	ctx := t.Context()
	postgresExecute(w.wireWorld, "CREATE TABLE plain (id int, m mood, ms mood[], note text, at timestamptz)")
	postgresExecute(w.wireWorld, "CREATE VIEW seen AS SELECT * FROM u; CREATE FUNCTION shout(comp) RETURNS int LANGUAGE sql AS 'SELECT 1'")
	postgresExecute(w.wireWorld, "CREATE FUNCTION made() RETURNS span LANGUAGE sql AS 'SELECT NULL::span'; CREATE FUNCTION near(int, comp) RETURNS bool LANGUAGE sql AS 'SELECT true'")
	postgresExecute(w.wireWorld, "CREATE OPERATOR ## (LEFTARG = int, RIGHTARG = comp, FUNCTION = near)")
	c := w.wire()
	describe := func(sql string, types ...uint32) string {
		require.NoError(t, c.Parse(ctx, "", sql, types))
		_, _, err := c.DescribeStatement(ctx, "")
		c.sync()
		require.False(t, w.ran(), sql)
		if err == nil {
			return "described"
		}
		return state(err)
	}
	for _, row := range []struct {
		sql, want string
		runs      bool // where the server is asked all the same
	}{
		{"DELETE FROM u WHERE id = $1", "described", false},
		{"DELETE FROM u WHERE c = $1", "described", false}, // no value is there to be checked
		{"DELETE FROM u USING seen WHERE seen.id = u.id RETURNING u.c", "described", false},
		{"DELETE FROM plain WHERE note = 'x' AND m = 'ok' AND ms = '{ok}' AND at < now() - interval '1 day' AND id = $1", "described", false},
		{"DELETE FROM u WHERE note = 'x'", "REQUIRE_APPROVAL", false}, // c could take a constant
		{"DELETE FROM u WHERE coalesce(c, '(5)') IS NOT NULL", "REQUIRE_APPROVAL", true},
		{"DELETE FROM u WHERE coalesce(c, $$(5)$$) IS NOT NULL", "REQUIRE_APPROVAL", true},
		{"DELETE FROM u WHERE coalesce(u, '(1,1,ok,\"(5)\",x)') IS NOT NULL", "REQUIRE_APPROVAL", true},
		{"DELETE FROM plain USING seen WHERE coalesce(c, '(5)') IS NOT NULL", "REQUIRE_APPROVAL", true},
		{"DELETE FROM plain USING (SELECT c FROM u) AS x WHERE coalesce(x.c, '(5)') IS NOT NULL", "REQUIRE_APPROVAL", true},
		{"DELETE FROM plain WHERE _dom('{5}') IS NOT NULL", "REQUIRE_APPROVAL", true}, // a call that is a cast
		{"DELETE FROM plain WHERE made() @> '[5,6)'", "REQUIRE_APPROVAL", true},
		{"DELETE FROM plain WHERE id ## '(5)'", "REQUIRE_APPROVAL", true},
		{"DELETE FROM plain WHERE NOT 'f' AND note LIKE 'a%' AND note ~~ 'b'", "described", false},
		{"DELETE FROM plain WHERE shout('(5)') = 1", "REQUIRE_APPROVAL", true},
		{"DELETE FROM plain WHERE '(5)'::comp IS NULL", "REQUIRE_APPROVAL", true},
		{"DELETE FROM missing WHERE id = 'x'", "REQUIRE_APPROVAL", false},
		{"DELETE FROM u WHERE coalesce(c, '(5)') IS NOT NULL AND id = $1", "0A000", true},
		{"DELETE FROM u WHERE id = $1 AND '(5)'::comp IS NULL", "0A000", true},
	} {
		require.Equal(t, row.want, describe(row.sql), row.sql)
		reading, err := w.Database.BeginRead(ctx, &pgexec.Statement{}, pgexec.Limits{})
		require.NoError(t, err)
		_, _ = reading.Describe(ctx, row.sql, nil, nil)
		require.Equal(t, row.runs, w.ran(), row.sql)
	}
	require.Equal(t, "0A000", describe("DELETE FROM u WHERE status = $1", w.oid("dom")))

	require.NoError(t, c.bound("DELETE FROM u WHERE coalesce(c, '(5)') IS NOT NULL AND id = $1", nil, 0, []byte("1")))
	_, err := c.DescribePortal(ctx, "")
	require.Equal(t, "REQUIRE_APPROVAL", state(err), "with its parameters it is all there")
	c.sync()
	id := err.(*WireRefusal).Answer.ApprovalID
	require.NotEmpty(t, id)
	w.approve(id)
	c.query("SET gate.approval_id = '" + id + "'")
	require.NoError(t, c.bound("DELETE FROM u WHERE coalesce(c, '(5)') IS NOT NULL AND id = $1", nil, 0, []byte("1")))
	columns, err := c.DescribePortal(ctx, "")
	require.NoError(t, err)
	require.Empty(t, columns)
	_, err = c.Execute(ctx, "", 0, true, &rowsSink{})
	require.NoError(t, err, "the description used nothing up")
	c.sync()
	require.True(t, w.ran())
}

// What a block made is not seen by the look at the catalogue.
func TestABlockDescribesNothingUnapprovedByItsOwnDefinitions(t *testing.T) {
	w := newWireWorld(t, nil)
	postgresExecute(w, typesSQL)
	types := typesWorld{w}
	c := w.wire()
	c.query("BEGIN")
	c.query("CREATE TABLE made (id int, c comp)")
	require.NoError(t, c.Parse(t.Context(), "", "DELETE FROM made WHERE coalesce(c, '(5)') IS NOT NULL AND id = $1", nil))
	_, _, err := c.DescribeStatement(t.Context(), "")
	require.Equal(t, "0A000", state(err))
	c.sync()
	c.query("ROLLBACK")
	require.False(t, types.ran())
}

// A decision that was recorded for a description serves no other policy.
func TestADescriptionIsDecidedAnewUnderAnotherPolicy(t *testing.T) {
	w := newTypesWorld(t, nil)
	c := w.wire()
	require.NoError(t, c.Parse(t.Context(), "s", "SELECT 1", nil))
	for range 2 {
		_, _, err := c.DescribeStatement(t.Context(), "s")
		require.NoError(t, err)
	}
	require.Len(t, w.decisions(), 1)
	same := *w.running.Load()
	w.running.Store(&same)
	_, _, err := c.DescribeStatement(t.Context(), "s")
	require.NoError(t, err)
	require.Len(t, w.decisions(), 2)
}

// A Describe waits for a connection while another policy is activated: that one decides,
// and nothing of the statement is parsed under the former.
func TestNothingIsDescribedUnderAPolicyThatIsNotInForce(t *testing.T) {
	const sql = "SELECT coalesce(c, '(5)') FROM u"
	stricter := strings.NewReplacer("version: 1.0.0", "version: 1.0.1", "decision: ALLOW\n    reason_code: known_calls", "decision: BLOCK\n    message: Not now.\n    remedy: Wait.\n    reason_code: known_calls",
		"expect: { decision: ALLOW }", "expect: { decision: BLOCK }").Replace(typesPolicy)
	for _, c := range []struct {
		name               string
		block, known, hold bool
	}{{name: "at its append"}, {name: "at its append in a block", block: true}, {name: "in the pool", hold: true}, {name: "in the pool, with evidence", hold: true, known: true}} {
		t.Run(c.name, func(t *testing.T) {
			w := newTypesWorld(t, nil)
			client := w.wire()
			if c.block {
				client.query("BEGIN")
				client.query("SELECT id FROM t")
			}
			require.NoError(t, client.Parse(t.Context(), "s", sql, nil))
			if c.known {
				_, _, err := client.DescribeStatement(t.Context(), "s")
				require.NoError(t, err)
				require.True(t, w.ran())
			}
			activate := sync.OnceFunc(func() { w.activate(stricter) })
			if !c.hold {
				w.stops.Store("describe.before_append", activate)
			}
			var held []*pgexec.Reading
			for c.hold && len(held) < 4 {
				r, err := w.Database.BeginRead(t.Context(), &pgexec.Statement{}, pgexec.Limits{})
				require.NoError(t, err)
				held = append(held, r)
			}
			waits, described := w.Database.Stats().Waits, make(chan error, 1)
			go func() {
				_, _, err := client.DescribeStatement(t.Context(), "s")
				described <- err
			}()
			if c.hold {
				require.Eventually(t, func() bool { return w.Database.Stats().Waits > waits }, 10*time.Second, time.Millisecond)
				activate()
			}
			for _, r := range held {
				r.Release()
			}
			require.Equal(t, "BLOCK", state(<-described))
			require.False(t, w.ran())
			list := w.decisions()
			require.Contains(t, list[len(list)-1], "BLOCK")
		})
	}
}

// A Describe for which there is no connection is refused, and the log says so.
func TestADescriptionWithoutAConnectionIsRefused(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	require.NoError(t, c.Parse(t.Context(), "s", "SELECT id FROM t", nil))
	w.Database.Close()
	_, _, err := c.DescribeStatement(t.Context(), "s")
	require.Error(t, err)
	list := w.events()
	require.Equal(t, event.TypeQueryRejected, list[len(list)-1].Type)
	require.Equal(t, string(fault.CodeOf(err)), list[len(list)-1].Context.ErrorCode)
}

// The plan that a person is shown who approves is asked for behind the evidence of
// the decision.
func TestAnEstimateComesBehindTheEvidence(t *testing.T) {
	w := newWireWorld(t, func(o *Options) { o.PlanEstimates = true })
	c := w.wire()
	held := func() (impact string, trail []string) {
		before := len(w.events())
		err := c.refused("DELETE FROM t WHERE id = 1")
		require.Equal(t, "REQUIRE_APPROVAL", state(err))
		for _, e := range w.events()[before:] {
			trail = append(trail, string(e.Type))
			if e.Type == event.TypeApprovalCreated {
				var p event.ApprovalCreated
				require.NoError(t, e.Parse(&p))
				impact = p.Impact
			}
		}
		return impact, trail
	}
	impact, trail := held()
	require.Contains(t, impact, "Delete")
	require.Equal(t, []string{"request_received", "decision_recorded", "request_received", "decision_recorded", "approval_created"}, trail)
	w.stops.Store("describe.before_append", func() { postgresExecute(w, "ALTER TABLE t RENAME TO other") })
	impact, _ = held()
	require.JSONEq(t, `{"plan_omitted": "a relation is not there", "tables": []}`, impact, "the server was not asked before")
	postgresExecute(w, "ALTER TABLE other RENAME TO t")
	w.stops.Store("describe.before_append", sync.OnceFunc(func() {
		w.activate(strings.NewReplacer("version: 1.0.0", "version: 1.0.1", "query_types: [TRUNCATE]", "query_types: [DELETE]").Replace(wirePolicy))
	}))
	before := len(w.events())
	require.Equal(t, "BLOCK", state(c.refused("DELETE FROM t WHERE id = 1")), "of another policy")
	for _, e := range w.events()[before:] {
		require.False(t, e.Type == event.TypeDecisionRecorded && e.Context.Decision != "BLOCK")
	}
	w.activate(strings.Replace(wirePolicy, "version: 1.0.0", "version: 1.0.2", 1))
	w.stops.Store("describe.before_append", func() { t.Error("a plan that is not asked for needs no evidence") })
	w.PlanEstimates = false
	_, trail = held()
	require.Equal(t, []string{"request_received", "decision_recorded", "approval_created"}, trail)
}

// A time zone is looked at by the server, so what was decided about it is durable
// before.
func TestATimeZoneIsAskedForBehindItsEvidence(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	var events int
	w.stops.Store("decision.appended", func() { events = len(w.events()) })
	before := len(w.events())
	require.Equal(t, "22023", state(c.refused("SET timezone = 'Mars/Olympus'")))
	require.Equal(t, before+2, events)
	c.query("SET timezone = 'Europe/Berlin'")
	require.Equal(t, before+4, events)
}

// Facts of a message belong to the statement that it prepared, in a block, in one
// that failed, and under a name that is prepared anew.
func TestTypesOfMessagesBelongToTheirStatement(t *testing.T) {
	w := newTypesWorld(t, nil)
	ctx, dom := t.Context(), []uint32{w.oid("dom")}
	c := w.wire()
	run := func(name string) error {
		if err := c.Bind("", name, nil, [][]byte{[]byte("5")}, nil); err != nil {
			return err
		}
		_, err := c.Execute(ctx, "", 0, true, &rowsSink{})
		return err
	}
	require.NoError(t, c.Parse(ctx, "s", "SELECT $1", dom))
	require.Equal(t, "BLOCK", state(run("s")))
	c.sync()
	c.CloseStatement("s")
	require.NoError(t, c.Parse(ctx, "s", "SELECT $1", []uint32{23}))
	require.NoError(t, run("s"))
	c.sync()
	c.query("DEALLOCATE s")
	require.NoError(t, c.Parse(ctx, "s", "SELECT $1", dom))

	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (1, 'a')")
	require.Equal(t, "BLOCK", state(run("s")))
	c.sync()
	require.Equal(t, WireFailed, c.Status())
	require.Equal(t, "25P02", state(c.Parse(ctx, "", "SELECT $1", dom)))
	c.sync()
	_, _, err := c.DescribeStatement(ctx, "s")
	require.Equal(t, "25P02", state(err))
	c.sync()
	c.query("ROLLBACK")
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))

	require.Equal(t, "unsupported_sql_shape", state(c.refused("PREPARE p (dom) AS SELECT $1")))
	c.query("PREPARE p (regclass) AS SELECT $1")
	require.Equal(t, "BLOCK", state(c.refused("EXECUTE p('u')")))
	c.query("PREPARE q (int, text) AS SELECT $1, $3")
	require.Equal(t, "unsupported_sql_shape", state(c.refused("EXECUTE q(1, 'a', '5'::dom)")))
	require.Equal(t, "BLOCK", state(c.refused("EXECUTE q(1, 'a', 'u'::regclass)")))
	c.query("EXECUTE q(1, 'a', '5')")
	require.False(t, w.ran())
}

// PostgreSQL reads t.f as f(t) where the table has no such column, and no text tells: the
// gate knows which functions of the database that can be.
func TestACallWrittenLikeAColumnIsACall(t *testing.T) {
	w := newWireWorld(t, nil)
	longName := strings.Repeat("x", 63)
	postgresExecute(w, "CREATE FUNCTION "+longName+"(t) RETURNS int LANGUAGE sql AS 'SELECT 1'")
	postgresExecute(w, `CREATE FUNCTION peek(t) RETURNS text LANGUAGE sql STABLE AS 'SELECT $1.v';
		CREATE FUNCTION fire(t, n int DEFAULT 1) RETURNS int LANGUAGE sql AS 'INSERT INTO t VALUES (99, $1.v) RETURNING 1';
		CREATE FUNCTION "Odd"(record) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'; CREATE FUNCTION each(anyelement) RETURNS int LANGUAGE sql AS 'SELECT 1';
		CREATE DOMAIN td AS t; CREATE DOMAIN tdd AS td CHECK ((value).id > 0); CREATE FUNCTION ofdomain(td) RETURNS int LANGUAGE sql AS 'SELECT 1';
		CREATE FUNCTION manyof(VARIADIC t[]) RETURNS int LANGUAGE sql AS 'SELECT 1';
		CREATE FUNCTION astext(text) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION t_text(t) RETURNS text LANGUAGE sql AS 'SELECT $1.v'; CREATE CAST (t AS text) WITH FUNCTION t_text(t) AS IMPLICIT;
		CREATE FUNCTION v(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION id(t, int) RETURNS int LANGUAGE sql AS 'SELECT 1';
		CREATE TABLE items (id int, v text); CREATE FUNCTION items(t) RETURNS SETOF items LANGUAGE sql AS 'SELECT * FROM items';
		CREATE DOMAIN base_text AS text; CREATE DOMAIN v AS base_text; CREATE FUNCTION id(anyarray) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION v(t) RETURNS int LANGUAGE sql AS 'SELECT 1';
		CREATE DOMAIN tx AS text; CREATE FUNCTION sneaky(tx) RETURNS int LANGUAGE sql AS 'SELECT 1';
		CREATE TABLE tp (a int, b int); CREATE CAST (tp AS point) WITH INOUT; CREATE DOMAIN dp AS point CHECK (value IS NOT NULL);
		CREATE TABLE three (a int, b text); CREATE TABLE castee (w int); CREATE FUNCTION w(castee) RETURNS int LANGUAGE sql AS 'SELECT 1';
		CREATE FUNCTION three_castee(three) RETURNS castee LANGUAGE sql AS 'SELECT ROW(1)::castee'; CREATE CAST (three AS castee) WITH FUNCTION three_castee(three) AS IMPLICIT;
		CREATE FUNCTION ofnumber(int, n int DEFAULT 1) RETURNS int STABLE SECURITY DEFINER LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION manynumbers(VARIADIC int[]) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE AGGREGATE allof(int) (SFUNC = int4pl, STYPE = int);
		CREATE SCHEMA other; CREATE FUNCTION other.elsewhere(t) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION other.v(int) RETURNS int LANGUAGE sql AS 'SELECT 1'`)
	require.NotEmpty(t, w.value("INSERT INTO t VALUES (1, 'x') RETURNING id"))
	w.activate(`schema: gate.policy/v1
name: wire
version: 1.0.1
facts: facts/v1
rules:
  - id: writes
    decision: ALLOW
    reason_code: writes
    match: { query_types_only: [SELECT, UPDATE], tables_written_only: [public.t], tables_read_only: [public.t], functions_only: [] }
`)
	for sql, called := range map[string]string{
		"SELECT t.peek FROM t": "public.peek", "SELECT (t).peek FROM t": "public.peek", `SELECT x . /* a */ "peek" FROM t x`: "public.peek", "SELECT public.t.PEEK FROM public.t": "public.peek",
		`SELECT t.U&"p\0065ek" FROM t`: "public.peek", "SELECT (ROW(1, 'x')::t).peek": "public.peek", `SELECT t."Odd" FROM t`: "public.Odd", "SELECT t.each FROM t": "public.each",
		"SELECT (t.*::td).ofdomain FROM t": "public.ofdomain", "SELECT t.manyof FROM t": "public.manyof", "SELECT t.astext FROM t": "public.astext",
		"SELECT t." + longName + "and_more FROM t": "public." + longName, "SELECT t.items FROM t, public.items": "public.items", "SELECT t.td FROM t": "public.td", "UPDATE t SET v = 'y' WHERE id = 1 RETURNING t.tdd": "public.tdd",
		"UPDATE t SET v = 'y' WHERE id = 1 RETURNING t.fire": "public.fire", "SELECT 1 FROM t ORDER BY t.peek": "public.peek", "SELECT 1 FROM t WHERE t.peek = 'x'": "public.peek",
		"SELECT x.v FROM t x(a, b)": "public.v", "UPDATE t SET v = 'y' FROM t x(a, b) WHERE t.id = 1 AND x.v > 0": "public.v", "SELECT s.v FROM (SELECT * FROM t) s(a, b)": "public.v", "SELECT s.v FROM (SELECT * FROM three) s": "public.v",
		"WITH s(a, b) AS (SELECT * FROM t) SELECT s.v FROM s": "public.v", "SELECT ((x.*).v) FROM t x(a, b)": "public.v", "SELECT s.v FROM (t CROSS JOIN items) s(a, b, c)": "public.v", "SELECT three.w FROM three": "public.w",
		"SELECT t.sneaky FROM t": "public.sneaky", "SELECT tp.dp FROM tp": "public.dp",
		"SELECT (t.id).ofnumber FROM t": "public.ofnumber", "SELECT (id).ofnumber FROM t": "public.ofnumber", "SELECT (x.i).OFNUMBER FROM (SELECT id AS i FROM t) x": "public.ofnumber", "SELECT ((t).id).ofnumber FROM t": "public.ofnumber", "SELECT (t.id).manynumbers FROM t": "public.manynumbers",
		"SELECT 1 FROM t GROUP BY v HAVING (v).astext = 1": "public.astext", "SELECT (id).allof FROM t": "public.allof", "SELECT (t.v).base_text FROM t": "public.base_text", "SELECT (t.v)._base_text FROM t": "public._base_text", "WITH s AS (SELECT * FROM t) SELECT (s.id).ofnumber FROM s": "public.ofnumber",
		"SELECT (SELECT (id).ofnumber) FROM t": "public.ofnumber", "SELECT (t.id).t_text.astext FROM t": "public.astext", "SELECT 1 FROM t ORDER BY (id).ofnumber": "public.ofnumber",
	} {
		c := w.wire()
		require.Equal(t, "BLOCK", state(c.refused(sql)), sql)
		require.Contains(t, w.facts().Functions, called, sql)
		require.NoError(t, c.Parse(t.Context(), "", sql, nil))
		require.NoError(t, c.Bind("", "", nil, nil, nil))
		_, err := c.DescribePortal(t.Context(), "")
		require.Equal(t, "BLOCK", state(err), sql)
		c = w.wire()
		c.query("PREPARE q AS " + sql)
		require.Equal(t, "BLOCK", state(c.refused("EXECUTE q")), sql)
	}
	require.Equal(t, "1", w.value("SELECT count(*) FROM t"))
	postgresExecute(w, `CREATE FUNCTION evil(int) RETURNS int LANGUAGE sql AS $$INSERT INTO t VALUES (98, 'x') RETURNING 1$$; CREATE VIEW hides AS SELECT evil(id) FROM t; CREATE TYPE mood AS ENUM ('a'); CREATE FUNCTION two(t) RETURNS SETOF int LANGUAGE sql AS 'VALUES (1), (2)'`)
	w.activate(`schema: gate.policy/v1
name: wire
version: 1.0.2
facts: facts/v1
rules:
  - id: known
    decision: ALLOW
    reason_code: known
    match: { class: [read, write], tables_written_only: [public.t], tables_read_only: [public.t], functions_only: [public.peek, public.mood], where_only: [key_equality] }
  - id: explained
    decision: ALLOW
    reason_code: known
    match: { query_types_only: [SELECT, EXPLAIN], tables_written_only: [], tables_read_only: [public.t], functions_only: [public.peek, public.mood] }
`)
	c := w.wire()
	for _, sql := range []string{"SELECT t.peek, (t.id).evil FROM t", "SELECT (t.id).evil, ('a'::text).mood FROM t", "EXPLAIN ANALYZE SELECT (t.id).evil FROM t"} {
		require.Equal(t, "BLOCK", state(c.refused(sql)), sql)
		require.Contains(t, w.facts().Functions, "public.evil", sql)
	}
	mood, err := strconv.ParseUint(w.value("SELECT 'mood'::regtype::oid"), 10, 32)
	require.NoError(t, err)
	require.NoError(t, c.Parse(t.Context(), "", "SELECT (t.id).evil FROM t WHERE $1 IS NOT NULL", []uint32{uint32(mood)}))
	require.NoError(t, c.Bind("", "", nil, [][]byte{[]byte("a")}, nil))
	_, err = c.Execute(t.Context(), "", 0, true, &rowsSink{})
	require.Equal(t, "BLOCK", state(err))
	c.sync()
	c.query("SELECT t.peek FROM t")
	require.ErrorContains(t, c.refused("SELECT * FROM hides"), "something behind it writes")
	require.Equal(t, "1", w.value("SELECT count(*) FROM t"), "what no text tells, the fence of reads holds")
	c = w.wire()
	before := len(w.events())
	c.refused(`SELECT "`)
	require.Greater(t, len(w.events()), before, "a text that is no statement is told in the log")
	c = w.wire()
	for _, sql := range []string{"SELECT t.v FROM t", "SELECT t.id FROM t", "SELECT peek FROM (SELECT 1 AS peek) s", "SELECT v FROM public.items", `SELECT id AS U&"x" FROM t`, "SELECT t.id AS " + strings.Repeat("long_", 20) + " FROM t", "SELECT other FROM (SELECT 1 AS other) s", "UPDATE t SET v = 'y' WHERE t.id = 1 RETURNING t.v, t.id"} {
		c.query(sql)
		require.Empty(t, w.facts().Functions, sql)
	}
}
