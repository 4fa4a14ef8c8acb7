package classify

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A type of a message is to a statement what a cast to it in the text is.
func TestTypesOfAMessageCountAsThoseOfTheText(t *testing.T) {
	c := newClassifier(t, Config{})
	classify := func(sql string) Classification {
		found, err := c.Classify(context.Background(), sql)
		require.NoError(t, err)
		return found
	}
	for _, pair := range [][2]string{
		{"SELECT $1", "SELECT $1::dom"}, {"SELECT lower($1)", "SELECT lower($1::dom)"}, {"UPDATE t SET a = $1", "UPDATE t SET a = $1::dom"},
		{"EXPLAIN SELECT $1", "EXPLAIN SELECT $1::dom"}, {"SELECT other($1)", "SELECT other($1::dom)"}, {"DO 'x'", "DO 'x'"},
	} {
		plain := classify(pair[0])
		got, want := plain.WithTypes(nil, []string{"public.dom"}), classify(pair[1])
		require.Contains(t, got.Functions, "public.dom")
		require.Contains(t, got.RiskSignals, SignalUnknownFunction)
		require.NotEqual(t, plain.Fingerprint, got.Fingerprint)
		require.True(t, got.UserTypes)
		require.False(t, got.SafeRead)
		if pair[0] != pair[1] {
			require.Equal(t, want.Functions, got.Functions)
			require.Equal(t, want.RiskSignals, got.RiskSignals)
			require.Equal(t, [2]string{want.Class, want.Run}, [2]string{got.Class, got.Run})
			require.Len(t, got.Signals, len(want.Signals))
		}
		require.Equal(t, plain, classify(pair[0]), "one that may be shared stays as it was")
		require.Equal(t, plain, plain.WithTypes(nil, nil))
		require.Equal(t, got.Fingerprint, plain.WithTypes(nil, []string{"public.dom", "public.dom"}).Fingerprint)
	}
	for oid, name := range map[uint32]string{142: "xml", 143: "xml[]", 4072: "jsonpath", 4073: "_jsonpath"} {
		for _, text := range []string{"SELECT $1", "UPDATE t SET a = $1 WHERE id = 7", "INSERT INTO t (id, a) VALUES (7, $1) ON CONFLICT (id) DO UPDATE SET a = excluded.a"} {
			pair := [2]string{text, strings.ReplaceAll(text, "$1", "$1::"+name)}
			plain := classify(pair[0])
			got, want := plain.WithTypes([]uint32{oid}, nil), classify(pair[1])
			require.Equal(t, []string{SignalDelayFunction}, got.RiskSignals)
			require.Equal(t, want.RiskSignals, got.RiskSignals)
			require.Equal(t, []any{want.Class, want.Run, want.SafeRead, want.Where, want.Functions}, []any{got.Class, got.Run, got.SafeRead, got.Where, got.Functions})
			require.Equal(t, [2]string{want.Signals[0].Signal, want.Signals[0].Subject}, [2]string{got.Signals[0].Signal, got.Signals[0].Subject})
			require.NotEqual(t, plain.Fingerprint, got.Fingerprint)
			require.Equal(t, plain, classify(pair[0]), "one that may be shared stays as it was")
			more := plain.WithTypes([]uint32{oid}, []string{"public.dom"})
			require.Equal(t, []string{SignalDelayFunction, SignalUnknownFunction}, more.RiskSignals)
		}
	}
	many := make([]string, 300)
	for i := range many {
		many[i] = fmt.Sprintf("public.t%03d", i)
	}
	got := classify("SELECT 1").WithTypes(nil, many)
	require.Len(t, got.Functions, maxFacts)
	require.Contains(t, got.RiskSignals, SignalOversizedFacts)
	require.LessOrEqual(t, len(got.Signals), maxSignals)
}

// Facts have no quotes, and the schema of the search path may have a dot in its name.
func TestATemporaryNameIsFoundBesideASchemaWithADot(t *testing.T) {
	c := Classification{TablesRead: []string{"a.b.mine", "a.mine"}, TablesWritten: []string{"a.b.t"}, ColumnsWritten: []string{"a.b.t.v"}, Where: []string{WhereKeyEquality}}
	with := c.WithTemporary("a.b", map[string]bool{"mine": false}, false)
	require.Equal(t, []string{"a.b.mine", "a.mine", "pg_temp.mine"}, with.TablesRead)
	require.Equal(t, []string{WherePresent}, with.Where)
	require.Equal(t, []string{"a.b.t"}, with.TablesWritten)
	require.Equal(t, c, c.WithTemporary("a", map[string]bool{"others": true}, false))
}
