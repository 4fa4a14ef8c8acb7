package agentctl

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"writegate/commands"
	"writegate/commands/fault"
	"writegate/eventlog/event"
	"writegate/projections"
)

// heartbeat puts one telemetry event of this moment into the log.
func (w *world) heartbeat(t *testing.T) {
	t.Helper()
	_, err := w.Commands.Change(t.Context(), commands.Change{Decide: func(_ *projections.View, now time.Time) ([]event.Draft, error) {
		p := &event.TelemetryReceived{BatchID: "bat_1", Events: []event.TelemetryEvent{{ID: now.String(), AgentID: "agt_1", Type: "heartbeat", Timestamp: now.UnixNano()}},
			Outcomes: []event.TelemetryOutcome{{Status: event.TelemetryAccepted}}}
		return []event.Draft{event.New(now, event.Context{Project: "p"}, p)}, nil
	}})
	require.NoError(t, err)
}

// A question about minutes that are gone is refused: an empty answer would say
// that nothing happened. Hours answer it.
func TestMinutesThatAreGoneAreNotAnsweredAsIfNothingHadHappened(t *testing.T) {
	w := begin(t)
	caller := Caller{Project: "p", KeyID: "key_1"}
	events := func(interval string) (int64, error) {
		body, err := w.Metrics(t.Context(), &caller, MetricsQuery{Since: noon, Until: noon.Add(24 * time.Hour), Interval: interval})
		if err != nil {
			return 0, err
		}
		return body.Totals.Events, nil
	}
	w.heartbeat(t)
	w.now.Store(noon.Add(34 * 24 * time.Hour).UnixNano())
	w.heartbeat(t)
	for _, interval := range []string{"1m", "5m", "1h", "1d"} {
		n, err := events(interval)
		require.NoError(t, err)
		require.EqualValues(t, 1, n, interval)
	}
	w.now.Store(noon.Add(37 * 24 * time.Hour).UnixNano())
	w.heartbeat(t)
	for _, interval := range []string{"1m", "5m"} {
		_, err := events(interval)
		require.Equal(t, fault.ValidationFailed, fault.CodeOf(err), interval)
	}
	for _, interval := range []string{"1h", "1d"} {
		n, err := events(interval)
		require.NoError(t, err)
		require.EqualValues(t, 1, n, interval)
	}
}
