package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// manyVersions leaves versions of every status behind.
func manyVersions(t *testing.T, g *testGate) {
	t.Helper()
	for _, version := range []string{"1.1.0", "1.2.0"} {
		hash := g.propose(t, sampleVersion(t, version))
		require.Equal(t, http.StatusOK, g.operate(t, "/policy/activate", map[string]any{"expected_hash": hash}).status)
	}
	require.Equal(t, http.StatusOK, g.operate(t, "/policy/rollback", map[string]any{"policy_version": "shop-gate@1.1.0"}).status)
	g.propose(t, sampleVersion(t, "1.3.0"))
	rejected := g.operate(t, "/policy/candidates", map[string]any{"document": sampleVersion(t, "1.4.0", "decision: BLOCK", "decision: BLOK")})
	require.Equal(t, http.StatusUnprocessableEntity, rejected.status)
}

func TestTheFolderIsWrittenFromTheLogAloneAsTheGateWroteIt(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	manyVersions(t, g)
	code, out, errs := g.cli(t, "", "policy", "rebuild")
	require.Zero(t, code, errs)
	require.Contains(t, out, "as the log has it already: 5 versions, shop-gate@1.1.0 active")

	before := contents(t, g.file("policies"))
	require.Len(t, before, 6)
	g.end(t)
	require.NoError(t, os.RemoveAll(g.file("policies")))
	code, out, errs = g.cli(t, "", "policy", "rebuild", "--json")
	require.Equal(t, exitFailed, code, errs)
	require.Contains(t, out, `"rebuilt":false`)
	require.NoDirExists(t, g.file("policies"), "nothing is written without a yes")
	code, _, errs = g.cli(t, "", "policy", "rebuild", "--yes")
	require.Zero(t, code, errs)
	require.Equal(t, before, contents(t, g.file("policies")))
}

func TestAGateServesAgainAfterItsFolderWasRebuiltBesideIt(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	manyVersions(t, g)
	g.end(t)
	active := filepath.Join(g.file("policies"), "shop-gate@1.1.0.yaml")
	text, err := os.ReadFile(active)
	require.NoError(t, err)
	changed := strings.Replace(string(text), "version: 1.1.0", "version: 1.1.0 # hm", 1)
	require.NoError(t, os.WriteFile(active, []byte(changed), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(g.file("policies"), "notes.txt"), []byte("mine"), 0o644))

	again := startGate(t, g.gateDir)
	refused := again.query(t, ask("SELECT 1"))
	require.Equal(t, http.StatusServiceUnavailable, refused.status, "%s", refused.body)
	code, out, errs := again.cli(t, "no\n", "policy", "rebuild")
	require.Equal(t, exitFailed, code, out)
	require.Contains(t, errs, "nothing was changed")
	require.Regexp(t, `move +notes\.txt +the log does not know it`, out)
	require.Regexp(t, `move +shop-gate@1\.1\.0\.yaml +its bytes have the hash`, out)
	code, out, errs = again.cli(t, "y\n", "policy", "rebuild")
	require.Zero(t, code, errs)
	require.Contains(t, out, "is as the log has it. A gate that runs looks at it within seconds.")
	require.Eventually(t, func() bool { return again.query(t, ask("SELECT 1")).status == http.StatusOK }, startPatience, pollEvery)

	moved, err := filepath.Glob(g.file("policies.replaced-*"))
	require.NoError(t, err)
	require.Len(t, moved, 1)
	require.Equal(t, map[string]string{
		filepath.Join(moved[0], "notes.txt"):            "mine",
		filepath.Join(moved[0], "shop-gate@1.1.0.yaml"): changed,
	}, contents(t, moved[0]))
}

func TestNothingIsRebuiltFromALogThatDoesNotVerify(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	require.Equal(t, 200, g.query(t, ask("SELECT 1")).status)
	d, _ := crashCopy(t, g)
	code, _, errs := d.command(t, "policy", "rebuild", "--yes")
	require.Equal(t, exitPartial, code)
	require.Contains(t, errs, "gate log verify")
	require.NoDirExists(t, d.file("policies"))
	code, _, _ = gateDir{path: t.TempDir()}.command(t, "policy", "rebuild", "--yes")
	require.Equal(t, exitPartial, code, "there is no log")
}
