package classify

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

func TestAnAggregateInAnotherIsOfTheUsers(t *testing.T) {
	tb := newTestTables(t, Config{})
	for _, sql := range []string{
		"SELECT max(max(v)) FROM t", "SELECT sum(max(id)) FILTER (WHERE true) FROM t", "SELECT max(v) FILTER (WHERE count(*) > 1) FROM t", "SELECT max(row_number() OVER ()) FROM t",
		"SELECT lag(lag(id) OVER ()) OVER () FROM t", "SELECT max(lower(max(v))) FROM t", "SELECT array_agg(v ORDER BY max(v)) FROM t", "SELECT max((1).max) FROM t", "SELECT max(json_arrayagg(v)) FROM t",
		"SELECT json_arrayagg(max(v)) FROM t", "SELECT json_objectagg('a' : max(v)) FROM t", "SELECT max(grouping(v)) FROM t GROUP BY v", "SELECT max(app.total(DISTINCT v)) FROM t", "SELECT count(*) FILTER (WHERE max(v) > 1) OVER () FROM t",
		"SELECT percentile_cont(max(v)) WITHIN GROUP (ORDER BY v) FROM t", "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY max(v)) FROM t", "SELECT sum(sum(sum(v))) OVER () FROM t", "SELECT (max(max(v))).* FROM t",
		"SELECT sum(v) OVER (ROWS max(1) PRECEDING) FROM t", "SELECT 1 FROM t HAVING max(max(v)) > 1", "SELECT 1 FROM t ORDER BY max(max(v))", "SELECT (SELECT max(max(v)) FROM t) FROM o", "SELECT (SELECT max(max(o.v)) FROM t) FROM o",
		"SELECT max((SELECT max(t.v))) FROM t", "SELECT max((SELECT max(t.v) FROM s)) FROM t", "SELECT max((SELECT count(*) FROM s HAVING max(t.v) > 1)) FROM t", "SELECT max((SELECT max(v) FROM (SELECT 1 AS z) s)) FROM t",
		"INSERT INTO t SELECT max(max(id)) FROM s ON CONFLICT (id) DO UPDATE SET v = 1", "SELECT pg_catalog.max(max(v)) FROM t",
	} {
		c := mustClassify(t, tb, sql)
		require.Contains(t, c.RiskSignals, SignalUnknownFunction, sql)
		require.False(t, c.SafeRead, sql)
	}
	require.Equal(t, []string{"public.max", "public.sum"}, mustClassify(t, tb, "SELECT sum(max(id)) FROM t").Functions, "either may be the users'")
	c := mustClassify(t, tb, "INSERT INTO t SELECT max(max(id)) FROM s ON CONFLICT (id) DO UPDATE SET v = 1")
	require.Equal(t, []string{WhereNone}, c.Where, "a function of the users' may return a set")
	for _, sql := range []string{
		"SELECT sum(sum(v)) OVER () FROM t", "SELECT sum(v) OVER (PARTITION BY max(v) ORDER BY count(*)) FROM t", "SELECT rank() OVER (ORDER BY sum(v) DESC) FROM t GROUP BY id", "SELECT lag(sum(v), 1) OVER (ORDER BY min(v)) FROM t GROUP BY id",
		"SELECT max((SELECT max(s.v) FROM s)) FROM t", "SELECT sum((SELECT count(*) FROM s WHERE s.id = t.id)) FROM t", "SELECT max((SELECT max(v) FROM s)) FROM t", "SELECT max((SELECT max(1))) FROM t",
		"SELECT max((SELECT row_number() OVER () FROM s LIMIT 1)) FROM t", "SELECT (SELECT max(s.v + max(t.v)) FROM s) FROM t", "SELECT max(v) - min(v) FROM t", "SELECT coalesce(sum(v), 0), count(*) FILTER (WHERE v > 1) FROM t",
		"SELECT json_agg(row_to_json((SELECT r FROM (SELECT array_agg(s.v) AS a FROM s) r))) FROM t", "SELECT count(*) FILTER (WHERE v IN (SELECT max(v) FROM s GROUP BY id)) FROM t", "SELECT lag(v) OVER (ORDER BY (SELECT rank() OVER ())) FROM t",
	} {
		c := mustClassify(t, tb, sql)
		require.True(t, c.SafeRead, "%s: %+v", sql, c.Signals)
	}
}

// Calls in calls, on a server without functions of the users': what it refuses for
// the nesting counts as the users', and nothing else does.
func TestAServerRefusesTheNestingThatTheFactsName(t *testing.T) {
	conn, err := pgconn.Connect(t.Context(), postgres.ForTest(t))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = conn.Close(ctx) // the database is dropped
	})
	answer, err := conn.Exec(t.Context(), "CREATE TABLE t (v int); CREATE TABLE s (v int); CREATE TABLE o (v int); SELECT current_setting('server_version_num')::int / 10000").ReadAll()
	require.NoError(t, err)
	major, err := strconv.Atoi(string(answer[3].Rows[0][0]))
	require.NoError(t, err)
	tb := newTestTables(t, Config{ServerMajor: major})
	inner := []string{"max(t.v)", "max(s.v)", "max(o.v)", "max(1)", "count(*)", "row_number() OVER ()", "max(t.v) OVER ()", "sum(max(t.v)) OVER ()", "t.v", "(mode() WITHIN GROUP (ORDER BY t.v))", "grouping(t.v)"}
	between := []string{"@", "abs(@)", "(SELECT @)", "(SELECT @ FROM s)", "(SELECT s.v + @ FROM s)", "(SELECT 1 FROM s HAVING @ > 1)", "(SELECT s.v FROM s ORDER BY @ LIMIT 1)", "(SELECT v FROM (SELECT @ AS v FROM s) s)", "(SELECT (SELECT @ FROM s LIMIT 1) FROM s LIMIT 1)"}
	outer := []string{
		"max(@)", "max(t.v + @)", "max(o.v + @)", "sum(1 + @) OVER ()", "sum(t.v) FILTER (WHERE @ > 1)", "sum(t.v) FILTER (WHERE @ > 1) OVER ()", "count(*) FILTER (WHERE @ > 1)", "array_agg(t.v ORDER BY @)", "percentile_disc(@) WITHIN GROUP (ORDER BY t.v)",
		"mode() WITHIN GROUP (ORDER BY @)", "sum(1) OVER (PARTITION BY @)", "sum(1) OVER (ORDER BY @)", "sum(1) OVER (ORDER BY 1 ROWS @ PRECEDING)", "lag(@) OVER ()", "count(*) + @", "max(abs(@))",
	}
	if major >= 16 {
		outer = append(outer, "json_arrayagg(@)", "json_arrayagg(@) OVER ()", "json_objectagg('a' : @)")
	}
	places := []string{"SELECT (@)::text FROM t GROUP BY t.v", "SELECT (SELECT (@)::text FROM t GROUP BY t.v LIMIT 1) FROM o GROUP BY o.v", "SELECT (SELECT (@)::text FROM t LIMIT 1) FROM o"}
	turns := 7
	if os.Getenv(allNames) != "" {
		turns = 1
	}
	n, refused, taken := 0, 0, 0
	for _, place := range places {
		for _, o := range outer {
			for _, b := range between {
				for _, i := range inner {
					if n++; n%turns != 0 || strings.Contains(o, "json") && strings.Contains(i, "grouping") { // words of the grammar
						continue
					}
					sql := strings.ReplaceAll(place, "@", strings.ReplaceAll(o, "@", strings.ReplaceAll(b, "@", i)))
					_, err := conn.Exec(t.Context(), "EXPLAIN "+sql).ReadAll()
					c := mustClassify(t, tb, sql)
					users := slices.ContainsFunc(c.Functions, func(f string) bool { return strings.Contains(f, ".") })
					var e *pgconn.PgError
					switch {
					case err == nil:
						if taken++; users {
							t.Errorf("%d: %s is taken, and the facts say %v", major, sql, c.Functions)
						}
					case errors.As(err, &e) && (strings.Contains(e.Message, "cannot be nested") || strings.Contains(e.Message, "cannot contain window") || strings.Contains(e.Message, "functions are not allowed")):
						if refused++; !users {
							t.Errorf("%d: %s: %s, and the facts say %v", major, sql, e.Message, c.Functions)
						}
					}
				}
			}
		}
	}
	t.Logf("%d taken, %d refused", taken, refused)
	require.Greater(t, taken, 200)
	require.Greater(t, refused, 200)
}
