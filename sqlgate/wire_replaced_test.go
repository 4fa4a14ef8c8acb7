package sqlgate

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/faultproxy"
	"writegate/fixtures/postgres"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policyfolder"
)

// A replacedWorld is a gate whose database another one takes the place of, at the same
// address: of the same cluster even, as one that was put back from a copy is. What is an enum
// on the first is a domain there that runs a user's code.
type replacedWorld struct {
	*wireWorld
	proxy  *faultproxy.Proxy
	first  *postgres.Cluster
	second string // URL
	mood   uint32
}

func newReplacedWorld(t *testing.T) *replacedWorld {
	t.Helper()
	r := &replacedWorld{first: postgres.ClusterForTest(t, nil)}
	second := postgres.ClusterForTest(t, nil)
	url := r.first.URL("postgres")
	r.second = second.URL("postgres")
	r.proxy = faultproxy.Start(t, url)
	r.wireWorld = newWireWorldAt(t, url, r.proxy.URL(), func(o *Options) {
		o.Policies.Dir = filepath.Join(t.TempDir(), "types")
		require.NoError(t, policyfolder.Create(o.Policies.Dir, policyfolder.DefaultManifest, []byte(typesPolicy)))
	})
	var enums, domains strings.Builder
	for i := range 200 {
		fmt.Fprintf(&enums, "CREATE TYPE mood%d AS ENUM ('ok');", i)
		fmt.Fprintf(&domains, "CREATE DOMAIN dom%d AS text CHECK (canary(VALUE));", i)
	}
	postgres.ExecuteURL(t, url, enums.String())
	postgres.ExecuteURL(t, r.second, "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE SEQUENCE fired; CREATE FUNCTION canary(text) RETURNS bool LANGUAGE sql AS $$ SELECT nextval('fired') > 0 $$;"+domains.String())
	oids := func(url, kind string) []string {
		return strings.Fields(postgres.QueryURL(t, url, "SELECT string_agg(oid::text, ' ') FROM pg_type WHERE oid >= 16384 AND typtype = '"+kind+"'"))
	}
	others := oids(r.second, "d")
	for _, oid := range oids(url, "e") {
		if n, err := strconv.ParseUint(oid, 10, 32); err == nil && slices.Contains(others, oid) {
			r.mood = uint32(n)
		}
	}
	require.NotZero(t, r.mood, "a number that is an enum at the one and a domain at the other")
	postgres.ExecuteURL(t, url, fmt.Sprintf("DO $$ BEGIN EXECUTE 'ALTER TYPE ' || %d::regtype || ' RENAME TO mood'; END $$; CREATE TABLE felt (id int PRIMARY KEY, v text, m mood)", r.mood))
	postgres.ExecuteURL(t, r.second, "CREATE TABLE felt (id int PRIMARY KEY, v text, m text); CREATE FUNCTION fire(felt) RETURNS text LANGUAGE sql AS $$ SELECT nextval('fired')::text $$; INSERT INTO felt VALUES (0)")
	postgres.ExecuteURL(t, url, "INSERT INTO felt VALUES (0)")
	return r
}

// replace has the gate meet the other server from here on.
func (r *replacedWorld) replace() {
	r.proxy.Lead(r.t, r.second)
	r.proxy.Drop()
}

// requireReplaced holds that a statement was refused for the server that is another one.
func requireReplaced(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, "server_replaced", fault.Of(err).Details["reason"], "%v", err)
}

// The number of a type that a client named means another type on another server: what was
// judged by the first is not sent there, on any way.
func TestANumberOfATypeIsOfTheServerThatNamedIt(t *testing.T) {
	r := newReplacedWorld(t)
	ctx := t.Context()
	run := func(c *wireClient, name string, id int, format int16) error {
		err := c.Bind("", name, []int16{0, format}, [][]byte{[]byte(strconv.Itoa(id)), []byte("ok")}, nil)
		if err == nil {
			_, err = c.Execute(ctx, "", 0, true, &rowsSink{})
		}
		return err
	}
	prepared := func() *wireClient {
		c := r.wire()
		require.NoError(t, c.Parse(ctx, "declared", "INSERT INTO felt (id, v) VALUES ($1::int, $2::text)", []uint32{0, r.mood}))
		require.NoError(t, c.Parse(ctx, "told", "INSERT INTO felt (id, m) VALUES ($1::text::int, $2)", nil))
		_, _, err := c.DescribeStatement(ctx, "told")
		require.NoError(t, err)
		require.NoError(t, c.Parse(ctx, "read", "SELECT $1::text, $2::text", []uint32{0, r.mood}))
		c.sync()
		return c
	}
	clients := []*wireClient{prepared(), prepared(), prepared(), prepared()}
	id := 0
	all := func(c *wireClient, check func(error)) {
		for name, format := range map[string]int16{"declared": 0, "told": 1, "read": 0} {
			id++
			check(run(c, name, id, format))
			c.sync()
		}
	}
	all(clients[0], func(err error) { require.NoError(t, err) })

	require.NoError(t, r.first.Stop())
	require.NoError(t, r.first.Restart(ctx))
	r.proxy.Drop()
	all(clients[0], func(err error) { require.NoError(t, err, "the same server, started again, has the same types") })
	require.Equal(t, "4", r.value("SELECT count(*) FROM felt WHERE id > 0"))

	r.replace()
	all(clients[0], func(err error) { requireReplaced(t, err) })
	for i, c := range clients[1:3] { // in a block, after a read and after a write
		for name, format := range map[string]int16{"declared": 0, "told": 1, "read": 0} {
			c.query("BEGIN")
			c.query([]string{"SELECT 1", "INSERT INTO t VALUES (1)"}[i])
			requireReplaced(t, run(c, name, 100, format))
			c.sync()
			c.query("ROLLBACK")
		}
	}
	_, _, err := clients[3].DescribeStatement(ctx, "declared")
	require.Error(t, err)
	clients[3].sync()
	c := r.wire()
	require.Equal(t, "BLOCK", state(c.executed("INSERT INTO felt (id, v) VALUES (99, $1::text)", []uint32{r.mood}, []byte("ok"))), "who names it anew is judged by what it is now")
	c.sync()
	require.Equal(t, "0", postgres.QueryURL(t, r.second, "SELECT count(*) FROM felt WHERE id > 0"))
	require.Equal(t, "f", postgres.QueryURL(t, r.second, "SELECT is_called FROM fired"))
}

// What a text may call like a column is asked of each server that is met, before anything runs there.
func TestWhatAWordCallsIsOfTheServerThatRunsIt(t *testing.T) {
	r := newReplacedWorld(t)
	c := r.wire()
	const text = "INSERT INTO felt (id, v) SELECT 7, f.fire FROM felt f"
	require.Equal(t, "42703", state(c.refused(text)), "here the word calls nothing")
	c.query("INSERT INTO felt (id, v) SELECT 1, f.v FROM felt f")
	r.replace()
	require.Error(t, c.refused(text))
	require.Equal(t, "BLOCK", state(c.refused(text)))
	c.query("INSERT INTO felt (id, v) SELECT 1, f.v FROM felt f") // a word that calls nothing there either
	require.Equal(t, "f", postgres.QueryURL(t, r.second, "SELECT is_called FROM fired"))
}

// What was read of one server's catalogues judges nothing that another one runs, though all
// numbers by which definitions are compared are the same there: histories of one cluster
// that part hand them out again. A server that shows the same catalogue serves.
func TestTheCatalogueThatJudgesIsThatOfTheServerThatRuns(t *testing.T) {
	var servers [3]*postgres.Cluster
	var urls, numbers [3]string
	for i := range servers {
		servers[i] = postgres.ClusterForTest(t, nil)
		urls[i] = servers[i].URL("postgres")
		if i > 0 {
			postgres.ExecuteURL(t, urls[i], "CREATE TABLE t (id int PRIMARY KEY, v text)")
		}
	}
	proxy := faultproxy.Start(t, urls[0])
	w := newWireWorldAt(t, urls[0], proxy.URL(), func(o *Options) {
		o.CatalogRefresh = time.Hour
		o.Policies.Dir = filepath.Join(t.TempDir(), "secrets")
		require.NoError(t, policyfolder.Create(o.Policies.Dir, policyfolder.DefaultManifest, []byte(`schema: gate.policy/v1
name: secrets
version: 1.0.0
facts: facts/v1
rules:
  - id: secrets
    decision: BLOCK
    reason_code: secrets
    match: { tables_read: [public.secrets] }
  - id: writes
    decision: ALLOW
    reason_code: writes
    match: { query_types_only: [SELECT, INSERT], tables_written_only: [public.t] }
`)))
	})
	for i, column := range []string{"item FROM orders", "v AS item FROM secrets", "item FROM orders"} {
		postgres.ExecuteURL(t, urls[i], "CREATE TABLE orders (id int, item text); CREATE TABLE secrets (id int, v text); INSERT INTO orders VALUES (1, 'shoes'); INSERT INTO secrets VALUES (1, 'topsecret')")
		postgres.ExecuteURL(t, urls[i], "CREATE VIEW shown AS SELECT "+column)
		numbers[i] = postgres.QueryURL(t, urls[i], "SELECT concat('shown'::regclass::oid, ' ', w.oid, ' ', w.xmin, ' ', w.ctid) FROM pg_rewrite AS w WHERE w.ev_class = 'shown'::regclass")
	}
	require.Equal(t, []string{numbers[0], numbers[0]}, numbers[1:], "the numbers are the same")
	lead := func(i int) {
		proxy.Lead(t, urls[i])
		proxy.Drop()
	}
	shown := func(c *wireClient) string {
		_, rows := c.query("SELECT item FROM shown")
		return strings.Join(rows, ",")
	}
	require.Contains(t, shown(w.wire()), "shoes")
	refused := func(c *wireClient, sql string) {
		if err := c.refused(sql); state(err) != "BLOCK" { // the catalogue was read anew before
			requireReplaced(t, err)
		}
	}
	texts := []string{"SELECT item FROM shown", "INSERT INTO t SELECT 1, item FROM shown"}
	serves := func() bool {
		_, _ = w.wire().Query(t.Context(), "SELECT 1", &rowsSink{}) // what is blocked by a catalogue that is old takes no connection, by which it would be known to be
		_, err := w.wire().Query(t.Context(), texts[0], &rowsSink{})
		return err == nil
	}
	for _, sql := range texts {
		lead(1)
		refused(w.wire(), sql)
		lead(0)
		require.Eventually(t, serves, time.Minute, 10*time.Millisecond)
	}
	lead(1)
	c := w.wire()
	c.query("BEGIN")
	refused(c, texts[0])
	c.query("ROLLBACK")
	require.Eventually(t, func() bool { return state(c.refused(texts[0])) == "BLOCK" }, time.Minute, 10*time.Millisecond)
	require.Equal(t, "0", postgres.QueryURL(t, urls[1], "SELECT count(*) FROM t"))

	lead(0)
	require.Eventually(t, serves, time.Minute, 10*time.Millisecond)
	lead(2)
	require.Contains(t, shown(w.wire()), "shoes", "it shows the same")
	w.wire().query(texts[1])
	lead(0)
	require.Contains(t, shown(w.wire()), "shoes")
	lead(2)
	c = w.wire()
	c.query("BEGIN")
	require.Contains(t, shown(c), "shoes")
	c.query("COMMIT")
}

// A type that runs no code of the users', as the catalogue shows, is no call of something
// unknown: of a constant, of a parameter, described or run. Where it is another when the
// statement comes to the server, nothing of that runs, as the text is parsed either.
func TestAPlainTypeIsNoCallUntilItIsAnother(t *testing.T) {
	url := postgres.ForTest(t)
	w := newWireWorldAt(t, url, "", func(o *Options) {
		o.CatalogRefresh = time.Hour
		o.Policies.Dir = filepath.Join(t.TempDir(), "types")
		require.NoError(t, policyfolder.Create(o.Policies.Dir, policyfolder.DefaultManifest, []byte(`schema: gate.policy/v1
name: types
version: 1.0.0
facts: facts/v1
rules:
  - id: domains
    decision: ALLOW
    reason_code: domains
    match: { query_types_only: [CREATE], class: [ddl] }
  - id: moods
    decision: ALLOW
    reason_code: moods
    match: { query_types_only: [INSERT], tables_written_only: [public.felt], functions_only: [public.mood], risk_signals_only: [] }
`)))
	})
	const trap = "CREATE FUNCTION trap(text) RETURNS boolean LANGUAGE sql AS $$ SELECT nextval('fired') > 0 $$;"
	postgres.ExecuteURL(t, url, "CREATE SEQUENCE fired; CREATE TABLE felt (id int, m text);"+trap+"CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE moody (id int, m mood); INSERT INTO moody VALUES (1, 'ok')")
	oid := func() []uint32 {
		n, err := strconv.ParseUint(postgres.QueryURL(t, url, "SELECT 'mood'::regtype::oid"), 10, 32)
		require.NoError(t, err)
		return []uint32{uint32(n)}
	}
	ctx := t.Context()
	described := func(c *wireClient, sql string) error {
		if err := c.Parse(ctx, "", sql, nil); err != nil {
			return err
		}
		_, _, err := c.DescribeStatement(ctx, "")
		return err
	}
	parameter := func(c *wireClient, types []uint32) error {
		if err := c.Parse(ctx, "", "SELECT $1", types); err != nil {
			return err
		}
		if err := c.Bind("", "", nil, [][]byte{[]byte("ok")}, nil); err != nil {
			return err
		}
		_, err := c.Execute(ctx, "", 0, true, &rowsSink{})
		return err
	}
	texts := []string{"SELECT 'ok'::mood", "SELECT id FROM moody WHERE m = 'ok'::public.mood", "INSERT INTO felt VALUES (1, 'ok'::mood)"}
	c := w.wire()
	for _, sql := range texts {
		c.query(sql)
		require.Equal(t, []string{"public.mood"}, w.facts().Functions, sql)
		require.Empty(t, w.facts().RiskSignals, sql)
		require.NoError(t, described(c, sql))
		c.sync()
	}
	c.query("SELECT id FROM moody ORDER BY m")
	require.NoError(t, parameter(c, oid()))
	c.sync()
	c.query("BEGIN")
	for _, sql := range texts {
		c.query(sql)
		require.NoError(t, described(c, sql))
		c.sync()
	}
	c.query("COMMIT")
	fired := func() string { return postgres.QueryURL(t, url, "SELECT is_called FROM fired") }

	for name, ddl := range map[string][2]string{
		"a domain":    {"DROP TABLE moody; DROP TYPE mood; CREATE DOMAIN mood AS text CHECK (trap(VALUE)); CREATE TABLE moody (id int, m mood)", "DROP TABLE moody; DROP DOMAIN mood; CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE moody (id int, m mood)"},
		"a cast":      {"CREATE FUNCTION made(text) RETURNS mood LANGUAGE sql AS $$ SELECT NULL::mood WHERE trap($1) $$; CREATE CAST (text AS mood) WITH FUNCTION made(text) AS IMPLICIT", "DROP CAST (text AS mood); DROP FUNCTION made"},
		"an operator": {"CREATE FUNCTION same(mood, mood) RETURNS boolean LANGUAGE sql AS $$ SELECT trap('x') $$; CREATE OPERATOR = (LEFTARG = mood, RIGHTARG = mood, FUNCTION = same)", "DROP OPERATOR = (mood, mood); DROP FUNCTION same"},
	} {
		c := w.wire()
		c.query("SELECT 'ok'::mood") // by what is known
		types := oid()
		postgres.ExecuteURL(t, url, ddl[0])
		for _, sql := range append(texts, "SELECT 'ok'::text::mood", "SELECT 'ok'::mood = 'ok'") {
			c := w.wire()
			require.Error(t, c.refused(sql), "%s: %s", name, sql)
			require.Error(t, described(c, sql), "%s: %s", name, sql)
			c = w.wire()
			c.query("BEGIN")
			require.Error(t, c.refused(sql), "%s: %s", name, sql)
			c.query("ROLLBACK")
		}
		require.Error(t, parameter(w.wire(), types), name)
		require.Equal(t, "f", fired(), name)
		postgres.ExecuteURL(t, url, ddl[1])
		w.wire().query("CREATE TABLE \"" + name + "\" ()") // behind which the catalogue is read anew
		require.Eventually(t, func() bool { _, err := w.wire().Query(ctx, texts[1], &rowsSink{}); return err == nil }, time.Minute, 10*time.Millisecond)
	}

	c = w.wire()
	c.query("BEGIN")
	c.query("CREATE DOMAIN pg_temp.mood AS text CHECK (trap(VALUE))") // which the name means from here on
	require.Error(t, c.refused("SELECT 'ok'::mood"))
	c.query("ROLLBACK")
	c.query("SELECT 'ok'::mood")
	require.Equal(t, "f", fired())
}

// A standby for reads serves by the catalogue of the server that it follows, also where it is
// behind that; and no more once it is none.
func TestAStandbyThatIsBehindServesAsLongAsItIsOne(t *testing.T) {
	primary := postgres.ClusterForTest(t, nil)
	url := primary.URL("postgres")
	postgres.ExecuteURL(t, url, "CREATE TABLE orders (id int, item text); INSERT INTO orders VALUES (1, 'shoes')")
	standby := primary.StandbyForTest(t)
	w := newWireWorldAt(t, url, "", func(o *Options) {
		o.CatalogRefresh = time.Millisecond
		var err error
		o.Database, err = pgexec.Open(pgexec.Config{URL: url, ReadURL: standby.URL("postgres"), SearchPath: "public", PoolMax: 1, TLS: pgexec.TLSConfig{Mode: "disable"}, PlanTime: time.Minute,
			OnServerMajor: func(major int) { _ = o.Classifier.SetServerMajor(major) }}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		t.Cleanup(o.Database.Close)
	})
	const text = "SELECT item FROM orders"
	require.Eventually(t, func() bool { _, err := w.wire().Query(t.Context(), text, &rowsSink{}); return err == nil }, time.Minute, 10*time.Millisecond)
	postgres.ExecuteURL(t, standby.URL("postgres"), "SELECT pg_wal_replay_pause()")
	postgres.ExecuteURL(t, url, "CREATE TABLE unrelated (id int)")
	for range 20 {
		w.wire().query(text)
		time.Sleep(10 * time.Millisecond) // the catalogue is read again meanwhile
	}
	postgres.ExecuteURL(t, standby.URL("postgres"), "SELECT pg_wal_replay_resume()")
	require.NoError(t, standby.Promote(t.Context()))
	require.ErrorContains(t, w.wire().refused(text), "changed")
}
