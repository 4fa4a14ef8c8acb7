package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/fixtures/postgres"
)

// A limitWorld is a gate before one database, and a twin of that database that does the
// same without a gate and knows what changed. fault is the first disagreement.
type limitWorld struct {
	*testGate
	t            *testing.T
	client       *pgconn.PgConn
	aside        *pgconn.PgConn // the other session at the gate's database
	twin, beside *pgconn.PgConn // both at the twin
	meanwhile    atomic.Pointer[string]
	acted        atomic.Pointer[limitAnswer] // what was done meanwhile

	sequence  int
	block     bool
	temporary bool        // a temporary table was made in the sequence, so approvals from before may be for something else
	writes    []*limitRun // that stand in it
	points    []limitOp   // savepoints; most is how many writes stood before
	runs      []*limitRun // all that the log has, in its order
	told      map[string]int
	fault     string
}

// A limitRun is one execution of a write.
type limitRun struct {
	*limitOp
	sequence int
	rows     int
	outcome  string
}

// A limitAnswer is what became of one statement.
type limitAnswer struct{ code, message, tag, value string }

func startLimitWorld(t *testing.T, told map[string]int) *limitWorld {
	d := newGateDir(t, []byte(limitPolicy))
	w := &limitWorld{t: t, told: told}
	connect := func(url, settings string) *pgconn.PgConn {
		c, err := pgconn.Connect(context.Background(), url)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close(context.Background()) }) // the test is over
		require.Empty(t, limitExec(c, settings).code)
		return c
	}
	role := "limited_" + d.databaseName(t) // a superuser may switch the count off
	admin := connect(d.database, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'limited'; GRANT ALL ON SCHEMA public TO %s", role, role))
	t.Cleanup(func() { limitExec(admin, fmt.Sprintf("DROP OWNED BY %s CASCADE; DROP ROLE %s", role, role)) })
	w.aside = connect(d.database, "SET ROLE "+role+"; SET lock_timeout = '10ms'; "+limitTables) // it gives way to the client
	twin := postgres.ForTest(t)
	w.twin, w.beside = connect(twin, limitWitness+limitTables), connect(twin, "SET lock_timeout = '10s'")
	u, err := url.Parse(d.database)
	require.NoError(t, err)
	u.User = url.UserPassword(role, "limited")
	d.database = u.String()
	w.testGate = startGateWith(t, d, func(a *app) {
		a.step = func(name string) {
			if name == "decision.before_append" && w.meanwhile.Load() != nil {
				a := limitExec(w.aside, *w.meanwhile.Swap(nil))
				w.acted.Store(&a)
			}
		}
	}, append(wireSettings, "GATE_PGWIRE_TX_MAX_MS=600000", "GATE_PGWIRE_TX_IDLE_TIMEOUT_MS=600000", "GATE_AUDIT_FSYNC=off")...)
	w.client = w.connect(t)
	return w
}

// limitExec sends one text by itself.
func limitExec(c *pgconn.PgConn, sql string) (a limitAnswer) {
	results, err := c.Exec(context.Background(), sql).ReadAll()
	if a = limitRefusal(err); a.code == "" && len(results) == 1 {
		if a.tag = results[0].CommandTag.String(); len(results[0].Rows) > 0 {
			a.value = string(results[0].Rows[0][0])
		}
	}
	return a
}

func limitRefusal(err error) (a limitAnswer) {
	if refused := new(pgconn.PgError); errors.As(err, &refused) {
		a.code, a.message = refused.Code, refused.Message+" "+refused.Detail
	} else if err != nil {
		a.code = err.Error()
	}
	return a
}

// ask sends statements up to one Sync. Behind the answers of those that ran is that of
// the one that failed, or of the Sync.
func (w *limitWorld) ask(ops ...*limitOp) (answers []limitAnswer) {
	batch := &pgconn.Batch{}
	for _, op := range ops {
		sql, parameters := op.sql, [][]byte(nil)
		if op.approved != "" {
			sql = "/* gate.approval_id=" + op.approved + " */ " + sql
		}
		if op.parameter != "" {
			parameters = [][]byte{[]byte(op.parameter)}
		} else if !op.joined && len(ops) == 1 {
			return []limitAnswer{limitExec(w.client, sql), {}}
		}
		batch.ExecParams(sql, parameters, nil, nil, nil)
	}
	results, err := w.client.ExecBatch(context.Background(), batch).ReadAll()
	results = slices.DeleteFunc(results, func(r *pgconn.Result) bool { return r.Err != nil })
	return append(make([]limitAnswer, len(results), len(ops)+1), limitRefusal(err))
}

func (w *limitWorld) wrong(format string, values ...any) {
	if w.fault == "" {
		w.fault = fmt.Sprintf(format, values...)
	}
}

// alike says that both databases have to answer alike.
func (w *limitWorld) alike(what string, gate, twin limitAnswer) {
	if gate.code != twin.code {
		w.wrong("%s: %+v, and without a gate %+v", what, gate, twin)
	}
}

// other is what another session does. It leaves alone what is locked.
func (w *limitWorld) other(sql string, a limitAnswer) {
	if a.code != "55P03" {
		w.alike(sql+" of another session", a, limitExec(w.beside, sql))
	}
}

// run lets a sequence happen. In the end both databases hold the same.
func (w *limitWorld) run(number int, ops []*limitOp) {
	w.sequence, w.temporary = number, false
	require.Empty(w.t, limitExec(w.aside, "SET lock_timeout = '10s'; "+limitRows+"; SET lock_timeout = '10ms'").code) // what ends may still hold locks
	require.Empty(w.t, limitExec(w.beside, limitRows).code)
	for i, op := range ops {
		if op.approval && slices.Index(ops, op) == i {
			op.used, op.approved = false, ""
			answers := w.ask(op)
			require.Equal(w.t, "GT001", answers[0].code, "%s: %+v", op.sql, answers)
			op.approved = approvalIn(answers[0].message)
			w.resolve(w.t, op.approved, "approve")
		}
	}
	ops = append(ops[:len(ops):len(ops)], &limitOp{kind: 's', sql: "ROLLBACK"})
	for i := 0; i < len(ops) && w.fault == ""; i++ {
		switch op := ops[i]; op.kind {
		case 'a':
			w.other(op.sql, limitExec(w.aside, op.sql))
		case 'l':
			require.NoError(w.t, w.client.Close(context.Background()))
			require.Eventually(w.t, func() bool { return w.value(w.t, openTransactions) == "0" }, startPatience, pollEvery)
			w.ended("ROLLBACK", "rolled_back")
			w.client = w.connect(w.t)
		case 'w':
			from := i
			for ops[i].joined && ops[i+1].kind == 'w' {
				i++
			}
			w.group(ops[from : i+1])
		default:
			w.control(op)
		}
		if got, want := w.client.TxStatus(), w.twin.TxStatus(); got != want {
			w.wrong("behind %s the status is %c, and without a gate %c", ops[i].sql, got, want)
		}
	}
	if got, want := limitExec(w.aside, limitContent).value, limitExec(w.beside, limitContent).value; got != want || want == "" {
		w.wrong("the tables hold\n%s\nand not\n%s", got, want)
	}
}

// look tells how many rows changed so far, and whether others are not countable. In a
// REPEATABLE READ transaction it takes the snapshot, as the gate does; not for a LOCK.
func (w *limitWorld) look(sql string) (rows int, uncounted bool) {
	if w.twin.TxStatus() != 'E' && !strings.HasPrefix(sql, "LOCK") {
		_, err := fmt.Sscan(limitExec(w.twin, limitLook).value, &rows, &uncounted)
		require.NoError(w.t, err)
	}
	return rows, uncounted
}

// ended ends the transaction, and tells what became of the writes that stood.
func (w *limitWorld) ended(how, outcome string) {
	for _, r := range w.writes {
		if r.outcome = outcome; outcome == "success" && r.most > 0 {
			r.outcome += " " + strconv.Itoa(r.rows)
		}
	}
	w.alike(how, limitAnswer{}, limitExec(w.twin, how))
	limitExec(w.twin, "DISCARD TEMP") // as the gate does
	w.block, w.writes, w.points = false, nil, nil
}

// control is what travels with the connection.
func (w *limitWorld) control(op *limitOp) {
	a := w.ask(op)[0]
	word, name, at := strings.Fields(op.sql)[0], op.sql[strings.LastIndexByte(op.sql, ' ')+1:], len(w.points)-1
	for at >= 0 && w.points[at].sql != name {
		at--
	}
	switch {
	case op.sql == "COMMIT" && w.twin.TxStatus() == 'T':
		w.commit(a)
		return
	case op.sql == "COMMIT" || op.sql == "ROLLBACK":
		w.ended("ROLLBACK", "rolled_back")
		return
	case a.code == "0A000":
		limitExec(w.twin, "SELECT 1/0")
		return
	}
	if w.alike(op.sql, a, limitExec(w.twin, op.sql)); a.code != "" {
		return
	}
	switch word {
	case "BEGIN":
		w.block = true
	case "SAVEPOINT":
		w.points = append(w.points, limitOp{sql: name, most: len(w.writes)})
	case "RELEASE":
		w.points = w.points[:at]
	case "ROLLBACK":
		stand := w.points[at].most
		for _, r := range w.writes[stand:] {
			r.outcome = "rolled_back_to_savepoint"
		}
		w.writes, w.points = w.writes[:stand], w.points[:at+1]
	}
}

// group sends writes up to one Sync. Outside of a block they are one transaction; what is
// alone there has its deferred triggers with it.
func (w *limitWorld) group(ops []*limitOp) {
	alone := !w.block && len(ops) == 1
	if ops[0].meanwhile != "" {
		w.meanwhile.Store(&ops[0].meanwhile)
	}
	answers := w.ask(ops...)
	if w.meanwhile.Store(nil); !w.block {
		limitExec(w.twin, "BEGIN")
	}
	for i, op := range ops {
		a := answers[i]
		if alone && a.code == "" { // what a Sync says is its own
			a = answers[1]
		}
		if w.write(op, a, alone); a.code != "" {
			if !w.block {
				w.ended("ROLLBACK", "rolled_back")
			}
			return
		}
	}
	if !w.block {
		w.commit(answers[len(ops)])
	}
}

var limitTag = regexp.MustCompile(`^(?:INSERT 0|UPDATE|DELETE|MERGE) (\d+)$`)

// write holds the answer to one write against what it does at the twin.
func (w *limitWorld) write(op *limitOp, a limitAnswer, alone bool) {
	w.temporary = w.temporary || strings.Contains(op.sql, "TEMPORARY")
	before, uncounted := w.look(op.sql)
	if acted := w.acted.Swap(nil); acted != nil {
		w.other(op.meanwhile, *acted)
		before, _ = w.look(op.sql)
	}
	switch failed := w.twin.TxStatus() == 'E'; {
	case failed && a.code == "25P02", !w.block && a.code == "25P01": // a LOCK by itself
		return
	case !failed && op.used && a.code == "GT002":
		w.told["used"]++
		limitExec(w.twin, "SELECT 1/0")
		return
	case !failed && w.temporary && a.code == "GT002": // it was asked for where nothing temporary was
		limitExec(w.twin, "SELECT 1/0")
		return
	case failed || op.used || a.code == "GT002":
		w.wrong("%s: %+v; its block has failed: %t; its approval is used: %t", op.sql, a, failed, op.used)
		return
	}
	if a.code == "0A000" && strings.Contains(a.message, "has or had anything temporary") {
		w.told["behind something temporary"]++
		limitExec(w.twin, "SELECT 1/0")
		return
	}
	var same limitAnswer
	sent := a.code != "GT003" || !uncounted // else the gate knew before
	if sent {
		same = limitExec(w.twin, strings.ReplaceAll(op.sql, "$1", op.parameter))
	}
	if alone && same.code == "" {
		same.code = limitExec(w.twin, "SET CONSTRAINTS ALL IMMEDIATE").code
	}
	after, uncountable := w.look(op.sql)
	r := &limitRun{limitOp: op, sequence: w.sequence, rows: after - before}
	if tag := limitTag.FindStringSubmatch(same.tag); tag != nil { // of a temporary table it alone tells
		n, err := strconv.Atoi(tag[1])
		require.NoError(w.t, err)
		r.rows = max(r.rows, n)
	}
	if sent {
		w.runs = append(w.runs, r)
	}
	what := fmt.Sprintf("%s changes %d rows of %d", op.sql, r.rows, op.most)
	switch fits := op.most == 0 || r.rows <= op.most; {
	case a.code == "GT003" && op.most > 0 && strings.Contains(a.message, "cannot be counted"):
		if w.told["not countable"]++; !uncounted && !uncountable {
			w.wrong("%s, which can be counted: %+v", what, a)
		}
	case a.code == "GT003" && same.code == "":
		if w.told["over"]++; fits || !strings.Contains(a.message, fmt.Sprintf(" changes %d rows", r.rows)) {
			w.wrong("%s: %+v", what, a)
		}
	default:
		if w.alike(what, a, same); a.code == "" && !fits {
			w.wrong("%s, and went through", what)
		}
		op.used = op.approval
	}
	switch a.code {
	case "":
		w.writes = append(w.writes, r)
		return
	case "GT003":
		r.outcome = "row_limit_exceeded"
	default:
		w.told["error"]++
		r.outcome = "db_error"
	}
	limitExec(w.twin, "SELECT 1/0")
}

// commit holds the answer to a COMMIT, or to the Sync that is one, against what deferred
// triggers change. Whose they are is not told, so they count for each write.
func (w *limitWorld) commit(a limitAnswer) {
	before, uncounted := w.look("")
	same := limitExec(w.twin, "SET CONSTRAINTS ALL IMMEDIATE")
	after, uncountable := w.look("")
	limited, fit := false, true
	for _, r := range w.writes {
		r.rows += after - before
		limited, fit = limited || r.most > 0, fit && (r.most == 0 || r.rows <= r.most)
	}
	switch {
	case a.code == "GT003" && strings.Contains(a.message, "cannot be counted"):
		if w.told["not countable at the end"]++; !limited || !uncounted && !uncountable {
			w.wrong("the end can be counted: %+v", a)
		}
	case a.code == "GT003":
		if w.told["over at the end"]++; fit {
			w.wrong("the end is within all limits: %+v", a)
		}
	default:
		if w.alike("the end", a, same); a.code == "" && !fit {
			w.wrong("deferred triggers change more rows than a limit allows, and went through")
		}
	}
	switch {
	case a.code == "":
		w.told["success"] += len(w.writes)
		w.ended("COMMIT", "success")
	case a.code == "GT003" && len(w.writes) == 1: // it is its own limit
		w.writes[0].used = false
		w.ended("ROLLBACK", "row_limit_exceeded")
	case a.code == "GT003":
		w.ended("ROLLBACK", "rolled_back")
	default:
		w.ended("ROLLBACK", "db_error")
	}
}

// compare holds the log against what became of the writes, in their order.
func (w *limitWorld) compare() {
	of, told, committed, next := map[string]*limitRun{}, map[string]string{}, map[string]bool{}, 0
	wrong := func(r *limitRun, what string) {
		if w.fault == "" {
			w.sequence = r.sequence
			w.wrong("%s: %q, and in the log %s", r.sql, r.outcome, what)
		}
	}
	for _, e := range w.events(w.t) {
		id, approval := e.Context.ExecutionID, e.Context.ApprovalID
		switch e.Type {
		case event.TypeExecutionDispatched:
			var p event.ExecutionDispatched
			if require.NoError(w.t, e.Parse(&p)); p.Path == event.PathTx {
				require.Less(w.t, next, len(w.runs), "a write of which nobody knows")
				r := w.runs[next]
				if next++; sha256.Sum256([]byte(r.sql)) != p.SQLSHA256 {
					wrong(r, "another write is in its place")
				}
				of[id] = r
			}
		case event.TypeExecutionFailure:
			told[id] += e.Context.ReasonCode
		case event.TypeExecutionSuccess:
			var p event.ExecutionSuccess
			require.NoError(w.t, e.Parse(&p))
			if told[id] += "success"; of[id] != nil && of[id].most > 0 {
				told[id] += " " + strconv.Itoa(p.RowsChanged)
			}
			if approval != "" && committed[approval] {
				told[id] += " once more"
			}
			committed[approval] = true
		}
	}
	for _, r := range w.runs[next:] {
		wrong(r, "nothing")
	}
	for id, r := range of {
		if told[id] != r.outcome {
			wrong(r, told[id])
		}
	}
}

// runLimits runs sequences before one gate, and gives the first that went wrong.
func runLimits(t *testing.T, sequences [][]*limitOp, told map[string]int) (wrong int, fault string) {
	w := startLimitWorld(t, told)
	for i := 0; i < len(sequences) && w.fault == ""; i++ {
		w.run(i, sequences[i])
	}
	if w.end(t); w.fault == "" {
		w.compare()
	}
	return w.sequence, w.fault
}

// Whatever a block holds and whatever others do meanwhile, no write that changes more rows
// than its approval allows is committed, none within its limit is refused but for a reason
// that docs/POLICY.md tells, the log has the rows that changed, and an approval serves once.
func TestNoWritePassesItsRowLimit(t *testing.T) {
	t.Parallel()
	const batch = 1000
	count, err := strconv.Atoi(cmp.Or(os.Getenv("WIRE_LIMITS"), "40"))
	require.NoError(t, err)
	told := map[string]int{}
	for first := 0; first < count; first += batch {
		var sequences [][]*limitOp
		for n := first; n < min(first+batch, count); n++ {
			sequences = append(sequences, newLimitSequence(n))
		}
		if at, fault := runLimits(t, sequences, told); fault != "" {
			t.Fatalf("sequence %d: %s", first+at, shortestLimits(t, sequences[at], fault))
		}
	}
	t.Logf("what became of writes: %v", told)
	for _, what := range []string{"success", "over", "not countable", "error", "used"} {
		require.Positive(t, told[what], what)
	}
}

// shortestLimits leaves out one thing after another while something is wrong.
func shortestLimits(t *testing.T, ops []*limitOp, fault string) string {
	for again := fault; again != ""; {
		var shorter [][]*limitOp
		for i := range ops {
			shorter = append(shorter, slices.Delete(slices.Clone(ops), i, i+1))
		}
		var i int
		if i, again = runLimits(t, shorter, map[string]int{}); again != "" {
			ops, fault = shorter[i], again
		}
	}
	for _, op := range ops {
		fault += fmt.Sprintf("\n  %c %q, parameter %q, at most %d, joined %t, meanwhile %q", op.kind, op.sql, op.parameter, op.most, op.joined, op.meanwhile)
	}
	return fault
}
