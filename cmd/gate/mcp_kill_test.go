package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"writegate/agentctl"
)

const ledgersPolicy = `
schema: gate.policy/v1
name: ledgers
version: 1.0.0
facts: facts/v1
rules:
  - id: held
    decision: REQUIRE_APPROVAL
    reason_code: held_for_a_person
    match: { query_types_only: [INSERT], tables_written_only: [public.held] }
  - id: free
    decision: ALLOW
    reason_code: free_to_write
    match: { query_types_only: [INSERT], tables_written_only: [public.free] }
`

// callDeaths are where a gate dies under the call of a tool, and what becomes of the statement
// as far as a check can tell: "" was never sent, "success" stands in the log already. At
// "running" it is killed from outside, while the statement waits for a lock.
var callDeaths = []struct {
	at   death
	then string
}{
	{"decision.before_append@1", ""},
	{"decision.appended@1", "aborted"},
	{"running", "aborted"},
	{"write.executed@1", "aborted"},
	{"write.committed@1", "committed"},
	{"result.before_append@1", "committed"},
	{"result.appended@1", "success"},
}

// A gate that is killed while an agent waits for its answer leaves the agent with a way to
// learn it: the same call under the same key, to the gate that comes after. `make crash` has
// it die everywhere under both kinds of writes, and otherwise one kind comes at each place.
func TestAGateKilledUnderToolCallsSettlesThem(t *testing.T) {
	t.Parallel()
	for n, d := range []door{doors[0], doors[2]} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			k := startKilledCalls(t, d)
			for i, c := range callDeaths {
				for held, table := range []string{"free", "held"} {
					if os.Getenv("CRASH_ROUNDS") != "" || (i+n+held)%2 == 0 {
						t.Run(fmt.Sprintf("%s, %s", c.at, table), func(t *testing.T) { k.die(t, c.at, c.then, table) })
					}
				}
			}
			t.Run("an approval is waited for", k.dieWaiting)
			k.victim.end(t)
			k.checkDisk(t)
		})
	}
}

// killedCalls is an agent's client that outlives the gates it speaks to.
type killedCalls struct {
	*agentWorld
	victim  *victim
	spawn   func(at death) // the next gate, at the same address
	told    chan any
	bridged bool // by gate mcp
	s       *mcp.ClientSession
	cases   int
}

func startKilledCalls(t *testing.T, d door) *killedCalls {
	k := &killedCalls{agentWorld: &agentWorld{key: agentctl.NewSecret(agentctl.KeyPrefix)}, told: make(chan any, 1000), bridged: d.name == "stdio"}
	dir := newGateDir(t, []byte(ledgersPolicy))
	dir.execute(t, "CREATE TABLE free (v text); CREATE TABLE held (v text)")
	address := "127.0.0.4:0" // where nobody takes its port while it is down
	k.spawn = func(at death) {
		k.victim = dir.spawn(t, fall{at: at}, slices.Concat(toolsOn, []string{"GATE_PROJECT_KEYS=shop/ops=" + k.key, "GATE_HTTP_LISTEN_ADDR=" + address, "GATE_OUTCOME_CHECK_INTERVAL_SECONDS=0"})...)
		require.NotEmpty(t, k.victim.base, "%s", &k.victim.output)
		address = strings.TrimPrefix(k.victim.base, "http://")
		k.testGate = &testGate{gateDir: dir, base: k.victim.base, client: k.victim.client, signs: k.victim.signs}
	}
	k.spawn("")
	_, token := k.register(t, "invoice-bot")
	k.s = d.connect(t, k.agentWorld, token, k.told)
	return k
}

// die has the gate die at a step of a write, and the next one tell what became of it.
func (k *killedCalls) die(t *testing.T, at death, then, table string) {
	k.cases++
	row := fmt.Sprintf("case-%d", k.cases)
	write := map[string]any{"sql": fmt.Sprintf("INSERT INTO %s VALUES ('%s')", table, row), "idempotency_key": row}
	rows := func() string {
		return k.value(t, fmt.Sprintf("SELECT count(*) FROM %s WHERE v = '%s'", table, row))
	}
	if table == "held" {
		asked := use(t, k.s, "sql", write)
		require.Equal(t, "pending_approval", asked.Status, "%s", asked.raw)
		require.Equal(t, http.StatusOK, k.resolve(t, asked.ApprovalID, "approve").status)
		write["approval_id"] = asked.ApprovalID
	}
	k.victim.end(t)
	var release func()
	if at == "running" {
		at, release = "", k.lock(t, table)
	}
	k.spawn(at)
	answered := make(chan error, 1)
	go func() {
		_, err := tryUse(t.Context(), k.s, "sql", write)
		answered <- err
	}()
	if release != nil {
		require.Eventually(t, func() bool {
			return k.value(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == "1"
		}, startPatience, pollEvery)
		k.victim.kill()
	}
	k.gone(t, <-answered)
	if release != nil {
		release()
	}
	k.awaitBackends(t)
	applied := rows()
	require.Equal(t, map[string]string{"": "0", "aborted": "0", "committed": "1", "success": "1"}[then], applied)

	k.spawn("")
	again := use(t, k.s, "sql", write)
	switch then {
	case "":
		require.Equal(t, []any{"completed", false}, []any{again.Status, again.Replayed}, "%s", again.raw)
	case "success":
		require.Equal(t, []any{"completed", true}, []any{again.Status, again.Replayed}, "%s", again.raw)
	default:
		require.Equal(t, []any{"unknown", true}, []any{again.Status, again.Replayed}, "%s", again.raw)
		require.Contains(t, again.text, "Do not send it again; ask execution")
		_, outcome := settleAt(t, k.testGate, again.ExecutionID)
		require.Equal(t, then, outcome)
		known := use(t, k.s, "execution", map[string]any{"execution_id": again.ExecutionID})
		require.Equal(t, map[string]string{"aborted": "failed", "committed": "completed"}[then], known.Status, "%s", known.raw)
		settled := use(t, k.s, "sql", write)
		require.Equal(t, []any{"unknown", true}, []any{settled.Status, settled.Replayed}, "the first answer stays what it was: %s", settled.raw)
		require.Contains(t, settled.text, map[string]string{"aborted": "nothing of it took effect", "committed": "it took effect"}[then])
		require.Equal(t, applied, rows(), "no key runs twice")
		if then == "aborted" {
			write["idempotency_key"] = row + "-anew"
			anew := use(t, k.s, "sql", write)
			require.Equal(t, "completed", anew.Status, "%s", anew.raw)
		}
	}
	require.Equal(t, "1", rows())
}

// gone is a gate that has died under a call: its client is told that nothing is known.
func (k *killedCalls) gone(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err, "it died in between")
	if k.bridged { // else it is said in the words of the client's own library
		require.ErrorContains(t, err, "it is not known what became of the call")
		require.ErrorContains(t, err, "idempotency_key")
	}
	k.victim.await(t)
	require.True(t, k.victim.killed(), "%s", &k.victim.output)
}

// lock keeps others from writing to a table until it is released.
func (k *killedCalls) lock(t *testing.T, table string) (release func()) {
	c, err := pgconn.Connect(t.Context(), k.database)
	require.NoError(t, err)
	require.NoError(t, says(c, "BEGIN; LOCK TABLE "+table+" IN SHARE MODE"))
	return func() { require.NoError(t, c.Close(context.WithoutCancel(t.Context()))) }
}

// dieWaiting has the gate die while the agent waits for a person.
func (k *killedCalls) dieWaiting(t *testing.T) {
	write := calling("INSERT INTO held VALUES ('waited')")
	asked := use(t, k.s, "sql", write)
	require.Equal(t, "pending_approval", asked.Status, "%s", asked.raw)
	answered := make(chan error, 1)
	waiting := map[string]any{"approval_id": asked.ApprovalID, "seconds": 60}
	go func() {
		_, err := k.s.CallTool(t.Context(), &mcp.CallToolParams{Name: "approval_wait", Arguments: waiting, Meta: mcp.Meta{"progressToken": "wait"}})
		answered <- err
	}()
	<-k.told
	k.victim.kill()
	require.Error(t, <-answered)
	k.victim.await(t)
	k.spawn("")
	waiting["seconds"] = 0
	require.Equal(t, "pending_approval", use(t, k.s, "approval_wait", waiting).Status)
	require.Equal(t, http.StatusOK, k.resolve(t, asked.ApprovalID, "approve").status)
	require.Equal(t, "approved", use(t, k.s, "approval_wait", waiting).Status)
	write["approval_id"] = asked.ApprovalID
	require.Equal(t, "completed", use(t, k.s, "sql", write).Status)
	require.Equal(t, "1", k.value(t, "SELECT count(*) FROM held WHERE v = 'waited'"))
}
