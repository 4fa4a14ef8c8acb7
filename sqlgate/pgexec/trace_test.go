package pgexec

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

const aTrace = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"

// The trace of a caller shows in application_name for its own statement, on all
// three ways, and the pin stands again afterwards: that is no drift.
func TestTheDatabaseShowsTheTraceOfAStatementAlone(t *testing.T) {
	db, _ := open(t)
	ctx, show := context.Background(), "SHOW application_name"
	for range 3 {
		rows := db.NewRows(0)
		_, err := db.Read(ctx, "", Statement{SQL: show, Trace: aTrace}, Limits{}, rows)
		require.NoError(t, err)
		require.Equal(t, `[{"application_name":"gate/reader `+aTrace+`"}]`, string(rows.JSON()))
		require.Equal(t, `[{"application_name":"gate/reader"}]`, mustRead(t, db, show))

		for _, trace := range []string{aTrace, ""} {
			tx, err := db.Begin(ctx, BeginOptions{Trace: trace})
			require.NoError(t, err)
			name := "gate/writer"
			if trace != "" {
				name += " " + trace
				require.Equal(t, map[string]string{"application_name": name}, tx.Dispatch().Settings)
			} else {
				require.Empty(t, tx.Dispatch().Settings)
			}
			rows := db.NewRows(0)
			_, err = tx.Exec(ctx, sql(show), rows)
			require.NoError(t, err)
			require.Equal(t, `[{"application_name":"`+name+`"}]`, string(rows.JSON()))
			_, err = tx.Commit(ctx)
			require.NoError(t, err)
		}

		alone, err := db.BeginAlone(ctx, BeginOptions{Trace: aTrace})
		require.NoError(t, err)
		rows = db.NewRows(0)
		_, err = alone.Exec(ctx, sql(show), rows)
		require.NoError(t, err)
		require.Equal(t, `[{"application_name":"gate/writer `+aTrace+`"}]`, string(rows.JSON()))
	}
	require.Zero(t, db.Stats().Quarantined)
}

func TestOnlyATraceBecomesPartOfTheName(t *testing.T) {
	require.LessOrEqual(t, len(tracedName(writer, aTrace)), 63, "PostgreSQL cuts names after 63 bytes")
	for _, hostile := range []string{"", "'; DROP TABLE t; --", "ABC", "4bf9\\", aTrace + "0", "é"} {
		require.Empty(t, tracedName(writer, hostile), hostile)
	}
}
