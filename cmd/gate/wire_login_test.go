package main

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/fixtures/certs"
	"writegate/sqlgate/pgwire"
)

func TestADriverLogsInAndIsToldWhatItHasToKnow(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	c := g.connect(t, "application_name=till")
	for name, want := range map[string]string{
		"server_version": g.value(t, "SHOW server_version"), "server_encoding": "UTF8", "client_encoding": "UTF8", "integer_datetimes": "on",
		"DateStyle": "ISO, MDY", "IntervalStyle": "postgres", "TimeZone": "UTC", "standard_conforming_strings": "on", "application_name": "till",
		"default_transaction_read_only": "off", "in_hot_standby": "off", "is_superuser": "off", "session_authorization": "ana",
	} {
		require.Equal(t, want, c.ParameterStatus(name), name)
	}
	require.NotZero(t, c.PID())
	require.Len(t, c.SecretKey(), 4)
	require.Equal(t, byte('I'), c.TxStatus())
	results, err := c.Exec(context.Background(), "SELECT 1 AS one").ReadAll()
	require.NoError(t, err)
	require.Equal(t, "1", string(results[0].Rows[0][0]))
	require.Equal(t, "SELECT 1", results[0].CommandTag.String())
	require.NoError(t, c.Close(context.Background()))
	g.end(t)
	for _, e := range g.events(t) {
		if e.Type == "request_received" {
			require.Equal(t, "ana", e.Context.Actor)
			require.Equal(t, "shop", e.Context.App)
			require.Equal(t, "acme", e.Context.Tenant)
			require.Empty(t, e.Context.SessionID)
			return
		}
	}
	t.Fatal("the statement left no evidence")
}

func TestTheOtherVersionsOfTheProtocolAreSpoken(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	c := g.connect(t, "min_protocol_version=3.2", "max_protocol_version=3.2")
	require.Len(t, c.SecretKey(), 32)
	_, err := c.Exec(context.Background(), "SELECT 1").ReadAll()
	require.NoError(t, err)
}

func TestPsqlRunsAStatement(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	url := "postgres://ana@" + g.wire + "/" + g.databaseName(t) + "?sslmode=disable"
	psql := exec.Command("psql", "-X", "-A", "-t", "-d", url, "-c", "SELECT count(*) FROM orders")
	psql.Env = append(os.Environ(), "PGOPTIONS=-c gate.tenant=acme")
	out, err := psql.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "100\n", string(out))
}

func TestALoginIsRefusedWhileTheStartupChainFails(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	require.NoError(t, os.RemoveAll(d.file("policies")))
	g := startGate(t, d, wireSettings...)
	_, err := pgconn.Connect(context.Background(), g.wireURL(t))
	var e *pgconn.PgError
	require.True(t, errors.As(err, &e), "%v", err)
	require.Equal(t, "57P03", e.Code)
	require.Equal(t, "FATAL", e.Severity)
	require.Contains(t, e.Message, "policy")
}

func TestPasswordsComeFromAFileThatIsReadAnew(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	path := d.file("users")
	replace := func(text string) { // at once: a file that is half written has other users
		t.Helper()
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	write := func(user, password string) {
		t.Helper()
		line, err := pgwire.HashPassword(user, password)
		require.NoError(t, err)
		replace(line + "\n")
	}
	write("ana", "first")
	g := startGateWith(t, d, func(a *app) { a.look = pollEvery }, append(wireSettings, "GATE_PGWIRE_USERS_FILE="+path)...)
	login := func(password string) error {
		c, err := pgconn.Connect(context.Background(), strings.Replace(g.wireURL(t), "ana@", "ana:"+password+"@", 1))
		if err == nil {
			err = c.Close(context.Background())
		}
		return err
	}
	require.NoError(t, login("first"))
	require.ErrorContains(t, login("second"), "28P01")
	open, err := pgconn.Connect(context.Background(), strings.Replace(g.wireURL(t), "ana@", "ana:first@", 1))
	require.NoError(t, err)
	query := func() error { return open.Exec(context.Background(), "SELECT 1").Close() }
	require.NoError(t, query())
	write("ana", "first") // another salt alone would do
	require.Eventually(t, func() bool { return query() != nil }, startPatience, pollEvery, "nobody goes on with a password that was taken away")
	write("ana", "second")
	require.Eventually(t, func() bool { return login("second") == nil }, startPatience, pollEvery)
	require.ErrorContains(t, login("first"), "28P01")
	open, err = pgconn.Connect(context.Background(), strings.Replace(g.wireURL(t), "ana@", "ana:second@", 1))
	require.NoError(t, err)
	require.NoError(t, query())
	for _, without := range []func(){func() { write("eva", "second") }, func() { replace("# nobody\n") }} {
		without() // ana is in it no more
		require.Eventually(t, func() bool { return query() != nil }, startPatience, pollEvery)
		require.ErrorContains(t, login("second"), "28P01")
		write("ana", "second")
		require.Eventually(t, func() bool { return login("second") == nil }, startPatience, pollEvery)
		open, err = pgconn.Connect(context.Background(), strings.Replace(g.wireURL(t), "ana@", "ana:second@", 1))
		require.NoError(t, err)
	}
	replace("nonsense\n")
	require.Eventually(t, func() bool {
		wire, _ := g.get(t, "/health").json(t)["wire"].(map[string]any)
		return wire["status"] == "users_refused"
	}, startPatience, pollEvery)
	require.NoError(t, login("second"), "the users read before stay")
	require.NotContains(t, g.output.String(), "SCRAM-SHA-256$4096")
}

// A statement waits, and meanwhile its user leaves the file, or its authority the bundle:
// the statement is refused, nothing that is open stays, and the evidence says so.
func TestWhoIsTakenOutWhileAStatementWaitsRunsNothing(t *testing.T) {
	for _, c := range []struct {
		name  string
		step  string
		ask   []string // the last of them waits
		trail []event.Type
	}{
		{"a write", "decision.before_append", []string{insertOrder}, []event.Type{event.TypeQueryRejected}},
		{"a write in a block", "decision.before_append", []string{"BEGIN", paying, insertOrder}, []event.Type{event.TypeQueryRejected, event.TypeExecutionFailure}},
		{"a COMMIT", "decision.before_append", []string{"BEGIN", insertOrder, "COMMIT"}, []event.Type{event.TypeRequestReceived, event.TypeDecisionRecorded, event.TypeExecutionFailure}},
	} {
		for _, by := range []string{"password", "certificate"} {
			t.Run(c.name+" by "+by, func(t *testing.T) {
				t.Parallel()
				d, waits, goOn := newGateDir(t, nil), make(chan struct{}), make(chan struct{})
				d.execute(t, shopTables)
				var holds atomic.Bool
				hold := func(a *app) {
					a.look = pollEvery
					a.step = func(name string) {
						if name == c.step && holds.CompareAndSwap(true, false) {
							waits <- struct{}{}
							<-goOn
						}
					}
				}
				var g *testGate
				var client *pgconn.PgConn
				var takeOut func()
				want := "28P01"
				if by == "password" {
					path := d.file("users")
					write := func(user string) {
						line, err := pgwire.HashPassword(user, "secret")
						require.NoError(t, err)
						require.NoError(t, os.WriteFile(path+".new", []byte(line+"\n"), 0o600))
						require.NoError(t, os.Rename(path+".new", path))
					}
					write("ana")
					g = startGateWith(t, d, hold, append(wireSettings[:len(wireSettings):len(wireSettings)], "GATE_PGWIRE_USERS_FILE="+path)...)
					var err error
					client, err = pgconn.Connect(context.Background(), strings.Replace(g.wireURL(t), "ana@", "ana:secret@", 1))
					require.NoError(t, err)
					takeOut = func() {
						write("eva")
						require.Eventually(t, func() bool {
							return strings.Contains(g.output.String(), "the users of the wire listener were read anew")
						}, startPatience, pollEvery)
					}
				} else {
					want = "28000"
					files := t.TempDir()
					servers, clients := certs.NewAuthority(t, files, "servers"), certs.NewAuthority(t, files, "clients")
					pair := servers.Issue(files, "gate.test", x509.ExtKeyUsageServerAuth)
					g = startGateWith(t, d, hold, append(wireSettings[:len(wireSettings):len(wireSettings)], "GATE_PGWIRE_AUTH=cert",
						"GATE_TLS_CERT_PATH="+pair.Cert, "GATE_TLS_KEY_PATH="+pair.Key, "GATE_TLS_CLIENT_CA_BUNDLE_PATH="+clients.Path)...)
					secured := &tlsGate{testGate: g, files: files, servers: servers, clients: clients}
					var err error
					client, err = secured.wireAs(t, "ana", "ana")
					require.NoError(t, err)
					takeOut = func() {
						require.NoError(t, os.Rename(certs.NewAuthority(t, files, "next").Path, clients.Path))
						require.Eventually(t, func() bool { return strings.Contains(g.output.String(), "certificates were read anew") }, startPatience, pollEvery)
					}
				}
				last := len(c.ask) - 1
				for _, sql := range c.ask[:last] {
					require.NoError(t, client.Exec(context.Background(), sql).Close(), sql)
				}
				holds.Store(true)
				told := make(chan error, 1)
				go func() { told <- client.Exec(context.Background(), c.ask[last]).Close() }()
				<-waits
				takeOut()
				close(goOn)
				var e *pgconn.PgError
				require.ErrorAs(t, <-told, &e)
				require.Equal(t, "FATAL "+want, e.Severity+" "+e.Code)
				require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE id > 100 OR status = 'paid'"))
				require.Eventually(t, client.IsClosed, startPatience, pollEvery)
				g.end(t)
				var trail []event.Type
				for _, e := range g.events(t) {
					switch e.Type {
					case event.TypeExecutionSuccess:
						t.Errorf("%s ran", e.Context.Operation)
					case event.TypeExecutionDispatched: // of what came before
						trail = nil
					case event.TypeRequestReceived, event.TypeDecisionRecorded, event.TypeExecutionFailure:
						trail = append(trail, e.Type)
					case event.TypeQueryRejected:
						trail = append(trail, e.Type)
						require.Equal(t, "sqlstate_"+want, e.Context.ReasonCode)
					}
				}
				require.Equal(t, c.trail, trail)
			})
		}
	}
}

// Whoever logs in with a password of his own is named by the evidence beside what he
// claims to be, and what was approved for another is not his.
func TestWhoLoggedInIsProvenWhateverIsClaimed(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	var users []byte
	for _, user := range []string{"ana", "mallory"} {
		line, err := pgwire.HashPassword(user, user)
		require.NoError(t, err)
		users = append(users, line+"\n"...)
	}
	require.NoError(t, os.WriteFile(d.file("users"), users, 0o600))
	g := startGate(t, d, append(wireSettings, "GATE_PGWIRE_USERS_FILE="+d.file("users"), "GATE_MODE=approval_first")...)
	send := func(user, sql string) error {
		config, err := pgconn.ParseConfig(strings.Replace(g.wireURL(t), "ana@", user+":"+user+"@", 1))
		require.NoError(t, err)
		config.RuntimeParams["options"] = "-c gate.actor=ana"
		c, err := pgconn.ConnectConfig(context.Background(), config)
		require.NoError(t, err)
		defer c.Close(context.Background())
		return c.Exec(context.Background(), sql).Close()
	}
	require.ErrorContains(t, send("ana", paying), "GT001")
	held := g.approvals(t, "status=pending").Items[0]
	require.Equal(t, "user=ana", held["principal"], "beside what is claimed")
	id := held["approval_id"].(string)
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	with := "/* gate.approval_id=" + id + " */ " + paying
	require.ErrorContains(t, send("mallory", with), "GT002")
	require.NoError(t, send("ana", with))
	g.end(t)
	principals := map[string]int{}
	for _, e := range g.events(t) {
		switch e.Type {
		case event.TypeRequestReceived:
			var p event.RequestReceived
			require.NoError(t, e.Parse(&p))
			principals[p.Principal]++
		case event.TypeQueryRejected:
			var p event.QueryRejected
			require.NoError(t, e.Parse(&p))
			principals[p.Principal]++
		}
	}
	require.Equal(t, map[string]int{"user=ana": 2, "user=mallory": 1}, principals)
}

func TestTheHashCommandMakesAUserWhoCanLogIn(t *testing.T) {
	t.Parallel()
	out := &lockedBuffer{}
	a := &app{streams: streams{strings.NewReader("a secret\n"), out, out}}
	require.Zero(t, a.run(context.Background(), []string{"pgwire", "hash-password", "ana"}), out)
	d := newGateDir(t, nil)
	require.NoError(t, os.WriteFile(d.file("users"), []byte(out.String()), 0o600))
	g := startGate(t, d, append(wireSettings, "GATE_PGWIRE_USERS_FILE="+d.file("users"))...)
	c, err := pgconn.Connect(context.Background(), strings.Replace(g.wireURL(t), "ana@", "ana:a%20secret@", 1))
	require.NoError(t, err)
	require.NoError(t, c.Close(context.Background()))
	for _, args := range [][]string{{"pgwire", "hash-password"}, {"pgwire", "hash-password", "ana", "eva"}, {"pgwire", "hash-password", ""}} {
		out := &lockedBuffer{}
		a := &app{streams: streams{strings.NewReader("x\n"), out, out}}
		require.Equal(t, exitUsage, a.run(context.Background(), args), out)
	}
}

func TestSettingsOfTheWireListenerThatDoNotGoTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want     string
		settings []string
	}{
		{"GATE_PGWIRE_LAB_MODE", []string{"GATE_PGWIRE_ENABLED=true", "GATE_PGWIRE_LISTEN_ADDR=127.0.0.1:0"}},
		{"GATE_PGWIRE_LISTEN_ADDR", append(wireSettings, "GATE_PGWIRE_LISTEN_ADDR=10.0.0.1:6544", "GATE_PGWIRE_AUTH=trust")},
		{"GATE_PGWIRE_USERS_FILE", append(wireSettings, "GATE_PGWIRE_USERS_FILE=/nowhere/users")},
		{"GATE_TLS_CLIENT_CA_BUNDLE_PATH", append(wireSettings, "GATE_PGWIRE_AUTH=cert")},
		{"GATE_TLS_CERT_PATH", append(wireSettings, "GATE_PGWIRE_TLS=require")},
		{"GATE_PGWIRE_ENABLED must be false in production", append(wireSettings, "GATE_PROFILE=production")},
	} {
		out := &lockedBuffer{}
		d := gateDir{path: t.TempDir(), database: "postgres://x@127.0.0.1:1/x"}
		a := &app{streams: streams{strings.NewReader(""), out, out}, environ: d.environ(c.settings...)}
		require.Equal(t, exitConfigured, a.run(context.Background(), []string{"serve"}), out)
		require.Contains(t, out.String(), c.want)
	}
}

// The contract's two settings are enough: at its address passwords are asked for, of
// a user who is made where no setting names any, and who is told once.
func TestTheWireListenerStartsWithTheContractsSettingsAlone(t *testing.T) {
	t.Parallel()
	s, err := loadSettings([]string{"GATE_PGWIRE_ENABLED=true", "GATE_PGWIRE_LAB_MODE=true"}, noon)
	require.NoError(t, err)
	require.Equal(t, "0.0.0.0:6544", s.WireListenAddr)
	require.Equal(t, pgwire.AuthScram, s.wireAuth())

	d := newGateDir(t, nil)
	g := startGate(t, d, append(wireSettings, "GATE_PGWIRE_AUTH=scram")...) // as at that address, but of this machine alone
	told := regexp.MustCompile(`user gate, password (\S+)\.`).FindStringSubmatch(g.output.String())
	require.NotNil(t, told, g.output)
	info, err := os.Stat(d.file("pgwire_users"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	made, err := filepath.Glob(d.file("pgwire_users*"))
	require.NoError(t, err)
	require.Len(t, made, 1, "nothing is left of its making")
	login := func(password string) error {
		c, err := pgconn.Connect(context.Background(), strings.Replace(g.wireURL(t), "ana@", "gate:"+password+"@", 1))
		if err == nil {
			err = c.Close(context.Background())
		}
		return err
	}
	require.NoError(t, login(told[1]))
	require.ErrorContains(t, login("guessed"), "28P01")
	require.NotContains(t, string(g.get(t, "/logs").body), told[1])
	g.end(t)

	g = startGate(t, d, append(wireSettings, "GATE_PGWIRE_AUTH=scram")...)
	require.NotContains(t, g.output.String(), "password "+told[1])
	require.NotContains(t, g.output.String(), "asks for a password")
	require.NoError(t, login(told[1]))
}

func TestTheWireListenerIsOffByDefault(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Empty(t, g.wire)
	require.NotContains(t, g.get(t, "/health").json(t), "wire")
	require.Equal(t, map[string]any{"connections": 0.0, "blocks": 0.0, "cancels": 0.0}, g.get(t, "/runtime/stats").json(t)["wire"])
}

func TestStatsCountWhatLoggedIn(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	w := g.rawWire(t)
	stats := func() any { return g.get(t, "/runtime/stats").json(t)["wire"] }
	require.Equal(t, map[string]any{"connections": 1.0, "blocks": 0.0, "cancels": 0.0}, stats())
	require.Equal(t, []string{"BEGIN", "ready T"}, w.ask(&pgproto3.Query{String: "BEGIN"}))
	require.Equal(t, []string{"INSERT 0 1", "ready T"}, w.ask(&pgproto3.Query{String: "INSERT INTO orders VALUES (1001, 1, 'new')"}))
	require.Equal(t, map[string]any{"connections": 1.0, "blocks": 1.0, "cancels": 0.0}, stats())
	w.send(&pgproto3.Terminate{})
	require.Eventually(t, func() bool { return stats().(map[string]any)["connections"] == 0.0 }, startPatience, pollEvery)
	require.Equal(t, 0.0, stats().(map[string]any)["blocks"])
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE id = 1001"))
}
