package pgexec

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Nothing of a statement is in its session any more as soon as it is over, whether
// anybody uses the connection again or not.
func TestWhatAStatementLeavesInItsSessionIsGoneWithoutAnotherUse(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run(`CREATE FUNCTION leave() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(1); EXECUTE 'PREPARE left_over AS SELECT 1';
 IF current_setting('transaction_read_only') = 'off' THEN
  EXECUTE 'CREATE TEMPORARY TABLE left_over (a int); LISTEN left_over; DECLARE left_over CURSOR WITH HOLD FOR SELECT 1'; PERFORM set_config('work_mem', '77kB', false);
 END IF; RETURN 1; END $$;
CREATE VIEW v AS SELECT leave() AS a; CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1)`)
	const locked = "WITH w AS (INSERT INTO t VALUES (2) RETURNING pg_advisory_lock(2)) SELECT 1/(count(*)-1) FROM w"
	for what, leave := range map[string]func(){
		"a write":            func() { mustWrite(t, db, "SELECT leave()") },
		"a write that fails": func() { _, _, err := write(t, db, locked, Limits{}); require.Error(t, err) },
		"a write that is given up": func() {
			tx, err := db.Begin(context.Background(), BeginOptions{})
			require.NoError(t, err)
			_, err = tx.Exec(context.Background(), sql("SELECT leave()"), db.NewRows(0))
			require.NoError(t, err)
			tx.Rollback()
		},
		"a block":        func() { b := beginBlock(t, db, BlockOptions{}); b.write("SELECT leave()"); b.commit() },
		"a block undone": func() { b := beginBlock(t, db, BlockOptions{}); b.failWrite(locked); b.Rollback() },
		"a read of a block": func() {
			b := beginBlock(t, db, BlockOptions{})
			b.read("SELECT a FROM v")
			b.Rollback()
		},
		"a statement alone": func() {
			_, err := alone(t, db, "SELECT leave()", Limits{})
			require.NoError(t, err)
		},
		"a read":            func() { mustRead(t, db, "SELECT a FROM v") },
		"a read that fails": func() { _, _, err := read(t, db, "SELECT a, 1/(a-1) FROM v"); require.Error(t, err) },
	} {
		leave()
		side.eventually(advisoryLocks, "0")
		side.eventually("SELECT count(*) FROM pg_class WHERE relname = 'left_over'", "0")
		const rest = "SELECT (SELECT count(*) FROM pg_prepared_statements WHERE name = 'left_over') + (SELECT count(*) FROM pg_cursors WHERE name = 'left_over') + (SELECT count(*) FROM pg_listening_channels()) AS n, current_setting('work_mem') = '77kB' AS l"
		want := `[{"n":0,"l":false}]`
		require.Equal(t, want, mustRead(t, db, rest), what)
		tx, err := db.Begin(context.Background(), BeginOptions{})
		require.NoError(t, err)
		rows := db.NewRows(0)
		_, err = tx.Exec(context.Background(), sql(rest), rows)
		require.NoError(t, err)
		require.Equal(t, want, string(rows.JSON()), what)
		tx.Rollback()
		require.Equal(t, "", side.ask("SELECT string_agg(a::text, '') FROM t WHERE a > 1"), what)
	}
	require.Zero(t, db.Stats().Quarantined)
}

// A name of a prepared statement is for every function to use. It can take one away,
// or put a statement of its own there; the gate neither runs it nor is told by it.
func TestAFunctionThatTakesTheNamesOfPreparedStatements(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run("CREATE TABLE t (a int PRIMARY KEY); CREATE TABLE forged (name text)")
	var as strings.Builder
	for _, name := range []string{"BEGIN", "BEGIN READ ONLY", "RESET ALL", "DISCARD SEQUENCES", passing, "COMMIT", "ROLLBACK", "look"} {
		fmt.Fprintf(&as, `EXECUTE 'PREPARE "%s" AS INSERT INTO forged VALUES (''%s'') RETURNING 1, ''forged'', ''f'''; `, name, name)
	}
	side.run(`CREATE FUNCTION away() RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DEALLOCATE ALL'; PERFORM set_config('work_mem', '77kB', false); RETURN 1; END $$;
CREATE FUNCTION instead() RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DEALLOCATE ALL'; ` + as.String() + `PERFORM set_config('work_mem', '77kB', false); RETURN 1; END $$;
CREATE VIEW v AS SELECT away() AS a, instead() AS b`)
	for i, what := range []string{"away()", "instead()"} {
		for j, use := range []func(){
			func() { mustWrite(t, db, "INSERT INTO t SELECT 10 * "+what+" + "+strconv.Itoa(i)) },
			func() {
				b := beginBlock(t, db, BlockOptions{})
				b.write("INSERT INTO t SELECT 20 * " + what + " + " + strconv.Itoa(i))
				b.read("SELECT " + what)
				b.write("INSERT INTO t SELECT 30 * " + what + " + " + strconv.Itoa(i))
				b.commit()
			},
			func() { _, _, err := write(t, db, "SELECT 1/("+what+"-1)", Limits{}); require.Error(t, err) },
			func() { require.NotEmpty(t, mustRead(t, db, "SELECT * FROM v")) },
		} {
			use()
			require.Equal(t, `[{"a":1}]`, mustRead(t, db, "SELECT 1 AS a"), "%s %d", what, j)
			_, rows, err := write(t, db, "SELECT current_setting('work_mem') = '77kB' AS s, (SELECT count(*) FROM pg_prepared_statements WHERE from_sql) AS n", Limits{})
			require.NoError(t, err)
			require.Equal(t, `[{"s":false,"n":0}]`, rows, "%s %d", what, j)
		}
	}
	require.Equal(t, "", side.ask("SELECT string_agg(name, ',') FROM forged"))
	require.Equal(t, "10,11,20,21,30,31", side.ask("SELECT string_agg(a::text, ',' ORDER BY a) FROM t"))
	require.Zero(t, db.Stats().Quarantined)
}

// What one client made random() give is not what the next one gets, whoever set the
// seed: the text, or a function behind it.
func TestTheNextClientDrawsOtherNumbers(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run(`CREATE FUNCTION seeds() RETURNS int LANGUAGE plpgsql AS 'BEGIN PERFORM setseed(0.5); RETURN 1; END'`)
	draw := func() string {
		_, rows, err := write(t, db, "SELECT random()::text || ' ' || pg_backend_pid() AS a", Limits{})
		require.NoError(t, err)
		return rows
	}
	drawn := map[string]bool{}
	for range 3 {
		for _, leave := range []string{"SELECT setseed(0.5)", "SET seed = 0.5", "SELECT seeds()"} {
			mustWrite(t, db, leave)
			number := draw()
			require.False(t, drawn[number], "%s after %s", number, leave)
			drawn[number] = true
		}
	}
}

// A session that resists is ended.
func TestAConnectionThatCannotBeCleanedIsEnded(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run("CREATE TABLE t (a int)")
	l, err := db.writer.acquire(context.Background())
	require.NoError(t, err)
	pid := l.upstream.BackendPID
	_, err = l.exchange(context.Background(), time.Now().Add(time.Minute), segment{own("SELECT pg_advisory_lock(1)"), own("BEGIN"), own("SAVEPOINT a")})
	require.NoError(t, err)
	l.dirty, l.txStatus = true, 'I' // so that DISCARD ALL is refused
	l.release()
	side.eventually(advisoryLocks, "0")
	mustWrite(t, db, "INSERT INTO t VALUES (1)")
	l, err = db.writer.acquire(context.Background())
	require.NoError(t, err)
	defer l.release()
	require.NotEqual(t, pid, l.upstream.BackendPID)
}

// A session that cannot be cleaned is found out by its next use as well, however
// early that comes, and then nothing of a client's has gone there.
func TestAUseBehindACleaningThatFails(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run("CREATE TABLE t (a int)")
	for range 20 {
		for _, p := range []*pool{db.writer, db.reader} {
			l, err := p.acquire(context.Background())
			require.NoError(t, err)
			_, err = l.exchange(context.Background(), time.Now().Add(time.Minute), segment{own("BEGIN")})
			require.NoError(t, err)
			l.dirty, l.txStatus = true, 'I'
			l.release()
		}
		mustWrite(t, db, "INSERT INTO t VALUES (1)")
		require.Equal(t, `[{"a":1}]`, mustRead(t, db, "SELECT 1 AS a"))
	}
	require.Equal(t, "20", side.ask("SELECT count(*) FROM t"))
}

// What code behind a safe read leaves in its session is met by no read and no
// Describe of another owner, however soon these come.
func TestAReadMeetsNothingThatOneOfAnotherOwnerLeft(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run(`CREATE FUNCTION leave() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_lock(1), setseed(0.5); EXECUTE 'PREPARE left_over AS SELECT 1'; RETURN 1; END $$;
CREATE FUNCTION found() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT concat_ws(' ', (SELECT count(*) FROM pg_prepared_statements WHERE from_sql), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())) $$;
CREATE FUNCTION shout() RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE EXCEPTION '%', found(); END $$;
CREATE VIEW v AS SELECT leave() AS a; CREATE VIEW left_over AS SELECT found() AS a; CREATE VIEW drawn AS SELECT random()::text AS a; CREATE VIEW shouted AS SELECT shout() AS a`)
	as := func(owner, text string) string {
		st := sql(text)
		st.Owner = owner
		rows := db.NewRows(0)
		_, err := db.Read(context.Background(), "", st, Limits{}, rows)
		require.NoError(t, err)
		return string(rows.JSON())
	}
	drawn := map[string]bool{}
	for range 3 {
		as("ann", "SELECT a FROM v")
		require.Equal(t, `[{"a":"1 1"}]`, as("ann", "SELECT a FROM left_over"), "it stays where it does no harm, so the test sees what there is")
		require.Equal(t, `[{"a":"0 0"}]`, as("eve", "SELECT a FROM left_over"))
		as("ann", "SELECT a FROM v")
		number := as("eve", "SELECT a FROM drawn")
		require.False(t, drawn[number], number)
		drawn[number] = true
		as("ann", "SELECT a FROM v")
		_, err := db.Describe(context.Background(), "SELECT coalesce(NULL, shout())", nil)
		if err != nil { // parsing does not call it in each version
			require.ErrorContains(t, err, "0 0")
		}
		require.Equal(t, `[{"a":"0 0"}]`, as("ann", "SELECT a FROM left_over"))
	}
	require.Zero(t, db.Stats().Quarantined)
}

// RESET ALL leaves the role alone, and SET ROLE to the session's own user changes no
// current_user. A schema of temporary tables stays for as long as its session.
func TestWhatNeitherResetNorDiscardTakesAway(t *testing.T) {
	db, side := open(t, func(c *Config) { c.PoolMax = 1 })
	side.run(`CREATE FUNCTION temporary() RETURNS int LANGUAGE plpgsql AS $$ BEGIN CREATE TEMPORARY TABLE gone (a int); RETURN 1; END $$`)
	const shows = "SELECT current_setting('role') AS r, pg_my_temp_schema()::text AS s, current_schemas(true)::text AS p"
	for _, leave := range []string{"SELECT set_config('role', current_user, false)", "SELECT set_config('role', 'pg_monitor', false)", "SELECT temporary()", "CREATE TEMPORARY TABLE gone (a int)"} {
		for _, in := range []func(){
			func() { mustWrite(t, db, leave) },
			func() {
				b := beginBlock(t, db, BlockOptions{})
				_, err := b.DispatchWrite(context.Background(), BeginOptions{})
				require.NoError(t, err)
				if _, err = b.Write(context.Background(), sql(leave), false, nil); err == nil {
					b.commit()
				}
				b.Rollback()
			},
		} {
			in()
			_, rows, err := write(t, db, shows, Limits{})
			require.NoError(t, err)
			require.Equal(t, `[{"r":"none","s":"0","p":"{pg_catalog,public}"}]`, rows, leave)
		}
		db.writer.mu.Lock()
		db.writer.drifts = nil
		db.writer.mu.Unlock()
	}
}
