package main

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"writegate/fixtures/hostile"
)

// bearable is how often a text may cost the gate and its parser child together what an ordinary
// one of the largest size costs on the same machine at the same time.
const bearable = 10

// closedPolicy blocks whatever is decided, so that no hostile text is more than
// this gate's business: what it would cost PostgreSQL is not the question.
const closedPolicy = `
schema: gate.policy/v1
name: closed
version: 1.0.0
facts: facts/v1
rules:
  - id: closed
    decision: BLOCK
    reason_code: closed
    match: { class: [read, write, ddl, dcl, tcl, session, procedural, maintenance, utility, unknown] }
`

// startClosed is a gate with that policy. A text may take its time by the clock:
// on a busy machine that is no measure of what it costs.
func startClosed(t testing.TB) *testGate {
	t.Helper()
	return startGateWith(t, newGateDir(t, []byte(closedPolicy)), func(a *app) { a.parseWall = startPatience })
}

// parserChildren are the parser processes of this process that run.
func parserChildren(t testing.TB) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	var found []int
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		name, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err != nil || len(fields) < 2 || fields[1] != strconv.Itoa(os.Getpid()) || !strings.HasPrefix(string(name), "gate-parser\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		require.NoError(t, err)
		found = append(found, pid)
	}
	return found
}

// A parserMeter reads the CPU time of all parser children: of those that run,
// and of those that have been waited for.
type parserMeter struct{ running []int }

func (m *parserMeter) read(t testing.TB) time.Duration {
	t.Helper()
	var total time.Duration
	require.Eventually(t, func() (ok bool) { // one may end, and another begin, while the clocks are read; and that takes a moment
		if total, ok = m.sum(t); !ok {
			m.running = parserChildren(t)
		}
		return ok
	}, startPatience, time.Millisecond, "no parser child runs")
	return total
}

func (m *parserMeter) sum(t testing.TB) (time.Duration, bool) {
	t.Helper()
	total := rusage(t, syscall.RUSAGE_CHILDREN)
	for _, pid := range m.running {
		const schedulerClock = 2 // of a process: include/linux/posix-timers_types.h
		var now unix.Timespec
		if unix.ClockGettime(int32(^pid<<3|schedulerClock), &now) != nil {
			return 0, false
		}
		total += time.Duration(now.Nano())
	}
	return total, len(m.running) > 0
}

func rusage(t testing.TB, who int) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(who, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A costedReply is an answer with what it took of this process, in which gate
// and client live, and of the parser children.
type costedReply struct {
	reply
	self, children time.Duration
}

// costed sends a statement past the harness, whose own checks would count.
func (g *testGate) costed(t testing.TB, m *parserMeter, sql string) costedReply {
	t.Helper()
	body, err := json.Marshal(ask(sql))
	require.NoError(t, err)
	children, self := m.read(t), rusage(t, syscall.RUSAGE_SELF)
	response, err := http.Post(g.base+"/query", "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return costedReply{reply{response.StatusCode, response.Header, read}, rusage(t, syscall.RUSAGE_SELF) - self, m.read(t) - children}
}

// requireAnswer wants the contract's shape: a decision, or the error object
// with one of the statuses that the contract has for a text.
func requireAnswer(t testing.TB, r reply) {
	t.Helper()
	if r.status == http.StatusForbidden {
		require.Equal(t, "BLOCK", r.text(t, "decision"))
		require.NotEmpty(t, r.json(t)["classification"])
		return
	}
	require.Contains(t, []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}, r.status, "%s", r.body)
	requireErrorObject(t, r)
}

// requireErrorObject wants the error object of spec/gate.md part 2.3.
func requireErrorObject(t testing.TB, r reply) {
	t.Helper()
	require.Equal(t, "application/json", r.header.Get("Content-Type"), "%s", r.body)
	require.NotEmpty(t, r.text(t, "error_code"), "%s", r.body)
	require.NotEmpty(t, r.text(t, "message"), "%s", r.body)
	require.Regexp(t, "^err_", r.text(t, "error_id"))
	require.NotEmpty(t, r.header.Get("X-Request-Id"))
}

// requireAlive wants a gate that is well and decides.
func (g *testGate) requireAlive(t testing.TB) {
	t.Helper()
	health := g.get(t, "/health")
	require.Equal(t, http.StatusOK, health.status, "%s", health.body)
	require.Equal(t, "ok", health.text(t, "status"))
	require.Equal(t, http.StatusForbidden, g.query(t, ask("DROP TABLE t")).status)
}

// bearableCPU is what a text may cost.
func (g *testGate) bearableCPU(t testing.TB, m *parserMeter) time.Duration {
	t.Helper()
	least := time.Duration(math.MaxInt64)
	g.query(t, ask(hostile.Shapes["values"].Text(256<<10))) // starts the child
	for range 3 {
		r := g.costed(t, m, hostile.Shapes["values"].Text(256<<10))
		require.Equal(t, http.StatusForbidden, r.status, "%s", r.body)
		least = min(least, r.self+r.children)
	}
	return bearable * least
}

// requireBearable wants an answer in the contract's shape within the CPU time
// that a text may cost. What else this process does, such as collecting
// garbage, counts too but only ever adds, so the least of three counts.
func (g *testGate) requireBearable(t testing.TB, m *parserMeter, most time.Duration, what, sql string) {
	t.Helper()
	var r costedReply
	for range 3 {
		r = g.costed(t, m, sql)
		requireAnswer(t, r.reply)
		if r.self+r.children <= most {
			return
		}
	}
	t.Errorf("%s, %d bytes: gate %v, parser %v of %v: %.300s", what, len(sql), r.self, r.children, most, r.body)
}

// Not parallel: it reads the processor time of all parser children of this process.
func TestHostileTextsThroughHTTP(t *testing.T) {
	g, m := startClosed(t), new(parserMeter)
	most := g.bearableCPU(t, m)
	for _, name := range slices.Sorted(maps.Keys(hostile.Shapes)) {
		for _, size := range []int{1 << 10, 16 << 10, 256 << 10} {
			if raceDetector && size > 1<<10 {
				continue
			}
			g.requireBearable(t, m, most, name, hostile.Shapes[name].Text(size))
		}
	}
	g.requireAlive(t)
}

type largeStatement struct{ sql, queryType, class string }

// largeStatements are ordinary and large: what they are must be seen. Under the
// race detector they are a tenth as large, because its bookkeeping takes more of
// the parser's CPU time than a text may.
func largeStatements() map[string]largeStatement {
	share := 1
	if raceDetector {
		share = 10
	}
	return map[string]largeStatement{
		"insert of many rows": {hostile.Shape{Before: "INSERT INTO t (id, name, paid) VALUES (0, '', false)", Unit: ", (123456, 'a name of a customer', true)"}.Text(256 << 10 / share), "INSERT", "write"},
		"list of 100,000":     {"SELECT name FROM t WHERE id IN (1" + strings.Repeat(",1", 100_000/share-1) + ")", "SELECT", "read"},
	}
}

// Not parallel: it reads the processor time of all parser children of this process.
func TestLargeOrdinaryStatementsAreDecided(t *testing.T) {
	g, m := startClosed(t), new(parserMeter)
	most := g.bearableCPU(t, m)
	for name, c := range largeStatements() {
		g.requireBearable(t, m, most, name, c.sql)
		r := g.query(t, ask(c.sql))
		require.Equal(t, http.StatusForbidden, r.status, "%s: %s", name, r.body)
		var body struct {
			Classification struct {
				QueryType string   `json:"query_type"`
				Class     string   `json:"class"`
				Read      []string `json:"tables_read"`
				Written   []string `json:"tables_written"`
			}
		}
		unmarshal(t, r.body, &body)
		require.Equal(t, c.queryType, body.Classification.QueryType)
		require.Equal(t, c.class, body.Classification.Class)
		require.Equal(t, []string{"public.t"}, append(body.Classification.Read, body.Classification.Written...))
	}
	g.requireAlive(t)
}

// Every limit on a text, from both sides.
func TestLimitsOfATextThroughHTTP(t *testing.T) {
	t.Parallel()
	g := startClosed(t)
	work := "SELECT 1" + strings.Repeat(" "+strings.Repeat("@", 63)+" 1", 496) + strings.Repeat(" + 1", 64) // 496 * 2016 + 64
	for name, c := range map[string]struct{ within, over, code, limit string }{
		"bytes":           {"SELECT '" + strings.Repeat("a", 256<<10-9) + "'", "SELECT '" + strings.Repeat("a", 256<<10-8) + "'", "oversized_sql", ""},
		"comment depth":   {"SELECT 1 " + strings.Repeat("/*", 32) + strings.Repeat("*/", 32), "SELECT 1 " + strings.Repeat("/*", 33) + strings.Repeat("*/", 33), "parser_unsupported_syntax", "comment_depth"},
		"operator length": {"SELECT 1 " + strings.Repeat("@", 63) + " 1", "SELECT 1 " + strings.Repeat("@", 64) + " 1", "parser_unsupported_syntax", "operator_length"},
		"bracket depth":   {"SELECT " + strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000), "SELECT " + strings.Repeat("(", 1001) + "1" + strings.Repeat(")", 1001), "parser_unsupported_syntax", "bracket_depth"},
		"lexer work":      {work, work + " + 1", "parser_unsupported_syntax", "lexer_work"},
	} {
		r := g.query(t, ask(c.within))
		require.Equal(t, http.StatusForbidden, r.status, "%s: %s", name, r.body)
		r = g.query(t, ask(c.over))
		require.Equal(t, c.code, r.text(t, "error_code"), "%s: %.300s", name, r.body)
		requireErrorObject(t, r)
		if c.limit != "" {
			require.Contains(t, string(mustField(t, r, "details")), strconv.Quote(c.limit))
		}
	}
	for name, sql := range map[string]string{
		"16 KiB":               "SELECT '" + strings.Repeat("a", 16<<10-9) + "'",
		"16 KiB and a byte":    "SELECT '" + strings.Repeat("a", 16<<10-8) + "'",
		"a depth of 1,000":     "SELECT 1" + strings.Repeat("+1", 1000),
		"a depth beyond 1,000": "SELECT 1" + strings.Repeat("+1", 1001),
	} {
		r := g.query(t, ask(sql))
		require.Equal(t, http.StatusForbidden, r.status, "%s: %s", name, r.body)
	}
	g.requireAlive(t)
}

// Texts that are no texts are refused for what they are, in the body and as the
// query parameter.
func TestBrokenTextsThroughHTTP(t *testing.T) {
	t.Parallel()
	g := startClosed(t)
	const claims = `"actor":"ana","app":"shop","tenant":"acme","role":"clerk","host":"desk-1","env":"prod"`
	for sql, code := range map[string]string{
		`SELECT 1\u0000; DROP TABLE t`: "parser_error",
		`\u0000`:                       "parser_error",
		"SELECT 1\x00":                 "invalid_json",
		"SELECT '\xff'":                "invalid_json",
		"SELECT '\xc0\xaf'":            "invalid_json", // an overlong slash
		"SELECT '\xed\xa0\x80'":        "invalid_json", // a surrogate as bytes
		`SELECT '\ud800'`:              "invalid_json",
		`SELECT '\udc00\ud800'`:        "invalid_json",
		`SELECT '\ud800x'`:             "invalid_json",
		`SELECT '\uD83D\uDE00'`:        "", // a pair is a character
		`SELECT \u0027a\u0027`:         "",
		`   \n\t; -- only a comment`:   "empty_sql",
		``:                             "empty_sql",
		`SELECT '`:                     "parser_error",
		`SELECT $a$`:                   "parser_error",
		`SELECT 1 /* `:                 "parser_error",
		`\ufeffSELECT 1`:               "parser_error", // a byte order mark is no white space
		`SELECT 1; SELECT 2`:           "multi_statement_rejected",
	} {
		r := g.do(t, http.MethodPost, "/query", []byte("{"+claims+`,"sql":"`+sql+`"}`))
		requireAnswer(t, r)
		require.Equal(t, code, r.text(t, "error_code"), "%q: %s", sql, r.body)
	}
	for escaped, code := range map[string]string{
		"SELECT+1%00":          "parser_error",
		"SELECT+'%ff'":         "parser_error",
		"SELECT+'%ed%a0%80'":   "parser_error",
		"SELECT+'%zz'":         "validation_failed",
		"SELECT+1%3b+SELECT+2": "multi_statement_rejected",
		"":                     "empty_sql",
		"SELECT+'%c3%a4'":      "",
	} {
		r := g.do(t, http.MethodPost, "/query?sql="+escaped, []byte("{"+claims+"}"))
		requireAnswer(t, r)
		require.Equal(t, code, r.text(t, "error_code"), "%q: %s", escaped, r.body)
	}
	g.requireAlive(t)
}
