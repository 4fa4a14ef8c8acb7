package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"writegate/eventlog/event"
	"writegate/fixtures/faultproxy"
	"writegate/fixtures/postgres"
)

// A redteam is a gate under attack: a server of its own that writes down every
// statement it gets, a proxy on the way there that holds each message against the
// log at the moment it passes, and somebody who looks at the server from outside.
type redteam struct {
	*testGate
	t            *testing.T
	cluster      *postgres.Cluster
	throughProxy string
	direct       string         // URL of the database, past the proxy, as superuser
	watcher      *pgconn.PgConn // looks, as superuser
	victim       *pgconn.PgConn // another session, which must live and hear nothing
	heard        []string       // what the victim was notified of
	canary       string         // folder on the server's file system
	inotify      int
	secret       string // stands in what nobody may read
	witness      *witness

	logRead  int64 // how far the server's log was read
	print    string
	victims  string // the victim's settings
	xid      uint64 // the server's next transaction id
	executed map[[32]byte][]time.Time

	policy       string
	patience     time.Duration     // how long what a client left behind may take to end
	marks, names int               // how many were made
	answered     map[string]string // of requests to POST /query, by their ids: the decision, or the code of a refusal
}

// redteamDatabase is the name that the corpus has for the database.
const redteamDatabase = "lab"

// userCode makes a function of a user's that tells the server's log, leaves a file
// where its role may, holds a lock, and then does what it does.
func userCode(signature, returns, attributes, body string) string {
	return fmt.Sprintf(`CREATE FUNCTION %s RETURNS %s LANGUAGE plpgsql %s AS $code$ BEGIN RAISE LOG 'user code ran: %%', %s; PERFORM public.leave_traces(); %s END $code$;
`, signature, returns, attributes, "'"+strings.ReplaceAll(signature, "'", "")+"'", body)
}

// attackedTables is what the attacks aim at: tables, and code of the kind that a
// text does not show, under names that a text may use for something else.
func attackedTables(canary, secret string) string {
	return `
CREATE TABLE users (id bigint PRIMARY KEY, org_id bigint NOT NULL, email text NOT NULL, ssn text NOT NULL);
CREATE TABLE "users " (id bigint);
CREATE TABLE staging (id bigint, email text);
CREATE TABLE audit_sink (note text);
CREATE TABLE dtab (id bigint, made timestamptz DEFAULT now());
CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL);
CREATE TABLE customers (id bigint PRIMARY KEY, email text NOT NULL);
CREATE SEQUENCE seq1;
INSERT INTO users SELECT n, n % 2, 'user' || n || '@example.com', to_char(n, 'FM000000000') FROM generate_series(1, 9) AS n;
INSERT INTO staging SELECT n, 'staged' FROM generate_series(1, 9) AS n;
INSERT INTO audit_sink VALUES ('begin');
INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 50000) AS n;
INSERT INTO customers SELECT n, 'c@example.com' FROM generate_series(1, 9) AS n;
SELECT lo_from_bytea(1, '` + secret + `');
CREATE FUNCTION leave_traces() RETURNS void LANGUAGE plpgsql AS $code$ BEGIN
  PERFORM pg_try_advisory_lock(4242);
  COPY (SELECT 'user code ran') TO '` + canary + `/pwned';
EXCEPTION WHEN OTHERS THEN NULL; END $code$;
` + userCode("purge()", "int", "", "DELETE FROM staging; RETURN 1;") +
		userCode("liar()", "int", "IMMUTABLE", "DELETE FROM staging; RETURN 1;") +
		userCode("secdef_write()", "int", "SECURITY DEFINER", "DELETE FROM staging; RETURN 1;") +
		userCode(`"Now"()`, "int", "", "DELETE FROM staging; RETURN 1;") +
		userCode("upper(varchar)", "text", "", "DELETE FROM staging; RETURN $1;") +
		userCode("lower(a text, b text)", "text", "", "DELETE FROM staging; RETURN $1;") +
		userCode("count(int, int)", "int", "", "DELETE FROM staging; RETURN 1;") +
		userCode("reverse(evil text)", "text", "", "DELETE FROM staging; RETURN $1;") +
		userCode("first_value(int)", "int", "", "DELETE FROM staging; RETURN 1;") +
		userCode("max(varchar)", "text", "", "DELETE FROM staging; RETURN $1;") +
		userCode("evil_equal(int, int)", "boolean", "", "DELETE FROM staging; RETURN true;") +
		userCode("evil_step(int, bigint)", "int", "", "DELETE FROM staging; RETURN 1;") +
		userCode("evil_check(text)", "boolean", "", "DELETE FROM staging; RETURN true;") +
		userCode(`"json_array"()`, "json", "", "RETURN '[]';") + userCode(`"json_array"(int, int)`, "json", "", "RETURN '[]';") +
		userCode(`"json_object"()`, "json", "", "RETURN '{}';") + userCode(`"json_scalar"(int)`, "json", "", "RETURN '1';") + userCode(`"json_serialize"(json)`, "text", "", "RETURN '1';") +
		userCode(`"json_value"(jsonb, text)`, "text", "", "RETURN '1';") + userCode(`"json_exists"(jsonb, text)`, "boolean", "", "RETURN true;") +
		userCode(`"json_query"(jsonb, text)`, "jsonb", "", "RETURN '1';") + userCode(`"json"(text)`, "json", "", "RETURN '1';") + userCode(`"merge_action"()`, "text", "", "RETURN '1';") + `
CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = evil_equal);
CREATE OPERATOR @> (RIGHTARG = text, FUNCTION = evil_check);
CREATE AGGREGATE evil_agg(bigint) (SFUNC = evil_step, STYPE = int, INITCOND = '0');
CREATE AGGREGATE "json_arrayagg"(bigint) (SFUNC = evil_step, STYPE = int, INITCOND = '0');
CREATE TYPE mytype AS (a int);
` + userCode("evil_cast(mytype)", "int", "", "DELETE FROM staging; RETURN 1;") + `
CREATE CAST (mytype AS int) WITH FUNCTION evil_cast(mytype);
CREATE DOMAIN evil_dom AS text CHECK (evil_check(VALUE));
CREATE TYPE evil_row AS (a evil_dom);
CREATE DOMAIN serial AS text CHECK (evil_check(VALUE));
CREATE DOMAIN bigserial AS text CHECK (evil_check(VALUE));
CREATE DOMAIN smallserial AS text CHECK (evil_check(VALUE));
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE moods (a mood, b mood[]);
INSERT INTO moods VALUES ('ok', '{sad}');
CREATE VIEW v_evil AS SELECT id, purge() AS p FROM users;
CREATE VIEW v_lock AS SELECT "json_scalar"(1) AS left_behind;
CREATE SCHEMA evil;
CREATE TABLE evil.users (id bigint, email text);
`
}

// The roles under which a gate is attacked.
const (
	asSuperuser      = "superuser"       // the worst case: classification alone has to hold
	asLeastPrivilege = "least privilege" // docs/database-role.sql
)

// startRedteam runs a gate with one of the policies under one of the roles.
func startRedteam(t *testing.T, role, policy string, extra ...string) *redteam {
	t.Helper()
	cluster := postgres.ClusterForTest(t, map[string]string{
		"log_statement": "all", "log_min_duration_statement": "0", "log_line_prefix": logPrefix, "wal_level": "logical", "max_prepared_transactions": "5", "autovacuum": "off", "jit": "off",
	})
	require.NoError(t, cluster.CreateDatabase(t.Context(), redteamDatabase))
	r := &redteam{t: t, cluster: cluster, direct: cluster.URL(redteamDatabase), secret: "redteam-secret-" + rolesSuffix(t.Name()), executed: map[[32]byte][]time.Time{},
		policy: policy, patience: 5 * time.Second, answered: map[string]string{}}
	r.watchFiles()
	proxy := faultproxy.Start(t, r.direct)
	r.throughProxy = proxy.URL()
	d := gateDir{path: t.TempDir(), database: r.direct}
	writeRedPolicy(t, policy, d.file("policies"))
	d.execute(t, attackedTables(r.canary, r.secret))
	through := map[string]string{"GATE_DATABASE_URL": proxy.URL()}
	if role == asLeastPrivilege {
		through = r.makeRoles(proxy.URL())
	}
	r.witness = &witness{file: d.file("audit.wal"), digests: map[string][32]byte{}, decided: map[[32]byte]int{}, described: map[[32]byte]int{}, dispatched: map[[32]byte][]time.Time{}, xids: map[uint64][]string{}, texts: map[string][32]byte{}, results: map[string]event.Type{}, reasons: map[string]string{}, pids: map[string]bool{}, learning: true, learnt: map[string]bool{}}
	proxy.Watch(r.witness.see)
	settings := append([]string(nil), extra...)
	for name, value := range through {
		settings = append(settings, name+"="+value)
	}
	r.testGate = startGate(t, d, append(settings, "GATE_DB_POOL_MAX=1")...)
	r.watcher = r.connectDirect()
	r.teach()
	r.victim = r.connectDirect()
	r.mustExec(r.victim, `LISTEN chan; LISTEN watch; SET application_name = 'victim'`)
	r.settle()
	return r
}

// lessons are what is sent through every channel while the witness learns what the
// gate sends by itself: a read, a write, a type of a user's.
var lessons = []string{"UPDATE orders SET status = 'marked' WHERE id = ", "SELECT id, status FROM orders WHERE id = 1", "SELECT a FROM moods", "DELETE FROM orders WHERE id = 0"}

func (r *redteam) teach() {
	for i := range channels {
		for _, sql := range lessons[1:3] {
			channels[i].over(r, attack{SQL: sql})
		}
		channels[i].over(r, attack{SQL: r.mark()})
	}
	require.Equal(r.t, gotAllowed, overWire(func(*redteam, attack) [][]pgproto3.FrontendMessage {
		return packets(simple("SET TimeZone = 'Asia/Tokyo'"), simple("SELECT id, status FROM orders WHERE id = 1"))
	})(r, attack{}).outcome)
	oid, err := strconv.ParseUint(r.look("SELECT 'mood'::regtype::oid"), 10, 32)
	require.NoError(r.t, err)
	r.converse([][]pgproto3.FrontendMessage{{&pgproto3.Parse{Query: "SELECT a FROM moods", ParameterOIDs: []uint32{uint32(oid)}}, &pgproto3.Describe{ObjectType: 'S'}, syncMessage}})
	for _, counted := range []func(string) said{r.approvedOverHTTP, r.approvedOverWire} {
		counted("DELETE FROM orders WHERE id = 0") // with a limit of rows, under the policies that ask a person
	}
	r.witness.mu.Lock()
	defer r.witness.mu.Unlock()
	r.witness.learning = false
}

// makeRoles runs the script of the documentation and says how the gate logs in.
func (r *redteam) makeRoles(through string) map[string]string {
	script := strings.NewReplacer(`:"db"`, redteamDatabase, `:"schema"`, "public", `:"owner"`, postgres.Superuser).Replace(readDoc(r.t, "docs/database-role.sql"))
	postgres.ExecuteURL(r.t, r.direct, script+"; ALTER ROLE gate_reader PASSWORD 'r'; ALTER ROLE gate_writer PASSWORD 'w'")
	as := func(user, password string) string {
		u, err := url.Parse(through)
		require.NoError(r.t, err)
		u.User = url.UserPassword(user, password)
		return u.String()
	}
	return map[string]string{"GATE_DATABASE_URL": as("gate_writer", "w"), "GATE_DATABASE_READ_URL": as("gate_reader", "r")}
}

func (r *redteam) connectDirect() *pgconn.PgConn {
	r.t.Helper()
	config, err := pgconn.ParseConfig(r.direct)
	require.NoError(r.t, err)
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { r.heard = append(r.heard, n.Channel) }
	c, err := pgconn.ConnectConfig(context.WithoutCancel(r.t.Context()), config)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = c.Close(context.Background()) }) // the server is thrown away
	return c
}

func (r *redteam) mustExec(c *pgconn.PgConn, sql string) [][][]byte {
	r.t.Helper()
	results, err := c.Exec(context.WithoutCancel(r.t.Context()), sql).ReadAll()
	require.NoError(r.t, err, sql)
	return results[len(results)-1].Rows
}

// look asks the server for one text, past the gate.
func (r *redteam) look(sql string) string {
	r.t.Helper()
	return string(r.mustExec(r.watcher, sql)[0][0])
}

// watchFiles makes the canary, a folder with a file that nobody may read and into
// which nobody may write, and notes whatever is opened there.
func (r *redteam) watchFiles() {
	r.canary = filepath.Join(r.cluster.Dir, "data", "canary")
	file := filepath.Join(r.canary, "secret.txt")
	require.NoError(r.t, os.Mkdir(r.canary, 0o700))
	require.NoError(r.t, os.WriteFile(file, []byte(r.secret+"\n"), 0o600))
	require.NoError(r.t, r.cluster.Give(r.canary))
	require.NoError(r.t, r.cluster.Give(file))
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	require.NoError(r.t, err)
	r.inotify = fd
	r.t.Cleanup(func() { _ = unix.Close(fd) })
	const made = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO
	for path, events := range map[string]uint32{"canary": made | unix.IN_OPEN, ".": made, "pg_snapshots": made, "pg_replslot": made, "pg_twophase": made, "pg_tblspc": made} {
		_, err := unix.InotifyAddWatch(fd, filepath.Join(r.cluster.Dir, "data", path), events)
		require.NoError(r.t, err, path)
	}
}

// touched names what was opened, made or removed in the watched folders.
func (r *redteam) touched() (names []string) {
	var b [64 << 10]byte
	n, err := unix.Read(r.inotify, b[:])
	if err == unix.EAGAIN {
		return nil
	}
	require.NoError(r.t, err)
	for at := 0; at < n; {
		length := int(binary.NativeEndian.Uint32(b[at+unix.SizeofInotifyEvent-4:]))
		end := at + unix.SizeofInotifyEvent + length
		name := strings.TrimRight(string(b[end-length:end]), "\x00")
		if name == "" { // whoever lists the folder opens it, and that may be another program of this machine
			name = fmt.Sprintf("the folder itself (events %#x)", binary.NativeEndian.Uint32(b[at+4:]))
		}
		names = append(names, name)
		at = end
	}
	return slices.Compact(names)
}

// printOfTheServer is one text that differs when a row, an object, a right, a
// setting, a sequence, a slot or a statistic does.
const printOfTheServer = `
SELECT concat_ws(' ',
 (SELECT md5(string_agg(x::text, ',' ORDER BY x::text)) FROM (
   SELECT u::text FROM users u UNION ALL SELECT s::text FROM staging s UNION ALL SELECT a::text FROM audit_sink a UNION ALL SELECT d::text FROM dtab d
   UNION ALL SELECT c::text FROM customers c UNION ALL SELECT e::text FROM evil.users e) x),
 (SELECT last_value::text || is_called FROM seq1),
 (SELECT md5(string_agg(concat_ws(',', oid, relname, relnamespace, relowner, relfilenode, relkind, relhasrules, relhastriggers, relrowsecurity, relacl, reloptions), ';' ORDER BY oid)) FROM pg_class),
 (SELECT md5(string_agg(concat_ws(',', attrelid, attname, atttypid, attnotnull, attacl), ';' ORDER BY attrelid, attnum)) FROM pg_attribute WHERE attrelid >= 16384),
 (SELECT md5(string_agg(concat_ws(',', oid, rolname, rolsuper, rolcreaterole, rolpassword), ';' ORDER BY oid)) FROM pg_authid),
 (SELECT md5(string_agg(m::text, ';' ORDER BY m::text)) FROM pg_auth_members m),
 (SELECT md5(string_agg(concat_ws(',', setdatabase, setrole, setconfig), ';' ORDER BY setdatabase, setrole)) FROM pg_db_role_setting),
 (SELECT md5(string_agg(concat_ws(',', nspname, nspowner, nspacl), ';' ORDER BY oid)) FROM pg_namespace),
 (SELECT md5(string_agg(datname, ',' ORDER BY oid)) FROM pg_database),
 (SELECT md5(string_agg(tgname::text || tgenabled::text, ',' ORDER BY oid)) FROM pg_trigger),
 (SELECT md5(string_agg(concat_ws(',', name, setting), ';' ORDER BY name)) FROM pg_file_settings),
 (SELECT md5(string_agg(concat_ws(',', name, setting), ';' ORDER BY name)) FROM pg_settings),
 (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_operator), (SELECT count(*) FROM pg_type), (SELECT count(*) FROM pg_cast),
 (SELECT count(*) FROM pg_rewrite), (SELECT count(*) FROM pg_event_trigger), (SELECT count(*) FROM pg_extension), (SELECT count(*) FROM pg_language),
 (SELECT count(*) FROM pg_foreign_server), (SELECT count(*) FROM pg_subscription), (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_tablespace),
 (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_replication_origin), (SELECT count(*) FROM pg_prepared_xacts),
 (SELECT md5(string_agg(concat_ws(',', loid, pageno, data), ';' ORDER BY loid, pageno)) FROM pg_largeobject), (SELECT count(*) FROM pg_largeobject_metadata),
 (SELECT count(*) FROM pg_default_acl), (SELECT count(*) FROM pg_statistic_ext), (SELECT count(*) FROM pg_transform), (SELECT count(*) FROM pg_am),
 (SELECT count(*) FROM pg_seclabel), (SELECT count(*) FROM pg_policy), (SELECT count(*) FROM pg_collation), (SELECT count(*) FROM pg_description),
 (SELECT string_agg(d.stats_reset::text, ',' ORDER BY d.datid) FROM pg_stat_database d), pg_conf_load_time(), pg_postmaster_start_time())`

// restOfTheServer is empty when nobody but the watcher holds anything: no lock, no
// transaction, no snapshot.
const restOfTheServer = `SELECT coalesce((SELECT string_agg(concat_ws(' ', 'lock', locktype, mode, pid, relation::regclass, objid, ''), ', ') FROM pg_locks WHERE pid <> pg_backend_pid()), '') ||
 coalesce((SELECT string_agg(concat_ws(' ', 'session', pid, state, backend_xid, backend_xmin), ', ') FROM pg_stat_activity
  WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND (state <> 'idle' OR backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)), '')`

const nextXID = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"

// settle takes the server as it is for what has to stay.
func (r *redteam) settle() {
	r.t.Helper()
	r.victims = string(r.mustExec(r.victim, victimSettings)[0][0])
	r.print = r.look(printOfTheServer)
	r.xid = r.nextXID()
	r.heard = nil
	r.touched()
	r.readServerLog()
	require.Empty(r.t, r.witness.complaints(), "before anything was sent")
}

const victimSettings = "SELECT md5(string_agg(concat(name, '=', setting), ',' ORDER BY name)) FROM pg_settings"

func (r *redteam) nextXID() uint64 {
	r.t.Helper()
	n, err := strconv.ParseUint(r.look(nextXID), 10, 64)
	require.NoError(r.t, err)
	return n
}

// effects tells what was done to the server since the last look, beyond the
// transactions that the log names, and what it got that nobody had decided.
func (r *redteam) effects() (found []string) {
	r.t.Helper()
	rest := ""
	for deadline := time.Now().Add(r.patience); ; time.Sleep(5 * time.Millisecond) {
		if rest = r.look(restOfTheServer); rest == "" || time.Now().After(deadline) {
			break
		}
	}
	if rest != "" {
		found = append(found, "held: "+rest)
	}
	xid := r.nextXID()
	below := r.witness.subtransactions()
	for id := r.xid; id < xid; id++ {
		// The gate gives a transaction up where it finds, before anything of the client's
		// was sent, that it may not go on.
		if r.witness.names(id) || r.look(fmt.Sprintf("SELECT pg_xact_status('%d'::xid8)", id)) == "aborted" {
			continue
		}
		if below--; below < 0 {
			found = append(found, fmt.Sprintf("transaction %d, of which the log knows nothing", id))
		}
	}
	r.xid = xid
	if print := r.look(printOfTheServer); print != r.print {
		was, is := strings.Fields(r.print), strings.Fields(print)
		at := 0
		for at < min(len(was), len(is)) && was[at] == is[at] {
			at++
		}
		found = append(found, fmt.Sprintf("the server's print differs at its word %d", at+1))
		r.print = print
	}
	if names := r.touched(); len(names) > 0 {
		found = append(found, "files: "+strings.Join(names, ", "))
	}
	if settings, err := r.victim.Exec(context.Background(), victimSettings).ReadAll(); err != nil {
		found = append(found, "another session ended")
		r.victim = r.connectDirect()
		r.mustExec(r.victim, `LISTEN chan; LISTEN watch; SET application_name = 'victim'`)
	} else if string(settings[0].Rows[0][0]) != r.victims {
		found = append(found, "the settings of another session")
	}
	if len(r.heard) > 0 {
		found = append(found, "notified: "+strings.Join(r.heard, ", "))
		r.heard = nil
	}
	found = append(found, r.readServerLog()...)
	return inShort(append(found, r.witness.complaints()...))
}

// inShort leaves out what was said already, and the rest of a long text.
func inShort(found []string) (short []string) {
	for _, what := range found {
		if what = strings.ToValidUTF8(what[:min(len(what), 300)], ""); !slices.Contains(short, what) {
			short = append(short, what)
		}
	}
	return short
}

// The server's log: what each line begins with, and how a statement is told.
const logPrefix = "@%n %p@ "

var (
	logLine  = regexp.MustCompile(`(?m)^@(\d+\.\d+) (\d+)@ ([A-Z0-9]+):  `)
	loggedAs = regexp.MustCompile(`^(?:duration: [0-9.]+ ms  )?(parse|bind|execute|execute fetch from|statement|fastpath function call)(?: [^:]*)?: `)
)

// readServerLog reads what the server wrote since the last time. Every text that a
// connection of the gate's brought has been decided; every one that ran has as many
// dispatches before it; and no code of a user's ran.
func (r *redteam) readServerLog() (found []string) {
	r.t.Helper()
	f, err := os.Open(filepath.Join(r.cluster.Dir, "server.log"))
	require.NoError(r.t, err)
	defer f.Close()
	_, err = f.Seek(r.logRead, io.SeekStart)
	require.NoError(r.t, err)
	text, err := io.ReadAll(f)
	require.NoError(r.t, err)
	whole := bytes.LastIndexByte(text, '\n') + 1
	r.logRead += int64(whole)
	lines := string(text[:whole])
	heads := logLine.FindAllStringSubmatchIndex(lines, -1)
	for i, h := range heads {
		end := len(lines)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		message := strings.ReplaceAll(strings.TrimSuffix(lines[h[1]:end], "\n"), "\n\t", "\n")
		seconds, err := strconv.ParseFloat(lines[h[2]:h[3]], 64)
		require.NoError(r.t, err)
		found = append(found, r.readLogged(time.UnixMilli(int64(seconds*1000+0.5)), lines[h[4]:h[5]], lines[h[6]:h[7]], message)...)
	}
	return found
}

func (r *redteam) readLogged(at time.Time, pid, severity, message string) (found []string) {
	if !r.witness.gates(pid) {
		return nil
	}
	if strings.HasPrefix(message, "user code ran") {
		return []string{message}
	}
	kind, sql := "", ""
	switch as := loggedAs.FindStringSubmatch(message); {
	case severity == "STATEMENT":
		kind, sql = "refused", message
	case severity == "LOG" && as != nil:
		kind, sql = as[1], message[len(as[0]):]
		if kind == "execute" && strings.HasPrefix(message, "duration") {
			return nil // the same once more
		}
	default:
		return nil
	}
	if r.witness.own(sql) {
		return nil
	}
	digest := sha256.Sum256([]byte(sql))
	if !r.witness.knows(digest) {
		found = append(found, fmt.Sprintf("the server got (%s) what nobody decided: %s", kind, sql))
	}
	if kind == "execute" || kind == "statement" {
		r.executed[digest] = append(r.executed[digest], at)
		n := len(r.executed[digest])
		sent := r.witness.dispatches(digest)
		switch {
		case len(sent) < n:
			found = append(found, fmt.Sprintf("ran %d times, dispatched %d times: %s", n, len(sent), sql))
		case sent[n-1].Truncate(time.Millisecond).After(at):
			found = append(found, fmt.Sprintf("ran at %s, dispatched at %s: %s", at, sent[n-1], sql))
		}
	}
	return found
}

// ownStatements are the texts of the gate's own that hold a name or a value. The
// others are learnt, each as a whole, before anything is attacked.
var ownStatements = []*regexp.Regexp{
	regexp.MustCompile(`^(BEGIN|BEGIN READ ONLY|COMMIT|ROLLBACK|DISCARD ALL|SET CONSTRAINTS ALL IMMEDIATE|SELECT 1|SET LOCAL transaction_read_only = on|)$`),
	regexp.MustCompile(`^BEGIN( ISOLATION LEVEL (READ UNCOMMITTED|READ COMMITTED|REPEATABLE READ|SERIALIZABLE))?( READ ONLY)?( DEFERRABLE)?$`),
	regexp.MustCompile(`^SET TRANSACTION (ISOLATION LEVEL [A-Z ]+|READ ONLY|READ WRITE|DEFERRABLE|NOT DEFERRABLE)(, (READ ONLY|READ WRITE|DEFERRABLE|NOT DEFERRABLE))*$`),
	regexp.MustCompile(`^SET (LOCAL|SESSION) (statement_timeout|transaction_timeout|idle_in_transaction_session_timeout|lock_timeout|TimeZone|application_name) = '([^']|'')*'$`),
	regexp.MustCompile(`^(SAVEPOINT|RELEASE|RELEASE SAVEPOINT|ROLLBACK TO|ROLLBACK TO SAVEPOINT) ("([^"]|"")*"|gate_[a-z0-9_]+)$`),
	regexp.MustCompile(`^SELECT FROM (("([^"]|"")+"\.)?"([^"]|"")+" AS r\d+(, |$))+$`), // parsed alone, for the locks
	regexp.MustCompile(`^(ROLLBACK TO|RELEASE) SAVEPOINT gate_[a-z0-9_]+$`),
}

func ownStatement(sql string) bool {
	return slices.ContainsFunc(ownStatements, func(own *regexp.Regexp) bool { return own.MatchString(sql) })
}
