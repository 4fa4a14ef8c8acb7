package sqlgate

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policyfolder"
)

func TestARolledBackBlockLeavesNothingAndSaysSo(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("START TRANSACTION ISOLATION LEVEL SERIALIZABLE")
	c.query("INSERT INTO t VALUES (1, 'a')")
	_, rows := c.query("SHOW transaction_isolation")
	require.Equal(t, []string{"serializable"}, rows)
	tag, _ := c.query("ROLLBACK")
	require.Equal(t, "ROLLBACK", tag)
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
	require.Equal(t, []string{"INSERT dispatched", "INSERT failure rolled_back"}, w.trail())
}

func TestABlockThatTheClientLeavesIsRolledBack(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (1, 'a')")
	c.Close(t.Context())
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
	require.Equal(t, []string{"INSERT dispatched", "INSERT failure rolled_back"}, w.trail())
	w.wire().query("BEGIN")
	require.Zero(t, w.Database.Stats().InUse)
}

func TestAfterAnErrorABlockTakesOnlyItsEnd(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (1, 'a')")
	require.Equal(t, "23505", state(c.refused("INSERT INTO t VALUES (1, 'b')")))
	require.Equal(t, WireFailed, c.Status())
	require.Equal(t, "25P02", state(c.refused("SELECT 1")))
	require.Equal(t, "25P02", state(c.refused("SET application_name = 'x'")))
	require.Equal(t, "parser_error", state(c.refused("SELEC 1")))
	tag, _ := c.query("COMMIT")
	require.Equal(t, "ROLLBACK", tag)
	require.Equal(t, WireIdle, c.Status())
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
	require.Equal(t, []string{"INSERT dispatched", "INSERT dispatched", "INSERT failure db_error", "INSERT failure rolled_back"}, w.trail())
}

func TestWhatASavepointUndoesIsAFailureOfItsOwn(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (1, 'a')")
	c.query("SAVEPOINT s")
	c.query("INSERT INTO t VALUES (2, 'b')")
	require.Equal(t, "23505", state(c.refused("INSERT INTO t VALUES (1, 'c')")))
	tag, _ := c.query("ROLLBACK TO s")
	require.Equal(t, "ROLLBACK", tag)
	require.Equal(t, WireInBlock, c.Status())
	require.Equal(t, []string{"INSERT dispatched", "INSERT dispatched", "INSERT dispatched", "INSERT failure db_error", "INSERT failure rolled_back_to_savepoint"}, w.trail())
	c.query("INSERT INTO t VALUES (3, 'd')")
	c.query("RELEASE s")
	require.Equal(t, "3B001", state(c.refused("ROLLBACK TO s")))
	require.Equal(t, WireFailed, c.Status())
	c.query("ROLLBACK")

	c.query("BEGIN")
	require.Equal(t, "parser_error", state(c.refused("SELEC")))
	require.Equal(t, "3B001", state(c.refused("ROLLBACK TO s")), "nothing was sent yet, and there is none")
	c.query("ROLLBACK")

	c.query("BEGIN")
	c.query("SAVEPOINT \"A b\"")
	c.query("INSERT INTO t VALUES (1, 'a')")
	c.query("ROLLBACK TO SAVEPOINT \"A b\"")
	c.query("INSERT INTO t VALUES (2, 'b')")
	c.query("COMMIT")
	require.Equal(t, "2", w.value("SELECT string_agg(id::text, ',') FROM t"))
}

func TestAStatementThatTheGateRefusesFailsTheBlockUntilItsSavepoint(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (1, 'a')")
	c.query("SAVEPOINT s")
	require.Equal(t, "parser_error", state(c.refused("SELEC 1")))
	require.Equal(t, WireFailed, c.Status())
	c.query("ROLLBACK TO s")
	require.Equal(t, WireInBlock, c.Status())
	c.query("COMMIT")
	require.Equal(t, "1", w.value("SELECT count(*) FROM t"))
}

func TestADecisionThatStopsAStatementEndsTheBlockAtOnce(t *testing.T) {
	for sql, decision := range map[string]string{"TRUNCATE t": "BLOCK", "DELETE FROM t WHERE id = 1": "REQUIRE_APPROVAL"} {
		w := newWireWorld(t, nil)
		c := w.wire()
		c.query("BEGIN")
		c.query("SAVEPOINT s")
		c.query("INSERT INTO t VALUES (1, 'a')")
		require.Equal(t, decision, state(c.refused(sql)))
		require.Equal(t, WireFailed, c.Status())
		require.Zero(t, w.Database.Stats().InUse, "no transaction waits for a person")
		require.Equal(t, []string{"INSERT dispatched", "INSERT failure rolled_back"}, w.trail())
		require.Equal(t, "25P02", state(c.refused("ROLLBACK TO s")))
		require.Equal(t, "25P02", state(c.refused("SELECT 1")))
		tag, _ := c.query("COMMIT")
		require.Equal(t, "ROLLBACK", tag)
		require.Equal(t, WireIdle, c.Status())
	}
}

func TestABlockThatOnlyReadsWritesNothingOfItsEnd(t *testing.T) {
	w := newWireWorld(t, nil)
	w.wire().query("INSERT INTO t VALUES (1, 'a')")
	c := w.wire()
	c.query("BEGIN TRANSACTION READ ONLY")
	_, rows := c.query("SELECT v FROM t")
	require.Equal(t, []string{"a"}, rows)
	err := c.refused("INSERT INTO t VALUES (2, 'b')")
	require.Equal(t, "25006", state(err))
	require.Equal(t, WireFailed, c.Status())
	c.query("ROLLBACK")
	c.query("SET default_transaction_read_only = on")
	require.Equal(t, "25006", state(c.refused("INSERT INTO t VALUES (2, 'b')")))
	c.query("BEGIN READ WRITE")
	c.query("INSERT INTO t VALUES (2, 'b')")
	c.query("COMMIT")
	require.Equal(t, "2", w.value("SELECT count(*) FROM t"))
}

// What a client says of a transaction holds wherever it says it: a block that is told
// READ ONLY writes nothing any more. The database itself says the same to each row.
func TestTheModesOfATransactionHoldWhereverTheyAreSaid(t *testing.T) {
	w := newWireWorld(t, nil)
	const write = "INSERT INTO t SELECT count(*) FROM t"
	for _, row := range []struct {
		sent []string // the last one fails, where there is a state
		want string
	}{
		{[]string{"BEGIN", "BEGIN READ ONLY", write}, "25006"},
		{[]string{"BEGIN", write, "START TRANSACTION READ ONLY", write}, "25006"},
		{[]string{"BEGIN READ ONLY", "SELECT 1", "BEGIN READ WRITE"}, "25001"},
		{[]string{"BEGIN READ ONLY", "BEGIN READ WRITE", write}, ""},
		{[]string{"BEGIN", write, "BEGIN ISOLATION LEVEL SERIALIZABLE"}, "25001"},
		{[]string{"BEGIN", write, "BEGIN ISOLATION LEVEL READ COMMITTED", write}, ""},
		{[]string{"BEGIN", "SELECT 1", "BEGIN DEFERRABLE"}, "25001"},
		{[]string{"BEGIN DEFERRABLE", "SELECT 1", "SET TRANSACTION DEFERRABLE"}, "25001"},
		{[]string{"BEGIN", "SAVEPOINT a", "BEGIN DEFERRABLE"}, "25001"},
		{[]string{"BEGIN", "SAVEPOINT a", "BEGIN ISOLATION LEVEL SERIALIZABLE"}, "25001"},
		{[]string{"BEGIN READ ONLY", "SAVEPOINT a", "BEGIN READ WRITE"}, "25001"},
		{[]string{"BEGIN", "SAVEPOINT a", "BEGIN READ ONLY", write}, "25006"},
		{[]string{"BEGIN", write, "SAVEPOINT a", "SET TRANSACTION READ ONLY", "SELECT 1", "ROLLBACK TO a", write}, ""},
		{[]string{"BEGIN", write, "SAVEPOINT a", "SET TRANSACTION READ ONLY", "SELECT 1", "RELEASE a", write}, ""},
		{[]string{"BEGIN", "SAVEPOINT a", "SAVEPOINT b", "BEGIN READ ONLY", "RELEASE a", write}, ""},
		{[]string{"BEGIN", "SET TRANSACTION READ ONLY", "SAVEPOINT a", "ROLLBACK TO a", "RELEASE a", write}, "25006"},
		{[]string{"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "BEGIN", "SET LOCAL SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", "COMMIT", write}, "25006"},
		{[]string{"BEGIN", "SET LOCAL SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "COMMIT", write}, ""},
		{[]string{"BEGIN", "SET default_transaction_read_only = on", write, "BEGIN", write, "COMMIT", write}, "25006"},
	} {
		direct, err := pgconn.Connect(t.Context(), w.url)
		require.NoError(t, err)
		for i, sql := range row.sent {
			want := ""
			if i == len(row.sent)-1 {
				want = row.want
			}
			var refused *pgconn.PgError
			if _, err := direct.Exec(t.Context(), sql).ReadAll(); errors.As(err, &refused) {
				require.Equal(t, want, refused.Code, "at the database itself: %v", row.sent)
			} else {
				require.NoError(t, err)
				require.Empty(t, want, "at the database itself: %v", row.sent)
			}
		}
		require.NoError(t, direct.Close(t.Context()))
		postgresExecute(w, "TRUNCATE t")
		c := w.wire()
		for i, sql := range row.sent {
			if i == len(row.sent)-1 && row.want != "" {
				require.Equal(t, row.want, state(c.refused(sql)), "%v", row.sent)
				break
			}
			c.query(sql)
		}
		if c.Status() != WireIdle {
			c.query("ROLLBACK")
		}
		postgresExecute(w, "TRUNCATE t")
	}

	c := w.wire()
	c.query("BEGIN")
	c.query("SAVEPOINT a")
	c.query("RELEASE a") // the database has the transaction open, and nothing was asked
	c.query("BEGIN ISOLATION LEVEL SERIALIZABLE, DEFERRABLE")
	require.Equal(t, []string{"serializable", "on"}, []string{c.show("transaction_isolation"), c.show("transaction_deferrable")})
	_, rows := c.query("SELECT current_setting('transaction_isolation') || current_setting('transaction_deferrable')")
	require.Equal(t, []string{"serializableon"}, rows)
}

// Outside of a block a transaction lasts until Sync, and so do its modes.
func TestTheModesOfWhatStandsBeforeASync(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	const write = "INSERT INTO t SELECT count(*) FROM t"
	for _, row := range []struct {
		sent []string
		want string
	}{
		{[]string{"SET TRANSACTION READ ONLY", write}, "25006"},
		{[]string{write, "SET LOCAL TRANSACTION READ ONLY", write}, "25006"},
		{[]string{write, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"}, "25001"},
		{[]string{"SELECT 1", "BEGIN ISOLATION LEVEL SERIALIZABLE"}, "25001"},
		{[]string{"SELECT 1", "BEGIN DEFERRABLE"}, "25001"},
		{[]string{write, "BEGIN READ ONLY", write}, "25006"},
		{[]string{"SET default_transaction_read_only = on", "BEGIN", write}, ""},
		{[]string{"SET default_transaction_read_only = on", write, "COMMIT", write}, "25006"},
	} {
		for i, sql := range row.sent {
			_, _, err := c.execute(false, sql)
			if i < len(row.sent)-1 || row.want == "" {
				require.NoError(t, err, "%v", row.sent)
			} else {
				require.Equal(t, row.want, state(err), "%v", row.sent)
			}
		}
		c.sync()
		c.query("ROLLBACK")
		c.query("RESET ALL")
		postgresExecute(w, "TRUNCATE t")
	}
	c.ran("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
	_, rows, err := c.execute(false, "SELECT current_setting('transaction_isolation')")
	require.NoError(t, err)
	require.Equal(t, []string{"serializable"}, rows)
	c.sync()
	c.query("SET default_transaction_read_only = on")
	c.ran("SET TRANSACTION READ WRITE")
	c.ran(write)
	c.ran("SET LOCAL application_name = 'until Sync'")
	require.Equal(t, "until Sync", c.Wire.show("application_name"))
	c.sync()
	require.Empty(t, c.show("application_name"))
	require.Equal(t, "1", w.value("SELECT count(*) FROM t"))
	require.Equal(t, "25006", state(c.refused(write)))
}

// What the policy allows and is no safe read runs in a READ ONLY transaction, of its own
// too: whether it writes is the server's word, which it says to the same statement itself.
func TestWhatIsNoSafeReadRunsWhereTheTransactionIsReadOnly(t *testing.T) {
	w := newWireWorld(t, func(o *Options) {
		o.Policies.Dir = filepath.Join(t.TempDir(), "readonly")
		document := strings.Replace(wirePolicy, "MERGE, LOCK]", "MERGE, LOCK, EXPLAIN, NOTIFY]", 1)
		require.NoError(t, policyfolder.Create(o.Policies.Dir, policyfolder.DefaultManifest, []byte(document)))
	})
	postgresExecute(w, "CREATE SEQUENCE numbers; CREATE FUNCTION reads() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(*) FROM t); END'")
	postgresExecute(w, "CREATE FUNCTION writes() RETURNS int LANGUAGE plpgsql AS 'BEGIN INSERT INTO t VALUES (9); RETURN 1; END'")
	postgresExecute(w, `CREATE FUNCTION undoes() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
 BEGIN PERFORM set_config('transaction_read_only', 'off', true); EXCEPTION WHEN others THEN NULL; END;
 INSERT INTO t VALUES (9); RETURN 1; END $$;
CREATE FUNCTION sets() RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('transaction_read_only', 'off', true); INSERT INTO t VALUES (9); RETURN 1; END $$`)
	direct, err := pgconn.Connect(t.Context(), w.url)
	require.NoError(t, err)
	defer direct.Close(context.WithoutCancel(t.Context()))
	for sql, refused := range map[string]bool{
		"SELECT clock_timestamp() IS NULL": false, "SELECT pg_is_in_recovery()": false, "SELECT pg_table_size('t') >= 0": false, "SELECT reads()": false,
		"SELECT pg_advisory_xact_lock(1)": false, "EXPLAIN ANALYZE SELECT 1": false, "EXPLAIN UPDATE t SET v = 'a'": false, "NOTIFY channel": false,
		"LOCK TABLE t IN ACCESS SHARE MODE": false,
		"SELECT undoes()":                   true,
		"SELECT writes()":                   true, "SELECT nextval('numbers')": true, "SELECT id FROM t FOR UPDATE": true, "LOCK TABLE t IN EXCLUSIVE MODE": false,
		"EXPLAIN ANALYZE UPDATE t SET v = 'a'": true, "UPDATE t SET v = 'a'": true, "CREATE TABLE made (id int)": true, "SELECT 1 AS one INTO made": true,
	} {
		want := map[bool]string{true: "25006"}[refused]
		_, err := direct.Exec(t.Context(), "BEGIN READ ONLY; "+sql).ReadAll()
		var own *pgconn.PgError
		require.Equal(t, refused, errors.As(err, &own) && own.Code == "25006", "at the database itself: %s: %v", sql, err)
		_, err = direct.Exec(t.Context(), "ROLLBACK").ReadAll()
		require.NoError(t, err)
		for _, begin := range []string{"BEGIN READ ONLY", "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY", "SET default_transaction_read_only = on"} {
			if strings.HasPrefix(sql, "LOCK") && strings.HasPrefix(begin, "SET") {
				continue // it is for blocks
			}
			c := w.wire()
			before := len(w.events())
			c.query(begin)
			_, err := c.Query(t.Context(), sql, &rowsSink{})
			if want == "" {
				require.NoError(t, err, "%s; %s", begin, sql)
				if c.Status() != WireIdle {
					c.query("SELECT 1")
					c.query("COMMIT")
				}
			} else {
				require.Equal(t, want, state(err), "%s; %s", begin, sql)
				require.NotEqual(t, fault.DBUnavailable, fault.CodeOf(err), "%s; %s", begin, sql)
			}
			c.query("ROLLBACK")
			var ran []event.Type
			for _, e := range w.events()[before:] {
				switch e.Type {
				case event.TypeExecutionDispatched:
					var d event.ExecutionDispatched
					require.NoError(t, e.Parse(&d))
					require.Equal(t, d.Path == event.PathTx && !strings.HasPrefix(sql, "LOCK"), d.XID != 0, sql)
				case event.TypeExecutionSuccess:
					require.Empty(t, want, sql)
				case event.TypeExecutionStateUnknown, event.TypeDBUnavailable:
					t.Fatalf("%s; %s: %s", begin, sql, e.Type)
				}
				ran = append(ran, e.Type)
			}
			require.Equal(t, want == "", slices.Contains(ran, event.TypeExecutionSuccess), "%s; %s: %v", begin, sql, ran)
		}
	}
	require.Equal(t, "25001", state(w.wire([2]string{"default_transaction_read_only", "on"}).refused("SELECT sets()")))
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
	require.Equal(t, "25006", state(w.wire([2]string{"default_transaction_read_only", "on"}).refused("VACUUM t")), "it runs in no transaction")
	c := w.wire()
	c.query("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE")
	require.Equal(t, "25006", state(c.refused("SELECT reads()")), "it may wait for its snapshot")
}

// What is deferred to the end of a block that became READ ONLY runs as at the database,
// and that it may not write is no outage.
func TestADeferredTriggerOfABlockThatBecameReadOnly(t *testing.T) {
	w := newWireWorld(t, nil)
	postgresExecute(w, `CREATE TABLE log (id int); CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO log VALUES (1); RETURN NULL; END'`)
	postgresExecute(w, `CREATE CONSTRAINT TRIGGER noted AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION noted()`)
	c := w.wire()
	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (1, 'a')")
	c.query("SET TRANSACTION READ ONLY")
	err := c.refused("COMMIT")
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), "%v", err)
	require.Equal(t, "25006", state(err))
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))

	c.query("BEGIN") // the mode ends with the savepoint, and that with COMMIT before the trigger runs
	c.query("INSERT INTO t VALUES (1, 'a')")
	c.query("SAVEPOINT first")
	c.query("SAVEPOINT second")
	c.query("SET TRANSACTION READ ONLY")
	c.query("COMMIT")
	require.Equal(t, "1|1", w.value("SELECT (SELECT count(*) FROM t) || '|' || (SELECT count(*) FROM log)"))
}

func TestABlockHasAtMostSoManyWrites(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	for i := range wireWrites {
		c.query("INSERT INTO t VALUES (" + strconv.Itoa(i) + ", 'a')")
	}
	require.Equal(t, "session_limit_exceeded", state(c.refused("INSERT INTO t VALUES (9999, 'a')")))
	require.Equal(t, WireFailed, c.Status())
	c.query("ROLLBACK")
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
}

func TestAsManyBlocksAsThereMayBe(t *testing.T) {
	w := newWireWorld(t, func(o *Options) { o.Wire.MaxBlocks = 1 })
	first, second := w.wire(), w.wire()
	first.query("BEGIN")
	first.query("INSERT INTO t VALUES (1, 'a')")
	second.query("BEGIN")
	require.Equal(t, "53300", state(second.refused("INSERT INTO t VALUES (2, 'b')")))
	second.query("ROLLBACK")
	second.query("INSERT INTO t VALUES (2, 'b')") // alone it needs no block
	first.query("COMMIT")
	second.query("BEGIN")
	second.query("INSERT INTO t VALUES (3, 'c')")
	second.query("COMMIT")
	require.Equal(t, "3", w.value("SELECT count(*) FROM t"))
}

// One client cannot keep all others from having a transaction.
func TestOneClientDoesNotHaveAllBlocks(t *testing.T) {
	w := newWireWorld(t, func(o *Options) { o.Wire.MaxBlocks, o.Wire.BlocksReserved = 8, 2 })
	for range 7 {
		require.NoError(t, w.blocks.enter("greedy"))
	}
	write := func(c *wireClient, client string) error {
		ctx := pgexec.ForClient(t.Context(), client)
		_, err := c.Query(ctx, "BEGIN", &rowsSink{})
		require.NoError(t, err)
		_, err = c.Query(ctx, "INSERT INTO t SELECT coalesce(max(id), 0) + 1, 'a' FROM t", &rowsSink{})
		return err
	}
	eighth, other, third := w.wire(), w.wire(), w.wire()
	err := write(eighth, "greedy")
	require.Equal(t, "53300", state(err))
	require.ErrorContains(t, err, "this client has 7 open")
	require.NoError(t, write(other, "other"))
	require.ErrorContains(t, write(third, "third"), "8 are open")
	other.query("COMMIT")
	third.query("ROLLBACK")
	eighth.query("ROLLBACK")
	w.blocks.leave("greedy")
	require.NoError(t, write(eighth, "greedy"))
	require.Equal(t, 7, w.WireBlocks())
	eighth.query("ROLLBACK")
	for range 6 {
		w.blocks.leave("greedy")
	}
	require.Zero(t, w.WireBlocks())
	require.Empty(t, w.blocks.of)
}

func TestTheEndsOfATransactionOutsideOfOneWarn(t *testing.T) {
	c := newWireWorld(t, nil).wire()
	for sql, want := range map[string]string{"COMMIT": "25P01", "ROLLBACK": "25P01", "SET LOCAL application_name = 'x'": "25P01"} {
		done, err := c.Query(t.Context(), sql, &rowsSink{})
		require.NoError(t, err)
		require.Equal(t, want, done.Notices[0].SQLState, sql)
		require.Equal(t, WireIdle, c.Status())
	}
	c.query("BEGIN")
	done, err := c.Query(t.Context(), "BEGIN", &rowsSink{})
	require.NoError(t, err)
	require.Equal(t, "25001", done.Notices[0].SQLState)
	c.query("ROLLBACK")
	for _, sql := range []string{"SAVEPOINT s", "RELEASE s", "ROLLBACK TO s"} {
		require.Equal(t, "25P01", state(c.refused(sql)), sql)
	}
	require.Equal(t, "0A000", state(c.refused("COMMIT AND CHAIN")))
	for _, sql := range []string{"PREPARE TRANSACTION 'x'", "COPY t FROM STDIN", "COPY t TO STDOUT", "LISTEN x", "DECLARE c CURSOR FOR SELECT 1", "FETCH c", "SET ROLE x", "SET work_mem = '1GB'", "DISCARD PLANS", "SET CONSTRAINTS ALL DEFERRED"} {
		require.Equal(t, "unsupported_sql_shape", state(c.refused(sql)), sql)
	}
}

func TestTheDispatchesOfABlockShareItsIdAndTransaction(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	c.query("BEGIN")
	c.query("INSERT INTO t VALUES (1, 'a')")
	c.query("INSERT INTO t VALUES (2, 'b')")
	c.query("COMMIT")
	c.query("INSERT INTO t VALUES (3, 'c')")
	var sent []event.ExecutionDispatched
	sessions := map[string]bool{}
	var operations []string
	for _, e := range w.events() {
		switch e.Type {
		case event.TypeExecutionDispatched:
			var p event.ExecutionDispatched
			require.NoError(t, e.Parse(&p))
			sent = append(sent, p)
		case event.TypeRequestReceived:
			var p event.RequestReceived
			require.NoError(t, e.Parse(&p))
			sessions[p.WireSession] = true
			operations = append(operations, e.Context.Operation)
		}
	}
	require.Len(t, sent, 3)
	require.Regexp(t, "^blk_", sent[0].BlockID)
	require.Equal(t, sent[0].BlockID, sent[1].BlockID)
	require.Equal(t, sent[0].XID, sent[1].XID)
	require.Empty(t, sent[2].BlockID)
	require.NotEqual(t, sent[0].XID, sent[2].XID)
	require.Equal(t, map[string]bool{"wir_test": true}, sessions)
	require.Equal(t, []string{"BEGIN", "INSERT", "INSERT", "COMMIT", "INSERT"}, operations, "each order's evidence stands where it was given")
}

// A block whose deferred checks take too long is rolled back before COMMIT is
// sent: so is what it had set.
func TestWhatABlockHadSetGoesWithATimeoutOfItsDeferredChecks(t *testing.T) {
	w := newWireWorld(t, nil)
	postgresExecute(w, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(30); RETURN NULL; END'`)
	postgresExecute(w, `CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
	c := w.wire()
	c.query("SET statement_timeout = 2000") // of the INSERT as well
	c.query("BEGIN")
	c.query("SET TimeZone = 'Europe/Berlin'")
	c.query("INSERT INTO t VALUES (1, 'a')")
	err := c.refused("COMMIT")
	require.Equal(t, fault.DBQueryTimeout, fault.CodeOf(err), "%v", err)
	require.Equal(t, WireIdle, c.Status())
	_, rows := c.query("SHOW TimeZone")
	require.Equal(t, []string{"UTC"}, rows)
	require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
}

// A savepoint's name is the client's: whatever it is, and whatever a read did in
// between, ROLLBACK TO undoes in the database what the log says was undone.
func TestNoNameOfASavepointMakesTheLogUntrue(t *testing.T) {
	w := newWireWorld(t, nil)
	long := strings.Repeat("ä", 40) // of 80 bytes: PostgreSQL cuts it to 62
	for _, name := range []string{"gate_fence", "s", `"A ""b"" \"`, `U&"\0067ate_fence"`, `"` + long + `"`, "GATE_FENCE"} {
		for how, read := range map[string]func(c *wireClient){
			"a failing SELECT":             func(c *wireClient) { c.refused("SELECT 1/(id-id) FROM t") },
			"a failing SELECT in messages": func(c *wireClient) { _, _, err := c.execute(false, "SELECT 1/(id-id) FROM t"); require.Error(t, err) },
			"a failing Describe": func(c *wireClient) {
				require.NoError(t, c.Parse(t.Context(), "", "SELECT nothing FROM t", nil))
				_, _, err := c.DescribeStatement(t.Context(), "")
				require.Equal(t, "42703", state(err))
			},
			"a SELECT": func(c *wireClient) { c.query("SELECT count(*) FROM t") },
		} {
			postgresExecute(w, "TRUNCATE t; INSERT INTO t VALUES (1, 'there')")
			c, before := w.wire(), len(w.trail())
			c.query("BEGIN")
			c.query("SAVEPOINT " + name)
			c.query("INSERT INTO t VALUES (31337)")
			read(c)
			c.sync()
			c.query("ROLLBACK TO " + name)
			c.query("COMMIT")
			require.Equal(t, "1", w.value("SELECT count(*) FROM t"), "%s, %s", name, how)
			require.Contains(t, w.trail()[before:], "INSERT failure rolled_back_to_savepoint", "%s, %s", name, how)
		}
	}
	c := w.wire()
	c.query("BEGIN")
	c.query(`SAVEPOINT "` + long + `"`)
	c.query(`RELEASE "` + strings.Repeat("ä", 31) + `"`)
	require.Equal(t, "3B001", state(c.refused(`ROLLBACK TO "`+long+`"`)))
}

// What the log could not take of a write is not said later either: by then its
// transaction id would say that it was committed.
func TestABlockIsGivenUpWhereTheLogMissesWhatBecameOfAWrite(t *testing.T) {
	for step, sql := range map[string]string{
		"decision.before_append": "INSERT INTO t VALUES (3, 'c')", "result.before_append": "INSERT INTO t VALUES (1, 'again')", "block.before_append": "ROLLBACK TO s",
	} {
		t.Run(step, func(t *testing.T) {
			w := newWireWorld(t, nil)
			c := w.wire()
			c.query("BEGIN")
			c.query("INSERT INTO t VALUES (1, 'a')")
			c.query("SAVEPOINT s")
			c.query("INSERT INTO t VALUES (2, 'b')")
			w.stops.Store(step, func() { w.full.Store(true) })
			require.Equal(t, "audit_unavailable", state(c.refused(sql)))
			require.Zero(t, w.Database.Stats().InUse, "the transaction is over")
			require.Equal(t, "0", w.value("SELECT count(*) FROM t"))
		})
	}
}
