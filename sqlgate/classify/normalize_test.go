package classify

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func normalize(t failer, sql string) string {
	s, f := guard(sql, 512<<10)
	require.Nil(t, f)
	return s.normalized(sql)
}

func TestNormalizedTextHasNoConstantsAndNoComments(t *testing.T) {
	for sql, want := range map[string]string{
		"SELECT  1,\n'x' -- secret\n FROM t;":                   "SELECT $1, $2 FROM t",
		"ALTER ROLE a PASSWORD 'hunter2'":                       "ALTER ROLE a PASSWORD $1",
		"SELECT $3, 'a', $1":                                    "SELECT $3, $4, $1",
		"SELECT E'a\\'b', N'x', B'01', $t$ body $t$, 1.5e-3":    "SELECT $1, $2, $3, $4, $5",
		"SELECT 'a'\n'b'/*c*/AS\"Q q\"":                         "SELECT $1 AS\"Q q\"",
		"SELECT U&'x' UESCAPE '!', -1::int, a[1:2]":             "SELECT $1 UESCAPE $2, -$3::int, a[$4:$5]",
		";; SELECT 'a'b, 1$1, N 'x' ;; -- 'z'":                  "SELECT $2 b, $3 $1, N $4",
		"SET app.x = hunter2":                                   "SET app.x = $1",
		"set local app.x to hunter2, \"b c\", on":               "set local app.x to $1, $2, $3",
		`SET U&"app!002ex" UESCAPE '!' = hunter2`:               `SET U&"app!002ex" UESCAPE $1 = $2`,
		`ALTER ROLE r SET app.x TO U&"hu" UESCAPE '!', hunter2`: `ALTER ROLE r SET app.x TO $1 UESCAPE $2, $3`,
		"SET a=-b": "SET a=-$1",
		"ALTER ROLE r SET app.jwt_secret TO hunter2":                                 "ALTER ROLE r SET app.jwt_secret TO $1",
		"ALTER DATABASE d SET app.x = DEFAULT":                                       "ALTER DATABASE d SET app.x = $1",
		"ALTER SYSTEM SET primary_slot_name = hunter2":                               "ALTER SYSTEM SET primary_slot_name = $1",
		"CREATE FUNCTION f() RETURNS int SET a TO b SET c.d = e LANGUAGE sql AS 'x'": "CREATE FUNCTION f() RETURNS int SET a TO $1 SET c.d = $2 LANGUAGE sql AS $3",
		"UPDATE t SET a = b":                                                         "UPDATE t SET a = b",
		"ALTER TABLE t ALTER COLUMN c SET DEFAULT now()":                             "ALTER TABLE t ALTER COLUMN c SET DEFAULT now()",
		"ALTER TABLE t SET SCHEMA s":                                                 "ALTER TABLE t SET SCHEMA s",
		"ALTER TABLE t RENAME TO u":                                                  "ALTER TABLE t RENAME TO u",
		"SELECT 'é', ü FROM \"Tür\" WHERE n=1AND":                                    "SELECT $1, ü FROM \"Tür\" WHERE n=$2 AND",
	} {
		require.Equal(t, want, normalize(t, sql), sql)
	}
}

// The secret of every literal is a text that nothing else in the statement has.
func TestNoLiteralLeavesATrace(t *testing.T) {
	const secret, digits = "hunter2", "4711"
	literals := []string{"'" + secret + "'", "E'\\'" + secret + "'", "N'" + secret + "'", "U&'" + secret + "'", "$$" + secret + "$$", "$q$'" + secret + "$q$",
		"'a'\n'" + secret + "'", "'''" + secret + "'", "X'" + digits + "'", digits, digits + ".5", "0x" + digits, "1e" + digits}
	around := []string{" ", "\n", "a", "(", ")", ",", "::text", "=", "-", "/* " + secret + " */", "-- " + digits + "\n", "\"q\"", "$2", "+", ";", "select "}
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		b.WriteString("select ")
		for range rapid.IntRange(1, 8).Draw(t, "literals") {
			b.WriteString(" " + rapid.SampledFrom(literals).Draw(t, "literal"))
			b.WriteString(strings.Join(rapid.SliceOfN(rapid.SampledFrom(around), 0, 4).Draw(t, "around"), ""))
		}
		sql := b.String()
		if _, f := guard(sql, defaultMaxSQL); f != nil {
			return
		}
		got := normalize(t, sql)
		require.NotContains(t, got, secret, sql)
		require.NotContains(t, got, digits, sql)
	})
}

func TestNormalizingTwiceChangesNothingMore(t *testing.T) {
	for _, sql := range ordinary {
		once := normalize(t, sql)
		require.Equal(t, once, normalize(t, once), sql)
	}
}

// A text without constants is given as it stands; the slow way must agree.
func TestACleanTextIsItsOwnNormalizedForm(t *testing.T) {
	clean := 0
	rapid.Check(t, func(t *rapid.T) {
		sql := textOf(t)
		s, f := guard(sql, defaultMaxSQL)
		if f != nil || !s.Clean {
			return
		}
		clean++
		fast := s.normalized(sql)
		s.Clean = false
		require.Equal(t, s.normalized(sql), fast, "%q", sql)
	})
	require.NotZero(t, clean)
	joined, f := guard("SELECT $0x", defaultMaxSQL)
	require.Nil(t, f)
	require.Equal(t, "SELECT $0 x", joined.normalized("SELECT $0x"))
	s, f := guard(" SELECT a FROM t WHERE id = $1 ;", defaultMaxSQL)
	require.Nil(t, f)
	require.True(t, s.Clean)
	require.Equal(t, "SELECT a FROM t WHERE id = $1", s.normalized(" SELECT a FROM t WHERE id = $1 ;"))
}

func TestALongNormalizedTextIsCutAtAToken(t *testing.T) {
	got := normalize(t, "SELECT "+strings.Repeat("1,", 200_000)+"1")
	require.LessOrEqual(t, len(got), maxNormalized+len(" …"))
	require.True(t, strings.HasSuffix(got, " …"))
	require.Greater(t, len(got), maxNormalized-16)
}
