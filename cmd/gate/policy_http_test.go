package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/sqlgate"
	"writegate/sqlgate/policy"
)

// sampleVersion is the sample policy under another version, with changes.
func sampleVersion(t testing.TB, version string, changes ...string) string {
	t.Helper()
	text := string(policy.Sample())
	const own = "version: 1.0.0"
	require.Contains(t, text, own)
	text = strings.Replace(text, own, "version: "+version, 1)
	require.Zero(t, len(changes)%2)
	for i := 0; i < len(changes); i += 2 {
		require.Contains(t, text, changes[i])
		text = strings.Replace(text, changes[i], changes[i+1], 1)
	}
	return text
}

// operate sends a JSON body, with the operator token.
func (g *testGate) operate(t testing.TB, path string, body map[string]any) reply {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	return g.do(t, http.MethodPost, path, text, operatorHeader)
}

// propose hands in a version and gives its hash.
func (g *testGate) propose(t testing.TB, document string) string {
	t.Helper()
	r := g.operate(t, "/policy/candidates", map[string]any{"document": document, "note": "a change"})
	require.Equal(t, http.StatusCreated, r.status, "%s", r.body)
	return r.text(t, "hash")
}

func TestAVersionIsProposedActivatedAndRolledBack(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	active := g.get(t, "/policy/status").json(t)
	document := sampleVersion(t, "1.1.0")
	hash := g.propose(t, document)

	again := g.operate(t, "/policy/candidates", map[string]any{"document": document})
	require.Equal(t, http.StatusOK, again.status, "the same bytes are the same version")
	other := g.operate(t, "/policy/candidates", map[string]any{"document": document + "\n# changed\n"})
	require.Equal(t, http.StatusConflict, other.status)
	require.Equal(t, "policy_version_exists", other.text(t, "error_code"))

	name, _, _ := strings.Cut(active["policy_version"].(string), "@")
	done := g.operate(t, "/policy/activate", map[string]any{"expected_hash": hash, "reason": "reviewed"})
	require.Equal(t, http.StatusOK, done.status, "%s", done.body)
	body := done.json(t)
	require.Equal(t, name+"@1.1.0", body["policy_version"])
	require.Equal(t, "active", body["status"])
	require.Equal(t, map[string]any{"policy_version": active["policy_version"], "status": "archived"}, body["previous"])
	require.Equal(t, name+"@1.1.0", g.query(t, ask("SELECT 1")).text(t, "policy_version"))

	back := g.operate(t, "/policy/rollback", map[string]any{})
	require.Equal(t, http.StatusOK, back.status, "%s", back.body)
	require.Equal(t, active["policy_version"], back.text(t, "policy_version"))
	require.Equal(t, name+"@1.1.0", back.text(t, "rolled_back_from"))
	status := g.get(t, "/policy/status").json(t)
	require.Equal(t, active["hash"], status["hash"])
	require.Equal(t, true, status["manifest"].(map[string]any)["matches"])

	one := g.do(t, http.MethodGet, "/policy/versions/"+name+"@1.1.0", nil, "Accept: application/yaml")
	require.Equal(t, document, string(one.body))
	require.Equal(t, `"`+hash+`"`, one.header.Get("ETag"))
	onDisk, err := os.ReadFile(filepath.Join(g.file("policies"), name+"@1.1.0.yaml"))
	require.NoError(t, err)
	require.Equal(t, document, string(onDisk))
}

// wrongNotes has one mistake of each kind; wrongFindings are what is to be said.
const wrongNotes = `
schema: gate.policy/v1
name: notes
version: 3.0.0
facts: facts/v1
owners: me
rules:
  - id: closed-notes
    decision: DENY
    reason_code: notes_are_closed
    match: { tables_writen: [public.closed_notes] }
  - id: closed-notes
    decision: ALLOW
    reason_code: open
    match: { query_types: [UPDATE] }
    when: actor ==
`

var wrongFindings = []string{"PV103", "PV109", "PV110", "PV201", "PV222"}

// costlyTests is a document that is valid, and whose tests cost 150,000,000 steps.
func costlyTests(version string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "schema: gate.policy/v1\nname: notes\nversion: %s\nfacts: facts/v1\nrules:\n", version)
	for i := range 30 {
		fmt.Fprintf(&b, "  - { id: r%d, decision: BLOCK, reason_code: r_r, match: {}, when: 'actor.matches(\"(?:.?.?){80}Q1$\")' }\n", i)
	}
	b.WriteString("tests:\n")
	for i := range 700 {
		fmt.Fprintf(&b, "  - { name: t%d, sql: SELECT 1, expect: { decision: ALLOW } }\n", i)
	}
	return b.String()
}

// A policyReport is the answer of POST /policy/validate.
type policyReport struct {
	Valid         bool             `json:"valid"`
	PolicyVersion string           `json:"policy_version"`
	Hash          string           `json:"hash"`
	SemanticHash  string           `json:"semantic_hash"`
	RuleCount     int              `json:"rule_count"`
	Findings      []policy.Finding `json:"findings"`
	Warnings      []policy.Finding `json:"warnings"`
	Counts        map[string]int   `json:"counts"`
	Tests         suiteReport      `json:"tests"`
	Corpus        suiteReport      `json:"corpus"`
	Coverage      struct {
		Rules []struct {
			RuleID  string   `json:"rule_id"`
			Matched int      `json:"matched"`
			Decided int      `json:"decided"`
			Cases   []string `json:"cases"`
		} `json:"rules"`
		Uncovered []string `json:"uncovered"`
	} `json:"coverage"`
}

type suiteReport struct {
	Cases  int    `json:"cases"`
	Passed int    `json:"passed"`
	Hash   string `json:"hash"`
	Failed []any  `json:"failed"`
}

func codesOf(findings []policy.Finding) []string {
	codes := []string{}
	for _, f := range findings {
		if !slices.Contains(codes, f.Code) {
			codes = append(codes, f.Code)
		}
	}
	slices.Sort(codes)
	return codes
}

func TestAValidationSaysEverythingAndWritesNothing(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), patience...)
	head := g.head(t)
	report := func(r reply) (p policyReport) {
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		unmarshal(t, r.body, &p)
		return p
	}
	wrong := report(g.operate(t, "/policy/validate", map[string]any{"document": wrongNotes}))
	require.False(t, wrong.Valid)
	require.Equal(t, "notes@3.0.0", wrong.PolicyVersion)
	require.Equal(t, policy.Digest([]byte(wrongNotes)), wrong.Hash)
	require.Equal(t, wrongFindings, codesOf(wrong.Findings), "%+v", wrong.Findings)
	require.Equal(t, len(wrong.Findings), wrong.Counts["error"])
	for _, f := range wrong.Findings {
		require.NotZero(t, f.Line, "%+v", f)
		require.NotEmpty(t, f.Message)
	}
	require.Equal(t, wrong, report(g.do(t, http.MethodPost, "/policy/validate", []byte(wrongNotes), "Content-Type: application/yaml")), "the bytes are the file")

	right := report(g.operate(t, "/policy/validate", map[string]any{"document": byCode("1.1.0")}))
	require.False(t, right.Valid, "its own test fails without its key column")
	require.Equal(t, []string{"PV301"}, codesOf(right.Findings))
	require.Equal(t, 1, right.Tests.Cases)
	require.Len(t, right.Tests.Failed, 1)
	active := report(g.operate(t, "/policy/validate", map[string]any{"policy_version": "active"}))
	require.True(t, active.Valid)
	require.Empty(t, active.Findings)
	require.Equal(t, 3, active.RuleCount)
	require.Contains(t, codesOf(active.Warnings), "PV302", "it has no tests")
	require.Equal(t, active.Corpus.Cases, active.Corpus.Passed)
	require.Len(t, active.Corpus.Hash, 64)
	require.Len(t, active.Coverage.Rules, 3)
	require.Equal(t, active, report(g.operate(t, "/policy/validate", map[string]any{"policy_version": "notes@1.0.0"})))
	status := g.get(t, "/policy/status").json(t)
	require.Equal(t, []any{active.Hash, active.SemanticHash}, []any{status["hash"], status["semantic_hash"]})
	taken := report(g.operate(t, "/policy/validate", map[string]any{"document": notesPolicy + "# more\n"}))
	require.Equal(t, []string{"PV108"}, codesOf(taken.Findings), "the number is taken")
	large := report(g.operate(t, "/policy/validate", map[string]any{"document": notesPolicy + "# " + strings.Repeat("x", 256<<10)}))
	require.Equal(t, []string{"PV112"}, codesOf(large.Findings))
	costly := costlyTests("5.0.0")
	stranger := report(g.do(t, http.MethodPost, "/policy/validate", []byte(costly), "Content-Type: application/yaml"))
	require.Equal(t, []string{"PV112"}, codesOf(stranger.Findings), "what anybody may send has tests of bounded cost")
	require.Equal(t, "/tests", stranger.Findings[0].Pointer)
	require.False(t, stranger.Valid)
	require.Equal(t, stranger.Tests.Cases, 700)
	require.True(t, report(g.operate(t, "/policy/validate", map[string]any{"document": costly})).Valid, "an operator's are run")
	asJSON := `{"schema":"gate.policy/v1","name":"notes","version":"4.0.0","facts":"facts/v1","rules":[{"id":"r","decision":"BLOCK","reason_code":"r_r","match":{}}]}`
	require.True(t, report(g.operate(t, "/policy/validate", map[string]any{"document": asJSON})).Valid)

	for name, c := range map[string]struct {
		body    string
		headers []string
		status  int
		code    string
	}{
		"nothing":             {``, nil, 400, "validation_failed"},
		"no source":           {`{}`, nil, 400, "validation_failed"},
		"two sources":         {`{"document":"x","policy_version":"active"}`, nil, 400, "validation_failed"},
		"an unknown field":    {`{"document":"x","strict":true}`, nil, 400, "invalid_json"},
		"another type":        {`{"document":{}}`, nil, 400, "invalid_json"},
		"no JSON":             {wrongNotes, nil, 400, "invalid_json"},
		"an unknown version":  {`{"policy_version":"notes@9.0.0"}`, nil, 404, "policy_not_found"},
		"another content":     {wrongNotes, []string{"Content-Type: text/html"}, 415, "unsupported_media_type"},
		"more than a request": {`{"document":"` + strings.Repeat("x", 1<<20) + `"}`, nil, 413, "oversized_request"},
	} {
		r := g.do(t, http.MethodPost, "/policy/validate", []byte(c.body), c.headers...)
		require.Equal(t, c.status, r.status, "%s: %s", name, r.body)
		require.Equal(t, c.code, r.text(t, "error_code"), name)
	}
	g.end(t)
	for _, e := range g.events(t)[head:] {
		require.Contains(t, []event.Type{event.TypeOversizedRequest, event.TypeShutdown}, e.Type)
	}
}

// A rejection is the details of policy_invalid.
type rejection struct {
	PolicyVersion *string          `json:"policy_version"`
	Hash          string           `json:"hash"`
	Status        *string          `json:"status"`
	Reason        string           `json:"reason"`
	Findings      []policy.Finding `json:"findings"`
}

func (g *testGate) rejected(t testing.TB, document string) rejection {
	t.Helper()
	r := g.operate(t, "/policy/candidates", map[string]any{"document": document})
	require.Equal(t, http.StatusUnprocessableEntity, r.status, "%s", r.body)
	require.Equal(t, "policy_invalid", r.text(t, "error_code"))
	var body struct {
		Details rejection `json:"details"`
	}
	unmarshal(t, r.body, &body)
	return body.Details
}

// TestACandidateIsTakenOnceOrRejectedForGood goes through every answer of POST
// /policy/candidates, and what the log has of it.
func TestACandidateIsTakenOnceOrRejectedForGood(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), patience...)
	document := notesVersion("1.1.0")
	bare := g.do(t, http.MethodPost, "/policy/candidates", []byte(document), "Content-Type: application/yaml")
	require.Equal(t, http.StatusUnauthorized, bare.status)
	require.Equal(t, http.StatusNotFound, g.get(t, "/policy/versions/notes@1.1.0").status)
	head := g.head(t) // the failed login left evidence

	first := g.operate(t, "/policy/candidates", map[string]any{"document": document, "note": "for the spring"})
	require.Equal(t, http.StatusCreated, first.status, "%s", first.body)
	entry := first.json(t)
	for field, want := range map[string]any{
		"policy_version": "notes@1.1.0", "name": "notes", "version": "1.1.0", "status": "candidate", "hash": policy.Digest([]byte(document)), "rule_count": 3.,
		"bytes": float64(len(document)), "created_by": "operator", "created_seq": float64(head + 1), "activated_at": nil, "archived_at": nil, "rejected_reason": nil, "note": "for the spring",
	} {
		require.Equal(t, want, entry[field], field)
	}
	require.NotEmpty(t, entry["warnings"])
	require.Contains(t, entry, "tests")
	require.Contains(t, entry, "corpus")
	require.Contains(t, entry, "coverage")
	again := g.do(t, http.MethodPost, "/policy/candidates", []byte(document), "Content-Type: application/yaml", operatorHeader)
	require.Equal(t, http.StatusOK, again.status, "%s", again.body)
	for _, field := range []string{"policy_version", "created_at", "created_seq", "semantic_hash", "note"} {
		require.Equal(t, entry[field], again.json(t)[field], field)
	}
	other := g.operate(t, "/policy/candidates", map[string]any{"document": document + "# more\n"})
	require.Equal(t, http.StatusConflict, other.status)
	require.Equal(t, "policy_version_exists", other.text(t, "error_code"))
	require.Equal(t, head+1, g.head(t), "one event for all of this")

	text := func(s string) *string { return &s }
	invalid := g.rejected(t, wrongNotes)
	require.Equal(t, rejection{text("notes@3.0.0"), policy.Digest([]byte(wrongNotes)), text("rejected"), "validation_failed", invalid.Findings}, invalid)
	require.Equal(t, wrongFindings, codesOf(invalid.Findings))
	require.Equal(t, invalid, g.rejected(t, wrongNotes), "the same bytes are answered the same")
	spent := g.operate(t, "/policy/candidates", map[string]any{"document": notesVersion("3.0.0")})
	require.Equal(t, http.StatusConflict, spent.status, "the number is spent")
	failing := g.rejected(t, byCode("1.2.0"))
	require.Equal(t, [2]string{"tests_failed", "rejected"}, [2]string{failing.Reason, *failing.Status})
	many := g.rejected(t, manyMistakes)
	require.Len(t, many.Findings, 100, "the log keeps the first hundred")
	require.Equal(t, many, g.rejected(t, manyMistakes))
	strict := filepath.Join(g.file("policies"), "corpus", "strict.yaml")
	require.NoError(t, os.Mkdir(filepath.Dir(strict), 0o755))
	require.NoError(t, os.WriteFile(strict, []byte(strictCorpus), 0o644))
	corpus := g.rejected(t, notesVersion("1.3.0"))
	require.Equal(t, [2]string{"corpus_failed", "rejected"}, [2]string{corpus.Reason, *corpus.Status})
	head = g.head(t)

	require.NoError(t, os.WriteFile(strict, []byte("cases: ["), 0o644))
	unusable := g.rejected(t, notesVersion("1.4.0"))
	require.Nil(t, unusable.Status, "a corpus that cannot be read says nothing about a document")
	require.Equal(t, "corpus_failed", unusable.Reason)
	require.NoError(t, os.Remove(strict))
	nameless := g.rejected(t, strings.Replace(notesPolicy, "version: 1.0.0", "version: one", 1))
	require.Nil(t, nameless.Status)
	require.Nil(t, nameless.PolicyVersion)
	require.Equal(t, []string{"PV106"}, codesOf(nameless.Findings))
	for name, body := range map[string]string{"no document": `{}`, "null": `{"document":null}`, "a note that is too long": `{"document":"x","note":"` + strings.Repeat("n", 4097) + `"}`} {
		r := g.do(t, http.MethodPost, "/policy/candidates", []byte(body), operatorHeader)
		require.Equal(t, http.StatusBadRequest, r.status, "%s: %s", name, r.body)
	}
	require.Equal(t, head, g.head(t), "nothing of this is recorded")
	require.Equal(t, http.StatusCreated, g.operate(t, "/policy/candidates", map[string]any{"document": notesVersion("1.4.0")}).status)

	g.end(t)
	all := g.events(t)
	rejections := map[string]string{}
	for i, e := range all {
		payload, err := event.Open(&e.Draft)
		require.NoError(t, err)
		switch p := payload.(type) {
		case *event.PolicyCandidateCreated:
			require.Equal(t, policy.Digest(p.Document), fmt.Sprintf("%x", p.Hash))
			require.Equal(t, "operator", p.By)
		case *event.PolicyCandidateRejected:
			require.Equal(t, event.TypePolicyCandidateCreated, all[i-1].Type, "one append")
			require.NotEmpty(t, p.Findings)
			rejections[p.PolicyVersion] = p.Reason
		}
	}
	require.Equal(t, map[string]string{"notes@3.0.0": "validation_failed", "notes@1.2.0": "tests_failed", "notes@1.3.0": "corpus_failed", "notes@5.0.0": "validation_failed"}, rejections)
}

// manyMistakes has more mistakes than the log keeps.
var manyMistakes = strings.Replace(notesPolicy, "version: 1.0.0", "version: 5.0.0", 1) + strings.Repeat("  - { id: r }\n", 60)

// TestVersionsAreListedAndShownWhole pages through the versions, by status and
// by name, and looks at one of each status.
func TestVersionsAreListedAndShownWhole(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), patience...)
	g.activate(t, notesVersion("1.1.0"))
	candidate := g.propose(t, notesVersion("1.2.0"))
	g.propose(t, strings.Replace(notesVersion("1.2.0"), "name: notes", "name: others", 1))
	g.rejected(t, wrongNotes)
	list := func(query string) (names []string) {
		for cursor := ""; ; {
			body := g.get(t, "/policy/versions?limit=2&cursor="+url.QueryEscape(cursor)+query).json(t)
			for _, item := range body["items"].([]any) {
				item := item.(map[string]any)
				names = append(names, item["policy_version"].(string)+" "+item["status"].(string))
			}
			next, _ := body["next_cursor"].(string)
			if cursor = next; cursor == "" {
				return names
			}
		}
	}
	require.Equal(t, []string{"notes@3.0.0 rejected", "others@1.2.0 candidate", "notes@1.2.0 candidate", "notes@1.1.0 active", "notes@1.0.0 archived"}, list(""))
	require.Equal(t, []string{"notes@1.0.0 archived", "notes@1.1.0 active", "notes@1.2.0 candidate", "others@1.2.0 candidate", "notes@3.0.0 rejected"}, list("&order=asc"))
	require.Equal(t, []string{"others@1.2.0 candidate", "notes@1.2.0 candidate"}, list("&status=candidate"))
	require.Equal(t, []string{"others@1.2.0 candidate"}, list("&name=others"))
	require.Equal(t, []string{"notes@1.2.0 candidate"}, list("&name=notes&status=candidate"))
	require.Empty(t, list("&name=nobody"))
	for _, query := range []string{"status=new", "limit=0", "limit=x", "cursor=%21", "status=active&status=active"} {
		require.Equal(t, http.StatusBadRequest, g.get(t, "/policy/versions?"+query).status, query)
	}

	one := g.get(t, "/policy/versions/notes@1.2.0")
	require.Equal(t, `"`+candidate+`"`, one.header.Get("ETag"))
	body := one.json(t)
	require.Equal(t, notesVersion("1.2.0"), body["document"])
	require.Empty(t, body["findings"])
	require.Equal(t, "candidate", body["status"])
	for accept, isYAML := range map[string]bool{"application/yaml": true, "application/json": false, "*/*": false, "application/yaml;q=0.9, text/plain": true} {
		r := g.do(t, http.MethodGet, "/policy/versions/notes@1.2.0", nil, "Accept: "+accept)
		require.Equal(t, isYAML, string(r.body) == notesVersion("1.2.0"), accept)
		require.Equal(t, "Accept", r.header.Get("Vary"))
		require.Equal(t, `"`+candidate+`"`, r.header.Get("ETag"))
	}
	rejected := g.get(t, "/policy/versions/notes@3.0.0").json(t)
	require.Equal(t, "validation_failed", rejected["rejected_reason"])
	require.Len(t, rejected["findings"], len(g.rejected(t, wrongNotes).Findings))
	require.Nil(t, rejected["semantic_hash"], "it does not load")
	archived := g.get(t, "/policy/versions/notes@1.0.0").json(t)
	require.Equal(t, "gate", archived["created_by"], "it was imported")
	require.NotNil(t, archived["archived_at"])
	require.NotNil(t, archived["activated_at"])
	require.NotNil(t, archived["semantic_hash"])
	require.Equal(t, "notes@1.1.0", g.get(t, "/policy/versions/active").text(t, "policy_version"))
	for _, name := range []string{"notes@9.0.0", "notes", "notes@1.2.0.yaml"} {
		r := g.get(t, "/policy/versions/"+name)
		require.Equal(t, http.StatusNotFound, r.status, name)
		require.Equal(t, "policy_not_found", r.text(t, "error_code"), name)
	}
}

// TestOneOfManyActivationsFromTheSameBaseWins: operators who looked at the same
// active version cannot both replace it.
func TestOneOfManyActivationsFromTheSameBaseWins(t *testing.T) {
	t.Parallel()
	const operators = 8
	g := startGate(t, newNotes(t), patience...)
	base := g.get(t, "/policy/status").text(t, "hash")
	var bodies [operators][]byte
	for i := range bodies {
		hash := g.propose(t, notesVersion(fmt.Sprintf("1.%d.0", i+1)))
		var err error
		bodies[i], err = json.Marshal(map[string]any{"expected_hash": hash, "expected_active_hash": base})
		require.NoError(t, err)
	}
	replies, errs := make([]reply, operators), make([]error, operators)
	var working sync.WaitGroup
	for i := range bodies {
		working.Go(func() { replies[i], errs[i] = g.try(http.MethodPost, "/policy/activate", bodies[i], operatorHeader) })
	}
	working.Wait()
	winner := ""
	for i, r := range replies {
		require.NoError(t, errs[i])
		if r.status == http.StatusOK {
			require.Empty(t, winner, "two have won")
			winner = r.text(t, "policy_version")
			continue
		}
		require.Equal(t, http.StatusConflict, r.status, "%s", r.body)
		require.Equal(t, "active_changed", r.json(t)["details"].(map[string]any)["reason"])
	}
	require.Equal(t, winner, g.get(t, "/policy/status").text(t, "policy_version"))
	require.Len(t, g.get(t, "/policy/status").json(t)["candidates"], operators-1)
}

// TestAChangeIsWhatItsAnswerAndItsEventsSay holds the bodies of an activation
// and of a rollback against the events that they left.
func TestAChangeIsWhatItsAnswerAndItsEventsSay(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), patience...)
	old, next := policy.Digest([]byte(notesPolicy)), g.propose(t, notesVersion("1.1.0"))
	activated := g.operate(t, "/policy/activate", map[string]any{"policy_version": "notes@1.1.0", "expected_hash": "sha256:" + next, "expected_active_hash": old, "reason": "spring"}).json(t)
	back := g.operate(t, "/policy/rollback", map[string]any{"policy_version": "notes@1.0.0", "expected_active_hash": next, "reason": "winter"}).json(t)
	for field, want := range map[string][2]any{
		"policy_version": {"notes@1.1.0", "notes@1.0.0"}, "status": {"active", "active"}, "hash": {next, old}, "activated_by": {"operator", "operator"},
		"rolled_back_from": {nil, "notes@1.1.0"},
		"previous":         {map[string]any{"policy_version": "notes@1.0.0", "status": "archived"}, map[string]any{"policy_version": "notes@1.1.0", "status": "archived"}},
	} {
		require.Equal(t, want, [2]any{activated[field], back[field]}, field)
	}
	status := g.get(t, "/policy/status").json(t)
	require.Equal(t, back["activated_seq"], status["activated_seq"])
	require.Equal(t, back["activated_at"], status["activated_at"])
	require.Equal(t, back["corpus"], status["corpus"])
	g.end(t)
	all := g.events(t)
	var p event.PolicyActivated
	at := uint64(activated["activated_seq"].(float64))
	require.NoError(t, p.Parse(all[at-1].Payload))
	require.Equal(t, []string{"notes@1.1.0", next, "notes@1.0.0", old, "operator", "spring"},
		[]string{p.PolicyVersion, fmt.Sprintf("%x", p.Hash), p.Previous, fmt.Sprintf("%x", p.PreviousHash), p.By, p.Reason})
	require.Nil(t, p.Impact)
	var r event.PolicyRollback
	end := uint64(back["activated_seq"].(float64))
	require.NoError(t, r.Parse(all[end-1].Payload))
	require.Equal(t, []string{"notes@1.0.0", old, "notes@1.1.0", next, "operator", "winter"},
		[]string{r.PolicyVersion, fmt.Sprintf("%x", r.Hash), r.From, fmt.Sprintf("%x", r.FromHash), r.By, r.Reason})
	for seq, cause := range map[uint64]string{at - 1: "activate", end - 1: "rollback"} {
		var v event.PolicyValidated
		require.Equal(t, event.TypePolicyValidated, all[seq-1].Type, "one append with the change")
		require.NoError(t, v.Parse(all[seq-1].Payload))
		require.True(t, v.Valid)
		require.Equal(t, cause, v.Cause)
		require.Equal(t, sqlgate.EngineRecord(), v.Engine)
		require.Equal(t, activated["corpus"].(map[string]any)["hash"], fmt.Sprintf("%x", v.Corpus.Hash))
	}
}

// TestTestsThatFailByNowEndAChange: what a document expects of itself held when
// it was handed in and does not any more, since the settings are others.
func TestTestsThatFailByNowEndAChange(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	g := startGate(t, d, append([]string{codeIsKey}, patience...)...)
	g.activate(t, byCode("1.1.0"))
	candidate := g.propose(t, byCode("1.2.0"))
	g.activate(t, notesVersion("1.3.0"))
	g.end(t)
	g = startGate(t, d, patience...)
	head := g.head(t)
	for path, body := range map[string]map[string]any{
		"/policy/activate": {"expected_hash": candidate}, "/policy/rollback": {"policy_version": "notes@1.1.0"},
	} {
		r := g.operate(t, path, body)
		require.Equal(t, http.StatusConflict, r.status, "%s", r.body)
		var answer struct {
			Details rejection `json:"details"`
		}
		unmarshal(t, r.body, &answer)
		require.Equal(t, "tests_failed", answer.Details.Reason)
		require.Equal(t, []string{"PV301"}, codesOf(answer.Details.Findings))
	}
	require.Equal(t, "notes@1.3.0", g.query(t, ask("SELECT 1"), "mode=preview").text(t, "policy_version"))
	require.Equal(t, "candidate", g.get(t, "/policy/versions/notes@1.2.0").text(t, "status"))
	require.Equal(t, "archived", g.get(t, "/policy/versions/notes@1.1.0").text(t, "status"))
	g.end(t)
	var causes []string
	for _, e := range g.events(t)[head:] {
		var v event.PolicyValidated
		if e.Type == event.TypePolicyValidated {
			require.NoError(t, e.Parse(&v))
			require.False(t, v.Valid)
			require.Equal(t, "tests_failed", e.Context.ReasonCode)
			causes = append(causes, v.Cause)
		}
	}
	require.ElementsMatch(t, []string{"activate", "rollback"}, causes)
}
