package pgexec

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"writegate/commands/fault"
)

// How often a pool's role is looked at: again after a change of it may have
// been made, and soon after one that must not be was found.
const (
	roleEvery = 10 * time.Minute
	roleAgain = 30 * time.Second
	callsLast = 2 // looks that may fail before what a text may call like a column is not known
)

// A RoleReport is what a pool's database role may do that it should not
// (design/execution-and-wire.md part 8). The texts are for the operator.
type RoleReport struct {
	Pool string // reader, writer or ddl
	Role string
	Deny []string // in production the pool is stopped
	Warn []string
}

func (r RoleReport) equal(o RoleReport) bool {
	return r.Role == o.Role && slices.Equal(r.Deny, o.Deny) && slices.Equal(r.Warn, o.Warn)
}

// roleSQL lists what a role should not be able to do: $1 is the pool, $2 the
// schemas. One row each, with the word deny or warn in front. Everything is
// asked about the role itself, of the server's own functions, so that it costs
// no rights. A superuser may do everything, so only that is said of one.
const roleSQL = `
WITH me AS (SELECT r.* FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user),
 spaces AS (SELECT n.oid, n.nspname FROM pg_catalog.pg_namespace AS n WHERE n.nspname = ANY ($2::pg_catalog.text[])),
 base AS (SELECT d.* FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()),
 dangerous(oid, rolname, danger) AS (
  SELECT g.oid, g.rolname, g.rolname LIKE 'pg\_%' OR g.rolsuper OR g.rolcreaterole OR g.rolcreatedb OR g.rolreplication OR g.rolbypassrls
  FROM pg_catalog.pg_roles AS g),
 found(level, what) AS (
  SELECT 'deny', a.word FROM me, LATERAL (VALUES (me.rolsuper, 'is SUPERUSER'), (me.rolcreaterole, 'has CREATEROLE'), (me.rolcreatedb, 'has CREATEDB'),
   (me.rolreplication, 'has REPLICATION'), (me.rolbypassrls, 'has BYPASSRLS')) AS a(has, word) WHERE a.has
  UNION ALL SELECT CASE WHEN g.danger THEN 'deny' ELSE 'warn' END, 'is a member of ' || g.rolname
   FROM me, dangerous AS g WHERE g.oid <> me.oid AND NOT me.rolsuper AND pg_catalog.pg_has_role(me.oid, g.oid, 'MEMBER')
  UNION ALL SELECT 'deny', 'may CREATE in the database' FROM me, base WHERE NOT me.rolsuper AND pg_catalog.has_database_privilege(base.oid, 'CREATE')
  UNION ALL SELECT 'deny', 'may CREATE in the schema ' || s.nspname
   FROM me, spaces AS s WHERE $1 <> 'ddl' AND NOT me.rolsuper AND pg_catalog.has_schema_privilege(s.oid, 'CREATE')
  UNION ALL SELECT 'deny', 'everybody (PUBLIC) may CREATE in the schema ' || s.nspname
   FROM spaces AS s WHERE pg_catalog.has_schema_privilege('public', s.oid, 'CREATE')
  UNION ALL SELECT 'deny', 'may write to ' || pg_catalog.count(*) || ' table(s), among them ' || pg_catalog.min(s.nspname || '.' || c.relname) || ', and is the role for reads'
   FROM me, spaces AS s JOIN pg_catalog.pg_class AS c ON c.relnamespace = s.oid
   WHERE $1 = 'reader' AND NOT me.rolsuper AND c.relkind IN ('r', 'p', 'v', 'f')
    AND (pg_catalog.has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') OR pg_catalog.has_any_column_privilege(c.oid, 'INSERT, UPDATE'))
   HAVING pg_catalog.count(*) > 0
  UNION ALL SELECT DISTINCT 'deny', 'may EXECUTE functions of dblink'
   FROM me, pg_catalog.pg_extension AS e JOIN pg_catalog.pg_depend AS d ON d.refobjid = e.oid AND d.deptype = 'e' AND d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass
   WHERE e.extname = 'dblink' AND NOT me.rolsuper AND pg_catalog.has_function_privilege(d.objid, 'EXECUTE')
  UNION ALL SELECT 'warn', 'may make TEMPORARY tables' FROM me, base WHERE NOT me.rolsuper AND pg_catalog.has_database_privilege(base.oid, 'TEMPORARY')
  UNION ALL SELECT 'warn', 'owns ' || pg_catalog.count(*) || ' object(s): an owner may switch off triggers and row security'
   FROM me, pg_catalog.pg_shdepend AS o JOIN base ON o.dbid IN (0, base.oid)
   WHERE $1 <> 'ddl' AND o.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND o.refobjid = me.oid AND o.deptype = 'o' HAVING pg_catalog.count(*) > 0
  UNION ALL SELECT 'warn', 'the server runs with ' || s.name || '=' || s.setting FROM pg_catalog.pg_settings AS s
   WHERE (s.name IN ('fsync', 'full_page_writes', 'track_counts', 'synchronous_commit') AND s.setting = 'off')
    OR (s.name = 'max_prepared_transactions' AND s.setting <> '0') OR (s.name = 'password_encryption' AND s.setting = 'md5')
  UNION ALL SELECT 'warn', 'fills the log of the server with what its errors quote, and with statements (ALTER ROLE ' || pg_catalog.quote_ident(me.rolname) || ' SET log_min_messages = log, and log_min_error_statement = fatal)' FROM me
   WHERE $1 <> 'ddl' AND (pg_catalog.current_setting('log_min_messages') NOT IN ('log', 'fatal', 'panic') OR pg_catalog.current_setting('log_min_error_statement') NOT IN ('fatal', 'panic'))
  UNION ALL SELECT 'warn', 'has settings of its own: ' || pg_catalog.string_agg(c, ', ')
   FROM me, base, pg_catalog.pg_db_role_setting AS s, pg_catalog.unnest(s.setconfig) AS c
   WHERE (s.setrole = me.oid OR (s.setrole = 0 AND s.setdatabase = base.oid)) AND c NOT IN ('default_transaction_read_only=on', 'log_min_messages=log', 'log_min_error_statement=fatal') AND c NOT LIKE 'temp\_file\_limit=%'
   GROUP BY s.setrole, s.setdatabase
  UNION ALL SELECT 'warn', 'the event trigger ' || t.evtname || ' runs code at changes of the schema' FROM pg_catalog.pg_event_trigger AS t WHERE t.evtenabled <> 'D'
  UNION ALL SELECT 'warn', 'the untrusted language ' || l.lanname || ' is installed' FROM pg_catalog.pg_language AS l WHERE l.lanispl AND NOT l.lanpltrusted
  UNION ALL SELECT 'warn', 'the extension ' || e.extname || ' is installed' FROM pg_catalog.pg_extension AS e WHERE e.extname IN ('dblink', 'file_fdw', 'postgres_fdw', 'adminpack')
  UNION ALL SELECT DISTINCT 'warn', 'the function ' || s.nspname || '.' || p.proname || ' has the name of a built-in one'
   FROM spaces AS s JOIN pg_catalog.pg_proc AS p ON p.pronamespace = s.oid
   WHERE EXISTS (SELECT FROM pg_catalog.pg_proc AS b WHERE b.proname = p.proname AND b.pronamespace = 'pg_catalog'::pg_catalog.regnamespace))
SELECT COALESCE(pg_catalog.json_agg(pg_catalog.json_build_array(f.level, f.what) ORDER BY f.level, f.what), '[]')::pg_catalog.text FROM found AS f`

// callsSQL lists what a text may call like a column (ParseFuncOrColumn): functions of one
// argument, and types that it may be cast to without a function, in the schemas $1, by their names; and which of them a
// row of a relation may be meant for, as others need a value in brackets, (t.a).f. $2 are the roles of all
// pools. One that has a column's name on the only table that it takes is that column, where
// the table stands there as it is; a row of a query, too, is taken for one of the table's. A
// domain over sixteen others is taken for one over a row: what a chain of n costs would grow with n².
const callsSQL = `
WITH RECURSIVE spaces AS (SELECT n.oid, n.nspname FROM pg_catalog.pg_namespace AS n WHERE n.nspname = ANY ($1::pg_catalog.text[])),
 based(oid, base, depth) AS (SELECT t.oid, t.typbasetype, 1 FROM pg_catalog.pg_type AS t WHERE t.typtype = 'd'
  UNION ALL SELECT b.oid, t.typbasetype, b.depth + 1 FROM based AS b JOIN pg_catalog.pg_type AS t ON t.oid = b.base WHERE t.typtype = 'd' AND b.depth < 16),
 overrow(oid) AS (SELECT b.oid FROM based AS b JOIN pg_catalog.pg_type AS t ON t.oid = b.base
  WHERE t.typtype = 'c' OR t.oid = 'pg_catalog.record'::pg_catalog.regtype OR t.typtype = 'd' AND b.depth = 16),
 cast_to(oid) AS (SELECT k.casttarget FROM pg_catalog.pg_cast AS k JOIN pg_catalog.pg_type AS t ON t.oid = k.castsource WHERE k.castmethod IN ('i', 'b') AND (t.typtype = 'c' OR t.oid IN (SELECT oid FROM overrow))),
 rows(oid) AS (SELECT t.oid FROM pg_catalog.pg_type AS t WHERE t.typtype = 'c' OR t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace
   AND t.typname IN ('record', 'any', 'anyelement', 'anynonarray', 'anycompatible', 'anycompatiblenonarray')
  UNION SELECT o.oid FROM overrow AS o
  UNION SELECT k.casttarget FROM pg_catalog.pg_cast AS k JOIN pg_catalog.pg_type AS t ON t.oid = k.castsource WHERE k.castcontext = 'i' AND t.typtype = 'c'),
 takes(oid) AS (SELECT r.oid FROM rows AS r UNION SELECT b.oid FROM based AS b JOIN rows AS r ON r.oid = b.base),
 calls(name, called, rows, hidden) AS (
  SELECT p.proname, s.nspname || '.' || p.proname, p.proargtypes[0] IN (SELECT oid FROM takes) OR p.provariadic IN (SELECT oid FROM takes), EXISTS (SELECT FROM pg_catalog.pg_type AS t JOIN pg_catalog.pg_attribute AS a ON a.attrelid = t.typrelid
    WHERE t.oid = p.proargtypes[0] AND t.typtype = 'c' AND a.attname = p.proname AND a.attnum > 0 AND NOT a.attisdropped)
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_cast AS k WHERE k.casttarget = p.proargtypes[0] AND k.castcontext = 'i')
  FROM spaces AS s JOIN pg_catalog.pg_proc AS p ON p.pronamespace = s.oid
  WHERE p.pronargs >= 1 AND p.pronargs - p.pronargdefaults <= 1
   AND EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = ANY ($2::pg_catalog.text[]) AND pg_catalog.has_function_privilege(r.oid, p.oid, 'EXECUTE'))
  UNION SELECT t.typname, s.nspname || '.' || t.typname, t.oid IN (SELECT oid FROM overrow UNION SELECT oid FROM cast_to UNION SELECT b.oid FROM based AS b JOIN cast_to AS c ON c.oid = b.base), false
  FROM spaces AS s JOIN pg_catalog.pg_type AS t ON t.typnamespace = s.oid WHERE t.typrelid = 0),
 words AS (SELECT c.name, (pg_catalog.array_agg(c.called ORDER BY c.rows DESC, c.called COLLATE pg_catalog."C"))[1] AS called, pg_catalog.bool_or(c.rows) AS rows, pg_catalog.bool_and(c.hidden) FILTER (WHERE c.rows) AS hidden FROM calls AS c GROUP BY c.name)
SELECT COALESCE(pg_catalog.json_agg(pg_catalog.json_build_object('word', w.name, 'name', w.called, 'rows', w.rows, 'hidden', COALESCE(w.hidden, false))), '[]')::pg_catalog.text FROM words AS w`

// asked sends one of the two. Their operators are those of PostgreSQL where nothing but its
// schema is looked through, whatever somebody has made in another: name || unknown is
// anybody's. What is asked writes nothing, and the server gives it up before the connection
// would be: a catalogue that somebody has filled takes no connection away.
func (p *pool) asked(ctx context.Context, c *conn, look *command, row *oneRow, into any) error {
	watched := c.params
	c.params = maps.Clone(watched)
	delete(c.params, "search_path") // reported from 18 on, also this one, and the pinned one again at the end
	defer func() { c.params = watched }()
	refused, err := c.exchange(ctx, time.Now().Add(p.cfg.ConnectTimeout), segment{own("BEGIN READ ONLY"), own("SET LOCAL search_path TO pg_catalog, pg_temp"), own(setTime("statement_timeout", p.cfg.ConnectTimeout/3)), look}, segment{own("END")}) // by itself, since a look that is refused fails the transaction
	switch {
	case err != nil:
		return err
	case refused != nil:
		return fmt.Errorf("the query was refused: %w", refused)
	}
	return json.Unmarshal([]byte(row.text(0)), into)
}

// maxRoleFindings bounds what is kept of one role: a schema may hold thousands
// of functions.
const maxRoleFindings = 50

// judgeRole looks at the role of a fresh connection, keeps what it found and
// tells it on where it changed. The error is that of a pool that must not be used.
func (p *pool) judgeRole(ctx context.Context, c *conn) error {
	p.mu.Lock()
	p.judgedAt, p.judged = time.Now(), c.life
	p.mu.Unlock()
	calls, err := p.askCalls(ctx, c)
	p.mu.Lock()
	if err == nil {
		p.calls, p.callsAt, p.callsOf = calls, time.Now(), c.life
	} else if p.callsOf != c.life { // what was known of the same server goes on for a while: ColumnCalls
		p.calls = nil
	}
	p.mu.Unlock()
	if err != nil {
		p.log.Warn("what a text may call like a column could not be looked up", "error", err)
	}
	report, err := p.askRole(ctx, c)
	if err != nil {
		if p.cfg.DenyRoles {
			return fault.New(fault.DBUnavailable, "What the gate's database role may do could not be looked at, so it is not used. Tell the operator.").With("step", stepRole).Because(err)
		}
		p.log.Warn("what the database role may do could not be looked at", "error", err)
		return nil
	}
	p.mu.Lock()
	changed := p.role == nil || !p.role.equal(report)
	p.role, p.roleAt = &report, time.Now()
	p.mu.Unlock()
	if changed && p.cfg.OnRole != nil {
		p.cfg.OnRole(report)
	}
	if f := p.deniesRole(); f != nil {
		return f
	}
	return nil
}

// stepRole is the startup step that such a fault names.
const stepRole = "database_role"

func (p *pool) askRole(ctx context.Context, c *conn) (RoleReport, error) {
	report := RoleReport{Pool: p.kind.String(), Role: p.login.User}
	ask, row := query(roleSQL)
	ask.oids = []uint32{25, 1009}
	ask.params = [][]byte{[]byte(report.Pool), []byte(textArray(p.cfg.schemas()))}
	var found [][2]string
	if err := p.asked(ctx, c, ask, row, &found); err != nil {
		return report, err
	}
	for _, finding := range found {
		level, what := finding[0], finding[1]
		switch {
		case level == "deny" && len(report.Deny) < maxRoleFindings:
			report.Deny = append(report.Deny, clip(what))
		case level == "warn" && len(report.Warn) < maxRoleFindings:
			report.Warn = append(report.Warn, clip(what))
		}
	}
	return report, nil
}

// askCalls asks what a text may call like a column.
func (p *pool) askCalls(ctx context.Context, c *conn) (map[string]ColumnCall, error) {
	ask, row := query(callsSQL)
	ask.oids = []uint32{1009, 1009}
	ask.params = [][]byte{[]byte(textArray(p.cfg.schemas())), []byte(textArray(p.roles))}
	var found []struct {
		Word string `json:"word"`
		ColumnCall
	}
	if err := p.asked(ctx, c, ask, row, &found); err != nil {
		return nil, err
	}
	calls := make(map[string]ColumnCall)
	for _, f := range found {
		calls[f.Word] = f.ColumnCall
	}
	return calls, nil
}

// A ColumnCall is a function or a type that a text may call like a column.
type ColumnCall struct {
	Name   string `json:"name"`   // schema.name
	Rows   bool   `json:"rows"`   // of a row of a relation, too: t.f; else of a value in brackets alone, (t.a).f
	Hidden bool   `json:"hidden"` // behind a column of its name, where the table that it takes stands as it is
}

// ColumnCalls are the functions and types of the database that a text may call like a
// column (t.f for f(t) and t::f), by name, with their schema: as they were when a role was
// last looked at, which must not be long ago. No text tells such a call from a column. The
// error says why they are not known: no connection was made yet, or none could be asked.
func (db *DB) ColumnCalls(ctx context.Context) (map[string]ColumnCall, error) {
	newest := func() map[string]ColumnCall { return db.reader.newestCalls(func(string) bool { return true }) }
	calls := newest()
	var first error
	for _, p := range db.pools() {
		if calls != nil {
			break
		}
		l, err := p.acquire(ctx)
		if err == nil {
			l.release()
			calls = newest()
		} else if first == nil {
			first = err
		}
	}
	if calls == nil && first == nil {
		first = fault.New(fault.DBUnavailable, "Which functions of the database a text may call like a column could not be looked up, so a text with a word behind a dot does not run. Tell the operator; the log says why.").With("step", stepRole)
	}
	if calls == nil {
		return nil, first
	}
	return calls, nil
}

// newestCalls are those that a server of the pools said last, of those that are asked for; nil:
// none did, or it is long ago.
func (p *pool) newestCalls(of func(life string) bool) (calls map[string]ColumnCall) {
	var seen time.Time
	for _, p := range p.pools {
		p.mu.Lock()
		if p.calls != nil && of(p.callsOf) && p.callsAt.After(seen) && time.Since(p.callsAt) < callsLast*p.cfg.RoleEvery {
			calls, seen = p.calls, p.callsAt
		}
		p.mu.Unlock()
	}
	return calls
}

// textArray writes names as an array of PostgreSQL.
func textArray(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(name) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

// deniesRole is the fault of a pool that is stopped because of its role.
func (p *pool) deniesRole() *fault.Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cfg.DenyRoles || p.role == nil || len(p.role.Deny) == 0 {
		return nil
	}
	return fault.New(fault.DBUnavailable, "The gate's database role for %s connections %s, so it is not used. Tell the operator.", p.role.Pool, strings.Join(p.role.Deny, ", ")).With("step", stepRole)
}

// roleDue reports whether the role has to be looked at: never seen, seen long
// ago, or found with too many rights.
func (p *pool) roleDue() (due, seen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.role == nil {
		return true, false
	}
	if time.Since(p.judgedAt) < min(p.cfg.RoleEvery, roleAgain) {
		return false, true // a look that failed is not repeated by each connection
	}
	every := p.cfg.RoleEvery
	if p.cfg.DenyRoles && len(p.role.Deny) > 0 {
		every = min(every, roleAgain)
	}
	return time.Since(p.roleAt) >= every || time.Since(p.callsAt) >= every, true
}

// roleDueAt is roleDue for a new connection, which may lead to a server of which nothing is known.
func (p *pool) roleDueAt(c *conn) bool {
	due, _ := p.roleDue()
	p.mu.Lock()
	defer p.mu.Unlock()
	return due || p.judged != c.life
}

// watchRoles looks again, on a connection of its own, at the roles that were
// seen before.
func (db *DB) watchRoles() {
	ticker := time.NewTicker(min(db.cfg.RoleEvery, roleAgain))
	defer ticker.Stop()
	for {
		select {
		case <-db.ctx.Done():
			return
		case <-ticker.C:
			for _, p := range db.pools() {
				if due, seen := p.roleDue(); due && seen {
					p.lookAtRole(db.ctx)
				}
			}
		}
	}
}

// lookAtRole connects only to look. Connections that idle go when the role turns
// out to be one that must not be used.
func (p *pool) lookAtRole(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.ConnectTimeout)
	defer cancel()
	c, again, err := p.connectOnce(ctx)
	if err != nil || again {
		if again {
			c.close()
		}
		return // a database out of reach is told by whoever needs it
	}
	defer c.close()
	if err := p.judgeRole(ctx, c); err != nil {
		p.log.Error("a pool is stopped because of what its database role may do", "error", err)
		p.purge(true)
	}
}
