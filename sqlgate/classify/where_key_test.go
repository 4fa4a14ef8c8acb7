package classify

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inList gives "id = x" as "id IN (x)", which the server makes the same of; "" for what
// is not of that form.
func inList(cond string) string {
	column, value, ok := strings.Cut(cond, " = ")
	if !ok || !strings.HasSuffix(column, "id") || strings.Contains(value, " ") && !strings.HasPrefix(value, "CAST(") {
		return ""
	}
	return column + " IN (" + value + ")"
}

// A constant that may be equal to several values of a key binds none of them.
func TestAConstantOfATypeThatIsNotExactBindsNoKey(t *testing.T) {
	tb := newTestTables(t, Config{})
	for value, conditions := range map[string][]string{
		WherePresent: {
			"id = '1e18'::float8", "id = 1::real", "id = 1::double precision", "id = 1::float", "1::float4 = id", "id = CAST('1' AS float(10))", "id = float8 '1e18'", "id = 1::numeric::float8", "id = $1::float8", "id = 5::float8 AND n = 1",
			"id = 'a'::char", "id = 'a'::char(5)", "id = bpchar 'a'", "id = 'a'::citext", "id = 1::money", "id = '1 mon'::interval", "id = 1::app.number", "id = 1::oid", "id = 'a'::name", "id = '{1}'::int[]", "id = 'a'::app.text", "id = 'a'::folded_text::text", "id = 'a'::app.folded_text::varchar::text", "id = $1::folded_text::text",
			"id::float8 = 1", "id::int = 1", "id = 'a' COLLATE folded", "id COLLATE folded = 'a'", "id = float8(1)", "id = sqrt(4)", "id = '1'::float8::int8::float8",
		},
		WhereKeyEquality: {
			"id = 1", "id = -1", "id = 1.0", "id = 12345678901234567890", "id = 1e18", "id = 'a'", "id = E'a'", "id = true", "id = $1", "id = '1'::bigint", "id = 5::int", "id = 5::smallint", "id = 5::numeric(10,2)", "id = 5::decimal", "id = 'x'::uuid", "id = uuid 'x'", "id = 'x'::text", "id = 'x'::varchar",
			"id = 'x'::varchar(36)", "id = '2026-01-01'::date", "id = '2026-01-01'::timestamp", "id = '2026-01-01'::timestamptz", "id = '2026-01-01'::timestamp with time zone", "id = $1::uuid", "id = $1::pg_catalog.int8", "id = 'x'::bytea", "id = 1::float8::int8", "id = 1::float8 AND id = 1", "id = $1 AND id = 2",
		},
	} {
		lists := 0
		for _, cond := range conditions {
			if list := inList(cond); list != "" {
				conditions = append(conditions, list)
				lists++
			}
		}
		require.Greater(t, lists, 15)
		for _, cond := range conditions {
			for _, form := range []string{"UPDATE t SET n = 1 WHERE ", "DELETE FROM t WHERE ", "INSERT INTO t SELECT * FROM u WHERE "} {
				sql := form + cond
				if strings.HasPrefix(form, "INSERT") {
					sql += " ON CONFLICT (id) DO UPDATE SET n = 1"
				}
				assert.Equal(t, []string{value}, mustClassify(t, tb, sql).Where, sql)
			}
		}
	}
}

// IN of one constant or parameter is what = is, in all that is told of a condition. Of
// anything else it is none.
func TestAListOfOneConstantIsAnEquality(t *testing.T) {
	tb := newTestTables(t, Config{KeyColumns: []string{"uuid"}})
	for value, conditions := range map[string][]string{
		WhereKeyEquality: {
			"id IN (1)", "id IN ((1))", "id IN (-1)", "id IN (0)", "t.id IN (5)", "public.t.id IN ($1)", "uuid IN ('a')", "id IN (CAST($1 AS uuid))", "n = 1 AND (a = 2 AND id IN ($1))", "id IN (1) AND id IN (1, 2)", "id IN (1) AND $1",
		},
		WherePresent: {
			"id IN (1, 2)", "id IN (1, 1)", "id IN ($1, $1)", "id IN ($1, 1)", "id NOT IN (1)", "NOT id IN (1)", "NOT id NOT IN (1)", "id NOT IN ($1)", "(id) NOT IN (1)", "id IN (n)", "id IN ((SELECT 1))", "id IN (SELECT 1)", "id IN (VALUES (1))", "id IN ((VALUES (1)))",
			"(id) IN (ROW(1))", "ROW(id) IN (ROW(1))", "(id, n) IN ((1, 2))", "id IN (1 + 1)", "id IN (- $1)", "id IN (lower('a'))", "id IN (coalesce(1))", "id IN (now())", "id IN (current_date)", "id IN ('a' COLLATE \"C\")", "id IN (ARRAY[1])", "id IN (NULL)", "id IN (NULL::int)",
			"id + 0 IN (1)", "n IN (1)", "x.id IN (1)", "id IN (1) OR id IN (2)", "id IN (1) AND id <> 1", "id = ANY (ARRAY[1])", "id = ANY ($1)", "1 IN (2)", "1 IN (id)",
		},
		WhereTautology: {
			"1 IN (1)", "'1' IN (1)", "id IN (id)", "t.id IN (id)", "$1 IN ($1)", "$1 IN (1)", "id IN (1) OR id <> 1", "id IN (1) OR id NOT IN (1)", "id = 1 OR id NOT IN (1)", "v IN ('a') OR v <> 'a'", "id > 1 OR id < 1 OR id IN (1)", "NOT (id IN (1) AND id IN (2))", "true IN (true)", "B'1' IN (B'1')", "id = 1 OR 1 NOT IN (2)",
		},
	} {
		for _, cond := range conditions {
			for _, form := range []string{"UPDATE t SET n = 1 WHERE ", "DELETE FROM t WHERE "} {
				if strings.Contains(cond, "x.id") {
					form += "EXISTS (SELECT FROM x WHERE x.a = t.a) AND "
				}
				assert.Equal(t, []string{value}, mustClassify(t, tb, form+cond).Where, form+cond)
			}
		}
	}
	for sql, value := range map[string]string{
		"UPDATE t SET n = 1 FROM u WHERE id IN (1)":                                               WherePresent,
		"UPDATE t SET n = 1 FROM u WHERE t.id IN (1)":                                             WhereKeyEquality,
		"DELETE FROM t USING u WHERE u.id IN (1) AND u.a = t.a":                                   WherePresent,
		"MERGE INTO t USING s ON t.id IN ($1) WHEN MATCHED THEN DELETE":                           WhereKeyEquality,
		"INSERT INTO t SELECT * FROM u ON CONFLICT (id) DO UPDATE SET n = 1 WHERE t.id IN (1)":    WhereKeyEquality,
		"INSERT INTO t SELECT * FROM u WHERE u.id IN (1, 2) ON CONFLICT (id) DO UPDATE SET n = 1": WherePresent,
		"WITH d AS (DELETE FROM t WHERE id IN (1) RETURNING *) INSERT INTO u SELECT * FROM d":     WhereKeyEquality,
	} {
		require.Equal(t, []string{value}, mustClassify(t, tb, sql).Where, sql)
	}
}

func TestTheTypeOfAParameterSaysWhetherItBindsAKey(t *testing.T) {
	for _, mode := range []string{"auto", "child"} {
		c := newClassifier(t, Config{ParserMode: mode})
		where := func(sql string, types ...uint32) string {
			found, err := c.Classify(context.Background(), sql)
			require.NoError(t, err)
			typed := found.WithTypes(types, nil)
			if !slices.Equal(found.Where, typed.Where) {
				require.NotContains(t, typed.Where, WhereKeyEquality)
				require.NotEqual(t, found.Fingerprint, typed.Fingerprint, sql)
			} else {
				require.Equal(t, found, typed, sql)
			}
			return strings.Join(typed.Where, ",")
		}
		for _, oid := range []uint32{0, 705, 16, 17, 20, 21, 23, 25, 869, 1043, 1082, 1114, 1184, 1700, 2950} {
			require.Equal(t, WhereKeyEquality, where("UPDATE t SET n = $2 WHERE id = $1", oid, 701), oid)
			require.Equal(t, WhereKeyEquality, where("UPDATE t SET n = $2 WHERE id IN ($1)", oid, 701), oid)
		}
		for _, oid := range []uint32{700, 701, 790, 1042, 18, 19, 26, 1186, 1266, 1007, 16384} {
			require.Equal(t, WherePresent, where("UPDATE t SET n = $2 WHERE id = $1", oid), oid)
			require.Equal(t, WherePresent, where("UPDATE t SET n = $2 WHERE id IN ($1)", oid), oid)
			require.Equal(t, oid < 16384, where("DELETE FROM t WHERE id IN ($1::text)", oid) == WhereKeyEquality, oid)
			require.Equal(t, WherePresent, where("DELETE FROM t WHERE n = $2 AND $1 = t.id", oid), oid)
			require.Equal(t, WherePresent, where("MERGE INTO t USING s ON t.id = $1 WHEN MATCHED THEN DELETE", oid), oid)
			require.Equal(t, WherePresent, where("INSERT INTO t SELECT * FROM u WHERE id = $1 ON CONFLICT (id) DO UPDATE SET n = 1", oid), oid)
			require.Equal(t, WherePresent, where("WITH d AS (DELETE FROM t WHERE id = $1) UPDATE u SET n = 1 WHERE id = 1", oid), oid)
			require.Equal(t, WhereKeyEquality, where("UPDATE t SET n = $1 WHERE id = $2", oid, 20), oid)
			require.Equal(t, oid < 16384, where("UPDATE t SET n = 1 WHERE id = $1::text", oid) == WhereKeyEquality, oid)
			require.Equal(t, WhereKeyEquality, where("UPDATE t SET n = 1 WHERE id = 1 AND id = $1", oid), oid)
			require.Equal(t, WhereKeyEquality, where("INSERT INTO t VALUES ($1) ON CONFLICT (id) DO UPDATE SET n = 1", oid), oid)
		}
		require.Equal(t, WhereKeyEquality, where("UPDATE t SET n = 1 WHERE id = $1"))
		require.Equal(t, "none,"+WherePresent, where("WITH d AS (DELETE FROM t WHERE id = $1), e AS (DELETE FROM t) UPDATE u SET n = 1 WHERE n = 1", 701))
		for _, sql := range usedTwice {
			assert.Equal(t, WhereKeyEquality, where(sql), sql)
		}
		for _, sql := range typedElsewhere {
			assert.Equal(t, WherePresent, where(sql), sql)
			assert.Equal(t, WhereKeyEquality, where(sql, 20), sql)
		}
	}
}

// A parameter without a type gets it from the first place that the server looks at.
var usedTwice = []string{
	"UPDATE t SET n = 1 WHERE id = $1 AND f = $1",
	"UPDATE t SET n = 1 WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM u WHERE u.f = $1)",
	"UPDATE t SET n = $1::int WHERE id = $1",
	"UPDATE t SET n = 1 WHERE n = 2 AND (a = 3 AND id = $1) AND f = $1::int",
	"WITH old AS (SELECT * FROM t WHERE id = $1 FOR UPDATE) UPDATE t SET n = 1 WHERE id = $1 AND f = $1",
	"WITH d AS (DELETE FROM t WHERE t.id = $1 RETURNING id) UPDATE public.t AS x SET n = 1 FROM d WHERE x.id = $1",
	"UPDATE t SET n = 1 WHERE EXISTS (SELECT 1 FROM t AS x WHERE x.id = $1 AND x.n > 1) AND t.id = $1",
	"UPDATE t SET n = 1 WHERE t.id = $1 AND EXISTS (SELECT 1 FROM u WHERE u.id = $1)",
	"WITH d AS (DELETE FROM t WHERE id = $1 RETURNING id) INSERT INTO u (f) VALUES ($1)",
	"DELETE FROM t WHERE id = $1 RETURNING $1::text",
	"EXPLAIN DELETE FROM t WHERE id = $1 AND f = $1",
	"UPDATE t SET n = 1 WHERE id IN ($1) AND f = $1",
	"UPDATE t SET n = 1 WHERE id = $1 AND f IN ($1)",
	"WITH d AS (DELETE FROM t WHERE id IN ($1) RETURNING id) UPDATE t SET n = 1 FROM d WHERE t.id IN ($1)",
	"WITH old AS (SELECT * FROM t WHERE id IN ($1) FOR UPDATE) DELETE FROM t WHERE id = $1 AND f = $1",
}

var typedElsewhere = []string{
	"WITH d AS (DELETE FROM u WHERE id = $1 RETURNING id) UPDATE t SET n = 1 FROM d WHERE t.id = $1",
	"WITH d AS (DELETE FROM u WHERE id IN ($1) RETURNING id) UPDATE t SET n = 1 FROM d WHERE t.id IN ($1)",
	"UPDATE t SET n = 1 WHERE EXISTS (SELECT 1 FROM u WHERE u.id = $1) AND t.id = $1",
	"UPDATE t SET n = 1 WHERE EXISTS (SELECT 1 FROM other.t AS x WHERE x.id = $1) AND t.id = $1",
	"WITH t AS (SELECT 1::float8 AS id), x AS (SELECT FROM t WHERE t.id = $1) UPDATE public.t SET n = 1 WHERE t.id = $1",
	"UPDATE t SET n = 1 WHERE f = $1 AND id = $1",
	"UPDATE t SET n = 1 WHERE f IN ($1) AND id IN ($1)",
	"UPDATE t SET n = 1 WHERE id IN ($1, 1::float8) AND id IN ($1)",
	"UPDATE t SET n = 1 WHERE (id IN ($1)) IN (SELECT true FROM u WHERE f = $1) AND id IN ($1)",
	"UPDATE t SET n = 1 WHERE (t.id IN ($1)) = (f IN ($1)) AND t.id = $1",
	"UPDATE t SET n = 1 WHERE $1 <> 1::float8 AND id = $1",
	"UPDATE t SET n = 1 WHERE $1::float8 > 0 AND id = $1",
	"UPDATE t SET n = 1 WHERE EXISTS (SELECT 1 FROM (SELECT 1::float8 AS id) s WHERE s.id = $1) AND id = $1",
	"UPDATE t SET n = 1 WHERE EXISTS (SELECT id = $1 FROM (SELECT f FROM u WHERE f = $1) s) AND id = $1",
	"UPDATE t SET n = (SELECT n FROM u WHERE id = $1) FROM (SELECT 1 FROM u WHERE f = $1) s WHERE t.id = $1",
	"UPDATE t SET n = 1 FROM u WHERE u.f = $1 AND t.id = $1",
	"WITH RECURSIVE a AS (DELETE FROM t WHERE id = $1 AND EXISTS (SELECT 1 FROM b)), b AS (SELECT 1 FROM u WHERE f = $1) SELECT 1",
	"UPDATE t SET n = 1 WHERE ((id = $1) IN (SELECT true FROM u WHERE f = $1)) AND id = $1",
	"WITH id AS (SELECT 1::float8 AS id), x AS (SELECT FROM id WHERE id = $1) UPDATE t SET n = 1 WHERE id = $1",
}
