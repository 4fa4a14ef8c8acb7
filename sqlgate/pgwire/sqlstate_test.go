package pgwire

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/sqlgate"
)

func TestFaultsAndTheirStates(t *testing.T) {
	of := func(code fault.Code) *fault.Fault { return fault.New(code, "in words") }
	for _, c := range []struct {
		err   error
		state string
	}{
		{of(fault.ParserError), "42601"},
		{of(fault.MultiStatementRejected), "42601"},
		{of(fault.UnsupportedSQLShape), "0A000"},
		{of(fault.OversizedSQL), "54000"},
		{of(fault.ResultTooLarge), "54000"},
		{of(fault.ApprovalExpired), "GT002"},
		{of(fault.ApprovalMismatch), "GT002"},
		{of(fault.RowLimitExceeded), "GT003"},
		{of(fault.UnsafeReadShape), "25006"},
		{of(fault.DBUnavailable), "57P03"},
		{of(fault.RateLimitExceeded), "53400"},
		{of(fault.AuditUnavailable), "58000"},
		{of(fault.AuditUnavailable).WithBeside("execution_state", sqlgate.StateNotExecuted), "58000"},
		{of(fault.AuditUnavailable).WithBeside("execution_state", sqlgate.StateUnknown), "08007"},
		{of(fault.AuditCorruptionDetected).WithBeside("execution_state", sqlgate.StateUnknown), "08007"},
		{of(fault.DBQueryFailed).With("sqlstate", "23505").WithBeside("execution_state", sqlgate.StateUnknown), "23505"},
		{of(fault.InvalidJSON), "58000"},
		{errors.New("something"), "58000"},
		{of(fault.DBQueryFailed).With("sqlstate", "23505"), "23505"},
		{of(fault.DBQueryFailed).With("sqlstate", "23505").With("outcome", "partial_possible"), "23505"},
		{of(fault.DBQueryFailed).With("sqlstate", "40001").With("outcome", "partial_possible"), "08007"},
		{of(fault.DBQueryFailed).With("sqlstate", "40P01").With("outcome", "not_knowable"), "08007"},
		{of(fault.DBQueryFailed).With("sqlstate", "57014").With("outcome", "partial_possible"), "08007"},
		{of(fault.DBQueryFailed).With("sqlstate", "40001").With("outcome", "aborted"), "40001"},
		{of(fault.DBQueryTimeout), "08007"},
		{of(fault.DBQueryTimeout).With("outcome", "committed"), "08007"},
		{of(fault.DBQueryTimeout).With("outcome", "aborted"), "57014"},
		{&sqlgate.WireError{SQLState: "26000", Message: "in words"}, "26000"},
	} {
		f := failureOf(c.err)
		require.Equal(t, c.state, f.response.Code, "%v", c.err)
		require.Equal(t, "ERROR", f.response.Severity)
		require.NotContains(t, f.response.Message+f.response.Detail, "something", "causes are for the log")
		require.Equal(t, "FATAL", fatal(c.err).response.Severity)
	}
}

func TestTheErrorObjectIsInTheDetail(t *testing.T) {
	f := failureOf(fault.New(fault.DBQueryTimeout, "in words").With("a", 1).WithBeside("execution_id", "exe_1"))
	require.Equal(t, "in words", f.response.Message)
	var object map[string]any
	require.NoError(t, json.Unmarshal([]byte(f.response.Detail), &object))
	require.Equal(t, map[string]any{"error_code": "db_query_timeout", "execution_id": "exe_1", "details": map[string]any{"a": 1.0}}, object)
}

func TestWhatTheDatabaseRefusedIsSaidInItsOwnWords(t *testing.T) {
	server := &pgconn.PgError{Code: "23505", Message: "duplicate key", Hint: "another", Detail: "Key (id)=(7)", Where: "somewhere", TableName: "orders", ConstraintName: "orders_pkey"}
	f := fault.New(fault.DBQueryFailed, "The database refused the statement.").With("sqlstate", "23505").With("position", int64(9)).Because(server)
	e := failureOf(f).response
	require.Equal(t, []string{"23505", "duplicate key", "another", "orders", "orders_pkey"}, []string{e.Code, e.Message, e.Hint, e.TableName, e.ConstraintName})
	require.Equal(t, int32(9), e.Position)
	require.Empty(t, e.Detail, "it carries values of rows")
	require.Empty(t, e.Where)
	e = failureOf(f.With("detail", server.Detail).With("context", server.Where)).response
	require.Equal(t, server.Detail, e.Detail)
	require.Equal(t, server.Where, e.Where)

	f.Message = "Look at the database before you send it again."
	e = failureOf(f.With("outcome", "partial_possible")).response
	require.Equal(t, []string{"23505", f.Message, "orders_pkey"}, []string{e.Code, e.Message, e.ConstraintName}, "the server knows nothing of the part that may stand")
	require.Contains(t, e.Detail, `"outcome":"partial_possible"`)
}
