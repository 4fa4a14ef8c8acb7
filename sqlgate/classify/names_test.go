package classify

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamesAreReadAsTheServerReadsThem(t *testing.T) {
	require.Equal(t, Names{Words: []string{"A\"b", "as", "from", "select", "t", "where", "x", "É"}, Operators: []string{"->>", "<>"}},
		NamesOf(`SELECT X->>'select bytes' AS "A""b" FROM T WHERE É <> 5 -- note
/* hidden */`))
	for _, odd := range []string{`SELECT U&"\0061"`, "SELECT " + strings.Repeat("n", 64), `SELECT "` + strings.Repeat("n", 64) + `"`} {
		require.True(t, NamesOf(odd).Unsure, odd)
	}
	require.False(t, NamesOf("SELECT "+strings.Repeat("n", 63)).Unsure)
	require.Equal(t, []string{"select"}, NamesOf("SELECT $tag$ word $tag$, U&'\\0061', $1").Words, "literals are no names")
}
