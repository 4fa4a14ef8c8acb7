package main

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/fixtures/certs"
)

// TestProductionRunsWithAllThatItDemands starts a gate as production has it and
// leaves nothing out: certificates on both sides, roles of their own for reads
// and writes, enforced access rules, synced and signed evidence. Then it goes the
// whole way of a statement and of an auditor.
func TestProductionRunsWithAllThatItDemands(t *testing.T) {
	t.Parallel()
	s := startGuardedServer(t)
	for _, sql := range []string{
		shopTables, "CREATE ROLE gate_reader LOGIN", "REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC", "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
		"GRANT SELECT ON ALL TABLES IN SCHEMA public TO gate_reader", "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO gate_writer",
	} {
		s.run(sql)
	}
	// One certificate stands for both roles, so the server maps its name to them;
	// nobody has a password.
	passwordless := func(role string) string {
		u, err := url.Parse(s.URL("postgres"))
		require.NoError(t, err)
		u.User = url.User(role)
		return u.String()
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "data", "pg_ident.conf"), []byte("gate gate_writer gate_writer\ngate gate_writer gate_reader\n"), 0o600))
	s.allow("host all postgres 127.0.0.1/32 scram-sha-256\nhostssl all gate_writer,gate_reader 127.0.0.1/32 cert map=gate\n")

	g := &tlsGate{files: t.TempDir()}
	g.servers, g.clients = certs.NewAuthority(t, g.files, "servers"), certs.NewAuthority(t, g.files, "clients")
	pair := g.servers.Issue(g.files, "gate.test", x509.ExtKeyUsageServerAuth)
	d := newGateDir(t, nil)
	g.testGate = startGate(t, d, append([]string{"GATE_DATABASE_URL=" + passwordless("gate_writer")}, append(s.settings[1:], "GATE_PROFILE=production", "GATE_DATABASE_READ_URL="+passwordless("gate_reader"),
		"GATE_TLS_CERT_PATH="+pair.Cert, "GATE_TLS_KEY_PATH="+pair.Key, "GATE_TLS_CLIENT_CA_BUNDLE_PATH="+g.clients.Path)...)...)
	g.base = "https://" + strings.TrimPrefix(g.base, "http://")
	g.client = g.as(t, "shop")

	for _, step := range []string{"database_role", "pg_hba_baseline"} { // whose first look may have been too hasty
		require.Eventually(t, func() bool { _, status, _ := g.step(t, step); return status == "ok" }, startPatience, pollEvery, "%s", g.output)
	}
	require.Equal(t, http.StatusOK, g.get(t, "/health").status)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT id FROM orders WHERE id = 1")).status)
	require.Equal(t, http.StatusForbidden, g.query(t, ask("DELETE FROM orders")).status)
	written := g.query(t, ask("UPDATE orders SET status = 'paid' WHERE id = 1"))
	require.Equal(t, http.StatusOK, written.status, "%s", written.body)
	held := g.query(t, ask("DELETE FROM order_items WHERE order_id = 2"))
	require.Equal(t, http.StatusAccepted, held.status, "%s", held.body)
	id := held.text(t, "approval_id")
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	ran := g.query(t, ask("DELETE FROM order_items WHERE order_id = 2").with("approval_id", id))
	require.Equal(t, http.StatusOK, ran.status, "%s", ran.body)

	bundle := g.post(t, "/audit/evidence", fmt.Sprintf(`{"start_seq":1,"end_seq":%d,"reason":"yearly audit"}`, g.head(t)))
	require.Equal(t, http.StatusOK, bundle.status, "%s", bundle.body)
	require.Equal(t, frame.OK, judgeBundle(t, bundle.body, d.signing.key).Status)
	g.end(t)

	require.Len(t, d.kept.texts, 7, "every answer about a statement, an approval or an export had its receipt")
	receipts := d.kept.keepReceipts(t, 0, 7)
	code, out, errs := d.command(t, "log", "verify", "--receipts", receipts, "--key", d.signing.public)
	require.Zero(t, code, "%s%s", out, errs)
	require.Contains(t, out, "L4")
	events := d.events(t)
	var start event.Startup
	require.Equal(t, event.TypeStartup, events[0].Type)
	require.NoError(t, start.Parse(events[0].Payload))
	require.Equal(t, "production", start.Profile)
	require.NotEmpty(t, start.SigningVKey)
}
