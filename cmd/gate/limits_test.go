package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/fixtures/postgres"
)

// A limitRow is a row of the table of limits in docs/OPERATIONS.md.
type limitRow struct{ name, setting, status, code, event string }

var (
	settingInRow = regexp.MustCompile("`(GATE_[A-Z_]+)`")
	codeInRow    = regexp.MustCompile("^([0-9]{3}) `([a-z_]+)`")
)

// limitsOfThePage reads the table that operators read.
func limitsOfThePage(t *testing.T) (rows []limitRow) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "OPERATIONS.md"))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "| limit | setting | default | over it | event |\n| --- | --- | --- | --- | --- |\n")
	require.True(t, found)
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") {
			break
		}
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		require.Len(t, cells, 5, line)
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		row := limitRow{name: cells[0], event: strings.Trim(cells[4], "`")}
		if m := settingInRow.FindStringSubmatch(cells[1]); m != nil {
			row.setting = m[1]
		}
		if m := codeInRow.FindStringSubmatch(cells[3]); m != nil {
			row.status, row.code = m[1], m[2]
		}
		rows = append(rows, row)
	}
	return rows
}

// TestEveryLimitIsASettingAndIsToldAndRecorded walks the page: a limit that has a
// setting is held by it, its answer is the one that the page says, and so is the
// event (spec/gate.md part 8).
func TestEveryLimitIsASettingAndIsToldAndRecorded(t *testing.T) {
	t.Parallel()
	held := limits(t)
	rows := limitsOfThePage(t)
	require.Greater(t, len(rows), 15)
	walked := 0
	for _, row := range rows {
		if row.event == "" {
			require.NotContains(t, held, row.name)
			continue
		}
		walked++
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			limit, ok := held[row.name]
			require.True(t, ok, "the page has a limit that no test holds")
			if row.setting != "" {
				require.Contains(t, settingNames(), row.setting)
				require.True(t, slices.ContainsFunc(limit.settings, func(s string) bool { return strings.HasPrefix(s, row.setting+"=") }), "held by another setting than %s", row.setting)
			}
			g := startGate(t, newErrorDir(t), limit.settings...)
			r := limit.exceed(t, g)
			require.Equal(t, row.status+" "+row.code, fmt.Sprint(r.status, " ", r.text(t, "error_code")), "%s", r.body)
			require.Eventually(t, func() bool {
				return len(g.get(t, "/audit?event_type="+row.event).json(t)["items"].([]any)) > 0
			}, startPatience, pollEvery, "no %s", row.event)
		})
	}
	require.Len(t, held, walked, "a limit that the page does not have")
}

// A limitHeld is how a limit is lowered and exceeded.
type limitHeld struct {
	settings []string
	exceed   func(t *testing.T, g *testGate) reply
}

func limits(t *testing.T) map[string]limitHeld {
	sends := func(statements ...statement) func(*testing.T, *testGate) reply {
		return func(t *testing.T, g *testGate) (last reply) {
			for _, s := range statements {
				last = g.query(t, s)
			}
			return last
		}
	}
	expires := func(t *testing.T, g *testGate) reply {
		s := held(t, g, "DELETE FROM order_items WHERE order_id = 1", "")
		require.Eventually(t, func() bool {
			return g.get(t, "/approvals/"+s["approval_id"].(string)).text(t, "status") == "expired"
		}, startPatience, pollEvery)
		return g.query(t, s)
	}
	long := "SELECT '" + strings.Repeat("x", 300) + "'"
	return map[string]limitHeld{
		"request body":                       {[]string{"GATE_MAX_BODY_BYTES=1024"}, sends(ask(strings.Repeat("x", 1100)))},
		"SQL text":                           {[]string{"GATE_MAX_SQL_BYTES=100"}, sends(ask(long))},
		"statements of a client in a minute": {[]string{"GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1", "GATE_RATE_LIMIT_BURST=2"}, sends(ask("SELECT 1"), ask("SELECT 1"), ask("SELECT 1"))},
		"statements of a client at once":     {[]string{"GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1", "GATE_RATE_LIMIT_BURST=1"}, sends(ask("SELECT 1"), ask("SELECT 1"))},
		"statements in a request":            {nil, sends(ask("SELECT 1; SELECT 2"))},
		"rows of a result":                   {[]string{"GATE_MAX_RESULT_ROWS=99"}, sends(ask("SELECT generate_series(1, 1000000)"))},
		"bytes of a result":                  {[]string{"GATE_MAX_RESULT_BYTES=1024"}, sends(ask("SELECT repeat('x', 2000)"))},
		"time of a statement":                {[]string{"GATE_DB_QUERY_TIMEOUT_MS=1000"}, sends(ask("SELECT " + endless))},
		"time of a statement under `bulk`":   {[]string{"GATE_DB_BULK_QUERY_TIMEOUT_MS=1000"}, sends(ask("SELECT "+endless).with("execution_profile", "bulk"))},
		"life of an approval":                {[]string{"GATE_APPROVAL_DEFAULT_TTL_SECONDS=1"}, expires},
		"rows that an approval lets change": {nil, func(t *testing.T, g *testGate) reply {
			return g.query(t, held(t, g, "DELETE FROM order_items WHERE order_id IN (11, 12, 13)", "approve"))
		}},
		"prepared-statement sessions": {[]string{"GATE_MAX_SESSIONS=1"}, sends(in("a", "PREPARE p AS SELECT 1"), in("b", "PREPARE p AS SELECT 1"))},
		"statements in a session": {nil, func(t *testing.T, g *testGate) (last reply) {
			for i := range 101 {
				last = g.query(t, in("a", fmt.Sprintf("PREPARE p%d AS SELECT 1", i)))
			}
			return last
		}},
		"text in a session": {[]string{"GATE_MAX_SQL_BYTES=524288"}, func(t *testing.T, g *testGate) (last reply) {
			for i := range 9 {
				last = g.query(t, in("a", fmt.Sprintf("PREPARE p%d AS SELECT '%s'", i, strings.Repeat("x", 500<<10))))
			}
			return last
		}},
		"parameters of a prepared statement": {nil, sends(in("a", "PREPARE p AS SELECT $1001"))},
	}
}

// TestEachClientBehindATrustedProxyHasItsOwnRate: the header counts where the
// proxy is named, and nowhere else.
func TestEachClientBehindATrustedProxyHasItsOwnRate(t *testing.T) {
	t.Parallel()
	for proxies, shared := range map[string]bool{"127.0.0.0/8": false, "10.0.0.0/8": true} {
		g := startGate(t, newErrorDir(t), "GATE_RATE_LIMIT_REQUESTS_PER_MINUTE=1", "GATE_RATE_LIMIT_BURST=1", "GATE_TRUSTED_PROXIES="+proxies)
		from := func(client string) int {
			body := []byte(`{"actor":"ana","app":"shop","tenant":"acme","role":"clerk","host":"desk-1","env":"prod","sql":"SELECT 1"}`)
			return g.do(t, "POST", "/query", body, "X-Forwarded-For: "+client).status
		}
		require.Equal(t, 200, from("198.51.100.4"))
		require.Equal(t, 429, from("198.51.100.4"))
		require.Equal(t, shared, from("198.51.100.5") == 429)
		require.Equal(t, shared, strings.Contains(string(g.get(t, "/audit?event_type=rate_limit_hit").body), "127.0.0.1"), "the evidence names who was limited")
	}
}

// A client whose statements take long does not keep the connections of all
// others: it gets nearly all of them, and is told so when it wants more.
func TestOneClientDoesNotHoldAllConnections(t *testing.T) {
	t.Parallel()
	g := startGate(t, newErrorDir(t), "GATE_DB_POOL_MAX=8", "GATE_DB_ACQUIRE_TIMEOUT_MS=200", "GATE_TRUSTED_PROXIES=127.0.0.0/8", "GATE_DB_QUERY_TIMEOUT_MS=60000", "GATE_DB_LOCK_TIMEOUT_MS=0")
	from := func(client, sql string, headers ...string) reply {
		return g.do(t, "POST", "/query", mustJSON(t, ask(sql).with("execution_profile", "bulk")), append(headers, "X-Forwarded-For: "+client)...)
	}
	release := postgres.HoldURL(t, g.database, "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
	answers := make(chan int, 7)
	for i := range cap(answers) {
		go func() { answers <- from(fmt.Sprintf("2001:db8::%d", i), "SELECT id FROM orders").status }()
	}
	require.Eventually(t, func() bool {
		return g.value(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == "7"
	}, startPatience, pollEvery)
	more := from("2001:db8::ff", "SELECT 1")
	requireFailure(t, more, http.StatusTooManyRequests, "rate_limit_exceeded", "not_executed")
	require.Contains(t, more.text(t, "message"), "uses 7 database connections")
	require.Equal(t, "1", more.header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, from("198.51.100.4", "SELECT 1").status, "another client")
	require.Equal(t, http.StatusOK, from("2001:db8::ff", "SELECT 1", "X-GATE-Operator-Token: "+operatorTestToken).status, "an operator at the same place")
	require.Empty(t, g.get(t, "/audit?event_type=db_unavailable").json(t)["items"], "nothing is wrong with the database")
	release()
	for range cap(answers) {
		require.Equal(t, http.StatusOK, <-answers)
	}
	require.Equal(t, http.StatusOK, from("2001:db8::ff", "SELECT 1").status)
}
