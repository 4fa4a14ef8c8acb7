package main

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// clientProgram is a program that comes with the server: psql, pgbench.
func clientProgram(t *testing.T, name string) string {
	t.Helper()
	inst, err := postgres.Find()
	require.NoError(t, err)
	if path, err := exec.LookPath(filepath.Join(inst.Bin, name)); err == nil {
		return path
	}
	path, err := exec.LookPath(name)
	require.NoError(t, err, "%s comes with PostgreSQL's client programs", name)
	return path
}

// libpqURL is the URL of a client that asks for TLS unless it is told not to.
func libpqURL(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	u.RawQuery = "sslmode=disable"
	return u.String()
}

// psqlScripts are what a person types, by the item of the common list that it is.
var psqlScripts = []struct{ item, typed string }{
	{"read", `SELECT id, name, price, note FROM items ORDER BY id;
\d items
\dt
SELECT nothing FROM items;
SELECT name FROM items WHERE id = 2 \gdesc
SELECT n FROM generate_series(1, 3) AS n \gset found_
SELECT 1 AS a, 2 AS b \gset
SELECT :a + :b AS c;`},
	{"types", `\x
SELECT 1::int2, 2::int8, 1.5::float4, 'NaN'::float8, 12.340::numeric, '\x00ff'::bytea, '2026-11-21'::date, '{"a": [1, null]}'::jsonb, '{a,NULL,"b c"}'::text[];`},
	{"many rows", `SELECT n, md5(n::text) FROM generate_series(1, 2000) AS n;`},
	{"insert", `INSERT INTO items VALUES (10, 'ten', 10.5) RETURNING id;
UPDATE items SET note = 'changed' WHERE id = 10;`},
	{"duplicate", `INSERT INTO items VALUES (10, 'again');
SELECT 1;`},
	{"block", `BEGIN;
INSERT INTO items VALUES (20, 'kept');
COMMIT;
BEGIN;
INSERT INTO items VALUES (21, 'undone');
SELECT 1/0;
SELECT 1;
ROLLBACK;`},
	{"settings", `SET TimeZone = 'Europe/Berlin';
SELECT timestamptz '2026-07-01 12:00:00+00';`},
	{"parameters", `PREPARE q AS SELECT name FROM items WHERE id = $1;
EXECUTE q(3);
DEALLOCATE q;`},
	{"reconnect", `SELECT id, name, note FROM items ORDER BY id;`},
}

// verbose shows every field of an error.
const verbose = "\\set VERBOSITY verbose\n\\set SHOW_CONTEXT never\n\\pset null (null)\n"

// sourceLine is where in the server's source an error was raised.
var sourceLine = regexp.MustCompile(`(?m)^LOCATION: .*\n`)

// psqlClient is psql with scripts, and with Ctrl-C.
func psqlClient(t *testing.T, c *clientNotes) {
	program, target := clientProgram(t, "psql"), libpqURL(t, c.url)
	for _, script := range psqlScripts {
		c.saw(script.item, "%s", sourceLine.ReplaceAllString(psql(t, program, target, verbose+script.typed+"\n"), ""))
	}
	c.saw("wrong syntax", "%s", psql(t, program, target, "\\set VERBOSITY sqlstate\nSELEC 1;\n"))
	c.saw("cancel", "%s", interrupted(t, c, program, target))
	if !c.gated() {
		return
	}
	for _, refusal := range []struct{ item, script string }{
		{"blocked", "DELETE FROM items;"},
		{"too many rows", "SELECT n FROM generate_series(1, 10001) AS n;"},
		{"several statements in one text", `SELECT 1\; SELECT 2;`},
		{"copy", `\copy items (id, name) FROM STDIN` + "\n40\tcopied\n\\.\n"},
		{"listen", "LISTEN channel;"},
	} {
		c.told(refusal.item, "%s", psqlCode(psql(t, program, target, `\set VERBOSITY sqlstate`+"\n"+refusal.script+"\n\\echo still here\n")))
	}
	held := psql(t, program, target, "DELETE FROM items WHERE id = 1;\n")
	require.Contains(t, held, "HINT:  After approval send it again, once: after SET gate.approval_id = 'apr_")
	approval := approvalIn(held)
	c.resolve(approval)
	c.told("approved", "%s", strings.ReplaceAll(psql(t, program, target, "SET gate.approval_id = '"+approval+"';\nDELETE FROM items WHERE id = 1;\nSELECT 'ok' WHERE NOT EXISTS (SELECT FROM items WHERE id = 1);\n"), "\n", " "))
	c.told("approved and used", "%s", psqlCode(psql(t, program, target, "\\set VERBOSITY sqlstate\nSET gate.approval_id = '"+approval+"';\nDELETE FROM items WHERE id = 1;\n")))
}

func psqlCode(output string) string {
	return strings.ReplaceAll(strings.TrimSpace(output), "\n", " / ")
}

// psql runs a script as if it were typed and gives all that it printed.
func psql(t *testing.T, program, target, script string) string {
	t.Helper()
	cmd := exec.Command(program, "-X", "-q", target)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "PGAPPNAME=psql")
	cmd.Stdin = strings.NewReader(script)
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	require.NoError(t, cmd.Run(), "%s", &both)
	return both.String()
}

// interrupted sends psql what Ctrl-C sends while a statement runs.
func interrupted(t *testing.T, c *clientNotes, program, target string) string {
	t.Helper()
	cmd := exec.Command(program, "-X", "-q", target, "-c", `\set VERBOSITY sqlstate`, "-c", "SELECT pg_sleep(61)")
	var both lockedBuffer
	cmd.Stdout, cmd.Stderr = &both, &both
	require.NoError(t, cmd.Start())
	c.sleeps(t)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Error(t, cmd.Wait(), "psql says that its statement failed")
	return both.String()
}

// pgbenchClient runs pgbench's own scripts in all of its ways to send a query.
func pgbenchClient(t *testing.T, c *clientNotes) {
	program, target := clientProgram(t, "pgbench"), libpqURL(t, c.url)
	pipeline := filepath.Join(t.TempDir(), "pipeline.sql")
	require.NoError(t, os.WriteFile(pipeline, []byte(`\set id random(1, 100000)
\startpipeline
SELECT abalance FROM pgbench_accounts WHERE aid = :id;
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :id;
SELECT abalance FROM pgbench_accounts WHERE aid = :id;
\endpipeline
`), 0o600))
	for _, mode := range []string{"simple", "extended", "prepared"} {
		c.saw("block of TPC-B, "+mode, "%s", pgbench(t, program, target, "-n", "-M", mode, "-c", "2", "-t", "10"))
		c.saw("read of SELECT only, "+mode, "%s", pgbench(t, program, target, "-n", "-S", "-M", mode, "-c", "2", "-t", "20"))
	}
	for _, mode := range []string{"extended", "prepared"} {
		c.saw("pipeline, "+mode, "%s", pgbench(t, program, target, "-n", "-f", pipeline, "-M", mode, "-c", "2", "-t", "10"))
	}
	if c.gated() {
		cmd := exec.Command(program, "-i", "-q", target)
		output, err := cmd.CombinedOutput()
		require.Error(t, err, "%s", output)
		c.told("initialise", "refused: %t", bytes.Contains(output, []byte("not available through the gate")) || bytes.Contains(output, []byte("drop table")))
	}
}

// processed is the line of pgbench's report that is the same in each run.
var processed = regexp.MustCompile(`number of (transactions actually processed|failed transactions): .*`)

func pgbench(t *testing.T, program, target string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, append(args, target)...)
	output, err := cmd.CombinedOutput()
	return fmt.Sprintf("%s %v", strings.Join(processed.FindAllString(string(output), -1), ", "), failing(err, output))
}

// failing is an error with what the program said.
func failing(err error, output []byte) string {
	if err == nil {
		return "ok"
	}
	return err.Error() + "\n" + string(output)
}

// pgbenchTables are made at the database itself: pgbench fills them by COPY.
func pgbenchTables(t *testing.T, database string) {
	t.Helper()
	output, err := exec.Command(clientProgram(t, "pgbench"), "-i", "-q", libpqURL(t, database)).CombinedOutput()
	require.NoError(t, err, "%s", output)
}
