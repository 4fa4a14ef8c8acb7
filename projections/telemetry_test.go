package projections_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// reported adds a batch of one agent with these ids.
func (w *world) reported(agent string, ids ...string) {
	p := &event.TelemetryReceived{BatchID: "bat_x"}
	for i, id := range ids {
		p.Events = append(p.Events, event.TelemetryEvent{ID: id, Type: "heartbeat", AgentID: agent, Timestamp: w.now.UnixNano()})
		p.Outcomes = append(p.Outcomes, event.TelemetryOutcome{Index: i, ID: id, Status: event.TelemetryAccepted})
	}
	w.do(event.Context{Project: project}, p)
}

func (w *world) sent(project, agent, id string) bool {
	w.t.Helper()
	v := w.store.View()
	defer v.Close()
	known, err := v.TelemetrySent(project, agent, id, w.now)
	require.NoError(w.t, err)
	return known
}

func TestAnIDOfTelemetryIsKnownForSevenDaysOfItsAgent(t *testing.T) {
	w := newWorld(t)
	w.reported("agt_1", "a", "b")
	require.True(t, w.sent(project, "agt_1", "a"))
	require.False(t, w.sent("other", "agt_1", "a"))
	require.False(t, w.sent(project, "agt_2", "a"))
	require.False(t, w.sent(project+"agt_1", "", "a"))
	require.False(t, w.sent(project, "agt_1", "c"))
	w.now = w.now.Add(7*24*time.Hour - 2*time.Second)
	require.True(t, w.sent(project, "agt_1", "b"))
	w.now = w.now.Add(2 * time.Second)
	require.False(t, w.sent(project, "agt_1", "b"))
	w.compare()
}

func TestForgottenIDsAreSweptAndThoseThatCameAgainAreNot(t *testing.T) {
	w := newWorld(t)
	for i := range 20 {
		w.reported("agt_1", fmt.Sprintf("old-%d", i), fmt.Sprintf("again-%d", i))
	}
	w.now = w.now.Add(7 * 24 * time.Hour)
	for i := range 20 {
		w.reported("agt_1", fmt.Sprintf("again-%d", i))
	}
	w.now = w.now.Add(2 * 24 * time.Hour)
	for i := range 10 {
		w.reported("agt_1", fmt.Sprintf("new-%d", i))
	}
	for i := range 20 {
		known, err := w.view().TelemetrySent(project, "agt_1", fmt.Sprintf("old-%d", i), w.now.Add(-8*24*time.Hour))
		require.NoError(t, err)
		require.False(t, known, "swept, whatever the moment that is asked for")
		require.True(t, w.sent(project, "agt_1", fmt.Sprintf("again-%d", i)))
	}
	w.compare()
}
