package controlplane

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDecisionsAreCountedByHowTheirStatementsCame(t *testing.T) {
	decision := func(payload string) auditEvent {
		return auditEvent{EventType: "decision_recorded", Payload: []byte(payload)}
	}
	require.Equal(t, "1 by POST /query, 2 by an agent’s tools (MCP)", channels([]auditEvent{
		decision(`{"facts":{"channel":"mcp"}}`), decision(`{"facts":{"channel":"http"}}`), decision(`{"facts":{"channel":"mcp"}}`), decision(`{"facts":{}}`),
		{EventType: "agent_updated", Payload: []byte(`{"facts":{"channel":"mcp"}}`)},
	}))
	require.Empty(t, channels([]auditEvent{decision(`{}`), decision(`no JSON`)}))
	require.Equal(t, came{Client: "c/1", Reason: "why"}, cameBy(auditEvent{EventType: "request_received", Payload: []byte(`{"client":"c/1","reason":"why"}`)}))
	require.Equal(t, came{}, cameBy(auditEvent{EventType: "policy_activated", Payload: []byte(`{"reason":"why"}`)}))
}

// A client chooses the id of its request, and may choose that of another one which was
// written just before.
func TestARefusalIsNoPartOfTheRequestBeforeIt(t *testing.T) {
	one := func(seq uint64, kind, actor string) (e auditEvent) {
		e.Seq, e.EventType, e.RequestID, e.Actor = seq, kind, "req-3", actor
		return e
	}
	kinds := func(events ...auditEvent) (rows [][]string) {
		for _, row := range rowsOf(events, true) {
			var list []string
			for _, e := range row.Events {
				list = append(list, e.EventType)
			}
			rows = append(rows, list)
		}
		return rows
	}
	for refusal := range refusals {
		require.Equal(t, [][]string{{"request_received", "decision_recorded"}, {refusal}},
			kinds(one(1, "request_received", "ana"), one(2, "decision_recorded", "ana"), one(3, refusal, "evil")))
		require.Equal(t, [][]string{{"request_received", refusal}}, kinds(one(1, "request_received", "ana"), one(2, refusal, "ana")))
	}
}
