package classify

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// watchRounds is how many calls with other arguments each built-in function,
// operator and cast gets: 1, or what `make watch` sets.
const watchRounds = "CLASSIFY_WATCH_ROUNDS"

func rounds(t testing.TB) int {
	value := os.Getenv(watchRounds)
	if value == "" {
		return 1
	}
	n, err := strconv.Atoi(value)
	require.NoError(t, err, watchRounds)
	return n
}

// literals are values of the built-in types, chosen to do harm where a function
// can do any: names of the canary, of other sessions' objects, SQL as text.
var literals = map[string][]string{
	"text": {canaryFile, "watch_seq", "watch", "SELECT nextval('watch_seq')", "watch.x", canaryDir, "watch_t", "work_mem", "1", "UTF8", "english", "$.a", "a", "day", "2024-01-02", "<a>1</a>", "{1,2}", ""},
	"int4": {"1", "0", "-1", "5", "7", "4242", "2"}, "float8": {"1.5", "0", "-2", "NaN", "1e10"}, "bool": {"true", "false"},
	"oid": {"4242", "1259", "1", "2205", "10", "0"}, "regclass": {"watch_seq", "watch_t", "watch_view", "pg_class", "watch_t_pkey"},
	"regproc": {"pg_catalog.lower", "nextval", "pg_read_file"}, "regprocedure": {"nextval(regclass)", "lower(text)"}, "regoper": {"!~", "pg_catalog.||/"},
	"regoperator": {"+(int4,int4)"}, "regtype": {"int4", "watch_mood", "watch_t"}, "regrole": {"postgres", "pg_monitor"}, "regnamespace": {"public", "pg_catalog"},
	"regconfig": {"english", "simple"}, "regdictionary": {"english_stem", "simple"}, "regcollation": {`"C"`, `"default"`},
	"bytea": {`\x01`, `\x7b7d`, ``}, "json": {`{"a":[1,{"b":"x"}]}`, `[1,2]`, `"x"`, `{"f1":1}`}, "jsonpath": {"$.a[*]", "$", "$.** ? (@ > 1)"},
	"xml": {"<a>1</a>", "<a/>"}, "timestamp": {"2024-01-02 03:04:05", "infinity", "1999-12-31"}, "date": {"2024-02-29", "2000-01-01"}, "time": {"04:05:06", "00:00"},
	"timetz": {"04:05:06+02", "00:00+00"}, "interval": {"1 day", "1 mon -3 days", "00:00:01"}, "uuid": {"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "0190163d-8694-739b-aea5-966c26f8ad91"},
	"inet": {"10.1.2.3/24", "::1"}, "cidr": {"10.1.0.0/16", "::/0"}, "macaddr": {"08:00:2b:01:02:03"}, "macaddr8": {"08:00:2b:01:02:03:04:05"}, "money": {"12.34", "-1"},
	"bit": {"1", "0"}, "varbit": {"101", ""}, "point": {"(1,2)", "(0,0)"}, "lseg": {"[(0,0),(1,1)]"}, "line": {"{1,2,3}"}, "box": {"(1,1),(0,0)"}, "path": {"((0,0),(1,1),(2,0))", "[(0,0),(1,1)]"},
	"polygon": {"((0,0),(1,1),(2,0))"}, "circle": {"<(0,0),1>"}, "tsvector": {"fat:1A cat:2", ""}, "tsquery": {"fat & cat", "!rat"}, "pg_lsn": {"0/1", "0/16B3748"},
	"xid": {"3", "700"}, "xid8": {"3", "700"}, "cid": {"1"}, "tid": {"(0,1)"}, "txid_snapshot": {"10:20:10,14"}, "pg_snapshot": {"10:20:10,14"}, "char": {"r", "a"}, "refcursor": {"watch"},
	"aclitem": {"postgres=r/postgres"}, "oidvector": {"1 2"}, "int2vector": {"1 2"}, "int4range": {"[1,5)", "empty"}, "numrange": {"[1.5,2]"}, "tsrange": {"[2024-01-01,2024-01-02)"},
	"tstzrange": {"[2024-01-01,2024-01-02)"}, "daterange": {"[2024-01-01,2024-01-05)"}, "int8range": {"[1,5)"}, "int4multirange": {"{[1,5)}"}, "nummultirange": {"{[1,2]}"},
	"tsmultirange": {"{[2024-01-01,2024-01-02)}"}, "tstzmultirange": {"{}"}, "datemultirange": {"{}"}, "int8multirange": {"{[1,2)}"},
}

// sameLiterals are types whose values are written as those of another, and the
// ones that polymorphic arguments are tried with.
var sameLiterals = map[string]string{
	"varchar": "text", "bpchar": "text", "name": "text", "cstring": "text", "unknown": "text", "int2": "int4", "int8": "int4", "numeric": "int4", "float4": "float8",
	"jsonb": "json", "timestamptz": "timestamp",
}

var polymorphic = map[string]string{
	"anyelement": "int4", "anycompatible": "int4", "anynonarray": "int4", "anycompatiblenonarray": "int4", "any": "text", "anyarray": "_int4", "anycompatiblearray": "_int4",
	"anyrange": "int4range", "anycompatiblerange": "int4range", "anymultirange": "int4multirange", "anycompatiblemultirange": "int4multirange",
}

// value writes a value of a type, by its name in pg_type; "" for a type of
// which nobody can write one.
func value(r *rand.Rand, typ string) string {
	if as := polymorphic[typ]; as != "" {
		typ = as
	}
	switch typ {
	case "record":
		return "ROW(1, 'a')"
	case "anyenum":
		return "" // only user types are
	}
	if element, ok := strings.CutPrefix(typ, "_"); ok {
		a, b := value(r, element), value(r, element)
		if a == "" {
			return ""
		}
		return "ARRAY[" + a + ", " + b + "]"
	}
	pool := literals[typ]
	if as := sameLiterals[typ]; as != "" {
		pool = literals[as]
	}
	if len(pool) == 0 {
		return ""
	}
	text := strings.ReplaceAll(pool[r.IntN(len(pool))], "'", "''")
	return "'" + text + `'::pg_catalog."` + typ + `"`
}

// values writes one of each type, or nothing.
func values(r *rand.Rand, types []string) ([]string, bool) {
	list := make([]string, 0, len(types))
	for _, typ := range types {
		v := value(r, typ)
		if v == "" {
			return nil, false
		}
		list = append(list, v)
	}
	return list, true
}

// watching counts what became of statements.
type watching struct {
	safe, ran, refused int
	waiting            []string
}

// watchGroup statements share a transaction: taking the state costs more than
// running them.
const watchGroup = 25

// watch runs a statement, soon, if it is judged a safe read.
func (w *watcher) watch(tb *tables, sql string, count *watching) {
	c, f := classifyText(tb, sql)
	if f != nil || !c.SafeRead {
		count.refused++
		return
	}
	count.safe++
	if excuse := excused[sql]; excuse != nil {
		effects, ran := w.runAgain(sql)
		require.Equal(w.t, excuse, effects, sql)
		count.ran += ran
		return
	}
	if count.waiting = append(count.waiting, sql); len(count.waiting) == watchGroup {
		w.flush(count)
	}
}

// excused lists the safe reads that are seen to do something, and what.
var excused = map[string][]string{
	// pg_sequence_last_value opens its sequence as a writer does and changes
	// nothing; the lock ends with the transaction.
	`SELECT * FROM "pg_catalog"."pg_sequences"`: {"inside locks"},
}

// flush runs what waits, and fails the test if it did anything but answer.
func (w *watcher) flush(count *watching) {
	w.t.Helper()
	group := count.waiting
	count.waiting = nil
	effects, ran := w.runAgain(group...)
	count.ran += ran
	if len(effects) == 0 {
		return
	}
	for _, sql := range group {
		if again, _ := w.run(sql); len(again) > 0 {
			w.t.Errorf("%s: %v", sql, again)
		}
	}
	w.t.Fatalf("one of these did more than answer: %v\n%s", effects, strings.Join(group, "\n"))
}

// rows reads rows of texts.
func (w *watcher) rows(sql string) [][]string {
	results, err := w.conn.Exec(context.Background(), sql).ReadAll()
	require.NoError(w.t, err, sql)
	all := make([][]string, 0, len(results[0].Rows))
	for _, row := range results[0].Rows {
		texts := make([]string, len(row))
		for i := range row {
			texts[i] = string(row[i])
		}
		all = append(all, texts)
	}
	return all
}

const typeNames = `coalesce((SELECT string_agg(t.typname, ' ' ORDER BY n) FROM unnest(%s) WITH ORDINALITY a(o, n) JOIN pg_type t ON t.oid = a.o), '')`

// builtinCalls lists what every name of the table is called with: kind (as in
// pg_proc; o and h for ordered-set aggregates), name, types of the arguments.
func (w *watcher) builtinCalls() [][]string {
	return w.rows(`SELECT CASE WHEN p.prokind = 'a' AND a.aggkind <> 'n' THEN a.aggkind ELSE p.prokind END, p.proname, ` +
		fmt.Sprintf(typeNames, "p.proargtypes::oid[]") + `, coalesce(a.aggnumdirectargs, 0)
	  FROM pg_proc p LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid
	 WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind <> 'p' ORDER BY p.oid`)
}

// call writes a call of a built-in; "" where an argument cannot be written.
func call(r *rand.Rand, row []string) string {
	arguments, ok := values(r, strings.Fields(row[2]))
	if !ok {
		return ""
	}
	f := `pg_catalog."` + row[1] + `"(`
	switch row[0] {
	case "w":
		return "SELECT " + f + strings.Join(arguments, ", ") + ") OVER (ORDER BY id) FROM watch_t"
	case "a":
		return "SELECT " + f + strings.Join(arguments, ", ") + ") FROM watch_t"
	case "o", "h":
		direct, _ := strconv.Atoi(row[3])
		direct = min(direct, len(arguments))
		return "SELECT " + f + strings.Join(arguments[:direct], ", ") + ") WITHIN GROUP (ORDER BY " + strings.Join(append(arguments[direct:], "id"), ", ") + ") FROM watch_t"
	}
	return "SELECT " + f + strings.Join(arguments, ", ") + ")"
}

func TestSafeBuiltInsOnlyAnswer(t *testing.T) {
	w := newWatcher(t)
	tb := newTestTables(t, Config{ServerMajor: w.major})
	calls := w.builtinCalls()
	operators := w.rows(`SELECT o.oprname, ` + fmt.Sprintf(typeNames, "ARRAY[o.oprleft, o.oprright]") + ` FROM pg_operator o WHERE o.oprnamespace = 'pg_catalog'::regnamespace ORDER BY o.oid`)
	casts := w.rows(`SELECT s.typname, d.typname FROM pg_cast c JOIN pg_type s ON s.oid = c.castsource JOIN pg_type d ON d.oid = c.casttarget ORDER BY c.oid`)
	var functions, others watching
	for round := range rounds(t) {
		r := rand.New(rand.NewPCG(7, uint64(round)))
		for _, row := range calls {
			if sql := call(r, row); sql != "" {
				w.watch(tb, sql, &functions)
			}
		}
		for _, row := range operators {
			if sql := operation(r, row); sql != "" {
				w.watch(tb, sql, &others)
			}
		}
		for _, row := range casts {
			if v := value(r, row[0]); v != "" {
				w.watch(tb, `SELECT `+v+`::pg_catalog."`+row[1]+`"`, &others)
			}
		}
	}
	w.flush(&functions)
	w.flush(&others)
	t.Logf("PostgreSQL %d: calls %+v, operators and casts %+v", w.major, functions, others)
	require.Greater(t, functions.ran, 1500)
	require.Greater(t, others.ran, 700)
}

func operation(r *rand.Rand, row []string) string {
	operands, ok := values(r, strings.Fields(row[1]))
	if !ok {
		return ""
	}
	if len(operands) == 1 {
		return "SELECT " + row[0] + " " + operands[0]
	}
	return "SELECT " + operands[0] + " " + row[0] + " " + operands[1]
}

// Every relation of the server's own that is not secret, every type read from
// every text, every setting that may be shown.
func TestSafeCatalogReadsOnlyAnswer(t *testing.T) {
	w := newWatcher(t)
	tb := newTestTables(t, Config{ServerMajor: w.major})
	var relations, types, shows watching
	for _, row := range w.rows(`SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	  WHERE c.relkind IN ('r', 'v') AND n.nspname IN ('pg_catalog', 'information_schema') ORDER BY 1, 2`) {
		w.watch(tb, `SELECT * FROM "`+row[0]+`"."`+row[1]+`"`, &relations)
	}
	texts := slices.Sorted(maps.Keys(literals))
	for _, row := range w.rows(`SELECT typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype NOT IN ('c', 'p') AND typelem = 0 ORDER BY oid`) {
		for _, of := range slices.Compact(append([]string{"text", row[0]}, texts[:min(rounds(t), len(texts))]...)) {
			for _, text := range literals[of] {
				w.watch(tb, `SELECT '`+strings.ReplaceAll(text, "'", "''")+`'::pg_catalog."`+row[0]+`"`, &types)
			}
		}
	}
	for _, row := range w.rows(`SELECT name FROM pg_settings ORDER BY name`) {
		w.watch(tb, "SHOW "+row[0], &shows)
	}
	w.flush(&relations)
	w.flush(&types)
	w.flush(&shows)
	t.Logf("PostgreSQL %d: relations %+v, types %+v, settings %+v", w.major, relations, types, shows)
	require.Greater(t, relations.ran, 120)
	require.Greater(t, types.ran, 150)
	require.Greater(t, shows.ran, 200)
}

// The statements of the tests and of the corpus, as far as they are judged
// safe. Those of the traffic find all that they name and must run.
func TestSafeStatementsOnlyAnswer(t *testing.T) {
	w := newWatcher(t)
	tb := newTestTables(t, Config{ServerMajor: w.major})
	schema, err := os.ReadFile("testdata/traffic_schema.sql")
	require.NoError(t, err)
	w.exec(w.conn, string(schema))
	w.settle()
	var sent, samples watching
	for _, line := range traffic(t) {
		if line.verdict == "safe" {
			require.NoError(t, w.statement(line.sql), line.sql)
			w.watch(tb, line.sql, &sent)
		}
	}
	for _, sql := range sampleTexts(t) {
		w.watch(tb, sql, &samples)
	}
	w.flush(&sent)
	w.flush(&samples)
	t.Logf("PostgreSQL %d: traffic %+v, samples %+v", w.major, sent, samples)
	require.Equal(t, sent.safe, sent.ran)
	require.Greater(t, samples.ran, 40)
}
