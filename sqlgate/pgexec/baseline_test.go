package pgexec

import (
	"context"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/certs"
)

// ownRule keeps the test itself connected; it is for a role of its own, so that
// the checks of the gate's roles do not meet it first. It is one of the bad ones.
const ownRule = "host all postgres 127.0.0.1/32 scram-sha-256\n"

// verified is what pg_hba.conf should say.
const verified = "hostssl all gate_writer,gate_reader 127.0.0.1/32 scram-sha-256 clientcert=verify-full\n"

// baselineGate is a server whose access rules are the test's, and a DB that logs
// in with certificate and password.
type baselineGate struct {
	*tlsServer
	db, bare *DB // with a client certificate, and without
}

func newBaselineGate(t *testing.T) *baselineGate {
	t.Helper()
	s := newTLSServer(t)
	for _, sql := range []string{
		"CREATE ROLE gate_writer LOGIN PASSWORD 'w'", "CREATE ROLE friends", "GRANT friends TO gate_writer",
		"GRANT SELECT ON pg_hba_file_rules TO gate_writer", "GRANT EXECUTE ON FUNCTION pg_hba_file_rules() TO gate_writer",
	} {
		require.NoError(t, s.Execute(t.Context(), "postgres", sql))
	}
	client := s.ca.Issue(t.TempDir(), "gate_writer", x509.ExtKeyUsageClientAuth)
	open := func(conf TLSConfig) *DB {
		db, err := Open(Config{URL: s.URLFor("gate_writer", "w", "postgres"), TLS: conf}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		t.Cleanup(func() { closeWithin(t, db) })
		return db
	}
	return &baselineGate{s,
		open(TLSConfig{CAPath: s.ca.Path, CertPath: client.Cert, KeyPath: client.Key}),
		open(TLSConfig{CAPath: s.ca.Path}),
	}
}

// checks are the names of the checks that failed, each once.
func checks(findings []Finding) []string {
	names := []string{}
	for _, f := range findings {
		names = append(names, f.Check)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestTheBaselineHoldsOnAServerThatIsSetUpForIt(t *testing.T) {
	g := newBaselineGate(t)
	g.serve("on", ownRule+verified)
	findings, err := g.db.Baseline(context.Background(), true)
	require.NoError(t, err)
	require.Empty(t, findings)
}

func TestEachWeaknessOfTheAccessRulesIsFound(t *testing.T) {
	g := newBaselineGate(t)
	certless := strings.TrimSpace(strings.Replace(verified, " clientcert=verify-full", "", 1)) + "\n"
	for _, c := range []struct {
		name, rules string
		bare        bool     // the gate shows no certificate
		lax         bool     // outside production
		failed      []string // what fails
		warned      []string
		says        string
	}{
		{name: "a broken last line", rules: verified + "hostsl all all 127.0.0.1/32 trust\n", failed: []string{"H2"}, says: "Line 3 of pg_hba.conf is wrong"},
		{name: "host before hostssl", rules: "host all gate_writer 127.0.0.1/32 scram-sha-256\n" + verified, failed: []string{"H3", "H7", "H8"}, says: "Line 2 of pg_hba.conf is the one for gate_writer and is host"},
		{name: "a range with a mask", rules: "host postgres all 127.0.0.0/8 scram-sha-256\n" + verified, failed: []string{"H3", "H7", "H8"}, says: "is host"},
		{name: "by a group", rules: "host all +friends 127.0.0.1/32 scram-sha-256\n" + verified, failed: []string{"H3", "H7", "H8"}, says: "is host"},
		{name: "somebody else's line", rules: "host all somebody,+others 127.0.0.1/32 scram-sha-256\nhost other all 127.0.0.1/32 scram-sha-256\nhost all all 10.0.0.0/8 scram-sha-256\n" + verified, failed: []string{}},
		{name: "any certificate of the authority", rules: "hostssl all gate_writer 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n", failed: []string{"H3"}, says: "verify-ca takes any certificate"},
		{name: "no certificate asked for", rules: certless, failed: []string{"H3", "H8"}, says: "add clientcert=verify-full"},
		{name: "no certificate to show", rules: certless, bare: true, failed: []string{}},
		{name: "md5 in production", rules: strings.Replace(certless, "scram-sha-256", "md5", 1), bare: true, failed: []string{"H3", "H4"}, says: "MD5"},
		{name: "md5 for others outside production", rules: verified + "hostssl other other 127.0.0.1/32 md5\n", lax: true, failed: []string{}, warned: []string{"H4"}, says: "MD5"},
		{name: "trust for others", rules: verified + "host other other 10.0.0.0/8 trust\n", failed: []string{"H4"}, says: "by trust"},
		{name: "local trust", rules: verified + "local all all trust\n", failed: []string{}, warned: []string{"H4"}, says: "trusts local connections"},
		{name: "everybody from everywhere", rules: verified + "hostssl all all 0.0.0.0/0 scram-sha-256\n", failed: []string{}, warned: []string{"H4"}, says: "all addresses"},
		{name: "replication", rules: verified + "hostssl replication gate_writer 10.0.0.0/8 scram-sha-256\n", failed: []string{"H5"}, says: "for replication"},
		{name: "a line that may be meant, by a host's name", rules: "host all all gate.invalid scram-sha-256\n" + verified, failed: []string{"H3"}, says: "is host"},
		{name: "plaintext refused first", rules: "hostnossl all all 0.0.0.0/0 reject\n" + verified, failed: []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.serve("on", ownRule+c.rules)
			if c.name == "a broken last line" { // the server keeps the rules from before
				g.serve("on", ownRule+verified)
				require.NoError(t, os.WriteFile(filepath.Join(g.Dir, "data", "pg_hba.conf"), []byte(ownRule+c.rules), 0o600))
			}
			db := g.db
			if c.bare {
				db = g.bare
			}
			findings, err := db.Baseline(context.Background(), !c.lax)
			require.NoError(t, err)
			failed := Failed(findings)
			require.Equal(t, c.failed, checks(failed), Texts(findings))
			warnings := slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return !f.Warning })
			require.Equal(t, append([]string{}, c.warned...), checks(warnings), Texts(findings))
			require.Contains(t, Texts(findings), c.says)
		})
	}
}

func TestRulesThatMayNotBeReadFailAndSayWhatToGrant(t *testing.T) {
	g := newBaselineGate(t)
	g.serve("on", ownRule+verified)
	require.NoError(t, g.Execute(t.Context(), "postgres", "REVOKE SELECT ON pg_hba_file_rules FROM gate_writer"))
	findings, err := g.db.Baseline(context.Background(), true)
	require.NoError(t, err)
	require.Equal(t, []string{"H1"}, checks(findings), "the live checks are made all the same")
	require.Contains(t, findings[0].Message, "GRANT SELECT ON pg_hba_file_rules TO gate_writer; GRANT EXECUTE ON FUNCTION pg_hba_file_rules() TO gate_writer")
}

func TestABaselineThatCannotBeMadeIsAnError(t *testing.T) {
	ca := certs.NewAuthority(t, t.TempDir(), "ca")
	db, err := Open(Config{URL: "postgres://u:p@127.0.0.1:1/d", TLS: TLSConfig{CAPath: ca.Path}}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { closeWithin(t, db) })
	_, err = db.Baseline(context.Background(), true)
	require.Error(t, err)
}

// What the server shows of itself is not all: in plaintext nothing holds.
func TestAConnectionInCleartextFailsTheLiveChecks(t *testing.T) {
	db, _ := open(t)
	findings, err := db.Baseline(context.Background(), false)
	require.NoError(t, err)
	failed := checks(Failed(findings))
	require.Contains(t, failed, "H6")
	require.Contains(t, failed, "H7")
}
