package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/sqlgate/policy"
)

// updateDocsVariable makes the test write the tables of docs/OPERATIONS.md
// instead of comparing them.
const updateDocsVariable = "DOCS_UPDATE"

// docFiles are the pages that people read, from the top folder.
var docFiles = []string{"README.md", "CHANGELOG.md", "SECURITY.md", "docs/ARCHITECTURE.md", "docs/CONTRIBUTING.md", "docs/OPERATIONS.md", "docs/POLICY.md", "docs/THREATS.md", "docs/WIRE.md",
	"docs/spec/README.md", "docs/spec/wal.md", "docs/spec/jsonl.md", "docs/spec/evidence.md", "docs/spec/papers.md"}

func readDoc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
	require.NoError(t, err)
	return string(text)
}

// settingsTable is the table of settings.
func settingsTable(of reflect.Type) string {
	var b strings.Builder
	b.WriteString("| setting | values | default | meaning |\n| --- | --- | --- | --- |\n")
	for _, f := range reflect.VisibleFields(of) {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Tag.Get("env"), settingValues(f), settingDefault(f), f.Tag.Get("doc"))
	}
	return b.String()
}

func settingValues(f reflect.StructField) string {
	switch {
	case f.Tag.Get("secret") == "true":
		return "secret text"
	case f.Tag.Get("oneof") != "":
		return "`" + strings.ReplaceAll(f.Tag.Get("oneof"), ",", "`, `") + "`"
	case f.Tag.Get("min") != "":
		return f.Tag.Get("min") + " to " + f.Tag.Get("max")
	case f.Type.Kind() == reflect.Bool:
		return "`true`, `false`"
	}
	return "text"
}

func settingDefault(f reflect.StructField) string {
	if d := f.Tag.Get("envDefault"); d != "" {
		return "`" + d + "`"
	}
	return "none"
}

func TestOperationsPageHasTheTableOfAllSettings(t *testing.T) {
	const page = "docs/OPERATIONS.md"
	text := readDoc(t, page)
	want := text
	for title, table := range map[string]string{
		"settings in effect":            settingsTable(reflect.TypeFor[settings]()),
		"settings of the control plane": settingsTable(reflect.TypeFor[controlPlaneSettings]()),
	} {
		begin, end := "<!-- "+title+": written by a test, see docs/CONTRIBUTING.md -->\n", "<!-- end of settings -->"
		head, rest, ok := strings.Cut(want, begin)
		require.True(t, ok, "%s has no place for the %s", page, title)
		_, tail, ok := strings.Cut(rest, end)
		require.True(t, ok)
		want = head + begin + table + end + tail
	}
	if os.Getenv(updateDocsVariable) != "" {
		require.NoError(t, os.WriteFile(filepath.Join("..", "..", page), []byte(want), 0o644))
		return
	}
	require.Equal(t, want, text, "the settings changed: run %s=1 go test ./cmd/gate -run OperationsPage", updateDocsVariable)
}

// Names of settings in the pages are names of settings.
func TestPagesNameOnlySettingsThatExist(t *testing.T) {
	known := append(settingNames(), testSettings...)
	for _, name := range secretNames(reflect.TypeFor[settings]()) {
		known = append(known, name+fileSuffix)
	}
	for _, e := range event.Types() {
		known = append(known, string(e.Type)) // some begin like a setting
	}
	for _, page := range docFiles {
		for _, name := range regexp.MustCompile(`\bGATE_[A-Z0-9_]*[A-Z0-9]\b`).FindAllString(readDoc(t, page), -1) {
			require.Contains(t, known, name, page)
		}
	}
}

var (
	linkTo    = regexp.MustCompile(`\]\(([^)]+)\)`)
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
	codeBlock = regexp.MustCompile("(?s)```[a-z]*\n(.*?)```")
	headline  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	filePath  = regexp.MustCompile(`^(docs|cmd|eventlog|commands|projections|sqlgate|http|fixtures)(/[A-Za-z0-9_.-]+)+$`)
)

func TestLinksAndPathsInPagesLeadSomewhere(t *testing.T) {
	makefile := readDoc(t, "Makefile")
	for _, page := range docFiles {
		text := readDoc(t, page)
		var anchors []string
		for _, h := range headline.FindAllStringSubmatch(text, -1) {
			anchors = append(anchors, "#"+strings.ReplaceAll(strings.ToLower(h[1]), " ", "-"))
		}
		for _, m := range linkTo.FindAllStringSubmatch(text, -1) {
			switch target := m[1]; {
			case strings.HasPrefix(target, "#"):
				require.Contains(t, anchors, target, page)
			case !strings.Contains(target, "://"):
				target, _, _ = strings.Cut(target, "#")
				require.FileExists(t, filepath.Join("..", "..", filepath.Dir(page), target), page)
			}
		}
		for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
			path := strings.TrimSuffix(strings.TrimSuffix(m[1], "/..."), "/")
			if filePath.MatchString(path) && !strings.Contains(makefile, path) { // a make target writes what it names
				_, err := os.Stat(filepath.Join("..", "..", path))
				require.NoError(t, err, page)
			}
		}
	}
}

// commandLines are the lines of code blocks and the code spans of a page.
func commandLines(text string) []string {
	var lines []string
	for _, m := range codeBlock.FindAllStringSubmatch(text, -1) {
		lines = append(lines, strings.Split(m[1], "\n")...)
	}
	for _, m := range codeSpan.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		lines = append(lines, m[1])
	}
	for i := range lines {
		lines[i], _, _ = strings.Cut(lines[i], " #")
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines
}

func TestCommandsInPagesExist(t *testing.T) {
	checked := 0
	for _, page := range docFiles {
		for _, line := range commandLines(readDoc(t, page)) {
			words := strings.Fields(line)
			if len(words) < 2 {
				continue
			}
			switch strings.TrimPrefix(words[0], "bin/") {
			case "make":
				require.Regexp(t, `(?m)^`+regexp.QuoteMeta(words[1])+`:`, readDoc(t, "Makefile"), "%s: %s", page, line)
			case "gate":
				requireCommand(t, page, words[1:])
			case "logverify":
				require.Contains(t, []string{"wal", "jsonl", "bundle", "receipt", "checkpoint"}, words[1], "%s: %s", page, line)
			default:
				continue
			}
			checked++
		}
	}
	require.Greater(t, checked, 20)
}

// requireCommand wants the subcommand to exist, and its flags.
func requireCommand(t *testing.T, page string, words []string) {
	t.Helper()
	if strings.HasPrefix(words[0], "-") || words[0] == strings.ToUpper(words[0]) {
		return
	}
	command, rest, err := (&app{}).rootCommand().Find(words)
	require.NoError(t, err, "%s: gate %v", page, words)
	for _, word := range rest {
		if name, ok := strings.CutPrefix(word, "--"); ok && name != "help" {
			name, _, _ = strings.Cut(name, "=")
			require.NotNil(t, command.Flags().Lookup(name), "%s: gate %v", page, words)
		}
	}
	if command.HasSubCommands() {
		require.Empty(t, rest, "%s: gate %v", page, words)
	}
}

// Alerts that look at fields and events which do not exist never ring.
func TestAlertsNameFiguresAndEventsThatExist(t *testing.T) {
	_, alerts, ok := strings.Cut(readDoc(t, "docs/OPERATIONS.md"), "## Alerts")
	require.True(t, ok)
	alerts, _, _ = strings.Cut(alerts, "\n## ")
	d, err := openAPI()
	require.NoError(t, err)
	found := 0
	for line := range strings.SplitSeq(alerts, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		spans := codeSpan.FindAllStringSubmatch(cells[1], -1)
		if len(spans) < 2 {
			continue
		}
		for _, span := range spans[1:] {
			switch schema := map[string]string{"/health": "Health", "/runtime/stats": "RuntimeStats"}[spans[0][1]]; {
			case schema != "":
				requireField(t, d, schema, span[1])
				found++
			case spans[0][1] == "/audit":
				requireEventType(t, strings.TrimPrefix(span[1], "event_type="))
				found++
			}
		}
	}
	require.GreaterOrEqual(t, found, 14)
}

func requireField(t *testing.T, d *contractDoc, schema, field string) {
	t.Helper()
	at := []string{"components", "schemas", schema}
	for name := range strings.SplitSeq(field, ".") {
		next := under(at, "properties", name)
		if d.object(next...) == nil {
			next = under(at, "additionalProperties")
			require.Contains(t, d.object(under(at, "propertyNames")...)["enum"], any(name), field)
		}
		at = next
	}
	require.NotNil(t, d.object(at...), field)
}

func requireEventType(t *testing.T, name string) {
	t.Helper()
	require.True(t, slices.ContainsFunc(event.Types(), func(s event.Spec) bool { return string(s.Type) == name }), name)
}

// A row about a threat is worth as much as the test that it names.
func TestThreatsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	written := map[string]bool{}
	require.NoError(t, filepath.WalkDir(filepath.Join("..", ".."), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllSubmatch(text, -1) {
			written[string(m[1])] = true
		}
		return err
	}))
	rows := 0
	for line := range strings.SplitSeq(readDoc(t, "docs/THREATS.md"), "\n") {
		named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(line, -1)
		for _, n := range named {
			require.True(t, written[n[1]], "%s is no test: %s", n[1], line)
		}
		if strings.HasPrefix(line, "| to ") {
			require.NotEmpty(t, named, line)
			rows++
		}
	}
	require.Greater(t, rows, 20)
}

// The steps and exit codes of the page are those of the program.
func TestOperationsPageTellsTheStepsAndExitCodes(t *testing.T) {
	text := readDoc(t, "docs/OPERATIONS.md")
	d, err := openAPI()
	require.NoError(t, err)
	steps, _ := d.object("components", "schemas", "Health", "properties", "startup_chain", "items", "properties", "step")["enum"].([]any)
	require.Len(t, steps, 8)
	for _, step := range steps {
		require.Contains(t, text, fmt.Sprintf("| `%s` |", step))
	}
	for _, code := range []int{exitOK, exitUsage, exitUnavailable, exitFatal, exitUntold, exitLocked, exitConfigured} {
		require.Contains(t, text, fmt.Sprintf("\n| %d |", code))
	}
}

// `gate config` and the page are made from the same tags, so what one lists the
// other does.
func TestConfigListsWhatThePageLists(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, exitConfigured, Run(context.Background(), []string{"config"}, streams{nil, &out, &errs}, nil), errs.String())
	text := readDoc(t, "docs/OPERATIONS.md")
	for _, name := range settingNames() {
		require.Contains(t, out.String(), name)
		require.Contains(t, text, "| `"+name+"` |")
	}
}

// The roles of the page can be made by the script that it names, and the writer cannot
// do what the page says it cannot.
func TestTheDatabaseRolesOfThePageWork(t *testing.T) {
	t.Parallel()
	require.Contains(t, readDoc(t, "docs/OPERATIONS.md"), "docs/database-role.sql")
	script := readDoc(t, "docs/database-role.sql")
	g := startShop(t)
	name, owner := g.value(t, "SELECT current_database()"), g.value(t, "SELECT current_user")
	suffix := strings.ToLower(rolesSuffix(name))
	statements := strings.NewReplacer("gate_writer", "w"+suffix, "gate_reader", "r"+suffix, `:"db"`, `"`+name+`"`, `:"schema"`, "public", `:"owner"`, `"`+owner+`"`).Replace(script)
	g.execute(t, statements)
	g.execute(t, "ALTER ROLE r"+suffix+" CREATEDB CONNECTION LIMIT 3")
	g.execute(t, statements) // again, which puts back what was changed
	require.Equal(t, "false 64", g.value(t, "SELECT concat_ws(' ', rolcreatedb::text, rolconnlimit) FROM pg_roles WHERE rolname = 'r"+suffix+"'"))
	defer g.execute(t, fmt.Sprintf("DROP OWNED BY w%s, r%s; DROP ROLE w%s, r%s", suffix, suffix, suffix, suffix))
	require.Equal(t, "true", g.value(t, "SELECT has_table_privilege('w"+suffix+"', 'orders', 'DELETE')::text"))
	require.Equal(t, "false", g.value(t, "SELECT has_table_privilege('r"+suffix+"', 'orders', 'DELETE')::text"))
	require.Equal(t, "false", g.value(t, "SELECT has_schema_privilege('w"+suffix+"', 'public', 'CREATE')::text"))
	require.Equal(t, "false", g.value(t, "SELECT has_database_privilege('w"+suffix+"', current_database(), 'TEMPORARY')::text"))
	list := regexp.MustCompile("(?s)```sql\n(.*?);\n *```").FindStringSubmatch(readDoc(t, "docs/OPERATIONS.md"))
	require.NotNil(t, list)
	alike := "SELECT coalesce(string_agg(f.oid::text, ', '), 'none') FROM (" + strings.ReplaceAll(list[1], "gate_writer", "w"+suffix) + ") f"
	require.Equal(t, "none", g.value(t, alike))
	g.execute(t, "CREATE FUNCTION public.round(double precision, int) RETURNS double precision LANGUAGE sql RETURN 1; CREATE FUNCTION public.mine() RETURNS int LANGUAGE sql RETURN 1")
	require.Equal(t, "none", g.value(t, alike), "the script leaves nobody else with the right to execute what its owner makes")
	g.execute(t, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO w"+suffix)
	require.Equal(t, "round(double precision,integer)", g.value(t, alike))
	require.Equal(t, "2", g.value(t, "SELECT count(*)::text FROM pg_roles WHERE 'log_min_messages=log' = ANY(rolconfig) AND 'temp_file_limit=4GB' = ANY(rolconfig) AND rolname IN ('w"+suffix+"', 'r"+suffix+"')"))
}

// rolesSuffix makes names of roles, which all databases of a server share, the
// test's own.
func rolesSuffix(database string) string {
	return "_" + regexp.MustCompile(`[^a-z0-9]`).ReplaceAllString(strings.ToLower(database), "_")
}

// Blocks for a shell are at least read by one without complaint.
func TestShellBlocksInPagesAreRead(t *testing.T) {
	t.Parallel()
	for _, page := range docFiles {
		for _, m := range regexp.MustCompile("(?s)```([a-z]*)\n(.*?)```").FindAllStringSubmatch(readDoc(t, page), -1) {
			if m[1] != "sh" && (m[1] != "" || !strings.Contains(m[2], "bin/")) {
				continue
			}
			shell := exec.Command("bash", "-n")
			shell.Stdin = strings.NewReader(m[2])
			out, err := shell.CombinedOutput()
			require.NoError(t, err, "%s:\n%s\n%s", page, m[2], out)
		}
	}
}

// The map of the house has a line for each room.
func TestArchitecturePageHasEveryRoom(t *testing.T) {
	text := readDoc(t, "docs/ARCHITECTURE.md")
	for room := range arrows {
		require.Contains(t, text, "\n| `"+room+"` |")
	}
}

// Only its owner may refresh a materialized view, and the writer owns nothing.
func TestAnApprovedRefreshRunsAsTheRoleForSchemaChanges(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, policy.Starting(""))
	name := d.value(t, "SELECT current_database()")
	writer := "w" + rolesSuffix(name)
	d.execute(t, "CREATE TABLE sales (amount int); CREATE MATERIALIZED VIEW totals AS SELECT sum(amount) AS total FROM sales; INSERT INTO sales VALUES (7);"+
		"CREATE ROLE "+writer+" LOGIN PASSWORD 'w'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO "+writer)
	defer d.execute(t, "DROP OWNED BY "+writer+"; DROP ROLE "+writer)
	as, err := url.Parse(d.database)
	require.NoError(t, err)
	as.User = url.UserPassword(writer, "w")
	g := startGate(t, d, "GATE_DATABASE_URL="+as.String(), "GATE_DATABASE_DDL_URL="+d.database)
	refresh := ask("REFRESH MATERIALIZED VIEW totals")
	ran := g.query(t, refresh.with("approval_id", g.approved(t, refresh)))
	require.Equal(t, http.StatusOK, ran.status, "%s", ran.body)
	require.Equal(t, "7", d.value(t, "SELECT total::text FROM totals"))
}
