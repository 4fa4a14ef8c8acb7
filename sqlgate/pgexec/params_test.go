package pgexec

import (
	"context"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a parameter may have as its type is what the server itself calls a base
// type, a range, a multirange or an array of these.
func TestParametersHaveTypesThatTheServerHasBuiltIn(t *testing.T) {
	_, side := open(t)
	side.run("CREATE TYPE mood AS ENUM ('ok')")
	results, err := side.conn.Exec(context.Background(), `SELECT t.oid, COALESCE(e.typname, t.typname), e.oid IS NOT NULL,
 t.typtype IN ('b', 'r', 'm') AND COALESCE(e.typtype, 'b') IN ('b', 'r', 'm') AND t.oid < 10000
 FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A' AND t.typname NOT IN ('int2vector', 'oidvector') ORDER BY t.oid`).ReadAll()
	require.NoError(t, err)
	bindable := 0
	for _, row := range results[0].Rows {
		oid, ok := BuiltinType(string(row[1]), string(row[2]) == "t")
		require.Equal(t, string(row[3]) == "t", ok && oid == parseOID(row[0]), "%s %s", row[0], row[1])
		if ok {
			bindable++
		}
	}
	require.Greater(t, bindable, 100)
	for _, name := range []string{"mood", "nothing", "", "unknown", "record", "internal", "int", "pg_class"} {
		_, ok := BuiltinType(name, false)
		require.False(t, ok, name)
	}
	require.Equal(t, "int4", TypeLabel(23))
	require.Equal(t, "text[]", TypeLabel(1009))
}

// TestTheDigestOfParametersIsItsFormula is the vector of what evidence keeps.
func TestTheDigestOfParametersIsItsFormula(t *testing.T) {
	st := &Statement{ParamOIDs: []uint32{20}, Params: [][]byte{[]byte("7"), nil, {}}}
	digest := ParamsDigest(st)
	require.Equal(t, "691f8abe9d3f8f925315102476cb560e3906ab00d22919160b7d0ccfd8395ae3", hex.EncodeToString(digest[:]))
	for _, other := range []*Statement{
		{ParamOIDs: []uint32{23}, Params: st.Params},
		{ParamOIDs: st.ParamOIDs, Params: [][]byte{[]byte("7"), {}, nil}},
		{ParamOIDs: st.ParamOIDs, Params: st.Params, ParamFormats: []int16{1}},
		{ParamOIDs: st.ParamOIDs, Params: st.Params[:2]},
	} {
		require.NotEqual(t, digest, ParamsDigest(other))
	}
}

// Every type that the server has is plain, or has a name: schema.name of itself or
// of its elements.
func TestTypesThatAreNotPlainAreNamed(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE SCHEMA shop; CREATE TYPE shop.mood AS ENUM ('ok'); CREATE DOMAIN shop.dom AS int; CREATE DOMAIN shop.doms AS shop.dom[];
CREATE TYPE shop.comp AS (a int); CREATE TYPE shop.span AS RANGE (subtype = int8); CREATE TYPE shop.shell;
CREATE SCHEMA "Odd"; CREATE DOMAIN "Odd"."x, text'::y" AS int`)
	results, err := side.conn.Exec(context.Background(), `SELECT t.oid, COALESCE(en.nspname, n.nspname), COALESCE(e.typname, t.typname),
 t.oid < 10000 AND COALESCE(e.typtype, t.typtype) IN ('b', 'r', 'm') AND t.typname !~ '^_?reg' OR t.typname = 'unknown',
 t.oid::regtype FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typsubscript = 'array_subscript_handler'::regproc AND t.typlen = -1
 LEFT JOIN pg_namespace en ON en.oid = e.typnamespace`).ReadAll()
	require.NoError(t, err)
	var oids []uint32
	want, labels := map[uint32]string{}, map[uint32]string{}
	for _, row := range results[0].Rows {
		oid := parseOID(row[0])
		oids = append(oids, oid)
		require.Equal(t, string(row[3]) == "t", PlainType(oid), "%s %s", row[0], row[2])
		if !PlainType(oid) {
			want[oid] = string(row[1]) + "." + string(row[2])
		}
		if oid >= 10000 && string(row[1]) != "pg_catalog" { // as the server writes it
			labels[oid] = string(row[4])
		}
	}
	oids, want[9999], want[4294967295] = append(oids, 0, 9999, 4294967295), "oid.9999", "oid.4294967295"
	types, err := db.TypeNames(context.Background(), append(oids, oids...))
	require.NoError(t, err)
	for oid, name := range want {
		require.Equal(t, name, types.Names[oid].Name)
		if label := labels[oid]; label != "" {
			require.Equal(t, label, types.Names[oid].Label)
		}
	}
	require.Len(t, types.Names, len(want))
	for _, oid := range []uint32{0, 23, 25, 705, 1007, 3802, 4451} {
		require.True(t, PlainType(oid))
	}
	db.Close()
	types, err = db.TypeNames(context.Background(), []uint32{0, 23, 2249, 2205, 2210})
	require.NoError(t, err, "its own table says so")
	require.Equal(t, map[uint32]TypeName{2249: {"pg_catalog.record", "pg_catalog.record"}, 2205: {"pg_catalog.regclass", "pg_catalog.regclass"}, 2210: {"pg_catalog.regclass", "pg_catalog.regclass[]"}}, types.Names)
}

// TestParsingIsHarmlessWhereItsConstantsMeetBuiltInTypes holds the reasons.
func TestParsingIsHarmlessWhereItsConstantsMeetBuiltInTypes(t *testing.T) {
	db, side := open(t)
	side.run("CREATE TABLE t (a int, b text); CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE m (a mood, b mood[]); CREATE DOMAIN dom AS int; CREATE TABLE d (a dom)")
	for _, c := range []struct {
		sql  string
		rels []string
		why  string
	}{
		{"SELECT a FROM t WHERE b = 'x'", []string{"public.t"}, ""}, {"SELECT a FROM m WHERE a = 'ok' AND b = '{ok}'", []string{"public.m"}, ""},
		{"SELECT a FROM d WHERE a = '1'", []string{"public.d"}, "a column has a type that is not built in"},
		{"SELECT a FROM nowhere WHERE a = '1'", []string{"public.nowhere"}, "a relation is not there"},
		{"SELECT d('1')", nil, ""}, {"SELECT dom('1')", nil, "a type that is not built in bears a name of the text"},
	} {
		names := map[bool][]string{true: {"dom"}}[c.sql == "SELECT dom('1')"]
		reading, err := db.BeginRead(context.Background(), &Statement{}, Limits{})
		require.NoError(t, err)
		d, why, err := reading.DescribeHarmless(context.Background(), ParseRequest{SQL: c.sql, Relations: c.rels, Words: names})
		require.Equal(t, c.why, why, c.sql)
		require.Equal(t, c.why != "" || c.sql == "SELECT d('1')", d.Fields == nil, c.sql)
		require.Equal(t, c.sql == "SELECT d('1')", err != nil, c.sql)
		require.Equal(t, `[{"a":1}]`, mustRead(t, db, "SELECT 1 AS a"), "the connection goes on")
	}
}
