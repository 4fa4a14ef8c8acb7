package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/agentctl"
	"writegate/eventlog/event"
)

const follows = "Accept: text/event-stream"

// unclocked is a stream of what happens, without the usage: that comes by the clock.
const unclocked = "/v1/events?event_type=agent_*&event_type=request_*&event_type=decision_*&event_type=execution_*"

func TestAStreamOfAgentEventsGoesOnWhereItsClientStopped(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	key := "X-Api-Key: " + w.key
	live := w.stream(t, unclocked, follows, key)
	id, token := w.register(t, "bot")
	at, kind := live()
	require.Equal(t, "agent_registered", kind)
	_, kind = live()
	require.Equal(t, "agent_token_issued", kind)
	require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT 1")).status)
	require.Equal(t, http.StatusOK, w.query(t, ask("SELECT 2")).status, "nothing of this one is told: it came without a token")
	w.register(t, "other")

	resumed := w.stream(t, unclocked, follows, key, "Last-Event-ID: "+at)
	var kinds []string
	for range 5 {
		_, kind := resumed()
		kinds = append(kinds, kind)
	}
	require.Equal(t, []string{"agent_token_issued", "request_received", "decision_recorded", "execution_dispatched", "execution_success"}, kinds)
	_, kind = resumed()
	require.Equal(t, "agent_registered", kind)

	filtered := w.stream(t, "/v1/events?event_type=decision_*&agent_id="+id, follows, key, "Last-Event-ID: "+at)
	_, kind = filtered()
	require.Equal(t, "decision_recorded", kind)
	for _, bad := range []string{"x", "1", "1.x", "-1.0"} {
		r := w.v1(t, http.MethodGet, "/events", "", follows, "Last-Event-ID: "+bad)
		require.Equal(t, "validation_failed", r.text(t, "error_code"), bad)
	}
	w.end(t) // followers do not hold up the end
}

// What a revoked token followed ends before it tells anything more.
func TestAStreamUnderATokenTellsOfItsAgentAloneAndEndsWithTheToken(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	_, token := w.register(t, "bot")
	_, other := w.register(t, "other")
	follower := w.stream(t, unclocked, follows, "Authorization: Bearer "+token)
	require.Equal(t, http.StatusOK, w.as(t, other, ask("SELECT 1")).status)
	require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT 2")).status)
	own := w.v1(t, http.MethodGet, "/events?event_type=request_received&order=asc", "").json(t)["items"].([]any)
	require.Len(t, own, 2)
	at, kind := follower()
	require.Equal(t, "request_received", kind)
	require.Equal(t, fmt.Sprintf("%.0f.0", own[1].(map[string]any)["seq"]), at, "the other agent's statement is not in it")

	bot := own[1].(map[string]any)
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodDelete, "/agents/"+bot["agent_id"].(string), "").status)
	for kind != "" {
		require.NotContains(t, []string{"agent_token_revoked", "agent_deactivated"}, kind, "its last words came after the token's end")
		_, kind = follower()
	}
}

// A window of time has its first moment and not its last: two that touch share no event.
func TestAWindowOfEventsEndsBeforeItsLastMoment(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	w.register(t, "bot")
	for _, path := range []string{"/audit", "/v1/events"} {
		found := func(since, until string) []any {
			query := url.Values{"event_type": {"agent_registered"}, "since": {since}, "until": {until}}
			r := w.do(t, http.MethodGet, path+"?"+query.Encode(), nil, w.projectKey())
			require.Equal(t, http.StatusOK, r.status, "%s", r.body)
			return r.json(t)["items"].([]any)
		}
		all := found("2020-01-01T00:00:00Z", "2200-01-01T00:00:00Z")
		require.Len(t, all, 1)
		at := all[0].(map[string]any)["timestamp"].(string)
		moment, err := time.Parse(time.RFC3339Nano, at)
		require.NoError(t, err)
		next := moment.Add(time.Nanosecond).Format(time.RFC3339Nano)
		require.Empty(t, found(at, at), path)
		require.Len(t, found(at, next), 1, path)
		require.Empty(t, found(next, "2200-01-01T00:00:00Z"), path)
	}
}

// allEvents reads a list of GET /v1/events page by page.
func (w *agentWorld) allEvents(t *testing.T, query url.Values) (ids []string) {
	t.Helper()
	query = url.Values(http.Header(query).Clone())
	for {
		page := w.v1(t, http.MethodGet, "/events?"+query.Encode(), "")
		require.Equal(t, http.StatusOK, page.status, "%s", page.body)
		for _, item := range page.json(t)["items"].([]any) {
			e := item.(map[string]any)
			ids = append(ids, fmt.Sprintf("%.0f %s %s", e["seq"], e["event_id"], e["event_type"]))
		}
		next, _ := page.json(t)["next_cursor"].(string)
		if next == "" {
			return ids
		}
		query.Set("cursor", next)
		w.register(t, "writes between two pages")
	}
}

func TestPagesOfAgentEventsLoseNothingAndTellNothingTwice(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	for i := range 12 {
		require.Equal(t, http.StatusOK, w.as(t, token, ask(fmt.Sprintf("SELECT %d", i))).status)
	}
	head := strconv.FormatUint(w.head(t), 10)
	for name, filter := range map[string]url.Values{
		"everything": {}, "one agent": {"agent_id": {id}}, "two kinds": {"event_type": {"decision_recorded", "agent_*"}}, "a time": {"since": {time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano)}},
	} {
		filter.Set("to_seq", head)
		filter.Set("limit", "1000")
		whole := w.allEvents(t, filter)
		require.NotEmpty(t, whole, name)
		for _, limit := range []string{"1", "7", "13"} {
			if filter.Set("limit", limit); limit == "1" && len(whole) > 20 {
				continue // each page writes: that many would be many
			}
			filter.Set("order", "desc")
			require.Equal(t, whole, w.allEvents(t, filter), "%s by %s", name, limit)
			filter.Set("order", "asc")
			ascending := w.allEvents(t, filter)
			slices.Reverse(ascending)
			require.Equal(t, whole, ascending, "%s by %s, oldest first", name, limit)
		}
	}
	page := w.v1(t, http.MethodGet, "/events?limit=2&agent_id="+id, "").json(t)
	cursor := page["next_cursor"].(string)
	require.GreaterOrEqual(t, page["head"].(map[string]any)["seq"], page["items"].([]any)[0].(map[string]any)["seq"])
	for _, other := range []string{"", "agent_id=" + id + "&order=asc&", "agent_id=" + id + "&event_type=agent_*&"} {
		require.Equal(t, "cursor_invalid", w.v1(t, http.MethodGet, "/events?"+other+"cursor="+cursor, "").text(t, "error_code"), other)
	}
	own := w.do(t, http.MethodGet, "/v1/events?agent_id="+id+"&cursor="+cursor, nil, "Authorization: Bearer "+token)
	require.Equal(t, "cursor_invalid", own.text(t, "error_code"), "and neither is it another caller's")
}

// Whoever adds up the log comes to what GET /v1/usage says.
func TestUsageIsWhatTheLogAddsUpTo(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	id, token := w.register(t, "bot")
	_, other := w.register(t, "other")
	for range 5 {
		require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT 1")).status)
		require.Equal(t, http.StatusOK, w.do(t, http.MethodGet, "/v1/agents/"+id, nil, "Authorization: Bearer "+token).status)
	}
	require.Equal(t, http.StatusOK, w.as(t, other, ask("SELECT 1")).status)
	require.Equal(t, http.StatusForbidden, w.do(t, http.MethodGet, "/v1/agents/"+id, nil, "Authorization: Bearer "+other).status)
	require.Equal(t, http.StatusOK, w.v1(t, http.MethodGet, "/agents", "", "Authorization: Bearer "+token).status, "with both credentials")
	w.end(t) // writes the running minute too

	type sums struct{ requests, errors, decisions int }
	byCredential, byAgent := map[string]sums{}, map[string]sums{}
	add := func(to map[string]sums, name string, more sums) {
		if was := to[name]; name != "" {
			to[name] = sums{was.requests + more.requests, was.errors + more.errors, was.decisions + more.decisions}
		}
	}
	for _, e := range w.events(t) {
		switch e.Type {
		case event.TypeUsageRecorded:
			var p event.UsageRecorded
			require.NoError(t, e.Parse(&p))
			for _, c := range p.Credentials {
				more := sums{requests: c.Requests, errors: c.Errors}
				if add(byCredential, c.CredentialID, more); strings.HasPrefix(c.CredentialID, "tok_") {
					add(byAgent, c.AgentID, more)
				}
			}
		case event.TypeRequestReceived:
			var p event.RequestReceived
			require.NoError(t, e.Parse(&p))
			require.Len(t, p.CredentialIDs, 1)
			add(byCredential, p.CredentialIDs[0], sums{decisions: 1})
			add(byAgent, e.Context.AgentID, sums{decisions: 1})
		}
	}
	require.Equal(t, sums{6, 0, 5}, byAgent[id])
	require.Len(t, byCredential, 3)

	look := agentctl.NewSecret(agentctl.KeyPrefix) // what looking uses must not show
	w.testGate = startGate(t, w.gateDir, "GATE_PROJECT_KEYS=shop/ops="+w.key+",shop/look="+look)
	for group, want := range map[string]map[string]sums{"credential_id": byCredential, "agent_id": byAgent} {
		for _, interval := range []string{"1h", "1d"} {
			usage := w.do(t, http.MethodGet, "/v1/usage?interval="+interval+"&group_by="+group, nil, "X-Api-Key: "+look).json(t)
			got, total := map[string]sums{}, sums{}
			for _, item := range usage["items"].([]any) {
				i := item.(map[string]any)
				one := sums{int(i["requests"].(float64)), int(i["errors"].(float64)), int(i["sql_decisions"].(float64))}
				add(got, i["group"].(map[string]any)[group].(string), one)
				total = sums{total.requests + one.requests, total.errors + one.errors, total.decisions + one.decisions}
			}
			maps.DeleteFunc(got, func(name string, _ sums) bool { return strings.HasPrefix(name, "key_") && want[name] == (sums{}) })
			require.Equal(t, want, got, "%s %s", group, interval)
			totals := usage["totals"].(map[string]any)
			require.Equal(t, total, sums{int(totals["requests"].(float64)), int(totals["errors"].(float64)), int(totals["sql_decisions"].(float64))})
		}
	}
}
