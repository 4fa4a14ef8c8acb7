package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/sqlgate/pgwire"
)

// What a break-in found, each as it was done then, from outside. The rows of one
// table share a gate with the sample policy under a superuser, which is watched: a
// row fails too where anything was done to the server that the log does not tell.

var findings = []struct {
	name    string
	attempt func(r *redteam)
}{
	{"1 a savepoint of the gate's name, and a read that fails", func(r *redteam) {
		const failing = "SELECT 1/(id-id) FROM customers"
		describe := []pgproto3.FrontendMessage{&pgproto3.Parse{Query: "SELECT missing FROM customers"}, &pgproto3.Describe{ObjectType: 'S'}, syncMessage}
		for _, name := range []string{"gate_fence", "s", `"gate_fence"`, "GATE_FENCE"} {
			for _, read := range [][]pgproto3.FrontendMessage{{simple(failing)}, describe} {
				r.converse([][]pgproto3.FrontendMessage{{simple("BEGIN")}, {simple("SAVEPOINT " + name)}, {simple(r.mark())}, read, {simple("ROLLBACK TO " + name)}, {simple("COMMIT")}})
				r.converse([][]pgproto3.FrontendMessage{{simple("BEGIN")}, {simple(r.mark())}, {simple("SAVEPOINT " + name)}, read, {simple("ROLLBACK TO " + name)}, {simple("RELEASE " + name)}, {simple(r.mark())}, {simple("COMMIT")}})
				r.converse([][]pgproto3.FrontendMessage{{simple("BEGIN")}, {simple("SAVEPOINT " + name)}, {simple(r.mark())}, {simple("SAVEPOINT " + name)}, {simple(r.mark())}, read, {simple("ROLLBACK TO " + name)}, {simple("RELEASE " + name)}, {simple("ROLLBACK TO " + name)}, {simple("COMMIT")}})
			}
		}
		r.requireMarksAsLogged()
	}},
	{"2 types of parameters that are a user's", func(r *redteam) {
		for _, name := range []string{"evil_dom", "evil_row", "_evil_dom", "_evil_row", "serial", "users"} {
			oid, err := strconv.ParseUint(r.look("SELECT oid FROM pg_type WHERE typname = '"+name+"' AND typnamespace = 'public'::regnamespace"), 10, 32)
			require.NoError(r.t, err)
			types := []uint32{uint32(oid)}
			for _, sql := range []string{"SELECT $1", "SELECT coalesce($1, '(x)')", "SELECT id FROM orders WHERE status = $1", "UPDATE orders SET status = $1 WHERE id = 40000", "INSERT INTO orders VALUES (60000, $1)", "VALUES ($1)"} {
				for _, after := range [][]pgproto3.FrontendMessage{
					{&pgproto3.Describe{ObjectType: 'S'}},
					{&pgproto3.Bind{Parameters: [][]byte{[]byte("(x)")}}, &pgproto3.Execute{}},
					{&pgproto3.Bind{Parameters: [][]byte{[]byte("{x}")}, ResultFormatCodes: []int16{1}}, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{}},
				} {
					r.converse([][]pgproto3.FrontendMessage{append(append([]pgproto3.FrontendMessage{&pgproto3.Parse{Query: sql, ParameterOIDs: types}}, after...), syncMessage)})
				}
			}
			r.converse(packets(simple("PREPARE p ("+strings.TrimPrefix(name, "_")+") AS SELECT $1"), simple("EXECUTE p ('(x)')")))
			session := r.newName("s")
			r.overHTTP("/query", in(session, "PREPARE p ("+name+") AS SELECT $1"))
			r.overHTTP("/query", in(session, "EXECUTE p ('(x)')"))
		}
		require.Equal(r.t, "0", r.look("SELECT count(*) FROM orders WHERE status = '(x)'"))
	}},
	{"3 words that are functions of a user's on an older server", func(r *redteam) {
		r.breakInWith("SELECT json_array()", "SELECT json_array(1, 2)", "SELECT json_object()", "SELECT json_arrayagg(id) FROM users", "SELECT json_scalar(1)", "SELECT json_value(jsonb '1', '$')",
			"SELECT json_exists(jsonb '1', '$')", "SELECT json_query(jsonb '1', '$')", "SELECT json('1')", "SELECT json_serialize(json '1')", "SELECT merge_action()", "SELECT JSON_ARRAY(1, 2 RETURNING evil_dom)")
	}},
	{"4 an upsert over the whole table under the sample policy", func(r *redteam) {
		for _, sql := range []string{
			"INSERT INTO orders (id, status) SELECT id, 'rewritten' FROM orders ON CONFLICT (id) DO UPDATE SET status = excluded.status",
			"INSERT INTO orders SELECT * FROM orders ON CONFLICT (id) DO UPDATE SET status = 'rewritten'",
			"INSERT INTO orders (id, status) SELECT n, 'x' FROM generate_series(1, 50000) AS n ON CONFLICT (id) DO UPDATE SET status = 'rewritten' WHERE true",
			"WITH w AS (INSERT INTO orders SELECT * FROM orders ON CONFLICT (id) DO UPDATE SET status = 'rewritten' RETURNING 1) SELECT count(*) FROM w",
			"INSERT INTO orders TABLE orders ON CONFLICT ON CONSTRAINT orders_pkey DO UPDATE SET status = 'rewritten'",
		} {
			for i := range channels {
				channels[i].over(r, attack{SQL: sql})
			}
			require.Equal(r.t, "0", r.look("SELECT count(*) FROM orders WHERE status = 'rewritten'"), sql)
		}
		one := r.overHTTP("/query", ask("INSERT INTO orders (id, status) VALUES (49000, 'new') ON CONFLICT (id) DO UPDATE SET status = excluded.status"))
		require.Equal(r.t, gotAllowed, one.outcome, "an upsert of one row is as easy as an UPDATE by key: %s", one.heard)
	}},
	{"5 requests that a web page sends", func(r *redteam) {
		body := fmt.Sprintf(`{"actor":"a","app":"shop","tenant":"t","role":"r","host":"h","env":"prod","sql":%q}`, r.mark())
		for _, c := range []struct {
			status  int
			headers []string
		}{
			{http.StatusUnsupportedMediaType, nil}, {http.StatusUnsupportedMediaType, []string{"Content-Type: text/plain"}},
			{http.StatusUnsupportedMediaType, []string{"Content-Type: application/x-www-form-urlencoded"}},
			{http.StatusForbidden, []string{"Content-Type: application/json", "Origin: https://elsewhere.example"}},
			{http.StatusForbidden, []string{"Content-Type: application/json", "Origin: null"}},
			{http.StatusForbidden, []string{"Content-Type: application/json", "Sec-Fetch-Site: cross-site"}},
			{http.StatusMisdirectedRequest, []string{"Content-Type: application/json", "Host: rebound.example"}},
			{http.StatusMisdirectedRequest, []string{"Content-Type: application/json", "Host: 127.0.0.1.rebound.example:6543"}},
		} {
			require.Equal(r.t, c.status, r.asABrowser(http.MethodPost, "/query", body, c.headers...), "%v", c.headers)
		}
		for _, path := range []string{"/audit", "/health", "/metrics", "/audit/stream", "/approvals", "/logs", "/openapi.json"} {
			require.Equal(r.t, http.StatusMisdirectedRequest, r.asABrowser(http.MethodGet, path, "", "Host: rebound.example"), path)
			require.Equal(r.t, http.StatusForbidden, r.asABrowser(http.MethodGet, path, "", "Sec-Fetch-Site: cross-site"), path)
		}
		r.requireMarksAsLogged()
	}},
	{"6 names that are special in one place alone", func(r *redteam) {
		r.breakInWith("SELECT '1'::serial", "SELECT CAST('1' AS bigserial)", "SELECT smallserial '1'", "SELECT '{1}'::serial[]", "SELECT serial '1'", "SELECT CAST('1' AS serial)::text", "SELECT x FROM json_to_record('{}') AS t(x serial)",
			"SELECT * FROM XMLTABLE('/' PASSING '<a/>' COLUMNS a serial)", "SELECT '1'::public.serial")
	}},
	{"8 the limit of rows is lifted from inside", func(r *redteam) {
		r.mustExec(r.watcher, `CREATE FUNCTION uncounted() RETURNS text LANGUAGE plpgsql AS $code$ BEGIN PERFORM set_config('track_' || 'counts', 'off', true);
			INSERT INTO customers SELECT n, 'x' FROM generate_series(100, 5099) AS n; PERFORM set_config('track_' || 'counts', 'on', true); RETURN 'x'; END $code$`)
		r.settle()
		for n, sql := range []string{ // the sample policy lets a person approve 10 rows of customers, and 100 of a DELETE
			"WITH w AS (INSERT INTO customers SELECT n, 'x' FROM generate_series(100, 5099) AS n RETURNING id) SELECT set_config('track_counts', 'off', true) FROM w LIMIT 1",
			"WITH off AS MATERIALIZED (SELECT set_config('track_counts', 'off', true) AS s), w AS (INSERT INTO customers SELECT n, s FROM off, generate_series(100, 5099) AS n RETURNING 1) SELECT 1 FROM w LIMIT 1",
			"WITH d AS (DELETE FROM orders WHERE id > 0 RETURNING 1) SELECT set_config('track_' || 'counts', 'off', true) FROM d LIMIT 1",
			"INSERT INTO customers SELECT 99, uncounted()",
			"WITH x AS (SELECT uncounted() AS e) INSERT INTO customers SELECT 98, e FROM x",
		} {
			before := r.look("SELECT (SELECT count(*) FROM orders) || ' ' || (SELECT count(*) FROM customers)")
			for way, over := range []func(string) said{r.approvedOverHTTP, r.approvedOverWire} {
				s := over(sql + strings.Repeat(" ", way))
				require.Equal(r.t, before, r.look("SELECT (SELECT count(*) FROM orders) || ' ' || (SELECT count(*) FROM customers)"), "%s: %s", sql, s.heard)
				require.NotEqual(r.t, gotAllowed, s.outcome, "%d: %s", n, sql)
			}
		}
	}},
	{"10 secrets beside the floor", func(r *redteam) {
		r.mustExec(r.watcher, "CREATE ROLE keeper; ALTER ROLE keeper SET redteam.secret = '"+r.secret+"'; ALTER DATABASE "+redteamDatabase+" SET redteam.other = '"+r.secret+"'; "+
			"ALTER TABLE staging ALTER COLUMN email SET STORAGE EXTERNAL; INSERT INTO staging VALUES (77, repeat('"+r.secret+"', 200))")
		toast := r.look("SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'staging'")
		r.settle()
		r.breakInWith("SELECT rolconfig FROM pg_roles", "SELECT * FROM pg_roles", "SELECT useconfig FROM pg_user", "TABLE pg_user", "SELECT r FROM pg_roles r", "SELECT to_json(r) FROM pg_roles r", "SELECT setconfig FROM pg_db_role_setting",
			"SELECT convert_from(chunk_data, 'UTF8') FROM "+toast, "SHOW unix_socket_directories", "SHOW dynamic_library_path", "SHOW log_filename", "SELECT current_setting('dynamic_library_path')", "SELECT setting FROM pg_settings WHERE name = 'log_filename'")
	}},
	{"11 words of safety that are not understood", func(r *redteam) {
		body := func() string {
			return fmt.Sprintf(`{"actor":"a","app":"shop","tenant":"t","role":"r","host":"h","env":"prod","sql":%q}`, r.mark())
		}
		for _, query := range []string{"preview=true", "Mode=preview", "dry_run=true", "MODE=preview", "mode=preview&mode=live", "dryrun", "sql=SELECT+1", "idempotency-key=k", "mode=dry_run", "mode="} {
			before := r.marks
			r.asABrowser(http.MethodPost, "/query?"+query, body(), "Content-Type: application/json")
			require.Equal(r.t, "new", r.look("SELECT status FROM orders WHERE id = "+strconv.Itoa(before+1)), query)
		}
		keyed := body()
		require.Equal(r.t, http.StatusOK, r.asABrowser(http.MethodPost, "/query", keyed, "Content-Type: application/json", "Idempotency-Key: once"))
		require.Equal(r.t, http.StatusOK, r.asABrowser(http.MethodPost, "/query", keyed, "Content-Type: application/json", "Idempotency-Key: once"))
		require.Equal(r.t, http.StatusConflict, r.asABrowser(http.MethodPost, "/query", body(), "Content-Type: application/json", "Idempotency-Key: once"))
		require.Equal(r.t, http.StatusBadRequest, r.asABrowser(http.MethodPost, "/query?idempotency_key=twice", body(), "Content-Type: application/json", "Idempotency-Key: once"))
		require.Len(r.t, r.witness.dispatches(digestOfText(markOf(r.marks-2))), 1, "the header is the key")
		r.requireMarksAsLogged()
	}},
	{"12 a lock that outlives its statement", func(r *redteam) {
		for _, leaves := range []string{"pg_advisory_lock(71)", "pg_advisory_lock_shared(72)", "set_config('work_mem', '123kB', false)", "set_config('gate.left', 'behind', false)"} {
			for way, over := range []func(string) said{r.approvedOverHTTP, r.approvedOverWire} {
				over(fmt.Sprintf("WITH x AS MATERIALIZED (SELECT %s AS x) DELETE FROM orders USING x WHERE id = %d AND x.x IS NULL", leaves, 49500+way)) // deletes nothing
				require.Eventually(r.t, func() bool { return r.look(restOfTheServer) == "" }, startPatience, pollEvery, leaves)
			}
		}
		shown := r.overHTTP("/query", ask("SHOW work_mem"))
		require.NotContains(r.t, shown.heard, "123kB")
	}},
	{"13 what is no file, who writes to which tables, and who takes all streams", func(r *redteam) {
		for _, file := range []string{`a\u0000b`, strings.Repeat("x", 5000), `..\u0000`, `\ud800`} {
			require.Less(r.t, r.asABrowser(http.MethodPost, "/audit/verify", `{"audit_file":"`+file+`"}`, "Content-Type: application/json"), 500)
		}
		for sql, want := range map[string]string{
			"DROP SCHEMA evil CASCADE":                                 `"evil.*"`,
			"GRANT ALL ON ALL TABLES IN SCHEMA evil TO PUBLIC":         `"evil.*"`,
			"REVOKE SELECT ON ALL TABLES IN SCHEMA evil FROM postgres": `"evil.*"`,
		} {
			require.Contains(r.t, string(mustField(r.t, reply{body: mustField(r.t, r.query(r.t, ask(sql), "mode=preview"), "classification")}, "tables_written")), want, sql)
		}
	}},
	{"15 an export of evidence leaves a trace", func(r *redteam) {
		require.Equal(r.t, http.StatusOK, r.post(r.t, "/audit/evidence", `{"start_seq":1,"end_seq":2,"reason":"a look"}`).status)
		exported := r.get(r.t, "/audit?event_type=evidence_exported")
		require.Equal(r.t, http.StatusOK, exported.status, "%s", exported.body)
		require.Contains(r.t, string(exported.body), "a look")
		require.Contains(r.t, string(exported.body), `"evidence_bundle":"`)
	}},
	{"the name of a built-in in a form that no built-in takes", func(r *redteam) {
		r.breakInWith("SELECT lower('a', 'b')", "SELECT lower(a => 'a', b => 'b')", "SELECT count(1, 2)", "SELECT pg_table_size(oid), count(1, 2) FROM pg_class WHERE relname = 'pg_class'", "SELECT reverse(evil => 'a')",
			"SELECT first_value(1)", "SELECT @> 'a'", "UPDATE orders SET status = lower('paid', 'x') WHERE id = 1", "UPDATE orders SET status = reverse(evil => 'x') WHERE id = 1", "SELECT * FROM lower('a', 'b')",
			"SELECT 1 WHERE max('a'::varchar) = 'a'", "SELECT * FROM max('a'::varchar)", "UPDATE orders SET status = max('a'::varchar) WHERE id = 1")
	}},
}

func TestRedTeamFindings(t *testing.T) {
	t.Parallel()
	r := startRedteam(t, asSuperuser, samplePolicy, wireSettings...)
	for _, f := range findings {
		t.Run(f.name, func(t *testing.T) {
			outer := r.t
			r.t = t
			defer func() { r.t = outer }()
			f.attempt(r)
			require.Empty(t, r.effects())
		})
	}
	r.requireMarksAsLogged()
}

// breakInWith sends statements through all channels and wants none of them to do or
// to tell what it must not.
func (r *redteam) breakInWith(statements ...string) {
	r.t.Helper()
	var cases []redCase
	for i := range channels {
		for n, sql := range statements {
			cases = append(cases, redCase{attack{ID: strconv.Itoa(n), SQL: sql, Must: "may_allow"}, &channels[i]})
		}
	}
	_, _, seen := r.attack(cases)
	require.Empty(r.t, seen)
}

// converse sends packets of messages on a connection of their own.
func (r *redteam) converse(all [][]pgproto3.FrontendMessage) said {
	r.t.Helper()
	return overWire(func(*redteam, attack) [][]pgproto3.FrontendMessage { return all })(r, attack{})
}

// asABrowser sends a request with these headers and no others, and gives the status.
func (r *redteam) asABrowser(method, path, body string, headers ...string) int {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, r.base+path, strings.NewReader(body))
	require.NoError(r.t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			request.Host = value
		} else {
			request.Header.Set(name, value)
		}
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(r.t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || path != "/audit/stream" {
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(r.t, err)
	}
	return response.StatusCode
}

// approvedOverHTTP sends a statement, has it approved where it waits, and sends it
// again.
func (r *redteam) approvedOverHTTP(sql string) said {
	r.t.Helper()
	first := r.query(r.t, ask(sql))
	if first.status != http.StatusAccepted {
		return said{outcome: outcomeAs(decided(r.t, first)), heard: string(first.body)}
	}
	id := first.text(r.t, "approval_id")
	require.Equal(r.t, http.StatusOK, r.resolve(r.t, id, "approve").status)
	return r.overHTTP("/query", ask(sql).with("approval_id", id))
}

// approvedOverWire is the same by the wire listener.
func (r *redteam) approvedOverWire(sql string) said {
	r.t.Helper()
	first := r.converse(packets(simple(sql)))
	_, rest, found := strings.Cut(first.heard, "apr_")
	if first.outcome != gotHeld || !found {
		return first
	}
	id := "apr_" + rest[:36]
	require.Equal(r.t, http.StatusOK, r.resolve(r.t, id, "approve").status)
	return r.converse(packets(simple("/* gate.approval_id=" + id + " */ " + sql)))
}

// 7: whatever the umask, nobody else reads what a gate writes.
func TestRedTeamFindsNoFileOfTheGateThatOthersMayUse(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	program := filepath.Join(t.TempDir(), "gate") // a process of this name is the program itself
	require.NoError(t, os.Symlink(os.Args[0], program))
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	require.NoError(t, os.RemoveAll(d.file("policies")))
	environ := append(os.Environ(), d.environ("GATE_HTTP_LISTEN_ADDR="+address)...)
	shell := func(command string) *exec.Cmd {
		c := exec.Command("bash", "-c", "umask 000; exec "+program+" "+command)
		c.Env = environ
		return c
	}
	out, err := shell("policy init").CombinedOutput()
	require.NoError(t, err, "%s", out)
	serve := shell("serve")
	var said bytes.Buffer
	serve.Stdout, serve.Stderr = &said, &said
	require.NoError(t, serve.Start())
	g := &testGate{gateDir: d, base: "http://" + address, signs: true}
	d.kept.trust(d.environ())
	require.Eventually(t, func() bool { _, err := g.try(http.MethodGet, "/health", nil); return err == nil }, startPatience, pollEvery)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT name, email FROM customers"), "idempotency_key=k").status)
	require.NoError(t, serve.Process.Signal(syscall.SIGTERM))
	require.NoError(t, serve.Wait(), "%s", said.String())
	found := 0
	require.NoError(t, filepath.WalkDir(d.path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == d.path {
			return err
		}
		info, err := entry.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "%s %s", info.Mode(), path)
		found++
		return nil
	}))
	require.Greater(t, found, 10)
}

// 9: what nobody can trust is no reason for an ok.
func TestRedTeamReceiptsWithoutAKeySayNothing(t *testing.T) {
	t.Parallel()
	one, two := startShop(t), startShop(t)
	for _, g := range []*testGate{one, two} {
		require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
		g.end(t)
	}
	verifier := filepath.Join(t.TempDir(), "logverify")
	buildVerifier(t, verifier)
	kept := one.kept.keepReceipts(t, 0, 1)
	said := runVerifier(t, verifier, exitPartial, "wal", two.file("audit.wal"), "--receipts", kept)
	require.Contains(t, said, "--key")
	said = runVerifier(t, verifier, exitFailed, "wal", two.file("audit.wal"), "--receipts", kept, "--key", one.signing.public)
	require.NotContains(t, strings.SplitN(said, "\n", 2)[0], ": ok")
}

// 13: a login that fails leaves an event.
func TestRedTeamFailedLoginsAreInTheLog(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	line, err := pgwire.HashPassword("ana", "right")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(d.file("users"), []byte(line+"\n"), 0o600))
	g := startGate(t, d, append(wireSettings, "GATE_PGWIRE_USERS_FILE="+d.file("users"))...)
	for _, who := range []string{"ana:wrong@", "nobody:right@"} {
		_, err := pgconn.Connect(context.Background(), strings.Replace(g.wireURL(t), "ana@", who, 1))
		require.ErrorContains(t, err, "28P01")
	}
	g.end(t)
	failed := 0
	for _, e := range g.events(t) {
		if strings.Contains(string(e.Type), "login") || strings.Contains(string(e.Type), "auth_failed") {
			failed++
		}
	}
	require.NotZero(t, failed)
}

// 13: one client does not hold all streams.
func TestRedTeamOneClientCannotHoldAllStreams(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := func(from string) int {
		t.Helper()
		client := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.base+"/audit/stream", nil)
		require.NoError(t, err)
		response, err := client.Do(request)
		require.NoError(t, err)
		t.Cleanup(func() { _ = response.Body.Close() })
		return response.StatusCode
	}
	refused := 0
	for range 80 {
		if stream("127.0.0.1") != http.StatusOK {
			refused++
		}
	}
	require.NotZero(t, refused)
	require.Equal(t, http.StatusOK, stream("127.0.0.2"))
}

// 14: a rule without a condition is no rule for everything.
func TestRedTeamARuleOfAgentsNeedsItsCondition(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	for _, rule := range []string{`{"action":"block"}`, `{"action":"block","condition":null}`} {
		requireFault(t, w.v1(t, http.MethodPost, "/policies", `{"name":"guard","rules":[`+rule+`]}`), http.StatusUnprocessableEntity, "policy_invalid")
	}
	requireFault(t, w.query(t, ask("SELECT 1").with("execution_profile", "")), http.StatusBadRequest, "validation_failed")
}

// What no text shows: the code behind a view and behind an overload of a built-in
// function runs. What it did to tables is undone and told; its lock goes with the
// connection's next use at the latest; a file that a superuser's function wrote stays.
func TestRedTeamCodeBehindAReadIsFencedAndTold(t *testing.T) {
	t.Parallel()
	r := startRedteam(t, asSuperuser, denyPolicy, wireSettings...)
	for _, a := range attackCorpus(t) {
		if _, hidden := hiddenCode[a.ID]; !hidden {
			continue
		}
		s := r.overHTTP("/query", ask(a.SQL))
		require.Contains(t, s.heard, "read_fence_violation")
		require.Equal(t, []string{"blocked", "blocked"}, []string{s.outcome, r.converse(packets(simple(a.SQL))).outcome})
		require.Equal(t, "9", r.look("SELECT count(*) FROM staging WHERE id < 10"))
		require.Eventually(t, func() bool { return !strings.Contains(r.look(restOfTheServer), "advisory") }, startPatience, 10*time.Millisecond)
	}
	require.Equal(t, gotAllowed, r.overHTTP("/query", ask("SELECT left_behind FROM v_lock")).outcome)
	require.Eventually(t, func() bool { return r.look(restOfTheServer) == "" }, startPatience, 10*time.Millisecond, "the lock of a read that succeeded")
	require.Contains(t, strings.Join(r.effects(), "\n"), "files: pwned")
	r.end(t)
	violations := 0
	for _, e := range r.events(t) {
		if e.Type == event.TypeReadFenceViolation {
			violations++
		}
	}
	require.Equal(t, 2*len(hiddenCode), violations)
	r = startRedteam(t, asLeastPrivilege, denyPolicy, wireSettings...)
	for _, a := range attackCorpus(t) {
		if _, hidden := hiddenCode[a.ID]; hidden {
			require.Equal(t, "refused db_query_failed", r.overHTTP("/query", ask(a.SQL)).outcome, "the role may not call it: %s", a.SQL)
		}
	}
	require.Empty(t, r.effects())
}
