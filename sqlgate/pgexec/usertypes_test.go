package pgexec

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryTypeThatSomebodyMadeIsNamedAndMapped makes one type of each kind that
// PostgreSQL has and walks all that came of it, arrays, multiranges and row types
// among them: each is known by its name, and a domain by what is below it.
func TestEveryTypeThatSomebodyMadeIsNamedAndMapped(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE SCHEMA shop; CREATE TYPE shop.mood AS ENUM ('so so', 'ok'); CREATE TYPE shop.pair AS (a int, b shop.mood);
CREATE DOMAIN shop.amount AS numeric(10, 2) CHECK (VALUE >= 0); CREATE DOMAIN shop.amounts AS shop.amount[]; CREATE DOMAIN shop.price AS shop.amount;
CREATE TYPE shop.span AS RANGE (subtype = float8); CREATE TABLE shop.rows (id int, at shop.span, list shop.price[])`)
	results, err := side.conn.Exec(context.Background(), `SELECT format_type(t.oid, NULL), t.typtype, t.typname, COALESCE(e.typname, ''), COALESCE(e.typtype::text, '')
 FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_type e ON e.oid = t.typelem WHERE n.nspname = 'shop' ORDER BY t.oid`).ReadAll()
	require.NoError(t, err)
	kinds := map[string]int{}
	for _, row := range results[0].Rows {
		sqlName, kind, name, elem := string(row[0]), string(row[1]), string(row[2]), string(row[3])
		want := "shop." + name
		switch {
		case kind == "d" && name == "amounts":
			want = "shop.amount[]"
		case kind == "d":
			want = "numeric"
		case elem != "":
			kind, want = "array", "shop."+elem+"[]"
		}
		kinds[kind]++
		rows := db.NewRows(0)
		_, err := db.Read(context.Background(), "", sql(fmt.Sprintf("SELECT NULL::%s AS v", sqlName)), Limits{}, rows)
		require.NoError(t, err, sqlName)
		require.Equal(t, want, rows.Columns()[0].Type, sqlName)
		require.Equal(t, `[{"v":null}]`, string(rows.JSON()))
	}
	for _, kind := range []string{"e", "c", "d", "r", "m", "array"} {
		require.Positive(t, kinds[kind], "no type of kind %s", kind)
	}
	require.Equal(t, `[{"a":["1.50",null],"b":[["2.00"]],"c":"so so","d":"(1,ok)","e":["(1,ok)"],"f":"{[1,2),[3,4)}","g":["{[1,2)}"],"h":"(1,\"[1,2)\",{3.00})"}]`,
		mustRead(t, db, `SELECT '{1.5,NULL}'::shop.price[] AS a, '{{2}}'::shop.amounts AS b, 'so so'::shop.mood AS c, ROW(1, 'ok')::shop.pair AS d,
 ARRAY[ROW(1, 'ok')::shop.pair] AS e, '{[1,2),[3,4)}'::shop.span_multirange AS f, ARRAY['{[1,2)}'::shop.span_multirange] AS g,
 ROW(1, '[1,2)', '{3}')::shop.rows AS h`))
}
