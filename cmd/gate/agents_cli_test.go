package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
)

// agents runs `gate agents ...` with the project key, as an operator does.
func (w *agentWorld) agents(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	environ := w.environ("GATE_HTTP_LISTEN_ADDR="+strings.TrimPrefix(w.base, "http://"), "GATE_PROJECT_KEY="+w.key)
	code, stdout, stderr = runCLI(t, environ, stdin, append([]string{"agents"}, args...)...)
	require.NotContains(t, stdout+stderr, w.key)
	return code, stdout, stderr
}

// A command takes an agent's name in the place of its id, where that can only mean one.
func TestAnAgentIsCalledByItsNameWhereThatIsOneAlone(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, _ := w.register(t, "invoice-bot")
	longer, _ := w.register(t, "invoice-bot-2")
	policyID := w.rule(t, "block", "")
	for _, args := range [][]string{{"show", "invoice-bot"}, {"token", "invoice-bot", "--json"}, {"policies", "apply", policyID, "invoice-bot"}, {"policies", "list", "--agent", "invoice-bot", "--json"},
		{"tools", "register", "--name", "sum", "--endpoint", "https://tools.example.com/mcp", "--agent", "invoice-bot", "--agent", longer},
		{"policies", "detach", policyID, "invoice-bot", "--yes"}} {
		code, out, errs := w.agents(t, "", args...)
		require.Zero(t, code, "%s %s", args, errs)
		require.NotEmpty(t, out, args)
	}
	code, out, errs := w.agents(t, "y\n", "deactivate", "invoice-bot")
	require.Zero(t, code, errs)
	require.Contains(t, out+errs, "Stop invoice-bot ("+id+")", "who confirms sees which it is")
	require.Contains(t, out, id+") is inactive")
	code, out, errs = w.agents(t, "", "activate", "invoice-bot")
	require.Zero(t, code, errs)
	require.Contains(t, out, id+") is active")

	code, _, errs = w.agents(t, "", "show", "invoice")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "no agent of this project is called invoice;")
	other, _ := w.register(t, "invoice-bot")
	code, _, errs = w.agents(t, "", "deactivate", "invoice-bot", "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "2 agents are called invoice-bot")
	require.Contains(t, errs, id+" (active)")
	require.Contains(t, errs, other+" (active)")
}

func TestAnOperatorRegistersShowsAndStopsAnAgentOnTheCommandLine(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	code, out, errs := w.agents(t, "", "list")
	require.Zero(t, code, errs)
	require.Contains(t, out, "gate agents register NAME")

	code, out, errs = w.agents(t, "", "register", "invoice-bot", "--environment", "production")
	require.Zero(t, code, errs)
	require.Contains(t, out, "note: metadata.owner does not say who answers")
	id, token := regexp.MustCompile(`agt_\S+`).FindString(out), regexp.MustCompile(`wga_\S+`).FindString(out)
	require.Equal(t, http.StatusOK, w.as(t, token, ask(paying)).status, "the token that was printed is good")
	policyID := w.rule(t, "block", "")
	w.apply(t, policyID, id)

	code, out, errs = w.agents(t, "", "list")
	require.Zero(t, code, errs)
	require.Regexp(t, `(?m)^ID +NAME +TYPE +STATUS +POLICIES +LAST SEEN$`, out)
	require.Regexp(t, id+` +invoice-bot +worker +active +1 +20`, out)
	code, out, errs = w.agents(t, "", "show", id)
	require.Zero(t, code, errs)
	require.NotContains(t, out, token)
	for _, want := range []string{`metadata +environment = production`, `policy +` + policyID + `, priority high`, `token +tok_\S+ wga_\S+ live, until 20`} {
		require.Regexp(t, want, out)
	}

	code, out, errs = w.agents(t, "", "token", id, "--replaces", regexp.MustCompile(`tok_\S+`).FindString(out))
	require.Zero(t, code, errs)
	second, secondID := regexp.MustCompile(`wga_\S+`).FindString(out), regexp.MustCompile(`tok_\S+`).FindString(out)
	require.Equal(t, "token_expired", w.as(t, token, ask("SELECT 1")).text(t, "error_code"))
	require.Equal(t, http.StatusForbidden, w.as(t, second, ask("SELECT 1")).status, "blocked, not refused")
	code, out, errs = w.agents(t, "", "revoke", id, secondID)
	require.Zero(t, code, errs)
	require.Equal(t, secondID+" is revoked.\n", out)
	require.Equal(t, "token_revoked", w.as(t, second, ask("SELECT 1")).text(t, "error_code"))

	code, _, errs = w.agents(t, "n\n", "deactivate", id)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "nothing was changed")
	code, out, errs = w.agents(t, "y\n", "deactivate", id, "--reason", "it misbehaved")
	require.Zero(t, code, errs)
	require.Contains(t, out, "invoice-bot ("+id+") is inactive")
	require.Contains(t, string(w.get(t, "/audit?event_type=agent_deactivated").body), "it misbehaved")
	_, out, _ = w.agents(t, "", "list")
	require.NotContains(t, out, id)
	_, out, _ = w.agents(t, "", "list", "--status", "all")
	require.Regexp(t, id+` +invoice-bot +worker +inactive`, out)
}

func TestTheAgentsCommandsSpeakJSONAndSayWhatWasRefused(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	const many = 103 // more than a page
	for range many {
		w.register(t, "bot")
	}
	code, out, errs := w.agents(t, "", "list", "--json")
	require.Zero(t, code, errs)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, many)
	var agent agentctl.AgentBody
	unmarshal(t, []byte(lines[0]), &agent)

	var shown struct {
		ID     string
		Tokens []struct{ Status string }
	}
	code, out, errs = w.agents(t, "", "show", agent.ID, "--json")
	require.Zero(t, code, errs)
	unmarshal(t, []byte(out), &shown)
	require.Equal(t, agent.ID, shown.ID)
	require.Equal(t, "live", shown.Tokens[0].Status)

	code, out, _ = w.agents(t, "", "show", "agt_nobody", "--json")
	require.Equal(t, exitFailed, code)
	require.True(t, json.Valid([]byte(out)))
	require.Contains(t, out, `"error_code":"agent_not_found"`)
	code, _, errs = w.agents(t, "", "show", "agt_nobody")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "(agent_not_found)")
	code, _, errs = w.agents(t, "", "register", strings.Repeat("x", 300), "--expires-in-days", "0")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "/name")
	require.Contains(t, errs, "/token_expires_in_days")
	code, _, errs = runCLI(t, w.environ(), "", "agents", "list")
	require.Equal(t, exitConfigured, code)
	require.Contains(t, errs, "gate keys create")
}

// A name may hold anything but controls; on a terminal none of it turns a line around.
func TestNamesDoNotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	w.made(t, "/agents", `{"name":"\u202etob\u2028\u200bx\u009b é 漢字","type":"a\u2066b"}`)
	code, out, errs := w.agents(t, "", "list")
	require.Zero(t, code, errs)
	require.Contains(t, out, `⟨U+202E⟩tob⟨U+2028⟩⟨U+200B⟩x⟨U+009B⟩ é 漢字`)
	require.Contains(t, out, `a⟨U+2066⟩b`)
	require.NotContains(t, out, "\u202e")
}

// A command that is refused leaves the agent as it was, or says what it did.
func TestAnAgentIsTakenBackIntoServiceAsAWholeOrNot(t *testing.T) {
	t.Parallel()
	w, narrow := startWithKeys(t, "agents:read+agents:write")
	id, _ := w.register(t, "bot")
	state := func() string {
		b := w.v1(t, http.MethodGet, "/agents/"+id, "").json(t)
		return fmt.Sprint(b["status"], b["revision"])
	}
	before := state()
	code, _, errs := w.agents(t, "", "activate", id)
	require.Equal(t, exitFailed, code, errs)
	require.Contains(t, errs, "in service already")
	require.Equal(t, before, state())

	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+id, "").status)
	before = state()
	require.Contains(t, before, "inactive")
	for _, days := range []string{"400", "0", "-1"} {
		code, _, errs := w.agents(t, "", "activate", id, "--expires-in-days", days)
		require.Equal(t, exitUsage, code, errs)
		require.Equal(t, before, state())
	}

	// Somebody takes it back, and changes it, between what the command reads and what it writes.
	target, err := url.Parse(w.base)
	require.NoError(t, err)
	between := httputil.NewSingleHostReverseProxy(target)
	changed := 0
	between.ModifyResponse = func(r *http.Response) error {
		if r.Request.Method == http.MethodGet {
			changed = w.v1(t, http.MethodPut, "/agents/"+id, `{"name":"renamed","type":"worker","config":{},"metadata":{},"status":"active"}`).status
		}
		return nil
	}
	proxy := httptest.NewServer(between)
	defer proxy.Close()
	code, _, errs = w.agents(t, "", "activate", id, "--url", proxy.URL)
	require.Equal(t, exitFailed, code, errs)
	require.Equal(t, http.StatusOK, changed)
	require.Contains(t, errs, "revision_mismatch")
	require.Equal(t, "renamed", w.v1(t, http.MethodGet, "/agents/"+id, "").text(t, "name"))
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+id, "").status)

	whole := w.key
	w.key = strings.TrimPrefix(narrow, "X-Api-Key: ")
	code, _, errs = w.agents(t, "", "activate", id)
	w.key = whole
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "renamed ("+id+") is active, and has no new token")
	require.Regexp(t, "^active", state())
}
