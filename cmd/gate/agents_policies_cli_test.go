package main

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ok runs a command that has to succeed and gives what it printed.
func (w *agentWorld) ok(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	code, out, errs := w.agents(t, stdin, args...)
	require.Zero(t, code, "%s%s", out, errs)
	return out
}

func TestAnOperatorBindsAnAgentOnTheCommandLine(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	require.Contains(t, w.ok(t, "", "policies", "list"), "gate agents policies create")
	require.Equal(t, http.StatusOK, w.as(t, token, ask(paying)).status)
	require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT 1")).status)

	out := w.ok(t, "", "policies", "create", "--name", "hands-off", "--action", "block", "--condition", `"public.orders" in sql.tables_written`, "--message", "Ask finance.")
	policy := regexp.MustCompile(`pol_\S+`).FindString(out)
	require.Contains(t, out, "gate agents policies apply "+policy+" AGENT")
	require.Regexp(t, `1 of 2 statements more strictly, and matched 0 of 0 telemetry events\.\n  event \d+: BLOCK, not ALLOW, by r1 \(request req_\S+\)\nNothing was written\.`,
		w.ok(t, "", "policies", "apply", policy, id, "--dry-run"))
	require.Equal(t, http.StatusOK, w.as(t, token, ask(paying)).status)
	require.Regexp(t, policy+" binds "+id+`, with priority high, since event \d+\.`, w.ok(t, "", "policies", "apply", policy, id, "--priority", "high"))
	refused := w.as(t, token, ask(paying))
	require.Equal(t, http.StatusForbidden, refused.status)
	require.Equal(t, "Ask finance.", refused.text(t, "message"))

	require.Regexp(t, `(?m)^ID +NAME +MODE +ENABLED +RULES +APPLIED TO\n`+policy+` +hands-off +enforce +yes +1 +1$`, w.ok(t, "", "policies", "list", "--agent", id))
	require.Regexp(t, `rule +r1: block when "public.orders" in sql.tables_written`, w.ok(t, "", "policies", "show", policy))
	require.Regexp(t, `policy +`+policy+`, priority high`, w.ok(t, "", "show", id))

	milder := `{"name":"hands-off","rules":[{"action":"alert:orders","condition":""}]}`
	file := w.file("milder.json")
	require.NoError(t, os.WriteFile(file, []byte(milder), 0o600))
	require.Contains(t, w.ok(t, "", "policies", "update", policy, file), "revision  2\n\nIt acts on 1 agents from now on.")
	require.Equal(t, http.StatusOK, w.as(t, token, ask(paying)).status)

	second := regexp.MustCompile(`pol_[0-9a-f-]+`).FindString(w.ok(t, `{"name":"all","rules":[{"action":"block","condition":""}]}`, "policies", "create", "-", "--json"))
	warned := w.ok(t, "", "policies", "apply", second, id)
	require.NotContains(t, warned, "note:")
	require.Equal(t, http.StatusForbidden, w.as(t, token, ask("SELECT 1")).status)
	code, _, errs := w.agents(t, "n\n", "policies", "detach", second, id)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "nothing was changed")
	require.Equal(t, second+" no longer binds "+id+".\n", w.ok(t, "", "policies", "detach", second, id, "--yes"))
	require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT 1")).status)
	require.Len(t, strings.Split(strings.TrimSpace(w.ok(t, "", "policies", "list", "--json")), "\n"), 2)
}

func TestTheCommandsSayWhatIsWrongWithARule(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, _ := w.register(t, "bot")
	code, _, errs := w.agents(t, "", "policies", "create", "--name", "p", "--action", "block", "--condition", "sql.clas == 1")
	require.Equal(t, exitFailed, code)
	require.Regexp(t, `(?m)^/rules/0/condition:1:\d+: \S+: .*clas`, errs)
	require.Contains(t, errs, "(policy_invalid)")
	code, out, _ := w.agents(t, "", "policies", "create", "--name", "p", "--action", "shout", "--json")
	require.Equal(t, exitFailed, code)
	require.True(t, json.Valid([]byte(out)))
	for _, args := range [][]string{{"policies", "create"}, {"policies", "create", "f.json", "--name", "p", "--action", "log"}, {"policies", "create", "--name", "p"}, {"tools", "register"}, {"tools", "register", "--name", "x"}} {
		code, _, errs := w.agents(t, "", args...)
		require.Equal(t, exitUsage, code, args)
		require.Contains(t, errs, "give a FILE, or --name and")
	}
	code, _, errs = w.agents(t, `{"name": "p",`, "policies", "create", "-")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "- is no JSON: unexpected end of JSON input, at byte 13")
	code, _, errs = w.agents(t, "", "policies", "create", w.file("nowhere.json"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "nowhere.json")
	code, _, errs = w.agents(t, "", "policies", "apply", "pol_nothing", id)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "(policy_not_found)")
}

func TestAnOperatorRegistersAndVerifiesAToolOnTheCommandLine(t *testing.T) {
	t.Parallel()
	w, s := startTools(t)
	agent, _ := w.register(t, "bot")
	require.Contains(t, w.ok(t, "", "tools", "list"), "gate agents tools register")
	out := w.ok(t, "", "tools", "register", "--name", "run_sql", "--endpoint", s.url, "--secret", "RUNSQL", "--agent", agent)
	require.Contains(t, out, "note: ", "http is noted")
	tool := regexp.MustCompile(`tool_[0-9a-f-]+`).FindString(out)

	out = w.ok(t, "", "tools", "verify", tool)
	require.Regexp(t, `(?m)^handshake +passed +\S+, sql-tools 1\.4\.0$`, out)
	require.Regexp(t, `(?m)^passed$`, out)
	require.Regexp(t, tool+` +run_sql +mcp +verified +20`, w.ok(t, "", "tools", "list", "--agent", agent))

	s.description.Store("Runs SQL, and more.")
	code, out, errs := w.agents(t, "", "tools", "verify", tool)
	require.Equal(t, exitFailed, code)
	require.Empty(t, errs)
	require.Regexp(t, `(?m)^fingerprint +drifted +/description modified$`, out)
	accept := regexp.MustCompile(`--accept ([0-9a-f]{64})`).FindStringSubmatch(out)
	code, out, _ = w.agents(t, "", "tools", "verify", tool, "--json")
	require.Equal(t, exitFailed, code, "drift is told to scripts too")
	require.True(t, json.Valid([]byte(out)))
	require.Contains(t, w.ok(t, "", "tools", "verify", tool, "--accept", accept[1]), "passed")
	require.Regexp(t, `pinned +`+accept[1], w.ok(t, "", "tools", "show", tool))

	require.Contains(t, w.ok(t, s.tool().with("auth", map[string]any{"type": "bearer", "secret": "OTHER"}).text(t), "tools", "update", tool, "-"), "registered")
	code, out, _ = w.agents(t, "", "tools", "verify", tool)
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, "failed: secret_unavailable")
	require.Regexp(t, `failed with +secret_unavailable`, w.ok(t, "", "tools", "show", tool))
}
