package main

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// awaited is the approval that a statement of the wire waits for.
func (g *testGate) awaited(t testing.TB) (id string) {
	t.Helper()
	require.Eventually(t, func() bool {
		list := g.approvals(t, "status=pending").Items
		if len(list) == 1 {
			id = list[0]["approval_id"].(string)
		}
		return id != ""
	}, startPatience, pollEvery)
	return id
}

// A client that asked to wait needs nothing else: its statement runs when a person approves
// it. The time of the person is not the client's, whose transactions last a second here.
func TestAClientOfTheWireWaitsForAPerson(t *testing.T) {
	t.Parallel()
	g := startWire(t, "GATE_PGWIRE_TX_MAX_MS=1000", "GATE_PGWIRE_TX_IDLE_TIMEOUT_MS=1000", "GATE_DB_QUERY_TIMEOUT_MS=1000")
	const deleting = "DELETE FROM orders WHERE id = 2"
	psql := exec.Command("psql", "-X", "-A", "-t", "-d", "postgres://ana@"+g.wire+"/"+g.databaseName(t)+"?sslmode=disable", "-c", deleting)
	psql.Env = append(os.Environ(), "PGOPTIONS=-c gate.approval_wait_ms=60000")
	out := make(chan string, 1)
	go func() {
		said, err := psql.CombinedOutput()
		if err != nil {
			said = append(said, err.Error()...)
		}
		out <- string(said)
	}()
	id := g.awaited(t)
	time.Sleep(2 * time.Second) // more than anything else may last
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	require.Equal(t, "DELETE 1\n", <-out)

	ctx := context.Background()
	c, err := pgx.Connect(ctx, g.wireURL(t, "gate.approval_wait_ms=60000"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(ctx) })
	ended := make(chan error, 1)
	go func() { // the extended protocol, in a block that has not been begun at the database
		tx, err := c.Begin(ctx)
		if err == nil {
			if _, err = tx.Exec(ctx, "DELETE FROM orders WHERE id = $1", 3); err == nil {
				err = tx.Commit(ctx)
			}
		}
		ended <- err
	}()
	id = g.awaited(t)
	time.Sleep(2 * time.Second)
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	require.NoError(t, <-ended)
	require.Equal(t, "0", g.value(t, "SELECT count(*) FROM orders WHERE id IN (2, 3)"))

	// A client that goes away ends its wait, and so does the end of the gate.
	raw := g.rawWire(t, "gate.approval_wait_ms=60000")
	raw.send(&pgproto3.Query{String: deleting})
	gone := g.awaited(t)
	head := g.head(t)
	require.NoError(t, raw.Close())
	require.Eventually(t, func() bool {
		wire := g.get(t, "/runtime/stats").json(t)["wire"].(map[string]any)
		return wire["connections"].(float64) == 1
	}, startPatience, pollEvery, "nobody holds its seat")
	require.Equal(t, head, g.head(t), "its end leaves nothing in the log")
	require.Equal(t, http.StatusOK, g.resolve(t, gone, "reject").status)

	last := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, deleting)
		last <- err
	}()
	g.awaited(t)
	g.end(t)
	requireState(t, <-last, "ERROR GT001")
	for _, e := range g.events(t) {
		require.NotEqual(t, event.TypeExecutionFailure, e.Type)
	}
}

// Those who wait over HTTP and over the wire take the same room.
func TestThereIsOneRoomForThoseWhoWait(t *testing.T) {
	t.Parallel()
	g := startWire(t)
	c := g.connect(t)
	held := requireState(t, says(c, "DELETE FROM orders WHERE id = 2"), "ERROR GT001")
	require.NotContains(t, held.Hint, "waited")
	id := g.awaited(t)
	const each = 64 // of one client
	answers := make(chan reply, each)
	for range each {
		go func() {
			r, _ := g.try(http.MethodGet, "/approvals/"+id+"?wait=60", nil) // none is answered where this fails
			answers <- r
		}()
	}
	require.Eventually(t, func() bool { return g.get(t, "/approvals/"+id+"?wait=0").status == http.StatusTooManyRequests }, startPatience, pollEvery)
	require.NoError(t, says(c, "SET gate.approval_wait_ms = 60000"))
	held = requireState(t, says(c, "DELETE FROM orders WHERE id = 3"), "ERROR GT001")
	require.Contains(t, held.Hint, "It was not waited for: this client")
	require.Contains(t, held.Hint, "SET gate.approval_id")
	require.Equal(t, http.StatusOK, g.resolve(t, id, "approve").status)
	for range each {
		require.Equal(t, "resolved", (<-answers).json(t)["status"])
	}
}
