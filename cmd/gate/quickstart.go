package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"writegate/agentctl"
	"writegate/docs"
	"writegate/http/controlplane"
	"writegate/sqlgate/pgexec"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

// ownerURLSetting names the variable with the database's owner.
const ownerURLSetting = "GATE_DATABASE_OWNER_URL"

// Files of the folder of a quick start. The operator's token is written first, and says whose
// folder it is; the settings are written last, and are the reader's from then on.
const (
	quickSettings = "gate.env"
	quickOperator = "operator-token"
	quickAgent    = "agent-token"
	quickWriter   = "database-url"
	quickReader   = "database-read-url"
)

// A quickstart is one run of the command.
type quickstart struct {
	app     *app
	dir     string // absolute
	roles   string // what the names of the two roles begin with
	agent   string
	schemas []string // none: found
	yes     bool

	setup *pgexec.Setup // of the database's owner, or of a role that is there; nil until needed
}

func (a *app) quickstartCommand() *cobra.Command {
	q := quickstart{app: a}
	var schemas string
	cmd := &cobra.Command{
		Use: "quickstart [DATABASE_URL]", Short: "Put a gate in front of a database of yours, with a first policy and an agent", Args: cobra.MaximumNArgs(1),
		Long: `Put a gate in front of a database of yours, and run it: make the two roles with few rights that it
works by, a first policy for the tables that are there, a signing key, an operator's token and an
agent with its token, and print the lines for the agent's client of the Model Context Protocol.

DATABASE_URL is that of a superuser, or of the owner of the tables who may make roles. It makes the
roles and is not kept. Given as an argument others on this machine can read it; ` + ownerURLSetting + `,
` + ownerURLSetting + `_FILE, or the question that is asked without either keep it to yourself. Where roles for
the gate are there already, set GATE_DATABASE_URL and GATE_DATABASE_READ_URL to theirs instead.

All is kept in one folder, for your account alone. Run it again to start the gate again: what is there
stays as it is, edited or not, and what is missing is made.`,
		Example: "  gate quickstart postgres://postgres@localhost/app\n  gate quickstart --dir /srv/gate --schema public,billing --agent invoice-bot",
		RunE: func(c *cobra.Command, args []string) error {
			for name := range strings.SplitSeq(schemas, ",") {
				if name = strings.TrimSpace(name); name != "" {
					q.schemas = append(q.schemas, name)
				}
			}
			err := q.run(c.Context(), args)
			if coded := new(exitError); err != nil && !errors.As(err, &coded) { // the command line was not at fault
				err = exitWith(exitFailed, err)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&q.dir, "dir", "gate", "folder for everything of this gate")
	cmd.Flags().StringVar(&q.roles, "roles", "gate", "what the names of the database roles begin with: gate makes gate_reader and gate_writer")
	cmd.Flags().StringVar(&q.agent, "agent", "agent", "name of the first agent")
	cmd.Flags().StringVar(&schemas, "schema", "", "schemas that the gate reaches, separated by commas, that of plain names first; default public, or the only one with tables")
	cmd.Flags().BoolVar(&q.yes, "yes", false, "do not ask before roles are made")
	return cmd
}

func (q *quickstart) say(what, format string, args ...any) {
	fmt.Fprintf(q.app.out, "%-10s %s\n", what, visible(fmt.Sprintf(format, args...)))
}

func (q *quickstart) file(name string) string { return filepath.Join(q.dir, name) }

// has tells whether a file is there. One that is empty was begun by a run that was interrupted.
func (q *quickstart) has(name string) bool {
	st, err := os.Lstat(q.file(name))
	return err == nil && st.Size() > 0
}

// run makes what is missing, step by step, and serves.
func (q *quickstart) run(ctx context.Context, args []string) error {
	a := q.app
	var faults []string
	if a.environ, faults = withSecretFiles(a.environ); len(faults) > 0 {
		return exitWith(exitConfigured, faultList("the settings", faults))
	}
	for _, name := range []string{q.roles + "_reader", q.roles + "_writer"} {
		if err := pgexec.RoleName(name); err != nil {
			return exitWith(exitUsage, fmt.Errorf("--roles: %w", err))
		}
	}
	owner, _ := lookUp(a.environ, ownerURLSetting)
	if len(args) > 0 {
		owner = args[0]
	}
	if err := ownerURL(owner); owner != "" && err != nil {
		return exitWith(exitUsage, err)
	}
	held, err := q.openFolder()
	if err != nil {
		return err
	}
	defer held.Close()
	kept, err := q.readSettings()
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	for _, pair := range kept {
		a.environ = withDefault(a.environ, pair)
	}
	a.environ = slices.DeleteFunc(a.environ, func(pair string) bool { return strings.HasPrefix(pair, ownerURLSetting+"=") })
	if _, err := keptSecret(q.file(quickOperator), randomText); err != nil {
		return err
	}
	if err := q.addressesFree(); err != nil {
		return err
	}
	if !q.has(quickSettings) {
		if err := q.prepare(ctx, owner); err != nil {
			return err
		}
	} else {
		q.say("Settings", "%s is there, and is used as it is", q.file(quickSettings))
	}
	return q.serve(ctx)
}

// openFolder finds or makes the folder, and holds it.
func (q *quickstart) openFolder() (*os.File, error) {
	var err error
	if q.dir, err = filepath.Abs(q.dir); err != nil {
		return nil, err
	}
	if strings.ContainsAny(q.dir, "'\n\r") {
		return nil, exitWith(exitUsage, errors.New("--dir: a quote or a line break in the folder's name can't stand in its file of settings"))
	}
	entries, err := os.ReadDir(q.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(q.dir, 0o700); err != nil {
			return nil, err
		}
		q.say("Folder", "%s is made, for your account alone", q.dir)
	case err != nil:
		return nil, err
	case len(entries) > 0 && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == quickOperator }):
		return nil, exitWith(exitConfigured, fmt.Errorf("%s holds %s and is no folder of a quick start: name an empty one, or one that is to be made, with --dir", q.dir, counted(len(entries), "file")))
	default:
		takeFromOthers(q.dir)
		if err := q.isOurs(); err != nil {
			return nil, exitWith(exitConfigured, err)
		}
		q.say("Folder", "%s is there; what it holds stays", q.dir)
	}
	held, err := holdFolder(q.dir)
	if errors.Is(err, errHeld) {
		return nil, exitWith(exitLocked, fmt.Errorf("a gate that `gate quickstart` started is running in this folder: stop it, or name another with --dir: %w", err))
	}
	return held, err
}

// isOurs refuses a folder that another account has prepared: it would know the token of the
// operator, and could put other settings in its place.
func (q *quickstart) isOurs() error {
	return filepath.WalkDir(q.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st, known := info.Sys().(*syscall.Stat_t); known && int(st.Uid) != os.Geteuid() {
			return fmt.Errorf("%s belongs to another account, who may know what is in it and change it: name a folder of your own with --dir", path)
		}
		return nil
	})
}

// settingLine is a line of the file of settings, which a shell reads too.
var settingLine = regexp.MustCompile(`^([A-Z][A-Z0-9_]*)=(?:'([^']*)'|"([^"$` + "`" + `\\]*)"|([^\s'"$` + "`" + `\\]*))\s*$`)

// readSettings reads the file of settings, where there is one.
func (q *quickstart) readSettings() (environ []string, err error) {
	text, err := readAtMost(q.file(quickSettings), maxSecretFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		found := settingLine.FindStringSubmatch(line)
		if found == nil {
			return nil, fmt.Errorf("%s line %d: it must be NAME=value or NAME='value'", q.file(quickSettings), i+1)
		}
		environ = append(environ, found[1]+"="+found[2]+found[3]+found[4])
	}
	environ, faults := withSecretFiles(environ)
	if len(faults) > 0 {
		return nil, faultList("the settings of "+q.file(quickSettings), faults)
	}
	return environ, nil
}

// addressesFree finds an address that another program has before anything is made.
func (q *quickstart) addressesFree() error {
	plane, given := lookUp(q.app.environ, "CONTROL_PLANE_LISTEN_ADDR")
	if !given {
		plane = controlplane.DefaultListenAddr
	}
	gate, given := lookUp(q.app.environ, "GATE_HTTP_LISTEN_ADDR")
	if !given {
		gate = "127.0.0.1:6543"
	}
	return addressesFree(map[string]string{"GATE_HTTP_LISTEN_ADDR": gate, "CONTROL_PLANE_LISTEN_ADDR": plane})
}

// prepare makes roles, policy, keys and settings, each where it is missing.
func (q *quickstart) prepare(ctx context.Context, owner string) error {
	defer func() {
		if q.setup != nil {
			q.setup.Close()
		}
	}()
	environ := slices.Clone(q.app.environ)
	tables, err := q.prepareRoles(ctx, owner, &environ)
	if err != nil {
		return err
	}
	if err := q.checkRoles(ctx, environ); err != nil {
		return err
	}
	if err := q.writePolicy(ctx, environ, tables); err != nil {
		return err
	}
	return q.writeSettings(environ, tables)
}

// ownerURL is an error where a text is no URL of a database, or is read as another one than whoever
// wrote it meant, as with signs of a password that would have to be encoded. It shows nothing of the text.
func ownerURL(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err == nil && u.Scheme != "postgres" && u.Scheme != "postgresql":
		return errors.New("the URL of the database must begin with postgres://")
	case err != nil || u.Fragment != "" || strings.HasSuffix(raw, "#") || strings.ContainsAny(strings.TrimPrefix(u.EscapedPath(), "/"), "/@:"):
		return errors.New("the URL of the database can't be read as postgres://user:password@host:port/database: in user, password and database the signs @ : / ? # % and blanks are written %40 %3A %2F %3F %23 %25 and %20")
	}
	return nil
}

// upstream are the settings of TLS to the database that fit a URL: a server on this machine, and
// one whose URL says so, is reached without.
func (q *quickstart) upstream(raw string, environ *[]string) (pgexec.TLSConfig, error) {
	mode := pgexec.TLSVerifyFull
	if u, err := url.Parse(raw); err == nil {
		ip := net.ParseIP(u.Hostname())
		local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback() || pgexec.UsesSocket(raw)
		if said := u.Query().Get("sslmode"); said == pgexec.TLSDisable || said == "" && local {
			mode = pgexec.TLSDisable
		}
		if root := u.Query().Get("sslrootcert"); root != "" {
			if root, err = filepath.Abs(root); err != nil {
				return pgexec.TLSConfig{}, err
			}
			*environ = withDefault(*environ, "GATE_TLS_UPSTREAM_CA_BUNDLE_PATH="+root)
			mode = pgexec.TLSVerifyFull
		}
	}
	*environ = withDefault(*environ, "GATE_TLS_UPSTREAM_MODE="+mode)
	s, err := loadSettings(*environ, time.Now())
	if err != nil {
		return pgexec.TLSConfig{}, exitWith(exitConfigured, err)
	}
	return s.databaseConfig().TLS, nil
}

// prepareRoles finds or makes the roles, and gives the tables that they reach.
func (q *quickstart) prepareRoles(ctx context.Context, owner string, environ *[]string) ([]pgexec.Table, error) {
	reader, writer := q.roles+"_reader", q.roles+"_writer"
	given, theirs := lookUp(*environ, "GATE_DATABASE_URL")
	made := q.has(quickWriter) && q.has(quickReader)
	switch {
	case theirs:
		read, both := lookUp(*environ, "GATE_DATABASE_READ_URL")
		if !both {
			return nil, exitWith(exitConfigured, errors.New("GATE_DATABASE_URL is set, so roles for the gate are there: set GATE_DATABASE_READ_URL to the one for reads as well, or leave it out and give the owner's URL, and both are made"))
		}
		for name, text := range map[string]string{quickWriter: given, quickReader: read} {
			if _, err := keptSecret(q.file(name), func() string { return text }); err != nil {
				return nil, err
			}
		}
	case !made && owner == "":
		var err error
		if owner, err = q.app.readSecret("URL of the database, as its owner or a superuser (postgres://user:password@host:port/database): "); err != nil {
			return nil, err
		}
		if owner == "" {
			return nil, exitWith(exitUsage, errors.New("the URL of the database is missing: give it as the argument, in "+ownerURLSetting+" or in the file that "+ownerURLSetting+"_FILE names"))
		}
		if err := ownerURL(owner); err != nil {
			return nil, exitWith(exitUsage, err)
		}
	}
	login, setting := owner, "DATABASE_URL"
	if made || theirs {
		urls := [2]string{}
		for i, name := range []string{quickWriter, quickReader} {
			text, err := keptText(q.file(name))
			if err != nil {
				return nil, err
			}
			urls[i] = text
		}
		*environ = withDefault(withDefault(*environ, "GATE_DATABASE_URL="+urls[0]), "GATE_DATABASE_READ_URL="+urls[1])
		login, setting, reader, writer = urls[0], "GATE_DATABASE_URL", pgexec.RoleOf(urls[1]), pgexec.RoleOf(urls[0])
	}
	files, err := q.upstream(login, environ)
	if err != nil {
		return nil, err
	}
	if q.setup, err = pgexec.OpenSetup(ctx, setting, login, files); err != nil {
		if u, parsed := url.Parse(login); parsed == nil && strings.Contains(err.Error(), "GATE_TLS_UPSTREAM_CA_BUNDLE_PATH is empty") {
			err = fmt.Errorf("%w\n%s is not this machine, so it is reached by TLS: sslrootcert=FILE in the URL names the CA of its certificate, and sslmode=disable does without", err, u.Hostname())
		}
		return nil, err
	}
	q.say("Database", "%s, PostgreSQL %s, as %s", q.setup.Database, q.setup.Version, q.setup.Role)
	tables, err := q.setup.Tables(ctx, reader, writer)
	if err != nil {
		return nil, err
	}
	if tables, err = q.reached(tables); err != nil {
		return nil, err
	}
	if made || theirs {
		q.say("Roles", "%s for reads and %s for writes are there, and stay as they are", reader, writer)
	} else {
		if err := q.makeRoles(ctx, owner, reader, writer, files, tables, environ); err != nil {
			return nil, err
		}
		all, err := q.setup.Tables(ctx, reader, writer)
		if err != nil {
			return nil, err
		}
		if tables, err = q.reached(all); err != nil {
			return nil, err
		}
	}
	unread, unwritten := 0, 0
	for _, t := range tables {
		if !t.Reads {
			unread++
		}
		if !t.Writes {
			unwritten++
		}
	}
	if unread == len(tables) {
		return nil, fmt.Errorf("%s may read none of the tables: who owns them grants it SELECT, as docs/database-role.sql does, and this is run again", reader)
	}
	if unread > 0 || unwritten > 0 {
		q.say("", "note: of the %d tables %s may not read %d, and %s may not write %d", len(tables), reader, unread, writer, unwritten)
	}
	return tables, nil
}

// reached are the tables of the schemas that the gate is to reach.
func (q *quickstart) reached(tables []pgexec.Table) (reached []pgexec.Table, err error) {
	var found []string
	count := map[string]int{}
	for _, t := range tables {
		if count[t.Schema]++; count[t.Schema] == 1 {
			found = append(found, t.Schema)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the database %s has no tables: make them first, or look whether the URL names the right database", q.setup.Database)
	}
	if len(q.schemas) == 0 {
		switch {
		case count["public"] > 0:
			q.schemas = []string{"public"}
		case len(found) == 1:
			q.schemas = found
		default:
			return nil, exitWith(exitUsage, fmt.Errorf("the tables lie in several schemas (%s) and none in public: name those that the gate is to reach with --schema, that of plain names first", strings.Join(found, ", ")))
		}
		var others []string
		for _, s := range found {
			if !slices.Contains(q.schemas, s) {
				others = append(others, s)
			}
		}
		if len(others) > 0 {
			q.say("", "note: tables lie in %s, too; the gate does not reach them without --schema", strings.Join(others, ", "))
		}
	}
	for _, s := range q.schemas {
		if count[s] == 0 {
			return nil, exitWith(exitUsage, fmt.Errorf("--schema: the schema %q has no tables; there are %s", s, strings.Join(found, ", ")))
		}
	}
	if strings.ContainsAny(q.schemas[0], ",\"'\n\r") {
		return nil, exitWith(exitUsage, fmt.Errorf("--schema: plain names can't mean the schema %q, since a comma, a quote or a line break can't stand in GATE_SEARCH_PATH: rename it, or name another one first", q.schemas[0]))
	}
	for _, t := range tables {
		if slices.Contains(q.schemas, t.Schema) {
			reached = append(reached, t)
		}
	}
	return reached, nil
}

// makeRoles makes both roles, unless others have their names.
func (q *quickstart) makeRoles(ctx context.Context, owner, reader, writer string, files pgexec.TLSConfig, tables []pgexec.Table, environ *[]string) error {
	again := q.has("database-password")
	password, err := keptSecret(q.file("database-password"), randomText)
	if err != nil {
		return err
	}
	urls := map[string]string{}
	for file, role := range map[string]string{quickReader: reader, quickWriter: writer} {
		u, err := url.Parse(owner)
		if err != nil {
			return err // it was read a moment ago
		}
		u.User = url.UserPassword(role, password)
		query := u.Query()
		query.Del("user")
		query.Del("password")
		query.Del("sslrootcert")
		query.Del("sslmode")
		if u.Path == "" || u.Path == "/" {
			u.Path = "/" + q.setup.Database
		}
		u.RawQuery = query.Encode()
		urls[file] = u.String()
	}
	there, err := q.setup.Roles(ctx, reader, writer)
	if err != nil {
		return err
	}
	theirs := errors.New("the role " + strings.Join(there, " and ") + " is on this server already, and its password is not in " + q.file("database-password") +
		": it may be another gate's, and is not changed. Give its URLs in GATE_DATABASE_URL and GATE_DATABASE_READ_URL, or other names with --roles")
	if len(there) == 2 { // made by a run that did not come to its end?
		mine, err := pgexec.OpenSetup(ctx, "the URL of "+writer, urls[quickWriter], files)
		switch {
		case err == nil:
			mine.Close()
		case pgexec.Refused(err) || pgexec.AsksForNothing(err) && !again:
			return theirs
		case !pgexec.AsksForNothing(err):
			return err
		}
	} else if len(there) == 1 {
		return theirs
	}
	q.say("Roles", "%s (reads) and %s (reads and writes) are to be made in %s, with rights on the tables of %s and none on anything else;", reader, writer, q.setup.Database, strings.Join(q.schemas, ", "))
	q.say("", "everybody (PUBLIC) loses TEMPORARY on the database, CREATE in the schema public and EXECUTE on functions of %s: roles that live by those rights need them by name", strings.Join(q.schemas, ", "))
	if err := q.app.confirmed("Make them?", q.yes); err != nil {
		return err
	}
	refused, err := q.setup.MakeRoles(ctx, pgexec.NewRoles{Script: docs.DatabaseRole, Reader: reader, Writer: writer, Password: password, Schemas: q.schemas, Tables: tables})
	switch {
	case errors.Is(err, pgexec.ErrNotPermitted):
		return fmt.Errorf("%w. Run this as a superuser; or have one run docs/database-role.sql and give both roles a password, and set GATE_DATABASE_URL and GATE_DATABASE_READ_URL", err)
	case err != nil:
		return fmt.Errorf("the roles could not be made, and nothing of them was: %w", err)
	}
	q.say("", "made; their password is in %s", q.file("database-password"))
	for _, statement := range refused {
		q.say("", "note: %s may not run: %s", q.setup.Role, statement)
	}
	mine, err := pgexec.OpenSetup(ctx, "the URL of "+writer, urls[quickWriter], files)
	switch {
	case err == nil:
		mine.Close()
	case pgexec.AsksForNothing(err): // and the gate sends no password to a server that asks for none
		q.say("", "note: this server lets in whoever names a role, and asks for no password (trust in pg_hba.conf). So does it the gate, and anybody beside it:")
		q.say("", "before more than a try, have it ask for scram-sha-256, and put the password into the URLs in %s and %s", q.file(quickReader), q.file(quickWriter))
		for file, role := range map[string]string{quickReader: reader, quickWriter: writer} {
			u, err := url.Parse(urls[file])
			if err != nil {
				return err // it was written above
			}
			u.User = url.User(role)
			urls[file] = u.String()
		}
	default:
		return err
	}
	for file, text := range urls {
		if _, err := keptSecret(q.file(file), func() string { return text }); err != nil {
			return err
		}
	}
	*environ = withDefault(withDefault(*environ, "GATE_DATABASE_URL="+urls[quickWriter]), "GATE_DATABASE_READ_URL="+urls[quickReader])
	return nil
}

// checkRoles looks at the roles as a gate in production does.
func (q *quickstart) checkRoles(ctx context.Context, environ []string) error {
	s, err := loadSettings(withDefault(environ, "GATE_SEARCH_PATH="+q.schemas[0]), time.Now())
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	db, err := pgexec.Open(s.databaseConfig(), slog.New(slog.DiscardHandler))
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	defer db.Close()
	reports, err := db.Roles(ctx)
	if err != nil {
		return fmt.Errorf("the roles do not work: %w", cmp.Or(errors.Unwrap(err), err))
	}
	var denied []string
	for _, r := range reports {
		if len(r.Deny) > 0 {
			denied = append(denied, fmt.Sprintf("the role %s for the %s %s", r.Role, r.Pool, strings.Join(r.Deny, ", ")))
		}
		for _, warning := range r.Warn {
			q.say("", "note: %s: %s", r.Role, warning)
		}
	}
	if len(denied) > 0 {
		return fmt.Errorf("%s. A gate with such a role holds less than it says: take these rights away, or let this command make roles (--roles)", strings.Join(denied, "; "))
	}
	return nil
}

// writePolicy writes the first policy where no policy lies yet.
func (q *quickstart) writePolicy(ctx context.Context, environ []string, tables []pgexec.Table) error {
	dir := q.policies(environ)
	if _, err := os.Lstat(filepath.Join(dir, policyfolder.DefaultManifest)); !errors.Is(err, fs.ErrNotExist) {
		q.say("Policy", "%s holds one, which stays as it is", dir)
		return err
	}
	var named []policy.StartingTable
	for _, t := range tables {
		one := policy.StartingTable{Schema: t.Schema, Name: t.Name, Key: t.Key}
		if len(t.Columns) > 0 {
			one.Column = t.Columns[0]
		}
		named = append(named, one)
	}
	document, count, err := policy.StartingFor(q.setup.Database, named)
	if err != nil {
		return err
	}
	s, err := loadSettings(withDefault(environ, "GATE_SEARCH_PATH="+q.schemas[0]), time.Now())
	if err != nil {
		return exitWith(exitConfigured, err)
	}
	classifier, err := newClassifier(s, 0)
	if err != nil {
		return err
	}
	defer classifier.Close()
	report, err := judgeText(ctx, s, classifier, &policyText{document: document, shown: "the first policy"})
	if err != nil {
		return err
	}
	if !report.Valid {
		return fmt.Errorf("the first policy for these tables is not valid; nothing was written: %w", report.Err())
	}
	unfinished := dir + ".new" // a run that is interrupted leaves no half of a policy in its place
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := policyfolder.Create(unfinished, policyfolder.DefaultManifest, document); err != nil {
		return err
	}
	if err := os.Rename(unfinished, dir); err != nil {
		return fmt.Errorf("the first policy could not be put in its place, where no other file may be: %w", err)
	}
	q.say("Policy", "%s: reads pass, writes of %s ask a person, the rest is blocked; look into %s", report.PolicyVersion, counted(count, "table"), dir)
	if left := len(tables) - count; left > 0 {
		q.say("", "note: the names of %d more can't stand in it; writes of those are blocked", left)
	}
	return nil
}

func (q *quickstart) policies(environ []string) string {
	dir, given := lookUp(environ, "GATE_POLICY_DIR")
	if !given {
		dir = q.file("policies")
	}
	return dir
}

// keyColumns are the names that mean one row wherever they are a column: each table that has
// one has it as its whole primary key.
func keyColumns(tables []pgexec.Table) []string {
	var keys []string
	other := map[string]bool{}
	for _, t := range tables {
		for _, c := range t.Columns {
			if len(t.Key) != 1 || t.Key[0] != c {
				other[c] = true
			}
		}
		if len(t.Key) == 1 && !slices.Contains(keys, t.Key[0]) {
			keys = append(keys, t.Key[0])
		}
	}
	return slices.DeleteFunc(keys, func(c string) bool { return other[c] || c == "id" || !plainColumn.MatchString(c) })
}

var plainColumn = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// writeSettings makes keys and writes the file of settings, the last of what is prepared.
func (q *quickstart) writeSettings(environ []string, tables []pgexec.Table) error {
	var entries []string
	if given, ok := lookUp(environ, "GATE_PROJECT_KEYS"); ok {
		entries = append(entries, given)
	}
	for _, key := range []struct{ file, label, scopes string }{{"project-key", "quickstart", ""}, {"control-plane-project-key", "control-plane", planeScopes}} {
		secret, err := keptSecret(q.file(key.file), func() string { return agentctl.NewSecret(agentctl.KeyPrefix) })
		if err != nil {
			return err
		}
		entries = append(entries, agentctl.Entry(secret, agentctl.DefaultProject, key.label, key.scopes))
	}
	environ, err := demoKey(environ, q.dir)
	if err != nil {
		return err
	}
	plane, moved := lookUp(environ, "CONTROL_PLANE_LISTEN_ADDR")
	listens := cmp.Or(plane, controlplane.DefaultListenAddr)
	if _, encrypted := lookUp(environ, "GATE_TLS_CERT_PATH"); !encrypted && !strings.HasSuffix(listens, ":0") {
		environ = withDefault(environ, "GATE_CONTROL_PLANE_URL=http://"+reachable(listens))
	}
	for _, pair := range []string{
		"GATE_HTTP_LISTEN_ADDR=127.0.0.1:6543", "GATE_SEARCH_PATH=" + q.schemas[0], "GATE_KEY_COLUMNS=" + strings.Join(keyColumns(tables), ","),
		"GATE_POLICY_DIR=" + q.file("policies"), "GATE_AUDIT_WAL_PATH=" + q.file("audit.wal"), "GATE_AUDIT_LOG_PATH=" + q.file("audit.log"), "GATE_APPROVAL_DB_PATH=" + q.file("approvals.db"),
		"GATE_MCP_ENABLED=true", "GATE_PLAN_ESTIMATES=true", "GATE_CATALOG_REFRESH_SECONDS=60",
	} {
		environ = withDefault(environ, pair)
	}
	keys := "GATE_PROJECT_KEYS"
	environ = append(slices.DeleteFunc(environ, func(pair string) bool { return strings.HasPrefix(pair, keys+"=") }), keys+"="+strings.Join(entries, ","))
	secretFiles := map[string]string{"GATE_DATABASE_URL": quickWriter, "GATE_DATABASE_READ_URL": quickReader, "GATE_OPERATOR_TOKEN": quickOperator}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Settings of this gate. They are yours: `gate quickstart --dir '%s'` starts it with them, and so does\n# `set -a; . '%s'; gate serve`. `gate config` tells what each of them and the others mean.\n", q.dir, q.file(quickSettings))
	secrets := secretNames(reflect.TypeFor[settings]())
	for _, s := range (&settings{}).describe(nil) {
		value, given := lookUp(environ, s.Name)
		file, kept := secretFiles[s.Name]
		switch {
		case kept:
			fmt.Fprintf(&b, "%s='%s'\n", s.Name+fileSuffix, q.file(file))
		case !given || value == "" || s.Name != keys && slices.Contains(secrets, s.Name): // those of commands, or not ours to write down
		case strings.ContainsAny(value, "'\n\r"):
			return exitWith(exitConfigured, fmt.Errorf("%s: a quote or a line break can't stand in %s", s.Name, quickSettings))
		default:
			fmt.Fprintf(&b, "%s='%s'\n", s.Name, value)
		}
	}
	if moved && !strings.ContainsAny(plane, "'\n\r") {
		fmt.Fprintf(&b, "CONTROL_PLANE_LISTEN_ADDR='%s'\n", plane)
	}
	if token, given := lookUp(environ, "GATE_OPERATOR_TOKEN"); given {
		if err := os.WriteFile(q.file(quickOperator), []byte(token+"\n"), 0o600); err != nil {
			return err
		}
	}
	if err := os.WriteFile(q.file(quickSettings), b.Bytes(), 0o600); err != nil {
		return err
	}
	q.say("Keys", "a signing key for evidence, an operator's token and project keys are in the folder")
	q.say("Settings", "%s; change them there", q.file(quickSettings))
	kept, err := q.readSettings()
	if err != nil {
		return err
	}
	q.app.environ = slices.DeleteFunc(q.app.environ, func(pair string) bool { return strings.HasPrefix(pair, keys+"=") })
	for _, pair := range kept {
		q.app.environ = withDefault(q.app.environ, pair)
	}
	return nil
}

// serve runs gate and dashboard, registers the agent where it has no token yet, and tells what
// to do.
func (q *quickstart) serve(ctx context.Context) error {
	a := q.app
	under, end := context.WithCancel(ctx)
	defer end()
	var work sync.WaitGroup
	var failed error
	var plane *demoPlane
	tell := a.ready
	a.ready = func(addr string) {
		work.Go(func() { // the gate answers when this is over
			var err error
			if plane, err = q.introduce(under, addr); err != nil {
				failed = err
				end()
			} else if tell != nil {
				tell(addr)
			}
		})
	}
	err := a.serve(under)
	end()
	work.Wait()
	if plane != nil {
		plane.stop()
	}
	return cmp.Or(failed, err)
}

// introduce is what is to be done once the gate answers.
func (q *quickstart) introduce(ctx context.Context, addr string) (*demoPlane, error) {
	a := q.app
	_, encrypted := lookUp(a.environ, "GATE_TLS_CERT_PATH")
	base := map[bool]string{false: "http://", true: "https://"}[encrypted] + reachable(addr)
	if a.refusing != nil {
		q.say("Gate", "%s REFUSES EVERY STATEMENT and only answers reads: %s (%s). docs/OPERATIONS.md tells what to do", base, a.refusing.Message, a.refusing.Step)
		return nil, nil
	}
	q.say("Gate", "listens at %s", base)
	if err := q.register(ctx, base); err != nil {
		return nil, err
	}
	var plane *demoPlane
	if !encrypted { // one over TLS has an operator who starts the dashboard as well
		key, err := keptText(q.file("control-plane-project-key"))
		if err == nil {
			plane, err = a.startPlane(ctx, addr, q.dir, key)
		}
		if err != nil {
			q.say("Dashboard", "could not be started: %v", err)
		} else {
			q.say("Dashboard", "%s; log in as %s with the password in %s", plane.address, planeUser, q.file("control-plane-password"))
		}
	}
	return plane, q.explain(a.out, base)
}

// register makes the agent, and its token where there is none.
func (q *quickstart) register(ctx context.Context, base string) error {
	if q.has(quickAgent) {
		q.say("Agent", "its token is in %s, and stays", q.file(quickAgent))
		return nil
	}
	s, err := loadSettings(q.app.environ, time.Now())
	if err != nil {
		return err
	}
	client, err := q.app.gateClient(s, gateAddress{url: base})
	if err != nil {
		return err
	}
	key, err := keptText(q.file("project-key"))
	if err != nil {
		return err
	}
	client.header, client.secret = "X-Api-Key", key
	var id, token string
	err = client.each(ctx, "/v1/agents", url.Values{"name": {q.agent}}, func(item json.RawMessage) error {
		var b agentctl.AgentBody
		err := json.Unmarshal(item, &b)
		if b.Name == q.agent {
			id = b.ID
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("the agents of the gate could not be listed: %w", err)
	}
	if id == "" {
		var made agentctl.RegisteredBody
		if _, err := client.call(ctx, http.MethodPost, "/v1/agents", map[string]any{"name": q.agent, "type": "worker"}, &made); err != nil {
			return fmt.Errorf("the agent could not be registered: %w", err)
		}
		if made.Credentials == nil || made.Credentials.Token == nil {
			return errors.New("the gate registered the agent and gave no token; `gate agents token` issues one")
		}
		id, token = made.ID, *made.Credentials.Token
	} else {
		var issued agentctl.TokenBody
		if _, err := client.call(ctx, http.MethodPost, agentPath(id)+"/tokens", map[string]any{}, &issued); err != nil {
			return fmt.Errorf("the agent got no token: %w", err)
		}
		if issued.Token == nil {
			return errors.New("the gate gave no token for the agent")
		}
		token = *issued.Token
	}
	if err := os.WriteFile(q.file(quickAgent), []byte(token+"\n"), 0o600); err != nil {
		return err
	}
	q.say("Agent", "%s (%s); its token is in %s", q.agent, id, q.file(quickAgent))
	return nil
}

// explain prints the lines for the agent's client, and what a person does next.
func (q *quickstart) explain(w io.Writer, base string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	line, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"database": map[string]any{
		"command": self, "args": []string{"mcp", "--url", base}, "env": map[string]string{"GATE_AGENT_TOKEN_FILE": q.file(quickAgent)}}}})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, `
Put this into the configuration of your agent's MCP client (docs/AGENTS.md has the form for clients over HTTP):

  %s

Ask it for something that writes, such as "add a row to ...". It reads, proposes, and waits: approve in the dashboard, or with

  export GATE_OPERATOR_TOKEN=$(cat '%s')
  %s approvals list --url %s
  %[3]s approvals approve APPROVAL --url %[4]s

Ctrl-C stops the gate; the same command starts it again.
`, line, q.file(quickOperator), self, base)
	return err
}
