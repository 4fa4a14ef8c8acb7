package pgexec

import (
	"testing"

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
