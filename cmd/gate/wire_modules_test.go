package main

import (
	"flag"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// passed is the line of a test of a driver's own that passed.
var passed = regexp.MustCompile(`(?m)^--- PASS: (\w+)`)

// TestEveryClientOfGoPassesTestsOfItsOwn runs the tests that lie in the module
// of a driver, behind a gate. Most of what they need more than a statement, a
// block and a parameter (COPY, LISTEN, several statements) is refused; those
// that passed once have to pass for good: the list may only grow.
func TestEveryClientOfGoPassesTestsOfItsOwn(t *testing.T) {
	t.Parallel()
	if os.Getenv(allClients) == "" {
		require.NotEmpty(t, knownToPass(t, "lib_pq")) // they take long: make clients runs them
		return
	}
	for driver, module := range map[string]string{"lib_pq": "github.com/lib/pq", "pgx": "github.com/jackc/pgx/v5", "pgconn": "github.com/jackc/pgx/v5/pgconn"} {
		t.Run(driver, func(t *testing.T) { requireOwnTests(t, driver, module) })
	}
}

func listOf(driver string) string { return filepath.Join("testdata", "pgwire", "own", driver+".txt") }

func knownToPass(t *testing.T, driver string) []string {
	t.Helper()
	text, err := os.ReadFile(listOf(driver))
	require.NoError(t, err)
	return strings.Fields(string(text))
}

func requireOwnTests(t *testing.T, driver, module string) {
	t.Helper()
	g := startGate(t, newGateDir(t, []byte(anythingGoes)), append(asAtTheDatabase,
		"GATE_PGWIRE_MAX_CONNECTIONS=1000", "GATE_PGWIRE_MAX_CONNECTIONS_PER_IP=1000", "GATE_PGWIRE_MAX_UNAUTHENTICATED=1000", "GATE_PGWIRE_MAX_TRANSACTIONS=100")...)
	program := filepath.Join(t.TempDir(), "own.test")
	built, err := exec.Command("go", "test", "-c", "-o", program, module).CombinedOutput()
	require.NoError(t, err, "%s", built)
	folder, err := exec.Command("go", "list", "-f", "{{.Dir}}", module).Output()
	require.NoError(t, err)
	names := knownToPass(t, driver)
	which := "-test.run=^(" + strings.Join(names, "|") + ")$"
	if rewriting() {
		which = "-test.skip=" + endsTheProgram // and with it all tests behind it
	}
	cmd := exec.Command(program, "-test.v", "-test.timeout=3m", "-test.short", which)
	cmd.Dir = strings.TrimSpace(string(folder))
	cmd.Env = append(os.Environ(), g.libpqEnviron(t)...)
	output, _ := cmd.CombinedOutput() // lib/pq's ends with a look at pg_stat_activity, which is refused
	if rewriting() {
		require.NoError(t, os.WriteFile(listOf(driver), []byte(strings.Join(passedIn(output), "\n")+"\n"), 0o600))
		return
	}
	require.Equal(t, names, passedIn(output), "%s", output)
	t.Logf("%s: %d of its own tests passed", driver, len(names))
}

func rewriting() bool { return flag.Lookup("rewrite").Value.String() == "true" }

// endsTheProgram are tests of drivers that panic where they are refused.
const endsTheProgram = "^(TestFatalRxError|TestFatalTxError|TestConnExecBatchImplicitTransaction)$"

// passedIn are the names of the tests that passed, sorted.
func passedIn(output []byte) []string {
	var names []string
	for _, m := range passed.FindAllSubmatch(output, -1) {
		names = append(names, string(m[1]))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// libpqEnviron tells where to connect to in the variables of libpq.
func (g *testGate) libpqEnviron(t *testing.T) []string {
	t.Helper()
	host, port, err := net.SplitHostPort(g.wire)
	require.NoError(t, err)
	u, err := url.Parse(g.database)
	require.NoError(t, err)
	database := strings.TrimPrefix(u.Path, "/")
	return []string{"PGHOST=" + host, "PGPORT=" + port, "PGUSER=ana", "PGDATABASE=" + database, "PGSSLMODE=disable",
		"PGX_TEST_DATABASE=host=" + host + " port=" + port + " user=ana dbname=" + database + " sslmode=disable"}
}
