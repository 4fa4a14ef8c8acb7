package main

import (
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// TestRedTeamChannels sends the attacks through the channels and watches the
// server: none does anything to it that the log does not tell, none that the text
// gives away reaches it, and none is answered with a secret.
func TestRedTeamChannels(t *testing.T) {
	t.Parallel()
	everything := os.Getenv(redteamEverything) != ""
	for _, run := range redteamRuns {
		if run.oneIn == 0 && !everything {
			continue
		}
		t.Run(run.policy+", "+run.role, func(t *testing.T) {
			r := startRedteam(t, run.role, run.policy, append(wireSettings, "GATE_PGWIRE_MAX_CONNECTIONS_PER_IP=100")...)
			corpus := attackCorpus(t)
			attacks := append(corpus[:len(corpus):len(corpus)], foundBypasses(t)...)
			cases := drawCases(attacks, run.firstIn, run.oneIn, everything)
			settings := r.settings(t)
			tally, outcomes, seen := r.attack(cases)
			require.Empty(t, seen)
			require.Equal(t, settings, r.settings(t))
			r.requireMarksAsLogged()
			r.end(t)
			r.requireAnswersAsLogged()
			for _, a := range corpus {
				outcome := outcomes[a.ID+" "+channels[0].name]
				switch _, hidden := hiddenCode[a.ID]; {
				case run.policy == startingPolicy:
					_, person := heldForApproval[a.ID]
					require.Equal(t, person, outcome == gotHeld, "%s: %s: %s", a.ID, outcome, a.SQL)
				case hidden:
				case run.policy == denyPolicy:
					reached := outcome == gotAllowed || strings.HasPrefix(outcome, "refused db_")
					require.Equal(t, a.notAllowed(t), !reached, "%s: %s: %s", a.ID, outcome, a.SQL)
				}
			}
			t.Logf("PostgreSQL %d, policy %s, role %s: %d attacks, %d cases, effects seen: 0%s", r.cluster.Major, run.policy, run.role, len(attacks), len(cases), tally)
		})
	}
}

// drawCases are the attacks through each channel, a share of them that is drawn anew for it.
func drawCases(attacks []attack, firstIn, oneIn int, everything bool) (cases []redCase) {
	source := rand.New(rand.NewPCG(15, 0))
	for i := range channels {
		share := oneIn
		if i == 0 {
			share = firstIn
		}
		for _, a := range attacks {
			if _, hidden := hiddenCode[a.ID]; hidden {
				continue // what they do is known, and told in docs/THREATS.md
			}
			if everything || source.IntN(share) == 0 {
				cases = append(cases, redCase{a, &channels[i]})
			}
		}
	}
	return cases
}

// sharedSettings are asked through the gate, on its own connections: whoever
// comes next must find them as they were.
var sharedSettings = []string{"search_path", "standard_conforming_strings", "client_encoding", "role", "session_authorization", "session_replication_role",
	"row_security", "timezone", "application_name", "statement_timeout", "transaction_read_only", "default_transaction_read_only", "lock_timeout"}

func (r *redteam) settings(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range sharedSettings {
		answer := r.query(t, ask("SHOW "+name))
		require.Equal(t, http.StatusOK, answer.status, "%s: %s", name, answer.body)
		all[name] = string(mustField(t, answer, "rows"))
	}
	return all
}

// requireAnswersAsLogged holds what POST /query answered against the log: a dispatch
// of what was allowed, a decision and nothing more of what was not, and of a refusal
// that it was refused.
func (r *redteam) requireAnswersAsLogged() {
	r.t.Helper()
	of := map[string][]event.Type{}
	for _, e := range r.events(r.t) {
		of[e.Context.RequestID] = append(of[e.Context.RequestID], e.Type)
	}
	for id, code := range r.answered {
		found := of[id]
		switch {
		case code == "ALLOW", strings.HasPrefix(code, "db_"):
			require.Contains(r.t, found, event.TypeDecisionRecorded, "%s %s", id, code)
			if slices.Contains(found, event.TypeExecutionDispatched) {
				require.Less(r.t, slices.Index(found, event.TypeDecisionRecorded), slices.Index(found, event.TypeExecutionDispatched))
				require.Greater(r.t, len(found), slices.Index(found, event.TypeExecutionDispatched)+1, "it has a result")
			}
		case code == "BLOCK", code == "REQUIRE_APPROVAL":
			require.Contains(r.t, found, event.TypeDecisionRecorded, "%s %s", id, code)
			require.NotContains(r.t, found, event.TypeExecutionDispatched, "%s %s", id, code)
		default:
			require.Equal(r.t, []event.Type{event.TypeQueryRejected}, found, "%s %s", id, code)
		}
	}
	require.Greater(r.t, len(r.answered), 300)
}

// What the red team must see, so that seeing nothing means something: each is sent to
// the server without the gate, through the proxy.
func TestRedTeamSeesWhatIsDone(t *testing.T) {
	t.Parallel()
	r := startRedteam(t, asSuperuser, denyPolicy, wireSettings...)
	require.Empty(t, r.effects())
	r.patience = 100 * time.Millisecond
	for sql, want := range map[string]string{
		"SELECT 'undecided'":                                          "what nobody decided: SELECT 'undecided'",
		"SELECT 'undecided too'":                                      "before its decision was on disk: SELECT 'undecided too'",
		"INSERT INTO audit_sink VALUES ('x')":                         "of which the log knows nothing",
		"UPDATE customers SET email = 'x'":                            "the server's print differs",
		"SELECT setval('seq1', 7)":                                    "the server's print differs",
		"ALTER ROLE postgres SET work_mem = '1MB'":                    "the server's print differs",
		"SELECT pg_stat_reset()":                                      "the server's print differs",
		"SELECT pg_advisory_lock(7)":                                  "held: lock advisory",
		"BEGIN; LOCK TABLE users IN EXCLUSIVE MODE":                   "lock relation ExclusiveLock",
		"SELECT public.json_scalar(1)":                                `user code ran: "json_scalar"(int)`,
		"SELECT pg_read_file('canary/secret.txt')":                    "files: secret.txt",
		"COPY (SELECT 1) TO PROGRAM 'cat >/dev/null; touch canary/x'": "files: x",
		"NOTIFY chan": "notified: chan",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim'": "another session ended",
	} {
		c, err := pgconn.Connect(t.Context(), r.throughProxy+"?sslmode=disable")
		require.NoError(t, err)
		_, err = c.Exec(t.Context(), sql).ReadAll()
		require.NoError(t, err, sql)
		require.Contains(t, strings.Join(r.effects(), "\n"), want, sql)
		require.NoError(t, c.Close(t.Context()))
		require.Eventually(t, func() bool { return r.look(restOfTheServer) == "" }, startPatience, pollEvery)
		r.effects()
	}
	r.accused = true
}
