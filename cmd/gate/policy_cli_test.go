package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// cli runs a command in this process against a running gate, with the answers
// of a person on standard input.
func (g *testGate) cli(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	environ := g.environ("GATE_HTTP_LISTEN_ADDR=" + strings.TrimPrefix(g.base, "http://"))
	return runCLI(t, environ, stdin, args...)
}

func runCLI(t *testing.T, environ []string, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{streams: streams{strings.NewReader(stdin), &out, &errs}, environ: environ}
	code = a.run(t.Context(), args)
	require.NotContains(t, out.String()+errs.String(), operatorTestToken)
	return code, out.String(), errs.String()
}

func (g *testGate) policyFile(t *testing.T, version string, changes ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop-gate@"+version+".yaml")
	require.NoError(t, os.WriteFile(path, []byte(sampleVersion(t, version, changes...)), 0o600))
	return path
}

// looserDeletes lets a person decide what the sample policy blocks.
var looserDeletes = []string{
	"decision: BLOCK\n    reason_code: write_without_filter", "decision: REQUIRE_APPROVAL\n    reason_code: write_without_filter",
	"decision: BLOCK, rule_id: filter-required", "decision: REQUIRE_APPROVAL, rule_id: filter-required",
}

func TestAVersionGoesFromAFileToActiveAndBackOnTheCommandLine(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, http.StatusForbidden, g.query(t, ask("DELETE FROM orders")).status)
	file := g.policyFile(t, "1.1.0", looserDeletes...)

	code, out, errs := g.cli(t, "", "policy", "activate", file, "--yes")
	require.Equal(t, exitFailed, code, out)
	require.Contains(t, errs, "gate policy candidate FILE")
	code, out, errs = g.cli(t, "", "policy", "candidate", file, "--note", "read by two")
	require.Zero(t, code, errs)
	require.Contains(t, out, "shop-gate@1.1.0 is a candidate: ")
	code, out, _ = g.cli(t, "", "policy", "candidate", file)
	require.Zero(t, code)
	require.Equal(t, "shop-gate@1.1.0 is known with these bytes; it is candidate.\n", out)

	code, out, errs = g.cli(t, "n\n", "policy", "activate", file)
	require.Equal(t, exitFailed, code, out)
	require.Contains(t, errs, "shop-gate@1.0.0 -> shop-gate@1.1.0: 1 modified (1 change of a decision)")
	require.Contains(t, errs, "~ filter-required modified: BLOCK -> REQUIRE_APPROVAL, looser")
	require.Contains(t, errs, "nothing was changed")
	code, _, errs = g.cli(t, "", "policy", "activate", file)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "--yes")
	require.Equal(t, "shop-gate@1.0.0", g.get(t, "/policy/status").text(t, "policy_version"))

	code, out, errs = g.cli(t, "y\n", "policy", "activate", file, "--replay", "24h", "--reason", "reviewed")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "shop-gate@1.1.0 decides 1 of them otherwise than shop-gate@1.0.0")
	require.Contains(t, errs, "BLOCK by shop-gate@1.0.0 -> REQUIRE_APPROVAL by shop-gate@1.1.0: 1, 1 by filter-required")
	require.Contains(t, out, "shop-gate@1.1.0 is active since ")
	require.Contains(t, out, "shop-gate@1.0.0 is archived; `gate policy rollback` goes back to it.")
	require.Equal(t, "shop-gate@1.1.0", g.get(t, "/policy/status").text(t, "policy_version"))

	code, out, errs = g.cli(t, "yes\n", "policy", "rollback")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "shop-gate@1.1.0 -> shop-gate@1.0.0")
	require.Contains(t, out, "shop-gate@1.0.0 is active since ")

	// What was recorded under 1.0.0 is not what 1.1.0, active for a while, would have said.
	plane := startTestPlane(t, g.base).reader(t)
	page := plane.page(t, "/policy-diff?base=shop-gate@1.1.0&target=shop-gate@1.0.0&last=24h")
	require.Contains(t, page, "shop-gate@1.0.0 makes <strong>1</strong> otherwise than shop-gate@1.1.0.")
	require.Contains(t, page, "Against what was recorded, under the policy of that time: shop-gate@1.1.0 makes 1 otherwise, shop-gate@1.0.0 0; 0 of these neither makes as recorded.")
	require.Contains(t, page, " (recorded: Blocked)")
	_, out, errs = g.cli(t, "", "policy", "diff", "shop-gate@1.1.0", "shop-gate@1.0.0", "--replay", "24h")
	require.Contains(t, out, "against what was recorded: shop-gate@1.1.0 decides 1 otherwise, shop-gate@1.0.0 0, and 0 were recorded as neither decides", errs)
	require.Regexp(t, `such as event \d+ \(recorded as BLOCK\)`, out)

	code, out, errs = g.cli(t, "", "policy", "rollback", "shop-gate@1.1.0", "--yes", "--json")
	require.Zero(t, code, errs)
	var answer map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &answer))
	require.Equal(t, "shop-gate@1.0.0", answer["rolled_back_from"])
	require.NotContains(t, plane.page(t, "/policies/shop-gate@1.1.0"), "<dt>Archived</dt>", "it was, and is active again")
	require.Contains(t, plane.page(t, "/policies/shop-gate@1.0.0"), "<dt>Archived</dt>")
}

func TestWhatTheGateRefusesIsReadable(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	bad := g.policyFile(t, "1.2.0", "decision: BLOCK", "decison: BLOCK")
	code, _, errs := g.cli(t, "", "policy", "candidate", bad)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, bad+":")
	require.Contains(t, errs, "error PV103 unknown_field")
	require.Contains(t, errs, "  try: decision\n")
	require.Contains(t, errs, "(policy_invalid)\n")
	code, out, errs := g.cli(t, "", "policy", "candidate", bad, "--json")
	require.Equal(t, exitFailed, code)
	require.Empty(t, errs)
	require.Contains(t, out, `"error_code":"policy_invalid"`)

	code, _, errs = g.cli(t, "", "policy", "rollback", "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "nothing to go back to")
	code, _, errs = g.cli(t, "", "policy", "activate", "shop-gate@1.2.0", "--yes")
	require.Equal(t, exitFailed, code, "it was rejected")
	require.Contains(t, errs, "gate: ")
	code, _, errs = g.cli(t, "", "policy", "dry-run", "--url", g.base, "--sql", "SELECT 1", "shop-gate@9.9.9")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "policy_version: shop-gate@9.9.9")
}

// serverMajor is what a gate knows of its database and a file does not.
var serverMajor = regexp.MustCompile(`"server_major":\d+`)

func TestDiffAndDryRunAnswerTheSameWithAndWithoutAGate(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	file := g.policyFile(t, "1.1.0", looserDeletes...)
	for _, args := range [][]string{
		{"policy", "diff", "active", file},
		{"policy", "diff", file, "shop-gate@1.0.0", "--json"},
		{"policy", "dry-run", file, "--sql", "DELETE FROM orders", "--actor", "ana", "--app", "shop", "--json"},
		{"policy", "dry-run", "--sql", "UPDATE orders SET status = 'x' WHERE id = 1", "--app", "shop", "--compare-to", "active"},
		{"policy", "dry-run", "--sql", "DO $$ BEGIN END $$"},
	} {
		code, offline, errs := g.cli(t, "", args...)
		require.Zero(t, code, "%v: %s", args, errs)
		code, online, errs := g.cli(t, "", append(args, "--url", g.base)...)
		require.Zero(t, code, "%v: %s", args, errs)
		require.Equal(t, offline, serverMajor.ReplaceAllString(online, `"server_major":0`), "%v", args)
	}
	code, _, _ := g.cli(t, "", "policy", "diff", "active", file, "--exit-code")
	require.Equal(t, exitFailed, code)
	code, _, _ = g.cli(t, "", "policy", "diff", "active", "active", "--exit-code")
	require.Zero(t, code)

	code, out, errs := g.cli(t, "DELETE FROM orders", "policy", "dry-run")
	require.Zero(t, code, errs)
	require.Contains(t, out, "BLOCK write_without_filter, by filter-required of shop-gate@1.0.0\n")
	require.Regexp(t, `filter-required +BLOCK +decides\n`, out)
	require.Regexp(t, `no-drop +BLOCK +no match +query_types wants \[DROP, TRUNCATE\], has \[DELETE\]\n`, out)

	require.Equal(t, http.StatusForbidden, g.query(t, ask("DELETE FROM orders")).status)
	code, out, errs = g.cli(t, "", "policy", "dry-run", file, "--replay", "24h")
	require.Zero(t, code, errs)
	require.Contains(t, out, "BLOCK by active -> REQUIRE_APPROVAL by shop-gate@1.1.0: 1, 1 by filter-required")
}

func TestAnAddressWithoutAGateIsExplained(t *testing.T) {
	g := &testGate{gateDir: gateDir{path: t.TempDir()}}
	closed, err := net.Listen("tcp", "127.0.0.3:0") // where nobody else comes to listen
	require.NoError(t, err)
	g.base = "http://" + closed.Addr().String()
	require.NoError(t, closed.Close())
	code, _, errs := g.cli(t, "", "policy", "rollback", "--yes")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "no gate answers at "+g.base)
	require.Contains(t, errs, "Is it running?")

	var asked []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer other.Close()
	code, _, errs = g.cli(t, "", "policy", "rollback", "--yes", "--url", other.URL)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "is no gate")
	require.Equal(t, []string{"/policy/versions"}, asked, "the token follows no redirect")
	for _, address := range []string{"127.0.0.1:6543", "ftp://x", "http://user:secret@x", "http://"} {
		code, _, errs = g.cli(t, "", "policy", "rollback", "--yes", "--url", address)
		require.Equal(t, exitUsage, code, address)
		require.NotContains(t, errs, "secret")
	}
}

// The gate of the settings is found where it listens on every address.
func TestTheAddressOfTheSettingsIsOneToDial(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:6543": "http://127.0.0.1:6543", "0.0.0.0:7000": "http://127.0.0.1:7000", ":7000": "http://127.0.0.1:7000",
		"[::]:7000": "http://127.0.0.1:7000", "[::1]:7000": "http://[::1]:7000", "gate.internal:80": "http://gate.internal:80",
	} {
		client, err := (&app{}).gateClient(&settings{HTTPListenAddr: listen}, gateAddress{})
		require.NoError(t, err)
		require.Equal(t, want, client.base)
	}
	client, err := (&app{}).gateClient(&settings{}, gateAddress{url: "https://gate.example/base/"})
	require.NoError(t, err)
	require.Equal(t, "https://gate.example/base", client.base)
}
