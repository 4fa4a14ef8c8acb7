package sqlgate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

// outcomes is what the log says became of executions, in order.
func (w *wireWorld) outcomes() (list []string) {
	w.t.Helper()
	for _, e := range w.events() {
		switch e.Type {
		case event.TypeExecutionSuccess:
			list = append(list, "success")
		case event.TypeExecutionFailure:
			var p event.ExecutionFailure
			require.NoError(w.t, e.Parse(&p))
			list = append(list, p.Outcome+" "+p.Basis)
		case event.TypeExecutionOutcomeResolved:
			var p event.ExecutionOutcomeResolved
			require.NoError(w.t, e.Parse(&p))
			list = append(list, p.Outcome+" "+p.Basis)
		}
	}
	return list
}

const (
	partlyUndone = "partial_possible rollback_acknowledged"
	undone       = "aborted rollback_acknowledged"
)

// What a rollback does not undo is there, and the log says that it may be, however the
// transaction came to its end.
func TestALogDoesNotCallUndoneWhatNoRollbackUndoes(t *testing.T) {
	for name, c := range map[string]struct {
		run  func(*wireClient)
		want []string
	}{
		"a statement that fails": {func(c *wireClient) {
			require.Equal(c.t, "22012", state(c.refused("INSERT INTO t SELECT setval('sq', 7) / 0, 'a'")))
		}, []string{partlyUndone}},
		"a block that the client rolls back": {func(c *wireClient) {
			c.query("BEGIN")
			c.query("INSERT INTO t VALUES (1, 'a')")
			c.query("INSERT INTO t SELECT 2, setval('sq', 7)::text")
			c.query("ROLLBACK")
		}, []string{undone, partlyUndone}},
		"a block that the client leaves": {func(c *wireClient) {
			c.query("BEGIN")
			c.query("INSERT INTO t SELECT 2, setval('sq', 7)::text")
			c.Close(c.t.Context())
		}, []string{partlyUndone}},
		"a savepoint": {func(c *wireClient) {
			c.query("BEGIN")
			c.query("INSERT INTO t VALUES (1, 'a')")
			c.query("SAVEPOINT s")
			c.query("INSERT INTO t SELECT 2, setval('sq', 7)::text")
			c.query("ROLLBACK TO s")
			c.query("COMMIT")
		}, []string{partlyUndone, "success"}},
		"a COMMIT that fails": {func(c *wireClient) {
			c.query("BEGIN")
			c.query("INSERT INTO late VALUES (1)")
			c.query("INSERT INTO late SELECT setval('sq', 7) * 0 + 1")
			err := c.refused("COMMIT")
			require.Equal(c.t, "23505", state(err))
			require.Contains(c.t, fault.Of(err).Message, "no rollback undoes")
		}, []string{undone, partlyUndone}},
		"a prepared statement": {func(c *wireClient) {
			_, _, err := c.execute(true, "INSERT INTO t SELECT setval('sq', $1::int) / 0, 'a'", "7")
			require.Error(c.t, err)
		}, []string{partlyUndone}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWireWorld(t, nil)
			postgresExecute(w, "CREATE SEQUENCE sq; CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
			c.run(w.wire())
			require.Equal(t, "7", w.value("SELECT last_value FROM sq"))
			require.Equal(t, c.want, w.outcomes())
		})
	}
}

// postgres_fdw commits at each foreign server before the database does, so one that
// refuses comes too late for those before it.
func TestACommitThatFailedMayStandAtForeignServers(t *testing.T) {
	w := newWireWorld(t, nil)
	login, err := pgconn.ParseConfig(w.url)
	require.NoError(t, err)
	setup := "CREATE EXTENSION postgres_fdw;"
	for _, name := range []string{"a", "b"} {
		setup += fmt.Sprintf(`CREATE SERVER %[1]s FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '%[2]s', port '%[3]d', dbname '%[4]s');
			CREATE USER MAPPING FOR CURRENT_USER SERVER %[1]s OPTIONS (user '%[5]s', password '%[6]s');
			CREATE TABLE at_%[1]s (id int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO at_%[1]s VALUES (0);
			CREATE FOREIGN TABLE f_%[1]s (id int) SERVER %[1]s OPTIONS (table_name 'at_%[1]s');`, name, login.Host, login.Port, login.Database, login.User, login.Password)
	}
	postgresExecute(w, setup)
	c := w.wire()
	for k, sql := range []string{
		"WITH a AS (INSERT INTO f_a VALUES (11)) INSERT INTO f_b VALUES (0)",
		"WITH b AS (INSERT INTO f_b VALUES (12)) INSERT INTO f_a VALUES (0)",
	} {
		err := c.refused(sql)
		require.Equal(t, "23505", state(err))
		require.Contains(t, fault.Of(err).Message, "foreign tables")
		require.Equal(t, false, fault.Of(err).Details["retryable"])
		require.Equal(t, partlyUndone, w.outcomes()[k])
	}
	c.query("BEGIN")
	c.query("INSERT INTO f_a VALUES (21)")
	c.query("INSERT INTO f_b VALUES (0)")
	require.Contains(t, fault.Of(c.refused("COMMIT")).Message, "foreign tables")
	require.Equal(t, []string{partlyUndone, partlyUndone, partlyUndone, partlyUndone}, w.outcomes())
	require.NotEqual(t, "00", w.value("SELECT string_agg(id::text, '') FROM (SELECT id FROM at_a UNION ALL SELECT id FROM at_b) s"), "a part stands")

	for k, level := range []string{"READ COMMITTED", "REPEATABLE READ"} { // whose snapshot is from before there are any
		postgresExecute(w, "DROP EXTENSION postgres_fdw CASCADE; DROP TABLE at_a, at_b")
		c.query("BEGIN ISOLATION LEVEL " + level)
		c.query(fmt.Sprintf("INSERT INTO t VALUES (%d, 'x')", 5+k))
		postgresExecute(w, setup)
		c.query("INSERT INTO f_a VALUES (31)")
		c.query("INSERT INTO f_b VALUES (0)")
		require.Contains(t, fault.Of(c.refused("COMMIT")).Message, "foreign tables")
		require.Equal(t, []string{partlyUndone, partlyUndone, partlyUndone}, w.outcomes()[4+3*k:])
	}

	// The client's copy of a conflict that came with COMMIT does not tell it to send the statement again.
	postgresExecute(w, `CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'in the way' USING ERRCODE = '40001'; END $$;
		CREATE CONSTRAINT TRIGGER conflict AFTER INSERT ON at_b DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION conflict()`)
	err = c.refused("WITH a AS (INSERT INTO f_a VALUES (41)) INSERT INTO f_b VALUES (41)")
	require.Contains(t, fault.Of(err).Message, "Another statement was in its way. The database has foreign tables")
	require.NotContains(t, fault.Of(err).Message, "idempotency key")

	require.Equal(t, "23505", state(c.refused("INSERT INTO t VALUES (1, 'a'), (1, 'b')")))
	require.Equal(t, undone, w.outcomes()[11], "what fails before COMMIT is undone everywhere")
}

// A number that was drawn and not used is a gap: what fails on the way is undone, as
// far as anybody can see.
func TestAGapInASequenceIsNoEffect(t *testing.T) {
	w := newWireWorld(t, nil)
	postgresExecute(w, "CREATE TABLE numbered (id int GENERATED BY DEFAULT AS IDENTITY, n serial, v int NOT NULL)")
	c := w.wire()
	for _, sql := range []string{
		"INSERT INTO numbered (v) VALUES (NULL)",
		"INSERT INTO numbered (n, v) VALUES (nextval('numbered_n_seq'), NULL)",
		"INSERT INTO numbered (v) SELECT NULL FROM (SELECT pg_advisory_lock(1)) AS l", // the connection is cleaned
	} {
		require.Equal(t, "23502", state(c.refused(sql)), sql)
	}
	c.query("BEGIN")
	c.query("INSERT INTO numbered (v) VALUES (1)")
	c.query("ROLLBACK")
	require.NotEmpty(t, w.outcomes())
	for _, outcome := range w.outcomes() {
		require.Equal(t, undone, outcome)
	}
}

// What ran too long is known to be undone, but for what no rollback undoes; and a check
// that asks for the transaction knows no more.
func TestATimeoutDoesNotSettleWhatNoRollbackUndoes(t *testing.T) {
	w := newWireWorld(t, func(o *Options) { o.QueryTimeout = time.Second })
	postgresExecute(w, "CREATE SEQUENCE sq")
	err := w.wire().refused("INSERT INTO t SELECT setval('sq', 7), pg_sleep(60)::text")
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err))
	require.Equal(t, "not_knowable", fault.Of(err).Details["outcome"])
	require.Equal(t, "7", w.value("SELECT last_value FROM sq"))
	require.Equal(t, []string{"not_knowable rollback_acknowledged"}, w.outcomes())

	var id string
	for _, e := range w.events() {
		if e.Type == event.TypeExecutionDispatched {
			id = e.Context.ExecutionID
		}
	}
	x, err := w.CheckOutcome(t.Context(), id, "")
	require.NoError(t, err)
	require.Equal(t, []string{projections.ExecutionUnknown, "not_knowable", "pg_xact_status"}, []string{x.State, x.Outcome, x.Basis})
	again, err := w.CheckOutcome(t.Context(), id, "")
	require.NoError(t, err)
	require.Len(t, again.Events, len(x.Events), "nothing new was found")

	require.Error(t, w.wire().refused("INSERT INTO t SELECT 1, pg_sleep(60)::text"))
	require.True(t, strings.HasPrefix(w.outcomes()[2], "aborted "))
}
