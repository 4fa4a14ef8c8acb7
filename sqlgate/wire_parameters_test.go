package sqlgate

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
	"writegate/sqlgate/pgexec"
)

func TestAnApprovalShowsItsParameters(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	require.NoError(t, c.Parse(t.Context(), "", "DELETE FROM t WHERE id = $1 OR v = $2 OR v = $3 OR id = $4", []uint32{23, 25}))
	long := strings.Repeat("é", 600)
	require.NoError(t, c.Bind("", "", []int16{1, 0, 0, 0}, [][]byte{{0, 0, 0, 7}, []byte("O'Hara"), []byte(long), nil}, nil))
	_, err := c.Execute(t.Context(), "", 0, true, &rowsSink{})
	var refusal *WireRefusal
	require.True(t, errors.As(err, &refusal))
	view := w.store.View()
	defer view.Close()
	a, found, err := view.Approval(refusal.Answer.ApprovalID)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, []string{"7::int4", "'O''Hara'::text", "'" + strings.Repeat("é", 512) + "'… (1200 bytes)", "NULL"}, a.Parameters)
	require.Equal(t, "DELETE FROM t WHERE id = $1 OR v = $2 OR v = $3 OR id = $4", a.SQL)
}

// What a value is was told when the statement was described: that is what a person
// approves, and what the server is given, though the column has another type by then.
func TestWhatIsApprovedIsWhatRunsThoughAColumnHasAnotherType(t *testing.T) {
	w := newWireWorld(t, nil)
	postgresExecute(w, "CREATE TABLE amounts (id int PRIMARY KEY, n int4); INSERT INTO amounts VALUES (1, 0)")
	const sql = "DELETE FROM amounts WHERE id = 1 AND n < $1"
	c := w.wire()
	require.NoError(t, c.Parse(t.Context(), "s", sql, nil))
	_, _, err := c.DescribeStatement(t.Context(), "s")
	require.NoError(t, err)
	c.sync()
	postgresExecute(w, "ALTER TABLE amounts ALTER n TYPE float4")
	run := func() error {
		require.NoError(t, c.Bind("", "s", []int16{1}, [][]byte{{0x3f, 0x80, 0, 0}}, nil)) // as a float4 it is 1
		_, err := c.Execute(t.Context(), "", 0, true, &rowsSink{})
		return err
	}
	var refusal *WireRefusal
	require.True(t, errors.As(run(), &refusal))
	c.sync()
	view := w.store.View()
	a, _, err := view.Approval(refusal.Answer.ApprovalID)
	view.Close()
	require.NoError(t, err)
	require.Equal(t, []string{"1065353216::int4"}, a.Parameters)
	postgresExecute(w, "UPDATE amounts SET n = 1000")
	w.approve(refusal.Answer.ApprovalID)
	c.query("SET gate.approval_id = '" + refusal.Answer.ApprovalID + "'")
	require.NoError(t, run())
	require.Equal(t, "0", w.value("SELECT count(*) FROM amounts"), "1000 is less than what was approved, and not than 1")
}

// A value in text form is the server's to read: the type that a Describe once found is
// not said of it, for the column may have another one by then.
func TestATextIsShownWithoutATypeThatItIsNotSentWith(t *testing.T) {
	w := newWireWorld(t, nil)
	c := w.wire()
	require.NoError(t, c.Parse(t.Context(), "s", "DELETE FROM t WHERE id < $1", nil))
	_, _, err := c.DescribeStatement(t.Context(), "s")
	require.NoError(t, err)
	for format, shown := range map[int16]string{0: "'10'", 1: "10::int4"} {
		require.NoError(t, c.Bind("", "s", []int16{format}, [][]byte{map[int16][]byte{0: []byte("10"), 1: {0, 0, 0, 10}}[format]}, nil))
		_, err = c.Execute(t.Context(), "", 0, true, &rowsSink{})
		require.Equal(t, []string{shown}, w.asked(err))
		c.sync()
	}
}

func TestParametersAreShownAsConstants(t *testing.T) {
	for want, row := range map[string]struct {
		oid    uint32
		format int16
		value  string
	}{
		"true::bool": {16, 1, "\x01"}, "'-2'::int2": {21, 1, "\xff\xfe"}, "9::int8": {20, 1, "\x00\x00\x00\x00\x00\x00\x00\x09"},
		"1.5::float8": {701, 1, "\x3f\xf8\x00\x00\x00\x00\x00\x00"},
		"'00010203-0405-0607-0809-0a0b0c0d0e0f'::uuid": {2950, 1, "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"},
		"'x'::text": {25, 1, "x"}, "'5'": {0, 0, "5"}, "''::text": {25, 1, ""},
		"'-2147483648'::int4": {23, 1, "\x80\x00\x00\x00"}, "'NaN'::float8": {701, 1, "\x7f\xf8\x00\x00\x00\x00\x00\x00"},
		`'\200'::"char"`: {18, 0, `\200`}, `'{1}'::"bit"[]`: {1561, 0, "{1}"}, "NULL::bpchar": {1042, 1, "\x00"},
		"no constant: the binary form of a type that the server infers, bytes ff00":        {0, 1, "\xff\x00"},
		"no constant: the text form of a type that the server infers, bytes ff":            {0, 0, "\xff"},
		"no constant: the binary form of int4, bytes 01":                                   {23, 1, "\x01"},
		"no constant: the text form of text, bytes ff":                                     {25, 0, "\xff"},
		"no constant: the binary form of text, bytes 6100":                                 {25, 1, "a\x00"},
		"no constant: the binary form of money, bytes 0000000000000001":                    {790, 1, "\x00\x00\x00\x00\x00\x00\x00\x01"},
		"no constant: the binary form of float8, bytes 7ff8000000000001":                   {701, 1, "\x7f\xf8\x00\x00\x00\x00\x00\x01"},
		"no constant: the binary form of float4, bytes ffc00000":                           {700, 1, "\xff\xc0\x00\x00"},
		`no constant: the binary form of "char", bytes 80`:                                 {18, 1, "\x80"},
		"no constant: the binary form of interval, bytes 7fffffffffffffff7fffffff7fffffff": {1186, 1, "\x7f\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\x7f\xff\xff\xff"},
	} {
		value := []byte(row.value)
		if strings.HasPrefix(want, "NULL") {
			value = nil
		}
		require.Equal(t, want, (&wireStatement{types: []uint32{row.oid}}).showParameter(0, row.format, value, shownParameter))
	}
	s := &submission{wire: &wireCall{wire: &Wire{}, portal: &wirePortal{statement: &wireStatement{}}}}
	for range 100 {
		s.wire.portal.params = append(s.wire.portal.params, []byte(strings.Repeat("a", 1000)))
	}
	shown := s.shownParams()
	require.Len(t, shown, 66)
	require.Equal(t, "35 more", shown[65])
	s.wire.portal.params = slices.Repeat([][]byte{{}}, 40_000)
	one := strings.Join(s.wire.params(shownOfSetter, leastOfValue), ", ")
	require.Regexp(t, "^('', )+31808 more$", one)
	require.Less(t, len(one), shownOfSetter+20, "or the setter that it is of would have no room, and not be shown")
}

// shownValues are texts of values of built-in types, as the server reads them.
var shownValues = map[string][]string{
	"bool": {"t", "f"}, "int2": {"0", "-1", "-32768", "32767"}, "int4": {"7", "-2147483648", "2147483647"},
	"int8": {"9", "-9223372036854775808", "9223372036854775807"}, "oid": {"0", "4294967295"}, "xid": {"5"}, "cid": {"5"},
	"xid8": {"18446744073709551615"}, "pg_lsn": {"16/B374D848"}, "tid": {"(4294967295,65535)"},
	"float4": {"0", "-0", "1.5", "1e-45", "3.4028235e38", "-2.5", "NaN", "Infinity", "-Infinity"},
	"float8": {"0", "-0", "0.1", "1e300", "5e-324", "-1e-7", "NaN", "Infinity", "-Infinity"},
	"numeric": {"0", "0.00", "1", "-1.50", "10000", "100000000", "0.0001", "0.00001", "-0.000000012300", "12345678901234567890.123456789", "1e500", "1e-500",
		"9999.9999", "NaN", "Infinity", "-Infinity"},
	"date":        {"2026-02-28", "1999-12-31", "0001-01-01", "0001-12-31 BC", "4713-01-01 BC", "5874897-12-31", "infinity", "-infinity"},
	"time":        {"00:00", "24:00", "23:59:59.999999", "12:00:00.000001"},
	"timetz":      {"12:00+00", "12:00:00.5+05:30", "24:00-15:59:59", "01:02:03+15:59:59"},
	"timestamp":   {"2026-11-22 10:11:12.345678", "1999-12-31 23:59:59.999999", "0044-03-15 01:02:03 BC", "294276-12-31 23:59:59.999999", "4713-01-01 00:00 BC", "infinity", "-infinity"},
	"timestamptz": {"2026-11-22 10:11:12.345678+02", "1969-01-01 00:00+00", "0044-03-15 01:02:03+00 BC", "294276-12-31 23:59:59+00", "infinity", "-infinity"},
	"interval":    {"0", "1 year -2 mons 3 days", "-1 mon +5 days -04:05:06.000007", "2562047788:00:54.775807", "-178000000 years", "-00:00:00.5"},
	"uuid":        {"01890a5d-ac96-774b-bcce-b302099a8057"}, "inet": {"10.0.0.1", "10.0.0.1/8", "::1", "2001:db8::/32", "::ffff:1.2.3.4"},
	"cidr": {"10.0.0.0/8", "0.0.0.0/0", "2001:db8::/32"}, "macaddr": {"08:00:2b:01:02:03"}, "macaddr8": {"08:00:2b:01:02:03:04:05"},
	"bit": {"1"}, "varbit": {"", "10110111011"}, "bytea": {"", `\x00ff27`}, "char": {"", "a", "'", `\`},
	"text": {"", "O'Hara", `back\slash`, "naïve 日本", "1;2\n--"}, "varchar": {"x"}, "bpchar": {"x  ", "long and kept"}, "name": {"n"}, "json": {`{"a": "it''s"}`},
	"jsonb": {`{"a": [1, 1e400, "\\", null], "b": 12345678901234567890.10}`}, "jsonpath": {`$."a"[*] ? (@ > 1)`}, "xml": {"<a>b</a>"}, "refcursor": {"c"},
	"point": {"(1,2)", "(-0,1e-300)", "(NaN,Infinity)"}, "lseg": {"[(1,2),(3,4)]"}, "box": {"(3,4),(1,2)"}, "line": {"{1,2,3}"}, "circle": {"<(1,2),3.5>"},
	"path": {"[(1,2),(3,4)]", "((1,2),(3,4),(5,6))"}, "polygon": {"((1,2),(3,4),(5,6))"},
	"int4range": {"empty", "[1,5)", "(,5)", "[1,)", "(,)"}, "int8range": {"[-9223372036854775808,5)"}, "numrange": {"(-1.50,2.0]", "[NaN,NaN]"},
	"tsrange": {"[2026-01-02 BC,2026-01-01)", "[2026-01-01,infinity]"}, "tstzrange": {"[2026-01-01 00:00+00,2026-01-02 00:00+00)"}, "daterange": {"[2026-01-01,infinity)"},
	"int4multirange": {"{}", "{[1,3),[5,9)}"}, "tstzmultirange": {"{(,2026-01-01 00:00+00),[2026-02-01 00:00+00,)}"}, "nummultirange": {"{(1.0,2.00]}"},
	"int4[]": {"{}", "{1,-2,NULL}", "{{1,2,3},{4,5,6}}", "[0:1][-2:-1]={{1,2},{3,4}}", "{{{1},{2}},{{3},{4}}}"},
	"text[]": {`{"a b","",NULL,"NULL","q\"\\ ''",",{}"}`}, "box[]": {"{(3,4),(1,2);(7,8),(5,6)}"}, "numeric[]": {"{1.50,NaN}"}, "float8[]": {"{-0,Infinity}"},
	"timestamptz[]": {"{2026-01-01 00:00+00,infinity}"}, "uuid[]": {"{01890a5d-ac96-774b-bcce-b302099a8057}"}, "jsonb[]": {`{"{\"a\": \"b\"}"}`}, "bytea[]": {`{"\\x00ff"}`},
	"bool[]": {"{t,f}"}, "char[]": {`{a,"\""}`}, "bit[]": {"{1,0}"}, "varbit[]": {"{101,1}"}, "int4range[]": {`{"[1,5)",empty}`}, "int4multirange[]": {`{"{[1,3)}"}`}, "inet[]": {"{10.0.0.1/8}"},
	"interval[]": {"{-1 mon}"}, "date[]": {"{infinity,0001-01-01 BC}"}, "regclass": {"pg_class", "0"}, "regtype": {"int4"},
}

// What an approver is shown means the value that was bound, whatever the settings
// say of how values are written.
func TestShownConstantsMeanTheBoundValues(t *testing.T) {
	db, err := pgx.Connect(t.Context(), postgres.ForTest(t))
	require.NoError(t, err)
	defer db.Close(t.Context())
	binary := func(sql string) []byte {
		r, err := db.Query(t.Context(), sql, pgx.QueryResultFormats{1})
		require.NoError(t, err, sql)
		defer r.Close()
		require.True(t, r.Next(), "%s: %v", sql, r.Err())
		return append([]byte{}, r.RawValues()[0]...)
	}
	for _, setting := range []string{"IntervalStyle = postgres", "IntervalStyle = sql_standard", "DateStyle = 'SQL, DMY'", "DateStyle = 'Postgres, MDY'", "TimeZone = 'Asia/Tokyo'"} {
		_, err := db.Exec(t.Context(), "SET IntervalStyle = postgres; SET DateStyle = ISO")
		require.NoError(t, err)
		for kind, texts := range shownValues {
			elem, array := strings.CutSuffix(kind, "[]")
			oid, ok := pgexec.BuiltinType(elem, array)
			require.True(t, ok, kind)
			cast := strings.Replace(`"`+kind+`"`, `[]"`, `"[]`, 1)
			for _, text := range texts {
				_, err := db.Exec(t.Context(), "SET IntervalStyle = postgres; SET DateStyle = ISO")
				require.NoError(t, err)
				want := binary("SELECT '" + strings.ReplaceAll(text, "'", "''") + "'::pg_catalog." + cast)
				_, err = db.Exec(t.Context(), "SET "+setting)
				require.NoError(t, err)
				shown := (&wireStatement{types: []uint32{oid}}).showParameter(0, 1, want, shownParameter)
				require.NotContains(t, shown, "no constant", "%s %s", kind, text)
				require.Equal(t, want, binary("SELECT "+shown), "%s %s is shown as %s", kind, text, shown)
			}
		}
	}
}

// Whatever bytes a driver sends: where the server takes them, what an approver is shown means
// the same bytes, or says that it is no constant.
func TestAShownConstantMeansWhateverBytesWereBound(t *testing.T) {
	conn, err := pgconn.Connect(t.Context(), postgres.ForTest(t))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	read := func(sql string, formats []int16, oids []uint32, params ...[]byte) ([]byte, error) {
		r := conn.ExecParams(t.Context(), sql, params, oids, formats, []int16{1}).Read()
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Rows[0][0], nil
	}
	random := rand.New(rand.NewPCG(20261201, 1))
	taken, constants := 0, 0
	for _, kind := range slices.Sorted(maps.Keys(shownValues)) {
		elem, array := strings.CutSuffix(kind, "[]")
		oid, _ := pgexec.BuiltinType(elem, array)
		cast := strings.Replace(`"`+kind+`"`, `[]"`, `"[]`, 1)
		for _, text := range shownValues[kind] {
			whole, err := read("SELECT $1::pg_catalog."+cast, []int16{0}, []uint32{oid}, []byte(text))
			require.NoError(t, err, "%s %s", kind, text)
			for range 12 {
				value := slices.Clone(whole)
				for range 1 + random.IntN(3) {
					if len(value) > 0 {
						value[random.IntN(len(value))] = []byte{0, 1, 0x7f, 0x80, 0xff, byte(random.IntN(256))}[random.IntN(6)]
					}
				}
				bound, err := read("SELECT $1", []int16{1}, []uint32{oid}, value)
				if err != nil {
					continue
				}
				taken++
				shown := (&wireStatement{types: []uint32{oid}}).showParameter(0, 1, value, shownParameter)
				if strings.Contains(shown, "no constant") || strings.Contains(shown, "… (") { // or cut, and says so
					continue
				}
				constants++
				meant, err := read("SELECT "+shown, nil, nil)
				require.NoError(t, err, "%s, bytes %x are shown as %s", kind, value, shown)
				require.Equal(t, bound, meant, "%s, bytes %x are shown as %s", kind, value, shown)
			}
		}
	}
	t.Logf("of %d values that the server took %d are shown as constants", taken, constants)
	require.Greater(t, constants, 1000)
}

// A value that is no value of its type, or a huge one, does no harm.
func FuzzShownValues(f *testing.F) {
	numeric := "\x00\x01\x7f\xff\x00\x00\x3f\xff\x00\x01"
	for oid, seeds := range map[uint32][]string{
		1700: {"", "\x00", numeric, "\xff\xff\x7f\xff\x00\x00\xff\xff"}, 1231: {"\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06\xa4\x7f\xff\xff\xff\x00\x00\x00\x01\x00\x00\x00\x0a" + numeric},
		1007: {"\x7f\xff\xff\xff", "\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00\x17" + strings.Repeat("\x7f\xff\xff\xff\x7f\xff\xff\xff", 6),
			"\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x17\x00\x00\x00\x00\x00\x00\x00\x01\x7f\xff\xff\xff\x00\x00\x00\x01"},
		3904: {"\x02\x7f\xff\xff\xff", "\xff"}, 4451: {"\x7f\xff\xff\xff\x00\x00\x00\x01\x01"}, 1562: {"\x7f\xff\xff\xff\xff"}, 602: {"\x01\x7f\xff\xff\xff"},
		604: {"\x80\x00\x00\x00"}, 869: {"\x02\xff\x00\x04\x01\x02\x03\x04", "\x03\x00\x00\xff"}, 3802: {"", "\x01", "\x02{}"}, 18: {""}, 25: {strings.Repeat("é", 4000)},
		1114: {"\x80\x00\x00\x00\x00\x00\x00\x01"}, 1082: {"\x80\x00\x00\x01"}, 1186: {"\x80\x00\x00\x00\x00\x00\x00\x01\x80\x00\x00\x01\x80\x00\x00\x00"},
		1266: {"\x00\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00"}, 0: {"x"}, 999999: {"x"},
	} {
		for _, s := range seeds {
			f.Add(oid, int16(1), []byte(s))
			f.Add(oid, int16(0), []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, oid uint32, format int16, value []byte) {
		shown := (&wireStatement{types: []uint32{oid}}).showParameter(0, format, value, shownParameter)
		require.True(t, utf8.ValidString(shown))
		require.NotContains(t, shown, "\x00")
		require.LessOrEqual(t, len(shown), 3*shownParameter)
	})
}
