package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// readmeTour is what the README's tour has a person paste.
func readmeTour(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	var lines []string
	for _, block := range shellBlock.FindAllStringSubmatch(string(readme), -1) {
		lines = append(lines, block[1])
	}
	require.NotEmpty(t, lines)
	return strings.Join(lines, "")
}

// commands are the lines of the printed tour that are to be pasted.
func tourCommands(tour string) string {
	var lines []string
	for line := range strings.SplitSeq(tour, "\n") {
		if command, ok := strings.CutPrefix(line, "  "); ok {
			lines = append(lines, command)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

func TestTheReadmeShowsTheTourThatTheDemonstrationPrints(t *testing.T) {
	require.Equal(t, tourCommands(demoTour("127.0.0.1:6543", "var/demo")), readmeTour(t))
}

// The README's tour, pasted as it stands: only the address and the folder are
// those of this test's own demonstration.
func TestTheTourDoesWhatItSays(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(root, "bin")+string(filepath.Separator), "./cmd/gate", "./cmd/logverify")
	build.Dir = filepath.Join("..", "..")
	built, err := build.CombinedOutput()
	require.NoError(t, err, "%s", built)
	demo := startDemo(t, root)

	script := strings.Replace(readmeTour(t), "GATE=http://127.0.0.1:6543", "GATE="+demo, 1)
	shell := exec.Command("bash", "-uo", "pipefail", "-c", script) // what is blocked, or waits, is no success
	shell.Dir = root
	out, err := shell.CombinedOutput()
	require.NoError(t, err, "%s", out)
	said := string(out)
	for _, want := range []string{
		"id  status\n1   paid\n2   shipped\n3   new\nSELECT 3\n",
		"UPDATE 1\n",
		"decision  BLOCK\nreason    write_without_filter\n",
		"decision  REQUIRE_APPROVAL\nreason    delete_needs_approval\n",
		" is approved, by operator, until 20",
		"DELETE 1: 3 rows changed in all, with those of cascades and triggers\n",
		"execution_success",
		`{"status":"ok","source":"wal"`,
		"audit.wal: ok\nEverything was checked and nothing is wrong.",
	} {
		require.Contains(t, said, want)
	}
	// What would take more memory than a process of its server may have fails by itself.
	large := exec.Command(filepath.Join(root, "bin", "gate"), "query", "--url", demo, "SELECT length(repeat('x', 1000000000))")
	out, err = large.CombinedOutput()
	require.Error(t, err, "%s", out)
	require.Contains(t, string(out), "53200")
	temporary := exec.Command(filepath.Join(root, "bin", "gate"), "query", "--url", demo, "SHOW temp_file_limit")
	out, err = temporary.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "4GB", "its roles have the bounds of docs/database-role.sql")
	// The server of the demonstration has an account of its own where root starts it,
	// which walks through these two folders and lists neither.
	way := []string{"var", filepath.Join("var", "demo"), filepath.Join("var", "demo", "postgres")}
	require.Empty(t, forOthers(t, filepath.Join(root, "var"), func(path string, mode fs.FileMode) bool {
		place, err := filepath.Rel(root, path)
		return err == nil && slices.Contains(way, place) && mode == 0o711 && os.Geteuid() == 0
	}))
}

// startDemo runs `gate demo` of the built binary in root and gives its address.
func startDemo(t *testing.T, root string) string {
	t.Helper()
	demo := exec.Command("bash", "-c", `umask 000; exec "$0" demo`, filepath.Join(root, "bin", "gate"))
	demo.Dir = root
	demo.Env = append(cleanEnvironment(), "GATE_HTTP_LISTEN_ADDR=127.0.0.1:0", "CONTROL_PLANE_LISTEN_ADDR=127.0.0.1:0")
	output := &lockedBuffer{}
	demo.Stdout, demo.Stderr = output, output
	require.NoError(t, demo.Start())
	t.Cleanup(func() {
		require.NoError(t, demo.Process.Signal(os.Interrupt))
		require.NoError(t, demo.Wait(), "%s", output)
	})
	address := regexp.MustCompile(`(?s)The gate is up at (http://\S+)\..*In a browser: http://\S+ \(name operator, password \S{32}\)`)
	require.Eventually(t, func() bool { return address.MatchString(output.String()) }, 2*startPatience, pollEvery, "%s", output)
	return address.FindStringSubmatch(output.String())[1]
}

// cleanEnvironment is this process's without settings of the gate: the
// demonstration starts its own PostgreSQL, whatever the tests use.
func cleanEnvironment() []string {
	var environ []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "GATE_") {
			environ = append(environ, e)
		}
	}
	return environ
}
