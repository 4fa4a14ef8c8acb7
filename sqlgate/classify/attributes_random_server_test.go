package classify

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// A fromWriter writes random queries in which values of the text and of users'
// relations go through items of FROM under the same few names.
type fromWriter struct {
	*rand.Rand
	depth  int
	writes bool
}

func (r *fromWriter) pick(list ...string) string { return list[r.IntN(len(list))] }

func (r *fromWriter) name() string { return r.pick("a", "b", "k", "q", "p") }

// value is an expression of the text, which tells so, or a column.
func (r *fromWriter) value() string {
	switch n := r.IntN(12); {
	case n < 4:
		return "'own'::text"
	case n < 6:
		return r.name()
	case n == 6:
		return r.name() + "." + r.name()
	case n == 7:
		return "ROW('own'::text, " + r.name() + ")"
	case n == 8:
		return "(" + r.name() + ")." + r.pick("a", "b", "k", "f1", "q")
	case n == 9:
		return "ARRAY['own'::text]"
	case n == 10 && r.depth < 3:
		return "(" + r.query(1) + " LIMIT 1)"
	}
	return "(" + r.name() + "." + r.name() + ")." + r.pick("a", "b", "f1", "f2", "q")
}

func (r *fromWriter) targets(n int) string {
	var all []string
	for range n {
		switch r.IntN(5) {
		case 0:
			all = append(all, "*")
		case 1:
			all = append(all, r.name()+".*")
		default:
			all = append(all, r.value()+" AS "+r.name())
		}
	}
	return strings.Join(all, ", ")
}

func (r *fromWriter) alias() string {
	alias := " " + r.name()
	switch r.IntN(4) {
	case 0:
		alias += "(" + r.pick("a", "b", "k") + ")"
	case 1:
		alias += "(" + r.pick("a", "b") + ", " + r.pick("k", "q") + ")"
	}
	return alias
}

func (r *fromWriter) item() string {
	r.depth++
	defer func() { r.depth-- }()
	switch n := r.IntN(11); {
	case n < 3 || r.depth > 3:
		return r.pick("t", "u") + r.alias()
	case n < 6:
		return "(" + r.query(0) + ")" + r.alias()
	case n < 8:
		return "LATERAL (" + r.query(0) + ")" + r.alias()
	case n == 8:
		return "(VALUES (" + r.value() + "))" + r.alias()
	case n == 9:
		return r.pick("unnest(ARRAY['own'::text])", "jsonb_each_text('{\"own\": \"own\"}')", "concat('own')", "concat('own') WITH ORDINALITY", "unnest(ARRAY['own'], ARRAY['own'])", "ROWS FROM (concat('own'), unnest(ARRAY['own']))") + r.alias()
	}
	join := r.item() + " " + r.pick("CROSS JOIN "+r.item(), "JOIN "+r.item()+" ON true", "JOIN "+r.item()+" USING ("+r.pick("a", "b")+")", "NATURAL JOIN "+r.item())
	if r.IntN(2) == 0 {
		return "(" + join + ")" + r.alias()
	}
	return join
}

func (r *fromWriter) query(columns int) string {
	r.depth++
	defer func() { r.depth-- }()
	if columns == 0 {
		columns = 1 + r.IntN(2)
	}
	sql := "SELECT " + r.targets(columns)
	if r.IntN(5) > 0 {
		sql += " FROM " + r.item()
		if r.IntN(3) == 0 {
			sql += ", " + r.item()
		}
	}
	if r.IntN(8) == 0 && r.depth < 3 {
		sql = sql + r.pick(" UNION ALL ", " UNION ") + "SELECT " + r.targets(columns)
	}
	if r.IntN(8) == 0 && r.depth < 3 {
		sql = "WITH " + r.name() + r.pick("", "(a)", "(k, b)") + " AS (" + r.query(0) + ") " + sql
	}
	return sql
}

// call is fire of what stands in front of a dot.
func (r *fromWriter) call() string {
	k := r.name()
	of := r.pick("("+k+")", "("+k+")", "("+k+")", "("+k+"."+r.name()+")", "("+k+").a", "("+k+").q.b", "("+k+".a[1:1])", "(("+k+").f1)", "("+k+".*).b")
	if !r.writes && r.IntN(6) == 0 { // in a write as well a column of the users' by its form
		of = r.pick("("+k+".*)", k)
	}
	if r.IntN(6) == 0 {
		return "(SELECT " + of + ".fire FROM " + r.item() + " LIMIT 1)"
	}
	return of + ".fire"
}

// caller is an item of FROM in which fire is called.
func (r *fromWriter) caller() string {
	call := r.call()
	return r.pick(
		"LATERAL (SELECT "+call+") zz", "LATERAL (SELECT "+call+") zz", "LATERAL (SELECT "+call+" FROM "+r.item()+") zz", "LATERAL (VALUES ("+call+")) zz", "LATERAL (SELECT "+call+" UNION ALL SELECT "+r.call()+") zz",
		"LATERAL (WITH "+r.name()+" AS ("+r.query(0)+") SELECT "+call+") zz", "LATERAL (WITH yy AS (SELECT "+call+") SELECT * FROM yy) zz", "LATERAL (SELECT * FROM "+r.item()+", LATERAL (SELECT "+call+") yy) zz",
		"LATERAL (SELECT * FROM (SELECT "+call+") yy) zz", "LATERAL (SELECT FROM "+r.item()+", concat("+call+") yy) zz", "(SELECT "+call+") zz", "(SELECT "+call+" FROM "+r.item()+") zz",
		"concat("+call+") zz", "concat((SELECT "+call+")) WITH ORDINALITY zz", "unnest(ARRAY["+call+"::text], ARRAY['']) zz", "ROWS FROM (concat(''), concat("+call+")) zz",
		"XMLTABLE('/a' PASSING ('<a/>'::xml) COLUMNS zz text PATH 'b' DEFAULT ("+call+")::text) zz", "XMLTABLE('/a' PASSING xmlelement(NAME a, "+call+") COLUMNS zz text PATH '.') zz", "w TABLESAMPLE system(("+call+")::int)",
		r.item()+" JOIN "+r.item()+" ON ("+call+")::text <> ''",
	)
}

// from is a FROM with a caller somewhere in it.
func (r *fromWriter) from() string {
	r.depth = 2
	from := r.caller()
	for n := range 1 + r.IntN(3) {
		switch r.IntN(8) {
		case 0:
			from += ", " + r.item()
		case 1:
			from = "(" + r.item() + r.pick(" JOIN ", " LEFT JOIN ") + from + " ON true)" + r.pick("", fmt.Sprint(" j", n))
		case 2:
			from = "(" + from + " CROSS JOIN " + r.item() + ")" + r.pick("", fmt.Sprint(" j", n))
		case 3:
			from = r.item() + " CROSS JOIN " + from
		default:
			from = r.item() + ", " + from
		}
	}
	return from
}

// Each statement calls fire somewhere.
func (r *fromWriter) statement() string {
	r.depth, r.writes = 0, r.IntN(8) == 0
	with := ""
	if r.IntN(4) == 0 {
		with = "WITH " + r.name() + r.pick("", "(a)", "(k, b)") + " AS (" + r.query(0) + ") "
	}
	if r.IntN(3) > 0 {
		switch from := r.from(); {
		case r.writes:
			return with + r.pick("UPDATE w SET x = 'a' FROM "+from, "DELETE FROM w USING "+from, "MERGE INTO w USING ("+r.item()+" CROSS JOIN "+r.caller()+") ON true WHEN MATCHED THEN DO NOTHING")
		case r.IntN(6) == 0:
			return with + "SELECT (SELECT count(*) FROM " + from + ") FROM " + r.item()
		default:
			return with + "SELECT 1 FROM " + from
		}
	}
	call := "SELECT " + r.call()
	from := r.item()
	if r.IntN(2) == 0 {
		from += ", " + r.item()
	}
	if r.writes {
		return with + "UPDATE w " + r.name() + " SET x = (" + call + " FROM " + from + " LIMIT 1)::text"
	}
	return with + call + " FROM " + from
}

// What the text alone gives to a function of the users' is told; what a column of
// theirs gives it may not be.
func TestAServerGivesNoValueOfTheTextToAFunctionThatIsNotTold(t *testing.T) {
	cfg, err := pgconn.ParseConfig(postgres.ForTest(t))
	require.NoError(t, err)
	cfg.RuntimeParams["search_path"] = "public"
	got := ""
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if arg, ok := strings.CutPrefix(n.Message, "fired "); ok {
			got += arg + "\n"
		}
	}
	conn := connect(t, cfg)
	answer, err := conn.Exec(t.Context(), `CREATE TYPE pair AS (a text, b text); CREATE TABLE t (a text, b text, q pair); INSERT INTO t VALUES ('users', 'users', ('users', 'users')); CREATE TABLE u (k text[], b text); INSERT INTO u VALUES ('{users}', 'users');
		CREATE TABLE w (x text, q text); INSERT INTO w VALUES ('users', 'users'); CREATE FUNCTION fire(anyelement) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'fired %', $1; RETURN 1; END $$;
		CREATE FUNCTION fire(record) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'fired %', $1; RETURN 1; END $$; SELECT current_setting('server_version_num')::int / 10000`).ReadAll()
	require.NoError(t, err)
	major, err := strconv.Atoi(string(answer[len(answer)-1].Rows[0][0]))
	require.NoError(t, err)
	tb := newTestTables(t, Config{ServerMajor: major})
	turns, seed := 3000, uint64(1)
	if n, err := strconv.Atoi(os.Getenv(allNames)); err == nil {
		turns, seed = 60_000, uint64(n)
	}
	w := fromWriter{Rand: rand.New(rand.NewPCG(seed, 0))}
	fired, plain := 0, 0
	for range turns {
		sql := w.statement()
		c, f := classifyText(tb, sql)
		if f != nil {
			continue
		}
		got = ""
		_, err := conn.Exec(t.Context(), "BEGIN; "+sql+"; ROLLBACK").ReadAll()
		if err != nil {
			_, _ = conn.Exec(t.Context(), "ROLLBACK").ReadAll()
			continue
		}
		told := slices.ContainsFunc(c.Functions, func(f string) bool { return strings.HasPrefix(f, "public.") })
		switch {
		case got == "":
			plain++
		case slices.ContainsFunc(strings.Split(got, "\n"), func(arg string) bool { return strings.Contains(arg, "own") && !strings.Contains(arg, "users") }) && !told:
			t.Errorf("%d: %s\n%s, and the facts say %v", major, sql, got, c.Functions)
		case w.writes && !told:
			t.Errorf("%d: %s\n%s in a write, and the facts say %v", major, sql, got, c.Functions)
		default:
			fired++
		}
	}
	t.Logf("%d calls, %d without", fired, plain)
	require.Greater(t, fired, 50, fmt.Sprint(plain))
}
