package pgexec

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// What a function raises is its own word: no outage, no end of the connection, no time
// limit and no breach of the fence, whichever code it takes.
func TestACodeThatAFunctionRaisesSaysNothingOfTheServer(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE FUNCTION says(code text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'said' USING ERRCODE = code; END $$; CREATE TABLE t (a int)`)
	for _, code := range []string{"08006", "08P01", "25006", "25P03", "53100", "53300", "57014", "57P01", "57P03", "58030", "XX000", "XX001"} {
		text := "SELECT says('" + code + "')"
		res, _, err := read(t, db, text)
		require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), code)
		require.Equal(t, code, fault.Of(err).Details["sqlstate"])
		require.Equal(t, []any{Failure, ReasonDBError, BasisReadOnly, code}, []any{res.State, res.ReasonCode, res.Basis, res.SQLState})
		res, _, err = write(t, db, "INSERT INTO t "+text, Limits{})
		require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), code)
		require.Equal(t, []any{Failure, ReasonDBError, BasisRollbackAcknowledged, code}, []any{res.State, res.ReasonCode, res.Basis, res.SQLState})
		b := beginBlock(t, db, BlockOptions{})
		res, err = b.failWrite("INSERT INTO t " + text)
		require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), code)
		require.Equal(t, []any{Failure, ReasonDBError}, []any{res.State, res.ReasonCode})
		b.Rollback()
	}
	_, _, err := read(t, db, "SELECT array_fill(0, ARRAY[500000000])")
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), "%v", err)
	require.Equal(t, "0", side.ask("SELECT count(*) FROM t"))
}

// Nor does what a foreign table meets say anything of it.
func TestWhatAForeignTableMeetsIsNoTroubleOfTheServer(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; CREATE FOREIGN TABLE prices (a int) SERVER files OPTIONS (filename '/nowhere/prices.csv')`)
	_, _, err := read(t, db, "SELECT a FROM prices")
	require.Equal(t, fault.DBQueryFailed, fault.CodeOf(err), "%v", err)
	require.Equal(t, "58P01", fault.Of(err).Details["sqlstate"])
}

// The trouble of a server is told in its own words to who sent the statement alone.
func TestTheWordsOfAServerInTroubleAreForItsClient(t *testing.T) {
	f := fault.Of(new(Config).statementFault(&pgconn.PgError{Code: "53100", Message: "no room for 7341", File: "fd.c"}))
	require.Equal(t, fault.DBUnavailable, f.Code)
	require.Contains(t, f.Message, "7341")
	require.NotContains(t, f.ForLogs(), "7341")
}

// A new connection's own questions have a time limit: a server that is slow is no refusal of the login.
func TestAServerThatIsTooSlowForANewConnectionIsNotSaidToRefuseTheLogin(t *testing.T) {
	err := connectFault(fmt.Errorf("the query that checks a new connection failed: %w", &pgconn.PgError{Code: "57014"}))
	require.Equal(t, fault.DBUnavailable, fault.CodeOf(err))
	require.Equal(t, fault.DBConnectionFailed, fault.CodeOf(connectFault(&pgconn.PgError{Code: "28P01"})))
}
