package pgexec

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"writegate/sqlgate/scram"
)

// setupTime bounds each exchange with the database while it is set up, waits for locks included.
const setupTime = 60 * time.Second

// SQLSTATEs that a person who sets up meets.
const (
	stateNoSuchDatabase = "3D000"
	stateBadPassword    = "28P01"
	stateBadLogin       = "28000"
	stateNotPermitted   = "42501"
	stateReadOnly       = "25006"
)

// ErrNotPermitted says that a login may not make roles.
var ErrNotPermitted = errors.New("not permitted")

// A Setup is a connection of somebody who sets a gate up: of the database's owner, of a
// superuser, or of a role that is there already. A gate that serves has none.
type Setup struct {
	pg       *pgconn.PgConn
	Database string
	Role     string
	Version  string
}

// OpenSetup logs in. The errors name the setting, what is wrong and what to do, and no password.
func OpenSetup(ctx context.Context, setting, raw string, files TLSConfig) (*Setup, error) {
	cfg := Config{TLS: files}.withDefaults()
	files, err := cfg.TLS.withURLs([][2]string{{setting, raw}})
	if err != nil {
		return nil, err
	}
	set, err := files.load(time.Now())
	if err != nil {
		return nil, err
	}
	login, err := parseURL(setting, raw, set, cfg.ConnectTimeout)
	if err != nil {
		return nil, err
	}
	login.ConnectTimeout = cmp.Or(login.ConnectTimeout, cfg.ConnectTimeout)
	pg, err := dial(ctx, login)
	if err != nil {
		return nil, fmt.Errorf("%s: no connection to the database: %w%s", setting, err, loginAdvice(err))
	}
	s := &Setup{pg: pg, Database: cmp.Or(login.Database, login.User), Role: login.User, Version: pg.ParameterStatus("server_version")}
	if major := leadingInt(s.Version); major < oldestMajor || major > newestMajor {
		s.Close()
		return nil, fmt.Errorf("%s leads to PostgreSQL %s, and the gate works with PostgreSQL %d to %d", setting, s.Version, oldestMajor, newestMajor)
	}
	if encoding := pg.ParameterStatus("server_encoding"); encoding != "UTF8" {
		s.Close()
		return nil, fmt.Errorf("the database %s has the encoding %s, and the gate works with UTF8 alone: make one with CREATE DATABASE ... TEMPLATE template0 ENCODING 'UTF8', and bring the tables there with pg_dump", s.Database, encoding)
	}
	// What somebody has made in another schema is not called by its plain name, and what the
	// database's owner may have set for every session (ALTER DATABASE ... SET role) does not hold.
	if err := s.run(ctx, "SET client_encoding TO 'UTF8'; SET search_path TO pg_catalog, pg_temp; SET ROLE NONE; SET standard_conforming_strings TO on; SET password_encryption TO 'scram-sha-256'"); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// loginAdvice says what to look at behind a login that failed.
func loginAdvice(err error) string {
	var e *pgconn.PgError
	switch {
	case !errors.As(err, &e):
		if strings.Contains(err.Error(), "authentication") {
			return "\nThe gate logs in with SCRAM alone: pg_hba.conf must ask for scram-sha-256, or the URL has no password where the server asks for none"
		}
		return "\nIs the server running, and are host and port right?"
	case e.Code == stateBadPassword:
		return "\nThe password is not the role's"
	case e.Code == stateNoSuchDatabase:
		return "\nThe server has no database of that name"
	case e.Code == stateBadLogin:
		return "\nThe server's pg_hba.conf lets this role not in from here"
	}
	return ""
}

// Refused reports whether an error of OpenSetup is a login that the server refused.
func Refused(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == stateBadPassword || e.Code == stateBadLogin)
}

// AsksForNothing reports whether an error of OpenSetup is that of a URL with a password at a
// server that let it in without asking for one.
func AsksForNothing(err error) bool {
	var e *pgconn.PgError
	return !errors.As(err, &e) && strings.Contains(err.Error(), "server did not complete authentication")
}

// Close ends the connection.
func (s *Setup) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.pg.Close(ctx) // nothing is open on it
}

func (s *Setup) run(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	_, err := s.pg.Exec(ctx, sql).ReadAll()
	return err
}

// ask reads the one JSON value that a query answers with.
func (s *Setup) ask(ctx context.Context, into any, sql string, params ...string) error {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	found, err := askOne(ctx, s.pg, into, sql, params...)
	if err == nil && !found {
		err = errors.New("the server answered with no row where there is one")
	}
	return err
}

// askOne reads the one JSON value that a query answers with, or nothing where it has no row.
func askOne(ctx context.Context, pg *pgconn.PgConn, into any, sql string, params ...string) (found bool, err error) {
	values := make([][]byte, len(params))
	for i, p := range params {
		values[i] = []byte(p)
	}
	result := pg.ExecParams(ctx, sql, values, nil, nil, nil).Read()
	if result.Err != nil || len(result.Rows) == 0 {
		return false, result.Err
	}
	if len(result.Rows) > 1 {
		return false, fmt.Errorf("the server answered with %d rows where there is one", len(result.Rows))
	}
	return true, json.Unmarshal(result.Rows[0][0], into)
}

// A Table is a table of the users' as one sets up a gate: what a policy can name, and what
// the gate's two roles may do there.
type Table struct {
	Schema  string   `json:"schema"`
	Name    string   `json:"name"`
	Owner   string   `json:"owner"`
	Key     []string `json:"key"`     // columns of the primary key; none: there is none
	Columns []string `json:"columns"` // in their order
	Reads   bool     `json:"reads"`   // by the role for reads
	Writes  bool     `json:"writes"`  // by the role that writes
}

// tablesSQL has the tables that are written by their own name: no partitions, which their
// table stands for, and none that an extension brought.
const tablesSQL = `
SELECT COALESCE(json_agg(json_build_object('schema', n.nspname, 'name', c.relname, 'owner', pg_get_userbyid(c.relowner),
  'key', (SELECT COALESCE(json_agg(a.attname ORDER BY k.at), '[]') FROM pg_index AS i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, at)
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE i.indrelid = c.oid AND i.indisprimary AND k.at <= i.indnkeyatts),
  'columns', (SELECT COALESCE(json_agg(a.attname ORDER BY a.attnum), '[]') FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  'reads', COALESCE((SELECT has_schema_privilege(r.oid, n.oid, 'USAGE') AND has_table_privilege(r.oid, c.oid, 'SELECT') FROM pg_roles AS r WHERE r.rolname = $1), false),
  'writes', COALESCE((SELECT has_schema_privilege(r.oid, n.oid, 'USAGE') AND has_table_privilege(r.oid, c.oid, 'INSERT') AND has_table_privilege(r.oid, c.oid, 'UPDATE') AND has_table_privilege(r.oid, c.oid, 'DELETE')
    FROM pg_roles AS r WHERE r.rolname = $2), false))
  ORDER BY n.nspname, c.relname), '[]')::text
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND NOT c.relispartition AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%'
 AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')`

// Tables lists the tables of the users', by schema and name.
func (s *Setup) Tables(ctx context.Context, reader, writer string) (tables []Table, err error) {
	if err = s.ask(ctx, &tables, tablesSQL, reader, writer); err != nil {
		return nil, fmt.Errorf("the tables of the database %s could not be listed: %w", s.Database, err)
	}
	return tables, nil
}

// Roles tells which of the roles named there are already.
func (s *Setup) Roles(ctx context.Context, names ...string) (found []string, err error) {
	const sql = "SELECT COALESCE(json_agg(rolname ORDER BY rolname), '[]')::text FROM pg_roles WHERE rolname = ANY ($1)"
	if err = s.ask(ctx, &found, sql, textArray(names)); err != nil {
		return nil, fmt.Errorf("the roles of the server could not be listed: %w", err)
	}
	return found, nil
}

// A NewRoles says which roles to make, and over what.
type NewRoles struct {
	Script         string   // docs/database-role.sql
	Reader, Writer string   // their names
	Password       string   // of both
	Schemas        []string // that they reach
	Tables         []Table  // of the database; their owners make the tables to come
}

// roleName is the form of the names of roles that MakeRoles makes: they stand in SQL as they are.
var roleName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// RoleName is an error where MakeRoles makes no role of the name.
func RoleName(name string) error {
	if !roleName.MatchString(name) || strings.HasPrefix(name, "pg_") {
		return fmt.Errorf("%q is no name for a role here: small letters, digits and underscores, 63 at most, not beginning with pg_", name)
	}
	return nil
}

// MakeRoles makes both roles in one transaction, as the script says, and gives them their
// password: its verifier goes to the server, whose log shows no more. Statements of the script
// that the login may not run are left out and told; what the roles come to is for the caller to
// look at. Errors: ErrNotPermitted where the login may make no roles.
func (s *Setup) MakeRoles(ctx context.Context, r NewRoles) (refused []string, err error) {
	for _, name := range []string{r.Reader, r.Writer} {
		if err := RoleName(name); err != nil {
			return nil, err
		}
	}
	verifier, err := scram.New(r.Password, scram.NewSalt(), scram.Iterations)
	if err != nil {
		return nil, err
	}
	if err := s.run(ctx, "BEGIN; SET LOCAL lock_timeout = '10s'; SET LOCAL statement_timeout = '50s'"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.run(context.WithoutCancel(ctx), "ROLLBACK") // a lost connection rolls back, too
		}
	}()
	for _, schema := range r.Schemas {
		var owners []string
		for _, t := range r.Tables {
			if t.Schema == schema && !slices.Contains(owners, t.Owner) {
				owners = append(owners, t.Owner)
			}
		}
		if len(owners) == 0 {
			owners = []string{s.Role}
		}
		for _, owner := range owners {
			names := strings.NewReplacer("gate_reader", r.Reader, "gate_writer", r.Writer,
				`:"db"`, quoteName(s.Database), `:"schema"`, quoteName(schema), `:"owner"`, quoteName(owner))
			for _, statement := range scriptStatements(r.Script) { // first, since a name may have line breaks in it
				line, _, _ := strings.Cut(statement, "\n")
				line = names.Replace(line)
				denied, err := s.attempt(ctx, line, names.Replace(statement))
				if err != nil {
					return nil, err
				}
				if denied && !slices.Contains(refused, line) {
					if strings.HasPrefix(line, "DO ") {
						return nil, fmt.Errorf("%w: %s may make no roles", ErrNotPermitted, s.Role)
					}
					refused = append(refused, line)
				}
			}
		}
	}
	for _, name := range []string{r.Reader, r.Writer} {
		denied, err := s.attempt(ctx, "ALTER ROLE ... PASSWORD", "ALTER ROLE "+name+" LOGIN PASSWORD '"+verifier.String()+"'")
		if err != nil {
			return nil, err
		}
		if denied {
			return nil, fmt.Errorf("%w: %s may give %s no password", ErrNotPermitted, s.Role, name)
		}
	}
	return refused, s.run(ctx, "COMMIT")
}

// attempt runs a statement, and reports one that the login may not run, of which nothing is left.
// Errors call it what shown says.
func (s *Setup) attempt(ctx context.Context, shown, statement string) (denied bool, err error) {
	err = s.run(ctx, "SAVEPOINT one")
	if err != nil {
		return false, err
	}
	err = s.run(ctx, statement)
	var e *pgconn.PgError
	switch {
	case err == nil:
		return false, s.run(ctx, "RELEASE one")
	case errors.As(err, &e) && e.Code == stateNotPermitted:
		return true, s.run(ctx, "ROLLBACK TO one; RELEASE one")
	case errors.As(err, &e) && e.Code == stateReadOnly:
		return false, errors.New("the server takes no writes: it is a standby or read-only, and roles are made at the primary")
	}
	return false, fmt.Errorf("%s: %w", shown, err)
}

// scriptStatements are those of a script in which each begins at the first column, and its
// other lines do not, but for the one that ends it.
func scriptStatements(script string) (statements []string) {
	var open []string
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		if len(open) == 0 && (line == "" || strings.HasPrefix(line, "--")) {
			continue
		}
		open = append(open, line)
		if !strings.HasPrefix(line, " ") && strings.HasSuffix(line, ";") {
			statements, open = append(statements, strings.Join(open, "\n")), nil
		}
	}
	if len(open) > 0 {
		statements = append(statements, strings.Join(open, "\n"))
	}
	return statements
}

// Roles looks at what the role of each pool may do.
func (db *DB) Roles(ctx context.Context) (reports []RoleReport, err error) {
	for _, p := range db.pools() {
		l, err := p.acquire(ctx)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		if p.role != nil {
			reports = append(reports, *p.role)
		}
		p.mu.Unlock()
		l.release()
	}
	if len(reports) != len(db.pools()) {
		return nil, errors.New("what the roles may do could not be looked at")
	}
	return reports, nil
}
