package classify

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// allNames makes these tests put every keyword at every place; `make grammars`
// sets it. Otherwise words that are ordinary names take turns.
const allNames = "CLASSIFY_ALL_NAMES"

// A trapServer has functions, and domains with a check, of its own in public
// under every name that means something special anywhere. Whatever of them runs
// says so in a notice.
type trapServer struct {
	t     testing.TB
	conn  *pgconn.PgConn
	major int
	ran   []string
	words []trapWord
}

// A trapWord is a name that is special somewhere.
type trapWord struct {
	word string
	kind string // of pg_get_keywords: U, C, T, R; "" = no keyword
}

// Names of types that are special where no keyword is.
var moreTrapWords = []string{
	"serial", "serial2", "serial4", "serial8", "smallserial", "bigserial", "timestamptz", "timetz", "int4", "int8", "int2", "float4", "float8", "bool", "bpchar", "varbit",
	"name", "oid", "regclass", "regtype", "jsonb", "uuid", "bytea", "_int4", "_text", "record", "unknown", "any", "anyelement", "cstring", "void", "trigger", "internal",
	"date", "money", "datetime", "datetime2", "nvarchar", "number", "tinyint", "clob", "blob", "x1f", "_000", "pg_catalog", "excluded", "old", "new",
}

// trapSQL leaves out functions and domains whose names are those of built-in
// functions: an overload, or a cast written as a call, that fits better than the
// built-in shows in no text (design/classification.md part 1).
const trapSQL = `
CREATE FUNCTION public.trap_sprung(what text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'ran %', what; RETURN true; END $$;
CREATE TABLE public.trap_words (word text);
INSERT INTO public.trap_words SELECT word FROM pg_get_keywords() UNION SELECT unnest(string_to_array($words$, ','));
DO $$
DECLARE w text; args text;
BEGIN
  FOR w IN SELECT word FROM public.trap_words LOOP
    CONTINUE WHEN EXISTS (SELECT FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = w);
    EXECUTE format('CREATE DOMAIN public.%I AS text CHECK (public.trap_sprung(%L))', w, 'type ' || w);
    FOREACH args IN ARRAY ARRAY['', 'text', 'int', 'text, text', 'int, int'] LOOP
      EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS text AS $f$ SELECT public.trap_sprung(%L)::text $f$ LANGUAGE sql VOLATILE', w, args, 'function ' || w);
    END LOOP;
  END LOOP;
  EXECUTE (SELECT 'CREATE TABLE public.t (a text, b text, d xml, ' || string_agg(format('%I text', word), ', ') || ')' FROM public.trap_words WHERE word NOT IN ('a', 'b', 'd'));
END $$;
CREATE FUNCTION public.json_object() RETURNS text AS $$ SELECT public.trap_sprung('function json_object')::text $$ LANGUAGE sql VOLATILE;
INSERT INTO public.t (a, b, d) VALUES ('1', '2', '<a/>');
CREATE TABLE public.s (a text, b text);
CREATE TABLE public.changed (zz text, other text);
CREATE TYPE public.made AS (other text)`

func newTrapServer(t testing.TB) *trapServer {
	t.Helper()
	s := &trapServer{t: t}
	cfg, err := pgconn.ParseConfig(postgres.ForTest(t))
	require.NoError(t, err)
	cfg.RuntimeParams["search_path"] = "public, pg_temp"
	cfg.RuntimeParams["statement_timeout"] = "20000"
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if what, ok := strings.CutPrefix(n.Message, "ran "); ok {
			s.ran = append(s.ran, what)
		}
	}
	s.conn = connect(t, cfg)
	s.major, err = strconv.Atoi(s.query("SELECT current_setting('server_version_num')::int / 10000")[0][0])
	require.NoError(t, err)
	s.query(strings.Replace(trapSQL, "$words$", "'"+strings.Join(append(s.changedWords(), moreTrapWords...), ",")+"'", 1))
	for _, row := range s.query("SELECT w.word, coalesce(k.catcode::text, '') FROM public.trap_words w LEFT JOIN pg_get_keywords() k USING (word) ORDER BY 1") {
		s.words = append(s.words, trapWord{row[0], row[1]})
	}
	require.Greater(t, len(s.words), 480)
	return s
}

// changedWords are those that are a keyword in some majors only.
func (s *trapServer) changedWords() (words []string) {
	for _, r := range versionRows(s.t) {
		if r.kind == versionKeyword {
			word, _, _ := strings.Cut(r.name, " ")
			words = append(words, word)
		}
	}
	return words
}

func (s *trapServer) query(sql string) (rows [][]string) {
	s.t.Helper()
	results, err := s.conn.Exec(s.t.Context(), sql).ReadAll()
	require.NoError(s.t, err, sql)
	for _, r := range results[len(results)-1].Rows {
		var row []string
		for _, v := range r {
			row = append(row, string(v))
		}
		rows = append(rows, row)
	}
	return rows
}

// run runs one statement with parameters that are NULL and undoes it. It gives
// the types of its columns, what of the users' ran, and whether the server took it.
func (s *trapServer) run(sql string) (types []uint32, ran []string, err error) {
	s.ran = nil
	var result *pgconn.Result
	if strings.Contains(sql, "$") {
		var described *pgconn.StatementDescription
		if described, err = s.conn.Prepare(s.t.Context(), "", sql, nil); err != nil {
			return nil, s.ran, err
		}
		result = s.conn.ExecPrepared(s.t.Context(), "", make([][]byte, len(described.ParamOIDs)), nil, nil).Read()
	} else {
		result = s.conn.ExecParams(s.t.Context(), sql, nil, nil, nil, nil).Read()
	}
	for _, f := range result.FieldDescriptions {
		types = append(types, f.DataTypeOID)
	}
	return types, s.ran, result.Err
}

// watch demands that nothing of the users' runs and that no column is of a type of
// theirs, where the statement is judged a safe read. Columns of the tables here
// are of built-in types.
func (s *trapServer) watch(tb *tables, sql string) (safe, taken bool) {
	c, f := classifyText(tb, sql)
	if f != nil || !c.SafeRead {
		return false, false
	}
	types, ran, err := s.run(sql)
	if len(ran) > 0 {
		s.t.Errorf("%d: %s is a safe read and runs %v", s.major, sql, ran)
	}
	for _, oid := range types {
		if oid >= firstUserOID && sql != "TABLE t" && !strings.Contains(sql, "ROW(") {
			s.t.Errorf("%d: %s is a safe read and has the type %d", s.major, sql, oid)
		}
	}
	return true, err == nil
}

// statementTemplates are the statements of fixtures/pggrammars that can be reads,
// with @ for a name.
func statementTemplates(t testing.TB) (templates []string) {
	data, err := os.ReadFile("../../fixtures/pggrammars/statements.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		first, _, _ := strings.Cut(line, " ")
		if slices.Contains([]string{"SELECT", "VALUES", "TABLE", "WITH", "EXPLAIN", "SHOW"}, first) {
			templates = append(templates, strings.TrimSuffix(line, "\n"))
		}
	}
	require.Greater(t, len(templates), 150)
	return templates
}

// Every keyword of the server, every word that is one in another major, and names
// of types, at every place of a read, quoted too: what is judged a safe read calls
// nothing of the users'. Words that no major treats otherwise than another take
// turns.
func TestNoNameInASafeReadIsTheUsers(t *testing.T) {
	s := newTrapServer(t)
	tb := newTestTables(t, Config{ServerMajor: s.major})
	changed := s.changedWords()
	all := os.Getenv(allNames) != ""
	var safe, taken int
	for i, template := range statementTemplates(t) {
		for j, w := range s.words {
			turns := 6
			switch {
			case all || slices.Contains(changed, w.word):
				turns = 1
			case w.kind == "U":
				turns = 48
			}
			if (i+j)%turns != 0 {
				continue
			}
			spellings := []string{w.word}
			if w.kind != "U" && w.word != "json_object" { // "json_object"() is an overload wherever it stands
				spellings = append(spellings, `"`+w.word+`"`)
			}
			for _, spelling := range spellings {
				is, was := s.watch(tb, strings.ReplaceAll(template, "@", spelling))
				safe, taken = safe+count(is), taken+count(was)
			}
		}
	}
	t.Logf("%d safe reads, %d of them taken by the server", safe, taken)
	require.Greater(t, taken, 1000)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// connect leads to a server that is thrown away with all that is in it.
func connect(t testing.TB, cfg *pgconn.Config) *pgconn.PgConn {
	t.Helper()
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}
