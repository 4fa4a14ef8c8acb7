package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// notesPolicy has one table for each decision, so that a test says by the name
// of the table what it wants decided.
const notesPolicy = `
schema: gate.policy/v1
name: notes
version: 1.0.0
facts: facts/v1
rules:
  - id: closed-notes
    decision: BLOCK
    reason_code: notes_are_closed
    match: { tables_written: [public.closed_notes] }
  - id: held-notes
    decision: REQUIRE_APPROVAL
    reason_code: notes_are_held
    match: { tables_written: [public.held_notes] }
    approval: { ttl_seconds: 600, max_rows: 5 }
  - id: open-notes
    decision: ALLOW
    reason_code: notes_are_open
    match: { class: [write], query_types_only: [SELECT, INSERT, UPDATE, DELETE], tables_written_only: [public.open_notes, public.held_notes] }
`

// notesTables have no key: a statement that ran twice shows as two rows.
const notesTables = `
CREATE TABLE open_notes (note text NOT NULL);
CREATE TABLE held_notes (note text NOT NULL);
CREATE TABLE closed_notes (note text NOT NULL)`

// newNotes is the folder of a gate with that policy, in front of those tables.
func newNotes(t testing.TB) gateDir {
	t.Helper()
	d := newGateDir(t, []byte(notesPolicy))
	d.execute(t, notesTables)
	return d
}

const crowd = 64 // clients that do one thing at one moment

// rounds is how often a test of a race tries its luck; CONCURRENCY_TEST_ROUNDS
// asks for more than the ordinary run does.
func rounds(t testing.TB) int {
	t.Helper()
	text := os.Getenv("CONCURRENCY_TEST_ROUNDS")
	if text == "" {
		return 3
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "CONCURRENCY_TEST_ROUNDS")
	return n
}

// atOnce lets a crowd send at one moment and gives the answers in order.
func atOnce(t testing.TB, send func(i int) (reply, error)) []reply {
	t.Helper()
	replies, errs, begin := make([]reply, crowd), make([]error, crowd), make(chan struct{})
	var clients sync.WaitGroup
	for i := range crowd {
		clients.Go(func() {
			<-begin
			replies[i], errs[i] = send(i)
		})
	}
	close(begin)
	clients.Wait()
	http.DefaultClient.CloseIdleConnections() // those dialled for nothing would hold up the end of the gate for 5 s
	for _, err := range errs {
		require.NoError(t, err)
	}
	return replies
}

// tryQuery is query for a goroutine that is not the test's own.
func (g *testGate) tryQuery(s statement, params ...string) (reply, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return reply{}, err
	}
	values := url.Values{}
	for _, p := range params {
		name, value, _ := strings.Cut(p, "=")
		values.Add(name, value)
	}
	return g.try(http.MethodPost, "/query?"+values.Encode(), body)
}

func (g *testGate) tryResolve(id, decision string) (reply, error) {
	return g.try(http.MethodPost, "/approvals/"+id+"/resolve", fmt.Appendf(nil, `{"decision":%q}`, decision), "X-GATE-Operator-Token: "+operatorTestToken)
}

// hold asks for an approval and gives its id.
func (g *testGate) hold(t testing.TB, s statement) string {
	t.Helper()
	held := g.query(t, s)
	require.Equal(t, http.StatusAccepted, held.status, "%s", held.body)
	return held.text(t, "approval_id")
}

// approved asks for an approval and has it approved.
func (g *testGate) approved(t testing.TB, s statement) string {
	t.Helper()
	id := g.hold(t, s)
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	return id
}

// outcomes counts answers by status and error code: "200", "409 approval_already_used".
func outcomes(t testing.TB, replies []reply) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, r := range replies {
		count[strings.TrimSpace(strconv.Itoa(r.status)+" "+r.text(t, "error_code"))]++
	}
	return count
}

// countTypes counts the events of a log by type, those of one approval alone
// where an id is given.
func countTypes(all []event.Envelope, approvalID string) map[event.Type]int {
	count := map[event.Type]int{}
	for _, e := range all {
		if approvalID == "" || e.Context.ApprovalID == approvalID {
			count[e.Type]++
		}
	}
	return count
}

func insertHeld(note string) statement {
	return ask(fmt.Sprintf("INSERT INTO held_notes VALUES ('%s')", note))
}

func insertOpen(note string) statement {
	return ask(fmt.Sprintf("INSERT INTO open_notes VALUES ('%s')", note))
}

// rowsOf counts the rows with a note in a table, at the database itself.
func (d gateDir) rowsOf(t testing.TB, table, note string) string {
	t.Helper()
	return d.value(t, fmt.Sprintf("SELECT count(*) FROM %s WHERE note = '%s'", table, note))
}

func TestACrowdRetriesOneApproval(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	var ids []string
	for round := range rounds(t) {
		note := fmt.Sprint("round ", round)
		id := g.approved(t, insertHeld(note))
		ids = append(ids, id)
		retry := insertHeld(note).with("approval_id", id)
		replies := atOnce(t, func(int) (reply, error) { return g.tryQuery(retry) })
		require.Equal(t, map[string]int{"200": 1, "409 approval_already_used": crowd - 1}, outcomes(t, replies))
		require.Equal(t, "1", g.rowsOf(t, "held_notes", note))
	}
	g.end(t)
	all := g.events(t)
	for _, id := range ids {
		require.Equal(t, map[event.Type]int{
			"request_received": 1, "decision_recorded": 2, "approval_created": 1, "approval_resolved": 1,
			"approval_used": 1, "execution_dispatched": 1, "execution_success": 1, "query_rejected": crowd - 1,
		}, countTypes(all, id), "each loser left evidence too")
	}
}

func TestACrowdRetriesOneApprovalUnderKeysOfItsOwn(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	id := g.approved(t, insertHeld("own keys"))
	retry := insertHeld("own keys").with("approval_id", id)
	key := func(i int) string { return fmt.Sprint("idempotency_key=k", i) }
	replies := atOnce(t, func(i int) (reply, error) { return g.tryQuery(retry, key(i)) })
	require.Equal(t, map[string]int{"200": 1, "409 approval_already_used": crowd - 1}, outcomes(t, replies))
	require.Equal(t, "1", g.rowsOf(t, "held_notes", "own keys"))
	for i, first := range replies {
		again := g.query(t, retry, key(i))
		if first.status == http.StatusOK {
			require.Equal(t, true, again.json(t)["replayed"], "the winner's key has its answer")
			continue
		}
		require.Equal(t, "approval_already_used", again.text(t, "error_code"), "a refusal leaves the key free")
	}
}

func TestACrowdUnderOneIdempotencyKey(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	for round := range rounds(t) {
		note := fmt.Sprint("round ", round)
		key := "idempotency_key=" + strings.ReplaceAll(note, " ", "-")
		replies := atOnce(t, func(int) (reply, error) { return g.tryQuery(insertOpen(note), key) })
		requireOneExecution(t, replies)
		require.Equal(t, "1", g.rowsOf(t, "open_notes", note))
		later := g.query(t, insertOpen(note), key)
		require.Equal(t, true, later.json(t)["replayed"])
		require.Equal(t, executionOfWinner(t, replies), later.text(t, "execution_id"))
	}
	g.end(t)
	require.Equal(t, rounds(t), countTypes(g.events(t), "")["execution_dispatched"])
}

// requireOneExecution holds that one request ran, and every other one got its
// answer again or was told that it is still running.
func requireOneExecution(t testing.TB, replies []reply) {
	t.Helper()
	winner := executionOfWinner(t, replies)
	require.NotEmpty(t, winner)
	for _, r := range replies {
		switch {
		case r.status == http.StatusOK:
			require.Equal(t, winner, r.text(t, "execution_id"))
		default:
			require.Equal(t, http.StatusConflict, r.status, "%s", r.body)
			require.Equal(t, "idempotency_in_progress", r.text(t, "error_code"))
		}
	}
}

// executionOfWinner is the execution of the one answer that is not a replay.
func executionOfWinner(t testing.TB, replies []reply) string {
	t.Helper()
	winner := ""
	for _, r := range replies {
		if r.status == http.StatusOK && r.json(t)["replayed"] == nil {
			require.Empty(t, winner, "two requests ran")
			winner = r.text(t, "execution_id")
		}
	}
	return winner
}

func TestACrowdUnderOneKeyAndOneApproval(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	id := g.approved(t, insertHeld("both"))
	retry := insertHeld("both").with("approval_id", id)
	replies := atOnce(t, func(int) (reply, error) { return g.tryQuery(retry, "idempotency_key=both") })
	requireOneExecution(t, replies)
	require.Equal(t, "1", g.rowsOf(t, "held_notes", "both"))
	without := g.query(t, insertHeld("both"), "idempotency_key=both")
	require.Equal(t, true, without.json(t)["replayed"], "approval_id is not compared: %s", without.body)
}

func TestACrowdOfTwoRequestsUnderOneKey(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	for round := range rounds(t) {
		note := func(i int) string { return fmt.Sprintf("%c%d", 'a'+i%2, round) }
		key := fmt.Sprint("idempotency_key=k", round)
		replies := atOnce(t, func(i int) (reply, error) { return g.tryQuery(insertOpen(note(i)), key) })
		var same, other []reply
		winner := g.value(t, fmt.Sprintf("SELECT string_agg(note, ',') FROM open_notes WHERE note IN ('a%d', 'b%[1]d')", round))
		require.Contains(t, []string{note(0), note(1)}, winner, "exactly one of the two ran, once")
		for i, r := range replies {
			if note(i) == winner {
				same = append(same, r)
			} else {
				other = append(other, r)
			}
		}
		requireOneExecution(t, same)
		require.Equal(t, map[string]int{"409 idempotency_conflict": crowd / 2}, outcomes(t, other))
	}
}

func TestACrowdResolvesOneApproval(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	var ids []string
	for round := range rounds(t) {
		note := fmt.Sprint("round ", round)
		id := g.hold(t, insertHeld(note))
		ids = append(ids, id)
		replies := atOnce(t, func(i int) (reply, error) { return g.tryResolve(id, []string{"approve", "reject"}[i%2]) })
		require.Equal(t, map[string]int{"200": 1, "409 approval_already_resolved": crowd - 1}, outcomes(t, replies))
		resolution := g.get(t, "/approvals/"+id).text(t, "resolution")
		for _, r := range replies {
			if r.status == http.StatusOK {
				require.Equal(t, resolution, r.text(t, "resolution"))
				continue
			}
			details := r.json(t)["details"].(map[string]any)
			require.Equal(t, resolution, details["resolution"], "a loser is told the standing resolution")
		}
		retried := g.query(t, insertHeld(note).with("approval_id", id))
		if resolution == "approve" {
			require.Equal(t, http.StatusOK, retried.status, "%s", retried.body)
			continue
		}
		require.Equal(t, "approval_rejected", retried.text(t, "error_code"))
		require.Equal(t, "0", g.rowsOf(t, "held_notes", note))
	}
	g.end(t)
	all := g.events(t)
	for _, id := range ids {
		require.Equal(t, 1, countTypes(all, id)["approval_resolved"])
	}
}

func TestACrowdResolvesRetriesAndPurgesAtOnce(t *testing.T) {
	t.Parallel()
	g := startGate(t, newNotes(t))
	for round := range rounds(t) {
		note := fmt.Sprint("round ", round)
		id := g.hold(t, insertHeld(note))
		retry := insertHeld(note).with("approval_id", id)
		replies := atOnce(t, func(i int) (reply, error) {
			switch i % 8 {
			case 0:
				return g.tryResolve(id, "approve")
			case 1:
				return g.tryResolve(id, "reject")
			case 2:
				return g.try(http.MethodPost, "/approvals/purge", nil, "X-GATE-Operator-Token: "+operatorTestToken)
			default:
				return g.tryQuery(retry)
			}
		})
		ran := 0
		for i, r := range replies {
			switch {
			case i%8 < 2:
				require.Contains(t, []string{"200", "409 approval_already_resolved"}, onlyKey(outcomes(t, []reply{r})))
			case i%8 == 2:
				require.JSONEq(t, `{"purged":0}`, string(r.body), "nothing is expired")
			case r.status == http.StatusOK:
				ran++
			default:
				require.Contains(t, []string{"202", "409 approval_already_used", "409 approval_rejected"}, onlyKey(outcomes(t, []reply{r})))
			}
		}
		require.LessOrEqual(t, ran, 1)
		require.Equal(t, strconv.Itoa(ran), g.rowsOf(t, "held_notes", note))
		if ran == 1 {
			require.Equal(t, "approve", g.get(t, "/approvals/"+id).text(t, "resolution"))
		}
	}
}

func onlyKey(count map[string]int) string {
	for k := range count {
		return k
	}
	return ""
}
