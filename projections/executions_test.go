package projections_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/projections"
)

// An id that lies before others, as after a clock that was set back, is no newer
// execution: what is stored of it goes on, also behind a new start.
func TestExecutionsGoOnInWhateverOrderTheirIdsAre(t *testing.T) {
	w := newWorld(t)
	ids := []string{"exe_5", "exe_9", "exe_1", "exe_7", "exe_0"}
	for _, id := range ids {
		w.do(event.Context{ExecutionID: id, Actor: "bot"}, dispatchOf(event.PathTx))
	}
	w.stop()
	w.start()
	w.do(event.Context{ExecutionID: "exe_3", Actor: "bot"}, dispatchOf(event.PathTx))
	for i, id := range ids {
		w.do(event.Context{ExecutionID: id}, &event.ExecutionSuccess{CommandTag: "INSERT 0 1", Basis: "commit_acknowledged"})
		x := w.execution(id)
		require.Equal(t, projections.ExecutionSuccess, x.State)
		require.Equal(t, "bot", x.Actor, "the record of the dispatch")
		require.Len(t, x.Events, 2)
		require.Equal(t, len(ids)+1-i-1, w.view().Counters().ExecutionsOpen)
	}
	w.compare()
}
