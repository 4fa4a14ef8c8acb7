package policy

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCanonicalJSON(t *testing.T) {
	for _, c := range []struct {
		value any
		want  string
	}{
		{nil, `null`},
		{map[string]any{"b": 1, "a": []any{true, "x"}, "": nil}, `{"":null,"a":[true,"x"],"b":1}`},
		{map[string]any{"ä": 1, "z": 2, "Z": 3}, `{"Z":3,"z":2,"ä":1}`},
		{"\"\\\n\x00\x1f\x7f<&>\u2028é", `"\"\\\u000a\u0000\u001f` + "\x7f<&>\u2028é" + `"`},
		{[]string{}, `[]`},
		{[]any{int64(math.MinInt64), uint64(math.MaxUint64), 3.0, json.Number("12")}, `[-9223372036854775808,18446744073709551615,3,12]`},
		{struct {
			B int    `json:"b"`
			A string `json:"a,omitempty"`
		}{B: 1}, `{"b":1}`},
	} {
		got, err := CanonicalJSON(c.value)
		require.NoError(t, err)
		require.Equal(t, c.want, string(got))
	}
	for _, v := range []any{1.5, math.NaN(), math.Inf(1), "\xff", map[string]any{"\xff": 1}, []any{map[string]any{"a": []any{0.1}}},
		json.Number("1e3"), json.Number("1.0"), make(chan int), float32(0.5)} {
		_, err := CanonicalJSON(v)
		require.Error(t, err, "%v", v)
	}
}

func TestCanonicalJSONIsJSONOfTheSameValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.MapOf(rapid.String(), rapid.SliceOf(rapid.String())).Draw(t, "value")
		encoded, err := CanonicalJSON(v)
		if err != nil {
			return // a text that is not UTF-8 has no canonical form
		}
		var back map[string][]string
		if err := json.Unmarshal(encoded, &back); err != nil {
			t.Fatal(err)
		}
		again, err := CanonicalJSON(back)
		if err != nil || !bytes.Equal(encoded, again) {
			t.Fatalf("%s is not %s", again, encoded)
		}
	})
}

func TestTheSemanticHash(t *testing.T) {
	base := ruleWith("REQUIRE_APPROVAL", "match: { tables_written: [a.b, c.d], class: [ddl, write] }, unless: { app: [x] }, when: actor == role, lifts: [opaque_code], approval: { ttl_seconds: 60, max_rows: 5 }")
	hash := load(t, base).SemanticHash()
	same := map[string]string{
		"another version":   strings.Replace(base, "1.0.0", "2.0.0", 1),
		"another name":      strings.Replace(base, "name: p", "name: q", 1),
		"texts":             strings.Replace(base, "match:", "message: m, remedy: x, match:", 1) + "description: d\nowner: o\n",
		"tests":             base + "tests: [ { name: n, sql: s, expect: { not: ALLOW } } ]\n",
		"order in a list":   strings.Replace(base, "[a.b, c.d]", "[c.d, a.b, a.b]", 1),
		"order of keys":     strings.Replace(base, "tables_written: [a.b, c.d], class: [ddl, write]", "class: [ddl, write], tables_written: [a.b, c.d]", 1),
		"a list by name":    strings.Replace(base, "[a.b, c.d]", "[$l, c.d]", 1) + "lists: { l: [a.b] }\n",
		"defaults":          strings.Replace(base, "match:", "mode: enforce, match:", 1),
		"space and comment": "# x\n" + base + "\n",
	}
	for what, document := range same {
		require.Equal(t, hash, load(t, document).SemanticHash(), what)
		require.NotEqual(t, load(t, base).Hash(), load(t, document).Hash(), what)
	}
	other := map[string]string{
		"a pattern":    strings.Replace(base, "a.b", "a.c", 1),
		"a quantifier": strings.Replace(base, "tables_written:", "tables_written_only:", 1),
		"the decision": strings.Replace(base, ", lifts: [opaque_code], approval: { ttl_seconds: 60, max_rows: 5 }", ", approval: { ttl_seconds: 60 }", 1),
		"the mode":     strings.Replace(base, "match:", "mode: observe, match:", 1),
		"the reason":   strings.Replace(base, "r_r", "s_s", 1),
		"the id":       strings.Replace(base, "id: r", "id: s", 1),
		"the unless":   strings.Replace(base, "app: [x]", "app: [y]", 1),
		"the when":     strings.Replace(base, "actor == role", "role == actor", 1),
		"the ttl":      strings.Replace(base, "ttl_seconds: 60", "ttl_seconds: 61", 1),
		"the rows":     strings.Replace(base, "max_rows: 5", "max_rows: 6", 1),
	}
	for what, document := range other {
		require.NotEqual(t, hash, load(t, document).SemanticHash(), what)
	}
	two := strings.Replace(plainRule, "id: r", "id: s", 1)
	require.NotEqual(t, load(t, rulesOf(plainRule+two)).SemanticHash(), load(t, rulesOf(two+plainRule)).SemanticHash(), "the order of rules counts")
}
