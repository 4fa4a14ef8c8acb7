package controlplane

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheInboxIsSortedByRiskAndTimeLeft(t *testing.T) {
	now := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	s := &Server{now: func() time.Time { return now }}
	waiting := func(id, sql, where string, minutes int, signals ...string) approval {
		c := classification{QueryType: "DELETE", Class: "write", TablesWritten: []string{"public.orders"}, Where: []string{where}, RiskSignals: signals}
		return approval{ApprovalID: id, SQL: sql, Classification: c, Fingerprint: where, Context: claims{Actor: id[:1]}, ExpiresAt: now.Add(time.Duration(minutes) * time.Minute),
			Impact: &plan{Tables: []reached{{Table: "public.orders", How: "named"}}}}
	}
	list := []approval{
		waiting("a1", "DELETE FROM orders WHERE id = 1", "key_equality", 9), waiting("a2", "DELETE FROM orders WHERE id = 2", "key_equality", 3),
		waiting("b1", "DELETE FROM orders WHERE n > 1", "present", 5), waiting("c1", "DELETE FROM orders", "none", 14), waiting("c2", "DELETE FROM orders", "none", 12),
		waiting("a3", "DELETE FROM orders WHERE id = 3", "key_equality", 1),
	}
	order := func(rows []approvalRow) string {
		var ids []string
		for _, g := range grouped(rows) {
			for _, r := range g.Rows {
				ids = append(ids, r.ApprovalID)
			}
		}
		return strings.Join(ids, " ")
	}
	require.Equal(t, "c2 c1 b1 a3 a2 a1", order(s.rows(list)))

	groups := grouped(s.rows(list))
	require.Equal(t, []bool{false, true, true}, []bool{groups[0].Alone == nil, groups[1].Alone == nil, groups[2].Alone == nil}, "what could do much harm is approved one by one")
	for _, r := range groups[2].Rows {
		var differs []string
		for _, p := range r.Line.Pieces {
			if p.Differs {
				differs = append(differs, p.Text)
			}
		}
		require.Equal(t, []string{r.ApprovalID[1:]}, differs, "only what differs is marked")
	}
	long := waiting("a4", "DELETE FROM orders WHERE id = 4 -- "+strings.Repeat("x", shownBytes), "key_equality", 2)
	require.NotEmpty(t, grouped(s.rows([]approval{list[0], long}))[0].Alone, "what a line does not show whole is approved on its card")

	alike := []approval{waiting("d1", "DELETE FROM carts WHERE id = 1", "key_equality", 9), waiting("d2", "DELETE FROM carts WHERE id = 1", "key_equality", 8), waiting("d3", "DELETE FROM carts WHERE id = 1", "key_equality", 7)}
	alike[1].Context.Role, alike[2].Context.Host, alike[2].Principal = "admin", "evil", "user=eve"
	for i, r := range grouped(s.rows(alike))[0].Rows {
		said := ""
		for _, c := range append(r.Proven, r.Who...) {
			if c.Differs {
				said += " " + c.Name + "=" + c.Value
			}
		}
		require.Equal(t, []string{" =user=eve role= host=evil", " role=admin host=", " role= host="}[i], said, "what differs besides the text is shown, and marked")
	}

	reaching := list[0]
	reaching.Impact = &plan{Tables: []reached{{Table: "public.items", How: "cascade", From: "public.orders"}}}
	require.NotEmpty(t, grouped(s.rows([]approval{list[1], reaching}))[0].Alone, "nor what has a danger that its card names")

	reaching.Impact = nil
	require.NotEmpty(t, grouped(s.rows([]approval{list[1], reaching}))[0].Alone, "nor what nobody looked at")
	require.Equal(t, "elevated", s.rows([]approval{reaching})[0].Risk)

	rows, links := filtered(s.rows(list), url.Values{"risk": {"ordinary"}})
	require.Equal(t, "a3 a2 a1", order(rows))
	require.Equal(t, filterLink{"Ordinary", "/approvals?risk=ordinary", 3, true, false}, links[3])
	rows, links = filtered(s.rows(list), url.Values{"actor": {"c"}})
	require.Equal(t, "c2 c1", order(rows))
	require.Equal(t, []int{6, 2, 1, 3, 3, 2, 1}, []int{links[0].Count, links[1].Count, links[2].Count, links[3].Count, links[4].Count, links[5].Count, links[6].Count})
}

func TestAPageOfTheInboxCountsThroughItsGroups(t *testing.T) {
	groups := []group{{Fingerprint: "a", Rows: make([]approvalRow, 3), Of: 3}, {Fingerprint: "b", Rows: make([]approvalRow, 1), Of: 1}, {Fingerprint: "c", Rows: make([]approvalRow, 4), Of: 4}}
	at := func(from, to int) map[string]int {
		shown := make(map[string]int)
		for _, g := range window(groups, from, to) {
			shown[g.Fingerprint] = len(g.Rows)
		}
		return shown
	}
	require.Equal(t, map[string]int{"a": 3, "b": 1, "c": 4}, at(0, 8))
	require.Equal(t, map[string]int{"a": 2}, at(0, 2))
	require.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1}, at(2, 5))
	require.Equal(t, map[string]int{"c": 1}, at(7, 20))
	require.Empty(t, at(0, 0))
}
