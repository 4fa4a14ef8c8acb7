package classify

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

func yes() *bool { on := true; return &on }
func no() *bool  { return new(bool) }

// controls are statements in an order in which a server takes each of them.
var controls = []struct {
	sql  string
	want Control
}{
	{"BEGIN", Control{Kind: ControlBegin, Tag: "BEGIN"}},
	{`savepoint "A ""b"`, Control{Kind: ControlSavepoint, Tag: "SAVEPOINT", Name: `A "b`}},
	{`ROLLBACK WORK TO SAVEPOINT "A ""b"`, Control{Kind: ControlRollbackTo, Tag: "ROLLBACK", Name: `A "b`}},
	{`RELEASE "A ""b"`, Control{Kind: ControlRelease, Tag: "RELEASE", Name: `A "b`}},
	{"SET CONSTRAINTS ALL DEFERRED", Control{Kind: ControlSetConstraints, Tag: "SET CONSTRAINTS"}},
	{"END TRANSACTION", Control{Kind: ControlCommit, Tag: "COMMIT"}},
	{"START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE", Control{Kind: ControlBegin, Tag: "START TRANSACTION", Modes: Modes{"serializable", yes(), yes()}}},
	{"COMMIT AND CHAIN", Control{Kind: ControlCommit, Tag: "COMMIT", Chain: true}},
	{"ABORT AND NO CHAIN", Control{Kind: ControlRollback, Tag: "ROLLBACK"}},
	{"BEGIN ISOLATION LEVEL READ COMMITTED ISOLATION LEVEL REPEATABLE READ READ ONLY READ WRITE NOT DEFERRABLE", Control{Kind: ControlBegin, Tag: "BEGIN", Modes: Modes{"repeatable read", no(), no()}}},
	{"SET TRANSACTION READ ONLY", Control{Kind: ControlSetTransaction, Tag: "SET", Modes: Modes{ReadOnly: yes()}}},
	{"SET LOCAL TIME ZONE -7.5", Control{Kind: ControlSet, Tag: "SET", Name: "timezone", Local: true, Args: []Argument{{Kind: ArgumentNumber, Text: "-7.5"}}}},
	{"ROLLBACK", Control{Kind: ControlRollback, Tag: "ROLLBACK"}},
	{"SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE, ISOLATION LEVEL READ UNCOMMITTED", Control{Kind: ControlCharacteristics, Tag: "SET", Modes: Modes{Isolation: "read uncommitted", ReadOnly: no()}}},
	{`SET SESSION "Gate.Approval_ID" = 'apr_1'`, Control{Kind: ControlSet, Tag: "SET", Name: "gate.approval_id", Args: []Argument{{Kind: ArgumentString, Text: "apr_1"}}}},
	{"SET DateStyle TO ISO, 'MDY'", Control{Kind: ControlSet, Tag: "SET", Name: "datestyle", Args: []Argument{{Kind: ArgumentString, Text: "iso"}, {Kind: ArgumentString, Text: "MDY"}}}},
	{"SET statement_timeout = 0", Control{Kind: ControlSet, Tag: "SET", Name: "statement_timeout", Args: []Argument{{Kind: ArgumentNumber, Text: "0"}}}},
	{"SET array_nulls TO on", Control{Kind: ControlSet, Tag: "SET", Name: "array_nulls", Args: []Argument{{Kind: ArgumentString, Text: "on"}}}},
	{"SET TIME ZONE LOCAL", Control{Kind: ControlSetDefault, Tag: "SET", Name: "timezone"}},
	{"SET NAMES 'utf8'", Control{Kind: ControlSet, Tag: "SET", Name: "client_encoding", Args: []Argument{{Kind: ArgumentString, Text: "utf8"}}}},
	{"SET application_name TO DEFAULT", Control{Kind: ControlSetDefault, Tag: "SET", Name: "application_name"}},
	{"SET ROLE NONE", Control{Kind: ControlSet, Tag: "SET", Name: "role", Args: []Argument{{Kind: ArgumentString, Text: "none"}}}},
	{"SET SESSION AUTHORIZATION DEFAULT", Control{Kind: ControlSetDefault, Tag: "SET", Name: "session_authorization"}},
	{"RESET TIME ZONE", Control{Kind: ControlReset, Tag: "RESET", Name: "timezone"}},
	{"RESET ALL", Control{Kind: ControlResetAll, Tag: "RESET"}},
	{"SHOW TRANSACTION ISOLATION LEVEL", Control{Kind: ControlShow, Name: "transaction_isolation"}},
	{"SHOW ALL", Control{Kind: ControlShow, Name: "all"}},
	{"DISCARD PLANS", Control{Kind: ControlDiscard, Tag: "DISCARD PLANS", Name: "plans"}},
	{"DISCARD SEQUENCES", Control{Kind: ControlDiscard, Tag: "DISCARD SEQUENCES", Name: "sequences"}},
	{"DISCARD TEMPORARY", Control{Kind: ControlDiscard, Tag: "DISCARD TEMP", Name: "temp"}},
	{"DISCARD ALL", Control{Kind: ControlDiscard, Tag: "DISCARD ALL", Name: "all"}},
	{"CLOSE ALL", Control{Kind: ControlClose, Tag: "CLOSE CURSOR ALL"}},
	{"UNLISTEN *", Control{Kind: ControlUnlisten, Tag: "UNLISTEN"}},
	{`UNLISTEN "*"`, Control{Kind: ControlUnlisten, Tag: "UNLISTEN", Name: "*"}},
}

// controlsApart are those that a server takes under circumstances alone.
var controlsApart = map[string]Control{
	"CLOSE c":                         {Kind: ControlClose, Tag: "CLOSE CURSOR", Name: "c"},
	"PREPARE TRANSACTION 'x'":         {Kind: ControlPrepare, Tag: "PREPARE TRANSACTION"},
	"COMMIT PREPARED 'x'":             {Kind: ControlCommitPrepared, Tag: "COMMIT PREPARED"},
	"ROLLBACK PREPARED 'x'":           {Kind: ControlRollbackPrepared, Tag: "ROLLBACK PREPARED"},
	"SET TRANSACTION SNAPSHOT '0-1'":  {Kind: ControlSetSnapshot, Tag: "SET"},
	"SET x FROM CURRENT":              {Kind: ControlSetCurrent, Tag: "SET", Name: "x"},
	"SET LOCAL TRANSACTION READ ONLY": {Kind: ControlSetTransaction, Tag: "SET", Local: true, Modes: Modes{ReadOnly: yes()}},
	"SET TIME ZONE INTERVAL '2' HOUR TO MINUTE": {Kind: ControlSet, Tag: "SET", Name: "timezone",
		Args: []Argument{{Kind: ArgumentString, Text: "2", Cast: &TypeName{Schema: "pg_catalog", Name: "interval", Modified: true}}}},
}

func TestWhatAStatementSaysAboutTransactionAndSession(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, c := range controls {
		require.Equal(t, &c.want, mustClassify(t, tb, c.sql).Control, c.sql)
	}
	for sql, want := range controlsApart {
		require.Equal(t, &want, mustClassify(t, tb, sql).Control, sql)
	}
}

// The tags are those that a server answers with.
func TestControlTagsAreTheServers(t *testing.T) {
	conn, err := pgconn.Connect(context.Background(), postgres.ForTest(t))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	for _, c := range controls {
		results, err := conn.Exec(context.Background(), c.sql).ReadAll()
		require.NoError(t, err, c.sql)
		if c.want.Kind != ControlShow {
			require.Equal(t, c.want.Tag, results[0].CommandTag.String(), c.sql)
		}
	}
}

func TestOnlyTheRootIsAControl(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range []string{
		"SELECT 1", "ALTER ROLE r SET timezone = 'UTC'", "ALTER DATABASE d RESET ALL", "ALTER SYSTEM SET work_mem = 1", "PREPARE p AS SELECT 1", "EXECUTE p", "DEALLOCATE ALL",
		"CREATE FUNCTION f() RETURNS int LANGUAGE sql SET search_path = x AS 'SELECT 1'", "LISTEN c", "NOTIFY c", "FETCH c", "DO 'BEGIN COMMIT; END'", "EXPLAIN SELECT 1",
	} {
		require.Nil(t, mustClassify(t, tb, sql).Control, sql)
	}
}

func TestAControlComesThroughTheParserChild(t *testing.T) {
	sql := "SET TIME ZONE 'Europe/Berlin'"
	replies := talk(t, greeting{MaxSQLBytes: 1000}, "\x10"+sql, "\x10BEGIN READ ONLY")
	for i, text := range []string{sql, "BEGIN READ ONLY"} {
		c, err := replies[i].result()
		require.NoError(t, err)
		require.NotNil(t, c.Control)
		require.Equal(t, mustClassify(t, newTestTables(t, Config{}), text).Control, c.Control)
	}
}
