package pgexec

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/fixtures/postgres"
)

// A roleServer is a server of the test's own with the roles of docs/database-role.sql.
type roleServer struct {
	*postgres.Cluster
	t *testing.T
}

func newRoleServer(t *testing.T) *roleServer {
	t.Helper()
	s := &roleServer{postgres.ClusterForTest(t, nil), t}
	s.run("CREATE DATABASE app")
	s.in("CREATE ROLE app_owner LOGIN PASSWORD 'owner'; GRANT CREATE, USAGE ON SCHEMA public TO app_owner; SET ROLE app_owner; CREATE TABLE items (id bigint PRIMARY KEY, n int)")
	script, err := os.ReadFile(filepath.Join("..", "..", "docs", "database-role.sql"))
	require.NoError(t, err)
	s.in(strings.NewReplacer(`:"db"`, "app", `:"schema"`, "public", `:"owner"`, "app_owner").Replace(string(script)))
	s.in("ALTER ROLE gate_reader PASSWORD 'r'; ALTER ROLE gate_writer PASSWORD 'w'")
	return s
}

func (s *roleServer) run(sql string) {
	s.t.Helper()
	require.NoError(s.t, s.Execute(s.t.Context(), "postgres", sql), sql)
}

// in runs SQL in the application's database, as the superuser.
func (s *roleServer) in(sql string) {
	s.t.Helper()
	require.NoError(s.t, s.Execute(s.t.Context(), "app", sql), sql)
}

// open makes a DB with the script's roles and collects what is told of them.
func (s *roleServer) open(deny bool, change ...func(*Config)) (*DB, func() map[string]RoleReport) {
	s.t.Helper()
	var mu sync.Mutex
	reports := make(map[string]RoleReport)
	cfg := Config{
		URL: s.URLFor("gate_writer", "w", "app"), ReadURL: s.URLFor("gate_reader", "r", "app"), TLS: TLSConfig{Mode: TLSDisable}, DenyRoles: deny,
		OnRole: func(r RoleReport) {
			mu.Lock()
			defer mu.Unlock()
			reports[r.Pool] = r
		},
	}
	for _, c := range change {
		c(&cfg)
	}
	db, err := Open(cfg, slog.New(slog.DiscardHandler))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { closeWithin(s.t, db) })
	return db, func() map[string]RoleReport {
		mu.Lock()
		defer mu.Unlock()
		seen := make(map[string]RoleReport, len(reports))
		for k, v := range reports {
			seen[k] = v
		}
		return seen
	}
}

func TestTheRolesOfTheScriptHaveNothingThatIsDenied(t *testing.T) {
	s := newRoleServer(t)
	db, told := s.open(true)
	require.True(t, db.Status(context.Background()).OK)
	for _, pool := range []string{"reader", "writer"} {
		require.Empty(t, told()[pool].Deny, pool)
		require.Equal(t, []string{"the server runs with fsync=off", "the server runs with full_page_writes=off"}, told()[pool].Warn, "what the test's server is started with")
	}
	mustWrite(t, db, "INSERT INTO items VALUES (1, 1)")
	require.Equal(t, `[{"n":1}]`, mustRead(t, db, "SELECT n FROM items"))
	s.in("SET ROLE app_owner; CREATE TABLE later (id bigint); INSERT INTO later VALUES (7)")
	require.Equal(t, `[{"id":7}]`, mustRead(t, db, "SELECT id FROM later"), "what the owner makes later is readable")
}

func TestEachRightTooManyIsFound(t *testing.T) {
	s := newRoleServer(t)
	s.in("CREATE EXTENSION dblink; REVOKE ALL ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC; CREATE ROLE helpers; CREATE ROLE makers CREATEDB")
	for _, c := range []struct {
		grant, revoke string
		pool          string
		deny          bool
		says          string
	}{
		{"ALTER ROLE gate_writer SUPERUSER", "ALTER ROLE gate_writer NOSUPERUSER", "writer", true, "is SUPERUSER"},
		{"ALTER ROLE gate_writer CREATEROLE", "ALTER ROLE gate_writer NOCREATEROLE", "writer", true, "has CREATEROLE"},
		{"ALTER ROLE gate_writer CREATEDB", "ALTER ROLE gate_writer NOCREATEDB", "writer", true, "has CREATEDB"},
		{"ALTER ROLE gate_writer REPLICATION", "ALTER ROLE gate_writer NOREPLICATION", "writer", true, "has REPLICATION"},
		{"ALTER ROLE gate_reader BYPASSRLS", "ALTER ROLE gate_reader NOBYPASSRLS", "reader", true, "has BYPASSRLS"},
		{"GRANT pg_read_server_files TO gate_reader", "REVOKE pg_read_server_files FROM gate_reader", "reader", true, "is a member of pg_read_server_files"},
		{"GRANT makers TO gate_writer", "REVOKE makers FROM gate_writer", "writer", true, "is a member of makers"},
		{"GRANT makers TO helpers; GRANT helpers TO gate_writer", "REVOKE makers FROM helpers; REVOKE helpers FROM gate_writer", "writer", true, "is a member of makers"},
		{"GRANT helpers TO gate_writer", "REVOKE helpers FROM gate_writer", "writer", false, "is a member of helpers"},
		{"GRANT CREATE ON DATABASE app TO gate_writer", "REVOKE CREATE ON DATABASE app FROM gate_writer", "writer", true, "may CREATE in the database"},
		{"GRANT CREATE ON SCHEMA public TO gate_writer", "REVOKE CREATE ON SCHEMA public FROM gate_writer", "writer", true, "may CREATE in the schema public"},
		{"GRANT CREATE ON SCHEMA public TO PUBLIC", "REVOKE CREATE ON SCHEMA public FROM PUBLIC", "reader", true, "everybody (PUBLIC) may CREATE in the schema public"},
		{"GRANT DELETE ON items TO gate_reader", "REVOKE DELETE ON items FROM gate_reader", "reader", true, "may write to 1 table(s), among them public.items"},
		{"GRANT UPDATE (n) ON items TO gate_reader", "REVOKE UPDATE (n) ON items FROM gate_reader", "reader", true, "may write to 1 table(s), among them public.items"},
		{"GRANT EXECUTE ON FUNCTION dblink_connect(text) TO gate_writer", "REVOKE EXECUTE ON FUNCTION dblink_connect(text) FROM gate_writer", "writer", true, "may EXECUTE functions of dblink"},
		{"GRANT TEMPORARY ON DATABASE app TO gate_writer", "REVOKE TEMPORARY ON DATABASE app FROM gate_writer", "writer", false, "may make TEMPORARY tables"},
		{"ALTER TABLE items OWNER TO gate_writer", "ALTER TABLE items OWNER TO app_owner", "writer", false, "owns 1 object(s)"},
		{"ALTER ROLE gate_writer SET work_mem = '1GB'", "ALTER ROLE gate_writer RESET work_mem", "writer", false, "has settings of its own: work_mem=1GB"},
		{"ALTER ROLE gate_writer SET log_min_messages = error", "ALTER ROLE gate_writer SET log_min_messages = log", "writer", false, "fills the log of the server with what its errors quote, and with statements (ALTER ROLE gate_writer SET log_min_messages = log, and log_min_error_statement = fatal)"},
		{"ALTER ROLE gate_reader RESET log_min_error_statement", "ALTER ROLE gate_reader SET log_min_error_statement = fatal", "reader", false, "fills the log of the server"},
		{"CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; CREATE EVENT TRIGGER watch ON ddl_command_end EXECUTE FUNCTION note()", "DROP EVENT TRIGGER watch; DROP FUNCTION note", "reader", false, "the event trigger watch"},
		{"CREATE FUNCTION lower(int) RETURNS int LANGUAGE sql AS 'SELECT 1'", "DROP FUNCTION lower(int)", "reader", false, "the function public.lower has the name of a built-in one"},
		{"SELECT 1", "SELECT 1", "reader", false, "the extension dblink is installed"},
	} {
		t.Run(c.grant, func(t *testing.T) {
			s.in(c.grant)
			defer s.in(c.revoke)
			db, told := s.open(false)
			require.True(t, db.Status(context.Background()).OK, "outside production it is told, not refused")
			deny, warn := strings.Join(told()[c.pool].Deny, "; "), strings.Join(told()[c.pool].Warn, "; ")
			if c.deny {
				require.Contains(t, deny, c.says)
			} else {
				require.Contains(t, warn, c.says)
				require.Empty(t, deny)
			}
		})
	}
}

func TestARoleWithTooManyRightsStopsItsPool(t *testing.T) {
	s := newRoleServer(t)
	s.in("ALTER ROLE gate_writer CREATEDB")
	db, _ := s.open(true, func(c *Config) { c.RoleEvery = 20 * time.Millisecond })
	_, err := db.Begin(context.Background(), BeginOptions{})
	require.Equal(t, fault.DBUnavailable, fault.CodeOf(err))
	require.ErrorContains(t, err, "has CREATEDB")
	require.Equal(t, "database_role", fault.Of(err).Details["step"])
	mustRead(t, db, "SELECT 1")

	s.in("ALTER ROLE gate_writer NOCREATEDB")
	require.Eventually(t, func() bool {
		tx, err := db.Begin(context.Background(), BeginOptions{})
		if err == nil {
			tx.Rollback()
		}
		return err == nil
	}, 20*time.Second, 20*time.Millisecond, "once it is mended the pool goes on by itself")

	s.in("ALTER ROLE gate_writer CREATEROLE")
	require.Eventually(t, func() bool {
		tx, err := db.Begin(context.Background(), BeginOptions{})
		if err == nil {
			tx.Rollback()
		}
		return fault.CodeOf(err) == fault.DBUnavailable
	}, 20*time.Second, 20*time.Millisecond, "and a right that came later is found")
}

// Both pools of one role, and what one client can have the server go on with.
func TestTheRolesOfThePageHaveRoomForWhatOneClientLeavesBehind(t *testing.T) {
	script, err := os.ReadFile(filepath.Join("..", "..", "docs", "database-role.sql"))
	require.NoError(t, err)
	limits := regexp.MustCompile(`CONNECTION LIMIT (\d+)`).FindAllStringSubmatch(string(script), -1)
	require.Len(t, limits, 2)
	const size, reserved = 16, 2 // the defaults
	for _, limit := range limits {
		n, err := strconv.Atoi(limit[1])
		require.NoError(t, err)
		require.Greater(t, n, 2*size+2*ShareOf(size, reserved))
	}
}

// What a text may call like a column is asked of whichever pool can be reached, and not
// taken for nothing where nobody could tell.
func TestWhatATextMayCallLikeAColumnIsKnownOrNothingRuns(t *testing.T) {
	s := newRoleServer(t)
	s.in("CREATE DOMAIN tint AS int; CREATE FUNCTION lone(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION two(int, int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION fire(items) RETURNS int LANGUAGE sql AS 'SELECT 1'; GRANT EXECUTE ON FUNCTION fire(items) TO gate_writer; CREATE FUNCTION idle(items) RETURNS int LANGUAGE sql AS 'SELECT 1'; REVOKE EXECUTE ON FUNCTION idle(items) FROM PUBLIC")
	want := map[string]ColumnCall{"fire": {Name: "public.fire", Rows: true}, "lone": {Name: "public.lone"}, "tint": {Name: "public.tint"}, "_tint": {Name: "public._tint"}, "_items": {Name: "public._items"}}
	db, _ := s.open(false)
	calls, err := db.ColumnCalls(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, calls)

	db, _ = s.open(false, func(c *Config) { c.ReadURL = s.URLFor("gate_reader", "another", "app") })
	calls, err = db.ColumnCalls(t.Context())
	require.NoError(t, err, "the writer's pool can tell")
	require.Equal(t, want, calls)

	s.in("REVOKE SELECT ON pg_catalog.pg_cast FROM PUBLIC")
	db, _ = s.open(false)
	_, err = db.ColumnCalls(t.Context())
	require.ErrorContains(t, err, "like a column")
}

// An operator that somebody has made for types of PostgreSQL's, in a schema that is looked
// through, is better than its own for name || unknown: the gate's looks must not call it. Nor
// must a name break what they answer.
func TestLooksAtRolesCallNoOperatorOfUsers(t *testing.T) {
	raw := postgres.ForTest(t)
	_, side := openURL(t, raw)
	side.run(`CREATE FUNCTION spoilt(name, name) RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE ''an operator of users was called''; END'`)
	for _, op := range []string{"||", "~~", "!~~", "~", "+", "-"} {
		side.run("CREATE OPERATOR public." + op + " (LEFTARG = name, RIGHTARG = name, FUNCTION = spoilt)")
	}
	side.run("CREATE TABLE t (a int); CREATE FUNCTION fire(t) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION \"a\x1eb\x1fdeny c\"(t) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION round(\"\x1f\" t) RETURNS int LANGUAGE sql AS 'SELECT 1'")
	reports := make(chan RoleReport, 10)
	db, _ := openURL(t, raw, func(c *Config) { c.OnRole = func(r RoleReport) { reports <- r } })
	calls, err := db.ColumnCalls(t.Context())
	require.NoError(t, err)
	require.Equal(t, ColumnCall{"public.fire", true, false}, calls["fire"])
	require.Contains(t, calls, "a\x1eb\x1fdeny c")
	r := <-reports
	require.Contains(t, r.Deny, "is SUPERUSER")
	require.NotContains(t, r.Deny, "c")
	require.Contains(t, r.Warn, "the function public.round has the name of a built-in one")
	mustRead(t, db, "SELECT 1")
	require.Zero(t, db.Stats().Quarantined, "servers from 18 on report the search_path of a look (make majors)")
}

// What a text may call like a column is known for a while where it can't be looked up again,
// and not for ever.
func TestWhatATextMayCallLikeAColumnGrowsOld(t *testing.T) {
	db, side := open(t, func(c *Config) { c.RoleEvery = 50 * time.Millisecond })
	side.run("CREATE TABLE t (a int); CREATE FUNCTION fire(t) RETURNS int LANGUAGE sql AS 'SELECT 1'")
	require.Eventually(t, func() bool {
		calls, err := db.ColumnCalls(t.Context())
		return err == nil && calls["fire"].Name == "public.fire"
	}, time.Minute, 10*time.Millisecond, "it is looked up again")
	side.run("ALTER FUNCTION pg_catalog.has_function_privilege(oid, oid, text) RENAME TO gone")
	require.Eventually(t, func() bool { _, err := db.ColumnCalls(t.Context()); return fault.CodeOf(err) == fault.DBUnavailable }, time.Minute, 10*time.Millisecond)
	side.run("ALTER FUNCTION pg_catalog.gone(oid, oid, text) RENAME TO has_function_privilege")
	require.Eventually(t, func() bool { _, err := db.ColumnCalls(t.Context()); return err == nil }, time.Minute, 10*time.Millisecond)
}

// A chain of domains costs what its length is, not its square; and one that is longer than
// is looked through may be over a row.
func TestAChainOfDomainsTakesNoConnectionAway(t *testing.T) {
	raw := postgres.ForTest(t)
	_, side := openURL(t, raw)
	side.run(`CREATE TABLE t (a int); CREATE DOMAIN d0 AS int; CREATE DOMAIN r0 AS t; CREATE FUNCTION over_ints(d0) RETURNS int LANGUAGE sql AS 'SELECT 1'`)
	side.run(`DO 'BEGIN FOR i IN 1..6000 LOOP EXECUTE format($f$CREATE DOMAIN d%s AS d%s$f$, i, i-1); IF i % 500 = 0 THEN COMMIT; END IF; END LOOP; END'`)
	side.run(`DO 'BEGIN FOR i IN 1..40 LOOP EXECUTE format($f$CREATE DOMAIN r%s AS r%s$f$, i, i-1); END LOOP; END'`)
	side.run(`CREATE FUNCTION over_rows(r40) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION near_rows(r3) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION far_ints(d17) RETURNS int LANGUAGE sql AS 'SELECT 1'`)
	db, _ := openURL(t, raw)
	calls, err := db.ColumnCalls(t.Context())
	require.NoError(t, err)
	require.Contains(t, calls, "over_rows")
	require.Contains(t, calls, "near_rows")
	require.Contains(t, calls, "r40")
	require.False(t, calls["over_ints"].Rows)
	require.True(t, calls["far_ints"].Rows, "nobody has looked whether it is over a row")
}

// A look that the server takes too long for is given up by the server: the connection
// serves, and the next ones do not wait again.
func TestALookThatLastsTakesNoConnectionAway(t *testing.T) {
	raw := postgres.ForTest(t)
	_, side := openURL(t, raw)
	side.run("BEGIN; LOCK TABLE pg_catalog.pg_extension IN ACCESS EXCLUSIVE MODE")
	db, _ := openURL(t, raw, func(c *Config) { c.ConnectTimeout = 3 * time.Second })
	mustRead(t, db, "SELECT 1")
	side.run("ROLLBACK")
	mustRead(t, db, "SELECT 1")
}
