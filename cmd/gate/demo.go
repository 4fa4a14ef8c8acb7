package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"writegate/agentctl"
	"writegate/docs"
	"writegate/eventlog/checkpoint"
	"writegate/fixtures/postgres"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

//go:embed demo/shop.sql
var shopSQL string

// demoDatabase is the database of the demonstration.
const demoDatabase = "shop"

// demoStartTimeout bounds initdb and the start of PostgreSQL.
const demoStartTimeout = 2 * time.Minute

// demoMemory bounds each process of the demonstration's server, as OPERATIONS.md
// ("A statement that does not end") advises for every server: what a text takes beyond
// it costs that statement alone.
const demoMemory = 768 << 20

func (a *app) demoCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "demo", Short: "Start a private PostgreSQL and a gate with sample data, and print what to try", Args: cobra.NoArgs,
		Long: `Start a private PostgreSQL, sample data, a sample policy, a gate and the operators' dashboard, and
print a tour to paste.

Everything lies in one folder and is found again at the next start; remove the folder to begin
anew. PostgreSQL's programs are installed where they are missing and that is possible. With
GATE_DATABASE_URL the gate stands in front of that server instead, without sample data.`,
		RunE: func(c *cobra.Command, _ []string) error {
			err := a.demo(c.Context(), dir)
			if coded := new(exitError); err != nil && !errors.As(err, &coded) { // the command line was not at fault
				err = exitWith(exitFailed, err)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", filepath.Join("var", "demo"), "folder for everything the demonstration keeps")
	return cmd
}

// demo sets what is not set, starts what is missing and serves.
func (a *app) demo(ctx context.Context, dir string) error {
	var faults []string
	if a.environ, faults = withSecretFiles(a.environ); len(faults) > 0 {
		return exitWith(exitConfigured, faultList("the settings", faults))
	}
	if err := postgres.Folder(dir); err != nil {
		return err
	}
	held, err := holdFolder(dir)
	if errors.Is(err, errHeld) {
		return exitWith(exitLocked, fmt.Errorf("a demonstration is running in this folder: stop it, or name another with --dir: %w", err))
	}
	if err != nil {
		return err
	}
	defer held.Close()
	for _, secret := range []string{"operator-token", "project-key", "control-plane-project-key", "database-password", "control-plane-password"} {
		takeFromOthers(filepath.Join(dir, secret)) // of an older start; what is not ours stays
	}
	token, err := keptSecret(filepath.Join(dir, "operator-token"), randomText)
	if err != nil {
		return err
	}
	projectKey, err := keptSecret(filepath.Join(dir, "project-key"), func() string { return agentctl.NewSecret(agentctl.KeyPrefix) })
	if err != nil {
		return err
	}
	planeKey, err := keptSecret(filepath.Join(dir, "control-plane-project-key"), func() string { return agentctl.NewSecret(agentctl.KeyPrefix) })
	if err != nil {
		return err
	}
	a.environ = withDefault(demoEnvironment(a.environ, dir, token),
		"GATE_PROJECT_KEYS="+agentctl.DefaultProject+"/demo="+projectKey+","+agentctl.DefaultProject+"/control-plane="+planeKey+";"+planeScopes)
	if a.environ, err = demoKey(a.environ, dir); err != nil {
		return err
	}
	if _, given := lookUp(a.environ, postgres.DatabaseURLVariable); !given {
		cluster, err := a.demoDatabase(ctx, dir)
		if err != nil {
			return err
		}
		defer func() {
			if err := cluster.Stop(); err != nil {
				fmt.Fprintln(a.err, "gate: PostgreSQL did not stop cleanly:", err)
			}
		}()
	}
	if err := demoPolicy(filepath.Join(dir, "policies")); err != nil {
		return err
	}
	tell := a.ready
	under, end := context.WithCancel(ctx)
	var plane *demoPlane
	defer func() {
		end()
		if plane != nil {
			plane.stop()
		}
	}()
	a.ready = func(addr string) {
		said := ""
		if _, https := lookUp(a.environ, "GATE_TLS_CERT_PATH"); !https { // one over TLS has an operator who starts the dashboard as well
			plane, err = a.startPlane(under, addr, dir, planeKey)
			said = tourOfPlane(plane, err)
		}
		tour := demoTour(addr, dir)
		if a.refusing != nil {
			tour = fmt.Sprintf("\nThe gate at http://%s REFUSES EVERY STATEMENT and only answers reads: %s (%s).\nDo not remove the folder %s before you know why; docs/OPERATIONS.md has a part \"After damage or loss\".\n",
				reachable(addr), a.refusing.Message, a.refusing.Step, dir)
		}
		fmt.Fprint(a.out, tour+said)
		if tell != nil {
			tell(addr)
		}
	}
	return a.serve(ctx)
}

// demoDatabase starts PostgreSQL with the sample data and adds the roles of the
// gate to the environment.
func (a *app) demoDatabase(ctx context.Context, dir string) (*postgres.Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, demoStartTimeout)
	defer cancel()
	if _, err := postgres.Install(ctx, a.err); err != nil {
		return nil, err
	}
	cluster, err := postgres.Start(ctx, postgres.Options{Dir: filepath.Join(dir, "postgres"), Memory: demoMemory})
	if err != nil {
		return nil, err
	}
	if cluster.Note != "" {
		fmt.Fprintln(a.err, "gate:", cluster.Note)
	}
	password, err := demoRoles(ctx, cluster, filepath.Join(dir, "database-password"))
	if err != nil {
		return nil, errors.Join(err, cluster.Stop())
	}
	a.environ = append(a.environ,
		postgres.DatabaseURLVariable+"="+cluster.URLFor("gate_writer", password, demoDatabase),
		"GATE_DATABASE_READ_URL="+cluster.URLFor("gate_reader", password, demoDatabase))
	a.environ = withDefault(a.environ, "GATE_TLS_UPSTREAM_MODE=disable") // the private server is reached over the loopback address alone
	return cluster, nil
}

// roleSettings are the lines of docs/database-role.sql that set something of its roles.
var roleSettings = regexp.MustCompile(`(?m)^ALTER ROLE gate_\w+ SET .*$`)

// demoRoles makes roles, database and rows once; the password file is written
// last and says that all of it is there.
func demoRoles(ctx context.Context, cluster *postgres.Cluster, passwordFile string) (password string, err error) {
	if password, err = keptText(passwordFile); password != "" || err != nil {
		return password, err
	}
	password = randomText()
	const rights = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS NOINHERIT CONNECTION LIMIT 40 PASSWORD"
	for _, step := range []struct{ database, sql string }{
		{"postgres", "DROP DATABASE IF EXISTS " + demoDatabase + " WITH (FORCE)"},
		{"postgres", "DROP ROLE IF EXISTS gate_reader; DROP ROLE IF EXISTS gate_writer"},
		{"postgres", fmt.Sprintf("CREATE ROLE gate_reader %s '%s'; CREATE ROLE gate_writer %s '%s'", rights, password, rights, password)},
		{"postgres", strings.Join(roleSettings.FindAllString(docs.DatabaseRole, -1), "\n")},
		{"postgres", "CREATE DATABASE " + demoDatabase},
		{demoDatabase, shopSQL},
	} {
		if err := cluster.Execute(ctx, step.database, step.sql); err != nil {
			return "", fmt.Errorf("prepare the sample database: %w", err)
		}
	}
	return password, os.WriteFile(passwordFile, []byte(password+"\n"), 0o600)
}

// demoPolicy puts the sample policy into the folder where none lies yet.
func demoPolicy(dir string) error {
	_, err := os.Stat(filepath.Join(dir, policyfolder.DefaultManifest))
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return policyfolder.Create(dir, policyfolder.DefaultManifest, policy.Sample())
}

// keptText is what an earlier start kept; "" is nothing, also where that start ended
// before it had written it.
func keptText(path string) (string, error) {
	kept, err := readAtMost(path, 4<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(kept)), err
}

// keptSecret makes a secret once and keeps it.
func keptSecret(path string, made func() string) (string, error) {
	if kept, err := keptText(path); kept != "" || err != nil {
		return kept, err
	}
	secret := made()
	return secret, os.WriteFile(path, []byte(secret+"\n"), 0o600)
}

// demoKey has evidence signed with a key that is made once and kept, unless the
// caller's environment says anything about signing.
func demoKey(environ []string, dir string) ([]string, error) {
	private, public := filepath.Join(dir, privateKeyFile), filepath.Join(dir, publicKeyFile)
	for _, pair := range environ {
		if strings.HasPrefix(pair, "GATE_EVIDENCE_SIGNING_") {
			return environ, nil
		}
	}
	if _, err := os.Stat(private); errors.Is(err, fs.ErrNotExist) {
		key, err := checkpoint.NewPrivateKey()
		if err != nil {
			return nil, err
		}
		// The private one comes last, so that a run that is interrupted leaves both, or makes both anew.
		unfinished, err := os.MkdirTemp(dir, "keys-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(unfinished)
		if err := checkpoint.WriteKeyPair(filepath.Join(unfinished, privateKeyFile), filepath.Join(unfinished, publicKeyFile), key); err != nil {
			return nil, err
		}
		for _, name := range []string{publicKeyFile, privateKeyFile} {
			if err := os.Rename(filepath.Join(unfinished, name), filepath.Join(dir, name)); err != nil {
				return nil, err
			}
		}
	}
	return append(environ, "GATE_EVIDENCE_SIGNING_ENABLED=true",
		"GATE_EVIDENCE_SIGNING_PRIVATE_KEY_PATH="+private, "GATE_EVIDENCE_SIGNING_PUBLIC_KEY_PATH="+public), nil
}

func randomText() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return base64.RawURLEncoding.EncodeToString(b)
}

// demoEnvironment sets what the caller's environment leaves open.
func demoEnvironment(environ []string, dir, token string) []string {
	defaults := []string{
		"GATE_OPERATOR_TOKEN=" + token,
		"GATE_POLICY_DIR=" + filepath.Join(dir, "policies"),
		"GATE_AUDIT_WAL_PATH=" + filepath.Join(dir, "audit.wal"),
		"GATE_AUDIT_LOG_PATH=" + filepath.Join(dir, "audit.log"),
		"GATE_APPROVAL_DB_PATH=" + filepath.Join(dir, "approvals.db"),
		"GATE_PLAN_ESTIMATES=true", // a card shows what cascades
	}
	for _, d := range defaults {
		environ = withDefault(environ, d)
	}
	return environ
}

// withDefault adds NAME=value where the name is not set.
func withDefault(environ []string, pair string) []string {
	name, _, _ := strings.Cut(pair, "=")
	if _, given := lookUp(environ, name); given {
		return environ
	}
	return append(environ, pair)
}

func lookUp(environ []string, name string) (string, bool) {
	for _, e := range environ {
		if n, v, _ := strings.Cut(e, "="); n == name {
			return v, true
		}
	}
	return "", false
}

// demoTour is what to paste; a test runs it line by line.
func demoTour(addr, dir string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host, port = "127.0.0.1", "6543"
	}
	return strings.NewReplacer("{gate}", "http://"+net.JoinHostPort(host, port), "{dir}", dir).Replace(tourText)
}
