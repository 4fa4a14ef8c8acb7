package classify

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// A new column is said to rewrite the table where the server does.
func TestANewColumnRewritesTheTableWhereTheAdviceSaysSo(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cluster := postgres.ClusterForTest(t, nil)
	conn, err := pgx.Connect(ctx, cluster.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 10)")
	require.NoError(t, err)
	tb := newTestTables(t, Config{ServerMajor: cluster.Major})
	for _, column := range []string{
		"int", "int DEFAULT 1", "text NOT NULL DEFAULT 'x'::text", "timestamptz DEFAULT now()", "timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP", "date DEFAULT now()::date", "date DEFAULT CURRENT_DATE",
		"text DEFAULT CURRENT_USER", "timestamptz DEFAULT statement_timestamp()", "timestamptz DEFAULT pg_catalog.transaction_timestamp()", "int DEFAULT NULL",
		"timestamptz DEFAULT clock_timestamp()", "uuid DEFAULT gen_random_uuid()", "float DEFAULT random()", "int GENERATED ALWAYS AS IDENTITY", "serial", "int GENERATED ALWAYS AS (id * 2) STORED",
	} {
		sql := "ALTER TABLE t ADD COLUMN c " + column
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		var before, after string
		require.NoError(t, tx.QueryRow(ctx, "SELECT pg_relation_filenode('t')::text").Scan(&before))
		_, err = tx.Exec(ctx, sql)
		require.NoError(t, err, sql)
		require.NoError(t, tx.QueryRow(ctx, "SELECT pg_relation_filenode('t')::text").Scan(&after))
		require.NoError(t, tx.Rollback(ctx))
		require.Equal(t, before != after, slices.Contains(mustClassify(t, tb, sql).Advice, AdviceRewrite), sql)
	}
}
