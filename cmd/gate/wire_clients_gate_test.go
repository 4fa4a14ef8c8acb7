package main

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/pgscript"
)

// asAtTheDatabase are the settings under which clients find what they would find
// at the database: its own detail of errors, and time.
var asAtTheDatabase = append(wireSettings[:len(wireSettings):len(wireSettings)],
	"GATE_DB_ERROR_DETAIL=true",
	"GATE_DB_QUERY_TIMEOUT_MS=60000", "GATE_DB_LOCK_TIMEOUT_MS=60000", "GATE_DB_IDLE_IN_TX_TIMEOUT_MS=120000", "GATE_DB_ACQUIRE_TIMEOUT_MS=60000",
	"GATE_PGWIRE_TX_MAX_MS=120000", "GATE_PGWIRE_TX_IDLE_TIMEOUT_MS=60000")

// plainURL is the listener as a client is told of it that knows nothing of gates.
func (g *testGate) plainURL(t testing.TB) string {
	t.Helper()
	return "postgres://ana:@" + g.wire + "/" + g.databaseName(t)
}

// endpoint is what a script is played against.
func (g *testGate) endpoint(t testing.TB) pgscript.Endpoint {
	t.Helper()
	return pgscript.Endpoint{URL: g.plainURL(t), Database: g.database, Resolve: func(t testing.TB, approval, decision string) {
		answer := g.resolve(t, approval, decision)
		require.Equal(t, http.StatusOK, answer.status, "%s", answer.body)
	}}
}
