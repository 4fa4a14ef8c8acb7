package httpd

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// body has a field of every kind that a request may have.
type body struct {
	SQL     string            `json:"sql"`
	Session *string           `json:"session_id"`
	Count   int               `json:"count"`
	Small   int8              `json:"small"`
	Ratio   float64           `json:"ratio"`
	Flag    bool              `json:"flag"`
	Names   []string          `json:"names"`
	Inner   inner             `json:"inner"`
	Maybe   *inner            `json:"maybe"`
	Many    []inner           `json:"many"`
	Labels  map[string]string `json:"labels"`
	Raw     json.RawMessage   `json:"raw"`
	At      time.Time         `json:"at"`
	Hidden  string            `json:"-"`
}

type inner struct {
	A string `json:"a"`
	B int    `json:"b"`
}

func TestABodyIsDecoded(t *testing.T) {
	session := "s\n\"é😀"
	for _, c := range []struct {
		in   string
		want body
	}{
		{"", body{}},
		{" \n\t", body{}},
		{"{}", body{}},
		{` { "sql" : "SELECT 1" , "count" : -7 } `, body{SQL: "SELECT 1", Count: -7}},
		{`{"session_id":"s\n\"\u00e9\ud83d\ude00"}`, body{Session: &session}},
		{`{"session_id":null,"sql":null,"count":null,"names":null,"inner":null,"maybe":null}`, body{}},
		{`{"ratio":-1.5e3,"flag":true,"names":["a","b"],"labels":{"k":"v"}}`, body{Ratio: -1500, Flag: true, Names: []string{"a", "b"}, Labels: map[string]string{"k": "v"}}},
		{`{"inner":{"a":"x","b":1},"maybe":{"b":2},"many":[{"a":"1"},{"a":"2"}]}`, body{Inner: inner{"x", 1}, Maybe: &inner{B: 2}, Many: []inner{{A: "1"}, {A: "2"}}}},
		{`{"raw":{"any":[1,{"thing":null}]}}`, body{Raw: json.RawMessage(`{"any":[1,{"thing":null}]}`)}},
		{`{"at":"2026-01-02T03:04:05Z"}`, body{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}},
		{`{"sql":"\u0000"}`, body{SQL: "\x00"}},
		{`{"sql":"\/\b\f\r\t\\"}`, body{SQL: "/\b\f\r\t\\"}},
	} {
		var got body
		require.NoError(t, DecodeJSON([]byte(c.in), &got), "%s", c.in)
		require.Equal(t, c.want, got, "%s", c.in)
	}
}

func TestWhatIsNotExactlyTheBodyIsRefusedAndNamed(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`[`, n) + strings.Repeat(`]`, n) }
	for _, c := range []struct{ name, in, field, says string }{
		{"unknown field", `{"sql":"x","sqll":"y"}`, "sqll", "no such field"},
		{"a name in another case", `{"SQL":"x"}`, "SQL", "no such field"},
		{"a slip of the pen", `{"sessionid":"x"}`, "sessionid", "did you mean \"session_id\"?"},
		{"a hidden field", `{"Hidden":"x"}`, "Hidden", "no such field"},
		{"doubled field", `{"sql":"a","sql":"b"}`, "sql", "twice"},
		{"doubled by an escape", `{"sql":"a","\u0073ql":"b"}`, "sql", "twice"},
		{"unknown field inside", `{"inner":{"c":1}}`, "inner.c", "no such field"},
		{"unknown field in a list", `{"many":[{"a":"1"},{"z":1}]}`, "many.1.z", "no such field"},
		{"doubled field in free JSON", `{"raw":{"x":1,"x":2}}`, "raw.x", "twice"},
		{"number for a string", `{"sql":1}`, "sql", "must be a string, not this number"},
		{"string for a number", `{"count":"1"}`, "count", "must be a whole number in its range, not a string"},
		{"fraction for a whole number", `{"count":1.5}`, "count", "must be a whole number"},
		{"huge number", `{"count":1e400}`, "count", "must be a whole number"},
		{"number out of range", `{"small":128}`, "small", "must be a whole number in its range"},
		{"huge fraction", `{"ratio":1e999}`, "ratio", "must be a number"},
		{"object for a string", `{"sql":{}}`, "sql", "not an object"},
		{"list for an object", `{"inner":[]}`, "inner", "must be an object, not a list"},
		{"object for a list", `{"many":{}}`, "many", "must be a list, not an object"},
		{"string for a list", `{"names":"a"}`, "names", "must be a list, not a string"},
		{"number in a list of strings", `{"names":["a",1]}`, "names.1", "must be a string, not this number"},
		{"number in a map of strings", `{"labels":{"k":1}}`, "labels.k", "must be a string, not this number"},
		{"string for a flag", `{"flag":"true"}`, "flag", "must be true or false"},
		{"no moment", `{"at":"yesterday"}`, "at", "must be a moment"},
		{"number for a moment", `{"at":1}`, "at", "must be a moment"},
		{"list as body", `[]`, "", "must be an object, not a list"},
		{"null as body", `null`, "", "must be an object, not null"},
		{"string as body", `"sql"`, "", "must be an object"},
		{"two values", `{} {}`, "", "after top-level value"},
		{"trailing comma", `{"sql":"a",}`, "", "invalid character"},
		{"missing comma", `{"sql":"a" "count":1}`, "", "expecting ','"},
		{"cut short", `{"sql":"a"`, "", "ends too early"},
		{"cut inside a string", `{"sql":"a`, "sql", "ends too early"},
		{"cut inside an escape", `{"sql":"a\u00`, "sql", "ends too early"},
		{"cut behind a backslash", `{"sql":"a\`, "sql", "ends too early"},
		{"comment", `{/*x*/"sql":"a"}`, "", "invalid character"},
		{"single quotes", `{'sql':'a'}`, "", "invalid character"},
		{"byte order mark", "\xef\xbb\xbf{}", "", "invalid character"},
		{"NUL", "{\x00}", "", "invalid character"},
		{"raw control character", "{\"sql\":\"a\x01\"}", "sql", "non-control character"},
		{"raw newline in an escaped string", "{\"sql\":\"\\t\n\"}", "sql", "non-control character"},
		{"invalid UTF-8", "{\"sql\":\"\xff\"}", "sql", "UTF-8"},
		{"invalid UTF-8 beside an escape", "{\"sql\":\"\\t\xff\"}", "sql", "UTF-8"},
		{"lone high surrogate", `{"sql":"\ud83d"}`, "sql", "surrogate"},
		{"lone low surrogate", `{"sql":"\ude00"}`, "sql", "surrogate"},
		{"two high surrogates", `{"sql":"\ud83d\ud83d"}`, "sql", "surrogate"},
		{"unknown escape", `{"sql":"\x41"}`, "sql", "escape"},
		{"leading zero", `{"count":01}`, "", "expecting ','"},
		{"lone minus", `{"count":-}`, "count", "digit"},
		{"NaN", `{"ratio":NaN}`, "ratio", "start of value"},
		{"deep nesting", `{"raw":` + deep(1000) + `}`, clip("raw"+strings.Repeat(".0", 1000), maxNameInMessage), "nested"},
		{"deep nesting in an unknown place", deep(100_000), "", "must be an object"},
		{"half a literal", `{"flag":tru}`, "flag", "literal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := DecodeJSON([]byte(c.in), new(body))
			f, ok := fault.As(err)
			require.True(t, ok, "it was taken")
			require.Equal(t, fault.InvalidJSON, f.Code)
			require.Contains(t, f.Message, strings.ReplaceAll(c.says, `\"`, `"`))
			if c.field == "" {
				require.NotContains(t, f.Details, "field")
			} else {
				require.Equal(t, c.field, f.Details["field"])
			}
			require.Contains(t, f.Details, "offset")
		})
	}
}

func TestAHostileNameDoesNotGrowTheAnswer(t *testing.T) {
	err := DecodeJSON([]byte(`{"`+strings.Repeat("é", 100_000)+`":1}`), new(body))
	require.Less(t, len(fault.Of(err).Message), 500)
}

func TestFreeJSONMayNestToTheBoundAndNoFurther(t *testing.T) {
	at := func(n int) error { // the body is level one
		return DecodeJSON([]byte(`{"raw":`+strings.Repeat("[", n-1)+strings.Repeat("]", n-1)+`}`), new(body))
	}
	require.NoError(t, at(maxDepth))
	require.Error(t, at(maxDepth+1))
}

// FuzzDecodeJSON holds the decoder against encoding/json: what we take is JSON,
// and means the same to both.
func FuzzDecodeJSON(f *testing.F) {
	for _, seed := range []string{`{}`, `{"sql":"a\u00e9\ud83d\ude00","count":1}`, `{"raw":[1,-0.5e+7,true,null,{"x":{}}]}`, `{"many":[{"a":"x"}],"maybe":{"b":3}}`, `{"sql":"a","sql":"b"}`, "[[[[", `{"names":["\\"]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var ours, theirs body
		if DecodeJSON(in, &ours) != nil || len(bytes.TrimSpace(in)) == 0 {
			return
		}
		require.NoError(t, json.Unmarshal(in, &theirs), "%q", in)
		ours.Raw, theirs.Raw = nil, nil // a null is absent to us
		require.Equal(t, theirs, ours, "%q", in)
	})
}

func BenchmarkDecodeQuery(b *testing.B) {
	in := []byte(`{"actor":"ana","app":"console","tenant":"acme","role":"dev","host":"db1","env":"prod","sql":"UPDATE accounts SET balance = balance - 10 WHERE id = 42","execution_profile":"default"}`)
	type query struct {
		Actor   string  `json:"actor"`
		App     string  `json:"app"`
		Tenant  string  `json:"tenant"`
		Role    string  `json:"role"`
		Host    string  `json:"host"`
		Env     string  `json:"env"`
		SQL     string  `json:"sql"`
		Session *string `json:"session_id"`
		Profile string  `json:"execution_profile"`
	}
	b.Run("strict", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := DecodeJSON(in, new(query)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := json.Unmarshal(in, new(query)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
