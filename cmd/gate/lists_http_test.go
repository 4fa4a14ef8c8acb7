package main

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pageBytes is what a page of a list has at most, but for its first item.
const pageBytes = 4<<20 + 1024

// paged reads a list to its end, by pages that are asked for as large as they may
// be, and gives one field of each item and the number of pages.
func (g *testGate) paged(t *testing.T, path, field string, headers ...string) (values []string, pages int) {
	t.Helper()
	for cursor := ""; ; pages++ {
		r := g.do(t, http.MethodGet, path+"&limit=1000&cursor="+url.QueryEscape(cursor), nil, headers...)
		require.Equal(t, http.StatusOK, r.status, "%.500s", r.body)
		body := r.json(t)
		items := body["items"].([]any)
		require.NotEmpty(t, items)
		require.True(t, len(r.body) <= pageBytes || len(items) == 1, "%d bytes of %d items", len(r.body), len(items))
		for _, item := range items {
			values = append(values, fmt.Sprint(item.(map[string]any)[field]))
		}
		next, more := body["next_cursor"].(string)
		if !more {
			return values, pages + 1
		}
		cursor = next
	}
}

// A statement may be large, and JSON makes some characters larger still: no list
// grows with them over what one answer may have.
func TestAPageOfLargeApprovalsOrEventsEndsEarlyAndGoesOn(t *testing.T) {
	t.Parallel()
	g := startShop(t, "GATE_AUDIT_SQL_TEXT=full")
	var approvals []string
	for i := range 17 {
		r := g.query(t, ask(fmt.Sprintf("DELETE FROM orders WHERE id = 2 /*%s%d*/", strings.Repeat("\u2028", 86_000), i)))
		require.Equal(t, http.StatusAccepted, r.status, "%.500s", r.body)
		approvals = append(approvals, r.text(t, "approval_id"))
	}
	for _, list := range []string{"/approvals?status=pending", "/audit?event_type=approval_created"} {
		got, pages := g.paged(t, list+"&order=asc", "approval_id")
		require.Equal(t, approvals, got, list)
		require.Greater(t, pages, 1, list)
		got, _ = g.paged(t, list, "approval_id")
		slices.Reverse(got)
		require.Equal(t, approvals, got, list)
	}
	all, pages := g.paged(t, "/audit?order=asc", "seq")
	require.Greater(t, pages, 1)
	for i, seq := range all {
		require.Equal(t, fmt.Sprint(i+1), seq, "each event once, small ones between large ones too")
	}
}

func TestAPageOfLargeTelemetryEndsEarlyInTheMiddleOfABatch(t *testing.T) {
	t.Parallel()
	w := startAgents(t, "GATE_MAX_BODY_BYTES=16777216")
	_, token := w.register(t, "bot")
	var ids []string
	for batch := range 2 { // two pages, which meet in the second one
		var events []string
		for i := range 50 {
			var attributes []string
			for j := range 60 {
				attributes = append(attributes, fmt.Sprintf(`"k%d":%q`, j, strings.Repeat("v", 1000)))
			}
			ids = append(ids, fmt.Sprintf("e%d.%d", batch, i))
			events = append(events, fmt.Sprintf(`{"id":%q,"type":"x","attributes":{%s}}`, ids[len(ids)-1], strings.Join(attributes, ",")))
		}
		_, sent := w.sent(t, bearer(token), "["+strings.Join(events, ",")+"]")
		require.Equal(t, 50, sent.Accepted)
	}
	for _, order := range []string{"asc", "desc"} {
		var got []string
		payloads, pages := w.paged(t, "/v1/events?event_type=telemetry_received&order="+order, "payload", w.projectKey())
		for _, p := range payloads {
			_, id, _ := strings.Cut(p, " id:")
			id, _, _ = strings.Cut(id, " ")
			got = append(got, id)
		}
		if order == "desc" {
			slices.Reverse(got)
		}
		require.Equal(t, ids, got)
		require.Equal(t, 2, pages)
	}
}
