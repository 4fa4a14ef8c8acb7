package pgexec

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestValuesAtTheirExtremes(t *testing.T) {
	db, side := open(t)
	side.run(`CREATE TYPE mood AS ENUM ('so so', 'NULL'); CREATE TYPE pair AS (a int, b text); CREATE SCHEMA other;
CREATE DOMAIN posint AS int CHECK (VALUE > 0); CREATE DOMAIN other.ints AS int[]; CREATE TYPE floatrange AS RANGE (subtype = float8)`)
	for _, c := range []struct{ expr, want, typ string }{
		{"NULL::int", `null`, "int4"},
		{"true", `true`, "bool"},
		{"false", `false`, "bool"},
		{"(-32768)::int2", `-32768`, "int2"},
		{"(-2147483648)::int4", `-2147483648`, "int4"},
		{"4294967295::oid", `4294967295`, "oid"},
		{"9007199254740991::int8", `9007199254740991`, "int8"},
		{"(-9007199254740991)::int8", `-9007199254740991`, "int8"},
		{"9007199254740992::int8", `"9007199254740992"`, "int8"},
		{"(-9223372036854775808)::int8", `"-9223372036854775808"`, "int8"},
		{"18446744073709551615::text::xid8", `"18446744073709551615"`, "xid8"},
		{"0.1::float4", `0.1`, "float4"},
		{"'-0'::float8", `-0`, "float8"},
		{"1e-320::float8", `1e-320`, "float8"},
		{"1.7976931348623157e308::float8", `1.7976931348623157e+308`, "float8"},
		{"'NaN'::float8", `"NaN"`, "float8"},
		{"'Infinity'::float4", `"Infinity"`, "float4"},
		{"'-Infinity'::float8", `"-Infinity"`, "float8"},
		{"1.500::numeric", `"1.500"`, "numeric"},
		{"'NaN'::numeric", `"NaN"`, "numeric"},
		{"1e400::numeric", `"1` + strings.Repeat("0", 400) + `"`, "numeric"},
		{"1234.5::money", `"$1,234.50"`, "money"},
		{`'\x00ff'::bytea`, `"\\x00ff"`, "bytea"},
		{`E'a"\\\b\f\n\r\t\x01é😀\u2028'`, `"a\"\\\u0008\u000c\n\r\t\u0001é😀` + "\u2028" + `"`, "text"},
		{`E'\x7f'`, "\"\x7f\"", "text"},
		{`'{"b": 1, "b": 1.10, "a": [1e400]}'::json`, `{"b": 1, "b": 1.10, "a": [1e400]}`, "json"},
		{`'{"b": 1, "b": 1.10}'::jsonb`, `{"b": 1.10}`, "jsonb"},
		{"repeat('[', 1000)::text || repeat(']', 1000)", `"` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `"`, "text"},
		{"(repeat('[', 1000) || repeat(']', 1000))::jsonb", strings.Repeat("[", 1000) + strings.Repeat("]", 1000), "jsonb"},
		{"(repeat('[', 1001) || repeat(']', 1001))::jsonb", `"` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + `"`, "jsonb"},
		{"'infinity'::timestamptz", `"infinity"`, "timestamptz"},
		{"'2024-02-29 23:59:59.999999+01'::timestamptz", `"2024-02-29 22:59:59.999999+00"`, "timestamptz"},
		{"'4713-01-01 BC'::date", `"4713-01-01 BC"`, "date"},
		{"'24:00:00'::time", `"24:00:00"`, "time"},
		{"'1 year -2 mons 3 days 04:05:06.7'::interval", `"10 mons 3 days 04:05:06.7"`, "interval"},
		{"'{1,NULL,3}'::int[]", `[1,null,3]`, "int4[]"},
		{"'{{1,2},{3,4}}'::int[]", `[[1,2],[3,4]]`, "int4[]"},
		{"'{}'::text[]", `[]`, "text[]"},
		{"'[0:1]={1,2}'::int[]", `"[0:1]={1,2}"`, "int4[]"},
		{`ARRAY['NULL', NULL, '', 'a,b', '{c}', 'd"e\f', E'\n']`, `["NULL",null,"","a,b","{c}","d\"e\\f","\n"]`, "text[]"},
		{"ARRAY[box '((1,2),(3,4))', box '((0,0),(1,1))']", `["(3,4),(1,2)","(1,1),(0,0)"]`, "box[]"},
		{`ARRAY['{"a":[1]}'::jsonb, 'null', NULL]`, `[{"a": [1]},null,null]`, "jsonb[]"},
		{"ARRAY['NaN', 1.5]::float8[]", `["NaN",1.5]`, "float8[]"},
		{"ARRAY[true, false]", `[true,false]`, "bool[]"},
		{"ARRAY[9007199254740992]", `["9007199254740992"]`, "int8[]"},
		{"'1 2 3'::int2vector", `"1 2 3"`, "int2vector"},
		{"'1 2'::oidvector", `"1 2"`, "oidvector"},
		{"ARRAY['1 2'::int2vector]", `["1 2"]`, "int2vector[]"},
		{"ROW(1, 'a b', NULL)", `"(1,\"a b\",)"`, "record"},
		{"ARRAY[ROW(1,'x')]", `["(1,x)"]`, "record[]"},
		{"'[1,5)'::int4range", `"[1,5)"`, "int4range"},
		{"'{[1,5)}'::int4multirange", `"{[1,5)}"`, "int4multirange"},
		{"'so so'::mood", `"so so"`, "public.mood"},
		{"ARRAY['so so', 'NULL', NULL]::mood[]", `["so so","NULL",null]`, "public.mood[]"},
		{"ROW(1, 'x')::pair", `"(1,x)"`, "public.pair"},
		{"ARRAY[ROW(1, 'x y')::pair]", `["(1,\"x y\")"]`, "public.pair[]"},
		{"5::posint", `5`, "int4"},
		{"ARRAY[5, NULL]::posint[]", `[5,null]`, "public.posint[]"},
		{"ARRAY[1,2]::other.ints", `[1,2]`, "int4[]"},
		{"'[0,Infinity)'::floatrange", `"[0,Infinity)"`, "public.floatrange"},
		{"'public.mood'::regtype", `"mood"`, "regtype"},
		{"'{\"k\"}'::name[]", `["k"]`, "name[]"},
		{"(SELECT t FROM pg_tables t LIMIT 0)", `null`, "pg_tables"},
	} {
		t.Run(c.expr[:min(40, len(c.expr))], func(t *testing.T) {
			rows := db.NewRows(0)
			_, err := db.Read(context.Background(), "", sql("SELECT "+c.expr+" AS v"), Limits{}, rows)
			require.NoError(t, err)
			require.Equal(t, `[{"v":`+c.want+`}]`, string(rows.JSON()))
			require.True(t, json.Valid(rows.JSON()))
			require.Equal(t, c.typ, rows.Columns()[0].Type)
		})
	}
	require.Equal(t, `[{"v":""}]`, mustRead(t, db, "SELECT pg_sleep(0) AS v"), "void")
	require.Equal(t, "[{},{}]", mustRead(t, db, "SELECT FROM generate_series(1, 2)"), "no columns at all")
	require.Equal(t, "[]", mustRead(t, db, "SELECT 1 WHERE false"))
}

// The table of built-in types must have every type of every server; an unknown
// one would silently become a string.
func TestEveryBuiltInTypeOfTheServerIsKnown(t *testing.T) {
	_, side := open(t)
	results, err := side.conn.Exec(context.Background(), `SELECT oid, typname, typdelim,
 CASE WHEN typsubscript = 'array_subscript_handler'::regproc AND typname NOT IN ('int2vector', 'oidvector') THEN typelem ELSE 0 END,
 (SELECT e.typdelim FROM pg_type e WHERE e.oid = t.typelem) FROM pg_type t WHERE oid < 10000 ORDER BY oid`).ReadAll()
	require.NoError(t, err)
	require.Greater(t, len(results[0].Rows), 150)
	for _, row := range results[0].Rows {
		oid, elem := parseOID(row[0]), parseOID(row[3])
		info, known := builtin()[oid]
		require.True(t, known, "type %d %s", oid, row[1])
		if elem == 0 {
			require.Equal(t, string(row[1]), info.name)
			require.NotEqual(t, asArray, info.kind)
			continue
		}
		require.Equal(t, asArray, info.kind, string(row[1]))
		require.Equal(t, builtin()[elem], info.elem, string(row[1]))
		require.Equal(t, row[4][0], info.delim, string(row[1]))
	}
}

// Every built-in type that has an input function gets a value through text, alone
// and in an array, and gives valid JSON with the server's own text in it.
func TestEveryTypesValuesAreValidJSON(t *testing.T) {
	db, side := open(t)
	samples := map[string]string{
		"bool": "t", "bytea": `\x01`, "char": "c", "name": "n", "int8": "-1", "int2": "1", "int2vector": "1 2", "int4": "1", "regproc": "now", "text": "t",
		"oid": "1", "tid": "(1,2)", "xid": "1", "cid": "1", "oidvector": "1", "json": "[1]", "xml": "<a/>", "point": "(1,2)", "lseg": "[(1,2),(3,4)]",
		"path": "((1,2))", "box": "(3,4),(1,2)", "polygon": "((1,2))", "line": "{1,2,3}", "cidr": "10.0.0.0/8", "float4": "1.5", "float8": "1e+300",
		"circle": "<(1,2),3>", "macaddr8": "08:00:2b:01:02:03:04:05", "money": "$1.00", "macaddr": "08:00:2b:01:02:03", "inet": "::1", "aclitem": "=r/postgres",
		"bpchar": "x", "varchar": "v", "date": "2000-01-01", "time": "00:00:00", "timestamp": "2000-01-01 00:00:00", "timestamptz": "2000-01-01 00:00:00+00",
		"interval": "1 day", "timetz": "00:00:00+00", "bit": "1", "varbit": "101", "numeric": "1.0", "refcursor": "c", "regprocedure": "now()", "regoper": "||/",
		"regoperator": "+(integer,integer)", "regclass": "pg_class", "regtype": "integer", "uuid": "00000000-0000-0000-0000-000000000001",
		"txid_snapshot": "1:1:", "pg_lsn": "0/1", "tsvector": "'a'", "tsquery": "'a'", "gtsvector": "", "regconfig": "english", "regdictionary": "simple", "jsonb": "{}",
		"int4range": "[1,2)", "numrange": "[1,2)", "tsrange": "empty", "tstzrange": "empty", "daterange": "empty", "int8range": "[1,2)", "jsonpath": "$",
		"regnamespace": "pg_catalog", "regrole": "postgres", "regcollation": `"C"`, "int4multirange": "{}", "nummultirange": "{}", "tsmultirange": "{}",
		"tstzmultirange": "{}", "datemultirange": "{}", "int8multirange": "{}", "xid8": "1", "pg_snapshot": "1:1:",
	}
	// No text can be put into these: pseudo-types, and statistics and plans of the server's own.
	without := "pg_node_tree pg_ndistinct pg_dependencies pg_mcv_list pg_brin_bloom_summary pg_brin_minmax_multi_summary gtsvector "
	names, err := side.conn.Exec(context.Background(), `SELECT typname, format_type(oid, NULL)
 FROM pg_type WHERE oid < 10000 AND typtype IN ('b', 'r', 'm') AND (typsubscript::oid = 0 OR typsubscript <> 'array_subscript_handler'::regproc OR typname IN ('int2vector', 'oidvector'))`).ReadAll()
	require.NoError(t, err)
	for _, row := range names[0].Rows {
		name, spelled := string(row[0]), string(row[1])
		if strings.Contains(without, name+" ") {
			continue
		}
		sample, ok := samples[name]
		require.True(t, ok, "a sample for type %s", name)
		rows := db.NewRows(0)
		_, err := db.Read(context.Background(), "", Statement{
			SQL: "SELECT $1::text::" + spelled + " AS v, ARRAY[$1::text::" + spelled + "] AS a, $1::text::" + spelled + "::text AS t", Params: [][]byte{[]byte(sample)},
		}, Limits{}, rows)
		if name == "money" || err != nil && strings.Contains(err.Error(), "42846") { // no cast to text beyond output
			rows = db.NewRows(0)
			_, err = db.Read(context.Background(), "", Statement{SQL: "SELECT $1::text::" + spelled + " AS v", Params: [][]byte{[]byte(sample)}}, Limits{}, rows)
		}
		require.NoError(t, err, name)
		require.True(t, json.Valid(rows.JSON()), "%s: %s", name, rows.JSON())
		require.Contains(t, string(rows.JSON()), strings.Trim(strconv.Quote(sample), `"`), name)
	}
}

func TestDoubledLabelsGetNumbersThatAreFree(t *testing.T) {
	names := func(labels ...string) []string {
		fields := make([]Field, len(labels))
		for i, l := range labels {
			fields[i].Label = l
		}
		return uniqueNames(fields)
	}
	require.Equal(t, []string{"a", "b"}, names("a", "b"))
	require.Equal(t, []string{"a", "a_2", "a_3"}, names("a", "a", "a"))
	require.Equal(t, []string{"a", "a_3", "a_2"}, names("a", "a", "a_2"))
	require.Equal(t, []string{"a_2", "a", "a_3", "a_2_2"}, names("a_2", "a", "a", "a_2"))
	rapid.Check(t, func(t *rapid.T) {
		labels := rapid.SliceOf(rapid.SampledFrom([]string{"a", "a_2", "a_3", "a_2_2", "", "_2"})).Draw(t, "labels")
		seen := map[string]bool{}
		for _, n := range names(labels...) {
			require.False(t, seen[n], "%v: %s twice", labels, n)
			seen[n] = true
		}
	})
}

func TestStringsAreEscapedAsTheStandardLibraryReadsThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		var back string
		require.NoError(t, json.Unmarshal(appendString(nil, s), &back))
		require.Equal(t, s, back)
		require.Equal(t, appendString(nil, s), appendString(nil, []byte(s)))
	})
	require.Equal(t, `"a`+"\uFFFD"+`b`+"\uFFFD"+`"`, string(appendString(nil, "a\xffb\xc3")))
}

func TestArraysComeBackAsTheyWere(t *testing.T) {
	text := builtin()[1009]
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.String(), 1, 5).Draw(t, "elements")
		var quoted []string
		for _, e := range want {
			quoted = append(quoted, `"`+quote.Replace(e)+`"`)
		}
		var got []string
		require.NoError(t, json.Unmarshal(appendArray(nil, text, []byte("{"+strings.Join(quoted, ",")+"}")), &got))
		require.Equal(t, want, got)
	})
}

func TestATextThatIsNoArrayStaysText(t *testing.T) {
	ints := builtin()[1007]
	for _, text := range []string{"", "{", "}", "{1", "{1,", "{1,}", "{,}", "{1}x", `{"1`, `{"1\`, "{{1}", "{{{{{{{1}}}}}}}", "[2:2]={1}", "1,2", `{1"2"}`} {
		require.Equal(t, string(appendString(nil, text)), string(appendArray(nil, ints, []byte(text))), text)
	}
}

func FuzzArrays(f *testing.F) {
	for _, seed := range []string{"{}", "{1,NULL}", `{"a\"b",{c}}`, "[0:1]={1,2}", "{{1,2},{3,4}}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		require.True(t, json.Valid(appendArray(nil, builtin()[1009], text)))
	})
}

func FuzzJSONValues(f *testing.F) {
	f.Add([]byte(`{"a":[1,"]"]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		require.True(t, json.Valid(appendJSON(nil, text)))
	})
}

// A text of control characters is six times as long in JSON. One that is too long so is
// refused before that is made, and one that is not is answered.
func TestATextThatIsTooLongInJSONIsNotMadeFirst(t *testing.T) {
	const limit = 1 << 20
	for _, c := range []struct {
		oid  uint32
		text string
		fits bool
	}{
		{25, strings.Repeat("\x01", limit-100), false},
		{1009, `{"` + strings.Repeat("\x01", limit-100) + `"}`, false}, // text[]
		{25, strings.Repeat("\n", limit/2-100), true},
		{114, "[" + strings.Repeat("\n", limit-100) + "]", true}, // json, which stays as it is
		{25, strings.Repeat("\x01", limit/6-100), true},
	} {
		rows := (&DB{cfg: Config{}.withDefaults()}).NewRows(limit)
		require.NoError(t, rows.Fields([]Field{{Label: "x", TypeOID: c.oid}}))
		err := rows.Row([][]byte{[]byte(c.text)})
		if c.fits {
			require.NoError(t, err, c.oid)
			require.True(t, json.Valid(rows.JSON()))
			continue
		}
		require.ErrorIs(t, err, errOverCap)
		require.Less(t, cap(rows.json), 1<<10)
	}
}

// Whatever a type's name promises, a value stands in an answer as one value.
func TestAValueIsNothingButAValue(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0", "7": "7", "-12": "-12", "1.50": "1.50", "1e+300": "1e+300", "-2.5e-07": "-2.5e-07", "007": `"007"`, "1-2": `"1-2"`, "": `""`, "-": `"-"`, "NaN": `"NaN"`, "-Infinity": `"-Infinity"`,
		"abc": `"abc"`, `1],"decision":"FORGED","y":[2`: `"1],\"decision\":\"FORGED\",\"y\":[2"`, "1 ": `"1 "`, "1,2": `"1,2"`,
	} {
		for _, kind := range []valueKind{asNumber, asFloat} {
			require.Equal(t, want, string(appendValue(nil, &typeInfo{kind: kind}, []byte(text))))
		}
		array := &typeInfo{kind: asArray, elem: &typeInfo{kind: asNumber}, delim: ','}
		require.True(t, json.Valid(appendValue(nil, array, []byte("{"+strconv.Quote(text)+"}"))), text)
	}
}
