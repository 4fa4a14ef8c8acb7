package classify

import (
	"context"
	"errors"
	"fmt"
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

// callsOfEveryForm are calls of a name in all forms that a call can have, taken by
// a function of the name or not, without the name in front.
func callsOfEveryForm(most int, names []string) (calls []string) {
	for n := range most + 3 {
		args := nulls(n)
		calls = append(calls, "("+args+")")
		if n > 0 {
			calls = append(calls, "("+strings.TrimPrefix(nulls(n-1)+", VARIADIC NULL", ", ")+")")
		}
	}
	for n := range most + 2 {
		args := nulls(n)
		if n > 0 {
			calls = append(calls, "(DISTINCT "+args+")", "("+args+" ORDER BY NULL)", "("+args+" ORDER BY NULL) OVER ()", "(DISTINCT "+args+") OVER ()")
		}
		calls = append(calls, "("+args+") FILTER (WHERE true)", "("+args+") OVER ()", "("+args+") FILTER (WHERE true) OVER ()", "("+args+") WITHIN GROUP (ORDER BY NULL)",
			"("+args+") WITHIN GROUP (ORDER BY NULL) FILTER (WHERE true)", "("+args+") WITHIN GROUP (ORDER BY NULL, NULL)", "("+args+") WITHIN GROUP (ORDER BY NULL) OVER ()")
	}
	calls = append(calls, "(*)", "(*) OVER ()", "(*) FILTER (WHERE true)", "(no_name_of_any => NULL)")
	for i, name := range names {
		calls = append(calls, fmt.Sprintf("(%q => NULL)", name), fmt.Sprintf("(NULL, %q => NULL)", name), fmt.Sprintf("(VARIADIC %q => NULL)", name))
		var some, rest []string // without this one, and from it on
		for j, other := range names {
			if j != i {
				some = append(some, fmt.Sprintf("%q => NULL", other))
			}
			if j >= i {
				rest = append(rest, fmt.Sprintf("%q => NULL", other))
			}
		}
		calls = append(calls, "("+strings.Join(some, ", ")+")", "("+strings.Join(slices.Concat(slices.Repeat([]string{"NULL"}, i), rest), ", ")+")")
		if i > 0 {
			calls = append(calls, fmt.Sprintf("(%q => NULL, VARIADIC %q => NULL)", names[0], name))
		}
	}
	return calls
}

func nulls(n int) string { return strings.Join(slices.Repeat([]string{"NULL"}, n), ", ") }

// aggregatePlaces are places of an expression, in some of which aggregates or window
// functions may stand.
var aggregatePlaces = []string{
	"SELECT @", "SELECT 1 + length((@)::text)", "SELECT 1 ORDER BY @", "SELECT DISTINCT ON (@) 1", "SELECT 1 HAVING (@) IS NULL", "SELECT 1 WHERE (@) IS NULL", "SELECT 1 GROUP BY @", "SELECT 1 LIMIT (@)",
	"SELECT 1 FROM (SELECT 1) x JOIN (SELECT 2) y ON (@) IS NULL", "VALUES (@)", "SELECT (SELECT 1 WHERE (@) IS NULL) WHERE true", "SELECT 1 WHERE EXISTS (SELECT @)", "SELECT 1 FROM generate_series(1, (@)::int)",
	"WITH x AS (SELECT @ AS a) SELECT a FROM x", "WITH x AS (SELECT 1 WHERE (@) IS NULL) SELECT 1 FROM x", "SELECT 1 UNION SELECT 1 WHERE (@) IS NULL", "SELECT CASE WHEN (@) IS NULL THEN 1 END",
	"UPDATE changed SET zz = (@)::text", "UPDATE changed SET zz = (SELECT (@)::text)", "UPDATE changed SET zz = '' WHERE (@) IS NULL", "DELETE FROM changed WHERE (@) IS NULL RETURNING 1", "DELETE FROM changed RETURNING @",
	"INSERT INTO changed SELECT @", "INSERT INTO changed VALUES ((@)::text)", "INSERT INTO changed VALUES ('') RETURNING @", "MERGE INTO changed USING (SELECT 1) s ON true WHEN MATCHED AND (@) IS NULL THEN DELETE",
	"SELECT 1 FROM changed TABLESAMPLE system (@)", "SELECT count(*) FILTER (WHERE (SELECT (@) IS NULL))", "SELECT sum(1) OVER (PARTITION BY @)",
}

// notTaken tells whether the server has no function for a call. A NULL fits every
// type, so it is the form that does not fit.
func notTaken(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case "42883": // undefined_function, also for a type that can't be sorted
		return !strings.HasPrefix(e.Message, "could not identify")
	case "42809": // wrong_object_type: another kind of function
		return true
	case "0A000":
		return strings.Contains(e.Message, "not implemented for window functions") || strings.Contains(e.Message, "not implemented for non-aggregate") ||
			strings.Contains(e.Message, "OVER is not supported")
	}
	return false
}

// decorated tells the calls with more than arguments.
func decorated(sql string) bool {
	return slices.ContainsFunc([]string{"DISTINCT ", " ORDER ", ") FILTER ", ") OVER ", ") WITHIN "}, func(word string) bool { return strings.Contains(sql, word) })
}

// ambiguous tells whether a NULL fits too many functions. Then the server does not
// get as far as to see what stands around the arguments.
func ambiguous(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "42725" || e.Code == "42804")
}

// Every function of pg_catalog in every form of a call: what the server takes is
// built in, and what it does not take counts as the users'.
func TestEveryFormOfACallIsWhatTheServerSays(t *testing.T) {
	conn, err := pgconn.Connect(t.Context(), postgres.ForTest(t))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = conn.Close(ctx) // the database is dropped
	})
	query := func(sql string) [][][]byte {
		results, err := conn.Exec(t.Context(), sql).ReadAll()
		require.NoError(t, err)
		return results[len(results)-1].Rows
	}
	major, err := strconv.Atoi(string(query("SELECT current_setting('server_version_num')::int / 10000")[0][0]))
	require.NoError(t, err)
	query("CREATE TABLE changed (zz text)")
	tb := newTestTables(t, Config{ServerMajor: major})
	turns := 24
	if os.Getenv(allNames) != "" {
		turns = 1
	}
	turn, taken, refused := 0, 0, 0
	check := func(sql, name string) {
		c, f := classifyText(tb, sql)
		require.Nil(t, f, sql)
		builtIn := !slices.Contains(c.Functions, "public."+name)
		require.Equal(t, builtIn, slices.Contains(c.Functions, name), sql)
		require.True(t, builtIn || slices.Contains(c.RiskSignals, SignalUnknownFunction), sql)
		_, err := conn.Prepare(t.Context(), "", sql, nil)
		if err == nil {
			taken++
		}
		if notTaken(err) {
			refused++
		}
		if notTaken(err) == builtIn && !(ambiguous(err) && !builtIn && (decorated(sql) || strings.HasPrefix(name, "percentile_"))) {
			t.Errorf("%d: %s: built in: %v, but the server says %v", major, sql, builtIn, err)
		}
	}
	for _, row := range query(`SELECT proname, max(pronargs), coalesce((array_agg(array_to_string(proargnames[:pronargs], ',') ORDER BY proargnames IS NULL, pronargs DESC))[1], '')
		FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace GROUP BY 1 HAVING NOT bool_or('anyenum'::regtype = ANY (proargtypes)) ORDER BY 1`) { // which no NULL fits
		name := string(row[0])
		most, err := strconv.Atoi(string(row[1]))
		require.NoError(t, err)
		var names []string
		if list := string(row[2]); strings.Trim(list, ",") != "" && !strings.Contains(list, ",,") {
			names = strings.Split(list, ",")
		}
		for _, call := range callsOfEveryForm(most, names) {
			if turn++; turn%turns == 0 || names != nil && turn%(turns/6+1) == 0 {
				check(fmt.Sprintf("SELECT %q%s", name, call), name)
			}
		}
	}
	for _, place := range aggregatePlaces {
		for _, call := range []string{"max", "count", "string_agg", "first_value", "row_number", "mode", "rank", "max OVER"} {
			text := map[string]string{
				"max": "max(1)", "count": "count(*)", "string_agg": "string_agg(DISTINCT 'a', 'b')", "first_value": "first_value(1) OVER ()", "row_number": "row_number() OVER ()",
				"mode": "mode() WITHIN GROUP (ORDER BY 1)", "rank": "rank(1) WITHIN GROUP (ORDER BY 1)", "max OVER": "max(1) OVER (PARTITION BY 1)",
			}[call]
			sql := strings.ReplaceAll(place, "@", text)
			name, _, _ := strings.Cut(call, " ")
			c, f := classifyText(tb, sql)
			require.Nil(t, f, sql)
			_, err := conn.Prepare(t.Context(), "", sql, nil)
			var e *pgconn.PgError
			misplaced := errors.As(err, &e) && (e.Code == "42803" || e.Code == "42P20")
			require.True(t, err == nil || misplaced, "%s: %v", sql, err)
			if misplaced == slices.Contains(c.Functions, name) {
				t.Errorf("%d: %s: %v, but the server says %v", major, sql, c.Functions, err)
			}
		}
	}
	for _, operator := range query("SELECT DISTINCT oprname FROM pg_operator ORDER BY 1") {
		name := string(operator[0])
		for _, sql := range []string{"SELECT OPERATOR(pg_catalog." + name + ") NULL", "SELECT NULL OPERATOR(pg_catalog." + name + ") NULL"} {
			c := mustClassify(t, tb, sql)
			_, err := conn.Prepare(t.Context(), "", sql, nil)
			if notTaken(err) == c.SafeRead {
				t.Errorf("%d: %s: safe: %v, but the server says %v", major, sql, c.SafeRead, err)
			}
		}
	}
	t.Logf("%d calls taken by the server, %d of no form of a function", taken, refused)
	require.Greater(t, taken, 300)
	require.Greater(t, refused, 1000)
}
