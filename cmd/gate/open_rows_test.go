package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/evidence"
	"writegate/eventlog/frame"
)

const operatorTestHeader = "X-GATE-Operator-Token: " + operatorTestToken

// followed reads a stream up to an event of the kind given.
func (g *testGate) followed(t *testing.T, path, last string, headers ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.base+path, nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "text/event-stream")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	r, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer r.Body.Close()
	var read strings.Builder
	lines := bufio.NewReader(r.Body)
	for {
		line, err := lines.ReadString('\n')
		require.NoError(t, err, "%s", &read)
		read.WriteString(line)
		if strings.HasPrefix(line, "data: ") && strings.Contains(line, last) {
			return read.String()
		}
	}
}

// A withheldItem is an event as everybody gets it and as an operator does.
type withheldItem struct{ open, whole event.Envelope }

// withheld gives the events of the types that show less to everybody than to an
// operator, whose view of each is what its hash covers.
func (g *testGate) withheld(t *testing.T, types ...event.Type) (items []withheldItem) {
	t.Helper()
	read := func(headers ...string) (list []event.Envelope) {
		query := "/audit?limit=1000&order=asc"
		for _, one := range types {
			query += "&event_type=" + string(one)
		}
		var page struct{ Items []json.RawMessage }
		require.NoError(t, json.Unmarshal(g.do(t, http.MethodGet, query, nil, headers...).body, &page))
		for _, text := range page.Items {
			e, err := event.ParseJSON(text)
			require.NoError(t, err)
			list = append(list, e)
		}
		return list
	}
	open, whole := read(), read(operatorTestHeader)
	require.Len(t, open, len(whole))
	for i := range whole {
		record, err := event.Encode(nil, &whole[i].Draft)
		require.NoError(t, err)
		require.Equal(t, whole[i].Hash, frame.EventHash(whole[i].Seq, whole[i].PreviousHash, record))
		require.Equal(t, whole[i].Hash, open[i].Hash)
		if !bytes.Equal(event.AppendJSON(nil, &whole[i]), event.AppendJSON(nil, &open[i])) {
			require.NotContains(t, string(event.AppendJSON(nil, &open[i])), `"salt"`)
			items = append(items, withheldItem{open[i], whole[i]})
		}
	}
	require.NotEmpty(t, items)
	return items
}

// found tells whether the open view, with the field in it that was left out, has the
// event's hash: whether whoever guesses the field can see that the guess is right.
func (item *withheldItem) found(t *testing.T, field event.Field) bool {
	t.Helper()
	with := func(more ...event.Field) bool {
		known := slices.DeleteFunc(slices.Clone(item.open.Fields()), func(f event.Field) bool {
			return f.Key == field.Key || strings.HasSuffix(f.Key, "_withheld")
		})
		d := item.open.With(event.NewPayload(append(known, more...)...))
		record, err := event.Encode(nil, &d)
		require.NoError(t, err)
		return frame.EventHash(item.open.Seq, item.open.PreviousHash, record) == item.open.Hash
	}
	salt, salted := item.whole.Get("salt")
	require.True(t, salted)
	require.True(t, with(field, event.Field{Key: "salt", Value: salt}), "whoever has the salt sees it: so the rest of the guess was right")
	return with(field)
}

// Under GATE_AUDIT_SQL_TEXT=full the log has what the database said of any statement
// that failed.
func TestWhatTheDatabaseSaidIsShownToOperatorsAlone(t *testing.T) {
	g := startShop(t, "GATE_AUDIT_SQL_TEXT=full")
	refused := g.query(t, ask("SELECT CAST(email AS integer) FROM customers LIMIT 1"))
	require.Contains(t, string(refused.body), "ada@example.com")
	path := "/audit?event_type=execution_failure"
	require.NotContains(t, string(g.get(t, path).body), "ada@example.com")
	require.Contains(t, string(g.get(t, path).body), `"message_withheld":true`)
	require.Contains(t, string(g.do(t, http.MethodGet, path, nil, operatorTestHeader).body), "ada@example.com")
	for _, item := range g.withheld(t, event.TypeExecutionFailure) {
		message, _ := item.whole.Get("message")
		require.False(t, item.found(t, event.Field{Key: "message", Value: message}))
	}
}

// Rows leave by POST /query, where the policy decided about them, and by nothing
// else that is open.
func TestRowsThatAKeyKeepsAreShownToOperatorsAlone(t *testing.T) {
	t.Parallel()
	w := startAgents(t)
	_, token := w.register(t, "bot")
	first := w.head(t) + 1
	written := w.as(t, token, ask("UPDATE orders SET status = 'seen' WHERE id = 1"))
	require.Equal(t, http.StatusOK, written.status, "%s", written.body)
	harmless := w.head(t)
	written = w.as(t, token, ask("UPDATE orders SET status = 'kept-in-view' WHERE id = 1"), "idempotency_key=ours-0")
	require.Equal(t, http.StatusOK, written.status, "%s", written.body)
	require.Equal(t, http.StatusOK, w.as(t, token, ask("SELECT email FROM customers LIMIT 1"), "idempotency_key=ours-1").status)
	require.Equal(t, http.StatusOK, w.as(t, token, ask("UPDATE customers SET name = name WHERE id = 1 RETURNING email"), "idempotency_key=ours-2").status)
	refused := w.as(t, token, ask("SELECT CAST(email AS integer) FROM customers LIMIT 1"), "idempotency_key=ours-3")
	require.Equal(t, "db_query_failed", refused.text(t, "error_code"))
	require.Contains(t, string(refused.body), "ada@example.com", "the database quotes values")
	last := w.head(t)
	require.Equal(t, http.StatusOK, w.get(t, "/executions").status)

	end := `"execution_failure"`
	bundle := func(from, to uint64, headers ...string) reply {
		return w.do(t, http.MethodPost, "/audit/evidence", fmt.Appendf(nil, `{"start_seq":%d,"end_seq":%d}`, from, to), headers...)
	}
	events := func(headers ...string) string {
		return string(w.do(t, http.MethodGet, "/audit?limit=1000&order=asc", nil, headers...).body)
	}
	one := w.eventsOf(t, event.TypeExecutionSuccess)[0]["event_id"].(string)
	for name, shown := range map[string]string{
		"GET /audit":                     events(),
		"GET /audit as an agent":         events(bearer(token)),
		"GET /audit/stream":              w.followed(t, "/audit/stream?from_seq=1", end),
		"GET /v1/events":                 string(w.do(t, http.MethodGet, "/v1/events?limit=1000", nil, w.projectKey()).body),
		"GET /v1/events, with a token":   string(w.do(t, http.MethodGet, "/v1/events?limit=1000", nil, bearer(token)).body),
		"GET /v1/events/:event_id":       string(w.do(t, http.MethodGet, "/v1/events/"+one, nil, w.projectKey()).body),
		"GET /v1/events, as it comes":    w.followed(t, "/v1/events", end, w.projectKey(), fmt.Sprintf("Last-Event-ID: %d.0", first)),
		"POST /audit/evidence":           string(bundle(1, last).body),
		"POST /audit/evidence of others": string(bundle(first, harmless).body),
		"GET /executions":                string(w.get(t, "/executions").body),
		"GET /logs":                      string(w.get(t, "/logs").body),
	} {
		require.NotContains(t, shown, "ada@example.com", name)
		require.NotContains(t, shown, "ours-1", "%s: whoever has the key is given the rows", name)
		require.Greater(t, len(shown), 100, name)
	}
	require.Equal(t, 3, strings.Count(events(), `"answer":{"body":"","body_withheld":true,"status":`))
	require.Contains(t, events(), `"rows\":[]`, "an answer without rows is shown")

	require.Equal(t, 3, strings.Count(events(operatorTestHeader), "ada@example.com"))
	require.NotContains(t, events(operatorTestHeader), "body_withheld")
	require.Equal(t, 3, strings.Count(w.followed(t, "/audit/stream?from_seq=1", end, operatorTestHeader), "ada@example.com"))

	for _, item := range w.withheld(t, event.TypeExecutionSuccess, event.TypeExecutionFailure) {
		answer, _ := item.whole.Get("answer")
		require.False(t, item.found(t, event.Field{Key: "answer", Value: answer}), "the answer itself, tried against the hash that is shown")
	}

	for _, item := range w.withheld(t, event.TypeRequestReceived) {
		key, _ := item.whole.Get("idempotency_key")
		require.False(t, item.found(t, event.Field{Key: "idempotency_key", Value: key}))
	}
	for _, item := range w.withheld(t, event.TypeExecutionDispatched) {
		key, _ := item.whole.Get("idempotency")
		require.False(t, item.found(t, event.Field{Key: "idempotency", Value: key}))
	}
	require.Contains(t, events(operatorTestHeader), "ours-1")

	// A bundle has its events whole, else it could not be verified.
	closed := bundle(harmless+1, last)
	require.Equal(t, http.StatusUnauthorized, closed.status)
	require.Equal(t, "unauthorized_operator", closed.text(t, "error_code"))
	require.EqualValues(t, harmless+1, closed.json(t)["details"].(map[string]any)["seq"])
	require.Empty(t, w.eventsOf(t, event.TypeOperatorAuthFailed), "nobody sent a wrong token")
	for _, b := range []reply{bundle(1, last, operatorTestHeader), bundle(first, harmless)} {
		require.Equal(t, http.StatusOK, b.status, "%s", b.body)
		report, err := evidence.Verify(t.Context(), bytes.NewReader(b.body), evidence.Options{})
		require.NoError(t, err)
		require.Equal(t, frame.OK, report.Status, "%+v", report.Faults)
	}
	require.True(t, w.as(t, token, ask("SELECT email FROM customers LIMIT 1"), "idempotency_key=ours-1").json(t)["replayed"].(bool), "and who asked gets them again")
}
