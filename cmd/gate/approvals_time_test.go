package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// These tests hold what time does to approvals: expiry, purge, and restarts.

// shortTTL makes every approval of approval_first mode expire after a second;
// the rule of held_notes keeps its own ten minutes.
var shortTTL = []string{"GATE_MODE=approval_first", "GATE_APPROVAL_DEFAULT_TTL_SECONDS=1"}

// expired asks for a short approval and waits until it shows as expired.
func (g *testGate) expired(t testing.TB, s statement) string {
	t.Helper()
	id := g.hold(t, s)
	require.Eventually(t, func() bool { return g.record(t, id)["status"] == "expired" }, startPatience, pollEvery)
	return id
}

// auditOf lists the events of an approval's life, oldest first.
func (g *testGate) auditOf(t testing.TB, id string) []string {
	t.Helper()
	found := []string{}
	for _, item := range g.get(t, "/audit?order=asc&approval_id="+id).json(t)["items"].([]any) {
		if name := item.(map[string]any)["event_type"].(string); strings.HasPrefix(name, "approval") {
			found = append(found, name)
		}
	}
	return found
}

func TestAnApprovalExpires(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), shortTTL...)
	id := g.expired(t, insertOpen("late"))
	record := g.record(t, id)
	require.Equal(t, time.Second, moment(t, record["expires_at"]).Sub(moment(t, record["created_at"])))
	require.False(t, time.Now().Before(moment(t, record["expires_at"])))
	require.Equal(t, []any{nil, nil, nil, nil, nil}, pick(record, "resolution", "resolved_at", "resolved_by", "note", "used_at"))

	requireFault(t, g.query(t, insertOpen("late").with("approval_id", id)), http.StatusGone, "approval_expired")
	requireFault(t, g.query(t, insertOpen("other").with("approval_id", id)), http.StatusGone, "approval_expired") // before mismatch
	for _, decision := range []string{"approve", "reject"} {
		requireFault(t, g.resolve(t, id, decision), http.StatusGone, "approval_expired")
	}
	require.Equal(t, record, g.record(t, id), "nothing of this changed it")
	require.Equal(t, "0", g.rowsOf(t, "open_notes", "late"))
	require.Len(t, g.approvals(t, "status=expired").Items, 1)
	require.Empty(t, g.approvals(t, "status=pending").Items)
	require.Equal(t, []any{0.0, 0.0}, pick(g.get(t, "/runtime/stats").json(t), "approvals_pending", "approvals_resolved"))

	require.Eventually(t, func() bool { return slices.Contains(g.auditOf(t, id), "approval_expired") }, startPatience, pollEvery,
		"the timer writes the event by itself")
	g.end(t)
	require.Equal(t, 1, countTypes(g.events(t), id)["approval_expired"], "once")
}

func TestEachRuleHasItsOwnTime(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), shortTTL...)
	held := g.hold(t, insertHeld("ten minutes"))
	g.expired(t, insertOpen("a second"))
	require.Equal(t, "pending", g.record(t, held)["status"], "the TTL of its rule is ten minutes")
}

// TestAnApprovedApprovalRunsOutToo: the time runs from creation and holds after
// the approval; the record stays resolved.
func TestAnApprovedApprovalRunsOutToo(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), shortTTL...)
	var id string
	require.Eventually(t, func() bool { // on a slow machine the operator may be too late
		id = g.hold(t, insertOpen("slow"))
		return g.resolve(t, id, "approve").status == http.StatusOK
	}, startPatience, pollEvery)
	expires := moment(t, g.record(t, id)["expires_at"])
	require.Eventually(t, func() bool { return time.Now().After(expires) }, startPatience, pollEvery)
	requireFault(t, g.query(t, insertOpen("slow").with("approval_id", id)), http.StatusGone, "approval_expired")
	require.Equal(t, "resolved", g.record(t, id)["status"])
	requireFault(t, g.resolve(t, id, "reject"), http.StatusConflict, "approval_already_resolved")
	require.Equal(t, "0", g.rowsOf(t, "open_notes", "slow"))
	purged := g.post(t, "/approvals/purge", "")
	require.NotContains(t, g.auditOf(t, id), "approval_expired")
	require.Equal(t, "resolved", g.record(t, id)["status"], "a purge leaves what was resolved: %s", purged.body)
}

// TestAnApprovalExpiresWhileTheGateIsDown: the next run writes the event.
func TestAnApprovalExpiresWhileTheGateIsDown(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	g := startGate(t, d, "GATE_MODE=approval_first", "GATE_APPROVAL_DEFAULT_TTL_SECONDS=3")
	id := g.hold(t, insertOpen("down"))
	expires := moment(t, g.record(t, id)["expires_at"])
	g.end(t)
	require.Eventually(t, func() bool { return time.Now().After(expires) }, startPatience, pollEvery)
	g = startGate(t, d)
	require.Equal(t, "expired", g.record(t, id)["status"])
	require.Eventually(t, func() bool { return len(g.auditOf(t, id)) == 2 }, startPatience, pollEvery)
	require.Equal(t, []string{"approval_created", "approval_expired"}, g.auditOf(t, id))
}

func TestPurgeRemovesWhatIsExpiredAndNothingElse(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), append([]string{"GATE_OPERATOR_TOKENS=janitor=the-token-of-the-janitor"}, shortTTL...)...)
	pending, approved, rejected := g.hold(t, insertHeld("pending")), g.approved(t, insertHeld("approved")), g.hold(t, insertHeld("rejected"))
	require.Equal(t, http.StatusOK, g.resolve(t, rejected, "reject").status)
	var expired []string
	for i := range 3 {
		expired = append(expired, g.hold(t, insertOpen(fmt.Sprint("expired ", i))))
	}
	require.Eventually(t, func() bool { return len(g.approvals(t, "status=expired").Items) == 3 }, startPatience, pollEvery)
	kept := []map[string]any{g.record(t, pending), g.record(t, approved), g.record(t, rejected)}

	requireFault(t, g.do(t, http.MethodPost, "/approvals/purge", nil), http.StatusUnauthorized, "unauthorized_operator")
	requireFault(t, g.do(t, http.MethodPost, "/approvals/purge", nil, "Authorization: Bearer no"), http.StatusUnauthorized, "unauthorized_operator")
	requireFault(t, g.post(t, "/approvals/purge", `{"all":true}`), http.StatusBadRequest, "invalid_json")
	require.Len(t, g.approvals(t, "").Items, 6)

	r := g.do(t, http.MethodPost, "/approvals/purge", []byte(`{}`), "Authorization: Bearer the-token-of-the-janitor")
	require.Equal(t, http.StatusOK, r.status)
	require.JSONEq(t, `{"purged":3}`, string(r.body))
	require.JSONEq(t, `{"purged":0}`, string(g.post(t, "/approvals/purge", "").body))

	require.Equal(t, kept, []map[string]any{g.record(t, pending), g.record(t, approved), g.record(t, rejected)})
	require.Len(t, g.approvals(t, "").Items, 3)
	for i, id := range expired {
		requireFault(t, g.get(t, "/approvals/"+id), http.StatusNotFound, "approval_not_found")
		requireFault(t, g.resolve(t, id, "approve"), http.StatusNotFound, "approval_not_found")
		requireFault(t, g.query(t, insertOpen(fmt.Sprint("expired ", i)).with("approval_id", id)), http.StatusNotFound, "approval_not_found")
		require.Equal(t, []string{"approval_created", "approval_expired"}, g.auditOf(t, id), "the log keeps everything")
	}
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM open_notes"))
	require.Equal(t, "ok", g.get(t, "/evidence/verify").text(t, "status"))
	g.end(t)
	checkPurgeEvent(t, g.events(t), expired)
}

func checkPurgeEvent(t *testing.T, all []event.Envelope, ids []string) {
	t.Helper()
	require.Equal(t, 1, countTypes(all, "")["approvals_purged"], "a purge of nothing is no event")
	for _, e := range all {
		if e.Type == event.TypeApprovalsPurged {
			p := new(event.ApprovalsPurged)
			require.NoError(t, e.Parse(p))
			require.ElementsMatch(t, ids, p.ApprovalIDs)
			require.Equal(t, "janitor", p.By)
		}
	}
}

// A question is a request whose answer a restart must not change.
type question struct {
	name, method, path string
	body               []byte
}

// TestARestartAnswersTheSame: after a clean restart, and after one that lost
// the store and made it again from the log, every read and every refusal is the
// same as before; what was approved runs, once.
func TestARestartAnswersTheSame(t *testing.T) {
	t.Parallel()
	d := newNotes(t)
	g := startGate(t, d, shortTTL...)
	ids := map[string]string{
		"purged": g.expired(t, insertOpen("purged")),
	}
	require.JSONEq(t, `{"purged":1}`, string(g.post(t, "/approvals/purge", "").body))
	ids["expired"] = g.expired(t, insertOpen("expired"))
	for _, name := range []string{"pending", "approved", "approved later", "rejected", "used"} {
		ids[name] = g.hold(t, insertHeld(name))
	}
	for name, decision := range map[string]string{"approved": "approve", "approved later": "approve", "rejected": "reject", "used": "approve"} {
		require.Equal(t, http.StatusOK, g.resolve(t, ids[name], decision).status)
	}
	used := encode(t, insertHeld("used").with("approval_id", ids["used"]))
	first := g.do(t, http.MethodPost, "/query?idempotency_key=used", used, operatorHeader)
	require.Equal(t, http.StatusOK, first.status, "%s", first.body)
	require.Eventually(t, func() bool {
		return slices.Contains(g.auditOf(t, ids["expired"]), "approval_expired")
	}, startPatience, pollEvery)

	questions := []question{
		{"the list", http.MethodGet, "/approvals", nil},
		{"the list upwards", http.MethodGet, "/approvals?order=asc&limit=3", nil},
		{"the executions", http.MethodGet, "/executions", nil},
		{"a replay", http.MethodPost, "/query?idempotency_key=used", used},
	}
	for name, id := range ids {
		statement := insertHeld(name)
		if name == "expired" || name == "purged" {
			statement = insertOpen(name)
		}
		questions = append(questions, question{name + ": record", http.MethodGet, "/approvals/" + id, nil},
			question{name + ": mismatch", http.MethodPost, "/query", encode(t, statement.with("actor", "bo").with("approval_id", id))})
		if !strings.HasPrefix(name, "approved") {
			questions = append(questions, question{name + ": retry", http.MethodPost, "/query", encode(t, statement.with("approval_id", id))})
		}
		if name != "pending" {
			questions = append(questions, question{name + ": resolve", http.MethodPost, "/approvals/" + id + "/resolve", []byte(`{"decision":"reject"}`)})
		}
	}
	before := g.askAll(t, questions)
	require.Contains(t, before["used: retry"], "approval_already_used")
	require.Contains(t, before["rejected: retry"], "approval_rejected")
	require.Contains(t, before["expired: retry"], "approval_expired")
	require.Contains(t, before["purged: retry"], "approval_not_found")
	require.Contains(t, before["pending: retry"], ids["pending"])
	require.Contains(t, before["approved: mismatch"], "approval_mismatch")
	require.Contains(t, before["a replay"], `"replayed":true`)
	g.end(t)

	g = startGate(t, d, shortTTL...)
	require.Equal(t, before, g.askAll(t, questions))
	retry := insertHeld("approved").with("approval_id", ids["approved"])
	require.Equal(t, http.StatusOK, g.query(t, retry).status)
	requireFault(t, g.query(t, retry), http.StatusConflict, "approval_already_used")
	after := g.askAll(t, questions)
	g.end(t)

	require.NoError(t, os.RemoveAll(d.file("approvals.db")))
	g = startGate(t, d, shortTTL...)
	require.Equal(t, after, g.askAll(t, questions), "made again from the log")
	requireFault(t, g.query(t, retry), http.StatusConflict, "approval_already_used")
	later := insertHeld("approved later").with("approval_id", ids["approved later"])
	require.Equal(t, http.StatusOK, g.query(t, later).status)
	require.Equal(t, "3", g.value(t, "SELECT count(*) FROM held_notes"))
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM open_notes"))
}

// askAll gives every answer as text, without the ids that each answer makes anew.
func (g *testGate) askAll(t testing.TB, questions []question) map[string]string {
	t.Helper()
	answers := map[string]string{}
	for _, q := range questions {
		r := g.do(t, q.method, q.path, q.body, operatorHeader, "X-Request-Id: the-same")
		fields := r.json(t)
		delete(fields, "error_id")
		answers[q.name] = strconv.Itoa(r.status) + " " + string(encode(t, fields))
	}
	return answers
}

// Whoever waits for a person is told when it is decided, when it ends by itself, and when
// the gate ends; and takes nothing from others meanwhile.
func TestAnApprovalIsWaitedFor(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t), shortTTL...)
	for _, wrong := range []string{"61", "-1", "x", "1.5", "1&wait=2"} {
		details := requireFault(t, g.get(t, "/approvals/apr_x?wait="+wrong), http.StatusBadRequest, "validation_failed")
		require.Contains(t, details["fields"], "wait", wrong)
	}
	requireFault(t, g.get(t, "/approvals/apr_x?wait=60"), http.StatusNotFound, "approval_not_found")
	require.Equal(t, "expired", g.get(t, "/approvals/"+g.hold(t, insertOpen("late"))+"?wait=60").json(t)["status"])

	id := g.hold(t, ask("INSERT INTO held_notes VALUES ('waited for')")) // for ten minutes
	require.Equal(t, "pending", g.get(t, "/approvals/"+id+"?wait=1").json(t)["status"])
	before := g.get(t, "/audit?limit=1&order=desc").json(t)["items"].([]any)[0].(map[string]any)["seq"].(float64)
	const each = 64 // of one client
	wait := func(id string) <-chan reply {
		answers := make(chan reply, each)
		for range each {
			go func() {
				r, _ := g.try(http.MethodGet, "/approvals/"+id+"?wait=60", nil) // none is answered where this fails
				answers <- r
			}()
		}
		full := func() bool { return g.get(t, "/approvals/"+id+"?wait=0").status == http.StatusTooManyRequests }
		require.Eventually(t, full, startPatience, pollEvery)
		return answers
	}
	answers := wait(id)
	require.Equal(t, http.StatusOK, g.get(t, "/approvals/"+id).status, "one that does not wait needs no room")
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	for range each {
		r := <-answers
		require.Equal(t, http.StatusOK, r.status, "%s", r.body)
		require.Equal(t, []any{"resolved", "approve"}, pick(r.json(t), "status", "resolution"))
	}
	after := g.get(t, "/audit?limit=1&order=desc").json(t)["items"].([]any)[0].(map[string]any)["seq"].(float64)
	require.Equal(t, before+1, after, "that it was approved, and nothing of the waiting")
	require.Equal(t, "resolved", g.get(t, "/approvals/"+id+"?wait=60").json(t)["status"], "there is nothing to wait for")

	last := g.hold(t, ask("INSERT INTO held_notes VALUES ('at the end')"))
	answers = wait(last)
	g.end(t)
	for range each {
		require.Equal(t, "pending", (<-answers).json(t)["status"], "the end of a gate waits for none")
	}
}
