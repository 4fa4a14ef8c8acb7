package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/sqlgate/policyfolder"
)

// answeredByTheGate are the attacks that the listener answers itself, because
// they are about the connection: nothing of their text reaches the server.
var answeredByTheGate = map[string]string{
	"A010": "no statement: EmptyQueryResponse",
	"A011": "a block, which the end of the connection ends",
	"A018": "of no block, so it changes nothing and says so",
	"E218": "the gate's own settings of this connection",
	"E226": "a name, which claims nothing",
}

// TestAttacksThroughTheListener sends every attack in both protocols, each on a
// connection of its own, whose end has to undo what it left open.
func TestAttacksThroughTheListener(t *testing.T) {
	g := startAttacked(t, func(dir string) {
		require.NoError(t, policyfolder.Create(dir, policyfolder.DefaultManifest, []byte(noMatchingRule)))
	}, wireSettings...)
	all := attackCorpus(t)
	settings, before := g.settings(t), g.value(t, printOfTheServer)
	outcome := map[string]string{}
	for some := range slices.Chunk(all, attacksPerPrint) {
		for _, a := range some {
			outcome[a.ID] = g.attackByWire(t, a)
		}
		require.Eventually(t, func() bool { return g.value(t, printOfTheServer) == before }, startPatience, pollEvery, "one of these changed something: %v", some)
	}
	require.Equal(t, settings, g.settings(t))
	g.requireUnseen(t, all, outcome)
}

// attackByWire is what became of an attack: ALLOW, or the SQLSTATE of its refusal.
func (g attackedGate) attackByWire(t *testing.T, a attack) string {
	t.Helper()
	simple := g.attackOn(t, &pgproto3.Query{String: a.SQL})
	extended := g.attackOn(t, &pgproto3.Parse{Query: a.SQL}, &pgproto3.Describe{ObjectType: 'S'}, &pgproto3.Bind{}, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{}, &pgproto3.Sync{})
	if a.mayNotRun() && (simple == "ALLOW" || extended == "ALLOW") {
		require.Contains(t, answeredByTheGate, a.ID, "%s (%s, %s)", a.SQL, simple, extended)
	}
	_, hidden := hiddenCode[a.ID] // allowed, sent, and then held by the read fence
	if hidden {
		require.Equal(t, []string{"42501", "42501"}, []string{simple, extended}, a.SQL)
	}
	_, meaningless := refusedByTheServer[a.ID]
	if simple == "ALLOW" || extended == "ALLOW" || hidden || meaningless {
		return "ALLOW"
	}
	return simple
}

// attackOn sends messages on a new connection and hangs up.
func (g attackedGate) attackOn(t *testing.T, messages ...pgproto3.FrontendMessage) string {
	t.Helper()
	w := g.rawWire(t)
	defer func() { require.NoError(t, w.Close()) }()
	for _, word := range w.ask(messages...) {
		if _, state, found := strings.Cut(word, "ERROR "); found {
			return state
		}
		if _, state, found := strings.Cut(word, "FATAL "); found {
			return state
		}
	}
	return "ALLOW"
}
