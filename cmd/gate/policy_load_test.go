package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/sqlgate"
	"writegate/sqlgate/policy"
	"writegate/sqlgate/replay"
)

// notesVersion is the policy of the notes under another version. Its reason codes
// carry the number, so that an answer shows which rules made it.
func notesVersion(version string) string {
	document := strings.Replace(notesPolicy, "version: 1.0.0", "version: "+version, 1)
	number := "_" + strings.ReplaceAll(version, ".", "_")
	return strings.NewReplacer("notes_are_open", "notes_are_open"+number, "notes_are_closed", "notes_are_closed"+number).Replace(document)
}

// loadClients is how many clients ask while the policy is changed.
const loadClients = 32

// A crowdOfAsking is clients that ask until they are told to stop. What they
// ask is decided in each of the three ways, without touching a row.
type crowdOfAsking struct {
	stop    func()
	working sync.WaitGroup
	asked   atomic.Int64
}

// beginAsking starts the clients. before is called ahead of every request, and
// what it gives goes to check with the answer.
func (g *testGate) beginAsking(t testing.TB, before func() int, check func(before int, r reply)) *crowdOfAsking {
	t.Helper()
	stopped := make(chan struct{})
	c := &crowdOfAsking{stop: sync.OnceFunc(func() { close(stopped) })}
	t.Cleanup(c.end) // before the gate ends, also where the test fails
	var statements [][]byte
	for _, sql := range []string{"SELECT 1", "INSERT INTO closed_notes VALUES ('x')", "INSERT INTO open_notes SELECT 'x' WHERE false", "DELETE FROM open_notes", "SELECT count(*) FROM open_notes"} {
		body, err := json.Marshal(ask(sql))
		require.NoError(t, err)
		statements = append(statements, body)
	}
	for i := range loadClients {
		c.working.Go(func() {
			for n := i; ; n++ {
				select {
				case <-stopped:
					return
				default:
				}
				since := before()
				r, err := g.try(http.MethodPost, "/query", statements[n%len(statements)])
				if !assert.NoError(t, err) {
					return
				}
				c.asked.Add(1)
				check(since, r)
			}
		})
	}
	require.Eventually(t, func() bool { return c.asked.Load() >= loadClients }, startPatience, pollEvery, "they are at it before anything changes")
	return c
}

func (c *crowdOfAsking) end() {
	c.stop()
	c.working.Wait()
	http.DefaultClient.CloseIdleConnections() // those dialled for nothing would hold up the end of the gate
}

// A refusedChange is a change of the policy that must not happen.
type refusedChange struct {
	name  string
	path  string // activate or rollback
	spoil func(t testing.TB, dir string)
	body  map[string]any
	// what comes of it
	status  int
	code    string
	reason  string       // details.reason
	finding string       // a code among details.findings; "" = there are none
	leaves  []event.Type // "" for nothing
}

// spoiling makes of a change of one file a spoil.
func spoiling(name string, change func([]byte) []byte) func(testing.TB, string) {
	return func(t testing.TB, dir string) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), change(data), 0o644))
	}
}

func flipped(data []byte) []byte {
	data[len(data)/2] ^= 1
	return data
}

func replaced(old, with string) func([]byte) []byte {
	return func(data []byte) []byte { return []byte(strings.Replace(string(data), old, with, 1)) }
}

func placing(name, text string) func(testing.TB, string) {
	return func(t testing.TB, dir string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}

// linked puts a symbolic link to the very same bytes in a file's place.
func linked(name string) func(testing.TB, string) {
	return func(t testing.TB, dir string) {
		hidden := "." + name
		require.NoError(t, os.Rename(filepath.Join(dir, name), filepath.Join(dir, hidden)))
		require.NoError(t, os.Symlink(hidden, filepath.Join(dir, name)))
	}
}

// strictCorpus is a corpus whose case no version of the notes passes.
const strictCorpus = `
schema: gate.corpus/v1
cases:
  - name: nobody writes notes
    sql: INSERT INTO public.open_notes VALUES ('x')
    expect: { not: ALLOW }
`

func refusedChanges(candidate, active, rejected string) []refusedChange {
	const (
		candidateFile = "notes@1.2.0.yaml"
		activeFile    = "notes@1.1.0.yaml"
		never         = "0000000000000000000000000000000000000000000000000000000000000000"
	)
	good := map[string]any{"policy_version": "notes@1.2.0", "expected_hash": candidate}
	with := func(key string, value any) map[string]any {
		m := map[string]any{key: value}
		for k, v := range good {
			if k != key {
				m[k] = v
			}
		}
		return m
	}
	failed := func(name, reason string, body map[string]any) refusedChange {
		return refusedChange{name: name, path: "activate", body: body, status: 409, code: "policy_activation_failed", reason: reason}
	}
	spoiled := func(name, reason, finding string, spoil func(testing.TB, string)) refusedChange {
		c := failed(name, reason, good)
		c.spoil, c.finding = spoil, finding
		return c
	}
	corpusFails := spoiled("a corpus case fails", "corpus_failed", "PV301", placing("corpus/strict.yaml", strictCorpus))
	corpusFails.leaves = []event.Type{event.TypePolicyValidated}
	changes := []refusedChange{
		failed("another hash", "hash_mismatch", with("expected_hash", never)),
		failed("another hash, no version", "hash_mismatch", map[string]any{"expected_hash": never}),
		failed("another active version", "active_changed", with("expected_active_hash", candidate)),
		failed("another impact", "impact_mismatch", with("impact", map[string]any{"from_seq": 1, "to_seq": 5, "impact_hash": never})),
		failed("the active version", "not_candidate", map[string]any{"policy_version": "notes@1.1.0", "expected_hash": active}),
		failed("an archived version", "not_candidate", map[string]any{"policy_version": "notes@1.0.0", "expected_hash": policy.Digest([]byte(notesPolicy))}),
		failed("a rejected version", "not_candidate", map[string]any{"policy_version": "notes@1.3.0", "expected_hash": rejected}),
		corpusFails,
		spoiled("a corpus that cannot be read", "manifest_mismatch", "PV101", placing("corpus/broken.yaml", "cases: [")),
		spoiled("a byte of the candidate", "hash_mismatch", "PV401", spoiling(candidateFile, flipped)),
		spoiled("a byte of the active version", "manifest_mismatch", "PV401", spoiling(activeFile, flipped)),
		spoiled("the candidate and the manifest changed together", "hash_mismatch", "PV401", func(t testing.TB, dir string) {
			document := notesVersion("1.2.0") + "# one line more\n"
			placing(candidateFile, document)(t, dir)
			spoiling("manifest.json", replaced(candidate, policy.Digest([]byte(document))))(t, dir)
			spoiling("manifest.json", replaced(fmt.Sprintf(`"bytes": %d`, len(notesVersion("1.2.0"))), fmt.Sprintf(`"bytes": %d`, len(document))))(t, dir)
		}),
		spoiled("a file that is not listed", "manifest_mismatch", "PV402", placing("notes@9.0.0.yaml", notesVersion("9.0.0"))),
		spoiled("a file of another kind", "manifest_mismatch", "PV402", placing("README.txt", "hello")),
		spoiled("the candidate is gone", "manifest_mismatch", "PV402", func(t testing.TB, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, candidateFile))) }),
		spoiled("the active version is gone", "manifest_mismatch", "PV402", func(t testing.TB, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, activeFile))) }),
		spoiled("the candidate is a link", "manifest_mismatch", "PV402", linked(candidateFile)),
		spoiled("the manifest is a link", "manifest_mismatch", "PV402", linked("manifest.json")),
		spoiled("the corpus is a link", "manifest_mismatch", "PV402", func(t testing.TB, dir string) {
			require.NoError(t, os.Mkdir(filepath.Join(dir, ".corpus"), 0o755))
			require.NoError(t, os.Symlink(".corpus", filepath.Join(dir, "corpus")))
		}),
		spoiled("the manifest calls another version active", "manifest_mismatch", "PV401", spoiling("manifest.json", replaced(`"active": "notes@1.1.0"`, `"active": "notes@1.0.0"`))),
		spoiled("the manifest gives another status", "manifest_mismatch", "PV401", spoiling("manifest.json", replaced(`"candidate"`, `"archived"`))),
		spoiled("the manifest gives another hash", "manifest_mismatch", "PV401", spoiling("manifest.json", replaced(candidate, never))),
		spoiled("the manifest is ahead of the log", "manifest_mismatch", "PV401", spoiling("manifest.json", replaced(`"seq": `, `"seq": 9`))),
		spoiled("the manifest is no JSON", "manifest_mismatch", "PV401", spoiling("manifest.json", replaced("{", "["))),
		{name: "a version nobody knows", path: "activate", body: with("policy_version", "notes@7.0.0"), status: 404, code: "policy_not_found"},
		{name: "no hash", path: "activate", body: map[string]any{"policy_version": "notes@1.2.0"}, status: 400, code: "validation_failed"},
		{name: "no hash at all", path: "activate", body: with("expected_hash", "latest"), status: 400, code: "validation_failed"},
		{name: "a field that is unknown", path: "activate", body: with("force", true), status: 400, code: "invalid_json"},
		{name: "a reason that is too long", path: "activate", body: with("reason", strings.Repeat("x", 5000)), status: 400, code: "validation_failed"},
		{name: "an impact without a range", path: "activate", body: with("impact", map[string]any{"impact_hash": never}), status: 400, code: "validation_failed"},
		{name: "back to a candidate", path: "rollback", body: map[string]any{"policy_version": "notes@1.2.0"}, status: 409, code: "policy_activation_failed", reason: "not_archived"},
		{name: "back to the active version", path: "rollback", body: map[string]any{"policy_version": "notes@1.1.0"}, status: 409, code: "policy_activation_failed", reason: "not_archived"},
		{name: "back to a rejected version", path: "rollback", body: map[string]any{"policy_version": "notes@1.3.0"}, status: 409, code: "policy_activation_failed", reason: "not_archived"},
		{name: "back to a version nobody knows", path: "rollback", body: map[string]any{"policy_version": "notes@7.0.0"}, status: 404, code: "policy_not_found"},
		{name: "back, from another version", path: "rollback", body: map[string]any{"expected_active_hash": candidate}, status: 409, code: "policy_activation_failed", reason: "active_changed"},
	}
	corpusFails.name, corpusFails.path, corpusFails.body = "back, and a corpus case fails", "rollback", map[string]any{}
	byteOfTarget := spoiled("back, and a byte of that version", "hash_mismatch", "PV401", spoiling("notes@1.0.0.yaml", flipped))
	byteOfTarget.path, byteOfTarget.body = "rollback", map[string]any{"policy_version": "notes@1.0.0"}
	return append(changes, corpusFails, byteOfTarget)
}

// TestARefusedChangeLeavesTheOldVersionDeciding goes through everything that an
// activation and a rollback are refused for, while 32 clients ask: each answer
// names the version that was active before, and the log holds what the design
// says, mostly nothing.
func TestARefusedChangeLeavesTheOldVersionDeciding(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), patience...)
	g.activate(t, notesVersion("1.1.0"))
	candidate := g.propose(t, notesVersion("1.2.0"))
	bad := strings.Replace(notesVersion("1.3.0"), "decision: BLOCK", "decision: BLCOK", 1)
	r := g.operate(t, "/policy/candidates", map[string]any{"document": bad})
	require.Equal(t, http.StatusUnprocessableEntity, r.status, "%s", r.body)
	changes := refusedChanges(candidate, policy.Digest([]byte(notesVersion("1.1.0"))), policy.Digest([]byte(bad)))
	before := g.policyEvents(t)

	crowd := g.beginAsking(t, func() int { return 0 }, func(_ int, r reply) {
		assert.Contains(t, string(r.body), `"policy_version":"notes@1.1.0"`, "%d", r.status)
	})
	var leaves []event.Type
	for _, c := range changes {
		g.refuses(t, c)
		leaves = append(leaves, c.leaves...)
	}
	crowd.end()
	t.Logf("%d refusals, %d answers meanwhile", len(changes), crowd.asked.Load())
	require.Equal(t, leaves, g.policyEvents(t)[len(before):])

	require.Equal(t, http.StatusUnauthorized, g.do(t, http.MethodPost, "/policy/activate", []byte(`{}`)).status)
	done := g.operate(t, "/policy/activate", map[string]any{"policy_version": "notes@1.2.0", "expected_hash": candidate})
	require.Equal(t, http.StatusOK, done.status, "nothing of all this hurt the candidate: %s", done.body)
	g.end(t)
	for _, e := range g.events(t) {
		var p event.PolicyValidated
		if e.Type == event.TypePolicyValidated && e.Context.ReasonCode != "" {
			require.NoError(t, e.Parse(&p))
			require.False(t, p.Valid)
			require.Equal(t, "corpus_failed", e.Context.ReasonCode)
			require.NotEqual(t, p.Corpus.Cases, p.Corpus.Passed)
		}
	}
}

// refuses asks for a change that must be refused, and puts the folder back.
func (g *testGate) refuses(t *testing.T, c refusedChange) {
	t.Helper()
	dir, kept := g.file("policies"), filepath.Join(t.TempDir(), "kept")
	require.NoError(t, os.CopyFS(kept, os.DirFS(dir)))
	if c.spoil != nil {
		c.spoil(t, dir)
		require.Equal(t, c.reason == "corpus_failed", g.manifestMatches(t), c.name)
	}
	r := g.operate(t, "/policy/"+c.path, c.body)
	require.Equal(t, c.status, r.status, "%s: %s", c.name, r.body)
	var body struct {
		Code    string `json:"error_code"`
		Details struct {
			Reason   string           `json:"reason"`
			Findings []policy.Finding `json:"findings"`
		} `json:"details"`
	}
	unmarshal(t, r.body, &body)
	require.Equal(t, c.code, body.Code, c.name)
	require.Equal(t, c.reason, body.Details.Reason, "%s: %s", c.name, r.body)
	var codes []string
	for _, f := range body.Details.Findings {
		codes = append(codes, f.Code)
	}
	if c.finding == "" {
		require.Empty(t, codes, c.name)
	} else {
		require.Contains(t, codes, c.finding, "%s: %s", c.name, r.body)
	}
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.CopyFS(dir, os.DirFS(kept)))
	require.True(t, g.manifestMatches(t), "the folder is back after: %s", c.name)
	require.Equal(t, "notes@1.1.0", g.get(t, "/policy/status").text(t, "policy_version"), c.name)
	require.Equal(t, "candidate", g.get(t, "/policy/versions/notes@1.2.0").text(t, "status"), c.name)
}

func (g *testGate) manifestMatches(t testing.TB) bool {
	t.Helper()
	matches, _ := g.get(t, "/policy/status").json(t)["manifest"].(map[string]any)["matches"].(bool)
	return matches
}

// activate hands in a version and makes it the active one; it gives its hash.
func (g *testGate) activate(t testing.TB, document string) string {
	t.Helper()
	hash := g.propose(t, document)
	r := g.operate(t, "/policy/activate", map[string]any{"expected_hash": hash})
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	return hash
}

// policyEvents are the types of all events about the policy so far, in order.
func (g *testGate) policyEvents(t testing.TB) []event.Type {
	t.Helper()
	var types []event.Type
	r := g.get(t, "/audit?order=asc&limit=1000&event_type=policy_loaded&event_type=policy_validated&event_type=policy_activated"+
		"&event_type=policy_rollback&event_type=policy_candidate_created&event_type=policy_candidate_rejected")
	for _, item := range r.json(t)["items"].([]any) {
		types = append(types, event.Type(item.(map[string]any)["event_type"].(string)))
	}
	return types
}

// changesUnderLoad is how many changes the ordinary tests make; POLICY_CHANGES
// (`make policies`) makes it more.
const changesUnderLoad = 40

// A reign is the versions that were active, one after the other.
type reign struct {
	mu       sync.Mutex
	versions []string
	changing string // the one that is about to be, "" while nothing changes
}

// length is how many changes were answered.
func (r *reign) length() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.versions)
}

// change puts a version on the throne by what f does.
func (r *reign) change(version string, f func()) {
	r.mu.Lock()
	r.changing = version
	r.mu.Unlock()
	f()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.versions, r.changing = append(r.versions, version), ""
}

// allowed reports whether a request that began after the first n changes were
// answered may have been decided under a version: the last of those, or one
// that came to be meanwhile.
func (r *reign) allowed(n int, version string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.versions[n-1:], version) || version == r.changing
}

// TestNoRequestIsDecidedByAMixture changes the active version again and again,
// forwards and back, while 32 clients ask. Every answer is whole: version and
// reason belong together, and a request that begins after a change was answered
// is decided under it. Afterwards every decision of the log is what the version
// that it names decides.
func TestNoRequestIsDecidedByAMixture(t *testing.T) {
	t.Parallel()
	changes := changesUnderLoad
	if asked := os.Getenv("POLICY_CHANGES"); asked != "" {
		var err error
		changes, err = strconv.Atoi(asked)
		require.NoError(t, err)
	}
	g := startGate(t, newNotes(t), patience...)
	r := &reign{versions: []string{"notes@1.0.0"}}
	crowd := g.beginAsking(t, r.length, func(since int, answer reply) {
		var body struct {
			Version string `json:"policy_version"`
			Reason  string `json:"reason_code"`
		}
		if !assert.NoError(t, json.Unmarshal(answer.body, &body)) {
			return
		}
		assert.True(t, r.allowed(since, body.Version), "%s", answer.body)
		if number, ok := strings.CutPrefix(body.Reason, "notes_are_closed_"); ok {
			assert.Equal(t, "notes@"+strings.ReplaceAll(number, "_", "."), body.Version, "%s", answer.body)
		}
	})
	archived := []string{}
	for n := range changes {
		previous := r.versions[len(r.versions)-1]
		if len(archived) > 0 && n%4 != 0 {
			i := rand.IntN(len(archived))
			back := archived[i]
			r.change(back, func() {
				answer := g.operate(t, "/policy/rollback", map[string]any{"policy_version": back})
				require.Equal(t, http.StatusOK, answer.status, "%s", answer.body)
				require.Equal(t, previous, answer.text(t, "rolled_back_from"))
			})
			archived[i] = previous
			continue
		}
		version := fmt.Sprintf("1.%d.0", n+1)
		hash := g.propose(t, notesVersion(version))
		r.change("notes@"+version, func() {
			answer := g.operate(t, "/policy/activate", map[string]any{"expected_hash": hash})
			require.Equal(t, http.StatusOK, answer.status, "%s", answer.body)
		})
		archived = append(archived, previous)
	}
	crowd.end()
	g.end(t)
	decisions := recompute(t, g.events(t))
	require.GreaterOrEqual(t, int64(decisions), crowd.asked.Load())
	t.Logf("%d changes, %d answers meanwhile, %d decisions recomputed", changes, crowd.asked.Load(), decisions)
}

// recompute decides every decision of a log again, from the log alone, under
// the version that it names. It gives the number of decisions.
func recompute(t testing.TB, events []event.Envelope) int {
	t.Helper()
	v := replay.NewVerifier(sqlgate.EngineRecord(), nil, 0, 0, func(d replay.Difference) { t.Errorf("%+v", d) })
	for i := range events {
		require.NoError(t, v.Take(&events[i]))
	}
	result := v.Result()
	require.Zero(t, result.Differences)
	require.Zero(t, result.Unchecked)
	return result.Decisions
}
