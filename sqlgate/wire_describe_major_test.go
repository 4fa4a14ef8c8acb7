package sqlgate

import (
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// What was classified for a server of one major is parsed by none of another one, also
// where it is only described.
func TestAStatementOfAnotherMajorIsNotDescribed(t *testing.T) {
	w := newWireWorld(t, nil)
	direct, err := pgconn.Connect(t.Context(), w.url)
	require.NoError(t, err)
	version, _, _ := strings.Cut(direct.ParameterStatus("server_version"), ".")
	require.NoError(t, direct.Close(t.Context()))
	major, err := strconv.Atoi(version)
	require.NoError(t, err)
	other := 16
	if major == other {
		other = 17
	}
	for _, begin := range []string{"", "BEGIN"} {
		c := w.wire()
		c.query("SELECT 1") // which tells the classifier the server's major
		if begin != "" {
			c.query(begin)
			c.query("SELECT count(*) FROM t")
		}
		require.NoError(t, w.Classifier.SetServerMajor(other))
		require.NoError(t, c.Parse(t.Context(), "p", "SELECT v FROM t", nil))
		require.NoError(t, w.Classifier.SetServerMajor(major))
		before := len(w.events())
		_, _, err := c.DescribeStatement(t.Context(), "p")
		require.ErrorContains(t, err, "was read as PostgreSQL", "begin: %q", begin)
		for _, e := range w.events()[before:] {
			require.NotEqual(t, "decision_recorded", string(e.Type), "nothing was allowed")
		}
		c.Close(t.Context())
	}
}
