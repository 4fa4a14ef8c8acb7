package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// arrows is the house of docs/ARCHITECTURE.md as data: which package of ours
// may import which. A package that is not here fails the test, so a new room
// needs a place first. Files of tests may import what they like.
var arrows = map[string][]string{
	"commands/fault":    {},
	"docs":              {},
	"sqlgate/tlsfiles":  {},
	"sqlgate/lookalike": {},
	"sqlgate/scram":     {},
	"fixtures/postgres": {},
	"eventlog/event":    {},
	"eventlog/frame":    {},

	"eventlog/checkpoint": {"eventlog/event"},
	"eventlog/evidence":   {"eventlog/event", "eventlog/frame", "eventlog/checkpoint"},

	"eventlog":        {"eventlog/event", "eventlog/frame", "eventlog/checkpoint"},
	"eventlog/backup": {"eventlog/frame", "eventlog"},
	"projections":     {"eventlog/event", "eventlog/checkpoint", "eventlog"},
	"commands":        {"commands/fault", "eventlog/event", "eventlog/frame", "eventlog", "projections"},

	"commands/checkpoints": {"commands/fault", "eventlog/event", "eventlog/frame", "eventlog/checkpoint", "eventlog/evidence", "eventlog", "projections", "commands"},

	"sqlgate/classify":     {"commands/fault", "sqlgate/lookalike"},
	"sqlgate/catalog":      {"sqlgate/classify"},
	"sqlgate/policy":       {"commands/fault"},
	"sqlgate/agentrules":   {"eventlog/event", "sqlgate/policy"},
	"sqlgate/policyfolder": {"commands/fault", "sqlgate/policy"},
	"sqlgate/replay":       {"eventlog/event", "sqlgate/classify", "sqlgate/catalog", "sqlgate/policy", "sqlgate/agentrules"},
	"sqlgate/pgexec":       {"commands/fault", "sqlgate/tlsfiles", "sqlgate/scram"},
	"sqlgate":              {"sqlgate/agentrules", "commands/fault", "eventlog/event", "projections", "commands", "sqlgate/classify", "sqlgate/catalog", "sqlgate/policy", "sqlgate/policyfolder", "sqlgate/replay", "sqlgate/pgexec", "sqlgate/scram", "sqlgate/lookalike"},

	"sqlgate/pgwire": {"commands/fault", "sqlgate/tlsfiles", "sqlgate/scram", "sqlgate/policy", "sqlgate/pgexec", "sqlgate"},

	"commands/fence": {"eventlog/event", "eventlog/frame", "eventlog", "sqlgate/pgexec"},

	"agentctl": {"agentctl/egress", "agentctl/issuer", "agentctl/toolcheck", "commands/fault", "eventlog/event", "eventlog/frame", "eventlog", "projections", "commands", "sqlgate/policy", "sqlgate/agentrules", "sqlgate/replay", "sqlgate/scram", "sqlgate"},

	"agentctl/egress":    {},
	"agentctl/issuer":    {"agentctl/egress", "commands/fault", "eventlog/event"},
	"agentctl/toolcheck": {"agentctl/egress", "sqlgate/classify", "sqlgate/policy"},

	"http/httpd":   {"commands/fault", "sqlgate/tlsfiles", "eventlog/event"},
	"http/gateapi": {"docs", "commands/fault", "commands/checkpoints", "eventlog/event", "eventlog/frame", "eventlog/checkpoint", "eventlog/evidence", "eventlog", "projections", "commands", "sqlgate/classify", "sqlgate/policy", "sqlgate/replay", "sqlgate/pgexec", "sqlgate", "http/httpd"},

	"http/agentapi":     {"docs", "agentctl/toolcheck", "commands/fault", "eventlog/event", "projections", "commands", "agentctl", "http/httpd"},
	"http/mcpapi":       {"commands/fault", "eventlog/event", "projections", "commands", "sqlgate/policy", "sqlgate/pgexec", "sqlgate", "agentctl", "http/httpd"},
	"http/controlplane": {"commands/fault", "sqlgate/tlsfiles", "sqlgate/lookalike", "eventlog/frame", "eventlog/checkpoint", "eventlog/evidence", "http/httpd"},

	"cmd/terminal": {"eventlog/frame", "eventlog/checkpoint", "eventlog/evidence"},
	"cmd/gate": {"docs", "agentctl/egress", "agentctl/issuer", "agentctl/toolcheck", "agentctl", "http/agentapi", "cmd/terminal", "commands/checkpoints", "commands/fence", "commands/fault", "sqlgate/tlsfiles", "fixtures/postgres", "eventlog/event", "eventlog/frame", "eventlog/checkpoint", "eventlog/evidence", "eventlog/backup", "eventlog", "projections", "commands", "sqlgate/classify", "sqlgate/policy", "sqlgate/policyfolder", "sqlgate/agentrules", "sqlgate/replay",
		"sqlgate/pgexec", "sqlgate/pgwire", "sqlgate", "http/httpd", "http/gateapi", "http/mcpapi", "http/controlplane"},
	"cmd/logverify": {"cmd/terminal", "eventlog/event", "eventlog/frame", "eventlog/checkpoint", "eventlog/evidence"},
}

// onlyImporters names libraries that one room alone may know.
var onlyImporters = []struct {
	library string
	rooms   []string
	why     string
}{
	{"github.com/pganalyze/pg_query_go", []string{"sqlgate/classify"}, "only classify imports pg_query, which is cgo"},
	{"github.com/jackc/pgx", []string{"sqlgate/pgexec", "sqlgate/pgwire", "fixtures/postgres"}, "only pgexec sends SQL upstream"},
	{"github.com/jackc/pgx/v5/pgconn", []string{"sqlgate/pgexec", "fixtures/postgres"}, "only pgexec sends SQL upstream; the listener knows messages alone"},
	{"github.com/jackc/puddle", []string{"sqlgate/pgexec"}, "only pgexec holds connections"},
	{"github.com/prometheus", []string{"http/gateapi"}, "figures are counted by their rooms and told by the API"},
	{"github.com/modelcontextprotocol/go-sdk", []string{"agentctl/toolcheck", "http/mcpapi"}, "one room speaks with tools, and one is tools"},
	{"github.com/coreos/go-oidc", []string{"agentctl/issuer"}, "one room judges tokens of an issuer"},
	{"github.com/go-jose/go-jose", []string{"agentctl/issuer"}, "one room judges tokens of an issuer"},
	{"code.dny.dev/ssrf", []string{"agentctl/egress"}, "one room judges where the gate may go"},
	{"database/sql", nil, "only pgexec sends SQL upstream"},
	{"github.com/cockroachdb/pebble", []string{"projections"}, "only projections reads and writes the store"},
	{"golang.org/x/mod/sumdb", []string{"eventlog/checkpoint"}, "only checkpoint builds trees and opens notes"},
	{"github.com/vmihailenco/msgpack", []string{"eventlog/event", "projections"}, "only the log's codec and the store encode"},
}

// A goFile is one file of ours as the tests of the house read it.
type goFile struct {
	room, name string
	syntax     *ast.File
}

// ourFiles parses every Go file that ships: no tests, no fixtures but the one
// that `gate demo` uses.
func ourFiles(t *testing.T) []goFile {
	t.Helper()
	root := filepath.Join("..", "..")
	var files []goFile
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel != "." && strings.HasPrefix(d.Name(), ".") || rel == "var" || rel == "bin" || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		room := filepath.ToSlash(filepath.Dir(rel))
		test := strings.HasSuffix(rel, "_test.go") || (strings.HasPrefix(room, "fixtures/") && room != "fixtures/postgres") || strings.HasSuffix(room, "test")
		if !strings.HasSuffix(rel, ".go") || test {
			return nil
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, goFile{room, filepath.ToSlash(rel), syntax})
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

func (f goFile) imports() []string {
	var paths []string
	for _, i := range f.syntax.Imports {
		paths = append(paths, strings.Trim(i.Path.Value, `"`))
	}
	return paths
}

// calls reports the selectors X.name that the file calls, as "X.name" where X
// is a plain identifier and ".name" otherwise.
func (f goFile) calls() []string {
	var names []string
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if s, ok := call.Fun.(*ast.SelectorExpr); ok {
			prefix := ""
			if x, ok := s.X.(*ast.Ident); ok {
				prefix = x.Name
			}
			names = append(names, prefix+"."+s.Sel.Name)
		}
		return true
	})
	return names
}

// topFolders are the wings of the house; a new room goes into one of them.
var topFolders = []string{"agentctl", "cmd", "commands", "docs", "eventlog", "fixtures", "http", "projections", "sqlgate"}

func TestEveryRoomLiesInAWingOfTheHouse(t *testing.T) {
	t.Parallel()
	for _, f := range ourFiles(t) {
		wing, _, _ := strings.Cut(f.room, "/")
		require.Contains(t, topFolders, wing, f.name)
	}
}

func TestEveryImportIsAnArrowOfTheTable(t *testing.T) {
	t.Parallel()
	for _, f := range ourFiles(t) {
		allowed, known := arrows[f.room]
		require.True(t, known, "%s: the room %s has no place in the table of arrows", f.name, f.room)
		for _, path := range f.imports() {
			if room, ours := strings.CutPrefix(path, "writegate/"); ours {
				require.Contains(t, allowed, room, "%s imports %s, which is no arrow of the table", f.name, room)
			}
		}
	}
}

func TestTheTableOfArrowsHasNoEmptyRoom(t *testing.T) {
	for room := range arrows {
		_, err := os.Stat(filepath.Join("..", "..", room))
		require.NoError(t, err, "the table of arrows names a room that is not there")
	}
}

func TestLibrariesStayInTheirRooms(t *testing.T) {
	t.Parallel()
	for _, f := range ourFiles(t) {
		for _, path := range f.imports() {
			for _, rule := range onlyImporters {
				if strings.HasPrefix(path, rule.library) && !slices.Contains(rule.rooms, f.room) {
					t.Errorf("%s imports %s: %s", f.name, path, rule.why)
				}
			}
		}
	}
}

func TestTheListenerKnowsMessagesAndNoConnections(t *testing.T) {
	t.Parallel()
	for _, f := range ourFiles(t) {
		for _, path := range f.imports() {
			if f.room == "sqlgate/pgwire" && strings.HasPrefix(path, "github.com/jackc/") {
				require.Equal(t, "github.com/jackc/pgx/v5/pgproto3", path, f.name)
			}
		}
	}
}

// The log's Append is reached through a value of eventlog.Log; a room that
// does not import eventlog cannot hold one.
func TestOnlyCommandsAppends(t *testing.T) {
	t.Parallel()
	for _, f := range ourFiles(t) {
		if f.room == "commands" || f.room == "eventlog" || !slices.Contains(f.imports(), "writegate/eventlog") {
			continue
		}
		for _, call := range f.calls() {
			require.False(t, strings.HasSuffix(call, ".Append"), "%s calls %s: only commands appends to the log", f.name, call)
		}
	}
}

func TestProjectionsAndPolicyNeverReadAClock(t *testing.T) {
	t.Parallel()
	for _, f := range ourFiles(t) {
		if f.room != "projections" && f.room != "sqlgate/policy" && f.room != "sqlgate/classify" {
			continue
		}
		if f.room == "sqlgate/classify" && (strings.Contains(f.name, "supervisor") || strings.Contains(f.name, "worker")) {
			continue // the parser child is killed by the clock; what it answers does not depend on it
		}
		for _, call := range f.calls() {
			require.NotContains(t, []string{"time.Now", "time.Since", "time.Until"}, call, "%s calls %s: the same input must give the same result on any day", f.name, call)
		}
	}
}

// A view waits for the projections: what a request asks for ends with the request.
func TestOnlyCheckpointsOpenViewsWithoutAContext(t *testing.T) {
	t.Parallel()
	within := 0
	for _, f := range ourFiles(t) {
		for _, call := range f.calls() {
			if strings.HasSuffix(call, ".ViewWithin") {
				within++
			}
			if f.room != "commands/checkpoints" && f.room != "projections" {
				require.False(t, strings.HasSuffix(call, ".View"), "%s calls %s: use ViewWithin and the context of what waits", f.name, call)
			}
		}
	}
	require.Greater(t, within, 20)
}

func TestTheHTTPShelfHoldsNoPackage(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "http", "*.go"))
	require.NoError(t, err)
	require.Empty(t, files, "no package of ours is called http")
}
