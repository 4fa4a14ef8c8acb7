package classify

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A list may hold NULL, such as the column definitions that a function in FROM
// does not have. What compares and hashes trees has to pass over it.
func TestAListThatHoldsNullIsComparedAndHashed(t *testing.T) {
	tb := newTestTables(t, Config{})
	c := mustClassify(t, tb, "PREPARE p AS SELECT * FROM unnest($1::int[]) x")
	require.Equal(t, "SELECT * FROM unnest($1::int[]) x", c.Session.Inner)
	c = mustClassify(t, tb, "DELETE FROM t WHERE id IS NULL OR id IN (SELECT x FROM unnest($1::int[]) x)")
	require.Equal(t, []string{WherePresent}, c.Where)
	c = mustClassify(t, tb, "DELETE FROM t WHERE (EXISTS (SELECT DISTINCT 1)) OR NOT (EXISTS (SELECT DISTINCT 1))")
	require.Equal(t, []string{WhereTautology}, c.Where)
}
