package main

import (
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/pgscript"
	"writegate/fixtures/postgres"
)

// The scripts of one folder demand the same of a real server and of the
// listener; what they hold was written by the real server.
const scriptsOfBoth = "testdata/pgwire/both"

func TestConversationsWithARealServerAreWrittenDown(t *testing.T) {
	datadriven.Walk(t, filepath.FromSlash(scriptsOfBoth), func(t *testing.T, path string) {
		database := postgres.ForTest(t)
		pgscript.Run(t, path, pgscript.Endpoint{URL: pinned(t, database), Database: database, Resolve: nobodyResolves})
	})
}

// pinned adds the settings under which the gate speaks to its database, so that
// a server's own defaults make no difference.
func pinned(t testing.TB, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	settings := u.Query()
	for name, value := range map[string]string{"TimeZone": "UTC", "DateStyle": "ISO, MDY", "IntervalStyle": "postgres", "extra_float_digits": "1", "bytea_output": "hex"} {
		settings.Set(name, value)
	}
	u.RawQuery = strings.ReplaceAll(settings.Encode(), "+", "%20") // a URL of PostgreSQL has no other space
	return u.String()
}

func nobodyResolves(t testing.TB, approval, decision string) {
	require.Fail(t, "a real server holds nothing for approval", "%s %s", approval, decision)
}
