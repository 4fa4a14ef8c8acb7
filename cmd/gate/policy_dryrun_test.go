package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// vectorCorpus are the statements of the classification vectors.
func vectorCorpus(t testing.TB) []string {
	t.Helper()
	file, err := os.Open(filepath.Join("..", "..", "fixtures", "corpus", "classification_vectors.tsv"))
	require.NoError(t, err)
	defer file.Close()
	var all []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		sql, _, _ := strings.Cut(lines.Text(), "\t")
		all = append(all, sql)
	}
	require.Greater(t, len(all), 90)
	return all[1:] // the first line names the columns
}

// A dryAnswer is what a dry run and a preview both say.
type dryAnswer struct {
	Decision       string  `json:"decision"`
	ReasonCode     string  `json:"reason_code"`
	Reason         string  `json:"reason"`  // of a dry run
	Message        string  `json:"message"` // of a preview, and of a refusal
	Remedy         *string `json:"remedy"`
	RuleID         string  `json:"rule_id"`
	Fingerprint    string  `json:"fingerprint"`
	PolicyVersion  string  `json:"policy_version"`
	Classification any     `json:"classification"`
	RuleTrace      any     `json:"rule_trace"`
	ErrorCode      string  `json:"error_code"`
	Details        any     `json:"details"`
}

func dryAnswerOf(t testing.TB, r reply) dryAnswer {
	t.Helper()
	var a dryAnswer
	unmarshal(t, r.body, &a)
	if r.status == http.StatusOK && a.Message == "" {
		a.Message = a.Reason
	}
	a.Reason = ""
	return a
}

// TestADryRunSaysWhatAPreviewSays sends the corpora to both, with the same
// claims, in both modes that a policy can see. Both refuse alike and decide
// alike, by the same trace, and nothing of it is written.
func TestADryRunSaysWhatAPreviewSays(t *testing.T) {
	t.Parallel()
	statements := vectorCorpus(t)
	for _, a := range attackCorpus(t) {
		statements = append(statements, a.SQL)
	}
	const held = "DELETE FROM held_notes" // with these claims it waits for an approval; all others are left to chance
	statements = append(statements, held)
	for _, mode := range []string{"enforce", "approval_first"} {
		t.Run(mode, func(t *testing.T) {
			d := newGateDir(t, []byte(mixedNotes("1.0.0")))
			g := startGate(t, d, append([]string{"GATE_MODE=" + mode}, patience...)...)
			head := g.head(t)
			decisions := map[string]int{}
			for i, sql := range statements {
				s, _ := mixedStatement(nil)
				s = s.with("sql", sql)
				if sql == held {
					s = s.with("tenant", "acme")
				}
				preview := g.query(t, s, "mode=preview")
				body := map[string]any(s)
				if i%2 == 0 { // half of them inside context
					body = map[string]any{"sql": sql, "context": s.without("sql")}
				}
				dry := g.operate(t, "/policy/dry-run", body)
				require.Equal(t, preview.status, dry.status, "%s: %s", sql, dry.body)
				said := dryAnswerOf(t, preview)
				require.Equal(t, said, dryAnswerOf(t, dry), "%s", sql)
				decisions[said.Decision]++
			}
			require.Len(t, decisions, 4, "all three decisions, and refusals: %v", decisions)
			require.Equal(t, head, g.head(t), "nothing is written")
		})
	}
}

func (s statement) without(key string) statement {
	c := statement{}
	for k, v := range s {
		if k != key {
			c[k] = v
		}
	}
	return c
}

// TestADryRunTakesAnyContext covers what no request can prove today: an agent's
// token, a certificate, an approval, a session; and what it compares with.
// A call that is written like a column is one for every way to ask.
func TestACallLikeAColumnIsSeenOverHTTP(t *testing.T) {
	t.Parallel()
	d := newGateDir(t, nil)
	d.execute(t, shopTables)
	d.execute(t, "CREATE FUNCTION fire(orders) RETURNS int LANGUAGE sql AS 'DELETE FROM customers RETURNING 1'")
	g := startGate(t, d)
	const sql = "UPDATE public.orders SET status = 'paid' WHERE id = 7 RETURNING orders.fire"
	r := g.query(t, ask(sql).with("app", "shop"))
	require.Equal(t, "BLOCK", r.text(t, "decision"), "%s", r.body)
	require.Contains(t, string(r.body), `"public.fire"`)
	require.Equal(t, "BLOCK", g.query(t, ask("SELECT orders.fire FROM orders").with("app", "shop")).text(t, "decision"))
	require.Equal(t, "BLOCK", g.query(t, ask("SELECT orders.fire FROM orders").with("app", "shop"), "mode=preview").text(t, "decision"))
	require.Equal(t, "BLOCK", g.operate(t, "/policy/dry-run", map[string]any{"sql": sql, "context": map[string]any{"app": "shop"}}).text(t, "decision"))
	require.Equal(t, "ALLOW", g.query(t, ask("SELECT orders.status FROM orders").with("app", "shop")).text(t, "decision"))
}

func TestADryRunTakesAnyContext(t *testing.T) {
	t.Parallel()
	document := strings.NewReplacer("version: 1.0.0", "version: 2.0.0", "match: { tables_written: [public.held_notes] }",
		"match: { tables_written: [public.held_notes], tls_subject: [\"CN=ana\"], agent_id: [\"agt_*\"], agent_tools_verified: true }").Replace(notesPolicy)
	g := startGate(t, newNotes(t), patience...)
	g.propose(t, document)
	head := g.head(t)
	dry := func(extra map[string]any) map[string]any {
		body := map[string]any{"sql": "INSERT INTO held_notes VALUES ('x')", "policy_version": "notes@2.0.0"}
		for k, v := range extra {
			body[k] = v
		}
		r := g.operate(t, "/policy/dry-run", body)
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		return r.json(t)
	}
	plain := dry(map[string]any{"compare_to": "active"})
	require.Equal(t, "ALLOW", plain["decision"])
	require.Equal(t, map[string]any{"policy_version": "notes@1.0.0", "decision": "REQUIRE_APPROVAL", "changed": true}, plain["compared"])
	require.Equal(t, false, plain["executed"])
	require.Equal(t, false, plain["audit_written"])
	require.Nil(t, plain["replay"])
	agent := map[string]any{"tls_subject": "CN=ana", "agent_id": "agt_1", "agent_tools_verified": true}
	held := dry(agent)
	require.Equal(t, "REQUIRE_APPROVAL", held["decision"])
	require.Equal(t, map[string]any{"ttl_seconds": 600., "max_rows": 5.}, held["approval"])
	require.Nil(t, held["compared"])
	agent["approved"] = true
	require.Equal(t, "ALLOW", dry(agent)["decision"])
	require.Equal(t, "REQUIRE_APPROVAL", dry(map[string]any{"context": map[string]any{"mode": "approval_first"}})["decision"])
	require.Equal(t, head, g.head(t))
	for name, c := range map[string]struct {
		body   string
		status int
		code   string
	}{
		"nothing to decide":         {`{}`, 400, "validation_failed"},
		"an env there is not":       {`{"sql":"SELECT 1","env":"moon"}`, 400, "validation_failed"},
		"a mode there is not":       {`{"sql":"SELECT 1","context":{"mode":"shadow"}}`, 400, "validation_failed"},
		"a claim that is too long":  {`{"sql":"SELECT 1","actor":"` + strings.Repeat("a", 257) + `"}`, 400, "validation_failed"},
		"a control character":       {`{"sql":"SELECT 1","context":{"host":"a\u0001"}}`, 400, "validation_failed"},
		"two sources":               {`{"sql":"SELECT 1","policy_version":"active","document":"x"}`, 400, "validation_failed"},
		"an unknown version":        {`{"sql":"SELECT 1","policy_version":"notes@7.0.0"}`, 404, "policy_not_found"},
		"an unknown version beside": {`{"sql":"SELECT 1","compare_to":"notes@7.0.0"}`, 404, "policy_not_found"},
		"a document of no use":      {`{"sql":"SELECT 1","document":"x"}`, 422, "policy_invalid"},
		"an unknown field":          {`{"sql":"SELECT 1","user":"ana"}`, 400, "invalid_json"},
		"a field inside":            {`{"sql":"SELECT 1","context":{"user":"ana"}}`, 400, "invalid_json"},
		"two statements":            {`{"sql":"SELECT 1; SELECT 2"}`, 400, "multi_statement_rejected"},
		"no session":                {`{"sql":"EXECUTE p"}`, 404, "session_not_found"},
		"a text that is too long":   {fmt.Sprintf(`{"sql":%q}`, "SELECT "+strings.Repeat("1+", 140_000)+"1"), 413, "oversized_sql"},
	} {
		r := g.do(t, http.MethodPost, "/policy/dry-run", []byte(c.body))
		require.Equal(t, c.status, r.status, "%s: %s", name, r.body)
		require.Equal(t, c.code, r.text(t, "error_code"), name)
	}
	require.Equal(t, head, g.head(t))
}
