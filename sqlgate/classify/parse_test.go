package classify

import (
	"strings"
	"sync"
	"testing"

	pg_query "github.com/pganalyze/pg_query_go/v5"
	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// ordinary are statements of every kind, for what must hold of any text.
var ordinary = []string{
	"SELECT id, v FROM app.t WHERE id = 1 LIMIT 10",
	"SELECT 1",
	"INSERT INTO app.t (a, b, c) VALUES (1, 'x', DEFAULT), (2, E'y\\'z', NULL) ON CONFLICT DO NOTHING RETURNING *",
	"UPDATE app.t SET v = v || 'x', w = $2 WHERE id = $1",
	"DELETE FROM app.t USING u WHERE t.id = u.id AND u.x BETWEEN 1 AND 2",
	"WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT count(*) FILTER (WHERE x > 1) OVER (PARTITION BY y) FROM b",
	"SELECT CASE WHEN a IS NULL THEN 'n' ELSE b::text COLLATE \"C\" END FROM t LEFT JOIN u USING (id) ORDER BY 1 DESC",
	"SELECT $$it's$$, $a$ $b$ $a$, U&'\\0441' UESCAPE '!', N'n', B'01', X'ff', 0x1F, 1_000, 1e-5, .5, 1.",
	"CREATE FUNCTION f(a int) RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT a + 1; SELECT a; END",
	"CREATE TABLE app.t (id bigserial PRIMARY KEY, v text NOT NULL DEFAULT 'x', CHECK (length(v) < 10))",
	"GRANT SELECT (a, b) ON t TO u WITH GRANT OPTION",
	"EXPLAIN (ANALYZE false) SELECT 'Größe', \"größe\" FROM \"Tür\"",
	"/* a /* nested */ comment */ SELECT -- line\n 'joined'\n 'here' -- end",
	"SELECT a @> b, c ->> 'x', d <> e, f !~* 'g', -h, i * -1, @-5, x = ANY (ARRAY[1, 2]), (r).c[1:2]",
	"MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.id)",
	"(SELECT 1 UNION ALL SELECT 2) INTERSECT SELECT 3 EXCEPT VALUES (4), (5)",
	"SELECT 1;;",
	"DO $x$ BEGIN PERFORM 1; END $x$",
}

func TestTheOneCallGivesWhatThePublicCallsGive(t *testing.T) {
	require.NoError(t, parserLinked())
	long := "SELECT " + strings.Repeat("'a', ", 5000) + "1" // its JSON does not fit into the lent room
	for _, sql := range append([]string{long}, ordinary...) {
		tree, err := pg_query.ParseToJSON(sql)
		require.NoError(t, err, sql)
		fingerprint, err := pg_query.Fingerprint(sql)
		require.NoError(t, err, sql)

		p, f := parseTree(sql)
		require.Nil(t, f, sql)
		require.Equal(t, tree, string(p.JSON), sql)
		require.Equal(t, fingerprint, p.Fingerprint, sql)
		require.True(t, strings.HasPrefix(tree, `{"version":160001,`))
		p.release()
	}
}

func TestParsesAtTheSameTimeDoNotMix(t *testing.T) {
	var group sync.WaitGroup
	for _, sql := range ordinary {
		group.Go(func() {
			want, _ := pg_query.ParseToJSON(sql)
			for range 200 {
				p, f := parseTree(sql)
				if f != nil || string(p.JSON) != want {
					t.Errorf("%s: %v", sql, f)
					return
				}
				p.release()
			}
		})
	}
	group.Wait()
}

func TestParserErrorsTellPlaceAndReason(t *testing.T) {
	for _, c := range []struct {
		name, sql string
		code      fault.Code
		position  any
		message   string
	}{
		{"word", "SELEC 1", fault.ParserError, 0, `near "SELEC" (byte 0)`},
		{"in bytes, not characters", "SELECT 'ü', FROM x", fault.ParserError, 13, `near "FROM" (byte 13)`},
		{"behind everything", "SELECT 1 +", fault.ParserError, 10, "at end of input"},
		{"junk behind a number", "SELECT 12345678a", fault.ParserError, 7, "near a number"},
		{"string is not repeated", "ALTER ROLE x 'hunter2'", fault.ParserError, 13, "near a string constant"},
		{"nor is a password without quotes", "ALTER ROLE x PASSWORD hunter2", fault.ParserError, 22, "near the word behind PASSWORD"},
		{"dollar quote is not repeated", "ALTER ROLE x $$hunter2$$", fault.ParserError, 13, "near a string constant"},
		{"long name is cut", "SELECT 1 a " + strings.Repeat("b", 90), fault.ParserError, 11, `near "` + strings.Repeat("b", 40) + `"`},
		{"not implemented", "CREATE ASSERTION a CHECK (true)", fault.ParserUnsupportedSyntax, nil, "not yet implemented"},
		{"too deep for the grammar", "SELECT " + strings.Repeat("NOT ", 20000) + "true", fault.ParserUnsupportedSyntax, nil, "memory exhausted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, f := parseTree(c.sql)
			require.NotNil(t, f)
			require.Equal(t, c.code, f.Code, f.Message)
			require.Contains(t, f.Message, c.message)
			require.NotContains(t, f.Message, "hunter2")
			if c.position != nil {
				require.Equal(t, c.position, f.Details["position"])
			}
		})
	}
}
