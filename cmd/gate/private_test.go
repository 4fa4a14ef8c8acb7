package main

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// forOthers lists what other accounts may use in a folder, and the folder itself.
// What lies below a folder of the database's own account is its matter.
func forOthers(t testing.TB, dir string, except func(path string, mode fs.FileMode) bool) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != os.Geteuid() && e.IsDir() {
			require.Zero(t, info.Mode()&othersBits, path)
			return fs.SkipDir
		}
		if mode := info.Mode().Perm(); e.Type()&fs.ModeSymlink == 0 && mode&othersBits != 0 && !except(path, mode) {
			found = append(found, fmt.Sprintf("%s %04o", path, mode))
		}
		return nil
	}))
	return found
}

func noException(string, fs.FileMode) bool { return false }

// underUmask runs a program with a umask.
func underUmask(umask string, environ []string, program string, args ...string) *exec.Cmd {
	cmd := exec.Command("bash", append([]string{"-c", "umask " + umask + `; exec -a gate "$0" "$@"`, program}, args...)...)
	cmd.Env = environ
	return cmd
}

// All that the programs make is for their own account, whatever the umask says:
// with the umask that main sets, and (as a library, the second gate) without it.
func TestNothingThatIsMadeCanBeUsedByOtherAccounts(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	for _, umask := range []string{"000", "077"} {
		t.Run(umask, func(t *testing.T) {
			base := newGateDir(t, nil)
			base.execute(t, shopTables)
			root := filepath.Join(t.TempDir(), "made")
			require.NoError(t, os.Mkdir(root, 0o700))
			t.Setenv("TMPDIR", root) // temporary files are made here too
			d := gateDir{path: filepath.Join(root, "gate"), database: base.database}
			require.NoError(t, os.Mkdir(d.path, 0o700))
			environ := append(slices.Clip(os.Environ()), d.environ("GATE_EVIDENCE_SIGNING_ENABLED=false")...)
			do := func(args ...string) string {
				t.Helper()
				out, err := underUmask(umask, environ, self, args...).CombinedOutput()
				require.NoError(t, err, "%s: %s", args, out)
				require.Empty(t, forOthers(t, root, noException), "%s", args)
				return string(out)
			}
			do("policy", "init")
			keys := filepath.Join(root, "keys", "evidence")
			do("keys", "evidence", "--out", keys, "--origin", "gate.example")
			signing := signingPair{private: filepath.Join(keys, privateKeyFile), public: filepath.Join(keys, publicKeyFile)}
			environ = append(slices.Clip(os.Environ()), d.environ(append(signing.environ(), smallSegments)...)...)
			for _, library := range []bool{false, true} {
				g := serveUnder(t, umask, environ, self, library)
				for i := range 3 {
					body, err := json.Marshal(ask("SELECT id FROM orders"))
					require.NoError(t, err)
					r, err := g.try(http.MethodPost, "/query?idempotency_key=k"+strconv.Itoa(i), string(body))
					require.NoError(t, err)
					require.Equal(t, http.StatusOK, r.status, "%s", r.body)
				}
				require.Empty(t, forOthers(t, root, noException), "while it runs")
				do("log", "backup", filepath.Join(root, fmt.Sprint("beside-", library)))
				g.end(t)
				require.Empty(t, forOthers(t, root, noException), "when it has ended")
			}
			do("log", "backup", filepath.Join(root, "backup"))
			do("evidence", "export", filepath.Join(root, "bundle.json"), "--reason", "test")
			do("log", "digest")
			do("log", "rebuild")
			do("log", "verify")
			restored := gateDir{path: filepath.Join(root, "restored", "gate"), database: base.database}
			environ = append(slices.Clip(os.Environ()), restored.environ(signing.environ()...)...)
			do("log", "restore", filepath.Join(root, "backup"))
			serveUnder(t, umask, environ, self, false).end(t)
			require.Empty(t, forOthers(t, root, noException), "a restored gate")
			do("policy", "rebuild")
		})
	}
}

// serveUnder starts a gate with a umask: the program itself, or what the program
// does once its main has set its own.
func serveUnder(t *testing.T, umask string, environ []string, self string, library bool) *victim {
	t.Helper()
	v := &victim{ended: make(chan struct{}), client: &http.Client{}, cmd: underUmask(umask, environ, self, "serve")}
	if library {
		v.cmd.Env = append(slices.Clip(environ), crashRole+"=gate")
	}
	v.cmd.Stderr = &v.output
	alive, err := v.cmd.StdinPipe()
	require.NoError(t, err)
	v.cmd.Stdout = io.Discard
	require.NoError(t, v.cmd.Start())
	go func() {
		v.err = v.cmd.Wait()
		_ = alive.Close()
		close(v.ended)
	}()
	t.Cleanup(func() { v.kill(); <-v.ended })
	address := regexp.MustCompile(`"the gate is listening","source":"gate","address":"([^"]+)"`)
	require.Eventually(t, func() bool { return address.MatchString(v.output.String()) }, startPatience, pollEvery, "%s", &v.output)
	v.base = "http://" + address.FindStringSubmatch(v.output.String())[1]
	return v
}

// What an older version made, or somebody opened since, is closed at a start,
// which says so once: in its log, and in the startup event.
func TestAStartClosesWhatOtherAccountsCouldUse(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, http.StatusOK, g.query(t, ask("SELECT 1")).status)
	g.end(t)
	elsewhere := g.file("operators-own.txt")
	require.NoError(t, os.WriteFile(elsewhere, nil, 0o600))
	loose := []string{"audit.wal", "audit.wal.head", "audit.log", "audit_index_v1.json", "approvals.db", "approvals.db/LOCK", "policies", "policies/manifest.json", "operators-own.txt"}
	for _, name := range loose {
		info, err := os.Stat(g.file(name))
		require.NoError(t, err)
		require.NoError(t, os.Chmod(g.file(name), info.Mode().Perm()|0o044))
	}
	require.NoError(t, os.Symlink(elsewhere, g.file("approvals.db/link")))

	again := startGate(t, g.gateDir)
	folder := func(path string, _ fs.FileMode) bool { return path == g.path } // the operator's
	require.Equal(t, []string{elsewhere + " 0644"}, forOthers(t, g.path, folder), "what is not the gate's own stays as it is")
	said := again.output.String()
	require.Equal(t, 1, strings.Count(said, "could be used by other accounts"), said)
	for _, name := range loose[:len(loose)-1] {
		require.Contains(t, said, g.file(name)+" (0")
	}
	var page struct {
		Items []struct {
			Payload struct{ Warnings []string }
		}
	}
	unmarshal(t, again.get(t, "/audit?event_type=startup&limit=1").body, &page)
	warnings, err := json.Marshal(page.Items[0].Payload.Warnings)
	require.NoError(t, err)
	require.Contains(t, string(warnings), "could be used by other accounts")
	again.end(t)

	third := startGate(t, g.gateDir)
	require.NotContains(t, third.output.String(), "could be used by other accounts", "there is nothing left to say")
	third.end(t)
}

// A link is followed where its maker may do as this account does: a folder that
// others may write in can hold a link of theirs to anything.
func TestALinkOfAnotherAccountIsNotFollowed(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		dir := t.TempDir()
		target, link := filepath.Join(dir, "elsewhere"), filepath.Join(dir, "audit.wal.x")
		require.NoError(t, os.Mkdir(target, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(target, "file"), nil, 0o600))
		require.NoError(t, os.Chmod(filepath.Join(target, "file"), 0o644))
		require.NoError(t, os.Chmod(target, 0o755))
		require.NoError(t, os.Symlink(target, link))
		if foreign {
			if os.Lchown(link, 65534, 65534) != nil {
				return // root alone can give a link to another account
			}
		}
		s := settings{AuditWALPath: filepath.Join(dir, "audit.wal"), AuditLogPath: filepath.Join(dir, "audit.log"), ApprovalDBPath: filepath.Join(dir, "approvals.db"), PolicyDir: filepath.Join(dir, "policies")}
		require.Contains(t, s.ownPlaces(), link)
		mended, left := takeFromOthers(link)
		if foreign {
			require.Empty(t, mended)
			require.Len(t, left, 1)
			require.Len(t, forOthers(t, target, noException), 2, "what it leads to stays as it is")
			continue
		}
		require.Len(t, mended, 2)
		require.Empty(t, left)
	}
}

// A policy folder that was named by mistake is nobody's of ours: without its
// manifest nothing below it is touched.
func TestAFolderWithoutAManifestKeepsItsRights(t *testing.T) {
	dir := t.TempDir()
	s := settings{AuditWALPath: filepath.Join(dir, "audit.wal"), AuditLogPath: filepath.Join(dir, "audit.log"), ApprovalDBPath: filepath.Join(dir, "approvals.db"), PolicyDir: filepath.Join(dir, "policies"), PolicyManifest: "manifest.json"}
	require.NoError(t, os.Mkdir(s.PolicyDir, 0o700))
	require.NotContains(t, s.ownPlaces(), s.PolicyDir)
	require.NoError(t, os.WriteFile(filepath.Join(s.PolicyDir, s.PolicyManifest), nil, 0o600))
	require.Contains(t, s.ownPlaces(), s.PolicyDir)
}

// A file that the code makes for others, or by a function that leaves its rights
// to the umask, is found here. What may stand is named with its reason.
func TestNoCodeMakesFilesForOtherAccounts(t *testing.T) {
	t.Parallel()
	allowed := map[string]string{
		"cmd/gate/main.go 0o077":               "the umask",
		"cmd/gate/private.go 0o077":            "a mask",
		"cmd/gate/man_cmd.go 0o644":            "pages of the manual",
		"cmd/gate/man_cmd.go 0o755":            "the folder of those, where it is made",
		"eventlog/checkpoint/keyfile.go 0o077": "a mask",
		"sqlgate/pgwire/users.go 0o077":        "a mask",
		"fixtures/postgres/user.go 0o010":      "a mask",
		"fixtures/postgres/user.go 0o001":      "a mask",
		"fixtures/postgres/user.go 0o711":      "the way of the database's own account to its folder",
		"fixtures/postgres/install.go 0o644":   "the system's settings of its package manager",
		"projections/store.go vfs.Default":     "what is wrapped",
	}
	suspicious := regexp.MustCompile(`\b0o[0-7]{3,4}\b|\bos\.Create\(|\bvfs\.Default\b|\bos\.ModePerm\b|[(, ]0[0-7]{3}\)`)
	seen := map[string]bool{}
	for _, part := range []string{"agentctl", "cmd", "commands", "docs", "eventlog", "fixtures/postgres", "http", "projections", "sqlgate"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("..", "..", part), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name := strings.TrimPrefix(filepath.ToSlash(path), "../../")
			for line := range strings.Lines(string(text)) {
				code, _, _ := strings.Cut(line, "// ")
				for _, match := range suspicious.FindAllString(code, -1) {
					if mode, err := strconv.ParseUint(match, 0, 32); err == nil && mode&othersBits == 0 {
						continue
					}
					what := name + " " + match
					seen[what] = true
					if allowed[what] == "" {
						t.Errorf("%s: %s makes something that other accounts can use: %s", name, match, strings.TrimSpace(line))
					}
				}
			}
			return nil
		}))
	}
	for what := range allowed {
		require.True(t, seen[what], "%s is no more; take it out of the list", what)
	}
}

// What a volume has at its root is no file of the gate's: its rights are not changed, and
// a folder that root alone may read is nothing to warn of.
func TestTheRightsOfLostAndFoundAreLeft(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "lost+found", "x"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "aside-1"), 0o755))
	mended, left := takeFromOthers(dir)
	require.Equal(t, []string{filepath.Join(dir, "aside-1") + " (0755)"}, mended)
	require.Empty(t, left)
}
