package main

import (
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/fixtures/certs"
	"writegate/fixtures/postgres"
	"writegate/sqlgate"
	"writegate/sqlgate/pgexec"
)

// goodRules are access rules that the baseline takes; the test itself comes in by
// the first line, which is for the superuser alone.
const goodRules = "host all postgres 127.0.0.1/32 scram-sha-256\nhostssl all gate_writer,gate_reader 127.0.0.1/32 scram-sha-256 clientcert=verify-full\n"

// A guardedServer is a PostgreSQL with certificates, the roles of
// docs/database-role.sql and access rules that the test writes.
type guardedServer struct {
	*postgres.Cluster
	t        *testing.T
	settings []string // of a gate that logs in there
}

func startGuardedServer(t *testing.T) *guardedServer {
	t.Helper()
	s := &guardedServer{Cluster: postgres.ClusterForTest(t, nil), t: t}
	ca := certs.NewAuthority(t, s.Dir, "ca")
	pair := ca.Issue(s.Dir, "db.test", x509.ExtKeyUsageServerAuth)
	info, err := os.Stat(filepath.Join(s.Dir, "data"))
	require.NoError(t, err)
	owner := info.Sys().(*syscall.Stat_t)
	require.NoError(t, os.Chown(pair.Key, int(owner.Uid), int(owner.Gid)))
	for _, sql := range []string{
		"ALTER SYSTEM SET ssl_cert_file = '" + pair.Cert + "'", "ALTER SYSTEM SET ssl_key_file = '" + pair.Key + "'",
		"ALTER SYSTEM SET ssl_ca_file = '" + ca.Path + "'", "ALTER SYSTEM SET ssl = on",
		"CREATE ROLE gate_writer LOGIN PASSWORD 'w'", "GRANT SELECT ON pg_hba_file_rules TO gate_writer", "GRANT EXECUTE ON FUNCTION pg_hba_file_rules() TO gate_writer",
	} {
		s.run(sql)
	}
	s.allow(goodRules)
	client := ca.Issue(t.TempDir(), "gate_writer", x509.ExtKeyUsageClientAuth)
	s.settings = []string{
		"GATE_DATABASE_URL=" + s.URLFor("gate_writer", "w", "postgres"), "GATE_TLS_UPSTREAM_MODE=verify-full",
		"GATE_TLS_UPSTREAM_CA_BUNDLE_PATH=" + ca.Path, "GATE_TLS_UPSTREAM_CERT_PATH=" + client.Cert, "GATE_TLS_UPSTREAM_KEY_PATH=" + client.Key,
	}
	return s
}

func (s *guardedServer) run(sql string) {
	s.t.Helper()
	require.NoError(s.t, s.Execute(s.t.Context(), "postgres", sql), sql)
}

// allow writes pg_hba.conf, whole at every moment since a gate looks at it as
// often as it likes, and has the server read it.
func (s *guardedServer) allow(rules string) {
	s.t.Helper()
	before := postgres.QueryURL(s.t, s.URL("postgres"), "SELECT pg_conf_load_time()")
	path := filepath.Join(s.Dir, "data", "pg_hba.conf")
	require.NoError(s.t, os.WriteFile(path+".new", []byte(rules), 0o600))
	require.NoError(s.t, s.Give(path+".new"))
	require.NoError(s.t, os.Rename(path+".new", path))
	s.run("SELECT pg_reload_conf()")
	require.Eventually(s.t, func() bool {
		return postgres.QueryURL(s.t, s.URL("postgres"), "SELECT pg_conf_load_time()") != before
	}, startPatience, pollEvery, "the server did not read its access rules")
}

// step is a step of the startup chain in GET /health.
func (g *testGate) step(t *testing.T, name string) (httpStatus int, status, message string) {
	t.Helper()
	r := g.get(t, "/health")
	steps, _ := r.json(t)["startup_chain"].([]any)
	for _, s := range steps {
		if s := s.(map[string]any); s["step"] == name {
			return r.status, s["status"].(string), s["message"].(string)
		}
	}
	return r.status, "", ""
}

func TestAnEnforcedBaselineRefusesStatementsUntilTheRulesAreMended(t *testing.T) {
	t.Parallel()
	s := startGuardedServer(t)
	d := gateDir{path: newGateDir(t, nil).path, database: s.URL("postgres")}
	g := startGateWith(t, d, func(a *app) { a.look = 20 * time.Millisecond }, append(s.settings, "GATE_ENFORCE_PG_HBA_BASELINE=true")...)
	httpStatus, status, message := g.step(t, "pg_hba_baseline")
	require.Equal(t, []any{http.StatusOK, "ok"}, []any{httpStatus, status}, message)
	require.Contains(t, message, "shows the file, not what the server loaded")
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	sides, _ := g.get(t, "/health").json(t)["tls"].([]any)
	require.Len(t, sides, 1)
	require.Equal(t, []any{"database", "ok"}, []any{sides[0].(map[string]any)["side"], sides[0].(map[string]any)["status"]})

	s.allow("host all all 127.0.0.1/32 scram-sha-256\n" + goodRules)
	require.Eventually(t, func() bool { // a look that began before has what was loaded, and not yet the file
		httpStatus, status, message = g.step(t, "pg_hba_baseline")
		return status == "failed" && strings.Contains(message, "H3: Line 1 of pg_hba.conf is the one for gate_writer and is host")
	}, startPatience, pollEvery)
	require.Equal(t, http.StatusServiceUnavailable, httpStatus)
	r := g.query(t, ask("SELECT 1"))
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.Equal(t, "db_unavailable", r.text(t, "error_code"))
	require.Equal(t, map[string]any{"step": "pg_hba_baseline"}, r.json(t)["details"])

	s.allow(goodRules)
	require.Eventually(t, func() bool { return g.query(t, ask("SELECT 1")).status == http.StatusOK }, startPatience, pollEvery)
	g.end(t)
	var failed []string
	for _, e := range g.events(t) {
		if e.Type == event.TypeHealthFail {
			var p event.HealthFail
			require.NoError(t, e.Parse(&p))
			failed = append(failed, p.Step)
		}
	}
	require.Contains(t, failed, "pg_hba_baseline", "that it failed is evidence")
}

func TestAnEnforcedBaselineThatCannotBeMadeServesNobody(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.database = "postgres://u:p@127.0.0.1:1/db"
	g := startGate(t, d, "GATE_ENFORCE_PG_HBA_BASELINE=true")
	httpStatus, status, message := g.step(t, "pg_hba_baseline")
	require.Equal(t, http.StatusServiceUnavailable, httpStatus)
	require.Equal(t, "failed", status)
	require.Contains(t, message, "cannot be checked")
	require.Equal(t, "db_unavailable", g.query(t, ask("SELECT 1")).text(t, "error_code"))
}

func TestAReportedBaselineTellsAndServes(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_ENFORCE_PG_HBA_BASELINE=report")
	require.Contains(t, g.output.String(), "H6: The connection of ")
	_, status, _ := g.step(t, "pg_hba_baseline")
	require.Empty(t, status, "it is no step where it is not enforced")
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
}

func TestOutsideProductionARoleWithTooManyRightsIsToldAndUsed(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	require.Eventually(t, func() bool { return strings.Contains(g.output.String(), "is SUPERUSER") }, startPatience, pollEvery)
	_, status, _ := g.step(t, "database_role")
	require.Empty(t, status, "it is no step where it is not enforced")
}

func TestTheStepOfTheRolesIsThatOfAllPools(t *testing.T) {
	b := roleBook{reports: map[string]pgexec.RoleReport{"reader": {Pool: "reader", Role: "r", Warn: []string{"w"}}, "writer": {Pool: "writer", Role: "w"}}}
	status, _ := b.verdict()
	require.Equal(t, sqlgate.StepOK, status)
	b.reports["writer"] = pgexec.RoleReport{Pool: "writer", Role: "w", Deny: []string{"is SUPERUSER", "has CREATEDB"}}
	status, message := b.verdict()
	require.Equal(t, sqlgate.StepFailed, status)
	require.Equal(t, "the role w for writer connections is SUPERUSER, has CREATEDB. docs/database-role.sql makes roles that fit.", message)
}
