package main

import (
	"flag"
	"path/filepath"
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
	t.Parallel()
	datadriven.Walk(t, filepath.FromSlash(scriptsOfBoth), func(t *testing.T, path string) {
		database := postgres.ForTest(t)
		pin(t, database)
		pgscript.Run(t, path, pgscript.Endpoint{URL: database, Database: database, Resolve: nobodyResolves})
	})
}

// pin gives a database the settings under which the gate speaks to it, so that
// a server's own defaults make no difference.
func pin(t testing.TB, database string) {
	t.Helper()
	name := postgres.QueryURL(t, database, "SELECT quote_ident(current_database())")
	for _, setting := range []string{"TimeZone = 'UTC'", "DateStyle = 'ISO, MDY'", "IntervalStyle = 'postgres'", "extra_float_digits = 1", "bytea_output = 'hex'"} {
		postgres.ExecuteURL(t, database, "ALTER DATABASE "+name+" SET "+setting)
	}
}

func TestConversationsWithTheListenerAreThoseWithARealServer(t *testing.T) {
	t.Parallel()
	rewriteNothing(t)
	datadriven.Walk(t, filepath.FromSlash(scriptsOfBoth), func(t *testing.T, path string) {
		g := startGate(t, newGateDir(t, []byte(anythingGoes)), asAtTheDatabase...)
		pgscript.Run(t, path, g.endpoint(t))
	})
}

// What the listener says in its own way stands in scripts of its own.
func TestConversationsThatOnlyAGateHas(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, filepath.FromSlash("testdata/pgwire/gate"), func(t *testing.T, path string) {
		d := newGateDir(t, []byte(clientPolicy))
		d.execute(t, clientTables)
		g := startGate(t, d, append(wireSettings, "GATE_PGWIRE_MAX_BATCH_ITEMS=64")...)
		pgscript.Run(t, path, g.endpoint(t))
	})
}

// rewriteNothing keeps a listener's answers out of the files of the real server.
func rewriteNothing(t *testing.T) {
	rewrite := flag.Lookup("rewrite")
	was := rewrite.Value.String()
	require.NoError(t, rewrite.Value.Set("false"))
	t.Cleanup(func() { require.NoError(t, rewrite.Value.Set(was)) })
}

func nobodyResolves(t testing.TB, approval, decision string) {
	require.Fail(t, "a real server holds nothing for approval", "%s %s", approval, decision)
}
