package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"writegate/agentctl"
)

// listParameters are the parameters of each list that may stand there once.
var listParameters = map[string][]string{
	"/audit": {"fingerprint", "actor", "app", "tenant", "env", "decision", "approval_id", "session_id", "policy_version",
		"execution_id", "request_id", "agent_id", "table", "rule_id", "since", "until", "from_seq", "to_seq", "limit", "cursor", "order"},
	"/approvals":  {"status", "env", "app", "actor", "limit", "cursor", "order"},
	"/executions": {"execution_state", "limit", "cursor", "order"},
	"/logs":       {"level", "source", "limit", "cursor", "order"},
}

func TestAListRefusesAParameterThatStandsTwice(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	for path, names := range listParameters {
		for _, name := range names {
			r := g.get(t, path+"?"+name+"=a&"+name+"=b")
			requireInvalid(t, r, name)
			r = g.get(t, path+"?"+name+"=%ff")
			requireInvalid(t, r, name)
		}
		broken := g.get(t, path+"?limit=%zz")
		require.Equal(t, http.StatusBadRequest, broken.status, path)
		require.Equal(t, "validation_failed", broken.text(t, "error_code"))
		// An unknown name is ignored, and an empty value is a filter that is not there.
		require.Equal(t, http.StatusOK, g.get(t, path+"?no_such_parameter=1&no_such_parameter=2").status, path)
		require.Equal(t, http.StatusOK, g.get(t, path+"?"+strings.Join(names, "=&")+"=").status, path)
	}
	all, none := g.get(t, "/audit?order=asc"), g.get(t, "/audit?order=asc&event_type=&event_type=")
	require.JSONEq(t, string(all.body), string(none.body))
}

// requireInvalid wants a refusal that names the field.
func requireInvalid(t testing.TB, r reply, field string) {
	t.Helper()
	require.Equal(t, http.StatusBadRequest, r.status, "%s: %s", field, r.body)
	var body struct {
		Code    string `json:"error_code"`
		Details struct {
			Fields map[string]string `json:"fields"`
		} `json:"details"`
	}
	unmarshal(t, r.body, &body)
	require.Equal(t, "validation_failed", body.Code)
	require.NotEmpty(t, body.Details.Fields[field], "%s: %s", field, r.body)
}

func TestAListNamesTheParameterWhoseValueItDoesNotTake(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	paging := map[string][]string{
		"limit": {"0", "-1", "1001", "ten", "1.5", "99999999999999999999"}, "order": {"up", "ASC"},
		"cursor": {"x", "====", strings.Repeat("A", 600), "AAAAAAAAAAAAAAAAAAAAAAAA"},
	}
	bad := map[string]map[string][]string{
		"/audit":      {"decision": {"MAYBE", "allow"}, "env": {"dev"}, "event_type": {"starting", "startup*"}, "since": {"yesterday", "2026-01-31"}, "until": {"1"}, "table": {"orders"}, "from_seq": {"0", "-1", "one"}, "to_seq": {"0", "1e3"}},
		"/approvals":  {"status": {"done", "Pending"}, "env": {"production"}},
		"/executions": {"execution_state": {"running"}},
		"/logs":       {"level": {"trace", "INFO"}},
	}
	for path, parameters := range bad {
		maps.Copy(parameters, paging)
		for name, values := range parameters {
			for _, value := range values {
				requireInvalid(t, g.get(t, path+"?"+name+"="+url.QueryEscape(value)), name)
			}
		}
	}
}

// auditEvents are the items of one page of GET /audit and its cursor.
func auditEvents(t testing.TB, g *testGate, query url.Values) (items []map[string]any, next string) {
	t.Helper()
	r := g.get(t, "/audit?"+query.Encode())
	require.Equal(t, http.StatusOK, r.status, "%s: %s", query.Encode(), r.body)
	var page struct {
		Items      []map[string]any `json:"items"`
		NextCursor *string          `json:"next_cursor"`
	}
	unmarshal(t, r.body, &page)
	if page.NextCursor != nil {
		next = *page.NextCursor
		require.NotEmpty(t, next)
	}
	return page.Items, next
}

// allPages walks a query to its last page.
func allPages(t testing.TB, g *testGate, query url.Values) (items []map[string]any) {
	t.Helper()
	query = maps.Clone(query)
	for {
		page, next := auditEvents(t, g, query)
		items = append(items, page...)
		if next == "" {
			return items
		}
		require.NotEmpty(t, page, "a page with a cursor behind it holds something")
		query.Set("cursor", next)
	}
}

func seqsOf(items []map[string]any) []uint64 {
	seqs := make([]uint64, len(items))
	for i, item := range items {
		seqs[i] = uint64(item["seq"].(float64))
	}
	return seqs
}

// fillAudit has different people do different things.
func fillAudit(t testing.TB, g *testGate) {
	t.Helper()
	sqls := []string{"SELECT 1", "UPDATE orders SET status = 'paid' WHERE id = 3", "DELETE FROM orders", "DELETE FROM orders WHERE id = 4", "SELEC", "SELECT id FROM nowhere", "SELECT o.id FROM orders o JOIN order_items i ON i.order_id = o.id WHERE o.id = 1"}
	for i := range 36 {
		s := ask(sqls[i%len(sqls)]).with("actor", []string{"ana", "ben", "cem"}[i%3]).with("tenant", []string{"acme", "bolt"}[i/7%2]).
			with("env", []string{"prod", "staging", "shadow"}[i/5%3]).with("app", []string{"shop", "crm"}[i/11%2])
		if i%4 == 0 {
			s = s.with("session_id", "s-"+strconv.Itoa(i%8))
		}
		r := g.query(t, s)
		if id := r.text(t, "approval_id"); id != "" && i%2 == 1 {
			g.resolve(t, id, []string{"approve", "reject"}[i/6%2])
			g.query(t, s.with("approval_id", id))
		}
	}
}

// auditFields are the filters that name the field of an event they look at.
var auditFields = []string{"event_type", "fingerprint", "actor", "app", "tenant", "env", "decision", "approval_id", "session_id", "policy_version", "execution_id", "request_id", "agent_id", "table", "rule_id"}

// having are the values of a field of an event; those of a decision's tables and rule
// stand in its payload.
func having(e map[string]any, name string) (values []string) {
	payload, _ := e["payload"].(map[string]any)
	switch facts, _ := payload["facts"].(map[string]any); {
	case name == "table":
		for _, key := range []string{"tables_read", "tables_written"} {
			tables, _ := facts[key].([]any)
			for _, one := range tables {
				values = append(values, one.(string))
			}
		}
	case name == "rule_id" && e["event_type"] == "decision_recorded":
		values = append(values, payload[name].(string))
	case name != "rule_id":
		text, _ := e[name].(string)
		values = append(values, text)
	}
	return slices.DeleteFunc(values, func(v string) bool { return v == "" })
}

// meets is the filter in its plainest form.
func meets(query url.Values, e map[string]any) bool {
	for _, name := range auditFields {
		if len(query[name]) > 0 && !slices.ContainsFunc(having(e, name), func(v string) bool { return slices.Contains(query[name], v) }) {
			return false
		}
	}
	seq, at := uint64(e["seq"].(float64)), e["timestamp"].(string)
	from, _ := strconv.ParseUint(query.Get("from_seq"), 10, 64)
	to, _ := strconv.ParseUint(query.Get("to_seq"), 10, 64)
	return seq >= from && (to == 0 || seq <= to) && (!query.Has("since") || at >= query.Get("since")) && (!query.Has("until") || at < query.Get("until"))
}

func TestEveryFilterOfTheAuditFindsExactlyWhatItNames(t *testing.T) {
	t.Parallel()
	key := agentctl.NewSecret(agentctl.KeyPrefix)
	w := &agentWorld{key: key, testGate: startShop(t, "GATE_PROJECT_KEYS=shop/ops="+key)}
	g := w.testGate
	fillAudit(t, g)
	for _, name := range []string{"bot", "other"} {
		_, token := w.register(t, name)
		require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT 1")).status)
	}
	all := allPages(t, g, url.Values{"order": {"asc"}, "limit": {"1000"}})
	require.Greater(t, len(all), 100)
	for i, seq := range seqsOf(all) {
		require.EqualValues(t, i+1, seq)
	}
	values := valuesOf(all)
	check := func(t require.TestingT, query url.Values) {
		var want []uint64
		for _, e := range all {
			if meets(query, e) {
				want = append(want, uint64(e["seq"].(float64)))
			}
		}
		if query.Get("order") != "asc" {
			slices.Reverse(want)
		}
		got := slices.DeleteFunc(seqsOf(allPages(testingTB(t), g, query)), func(seq uint64) bool { return seq > uint64(len(all)) }) // the gate counts the use of tokens by the clock
		if len(want) == 0 {
			require.Empty(t, got, query.Encode())
			return
		}
		require.Equal(t, want, got, query.Encode())
	}
	for _, name := range auditFields {
		require.NotEmpty(t, values[name], "no event has a %s", name)
		for _, value := range values[name][:min(len(values[name]), 30)] {
			check(t, url.Values{name: {value}})
		}
		nothing := "nothing.has-this"
		if name == "event_type" {
			nothing = "audit_corruption_detected"
		}
		if name == "decision" || name == "env" {
			continue // which refuse what nothing has
		}
		check(t, url.Values{name: {nothing}})
	}
	rapid.Check(t, func(rt *rapid.T) {
		check(boundRapid{rt, t}, drawQuestion(rt, values, all))
	})
}

// boundRapid lets helpers that want a testing.TB run inside a property.
type boundRapid struct {
	*rapid.T
	tb testing.TB
}

func testingTB(t require.TestingT) testing.TB {
	if b, ok := t.(boundRapid); ok {
		return b.tb
	}
	return t.(testing.TB)
}

// valuesOf lists the values that events have, by field.
func valuesOf(all []map[string]any) map[string][]string {
	seen := map[string]map[string]bool{}
	for _, e := range all {
		for _, name := range auditFields {
			for _, text := range having(e, name) {
				if seen[name] == nil {
					seen[name] = map[string]bool{}
				}
				seen[name][text] = true
			}
		}
	}
	values := map[string][]string{}
	for name, set := range seen {
		values[name] = slices.Sorted(maps.Keys(set))
	}
	return values
}

// drawQuestion draws filters that often have something in common with an event.
func drawQuestion(rt *rapid.T, values map[string][]string, all []map[string]any) url.Values {
	query := url.Values{"limit": {strconv.Itoa(rapid.IntRange(7, 200).Draw(rt, "limit"))}}
	like := rapid.SampledFrom(all).Draw(rt, "like")
	for _, name := range auditFields {
		switch rapid.IntRange(0, 9).Draw(rt, name) {
		case 0:
			query.Add(name, rapid.SampledFrom(values[name]).Draw(rt, name+" value"))
		case 1, 2:
			if some := having(like, name); len(some) > 0 {
				query.Add(name, some[len(some)-1])
			}
		}
	}
	if query.Has("event_type") && rapid.Bool().Draw(rt, "several types") {
		query.Add("event_type", rapid.SampledFrom(values["event_type"]).Draw(rt, "second type"))
	}
	if rapid.IntRange(0, 3).Draw(rt, "range") == 0 {
		query.Set("from_seq", strconv.Itoa(rapid.IntRange(1, len(all)).Draw(rt, "from")))
		query.Set("to_seq", strconv.Itoa(rapid.IntRange(1, len(all)+5).Draw(rt, "to")))
	}
	for _, name := range []string{"since", "until"} {
		switch rapid.IntRange(0, 7).Draw(rt, name) {
		case 0, 1:
			query.Set(name, rapid.SampledFrom(all).Draw(rt, name+" of")["timestamp"].(string))
		case 2: // no event's time can be one of these
			query.Set(name, rapid.SampledFrom([]string{"0001-01-01T00:00:00Z", "1600-01-01T00:00:00Z", "2262-04-12T00:00:00Z", "9999-12-31T23:59:59Z"}).Draw(rt, "far "+name))
		}
	}
	query.Set("order", rapid.SampledFrom([]string{"asc", "desc"}).Draw(rt, "order"))
	return query
}

func TestPagesOfTheAuditLoseNothingWhileWritersAppend(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	fillAudit(t, g)
	done := make(chan struct{})
	var writers sync.WaitGroup
	for i := range 3 {
		writers.Go(func() {
			body, _ := json.Marshal(ask("SELECT 1").with("actor", fmt.Sprintf("writer-%d", i)))
			for {
				select {
				case <-done:
					return
				default:
				}
				if r, err := g.try(http.MethodPost, "/query", body); err != nil || r.status != http.StatusOK {
					t.Errorf("a writer was refused: %v %s", err, r.body)
					return
				}
			}
		})
	}
	defer writers.Wait()
	defer close(done)
	for range 3 {
		head := lastSeq(t, g)
		newest := seqsOf(allPages(t, g, url.Values{"limit": {"41"}}))
		require.GreaterOrEqual(t, newest[0], head, "what was there before the first page is in it")
		for i, seq := range newest {
			require.Equal(t, newest[0]-uint64(i), seq, "newest first: each event once, none missing")
		}
		head = lastSeq(t, g)
		oldest := seqsOf(allPages(t, g, url.Values{"limit": {"41"}, "order": {"asc"}, "to_seq": {strconv.FormatUint(head, 10)}}))
		require.Len(t, oldest, int(head))
		for i, seq := range oldest {
			require.EqualValues(t, i+1, seq, "oldest first: each event once, none missing")
		}
		decided := allPages(t, g, url.Values{"limit": {"13"}, "order": {"asc"}, "to_seq": {strconv.FormatUint(head, 10)}, "event_type": {"decision_recorded"}})
		again := allPages(t, g, url.Values{"limit": {"1000"}, "to_seq": {strconv.FormatUint(head, 10)}, "event_type": {"decision_recorded"}})
		slices.Reverse(again)
		require.Equal(t, seqsOf(again), seqsOf(decided))
	}
}

// lastSeq is the newest event of the log.
func lastSeq(t testing.TB, g *testGate) uint64 {
	t.Helper()
	items, _ := auditEvents(t, g, url.Values{"limit": {"1"}})
	require.Len(t, items, 1)
	return seqsOf(items)[0]
}

func TestACursorBelongsToItsListFiltersAndOrder(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	fillAudit(t, g)
	_, cursor := auditEvents(t, g, url.Values{"limit": {"3"}, "actor": {"ana"}})
	require.NotEmpty(t, cursor)
	_, same := auditEvents(t, g, url.Values{"limit": {"50"}, "actor": {"ana"}, "cursor": {cursor}})
	require.NotEqual(t, cursor, same, "another limit is the same question")
	for _, other := range []string{"actor=ben&", "", "actor=ana&order=asc&", "actor=ana&app=shop&", "actor=ana&from_seq=2&"} {
		requireInvalid(t, g.get(t, "/audit?"+other+"cursor="+cursor), "cursor")
	}
	requireInvalid(t, g.get(t, "/approvals?cursor="+cursor), "cursor")
	requireInvalid(t, g.get(t, "/executions?cursor="+cursor), "cursor")
}

// contractFields are the members that the contract names for each read endpoint
// (spec/gate.md part 2, spec/decisions.md parts 5 and 11); an answer may have
// more, never fewer. Those of a list are of its items.
var contractFields = map[string]string{
	"/health":                             "status version uptime_seconds mode startup_chain database log",
	"/runtime/stats":                      "uptime_seconds version requests_total requests_by_query_type decisions policy_version approvals_pending approvals_resolved health_checks mode latency_ms executions_unknown parser pool wire",
	"/policy/status":                      "loaded policy_version path rule_count operator_auth_enabled mode",
	"/logs":                               "timestamp level source message error_id request_id",
	"/executions":                         "execution_id request_id approval_id execution_state outcome xid dispatched_at resolved_at fingerprint actor app",
	"/approvals":                          "approval_id sql classification context status resolution expires_at resolved_at note resolved_by created_at fingerprint policy_version reason_code rule_id max_rows agent_id impact execution_id used_at",
	"/audit?event_type=decision_recorded": "event_id event_hash previous_hash timestamp event_type policy_version operation fingerprint decision actor app tenant env session_id approval_id seq",
	"/evidence/verify":                    "status",
}

func TestEveryReadHasTheFieldsOfTheContract(t *testing.T) {
	t.Parallel()
	g := startShop(t)
	fillAudit(t, g)
	for path, names := range contractFields {
		body := g.get(t, path).json(t)
		objects := []any{body}
		if list, ok := body["items"]; ok {
			require.Contains(t, body, "next_cursor", path)
			objects = list.([]any)
			require.NotEmpty(t, objects, path)
		}
		for _, object := range objects {
			for _, name := range strings.Fields(names) {
				require.Contains(t, object, name, path)
			}
		}
	}
	latency := g.get(t, "/runtime/stats").json(t)["latency_ms"].(map[string]any)
	for _, phase := range []string{"classify", "decide", "log", "database", "total"} {
		for _, quantile := range []string{"p50", "p95", "p99"} {
			require.Contains(t, latency[phase], quantile, phase)
		}
	}
	for _, step := range g.health(t).Chain {
		require.Equal(t, "ok", step.Status, step.Step)
		require.NotEmpty(t, step.Message, step.Step)
	}
}
