package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// productionEnviron is all that production asks for; extra settings win.
func productionEnviron(extra ...string) []string {
	environ := append([]string(nil), extra...)
	for _, pair := range []string{
		"GATE_PROFILE=production",
		"GATE_TLS_CERT_PATH=/etc/gate/gate.crt", "GATE_TLS_KEY_PATH=/etc/gate/gate.key", "GATE_TLS_CLIENT_CA_BUNDLE_PATH=/etc/gate/clients.pem",
		"GATE_TLS_UPSTREAM_CA_BUNDLE_PATH=/etc/gate/database.pem",
		"GATE_DATABASE_URL=postgres://gate_writer:secret@db.example.com/app",
		"GATE_OPERATOR_TOKEN=correct-horse-battery-staple",
		"GATE_EVIDENCE_SIGNING_ENABLED=true", "GATE_EVIDENCE_SIGNING_PRIVATE_KEY_PATH=/etc/gate/evidence-key.pem",
		"GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH=/etc/gate/evidence-key.pub.pem",
	} {
		environ = withDefault(environ, pair)
	}
	return environ
}

// faultsOf are the faults of settings but for parts that are not built.
func faultsOf(environ []string) []string {
	_, err := loadSettings(environ, noon)
	if err == nil {
		return nil
	}
	var faults []string
	for _, line := range strings.Split(err.Error(), "\n")[1:] {
		if !strings.Contains(line, "does not have") {
			faults = append(faults, strings.TrimSpace(line))
		}
	}
	return faults
}

func TestProductionTakesWhatIsSafe(t *testing.T) {
	require.Empty(t, faultsOf(productionEnviron()))
	require.Empty(t, faultsOf(productionEnviron("GATE_TLS_REQUIRE_CLIENT_CERT=true", "GATE_TLS_MIN_VERSION=1.3")))
}

func TestProductionRefusesEachUnsafeSetting(t *testing.T) {
	for name, c := range map[string]struct {
		unsafe []string
		want   string
	}{
		"an API in cleartext":              {[]string{"GATE_TLS_CERT_PATH=", "GATE_TLS_KEY_PATH=", "GATE_TLS_CLIENT_CA_BUNDLE_PATH="}, "GATE_TLS_CERT_PATH and GATE_TLS_KEY_PATH must be set"},
		"no authority for clients":         {[]string{"GATE_TLS_CLIENT_CA_BUNDLE_PATH="}, "GATE_TLS_CLIENT_CA_BUNDLE_PATH must be set"},
		"clients without certificates":     {[]string{"GATE_TLS_REQUIRE_CLIENT_CERT=false"}, "GATE_TLS_REQUIRE_CLIENT_CERT must not be false"},
		"a database in cleartext":          {[]string{"GATE_TLS_UPSTREAM_MODE=disable"}, "GATE_TLS_UPSTREAM_MODE must be verify-full"},
		"a database on a socket":           {[]string{"GATE_DATABASE_URL=postgres://u:p@/app?host=/var/run/postgresql"}, "GATE_DATABASE_URL must name a host"},
		"such a one with TLS":              {[]string{"GATE_DATABASE_URL=postgres://u:p@/app?host=/var/run/postgresql&sslmode=verify-full"}, "GATE_DATABASE_URL must name a host"},
		"reads through a socket":           {[]string{"GATE_DATABASE_READ_URL=postgres://u:p@%2Ftmp/app"}, "GATE_DATABASE_READ_URL must name a host"},
		"no operator token":                {[]string{"GATE_OPERATOR_TOKEN="}, "GATE_OPERATOR_TOKEN or GATE_OPERATOR_TOKENS must be set"},
		"a short operator token":           {[]string{"GATE_OPERATOR_TOKEN=only-23-characters-long"}, "24 characters"},
		"one short token among others":     {[]string{"GATE_OPERATOR_TOKENS=ana=only-23-characters-long"}, "24 characters"},
		"a log that is not synced":         {[]string{"GATE_AUDIT_FSYNC=off"}, "GATE_AUDIT_FSYNC must be required"},
		"evidence that is not signed":      {[]string{"GATE_EVIDENCE_SIGNING_ENABLED=false"}, "GATE_EVIDENCE_SIGNING_ENABLED must be true"},
		"the listener that is for the lab": {[]string{"GATE_PGWIRE_ENABLED=true", "GATE_PGWIRE_LAB_MODE=true"}, "GATE_PGWIRE_ENABLED must be false"},
	} {
		t.Run(name, func(t *testing.T) {
			faults := faultsOf(productionEnviron(c.unsafe...))
			require.NotEmpty(t, faults)
			require.Contains(t, strings.Join(faults, "\n"), c.want)
			for _, f := range faults {
				require.NotContains(t, f, "secret")
				require.NotContains(t, f, "only-23-characters-long", "no token in a message")
			}
		})
	}
}

func TestProductionNamesAllThatIsUnsafeAtOnce(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	code := Run(context.Background(), []string{"serve"}, streams{nil, &out, &errs}, []string{
		"GATE_PROFILE=production", "GATE_TLS_REQUIRE_CLIENT_CERT=false", "GATE_TLS_UPSTREAM_MODE=disable",
		"GATE_AUDIT_FSYNC=off", "GATE_PGWIRE_ENABLED=true", "GATE_DATABASE_URL=postgres:///app?host=/tmp", "GATE_OPERATOR_TOKENS=ana=short",
	})
	require.Equal(t, exitConfigured, code)
	for _, name := range []string{
		"GATE_TLS_CERT_PATH", "GATE_TLS_CLIENT_CA_BUNDLE_PATH", "GATE_TLS_REQUIRE_CLIENT_CERT", "GATE_TLS_UPSTREAM_MODE", "GATE_AUDIT_FSYNC",
		"GATE_PGWIRE_ENABLED", "GATE_DATABASE_URL must name a host", "24 characters", "GATE_EVIDENCE_SIGNING_ENABLED",
	} {
		require.Contains(t, errs.String(), name)
	}
}

func TestProductionDemandsClientCertificatesByItself(t *testing.T) {
	var out bytes.Buffer
	s := new(settings)
	s.Profile = profileProduction
	s.applyProfile(map[string]string{})
	require.True(t, s.TLSRequireClientCert)
	require.NoError(t, printSettings(&out, s.describe(nil), false))
	require.Regexp(t, `GATE_TLS_REQUIRE_CLIENT_CERT +true +profile`, out.String())

	s = new(settings)
	s.Profile = profileProduction
	s.applyProfile(map[string]string{"GATE_TLS_REQUIRE_CLIENT_CERT": "false"})
	require.False(t, s.TLSRequireClientCert, "what was said is kept, and refused")
}
