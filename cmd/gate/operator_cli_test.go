package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"writegate/http/gateapi"
)

// What a person does in the dashboard can be done on the command line: a statement is
// sent, waits, is looked at, decided, sent again, and found in the evidence.
func TestADecisionOnTheCommandLine(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	code, out, errs := g.cli(t, "", "query", "SELECT id, status, NULL AS gone FROM orders WHERE id = 1", "--app", "shop")
	require.Zero(t, code, errs)
	require.Regexp(t, `(?m)^id +status +gone\n1 +\w+ +NULL\n$`, out)
	require.Contains(t, errs, "SELECT 1")
	code, out, errs = g.cli(t, "DELETE FROM orders", "query", "-", "--app", "shop")
	require.Equal(t, exitFailed, code, errs)
	require.Regexp(t, `(?m)^decision +BLOCK\nreason +write_without_filter\nwhy +UPDATE and DELETE need a WHERE`, out)
	code, out, errs = g.cli(t, "", "query", "DELETE FROM orders WHERE id = 2", "--app", "shop", "--preview")
	require.Zero(t, code, errs)
	require.Contains(t, out, "REQUIRE_APPROVAL")
	_, out, _ = g.cli(t, "", "approvals", "list")
	require.Equal(t, "Nothing waits.\n", out)

	const held = "DELETE FROM orders\n WHERE id = 2 -- \x1b[2J"
	code, out, errs = g.cli(t, "", "query", held, "--app", "shop", "--actor", "ana")
	require.Equal(t, exitPartial, code, errs)
	id := regexp.MustCompile(`apr_\S+\b`).FindString(out)
	require.Contains(t, out, "send it again with --approval-id "+id)
	_, out, _ = g.cli(t, "", "approvals", "list")
	require.Regexp(t, id+` +waits, \d+m\d+s left +High risk +"ana" / "shop" +DELETE FROM orders WHERE id = 2`, out)
	code, out, errs = g.cli(t, "", "approvals", "show", id)
	require.Zero(t, code, errs)
	require.NotContains(t, out, "\x1b")
	for _, want := range []string{`writes +public\.orders`, `rule +deletes-need-approval of shop-gate@1\.0\.0`, `requester \(unverified\) +"ana", application "shop", tenant`, `\n  DELETE FROM orders\n   WHERE id = 2 -- ⟨U\+001B⟩\[2J\n`} {
		require.Regexp(t, want, out)
	}

	code, _, errs = g.cli(t, "n\n", "approvals", "approve", id)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "WHERE id = 2")
	require.Contains(t, errs, "nothing was changed")
	code, out, errs = g.cli(t, "y\n", "approvals", "approve", id, "--note", "the customer asked")
	require.Zero(t, code, errs)
	require.Contains(t, out, id+" is approved, by operator, until 20")
	code, _, errs = g.cli(t, "", "approvals", "reject", id, "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "approval_already_resolved")
	code, _, errs = g.cli(t, "", "query", held, "--app", "shop", "--actor", "ana", "--approval-id", id)
	require.Zero(t, code, errs)
	require.Contains(t, errs, "DELETE 1: 2 rows changed in all, with those of cascades and triggers")
	require.Equal(t, "0", g.value(t, "SELECT count(*)::text FROM orders WHERE id = 2"))
	_, out, _ = g.cli(t, "", "approvals", "list", "--status", "approved")
	require.Contains(t, out, "approved, used: ran ")
	require.Contains(t, out, "  by operator: “the customer asked”")

	_, out, _ = g.cli(t, "", "executions", "list", "--state", "unknown")
	require.Equal(t, "No execution is in state unknown.\n", out)
	code, _, errs = g.cli(t, "", "executions", "list", "--state", "lost")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "--state must be one of unknown, ")
	_, out, errs = g.cli(t, "", "executions", "list", "--limit", "1")
	require.Equal(t, 2, strings.Count(out, "\n"), out)
	require.Contains(t, errs, "There are more")
	_, out, _ = g.cli(t, "", "executions", "list")
	executionID := regexp.MustCompile(`(exe_\S+) +success +20\S+ +"ana" / "shop" +DELETE +DELETE 1: 2 rows changed in all`).FindStringSubmatch(out)
	require.NotNil(t, executionID, out)
	code, out, errs = g.cli(t, "", "executions", "show", executionID[1])
	require.Zero(t, code, errs)
	require.Regexp(t, `approval +`+id, out)
	require.Regexp(t, `tag +DELETE 1: 2 rows changed in all`, out)
	code, out, errs = g.cli(t, "", "executions", "check", executionID[1])
	require.Zero(t, code, errs)
	require.Regexp(t, `tag +DELETE 1: 2 rows changed in all`, out)

	code, out, errs = g.cli(t, "", "audit", "search", "--approval-id", id, "--since", "1h", "--event-type", "approval_resolved,approval_created")
	require.Zero(t, code, errs)
	require.Regexp(t, `(?s)SEQ .*approval_resolved +"ana" / "shop" +approve by operator: “the customer asked” .*\n.*approval_created`, out)
	_, out, _ = g.cli(t, "", "audit", "search", "--execution-id", executionID[1])
	require.Regexp(t, `execution_success .* DELETE 1: 2 rows changed in all`, out)
	_, out, _ = g.cli(t, "", "audit", "search", "--event-type", "decision_recorded,request_received", "--actor", "ana")
	require.Regexp(t, `decision_recorded .* public\.orders`, out)
	require.Regexp(t, `request_received .* DELETE FROM orders WHERE id = `, out)
	_, out, errs = g.cli(t, "", "audit", "search", "--limit", "1", "--json")
	require.Equal(t, 1, strings.Count(out, "\n"))
	require.True(t, json.Valid([]byte(out)), out)
	require.Contains(t, errs, "There are more")
	code, _, errs = g.cli(t, "", "audit", "search", "--since", "yesterday")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "a time ago such as 2h")
}

// On the command line, too, no claim is read as several, what a reader takes for another
// letter stands written out, and what stands behind a comment's line is not read as a part of it.
func TestNothingOnTheCommandLineIsReadForAnother(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	id := g.hold(t, ask("DELETE FROM orders\nWHERE id = 2 AND status <> 'p\u0430id\u2800' -- x\r AND id < 9").
		with("actor", "ana, application payroll, tenant acme").with("app", `x", role "dba`).with("session_id", "\u0430na"))
	code, out, errs := g.cli(t, "", "approvals", "show", id)
	require.Zero(t, code, errs)
	require.Regexp(t, `requester \(unverified\) +"ana, application payroll, tenant acme", application "x\\", role \\"dba", tenant "acme", role "clerk", .*, session "⟨U\+0430⟩na"\n`, out)
	require.Contains(t, out, "Each is marked where it stands.")
	require.Contains(t, out, `'p⟨U+0430⟩id⟨U+2800⟩' -- x⟨U+000D⟩ AND id < 9`)
	_, out, _ = g.cli(t, "", "approvals", "list")
	require.Contains(t, out, `"ana, application payro… / "x\", role \"dba"  DELETE FROM orders WHERE id = 2 AND status <> 'p⟨U+0430⟩id⟨U+2800⟩' -- …`)

	fails := ask("DELETE FROM orders WHERE id = 2 AND status <> 'p\u0430id' AND 1 / (id - id) = 2").with("actor", "supp\u043ert-agent").with("app", "shop\u200b")
	held := g.hold(t, fails)
	require.Equal(t, http.StatusOK, g.resolve(t, held, "approve").status)
	require.Equal(t, http.StatusUnprocessableEntity, g.query(t, fails.with("approval_id", held)).status)
	_, out, _ = g.cli(t, "", "approvals", "list", "--status", "approved")
	require.Regexp(t, held+` +approved, used: failed +High risk +"supp⟨U\+043E⟩rt-agent" / "shop⟨U\+200B⟩" +DELETE .*'p⟨U\+0430⟩id'`, out)
	_, out, _ = g.cli(t, "", "approvals", "show", held)
	require.Regexp(t, `status +approved, used: failed\n`, out)
	require.Regexp(t, `execution +exe_\S+: failed: the database refused it\n`, out)
	_, out, _ = g.cli(t, "", "executions", "list")
	require.Contains(t, out, `"supp⟨U+043E⟩rt-agent" / "shop⟨U+200B⟩"`)
	_, out, _ = g.cli(t, "", "audit", "search", "--approval-id", held)
	require.Contains(t, out, `"supp⟨U+043E⟩rt-agent" / "shop⟨U+200B⟩"`)
	require.NotContains(t, out, "\u043e")
}

// On the command line those that wait stand in the order of the inbox, with its marks.
func TestTheRiskiestStandsFirstOnTheCommandLine(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	plain := g.hold(t, ask("DELETE FROM orders WHERE id = 4"))
	risky := g.hold(t, ask("DELETE FROM orders WHERE id = 5").with("actor", "\u0430na"))
	_, out, errs := g.cli(t, "", "approvals", "list")
	require.Regexp(t, `(?s)`+risky+` .* High risk .*`+plain+` .* (Look closely|Ordinary) `, out+errs)
}

// With --wait the statement runs as soon as somebody approved it, and watch tells of both.
func TestAStatementThatWaitsForItsDecisionAndAWatcher(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	environ := g.environ("GATE_HTTP_LISTEN_ADDR=" + strings.TrimPrefix(g.base, "http://"))
	ctx, stop := context.WithCancel(t.Context())
	var watched lockedBuffer
	watcher := make(chan int)
	go func() {
		watcher <- Run(ctx, []string{"approvals", "watch", "--every", "100ms"}, streams{strings.NewReader(""), &watched, &bytes.Buffer{}}, environ)
	}()
	for _, decision := range []string{"approve", "reject"} {
		type result struct {
			code      int
			out, errs string
		}
		ran := make(chan result)
		go func() {
			var out, errs bytes.Buffer
			code := Run(t.Context(), []string{"query", "DELETE FROM orders WHERE id = 3", "--app", "shop", "--wait"}, streams{strings.NewReader(""), &out, &errs}, environ)
			ran <- result{code, out.String(), errs.String()}
		}()
		var id string
		require.Eventually(t, func() bool {
			var list struct{ Items []gateapi.ApprovalBody }
			unmarshal(t, g.get(t, "/approvals?status=pending").body, &list)
			if len(list.Items) == 1 {
				id = list.Items[0].ApprovalID
			}
			return id != ""
		}, time.Minute, 5*time.Millisecond)
		require.Eventually(t, func() bool { return strings.Contains(watched.String(), id+"  waits, ") }, time.Minute, 5*time.Millisecond)
		require.Equal(t, http.StatusOK, g.resolve(t, id, decision).status)
		r := <-ran
		if decision == "approve" {
			require.Zero(t, r.code, r.errs)
			require.Contains(t, r.errs, "DELETE 1")
		} else {
			require.Equal(t, exitFailed, r.code, r.errs)
			require.Contains(t, r.errs, "rejected: from a test. Nothing ran")
		}
		require.Eventually(t, func() bool {
			return regexp.MustCompile(id + "  " + map[string]string{"approve": "approved", "reject": "rejected"}[decision] + ".*  by operator: “from a test”").MatchString(watched.String())
		}, time.Minute, 5*time.Millisecond)
	}
	stop()
	require.Zero(t, <-watcher)
}

func TestWhatWasRejectedWithoutANoteHasNone(t *testing.T) {
	reject, note := "reject", "not now"
	require.Equal(t, "rejected. Nothing ran", nothingRan(&gateapi.ApprovalBody{Status: "resolved", Resolution: &reject}, time.Now()))
	require.Equal(t, "rejected: not now. Nothing ran", nothingRan(&gateapi.ApprovalBody{Status: "resolved", Resolution: &reject, Note: &note}, time.Now()))
	require.Equal(t, "expired. Nothing ran", nothingRan(&gateapi.ApprovalBody{Status: "expired"}, time.Now()))
}

// What is asked for and decided between two looks is shown all the same.
func TestWatchingMissesNoDecision(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	before := g.hold(t, ask("DELETE FROM orders WHERE id = 1"))
	require.Equal(t, http.StatusOK, g.resolve(t, before, "reject").status)
	environ := g.environ("GATE_HTTP_LISTEN_ADDR=" + strings.TrimPrefix(g.base, "http://"))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var watched lockedBuffer
	watcher := make(chan int)
	go func() {
		watcher <- Run(ctx, []string{"approvals", "watch", "--every", "3s"}, streams{strings.NewReader(""), &watched, &bytes.Buffer{}}, environ)
	}()
	waits := g.hold(t, ask("DELETE FROM orders WHERE id = 2"))
	require.Eventually(t, func() bool { return strings.Contains(watched.String(), waits+"  waits") }, time.Minute, 5*time.Millisecond)
	var decided []string
	for n := range 3 {
		id := g.hold(t, ask(fmt.Sprint("DELETE FROM orders WHERE id = ", 3+n)))
		require.Equal(t, http.StatusOK, g.resolve(t, id, "reject").status)
		decided = append(decided, id)
	}
	for _, id := range decided {
		require.Eventually(t, func() bool { return strings.Contains(watched.String(), id+"  rejected") }, time.Minute, 5*time.Millisecond)
		require.Equal(t, 1, strings.Count(watched.String(), id+"  rejected"))
	}
	require.NotContains(t, watched.String(), before, "which was decided before anybody watched")
	stop()
	require.Zero(t, <-watcher)
}

func TestACommandThatIsMisspeltNamesTheOneThatIsMeant(t *testing.T) {
	for mistake, want := range map[string]string{"approvls": "did you mean approvals?", "approvals aprove": "did you mean approve?", "log verfy": "did you mean verify?",
		"config --chnged": "did you mean --changed?", "audit search --actr ana": "did you mean --actor?", "query --wait": "it is called as: gate query SQL"} {
		code, _, errs := runCLI(t, nil, "", strings.Fields(mistake)...)
		require.Equal(t, exitUsage, code, mistake)
		require.Contains(t, errs, want)
	}
	_, _, errs := runCLI(t, nil, "", "xyzzy")
	require.NotContains(t, errs, "did you mean")
}

func TestTheVersionNamesItsCommit(t *testing.T) {
	code, out, errs := runCLI(t, nil, "", "version")
	require.Zero(t, code, errs)
	require.True(t, strings.HasPrefix(out, version), out)
	at := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-01-31T10:00:00Z"}, {Key: "vcs.modified", Value: "true"}}
	require.Equal(t, " (commit 0123456789ab of 2026-01-31T10:00:00Z, with changes)", builtFrom(at))
	require.Empty(t, builtFrom(nil))
}

func TestToDecideTakesAnOperatorToken(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 4"))
	environ := []string{"GATE_HTTP_LISTEN_ADDR=" + strings.TrimPrefix(g.base, "http://")}
	code, _, errs := runCLI(t, environ, "", "approvals", "approve", id, "--yes")
	require.Equal(t, exitConfigured, code)
	require.Contains(t, errs, "GATE_OPERATOR_TOKEN is not set")
	code, out, errs := runCLI(t, environ, "", "approvals", "list", "--json")
	require.Zero(t, code, errs)
	require.Contains(t, out, id)
	code, _, errs = runCLI(t, append(environ, "GATE_OPERATOR_TOKEN=a-token-that-nobody-gave-out"), "", "approvals", "approve", id, "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "unauthorized_operator")
}

// GATE_URL is the gate that every command asks which is told of no other, and stops none.
func TestTheGateToAskStandsInTheEnvironment(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_URL=http://127.0.0.1:1") // of which serve has no use
	id := g.hold(t, ask("DELETE FROM orders WHERE id = 4"))
	environ := []string{"GATE_URL=" + g.base}
	_, out, errs := runCLI(t, environ, "", "approvals", "list")
	require.Contains(t, out, id, errs)
	code, _, errs := runCLI(t, environ, "", "approvals", "list", "--url", "http://127.0.0.1:1")
	require.Equal(t, exitFailed, code, errs)
	code, _, errs = runCLI(t, []string{"GATE_URL=127.0.0.1:6543"}, "", "approvals", "list")
	require.NotZero(t, code)
	require.Contains(t, errs, "GATE_URL must be http://host:port")
}

// A table is no wider than the terminal; what is no terminal gets all of it.
func TestTablesFitTheTerminal(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	g.hold(t, ask("DELETE FROM orders WHERE id = 4 OR id = 5 OR id = 6"))
	_, whole, _ := g.cli(t, "", "approvals", "list")
	require.Contains(t, whole, "OR id = 6\n")
	for _, command := range []string{"approvals list", "audit search --limit 1", "executions list --state all"} {
		screen, terminal := openTerminal(t)
		require.NoError(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 70}))
		a := &app{streams: streams{strings.NewReader(""), terminal, io.Discard}, environ: []string{"GATE_HTTP_LISTEN_ADDR=" + strings.TrimPrefix(g.base, "http://"), "GATE_OPERATOR_TOKEN=" + operatorTestToken}}
		require.Zero(t, a.run(t.Context(), strings.Fields(command)), command)
		require.NoError(t, terminal.Close())
		var shown strings.Builder
		_, _ = io.Copy(&shown, screen) // to its end, which a terminal tells by an error
		for line := range strings.Lines(shown.String()) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\r\n")), 70, line)
		}
		if command == "approvals list" {
			require.Contains(t, shown.String(), "\r\n    DELETE FROM orders WHERE id = 4 OR id = 5 OR id = 6\r\n", "the statement has a line of its own")
			require.Contains(t, shown.String(), "…")
		}
	}
}

// Each command that a person sees has a man page, which everybody may read.
func TestEveryCommandHasAManPage(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "not", "there")
	code, output := runGate(t, nil, "man", dir)
	require.Zero(t, code, output)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		path := filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
		if !c.IsAvailableCommand() {
			require.NoFileExists(t, path)
			return
		}
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(page), strings.ReplaceAll(c.CommandPath(), " ", "-")+" - ")
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o644), info.Mode().Perm())
		for _, child := range c.Commands() {
			walk(child)
		}
	}
	walk((&app{}).rootCommand())
	code, output = runGate(t, nil, "man", filepath.Join(dir, "gate.1", "nowhere"))
	require.Equal(t, exitFailed, code, output)
}

// A statement is indented, and what stands beside it is not, so no comment passes for a parameter.
func TestACommentIsNotShownAsAParameter(t *testing.T) {
	var out strings.Builder
	require.NoError(t, printStatement(&out, &gateapi.ApprovalBody{SQL: "DELETE FROM o WHERE id = $1 /*\nparameter 1: 7\n\nparameter 2: 8\r\nparameter 3: 9 */", Parameters: []string{"4", "5\nparameter 6: 7"}}))
	var parameters []string
	for line := range strings.SplitSeq(out.String(), "\n") {
		if strings.HasPrefix(strings.TrimLeft(line, "\r"), "parameter ") {
			parameters = append(parameters, line)
		}
	}
	require.Equal(t, []string{"parameter 1: 4", "parameter 2: 5⟨U+000A⟩parameter 6: 7"}, parameters)
}

// What is shown of a statement or a value can be read back, so no two are shown alike.
func TestNoTwoTextsAreShownAlike(t *testing.T) {
	number := regexp.MustCompile(`⟨U\+([0-9A-F]+)⟩`)
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringOf(rapid.SampledFrom([]rune("aE '\"$/*-\\\n\t\r\x1b\u0430\u202e\u200b\u00a0\ufe0f⟨⟩U+027E8n"))).Draw(rt, "text")
		back := number.ReplaceAllStringFunc(marked(text), func(form string) string {
			n, err := strconv.ParseUint(number.FindStringSubmatch(form)[1], 16, 32)
			require.NoError(rt, err)
			return string(rune(n))
		})
		require.Equal(rt, text, back)
	})
}
