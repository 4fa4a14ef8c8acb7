package pgexec

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// What an owner has set for every session of the database does not make the operator somebody else.
func TestASetupWorksAsWhoItsURLSays(t *testing.T) {
	url := postgres.ForTest(t)
	name := postgres.QueryURL(t, url, "SELECT quote_ident(current_database())")
	var set strings.Builder
	for _, setting := range []string{"role TO 'pg_monitor'", "standard_conforming_strings TO off", "password_encryption TO 'md5'"} {
		fmt.Fprintf(&set, "ALTER DATABASE %s SET %s;", name, setting)
	}
	postgres.ExecuteURL(t, url, set.String())
	require.Equal(t, "pg_monitor", postgres.QueryURL(t, url, "SELECT current_user"))
	s, err := OpenSetup(t.Context(), "the URL", url, TLSConfig{Mode: TLSDisable})
	require.NoError(t, err)
	defer s.Close()
	var is []string
	require.NoError(t, s.ask(t.Context(), &is, "SELECT json_build_array(current_user, current_setting('standard_conforming_strings'), current_setting('password_encryption'), current_setting('search_path'))"))
	require.Equal(t, []string{s.Role, "on", "scram-sha-256", "pg_catalog, pg_temp"}, is)
}
