package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page's commands for a shell, as they stand but for the address and the
// name of the database.
func TestTheCommandsOfTheListenersPageWork(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	_, port, _ := strings.Cut(g.wire, ":")
	var script strings.Builder
	for _, block := range shellBlock.FindAllStringSubmatch(readDoc(t, "docs/WIRE.md"), -1) {
		script.WriteString(block[1])
	}
	pasted := strings.NewReplacer("port=6544", "port="+port, "dbname=app", "dbname="+g.databaseName(t)).Replace(script.String())
	shell := exec.Command("bash", "-euo", "pipefail", "-c", pasted)
	shell.Env = append(os.Environ(), "PATH="+filepath.Dir(clientProgram(t, "psql"))+":"+os.Getenv("PATH"), "PSQLRC=/dev/null")
	said, err := shell.CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Regexp(t, `(?s)\(1 row\).* acme\b`, string(said))
}

// The versions in the table of clients are those that were tried: of the
// modules, and of the packages of node.
func TestTheListenersPageNamesTheVersionsThatWereTried(t *testing.T) {
	t.Parallel()
	page, modules, packages := readDoc(t, "docs/WIRE.md"), readDoc(t, "go.mod"), readDoc(t, "fixtures/wireclients/package.json")
	for name, version := range map[string]*regexp.Regexp{
		"pgx":           regexp.MustCompile(`jackc/pgx/v5 v(\d+\.\d+)`),
		"lib/pq":        regexp.MustCompile(`lib/pq v(\d+\.\d+\.\d+)`),
		"node-postgres": regexp.MustCompile(`"pg": "(\d+\.\d+)`),
		"postgres.js":   regexp.MustCompile(`"postgres": "(\d+\.\d+)`),
	} {
		found := version.FindStringSubmatch(modules + packages)
		require.NotNil(t, found, name)
		require.Contains(t, page, "\n| "+name+" "+found[1]+" ")
	}
}
