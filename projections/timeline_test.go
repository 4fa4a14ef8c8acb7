package projections_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
)

// The newest timeline that was written to is kept, whatever comes behind it, until a run
// begins that says the database was put back.
func TestTheNewestTimelineIsKept(t *testing.T) {
	w := newWorld(t)
	known := func() [3]string {
		c := w.view().Counters()
		return [3]string{c.Timelines["7"], c.Timelines["8"], c.PutBack}
	}
	sent := func(system, timeline string, xid uint64) {
		p := dispatchOf(event.PathTx)
		p.Upstream.SystemIdentifier, p.Upstream.Timeline, p.XID = system, timeline, xid
		w.do(event.Context{ExecutionID: event.NewExecutionID(w.now)}, p)
	}
	start := func(back string) {
		engine := map[string]string{}
		if back != "" {
			engine[event.EngineTimeline] = back
		}
		w.do(event.Context{}, &event.Startup{Engine: engine})
	}
	sent("7", "00000002", 900)
	require.Equal(t, [3]string{"00000002", "", ""}, known())
	sent("7", "00000001", 901) // a block that was open
	sent("7", "", 0)           // a read at a standby
	sent("7", "00000003", 0)   // what was read there may never have been written there
	require.Equal(t, [3]string{"00000002", "", ""}, known())
	start("00000001")
	sent("7", "00000001", 901)
	require.Equal(t, [3]string{"00000001", "", "00000001"}, known())
	sent("7", "00000002", 902)
	start("00000001") // the setting was left
	require.Equal(t, [3]string{"00000002", "", "00000001"}, known())
	start("")
	start("00000001")
	start("00000001") // nothing was written in between
	sent("7", "00000001", 901)
	require.Equal(t, [3]string{"00000001", "", "00000001"}, known())
	sent("7", "00000003", 903)
	sent("8", "00000001", 1) // another cluster, and the first again
	require.Equal(t, [3]string{"00000003", "00000001", "00000001"}, known())
	sent("7", "00000002", 904)
	require.Equal(t, [3]string{"00000003", "00000001", "00000001"}, known())
	start("")
	start("00000001")
	sent("8", "00000001", 2)
	require.Equal(t, [3]string{"00000003", "00000001", "00000001"}, known(), "that was said of the cluster which is written to")
	start("")
	start("00000002")
	start("")
	sent("7", "00000002", 905)
	require.Equal(t, [3]string{"00000003", "00000001", ""}, known(), "it was taken back")
}
