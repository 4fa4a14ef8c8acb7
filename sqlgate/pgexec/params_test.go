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
