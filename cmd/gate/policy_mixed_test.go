package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// mixedNotes is a version that uses the whole language: lists, conditions on
// claims, a rule that only observes, a floor signal that is lifted.
func mixedNotes(version string) string {
	return fmt.Sprintf(`
schema: gate.policy/v1
name: notes
version: %s
facts: facts/v1
lists:
  notes: [public.open_notes, public.held_notes]
rules:
  - id: closed-notes
    decision: BLOCK
    reason_code: notes_are_closed
    match: { tables_written: [public.closed_notes] }
  - id: bots-are-counted
    decision: BLOCK
    reason_code: bot_seen
    mode: observe
    match: {}
    when: actor.startsWith("bot")
  - id: tenants-of-their-own
    decision: BLOCK
    reason_code: other_tenant
    match: { class: [write], env: [prod] }
    unless: { tenant: [acme, "team-*"] }
  - id: code-blocks
    decision: REQUIRE_APPROVAL
    reason_code: code_block
    lifts: [opaque_code]
    match: { query_types_only: [DO], role: [clerk] }
  - id: held-notes
    decision: REQUIRE_APPROVAL
    reason_code: notes_are_held
    match: { tables_written: [public.held_notes] }
    when: where.size() == 0 || risk_signals.exists(s, s == "write_without_where")
    approval: { ttl_seconds: 600, max_rows: 5 }
  - id: open-notes
    decision: ALLOW
    reason_code: notes_are_open
    match: { class: [write], query_types_only: [SELECT, INSERT, UPDATE, DELETE], tables_written_only: [$notes] }
    unless: { risk_signals: [write_without_where] }
`, version)
}

// mixedStatements are what the clients of a mixed run send besides the corpus
// of attacks.
var mixedStatements = []string{
	"SELECT 1", "SELECT note FROM open_notes WHERE note = 'a'", "INSERT INTO open_notes VALUES ('a')", "UPDATE open_notes SET note = 'b' WHERE note = 'a'",
	"DELETE FROM open_notes", "INSERT INTO held_notes VALUES ('a')", "DELETE FROM held_notes", "INSERT INTO closed_notes VALUES ('a')",
	"DO $$ BEGIN NULL; END $$", "SELECT pg_sleep(0)", "TRUNCATE open_notes", "WITH d AS (DELETE FROM open_notes WHERE note = 'b' RETURNING note) SELECT * FROM d",
}

// A mixedPart is one run of the gate in a mixed run.
type mixedPart struct {
	settings []string
	change   func(t testing.TB, g *testGate) // while the clients ask
}

func mixedParts() []mixedPart {
	back := func(t testing.TB, g *testGate) {
		r := g.operate(t, "/policy/rollback", map[string]any{})
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	}
	return []mixedPart{
		{nil, governed(mixedNotes("1.1.0"))},
		{[]string{"GATE_MODE=shadow"}, governed(notesVersion("1.2.0"))},
		{[]string{"GATE_MODE=approval_first"}, back},
		{[]string{"GATE_MODE=emergency_bypass", "GATE_EMERGENCY_BYPASS_REASON=a drill", "GATE_EMERGENCY_BYPASS_UNTIL=" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}, back},
		{[]string{codeIsKey, "GATE_AUDIT_SQL_TEXT=full"}, governed(byCode("1.3.0"))},
		{[]string{codeIsKey, "GATE_AUDIT_SQL_TEXT=none"}, governed(mixedNotes("1.4.0"))},
	}
}

// mixedStatement is a statement with random claims, now and then an attack. An
// attack must not run: the server behind the gate is not the test's alone.
func mixedStatement(attacks []attack) (s statement, mayRun bool) {
	one := func(of ...string) string { return of[rand.IntN(len(of))] }
	sql, mayRun := one(mixedStatements...), true
	if len(attacks) > 0 && rand.IntN(3) == 0 {
		sql, mayRun = attacks[rand.IntN(len(attacks))].SQL, false
	}
	return ask(sql).with("actor", one("ana", "bot-7", "bot-ß")).with("tenant", one("acme", "team-1", "other")).
		with("role", one("clerk", "chief")).with("env", one("prod", "staging", "shadow")), mayRun
}

// TestEveryDecisionOfAMixedRunIsRecomputed lets clients send what they like to
// one gate after another, in every mode and under versions that change
// meanwhile, and recomputes every decision from the log alone: here, and by
// `gate verify --decisions`.
func TestEveryDecisionOfAMixedRunIsRecomputed(t *testing.T) {
	t.Parallel()
	const mixedClients, statementsEach = 8, 20
	d := newNotes(t)
	for _, part := range mixedParts() {
		g := startGate(t, d, append(part.settings, patience...)...)
		require.Equal(t, http.StatusOK, g.health(t).status, "%s", g.output)
		attacks := attackCorpus(t)
		if slices.Contains(part.settings, "GATE_MODE=shadow") {
			attacks = nil // they would run
		}
		g.askOnce(t, certainlyMixed, true)
		var clients sync.WaitGroup
		for range mixedClients {
			clients.Go(func() {
				for range statementsEach {
					s, mayRun := mixedStatement(attacks)
					g.askOnce(t, s, mayRun)
				}
			})
		}
		part.change(t, g)
		clients.Wait()
		g.askOnce(t, certainlyMixed, true)
		http.DefaultClient.CloseIdleConnections()
		g.end(t)
	}
	all := d.events(t)
	decisions := recompute(t, all)
	requireMixed(t, all)
	verdict, found := decidedOtherwise(t, d, 0)
	require.Empty(t, found)
	require.EqualValues(t, decisions, verdict["decisions"], "%v", verdict)
	t.Logf("%d decisions recomputed", decisions)
}

// certainlyMixed is sent first and last to every gate, so that chance and the
// speed of the machine do not decide whether each version decides something, and
// whether a signal of the floor is lifted, observed and approved.
var certainlyMixed = ask("DO $$ BEGIN NULL; END $$").with("actor", "bot-7")

// askOnce sends a statement; what needs an approval and may run gets one and is
// sent again.
func (g *testGate) askOnce(t testing.TB, s statement, mayRun bool) {
	r, err := g.tryQuery(s)
	if !assert.NoError(t, err) || r.status != http.StatusAccepted || !mayRun {
		return
	}
	id, _ := r.field("approval_id").(string)
	if r, err = g.tryResolve(id, "approve"); assert.NoError(t, err) {
		assert.Equal(t, http.StatusOK, r.status, "%s", r.body)
	}
	_, err = g.tryQuery(s.with("approval_id", id))
	assert.NoError(t, err)
}

// requireMixed wants a log with every kind of decision in it: of all this
// something would be missing if the run were not mixed.
func requireMixed(t testing.TB, all []event.Envelope) {
	t.Helper()
	seen := map[string]int{}
	for _, e := range all {
		if e.Type != event.TypeDecisionRecorded {
			continue
		}
		var p event.DecisionRecorded
		require.NoError(t, e.Parse(&p))
		seen["mode "+e.Context.Mode]++
		seen["decision "+e.Context.Decision]++
		seen["version "+e.Context.PolicyVersion]++
		seen["layer "+p.Layer]++
		for what, is := range map[string]bool{
			"approved": p.Facts.Approved, "observed": len(p.Observed) > 0, "floor": len(p.Floor) > 0, "lifted": len(p.Lifted) > 0, "not enforced": !p.Enforced,
		} {
			if is {
				seen[what]++
			}
		}
	}
	for _, what := range strings.Split("mode enforce,mode shadow,mode approval_first,mode emergency_bypass,decision ALLOW,decision BLOCK,decision REQUIRE_APPROVAL,"+
		"version notes@1.0.0,version notes@1.1.0,version notes@1.2.0,approved,observed,floor,lifted,not enforced", ",") {
		require.NotZero(t, seen[what], "%s: %v", what, seen)
	}
}
