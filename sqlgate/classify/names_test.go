package classify

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamesAreReadAsTheServerReadsThem(t *testing.T) {
	require.Equal(t, Names{Words: []string{"A\"b", "as", "from", "select", "t", "where", "x", "É"}, Operators: []string{"->>", "<>"}, Strings: true},
		NamesOf(`SELECT X->>'select bytes' AS "A""b" FROM T WHERE É <> 5 -- note
/* hidden */`))
	for _, odd := range []string{`SELECT U&"\0061"`, "SELECT " + strings.Repeat("n", 64), `SELECT "` + strings.Repeat("n", 64) + `"`} {
		require.True(t, NamesOf(odd).Unsure, odd)
	}
	require.False(t, NamesOf("SELECT "+strings.Repeat("n", 63)).Unsure)
	for sql, want := range map[string]bool{"SELECT N'x'": true, "SELECT E'x'": true, "SELECT U&'x'": true, "SELECT $$x$$": true, "SELECT $a$$a$": true, "SELECT B'1', X'1', 1.5, $1, \"'\" -- '": false} {
		require.Equal(t, want, NamesOf(sql).Strings, sql)
	}
	require.Equal(t, []string{"select"}, NamesOf("SELECT $tag$ word $tag$, U&'\\0061', $1").Words, "literals are no names")
}
