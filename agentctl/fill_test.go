package agentctl

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/commands/fault"
)

// A request that has no time to read all of an agent's day is refused, and the
// next one goes on where it ended.
func TestAMeterIsFilledByOneRequestAfterTheOther(t *testing.T) {
	w := begin(t)
	by := w.agents(t, "default", 1)[0]
	const batches = 5
	for range batches {
		_, err := w.Telemetry(t.Context(), by, sentEvents(by, 10))
		require.NoError(t, err)
	}
	m := &meter{throttles: map[throttleKey][]int64{}} // as after a start
	gone, leave := context.WithCancel(t.Context())
	leave()
	for i := range batches {
		err := w.fill(gone, m, by.AgentID, w.Now())
		require.Equal(t, fault.AuditUnavailable, fault.CodeOf(err))
		require.ErrorContains(t, err, "still reading")
		require.False(t, m.filled)
		require.EqualValues(t, 10*(i+1), m.fresh.usage(w.Now()).Events1h)
		require.True(t, w.flushing.TryLock(), "nobody else waits for it")
		w.flushing.Unlock()
	}
	require.NoError(t, w.fill(t.Context(), m, by.AgentID, w.Now()))
	require.EqualValues(t, 10*batches, m.usage(w.Now()).Events1h)
}
