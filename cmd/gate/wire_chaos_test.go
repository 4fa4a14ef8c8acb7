package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// Clients of the wire write in and out of blocks, with errors, savepoints,
// cancels and clients that hang up, while backends of the database are killed.
// Afterwards the evidence and the table have to tell the same, row by row.
func TestEvidenceAndTableAgreeAfterAStormOnTheWire(t *testing.T) {
	t.Parallel()
	g := startWire(t, "GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1000000", "GATE_RATE_LIMIT_BURST=100000")
	storm := &storm{g: g, t: t, sent: map[[32]byte]int{}}
	var clients sync.WaitGroup
	for i := range 6 {
		clients.Go(func() { (&stormClient{storm: storm, dice: rand.New(rand.NewPCG(1, uint64(i)))}).run(stormLength) })
	}
	storm.killBackends(&clients)
	clients.Wait()
	g.end(t)
	storm.compare()
}

// stormLength is how many statements each client sends.
const stormLength = 60

// A storm is what all clients did.
type storm struct {
	g    *testGate
	t    *testing.T
	next atomic.Int64

	mu    sync.Mutex
	sent  map[[32]byte]int // row by the digest of the INSERT that makes it
	acked []int            // rows whose commit was acknowledged to a client
}

// killBackends kills a writer's backend again and again until the clients are done.
func (s *storm) killBackends(clients *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { clients.Wait(); close(done) }()
	for every := time.NewTicker(150 * time.Millisecond); ; {
		select {
		case <-done:
			every.Stop()
			return
		case <-every.C:
			s.g.execute(s.t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'gate/writer' ORDER BY random() LIMIT 1")
		}
	}
}

// insert is the statement of a new row.
func (s *storm) insert() (text string, row int) {
	row = 1000 + int(s.next.Add(1))
	text = fmt.Sprintf("INSERT INTO orders (id, customer_id, status) VALUES (%d, 1, 'new')", row)
	s.mu.Lock()
	s.sent[sha256.Sum256([]byte(text))] = row
	s.mu.Unlock()
	return text, row
}

// A stormClient is one client. What it believes to be committed is acked.
type stormClient struct {
	*storm
	dice *rand.Rand
	conn *pgconn.PgConn

	block      bool  // a transaction block is open
	pending    []int // rows of it
	savepoints []int // how many rows were pending at each
}

func (c *stormClient) run(statements int) {
	defer func() { _ = c.conn.Close(context.Background()) }() // it may have been cut
	for range statements {
		if c.conn == nil || c.conn.IsClosed() {
			c.connect()
		}
		c.step()
	}
}

func (c *stormClient) connect() {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	conn, err := pgconn.Connect(ctx, c.g.wireURL(c.t))
	require.NoError(c.t, err)
	c.conn, c.block, c.pending, c.savepoints = conn, false, nil, nil
}

// step does one thing at random.
func (c *stormClient) step() {
	switch n := c.dice.IntN(20); {
	case n < 7:
		c.write()
	case n < 9:
		c.do("SELECT count(*) FROM orders")
	case n < 12 && !c.block:
		c.block = c.do("BEGIN")
	case n < 14 && c.block:
		c.commit()
	case n < 15 && c.block:
		c.do("ROLLBACK")
		c.block, c.pending, c.savepoints = false, nil, nil
	case n < 16 && c.block:
		if c.do("SAVEPOINT s" + strconv.Itoa(len(c.savepoints))) {
			c.savepoints = append(c.savepoints, len(c.pending))
		}
	case n < 18 && len(c.savepoints) > 0:
		last := len(c.savepoints) - 1
		if c.do("ROLLBACK TO s" + strconv.Itoa(last)) {
			c.pending = c.pending[:c.savepoints[last]]
		}
	case n == 18:
		c.do("INSERT INTO orders (id, customer_id, status) VALUES (1, 1, 'taken')")
	case n == 19 && c.dice.IntN(3) == 0:
		_ = c.conn.Conn().Close() // without a word
	case n == 19:
		c.cancelled()
	}
}

// do sends a statement in one of both protocols and reports whether it was done.
func (c *stormClient) do(text string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	if c.dice.IntN(2) == 0 {
		return c.conn.ExecParams(ctx, text, nil, nil, nil, nil).Read().Err == nil
	}
	_, err := c.conn.Exec(ctx, text).ReadAll()
	return err == nil
}

func (c *stormClient) write() {
	text, row := c.insert()
	switch done := c.do(text); {
	case done && c.block:
		c.pending = append(c.pending, row)
	case done:
		c.acknowledge(row)
	}
}

// commit ends the block. One that failed answers with the tag ROLLBACK.
func (c *stormClient) commit() {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	if r := c.conn.ExecParams(ctx, "COMMIT", nil, nil, nil, nil).Read(); r.Err == nil && r.CommandTag.String() == "COMMIT" {
		c.acknowledge(c.pending...)
	}
	c.block, c.pending, c.savepoints = false, nil, nil
}

// cancelled asks to cancel a read that takes long.
func (c *stormClient) cancelled() {
	var asked sync.WaitGroup
	asked.Go(func() { _ = c.conn.CancelRequest(context.Background()) }) // early or late, it must do no harm
	c.do("SELECT count(*) FROM generate_series(1, 2000000) AS n")
	asked.Wait()
}

func (c *stormClient) acknowledge(rows ...int) {
	c.mu.Lock()
	c.acked = append(c.acked, rows...)
	c.mu.Unlock()
}

// compare holds the evidence against the table.
func (s *storm) compare() {
	inTable := map[int]bool{}
	for _, row := range s.g.integers(s.t, "SELECT id FROM orders WHERE id > 1000") {
		inTable[row] = true
	}
	for _, row := range s.acked {
		require.True(s.t, inTable[row], "row %d was acknowledged", row)
	}
	outcomes := s.outcomes()
	for row := range inTable {
		require.Contains(s.t, outcomes, row, "row %d was written without evidence", row)
	}
	told := map[string]int{}
	for row, outcome := range outcomes {
		told[outcome]++
		switch outcome {
		case event.OutcomeCommitted:
			require.True(s.t, inTable[row], "row %d", row)
		case event.OutcomeAborted:
			require.False(s.t, inTable[row], "row %d", row)
		}
	}
	s.t.Logf("outcomes: %v, acknowledged: %d", told, len(s.acked))
	require.Positive(s.t, told[event.OutcomeCommitted])
	require.Positive(s.t, told[event.OutcomeAborted])
	require.Zero(s.t, told[""], "every write has a result: %v", told)
}

// outcomes tell of each row what the log says last of the write that makes it.
func (s *storm) outcomes() map[int]string {
	rows, outcomes := map[string]int{}, map[int]string{}
	for _, e := range s.g.events(s.t) {
		if e.Type == event.TypeExecutionDispatched {
			var d event.ExecutionDispatched
			require.NoError(s.t, e.Parse(&d))
			if row, ok := s.sent[d.SQLSHA256]; ok {
				require.NotContains(s.t, outcomes, row, "no statement is sent twice")
				rows[e.Context.ExecutionID], outcomes[row] = row, ""
			}
			continue
		}
		row, ok := rows[e.Context.ExecutionID]
		if !ok {
			continue
		}
		switch e.Type {
		case event.TypeExecutionSuccess:
			outcomes[row] = event.OutcomeCommitted
		case event.TypeExecutionFailure:
			outcomes[row] = event.OutcomeAborted
		case event.TypeExecutionStateUnknown:
			outcomes[row] = "unknown"
		case event.TypeExecutionOutcomeResolved:
			var r event.ExecutionOutcomeResolved
			require.NoError(s.t, e.Parse(&r))
			outcomes[row] = r.Outcome
		}
	}
	return outcomes
}

// integers are those that a query of the database gives.
func (d gateDir) integers(t testing.TB, sql string) (all []int) {
	t.Helper()
	conn, err := pgconn.Connect(context.Background(), d.database)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	results, err := conn.Exec(context.Background(), sql).ReadAll()
	require.NoError(t, err)
	for _, row := range results[0].Rows {
		n, err := strconv.Atoi(string(row[0]))
		require.NoError(t, err)
		all = append(all, n)
	}
	return all
}
