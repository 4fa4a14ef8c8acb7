package main

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/policyfolder"
)

// chainOrder is the order of the startup chain (spec/gate.md part 1.12).
var chainOrder = []string{"audit_log_continuity", "manifest_validation", "policy_hash_match", "policy_validation", "activation_dry_run_corpus"}

// byCode lets notes be changed by key alone. Its own test holds only where code
// is a key column.
func byCode(version string) string {
	document := strings.Replace(notesVersion(version), "query_types_only: [SELECT,", "where_only: [key_equality], query_types_only: [SELECT,", 1)
	return document + `
tests:
  - name: a note is changed by its code
    sql: UPDATE public.open_notes SET note = 'x' WHERE code = 7
    expect: { decision: ALLOW }
`
}

const codeIsKey = "GATE_KEY_COLUMNS=code"

// A brokenStart is a gate whose startup chain fails.
type brokenStart struct {
	name     string
	document string                          // "" is that of the notes
	before   func(t testing.TB, g *testGate) // done in an earlier run; nil: there was none
	spoil    func(t testing.TB, dir string)  // what happens to the policy folder before the start
	step     string                          // that fails
	finding  string                          // a code in GET /policy/status; "" = none
	says     string                          // the message
	mend     func(t testing.TB, g *testGate) // what a person does, without a restart
	decides  string                          // the version that decides then
	invalid  bool                            // the log has policy_validated with valid false
	settings []string
}

func inFolder(change func(t testing.TB, dir string)) func(testing.TB, *testGate) {
	return func(t testing.TB, g *testGate) { change(t, g.file("policies")) }
}

func removing(name string) func(testing.TB, string) {
	return func(t testing.TB, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, name))) }
}

// emptied is a folder with nothing in it.
func emptied(t testing.TB, dir string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
}

// governed activates a version through the API.
func governed(document string) func(testing.TB, *testGate) {
	return func(t testing.TB, g *testGate) { g.activate(t, document) }
}

// nobodyWrites is a version that passes strictCorpus.
func nobodyWrites(version string) string {
	return strings.Replace(notesVersion(version), "decision: ALLOW", "decision: BLOCK", 1)
}

func nothing(testing.TB, *testGate) {}

var brokenStarts = []brokenStart{
	{name: "nothing is there yet", spoil: emptied, step: "manifest_validation", says: "gate policy init",
		mend: governed(notesVersion("1.4.0")), decides: "notes@1.4.0"},
	{name: "nothing is there yet, and an impact is asked for", spoil: emptied, step: "manifest_validation", says: "gate policy init",
		mend: governed(notesVersion("1.4.0")), decides: "notes@1.4.0", settings: []string{"GATE_POLICY_REQUIRE_IMPACT=true"}},
	{name: "nothing is there yet, and a person brings it", spoil: emptied, step: "manifest_validation", says: "gate policy init",
		mend: inFolder(func(t testing.TB, dir string) {
			require.NoError(t, policyfolder.Create(dir, policyfolder.DefaultManifest, []byte(notesVersion("1.5.0"))))
		}), decides: "notes@1.5.0"},
	{name: "a file nobody listed", spoil: placing("notes@2.0.0.yaml", notesVersion("2.0.0")), step: "manifest_validation", finding: "PV402", says: "notes@2.0.0.yaml",
		mend: inFolder(removing("notes@2.0.0.yaml")), decides: "notes@1.0.0"},
	{name: "a file nobody listed, later", before: nothing, spoil: placing("notes@2.0.0.yaml", notesVersion("2.0.0")), step: "manifest_validation", finding: "PV402",
		says: "notes@2.0.0.yaml", mend: inFolder(removing("notes@2.0.0.yaml")), decides: "notes@1.0.0"},
	{name: "another folder altogether", before: nothing, spoil: func(t testing.TB, dir string) {
		emptied(t, dir)
		require.NoError(t, policyfolder.Create(dir, policyfolder.DefaultManifest, []byte(notesVersion("9.0.0"))))
	}, step: "manifest_validation", says: "notes@9.0.0", mend: inFolder(emptied), decides: "notes@1.0.0", finding: "PV402"},
	{name: "another active version in the manifest", before: governed(notesVersion("1.1.0")), spoil: spoiling("manifest.json", func(data []byte) []byte {
		text := strings.NewReplacer(`"active": "notes@1.1.0"`, `"active": "notes@1.0.0"`, `"status": "active"`, `"status": "archived"`, `"status": "archived"`, `"status": "active"`).Replace(string(data))
		return []byte(text)
	}), step: "manifest_validation", finding: "PV401", says: `names "notes@1.0.0" as active`, mend: inFolder(emptied), decides: "notes@1.1.0"},
	{name: "a byte of the active version", before: nothing, spoil: spoiling("notes@1.0.0.yaml", flipped), step: "policy_hash_match", finding: "PV401", says: "notes@1.0.0.yaml",
		mend: inFolder(emptied), decides: "notes@1.0.0"},
	{name: "a byte of an archived version", before: governed(notesVersion("1.1.0")), spoil: spoiling("notes@1.0.0.yaml", flipped), step: "policy_hash_match", finding: "PV401",
		says: "notes@1.0.0.yaml", mend: inFolder(spoiling("notes@1.0.0.yaml", flipped)), decides: "notes@1.1.0"},
	{name: "a document that is not valid", spoil: func(t testing.TB, dir string) {
		document := strings.Replace(notesPolicy, "match:", "mtach:", 1)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "notes@1.0.0.yaml"), []byte(document), 0o644))
		listAnew(t, dir)
	}, step: "policy_validation", finding: "PV103", says: "mtach", mend: inFolder(func(t testing.TB, dir string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "notes@1.0.0.yaml"), []byte(notesPolicy), 0o644))
		listAnew(t, dir)
	}), decides: "notes@1.0.0"},
	{name: "a test of its own", document: byCode("1.0.0"), before: nothing, step: "policy_validation", finding: "PV301", says: "its tests", invalid: true,
		mend: governed(notesVersion("1.1.0")), decides: "notes@1.1.0"},
	{name: "a corpus, before the first start", spoil: placing("corpus/strict.yaml", strictCorpus), step: "activation_dry_run_corpus", finding: "PV301", says: "nobody writes notes",
		mend: inFolder(removing("corpus/strict.yaml")), decides: "notes@1.0.0"},
	{name: "a corpus", before: nothing, spoil: placing("corpus/strict.yaml", strictCorpus), step: "activation_dry_run_corpus", finding: "PV301", says: "nobody writes notes", invalid: true,
		mend: inFolder(removing("corpus/strict.yaml")), decides: "notes@1.0.0"},
	{name: "a corpus, and another version passes it", before: nothing, spoil: placing("corpus/strict.yaml", strictCorpus), step: "activation_dry_run_corpus", finding: "PV301",
		says: "nobody writes notes", invalid: true, mend: governed(nobodyWrites("1.1.0")), decides: "notes@1.1.0"},
	{name: "a corpus, and the version before passes it", document: nobodyWrites("1.0.0"), before: governed(notesVersion("1.1.0")), spoil: placing("corpus/strict.yaml", strictCorpus),
		step: "activation_dry_run_corpus", finding: "PV301", says: "nobody writes notes", invalid: true, mend: func(t testing.TB, g *testGate) {
			r := g.operate(t, "/policy/rollback", map[string]any{"reason": "the corpus"})
			require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		}, decides: "notes@1.0.0"},
}

// listAnew writes a manifest of what is there, as `gate policy manifest` does.
func listAnew(t testing.TB, dir string) {
	m, err := policyfolder.BuildManifest(dir, policyfolder.DefaultManifest)
	require.NoError(t, err)
	require.NoError(t, policyfolder.WriteManifest(dir, policyfolder.DefaultManifest, m))
}

// TestEachStepOfTheStartupChainFailsOnItsOwn starts gates over everything that a
// step of the chain can find. Each says which step failed, runs nothing, answers
// every read, leaves evidence once, and serves when a person has mended the
// cause, without a restart; what decides then is what the log calls active.
func TestEachStepOfTheStartupChainFailsOnItsOwn(t *testing.T) {
	for _, c := range brokenStarts {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := c.folder(t)
			g := startGate(t, d, append(c.settings, patience...)...)
			c.requireClosed(t, g)
			c.mend(t, g)
			require.Eventually(t, func() bool { return g.health(t).status == http.StatusOK }, startPatience, pollEvery, "it is mended:\n%s", g.output)
			require.Equal(t, c.decides, g.query(t, ask("SELECT 1")).text(t, "policy_version"))
			status := g.get(t, "/policy/status").json(t)
			require.Equal(t, c.decides, status["policy_version"])
			require.Nil(t, status["failure"])
			require.True(t, g.manifestMatches(t))
			g.end(t)
			c.checkLog(t, d)
			require.Equal(t, c.decides, activeIn(d.events(t)))

			if !c.invalid || !strings.HasPrefix(c.name, "a corpus,") { // where the cause is gone, the next start finds nothing
				g = startGate(t, d, append(c.settings, patience...)...)
				require.Equal(t, http.StatusOK, g.health(t).status)
			}
		})
	}
}

// folder is the folder of the gate as its start finds it.
func (c *brokenStart) folder(t *testing.T) gateDir {
	document := c.document
	if document == "" {
		document = notesPolicy
	}
	d := newGateDir(t, []byte(document))
	d.execute(t, notesTables)
	if c.before != nil {
		g := startGate(t, d, append([]string{codeIsKey}, patience...)...)
		require.Equal(t, http.StatusOK, g.health(t).status, "%s", g.output)
		c.before(t, g)
		g.end(t)
	}
	if c.spoil != nil {
		c.spoil(t, d.file("policies"))
	}
	return d
}

// requireClosed: the step and nothing before it failed, and the gate runs nothing.
func (c *brokenStart) requireClosed(t *testing.T, g *testGate) {
	h := g.health(t)
	require.Equal(t, http.StatusServiceUnavailable, h.status)
	require.Len(t, h.Chain, len(chainOrder))
	at := slices.Index(chainOrder, c.step)
	for i, step := range h.Chain {
		require.Equal(t, chainOrder[i], step.Step)
		want := "ok"
		switch {
		case i == at:
			want = "failed"
			require.Contains(t, step.Message, c.says)
		case i > at:
			want = "pending"
		}
		require.Equal(t, want, step.Status, "%s: %+v", step.Step, h.Chain)
	}
	for _, mode := range []string{"mode=live", "mode=preview"} {
		r := g.query(t, ask("SELECT 1"), mode)
		require.Equal(t, http.StatusServiceUnavailable, r.status)
		require.Equal(t, "policy_not_loaded", r.text(t, "error_code"))
		require.Equal(t, c.step, r.json(t)["details"].(map[string]any)["step"])
	}
	status := g.get(t, "/policy/status")
	var body struct {
		Loaded    bool    `json:"loaded"`
		Version   *string `json:"policy_version"`
		Path      *string `json:"path"`
		RuleCount int     `json:"rule_count"`
		Failure   struct {
			Step     string           `json:"step"`
			Message  string           `json:"message"`
			Findings []policy.Finding `json:"findings"`
		} `json:"failure"`
	}
	unmarshal(t, status.body, &body)
	require.Equal(t, http.StatusOK, status.status)
	require.False(t, body.Loaded)
	require.Nil(t, body.Version)
	require.Nil(t, body.Path)
	require.Zero(t, body.RuleCount)
	require.Equal(t, c.step, body.Failure.Step)
	var codes []string
	for _, f := range body.Failure.Findings {
		codes = append(codes, f.Code)
	}
	if c.finding != "" {
		require.Contains(t, codes, c.finding, "%s", status.body)
	}
	for _, path := range []string{"/policy/versions", "/audit", "/approvals", "/executions", "/logs", "/runtime/stats", "/evidence/verify"} {
		require.Equal(t, http.StatusOK, g.get(t, path).status, "reads go on: %s", path)
	}
	valid := g.operate(t, "/policy/validate", map[string]any{"document": nobodyWrites("3.0.0")})
	require.Equal(t, true, valid.json(t)["valid"], "%s", valid.body)
	diff := g.operate(t, "/policy/diff", map[string]any{"base_document": notesVersion("3.0.0"), "target_document": nobodyWrites("3.0.0")})
	require.Equal(t, http.StatusOK, diff.status, "%s", diff.body)
	dry := g.operate(t, "/policy/dry-run", map[string]any{"document": nobodyWrites("3.0.0"), "sql": "SELECT 1"})
	require.Equal(t, http.StatusOK, dry.status, "%s", dry.body)
}

// checkLog: the failed step stands in the log, and what its validation found.
func (c *brokenStart) checkLog(t *testing.T, d gateDir) {
	failures, invalid := map[string]int{}, 0
	for _, e := range d.events(t) {
		payload, err := event.Open(&e.Draft)
		require.NoError(t, err)
		switch p := payload.(type) {
		case *event.HealthFail:
			failures[p.Step+p.Message]++
			require.Equal(t, "policy_not_loaded", e.Context.ReasonCode)
		case *event.PolicyValidated:
			if !p.Valid {
				invalid++
				require.Equal(t, "startup", p.Cause)
				require.NotZero(t, p.Counts.Error)
			}
		}
	}
	require.NotEmpty(t, failures)
	for message, n := range failures {
		require.Equal(t, 1, n, message)
	}
	require.Equal(t, c.invalid, invalid == 1, "%d", invalid)
}

// TestADamagedLogEndsTheChainAtItsFirstStep: nothing behind it is tried, and no
// change of the policy is a way around it.
func TestADamagedLogEndsTheChainAtItsFirstStep(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	g := startGate(t, d, patience...)
	candidate := g.propose(t, notesVersion("1.1.0"))
	g.end(t)
	events := d.events(t)
	content, err := os.ReadFile(d.file("audit.wal"))
	require.NoError(t, err)
	at := strings.LastIndex(string(content), "notes@1.1.0")
	require.Positive(t, at, "one of %d events names it", len(events))
	content[at] ^= 1
	require.NoError(t, os.WriteFile(d.file("audit.wal"), content, 0o600))
	require.NoError(t, os.RemoveAll(d.file("policies")), "and the folder is gone as well")

	g = startGate(t, d, patience...)
	defer g.endDamaged(t)
	look := func() {
		for i, step := range g.health(t).Chain {
			require.Equal(t, []string{"failed", "pending", "pending", "pending", "pending"}[i], step.Status, "%+v", step)
		}
		r := g.query(t, ask("SELECT 1"))
		require.Equal(t, http.StatusServiceUnavailable, r.status)
		require.Equal(t, "audit_corruption_detected", r.text(t, "error_code"))
	}
	look()
	for path, body := range map[string]map[string]any{
		"/policy/candidates": {"document": notesVersion("1.2.0")}, "/policy/activate": {"expected_hash": candidate}, "/policy/rollback": {},
	} {
		r := g.operate(t, path, body)
		require.GreaterOrEqual(t, r.status, 400, "%s: %s", path, r.body)
	}
	look()
	for _, path := range []string{"/policy/status", "/policy/versions", "/approvals", "/executions", "/logs", "/runtime/stats", "/evidence/verify"} {
		require.Equal(t, http.StatusOK, g.get(t, path).status, "reads go on: %s", path)
	}
	damaged := g.get(t, "/audit")
	require.Equal(t, http.StatusOK, damaged.status, "%s", damaged.body)
	verified := damaged.json(t)["damaged"].(map[string]any)["verified_to"].(float64)
	require.Less(t, verified, float64(len(events)), "what is damaged is not shown as if it were whole: %s", damaged.body)
	require.Len(t, damaged.json(t)["items"], int(verified))
}
