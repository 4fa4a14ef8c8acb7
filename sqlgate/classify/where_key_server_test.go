package classify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// keyValues are values of the usual types of keys that lie close together.
var keyValues = map[string]string{
	"smallint":    "SELECT g FROM generate_series(-20, 20) g",
	"int":         "SELECT 2147483600 + g FROM generate_series(0, 40) g UNION SELECT 16777210 + g FROM generate_series(0, 20) g UNION SELECT generate_series(-9, 9)",
	"bigint":      "SELECT 1000000000000000000 + g FROM generate_series(-99, 99) g UNION SELECT 9007199254740990 + g FROM generate_series(0, 20) g UNION SELECT generate_series(-9, 9)",
	"numeric":     "SELECT 1000000000000000000 + g / 7.0 FROM generate_series(-99, 99) g UNION SELECT g / 3.0 FROM generate_series(-9, 9) g",
	"text":        "SELECT repeat(c, n) || repeat(' ', g) FROM unnest(ARRAY['a', 'A', 'ä', '1', '']) c, generate_series(0, 3) g, generate_series(1, 3) n WHERE c <> '' OR n = 1",
	"varchar":     "SELECT repeat(c, n) || repeat(' ', g) FROM unnest(ARRAY['a', 'A', 'ä', '1', '']) c, generate_series(0, 3) g, generate_series(1, 3) n WHERE c <> '' OR n = 1",
	"varchar(36)": "SELECT repeat(c, n) || repeat(' ', g) FROM unnest(ARRAY['a', 'A', 'ä', '1', '']) c, generate_series(0, 3) g, generate_series(1, 3) n WHERE c <> '' OR n = 1",
	"char(8)":     "SELECT repeat(c, n) FROM unnest(ARRAY['a', 'A', '1']) c, generate_series(1, 3) n",
	"uuid":        "SELECT ('00000000-0000-0000-0000-' || lpad(to_hex(g), 12, '0'))::uuid FROM generate_series(0, 40) g",
	"date":        "SELECT '2026-03-01'::date + g FROM generate_series(-20, 40) g",
	"timestamp":   "SELECT '2026-03-01'::timestamp + g * interval '12 hours' + h * interval '1 microsecond' FROM generate_series(-20, 20) g, generate_series(0, 3) h",
	"timestamptz": "SELECT '2026-03-29'::timestamptz + g * interval '30 minutes' + h * interval '1 microsecond' FROM generate_series(-20, 20) g, generate_series(0, 3) h",
	"bytea":       `SELECT decode(lpad(to_hex(g), 4, '0'), 'hex') FROM generate_series(0, 40) g`,
	"inet":        "SELECT ('10.0.0.' || g || '/' || m)::inet FROM generate_series(0, 9) g, unnest(ARRAY[8, 24, 32]) m",
	"boolean":     "VALUES (true), (false)",

	// Keys of types that somebody made, and of a collation that folds.
	"public.folded_text":  "SELECT repeat(c, n) || repeat('_', g) FROM unnest(ARRAY['a', 'b', '1']) c, generate_series(0, 3) g, generate_series(1, 3) n",
	"text COLLATE folded": "SELECT repeat(c, n) || repeat('_', g) FROM unnest(ARRAY['a', 'b', '1']) c, generate_series(0, 3) g, generate_series(1, 3) n",
	"public.coarse":       "SELECT g / 3.0 FROM generate_series(-9, 9) g UNION SELECT 1e18 + 1024 * g FROM generate_series(0, 9) g",
	"public.price":        "SELECT g / 4.0 FROM generate_series(-9, 9) g",
	"public.mood":         "SELECT unnest(enum_range(NULL::mood))",
}

// What a constant is written as: a literal of each value, cast to any of these, alone or
// behind another, and what an expression or the column may be made of.
var constantTypes = []string{
	"smallint", "int", "bigint", "numeric", "numeric(30,1)", "decimal", "real", "float4", "float8", "double precision", "float(5)", "text", "varchar", "varchar(36)", "varchar(2)", "char", "char(8)", "bpchar", `"char"`, "name",
	"uuid", "date", "timestamp", "timestamp(0)", "timestamptz", "time", "timetz", "interval", "money", "oid", "xid", "regclass", "boolean", "bytea", "inet", "cidr", "macaddr", "json", "jsonb", "bit(8)", "varbit", "pg_lsn", "public.coarse", "public.folded_text",
}

// By key one row is changed at most, whatever usual type the key has and however the
// constant is written. CLASSIFY_KEY is the number of constants for each type.
func TestAKeyIsEqualToAConstantInOneRowAtMost(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	cluster := postgres.ClusterForTest(t, nil)
	conn, err := pgx.Connect(ctx, cluster.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, `SET TIME ZONE 'UTC'; CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level1', deterministic = false);
		CREATE DOMAIN coarse AS float8; CREATE DOMAIN folded_text AS text COLLATE folded;
		CREATE DOMAIN price AS numeric(12,2); CREATE TYPE mood AS ENUM ('a', 'b', '1', 'true')`)
	require.NoError(t, err)
	tb := newTestTables(t, Config{ServerMajor: cluster.Major})
	total := 120
	_, _ = fmt.Sscan(os.Getenv("CLASSIFY_KEY"), &total)
	r := rand.New(rand.NewPCG(18, 5))
	pick := func(of []string) string { return of[r.IntN(len(of))] }
	rows, err := conn.Query(ctx, "SELECT DISTINCT unnest($1::text[])::regtype::oid", constantTypes)
	require.NoError(t, err)
	oids, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	require.NoError(t, err)
	oids = append(oids, 0, 705)
	byKey, byParameter, several := 0, 0, 0
	for key, values := range keyValues {
		_, err := conn.Exec(ctx, "DROP TABLE IF EXISTS t; CREATE TABLE t (id "+key+" PRIMARY KEY, n int); INSERT INTO t (id) "+values)
		require.NoError(t, err, key)
		rows, err := conn.Query(ctx, "SELECT id::text FROM t", pgx.QueryExecModeExec)
		require.NoError(t, err)
		literals, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		for range total {
			constant := "'" + strings.ReplaceAll(pick(literals), "'", "''") + "'"
			if r.IntN(3) == 0 {
				constant = strings.Trim(constant, "'") // a number, or an error
			}
			for range r.IntN(3) {
				constant = "(" + constant + ")::" + pick(constantTypes)
			}
			column := "id"
			switch r.IntN(12) {
			case 0:
				column = "id::" + pick(constantTypes)
			case 1:
				constant += " COLLATE folded"
			case 2:
				column += " COLLATE folded"
			}
			sql := "UPDATE t SET n = 1 WHERE " + column + " = " + constant
			if r.IntN(4) == 0 {
				sql = "DELETE FROM t WHERE " + constant + " = " + column
			}
			c, fault := classifyText(tb, sql)
			if fault != nil {
				continue
			}
			run := func(sql string) (pgconn.CommandTag, error) {
				tx, err := conn.Begin(ctx)
				require.NoError(t, err)
				defer tx.Rollback(ctx)
				return tx.Exec(ctx, sql)
			}
			tag, failed := run(sql)
			if strings.HasPrefix(sql, "UPDATE") { // IN of one constant reaches the same rows, and is the same fact
				list := "UPDATE t SET n = 1 WHERE " + column + " IN (" + constant + ")"
				require.Equal(t, c.Where, mustClassify(t, tb, list).Where, list)
				listed, refused := run(list)
				require.Equal(t, failed == nil, refused == nil, "%s of %s: %v, %v", list, key, failed, refused)
				require.Equal(t, tag.RowsAffected(), listed.RowsAffected(), "%s of %s", list, key)
			}
			switch {
			case failed != nil:
			case c.Where[0] == WhereKeyEquality:
				byKey++
				require.LessOrEqual(t, tag.RowsAffected(), int64(1), "%s of %s", sql, key)
			case tag.RowsAffected() > 1:
				several++
			}
		}
		for range total { // a parameter, with the number of its type
			oid, value := oids[r.IntN(len(oids))], pick(literals)
			param := "$1"
			for range max(0, r.IntN(4)-1) {
				param += "::" + pick(constantTypes)
			}
			run := func(sql string) *pgconn.Result {
				tx, err := conn.Begin(ctx)
				require.NoError(t, err)
				defer tx.Rollback(ctx)
				return conn.PgConn().ExecParams(ctx, sql, [][]byte{[]byte(value)}, []uint32{oid}, nil, nil).Read()
			}
			sql, list := "UPDATE t SET n = 1 WHERE id = "+param, "UPDATE t SET n = 1 WHERE id IN ("+param+")"
			result, listed := run(sql), run(list)
			require.Equal(t, result.Err == nil, listed.Err == nil, "%s of %s, type %d, %q: %v, %v", list, key, oid, value, result.Err, listed.Err)
			require.Equal(t, result.CommandTag, listed.CommandTag, "%s of %s, type %d, %q", list, key, oid, value)
			require.Equal(t, mustClassify(t, tb, sql).WithTypes([]uint32{oid}, nil).Where, mustClassify(t, tb, list).WithTypes([]uint32{oid}, nil).Where, list)
			switch n := result.CommandTag.RowsAffected(); {
			case result.Err != nil:
			case mustClassify(t, tb, sql).WithTypes([]uint32{oid}, nil).Where[0] == WhereKeyEquality:
				byParameter++
				require.LessOrEqual(t, n, int64(1), "%s of %s, type %d, %q", sql, key, oid, value)
			case n > 1:
				several++
			}
		}
	}
	require.Greater(t, byKey, 100)
	require.Greater(t, byParameter, 100)
	require.Greater(t, several, 20, "what the types tell apart is not there")
	t.Logf("by key %d, by a parameter as key %d, otherwise with several rows %d", byKey, byParameter, several)
}

// What a parameter without a type gets, where the classifier takes it for the key's.
func TestTheServerInfersTheTypeOfAParameterFromTheKey(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cluster := postgres.ClusterForTest(t, nil)
	conn, err := pgx.Connect(ctx, cluster.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "CREATE TABLE t (id bigint PRIMARY KEY, n int, a int, f float8); CREATE TABLE u (id float8, n int, a int, f float8)")
	require.NoError(t, err)
	tb := newTestTables(t, Config{ServerMajor: cluster.Major})
	inferred := func(sql string) (uint32, error) {
		d, err := conn.PgConn().Prepare(ctx, "", sql, nil)
		if err != nil {
			return 0, err
		}
		return d.ParamOIDs[0], nil
	}
	for _, sql := range usedTwice {
		oid, err := inferred(sql)
		require.NoError(t, err, sql)
		require.True(t, isExactOID(oid), "%s: %d", sql, oid)
	}
	r := rand.New(rand.NewPCG(3, 3))
	term := func() string {
		return []string{"id = $1", "id IN ($1)", "f IN ($1)", "id IN ($1, f)", "(id IN ($1)) = (f IN ($1))", "$1 = t.id", "f = $1", "$1::int8 > 0", "$1::float8 > 0", "f > $1", "n = 1", "EXISTS (SELECT 1 FROM u WHERE u.id = $1)", "EXISTS (SELECT 1 FROM u WHERE id = $1 AND f = $1)", "n IN (SELECT n FROM u WHERE f = $1)",
			"(t.id = $1) IN (SELECT f = $1 FROM u)", "EXISTS (SELECT id = $1 FROM (SELECT * FROM u WHERE f = $1) x)", "n = CASE WHEN f = $1 THEN 1 END", "EXISTS (SELECT 1 FROM (SELECT 1::float8 AS id) t WHERE id = $1)", "(SELECT count(*) FROM u WHERE id = $1) = 1",
			"EXISTS (SELECT 1 FROM (SELECT 1::float8 AS id) s WHERE NOT EXISTS (SELECT 1 FROM pg_catalog.pg_am WHERE id = $1))", "EXISTS (SELECT 1 FROM (SELECT 1::float8 AS id) s, LATERAL (SELECT 1 FROM pg_catalog.pg_am WHERE id = $1) y)"}[r.IntN(21)]
	}
	seen, wrongToo := 0, 0
	for range 600 {
		where := term() + " AND " + term() + " AND " + []string{"t.id = $1", "t.id IN ($1)", "(" + term() + " OR " + term() + ") AND t.id = $1", term()}[r.IntN(4)]
		sql := []string{
			"UPDATE t SET n = 1 WHERE " + where, "UPDATE t SET f = $1 WHERE " + where, "DELETE FROM t WHERE " + where, "DELETE FROM t USING (SELECT f FROM u WHERE " + strings.ReplaceAll(term(), "t.", "u.") + ") x WHERE " + strings.ReplaceAll(where, " id ", " t.id "),
			"DELETE FROM t WHERE " + where + " RETURNING f = $1", "UPDATE t SET n = (SELECT n FROM u WHERE id = $1) WHERE " + where, "WITH x AS (SELECT * FROM u t WHERE " + term() + ") UPDATE t SET n = 1 WHERE " + where,
			"WITH RECURSIVE a AS (SELECT 1 FROM b), b AS (SELECT 1 FROM u WHERE f = $1), x AS (DELETE FROM t WHERE " + where + ") SELECT 1", "WITH x AS (DELETE FROM t WHERE " + where + " RETURNING *) INSERT INTO u (f) SELECT $1 FROM x WHERE f = $1",
			"INSERT INTO u SELECT * FROM t WHERE " + where + " ON CONFLICT DO NOTHING", "MERGE INTO t USING (SELECT * FROM u t WHERE " + term() + ") s ON t.f = s.f AND t.id = $1 WHEN MATCHED AND t.f = $1 THEN DELETE",
		}[r.IntN(11)]
		c, f := classifyText(tb, sql)
		if f != nil || len(c.Where) == 0 || len(c.KeyParams) == 0 {
			continue
		}
		oid, err := inferred(sql)
		switch {
		case err != nil:
		case c.WithTypes(nil, nil).Where[0] == WhereKeyEquality:
			seen++
			require.True(t, isExactOID(oid), "%s: %d", sql, oid)
		case !isExactOID(oid):
			wrongToo++
		}
	}
	require.Greater(t, seen, 30)
	require.Greater(t, wrongToo, 30)
}
