package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestDefaultsAreThoseOfTheContract(t *testing.T) {
	s, err := loadSettings(nil, noon)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:6543", s.HTTPListenAddr)
	require.Equal(t, "enforce", s.Mode)
	require.EqualValues(t, 1<<20, s.MaxBodyBytes)
	require.Equal(t, 256<<10, s.MaxSQLBytes)
	require.Equal(t, 120, s.RatePerMin)
	require.Equal(t, 30, s.RateBurst)
	require.Equal(t, 300, s.ApprovalTTL)
	require.Equal(t, "./audit.wal", s.AuditWALPath)
	require.Equal(t, "./audit.log", s.AuditLogPath)
	require.Equal(t, "verify-full", s.UpstreamTLSMode)
}

func TestFaultsOfSettingsComeAllAtOnceAndSayWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		environ []string
		want    []string
	}{
		"an unknown name gets the nearest known one": {[]string{"GATE_DATABSE_URL=x"}, []string{"GATE_DATABSE_URL is not a setting", "Did you mean GATE_DATABASE_URL?"}},
		"several at once":             {[]string{"GATE_FOO=1", "GATE_DB_POOL_MAX=many"}, []string{"GATE_FOO", "GATE_DB_POOL_MAX must be a whole number", "2 fault(s)"}},
		"a profile that was lost":     {[]string{"GATE_PROFILE="}, []string{"GATE_PROFILE is given and empty", "1 fault(s)"}},
		"a role that was lost":        {[]string{"GATE_DATABASE_READ_URL="}, []string{"GATE_DATABASE_READ_URL is given and empty"}},
		"a number out of its range":   {[]string{"GATE_MAX_SQL_BYTES=600000"}, []string{"GATE_MAX_SQL_BYTES is 600000 and must be from 1 to 524288"}},
		"a word outside its set":      {[]string{"GATE_MODE=loose"}, []string{`GATE_MODE is "loose" and must be one of shadow, approval_first, enforce, emergency_bypass`}},
		"the wire listener by itself": {[]string{"GATE_PGWIRE_ENABLED=true"}, []string{"GATE_PGWIRE_ENABLED needs GATE_PGWIRE_LAB_MODE=true", "1 fault(s)"}},
		"an address without a port":   {[]string{"GATE_HTTP_LISTEN_ADDR=localhost"}, []string{`GATE_HTTP_LISTEN_ADDR is "localhost" and must be an address with a port`}},
		"of every kind": {[]string{"GATE_FOO=1", "GATE_DB_POOL_MAX=many", "GATE_MODE=loose", "GATE_MAX_SQL_BYTES=600000", "GATE_TLS_KEY_PATH=/k", "GATE_AUDIT_ORIGIN=x", "GATE_DB_LOCK_TIMEOUT_MS="},
			[]string{"GATE_FOO is not", "GATE_DB_POOL_MAX must be a whole number", "GATE_MODE is", "GATE_MAX_SQL_BYTES is", "go together", "GATE_DB_LOCK_TIMEOUT_MS is given and empty", "6 fault(s)"}},
		"a bypass without reason and end":  {[]string{"GATE_MODE=emergency_bypass"}, []string{"GATE_EMERGENCY_BYPASS_REASON", "GATE_EMERGENCY_BYPASS_UNTIL"}},
		"a bypass that ends too late":      {[]string{"GATE_MODE=emergency_bypass", "GATE_EMERGENCY_BYPASS_REASON=x", "GATE_EMERGENCY_BYPASS_UNTIL=2026-03-02T12:00:01Z"}, []string{"at most 24 hours"}},
		"a certificate without its key":    {[]string{"GATE_TLS_CERT_PATH=/c"}, []string{"GATE_TLS_CERT_PATH and GATE_TLS_KEY_PATH go together"}},
		"a key without its certificate":    {[]string{"GATE_TLS_KEY_PATH=/k"}, []string{"GATE_TLS_CERT_PATH and GATE_TLS_KEY_PATH go together"}},
		"authorities without TLS":          {[]string{"GATE_TLS_CLIENT_CA_BUNDLE_PATH=/ca"}, []string{"GATE_TLS_CLIENT_CA_BUNDLE_PATH needs GATE_TLS_CERT_PATH"}},
		"client certificates without a CA": {[]string{"GATE_TLS_CERT_PATH=/c", "GATE_TLS_KEY_PATH=/k", "GATE_TLS_REQUIRE_CLIENT_CERT=true"}, []string{"GATE_TLS_REQUIRE_CLIENT_CERT needs GATE_TLS_CLIENT_CA_BUNDLE_PATH"}},
		"tokens without labels":            {[]string{"GATE_OPERATOR_TOKENS=abc"}, []string{"label=token"}},
		"a label twice":                    {[]string{"GATE_OPERATOR_TOKEN=a", "GATE_OPERATOR_TOKENS=operator=b"}, []string{"there twice, by label or by value"}},
		"a name that is an address":        {[]string{"GATE_ALLOWED_HOSTS=gate.example,https://gate.example/"}, []string{`GATE_ALLOWED_HOSTS: "https://gate.example/" is no host name`}},
		"a proxy that is no network":       {[]string{"GATE_TRUSTED_PROXIES=10.0.0.0/8,nowhere"}, []string{`"nowhere"`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadSettings(c.environ, noon)
			require.Error(t, err)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestSettingsOfOtherProgramsAndFamiliesAreLetThrough(t *testing.T) {
	_, err := loadSettings([]string{"PATH=/bin", "GATEWAY_X=1", "GATE_TOOL_SECRET_RUNSQL=s", "GATE_TOOL_SECRET_RUNSQL_HOST=h"}, noon)
	require.NoError(t, err)
}

func TestToolSecretsThatWouldNeverBeUsedStopTheStart(t *testing.T) {
	for _, environ := range [][]string{{"GATE_TOOL_SECRET_RUNSQL=hush"}, {"GATE_TOOL_SECRET_RUNSQL_HOST=h"}, {"GATE_TOOL_SECRET_run=hush", "GATE_TOOL_SECRET_run_HOST=h"}} {
		_, err := loadSettings(environ, noon)
		require.ErrorContains(t, err, "GATE_TOOL_SECRET_")
		require.NotContains(t, err.Error(), "hush")
	}
	for _, setting := range []string{"GATE_EGRESS_ALLOW_CIDRS=0.0.0.0/0", "GATE_EGRESS_ALLOW_PORTS=http"} {
		_, err := loadSettings([]string{setting}, noon)
		require.ErrorContains(t, err, strings.Split(setting, "=")[0])
	}
}

func TestABypassWithReasonAndEndIsTaken(t *testing.T) {
	s, err := loadSettings([]string{"GATE_MODE=emergency_bypass", "GATE_EMERGENCY_BYPASS_REASON=restore", "GATE_EMERGENCY_BYPASS_UNTIL=2026-03-02T12:00:00Z"}, noon)
	require.NoError(t, err)
	require.Equal(t, noon.Add(24*time.Hour), s.bypassUntil())
}

func TestEverySettingIsDocumented(t *testing.T) {
	s, err := loadSettings(nil, noon)
	require.NoError(t, err)
	for _, e := range s.describe(nil) {
		require.True(t, strings.HasPrefix(e.Name, "GATE_"), e.Name)
		require.NotEmpty(t, e.Doc, e.Name)
	}
}

func TestConfigPrintsValuesAndOriginsAndNoSecret(t *testing.T) {
	var out, errs bytes.Buffer
	code := Run(context.Background(), []string{"config"}, streams{nil, &out, &errs},
		[]string{"GATE_OPERATOR_TOKEN=correct-horse-battery-staple", "GATE_DATABASE_URL=postgres://u:hunter2@localhost/db", "GATE_MODE=shadow", "GATE_TLS_UPSTREAM_MODE=disable"})
	require.Zero(t, code, errs.String())
	require.Regexp(t, `GATE_MODE +shadow +environment`, out.String())
	require.Regexp(t, `\n *\nDatabase *\nGATE_DATABASE_URL `, out.String())
	require.Regexp(t, `GATE_MAX_SQL_BYTES +262144 +default`, out.String())
	require.NotContains(t, out.String(), "correct-horse")
	require.NotContains(t, out.String(), "hunter2")
}

func TestNoPasswordOfAnAddressIsPrinted(t *testing.T) {
	for _, address := range []string{"https://u:hunter2@gate", "u:hunter2@gate", "https://u:hunter2", "https://gate/?p=hunter2", "https://gate#hunter2", "://u:hunter2@gate", "https://gate,https://u:hunter2@b"} {
		for _, e := range describe(&settings{BackendURL: address, WitnessURLs: address}, nil) {
			require.NotContains(t, e.Value, "hunter2", "%s: %s", address, e.Name)
		}
		for _, e := range describe(&controlPlaneSettings{BackendURL: address, PublicURL: address}, nil) {
			require.NotContains(t, e.Value, "hunter2", "%s: %s", address, e.Name)
		}
	}
	list := describe(&controlPlaneSettings{BackendURL: "https://gate.internal:6543"}, nil)
	require.True(t, slices.ContainsFunc(list, func(e setting) bool { return e.Value == "https://gate.internal:6543" }))
}

func TestUnknownCommandsAndFlagsAreUsageErrors(t *testing.T) {
	for _, args := range [][]string{{"srve"}, {"config", "--jsn"}, {"version", "extra"}} {
		var out, errs bytes.Buffer
		require.Equal(t, exitUsage, Run(context.Background(), args, streams{nil, &out, &errs}, nil), args)
		require.Contains(t, errs.String(), "--help")
	}
}

// A path that is named twice, however it is spelt, would have one thing written over
// another: the index over the log, lines over a key.
func TestTwoSettingsNameNoPlaceTwice(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("key.pem", []byte("key"), 0o600))
	require.NoError(t, os.Mkdir("real", 0o700))
	require.NoError(t, os.Symlink("real", "link"))
	require.NoError(t, os.Link("key.pem", "key2.pem"))
	for _, environ := range []string{
		"GATE_AUDIT_INDEX_PATH=./audit.wal", "GATE_AUDIT_LOG_PATH=./audit.wal", "GATE_AUDIT_LOG_PATH=" + dir + "/audit.wal", "GATE_AUDIT_LOG_PATH=./x/../audit.wal",
		"GATE_AUDIT_LOG_PATH=./audit.wal.head", "GATE_AUDIT_LOG_PATH=./audit.wal.lock", "GATE_AUDIT_INDEX_PATH=audit.wal.segments/x", "GATE_APPROVAL_DB_PATH=audit.wal.checkpoints",
		"GATE_AUDIT_LOG_PATH=audit_index_v1.json", "GATE_APPROVAL_DB_PATH=./policies", "GATE_POLICY_DIR=./approvals.db/policies", "GATE_AUDIT_LOG_PATH=approvals.db/audit.log",
		"GATE_AUDIT_WAL_PATH=link/a GATE_AUDIT_LOG_PATH=real/a", "GATE_AUDIT_LOG_PATH=key.pem GATE_TLS_KEY_PATH=key.pem GATE_TLS_CERT_PATH=cert.pem",
		"GATE_AUDIT_LOG_PATH=key2.pem GATE_TLS_KEY_PATH=key.pem GATE_TLS_CERT_PATH=cert.pem", "GATE_AUDIT_WAL_PATH=policies GATE_AUDIT_INDEX_PATH=i",
		"GATE_AUDIT_INDEX_PATH=./policies/manifest.json", "GATE_AUDIT_LOG_PATH=policies/audit.log", "GATE_AUDIT_INDEX_PATH=idx GATE_AUDIT_WAL_PATH=idx.tmp",
	} {
		_, err := loadSettings(strings.Fields(environ), noon)
		require.ErrorContains(t, err, "name one place", environ)
		for _, setting := range strings.Fields(environ)[:1] {
			require.ErrorContains(t, err, strings.Split(setting, "=")[0], environ)
		}
	}
	for _, environ := range []string{"GATE_AUDIT_INDEX_PATH=/dev/null", "GATE_AUDIT_LOG_PATH=/dev/stdout", "GATE_AUDIT_LOG_PATH=/proc/self/fd/1", "GATE_AUDIT_WAL_PATH=/dev/gate.wal", "GATE_AUDIT_INDEX_PATH=/dev/fd/2"} {
		_, err := loadSettings([]string{environ}, noon)
		require.ErrorContains(t, err, "no place for a file", environ)
		require.ErrorContains(t, err, strings.Split(environ, "=")[0])
	}
	for _, environ := range []string{
		"", "GATE_AUDIT_WAL_PATH=a/audit.wal GATE_AUDIT_LOG_PATH=b/audit.wal", "GATE_AUDIT_LOG_PATH=audit.wal.log",
		"GATE_TLS_KEY_PATH=both.pem GATE_TLS_CERT_PATH=both.pem", "GATE_AUDIT_LOG_PATH=/dev/null",
	} {
		_, err := loadSettings(strings.Fields(environ), noon)
		require.NoError(t, err, environ)
	}
}

// An empty value is refused, or is what the page says of none: no protection is
// lost with it.
func TestAnEmptySettingIsRefusedOrIsNone(t *testing.T) {
	t.Parallel()
	none := []string{"GATE_ALLOWED_HOSTS", "GATE_EMERGENCY_BYPASS_REASON", "GATE_EMERGENCY_BYPASS_UNTIL", "GATE_OPERATOR_TOKEN", "GATE_OPERATOR_TOKENS", "GATE_TRUSTED_PROXIES",
		"GATE_DATABASE_URL", "GATE_KEY_COLUMNS", "GATE_AUDIT_INDEX_PATH", "GATE_AUDIT_ORIGIN", "GATE_AUDIT_VERIFY_DIRS", "GATE_EVIDENCE_SIGNING_PRIVATE_KEY_PATH",
		"GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH", "GATE_OUTCOME_MARKER_TABLE", "GATE_PROJECT_KEYS", "GATE_PROJECT_KEY", "GATE_EGRESS_ALLOW_CIDRS",
		"GATE_EGRESS_ALLOW_PORTS", "GATE_BACKEND_URL", "GATE_PGWIRE_AUTH", "GATE_PGWIRE_TLS"}
	for _, name := range settingNames() {
		_, err := loadSettings([]string{name + "="}, noon)
		if slices.Contains(none, name) {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, name+" is given and empty", name)
	}
	for _, name := range namesOf(reflect.TypeFor[controlPlaneSettings]()) {
		_, err := loadControlPlane([]string{name + "="})
		refused := strings.Contains(fmt.Sprint(err), name+" is given and empty")
		must := strings.Contains(fmt.Sprint(err), name+" must")
		require.True(t, refused || must || slices.Contains([]string{"GATE_OPERATOR_TOKEN", "CONTROL_PLANE_PROJECT_KEY", "CONTROL_PLANE_TRUSTED_PROXIES"}, name), name)
	}
}

// A log begun under settings that are wrong would be in the way of a restore.
func TestAStartThatFailsForItsSettingsMakesNoLog(t *testing.T) {
	t.Parallel()
	for name, environ := range map[string][]string{
		"no database":       {"GATE_TLS_UPSTREAM_MODE=disable"},
		"no authorities":    {"GATE_DATABASE_URL=postgres://app@127.0.0.1/shop"},
		"a key in the URL":  {"GATE_TLS_UPSTREAM_MODE=disable", "GATE_DATABASE_URL=postgres://app@127.0.0.1/shop?options=-cwork_mem%3D1GB"},
		"no reader's URL":   {"GATE_TLS_UPSTREAM_MODE=disable", "GATE_DATABASE_URL=postgres://app@127.0.0.1/shop", "GATE_DATABASE_READ_URL=nonsense"},
		"no such authority": {"GATE_DATABASE_URL=postgres://app@127.0.0.1/shop", "GATE_TLS_UPSTREAM_CA_BUNDLE_PATH=/nowhere/ca.pem"},
	} {
		dir := t.TempDir()
		at := func(file string) string { return filepath.Join(dir, file) }
		environ = append(environ, "GATE_AUDIT_WAL_PATH="+at("audit.wal"), "GATE_AUDIT_LOG_PATH="+at("audit.log"), "GATE_APPROVAL_DB_PATH="+at("approvals.db"), "GATE_POLICY_DIR="+at("policies"))
		var out, errs bytes.Buffer
		require.Equal(t, exitConfigured, Run(t.Context(), []string{"serve"}, streams{strings.NewReader(""), &out, &errs}, environ), name)
		require.Contains(t, errs.String(), "the settings have 1 fault(s)", name)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left, name)
	}
}

// What `gate serve` refuses `gate config` tells, with the same words and all at once; the
// settings themselves are listed all the same where they can be read.
func TestConfigRefusesWhatServeRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environ []string
		listed  bool
		want    []string
	}{
		"nothing is set": {nil, true, []string{"GATE_DATABASE_URL is empty", "GATE_TLS_UPSTREAM_CA_BUNDLE_PATH is empty", "2 fault(s)"}},
		"files that are not there": {[]string{"GATE_TLS_UPSTREAM_CA_BUNDLE_PATH=/nowhere/ca", "GATE_TLS_CERT_PATH=/nowhere/c", "GATE_TLS_KEY_PATH=/nowhere/k", "GATE_DATABASE_URL=x",
			"GATE_PGWIRE_ENABLED=true", "GATE_PGWIRE_LAB_MODE=true", "GATE_PGWIRE_USERS_FILE=/nowhere/u", "GATE_EVIDENCE_SIGNING_ENABLED=true",
			"GATE_EVIDENCE_SIGNING_PRIVATE_KEY_PATH=/nowhere/s", "GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH=/nowhere/p"}, true,
			[]string{"/nowhere/ca", "/nowhere/c", "GATE_DATABASE_URL must have the form", "/nowhere/u", "the signing key", "5 fault(s)"}},
		"two of one address":         {[]string{"GATE_TLS_UPSTREAM_MODE=disable", "GATE_DATABASE_URL=postgres://u:p@h/d?sslmode=prefer&sslrootcert=/ca"}, true, []string{"write one of them", "sslrootcert is for TLS", "2 fault(s)"}},
		"both kinds, and none twice": {[]string{"GATE_MODE=loose", "GATE_TLS_UPSTREAM_MODE=prefer"}, false, []string{"GATE_MODE is", "GATE_TLS_UPSTREAM_MODE is", "GATE_DATABASE_URL is empty", "3 fault(s)"}},
	} {
		var said []string
		for _, command := range []string{"config", "serve"} {
			var out, errs bytes.Buffer
			require.Equal(t, exitConfigured, Run(t.Context(), []string{command}, streams{strings.NewReader(""), &out, &errs}, c.environ), name)
			require.Equal(t, c.listed && command == "config", strings.Contains(out.String(), "GATE_AUDIT_WAL_PATH"), "%s: %s", name, command)
			said = append(said, errs.String())
		}
		require.Equal(t, said[0], said[1], name)
		for _, want := range c.want {
			require.Contains(t, said[0], want, name)
		}
	}
}

// Each secret can lie in a file, as container platforms hand them out.
func TestEverySecretCanComeFromAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range append(secretNames(reflect.TypeFor[settings]()), "CONTROL_PLANE_ADMIN_PASSWORD_HASH", "CONTROL_PLANE_PROJECT_KEY", "GATE_TOOL_SECRET_RUNSQL") {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte("kept in a file\n"), 0o400))
		resolved, faults := withSecretFiles([]string{"A=b", name + "_FILE=" + path})
		require.Empty(t, faults)
		require.Equal(t, []string{"A=b", name + "=kept in a file"}, resolved)
		for _, pair := range []string{name + "_FILE=" + path + "/", name + "_FILE=" + dir, name + "_FILE=/dev/null"} {
			resolved, faults = withSecretFiles([]string{pair})
			require.Empty(t, resolved)
			require.Len(t, faults, 1)
			require.Contains(t, faults[0], name+"_FILE: ")
		}
		_, faults = withSecretFiles([]string{name + "_FILE=" + path, name + "=hunter2"})
		require.Equal(t, []string{name + " and " + name + "_FILE are both given: leave one out"}, faults)
	}
	own := []string{"GATE_TOOL_SECRET_MY_FILE=v", "GATE_TOOL_SECRET_MY_FILE_HOST=h"} // a secret of that name
	resolved, faults := withSecretFiles(own)
	require.Equal(t, own, resolved)
	require.Empty(t, faults)
	_, err := loadSettings([]string{"GATE_MODE_FILE=" + dir}, noon)
	require.ErrorContains(t, err, "GATE_MODE_FILE is not a setting", "no secret")

	d := newGateDir(t, nil)
	require.NoError(t, os.WriteFile(d.file("token"), []byte(operatorTestToken+"\n"), 0o600))
	environ := slices.DeleteFunc(d.environ("GATE_OPERATOR_TOKEN_FILE="+d.file("token")), func(pair string) bool { return strings.HasPrefix(pair, "GATE_OPERATOR_TOKEN=") })
	code, output := runGate(t, environ, "config")
	require.Zero(t, code, output)
	require.Regexp(t, `GATE_OPERATOR_TOKEN +\(set, not shown\) +file`, output)
	g := startGateWith(t, d, func(a *app) { a.environ = environ })
	require.Equal(t, 200, g.operate(t, "/approvals/purge", map[string]any{}).status)
}
