package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// libraryTables are of an application that nobody made for a gate: two schemas, keys of every
// kind, names that need quotes, a view, a partition, a table without a key.
const libraryTables = `
CREATE TABLE books (isbn text PRIMARY KEY, title text NOT NULL, copies int NOT NULL DEFAULT 1);
CREATE TABLE readers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL);
CREATE TABLE loans (book text NOT NULL REFERENCES books, reader bigint NOT NULL REFERENCES readers ON DELETE CASCADE, since date NOT NULL DEFAULT current_date, PRIMARY KEY (book, reader));
CREATE TABLE "Odd ""Name" (a int);
CREATE TABLE visits (at timestamptz NOT NULL, reader bigint) PARTITION BY RANGE (at);
CREATE TABLE visits_2026 PARTITION OF visits FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
CREATE VIEW lent AS SELECT book, count(*) FROM loans GROUP BY book;
CREATE SCHEMA billing; CREATE TABLE billing.fines (fine_id bigint PRIMARY KEY, reader bigint NOT NULL, cents int NOT NULL);
INSERT INTO books VALUES ('978-1', 'Dune'), ('978-2', 'Emma'); INSERT INTO readers (name) VALUES ('Ada');
INSERT INTO billing.fines VALUES (1, 1, 250)`

// A quickWorld is a database of somebody's, and the folder that a quick start is to fill.
type quickWorld struct {
	gateDir
	roles string // what the names of its roles begin with
	bare  string // the URL of the database, without user and password
}

// newQuickWorld makes the database from a template that holds an application.
func newQuickWorld(t *testing.T) *quickWorld {
	t.Helper()
	template := postgres.ForTest(t)
	postgres.ExecuteURL(t, template, libraryTables)
	u, err := url.Parse(template)
	require.NoError(t, err)
	return newQuickDatabase(t, "from_", "TEMPLATE "+strings.TrimPrefix(u.Path, "/"))
}

// newQuickDatabase makes a database as options of CREATE DATABASE say, of a name that begins so.
func newQuickDatabase(t *testing.T, name, options string) *quickWorld {
	t.Helper()
	u, err := url.Parse(postgres.ForTest(t))
	require.NoError(t, err)
	name += u.Path[max(len(u.Path)-30, 1):]
	u.Path = "/postgres"
	server := u.String()
	postgres.ExecuteURL(t, server, fmt.Sprintf(`CREATE DATABASE "%s" %s`, strings.ReplaceAll(name, `"`, `""`), options))
	u.Path = "/" + name
	w := &quickWorld{gateDir: gateDir{path: filepath.Join(t.TempDir(), "its gate"), database: u.String()}, roles: "q" + strings.ToLower(rolesSuffix(name))}
	u.User = nil
	w.bare = u.String()
	t.Cleanup(func() {
		postgres.DropDatabase(t, server, name)
		require.NoError(t, postgres.TryURL(context.WithoutCancel(t.Context()), server, fmt.Sprintf("DROP ROLE IF EXISTS %s_reader, %[1]s_writer, %[1]s_weak", w.roles)))
	})
	return w
}

// as is the URL of the database for another role.
func (w *quickWorld) as(user, password string) string {
	return strings.Replace(w.bare, "://", "://"+user+":"+password+"@", 1)
}

// command is the command as a user gives it.
func (w *quickWorld) command(args []string, environ ...string) *exec.Cmd {
	cmd := exec.Command("gate", append([]string{"quickstart", "--dir", w.path, "--roles", w.roles}, args...)...)
	cmd.Env = append(cleanEnvironment(), "GATE_HTTP_LISTEN_ADDR=127.0.0.1:0", "CONTROL_PLANE_LISTEN_ADDR=127.0.0.1:0")
	cmd.Env = append(cmd.Env, environ...)
	return cmd
}

// A quickRun is a gate that the command started.
type quickRun struct {
	server *mcp.CommandTransport // what its line for a client starts
	base   string
	output *lockedBuffer
	stop   func()
	kill   func() // -9
}

var (
	quickLine      = regexp.MustCompile(`(?m)^  (\{"mcpServers".*\})$`)
	quickAddress   = regexp.MustCompile(`(?m)^Gate +listens at (\S+)$`)
	quickDashboard = regexp.MustCompile(`(?m)^Dashboard +http://([^;]+);`)
	quickEnd       = "the same command starts it again."
)

// start runs the command until it has said all, and takes the line for a client from it.
func (w *quickWorld) start(t *testing.T, args []string, environ ...string) *quickRun {
	t.Helper()
	r := &quickRun{output: &lockedBuffer{}}
	cmd := w.command(args, environ...)
	cmd.Stdout, cmd.Stderr = r.output, r.output
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stopped := false
	r.kill = func() {
		stopped = true
		require.NoError(t, cmd.Process.Kill())
		<-ended
	}
	r.stop = func() {
		if !stopped {
			stopped = true
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			require.NoError(t, <-ended, "%s", r.output)
		}
	}
	require.Eventually(t, func() bool {
		select {
		case err := <-ended:
			stopped = true
			t.Errorf("it ended: %v\n%s", err, r.output)
			return true
		default:
			return strings.Contains(r.output.String(), quickEnd)
		}
	}, 2*startPatience, pollEvery, "%s", r.output)
	require.False(t, stopped)
	t.Cleanup(r.stop)
	var config struct {
		Servers map[string]struct {
			Command string
			Args    []string
			Env     map[string]string
		} `json:"mcpServers"`
	}
	line := quickLine.FindStringSubmatch(r.output.String())
	require.NotNil(t, line, "%s", r.output)
	require.NoError(t, json.Unmarshal([]byte(line[1]), &config))
	server := config.Servers["database"]
	program := exec.Command(server.Command, server.Args...)
	for name, value := range server.Env {
		program.Env = append(program.Env, name+"="+value)
	}
	r.server = &mcp.CommandTransport{Command: program}
	r.base = quickAddress.FindStringSubmatch(r.output.String())[1]
	return r
}

// gate runs another command of a person's against it, as the text says.
func (r *quickRun) gate(t *testing.T, w *quickWorld, args ...string) string {
	t.Helper()
	token, err := os.ReadFile(w.file(quickOperator))
	require.NoError(t, err)
	cmd := exec.Command("gate", append(args, "--url", r.base)...)
	cmd.Env = append(cleanEnvironment(), "GATE_OPERATOR_TOKEN="+strings.TrimSpace(string(token)))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// files are the texts of what the folder holds and the gate does not write by itself.
func (w *quickWorld) files(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	require.NoError(t, filepath.WalkDir(w.path, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			if err == nil && strings.HasPrefix(e.Name(), "approvals.db") {
				return fs.SkipDir
			}
			return err
		}
		rel, _ := filepath.Rel(w.path, path)
		if !strings.HasPrefix(rel, "audit") && !strings.HasPrefix(rel, "approvals") {
			text, err := os.ReadFile(path)
			texts[rel] = string(text)
			return err
		}
		return nil
	}))
	return texts
}

// From a database that somebody has to an agent's first approved write, with no other
// knowledge than what the command says.
func TestQuickstartFromADatabaseToTheFirstApprovedWrite(t *testing.T) {
	t.Parallel()
	w := newQuickWorld(t)
	run := w.start(t, []string{"--yes", "--agent", "librarian", "--schema", "public,billing"}, ownerURLSetting+"="+w.database)
	require.Contains(t, run.output.String(), "writes of 5 tables ask a person")
	require.Contains(t, run.output.String(), "the names of 1 more can't stand in it")
	require.Contains(t, run.output.String(), w.roles+"_reader (reads) and "+w.roles+"_writer")
	require.Empty(t, forOthers(t, w.path, func(string, fs.FileMode) bool { return false }))
	for name, text := range w.files(t) {
		if !strings.HasPrefix(name, "policies") && name != quickSettings && !strings.HasSuffix(name, ".pem") {
			require.NotContains(t, run.output.String(), strings.TrimSpace(text), "what %s holds is not shown", name)
		}
		require.NotContains(t, text, w.database, "the owner's URL is not kept")
	}

	s := connected(t, run.server, "", make(chan any, 100))
	found := use(t, s, "schema_search", map[string]any{"words": "books"})
	require.Equal(t, "completed", found.Status, "%s", found.raw)
	require.Contains(t, string(found.raw), `"update_by_key":"REQUIRE_APPROVAL"`)
	read := use(t, s, "sql", calling("SELECT title FROM books ORDER BY isbn"))
	require.Equal(t, "completed", read.Status, "%s", read.raw)
	require.Len(t, read.Rows, 2)
	require.Equal(t, "completed", use(t, s, "sql", calling("SELECT cents FROM billing.fines")).Status)
	require.Equal(t, "completed", use(t, s, "sql", calling("SELECT * FROM lent")).Status)
	require.Equal(t, "filter-required", use(t, s, "sql", calling("DELETE FROM loans")).RuleID)
	for _, sql := range []string{"DROP TABLE books", "CREATE TABLE more (id int)", "GRANT SELECT ON books TO PUBLIC", `INSERT INTO "Odd ""Name" VALUES (1)`, "VACUUM", "SELECT pg_sleep(1)"} {
		require.Equal(t, "blocked", use(t, s, "sql", calling(sql)).Status, sql)
	}
	writing := calling("UPDATE books SET copies = 2 WHERE isbn = '978-1'")
	asked := use(t, s, "sql", writing)
	require.Equal(t, "pending_approval", asked.Status, "%s", asked.raw)
	require.Equal(t, "writes-ask", asked.RuleID)
	require.Contains(t, run.gate(t, w, "approvals", "list"), asked.ApprovalID)
	run.gate(t, w, "approvals", "approve", asked.ApprovalID, "--yes")
	require.Equal(t, "approved", use(t, s, "approval_wait", map[string]any{"approval_id": asked.ApprovalID, "seconds": 60}).Status)
	writing["approval_id"] = asked.ApprovalID
	require.Equal(t, "completed", use(t, s, "sql", writing).Status)
	require.Equal(t, "2", w.value(t, "SELECT copies FROM books WHERE isbn = '978-1'"))
	require.NoError(t, s.Close())

	// The same again: what is there stays, and what somebody has changed, too.
	running := w.command([]string{"--yes"})
	out, err := running.CombinedOutput()
	require.Equal(t, exitLocked, running.ProcessState.ExitCode(), "%s %v", out, err)
	run.stop()
	settings := w.files(t)[quickSettings]
	require.Contains(t, settings, "GATE_KEY_COLUMNS='fine_id,isbn'", "%s", settings)
	require.NoError(t, os.WriteFile(w.file(quickSettings), []byte(settings+"GATE_MAX_RESULT_ROWS=1\n"), 0o600))
	w.execute(t, "REVOKE DELETE ON books FROM "+w.roles+"_writer")
	before := w.files(t)
	run = w.start(t, nil)
	require.Equal(t, before, w.files(t))
	require.Equal(t, "false", w.value(t, "SELECT has_table_privilege('"+w.roles+"_writer', 'books', 'DELETE')::text"))
	s = connected(t, run.server, "", make(chan any, 100))
	require.Equal(t, "result_too_large", use(t, s, "sql", calling("SELECT title FROM books")).ErrorCode, "its settings are those of the file")
	require.NoError(t, s.Close())
	plane := quickDashboard.FindStringSubmatch(run.output.String())
	require.NotNil(t, plane, "%s", run.output)
	run.kill()
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", plane[1])
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, startPatience, pollEvery, "its dashboard ends with it, and leaves the address to the next")

	// What is missing is made, and nothing else.
	require.NoError(t, os.Remove(w.file(quickAgent)))
	require.NoError(t, os.Remove(w.file(quickSettings)))
	run = w.start(t, []string{"--agent", "librarian", "--schema", "public,billing"})
	after := w.files(t)
	require.NotEqual(t, before[quickAgent], after[quickAgent])
	require.Contains(t, run.output.String(), "holds one, which stays as it is")
	require.Contains(t, run.output.String(), "are there, and stay as they are")
	delete(before, quickAgent)
	delete(before, quickSettings)
	delete(after, quickAgent)
	require.Equal(t, settings, after[quickSettings])
	delete(after, quickSettings)
	require.Equal(t, before, after)
	s = connected(t, run.server, "", make(chan any, 100))
	require.Equal(t, "completed", use(t, s, "sql", calling("SELECT title FROM books")).Status)
}

// What can be wrong is said with what to do, before anything is made of what depends on it.
func TestQuickstartSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	w := newQuickWorld(t)
	w.execute(t, fmt.Sprintf("CREATE ROLE %[1]s_weak LOGIN PASSWORD 'weak'", w.roles))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "letters.txt"), []byte("mine"), 0o600))
	empty := postgres.ForTest(t)
	elsewhere, err := url.Parse(w.database)
	require.NoError(t, err)
	elsewhere.Path += "_not"
	for name, c := range map[string]struct {
		args    []string
		environ string
		code    int
		says    string
	}{
		"no URL":              {nil, "", exitUsage, "the URL of the database is missing"},
		"no URL of that form": {[]string{"mysql://root@localhost/app"}, "", exitUsage, "must begin with postgres://"},
		"signs in a password": {[]string{"postgres://boss:p@ss/w:rd #1@127.0.0.1:1/odd"}, "", exitUsage, "are written %40 %3A"},
		"a slash in it":       {[]string{"postgres://boss:pass/w@127.0.0.1:1/odd"}, "", exitUsage, "are written %40 %3A"},
		"no such sign":        {[]string{"postgres://boss:100%zz@127.0.0.1:1/odd"}, "", exitUsage, "are written %40 %3A"},
		"another machine":     {[]string{"postgres://u:p@192.0.2.1/app"}, "", exitFailed, "192.0.2.1 is not this machine, so it is reached by TLS"},
		"no name for roles":   {[]string{"--roles", "r\u00f6le", w.database}, "", exitUsage, "--roles: "},
		"nobody answers":      {[]string{"postgres://u:p@" + closed.Addr().String() + "/app"}, "", exitFailed, "Is the server running"},
		"wrong password":      {[]string{w.as(w.roles+"_weak", "wrong")}, "", exitFailed, "The password is not the role's"},
		"no such database":    {[]string{elsewhere.String()}, "", exitFailed, "no database of that name"},
		"no tables":           {[]string{empty}, "", exitFailed, "has no tables"},
		"no such schema":      {[]string{"--schema", "nowhere", w.database}, "", exitUsage, `the schema "nowhere" has no tables; there are billing, public`},
		"no TLS":              {[]string{strings.Replace(w.database, "?", "?x=", 1) + "?sslmode=require"}, "", exitFailed, "sslmode"},
		"may make no roles":   {[]string{"--yes", w.as(w.roles+"_weak", "weak")}, "", exitFailed, "may make no roles. Run this as a superuser"},
		"nobody says yes":     {[]string{w.database}, "", exitFailed, "nobody answered; use --yes"},
		"a folder of others":  {[]string{"--dir", full, w.database}, "", exitConfigured, "is no folder of a quick start"},
		"the port is taken":   {[]string{w.database}, "GATE_HTTP_LISTEN_ADDR=" + taken.Addr().String(), exitUnavailable, "another program listens there"},
		"and the dashboard's": {[]string{w.database}, "CONTROL_PLANE_LISTEN_ADDR=" + taken.Addr().String(), exitUnavailable, "CONTROL_PLANE_LISTEN_ADDR"},
		"half of the URLs":    {nil, "GATE_DATABASE_URL=" + w.database, exitConfigured, "set GATE_DATABASE_READ_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			one := &quickWorld{gateDir: gateDir{path: filepath.Join(t.TempDir(), "gate")}, roles: w.roles}
			cmd := one.command(c.args, c.environ)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "%s", out)
			require.Equal(t, c.code, cmd.ProcessState.ExitCode(), "%s", out)
			require.Contains(t, string(out), c.says)
			require.NoFileExists(t, one.file(quickSettings))
			u, _ := url.Parse(w.database)
			password, _ := u.User.Password()
			require.NotContains(t, string(out), password)
			require.Equal(t, "0", w.value(t, "SELECT count(*) FROM pg_roles WHERE rolname IN ('"+w.roles+"_reader', '"+w.roles+"_writer')"))
		})
	}
	text, err := os.ReadFile(filepath.Join(full, "letters.txt"))
	require.NoError(t, err)
	require.Equal(t, "mine", string(text))

	if os.Geteuid() == 0 { // nobody else can give a file away
		one := &quickWorld{gateDir: gateDir{path: t.TempDir()}, roles: w.roles}
		require.NoError(t, os.WriteFile(one.file(quickOperator), []byte("a-token-that-somebody-else-knows-too\n"), 0o600))
		require.NoError(t, os.Chown(one.file(quickOperator), 65534, 65534))
		out, err := one.command([]string{"--yes", w.database}).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "belongs to another account")
		require.NoFileExists(t, one.file(quickSettings))
	}

	// Roles that are somebody's are not changed, and those that may do more are not taken.
	w.execute(t, fmt.Sprintf("CREATE ROLE %[1]s_reader LOGIN PASSWORD 'theirs'; CREATE ROLE %[1]s_writer LOGIN PASSWORD 'theirs'; GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO %[1]s_reader, %[1]s_writer", w.roles))
	out, err := w.command([]string{"--yes", w.database}).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "and is not changed")
	require.Equal(t, "true", w.value(t, "SELECT rolinherit::text FROM pg_roles WHERE rolname = '"+w.roles+"_writer'"))
	out, err = w.command(nil, "GATE_DATABASE_URL="+w.as(w.roles+"_writer", "theirs"), "GATE_DATABASE_READ_URL="+w.as(w.roles+"_reader", "theirs")).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "and is the role for reads. A gate with such a role holds less than it says")
	require.NoFileExists(t, w.file(quickSettings))
}

// Names that need quotes, and hold what would end a line or a statement, are names.
func TestQuickstartWithOddNames(t *testing.T) {
	t.Parallel()
	w := newQuickDatabase(t, "odd\n\"'; name ", "TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'")
	w.execute(t, `CREATE TABLE plain (id int PRIMARY KEY); INSERT INTO plain VALUES (1); CREATE TABLE "two
lines;" (id int PRIMARY KEY); CREATE SCHEMA "line
break;"; CREATE TABLE "line
break;".inner_one (id int PRIMARY KEY); INSERT INTO "line
break;".inner_one VALUES (7); CREATE ROLE "`+w.roles+`_weak
owner;"; ALTER TABLE "two
lines;" OWNER TO "`+w.roles+`_weak
owner;"`)
	t.Cleanup(func() {
		owner := `"` + w.roles + "_weak\nowner;\""
		require.NoError(t, postgres.TryURL(context.WithoutCancel(t.Context()), w.database, "DROP OWNED BY "+owner+" CASCADE; DROP ROLE "+owner))
	})
	out, err := w.command([]string{"--yes", "--schema", "line\nbreak;,public", w.database}).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "can't stand in GATE_SEARCH_PATH")
	require.Equal(t, "0", w.value(t, "SELECT count(*) FROM pg_roles WHERE rolname = '"+w.roles+"_reader'"), "before anything is made")

	run := w.start(t, []string{"--yes", "--schema", "public,line\nbreak;"}, ownerURLSetting+"="+w.database)
	require.NotContains(t, run.output.String(), "two\nlines", "%s", run.output)
	require.Contains(t, run.output.String(), "writes of 1 table ask a person")
	require.Contains(t, run.output.String(), "the names of 2 more can't stand in it")
	require.Equal(t, "true", w.value(t, `SELECT bool_and(has_table_privilege('`+w.roles+`_writer', c.oid, 'UPDATE'))::text FROM pg_class AS c WHERE relname IN ('plain', E'two\nlines;', 'inner_one')`))
	s := connected(t, run.server, "", make(chan any, 100))
	require.Equal(t, "completed", use(t, s, "sql", calling("SELECT id FROM plain")).Status)
	require.Equal(t, "completed", use(t, s, "sql", calling("SELECT id FROM \"line\nbreak;\".inner_one")).Status)
	require.Equal(t, "blocked", use(t, s, "sql", calling("DELETE FROM \"line\nbreak;\".inner_one WHERE id = 7")).Status)
}

// What a database is made of is looked at before anything is made in it.
func TestQuickstartOfDatabasesOfOtherTemplates(t *testing.T) {
	t.Parallel()
	for encoding, says := range map[string]string{
		"SQL_ASCII": "has the encoding SQL_ASCII, and the gate works with UTF8 alone",
		"LATIN1":    "has the encoding LATIN1, and the gate works with UTF8 alone",
		"UTF8":      "",
	} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			w := newQuickDatabase(t, strings.ToLower(encoding)+"_", "TEMPLATE template0 ENCODING '"+encoding+"' LOCALE 'C'")
			w.execute(t, libraryTables)
			if says == "" { // and what it sets for its clients is no harm
				w.execute(t, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET client_encoding = LATIN1', current_database()); END $$; CREATE TABLE \"Bücher\" (id int PRIMARY KEY)")
				run := w.start(t, []string{"--yes"}, ownerURLSetting+"="+w.database)
				s := connected(t, run.server, "", make(chan any, 100))
				require.Equal(t, "completed", use(t, s, "sql", calling(`SELECT * FROM "Bücher"`)).Status)
				require.Equal(t, "pending_approval", use(t, s, "sql", calling(`DELETE FROM "Bücher" WHERE id = 1`)).Status, "its name was read")
				return
			}
			out, err := w.command([]string{"--yes", w.database}).CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), says)
			require.Equal(t, "0", w.value(t, "SELECT count(*) FROM pg_roles WHERE rolname LIKE '"+w.roles+"%'"))
			require.NoFileExists(t, w.file(quickSettings))
		})
	}
}

// A server as a plain initdb makes it lets everybody in, and sends no question that a password
// answers: what is made there works all the same, and the first run says what that means.
func TestQuickstartAtAServerThatTrusts(t *testing.T) {
	t.Parallel()
	s := postgres.ClusterForTest(t, nil)
	require.NoError(t, s.Execute(t.Context(), "postgres", libraryTables))
	path := filepath.Join(s.Dir, "data", "pg_hba.conf")
	require.NoError(t, os.WriteFile(path, []byte("local all all trust\nhost all all 127.0.0.1/32 trust\n"), 0o600))
	require.NoError(t, s.Execute(t.Context(), "postgres", "SELECT pg_reload_conf()"))
	u, err := url.Parse(s.URL("postgres"))
	require.NoError(t, err)
	u.User = url.User(u.User.Username())
	w := &quickWorld{gateDir: gateDir{path: filepath.Join(t.TempDir(), "its gate"), database: u.String()}, roles: "quick"}
	require.Eventually(t, func() bool { return postgres.TryURL(t.Context(), u.String(), "SELECT 1") == nil }, startPatience, pollEvery)
	run := w.start(t, []string{"--yes", w.database})
	require.Contains(t, run.output.String(), "asks for no password (trust in pg_hba.conf)")
	require.Equal(t, "completed", use(t, connected(t, run.server, "", make(chan any, 100)), "sql", calling("SELECT count(*) FROM books")).Status)
	run.stop()

	for _, name := range []string{quickWriter, quickReader, quickSettings} { // as where it was killed before
		require.NoError(t, os.Remove(w.file(name)))
	}
	run = w.start(t, []string{"--yes", w.database})
	require.Equal(t, "completed", use(t, connected(t, run.server, "", make(chan any, 100)), "sql", calling("SELECT count(*) FROM books")).Status)
	run.stop()

	w.path = filepath.Join(t.TempDir(), "another gate")
	out, err := w.command([]string{"--yes", w.database}).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "it may be another gate's, and is not changed")
}

// One that is killed, at whatever it says that it is at, is run again and goes on, in the same
// folder and with the same roles.
func TestQuickstartThatIsInterrupted(t *testing.T) {
	t.Parallel()
	w := newQuickWorld(t)
	for _, at := range []string{"Folder ", "Database ", "Roles ", "  made; ", "Policy ", "Keys ", "Settings ", "Gate ", "Agent ", "Dashboard "} {
		cmd := w.command([]string{"--yes", "--schema", "public,billing"}, ownerURLSetting+"="+w.database)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		errs := &lockedBuffer{}
		cmd.Stderr = errs
		require.NoError(t, cmd.Start())
		late := time.AfterFunc(2*startPatience, func() { _ = cmd.Process.Kill() })
		said, came, lines := "", false, bufio.NewScanner(out)
		for !came && lines.Scan() {
			said += lines.Text() + "\n"
			came = strings.HasPrefix(lines.Text(), strings.TrimLeft(at, " ")) || strings.HasPrefix(at, " ") && strings.Contains(lines.Text(), at) ||
				slices.Contains([]string{"  made; ", "Policy ", "Keys "}, at) && strings.Contains(lines.Text(), quickEnd) // said once, and the run before came further than to the line at which it was killed
		}
		late.Stop()
		require.True(t, came, "%q never came: %s%s", at, said, errs)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for _, name := range []string{quickOperator, "database-password", quickWriter, quickReader, quickSettings, "project-key", quickAgent, "control-plane-password"} { // as a kill between the making of a file and its writing leaves them
		require.FileExists(t, w.file(name))
	}
	run := w.start(t, []string{"--yes", "--schema", "public,billing"}, ownerURLSetting+"="+w.database)
	s := connected(t, run.server, "", make(chan any, 100))
	require.Equal(t, "completed", use(t, s, "sql", calling("SELECT title FROM books")).Status)
	require.Equal(t, "pending_approval", use(t, s, "sql", calling("DELETE FROM billing.fines WHERE fine_id = 1")).Status)
	require.NoError(t, s.Close())
	run.stop()

	// What a run leaves that is killed while it writes a file.
	require.NoError(t, os.WriteFile(w.file(quickAgent), nil, 0o600))
	require.NoError(t, os.WriteFile(w.file(quickSettings), nil, 0o600))
	require.NoError(t, os.RemoveAll(w.file("policies")))
	require.NoError(t, os.Mkdir(w.file("policies.new"), 0o700))
	require.NoError(t, os.WriteFile(w.file("policies.new/half.yaml"), []byte("name"), 0o600))
	run = w.start(t, []string{"--schema", "public,billing"})
	s = connected(t, run.server, "", make(chan any, 100))
	require.Equal(t, "completed", use(t, s, "sql", calling("SELECT title FROM books")).Status)
	require.NoDirExists(t, w.file("policies.new"))
}

// Somebody who owns the tables and may make roles needs no superuser.
func TestQuickstartByAnOwnerWhoIsNoSuperuser(t *testing.T) {
	t.Parallel()
	w := newQuickWorld(t)
	w.execute(t, fmt.Sprintf("CREATE ROLE %[1]s_weak LOGIN CREATEROLE PASSWORD 'owner'; DO $$ DECLARE t record; BEGIN FOR t IN SELECT c.oid::regclass AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p', 'v') LOOP EXECUTE 'ALTER TABLE ' || t.name || ' OWNER TO %[1]s_weak'; END LOOP; END $$; ALTER SCHEMA public OWNER TO %[1]s_weak", w.roles))
	w.execute(t, "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || quote_ident(current_database()) || ' OWNER TO "+w.roles+"_weak'; END $$")
	run := w.start(t, []string{"--yes"}, ownerURLSetting+"="+w.as(w.roles+"_weak", "owner"))
	require.Contains(t, run.output.String(), "may not run: ALTER ROLE "+w.roles+"_reader SET temp_file_limit", "%s", run.output)
	require.Contains(t, run.output.String(), "note: tables lie in billing, too")
	s := connected(t, run.server, "", make(chan any, 100))
	require.Equal(t, "completed", use(t, s, "sql", calling("SELECT title FROM books")).Status)
	require.Equal(t, "db_query_failed", use(t, s, "sql", calling("SELECT cents FROM billing.fines")).ErrorCode, "the role does not reach it")
	require.Equal(t, "pending_approval", use(t, s, "sql", calling("DELETE FROM loans WHERE reader = 1")).Status)
}
