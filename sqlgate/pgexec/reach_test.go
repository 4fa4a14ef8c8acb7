package pgexec

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a write reaches is named by the largest first, where the list is cut or folded; a
// materialized view is filled from what it reads, and changes nothing there; and the number
// of rows of a table that was filled since it was counted is that of the server's counters.
func TestReachNamesTheLargestFirst(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE hub (id int PRIMARY KEY)")
	for i, rows := range []int{10, 3000, 0, 200} {
		side.run(fmt.Sprintf("CREATE TABLE spoke_%d (hub_id int REFERENCES hub ON DELETE CASCADE) WITH (autovacuum_enabled = false); INSERT INTO hub VALUES (%d); INSERT INTO spoke_%d SELECT %d FROM generate_series(1, %d)", i, i, i, i, rows))
		side.run(fmt.Sprint("ANALYZE spoke_", i)) // the server counts what its session still has to tell once more
	}
	side.run("CREATE MATERIALIZED VIEW kept AS SELECT * FROM spoke_1; INSERT INTO spoke_2 SELECT 1 FROM generate_series(1, 2000)")
	side.run("SELECT pg_stat_force_next_flush()")
	reach := func(named string, events int) string {
		l, omitted := db.BeginPlan(t.Context(), true, 0)
		require.Empty(t, omitted)
		r := l.Reach(t.Context(), []string{named}, nil, events)
		require.NotNil(t, r)
		var said []string
		for _, x := range r.Tables {
			rows := "?"
			if x.Rows != nil {
				rows = fmt.Sprint(*x.Rows)
			}
			said = append(said, fmt.Sprint(x.Table, " ", x.How, " ", rows, " ", x.Old))
		}
		return strings.Join(said, "; ")
	}
	require.Equal(t, "public.hub named ? false; public.spoke_1 cascade 3000 false; public.spoke_2 cascade 2000 true; public.spoke_3 cascade 200 false; public.spoke_0 cascade 10 false", reach("public.hub", TriggersDelete))
	require.Equal(t, "public.kept named ? false", reach("public.kept", TriggersInsert|TriggersDelete))
}
