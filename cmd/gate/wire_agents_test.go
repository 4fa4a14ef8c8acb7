package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/eventlog/event"
	"writegate/sqlgate/pgwire"
	"writegate/sqlgate/scram"
)

// wireAgents are the settings of a gate that agents reach over the wire, too.
func wireAgents(extra ...string) []string {
	return append(wireSettings[:len(wireSettings):len(wireSettings)], extra...)
}

// agentURL is how an agent names the gate: its id and its token, and nothing else.
func (w *agentWorld) agentURL(t testing.TB, id, token string) string {
	t.Helper()
	u := url.URL{Scheme: "postgres", User: url.UserPassword(id, token), Host: w.wire, Path: w.databaseName(t), RawQuery: "sslmode=disable"}
	return u.String()
}

func (w *agentWorld) login(t testing.TB, id, token string) (*pgconn.PgConn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	c, err := pgconn.Connect(ctx, w.agentURL(t, id, token))
	if err == nil {
		t.Cleanup(func() { _ = c.Close(context.Background()) }) // the test may have closed it
	}
	return c, err
}

// requireState demands an error of the wire.
func requireState(t testing.TB, err error, want string) *pgconn.PgError {
	t.Helper()
	var e *pgconn.PgError
	require.ErrorAs(t, err, &e)
	require.Equal(t, want, e.Severity+" "+e.Code, "%v", err)
	return e
}

func says(c *pgconn.PgConn, sql string) error { return c.Exec(context.Background(), sql).Close() }

// An agent's psql needs its id and its token: what it sends is the agent's, as over
// POST /query.
func TestAnAgentsTokenIsItsPasswordOnTheWire(t *testing.T) {
	t.Parallel()
	for _, auth := range []string{pgwire.AuthScram, pgwire.AuthTrust} {
		t.Run(auth, func(t *testing.T) {
			t.Parallel()
			w := startAgents(t, wireAgents("GATE_PGWIRE_AUTH="+auth)...)
			id, token := w.register(t, "invoice-bot")
			other, _ := w.register(t, "mail-bot")
			tokens := w.v1(t, http.MethodGet, "/agents/"+id+"/tokens", "").json(t)["items"].([]any)
			require.Equal(t, true, tokens[0].(map[string]any)["wire_login"])

			psql := exec.Command("psql", "-X", "-A", "-t", "-d", w.agentURL(t, id, token), "-c", paying)
			psql.Env = append(os.Environ(), "LC_ALL=C")
			out, err := psql.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, "UPDATE 1\n", string(out))

			w.apply(t, w.rule(t, "block", `sql.class == "write"`), id)
			c, err := w.login(t, id, token)
			require.NoError(t, err)
			e := requireState(t, says(c, paying), "ERROR 42501")
			require.Equal(t, "Ask finance.", e.Message)
			require.Contains(t, e.Detail, "agent_policy_blocked")
			require.NoError(t, says(c, "SELECT id FROM orders"), "reads are no writes")
			_, err = c.Prepare(context.Background(), "", paying, nil)
			requireState(t, err, "ERROR 42501")

			for _, wrong := range []struct{ user, password string }{
				{id, "wrong"}, {id, ""}, {other, token}, {id[:len(id)-1] + "g", token}, {"agt_00000000-0000-7000-8000-000000000000", token},
			} {
				_, err := w.login(t, wrong.user, wrong.password)
				if auth == pgwire.AuthTrust && !strings.HasSuffix(wrong.user, "g") || auth == pgwire.AuthScram && wrong.password != "" {
					e := requireState(t, err, "FATAL 28P01")
					require.Equal(t, strings.HasSuffix(wrong.user, "g"), e.Hint == "", "the hint is that of an agent, whoever it is")
				}
				require.Equal(t, auth == pgwire.AuthTrust && strings.HasSuffix(wrong.user, "g"), err == nil, "%+v: %v", wrong, err)
			}
			_, err = w.login(t, "invoice-bot", token)
			require.Equal(t, auth == pgwire.AuthTrust, err == nil, "a name is not an agent's alone")

			require.NoError(t, c.Close(context.Background()))
			require.NotNil(t, w.v1(t, http.MethodGet, "/agents/"+id+"/tokens", "").json(t)["items"].([]any)[0].(map[string]any)["last_used_at"])
			w.end(t)
			credential := tokens[0].(map[string]any)["token_id"].(string)
			seen := map[event.Type]int{}
			for _, e := range w.events(t) {
				if e.Context.Actor != id {
					continue
				}
				switch e.Type {
				case event.TypeRequestReceived:
					var p event.RequestReceived
					require.NoError(t, e.Parse(&p))
					require.Equal(t, []string{credential}, p.CredentialIDs)
					require.Empty(t, p.Principal, "it is no user of the users file")
				case event.TypeDecisionRecorded:
					var p event.DecisionRecorded
					require.NoError(t, e.Parse(&p))
					require.Equal(t, id, p.Facts.AgentID)
					require.NotNil(t, p.AgentLayer)
				}
				seen[e.Type]++
				require.Equal(t, id, e.Context.AgentID, "%s", e.Type)
				require.Equal(t, "shop", e.Context.Project)
			}
			require.NotZero(t, seen[event.TypeRequestReceived])
			require.NotZero(t, seen[event.TypeDecisionRecorded])
			require.NotZero(t, seen[event.TypeExecutionSuccess])
		})
	}
}

// Each live token of an agent is its password; one that ended says so to whoever has it,
// and nobody else.
func TestATokenThatEndedIsNoPasswordAnyMore(t *testing.T) {
	t.Parallel()
	w := startAgents(t, wireAgents()...)
	id, first := w.register(t, "bot")
	path := "/agents/" + id + "/tokens"
	issue := func(body string) (tokenID, token string) {
		issued := w.made(t, path, body)
		return issued["token_id"].(string), issued["token"].(string)
	}
	firstID := w.v1(t, http.MethodGet, path, "").json(t)["items"].([]any)[0].(map[string]any)["token_id"].(string)
	secondID, second := issue(fmt.Sprintf(`{"replaces":%q,"grace_seconds":3600}`, firstID))
	_, narrow := issue(`{"scopes":["telemetry:write"]}`)
	open, err := w.login(t, id, first)
	require.NoError(t, err, "it ends after the grace")
	later, err := w.login(t, id, second)
	require.NoError(t, err)
	_, err = w.login(t, id, narrow)
	require.Contains(t, requireState(t, err, "FATAL 28P01").Message, "gate:query")

	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, path+"/"+firstID, "").status)
	require.NoError(t, says(later, "SELECT 1"))
	require.Contains(t, requireState(t, says(open, "SELECT id FROM orders"), "FATAL 28P01").Message, "was revoked")
	require.Eventually(t, open.IsClosed, startPatience, pollEvery)
	rejected := w.eventsOf(t, event.TypeQueryRejected)
	require.Len(t, rejected, 1, "as over POST /query")
	require.Equal(t, "token_revoked", rejected[0]["error_code"])
	require.Equal(t, id, rejected[0]["agent_id"])
	_, err = w.login(t, id, first)
	require.Contains(t, requireState(t, err, "FATAL 28P01").Message, "was revoked")
	require.Equal(t, "agent_token", w.eventsOf(t, event.TypeWireLoginFailed)[0]["payload"].(map[string]any)["cause"])

	// With the last but one of them gone the salt is the same: it tells nothing of rotations.
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, path+"/"+secondID, "").status)
	_, third := issue(`{}`)
	_, err = w.login(t, id, third)
	require.NoError(t, err)
	_, err = w.login(t, id, second)
	require.NotEmpty(t, requireState(t, err, "FATAL 28P01").Hint, "behind a later one nothing of it is kept")
	issued := w.withheld(t, event.TypeAgentTokenIssued)
	require.Len(t, issued, 4)
	salts := map[string]bool{}
	for _, item := range issued {
		text, _ := item.whole.Get("scram_verifier")
		verifier, _ := text.AsString()
		v, err := scram.Parse(verifier)
		require.NoError(t, err)
		salts[string(v.Salt)] = true
	}
	require.Len(t, salts, 1)

	held, err := w.login(t, id, third)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+id, "").status)
	require.Contains(t, requireState(t, says(held, "SELECT 1"), "FATAL 28P01").Message, "deactivated")
	_, err = w.login(t, id, third)
	require.Contains(t, requireState(t, err, "FATAL 28P01").Message, "deactivated")
}

// The verifiers come from the log: a gate that lost its projections knows them.
func TestAReplayKnowsTheTokensThatLogIn(t *testing.T) {
	t.Parallel()
	w := startAgents(t, wireAgents()...)
	id, token := w.register(t, "bot")
	w.end(t)
	again := &agentWorld{key: w.key, testGate: startGate(t, w.gateDir, wireAgents("GATE_PROJECT_KEYS=shop/ops="+w.key)...)}
	_, err := again.login(t, id, token)
	require.NoError(t, err)
	again.end(t)
	require.DirExists(t, w.file("approvals.db"))
	require.NoError(t, os.RemoveAll(w.file("approvals.db")))
	again = &agentWorld{key: w.key, testGate: startGate(t, w.gateDir, wireAgents("GATE_PROJECT_KEYS=shop/ops="+w.key)...)}
	_, err = again.login(t, id, token)
	require.NoError(t, err)
}

// A verifier is what passes for the gate before an agent: operators alone see it, as the
// event's hash covers it.
func TestTheVerifierOfATokenIsShownToOperatorsAlone(t *testing.T) {
	t.Parallel()
	w := startAgents(t, wireAgents()...)
	id, token := w.register(t, "bot")
	_, err := w.login(t, id, "wrong")
	require.Error(t, err)
	c, err := w.login(t, id, token)
	require.NoError(t, err)
	require.NoError(t, says(c, paying))
	last := w.head(t)
	bundle := func(headers ...string) reply {
		return w.do(t, http.MethodPost, "/audit/evidence", fmt.Appendf(nil, `{"start_seq":1,"end_seq":%d}`, last), headers...)
	}
	issued := w.eventsOf(t, event.TypeAgentTokenIssued)[0]["event_id"].(string)
	for name, shown := range map[string]string{
		"GET /audit":                   string(w.get(t, "/audit?limit=1000").body),
		"GET /audit as an agent":       string(w.do(t, http.MethodGet, "/audit?limit=1000", nil, bearer(token)).body),
		"GET /audit/stream":            w.followed(t, "/audit/stream?from_seq=1", `"execution_success"`),
		"GET /v1/events":               string(w.v1(t, http.MethodGet, "/events?limit=1000", "").body),
		"GET /v1/events, by a token":   string(w.do(t, http.MethodGet, "/v1/events?limit=1000", nil, bearer(token)).body),
		"GET /v1/events/:event_id":     string(w.v1(t, http.MethodGet, "/events/"+issued, "").body),
		"GET /v1/agents/:id":           string(w.v1(t, http.MethodGet, "/agents/"+id, "").body),
		"GET /v1/agents/:id/tokens":    string(w.v1(t, http.MethodGet, "/agents/"+id+"/tokens", "").body),
		"POST /audit/evidence":         string(bundle().body),
		"GET /logs":                    string(w.get(t, "/logs").body),
		"what the gate printed":        w.output.String(),
		"POST /v1/agents, a new agent": string(w.v1(t, http.MethodPost, "/agents", `{"name":"b","type":"worker"}`).body),
	} {
		require.NotContains(t, shown, scram.Prefix, name)
		require.Greater(t, len(shown), 100, name)
	}
	require.Contains(t, string(w.get(t, "/audit?event_type=agent_token_issued").body), `"scram_verifier_withheld":true`)
	require.Equal(t, http.StatusUnauthorized, bundle().status, "a bundle has its events whole")
	require.Contains(t, string(bundle(operatorTestHeader).body), "verifier")
	for _, item := range w.withheld(t, event.TypeAgentTokenIssued) {
		verifier, _ := item.whole.Get("scram_verifier")
		require.False(t, item.found(t, event.Field{Key: "scram_verifier", Value: verifier}))
	}
}

// A statement waits, and meanwhile the token that its connection logged in with is revoked:
// nothing of it runs, what is open is undone, and the evidence says why.
func TestATokenThatIsRevokedWhileAStatementOfTheWireWaitsRunsNothing(t *testing.T) {
	for _, c := range []struct {
		name  string
		step  string
		ask   []string // the last of them waits
		trail []event.Type
	}{
		{"a read", "decision.before_append", []string{"SELECT id FROM orders"}, []event.Type{event.TypeQueryRejected}},
		{"a write", "decision.before_append", []string{insertOrder}, []event.Type{event.TypeQueryRejected}},
		{"a write in a block", "decision.before_append", []string{"BEGIN", paying, insertOrder}, []event.Type{event.TypeQueryRejected, event.TypeExecutionFailure}},
		{"a COMMIT", "decision.before_append", []string{"BEGIN", insertOrder, "COMMIT"}, []event.Type{event.TypeRequestReceived, event.TypeDecisionRecorded, event.TypeExecutionFailure}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d, waits, goOn := newGateDir(t, []byte(openAgents)), make(chan struct{}), make(chan struct{})
			d.execute(t, shopTables)
			var holds atomic.Bool
			w := &agentWorld{key: agentctl.NewSecret(agentctl.KeyPrefix)}
			w.testGate = startGateWith(t, d, func(a *app) {
				a.step = func(name string) {
					if name == c.step && holds.CompareAndSwap(true, false) {
						waits <- struct{}{}
						<-goOn
					}
				}
			}, wireAgents("GATE_PROJECT_KEYS=shop/ops="+w.key)...)
			id, token := w.register(t, "bot")
			client, err := w.login(t, id, token)
			require.NoError(t, err)
			last := len(c.ask) - 1
			for _, sql := range c.ask[:last] {
				require.NoError(t, says(client, sql), sql)
			}
			holds.Store(true)
			told := make(chan error, 1)
			go func() { told <- says(client, c.ask[last]) }()
			<-waits
			require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+id, "").status)
			close(goOn)
			requireState(t, <-told, "FATAL 28P01")
			require.Equal(t, "0", w.value(t, "SELECT count(*) FROM orders WHERE id > 100 OR status = 'paid'"))
			require.Eventually(t, client.IsClosed, startPatience, pollEvery)
			w.end(t)
			var trail []event.Type
			for _, e := range w.events(t) {
				switch e.Type {
				case event.TypeExecutionSuccess:
					t.Errorf("%s ran", e.Context.Operation)
				case event.TypeExecutionDispatched: // of what came before
					trail = nil
				case event.TypeRequestReceived, event.TypeDecisionRecorded, event.TypeExecutionFailure, event.TypeQueryRejected:
					trail = append(trail, e.Type)
					require.Equal(t, id, e.Context.AgentID)
				}
			}
			require.Equal(t, c.trail, trail)
		})
	}
}

// challenged is the salt and the iterations that the gate shows to who claims to be a user,
// without the nonces, which differ each time.
func (w *agentWorld) challenged(t testing.TB, user string) (salt, iterations string) {
	t.Helper()
	c := w.dialWire(t)
	require.NoError(t, c.SetDeadline(time.Now().Add(startPatience)))
	asked := func(m pgproto3.FrontendMessage) pgproto3.BackendMessage {
		t.Helper()
		c.send(m)
		answer, err := pgproto3.NewFrontend(c, c).Receive()
		require.NoError(t, err)
		return answer
	}
	methods, ok := asked(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": user, "database": w.databaseName(t)}}).(*pgproto3.AuthenticationSASL)
	require.True(t, ok)
	require.Equal(t, []string{"SCRAM-SHA-256"}, methods.AuthMechanisms)
	first, ok := asked(&pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte("n,,n=,r=abcdefghijklmnopqrstuvwx")}).(*pgproto3.AuthenticationSASLContinue)
	require.True(t, ok)
	parts := strings.Split(string(first.Data), ",")
	require.Len(t, parts, 3)
	require.NoError(t, c.Close())
	return parts[1], parts[2]
}

// Nobody learns which agents there are, or which have tokens, from what the gate asks.
func TestAnIDWithoutAVerifierLooksLikeOneThatHasOne(t *testing.T) {
	t.Parallel()
	w := startAgents(t, wireAgents("GATE_PGWIRE_AUTH=scram")...)
	known, _ := w.register(t, "bot")
	bare := w.made(t, "/agents", `{"name":"bare","type":"worker","issue_token":false}`)["id"].(string)
	ids := []string{known, bare, "agt_01890a5d-ac96-774b-bcce-b302099a8057"}
	seen := map[string]string{}
	ask := func(w *agentWorld) {
		for _, id := range ids {
			salt, iterations := w.challenged(t, id)
			require.Equal(t, "i=4096", iterations)
			require.Len(t, salt, len("s=")+24, "16 bytes")
			if before, again := seen[id]; again {
				require.Equal(t, before, salt, "each time")
			}
			seen[id] = salt
		}
	}
	ask(w)
	ask(w)
	require.Len(t, map[string]bool{seen[ids[0]]: true, seen[ids[1]]: true, seen[ids[2]]: true}, 3)
	w.end(t)
	ask(&agentWorld{key: w.key, testGate: startGate(t, w.gateDir, wireAgents("GATE_PGWIRE_AUTH=scram", "GATE_PROJECT_KEYS=shop/ops="+w.key)...)})
}

// A users file has no agents: nobody could tell whose password counts.
func TestAUsersFileNamesNoAgent(t *testing.T) {
	t.Parallel()
	line, err := pgwire.HashPassword("agt_01890a5d-ac96-774b-bcce-b302099a8057", "secret")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(path, []byte(line+"\n"), 0o600))
	_, err = pgwire.OpenUsers(path)
	require.ErrorContains(t, err, "logs in with its token")
}

// A statement that a rule of the agent asks a person about waits for that, too, and a cancel
// of it is the agent's in the log.
func TestAnAgentWaitsOnTheWireForTheApprovalThatItsRulesAskFor(t *testing.T) {
	t.Parallel()
	w := startAgents(t, wireAgents()...)
	id, token := w.register(t, "bot")
	w.apply(t, w.rule(t, "require_approval", `!sql.safe_read && !(sql.class in ["session", "tcl"])`), id)
	c, err := w.login(t, id, token)
	require.NoError(t, err)
	require.NoError(t, says(c, "SET gate.approval_wait_ms = 60000"))
	require.NoError(t, says(c, "BEGIN"))
	sent := func(sql string) (told chan error, approval string) {
		told = make(chan error, 1)
		go func() { told <- says(c, sql) }()
		return told, w.awaited(t)
	}
	told, approval := sent(paying)
	require.Equal(t, id, w.record(t, approval)["agent_id"])
	require.Equal(t, http.StatusOK, w.resolve(t, approval, "approve").status)
	require.NoError(t, <-told)
	require.NoError(t, says(c, "COMMIT"))
	require.Equal(t, "1", w.value(t, "SELECT count(*) FROM orders WHERE status = 'paid'"))

	told, approval = sent(insertOrder)
	require.NoError(t, c.CancelRequest(context.Background()))
	require.Contains(t, requireState(t, <-told, "ERROR 57014").Detail, approval)
	require.Equal(t, "pending", w.record(t, approval)["status"], "somebody may still answer it")
	cancels := w.eventsOf(t, event.TypeCancelUnsent)
	require.Len(t, cancels, 1)
	require.Equal(t, id, cancels[0]["agent_id"])
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodGet, "/events?limit=1000", "").status)

	// Its end takes back what it asked for, and ends the wait with it.
	require.Equal(t, http.StatusOK, w.resolve(t, approval, "reject").status)
	told, _ = sent(insertOrder)
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+id, "").status)
	require.Contains(t, requireState(t, <-told, "FATAL 28P01").Message, "deactivated")
	require.Equal(t, "0", w.value(t, "SELECT count(*) FROM orders WHERE id > 100"))
}
