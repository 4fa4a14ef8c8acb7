package controlplane

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
