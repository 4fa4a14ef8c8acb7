package pgexec

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/fixtures/postgres"
)

// Where the memory of a server's processes is bounded, a statement that takes nearly all of it
// and then goes deep ends by itself, and nobody else's session with it.
func TestAStatementThatGoesDeepInLittleMemoryEndsNoOther(t *testing.T) {
	const bound = 200 << 20
	cluster, err := postgres.Start(t.Context(), postgres.Options{Dir: t.TempDir(), Fast: true, Memory: bound, Settings: map[string]string{"shared_buffers": "16MB"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Discard()) })
	db, s := openURL(t, cluster.URL("postgres"), func(c *Config) { c.QueryTimeout = time.Minute })
	started := s.ask("SELECT pg_postmaster_start_time(), pg_backend_pid()")
	ran, refused := 0, 0
	for kilobytes := bound >> 10; ran < 8; kilobytes -= 400 {
		require.Positive(t, kilobytes)
		sql := fmt.Sprintf(`SELECT octet_length(a), length((repeat('[', 7000 * g) || repeat(']', 7000 * g))::json::text) FROM (SELECT g, repeat(repeat('x', 1024), %d * g) AS a FROM generate_series(1, 1) AS g OFFSET 0) AS q`, kilobytes)
		st := Statement{SQL: sql}
		r, err := db.BeginRead(t.Context(), &st, Limits{})
		require.NoError(t, err)
		_, err = r.Run(t.Context(), event.NewExecutionID(r.lease.born), st, db.NewRows(1<<20))
		switch {
		case err == nil:
			ran++
		default:
			require.Equal(t, "53200", fault.Of(err).Details["sqlstate"], "%d KB: %v", kilobytes, err)
			refused++
		}
	}
	require.Positive(t, refused)
	require.Equal(t, started, s.ask("SELECT pg_postmaster_start_time(), pg_backend_pid()"), "the side's session is as it was")
}
