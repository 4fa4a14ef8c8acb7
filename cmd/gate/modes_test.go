package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/sqlgate/policy"
)

// A modeCase is one way to run the gate (spec/decisions.md part 2).
type modeCase struct {
	name     string
	settings []string
	now      string // the mode in force, as it shows everywhere but in the startup event
}

func modeCases() []modeCase {
	bypass := func(until time.Time) []string {
		return []string{"GATE_MODE=emergency_bypass", "GATE_EMERGENCY_BYPASS_REASON=the policy server burns", "GATE_EMERGENCY_BYPASS_UNTIL=" + until.UTC().Format(time.RFC3339)}
	}
	return []modeCase{
		{"enforce", nil, "enforce"},
		{"shadow", []string{"GATE_MODE=shadow"}, "shadow"},
		{"approval_first", []string{"GATE_MODE=approval_first"}, "approval_first"},
		{"emergency_bypass", bypass(time.Now().Add(time.Hour)), "emergency_bypass"},
		{"emergency_bypass that ended", bypass(time.Now().Add(-time.Hour)), "enforce"},
	}
}

// A modeStatement is a statement with what enforce says of it. %s is the note
// that it writes; table is where.
type modeStatement struct {
	name, sql, table         string
	status                   int
	decision, reason, ruleID string // "" = refused before a decision, with code
	code                     string
	carriable                bool // the gate can run it at all
}

var modeStatements = []modeStatement{
	{name: "a safe read", sql: "SELECT '%s' AS note", status: 200, decision: "ALLOW", reason: "safe_read", ruleID: "default", carriable: true},
	{name: "an allowed write", sql: "INSERT INTO open_notes VALUES ('%s')", table: "open_notes", status: 200, decision: "ALLOW", reason: "notes_are_open", ruleID: "open-notes", carriable: true},
	{name: "a held write", sql: "INSERT INTO held_notes VALUES ('%s')", table: "held_notes", status: 202, decision: "REQUIRE_APPROVAL", reason: "notes_are_held", ruleID: "held-notes", carriable: true},
	{name: "a blocked write", sql: "INSERT INTO closed_notes VALUES ('%s')", table: "closed_notes", status: 403, decision: "BLOCK", reason: "notes_are_closed", ruleID: "closed-notes", carriable: true},
	{name: "a write without a rule", sql: "INSERT INTO other_notes VALUES ('%s')", table: "other_notes", status: 403, decision: "BLOCK", reason: "default_deny", ruleID: "default", carriable: true},
	{name: "a floor signal", sql: "DO $$ BEGIN INSERT INTO open_notes VALUES ('%s'); END $$", table: "open_notes", status: 403, decision: "BLOCK", reason: "opaque_code", ruleID: "floor.opaque_code", carriable: true},
	{name: "a shape that cannot be carried", sql: "BEGIN -- %s", status: 403, decision: "BLOCK", reason: "default_deny", ruleID: "default"},
	{name: "two statements", sql: "INSERT INTO open_notes VALUES ('%s'); SELECT 1", table: "open_notes", status: 400, code: "multi_statement_rejected"},
	{name: "no statement", sql: "-- %s", status: 400, code: "empty_sql"},
	{name: "not SQL", sql: "INSRET INTO open_notes VALUES ('%s')", table: "open_notes", status: 400, code: "parser_error"},
}

// A tokenCase is what a request may carry besides its claims.
type tokenCase struct {
	name, header string
	operator     bool
}

var tokenCases = []tokenCase{
	{"without a token", "", false},
	{"with a wrong token", "X-GATE-Operator-Token: not-the-operator-token-at-all", false},
	{"with the operator token", "X-GATE-Operator-Token: " + operatorTestToken, true},
	{"with the operator token as bearer", "Authorization: Bearer " + operatorTestToken, true},
}

// A verdict is what is expected of one request.
type verdict struct {
	status            int
	decision, reason  string
	code              string
	ran               bool
	enforced, bypass  bool
	approval, carried bool // an approval is asked for; the statement got as far as a decision
}

// expected derives the verdict from what enforce says, by the words of
// spec/decisions.md part 2.
func (s *modeStatement) expected(mode string, operator bool) verdict {
	v := verdict{status: s.status, decision: s.decision, reason: s.reason, code: s.code, enforced: true, carried: true}
	if s.code != "" {
		v.carried = false
		return v
	}
	loose := mode == "shadow" || (mode == "emergency_bypass" && operator)
	switch {
	case loose && !s.carriable:
		v.status, v.code, v.carried = http.StatusUnprocessableEntity, "unsupported_sql_shape", false
	case loose:
		v.status, v.enforced, v.bypass = http.StatusOK, false, mode == "emergency_bypass"
	case mode == "approval_first" && s.decision == "ALLOW" && s.reason != "safe_read":
		v.status, v.decision, v.reason = http.StatusAccepted, "REQUIRE_APPROVAL", "approval_first_mode"
	}
	v.ran = v.status == http.StatusOK
	v.approval = v.status == http.StatusAccepted
	return v
}

// fieldsOf are the fields that an answer must have (spec/decisions.md part 3).
func (v *verdict) fieldsOf() []string {
	decided := []string{"decision", "enforced", "fingerprint", "policy_version", "classification", "request_id"}
	switch {
	case v.code != "":
		return []string{"error_code", "message", "error_id"}
	case v.ran:
		return append(decided, "execution_state", "execution_id", "rows", "row_count", "columns", "command_tag", "duration_ms")
	}
	decided = append(decided, "reason_code", "message", "remedy", "rule_id", "decided_by")
	if v.approval {
		decided = append(decided, "approval_id", "approval_expires_at")
	}
	return decided
}

// typesOf are the events of one request, in order.
func (v *verdict) typesOf() []event.Type {
	if !v.carried {
		return []event.Type{event.TypeQueryRejected}
	}
	found := []event.Type{event.TypeRequestReceived, event.TypeDecisionRecorded}
	if v.bypass {
		found = append(found, event.TypeEmergencyBypass)
	}
	switch {
	case v.approval:
		found = append(found, event.TypeApprovalCreated)
	case v.ran:
		found = append(found, event.TypeExecutionDispatched, event.TypeExecutionSuccess)
	}
	return found
}

func TestOperatingModes(t *testing.T) {
	t.Parallel()
	for _, mode := range modeCases() {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			d := newNotes(t)
			d.execute(t, "CREATE TABLE other_notes (note text NOT NULL)")
			g := startGate(t, d, mode.settings...)
			expected := map[string]verdict{}
			for i := range modeStatements {
				for j, token := range tokenCases {
					s, id := &modeStatements[i], fmt.Sprintf("r-%d-%d", i, j)
					v := s.expected(mode.now, token.operator)
					expected[id] = v
					t.Run(s.name+" "+token.name, func(t *testing.T) { checkMode(t, g, s, &v, id, token.header) })
				}
			}
			checkModeShows(t, g, mode.now)
			checkApprovals(t, g, expected)
			g.end(t)
			checkModeEvents(t, g.events(t), expected, mode)
		})
	}
}

// checkMode sends one statement and looks at the answer and at the database.
func checkMode(t *testing.T, g *testGate, s *modeStatement, v *verdict, id, header string) {
	headers := []string{"X-Request-Id: " + id}
	if header != "" {
		headers = append(headers, header)
	}
	body := encode(t, ask(fmt.Sprintf(s.sql, id)))
	r := g.do(t, http.MethodPost, "/query", body, headers...)
	require.Equal(t, v.status, r.status, "%s", r.body)
	fields := r.json(t)
	for _, field := range v.fieldsOf() {
		require.Contains(t, fields, field)
	}
	require.Equal(t, id, r.header.Get("X-Request-Id"))
	if s.table != "" {
		want := map[bool]string{true: "1", false: "0"}[v.ran]
		require.Equal(t, want, g.rowsOf(t, s.table, id))
	}
	if v.code != "" {
		require.Equal(t, v.code, fields["error_code"])
		return
	}
	require.Equal(t, v.decision, fields["decision"])
	require.Equal(t, v.enforced, fields["enforced"])
	require.Equal(t, v.bypass, fields["bypass"] == true)
	if v.ran {
		require.Equal(t, "success", fields["execution_state"])
		if v.decision != "ALLOW" { // it is not told to be sent again, nor that nothing was done
			require.Nil(t, fields["remedy"])
			require.NotContains(t, fields["message"], "Nothing was executed")
			require.NotContains(t, fields["message"], "never reached")
		}
	} else {
		require.Equal(t, v.reason, fields["reason_code"])
		require.NotContains(t, fields, "execution_id")
	}
}

// checkModeShows looks at the three places that name the mode.
func checkModeShows(t *testing.T, g *testGate, now string) {
	t.Helper()
	for _, path := range []string{"/health", "/policy/status", "/runtime/stats"} {
		require.Equal(t, now, g.get(t, path).text(t, "mode"), path)
	}
	bypassed := now == "emergency_bypass"
	require.Equal(t, bypassed, g.get(t, "/health").json(t)["bypass"] == true)
	warned := bytes.Contains(g.get(t, "/logs?level=warn&limit=1000").body, []byte("emergency bypass"))
	require.Equal(t, bypassed, warned, "a bypass shows in the operational log, at warn")
}

// checkApprovals holds that exactly the held statements made an approval.
func checkApprovals(t *testing.T, g *testGate, expected map[string]verdict) {
	t.Helper()
	var list struct {
		Items []struct {
			RequestID  string `json:"request_id"`
			ReasonCode string `json:"reason_code"`
		} `json:"items"`
	}
	unmarshal(t, g.get(t, "/approvals").body, &list)
	found := map[string]string{}
	for _, item := range list.Items {
		found[item.RequestID] = item.ReasonCode
	}
	want := map[string]string{}
	for id, v := range expected {
		if v.approval {
			want[id] = v.reason
		}
	}
	require.Equal(t, want, found)
}

// checkModeEvents compares the whole log with what was expected of each request.
func checkModeEvents(t *testing.T, all []event.Envelope, expected map[string]verdict, mode modeCase) {
	t.Helper()
	startMode, _, _ := strings.Cut(mode.name, " ")
	found := map[string][]event.Type{}
	for _, e := range all {
		v, id := expected[e.Context.RequestID], e.Context.RequestID
		if id != "" && e.Type != event.TypeOperatorAuthFailed { // of a wrong token, beside the statement, which is anybody's then
			found[id] = append(found[id], e.Type)
		}
		switch e.Type {
		case event.TypeStartup:
			require.Equal(t, startMode, e.Context.Mode)
		case event.TypeDecisionRecorded:
			p := new(event.DecisionRecorded)
			require.NoError(t, e.Parse(p))
			require.Equal(t, []any{v.decision, v.reason, mode.now, v.enforced, v.bypass},
				[]any{e.Context.Decision, e.Context.ReasonCode, e.Context.Mode, p.Enforced, p.Bypass}, id)
		case event.TypeEmergencyBypass:
			p := new(event.EmergencyBypass)
			require.NoError(t, e.Parse(p))
			require.Equal(t, "the policy server burns", p.Reason)
			require.Equal(t, "operator", p.By)
			require.Equal(t, "GATE_EMERGENCY_BYPASS_UNTIL="+time.Unix(0, p.Until).UTC().Format(time.RFC3339), mode.settings[2])
		case event.TypeQueryRejected:
			require.Equal(t, v.code, e.Context.ErrorCode, id)
		}
	}
	for id, v := range expected {
		require.Equal(t, v.typesOf(), found[id], "%s: %+v", id, v)
	}
}

func TestShadowAndEnforceRecordTheSameDecision(t *testing.T) {
	t.Parallel()
	record := func(mode string) map[string]event.DecisionRecorded {
		d := newNotes(t)
		d.execute(t, "CREATE TABLE other_notes (note text NOT NULL)")
		g := startGate(t, d, "GATE_MODE="+mode)
		for i, s := range modeStatements {
			g.query(t, ask(fmt.Sprintf(s.sql, fmt.Sprint("n", i))))
		}
		g.end(t)
		recorded := map[string]event.DecisionRecorded{}
		digest := map[string]string{}
		for _, e := range g.events(t) {
			switch e.Type {
			case event.TypeRequestReceived:
				p := new(event.RequestReceived)
				require.NoError(t, e.Parse(p))
				digest[e.Context.RequestID] = fmt.Sprintf("%x", p.SQLDigest)
			case event.TypeDecisionRecorded:
				p := new(event.DecisionRecorded)
				require.NoError(t, e.Parse(p))
				require.Equal(t, mode == "enforce", p.Enforced)
				p.Enforced, p.Engine = false, 0
				recorded[digest[e.Context.RequestID]+" "+e.Context.Decision+" "+e.Context.ReasonCode] = *p
			}
		}
		return recorded
	}
	enforced, shadowed := record("enforce"), record("shadow")
	require.NotEmpty(t, shadowed)
	for key, p := range shadowed {
		require.Equal(t, enforced[key], p, key)
	}
}

// corpusTexts are the statements of the corpus, attacks and vectors alike.
func corpusTexts(t testing.TB) []string {
	t.Helper()
	attacks, err := os.Open("../../fixtures/corpus/attacks.jsonl")
	require.NoError(t, err)
	defer attacks.Close()
	var texts []string
	lines := bufio.NewScanner(attacks)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var a struct{ SQL string }
		unmarshal(t, lines.Bytes(), &a)
		texts = append(texts, a.SQL)
	}
	require.NoError(t, lines.Err())
	vectors, err := os.ReadFile("../../fixtures/corpus/classification_vectors.tsv")
	require.NoError(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(vectors)), "\n")[1:] {
		sql, _, _ := strings.Cut(line, "\t")
		texts = append(texts, sql)
	}
	require.Greater(t, len(texts), 300)
	return texts
}

// TestModesPreviewAlike: shadow and a bypass decide as enforce does, with the
// same reasons and the same trace, over every statement of the corpus.
func TestModesPreviewAlike(t *testing.T) {
	t.Parallel()
	for name, document := range map[string][]byte{"sample": policy.Sample(), "starting": policy.Starting(""), "notes": []byte(notesPolicy)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var gates []*testGate
			for _, mode := range modeCases() {
				if mode.name != "approval_first" {
					gates = append(gates, startGate(t, newGateDir(t, document), mode.settings...))
				}
			}
			for _, sql := range corpusTexts(t) {
				enforced := previewOf(t, gates[0], sql)
				for _, g := range gates[1:] {
					require.Equal(t, enforced, previewOf(t, g, sql), sql)
				}
			}
			for _, g := range gates {
				g.end(t)
				require.Empty(t, types(g.events(t)), "a preview leaves no evidence")
			}
		})
	}
}

// previewOf is everything that a preview answers, without the ids of the answer
// itself. It is sent as an operator, who may be bypassed.
func previewOf(t testing.TB, g *testGate, sql string) map[string]any {
	t.Helper()
	body := encode(t, ask(sql))
	r := g.do(t, http.MethodPost, "/query?mode=preview", body, "X-GATE-Operator-Token: "+operatorTestToken)
	fields := r.json(t)
	fields["status"] = r.status
	delete(fields, "request_id")
	delete(fields, "error_id")
	if r.status == http.StatusOK {
		require.NotEmpty(t, fields["rule_trace"], sql)
		require.Equal(t, false, fields["would_execute"])
	}
	return fields
}

// TestApprovalFirstAsksForEveryWrite: an ALLOW is an approval in that mode and
// nothing else differs, over the corpus.
func TestApprovalFirstAsksForEveryWrite(t *testing.T) {
	t.Parallel()
	enforce := startGate(t, newGateDir(t, nil))
	first := startGate(t, newGateDir(t, nil), "GATE_MODE=approval_first")
	asked := 0
	for _, sql := range append(corpusTexts(t), "UPDATE orders SET status = 'paid' WHERE id = 1", "INSERT INTO orders VALUES (1, 1, 'new')") {
		a, b := previewOf(t, enforce, sql), previewOf(t, first, sql)
		if a["decision"] == "ALLOW" && a["reason_code"] != "safe_read" {
			require.Equal(t, []any{"REQUIRE_APPROVAL", "approval_first_mode"}, []any{b["decision"], b["reason_code"]}, sql)
			asked++
			continue
		}
		require.Equal(t, []any{a["decision"], a["reason_code"], a["error_code"]}, []any{b["decision"], b["reason_code"], b["error_code"]}, sql)
	}
	require.Positive(t, asked)
}

func TestApprovalFirstRunsWhatWasApproved(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), "GATE_MODE=approval_first")
	id := g.approved(t, insertOpen("first"))
	require.Equal(t, "0", g.rowsOf(t, "open_notes", "first"))
	r := g.query(t, insertOpen("first").with("approval_id", id))
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Equal(t, true, r.json(t)["enforced"])
	require.Equal(t, "1", g.rowsOf(t, "open_notes", "first"))
	require.Equal(t, "approval_already_used", g.query(t, insertOpen("first").with("approval_id", id)).text(t, "error_code"))
}

func TestABypassEndsByItself(t *testing.T) {
	t.Parallel()
	until := time.Now().Add(2 * time.Second).UTC().Truncate(time.Second).Add(time.Second)
	g := startGate(t, newNotes(t), "GATE_MODE=emergency_bypass", "GATE_EMERGENCY_BYPASS_REASON=short", "GATE_EMERGENCY_BYPASS_UNTIL="+until.Format(time.RFC3339))
	body := encode(t, ask("INSERT INTO closed_notes VALUES ('late')"))
	require.Eventually(t, func() bool { return g.get(t, "/health").text(t, "mode") == "enforce" }, startPatience, pollEvery)
	r := g.do(t, http.MethodPost, "/query", body, "X-GATE-Operator-Token: "+operatorTestToken)
	require.Equal(t, http.StatusForbidden, r.status, "%s", r.body)
	require.Equal(t, "0", g.rowsOf(t, "closed_notes", "late"))
}

// TestNoModeWeakensAnApproval: what the look-up of an approval refuses is
// refused in every mode, with and without a token.
func TestNoModeWeakensAnApproval(t *testing.T) {
	t.Parallel()
	for _, mode := range modeCases() {
		t.Run(mode.name, func(t *testing.T) {
			g := startGate(t, newNotes(t), mode.settings...)
			for _, token := range tokenCases {
				body := encode(t, insertHeld("nobody").with("approval_id", "apr_01890000-0000-7000-8000-000000000000"))
				headers := []string{}
				if token.header != "" {
					headers = append(headers, token.header)
				}
				r := g.do(t, http.MethodPost, "/query", body, headers...)
				require.Equal(t, http.StatusNotFound, r.status, "%s", r.body)
				require.Equal(t, "approval_not_found", r.text(t, "error_code"))
			}
			require.Equal(t, "0", g.rowsOf(t, "held_notes", "nobody"))
		})
	}
}
